//! What carries out orders: a real Compose engine, or a simulated one that says so.
//!
//! `compose.rs` is the real one: it drives Compose (`program.rs`, `starting.rs`, `departure.rs`) in the surroundings of
//! `environment.rs`, notes what it starts (`project.rs`, `record.rs`, `mounts.rs`), looks at the engine (`engine.rs`, `endings.rs`,
//! `removal.rs`), judges what it sees in `health.rs` and `restarts.rs`, stays on the engine of `home.rs`, undoes what hands did in
//! `drift.rs`, leaves alone what is done (`jobs.rs`) and what was well (`trial.rs`), keeps together what shares (`sharing.rs`), keeps to the images of `pins.rs`, keeps what failed last said (`last_output.rs`), and tidies up in `upkeep.rs`.

mod address;
mod adjustable;
pub mod components;
pub mod compose;
mod container;
mod departure;
mod drift;
mod endings;
pub mod engine;
mod environment;
mod explain;
mod foreign;
mod health;
mod home;
mod images;
mod jobs;
pub(crate) mod last_output;
mod model;
mod mounted;
mod mounts;
pub(crate) mod own_container;
pub mod own_registry;
mod perishable;
mod pins;
mod prepared;
#[cfg(test)]
mod pretended_compose;
#[cfg(test)]
mod pretended_engine;
mod program;
mod project;
mod record;
mod removal;
mod restarts;
mod sharing;
mod signal;
pub mod simulated;
mod starting;
mod stuck;
mod trial;
mod turns;
mod unnamed;
mod upkeep;
mod written;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use margrave_core::device::{Observation, Order};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName};
use margrave_core::package::START_TIME_MAX;
use margrave_core::report::{Failure, FailureCode};

pub use model::Telemetry;

pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How long a component may take to come up when its document does not say (DM-033 leaves it open). Slow
/// flash and a data base that replays its log need minutes; after five, a person wants to know.
pub const START_TIME_MAX_DEFAULT: Duration = Duration::from_secs(5 * 60);

/// Whether there is something all the same that could carry out an order: an engine that is being restarted is still an engine.
pub(crate) fn is_there(failure: &Failure) -> bool {
    failure.code == FailureCode::RuntimeUnreachable
}

/// A runtime. Every call is safe to repeat, and may be cut off at any point by a crash of the agent.
pub trait Runtime: Send + Sync {
    /// Fetches what the order needs, and changes nothing that runs.
    fn prefetch<'a>(&'a self, order: &'a Order) -> Pending<'a, Result<(), Failure>>;

    /// Makes the component run as ordered; returns once it does, or has failed to (PK-100…PK-102).
    /// What already runs with the same fingerprint is left alone. Volumes survive.
    fn apply<'a>(&'a self, order: &'a Order) -> Pending<'a, Result<(), Failure>>;

    /// Removes the component; returns once nothing of it is left. Removing what is not there succeeds.
    fn remove<'a>(
        &'a self,
        assignment: AssignmentId,
        component: &'a ComponentName,
    ) -> Pending<'a, Result<(), Failure>>;

    /// The same, with what starting it again needs kept on the device for a while.
    fn set_aside<'a>(
        &'a self,
        assignment: AssignmentId,
        component: &'a ComponentName,
    ) -> Pending<'a, Result<(), Failure>> {
        self.remove(assignment, component)
    }

    /// What may still be asked for, by the fingerprints of orders; what was fetched for any other is of no use any more.
    fn keep(&self, _orders: BTreeSet<Digest>) {}

    /// Whether images that it pulled itself and that nothing needs any more go from now on; until somebody says so they stay.
    fn let_images_go(&self, _go: bool) {}

    /// Everything of ours that is there now, also what no document asks for any more.
    fn observe(&self) -> Pending<'_, Result<Vec<Observation>, Failure>>;

    /// Waits until something happens to what is ours, so that whoever looks then sees it at once. What happens between two calls
    /// is told by the second.
    fn changed(&self) -> Pending<'_, Result<(), Failure>>;

    /// Whether what carries out orders answers, or why it does not.
    fn reached(&self) -> Pending<'_, Result<(), Failure>>;

    /// Whether there is anything here that could carry out an order.
    fn answers(&self) -> Pending<'_, bool> {
        Box::pin(async { self.reached().await.err().is_none_or(|failure| is_there(&failure)) })
    }

    /// How much it has written to the device's disk since the agent began; what an engine writes is the engine's.
    fn bytes_written(&self) -> u64;

    /// What a person should know about what was seen last, though nothing is wrong.
    fn remarks(&self) -> Vec<String> {
        vec![]
    }
}

/// From the beginning of starting to being up. Fetching does not count: it is as slow as the network is.
fn start_time_max(order: &Order) -> Duration {
    order.timeout.map_or(START_TIME_MAX_DEFAULT, |timeout| timeout.duration().min(START_TIME_MAX))
}

#[cfg(test)]
pub(crate) mod tests {
    use margrave_core::package::{ProfileKind, Revision, Timeout};

    use super::*;

    pub(crate) fn order(component: &str) -> Order {
        Order {
            assignment: AssignmentId::parse("0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11").unwrap(),
            component: ComponentName::parse(component).unwrap(),
            kind: ProfileKind::Compose,
            repository: "oci://margrave/components/web".into(),
            revision: Revision::parse("1.0.0").unwrap(),
            pin: None,
            images: Default::default(),
            values: vec![],
            wait: true,
            timeout: None,
        }
    }

    #[test]
    fn a_document_has_its_component_waited_for_as_long_as_it_says_but_not_for_ever() {
        let with = |text: &str| start_time_max(&Order { timeout: Timeout::parse(text), ..order("web") });
        assert_eq!(start_time_max(&order("web")), START_TIME_MAX_DEFAULT);
        assert_eq!(with("8m30s"), Duration::from_secs(510));
        assert_eq!((with("60m0s"), with("60m1s")), (START_TIME_MAX, START_TIME_MAX));
        assert_eq!(with("999999999m0s"), START_TIME_MAX);
    }
}
