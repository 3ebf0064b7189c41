//! Questions a package asks, and operators' answers → values per component.
//!
//! Owns what a value may be ([`Schema::check`]), how a typed answer is read ([`ParameterValue::from_text`])
//! and which values reach which component ([`resolve`]). How a value is written in a document is the wire's.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{ComponentName, ParameterName};
use crate::package::{Package, Profile};
use crate::secret::{self, Fingerprint, Referred, Secret, Secrets};
use crate::violation::{Violation, join};

/// A value as the standard types it: a scalar, or a list of scalars (DM-042).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ParameterValue {
    Boolean(bool),
    Integer(i64),
    Double(f64),
    Text(String),
    List(Vec<ParameterValue>),
}

/// What operators answered, by parameter.
pub type Answers = BTreeMap<ParameterName, Answer>;

/// One answer: the value, or where a secret is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    Secret(Referred),
    Clear(ParameterValue),
}

impl From<ParameterValue> for Answer {
    fn from(value: ParameterValue) -> Answer {
        Answer::Clear(value)
    }
}

/// What installations have, by parameter.
pub type Held = BTreeMap<ParameterName, HeldValue>;

/// What an installation has: of a secret only what tells it from others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum HeldValue {
    Secret { seen: Option<Fingerprint> },
    Clear(ParameterValue),
}

impl From<&Answer> for HeldValue {
    fn from(answer: &Answer) -> HeldValue {
        match answer {
            Answer::Secret(referred) => HeldValue::Secret { seen: referred.seen.clone() },
            Answer::Clear(value) => HeldValue::Clear(value.clone()),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    pub default: Option<ParameterValue>,
    pub targets: Vec<Target>,
}

/// Where a value goes: a Helm values path or an environment variable, in each named component (DM-041).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub pointer: String,
    pub components: Vec<ComponentName>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    pub name: String,
    pub settings: Vec<Setting>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    pub parameter: ParameterName,
    pub name: String,
    pub description: Option<String>,
    pub immutable: bool,
    pub schema: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalarType {
    Text,
    Integer,
    Double,
    Boolean,
}

/// `dataType`: a scalar or an array of one (section 2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType {
    pub scalar: ScalarType,
    pub array: bool,
}

/// What a value must look like. Rules that are absent are `None`; the family follows from the data type
/// and from the presence of options (DM-054).
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    pub name: String,
    pub data_type: DataType,
    pub allow_empty: bool,
    pub length_min: Option<u64>,
    pub length_max: Option<u64>,
    pub regex: Option<String>,
    pub value_min: Option<f64>,
    pub value_max: Option<f64>,
    pub precision_min: Option<u64>,
    pub precision_max: Option<u64>,
    pub options: Option<Vec<String>>,
    pub multiselect: bool,
}

/// One parameter of a document: the value, and where it goes within the chosen profile (DM-165).
#[derive(Clone, PartialEq)]
pub struct ResolvedParameter {
    pub name: ParameterName,
    pub value: ParameterValue,
    pub targets: Vec<Target>,
    /// The value is a secret. Known where the document is made, and not to the device that reads it.
    pub secret: bool,
}

impl fmt::Debug for ResolvedParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResolvedParameter { name, value, targets, secret } = self;
        let hidden: &dyn fmt::Debug = if *secret { &"hidden" } else { value };
        let mut shown = f.debug_struct("ResolvedParameter");
        shown.field("name", name).field("value", hidden).field("targets", targets).finish()
    }
}

/// No value may be longer than an operating system takes as one environment variable, with room for its name.
const TEXT_LENGTH_MAX: usize = 100_000;
const LIST_LENGTH_MAX: usize = 1_000;
/// A pattern longer than this is no pattern for a form field; together with the compiled size it bounds the
/// work that someone else's package can cause here.
const REGEX_LENGTH_MAX: usize = 1_000;
const REGEX_SIZE_MAX: usize = 1 << 20;

impl DataType {
    pub const ALL: [(&'static str, DataType); 8] = [
        ("string", DataType { scalar: ScalarType::Text, array: false }),
        ("integer", DataType { scalar: ScalarType::Integer, array: false }),
        ("double", DataType { scalar: ScalarType::Double, array: false }),
        ("boolean", DataType { scalar: ScalarType::Boolean, array: false }),
        ("array[string]", DataType { scalar: ScalarType::Text, array: true }),
        ("array[integer]", DataType { scalar: ScalarType::Integer, array: true }),
        ("array[double]", DataType { scalar: ScalarType::Double, array: true }),
        ("array[boolean]", DataType { scalar: ScalarType::Boolean, array: true }),
    ];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(name, _)| *name == text).map(|(_, data_type)| data_type)
    }

    pub fn as_str(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(_, data_type)| *data_type == self);
        found.expect("every data type is in the list").0
    }
}

impl ScalarType {
    /// What a person is told to give.
    fn noun(self) -> &'static str {
        match self {
            ScalarType::Text => "text",
            ScalarType::Integer => "a whole number",
            ScalarType::Double => "a number",
            ScalarType::Boolean => "true or false",
        }
    }

    fn read(self, text: &str) -> Option<ParameterValue> {
        let trimmed = text.trim();
        match self {
            ScalarType::Text => Some(ParameterValue::Text(text.to_owned())),
            ScalarType::Integer => trimmed.parse().ok().map(ParameterValue::Integer),
            ScalarType::Double => {
                trimmed.parse().ok().filter(|number: &f64| number.is_finite()).map(ParameterValue::Double)
            }
            ScalarType::Boolean => trimmed.parse().ok().map(ParameterValue::Boolean),
        }
    }
}

impl ParameterValue {
    /// The value that a form field or a command line argument means, typed by its schema. The rules of the
    /// schema are left to [`Schema::check`].
    ///
    /// A list is JSON (`["a","b"]`), or its elements separated by line breaks or commas.
    pub fn from_text(schema: &Schema, text: &str) -> Result<Self, String> {
        if text.trim().is_empty() && schema.allow_empty {
            return Ok(ParameterValue::Text(String::new()));
        }
        if !schema.wants_list() {
            return schema.data_type.scalar.read(text).ok_or_else(|| schema.wrong_type(text));
        }
        let trimmed = text.trim();
        if trimmed.starts_with('[') {
            return serde_json::from_str(trimmed)
                .ok()
                .filter(|value| matches!(value, ParameterValue::List(_)))
                .ok_or_else(|| format!("must be a list such as [\"a\",\"b\"], got {}", shown(text)));
        }
        let separator = if trimmed.contains('\n') { '\n' } else { ',' };
        Self::from_texts(schema, trimmed.split(separator).map(str::trim).filter(|item| !item.is_empty()))
    }

    /// A list from its elements' texts, as a form sends a multiple selection.
    pub fn from_texts<'a>(schema: &Schema, texts: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let read = |text| schema.data_type.scalar.read(text).ok_or_else(|| schema.wrong_type(text));
        texts.into_iter().map(read).collect::<Result<_, _>>().map(ParameterValue::List)
    }

    /// Nothing was said: an empty text or an empty list (DM-052).
    pub fn is_empty(&self) -> bool {
        match self {
            ParameterValue::Text(text) => text.is_empty(),
            ParameterValue::List(items) => items.is_empty(),
            _ => false,
        }
    }

    /// Whether two values mean the same to an application: `4` and `4.0` do.
    pub fn same_as(&self, other: &ParameterValue) -> bool {
        match (self, other) {
            (ParameterValue::List(a), ParameterValue::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same_as(b))
            }
            (ParameterValue::List(_), _) | (_, ParameterValue::List(_)) => false,
            _ => self.to_string() == other.to_string(),
        }
    }

    /// Values that no document or environment can carry, whatever their schema.
    fn unfit(&self) -> Option<String> {
        match self {
            ParameterValue::Text(text) if text.len() > TEXT_LENGTH_MAX => {
                Some(format!("has {} bytes; at most {TEXT_LENGTH_MAX} can be passed on", text.len()))
            }
            ParameterValue::Text(text) if text.contains('\0') => {
                Some("contains a NUL character, which no environment variable can carry".into())
            }
            ParameterValue::Double(number) if !number.is_finite() => Some("is not a finite number".into()),
            ParameterValue::List(items) if items.len() > LIST_LENGTH_MAX => {
                Some(format!("has {} elements; at most {LIST_LENGTH_MAX} can be passed on", items.len()))
            }
            ParameterValue::List(items) => items.iter().find_map(|item| match item {
                ParameterValue::List(_) => {
                    Some("has a list inside the list; only scalars can be elements".into())
                }
                item => item.unfit(),
            }),
            _ => None,
        }
    }

    /// How many decimal places a number needs (DM-057).
    fn decimals(&self) -> u64 {
        match self {
            ParameterValue::Double(_) => {
                self.to_string().split_once('.').map_or(0, |(_, decimals)| decimals.len() as u64)
            }
            _ => 0,
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            // Bounds are written by people; beyond 2^53 one more or less is not what they meant.
            ParameterValue::Integer(number) => Some(*number as f64),
            ParameterValue::Double(number) => Some(*number),
            _ => None,
        }
    }
}

/// The text that an environment variable carries: scalars as people write them, lists as JSON (DM-191).
impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterValue::Boolean(value) => write!(f, "{value}"),
            ParameterValue::Integer(value) => write!(f, "{value}"),
            // Rust never writes an exponent by itself; hundreds of digits help nobody.
            ParameterValue::Double(value) if value.abs() >= 1e16 || (*value != 0.0 && value.abs() < 1e-9) => {
                write!(f, "{value:e}")
            }
            ParameterValue::Double(value) => write!(f, "{value}"),
            ParameterValue::Text(value) => f.write_str(value),
            ParameterValue::List(_) => {
                f.write_str(&serde_json::to_string(self).expect("scalars and lists of them are JSON"))
            }
        }
    }
}

/// Someone else's input, short enough for a message.
fn shown(text: &str) -> String {
    let head: String = text.chars().take(60).collect();
    let dots = if head.len() < text.len() { "…" } else { "" };
    format!("{head:?}{dots}")
}

impl Schema {
    /// Whether the answer is a list: an array, or several choices (DM-055).
    pub fn wants_list(&self) -> bool {
        self.data_type.array || (self.multiselect && self.options.is_some())
    }

    fn wrong_type(&self, got: &str) -> String {
        format!("must be {}, got {}", self.data_type.scalar.noun(), shown(got))
    }

    /// Whether `value` may be used; if not, a sentence that says what to change (DM-051…DM-058).
    pub fn check(&self, value: &ParameterValue) -> Result<(), String> {
        if let Some(reason) = value.unfit() {
            return Err(reason);
        }
        if value.is_empty() {
            return if self.allow_empty { Ok(()) } else { Err("must not be empty".into()) };
        }
        match (self.wants_list(), value) {
            (true, ParameterValue::List(items)) => items.iter().try_for_each(|item| self.check_scalar(item)),
            (true, _) => Err(format!("must be a list, got {}", shown(&value.to_string()))),
            (false, ParameterValue::List(_)) => Err("must be one value, not a list".into()),
            (false, scalar) => self.check_scalar(scalar),
        }
    }

    fn check_scalar(&self, value: &ParameterValue) -> Result<(), String> {
        let fits = matches!(
            (self.data_type.scalar, value),
            (ScalarType::Text, ParameterValue::Text(_))
                | (ScalarType::Integer, ParameterValue::Integer(_))
                | (ScalarType::Double, ParameterValue::Integer(_) | ParameterValue::Double(_))
                | (ScalarType::Boolean, ParameterValue::Boolean(_))
        );
        if !fits {
            let hint = match (self.data_type.scalar, value) {
                (ScalarType::Text, _) => "; put it in quotes",
                (_, ParameterValue::Text(text)) if self.data_type.scalar.read(text).is_some() => {
                    "; write it without quotes"
                }
                _ => "",
            };
            return Err(format!("{}{hint}", self.wrong_type(&value.to_string())));
        }
        if let Some(options) = &self.options {
            let chosen = |option: &String| self.option(option).is_some_and(|option| option.same_as(value));
            if !options.iter().any(chosen) {
                return Err(format!(
                    "must be one of {}, got {}",
                    options.join(", "),
                    shown(&value.to_string())
                ));
            }
        }
        match value {
            ParameterValue::Text(text) => self.check_text(text),
            _ => self.check_number(value),
        }
    }

    fn check_text(&self, text: &str) -> Result<(), String> {
        let length = text.chars().count() as u64;
        if let Some(min) = self.length_min.filter(|min| length < *min) {
            return Err(format!("must have at least {min} characters, has {length}"));
        }
        if let Some(max) = self.length_max.filter(|max| length > *max) {
            return Err(format!("must have at most {max} characters, has {length}"));
        }
        if let Some(pattern) = &self.regex {
            let regex = compile(pattern)?;
            // Unanchored: a pattern that means the whole text says so itself (DM-056).
            if !regex.is_match(text) {
                return Err(format!("must match the pattern {pattern}, got {}", shown(text)));
            }
        }
        Ok(())
    }

    fn check_number(&self, value: &ParameterValue) -> Result<(), String> {
        let Some(number) = value.number() else { return Ok(()) };
        if let Some(min) = self.value_min.filter(|min| number < *min) {
            return Err(format!("must be at least {min}, got {value}"));
        }
        if let Some(max) = self.value_max.filter(|max| number > *max) {
            return Err(format!("must be at most {max}, got {value}"));
        }
        if let Some(max) = self.precision_max.filter(|max| value.decimals() > *max) {
            return Err(format!("must have at most {max} decimal places, got {value}"));
        }
        // `minPrecision` refuses nothing: a number has lost its trailing zeros, so `3.10` could never be told
        // from `3.1`. The value is written with that many places instead, see `padded`.
        Ok(())
    }

    /// What a value has to be, in words that repeat none: of a secret nothing else may be told.
    fn demands(&self) -> String {
        let texts = [
            self.length_min.map(|min| format!("at least {min} characters")),
            self.length_max.map(|max| format!("at most {max} characters")),
            self.regex.as_ref().map(|pattern| format!("matching the pattern {pattern}")),
        ];
        let numbers = [
            self.value_min.map(|min| format!("at least {min}")),
            self.value_max.map(|max| format!("at most {max}")),
            self.precision_max.map(|max| format!("at most {max} decimal places")),
        ];
        let options = self.options.as_ref().map(|options| format!("one of {}", options.join(", ")));
        let noun = Some(self.data_type.scalar.noun().to_owned());
        [noun]
            .into_iter()
            .chain(texts)
            .chain(numbers)
            .chain([options])
            .flatten()
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The value as it is passed on: with as many decimal places as the schema demands at least.
    fn padded(&self, value: ParameterValue) -> ParameterValue {
        let Some(places) = self.precision_min.filter(|places| (1..=17).contains(places)) else {
            return value;
        };
        match (&value, value.number()) {
            (ParameterValue::Integer(_) | ParameterValue::Double(_), Some(number))
                if value.decimals() < places =>
            {
                ParameterValue::Text(format!("{number:.*}", places as usize))
            }
            _ => value,
        }
    }

    /// One of the options as a value; options are written as text whatever the data type is (DM-055).
    fn option(&self, option: &str) -> Option<ParameterValue> {
        self.data_type.scalar.read(option)
    }

    /// What is wrong with the schema itself, each as the rule and a sentence.
    pub fn defects(&self) -> Vec<(&'static str, String)> {
        let mut defects = Vec::new();
        if let Some(Err(reason)) = self.regex.as_deref().map(compile) {
            defects.push(("DM-056", reason));
        }
        if self.length_min.zip(self.length_max).is_some_and(|(min, max)| min > max) {
            defects.push((
                "DM-058",
                "minLength is greater than maxLength, so no value can pass; swap them".into(),
            ));
        }
        if self.value_min.zip(self.value_max).is_some_and(|(min, max)| min > max) {
            defects.push((
                "DM-058",
                "minValue is greater than maxValue, so no value can pass; swap them".into(),
            ));
        }
        if self.precision_min.zip(self.precision_max).is_some_and(|(min, max)| min > max) {
            defects.push(("DM-057", "minPrecision is greater than maxPrecision; swap them".into()));
        }
        match &self.options {
            Some(options) if options.is_empty() => {
                defects
                    .push(("DM-055", "options is empty, so nothing can be chosen; list the options".into()));
            }
            Some(options) => {
                for option in options.iter().filter(|option| self.option(option).is_none()) {
                    let noun = self.data_type.scalar.noun();
                    defects.push((
                        "DM-055",
                        format!("the option {} is not {noun} as dataType says", shown(option)),
                    ));
                }
            }
            None => {}
        }
        defects
    }
}

fn compile(pattern: &str) -> Result<regex::Regex, String> {
    if pattern.len() > REGEX_LENGTH_MAX {
        return Err(format!(
            "regexMatch has {} characters, at most {REGEX_LENGTH_MAX} are accepted",
            pattern.len()
        ));
    }
    let built = regex::RegexBuilder::new(pattern).size_limit(REGEX_SIZE_MAX).build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "regexMatch is too large when compiled; use smaller repetitions".into(),
        error => {
            let reason = error.to_string();
            let last = reason.lines().last().unwrap_or_default();
            format!(
                "regexMatch {} cannot be compiled ({last}); look-around and back-references are not available",
                shown(pattern)
            )
        }
    })
}

/// One question that a package asks for a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Question<'a> {
    pub section: &'a Section,
    pub setting: &'a Setting,
    pub schema: &'a Schema,
    pub default: Option<&'a ParameterValue>,
}

/// The questions whose answers reach `profile`, in the order in which the package asks them (DM-162).
pub fn questions<'a>(package: &'a Package, profile: &'a Profile) -> Vec<Question<'a>> {
    let in_section = |section: &'a Section| section.settings.iter().map(move |setting| (section, setting));
    let asked = package.sections.iter().flat_map(in_section);
    asked
        .filter_map(|(section, setting)| {
            let parameter = package.parameters.get(&setting.parameter)?;
            let schema = package.schemas.get(&setting.schema)?;
            let reaches = !reaching(&parameter.targets, profile).is_empty();
            reaches.then_some(Question { section, setting, schema, default: parameter.default.as_ref() })
        })
        .collect()
}

/// Whether what is answered for a parameter goes anywhere in `profile`.
pub fn reaches(package: &Package, profile: &Profile, parameter: &ParameterName) -> bool {
    package.parameters.get(parameter).is_some_and(|found| !reaching(&found.targets, profile).is_empty())
}

/// The part of `targets` that concerns `profile` (DM-165).
fn reaching(targets: &[Target], profile: &Profile) -> Vec<Target> {
    let here = |name: &ComponentName| profile.components.iter().any(|component| &component.name == name);
    targets
        .iter()
        .map(|target| Target {
            pointer: target.pointer.clone(),
            components: target.components.iter().filter(|name| here(name)).cloned().collect(),
        })
        .filter(|target| !target.components.is_empty())
        .collect()
}

/// What an installation with these answers has: where nothing was answered, the default that the package had at
/// the time. A newer version may have another default, and that must not change what cannot be changed (DM-059).
pub fn in_force(package: &Package, answers: &Answers) -> Answers {
    let mut values = answers.clone();
    for (name, parameter) in &package.parameters {
        if let (false, Some(default)) = (values.contains_key(name), &parameter.default) {
            values.insert(name.clone(), Answer::Clear(default.clone()));
        }
    }
    values
}

/// The same, without where secrets are.
pub fn held(answers: &Answers) -> Held {
    answers.iter().map(|(name, answer)| (name.clone(), answer.into())).collect()
}

/// Of what an installation with these answers and `secrets` has, that which cannot be changed any more (DM-059). It is remembered
/// where it was given: a later revision may say otherwise and never get there.
pub fn fixed(package: &Package, answers: &Answers, secrets: &Secrets) -> Held {
    let settings = package.sections.iter().flat_map(|section| &section.settings);
    let value = |name: &ParameterName| match answers.get(name) {
        Some(Answer::Secret(referred)) => {
            let found = secrets.get(name, &referred.secret).ok().map(|secret| secret.fingerprint().clone());
            Some(HeldValue::Secret { seen: found.or_else(|| referred.seen.clone()) })
        }
        Some(Answer::Clear(value)) => Some(HeldValue::Clear(value.clone())),
        None => package.parameters.get(name)?.default.clone().map(HeldValue::Clear),
    };
    settings
        .filter(|setting| setting.immutable)
        .filter_map(|setting| Some((setting.parameter.clone(), value(&setting.parameter)?)))
        .collect()
}

/// The values that `profile` gets: defaults overridden by answers, all checked (DM-162…DM-166), in the order
/// of their names. `previous` are the values that an installation already uses ([`in_force`]), if there is one; `secrets` are those
/// that the answers refer to.
///
/// # Errors
/// Everything that is wrong with the answers, each at `/parameters/<name>`.
pub fn resolve(
    package: &Package,
    profile: &Profile,
    answers: &Answers,
    previous: Option<&Held>,
    secrets: &Secrets,
) -> Result<Vec<ResolvedParameter>, Vec<Violation>> {
    let mut broken = Vec::new();
    let mut resolved = Vec::new();
    let place = |name: &ParameterName| join("/parameters", name.as_str());

    for name in answers.keys().filter(|name| !package.parameters.contains_key(name)) {
        let known: Vec<_> = package.parameters.keys().map(ParameterName::as_str).take(20).collect();
        let known =
            if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
        broken.push(Violation::new(
            place(name),
            "DM-162",
            format!("the package has no such parameter; {known}"),
        ));
    }

    for (name, parameter) in &package.parameters {
        let setting =
            package.sections.iter().flat_map(|section| &section.settings).find(|s| &s.parameter == name);
        let schema = setting.and_then(|setting| package.schemas.get(&setting.schema));
        let answer = answers.get(name);
        let revealed = match answer {
            Some(Answer::Secret(referred)) => match secrets.reveal(name, &referred.secret, schema) {
                Ok(value) => Some(value),
                Err(message) => {
                    broken.push(Violation::new(place(name), secret::RULE, message));
                    continue;
                }
            },
            _ => None,
        };
        let secret = revealed.is_some();
        let answered = match answer {
            Some(Answer::Clear(value)) => Some(value),
            _ => revealed.as_ref(),
        };
        let value = answered.or(parameter.default.as_ref());

        if let (None, Some(answered)) = (setting, answered) {
            let unchanged =
                !secret && parameter.default.as_ref().is_some_and(|default| default.same_as(answered));
            if !unchanged {
                let message = "cannot be changed, because the package has no setting for it; leave it out";
                broken.push(Violation::new(place(name), "DM-061", message));
                continue;
            }
        }
        if let (Some(true), Some(previous)) = (setting.map(|setting| setting.immutable), previous) {
            let held = previous.get(name);
            let kept = match (held, answer, value) {
                // Which value it was is not known any more; that it is the same is.
                (Some(HeldValue::Secret { seen }), Some(Answer::Secret(now)), _) => {
                    let found = secrets.get(name, &now.secret).ok().map(Secret::fingerprint);
                    seen.is_some() && seen.as_ref() == found
                }
                (Some(HeldValue::Secret { .. }), _, _) | (Some(_), Some(Answer::Secret(_)), _) => false,
                (Some(HeldValue::Clear(held)), _, Some(value)) => held.same_as(value),
                (Some(HeldValue::Clear(held)), _, None) => held.is_empty(),
                // It was never set, so this is its first value.
                (None, _, _) => true,
            };
            if !kept {
                let held = match held {
                    Some(HeldValue::Clear(held)) => shown(&held.to_string()),
                    _ => "the secret".to_owned(),
                };
                let message =
                    format!("cannot be changed after the installation; keep {held}, or deploy anew");
                broken.push(Violation::new(place(name), "DM-059", message));
                continue;
            }
        }

        let targets = reaching(&parameter.targets, profile);
        let Some(value) = value else {
            let required = schema.is_some_and(|schema| !schema.allow_empty);
            if required && !targets.is_empty() {
                broken.push(Violation::new(
                    place(name),
                    "DM-164",
                    "needs a value, and the package has no default",
                ));
            }
            continue;
        };
        let verdict = match schema {
            Some(schema) => schema.check(value),
            None => value.unfit().map_or(Ok(()), Err),
        };
        match verdict {
            Err(_) if secret => {
                // The reason would repeat the value.
                let wanted =
                    schema.map(Schema::demands).unwrap_or_else(|| "a value that can be passed on".to_owned());
                let message = format!("the secret is not what the package allows, which is {wanted}");
                broken.push(Violation::new(place(name), "DM-163", message));
            }
            Err(reason) => broken.push(Violation::new(place(name), "DM-163", reason)),
            Ok(()) if targets.is_empty() => {}
            Ok(()) => {
                let value = schema.map_or_else(|| value.clone(), |schema| schema.padded(value.clone()));
                resolved.push(ResolvedParameter { name: name.clone(), value, targets, secret });
            }
        }
    }
    if broken.is_empty() { Ok(resolved) } else { Err(broken) }
}

#[cfg(test)]
mod tests;
