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
