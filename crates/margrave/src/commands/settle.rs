//! Waiting until a deployment is where it should be, showing every step on the way.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use margrave_wire::operator::{Assignment, Deployment, WhyKind};

use super::device::reason;
use crate::client::{Client, EventStream};
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Screen, printable};

/// How often to look even if no event came: a lost event must not cost more than this.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Devices whose reasons are told at the end; `margrave why` has the rest.
const BEHIND_TOLD_MAX: usize = 20;

/// Where a deployment stands, as far as waiting for it is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Moving,
    Installed,
    Failed,
    Nowhere,
    /// Its rollout was stopped before its end.
    Stopped,
    /// The server went back to an earlier revision.
    Reverted,
}

/// By what the server counts, so that waiting costs the same for ten devices and for ten thousand.
fn verdict(deployment: &Deployment, revision: u64, rest: &Rest) -> Verdict {
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
    let counts = &deployment.counts;
    let pending = counts.pending.saturating_sub(rest.going);
    let failed = counts.failed.saturating_sub(rest.stuck);
    match () {
        () if pending > 0 => Verdict::Moving,
        // Some may try again, or go back.
        () if rest.tries_again => Verdict::Moving,
        () if failed > 0 => Verdict::Failed,
        () if counts.converged == 0 => Verdict::Nowhere,
        () => Verdict::Installed,
    }
}

/// What counts do not tell; asked only once there is nobody else to wait for.
#[derive(Debug, Default)]
struct Rest {
    /// A device that failed says that it tries again.
    tries_again: bool,
    /// Of those that are pending and of those that failed, how many it is not wanted on any more: they may be away for good,
    /// and are nothing to wait for.
    going: u64,
    stuck: u64,
}

impl Rest {
    fn of(removing: &[Assignment], failed: &[Assignment]) -> Self {
        let leaving = |of: &[Assignment]| of.iter().filter(|assignment| assignment.leaving).count() as u64;
        let tries_again = |failed: &Assignment| failed.current && failed.next_try.is_some();
        Rest {
            tries_again: failed.iter().any(|failed| !failed.leaving && tries_again(failed)),
            going: leaving(removing),
            stuck: leaving(failed),
        }
    }

    async fn ask(client: &Client, deployment: &Deployment) -> Result<Self> {
        let counts = &deployment.counts;
        let going = counts.states.get("DELETING").copied().unwrap_or_default();
        if counts.pending > going {
            return Ok(Rest::default());
        }
        let of = async |count: u64, state| match count {
            0 => Ok(Vec::new()),
            _ => client.assignments(&deployment.name, Some(state)).await,
        };
        let (removing, failed) = (of(going, "DELETING").await?, of(counts.failed, "FAILED").await?);
        Ok(Rest::of(&removing, &failed))
    }
}

/// Why nobody has what is wanted, and what can be done about it: whoever mistyped a target has to know that it is wanted all the same.
pub(crate) fn nowhere(deployment: &Deployment) -> String {
    let Deployment { name, revision, misfits, .. } = deployment;
    let why = match misfits.as_slice() {
        [] => "no device is among its targets".to_owned(),
        [one] => format!("{} is among its targets, and it does not fit there", one.device),
        several => format!("{} devices are among its targets, and it fits none of them", several.len()),
    };
    format!(
        "{name} (revision {revision}) is wanted, and no device takes it: {why}.\n\
         It is kept all the same: a device that matches later gets it by itself. `margrave deployment update {name}` gives it \
         other targets, `margrave deployment remove {name}` takes it back."
    )
}

/// It runs its last good version again: what was wanted did not come to be.
fn went_back(assignment: &Assignment) -> bool {
    let older = assignment.state == "INSTALLED" && !assignment.current && assignment.waiting.is_none();
    older && assignment.error.is_some()
}

/// That it failed, and who went back. To what is the device's to say: a revision that was replaced before it had proven itself
/// is not gone back to, so that it need not be the one before.
fn failed(name: &str, back: &[&str]) -> String {
    match back {
        [] => format!("{name} failed."),
        [device] => format!("{name} failed; {device} went back to the last version that was good there."),
        devices => {
            let count = devices.len();
            format!("{name} failed; {count} devices went back to the last version that was good there.")
        }
    }
}

/// What a state speaks of, where that is not what is wanted now.
fn of_what(assignment: &Assignment) -> &'static str {
    match (assignment.current, assignment.state.as_str()) {
        _ if assignment.waiting.is_some() => " (its turn has not come)",
        (true, _) | (false, "DELETING" | "DELETED") => "",
        (false, "PENDING") => " (the device has not fetched it yet)",
        _ if went_back(assignment) => " (its last good version: the update failed)",
        (false, "ROLLINGBACK") => " (to its last good version)",
        (false, _) => " (an earlier revision)",
    }
}

/// Who has not said yet that what is no longer wanted there is gone. That is not waited for, and not kept to ourselves either.
fn still_there(assignments: &[Assignment]) -> Option<String> {
    let leaving = assignments.iter().filter(|assignment| assignment.leaving);
    let leaving: Vec<&str> = leaving.map(|assignment| assignment.device.as_str()).collect();
    match leaving.as_slice() {
        [] => None,
        [device] => Some(format!(
            "  It is no longer wanted on {device}, which has not removed it yet. If that device is gone for good, \
             `margrave device retire {device}` forgets it."
        )),
        [first, ..] => Some(format!(
            "  It is no longer wanted on {} devices, such as {first}, which have not removed it yet. `margrave device retire` \
             forgets a device that is gone for good.",
            leaving.len()
        )),
    }
}

/// It was given what is wanted, and does not have it. Who waits for its turn was given nothing: what that waits for is the
/// trouble of another device, and is not told in its name.
fn is_behind(assignment: &Assignment) -> bool {
    let there = assignment.state == "INSTALLED" && assignment.current;
    assignment.waiting.is_none() && !assignment.leaving && !there
}

/// How many were not touched, if any.
fn held_back(assignments: &[Assignment]) -> Option<String> {
    match assignments.iter().filter(|assignment| assignment.waiting.is_some()).count() {
        0 => None,
        1 => Some("  1 device was not given it, and keeps what it has.".to_owned()),
        several => Some(format!("  {several} devices were not given it, and keep what they have.")),
    }
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
    let mut away = Away::default();
    loop {
        let looked = async {
            let deployment = client.deployment_begun(&written.name).await?;
            let rest = Rest::ask(client, &deployment).await?;
            Ok((deployment, rest))
        };
        let (deployment, rest) = match looked.await {
            Ok(looked) => looked,
            Err(trouble) => {
                away.bear(screen, trouble, begun.elapsed() < timeout)?;
                news.wait(LOOK_EVERY).await;
                continue;
            }
        };
        away = Away::default();
        steps.show(&deployment.assignments);
        let verdict = verdict(&deployment, written.revision, &rest);
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
            if deployment.counts.total > deployment.counts.converged {
                let leaving = client.assignments(&deployment.name, None).await.unwrap_or_default();
                still_there(&leaving).into_iter().for_each(|words| screen.words(words));
            }
            return Ok(Answer::Done);
        }
        Verdict::Nowhere => {
            screen.words(nowhere(deployment));
            return Ok(Answer::No);
        }
        Verdict::Failed => {
            let installed = client.assignments(&deployment.name, Some("INSTALLED")).await.unwrap_or_default();
            let back = installed.iter().filter(|assignment| went_back(assignment));
            let back: Vec<&str> = back.map(|assignment| assignment.device.as_str()).collect();
            screen.words(failed(&deployment.name, &back));
        }
        Verdict::Reverted => {
            screen.words(format_args!(
                "{name} failed, and the server went back to what was wanted before; `margrave deployment history {name}` \
                 shows to what, and `margrave events` why.",
                name = deployment.name
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
    // A courtesy, as what follows: that it cannot be had does not change the answer.
    let assignments = client.assignments(&deployment.name, None).await.unwrap_or_default();
    for words in [held_back(&assignments), still_there(&assignments)].into_iter().flatten() {
        screen.words(words);
    }
    tell_why(screen, client, assignments.iter().filter(|assignment| is_behind(assignment))).await;
    Ok(Answer::No)
}

/// What keeps each of these, as far as it can be had.
async fn tell_why(screen: &Screen, client: &Client, assignments: impl Iterator<Item = &Assignment>) {
    for assignment in assignments.take(BEHIND_TOLD_MAX) {
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
    let mut away = Away::default();
    loop {
        let left = match left_of(client, before).await {
            Ok(left) => left,
            Err(trouble) => {
                away.bear(screen, trouble, begun.elapsed() < timeout)?;
                news.wait(LOOK_EVERY).await;
                continue;
            }
        };
        away = Away::default();
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
            tell_why(screen, client, left.iter()).await;
            return Ok(Answer::No);
        }
        news.wait(timeout.saturating_sub(begun.elapsed()).min(LOOK_EVERY)).await;
    }
}

/// What devices still have of a deployment that was removed.
async fn left_of(client: &Client, before: &Deployment) -> Result<Vec<Assignment>> {
    let mut left = Vec::new();
    for assignment in &before.assignments {
        // A device that was retired meanwhile will not confirm anything any more.
        let device = client.device(&assignment.device).await?;
        if device.standing == "retired" {
            continue;
        }
        let still = |a: &Assignment| a.deployment == before.name && a.state != "DELETED";
        left.extend(device.assignments.into_iter().filter(still));
    }
    Ok(left)
}

/// A server that gives no answer for a while: it may be restarted, and what is waited for goes on without it.
#[derive(Default)]
struct Away {
    told: bool,
}

impl Away {
    /// Says so once, and lets the waiting go on while there is time. A server that says no, or does not know us, is not away.
    fn bear(&mut self, screen: &Screen, trouble: Trouble, has_time: bool) -> Result<()> {
        if !trouble.is_passing() || !has_time {
            return Err(trouble);
        }
        if !std::mem::replace(&mut self.told, true) {
            screen.words(format_args!("The server does not answer ({}); still waiting.", trouble.message()));
        }
        Ok(())
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
            let mut line = format!("{}{}", assignment.state, of_what(assignment));
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
    use margrave_wire::operator::{self, AssignmentCounts, Targets};
    use margrave_wire::rollout::Rollout;

    /// So many devices as wanted, under way, and failed.
    fn deployment(converged: u64, pending: u64, failed: u64) -> Deployment {
        let counts = AssignmentCounts {
            total: converged + pending + failed,
            converged,
            pending,
            failed,
            ..Default::default()
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
            windows: vec![],
            rollout: None,
            revision: 1,
            changed_at: String::new(),
            changed_by: String::new(),
            removing: false,
            assignments: Vec::new(),
            next: None,
            counts,
            misfits: Vec::new(),
            warnings: Vec::new(),
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
    fn waiting_goes_on_while_the_server_is_away_and_not_when_it_says_no() {
        let screen = Screen::new(false);
        let mut away = Away::default();
        let broke = || Trouble::broke("connection refused").passing();
        assert!(away.bear(&screen, broke(), true).is_ok() && away.told);
        assert!(away.bear(&screen, broke(), true).is_ok());
        assert!(away.bear(&screen, broke(), false).is_err(), "the time is up");
        assert!(away.bear(&screen, Trouble::refused("no such deployment"), true).is_err());
        assert!(away.bear(&screen, Trouble::broke("this token was revoked"), true).is_err());
    }

    #[test]
    fn waiting_ends_when_no_device_is_still_trying() {
        for ((converged, pending, failed), tries_again, wanted) in [
            ((0, 0, 0), false, Verdict::Nowhere),
            ((1, 0, 0), false, Verdict::Installed),
            ((1, 1, 0), false, Verdict::Moving),
            ((0, 1, 1), false, Verdict::Moving),
            ((1, 0, 1), false, Verdict::Failed),
            // It says that it tries again.
            ((1, 0, 1), true, Verdict::Moving),
        ] {
            let rest = Rest { tries_again, ..Rest::default() };
            let found = verdict(&deployment(converged, pending, failed), 1, &rest);
            assert_eq!(found, wanted, "{converged} {pending} {failed} {tries_again}");
        }
        // All that was released is there; the rollout is not.
        for (state, wanted) in [
            ("waiting", Verdict::Moving),
            ("paused", Verdict::Moving),
            // The server is about to go back; that it did is what is told.
            ("reverting", Verdict::Moving),
            ("halted", Verdict::Stopped),
            ("done", Verdict::Installed),
        ] {
            let mut first = deployment(1, 0, 0);
            first.rollout = Some(rollout(state));
            assert_eq!(verdict(&first, 1, &Rest::default()), wanted, "{state}");
        }
        let mut back = deployment(1, 0, 0);
        (back.revision, back.changed_by) = (2, "server".into());
        assert_eq!(verdict(&back, 1, &Rest::default()), Verdict::Reverted);
    }

    fn leaving(device: &str, state: &str) -> Assignment {
        Assignment { leaving: true, ..assignment(device, state, false, false) }
    }

    #[test]
    fn devices_that_are_no_longer_targets_are_not_waited_for() {
        let going = [leaving("away", "DELETING")];
        // It came back while the device removes it: that is wanted, and waited for.
        let comes_back = [assignment("line-1", "DELETING", false, false)];
        let stuck = [leaving("away", "FAILED")];
        let trying =
            [Assignment { current: true, next_try: Some("soon".into()), ..leaving("away", "FAILED") }];
        for ((converged, pending, failed), rest, wanted) in [
            ((1, 1, 0), Rest::of(&going, &[]), Verdict::Installed),
            ((1, 1, 0), Rest::of(&comes_back, &[]), Verdict::Moving),
            ((1, 2, 0), Rest::of(&going, &[]), Verdict::Moving),
            ((0, 1, 0), Rest::of(&going, &[]), Verdict::Nowhere),
            ((1, 0, 1), Rest::of(&[], &stuck), Verdict::Installed),
            ((1, 1, 1), Rest::of(&going, &trying), Verdict::Installed),
            ((1, 1, 1), Rest::of(&going, &[]), Verdict::Failed),
        ] {
            let found = verdict(&deployment(converged, pending, failed), 1, &rest);
            assert_eq!(found, wanted, "{converged} {pending} {failed} {rest:?}");
        }
        let all = [assignment("there", "INSTALLED", true, false), leaving("away", "DELETING")];
        assert!(!all.iter().any(is_behind));
        let told = still_there(&all).unwrap();
        assert!(told.contains("no longer wanted on away") && told.contains("device retire away"), "{told}");
        assert_eq!(still_there(&all[..1]), None);
    }

    #[test]
    fn a_deployment_that_nobody_takes_says_that_it_exists_and_why() {
        let mut nobody = deployment(0, 0, 0);
        let told = nowhere(&nobody);
        assert!(told.contains("d (revision 1) is wanted") && told.contains("no device is among"), "{told}");
        assert!(told.contains("deployment update d") && told.contains("deployment remove d"), "{told}");
        let misfit = |device: &str| operator::Misfit {
            device: device.into(),
            reasons: vec!["needs 1Gi".into()],
            temporary: false,
        };
        nobody.misfits = vec![misfit("a")];
        assert!(nowhere(&nobody).contains("a is among its targets, and it does not fit there"));
        nobody.misfits.push(misfit("b"));
        assert!(nowhere(&nobody).contains("2 devices are among its targets, and it fits none of them"));
    }

    fn assignment(device: &str, state: &str, current: bool, waits: bool) -> Assignment {
        let waiting = serde_json::json!({ "word": "waiting", "revision": 2, "keeps": 1, "batch": 2 });
        serde_json::from_value(serde_json::json!({
            "id": "a", "deployment": "d", "device": device, "package": "p", "version": "1", "state": state,
            "current": current, "components": [], "attempt": 1,
            "waiting": if waits { waiting } else { serde_json::Value::Null },
        }))
        .expect("an assignment")
    }

    #[test]
    fn devices_that_were_not_given_it_are_counted_and_not_blamed() {
        let all = [
            assignment("there", "INSTALLED", true, false),
            assignment("broken", "FAILED", true, false),
            assignment("at it", "UPDATING", true, false),
            assignment("untouched", "INSTALLED", false, true),
            assignment("new", "PENDING", false, true),
        ];
        let told: Vec<&str> = all.iter().filter(|a| is_behind(a)).map(|a| a.device.as_str()).collect();
        assert_eq!(told, ["broken", "at it"]);
        assert_eq!(held_back(&all).unwrap(), "  2 devices were not given it, and keep what they have.");
        assert_eq!(held_back(&all[..4]).unwrap(), "  1 device was not given it, and keeps what it has.");
        assert_eq!(held_back(&all[..3]), None);
    }

    #[test]
    fn who_went_back_runs_what_was_good_and_not_always_the_revision_before() {
        let went_back = Assignment {
            error: Some(operator::ErrorDetail {
                code: "unhealthy".into(),
                source: "web".into(),
                message: "no answer".into(),
            }),
            ..assignment("press-1", "INSTALLED", false, false)
        };
        let going = assignment("press-1", "ROLLINGBACK", false, false);
        let earlier = assignment("press-1", "INSTALLED", false, false);
        assert_eq!(of_what(&went_back), " (its last good version: the update failed)");
        assert_eq!(of_what(&going), " (to its last good version)");
        assert_eq!(of_what(&earlier), " (an earlier revision)");
        for (back, told) in [
            (&[][..], "web failed."),
            (&["press-1"], "web failed; press-1 went back to the last version that was good there."),
            (&["a", "b"], "web failed; 2 devices went back to the last version that was good there."),
        ] {
            assert_eq!(failed("web", back), told);
        }
    }
}
