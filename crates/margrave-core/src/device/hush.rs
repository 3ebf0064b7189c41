//! Applications print what they like, and a health check or Compose repeats it. What a document with a secret gives them must not
//! come into reports that way.

use std::cmp::Reverse;

use super::{Device, Event};
use crate::id::AssignmentId;

/// Shorter ones are in messages for other reasons; a secret that short is none.
const LENGTH_MIN: usize = 8;
const HIDDEN: &str = "(hidden)";

impl Device {
    /// The same without the values that documents with a secret give. Which of them is the secret only the server knows.
    pub(super) fn hushed(&self, mut event: Event) -> Event {
        match &mut event {
            Event::Prefetched { assignment, result: Err(failure), .. }
            | Event::Applied { assignment, result: Err(failure), .. }
            | Event::Removed { assignment, result: Err(failure), .. } => {
                self.hush(*assignment, &mut failure.message);
            }
            Event::Observed(Ok(all)) => {
                for seen in all {
                    if let Some(words) = seen.health.complaint_mut() {
                        self.hush(seen.assignment, words);
                    }
                }
            }
            _ => {}
        }
        event
    }

    fn hush(&self, id: AssignmentId, text: &mut String) {
        let Some(assignment) = self.assignments.get(&id) else { return };
        let documents = assignment.documents().into_iter().flatten();
        let workloads = documents.filter_map(|document| self.reading(&document)?.as_ref().ok());
        let salted = workloads.filter(|workload| workload.hints.salt.is_some());
        let values: Vec<String> =
            salted.flat_map(|workload| &workload.parameters).map(|given| given.value.to_string()).collect();
        // Whoever repeats a text of several lines often repeats only some, or makes one line of them.
        let parts = values.iter().flat_map(|value| value.split_whitespace().chain([value.trim()]));
        let mut parts: Vec<&str> = parts.filter(|part| part.chars().count() >= LENGTH_MIN).collect();
        parts.sort_by_key(|part| Reverse(part.len()));
        for part in parts {
            if text.contains(part) {
                *text = text.replace(part, HIDDEN);
            }
        }
    }
}
