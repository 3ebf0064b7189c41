//! What a fleet has to do with backups: a copy of its database, and what follows from having been restored.

use std::path::PathBuf;
use std::time::Duration;

use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_store::NewEvent;

use super::event::time;
use super::{Actor, Error, Fleet};

/// Which restore was told of in the events.
const TOLD: &str = "restored-told";
/// Certificates say whole seconds, and begin a little before they are made.
const ROUNDED: Duration = Duration::from_secs(60);

impl Fleet {
    /// Copies the database as it is now; with its schema.
    pub(crate) async fn copy_database(&self, to: PathBuf) -> Result<u32, Error> {
        let store = self.store.clone();
        let copied = tokio::task::spawn_blocking(move || store.copy_to(&to)).await;
        let copied = copied.map_err(|error| Error::Storage(Box::new(error)))?;
        copied.map_err(|error| Error::Storage(Box::new(error)))
    }

    pub(crate) async fn note_backup(&self, actor: &Actor) -> Result<(), Error> {
        let text = format!("{} takes a backup, which holds every key of this server", actor.name);
        Ok(self.store.note(NewEvent::new(self.now(), "server.backup", &actor.name, text)).await?)
    }

    /// Tells once that this server was restored, and from when it is.
    pub(super) async fn tell_restored(&self) -> Result<(), Error> {
        let Some(restored) = self.store.restored().await? else { return Ok(()) };
        let mark = restored.restored_at.0.to_be_bytes().to_vec();
        if self.store.recall(TOLD).await?.as_ref() == Some(&mark) {
            return Ok(());
        }
        let text = format!(
            "this server was restored from a backup of {}; devices keep what they run, and go on from there",
            time(restored.made_at)
        );
        tracing::warn!("{text}");
        self.store.note(NewEvent::new(self.now(), "server.restored", "server", text)).await?;
        Ok(self.store.remember(TOLD, mark).await?)
    }

    /// Whether a certificate that this server does not know was issued by it between the backup and the restore: it is newer
    /// than the newest that is known, and older than the restore. Whoever has it must be able to renew, or every device
    /// that renewed in that time would have to be visited.
    pub(crate) async fn is_of_lost_time(
        &self,
        client: &ClientId,
        expires: Moment,
        lifetime: Duration,
    ) -> Result<bool, Error> {
        let Some(restored) = self.store.restored().await? else { return Ok(false) };
        let known = self.store.svid_expires(client).await?;
        let latest = restored.restored_at.after(lifetime.saturating_add(ROUNDED));
        Ok(known.is_none_or(|known| expires > known) && expires <= latest)
    }
}
