//! Images that could be pinned and are not, because their registries were away or slow when their package came in.
//!
//! Whoever deploys such a package first is the last one who can do something about it: what runs does not change behind anybody's
//! back, so a version that is in use stays as it is. So the registries are asked once more, what they say is pinned with the
//! change itself, and what still nobody knows is refused unless somebody says why it is to be so all the same. What can never be
//! pinned, and what this server does not ask about, is only warned of (`warning.rs`).

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::id::{DeploymentName, PackageId, PackageVersion, ProfileId};
use margrave_core::image::{Image, Images, Named, Unpinned};
use margrave_core::package::ProfileKind;
use margrave_core::violation::Violation;
use margrave_wire::operator;

use super::catalog::{Entry, Pulled, all_kept};
use super::draft::Overlay;
use super::images::{Asking, RULE, Uses};
use super::intent::Change;
use super::warning::{Coming, named};
use super::{Error, Fleet};

impl Fleet {
    /// What can be pinned now of packages that are wanted, as changes of their own; nothing is written. Only what nobody uses yet.
    pub(super) async fn pins_for(&self, changes: &[Change]) -> Vec<Change> {
        let mut found = Vec::new();
        // What comes in with these changes was asked about just now, or somebody says what it is.
        let mut known: BTreeSet<(PackageId, PackageVersion)> = changes
            .iter()
            .filter_map(|change| match change {
                Change::AddPackage(pulled) => Some((pulled.record.id.clone(), pulled.record.version.clone())),
                _ => None,
            })
            .collect();
        // For everything that comes in together, like a commit of many packages.
        let mut asking = Asking::default();
        for change in changes {
            let want: &operator::PutDeployment = match change {
                Change::PutDeployment { want, .. } | Change::PutFile { want, .. } => want,
                _ => continue,
            };
            let Ok(entry) = self.wanted_package(want, &Overlay::default()).await else { continue };
            if !known.insert((entry.record.id.clone(), entry.record.version.clone())) {
                continue;
            }
            match self.pinned_now(&entry, &mut asking).await {
                Ok(pulled) => found.extend(pulled.map(|pulled| Change::AddPackage(Box::new(pulled)))),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, package = %entry.record.id, "images could not be asked about again");
                }
            }
        }
        found
    }

    async fn pinned_now(&self, entry: &Entry, asking: &mut Asking) -> Result<Option<Pulled>, Error> {
        let open = self.open_images(entry, None).await?;
        if open.is_empty() {
            return Ok(None);
        }
        let names = open.into_keys().map(|name| (name, Named::ByTag)).collect();
        let asked = Uses::from([(String::new(), names)]);
        let later = self.find_images(&asked, &BTreeMap::new(), asking).await?;
        if later.known.values().all(|image| image.digest.is_none()) {
            return Ok(None);
        }
        let mut record = entry.record.clone();
        record.images = record.images.with_later(&Images { named: BTreeMap::new(), known: later.known });
        Ok(Some(Pulled { record, resources: Vec::new(), pinning: false }))
    }

    /// Refuses what would run whatever its name means to each device by the time that it asks, although it could be pinned.
    pub(super) async fn check_pinned(
        &self,
        comings: &[Coming],
        place: impl Fn(&DeploymentName) -> String,
    ) -> Result<(), Error> {
        let mut broken = Vec::new();
        for coming in comings.iter().filter(|coming| !coming.is_excused) {
            let mut open = self.open_images(&coming.entry, coming.profile.as_ref()).await?;
            // What a registry does not have, or refuses to tell, no waiting mends: that is what a warning is for.
            open.retain(|_, why| matches!(why, Unpinned::Unanswered(_)));
            if open.is_empty() {
                continue;
            }
            let told: Vec<String> = open.into_iter().map(|(name, why)| format!("{name} ({why})")).collect();
            let record = &coming.entry.record;
            let message = format!(
                "what these images of {} {} are is not known, and each device would run whatever it is given under their names: {}; \
                 try again when the registry answers, name them by digest, or say under `force` why it is to be wanted all the \
                 same",
                record.id,
                record.version,
                named(&told)
            );
            broken.push(Violation::new(place(&coming.name), RULE, message));
        }
        all_kept(broken)
    }

    /// The images of a package that could be pinned and are not, each with why, as far as a profile has them. None of a version
    /// that is in use: it is too late for that one.
    async fn open_images(
        &self,
        entry: &Entry,
        profile: Option<&ProfileId>,
    ) -> Result<BTreeMap<String, Unpinned>, Error> {
        let record = &entry.record;
        let can_be_pinned = record.images.unpinned().any(|(_, unpinned)| unpinned.is_passing());
        if !can_be_pinned || !self.store.package_keepers(&record.id, &record.version).await?.is_empty() {
            return Ok(BTreeMap::new());
        }
        let told_of = self.open_registries().await?;
        let profiles = entry.package.profiles.iter().filter(|own| {
            own.kind == ProfileKind::Compose && profile.is_none_or(|profile| *profile == own.id)
        });
        let components = profiles.flat_map(|profile| &profile.components);
        let images = components.filter_map(|component| entry.images(component)).flatten();
        let open = images.filter_map(|(name, image)| match image {
            Some(Image { unpinned: Some(why), .. })
                if why.is_passing() && self.is_asked_about(name, &told_of) =>
            {
                Some((name.to_owned(), why.clone()))
            }
            _ => None,
        });
        Ok(open.collect())
    }

    /// Whether a registry is asked about an image.
    fn is_asked_about(&self, name: &str, told_of: &BTreeSet<String>) -> bool {
        let Ok(reference) = self.image_reference(name) else { return false };
        let host = &reference.repository.host;
        host.is_own_registry() || self.may_ask(host, told_of)
    }
}
