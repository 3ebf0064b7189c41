//! Packing the repository of what is wanted: every change leaves a few loose objects, and every push a pack, which would make
//! it slow and large in the end.
//!
//! Only the form changes. No object is ever dropped, also none that nobody refers to: a commit is written before the database
//! takes it and `main` moves, and must not go in between. Git writes the new pack whole before it takes away what is in it, so
//! that a kill at any moment loses nothing; what is left half-made goes at the next start.

use std::time::Duration;

use super::program::{NoGit, RunError, run};
use crate::fleet::Fleet;
use crate::fleet::desired::{Clutter, RepositoryError};

/// Below this, packing costs more than it gains.
const LOOSE_MAX: usize = 1_000;
/// Each is asked for every object that is looked for.
const PACKS_MAX: usize = 20;
/// Beyond so many times as much it is done although somebody is at work.
const URGENT: usize = 10;
/// A history of many years; what is not done by then is tried again later.
const TIME_MAX: Duration = Duration::from_secs(10 * 60);
const OUTPUT_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PackError {
    #[error("the repository of what is wanted is not packed: {0}")]
    NoGit(#[from] NoGit),
    #[error("the repository of what is wanted could not be packed")]
    Failed(#[from] RunError),
    #[error(transparent)]
    Repository(#[from] RepositoryError),
}

impl Fleet {
    /// Packs what lies about, if that is much and nobody changed anything since this was last asked. Safe to call at any time.
    pub(crate) async fn tidy_intent(&self) -> Result<(), PackError> {
        let quiet = self.desired.is_quiet();
        let clutter = self.desired.repository().clutter().await?;
        let over = |times: usize| {
            let Clutter { loose, packs } = clutter;
            loose > LOOSE_MAX * times || packs > PACKS_MAX * times
        };
        if over(URGENT) || (over(1) && quiet) {
            self.pack_intent(TIME_MAX).await?;
        }
        Ok(())
    }

    /// Nothing is done while somebody needs the files as they are.
    pub(in crate::fleet) async fn pack_intent(&self, time_max: Duration) -> Result<(), PackError> {
        let repository = self.desired.repository();
        let Ok(_still) = repository.still().try_lock_owned() else { return Ok(()) };
        // What nobody refers to is packed only beside a pack that is there already.
        let runs = if repository.clutter().await?.packs == 0 { 2 } else { 1 };
        for _ in 0..runs {
            let mut command = self.git.program.on(repository.path()).await?;
            // One thread and little memory: devices come first.
            for setting in ["pack.threads=1", "pack.windowMemory=32m", "repack.writeBitmaps=false"] {
                command.args(["-c", setting]);
            }
            command.args(["repack", "-a", "-d", "-l", "-q", "--keep-unreachable"]);
            run(command, "repack", b"", OUTPUT_BYTES_MAX, time_max).await?;
        }
        tracing::info!("the repository of what is wanted was packed");
        Ok(())
    }
}
