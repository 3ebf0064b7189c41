//! The front page: how the fleet is, what needs a person, and what just happened.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use margrave_wire::operator::{self, DeviceCounts, FleetStatus};

use super::Web;
use super::address::Query;
use super::badge::{Icon, Tone};
use super::command::Command;
use super::error::PageError;
use super::frame::{Frame, Section, render};
use super::link;
use super::need::Needs;
use super::rollout::RolloutLine;
use super::session::Visitor;
use super::stamp::Stamp;
use super::tiers::{TILES_MAX, Tiers, grouped};
use super::told::Told;
use crate::fleet::DeviceQuery;

const ACTIVITY_MAX: usize = 14;
/// Rollouts on the page; the others are with their deployments.
const ROLLOUTS_MAX: usize = 8;

#[derive(Template)]
#[template(path = "fleet.html")]
struct FleetPage {
    frame: Frame,
    status: FleetStatus,
    counts: Vec<Count>,
    needs: Needs,
    rollouts: Vec<RolloutLine>,
    rollouts_more: usize,
    tiers: Option<Tiers>,
    activity: Vec<Activity>,
    token_command: Command,
    package_command: Command,
    command: Command,
}

struct Count {
    word: &'static str,
    value: u64,
    shown: String,
    tone: Tone,
    icon: Icon,
    path: String,
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
            "assignment" if event.text.contains(" went back to ") => ("back", "bad"),
            "assignment" if event.text.contains("INSTALLED") => ("ok", "ok"),
            "assignment" | "deployment" => ("deployment", ""),
            "device" if event.kind == "device.silent" => ("silent", ""),
            "device" => ("device", ""),
            "package" => ("package", ""),
            "operator" | "token" | "session" => ("key", ""),
            _ => ("event", ""),
        };
        let path = match (&event.device, &event.deployment) {
            (Some(device), _) => Some(link::device(device)),
            (None, Some(deployment)) => Some(link::deployment(deployment)),
            (None, None) if event.kind == "device.silent" => Some("/devices?condition=silent".to_owned()),
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

/// Whether every site is asked for, also where there are many.
#[derive(serde::Deserialize)]
pub(super) struct Asked {
    sites: Option<String>,
}

pub(super) async fn page(
    State(web): State<Web>,
    visitor: Visitor,
    Query(Asked { sites }): Query<Asked>,
) -> Result<Response, PageError> {
    let frame = Frame::new(&web, &visitor, Section::Fleet, "Fleet").await?;
    let fleet = web.fleet();
    let status = fleet.status().await?;
    let total = usize::try_from(status.devices.total).unwrap_or(usize::MAX);
    let counted = fleet.sites().await?;
    let tiers = match total {
        0 => None,
        _ => {
            // Retired ones may stand between the others, so one more page than there are tiles is not asked for.
            let devices = match total <= TILES_MAX {
                true => {
                    let query = DeviceQuery { limit: Some(4 * TILES_MAX), ..DeviceQuery::default() };
                    let mut devices = fleet.devices(query).await?.items;
                    devices.retain(|device| device.standing != "retired");
                    devices
                }
                false => Vec::new(),
            };
            Some(Tiers::of(&counted, &devices, sites.as_deref() == Some("all")))
        }
    };
    let events = fleet.recent_events(ACTIVITY_MAX).await?;
    let rollouts = fleet.rollouts_glimpsed().await?;
    render(&FleetPage {
        counts: counts(&status.devices),
        needs: Needs::of(&web, &status, &counted, &rollouts).await?,
        rollouts: rollouts.iter().take(ROLLOUTS_MAX).map(RolloutLine::of).collect(),
        rollouts_more: rollouts.len().saturating_sub(ROLLOUTS_MAX),
        tiers,
        activity: events.iter().map(Activity::of).collect(),
        token_command: Command::new(["margrave", "device", "token", "--name", "line-1"]),
        package_command: Command::new(["margrave", "package", "add", "./my-application"]),
        command: Command::new(["margrave", "status", "--watch"]),
        frame,
        status,
    })
}

fn counts(devices: &DeviceCounts) -> Vec<Count> {
    let count = |word, value, tone, icon, condition: &str| Count {
        word,
        value,
        shown: grouped(value),
        tone,
        icon: Icon::new(icon),
        path: if condition.is_empty() {
            "/devices".to_owned()
        } else {
            format!("/devices?condition={condition}")
        },
    };
    vec![
        count(if devices.total == 1 { "device" } else { "devices" }, devices.total, Tone::Off, "device", ""),
        count("converged", devices.converged, Tone::Ok, "ok", "converged"),
        count("pending", devices.pending, Tone::Busy, "wait", "pending"),
        count("failed", devices.failed, Tone::Bad, "failed", "failed"),
        count("silent", devices.silent, Tone::Warn, "silent", "silent"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_is_one_device() {
        for (total, word) in [(0, "devices"), (1, "device"), (2, "devices")] {
            let devices = DeviceCounts { total, converged: total, pending: 0, failed: 0, silent: 0 };
            assert_eq!(counts(&devices)[0].word, word, "{total}");
        }
    }
}
