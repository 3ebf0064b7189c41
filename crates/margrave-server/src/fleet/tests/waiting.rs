//! Polls that are held.

use super::*;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

const LONG: Duration = Duration::from_secs(600);

pub(super) fn is_waiting<F: Future>(wait: &mut Pin<Box<F>>) -> bool {
    matches!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending)
}

#[tokio::test]
async fn a_client_holds_only_so_many_polls() {
    let world = World::empty().await;
    world.join("line-1", &[]).await;
    world.join("line-2", &[]).await;
    let hold = |name: &str| {
        let (fleet, client) = (Arc::clone(&world.fleet), client(name));
        Box::pin(async move {
            let than = fleet.manifest(&client, Dialect::Miaf).unwrap().digest;
            fleet.manifest_changed(&client, than, LONG).await
        })
    };
    let mut held: Vec<_> = (0..8).map(|_| hold("line-1")).collect();
    assert!(held.iter_mut().all(is_waiting));
    assert!(!hold("line-1").await, "it was answered at once, and is told so");
    assert!(is_waiting(&mut hold("line-2")));
    // One that ends, for whatever reason, makes room.
    held.pop();
    assert!(is_waiting(&mut hold("line-1")));
}

#[tokio::test]
async fn nobody_waits_for_a_server_that_stops() {
    let world = World::empty().await;
    world.join("line-1", &[]).await;
    let client = client("line-1");
    let than = world.fleet.manifest(&client, Dialect::Miaf).unwrap().digest;
    let mut held = Box::pin(world.fleet.manifest_changed(&client, than, LONG));
    assert!(is_waiting(&mut held));
    world.fleet.release_waiting(Dialect::Signed);
    assert!(is_waiting(&mut held));
    world.fleet.release_waiting(Dialect::Miaf);
    assert!(!is_waiting(&mut held));
    assert!(!is_waiting(&mut Box::pin(world.fleet.manifest_changed(&client, than, LONG))));
}

#[tokio::test]
async fn a_poll_whose_connection_is_to_end_is_let_go_and_the_next_one_is_held() {
    let world = World::empty().await;
    world.join("line-1", &[]).await;
    world.join("line-2", &[]).await;
    let clients = [client("line-1"), client("line-2")];
    let hold = |at: usize| {
        let than = world.fleet.manifest(&clients[at], Dialect::Miaf).unwrap().digest;
        Box::pin(world.fleet.manifest_changed(&clients[at], than, LONG))
    };
    let (mut held, mut other) = (hold(0), hold(1));
    assert!(is_waiting(&mut held) && is_waiting(&mut other));
    world.fleet.release_held(&clients[0]);
    assert!(!is_waiting(&mut held) && is_waiting(&mut other));
    drop(held);
    assert!(is_waiting(&mut hold(0)));
}

#[tokio::test]
async fn what_follows_from_news_waits_until_everybody_has_them() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.device("line-2", &[]).await;
    let clients = [client("line-1"), client("line-2")];
    let mut held: Vec<_> = clients
        .iter()
        .map(|client| {
            let than = world.fleet.manifest(client, Dialect::Miaf).unwrap().digest;
            Box::pin(world.fleet.manifest_changed(client, than, LONG))
        })
        .collect();
    assert!(held.iter_mut().all(is_waiting));
    assert!(!is_waiting(&mut Box::pin(world.fleet.everybody_told())));
    world.put("greeter", on(&["line-1", "line-2"])).await.unwrap();
    assert!(is_waiting(&mut Box::pin(world.fleet.everybody_told())));
    assert!(!is_waiting(&mut held[0]));
    assert!(is_waiting(&mut Box::pin(world.fleet.everybody_told())));
    assert!(!is_waiting(&mut held[1]));
    assert!(!is_waiting(&mut Box::pin(world.fleet.everybody_told())));
}

#[tokio::test]
async fn what_became_durable_is_shown_although_whoever_asked_went_away() {
    let world = World::new().await;
    let names: Vec<String> = (0..200).map(|at| format!("line-{at}")).collect();
    for name in &names {
        world.device(name, &[("site", "nord")]).await;
    }
    world.device("other", &[]).await;
    let clients: Vec<_> = names.iter().map(|name| client(name)).collect();
    let mut published = 0;
    // Left earlier and later: before anything was decided, in the middle, and after all.
    for (round, patience) in [0, 3, 10, 30, 100, 1_000, 1_000_000].into_iter().enumerate() {
        let leaves = async {
            for _ in 0..patience {
                tokio::task::yield_now().await;
            }
        };
        let name = format!("greeter-{round}");
        tokio::select! {
            biased;
            done = world.put(&name, labelled("site", "nord")) => drop(done.unwrap()),
            () = leaves => {}
        }
        // Whatever was under way is written by the time that this is.
        world.put(&format!("other-{round}"), on(&["other"])).await.unwrap();
        let stored = world.fleet.store.pictures(clients.clone()).await.unwrap();
        let versions: BTreeSet<u64> = stored.iter().map(|picture| picture.manifest.version()).collect();
        assert_eq!(versions.len(), 1, "all of them or none");
        published = versions.into_iter().next().unwrap() - 1;
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while names.iter().any(|name| world.version(name) != published + 1) {
            assert!(std::time::Instant::now() < deadline, "round {round}");
            tokio::task::yield_now().await;
        }
    }
    assert!(published >= 1);
}

#[tokio::test]
async fn what_a_client_is_answered_is_no_sign_of_its_life() {
    let world = World::empty().await;
    world.join("line-1", &[]).await;
    let client = client("line-1");
    world.fleet.touched(&client);
    let heard = world.fleet.live.contact(&client).unwrap();
    world.pass(60);
    // It may have lost its power while its poll was held.
    world.fleet.manifest(&client, Dialect::Miaf).unwrap();
    assert_eq!(world.fleet.live.contact(&client), Some(heard));
    world.fleet.touched(&client);
    assert_eq!(world.fleet.live.contact(&client), Some(heard.after(Duration::from_secs(60))));
}
