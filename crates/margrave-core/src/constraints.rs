//! Does this device fit this package; if not, why.
//!
//! A server asks [`fits`] before it places anything, a device asks [`eligible`] before it applies anything
//! (MI-G2-084); both get every reason, in words. Field names are the wire's; what other deployments were promised on the
//! device is [`Room`]'s business.

mod room;

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::capabilities::Capabilities;
use crate::package::Profile;

pub use room::{Claims, Need, Port, Promise, Protocol, Room};

/// A profile's `deviceConstraints`: parsed for deciding, and as written for copying (DM-122).
#[derive(Debug, Clone, PartialEq)]
pub struct Constraints {
    pub capacity: Option<Capacity>,
    /// OR between rules; empty means no constraint (DM-141).
    pub rules: Vec<Rule>,
    pub as_written: Value,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Capacity {
    pub cores: Option<f64>,
    pub architectures: Vec<String>,
    pub memory_bytes: Option<u64>,
    pub storage_bytes: Option<u64>,
}

/// AND between the two selectors; an omitted one counts as true (DM-140).
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    pub property: Option<Vec<Expression>>,
    pub label: Option<Vec<Expression>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    pub key: String,
    pub operator: Operator,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Operator {
    In(Vec<Value>),
    NotIn(Vec<Value>),
    Exists,
    DoesNotExist,
    Gt(f64),
    Lt(f64),
    ContainsAll(Vec<Expression>),
    ContainsAny(Vec<Expression>),
}

/// An amount of memory or storage, in bytes. Amounts beyond what 64 bits count are all the same: enormous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(pub u64);

const UNITS: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// The units of `memory`; `storage` may use all six.
pub const MEMORY_UNITS: &[&str] = &["Ki", "Mi", "Gi"];
pub const STORAGE_UNITS: &[&str] = &["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl Quantity {
    /// An amount that an application requires: digits and one of `units`, nothing else.
    pub fn required(text: &str, units: &[&str]) -> Option<Self> {
        let (digits, shift) = split_unit(text, units)?;
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let number = digits.parse::<u64>().unwrap_or(u64::MAX);
        Some(Quantity(number.saturating_mul(1 << shift)))
    }

    /// An amount that a device reports: also with blanks and with decimals, as devices do write it (AMB-10).
    pub fn reported(text: &str) -> Option<Self> {
        let (digits, shift) = split_unit(text.trim(), STORAGE_UNITS)?;
        let digits = digits.trim_end();
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, "0"));
        let plain =
            |part: &str| !part.is_empty() && part.len() <= 40 && part.bytes().all(|b| b.is_ascii_digit());
        if !plain(whole) || !plain(decimals) {
            return None;
        }
        let unit = 1u64 << shift;
        let whole = whole.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(unit);
        let part = format!("0.{decimals}").parse::<f64>().ok()? * unit as f64;
        Some(Quantity(whole.saturating_add(part as u64)))
    }
}

fn split_unit<'a>(text: &'a str, units: &[&str]) -> Option<(&'a str, u32)> {
    let allowed = UNITS.iter().filter(|(unit, _)| units.contains(unit));
    allowed.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
}

/// In the largest unit that keeps it whole, without a blank: how we write amounts.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole =
            UNITS.iter().rev().find(|(_, shift)| self.0 >= 1 << shift && self.0.is_multiple_of(1 << shift));
        match whole {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}Ki", self.0 / 1024),
        }
    }
}

/// What a misfit is about; stable, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MisfitCode {
    /// The device hosts nothing at all (DM-103).
    NotHosting,
    /// It cannot run this kind of profile (DM-125).
    DeploymentType,
    Cpu,
    Memory,
    Storage,
    /// None of the eligibility rules holds.
    Rules,
    /// Another deployment has the port there.
    Port,
    /// Another deployment writes to the volume there.
    Volume,
}

impl MisfitCode {
    pub fn as_str(self) -> &'static str {
        match self {
            MisfitCode::NotHosting => "not-hosting",
            MisfitCode::DeploymentType => "deployment-type",
            MisfitCode::Cpu => "cpu",
            MisfitCode::Memory => "memory",
            MisfitCode::Storage => "storage",
            MisfitCode::Rules => "rules",
            MisfitCode::Port => "port",
            MisfitCode::Volume => "volume",
        }
    }

    /// Whether somebody may decide otherwise. What cannot run there at all cannot be forced (DM-125).
    pub fn can_be_forced(self) -> bool {
        !matches!(self, MisfitCode::NotHosting | MisfitCode::DeploymentType)
    }
}

/// One reason why a device cannot take a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Misfit {
    pub code: MisfitCode,
    /// What is needed and what is there, such as "needs 4 cores on amd64, has 2 on arm64".
    pub message: String,
}

impl Misfit {
    fn new(code: MisfitCode, message: impl Into<String>) -> Self {
        Misfit { code, message: message.into() }
    }
}

/// Whether `profile`, which takes `need`, can go to the device; if not, every reason: kind first, then capacity, then rules
/// (DM-123, DM-125), then what others have.
pub fn fits(
    profile: &Profile,
    need: &Need,
    capabilities: &Capabilities,
    room: Room<'_>,
) -> Result<(), Vec<Misfit>> {
    let Some(hosting) = &capabilities.hosting else {
        return Err(vec![Misfit::new(MisfitCode::NotHosting, "the device hosts no workloads")]);
    };
    let mut misfits = Vec::new();
    if !hosting.deployment_types.contains(&profile.kind) {
        let offered: Vec<_> = hosting.deployment_types.iter().map(|kind| kind.as_str()).collect();
        let message =
            format!("needs a device that runs {}, runs {}", profile.kind.as_str(), offered.join(", "));
        misfits.push(Misfit::new(MisfitCode::DeploymentType, message));
    }
    room.capacity_misfits(&need.capacity, hosting, &mut misfits);
    if let Some(constraints) = &profile.constraints {
        misfits.extend(eligible(constraints, &capabilities.properties, &capabilities.labels).err());
    }
    room.claim_misfits(&need.claims, &mut misfits);
    if misfits.is_empty() { Ok(()) } else { Err(misfits) }
}

/// " on amd64", or nothing.
fn on(architectures: &str) -> String {
    if architectures.is_empty() { String::new() } else { format!(" on {architectures}") }
}

/// Whether one of the eligibility rules holds (DM-140); no rules hold everywhere (DM-141).
pub fn eligible(
    constraints: &Constraints,
    properties: &Map<String, Value>,
    labels: &BTreeMap<String, Value>,
) -> Result<(), Misfit> {
    if constraints.rules.is_empty() {
        return Ok(());
    }
    let mut reasons = Vec::new();
    for rule in &constraints.rules {
        match rule.failing(properties, labels) {
            None => return Ok(()),
            Some(reason) => reasons.push(reason),
        }
    }
    let message = match reasons.as_slice() {
        [only] => format!("needs a device where {only}"),
        several => {
            format!("none of the {} eligibility rules holds: {}", several.len(), several.join("; or "))
        }
    };
    Err(Misfit::new(MisfitCode::Rules, message))
}

impl Rule {
    /// The first expression that does not hold, in words; `None` when the rule holds.
    fn failing(&self, properties: &Map<String, Value>, labels: &BTreeMap<String, Value>) -> Option<String> {
        let property = self.property.iter().flatten().find_map(|expression| {
            let found = property(properties, &expression.key);
            (!expression.holds(found)).then(|| expression.wanted(found))
        });
        property.or_else(|| {
            self.label.iter().flatten().find_map(|expression| {
                let found = labels.get(&expression.key);
                (!expression.holds(found)).then(|| format!("label {}", expression.wanted(found)))
            })
        })
    }
}

/// The value that a JSON Pointer names within an object (RFC 6901).
fn property<'a>(object: &'a Map<String, Value>, pointer: &str) -> Option<&'a Value> {
    let rest = pointer.strip_prefix('/')?;
    let (token, rest) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    object.get(&token.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
}

/// Whether a text is a JSON Pointer that can name a property: not the whole object, escapes well-formed.
pub fn is_pointer(text: &str) -> bool {
    let mut after_tilde = text.split('~').skip(1);
    text.starts_with('/') && after_tilde.all(|rest| rest.starts_with(['0', '1']))
}

impl Expression {
    fn holds(&self, found: Option<&Value>) -> bool {
        let (value, operator) = match (found, &self.operator) {
            // Presence is presence, whatever the value is.
            (found, Operator::Exists) => return found.is_some(),
            (found, Operator::DoesNotExist) => return found.is_none(),
            (None, _) => return false,
            (Some(value), operator) => (value, operator),
        };
        match operator {
            Operator::In(values) => scalars(value).is_some_and(|have| have.iter().any(|v| among(v, values))),
            Operator::NotIn(values) => {
                scalars(value).is_some_and(|have| !have.iter().any(|v| among(v, values)))
            }
            Operator::Gt(bound) => value.as_f64().is_some_and(|number| number > *bound),
            Operator::Lt(bound) => value.as_f64().is_some_and(|number| number < *bound),
            Operator::ContainsAll(inner) => objects(value).is_some_and(|mut items| {
                items.any(|item| inner.iter().all(|e| e.holds(property(item, &e.key))))
            }),
            Operator::ContainsAny(inner) => objects(value).is_some_and(|mut items| {
                items.any(|item| inner.iter().any(|e| e.holds(property(item, &e.key))))
            }),
            Operator::Exists | Operator::DoesNotExist => unreachable!("answered above"),
        }
    }

    /// "`/vendor` is one of Acme, but it is Other".
    fn wanted(&self, found: Option<&Value>) -> String {
        let found = match found {
            None => "is absent".to_owned(),
            Some(value) => {
                let text = value.to_string();
                let head: String = text.chars().take(120).collect();
                let dots = if head.len() < text.len() { "…" } else { "" };
                format!("is {head}{dots}")
            }
        };
        format!("{self}, but it {found}")
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let list = |values: &[Value]| values.iter().map(Value::to_string).collect::<Vec<_>>().join(" or ");
        let inner = |expressions: &[Expression], word: &str| {
            expressions.iter().map(Expression::to_string).collect::<Vec<_>>().join(word)
        };
        match &self.operator {
            Operator::In(values) => write!(f, "{key} is {}", list(values)),
            Operator::NotIn(values) => write!(f, "{key} is given and not {}", list(values)),
            Operator::Exists => write!(f, "{key} is given"),
            Operator::DoesNotExist => write!(f, "{key} is not given"),
            Operator::Gt(bound) => write!(f, "{key} is greater than {bound}"),
            Operator::Lt(bound) => write!(f, "{key} is less than {bound}"),
            Operator::ContainsAll(items) => {
                write!(f, "{key} has an element whose {}", inner(items, " and whose "))
            }
            Operator::ContainsAny(items) => {
                write!(f, "{key} has an element whose {}", inner(items, " or whose "))
            }
        }
    }
}

/// A scalar as a list of one, or a list of strings or of numbers; `None` for every other type (DM-143).
fn scalars(value: &Value) -> Option<&[Value]> {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => Some(std::slice::from_ref(value)),
        Value::Array(items) => {
            let uniform = items.iter().all(Value::is_string) || items.iter().all(Value::is_number);
            uniform.then_some(items)
        }
        Value::Null | Value::Object(_) => None,
    }
}

fn objects(value: &Value) -> Option<impl Iterator<Item = &Map<String, Value>>> {
    let items = value.as_array()?;
    items.iter().all(Value::is_object).then(|| items.iter().filter_map(Value::as_object))
}

/// Exact and case-sensitive, without coercion (DM-144): `"4"` is not 4, but 4.0 is, JSON has one number type.
fn among(value: &Value, values: &[Value]) -> bool {
    values.iter().any(|other| match (value, other) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || a.as_f64() == b.as_f64() && (a.is_f64() || b.is_f64())
        }
        (a, b) => a == b,
    })
}

#[cfg(test)]
mod tests;
