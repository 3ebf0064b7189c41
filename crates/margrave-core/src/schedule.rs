//! When a device may talk to its server, and when it may change what runs.
//!
//! Set at the server, kept on the device, and followed there without the server. Times of the week are in a time zone,
//! so that they stay where people live through changes of daylight saving; they are written as text, the same
//! everywhere: `mon-fri 06:00-22:00 Europe/Berlin`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::moment::Moment;

mod choice;

pub use choice::{Choice, InvalidReach, Reach, conflict, effective};

/// What operators set for a device; what is not set is as usual.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Schedule {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
    /// When the device may talk; at any time when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hours: Vec<Weekly>,
    /// When nobody can be reached, and nobody is tried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub downtime: Vec<Downtime>,
    /// When it may change what runs: at any time when not set, and never when none of them can be understood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<Weekly>>,
    /// Bytes are dear: reports wait for the next poll, and downloads for the window.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub saver: bool,
    /// What others did to what runs is told, and not undone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub leaves_drift: bool,
    /// Images that the device pulled itself go once no deployment needs them any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub removes_images: bool,
    /// The longest that somebody at the device may hold changes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_max: Option<Duration>,
}

/// How often a device asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poll {
    pub every: Duration,
    /// Whether the server may hold a poll open until there is news.
    pub wait: bool,
}

pub const POLL_EVERY_MIN: Duration = Duration::from_secs(5);
/// With what a device adds by itself, less than a day: a longer pause is taken for a clock that was set back.
pub const POLL_EVERY_MAX: Duration = Duration::from_secs(12 * 3600);
pub const HOLD_MAX_MAX: Duration = Duration::from_secs(31 * 24 * 3600);
/// Of each kind; more than any week needs.
pub const SPANS_MAX: usize = 32;
/// A device that is away for longer is put away, not down.
pub const DOWNTIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// No clock before 2020 is right: it has no battery and has not heard the time yet.
pub const CLOCK_SENSIBLE: Moment = Moment(1_577_836_800_000);
/// Openings that are looked at to find the next; rules that shut each other out for longer are no rules.
const OPENINGS_TRIED_MAX: usize = 64;

/// Part of certain days of each week, in a time zone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Weekly {
    /// One bit a day, Monday first.
    days: u8,
    from: Minute,
    /// Not after `from`: on the next day.
    to: Minute,
    zone: TimeZone,
}

/// Since midnight; 24:00 is one, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Minute(u16);

/// A time without contact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Downtime {
    Once { from: Moment, to: Moment },
    Weekly(Weekly),
}

/// Why a text is no time of the week, or no downtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpan {
    #[error(
        "write it like `mon-fri 06:00-22:00 Europe/Berlin`: days, times, and a time zone if it is not UTC"
    )]
    Shape,
    #[error("{0:?} are no days; write `daily`, `mon-fri` or `sat,sun`")]
    Days(String),
    #[error("{0:?} is no time; write it like 06:00, to the minute")]
    Time(String),
    #[error("the time zone {0:?} is not known; write it like Europe/Berlin")]
    Zone(String),
    #[error(
        "write a downtime like `2026-12-24T12:00Z/2026-12-27T06:00Z`, its end after its beginning and at most a year later, or \
         like a time of the week"
    )]
    Interval,
}

/// Why parts make no schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSchedule {
    #[error(
        "a device asks every 5 seconds at most, and every 12 hours at least; the time is in whole seconds"
    )]
    Poll,
    #[error("at most {SPANS_MAX} hours, downtimes and windows each")]
    TooMany,
    #[error(
        "these hours and downtimes leave no time to talk in any week; the device could never be reached again"
    )]
    Silent,
    #[error("changes are held back for 31 days at most, and the time is in whole seconds")]
    HoldMax,
}

/// Whether something may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Until then, as far as is known.
    Open(Option<Moment>),
    /// Until then, if it opens again at all.
    Closed(Option<Moment>),
}

impl Gate {
    pub fn is_open(self) -> bool {
        matches!(self, Gate::Open(_))
    }
}

/// Whether it is one of these times; any time is, where there are none. Without a clock nobody knows.
pub fn within(windows: Option<&[Weekly]>, now: Moment) -> Gate {
    let Some(windows) = windows else { return Gate::Open(None) };
    if now < CLOCK_SENSIBLE {
        return Gate::Closed(None);
    }
    match end_within(windows, now) {
        Some(end) => Gate::Open(Some(end)),
        None => Gate::Closed(start_after(windows, now)),
    }
}

/// So far ahead a time is looked for that two have in common: until then daylight saving has moved each of them.
const MEETING_WITHIN: Duration = Duration::from_secs(366 * 24 * 3600);

/// Whether there is a moment from `now` on that is in both of these times.
pub fn meet(one: &[Weekly], other: &[Weekly], now: Moment) -> bool {
    let mut at = now.max(CLOCK_SENSIBLE);
    let last = at.after(MEETING_WITHIN);
    // Each round goes to the next beginning of a window, so there are at most some hundreds.
    while at <= last {
        let next = match (within(Some(one), at), within(Some(other), at)) {
            (Gate::Open(_), Gate::Open(_)) => return true,
            (Gate::Closed(next), Gate::Open(_)) | (Gate::Open(_), Gate::Closed(next)) => next,
            (Gate::Closed(one), Gate::Closed(other)) => one.zip(other).map(|(one, other)| one.max(other)),
        };
        match next {
            Some(next) => at = next,
            None => return false,
        }
    }
    false
}

impl Schedule {
    /// At any time, as soon as there is news.
    pub const USUAL: &Schedule = &Schedule {
        poll: None,
        hours: vec![],
        downtime: vec![],
        windows: None,
        saver: false,
        leaves_drift: false,
        removes_images: false,
        hold_max: None,
    };

    /// The same, if a device can live by it.
    pub fn checked(self) -> Result<Schedule, InvalidSchedule> {
        let whole = |time: Duration| time.subsec_nanos() == 0;
        if let Some(Poll { every, .. }) = self.poll
            && !((POLL_EVERY_MIN..=POLL_EVERY_MAX).contains(&every) && whole(every))
        {
            return Err(InvalidSchedule::Poll);
        }
        if self.hold_max.is_some_and(|max| max > HOLD_MAX_MAX || !whole(max)) {
            return Err(InvalidSchedule::HoldMax);
        }
        let windows = self.windows.as_ref().map_or(0, Vec::len);
        if [self.hours.len(), self.downtime.len(), windows].into_iter().any(|count| count > SPANS_MAX) {
            return Err(InvalidSchedule::TooMany);
        }
        // What recurs must leave some time in any week; what comes once passes.
        let recurring = Schedule {
            downtime: self
                .downtime
                .iter()
                .filter(|time| matches!(time, Downtime::Weekly(_)))
                .cloned()
                .collect(),
            ..self.clone()
        };
        if recurring.opening(CLOCK_SENSIBLE).is_none() {
            return Err(InvalidSchedule::Silent);
        }
        Ok(self)
    }

    /// The same without what would make it impossible to follow.
    pub fn livable(self) -> Schedule {
        match self.clone().checked() {
            Ok(schedule) => schedule,
            Err(InvalidSchedule::Silent) => Schedule { hours: vec![], downtime: vec![], ..self },
            Err(_) => {
                let Schedule { windows, leaves_drift, removes_images, .. } = self;
                Schedule { windows, leaves_drift, removes_images, ..Schedule::default() }
            }
        }
    }

    pub fn is_usual(&self) -> bool {
        self == Schedule::USUAL
    }

    /// Whether the device may talk now. Rules that never let it talk are no rules, and neither is a clock that was
    /// never set one to go by: a device that can never be reached cannot be helped either.
    pub fn contact(&self, now: Moment) -> Gate {
        if now < CLOCK_SENSIBLE {
            return Gate::Open(None);
        }
        match self.opening(now) {
            None => Gate::Open(None),
            Some(at) if at > now => Gate::Closed(Some(at)),
            Some(_) => Gate::Open(self.closing(now)),
        }
    }

    /// Whether the device may change what runs. Without a clock nobody knows, so nothing is changed.
    pub fn change(&self, now: Moment) -> Gate {
        within(self.windows.as_deref(), now)
    }

    /// Whether it is a known downtime, and until when.
    pub fn down_until(&self, now: Moment) -> Option<Moment> {
        if now < CLOCK_SENSIBLE {
            return None;
        }
        self.downtime.iter().filter_map(|downtime| downtime.end_within(now)).max()
    }

    /// The first moment from `now` on at which the device may talk.
    pub fn opening(&self, now: Moment) -> Option<Moment> {
        let mut at = now;
        for _ in 0..OPENINGS_TRIED_MAX {
            if let Some(end) = self.downtime.iter().filter_map(|downtime| downtime.end_within(at)).max() {
                at = end;
            } else if self.hours.is_empty() || end_within(&self.hours, at).is_some() {
                return Some(at);
            } else {
                at = start_after(&self.hours, at)?;
            }
        }
        None
    }

    fn closing(&self, now: Moment) -> Option<Moment> {
        let hours = end_within(&self.hours, now);
        let downtime = self.downtime.iter().filter_map(|downtime| downtime.start_after(now)).min();
        [hours, downtime].into_iter().flatten().min()
    }
}

/// The end of what covers `now`; of several, the last.
fn end_within(spans: &[Weekly], now: Moment) -> Option<Moment> {
    spans.iter().filter_map(|span| span.end_within(now)).max()
}

fn start_after(spans: &[Weekly], now: Moment) -> Option<Moment> {
    spans.iter().filter_map(|span| span.start_after(now)).min()
}

impl Downtime {
    fn end_within(&self, now: Moment) -> Option<Moment> {
        match self {
            Downtime::Once { from, to } => (*from <= now && now < *to).then_some(*to),
            Downtime::Weekly(weekly) => weekly.end_within(now),
        }
    }

    fn start_after(&self, now: Moment) -> Option<Moment> {
        match self {
            Downtime::Once { from, .. } => Some(*from).filter(|from| *from > now),
            Downtime::Weekly(weekly) => weekly.start_after(now),
        }
    }
}

impl Weekly {
    fn end_within(&self, now: Moment) -> Option<Moment> {
        // What covers now began today or yesterday, or, where daylight saving moves it, on the evening before its date.
        self.around(now, 1).filter(|(from, to)| *from <= now && now < *to).map(|(_, to)| to).max()
    }

    fn start_after(&self, now: Moment) -> Option<Moment> {
        self.around(now, 8).map(|(from, _)| from).find(|from| *from > now)
    }

    /// Its times from the day before until so many days after `now`, in order. A device asks all day long, so time zones are
    /// asked as little as possible.
    fn around(&self, now: Moment, days: usize) -> impl Iterator<Item = (Moment, Moment)> {
        let today = timestamp(now).map(|at| self.zone.to_datetime(at).date());
        let yesterday = today.and_then(|today| today.yesterday().ok());
        let dates = std::iter::successors(yesterday, |date| date.tomorrow().ok()).take(days + 2);
        dates.filter_map(|date| {
            let day = u8::try_from(date.weekday().to_monday_zero_offset()).ok()?;
            (self.days >> day & 1 == 1).then(|| self.on(date)).flatten()
        })
    }

    /// On one date. A time that a change of daylight saving leaves out is the one after it, and of one that comes
    /// twice the first counts.
    fn on(&self, date: Date) -> Option<(Moment, Moment)> {
        let next = if self.to <= self.from { date.tomorrow().ok()? } else { date };
        let to = self.at(next, self.to)?;
        let from = self.at(date, self.from)?;
        // Its beginning is left out and its end is not: it must not vanish for that.
        let from = if from < to { from } else { Moment(from.0.checked_sub(3_600_000)?) };
        (from < to).then_some((from, to))
    }

    fn at(&self, date: Date, Minute(minute): Minute) -> Option<Moment> {
        let (hour, minute) = (i8::try_from(minute / 60).ok()?, i8::try_from(minute % 60).ok()?);
        let (date, hour) = if hour == 24 { (date.tomorrow().ok()?, 0) } else { (date, hour) };
        let time = Time::new(hour, minute, 0, 0).ok()?;
        let at = self.zone.to_ambiguous_timestamp(date.to_datetime(time)).compatible().ok()?;
        u64::try_from(at.as_millisecond()).ok().map(Moment)
    }
}

fn timestamp(moment: Moment) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(moment.0).ok()?).ok()
}

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const EVERY_DAY: u8 = 0b111_1111;

fn read_days(text: &str) -> Option<u8> {
    if text == "daily" {
        return Some(EVERY_DAY);
    }
    let day = |name: &str| DAYS.iter().position(|known| *known == name);
    text.split(',').try_fold(0u8, |days, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        // Over the end of the week, too: `fri-mon`.
        let count = (last + 7 - first) % 7;
        Some((0..=count).fold(days, |days, step| days | 1 << ((first + step) % 7)))
    })
}

fn write_days(days: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if days == EVERY_DAY {
        return f.write_str("daily");
    }
    let is_set = |day: usize| days >> day & 1 == 1;
    let mut day = 0;
    let mut separator = "";
    while day < 7 {
        if !is_set(day) {
            day += 1;
            continue;
        }
        let last = (day..7).take_while(|day| is_set(*day)).last().unwrap_or(day);
        match last - day {
            0 => write!(f, "{separator}{}", DAYS[day])?,
            1 => write!(f, "{separator}{},{}", DAYS[day], DAYS[last])?,
            _ => write!(f, "{separator}{}-{}", DAYS[day], DAYS[last])?,
        }
        separator = ",";
        day = last + 1;
    }
    Ok(())
}

impl FromStr for Minute {
    type Err = InvalidSpan;

    fn from_str(text: &str) -> Result<Minute, InvalidSpan> {
        let wrong = || InvalidSpan::Time(bounded(text));
        let (hour, minute) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| {
            text.parse::<u16>()
                .ok()
                .filter(|_| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let (hour, minute) = number(hour).zip(number(minute)).ok_or_else(wrong)?;
        let valid = (hour < 24 && minute < 60) || (hour == 24 && minute == 0);
        if valid { Ok(Minute(hour * 60 + minute)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl FromStr for Weekly {
    type Err = InvalidSpan;

    fn from_str(text: &str) -> Result<Weekly, InvalidSpan> {
        let mut words = text.split_ascii_whitespace();
        let (Some(days), Some(times), zone, None) = (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(InvalidSpan::Shape);
        };
        let days = read_days(&days.to_ascii_lowercase()).ok_or_else(|| InvalidSpan::Days(bounded(days)))?;
        let (from, to) = times.split_once('-').ok_or_else(|| InvalidSpan::Time(bounded(times)))?;
        let (from, to): (Minute, Minute) = (from.parse()?, to.parse()?);
        if from.0 == 24 * 60 {
            return Err(InvalidSpan::Time(bounded(times)));
        }
        let name = zone.unwrap_or("UTC");
        let zone = TimeZone::get(name).map_err(|_| InvalidSpan::Zone(bounded(name)))?;
        // A zone without a name could not be told to a device.
        if zone.iana_name().is_none() {
            return Err(InvalidSpan::Zone(bounded(name)));
        }
        Ok(Weekly { days, from, to, zone })
    }
}

impl fmt::Display for Weekly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_days(self.days, f)?;
        write!(f, " {}-{} {}", self.from, self.to, self.zone.iana_name().unwrap_or("UTC"))
    }
}

impl fmt::Debug for Weekly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weekly({self})")
    }
}

impl FromStr for Downtime {
    type Err = InvalidSpan;

    fn from_str(text: &str) -> Result<Downtime, InvalidSpan> {
        // A zone has a slash, too, but no downtime of the week begins with a digit.
        if !text.starts_with(|first: char| first.is_ascii_digit()) {
            return text.parse().map(Downtime::Weekly);
        }
        let (from, to) = text.split_once('/').ok_or(InvalidSpan::Interval)?;
        let moment = |text: &str| {
            let at: Timestamp = text.parse().map_err(|_| InvalidSpan::Interval)?;
            // It is written to the second, and must be the same when it is read again.
            let whole =
                at.as_millisecond() == at.as_second().saturating_mul(1000) && at.subsec_nanosecond() == 0;
            u64::try_from(at.as_millisecond()).map(Moment).ok().filter(|_| whole).ok_or(InvalidSpan::Interval)
        };
        let (from, to) = (moment(from)?, moment(to)?);
        if to <= from || to.since(from) > DOWNTIME_MAX {
            return Err(InvalidSpan::Interval);
        }
        Ok(Downtime::Once { from, to })
    }
}

impl fmt::Display for Downtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Downtime::Once { from, to } => write!(f, "{from}/{to}"),
            Downtime::Weekly(weekly) => weekly.fmt(f),
        }
    }
}

impl TryFrom<String> for Weekly {
    type Error = InvalidSpan;

    fn try_from(text: String) -> Result<Weekly, InvalidSpan> {
        text.parse()
    }
}

impl From<Weekly> for String {
    fn from(weekly: Weekly) -> String {
        weekly.to_string()
    }
}

impl TryFrom<String> for Downtime {
    type Error = InvalidSpan;

    fn try_from(text: String) -> Result<Downtime, InvalidSpan> {
        text.parse()
    }
}

impl From<Downtime> for String {
    fn from(downtime: Downtime) -> String {
        downtime.to_string()
    }
}

/// So much of a wrong text as fits an error.
fn bounded(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests;
