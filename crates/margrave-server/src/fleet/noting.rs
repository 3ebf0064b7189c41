//! Labels that devices bring along from their join tokens come into Git.
//!
//! A device joins in a moment in which nobody else is asked, and what its token says counts at once. That it also stands in a file is
//! done a little later, for many devices in one commit. Who removes such a file means it: it is written once.

use std::collections::BTreeMap;

use margrave_store::UnnotedJoin;

use super::intent::Change;
use super::{Actor, Error, Fleet};

/// Devices in one commit; the next follows a few seconds later.
const TOGETHER_MAX: u32 = 1000;

impl Fleet {
    /// Writes down the labels of devices that joined. Safe to call at any time; a crash repeats it, and the same labels change nothing.
    pub async fn note_joins(&self) -> Result<(), Error> {
        // While others say what is wanted, or a person has to decide, it waits: nothing depends on it.
        if self.desired.may_change().is_err() || self.desired.is_returning() {
            return Ok(());
        }
        let mut joins: BTreeMap<String, Vec<UnnotedJoin>> = BTreeMap::new();
        for join in self.store.joins_unnoted(TOGETHER_MAX).await? {
            joins.entry(join.created_by.clone()).or_default().push(join);
        }
        let mut failed = None;
        for (name, joins) in joins {
            let actor = Actor { name };
            // What one maker's tokens said must not wait for another's.
            if let Err(error) = self.note_together(&actor, &joins).await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn note_together(&self, actor: &Actor, joins: &[UnnotedJoin]) -> Result<(), Error> {
        let change = |join: &UnnotedJoin| Change::NoteLabels { device: join.device.clone() };
        let changes: Vec<Change> = joins.iter().map(change).collect();
        match self.change_all(actor, &changes).await {
            Ok(()) => return self.are_noted(joins).await,
            Err(error) if is_passing(&error) => return Err(error),
            Err(_) => {}
        }
        // One that is refused must not take the others with it.
        for join in joins {
            match self.change_all(actor, &[change(join)]).await {
                Ok(()) => {}
                Err(error) if is_passing(&error) => return Err(error),
                // They are in force all the same, and would be refused again.
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    device = %join.device,
                    "labels of a join token could not be written down"
                ),
            }
            self.are_noted(std::slice::from_ref(join)).await?;
        }
        Ok(())
    }

    async fn are_noted(&self, joins: &[UnnotedJoin]) -> Result<(), Error> {
        Ok(self.store.joins_are_noted(joins.iter().map(|join| join.hash).collect()).await?)
    }
}

/// Whether it may be otherwise the next time.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Storage(_) | Error::Overloaded | Error::Conflict { .. } | Error::Changed)
}
