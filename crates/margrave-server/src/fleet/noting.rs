//! Labels that devices bring along from their join tokens come into Git.
//!
//! A device joins in a moment in which nobody else is asked, and what its token says counts at once. That it also stands in a file is
//! done a little later, for many devices in one commit. Who removes such a file means it: it is written once.

use std::collections::BTreeMap;

use margrave_store::{Standing, UnnotedJoin};

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
        for (name, joins) in joins {
            let mut changes = Vec::new();
            for join in &joins {
                changes.extend(self.brought_along(join).await?);
            }
            match self.change_all(&Actor { name }, &changes).await {
                Ok(()) => {}
                Err(error @ (Error::Storage(_) | Error::Overloaded)) => return Err(error),
                // They are in force all the same, and would be refused again.
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        devices = changes.len(),
                        "labels of join tokens could not be written down"
                    );
                }
            }
            self.store.joins_are_noted(joins.into_iter().map(|join| join.hash).collect()).await?;
        }
        Ok(())
    }

    /// The labels that a device has from its token, unless somebody said something of them since.
    async fn brought_along(&self, join: &UnnotedJoin) -> Result<Option<Change>, Error> {
        let device = self.live.addressed(&join.device);
        let known = self.store.device(&device).await?.filter(|known| known.standing != Standing::Retired);
        let Some(known) = known.filter(|known| !known.labels.is_empty()) else { return Ok(None) };
        match self.store.device_setting(&device).await? {
            Some(_) => Ok(None),
            None => Ok(Some(Change::SetLabels { device, labels: Some(known.labels) })),
        }
    }
}
