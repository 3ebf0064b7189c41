//! Reads a tree into a type, and says at which line it does not fit.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

use crate::tree::{Content, Node};

/// What does not fit, and where; 0 when it is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unfit {
    pub line: u32,
    pub column: u32,
    pub message: String,
}

/// # Errors
/// The first thing that does not fit.
pub fn read<T: DeserializeOwned>(node: &Node) -> Result<T, Unfit> {
    T::deserialize(Located(node)).map_err(|unfit| unfit.within(node))
}

impl Unfit {
    /// The innermost thing that is known to hold it is the place to name.
    fn within(self, node: &Node) -> Unfit {
        if self.line > 0 { self } else { Unfit { line: node.line, column: node.column, ..self } }
    }
}

impl de::Error for Unfit {
    fn custom<T: fmt::Display>(message: T) -> Unfit {
        Unfit { line: 0, column: 0, message: message.to_string() }
    }
}

struct Located<'n>(&'n Node);

impl<'de> Deserializer<'de> for Located<'_> {
    type Error = Unfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unfit> {
        let node = self.0;
        let read = match &node.content {
            Content::Null => visitor.visit_unit(),
            Content::Boolean(value) => visitor.visit_bool(*value),
            Content::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), _, _) => visitor.visit_u64(number),
                (_, Some(number), _) => visitor.visit_i64(number),
                (_, _, Some(number)) => visitor.visit_f64(number),
                (None, None, None) => Err(de::Error::custom("this number is too large")),
            },
            Content::Text(text) => visitor.visit_str(text),
            Content::Ambiguous(text) => Err(de::Error::custom(format!(
                "YAML readers disagree about {text}; put it in quotes if it is text, or write it plainly"
            ))),
            Content::List(items) => visitor.visit_seq(Items(items.iter())),
            Content::Map(entries) => visitor.visit_map(Entries { rest: entries.iter(), value: None }),
        };
        read.map_err(|unfit| unfit.within(node))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unfit> {
        match self.0.content {
            Content::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unfit> {
        visitor.visit_newtype_struct(self)
    }

    /// A number or a boolean where text is wanted was meant as text more often than not; only its writer knows how.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unfit> {
        match &self.0.content {
            Content::Boolean(_) | Content::Number(_) | Content::Ambiguous(_) => {
                let unfit: Unfit = de::Error::custom("must be text; put it in quotes");
                Err(unfit.within(self.0))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unfit> {
        self.deserialize_str(visitor)
    }

    /// Serde would take a list for a struct, by the order of its members; nobody writes that on purpose.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unfit> {
        match &self.0.content {
            Content::List(_) => {
                let unfit: Unfit = de::Error::custom("must be an object with names, not a list");
                Err(unfit.within(self.0))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

struct Items<'n>(std::slice::Iter<'n, Node>);

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Unfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Unfit> {
        let Some(node) = self.0.next() else { return Ok(None) };
        seed.deserialize(Located(node)).map(Some).map_err(|unfit| unfit.within(node))
    }
}

struct Entries<'n> {
    rest: std::slice::Iter<'n, (String, Node)>,
    value: Option<&'n Node>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Unfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unfit> {
        let Some((key, value)) = self.rest.next() else { return Ok(None) };
        self.value = Some(value);
        let key: StrDeserializer<'_, Unfit> = key.as_str().into_deserializer();
        // A value stands where its key does.
        seed.deserialize(key).map(Some).map_err(|unfit: Unfit| unfit.within(value))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Unfit> {
        let value = self.value.take().ok_or_else(|| de::Error::custom("a value without its name"))?;
        seed.deserialize(Located(value)).map_err(|unfit| unfit.within(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        name: String,
        #[serde(default)]
        count: Option<u32>,
        #[serde(default)]
        inner: Vec<Inner>,
        #[serde(default)]
        any: Option<serde_json::Value>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        on: bool,
    }

    fn check(text: &str) -> Result<Sample, (u32, String)> {
        let node = crate::yaml::read(text.as_bytes()).unwrap();
        read(&node).map_err(|unfit| (unfit.line, unfit.message))
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_line() {
        let read = check("name: a\ncount: 3\ninner:\n  - on: true\nany: {x: [1, 2.5, no]}\n").unwrap();
        assert_eq!(read.any, Some(serde_json::json!({"x": [1, 2.5, "no"]})));
        assert_eq!(read.count, Some(3));
        for (text, line, part) in [
            ("name: a\ncuont: 3\n", 2, "cuont"),
            ("name: a\ncount: -3\n", 2, "-3"),
            ("name: a\ncount: many\n", 2, "many"),
            ("count: 1\n", 1, "name"),
            ("name: a\ninner:\n  - on: true\n  - on: maybe\n", 4, "maybe"),
            ("name: a\ninner:\n  - [true]\n", 3, "not a list"),
            ("name: 5\n", 1, "quotes"),
            ("name: a\nany: 010\n", 2, "disagree"),
        ] {
            let (at, message) = check(text).unwrap_err();
            assert_eq!(at, line, "{text}: {message}");
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
