//! What deployments were, and the way back.

use super::*;

fn greeting(text: &str, on: &[&str]) -> operator::PutDeployment {
    let mut want = super::on(on);
    want.parameters.insert("greeting".into(), json!(text));
    want
}

impl World {
    /// Revisions with what they changed, newest first.
    async fn changes(&self, of: &str) -> Vec<(u64, String)> {
        let revisions = self.fleet.revisions(&name(of)).await.unwrap();
        revisions.into_iter().map(|revision| (revision.revision, revision.changes.join("; "))).collect()
    }

    async fn revert(&self, of: &str, to: u64, seen: Option<u64>) -> Result<operator::Deployment, Error> {
        let bob = Actor { name: "operator bob".into() };
        self.fleet.revert(&bob, &name(of), to, seen).await
    }

    async fn greetings(&self, on: &str) -> Vec<String> {
        let workloads = self.workloads(on).await;
        let values = workloads.iter().flat_map(|workload| {
            workload
                .values_for(&workload.components[0].name)
                .map(|(pointer, value)| format!("{pointer}={value}"))
        });
        values.filter(|value| value.starts_with("GREETING")).collect()
    }
}

#[tokio::test]
async fn who_is_named_no_longer_may_be_meant_all_the_same() {
    let world = World::new().await;
    world.device("line-1", &[("site", "nord")]).await;
    world.put("greeter", greeting("hi", &["line-1"])).await.unwrap();
    let mut by_label = greeting("hi", &[]);
    by_label.targets.labels.insert("site".into(), "nord".into());
    world.put("greeter", by_label).await.unwrap();
    let (number, changes) = world.changes("greeter").await.swap_remove(0);
    assert_eq!(
        (number, changes.as_str()),
        (2, "Where: devices by name → site=nord; named no longer: line-1")
    );
}

#[tokio::test]
async fn going_back_is_a_change_like_any_other() {
    let world = World::new().await;
    for device in ["line-1", "line-2"] {
        world.device(device, &[]).await;
    }
    world.put("greeter", greeting("hi", &["line-1"])).await.unwrap();
    let mut second = greeting("good day", &["line-2"]);
    second.parameters.insert("interval".into(), json!(60));
    world.put("greeter", second).await.unwrap();
    assert!(world.greetings("line-1").await.is_empty());

    let reverted = world.revert("greeter", 1, Some(2)).await.unwrap();
    assert_eq!((reverted.revision, reverted.changed_by.as_str()), (3, "operator bob"));
    assert_eq!(world.greetings("line-1").await, ["GREETING=hi"]);
    assert!(world.greetings("line-2").await.is_empty());
    assert_eq!(
        world.changes("greeter").await,
        [
            (
                3,
                "Greeting: good day → hi; Interval: 60 → the package's default, 30; also on line-1; no longer on line-2",
            ),
            (
                2,
                "Greeting: hi → good day; Interval: the package's default, 30 → 60; also on line-2; no longer on line-1",
            ),
            (1, "created"),
        ]
        .map(|(number, changes)| (number, changes.to_owned()))
    );
    let revisions = world.fleet.revisions(&name("greeter")).await.unwrap();
    assert_eq!(revisions.iter().map(|revision| revision.current).collect::<Vec<_>>(), [true, false, false]);
    let events = world.fleet.recent_events(1).await.unwrap();
    assert!(events[0].text.contains("went back to revision 1"), "{events:?}");

    // And back again; going to where one stands already is no change.
    assert_eq!(world.revert("greeter", 2, None).await.unwrap().revision, 4);
    assert_eq!(world.revert("greeter", 4, None).await.unwrap().revision, 4);
    assert_eq!(world.greetings("line-2").await, ["GREETING=good day"]);
}

#[tokio::test]
async fn who_saw_an_older_revision_does_not_undo_what_came_after_it() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    for text in ["a", "b", "c"] {
        world.put("greeter", greeting(text, &["line-1"])).await.unwrap();
    }
    let error = world.revert("greeter", 1, Some(2)).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert_eq!(world.greetings("line-1").await, ["GREETING=c"]);
}

#[tokio::test]
async fn what_was_removed_comes_back_and_its_name_goes_on_counting() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", greeting("hi", &["line-1"])).await.unwrap();
    world.fleet.remove_deployment(&ann(), &name("greeter"), None).await.unwrap();
    assert!(world.greetings("line-1").await.is_empty());
    let error = world.revert("greeter", 2, None).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }) && error.to_string().contains("removed"), "{error}");
    let back = world.revert("greeter", 1, Some(0)).await.unwrap();
    assert_eq!((back.revision, back.removing), (3, false));
    assert_eq!(world.greetings("line-1").await, ["GREETING=hi"]);
    // Who read revision 1 before it was removed must not take this one for it.
    let stale = operator::PutDeployment { revision: Some(1), ..greeting("mine", &["line-1"]) };
    assert!(matches!(world.put("greeter", stale).await.unwrap_err(), Error::Conflict { .. }));

    let world = world.restarted().await;
    let changes = world.changes("greeter").await;
    assert_eq!(
        changes,
        [(3, "created again"), (2, "removed"), (1, "created")].map(|(n, t)| (n, t.to_owned()))
    );
}

#[tokio::test]
async fn going_back_is_refused_by_the_same_rules() {
    let world = World::new().await;
    for device in ["line-1", "line-2"] {
        world.device(device, &[]).await;
    }
    world.push("2.0.0", &description("2.0.0")).await;
    world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    let old = operator::PutDeployment { version: Some("1.0.0".into()), ..on(&["line-1", "line-2"]) };
    world.put("greeter", old).await.unwrap();
    world.put("greeter", on(&["line-1"])).await.unwrap();
    for missing in [0, 3, u64::MAX] {
        let error = world.revert("greeter", missing, None).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
    }
    assert!(matches!(world.revert("nobody", 1, None).await.unwrap_err(), Error::NotFound { .. }));
    assert!(matches!(world.fleet.revisions(&name("nobody")).await.unwrap_err(), Error::NotFound { .. }));

    let (id, version) = ("hello".parse().unwrap(), "1.0.0".parse().unwrap());
    world.fleet.remove_package(&ann(), &id, &version).await.unwrap();
    let error = world.revert("greeter", 1, None).await.unwrap_err();
    assert!(error.to_string().contains("hello 1.0.0 is not in the catalog"), "{error}");
    assert_eq!(world.fleet.deployment(&name("greeter")).await.unwrap().revision, 2);
}

#[tokio::test]
async fn what_changed_is_told_in_lines_that_can_be_read() {
    let world = World::new().await;
    let names: Vec<String> = (1..=8).map(|number| format!("line-{number}")).collect();
    for device in &names {
        world.device(device, &[("site", "nord")]).await;
    }
    world.put("greeter", labelled("site", "nord")).await.unwrap();
    let mut many = on(&names.iter().map(String::as_str).collect::<Vec<_>>());
    many.profile = Some("small".into());
    many.parameters.insert("greeting".into(), json!("a\nb"));
    many.parameters.insert("site".into(), json!("x".repeat(500)));
    world.put("greeter", many).await.unwrap();
    let (_, changes) = world.changes("greeter").await.remove(0);
    assert_eq!(
        changes,
        format!(
            "Profile: the first that fits each device → small; Greeting: the package's default, hello → a b; Site: no answer \
             → {}…; Where: site=nord → devices by name; named now: line-1, line-2, line-3, line-4, line-5 and 3 more",
            "x".repeat(160)
        )
    );
}

#[tokio::test]
async fn lists_and_overrides_are_told_as_the_form_shows_them() {
    let world = World::new().await;
    world.device("line-1", &[("site", "nord")]).await;
    let number = "name: seconds, dataType: integer, minValue: 1, maxValue: 3600";
    let several = "name: seconds, dataType: string, multiselect: true, options: [a, b, c]";
    let text = description("3.0.0").replace("value: 30", "value: [a]").replace(number, several);
    world.push("3.0.0", &text).await;
    world.add("oci://margrave/packages/hello:3.0.0").await.unwrap();
    let put = async |all: [&str; 2], there: [&str; 1]| {
        let mut want = operator::PutDeployment { version: Some("3.0.0".into()), ..labelled("site", "nord") };
        want.parameters.insert("interval".into(), json!(all));
        let other = json!([{ "targets": { "sites": ["nord"] }, "parameters": { "interval": there } }]);
        want.overrides = serde_json::from_value(other).unwrap();
        world.put("greeter", want).await.unwrap();
    };
    put(["a", "b"], ["c"]).await;
    put(["a", "c"], ["b"]).await;
    let (_, changes) = world.changes("greeter").await.remove(0);
    assert_eq!(changes, "Interval: a, b → a, c; Interval, for site nord: c → b");
}
