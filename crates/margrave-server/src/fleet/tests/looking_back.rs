//! Earlier moments: what was wanted and reported then, and what lies between.

use margrave_wire::history::FleetThen;

use super::*;

fn at(offset_seconds: u64) -> String {
    Moment(START + offset_seconds * 1000).to_rfc3339()
}

fn brief(then: &FleetThen) -> Vec<String> {
    let line = |deployment: &margrave_wire::history::DeploymentThen| {
        let wanted = deployment.wanted.as_ref().map_or("-".to_owned(), |wanted| wanted.version.clone());
        format!("{} {wanted} {:?}", deployment.name, deployment.reported)
    };
    then.deployments.iter().map(line).collect()
}

/// A world whose clock is at the full second, and so are its commits.
async fn story() -> World {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.pass(100);
    world.put("web", on(&["line-1"])).await.unwrap();
    world.pass(100);
    world.report("web", "line-1", State::Installed).await;
    world.pass(99);
    let mut want = on(&["line-1"]);
    want.parameters.insert("greeting".into(), json!("yo"));
    world.put("web", want).await.unwrap();
    world.pass(100);
    world.report("web", "line-1", State::Updating).await;
    world.pass(99);
    world.fleet.remove_deployment(&ann(), &name("web"), None).await.unwrap();
    world.pass(100);
    world
}

#[tokio::test]
async fn the_fleet_is_shown_as_it_was_wanted_and_reported_at_a_moment() {
    let world = story().await;
    for (moment, expected) in [
        (50, vec![]),
        (150, vec!["web 1.0.0 {}"]),
        (250, vec![r#"web 1.0.0 {"INSTALLED": 1}"#]),
        (350, vec![r#"web 1.0.0 {"INSTALLED": 1}"#]),
        (450, vec![r#"web 1.0.0 {"UPDATING": 1}"#]),
        (550, vec![r#"web - {"UPDATING": 1}"#]),
    ] {
        let then = world.fleet.status_at(&at(moment)).await.unwrap();
        assert_eq!(brief(&then), expected, "after {moment} s");
        assert_eq!(then.packages, 1);
    }
    let ago = world.fleet.status_at("350s ago").await.unwrap();
    assert_eq!(brief(&ago), [r#"web 1.0.0 {"INSTALLED": 1}"#]);
    assert_eq!(ago.reports_since.as_deref(), Some(at(201).as_str()));
    // A restart forgets nothing of it.
    let world = world.restarted().await;
    assert_eq!(brief(&world.fleet.status_at(&at(450)).await.unwrap()), [r#"web 1.0.0 {"UPDATING": 1}"#]);
}

#[tokio::test]
async fn two_moments_differ_by_what_was_committed_in_between() {
    let world = story().await;
    let between = async |from: u64, to: u64| {
        let found = world.fleet.intent_between(&at(from), Some(&at(to))).await.unwrap();
        assert_eq!(found.more, 0);
        found.files
    };
    assert!(between(150, 250).await.is_empty(), "reports are no intent");
    let created = between(50, 150).await;
    assert_eq!((created.len(), created[0].path.as_str()), (1, "deployments/web.yaml"));
    assert!(created[0].before.is_none() && created[0].after.as_ref().unwrap().contains("package: hello"));
    let changed = between(150, 350).await.remove(0);
    assert!(!changed.before.unwrap().contains("yo") && changed.after.unwrap().contains("greeting: yo"));
    let gone = between(350, 550).await.remove(0);
    assert!(gone.before.is_some() && gone.after.is_none());
    assert!(between(50, 550).await.is_empty(), "there and back");
    let until_now = world.fleet.intent_between(&at(350), None).await.unwrap();
    assert_eq!((until_now.files.len(), until_now.to.message.as_str()), (1, "Remove web"));
    let commit = world.fleet.intent_commit(&until_now.to.commit).await.unwrap();
    assert_eq!((commit.files, commit.commit), (until_now.files, until_now.to));
    let unknown = world.fleet.intent_commit(&"0".repeat(40)).await.unwrap_err();
    assert!(matches!(unknown, Error::NotFound { .. }), "{unknown}");
}

#[tokio::test]
async fn moments_that_cannot_be_are_told_as_such() {
    let world = story().await;
    for (wrong, says) in [("monday", "is no moment"), ("", "is no moment"), ("2999-01-01", "lies ahead")] {
        let error = world.fleet.status_at(wrong).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid(broken) if broken[0].place == "/at"), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    let early = world.fleet.status_at("2001-01-01").await.unwrap_err();
    assert!(matches!(&early, Error::NotFound { what } if what.contains("known since later")), "{early}");
    let turned = world.fleet.intent_between("1s ago", Some("1h ago")).await.unwrap_err();
    assert!(turned.to_string().contains("say the earlier one first"), "{turned}");
    let early = world.fleet.intent_between("2001-01-01", None).await.unwrap_err();
    assert!(matches!(early, Error::NotFound { .. }), "{early}");
}
