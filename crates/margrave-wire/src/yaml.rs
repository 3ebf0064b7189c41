//! YAML in and out, so that every reader sees the same values.
//!
//! Reading is strict where YAML is slippery: duplicate keys, unknown tags, several documents and alias bombs
//! are errors with a line and a column, `no` is text, and scalars that readers disagree about (`010`,
//! `1_000`, `.inf`) are marked instead of guessed. Writing is our own, not a library's: a document's bytes
//! are hashed and kept for ever, so they must not change with a dependency.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use serde_json::Number;
use serde_saphyr::granit_parser::{self, Event, Marker, Parser, ScalarStyle, Tag};

pub use crate::tree::{Content, Node};

/// No description or document comes near this.
pub const SIZE_MAX: usize = 1 << 20;
/// Counted with every alias expanded, which is what disarms "billion laughs".
const NODE_COUNT_MAX: usize = 100_000;
const TEXT_SIZE_MAX: usize = 4 * SIZE_MAX;
const DEPTH_MAX: usize = 64;

/// Why bytes are no YAML that we read, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct YamlError {
    pub line: u32,
    pub column: u32,
    pub message: String,
}

impl YamlError {
    fn at(mark: &Marker, message: impl Into<String>) -> Self {
        let (line, column) = position(mark);
        YamlError { line, column, message: message.into() }
    }
}

fn position(mark: &Marker) -> (u32, u32) {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    (number(mark.line()), number(mark.col()).saturating_add(1))
}

/// Reads exactly one YAML document.
pub fn read(bytes: &[u8]) -> Result<Node, YamlError> {
    if bytes.len() > SIZE_MAX {
        let message =
            format!("{} bytes are more than the {SIZE_MAX} that are read; make it smaller", bytes.len());
        return Err(YamlError { line: 1, column: 1, message });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let message = "this is not UTF-8; save the file as UTF-8".into();
        YamlError { line: u32::try_from(line).unwrap_or(u32::MAX), column: 1, message }
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);

    let mut options = granit_parser::Options::default();
    options.emit_comments = false;
    let mut builder = Builder::default();
    for next in Parser::new_from_str_with_options(text, options) {
        let (event, span) = next.map_err(|error| YamlError::at(error.marker(), error.info()))?;
        builder.event(event, &span.start)?;
    }
    let nothing = Node { content: Content::Null, line: 1, column: 1 };
    Ok(builder.root.unwrap_or(nothing))
}

#[derive(Default)]
struct Builder {
    root: Option<Node>,
    open: Vec<Collection>,
    anchors: HashMap<usize, Node>,
    node_count: usize,
    text_size: usize,
}

struct Collection {
    kind: Kind,
    anchor: usize,
    line: u32,
    column: u32,
}

enum Kind {
    List(Vec<Node>),
    Map { entries: Vec<(String, Node)>, keys: HashSet<String>, pending: Option<Key>, merges: Vec<Node> },
}

struct Key {
    text: String,
    merge: bool,
    line: u32,
    column: u32,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, mark: &Marker) -> Result<(), YamlError> {
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                Err(YamlError::at(mark, "there is a second document (---); keep one document per file"))
            }
            Event::Scalar(text, style, anchor, tag) => self.scalar(text, style, anchor, tag.as_deref(), mark),
            Event::SequenceStart(_, anchor, tag) => {
                refuse_tag(tag.as_deref(), "seq", mark)?;
                self.begin(Kind::List(Vec::new()), anchor, mark)
            }
            Event::MappingStart(_, anchor, tag) => {
                refuse_tag(tag.as_deref(), "map", mark)?;
                let kind = Kind::Map {
                    entries: Vec::new(),
                    keys: HashSet::new(),
                    pending: None,
                    merges: Vec::new(),
                };
                self.begin(kind, anchor, mark)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(mark),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(YamlError::at(
                        mark,
                        "this alias refers to a value that contains it; write it out",
                    ));
                };
                if self.expects_key() {
                    return Err(YamlError::at(mark, "an alias cannot be a key; write the key out"));
                }
                self.count(&node, mark)?;
                self.place(node, mark)
            }
            _ => Ok(()),
        }
    }

    fn scalar(
        &mut self,
        text: Cow<'_, str>,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        mark: &Marker,
    ) -> Result<(), YamlError> {
        let is_text = match tag {
            None => false,
            Some(tag) if tag.core_suffix() == Some("str") => true,
            Some(tag) => return refuse_tag(Some(tag), "str", mark),
        };
        let plain = style == ScalarStyle::Plain && !is_text;
        let (line, column) = position(mark);
        if self.expects_key() {
            if plain && matches!(resolve(&text), Content::Null) {
                return Err(YamlError::at(mark, "a key is missing before the colon"));
            }
            let merge = plain && text == "<<";
            return self.key(Key { text: text.into_owned(), merge, line, column }, mark);
        }
        let content = if plain { resolve(&text) } else { Content::Text(text.into_owned()) };
        let node = Node { content, line, column };
        self.count(&node, mark)?;
        self.remember(anchor, &node, mark)?;
        self.place(node, mark)
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Collection { kind: Kind::Map { pending: None, .. }, .. }))
    }

    fn key(&mut self, key: Key, mark: &Marker) -> Result<(), YamlError> {
        let Some(Collection { kind: Kind::Map { keys, pending, .. }, .. }) = self.open.last_mut() else {
            unreachable!("asked for by expects_key");
        };
        if !key.merge && !keys.insert(key.text.clone()) {
            let shown: String = key.text.chars().take(60).collect();
            return Err(YamlError::at(
                mark,
                format!("the key {shown:?} is here a second time; keep one of them"),
            ));
        }
        *pending = Some(key);
        Ok(())
    }

    fn begin(&mut self, kind: Kind, anchor: usize, mark: &Marker) -> Result<(), YamlError> {
        if self.expects_key() {
            return Err(YamlError::at(mark, "a list or an object cannot be a key; use text"));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(YamlError::at(mark, format!("this is nested more than {DEPTH_MAX} levels deep")));
        }
        self.charge(1, 0, mark)?;
        let (line, column) = position(mark);
        self.open.push(Collection { kind, anchor, line, column });
        Ok(())
    }

    fn end(&mut self, mark: &Marker) -> Result<(), YamlError> {
        let done = self.open.pop().expect("the parser closes only what it opened");
        let content = match done.kind {
            Kind::List(items) => Content::List(items),
            Kind::Map { mut entries, mut keys, merges, .. } => {
                for merge in merges {
                    let Content::Map(merged) = merge.content else {
                        return Err(YamlError::at(
                            mark,
                            "the merge key << takes an object or a list of objects",
                        ));
                    };
                    // What is written out wins, and so does the earlier of two merged objects.
                    entries.extend(merged.into_iter().filter(|(key, _)| keys.insert(key.clone())));
                }
                Content::Map(entries)
            }
        };
        let node = Node { content, line: done.line, column: done.column };
        self.remember(done.anchor, &node, mark)?;
        self.place(node, mark)
    }

    fn place(&mut self, mut node: Node, mark: &Marker) -> Result<(), YamlError> {
        if self.open.len() + depth(&node) > DEPTH_MAX {
            return Err(YamlError::at(mark, format!("this is nested more than {DEPTH_MAX} levels deep")));
        }
        match self.open.last_mut().map(|open| &mut open.kind) {
            None => self.root = Some(node),
            Some(Kind::List(items)) => items.push(node),
            Some(Kind::Map { entries, pending, merges, .. }) => {
                let key = pending.take().expect("a value follows its key");
                if key.merge {
                    match node.content {
                        Content::List(items) => merges.extend(items),
                        _ => merges.push(node),
                    }
                } else {
                    (node.line, node.column) = (key.line, key.column);
                    entries.push((key.text, node));
                }
            }
        }
        Ok(())
    }

    /// Keeps an anchored value for its aliases; the copy costs as much as an alias does.
    fn remember(&mut self, anchor: usize, node: &Node, mark: &Marker) -> Result<(), YamlError> {
        if anchor != 0 {
            self.count(node, mark)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(())
    }

    fn count(&mut self, node: &Node, mark: &Marker) -> Result<(), YamlError> {
        let (nodes, text) = size(node);
        self.charge(nodes, text, mark)
    }

    fn charge(&mut self, nodes: usize, text: usize, mark: &Marker) -> Result<(), YamlError> {
        self.node_count = self.node_count.saturating_add(nodes);
        self.text_size = self.text_size.saturating_add(text);
        if self.node_count > NODE_COUNT_MAX || self.text_size > TEXT_SIZE_MAX {
            let message = format!(
                "this is too much: at most {NODE_COUNT_MAX} values and {TEXT_SIZE_MAX} bytes of text, \
                 with aliases expanded"
            );
            return Err(YamlError::at(mark, message));
        }
        Ok(())
    }
}

fn refuse_tag(tag: Option<&Tag>, allowed: &str, mark: &Marker) -> Result<(), YamlError> {
    match tag {
        None => Ok(()),
        Some(tag) if allowed != "str" && tag.core_suffix() == Some(allowed) => Ok(()),
        Some(_) => {
            Err(YamlError::at(mark, "this tag is not supported; remove it (quotes make a text a text)"))
        }
    }
}

/// How many nodes and how many bytes of text.
fn size(node: &Node) -> (usize, usize) {
    let add = |(nodes, text): (usize, usize), (more, longer): (usize, usize)| (nodes + more, text + longer);
    match &node.content {
        Content::Text(text) | Content::Ambiguous(text) => (1, text.len()),
        Content::List(items) => items.iter().map(size).fold((1, 0), add),
        Content::Map(entries) => {
            entries.iter().map(|(key, node)| add(size(node), (0, key.len()))).fold((1, 0), add)
        }
        _ => (1, 0),
    }
}

fn depth(node: &Node) -> usize {
    match &node.content {
        Content::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Content::Map(entries) => 1 + entries.iter().map(|(_, node)| depth(node)).max().unwrap_or(0),
        _ => 0,
    }
}

/// What a plain scalar means by YAML 1.2's core schema, unless a YAML 1.1 reader would see something else.
fn resolve(text: &str) -> Content {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Content::Null,
        "true" | "True" | "TRUE" => return Content::Boolean(true),
        "false" | "False" | "FALSE" => return Content::Boolean(false),
        _ => {}
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let special = matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN");
    if special {
        return Content::Ambiguous(text.to_owned());
    }
    let Some(first) = unsigned.bytes().next().filter(|b| b.is_ascii_digit() || *b == b'.') else {
        return Content::Text(text.to_owned());
    };
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    let based = |prefix: &str, digit: fn(&u8) -> bool| {
        unsigned
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.as_bytes().iter().all(digit))
    };
    let grouped = unsigned.contains('_') && first.is_ascii_digit() && {
        let without: String = unsigned.chars().filter(|c| *c != '_').collect();
        is_float(&without)
    };
    let leading_zero = first == b'0' && unsigned.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    let other_base = based("0x", u8::is_ascii_hexdigit)
        || based("0o", |b| matches!(b, b'0'..=b'7'))
        || based("0b", |b| matches!(b, b'0' | b'1'));
    if grouped || other_base || (leading_zero && is_float(unsigned)) {
        return Content::Ambiguous(text.to_owned());
    }
    if digits(unsigned) {
        let plain = text.strip_prefix('+').unwrap_or(text);
        let integer =
            plain.parse::<u64>().map(Number::from).or_else(|_| plain.parse::<i64>().map(Number::from));
        return integer.map_or_else(|_| Content::Ambiguous(text.to_owned()), Content::Number);
    }
    if is_float(unsigned) {
        let float = text.parse::<f64>().ok().and_then(Number::from_f64);
        return float.map_or_else(|| Content::Ambiguous(text.to_owned()), Content::Number);
    }
    Content::Text(text.to_owned())
}

/// `( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`
fn is_float(text: &str) -> bool {
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent = exponent.map(|e| e.strip_prefix(['-', '+']).unwrap_or(e));
    digits(whole)
        && digits(decimals)
        && !(whole.is_empty() && decimals.is_empty())
        && exponent.is_none_or(|e| !e.is_empty() && digits(e))
}

/// Writes one document: the same tree gives the same bytes, always.
pub fn write(node: &Node) -> String {
    let mut out = String::new();
    match &node.content {
        Content::Map(entries) if !entries.is_empty() => write_map(&mut out, entries, 0, false),
        Content::List(items) if !items.is_empty() => write_list(&mut out, items, 0, false),
        _ => {
            write_scalar(&mut out, node);
            out.push('\n');
        }
    }
    out
}

/// A key longer than this is written with `?`, because readers look no further than 1024 characters for
/// the colon.
const KEY_LENGTH_MAX: usize = 128;

/// `inline` when the first key continues a line, behind a dash.
fn write_map(out: &mut String, entries: &[(String, Node)], indent: usize, inline: bool) {
    for (at, (key, node)) in entries.iter().enumerate() {
        if at > 0 || !inline {
            push_indent(out, indent);
        }
        if key.chars().count() > KEY_LENGTH_MAX {
            out.push_str("? ");
            write_text(out, key);
            out.push('\n');
            push_indent(out, indent);
        } else {
            write_text(out, key);
        }
        out.push(':');
        match &node.content {
            Content::Map(entries) if !entries.is_empty() => {
                out.push('\n');
                write_map(out, entries, indent + 2, false);
            }
            Content::List(items) if !items.is_empty() => {
                out.push('\n');
                write_list(out, items, indent + 2, false);
            }
            _ => {
                out.push(' ');
                write_scalar(out, node);
                out.push('\n');
            }
        }
    }
}

fn write_list(out: &mut String, items: &[Node], indent: usize, inline: bool) {
    for (at, node) in items.iter().enumerate() {
        if at > 0 || !inline {
            push_indent(out, indent);
        }
        out.push_str("- ");
        match &node.content {
            Content::Map(entries) if !entries.is_empty() => write_map(out, entries, indent + 2, true),
            Content::List(items) if !items.is_empty() => write_list(out, items, indent + 2, true),
            _ => {
                write_scalar(out, node);
                out.push('\n');
            }
        }
    }
}

fn push_indent(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn write_scalar(out: &mut String, node: &Node) {
    match &node.content {
        Content::Null => out.push_str("null"),
        Content::Boolean(value) => out.push_str(if *value { "true" } else { "false" }),
        Content::Number(number) => write_number(out, number),
        Content::Text(text) | Content::Ambiguous(text) => write_text(out, text),
        Content::List(_) => out.push_str("[]"),
        Content::Map(_) => out.push_str("{}"),
    }
}

/// YAML 1.1 wants a dot in a float and a sign in its exponent; JSON and YAML 1.2 do not mind them.
fn write_number(out: &mut String, number: &Number) {
    let text = number.to_string();
    match text.split_once('e') {
        None => out.push_str(&text),
        Some((mantissa, exponent)) => {
            let dot = if mantissa.contains('.') { "" } else { ".0" };
            let sign = if exponent.starts_with(['-', '+']) { "" } else { "+" };
            write!(out, "{mantissa}{dot}e{sign}{exponent}").expect("a string takes every write");
        }
    }
}

fn write_text(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') =>
            {
                write!(out, "\\u{:04x}", c as u32).expect("a string takes every write");
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Whether every reader, old or new, takes it for this very text without quotes. Narrow on purpose.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 10] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan"];
    let body = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'/');
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(body)
        && !WORDS.iter().any(|word| word.eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &str) -> Content {
        read(text.as_bytes()).unwrap().content
    }

    #[track_caller]
    fn refused(text: &str, line: u32, column: u32, word: &str) {
        let error = read(text.as_bytes()).expect_err(text);
        assert_eq!((error.line, error.column), (line, column), "{error}");
        assert!(error.message.contains(word), "{error}");
    }

    #[test]
    fn dm_034_plain_scalars_are_typed_and_quoted_ones_are_text() {
        let number = |n: u64| Content::Number(n.into());
        let double = |n: f64| Content::Number(Number::from_f64(n).unwrap());
        let text = |t: &str| Content::Text(t.into());
        for (written, wanted) in [
            ("true", Content::Boolean(true)),
            ("\"true\"", text("true")),
            ("'true'", text("true")),
            ("no", text("no")),
            ("on", text("on")),
            ("1.0.9", text("1.0.9")),
            ("\"120\"", text("120")),
            ("120", number(120)),
            ("+120", number(120)),
            ("0", number(0)),
            ("18446744073709551615", number(u64::MAX)),
            ("-9223372036854775808", Content::Number(i64::MIN.into())),
            ("1.5", double(1.5)),
            ("-.5", double(-0.5)),
            ("1e3", double(1000.0)),
            ("8m30s", text("8m30s")),
            ("5Gi", text("5Gi")),
            ("12:30:45", text("12:30:45")),
            ("2024-01-01", text("2024-01-01")),
            ("1.2.1 ", text("1.2.1")),
            ("~", Content::Null),
            ("null", Content::Null),
            ("", Content::Null),
            ("!!str 010", text("010")),
            ("-", Content::List(vec![Node { content: Content::Null, line: 1, column: 2 }])),
            ("a_b", text("a_b")),
            ("1_a", text("1_a")),
            ("0x", text("0x")),
            (".", text(".")),
            ("1e", text("1e")),
        ] {
            assert_eq!(content(written), wanted, "{written}");
        }
    }

    /// YAML 1.1, YAML 1.2 and JSON readers see different values here, so nobody should have to guess.
    #[test]
    fn scalars_that_readers_disagree_about_keep_their_text() {
        for written in [
            "010",
            "-010",
            "00.5",
            "0o10",
            "0x1F",
            "0b11",
            "1_000",
            ".inf",
            "-.INF",
            ".nan",
            "18446744073709551616",
            "1e999",
        ] {
            assert_eq!(content(written), Content::Ambiguous(written.into()), "{written}");
        }
    }

    #[test]
    fn slippery_yaml_is_refused_with_its_place() {
        refused("a: 1\nb: 2\na: 3\n", 3, 1, "second time");
        refused("a: !local x\n", 1, 11, "tag");
        refused("a: !!binary x\n", 1, 13, "tag");
        refused("a: 1\n---\nb: 2\n", 2, 1, "second document");
        refused("? [a]\n: b\n", 1, 3, "cannot be a key");
        refused("a: *missing\n", 1, 4, "");
        refused("a: &x [*x]\n", 1, 8, "contains it");
        refused("a: [1, 2\n", 1, 4, "bracket");
        refused("a:\n\tb: 1\n", 2, 2, "");
        let error = read(b"a: b\nc: \xff\xfe\n").unwrap_err();
        assert_eq!((error.line, error.message.contains("UTF-8")), (2, true));
        let error = read(&vec![b' '; SIZE_MAX + 1]).unwrap_err();
        assert!(error.message.contains("smaller"));
    }

    #[test]
    fn bombs_are_disarmed() {
        let mut laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
        for n in 1..10 {
            let row = vec![format!("*a{}", n - 1); 9].join(", ");
            writeln!(laughs, "a{n}: &a{n} [{row}]").unwrap();
        }
        assert!(read(laughs.as_bytes()).unwrap_err().message.contains("too much"));

        let quadratic = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), vec!["*a"; 10_000].join(","));
        assert!(read(quadratic.as_bytes()).unwrap_err().message.contains("too much"));

        assert!(read("[".repeat(10_000).as_bytes()).is_err());
        let deep: String = (0..200).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
        assert!(read(deep.as_bytes()).unwrap_err().message.contains("deep"));
    }

    #[test]
    fn aliases_and_merge_keys_are_resolved() {
        let node =
            read(b"a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 4}]}\nd: {\"<<\": 5}\n").unwrap();
        let wanted = serde_json::json!({
            "a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2, "z": 4}, "d": {"<<": 5}
        });
        assert_eq!(node.to_value(), wanted);
    }

    #[test]
    fn a_value_stands_where_its_key_does() {
        let node = read("\u{feff}a:\n  b:\n    - c: 1\n    - d\n".as_bytes()).unwrap();
        assert_eq!(node.locate("/a/b"), (2, 3));
        assert_eq!(node.locate("/a/b/0/c"), (3, 7));
        assert_eq!(node.locate("/a/b/1"), (4, 7));
        assert_eq!(node.locate("/a/b/7/x"), (2, 3), "the nearest thing that exists");
        assert_eq!(node.locate(""), (1, 1));
    }

    #[test]
    fn ambiguous_texts_are_quoted() {
        for text in
            ["no", "Y", "off", "NULL", "1.0", "010", "2024-01-01", "12:30", "~", "", "a: b", "=", "<<", "nan"]
        {
            assert_eq!(write(&Node::text(text)), format!("\"{text}\"\n"));
        }
        assert_eq!(write(&Node::text("press-gw/cell-4.x_y")), "press-gw/cell-4.x_y\n");
        assert_eq!(write(&Node::text("a\n\"\\\u{7}")), "\"a\\n\\\"\\\\\\u0007\"\n");
    }

    #[test]
    fn floats_look_like_floats_to_every_reader() {
        for (number, wanted) in [(1.5, "1.5\n"), (4.0, "4.0\n"), (1e20, "1.0e+20\n"), (1.5e-7, "1.5e-7\n")] {
            let node = Node::new(Content::Number(Number::from_f64(number).unwrap()));
            assert_eq!(content(&write(&node)), node.content);
            assert_eq!(write(&node), wanted);
        }
    }
}
