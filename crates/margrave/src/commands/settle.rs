//! Waiting until a deployment is where it should be, showing every step on the way.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use margrave_wire::operator::{Assignment, Deployment, WhyKind};

use super::device::reason;
use crate::client::{Client, EventStream};
use crate::exit::{Answer, Result};
use crate::render::{Screen, printable};

/// How often to look even if no event came: a lost event must not cost more than this.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where a deployment stands, as far as waiting for it is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Moving,
    Installed,
    Failed,
    Nowhere,
    /// Its rollout was stopped before its end.
    Stopped,
    /// The server went back to the revision before.
    Reverted,
}

fn verdict(deployment: &Deployment, revision: u64) -> Verdict {
    if deployment.revision != revision && deployment.changed_by == "server" {
        return Verdict::Reverted;
    }
    match deployment.rollout.as_ref().map(|rollout| rollout.state.as_str()) {
        None | Some("done") => {}
        Some("halted" | "aborted") => return Verdict::Stopped,
        Some(_) => return Verdict::Moving,
    }
    if deployment.misfits.iter().any(|misfit| misfit.temporary) {
        return Verdict::Moving;
    }
    if deployment.assignments.is_empty() {
        return Verdict::Nowhere;
    }
    let mut verdict = Verdict::Installed;
    for assignment in &deployment.assignments {
        match (assignment.state.as_str(), assignment.current) {
            ("INSTALLED", true) => {}
            // It tries again, or goes back.
            ("FAILED", true) if assignment.next_try.is_some() => return Verdict::Moving,
            ("FAILED", true) => verdict = Verdict::Failed,
            _ if went_back(assignment) => verdict = Verdict::Failed,
            _ => return Verdict::Moving,
        }
    }
    verdict
}

/// It runs the last good revision again: what was wanted did not come to be.
fn went_back(assignment: &Assignment) -> bool {
    assignment.state == "INSTALLED" && !assignment.current && assignment.error.is_some()
}

/// Follows a deployment until every device has it, or none is still trying, or the time is up.
pub(crate) async fn installed(
    screen: &Screen,
    client: &Client,
    written: &Deployment,
    timeout: Duration,
) -> Result {
    let begun = Instant::now();
    let mut steps = Steps::new(screen, begun);
    let mut news = News::new(client);
    loop {
        let deployment = client.deployment(&written.name).await?;
        steps.show(&deployment.assignments);
        let verdict = verdict(&deployment, written.revision);
        if verdict != Verdict::Moving || begun.elapsed() >= timeout {
            return conclude(screen, client, &deployment, verdict, begun).await;
        }
        news.wait(timeout.saturating_sub(begun.elapsed()).min(LOOK_EVERY)).await;
    }
}

async fn conclude(
    screen: &Screen,
    client: &Client,
    deployment: &Deployment,
    verdict: Verdict,
    begun: Instant,
) -> Result {
    if screen.json {
        screen.object(deployment)?;
    }
    let seconds = begun.elapsed().as_secs_f32();
    match verdict {
        Verdict::Installed => {
            screen.words(format_args!("{} is installed everywhere, after {seconds:.1} s.", deployment.name));
            return Ok(Answer::Done);
        }
        Verdict::Nowhere => {
            screen
                .words(format_args!("No device takes {}: none is targeted, or none fits.", deployment.name));
            return Ok(Answer::No);
        }
        Verdict::Failed => {
            let back = deployment.assignments.iter().filter(|assignment| went_back(assignment));
            let back: Vec<&str> = back.map(|assignment| assignment.device.as_str()).collect();
            match back.as_slice() {
                [] => screen.words(format_args!("{} failed.", deployment.name)),
                [device] => screen.words(format_args!(
                    "{} failed; {device} went back and runs the revision before.",
                    deployment.name
                )),
                devices => screen.words(format_args!(
                    "{} failed; {} devices went back and run the revision before.",
                    deployment.name,
                    devices.len()
                )),
            }
        }
        Verdict::Reverted => {
            screen.words(format_args!(
                "{} failed, and the server went back to the revision before; `margrave events` says why.",
                deployment.name
            ));
            return Ok(Answer::No);
        }
        Verdict::Stopped => {
            let rollout = deployment.rollout.as_ref();
            let state = rollout.map_or("stopped", |rollout| rollout.state.as_str());
            let reason =
                rollout.and_then(|rollout| rollout.reason.as_deref()).unwrap_or("nobody further gets it");
            screen.words(format_args!(
                "The rollout of {} is {state}: {}",
                deployment.name,
                printable(reason)
            ));
        }
        Verdict::Moving => {
            screen
                .words(format_args!("{} is not installed everywhere after {seconds:.0} s.", deployment.name));
        }
    }
    for assignment in deployment.assignments.iter().filter(|a| !(a.state == "INSTALLED" && a.current)) {
        let subject = format!("{}/{}", assignment.device, assignment.deployment);
        // The reason is a courtesy here; that it cannot be had does not change the answer.
        let Ok(why) = client.why(WhyKind::Device, &subject).await else { continue };
        if let Some(cause) = why.chain.last() {
            screen.words(format_args!("  {}: {}", assignment.device, printable(&cause.text)));
            if let Some(hint) = &cause.hint {
                screen.words(format_args!("   hint: {}", printable(hint)));
            }
        }
    }
    Ok(Answer::No)
}

/// Waits until devices have confirmed that a removed deployment is gone from them.
pub(crate) async fn removed(
    screen: &Screen,
    client: &Client,
    before: &Deployment,
    timeout: Duration,
) -> Result {
    let begun = Instant::now();
    let mut steps = Steps::new(screen, begun);
    let mut news = News::new(client);
    loop {
        let mut left = Vec::new();
        for assignment in &before.assignments {
            // A device that was retired meanwhile will not confirm anything any more.
            let device = client.device(&assignment.device).await?;
            if device.standing == "retired" {
                continue;
            }
            left.extend(
                device
                    .assignments
                    .into_iter()
                    .filter(|a| a.deployment == before.name && a.state != "DELETED"),
            );
        }
        steps.show(&left);
        if left.is_empty() {
            screen.words(format_args!(
                "{} is gone, after {:.1} s.",
                before.name,
                begun.elapsed().as_secs_f32()
            ));
            return Ok(Answer::Done);
        }
        if begun.elapsed() >= timeout {
            let names: Vec<&str> = left.iter().map(|assignment| assignment.device.as_str()).collect();
            screen.words(format_args!("{} is still on {}.", before.name, names.join(", ")));
            return Ok(Answer::No);
        }
        news.wait(timeout.saturating_sub(begun.elapsed()).min(LOOK_EVERY)).await;
    }
}

/// Says each state once, when it is reached.
struct Steps<'a> {
    screen: &'a Screen,
    begun: Instant,
    shown: BTreeMap<String, String>,
}

impl<'a> Steps<'a> {
    fn new(screen: &'a Screen, begun: Instant) -> Self {
        Steps { screen, begun, shown: BTreeMap::new() }
    }

    fn show(&mut self, assignments: &[Assignment]) {
        let width = assignments.iter().map(|a| a.device.chars().count()).max().unwrap_or(0);
        for assignment in assignments {
            let waiting = match (assignment.current, assignment.state.as_str()) {
                (true, _) | (false, "DELETING" | "DELETED") => "",
                (false, "PENDING") => " (the device has not fetched it yet)",
                _ if went_back(assignment) => " (the revision before: the update failed)",
                (false, _) => " (the revision before)",
            };
            let mut line = format!("{}{waiting}", assignment.state);
            let reason = reason(assignment);
            if !reason.is_empty() && assignment.current {
                line = format!("{line}  {}", printable(&reason));
            }
            if self.shown.get(&assignment.device) == Some(&line) {
                continue;
            }
            let seconds = self.begun.elapsed().as_secs_f32();
            self.screen.words(format_args!("{seconds:>6.1} s  {:<width$}  {line}", assignment.device));
            self.shown.insert(assignment.device.clone(), line);
        }
    }
}

/// Wakes when something happened in the fleet, or when the time is up, with or without a stream.
struct News<'a> {
    client: &'a Client,
    stream: Option<EventStream>,
    tried: bool,
}

impl<'a> News<'a> {
    fn new(client: &'a Client) -> Self {
        News { client, stream: None, tried: false }
    }

    async fn wait(&mut self, time: Duration) {
        if !self.tried {
            self.tried = true;
            // Without a stream we look at intervals, which is slower and just as right.
            self.stream = self.client.follow(None).await.ok();
            // Something may have happened between the last look and the stream: look once more at once.
            return;
        }
        let Some(stream) = &mut self.stream else {
            tokio::time::sleep(time).await;
            return;
        };
        if let Ok(None) = tokio::time::timeout(time, stream.next()).await {
            self.stream = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_wire::operator::{ErrorDetail, Targets};
    use margrave_wire::rollout::Rollout;

    /// States, whether they are of what is wanted now, and whether they have an error; `FAILED…` is tried again.
    fn deployment(states: &[(&str, bool, bool)]) -> Deployment {
        let assignment = |(state, current, error): &(&str, bool, bool)| Assignment {
            id: String::new(),
            deployment: "d".into(),
            device: "x".into(),
            package: "p".into(),
            version: "1".into(),
            state: state.trim_end_matches('…').to_owned(),
            current: *current,
            reason: None,
            error: error.then(|| ErrorDetail { code: "c".into(), source: "s".into(), message: "m".into() }),
            components: Vec::new(),
            attempt: 0,
            next_try: state.ends_with('…').then(|| "2026-11-16T12:00:00Z".to_owned()),
            changed_at: None,
        };
        Deployment {
            id: String::new(),
            name: "d".into(),
            package: "p".into(),
            version: "1".into(),
            profile: None,
            parameters: BTreeMap::new(),
            targets: Targets::default(),
            overrides: vec![],
            force: None,
            commit: None,
            rollback: Default::default(),
            strategy: Default::default(),
            rollout: None,
            revision: 1,
            changed_at: String::new(),
            changed_by: String::new(),
            removing: false,
            assignments: states.iter().map(assignment).collect(),
            counts: Default::default(),
            misfits: Vec::new(),
        }
    }

    fn rollout(state: &str) -> Rollout {
        Rollout {
            deployment: "d".into(),
            revision: 1,
            state: state.to_owned(),
            reason: None,
            until: None,
            batch: 1,
            batches_total: 1,
            counts: Default::default(),
            batches: Vec::new(),
            strategy: Default::default(),
            before: None,
            begun_at: String::new(),
            changed_at: String::new(),
            changed_by: String::new(),
        }
    }

    #[test]
    fn waiting_ends_when_no_device_is_still_trying() {
        for (states, wanted) in [
            (&[][..], Verdict::Nowhere),
            (&[("INSTALLED", true, false)], Verdict::Installed),
            // Installed, but not yet what is wanted now.
            (&[("INSTALLED", false, false)], Verdict::Moving),
            (&[("INSTALLED", true, false), ("INSTALLING", true, false)], Verdict::Moving),
            (&[("FAILED", true, true), ("INSTALLING", true, false)], Verdict::Moving),
            (&[("FAILED", true, true), ("INSTALLED", true, false)], Verdict::Failed),
            // It says that it tries again, or goes back, or has gone back.
            (&[("FAILED…", true, true)], Verdict::Moving),
            (&[("FAILED…", true, true), ("FAILED", true, true)], Verdict::Moving),
            (&[("ROLLINGBACK", false, true)], Verdict::Moving),
            (&[("INSTALLED", false, true), ("FAILED", true, true)], Verdict::Failed),
            // An older revision failed; the newer one has not been tried.
            (&[("FAILED", false, true)], Verdict::Moving),
            (&[("INSTALLED", false, true)], Verdict::Failed),
        ] {
            assert_eq!(verdict(&deployment(states), 1), wanted, "{states:?}");
        }
        // All that was released is there; the rollout is not.
        for (state, wanted) in [
            ("waiting", Verdict::Moving),
            ("paused", Verdict::Moving),
            ("halted", Verdict::Stopped),
            ("done", Verdict::Installed),
        ] {
            let mut first = deployment(&[("INSTALLED", true, false)]);
            first.rollout = Some(rollout(state));
            assert_eq!(verdict(&first, 1), wanted, "{state}");
        }
        let mut back = deployment(&[("INSTALLED", true, false)]);
        (back.revision, back.changed_by) = (2, "server".into());
        assert_eq!(verdict(&back, 1), Verdict::Reverted);
    }
}
