//! What a deployment was, on its page; what differs between two of its revisions; and the way back.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use margrave_wire::operator;
use margrave_wire::rollout::StrategyBody;
use serde_json::Value;

use super::Web;
use super::address::{Path, Query};
use super::care;
use super::command::{Command, plain};
use super::commit::CommitMark;
use super::confirm::ConfirmPage;
use super::deployment::{parse, who};
use super::error::PageError;
use super::frame::{Frame, Section, render};
use super::link;
use super::session::{Changer, Submitted, Visitor};
use super::stamp::Stamp;

/// One line of the list.
pub(super) struct RevisionLine {
    pub(super) number: u64,
    pub(super) path: String,
    /// The commit that made it.
    pub(super) commit: Option<CommitMark>,
    pub(super) changed: Stamp,
    pub(super) by: String,
    pub(super) changes: String,
    pub(super) current: bool,
    /// There is something to go back to.
    pub(super) revertible: bool,
}

impl RevisionLine {
    pub(super) fn of(name: &str, revision: &operator::Revision) -> Self {
        RevisionLine {
            number: revision.revision,
            path: path(name, revision.revision),
            commit: revision.commit.as_deref().map(CommitMark::of),
            changed: Stamp::ago(&revision.changed_at),
            by: who(&revision.changed_by),
            changes: changes(revision),
            current: revision.current,
            revertible: !revision.current && !revision.removed,
        }
    }
}

/// What it changed, and how it ended where it never came to its end.
fn changes(revision: &operator::Revision) -> String {
    let ended = match (&revision.ended, revision.unfinished) {
        (_, false) => None,
        (Some(why), true) => Some(format!("never came to its end: {why}")),
        (None, true) => Some("never came to its end".to_owned()),
    };
    revision.changes.iter().cloned().chain(ended).collect::<Vec<_>>().join("; ")
}

fn path(name: &str, revision: u64) -> String {
    format!("{}/revisions/{revision}", link::deployment(name))
}

#[derive(Template)]
#[template(path = "revision.html")]
struct RevisionPage {
    frame: Frame,
    name: String,
    deployment: String,
    path: String,
    revision: operator::Revision,
    commit: Option<CommitMark>,
    changed: Stamp,
    by: String,
    /// The one that it is compared with, if there is one.
    against: Option<u64>,
    others: Vec<u64>,
    differences: Vec<Difference>,
    /// Parts that are the same in both.
    same: Vec<(String, String)>,
    command: Command,
}

pub(super) struct Difference {
    pub(super) what: String,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
}

impl Difference {
    /// In a line.
    fn words(&self) -> String {
        let side = |text: &Option<String>| match text.as_deref() {
            // An answer that nobody gave is the package's own.
            None if self.what.starts_with("answer ") => "the package's own".to_owned(),
            None => "nothing".to_owned(),
            Some("") => "empty".to_owned(),
            Some(text) => text.to_owned(),
        };
        format!("{}: {} instead of {}", self.what, side(&self.after), side(&self.before))
    }
}

/// What a deployment is or was to be, or is wanted to become.
pub(super) struct Wanted<'a> {
    package: &'a str,
    version: &'a str,
    profile: Option<&'a str>,
    parameters: &'a BTreeMap<String, Value>,
    targets: &'a operator::Targets,
    overrides: &'a [operator::Override],
    force: Option<&'a str>,
    rollback: &'a operator::Rollback,
    strategy: &'a StrategyBody,
    windows: &'a [String],
}

impl<'a> Wanted<'a> {
    fn of(revision: &'a operator::Revision) -> Self {
        Wanted {
            package: &revision.package,
            version: &revision.version,
            profile: revision.profile.as_deref(),
            parameters: &revision.parameters,
            targets: &revision.targets,
            overrides: &revision.overrides,
            force: revision.force.as_deref(),
            rollback: &revision.rollback,
            strategy: &revision.strategy,
            windows: &revision.windows,
        }
    }

    pub(super) fn now(deployment: &'a operator::Deployment) -> Self {
        Wanted {
            package: &deployment.package,
            version: &deployment.version,
            profile: deployment.profile.as_deref(),
            parameters: &deployment.parameters,
            targets: &deployment.targets,
            overrides: &deployment.overrides,
            force: deployment.force.as_deref(),
            rollback: &deployment.rollback,
            strategy: &deployment.strategy,
            windows: &deployment.windows,
        }
    }

    /// What it would become; what is not said stays.
    pub(super) fn then(deployment: &'a operator::Deployment, want: &'a operator::PutDeployment) -> Self {
        Wanted {
            package: &want.package,
            version: want.version.as_deref().unwrap_or(&deployment.version),
            profile: want.profile.as_deref(),
            parameters: &want.parameters,
            targets: &want.targets,
            overrides: &want.overrides,
            force: want.force.as_deref(),
            rollback: want.rollback.as_ref().unwrap_or(&deployment.rollback),
            strategy: want.strategy.as_ref().unwrap_or(&deployment.strategy),
            windows: want.windows.as_ref().unwrap_or(&deployment.windows),
        }
    }
}

#[derive(serde::Deserialize)]
pub(super) struct Against {
    against: Option<u64>,
}

pub(super) async fn show(
    State(web): State<Web>,
    visitor: Visitor,
    Path((name, number)): Path<(String, u64)>,
    Query(Against { against }): Query<Against>,
) -> Result<Response, PageError> {
    let name = parse(&name)?;
    let frame =
        Frame::new(&web, &visitor, Section::Deployments, format!("{name}, revision {number}")).await?;
    let revisions = web.fleet().revisions(&name).await?;
    let find = |number: u64| revisions.iter().find(|revision| revision.revision == number);
    let revision = find(number).ok_or(PageError::NotFound)?.clone();
    let before = revisions.iter().map(|revision| revision.revision).filter(|other| *other < number).max();
    let against = against.filter(|other| *other != number).or(before);
    let other = against.map(|against| find(against).ok_or(PageError::NotFound)).transpose()?;
    let (differences, same) = compare(other.map(Wanted::of).as_ref(), &Wanted::of(&revision));
    render(&RevisionPage {
        frame,
        deployment: link::deployment(name.as_str()),
        path: path(name.as_str(), number),
        changed: Stamp::at(&revision.changed_at),
        commit: revision.commit.as_deref().map(CommitMark::of),
        by: who(&revision.changed_by),
        against,
        others: revisions.iter().map(|revision| revision.revision).filter(|other| *other != number).collect(),
        differences,
        same,
        command: revert_command(name.as_str(), number),
        revision,
        name: name.to_string(),
    })
}

/// What differs, and what does not.
pub(super) fn compare(
    before: Option<&Wanted<'_>>,
    after: &Wanted<'_>,
) -> (Vec<Difference>, Vec<(String, String)>) {
    let now = parts(after);
    let Some(before) = before else {
        return (Vec::new(), now.into_iter().map(|(what, part)| (what, part.text)).collect());
    };
    let was = parts(before);
    let mut differences = Vec::new();
    let mut same = Vec::new();
    for what in was.keys().chain(now.keys()).collect::<BTreeSet<_>>() {
        let what = what.clone();
        match (was.get(&what), now.get(&what)) {
            (Some(before), Some(after)) if before == after => same.push((what, after.text.clone())),
            // Another secret looks like the one before.
            (Some(before), Some(after)) if before.text == after.text => differences.push(Difference {
                what,
                before: Some(before.text.clone()),
                after: Some(format!("another: {}", after.text)),
            }),
            (before, after) => differences.push(Difference {
                what,
                before: before.map(|part| part.text.clone()),
                after: after.map(|part| part.text.clone()),
            }),
        }
    }
    (differences, same)
}

/// A part of what is wanted, as it is shown, and as it is.
#[derive(PartialEq)]
struct Part {
    text: String,
    exact: Vec<Value>,
}

impl From<String> for Part {
    fn from(text: String) -> Part {
        Part { text, exact: Vec::new() }
    }
}

/// What is wanted as names and texts; what is as usual is left out.
fn parts(wanted: &Wanted<'_>) -> BTreeMap<String, Part> {
    let targets = |targets: &operator::Targets| {
        let labels = targets.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let devices = targets.devices.iter().cloned();
        let sites = targets.sites.iter().map(|site| format!("site {site}"));
        let words: Vec<String> = devices.chain(labels).chain(sites).chain(targets.select.clone()).collect();
        words.join(", ")
    };
    let mut parts: BTreeMap<String, Part> = [
        ("package".to_owned(), wanted.package.to_owned().into()),
        ("version".to_owned(), wanted.version.to_owned().into()),
        ("targets".to_owned(), targets(wanted.targets).into()),
        ("rollout".to_owned(), wanted.strategy.words().join("; ").into()),
    ]
    .into();
    parts.extend(wanted.profile.map(|profile| ("profile".to_owned(), profile.to_owned().into())));
    parts.extend(wanted.force.map(|reason| ("forced".to_owned(), reason.to_owned().into())));
    if !wanted.windows.is_empty() {
        parts.insert("changes".to_owned(), wanted.windows.join(" and ").into());
    }
    if *wanted.rollback != operator::Rollback::default() {
        parts.insert("if it fails".to_owned(), care::words(wanted.rollback).into());
    }
    let answer = |(name, value): (&String, &Value)| {
        (format!("answer {name}"), Part { text: plain(value), exact: vec![value.clone()] })
    };
    parts.extend(wanted.parameters.iter().map(answer));
    for held in wanted.overrides {
        let of = targets(&held.targets);
        let answers = held.parameters.iter().map(|(name, value)| format!("{name} = {}", plain(value)));
        let text = answers.collect::<Vec<_>>().join(", ");
        parts.insert(format!("for {of}"), Part { text, exact: held.parameters.values().cloned().collect() });
    }
    parts
}

/// The revision to go back to.
#[derive(serde::Deserialize)]
pub(super) struct To {
    to: u64,
}

/// `GET …/revert?to=N`: what going back would change, before it does.
pub(super) async fn revert_ask(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Path(name): Path<String>,
    Query(To { to }): Query<To>,
) -> Result<Response, PageError> {
    let name = parse(&name)?;
    let frame =
        Frame::new(&web, &visitor, Section::Deployments, format!("Go back to revision {to} of {name}"))
            .await?;
    let revisions = web.fleet().revisions(&name).await?;
    let there = revisions.iter().find(|revision| revision.revision == to).ok_or(PageError::NotFound)?;
    let newest = revisions.iter().max_by_key(|revision| revision.revision);
    let now = newest.filter(|newest| !newest.removed);
    let (differences, _) = compare(now.map(Wanted::of).as_ref(), &Wanted::of(there));
    let mut effects: Vec<String> = differences.iter().map(Difference::words).collect();
    if now.is_none() {
        effects.push("It is deployed again.".to_owned());
    } else if effects.is_empty() {
        effects.push("Nothing that is wanted differs.".to_owned());
    }
    effects.push("It becomes a new revision; devices follow in the steps that it says.".to_owned());
    let seen = now.map_or(0, |newest| newest.revision);
    render(&ConfirmPage {
        frame,
        question: format!("Go back to revision {to} of {name}?"),
        effects,
        verb: "Go back",
        action: format!("{}/revert", link::deployment(name.as_str())),
        back: link::deployment(name.as_str()),
        fields: vec![("to".to_owned(), to.to_string()), ("seen".to_owned(), seen.to_string())],
        command: revert_command(name.as_str(), to),
    })
}

fn revert_command(name: &str, revision: u64) -> Command {
    Command::new(["margrave", "deployment", "revert", name, "--to", &revision.to_string()])
}

pub(super) async fn revert(
    State(web): State<Web>,
    Path(name): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let name = parse(&name)?;
    let Submitted { visitor, fields, .. } = submitted;
    let number = |field: &str| {
        let text = fields.one(field);
        text.parse::<u64>().map_err(|_| PageError::Malformed("A revision is a number.".to_owned()))
    };
    // The page says what it showed: who clicks on an old page must not undo what came after it.
    let deployment = web.fleet().revert(&visitor.actor, &name, number("to")?, Some(number("seen")?)).await?;
    Ok(Redirect::to(&link::deployment(&deployment.name)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn revision(number: u64, rate: u64, canary: bool) -> operator::Revision {
        let strategy = if canary { json!({ "canary": { "size": "1" } }) } else { json!({}) };
        serde_json::from_value(json!({
            "revision": number, "changedAt": "", "changedBy": "", "changes": [], "current": false, "removed": false,
            "package": "gate", "version": "1.0.0", "parameters": { "rate": rate }, "targets": { "devices": ["a"] },
            "strategy": strategy,
        }))
        .unwrap()
    }

    #[test]
    fn two_revisions_are_compared_part_by_part() {
        let (differences, same) =
            compare(Some(&Wanted::of(&revision(1, 5, false))), &Wanted::of(&revision(2, 7, true)));
        let told: Vec<String> = differences
            .iter()
            .map(|it| format!("{}: {:?} {:?}", it.what, it.before.as_deref(), it.after.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                r#"answer rate: Some("5") Some("7")"#,
                r#"rollout: Some("all at once") Some("first 1; halts when it fails")"#,
            ]
        );
        assert_eq!(same.len(), 3);
        let (differences, same) = compare(None, &Wanted::of(&revision(1, 5, false)));
        assert!(differences.is_empty() && same.len() == 5);
        // Another secret is told to be another, and neither is told.
        let sealed = |text: &str| {
            let mut revision = revision(1, 5, false);
            revision.parameters.insert("key".into(), json!({ "secret": { "sealed": text } }));
            revision
        };
        let (before, after) = (sealed("mgs1.a"), sealed("mgs1.b"));
        let (differences, _) = compare(Some(&Wanted::of(&before)), &Wanted::of(&after));
        assert_eq!(
            differences.iter().map(Difference::words).collect::<Vec<_>>(),
            ["answer key: another: a secret, sealed instead of a secret, sealed"]
        );
    }
}
