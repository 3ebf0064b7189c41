//! Why something is not as wanted: every cause that can be named, and what a person does about it.
//!
//! A chain of causes goes from what was asked about to what is to be done; its last one is the one to act on. The list is
//! closed and its codes are stable: programs match on them, and `docs/why.md` has each.

use crate::complaint;
use crate::report::{FAILURE_CODES, FailureCode};

/// What to do where a registry answers, and its certificate is of an authority that nobody knows.
const TRUST_IT: &str = "The device reaches the registry, and its engine does not trust it. For the server's own registry, copy \
    registry-authority.pem from the agent's data directory to /etc/docker/certs.d/HOST:PORT/ca.crt, with Podman to \
    /etc/containers/certs.d/HOST:PORT/ca.crt; for another, the authority of that one.";

/// What to do where something else on the device has the port.
const FREE_THE_PORT: &str = "Something else on the device has that port: end it there (`ss -ltnp` shows what it is), or give this \
    deployment another port.";

/// Who has to do something about a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// There is nothing to do.
    Nothing,
    /// It goes on by itself, and is at it.
    Patience,
    /// It goes on by itself once something comes about: a time, a device that is back, a registry that answers.
    Event,
    /// It stays as it is until a person does something.
    Person,
}

impl Needs {
    pub fn as_str(self) -> &'static str {
        match self {
            Needs::Nothing => "nothing",
            Needs::Patience => "patience",
            Needs::Event => "event",
            Needs::Person => "person",
        }
    }
}

macro_rules! codes {
    ($($variant:ident, $code:literal, $needs:ident, $meaning:literal, $next:literal;)*) => {
        /// A cause, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $meaning] $variant,)*
            /// A device could not do what was wanted, and says how.
            Failure(FailureCode),
        }

        /// All but those that devices say.
        const OWN: &[Code] = &[$(Code::$variant,)*];

        impl Code {
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Code::$variant => $code,)*
                    Code::Failure(code) => code.as_str(),
                }
            }

            /// What it means, as one sentence.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Code::$variant => $meaning,)*
                    Code::Failure(code) => failure(code).0,
                }
            }

            /// What a person does about it. `DEVICE` and `DEPLOYMENT` stand for the names that it is about.
            pub fn next(self) -> &'static str {
                match self {
                    $(Code::$variant => $next,)*
                    Code::Failure(code) => failure(code).1,
                }
            }

            pub fn needs(self) -> Needs {
                match self {
                    $(Code::$variant => Needs::$needs,)*
                    Code::Failure(_) => Needs::Person,
                }
            }
        }
    };
}

codes! {
    // A device, and whether it can be reached.
    Converged, "converged", Nothing,
        "It is as wanted.",
        "There is nothing to do.";
    NeverJoined, "never-joined", Person,
        "A join token was made for the device, and nobody has used it.",
        "Run the join command on the device, or make a new token if it was lost.";
    TokenExpired, "token-expired", Person,
        "A join token was made for the device, and expired before anybody used it.",
        "Make a new one with `margrave device token --name DEVICE`, and join with that.";
    NotAccepted, "not-accepted", Person,
        "The device asked to be let in, and nobody has decided about it.",
        "Compare its fingerprint with what the device shows, then `margrave device accept DEVICE`.";
    DeviceRejected, "device-rejected", Person,
        "An operator turned the device away.",
        "Accept it if that was a mistake: `margrave device accept DEVICE`.";
    DeviceRetired, "device-retired", Person,
        "The device is retired and refused by this server.",
        "Accept it again if that was a mistake; a machine that is to be another device joins with `margrave-agent join --replace`.";
    NeverSeen, "never-seen", Person,
        "The device joined and has not been in contact since.",
        "Start the agent on the device: margrave-agent run.";
    Silent, "silent", Event,
        "The device is not heard of, and should be.",
        "Check its power and network; it catches up by itself when it is back.";
    IdentityExpired, "identity-expired", Person,
        "The device is not heard of, and its certificate expired meanwhile.",
        "Our agent renews by itself with its old key once it reaches the server. Give any other device a new certificate.";
    InDowntime, "in-downtime", Event,
        "It is a known downtime of the device, in which nobody is tried.",
        "It comes back by itself. Change its schedule if the downtime is over: margrave schedule.";
    OutOfHours, "out-of-hours", Event,
        "By its schedule the device may not talk now.",
        "Change its schedule if it has to be sooner: margrave schedule.";
    PollsSeldom, "polls-seldom", Event,
        "By its schedule the device asks only now and then, and has not asked since the change.",
        "It asks by itself. Let it ask more often if it has to be sooner: margrave schedule.";
    ScheduleConflict, "schedule-conflict", Person,
        "What was chosen for the device in several places leaves it no time to talk, so it follows none of it.",
        "`margrave schedule list` shows what is chosen where; of each part a device follows the closest.";
    ClockWrong, "clock-wrong", Person,
        "The device's clock is wrong, so that it takes its windows and hours for other times.",
        "Set the clock on the device, or let it ask a time server.";
    CapabilitiesMissing, "capabilities-missing", Event,
        "The device has not reported its capabilities, so nobody knows what fits it.",
        "It does so right after it starts; look at the agent's log on the device.";
    CannotLook, "cannot-look", Person,
        "The device is in contact and cannot look at its containers, so what it said of them last may not hold any more.",
        "Start the container engine on the device, and let the agent use its socket; it looks again by itself.";

    // One deployment on one device.
    ManifestNotFetched, "manifest-not-fetched", Patience,
        "The device has not asked since the change.",
        "It asks again at its next poll.";
    ManifestNotAdopted, "manifest-not-adopted", Person,
        "The device was given the change, goes on talking, and never took it over: it could not fetch or verify it.",
        "Look at the agent's log on the device: it says which document or signature it refuses.";
    NotReported, "not-reported", Patience,
        "The device has the change and has not said anything about it yet.",
        "Its report comes by itself; if it does not, look at the agent's log on the device.";
    Pending, "pending", Patience,
        "The device knows of it and has not begun.",
        "It begins by itself.";
    BehindOthers, "behind-others", Patience,
        "The device is busy with other deployments, and does only so many at once.",
        "It begins by itself when one of the others is done.";
    Installing, "installing", Patience,
        "It is being installed.",
        "It ends by itself; large images take their time.";
    Updating, "updating", Patience,
        "It is being updated.",
        "It ends by itself; large images take their time.";
    RollingBack, "rollingback", Patience,
        "An update failed, and the device goes back to the last good version.",
        "It ends by itself; then the device says why the update failed.";
    Deleting, "deleting", Patience,
        "It is being removed.",
        "It ends by itself when the device confirms that it is gone.";
    NotBegun, "not-begun", Patience,
        "The device has the change, still runs its last version, and says nothing more.",
        "It begins by itself; if it does not, look at the agent's log on the device.";
    Waiting, "waiting", Event,
        "The device has not begun, because of something that it names.",
        "It begins by itself. To have it sooner, change the schedule (margrave schedule), or let the device go on (margrave-agent release).";
    Held, "held", Event,
        "Somebody at the device, an application on it, or an operator holds changes back.",
        "It begins by itself when that ends. Sooner with `margrave-agent release` on the device, or `margrave device release` where an operator holds.";
    WindowClosed, "window-closed", Event,
        "The device changes what runs only in its maintenance window, and that is closed.",
        "It begins by itself when the window opens. To have it sooner, change the schedule (margrave schedule), or the deployment's own window (margrave deployment update).";
    WindowUnknown, "window-unknown", Person,
        "The device cannot tell when its maintenance window is: its clock is not set, or its agent is too old.",
        "Set the clock on the device, or update its agent.";
    WindowsApart, "windows-apart", Person,
        "The windows of the deployment and those of the device never open together, so it never begins.",
        "Change the deployment's windows (`margrave deployment update DEPLOYMENT --window TIMES`) or the device's (margrave schedule).";
    DownloadWaits, "download-waits", Event,
        "What is wanted is not on the device yet, and it may not use the network now.",
        "It fetches by itself when it may. To have it sooner, change the schedule: margrave schedule.";
    Retrying, "retrying", Event,
        "It failed on the device, which tries again by itself.",
        "See what failed; the device finds out by itself when that is mended.";
    GivenUp, "given-up", Person,
        "It failed on the device, which does not try again until the deployment changes.",
        "Change the deployment: `margrave deployment update DEPLOYMENT`. Where its tries were counted, `margrave device look DEVICE` begins anew.";
    RolledBack, "rolled-back", Person,
        "The update failed on the device, which went back to the last good version and remembers the bad one.",
        "Deploy a version that runs; the device does not try this one again until the deployment changes.";
    Failed, "failed", Person,
        "It failed on the device, for a reason that is not one of ours.",
        "Look at the device's own log; it retries by itself where that can help.";

    // Whether a deployment is meant for a device.
    NotTargeted, "not-targeted", Person,
        "Neither the device's name nor its labels are among the deployment's targets.",
        "Name the device in the deployment's targets, or label it.";
    Misfit, "misfit", Person,
        "The device is among the targets, and the package does not fit it.",
        "Choose another profile or device, or change what the device offers.";
    RuntimeAbsent, "runtime-absent", Person,
        "The device is among the targets, and says that it has no container engine.",
        "Start a container engine with Compose 2.24 or newer on the device; its agent says so by itself, and the device comes in.";
    SecretMissing, "secret-missing", Person,
        "The device is among the targets, and was left out because a secret that the deployment refers to was not where the server looks for it.",
        "Put the secret where the text says, then publish the deployment again: `margrave deployment update DEPLOYMENT`, or `margrave apply` its file.";
    ForcedMisfit, "forced-misfit", Person,
        "It fails on a device that it does not fit, and that it was given to by force.",
        "Take the device out of the targets, or leave the force out: `margrave deployment update DEPLOYMENT`.";
    NoDevice, "no-device", Person,
        "No device is among the deployment's targets.",
        "Label devices, or change the targets: `margrave deployment update DEPLOYMENT`.";
    DevicesBehind, "devices-behind", Event,
        "The deployment is not on all its devices as wanted; they are grouped by cause.",
        "Begin with the first group; `margrave why DEVICE/DEPLOYMENT` tells of one device.";
    BeingRemoved, "being-removed", Patience,
        "The deployment is not wanted any more, and some devices have not confirmed that it is gone.",
        "It goes by itself; those that are silent remove it when they are back.";
    PackageGone, "package-gone", Person,
        "The registry no longer has the package, or a component or image of it, that devices would fetch.",
        "Push the same bytes to the registry again, or deploy a version that is there.";
    PackageMoved, "package-moved", Person,
        "The tag in the registry leads to other bytes now; devices keep those that were pinned.",
        "If the new bytes are wanted, publish them as a version of their own and deploy that.";

    // Rollouts.
    RolloutWaiting, "rollout-waiting", Event,
        "The new revision goes to devices in steps, and this one's turn has not come.",
        "See how far it is with `margrave rollout show DEPLOYMENT`.";
    RolloutBatch, "rollout-batch", Patience,
        "The batch that is under way is not done.",
        "It goes on by itself when enough of the batch have it installed.";
    RolloutTurn, "rollout-turn", Patience,
        "The device's turn has come, and it is about to be given the new revision.",
        "It goes on by itself within moments.";
    RolloutSoaking, "rollout-soaking", Event,
        "The batch is good, and is watched for as long as the strategy says.",
        "It goes on by itself when that time is over.";
    RolloutUnheard, "rollout-unheard", Event,
        "The batch was to be watched, and too few of its devices were heard of after that: nobody knows how they are.",
        "It goes on by itself when they are heard of. Check power and network of the device that is named; the new revision may have cut it off.";
    RolloutSiteFull, "rollout-site-full", Event,
        "The site has as many devices unavailable as the strategy allows.",
        "It goes on by itself when those are back; see to the device that is named.";
    RolloutNotYet, "rollout-not-yet", Event,
        "Only devices are left that are not in contact; each gets its turn when it is back.",
        "Check their power and network; it goes on by itself.";
    RolloutPaused, "rollout-paused", Person,
        "A person paused the rollout.",
        "Let it go on with `margrave rollout resume DEPLOYMENT`.";
    RolloutHalted, "rollout-halted", Person,
        "More devices failed than the strategy allows, so nobody further gets the new revision.",
        "Mend what failed, then `margrave rollout resume DEPLOYMENT`, or go back with `margrave deployment revert DEPLOYMENT`.";
    RolloutReverting, "rollout-reverting", Patience,
        "More devices failed than the strategy allows, and the deployment is about to go back to the revision before.",
        "It goes back by itself; then mend what failed and deploy again.";
    RolloutAborted, "rollout-aborted", Person,
        "A person ended the rollout; nobody further gets the new revision.",
        "Change the deployment; that begins a new rollout.";

    // Where what is wanted comes from.
    IntentAway, "intent-away", Event,
        "The remote that says what is wanted does not answer; what was last read there goes on.",
        "Check that the server reaches the remote: `margrave intent show`.";
    IntentFlawed, "intent-flawed", Person,
        "The newest commit of the remote cannot be applied; the last good one stays.",
        "Mend the file that is named, and push a commit that does. What is only missing in this server's registry is pushed there instead, with `margrave package add DIR`; the commit is tried again by itself.";
    IntentHeld, "intent-held", Person,
        "The repository does not follow what the server applied last; devices keep what they have until a person decides.",
        "Decide as the reason says; `margrave intent show` tells what is held, and `margrave intent resolve` ends it.";
    RevertedHere, "reverted-here", Person,
        "The rollout of what the remote says failed, so this server took the deployment back; the remote says otherwise.",
        "Mend what failed and say so in the remote, or take it back there, too; the next commit about this deployment counts.";
    PushRefused, "push-refused", Person,
        "The last push was refused as a whole, so nothing of it is wanted.",
        "Mend what is named, commit, and push again.";
}

/// What a device's failure means, and what to do; `docs/failures.md` says more. Whether the device tries again is for the cause
/// before it to say: that depends on what came of it, and not on what failed.
fn failure(code: FailureCode) -> (&'static str, &'static str) {
    match code {
        FailureCode::DocumentInvalid => (
            "The document could not be read, or asks for what this agent does not understand.",
            "Update the agent on the device, or deploy a profile that it understands.",
        ),
        FailureCode::NotEligible => (
            "The device does not meet the document's own eligibility rules.",
            "Deploy to a device that has what the package asks for, or choose another profile.",
        ),
        FailureCode::RuntimeMissing => (
            "There is no container engine, or no Compose 2.24 or newer, for this kind of profile on the device.",
            "Install a container engine and Compose 2.24 or newer on the device, or start them if they are there.",
        ),
        FailureCode::RuntimeUnreachable => (
            "The container engine did not answer, or the device had not enough memory to work with it.",
            "Do what the reason asks for: start the container engine on the device and let the agent use its socket, or free memory there.",
        ),
        FailureCode::PullFailed => (
            "The component or an image could not be fetched, and trying again may help.",
            "Check that the device reaches the registry.",
        ),
        FailureCode::PullNotFound => (
            "The registry knows no such component or image.",
            "Push the missing component or image to the registry.",
        ),
        FailureCode::PullDenied => (
            "The registry refused this device.",
            "Give the device access to the registry, or move the image to one that it may read. The server's own \
             registry may have had another address when the device joined: start the server with that one, or let the device join \
             anew.",
        ),
        FailureCode::ArchiveInvalid => (
            "What was fetched is not what was promised, or is no valid component.",
            "Push a valid component under a new revision and deploy that.",
        ),
        FailureCode::CreateFailed => (
            "The engine refused to create the containers.",
            "Mend the compose file: a port, a mount or an option is refused by the engine.",
        ),
        FailureCode::StartFailed => (
            "A container could not start, or exited with an error while starting.",
            "Look at what it last said before it ended: `margrave-agent status` on the device names the file.",
        ),
        FailureCode::Unhealthy => (
            "Containers run, but their health checks fail.",
            "Look at the application's log: a container of it is down, or its health check fails. Where \
             it was replaced since, `margrave-agent status` on the device names the file with what it last said.",
        ),
        FailureCode::Timeout => (
            "It took longer than the component's timeout.",
            "Give the component a longer timeout, or find out what it waits for.",
        ),
        FailureCode::DiskFull => (
            "The device's disk is full, or cannot be written.",
            "Free some space on the device's disk. Where there is space, it cannot be written: look at the disk itself.",
        ),
        FailureCode::RemoveFailed => (
            "Containers, networks or volumes could not be removed.",
            "Remove the containers on the device by hand.",
        ),
        FailureCode::RollbackFailed => (
            "An update failed, and going back to what ran before failed as well.",
            "Neither the new version nor the last good one runs. Deploy a version that does: the device tries nothing more until the deployment changes.",
        ),
    }
}

impl Code {
    /// Every code, in the order in which people read them.
    pub fn all() -> impl Iterator<Item = Code> {
        OWN.iter().copied().chain(FAILURE_CODES.into_iter().map(Code::Failure))
    }

    /// What a device called its failure; `Failed` if that is none of ours.
    pub fn of_failure(text: &str) -> Code {
        let ours = FAILURE_CODES.into_iter().find(|code| code.as_str() == text);
        ours.map_or(Code::Failed, Code::Failure)
    }

    /// What a person does about it, where the device's own words tell more than the code.
    pub fn next_about(self, words: &str) -> &'static str {
        match self {
            Code::Failure(FailureCode::PullFailed) if complaint::distrusts(words) => TRUST_IT,
            Code::Failure(FailureCode::CreateFailed | FailureCode::StartFailed)
                if complaint::finds_port_taken(words) =>
            {
                FREE_THE_PORT
            }
            _ => self.next(),
        }
    }

    pub fn is_pull(self) -> bool {
        matches!(self, Code::Failure(code) if code.is_pull())
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_follows_the_words_where_they_tell_more_than_the_code() {
        let next = |code, words| Code::Failure(code).next_about(words);
        let taken = "listen tcp4 0.0.0.0:8766: bind: address already in use";
        // Older agents call it a start that failed.
        for code in [FailureCode::CreateFailed, FailureCode::StartFailed] {
            assert_eq!(next(code, taken), FREE_THE_PORT);
            assert_eq!(next(code, "no such option"), Code::Failure(code).next());
        }
        assert_eq!(next(FailureCode::Unhealthy, taken), Code::Failure(FailureCode::Unhealthy).next());
        assert_eq!(next(FailureCode::PullFailed, "x509: certificate signed by unknown authority"), TRUST_IT);
    }

    #[test]
    fn every_code_is_one_of_its_own_and_says_what_to_do() {
        let mut seen = std::collections::BTreeSet::new();
        for code in Code::all() {
            assert!(seen.insert(code.as_str()), "{code} is there twice");
            assert!(code.as_str().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{code}");
            for text in [code.meaning(), code.next()] {
                assert!(
                    text.ends_with('.') && text.starts_with(|c: char| !c.is_lowercase()),
                    "{code}: {text}"
                );
            }
        }
        for code in FAILURE_CODES.map(Code::Failure) {
            assert!(!code.next().contains("again by itself"), "{code} cannot know: {}", code.next());
        }
        for text in [TRUST_IT, FREE_THE_PORT] {
            assert!(text.ends_with('.') && !text.contains("  "), "{text}");
        }
        assert_eq!(Code::of_failure("disk-full"), Code::Failure(FailureCode::DiskFull));
        assert_eq!(Code::of_failure("converged"), Code::Failed, "a device does not speak for the server");
    }
}
