//! Why something failed, in one sentence that names the service and the cause.
//!
//! The engine's facts about containers come first; what Compose printed is only read when there are none.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use margrave_core::chain::sentence as chain;
use margrave_core::complaint;
use margrave_core::report::{Failure, FailureCode};

use super::container::Container;
use super::engine::{disk_full, engine_away, sentence};
use super::health::{self, Condition, Progress};
use super::program::PACKAGES;
use super::record::Service;

/// Why Compose could not start a project: `new` are the containers that it made or started in this attempt. Of the others it may have
/// tried some in vain, once more for the same reason; then it says so.
pub(super) fn up(
    project: &str,
    new: &[Container],
    others: &[Container],
    code: Option<i32>,
    errors: &str,
) -> Failure {
    let again = others.iter().filter(|other| !other.error.is_empty() && errors.contains(other.error.trim()));
    let failed = new.iter().chain(again).find_map(|container| match health::condition(container) {
        Condition::Failed(failure) | Condition::Restarting(failure) => Some(failure),
        _ => None,
    });
    let words = last_words(errors);
    if disk_full(errors) {
        return Failure::new(FailureCode::DiskFull, format!("The device's disk is full: {words}."));
    }
    // Nothing was done, by whatever is to be done.
    if engine_away(&words) {
        return unreachable(&words);
    }
    if let Some(failure) = failed {
        return failure;
    }
    if let Some(mut failure) = broke_down(code, errors, "started the component's containers") {
        // By now the containers before are gone, and what came in their place may be what ate the memory: it counts as a try, so that
        // the version before comes back.
        if failure.code == FailureCode::RuntimeUnreachable {
            failure.code = FailureCode::StartFailed;
        }
        return failure;
    }
    if let Some(service) = with_progress(project, errors, "Error") {
        if complaint::finds_port_taken(&words) {
            return not_started(service, &words);
        }
        let message = format!("Service {service} could not be created: {words}.");
        return Failure::new(FailureCode::CreateFailed, message);
    }
    // Some engines do not keep why a container could not start; Compose was at it when it gave up.
    let starting = with_progress(project, errors, "Starting");
    match starting.filter(|service| with_progress(project, errors, "Started") != Some(service)) {
        Some(service) => not_started(service, &words),
        None => {
            Failure::new(FailureCode::CreateFailed, format!("The containers could not be created: {words}."))
        }
    }
}

/// Compose did not get through to the engine. Whoever looks by a connection of before may not have noticed yet.
pub(super) fn unreachable(words: &str) -> Failure {
    Failure::new(
        FailureCode::RuntimeUnreachable,
        format!("The container engine could not be reached: {words}."),
    )
}

/// Why the engine could not start a container, by its words. A port that is taken is nothing about what is in it, and there is no
/// log to look at.
pub(super) fn not_started(service: &str, words: &str) -> Failure {
    let words = words.trim_end_matches('.');
    if !complaint::finds_port_taken(words) {
        return Failure::new(
            FailureCode::StartFailed,
            format!("Service {service} could not start: {words}."),
        );
    }
    let port = complaint::port_in(words).map_or_else(|| "a port".to_owned(), |port| format!("port {port}"));
    let message = format!("Service {service} cannot have {port} of the device, which is taken: {words}.");
    Failure::new(FailureCode::CreateFailed, message)
}

/// Why a project is not up although the time is over.
pub(super) fn too_long(expected: &BTreeMap<String, Service>, containers: &[Container]) -> Failure {
    match health::progress(expected, containers) {
        Progress::Failed(failure) | Progress::Coming(failure) => failure,
        Progress::Up { .. } => {
            Failure::new(FailureCode::Timeout, "It took too long: Compose did not come to an end.")
        }
    }
}

/// Why Compose came to no end with what takes a moment.
pub(super) fn too_busy(limit: Duration) -> Failure {
    let message = format!(
        "Compose did not come to an end within {} s: the device is too busy. Is there enough memory?",
        limit.as_secs()
    );
    Failure::new(FailureCode::RuntimeUnreachable, message)
}

/// Why Compose could not read a component, whose files are all below `own`.
pub(super) fn config(code: Option<i32>, errors: &str, own: &Path) -> Failure {
    let words = last_words(errors);
    if disk_full(errors) {
        return Failure::new(FailureCode::DiskFull, format!("The device's disk is full: {words}."));
    }
    if let Some(failure) = broke_down(code, errors, "read the component's compose.yaml") {
        return failure;
    }
    if let Some(code) = device_fails(&words, own) {
        return Failure::new(code, format!("Compose could not read the component's files: {words}."));
    }
    // `${NAME:?words}` in the file: the document should have given a value.
    let code = if errors.contains("required variable") {
        FailureCode::DocumentInvalid
    } else {
        FailureCode::ArchiveInvalid
    };
    Failure::new(code, format!("Compose does not accept the component's compose.yaml: {words}."))
}

/// Whether the device failed Compose, by what the system said, which stands at the end: that passes, or somebody mends it, and the
/// files are as good as before. The same words elsewhere are the file's own.
fn device_fails(words: &str, own: &Path) -> Option<FailureCode> {
    let said = |what: &[&str]| what.iter().any(|what| words.ends_with(&format!(": {what}")));
    if said(&["input/output error", "read-only file system"]) {
        return Some(FailureCode::DiskFull);
    }
    let is_short = said(&[
        "cannot allocate memory",
        "too many open files",
        "too many open files in system",
        "resource temporarily unavailable",
    ]);
    // What is read of elsewhere is the component's own idea.
    let is_closed = said(&["permission denied", "operation not permitted"])
        && own.to_str().is_some_and(|own| words.contains(&format!("{own}/")));
    (is_short || is_closed).then_some(FailureCode::RuntimeUnreachable)
}

/// What Docker's client ends with when it is told something that it does not know: without its plug-in, that is all of `compose`.
const CLIENT_REFUSES: i32 = 125;

/// Whether Compose itself came to grief, whatever it was about: that says nothing about the component, and would have happened to
/// any other.
fn broke_down(code: Option<i32>, errors: &str, what_it_did: &str) -> Option<Failure> {
    if code == Some(CLIENT_REFUSES) || errors.contains("'compose' is not a docker command") {
        let message =
            format!("Docker Compose is not there any more. Install Compose 2.24 or newer: {PACKAGES}.");
        return Some(Failure::new(FailureCode::RuntimeMissing, message));
    }
    // Beside a signal: what a shell or Docker's client says of a program that was killed by one, and Compose of itself when it was
    // asked to end.
    let is_killed = code.is_none_or(|code| code > 128);
    // Whoever refuses something says why.
    (is_killed || errors.trim().is_empty() || is_starved(code, errors)).then(|| {
        let message = format!("Compose was ended while it {what_it_did}. Is there enough memory?");
        Failure::new(FailureCode::RuntimeUnreachable, message)
    })
}

/// Whether Compose's own program broke down, as programs in Go do for want of memory or threads: they say so at the beginning of a
/// line, and end with this code.
fn is_starved(code: Option<i32>, errors: &str) -> bool {
    let breaks_down = |line: &str| {
        ["fatal error: ", "runtime: ", "runtime/cgo: "].iter().any(|beginning| line.starts_with(beginning))
    };
    code == Some(2) && errors.lines().any(breaks_down)
}

/// The last line that Compose printed, which is its reason, without its preambles.
pub(super) fn last_words(errors: &str) -> String {
    let line =
        errors.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("Compose did not say why");
    let line = line.strip_prefix("Error response from daemon: ").unwrap_or(line);
    line.trim_end_matches('.').to_owned()
}

pub(super) fn sentence_of(error: &dyn std::error::Error) -> String {
    format!("{}.", sentence(&chain(error)))
}

/// The last service of which Compose's progress says `Container <project>-<service>-<number>  <word> …`.
fn with_progress<'a>(project: &str, errors: &'a str, word: &str) -> Option<&'a str> {
    errors.lines().rev().find_map(|line| {
        let rest = line.trim().strip_prefix("Container ")?.strip_prefix(project)?.strip_prefix('-')?;
        let (name, rest) = rest.split_once(char::is_whitespace)?;
        let (service, _number) = name.rsplit_once('-')?;
        rest.trim_start().starts_with(word).then_some(service)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::container::Status;
    use crate::runtime::health::tests::container;

    const PROJECT: &str = "mg-1-web";

    fn check_up(errors: &str, want: &str) {
        check_up_ended(Some(1), errors, want);
    }

    fn check_up_ended(code: Option<i32>, errors: &str, want: &str) {
        let failure = up(PROJECT, &[], &[], code, errors);
        assert_eq!(format!("{}: {failure}", failure.code), want);
    }

    #[test]
    fn why_something_did_not_start_the_last_time_is_told_only_where_compose_says_it_again() {
        let web = |error: &str| Container { error: error.into(), ..container("web", Status::Exited) };
        let (old, new) = (web("no such device: /dev/ttyUSB0"), web("no such network"));
        let check = |now: &[Container], errors: &str, want: &str| {
            let failure = up(PROJECT, now, std::slice::from_ref(&old), Some(1), errors);
            assert_eq!(failure.message, want);
        };
        let at_db = " Container mg-1-web-db-1  Starting\nError response from daemon: no space for it\n";
        check(&[], at_db, "Service db could not start: no space for it.");
        let again = "Error response from daemon: no such device: /dev/ttyUSB0\n";
        check(&[], again, "Service web could not start: no such device: /dev/ttyUSB0.");
        check(&[new], again, "Service web could not start: no such network.");
        check(
            &[],
            "",
            "Compose was ended while it started the component's containers. Is there enough memory?",
        );
    }

    #[test]
    fn what_compose_really_prints_becomes_a_sentence() {
        check_up(
            " Network mg-1-web_default  Creating\n Container mg-1-web-p-1-1  Creating\n \
             Container mg-1-web-p-1-1  Error response from daemon: Minimum memory limit allowed is 6MB\n\
             Error response from daemon: Minimum memory limit allowed is 6MB\n",
            "create-failed: Service p-1 could not be created: Minimum memory limit allowed is 6MB.",
        );
        check_up(
            " Network mg-1-web_default  Creating\nError response from daemon: could not find an available pool.\n",
            "create-failed: The containers could not be created: could not find an available pool.",
        );
        check_up(
            " Container mg-1-web-db-1  Starting\n Container mg-1-web-db-1  Started\n \
             Container mg-1-web-web-1  Starting\n\
             Error response from daemon: driver failed programming external connectivity on endpoint mg-1-web-web-1 (4f2): \
             Error starting userland proxy: listen tcp4 0.0.0.0:8766: bind: address already in use\n",
            "create-failed: Service web cannot have port 8766 of the device, which is taken: driver failed programming external \
             connectivity on endpoint mg-1-web-web-1 (4f2): Error starting userland proxy: listen tcp4 0.0.0.0:8766: bind: \
             address already in use.",
        );
        check_up(
            " Container mg-1-web-web-1  Starting\n\
             Error response from daemon: cannot listen on the TCP port: address already in use\n",
            "create-failed: Service web cannot have a port of the device, which is taken: cannot listen on the TCP port: address \
             already in use.",
        );
        check_up(
            " Container mg-1-web-web-1  Starting\nError response from daemon: no such device\n",
            "start-failed: Service web could not start: no such device.",
        );
        check_up(
            "Error response from daemon: mkdir /var/lib/docker/x: no space left on device\n",
            "disk-full: The device's disk is full: mkdir /var/lib/docker/x: no space left on device.",
        );
    }

    #[test]
    fn an_engine_that_compose_cannot_reach_is_waited_for() {
        let away = [
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "error during connect: Get \"http://docker/v1.51/info\": EOF",
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: dial: denied",
            "failed to connect to the docker API at unix:///var/run/docker.sock; check if the path is correct",
        ];
        for words in away {
            let want = format!("runtime-unreachable: The container engine could not be reached: {words}.");
            check_up(&format!(" Container mg-1-web-db-1  Creating\n{words}\n"), &want);
        }
        // What a service says of an engine of its own is about the service.
        let own = " Container mg-1-web-db-1  Starting\nCannot connect to the Docker daemon\n\
                   Error response from daemon: no such device\n";
        check_up(own, "start-failed: Service db could not start: no such device.");
    }

    const STARVED: [&str; 3] = [
        "fatal error: runtime: out of memory\n\nruntime stack:\nruntime.throw({0x1, 0x2})\n",
        "runtime: failed to create new OS thread (have 5 already; errno=11)\nfatal error: newosproc\n",
        "runtime/cgo: pthread_create failed: Resource temporarily unavailable\nSIGABRT: abort\n",
    ];

    #[test]
    fn a_compose_that_breaks_down_while_it_starts_containers_is_named_and_counts_as_a_try() {
        let progress = " Container mg-1-web-db-1  Started\n Container mg-1-web-web-1  Starting\n";
        let ended = "start-failed: Compose was ended while it started the component's containers. Is there enough memory?";
        // By a signal, in a shell or as a plug-in of Docker's client, and asked to.
        for code in [None, Some(137), Some(255), Some(130)] {
            for errors in ["", progress] {
                check_up_ended(code, errors, ended);
            }
        }
        check_up("", ended);
        for starved in STARVED {
            check_up_ended(Some(2), &format!("{progress}{starved}"), ended);
        }
        let missing = "runtime-missing: Docker Compose is not there any more. Install Compose 2.24 or newer: the package \
                       docker-compose-plugin or docker-compose-v2.";
        check_up_ended(
            Some(125),
            "unknown flag: --project-name\n\nUsage:  docker [OPTIONS] COMMAND [ARG...]\n\nRun 'docker --help' for more information\n",
            missing,
        );
        check_up("docker: 'compose' is not a docker command.\nSee 'docker --help'\n", missing);
        let full = "open /tmp/x: no space left on device\n";
        check_up_ended(
            None,
            full,
            "disk-full: The device's disk is full: open /tmp/x: no space left on device.",
        );
    }

    #[test]
    fn a_missing_value_is_the_documents_fault_and_a_wrong_file_the_archives() {
        let own = Path::new("/data/compose/mg-1-web");
        let of = |code, errors: &str| super::config(code, errors, own);
        let config = |errors| of(Some(15), errors);
        let missing = config(
            "error while interpolating services.a.image: required variable TAG is missing a value: say which\n",
        );
        assert_eq!(missing.code, FailureCode::DocumentInvalid);
        assert!(
            missing.message.ends_with("required variable TAG is missing a value: say which."),
            "{missing}"
        );
        let wrong =
            config("validating /x/compose.yaml: services.a additional properties 'imag' not allowed\n");
        assert_eq!(wrong.code, FailureCode::ArchiveInvalid);
        assert!(wrong.message.contains("'imag' not allowed"), "{wrong}");
        // Whoever has no memory, no thread or no space left has no opinion about the file, either.
        for starved in STARVED {
            assert_eq!(of(Some(2), starved).code, FailureCode::RuntimeUnreachable, "{starved}");
        }
        let named_so = config("services.a.image: fatal error: is no reference\n");
        assert_eq!(named_so.code, FailureCode::ArchiveInvalid);
        let full = config("open /tmp/x: no space left on device\n");
        assert_eq!(full.code, FailureCode::DiskFull);
        assert_eq!(of(None, "").code, FailureCode::RuntimeUnreachable);
        let remark =
            "level=warning msg=\"The \\\"TAG\\\" variable is not set. Defaulting to a blank string.\"\n";
        assert_eq!(of(Some(255), remark).code, FailureCode::RuntimeUnreachable);
        let away =
            of(Some(125), "unknown flag: --project-name\n\nRun 'docker --help' for more information\n");
        assert_eq!(away.code, FailureCode::RuntimeMissing);
        assert_eq!(config("").code, FailureCode::RuntimeUnreachable);
    }

    #[test]
    fn a_disk_that_breaks_and_want_of_memory_are_not_the_archives_fault() {
        let own = Path::new("/data/compose/mg-1-web");
        let check = |errors: &str, want: FailureCode| {
            let failure = config(Some(1), errors, own);
            assert_eq!(failure.code, want, "{errors}");
            let is_devices = !failure.code.blames_the_update();
            assert_eq!(failure.message.contains("could not read"), is_devices, "{failure}");
        };
        let file = "/data/compose/mg-1-web/archive-1/web/compose.yaml";
        check(&format!("read {file}: input/output error\n"), FailureCode::DiskFull);
        check("open /data/compose/docker/x: read-only file system\n", FailureCode::DiskFull);
        for passes in ["cannot allocate memory", "too many open files", "too many open files in system"] {
            check(&format!("open {file}: {passes}\n"), FailureCode::RuntimeUnreachable);
        }
        check("fork/exec /usr/bin/git: resource temporarily unavailable\n", FailureCode::RuntimeUnreachable);
        check(&format!("open {file}: permission denied\n"), FailureCode::RuntimeUnreachable);
        // A wish of the component.
        check("env file /etc/shadow: open /etc/shadow: permission denied\n", FailureCode::ArchiveInvalid);
        check(
            "services.web.x additional properties 'input/output error' not allowed\n",
            FailureCode::ArchiveInvalid,
        );
    }
}
