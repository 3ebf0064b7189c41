//! What nobody sends: devices that fall silent and are heard of again.

use super::*;
use margrave_wire::schedule::ScheduleBody;

impl World {
    /// What was told since, each with its device.
    async fn heard_since(&self, sequence: u64) -> Vec<(String, Option<String>)> {
        let events = self.fleet.events(sequence, 1000).await.unwrap().into_iter();
        events
            .filter(|event| event.kind.starts_with("device.silent") || event.kind.starts_with("device.heard"))
            .map(|event| (event.text, event.device))
            .collect()
    }

    async fn newest(&self) -> u64 {
        self.fleet.recent_events(1).await.unwrap().first().map_or(0, |event| event.sequence)
    }

    /// The timer, some time later.
    async fn listen(&self, seconds: u64) {
        self.pass(seconds);
        self.fleet.flush_contacts().await.unwrap();
        self.fleet.listen().await.unwrap();
    }

    async fn silent(&self) -> u64 {
        self.fleet.status().await.unwrap().devices.silent
    }
}

#[tokio::test]
async fn a_few_are_told_by_name_when_they_fall_silent_and_when_they_are_back() {
    let world = World::empty().await;
    world.device("line-1", &[("site", "nord")]).await;
    world.device("line-2", &[]).await;
    let mut live = world.fleet.subscribe();
    while live.try_recv().is_ok() {}
    let begun = world.newest().await;
    world.listen(100).await;
    world.fleet.touched(&client("line-2"));
    world.listen(15).await;
    assert_eq!(world.heard_since(begun).await, []);
    world.listen(10).await;
    let told = world.heard_since(begun).await;
    let text = "line-1 fell silent: it was last heard of at 2026-09-21T14:13:20Z";
    assert_eq!(told, [(text.to_owned(), Some("line-1".to_owned()))]);
    assert_eq!(live.try_recv().unwrap().text, text, "pages are told");
    assert_eq!(world.fleet.device_events(&device("line-1"), 1).await.unwrap()[0].text, text);
    world.listen(5).await;
    assert_eq!(world.heard_since(begun).await.len(), 1, "told once");
    world.fleet.touched(&client("line-1"));
    world.listen(60).await;
    let told = world.heard_since(begun).await;
    assert_eq!(told[1], ("line-1 is heard of again".to_owned(), Some("line-1".to_owned())));
}

#[tokio::test]
async fn who_falls_silent_is_told_also_while_nothing_can_be_written_into_the_repository() {
    let world = World::empty().await;
    world.device("line-1", &[("site", "nord")]).await;
    let begun = world.newest().await;
    std::fs::remove_dir_all(world.data.path().join("intent.git")).unwrap();
    world.pass(125);
    let error = crate::tasks::hear(&world.fleet).await.unwrap_err();
    assert!(matches!(error, Error::Storage(_)), "its labels could not be written down: {error}");
    let told = world.heard_since(begun).await;
    assert!(told.len() == 1 && told[0].0.starts_with("line-1 fell silent"), "{told:?}");
}

#[tokio::test]
async fn a_site_that_goes_dark_is_one_event_that_concerns_everybody() {
    let world = World::empty().await;
    for number in 0..12 {
        let site = if number < 10 { "nord" } else { "sued" };
        world.join(&format!("line-{number}"), &[("site", site)]).await;
    }
    let begun = world.newest().await;
    world.listen(121).await;
    let together = "12 devices fell silent: 10 at site nord, 2 at site sued";
    assert_eq!(world.heard_since(begun).await, [(together.to_owned(), None)]);
    for number in 0..12 {
        world.fleet.touched(&client(&format!("line-{number}")));
    }
    world.listen(10).await;
    let told = world.heard_since(begun).await;
    assert_eq!(told[1].0, "12 devices are heard of again: 10 at site nord, 2 at site sued");
    assert_eq!(told.len(), 2);
}

#[tokio::test]
async fn a_server_that_was_away_itself_calls_nobody_silent_for_that() {
    let world = World::empty().await;
    world.join("early", &[]).await;
    world.listen(130).await;
    assert_eq!(world.silent().await, 1);
    for number in 0..8 {
        world.join(&format!("line-{number}"), &[]).await;
    }
    world.listen(60).await;
    let begun = world.newest().await;
    world.pass(24 * 3600);
    let world = world.restarted().await;
    assert_eq!(world.silent().await, 1, "who was silent before still is");
    assert_eq!(world.condition_of("line-0").await, "pending");
    world.listen(5).await;
    assert_eq!(world.heard_since(begun).await, [], "nobody is told of twice");
    for number in 1..8 {
        world.fleet.touched(&client(&format!("line-{number}")));
    }
    world.listen(50).await;
    assert_eq!(world.silent().await, 1);
    world.listen(10).await;
    assert_eq!(world.silent().await, 2, "a minute before, and a minute since");
    let told = world.heard_since(begun).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].1.as_deref(), Some("line-0"));
}

impl World {
    async fn condition_of(&self, name: &str) -> String {
        self.fleet.device(&device(name)).await.unwrap().condition
    }
}

#[tokio::test]
async fn who_is_retired_or_allowed_to_be_quiet_did_not_come_back() {
    let world = World::empty().await;
    world.join("line-1", &[]).await;
    world.join("line-2", &[]).await;
    world.listen(121).await;
    let begun = world.newest().await;
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    let seldom: ScheduleBody = serde_json::from_value(json!({"pollEverySeconds": 3600})).unwrap();
    world.fleet.put_schedule(&ann(), "device:line-2", &seldom).await.unwrap();
    world.listen(60).await;
    assert_eq!(world.silent().await, 0);
    assert_eq!(world.heard_since(begun).await, []);
}

#[tokio::test]
async fn hours_that_the_server_missed_are_no_reason_to_call_a_device_silent() {
    let world = World::empty().await;
    world.join("line-1", &[]).await;
    // It is 14:13. The next hour passes while the server is away.
    let hours: ScheduleBody = serde_json::from_value(json!({"hours": ["daily 14:00-15:00"]})).unwrap();
    world.fleet.put_schedule(&ann(), "device:line-1", &hours).await.unwrap();
    world.pass(45 * 60 + 30);
    world.fleet.touched(&client("line-1"));
    world.listen(3 * 3600).await;
    assert_eq!(world.silent().await, 0, "it may not talk now");
    world.pass(24 * 3600);
    let world = world.restarted().await;
    world.listen(3600).await;
    assert_eq!(world.silent().await, 0, "nobody was there in its hour");
    world.listen(24 * 3600).await;
    assert_eq!(world.silent().await, 1, "it missed the next one");
}

#[tokio::test]
async fn what_failed_is_counted_by_its_cause_and_not_by_how_many_were_looked_at() {
    let world = World::new().await;
    for number in 0..64 {
        world.device(&format!("line-{number:02}"), &[("plant", "a")]).await;
    }
    world.put("first", labelled("plant", "a")).await.unwrap();
    world.put("second", on(&["line-63"])).await.unwrap();
    for number in 0..62 {
        let code = if number % 20 == 0 { "unhealthy" } else { "pull-failed" };
        let fault = |report: &mut Report| report.fault.as_mut().unwrap().code = code.into();
        world.report_with("first", &format!("line-{number:02}"), State::Failed, fault).await;
    }
    // It fails twice and is one device.
    world.report("first", "line-63", State::Failed).await;
    world.report("second", "line-63", State::Failed).await;
    world.report("first", "line-62", State::Installed).await;
    let told = async || -> Vec<(String, String, u64, String)> {
        let failing = world.fleet.devices_failing(2).await.unwrap().into_iter();
        failing.map(|of| (of.deployment, of.code, of.count, of.names.join(" "))).collect()
    };
    // None of these reports says that it is tried again.
    let line = |code: &str, count: u64, names: &str| {
        ("first".into(), format!("given-up-{code}"), count, names.into())
    };
    assert_eq!(
        told().await,
        [line("pull-failed", 59, "line-01 line-02"), line("unhealthy", 4, "line-00 line-20")]
    );
    // Who is silent is told of as that.
    world.pass(121);
    world.fleet.touched(&client("line-40"));
    assert_eq!(told().await, [line("unhealthy", 1, "line-40")]);
}

#[tokio::test]
async fn a_device_that_is_held_back_and_silent_is_not_yet_its_turn() {
    let world = World::new().await;
    for device in ["line-1", "line-2"] {
        world.device(device, &[("plant", "a")]).await;
    }
    let strategy = serde_json::from_value(json!({"batches": ["1"]})).unwrap();
    let want = operator::PutDeployment { strategy: Some(strategy), ..labelled("plant", "a") };
    world.put("web", want).await.unwrap();
    let said = async || world.fleet.device(&device("line-2")).await.unwrap().assignments[0].reason.clone();
    assert_eq!(said().await.unwrap(), "web waits for the turn of line-2 in batch 2");
    world.pass(121);
    assert_eq!(
        said().await.unwrap(),
        "web is not yet on line-2: line-2 is not in contact, and gets its turn in batch 2 when it is back"
    );
}

#[tokio::test]
async fn who_gets_it_later_and_who_refuses_it_are_told_apart() {
    let world = World::new().await;
    for number in 1..=4 {
        world.device(&format!("line-{number}"), &[("plant", "a")]).await;
    }
    world.put("web", labelled("plant", "a")).await.unwrap();
    world.report("web", "line-1", State::Installed).await;
    let refuses = |report: &mut Report| report.fault.as_mut().unwrap().code = "not-eligible".into();
    world.report_with("web", "line-2", State::Failed, refuses).await;
    world.report("web", "line-3", State::Failed).await;
    let apart = async || {
        let shown = world.fleet.deployment(&name("web")).await.unwrap();
        (shown.counts.not_yet, shown.counts.never)
    };
    assert_eq!(apart().await, (0, 1));
    world.pass(121);
    assert_eq!(apart().await, (1, 1), "what was said was said");
}
