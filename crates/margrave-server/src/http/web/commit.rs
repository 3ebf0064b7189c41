//! One commit of what is wanted: who made it, and what it changed.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use margrave_wire::history::{CommitDetail, FileDifference};

use super::Web;
use super::command::Command;
use super::deployment::who;
use super::error::PageError;
use super::frame::{Frame, Section, render};
use super::session::Visitor;
use super::stamp::Stamp;

/// Files that are shown with their text; the others are named.
const TEXTS_MAX: usize = 20;

#[derive(Template)]
#[template(path = "commit.html")]
struct CommitPage {
    frame: Frame,
    commit: String,
    subject: String,
    body: String,
    at: Stamp,
    by: String,
    files: Vec<File>,
    more: u64,
    command: Command,
}

struct File {
    path: String,
    what: &'static str,
    /// As it is since, or was until then.
    text: Option<String>,
}

impl File {
    fn of((index, file): (usize, FileDifference)) -> File {
        let FileDifference { path, before, after } = file;
        let what = match (&before, &after) {
            (None, _) => "new",
            (_, None) => "removed",
            (Some(_), Some(_)) => "changed",
        };
        File { path, what, text: after.or(before).filter(|_| index < TEXTS_MAX) }
    }
}

pub(super) async fn page(
    State(web): State<Web>,
    visitor: Visitor,
    Path(commit): Path<String>,
) -> Result<Response, PageError> {
    let CommitDetail { commit, files, more } = web.fleet().intent_commit(&commit).await?;
    let short: String = commit.commit.chars().take(10).collect();
    let frame = Frame::new(&web, &visitor, Section::Audit, format!("Commit {short}")).await?;
    let (subject, body) = commit.message.split_once('\n').unwrap_or((&commit.message, ""));
    render(&CommitPage {
        frame,
        subject: subject.to_owned(),
        body: body.trim().to_owned(),
        at: Stamp::at(&commit.at),
        by: who(&commit.by),
        files: files.into_iter().enumerate().map(File::of).collect(),
        more,
        command: Command::new(["margrave", "intent", "log"]),
        commit: commit.commit,
    })
}
