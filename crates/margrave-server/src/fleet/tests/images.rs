//! Images that packages name: pinned when a package comes in, whatever their names mean later.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use margrave_core::id::{PackageId, PackageVersion};
use margrave_oci::manifest::{IMAGE_INDEX, ImageIndex, Platform};
use margrave_registry::{Action, Decision};
use margrave_wire::intent::{Apply, Fetch, pin_words};

use super::super::desired::FileChange;
use super::*;

/// A registry of its own, on this machine, in plain HTTP.
async fn registry() -> (Registry, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path().join("registry")).unwrap();
    let open = |_: &http::request::Parts, _: Action, _: Option<&RepositoryName>| Decision::Allow;
    let address = serve(margrave_registry::router(registry.clone(), open)).await;
    (registry, address, folder)
}

pub(super) async fn serve(router: Router) -> String {
    serve_at("127.0.0.1:0", router).await
}

async fn serve_at(address: &str, router: Router) -> String {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// An image of these layers; each has as many bytes as its text.
pub(super) async fn push_image(registry: &Registry, name: &str, layers: &[&str]) -> Descriptor {
    let (repository, tag) = name.split_once(':').unwrap();
    let repository = RepositoryName::parse(repository).unwrap();
    let described = layers.iter().map(|layer| Descriptor::of("application/octet-stream", layer.as_bytes()));
    let manifest = ImageManifest::artifact("application/vnd.test", described.collect());
    for blob in layers.iter().map(|layer| layer.as_bytes()).chain([EMPTY_CONFIG]) {
        registry.put_blob(&repository, Bytes::copy_from_slice(blob)).await.unwrap();
    }
    let bytes = Bytes::from(manifest.to_bytes());
    let tag = TagOrDigest::Tag(Tag::parse(tag).unwrap());
    registry.put_manifest(&repository, &tag, IMAGE_MANIFEST, bytes.clone()).await.unwrap();
    Descriptor::of(IMAGE_MANIFEST, &bytes)
}

/// Several images under one name, by processor.
pub(super) async fn push_index(registry: &Registry, name: &str, images: &[(&str, Descriptor)]) -> Digest {
    let made = images.iter().map(|(processor, image)| Descriptor {
        platform: Some(Platform { os: "linux".into(), architecture: (*processor).into(), variant: None }),
        ..image.clone()
    });
    let bytes = Bytes::from(ImageIndex::of(made.collect()).to_bytes());
    let (repository, tag) = name.split_once(':').unwrap();
    let repository = RepositoryName::parse(repository).unwrap();
    let tag = TagOrDigest::Tag(Tag::parse(tag).unwrap());
    registry.put_manifest(&repository, &tag, IMAGE_INDEX, bytes.clone()).await.unwrap();
    Digest::of(&bytes)
}

impl World {
    /// The package hello at a version, whose one component has services with these images.
    pub(super) async fn push_services(&self, version: &str, services: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        let service = |(index, service): (usize, &&str)| format!("  s{index}: {{{service}}}\n");
        let services: String = services.iter().enumerate().map(service).collect();
        std::fs::write(folder.path().join("compose.yaml"), format!("services:\n{services}")).unwrap();
        let archive = ComposeArchive::build(folder.path(), "web").unwrap();
        let layer = Descriptor::of(COMPOSE_LAYER_TYPE, archive.bytes());
        let web = ImageManifest::artifact(COMPOSE_TYPE, vec![layer]);
        self.push_manifest("components/web", version, &web, &[archive.bytes()]).await;
        let layer = Descriptor::of("application/vnd.cncf.helm.chart.content.v1.tar+gzip", b"chart");
        let chart = ImageManifest::artifact("application/vnd.cncf.helm.config.v1+json", vec![layer]);
        self.push_manifest("components/chart", version, &chart, &[b"chart"]).await;
        let description = description(version).replace("revision: 1.0.0", &format!("revision: {version}"));
        self.push(version, &description).await;
    }

    pub(super) async fn add_services(&self, version: &str, services: &[&str]) -> operator::Package {
        self.push_services(version, services).await;
        self.add(&format!("oci://margrave/packages/hello:{version}")).await.unwrap()
    }

    /// What the device's only document says of images.
    async fn pinned(&self, on: &str) -> BTreeMap<String, String> {
        let workload = self.workloads(on).await.remove(0);
        let images = workload.hints.images.into_values().flatten();
        images.map(|(name, digest)| (name, digest.to_string())).collect()
    }

    async fn foreseen(&self, version: &str, devices: &[&str]) -> Fetch {
        let mut want = on(devices);
        want.version = Some(version.into());
        let mut plan = self.fleet.rehearse_deployment(&ann(), &name("greeter"), want).await.unwrap();
        assert_eq!(plan.fetches.len(), 1, "{plan:?}");
        plan.fetches.remove(0)
    }
}

fn key(version: &str) -> (PackageId, PackageVersion) {
    (PackageId::parse("hello").unwrap(), PackageVersion::parse(version).unwrap())
}

#[tokio::test]
async fn pk_053_a_tag_that_moves_after_publishing_changes_nothing() {
    let world = World::empty().await;
    let (elsewhere, address, _folder) = registry().await;
    let first = push_image(&elsewhere, "plant/web:1", &["one"]).await.digest.to_string();
    let own = push_image(&world.registry, "plant/own:1", &["own"]).await.digest.to_string();
    let (image, ours) = (format!("{address}/plant/web:1"), "${MARGRAVE_REGISTRY}/plant/own:1".to_owned());
    let services = [format!("image: '{image}'"), format!("image: '{ours}'"), format!("image: '{image}'")];
    let services = services.each_ref().map(String::as_str);
    let added = world.add_services("1.0.0", &services).await;
    let shown: BTreeMap<String, String> =
        added.images.iter().map(|image| (image.name.clone(), image.digest.clone().unwrap())).collect();
    let expected = BTreeMap::from([(image.clone(), first.clone()), (ours, own)]);
    assert_eq!(shown, expected);
    let file = world.file("packages/hello/1.0.0.yaml").await.unwrap();
    assert!(file.contains(&first) && file.contains(&image), "the commit says everything: {file}");
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    assert_eq!(world.pinned("line-1").await, expected);
    let document = world.workloads("line-1").await;

    let second = push_image(&elsewhere, "plant/web:1", &["other"]).await.digest.to_string();
    assert_ne!(first, second);
    let again = world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
    assert_eq!(again.images, added.images, "a pin stays");
    let world = world.restarted().await;
    world.device("line-2", &[]).await;
    world.put("greeter", on(&["line-1", "line-2"])).await.unwrap();
    assert_eq!(world.pinned("line-2").await, expected, "the second device runs what the first does");
    assert_eq!(world.workloads("line-1").await, document);
    let next = world.add_services("2.0.0", &services).await;
    assert!(next.images.iter().any(|image| image.digest.as_ref() == Some(&second)), "{next:?}");
}

#[tokio::test]
async fn what_cannot_be_asked_about_is_told_and_blocks_nothing() {
    let world = World::empty().await;
    let exact = format!("registry.example/a@{}", Digest::of(b"x"));
    let services = [
        "image: 'margrave.invalid/web:${TAG}'",
        "image: 'only-here:1', pull_policy: never",
        "image: 'registry.example/far:1'",
        "image: 'NOT/a name'",
        "image: '${MARGRAVE_REGISTRY}/none:1'",
        &format!("image: '{exact}'"),
    ];
    let added = world.add_services("1.0.0", &services).await;
    let told = |name: &str| {
        let image = added.images.iter().find(|image| image.name == name).unwrap();
        assert_eq!(image.digest, None, "{name}");
        image.unpinned.clone().unwrap()
    };
    assert!(told("margrave.invalid/web:${TAG}").contains("variable"));
    assert!(told("only-here:1").contains("only taken from the device"));
    assert!(told("registry.example/far:1").contains("asks no registries elsewhere"));
    assert!(told("NOT/a name").contains("is not a repository name"), "{}", told("NOT/a name"));
    assert!(told("${MARGRAVE_REGISTRY}/none:1").contains("push it there first; add the package again"));
    let named = added.images.iter().find(|image| image.name == exact).unwrap();
    assert_eq!(named.digest, Some(Digest::of(b"x").to_string()), "it says itself what it is");
    world.real_device("line-1").await;
    let answer = world.put("greeter", on(&["line-1"])).await.unwrap();
    let [warning] = &answer.warnings[..] else { panic!("{answer:?}") };
    assert_eq!(warning.kind, "imageUnpinned");
    let text = &warning.text;
    assert!(text.starts_with("what is not pinned is whatever its name means to each device: "), "{text}");
    assert!(text.contains("only-here:1 (it is never pulled, only taken from the device)"), "{text}");
    assert!(!text.contains(&exact), "{text}");
    let commit = world.fleet.intent().await.unwrap().commit.unwrap();
    assert_eq!(world.fleet.warnings_of_commit(&commit).await.unwrap(), answer.warnings);
    let plan = world.fleet.rehearse_deployment(&ann(), &name("other"), on(&["line-1"])).await.unwrap();
    assert_eq!(plan.warnings[0].text, *text);
    world.device("line-2", &[]).await;
    let put = world.put("pretended", on(&["line-2"])).await.unwrap();
    assert_eq!(put.warnings, [], "nobody fetches what is only simulated");
    assert!(world.pinned("line-1").await.is_empty(), "documents say nothing of what is not pinned");
    let fetch = world.foreseen("1.0.0", &["line-1", "line-2"]).await;
    assert_eq!(fetch.unknown_images.len(), 6, "{fetch:?}");
}

#[tokio::test]
async fn what_could_be_pinned_and_is_not_is_asked_for_again_and_then_refused_unless_forced() {
    let world = World::empty().await;
    world.real_device("line-1").await;
    // A registry that is away at first, and one that stays away.
    let bound = [("127.0.0.1", 0); 2].map(|address| std::net::TcpListener::bind(address).unwrap());
    let [address, gone] = bound.map(|listener| listener.local_addr().unwrap().to_string());
    let image = format!("{address}/plant/web:1");
    let added = world.add_services("1.0.0", &[&format!("image: '{image}'")]).await;
    assert!(added.images[0].unpinned.is_some(), "{added:?}");
    let of = |version: &str| operator::PutDeployment { version: Some(version.into()), ..on(&["line-1"]) };
    let refused = world.put("greeter", of("1.0.0")).await.unwrap_err();
    let foreseen = world.fleet.rehearse_deployment(&ann(), &name("greeter"), of("1.0.0")).await.unwrap_err();
    for refused in [refused, foreseen] {
        let Error::Invalid(violations) = &refused else { panic!("{refused}") };
        assert_eq!((violations[0].place.as_str(), violations[0].rule), ("/version", "PK-053"));
        assert!(violations[0].message.contains(&image), "{violations:?}");
        assert!(violations[0].message.contains("say under `force`"), "{violations:?}");
    }
    assert!(world.workloads("line-1").await.is_empty());

    // Back again, it is asked with the deployment, and pinned with it.
    let (elsewhere, _, _folder) = registry().await;
    let digest = push_image(&elsewhere, "plant/web:1", &["one"]).await.digest.to_string();
    let open = |_: &http::request::Parts, _: Action, _: Option<&RepositoryName>| Decision::Allow;
    serve_at(&address, margrave_registry::router(elsewhere, open)).await;
    let plan = world.fleet.rehearse_deployment(&ann(), &name("greeter"), of("1.0.0")).await.unwrap();
    assert_eq!(plan.warnings, [], "a rehearsal asks as well");
    assert!(!world.file("packages/hello/1.0.0.yaml").await.unwrap().contains(&digest), "and writes nothing");
    let put = world.put("greeter", of("1.0.0")).await.unwrap();
    assert_eq!(put.warnings, []);
    assert_eq!(world.pinned("line-1").await, BTreeMap::from([(image, digest.clone())]));
    assert!(world.file("packages/hello/1.0.0.yaml").await.unwrap().contains(&digest));

    // Somebody says why; from then on the version is in use as it is, and others are only told.
    world.add_services("2.0.0", &[&format!("image: '{gone}/plant/web:1'")]).await;
    assert!(world.put("other", of("2.0.0")).await.is_err());
    let forced = operator::PutDeployment { force: Some("the line stands".into()), ..of("2.0.0") };
    let put = world.put("other", forced).await.unwrap();
    assert_eq!(
        put.warnings.iter().map(|warning| warning.kind.as_str()).collect::<Vec<_>>(),
        ["imageUnpinned"]
    );
    let put = world.put("third", of("2.0.0")).await.unwrap();
    assert_eq!(put.warnings.len(), 1, "{put:?}");
}

#[tokio::test]
async fn what_was_not_pinned_is_pinned_later_unless_something_runs_without() {
    let world = World::empty().await;
    let image = "${MARGRAVE_REGISTRY}/plant/late:1";
    let services = [&*format!("image: '{image}'")];
    for version in ["1.0.0", "2.0.0"] {
        let added = world.add_services(version, &services).await;
        assert!(added.images[0].unpinned.is_some(), "{added:?}");
    }
    world.real_device("line-1").await;
    let mut want = on(&["line-1"]);
    want.version = Some("1.0.0".into());
    world.put("greeter", want.clone()).await.unwrap();
    let document = world.workloads("line-1").await;

    let late = push_image(&world.registry, "plant/late:1", &["late"]).await.digest.to_string();
    let used = world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
    let why = used.images[0].unpinned.clone().unwrap();
    assert!(why.contains("only a new version can be pinned"), "{why}");
    assert!(
        why.contains("was not in this server's registry when the package was added, and is there now"),
        "{why}"
    );
    want.targets.devices.push("line-2".into());
    world.device("line-2", &[]).await;
    let told = world.put("greeter", want).await.unwrap().warnings;
    assert!(told[0].text.contains(&format!("{image} ({why})")) && !told[0].text.contains("push"), "{told:?}");
    assert_eq!(world.workloads("line-1").await, document, "nothing changed behind it");

    let unused = world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    assert_eq!(unused.images[0].digest.as_deref(), Some(late.as_str()));
    let file = world.file("packages/hello/2.0.0.yaml").await.unwrap();
    assert!(file.contains(&late), "{file}");
    // From the store, and not from memory.
    let world = world.restarted().await;
    let (id, version) = key("2.0.0");
    assert_eq!(world.fleet.package(&id, &version).await.unwrap().images, unused.images);
    let mut want = on(&["line-1"]);
    want.version = Some("2.0.0".into());
    world.put("greeter", want).await.unwrap();
    assert_eq!(world.pinned("line-1").await, BTreeMap::from([(image.to_owned(), late)]));
}

#[tokio::test]
async fn what_can_be_gone_back_to_is_not_pinned_later() {
    let world = World::empty().await;
    let services = ["image: '${MARGRAVE_REGISTRY}/plant/late:1'"];
    for version in ["1.0.0", "2.0.0"] {
        world.add_services(version, &services).await;
    }
    let of = |version: &str, strategy: Option<serde_json::Value>| operator::PutDeployment {
        version: Some(version.into()),
        strategy: strategy.map(|strategy| serde_json::from_value(strategy).unwrap()),
        ..on(&["line-1", "line-2"])
    };
    for device in ["line-1", "line-2"] {
        world.device(device, &[]).await;
    }
    world.put("greeter", of("1.0.0", None)).await.unwrap();
    for device in ["line-1", "line-2"] {
        world.report("greeter", device, State::Installed).await;
    }
    let documents = world.workloads("line-2").await;
    // One has the new version; the other waits, and has the old one.
    world.put("greeter", of("2.0.0", Some(json!({ "batches": ["1"] })))).await.unwrap();
    assert_eq!(world.workloads("line-2").await, documents, "it waits");
    let (id, version) = key("1.0.0");
    let held = world.fleet.remove_package(&ann(), &id, &version).await.unwrap_err();
    assert!(matches!(&held, Error::InUse { by, .. } if by == &["greeter"]), "{held}");

    push_image(&world.registry, "plant/late:1", &["late"]).await;
    let again = world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
    assert!(again.images[0].digest.is_none(), "{again:?}");
    let why = again.images[0].unpinned.clone().unwrap();
    assert!(why.contains("only a new version can be pinned"), "{why}");
    // Also when everybody has the new one: there is a way back.
    for device in ["line-1", "line-2"] {
        world.report("greeter", device, State::Installed).await;
        world.fleet.advance_rollouts().await.unwrap();
    }
    assert_ne!(world.workloads("line-2").await, documents, "it has the new one");
    let again = world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
    assert!(again.images[0].digest.is_none(), "{again:?}");
    world.fleet.revert(&ann(), &name("greeter"), 1, None).await.unwrap();
    assert_eq!(world.workloads("line-2").await, documents, "the same bytes as before");
}

#[tokio::test]
async fn a_rehearsal_counts_what_the_device_does_not_have_for_the_processor_it_has() {
    let world = World::empty().await;
    let (elsewhere, address, _folder) = registry().await;
    let base = "b".repeat(10_000);
    let large = push_image(&elsewhere, "plant/web:arm", &[&"a".repeat(500_000)]).await;
    let small = push_image(&elsewhere, "plant/web:amd", &[&base, "one"]).await;
    push_index(&elsewhere, "plant/web:1", &[("arm64", large.clone()), ("amd64", small)]).await;
    let image = |tag: &str| format!("image: '{address}/plant/web:{tag}'");
    world.add_services("0.9.0", &[]).await;
    world.add_services("1.0.0", &[&image("1")]).await;
    world.device("line-1", &[("site", "nord")]).await;
    world.device("line-2", &[("site", "nord")]).await;
    // What the component itself has is in all of them, and about the same.
    let without = world.foreseen("0.9.0", &["line-1"]).await.bytes;
    let near = |bytes: u64, expected: u64| bytes.abs_diff(expected) < 500;
    let config = EMPTY_CONFIG.len() as u64;
    let one = world.foreseen("1.0.0", &["line-1"]).await;
    assert!(near(one.bytes, without + 10_003 + config), "{one:?}, and {without} without images");
    assert_eq!((one.site.as_deref(), one.unknown_images.len()), (Some("nord"), 0));
    let both = world.foreseen("1.0.0", &["line-1", "line-2"]).await;
    assert_eq!((both.bytes, both.devices), (one.bytes * 2, 2));

    let mut want = on(&["line-1"]);
    want.version = Some("1.0.0".into());
    world.put("greeter", want).await.unwrap();
    // The next version has the same layer below, and one that is its own.
    let next = push_image(&elsewhere, "plant/web:amd2", &[&base, &"n".repeat(2_000)]).await;
    push_index(&elsewhere, "plant/web:2", &[("amd64", next)]).await;
    world.add_services("2.0.0", &[&image("2")]).await;
    let update = world.foreseen("2.0.0", &["line-1"]).await;
    assert!(near(update.bytes, without + 2_000), "{update:?}");
    let afresh = world.foreseen("2.0.0", &["line-2"]).await;
    assert!(near(afresh.bytes, without + 12_000 + config), "{afresh:?}");

    push_index(&elsewhere, "plant/web:3", &[("arm64", large)]).await;
    world.add_services("3.0.0", &[&image("3")]).await;
    let unfit = world.foreseen("3.0.0", &["line-1"]).await;
    assert_eq!(unfit.unknown_images, [format!("{address}/plant/web:3 (not made for amd64)")]);
    assert!(near(unfit.bytes, without), "{unfit:?}");
}

#[tokio::test]
async fn a_row_that_was_read_before_the_images_were_pinned_is_not_kept() {
    let world = World::empty().await;
    world.add_services("1.0.0", &["image: '${MARGRAVE_REGISTRY}/plant/late:1'"]).await;
    let (id, version) = key("1.0.0");
    let catalog = &world.fleet.catalog;
    catalog.forget(&[key("1.0.0")].into());
    // A reader that is held up between the store and the catalog.
    let (read, row) =
        (catalog.generation(), world.fleet.store.package(&id, &version).await.unwrap().unwrap());
    let late = push_image(&world.registry, "plant/late:1", &["late"]).await.digest;
    world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
    catalog.forget(&[key("1.0.0")].into());
    world.fleet.parsed(row, read).unwrap();
    let entry = world.fleet.entry(&id, &version).await.unwrap().unwrap();
    assert!(
        entry.record.images.known.values().all(|image| image.digest == Some(late)),
        "a row of before is kept"
    );
}

#[tokio::test]
async fn pins_that_an_applied_file_does_not_say_are_told_and_the_file_stays() {
    let world = World::empty().await;
    let image = "${MARGRAVE_REGISTRY}/plant/web:1";
    let pin = push_image(&world.registry, "plant/web:1", &["now"]).await.digest.to_string();
    world.push_services("1.0.0", &[&format!("image: '{image}'")]).await;
    let repository = RepositoryName::parse("packages/hello").unwrap();
    let tag = TagOrDigest::parse("1.0.0").unwrap();
    let digest = world.registry.manifest(&repository, &tag).await.unwrap().unwrap().digest;
    let file = format!(
        "apiVersion: margrave/v1\nkind: Package\nmetadata:\n  id: hello\n  version: 1.0.0\nspec:\n  reference: \
         oci://margrave/packages/hello@{digest}\n"
    );
    let apply = async |text: &str| {
        let want = Apply { documents: vec![text.to_owned()], ..Apply::default() };
        world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await.unwrap()
    };
    let path = "packages/hello/1.0.0.yaml";
    let applied = apply(&file).await;
    let expected = BTreeMap::from([(path.to_owned(), BTreeMap::from([(image.to_owned(), pin)]))]);
    assert_eq!(applied.pins, expected);
    assert_eq!(world.file(path).await.unwrap(), file, "it stays as it was written");
    // What was told, added as it was told, is what counts already.
    let lines = pin_words(&applied.pins);
    let applied = apply(&format!("{file}{}\n", lines[1..].join("\n"))).await;
    assert_eq!((applied.files, applied.pins), (vec![path.to_owned()], BTreeMap::new()));
}

#[tokio::test]
async fn a_version_from_before_images_were_looked_at_says_so_until_it_is_looked_at() {
    let world = World::empty().await;
    let image = "${MARGRAVE_REGISTRY}/plant/web:1";
    let digest = push_image(&world.registry, "plant/web:1", &["one"]).await.digest.to_string();
    for version in ["1.0.0", "2.0.0", "3.0.0"] {
        world.add_services(version, &[&format!("image: '{image}'")]).await;
    }
    world.add_services("4.0.0", &["image: 'registry.example/far:1'"]).await;
    assert_eq!(world.add_services("5.0.0", &[]).await.images_unknown, None, "none is not unknown");
    let database = rusqlite::Connection::open(world.data.path().join("margrave.db")).unwrap();
    let before = r#"UPDATE package SET images = '{"named":{},"known":{}}'"#;
    assert_eq!(database.execute(before, ()).unwrap(), 5);
    drop(database);
    let world = world.restarted().await;
    let mut want = on(&["line-1"]);
    want.version = Some("3.0.0".into());
    world.device("line-1", &[]).await;
    world.put("greeter", want).await.unwrap();
    let shown = async |version: &str| {
        let (id, version) = key(version);
        world.fleet.package(&id, &version).await.unwrap()
    };
    let why = shown("1.0.0").await.images_unknown.unwrap();
    assert!(why.contains("component web") && why.contains("add the package again"), "{why}");
    let why = shown("3.0.0").await.images_unknown.unwrap();
    assert!(why.contains("only a new version can be pinned"), "{why}");

    let again = world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
    assert_eq!((again.images[0].digest.as_ref(), again.images_unknown), (Some(&digest), None));
    let again = world.add("oci://margrave/packages/hello:4.0.0").await.unwrap();
    assert!(again.images[0].unpinned.is_some() && again.images_unknown.is_none(), "{again:?}");
    let used = world.add("oci://margrave/packages/hello:3.0.0").await.unwrap();
    assert!(used.images.is_empty() && used.images_unknown.is_some(), "{used:?}");

    // A file that pins one makes the server look, too.
    for (version, told) in [("2.0.0", None), ("3.0.0", Some("deployments use hello 3.0.0"))] {
        let path = format!("packages/hello/{version}.yaml");
        let held = world.file(&path).await.unwrap();
        let bare: Vec<&str> = held.lines().take_while(|line| !line.trim().starts_with("images:")).collect();
        let text = format!("{}\n  images:\n    {image}: {digest}\n# by hand\n", bare.join("\n"));
        let commit = world.by_hand(&[(&path, Some(&text))]).await;
        match (world.adopt(commit).await, told) {
            (Ok(()), None) => assert_eq!(shown(version).await.images[0].digest.as_ref(), Some(&digest)),
            (Err(flaws), Some(told)) => assert!(flaws[0].contains(told), "{flaws:?}"),
            (adopted, _) => panic!("{version}: {adopted:?}"),
        }
    }
}

#[tokio::test]
async fn what_packages_go_by_is_known_to_our_own_registry() {
    let world = World::empty().await;
    let one = push_image(&world.registry, "plant/web:amd", &["one"]).await;
    let list = push_index(&world.registry, "plant/web:1", &[("amd64", one.clone())]).await;
    let other = push_image(&world.registry, "plant/web:other", &["other"]).await.digest;
    // The address by which devices reach it is one of its names.
    world.add_services("1.0.0", &["image: 'server.example:8443/plant/web:1'"]).await;
    let at = async |repository: &str, version: &str| {
        let (name, version) =
            (RepositoryName::parse(repository).unwrap(), TagOrDigest::parse(version).unwrap());
        world.registry.manifest(&name, &version).await.unwrap().unwrap().digest
    };
    let package = at("packages/hello", "1.0.0").await;
    let (web, chart) = (at("components/web", "1.0.0").await, at("components/chart", "1.0.0").await);
    let kept = async |repository: &str, digest: Digest| {
        world.fleet.kept_for(&RepositoryName::parse(repository).unwrap(), &digest).await.unwrap()
    };
    for (repository, digest) in [
        ("packages/hello", package),
        ("components/web", web),
        ("components/chart", chart),
        ("plant/web", list),
        ("plant/web", one.digest),
    ] {
        assert_eq!(kept(repository, digest).await, ["hello 1.0.0"], "{repository}");
        assert!(kept("elsewhere", digest).await.is_empty(), "only where the package says: {repository}");
    }
    assert!(kept("plant/web", other).await.is_empty());
    let (id, version) = key("1.0.0");
    world.fleet.remove_package(&ann(), &id, &version).await.unwrap();
    assert!(kept("plant/web", list).await.is_empty() && kept("packages/hello", package).await.is_empty());
}

/// Answers every question for a manifest so.
fn answers(answer: impl Fn() -> Response + Clone + Send + Sync + 'static) -> Router {
    Router::new().fallback(move || std::future::ready(answer()))
}

#[tokio::test]
async fn registries_that_lie_drag_or_talk_without_end_pin_nothing_and_block_nothing() {
    let manifest = || ImageManifest::artifact("application/vnd.test", vec![]).to_bytes();
    let lie = move || {
        let said = ("docker-content-digest", Digest::of(b"something else").to_string());
        ([said], manifest()).into_response()
    };
    let endless = || {
        let chunks = std::iter::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 64 * 1024])));
        Body::from_stream(futures_util::stream::iter(chunks)).into_response()
    };
    let page = || "<html>welcome</html>".into_response();
    let nothing = || (http::StatusCode::OK, "{\"schemaVersion\":2,\"manifests\":[]}").into_response();
    // Accepts, and never says a word.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hosts = [
        serve(answers(lie)).await,
        serve(answers(endless)).await,
        serve(answers(page)).await,
        serve(answers(nothing)).await,
        silent.local_addr().unwrap().to_string(),
    ];
    let services = hosts.each_ref().map(|host| format!("image: '{host}/a:1'"));
    let world = World::empty().await;
    let added = world.add_services("1.0.0", &services.each_ref().map(String::as_str)).await;
    for (host, words) in
        hosts.iter().zip(["promised was", "larger than", "is no image", "is no image", "in time"])
    {
        let image = added.images.iter().find(|image| image.name.starts_with(host)).unwrap();
        let why = image.unpinned.clone().unwrap_or_default();
        assert!(image.digest.is_none() && why.contains(words), "{words}: {image:?}");
    }
    // Nobody waits for the same silence again.
    let again = world.add_services("2.0.0", &services.each_ref().map(String::as_str)).await;
    let why = |host: &str| {
        let image = again.images.iter().find(|image| image.name.starts_with(host)).unwrap();
        image.unpinned.clone().unwrap()
    };
    assert!(why(&hosts[4]).contains("was not asked again; add the package again"), "{again:?}");
    assert!(why(&hosts[0]).contains("promised was"), "others are asked: {again:?}");
}

#[tokio::test]
async fn what_a_commit_has_no_time_left_for_is_not_asked_and_told() {
    let world = World::empty().await;
    let (elsewhere, address, _folder) = registry().await;
    push_image(&elsewhere, "plant/web:1", &["one"]).await;
    push_image(&world.registry, "plant/own:1", &["own"]).await;
    let (image, ours) = (format!("{address}/plant/web:1"), "${MARGRAVE_REGISTRY}/plant/own:1");
    world.push_services("1.0.0", &[&format!("image: '{image}'"), &format!("image: '{ours}'")]).await;
    let reference = "oci://margrave/packages/hello:1.0.0";
    let mut asking = crate::fleet::images::Asking::spent();
    let pulled = world.fleet.pull_pinned(&ann(), reference, &BTreeMap::new(), &mut asking).await.unwrap();
    let known = pulled.record.images.known;
    assert!(known[&image].unpinned.as_ref().unwrap().to_string().contains("was not asked"), "{known:?}");
    assert!(known[ours].digest.is_some(), "our own registry is here: {known:?}");
}

#[tokio::test]
async fn pk_053_a_file_may_say_what_images_mean_and_is_told_where_that_cannot_be() {
    let world = World::empty().await;
    let image = "${MARGRAVE_REGISTRY}/plant/web:1";
    push_image(&world.registry, "plant/web:1", &["now"]).await;
    world.push_services("1.0.0", &[&format!("image: '{image}'"), "image: 'a:${TAG}'"]).await;
    let repository = RepositoryName::parse("packages/hello").unwrap();
    let tag = TagOrDigest::parse("1.0.0").unwrap();
    let digest = world.registry.manifest(&repository, &tag).await.unwrap().unwrap().digest;
    let file = |images: &str| {
        format!(
            "apiVersion: margrave/v1\nkind: Package\nmetadata:\n  id: hello\n  version: 1.0.0\nspec:\n  reference: \
             oci://margrave/packages/hello@{digest}\n  images:\n{images}"
        )
    };
    let path = "packages/hello/1.0.0.yaml";
    let wanted = Digest::of(b"by hand");
    for (images, told) in [
        ("    a:1: latest\n", "packages/hello/1.0.0.yaml:9: "),
        (&*format!("    other:1: {wanted}\n"), "no Compose file of this package names this image"),
        (&*format!("    a:${{TAG}}: {wanted}\n"), "cannot be pinned"),
    ] {
        let commit = world.by_hand(&[(path, Some(&file(images)))]).await;
        let flaws = world.adopt(commit).await.unwrap_err();
        assert!(flaws[0].contains(told) && flaws[0].contains("PK-053"), "{flaws:?}");
        assert!(flaws[0].starts_with("packages/hello/1.0.0.yaml:9: "), "{flaws:?}");
    }
    let right = file(&format!("    ${{MARGRAVE_REGISTRY}}/plant/web:1: {wanted}\n"));
    let commit = world.by_hand(&[(path, Some(&right))]).await;
    world.adopt(commit).await.unwrap();
    // What the file says need not be told to whoever wrote it.
    let written = [FileChange { path: path.to_owned(), bytes: Some(right.clone().into_bytes()) }];
    assert_eq!(world.fleet.unwritten_pins(&written).await.unwrap(), Default::default());
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    assert_eq!(world.pinned("line-1").await, BTreeMap::from([(image.to_owned(), wanted.to_string())]));

    let other = right.replace(&wanted.to_string(), &Digest::of(b"other").to_string());
    let commit = world.by_hand(&[(path, Some(&other))]).await;
    let flaws = world.adopt(commit).await.unwrap_err();
    assert!(flaws[0].contains("a pin stays"), "{flaws:?}");
    // What says nothing of it takes nothing back.
    let commit = world.by_hand(&[(path, Some(&file("").replace("  images:\n", "")))]).await;
    world.adopt(commit).await.unwrap();
    let (id, version) = key("1.0.0");
    let kept = world.fleet.package(&id, &version).await.unwrap();
    assert!(kept.images.iter().any(|image| image.digest == Some(wanted.to_string())), "{kept:?}");
}
