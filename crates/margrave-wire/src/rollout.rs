//! In which steps a change goes through devices, and how far it came: in the operator's REST.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use margrave_core::rollout::{Canary, OnFailure, Percent, Strategy};
use margrave_core::violation::Violation;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// In which steps devices are given what is new, what they must prove before the next step, and what is done about
/// failures. What is left out is as usual; nothing at all is all at once. Sizes are numbers of devices or parts of
/// them, as texts: `"5"`, `"10%"`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Strategy)]
pub struct StrategyBody {
    /// A first batch of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryBody>,
    /// Sizes of batches, in order; the last one repeats until nobody is left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 32)]
    pub batches: Vec<String>,
    /// Labels whose values put devices in order, such as `site`; then it is their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 32)]
    pub order: Vec<String>,
    /// How long a batch has to be good before the next begins, the canary too unless it has a time of its own; not at all
    /// when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2592000)]
    pub soak_seconds: Option<u64>,
    /// How many devices with the same value of the label `site` may be unavailable at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable_per_site: Option<String>,
    /// The part of a batch that must have it installed; `100%` as a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<String>,
    /// `halt`, the usual, or `revert`: the deployment goes back to the revision before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<String>,
    /// It also counts as failed once so many devices have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub failures: Option<u32>,
}

/// The first devices to get something new.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Canary)]
pub struct CanaryBody {
    pub size: String,
    /// Devices with all these labels come first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// How long they have to be good before others follow; as long as every batch when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2592000)]
    pub soak_seconds: Option<u64>,
}

/// How far the newest revision of a deployment came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    pub deployment: String,
    /// The one that is taken to the devices.
    pub revision: u64,
    /// `running`, `waiting`, `paused`, `halted`, `reverting`, `aborted` or `done`.
    pub state: String,
    /// What it waits for, or why it was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Until when it waits, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// The batch that is under way, from 1.
    pub batch: u32,
    pub batches_total: u32,
    pub counts: RolloutCounts,
    /// The first 200.
    pub batches: Vec<RolloutBatch>,
    pub strategy: StrategyBody,
    /// The revision that it goes back to by itself or by hand, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    pub begun_at: String,
    /// When it was begun, stopped or let go on, and by whom.
    pub changed_at: String,
    pub changed_by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutBatch {
    /// From 1.
    pub number: u32,
    pub counts: RolloutCounts,
}

/// Every device is in one of the counts beside the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutCounts {
    pub total: u32,
    /// The new revision is installed.
    pub done: u32,
    /// Released, and neither there nor failed.
    pub under_way: u32,
    /// In contact, and its turn has not come.
    pub waiting: u32,
    /// Not heard of; it gets its turn when it is back.
    pub not_yet: u32,
    /// It does not fit.
    pub never: u32,
    /// Failed, or gone back to what it had before.
    pub failed: u32,
}

/// Places in a violation are below this.
const PLACE: &str = "/strategy";
const RULE: &str = "rollout";

fn parsed<T: FromStr>(place: String, text: &str, broken: &mut Vec<Violation>) -> Option<T>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| broken.push(Violation::new(place, RULE, error.to_string()))).ok()
}

fn seconds(seconds: Option<u64>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(0))
}

impl StrategyBody {
    /// What operators chose.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(&self) -> Result<Strategy, Vec<Violation>> {
        let StrategyBody {
            canary,
            batches,
            order,
            soak_seconds,
            max_unavailable_per_site,
            threshold,
            on_failure,
            failures,
        } = self;
        let mut broken = Vec::new();
        let at = |name: &str| format!("{PLACE}/{name}");
        let canary = canary.as_ref().and_then(|canary| {
            Some(Canary {
                size: parsed(at("canary/size"), &canary.size, &mut broken)?,
                labels: canary.labels.clone(),
                soak: canary.soak_seconds.map(Duration::from_secs),
            })
        });
        let batches = batches
            .iter()
            .enumerate()
            .filter_map(|(index, text)| parsed(at(&format!("batches/{index}")), text, &mut broken))
            .collect();
        let unavailable_max = max_unavailable_per_site
            .as_ref()
            .and_then(|text| parsed(at("maxUnavailablePerSite"), text, &mut broken));
        let threshold = threshold.as_ref().and_then(|text| parsed(at("threshold"), text, &mut broken));
        let on_failure = on_failure.as_ref().and_then(|text| parsed(at("onFailure"), text, &mut broken));
        if *failures == Some(0) {
            broken.push(Violation::new(at("failures"), RULE, "at least one device must have failed"));
        }
        let strategy = Strategy {
            canary,
            batches,
            order: order.clone(),
            soak: seconds(*soak_seconds),
            unavailable_max,
            threshold: threshold.unwrap_or_default(),
            on_failure: on_failure.unwrap_or_default(),
            failures: failures.and_then(NonZeroU32::new),
        };
        match strategy.checked() {
            Ok(strategy) if broken.is_empty() => Ok(strategy),
            Ok(_) => Err(broken),
            Err(invalid) => {
                broken.push(Violation::new(PLACE, RULE, invalid.to_string()));
                Err(broken)
            }
        }
    }

    /// In phrases; one that says so when it is all at once.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(CanaryBody { size, labels, soak_seconds }) = &self.canary {
            let mut first = format!("first {size}");
            if !labels.is_empty() {
                let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                first.push_str(&format!(" of {}", pairs.join(" ")));
            }
            match soak_seconds {
                Some(0) => first.push_str(", not watched"),
                Some(soak) => first.push_str(&format!(", watched for {}", time(*soak))),
                None => {}
            }
            words.push(first);
        }
        if !self.batches.is_empty() {
            words.push(format!("batches of {}", self.batches.join(", then ")));
        }
        if !self.order.is_empty() {
            words.push(format!("ordered by {}", self.order.join(", ")));
        }
        if let Some(soak) = self.soak_seconds {
            words.push(format!("each watched for {}", time(soak)));
        }
        if let Some(most) = &self.max_unavailable_per_site {
            words.push(format!("at most {most} of a site unavailable"));
        }
        if let Some(threshold) = &self.threshold {
            words.push(format!("{threshold} must have it"));
        }
        if let Some(failures) = self.failures {
            words.push(format!("{failures} failures are too many"));
        }
        match self.on_failure.as_deref() {
            Some("revert") => words.push("reverts when it fails".to_owned()),
            _ if words.is_empty() => words.push("all at once".to_owned()),
            _ => words.push("halts when it fails".to_owned()),
        }
        words
    }
}

/// What has to have come about before a batch (from 0) begins, in words; nothing for the first.
pub fn after(strategy: &Strategy, batch: u32) -> Option<String> {
    let before = batch.checked_sub(1)?;
    // To people the first batch is number 1, so the one before is called as this one is here.
    let mut words = match strategy.threshold {
        Percent::ALL => format!("all of batch {batch} that can answer have it installed"),
        part => format!("{part} of batch {batch} have it installed"),
    };
    match strategy.soak_of(before).as_secs() {
        0 => {}
        soak => words.push_str(&format!(" and stayed so for {}", time(soak))),
    }
    Some(words)
}

/// Seconds as people say them.
fn time(seconds: u64) -> String {
    match seconds {
        _ if seconds > 0 && seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ if seconds > 0 && seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

impl From<&Strategy> for StrategyBody {
    fn from(strategy: &Strategy) -> StrategyBody {
        let Strategy { canary, batches, order, soak, unavailable_max, threshold, on_failure, failures } =
            strategy;
        let seconds = |time: Duration| Some(time.as_secs()).filter(|seconds| *seconds > 0);
        StrategyBody {
            canary: canary.as_ref().map(|canary| CanaryBody {
                size: canary.size.to_string(),
                labels: canary.labels.clone(),
                soak_seconds: canary.soak.map(|soak| soak.as_secs()),
            }),
            batches: batches.iter().map(ToString::to_string).collect(),
            order: order.clone(),
            soak_seconds: seconds(*soak),
            max_unavailable_per_site: unavailable_max.map(|most| most.to_string()),
            threshold: Some(*threshold).filter(|part| *part != Percent::ALL).map(|part| part.to_string()),
            on_failure: Some(*on_failure)
                .filter(|what| *what != OnFailure::default())
                .map(|what| what.as_str().to_owned()),
            failures: failures.map(NonZeroU32::get),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> StrategyBody {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_strategy_is_read_written_and_said() {
        let text = r#"{
            "canary": { "size": "2", "labels": { "ring": "test" }, "soakSeconds": 1800 },
            "batches": ["10%", "25%"], "order": ["site"], "soakSeconds": 600,
            "maxUnavailablePerSite": "1", "threshold": "95%", "onFailure": "revert", "failures": 3
        }"#;
        let read = body(text).read().unwrap();
        assert_eq!(StrategyBody::from(&read), body(text));
        assert_eq!(
            body(text).words().join("; "),
            "first 2 of ring=test, watched for 30 min; batches of 10%, then 25%; ordered by site; each watched for \
             10 min; at most 1 of a site unavailable; 95% must have it; 3 failures are too many; reverts when it fails"
        );
        assert_eq!(body("{}").read().unwrap(), Strategy::default());
        assert_eq!(body("{}").words(), ["all at once"]);
        // What says the usual is the usual.
        let usual = body(r#"{ "threshold": "100%", "onFailure": "halt", "soakSeconds": 0 }"#).read().unwrap();
        assert!(usual.is_all_at_once());
    }

    #[test]
    fn what_a_batch_waits_for_is_said() {
        let strategy = body(
            r#"{ "canary": { "size": "1", "soakSeconds": 1800 }, "batches": ["10%"], "threshold": "95%" }"#,
        );
        let strategy = strategy.read().unwrap();
        assert_eq!(after(&strategy, 0), None);
        let told = [1, 2].map(|batch| after(&strategy, batch).unwrap());
        assert_eq!(
            told,
            ["95% of batch 1 have it installed and stayed so for 30 min", "95% of batch 2 have it installed"]
        );
        // Who has no time of its own is watched as all are.
        let file = r#"{ "canary": { "size": "1" }, "batches": ["50%"], "soakSeconds": 600 }"#;
        let watched = body(file).read().unwrap();
        assert_eq!(StrategyBody::from(&watched), body(file), "nothing is written that nobody said");
        for batch in [1, 2] {
            assert!(after(&watched, batch).unwrap().ends_with(" and stayed so for 10 min"), "{batch}");
        }
        let file =
            r#"{ "canary": { "size": "1", "soakSeconds": 0 }, "batches": ["50%"], "soakSeconds": 600 }"#;
        let unwatched = body(file).read().unwrap();
        assert_eq!(StrategyBody::from(&unwatched), body(file));
        assert_eq!(body(file).words()[0], "first 1, not watched");
        assert!(after(&unwatched, 1).unwrap().ends_with(" have it installed"));
        let plain = body(r#"{ "batches": ["2"] }"#).read().unwrap();
        assert_eq!(after(&plain, 1).as_deref(), Some("all of batch 1 that can answer have it installed"));
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        let wrong = body(
            r#"{ "canary": { "size": "none" }, "batches": ["1", "0"], "threshold": "95", "onFailure": "cry",
                 "maxUnavailablePerSite": "", "failures": 0, "soakSeconds": 9999999 }"#,
        );
        let places: Vec<String> = wrong.read().unwrap_err().into_iter().map(|broken| broken.place).collect();
        assert_eq!(
            places,
            [
                "/strategy/canary/size",
                "/strategy/batches/1",
                "/strategy/maxUnavailablePerSite",
                "/strategy/threshold",
                "/strategy/onFailure",
                "/strategy/failures",
                "/strategy"
            ]
        );
    }
}
