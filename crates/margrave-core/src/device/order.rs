//! What a runtime is asked to run, and what it says is running.

use std::collections::BTreeMap;

use serde_json::json;

use crate::digest::Digest;
use crate::id::{AssignmentId, ComponentName};
use crate::package::{ProfileKind, Revision, Timeout};
use crate::parameters::ParameterValue;
use crate::workload::Workload;

/// One component, fully specified: a runtime has nothing left to choose.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    pub assignment: AssignmentId,
    pub component: ComponentName,
    pub kind: ProfileKind,
    pub repository: String,
    pub revision: Revision,
    /// The digest that the server saw behind the revision; pulled by it where known (PK-053).
    pub pin: Option<Digest>,
    /// What the names of its images mean, where the server said so.
    pub images: BTreeMap<String, Digest>,
    /// Where each value goes, in the document's order.
    pub values: Vec<(String, ParameterValue)>,
    pub wait: bool,
    pub timeout: Option<Timeout>,
}

impl Order {
    /// The orders of a workload, in the order in which they are to be carried out (DM-022).
    pub fn of(workload: &Workload) -> Vec<Order> {
        workload
            .components
            .iter()
            .map(|component| Order {
                assignment: workload.id,
                component: component.name.clone(),
                kind: workload.kind,
                repository: component.repository.clone(),
                revision: component.revision.clone(),
                pin: workload.hints.pins.get(&component.name).copied(),
                images: workload.hints.images.get(&component.name).cloned().unwrap_or_default(),
                values: workload
                    .values_for(&component.name)
                    .map(|(pointer, value)| (pointer.to_owned(), value.clone()))
                    .collect(),
                wait: component.wait.unwrap_or(true),
                timeout: component.timeout,
            })
            .collect()
    }

    /// Whether this is meant by what a runtime was told.
    pub(super) fn is(&self, component: &ComponentName, fingerprint: Digest) -> bool {
        self.component == *component && self.fingerprint() == fingerprint
    }

    /// Equal exactly when running one is as good as running the other. The runtime stamps it on what it
    /// starts, so that after a reboot a device can see that it need not touch a thing. Waiting and
    /// timeouts are left out: they say how to start, not what runs.
    pub fn fingerprint(&self) -> Digest {
        let values: Vec<_> = self.values.iter().map(|(pointer, value)| json!([pointer, value])).collect();
        let mut content = json!([
            self.assignment.to_string(),
            self.component.as_str(),
            self.kind.as_str(),
            self.repository,
            self.revision.as_str(),
            self.pin.map(|pin| pin.to_string()),
            values,
        ]);
        // Said only where there are any, so that what runs since before is still what is ordered.
        if let Some(content) = content.as_array_mut().filter(|_| !self.images.is_empty()) {
            content.push(json!(self.images));
        }
        Digest::of(content.to_string().as_bytes())
    }
}

/// One component that a runtime sees.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    pub assignment: AssignmentId,
    pub component: ComponentName,
    /// The [`Order::fingerprint`] it was started with; `None` when it cannot be told.
    pub fingerprint: Option<Digest>,
    pub health: Health,
    /// How often the engine brought its containers back since they were started.
    pub restarts: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Everything runs, every health check passes, one-shot containers ended with 0 (PK-101).
    Healthy,
    /// Runs, and a health check has not spoken yet.
    Starting,
    /// A health check fails; in words.
    Unhealthy(String),
    /// Something ended without anybody's asking, or does so again and again; in words.
    Down(String),
    /// Somebody else did something to it: a container is missing, paused or was stopped; in words.
    Drifted(String),
}

impl Health {
    /// What is wrong, in words.
    pub fn complaint(&self) -> Option<&str> {
        match self {
            Health::Healthy | Health::Starting => None,
            Health::Unhealthy(words) | Health::Down(words) | Health::Drifted(words) => Some(words),
        }
    }

    pub(super) fn complaint_mut(&mut self) -> Option<&mut String> {
        match self {
            Health::Healthy | Health::Starting => None,
            Health::Unhealthy(words) | Health::Down(words) | Health::Drifted(words) => Some(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_without_pinned_images_is_what_it_was_before_there_were_any() {
        let order = Order {
            assignment: AssignmentId::parse("0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11").unwrap(),
            component: ComponentName::parse("web").unwrap(),
            kind: ProfileKind::Compose,
            repository: "oci://h/web".into(),
            revision: Revision::parse("1.0.0").unwrap(),
            pin: None,
            images: BTreeMap::new(),
            values: Vec::new(),
            wait: true,
            timeout: None,
        };
        let before = json!([
            "0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11",
            "web",
            "compose",
            "oci://h/web",
            "1.0.0",
            null,
            []
        ]);
        assert_eq!(order.fingerprint(), Digest::of(before.to_string().as_bytes()));
        let with = |text: &str| Order {
            images: [("a:1".to_owned(), Digest::of(text.as_bytes()))].into(),
            ..order.clone()
        };
        assert_ne!(with("one").fingerprint(), order.fingerprint());
        assert_ne!(with("one").fingerprint(), with("two").fingerprint());
    }
}
