//! Rollouts from outside: REST, the page, and that they move by themselves.

use margrave_wire::operator;
use margrave_wire::rollout::Rollout;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::browser::{Browser, location, text};
use crate::line::DEADLINE;
use crate::operator::{Program, to};
use crate::plant::{self, Plant};
use crate::stock;

async fn two(plant: &Plant) -> Program {
    stock::gate(plant).await;
    for device in ["press-1", "press-2"] {
        stock::device(plant, device, 4).await;
    }
    Program::new(plant).await
}

fn in_steps() -> operator::PutDeployment {
    let strategy = serde_json::from_value(json!({ "batches": ["1"] })).unwrap();
    operator::PutDeployment { strategy: Some(strategy), ..to(&["press-1", "press-2"]) }
}

#[tokio::test]
async fn a_rollout_is_paused_resumed_and_aborted_over_rest() {
    let plant = Plant::new().await;
    let mut program = two(&plant).await;
    program.get("/deployments/north/rollout").await.is_problem(404);
    let wrong = json!({
        "package": "gate", "targets": { "devices": ["press-1"] }, "parameters": { "owner": "me" },
        "strategy": { "batches": ["none"], "threshold": "0%" },
    });
    let problem = program.put("/deployments/north", &[], &wrong).await;
    problem.is_problem(422);
    let problem: serde_json::Value = problem.json();
    assert_eq!(problem["violations"][0]["place"], "/strategy/batches/0", "{problem}");
    assert_eq!(problem["violations"][1]["place"], "/strategy/threshold", "{problem}");

    let made: operator::Deployment = program.put("/deployments/north", &[], &in_steps()).await.is(201).json();
    assert_eq!((made.counts.total, made.counts.waiting, made.strategy.batches.len()), (2, 1, 1));
    let mut verb = async |verb: &str| {
        program.send("POST", &format!("/deployments/north/rollout/{verb}"), &[], String::new()).await
    };
    verb("resume").await.is(200);
    let paused: Rollout = verb("pause").await.is(200).json();
    assert_eq!((paused.state.as_str(), paused.counts.waiting), ("paused", 1));
    let resumed: Rollout = verb("resume").await.is(200).json();
    assert_eq!(resumed.state, "running");
    let aborted: Rollout = verb("abort").await.is(200).json();
    assert_eq!(aborted.state, "aborted");
    assert!(verb("resume").await.is_problem(409).contains("there is nothing to resume"));
    let shown: operator::Deployment = program.get("/deployments/north").await.is(200).json();
    assert_eq!(shown.rollout.unwrap().state, "aborted");
}

#[tokio::test]
async fn a_rollout_that_stopped_is_told_on_the_fleet_page_with_its_why_and_resumed_there() {
    let plant = Plant::new().await;
    two(&plant).await.put("/deployments/north", &[], &in_steps()).await.is(201);
    let mut browser = Browser::signed_in(&plant).await;
    let paused = browser.post("/deployments/north/rollout/pause", &[]).await;
    assert_eq!(location(paused.is(303)), "/deployments/north");
    let page = browser.page("/").await;
    assert!(page.contains("id=\"need-rollout-north\""), "{page}");
    assert!(page.contains("action=\"/deployments/north/rollout/resume\""), "{page}");
    assert!(page.contains("margrave rollout resume north<"), "the button has its command: {page}");
    assert!(page.contains("href=\"/why?kind=rollout&#38;subject=north\""), "{page}");
    let why = browser.page("/why?kind=rollout&subject=north").await;
    assert!(why.contains("the rollout was paused by") && why.contains("rollout-paused"), "{why}");
    browser.post("/deployments/north/rollout/resume", &[]).await.is(303);
    assert!(!browser.page("/").await.contains("need-rollout-north"));
}

#[tokio::test]
async fn a_rollout_is_aborted_from_its_page_and_whoever_is_left_behind_needs_a_person() {
    let plant = Plant::new().await;
    two(&plant).await.put("/deployments/north", &[], &in_steps()).await.is(201);
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/deployments/north").await;
    assert!(page.contains("href=\"/deployments/north/rollout/abort\""), "it is asked back: {page}");
    let ask = browser.page("/deployments/north/rollout/abort").await;
    assert!(ask.contains("Abort the rollout of north, revision 1?"), "{ask}");
    assert!(ask.contains("margrave rollout abort north<"), "{ask}");
    let aborted = browser.post("/deployments/north/rollout/abort", &[]).await;
    assert_eq!(location(aborted.is(303)), "/deployments/north");
    let north = "north".parse().unwrap();
    assert_eq!(plant.server.fleet().rollout(&north).await.unwrap().state, "aborted");
    let page = browser.page("/deployments/north").await;
    assert!(page.contains("data-state=\"aborted\"") && !page.contains("/rollout/abort"), "{page}");
    // There is nothing to go on with.
    browser.post("/deployments/north/rollout/resume", &[]).await.is(409);
    let page = browser.page("/").await;
    let (_, need) = page.split_once("id=\"need-rollout-north\"").unwrap();
    let need = need.split_once("</li>").unwrap().0;
    assert!(need.contains("1 device was left behind"), "{need}");
    assert!(need.contains("href=\"/deployments/north/edit\"") && !need.contains("<form"), "{need}");
    assert!(need.contains("href=\"/why?kind=rollout&#38;subject=north\""), "{need}");
}

#[tokio::test]
async fn who_wanted_to_end_a_rollout_does_not_end_the_next_one() {
    let plant = Plant::new().await;
    let mut program = two(&plant).await;
    program.put("/deployments/north", &[], &in_steps()).await.is(201);
    let mut browser = Browser::signed_in(&plant).await;
    let ask = browser.page("/deployments/north/rollout/abort").await;
    assert!(ask.contains("name=\"seen\" value=\"1\""), "{ask}");
    let shown = browser.page("/deployments/north").await;
    assert!(shown.contains("name=\"seen\" value=\"1\""), "so is pausing: {shown}");
    // Somebody changes it meanwhile, which begins another.
    let mut next = in_steps();
    next.parameters.insert("rate".to_owned(), json!(9));
    program.put("/deployments/north", &[], &next).await.is(200);
    for verb in ["abort", "pause"] {
        let told = browser.post(&format!("/deployments/north/rollout/{verb}"), &[("seen", "1")]).await;
        let told = text(told.is(409));
        assert!(told.contains("is at revision 2, you saw the rollout of revision 1"), "{told}");
        let path = format!("/deployments/north/rollout/{verb}");
        program.send("POST", &path, &[("if-match", "\"1\"")], String::new()).await.is_problem(412);
    }
    let north = "north".parse().unwrap();
    assert_eq!(plant.server.fleet().rollout(&north).await.unwrap().state, "running");
    browser.post("/deployments/north/rollout/pause", &[("seen", "x")]).await.is(400);
    let paused =
        program.send("POST", "/deployments/north/rollout/pause", &[("if-match", "\"2\"")], String::new());
    paused.await.is(200);
    // The fleet's page resumes what it shows and nothing else.
    let (_, need) = browser
        .page("/")
        .await
        .split_once("id=\"need-rollout-north\"")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert!(need.contains("name=\"seen\" value=\"2\""), "{need}");
    browser.post("/deployments/north/rollout/abort", &[("seen", "2")]).await.is(303);
    assert_eq!(plant.server.fleet().rollout(&north).await.unwrap().state, "aborted");
}

#[tokio::test]
async fn a_rollout_moves_by_itself_as_devices_report() {
    let plant = Plant::new().await;
    let mut program = two(&plant).await;
    program.put("/deployments/north", &[], &in_steps()).await.is(201);
    let until = Instant::now() + DEADLINE;
    let mut told = 0;
    while told < 2 {
        assert!(Instant::now() < until, "the second device was never released");
        let shown: operator::Deployment = program.get("/deployments/north").await.is(200).json();
        let mut given = shown.assignments.iter().filter(|assignment| assignment.waiting.is_none());
        let pending = given.find(|assignment| assignment.state == "PENDING");
        let Some(pending) = pending else {
            sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        stock::report(&plant, &pending.device, |_| {}).await;
        told += 1;
    }
    loop {
        let rollout: Rollout = program.get("/deployments/north/rollout").await.is(200).json();
        if rollout.state == "done" {
            assert_eq!((rollout.counts.done, rollout.batches.len()), (2, 2));
            break;
        }
        assert!(Instant::now() < until, "{rollout:?}");
        sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn many_rollouts_that_wait_for_a_person_leave_room_for_what_else_does() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    for number in 0..9 {
        let devices = [format!("press-{number}a"), format!("press-{number}b")];
        for device in &devices {
            stock::device(&plant, device, 4).await;
        }
        let mut want = in_steps();
        want.targets.devices = devices.into();
        let name = format!("line-{number}");
        plant.server.fleet().put_deployment(&plant::operator(), &name.parse().unwrap(), want).await.unwrap();
        browser.post(&format!("/deployments/{name}/rollout/pause"), &[]).await.is(303);
    }
    let page = browser.page("/").await;
    assert_eq!(page.matches("<li id=\"need-rollout-").count(), 3, "{page}");
    assert!(page.contains("6 more rollouts") && page.contains("line-3, line-4, line-5, …"), "{page}");
}
