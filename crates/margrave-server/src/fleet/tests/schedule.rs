//! When devices talk and change, from the operator's choice to the manifest and back.

use margrave_core::lifecycle::State;
use margrave_core::schedule::Schedule;
use margrave_wire::schedule::ScheduleBody;
use margrave_wire::{Dialect, g2, operator};

use super::{World, ann, client, device, labelled, on};
use crate::fleet::Error;

fn windows(texts: &[&str]) -> ScheduleBody {
    ScheduleBody { windows: Some(texts.iter().map(ToString::to_string).collect()), ..ScheduleBody::default() }
}

fn hours(texts: &[&str]) -> ScheduleBody {
    ScheduleBody { hours: Some(texts.iter().map(ToString::to_string).collect()), ..ScheduleBody::default() }
}

impl World {
    fn told(&self, on: &str) -> Schedule {
        let live = self.fleet.manifest(&client(on), Dialect::Miaf).unwrap();
        g2::manifest::read(&live.body).unwrap().manifest.schedule().clone()
    }

    async fn choose(&self, reach: &str, want: ScheduleBody) -> Result<operator::Schedule, Error> {
        self.fleet.put_schedule(&ann(), reach, &want).await
    }
}

#[tokio::test]
async fn mi_g2_210_choices_that_leave_no_time_together_are_told() {
    let world = World::new().await;
    world.device("line-1", &[("site", "nord")]).await;
    world.choose("fleet", hours(&["daily 08:00-10:00"])).await.unwrap();
    let shut = ScheduleBody { downtime: Some(vec!["daily 07:00-11:00".into()]), ..ScheduleBody::default() };
    let refused = world.choose("device:line-1", shut.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("no time to talk in any week"), "{refused}");
    assert_eq!(world.fleet.device(&device("line-1")).await.unwrap().schedule_conflict, None);
    // Who has the label is not known when something is chosen for it, so the device says so.
    world.choose("label:site=nord", shut).await.unwrap();
    let conflict = world.fleet.device(&device("line-1")).await.unwrap().schedule_conflict.unwrap();
    assert!(conflict.contains("so it follows none of them"), "{conflict}");
    assert_eq!(world.told("line-1"), Schedule::default());
    let why = world.fleet.why("line-1").await.unwrap();
    assert_eq!((why.chain[1].code.as_str(), why.converged), ("schedule-conflict", true));
    // What has nothing to do with it may still be chosen, and what mends it, too.
    world.choose("device:line-1", windows(&["sun 02:00-04:00 UTC"])).await.unwrap();
    world.choose("device:line-1", hours(&["daily 12:00-13:00"])).await.unwrap();
    assert_eq!(world.fleet.device(&device("line-1")).await.unwrap().schedule_conflict, None);
}

#[tokio::test]
async fn mi_g2_210_a_choice_reaches_those_it_is_for_and_nobody_else() {
    let world = World::new().await;
    world.device("line-1", &[("site", "nord")]).await;
    world.device("line-2", &[("site", "sued")]).await;
    world.put("greeter", on(&["line-1", "line-2"])).await.unwrap();
    let before = (world.version("line-1"), world.version("line-2"));
    world.choose("label:site=nord", windows(&["sun 02:00-04:00 Europe/Berlin"])).await.unwrap();
    assert_eq!((world.version("line-1"), world.version("line-2")), (before.0 + 1, before.1));
    assert_eq!(ScheduleBody::from(&world.told("line-1")), windows(&["sun 02:00-04:00 Europe/Berlin"]));
    assert_eq!(world.workloads("line-1").await.len(), 1, "and everything that was there before");
    // The same again is nothing new; who is labelled later follows.
    world.choose("label:site=nord", windows(&["sun 02:00-04:00 Europe/Berlin"])).await.unwrap();
    assert_eq!(world.version("line-1"), before.0 + 1);
    let label = operator::SetLabels { labels: [("site".to_owned(), Some("nord".to_owned()))].into() };
    world.fleet.label(&ann(), &device("line-2"), label).await.unwrap();
    assert_eq!(world.told("line-2"), world.told("line-1"));
    // The device's own goes before, and what is taken back is the other's again.
    world.choose("device:line-2", windows(&[])).await.unwrap();
    assert_eq!(world.told("line-2"), Schedule::default());
    world.fleet.remove_schedule(&ann(), "device:line-2").await.unwrap();
    assert_eq!(world.told("line-2"), world.told("line-1"));
    let listed = world.fleet.schedules().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].reach.as_str(), listed[0].changed_by.as_str()),
        ("label:site=nord", "operator ann")
    );
}

#[tokio::test]
async fn a_schedule_survives_deployments_restarts_and_new_devices() {
    let world = World::new().await;
    world.device("line-1", &[("site", "nord")]).await;
    world.choose("fleet", windows(&["daily 02:00-04:00"])).await.unwrap();
    world.put("greeter", labelled("site", "nord")).await.unwrap();
    let world = world.restarted().await;
    world.device("line-2", &[("site", "nord")]).await;
    for name in ["line-1", "line-2"] {
        assert_eq!(ScheduleBody::from(&world.told(name)), windows(&["daily 02:00-04:00 UTC"]), "{name}");
        assert_eq!(world.workloads(name).await.len(), 1, "{name}");
        let shown = world.fleet.device(&device(name)).await.unwrap();
        assert_eq!(shown.schedule, Some(windows(&["daily 02:00-04:00 UTC"])));
    }
}

#[tokio::test]
async fn what_nobody_can_follow_is_refused() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let refused = async |reach: &str, want: ScheduleBody| world.choose(reach, want).await.unwrap_err();
    for (reach, want) in [
        ("fleet", ScheduleBody::default()),
        ("fleet", hours(&["never"])),
        ("fleet", ScheduleBody { downtime: Some(vec!["daily 00:00-24:00".into()]), ..Default::default() }),
        ("everybody", windows(&["daily 02:00-04:00"])),
        ("label:x", windows(&["daily 02:00-04:00"])),
    ] {
        assert!(matches!(refused(reach, want.clone()).await, Error::Invalid(_)), "{reach} {want:?}");
    }
    assert!(matches!(refused("device:line-9", windows(&[])).await, Error::NotFound { .. }));
    assert!(matches!(world.fleet.remove_schedule(&ann(), "fleet").await, Err(Error::NotFound { .. })));
    assert_eq!(world.told("line-1"), Schedule::default());
}

#[tokio::test]
async fn why_tells_of_windows_holds_and_hours() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let put = async |greeting: &str| {
        let mut want = on(&["line-1"]);
        want.parameters.insert("greeting".into(), greeting.into());
        world.put("greeter", want).await.unwrap();
    };
    put("one").await;
    world.version("line-1");
    world.report("greeter", "line-1", State::Installed).await;
    put("two").await;
    world.version("line-1");
    world
        .report_with("greeter", "line-1", State::Installed, |report| {
            report.adopted_version -= 1;
            let detail = report.detail.as_mut().unwrap();
            detail.waiting = Some("held back by mes until 12:00: a batch runs".into());
        })
        .await;
    let why = world.fleet.why("line-1/greeter").await.unwrap();
    assert!(!why.converged);
    assert_eq!(why.chain[0].code, "waiting");
    assert_eq!(
        why.chain[0].text,
        "greeter on line-1 has a newer version waiting: held back by mes until 12:00: a batch runs"
    );
    let shown = world.fleet.device(&device("line-1")).await.unwrap();
    assert_eq!(shown.condition, "pending");
    // A device that may not talk is not silent, and says when it may.
    world.choose("device:line-1", hours(&["sun 03:00-03:01"])).await.unwrap();
    world.pass(24 * 3600);
    let shown = world.fleet.device(&device("line-1")).await.unwrap();
    assert_eq!(shown.condition, "pending");
    let status = world.fleet.status().await.unwrap();
    assert_eq!(status.devices.silent, 0);
    put("three").await;
    let why = world.fleet.why("line-1/greeter").await.unwrap();
    assert_eq!(why.chain[0].code, "out-of-hours", "{why:?}");
    assert!(why.chain[0].text.contains("by its schedule it may talk again at "), "{why:?}");
}
