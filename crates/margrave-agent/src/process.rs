//! Running somebody else's program: in a process group of its own that is killed as a whole when time is up or the
//! caller goes away, and with bounded output.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// What a person needs of a program's output: the end, and not more than a report can carry many times over.
pub(crate) const ERRORS_BYTES_MAX: usize = 64 * 1024;
/// After a polite request to end; Compose then has to cancel what it asked the engine, and nobody else needs longer.
const GRACE: Duration = Duration::from_secs(3);

/// What one run of a program left.
#[derive(Debug)]
pub(crate) struct Finished {
    pub success: bool,
    pub code: Option<i32>,
    pub output: Vec<u8>,
    /// The end of what it printed as errors.
    pub errors: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("{program} could not be started")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("{program} took longer than {} s", .limit.as_secs())]
    TooLong { program: String, limit: Duration },
    #[error("{program} printed more than {limit} bytes")]
    TooMuch { program: String, limit: usize },
    #[error("the output of {program} could not be read")]
    Read {
        program: String,
        #[source]
        source: io::Error,
    },
}

/// One run.
pub(crate) struct Run<'a> {
    pub arguments: Vec<OsString>,
    pub variables: &'a BTreeMap<OsString, OsString>,
    pub directory: &'a Path,
    pub input: Stdio,
    pub time_max: Duration,
    pub output_max: usize,
}

/// Runs to the end, or until the time is up.
pub(crate) async fn run(path: &Path, run: Run<'_>) -> Result<Finished, RunError> {
    let Run { arguments, variables, directory, input, time_max, output_max } = run;
    let program = path.display().to_string();
    let mut command = Command::new(path);
    command
        .args(arguments)
        .env_clear()
        .envs(variables)
        .current_dir(directory)
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let start = |source| RunError::Start { program: program.clone(), source };
    let mut child = command.spawn().map_err(start)?;
    // The command holds our copies of the pipes' other ends and of the input.
    drop(command);
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let (Some(mut out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(start(io::Error::other("its output is not connected")));
    };
    let work = async {
        let (output, errors) = tokio::join!(head(&mut out, output_max), tail(&mut err, ERRORS_BYTES_MAX));
        (output, errors, child.wait().await)
    };
    let Ok((output, errors, status)) = tokio::time::timeout(time_max, work).await else {
        group.end(&mut child).await;
        return Err(RunError::TooLong { program, limit: time_max });
    };
    group.0 = None;
    let read = |source| RunError::Read { program: program.clone(), source };
    let output = output
        .map_err(read)?
        .ok_or_else(|| RunError::TooMuch { program: program.clone(), limit: output_max })?;
    let errors = String::from_utf8_lossy(&errors.map_err(read)?).into_owned();
    let status = status.map_err(read)?;
    Ok(Finished { success: status.success(), code: status.code(), output, errors })
}

/// A process group that does not outlive its owner: dropped in the middle of a run, it is killed at once.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0
            && let Err(error) = kill_process_group(group, signal)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, "a process could not be ended");
        }
    }

    /// Asks politely first: Compose then cancels its requests instead of leaving the engine in the middle.
    async fn end(&mut self, child: &mut tokio::process::Child) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
            self.signal(Signal::KILL);
            if let Err(error) = child.wait().await {
                tracing::warn!(%error, "a process could not be waited for");
            }
        }
        // Its children may have thought otherwise.
        self.signal(Signal::KILL);
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Everything, or `None` when it is more than allowed; read to its end either way, so that the program
/// does not block on a full pipe.
async fn head(from: &mut (impl AsyncRead + Unpin), size_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut whole = Vec::new();
    let mut piece = vec![0; 16 * 1024];
    let mut fits = true;
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return Ok(fits.then_some(whole));
        }
        fits &= whole.len() + length <= size_max;
        if fits {
            whole.extend_from_slice(&piece[..length]);
        }
    }
}

/// The last `size_max` bytes.
async fn tail(from: &mut (impl AsyncRead + Unpin), size_max: usize) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let mut piece = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            kept.drain(..kept.len().saturating_sub(size_max));
            return Ok(kept);
        }
        kept.extend_from_slice(&piece[..length]);
        if kept.len() > 2 * size_max {
            kept.drain(..kept.len() - size_max);
        }
    }
}
