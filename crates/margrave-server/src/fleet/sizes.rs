//! How much devices fetch of packages that came in before that was kept, or whose registries did not tell it then.
//!
//! It is asked for when a package is looked at anyway (`origin.rs`), a little with each look and always by digest: what is filled
//! in is how large something is, and never what it is. So no pin and no document changes.

use std::collections::BTreeMap;
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::id::{PackageId, PackageVersion};
use margrave_core::image::Unpinned;
use margrave_oci::reference::Reference;
use tokio::time::Instant;

use super::catalog::{Entry, size_of};
use super::images::{ANSWER_TIME_MAX, Parts};
use super::origin::pinned_at;
use super::{Error, Fleet};

/// With one look at a package. Unlike whether something is there, how large it is has to be fetched to be known, and public
/// registries allow that only so often.
const ASKED_MAX: usize = 10;
/// With one look, however many registries drag.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Something of a package that devices fetch and whose size is not known.
enum Wanting {
    /// Under its reference.
    Component(String),
    Image(Digest),
}

#[derive(Default)]
struct Found {
    components: BTreeMap<String, u64>,
    images: BTreeMap<Digest, Parts>,
}

impl Fleet {
    /// Finds out sizes of a package that are not known, as far as its registries tell them in time.
    pub(super) async fn fill_in_sizes(&self, id: &PackageId, version: &PackageVersion) -> Result<(), Error> {
        let Some(entry) = self.entry(id, version).await? else { return Ok(()) };
        let wanting = self.wanting(&entry);
        if wanting.is_empty() {
            return Ok(());
        }
        let Found { components, images } = self.find_sizes(wanting).await?;
        if components.is_empty() && images.is_empty() {
            return Ok(());
        }
        self.store.put_sizes(id, version, components, images).await?;
        self.catalog.forget(&[(id.clone(), version.clone())].into());
        Ok(())
    }

    /// By where it is fetched.
    fn wanting(&self, entry: &Entry) -> BTreeMap<String, (Reference, Wanting)> {
        let mut wanting = BTreeMap::new();
        for component in entry.package.profiles.iter().flat_map(|profile| &profile.components) {
            if let (None, Some(pinned)) = (entry.size(component), pinned_at(entry, component)) {
                let what =
                    Wanting::Component(format!("{}:{}", component.repository, component.revision.as_str()));
                wanting.insert(pinned.to_string(), (pinned, what));
            }
        }
        for (name, image) in &entry.record.images.known {
            if let (Some(digest), true, Ok(reference)) =
                (image.digest, image.parts.is_empty(), self.image_reference(name))
            {
                let pinned = reference.pinned(digest);
                wanting.insert(pinned.to_string(), (pinned, Wanting::Image(digest)));
            }
        }
        wanting
    }

    async fn find_sizes(&self, wanting: BTreeMap<String, (Reference, Wanting)>) -> Result<Found, Error> {
        let open = self.open_registries().await?;
        let until = Instant::now() + TIME_MAX;
        let mut found = Found::default();
        let mut asked = 0;
        for (at, (pinned, what)) in wanting {
            let host = &pinned.repository.host;
            let now = Instant::now();
            let is_elsewhere = !host.is_own_registry();
            // Whoever did not tell it a while ago is not asked by the minute.
            if is_elsewhere
                && (!self.may_ask(host, &open)
                    || self.silent.has(host, now)
                    || self.size_looks.heard(&at, self.now()).is_some())
            {
                continue;
            }
            if asked == ASKED_MAX || until <= now {
                break;
            }
            asked += 1;
            let answer_by = now + ANSWER_TIME_MAX;
            let looking = self.look_at_size(&pinned, what, &mut found);
            match tokio::time::timeout_at(until.min(answer_by), looking).await {
                Ok(Ok(is_known)) => self.size_looks.note(&at, self.now(), is_known),
                Ok(Err(why)) => {
                    tracing::debug!(%host, %why, "the size of something could not be asked for");
                    match why {
                        Unpinned::Unanswered(_) => self.silent.note(host, Instant::now()),
                        _ => self.size_looks.note(&at, self.now(), false),
                    }
                }
                // One that had less than its time may only be slow.
                Err(_) if answer_by <= until => self.silent.note(host, Instant::now()),
                Err(_) => {}
            }
        }
        Ok(found)
    }

    /// Whether it could be told from what lies there.
    async fn look_at_size(
        &self,
        pinned: &Reference,
        what: Wanting,
        found: &mut Found,
    ) -> Result<bool, Unpinned> {
        match what {
            Wanting::Component(name) => {
                let (_, manifest) = self.image_manifest(pinned).await?;
                let size = size_of(&manifest);
                found.components.extend(size.map(|size| (name, size)));
                Ok(size.is_some())
            }
            Wanting::Image(digest) => {
                let (_, parts) = self.look_at_image(pinned).await?;
                let is_known = !parts.is_empty();
                if is_known {
                    found.images.insert(digest, parts);
                }
                Ok(is_known)
            }
        }
    }
}
