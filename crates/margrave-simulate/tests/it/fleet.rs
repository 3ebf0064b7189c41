//! A small fleet's life: joining, converging, a restart of the server, renewal, removal; and the barrage.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use margrave_core::id::DeviceId;
use margrave_http::Request;
use margrave_simulate::barrage::{Caller, Lines, connect};
use margrave_simulate::fleet::{Behaviour, Fleet, Polling};
use margrave_simulate::roster::{LABEL, Roster, RosterError};
use margrave_simulate::tally::Trouble;
use margrave_wire::operator::{Device, FleetStatus, PREFIX, Page};

use crate::plant::{Plant, until};

const DEVICES: usize = 50;

fn behaviour() -> Behaviour {
    Behaviour {
        polling: Polling::Wait,
        install_time: Duration::from_millis(20),
        failure_rate: 0.0,
        report_every: None,
        ramp: Duration::ZERO,
    }
}

async fn roster(plant: &Plant, count: usize) -> Roster {
    let mut roster = Roster::open(&plant.path("simulated")).unwrap();
    roster.fill(&plant.operator(), count, &BTreeMap::new(), |_| {}).await.unwrap();
    roster
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_joins_converges_on_every_publish_and_comes_back_after_a_restart() {
    let mut plant = Plant::new().await;
    plant.add_package().await;
    let roster = roster(&plant, DEVICES).await;
    let all = DEVICES as u64;
    let fleet = Fleet::start(&roster, DEVICES, behaviour()).unwrap();
    until(&fleet, "all wait", |look| look.waiting == all && look.reached == all).await;

    let label = (LABEL, roster.tag());
    for (greeting, changes) in [("hello", 1), ("good night", 2)] {
        plant.deploy(greeting, label).await;
        plant.converges(all).await;
        let look = until(&fleet, "all wait again", |look| look.waiting == all).await;
        // One manifest to begin with, and one for each publish.
        assert_eq!(look.manifests, all * (1 + changes), "{look:?}");
        assert_eq!(look.fetched, all * changes);
        assert_eq!(look.errors(), 0, "{look:?}");
    }

    plant.stop().await;
    plant.start().await;
    let before = fleet.tally().look();
    let look = until(&fleet, "all are back", |look| look.waiting == all && look.reached == all).await;
    // While nobody listened they were refused, and nothing worse happened since.
    let since = look.since(&before);
    let refused = since.troubles[&Trouble::Refused];
    assert_eq!(since.errors(), refused, "{since:?}");
    // Nothing was installed twice.
    assert_eq!(look.fetched, all * 2);
    plant.converges(all).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_join_once_say_that_they_are_simulated_and_can_be_removed() {
    let plant = Plant::new().await;
    let mut first = roster(&plant, 5).await;
    let tag = first.tag().to_owned();
    first.fill(&plant.operator(), 5, &BTreeMap::new(), |_| panic!("nobody is missing")).await.unwrap();
    drop(first);

    // A second run finds them, and lets only those join that are missing.
    let roster = roster(&plant, 7).await;
    assert_eq!((roster.len(), roster.tag()), (7, tag.as_str()));
    let fleet = Fleet::start(&roster, 7, behaviour()).unwrap();
    until(&fleet, "all wait", |look| look.waiting == 7).await;
    let status: FleetStatus = plant.operator().ask(Request::get(format!("{PREFIX}/status"))).await.unwrap();
    assert_eq!(status.devices.total, 7);
    let page: Page<Device> = plant.operator().ask(Request::get(format!("{PREFIX}/devices"))).await.unwrap();
    assert!(page.items.iter().all(|device| device.simulated && device.labels[LABEL] == tag));
    fleet.stop().await;

    assert_eq!(roster.remove(&plant.operator(), |_| {}).await.unwrap(), 7);
    let page: Page<Device> = plant.operator().ask(Request::get(format!("{PREFIX}/devices"))).await.unwrap();
    assert!(page.items.iter().all(|device| device.standing == "retired"));
    let empty = Roster::open(&plant.path("simulated")).unwrap();
    assert!(empty.is_empty());
    assert!(matches!(Fleet::start(&empty, 1, behaviour()), Err(RosterError::Empty)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_one_server_is_not_used_for_another() {
    let (plant, other) = (Plant::new().await, Plant::new().await);
    let mut roster = roster(&plant, 1).await;
    let refused = roster.fill(&other.operator(), 2, &BTreeMap::new(), |_| {}).await;
    assert!(matches!(refused, Err(RosterError::OtherServer { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_reported_and_tried_again_and_polling_reports_and_extra_reports_are_counted() {
    let plant = Plant::new().await;
    plant.add_package().await;
    let roster = roster(&plant, 10).await;
    let fleet = Fleet::start(
        &roster,
        10,
        Behaviour { polling: Polling::Every(Duration::from_millis(200)), failure_rate: 1.0, ..behaviour() },
    )
    .unwrap();
    plant.deploy("hello", (LABEL, roster.tag())).await;
    // They try again and again, so not all of them are FAILED at the same moment.
    let mut failed = BTreeSet::new();
    while failed.len() < 10 {
        let before = fleet.tally().look().reports;
        let page: Page<Device> =
            plant.operator().ask(Request::get(format!("{PREFIX}/devices"))).await.unwrap();
        let now = page.items.into_iter().filter(|device| device.condition == "failed");
        failed.extend(now.map(|device| device.id));
        until(&fleet, "they report again", |look| failed.len() == 10 || look.reports > before).await;
    }
    let look = until(&fleet, "polls go on", |look| look.unchanged > 20 && look.waiting == 0).await;
    assert_eq!(look.errors(), 0, "{look:?}");
    fleet.stop().await;

    let lively = Behaviour { report_every: Some(Duration::from_millis(50)), ..behaviour() };
    let fleet = Fleet::start(&roster, 10, lively).unwrap();
    let look = until(&fleet, "they report of their own accord", |look| look.reports > 150).await;
    assert_eq!(look.errors(), 0, "{look:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn id_180_certificates_are_renewed_while_the_fleet_runs() {
    // Certificates begin minutes before they are issued, so one of six seconds is due for renewal at once.
    let plant = Plant::with_lifetime(Duration::from_secs(6)).await;
    let roster = roster(&plant, 3).await;
    let fleet = Fleet::start(
        &roster,
        3,
        Behaviour { polling: Polling::Every(Duration::from_millis(500)), ..behaviour() },
    )
    .unwrap();
    let look = until(&fleet, "all have renewed", |look| look.renewals >= 3).await;
    assert_eq!(look.troubles[&Trouble::Renewal], 0, "{look:?}");
    fleet.stop().await;
    drop(roster);
    // The renewed identities are the ones that were kept.
    let again = Roster::open(&plant.path("simulated")).unwrap();
    assert_eq!(again.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barrage_counts_what_the_server_answered() {
    let plant = Plant::new().await;
    plant.add_package().await;
    let roster = roster(&plant, 8).await;
    // They have to say what they are before they can be given anything.
    let fleet = Fleet::start(&roster, 8, behaviour()).unwrap();
    until(&fleet, "all wait", |look| look.waiting == 8).await;
    fleet.stop().await;
    plant.deploy("hello", (LABEL, roster.tag())).await;

    let callers: Vec<Caller> = roster
        .members(8)
        .iter()
        .map(|member| Caller {
            device: DeviceId::parse(member.client.as_str()).unwrap(),
            tls: roster.tls(member).unwrap(),
        })
        .collect();
    let mut lines = Lines::open(plant.device_address(), &callers).await.unwrap();
    assert_eq!((lines.len(), lines.subjects()), (8, 8));
    let polled = lines.poll(Duration::from_millis(300), 4).await;
    assert!(polled.answers > 0 && polled.failed == 0, "{polled:?}");
    assert_eq!(lines.len(), 8);
    let reported = lines.report(Duration::from_millis(500), 8, Some(40.0)).await;
    assert!(reported.failed == 0 && (1..=40).contains(&reported.answers), "{reported:?}");
    let connected = connect(plant.device_address(), &callers, Duration::from_millis(300), 2).await;
    assert!(connected.answers > 0 && connected.failed == 0, "{connected:?}");
}
