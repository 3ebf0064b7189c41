//! Gateways that move from signed requests to mutual TLS, with their children.

use super::waiting::is_waiting;
use super::*;

const FAMILY: [&str; 2] = ["", "/robot"];

/// A signed gateway with a child; a deployment names both, another one finds both by label.
async fn signed_family(world: &World) -> ClientId {
    let old = world.signed("gw").await;
    world.signed_says(&old, "gw/robot").await;
    for below in FAMILY {
        let label = operator::SetLabels { labels: [("site".to_owned(), Some("nord".to_owned()))].into() };
        world.fleet.label(&ann(), &device(&format!("gw{below}")), label).await.unwrap();
    }
    world.put("named", on(&["gw", "gw/robot"])).await.unwrap();
    world.put("labelled", labelled("site", "nord")).await.unwrap();
    old
}

/// The ids of both deployments on the gateway of this name and its child.
async fn ids(world: &World, gateway: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for below in FAMILY {
        for deployment in ["named", "labelled"] {
            ids.push(world.assignment(deployment, &format!("{gateway}{below}")).await.id);
        }
    }
    ids
}

async fn says_as_child(world: &World, gateway: &str, name: &str) {
    let body = capabilities(name, "4Gi", &["compose"]);
    let parsed = g2::capabilities::read(&body).unwrap();
    world.fleet.put_capabilities(&client(gateway), parsed, body).await.unwrap();
}

async fn move_family(world: &World) {
    world.fleet.move_device(&ann(), &device("gw"), &device("gw-new")).await.unwrap();
}

/// What ran on the family runs on under its ids, by its new names, and the child is heard when it speaks of it.
async fn check_moved(world: &World, before: &[String]) {
    assert_eq!(ids(world, "gw-new").await, before);
    let listed: Vec<String> =
        world.workloads("gw-new").await.iter().map(|workload| workload.id.to_string()).collect();
    assert!(before.iter().all(|id| listed.contains(id)), "{listed:?}");
    let mut named = world.fleet.deployment(&name("named")).await.unwrap().targets.devices;
    named.sort();
    assert_eq!(named, ["gw-new", "gw-new/robot"]);
    let report = Report {
        assignment: AssignmentId::parse(&before[2]).unwrap(),
        device: Some("gw-new/robot".parse().unwrap()),
        adopted_version: world.version("gw-new"),
        state: Reported::Installed,
        fault: None,
        components: vec![],
        detail: None,
        signed_at: None,
    };
    world.fleet.report(&client("gw-new"), report).await.unwrap();
    let shown = world.assignment("named", "gw-new/robot").await;
    assert_eq!((shown.state.as_str(), shown.current), ("INSTALLED", true));
}

#[tokio::test]
async fn a_child_that_reported_before_the_move_keeps_what_it_runs() {
    let world = World::new().await;
    signed_family(&world).await;
    let before = ids(&world, "gw").await;
    world.device("gw-new", &[]).await;
    says_as_child(&world, "gw-new", "gw-new/robot").await;
    move_family(&world).await;
    check_moved(&world, &before).await;
}

#[tokio::test]
async fn a_child_that_reports_after_the_move_keeps_what_it_ran() {
    let world = World::new().await;
    signed_family(&world).await;
    let before = ids(&world, "gw").await;
    // As documented: joined, moved, and only then started.
    world.join("gw-new", &[]).await;
    move_family(&world).await;
    let awaited = world.fleet.device(&device("gw-new/robot")).await.unwrap();
    assert_eq!((awaited.condition.as_str(), awaited.labels["site"].as_str()), ("pending", "nord"));
    let world = world.restarted().await;
    world.says("gw-new", "4Gi", &["compose"]).await;
    says_as_child(&world, "gw-new", "gw-new/robot").await;
    check_moved(&world, &before).await;
    // Withdrawn and reported again, it is still the same machine.
    let robot = "gw-new/robot".parse().unwrap();
    world.fleet.delete_capabilities(&client("gw-new"), &robot).await.unwrap();
    says_as_child(&world, "gw-new", "gw-new/robot").await;
    assert_eq!(ids(&world, "gw-new").await, before);
}

#[tokio::test]
async fn a_child_that_was_withdrawn_holds_nobody_back() {
    let world = World::new().await;
    let old = signed_family(&world).await;
    world.fleet.delete_capabilities(&old, &"gw/robot".parse().unwrap()).await.unwrap();
    world.device("gw-new", &[]).await;
    move_family(&world).await;
    assert_eq!(world.workloads("gw-new").await.len(), 2);
    // Back at its new gateway, it is meant where it was meant before.
    says_as_child(&world, "gw-new", "gw-new/robot").await;
    assert_eq!(world.workloads("gw-new").await.len(), 4);
}

#[tokio::test]
async fn a_client_that_speaks_for_a_second_device_is_not_moved_over_one() {
    let world = World::new().await;
    let old = signed_family(&world).await;
    world.signed_says(&old, "other").await;
    world.device("gw-new", &[]).await;
    says_as_child(&world, "gw-new", "gw-new/robot").await;
    let refused = world.fleet.move_device(&ann(), &device("gw"), &device("gw-new")).await.unwrap_err();
    assert!(refused.to_string().contains("speaks for other as well"), "{refused}");
    assert_eq!(world.fleet.standing(&old), Some(Standing::Accepted));
    let before = ids(&world, "gw").await;
    world.fleet.delete_capabilities(&old, &"other".parse().unwrap()).await.unwrap();
    move_family(&world).await;
    check_moved(&world, &before).await;
}

fn saying(devices: &[&str], text: &str, strategy: Option<serde_json::Value>) -> operator::PutDeployment {
    let mut want = on(devices);
    want.parameters.insert("greeting".into(), json!(text));
    want.strategy = strategy.map(|strategy| serde_json::from_value(strategy).unwrap());
    want
}

/// What the devices of a client are greeted with by one deployment.
async fn greeted(world: &World, deployment: &str, on: &str) -> String {
    let id = world.assignment(deployment, on).await.id;
    let workloads = world.workloads(on).await;
    let workload = workloads.iter().find(|workload| workload.id.to_string() == id).unwrap();
    let mut values = workload.values_for(&workload.components[0].name);
    values.find(|(pointer, _)| *pointer == "GREETING").unwrap().1.to_string()
}

#[tokio::test]
async fn what_was_said_of_one_device_is_said_of_the_one_in_its_place() {
    let world = World::new().await;
    signed_family(&world).await;
    let mut want = labelled("site", "nord");
    let named = operator::Targets { devices: vec!["gw".into()], ..Default::default() };
    let parameters = [("greeting".to_owned(), json!("moin"))].into();
    want.overrides = vec![operator::Override { targets: named, parameters }];
    world.put("labelled", want).await.unwrap();
    world.device("gw-new", &[]).await;
    says_as_child(&world, "gw-new", "gw-new/robot").await;
    move_family(&world).await;
    let shown = world.fleet.deployment(&name("labelled")).await.unwrap();
    assert_eq!(shown.overrides[0].targets.devices, ["gw-new"]);
    assert_eq!(greeted(&world, "labelled", "gw-new").await, "moin");
    let file = world.file("deployments/labelled.yaml").await.unwrap();
    assert!(file.contains("gw-new"), "{file}");
}

#[tokio::test]
async fn a_rollout_that_was_stopped_is_not_set_going_by_another_name() {
    let world = World::new().await;
    signed_family(&world).await;
    world.device("one", &[]).await;
    world.device("other", &[]).await;
    world.device("gw-new", &[]).await;
    says_as_child(&world, "gw-new", "gw-new/robot").await;
    // It names the gateway, and is not for it.
    let apart = json!([{ "targets": { "devices": ["gw"] }, "parameters": { "greeting": "ahoy" } }]);
    let want = |text: &str, strategy| operator::PutDeployment {
        overrides: serde_json::from_value(apart.clone()).unwrap(),
        ..saying(&["one", "other"], text, strategy)
    };
    world.put("apart", want("hi", None)).await.unwrap();
    for device in ["one", "other"] {
        world.report("apart", device, State::Installed).await;
    }
    world.put("apart", want("yo", Some(json!({ "canary": { "size": "1" } })))).await.unwrap();
    world.fleet.hold_rollout(&ann(), &name("apart"), RolloutVerb::Pause).await.unwrap();
    let before = world.version("other");
    move_family(&world).await;
    world.fleet.advance_rollouts().await.unwrap();
    let rollout = world.fleet.rollout(&name("apart")).await.unwrap();
    assert_eq!(rollout.state, "paused");
    assert_eq!((world.version("other"), greeted(&world, "apart", "other").await), (before, "hi".to_owned()));
    let told = world.fleet.why("other/apart").await.unwrap().chain;
    assert!(told[0].text.contains("keeps revision"), "{told:?}");
    let resumed = world.fleet.hold_rollout(&ann(), &name("apart"), RolloutVerb::Resume).await.unwrap();
    assert_eq!((resumed.state.as_str(), resumed.before), ("running", rollout.before));
}

#[tokio::test]
async fn nobody_is_moved_who_would_have_nothing_until_its_turn_comes() {
    let world = World::new().await;
    let old = signed_family(&world).await;
    world.device("other", &[]).await;
    world.device("gw-new", &[]).await;
    says_as_child(&world, "gw-new", "gw-new/robot").await;
    let all = ["gw", "gw/robot", "other"];
    world.put("named", saying(&all, "hi", None)).await.unwrap();
    world.put("named", saying(&all, "yo", Some(json!({ "canary": { "size": "1" } })))).await.unwrap();
    world.fleet.hold_rollout(&ann(), &name("named"), RolloutVerb::Pause).await.unwrap();
    let refused = world.fleet.move_device(&ann(), &device("gw"), &device("gw-new")).await.unwrap_err();
    let told = refused.to_string();
    assert!(told.contains("the rollout of named is paused"), "{told}");
    assert_eq!(world.fleet.standing(&old), Some(Standing::Accepted), "nothing was done");
    world.fleet.revert(&ann(), &name("named"), 2, None).await.unwrap();
    move_family(&world).await;
    assert_eq!(greeted(&world, "named", "gw-new").await, "hi");
}

#[tokio::test]
async fn whoever_takes_a_place_has_at_once_what_ran_there_also_where_changes_go_in_steps() {
    let world = World::new().await;
    signed_family(&world).await;
    world.device("gw-new", &[]).await;
    says_as_child(&world, "gw-new", "gw-new/robot").await;
    let all = ["gw", "gw/robot"];
    let steps = json!({ "canary": { "size": "1", "soakSeconds": 86400 } });
    world.put("named", saying(&all, "hi", Some(steps))).await.unwrap();
    // What it was before it went in steps is what it is again, so that nothing is under way.
    world.fleet.revert(&ann(), &name("named"), 1, None).await.unwrap();
    let mut same = saying(&all, "hi", None);
    world.put("named", same.clone()).await.unwrap();
    same.strategy = Some(serde_json::from_value(json!({ "batches": ["1"] })).unwrap());
    world.put("named", same).await.unwrap();
    assert_eq!(world.fleet.rollout(&name("named")).await.unwrap().counts.waiting, 0);
    move_family(&world).await;
    for device in ["gw-new", "gw-new/robot"] {
        let id = world.assignment("named", device).await;
        assert_eq!(id.device, device, "it is given to it");
    }
    assert!(world.workloads("gw-new").await.len() >= 4, "both deployments on the gateway and its child");
}

#[tokio::test]
async fn nobody_is_moved_while_others_say_what_is_wanted() {
    let world = World::new().await;
    let old = signed_family(&world).await;
    world.device("gw-new", &[]).await;
    world.remote();
    let head = world.fleet.intent().await.unwrap().commit;
    let refused = world.fleet.move_device(&ann(), &device("gw"), &device("gw-new")).await.unwrap_err();
    let told = refused.to_string();
    assert!(told.contains("remote.git") && told.contains("name gw-new there instead of gw"), "{told}");
    assert_eq!(world.fleet.standing(&old), Some(Standing::Accepted), "nothing was done");
    assert_eq!(world.fleet.intent().await.unwrap().commit, head);
}

#[tokio::test]
async fn a_move_that_was_cut_off_is_written_down_by_the_next_start() {
    let world = World::new().await;
    let old = signed_family(&world).await;
    let before = ids(&world, "gw").await;
    world.device("gw-new", &[]).await;
    says_as_child(&world, "gw-new", "gw-new/robot").await;
    // The power goes when the database has it, and nothing else.
    let pair = |below: &str| {
        let id = |gateway: &str| format!("{gateway}{below}").parse().unwrap();
        (DeviceRef::new(old.clone(), id("gw")), DeviceRef::new(client("gw-new"), id("gw-new")))
    };
    let pairs = FAMILY.map(pair).to_vec();
    world
        .fleet
        .store
        .move_signed(&old, pairs, &device("gw-new"), Moment(START), "operator ann")
        .await
        .unwrap();
    let world = world.restarted().await;
    check_moved(&world, &before).await;
    let file = world.file("deployments/named.yaml").await.unwrap();
    assert!(file.contains("gw-new/robot") && !file.contains("gw/robot"), "{file}");
    // Once.
    let main = world.main().await;
    let world = world.restarted().await;
    assert_eq!(world.main().await, main);
}

/// Two moves, the second of which begins when the first has had its turn to decide so many times.
async fn two_moves_at_once(turns: usize) {
    let world = World::new().await;
    for old in ["a", "b"] {
        world.signed(old).await;
        world.put(&format!("of-{old}"), on(&[old])).await.unwrap();
        world.device(&format!("{old}-new"), &[]).await;
    }
    world.put("of-both", on(&["a", "b"])).await.unwrap();
    let deciding = &world.fleet.deciding;
    let moved = |old: &'static str| {
        let (fleet, new) = (&world.fleet, device(&format!("{old}-new")));
        async move { fleet.move_device(&ann(), &device(old), &new).await.map(drop) }
    };
    let (mut first, mut ended) = (Box::pin(moved("a")), None);
    let mut held = deciding.read().await;
    for _ in 0..turns {
        // Until it waits for its turn; then whoever comes behind it has the next.
        while ended.is_none() && deciding.try_read().is_ok() {
            ended = tokio::time::timeout(Duration::from_millis(1), &mut first).await.ok();
        }
        if ended.is_some() {
            break;
        }
        let mut next = Box::pin(deciding.read());
        assert!(is_waiting(&mut next));
        drop(held);
        held = tokio::select! {
            next = &mut next => next,
            done = &mut first => {
                ended = Some(done);
                next.await
            }
        };
    }
    let second = moved("b");
    let mut both = Box::pin(async {
        match ended {
            Some(ended) => (ended, second.await),
            None => tokio::join!(first, second),
        }
    });
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut both).await.is_err());
    drop(held);
    let (one, other) = both.await;
    one.unwrap();
    other.unwrap();
    for (file, named) in
        [("of-a", vec!["a-new"]), ("of-b", vec!["b-new"]), ("of-both", vec!["a-new", "b-new"])]
    {
        assert_eq!(world.fleet.deployment(&name(file)).await.unwrap().targets.devices, named, "{turns}");
        let text = world.file(&format!("deployments/{file}.yaml")).await.unwrap();
        assert!(named.iter().all(|named| text.contains(named)), "{turns}: {text}");
    }
    // Nothing is left that the next start would have to write, or hold as a conflict.
    let main = world.main().await;
    let world = world.restarted().await;
    assert_eq!((world.main().await, world.fleet.intent().await.unwrap().conflict), (main, None), "{turns}");
}

#[tokio::test]
async fn of_two_moves_at_the_same_moment_both_stand_in_the_repository() {
    for turns in 0..5 {
        two_moves_at_once(turns).await;
    }
}
