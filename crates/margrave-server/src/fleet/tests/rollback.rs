//! What an operator wants done about updates that fail, from the wish to the document.

use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::lifecycle::{Reported, State};
use margrave_core::moment::Moment;
use margrave_core::report::{Fault, Report};
use margrave_core::rollback::{Rollback, When};
use margrave_wire::{Dialect, g2, operator};

use super::{World, ann, name, on};
use crate::fleet::Error;

fn policy(when: Option<&str>, attempts: Option<u32>, grace: Option<u64>) -> Option<operator::Rollback> {
    Some(operator::Rollback { when: when.map(str::to_owned), attempts, health_grace_seconds: grace })
}

#[tokio::test]
async fn a_policy_reaches_the_document_and_stays_until_it_is_changed() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let said = async || world.workloads("line-1").await[0].hints.rollback;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    assert_eq!(said().await, Rollback::default());

    let strict = policy(Some("never"), Some(5), Some(30));
    let shown = world.put("greeter", operator::PutDeployment { rollback: strict.clone(), ..on(&["line-1"]) });
    assert_eq!(Some(shown.await.unwrap().rollback), strict);
    let expected = Rollback::new(Some(When::Never), Some(5), Some(Duration::from_secs(30))).unwrap();
    assert!(expected.binding, "a number that somebody asked for binds everywhere");
    assert_eq!(said().await, expected);
    // Who says nothing about it changes nothing, also after a restart.
    let world = world.restarted().await;
    let said = async || world.workloads("line-1").await[0].hints.rollback;
    let mut other = on(&["line-1"]);
    other.parameters.insert("greeting".into(), "salut".into());
    world.put("greeter", other).await.unwrap();
    assert_eq!(said().await, expected);

    let revisions = world.fleet.revisions(&name("greeter")).await.unwrap();
    assert_eq!(
        revisions[1].changes,
        [
            "If it fails: back to the last healthy version → stay with it and try again; give up after 5 attempts; it may look \
             unhealthy for 30s"
        ]
    );
    world.fleet.revert(&ann(), &name("greeter"), 1, None).await.unwrap();
    assert_eq!(said().await, Rollback::default(), "going back brings the policy of then");
}

/// Documents of before keep their bytes: the usual number was written beside everything else that was said, and nobody had asked
/// for it.
#[tokio::test]
async fn a_number_of_tries_binds_only_where_somebody_asked_for_it() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let text = async || {
        let client = super::client("line-1");
        let live = world.fleet.manifest(&client, Dialect::Miaf).unwrap();
        let entry = g2::manifest::read(&live.body).unwrap().manifest.entries()[0];
        let bytes = world.fleet.document(&client, entry.id, entry.document.digest).await.unwrap().unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    };
    let want = |rollback| operator::PutDeployment { rollback, ..on(&["line-1"]) };
    for (said, shown, binds) in [
        (policy(Some("never"), None, None), None, false),
        (policy(Some("never"), Some(2), None), Some(2), true),
        (policy(None, Some(2), None), Some(2), true),
        (policy(None, None, None), None, false),
    ] {
        let put = world.put("greeter", want(said.clone())).await.unwrap();
        assert_eq!(put.rollback.attempts, shown, "{said:?}");
        let text = text().await;
        assert_eq!(text.contains("binding: true"), binds, "{said:?}: {text}");
        let usual = said == policy(None, None, None);
        assert_eq!(text.contains("attempts: 2"), !usual, "{text}");
        // What is shown and said again says the same.
        let version = world.version("line-1");
        world.put("greeter", want(Some(put.rollback))).await.unwrap();
        assert_eq!(world.version("line-1"), version, "{said:?}");
    }
}

#[tokio::test]
async fn a_policy_that_makes_no_sense_is_refused() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    for wrong in [
        policy(Some("sometimes"), None, None),
        policy(None, Some(0), None),
        policy(None, Some(101), None),
        policy(None, None, Some(86_401)),
        policy(None, None, Some(u64::MAX)),
    ] {
        let want = operator::PutDeployment { rollback: wrong.clone(), ..on(&["line-1"]) };
        let Error::Invalid(violations) = world.put("greeter", want).await.unwrap_err() else {
            panic!("{wrong:?} was taken")
        };
        assert_eq!(violations[0].place, "/rollback", "{wrong:?}");
    }
    assert!(world.fleet.deployment(&name("greeter")).await.is_err());
}

#[tokio::test]
async fn a_device_that_went_back_has_failed_until_something_else_is_wanted() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let put = async |greeting: &str| {
        let mut want = on(&["line-1"]);
        want.parameters.insert("greeting".into(), greeting.into());
        world.put("greeter", want).await.unwrap();
    };
    put("one").await;
    world.report("greeter", "line-1", State::Installed).await;
    put("two").await;
    // As our agent says it: what is wanted failed, and what was before runs.
    let went_back = |report: &mut Report| {
        report.state = Reported::Failed;
        report.detail.as_mut().unwrap().document = Some(Digest::of(b"the one before"));
        report.fault =
            Some(Fault { code: "unhealthy".into(), source: "web".into(), message: "no answer".into() });
    };
    world.report_with("greeter", "line-1", State::Installed, went_back).await;
    let shown = world.assignment("greeter", "line-1").await;
    assert_eq!((shown.state.as_str(), shown.current), ("INSTALLED", false));
    assert_eq!(shown.error.unwrap().code, "unhealthy");
    let why = world.fleet.why("line-1/greeter").await.unwrap();
    let codes: Vec<&str> = why.chain.iter().map(|cause| cause.code.as_str()).collect();
    assert_eq!((why.converged, codes), (false, vec!["rolled-back", "unhealthy"]));
    assert!(why.chain[0].text.contains("went back to its last good version"), "{:?}", why.chain);
    // One chain does not say both that it is not tried again and that it is.
    let hints: Vec<&str> = why.chain.iter().filter_map(|cause| cause.hint.as_deref()).collect();
    assert!(hints[0].contains("does not try this one again"), "{hints:?}");
    assert!(!hints.iter().any(|hint| hint.contains("again by itself")), "{hints:?}");
    let newest = world.fleet.recent_events(1).await.unwrap().remove(0);
    assert_eq!(newest.text, "greeter on line-1 went back to its last good version: no answer");
    for counts in [
        world.fleet.deployment(&name("greeter")).await.unwrap().counts,
        world.fleet.deployments().await.unwrap().remove(0).counts,
    ] {
        assert_eq!((counts.failed, counts.went_back, counts.states["INSTALLED"]), (1, 1, 1));
    }

    put("three").await;
    let shown = world.assignment("greeter", "line-1").await;
    assert_eq!((shown.state.as_str(), shown.current, shown.error), ("INSTALLED", false, None));
    world.report("greeter", "line-1", State::Installed).await;
    assert!(world.fleet.why("line-1/greeter").await.unwrap().converged);
}

/// After an outage that met all of them, most mend themselves. The one that does not must not be lost among them.
#[tokio::test]
async fn who_does_not_try_again_is_told_apart_from_those_that_do() {
    let world = World::new().await;
    let devices = ["line-1", "line-2", "line-3", "line-4"];
    for device in devices {
        world.device(device, &[]).await;
    }
    world.put("greeter", on(&devices)).await.unwrap();
    let failed = |code: &'static str, tries: bool| {
        move |report: &mut Report| {
            report.fault =
                Some(Fault { code: code.into(), source: "web".into(), message: "it ended".into() });
            let detail = report.detail.as_mut().unwrap();
            detail.next_try = tries.then(|| Moment(detail.at.0 + 5_000));
        }
    };
    for device in ["line-1", "line-2"] {
        world.report_with("greeter", device, State::Failed, failed("start-failed", true)).await;
    }
    // What a device refuses is counted as that.
    world.report_with("greeter", "line-4", State::Failed, failed("not-eligible", false)).await;
    assert_eq!(world.fleet.status().await.unwrap().given_up, 0);
    world.report_with("greeter", "line-3", State::Failed, failed("start-failed", false)).await;
    let status = world.fleet.status().await.unwrap();
    assert_eq!((status.given_up, status.assignments["FAILED"], status.assignments["NEVER"]), (1, 3, 1));

    let failing = world.fleet.devices_failing(5).await.unwrap();
    let failing: Vec<(&str, String)> =
        failing.iter().map(|cause| (cause.code.as_str(), cause.names.join(" "))).collect();
    assert_eq!(
        failing,
        [
            ("given-up-start-failed", "line-3".to_owned()),
            ("start-failed", "line-1 line-2".to_owned()),
            ("not-eligible", "line-4".to_owned()),
        ]
    );
    let why = world.fleet.why_of(operator::WhyKind::Deployment, "greeter").await.unwrap();
    let group = &why.groups[0];
    assert_eq!((group.example.as_str(), group.count, group.needs.as_str()), ("line-3", 1, "person"));
    assert!(group.text.ends_with("it ended (not tried again by itself)"), "{why:?}");
    for (device, tries) in [("line-1", true), ("line-3", false)] {
        let why = world.fleet.why(device).await.unwrap();
        let hint = why.chain.last().unwrap().hint.clone().unwrap();
        assert_eq!(hint.contains(&format!("`margrave device look {device}`")), !tries, "{hint}");
    }

    // Whatever changes, it is begun anew and nobody has to see to it.
    let mut other = on(&devices);
    other.parameters.insert("greeting".into(), "two".into());
    world.put("greeter", other).await.unwrap();
    assert_eq!(world.fleet.status().await.unwrap().given_up, 0);
}

#[tokio::test]
async fn a_device_that_failed_is_not_said_to_try_again_where_it_may_go_back() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let failed = |code: &'static str, tries: bool| {
        move |report: &mut Report| {
            report.fault = Some(Fault { code: code.into(), source: "web".into(), message: "no".into() });
            let detail = report.detail.as_mut().unwrap();
            detail.next_try = tries.then(|| Moment(detail.at.0 + 5_000));
        }
    };
    let told = async |code: &'static str, tries: bool| {
        world.report_with("greeter", "line-1", State::Failed, failed(code, tries)).await;
        let why = world.fleet.why("line-1/greeter").await.unwrap();
        let text = why.chain[0].text.strip_prefix("greeter on line-1 failed").unwrap();
        (why.chain[0].code.clone(), text.split(" at 20").next().unwrap().to_owned())
    };
    let (again, back) = (", and is tried again", ", and goes back to its last good version");
    let either = "; it goes back to its last good version, or is tried again";
    world.put("greeter", on(&["line-1"])).await.unwrap();
    for (code, tries, word, text) in [
        ("start-failed", true, "retrying", again),
        ("start-failed", false, "given-up", ", and is not tried again as it is"),
    ] {
        assert_eq!(told(code, tries).await, (word.to_owned(), text.to_owned()), "at first: {code}");
    }
    world.report("greeter", "line-1", State::Installed).await;
    let mut other = on(&["line-1"]);
    other.parameters.insert("greeting".into(), "two".into());
    world.put("greeter", other).await.unwrap();
    for (code, tries, word, text) in [
        // How often it was tried is the device's to know.
        ("start-failed", true, "retrying", either),
        // Not tried again by itself, and yet not the end.
        ("archive-invalid", true, "rollingback", back),
        // Nothing that a version could be blamed for.
        ("disk-full", true, "retrying", again),
        ("archive-invalid", false, "given-up", ", and is not tried again as it is"),
    ] {
        assert_eq!(told(code, tries).await, (word.to_owned(), text.to_owned()), "an update: {code}");
    }
}
