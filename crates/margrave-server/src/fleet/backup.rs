//! What a fleet has to do with backups: a copy of its database, and what follows from having been restored.

use std::path::PathBuf;
use std::time::Duration;

use margrave_core::audit::{DONE, Entry};
use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_store::{Begun, ClientPicture, NewEvent, Restored};

use super::desired::Conflict;
use super::event::time;
use super::{Actor, Error, Fleet};

/// Which restore was told of in the events.
const TOLD: &str = "restored-told";
/// After which restore somebody decided to go on.
const DECIDED: &str = "restored-decided";
/// Which restore devices were asked about.
const RECOUNTED: &str = "restored-recounted";
/// More manifests than a device is given between two backups. A restored server continues so far above the numbers of its
/// backup that every device takes what it says next, whatever it was given since, and tells anew how things stand. At least:
/// it is the time of the restore in seconds, which no device was ever given, also not by a server that was restored twice.
const RENUMBERED_BY: u64 = 1_000_000;
/// So many clients in one transaction.
const RENUMBERED_TOGETHER: usize = 500;
/// Certificates say whole seconds, and begin a little before they are made.
const ROUNDED: Duration = Duration::from_secs(60);

/// How a restore is told from others.
fn mark(restored: Restored) -> Vec<u8> {
    restored.restored_at.0.to_be_bytes().to_vec()
}

impl Fleet {
    /// Copies the database as it is now; with its schema.
    pub(crate) async fn copy_database(&self, to: PathBuf) -> Result<u32, Error> {
        let store = self.store.clone();
        let copied = tokio::task::spawn_blocking(move || store.copy_to(&to)).await;
        let copied = copied.map_err(|error| Error::Storage(Box::new(error)))?;
        copied.map_err(|error| Error::Storage(Box::new(error)))
    }

    /// Until this is dropped, the files of the repository stay where they are.
    pub(crate) async fn intent_still(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.desired.repository().still().lock_owned().await
    }

    /// Writes down who takes a backup, and concludes the request in the audit log: a copy that holds it as something that was
    /// only begun would be told of as cut off by every server that is restored from it.
    pub(crate) async fn note_backup(&self, actor: &Actor) -> Result<(), Error> {
        let text = format!("{} takes a backup, which holds every key of this server", actor.name);
        self.store.note(NewEvent::new(self.now(), "server.backup", &actor.name, text)).await?;
        if let Some(begun) = Begun::present() {
            let entry = Entry { at: self.now(), outcome: DONE.to_owned(), ..begun.entry() };
            self.store.conclude(&begun, Some(entry)).await?;
            self.tell_audited();
        }
        Ok(())
    }

    /// Tells once that this server was restored, and from when it is.
    pub(super) async fn tell_restored(&self) -> Result<(), Error> {
        let Some(restored) = self.store.restored().await? else { return Ok(()) };
        let mark = mark(restored);
        if self.store.recall(TOLD).await?.as_ref() == Some(&mark) {
            return Ok(());
        }
        let text = format!(
            "this server was restored from a backup of {}; devices keep what they run until somebody decides what is wanted",
            time(restored.made_at)
        );
        tracing::warn!("{text}");
        self.store.note(NewEvent::new(self.now(), "server.restored", "server", text)).await?;
        Ok(self.store.remember(TOLD, mark).await?)
    }

    /// Finds out whether this server was restored and nobody has decided since then. What was wanted at the time of the backup
    /// may be older than what devices run, and none of them is moved back without a person who says so.
    pub(super) async fn come_back(&self) -> Result<(), Error> {
        let Some(restored) = self.store.restored().await? else { return Ok(()) };
        let mark = mark(restored);
        let is = |held: Option<Vec<u8>>| held.as_deref() == Some(mark.as_slice());
        if is(self.store.recall(RECOUNTED).await?) {
            return Ok(());
        }
        // Somebody did, and the power went; and where there is no device, there is nothing to decide.
        if is(self.store.recall(DECIDED).await?) || self.store.clients().await?.is_empty() {
            return self.recount(restored).await;
        }
        self.desired.set_returning(true);
        Ok(())
    }

    /// Says what has to be decided, where nothing else has to be already.
    pub(super) async fn hold_what_was_restored(&self) -> Result<(), Error> {
        let Some(restored) = self.store.restored().await? else { return Ok(()) };
        if self.desired.is_returning() && self.desired.conflict().is_none() {
            let since = match self.desired.following() {
                None => "Push the commits that were made since, if there is a clone that has them",
                Some(_) => "The next commit of the remote that can be applied counts",
            };
            let message = format!(
                "this server was restored from a backup of {} and does not know what was wanted since. Devices keep what \
                 they run. {since}; or `margrave intent resolve --keep` goes on with what was wanted then",
                time(restored.made_at)
            );
            self.desired.hold(Conflict { message, flaws: Vec::new() });
        }
        Ok(())
    }

    /// What is wanted is decided. A server that was restored gives it to its devices from now on.
    pub(super) async fn go_on(&self) -> Result<(), Error> {
        if !self.desired.is_returning() {
            return Ok(());
        }
        let Some(restored) = self.store.restored().await? else { return Ok(()) };
        self.store.remember(DECIDED, mark(restored)).await?;
        self.recount(restored).await?;
        self.desired.set_returning(false);
        self.finish_moves("server").await?;
        self.settle_or_log().await;
        self.rollouts_may_move();
        Ok(())
    }

    /// Lets every device tell again what it told a past that this server has lost. Devices that saw their manifest before it was
    /// backed up would have no reason to, and a removal that was confirmed since would be waited for for ever.
    async fn recount(&self, restored: Restored) -> Result<(), Error> {
        let clients: Vec<ClientId> = self.store.clients().await?.into_iter().map(|known| known.id).collect();
        // One that is asked twice because this was cut off says the same again.
        for some in clients.chunks(RENUMBERED_TOGETHER) {
            let version = |picture: &ClientPicture| {
                let above = picture.version_floor.checked_add(RENUMBERED_BY)?;
                Some(above.max(restored.restored_at.0 / 1000))
            };
            self.renumber(some.iter().cloned().collect(), version).await?;
        }
        Ok(self.store.remember(RECOUNTED, mark(restored)).await?)
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
