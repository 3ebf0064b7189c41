//! The way from a package to its devices, and the same way for a change: a form, what it would do, and doing it.
//!
//! The form is built from the package's own sections (`draft.rs` is what stands in it). What was typed is kept when something
//! is wrong, and every message stands at the field it is about. `rehearsal.rs` shows what will happen before it does.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use margrave_core::id::{DeploymentName, DeviceRef, ProfileId};
use margrave_wire::intent::PlannedMisfit;
use margrave_wire::operator::{self, PutDeployment};

use super::Web;
use super::address::{Path, Query};
use super::badge::Badge;
use super::command::Command;
use super::deployment;
use super::draft::{Draft, Named, Unshown};
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::icon::Logo;
use super::link;
use super::package;
use super::question::{Kind, Scalar};
use super::rehearsal;
use super::session::{Changer, Deploying, Fields, Submitted, Visitor};
use super::tiers::grouped;
use super::told::Told;
use crate::fleet::{Actor, DeviceQuery, Error, Standing};

/// Devices offered for ticking; larger fleets search, or choose by label.
const DEVICES_MAX: usize = 200;
/// Devices besides them that are ticked and shown; those that something is wrong with come first.
const TICKED_MAX: usize = 100;
/// With so many and more, looking for some is offered.
const FINDS_FROM: usize = 20;
/// Devices that are looked at to say how many fit: each costs a look at what it can do.
const FITTED_MAX: usize = 10_000;
/// Reasons that are told of those that do not.
const REASONS_MAX: usize = 3;
/// Sites that are offered.
const SITES_MAX: usize = 500;

#[derive(Template)]
#[template(path = "deploy.html")]
struct DeployPage {
    frame: Frame,
    draft: Draft,
    package: operator::Package,
    logo: Logo,
    versions: Vec<Version>,
    profiles: Vec<ProfileChoice>,
    choice: Choice,
    action: String,
    back: String,
    /// How groups are changed that are too many for the form.
    groups_command: Command,
}

/// The devices that are offered for ticking.
struct Choice {
    devices: Vec<DeviceChoice>,
    /// There are more than are offered.
    cut: bool,
    /// It is worth looking for some.
    finds: bool,
    sites: Vec<String>,
    /// Who is not shown, where somebody is not.
    unshown: Unshown,
    /// Everybody who is, for the server to tell who was unticked.
    shown: String,
    /// "8,412 fit; 1,588 do not: needs 4 cores, has 2 (1,200)".
    words: String,
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
    is_wanted_here(&web)?;
    let package = find(&web, &id, which.version.as_deref()).await?;
    let name = free_name(&web, &package.id).await?;
    let (strategy, rollback) = web.fleet().usual_care().await?;
    let draft = Draft::fresh(&package, name, (&strategy, &rollback));
    form(&web, &visitor, draft, package).await
}

/// Nobody fills in a form that would be refused.
fn is_wanted_here(web: &Web) -> Result<(), PageError> {
    match web.fleet().follows() {
        Some(remote) => {
            let message = format!("what is wanted follows {remote}; change it there");
            Err(Error::Conflict { message }.into())
        }
        None => Ok(()),
    }
}

pub(super) async fn create(
    State(web): State<Web>,
    submitted: Submitted<Deploying>,
) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    visitor.note.subject(fields.one("name"));
    let (draft, package) = new_draft(&web, &fields).await?;
    let twin = new_draft(&web, &fields).await?.0;
    if let Some(done) = done_already(&web, &visitor, twin, &package).await? {
        return Ok(done);
    }
    submit(&web, visitor, draft, package).await
}

/// The same up to the point where something would be changed.
pub(super) async fn create_rehearsed(
    State(web): State<Web>,
    submitted: Submitted<Deploying>,
) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    visitor.note.subject(fields.one("name"));
    let (draft, package) = new_draft(&web, &fields).await?;
    rehearse(&web, visitor, &fields, draft, package).await
}

async fn new_draft(web: &Web, fields: &Fields) -> Result<(Draft, operator::Package), PageError> {
    let package = find(web, fields.one("package"), Some(fields.one("version"))).await?;
    let mut draft = Draft::typed(&package, fields, fields.one("name"), None, None);
    if let Ok(name) = DeploymentName::parse(&draft.name)
        && web.fleet().deployment_counted(&name).await.is_ok_and(|found| !found.removing)
    {
        draft.wrong.name =
            Some("There is a deployment of this name. Choose another, or change that one.".to_owned());
    }
    Ok((draft, package))
}

pub(super) async fn edit(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Path(name): Path<String>,
    Query(which): Query<Which>,
) -> Result<Response, PageError> {
    let deployment = web.fleet().deployment_counted(&deployment::parse(&name)?).await?;
    is_wanted_here(&web)?;
    let version = which.version.as_deref().unwrap_or(&deployment.version);
    let package = find(&web, &deployment.package, Some(version)).await?;
    let draft = Draft::of(&deployment, &package);
    form(&web, &visitor, draft, package).await
}

pub(super) async fn change(
    State(web): State<Web>,
    Path(name): Path<String>,
    submitted: Submitted<Deploying>,
) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let (draft, package) = changed_draft(&web, &name, &fields).await?;
    let twin = changed_draft(&web, &name, &fields).await?.0;
    if let Some(done) = done_already(&web, &visitor, twin, &package).await? {
        return Ok(done);
    }
    submit(&web, visitor, draft, package).await
}

/// Who pressed the button twice has what was asked for: a form that is sent again by the same person, right behind itself, leads to
/// what it did the first time.
async fn done_already(
    web: &Web,
    visitor: &Visitor,
    mut draft: Draft,
    package: &operator::Package,
) -> Result<Option<Response>, PageError> {
    let Ok(name) = DeploymentName::parse(&draft.name) else { return Ok(None) };
    let held = match web.fleet().deployment_counted(&name).await {
        Ok(held) if !held.removing && held.changed_by == visitor.actor.name => held,
        Ok(_) | Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // A name that was used before goes on counting, so a new deployment need not be at revision 1.
    let next = draft.revision.is_none_or(|seen| held.revision == seen + 1);
    if !next || !draft.is_done(&held, package) {
        return Ok(None);
    }
    Ok(Some(Redirect::to(&link::deployment(&held.name)).into_response()))
}

pub(super) async fn change_rehearsed(
    State(web): State<Web>,
    Path(name): Path<String>,
    submitted: Submitted<Deploying>,
) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let (draft, package) = changed_draft(&web, &name, &fields).await?;
    rehearse(&web, visitor, &fields, draft, package).await
}

async fn changed_draft(
    web: &Web,
    name: &str,
    fields: &Fields,
) -> Result<(Draft, operator::Package), PageError> {
    let name = deployment::parse(name)?;
    let deployment = web.fleet().deployment_counted(&name).await?;
    let package = find(web, &deployment.package, Some(fields.one("version"))).await?;
    let revision = fields.one("revision").parse();
    let revision =
        revision.map_err(|_| PageError::Malformed("The form has lost its revision.".to_owned()))?;
    let named = named(web, &deployment, &name, fields).await?;
    Ok((Draft::typed(&package, fields, name.as_str(), Some((&deployment, revision)), named), package))
}

/// Who the deployment named when the form was made, where it did not show them all.
async fn named(
    web: &Web,
    deployment: &operator::Deployment,
    name: &DeploymentName,
    fields: &Fields,
) -> Result<Option<Named>, PageError> {
    let Some(revision) = fields.raw("named-at") else { return Ok(None) };
    let stay = fields.raw("stay").is_some();
    let found = match revision.parse() {
        Ok(revision) if revision == deployment.revision => {
            Some(Named::at(revision, &deployment.targets.devices, stay))
        }
        Ok(revision) => {
            web.fleet().named_at(name, revision).await?.map(|devices| Named::at(revision, &devices, stay))
        }
        Err(_) => None,
    };
    let lost = "The form says who stays by a revision that is not kept any more. Open it again.";
    found.map(Some).ok_or_else(|| PageError::Malformed(lost.to_owned()))
}

async fn submit(
    web: &Web,
    visitor: Visitor,
    mut draft: Draft,
    package: operator::Package,
) -> Result<Response, PageError> {
    draft.seal(web.fleet())?;
    if let Some((name, want)) = asked(web, &visitor.actor, &mut draft, &package).await? {
        if let Some(reason) = &want.force {
            visitor.note.detail(format!("forced: {reason}"));
        }
        match web.fleet().put_deployment(&visitor.actor, &name, want).await {
            Ok(deployment) => return Ok(Redirect::to(&link::deployment(&deployment.name)).into_response()),
            Err(error) => refused(web, &mut draft, error).await?,
        }
    }
    let page = form(web, &visitor, draft, package).await?;
    Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response())
}

/// Notes what the fleet said, and who else was faster.
async fn refused(web: &Web, draft: &mut Draft, error: Error) -> Result<(), PageError> {
    if let (Error::Conflict { .. }, Some(seen)) = (&error, draft.revision)
        && let Ok(name) = DeploymentName::parse(&draft.name)
        && let Ok(now) = web.fleet().deployment_counted(&name).await
        && now.revision != seen
    {
        draft.overtaken(&now, seen);
        return Ok(());
    }
    Ok(draft.refused(error)?)
}

/// Shows what would happen; or the form again, where somebody goes back to it or wants another group.
async fn rehearse(
    web: &Web,
    visitor: Visitor,
    fields: &Fields,
    mut draft: Draft,
    package: operator::Package,
) -> Result<Response, PageError> {
    draft.seal(web.fleet())?;
    // The form asked what another version asks: what both ask for is kept, and the rest is asked now.
    if let Some(version) = fields.raw("asked-version").filter(|asked| *asked != package.version) {
        let before = find(web, &package.id, Some(version)).await?;
        draft.ask_as_well(&package, &before);
        return form(web, &visitor, draft, package).await;
    }
    match fields.one("do") {
        "edit" | "find" | "version" => return form(web, &visitor, draft, package).await,
        // Whoever types what to look for and presses Enter wants to see what is found.
        "" if looks_for_others(fields) => return form(web, &visitor, draft, package).await,
        "group" => {
            draft.add_group(&package);
            return form(web, &visitor, draft, package).await;
        }
        _ if fields.raw("drop").is_some() => return form(web, &visitor, draft, package).await,
        _ => {}
    }
    if let Some(remote) = web.fleet().follows() {
        // What would be refused is not rehearsed.
        draft.wrong.whole.push(format!("What is wanted follows {remote}; change it there."));
    } else if let Some((name, want)) = asked(web, &visitor.actor, &mut draft, &package).await? {
        match web.fleet().rehearse_deployment(&visitor.actor, &name, want.clone()).await {
            // Who was ticked on purpose and does not fit is left out, or forced, in the form.
            Ok(plan) if plan.misfits.iter().any(|misfit| misfit.refused) => {
                let refused = plan.misfits.into_iter().filter(|misfit| misfit.refused);
                draft.wrong.misfits = refused
                    .map(|PlannedMisfit { device, reasons, temporary, .. }| operator::Misfit {
                        device,
                        reasons,
                        temporary,
                    })
                    .collect();
            }
            Ok(plan) => {
                let changing = draft.revision.is_some();
                let action = action(&draft);
                return rehearsal::page(
                    web,
                    &visitor,
                    &package,
                    &name,
                    &want,
                    &plan,
                    action,
                    changing,
                    draft.carried(fields),
                )
                .await;
            }
            Err(error) => refused(web, &mut draft, error).await?,
        }
    }
    let page = form(web, &visitor, draft, package).await?;
    Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response())
}

/// Whether the form asks for other devices to tick than it was made with.
fn looks_for_others(fields: &Fields) -> bool {
    let other =
        |asked: &str, found: &str| fields.raw(found).is_some_and(|found| found.trim() != fields.one(asked));
    fields.raw("drop").is_none() && (other("find-search", "found-search") || other("find-site", "found-site"))
}

/// Lets the fleet look at what could be read of a form that is wrong already, so that everything that is wrong with it is told at
/// once. Nothing is changed by that.
async fn look_at_the_rest(
    web: &Web,
    actor: &Actor,
    draft: &mut Draft,
    package: &operator::Package,
    mut want: PutDeployment,
) -> Result<(), PageError> {
    // A name that is wrong says nothing about the rest.
    let name = match DeploymentName::parse(&draft.name) {
        Ok(name) => name,
        Err(_) => match DeploymentName::parse(&free_name(web, &package.id).await?) {
            Ok(name) => name,
            Err(_) => return Ok(()),
        },
    };
    if let Ok(held) = web.fleet().deployment_counted(&name).await
        && !held.removing
    {
        draft.keep_unasked(held, &mut want);
    }
    // Whatever else there is comes up once the form can be read.
    if let Err(error @ Error::Invalid(_)) = web.fleet().check_deployment(actor, &name, want).await {
        draft.refused(error)?;
    }
    Ok(())
}

/// What the form asks of the fleet, if it can be asked.
async fn asked(
    web: &Web,
    actor: &Actor,
    draft: &mut Draft,
    package: &operator::Package,
) -> Result<Option<(DeploymentName, PutDeployment)>, PageError> {
    let (name, mut want) = draft.want(package);
    let Some(name) = name.filter(|_| !draft.is_wrong()) else {
        look_at_the_rest(web, actor, draft, package, want).await?;
        return Ok(None);
    };
    match web.fleet().deployment_counted(&name).await {
        Ok(held) if !held.removing => draft.keep_unasked(held, &mut want),
        Ok(_) | Err(Error::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Some((name, want)))
}

fn action(draft: &Draft) -> String {
    match draft.revision {
        Some(_) => format!("{}/edit", link::deployment(&draft.name)),
        None => "/deploy".to_owned(),
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
    let choice = choice(web, &draft, &package).await?;
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
    let back = match draft.revision {
        Some(_) => link::deployment(&draft.name),
        None => link::package(&package.id, &package.version),
    };
    render(&DeployPage {
        frame,
        logo: Logo::of(&package),
        versions,
        profiles: profiles.collect(),
        choice,
        action: action(&draft),
        back,
        groups_command: Command::by_file(&draft.name),
        draft,
        package,
    })
}

/// The devices to tick, each with whether it fits.
async fn choice(web: &Web, draft: &Draft, package: &operator::Package) -> Result<Choice, PageError> {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let query = DeviceQuery {
        search: text(&draft.search),
        site: text(&draft.site),
        limit: Some(DEVICES_MAX),
        ..DeviceQuery::default()
    };
    let page = web.fleet().devices(query.clone()).await?;
    let cut = page.next.is_some();
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
    // What is chosen must stay chosen, also when it is not among the first: shown as far as there is room.
    let offered: BTreeSet<String> = choices.iter().map(|choice| choice.id.clone()).collect();
    let misfits: BTreeSet<&str> = draft.wrong.misfits.iter().map(|misfit| misfit.device.as_str()).collect();
    let is_wrong = |device: &str| misfits.contains(device) || draft.wrong.devices.contains(device);
    let is_looked_for = |device: &str| !draft.search.is_empty() && device.contains(&draft.search);
    let mut others: Vec<&String> = draft.devices.difference(&offered).collect();
    others.sort_by_key(|device| (!is_wrong(device), !is_looked_for(device)));
    for device in others.into_iter().take(TICKED_MAX) {
        choices.push(DeviceChoice {
            id: device.clone(),
            chosen: true,
            simulated: false,
            labels: Vec::new(),
            badge: None,
            reasons: Vec::new(),
        });
    }
    let shown: BTreeSet<&str> = choices.iter().map(|choice| choice.id.as_str()).collect();
    let unshown = draft.unshown(&shown);
    let shown = shown.into_iter().collect::<Vec<_>>().join(",");
    let ids = choices.iter().map(|choice| choice.id.as_str());
    let (fits, mut misfits) = fits(web, draft, package, ids).await?;
    let words = match cut {
        false => fitting_words(fits.len(), misfits.values()),
        true => match web.fleet().matching(query, FITTED_MAX).await {
            Ok(found) => {
                let accepted = found.iter().filter(|(_, standing)| *standing != Standing::Retired);
                let ids: Vec<String> = accepted.map(|(device, _)| device.to_string()).collect();
                let (fits, misfits) = self::fits(web, draft, package, ids.iter().map(String::as_str)).await?;
                fitting_words(fits.len(), misfits.values())
            }
            Err(Error::Conflict { .. }) => {
                let most = grouped(FITTED_MAX as u64);
                format!("More than {most} devices. Look for some to see how many of them fit.")
            }
            Err(error) => return Err(error.into()),
        },
    };
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
    let finds = cut
        || draft.named.is_some()
        || choices.len() > FINDS_FROM
        || !draft.search.is_empty()
        || !draft.site.is_empty();
    let sites = match finds {
        true => web.fleet().sites_named(SITES_MAX).await?,
        false => Vec::new(),
    };
    Ok(Choice { devices: choices, cut, finds, sites, words, unshown, shown })
}

/// How many fit, how many do not, and what they lack most.
fn fitting_words<'a>(fits: usize, misfits: impl Iterator<Item = &'a Vec<String>>) -> String {
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    let mut without = 0;
    for misfit in misfits {
        without += 1;
        *reasons.entry(misfit.first().map(String::as_str).unwrap_or_default()).or_default() += 1;
    }
    let fits = format!("{} fit{}", grouped(fits as u64), if fits == 1 { "s" } else { "" });
    if without == 0 {
        return format!("{fits}.");
    }
    let mut reasons: Vec<(&str, u64)> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let others: u64 = reasons.iter().skip(REASONS_MAX).map(|(_, count)| count).sum();
    let told = reasons.iter().take(REASONS_MAX);
    let mut told: Vec<String> =
        told.map(|(reason, count)| format!("{reason} ({})", grouped(*count))).collect();
    if others > 0 {
        told.push(format!("other reasons ({})", grouped(others)));
    }
    let does = if without == 1 { "does" } else { "do" };
    format!("{fits}; {} {does} not: {}.", grouped(without), told.join("; "))
}

/// Which of the choices fit, and why the others do not.
async fn fits(
    web: &Web,
    draft: &Draft,
    package: &operator::Package,
    devices: impl Iterator<Item = &str>,
) -> Result<(BTreeSet<String>, BTreeMap<String, Vec<String>>), PageError> {
    let (id, version) = package::parse(&package.id, &package.version)?;
    let profile = ProfileId::parse(&draft.profile).ok();
    // What was sent as a device need not be one; the form says so beside it.
    let devices = devices.filter_map(|device| DeviceRef::parse(device).ok());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_fit_is_counted_by_what_is_lacking_most() {
        assert_eq!(fitting_words(1200, [].iter()), "1,200 fit.");
        assert_eq!(fitting_words(1, [vec!["a".to_owned()]].iter()), "1 fits; 1 does not: a (1).");
        let mut misfits: Vec<Vec<String>> =
            (0..1500).map(|_| vec!["needs 4 cores".to_owned(), "and more".to_owned()]).collect();
        misfits.extend(["a", "b", "c", "b"].map(|reason| vec![reason.to_owned()]));
        assert_eq!(
            fitting_words(8, misfits.iter()),
            "8 fit; 1,504 do not: needs 4 cores (1,500); b (2); a (1); other reasons (1)."
        );
    }
}
