//! From intent to manifests.

use margrave_core::manifest::Manifest;
use margrave_core::workload::Placement;
use margrave_store::{ClientPublication, Intent, NewManifest, Publication};

use margrave_core::parameters::ParameterValue;

use super::*;

#[tokio::test]
async fn a_deployment_becomes_a_document_that_the_device_can_read() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let mut want = on(&["line-1"]);
    want.parameters.insert("interval".into(), json!("60"));
    let deployment = world.put("greeter", want).await.unwrap();
    assert_eq!((deployment.revision, deployment.version.as_str()), (1, "1.0.0"));
    assert_eq!(deployment.parameters["interval"], json!(60), "a text that is a number is a number");
    assert!(deployment.assignments.is_empty(), "a change is answered with numbers");
    assert_eq!((deployment.counts.total, deployment.counts.pending), (1, 1));
    let shown = world.fleet.deployment(&name("greeter")).await.unwrap();
    assert_eq!(operator::Deployment { assignments: vec![], ..shown.clone() }, deployment);
    let workloads = world.workloads("line-1").await;
    let [workload] = &workloads[..] else { panic!("one document") };
    assert_eq!(workload.id.to_string(), shown.assignments[0].id);
    assert_eq!(workload.placement, Placement::Device(device("line-1").device));
    assert_eq!(workload.components[0].repository, "oci://server.example:8443/components/web");
    assert_eq!(workload.hints.pins.len(), 1, "PK-053");
    // How a document types its values is the wire's business (DM-077).
    let values: Vec<_> = workload.values_for(&workload.components[0].name).collect();
    let values: Vec<_> = values.iter().map(|(pointer, value)| format!("{pointer}={value}")).collect();
    assert_eq!(values, ["GREETING=hello", "INTERVAL=60"]);
    assert_eq!(world.version("line-1"), 2);
}

#[tokio::test]
async fn dm_161_a_profile_is_named_or_chosen_for_each_device() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let of = |profile: &str| operator::PutDeployment { profile: Some(profile.into()), ..on(&["line-1"]) };
    for any in ["auto", ""] {
        let deployment = world.put("greeter", of(any)).await.unwrap();
        assert_eq!((deployment.profile, deployment.revision), (None, 1), "{any:?}");
    }
    let refused = world.put("greeter", of("automatic")).await.unwrap_err();
    assert!(refused.to_string().contains("the package has no profile \"automatic\""), "{refused}");
}

#[tokio::test]
async fn the_same_again_changes_nothing_and_only_what_changes_costs() {
    let world = World::new().await;
    for name in ["line-1", "line-2"] {
        world.device(name, &[]).await;
    }
    world.put("greeter", on(&["line-1", "line-2"])).await.unwrap();
    let again = world.put("greeter", on(&["line-2", "line-1"])).await.unwrap();
    assert_eq!((again.revision, world.version("line-1")), (1, 2));
    let fewer = world.put("greeter", on(&["line-1"])).await.unwrap();
    assert_eq!((fewer.revision, world.version("line-1"), world.version("line-2")), (2, 2, 3));
    assert!(world.workloads("line-2").await.is_empty());
    let mut other = on(&["line-1"]);
    other.parameters.insert("greeting".into(), json!("hi"));
    world.put("greeter", other).await.unwrap();
    assert_eq!((world.version("line-1"), world.version("line-2")), (3, 3));
}

#[tokio::test]
async fn two_fleets_make_the_same_bytes() {
    let mut bodies = Vec::new();
    for _ in 0..2 {
        let world = World::new().await;
        world.device("line-1", &[]).await;
        world.put("greeter", on(&["line-1"])).await.unwrap();
        let mut workload = world.workloads("line-1").await.remove(0);
        // Only the deployment's own id is made up.
        workload.id = AssignmentId::parse("00000000-0000-4000-8000-000000000000").unwrap();
        workload.namespace = String::new();
        bodies.push(g2::document::write(&workload));
    }
    assert_eq!(bodies[0], bodies[1]);
}

#[tokio::test]
async fn a_writer_with_an_outdated_revision_hears_who_was_faster() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let create = operator::PutDeployment { revision: Some(0), ..on(&["line-1"]) };
    world.put("greeter", create.clone()).await.unwrap();
    let error = world.put("greeter", create).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert!(error.to_string().contains("operator ann"), "{error}");
    let mut change = operator::PutDeployment { revision: Some(1), ..on(&["line-1"]) };
    change.parameters.insert("greeting".into(), json!("hi"));
    assert_eq!(world.put("greeter", change).await.unwrap().revision, 2);
    let gone = operator::PutDeployment { revision: Some(4), ..on(&["line-1"]) };
    assert!(matches!(world.put("other", gone).await.unwrap_err(), Error::Conflict { .. }));
}

#[tokio::test]
async fn many_writers_at_once_all_count() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..10 {
        let fleet = world.fleet.clone();
        writers.spawn(async move {
            let name = DeploymentName::parse(&format!("greeter-{n}")).unwrap();
            fleet.put_deployment(&ann(), &name, on(&["line-1"])).await.unwrap();
        });
    }
    writers.join_all().await;
    assert_eq!(world.workloads("line-1").await.len(), 10);
    assert_eq!(world.version("line-1"), 11);
}

#[tokio::test]
async fn what_is_wrong_with_a_wish_is_told_all_at_once_with_its_place() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let mut want = on(&["line-1", "nobody", "a b"]);
    want.profile = Some("none".into());
    want.parameters.insert("interval".into(), json!("soon"));
    let Error::Invalid(broken) = world.put("greeter", want).await.unwrap_err() else { panic!() };
    let places: Vec<&str> = broken.iter().map(|violation| violation.place.as_str()).collect();
    assert_eq!(places, ["/profile", "/parameters/interval", "/targets/devices/2", "/targets/devices/1"]);
    for (parameter, value) in [
        ("interval", json!(0)),
        ("greeting", json!("x".repeat(21))),
        ("unknown", json!(1)),
        ("site", json!(null)),
    ] {
        let mut want = on(&["line-1"]);
        want.parameters.insert(parameter.into(), value);
        let error = world.put("greeter", want).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{parameter}: {error}");
        assert!(error.to_string().contains(parameter), "{error}");
    }
    for want in [on(&[]), operator::PutDeployment { package: "none".into(), ..on(&["line-1"]) }] {
        assert!(matches!(world.put("greeter", want).await.unwrap_err(), Error::Invalid(_)));
    }
    let version = operator::PutDeployment { version: Some("9.9.9".into()), ..on(&["line-1"]) };
    let error = world.put("greeter", version).await.unwrap_err();
    assert!(error.to_string().contains("hello 9.9.9 is not in the catalog"), "{error}");
    assert!(world.fleet.deployments().await.unwrap().is_empty());
}

#[tokio::test]
async fn dm_059_an_immutable_answer_stays() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let site = |site: &str| {
        let mut want = on(&["line-1"]);
        want.parameters.insert("site".into(), json!(site));
        want
    };
    world.put("greeter", site("nord")).await.unwrap();
    let error = world.put("greeter", site("sued")).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(broken) if broken[0].rule == "DM-059"), "{error}");
    world.put("greeter", site("nord")).await.unwrap();
}

#[tokio::test]
async fn dm_059_an_immutable_answer_of_an_override_stays() {
    let world = World::new().await;
    world.device("line-1", &[("plant", "a")]).await;
    let site = |site: &str| {
        let mut want = labelled("plant", "a");
        let answers = json!([{ "targets": { "labels": { "plant": "a" } }, "parameters": { "site": site } }]);
        want.overrides = serde_json::from_value(answers).unwrap();
        want
    };
    world.put("greeter", site("nord")).await.unwrap();
    let error = world.put("greeter", site("sued")).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(broken) if broken[0].rule == "DM-059"), "{error}");
    assert!(
        matches!(&error, Error::Invalid(broken) if broken[0].place.starts_with("/overrides/0")),
        "{error}"
    );
    assert_eq!(world.workloads("line-1").await.len(), 1);
    // One that speaks of the same devices in other words is found out where it is placed, and takes nothing away.
    let mut named = site("sued");
    named.overrides[0].targets =
        operator::Targets { devices: vec!["line-1".into()], ..operator::Targets::default() };
    let shown = world.put("greeter", named.clone()).await.unwrap();
    assert_eq!(shown.misfits[0].device, "line-1");
    assert_eq!(world.workloads("line-1").await.len(), 1);
    world.report("greeter", "line-1", State::Installed).await;
    // It stays so whatever happens next: the device says something new of itself, or something else is changed.
    let stays = async |when: &str| {
        assert_eq!(world.answer_on("line-1", "site").await, ParameterValue::Text("nord".into()), "{when}");
        let why = world.fleet.why("line-1/greeter").await.unwrap();
        assert!(!why.converged && why.chain[0].text.contains("keep \"nord\""), "{when}: {why:?}");
    };
    stays("published").await;
    world.says("line-1", "32Gi", &["compose"]).await;
    stays("reported").await;
    named.parameters.insert("greeting".into(), json!("hi"));
    let shown = world.put("greeter", named).await.unwrap();
    assert_eq!(shown.misfits.len(), 1);
    stays("changed otherwise").await;
    // What it was at first it may be again.
    world.put("greeter", site("nord")).await.unwrap();
    assert!(world.fleet.deployment(&name("greeter")).await.unwrap().misfits.is_empty());
}

#[tokio::test]
async fn dm_059_an_immutable_answer_stays_where_other_labels_mean_another() {
    use super::super::intent::{Change, Source};
    for together in [false, true] {
        let world = World::new().await;
        world.device("line-1", &[("plant", "a")]).await;
        let want = |text: &str| {
            let site = |plant: &str, site: &str| json!({ "targets": { "labels": { "plant": plant } }, "parameters": { "site": site } });
            let mut want = on(&["line-1"]);
            want.parameters.insert("greeting".into(), json!(text));
            want.overrides = serde_json::from_value(json!([site("a", "nord"), site("b", "sued")])).unwrap();
            want
        };
        world.put("greeter", want("hi")).await.unwrap();
        let version = world.version("line-1");
        let labels = Some([("plant".to_owned(), "b".to_owned())].into());
        let mut changes = vec![Change::SetLabels { device: device("line-1"), labels }];
        if together {
            changes.push(Change::PutDeployment { name: name("greeter"), want: want("yo"), id: None });
        }
        let done = world.fleet.apply(&ann(), &changes, Source::Asked).await;
        // Who names the device is told at once; nobody names it where only its labels change.
        assert_eq!(done.is_err(), together);
        assert_eq!(world.answer_on("line-1", "site").await, ParameterValue::Text("nord".into()));
        assert_eq!(world.version("line-1"), version);
    }
}

#[tokio::test]
async fn dm_059_an_immutable_answer_stays_on_a_device_that_was_retired_meanwhile() {
    let world = World::new().await;
    world.device("line-1", &[("plant", "a")]).await;
    world.device("line-2", &[("plant", "a")]).await;
    let site = |of: operator::Targets, site: &str| operator::PutDeployment {
        overrides: vec![operator::Override {
            targets: of,
            parameters: [("site".to_owned(), json!(site))].into(),
        }],
        ..labelled("plant", "a")
    };
    let by_label = labelled("plant", "a").targets;
    world.put("greeter", site(by_label, "nord")).await.unwrap();
    world.report("greeter", "line-1", State::Installed).await;
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    let selected = operator::Targets { select: Some("plant = a".into()), ..Default::default() };
    world.put("greeter", site(selected, "sued")).await.unwrap();
    world.fleet.accept(&ann(), &device("line-1")).await.unwrap();
    assert_eq!(world.answer_on("line-1", "site").await, ParameterValue::Text("nord".into()));
    let misfits = world.fleet.deployment(&name("greeter")).await.unwrap().misfits;
    assert_eq!(misfits.len(), 2, "{misfits:?}");
    assert!(misfits.iter().all(|misfit| misfit.reasons.iter().any(|reason| reason.contains("it keeps"))));
}

#[tokio::test]
async fn dm_059_a_newer_default_changes_no_immutable_value_on_any_profile() {
    let world = World::empty().await;
    world.push_components().await;
    // Only the cluster profile reads it, and the line only runs the small one.
    let with_site = |version: &str, site: &str| {
        let site = format!("  site:\n    value: {site}\n    targets:");
        description(version).replace("  site:\n    targets:", &site)
    };
    world.push("1.0.0", &with_site("1.0.0", "nord")).await;
    world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
    world.device("line-1", &[]).await;
    world.join("cluster", &[]).await;
    world.says("cluster", "64Gi", &["helm"]).await;
    world.put("greeter", on(&["line-1", "cluster"])).await.unwrap();
    world.push("2.0.0", &with_site("2.0.0", "sued")).await;
    world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    let error = world.put("greeter", on(&["line-1", "cluster"])).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(broken) if broken[0].rule == "DM-059"), "{error}");
    assert!(error.to_string().contains("nord"), "{error}");
    let mut kept = on(&["line-1", "cluster"]);
    kept.parameters.insert("site".into(), json!("nord"));
    assert_eq!(world.put("greeter", kept).await.unwrap().version, "2.0.0");
}

#[tokio::test]
async fn a_removal_that_saw_an_older_revision_is_refused() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let mut change = on(&["line-1"]);
    change.parameters.insert("greeting".into(), json!("hi"));
    world.put("greeter", change).await.unwrap();
    let error = world.fleet.remove_deployment(&ann(), &name("greeter"), Some(1)).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert_eq!(world.workloads("line-1").await.len(), 1);
    world.fleet.remove_deployment(&ann(), &name("greeter"), Some(2)).await.unwrap();
    assert!(world.workloads("line-1").await.is_empty());
}

#[tokio::test]
async fn a_list_of_deployments_counts_and_one_of_them_shows_each() {
    let world = World::new().await;
    for name in ["line-1", "line-2", "line-3"] {
        world.device(name, &[]).await;
    }
    world.put("greeter", on(&["line-1", "line-2", "line-3"])).await.unwrap();
    world.report("greeter", "line-1", State::Installed).await;
    world.report("greeter", "line-2", State::Failed).await;
    let one = world.fleet.deployment(&name("greeter")).await.unwrap();
    let list = world.fleet.deployments().await.unwrap();
    assert_eq!((one.assignments.len(), list[0].assignments.len()), (3, 0));
    assert_eq!(one.counts, list[0].counts);
    let operator::AssignmentCounts { total, converged, pending, failed, went_back, states, .. } = one.counts;
    assert_eq!((total, converged, pending, failed, went_back), (3, 1, 1, 1, 0));
    assert_eq!(
        states,
        [("FAILED", 1), ("INSTALLED", 1), ("PENDING", 1)].map(|(s, n)| (s.to_owned(), n)).into()
    );
}

#[tokio::test]
async fn a_device_that_is_no_longer_a_target_is_told_from_one_that_removes_it_first_and_gets_it_anew() {
    let world = World::new().await;
    for name in ["line-1", "line-2"] {
        world.device(name, &[]).await;
    }
    world.put("greeter", on(&["line-1", "line-2"])).await.unwrap();
    world.report("greeter", "line-1", State::Installed).await;
    world.put("greeter", on(&["line-2"])).await.unwrap();
    let gone = world.assignment("greeter", "line-1").await;
    assert_eq!((gone.state.as_str(), gone.leaving), ("DELETING", true));
    assert!(!world.assignment("greeter", "line-2").await.leaving);
    world.report("greeter", "line-1", State::Deleting).await;
    world.put("greeter", on(&["line-1", "line-2"])).await.unwrap();
    let back = world.assignment("greeter", "line-1").await;
    assert_eq!((back.state.as_str(), back.leaving), ("DELETING", false));
}

#[tokio::test]
async fn the_newest_version_is_taken_and_a_device_keeps_its_id_across_versions() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let before = world.assignment("greeter", "line-1").await;
    for version in ["1.9.0", "1.10.0"] {
        world.push(version, &description(version)).await;
        world.add(&format!("oci://margrave/packages/hello:{version}")).await.unwrap();
    }
    let after = world.put("greeter", on(&["line-1"])).await.unwrap();
    assert_eq!((after.version.as_str(), after.revision), ("1.10.0", 2));
    assert_eq!(world.assignment("greeter", "line-1").await.id, before.id, "MI-G2-051");
    assert_eq!(world.workloads("line-1").await[0].hints.package_version.as_deref(), Some("1.10.0"));
}

#[tokio::test]
async fn each_device_takes_the_first_profile_that_fits_it() {
    let world = World::new().await;
    world.device("small", &[]).await;
    world.join("cluster", &[]).await;
    world.says("cluster", "64Gi", &["helm"]).await;
    world.put("greeter", on(&["small", "cluster"])).await.unwrap();
    let kind = async |name: &str| world.workloads(name).await[0].kind.as_str();
    assert_eq!((kind("small").await, kind("cluster").await), ("compose", "helm"));
    let chosen = operator::PutDeployment { profile: Some("cluster".into()), ..on(&["small", "cluster"]) };
    let Error::Misfit(misfits) = world.put("greeter", chosen).await.unwrap_err() else { panic!() };
    assert_eq!((misfits.len(), misfits[0].device.as_str()), (1, "small"));
    assert!(misfits[0].reasons[0].contains("helm"), "{misfits:?}");
}

#[tokio::test]
async fn a_named_misfit_refuses_and_a_labelled_one_is_left_out_and_listed() {
    let world = World::new().await;
    world.device("big", &[("site", "nord")]).await;
    world.join("tiny", &[("site", "nord")]).await;
    world.says("tiny", "128Mi", &["compose"]).await;
    let Error::Misfit(misfits) = world.put("greeter", on(&["big", "tiny"])).await.unwrap_err() else {
        panic!()
    };
    assert_eq!(misfits[0].device, "tiny");
    let deployment = world.put("greeter", labelled("site", "nord")).await.unwrap();
    assert_eq!(deployment.counts.total, 1);
    assert_eq!(deployment.misfits[0].device, "tiny");
    assert!(
        deployment.misfits[0].reasons.iter().any(|reason| reason.contains("memory")),
        "{:?}",
        deployment.misfits
    );
    let why = world.fleet.why("tiny").await.unwrap();
    let codes: Vec<&str> = why.chain.iter().map(|cause| cause.code.as_str()).collect();
    assert_eq!((why.converged, codes), (true, vec!["converged", "misfit"]));
    assert!(why.chain[1].text.starts_with("tiny was left out of greeter: "), "{:?}", why.chain);
    assert_eq!(world.fleet.why("big").await.unwrap().chain.len(), 1);
    let preview = world.fleet.preview(&name("other"), on(&["big", "tiny"])).await.unwrap();
    assert_eq!((preview.fits[0].device.as_str(), preview.fits[0].profile.as_str()), ("big", "small"));
    assert_eq!(preview.misfits[0].device, "tiny");
    assert!(world.fleet.deployment(&name("other")).await.is_err(), "a preview writes nothing");
    // It gets more memory and comes in by itself.
    world.says("tiny", "4Gi", &["compose"]).await;
    let deployment = world.fleet.deployment(&name("greeter")).await.unwrap();
    assert_eq!((deployment.assignments.len(), deployment.misfits.len()), (2, 0));
    assert_eq!(world.workloads("tiny").await.len(), 1);
}

#[tokio::test]
async fn a_device_comes_in_when_it_joins_reports_or_is_labelled_and_goes_when_it_is_not() {
    let world = World::new().await;
    world.put("greeter", labelled("site", "nord")).await.unwrap();
    world.device("joined", &[("site", "nord")]).await;
    assert_eq!(world.workloads("joined").await.len(), 1);
    world.device("late", &[]).await;
    assert!(world.workloads("late").await.is_empty());
    let set = |value: Option<&str>| operator::SetLabels {
        labels: [("site".into(), value.map(str::to_owned))].into(),
    };
    world.fleet.label(&ann(), &device("late"), set(Some("nord"))).await.unwrap();
    assert_eq!(world.workloads("late").await.len(), 1);
    let shown = world.fleet.label(&ann(), &device("late"), set(None)).await.unwrap();
    assert!(shown.labels.is_empty());
    assert!(world.workloads("late").await.is_empty());
    assert_eq!(world.assignment("greeter", "late").await.state, "DELETING");
    let unknown = world.fleet.label(&ann(), &device("nobody"), set(None)).await.unwrap_err();
    assert!(matches!(unknown, Error::NotFound { .. }), "{unknown}");
}

#[tokio::test]
async fn a_named_device_that_has_said_nothing_yet_comes_in_later() {
    let world = World::new().await;
    world.join("fresh", &[]).await;
    let deployment = world.put("greeter", on(&["fresh"])).await.unwrap();
    assert_eq!((deployment.counts.total, deployment.misfits.len()), (0, 1));
    world.says("fresh", "4Gi", &["compose"]).await;
    let deployment = world.fleet.deployment(&name("greeter")).await.unwrap();
    assert_eq!((deployment.assignments.len(), deployment.misfits.len()), (1, 0));
}

#[tokio::test]
async fn a_device_that_reports_less_keeps_what_it_has() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    // Its engine is down for a moment; that must not cost it its application.
    world.says("line-1", "64Mi", &["helm"]).await;
    assert_eq!(world.version("line-1"), 2);
    assert_eq!(world.workloads("line-1").await[0].kind.as_str(), "compose");
}

#[tokio::test]
async fn withdrawn_capabilities_take_the_place_and_a_gateway_takes_its_children_along() {
    let world = World::new().await;
    world.device("gw", &[]).await;
    for child in ["gw/a", "gw/b"] {
        let body = capabilities(child, "4Gi", &["compose"]);
        let parsed = g2::capabilities::read(&body).unwrap();
        assert_eq!(world.fleet.put_capabilities(&client("gw"), parsed, body).await.unwrap(), Put::Created);
    }
    world.put("greeter", on(&["gw/a", "gw/b"])).await.unwrap();
    let workloads = world.workloads("gw").await;
    assert_eq!(workloads.len(), 2);
    assert_ne!(workloads[0].id, workloads[1].id);
    world.fleet.delete_capabilities(&client("gw"), &device("gw").device).await.unwrap();
    assert!(world.workloads("gw").await.is_empty());
    let gone = world.fleet.delete_capabilities(&client("gw"), &device("gw").device).await.unwrap_err();
    assert!(matches!(gone, Error::DeviceNotFound(_)), "{gone}");
    let body = capabilities("gw/c", "4Gi", &["compose"]);
    let parsed = g2::capabilities::read(&body).unwrap();
    let orphan = world.fleet.put_capabilities(&client("gw"), parsed, body).await.unwrap_err();
    assert!(matches!(orphan, Error::GatewayNotFound(_)), "{orphan}");
}

#[tokio::test]
async fn a_removed_deployment_is_seen_going_and_then_gone() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    world.report("greeter", "line-1", State::Installed).await;
    world.fleet.remove_deployment(&ann(), &name("greeter"), None).await.unwrap();
    assert!(world.workloads("line-1").await.is_empty());
    let going = world.fleet.deployment(&name("greeter")).await.unwrap();
    assert!(going.removing && going.targets.devices.is_empty());
    assert_eq!(going.assignments[0].state, "DELETING");
    let twice = world.fleet.remove_deployment(&ann(), &name("greeter"), None).await.unwrap_err();
    assert!(matches!(twice, Error::NotFound { .. }), "{twice}");

    // The name is free at once, for a new deployment with ids of its own.
    let anew = world.put("greeter", on(&["line-1"])).await.unwrap();
    assert!(!anew.removing && anew.revision == 3, "a name goes on counting");
    assert_ne!(anew.id, going.id);
    world.fleet.remove_deployment(&ann(), &name("greeter"), None).await.unwrap();

    let device_shown = world.fleet.device(&device("line-1")).await.unwrap();
    for assignment in device_shown.assignments {
        let mut report = Report {
            assignment: AssignmentId::parse(&assignment.id).unwrap(),
            device: None,
            adopted_version: world.version("line-1"),
            state: Reported::Removed,
            fault: None,
            components: vec![],
            detail: None,
            signed_at: None,
        };
        world.fleet.report(&client("line-1"), report.clone()).await.unwrap();
        // AMB-13: once more, late, is heard as well.
        report.state = Reported::Removing;
        world.fleet.report(&client("line-1"), report).await.unwrap();
    }
    assert!(world.fleet.deployment(&name("greeter")).await.is_err());
    assert!(world.fleet.deployments().await.unwrap().is_empty());
    assert!(world.fleet.device(&device("line-1")).await.unwrap().assignments.is_empty());
    let history = world.fleet.transitions(&name("greeter"), &device("line-1")).await.unwrap();
    assert!(history.iter().any(|step| step.state == "DELETED"), "{history:?}");
    // Who looks for it later is told where it was.
    let departed = world.fleet.departed(&name("greeter"), None, None).await.unwrap();
    let found: Vec<&str> = departed.items.iter().map(|gone| &*gone.device).collect();
    assert_eq!(found, ["line-1"], "two lives, one device");
}

#[tokio::test]
async fn a_waiting_poll_is_woken_by_a_change_and_only_then() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let etag = world.fleet.manifest(&client("line-1"), Dialect::Miaf).unwrap().digest;
    let fleet = world.fleet.clone();
    let waiting = tokio::spawn(async move {
        fleet.manifest_changed(&client("line-1"), etag, Duration::from_secs(600)).await
    });
    world.put("greeter", on(&["line-1"])).await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    // An outdated tag returns at once, the current one only when time is up.
    world.fleet.manifest_changed(&client("line-1"), etag, Duration::from_secs(600)).await;
    let etag = world.fleet.manifest(&client("line-1"), Dialect::Miaf).unwrap().digest;
    world.fleet.manifest_changed(&client("line-1"), etag, Duration::from_millis(5)).await;
}

#[tokio::test]
async fn everything_is_as_it_was_after_a_restart() {
    let world = World::new().await;
    world.device("line-1", &[("site", "nord")]).await;
    world.put("greeter", labelled("site", "nord")).await.unwrap();
    world.report("greeter", "line-1", State::Installed).await;
    world.fleet.flush_contacts().await.unwrap();
    let before = (
        world.fleet.manifest(&client("line-1"), Dialect::Miaf),
        world.fleet.deployment(&name("greeter")).await.unwrap(),
        world.fleet.device(&device("line-1")).await.unwrap(),
        world.fleet.status().await.unwrap(),
    );
    let world = world.restarted().await;
    let after = (
        world.fleet.manifest(&client("line-1"), Dialect::Miaf),
        world.fleet.deployment(&name("greeter")).await.unwrap(),
        world.fleet.device(&device("line-1")).await.unwrap(),
        world.fleet.status().await.unwrap(),
    );
    assert_eq!(before, after);
    assert_eq!(world.workloads("line-1").await.len(), 1);
}

#[tokio::test]
async fn a_change_that_a_crash_left_unsettled_is_settled_at_the_next_start() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", labelled("site", "nord")).await.unwrap();
    // The label is durable, and the server dies before anything follows from it.
    let labels = Some([("site".to_owned(), "nord".to_owned())].into());
    let intent = Intent::Label { device: device("line-1"), labels, by: "operator ann".into() };
    let publication = Publication { at: Moment(START), intents: vec![intent], ..Default::default() };
    world.fleet.store.publish(publication).await.unwrap();
    assert!(world.workloads("line-1").await.is_empty());
    let world = world.restarted().await;
    assert_eq!(world.workloads("line-1").await.len(), 1);
}

#[tokio::test]
async fn a_change_that_is_done_is_not_refused_because_what_follows_cannot_be_now() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", labelled("site", "nord")).await.unwrap();
    // Nothing can be numbered above this, so the device cannot be given anything any more.
    let manifest = Manifest::new(i64::MAX.unsigned_abs(), None, vec![]).unwrap();
    let last = ClientPublication {
        client: client("line-1"),
        expected: world.version("line-1"),
        manifest: Some(NewManifest {
            replaces: vec![],
            body: Dialect::Miaf.manifest(&client("line-1"), &manifest),
            manifest,
            bundle: None,
            documents: vec![],
        }),
        assignments: vec![],
    };
    let publication = Publication { at: Moment(START), clients: vec![last], ..Default::default() };
    world.fleet.store.publish(publication).await.unwrap();
    let want = operator::SetLabels { labels: [("site".to_owned(), Some("nord".to_owned()))].into() };
    let labelled = world.fleet.label(&ann(), &device("line-1"), want).await.unwrap();
    assert_eq!(labelled.labels["site"], "nord");
    assert!(world.workloads("line-1").await.is_empty());
    world.fleet.flush_contacts().await.unwrap_err();
}

#[tokio::test]
async fn a_device_ahead_of_a_restored_server_gets_a_manifest_above_what_it_holds() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let before = world.workloads("line-1").await;
    world.report_with("greeter", "line-1", State::Installed, |report| report.adopted_version = 40).await;
    assert_eq!(world.version("line-1"), 41);
    assert_eq!(world.workloads("line-1").await, before, "the same documents under a higher number");
    let mut more = on(&["line-1"]);
    more.parameters.insert("greeting".into(), json!("hi"));
    world.put("greeter", more).await.unwrap();
    assert_eq!(world.version("line-1"), 42);

    // Also when the server has never heard of what the device reports on.
    let unknown = Report {
        assignment: AssignmentId::parse("00000000-0000-4000-8000-000000000000").unwrap(),
        device: None,
        adopted_version: 50,
        state: Reported::Installed,
        fault: None,
        components: vec![],
        detail: None,
        signed_at: None,
    };
    let error = world.fleet.report(&client("line-1"), unknown.clone()).await.unwrap_err();
    assert!(matches!(error, Error::AssignmentUnknown(_)), "{error}");
    assert_eq!(world.version("line-1"), 51);
    let lie = Report { adopted_version: u64::MAX, ..unknown };
    let error = world.fleet.report(&client("line-1"), lie).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    assert_eq!(world.version("line-1"), 51);
}

#[tokio::test]
async fn mi_g2_007_documents_and_bundles_of_others_are_out_of_reach() {
    let world = World::new().await;
    for name in ["line-1", "line-2"] {
        world.device(name, &[]).await;
    }
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let manifest = g2::manifest::read(&world.fleet.manifest(&client("line-1"), Dialect::Miaf).unwrap().body)
        .unwrap()
        .manifest;
    let entry = manifest.entries()[0];
    let other = client("line-2");
    assert_eq!(world.fleet.document(&other, entry.id, entry.document.digest).await.unwrap(), None);
    assert_eq!(world.fleet.bundle(&other, manifest.bundle().unwrap().digest).await.unwrap(), None);
}

#[tokio::test]
async fn a_device_with_another_manifest_of_the_same_number_gets_one_above_it() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let version = world.version("line-1");
    let before = world.workloads("line-1").await;
    let installed = async |document: &'static [u8]| {
        world
            .report_with("greeter", "line-1", State::Installed, |report| {
                report.detail.as_mut().unwrap().document = Some(Digest::of(document));
            })
            .await;
    };
    installed(b"of a past that was lost").await;
    let above = world.version("line-1");
    assert!(above > version + 1, "the device refuses {version} and takes {above}");
    assert_eq!(world.workloads("line-1").await, before, "the same documents under a higher number");

    // The same for something that only the lost past knew.
    let unknown = Report {
        assignment: AssignmentId::parse("00000000-0000-4000-8000-000000000000").unwrap(),
        device: None,
        adopted_version: above,
        state: Reported::Installed,
        fault: None,
        components: vec![],
        detail: Some(Detail {
            state: State::Installed,
            sequence: 900,
            at: Moment(START),
            document: Some(Digest::of(b"unknown")),
            attempt: 0,
            next_try: None,
            reason: None,
            waiting: None,
            awaited: None,
            life: None,
            holds: None,
            memory: None,
        }),
        signed_at: None,
    };
    world.fleet.report(&client("line-1"), unknown.clone()).await.unwrap_err();
    assert!(world.version("line-1") > above + 1);
    let settled = world.version("line-1");
    world.fleet.report(&client("line-1"), unknown).await.unwrap_err();
    assert_eq!(world.version("line-1"), settled, "an old claim is not a new one");
}

#[tokio::test]
async fn a_removal_of_what_the_device_never_had_ends_once_it_holds_the_manifest_without_it() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    world.fleet.remove_deployment(&ann(), &name("greeter"), None).await.unwrap();
    let shown = async || world.fleet.device(&device("line-1")).await.unwrap().assignments.len();
    world.pass(3600);
    world.fleet.sweep().await.unwrap();
    assert_eq!(shown().await, 1, "the device may have it and be away");
    world.fleet.client_holds(&client("line-1"), world.version("line-1"));
    world.fleet.sweep().await.unwrap();
    assert_eq!(shown().await, 1, "it may be about to say so");
    world.pass(3600);
    world.fleet.sweep().await.unwrap();
    assert_eq!(shown().await, 1, "what it has to say may wait with it");
    world.fleet.touched(&client("line-1"));
    world.fleet.sweep().await.unwrap();
    assert_eq!(shown().await, 0);
    assert!(world.fleet.deployments().await.unwrap().is_empty());

    // What the device says it is removing is waited for.
    world.put("other", on(&["line-1"])).await.unwrap();
    world.report("other", "line-1", State::Installed).await;
    world.fleet.remove_deployment(&ann(), &name("other"), None).await.unwrap();
    world.report("other", "line-1", State::Deleting).await;
    world.fleet.client_holds(&client("line-1"), world.version("line-1"));
    world.pass(7200);
    world.fleet.sweep().await.unwrap();
    assert_eq!(shown().await, 1);
}

#[tokio::test]
async fn a_removal_that_has_to_wait_is_waited_for_and_an_old_failure_is_no_word_about_it() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    for application in ["waits", "failed"] {
        world.put(application, on(&["line-1"])).await.unwrap();
    }
    world.report("failed", "line-1", State::Failed).await;
    world.report("waits", "line-1", State::Installed).await;
    for application in ["waits", "failed"] {
        world.fleet.remove_deployment(&ann(), &name(application), None).await.unwrap();
    }
    let says = |report: &mut Report| {
        report.detail.as_mut().unwrap().waiting = Some("waits for the maintenance window".to_owned());
    };
    world.report_with("waits", "line-1", State::Installed, says).await;
    world.fleet.client_holds(&client("line-1"), world.version("line-1"));
    world.pass(7200);
    world.fleet.touched(&client("line-1"));
    world.fleet.sweep().await.unwrap();
    let shown = world.fleet.device(&device("line-1")).await.unwrap().assignments;
    assert_eq!(shown.iter().map(|shown| shown.deployment.as_str()).collect::<Vec<_>>(), ["waits"]);
}
