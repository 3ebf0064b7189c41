//! Images that the order says by digest: these bytes and no others, whatever their names mean on the device.

use std::collections::BTreeSet;

use margrave_agent::runtime::Runtime;
use margrave_core::device::Order;
use margrave_core::digest::Digest;
use margrave_core::report::FailureCode;
use margrave_registry::{RepositoryName, TagOrDigest};

use crate::rig::{Rig, on_engine};

on_engine! {
    docker_alone, "MARGRAVE_TEST_DOCKER_HOST":
    a_pinned_image_runs_whatever_its_name_means_by_now,
    what_is_here_under_its_name_is_not_pulled,
    a_digest_that_the_registry_does_not_have_any_more_is_a_clear_failure,
    a_pinned_image_that_nobody_needs_goes,
}

// Podman wants to be told to trust a registry without TLS. But it knows a digest of whatever it has.
on_engine! {
    podman_alone, "MARGRAVE_TEST_PODMAN_HOST":
    what_podman_has_by_digest_runs_whatever_its_name_means,
}

const NAME: &str = "${MARGRAVE_REGISTRY}/moving:1";

/// Makes an image that says who it is, as what the name means in the registry; the engine does not keep it.
async fn push_image(rig: &Rig, who: &str) -> Digest {
    let image = spoken(rig);
    let container = rig.docker(&["create", &rig.image(), "true"]);
    rig.docker(&["commit", "--change", &format!("ENV WHO={who}"), &container, &image]);
    rig.docker(&["rm", &container]);
    rig.docker(&["push", &image]);
    rig.docker(&["rmi", &image]);
    let found = rig.registry.manifest(&repository(), &TagOrDigest::parse("1").unwrap()).await;
    found.unwrap().unwrap().digest
}

fn repository() -> RepositoryName {
    RepositoryName::parse("moving").unwrap()
}

fn spoken(rig: &Rig) -> String {
    format!("{}/moving:1", rig.address)
}

async fn order(rig: &Rig, component: &str, image: &str, digest: Digest) -> Order {
    let compose = format!(
        "services: {{web: {{image: \"{image}\", command: [sleep, \"1000\"], stop_signal: SIGKILL, pull_policy: always}}}}"
    );
    let order = rig.compose(component, &compose).await;
    Order { images: [(image.to_owned(), digest)].into(), ..order }
}

fn who(rig: &Rig, component: &str) -> String {
    rig.exec(&rig.container(component, "web"), "echo $WHO")
}

/// Takes away every image of this name, whatever it is called by.
fn clear(rig: &Rig) {
    let found = rig.docker(&["images", "-q", "--no-trunc", &format!("{}/moving", rig.address)]);
    let found: BTreeSet<&str> = found.lines().collect();
    for image in found {
        rig.docker(&["rmi", "-f", image]);
    }
}

async fn a_pinned_image_runs_whatever_its_name_means_by_now(rig: Rig) {
    let first = push_image(&rig, "first").await;
    let second = push_image(&rig, "second").await;
    assert_ne!(first, second);
    // On the device, too, the name means the second.
    rig.docker(&["pull", &spoken(&rig)]);
    let order = order(&rig, "web", NAME, first).await;
    rig.runtime.prefetch(&order).await.unwrap();
    rig.runtime.apply(&order).await.unwrap();
    assert_eq!(who(&rig, "web"), "first");
    rig.check_runs(&order).await;
    let started = rig.started_at(&rig.container("web", "web"));
    rig.restarted().apply(&order).await.unwrap();
    assert_eq!(rig.started_at(&rig.container("web", "web")), started, "the same order touches nothing");

    // Mended by what it ran by, without a network.
    rig.cut_off().await;
    rig.docker(&["rm", "-f", &rig.container("web", "web")]);
    rig.runtime.apply(&order).await.unwrap();
    assert_eq!(who(&rig, "web"), "first");
    assert_eq!(rig.runtime.remarks(), [""; 0]);
    rig.docker(&["rm", "-f", &rig.container("web", "web")]);
    clear(&rig);
    rig.finish().await;
}

async fn what_is_here_under_its_name_is_not_pulled(rig: Rig) {
    let digest = push_image(&rig, "only").await;
    rig.docker(&["pull", &spoken(&rig)]);
    // Whoever asked the registry for it now would be told that there is none.
    for version in ["1", &digest.to_string()] {
        rig.registry.delete_manifest(&repository(), &TagOrDigest::parse(version).unwrap()).await.unwrap();
    }
    let order = order(&rig, "web", NAME, digest).await;
    rig.runtime.apply(&order).await.unwrap();
    assert_eq!(who(&rig, "web"), "only");
    rig.check_runs(&order).await;
    rig.docker(&["rm", "-f", &rig.container("web", "web")]);
    clear(&rig);
    rig.finish().await;
}

async fn a_digest_that_the_registry_does_not_have_any_more_is_a_clear_failure(rig: Rig) {
    push_image(&rig, "another").await;
    rig.docker(&["pull", &spoken(&rig)]);
    let gone = Digest::of(b"gone");
    let order = order(&rig, "web", NAME, gone).await;
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::PullNotFound, "{failure}");
    assert!(failure.message.contains(&format!("moving@{gone}")), "{failure}");
    assert_eq!(rig.container("web", "web"), "", "what the name means here is something else");
    clear(&rig);
    rig.finish().await;
}

async fn a_pinned_image_that_nobody_needs_goes(rig: Rig) {
    let runtime = rig.removing_images();
    let digest = push_image(&rig, "swept").await;
    let order = order(&rig, "web", NAME, digest).await;
    runtime.apply(&order).await.unwrap();
    let exact = format!("{}/moving@{digest}", rig.address);
    rig.docker(&["image", "inspect", &exact]);
    runtime.observe().await.unwrap();
    rig.docker(&["image", "inspect", &exact]);
    runtime.remove(order.assignment, &order.component).await.unwrap();
    let left = rig.docker(&["images", "-q", &format!("{}/moving", rig.address)]);
    assert_eq!(left, "", "nobody needs it");
    rig.finish().await;
}

async fn what_podman_has_by_digest_runs_whatever_its_name_means(rig: Rig) {
    let image = rig.image();
    let digests = rig.docker(&["image", "inspect", "--format", "{{json .RepoDigests}}", &image]);
    let digests: Vec<String> = serde_json::from_str(&digests).unwrap();
    let own = digests.iter().find(|digest| digest.starts_with(&rig.address)).expect("a digest of this name");
    let digest: Digest = own.rsplit_once('@').unwrap().1.parse().unwrap();
    let id = rig.docker(&["image", "inspect", "--format", "{{.Id}}", &image]);
    let of = |component: &str| {
        rig.docker(&["inspect", "--format", "{{.Image}}", &rig.container(component, "web")])
    };
    let name = "${MARGRAVE_REGISTRY}/busybox:1";
    let first = order(&rig, "first", name, digest).await;
    rig.runtime.apply(&first).await.unwrap();
    assert_eq!(of("first").trim_start_matches("sha256:"), id.trim_start_matches("sha256:"));
    let absent = order(&rig, "absent", name, Digest::of(b"absent")).await;
    let failure = rig.runtime.apply(&absent).await.unwrap_err();
    let codes = [FailureCode::PullFailed, FailureCode::PullNotFound];
    assert!(codes.contains(&failure.code), "what the name means here is something else: {failure}");
    rig.finish().await;
}
