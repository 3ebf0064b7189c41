//! Does this device fit this package; if not, why.
//!
//! A server asks [`fits`] before it places anything, a device asks [`eligible`] before it applies anything
//! (MI-G2-084); both get every reason, in words. Field names are the wire's; what is used up by other
//! deployments is nobody's rule (DM-135) and not considered.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::capabilities::{Capabilities, Cpu, Hosting};
use crate::package::Profile;

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
        }
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

/// Whether `profile` can go to the device; if not, every reason: kind first, then capacity, then rules
/// (DM-123, DM-125).
pub fn fits(profile: &Profile, capabilities: &Capabilities) -> Result<(), Vec<Misfit>> {
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
    if let Some(constraints) = &profile.constraints {
        if let Some(capacity) = &constraints.capacity {
            capacity_misfits(capacity, hosting, &mut misfits);
        }
        misfits.extend(eligible(constraints, &capabilities.properties, &capabilities.labels).err());
    }
    if misfits.is_empty() { Ok(()) } else { Err(misfits) }
}

fn capacity_misfits(capacity: &Capacity, hosting: &Hosting, misfits: &mut Vec<Misfit>) {
    if let Some(cores) = capacity.cores {
        // One single entry has to do; cores of several are never added (DM-131).
        let enough = |cpu: &Cpu| {
            let architecture = capacity.architectures.is_empty()
                || cpu.architecture.as_ref().is_some_and(|have| capacity.architectures.contains(have));
            cpu.cores >= cores && architecture
        };
        if !hosting.cpus.iter().any(enough) {
            let on = |architectures: &str| match architectures {
                "" => String::new(),
                some => format!(" on {some}"),
            };
            let cpu = |cpu: &Cpu| format!("{}{}", cpu.cores, on(cpu.architecture.as_deref().unwrap_or("")));
            let has: Vec<_> = hosting.cpus.iter().map(cpu).collect();
            let has = if has.is_empty() { "none".to_owned() } else { has.join(" and ") };
            let noun = if cores == 1.0 { "core" } else { "cores" };
            let wanted = on(&capacity.architectures.join(" or "));
            misfits.push(Misfit::new(MisfitCode::Cpu, format!("needs {cores} {noun}{wanted}, has {has}")));
        }
    }
    let amounts = [
        (MisfitCode::Memory, capacity.memory_bytes, hosting.memory_bytes),
        (MisfitCode::Storage, capacity.storage_bytes, hosting.storage_bytes),
    ];
    for (code, needed, has) in amounts {
        let Some(needed) = needed.map(Quantity) else { continue };
        let noun = code.as_str();
        match has.map(Quantity) {
            Some(has) if has >= needed => {}
            Some(has) => misfits.push(Misfit::new(code, format!("needs {needed} of {noun}, has {has}"))),
            None => {
                let message =
                    format!("needs {needed} of {noun}, and the device reports no amount that can be read");
                misfits.push(Misfit::new(code, message));
            }
        }
    }
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
mod tests {
    use super::*;
    use crate::package::{Extensions, ProfileKind};
    use serde_json::json;

    #[test]
    fn dm_133_mi_g2_176_required_amounts_are_read_strictly() {
        let memory = |text| Quantity::required(text, MEMORY_UNITS).map(|q| q.0);
        assert_eq!(memory("1024Mi"), Some(1 << 30));
        assert_eq!(memory("1Ki"), Some(1024));
        for bad in ["", "Gi", "1 Gi", "1.5Gi", "1Ti", "1G", "1gi", "-1Gi", "1Gi ", "١Gi"] {
            assert_eq!(memory(bad), None, "{bad}");
        }
        let storage = |text| Quantity::required(text, STORAGE_UNITS).map(|q| q.0);
        assert_eq!(storage("1Ei"), Some(1 << 60));
        assert_eq!(storage("99999999999999999999999Ei"), Some(u64::MAX));
    }

    #[test]
    fn amb_10_reported_amounts_may_have_blanks_and_decimals() {
        let reported = |text| Quantity::reported(text).map(|q| q.0);
        assert_eq!(reported("59 Gi"), Some(59 << 30));
        assert_eq!(reported(" 1.5Gi "), Some(3 << 29));
        assert_eq!(reported("1862  Gi"), Some(1862 << 30));
        for bad in ["", "Gi", "many Gi", "1..5Gi", "1.Gi", ".5Gi", "1e3Gi", "5 GB", "-1Gi"] {
            assert_eq!(reported(bad), None, "{bad}");
        }
        assert_eq!(Quantity(3 << 29).to_string(), "1536Mi");
        assert_eq!(Quantity(59 << 30).to_string(), "59Gi");
        assert_eq!(Quantity(1500).to_string(), "1Ki");
    }

    fn device() -> Capabilities {
        let properties = json!({
            "id": "edge-1", "vendor": "Acme", "serialNumber": "4", "weight": 4, "hot": false, "nothing": null,
            "cpus": [{"cores": 2, "architecture": "arm64"}, {"cores": 8}],
            "peripherals": [{"type": "gpu", "manufacturer": "NVIDIA"}, {"type": "display"}],
            "supportedRuntimes": ["oci"], "sizes": [1, 2.5], "flags": [true], "mixed": [1, "a"], "empty": [],
            "a/b": {"c~d": 7},
        });
        let labels = json!({ "acme.example/line": "B", "slots": [1, 2], "ready": true });
        let Value::Object(properties) = properties else { unreachable!() };
        let Value::Object(labels) = labels else { unreachable!() };
        Capabilities {
            device: "edge-1".parse().unwrap(),
            vendor: "Acme".into(),
            model_number: "M".into(),
            serial_number: "4".into(),
            hosting: Some(Hosting {
                cpus: vec![
                    Cpu { cores: 2.0, architecture: Some("arm64".into()) },
                    Cpu { cores: 8.0, architecture: None },
                ],
                memory_bytes: Some(2 << 30),
                storage_bytes: None,
                deployment_types: vec![ProfileKind::Compose],
            }),
            properties,
            labels: labels.into_iter().collect(),
            simulated: false,
            agent_version: None,
            overrides: vec![],
            holds: vec![],
        }
    }

    fn expression(key: &str, operator: Operator) -> Expression {
        Expression { key: key.into(), operator }
    }

    fn holds(key: &str, operator: Operator) -> bool {
        let rule = Rule { property: Some(vec![expression(key, operator)]), label: None };
        let constraints = Constraints { capacity: None, rules: vec![rule], as_written: Value::Null };
        eligible(&constraints, &device().properties, &device().labels).is_ok()
    }

    fn values(value: Value) -> Vec<Value> {
        value.as_array().unwrap().clone()
    }

    #[test]
    fn dm_144_mi_g2_178_179_in_and_not_in_compare_exactly_and_never_coerce() {
        use Operator::{In, NotIn};
        for (key, list, is_in, is_not_in) in [
            ("/vendor", json!(["Other", "Acme"]), true, false),
            ("/vendor", json!(["acme"]), false, true),
            ("/serialNumber", json!([4]), false, true),
            ("/weight", json!(["4"]), false, true),
            ("/weight", json!([4.0]), true, false),
            ("/hot", json!([false]), true, false),
            ("/hot", json!(["false"]), false, true),
            ("/supportedRuntimes", json!(["oci", "custom"]), true, false),
            ("/supportedRuntimes", json!(["custom"]), false, true),
            ("/sizes", json!([2.5]), true, false),
            ("/empty", json!(["x"]), false, true),
            // Absent, or of a type that no comparison takes: both are false (DM-143, DM-146).
            ("/absent", json!(["x"]), false, false),
            ("/cpus", json!(["x"]), false, false),
            ("/nothing", json!(["x"]), false, false),
            ("/flags", json!([true]), false, false),
            ("/mixed", json!(["a"]), false, false),
        ] {
            assert_eq!(holds(key, In(values(list.clone()))), is_in, "{key} In {list}");
            assert_eq!(holds(key, NotIn(values(list.clone()))), is_not_in, "{key} NotIn {list}");
        }
    }

    #[test]
    fn dm_143_mi_g2_178_179_presence_and_order() {
        use Operator::*;
        for (key, exists) in [("/vendor", true), ("/cpus", true), ("/nothing", true), ("/a~1b/c~0d", true)] {
            assert_eq!((holds(key, Exists), holds(key, DoesNotExist)), (exists, !exists), "{key}");
        }
        for key in ["/absent", "/vendor/x", "/cpus/9", "/cpus/-", "/cpus/01", "vendor", ""] {
            assert_eq!((holds(key, Exists), holds(key, DoesNotExist)), (false, true), "{key}");
        }
        assert!(holds("/cpus/0/cores", Gt(1.5)) && !holds("/cpus/0/cores", Gt(2.0)));
        assert!(holds("/cpus/0/cores", Lt(2.5)) && !holds("/cpus/0/cores", Lt(2.0)));
        // Text is no number, whatever it looks like (DM-147).
        assert!(!holds("/serialNumber", Gt(1.0)) && !holds("/absent", Lt(1.0)) && !holds("/sizes", Gt(0.0)));
    }

    #[test]
    fn dm_145_149_mi_g2_179_item_selectors_look_at_one_element_at_a_time() {
        use Operator::*;
        let is = |key: &str, value: &str| expression(key, In(vec![json!(value)]));
        let nvidia = vec![is("/type", "gpu"), is("/manufacturer", "NVIDIA")];
        assert!(holds("/peripherals", ContainsAll(nvidia)));
        let split = vec![is("/type", "display"), is("/manufacturer", "NVIDIA")];
        assert!(!holds("/peripherals", ContainsAll(split.clone())));
        assert!(holds("/peripherals", ContainsAny(split)));
        assert!(!holds("/peripherals", ContainsAny(vec![is("/type", "camera")])));
        assert!(!holds("/vendor", ContainsAll(vec![expression("/x", DoesNotExist)])));
        assert!(!holds("/empty", ContainsAll(vec![expression("/x", DoesNotExist)])));
    }

    #[test]
    fn dm_140_mi_g2_177_rules_are_alternatives_and_selectors_are_not() {
        let device = device();
        let yes = || Some(vec![expression("/vendor", Operator::Exists)]);
        let no = || Some(vec![expression("/absent", Operator::Exists)]);
        let line = || Some(vec![expression("acme.example/line", Operator::In(vec![json!("B")]))]);
        let other = || Some(vec![expression("/acme.example/line", Operator::Exists)]);
        let rule = |property, label| Rule { property, label };
        for (rules, wanted) in [
            (vec![], true),
            (vec![rule(None, None)], true),
            (vec![rule(no(), None), rule(yes(), line())], true),
            (vec![rule(yes(), other())], false),
            (vec![rule(no(), line())], false),
            (vec![rule(no(), None), rule(None, other())], false),
        ] {
            let constraints = Constraints { capacity: None, rules, as_written: Value::Null };
            let verdict = eligible(&constraints, &device.properties, &device.labels);
            assert_eq!(verdict.is_ok(), wanted, "{constraints:?}");
        }
    }

    fn profile(kind: ProfileKind, capacity: Capacity, rules: Vec<Rule>) -> Profile {
        Profile {
            id: "p".parse().unwrap(),
            kind,
            description: None,
            components: vec![],
            constraints: Some(Constraints { capacity: Some(capacity), rules, as_written: Value::Null }),
            extensions: Extensions::new(),
        }
    }

    #[test]
    fn dm_125_131_mi_g2_180_every_reason_is_told_in_order() {
        let capacity = Capacity {
            cores: Some(4.0),
            architectures: vec!["amd64".into()],
            memory_bytes: Some(4 << 30),
            storage_bytes: Some(10 << 30),
        };
        let rule = Rule {
            property: Some(vec![expression("/vendor", Operator::In(vec![json!("Other")]))]),
            label: None,
        };
        let misfits = fits(&profile(ProfileKind::Helm, capacity, vec![rule]), &device()).unwrap_err();
        let told: Vec<_> = misfits.iter().map(|m| format!("{}: {m}", m.code.as_str())).collect();
        expect_test::expect![[r#"
            deployment-type: needs a device that runs helm, runs compose
            cpu: needs 4 cores on amd64, has 2 on arm64 and 8
            memory: needs 4Gi of memory, has 2Gi
            storage: needs 10Gi of storage, and the device reports no amount that can be read
            rules: needs a device where /vendor is "Other", but it is "Acme""#]]
        .assert_eq(&told.join("\n"));
    }

    #[test]
    fn dm_131_132_mi_g2_136_one_cpu_entry_has_to_do_alone() {
        let check = |cores: f64, architectures: &[&str]| {
            let architectures = architectures.iter().map(|a| (*a).to_owned()).collect();
            let capacity = Capacity { cores: Some(cores), architectures, ..Capacity::default() };
            fits(&profile(ProfileKind::Compose, capacity, vec![]), &device()).is_ok()
        };
        assert!(check(8.0, &[]) && !check(8.5, &[]), "10 cores in two entries are not 10 cores");
        assert!(check(2.0, &["amd64", "arm64"]) && !check(3.0, &["arm64"]));
        let mut gateway = device();
        gateway.hosting = None;
        let misfits =
            fits(&profile(ProfileKind::Compose, Capacity::default(), vec![]), &gateway).unwrap_err();
        assert_eq!(misfits[0].code, MisfitCode::NotHosting);
    }

    #[test]
    fn dm_142_pointers_are_told_from_other_texts() {
        for good in ["/vendor", "/a~1b/~0", "/"] {
            assert!(is_pointer(good), "{good}");
        }
        for bad in ["", "vendor", "/a~", "/a~2"] {
            assert!(!is_pointer(bad), "{bad}");
        }
    }
}
