//! The front page: how the fleet is, what needs a person, and what just happened.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use margrave_wire::operator::{self, FleetStatus};

use super::Web;
use super::assignment::badge;
use super::badge::{Badge, Icon, Tone};
use super::command::Command;
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::link;
use super::session::Visitor;
use super::stamp::Stamp;
use crate::fleet::DeviceQuery;

/// Enough to see at a glance; the rest is one click away.
const TILES_MAX: usize = 48;
const NEEDS_MAX: usize = 6;
const ACTIVITY_MAX: usize = 14;
/// Assignments in one tile.
const LINES_MAX: usize = 4;

#[derive(Template)]
#[template(path = "fleet.html")]
struct FleetPage {
    frame: Frame,
    status: FleetStatus,
    counts: Vec<Count>,
    waiting: Option<Waiting>,
    needs: Vec<Need>,
    /// How many more need a person than are shown.
    needs_more: u64,
    groups: Vec<Group>,
    activity: Vec<Activity>,
    token_command: Command,
    package_command: Command,
}

struct Count {
    word: &'static str,
    value: u64,
    tone: Tone,
    icon: Icon,
    path: String,
}

/// Devices that want to be let in and wait for somebody to decide.
struct Waiting {
    badge: Badge,
    /// "3 devices wait".
    words: String,
}

impl Waiting {
    fn of(devices: usize) -> Option<Self> {
        let words = match devices {
            0 => return None,
            1 => "1 device waits".to_owned(),
            more => format!("{more} devices wait"),
        };
        Some(Waiting { badge: Badge::waiting(), words })
    }
}

/// Something that does not mend itself.
struct Need {
    key: String,
    name: String,
    path: String,
    badge: Badge,
    reason: String,
    next: Option<String>,
    why: String,
}

/// Devices that are to be looked at together.
struct Group {
    key: &'static str,
    title: &'static str,
    total: u64,
    tiles: Vec<Tile>,
    /// Not all are shown.
    cut: bool,
}

struct Tile {
    key: String,
    name: String,
    path: String,
    badge: Badge,
    simulated: bool,
    lines: Vec<Line>,
    lines_more: usize,
    contact: Option<Stamp>,
}

struct Line {
    name: String,
    path: String,
    badge: Badge,
}

/// An event as a line.
pub(super) struct Activity {
    pub(super) key: String,
    pub(super) icon: Icon,
    pub(super) tone: &'static str,
    pub(super) text: String,
    pub(super) at: Stamp,
    pub(super) by: Option<String>,
    pub(super) path: Option<String>,
}

impl Activity {
    pub(super) fn of(event: &operator::Event) -> Self {
        let failed = event.text.contains("FAILED") || event.kind.contains("failed");
        let (icon, tone) = match event.kind.split('.').next().unwrap_or_default() {
            _ if failed => ("failed", "bad"),
            "assignment" if event.text.contains("INSTALLED") => ("ok", "ok"),
            "assignment" | "deployment" => ("deployment", ""),
            "device" => ("device", ""),
            "package" => ("package", ""),
            "operator" | "token" | "session" => ("key", ""),
            _ => ("event", ""),
        };
        let path = match (&event.device, &event.deployment) {
            (Some(device), _) => Some(link::device(device)),
            (None, Some(deployment)) => Some(link::deployment(deployment)),
            (None, None) => None,
        };
        Activity {
            key: format!("event-{}", event.sequence),
            icon: Icon::new(icon),
            tone,
            // Which certificate it was is for the log; here it only takes space.
            text: event.text.split(", serial ").next().unwrap_or_default().to_owned(),
            at: Stamp::at(&event.at),
            by: event.actor.strip_prefix("operator ").map(ToOwned::to_owned),
            path,
        }
    }
}

pub(super) async fn page(State(web): State<Web>, visitor: Visitor) -> Result<Response, PageError> {
    let frame = Frame::new(&web, &visitor, Section::Fleet, "Fleet").await?;
    let fleet = web.fleet();
    let status = fleet.status().await?;
    let group = |key, title| Group { key, title, total: 0, tiles: Vec::new(), cut: false };
    let mut groups = [group("unsettled", "Not as wanted"), group("settled", "As wanted")];
    let mut needs = Vec::new();
    let mut needs_more = 0;
    // The worst first.
    for (condition, total) in [
        ("failed", status.devices.failed),
        ("silent", status.devices.silent),
        ("pending", status.devices.pending),
        ("converged", status.devices.converged),
    ] {
        if total == 0 {
            continue;
        }
        let query = DeviceQuery {
            condition: Some(condition.to_owned()),
            limit: Some(TILES_MAX),
            ..DeviceQuery::default()
        };
        let devices = fleet.devices(query).await?.items;
        if matches!(condition, "failed" | "silent") {
            let shown = devices.len().min(NEEDS_MAX.saturating_sub(needs.len()));
            needs_more += total.saturating_sub(shown as u64);
            for device in &devices[..shown] {
                needs.push(need(&web, device).await?);
            }
        }
        let group = &mut groups[usize::from(condition == "converged")];
        group.total += total;
        group.cut |= total > devices.len() as u64;
        group.tiles.extend(devices.iter().map(tile));
    }
    let counts = counts(&status);
    let events = fleet.recent_events(ACTIVITY_MAX).await?;
    render(&FleetPage {
        frame,
        counts,
        waiting: Waiting::of(fleet.signed_waiting()),
        needs,
        needs_more,
        groups: groups.into_iter().filter(|group| !group.tiles.is_empty()).collect(),
        activity: events.iter().map(Activity::of).collect(),
        token_command: Command::new(["margrave", "device", "token", "--name", "line-1"]),
        package_command: Command::new(["margrave", "package", "add", "./my-application"]),
        status,
    })
}

fn counts(status: &FleetStatus) -> Vec<Count> {
    let count = |word, value, tone, icon, condition: &str| Count {
        word,
        value,
        tone,
        icon: Icon::new(icon),
        path: if condition.is_empty() {
            "/devices".to_owned()
        } else {
            format!("/devices?condition={condition}")
        },
    };
    let devices = &status.devices;
    vec![
        count("devices", devices.total, Tone::Off, "device", ""),
        count("converged", devices.converged, Tone::Ok, "ok", "converged"),
        count("pending", devices.pending, Tone::Busy, "wait", "pending"),
        count("failed", devices.failed, Tone::Bad, "failed", "failed"),
        count("silent", devices.silent, Tone::Warn, "silent", "silent"),
    ]
}

async fn need(web: &Web, device: &operator::Device) -> Result<Need, PageError> {
    // The chain's last cause is the one to act on.
    let why = web.fleet().why(&device.id).await?;
    let cause = why.chain.last();
    let reason = device
        .reason
        .as_deref()
        .or(cause.map(|cause| cause.text.as_str()))
        .unwrap_or("no reason is known yet");
    Ok(Need {
        key: format!("need-{}", device.id),
        name: device.id.clone(),
        path: link::device(&device.id),
        badge: Badge::condition(&device.condition),
        reason: reason.to_owned(),
        next: cause.and_then(|cause| cause.hint.as_deref()).map(sentence),
        why: link::why(&device.id),
    })
}

fn tile(device: &operator::Device) -> Tile {
    let line = |assignment: &operator::Assignment| Line {
        name: assignment.deployment.clone(),
        path: link::deployment(&assignment.deployment),
        badge: badge(assignment),
    };
    Tile {
        key: format!("tile-{}", device.id),
        name: device.id.clone(),
        path: link::device(&device.id),
        badge: Badge::condition(&device.condition),
        simulated: device.simulated,
        lines: device.assignments.iter().take(LINES_MAX).map(line).collect(),
        lines_more: device.assignments.len().saturating_sub(LINES_MAX),
        contact: device.last_contact.as_deref().map(Stamp::ago),
    }
}
