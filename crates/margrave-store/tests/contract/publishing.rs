//! Publishing: one transaction, compare-and-swap, content by digest.

use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeploymentName};
use margrave_core::moment::Moment;
use margrave_core::parameters::ParameterValue;
use margrave_store::*;

use crate::fixture::*;

fn id(name: &str, on: &str) -> AssignmentId {
    AssignmentId::derive(deployment_id(name), &device(on))
}

#[tokio::test]
async fn a_deployment_comes_back_as_it_was_put() {
    let world = World::new();
    world.add_package(package("app", "1.0.0"), vec![]).await.unwrap();
    let mut wanted = deployment("hello", 1);
    let parameter = margrave_core::id::ParameterName::parse("rate").unwrap();
    let list = ParameterValue::List(vec![ParameterValue::Double(1.5), ParameterValue::Text("7".into())]);
    wanted.answers.insert(parameter, list.into());
    let misfit = MisfitRecord {
        deployment: wanted.id,
        device: device("line-2"),
        reasons: vec!["needs 4 cores".into()],
        temporary: true,
    };
    let publication = Publication {
        at: NOW,
        intents: vec![Intent::Put {
            deployment: Box::new(wanted.clone()),
            seen: None,
            by: "operator ann".into(),
        }],
        misfits: vec![misfit.clone()],
        events: vec![
            NewEvent::new(NOW, "deployment.created", "operator ann", "hello").deployment(&wanted.name),
        ],
        ..Default::default()
    };
    world.store.publish(publication).await.unwrap();
    let record = world.store.deployment(&wanted.name).await.unwrap().unwrap();
    assert_eq!(record.deployment, wanted);
    assert_eq!((record.changed_at, record.changed_by.as_str()), (NOW, "operator ann"));
    assert_eq!(record.misfits, std::slice::from_ref(&misfit));
    assert_eq!(world.store.deployments().await.unwrap(), [record]);

    let fits = MisfitRecord { reasons: vec![], ..misfit };
    world.store.publish(Publication { misfits: vec![fits], ..Default::default() }).await.unwrap();
    assert!(world.store.deployment(&wanted.name).await.unwrap().unwrap().misfits.is_empty());
    assert_eq!(world.store.events_newest(1).await.unwrap()[0].kind, "deployment.created");
}

#[tokio::test]
async fn a_change_made_from_an_outdated_revision_is_refused_whole() {
    let world = World::new();
    world.join("line-1").await;
    world.deploy("hello", "line-1", b"one").await;
    for seen in [None, Some(2)] {
        let put =
            Intent::Put { deployment: Box::new(deployment("hello", 9)), seen, by: "operator bob".into() };
        let client = world.publication("line-1", &[("hello", b"two")]).await;
        let publication = Publication { intents: vec![put], clients: vec![client], ..Default::default() };
        let error = world.store.publish(publication).await.unwrap_err();
        assert!(matches!(error, PublishError::RevisionMoved), "{error}");
    }
    let remove = Intent::Remove { id: deployment_id("hello"), seen: 7, by: "operator bob".into() };
    let error =
        world.store.publish(Publication { intents: vec![remove], ..Default::default() }).await.unwrap_err();
    assert!(matches!(error, PublishError::RevisionMoved), "{error}");
    assert_eq!(world.picture("line-1").await.manifest.version(), 2);
    assert_eq!(world.store.deployments().await.unwrap()[0].deployment.revision, 1);
}

#[tokio::test]
async fn a_deployment_of_a_package_that_is_gone_is_refused() {
    let world = World::new();
    let put =
        Intent::Put { deployment: Box::new(deployment("hello", 1)), seen: None, by: "operator ann".into() };
    let error =
        world.store.publish(Publication { intents: vec![put], ..Default::default() }).await.unwrap_err();
    assert!(matches!(error, PublishError::PackageGone), "{error}");
}

#[tokio::test]
async fn of_many_publishes_from_one_picture_exactly_one_wins() {
    let world = World::new();
    world.join("line-1").await;
    world.join("line-2").await;
    let mut decisions = Vec::new();
    for n in 0..20u8 {
        // Each touches both clients, so a loser must leave both alone.
        let one = world.publication("line-1", &[("hello", &[n])]).await;
        let two = world.publication("line-2", &[("hello", &[n, n])]).await;
        decisions.push((n, vec![one, two]));
    }
    let mut racing = tokio::task::JoinSet::new();
    for (n, clients) in decisions {
        let store = world.store.clone();
        racing.spawn(async move {
            let publication = Publication { at: NOW, clients, ..Default::default() };
            (n, store.publish(publication).await)
        });
    }
    let results = racing.join_all().await;
    let winners: Vec<u8> = results.iter().filter(|(_, result)| result.is_ok()).map(|(n, _)| *n).collect();
    assert_eq!(winners.len(), 1, "{results:?}");
    let lost =
        |result: &Result<(), PublishError>| matches!(result, Err(PublishError::ManifestMoved(_)) | Ok(()));
    assert!(results.iter().all(|(_, result)| lost(result)));
    let both = world.store.documents(vec![client("line-1"), client("line-2")]).await.unwrap();
    let documents = |on: &str| both[&client(on)].values().cloned().collect::<Vec<_>>();
    assert_eq!(documents("line-1"), [vec![winners[0]]]);
    assert_eq!(documents("line-2"), [vec![winners[0]; 2]]);
    assert_eq!(world.picture("line-1").await.manifest.version(), 2);
}

#[tokio::test]
async fn a_publication_that_is_written_while_it_is_made_is_whole_or_not_there() {
    let world = World::new();
    world.join("line-1").await;
    world.join("line-2").await;
    let parts = async |text: &[u8]| {
        let one = world.publication("line-1", &[("hello", text)]).await;
        let two = world.publication("line-2", &[("hello", text)]).await;
        [Some(vec![one]), Some(vec![two]), None]
    };
    let versions = async || {
        [world.picture("line-1").await, world.picture("line-2").await]
            .map(|picture| picture.manifest.version())
    };
    // Each comes when the one before has had its time to be written.
    let publish = async |parts: Vec<Part>| {
        let (sender, coming) = std::sync::mpsc::channel();
        let publication = Publication { at: NOW, ..Default::default() };
        let making = async {
            for part in parts {
                tokio::time::sleep(Duration::from_millis(20)).await;
                // A store that refused it takes no more of it.
                sender.send(part).ok();
            }
            drop(sender);
        };
        tokio::join!(world.store.publish_as_made(publication, coming), making).0
    };
    let [one, two, end] = parts(b"a").await;
    publish(vec![one.clone(), two.clone(), end]).await.unwrap();
    assert_eq!(versions().await, [2, 2]);
    // Cut off before its end, wherever that is.
    let [one, stale] = [parts(b"b").await[0].clone(), two];
    for cut in [vec![], vec![one.clone()], parts(b"b").await[..2].to_vec()] {
        let error = publish(cut).await.unwrap_err();
        assert!(matches!(error, PublishError::Unfinished), "{error:?}");
    }
    // Refused when some of it was written: it is attempted once more, with what had come.
    let error = publish(vec![one.clone(), stale, None]).await.unwrap_err();
    assert!(matches!(error, PublishError::ManifestMoved(_)), "{error:?}");
    assert_eq!(versions().await, [2, 2]);
    publish(vec![one, None]).await.unwrap();
    assert_eq!(versions().await, [3, 2]);
}

#[tokio::test]
async fn mi_g2_007_documents_and_bundles_are_the_clients_own() {
    let world = World::new();
    world.join("line-1").await;
    world.join("line-2").await;
    world.run("line-1", &[("hello", b"one")]).await;
    let (id, digest) = (id("hello", "line-1"), Digest::of(b"one"));
    let read = async |name: &str| world.store.document(&client(name), id, digest).await.unwrap();
    assert_eq!(read("line-1").await.as_deref(), Some(&b"one"[..]));
    assert_eq!(read("line-2").await, None);
    assert_eq!(world.store.bundle(&client("line-1"), digest).await.unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(world.store.bundle(&client("line-2"), digest).await.unwrap(), None);
    let wrong = world.store.document(&client("line-1"), id, Digest::of(b"other")).await.unwrap();
    assert_eq!(wrong, None);
}

#[tokio::test]
async fn the_previous_manifests_content_stays_and_older_content_goes() {
    let world = World::new();
    world.join("line-1").await;
    let id = id("hello", "line-1");
    let held = async |content: &[u8]| {
        let document = world.store.document(&client("line-1"), id, Digest::of(content)).await.unwrap();
        let bundle = world.store.bundle(&client("line-1"), Digest::of(content)).await.unwrap();
        assert_eq!(document, bundle, "in this test both have the same bytes");
        document.is_some()
    };
    world.run("line-1", &[("hello", b"one")]).await;
    world.run("line-1", &[("hello", b"two")]).await;
    assert!(held(b"one").await && held(b"two").await);
    world.run("line-1", &[("hello", b"three")]).await;
    assert!(!held(b"one").await && held(b"two").await && held(b"three").await);
    world.run("line-1", &[]).await;
    assert!(
        !held(b"two").await && held(b"three").await,
        "nothing to run, and the last document still fetchable"
    );
    assert_eq!(world.picture("line-1").await.manifest.bundle(), None);
    // What comes back is as good as new.
    world.run("line-1", &[("hello", b"three")]).await;
    world.run("line-1", &[("hello", b"three"), ("more", b"x")]).await;
    let document = world.store.document(&client("line-1"), id, Digest::of(b"three")).await.unwrap();
    assert_eq!(document.as_deref(), Some(&b"three"[..]));
    assert_eq!(world.picture("line-1").await.manifest.version(), 7);
}

#[tokio::test]
async fn equal_content_of_two_clients_is_stored_once_and_lives_as_long_as_either() {
    let world = World::new();
    for name in ["line-1", "line-2"] {
        world.join(name).await;
        world.run(name, &[("hello", b"same")]).await;
    }
    world.run("line-1", &[]).await;
    world.run("line-1", &[("other", b"x")]).await;
    let read = async |name: &str| {
        world.store.document(&client(name), id("hello", name), Digest::of(b"same")).await.unwrap()
    };
    assert_eq!(read("line-1").await, None);
    assert_eq!(read("line-2").await.as_deref(), Some(&b"same"[..]));
}

#[tokio::test]
async fn a_manifest_whose_documents_nobody_brought_is_refused() {
    let world = World::new();
    world.join("line-1").await;
    let mut client = world.publication("line-1", &[("hello", b"one")]).await;
    client.manifest.as_mut().unwrap().documents.clear();
    client.manifest.as_mut().unwrap().bundle = None;
    let publication = Publication { clients: vec![client], ..Default::default() };
    assert!(world.store.publish(publication).await.is_err());
    assert_eq!(world.picture("line-1").await.manifest.version(), 1);
}

#[tokio::test]
async fn mi_g2_109_an_assignment_knows_the_version_in_which_it_last_changed() {
    let world = World::new();
    world.join("line-1").await;
    world.run("line-1", &[("hello", b"one")]).await;
    let changed = async || {
        let record = world.assignment(id("hello", "line-1")).await;
        (record.wanted_since, record.changed_version)
    };
    assert_eq!(changed().await, (2, 2));
    world.run("line-1", &[("hello", b"one"), ("more", b"x")]).await;
    assert_eq!(changed().await, (2, 2), "another one came, this one did not change");
    world.run("line-1", &[("hello", b"two"), ("more", b"x")]).await;
    assert_eq!(changed().await, (2, 4));
    world.run("line-1", &[("more", b"x")]).await;
    assert_eq!(changed().await, (2, 5), "it went");
    world.run("line-1", &[("hello", b"two"), ("more", b"x")]).await;
    assert_eq!(changed().await, (6, 6), "and came back");
}

#[tokio::test]
async fn versions_beyond_what_the_database_holds_are_an_error_and_never_a_wrong_number() {
    let world = World::new();
    world.join("line-1").await;
    let mut client = world.publication("line-1", &[]).await;
    let manifest = margrave_core::manifest::Manifest::new(u64::MAX, None, vec![]).unwrap();
    let new = NewManifest { replaces: vec![], manifest, body: vec![], bundle: None, documents: vec![] };
    client.manifest = Some(new);
    let error =
        world.store.publish(Publication { clients: vec![client], ..Default::default() }).await.unwrap_err();
    assert!(matches!(&error, PublishError::Store(Error::OutOfRange { got: u64::MAX, .. })), "{error}");
    assert_eq!(world.picture("line-1").await.manifest.version(), 1);
}

#[tokio::test]
async fn a_removed_deployment_is_seen_until_the_last_device_said_that_it_is_gone() {
    let world = World::new();
    world.join("line-1").await;
    let id = world.deploy("hello", "line-1", b"one").await;
    let name = DeploymentName::parse("hello").unwrap();
    world.remove("hello").await;
    assert!(world.store.deployment(&name).await.unwrap().unwrap().removed);
    world.run("line-1", &[]).await;
    assert!(world.store.deployment(&name).await.unwrap().unwrap().removed);
    let removed = report(id, 3, margrave_core::lifecycle::Reported::Removed);
    world.store.record_report(&client("line-1"), removed, NOW).await.unwrap();
    assert_eq!(world.store.deployment(&name).await.unwrap(), None);
}

#[tokio::test]
async fn a_device_that_changed_while_it_was_settled_stays_unsettled() {
    let world = World::new();
    world.join("line-1").await;
    let seen = world.store.device(&device("line-1")).await.unwrap().unwrap().unsettled;
    world.label(&device("line-1"), &[("site", "nord")]).await;
    let settled = Publication { settled: vec![(device("line-1"), seen)], ..Default::default() };
    world.store.publish(settled).await.unwrap();
    assert_eq!(world.store.devices_unsettled(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_commit_is_taken_with_all_that_follows_from_it_or_not_at_all() {
    let world = World::new();
    world.add_package(package("app", "1.0.0"), vec![]).await.unwrap();
    let (first, second) = ("a".repeat(40), "b".repeat(40));
    let head = |expected: Option<&String>, next: &String| {
        Some(Head { expected: expected.cloned(), next: next.clone(), by: "operator ann".to_owned() })
    };
    let put = |name: &str, seen: Option<u64>| Intent::Put {
        deployment: Box::new(deployment(name, seen.unwrap_or(0) + 1)),
        seen,
        by: "operator ann".into(),
    };
    assert_eq!(world.store.head().await.unwrap(), None);
    let publication = Publication {
        head: head(None, &first),
        intents: vec![put("a", None), put("b", None)],
        ..Default::default()
    };
    world.store.publish(publication).await.unwrap();
    assert_eq!(world.store.head().await.unwrap(), Some(first.clone()));
    let applied = world.store.applied_at(Moment(0)).await.unwrap().unwrap();
    assert_eq!((&applied.commit, applied.by.as_str()), (&first, "operator ann"));
    // The second part is refused, so the first is not done either, and the commit is not taken.
    let intents = vec![put("a", Some(1)), put("b", Some(7))];
    let publication = Publication { head: head(Some(&first), &second), intents, ..Default::default() };
    let refused = world.store.publish(publication).await.unwrap_err();
    assert!(matches!(refused, PublishError::RevisionMoved), "{refused}");
    let late = Publication { head: head(None, &second), ..Default::default() };
    let refused = world.store.publish(late).await.unwrap_err();
    assert!(matches!(refused, PublishError::HeadMoved), "{refused}");
    assert_eq!(world.store.head().await.unwrap(), Some(first.clone()));
    for name in ["a", "b"] {
        let held = world.store.deployment(&DeploymentName::parse(name).unwrap()).await.unwrap().unwrap();
        assert_eq!(held.deployment, deployment(name, 1));
        assert_eq!(held.commit, Some(first.clone()));
        let kept = world.store.revisions(&held.deployment.name).await.unwrap();
        assert_eq!((kept.len(), &kept[0].commit), (1, &Some(first.clone())));
    }
}
