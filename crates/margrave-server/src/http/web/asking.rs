//! What can be asked of a device itself, on its page: to hold changes back for a while, and to look again.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use margrave_wire::operator;

use super::Web;
use super::address::Path;
use super::command::Command;
use super::device::parse;
use super::error::PageError;
use super::link;
use super::session::Submitted;
use super::stamp::Stamp;

/// Lengths that the form offers, in seconds, as far as the device may be held back for so long.
const LENGTHS: [(u64, &str); 8] = [
    (15 * 60, "15 minutes"),
    (30 * 60, "30 minutes"),
    (3600, "1 hour"),
    (2 * 3600, "2 hours"),
    (4 * 3600, "4 hours"),
    (8 * 3600, "8 hours"),
    (12 * 3600, "12 hours"),
    (24 * 3600, "24 hours"),
];
const LENGTH_USUAL: u64 = 3600;

/// What stands on the page of a device about it.
pub(super) struct Asking {
    pub(super) hold: Option<AskedHold>,
    pub(super) look: Option<AskedLook>,
    pub(super) lengths: Vec<Length>,
    /// It does not run our agent, so it would not understand.
    pub(super) foreign: bool,
    pub(super) hold_command: Command,
    pub(super) release_command: Command,
    pub(super) look_command: Command,
}

pub(super) struct AskedHold {
    pub(super) by: String,
    pub(super) reason: String,
    pub(super) until: Stamp,
    /// The device says that it holds.
    pub(super) done: bool,
}

pub(super) struct AskedLook {
    pub(super) by: String,
    pub(super) at: Stamp,
    pub(super) done: bool,
}

pub(super) struct Length {
    pub(super) seconds: u64,
    pub(super) words: &'static str,
    pub(super) chosen: bool,
}

impl Asking {
    pub(super) fn of(device: &operator::Device, longest: Duration) -> Self {
        let hold = device.asked_hold.as_ref().map(|hold| AskedHold {
            by: hold.holder.clone(),
            reason: hold.reason.clone(),
            until: Stamp::at(&hold.until),
            done: device.holds.iter().any(|held| held.holder == hold.holder && held.reason == hold.reason),
        });
        let look = device.asked_look.as_ref().map(|look| AskedLook {
            by: look.by.clone(),
            at: Stamp::ago(&look.at),
            done: look.done,
        });
        let allowed = LENGTHS.iter().filter(|(seconds, _)| *seconds <= longest.as_secs());
        let id = device.id.as_str();
        Asking {
            hold,
            look,
            lengths: allowed
                .map(|(seconds, words)| Length { seconds: *seconds, words, chosen: *seconds == LENGTH_USUAL })
                .collect(),
            foreign: device.own_agent == Some(false),
            hold_command: Command::new([
                "margrave",
                "device",
                "hold",
                id,
                "--reason",
                "batch 17 runs",
                "--for",
                "1h",
            ]),
            release_command: Command::new(["margrave", "device", "release", id]),
            look_command: Command::new(["margrave", "device", "look", id]),
        }
    }
}

pub(super) async fn hold(
    State(web): State<Web>,
    Path(id): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let id = parse(&id)?;
    let Submitted { visitor, fields, .. } = submitted;
    let Ok(seconds) = fields.one("seconds").parse() else {
        return Err(PageError::Malformed("The form does not say for how long.".to_owned()));
    };
    let want = operator::HoldDevice { reason: fields.one("reason").to_owned(), seconds };
    visitor.note.detail(format!("for {seconds} s: {}", want.reason));
    let device = web.fleet().hold_device(&visitor.actor, &id, &want).await?;
    Ok(back(&device))
}

pub(super) async fn release(
    State(web): State<Web>,
    Path(id): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let device = web.fleet().release_device(&submitted.visitor.actor, &parse(&id)?).await?;
    Ok(back(&device))
}

pub(super) async fn look(
    State(web): State<Web>,
    Path(id): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let device = web.fleet().look_again(&submitted.visitor.actor, &parse(&id)?).await?;
    Ok(back(&device))
}

fn back(device: &operator::Device) -> Response {
    Redirect::to(&link::device(&device.id)).into_response()
}
