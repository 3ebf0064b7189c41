//! In which steps a change goes through devices, as form fields. Whether it makes sense is the fleet's to say; here is only what a
//! person types for it.

use std::collections::BTreeMap;

use margrave_core::violation::Violation;
use margrave_wire::rollout::{CanaryBody, StrategyBody};

use super::device::pairs;
use super::error::sentence;
use super::session::Fields;
pub(super) use crate::fleet::difference::spoken;

/// The fields, each with the place in a violation that it is about.
const FIELDS: [(&str, &str, &str, &str, &str); 9] = [
    ("canary", "/canary/size", "First on this many", "1 or 5%", "A first batch of its own."),
    ("canary-labels", "/canary/labels", "Preferably with these labels", "ring=test", ""),
    (
        "canary-soak",
        "/canary/soakSeconds",
        "Watch these for",
        "10m",
        "Seconds, or such as 10m, 2h, 1d. As long as each batch when left empty.",
    ),
    ("batches", "/batches", "Then in batches of", "10%, 50%", "Numbers or parts; the last one repeats."),
    ("soak", "/soakSeconds", "Watch each batch for", "5m", ""),
    (
        "order",
        "/order",
        "In the order of these labels",
        "site",
        "Names of labels; then it is the devices' names.",
    ),
    ("unavailable", "/maxUnavailablePerSite", "Of a site, at a time at most", "1 or 10%", ""),
    ("threshold", "/threshold", "Part of a batch that must have it", "100%", ""),
    ("failures", "/failures", "Failures that are too many", "2", ""),
];

pub(super) struct Pace {
    /// Not all at once.
    pub(super) steps: bool,
    pub(super) fields: Vec<PaceField>,
    /// What is done about failures: `halt` or `revert`.
    pub(super) revert: bool,
    /// About the whole.
    pub(super) wrong: Vec<String>,
    /// The form asked for it; else it stays as it is.
    asked: bool,
}

pub(super) struct PaceField {
    /// The form field's name, and its id.
    pub(super) field: String,
    place: &'static str,
    pub(super) label: &'static str,
    pub(super) example: &'static str,
    pub(super) hint: &'static str,
    pub(super) value: String,
    pub(super) wrong: Option<String>,
}

impl Pace {
    fn new(steps: bool, revert: bool, asked: bool, value: impl Fn(&str) -> String) -> Self {
        let field = |&(name, place, label, example, hint): &(&str, &'static str, _, _, _)| PaceField {
            field: format!("pace-{name}"),
            place,
            label,
            example,
            hint,
            value: value(name),
            wrong: None,
        };
        Pace { steps, fields: FIELDS.iter().map(field).collect(), revert, wrong: Vec::new(), asked }
    }

    pub(super) fn of(strategy: &StrategyBody) -> Self {
        let StrategyBody {
            canary,
            batches,
            order,
            soak_seconds,
            max_unavailable_per_site,
            threshold,
            on_failure,
            failures,
        } = strategy;
        let spoken = |seconds: Option<u64>| seconds.map(spoken).unwrap_or_default();
        let value = |name: &str| match (name, canary) {
            ("canary", Some(canary)) => canary.size.clone(),
            ("canary-labels", Some(canary)) => {
                let labels = canary.labels.iter().map(|(key, value)| format!("{key}={value}"));
                labels.collect::<Vec<_>>().join(", ")
            }
            ("canary-soak", Some(canary)) => spoken(canary.soak_seconds),
            ("batches", _) => batches.join(", "),
            ("soak", _) => spoken(*soak_seconds),
            ("order", _) => order.join(", "),
            ("unavailable", _) => max_unavailable_per_site.clone().unwrap_or_default(),
            ("threshold", _) => threshold.clone().unwrap_or_default(),
            ("failures", _) => failures.map(|count| count.to_string()).unwrap_or_default(),
            _ => String::new(),
        };
        let steps = *strategy != StrategyBody::default();
        Pace::new(steps, on_failure.as_deref() == Some("revert"), true, value)
    }

    pub(super) fn typed(fields: &Fields) -> Self {
        let value = |name: &str| fields.one(&format!("pace-{name}")).to_owned();
        let asked = fields.raw("pace").is_some();
        Pace::new(fields.one("pace") == "steps", fields.one("pace-on-failure") == "revert", asked, value)
    }

    pub(super) fn is_wrong(&self) -> bool {
        !self.wrong.is_empty() || self.fields.iter().any(|field| field.wrong.is_some())
    }

    /// What to ask of the fleet: `None` leaves it as it is. What cannot be read is noted at its field.
    pub(super) fn want(&mut self) -> Option<StrategyBody> {
        if !self.asked {
            return None;
        }
        if !self.steps {
            return Some(StrategyBody::default());
        }
        let typed: BTreeMap<&str, String> =
            FIELDS.iter().zip(&self.fields).map(|(known, field)| (known.0, field.value.clone())).collect();
        let text = |name: &str| Some(typed[name].clone()).filter(|text| !text.is_empty());
        let list = |name: &str| -> Vec<String> {
            let parts = typed[name].split(',').map(str::trim).filter(|part| !part.is_empty());
            parts.map(ToOwned::to_owned).collect()
        };
        let mut broken: Vec<(&str, String)> = Vec::new();
        let mut time = |name: &'static str| {
            let read = text(name).map(|text| seconds(&text)).transpose();
            read.unwrap_or_else(|wrong| {
                broken.push((name, wrong));
                None
            })
        };
        let (canary_soak, soak_seconds) = (time("canary-soak"), time("soak"));
        let labels = pairs(&typed["canary-labels"]).unwrap_or_else(|wrong| {
            broken.push(("canary-labels", wrong));
            BTreeMap::new()
        });
        let failures = text("failures").and_then(|text| {
            let read = text.parse::<u32>();
            read.map_err(|_| broken.push(("failures", format!("“{text}” is no number of devices.")))).ok()
        });
        let canary = text("canary").map(|size| CanaryBody { size, labels, soak_seconds: canary_soak });
        if canary.is_none() && (text("canary-labels").is_some() || canary_soak.is_some()) {
            broken.push(("canary", "Say how many, such as 1 or 5%.".to_owned()));
        }
        let strategy = StrategyBody {
            canary,
            batches: list("batches"),
            order: list("order"),
            soak_seconds,
            max_unavailable_per_site: text("unavailable"),
            threshold: text("threshold"),
            on_failure: self.revert.then(|| "revert".to_owned()),
            failures,
        };
        if strategy == StrategyBody::default() && broken.is_empty() {
            let wrong =
                "Say in which steps, such as how many first or how many at a time; or choose all at once.";
            self.wrong = vec![wrong.to_owned()];
        }
        for (name, wrong) in broken {
            let field = self.fields.iter_mut().find(|field| field.field == format!("pace-{name}"));
            field.expect("every name is of the list").wrong = Some(wrong);
        }
        Some(strategy)
    }

    /// Notes what the fleet said about it; `false` when it is about something else.
    pub(super) fn refused(&mut self, violation: &Violation) -> bool {
        let Some(place) = violation.place.strip_prefix("/strategy") else { return false };
        let message = sentence(&violation.message);
        let field = self.fields.iter_mut().find(|field| {
            place.strip_prefix(field.place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        match field {
            Some(field) => drop(field.wrong.get_or_insert(message)),
            None => self.wrong.push(message),
        }
        true
    }
}

/// `90`, `90s`, `10m`, `2h`, `1d` as seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("“{text}” is no time. Write it like 90s, 10m, 2h or 1d.");
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let scale = match unit.trim() {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86400,
        _ => return Err(wrong()),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, time) in [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400)] {
            assert_eq!(seconds(text), Ok(time));
            assert_eq!(seconds(&spoken(time)), Ok(time));
        }
        for text in ["", "m", "1.5h", "-1s", "1w", "99999999999999999999d", "9999999999999999999d"] {
            assert!(seconds(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_shown_is_what_is_sent_again() {
        let strategy: StrategyBody = serde_json::from_value(serde_json::json!({
            "canary": { "size": "1", "labels": { "ring": "test" }, "soakSeconds": 600 }, "batches": ["10%", "50%"],
            "order": ["site"], "soakSeconds": 90, "maxUnavailablePerSite": "1", "threshold": "90%",
            "onFailure": "revert", "failures": 2,
        }))
        .unwrap();
        let mut pace = Pace::of(&strategy);
        assert_eq!(pace.want(), Some(strategy));
        assert!(!pace.is_wrong());
        assert_eq!(Pace::of(&StrategyBody::default()).want(), Some(StrategyBody::default()));
    }

    #[test]
    fn what_is_wrong_is_told_at_its_field() {
        let mut pace = Pace::of(&StrategyBody::default());
        pace.steps = true;
        pace.fields[2].value = "soon".to_owned();
        pace.want();
        let wrong: Vec<&str> = pace
            .fields
            .iter()
            .filter(|field| field.wrong.is_some())
            .map(|field| field.field.as_str())
            .collect();
        assert_eq!(wrong, ["pace-canary-soak"]);
        let violation = Violation::new("/strategy/batches/1", "rollout", "no size");
        assert!(pace.refused(&violation) && pace.fields[3].wrong.as_deref() == Some("No size."));
        assert!(!pace.refused(&Violation::new("/targets", "x", "y")));
    }
}
