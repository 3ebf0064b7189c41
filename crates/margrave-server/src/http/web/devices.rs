//! The list of devices: found and filtered. What is done with many of them at once is `bulk.rs`.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use margrave_core::lifecycle::{STATES, State as Lifecycle};

use margrave_wire::operator;

use super::Web;
use super::address::Query;
use super::assignment::DeploymentMark;
use super::badge::Badge;
use super::bulk::{self, Done, Typed};
use super::command::Command;
use super::device::SIGNED;
use super::error::{PageError, told};
use super::frame::{Frame, Section, render};
use super::link;
use super::session::{Fields, Visitor};
use super::stamp::Stamp;
use super::tiers::{counted, grouped};
use super::told::Told;
use crate::fleet::{Counted, DeviceQuery, Error, WITHOUT_SITE};

const PAGE_SIZE: usize = 50;
/// Sites that the filter offers; any other can be written into the address.
const SITES_MAX: usize = 500;
/// What the fields of a filter are called in a form that does something with all that match.
const WHERE: &str = "where-";

#[derive(Template)]
#[template(path = "devices.html")]
struct DevicesPage {
    frame: Frame,
    filter: Filter,
    conditions: [&'static str; 5],
    states: Vec<&'static str>,
    sites: Vec<String>,
    rows: Vec<Row>,
    waiting: Vec<Waiting>,
    /// "50 of 10,000 devices".
    total: String,
    next: Option<String>,
    previous: Option<String>,
    first: Option<String>,
    without_site: &'static str,
    lengths: &'static [(u64, &'static str)],
    beyond: bool,
    carried: Vec<(String, String)>,
    /// What came of a bulk action.
    done: Option<String>,
    wrong: Option<String>,
    /// What stands in the form that does something with many.
    typed: Typed,
    command: Command,
    list_command: Command,
    bulk_commands: [Command; 6],
}

#[derive(Debug, Clone, Default, serde::Deserialize)]
pub(super) struct Filter {
    #[serde(default)]
    search: String,
    #[serde(default)]
    label: String,
    #[serde(default)]
    condition: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    site: String,
    #[serde(default)]
    deployment: String,
    #[serde(default)]
    capability: String,
    after: Option<String>,
}

impl Filter {
    fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("search", &self.search),
            ("label", &self.label),
            ("condition", &self.condition),
            ("state", &self.state),
            ("site", &self.site),
            ("deployment", &self.deployment),
            ("capability", &self.capability),
        ]
        .into_iter()
        .map(|(name, value)| (name, value.trim()))
        .filter(|(_, value)| !value.is_empty())
    }

    fn is_empty(&self) -> bool {
        self.fields().next().is_none()
    }

    /// More than the name is asked for.
    fn is_narrow(&self) -> bool {
        self.fields().any(|(name, _)| !matches!(name, "search" | "condition"))
    }

    pub(super) fn query(&self) -> Result<DeviceQuery, String> {
        let text = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let label = text(&self.label).map(|label| match label.split_once('=') {
            Some((key, value)) => (key.trim().to_owned(), Some(value.trim().to_owned())),
            None => (label, None),
        });
        let state = text(&self.state).map(|state| {
            Lifecycle::parse(&state).ok_or_else(|| format!("“{state}” is no state of an application."))
        });
        Ok(DeviceQuery {
            search: text(&self.search),
            label,
            condition: text(&self.condition),
            state: state.transpose()?,
            site: text(&self.site),
            deployment: text(&self.deployment),
            capability: text(&self.capability),
            after: self.after.clone(),
            limit: Some(PAGE_SIZE),
        })
    }

    /// The address of this list, from its beginning or behind a device.
    pub(super) fn path(&self, after: Option<&str>) -> String {
        let after = after.map(|after| ("after", after));
        let pairs = self.fields().chain(after).map(|(name, value)| format!("{name}={}", link::encode(value)));
        let pairs = pairs.collect::<Vec<_>>().join("&");
        if pairs.is_empty() { "/devices".to_owned() } else { format!("/devices?{pairs}") }
    }

    /// As forms carry it: about all that match, or to come back to.
    pub(super) fn carried(&self) -> Vec<(String, String)> {
        let after = self.after.as_deref().map(|after| ("after", after));
        let fields = self.fields().chain(after);
        fields.map(|(name, value)| (format!("{WHERE}{name}"), value.to_owned())).collect()
    }

    /// The address of the page that somebody looks at.
    pub(super) fn here(&self) -> String {
        self.path(self.after.as_deref())
    }

    /// What such a form carries.
    pub(super) fn of(fields: &Fields) -> Filter {
        let field = |name: &str| fields.one(&format!("{WHERE}{name}")).to_owned();
        Filter {
            search: field("search"),
            label: field("label"),
            condition: field("condition"),
            state: field("state"),
            site: field("site"),
            deployment: field("deployment"),
            capability: field("capability"),
            after: Some(field("after")).filter(|after| !after.is_empty()),
        }
    }

    /// In words, for a question about all that match.
    pub(super) fn words(&self) -> String {
        let words: Vec<String> = self.fields().map(|(name, value)| format!("{name} {value}")).collect();
        if words.is_empty() { "all devices".to_owned() } else { words.join(", ") }
    }

    pub(super) fn command(&self) -> Command {
        Command::with_options(&["margrave", "device", "list"], self.fields())
    }
}

struct Row {
    key: String,
    name: String,
    ticked: bool,
    path: String,
    badge: Badge,
    reason: Option<String>,
    simulated: bool,
    /// It signs its requests instead of showing a certificate in the handshake.
    signed: bool,
    labels: Vec<String>,
    assignments: Vec<DeploymentMark>,
    contact: Option<Stamp>,
}

/// Somebody who wants to be let in to sign requests.
struct Waiting {
    key: String,
    id: String,
    path: String,
    subject: String,
    fingerprint: String,
    kind: String,
    address: Option<String>,
    asked: Stamp,
    commands: [Command; 2],
}

impl Waiting {
    /// The fingerprint in pieces that two people can compare.
    fn groups(&self) -> impl Iterator<Item = &str> {
        self.fingerprint.as_bytes().chunks(8).filter_map(|group| std::str::from_utf8(group).ok())
    }

    fn of(client: &operator::SignedClient) -> Self {
        Waiting {
            key: format!("waiting-{}", client.client),
            id: client.client.clone(),
            path: link::device(&client.client),
            subject: client.subject.clone(),
            fingerprint: client.fingerprint.clone(),
            kind: client.key.clone(),
            address: client.address.clone(),
            asked: Stamp::ago(&client.last_seen),
            commands: ["accept", "reject"]
                .map(|verb| Command::new(["margrave", "device", verb, &client.client])),
        }
    }
}

impl Row {
    fn of(device: &operator::Device, typed: &Typed) -> Self {
        Row {
            ticked: typed.ticked.contains(&device.id),
            key: format!("device-{}", device.id),
            name: device.id.clone(),
            path: link::device(&device.id),
            badge: Badge::condition(&device.condition),
            reason: device.reason.clone(),
            simulated: device.simulated,
            signed: device.form == SIGNED,
            labels: device.labels.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            assignments: device.assignments.iter().map(DeploymentMark::of).collect(),
            contact: device.last_contact.as_deref().map(Stamp::ago),
        }
    }
}

pub(super) async fn list(
    State(web): State<Web>,
    visitor: Visitor,
    Query(filter): Query<Filter>,
    Query(done): Query<Done>,
) -> Result<Response, PageError> {
    page(&web, &visitor, filter, Typed::default(), Ok(done.words())).await
}

pub(super) async fn page(
    web: &Web,
    visitor: &Visitor,
    filter: Filter,
    typed: Typed,
    outcome: Result<Option<String>, String>,
) -> Result<Response, PageError> {
    let frame = Frame::new(web, visitor, Section::Devices, "Devices").await?.at(filter.here());
    let none = || operator::Page { items: Vec::new(), next: None };
    let (done, mut wrong) = match outcome {
        Ok(done) => (done, None),
        Err(wrong) => (None, Some(wrong)),
    };
    let (page, total, before) = match filter.query() {
        Ok(query) => match web.fleet().devices(query.clone()).await {
            Err(error @ Error::Invalid(_)) => {
                wrong = Some(told(&error));
                (none(), Counted::Exactly(0), None)
            }
            page => {
                let before = match filter.after.is_some() {
                    true => Some(web.fleet().devices_before(query.clone()).await?),
                    false => None,
                };
                let page = page?;
                let total = match filter.after.is_none() && page.next.is_none() {
                    // This page has them all.
                    true => Counted::Exactly(page.items.len() as u64),
                    false => web.fleet().devices_counted(query).await?,
                };
                (page, total, before)
            }
        },
        Err(message) => {
            wrong = Some(message);
            (none(), Counted::Exactly(0), None)
        }
    };
    // Above the first page of all devices; who looks for something else is not kept from it.
    let waiting = match filter.is_empty() && filter.after.is_none() {
        true => web.fleet().signed_clients(Some("pending"))?,
        false => Vec::new(),
    };
    let status = if wrong.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let page = DevicesPage {
        frame,
        conditions: ["converged", "pending", "failed", "silent", "retired"],
        states: STATES.iter().map(|state| state.as_str()).collect(),
        sites: web.fleet().sites_named(SITES_MAX).await?,
        rows: page.items.iter().map(|device| Row::of(device, &typed)).collect(),
        waiting: waiting.iter().map(Waiting::of).collect(),
        // There is more than this page shows.
        beyond: page.next.is_some() || filter.after.is_some(),
        carried: filter.carried(),
        next: page.next.as_deref().map(|after| filter.path(Some(after))),
        total: counted_of(page.items.len(), total),
        // The page before may be the first one, which has an address of its own.
        previous: before.as_ref().map(|before| filter.path(before.as_deref())),
        first: before.flatten().map(|_| filter.path(None)),
        without_site: WITHOUT_SITE,
        lengths: &bulk::LENGTHS,
        done,
        wrong,
        list_command: filter.command(),
        bulk_commands: bulk::COMMANDS
            .map(|command| Command::ready(&format!("for id in {}; do {command}; done", typed.names()))),
        typed,
        filter,
        command: Command::new(["margrave", "device", "token", "--name", "line-1"]),
    };
    Ok((status, render(&page)?).into_response())
}

/// How many there are, and how many of them this page has.
fn counted_of(shown: usize, total: Counted) -> String {
    match (shown as u64, total) {
        (shown, Counted::Exactly(total)) if shown >= total => counted(total, "device"),
        (shown, Counted::Exactly(total)) => format!("{} of {}", grouped(shown), counted(total, "device")),
        (shown, Counted::MoreThan(least)) => {
            format!("{} of more than {}", grouped(shown), counted(least, "device"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_how_many_there_are() {
        assert_eq!(counted_of(1, Counted::Exactly(1)), "1 device");
        assert_eq!(counted_of(50, Counted::Exactly(10_000)), "50 of 10,000 devices");
        assert_eq!(counted_of(50, Counted::MoreThan(1000)), "50 of more than 1,000 devices");
    }
}
