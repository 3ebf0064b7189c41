//! What a device can be told to do, and what it can be told has happened.

use std::time::Duration;

use crate::digest::{Digest, Document};
use crate::id::{AssignmentId, ComponentName};
use crate::manifest::{Blob, Entry, Manifest};
use crate::report::{Failure, FailureCode, Report};

use super::{Hold, Observation, Order, Reading};

/// Fully specified, safe to repeat.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Say what this device is: the first exchange, and again on every change (MI-G2-120).
    SendCapabilities,
    /// Ask whether there is a newer manifest.
    Poll {
        held: Option<Digest>,
        wait: Duration,
    },
    /// Get the documents of the manifest that was polled.
    Fetch(FetchPlan),
    Send(Report),
    /// Look at what runs.
    Observe,
    /// Fetch what an order needs, touching nothing that runs.
    Prefetch(Order),
    Apply(Order),
    Remove {
        assignment: AssignmentId,
        component: ComponentName,
        /// It may be wanted again soon, because what is there instead may be gone back from.
        aside: bool,
    },
}

impl Action {
    /// What it comes to when it was not done.
    pub fn undone(&self, message: &str, code: FailureCode) -> Event {
        let trouble = || Trouble::passing(message);
        let failure = || Failure::new(code, message);
        match self {
            Action::SendCapabilities => Event::CapabilitiesSent(Err(trouble())),
            Action::Poll { .. } => Event::Polled(Err(trouble())),
            Action::Fetch(_) => Event::Fetched(Err(trouble())),
            Action::Send(report) => {
                let sequence = report.detail.as_ref().map_or(0, |detail| detail.sequence);
                Event::Sent { sequence, result: Err(trouble()) }
            }
            Action::Observe => Event::Observed(Err(failure())),
            Action::Prefetch(order) => Event::Prefetched {
                assignment: order.assignment,
                component: order.component.clone(),
                fingerprint: order.fingerprint(),
                result: Err(failure()),
            },
            Action::Apply(order) => Event::Applied {
                assignment: order.assignment,
                component: order.component.clone(),
                fingerprint: order.fingerprint(),
                result: Err(failure()),
            },
            Action::Remove { assignment, component, .. } => Event::Removed {
                assignment: *assignment,
                component: component.clone(),
                result: Err(failure()),
            },
        }
    }
}

/// Which is less to fetch: the bundle, or the documents that are missing (design, part 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchPlan {
    Bundle { bundle: Blob, entries: Vec<Entry> },
    Documents(Vec<Entry>),
}

/// What became of an exchange with the server that did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub message: String,
    /// The server asked not to be bothered earlier: binding, for everything (MI-G2-193).
    pub retry_after: Option<Duration>,
    /// What the answer's body advised: a hint for this exchange; the header wins.
    pub advice: Option<Duration>,
    pub backoff: Backoff,
    /// Asking the same again cannot help.
    pub permanent: bool,
    /// It is an answer, so that the way there is open as far as whoever gave it.
    pub answered: bool,
}

/// How pauses grow while the same exchange keeps failing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backoff {
    /// Not at all: it comes again in its regular rhythm.
    None,
    /// The same pause every time.
    Fixed,
    /// Doubling, up to a limit; also what is done when nobody said anything.
    #[default]
    Exponential,
}

impl Trouble {
    pub fn passing(message: impl Into<String>) -> Self {
        Trouble {
            message: message.into(),
            retry_after: None,
            advice: None,
            backoff: Backoff::Exponential,
            permanent: false,
            answered: false,
        }
    }

    pub fn permanent(message: impl Into<String>) -> Self {
        Trouble { permanent: true, ..Trouble::passing(message) }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Polled {
    /// 304, or the manifest that is held. `held_open` when the server waited: ask again at once.
    Unchanged {
        held_open: bool,
    },
    Manifest {
        manifest: Manifest,
        body: Digest,
        held_open: bool,
    },
}

/// Documents that arrived, each with what it says.
pub type Delivery = Vec<(Document, Reading)>;

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Began(Action),
    /// It was not, because that could not be written down; what it comes to follows.
    Unbegun(Action),
    /// What documents on disk say; told once after a start. Nothing follows from this and the next two before another fact comes.
    Read(Vec<(Digest, Reading)>),
    /// Which life of the machine this is; told once after a start, where the system can tell.
    Booted(String),
    /// Whom the server takes this device for; told once after a start. What was accepted under another name
    /// says nothing about this one's versions (migration, section 6, step 5).
    IdentityIs(String),
    /// Certificate, trust or address are new: what failed before may work now.
    WayRenewed,
    /// The capabilities body as it is now.
    CapabilitiesAre(Digest),
    CapabilitiesSent(Result<Digest, Trouble>),
    Polled(Result<Polled, Trouble>),
    Fetched(Result<Delivery, Trouble>),
    Sent {
        sequence: u64,
        result: Result<(), Trouble>,
    },
    /// A report was refused, and nobody said why: perhaps it never came to the server.
    Rebuffed {
        sequence: u64,
        trouble: Trouble,
    },
    /// Something happened to a container: look soon, not at the next regular time.
    Stirred,
    /// The process ends in good order, and what it knows is written down once more.
    Stopping,
    /// Somebody at the device holds changes back ([`Device::hold`](super::Device::hold) said so).
    Held(Hold),
    /// This holder lets them go on, or everybody does.
    Released(Option<String>),
    Observed(Result<Vec<Observation>, Failure>),
    Prefetched {
        assignment: AssignmentId,
        component: ComponentName,
        /// Two orders of one component may be fetched at the same time.
        fingerprint: Digest,
        result: Result<(), Failure>,
    },
    Applied {
        assignment: AssignmentId,
        component: ComponentName,
        fingerprint: Digest,
        result: Result<(), Failure>,
    },
    Removed {
        assignment: AssignmentId,
        component: ComponentName,
        result: Result<(), Failure>,
    },
}
