//! What stands in the form of a deployment, right or wrong, and what it asks of the fleet.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::id::{DeploymentName, InvalidId};
use margrave_core::violation::Violation;
use margrave_wire::operator::{self, PutDeployment, SealSecret, Targets};
use margrave_wire::rollout::StrategyBody;

use super::care::Care;
use super::deployment::who;
use super::device::pairs;
use super::error::sentence;
use super::group::{GROUPS_MAX, Group, listed};
use super::link;
use super::pace::Pace;
use super::question::{Question, SECRET};
use super::session::Fields;
use super::tiers::{counted, grouped};
use crate::fleet::{Error, Fleet};

/// A form shows everybody that a deployment names up to so many.
const NAMED_MAX: usize = 200;
/// So much is told of what is wrong with who is named; the rest is counted.
const WRONG_MAX: usize = 20;

/// What stands in the form.
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) profile: String,
    pub(super) sections: Vec<SectionDraft>,
    pub(super) devices: BTreeSet<String>,
    /// Set where the deployment that is being changed names more devices than its form shows.
    pub(super) named: Option<Named>,
    /// Which devices are offered for ticking: part of a name, and a site.
    pub(super) search: String,
    pub(super) site: String,
    pub(super) labels: String,
    pub(super) sites: String,
    /// An expression on labels.
    pub(super) select: String,
    pub(super) pace: Pace,
    pub(super) care: Care,
    /// Why it is to go also where it does not fit.
    pub(super) force: String,
    /// Other answers for some of the devices; `None` where the form did not ask for them.
    pub(super) groups: Option<Vec<Group>>,
    /// How many of them the deployment has that is being changed.
    pub(super) groups_held: usize,
    /// The form asked for sites and an expression.
    asked: bool,
    /// Set when an existing deployment is being changed: the revision that the form was made from.
    pub(super) revision: Option<u64>,
    pub(super) wrong: Wrong,
}

/// Devices that a deployment names. There may be ten thousand, so its form says of those that it does not show only that they stay,
/// and which of them came and went by hand.
pub(super) struct Named {
    /// The revision that names them.
    pub(super) revision: u64,
    pub(super) devices: BTreeSet<String>,
    /// Those that are not shown stay; otherwise only who is ticked is named.
    pub(super) stay: bool,
}

impl Named {
    pub(super) fn at(revision: u64, devices: &[String], stay: bool) -> Self {
        Named { revision, devices: devices.iter().cloned().collect(), stay }
    }

    /// Who the form is about besides those that it showed.
    fn staying(&self) -> impl Iterator<Item = &String> {
        self.devices.iter().filter(|_| self.stay)
    }
}

/// Devices of a form that it does not show.
pub(super) struct Unshown {
    /// Named before the form was made.
    pub(super) named: usize,
    /// Ticked since.
    pub(super) added: Vec<String>,
    /// Named before, and not any more.
    pub(super) dropped: Vec<String>,
}

impl Unshown {
    pub(super) fn named_words(&self) -> String {
        grouped(self.named as u64)
    }

    pub(super) fn added_words(&self) -> String {
        more_were(self.added.len())
    }

    pub(super) fn dropped_words(&self) -> String {
        more_were(self.dropped.len())
    }
}

fn more_were(count: usize) -> String {
    format!("{} more {}", grouped(count as u64), if count == 1 { "was" } else { "were" })
}

pub(super) struct SectionDraft {
    pub(super) name: String,
    pub(super) questions: Vec<Question>,
}

/// Messages that do not belong to a question.
#[derive(Default)]
pub(super) struct Wrong {
    pub(super) name: Option<String>,
    pub(super) profile: Option<String>,
    pub(super) targets: Vec<String>,
    /// Devices that cannot be named.
    pub(super) devices: BTreeSet<String>,
    pub(super) force: Option<String>,
    /// About the whole.
    pub(super) whole: Vec<String>,
    /// Devices that were chosen and do not fit.
    pub(super) misfits: Vec<operator::Misfit>,
    /// Somebody else was faster.
    pub(super) overtaken: Option<Overtaken>,
}

/// That a deployment was changed between the form and its sending.
pub(super) struct Overtaken {
    pub(super) by: String,
    /// The revision that the form was made from.
    pub(super) seen: u64,
    pub(super) now: u64,
    /// What differs between them.
    pub(super) path: String,
}

impl Draft {
    /// Whether it is worth asking why it should be forced.
    pub(super) fn asks_for_force(&self) -> bool {
        !self.force.is_empty() || !self.wrong.misfits.is_empty() || self.wrong.force.is_some()
    }

    fn questions(
        package: &operator::Package,
        mut make: impl FnMut(usize, &operator::PackageSetting) -> Question,
    ) -> Vec<SectionDraft> {
        let mut index = 0;
        let mut sections = Vec::new();
        for section in &package.sections {
            let mut questions = Vec::new();
            for setting in &section.settings {
                questions.push(make(index, setting));
                index += 1;
            }
            sections.push(SectionDraft { name: section.name.clone(), questions });
        }
        sections
    }

    /// As first shown for a new deployment.
    pub(super) fn fresh(
        package: &operator::Package,
        name: String,
        (strategy, rollback): (&StrategyBody, &operator::Rollback),
    ) -> Self {
        Draft {
            name,
            profile: String::new(),
            sections: Draft::questions(package, |index, setting| Question::new(index, setting, None, false)),
            devices: BTreeSet::new(),
            named: None,
            search: String::new(),
            site: String::new(),
            labels: String::new(),
            sites: String::new(),
            select: String::new(),
            pace: Pace::of(strategy),
            care: Care::of(&[], rollback),
            force: String::new(),
            groups: Some(Vec::new()),
            groups_held: 0,
            asked: true,
            revision: None,
            wrong: Wrong::default(),
        }
    }

    /// As first shown for a change.
    pub(super) fn of(deployment: &operator::Deployment, package: &operator::Package) -> Self {
        let labels = deployment.targets.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let devices = &deployment.targets.devices;
        let named = (devices.len() > NAMED_MAX).then(|| Named::at(deployment.revision, devices, true));
        Draft {
            name: deployment.name.clone(),
            profile: deployment.profile.clone().unwrap_or_default(),
            sections: Draft::questions(package, |index, setting| {
                Question::new(index, setting, deployment.parameters.get(&setting.parameter), true)
            }),
            devices: devices.iter().cloned().collect(),
            named,
            search: String::new(),
            site: String::new(),
            labels: labels.collect::<Vec<_>>().join(", "),
            sites: deployment.targets.sites.join(", "),
            select: deployment.targets.select.clone().unwrap_or_default(),
            pace: Pace::of(&deployment.strategy),
            care: Care::of(&deployment.windows, &deployment.rollback),
            force: deployment.force.clone().unwrap_or_default(),
            groups: Group::all(&deployment.overrides, package),
            groups_held: deployment.overrides.len(),
            asked: true,
            revision: Some(deployment.revision),
            wrong: Wrong::default(),
        }
    }

    /// As it was sent: for a new deployment, or for a change of one that was seen at a revision. `named` is who is named besides
    /// those that the form showed.
    pub(super) fn typed(
        package: &operator::Package,
        fields: &Fields,
        name: &str,
        changed: Option<(&operator::Deployment, u64)>,
        named: Option<Named>,
    ) -> Self {
        let held = changed.map(|(deployment, _)| deployment);
        let [shown, added, dropped] = ["shown", "added", "dropped"]
            .map(|name| -> BTreeSet<String> { listed(fields.one(name)).into_iter().collect() });
        let unshown = named.iter().flat_map(Named::staying).filter(|device| !dropped.contains(*device));
        let unshown = unshown.chain(&added).filter(|device| !shown.contains(*device)).cloned();
        let ticked = fields.all("device").map(ToOwned::to_owned);
        let devices = unshown.chain(ticked).collect();
        Draft {
            name: name.to_owned(),
            profile: fields.one("profile").to_owned(),
            sections: Draft::questions(package, |index, setting| {
                Question::typed(index, setting, fields, held.map(|held| &held.parameters))
            }),
            devices,
            named,
            search: fields.one("find-search").to_owned(),
            site: fields.one("find-site").to_owned(),
            labels: fields.one("labels").to_owned(),
            sites: fields.one("sites").to_owned(),
            select: fields.one("select").to_owned(),
            pace: Pace::typed(fields),
            care: Care::typed(fields),
            force: fields.one("force").trim().to_owned(),
            groups: Group::typed(package, fields, held.map(|held| &*held.overrides).unwrap_or_default()),
            groups_held: held.map_or(0, |held| held.overrides.len()),
            asked: fields.raw("select").is_some(),
            revision: changed.map(|(_, seen)| seen),
            wrong: Wrong::default(),
        }
    }

    /// Who is named, or was, and is not among those that are shown.
    pub(super) fn unshown(&self, shown: &BTreeSet<&str>) -> Unshown {
        let nobody = BTreeSet::new();
        let stays = self.named.as_ref().is_none_or(|named| named.stay);
        let named = self.named.as_ref().map_or(&nobody, |named| &named.devices);
        let hidden = |device: &&String| !shown.contains(device.as_str());
        let base = if stays { named } else { &nobody };
        let dropped: Vec<String> = base.difference(&self.devices).filter(hidden).cloned().collect();
        Unshown {
            named: named.iter().filter(hidden).count() - dropped.len(),
            added: self.devices.difference(base).filter(hidden).cloned().collect(),
            dropped,
        }
    }

    /// The form was made for another version: what only this one asks has its usual answer.
    pub(super) fn ask_as_well(&mut self, package: &operator::Package, before: &operator::Package) {
        let asked: BTreeSet<&str> = before
            .sections
            .iter()
            .flat_map(|section| &section.settings)
            .map(|setting| setting.parameter.as_str())
            .collect();
        let settings = package.sections.iter().flat_map(|section| &section.settings);
        let questions = self.sections.iter_mut().flat_map(|section| &mut section.questions);
        for (index, (setting, question)) in settings.zip(questions).enumerate() {
            if !asked.contains(setting.parameter.as_str()) {
                *question = Question::new(index, setting, None, self.revision.is_some());
            }
        }
    }

    fn every_question(&mut self) -> impl Iterator<Item = &mut Question> {
        let of_groups = self.groups.iter_mut().flatten().flat_map(|group| &mut group.questions);
        self.sections.iter_mut().flat_map(|section| &mut section.questions).chain(of_groups)
    }

    /// Seals what was typed as a secret, so that nothing that follows from this form tells it: neither its own pages, nor the
    /// command that they show, nor what is written down.
    pub(super) fn seal(&mut self, fleet: &Fleet) -> Result<(), Error> {
        let deployment = self.name.clone();
        let named = DeploymentName::parse(&deployment).is_ok();
        for question in self.every_question() {
            if !named && question.typed_secret.is_some() {
                let wrong = "A secret is sealed for its deployment: correct the name, and type it again.";
                question.wrong = Some(wrong.to_owned());
                continue;
            }
            let Some(value) = question.typed_secret.take() else { continue };
            let parameter = question.parameter.clone();
            match fleet.seal(&SealSecret { deployment: deployment.clone(), parameter, value }) {
                Ok(sealed) => {
                    question.secret =
                        Some(serde_json::json!({ "secret": { "sealed": sealed.secret.sealed } }));
                    question.values = Vec::new();
                }
                Err(Error::Invalid(violations)) => {
                    question.wrong = violations.first().map(|violation| sentence(&violation.message));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What was sent, to be sent again from another page, with secrets only as they were sealed.
    pub(super) fn carried(&mut self, fields: &Fields) -> Vec<(String, String)> {
        let (gone, sealed): (Vec<_>, Vec<_>) =
            self.every_question().filter_map(|question| question.carried()).unzip();
        let gone: BTreeSet<String> = gone.into_iter().flatten().collect();
        let kept = fields.pairs().filter(|(name, _)| {
            !matches!(*name, "csrf" | "do") && !name.starts_with(SECRET) && !gone.contains(*name)
        });
        kept.map(|(name, value)| (name.to_owned(), value.to_owned())).chain(sealed).collect()
    }

    /// What to ask of the fleet, as far as it can be read; what cannot is noted at its field.
    pub(super) fn want(&mut self, package: &operator::Package) -> (Option<DeploymentName>, PutDeployment) {
        let name = DeploymentName::parse(&self.name).map_err(|error: InvalidId| {
            self.wrong.name = Some(sentence(&format!("{} {}", error.kind, error.rule)));
        });
        let labels = pairs(&self.labels).map_err(|wrong| self.wrong.targets.push(wrong));
        let nowhere = [&self.labels, &self.sites, &self.select].iter().all(|text| text.is_empty());
        if self.devices.is_empty() && nowhere && self.asked_for_all() {
            self.wrong.targets.push("Tick at least one device, or name labels or sites.".to_owned());
        }
        let mut parameters = BTreeMap::new();
        let settings = package.sections.iter().flat_map(|section| &section.settings);
        for (setting, question) in
            settings.zip(self.sections.iter_mut().flat_map(|section| &mut section.questions))
        {
            match question.answer(setting.default.as_ref()) {
                Ok(Some(value)) => {
                    parameters.insert(setting.parameter.clone(), value);
                }
                Ok(None) => {}
                Err(wrong) => question.wrong = Some(wrong),
            }
        }
        let want = PutDeployment {
            package: package.id.clone(),
            version: Some(package.version.clone()),
            profile: Some(self.profile.clone()).filter(|profile| !profile.is_empty()),
            parameters,
            targets: Targets {
                devices: self.devices.iter().cloned().collect(),
                labels: labels.unwrap_or_default(),
                select: Some(self.select.clone()).filter(|text| !text.is_empty()),
                sites: listed(&self.sites),
            },
            overrides: self.groups.iter_mut().flatten().map(|group| group.want(package)).collect(),
            force: Some(self.force.clone()).filter(|reason| !reason.is_empty()),
            rollback: self.care.rollback(),
            strategy: self.pace.want(),
            windows: self.care.windows(),
            // A new one must not change another of the same name; what is not there is at revision 0.
            revision: Some(self.revision.unwrap_or(0)),
        };
        (name.ok(), want)
    }

    /// Who was chosen and does not fit, as far as the top of the form tells it; and how many more there are.
    pub(super) fn misfits(&self) -> (&[operator::Misfit], Option<String>) {
        let misfits = &self.wrong.misfits;
        let told = misfits.len().min(WRONG_MAX);
        let more = (misfits.len() - told) as u64;
        (&misfits[..told], (more > 0).then(|| grouped(more)))
    }

    pub(super) fn groups_words(&self) -> String {
        counted(self.groups_held as u64, "group")
    }

    /// Where something is wrong, for the top of the form to lead to: what it is called, and its place in the page.
    pub(super) fn marked(&self) -> Vec<(String, String)> {
        let care = &self.care;
        let said =
            |is_wrong: bool, label: &str, id: &str| is_wrong.then(|| (label.to_owned(), id.to_owned()));
        let questions = self.sections.iter().flat_map(|section| &section.questions);
        let questions = questions.filter(|question| question.wrong.is_some());
        let paces = self.pace.fields.iter().filter(|field| field.wrong.is_some());
        said(self.wrong.name.is_some(), "Name", "name")
            .into_iter()
            .chain(said(self.wrong.profile.is_some(), "Profile", "profile"))
            .chain(questions.map(|question| (question.name.clone(), format!("{}-field", question.id))))
            .chain(said(self.groups.iter().flatten().any(Group::is_wrong), "Other answers", "groups-title"))
            .chain(said(!self.wrong.targets.is_empty(), "Where", "targets-title"))
            .chain(said(self.wrong.force.is_some(), "Deploy also where it does not fit", "force"))
            .chain(said(!self.pace.wrong.is_empty(), "How fast", "pace-title"))
            .chain(paces.map(|field| (field.label.to_string(), field.field.to_string())))
            .chain(said(!care.wrong.is_empty(), "When, and what if it fails", "care-title"))
            .chain(said(!care.wrong_windows.is_empty(), "Changes may begin only", "windows"))
            .chain(said(care.wrong_attempts.is_some(), "Give up after so many attempts", "attempts"))
            .chain(said(care.wrong_grace.is_some(), "It may look unhealthy for", "health-grace"))
            .collect()
    }

    pub(super) fn is_wrong(&self) -> bool {
        let wrong = &self.wrong;
        wrong.name.is_some()
            || wrong.profile.is_some()
            || !wrong.targets.is_empty()
            || wrong.force.is_some()
            || !wrong.whole.is_empty()
            || !wrong.misfits.is_empty()
            || wrong.overtaken.is_some()
            || self.pace.is_wrong()
            || self.care.is_wrong()
            || self.groups.iter().flatten().any(Group::is_wrong)
            || self
                .sections
                .iter()
                .flat_map(|section| &section.questions)
                .any(|question| question.wrong.is_some())
    }

    /// What a deployment has that the form did not ask for stays as it is.
    pub(super) fn keep_unasked(&self, held: operator::Deployment, want: &mut PutDeployment) {
        if !self.asked {
            want.targets.select = held.targets.select;
            want.targets.sites = held.targets.sites;
        }
        if self.groups.is_none() {
            want.overrides = held.overrides;
        }
    }

    /// Whether a deployment is as this form wants it.
    pub(super) fn is_done(&mut self, held: &operator::Deployment, package: &operator::Package) -> bool {
        if self.every_question().any(|question| question.typed_secret.is_some()) {
            // What it was sealed as the first time says nothing about what is typed now.
            return false;
        }
        let taken = self.wrong.name.take();
        let (_, mut want) = self.want(package);
        let readable = !self.is_wrong();
        self.wrong.name = taken;
        self.keep_unasked(held.clone(), &mut want);
        let sorted = |targets: &Targets| {
            let mut targets = targets.clone();
            targets.devices.sort();
            targets.sites.sort();
            targets
        };
        readable
            && want.package == held.package
            && want.version.as_ref() == Some(&held.version)
            && want.profile == held.profile
            && want.parameters == held.parameters
            && want.overrides == held.overrides
            && sorted(&want.targets) == sorted(&held.targets)
            && want.force == held.force
            && want.rollback.is_none_or(|rollback| rollback == held.rollback)
            && want.strategy.is_none_or(|strategy| strategy == held.strategy)
            && want.windows.is_none_or(|windows| windows == held.windows)
    }

    /// Whether nothing chosen in the form means nothing at all, or a change may still have other targets.
    fn asked_for_all(&self) -> bool {
        self.asked || self.revision.is_none()
    }

    /// Says who was faster. The form is about what is there now, so that who sends it once more, having been told, is heard.
    pub(super) fn overtaken(&mut self, now: &operator::Deployment, seen: u64) {
        let path = format!("{}/revisions/{}?against={seen}", link::deployment(&now.name), now.revision);
        self.wrong.overtaken = Some(Overtaken { by: who(&now.changed_by), seen, now: now.revision, path });
        self.revision = Some(now.revision);
    }

    /// One more group to answer otherwise for.
    pub(super) fn add_group(&mut self, package: &operator::Package) {
        let groups = self.groups.get_or_insert_default();
        if groups.len() < GROUPS_MAX {
            groups.push(Group::empty(groups.len(), package));
        }
    }

    /// Whether the form takes one more group.
    pub(super) fn takes_groups(&self) -> bool {
        self.groups.as_ref().is_some_and(|groups| groups.len() < GROUPS_MAX)
    }

    /// Notes what the fleet said where it belongs; what is not about the form comes back.
    pub(super) fn refused(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Invalid(violations) => {
                // As they were asked for.
                let named: Vec<&String> = self.devices.iter().collect();
                let index =
                    |violation: &Violation| violation.place.strip_prefix("/targets/devices/")?.parse().ok();
                let wrong = violations
                    .iter()
                    .filter_map(index)
                    .filter_map(|at: usize| named.get(at).copied().cloned());
                self.wrong.devices = wrong.collect();
                for violation in violations {
                    let groups = self.groups.as_deref_mut().unwrap_or_default();
                    if self.pace.refused(&violation)
                        || self.care.refused(&violation)
                        || Group::refused(groups, &violation)
                    {
                        continue;
                    }
                    let message = sentence(&violation.message);
                    let parameter = violation.place.strip_prefix("/parameters/").map(unescape);
                    let field = parameter.map(|parameter| format!("answer.{parameter}"));
                    let questions = self.sections.iter_mut().flat_map(|section| &mut section.questions);
                    let question = field.and_then(|field| {
                        questions.into_iter().find(|question| {
                            // A list's values are places below the parameter.
                            field == question.field || field.starts_with(&format!("{}/", question.field))
                        })
                    });
                    match question {
                        // What could not even be read was told already, and is not missing.
                        Some(question) => drop(question.wrong.get_or_insert(message)),
                        None if violation.place == "/targets" && !self.wrong.targets.is_empty() => {}
                        None if violation.place.starts_with("/targets") => self.wrong.targets.push(message),
                        None if violation.place == "/force" => self.wrong.force = Some(message),
                        None if violation.place == "/name" => self.wrong.name = Some(message),
                        None if violation.place == "/profile" => self.wrong.profile = Some(message),
                        None => self.wrong.whole.push(message),
                    }
                }
                let more = self.wrong.targets.len().saturating_sub(WRONG_MAX);
                if more > 0 {
                    self.wrong.targets.truncate(WRONG_MAX);
                    self.wrong.targets.push(format!("The same of {} more.", grouped(more as u64)));
                }
                Ok(())
            }
            Error::Misfit(misfits) => {
                self.wrong.misfits = misfits;
                Ok(())
            }
            Error::Conflict { message } => {
                self.wrong.whole.push(sentence(&message));
                Ok(())
            }
            error => Err(error),
        }
    }
}

/// JSON Pointer's two escapes (RFC 6901).
fn unescape(segment: &str) -> String {
    segment.replace("~1", "/").replace("~0", "~")
}
