//! What operators see: conditions, reasons, history, events.

use super::*;

async fn one_greeter() -> World {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    world
}

impl World {
    async fn condition(&self, name: &str) -> String {
        self.fleet.device(&device(name)).await.unwrap().condition
    }

    async fn code(&self, subject: &str) -> String {
        self.fleet.why(subject).await.unwrap().chain.pop().unwrap().code
    }
}

#[tokio::test]
async fn an_assignment_is_followed_from_pending_to_gone() {
    let world = one_greeter().await;
    let pending = world.assignment("greeter", "line-1").await;
    assert_eq!((pending.state.as_str(), pending.current), ("PENDING", false));
    assert_eq!(pending.reason.as_deref(), Some("line-1 has not fetched manifest version 2 yet"));
    world.fleet.manifest(&client("line-1"), Dialect::Miaf).unwrap();
    assert_eq!(world.code("line-1/greeter").await, "not-reported");
    for state in [State::Pending, State::Installing, State::Installed] {
        world.report("greeter", "line-1", state).await;
        let shown = world.assignment("greeter", "line-1").await;
        assert_eq!((shown.state.as_str(), shown.current), (state.as_str(), true));
    }
    assert_eq!(world.condition("line-1").await, "converged");
    let mut change = on(&["line-1"]);
    change.parameters.insert("greeting".into(), json!("hi"));
    world.put("greeter", change).await.unwrap();
    let shown = world.assignment("greeter", "line-1").await;
    assert_eq!((shown.state.as_str(), shown.current), ("INSTALLED", false));
    assert_eq!(world.condition("line-1").await, "pending");
    world.report("greeter", "line-1", State::Updating).await;
    world.report("greeter", "line-1", State::Installed).await;
    let history = world.fleet.transitions(&name("greeter"), &device("line-1")).await.unwrap();
    let steps: Vec<_> = history.iter().map(|step| (step.state.as_str(), step.manifest_version)).collect();
    let expected = [("PENDING", 2), ("INSTALLING", 2), ("INSTALLED", 2), ("UPDATING", 3), ("INSTALLED", 3)];
    assert_eq!(steps, expected);
    assert!(world.fleet.transitions(&name("greeter"), &device("nobody")).await.is_err());
}

#[tokio::test]
async fn a_foreign_devices_second_install_is_an_update() {
    let world = one_greeter().await;
    for (state, expected) in [
        (Reported::Installing, "INSTALLING"),
        (Reported::Installed, "INSTALLED"),
        (Reported::Installing, "UPDATING"),
    ] {
        world
            .report_with("greeter", "line-1", State::Installed, |report| {
                report.state = state;
                report.detail = None;
            })
            .await;
        assert_eq!(world.assignment("greeter", "line-1").await.state, expected);
    }
}

#[tokio::test]
async fn a_failure_says_what_happened_and_what_to_do() {
    let world = one_greeter().await;
    world.report("greeter", "line-1", State::Failed).await;
    let shown = world.fleet.device(&device("line-1")).await.unwrap();
    assert_eq!(shown.condition, "failed");
    assert!(shown.reason.unwrap().contains("the registry does not answer"));
    assert_eq!(shown.assignments[0].error.as_ref().unwrap().code, "pull-failed");
    for subject in ["line-1", "line-1/greeter"] {
        let why = world.fleet.why(subject).await.unwrap();
        let last = why.chain.last().unwrap();
        assert!(!why.converged);
        assert_eq!(last.code, "pull-failed");
        assert!(last.hint.as_ref().unwrap().contains("registry"), "{last:?}");
    }
}

#[tokio::test]
async fn silence_comes_before_everything_but_retirement() {
    let world = one_greeter().await;
    world.report("greeter", "line-1", State::Failed).await;
    world.pass(121);
    assert_eq!(world.condition("line-1").await, "silent");
    assert_eq!(world.code("line-1").await, "silent");
    let status = world.fleet.status().await.unwrap();
    assert_eq!((status.devices.total, status.devices.silent, status.devices.failed), (1, 1, 0));
    world.fleet.touched(&client("line-1"));
    assert_eq!(world.condition("line-1").await, "failed");
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    assert_eq!(world.condition("line-1").await, "retired");
    assert_eq!(world.code("line-1").await, "device-retired");
    assert_eq!(world.fleet.status().await.unwrap().devices.total, 0);
}

#[tokio::test]
async fn every_reason_has_its_code() {
    let world = World::new().await;
    let want = operator::CreateJoinToken {
        device: Some("awaited".into()),
        labels: Default::default(),
        valid_seconds: None,
        git: false,
    };
    world.fleet.create_join_token(&ann(), want).await.unwrap();
    assert_eq!(world.code("awaited").await, "never-joined");
    world.join("fresh", &[]).await;
    assert_eq!(world.code("fresh").await, "capabilities-missing");
    assert_eq!(world.condition("fresh").await, "pending");
    world.device("line-1", &[]).await;
    assert_eq!(world.code("line-1").await, "converged");
    assert!(world.fleet.why("line-1").await.unwrap().converged);
    world.put("greeter", on(&["line-1"])).await.unwrap();
    assert_eq!(world.code("fresh/greeter").await, "not-targeted");
    assert_eq!(world.code("line-1").await, "manifest-not-fetched");
    world.fleet.manifest(&client("line-1"), Dialect::Miaf).unwrap();
    world.report("greeter", "line-1", State::Installing).await;
    assert_eq!(world.code("line-1/greeter").await, "installing");
    world.report("greeter", "line-1", State::Installed).await;
    let why = world.fleet.why("line-1/greeter").await.unwrap();
    assert!(why.converged && why.chain[0].code == "converged");
    world
        .put("everywhere", operator::PutDeployment { profile: Some("cluster".into()), ..labelled("a", "b") })
        .await
        .unwrap();
    let label = operator::SetLabels { labels: [("a".into(), Some("b".into()))].into() };
    world.fleet.label(&ann(), &device("line-1"), label).await.unwrap();
    assert_eq!(world.code("line-1/everywhere").await, "misfit");
    world.pass(1000);
    assert_eq!(world.code("fresh").await, "silent");
    for unknown in ["nobody", "nobody/greeter", "line-1/none", "", "a b/c", &"x".repeat(5000)] {
        let error = world.fleet.why(unknown).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{unknown}: {error}");
    }
}

#[tokio::test]
async fn who_asks_about_a_name_of_another_kind_is_told_what_to_type() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    for (kind, subject, told) in [
        (
            operator::WhyKind::Device,
            "greeter",
            "device greeter; a deployment has that name: `margrave why deployment greeter`",
        ),
        (operator::WhyKind::Device, "nobody", "device nobody"),
        (operator::WhyKind::Device, "nobody/greeter", "device nobody"),
        (
            operator::WhyKind::Device,
            "greeter/line-1",
            "device greeter; a deployment has that name: `margrave why deployment greeter`",
        ),
        (
            operator::WhyKind::Deployment,
            "line-1",
            "deployment line-1; a device has that name: `margrave why device line-1`",
        ),
        (
            operator::WhyKind::Rollout,
            "line-1",
            "deployment line-1; a device has that name: `margrave why device line-1`",
        ),
        (operator::WhyKind::Deployment, "nobody", "deployment nobody"),
    ] {
        let error = world.fleet.why_of(kind, subject).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
        assert_eq!(error.to_string(), format!("there is no {told}"), "{kind:?} {subject}");
    }
}

#[tokio::test]
async fn devices_are_listed_page_by_page_and_found() {
    let world = World::new().await;
    for n in 1..=5 {
        world.device(&format!("line-{n}"), &[("line", &n.to_string())]).await;
    }
    let mut names = Vec::new();
    let mut after = None;
    loop {
        let query = DeviceQuery { after, limit: Some(2), ..Default::default() };
        let page = world.fleet.devices(query).await.unwrap();
        names.extend(page.items.into_iter().map(|device| device.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, ["line-1", "line-2", "line-3", "line-4", "line-5"]);
    let found = async |query: DeviceQuery| world.fleet.devices(query).await.unwrap().items.len();
    assert_eq!(found(DeviceQuery { search: Some("NE-3".into()), ..Default::default() }).await, 1);
    for (value, count) in [(Some("4"), 1), (None, 5), (Some(""), 0)] {
        let label = Some(("line".into(), value.map(str::to_owned)));
        assert_eq!(found(DeviceQuery { label, ..Default::default() }).await, count, "{value:?}");
    }
    let emptied = operator::SetLabels { labels: [("line".to_owned(), Some(String::new()))].into() };
    world.fleet.label(&ann(), &device("line-2"), emptied).await.unwrap();
    let label = Some(("line".into(), Some(String::new())));
    assert_eq!(found(DeviceQuery { label, ..Default::default() }).await, 1, "an empty value is one");
    assert_eq!(found(DeviceQuery { condition: Some("converged".into()), ..Default::default() }).await, 5);
    assert_eq!(found(DeviceQuery { condition: Some("failed".into()), ..Default::default() }).await, 0);
    let wrong =
        world.fleet.devices(DeviceQuery { condition: Some("happy".into()), ..Default::default() }).await;
    assert!(matches!(wrong.unwrap_err(), Error::Invalid(_)));
    let shown = world.fleet.device(&device("line-1")).await.unwrap();
    assert!(shown.simulated && shown.last_contact.is_some());
    assert_eq!(shown.capabilities.unwrap()["properties"]["vendor"], "Acme");
}

#[tokio::test]
async fn who_holds_changes_back_is_shown_until_it_is_over() {
    let world = one_greeter().await;
    world.report("greeter", "line-1", State::Installed).await;
    let version = world.version("line-1");
    let mut body: serde_json::Value =
        serde_json::from_slice(&capabilities("line-1", "64Gi", &["compose"])).unwrap();
    let until = START + 600_000;
    body["x-margrave-extensions"]["holds"] = serde_json::json!([
        { "holder": "ann", "reason": "batch 17 runs", "since": START, "until": until },
        { "holder": "x".repeat(61), "reason": "too long a name", "since": START, "until": until },
        { "holder": "bob", "reason": "two\nlines", "since": START, "until": until },
        { "holder": "cid", "since": START, "until": "soon" },
        7
    ]);
    let body = Bytes::from(body.to_string());
    let parsed = g2::capabilities::read(&body).unwrap();
    world.fleet.put_capabilities(&client("line-1"), parsed, body).await.unwrap();
    let shown = world.fleet.device(&device("line-1")).await.unwrap();
    let expected = operator::Hold {
        holder: "ann".into(),
        reason: "batch 17 runs".into(),
        since: crate::fleet::event::time(Moment(START)),
        until: crate::fleet::event::time(Moment(until)),
    };
    assert_eq!(shown.holds, [expected], "and no nonsense");
    assert_eq!((shown.condition.as_str(), world.version("line-1")), ("converged", version));
    assert_eq!(world.fleet.recent_events(1).await.unwrap()[0].kind, "device.hold");
    world.pass(600);
    assert_eq!(world.fleet.device(&device("line-1")).await.unwrap().holds, []);
}

#[tokio::test]
async fn the_status_has_every_state() {
    let world = one_greeter().await;
    world.report("greeter", "line-1", State::Installed).await;
    let status = world.fleet.status().await.unwrap();
    // The eight, the two words for who is held back, and the two for who refuses and who is not heard of.
    assert_eq!(status.assignments.len(), 12);
    assert_eq!((status.assignments["INSTALLED"], status.assignments["PENDING"]), (1, 0));
    assert_eq!((status.packages, status.deployments, status.devices.converged), (1, 1, 1));
}

#[tokio::test]
async fn everything_that_happens_is_an_event_in_order() {
    let world = World::new().await;
    let mut events = world.fleet.subscribe();
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    world.report("greeter", "line-1", State::Installing).await;
    world.report("greeter", "line-1", State::Installing).await;
    world.report("greeter", "line-1", State::Installed).await;
    world.fleet.remove_deployment(&ann(), &name("greeter"), None).await.unwrap();
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    let expected = [
        "device.token",
        "device.joined",
        "device.capabilities",
        "deployment.created",
        "assignment.state",
        "assignment.state",
        "deployment.removed",
        "device.retired",
    ];
    let mut seen = Vec::new();
    for _ in expected {
        let event = tokio::time::timeout(Duration::from_secs(20), events.recv()).await.unwrap().unwrap();
        seen.push((*event).clone());
    }
    let kinds: Vec<&str> = seen.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, expected);
    assert_eq!((seen[3].actor.as_str(), seen[3].deployment.as_deref()), ("operator ann", Some("greeter")));
    assert_eq!((seen[4].actor.as_str(), seen[4].device.as_deref()), ("device line-1", Some("line-1")));
    assert_eq!(world.fleet.events(seen[0].sequence - 1, 100).await.unwrap(), seen);
    assert_eq!(world.fleet.recent_events(1).await.unwrap(), seen[7..]);
    assert_eq!(world.fleet.device_events(&device("line-1"), 2).await.unwrap()[0], seen[7]);
}

#[tokio::test]
async fn a_look_sees_who_came_back_and_writes_nothing() {
    let world = one_greeter().await;
    world.fleet.flush_contacts().await.unwrap();
    world.pass(121);
    assert_eq!(world.fleet.status().await.unwrap().devices.silent, 1);
    world.fleet.touched(&client("line-1"));
    let status = world.fleet.status().await.unwrap();
    assert_eq!((status.devices.silent, status.devices.pending), (0, 1));
    let listed = async |condition: &str| {
        let query = DeviceQuery { condition: Some(condition.into()), ..Default::default() };
        world.fleet.devices(query).await.unwrap().items.len()
    };
    assert_eq!((listed("silent").await, listed("pending").await), (0, 1));
    let stored = world.fleet.store.device(&device("line-1")).await.unwrap().unwrap();
    assert_eq!(stored.last_contact, Some(Moment(START)), "only the timer writes contacts");
    world.fleet.flush_contacts().await.unwrap();
    let stored = world.fleet.store.device(&device("line-1")).await.unwrap().unwrap();
    assert_eq!(stored.last_contact, Some(Moment(START + 121_000)));
}

#[tokio::test]
async fn a_wrong_clock_is_told_once_and_when_it_is_right_again() {
    let world = one_greeter().await;
    world.put("second", on(&["line-1"])).await.unwrap();
    let ahead = |report: &mut Report| {
        let at = &mut report.detail.as_mut().unwrap().at;
        *at = Moment(START + 7_200_000);
    };
    let right = |report: &mut Report| report.detail.as_mut().unwrap().at = Moment(START);
    let told = async || {
        let events = world.fleet.device_events(&device("line-1"), 100).await.unwrap();
        let clock = events.into_iter().filter(|event| event.kind == "device.clock");
        clock.map(|event| event.text).collect::<Vec<_>>()
    };
    for name in ["greeter", "second"] {
        world.report_with(name, "line-1", State::Installed, ahead).await;
    }
    assert_eq!(told().await, ["the clock of line-1 is 2 h ahead of the server's"]);
    let shown = world.fleet.device(&device("line-1")).await.unwrap();
    assert!(shown.clock_ahead_seconds.is_some_and(|ahead| (7190..=7200).contains(&ahead)), "{shown:?}");
    for name in ["greeter", "second"] {
        world.report_with(name, "line-1", State::Installed, right).await;
    }
    assert_eq!(told().await[0], "the clock of line-1 is right again");
    assert_eq!(told().await.len(), 2);
    assert_eq!(world.fleet.device(&device("line-1")).await.unwrap().clock_ahead_seconds, None);
}

#[tokio::test]
async fn what_was_broken_on_purpose_is_told_until_it_is_back() {
    use crate::drill::Fault;
    let world = one_greeter().await;
    let line = device("line-1");
    assert_eq!(world.fleet.broken(&line).await.unwrap(), None);
    world.fleet.note_broken(&line, Fault::CutNetwork).await.unwrap();
    let (fault, until) = world.fleet.broken(&line).await.unwrap().unwrap();
    assert_eq!((fault, until), (Fault::CutNetwork, Some(crate::fleet::event::time(Moment(START + 60_000)))));
    let newest = world.fleet.device_events(&line, 1).await.unwrap().remove(0);
    assert!(
        newest.text.starts_with("line-1 is broken on purpose: its network is cut until 20"),
        "{newest:?}"
    );
    world.fleet.note_back(&line, "its network works again").await.unwrap();
    assert_eq!(world.fleet.broken(&line).await.unwrap(), None);
    assert_eq!(
        world.fleet.recent_events(1).await.unwrap()[0].text,
        "line-1 is back: its network works again"
    );
    // What a demo left behind that was stopped meanwhile is not told for ever.
    world.fleet.note_broken(&line, Fault::KillDuringUpdate).await.unwrap();
    assert!(world.fleet.broken(&line).await.unwrap().is_some());
    world.pass(700);
    assert_eq!(world.fleet.broken(&line).await.unwrap(), None);
}
