//! The table that is printed, and whether every goal in it is met.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

#[derive(Default)]
pub(super) struct Table {
    rows: Vec<[String; 3]>,
    missed: bool,
}

impl Table {
    pub(super) fn row(&mut self, what: impl Into<String>, value: impl Into<String>, note: &str) {
        let row = [what.into(), value.into(), note.to_owned()];
        eprintln!("{}: {} {}", row[0], row[1], row[2]);
        self.rows.push(row);
    }

    pub(super) fn judged(
        &mut self,
        what: impl Into<String>,
        value: impl Into<String>,
        goal: &str,
        met: bool,
    ) {
        let verdict = if met { "met" } else { "MISSED" };
        self.missed |= !met;
        self.row(what, value, &format!("{goal}: {verdict}"));
    }

    pub(super) fn all_met(&self) -> bool {
        !self.missed
    }

    pub(super) fn text(&self) -> String {
        let mut text = "| figure | measured | goal |\n|---|---|---|\n".to_owned();
        for [what, value, note] in &self.rows {
            writeln!(text, "| {what} | {value} | {note} |").expect("text takes every write");
        }
        text
    }

    pub(super) fn write(&self, path: &Path, heading: &str) -> Result<()> {
        let text = format!("{heading}\n\n{}", self.text());
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}

pub(super) fn mib(bytes: u64) -> String {
    format!("{:.2} MiB ({:.2} MB)", bytes as f64 / (1 << 20) as f64, bytes as f64 / 1e6)
}

pub(super) fn millis(duration: Duration) -> String {
    let millis = duration.as_secs_f64() * 1000.0;
    if millis < 10.0 { format!("{millis:.2} ms") } else { format!("{millis:.0} ms") }
}

/// Of several rounds; the upper one of an even number.
pub(super) fn median<T: PartialOrd + Copy>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len() / 2).copied()
}
