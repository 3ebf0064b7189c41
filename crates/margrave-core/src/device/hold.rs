//! "Not now": somebody at the device, or an operator, holds changes back for a while.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Device;
use crate::moment::Moment;
use crate::schedule::CLOCK_SENSIBLE;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub holder: String,
    pub reason: String,
    /// Since when changes have been held back without a break, by whomever.
    pub since: Moment,
    pub until: Moment,
}

/// The longest, where the server says nothing else.
pub const HOLD_MAX_USUAL: Duration = Duration::from_secs(24 * 3600);
/// Holders at the same time; each is an application on this device, or a person.
pub const HOLDS_MAX: usize = 16;
pub const HOLDER_LENGTH_MAX: usize = 60;
const REASON_LENGTH_MAX: usize = 200;
/// How long changes have the way before anybody may hold them back again, once they were for the longest time. Without it
/// holders that ask again and again, or in turns, would hold for ever.
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
    #[error("changes were held back for as long as they may be; again from {from} on")]
    Spent { from: Moment },
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
    /// One that begins now, if it may be asked for where `max` is the longest.
    pub fn beginning(
        holder: &str,
        reason: &str,
        length: Duration,
        max: Duration,
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
        if max.is_zero() {
            return Err(HoldRefused::NotAllowed);
        }
        if length > max {
            return Err(HoldRefused::TooLong(max));
        }
        let (holder, reason) = (holder.trim().to_owned(), reason.trim().to_owned());
        Ok(Hold { holder, reason, since: now, until: now.after(length) })
    }

    /// As another device says it, if it can have been said by one.
    pub fn told(holder: &str, reason: &str, since: Moment, until: Moment) -> Option<Hold> {
        let fits = is_line(holder, HOLDER_LENGTH_MAX) && is_line(reason, REASON_LENGTH_MAX) && since <= until;
        fits.then(|| Hold { holder: holder.to_owned(), reason: reason.to_owned(), since, until })
    }

    /// One that began before the clock was set holds on: how much of it is over nobody knows.
    pub fn in_force(&self, now: Moment) -> bool {
        now < self.until || self.is_lost(now)
    }

    /// When it ends, as far as anybody knows: once its time is lost, it lasts as long again at most.
    fn end(&self, now: Moment) -> Moment {
        match self.since > now || self.is_lost(now) {
            true => now.after(self.until.since(self.since)),
            false => self.until,
        }
    }

    /// Whether the clock has lost its time: set back, or set for the first time. A clock that is not set says nothing.
    fn is_lost(&self, now: Moment) -> bool {
        now >= CLOCK_SENSIBLE && (self.since > now || self.since < CLOCK_SENSIBLE)
    }
}

impl std::fmt::Display for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Hold { holder, reason, until, .. } = self;
        write!(f, "by {holder} until {until}: {reason}")
    }
}

impl Device {
    /// The hold that follows from asking for one. Asking again prolongs it, and changes are never held back for longer than
    /// the longest from when that began. Who asks again long before the end keeps what is: that costs no write. Nor does asking
    /// end anything sooner: two who share a name (often the machine's own, `root`) do not know of each other.
    pub fn hold(
        &self,
        holder: &str,
        reason: &str,
        length: Duration,
        now: Moment,
    ) -> Result<Hold, HoldRefused> {
        let hold = self.new_hold(holder, reason, length, now)?;
        let keeps = |before: &&Hold| {
            let stays = before.end(now) > hold.until;
            let is_same = before.reason == hold.reason
                // Since a time to come: the clock was lost twice, and what is left of it is more than its length.
                && before.since <= now
                && before.until <= now.after(length)
                && before.until >= now.after(length * 3 / 4);
            before.holder == hold.holder && (stays || is_same)
        };
        let before = self.holds(now).into_iter().find(keeps).cloned();
        Ok(match before {
            Some(before) if before.end(now) != before.until => {
                Hold { since: now, until: before.end(now), ..before }
            }
            Some(before) => before,
            None => hold,
        })
    }

    /// The same for who means every word of it.
    pub(super) fn new_hold(
        &self,
        holder: &str,
        reason: &str,
        length: Duration,
        now: Moment,
    ) -> Result<Hold, HoldRefused> {
        let max = self.hold_max();
        let hold = Hold::beginning(holder, reason, length, max, now)?;
        if let Some(from) = self.rests_until(now) {
            return Err(HoldRefused::Spent { from });
        }
        let in_force = self.holds(now);
        if in_force.len() >= HOLDS_MAX && in_force.iter().all(|before| before.holder != hold.holder) {
            return Err(HoldRefused::TooMany);
        }
        let known = in_force.iter().filter(|hold| !hold.is_lost(now));
        // One that lies ahead began before the clock was lost.
        let since = known.map(|hold| hold.since).min().unwrap_or(now).min(now);
        Ok(Hold { since, until: hold.until.min(since.after(max)), ..hold })
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

    /// Forgets what is over, and begins a hold anew whose time the clock has lost.
    pub(super) fn tend_holds(&mut self, now: Moment) {
        let max = self.hold_max();
        for hold in &mut self.holds {
            let length = hold.until.since(hold.since).min(max);
            hold.until = hold.since.after(length);
            if hold.is_lost(now) {
                (hold.since, hold.until) = (now, now.after(length));
            }
        }
        self.rest_until = self.rests_until(now);
        let is_unset = now < CLOCK_SENSIBLE;
        let unset_since = self.work.clock_unset_since.filter(|since| *since <= now).unwrap_or(now);
        self.work.clock_unset_since = is_unset.then_some(unset_since);
        // How much of it is over nobody knows, but it has held for as long as any may since then.
        let is_outlasted = is_unset && now.since(unset_since) >= max;
        self.holds.retain(|hold| hold.in_force(now) && !(is_outlasted && hold.since >= CLOCK_SENSIBLE));
    }

    /// Until when changes have the way, because they were held back for as long as they may be.
    fn rests_until(&self, now: Moment) -> Option<Moment> {
        let max = self.hold_max();
        let spent = |hold: &&Hold| !hold.in_force(now) && hold.until.since(hold.since) >= max;
        let ends = self.holds.iter().filter(spent).map(|hold| hold.until.after(REST));
        // Further away than any rest: the clock was set back.
        ends.chain(self.rest_until).filter(|until| now < *until && until.since(now) <= REST).max()
    }
}
