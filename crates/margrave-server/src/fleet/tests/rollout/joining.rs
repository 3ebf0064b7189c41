//! Devices that come while a rollout is under way, and what their site makes of them.

use super::*;

/// One device a batch, and one of a site at a time: `d0` and `d1` have it, and `d2` is next in the north.
async fn with_a_newcomer_in_the_north() -> World {
    let world = World::plant(4).await;
    let strategy = json!({ "batches": ["1"], "maxUnavailablePerSite": "1", "onFailure": "halt" });
    world.put("web", greeting("yo", Some(strategy))).await.unwrap();
    world.report("web", "d0", State::Installed).await;
    world.device("new", &[("plant", "a"), ("site", "nord")]).await;
    world.advance().await;
    world.report("web", "d1", State::Installed).await;
    world.advance().await;
    world
}

#[tokio::test]
async fn who_comes_and_still_installs_the_version_before_is_waited_for_and_not_released_before_its_turn() {
    let world = with_a_newcomer_in_the_north().await;
    for state in [None, Some(State::Installing)] {
        if let Some(state) = state {
            world.report("web", "new", state).await;
        }
        world.advance().await;
        assert_eq!(world.given(4).await, "yo yo hi hi", "{state:?}: the site has one that does not run");
        assert_eq!(world.greets("new").await.as_deref(), Some("hi"), "{state:?}: its turn is the last");
        let why = world.fleet.why("d2/web").await.unwrap();
        assert!(why.chain[1].text.contains("its site has as many"), "{state:?}: {why:?}");
    }
    world.report("web", "new", State::Installed).await;
    world.advance().await;
    assert_eq!(
        (world.given(4).await.as_str(), world.greets("new").await.as_deref()),
        ("yo yo yo hi", Some("hi"))
    );
    for on in ["d2", "d3", "new"] {
        world.report("web", on, State::Installed).await;
        world.advance().await;
    }
    assert_eq!(world.greets("new").await.as_deref(), Some("yo"));
    world.report("web", "new", State::Installed).await;
    world.advance().await;
    assert_eq!(world.rollout().await.state, "done");
}

#[tokio::test]
async fn who_comes_and_fails_with_the_version_before_gets_the_one_that_may_mend_it() {
    let world = with_a_newcomer_in_the_north().await;
    world.report("web", "new", State::Failed).await;
    world.advance().await;
    assert_eq!(
        (world.given(4).await.as_str(), world.greets("new").await.as_deref()),
        ("yo yo hi hi", Some("yo"))
    );
    assert_eq!(world.rollout().await.state, "running", "it failed with what nobody rolls out any more");
    world.report("web", "new", State::Installed).await;
    world.advance().await;
    assert_eq!(world.given(4).await, "yo yo yo hi");
}
