//! What the fleet knows about the authority behind its certificates.

use margrave_store::NewEvent;

use super::{Actor, Error, Fleet};

impl Fleet {
    /// How many accepted clients have a certificate whose serial begins otherwise than with `prefix`.
    pub(crate) async fn certificates_besides(&self, prefix: &str) -> Result<u64, Error> {
        Ok(self.store.svids_besides(prefix).await?)
    }

    /// Writes down what somebody did with the authority.
    pub(crate) async fn note_authority(
        &self,
        actor: &Actor,
        kind: &'static str,
        text: String,
    ) -> Result<(), Error> {
        Ok(self.store.note(NewEvent::new(self.now(), kind, &actor.name, text)).await?)
    }
}
