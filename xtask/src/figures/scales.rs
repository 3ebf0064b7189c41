//! Weighs a process and its children again and again, and remembers the most.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use super::stage::pss;

/// Often enough to see a Compose that lives for a tenth of a second.
const EVERY: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Peak {
    pub(super) own: u64,
    pub(super) with_children: u64,
}

impl Peak {
    pub(super) fn max(self, other: Peak) -> Peak {
        Peak { own: self.own.max(other.own), with_children: self.with_children.max(other.with_children) }
    }
}

pub(super) struct Scales {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Peak>>,
}

impl Scales {
    pub(super) fn start(process: u32) -> Scales {
        let stop = Arc::new(AtomicBool::new(false));
        let asked_to = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut peak = Peak::default();
            while !asked_to.load(Ordering::Relaxed) {
                peak = peak.max(weigh(process)?);
                std::thread::sleep(EVERY);
            }
            Ok(peak)
        });
        Scales { stop, thread }
    }

    pub(super) fn stop(self) -> Result<Peak> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("weighing panicked")?
    }
}

fn weigh(process: u32) -> Result<Peak> {
    let own = pss(process)?;
    // A child that has ended since it was listed weighs nothing.
    let children: u64 = children(process)?.into_iter().filter_map(|child| pss(child).ok()).sum();
    Ok(Peak { own, with_children: own + children })
}

fn children(process: u32) -> Result<Vec<u32>> {
    let mut found = vec![];
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread that has ended meanwhile has no children.
        if let Ok(text) = std::fs::read_to_string(thread?.path().join("children")) {
            found.extend(text.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_counts_beside_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let own = std::process::id();
        let seen = children(own).unwrap().contains(&child.id());
        let weight = weigh(own).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen && weight.own > 0 && weight.with_children > weight.own, "{weight:?}");
    }
}
