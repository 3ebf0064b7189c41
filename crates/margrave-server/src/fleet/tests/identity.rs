//! Tokens, joining, standing, sessions.

use super::*;

fn token(device: Option<&str>, valid_seconds: Option<u64>) -> operator::CreateJoinToken {
    let device = device.map(str::to_owned);
    operator::CreateJoinToken { device, labels: Default::default(), valid_seconds, git: false }
}

#[tokio::test]
async fn a_join_token_is_ready_to_paste_and_works_once() {
    let world = World::empty().await;
    let token = world.fleet.create_join_token(&ann(), token(Some("line-1"), None)).await.unwrap();
    let command =
        format!("margrave-agent join https://server.example:8443 --token {} --pin sha256:pin", token.token);
    assert_eq!(token.command, command);
    assert_eq!(world.fleet.standing(&client("line-1")), None);
    assert_eq!(world.fleet.redeem_join_token(&token.token).await.unwrap(), client("line-1"));
    let again = world.fleet.redeem_join_token(&token.token).await.unwrap_err();
    assert!(matches!(again, Error::TokenUsed), "{again}");
    assert_eq!(world.fleet.standing(&client("line-1")), Some(Standing::Accepted));
    let manifest = world.fleet.manifest(&client("line-1"), Dialect::Miaf).unwrap();
    assert_eq!((manifest.version, manifest.digest), (1, Digest::of(&manifest.body)));
    assert!(g2::manifest::read(&manifest.body).unwrap().manifest.entries().is_empty());
}

#[tokio::test]
async fn tokens_expire_after_a_day_and_nonsense_is_unknown() {
    let world = World::empty().await;
    let made = world.fleet.create_join_token(&ann(), token(None, None)).await.unwrap();
    assert!(made.device.starts_with("device-") && made.device.len() == 13, "{}", made.device);
    world.pass(24 * 3600);
    assert!(matches!(world.fleet.redeem_join_token(&made.token).await.unwrap_err(), Error::TokenExpired));
    for nonsense in ["", "x", &"x".repeat(100_000)] {
        assert!(matches!(world.fleet.redeem_join_token(nonsense).await.unwrap_err(), Error::TokenUnknown));
    }
}

#[tokio::test]
async fn what_cannot_be_a_token_is_refused_with_its_place() {
    let world = World::empty().await;
    for (want, place) in [
        (token(Some("a/b"), None), "/device"),
        (token(Some(".."), None), "/device"),
        (token(None, Some(0)), "/validSeconds"),
        (token(None, Some(31 * 24 * 3600)), "/validSeconds"),
    ] {
        let error = world.fleet.create_join_token(&ann(), want).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid(broken) if broken[0].place == place), "{error}");
    }
    let mut labels = token(None, None);
    labels.labels.insert("no spaces".into(), "x".into());
    assert!(matches!(world.fleet.create_join_token(&ann(), labels).await.unwrap_err(), Error::Invalid(_)));
}

#[tokio::test]
async fn id_018_176_a_living_or_retired_name_is_not_given_twice() {
    let world = World::empty().await;
    world.join("line-1", &[]).await;
    let taken = world.fleet.create_join_token(&ann(), token(Some("line-1"), None)).await.unwrap_err();
    assert!(matches!(taken, Error::Conflict { .. }), "{taken}");
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    let retired = world.fleet.create_join_token(&ann(), token(Some("line-1"), None)).await.unwrap_err();
    assert!(matches!(retired, Error::Conflict { .. }), "{retired}");
    assert!(retired.to_string().contains("another name"), "{retired}");
}

#[tokio::test]
async fn a_retired_client_is_out_at_once_and_whoever_waits_is_woken() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let etag = world.fleet.manifest(&client("line-1"), Dialect::Miaf).unwrap().digest;
    let fleet = world.fleet.clone();
    let waiting = tokio::spawn(async move {
        fleet.manifest_changed(&client("line-1"), etag, Duration::from_secs(600)).await;
    });
    let retired = world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    assert_eq!((retired.standing.as_str(), retired.condition.as_str()), ("retired", "retired"));
    assert_eq!(world.fleet.standing(&client("line-1")), Some(Standing::Retired));
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    let greeter = world.fleet.deployment(&name("greeter")).await.unwrap();
    assert!(greeter.assignments.is_empty());
    let refused = world.put("other", on(&["line-1"])).await.unwrap_err();
    assert!(refused.to_string().contains("retired"), "{refused}");

    // A mistake can be undone, and the device then has what it should have.
    let accepted = world.fleet.accept(&ann(), &device("line-1")).await.unwrap();
    assert_eq!((accepted.standing.as_str(), accepted.assignments.len()), ("accepted", 1));
    assert_eq!(world.workloads("line-1").await.len(), 1);
    let unknown = world.fleet.retire(&ann(), &device("nobody")).await.unwrap_err();
    assert!(matches!(unknown, Error::NotFound { .. }), "{unknown}");
}

/// Everything that the client's manifest lists, by deployment.
async fn listed(world: &World, on: &str) -> Vec<String> {
    let names = world.workloads(on).await.into_iter().map(|workload| workload.name);
    names.collect()
}

#[tokio::test]
async fn what_was_removed_while_a_client_was_retired_does_not_come_back_with_it() {
    let world = World::new().await;
    for name in ["line-1", "line-2"] {
        world.device(name, &[]).await;
    }
    world.put("greeter", on(&["line-1", "line-2"])).await.unwrap();
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    world.fleet.remove_deployment(&ann(), &name("greeter"), None).await.unwrap();
    let accepted = world.fleet.accept(&ann(), &device("line-1")).await.unwrap();
    assert!(accepted.assignments.is_empty());
    assert_eq!(listed(&world, "line-1").await, [""; 0]);
    assert_eq!(world.version("line-1"), 3, "a manifest without it, above the one that had it");
    // It is out for good, also for what comes next.
    world.put("other", on(&["line-1"])).await.unwrap();
    assert_eq!(listed(&world, "line-1").await, ["other"]);
}

#[tokio::test]
async fn what_changed_while_a_client_was_retired_is_what_it_gets() {
    let world = World::new().await;
    for name in ["line-1", "line-2"] {
        world.device(name, &[]).await;
    }
    world.put("moved", on(&["line-1", "line-2"])).await.unwrap();
    world.put("changed", labelled("site", "nord")).await.unwrap();
    let nord = operator::SetLabels { labels: [("site".into(), Some("nord".into()))].into() };
    world.fleet.label(&ann(), &device("line-1"), nord).await.unwrap();
    assert_eq!(listed(&world, "line-1").await.len(), 2);
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    // Meant for others now, and with another greeting.
    world.put("moved", on(&["line-2"])).await.unwrap();
    let mut changed = labelled("site", "nord");
    changed.parameters.insert("greeting".into(), json!("hi"));
    world.put("changed", changed).await.unwrap();
    world.fleet.accept(&ann(), &device("line-1")).await.unwrap();
    assert_eq!(listed(&world, "line-1").await, ["changed"]);
    let workload = world.workloads("line-1").await.remove(0);
    let mut values = workload.values_for(&workload.components[0].name);
    assert!(values.any(|(pointer, value)| pointer == "GREETING" && value.to_string() == "hi"));
}

#[tokio::test]
async fn what_a_device_said_before_it_was_retired_counts_when_it_is_accepted_again() {
    let world = World::new().await;
    for name in ["line-1", "line-2"] {
        world.device(name, &[("site", "nord")]).await;
    }
    for deployment in ["same", "changed", "moved", "gone"] {
        world.put(deployment, labelled("site", "nord")).await.unwrap();
        world.report(deployment, "line-1", State::Installed).await;
    }
    world.put("gone", on(&["line-2"])).await.unwrap();
    world.report("gone", "line-1", State::Deleted).await;
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    let mut changed = labelled("site", "nord");
    changed.parameters.insert("greeting".into(), json!("hi"));
    world.put("changed", changed).await.unwrap();
    world.put("moved", on(&["line-2"])).await.unwrap();
    let accepted = world.fleet.accept(&ann(), &device("line-1")).await.unwrap();
    let states = |of: &operator::Device| -> Vec<(String, String, bool)> {
        let all = of.assignments.iter();
        all.map(|of| (of.deployment.clone(), of.state.clone(), of.current)).collect()
    };
    // The device has nothing new to say about the first, and something to do about the others.
    let now = states(&accepted);
    assert!(now.contains(&("same".into(), "INSTALLED".into(), true)), "{now:?}");
    assert!(now.iter().any(|(name, _, current)| name == "changed" && !current), "{now:?}");
    assert!(now.iter().any(|(name, state, _)| name == "moved" && state != "INSTALLED"), "{now:?}");
    assert!(!now.iter().any(|(name, ..)| name == "gone"), "{now:?}");
    world.report("changed", "line-1", State::Installed).await;
    world.report("moved", "line-1", State::Deleted).await;
    let settled = world.fleet.device(&device("line-1")).await.unwrap();
    assert_eq!((settled.condition.as_str(), settled.assignments.len()), ("converged", 2));
}

#[tokio::test]
async fn a_child_is_not_retired_and_its_gateway_not_by_mistake() {
    let world = World::new().await;
    world.device("gw", &[]).await;
    let body = capabilities("gw/a", "4Gi", &["compose"]);
    let parsed = g2::capabilities::read(&body).unwrap();
    world.fleet.put_capabilities(&client("gw"), parsed, body).await.unwrap();
    let refused = world.fleet.retire(&ann(), &device("gw/a")).await.unwrap_err();
    assert!(matches!(refused, Error::Conflict { .. }), "{refused}");
    assert!(refused.to_string().contains("retire the gateway gw,"), "{refused}");
    assert_eq!(world.fleet.standing(&client("gw")), Some(Standing::Accepted));
    world.fleet.retire(&ann(), &device("gw")).await.unwrap();
    let refused = world.fleet.accept(&ann(), &device("gw/a")).await.unwrap_err();
    assert!(refused.to_string().contains("accept the gateway gw,"), "{refused}");
    assert_eq!(world.fleet.standing(&client("gw")), Some(Standing::Retired));
}

#[tokio::test]
async fn certificates_are_remembered() {
    let world = World::empty().await;
    world.join("line-1", &[]).await;
    for serial in ["01", "02", "03"] {
        world.fleet.record_svid(&client("line-1"), serial.into(), Moment(START + 60_000)).await.unwrap();
    }
    assert_eq!(world.fleet.svid_serials(&client("line-1")).await.unwrap(), ["03", "02"]);
    let shown = world.fleet.device(&device("line-1")).await.unwrap();
    assert!(shown.certificate_expires.is_some());
    assert!(world.fleet.record_svid(&client("nobody"), "01".into(), Moment(0)).await.is_err());
}
