//! The `git` program: where it is, and how it is run.
//!
//! It sees nothing of this machine but one repository: no configuration of the system or of a user, no hooks, no
//! prompts, no variables of ours. Every run is in a process group of its own that is killed as a whole when time is
//! up or the caller goes away; what it prints is bounded.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// The end of what it says is what helps.
const ERRORS_BYTES_MAX: usize = 4 * 1024;
/// Printing a version reads nothing and asks nobody.
const VERSION_TIME_MAX: Duration = Duration::from_secs(20);
/// The first with protocol version 2 and everything else that is used here; of 2018.
const VERSION_MIN: (u32, u32) = (2, 20);

/// Why there is no usable `git`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoGit {
    #[error(
        "git is not installed on the server's machine; install the package git (2.20 or newer) there, then try again"
    )]
    Missing,
    #[error(
        "git on the server's machine is {0:?}, which is too old; install git 2.20 or newer there, then try again"
    )]
    Old(String),
    #[error("git on the server's machine does not work; see that `git --version` does, as the server's user")]
    Broken(#[source] RunError),
}

/// Why one run did not do what it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("git {act} could not be started")]
    Start { act: &'static str, source: io::Error },
    #[error("git {act} took longer than {} s", .limit.as_secs())]
    TooLong { act: &'static str, limit: Duration },
    #[error("git {act} printed more than {limit} bytes")]
    TooMuch { act: &'static str, limit: usize },
    #[error("what git {act} said could not be read")]
    Pipe { act: &'static str, source: io::Error },
    #[error("git {act} failed ({status}): {errors}")]
    Failed { act: &'static str, status: ExitStatus, errors: String },
}

/// The program of this machine. Looked for when it is first needed, and remembered once it was found: where there
/// is none, nothing but Git suffers, and it may be installed while the server runs.
#[derive(Default)]
pub(crate) struct Program {
    found: OnceLock<PathBuf>,
}

impl Program {
    /// Where it is, if it is one that works.
    pub(crate) async fn locate(&self) -> Result<&Path, NoGit> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let path = on_path("git").ok_or(NoGit::Missing)?;
        let mut command = bare(&path);
        command.arg("--version");
        let said = run(command, "--version", b"", 1024, VERSION_TIME_MAX).await.map_err(NoGit::Broken)?;
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        match version(&said) {
            Some(version) if version >= VERSION_MIN => Ok(self.found.get_or_init(|| path)),
            _ => Err(NoGit::Old(said)),
        }
    }

    /// A command on one repository, with nothing else around it.
    pub(crate) async fn on(&self, repository: &Path) -> Result<Command, NoGit> {
        let mut command = bare(self.locate().await?);
        // The data directory may belong to another user than the one who runs the server: root, often. That is no
        // reason to distrust what this server itself made.
        let mut trusted = std::ffi::OsString::from("safe.directory=");
        trusted.push(repository);
        command.arg("-c").arg(trusted).current_dir(repository);
        Ok(command)
    }
}

fn bare(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        // A home that has no files and cannot get any.
        .env("HOME", "/dev/null")
        .env("XDG_CONFIG_HOME", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_ATTR_NOSYSTEM", "1")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("LC_ALL", "C")
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// `git version 2.47.3 (…)` as major and minor.
fn version(said: &str) -> Option<(u32, u32)> {
    let mut numbers =
        said.strip_prefix("git version ")?.split(['.', ' ']).map_while(|part| part.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

fn on_path(name: &str) -> Option<PathBuf> {
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let paths = std::env::var_os("PATH")?;
    // An empty or relative part of PATH would mean wherever the server was started.
    std::env::split_paths(&paths)
        .filter(|part| part.is_absolute())
        .map(|part| part.join(name))
        .find(|p| runs(p))
}

/// A run that is going on. Dropped, everything it started is killed.
pub(crate) struct Running {
    act: &'static str,
    child: Child,
    group: Option<Pid>,
}

impl Running {
    pub(crate) fn start(mut command: Command, act: &'static str) -> Result<(Running, Pipes), RunError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|source| RunError::Start { act, source })?;
        let pipes = Pipes {
            input: child.stdin.take().expect("standard input is piped"),
            output: child.stdout.take().expect("standard output is piped"),
            errors: child.stderr.take().expect("standard error is piped"),
        };
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok((Running { act, child, group }, pipes))
    }

    /// Waits for the end, which must come by itself.
    pub(crate) async fn end(mut self, errors: String) -> Result<(), RunError> {
        let act = self.act;
        let status = self.child.wait().await.map_err(|source| RunError::Pipe { act, source })?;
        // Its number may be given to somebody else from now on.
        self.group = None;
        if status.success() { Ok(()) } else { Err(RunError::Failed { act, status, errors }) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group.take()
            && let Err(error) = kill_process_group(group, Signal::KILL)
        {
            tracing::debug!(act = self.act, %error, "git had ended by itself");
        }
    }
}

pub(crate) struct Pipes {
    pub(crate) input: ChildStdin,
    pub(crate) output: ChildStdout,
    pub(crate) errors: ChildStderr,
}

/// Runs a command to its end and returns what it printed.
pub(crate) async fn run(
    command: Command,
    act: &'static str,
    input: &[u8],
    output_max: usize,
    time_max: Duration,
) -> Result<Vec<u8>, RunError> {
    let (running, Pipes { input: mut pipe, mut output, errors }) = Running::start(command, act)?;
    let whole = async move {
        let write = async {
            // One that ends before it has read everything says why in its own words.
            drop(pipe.write_all(input).await);
            drop(pipe);
        };
        let mut printed = Vec::new();
        let mut bounded = (&mut output).take(output_max as u64 + 1);
        let read = bounded.read_to_end(&mut printed);
        let ((), read, errors) = tokio::join!(write, read, last_words(errors));
        read.map_err(|source| RunError::Pipe { act, source })?;
        if printed.len() > output_max {
            return Err(RunError::TooMuch { act, limit: output_max });
        }
        running.end(errors).await?;
        Ok(printed)
    };
    match tokio::time::timeout(time_max, whole).await {
        Ok(finished) => finished,
        Err(_) => Err(RunError::TooLong { act, limit: time_max }),
    }
}

/// The end of what a program says, in one line, however much it says.
pub(crate) async fn last_words(mut from: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0u8; 1024];
    // An error here is the end, too.
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..count]);
        if kept.len() > ERRORS_BYTES_MAX {
            kept.drain(..kept.len() - ERRORS_BYTES_MAX);
        }
    }
    let text = String::from_utf8_lossy(&kept);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// Whether a name of a file ends like this; names are bytes.
pub(super) fn name_ends_with(name: &OsStr, end: &str) -> bool {
    name.as_encoded_bytes().ends_with(end.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_distributions_write_them() {
        assert_eq!(version("git version 2.47.3"), Some((2, 47)));
        assert_eq!(version("git version 2.39.5 (Apple Git-154)"), Some((2, 39)));
        assert_eq!(version("git version 2.20.GIT"), Some((2, 20)));
        assert_eq!(version("git version 3"), None);
        assert_eq!(version("not git"), None);
    }

    fn shell(script: &str) -> Command {
        let mut command = bare(Path::new("/bin/sh"));
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_run_is_bounded_in_time_and_output_and_says_why_it_failed() {
        let limit = Duration::from_secs(60);
        assert_eq!(run(shell("cat"), "test", b"hello", 5, limit).await.unwrap(), b"hello");
        let much = run(shell("cat"), "test", b"hello!", 5, limit).await.unwrap_err();
        assert!(matches!(much, RunError::TooMuch { limit: 5, .. }), "{much}");
        let failed =
            run(shell("echo; echo out of order >&2; exit 3"), "test", b"", 5, limit).await.unwrap_err();
        assert!(failed.to_string().ends_with("out of order"), "{failed}");
        let slow = run(shell("sleep 600"), "test", b"", 5, Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(slow, RunError::TooLong { .. }), "{slow}");
    }

    #[tokio::test]
    async fn nothing_of_this_machine_reaches_the_program() {
        let said = run(shell("env"), "test", b"", 4096, Duration::from_secs(60)).await.unwrap();
        let said = String::from_utf8(said).unwrap();
        let mut names: Vec<&str> = said.lines().filter_map(|line| line.split('=').next()).collect();
        names.retain(|name| !name.starts_with("GIT_"));
        names.sort_unstable();
        // The shell adds the last two or three itself.
        names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
        assert_eq!(names, ["HOME", "LC_ALL", "PATH", "XDG_CONFIG_HOME"]);
    }

    #[tokio::test]
    async fn what_a_dropped_run_started_is_killed_with_it() {
        // The inner shell tells its number, then both wait for ever.
        let (running, mut pipes) =
            Running::start(shell("sh -c 'echo $$; sleep 600' & wait"), "test").unwrap();
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            line.push(pipes.output.read_u8().await.unwrap());
        }
        let inner: i32 = String::from_utf8(line).unwrap().trim().parse().unwrap();
        let alive = || rustix::process::test_kill_process(Pid::from_raw(inner).unwrap()).is_ok();
        assert!(alive());
        drop(running);
        let gone = async {
            // Killed is not yet reaped; a process that waits to be is gone, too.
            let dead = || {
                let stat = std::fs::read_to_string(format!("/proc/{inner}/stat")).unwrap_or_default();
                !alive() || stat.contains(") Z ")
            };
            while !dead() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
    }
}
