//! Other answers for some of a deployment's devices, as form fields.

use margrave_core::violation::Violation;
use margrave_wire::operator::{Override, Package, PackageSetting, Targets};

use super::device::pairs;
use super::error::sentence;
use super::question::Question;
use super::session::Fields;

/// What a form offers; more can be had by command.
pub(super) const GROUPS_MAX: usize = 50;
/// Devices that all groups of a form may name for it to show them.
const NAMED_MAX: usize = 1_000;

/// A group of devices, and what is otherwise there. What is empty is as for all.
pub(super) struct Group {
    pub(super) number: usize,
    pub(super) labels: String,
    pub(super) devices: String,
    pub(super) sites: String,
    /// An expression on labels; kept, and offered only where there is one.
    pub(super) select: String,
    pub(super) questions: Vec<Question>,
    pub(super) wrong: Vec<String>,
}

fn settings(package: &Package) -> impl Iterator<Item = (usize, &PackageSetting)> {
    package.sections.iter().flat_map(|section| &section.settings).enumerate()
}

impl Group {
    pub(super) fn empty(number: usize, package: &Package) -> Self {
        let question = |(index, setting)| Question::of_group(number, index, setting, None);
        Group {
            number,
            labels: String::new(),
            devices: String::new(),
            sites: String::new(),
            select: String::new(),
            questions: settings(package).map(question).collect(),
            wrong: Vec::new(),
        }
    }

    /// What a form shows of a deployment's groups: all of them, or none where that would be more than anybody reads. Those stay as
    /// they are.
    pub(super) fn all(held: &[Override], package: &Package) -> Option<Vec<Self>> {
        let named: usize = held.iter().map(|group| group.targets.devices.len()).sum();
        let few = held.len() <= GROUPS_MAX && named <= NAMED_MAX;
        few.then(|| held.iter().enumerate().map(|(at, held)| Group::of(at, held, package)).collect())
    }

    fn of(number: usize, held: &Override, package: &Package) -> Self {
        let question = |(index, setting): (usize, &PackageSetting)| {
            Question::of_group(number, index, setting, held.parameters.get(&setting.parameter))
        };
        Group {
            number,
            labels: words(&held.targets),
            devices: held.targets.devices.join(", "),
            sites: held.targets.sites.join(", "),
            select: held.targets.select.clone().unwrap_or_default(),
            questions: settings(package).map(question).collect(),
            wrong: Vec::new(),
        }
    }

    /// All groups of a form that was sent; those that say nothing are left out. `None` when the form did not ask. `held`
    /// are those that it was made with, if any.
    pub(super) fn typed(package: &Package, fields: &Fields, held: &[Override]) -> Option<Vec<Self>> {
        let number: usize = fields.raw("groups")?.parse().unwrap_or(0);
        let dropped: Option<usize> = fields.raw("drop").and_then(|text| text.parse().ok());
        let mut groups: Vec<Group> = Vec::new();
        for was in (0..number.min(GROUPS_MAX)).filter(|was| Some(*was) != dropped) {
            let text = |name: &str| fields.one(&format!("group.{was}.{name}")).to_owned();
            let now = groups.len();
            let question =
                |(index, setting)| Question::typed_in_group(was, now, index, setting, fields, held);
            let group = Group {
                number: now,
                labels: text("labels"),
                devices: text("devices"),
                sites: text("sites"),
                select: text("select"),
                questions: settings(package).map(question).collect(),
                wrong: Vec::new(),
            };
            if !group.is_empty() {
                groups.push(group);
            }
        }
        Some(groups)
    }

    fn is_empty(&self) -> bool {
        let nowhere =
            [&self.labels, &self.devices, &self.sites, &self.select].iter().all(|text| text.is_empty());
        nowhere && self.questions.iter().all(|question| question.is_blank())
    }

    pub(super) fn is_wrong(&self) -> bool {
        !self.wrong.is_empty() || self.questions.iter().any(|question| question.wrong.is_some())
    }

    /// What to ask of the fleet; what cannot be read is noted where it is.
    pub(super) fn want(&mut self, package: &Package) -> Override {
        let labels = pairs(&self.labels).unwrap_or_else(|wrong| {
            self.wrong.push(wrong);
            Default::default()
        });
        let targets = Targets {
            devices: listed(&self.devices),
            labels,
            select: Some(self.select.clone()).filter(|text| !text.is_empty()),
            sites: listed(&self.sites),
        };
        if targets == Targets::default() {
            self.wrong.push("Say which devices: labels, names or sites.".to_owned());
        }
        let mut parameters = std::collections::BTreeMap::new();
        for ((_, setting), question) in settings(package).zip(&mut self.questions) {
            match question.answer(None) {
                Ok(Some(value)) => drop(parameters.insert(setting.parameter.clone(), value)),
                Ok(None) => {}
                Err(wrong) => question.wrong = Some(wrong),
            }
        }
        Override { targets, parameters }
    }

    /// Notes what the fleet said about a group; `false` when it is about something else.
    pub(super) fn refused(groups: &mut [Group], violation: &Violation) -> bool {
        let Some(rest) = violation.place.strip_prefix("/overrides/") else { return false };
        let (number, place) = rest.split_once('/').unwrap_or((rest, ""));
        let group = number.parse::<usize>().ok().and_then(|number| groups.get_mut(number));
        let Some(group) = group else { return false };
        let message = sentence(&violation.message);
        let parameter =
            place.strip_prefix("parameters/").map(|name| name.replace("~1", "/").replace("~0", "~"));
        let question = parameter.and_then(|parameter| {
            group.questions.iter_mut().find(|question| {
                parameter == question.parameter || parameter.starts_with(&format!("{}/", question.parameter))
            })
        });
        match question {
            Some(question) => drop(question.wrong.get_or_insert(message)),
            // Who is meant could not be read, and that was told.
            None if place.starts_with("targets") && !group.wrong.is_empty() => {}
            None => group.wrong.push(message),
        }
        true
    }
}

fn words(targets: &Targets) -> String {
    let labels = targets.labels.iter().map(|(key, value)| format!("{key}={value}"));
    labels.collect::<Vec<_>>().join(", ")
}

/// What stands between commas.
pub(super) fn listed(text: &str) -> Vec<String> {
    text.split([',', '\n']).map(str::trim).filter(|part| !part.is_empty()).map(ToOwned::to_owned).collect()
}
