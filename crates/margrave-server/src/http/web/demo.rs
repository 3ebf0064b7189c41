//! The demo's own buttons: break a device, and see it heal.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use margrave_core::id::DeviceRef;

use super::Web;
use super::device::parse;
use super::error::PageError;
use super::link;
use super::session::Submitted;
use super::stamp::Stamp;
use crate::drill::Fault;

/// What the banner offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Breaking {
    pub(super) devices: Vec<String>,
    pub(super) faults: Vec<(&'static str, &'static str)>,
}

impl Breaking {
    pub(super) fn of(web: &Web) -> Option<Self> {
        let drills = web.app.drills.as_ref()?;
        Some(Breaking {
            devices: drills.devices.clone(),
            faults: Fault::ALL.iter().map(|fault| (fault.as_str(), label(*fault))).collect(),
        })
    }
}

fn label(fault: Fault) -> &'static str {
    match fault {
        Fault::CutNetwork => "Cut its network",
        Fault::KillDuringUpdate => "Kill it during an update",
        Fault::CorruptDownload => "Corrupt a download",
        Fault::SpoilDisk => "Spoil its disk",
        Fault::SkewClock => "Skew its clock",
    }
}

/// What was done, and what to look for.
fn told(fault: Fault) -> &'static str {
    match fault {
        Fault::CutNetwork => {
            "Its network is cut for a minute. What runs on it keeps running; change something, and it catches up when it is back."
        }
        Fault::KillDuringUpdate => {
            "It is killed as soon as it changes something, and comes back ten seconds later. It goes on where it was."
        }
        Fault::CorruptDownload => {
            "The next thing that it downloads arrives damaged; change something to see it. It refuses what has another digest than was promised, and fetches it again."
        }
        Fault::SpoilDisk => {
            "The documents that it keeps were overwritten, and it was started anew. It sees that the digests are wrong and fetches everything again."
        }
        Fault::SkewClock => {
            "Its clock is two hours ahead for a minute. It goes on as before; the server trusts its own clock."
        }
    }
}

/// What is the matter with a device that somebody broke, on its page.
pub(super) struct BrokenNote {
    pub(super) words: &'static str,
    pub(super) until: Option<Stamp>,
}

impl BrokenNote {
    pub(super) async fn of(web: &Web, device: &DeviceRef) -> Result<Option<Self>, PageError> {
        if web.app.drills.is_none() {
            return Ok(None);
        }
        let broken = web.fleet().broken(device).await?;
        Ok(broken
            .map(|(fault, until)| BrokenNote { words: told(fault), until: until.as_deref().map(Stamp::at) }))
    }
}

/// `POST /demo`.
pub(super) async fn strike(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let drills = web.app.drills.as_ref().ok_or(PageError::NotFound)?;
    let (device, fault) = (fields.one("device"), fields.one("fault"));
    visitor.note.subject(device);
    let fault =
        Fault::parse(fault).ok_or_else(|| PageError::Malformed("There is no such fault.".to_owned()))?;
    visitor.note.detail(fault.as_str());
    if !drills.ask(device, fault) {
        return Err(PageError::Malformed(
            "This device takes no part, or too much is broken at once.".to_owned(),
        ));
    }
    web.fleet().note_broken(&parse(device)?, fault).await?;
    Ok(Redirect::to(&link::device(device)).into_response())
}
