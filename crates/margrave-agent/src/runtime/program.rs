//! The Compose program: where it is, and how it is run.
//!
//! Compose v2 is a program of its own that `docker compose` merely starts, so where we find the plug-in we
//! run it directly: one process less, and 50 ms less per call.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use margrave_core::report::{Failure, FailureCode};

use super::explain;
use crate::process;
pub(super) use crate::process::{Finished, Run, RunError};

/// Where Docker's client looks for plug-ins, in its order, after the user's own directory.
const PLUGIN_DIRECTORIES: [&str; 4] = [
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
];

/// The resolved model of a large application is some hundred kilobytes.
pub(super) const OUTPUT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Printing a version reads no files and asks nobody.
const VERSION_TIME_MAX: Duration = Duration::from_secs(20);
/// What has Compose, in Docker's own repository and in distributions.
pub(super) const PACKAGES: &str = "the package docker-compose-plugin or docker-compose-v2";
/// Older ones keep `scale` to themselves when they say how they read a file, so that nobody knows how many containers there should be;
/// before 2.23.1 they refuse `content` of configs; and before 2.22 they cannot bring up by name what shares something with a service
/// that is not named, so that what has the volumes of a job that is done could never be repaired.
const OLDEST: [u32; 3] = [2, 24, 0];
/// Older ones hash a service that is named without what it depends on, and take it for changed (docker/compose#12069).
const NAMED_ALIKE: [u32; 3] = [2, 29, 3];

/// A Compose that answered, and is new enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Compose {
    program: PathBuf,
    /// `compose` when the program is Docker's client.
    first: Option<&'static str>,
    version: String,
}

impl Compose {
    /// The first Compose v2 that answers, or what to install.
    pub(super) async fn locate(
        variables: &BTreeMap<OsString, OsString>,
        directory: &Path,
    ) -> Result<Compose, Failure> {
        let home = variables.get(OsStr::new("HOME")).map(PathBuf::from);
        let plugins = plugin_directories(home.as_deref());
        Compose::locate_among(plugins, variables, directory, VERSION_TIME_MAX).await
    }

    async fn locate_among(
        plugins: Vec<PathBuf>,
        variables: &BTreeMap<OsString, OsString>,
        directory: &Path,
        time_max: Duration,
    ) -> Result<Compose, Failure> {
        let plugins = plugins.into_iter().map(|directory| directory.join("docker-compose"));
        let mut candidates: Vec<(PathBuf, Option<&'static str>)> =
            plugins.filter(|plugin| plugin.is_file()).map(|plugin| (plugin, None)).collect();
        let path = variables.get(OsStr::new("PATH")).cloned().unwrap_or_default();
        candidates.extend(on_path(&path, "docker").map(|docker| (docker, Some("compose"))));
        candidates.extend(on_path(&path, "docker-compose").map(|compose| (compose, None)));

        let (mut too_old, mut slow) = (None, false);
        for (program, first) in candidates {
            let mut compose = Compose { program, first, version: String::new() };
            let run = Run {
                arguments: vec!["version".into(), "--short".into()],
                variables,
                directory,
                input: Stdio::null(),
                time_max,
                output_max: OUTPUT_BYTES_MAX,
            };
            match compose.run(run).await {
                Ok(finished) if finished.success => {
                    let said = String::from_utf8_lossy(&finished.output);
                    match parse_version(&said) {
                        Some((numbers, version)) if numbers >= OLDEST => {
                            compose.version = version;
                            return Ok(compose);
                        }
                        Some((_, version)) => too_old = Some((compose.program, version)),
                        None => {
                            tracing::debug!(program = %compose.program.display(), %said, "no version of Compose")
                        }
                    }
                }
                Ok(finished) => {
                    tracing::debug!(program = %compose.program.display(), errors = %finished.errors, "not Compose");
                }
                Err(error) => {
                    slow |= matches!(error, RunError::TooLong { .. });
                    tracing::debug!(program = %compose.program.display(), %error, "not Compose");
                }
            }
        }
        if slow {
            return Err(explain::too_busy(time_max));
        }
        let have = too_old.map_or("Docker Compose is not installed".to_owned(), |(program, version)| {
            format!("Only Docker Compose {version} is installed ({}), which is too old", program.display())
        });
        let message = format!("{have}. Install Compose 2.24 or newer: {PACKAGES}.");
        Err(Failure::new(FailureCode::RuntimeMissing, message))
    }

    /// A program that a test made, as if it had answered.
    #[cfg(test)]
    pub(super) fn at(program: PathBuf, version: &str) -> Compose {
        Compose { program, first: None, version: version.into() }
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Whether it takes a service that it made for another one when it is told its name, or made it by its name and is told none.
    pub(super) fn hashes_named_otherwise(&self) -> bool {
        parse_version(&self.version).is_some_and(|(numbers, _)| numbers < NAMED_ALIKE)
    }

    /// Runs to the end, or until the time is up.
    pub(super) async fn run(&self, run: Run<'_>) -> Result<Finished, RunError> {
        let Run { mut arguments, .. } = run;
        arguments.splice(0..0, self.first.map(OsString::from));
        process::run(&self.program, Run { arguments, ..run }).await
    }
}

/// Directories with plug-ins, the user's own first.
pub(super) fn plugin_directories(home: Option<&Path>) -> Vec<PathBuf> {
    let own = home.map(|home| home.join(".docker/cli-plugins"));
    own.into_iter().chain(PLUGIN_DIRECTORIES.iter().map(PathBuf::from)).collect()
}

fn on_path(path: &OsStr, name: &str) -> Option<PathBuf> {
    std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|d| d.join(name))
        .find(|p| p.is_file())
}

/// `2.40.3`, `v2.17.2`, `2.24.5-desktop.1` → its numbers and the whole.
fn parse_version(said: &str) -> Option<([u32; 3], String)> {
    let version = said.trim();
    let version = version.strip_prefix('v').unwrap_or(version);
    let number = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    let mut parts = version.split('.');
    let major = parts.next()?.parse().ok()?;
    let mut next = || parts.next().and_then(number).unwrap_or(0);
    (version.len() <= 60).then(|| ([major, next(), next()], version.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::process::ERRORS_BYTES_MAX;

    /// A directory on the search path with one program in it, which is a shell script.
    fn installed(name: &str, script: &str) -> (tempfile::TempDir, BTreeMap<OsString, OsString>) {
        let temp = tempfile::tempdir().unwrap();
        let program = temp.path().join(name);
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let variables = BTreeMap::from([
            (
                "PATH".into(),
                std::env::join_paths([temp.path(), Path::new("/bin"), Path::new("/usr/bin")]).unwrap(),
            ),
            ("HOME".into(), temp.path().into()),
        ]);
        (temp, variables)
    }

    fn compose(temp: &tempfile::TempDir, name: &str) -> Compose {
        Compose::at(temp.path().join(name), "2.40.3")
    }

    fn run<'a>(
        variables: &'a BTreeMap<OsString, OsString>,
        directory: &'a Path,
        time_max: Duration,
    ) -> Run<'a> {
        let output_max = OUTPUT_BYTES_MAX;
        Run { arguments: vec!["up".into()], variables, directory, input: Stdio::null(), time_max, output_max }
    }

    #[test]
    fn versions_are_read_as_programs_print_them() {
        for (said, numbers) in [
            ("2.40.3\n", [2, 40, 3]),
            ("v2.17.2", [2, 17, 2]),
            ("1.29.2\n", [1, 29, 2]),
            ("2.24.6+ds1-0ubuntu1~22.04.1", [2, 24, 6]),
            ("2.24.5-desktop.1", [2, 24, 5]),
            ("5.0.0-rc.1", [5, 0, 0]),
            ("3", [3, 0, 0]),
        ] {
            assert_eq!(parse_version(said).map(|(numbers, _)| numbers), Some(numbers), "{said}");
        }
        for said in ["", "docker-compose version 1.2", "unknown"] {
            assert_eq!(parse_version(said), None, "{said}");
        }
    }

    #[tokio::test]
    async fn a_compose_that_is_too_old_is_refused_with_what_to_install() {
        for version in ["1.29.2", "2.23.3"] {
            let (temp, mut variables) = installed("docker-compose", &format!("echo {version}"));
            // Only this program can be found.
            variables.insert("PATH".into(), temp.path().into());
            let located = Compose::locate_among(vec![], &variables, temp.path(), VERSION_TIME_MAX).await;
            let failure = located.unwrap_err();
            assert_eq!(failure.code, FailureCode::RuntimeMissing);
            let words = [&format!("Compose {version} "), "2.24 or newer", "docker-compose-plugin"];
            assert!(words.iter().all(|word| failure.message.contains(*word)), "{failure}");
            // Elsewhere there may be a better one.
            let (newer, _) = installed("docker-compose", "echo 2.24.0");
            let path = std::env::join_paths([temp.path(), newer.path()]).unwrap();
            variables.insert("PATH".into(), path);
            let plugins = vec![temp.path().to_owned(), newer.path().to_owned()];
            let located = Compose::locate_among(plugins, &variables, temp.path(), VERSION_TIME_MAX).await;
            assert_eq!(located.unwrap().version(), "2.24.0");
        }
    }

    #[test]
    fn it_is_known_which_compose_takes_what_is_named_for_another() {
        let check = |version: &str, want: bool| {
            assert_eq!(Compose::at("c".into(), version).hashes_named_otherwise(), want, "{version}");
        };
        check("2.24.0", true);
        check("2.29.2", true);
        check("2.29.3", false);
        check("2.40.3", false);
        check("5.0.1", false);
    }

    #[tokio::test]
    async fn a_compose_that_does_not_answer_in_time_is_not_told_to_be_missing() {
        let (temp, variables) = installed("docker-compose", "/bin/sleep 600");
        let plugins = vec![temp.path().to_owned()];
        let time_max = Duration::from_millis(200);
        let mut only = variables.clone();
        only.insert("PATH".into(), temp.path().into());
        let failure = Compose::locate_among(plugins, &only, temp.path(), time_max).await.unwrap_err();
        assert_eq!(failure.code, FailureCode::RuntimeUnreachable, "{failure}");
        assert!(failure.message.contains("too busy"), "{failure}");
    }

    #[tokio::test]
    async fn the_users_own_plug_in_comes_first() {
        let (temp, variables) = installed("docker-compose", "echo 2.30.0");
        let own = temp.path().join(".docker/cli-plugins");
        fs::create_dir_all(&own).unwrap();
        fs::rename(temp.path().join("docker-compose"), own.join("docker-compose")).unwrap();
        let compose = Compose::locate(&variables, temp.path()).await.unwrap();
        assert_eq!((compose.version(), &compose.program), ("2.30.0", &own.join("docker-compose")));
    }

    #[tokio::test]
    async fn output_errors_and_exit_code_come_back() {
        let (temp, variables) = installed("c", "echo out; echo problem >&2; env >&2; exit 3");
        let finished =
            compose(&temp, "c").run(run(&variables, temp.path(), Duration::from_secs(20))).await.unwrap();
        assert!(!finished.success);
        assert_eq!(finished.output, b"out\n");
        assert!(finished.errors.starts_with("problem\n"));
        // The shell adds a few of its own; nothing of the test's environment is there.
        assert!(!finished.errors.contains("CARGO"), "{}", finished.errors);
    }

    #[tokio::test]
    async fn only_the_end_of_endless_errors_is_kept() {
        let (temp, variables) =
            installed("c", "i=0; while [ $i -lt 40000 ]; do echo line $i >&2; i=$((i+1)); done");
        let finished =
            compose(&temp, "c").run(run(&variables, temp.path(), Duration::from_secs(60))).await.unwrap();
        assert!(finished.errors.len() <= ERRORS_BYTES_MAX && finished.errors.ends_with("line 39999\n"));
    }

    async fn gone(pid: i32) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        // A zombie counts as gone: it is not ours to reap.
        let alive = || {
            fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
        };
        while alive() {
            assert!(tokio::time::Instant::now() < deadline, "process {pid} still runs");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn written(path: &Path) -> i32 {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(pid) = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()) {
                return pid;
            }
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn a_run_that_takes_too_long_ends_with_all_its_children() {
        let (temp, variables) = installed("c", "sleep 600 & echo $! > child; wait");
        let result = compose(&temp, "c").run(run(&variables, temp.path(), Duration::from_millis(500))).await;
        assert!(matches!(result, Err(RunError::TooLong { .. })), "{result:?}");
        gone(written(&temp.path().join("child")).await).await;
    }

    #[tokio::test]
    async fn a_run_that_nobody_waits_for_any_more_ends_with_all_its_children() {
        let (temp, variables) = installed("c", "trap '' TERM; sleep 600 & echo $! > child; wait");
        let (compose, child) = (compose(&temp, "c"), temp.path().join("child"));
        let pid = tokio::select! {
            result = compose.run(run(&variables, temp.path(), Duration::from_secs(600))) => panic!("{result:?}"),
            pid = written(&child) => pid,
        };
        gone(pid).await;
    }
}
