//! Polls that are held.

use super::*;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

const LONG: Duration = Duration::from_secs(600);

fn is_waiting(wait: &mut Pin<Box<impl Future<Output = bool>>>) -> bool {
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
            let than = fleet.manifest(&client).unwrap().etag;
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
    let than = world.fleet.manifest(&client).unwrap().etag;
    let mut held = Box::pin(world.fleet.manifest_changed(&client, than, LONG));
    assert!(is_waiting(&mut held));
    world.fleet.release_waiting();
    assert!(!is_waiting(&mut held));
    assert!(!is_waiting(&mut Box::pin(world.fleet.manifest_changed(&client, than, LONG))));
}
