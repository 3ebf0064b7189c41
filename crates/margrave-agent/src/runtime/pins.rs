//! Which images a component's services run by, for as long as what is ordered stays the same.
//!
//! An image's name is a tag: anybody can give it to another image, on the device or in a registry. What was healthy once
//! is mended with the images that it was healthy with; only another order looks names up again.

use std::collections::BTreeMap;

use margrave_core::digest::Digest;
use margrave_core::report::Failure;

use super::compose::ComposeRuntime;
use super::engine::Engine;
use super::model::Service;
use super::project::{ImageNote, ProjectDirectory, Record};

/// What an order ran by when it was healthy here.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    /// Ids, by the services' names.
    ids: BTreeMap<String, String>,
    notes: BTreeMap<String, ImageNote>,
}

impl Remembered {
    pub(super) fn of(directory: &ProjectDirectory, fingerprint: Digest) -> Remembered {
        let Some(record) = directory.record() else {
            let aside = directory.aside().into_iter().find(|fetched| fetched.fingerprint == fingerprint);
            let ids = aside.map(|fetched| fetched.image_ids).unwrap_or_default();
            return Remembered { ids, notes: BTreeMap::new() };
        };
        let noted = |(name, service): (&String, &super::project::Service)| {
            Some((name.clone(), service.image_note.filter(|_| record.fingerprint == fingerprint)?))
        };
        Remembered {
            ids: record.image_ids_of(fingerprint).unwrap_or_default(),
            notes: record.services.iter().filter_map(noted).collect(),
        }
    }
}

impl ComposeRuntime {
    /// Sees to it that the service's image is here: the one that it ran by, where it did and that can be had.
    pub(super) async fn provide_image(
        &self,
        engine: &Engine,
        name: &str,
        service: &mut Service,
        remembered: &Remembered,
    ) -> Result<(), Failure> {
        let image = service.image.clone();
        service.note = remembered.notes.get(name).copied();
        let id = remembered.ids.get(name);
        if let Some(id) = id
            && engine.has_image(&by_id(id)).await?
        {
            let moved = engine.image_id(&image).await?.as_ref() != Some(id);
            if moved {
                tracing::warn!(service = name, %image, id, "the image's name means another one here now; the one that ran is used");
            }
            // Once it is so it stays so: Compose makes a container anew whose image is written in another way.
            if moved || service.note == Some(ImageNote::Pinned) {
                service.note = Some(ImageNote::Pinned);
                service.pin = Some(by_id(id));
            }
            service.image_id = Some(id.clone());
            return Ok(());
        }
        self.fetch_image(engine, service).await?;
        service.image_id = engine.image_id(&image).await?;
        service.note = match id {
            None => None,
            Some(id) if service.image_id.as_ref() == Some(id) => None,
            Some(id) => {
                tracing::warn!(service = name, %image, id, "the image that ran is gone, and its name means another one now; that one is used");
                Some(ImageNote::Replaced)
            }
        };
        Ok(())
    }
}

fn by_id(id: &str) -> String {
    format!("sha256:{id}")
}

/// What a person should know about the images of a component.
pub(super) fn remarks(record: &Record) -> impl Iterator<Item = String> {
    record.services.iter().filter_map(|(name, service)| {
        let component = &record.component;
        let image = service.image.as_deref().unwrap_or_default();
        Some(match service.image_note? {
            ImageNote::Pinned => format!(
                "{component}: {name} goes on with the image that it was installed with; {image} was given to another one"
            ),
            ImageNote::Replaced => format!(
                "{component}: the image that {name} was installed with is gone; it runs by what {image} means now"
            ),
        })
    })
}
