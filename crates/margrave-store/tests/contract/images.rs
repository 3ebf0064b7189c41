//! What images mean: kept with a version of a package, and pinned later only where nothing was made without.

use std::collections::BTreeMap;

use margrave_core::digest::Digest;
use margrave_core::image::{Images, Part};
use margrave_store::*;

use crate::fixture::*;

const COMPONENT: &str = "oci://margrave/components/web:1.0.0";

async fn pin(world: &World, package: &PackageRecord, images: Images) -> Result<(), PublishError> {
    let (id, version) = (package.id.clone(), package.version.clone());
    let by = "operator ann".to_owned();
    world.want(Intent::PinImages { id, version, images: Box::new(images), by }).await
}

async fn kept(world: &World, package: &PackageRecord) -> Images {
    world.store.package(&package.id, &package.version).await.unwrap().unwrap().images
}

#[tokio::test]
async fn images_are_pinned_later_once_and_never_otherwise() {
    let world = World::new();
    let package = PackageRecord { images: images(COMPONENT, "web:1", None), ..package("hello", "1.0.0") };
    world.add_package(package.clone(), vec![]).await.unwrap();
    assert_eq!(kept(&world, &package).await, package.images);
    for digest in ["one", "two"] {
        pin(&world, &package, images(COMPONENT, "web:1", Some(digest))).await.unwrap();
        assert_eq!(kept(&world, &package).await, images(COMPONENT, "web:1", Some("one")), "a pin stays");
    }
}

#[tokio::test]
async fn sizes_are_filled_in_where_they_are_not_known_and_pin_nothing() {
    let world = World::new();
    let mut package =
        PackageRecord { images: images(COMPONENT, "web:1", Some("one")), ..package("hello", "1.0.0") };
    package.images.known.get_mut("web:1").unwrap().parts.clear();
    package.images.known.extend(images(COMPONENT, "db:1", None).known);
    package.sizes.insert("known".to_owned(), 7);
    world.add_package(package.clone(), vec![]).await.unwrap();
    let parts =
        |size| BTreeMap::from([("any".to_owned(), vec![Part { digest: Digest::of(b"layer"), size }])]);
    for size in [3, 4] {
        let components = [("known".to_owned(), size), ("other".to_owned(), size)].into();
        let found = BTreeMap::from([(Digest::of(b"one"), parts(size)), (Digest::of(b"two"), parts(size))]);
        world.store.put_sizes(&package.id, &package.version, components, found).await.unwrap();
    }
    let stored = world.store.package(&package.id, &package.version).await.unwrap().unwrap();
    package.sizes.insert("other".to_owned(), 3);
    package.images.known.get_mut("web:1").unwrap().parts = parts(3);
    assert_eq!(stored, package);
}

#[tokio::test]
async fn nothing_is_pinned_that_a_deployment_runs_without() {
    let world = World::new();
    world.join("line-1").await;
    world.deploy("hello", "line-1", b"doc").await;
    let app = package("app", "1.0.0");
    let before = kept(&world, &app).await;
    let used = pin(&world, &app, images(COMPONENT, "db:1", Some("db"))).await.unwrap_err();
    assert!(matches!(&used, PublishError::Package(PackageError::InUse(by)) if by == &["hello"]), "{used}");
    assert_eq!(kept(&world, &app).await, before);
}
