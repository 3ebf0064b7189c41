//! Clients that sign their requests: asking, being decided about, and moving on.

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeploymentId, DeviceId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_store::*;
use margrave_wire::Dialect;

use crate::fixture::*;

const NOT_AFTER: Moment = Moment(1_900_000_000_000);

/// Somebody whose key and certificate follow from a name.
fn stranger(id: &str, key: &str, decision: Admission) -> NewSigned {
    NewSigned {
        id: client(id),
        certificate: format!("certificate of {key}").into_bytes(),
        fingerprint: Digest::of(key.as_bytes()),
        address: Some("10.0.0.7:4711".into()),
        not_after: NOT_AFTER,
        decision,
        actor: "server".into(),
    }
}

async fn onboard(world: &World, id: &str, key: &str, decision: Admission, at: Moment) -> Onboarded {
    world.store.onboard(stranger(id, key, decision), at, b"empty".to_vec()).await.unwrap()
}

async fn accept(world: &World, id: &str) -> Result<SignedRecord, AdmissionError> {
    world.store.admit_signed(&client(id), NOT_AFTER, NOW, "operator ann", b"empty".to_vec()).await
}

async fn events(world: &World) -> Vec<(String, String)> {
    let events = world.store.events_after(0, 1000).await.unwrap();
    events.into_iter().map(|event| (event.kind, event.text)).collect()
}

async fn report_capabilities(world: &World, on: &ClientId, name: &str) {
    let device = DeviceId::parse(name).unwrap();
    let new = NewCapabilities {
        device,
        body: b"{}".to_vec(),
        simulated: false,
        holds: vec![],
        looked: 0,
        blind: None,
    };
    world.store.put_capabilities(on, new, NOW).await.unwrap();
}

#[tokio::test]
async fn mi_g1_028_a_repeat_gives_the_same_id_and_who_waits_is_no_client() {
    let world = World::new();
    let first = onboard(&world, "id-1", "key", Admission::Pending, NOW).await.record;
    assert_eq!((first.id.as_str(), first.decision), ("id-1", Admission::Pending));
    let again = onboard(&world, "id-2", "key", Admission::Pending, later(60)).await.record;
    assert_eq!((again.id.as_str(), again.first_seen, again.last_seen), ("id-1", NOW, later(60)));
    assert!(world.store.clients().await.unwrap().is_empty());
    assert!(world.store.device(&device("id-1")).await.unwrap().is_none());
    let kinds: Vec<String> = events(&world).await.into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["device.asks"], "asking again is nothing new");
    let world = world.reopened();
    assert_eq!(world.store.signed_clients().await.unwrap(), [again]);
}

#[tokio::test]
async fn who_is_accepted_is_a_client_of_its_form_with_a_manifest_and_a_device() {
    let world = World::new();
    onboard(&world, "id-1", "key", Admission::Pending, NOW).await;
    assert_eq!(accept(&world, "id-1").await.unwrap().decision, Admission::Accepted);
    let clients = world.store.clients().await.unwrap();
    assert_eq!((clients[0].dialect, clients[0].manifest_version), (Dialect::Signed, 1));
    assert_eq!(clients[0].manifest_body, b"empty");
    let found = world.store.device(&device("id-1")).await.unwrap().unwrap();
    assert_eq!((found.dialect, found.certificate_expires), (Dialect::Signed, Some(NOT_AFTER)));
    assert_eq!(world.picture("id-1").await.dialect, Dialect::Signed);
    // Twice is an answer of its own, and so is turning away who is in.
    let again = accept(&world, "id-1").await;
    assert!(matches!(again, Err(AdmissionError::Accepted(_))), "{again:?}");
    let rejected = world.store.reject_signed(&client("id-1"), NOW, "operator ann").await;
    assert!(matches!(rejected, Err(AdmissionError::Accepted(_))), "{rejected:?}");
    let unknown = world.store.reject_signed(&client("id-9"), NOW, "operator ann").await;
    assert!(matches!(unknown, Err(AdmissionError::Unknown(_))), "{unknown:?}");
    let (kind, text) = events(&world).await.pop().unwrap();
    assert!(kind == "device.accepted" && text.contains(&Digest::of(b"key").hex()), "{kind} {text}");
}

#[tokio::test]
async fn an_operators_no_counts_for_more_than_the_policy() {
    let world = World::new();
    onboard(&world, "id-1", "key", Admission::Pending, NOW).await;
    world.store.reject_signed(&client("id-1"), NOW, "operator ann").await.unwrap();
    let again = onboard(&world, "id-2", "key", Admission::Accepted, later(1)).await.record;
    assert_eq!((again.id.as_str(), again.decision), ("id-1", Admission::Rejected));
    // Until the operator says otherwise.
    assert_eq!(accept(&world, "id-1").await.unwrap().decision, Admission::Accepted);
}

#[tokio::test]
async fn a_policy_that_accepts_takes_those_who_wait_already() {
    let world = World::new();
    onboard(&world, "id-1", "key", Admission::Pending, NOW).await;
    let now = onboard(&world, "id-2", "key", Admission::Accepted, later(1)).await.record;
    assert_eq!((now.id.as_str(), now.decision), ("id-1", Admission::Accepted));
    assert_eq!(world.store.clients().await.unwrap().len(), 1);
    assert_eq!(
        onboard(&world, "id-3", "key", Admission::Accepted, later(2)).await.record.id.as_str(),
        "id-1"
    );
}

#[tokio::test]
async fn another_certificate_for_the_same_key_is_the_same_client() {
    let world = World::new();
    onboard(&world, "id-1", "key", Admission::Accepted, NOW).await;
    let renewed = NewSigned {
        certificate: b"renewed".to_vec(),
        not_after: Moment(NOT_AFTER.0 + 1),
        address: None,
        ..stranger("id-2", "key", Admission::Pending)
    };
    let record = world.store.onboard(renewed, later(9), b"empty".to_vec()).await.unwrap().record;
    assert_eq!((record.id.as_str(), record.decision), ("id-1", Admission::Accepted));
    assert_eq!(record.certificate, b"renewed");
    assert_eq!(record.address.as_deref(), Some("10.0.0.7:4711"));
    let found = world.store.device(&device("id-1")).await.unwrap().unwrap();
    assert_eq!(found.certificate_expires, Some(Moment(NOT_AFTER.0 + 1)));
}

#[tokio::test]
async fn strangers_cannot_fill_the_database() {
    let world = World::new();
    for number in 0..PENDING_MAX {
        let at = later(u64::from(number));
        onboard(&world, &format!("id-{number}"), &format!("key {number}"), Admission::Pending, at).await;
    }
    // The first one asks again, so the second one is who was quiet for longest. A clock that fell back does not
    // make the newest the oldest.
    onboard(&world, "id-0", "key 0", Admission::Pending, later(9_000)).await;
    let last = onboard(&world, "id-new", "key new", Admission::Pending, NOW).await;
    assert_eq!(last.forgotten, [client("id-1")]);
    let kept = world.store.signed_clients().await.unwrap();
    assert_eq!(kept.len(), PENDING_MAX as usize);
    assert!(kept.iter().any(|record| record.id == client("id-new")));
    let (kind, text) = events(&world).await.pop().unwrap();
    assert!(kind == "device.forgotten" && text.contains("id-1 "), "{kind} {text}");
    // Those who were decided about do not count.
    world.store.reject_signed(&client("id-0"), NOW, "operator ann").await.unwrap();
    assert!(onboard(&world, "id-more", "key more", Admission::Pending, NOW).await.forgotten.is_empty());
}

#[tokio::test]
async fn the_name_of_a_signed_client_is_not_given_to_another_kind() {
    let world = World::new();
    onboard(&world, "id-1", "key", Admission::Pending, NOW).await;
    onboard(&world, "id-2", "key 2", Admission::Accepted, NOW).await;
    for name in ["id-1", "id-2"] {
        let token = NewJoinToken {
            hash: Digest::of(name.as_bytes()),
            client: client(name),
            labels: labels(&[]),
            created_at: NOW,
            created_by: "operator ann".into(),
            expires_at: later(60),
        };
        let refused = world.store.create_join_token(token).await;
        assert!(matches!(refused, Err(JoinError::Joined(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn the_version_that_was_given_survives_and_never_falls() {
    let world = World::new();
    onboard(&world, "id-1", "key", Admission::Accepted, NOW).await;
    world.store.note_given(&client("id-1"), 7).await.unwrap();
    world.store.note_given(&client("id-1"), 3).await.unwrap();
    world.store.touch_signed(vec![(client("id-1"), later(5), "10.0.0.8:1".into())]).await.unwrap();
    world.store.touch_signed(vec![(client("id-1"), later(4), "10.0.0.9:1".into())]).await.unwrap();
    let record = world.reopened().store.signed_clients().await.unwrap().remove(0);
    assert_eq!((record.version_given, record.last_seen), (7, later(5)));
    assert_eq!(record.address.as_deref(), Some("10.0.0.8:1"));
}

#[tokio::test]
async fn a_moved_client_is_out_and_its_labels_are_where_they_belong() {
    let world = World::new();
    let old = onboard(&world, "id-1", "key", Admission::Accepted, NOW).await.record.id;
    report_capabilities(&world, &old, "press").await;
    let from = DeviceRef::new(old.clone(), DeviceId::parse("press").unwrap());
    world.label(&from, &[("site", "nord"), ("line", "1")]).await;
    world.join("line-1").await;
    world.label(&device("line-1"), &[("line", "2")]).await;
    world.settle("line-1").await;
    let pairs = vec![(from.clone(), device("line-1"))];
    let to = device("line-1");
    world.store.move_signed(&old, pairs.clone(), &to, NOW, "operator ann").await.unwrap();
    let new = world.store.device(&to).await.unwrap().unwrap();
    assert_eq!(new.labels, labels(&[("line", "2"), ("site", "nord")]), "what an operator said stays");
    assert!(new.unsettled > 0);
    let deployment = DeploymentId::from_uuid(uuid::Uuid::from_u128(7));
    assert_eq!(
        margrave_store::Candidate::from(&new).assignment_id(deployment),
        AssignmentId::derive(deployment, &from),
        "what ran there keeps its id"
    );
    assert_eq!(world.store.device(&from).await.unwrap().unwrap().standing, Standing::Retired);
    // Again is done already; elsewhere is not possible any more.
    world.store.move_signed(&old, pairs.clone(), &to, NOW, "operator ann").await.unwrap();
    world.join("line-3").await;
    let elsewhere = world.store.move_signed(&old, pairs, &device("line-3"), NOW, "operator ann").await;
    assert!(matches!(elsewhere, Err(AdmissionError::Moved { .. })), "{elsewhere:?}");
    let record = world.reopened().store.signed_clients().await.unwrap().remove(0);
    assert_eq!(record.moved_to, Some(to));
}

#[tokio::test]
async fn devices_are_found_by_client_and_by_form() {
    let world = World::new();
    world.join("line-1").await;
    let signed = onboard(&world, "id-1", "key", Admission::Accepted, NOW).await.record.id;
    report_capabilities(&world, &signed, "gw").await;
    report_capabilities(&world, &signed, "gw/a").await;
    let of: Vec<String> = world
        .store
        .devices_of(&signed)
        .await
        .unwrap()
        .iter()
        .map(|record| record.device.to_string())
        .collect();
    assert_eq!(of, ["id-1:gw", "id-1:gw/a"]);
    let signed: Vec<String> =
        world.store.devices_in(Dialect::Signed).await.unwrap().iter().map(DeviceRef::to_string).collect();
    assert_eq!(signed, ["id-1:gw", "id-1:gw/a"]);
    assert_eq!(world.store.devices_in(Dialect::Miaf).await.unwrap(), [device("line-1")]);
}

#[tokio::test]
async fn used_signatures_are_kept_until_they_are_over() {
    let world = World::new();
    let used = |client_name: &str, mark: u8, until: u64| UsedSignature {
        client: client(client_name),
        mark: [mark; 16],
        until: later(until),
    };
    let (one, two, other) = (used("id-1", 1, 300), used("id-1", 2, 400), used("id-2", 1, 350));
    world.store.keep_signatures(vec![two.clone(), one.clone()], NOW).await.unwrap();
    world.store.keep_signatures(vec![], NOW).await.unwrap();
    world.store.keep_signatures(vec![other.clone()], NOW).await.unwrap();
    // Kept again, for whatever reason: the longer counts.
    world.store.keep_signatures(vec![used("id-1", 1, 10)], NOW).await.unwrap();
    let world = world.reopened();
    let left = world.store.used_signatures(later(351)).await.unwrap();
    assert_eq!(left, std::slice::from_ref(&two));
    assert_eq!(world.store.used_signatures(NOW).await.unwrap(), [one, other, two]);
    // What is over goes when the next one comes, and not before somebody looked.
    world.store.keep_signatures(vec![used("id-3", 9, 800)], later(500)).await.unwrap();
    assert_eq!(world.store.used_signatures(NOW).await.unwrap(), [used("id-3", 9, 800)]);
}
