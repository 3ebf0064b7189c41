//! Why something failed, in one sentence that names the service and the cause.
//!
//! The engine's facts about containers come first; what Compose printed is only read when there are none.

use std::collections::BTreeMap;

use margrave_core::chain::sentence as chain;
use margrave_core::report::{Failure, FailureCode};

use super::container::Container;
use super::engine::{disk_full, sentence};
use super::health::{self, Condition, Progress};
use super::record::Service;

/// Why Compose could not start a project: `containers` are those that it made or started in this attempt.
pub(super) fn up(project: &str, containers: &[Container], errors: &str) -> Failure {
    let failed = containers.iter().find_map(|container| match health::condition(container) {
        Condition::Failed(failure) | Condition::Restarting(failure) => Some(failure),
        _ => None,
    });
    let words = last_words(errors);
    if disk_full(errors) {
        return Failure::new(FailureCode::DiskFull, format!("The device's disk is full: {words}."));
    }
    if let Some(failure) = failed {
        return failure;
    }
    if let Some(service) = with_progress(project, errors, "Error") {
        let message = format!("Service {service} could not be created: {words}.");
        return Failure::new(FailureCode::CreateFailed, message);
    }
    // Some engines do not keep why a container could not start; Compose was at it when it gave up.
    let starting = with_progress(project, errors, "Starting");
    match starting.filter(|service| with_progress(project, errors, "Started") != Some(service)) {
        Some(service) => {
            Failure::new(FailureCode::StartFailed, format!("Service {service} could not start: {words}."))
        }
        None => {
            Failure::new(FailureCode::CreateFailed, format!("The containers could not be created: {words}."))
        }
    }
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

/// Why Compose could not read a component.
pub(super) fn config(code: Option<i32>, errors: &str) -> Failure {
    let words = last_words(errors);
    if disk_full(errors) {
        return Failure::new(FailureCode::DiskFull, format!("The device's disk is full: {words}."));
    }
    // Whoever refuses a file says why. One that was killed, such as for want of memory, has no opinion about the file.
    if code.is_none() || errors.trim().is_empty() || is_starved(code, errors) {
        let message = "Compose was ended while it read the component's compose.yaml. Is there enough memory?";
        return Failure::new(FailureCode::RuntimeUnreachable, message);
    }
    // `${NAME:?words}` in the file: the document should have given a value.
    let code = if errors.contains("required variable") {
        FailureCode::DocumentInvalid
    } else {
        FailureCode::ArchiveInvalid
    };
    Failure::new(code, format!("Compose does not accept the component's compose.yaml: {words}."))
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

    const PROJECT: &str = "mg-1-web";

    fn check_up(errors: &str, want: &str) {
        let failure = up(PROJECT, &[], errors);
        assert_eq!(format!("{}: {failure}", failure.code), want);
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
             Error response from daemon: cannot listen on the TCP port: address already in use\n",
            "start-failed: Service web could not start: cannot listen on the TCP port: address already in use.",
        );
        check_up("", "create-failed: The containers could not be created: Compose did not say why.");
        check_up(
            "Error response from daemon: mkdir /var/lib/docker/x: no space left on device\n",
            "disk-full: The device's disk is full: mkdir /var/lib/docker/x: no space left on device.",
        );
    }

    #[test]
    fn a_missing_value_is_the_documents_fault_and_a_wrong_file_the_archives() {
        let config = |errors| config(Some(15), errors);
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
        for starved in [
            "fatal error: runtime: out of memory\n\nruntime stack:\nruntime.throw({0x1, 0x2})\n",
            "runtime: failed to create new OS thread (have 5 already; errno=11)\nfatal error: newosproc\n",
            "runtime/cgo: pthread_create failed: Resource temporarily unavailable\nSIGABRT: abort\n",
        ] {
            assert_eq!(super::config(Some(2), starved).code, FailureCode::RuntimeUnreachable, "{starved}");
        }
        let named_so = config("services.a.image: fatal error: is no reference\n");
        assert_eq!(named_so.code, FailureCode::ArchiveInvalid);
        let full = config("open /tmp/x: no space left on device\n");
        assert_eq!(full.code, FailureCode::DiskFull);
        assert_eq!(super::config(None, "").code, FailureCode::RuntimeUnreachable);
        assert_eq!(config("").code, FailureCode::RuntimeUnreachable);
    }
}
