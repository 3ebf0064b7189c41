//! One commit of what is wanted: who made it, and what it changed.

use askama::Template;
use askama::filters::HtmlSafe;
use axum::extract::State;
use axum::response::Response;
use margrave_core::difference::unified;
use margrave_wire::history::{CommitDetail, FileDifference};

use super::Web;
use super::address::Path;
use super::command::Command;
use super::deployment::who;
use super::error::PageError;
use super::frame::{Frame, Section, render};
use super::link;
use super::session::Visitor;
use super::stamp::Stamp;

/// The name of a commit, short enough to be read and leading to its page, with the whole of it to be copied.
#[derive(Template)]
#[template(
    ext = "html",
    source = r#"<span class="commit-mark"><a href="{{ path }}"><code title="{{ commit }}" data-whole="{{ commit }}">{{ short }}</code></a>{% include "copy.html" %}</span>"#
)]
pub(super) struct CommitMark {
    path: String,
    commit: String,
    short: String,
}

impl HtmlSafe for CommitMark {}

impl CommitMark {
    pub(super) fn of(commit: &str) -> Self {
        let short = commit.chars().take(SHORT).collect();
        CommitMark { path: link::commit(commit), commit: commit.to_owned(), short }
    }
}

/// As people write the name of a commit.
const SHORT: usize = 10;
/// Lines of a difference that are shown; a deployment may name ten thousand devices.
const LINES_MAX: usize = 200;
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
    /// What differs, line by line; nothing where too many files do.
    lines: Vec<Line>,
    lines_more: usize,
}

/// A line of a difference.
struct Line {
    /// What became of it.
    tone: &'static str,
    text: String,
}

impl Line {
    fn of(text: String) -> Self {
        let tone = match text.as_bytes().first() {
            Some(b'+') => "new",
            Some(b'-') => "gone",
            Some(b'@') => "place",
            _ => "same",
        };
        Line { tone, text }
    }
}

impl File {
    fn of((index, file): (usize, FileDifference)) -> File {
        let FileDifference { path, before, after } = file;
        let what = match (&before, &after) {
            (None, _) => "new",
            (_, None) => "removed",
            (Some(_), Some(_)) => "changed",
        };
        // The first two lines name the file, which the page does already.
        let mut lines: Vec<String> = match index < TEXTS_MAX {
            true => unified(&path, before.as_deref(), after.as_deref()).into_iter().skip(2).collect(),
            false => Vec::new(),
        };
        let lines_more = lines.len().saturating_sub(LINES_MAX);
        lines.truncate(LINES_MAX);
        File { path, what, lines: lines.into_iter().map(Line::of).collect(), lines_more }
    }
}

pub(super) async fn page(
    State(web): State<Web>,
    visitor: Visitor,
    Path(commit): Path<String>,
) -> Result<Response, PageError> {
    let CommitDetail { commit, files, more } = web.fleet().intent_commit(&commit).await?;
    let short: String = commit.commit.chars().take(SHORT).collect();
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
        command: Command::new(["git", "show", &commit.commit]),
        commit: commit.commit,
    })
}
