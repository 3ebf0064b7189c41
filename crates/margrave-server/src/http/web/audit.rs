//! What operators did and were refused, as a page.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use margrave_wire::operator::{AuditEntry, Page};

use super::Web;
use super::address::Query;
use super::command::Command;
use super::commit::CommitMark;
use super::error::{PageError, told};
use super::frame::{Frame, Section, render};
use super::link;
use super::session::Visitor;
use super::stamp::Stamp;
use super::told::Told;
use crate::fleet::{AuditQuery, Error};

const PAGE_SIZE: usize = 50;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    filter: Filter,
    wrong: Option<String>,
    rows: Vec<Row>,
    next: Option<String>,
    command: Command,
    verify: Command,
}

#[derive(Default, serde::Deserialize)]
pub(super) struct Filter {
    #[serde(default)]
    actor: String,
    #[serde(default)]
    subject: String,
    /// A day, or a moment as RFC 3339 writes it.
    #[serde(default)]
    since: String,
    after: Option<String>,
}

impl Filter {
    /// Whether the newest entries are asked for, which are others when there are more. Older ones stay what they are.
    fn is_newest(&self) -> bool {
        self.after.is_none()
    }

    fn is_empty(&self) -> bool {
        [&self.actor, &self.subject, &self.since].iter().all(|text| text.trim().is_empty())
    }

    fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [("actor", &self.actor), ("subject", &self.subject), ("since", &self.since)]
            .into_iter()
            .map(|(name, value)| (name, value.trim()))
            .filter(|(_, value)| !value.is_empty())
    }

    fn query(&self) -> AuditQuery {
        let text = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        // A day begins at midnight, of which the server knows only its own: UTC.
        let since = text(&self.since).map(|since| match since.len() {
            10 => format!("{since}T00:00:00Z"),
            _ => since,
        });
        AuditQuery {
            actor: text(&self.actor),
            subject: text(&self.subject),
            since,
            after: self.after.clone(),
            limit: Some(PAGE_SIZE),
        }
    }

    fn page(&self, after: &str) -> String {
        let fields = self.fields().map(|(name, value)| format!("&{name}={}", link::encode(value)));
        format!("/audit?after={}{}", link::encode(after), fields.collect::<String>())
    }

    fn command(&self) -> Command {
        Command::with_options(&["margrave", "audit"], self.fields())
    }
}

struct Row {
    at: Stamp,
    who: String,
    done: bool,
    commit: Option<CommitMark>,
    /// The page of what it is about.
    about: Option<String>,
    entry: AuditEntry,
}

impl Row {
    fn of(entry: AuditEntry) -> Self {
        Row {
            at: Stamp::at(&entry.at),
            who: entry.actor.strip_prefix("operator ").unwrap_or(&entry.actor).to_owned(),
            done: entry.outcome == "done",
            commit: entry.commit.as_deref().map(CommitMark::of),
            about: about(&entry.action, &entry.subject),
            entry,
        }
    }
}

/// Where what an entry is about has its page. It may have gone since, and that page says so.
fn about(action: &str, subject: &str) -> Option<String> {
    let named = !subject.is_empty() && !subject.contains(' ');
    match action.split('.').next().unwrap_or_default() {
        "device" if named => Some(link::device(subject)),
        "deployment" if named => Some(link::deployment(subject)),
        "schedule" if named => Some(link::schedule(subject)),
        "registry" => Some("/settings#registries".to_owned()),
        "watch" => Some("/packages#watches".to_owned()),
        "package" => {
            let (id, version) = subject.split_once(' ')?;
            (!version.contains(' ')).then(|| link::package(id, version))
        }
        _ => None,
    }
}

pub(super) async fn page(
    State(web): State<Web>,
    visitor: Visitor,
    Query(filter): Query<Filter>,
) -> Result<Response, PageError> {
    let frame = Frame::new(&web, &visitor, Section::Audit, "Audit").await?.of_the_log(&web).await?;
    let (page, wrong) = match web.fleet().audit(filter.query()).await {
        Ok(page) => (page, None),
        Err(error @ Error::Invalid(_)) => (Page { items: Vec::new(), next: None }, Some(told(&error))),
        Err(error) => return Err(error.into()),
    };
    let status = if wrong.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let page = AuditPage {
        frame,
        wrong,
        rows: page.items.into_iter().map(Row::of).collect(),
        next: page.next.as_deref().map(|after| filter.page(after)),
        command: filter.command(),
        verify: Command::new(["margrave", "audit", "verify"]),
        filter,
    };
    Ok((status, render(&page)?).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_leads_to_what_it_is_about() {
        for (action, subject, path) in [
            ("device.retire", "gw/child", Some("/devices/gw%2Fchild")),
            ("device.change", "press-1 press-2", None),
            ("device.change", "", None),
            ("deployment.put", "north", Some("/deployments/north")),
            ("package.add", "gate 1.0.0", Some("/packages/gate/1.0.0")),
            ("package.add", "not a reference", None),
            ("schedule.put", "label:line=7", Some("/settings/schedule?reach=label:line%3D7")),
            ("session.begin", "", None),
        ] {
            assert_eq!(about(action, subject).as_deref(), path, "{action} {subject}");
        }
    }
}
