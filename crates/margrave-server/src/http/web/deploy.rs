//! The form that makes and changes deployments.
//!
//! It is built from the package's own sections. What was typed is kept when something is wrong, and every
//! message stands at the field it is about.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use margrave_core::id::{DeploymentName, DeviceRef, InvalidId, ProfileId};
use margrave_wire::operator::{self, PutDeployment, Targets};

use super::Web;
use super::badge::Badge;
use super::deployment;
use super::device::pairs;
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::icon::Logo;
use super::link;
use super::package;
use super::question::{Kind, Question, Scalar};
use super::session::{Changer, Fields, Submitted, Visitor};
use crate::fleet::{DeviceQuery, Error};

/// Devices offered for ticking; larger fleets choose by label.
const DEVICES_MAX: usize = 200;

#[derive(Template)]
#[template(path = "deploy.html")]
struct DeployPage {
    frame: Frame,
    draft: Draft,
    package: operator::Package,
    logo: Logo,
    versions: Vec<Version>,
    profiles: Vec<ProfileChoice>,
    devices: Vec<DeviceChoice>,
    /// There are more devices than are offered here.
    devices_cut: bool,
    action: String,
    back: String,
}

struct Version {
    version: String,
    chosen: bool,
}

struct ProfileChoice {
    id: String,
    words: String,
    chosen: bool,
}

struct DeviceChoice {
    id: String,
    chosen: bool,
    simulated: bool,
    labels: Vec<String>,
    /// `None` where it is not known.
    badge: Option<Badge>,
    reasons: Vec<String>,
}

/// What stands in the form.
struct Draft {
    name: String,
    profile: String,
    sections: Vec<SectionDraft>,
    devices: BTreeSet<String>,
    labels: String,
    /// Why it is to go also where it does not fit.
    force: String,
    /// Set when an existing deployment is being changed: the revision that the form was made from.
    revision: Option<u64>,
    wrong: Wrong,
}

struct SectionDraft {
    name: String,
    questions: Vec<Question>,
}

/// Messages that do not belong to a question.
#[derive(Default)]
struct Wrong {
    name: Option<String>,
    targets: Vec<String>,
    force: Option<String>,
    /// About the whole.
    whole: Vec<String>,
    /// Devices that were chosen and do not fit.
    misfits: Vec<operator::Misfit>,
}

impl Draft {
    /// Whether it is worth asking why it should be forced.
    fn asks_for_force(&self) -> bool {
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
    fn fresh(package: &operator::Package, name: String) -> Self {
        Draft {
            name,
            profile: String::new(),
            sections: Draft::questions(package, |index, setting| Question::new(index, setting, None, false)),
            devices: BTreeSet::new(),
            labels: String::new(),
            force: String::new(),
            revision: None,
            wrong: Wrong::default(),
        }
    }

    /// As first shown for a change.
    fn of(deployment: &operator::Deployment, package: &operator::Package) -> Self {
        let labels = deployment.targets.labels.iter().map(|(key, value)| format!("{key}={value}"));
        Draft {
            name: deployment.name.clone(),
            profile: deployment.profile.clone().unwrap_or_default(),
            sections: Draft::questions(package, |index, setting| {
                Question::new(index, setting, deployment.parameters.get(&setting.parameter), true)
            }),
            devices: deployment.targets.devices.iter().cloned().collect(),
            labels: labels.collect::<Vec<_>>().join(", "),
            force: deployment.force.clone().unwrap_or_default(),
            revision: Some(deployment.revision),
            wrong: Wrong::default(),
        }
    }

    /// As it was sent.
    fn typed(package: &operator::Package, fields: &Fields, name: &str, revision: Option<u64>) -> Self {
        Draft {
            name: name.to_owned(),
            profile: fields.one("profile").to_owned(),
            sections: Draft::questions(package, |index, setting| {
                Question::typed(index, setting, fields, revision.is_some())
            }),
            devices: fields.all("device").map(ToOwned::to_owned).collect(),
            labels: fields.one("labels").to_owned(),
            force: fields.one("force").trim().to_owned(),
            revision,
            wrong: Wrong::default(),
        }
    }

    /// Questions that a secret answers keep it.
    fn keeping_secrets(mut self, held: &BTreeMap<String, serde_json::Value>) -> Self {
        for question in self.sections.iter_mut().flat_map(|section| &mut section.questions) {
            let parameter = question.field.strip_prefix("answer.").unwrap_or_default();
            question.secret = held.get(parameter).filter(|value| value.is_object()).cloned();
        }
        self
    }

    /// What to ask of the fleet; what is wrong is noted at its field, and then there is nothing to ask.
    fn want(&mut self, package: &operator::Package) -> Option<(DeploymentName, PutDeployment)> {
        let name = DeploymentName::parse(&self.name).map_err(|error: InvalidId| {
            self.wrong.name = Some(sentence(&format!("{} {}", error.kind, error.rule)));
        });
        let labels = pairs(&self.labels).map_err(|wrong| self.wrong.targets.push(wrong));
        if self.devices.is_empty() && self.labels.is_empty() {
            self.wrong.targets.push("Tick at least one device, or name labels.".to_owned());
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
                ..Default::default()
            },
            force: Some(self.force.clone()).filter(|reason| !reason.is_empty()),
            rollback: None,
            strategy: None,
            // A new one must not change another of the same name; what is not there is at revision 0.
            revision: Some(self.revision.unwrap_or(0)),
            ..Default::default()
        };
        let fine = name.is_ok() && !self.is_wrong();
        name.ok().filter(|_| fine).map(|name| (name, want))
    }

    fn is_wrong(&self) -> bool {
        let wrong = &self.wrong;
        wrong.name.is_some()
            || !wrong.targets.is_empty()
            || wrong.force.is_some()
            || !wrong.whole.is_empty()
            || !wrong.misfits.is_empty()
            || self
                .sections
                .iter()
                .flat_map(|section| &section.questions)
                .any(|question| question.wrong.is_some())
    }

    /// Notes what the fleet said where it belongs; what is not about the form comes back.
    fn refused(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Invalid(violations) => {
                for violation in violations {
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
                        Some(question) => question.wrong = Some(message),
                        None if violation.place.starts_with("/targets") => self.wrong.targets.push(message),
                        None if violation.place == "/force" => self.wrong.force = Some(message),
                        None if violation.place == "/name" => self.wrong.name = Some(message),
                        None => self.wrong.whole.push(message),
                    }
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

#[derive(serde::Deserialize)]
pub(super) struct Which {
    package: Option<String>,
    version: Option<String>,
}

pub(super) async fn new(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Query(which): Query<Which>,
) -> Result<Response, PageError> {
    let Some(id) = which.package else { return Ok(Redirect::to("/packages").into_response()) };
    let package = find(&web, &id, which.version.as_deref()).await?;
    let name = free_name(&web, &package.id).await?;
    let draft = Draft::fresh(&package, name);
    form(&web, &visitor, draft, package).await
}

pub(super) async fn create(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let package = find(&web, fields.one("package"), Some(fields.one("version"))).await?;
    visitor.note.subject(fields.one("name"));
    let mut draft = Draft::typed(&package, &fields, fields.one("name"), None);
    if let Ok(name) = DeploymentName::parse(&draft.name)
        && web.fleet().deployment_counted(&name).await.is_ok_and(|found| !found.removing)
    {
        draft.wrong.name =
            Some("There is a deployment of this name. Choose another, or change that one.".to_owned());
    }
    submit(&web, visitor, draft, package).await
}

pub(super) async fn edit(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Path(name): Path<String>,
    Query(which): Query<Which>,
) -> Result<Response, PageError> {
    let deployment = web.fleet().deployment_counted(&deployment::parse(&name)?).await?;
    let version = which.version.as_deref().unwrap_or(&deployment.version);
    let package = find(&web, &deployment.package, Some(version)).await?;
    let draft = Draft::of(&deployment, &package).keeping_secrets(&deployment.parameters);
    form(&web, &visitor, draft, package).await
}

pub(super) async fn change(
    State(web): State<Web>,
    Path(name): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let name = deployment::parse(&name)?;
    let deployment = web.fleet().deployment_counted(&name).await?;
    let package = find(&web, &deployment.package, Some(fields.one("version"))).await?;
    let revision = fields.one("revision").parse();
    let revision =
        revision.map_err(|_| PageError::Malformed("The form has lost its revision.".to_owned()))?;
    let draft = Draft::typed(&package, &fields, name.as_str(), Some(revision));
    let draft = draft.keeping_secrets(&deployment.parameters);
    submit(&web, visitor, draft, package).await
}

async fn submit(
    web: &Web,
    visitor: Visitor,
    mut draft: Draft,
    package: operator::Package,
) -> Result<Response, PageError> {
    if let Some((name, mut want)) = draft.want(&package) {
        keep_unasked(web, &name, &mut want).await?;
        if let Some(reason) = &want.force {
            visitor.note.detail(format!("forced: {reason}"));
        }
        match web.fleet().put_deployment(&visitor.actor, &name, want).await {
            Ok(deployment) => return Ok(Redirect::to(&link::deployment(&deployment.name)).into_response()),
            Err(error) => draft.refused(error)?,
        }
    }
    let page = form(web, &visitor, draft, package).await?;
    Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response())
}

/// What a deployment has that this form does not ask for stays as it is.
async fn keep_unasked(web: &Web, name: &DeploymentName, want: &mut PutDeployment) -> Result<(), PageError> {
    match web.fleet().deployment_counted(name).await {
        Ok(held) if !held.removing => {
            want.overrides = held.overrides;
            want.targets.select = held.targets.select;
            want.targets.sites = held.targets.sites;
            Ok(())
        }
        Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn form(
    web: &Web,
    visitor: &Visitor,
    draft: Draft,
    package: operator::Package,
) -> Result<Response, PageError> {
    let title = match draft.revision {
        Some(_) => format!("Change {}", draft.name),
        None => format!("Deploy {}", package.name),
    };
    let frame = Frame::new(web, visitor, Section::Deployments, title).await?;
    let (devices, devices_cut) = devices(web, &draft, &package).await?;
    let versions = web
        .fleet()
        .packages()
        .await?
        .into_iter()
        .filter(|other| other.id == package.id)
        .map(|other| Version { chosen: other.version == package.version, version: other.version })
        .collect();
    let profiles = package.profiles.iter().map(|profile| {
        let words = profile.description.as_deref().map(|text| format!(" – {text}")).unwrap_or_default();
        ProfileChoice {
            id: profile.id.clone(),
            words: format!("{} ({}){words}", profile.id, profile.kind),
            chosen: profile.id == draft.profile,
        }
    });
    let (action, back) = match draft.revision {
        Some(_) => (format!("{}/edit", link::deployment(&draft.name)), link::deployment(&draft.name)),
        None => ("/deploy".to_owned(), link::package(&package.id, &package.version)),
    };
    render(&DeployPage {
        frame,
        logo: Logo::of(&package),
        versions,
        profiles: profiles.collect(),
        devices,
        devices_cut,
        action,
        back,
        draft,
        package,
    })
}

/// The devices to tick, each with whether it fits.
async fn devices(
    web: &Web,
    draft: &Draft,
    package: &operator::Package,
) -> Result<(Vec<DeviceChoice>, bool), PageError> {
    let query = DeviceQuery { limit: Some(DEVICES_MAX), ..DeviceQuery::default() };
    let page = web.fleet().devices(query).await?;
    let mut choices: Vec<DeviceChoice> = page
        .items
        .iter()
        .filter(|device| device.standing != "retired" || draft.devices.contains(&device.id))
        .map(|device| DeviceChoice {
            id: device.id.clone(),
            chosen: draft.devices.contains(&device.id),
            simulated: device.simulated,
            labels: device.labels.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            badge: None,
            reasons: Vec::new(),
        })
        .collect();
    // What is chosen must stay chosen, also when it is not among the first.
    for device in &draft.devices {
        if !choices.iter().any(|choice| &choice.id == device) {
            choices.push(DeviceChoice {
                id: device.clone(),
                chosen: true,
                simulated: false,
                labels: Vec::new(),
                badge: None,
                reasons: Vec::new(),
            });
        }
    }
    let (fits, mut misfits) = fits(web, draft, package, &choices).await?;
    misfits.extend(draft.wrong.misfits.iter().map(|misfit| (misfit.device.clone(), misfit.reasons.clone())));
    for choice in &mut choices {
        if let Some(reasons) = misfits.get(&choice.id) {
            choice.badge = Some(Badge::does_not_fit());
            choice.reasons = reasons.iter().map(|reason| sentence(reason)).collect();
        } else if fits.contains(&choice.id) {
            choice.badge = Some(Badge::fits());
        }
    }
    // Those that fit first; the order of names within each.
    choices.sort_by_key(|choice| !choice.reasons.is_empty() && !choice.chosen);
    Ok((choices, page.next.is_some()))
}

/// Which of the choices fit, and why the others do not.
async fn fits(
    web: &Web,
    draft: &Draft,
    package: &operator::Package,
    choices: &[DeviceChoice],
) -> Result<(BTreeSet<String>, BTreeMap<String, Vec<String>>), PageError> {
    let (id, version) = package::parse(&package.id, &package.version)?;
    let profile = ProfileId::parse(&draft.profile).ok();
    // What was sent as a device need not be one; the form says so beside it.
    let devices = choices.iter().filter_map(|choice| DeviceRef::parse(&choice.id).ok());
    let of = draft.revision.and_then(|_| DeploymentName::parse(&draft.name).ok());
    let preview = web.fleet().fits(&id, &version, profile.as_ref(), of.as_ref(), devices).await?;
    let fits = preview.fits.into_iter().map(|fit| fit.device).collect();
    let misfits = preview.misfits.into_iter().map(|misfit| (misfit.device, misfit.reasons)).collect();
    Ok((fits, misfits))
}

/// The package at this version, or at its newest when none is named.
async fn find(web: &Web, id: &str, version: Option<&str>) -> Result<operator::Package, PageError> {
    if let Some(version) = version.filter(|version| !version.is_empty()) {
        let (id, version) = package::parse(id, version)?;
        return Ok(web.fleet().package(&id, &version).await?);
    }
    let newest = web.fleet().packages().await?.into_iter().filter(|package| package.id == id);
    newest.max_by(|a, b| a.added_at.cmp(&b.added_at)).ok_or(PageError::NotFound)
}

/// A name to begin with: the package's own, numbered when taken.
async fn free_name(web: &Web, package: &str) -> Result<String, PageError> {
    let base: String = package.trim_matches('-').chars().take(58).collect();
    let base = base.trim_end_matches('-');
    for number in 1..100 {
        let name = if number == 1 { base.to_owned() } else { format!("{base}-{number}") };
        let Ok(parsed) = DeploymentName::parse(&name) else { break };
        match web.fleet().deployment_counted(&parsed).await {
            Ok(_) => {}
            Err(Error::NotFound { .. }) => return Ok(name),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(String::new())
}
