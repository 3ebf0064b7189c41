//! The same manifest under a higher number, for clients that hold a later one than this server remembers.

use std::collections::BTreeSet;

use margrave_core::id::ClientId;
use margrave_core::manifest::Manifest;
use margrave_store::{ClientPicture, ClientPublication, NewEvent, NewManifest, Publication};

use super::{ATTEMPTS_MAX, Unpublished};
use crate::fleet::{Error, Fleet};

impl Fleet {
    /// Publishes the same manifest again above the version that the client holds: this server was restored from a
    /// backup, and the client rightly refuses what is older (open point 3).
    pub(in crate::fleet) async fn leap(&self, client: &ClientId) -> Result<(), Error> {
        if self.desired.is_returning() {
            return Ok(());
        }
        self.renumber([client.clone()].into(), |picture| {
            let version = picture.version_floor.saturating_add(1);
            (picture.version_floor > picture.manifest.version()).then_some(version)
        })
        .await
    }

    /// Publishes the manifests of these clients again, under the number that `number` gives them, if any.
    pub(in crate::fleet) async fn renumber(
        &self,
        clients: BTreeSet<ClientId>,
        number: impl Fn(&ClientPicture) -> Option<u64>,
    ) -> Result<(), Error> {
        let _deciding = self.deciding.write().await;
        for attempt in 1.. {
            let pictures = self.pictures(clients.clone()).await?;
            let at = self.now();
            let mut publication = Publication { at, ..Default::default() };
            for picture in pictures.0.values() {
                let Some(version) = number(picture) else { continue };
                let (client, was) = (&picture.client, picture.manifest.version());
                let manifest = renumbered(picture, version)?;
                if picture.version_floor > was {
                    let text = format!(
                        "{client} holds manifest version {}, this server was at {was}: continued at {version}",
                        picture.version_floor,
                    );
                    publication.events.push(NewEvent::new(at, "device.ahead", "server", text));
                }
                publication.clients.push(ClientPublication {
                    client: client.clone(),
                    expected: was,
                    manifest: Some(NewManifest {
                        replaces: picture.manifest.entries().to_vec(),
                        body: picture.dialect.manifest(client, &manifest),
                        manifest,
                        bundle: None,
                        documents: Vec::new(),
                    }),
                    assignments: Vec::new(),
                });
            }
            if publication.clients.is_empty() {
                return Ok(());
            }
            match self.publish(publication, Vec::new()).await {
                Err(Unpublished::Moved) if attempt < ATTEMPTS_MAX => {}
                done => return Ok(done?),
            }
        }
        unreachable!("the last attempt returns")
    }
}

/// The current manifest, numbered so that the next one is above everything that the client ever held.
pub(super) fn floor(picture: &ClientPicture) -> Result<Manifest, Error> {
    renumbered(picture, picture.version_floor)
}

/// The same under another number, asking for all that is not known to be gone.
fn renumbered(picture: &ClientPicture, version: u64) -> Result<Manifest, Error> {
    let manifest = &picture.manifest;
    let renumbered = Manifest::new(version, manifest.bundle(), manifest.entries().to_vec())
        .map_err(|error| Error::conflict(error.to_string()))?;
    let leaving = picture.assignments.iter().filter(|held| !held.wanted).map(|held| held.id);
    let renumbered = renumbered.with_schedule(manifest.schedule().clone()).with_leaving(leaving);
    Ok(renumbered.with_asked(manifest.asked().clone()))
}
