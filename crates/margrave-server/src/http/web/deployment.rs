//! Deployments: the list, one of them, and its end.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use margrave_core::id::DeploymentName;
use margrave_core::why::Code;
use margrave_wire::operator;

use super::Web;
use super::address::{Path, Query};
use super::assignment::{AssignmentLine, is_held_back, settled, went_back};
use super::care;
use super::command::{Command, shown};
use super::commit::CommitMark;
use super::confirm::ConfirmPage;
use super::difference::{NAMES_MAX, Packages, called, reach};
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::link;
use super::paging::Pages;
use super::rehearsal::worth_knowing;
use super::revision::RevisionLine;
use super::rollout::RolloutCard;
use super::session::{Changer, Submitted, Visitor};
use super::stamp::Stamp;
use super::tally::Tally;
use super::tiers::counted;
use super::told::Told;
use super::why::Chain;
use crate::fleet::{Error, Failure, likeness};

/// Deployments on a page of their list.
const PAGE_SIZE: usize = 100;
/// Devices shown on a deployment's page; the rest is counted.
const DEVICES_MAX: u32 = 200;
/// Causes of failures shown there, and devices that each names.
const CAUSES_MAX: usize = 10;
const CAUSE_DEVICES_MAX: usize = 8;
/// Revisions shown there; the command line shows all that are kept.
const REVISIONS_MAX: usize = 20;

#[derive(Template)]
#[template(path = "deployments.html")]
struct DeploymentsPage {
    frame: Frame,
    filter: Filter,
    rows: Vec<Row>,
    pages: Pages,
    /// What has just gone from its last device.
    gone: Option<DeploymentName>,
    command: Command,
    list_command: Command,
}

#[derive(serde::Deserialize)]
pub(super) struct Filter {
    gone: Option<String>,
    /// Part of a name.
    #[serde(default)]
    search: String,
    /// The package that they are of.
    #[serde(default)]
    package: String,
    page: Option<usize>,
}

impl Filter {
    fn is_empty(&self) -> bool {
        self.search.trim().is_empty() && self.package.trim().is_empty()
    }

    fn lets_through(&self, deployment: &operator::Deployment) -> bool {
        let package = self.package.trim();
        deployment.name.contains(self.search.trim()) && (package.is_empty() || deployment.package == package)
    }

    /// The address of the list up to the number of its page.
    fn path(&self) -> String {
        let fields = [("search", self.search.trim()), ("package", self.package.trim())];
        let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
        let fields: String = fields.map(|(name, value)| format!("{name}={}&", link::encode(value))).collect();
        format!("/deployments?{fields}page=")
    }
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
    Query(filter): Query<Filter>,
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
    let mut found: Vec<&operator::Deployment> =
        deployments.iter().filter(|deployment| filter.lets_through(deployment)).collect();
    let pages = Pages::cut(&mut found, filter.page, PAGE_SIZE, "Pages", filter.path());
    render(&DeploymentsPage {
        frame,
        rows: found.into_iter().map(row).collect(),
        pages,
        gone: filter
            .gone
            .as_deref()
            .and_then(|name| DeploymentName::parse(name).ok())
            .filter(|name| deployments.iter().all(|deployment| deployment.name != name.as_str())),
        command: Command::new(["margrave", "deploy", "PACKAGE", "--to", "DEVICE"]),
        list_command: Command::new(["margrave", "deployment", "list"]),
        filter,
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
    /// Who gets it later and who never does, where it goes to all at once; a rollout has a table of it.
    apart: Vec<String>,
    /// Nothing when it is as wanted.
    why: Option<Chain>,
    /// That it is not as a remote says, because that failed.
    taken_back: Option<String>,
    why_path: String,
    /// What somebody should know of it.
    warnings: Vec<String>,
    changed: Stamp,
    by: String,
    /// What went wrong, and with how many: told instead of the chain, which knows one of them.
    causes: Vec<FailureCause>,
    /// What the chain ends with, where that is none of these: what it says to do is about this.
    beside: Option<String>,
    rows: Vec<AssignmentRow>,
    rows_more: u64,
    /// The list of all that have it.
    devices_path: String,
    misfits_more: usize,
    revisions: Vec<RevisionLine>,
    revisions_more: usize,
    parameters: Vec<(String, String)>,
    labels: Vec<String>,
    /// The first devices that it names.
    named: String,
    named_more: usize,
    command: Command,
    command_update: Command,
    command_history: Command,
    groups: Vec<GroupLine>,
    strategy: String,
    rollback: String,
    commit: Option<CommitMark>,
}

/// Devices with answers of their own.
struct GroupLine {
    of: String,
    answers: String,
}

impl GroupLine {
    fn of(held: &operator::Override, package: Option<&operator::Package>) -> Self {
        let answers = held
            .parameters
            .iter()
            .map(|(name, value)| format!("{} = {}", called(package, name), shown(value)));
        GroupLine { of: reach(&held.targets), answers: answers.collect::<Vec<_>>().join(", ") }
    }
}

/// The devices that one thing is wrong with.
struct FailureCause {
    code: String,
    message: String,
    /// The message without its numbers.
    likeness: String,
    number: u64,
    words: String,
    /// The first few, by name and page.
    devices: Vec<(String, String)>,
    why: String,
}

impl FailureCause {
    /// Of those that are shown, out of so many that are not as wanted; what failed is counted on all of them. Messages that differ in
    /// numbers only are one cause.
    fn all(assignments: &[operator::Assignment], behind: u64, counted_on_all: &[Failure]) -> Vec<Self> {
        let behind_here =
            |assignment: &&operator::Assignment| !settled(assignment) && !is_held_back(assignment);
        let seen = assignments.iter().filter(behind_here).count() as u64;
        let some = if seen < behind { "at least " } else { "" };
        let mut causes: Vec<FailureCause> = Vec::new();
        for assignment in assignments.iter().filter(behind_here) {
            // A component says what is wrong, closer to the cause.
            let of_component = assignment.components.iter().find_map(|component| component.error.as_ref());
            let Some(error) = of_component.or(assignment.error.as_ref()) else { continue };
            let alike = likeness(&error.message);
            let known = causes.iter().position(|cause| cause.code == error.code && cause.likeness == alike);
            let at = known.unwrap_or_else(|| {
                causes.push(FailureCause {
                    code: error.code.clone(),
                    message: error.message.clone(),
                    likeness: alike,
                    number: 0,
                    words: String::new(),
                    devices: Vec::new(),
                    why: link::why(&format!("{}/{}", assignment.device, assignment.deployment)),
                });
                causes.len() - 1
            });
            let cause = &mut causes[at];
            cause.number += 1;
            if cause.devices.len() < CAUSE_DEVICES_MAX {
                cause.devices.push((assignment.device.clone(), link::device(&assignment.device)));
            }
        }
        for cause in &mut causes {
            let same = |failure: &&Failure| failure.code == cause.code && failure.likeness == cause.likeness;
            let on_all = counted_on_all.iter().find(same).filter(|failure| failure.count >= cause.number);
            cause.words = match on_all {
                Some(failure) => {
                    cause.number = failure.count;
                    counted(failure.count, "device")
                }
                None => format!("{some}{}", counted(cause.number, "device")),
            };
        }
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.number));
        causes.truncate(CAUSES_MAX);
        causes
    }
}

/// What the chain of causes ends with, where no failure that is told is that.
fn beside(why: &operator::Why, causes: &[FailureCause]) -> Option<String> {
    let last = why.chain.last().filter(|_| !causes.is_empty())?;
    let is_told = causes.iter().any(|cause| Code::of_failure(&cause.code).as_str() == last.code);
    (!is_told).then(|| last.text.clone())
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

/// In the words of a rollout's table.
fn apart(not_yet: u64, refusing: u64, misfits: u64) -> Vec<String> {
    let mut told = Vec::new();
    if not_yet > 0 {
        let back = if not_yet == 1 { "it is back" } else { "they are back" };
        told.push(format!("Not yet: {}, not in contact; it comes when {back}.", counted(not_yet, "device")));
    }
    let whys = [(misfits, "it does not fit"), (refusing, "refusing it")];
    let never: Vec<String> = whys
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, why)| format!("{}, {why}", counted(count, "device")))
        .collect();
    if !never.is_empty() {
        told.push(format!("Never: {}.", never.join("; ")));
    }
    told
}

pub(super) async fn show(
    State(web): State<Web>,
    visitor: Visitor,
    Path(name): Path<String>,
) -> Result<Response, PageError> {
    let name = parse(&name)?;
    let frame = Frame::new(&web, &visitor, Section::Deployments, name.to_string()).await?;
    let frame = frame.watching("deployment", name.as_str()).leading_to(format!("/deployments?gone={name}"));
    let (mut deployment, why) = web.fleet().deployment_glimpsed(&name, DEVICES_MAX).await?;
    let misfits = deployment.misfits.iter().filter(|misfit| !misfit.temporary).count();
    let misfits_more = deployment.misfits.len().saturating_sub(DEVICES_MAX as usize);
    deployment.misfits.truncate(DEVICES_MAX as usize);
    let reached = deployment.assignments.iter().map(|assignment| assignment.device.as_str()).collect();
    let warnings = worth_knowing(&web, deployment.warnings.clone(), reached).await?;
    let revisions = web.fleet().revisions(&name).await?;
    let lines = RevisionLine::newest(web.fleet(), name.as_str(), &revisions, REVISIONS_MAX).await?;
    let named = [(deployment.package.as_str(), deployment.version.as_str())];
    let packages = Packages::of(web.fleet(), named.into()).await?;
    let package = packages.find(&deployment.package, &deployment.version);
    let answer = |(name, value): (&String, &serde_json::Value)| (called(package, name), shown(value));
    let mut assignments: Vec<&operator::Assignment> = deployment.assignments.iter().collect();
    // What needs eyes comes first; within a state, by name.
    let urgent = |assignment: &operator::Assignment| match assignment {
        back if went_back(back) => urgency("FAILED"),
        held if is_held_back(held) => urgency("WAITING"),
        other => urgency(&other.state),
    };
    assignments.sort_by_key(|assignment| (urgent(assignment), assignment.device.clone()));
    let path = link::deployment(&deployment.name);
    let apart = match deployment.rollout {
        Some(_) => Vec::new(),
        None => apart(deployment.counts.not_yet, deployment.counts.never, misfits as u64),
    };
    let causes = FailureCause::all(
        &deployment.assignments,
        deployment.counts.pending + deployment.counts.failed
            - deployment.counts.waiting
            - deployment.counts.not_yet
            - deployment.counts.left_behind,
        &web.fleet().failures(&name).await?,
    );
    render(&DeploymentPage {
        apart,
        warnings,
        rollout: deployment.rollout.as_ref().map(|rollout| RolloutCard::of(rollout, &path, &frame)),
        frame,
        path,
        package_path: link::package(&deployment.package, &deployment.version),
        tally: Tally::of(&deployment.counts),
        taken_back: why
            .chain
            .iter()
            .find(|cause| cause.code == Code::RevertedHere.as_str())
            .map(|cause| sentence(&cause.text)),
        why: (!why.converged).then(|| Chain::of(&why)),
        why_path: link::why_deployment(&deployment.name),
        changed: Stamp::ago(&deployment.changed_at),
        by: who(&deployment.changed_by),
        beside: beside(&why, &causes),
        causes,
        rows: assignments
            .iter()
            .take(DEVICES_MAX as usize)
            .map(|assignment| AssignmentRow::of(assignment))
            .collect(),
        rows_more: deployment.counts.total.saturating_sub(DEVICES_MAX.into()),
        devices_path: format!("/devices?deployment={}", link::encode(&deployment.name)),
        misfits_more,
        revisions: lines,
        revisions_more: revisions.len().saturating_sub(REVISIONS_MAX),
        parameters: deployment.parameters.iter().map(answer).collect(),
        labels: deployment.targets.labels.iter().map(|(key, value)| format!("{key}={value}")).collect(),
        named: deployment.targets.devices.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", "),
        named_more: deployment.targets.devices.len().saturating_sub(NAMES_MAX),
        command: Command::deploy(&deployment),
        command_update: Command::new(["margrave", "deployment", "show", &deployment.name]),
        command_history: Command::new(["margrave", "deployment", "history", &deployment.name]),
        groups: deployment.overrides.iter().map(|held| GroupLine::of(held, package)).collect(),
        strategy: deployment.strategy.words().join("; "),
        rollback: care::words(&deployment.rollback),
        commit: deployment.commit.as_deref().map(CommitMark::of),
        deployment,
    })
}

fn urgency(state: &str) -> usize {
    let order = ["FAILED", "ROLLINGBACK", "INSTALLING", "UPDATING", "DELETING", "PENDING", "WAITING"];
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
        harmless: false,
        // Who confirms an old page must not remove what came after it.
        action: format!("{back}/remove?seen={}", deployment.revision),
        back,
        fields: Vec::new(),
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
    use super::*;

    #[test]
    fn who_gets_it_later_and_who_never_does_are_told_apart() {
        assert_eq!(apart(0, 0, 0), [""; 0]);
        assert_eq!(apart(1, 0, 0), ["Not yet: 1 device, not in contact; it comes when it is back."]);
        assert_eq!(apart(0, 2, 1), ["Never: 1 device, it does not fit; 2 devices, refusing it."]);
    }

    use serde_json::json;

    #[test]
    fn what_to_do_is_said_with_what_it_is_about() {
        let why = |code: &str| -> operator::Why {
            let cause = |code: &str| json!({ "code": code, "text": format!("it is {code}") });
            let chain = [cause("devices-behind"), cause(code)];
            serde_json::from_value(json!({ "subject": "gate", "converged": false, "chain": chain })).unwrap()
        };
        let failed: operator::Assignment = serde_json::from_value(json!({
            "id": "a", "deployment": "gate", "device": "a", "package": "p", "version": "1", "state": "FAILED", "current": true,
            "error": { "code": "disk-full", "source": "device", "message": "no" }, "components": [], "attempt": 1,
        }))
        .unwrap();
        let causes = FailureCause::all(&[failed], 1, &[]);
        assert_eq!(beside(&why("disk-full"), &causes), None);
        assert_eq!(beside(&why("silent"), &causes).as_deref(), Some("it is silent"));
        assert_eq!(beside(&why("silent"), &[]), None, "without causes the whole chain is told");
    }

    #[test]
    fn failures_of_one_cause_are_told_together_the_most_first() {
        let assignment = |device: &str, code: &str| -> operator::Assignment {
            let error = json!({ "code": code, "source": "device", "message": "no" });
            serde_json::from_value(json!({
                "id": device, "deployment": "gate", "device": device, "package": "p", "version": "1",
                "state": "FAILED", "current": true, "error": error, "components": [], "attempt": 1,
            }))
            .unwrap()
        };
        let failed =
            [assignment("a", "unhealthy"), assignment("b", "image-pull"), assignment("c", "image-pull")];
        let causes = FailureCause::all(&failed, 3, &[]);
        let told: Vec<_> = causes.iter().map(|cause| (cause.code.as_str(), cause.number)).collect();
        assert_eq!(told, [("image-pull", 2), ("unhealthy", 1)]);
        assert_eq!(causes[0].words, "2 devices");
        // Of ten thousand not all are looked at.
        assert_eq!(FailureCause::all(&failed, 10_000, &[])[0].words, "at least 2 devices");
        // What failed is counted on all, whatever numbers stand in what they say.
        let mut failed = failed;
        for (assignment, free) in failed.iter_mut().zip([7, 12, 512]) {
            let error = assignment.error.as_mut().unwrap();
            (error.code, error.message) = ("disk-full".to_owned(), format!("{free} MiB are free"));
        }
        let all = Failure { code: "disk-full".into(), likeness: "# MiB are free".into(), count: 1_000 };
        let causes = FailureCause::all(&failed, 10_000, &[all]);
        let told: Vec<_> =
            causes.iter().map(|cause| (cause.words.as_str(), cause.message.as_str())).collect();
        assert_eq!(told, [("1,000 devices", "7 MiB are free")]);
    }
}
