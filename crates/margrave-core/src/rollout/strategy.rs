//! How a change of a deployment goes through its devices: the strategy, as operators choose it.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// In which steps devices are given what is new, what they must prove before the next step, and what is done about
/// those that fail. The usual is all at once.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Strategy {
    /// A first batch of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// Sizes, in order; the last one repeats until nobody is left. None is one batch of all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<Amount>,
    /// Labels whose values put devices in order; within the same values, and without any, it is their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<String>,
    /// How long a batch has to be good before the next begins.
    pub soak: Duration,
    /// How many devices of one site may be unavailable because of us at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_max: Option<Amount>,
    /// Of a batch, so many must have it installed.
    pub threshold: Percent,
    pub on_failure: OnFailure,
    /// It also counts as failed once so many devices have, in all batches together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<NonZeroU32>,
}

/// The first devices to get something new.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "KeptCanary", into = "KeptCanary")]
pub struct Canary {
    pub size: Amount,
    /// Devices with all these labels come first.
    pub labels: BTreeMap<String, String>,
    /// How long they have to be good, where that is not as long as for every batch.
    pub soak: Option<Duration>,
}

/// A canary as it was kept before it could be watched for as long as the others: no time meant that none was said, and
/// means so still. What is kept of it says the same to the byte; only who is not to be watched at all is marked.
#[derive(Clone, Serialize, Deserialize)]
struct KeptCanary {
    size: Amount,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    soak: Duration,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unwatched: bool,
}

impl From<KeptCanary> for Canary {
    fn from(KeptCanary { size, labels, soak, unwatched }: KeptCanary) -> Canary {
        Canary { size, labels, soak: (unwatched || !soak.is_zero()).then_some(soak) }
    }
}

impl From<Canary> for KeptCanary {
    fn from(Canary { size, labels, soak }: Canary) -> KeptCanary {
        let unwatched = soak.is_some_and(|soak| soak.is_zero());
        KeptCanary { size, labels, soak: soak.unwrap_or_default(), unwatched }
    }
}

/// So many, or such a part of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Amount {
    Count(NonZeroU32),
    Percent(Percent),
}

/// From 1 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Percent(u8);

/// What is done when too many devices failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// Nobody further gets it, until a person says so.
    #[default]
    Halt,
    /// The deployment goes back to the revision before.
    Revert,
}

/// Sizes that a strategy lists, and labels that it orders by.
pub const STEPS_MAX: usize = 32;
/// Whoever waits longer than this between two steps resumes by hand.
pub const SOAK_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// As for labels of devices.
const LABEL_MAX: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write a number of devices, such as 5, or a part of them, such as 10% (1% to 100%)")]
pub struct InvalidAmount;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write a part in percent, from 1% to 100%")]
pub struct InvalidPercent;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what failed is dealt with by `halt` or `revert`")]
pub struct InvalidOnFailure;

/// Why parts make no strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStrategy {
    #[error("at most {STEPS_MAX} sizes of batches, labels to order by, and labels of the first devices")]
    TooMany,
    #[error("a batch is watched for 30 days at most, and the time is in whole seconds")]
    Soak,
    #[error("labels to order by, and those of the first devices, have 1 to {LABEL_MAX} characters")]
    Label,
}

impl Percent {
    pub const ALL: Percent = Percent(100);

    pub fn new(value: u8) -> Option<Percent> {
        (1..=100).contains(&value).then_some(Percent(value))
    }

    /// This part of `whole`, rounded up: of something it is never nothing.
    pub fn of(self, whole: u32) -> u32 {
        let part = (u64::from(whole) * u64::from(self.0)).div_ceil(100);
        u32::try_from(part).unwrap_or(u32::MAX)
    }

    /// The same, rounded down.
    fn within(self, whole: u32) -> u32 {
        u32::try_from(u64::from(whole) * u64::from(self.0) / 100).unwrap_or(u32::MAX)
    }
}

impl Default for Percent {
    fn default() -> Self {
        Percent::ALL
    }
}

impl Amount {
    /// The size of a step among `whole` devices; at least one.
    pub fn of(self, whole: u32) -> u32 {
        match self {
            Amount::Count(count) => count.get(),
            Amount::Percent(percent) => percent.of(whole).max(1),
        }
    }

    /// The most that may be taken of `whole` devices: rounded down, and at least one, or nothing would ever move.
    pub fn at_most(self, whole: u32) -> u32 {
        match self {
            Amount::Count(count) => count.get(),
            Amount::Percent(percent) => percent.within(whole).max(1),
        }
    }
}

impl OnFailure {
    pub fn as_str(self) -> &'static str {
        match self {
            OnFailure::Halt => "halt",
            OnFailure::Revert => "revert",
        }
    }
}

impl Strategy {
    /// The same, if it can be followed.
    pub fn checked(self) -> Result<Strategy, InvalidStrategy> {
        let canary = self.canary.as_ref();
        let labels = canary.map_or(0, |canary| canary.labels.len());
        if [self.batches.len(), self.order.len(), labels].into_iter().any(|count| count > STEPS_MAX) {
            return Err(InvalidStrategy::TooMany);
        }
        let soaks = [Some(self.soak), canary.and_then(|canary| canary.soak)];
        if soaks.into_iter().flatten().any(|soak| soak > SOAK_MAX || soak.subsec_nanos() != 0) {
            return Err(InvalidStrategy::Soak);
        }
        let named = canary.into_iter().flat_map(|canary| canary.labels.keys());
        if self.order.iter().chain(named).any(|key| key.is_empty() || key.len() > LABEL_MAX) {
            return Err(InvalidStrategy::Label);
        }
        Ok(self)
    }

    /// Everybody gets it at once, and nothing is watched for.
    pub fn is_all_at_once(&self) -> bool {
        *self == Strategy::default()
    }

    /// In which batch a place is, when there were `size` devices at the beginning. Places beyond that are those of devices
    /// that came later; sizes do not change because of them, so nobody changes the batch on the way.
    pub fn batch_of(&self, place: u32, size: u32) -> u32 {
        let sizes = self.canary.iter().map(|canary| canary.size).chain(self.batches.iter().copied());
        let mut end = 0u32;
        let mut batch = 0;
        for amount in sizes {
            end = end.saturating_add(amount.of(size));
            if place < end {
                return batch;
            }
            batch += 1;
        }
        match self.batches.last() {
            // The one before ended at `end`; the last size goes on from there.
            Some(repeated) => batch + (place - end) / repeated.of(size),
            None => batch,
        }
    }

    /// How long this batch has to be good.
    pub fn soak_of(&self, batch: u32) -> Duration {
        match &self.canary {
            Some(Canary { soak: Some(own), .. }) if batch == 0 => *own,
            _ => self.soak,
        }
    }

    /// Where a device with these labels stands in line, before its name decides.
    pub fn rank(&self, labels: &BTreeMap<String, String>) -> Rank {
        let is_first = |canary: &Canary| {
            !canary.labels.is_empty()
                && canary.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
        };
        Rank {
            later: !self.canary.as_ref().is_some_and(is_first),
            values: self
                .order
                .iter()
                .map(|key| labels.get(key).map_or(Value::Missing, |value| Value::Is(value.clone())))
                .collect(),
        }
    }
}

/// A place in line by labels. Who lacks a label comes after those who have it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    later: bool,
    values: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Is(String),
    Missing,
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Count(count) => write!(f, "{count}"),
            Amount::Percent(percent) => write!(f, "{percent}"),
        }
    }
}

impl FromStr for Percent {
    type Err = InvalidPercent;

    fn from_str(text: &str) -> Result<Percent, InvalidPercent> {
        let number = text.strip_suffix('%').ok_or(InvalidPercent)?;
        digits(number).and_then(|number| Percent::new(u8::try_from(number).ok()?)).ok_or(InvalidPercent)
    }
}

impl FromStr for Amount {
    type Err = InvalidAmount;

    fn from_str(text: &str) -> Result<Amount, InvalidAmount> {
        if text.ends_with('%') {
            return text.parse().map(Amount::Percent).map_err(|_| InvalidAmount);
        }
        digits(text).and_then(NonZeroU32::new).map(Amount::Count).ok_or(InvalidAmount)
    }
}

/// A number without a sign.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl FromStr for OnFailure {
    type Err = InvalidOnFailure;

    fn from_str(text: &str) -> Result<OnFailure, InvalidOnFailure> {
        let known = [OnFailure::Halt, OnFailure::Revert];
        known.into_iter().find(|known| known.as_str() == text).ok_or(InvalidOnFailure)
    }
}

macro_rules! as_text {
    ($type:ty, $error:ty) => {
        impl TryFrom<String> for $type {
            type Error = $error;
            fn try_from(text: String) -> Result<Self, $error> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}
as_text!(Amount, InvalidAmount);
as_text!(Percent, InvalidPercent);

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(texts: &[&str]) -> Vec<Amount> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn canary(size: &str) -> Option<Canary> {
        Some(Canary { size: size.parse().unwrap(), labels: BTreeMap::new(), soak: None })
    }

    #[test]
    fn amounts_are_written_as_numbers_or_parts() {
        for good in ["1", "12", "1%", "100%"] {
            assert_eq!(good.parse::<Amount>().unwrap().to_string(), good);
        }
        for bad in ["", "0", "0%", "101%", "-1", "+1", "1.5%", "ten", "%", "99999999999"] {
            assert!(bad.parse::<Amount>().is_err(), "{bad}");
        }
        assert!("5".parse::<Percent>().is_err() && "300%".parse::<Percent>().is_err());
    }

    #[test]
    fn the_last_size_repeats_and_a_part_is_one_of_those_at_the_beginning() {
        let check = |canary: Option<Canary>, batches: &[&str], size: u32, expected: &[u32]| {
            let strategy = Strategy { canary, batches: sizes(batches), ..Default::default() };
            let found: Vec<u32> =
                (0..expected.len()).map(|place| strategy.batch_of(place as u32, size)).collect();
            assert_eq!(found, expected, "{batches:?} of {size}");
        };
        check(None, &[], 3, &[0, 0, 0, 0]);
        check(None, &["2"], 5, &[0, 0, 1, 1, 2, 2]);
        check(None, &["1", "2"], 5, &[0, 1, 1, 2, 2, 3, 3]);
        check(None, &["50%"], 5, &[0, 0, 0, 1, 1, 1]);
        check(None, &["1%"], 3, &[0, 1, 2]);
        check(canary("2"), &[], 4, &[0, 0, 1, 1, 1]);
        check(canary("1"), &["100%"], 3, &[0, 1, 1, 1, 2]);
    }

    #[test]
    fn the_first_devices_come_first_then_labels_decide() {
        let labels = |text: &str| -> BTreeMap<String, String> {
            text.split_whitespace()
                .map(|pair| pair.split_once('=').unwrap())
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        };
        let mut strategy = Strategy { canary: canary("1"), order: vec!["line".into()], ..Default::default() };
        strategy.canary.as_mut().unwrap().labels = labels("ring=test");
        let mut devices = ["line=2", "", "line=1", "line=9 ring=test"].map(labels);
        devices.sort_by_key(|labels| strategy.rank(labels));
        assert_eq!(devices, ["line=9 ring=test", "line=1", "line=2", ""].map(labels));
    }

    #[test]
    fn a_strategy_is_bounded_and_comes_back_from_its_text() {
        assert!(Strategy::default().is_all_at_once());
        let day = Duration::from_secs(24 * 3600);
        let whole = Strategy {
            canary: canary("2"),
            batches: sizes(&["10%", "25%"]),
            order: vec!["site".into()],
            soak: day,
            unavailable_max: Some("1".parse().unwrap()),
            threshold: "95%".parse().unwrap(),
            on_failure: OnFailure::Revert,
            failures: NonZeroU32::new(3),
        };
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<Strategy>(&text).unwrap(), whole);
        assert_eq!(serde_json::from_str::<Strategy>("{}").unwrap(), Strategy::default());
        assert_eq!(whole.clone().checked(), Ok(whole.clone()));
        for (wrong, why) in [
            (Strategy { soak: 31 * day, ..Default::default() }, InvalidStrategy::Soak),
            (Strategy { soak: Duration::from_millis(1), ..Default::default() }, InvalidStrategy::Soak),
            (Strategy { batches: sizes(&["1"; 33]), ..Default::default() }, InvalidStrategy::TooMany),
            (Strategy { order: vec![String::new()], ..Default::default() }, InvalidStrategy::Label),
        ] {
            assert_eq!(wrong.checked(), Err(why));
        }
    }

    #[test]
    fn a_canary_is_watched_as_all_are_unless_it_says_otherwise() {
        let of = |text: &str| serde_json::from_str::<Strategy>(text).unwrap();
        // As it was kept before a canary could be without a time of its own.
        let kept = r#"{"canary":{"size":"1","soak":{"secs":0,"nanos":0}},"soak":{"secs":600,"nanos":0},"threshold":"100%","on_failure":"halt"}"#;
        assert_eq!(of(kept).canary.unwrap().soak, None);
        assert_eq!(
            serde_json::to_string(&of(kept)).unwrap(),
            kept,
            "what is kept stays the same to the byte"
        );
        let check = |soak: Option<u64>, expected: [u64; 2]| {
            let mut strategy = of(kept);
            strategy.canary.as_mut().unwrap().soak = soak.map(Duration::from_secs);
            assert_eq!([0, 1].map(|batch| strategy.soak_of(batch).as_secs()), expected);
            assert_eq!(of(&serde_json::to_string(&strategy).unwrap()), strategy);
        };
        check(None, [600, 600]);
        check(Some(60), [60, 600]);
        check(Some(0), [0, 600]);
    }

    #[test]
    fn at_most_is_rounded_down_and_something() {
        let ten: Amount = "10%".parse().unwrap();
        assert_eq!([5, 19, 20, 39].map(|whole| ten.at_most(whole)), [1, 1, 2, 3]);
        assert_eq!([5, 19, 20, 39].map(|whole| ten.of(whole)), [1, 2, 2, 4]);
    }
}
