//! Waiting until a deployment is where it should be, showing every step on the way.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use margrave_wire::operator::{Assignment, Deployment};

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
}

fn verdict(deployment: &Deployment) -> Verdict {
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
            ("FAILED", true) => verdict = Verdict::Failed,
            // It went back to the last good one: what was wanted did not come to be.
            ("INSTALLED", false) if assignment.error.is_some() => verdict = Verdict::Failed,
            _ => return Verdict::Moving,
        }
    }
    verdict
}

/// Follows a deployment until every device has it, or none is still trying, or the time is up.
pub(crate) async fn installed(screen: &Screen, client: &Client, name: &str, timeout: Duration) -> Result {
    let begun = Instant::now();
    let mut steps = Steps::new(screen, begun);
    let mut news = News::new(client);
    loop {
        let deployment = client.deployment(name).await?;
        steps.show(&deployment.assignments);
        let verdict = verdict(&deployment);
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
        Verdict::Failed => screen.words(format_args!("{} failed.", deployment.name)),
        Verdict::Moving => {
            screen
                .words(format_args!("{} is not installed everywhere after {seconds:.0} s.", deployment.name));
        }
    }
    for assignment in deployment.assignments.iter().filter(|a| !(a.state == "INSTALLED" && a.current)) {
        let subject = format!("{}/{}", assignment.device, assignment.deployment);
        // The reason is a courtesy here; that it cannot be had does not change the answer.
        let Ok(why) = client.why(&subject).await else { continue };
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

    fn deployment(states: &[(&str, bool, bool)]) -> Deployment {
        let assignment = |(state, current, error): &(&str, bool, bool)| Assignment {
            id: String::new(),
            deployment: "d".into(),
            device: "x".into(),
            package: "p".into(),
            version: "1".into(),
            state: (*state).to_owned(),
            current: *current,
            reason: None,
            error: error.then(|| ErrorDetail { code: "c".into(), source: "s".into(), message: "m".into() }),
            components: Vec::new(),
            attempt: 0,
            next_try: None,
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
            rollback: Default::default(),
            overrides: Vec::new(),
            force: None,
            commit: None,
            revision: 1,
            changed_at: String::new(),
            changed_by: String::new(),
            removing: false,
            assignments: states.iter().map(assignment).collect(),
            counts: Default::default(),
            misfits: Vec::new(),
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
            // An older revision failed; the newer one has not been tried.
            (&[("FAILED", false, true)], Verdict::Moving),
            (&[("INSTALLED", false, true)], Verdict::Failed),
        ] {
            assert_eq!(verdict(&deployment(states)), wanted, "{states:?}");
        }
    }
}
