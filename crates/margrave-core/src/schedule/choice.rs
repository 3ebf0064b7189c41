//! What operators chose for the fleet, for a label or for a device, and what follows from all of it for one device.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Downtime, InvalidSchedule, Poll, Schedule, Weekly};
use crate::id::DeviceRef;

/// Parts of a schedule; what is not chosen here is chosen elsewhere, or as usual. An empty list is a choice, too: at any
/// time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Choice {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hours: Option<Vec<Weekly>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downtime: Option<Vec<Downtime>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<Weekly>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saver: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaves_drift: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removes_images: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_max: Option<Duration>,
}

/// For whom a choice is made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    Fleet,
    /// Devices with this label; by key and value, so that they have an order.
    Label(String, String),
    Device(DeviceRef),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a schedule is for `fleet`, for `label:KEY=VALUE` or for `device:NAME`")]
pub struct InvalidReach;

impl Reach {
    pub fn covers(&self, device: &DeviceRef, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Reach::Fleet => true,
            Reach::Label(key, value) => labels.get(key) == Some(value),
            Reach::Device(named) => named == device,
        }
    }
}

impl FromStr for Reach {
    type Err = InvalidReach;

    fn from_str(text: &str) -> Result<Reach, InvalidReach> {
        match text.split_once(':') {
            None if text == "fleet" => Ok(Reach::Fleet),
            Some(("label", label)) => {
                let (key, value) = label.split_once('=').ok_or(InvalidReach)?;
                // As labels may be.
                let named =
                    |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
                let key_fits = (1..=100).contains(&key.len()) && key.bytes().all(named);
                let value_fits = value.len() <= 200 && !value.chars().any(char::is_control);
                if key_fits && value_fits {
                    Ok(Reach::Label(key.to_owned(), value.to_owned()))
                } else {
                    Err(InvalidReach)
                }
            }
            Some(("device", device)) => DeviceRef::parse(device).map(Reach::Device).map_err(|_| InvalidReach),
            _ => Err(InvalidReach),
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reach::Fleet => f.write_str("fleet"),
            Reach::Label(key, value) => write!(f, "label:{key}={value}"),
            Reach::Device(device) => write!(f, "device:{device}"),
        }
    }
}

impl Choice {
    /// The same, if it can be followed wherever nothing else is chosen.
    pub fn checked(self) -> Result<Choice, InvalidSchedule> {
        resolve([&self]).checked().map(|_| self)
    }

    pub fn is_empty(&self) -> bool {
        *self == Choice::default()
    }
}

/// What a device follows: of each part the choice that is closest to it. `all` are sorted by [`Reach`]: a device's own goes before
/// its labels', of which the first goes before the others, and those before the fleet's.
pub fn effective(all: &[(Reach, Choice)], device: &DeviceRef, labels: &BTreeMap<String, String>) -> Schedule {
    // Each choice can be followed, and yet not all of them together.
    chosen(all, device, labels).livable()
}

/// Why a device cannot follow all of it, when it cannot.
pub fn conflict(
    all: &[(Reach, Choice)],
    device: &DeviceRef,
    labels: &BTreeMap<String, String>,
) -> Option<InvalidSchedule> {
    chosen(all, device, labels).checked().err()
}

fn chosen(all: &[(Reach, Choice)], device: &DeviceRef, labels: &BTreeMap<String, String>) -> Schedule {
    let of = |wanted: fn(&Reach) -> bool| {
        all.iter()
            .filter(move |(reach, _)| wanted(reach) && reach.covers(device, labels))
            .map(|(_, choice)| choice)
    };
    let own = of(|reach| matches!(reach, Reach::Device(_)));
    let labelled = of(|reach| matches!(reach, Reach::Label(..)));
    let fleet = of(|reach| matches!(reach, Reach::Fleet));
    resolve(own.chain(labelled).chain(fleet))
}

fn resolve<'c>(choices: impl IntoIterator<Item = &'c Choice>) -> Schedule {
    let mut all = Choice::default();
    for choice in choices {
        let Choice { poll, hours, downtime, windows, saver, leaves_drift, removes_images, hold_max } = choice;
        all.poll = all.poll.or(*poll);
        all.hours = all.hours.or_else(|| hours.clone());
        all.downtime = all.downtime.or_else(|| downtime.clone());
        all.windows = all.windows.or_else(|| windows.clone());
        all.saver = all.saver.or(*saver);
        all.leaves_drift = all.leaves_drift.or(*leaves_drift);
        all.removes_images = all.removes_images.or(*removes_images);
        all.hold_max = all.hold_max.or(*hold_max);
    }
    Schedule {
        poll: all.poll,
        hours: all.hours.unwrap_or_default(),
        downtime: all.downtime.unwrap_or_default(),
        windows: all.windows.filter(|windows| !windows.is_empty()),
        saver: all.saver.unwrap_or_default(),
        leaves_drift: all.leaves_drift.unwrap_or_default(),
        removes_images: all.removes_images.unwrap_or_default(),
        hold_max: all.hold_max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reach_is_written_in_one_way() {
        for text in
            ["fleet", "label:line=7", "label:a/b=c=d", "label:a=", "device:press", "device:site/press"]
        {
            assert_eq!(text.parse::<Reach>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "Fleet",
            "fleet:",
            "label:",
            "label:a",
            "label:=b",
            "label:a b=c",
            "label:a=\n",
            "device:",
            "device:a b",
            "x:y",
        ] {
            assert_eq!(bad.parse::<Reach>(), Err(InvalidReach), "{bad}");
        }
    }

    #[test]
    fn choices_that_leave_no_time_together_are_told_and_not_followed() {
        let hours = Choice { hours: Some(vec!["daily 08:00-10:00".parse().unwrap()]), ..Default::default() };
        let downtime =
            Choice { downtime: Some(vec!["daily 07:00-11:00".parse().unwrap()]), ..Default::default() };
        let all = [("fleet", hours), ("label:line=7", downtime)];
        let all = all.map(|(reach, choice)| (reach.parse::<Reach>().unwrap(), choice.checked().unwrap()));
        let device = DeviceRef::parse("press").unwrap();
        let labels = BTreeMap::from([("line".to_owned(), "7".to_owned())]);
        assert_eq!(conflict(&all, &device, &labels), Some(InvalidSchedule::Silent));
        assert!(effective(&all, &device, &labels).is_usual());
        assert_eq!(conflict(&all, &device, &BTreeMap::new()), None);
    }

    #[test]
    fn of_each_part_the_closest_choice_counts() {
        let spans = |text: &str| vec![text.parse::<Weekly>().unwrap()];
        let poll = |seconds| Some(Poll { every: Duration::from_secs(seconds), wait: false });
        let mut all = vec![
            (
                "fleet",
                Choice {
                    poll: poll(60),
                    windows: Some(spans("sun 01:00-02:00")),
                    saver: Some(true),
                    removes_images: Some(false),
                    ..Default::default()
                },
            ),
            (
                "label:line=7",
                Choice {
                    poll: poll(70),
                    hours: Some(spans("mon 01:00-02:00")),
                    removes_images: Some(true),
                    ..Default::default()
                },
            ),
            (
                "label:site=north",
                Choice { poll: poll(80), hold_max: Some(Duration::ZERO), ..Default::default() },
            ),
            ("device:press", Choice { windows: Some(vec![]), saver: Some(false), ..Default::default() }),
        ];
        let all: Vec<(Reach, Choice)> =
            all.drain(..).map(|(reach, choice)| (reach.parse().unwrap(), choice)).collect();
        let labels =
            BTreeMap::from([("line".to_owned(), "7".to_owned()), ("site".to_owned(), "north".to_owned())]);
        let schedule = effective(&all, &DeviceRef::parse("press").unwrap(), &labels);
        let expected = Schedule {
            poll: poll(70),
            hours: spans("mon 01:00-02:00"),
            windows: None,
            saver: false,
            leaves_drift: false,
            removes_images: true,
            hold_max: Some(Duration::ZERO),
            downtime: vec![],
        };
        assert_eq!(schedule, expected);
        let other = effective(&all, &DeviceRef::parse("drill").unwrap(), &BTreeMap::new());
        assert_eq!((other.poll, other.saver, other.windows.is_some()), (poll(60), true, true));
        assert!(!other.removes_images);
    }
}
