//! Repositories that are watched while nothing can be added.

use margrave_registry::{Action, Decision};

use super::git::git_is_here;
use super::images::serve;
use super::*;

#[tokio::test]
async fn a_version_that_cannot_be_added_at_the_moment_is_not_broken() {
    if !git_is_here() {
        return;
    }
    let world = World::new().await;
    let allow = |_: &http::request::Parts, _: Action, _: Option<&RepositoryName>| Decision::Allow;
    let address = serve(margrave_registry::router((*world.registry).clone(), allow)).await;
    let repository = format!("oci://{address}/packages/hello");
    let watched = world.fleet.put_watch(&ann(), &repository, Default::default()).await.unwrap();
    world.push("1.1.0", &description("1.1.0")).await;
    world.remote();
    let shown = world.fleet.look_at_watch(&watched.repository).await.unwrap();
    assert!(shown.tags.is_empty(), "{:?}", shown.tags);
    let trouble = shown.trouble.unwrap();
    assert!(trouble.contains("what is wanted follows a remote"), "{trouble}");
    // Nobody follows anything any more.
    let world = world.restarted().await;
    let shown = world.fleet.look_at_watch(&watched.repository).await.unwrap();
    assert_eq!(shown.trouble, None);
    let states: Vec<(&str, &str)> =
        shown.tags.iter().map(|tag| (tag.tag.as_str(), tag.state.as_str())).collect();
    assert_eq!(states, [("1.1.0", "added"), ("1.0.0", "added")]);
    // Other bytes under the same version are another matter.
    world.push("1.1.1", &description("1.1.0").replace("It greets.", "It waves.")).await;
    world.pass(3600);
    let shown = world.fleet.look_at_watch(&watched.repository).await.unwrap();
    let tag = shown.tags.iter().find(|tag| tag.tag == "1.1.1").unwrap();
    assert_eq!(tag.state, "broken", "{tag:?}");
}
