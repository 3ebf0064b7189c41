//! One tree for what came as YAML or JSON, and a reader that collects every broken rule while walking it.
//!
//! Owns typing (is this text, a number, a list) and where in the body something stands. Which fields exist
//! and what they mean is the business of the module that reads them.

use margrave_core::parameters::ParameterValue;
use margrave_core::violation::{Violation, join};
use serde_json::{Map, Number, Value};

/// One value, and where it was written: a map's value stands where its key does, because that is where a
/// person looks for it. Lines and columns count from 1; 0 when unknown.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub content: Content,
    pub line: u32,
    pub column: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Null,
    Boolean(bool),
    Number(Number),
    Text(String),
    /// A plain scalar that YAML readers disagree about, such as `010` or `1_000`, as it was written.
    Ambiguous(String),
    List(Vec<Node>),
    /// In the order written, each key once.
    Map(Vec<(String, Node)>),
}

impl Node {
    pub fn new(content: Content) -> Self {
        Node { content, line: 0, column: 0 }
    }

    pub fn text(text: impl Into<String>) -> Self {
        Node::new(Content::Text(text.into()))
    }

    pub fn list(items: impl IntoIterator<Item = Node>) -> Self {
        Node::new(Content::List(items.into_iter().collect()))
    }

    pub fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Node)>) -> Self {
        Node::new(Content::Map(entries.into_iter().map(|(key, node)| (key.into(), node)).collect()))
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.content {
            Content::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// Line and column of what a JSON Pointer names, or of the nearest thing around it that does exist.
    pub fn locate(&self, pointer: &str) -> (u32, u32) {
        let mut node = self;
        for token in pointer.split('/').skip(1) {
            let token = token.replace("~1", "/").replace("~0", "~");
            let next = match &node.content {
                Content::List(items) => token.parse::<usize>().ok().and_then(|at| items.get(at)),
                _ => node.get(&token),
            };
            let Some(next) = next else { break };
            node = next;
        }
        (node.line, node.column)
    }

    /// As JSON; ambiguous scalars become the text they were written as.
    pub fn to_value(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Boolean(value) => Value::Bool(*value),
            Content::Number(number) => Value::Number(number.clone()),
            Content::Text(text) | Content::Ambiguous(text) => Value::String(text.clone()),
            Content::List(items) => Value::Array(items.iter().map(Node::to_value).collect()),
            Content::Map(_) => Value::Object(self.to_object()),
        }
    }

    /// A map as JSON; empty for anything else.
    pub fn to_object(&self) -> Map<String, Value> {
        match &self.content {
            Content::Map(entries) => {
                entries.iter().map(|(key, node)| (key.clone(), node.to_value())).collect()
            }
            _ => Map::new(),
        }
    }

    /// What it is, in words, for a message.
    fn described(&self) -> String {
        let short = |text: &str| {
            let head: String = text.chars().take(60).collect();
            let dots = if head.len() < text.len() { "…" } else { "" };
            format!("{head}{dots}")
        };
        match &self.content {
            Content::Null => "nothing".into(),
            Content::Boolean(value) => format!("the boolean {value}"),
            Content::Number(number) => format!("the number {number}"),
            Content::Text(text) => format!("the text {:?}", short(text)),
            Content::Ambiguous(text) => format!("{}, which YAML readers disagree about", short(text)),
            Content::List(_) => "a list".into(),
            Content::Map(_) => "an object".into(),
        }
    }
}

impl From<&Value> for Node {
    fn from(value: &Value) -> Self {
        Node::new(match value {
            Value::Null => Content::Null,
            Value::Bool(value) => Content::Boolean(*value),
            Value::Number(number) => Content::Number(number.clone()),
            Value::String(text) => Content::Text(text.clone()),
            Value::Array(items) => Content::List(items.iter().map(Node::from).collect()),
            Value::Object(map) => {
                Content::Map(map.iter().map(|(key, value)| (key.clone(), value.into())).collect())
            }
        })
    }
}

/// A node together with its JSON Pointer.
#[derive(Debug, Clone)]
pub(crate) struct At<'n> {
    pub(crate) node: &'n Node,
    pub(crate) place: String,
}

impl<'n> At<'n> {
    pub(crate) fn root(node: &'n Node) -> Self {
        At { node, place: String::new() }
    }

    pub(crate) fn place_of(&self, key: &str) -> String {
        join(&self.place, key)
    }

    /// A field that is there; one that is null counts as left out.
    pub(crate) fn field(&self, key: &str) -> Option<At<'n>> {
        self.node
            .get(key)
            .filter(|node| node.content != Content::Null)
            .map(|node| At { node, place: self.place_of(key) })
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.node.get(key).is_some()
    }

    /// A whole number from 0, never by way of a double (DM-086). Programs that have only doubles write `7.0` (AMB-17):
    /// where that is exact, it is a whole number all the same.
    pub(crate) fn unsigned(&self) -> Option<u64> {
        const EXACT_MAX: f64 = 9_007_199_254_740_991.0;
        let exact = |number: &f64| number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(number);
        match &self.node.content {
            Content::Number(number) => {
                number.as_u64().or_else(|| number.as_f64().filter(exact).map(|number| number as u64))
            }
            _ => None,
        }
    }

    /// The entries of a map; none for anything else.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'n str, At<'n>)> + '_ {
        let entries: &'n [(String, Node)] = match &self.node.content {
            Content::Map(entries) => entries,
            _ => &[],
        };
        entries.iter().map(|(key, node)| (key.as_str(), At { node, place: self.place_of(key) }))
    }
}

/// More broken rules than a person mends in one go; the rest shows once these are mended.
const FINDINGS_MAX: usize = 200;

/// The broken rules found so far.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Violation>);

impl Findings {
    pub(crate) fn add(&mut self, place: impl Into<String>, rule: &'static str, message: impl Into<String>) {
        self.push(Violation::new(place, rule, message));
    }

    pub(crate) fn push(&mut self, violation: Violation) {
        if self.0.len() < FINDINGS_MAX {
            self.0.push(violation);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn into_vec(self) -> Vec<Violation> {
        self.0
    }

    fn wrong(&mut self, at: &At<'_>, rule: &'static str, wanted: &str) {
        let hint = match (&at.node.content, wanted) {
            (Content::Boolean(_) | Content::Number(_) | Content::Ambiguous(_), "text") => {
                "; put it in quotes"
            }
            (Content::Text(text), "true or false") if text == "true" || text == "false" => {
                "; remove the quotes"
            }
            (Content::Text(text), "a number" | "a whole number") if text.parse::<f64>().is_ok() => {
                "; remove the quotes"
            }
            _ => "",
        };
        self.add(at.place.clone(), rule, format!("must be {wanted}, got {}{hint}", at.node.described()));
    }

    fn missing(&mut self, parent: &At<'_>, key: &str, rule: &'static str) {
        self.add(parent.place_of(key), rule, format!("{key} is missing; add it"));
    }

    pub(crate) fn text<'n>(&mut self, at: &At<'n>, rule: &'static str) -> Option<&'n str> {
        match &at.node.content {
            Content::Text(text) => Some(text),
            _ => {
                self.wrong(at, rule, "text");
                None
            }
        }
    }

    pub(crate) fn boolean(&mut self, at: &At<'_>, rule: &'static str) -> Option<bool> {
        match &at.node.content {
            Content::Boolean(value) => Some(*value),
            _ => {
                self.wrong(at, rule, "true or false");
                None
            }
        }
    }

    pub(crate) fn number(&mut self, at: &At<'_>, rule: &'static str) -> Option<f64> {
        match &at.node.content {
            Content::Number(number) => number.as_f64(),
            _ => {
                self.wrong(at, rule, "a number");
                None
            }
        }
    }

    /// As [`At::unsigned`]; anything else is a finding.
    pub(crate) fn unsigned(&mut self, at: &At<'_>, rule: &'static str) -> Option<u64> {
        let unsigned = at.unsigned();
        if unsigned.is_none() {
            self.wrong(at, rule, "a whole number");
        }
        unsigned
    }

    pub(crate) fn items<'n>(&mut self, at: &At<'n>, rule: &'static str) -> Option<Vec<At<'n>>> {
        match &at.node.content {
            Content::List(items) => {
                let place = |(index, node)| At { node, place: format!("{}/{index}", at.place) };
                Some(items.iter().enumerate().map(place).collect())
            }
            _ => {
                self.wrong(at, rule, "a list");
                None
            }
        }
    }

    pub(crate) fn is_map(&mut self, at: &At<'_>, rule: &'static str) -> bool {
        let map = matches!(at.node.content, Content::Map(_));
        if !map {
            self.wrong(at, rule, "an object");
        }
        map
    }

    pub(crate) fn required<'n>(&mut self, parent: &At<'n>, key: &str, rule: &'static str) -> Option<At<'n>> {
        let field = parent.field(key);
        if field.is_none() {
            self.missing(parent, key, rule);
        }
        field
    }

    pub(crate) fn required_text<'n>(
        &mut self,
        parent: &At<'n>,
        key: &str,
        rule: &'static str,
    ) -> Option<&'n str> {
        let at = self.required(parent, key, rule)?;
        self.text(&at, rule)
    }

    pub(crate) fn required_map<'n>(
        &mut self,
        parent: &At<'n>,
        key: &str,
        rule: &'static str,
    ) -> Option<At<'n>> {
        let at = self.required(parent, key, rule)?;
        self.is_map(&at, rule).then_some(at)
    }

    pub(crate) fn required_items<'n>(
        &mut self,
        parent: &At<'n>,
        key: &str,
        rule: &'static str,
    ) -> Option<Vec<At<'n>>> {
        let at = self.required(parent, key, rule)?;
        self.items(&at, rule)
    }

    /// An optional text; wrong ones are noted and read as left out.
    pub(crate) fn optional_text(&mut self, parent: &At<'_>, key: &str, rule: &'static str) -> Option<String> {
        parent.field(key).and_then(|at| self.text(&at, rule).map(str::to_owned))
    }

    pub(crate) fn optional_boolean(
        &mut self,
        parent: &At<'_>,
        key: &str,
        rule: &'static str,
    ) -> Option<bool> {
        parent.field(key).and_then(|at| self.boolean(&at, rule))
    }

    pub(crate) fn optional_unsigned(
        &mut self,
        parent: &At<'_>,
        key: &str,
        rule: &'static str,
    ) -> Option<u64> {
        parent.field(key).and_then(|at| self.unsigned(&at, rule))
    }

    pub(crate) fn optional_number(&mut self, parent: &At<'_>, key: &str, rule: &'static str) -> Option<f64> {
        parent.field(key).and_then(|at| self.number(&at, rule))
    }

    pub(crate) fn optional_items<'n>(
        &mut self,
        parent: &At<'n>,
        key: &str,
        rule: &'static str,
    ) -> Vec<At<'n>> {
        parent.field(key).and_then(|at| self.items(&at, rule)).unwrap_or_default()
    }

    /// A text that its own type checks; the type's message is the finding.
    pub(crate) fn parsed<T, E: std::fmt::Display>(
        &mut self,
        at: &At<'_>,
        rule: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(at, rule)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.add(at.place.clone(), rule, error.to_string());
                None
            }
        }
    }

    /// Free-form content that is passed on: refused where two readers would see different values.
    pub(crate) fn unambiguous(&mut self, at: &At<'_>, rule: &'static str) {
        match &at.node.content {
            Content::Ambiguous(_) => self.wrong(at, rule, "text"),
            Content::List(_) => {
                for item in self.items(at, rule).unwrap_or_default() {
                    self.unambiguous(&item, rule);
                }
            }
            _ => at.entries().for_each(|(_, entry)| self.unambiguous(&entry, rule)),
        }
    }

    /// A parameter's value: a scalar or a list of scalars (DM-042). What readers disagree about is taken as
    /// the text that was written.
    pub(crate) fn parameter_value(&mut self, at: &At<'_>, rule: &'static str) -> Option<ParameterValue> {
        match &at.node.content {
            Content::List(_) => {
                let items = self.items(at, rule)?;
                let count = items.len();
                let values: Vec<_> = items.iter().filter_map(|item| self.scalar_value(item, rule)).collect();
                (values.len() == count).then_some(ParameterValue::List(values))
            }
            _ => self.scalar_value(at, rule),
        }
    }

    fn scalar_value(&mut self, at: &At<'_>, rule: &'static str) -> Option<ParameterValue> {
        match &at.node.content {
            Content::Boolean(value) => Some(ParameterValue::Boolean(*value)),
            Content::Text(text) | Content::Ambiguous(text) => Some(ParameterValue::Text(text.clone())),
            Content::Number(number) => match (number.as_i64(), number.is_f64(), number.as_f64()) {
                (Some(integer), _, _) => Some(ParameterValue::Integer(integer)),
                (None, true, Some(double)) => Some(ParameterValue::Double(double)),
                _ => {
                    self.add(
                        at.place.clone(),
                        rule,
                        format!("{number} is too large for a number; put it in quotes"),
                    );
                    None
                }
            },
            Content::Null | Content::List(_) | Content::Map(_) => {
                self.wrong(at, rule, "text, a number, a boolean, or a list of these");
                None
            }
        }
    }
}

/// Whether a key is that of an extension: `x-<unique-name>-extensions` (DM-200).
pub(crate) fn is_extension(key: &str) -> bool {
    let name = key.strip_prefix("x-").and_then(|rest| rest.strip_suffix("-extensions"));
    name.is_some_and(|name| {
        name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    })
}
