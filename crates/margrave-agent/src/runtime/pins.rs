//! Which images a component's services run by, for as long as what is ordered stays the same.
//!
//! An image's name is a tag: anybody can give it to another image, on the device or in a registry. Where the order says what a name
//! means, that is what runs, whatever the name means here. Otherwise what was healthy once is mended with the images that it was
//! healthy with; only another order looks names up again.

use std::collections::BTreeMap;

use margrave_core::digest::Digest;
use margrave_core::image::OWN_REGISTRY_VARIABLES;
use margrave_core::report::{Failure, FailureCode};

use super::compose::ComposeRuntime;
use super::engine::{Engine, split_image};
use super::model::{Model, Pull, Service};
use super::project::ProjectDirectory;
use super::record::{ImageNote, Record};

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
        let noted = |(name, service): (&String, &super::record::Service)| {
            Some((name.clone(), service.image_note.filter(|_| record.fingerprint == fingerprint)?))
        };
        Remembered {
            ids: record.image_ids_of(fingerprint).unwrap_or_default(),
            notes: record.services.iter().filter_map(noted).collect(),
        }
    }
}

/// Notes on each service what the order says that its image's name means. `registry` is where the server's registry is.
pub(super) fn note_exact(model: &mut Model, images: &BTreeMap<String, Digest>, registry: Option<&str>) {
    let spoken = |name: &String| {
        let own = OWN_REGISTRY_VARIABLES.iter().find_map(|variable| name.strip_prefix(variable));
        match (own, registry) {
            (Some(rest), Some(registry)) => format!("{registry}/{rest}"),
            _ => name.clone(),
        }
    };
    let images: BTreeMap<String, &Digest> =
        images.iter().map(|(name, digest)| (spoken(name), digest)).collect();
    for service in model.services.values_mut() {
        let exact = |digest: &&Digest| format!("{}@{digest}", split_image(&service.image).0);
        // One that is never pulled was put here by hand: another service that pulls the same name says nothing about it.
        let pulled = service.pull != Pull::Never;
        service.exact = images.get(&service.image).filter(|_| pulled).map(exact);
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
            let moved = engine.image_id(service.needed()).await?.as_ref() != Some(id);
            if !moved && let Some(exact) = &service.exact {
                service.pin = Some(exact.clone());
            }
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
        service.image_id = engine.image_id(service.needed()).await?;
        if let Some(exact) = &service.exact {
            if service.image_id.is_none() {
                let message = format!("The engine says that it pulled {exact}, and does not have it.");
                return Err(Failure::new(FailureCode::PullFailed, message));
            }
            service.pin = Some(exact.clone());
            service.note = None;
            return Ok(());
        }
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
            ImageNote::Pinned if image.contains('@') => {
                format!("{component}: {name} goes on with the image that it was installed with; somebody took away its name {image}")
            }
            ImageNote::Pinned => format!(
                "{component}: {name} goes on with the image that it was installed with; {image} was given to another one"
            ),
            ImageNote::Replaced => format!(
                "{component}: the image that {name} was installed with is gone; it runs by what {image} means now"
            ),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::model::Given;
    use super::*;

    #[test]
    fn names_of_images_are_found_as_the_server_and_the_device_write_them() {
        let image = |name: &str| json!({"image": name});
        let answer = json!({"services": {
            "a": image("nginx:1.27"), "b": image("nginx"), "c": image("127.0.0.1:5000/web:1"), "d": image("h:1/x/y"),
            "e": image("other:1"), "f": image("127.0.0.1:5000/web"),
            "g": {"image": "nginx", "pull_policy": "never"},
        }});
        let mut model = Model::read(
            answer.to_string().as_bytes(),
            Path::new("/archive"),
            Path::new("/mounts"),
            &Default::default(),
            &Given {
                variables: &Default::default(),
                archive: Digest::of(b"a"),
                project: "mg-1",
                was_healthy: false,
            },
        )
        .unwrap();
        let digest = Digest::of(b"x");
        let names =
            ["nginx:1.27", "nginx", "${MARGRAVE_REGISTRY}/web:1", "h:1/x/y", "$MARGRAVE_REGISTRY/web"];
        let images = names.map(|name| (name.to_owned(), digest)).into();
        note_exact(&mut model, &images, Some("127.0.0.1:5000"));
        let exact: Vec<Option<String>> =
            model.services.values().map(|service| service.exact.clone()).collect();
        let at = |repository: &str| Some(format!("{repository}@{digest}"));
        let (nginx, web) = (at("nginx"), at("127.0.0.1:5000/web"));
        assert_eq!(exact, [nginx.clone(), nginx, web.clone(), at("h:1/x/y"), None, web, None]);
        note_exact(&mut model, &images, None);
        assert_eq!(model.services["c"].exact, None, "nobody knows where that registry is");
    }
}
