//! When a device talks and changes: in the operator's REST and, as our addition, in a manifest.

use std::time::Duration;

use margrave_core::schedule::{Choice, Downtime, InvalidSpan, Poll, SPANS_MAX, Schedule, Weekly};
use margrave_core::violation::Violation;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::tree::{At, Content};

/// When devices talk to the server, and when they change what runs. What is left out is chosen elsewhere, or as usual; an empty
/// list is "at any time". Times of the week are written like `mon-fri 06:00-22:00 Europe/Berlin`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Schedule)]
pub struct ScheduleBody {
    /// Seconds between two polls. Without it, a device asks all the time, and the server answers once there is news.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 5, maximum = 43200)]
    pub poll_every_seconds: Option<u64>,
    /// Whether polls may be held open all the same; only with `pollEverySeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_wait: Option<bool>,
    /// When the device may talk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 32)]
    pub hours: Option<Vec<String>>,
    /// When nobody can be reached: like hours, or once, like `2026-12-24T12:00Z/2026-12-27T06:00Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 32)]
    pub downtime: Option<Vec<String>>,
    /// When it may change what runs. It downloads at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 32)]
    pub windows: Option<Vec<String>>,
    /// Reports wait for the next poll, and downloads for the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_saver: Option<bool>,
    /// `repair`, the usual: what others did to what runs is undone. Or `report`: it is only told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<String>,
    /// `keep`, the usual: images that no deployment needs any more stay. Or `remove`: those that the device pulled itself go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<String>,
    /// The longest that somebody at the device may hold changes back; 0 forbids it, a day is usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2678400)]
    pub hold_max_seconds: Option<u64>,
}

impl ScheduleBody {
    /// What operators chose.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(&self) -> Result<Choice, Vec<Violation>> {
        let mut broken = vec![];
        let mut weekly = |name: &str, texts: &Option<Vec<String>>| spans::<Weekly>(name, texts, &mut broken);
        let hours = weekly("hours", &self.hours);
        let windows = weekly("windows", &self.windows);
        let downtime = spans::<Downtime>("downtime", &self.downtime, &mut broken);
        if self.poll_wait.is_some() && self.poll_every_seconds.is_none() {
            broken.push(Violation::new("/pollWait", RULE, "only with pollEverySeconds"));
        }
        let poll = self.poll_every_seconds.map(|seconds| Poll {
            every: Duration::from_secs(seconds),
            wait: self.poll_wait.unwrap_or_default(),
        });
        let mut either = |name: &str, said: &Option<String>, usual: &str, other: &str| match said.as_deref() {
            None => None,
            Some(word) if word == usual => Some(false),
            Some(word) if word == other => Some(true),
            Some(_) => {
                let words = format!("write `{usual}` or `{other}`");
                broken.push(Violation::new(format!("/{name}"), RULE, words));
                None
            }
        };
        let leaves_drift = either("drift", &self.drift, REPAIR, REPORT);
        let removes_images = either("images", &self.images, KEEP, REMOVE);
        let hold_max = self.hold_max_seconds.map(Duration::from_secs);
        // Each of these is right or wrong whatever else is chosen.
        let alone = [
            ("/pollEverySeconds", Choice { poll, ..Choice::default() }),
            ("/holdMaxSeconds", Choice { hold_max, ..Choice::default() }),
        ];
        let mut bounds = vec![];
        for (place, part) in alone {
            if let Err(invalid) = part.checked() {
                bounds.push(Violation::new(place, RULE, invalid.to_string()));
            }
        }
        let readable = broken.is_empty();
        broken.extend(bounds);
        let saver = self.data_saver;
        let choice = Choice { poll, hours, downtime, windows, saver, leaves_drift, removes_images, hold_max };
        // How times go together can only be said where all of them could be read.
        let together = Choice { poll: None, hold_max: None, ..choice.clone() };
        if readable && let Err(invalid) = together.checked() {
            broken.push(Violation::new("", RULE, invalid.to_string()));
        }
        if broken.is_empty() { Ok(choice) } else { Err(broken) }
    }
}

impl ScheduleBody {
    /// A phrase for each part, for people.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![];
        if let Some(seconds) = self.poll_every_seconds {
            let open = if self.poll_wait == Some(true) { ", held open" } else { "" };
            words.push(format!("asks every {}{open}", spoken(seconds)));
        }
        let times = |what: &str, none: &str, times: &Option<Vec<String>>| {
            times.as_ref().map(|times| match times.is_empty() {
                true => none.to_owned(),
                false => format!("{what} {}", times.join(" and ")),
            })
        };
        words.extend(times("talks", "talks at any time", &self.hours));
        words.extend(times("unreachable", "no known downtime", &self.downtime));
        words.extend(times("changes", "changes at any time", &self.windows));
        words.extend(
            self.data_saver.map(|on| if on { "saves data" } else { "does not save data" }.to_owned()),
        );
        words.extend(self.drift.as_ref().map(|drift| match drift.as_str() {
            REPORT => "tells of drift and leaves it".to_owned(),
            _ => "repairs drift".to_owned(),
        }));
        words.extend(self.images.as_ref().map(|images| match images.as_str() {
            REMOVE => "removes images that no deployment needs any more".to_owned(),
            _ => "keeps images".to_owned(),
        }));
        words.extend(self.hold_max_seconds.map(|seconds| match seconds {
            0 => "changes may not be held back".to_owned(),
            seconds => format!("changes may be held back for {}", spoken(seconds)),
        }));
        words
    }
}

fn spoken(seconds: u64) -> String {
    match seconds {
        seconds if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

/// What is done about drift.
const REPAIR: &str = "repair";
const REPORT: &str = "report";
/// What becomes of images.
const KEEP: &str = "keep";
const REMOVE: &str = "remove";

/// The standard wants all of it to be settable, and says nothing of how.
const RULE: &str = "MI-G2-210";

/// Times of the week, as a deployment says them.
///
/// # Errors
/// Everything that is wrong with them.
pub fn read_windows(texts: &[String]) -> Result<Vec<Weekly>, Vec<Violation>> {
    let mut broken = vec![];
    if texts.len() > SPANS_MAX {
        broken.push(Violation::new("/windows", RULE, format!("at most {SPANS_MAX} windows")));
    }
    let windows = spans("windows", &Some(texts.iter().take(SPANS_MAX).cloned().collect()), &mut broken);
    if broken.is_empty() { Ok(windows.unwrap_or_default()) } else { Err(broken) }
}

fn spans<T>(name: &str, texts: &Option<Vec<String>>, broken: &mut Vec<Violation>) -> Option<Vec<T>>
where
    T: std::str::FromStr<Err = InvalidSpan>,
{
    let texts = texts.as_ref()?;
    let mut spans = Vec::with_capacity(texts.len().min(64));
    for (index, text) in texts.iter().enumerate() {
        match text.parse::<T>() {
            Ok(span) => spans.push(span),
            Err(invalid) => {
                broken.push(Violation::new(format!("/{name}/{index}"), RULE, invalid.to_string()))
            }
        }
    }
    Some(spans)
}

impl From<&Choice> for ScheduleBody {
    fn from(choice: &Choice) -> Self {
        fn texts<T: ToString>(spans: Option<&Vec<T>>) -> Option<Vec<String>> {
            spans.map(|spans| spans.iter().map(ToString::to_string).collect())
        }
        ScheduleBody {
            poll_every_seconds: choice.poll.map(|poll| poll.every.as_secs()),
            poll_wait: choice.poll.and_then(|poll| poll.wait.then_some(true)),
            hours: texts(choice.hours.as_ref()),
            downtime: texts(choice.downtime.as_ref()),
            windows: texts(choice.windows.as_ref()),
            data_saver: choice.saver,
            drift: choice.leaves_drift.map(|leaves| if leaves { REPORT } else { REPAIR }.to_owned()),
            images: choice.removes_images.map(|removes| if removes { REMOVE } else { KEEP }.to_owned()),
            hold_max_seconds: choice.hold_max.map(|max| max.as_secs()),
        }
    }
}

/// What a device follows.
impl From<&Schedule> for ScheduleBody {
    fn from(schedule: &Schedule) -> Self {
        let Schedule { poll, hours, downtime, windows, saver, leaves_drift, removes_images, hold_max } =
            schedule.clone();
        ScheduleBody::from(&Choice {
            poll,
            hours: (!hours.is_empty()).then_some(hours),
            downtime: (!downtime.is_empty()).then_some(downtime),
            windows,
            saver: saver.then_some(true),
            leaves_drift: leaves_drift.then_some(true),
            removes_images: removes_images.then_some(true),
            hold_max,
        })
    }
}

/// Those times of a list that this program understands.
pub(crate) fn understood<T: std::str::FromStr>(at: &At<'_>, key: &str) -> Option<Vec<T>> {
    let Content::List(items) = &at.field(key)?.node.content else { return Some(vec![]) };
    let texts = items.iter().take(SPANS_MAX).filter_map(|item| match &item.content {
        Content::Text(text) => text.parse().ok(),
        _ => None,
    });
    Some(texts.collect())
}

/// As a manifest says it. What a newer server says and this agent does not understand is as if it had not been said, but for
/// windows: where none of them is understood, no time is the right one.
pub(crate) fn read(at: &At<'_>) -> Schedule {
    let flag = |key: &str| at.field(key).is_some_and(|at| at.node.content == Content::Boolean(true));
    let says = |key: &str, word: &str| {
        at.field(key).is_some_and(|at| at.node.content == Content::Text(word.to_owned()))
    };
    let seconds = |key: &str| at.field(key).and_then(|at| at.unsigned()).map(Duration::from_secs);
    let schedule = Schedule {
        poll: seconds("pollEverySeconds").map(|every| Poll { every, wait: flag("pollWait") }),
        hours: understood(at, "hours").unwrap_or_default(),
        downtime: understood(at, "downtime").unwrap_or_default(),
        windows: understood(at, "windows"),
        saver: flag("dataSaver"),
        leaves_drift: says("drift", REPORT),
        removes_images: says("images", REMOVE),
        hold_max: seconds("holdMaxSeconds"),
    };
    schedule.livable()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::g2::manifest;
    use margrave_core::manifest::Manifest;
    use serde_json::json;

    fn body(value: serde_json::Value) -> ScheduleBody {
        serde_json::from_value(value).unwrap()
    }

    fn sent(extension: &str) -> Schedule {
        let text = format!(
            r#"{{"bundle":null,"deployments":[],"manifestVersion":7,"x-margrave-extensions":{extension}}}"#
        );
        manifest::read(text.as_bytes()).unwrap().manifest.schedule().clone()
    }

    #[test]
    fn a_schedule_survives_rest_and_manifest() {
        let body = body(json!({
            "pollEverySeconds": 300, "pollWait": true, "hours": ["mon-fri 06:00-22:00 Europe/Berlin"],
            "downtime": ["2026-12-24T12:00:00Z/2026-12-27T06:00:00Z", "sat 20:00-22:00 UTC"],
            "windows": ["sun 02:00-04:00 Europe/Berlin"], "dataSaver": true, "drift": "report", "images": "remove",
            "holdMaxSeconds": 3600,
        }));
        let choice = body.read().unwrap();
        assert_eq!(ScheduleBody::from(&choice), body);
        let all = [(margrave_core::schedule::Reach::Fleet, choice)];
        let schedule =
            margrave_core::schedule::effective(&all, &"press".parse().unwrap(), &Default::default());
        let listed = Manifest::new(7, None, vec![]).unwrap().with_schedule(schedule.clone());
        let bytes = manifest::write(&listed);
        assert_eq!(manifest::read(&bytes).unwrap().manifest, listed);
        assert!(String::from_utf8(bytes).unwrap().starts_with(
            r#"{"bundle":null,"deployments":[],"manifestVersion":7,"x-margrave-extensions":{"schedule":{"#
        ));
        let plain = manifest::write(&Manifest::new(7, None, vec![]).unwrap());
        assert_eq!(plain, br#"{"bundle":null,"deployments":[],"manifestVersion":7}"#);
    }

    #[test]
    fn everything_that_is_wrong_is_said_with_its_place() {
        let wrong = body(json!({
            "pollWait": true, "hours": ["mon 06:00-07:00", "moon"], "windows": ["x"], "downtime": ["2026"], "drift": "like",
            "images": "like",
        }));
        let places: Vec<String> =
            wrong.read().unwrap_err().into_iter().map(|violation| violation.place).collect();
        assert_eq!(places, ["/hours/1", "/windows/0", "/downtime/0", "/pollWait", "/drift", "/images"]);
        let bounds = body(json!({"pollEverySeconds": 1, "windows": ["x"], "holdMaxSeconds": 7_776_000}));
        let places: Vec<String> =
            bounds.read().unwrap_err().into_iter().map(|violation| violation.place).collect();
        assert_eq!(places, ["/windows/0", "/pollEverySeconds", "/holdMaxSeconds"]);
        assert!(body(json!({"downtime": ["daily 00:00-24:00"]})).read().is_err());
        assert!(serde_json::from_value::<ScheduleBody>(json!({"window": []})).is_err());
    }

    #[test]
    fn mi_g2_085_what_an_agent_does_not_understand_fails_no_manifest_and_opens_no_window() {
        assert_eq!(
            sent(
                r#"{"schedule":{"hours":["full-moon"],"pollEverySeconds":"often","images":"shrink","more":1}}"#
            ),
            Schedule::default()
        );
        assert_eq!(sent(r#"{"other":{}}"#), Schedule::default());
        assert_eq!(sent("[]"), Schedule::default());
        assert_eq!(sent(r#"{"schedule":7}"#), Schedule::default());
        let shut = Schedule { windows: Some(vec![]), ..Schedule::default() };
        assert_eq!(sent(r#"{"schedule":{"windows":["full-moon"]}}"#), shut);
        assert_eq!(sent(r#"{"schedule":{"windows":"always","downtime":["daily 00:00-24:00"]}}"#), shut);
    }
}
