//! What all JSON bodies share: how they are parsed, and the two ways in which they can be wrong.

use std::fmt;

use margrave_core::violation::Violation;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use crate::tree::{At, Content, Findings, Node};

/// Why a body was refused. The two cases are answered differently (AMB-27).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Not parseable at all: 400.
    #[error("the body is not the JSON that was expected: {0}")]
    Malformed(String),
    /// Parsed, but it breaks rules: 422, with each rule named.
    #[error("{}", listed(.0))]
    Invalid(Vec<Violation>),
}

fn listed(violations: &[Violation]) -> String {
    violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("; ")
}

impl BodyError {
    /// The broken rules; none when the body could not even be parsed.
    pub fn violations(&self) -> &[Violation] {
        match self {
            BodyError::Malformed(_) => &[],
            BodyError::Invalid(violations) => violations,
        }
    }
}

/// Reads JSON into a tree. A duplicate key is an error: two readers would see two different bodies.
pub(crate) fn read_json(bytes: &[u8]) -> Result<Node, BodyError> {
    let Json(node) =
        serde_json::from_slice(bytes).map_err(|error| BodyError::Malformed(error.to_string()))?;
    Ok(node)
}

/// Reads a whole body: what `root` makes of it, or everything that it found wrong.
pub(crate) fn read_body<T>(
    bytes: &[u8],
    root: impl FnOnce(&At<'_>, &mut Findings) -> Option<T>,
) -> Result<T, BodyError> {
    let node = read_json(bytes)?;
    let mut findings = Findings::default();
    match root(&At::root(&node), &mut findings) {
        Some(read) if findings.is_empty() => Ok(read),
        _ => Err(BodyError::Invalid(findings.into_vec())),
    }
}

struct Json(Node);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(|content| Json(Node::new(content)))
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Boolean(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Content, E> {
        Number::from_f64(value).map(Content::Number).ok_or_else(|| E::custom("a number is too large"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Content, E> {
        Ok(Content::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content, A::Error> {
        let mut list = Vec::new();
        while let Some(Json(node)) = items.next_element()? {
            list.push(node);
        }
        Ok(Content::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Content, A::Error> {
        let mut keys = std::collections::HashSet::new();
        let mut map = Vec::new();
        while let Some((key, Json(node))) = entries.next_entry::<String, Json>()? {
            if !keys.insert(key.clone()) {
                let shown: String = key.chars().take(60).collect();
                return Err(A::Error::custom(format!("the key {shown:?} is there twice")));
            }
            map.push((key, node));
        }
        Ok(Content::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amb_27_a_body_that_does_not_parse_is_malformed() {
        for bad in ["", "{", "{\"a\":1,\"a\":2}", "[1,]", "{\"a\":1} x", "nul", "\u{feff}{}", "{\"a\":1e999}"]
        {
            assert!(matches!(read_json(bad.as_bytes()), Err(BodyError::Malformed(_))), "{bad}");
        }
        let deep = "[".repeat(100_000);
        assert!(matches!(read_json(deep.as_bytes()), Err(BodyError::Malformed(_))));
    }

    #[test]
    fn dm_086_whole_numbers_keep_all_their_64_bits() {
        let node = read_json(b"[18446744073709551615, 9007199254740993]").unwrap();
        assert_eq!(node.to_value().to_string(), "[18446744073709551615,9007199254740993]");
    }
}
