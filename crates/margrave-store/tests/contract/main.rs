//! The contract of the store: one function per behaviour, written against the public verbs only, so that
//! another database can be put under the same suite. What is special to files (locks, copies, full disks)
//! is in `sqlite`.

mod access;
mod applied;
mod catalog;
mod finding;
mod fixture;
mod git;
mod images;
mod migrations;
mod publishing;
mod reporting;
mod revisions;
mod rollouts;
mod signed;
mod sqlite;
mod standing;
mod unspoken;

use fixture::*;
use std::collections::BTreeMap;

use margrave_core::deployment::Targets;
use margrave_core::device::Hold;
use margrave_core::digest::Digest;
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_store::*;

fn token(name: &str, secret: &[u8], expires_at: Moment) -> NewJoinToken {
    NewJoinToken {
        hash: Digest::of(secret),
        client: client(name),
        labels: labels(&[("site", "nord")]),
        created_at: NOW,
        created_by: "operator ann".into(),
        expires_at,
    }
}

#[tokio::test]
async fn a_join_token_is_used_once_and_makes_a_client_with_manifest_version_1() {
    let world = World::new();
    world.store.create_join_token(token("line-1", b"t", later(60))).await.unwrap();
    let redeemed = world.store.redeem_join_token(Digest::of(b"t"), NOW, b"empty".to_vec()).await.unwrap();
    assert_eq!(redeemed, Redeemed { client: client("line-1"), manifest_version: 1 });
    let again = world.store.redeem_join_token(Digest::of(b"t"), NOW, b"empty".to_vec()).await.unwrap_err();
    assert!(matches!(again, JoinError::Used), "{again}");

    let clients = world.store.clients().await.unwrap();
    assert_eq!(clients.len(), 1);
    assert_eq!((clients[0].manifest_version, &clients[0].manifest_body[..]), (1, &b"empty"[..]));
    let device = world.store.device(&device("line-1")).await.unwrap().unwrap();
    assert_eq!(device.labels, labels(&[("site", "nord")]));
    assert_eq!(device.capabilities, None);
}

#[tokio::test]
async fn many_at_once_with_one_join_token_get_in_once() {
    let world = World::new();
    world.store.create_join_token(token("line-1", b"t", later(60))).await.unwrap();
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let store = world.store.clone();
        tries.spawn(async move { store.redeem_join_token(Digest::of(b"t"), NOW, vec![]).await.is_ok() });
    }
    let won = tries.join_all().await.into_iter().filter(|won| *won).count();
    assert_eq!(won, 1);
}

#[tokio::test]
async fn expired_and_unknown_join_tokens_are_told_apart() {
    let world = World::new();
    world.store.create_join_token(token("line-1", b"t", later(60))).await.unwrap();
    let expired = world.store.redeem_join_token(Digest::of(b"t"), later(60), vec![]).await.unwrap_err();
    assert!(matches!(expired, JoinError::Expired), "{expired}");
    let unknown = world.store.redeem_join_token(Digest::of(b"x"), NOW, vec![]).await.unwrap_err();
    assert!(matches!(unknown, JoinError::Unknown), "{unknown}");
    assert!(world.store.clients().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_newer_token_for_the_same_name_voids_the_older() {
    let world = World::new();
    world.store.create_join_token(token("line-1", b"old", later(60))).await.unwrap();
    world.store.create_join_token(token("line-1", b"new", later(60))).await.unwrap();
    assert!(world.store.redeem_join_token(Digest::of(b"old"), NOW, vec![]).await.is_err());
    assert!(world.store.redeem_join_token(Digest::of(b"new"), NOW, vec![]).await.is_ok());
}

#[tokio::test]
async fn id_176_a_name_in_use_and_a_retired_name_get_no_token() {
    let world = World::new();
    world.join("line-1").await;
    // It never spoke: the join may have broken off half-way, and may be tried again.
    world.store.create_join_token(token("line-1", b"again", later(60))).await.unwrap();
    let redeemed = world.store.redeem_join_token(Digest::of(b"again"), NOW, vec![]).await.unwrap();
    assert_eq!(redeemed.manifest_version, 1);

    world.store.touch_contacts(vec![(client("line-1"), NOW)]).await.unwrap();
    let taken = world.store.create_join_token(token("line-1", b"b", later(60))).await.unwrap_err();
    assert!(matches!(taken, JoinError::Joined(_)), "{taken}");
    world.store.retire_clients(vec![client("line-1")], NOW, "operator ann").await.unwrap();
    let retired = world.store.create_join_token(token("line-1", b"c", later(60))).await.unwrap_err();
    assert!(matches!(retired, JoinError::Retired(_)), "{retired}");
}

#[tokio::test]
async fn the_newest_two_certificates_are_known() {
    let world = World::new();
    world.join("line-1").await;
    for serial in ["01", "02", "02", "03"] {
        assert!(world.store.record_svid(&client("line-1"), serial, later(60), NOW).await.unwrap());
    }
    assert_eq!(world.store.svid_serials(&client("line-1")).await.unwrap(), ["03", "02"]);
    assert!(!world.store.record_svid(&client("nobody"), "01", later(60), NOW).await.unwrap());
    assert!(world.store.svid_serials(&client("nobody")).await.unwrap().is_empty());
}

#[tokio::test]
async fn contacts_never_go_back_and_strangers_leave_no_trace() {
    let world = World::new();
    world.join("line-1").await;
    let contacts = vec![(client("line-1"), later(10)), (client("nobody"), NOW)];
    world.store.touch_contacts(contacts).await.unwrap();
    world.store.touch_contacts(vec![(client("line-1"), later(5))]).await.unwrap();
    let seen = world.store.device(&device("line-1")).await.unwrap().unwrap().last_contact;
    assert_eq!(seen, Some(later(10)));
    assert_eq!(world.store.clients().await.unwrap().len(), 1);
}

#[tokio::test]
async fn retiring_puts_a_client_out_with_its_assignments_and_accepting_lets_it_in() {
    let world = World::new();
    world.join("line-1").await;
    let id = world.deploy("hello", "line-1", b"doc").await;
    world.store.retire_clients(vec![client("line-1")], NOW, "operator ann").await.unwrap();
    assert_eq!(world.store.clients().await.unwrap()[0].standing, Standing::Retired);
    assert!(world.assignments("line-1").await.is_empty());
    world.store.retire_clients(vec![client("nobody")], NOW, "operator ann").await.unwrap();
    assert_eq!(world.store.clients().await.unwrap().len(), 1, "who is unknown stays so");

    assert!(world.store.accept_client(&client("line-1"), NOW, "operator ann").await.unwrap());
    assert_eq!(world.store.clients().await.unwrap()[0].standing, Standing::Accepted);
    // It is to be placed anew; the same id comes back.
    let unsettled = world.store.devices_unsettled(10).await.unwrap();
    assert_eq!(unsettled[0].device, device("line-1"));
    let change = AssignmentChange::Want(wanted("hello", "line-1", b"doc"));
    world.publish_assignments("line-1", vec![change]).await;
    assert_eq!(world.assignment(id).await.outlook().state.as_str(), "PENDING");
}

fn body(device_name: &str, body: &[u8]) -> NewCapabilities {
    NewCapabilities {
        device: margrave_core::id::DeviceId::parse(device_name).unwrap(),
        body: body.to_vec(),
        simulated: true,
        holds: vec![],
        blind: None,
        looked: 0,
    }
}

#[tokio::test]
async fn mi_g2_121_capabilities_are_created_then_updated_and_the_device_is_to_be_settled() {
    let world = World::new();
    world.join("line-1").await;
    world.settle("line-1").await;
    let line = client("line-1");
    assert_eq!(world.store.put_capabilities(&line, body("line-1", b"a"), NOW).await.unwrap(), Put::Created);
    assert_eq!(world.store.devices_unsettled(10).await.unwrap().len(), 1);
    world.settle("line-1").await;
    // The same again changes nothing.
    assert_eq!(world.store.put_capabilities(&line, body("line-1", b"a"), NOW).await.unwrap(), Put::Updated);
    assert!(world.store.devices_unsettled(10).await.unwrap().is_empty());
    assert_eq!(world.store.put_capabilities(&line, body("line-1", b"b"), NOW).await.unwrap(), Put::Updated);
    assert_eq!(world.store.devices_unsettled(10).await.unwrap().len(), 1);
    let stored = world.store.device(&device("line-1")).await.unwrap().unwrap();
    assert_eq!((stored.capabilities, stored.simulated), (Some(b"b".to_vec()), true));
}

#[tokio::test]
async fn who_holds_changes_back_is_noted_and_settles_nothing_anew() {
    let world = World::new();
    world.join("line-1").await;
    let line = client("line-1");
    let said = |hold: Option<&str>| {
        let holds: Vec<Hold> =
            hold.into_iter().filter_map(|reason| Hold::told("ann", reason, NOW, later(60))).collect();
        let told = |hold: &Hold| serde_json::json!({ "holder": hold.holder, "reason": hold.reason, "since": hold.since.0, "until": hold.until.0 });
        let told: Vec<serde_json::Value> = holds.iter().map(told).collect();
        let json = serde_json::json!({ "properties": {}, "x-margrave-extensions": { "holds": told } });
        NewCapabilities { holds, ..body("line-1", json.to_string().as_bytes()) }
    };
    world.store.put_capabilities(&line, said(None), NOW).await.unwrap();
    world.settle("line-1").await;
    for (hold, words) in
        [(Some("a batch runs"), "line-1 holds changes back, by ann until "), (None, "holds nothing back")]
    {
        world.store.put_capabilities(&line, said(hold), NOW).await.unwrap();
        assert!(world.store.devices_unsettled(10).await.unwrap().is_empty());
        let event = world.store.events_newest(1).await.unwrap().remove(0);
        assert!(event.kind == "device.hold" && event.text.contains(words), "{event:?}");
    }
    world.store.put_capabilities(&line, body("line-1", b"{}"), NOW).await.unwrap();
    assert_eq!(world.store.devices_unsettled(10).await.unwrap().len(), 1, "anything else does");
}

#[tokio::test]
async fn mi_g2_121_a_child_needs_its_gateway_first_and_mi_g2_122_goes_with_it() {
    let world = World::new();
    world.join("gw").await;
    let gw = client("gw");
    let orphan = world.store.put_capabilities(&gw, body("gw/a", b"x"), NOW).await.unwrap_err();
    assert!(matches!(orphan, CapabilitiesError::GatewayUnknown(_)), "{orphan}");
    for name in ["gw", "gw/a", "gw/a/deep"] {
        world.store.put_capabilities(&gw, body(name, b"x"), NOW).await.unwrap();
    }
    // A sibling that only shares the beginning of the name stays.
    world.store.put_capabilities(&gw, body("gw-2", b"x"), NOW).await.unwrap();
    let gateway = margrave_core::id::DeviceId::parse("gw").unwrap();
    world.store.delete_capabilities(&gw, &gateway, NOW).await.unwrap();
    for (name, left) in [("gw", false), ("gw/a", false), ("gw/a/deep", false), ("gw:gw-2", true)] {
        let record = world.store.device(&device(name)).await.unwrap().unwrap();
        assert_eq!(record.capabilities.is_some(), left, "{name}");
    }
    let again = world.store.delete_capabilities(&gw, &gateway, NOW).await.unwrap_err();
    assert!(matches!(again, CapabilitiesError::DeviceUnknown(_)), "{again}");
}

#[tokio::test]
async fn a_device_with_a_name_of_its_own_takes_the_labels_that_were_prepared_for_its_client() {
    let world = World::new();
    world.store.create_join_token(token("c-7", b"t", later(60))).await.unwrap();
    world.store.redeem_join_token(Digest::of(b"t"), NOW, vec![]).await.unwrap();
    world.store.put_capabilities(&client("c-7"), body("press", b"x"), NOW).await.unwrap();
    assert_eq!(world.store.device(&device("c-7")).await.unwrap(), None);
    let press = world.store.device(&device("c-7:press")).await.unwrap().unwrap();
    assert_eq!(press.labels, labels(&[("site", "nord")]));
}

#[tokio::test]
async fn labels_are_given_and_taken_and_select_devices() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.join(name).await;
        world.settle(name).await;
    }
    world.label(&device("a"), &[("site", "nord"), ("line", "1")]).await;
    world.label(&device("b"), &[("site", "nord"), ("line", "2")]).await;
    world.label(&device("later"), &[("site", "west"), ("line", "3")]).await;
    assert_eq!(world.store.devices_unsettled(10).await.unwrap().len(), 2);
    world.settle("a").await;
    world.label(&device("a"), &[("site", "nord"), ("line", "1")]).await;
    assert_eq!(world.store.devices_unsettled(10).await.unwrap().len(), 1, "nothing new unsettles nothing");

    let targeted = async |pairs: &[(&str, &str)], named: &[&str]| {
        let targets = Targets {
            labels: labels(pairs),
            devices: named.iter().map(|name| device(name)).collect(),
            ..Default::default()
        };
        let found = world.store.devices_targeted(&targets).await.unwrap();
        found.into_iter().map(|record| record.device.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(targeted(&[("site", "nord")], &[]).await, ["a", "b"]);
    assert_eq!(targeted(&[("site", "nord"), ("line", "2")], &["c", "nobody"]).await, ["b", "c"]);
    assert_eq!(targeted(&[], &[]).await, [""; 0]);
    world.label(&device("b"), &[("line", "2")]).await;
    assert_eq!(targeted(&[("site", "nord")], &[]).await, ["a"]);
    let selected = async |expression: &str| {
        let targets = Targets { select: expression.parse().unwrap(), ..Default::default() };
        let found = world.store.devices_targeted(&targets).await.unwrap();
        found.into_iter().map(|record| record.device.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(selected("line in (1, 2)").await, ["a", "b"]);
    assert_eq!(selected("line in (1, 2), site!=nord").await, ["b"]);
    assert_eq!(selected("line").await, ["a", "b"]);
    assert_eq!(selected("line, !site").await, ["b"]);
    assert_eq!(selected("!line").await, ["c"], "what only denies looks at everybody");
    let sites = Targets { sites: ["nord".to_owned()].into(), ..Default::default() };
    assert_eq!(world.store.devices_targeted(&sites).await.unwrap().len(), 1);
    // What was said of a device before it came counts once it comes.
    world.join("later").await;
    assert_eq!(selected("line=3, site=west").await, ["later"]);
    let forget = Intent::Label { device: device("later"), labels: None, by: "operator ann".into() };
    world.want(forget).await.unwrap();
    assert_eq!(selected("line=3, site=west").await, ["later"], "nobody said that it should lose them");
    assert_eq!(world.store.device_setting(&device("later")).await.unwrap(), None);
    world.store.retire_clients(vec![client("a")], NOW, "operator ann").await.unwrap();
    assert_eq!(targeted(&[("site", "nord")], &[]).await, [""; 0], "a retired client is no target");
}

#[tokio::test]
async fn devices_are_found_by_name_label_and_condition_page_by_page() {
    let world = World::new();
    for name in ["line-1", "line-2", "line-3", "press-1"] {
        world.join(name).await;
        world.store.put_capabilities(&client(name), body(name, b"x"), NOW).await.unwrap();
        world.store.touch_contacts(vec![(client(name), NOW)]).await.unwrap();
    }
    world.store.touch_contacts(vec![(client("line-1"), later(100))]).await.unwrap();
    world.store.retire_clients(vec![client("press-1")], NOW, "operator ann").await.unwrap();
    let find = async |filter: DeviceFilter| {
        let found = world.store.devices(DeviceFilter { limit: 2, ..filter }).await.unwrap();
        found.into_iter().map(|record| record.device.to_string()).collect::<Vec<_>>()
    };
    let all = DeviceFilter::default();
    assert_eq!(find(all.clone()).await, ["line-1", "line-2"]);
    assert_eq!(
        find(DeviceFilter { after: Some(device("line-2")), ..all.clone() }).await,
        ["line-3", "press-1"]
    );
    assert_eq!(find(DeviceFilter { after: Some(device("press-1")), ..all.clone() }).await, [""; 0]);
    let search = |text: &str| DeviceFilter { search: Some(text.into()), ..all.clone() };
    assert_eq!(find(search("PRESS")).await, ["press-1"]);
    assert_eq!(find(search("press-1:press")).await, ["press-1"], "also with its client's name");
    for nobody in ["press_", "%", "\\", "line-1:press"] {
        assert_eq!(find(search(nobody)).await, [""; 0], "{nobody} is no pattern");
    }
    let since = |before| Silence { before, heard: vec![] };
    let by = |condition, before| DeviceFilter {
        condition: Some(condition),
        silence: since(before),
        ..all.clone()
    };
    assert_eq!(find(by(Condition::Retired, later(50))).await, ["press-1"]);
    assert_eq!(find(by(Condition::Silent, later(50))).await, ["line-2", "line-3"]);
    assert_eq!(find(by(Condition::Converged, later(50))).await, ["line-1"]);
    assert_eq!(find(by(Condition::Silent, NOW)).await, [""; 0]);
    world.label(&device("line-3"), &[("site", "nord")]).await;
    let label = |value: Option<&str>| DeviceFilter {
        label: Some(("site".into(), value.map(str::to_owned))),
        ..all.clone()
    };
    assert_eq!(find(label(Some("nord"))).await, ["line-3"]);
    assert_eq!(find(label(None)).await, ["line-3"]);
    assert_eq!(find(label(Some("sued"))).await, [""; 0]);
    let site = |site: &str| DeviceFilter { site: Some(site.into()), ..all.clone() };
    assert_eq!(find(site("nord")).await, ["line-3"]);
    assert_eq!(find(DeviceFilter { search: Some("line-1".into()), ..site("nord") }).await, [""; 0]);
    let sited = DeviceFilter { without_site: true, ..all.clone() };
    assert_eq!(find(sited.clone()).await, ["line-1", "line-2"]);
    // Counted over all pages; and from each page there is a way back.
    let counted = async |filter: DeviceFilter| world.store.devices_counted(filter).await.unwrap();
    let most = |limit| DeviceFilter { limit, after: Some(device("line-2")), ..all.clone() };
    assert_eq!(counted(most(3)).await, Counted::Exactly(4), "nothing has to be looked for");
    assert_eq!(counted(sited).await, Counted::Exactly(3));
    assert_eq!(counted(site("nord")).await, Counted::Exactly(1));
    assert_eq!(counted(by(Condition::Silent, later(50))).await, Counted::Exactly(2));
    assert_eq!(counted(by(Condition::Converged, later(50))).await, Counted::Exactly(1));
    let lines = |limit| DeviceFilter { search: Some("line".into()), limit, ..all.clone() };
    assert_eq!(counted(lines(3)).await, Counted::Exactly(3));
    assert_eq!(counted(lines(2)).await, Counted::MoreThan(2));
    let before = async |after: &str, limit| {
        let filter = DeviceFilter { after: Some(device(after)), limit, ..all.clone() };
        world.store.page_before(filter).await.unwrap().map(|device| device.to_string())
    };
    assert_eq!(before("line-2", 2).await, None, "the page before is the first");
    assert_eq!(before("line-2", 1).await.as_deref(), Some("line-1"));
    assert_eq!(before("press-1", 2).await.as_deref(), Some("line-2"));
    let told = br#"{"properties": {"cpus": [{"architecture": "ARM64"}], "roles": []}}"#;
    world.store.put_capabilities(&client("line-2"), body("line-2", told), NOW).await.unwrap();
    let capability = |text: &str| DeviceFilter { capability: Some(text.into()), ..all.clone() };
    assert_eq!(find(capability("Arm6")).await, ["line-2"]);
    assert_eq!(find(capability("roles")).await, [""; 0], "what a field is called is no capability");
    let told = br#"{"properties": {"id": "line-3", "serialNumber": "SN-0003", "cpus": [{"architecture": "ARM64"}]}}"#;
    world.store.put_capabilities(&client("line-3"), body("line-3", told), NOW).await.unwrap();
    assert_eq!(find(capability("arm64")).await, ["line-2", "line-3"]);
    assert_eq!(find(capability("sn-0003")).await, ["line-3"]);
    assert_eq!(counted(capability("arm64")).await, Counted::MoreThan(0), "counting has the filter's limit");

    let sites = async |silence| {
        let sites = world.store.site_counts(silence).await.unwrap();
        let told = |(site, counts): (Option<String>, BTreeMap<String, u64>)| {
            format!("{} {counts:?}", site.as_deref().unwrap_or("-"))
        };
        sites.into_iter().map(told).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(sites(since(NOW)).await, r#"- {"converged": 2}, nord {"converged": 1}"#);
    assert_eq!(sites(since(later(50))).await, r#"- {"converged": 1, "silent": 1}, nord {"silent": 1}"#);

    let counts = async |silence| {
        let counts = world.store.fleet_counts(silence).await.unwrap();
        counts.devices.into_iter().collect::<Vec<(String, u64)>>()
    };
    let named = |pairs: &[(&str, u64)]| -> Vec<(String, u64)> {
        pairs.iter().map(|(name, count)| (name.to_string(), *count)).collect()
    };
    assert_eq!(counts(since(later(50))).await, named(&[("converged", 1), ("retired", 1), ("silent", 2)]));
    // One of the silent ones has been heard, and a retired one stays retired.
    let heard = Silence { before: later(50), heard: vec![client("line-2"), client("press-1")] };
    assert_eq!(counts(heard.clone()).await, named(&[("converged", 2), ("retired", 1), ("silent", 1)]));
    let silent = DeviceFilter { condition: Some(Condition::Silent), silence: heard, ..all.clone() };
    assert_eq!(find(silent).await, ["line-3"]);
    world.deploy("hello", "line-3", b"hello").await;
    let deployment = |name: &str| DeviceFilter { deployment: Some(name.parse().unwrap()), ..all.clone() };
    assert_eq!(find(deployment("hello")).await, ["line-3"]);
    assert_eq!(find(DeviceFilter { state: Some(State::Pending), ..deployment("hello") }).await, ["line-3"]);
    assert_eq!(find(DeviceFilter { state: Some(State::Failed), ..deployment("hello") }).await, [""; 0]);
    assert_eq!(find(deployment("other")).await, [""; 0]);
}

#[tokio::test]
async fn the_condition_in_sql_and_in_rust_are_the_same() {
    let world = World::new();
    for name in ["fresh", "silent", "failed", "pending", "converged", "retired"] {
        world.join(name).await;
        if name != "fresh" {
            world.store.put_capabilities(&client(name), body(name, b"x"), NOW).await.unwrap();
        }
        let contact = if name == "silent" { NOW } else { later(100) };
        world.store.touch_contacts(vec![(client(name), contact)]).await.unwrap();
    }
    for name in ["failed", "pending", "retired"] {
        let id = world.deploy("hello", name, name.as_bytes()).await;
        if name == "failed" {
            let report = report(id, 2, margrave_core::lifecycle::Reported::Failed);
            world.store.record_report(&client(name), report, NOW).await.unwrap();
        }
    }
    world.store.retire_clients(vec![client("retired")], NOW, "operator ann").await.unwrap();
    for condition in Condition::ALL {
        let filter = DeviceFilter {
            condition: Some(condition),
            silence: Silence { before: later(50), heard: vec![] },
            limit: 10,
            ..Default::default()
        };
        let found = world.store.devices(filter).await.unwrap();
        assert!(!found.is_empty(), "{}", condition.as_str());
        for record in found {
            assert_eq!(record.condition(later(50)), condition, "{}", record.device);
        }
    }
}

#[tokio::test]
async fn a_package_is_added_once_kept_exactly_and_refused_with_other_content() {
    let world = World::new();
    let resource =
        ResourceRecord { path: "icon.svg".into(), media_type: "image/svg+xml".into(), bytes: vec![1, 2] };
    let add = async |digest: &[u8]| {
        let record = PackageRecord { digest: Digest::of(digest), ..package("hello", "1.0.0") };
        world.add_package(record, vec![resource.clone()]).await
    };
    add(b"one").await.unwrap();
    add(b"one").await.unwrap();
    let other = add(b"two").await.unwrap_err();
    let refused = PublishError::Package(PackageError::OtherDigest { stored: Digest::of(b"one") });
    assert_eq!(other.to_string(), refused.to_string());
    let stored = world.store.packages().await.unwrap();
    assert_eq!(stored, [PackageRecord { digest: Digest::of(b"one"), ..package("hello", "1.0.0") }]);
    let (id, version) = (stored[0].id.clone(), stored[0].version.clone());
    assert_eq!(
        world.store.package_resource(&id, &version, "icon.svg").await.unwrap(),
        Some(resource.clone())
    );
    assert_eq!(world.store.package_resource(&id, &version, "../x").await.unwrap(), None);
}

#[tokio::test]
async fn a_package_in_use_stays() {
    let world = World::new();
    world.join("line-1").await;
    world.deploy("hello", "line-1", b"doc").await;
    let package = package("app", "1.0.0");
    let used = world.remove_package(&package).await.unwrap_err();
    assert!(matches!(&used, PublishError::Package(PackageError::InUse(by)) if by == &["hello"]), "{used}");
    world.remove("hello").await;
    world.remove_package(&package).await.unwrap();
    let gone = world.remove_package(&package).await.unwrap_err();
    assert!(matches!(gone, PublishError::Package(PackageError::Unknown)), "{gone}");
    assert!(world.store.packages().await.unwrap().is_empty());
}

#[tokio::test]
async fn events_are_numbered_announced_in_order_and_readable_from_any_point() {
    let world = World::new();
    let (sender, mut announced) = tokio::sync::mpsc::unbounded_channel();
    world.store.announce_to(move |event| sender.send(event.clone()).unwrap());
    let mut notes = tokio::task::JoinSet::new();
    for n in 0..50 {
        let store = world.store.clone();
        let event = NewEvent::new(NOW, "test", "server", format!("{n}")).device(&device("line-1"));
        notes.spawn(async move { store.note(event).await.unwrap() });
    }
    notes.join_all().await;
    let stored = world.store.events_after(0, 100).await.unwrap();
    assert_eq!(stored.len(), 50);
    assert!(stored.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    for event in &stored {
        assert_eq!(announced.recv().await.as_ref(), Some(event));
    }
    assert_eq!(world.store.events_after(stored[9].sequence, 3).await.unwrap(), stored[10..13]);
    assert_eq!(world.store.events_newest(2).await.unwrap(), [stored[49].clone(), stored[48].clone()]);
    assert_eq!(world.store.events_of_device(&device("line-1"), 1).await.unwrap(), [stored[49].clone()]);
    assert!(world.store.events_of_device(&device("line-2"), 1).await.unwrap().is_empty());
}

#[tokio::test]
async fn small_values_are_remembered() {
    let world = World::new();
    assert_eq!(world.store.recall("trust-domain").await.unwrap(), None);
    world.store.remember("trust-domain", b"a".to_vec()).await.unwrap();
    world.store.remember("trust-domain", b"b".to_vec()).await.unwrap();
    assert_eq!(world.store.recall("trust-domain").await.unwrap().as_deref(), Some(&b"b"[..]));
}
