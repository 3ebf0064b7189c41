//! What pretends to run on a simulated device.

use margrave_core::device::{Health, Observation};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName};

/// A device has few components, so a list is the smallest thing that works.
#[derive(Default)]
pub(crate) struct World {
    running: Vec<Observation>,
}

impl World {
    pub(crate) fn start(&mut self, assignment: AssignmentId, component: ComponentName, fingerprint: Digest) {
        self.stop(assignment, &component);
        let fingerprint = Some(fingerprint);
        self.running.push(Observation {
            assignment,
            component,
            fingerprint,
            health: Health::Healthy,
            restarts: 0,
        });
    }

    pub(crate) fn stop(&mut self, assignment: AssignmentId, component: &ComponentName) {
        self.running.retain(|seen| seen.assignment != assignment || seen.component != *component);
    }

    pub(crate) fn observe(&self) -> Vec<Observation> {
        self.running.clone()
    }
}
