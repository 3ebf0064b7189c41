//! The list of devices: found and filtered. What is done with many of them at once is `bulk.rs`.

use askama::Template;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use margrave_core::lifecycle::{STATES, State as Lifecycle};
use margrave_wire::operator;

use super::Web;
use super::assignment::DeploymentMark;
use super::badge::Badge;
use super::command::Command;
use super::device::SIGNED;
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::link;
use super::session::{Fields, Visitor};
use super::stamp::Stamp;
use crate::fleet::{DeviceQuery, Error};

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
    next: Option<String>,
    first: Option<String>,
    beyond: bool,
    carried: Vec<(String, String)>,
    /// What came of a bulk action.
    done: Option<String>,
    wrong: Option<String>,
    command: Command,
    list_command: Command,
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
            Some((key, value)) => (key.trim().to_owned(), value.trim().to_owned()),
            None => (label, String::new()),
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

    /// As a form about all that match carries it.
    pub(super) fn carried(&self) -> Vec<(String, String)> {
        self.fields().map(|(name, value)| (format!("{WHERE}{name}"), value.to_owned())).collect()
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
            capability: field("capability"),
            after: None,
        }
    }

    /// In words, for a question about all that match.
    pub(super) fn words(&self) -> String {
        let words: Vec<String> = self.fields().map(|(name, value)| format!("{name} {value}")).collect();
        if words.is_empty() { "all devices".to_owned() } else { words.join(", ") }
    }

    pub(super) fn command(&self) -> Command {
        let options = self.fields();
        let options = options.flat_map(|(name, value)| [format!("--{name}"), value.to_owned()]);
        let words: Vec<_> =
            ["margrave", "device", "list"].map(str::to_owned).into_iter().chain(options).collect();
        Command::new(words.iter().map(String::as_str))
    }
}

struct Row {
    key: String,
    name: String,
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
}

impl Waiting {
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
        }
    }
}

impl Row {
    fn of(device: &operator::Device) -> Self {
        Row {
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
) -> Result<Response, PageError> {
    page(&web, &visitor, filter, Ok(None)).await
}

pub(super) async fn page(
    web: &Web,
    visitor: &Visitor,
    filter: Filter,
    outcome: Result<Option<String>, String>,
) -> Result<Response, PageError> {
    let frame = Frame::new(web, visitor, Section::Devices, "Devices").await?;
    let none = || operator::Page { items: Vec::new(), next: None };
    let (done, mut wrong) = match outcome {
        Ok(done) => (done, None),
        Err(wrong) => (None, Some(wrong)),
    };
    let page = match filter.query() {
        Ok(query) => match web.fleet().devices(query).await {
            Err(error @ Error::Invalid(_)) => {
                wrong = Some(sentence(&error.to_string()));
                none()
            }
            page => page?,
        },
        Err(message) => {
            wrong = Some(message);
            none()
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
        sites: web.fleet().sites().await?.into_keys().flatten().take(SITES_MAX).collect(),
        rows: page.items.iter().map(Row::of).collect(),
        waiting: waiting.iter().map(Waiting::of).collect(),
        // There is more than this page shows.
        beyond: page.next.is_some() || filter.after.is_some(),
        carried: filter.carried(),
        next: page.next.as_deref().map(|after| filter.path(Some(after))),
        first: filter.after.is_some().then(|| filter.path(None)),
        done,
        wrong,
        list_command: filter.command(),
        filter,
        command: Command::new(["margrave", "device", "token", "--name", "line-1"]),
    };
    Ok((status, render(&page)?).into_response())
}
