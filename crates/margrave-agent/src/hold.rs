//! "Not now", said on the device: two sockets over which changes are held back and let go on.
//!
//! One is for a technician's command, in the agent's own directory. The other is for applications: its directory is
//! meant to be mounted into their containers, so whoever reaches it may hold, and release what it held itself. A request is one
//! line of JSON, so is the answer:
//!
//! ```text
//! {"hold": {"holder": "mes", "reason": "batch 17 runs", "seconds": 600}}   →  {"until": "2026-11-16T12:00:00Z", "reason": "batch 17 runs"}
//! {"release": {"holder": "mes"}}                                           →  {"released": 1}
//! ```
//!
//! Whether a hold is allowed is decided in `margrave_core::device`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use margrave_core::device::{Hold, HoldRefused};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::socket::{self, AGAIN_AFTER, is_running};

/// A request has a name and a sentence; more is none.
const REQUEST_BYTES_MAX: u64 = 4096;
/// Of what somebody says beyond that, so much is read away to let them have the answer.
const UNREAD_BYTES_MAX: u64 = 64 * 1024;
/// Who takes longer to say a line is not listened to.
const PATIENCE: Duration = Duration::from_secs(5);
/// Conversations at the same time; others wait.
const TALKS_MAX: usize = 8;

/// What is asked of the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Wish {
    Hold {
        holder: String,
        reason: String,
        seconds: u64,
    },
    Release {
        /// Everybody's, where that is allowed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holder: Option<String>,
    },
}

impl Wish {
    /// Applications have names of their own, so that none ends what a technician holds.
    fn of_an_application(self) -> Wish {
        let named = |holder: String| if holder.trim().is_empty() { holder } else { format!("app/{holder}") };
        match self {
            Wish::Hold { holder, reason, seconds } => Wish::Hold { holder: named(holder), reason, seconds },
            Wish::Release { holder } => Wish::Release { holder: holder.map(named) },
        }
    }
}

/// What the agent says to it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reply {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Why until then: what the same holder said before, where that lasts longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Reply {
    fn refused(error: impl ToString) -> Reply {
        Reply { error: Some(error.to_string()), ..Reply::default() }
    }
}

impl From<Result<Hold, HoldRefused>> for Reply {
    fn from(held: Result<Hold, HoldRefused>) -> Reply {
        match held {
            Ok(hold) => {
                Reply { until: Some(hold.until.to_string()), reason: Some(hold.reason), ..Reply::default() }
            }
            Err(refused) => Reply::refused(refused),
        }
    }
}

/// A wish on its way to the loop that decides.
pub(crate) struct Asked {
    pub(crate) wish: Wish,
    pub(crate) reply: oneshot::Sender<Reply>,
}

#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    #[error("no agent runs on {0}; while none does, nothing changes there")]
    NotRunning(PathBuf),
    #[error("the agent that runs on {0} cannot be asked, so that nothing is held back there")]
    Unheard(PathBuf, #[source] std::io::Error),
    #[error("the agent did not answer")]
    NoAnswer(#[source] std::io::Error),
    #[error("the agent did not answer in time")]
    Silent,
    #[error("{0}")]
    Refused(String),
}

impl HoldError {
    /// Whether this is an answer, and the answer is no; otherwise asking went wrong.
    pub fn is_no(&self) -> bool {
        matches!(self, HoldError::Refused(_))
    }
}

/// The technician's.
fn control(data: &Path) -> PathBuf {
    data.join("control.sock")
}

/// The applications'; its directory can be mounted, and stays the same when the agent starts anew.
pub fn applications(data: &Path) -> PathBuf {
    data.join("apps").join("hold.sock")
}

/// Asks the agent that runs on `data`.
pub async fn ask(data: &Path, wish: &Wish) -> Result<Reply, HoldError> {
    let exchange = async {
        let connected = UnixStream::connect(control(data)).await;
        let mut stream = connected.map_err(|error| match is_running(data) {
            true => HoldError::Unheard(data.to_owned(), error),
            false => HoldError::NotRunning(data.to_owned()),
        })?;
        let mut line = serde_json::to_vec(wish).map_err(|error| HoldError::NoAnswer(error.into()))?;
        line.push(b'\n');
        stream.write_all(&line).await.map_err(HoldError::NoAnswer)?;
        let mut text = vec![];
        stream.take(REQUEST_BYTES_MAX).read_to_end(&mut text).await.map_err(HoldError::NoAnswer)?;
        serde_json::from_slice::<Reply>(&text).map_err(|error| HoldError::NoAnswer(error.into()))
    };
    let reply = tokio::time::timeout(PATIENCE * 2, exchange).await.map_err(|_| HoldError::Silent)??;
    match reply.error {
        Some(error) => Err(HoldError::Refused(error)),
        None => Ok(reply),
    }
}

/// Listens on both sockets for as long as the agent runs.
pub(crate) async fn serve(data: PathBuf, asked: mpsc::Sender<Asked>) {
    let (own, applications) = (control(&data), applications(&data));
    let own = async {
        let listener = socket::listen(&own, 0o600, None, AGAIN_AFTER).await;
        take(listener, asked.clone(), true).await;
    };
    // Containers get this directory, and few of them run as root; a service's umask would close it to them.
    let applications = async {
        let listener = socket::listen(&applications, 0o666, Some(0o755), AGAIN_AFTER).await;
        take(listener, asked.clone(), false).await;
    };
    tokio::join!(own, applications);
}

async fn take(listener: UnixListener, asked: mpsc::Sender<Asked>, everybodys: bool) {
    let talks = Arc::new(Semaphore::new(TALKS_MAX));
    let mut open = tokio::task::JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let Ok(talk) = Arc::clone(&talks).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let asked = asked.clone();
        open.spawn(async move {
            let talked = tokio::time::timeout(PATIENCE, talk_with(stream, asked, everybodys)).await;
            if !matches!(talked, Ok(Ok(()))) {
                tracing::debug!("somebody who wanted to hold changes back went away");
            }
            drop(talk);
        });
    }
}

async fn talk_with(
    mut stream: UnixStream,
    asked: mpsc::Sender<Asked>,
    everybodys: bool,
) -> std::io::Result<()> {
    let mut line = vec![];
    BufReader::new((&mut stream).take(REQUEST_BYTES_MAX)).read_until(b'\n', &mut line).await?;
    let reply = match serde_json::from_slice::<Wish>(&line) {
        Err(error) => Reply::refused(format!(
            "write one line such as {{\"hold\":{{\"holder\":\"mes\",\"reason\":\"batch 17 runs\",\"seconds\":600}}}} ({error})"
        )),
        Ok(Wish::Release { holder: None }) if !everybodys => {
            Reply::refused("say whose hold ends: name the holder")
        }
        Ok(wish) => {
            let wish = if everybodys { wish } else { wish.of_an_application() };
            let (reply, answer) = oneshot::channel();
            let sent = asked.send(Asked { wish, reply }).await.is_ok();
            let stopping = || Reply::refused("the agent is stopping");
            if sent { answer.await.unwrap_or_else(|_| stopping()) } else { stopping() }
        }
    };
    let mut text = serde_json::to_vec(&reply).map_err(std::io::Error::from)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    stream.shutdown().await?;
    if line.len() as u64 == REQUEST_BYTES_MAX {
        // Closed with something unread, the answer would be lost on whoever said too much.
        tokio::io::copy(&mut stream.take(UNREAD_BYTES_MAX), &mut tokio::io::sink()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_is_told_that_no_agent_runs_while_one_does() {
        let data = tempfile::tempdir().unwrap();
        let wish = Wish::Release { holder: None };
        let refused = async || ask(data.path(), &wish).await.unwrap_err();
        assert!(matches!(refused().await, HoldError::NotRunning(_)));
        let lock = crate::run::lock(data.path()).unwrap();
        assert!(matches!(refused().await, HoldError::Unheard(..)));
        drop(lock);
        assert!(matches!(refused().await, HoldError::NotRunning(_)));
    }
}
