//! A rollout that takes the place of another, and a site that keeps most of its devices all the same.

use super::*;

fn one_a_site() -> Option<serde_json::Value> {
    Some(json!({ "maxUnavailablePerSite": "1" }))
}

/// At each site one device has `yo`, and another was just given it; d2 and d3 said `state` of it.
async fn half_way(state: Option<State>) -> World {
    let world = World::plant(4).await;
    world.put("web", greeting("yo", one_a_site())).await.unwrap();
    for device in ["d0", "d1"] {
        world.report("web", device, State::Installed).await;
    }
    world.advance().await;
    assert_eq!(world.given(4).await, "yo yo yo yo");
    for device in ["d2", "d3"] {
        if let Some(state) = state {
            world.version(device);
            world.report("web", device, state).await;
        }
    }
    world
}

#[tokio::test]
async fn what_is_half_way_is_down_whoever_sent_it_there() {
    for state in [None, Some(State::Pending), Some(State::Updating), Some(State::RollingBack)] {
        let world = half_way(state).await;
        world.put("web", greeting("hej", one_a_site())).await.unwrap();
        assert_eq!(world.given(4).await, "yo yo hej hej", "{state:?}: the others of their sites run");
        world.advance().await;
        assert_eq!(world.given(4).await, "yo yo hej hej", "{state:?}");
        for device in ["d2", "d3"] {
            world.report("web", device, State::Installed).await;
        }
        world.advance().await;
        assert_eq!(world.given(4).await, "hej hej hej hej", "{state:?}");
    }
}

#[tokio::test]
async fn who_has_nothing_yet_is_not_half_way() {
    let world = World::plant(4).await;
    world.put("new", greeting("yo", one_a_site())).await.unwrap();
    let rollout = world.fleet.rollout(&name("new")).await.unwrap();
    assert_eq!(counts(&rollout.counts), "4: 0 done 2 under way 2 waiting 0 not yet 0 never 0 failed");
}

#[tokio::test]
async fn what_went_silent_half_way_keeps_its_site_from_more_and_is_named() {
    let world = half_way(Some(State::Updating)).await;
    world.pass(300);
    for device in ["d0", "d1", "d3"] {
        world.fleet.touched(&client(device));
    }
    world.put("web", greeting("hej", one_a_site())).await.unwrap();
    assert_eq!(world.given(4).await, "yo yo yo hej", "nobody knows whether d2 runs");
    world.report("web", "d3", State::Installed).await;
    world.advance().await;
    assert_eq!(world.given(4).await, "yo hej yo hej", "the other site goes on");
    let why = world.fleet.why("d0/web").await.unwrap();
    let codes: Vec<&str> = why.chain.iter().map(|cause| cause.code.as_str()).collect();
    assert_eq!(codes[..2], ["rollout-waiting", "rollout-site-full"]);
    assert_eq!(codes.last(), Some(&"silent"), "{why:?}");
    // It is back, and may be given the newest: it is no more down than before.
    world.fleet.touched(&client("d2"));
    world.advance().await;
    assert_eq!(world.given(4).await, "yo hej hej hej");
}
