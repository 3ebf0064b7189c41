//! What comes of devices that fail in a rollout.

use super::*;

#[tokio::test]
async fn a_rollout_that_is_to_go_back_says_so_before_it_does() {
    let world = World::plant(3).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"], "onFailure": "revert" })))).await.unwrap();
    world.report("web", "d0", State::Failed).await;
    // Nobody has looked yet; what the next look finds is true already.
    let rollout = world.rollout().await;
    assert_eq!(rollout.state, "reverting", "halted would wait for a person");
    let why = world.fleet.why("d2/web").await.unwrap();
    let codes: Vec<&str> = why.chain.iter().map(|cause| cause.code.as_str()).collect();
    assert_eq!(codes[..2], ["rollout-waiting", "rollout-reverting"]);
    assert!(why.chain[1].text.starts_with("the rollout is going back: 1 device of batch 1"), "{why:?}");
    world.advance().await;
    assert_eq!(world.given(3).await, "hi hi hi");
}
