//! What fits where, beside what others were promised; and what is forced all the same.

use super::super::intent::{Change, Source};
use super::*;

/// The one who is refused, and everything that is said of it.
fn misfit(refused: Error) -> (String, String) {
    let Error::Misfit(misfits) = refused else { panic!("{refused}") };
    assert_eq!(misfits.len(), 1, "{misfits:?}");
    (misfits[0].device.clone(), misfits[0].reasons.join("; "))
}

fn put(deployment: &str, want: operator::PutDeployment) -> Change {
    Change::PutDeployment { name: name(deployment), want, id: None }
}

fn forced(reason: &str, want: operator::PutDeployment) -> operator::PutDeployment {
    operator::PutDeployment { force: Some(reason.into()), ..want }
}

impl World {
    async fn change(&self, changes: &[Change]) -> Result<(), Error> {
        let done = self.fleet.apply(&ann(), changes, Source::Asked).await;
        done.map(drop).map_err(|mut refusals| refusals.remove(0).1)
    }

    /// A device with this much memory; `hello` takes 1Gi.
    /// Version 1.0.0 has port 8080, and 2.0.0 has 8081.
    pub(super) async fn of_two_ports() -> World {
        let world = World::empty().await;
        world.push_components().await;
        for (version, port) in [("1.0.0", 8080), ("2.0.0", 8081)] {
            let folder = tempfile::tempdir().unwrap();
            let compose = format!("services:\n  web:\n    ports: [\"{port}:80\"]\n");
            std::fs::write(folder.path().join("compose.yaml"), compose).unwrap();
            world.push_web(ComposeArchive::build(folder.path(), "web").unwrap().bytes()).await;
            world.push(version, &description(version)).await;
            world.add(&format!("oci://margrave/packages/hello:{version}")).await.unwrap();
        }
        world
    }

    pub(super) async fn roomy(&self, name: &str, memory: &str, labels: &[(&str, &str)]) {
        self.join(name, labels).await;
        self.says(name, memory, &["compose"]).await;
    }

    pub(super) async fn runs(&self, on: &str) -> Vec<String> {
        let device = self.fleet.device(&device(on)).await.unwrap();
        let wanted = device.assignments.iter().filter(|assignment| assignment.state != "DELETING");
        wanted.map(|assignment| assignment.deployment.clone()).collect()
    }
}

#[tokio::test]
async fn dm_135_what_was_promised_to_others_is_not_there_and_is_told_with_figures() {
    let world = World::new().await;
    world.roomy("line-1", "2Gi", &[]).await;
    world.put("a", on(&["line-1"])).await.unwrap();
    world.put("b", on(&["line-1"])).await.unwrap();
    let (device, reasons) = misfit(world.put("c", on(&["line-1"])).await.unwrap_err());
    assert_eq!(device, "line-1");
    let told = "needs 1Gi of memory, has 2Gi, of which 2Gi is promised to a (1Gi) and b (1Gi)";
    assert!(reasons.contains(told), "{reasons}");
    assert_eq!(world.runs("line-1").await, ["a", "b"], "nothing was done");
    // The same in every look that changes nothing.
    let preview = world.fleet.preview(&name("c"), on(&["line-1"])).await.unwrap();
    assert!(preview.misfits[0].reasons.iter().any(|reason| reason.ends_with(told)), "{preview:?}");
    let (id, version) = ("hello".parse().unwrap(), "1.0.0".parse().unwrap());
    let line = || [super::device("line-1")];
    let fits = world.fleet.fits(&id, &version, None, None, line()).await.unwrap();
    assert!(fits.misfits[0].reasons.iter().any(|reason| reason.ends_with(told)), "{fits:?}");
    let own = world.fleet.fits(&id, &version, None, Some(&name("a")), line()).await.unwrap();
    assert_eq!(own.fits.len(), 1, "what it has itself is not in its way");
    let plan = world.fleet.rehearse(&ann(), &[put("c", on(&["line-1"]))], Fetching::Allowed).await.unwrap();
    assert!(plan.misfits[0].refused && plan.misfits[0].reasons.iter().any(|reason| reason.ends_with(told)));
    // An update is no second deployment.
    let mut update = on(&["line-1"]);
    update.parameters.insert("greeting".into(), json!("hi"));
    world.put("a", update).await.unwrap();
    assert_eq!(world.runs("line-1").await, ["a", "b"]);
}

#[tokio::test]
async fn several_changes_are_judged_in_the_light_of_each_other() {
    let world = World::new().await;
    world.roomy("line-1", "2Gi", &[]).await;
    world.roomy("line-2", "1Gi", &[]).await;
    let both = || [put("a", on(&["line-1"])), put("b", on(&["line-1"])), put("c", on(&["line-1"]))];
    let (device, reasons) = misfit(world.change(&both()).await.unwrap_err());
    assert_eq!(device, "line-1");
    assert!(reasons.contains("promised to a (1Gi) and b (1Gi)"), "{reasons}");
    assert!(world.runs("line-1").await.is_empty(), "all or nothing");
    world.change(&both()[..2]).await.unwrap();
    world.put("d", on(&["line-2"])).await.unwrap();
    // What goes makes room for what comes, also when both change places.
    let gone = Change::RemoveDeployment { name: name("a"), seen: None };
    world.change(&[put("c", on(&["line-1"])), gone]).await.unwrap();
    assert_eq!(world.runs("line-1").await, ["b", "c"]);
    world.change(&[put("d", on(&["line-1"])), put("c", on(&["line-2"]))]).await.unwrap();
    assert_eq!(
        (world.runs("line-1").await, world.runs("line-2").await),
        (vec!["b".into(), "d".into()], vec!["c".into()])
    );
    // Who has something comes before who only wants something, whatever the order.
    let mut update = on(&["line-2"]);
    update.parameters.insert("greeting".into(), json!("hi"));
    let refused = world.change(&[put("new", on(&["line-2"])), put("c", update)]).await.unwrap_err();
    assert!(misfit(refused).1.contains("promised to c (1Gi)"));
}

#[tokio::test]
async fn who_was_left_out_for_want_of_room_comes_in_when_there_is_some() {
    let world = World::new().await;
    world.roomy("line-1", "1Gi", &[("site", "nord")]).await;
    world.roomy("line-2", "2Gi", &[("site", "nord")]).await;
    world.put("first", labelled("site", "nord")).await.unwrap();
    let second = world.put("second", labelled("site", "nord")).await.unwrap();
    assert_eq!((second.counts.total, second.misfits.len()), (1, 1));
    assert!(second.misfits[0].reasons.iter().any(|reason| reason.contains("promised to first (1Gi)")));
    world.fleet.remove_deployment(&ann(), &name("first"), None).await.unwrap();
    let second = world.fleet.deployment(&name("second")).await.unwrap();
    assert_eq!((second.assignments.len(), second.misfits.len()), (2, 0));
    // A device that joins is filled in the order of what is wanted, and not beyond what it has.
    world.put("third", labelled("site", "nord")).await.unwrap();
    world.roomy("line-3", "1Gi", &[("site", "nord")]).await;
    assert_eq!(world.runs("line-3").await, ["second"]);
    // One that reports less keeps what it has, and gets no more.
    world.roomy("line-4", "3Gi", &[("site", "nord")]).await;
    assert_eq!(world.runs("line-4").await, ["second", "third"]);
    world.says("line-4", "1Gi", &["compose"]).await;
    world.put("fourth", labelled("site", "nord")).await.unwrap();
    assert_eq!(world.runs("line-4").await, ["second", "third"]);
}

#[tokio::test]
async fn a_deployment_is_forced_with_a_reason_that_is_kept_everywhere() {
    let world = World::new().await;
    world.roomy("line-1", "1Gi", &[]).await;
    world.join("cluster", &[]).await;
    world.says("cluster", "8Gi", &["helm"]).await;
    world.put("a", on(&["line-1"])).await.unwrap();
    misfit(world.put("b", on(&["line-1"])).await.unwrap_err());
    for wrong in ["", "  ", "two\nlines", &"x".repeat(501)] {
        let refused = world.put("b", forced(wrong, on(&["line-1"]))).await.unwrap_err();
        let Error::Invalid(broken) = refused else { panic!("{refused}") };
        assert_eq!((broken[0].place.as_str(), broken[0].rule), ("/force", "force"), "{wrong:?}");
    }
    let reason = "a goes tonight, Ann";
    let compose = operator::PutDeployment { profile: Some("small".into()), ..on(&["line-1", "cluster"]) };
    let (device, reasons) = misfit(world.put("b", forced(reason, compose)).await.unwrap_err());
    assert_eq!(device, "cluster");
    assert!(reasons.contains("runs helm"), "what cannot run there at all is not forced: {reasons}");

    let want = || forced(reason, on(&["line-1"]));
    let plan = world.fleet.rehearse(&ann(), &[put("b", want())], Fetching::Allowed).await.unwrap();
    assert_eq!((plan.misfits.len(), plan.changes.len(), plan.forced.len()), (0, 1, 1));
    assert!(plan.forced[0].despite[0].contains("promised to a (1Gi)"), "{plan:?}");
    let preview = world.fleet.preview(&name("b"), want()).await.unwrap();
    assert_eq!(preview.fits[0].despite, plan.forced[0].despite);

    let shown = world.put("b", want()).await.unwrap();
    assert_eq!((shown.force.as_deref(), shown.counts.total), (Some(reason), 1));
    assert_eq!(world.runs("line-1").await, ["a", "b"]);
    let file = world.file("deployments/b.yaml").await.unwrap();
    assert!(file.contains(reason), "{file}");
    let commit = world.intent_repository().logged(world.main().await).await.unwrap();
    assert!(commit.message.contains(reason), "{}", commit.message);
    let revisions = world.fleet.revisions(&name("b")).await.unwrap();
    assert_eq!(revisions[0].force.as_deref(), Some(reason));
    // The one that was there first is not in debt because of it.
    let mut update = on(&["line-1"]);
    update.parameters.insert("greeting".into(), json!("hi"));
    world.put("a", update).await.unwrap();
    // What is no longer forced keeps what it has, for it asks for no more.
    let shown = world.put("b", on(&["line-1"])).await.unwrap();
    assert_eq!((shown.force, shown.counts.total), (None, 1));
    // A device that is there later is forced, too.
    world.put("c", forced(reason, labelled("site", "nord"))).await.unwrap();
    world.roomy("line-2", "64Mi", &[("site", "nord")]).await;
    assert_eq!(world.runs("line-2").await, ["c"]);
}

#[tokio::test]
async fn two_deployments_cannot_have_one_port_or_volume_of_a_device_unless_forced() {
    let world = World::empty().await;
    world.push_components().await;
    let folder = tempfile::tempdir().unwrap();
    let compose = "services:\n  web:\n    ports: [\"8080:80\"]\n    volumes: [\"/srv/data:/data\", \"own:/own\"]\nvolumes:\n  own:\n";
    std::fs::write(folder.path().join("compose.yaml"), compose).unwrap();
    world.push_web(ComposeArchive::build(folder.path(), "web").unwrap().bytes()).await;
    world.push("1.0.0", &description("1.0.0")).await;
    world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
    world.device("line-1", &[]).await;
    world.device("line-2", &[]).await;
    world.put("a", on(&["line-1"])).await.unwrap();
    world.put("b", on(&["line-2"])).await.unwrap();
    // What was read from the archive is kept with the package.
    let world = world.restarted().await;
    // Of one that was added before that was known it is read again.
    let (id, version) = ("hello".parse().unwrap(), "1.0.0".parse().unwrap());
    world.fleet.store.put_claims(&id, &version, Default::default()).await.unwrap();
    let world = world.restarted().await;
    world.fleet.read_claims_again().await.unwrap();
    let (device, reasons) = misfit(world.put("b", on(&["line-1", "line-2"])).await.unwrap_err());
    assert_eq!(device, "line-1");
    for told in [
        "wants port 8080/tcp, which a has there",
        "wants to write to the volume /srv/data, to which a writes there",
    ] {
        assert!(reasons.contains(told), "{reasons}");
    }
    assert!(!reasons.contains("own"), "{reasons}");
    // By hand in Git it is the same, with file and both names.
    let both = [put("c", on(&["line-2"])), put("b", on(&["line-1"]))];
    assert_eq!(misfit(world.change(&both).await.unwrap_err()).0, "line-1");
    let update = operator::PutDeployment {
        parameters: [("greeting".to_owned(), json!("hi"))].into(),
        ..on(&["line-1"])
    };
    world.put("a", update).await.unwrap();
    let shown = world.put("b", forced("they take turns", on(&["line-1", "line-2"]))).await.unwrap();
    assert_eq!(shown.counts.total, 2);
    world.fleet.remove_deployment(&ann(), &name("b"), None).await.unwrap();
    world.put("c", on(&["line-2"])).await.unwrap();
}

#[tokio::test]
async fn who_goes_in_steps_makes_room_for_others_only_where_it_went() {
    let world = World::of_two_ports().await;
    for device in ["d0", "d1"] {
        world.roomy(device, "2Gi", &[("plant", "a")]).await;
    }
    let of = |version: &str, want| operator::PutDeployment { version: Some(version.into()), ..want };
    let everywhere = |version: &str| of(version, labelled("plant", "a"));
    let steps = |steps: serde_json::Value, want| operator::PutDeployment {
        strategy: Some(serde_json::from_value(steps).unwrap()),
        ..want
    };
    world.put("a", everywhere("1.0.0")).await.unwrap();
    for device in ["d0", "d1"] {
        world.report("a", device, State::Installed).await;
    }
    let moves = || put("a", steps(json!({ "batches": ["1"] }), everywhere("2.0.0")));
    // Named on purpose where the port is taken until its turn has come, it is a mistake.
    let refused = world.change(&[moves(), put("b", of("1.0.0", on(&["d1"])))]).await.unwrap_err();
    let (device, reasons) = misfit(refused);
    assert!(device == "d1" && reasons.contains("wants port 8080/tcp, which a has there"), "{reasons}");

    let both = [moves(), put("b", everywhere("1.0.0"))];
    let plan = world.fleet.rehearse(&ann(), &both, Fetching::Allowed).await.unwrap();
    assert!(plan.misfits.iter().any(|misfit| misfit.device == "d1" && misfit.deployment == "b"), "{plan:?}");
    world.change(&both).await.unwrap();
    assert_eq!(world.runs("d0").await, ["a", "b"], "a is about to leave the port there");
    assert_eq!(world.runs("d1").await, ["a"], "a keeps the port until its turn has come");
    world.report("a", "d0", State::Installed).await;
    world.fleet.advance_rollouts().await.unwrap();
    world.fleet.flush_contacts().await.unwrap();
    assert_eq!(world.runs("d1").await, ["a", "b"], "and then b comes in by itself");
    assert_eq!(world.fleet.deployment(&name("b")).await.unwrap().misfits, []);

    // All at once, what one leaves another may have with the same change.
    world.report("a", "d1", State::Installed).await;
    world.fleet.advance_rollouts().await.unwrap();
    let at_once = |want| steps(json!({}), want);
    let gone = Change::RemoveDeployment { name: name("b"), seen: None };
    world
        .change(&[gone, put("a", at_once(everywhere("1.0.0"))), put("c", everywhere("2.0.0"))])
        .await
        .unwrap();
    assert_eq!(
        (world.runs("d0").await, world.runs("d1").await),
        (vec!["a".into(), "c".into()], vec!["a".into(), "c".into()])
    );
}

fn labelling(device: &str, labels: &[(&str, &str)]) -> Change {
    let labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    Change::SetLabels { device: super::device(device), labels: Some(labels) }
}

/// `device deployment from → to` of each.
fn foretold(plan: &margrave_wire::intent::Plan) -> Vec<String> {
    let word = |state: &Option<margrave_wire::intent::PlannedState>| {
        state.as_ref().map_or("nothing".to_owned(), |state| state.version.clone())
    };
    let line = |change: &margrave_wire::intent::Planned| {
        format!("{} {} {} → {}", change.device, change.deployment, word(&change.from), word(&change.to))
    };
    plan.changes.iter().map(line).collect()
}

#[tokio::test]
async fn a_plan_foretells_what_comes_in_where_labels_and_removals_leave_room() {
    let world = World::new().await;
    for device in ["line-1", "line-2"] {
        world.roomy(device, "1Gi", &[("line", "1"), ("plant", "a")]).await;
    }
    world.put("a", labelled("line", "1")).await.unwrap();
    // There is no room for it anywhere, so it waits.
    world.put("b", labelled("plant", "a")).await.unwrap();
    assert_eq!(
        (world.runs("line-1").await, world.runs("line-2").await),
        (vec!["a".into()], vec!["a".into()])
    );

    // Other labels take a away, and b comes in; what is named with the same change has a place, and is not refused.
    let moves = [labelling("line-1", &[("line", "2"), ("plant", "a")])];
    let plan = world.fleet.rehearse(&ann(), &moves, Fetching::Allowed).await.unwrap();
    assert_eq!(foretold(&plan), ["line-1 a 1.0.0 → nothing", "line-1 b nothing → 1.0.0"]);
    assert_eq!(plan.misfits, []);
    world.change(&moves).await.unwrap();
    assert_eq!(
        (world.runs("line-1").await, world.runs("line-2").await),
        (vec!["b".into()], vec!["a".into()])
    );

    let moves = [labelling("line-2", &[]), put("c", on(&["line-2"]))];
    let plan = world.fleet.rehearse(&ann(), &moves, Fetching::Allowed).await.unwrap();
    assert_eq!(foretold(&plan), ["line-2 a 1.0.0 → nothing", "line-2 c nothing → 1.0.0"]);
    assert_eq!(plan.misfits, []);
    world.change(&moves).await.unwrap();
    assert_eq!(world.runs("line-2").await, ["c"]);

    // A removal makes room for what waits, also where nobody speaks of it.
    world.put("d", labelled("plant", "a")).await.unwrap();
    assert_eq!(world.runs("line-1").await, ["b"]);
    let moves = [Change::RemoveDeployment { name: name("b"), seen: None }];
    let plan = world.fleet.rehearse(&ann(), &moves, Fetching::Allowed).await.unwrap();
    assert_eq!(foretold(&plan), ["line-1 b 1.0.0 → nothing", "line-1 d nothing → 1.0.0"]);
    world.change(&moves).await.unwrap();
    assert_eq!(world.runs("line-1").await, ["d"]);
    // What does not come in in the end is told.
    let moves = [labelling("line-2", &[("plant", "a")])];
    let plan = world.fleet.rehearse(&ann(), &moves, Fetching::Allowed).await.unwrap();
    assert_eq!(foretold(&plan), Vec::<String>::new());
    assert_eq!((plan.misfits.len(), plan.misfits[0].deployment.as_str()), (1, "d"), "{plan:?}");
}

#[tokio::test]
async fn an_update_that_does_not_fit_leaves_what_runs_and_comes_once_it_fits() {
    let world = World::new().await;
    world.push("2.0.0", &description("2.0.0").replace("memory: 1Gi", "memory: 2Gi")).await;
    world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    world.roomy("small", "1Gi", &[("plant", "a")]).await;
    world.roomy("large", "8Gi", &[("plant", "a")]).await;
    let of =
        |version: &str| operator::PutDeployment { version: Some(version.into()), ..labelled("plant", "a") };
    world.put("web", of("1.0.0")).await.unwrap();
    for on in ["small", "large"] {
        world.report("web", on, State::Installed).await;
    }
    let before = world.version("small");
    let plan = world.fleet.rehearse(&ann(), &[put("web", of("2.0.0"))], Fetching::Allowed).await.unwrap();
    assert!(plan.changes.iter().all(|change| change.device == "large"), "{plan:?}");
    assert!(plan.misfits[0].reasons.iter().any(|reason| reason.contains("keeps")), "{plan:?}");

    let shown = world.put("web", of("2.0.0")).await.unwrap();
    assert_eq!(shown.misfits[0].device, "small");
    assert_eq!(world.version("small"), before, "nothing is published to it");
    assert_eq!(world.assignment("web", "small").await.version, "1.0.0");
    assert_eq!(world.assignment("web", "large").await.version, "2.0.0");
    let why = world.fleet.why("small/web").await.unwrap();
    assert!(!why.converged);
    assert!(why.chain[0].text.contains("needs 2Gi of memory, has 1Gi"), "{why:?}");
    assert!(why.chain[0].text.contains("was left out of the last change of web"), "{why:?}");
    let why = world.fleet.why_of(operator::WhyKind::Deployment, "web").await.unwrap();
    assert_eq!(why.chain[0].text, "web is not as wanted on 2 of 2 devices");
    // What it has is still promised to it.
    let (device, _) = misfit(world.put("other", on(&["small"])).await.unwrap_err());
    assert_eq!(device, "small");
    // Something else about it changes that makes no room: it stays left out, and told so.
    world.says("small", "1500Mi", &["compose"]).await;
    assert_eq!(world.assignment("web", "small").await.version, "1.0.0");
    assert!(!world.fleet.why("small/web").await.unwrap().converged);

    world.says("small", "2Gi", &["compose"]).await;
    assert_eq!(world.assignment("web", "small").await.version, "2.0.0");
    assert!(world.fleet.deployment(&name("web")).await.unwrap().misfits.is_empty());
}

#[tokio::test]
async fn what_comes_to_fit_while_a_rollout_is_under_way_waits_for_its_turn() {
    let world = World::new().await;
    world.push("2.0.0", &description("2.0.0").replace("memory: 1Gi", "memory: 2Gi")).await;
    world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    world.roomy("small", "1Gi", &[("plant", "a")]).await;
    world.roomy("large", "8Gi", &[("plant", "a")]).await;
    let of = |version: &str| operator::PutDeployment {
        version: Some(version.into()),
        strategy: Some(serde_json::from_value(json!({ "batches": ["1"] })).unwrap()),
        ..labelled("plant", "a")
    };
    world.put("web", of("1.0.0")).await.unwrap();
    for on in ["large", "small"] {
        world.fleet.advance_rollouts().await.unwrap();
        world.report("web", on, State::Installed).await;
    }
    world.fleet.advance_rollouts().await.unwrap();
    world.put("web", of("2.0.0")).await.unwrap();
    assert_eq!(world.assignment("web", "large").await.version, "2.0.0");
    world.says("small", "2Gi", &["compose"]).await;
    assert_eq!(world.assignment("web", "small").await.version, "1.0.0", "not its turn yet");
    world.report("web", "large", State::Installed).await;
    world.fleet.advance_rollouts().await.unwrap();
    assert_eq!(world.assignment("web", "small").await.version, "2.0.0");
}

#[tokio::test]
async fn a_plan_tells_what_does_not_fit_also_where_the_same_change_labels_the_device() {
    let world = World::new().await;
    world.push("2.0.0", &description("2.0.0").replace("memory: 1Gi", "memory: 2Gi")).await;
    world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    world.roomy("small", "1Gi", &[("plant", "a")]).await;
    let of =
        |version: &str| operator::PutDeployment { version: Some(version.into()), ..labelled("plant", "a") };
    world.put("web", of("1.0.0")).await.unwrap();
    let changes = || [labelling("small", &[("plant", "a"), ("line", "1")]), put("web", of("2.0.0"))];
    let plan = world.fleet.rehearse(&ann(), &changes(), Fetching::Allowed).await.unwrap();
    assert_eq!((plan.misfits.len(), foretold(&plan).len()), (1, 0), "{plan:?}");
    assert_eq!((plan.misfits[0].device.as_str(), plan.misfits[0].deployment.as_str()), ("small", "web"));
    world.change(&changes()).await.unwrap();
    assert_eq!(world.fleet.deployment(&name("web")).await.unwrap().misfits.len(), 1, "and so it is");
    // What did not fit before and is changed so that it does is no misfit any more.
    let changes = [labelling("small", &[("plant", "a")]), put("web", of("1.0.0"))];
    let plan = world.fleet.rehearse(&ann(), &changes, Fetching::Allowed).await.unwrap();
    assert_eq!(plan.misfits, []);
}

#[tokio::test]
async fn who_was_left_out_is_said_to_keep_the_revision_that_it_has() {
    let world = World::new().await;
    world.push("2.0.0", &description("2.0.0").replace("memory: 1Gi", "memory: 2Gi")).await;
    world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    world.roomy("small", "1Gi", &[("plant", "a")]).await;
    world.roomy("large", "8Gi", &[("plant", "a")]).await;
    let of = |version: &str, greeting: &str, steps: serde_json::Value| operator::PutDeployment {
        version: Some(version.into()),
        strategy: Some(serde_json::from_value(steps).unwrap()),
        parameters: [("greeting".to_owned(), json!(greeting))].into(),
        ..labelled("plant", "a")
    };
    let at_once = || json!({});
    let in_steps = || json!({ "batches": ["1"] });
    world.put("web", of("1.0.0", "hi", at_once())).await.unwrap();
    for on in ["large", "small"] {
        world.report("web", on, State::Installed).await;
    }
    world.put("web", of("2.0.0", "hi", at_once())).await.unwrap();
    world.report("web", "large", State::Installed).await;
    // Left out of revision 2, it has revision 1 when revision 3 begins.
    world.put("web", of("1.0.0", "yo", in_steps())).await.unwrap();
    let told = async || world.fleet.why("small/web").await.unwrap().chain[0].text.clone();
    assert_eq!(told().await, "web on small waits for its turn in batch 2, keeps revision 1");
    // Left out of revision 4 at first, it comes to its rollout later.
    world.put("web", of("2.0.0", "hej", in_steps())).await.unwrap();
    assert_eq!(world.assignment("web", "large").await.version, "2.0.0");
    world.says("small", "2Gi", &["compose"]).await;
    assert_eq!(told().await, "web on small waits for its turn in batch 2, keeps revision 1");
}

#[tokio::test]
async fn a_port_that_was_to_be_left_and_is_kept_goes_to_nobody_else() {
    let world = World::empty().await;
    world.push_components().await;
    for (version, port, memory) in [("1.0.0", 8080, "1Gi"), ("2.0.0", 8081, "1Gi"), ("3.0.0", 8082, "32Gi")] {
        let folder = tempfile::tempdir().unwrap();
        let compose = format!("services:\n  web:\n    ports: [\"{port}:80\"]\n");
        std::fs::write(folder.path().join("compose.yaml"), compose).unwrap();
        world.push_web(ComposeArchive::build(folder.path(), "web").unwrap().bytes()).await;
        world.push(version, &description(version).replace("1Gi", memory)).await;
        world.add(&format!("oci://margrave/packages/hello:{version}")).await.unwrap();
    }
    world.roomy("d0", "4Gi", &[("plant", "a")]).await;
    world.roomy("d1", "64Gi", &[("plant", "a")]).await;
    let of = |name: &str, version: &str| {
        put(name, operator::PutDeployment { version: Some(version.into()), ..labelled("plant", "a") })
    };
    world.change(&[of("aaa", "2.0.0"), of("zzz", "1.0.0")]).await.unwrap();
    // The second is to leave the port that the first is to have; on the small device it cannot.
    world.change(&[of("aaa", "1.0.0"), of("zzz", "3.0.0")]).await.unwrap();
    let versions = async |on: &str| {
        [world.assignment("aaa", on).await.version, world.assignment("zzz", on).await.version]
    };
    assert_eq!(versions("d1").await, ["1.0.0", "3.0.0"]);
    assert_eq!(versions("d0").await, ["2.0.0", "1.0.0"], "both keep what they have");
    let misfits = world.fleet.deployment(&name("aaa")).await.unwrap().misfits;
    assert!(misfits[0].reasons[0].contains("wants port 8080/tcp, which zzz has there"), "{misfits:?}");
}
