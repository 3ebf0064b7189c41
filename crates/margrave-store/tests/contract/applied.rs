//! When commits began to count, and deployments that the server took back by itself.

use margrave_core::id::DeploymentName;
use margrave_core::moment::Moment;
use margrave_store::*;

use crate::fixture::*;

fn publication(at: u64, commit: &str, before: Option<&str>) -> Publication {
    let head = Head {
        expected: before.map(str::to_owned),
        next: commit.to_owned(),
        by: format!("operator of {commit}"),
    };
    Publication { at: Moment(at), head: Some(head), ..Default::default() }
}

#[tokio::test]
async fn a_moment_leads_to_the_commit_that_counted_then() {
    let world = World::new();
    assert_eq!(world.store.applied_at(Moment(99)).await.unwrap(), None);
    assert_eq!(world.store.applied_first().await.unwrap(), None);
    world.store.publish(publication(10, "a", None)).await.unwrap();
    world.store.publish(publication(20, "b", Some("a"))).await.unwrap();
    // Back to what counted before, which then counts twice.
    world.store.publish(publication(30, "a", Some("b"))).await.unwrap();
    for (at, commit) in [(9, None), (10, Some("a")), (19, Some("a")), (29, Some("b")), (31, Some("a"))] {
        let found = world.store.applied_at(Moment(at)).await.unwrap();
        assert_eq!(found.as_ref().map(|found| found.commit.as_str()), commit, "{at}");
    }
    assert_eq!(world.store.applied_first().await.unwrap().unwrap().at, Moment(10));
    let of = world.store.applied(vec!["a".into(), "x".into()]).await.unwrap();
    assert_eq!((of.len(), of["a"].at, of["a"].by.as_str()), (1, Moment(30), "operator of a"));
}

#[tokio::test]
async fn a_deployment_that_went_back_by_itself_is_known_until_a_commit_or_a_revision_says_otherwise() {
    let world = World::new();
    world.add_package(package("app", "1.0.0"), vec![]).await.unwrap();
    let name = DeploymentName::parse("a").unwrap();
    let put = |revision: u64| Intent::Put {
        deployment: Box::new(deployment("a", revision)),
        seen: (revision > 1).then(|| revision - 1),
        by: "server".into(),
    };
    let gone = GoneBack {
        deployment: deployment("a", 2).id,
        revision: 2,
        failed: 1,
        at: NOW,
        why: "it failed".to_owned(),
    };
    let back = |revision| Publication {
        intents: vec![put(revision)],
        gone_back: vec![GoneBack { revision, ..gone.clone() }],
        ..Default::default()
    };
    world.store.publish(Publication { intents: vec![put(1)], ..Default::default() }).await.unwrap();
    assert_eq!(world.store.gone_back().await.unwrap(), []);
    world.store.publish(back(2)).await.unwrap();
    assert_eq!(world.store.gone_back().await.unwrap(), [(name.clone(), gone.clone())]);
    world.store.publish(Publication { intents: vec![put(3)], ..Default::default() }).await.unwrap();
    assert_eq!(world.store.gone_back().await.unwrap(), []);
    world.store.publish(back(4)).await.unwrap();
    assert_eq!(world.store.gone_back().await.unwrap().len(), 1);
    world.store.publish(Publication { follows: vec![name], ..Default::default() }).await.unwrap();
    assert_eq!(world.store.gone_back().await.unwrap(), []);
}
