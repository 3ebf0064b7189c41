//! A package's questions as form fields, and form fields as answers.
//!
//! Only the shape is checked here (a number is a number); whether an answer may be given is the fleet's to say.

use std::collections::BTreeMap;
use std::num::IntErrorKind;

use margrave_wire::operator::{Override, PackageSetting};
use serde_json::Value;

use super::command::{plain, reference};
use super::session::{Fields, RETYPE};

/// Lines that the field of a long answer begins with.
const ROWS_MAX: usize = 12;
/// What the names of fields with a secret in clear begin with.
pub(super) const SECRET: &str = "secret.";

/// A question with what stands in its field, right or wrong.
pub(super) struct Question {
    pub(super) id: String,
    /// The parameter that it answers.
    pub(super) parameter: String,
    /// The form field's name.
    pub(super) field: String,
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) required: bool,
    /// May not be changed any more.
    pub(super) locked: bool,
    pub(super) kind: Kind,
    pub(super) values: Vec<String>,
    pub(super) options: Vec<Choice>,
    pub(super) wrong: Option<String>,
    /// Where the secret is that answers it; the form says so and never what it is.
    pub(super) secret: Option<Value>,
    /// A secret that was typed and is not sealed yet. No page shows it again.
    pub(super) typed_secret: Option<String>,
    /// One was typed, and was not kept while somebody had to sign in again.
    pub(super) retype: bool,
    /// The very value that the form was made with, where it came back untouched: a form carries neither all breaks of lines nor
    /// all blanks.
    untouched: Option<Value>,
    /// What the field was called in the form that was sent: groups before it may have gone since.
    sent: String,
}

pub(super) struct Choice {
    pub(super) value: String,
    pub(super) chosen: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Text,
    Integer,
    Double,
    Boolean,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    One(Scalar),
    /// One of the options.
    Select(Scalar),
    /// Any of the options.
    Many(Scalar),
    /// One value per line.
    List(Scalar),
}

impl Kind {
    pub(super) fn of(setting: &PackageSetting) -> Self {
        let data_type = setting.data_type.to_ascii_lowercase();
        let scalar = if data_type.contains("int") {
            Scalar::Integer
        } else if data_type.contains("double") || data_type.contains("number") || data_type.contains("float")
        {
            Scalar::Double
        } else if data_type.contains("bool") {
            Scalar::Boolean
        } else {
            Scalar::Text
        };
        let array = data_type.contains("array") || data_type.contains('[');
        match (setting.options.is_empty(), setting.multiselect || array) {
            (true, false) => Kind::One(scalar),
            (true, true) => Kind::List(scalar),
            (false, false) => Kind::Select(scalar),
            (false, true) => Kind::Many(scalar),
        }
    }

    fn scalar(self) -> Scalar {
        match self {
            Kind::One(scalar) | Kind::Select(scalar) | Kind::Many(scalar) | Kind::List(scalar) => scalar,
        }
    }

    pub(super) fn is_check(&self) -> bool {
        *self == Kind::One(Scalar::Boolean)
    }

    /// What an on-screen keyboard should offer.
    pub(super) fn input_mode(&self) -> &'static str {
        match self.scalar() {
            Scalar::Integer => "numeric",
            Scalar::Double => "decimal",
            Scalar::Text | Scalar::Boolean => "text",
        }
    }
}

impl Question {
    /// With the value that stands in for an answer: the current one, or the package's default.
    pub(super) fn new(
        index: usize,
        setting: &PackageSetting,
        current: Option<&Value>,
        editing: bool,
    ) -> Self {
        let values = match current.or(setting.default.as_ref()) {
            Some(Value::Array(values)) => values.iter().map(plain).collect(),
            Some(Value::Null | Value::Object(_)) | None => Vec::new(),
            Some(value) => vec![plain(value)],
        };
        let secret = current.filter(|value| value.is_object()).cloned();
        // What was never set has its first value still to come.
        let locked = editing && setting.immutable && current.or(setting.default.as_ref()).is_some();
        let untouched = current.filter(|value| locked && is_of(Kind::of(setting), value)).cloned();
        Question { secret, locked, untouched, ..Question::with(index, setting, values) }
    }

    /// For some of the devices only, where no answer is the one for all.
    pub(super) fn of_group(
        group: usize,
        index: usize,
        setting: &PackageSetting,
        current: Option<&Value>,
    ) -> Self {
        let setting = in_group(setting);
        let question = Question::new(index, &setting, current, false);
        question.moved(group, index)
    }

    /// The same with what was typed, also where groups before it have gone.
    pub(super) fn typed_in_group(
        was: usize,
        now: usize,
        index: usize,
        setting: &PackageSetting,
        fields: &Fields,
        held: &[Override],
    ) -> Self {
        let setting = in_group(setting);
        let sent = group_field(was, &setting.parameter);
        let held = held.iter().filter_map(|group| group.parameters.get(&setting.parameter));
        // Nothing typed is no answer here.
        let held = held.filter(|value| value.as_str() != Some(""));
        Question::read(index, &setting, fields, sent, held).moved(now, index)
    }

    fn moved(self, group: usize, index: usize) -> Self {
        let field = group_field(group, &self.parameter);
        Question { id: format!("group-{group}-question-{index}"), field, ..self }
    }

    /// With what was typed. `held` is what a deployment has that is being changed, by parameter.
    pub(super) fn typed(
        index: usize,
        setting: &PackageSetting,
        fields: &Fields,
        held: Option<&BTreeMap<String, Value>>,
    ) -> Self {
        let sent = field(setting);
        let current = held.and_then(|held| held.get(&setting.parameter));
        // What cannot be changed is what it is, whatever the form says of it.
        let known = Question::new(index, setting, current, held.is_some());
        if known.locked {
            return Question { sent, ..known };
        }
        let made_with = current.or(setting.default.as_ref());
        let question = Question::read(index, setting, fields, sent, made_with.into_iter());
        question.keep(current.filter(|value| value.is_object()).cloned())
    }

    /// Reads what was typed into a field that may have been made with one of these.
    fn read<'a>(
        index: usize,
        setting: &PackageSetting,
        fields: &Fields,
        sent: String,
        made_with: impl Iterator<Item = &'a Value> + Clone,
    ) -> Self {
        let kind = Kind::of(setting);
        let typed = unix(fields.raw(&sent).unwrap_or_default());
        let is_same = |value: &&Value| match (kind, value) {
            (Kind::One(Scalar::Text), Value::String(text)) => unix(text) == typed,
            (Kind::List(Scalar::Text), Value::Array(_)) => lines(&joined(value)).eq(lines(&typed)),
            _ => false,
        };
        let untouched = made_with.clone().find(is_same).filter(|value| is_of(kind, value)).cloned();
        let mut values = typed_values(setting, fields, &sent);
        if kind == Kind::List(Scalar::Text) {
            values = together(&values, made_with.filter_map(Value::as_array).flatten());
        }
        Question { untouched, ..Question::with(index, setting, values) }.sent_as(sent, fields)
    }

    /// Reads what the form says of a secret: one that was typed, or one that was known before.
    fn sent_as(mut self, sent: String, fields: &Fields) -> Self {
        let typed = fields.raw(&secret_field(&sent)).filter(|text| !text.is_empty());
        self.typed_secret = typed.filter(|_| self.is_replaceable()).map(one_or_more_lines);
        self.retype = self.is_replaceable() && fields.all(RETYPE).any(|gone| gone == secret_field(&sent));
        if self.retype {
            let wrong =
                "The secret that was typed here was not kept while you were signed out. Type it again.";
            self.wrong = Some(wrong.to_owned());
        }
        self.sent = sent;
        let known = fields.raw(&reference_field(&self.sent)).and_then(referred);
        self.keep(known)
    }

    /// With the secret that answers it, unless another answer was given.
    pub(super) fn keep(mut self, known: Option<Value>) -> Self {
        if self.is_blank() || (self.secret.is_none() && !self.is_replaceable()) {
            self.secret = known;
        }
        self
    }

    /// Nothing answers it.
    pub(super) fn is_blank(&self) -> bool {
        let empty = self.values.iter().all(|value| value.trim().is_empty());
        empty && self.secret.is_none() && self.typed_secret.is_none()
    }

    /// Whether the form takes a secret for it: what is typed in one line, and may be changed.
    pub(super) fn is_replaceable(&self) -> bool {
        !self.locked && matches!(self.kind, Kind::One(Scalar::Text | Scalar::Integer | Scalar::Double))
    }

    /// Whether it is offered to answer with a secret: passwords are texts.
    pub(super) fn offers_secret(&self) -> bool {
        self.is_replaceable() && self.kind == Kind::One(Scalar::Text)
    }

    /// What the form that was sent carries on for it instead of what it held, where a secret answers it: names of fields that go,
    /// and the one that says where the secret is.
    pub(super) fn carried(&self) -> Option<([String; 2], (String, String))> {
        let known = reference_field(&self.sent);
        let reference = reference(self.secret.as_ref()?)?;
        Some(([self.sent.clone(), known.clone()], (known, reference)))
    }

    pub(super) fn secret_field(&self) -> String {
        secret_field(&self.field)
    }

    pub(super) fn reference_field(&self) -> String {
        reference_field(&self.field)
    }

    /// As a form carries it.
    pub(super) fn secret_reference(&self) -> String {
        self.secret.as_ref().and_then(reference).unwrap_or_default()
    }

    fn with(index: usize, setting: &PackageSetting, values: Vec<String>) -> Self {
        let chosen = |option: &String| Choice { value: option.clone(), chosen: values.contains(option) };
        Question {
            id: format!("question-{index}"),
            parameter: setting.parameter.clone(),
            field: field(setting),
            name: setting.name.clone(),
            description: setting.description.clone(),
            required: setting.required,
            locked: false,
            kind: Kind::of(setting),
            options: setting.options.iter().map(chosen).collect(),
            values,
            wrong: None,
            secret: None,
            typed_secret: None,
            retype: false,
            untouched: None,
            sent: String::new(),
        }
    }

    /// Of the secret that answers it.
    pub(super) fn secret_words(&self) -> String {
        self.secret.as_ref().map(plain).unwrap_or_default()
    }

    pub(super) fn value(&self) -> &str {
        self.values.first().map(String::as_str).unwrap_or_default()
    }

    /// Chosen once, and not among what this version offers: nothing is chosen in its place. What was sent so is told as wrong already.
    pub(super) fn lost(&self) -> Option<String> {
        if self.wrong.is_some() {
            return None;
        }
        let offers = matches!(self.kind, Kind::Select(_) | Kind::Many(_));
        let is_offered = |value: &String| self.options.iter().any(|option| option.value == *value);
        let lost: Vec<String> = self
            .values
            .iter()
            .filter(|value| offers && !value.is_empty() && !is_offered(value))
            .map(|value| format!("“{value}”"))
            .collect();
        match lost.len() {
            0 => None,
            1 => Some(format!("{} is not offered any more. Choose again.", lost[0])),
            _ => Some(format!("{} are not offered any more. Choose again.", lost.join(", "))),
        }
    }

    /// There is something to say about it below its field.
    pub(super) fn is_described(&self) -> bool {
        self.wrong.is_some() || self.description.is_some() || self.lost().is_some()
    }

    pub(super) fn is_on(&self) -> bool {
        self.value() == "true"
    }

    pub(super) fn lines(&self) -> String {
        self.values.join("\n")
    }

    /// Lines that its field begins with: one looks like any other field, more are all in sight.
    pub(super) fn rows(&self) -> usize {
        self.value().split('\n').count().min(ROWS_MAX)
    }

    /// The answer to send to the fleet, or what is wrong with it. `None` leaves the package's default.
    pub(super) fn answer(&self, default: Option<&Value>) -> Result<Option<Value>, String> {
        if let Some(secret) = &self.secret {
            return Ok(Some(secret.clone()));
        }
        // Whatever stands in its other field: it is sealed first, or the form says why it cannot be.
        if self.typed_secret.is_some() {
            return Ok(None);
        }
        if let Some(value) = &self.untouched {
            return match value.as_str().is_some_and(|text| text.trim().is_empty()) && self.required {
                true => Err("This needs a value.".to_owned()),
                false => Ok(Some(value.clone())),
            };
        }
        let scalar = self.kind.scalar();
        match self.kind {
            Kind::List(_) | Kind::Many(_) => {
                let values = self
                    .values
                    .iter()
                    .map(|text| value(scalar, if text.contains('\n') { text } else { text.trim() }))
                    .collect::<Result<Vec<_>, _>>()?;
                if values.is_empty() && self.required {
                    return Err("Give at least one value.".to_owned());
                }
                let untouched = values.is_empty() && default.is_none();
                Ok((!untouched).then_some(Value::Array(values)))
            }
            Kind::One(Scalar::Boolean) => Ok(Some(Value::Bool(self.is_on()))),
            Kind::One(Scalar::Text) => {
                let text = self.value();
                if text.trim().is_empty() && self.required {
                    return Err("This needs a value.".to_owned());
                }
                let untouched = text.is_empty() && default.is_none();
                Ok((!untouched).then(|| Value::String(text.to_owned())))
            }
            Kind::One(_) | Kind::Select(_) => match self.value().trim() {
                "" if self.required => Err("This needs a value.".to_owned()),
                "" => Ok(None),
                text => value(scalar, text).map(Some),
            },
        }
    }
}

fn typed_values(setting: &PackageSetting, fields: &Fields, field: &str) -> Vec<String> {
    match Kind::of(setting) {
        Kind::List(_) => lines(fields.raw(field).unwrap_or_default()).map(ToOwned::to_owned).collect(),
        Kind::Many(_) => fields.all(field).map(unix).collect(),
        Kind::One(Scalar::Boolean) => {
            vec![fields.raw(field).is_some_and(|text| text == "true").to_string()]
        }
        Kind::One(Scalar::Text) => fields.raw(field).into_iter().map(one_or_more_lines).collect(),
        Kind::One(_) | Kind::Select(_) => fields.raw(field).into_iter().map(unix).collect(),
    }
}

/// With the breaks that files have; forms send those of another world.
fn unix(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// A text as it was typed. Whoever ends a single line with Enter means no second one.
fn one_or_more_lines(text: &str) -> String {
    let text = unix(text);
    match text.strip_suffix('\n') {
        Some(line) if !line.contains('\n') => line.to_owned(),
        _ => text,
    }
}

fn joined(value: &Value) -> String {
    let items = value.as_array().into_iter().flatten().map(plain);
    unix(&items.collect::<Vec<_>>().join("\n"))
}

/// The values of a list that was typed one a line; those that had several lines before have them still.
fn together<'a>(typed: &[String], before: impl Iterator<Item = &'a Value>) -> Vec<String> {
    let several: Vec<(&str, Vec<&str>)> = before
        .filter_map(Value::as_str)
        .map(|text| (text, lines(text).collect::<Vec<_>>()))
        .filter(|(_, lines)| lines.len() > 1)
        .collect();
    let mut values = Vec::new();
    let mut rest = typed;
    while let Some((first, others)) = rest.split_first() {
        let begins =
            |lines: &[&str]| rest.len() >= lines.len() && rest.iter().zip(lines).all(|(a, b)| a == b);
        match several.iter().find(|(_, lines)| begins(lines)) {
            Some((text, lines)) => {
                values.push((*text).to_owned());
                rest = &rest[lines.len()..];
            }
            None => {
                values.push(first.clone());
                rest = others;
            }
        }
    }
    values
}

/// Whether a value can stand for itself in a field of texts. Another version may ask for something else by the same name.
fn is_of(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::One(Scalar::Text) => value.is_string(),
        Kind::List(Scalar::Text) => {
            value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(Value::is_string))
        }
        _ => false,
    }
}

/// The question as it is asked about some of the devices: it need not be answered, has no value of its own, and a box that is not
/// ticked would be an answer.
fn in_group(setting: &PackageSetting) -> PackageSetting {
    let mut setting = PackageSetting { required: false, default: None, description: None, ..setting.clone() };
    if Kind::of(&setting).is_check() {
        setting.options = ["true", "false"].map(str::to_owned).to_vec();
    }
    setting
}

fn group_field(group: usize, parameter: &str) -> String {
    format!("group.{group}.answer.{parameter}")
}

fn field(setting: &PackageSetting) -> String {
    format!("answer.{}", setting.parameter)
}

fn secret_field(field: &str) -> String {
    format!("{SECRET}{field}")
}

fn reference_field(field: &str) -> String {
    format!("reference.{field}")
}

/// A secret as forms carry it, `sealed:mgs1…`.
fn referred(text: &str) -> Option<Value> {
    let (kind, name) = text.split_once(':')?;
    Some(serde_json::json!({ "secret": { kind: name } }))
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

fn value(scalar: Scalar, text: &str) -> Result<Value, String> {
    match scalar {
        Scalar::Text => Ok(Value::String(text.to_owned())),
        Scalar::Integer => match text.parse::<i64>() {
            Ok(number) => Ok(Value::from(number)),
            Err(error) => Err(match error.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
                    format!("“{text}” is too large. Whole numbers go from {} to {}.", i64::MIN, i64::MAX)
                }
                _ => format!("“{text}” is no whole number. Write digits only, such as 42."),
            }),
        },
        Scalar::Double => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::from(number)),
            _ => Err(format!("“{text}” is no number. Write it with a point, such as 0.5.")),
        },
        Scalar::Boolean => match text {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            _ => Err(format!("“{text}” is neither true nor false.")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn setting(data_type: &str, options: &[&str], multiselect: bool, required: bool) -> PackageSetting {
        PackageSetting {
            parameter: "p".into(),
            name: "P".into(),
            description: None,
            data_type: data_type.into(),
            required,
            immutable: false,
            default: None,
            options: options.iter().map(ToString::to_string).collect(),
            multiselect,
        }
    }

    #[test]
    fn every_data_type_has_its_field() {
        for (data_type, options, multiselect, kind) in [
            ("string", &[][..], false, Kind::One(Scalar::Text)),
            ("integer", &[], false, Kind::One(Scalar::Integer)),
            ("double", &[], false, Kind::One(Scalar::Double)),
            ("boolean", &[], false, Kind::One(Scalar::Boolean)),
            ("array[string]", &[], false, Kind::List(Scalar::Text)),
            ("array[integer]", &[], false, Kind::List(Scalar::Integer)),
            ("string", &["a", "b"], false, Kind::Select(Scalar::Text)),
            ("array[string]", &["a", "b"], true, Kind::Many(Scalar::Text)),
        ] {
            assert_eq!(Kind::of(&setting(data_type, options, multiselect, false)), kind, "{data_type}");
        }
    }

    #[test]
    fn answers_have_the_type_that_was_asked_for() {
        let check = |data_type: &str, current: Value| {
            Question::new(0, &setting(data_type, &[], false, true), Some(&current), false).answer(None)
        };
        assert_eq!(check("integer", json!("42")), Ok(Some(json!(42))));
        assert_eq!(check("double", json!("0.5")), Ok(Some(json!(0.5))));
        assert_eq!(check("boolean", json!(true)), Ok(Some(json!(true))));
        assert_eq!(check("string", json!(" a ")), Ok(Some(json!(" a "))));
        assert_eq!(check("array[integer]", json!(["1", "2"])), Ok(Some(json!([1, 2]))));
        for (data_type, wrong) in
            [("integer", "4.2"), ("integer", ""), ("double", "NaN"), ("double", "x"), ("string", " ")]
        {
            assert!(check(data_type, json!(wrong)).is_err(), "{data_type} {wrong:?}");
        }
        assert!(check("array[integer]", json!(["1", "two"])).unwrap_err().contains("two"));
    }

    #[test]
    fn a_group_answers_only_what_is_otherwise_there() {
        for (data_type, current, answer) in [
            ("boolean", json!(false), Some(json!(false))),
            ("boolean", json!(null), None),
            ("integer", json!(7), Some(json!(7))),
            ("string", json!(null), None),
            ("array[string]", json!(null), None),
        ] {
            let question = Question::of_group(2, 0, &setting(data_type, &[], false, true), Some(&current));
            assert_eq!(question.field, "group.2.answer.p");
            assert_eq!(question.answer(None), Ok(answer), "{data_type}");
        }
    }

    #[test]
    fn clearing_a_field_differs_from_never_filling_it() {
        let setting = setting("string", &[], false, false);
        let empty = Question::new(0, &setting, Some(&json!("")), false);
        assert_eq!(empty.answer(None), Ok(None));
        assert_eq!(empty.answer(Some(&json!("hello"))), Ok(Some(json!(""))));
    }
}
