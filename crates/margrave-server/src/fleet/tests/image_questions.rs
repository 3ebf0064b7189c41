//! What registries are asked about images: little when a package comes in, and whether they are still there now and then.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use axum::middleware::Next;
use axum::response::IntoResponse as _;
use margrave_registry::{Action, Decision};

use super::images::{push_image, push_index, serve};
use super::*;

/// A registry of its own, on this machine, that writes down which manifests it was asked for.
struct Elsewhere {
    registry: Registry,
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
    is_away: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

impl Elsewhere {
    async fn new() -> Elsewhere {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path().join("registry")).unwrap();
        let open = |_: &http::request::Parts, _: Action, _: Option<&RepositoryName>| Decision::Allow;
        let (asked, is_away) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (written, away) = (Arc::clone(&asked), Arc::clone(&is_away));
        let listening = axum::middleware::from_fn(move |request: axum::extract::Request, next: Next| {
            if let Some((_, path)) = request.uri().path().split_once("/v2/")
                && path.contains("/manifests/")
            {
                let line = format!("{} {path}", request.method());
                written.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
            let is_away = away.load(Ordering::Relaxed);
            async move {
                match is_away {
                    true => http::StatusCode::SERVICE_UNAVAILABLE.into_response(),
                    false => next.run(request).await,
                }
            }
        });
        let address = serve(margrave_registry::router(registry.clone(), open).layer(listening)).await;
        Elsewhere { registry, address, asked, is_away, _folder: folder }
    }

    /// What it was asked since this was asked before, in order of the alphabet.
    fn asked(&self) -> Vec<String> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        asked.sort();
        asked
    }

    async fn lose(&self, repository: &str, digest: Digest) {
        let repository = RepositoryName::parse(repository).unwrap();
        for version in [TagOrDigest::parse("1").unwrap(), TagOrDigest::Digest(digest)] {
            self.registry.delete_manifest(&repository, &version).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_registry_is_asked_for_each_image_once_and_hardly_for_one_that_is_known() {
    let world = World::empty().await;
    let elsewhere = Elsewhere::new().await;
    let address = &elsewhere.address;
    let (amd, arm) = (
        push_image(&elsewhere.registry, "plant/web:amd", &["amd"]).await,
        push_image(&elsewhere.registry, "plant/web:arm", &["arm"]).await,
    );
    let list =
        push_index(&elsewhere.registry, "plant/web:1", &[("amd64", amd.clone()), ("arm64", arm.clone())])
            .await;
    let parts = |list: &str| {
        let mut asked = vec![
            format!("GET plant/web/manifests/{list}"),
            format!("GET plant/web/manifests/{}", amd.digest),
            format!("GET plant/web/manifests/{}", arm.digest),
        ];
        asked.sort();
        asked
    };
    let exact = format!("image: '{address}/plant/web@{list}'");
    let tagged = format!("image: '{address}/plant/web:1'");
    // A list, and what is in it for devices; whatever number of services have it.
    let first = world.add_services("1.0.0", &[&tagged, &tagged]).await;
    assert_eq!(elsewhere.asked(), parts("1"));
    // The same again, by its name and by what it is.
    let second = world.add_services("2.0.0", &[&tagged, &exact]).await;
    assert_eq!(elsewhere.asked(), ["HEAD plant/web/manifests/1"]);
    assert_eq!(second.images.len(), 2);
    assert!(second.images.iter().all(|image| image.bytes == first.images[0].bytes), "{second:?}");
    // Another image by the same name.
    let other = push_index(&elsewhere.registry, "plant/web:1", &[("amd64", amd.clone())]).await;
    let third = world.add_services("3.0.0", &[&tagged]).await;
    assert_eq!(third.images[0].digest, Some(other.to_string()));
    let mut fetched = vec![
        "HEAD plant/web/manifests/1".to_owned(),
        format!("GET plant/web/manifests/{other}"),
        format!("GET plant/web/manifests/{}", amd.digest),
    ];
    fetched.sort();
    assert_eq!(elsewhere.asked(), fetched);
}

#[tokio::test]
async fn packages_that_come_in_together_ask_once_for_what_they_share() {
    let world = World::empty().await;
    let elsewhere = Elsewhere::new().await;
    push_image(&elsewhere.registry, "plant/web:1", &["one"]).await;
    let services =
        ["plant/web:1", "plant/none:1"].map(|image| format!("image: '{}/{image}'", elsewhere.address));
    let mut asking = crate::fleet::images::Asking::default();
    for version in ["1.0.0", "2.0.0"] {
        world.push_services(version, &services.each_ref().map(String::as_str)).await;
        let reference = format!("oci://margrave/packages/hello:{version}");
        let pulled =
            world.fleet.pull_pinned(&ann(), &reference, &BTreeMap::new(), &mut asking).await.unwrap();
        let pinned = pulled.record.images.known.values().filter(|image| image.digest.is_some()).count();
        assert_eq!(pinned, 1, "{:?}", pulled.record.images);
    }
    assert_eq!(elsewhere.asked(), ["GET plant/none/manifests/1", "GET plant/web/manifests/1"]);
}

#[tokio::test]
async fn of_more_images_than_are_asked_for_at_once_each_has_its_turn() {
    let world = World::empty().await;
    let elsewhere = Elsewhere::new().await;
    let names: Vec<String> = (0..60).map(|number| format!("plant/i{number:02}:1")).collect();
    let mut digests = Vec::new();
    for name in &names {
        digests.push(push_image(&elsewhere.registry, name, &[name]).await.digest);
    }
    let services: Vec<String> =
        names.iter().map(|name| format!("image: '{}/{name}'", elsewhere.address)).collect();
    let services: Vec<&str> = services.iter().map(String::as_str).collect();
    world.add_services("1.0.0", &services).await;
    elsewhere.asked();
    let (first, last) = (digests[0], digests[59]);
    elsewhere.lose("plant/i00", first).await;
    elsewhere.lose("plant/i59", last).await;
    for _ in 0..2 {
        world.pass(6 * 3600);
        world.fleet.look_at_origins().await.unwrap();
        assert_eq!(elsewhere.asked().len(), 50, "no more with one look");
    }
    let origin = world.fleet.store.origins().await.unwrap().remove(0);
    let gone = origin.warnings.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(gone.len(), 2, "{gone:?}");
    assert!(gone[0].contains("plant/i00:1") && gone[1].contains("plant/i59:1"), "{gone:?}");
}

#[tokio::test]
async fn sizes_that_are_not_known_are_found_out_with_the_next_look_and_nothing_else_changes() {
    let world = World::empty().await;
    let elsewhere = Elsewhere::new().await;
    let image = push_image(&elsewhere.registry, "plant/web:1", &["one"]).await.digest;
    world.add_services("1.0.0", &[&format!("image: '{}/plant/web:1'", elsewhere.address)]).await;
    world.device("line-1", &[]).await;
    world.device("line-2", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let foreseen = async |world: &World| {
        let want = on(&["line-1", "line-2"]);
        let mut plan = world.fleet.rehearse_deployment(&ann(), &name("greeter"), want).await.unwrap();
        plan.fetches.remove(0)
    };
    let known = foreseen(&world).await;
    let record = world.fleet.store.packages().await.unwrap().remove(0);
    let documents = world.workloads("line-1").await;
    let manifest = world.fleet.manifest(&client("line-1"), Dialect::Miaf).unwrap().body.clone();

    // As it is where it came in before sizes were kept.
    let mut images = record.images.clone();
    images.known.values_mut().for_each(|image| image.parts.clear());
    let database = rusqlite::Connection::open(world.data.path().join("margrave.db")).unwrap();
    let images = serde_json::to_string(&images).unwrap();
    database.execute("UPDATE package SET sizes = '{}', images = ?1", (images,)).unwrap();
    drop(database);
    let world = world.restarted().await;
    assert_eq!(foreseen(&world).await.unknown_images.len(), 1);
    elsewhere.asked();
    let look = async || {
        world.pass(7 * 3600);
        world.fleet.look_at_origins().await.unwrap();
        elsewhere.asked().into_iter().filter(|asked| asked.starts_with("GET")).collect::<Vec<_>>()
    };
    assert_eq!(look().await, [format!("GET plant/web/manifests/{image}")]);
    assert_eq!(look().await, [""; 0], "what is known is not asked for");
    assert_eq!(foreseen(&world).await, known);
    assert_eq!(world.fleet.store.packages().await.unwrap(), [record]);
    assert_eq!(world.workloads("line-1").await, documents);
    assert_eq!(world.fleet.manifest(&client("line-1"), Dialect::Miaf).unwrap().body, manifest);
}

#[tokio::test]
async fn a_pinned_image_that_its_registry_lost_is_told_until_it_is_there_again() {
    let world = World::empty().await;
    let elsewhere = Elsewhere::new().await;
    let kept = push_image(&elsewhere.registry, "plant/kept:1", &["kept"]).await.digest;
    let lost = push_image(&elsewhere.registry, "plant/lost:1", &["lost"]).await.digest;
    push_image(&world.registry, "plant/own:1", &["own"]).await;
    let image = |name: &str| format!("image: '{}/{name}'", elsewhere.address);
    let services = [image("plant/kept:1"), image("plant/lost:1"), image("plant/none:1")];
    let own = "image: '${MARGRAVE_REGISTRY}/plant/own:1'".to_owned();
    let services: Vec<&str> = services.iter().chain([&own]).map(String::as_str).collect();
    world.add_services("1.0.0", &services).await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    elsewhere.asked();
    let told = async || {
        let shown = world.fleet.deployment(&name("greeter")).await.unwrap().warnings;
        let gone = shown.into_iter().filter(|warning| warning.kind != "imageUnpinned");
        gone.map(|warning| format!("{}: {}", warning.kind, warning.text)).collect::<Vec<_>>()
    };
    let look = async || {
        world.pass(7 * 3600);
        world.fleet.look_at_origins().await.unwrap();
        elsewhere.asked()
    };
    // Each by what it is, and only where it is pinned and not here.
    let questions =
        [format!("HEAD plant/kept/manifests/{kept}"), format!("HEAD plant/lost/manifests/{lost}")];
    assert_eq!(look().await, questions);
    assert!(told().await.is_empty());

    elsewhere.lose("plant/lost", lost).await;
    // Nobody who looks more often asks more often.
    let package = world.fleet.store.packages().await.unwrap().remove(0);
    world.fleet.look_at_origin(package).await.unwrap().unwrap();
    assert_eq!((elsewhere.asked().len(), told().await.len()), (0, 0));
    assert_eq!(look().await, questions);
    let [gone] = &told().await[..] else { panic!("{:?}", told().await) };
    let words = format!(
        "imageGone: hello 1.0.0: the registry no longer has the image {}/plant/lost:1 as it was pinned ({})",
        elsewhere.address,
        lost.short()
    );
    assert!(gone.starts_with(&words), "{gone}");
    let event = world.fleet.store.events_newest(1).await.unwrap().remove(0);
    assert_eq!(event.kind, "package.gone");

    // It is no reason to refuse anything, and who wants it has it asked for once more.
    world.device("line-2", &[]).await;
    let answer = world.put("other", on(&["line-2"])).await.unwrap();
    assert!(answer.warnings.iter().any(|warning| warning.kind == "imageGone"), "{answer:?}");
    assert_eq!(elsewhere.asked(), [format!("HEAD plant/lost/manifests/{lost}")]);
    assert_eq!(push_image(&elsewhere.registry, "plant/lost:1", &["lost"]).await.digest, lost);
    let answer = world.put("other", on(&["line-1", "line-2"])).await.unwrap();
    assert!(answer.warnings.iter().all(|warning| warning.kind != "imageGone"), "{answer:?}");
    assert!(told().await.is_empty());

    // Nothing is concluded from silence.
    elsewhere.lose("plant/lost", lost).await;
    look().await;
    assert_eq!(told().await.len(), 1);
    elsewhere.is_away.store(true, Ordering::Relaxed);
    look().await;
    assert_eq!(told().await.len(), 1);
}
