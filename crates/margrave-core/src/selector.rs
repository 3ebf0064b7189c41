//! Label expressions: `site=nord, line in (1, 2), !spare`.
//!
//! Owns how they are written and what they match. Every part must hold; an expression without parts matches nothing, so
//! that nobody reaches a whole fleet by leaving something out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// More parts than a person reads.
const PARTS_MAX: usize = 32;
/// Of one `in (…)`.
const VALUES_MAX: usize = 256;
/// Of a whole expression, in bytes.
const LENGTH_MAX: usize = 8 * 1024;

/// Which devices, by what their labels say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    parts: Vec<Part>,
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// It has one of these values.
    In(String, BTreeSet<String>),
    /// It has none of these values; a device without the label matches, too.
    NotIn(String, BTreeSet<String>),
    /// It is there, whatever its value.
    Present(String),
    Absent(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{message}, at character {at}; write conditions like `site=nord, line in (1, 2), role!=spare, !retired`"
)]
pub struct InvalidSelector {
    at: usize,
    message: &'static str,
}

impl Part {
    pub fn key(&self) -> &str {
        match self {
            Part::In(key, _) | Part::NotIn(key, _) | Part::Present(key) | Part::Absent(key) => key,
        }
    }

    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let found = labels.get(self.key());
        match self {
            Part::In(_, values) => found.is_some_and(|value| values.contains(value)),
            Part::NotIn(_, values) => found.is_none_or(|value| !values.contains(value)),
            Part::Present(_) => found.is_some(),
            Part::Absent(_) => found.is_none(),
        }
    }
}

impl Selector {
    /// Devices whose label has one of these values.
    pub fn any_of(key: &str, values: impl IntoIterator<Item = String>) -> Selector {
        Selector { parts: vec![Part::In(key.to_owned(), values.into_iter().collect())] }
    }

    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.parts.is_empty() && self.parts.iter().all(|part| part.matches(labels))
    }
}

/// As a label's name may be.
fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/')
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn error(&self, message: &'static str) -> InvalidSelector {
        InvalidSelector { at: self.text[..self.at].chars().count() + 1, message }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// A word that ends where a name would, such as `in` before a parenthesis.
    fn take_word(&mut self, word: &str) -> bool {
        let before = self.at;
        let found = self.take(word) && !self.rest().bytes().next().is_some_and(is_key);
        if !found {
            self.at = before;
        }
        found
    }

    fn key(&mut self) -> Result<String, InvalidSelector> {
        self.skip_space();
        let length = self.rest().bytes().take_while(|byte| is_key(*byte)).count();
        if !(1..=100).contains(&length) {
            return Err(self.error("a label's name is 1 to 100 letters, digits, '.', '_', '-' or '/'"));
        }
        let key = self.rest()[..length].to_owned();
        self.at += length;
        Ok(key)
    }

    /// Plain up to a comma or parenthesis, or in double quotes with `\"` and `\\`.
    fn value(&mut self) -> Result<String, InvalidSelector> {
        if self.take("\"") {
            let mut value = String::new();
            let mut characters = self.rest().char_indices();
            while let Some((index, character)) = characters.next() {
                match character {
                    '"' => {
                        self.at += index + 1;
                        return Ok(value);
                    }
                    '\\' => match characters.next() {
                        Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                        _ => return Err(self.error("a backslash stands before a quote or another backslash")),
                    },
                    character if character.is_control() => {
                        return Err(self.error("a value has no control characters"));
                    }
                    character => value.push(character),
                }
            }
            return Err(self.error("a quote is not closed"));
        }
        let end = self.rest().find([',', '(', ')', '"', '=', '!']).unwrap_or(self.rest().len());
        let value = self.rest()[..end].trim();
        // Left out, it would be an empty one, and `!=` or `notin ()` would reach a whole fleet.
        if value.is_empty() {
            return Err(self.error("a value is missing (an empty one is written \"\")"));
        }
        if value.chars().any(char::is_control) {
            return Err(self.error("a value has no control characters"));
        }
        self.at += end;
        Ok(value.to_owned())
    }

    fn values(&mut self) -> Result<BTreeSet<String>, InvalidSelector> {
        if !self.take("(") {
            return Err(self.error("values stand in parentheses"));
        }
        let mut values = BTreeSet::new();
        loop {
            values.insert(self.value()?);
            if values.len() > VALUES_MAX {
                return Err(self.error("there are more than 256 values"));
            }
            if self.take(")") {
                return Ok(values);
            }
            if !self.take(",") {
                return Err(self.error("a comma or a closing parenthesis is missing"));
            }
        }
    }

    fn part(&mut self) -> Result<Part, InvalidSelector> {
        if self.take("!") {
            return Ok(Part::Absent(self.key()?));
        }
        let key = self.key()?;
        if self.take("!=") {
            return Ok(Part::NotIn(key, [self.value()?].into()));
        }
        if self.take("==") || self.take("=") {
            return Ok(Part::In(key, [self.value()?].into()));
        }
        if self.take_word("notin") {
            return Ok(Part::NotIn(key, self.values()?));
        }
        if self.take_word("in") {
            return Ok(Part::In(key, self.values()?));
        }
        Ok(Part::Present(key))
    }
}

impl FromStr for Selector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Selector, InvalidSelector> {
        if text.len() > LENGTH_MAX {
            return Err(InvalidSelector { at: LENGTH_MAX, message: "this is longer than 8 KiB" });
        }
        let mut reader = Reader { text, at: 0 };
        let mut parts = Vec::new();
        reader.skip_space();
        if reader.rest().is_empty() {
            return Err(reader.error("nothing is asked for"));
        }
        loop {
            parts.push(reader.part()?);
            if parts.len() > PARTS_MAX {
                return Err(reader.error("there are more than 32 conditions"));
            }
            reader.skip_space();
            if reader.rest().is_empty() {
                break;
            }
            if !reader.take(",") {
                return Err(reader.error("a comma is missing"));
            }
        }
        let selector = Selector { parts };
        match selector.contradiction() {
            Some(message) => Err(InvalidSelector { at: 1, message }),
            None => Ok(selector),
        }
    }
}

impl Selector {
    /// What no device can ever match is a mistake, and says so now instead of reaching nobody for ever.
    fn contradiction(&self) -> Option<&'static str> {
        let about = |key: &str| self.parts.iter().filter(move |part| part.key() == key).collect::<Vec<_>>();
        for part in &self.parts {
            let all = about(part.key());
            if matches!(part, Part::Absent(_))
                && all.iter().any(|other| matches!(other, Part::In(..) | Part::Present(_)))
            {
                return Some("a label is asked to be there and not to be there");
            }
            if let Part::In(_, values) = part {
                let possible = |value: &String| {
                    all.iter().all(|other| match other {
                        Part::In(_, others) => others.contains(value),
                        Part::NotIn(_, others) => !others.contains(value),
                        Part::Present(_) | Part::Absent(_) => true,
                    })
                };
                if !values.iter().any(possible) {
                    return Some("no value of a label meets all conditions on it");
                }
            }
        }
        None
    }
}

fn written(value: &str) -> String {
    let plain =
        !value.is_empty() && value.trim() == value && !value.contains([',', '(', ')', '"', '=', '!', '\\']);
    match plain {
        true => value.to_owned(),
        false => format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &BTreeSet<String>| {
            let values: Vec<String> = values.iter().map(|value| written(value)).collect();
            values.join(", ")
        };
        match self {
            Part::In(key, values) if values.len() == 1 => write!(f, "{key}={}", list(values)),
            Part::In(key, values) => write!(f, "{key} in ({})", list(values)),
            Part::NotIn(key, values) if values.len() == 1 => write!(f, "{key}!={}", list(values)),
            Part::NotIn(key, values) => write!(f, "{key} notin ({})", list(values)),
            Part::Present(key) => f.write_str(key),
            Part::Absent(key) => write!(f, "!{key}"),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{part}")?;
        }
        Ok(())
    }
}

impl Serialize for Selector {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Selector, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() { Ok(Selector::default()) } else { text.parse().map_err(serde::de::Error::custom) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> BTreeMap<String, String> {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn check(expression: &str, matching: &[&str], others: &[&str]) {
        let selector: Selector = expression.parse().unwrap_or_else(|error| panic!("{expression}: {error}"));
        let again: Selector = selector.to_string().parse().unwrap();
        assert_eq!(again, selector, "{expression} is written as {selector}");
        for text in matching {
            assert!(selector.matches(&labels(text)), "{expression} should match {text}");
        }
        for text in others {
            assert!(!selector.matches(&labels(text)), "{expression} should not match {text}");
        }
    }

    #[test]
    fn every_condition_must_hold() {
        check("site=nord", &["site=nord", "site=nord x=1"], &["site=sued", ""]);
        check("site == nord , line in (1,2)", &["site=nord line=1"], &["site=nord line=3", "site=nord"]);
        check("role!=spare", &["role=main", "x=1", ""], &["role=spare"]);
        check("line notin (1, 2)", &["line=3", ""], &["line=1"]);
        check("canary", &["canary=yes", "canary="], &["x=1"]);
        check("!canary, site=nord", &["site=nord"], &["site=nord canary=1"]);
        check("in=1, notin in (in)", &["in=1 notin=in"], &["in=1"]);
        check(r#"note="a, \"b\" (c)""#, &[], &["note=a"]);
        check("inner", &["inner=1"], &["inn=1"]);
        check("role!=\"\"", &["role=main", ""], &["role="]);
        check("role in (\"\", main)", &["role=", "role=main"], &["role=spare", ""]);
    }

    #[test]
    fn what_is_asked_of_nothing_or_of_nobody_is_refused() {
        for bad in [
            "",
            "  ",
            ",",
            "site=nord,",
            "site nord",
            "line in 1",
            "line in (1",
            "a=\"b",
            "=x",
            "a=b=c",
            "!a, a=1",
            "a=1, a=2",
            "a=1, a!=1",
            "a=1, a notin (1, 2)",
            "a, !a",
            "ä=1",
            "role!=",
            "role=",
            "role= , site=nord",
            "line in ()",
            "line notin ()",
            "line in (1,)",
            "line notin (1, , 2)",
        ] {
            assert!(bad.parse::<Selector>().is_err(), "{bad:?} was taken");
        }
        let long = format!("a in ({})", (0..300).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
        assert!(long.parse::<Selector>().is_err());
        assert!(!Selector::default().matches(&labels("a=1")));
    }
}
