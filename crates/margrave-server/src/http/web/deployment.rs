//! Deployments: the list, one of them, and its end.

use askama::Template;
use askama::filters::HtmlSafe;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use margrave_core::id::DeploymentName;
use margrave_core::lifecycle::{self, STATES};
use margrave_wire::operator::{self, WhyKind};

use super::Web;
use super::assignment::{AssignmentLine, settled, went_back};
use super::badge::Badge;
use super::command::{Command, plain};
use super::confirm::ConfirmPage;
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::link;
use super::revision::RevisionLine;
use super::rollout::RolloutCard;
use super::session::{Changer, Submitted, Visitor};
use super::stamp::Stamp;
use super::why::Chain;
use crate::fleet::Error;

/// Devices shown on a deployment's page; the rest is counted.
const DEVICES_MAX: usize = 200;
/// Revisions shown there; the command line shows all that are kept.
const REVISIONS_MAX: usize = 20;

/// How many assignments are in which state, as a bar and in words.
#[derive(Template)]
#[template(path = "tally.html")]
pub(super) struct Tally {
    total: u64,
    shares: Vec<Share>,
}

struct Share {
    badge: Badge,
    count: u64,
    /// Of a bar that is 1000 wide.
    from: u64,
    width: u64,
}

impl HtmlSafe for Tally {}

impl Tally {
    pub(super) fn of(counts: &operator::AssignmentCounts) -> Self {
        let total = counts.total;
        let mut done = 0;
        let mut shares = Vec::new();
        let of_state = |state: lifecycle::State| {
            let count = counts.states.get(state.as_str()).copied().unwrap_or(0);
            let back = if state == lifecycle::State::Installed { counts.went_back.min(count) } else { 0 };
            [(Badge::state(state.as_str()), count - back), (Badge::went_back(), back)]
        };
        for (badge, count) in STATES.into_iter().flat_map(of_state).filter(|(_, count)| *count > 0) {
            let from = done * 1000 / total;
            done += count;
            shares.push(Share { badge, count, from, width: done * 1000 / total - from });
        }
        Tally { total, shares }
    }
}

#[derive(Template)]
#[template(path = "deployments.html")]
struct DeploymentsPage {
    frame: Frame,
    rows: Vec<Row>,
    /// What has just gone from its last device.
    gone: Option<DeploymentName>,
    command: Command,
}

#[derive(serde::Deserialize)]
pub(super) struct Gone {
    gone: Option<String>,
}

struct Row {
    key: String,
    name: String,
    path: String,
    package: String,
    package_path: String,
    tally: Tally,
    changed: Stamp,
    by: String,
    misfits: usize,
    removing: bool,
}

pub(super) async fn list(
    State(web): State<Web>,
    visitor: Visitor,
    Query(Gone { gone }): Query<Gone>,
) -> Result<Response, PageError> {
    let frame = Frame::new(&web, &visitor, Section::Deployments, "Deployments").await?;
    let deployments = web.fleet().deployments().await?;
    let row = |deployment: &operator::Deployment| Row {
        key: format!("deployment-{}", deployment.name),
        name: deployment.name.clone(),
        path: link::deployment(&deployment.name),
        package: format!("{} {}", deployment.package, deployment.version),
        package_path: link::package(&deployment.package, &deployment.version),
        tally: Tally::of(&deployment.counts),
        changed: Stamp::ago(&deployment.changed_at),
        by: who(&deployment.changed_by),
        misfits: deployment.misfits.len(),
        removing: deployment.removing,
    };
    render(&DeploymentsPage {
        frame,
        rows: deployments.iter().map(row).collect(),
        gone: gone
            .and_then(|name| DeploymentName::parse(&name).ok())
            .filter(|name| deployments.iter().all(|deployment| deployment.name != name.as_str())),
        command: Command::new(["margrave", "deploy", "PACKAGE", "--to", "DEVICE"]),
    })
}

#[derive(Template)]
#[template(path = "deployment.html")]
struct DeploymentPage {
    frame: Frame,
    deployment: operator::Deployment,
    path: String,
    package_path: String,
    tally: Tally,
    /// How far the newest revision came, where it goes in steps.
    rollout: Option<RolloutCard>,
    /// Nothing when it is as wanted.
    why: Option<Chain>,
    why_path: String,
    changed: Stamp,
    by: String,
    rows: Vec<AssignmentRow>,
    rows_more: usize,
    revisions: Vec<RevisionLine>,
    revisions_more: usize,
    /// The revision that this page shows; nothing wanted is 0.
    seen: u64,
    parameters: Vec<(String, String)>,
    labels: Vec<String>,
    command: Command,
    command_update: Command,
}

struct AssignmentRow {
    line: AssignmentLine,
    device: String,
    path: String,
    why: Option<String>,
}

impl AssignmentRow {
    fn of(assignment: &operator::Assignment) -> Self {
        AssignmentRow {
            line: AssignmentLine::of(assignment),
            device: assignment.device.clone(),
            path: link::device(&assignment.device),
            why: (!settled(assignment))
                .then(|| link::why(&format!("{}/{}", assignment.device, assignment.deployment))),
        }
    }
}

pub(super) async fn show(
    State(web): State<Web>,
    visitor: Visitor,
    Path(name): Path<String>,
) -> Result<Response, PageError> {
    let name = parse(&name)?;
    let frame = Frame::new(&web, &visitor, Section::Deployments, name.to_string()).await?;
    let frame = frame.watching("deployment", name.as_str()).leading_to(format!("/deployments?gone={name}"));
    let deployment = web.fleet().deployment(&name).await?;
    let revisions = web.fleet().revisions(&name).await?;
    let why = web.fleet().why_of(WhyKind::Deployment, name.as_str()).await?;
    let mut assignments: Vec<&operator::Assignment> = deployment.assignments.iter().collect();
    // What needs eyes comes first; within a state, by name.
    let urgent = |assignment: &operator::Assignment| match went_back(assignment) {
        true => urgency("FAILED"),
        false => urgency(&assignment.state),
    };
    assignments.sort_by_key(|assignment| (urgent(assignment), assignment.device.clone()));
    let path = link::deployment(&deployment.name);
    render(&DeploymentPage {
        rollout: deployment.rollout.as_ref().map(|rollout| RolloutCard::of(rollout, &path, &frame.csrf)),
        frame,
        path,
        package_path: link::package(&deployment.package, &deployment.version),
        tally: Tally::of(&deployment.counts),
        why: (!why.converged).then(|| Chain::of(&why)),
        why_path: link::why_deployment(&deployment.name),
        changed: Stamp::ago(&deployment.changed_at),
        by: who(&deployment.changed_by),
        rows: assignments.iter().take(DEVICES_MAX).map(|assignment| AssignmentRow::of(assignment)).collect(),
        rows_more: assignments.len().saturating_sub(DEVICES_MAX),
        revisions: revisions.iter().take(REVISIONS_MAX).map(RevisionLine::of).collect(),
        revisions_more: revisions.len().saturating_sub(REVISIONS_MAX),
        seen: if deployment.removing { 0 } else { deployment.revision },
        parameters: deployment.parameters.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        labels: deployment.targets.labels.iter().map(|(key, value)| format!("{key}={value}")).collect(),
        command: Command::deploy(&deployment),
        command_update: Command::new(["margrave", "deployment", "show", &deployment.name]),
        deployment,
    })
}

fn urgency(state: &str) -> usize {
    let order = ["FAILED", "ROLLINGBACK", "INSTALLING", "UPDATING", "DELETING", "PENDING"];
    order.iter().position(|known| *known == state).unwrap_or(order.len())
}

pub(super) async fn remove_ask(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Path(name): Path<String>,
) -> Result<Response, PageError> {
    let deployment = web.fleet().deployment_counted(&parse(&name)?).await?;
    let frame =
        Frame::new(&web, &visitor, Section::Deployments, format!("Remove {}", deployment.name)).await?;
    let back = link::deployment(&deployment.name);
    let devices = match deployment.counts.total {
        1 => "1 device".to_owned(),
        count => format!("{count} devices"),
    };
    render(&ConfirmPage {
        frame,
        question: format!("Remove {}?", deployment.name),
        effects: vec![
            format!("It is stopped and removed from {devices}, each as soon as it is reached."),
            "Data that it kept in volumes stays on the devices unless the package says otherwise.".to_owned(),
        ],
        verb: "Remove",
        // Who confirms an old page must not remove what came after it.
        action: format!("{back}/remove?seen={}", deployment.revision),
        back,
        command: Command::new(["margrave", "deployment", "remove", &deployment.name]),
    })
}

/// The revision that the question was asked about.
#[derive(serde::Deserialize)]
pub(super) struct Seen {
    seen: Option<u64>,
}

pub(super) async fn remove(
    State(web): State<Web>,
    Path(name): Path<String>,
    Query(Seen { seen }): Query<Seen>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let name = parse(&name)?;
    web.fleet().remove_deployment(&submitted.visitor.actor, &name, seen).await?;
    // As long as devices still have it, there is something to watch.
    let path = match web.fleet().deployment_counted(&name).await {
        Ok(deployment) => link::deployment(&deployment.name),
        Err(Error::NotFound { .. }) => "/deployments".to_owned(),
        Err(error) => return Err(error.into()),
    };
    Ok(Redirect::to(&path).into_response())
}

pub(super) fn who(actor: &str) -> String {
    actor.strip_prefix("operator ").unwrap_or(actor).to_owned()
}

pub(super) fn parse(name: &str) -> Result<DeploymentName, PageError> {
    DeploymentName::parse(name).map_err(|error| PageError::Malformed(sentence(&error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::super::badge::Tone;
    use super::*;

    #[test]
    fn a_tally_fills_its_bar_exactly() {
        let states = [("INSTALLED", 4), ("FAILED", 1), ("PENDING", 1), ("INSTALLING", 1)];
        let states = states.map(|(state, count)| (state.to_owned(), count)).into();
        let tally = Tally::of(&operator::AssignmentCounts { total: 7, states, ..Default::default() });
        assert_eq!(tally.shares.iter().map(|share| share.width).sum::<u64>(), 1000);
        assert_eq!(tally.shares.iter().map(|share| share.count).sum::<u64>(), tally.total);
        assert!(Tally::of(&Default::default()).shares.is_empty());
    }

    #[test]
    fn who_went_back_is_not_among_those_that_are_as_wanted() {
        let states = [("INSTALLED".to_owned(), 4)].into();
        let counts = operator::AssignmentCounts { total: 4, went_back: 1, states, ..Default::default() };
        let tally = Tally::of(&counts);
        let shown: Vec<_> = tally.shares.iter().map(|share| (share.badge.tone, share.count)).collect();
        assert_eq!(shown, [(Tone::Ok, 3), (Tone::Bad, 1)]);
        assert_eq!(tally.shares.iter().map(|share| share.width).sum::<u64>(), 1000);
    }
}
