//! The way to a commit of the remote that cannot be applied.
//!
//! A file that stays wrong would keep everything from the devices that was said before it and since it was last looked. So once what
//! is wrong did not pass, the newest commit on the way there is applied that is good, as long as it changes nothing that was
//! changed once more on the rest of the way: of a commit that was taken back since, nothing is ever done. The way is that
//! of first parents, from what is applied: it never goes back, and it never leaves the branch.

use super::following::{FollowError, Following};
use crate::fleet::desired::{CommitId, KEPT_FROM, Unadopted};
use crate::fleet::{Actor, Error, Fleet};

/// So far back is looked for what is applied; a branch that is further ahead is not counted.
const WAY_MAX: usize = 1000;
/// So many commits of the way are tried at one look, the newest first. Each is read and checked like any other.
const TRIED_MAX: usize = 16;

impl Fleet {
    /// Applies of the way to a refused commit what can be, and counts what waits.
    pub(super) async fn follow_way(
        &self,
        following: &Following,
        newest: CommitId,
    ) -> Result<(), FollowError> {
        let failed = |error: Error| FollowError::Failed(error);
        let repository = self.desired.repository();
        let Some(head) = self.desired.head() else { return Ok(()) };
        let way = repository.way(head, newest, WAY_MAX).await.map_err(|error| failed(error.into()))?;
        let Some(way) = way else {
            following.state().waiting = 0;
            return Ok(());
        };
        let mut waiting = way.len();
        let lasts = following.state().lasts(self.now());
        if lasts && self.may_go_part_of(&way).await.map_err(failed)? {
            // The first is the one that was refused.
            for (newer, commit) in way.iter().enumerate().skip(1).take(TRIED_MAX) {
                if self.follow_part(*commit, newest).await.map_err(failed)? {
                    tracing::info!(%commit, waiting = newer, "a commit on the way to one that cannot be applied was applied");
                    waiting = newer;
                    break;
                }
            }
        }
        following.state().waiting = waiting as u64;
        Ok(())
    }

    /// Whether it is for the server to go a part of a way. After a restored backup it is not: devices may have gone further
    /// than what is applied here, and would be led back. Nor is it where a person decided against a commit of it.
    async fn may_go_part_of(&self, way: &[CommitId]) -> Result<bool, Error> {
        if self.desired.is_returning() || self.desired.conflict().is_some() {
            return Ok(false);
        }
        let kept = self.store.recall(KEPT_FROM).await?;
        Ok(way.iter().all(|commit| kept.as_deref() != Some(commit.to_string().as_bytes())))
    }

    /// Whether a commit of the way could be applied, and is.
    async fn follow_part(&self, commit: CommitId, newest: CommitId) -> Result<bool, Error> {
        let adopted = async {
            if !self.leads_to(commit, newest).await? {
                return Ok(false);
            }
            let logged = self.desired.repository().logged(commit).await?;
            self.adopt(&Actor { name: logged.by }, commit).await?;
            Ok(true)
        };
        match adopted.await {
            Ok(applied) => Ok(applied),
            // It is as wrong as what came after it.
            Err(Unadopted::Flaws(_)) => Ok(false),
            Err(Unadopted::Failed(error)) => Err(error),
        }
    }
}
