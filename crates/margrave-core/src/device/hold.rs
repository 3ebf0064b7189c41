//! "Not now": somebody at the device holds changes back for a while.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Device;
use crate::moment::Moment;

/// A hold in force, or one that lasted as long as any may and is remembered for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub holder: String,
    pub reason: String,
    pub since: Moment,
    pub until: Moment,
}

/// The longest, where the server says nothing else.
pub const HOLD_MAX_USUAL: Duration = Duration::from_secs(24 * 3600);
/// Holders at the same time; each is an application on this device, or a person.
const HOLDS_MAX: usize = 16;
const HOLDER_LENGTH_MAX: usize = 60;
const REASON_LENGTH_MAX: usize = 200;
/// How long changes have the way before one who held them back for the longest time may do so again. Without it a holder
/// that asks again and again would hold for ever.
const REST: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldRefused {
    #[error("say who holds, in 1 to {HOLDER_LENGTH_MAX} characters on one line")]
    Holder,
    #[error("say why, in 1 to {REASON_LENGTH_MAX} characters on one line")]
    Reason,
    #[error("hold for a second at least")]
    NoTime,
    #[error("changes on this device may be held back for {} at most", spoken(*.0))]
    TooLong(Duration),
    #[error("changes on this device may not be held back; the server says so")]
    NotAllowed,
    #[error("{holder} has held changes back for as long as anybody may; again from {from} on")]
    Spent { holder: String, from: Moment },
    #[error("{HOLDS_MAX} others hold changes back already")]
    TooMany,
}

fn spoken(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

fn is_line(text: &str, length_max: usize) -> bool {
    !text.trim().is_empty() && text.chars().count() <= length_max && !text.chars().any(char::is_control)
}

impl Hold {
    pub fn in_force(&self, now: Moment) -> bool {
        now < self.until
    }
}

impl Device {
    /// The hold that follows from asking for one. Asking again prolongs it, but never beyond the longest from its beginning.
    pub fn hold(
        &self,
        holder: &str,
        reason: &str,
        length: Duration,
        now: Moment,
    ) -> Result<Hold, HoldRefused> {
        if !is_line(holder, HOLDER_LENGTH_MAX) {
            return Err(HoldRefused::Holder);
        }
        if !is_line(reason, REASON_LENGTH_MAX) {
            return Err(HoldRefused::Reason);
        }
        if length < Duration::from_secs(1) {
            return Err(HoldRefused::NoTime);
        }
        let max = self.hold_max();
        if max.is_zero() {
            return Err(HoldRefused::NotAllowed);
        }
        if length > max {
            return Err(HoldRefused::TooLong(max));
        }
        let (holder, reason) = (holder.trim().to_owned(), reason.trim().to_owned());
        let before = self.holds.iter().find(|hold| hold.holder == holder);
        let since = match before {
            Some(hold) if hold.in_force(now) => hold.since,
            Some(hold) if now < hold.until.after(REST) && hold.until.since(hold.since) >= max => {
                return Err(HoldRefused::Spent { holder, from: hold.until.after(REST) });
            }
            _ => now,
        };
        if before.is_none() && self.holds.len() >= HOLDS_MAX {
            return Err(HoldRefused::TooMany);
        }
        Ok(Hold { holder, reason, since, until: now.after(length).min(since.after(max)) })
    }

    /// Those in force, the longest first.
    pub fn holds(&self, now: Moment) -> Vec<&Hold> {
        let mut holds: Vec<&Hold> = self.holds.iter().filter(|hold| hold.in_force(now)).collect();
        holds.sort_by_key(|hold| std::cmp::Reverse(hold.until));
        holds
    }

    pub fn hold_max(&self) -> Duration {
        self.schedule.hold_max.unwrap_or(HOLD_MAX_USUAL)
    }

    pub(super) fn held(&mut self, hold: Hold) {
        self.holds.retain(|known| known.holder != hold.holder);
        self.holds.push(hold);
    }

    pub(super) fn released(&mut self, holder: Option<String>) {
        self.holds.retain(|hold| holder.as_ref().is_some_and(|holder| hold.holder != *holder));
    }

    /// Forgets what is over, and lets no clock make a hold longer than it was.
    pub(super) fn tend_holds(&mut self, now: Moment) {
        let max = self.hold_max();
        self.holds.retain(|hold| now < hold.until.after(REST));
        for hold in &mut self.holds {
            let length = hold.until.since(hold.since);
            if hold.since > now {
                // The clock was set back.
                (hold.since, hold.until) = (now, now.after(length));
            }
            if length > max {
                hold.until = hold.since.after(max);
            }
        }
    }
}
