//! The simulated runtime keeps the promises of the real one.

use std::time::Duration;

use margrave_agent::runtime::Runtime;
use margrave_agent::runtime::simulated::{
    Act, Disturbance, Drill, Effect, Fault, Latency, SimulatedRuntime, Simulation,
};
use margrave_core::device::{Health, Observation, Order};
use margrave_core::id::{AssignmentId, ComponentName};
use margrave_core::package::{ProfileKind, Revision, Timeout};
use margrave_core::report::FailureCode;

use crate::rig::text;

fn order(component: &str) -> Order {
    Order {
        assignment: AssignmentId::parse("0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11").unwrap(),
        component: ComponentName::parse(component).unwrap(),
        kind: ProfileKind::Compose,
        repository: "oci://margrave/components/web".into(),
        revision: Revision::parse("1.0.0").unwrap(),
        pin: None,
        images: Default::default(),
        values: vec![],
        wait: true,
        timeout: None,
    }
}

fn with_faults(faults: Vec<Fault>) -> SimulatedRuntime {
    SimulatedRuntime::new(Simulation { faults, ..Simulation::instant(7) })
}

fn fault(component: &str, act: Act, effect: Effect, times: Option<u32>) -> Fault {
    Fault { component: Some(ComponentName::parse(component).unwrap()), act, effect, times }
}

async fn seen(runtime: &SimulatedRuntime) -> Vec<Observation> {
    runtime.observe().await.unwrap()
}

#[tokio::test]
async fn what_was_ordered_runs_and_is_left_alone() {
    let runtime = SimulatedRuntime::new(Simulation::instant(1));
    let order = order("web");
    runtime.apply(&order).await.unwrap();
    let observation = Observation {
        assignment: order.assignment,
        component: order.component.clone(),
        fingerprint: Some(order.fingerprint()),
        health: Health::Healthy,
        restarts: 0,
    };
    assert_eq!(seen(&runtime).await, [observation]);
    runtime.apply(&order).await.unwrap();
    assert_eq!(runtime.starts(), 1);
}

#[tokio::test]
async fn what_it_writes_down_is_counted() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("simulated.json");
    let runtime = SimulatedRuntime::open(Simulation::instant(1), file.clone()).unwrap();
    assert_eq!(runtime.bytes_written(), 0);
    runtime.apply(&order("web")).await.unwrap();
    let counted = runtime.bytes_written();
    assert!(counted >= std::fs::metadata(&file).unwrap().len());
    runtime.apply(&order("web")).await.unwrap();
    assert_eq!(runtime.bytes_written(), counted, "there was nothing to do");
}

#[tokio::test]
async fn promise_7_volumes_survive_an_update_and_removal() {
    let runtime = SimulatedRuntime::new(Simulation::instant(1));
    let first = order("web");
    let second = Order { values: vec![("A".into(), text("b"))], ..first.clone() };
    runtime.apply(&first).await.unwrap();
    runtime.apply(&second).await.unwrap();
    assert_eq!(seen(&runtime).await[0].fingerprint, Some(second.fingerprint()));
    runtime.remove(first.assignment, &first.component).await.unwrap();
    assert!(seen(&runtime).await.is_empty());
    runtime.remove(first.assignment, &first.component).await.unwrap();
    let volume = runtime.volume(first.assignment, &first.component).unwrap();
    assert_eq!((volume.made_by, volume.uses), (first.fingerprint(), 2));
}

#[tokio::test]
async fn a_restarted_agent_finds_what_it_had_started() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("simulated.json");
    let order = order("web");
    let runtime = SimulatedRuntime::open(Simulation::instant(1), file.clone()).unwrap();
    runtime.apply(&order).await.unwrap();
    let before = seen(&runtime).await;
    let runtime = SimulatedRuntime::open(Simulation::instant(1), file.clone()).unwrap();
    assert_eq!(seen(&runtime).await, before);
    runtime.apply(&order).await.unwrap();
    assert_eq!(runtime.starts(), 1);
    std::fs::write(&file, b"{").unwrap();
    assert!(SimulatedRuntime::open(Simulation::instant(1), file).is_err());
}

#[tokio::test]
async fn an_apply_that_was_cut_off_leaves_something_half_started() {
    let slow = Latency::millis(600_000, 0);
    let runtime = SimulatedRuntime::new(Simulation { start: slow, ..Simulation::instant(1) });
    let order = order("web");
    let cut_off = tokio::time::timeout(Duration::from_millis(20), runtime.apply(&order)).await;
    assert!(cut_off.is_err());
    let seen = seen(&runtime).await;
    assert_eq!((seen[0].fingerprint, &seen[0].health), (None, &Health::Starting));
}

#[tokio::test]
async fn faults_happen_as_often_as_they_were_ordered() {
    let denied = Effect::Fail(FailureCode::PullDenied);
    let runtime = with_faults(vec![
        fault("web", Act::Prefetch, denied, Some(1)),
        fault("web", Act::Apply, Effect::Fail(FailureCode::StartFailed), Some(2)),
    ]);
    let (web, db) = (order("web"), order("db"));
    runtime.apply(&db).await.unwrap();
    let mut codes = Vec::new();
    for _ in 0..3 {
        let failure = runtime.apply(&web).await.unwrap_err();
        assert_eq!(failure.component.as_ref(), Some(&web.component));
        codes.push(failure.code);
    }
    assert_eq!(codes, [FailureCode::PullDenied, FailureCode::StartFailed, FailureCode::StartFailed]);
    runtime.apply(&web).await.unwrap();
}

#[tokio::test]
async fn what_never_gets_healthy_stays_and_is_seen() {
    let runtime = with_faults(vec![fault("web", Act::Apply, Effect::NeverHealthy, None)]);
    let failure = runtime.apply(&order("web")).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::Unhealthy);
    let seen = seen(&runtime).await;
    assert_eq!(seen[0].fingerprint, Some(order("web").fingerprint()));
    assert!(matches!(&seen[0].health, Health::Unhealthy(why) if why.contains("web")));
}

#[tokio::test]
async fn what_hangs_runs_into_the_components_timeout() {
    let runtime = with_faults(vec![fault("web", Act::Apply, Effect::Hang, None)]);
    let hurried = Order { timeout: Some(Timeout { minutes: 0, seconds: 0 }), ..order("web") };
    assert_eq!(runtime.apply(&hurried).await.unwrap_err().code, FailureCode::Timeout);
}

#[tokio::test]
async fn promise_5_what_somebody_did_is_seen_and_repaired() {
    let runtime = SimulatedRuntime::new(Simulation::instant(1));
    let order = order("web");
    assert!(!runtime.disturb(order.assignment, &order.component, Disturbance::Stop).unwrap());
    for disturbance in [
        Disturbance::Stop,
        Disturbance::Crash { exit_code: 1 },
        Disturbance::Remove,
        Disturbance::FailHealthCheck("no".into()),
    ] {
        runtime.apply(&order).await.unwrap();
        assert!(runtime.disturb(order.assignment, &order.component, disturbance).unwrap());
        assert!(seen(&runtime).await[0].health.complaint().is_some());
    }
    runtime.apply(&order).await.unwrap();
    assert_eq!(seen(&runtime).await[0].health, Health::Healthy);
}

#[tokio::test]
async fn without_waiting_it_is_starting_first() {
    let start = Latency::millis(30, 0);
    let runtime = SimulatedRuntime::new(Simulation { start, ..Simulation::instant(1) });
    runtime.apply(&Order { wait: false, ..order("web") }).await.unwrap();
    assert_eq!(seen(&runtime).await[0].health, Health::Starting);
    crate::rig::until("it is up", async || seen(&runtime).await[0].health == Health::Healthy).await;
}

#[tokio::test]
async fn what_the_real_runtime_refuses_is_refused() {
    let runtime = SimulatedRuntime::new(Simulation::instant(1));
    let steering = Order { values: vec![("PATH".into(), text("/tmp"))], ..order("web") };
    assert_eq!(runtime.prefetch(&steering).await.unwrap_err().code, FailureCode::DocumentInvalid);
    let custom = Order { kind: ProfileKind::Custom, ..order("web") };
    assert_eq!(runtime.apply(&custom).await.unwrap_err().code, FailureCode::RuntimeMissing);
    assert!(seen(&runtime).await.is_empty());
}

#[tokio::test]
async fn the_same_seed_takes_the_same_time() {
    let latency = Latency::millis(0, 40);
    let timed = async |seed| {
        let runtime =
            SimulatedRuntime::new(Simulation { pull: latency, start: latency, ..Simulation::instant(seed) });
        let began = tokio::time::Instant::now();
        runtime.apply(&order("web")).await.unwrap();
        began.elapsed()
    };
    let (first, again) = tokio::join!(timed(3), timed(3));
    assert!(first.abs_diff(again) < Duration::from_millis(20), "{first:?} {again:?}");
}

#[tokio::test]
async fn a_drill_fails_with_its_value_and_with_no_other() {
    let drill = |value: &str, effect| Drill { pointer: "DRILL".into(), value: value.into(), effect };
    let drills =
        vec![drill("start", Effect::Fail(FailureCode::StartFailed)), drill("health", Effect::NeverHealthy)];
    let runtime = SimulatedRuntime::new(Simulation { drills, ..Simulation::instant(1) });
    let with = |value: &str| Order { values: vec![("DRILL".into(), text(value))], ..order("web") };
    for (value, code) in [("start", FailureCode::StartFailed), ("health", FailureCode::Unhealthy)] {
        assert_eq!(runtime.apply(&with(value)).await.unwrap_err().code, code);
    }
    for value in ["none", "health "] {
        runtime.apply(&with(value)).await.unwrap();
        assert!(seen(&runtime).await.iter().all(|component| component.health == Health::Healthy));
    }
}
