//! What a deployment was, on its page; what differs between two of its revisions; and the way back.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use margrave_wire::operator;

use super::Web;
use super::address::{Path, Query};
use super::command::Command;
use super::commit::CommitMark;
use super::confirm::ConfirmPage;
use super::deployment::{parse, who};
use super::difference::{Difference, Packages, Wanted, compare};
use super::error::PageError;
use super::frame::{Frame, Section, render};
use super::link;
use super::session::{Changer, Submitted, Visitor};
use super::stamp::Stamp;
use crate::fleet::{Error, Fleet};

/// One line of the list.
pub(super) struct RevisionLine {
    pub(super) number: u64,
    pub(super) path: String,
    /// The commit that made it.
    pub(super) commit: Option<CommitMark>,
    pub(super) changed: Stamp,
    pub(super) by: String,
    /// What became of it as a whole, a phrase each.
    pub(super) phrases: Vec<String>,
    /// What it changed of the one before.
    pub(super) differences: Vec<Difference>,
    pub(super) current: bool,
    /// There is something to go back to.
    pub(super) revertible: bool,
}

impl RevisionLine {
    /// The newest ones, as they come: the newest first.
    pub(super) async fn newest(
        fleet: &Fleet,
        name: &str,
        revisions: &[operator::Revision],
        most: usize,
    ) -> Result<Vec<Self>, Error> {
        let shown = &revisions[..revisions.len().min(most + 1)];
        let packages = packages_of(fleet, shown).await?;
        let line = |(at, revision)| RevisionLine::of(name, revision, shown.get(at + 1), &packages);
        Ok(shown.iter().take(most).enumerate().map(line).collect())
    }

    fn of(
        name: &str,
        revision: &operator::Revision,
        before: Option<&operator::Revision>,
        packages: &Packages,
    ) -> Self {
        let differences = match before {
            Some(before) if !revision.removed => {
                compare(Some(&Wanted::of(before, packages)), &Wanted::of(revision, packages)).0
            }
            _ => Vec::new(),
        };
        RevisionLine {
            number: revision.revision,
            path: path(name, revision.revision),
            commit: revision.commit.as_deref().map(CommitMark::of),
            changed: Stamp::ago(&revision.changed_at),
            by: who(&revision.changed_by),
            phrases: phrases(revision, before),
            differences,
            current: revision.current,
            revertible: !revision.current && !revision.removed,
        }
    }
}

/// What became of the whole, and how it ended where it never came to its end.
fn phrases(revision: &operator::Revision, before: Option<&operator::Revision>) -> Vec<String> {
    let begun = match before {
        _ if revision.removed => Some("removed"),
        Some(before) if before.removed => Some("created again"),
        None if revision.revision == 1 => Some("created"),
        _ => None,
    };
    let ended = match (&revision.ended, revision.unfinished) {
        (_, false) => None,
        (Some(why), true) => Some(format!("never came to its end: {why}")),
        (None, true) => Some("never came to its end".to_owned()),
    };
    begun.map(str::to_owned).into_iter().chain(ended).collect()
}

async fn packages_of(fleet: &Fleet, revisions: &[operator::Revision]) -> Result<Packages, Error> {
    let wanted = revisions.iter().map(|revision| (revision.package.as_str(), revision.version.as_str()));
    Packages::of(fleet, wanted.collect()).await
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
    let packages = packages_of(web.fleet(), &revisions).await?;
    let other = other.map(|other| Wanted::of(other, &packages));
    let (differences, same) = compare(other.as_ref(), &Wanted::of(&revision, &packages));
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
    let packages = packages_of(web.fleet(), &revisions).await?;
    let held = now.map(|now| Wanted::of(now, &packages));
    let (differences, _) = compare(held.as_ref(), &Wanted::of(there, &packages));
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
        harmless: false,
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
