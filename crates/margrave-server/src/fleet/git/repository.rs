//! One repository on disk: a picture of what the store knows, and nothing more.
//!
//! It is only ever brought up to the store: what is missing is committed, what is wrong is thrown away and made
//! anew. So it does not matter when a process was killed, and nothing here has to be written in a safe order.
//! Where to start: [`Repository::catch_up`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use margrave_core::chain::sentence;
use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_store::Store;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Mutex, OwnedRwLockReadGuard, RwLock, Semaphore};

use super::commit::{self, BRANCH, CommitId, Head, MANIFEST};
use super::program::{NoGit, Pipes, Program, RunError, Running, last_words, name_ends_with, run};

/// Versions that are held in memory at once while they are committed.
const VERSIONS_TOGETHER: u32 = 16;
/// Ten thousand versions take some six seconds.
const IMPORT_TIME_MAX: Duration = Duration::from_secs(10 * 60);
const LOOK_TIME_MAX: Duration = Duration::from_secs(60);
/// A commit and the largest manifest that there may be.
const LOOK_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Every import leaves a pack of its own. Beyond this they are rolled up, which takes a tenth of a second.
const PACKS_MAX: usize = 50;
/// A lock that is older belongs to a process that was killed: what takes a lock here gives it back in milliseconds.
const LOCK_AGE_MAX: Duration = Duration::from_secs(30);
/// Reading everything again takes about a second for ten thousand versions; not more often because of one client.
const CHECK_EVERY: Duration = Duration::from_secs(60);
/// A device needs one fetch at a time, and a person who looks another.
const FETCHES_MAX: usize = 2;

/// Everything that must be in a repository's directory but objects and branches. Nothing runs by itself in there, and
/// nothing but the one branch is shown.
const CONFIG: &str = "[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = true
\thooksPath = /dev/null
\tlogAllRefUpdates = false
\tfsync = all
[fastimport]
\tunpackLimit = 0
[gc]
\tauto = 0
[maintenance]
\tauto = false
[pack]
\tthreads = 1
\twriteBitmaps = false
[receive]
\tdenyNonFastForwards = true
[transfer]
\thideRefs = refs
\thideRefs = !refs/heads/main
";

/// Why a repository is not up to date.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepositoryError {
    #[error("there is no usable git")]
    NoGit(#[from] NoGit),
    #[error("git did not do its work")]
    Run(#[from] RunError),
    #[error("{path} cannot be {doing}; check the disk, and that the server may write there")]
    Disk { path: PathBuf, doing: &'static str, source: io::Error },
    #[error("the store did not answer")]
    Store(#[from] margrave_store::Error),
    #[error("the repository was closed meanwhile")]
    Closed,
    #[error("git made no commit of version {0}")]
    Missing(u64),
}

pub(crate) struct Repository {
    client: ClientId,
    /// `DATA/git/<client>.git`.
    path: PathBuf,
    /// Where it is made before it is put in place. `~` stands in no client's name.
    unfinished: PathBuf,
    state: Mutex<State>,
    /// Held by fetches; whoever takes packs away waits until there are none.
    fetches: Arc<RwLock<()>>,
    pub(super) places: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    /// What is known to be on disk; `None` until somebody looked.
    head: Option<Head>,
    /// A fetch failed in a way that it should not: look at everything before the next.
    suspect: bool,
    checked: Option<Instant>,
    /// Turned off: whoever still has it in hand must not make it anew.
    closed: bool,
}

/// What is found on disk.
enum Found {
    Head(Head),
    Nothing,
    Damaged(String),
}

impl Repository {
    pub(super) fn new(directory: &Path, client: &ClientId) -> Self {
        Repository {
            path: path(directory, client),
            unfinished: directory.join(format!("~{client}")),
            client: client.clone(),
            state: Mutex::default(),
            fetches: Arc::default(),
            places: Arc::new(Semaphore::new(FETCHES_MAX)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps what is on disk from being taken away.
    pub(super) async fn hold(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.fetches).read_owned().await
    }

    /// Something was wrong with what this repository gave.
    pub(super) async fn suspect(&self) {
        self.state.lock().await.suspect = true;
    }

    /// Commits what the store has and the repository has not; answers with the version that it is at. Costs a look at
    /// one small file when there is nothing to do.
    pub(super) async fn catch_up(
        &self,
        program: &Program,
        store: &Store,
        wanted: u64,
        now: Moment,
    ) -> Result<u64, RepositoryError> {
        let mut state = self.state.lock().await;
        if state.closed {
            return Err(RepositoryError::Closed);
        }
        // Whatever goes wrong below, the next one looks anew.
        let known = match state.head.take() {
            Some(head) if !state.suspect && self.branch().await.as_ref() == Some(&head.commit) => Some(head),
            _ => None,
        };
        if let Some(head) = &known
            && head.version >= wanted
        {
            let version = head.version;
            state.head = known;
            return Ok(version);
        }
        let record = store.git_repository(&self.client, now).await?.ok_or(RepositoryError::Closed)?;
        let mut why = None;
        let found = match known {
            Some(head) => Found::Head(head),
            None => self.find(&mut state, program, store).await?,
        };
        let head = match found {
            Found::Head(head) => match self.follow(program, store, &head).await {
                Ok(head) => Some(head),
                // A full disk does not get better by writing everything once more.
                Err(
                    error @ (RepositoryError::Run(RunError::Failed { .. }) | RepositoryError::Missing(_)),
                ) => {
                    let reason = match self.check(program).await {
                        Err(RunError::Failed { errors, .. }) => errors,
                        _ => return Err(error),
                    };
                    why = Some(reason);
                    None
                }
                Err(error) => return Err(error),
            },
            Found::Nothing => {
                why = record.made.then(|| "it was not there any more".to_owned());
                None
            }
            Found::Damaged(reason) => {
                why = Some(reason);
                None
            }
        };
        let head = match head {
            Some(head) => head,
            None => self.make(program, store).await?,
        };
        if !record.made || why.is_some() {
            let rebuilt = why.map(|why| {
                tracing::warn!(client = %self.client, why, "a Git repository was made anew");
                let why: String = why.chars().take(300).collect();
                (now, format!("versions {} to {}: {why}", record.oldest, head.version))
            });
            store.git_is_made(&self.client, rebuilt).await?;
        }
        let version = head.version;
        state.head = Some(head);
        state.suspect = false;
        self.tidy(program).await;
        Ok(version)
    }

    /// Takes the repository away for good.
    pub(super) async fn remove(&self) -> Result<(), RepositoryError> {
        let mut state = self.state.lock().await;
        state.closed = true;
        state.head = None;
        for path in [&self.path, &self.unfinished] {
            remove_directory(path).await?;
        }
        Ok(())
    }

    /// What the branch points to.
    async fn branch(&self) -> Option<CommitId> {
        let text = tokio::fs::read_to_string(self.path.join(BRANCH)).await.ok()?;
        CommitId::parse(text.trim_end())
    }

    async fn find(
        &self,
        state: &mut State,
        program: &Program,
        store: &Store,
    ) -> Result<Found, RepositoryError> {
        program.locate().await?;
        if !self.path.join("HEAD").exists() {
            return Ok(Found::Nothing);
        }
        self.sweep().await;
        let due = state.checked.is_none_or(|checked| checked.elapsed() >= CHECK_EVERY);
        if state.suspect && due {
            state.checked = Some(Instant::now());
            match self.check(program).await {
                Ok(()) => {}
                Err(RunError::Failed { errors, .. }) => return Ok(Found::Damaged(errors)),
                Err(error) => return Err(error.into()),
            }
        }
        let mut command = program.on(&self.path).await?;
        command.args(["--git-dir=.", "cat-file", "--batch"]);
        let asked = format!("{BRANCH}\n{BRANCH}:{MANIFEST}\n");
        let said = match run(command, "cat-file", asked.as_bytes(), LOOK_BYTES_MAX, LOOK_TIME_MAX).await {
            Ok(said) => said,
            Err(error @ RunError::Failed { .. }) => return Ok(Found::Damaged(sentence(&error))),
            Err(error) => return Err(error.into()),
        };
        let Some((head, manifest)) = commit::read(&said) else {
            return Ok(Found::Damaged("its newest commit cannot be read".to_owned()));
        };
        // After a restored backup the repository can be ahead of the store, and about another past.
        match store.git_manifest(&self.client, head.version).await? {
            Some(known) if known == manifest => Ok(Found::Head(head)),
            _ => Ok(Found::Damaged(format!("the store knows nothing of its version {}", head.version))),
        }
    }

    /// Reads every object.
    async fn check(&self, program: &Program) -> Result<(), RunError> {
        let mut command = program.on(&self.path).await.map_err(|error| {
            let source = io::Error::other(error);
            RunError::Start { act: "fsck", source }
        })?;
        command.args(["--git-dir=.", "fsck", "--full", "--no-progress", "--no-dangling"]);
        run(command, "fsck", b"", 64 * 1024, IMPORT_TIME_MAX).await.map(drop)
    }

    /// Commits what comes after `head`.
    async fn follow(&self, program: &Program, store: &Store, head: &Head) -> Result<Head, RepositoryError> {
        let imported = self.import(program, store, &self.path, Some(head)).await?;
        let head = imported.unwrap_or_else(|| head.clone());
        if self.branch().await.as_ref() != Some(&head.commit) {
            return Err(RepositoryError::Missing(head.version));
        }
        Ok(head)
    }

    /// Makes the whole repository beside its place, and puts it there.
    async fn make(&self, program: &Program, store: &Store) -> Result<Head, RepositoryError> {
        remove_directory(&self.unfinished).await?;
        lay_out(&self.unfinished).await?;
        let head = self.import(program, store, &self.unfinished, None).await?;
        let head = head.ok_or(RepositoryError::Closed)?;
        remove_directory(&self.path).await?;
        tokio::fs::rename(&self.unfinished, &self.path).await.map_err(disk(&self.path, "put in place"))?;
        Ok(head)
    }

    /// One run of `git fast-import`: all that is missing, or nothing. `None` when nothing is.
    async fn import(
        &self,
        program: &Program,
        store: &Store,
        path: &Path,
        parent: Option<&Head>,
    ) -> Result<Option<Head>, RepositoryError> {
        const ACT: &str = "fast-import";
        let mut after = parent.map(|head| head.version);
        let mut batch = store.git_versions_after(&self.client, after, VERSIONS_TOGETHER).await?;
        if batch.is_empty() {
            return Ok(None);
        }
        let mut command = program.on(path).await?;
        command.args(["--git-dir=.", ACT, "--quiet", "--done", "--date-format=raw"]);
        let (running, Pipes { mut input, output, errors }) = Running::start(command, ACT)?;
        let feed = async move {
            let mut text = commit::preamble().to_vec();
            let mut from = parent.map(|head| &head.commit);
            loop {
                for version in &batch {
                    commit::write(&mut text, version, from.take(), after.is_none());
                    after = Some(version.version);
                }
                let last = batch.len() < VERSIONS_TOGETHER as usize;
                if last {
                    text.extend_from_slice(commit::conclusion());
                }
                // If it ended early, it says why in its own words.
                if input.write_all(&text).await.is_err() || last {
                    return Ok::<_, margrave_store::Error>(after);
                }
                text.clear();
                batch = store.git_versions_after(&self.client, after, VERSIONS_TOGETHER).await?;
            }
        };
        let whole = async {
            let mut said = String::new();
            let mut bounded = output.take(1024);
            let listen = bounded.read_to_string(&mut said);
            let (fed, heard, errors) = tokio::join!(feed, listen, last_words(errors));
            let version: Option<u64> = fed?;
            heard.map_err(|source| RunError::Pipe { act: ACT, source })?;
            running.end(errors).await?;
            let version = version.ok_or(RepositoryError::Closed)?;
            let commit = CommitId::parse(said.trim_end()).ok_or(RepositoryError::Missing(version))?;
            Ok(Some(Head { version, commit }))
        };
        match tokio::time::timeout(IMPORT_TIME_MAX, whole).await {
            Ok(imported) => imported,
            Err(_) => Err(RunError::TooLong { act: ACT, limit: IMPORT_TIME_MAX }.into()),
        }
    }

    /// Rolls many small packs up into few. That it did not work is no reason not to serve.
    async fn tidy(&self, program: &Program) {
        let packs = names(&self.path.join("objects/pack")).await;
        if packs.iter().filter(|name| name_ends_with(name, ".pack")).count() <= PACKS_MAX {
            return;
        }
        // Not while somebody reads them; there is a next time.
        let Ok(_alone) = self.fetches.try_write() else { return };
        for arguments in [["--geometric=2", "-d", "-q"], ["-a", "-d", "-q"]] {
            let Ok(mut command) = program.on(&self.path).await else { return };
            command.args(["--git-dir=.", "repack"]).args(arguments);
            match run(command, "repack", b"", 64 * 1024, IMPORT_TIME_MAX).await {
                Ok(_) => return,
                // Before 2.32 there is no geometry.
                Err(error) => {
                    tracing::debug!(client = %self.client, error = &error as &dyn std::error::Error, "packs were not rolled up")
                }
            }
        }
        tracing::warn!(client = %self.client, "the packs of a Git repository could not be rolled up");
    }

    /// Takes away what a killed process left: unfinished packs, reports of its crash, locks.
    async fn sweep(&self) {
        let mut left: Vec<PathBuf> = Vec::new();
        for folder in ["", "objects/pack", "refs/heads"] {
            let folder = self.path.join(folder);
            for name in names(&folder).await {
                let bytes = name.as_encoded_bytes();
                if bytes.starts_with(b"tmp_")
                    || bytes.starts_with(b"fast_import_crash_")
                    || bytes.ends_with(b".lock")
                {
                    left.push(folder.join(&name));
                }
            }
        }
        for path in left {
            let age = tokio::fs::metadata(&path).await.and_then(|found| found.modified());
            let old =
                age.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age >= LOCK_AGE_MAX));
            if old && let Err(error) = tokio::fs::remove_file(&path).await {
                tracing::warn!(path = %path.display(), %error, "what a killed git left could not be removed");
            }
        }
    }
}

pub(super) fn path(directory: &Path, client: &ClientId) -> PathBuf {
    directory.join(format!("{client}.git"))
}

/// An empty repository, made by hand: no templates, no hooks, the same with every version of Git.
async fn lay_out(path: &Path) -> Result<(), RepositoryError> {
    for folder in ["objects/info", "objects/pack", "refs/heads"] {
        let folder = path.join(folder);
        tokio::fs::create_dir_all(&folder).await.map_err(disk(&folder, "made"))?;
    }
    for (name, text) in [("HEAD", format!("ref: {BRANCH}\n")), ("config", CONFIG.to_owned())] {
        let file = path.join(name);
        tokio::fs::write(&file, text).await.map_err(disk(&file, "written"))?;
    }
    Ok(())
}

async fn remove_directory(path: &Path) -> Result<(), RepositoryError> {
    match tokio::fs::remove_dir_all(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk(path, "removed")(error)),
        _ => Ok(()),
    }
}

/// The names in a directory; none if it cannot be read, which whoever needs them finds out by itself.
pub(super) async fn names(path: &Path) -> Vec<std::ffi::OsString> {
    let mut names = Vec::new();
    if let Ok(mut entries) = tokio::fs::read_dir(path).await {
        while let Ok(Some(entry)) = entries.next_entry().await {
            names.push(entry.file_name());
        }
    }
    names
}

fn disk(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> RepositoryError {
    let path = path.to_owned();
    move |source| RepositoryError::Disk { path, doing, source }
}
