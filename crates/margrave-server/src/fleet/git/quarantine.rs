//! Where pushed objects wait until somebody decided about them.
//!
//! A folder of its own beside the repository's objects: whoever works in it sees those of the repository as well, nobody who
//! works in the repository sees it. When it is dropped it goes, with everything that was not let in.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;

use super::program::{NoGit, Program, RunError, run};
use crate::fleet::desired::{CommitId, Repository, RepositoryError};

/// Of the pack, as it travels.
pub(crate) const PACK_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Unpacking, checking and walking of as much.
const TIME_MAX: Duration = Duration::from_secs(120);
/// What the programs print is of no use to anybody but the log.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// How the folder's name begins; backups leave it out by that.
pub(crate) const QUARANTINE: &str = "incoming-";
/// How often what comes in is weighed.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub(crate) enum QuarantineError {
    #[error("{0}")]
    NoGit(#[from] NoGit),
    #[error("the server could not write what was pushed; its log says why")]
    Disk(#[from] io::Error),
    #[error("what was pushed is no sound pack of objects")]
    Unsound(#[source] RunError),
    #[error("what was pushed is not whole: objects are missing")]
    Incomplete(#[source] RunError),
    #[error(transparent)]
    Repository(#[from] RepositoryError),
}

/// Objects that were pushed and do not count yet.
pub(crate) struct Quarantine {
    folder: TempDir,
    repository: PathBuf,
    view: Repository,
}

impl Quarantine {
    /// An empty one.
    pub(crate) async fn new(repository: &Repository) -> Result<Quarantine, QuarantineError> {
        let path = repository.path().to_owned();
        let folder = tempfile::Builder::new().prefix(QUARANTINE).tempdir_in(&path)?;
        tokio::fs::create_dir(folder.path().join("pack")).await?;
        let view = repository.with(folder.path().to_owned()).await?;
        Ok(Quarantine { folder, repository: path, view })
    }

    /// A command whose new objects wait here.
    pub(crate) async fn command(&self, program: &Program) -> Result<Command, NoGit> {
        command(program, &self.repository, self.folder.path()).await
    }

    /// Ends when more than so many bytes wait here.
    pub(crate) async fn outgrows(&self, bytes_max: u64) -> io::Result<()> {
        while self.size().await? <= bytes_max {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// How many bytes wait here.
    pub(crate) async fn size(&self) -> io::Result<u64> {
        let folder = self.folder.path().to_owned();
        tokio::task::spawn_blocking(move || size(&folder)).await.map_err(io::Error::other)?
    }

    /// Takes a pack in, and looks at every object in it.
    pub(crate) async fn receive(
        program: &Program,
        repository: &Repository,
        pack: &[u8],
    ) -> Result<Quarantine, QuarantineError> {
        let quarantine = Quarantine::new(repository).await?;
        let mut command = quarantine.command(program).await?;
        // A large file is written piece by piece, not held in memory.
        command.args(["-c", "core.bigFileThreshold=1m", "-c", "pack.threads=1", "index-pack", "--stdin"]);
        command.args(["--fix-thin", "--strict"]).arg(format!("--max-input-size={PACK_BYTES_MAX}"));
        run(command, "index-pack", pack, OUTPUT_BYTES_MAX, TIME_MAX)
            .await
            .map_err(QuarantineError::Unsound)?;
        Ok(quarantine)
    }

    /// The repository as it would be with these objects.
    pub(crate) fn view(&self) -> &Repository {
        &self.view
    }

    /// Whether everything is there that a commit has and `main` does not.
    pub(crate) async fn check_whole(
        &self,
        program: &Program,
        commit: CommitId,
        main: Option<CommitId>,
    ) -> Result<(), QuarantineError> {
        let mut command = command(program, &self.repository, self.folder.path()).await?;
        command.args(["rev-list", "--objects", "--quiet"]).arg(commit.to_string());
        if let Some(main) = main {
            command.arg("--not").arg(main.to_string());
        }
        run(command, "rev-list", b"", OUTPUT_BYTES_MAX, TIME_MAX)
            .await
            .map_err(QuarantineError::Incomplete)?;
        Ok(())
    }

    /// Lets the objects into the repository. They stay there from now on, also when nobody comes to use them: somebody
    /// else's commit may count on one of them already.
    pub(crate) async fn admit(&self) -> io::Result<()> {
        let (from, to) = (self.folder.path().join("pack"), self.repository.join("objects/pack"));
        let moved = tokio::task::spawn_blocking(move || {
            std::fs::create_dir_all(&to)?;
            let mut names: Vec<_> =
                std::fs::read_dir(&from)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
            // The index comes last: with it the pack is seen.
            names.sort_by_key(|name| name.as_encoded_bytes().ends_with(b".idx"));
            for name in names {
                std::fs::File::open(from.join(&name))?.sync_all()?;
                std::fs::rename(from.join(&name), to.join(&name))?;
            }
            std::fs::File::open(&to)?.sync_all()
        });
        moved.await.map_err(io::Error::other)?
    }

    /// Removes what a crash left of earlier pushes.
    pub(crate) fn sweep(repository: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(repository)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(QUARANTINE.as_bytes()) {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Of all files in a folder. One that goes meanwhile has none.
fn size(folder: &Path) -> io::Result<u64> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let mut total = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let found = match entry.metadata() {
            Err(error) if gone(&error) => continue,
            found => found?,
        };
        total += match found.is_dir() {
            false => found.len(),
            true => match size(&entry.path()) {
                Err(error) if gone(&error) => 0,
                inside => inside?,
            },
        };
    }
    Ok(total)
}

async fn command(program: &Program, repository: &Path, objects: &Path) -> Result<Command, NoGit> {
    let mut command = program.on(repository).await?;
    command
        .env("GIT_DIR", repository)
        .env("GIT_OBJECT_DIRECTORY", objects)
        .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", repository.join("objects"));
    Ok(command)
}
