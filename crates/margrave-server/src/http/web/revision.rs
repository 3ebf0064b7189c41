//! What a deployment was, on its page; what differs between two of its revisions; and the way back.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use margrave_wire::operator;

use super::Web;
use super::command::{Command, plain};
use super::deployment::{parse, who};
use super::error::PageError;
use super::frame::{Frame, Section, render};
use super::link;
use super::session::{Submitted, Visitor};
use super::stamp::Stamp;

/// One line of the list.
pub(super) struct RevisionLine {
    pub(super) number: u64,
    pub(super) path: String,
    /// The commit that made it, short enough to be told.
    pub(super) commit: Option<String>,
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
            commit: revision.commit.as_deref().map(short),
            changed: Stamp::ago(&revision.changed_at),
            by: who(&revision.changed_by),
            changes: revision.changes.join("; "),
            current: revision.current,
            revertible: !revision.current && !revision.removed,
        }
    }
}

fn path(name: &str, revision: u64) -> String {
    format!("{}/revisions/{revision}", link::deployment(name))
}

/// As people write the name of a commit.
fn short(commit: &str) -> String {
    commit.chars().take(10).collect()
}

#[derive(Template)]
#[template(path = "revision.html")]
struct RevisionPage {
    frame: Frame,
    name: String,
    deployment: String,
    path: String,
    revision: operator::Revision,
    changed: Stamp,
    by: String,
    /// The one that it is compared with, if there is one.
    against: Option<u64>,
    others: Vec<u64>,
    differences: Vec<Difference>,
    /// Parts that are the same in both.
    same: Vec<(String, String)>,
    /// The revision that is wanted now.
    seen: u64,
    command: Command,
}

struct Difference {
    what: String,
    before: Option<String>,
    after: Option<String>,
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
    let (differences, same) = compare(other, &revision);
    let newest = revisions.iter().max_by_key(|revision| revision.revision);
    render(&RevisionPage {
        frame,
        deployment: link::deployment(name.as_str()),
        path: path(name.as_str(), number),
        changed: Stamp::at(&revision.changed_at),
        by: who(&revision.changed_by),
        against,
        others: revisions.iter().map(|revision| revision.revision).filter(|other| *other != number).collect(),
        differences,
        same,
        seen: newest.filter(|newest| !newest.removed).map_or(0, |newest| newest.revision),
        command: Command::new([
            "margrave",
            "deployment",
            "revert",
            name.as_str(),
            "--to",
            &number.to_string(),
        ]),
        revision,
        name: name.to_string(),
    })
}

/// What differs, and what does not.
fn compare(
    before: Option<&operator::Revision>,
    after: &operator::Revision,
) -> (Vec<Difference>, Vec<(String, String)>) {
    let now = parts(after);
    let Some(before) = before else { return (Vec::new(), now.into_iter().collect()) };
    let was = parts(before);
    let mut differences = Vec::new();
    let mut same = Vec::new();
    for what in was.keys().chain(now.keys()).collect::<BTreeSet<_>>() {
        match (was.get(what), now.get(what)) {
            (Some(before), Some(after)) if before == after => same.push((what.clone(), after.clone())),
            (before, after) => differences.push(Difference {
                what: what.clone(),
                before: before.cloned(),
                after: after.cloned(),
            }),
        }
    }
    (differences, same)
}

/// A revision as names and texts; what is as usual is left out.
fn parts(revision: &operator::Revision) -> BTreeMap<String, String> {
    let targets = |targets: &operator::Targets| {
        let labels = targets.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let devices = targets.devices.iter().cloned();
        let sites = targets.sites.iter().map(|site| format!("site {site}"));
        let words: Vec<String> = devices.chain(labels).chain(sites).chain(targets.select.clone()).collect();
        words.join(", ")
    };
    let mut parts: BTreeMap<String, String> = [
        ("package".to_owned(), revision.package.clone()),
        ("version".to_owned(), revision.version.clone()),
        ("targets".to_owned(), targets(&revision.targets)),
        ("rollout".to_owned(), revision.strategy.words().join("; ")),
    ]
    .into();
    parts.extend(revision.profile.iter().map(|profile| ("profile".to_owned(), profile.clone())));
    parts.extend(revision.force.iter().map(|reason| ("forced".to_owned(), reason.clone())));
    if revision.rollback != operator::Rollback::default() {
        let rollback = &revision.rollback;
        let when = rollback.when.clone().unwrap_or_else(|| "on-failed-update".to_owned());
        let attempts = rollback.attempts.map(|attempts| format!(", {attempts} attempts")).unwrap_or_default();
        let grace = rollback.health_grace_seconds.map(|grace| format!(", {grace} s of grace"));
        parts.insert("rollback".to_owned(), format!("{when}{attempts}{}", grace.unwrap_or_default()));
    }
    let answer = |(name, value): (&String, &serde_json::Value)| (format!("answer {name}"), plain(value));
    parts.extend(revision.parameters.iter().map(answer));
    for held in &revision.overrides {
        let of = targets(&held.targets);
        let answers = held.parameters.iter().map(|(name, value)| format!("{name} = {}", plain(value)));
        parts.insert(format!("for {of}"), answers.collect::<Vec<_>>().join(", "));
    }
    parts
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
        let (differences, same) = compare(Some(&revision(1, 5, false)), &revision(2, 7, true));
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
        let (differences, same) = compare(None, &revision(1, 5, false));
        assert!(differences.is_empty() && same.len() == 5);
    }
}
