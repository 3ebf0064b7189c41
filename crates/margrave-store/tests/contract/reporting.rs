//! Reports: durable, idempotent, in the device's own order.

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeploymentName};
use margrave_core::lifecycle::{Reported, State};
use margrave_core::report::{ComponentReport, FAILURE_CODES, Fault, Holding, Report};
use margrave_store::*;

use crate::fixture::*;

async fn world_with_hello() -> (World, AssignmentId) {
    let world = World::new();
    world.join("line-1").await;
    let id = world.deploy("hello", "line-1", b"one").await;
    (world, id)
}

impl World {
    async fn say(&self, report: Report) -> Recorded {
        self.store.record_report(&client("line-1"), report, NOW).await.unwrap()
    }

    async fn outlook(&self, id: AssignmentId) -> Outlook {
        self.assignment(id).await.outlook()
    }

    async fn history(&self) -> Vec<String> {
        let name = DeploymentName::parse("hello").unwrap();
        let history = self.store.transitions(&name, &device("line-1")).await.unwrap();
        history.iter().map(|step| format!("{}{}", step.state, if step.late { " late" } else { "" })).collect()
    }
}

#[tokio::test]
async fn mi_g2_110_the_first_report_is_created_and_later_ones_update() {
    let (world, id) = world_with_hello().await;
    assert_eq!(world.outlook(id).await.state, State::Pending);
    assert_eq!(
        world.say(report(id, 2, Reported::Installing)).await,
        Recorded { put: Put::Created, ahead: None }
    );
    assert_eq!(
        world.say(report(id, 2, Reported::Installed)).await,
        Recorded { put: Put::Updated, ahead: None }
    );
    let converged = Outlook { state: State::Installed, current: true, verdict: Verdict::Converged };
    assert_eq!(world.outlook(id).await, converged);
    assert_eq!(world.history().await, ["INSTALLING", "INSTALLED"]);
}

#[tokio::test]
async fn a_count_of_restarts_is_kept_and_told_and_is_no_step() {
    let (world, id) = world_with_hello().await;
    let counted = |sequence: u64, restarts: [u32; 2]| {
        let component = |name: &str, restarts: u32| ComponentReport {
            name: name.to_owned(),
            state: Reported::Installed,
            fault: None,
            restarts,
        };
        let components = vec![component("web", restarts[0]), component("db", restarts[1])];
        Report { components, ..numbered(id, 2, State::Installed, sequence) }
    };
    for (sequence, restarts) in [(1, [0, 0]), (2, [1, 0]), (3, [7, 2]), (4, [0, 2]), (5, [0, 3]), (6, [0, 4])]
    {
        world.say(counted(sequence, restarts)).await;
        let kept = world.assignment(id).await.observed.unwrap().report;
        assert_eq!(kept.components.iter().map(|of| of.restarts).collect::<Vec<_>>(), restarts);
    }
    // Asked again, and too late.
    world.say(counted(6, [0, 4])).await;
    world.say(counted(2, [1, 0])).await;
    assert_eq!(world.assignment(id).await.observed.unwrap().report.restarts(), 4);
    assert_eq!(world.history().await, ["INSTALLED", "INSTALLED late"]);
    let events = world.store.events_after(0, 100).await.unwrap();
    let told: Vec<_> = events.iter().filter(|event| event.kind == "assignment.restarts").collect();
    let texts: Vec<&str> = told.iter().map(|event| event.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "hello on line-1: web was restarted once since it was started",
            "hello on line-1: web was restarted 7 times, db was restarted twice since it was started",
            "hello on line-1: db was restarted 4 times since it was started",
        ],
        "as they double: months of them must not push everything else out"
    );
    // Whatever else is new is a step, with or without a count.
    world.say(Report { components: vec![], ..counted(7, [0, 0]) }).await;
    assert_eq!(world.history().await.len(), 3);
}

#[tokio::test]
async fn an_exact_repetition_changes_nothing() {
    let (world, id) = world_with_hello().await;
    for _ in 0..3 {
        world.say(report(id, 2, Reported::Installing)).await;
    }
    world.say(numbered(id, 2, State::Installed, 5)).await;
    world.say(numbered(id, 2, State::Failed, 6)).await;
    // The answer to 5 was lost, and the device asks again after 6.
    world.say(numbered(id, 2, State::Installed, 5)).await;
    assert_eq!(world.history().await, ["INSTALLING", "INSTALLED", "FAILED"]);
    assert_eq!(world.outlook(id).await.state, State::Failed);
    let events = world.store.events_newest(100).await.unwrap();
    assert_eq!(events.iter().filter(|event| event.kind == "assignment.state").count(), 3);
}

#[tokio::test]
async fn states_that_come_and_go_without_numbers_are_no_repetition() {
    let (world, id) = world_with_hello().await;
    for state in [Reported::Installed, Reported::Failed, Reported::Installed] {
        world.say(report(id, 2, state)).await;
    }
    assert_eq!(world.history().await, ["INSTALLED", "FAILED", "INSTALLED"]);
}

#[tokio::test]
async fn a_late_report_never_moves_the_picture_back_and_is_kept() {
    let (world, id) = world_with_hello().await;
    world.run("line-1", &[("hello", b"two")]).await;
    world.say(numbered(id, 3, State::Installed, 9)).await;
    world.say(numbered(id, 3, State::Updating, 8)).await;
    world.say(numbered(id, 2, State::Failed, 7)).await;
    world.say(report(id, 2, Reported::Failed)).await;
    assert_eq!(world.outlook(id).await.state, State::Installed);
    assert_eq!(world.history().await, ["INSTALLED", "UPDATING late", "FAILED late", "FAILED late"]);
}

#[tokio::test]
async fn mi_g1_065_signatures_order_what_has_no_number() {
    let (world, id) = world_with_hello().await;
    let signed =
        |state, second: u64| Report { signed_at: Some(later(second * 1000)), ..report(id, 2, state) };
    world.say(signed(Reported::Installing, 10)).await;
    world.say(signed(Reported::Installed, 20)).await;
    world.say(signed(Reported::Installing, 15)).await;
    assert_eq!(world.outlook(id).await.state, State::Installed);
    // Said again it is no news, and yet what was signed before that is old now.
    world.say(signed(Reported::Installed, 40)).await;
    world.say(signed(Reported::Failed, 30)).await;
    // A repetition that is late itself takes nothing back.
    world.say(signed(Reported::Installed, 25)).await;
    world.say(signed(Reported::Failed, 35)).await;
    assert_eq!(world.outlook(id).await.state, State::Installed);
    let expected = ["INSTALLING", "INSTALLED", "UPDATING late", "FAILED late", "FAILED late"];
    assert_eq!(world.history().await, expected);
}

#[tokio::test]
async fn a_device_that_lost_its_count_is_heard_all_the_same() {
    let (world, id) = world_with_hello().await;
    world.say(numbered(id, 2, State::Installed, 900)).await;
    // It begins anew with everything.
    for (number, state) in [(1, State::Pending), (2, State::Installing)] {
        let mut reborn = numbered(id, 2, state, number);
        reborn.detail.as_mut().unwrap().at = later(5000 + number);
        world.say(reborn).await;
        assert_eq!(world.outlook(id).await.state, state);
    }
}

#[tokio::test]
async fn mi_g2_109_a_report_below_the_version_of_the_change_speaks_of_the_older_document() {
    let (world, id) = world_with_hello().await;
    world.say(report(id, 2, Reported::Installed)).await;
    world.run("line-1", &[("hello", b"two")]).await;
    let outlook = world.outlook(id).await;
    assert_eq!(outlook, Outlook { state: State::Installed, current: false, verdict: Verdict::Pending });
    world.say(report(id, 3, Reported::Installing)).await;
    let outlook = world.outlook(id).await;
    assert_eq!(outlook, Outlook { state: State::Updating, current: true, verdict: Verdict::Pending });
    world.say(report(id, 3, Reported::Installed)).await;
    assert_eq!(world.outlook(id).await.verdict, Verdict::Converged);
}

#[tokio::test]
async fn a_device_back_on_its_last_good_document_is_running_and_failed() {
    let (world, id) = world_with_hello().await;
    world.say(numbered(id, 2, State::Installed, 1)).await;
    world.run("line-1", &[("hello", b"two")]).await;
    let mut back = numbered(id, 3, State::Installed, 2);
    back.detail.as_mut().unwrap().document = Some(Digest::of(b"one"));
    back.fault = Some(Fault { code: "unhealthy".into(), source: "web".into(), message: "no answer".into() });
    world.say(back).await;
    let outlook = world.outlook(id).await;
    assert_eq!(outlook, Outlook { state: State::Installed, current: false, verdict: Verdict::Failed });
}

#[tokio::test]
async fn what_is_no_longer_wanted_goes_through_deleting_to_the_archive() {
    let (world, id) = world_with_hello().await;
    world.say(report(id, 2, Reported::Installed)).await;
    world.run("line-1", &[]).await;
    let outlook = world.outlook(id).await;
    assert_eq!(outlook, Outlook { state: State::Deleting, current: false, verdict: Verdict::Pending });
    world.say(report(id, 3, Reported::Removing)).await;
    assert_eq!(world.outlook(id).await.state, State::Deleting);
    world.say(report(id, 3, Reported::Removed)).await;
    assert!(world.assignments("line-1").await.is_empty());
    assert_eq!(world.history().await, ["INSTALLED", "DELETING", "DELETED"]);
    // AMB-13: a late word about a tombstone is heard and wakes nothing.
    assert_eq!(world.say(report(id, 3, Reported::Removed)).await.put, Put::Updated);
    world.say(report(id, 3, Reported::Removing)).await;
    world.say(report(id, 2, Reported::Installed)).await;
    assert!(world.assignments("line-1").await.is_empty());
}

#[tokio::test]
async fn who_had_a_deployment_is_known_until_that_is_forgotten_or_it_comes_back() {
    let world = World::new();
    let names = ["line-1", "line-2", "line-3", "line-4"];
    for name in names {
        world.join(name).await;
        world.deploy("hello", name, b"one").await;
    }
    let id = |name: &str| AssignmentId::derive(deployment_id("hello"), &device(name));
    let hello = DeploymentName::parse("hello").unwrap();
    let departed = async |after: Option<&str>, limit: u32| {
        let found = world.store.departed(&hello, after.map(device), limit).await.unwrap();
        found.into_iter().map(|gone| gone.device.to_string()).collect::<Vec<_>>()
    };
    assert!(departed(None, 10).await.is_empty());
    for name in &names[..3] {
        world.run(name, &[]).await;
        let gone = report(id(name), 3, Reported::Removed);
        world.store.record_report(&client(name), gone, NOW).await.unwrap();
    }
    // Nothing was ever heard of the last one.
    world.run("line-4", &[]).await;
    world.store.archive_unspoken(vec![id("line-4")], NOW).await.unwrap();
    assert_eq!(departed(None, 2).await, ["line-1", "line-2"]);
    assert_eq!(departed(Some("line-2"), 2).await, ["line-3", "line-4"]);
    world.run("line-2", &[("hello", b"two")]).await;
    assert_eq!(departed(None, 2).await, ["line-1", "line-3"], "one has it again");
    assert_eq!(world.store.sweep_archived(NOW, 0).await.unwrap(), 3);
    assert!(departed(None, 10).await.is_empty());
}

#[tokio::test]
async fn what_ended_is_forgotten_by_age_and_when_there_is_too_much() {
    let world = World::new();
    world.join("line-1").await;
    let names: Vec<String> = (0..250).map(|n| format!("app-{n}")).collect();
    let documents: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), name.as_bytes())).collect();
    world.run("line-1", &documents).await;
    // All but the last end, one after the other.
    world.run("line-1", &documents[249..]).await;
    for (n, name) in (0u64..).zip(&names[..249]) {
        let id = AssignmentId::derive(deployment_id(name), &device("line-1"));
        let gone = report(id, 3, Reported::Removed);
        world.store.record_report(&client("line-1"), gone, later(n)).await.unwrap();
    }
    let history = async |name: &str| {
        let name = DeploymentName::parse(name).unwrap();
        world.store.transitions(&name, &device("line-1")).await.unwrap().len()
    };
    assert_eq!(world.store.sweep_archived(NOW, 1000).await.unwrap(), 0);
    assert_eq!(world.store.sweep_archived(later(120), 1000).await.unwrap(), 120);
    assert_eq!((history("app-119").await, history("app-120").await), (0, 1));
    assert_eq!(world.store.sweep_archived(NOW, 10).await.unwrap(), 119);
    assert_eq!((history("app-238").await, history("app-239").await), (0, 1));
    assert_eq!(world.store.sweep_archived(later(1_000_000), 1000).await.unwrap(), 10);
    // What is wanted is never among them, and what is wanted again begins anew.
    assert_eq!(world.assignments("line-1").await.len(), 1);
    world.run("line-1", &documents[248..]).await;
    assert_eq!(world.assignments("line-1").await.len(), 2);
}

#[tokio::test]
async fn assignments_are_counted_by_deployment_and_state() {
    let (world, id) = world_with_hello().await;
    world.join("line-2").await;
    world.run("line-2", &[("hello", b"two"), ("other", b"three")]).await;
    world.say(report(id, 2, Reported::Installed)).await;
    let mut counts = world.store.assignment_counts(Silence::default()).await.unwrap();
    counts.sort_by_key(|count| (count.deployment != deployment_id("hello"), count.verdict));
    let counted = |name, state, verdict| AssignmentCount {
        deployment: deployment_id(name),
        state,
        verdict,
        held_back: None,
        apart: None,
        count: 1,
    };
    assert_eq!(
        counts,
        [
            counted("hello", State::Installed, Verdict::Converged),
            counted("hello", State::Pending, Verdict::Pending),
            counted("other", State::Pending, Verdict::Pending),
        ]
    );
}

#[tokio::test]
async fn what_could_not_be_removed_is_failed() {
    let (world, id) = world_with_hello().await;
    world.say(report(id, 2, Reported::Installed)).await;
    world.run("line-1", &[]).await;
    world.say(report(id, 3, Reported::Failed)).await;
    let outlook = world.outlook(id).await;
    assert_eq!(outlook, Outlook { state: State::Failed, current: true, verdict: Verdict::Failed });
}

#[tokio::test]
async fn what_comes_back_while_it_goes_begins_anew() {
    let (world, id) = world_with_hello().await;
    world.say(report(id, 2, Reported::Installed)).await;
    world.run("line-1", &[]).await;
    world.say(report(id, 3, Reported::Removing)).await;
    world.run("line-1", &[("hello", b"one")]).await;
    assert_eq!(world.outlook(id).await.state, State::Deleting, "first it is gone");
    // The word that it is gone was late: it speaks of the life before.
    world.say(report(id, 3, Reported::Removed)).await;
    world.say(report(id, 4, Reported::Removed)).await;
    let outlook = world.outlook(id).await;
    assert_eq!(outlook, Outlook { state: State::Pending, current: false, verdict: Verdict::Pending });
    world.say(report(id, 4, Reported::Installing)).await;
    assert_eq!(world.outlook(id).await.state, State::Installing, "no update: there is nothing to update");
}

#[tokio::test]
async fn what_comes_back_from_the_archive_has_a_clean_start_and_its_history() {
    let (world, id) = world_with_hello().await;
    world.say(report(id, 2, Reported::Installed)).await;
    world.run("line-1", &[]).await;
    world.say(report(id, 3, Reported::Removed)).await;
    world.run("line-1", &[("hello", b"one")]).await;
    assert_eq!(world.assignment(id).await.observed, None);
    assert_eq!(world.outlook(id).await.state, State::Pending);
    world.say(report(id, 4, Reported::Installing)).await;
    assert_eq!(world.history().await, ["INSTALLED", "DELETED", "INSTALLING"]);
}

#[tokio::test]
async fn mi_g2_007_a_report_about_someone_elses_assignment_is_unknown() {
    let (world, id) = world_with_hello().await;
    world.join("line-2").await;
    let foreign = world.store.record_report(&client("line-2"), report(id, 1, Reported::Installed), NOW).await;
    assert!(matches!(foreign, Err(ReportError::AssignmentUnknown { ahead: None })), "{foreign:?}");
    let other_device = margrave_core::id::DeviceId::parse("line-1/child").unwrap();
    let report = Report { device: Some(other_device), ..report(id, 2, Reported::Installed) };
    let wrong = world.store.record_report(&client("line-1"), report, NOW).await;
    let Err(ReportError::OtherDevice { device, ahead: None }) = wrong else { panic!("{wrong:?}") };
    assert_eq!(device.as_str(), "line-1");
    let stranger =
        world.store.record_report(&client("nobody"), self::report(id, 2, Reported::Installed), NOW).await;
    assert!(matches!(stranger, Err(ReportError::ClientUnknown)), "{stranger:?}");
    assert_eq!(world.outlook(id).await.state, State::Pending);
}

#[tokio::test]
async fn a_device_ahead_of_a_restored_server_is_noticed_and_numbers_continue_above() {
    let (world, id) = world_with_hello().await;
    assert_eq!(world.say(report(id, 40, Reported::Installed)).await.ahead, Some(40));
    assert_eq!(world.store.clients_ahead().await.unwrap(), [(client("line-1"), 40)]);
    assert_eq!(world.picture("line-1").await.version_floor, 40);
    world.run("line-1", &[("hello", b"two")]).await;
    assert_eq!(world.picture("line-1").await.manifest.version(), 41);
    assert!(world.store.clients_ahead().await.unwrap().is_empty());

    // Also from a report about something that the backup did not know.
    let unknown = AssignmentId::derive(deployment_id("later"), &device("line-1"));
    let error =
        world.store.record_report(&client("line-1"), report(unknown, 50, Reported::Installed), NOW).await;
    assert!(matches!(error, Err(ReportError::AssignmentUnknown { ahead: Some(50) })), "{error:?}");
    assert_eq!(world.store.clients_ahead().await.unwrap(), [(client("line-1"), 50)]);
}

#[tokio::test]
async fn a_device_that_holds_the_same_number_with_other_bytes_is_given_the_next() {
    let (world, id) = world_with_hello().await;
    let published = world.picture("line-1").await.manifest.version();
    let body = format!("manifest {published}").into_bytes();
    let holding = |version, manifest| {
        // What it runs it had adopted before; the newest change still waits.
        let mut report = numbered(id, published - 1, State::Installed, version * 10);
        report.detail.as_mut().unwrap().holds = Some(Holding { version, manifest });
        report
    };
    assert_eq!(world.say(holding(published, Digest::of(&body))).await.ahead, None, "it is ours");
    assert_eq!(world.say(holding(published - 1, Digest::of(b"older"))).await.ahead, None);
    assert!(world.store.clients_ahead().await.unwrap().is_empty());
    assert_eq!(world.say(holding(published, Digest::of(b"other"))).await.ahead, Some(published + 1));
    assert_eq!(world.picture("line-1").await.version_floor, published + 1);
    assert_eq!(world.say(holding(published + 7, Digest::of(b"other"))).await.ahead, Some(published + 7));
    let far = holding(published + VERSION_LEAP_MAX + 1, Digest::of(b"other"));
    let error = world.store.record_report(&client("line-1"), far, NOW).await.unwrap_err();
    assert!(matches!(error, ReportError::VersionUnknown { .. }), "{error}");
}

#[tokio::test]
async fn a_version_that_cannot_be_true_is_refused() {
    let (world, id) = world_with_hello().await;
    for version in [u64::MAX, i64::MAX as u64, 3 + VERSION_LEAP_MAX] {
        let report = report(id, version, Reported::Installed);
        let error = world.store.record_report(&client("line-1"), report, NOW).await.unwrap_err();
        assert!(matches!(error, ReportError::VersionUnknown { published: 2, .. }), "{error}");
    }
    let mut report = numbered(id, 2, State::Installed, 1);
    report.detail.as_mut().unwrap().sequence = u64::MAX;
    let error = world.store.record_report(&client("line-1"), report, NOW).await.unwrap_err();
    assert!(matches!(error, ReportError::Store(Error::OutOfRange { .. })), "{error}");
    assert_eq!(world.assignment(id).await.observed, None);
}

#[tokio::test]
async fn the_history_keeps_the_newest_200() {
    let (world, id) = world_with_hello().await;
    for sequence in 1..=250 {
        let state = if sequence % 2 == 0 { State::Installed } else { State::Failed };
        world.say(numbered(id, 2, state, sequence)).await;
    }
    let name = DeploymentName::parse("hello").unwrap();
    let history = world.store.transitions(&name, &device("line-1")).await.unwrap();
    assert_eq!(history.len(), 200);
    assert_eq!(history[0].report.detail.as_ref().unwrap().sequence, 51);
}

#[tokio::test]
async fn a_device_clock_without_a_battery_does_not_date_the_history() {
    let (world, id) = world_with_hello().await;
    let mut report = numbered(id, 2, State::Installing, 1);
    report.detail.as_mut().unwrap().at = margrave_core::moment::Moment(1000);
    world.say(report).await;
    world.say(numbered(id, 2, State::Installed, 2)).await;
    let name = DeploymentName::parse("hello").unwrap();
    let history = world.store.transitions(&name, &device("line-1")).await.unwrap();
    assert_eq!([history[0].at, history[1].at], [NOW, later(2)]);
}

#[tokio::test]
async fn what_devices_refuse_and_what_waits_for_silent_ones_is_counted_apart() {
    let (world, id) = world_with_hello().await;
    let words = async |before| {
        let silence = Silence { before, heard: vec![] };
        let counts = world.store.assignment_counts_of(deployment_id("hello"), silence.clone()).await.unwrap();
        assert_eq!(counts, world.store.assignment_counts(silence.clone()).await.unwrap());
        let words: Vec<String> =
            counts.iter().map(|count| format!("{} {}", count.count, count.word())).collect();
        let fleet = world.store.fleet_counts(silence).await.unwrap().assignments;
        let fleet: Vec<String> = fleet.iter().map(|(word, count)| format!("{count} {word}")).collect();
        assert_eq!(fleet, words);
        words.join(", ")
    };
    world.store.touch_contacts(vec![(client("line-1"), later(5))]).await.unwrap();
    assert_eq!((words(later(5)).await.as_str(), words(later(6)).await.as_str()), ("1 PENDING", "1 NOTYET"));
    for code in FAILURE_CODES {
        let (source, message) = ("agent".to_owned(), "no".to_owned());
        let fault = Some(Fault { code: code.as_str().to_owned(), source, message });
        world.say(Report { fault, ..report(id, 2, Reported::Failed) }).await;
        let word = if code.is_refusal() { "1 NEVER" } else { "1 FAILED" };
        assert_eq!(words(later(6)).await, word, "{}", code.as_str());
    }
    world.say(report(id, 2, Reported::Installed)).await;
    assert_eq!(words(later(6)).await, "1 INSTALLED", "what was said was said");
}

/// Devices say once a day where everything stands.
#[tokio::test]
async fn what_is_said_once_more_is_no_step_in_anybodys_life() {
    let (world, id) = world_with_hello().await;
    for sequence in 1..=3 {
        world.say(numbered(id, 2, State::Installed, sequence)).await;
    }
    assert_eq!(world.history().await, ["INSTALLED"]);
    let newest = world.assignment(id).await.observed.unwrap().report.detail.unwrap().sequence;
    assert_eq!(newest, 3, "it is the newest all the same");
    world.run("line-1", &[]).await;
    world.say(numbered(id, 3, State::Deleting, 4)).await;
    world.say(numbered(id, 3, State::Deleted, 5)).await;
    assert_eq!(world.history().await, ["INSTALLED", "DELETING", "DELETED"]);
    // That it is not here is said in other words than that it went.
    world.say(Report { components: vec![], ..numbered(id, 3, State::Deleted, 6) }).await;
    assert_eq!(world.history().await.len(), 3);
    // What is gone gets no younger by it, or it would never be forgotten.
    let again = numbered(id, 3, State::Deleted, 7);
    world.store.record_report(&client("line-1"), again, later(1000)).await.unwrap();
    assert_eq!(world.store.sweep_archived(later(500), 1000).await.unwrap(), 1);
}
