//! What is wanted does not get here, or is not there any more: remotes, pushes, repositories, registries.

use margrave_core::report::FailureCode;
use margrave_registry::{Action, Decision};

use super::super::following::commit;
use super::super::git::git_is_here;
use super::*;
use crate::fleet::git::Push;

pub(super) async fn provoke(catalogue: &mut Catalogue) {
    restored(catalogue).await;
    registries(catalogue).await;
    if git_is_here() {
        remotes(catalogue).await;
        taken_back(catalogue).await;
        pushes(catalogue).await;
    }
}

async fn remotes(catalogue: &mut Catalogue) {
    let world = World::new().await;
    world.device("line-1", LINE).await;
    world.put("web", greeting("hi")).await.unwrap();
    world.report("web", "line-1", State::Installed).await;
    let remote = world.remote();
    world.fleet.follow_once().await.unwrap();
    assert!(world.fleet.why_of(WhyKind::Deployment, "web").await.unwrap().converged);

    commit(
        &remote,
        "deployments/web.yaml",
        "apiVersion: margrave/v1\nkind: Deployment\nspec: [wrong]\n",
        false,
    );
    world.fleet.follow_once().await.unwrap();
    let why = catalogue.deployment(&world, "a bad commit in the remote", "web", Code::IntentFlawed).await;
    assert!(
        !why.converged && why.chain[0].text.contains("deployments/web.yaml:"),
        "not because it is as wanted: {why:?}"
    );

    commit(&remote, "devices/line-1.yaml", "nonsense\n", true);
    // What is rewritten has no applied commit in its history, once that is more than the newest.
    let repository = git2::Repository::open_bare(&remote).unwrap();
    let orphan = {
        let tree = repository.find_tree(repository.treebuilder(None).unwrap().write().unwrap()).unwrap();
        let by = git2::Signature::now("Bob", "bob@plant.example").unwrap();
        repository.commit(None, &by, &by, "Begin anew", &tree, &[]).unwrap()
    };
    repository.reference("refs/heads/main", orphan, true, "rewritten").unwrap();
    world.fleet.follow_once().await.unwrap();
    catalogue.deployment(&world, "the remote's history was rewritten", "web", Code::IntentHeld).await;
    world.fleet.resolve(&ann(), false).await.unwrap();

    std::fs::rename(&remote, world.data.path().join("away.git")).unwrap();
    assert!(world.fleet.follow_once().await.is_err());
    let why = catalogue.deployment(&world, "the remote is away", "web", Code::IntentAway).await;
    assert!(why.converged, "what was read there last is what runs");
}

async fn taken_back(catalogue: &mut Catalogue) {
    let world = World::new().await;
    world.device("line-1", LINE).await;
    world.put("web", greeting("hi")).await.unwrap();
    world.report("web", "line-1", State::Installed).await;
    let strategy = json!({ "batches": ["1"], "onFailure": "revert" });
    let strategy = Some(serde_json::from_value(strategy).unwrap());
    world.put("web", operator::PutDeployment { strategy, ..greeting("yo") }).await.unwrap();
    world.remote();
    world.report("web", "line-1", State::Failed).await;
    world.fleet.advance_rollouts().await.unwrap();
    world.report("web", "line-1", State::Installed).await;
    let state = "a rollout failed that the remote wants";
    let why = catalogue.deployment(&world, state, "web", Code::RevertedHere).await;
    assert!(why.chain.last().unwrap().text.contains("until a newer commit"), "{why:?}");
}

async fn pushes(catalogue: &mut Catalogue) {
    let world = World::new().await;
    world.device("line-1", LINE).await;
    world.put("web", greeting("hi")).await.unwrap();
    world.report("web", "line-1", State::Installed).await;
    let push = |branch: &str| {
        let line = format!("{} {} refs/heads/{branch}\0report-status\n", "0".repeat(40), "1".repeat(40));
        let body = format!("{:04x}{line}0000", line.len() + 4);
        Push::read(Bytes::from(body)).unwrap_or_else(|malformed| panic!("{}", malformed.why()))
    };
    // Another branch is refused, and nothing of what is wanted depends on it.
    world.fleet.intent_push(&ann(), &push("mine")).await.unwrap();
    let why = world.fleet.why_of(WhyKind::Deployment, "web").await.unwrap();
    assert_eq!(codes(&why), ["converged"]);
    world.fleet.intent_push(&ann(), &push("main")).await.unwrap();
    let why = catalogue.deployment(&world, "a push that was refused", "web", Code::PushRefused).await;
    assert!(why.chain[1].text.contains("operator ann"), "{why:?}");
    world.put("web", greeting("yo")).await.unwrap();
    let why = world.fleet.why_of(WhyKind::Deployment, "web").await.unwrap();
    assert!(!codes(&why).contains(&"push-refused"), "the next change makes it history: {why:?}");
}

async fn restored(catalogue: &mut Catalogue) {
    let world = World::new().await;
    world.device("line-1", LINE).await;
    world.put("web", greeting("hi")).await.unwrap();
    let (repository, backup) = (world.data.path().join("intent.git"), tempfile::tempdir().unwrap());
    copy(&repository, backup.path());
    world.put("web", greeting("yo")).await.unwrap();
    world.report("web", "line-1", State::Installed).await;
    std::fs::remove_dir_all(&repository).unwrap();
    copy(backup.path(), &repository);
    let world = world.restarted().await;
    world.fleet.touched(&client("line-1"));
    let why = catalogue.deployment(&world, "the repository is an older one", "web", Code::IntentHeld).await;
    assert!(!why.converged);
}

/// A registry of its own, on this machine, in plain HTTP.
async fn registry() -> (Registry, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path().join("registry")).unwrap();
    let open = |_: &http::request::Parts, _: Action, _: Option<&RepositoryName>| Decision::Allow;
    let router = margrave_registry::router(registry.clone(), open);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (registry, address, folder)
}

/// A description that names no file beside it.
fn plain() -> String {
    description("2.0.0").replace("      icon: ./resources/icon.svg\n", "")
}

/// The package hello 2.0.0 with this description.
async fn push_to(registry: &Registry, description: &str) {
    let repository = RepositoryName::parse("packages/hello").unwrap();
    let files = PackageFiles::new(Bytes::from(description.to_owned()), vec![]).unwrap();
    for blob in [description.as_bytes(), EMPTY_CONFIG] {
        registry.put_blob(&repository, Bytes::copy_from_slice(blob)).await.unwrap();
    }
    let tag = TagOrDigest::Tag(Tag::parse("2.0.0").unwrap());
    let bytes = files.manifest().to_bytes().into();
    registry.put_manifest(&repository, &tag, IMAGE_MANIFEST, bytes).await.unwrap();
}

async fn registries(catalogue: &mut Catalogue) {
    let world = World::new().await;
    let (elsewhere, address, _folder) = registry().await;
    push_to(&elsewhere, &plain()).await;
    world.add(&format!("oci://{address}/packages/hello:2.0.0")).await.unwrap();
    let mut line = world.machine("line-1", LINE).await;
    let mut want = greeting("hi");
    want.version = Some("2.0.0".into());
    world.put("web", want.clone()).await.unwrap();
    line.live(120).await;
    assert!(world.fleet.why("line-1/web").await.unwrap().converged);

    // Somebody pushes other bytes under the same tag.
    push_to(&elsewhere, &plain().replace("Says hello", "Says hullo")).await;
    line.live(7 * 3600).await;
    world.fleet.look_at_origins().await.unwrap();
    let why = catalogue.deployment(&world, "the tag was moved", "web", Code::PackageMoved).await;
    assert!(why.converged, "what is pinned stays");

    // Then everything goes.
    let repository = RepositoryName::parse("packages/hello").unwrap();
    let packages = world.fleet.packages().await.unwrap();
    let pinned = packages.iter().find(|package| package.version == "2.0.0").unwrap();
    let pinned = pinned.reference.rsplit_once('@').unwrap().1;
    for reference in ["2.0.0", pinned] {
        elsewhere.delete_manifest(&repository, &TagOrDigest::parse(reference).unwrap()).await.unwrap();
    }
    line.faults.prefetch = Some(FailureCode::PullNotFound);
    want.parameters.insert("greeting".into(), json!("yo"));
    world.put("web", want).await.unwrap();
    line.live(7 * 3600).await;
    world.fleet.look_at_origins().await.unwrap();
    let why = catalogue
        .device(&world, "the version vanished from its registry", "line-1/web", Code::PackageGone)
        .await;
    assert_eq!(codes(&why), ["retrying", "pull-not-found", "package-gone"]);
}
