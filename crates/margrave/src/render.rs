//! What a person sees: tables that fit the terminal, words, and JSON for programs.
//!
//! Data goes to standard output, words to standard error. A state is always a word; colour only helps, and
//! only on a terminal, and not when NO_COLOR is set. What is not read by a terminal is never wrapped or cut.

use std::io::{self, IsTerminal, Write};

use comfy_table::{Attribute, Cell, ColumnConstraint, ContentArrangement, Table as Grid};
use jiff::Timestamp;
use serde::Serialize;

use crate::exit::Result;

/// Below this a column of prose is no longer readable, and less important columns give way.
const FLEXIBLE_WIDTH_MIN: usize = 16;

/// Where output goes and how it looks there.
#[derive(Debug, Clone)]
pub(crate) struct Screen {
    pub(crate) json: bool,
    /// The terminal's width, when standard output is a terminal.
    pub(crate) width: Option<u16>,
    colour: bool,
}

impl Screen {
    pub(crate) fn new(json: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        // By convention a set NO_COLOR counts whatever its value, unless it is empty.
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Screen {
            json,
            width: if terminal { Some(Grid::new().width().unwrap_or(80)) } else { None },
            colour: terminal && wanted,
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.width.is_some()
    }

    /// One line of data.
    pub(crate) fn data(&self, line: impl std::fmt::Display) -> Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()?;
        Ok(())
    }

    /// One line for a person. That standard error is closed is nobody's loss.
    pub(crate) fn words(&self, line: impl std::fmt::Display) {
        let _closed = writeln!(io::stderr().lock(), "{line}");
    }

    /// A whole value, for programs.
    pub(crate) fn object<T: Serialize>(&self, value: &T) -> Result<()> {
        let text = serde_json::to_string_pretty(value).expect("operator bodies have text keys only");
        self.data(text)
    }

    /// One value of a stream: one line each.
    pub(crate) fn object_line<T: Serialize>(&self, value: &T) -> Result<()> {
        let text = serde_json::to_string(value).expect("operator bodies have text keys only");
        self.data(text)
    }

    pub(crate) fn table(&self, table: &Table) -> Result<()> {
        for line in self.table_lines(table) {
            self.data(line)?;
        }
        Ok(())
    }

    pub(crate) fn table_lines(&self, table: &Table) -> Vec<String> {
        table.lines(self.width, self.colour)
    }

    /// A heading above a table or a list.
    pub(crate) fn heading(&self, text: &str) -> Result<()> {
        self.data("")?;
        self.data(self.bold(text))
    }

    pub(crate) fn bold(&self, text: &str) -> String {
        if self.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A state or condition in its colour.
    pub(crate) fn state(&self, word: &str) -> String {
        match (self.colour, Tone::of(word)) {
            (true, Some(tone)) => format!("\x1b[{}m{word}\x1b[0m", tone.code()),
            _ => word.to_owned(),
        }
    }

    /// Names and values below one another. Values that do not fit are wrapped, aligned with their column.
    pub(crate) fn facts(&self, facts: &[(&str, String)]) -> Result<()> {
        let mut table = Table::bare(&[Column::fixed(""), Column::flexible("")]);
        for (name, value) in facts {
            table.row([Field::plain(format!("{name}:")), Field::state_or_plain(value)]);
        }
        self.table(&table)
    }
}

/// What a word says about how things stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tone {
    Good,
    Moving,
    Bad,
    Quiet,
}

impl Tone {
    fn of(word: &str) -> Option<Tone> {
        Some(match word {
            "INSTALLED" | "converged" | "accepted" | "installed" => Tone::Good,
            "PENDING" | "INSTALLING" | "UPDATING" | "ROLLINGBACK" | "DELETING" | "pending" | "installing"
            | "removing" => Tone::Moving,
            "FAILED" | "failed" => Tone::Bad,
            "DELETED" | "silent" | "retired" | "removed" => Tone::Quiet,
            _ => return None,
        })
    }

    fn code(self) -> u8 {
        match self {
            Tone::Good => 32,
            Tone::Moving => 33,
            Tone::Bad => 31,
            Tone::Quiet => 90,
        }
    }

    fn colour(self) -> comfy_table::Color {
        match self {
            Tone::Good => comfy_table::Color::DarkGreen,
            Tone::Moving => comfy_table::Color::DarkYellow,
            Tone::Bad => comfy_table::Color::DarkRed,
            Tone::Quiet => comfy_table::Color::DarkGrey,
        }
    }
}

/// A column and what may happen to it on a narrow terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    title: &'static str,
    flexible: bool,
    optional: bool,
}

impl Column {
    /// Names and states: never broken while there is any other way.
    pub(crate) const fn fixed(title: &'static str) -> Self {
        Column { title, flexible: false, optional: false }
    }

    /// Prose: wrapped to what is left.
    pub(crate) const fn flexible(title: &'static str) -> Self {
        Column { title, flexible: true, optional: false }
    }

    /// Left out where it does not fit; the last such column goes first.
    pub(crate) const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }
}

/// One cell: a text without control characters.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    text: String,
    tone: Option<Tone>,
}

impl Field {
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Field { text: printable(&text.into()), tone: None }
    }

    pub(crate) fn state(word: &str) -> Self {
        Field { text: printable(word), tone: Tone::of(word) }
    }

    fn state_or_plain(text: &str) -> Self {
        Field::state(text)
    }
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Field::plain(text)
    }
}

impl From<&str> for Field {
    fn from(text: &str) -> Self {
        Field::plain(text)
    }
}

/// Names and messages come from devices and vendors: none of them may move the cursor or ring the bell.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

pub(crate) struct Table {
    columns: Vec<Column>,
    header: bool,
    rows: Vec<Vec<Field>>,
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Self {
        Table { columns: columns.to_vec(), header: true, rows: Vec::new() }
    }

    fn bare(columns: &[Column]) -> Self {
        Table { header: false, ..Table::new(columns) }
    }

    pub(crate) fn row<const N: usize>(&mut self, fields: [Field; N]) {
        assert_eq!(N, self.columns.len(), "a row has a field for each column");
        self.rows.push(fields.into());
    }

    /// The table as lines. With a width none is longer, as long as each column can have one character.
    pub(crate) fn lines(&self, width: Option<u16>, colour: bool) -> Vec<String> {
        let shown = self.columns_for(width);
        let fits = width.is_none_or(|width| self.width_min(&shown) <= usize::from(width));
        let mut grid = Grid::new();
        grid.force_no_tty().load_style(comfy_table::presets::NOTHING);
        if colour {
            grid.enforce_styling();
        }
        match width {
            Some(width) => grid.set_width(width).set_content_arrangement(ContentArrangement::Dynamic),
            None => grid.set_content_arrangement(ContentArrangement::Disabled),
        };
        if self.header {
            grid.set_header(
                shown.iter().map(|at| Cell::new(self.columns[*at].title).add_attribute(Attribute::Bold)),
            );
        }
        for row in &self.rows {
            let cells = shown.iter().map(|at| {
                let field = &row[*at];
                let cell = Cell::new(&field.text);
                match field.tone {
                    Some(tone) => cell.fg(tone.colour()),
                    None => cell,
                }
            });
            grid.add_row(cells.collect::<Vec<Cell>>());
        }
        let last = shown.len().saturating_sub(1);
        for (place, at) in shown.iter().enumerate() {
            let Some(column) = grid.column_mut(place) else { continue };
            column.set_padding((0, if place == last { 0 } else { 2 }));
            if fits && width.is_some() && !self.columns[*at].flexible {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        grid.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Which columns there is room for.
    fn columns_for(&self, width: Option<u16>) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = width.map(usize::from) else { return shown };
        while self.width_min(&shown) > width {
            let Some(place) = shown.iter().rposition(|at| self.columns[*at].optional) else { break };
            shown.remove(place);
        }
        shown
    }

    fn width_min(&self, shown: &[usize]) -> usize {
        let gaps = 2 * shown.len().saturating_sub(1);
        let columns = shown.iter().map(|at| {
            let column = self.columns[*at];
            let title = if self.header { column.title.chars().count() } else { 0 };
            let content =
                self.rows.iter().map(|row| row[*at].text.chars().count()).max().unwrap_or(0).max(title);
            if column.flexible { content.min(FLEXIBLE_WIDTH_MIN) } else { content }
        });
        gaps + columns.sum::<usize>()
    }
}

/// How long ago a moment was, as people say it; the text itself if it is no time.
pub(crate) fn ago(at: &str, now: Timestamp) -> String {
    let Ok(then) = at.parse::<Timestamp>() else { return at.to_owned() };
    let seconds = now.as_second() - then.as_second();
    match seconds {
        // A clock that is a little ahead is no reason to confuse anybody.
        ..2 => "now".to_owned(),
        2..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// The time without fractions, in UTC as the server told it.
pub(crate) fn clock(at: &str) -> String {
    match at.parse::<Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
        Err(_) => at.to_owned(),
    }
}

pub(crate) fn labels(labels: &std::collections::BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// A parameter's value as an operator would type it.
pub(crate) fn value(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(items) => items.iter().map(self::value).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Bytes as people read them.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

/// `1 device`, `2 devices`.
pub(crate) fn count(number: impl TryInto<u64>, one: &str) -> String {
    match number.try_into() {
        Ok(1) => format!("1 {one}"),
        Ok(number) => format!("{number} {one}s"),
        Err(_) => format!("many {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> Table {
        let mut table = Table::new(&[
            Column::fixed("DEVICE"),
            Column::fixed("CONDITION"),
            Column::fixed("CONTACT").optional(),
            Column::fixed("LABELS").optional(),
            Column::flexible("REASON"),
        ]);
        for number in 1..4 {
            table.row([
                Field::plain(format!("press-{number}")),
                Field::state("failed"),
                "3 s ago".into(),
                "line=press site=nord".into(),
                "andon-board: the image could not be pulled because the registry did not answer in time"
                    .into(),
            ]);
        }
        table
    }

    fn visible(line: &str) -> usize {
        let mut count = 0;
        let mut escape = false;
        for c in line.chars() {
            match c {
                '\x1b' => escape = true,
                'm' if escape => escape = false,
                _ if escape => {}
                _ => count += 1,
            }
        }
        count
    }

    #[test]
    fn a_table_fits_its_terminal_at_every_width() {
        for width in 7..200u16 {
            for colour in [false, true] {
                for line in fleet().lines(Some(width), colour) {
                    assert!(visible(&line) <= usize::from(width), "{width}: {line:?}");
                }
            }
        }
    }

    #[test]
    fn names_and_states_stay_whole_on_a_narrow_terminal() {
        for width in 40..120u16 {
            let lines = fleet().lines(Some(width), false);
            assert!(
                lines.iter().filter(|line| line.starts_with("press-") && line.contains("failed")).count()
                    == 3,
                "{lines:#?}"
            );
        }
    }

    #[test]
    fn less_important_columns_give_way_last_first() {
        let header = |width| fleet().lines(Some(width), false)[0].clone();
        assert!(header(100).contains("LABELS") && header(100).contains("CONTACT"));
        assert!(!header(55).contains("LABELS") && header(55).contains("CONTACT"));
        assert!(!header(40).contains("CONTACT") && header(40).contains("REASON"));
    }

    #[test]
    fn what_no_terminal_reads_is_plain_and_whole() {
        let lines = fleet().lines(None, false);
        assert_eq!(lines.len(), 4);
        assert!(lines[1].ends_with("did not answer in time"), "{lines:?}");
        assert!(!lines.concat().contains('\x1b'));
    }

    #[test]
    fn colour_adds_to_the_word_and_never_replaces_it() {
        let coloured = fleet().lines(Some(100), true).concat();
        assert!(coloured.contains('\x1b') && coloured.contains("failed"));
        assert!(!fleet().lines(Some(100), false).concat().contains('\x1b'));
    }

    #[test]
    fn no_text_from_outside_reaches_the_terminal_as_a_command() {
        let mut table = Table::new(&[Column::fixed("A")]);
        table.row([Field::plain("x\x1b[2Jy\nz\u{9b}2J")]);
        let text = table.lines(None, false).join("|");
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }

    #[test]
    fn times_are_said_as_people_say_them() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        for (at, said) in [
            ("2026-11-15T12:00:05Z", "now"),
            ("2026-11-15T11:59:30Z", "30 s ago"),
            ("2026-11-15T11:50:00Z", "10 min ago"),
            ("2026-11-15T02:00:00Z", "10 h ago"),
            ("2026-11-01T12:00:00Z", "14 days ago"),
            ("soon", "soon"),
        ] {
            assert_eq!(ago(at, now), said);
        }
        assert_eq!(clock("2026-11-15T12:00:00.123Z"), "2026-11-15 12:00:00Z");
    }
}
