//! Time as data. The core is told what time it is; it never asks.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    pub fn after(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// How long from `earlier` until this moment; zero if a clock jumped back in between.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Moment {
    /// As RFC 3339 writes it, with all that is known of it; a time beyond what can be written is the last that can.
    pub fn to_rfc3339(self) -> String {
        let millis = i64::try_from(self.0).unwrap_or(i64::MAX);
        jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX).to_string()
    }

    /// Reads what [`Moment::to_rfc3339`] wrote, or anybody else's RFC 3339 since 1970.
    pub fn from_rfc3339(text: &str) -> Option<Moment> {
        let at: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(at.as_millisecond()).ok().map(Moment)
    }
}

/// Why a text says no moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no moment; write it like 2026-11-16T12:00:00Z, 2026-11-16 or `2h ago`")]
pub struct InvalidMoment(String);

/// What people count time in, short, and in a word.
const UNITS: [(&str, &str, u64); 5] = [
    ("s", "second", 1),
    ("m", "minute", 60),
    ("h", "hour", 3600),
    ("d", "day", 24 * 3600),
    ("w", "week", 7 * 24 * 3600),
];

impl Moment {
    /// As people write it: RFC 3339, a day (its beginning, in UTC), `now`, or so long ago: `30m ago`, `2 days ago`.
    pub fn read(text: &str, now: Moment) -> Result<Moment, InvalidMoment> {
        let text = text.trim();
        let invalid = || InvalidMoment(text.chars().take(60).collect());
        if text == "now" {
            return Ok(now);
        }
        if let Some(length) = text.strip_suffix("ago") {
            let length = length.trim();
            let digits = length.trim_end_matches(|c: char| !c.is_ascii_digit());
            let unit = length[digits.len()..].trim();
            let is_it =
                |short: &str, word: &str| unit == short || unit.strip_suffix('s').unwrap_or(unit) == word;
            let found = UNITS.iter().find(|(short, word, _)| is_it(short, word));
            let (_, _, seconds) = found.ok_or_else(invalid)?;
            let count: u64 = digits.parse().map_err(|_| invalid())?;
            let millis = count.checked_mul(seconds * 1000).ok_or_else(invalid)?;
            return now.0.checked_sub(millis).map(Moment).ok_or_else(invalid);
        }
        let day = text.parse::<jiff::civil::Date>().ok().filter(|_| text.len() == 10);
        let at = match day {
            Some(day) => Moment::from_rfc3339(&format!("{day}T00:00:00Z")),
            None => Moment::from_rfc3339(text),
        };
        at.ok_or_else(invalid)
    }
}

/// As RFC 3339 writes it, to the second.
impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = i64::try_from(self.0).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
        match at {
            Some(at) => write!(f, "{at:.0}"),
            None => f.write_str("a time without a date"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_people_write_them() {
        let now = Moment::from_rfc3339("2026-11-17T12:00:00Z").unwrap();
        let read = |text: &str| Moment::read(text, now).map(Moment::to_rfc3339);
        for (text, expected) in [
            ("now", "2026-11-17T12:00:00Z"),
            ("2h ago", "2026-11-17T10:00:00Z"),
            (" 90s ago ", "2026-11-17T11:58:30Z"),
            ("1 d ago", "2026-11-16T12:00:00Z"),
            ("1 minute ago", "2026-11-17T11:59:00Z"),
            ("2 hours ago", "2026-11-17T10:00:00Z"),
            ("2026-11-16", "2026-11-16T00:00:00Z"),
            ("2026-11-16T13:00:00+02:00", "2026-11-16T11:00:00Z"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(expected), "{text}");
        }
        for wrong in [
            "",
            "ago",
            "h ago",
            "2 years ago",
            "2 ss ago",
            "-1h ago",
            "99999999999999999999h ago",
            "90000w ago",
            "monday",
            "2026-13-01",
            "1969-12-31",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
