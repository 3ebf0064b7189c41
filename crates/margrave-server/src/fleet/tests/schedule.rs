//! When devices talk and change, from the operator's choice to the manifest and back.

use margrave_core::lifecycle::State;
use margrave_core::schedule::Schedule;
use margrave_wire::schedule::ScheduleBody;
use margrave_wire::{Dialect, g2, operator};

use super::{World, ann, client, device, labelled, on};
use crate::fleet::{Error, Seen};

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

/// A file of the fleet or of a device that chooses a schedule.
fn choosing(kind: &str, id: Option<&str>, schedule: &str) -> String {
    let metadata = id.map(|id| format!("metadata:\n  id: {id}\n")).unwrap_or_default();
    format!("apiVersion: margrave/v1\nkind: {kind}\n{metadata}spec:\n  schedule: {schedule}\n")
}

#[tokio::test]
async fn mi_g2_210_choices_of_one_commit_are_judged_together() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.choose("fleet", hours(&["daily 08:00-10:00"])).await.unwrap();
    let shut = choosing("Device", Some("line-1"), "{downtime: ['daily 07:00-11:00']}");
    let open = choosing("Fleet", None, "{pollEverySeconds: 60}");
    let alone = world.by_hand(&[("devices/line-1.yaml", Some(&shut))]).await;
    let refused = world.adopt(alone).await.unwrap_err();
    assert!(refused[0].contains("no time to talk in any week"), "{refused:?}");
    // The hours that were in its way go with the same commit.
    let both = [("devices/line-1.yaml", Some(&shut[..])), ("fleet.yaml", Some(&open[..]))];
    world.adopt(world.by_hand(&both).await).await.unwrap();
    assert_eq!(world.fleet.device(&device("line-1")).await.unwrap().schedule_conflict, None);
    assert_eq!(world.told("line-1").downtime.len(), 1);

    // And the other way round: what only the same commit chooses is in the way already.
    world.adopt(world.by_hand(&[("devices/line-1.yaml", None)]).await).await.unwrap();
    let hours = choosing("Fleet", None, "{hours: ['daily 08:00-10:00']}");
    let both = [("devices/line-1.yaml", Some(&shut[..])), ("fleet.yaml", Some(&hours[..]))];
    let refused = world.adopt(world.by_hand(&both).await).await.unwrap_err();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].starts_with("devices/line-1.yaml:"), "{refused:?}");
}

#[tokio::test]
async fn a_commit_chooses_for_as_many_devices_as_there_are() {
    let world = World::new().await;
    let file = |number: usize| {
        let id = format!("line-{number}");
        (format!("devices/{id}.yaml"), choosing("Device", Some(&id), "{hours: ['daily 08:00-10:00']}"))
    };
    let files: Vec<(String, String)> = (0..2_000).map(file).collect();
    let files: Vec<(&str, Option<&str>)> =
        files.iter().map(|(path, text)| (path.as_str(), Some(text.as_str()))).collect();
    world.adopt(world.by_hand(&files).await).await.unwrap();
    assert_eq!(world.fleet.schedules().await.unwrap().len(), 2_000);
    // What is wrong with one of them is still found.
    let shut =
        choosing("Device", Some("line-7"), "{hours: ['daily 08:00-10:00'], downtime: ['daily 08:00-10:00']}");
    let refused = world.adopt(world.by_hand(&[("devices/line-7.yaml", Some(&shut))]).await).await;
    assert_eq!(refused.unwrap_err().len(), 1);
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
async fn what_another_one_wrote_since_it_was_read_is_not_lost() {
    let world = World::new().await;
    world.device("line-1", &[("site", "nord")]).await;
    let (fleet, ann) = (&world.fleet, &ann());
    let night = windows(&["daily 02:00-04:00"]);
    let sunday = windows(&["sun 02:00-04:00"]);
    // What was looked at is compared when it is its turn: a page or a push may have come first.
    let seen = Seen::This(world.choose("fleet", night.clone()).await.unwrap());
    world.choose("fleet", hours(&["daily 08:00-10:00"])).await.unwrap();
    let late = fleet.put_schedule_seen(ann, "fleet", &sunday, seen.clone()).await;
    assert!(matches!(late, Err(Error::Changed)), "{late:?}");
    let late = fleet.remove_schedule_seen(ann, "fleet", seen).await;
    assert!(matches!(late, Err(Error::Changed)), "{late:?}");
    let late = fleet.put_schedule_seen(ann, "fleet", &sunday, Seen::Nothing).await;
    assert!(matches!(late, Err(Error::Changed)), "{late:?}");
    let seen = Seen::This(fleet.schedule("fleet").await.unwrap());
    fleet.put_schedule_seen(ann, "fleet", &sunday, seen).await.unwrap();
    fleet.put_schedule_seen(ann, "device:line-1", &night, Seen::Nothing).await.unwrap();

    let label = |value: &str| operator::SetLabels { labels: [("line".into(), Some(value.into()))].into() };
    let seen = Seen::This(fleet.device(&device("line-1")).await.unwrap().labels);
    fleet.label_seen(ann, &device("line-1"), label("7"), seen.clone()).await.unwrap();
    let late = fleet.label_seen(ann, &device("line-1"), label("8"), seen).await;
    assert!(matches!(late, Err(Error::Changed)), "{late:?}");
    assert_eq!(fleet.device(&device("line-1")).await.unwrap().labels["line"], "7");
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
