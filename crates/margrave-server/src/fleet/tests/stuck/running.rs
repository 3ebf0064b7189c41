//! Devices that are reached, and do not get it to run.

use super::*;
use std::time::Duration;

use margrave_core::report::{Awaited, FailureCode, Fault};

pub(super) async fn provoke(catalogue: &mut Catalogue) {
    beginnings(catalogue).await;
    waiting(catalogue).await;
    failures(catalogue).await;
    blind(catalogue).await;
    going_back(catalogue).await;
    endings(catalogue).await;
    by_force(catalogue).await;
}

async fn beginnings(catalogue: &mut Catalogue) {
    let world = World::new().await;
    let mut line = world.runs_web().await;
    world.put("web", greeting("yo")).await.unwrap();
    catalogue.device(&world, "it has not asked since", "line-1/web", Code::ManifestNotFetched).await;
    line.faults.mute = true;
    line.live(60).await;
    catalogue.device(&world, "its reports are late", "line-1/web", Code::NotReported).await;
    line.faults.mute = false;
    line.live(600).await;
    assert!(world.fleet.why("line-1/web").await.unwrap().converged, "they come in the end");

    line.faults.tampered = true;
    world.put("web", greeting("hej")).await.unwrap();
    line.live(1200).await;
    catalogue
        .device(&world, "documents that are not what was promised", "line-1/web", Code::ManifestNotAdopted)
        .await;
    let stuck = world.fleet.devices_stuck(10).await.unwrap();
    let stuck: Vec<_> = stuck.iter().map(|(code, device)| (*code, device.id.as_str())).collect();
    assert_eq!(stuck, [(Code::ManifestNotAdopted, "line-1")]);
    line.faults.tampered = false;
    line.live(600).await;
    assert!(world.fleet.why("line-1/web").await.unwrap().converged);

    line.faults.hangs = true;
    world.put("web", greeting("hola")).await.unwrap();
    line.live(60).await;
    catalogue.device(&world, "an update that never ends", "line-1/web", Code::Updating).await;
    assert!(world.fleet.devices_stuck(10).await.unwrap().is_empty(), "it goes on by itself");
    line.one_at_a_time();
    world.put("other", greeting("hi")).await.unwrap();
    line.live(120).await;
    catalogue.device(&world, "behind another deployment", "line-1/other", Code::BehindOthers).await;

    // What is there already waits for its turn, too: for its update, and for another try.
    let world = World::new().await;
    let mut line = world.runs_web().await;
    line.one_at_a_time();
    line.faults.hangs = true;
    world.put("other", greeting("hi")).await.unwrap();
    line.live(60).await;
    world.put("web", greeting("yo")).await.unwrap();
    line.live(60).await;
    catalogue.device(&world, "an update behind another deployment", "line-1/web", Code::BehindOthers).await;

    let world = World::new().await;
    world.device("line-1", LINE).await;
    for name in ["web", "other"] {
        world.put(name, greeting("hi")).await.unwrap();
    }
    world.report("other", "line-1", State::Installing).await;
    let failed = |report: &mut Report| {
        let code = FailureCode::PullFailed.to_string();
        report.fault = Some(Fault { code, source: "web".into(), message: "the cable is out".into() });
        let detail = report.detail.as_mut().unwrap();
        detail.next_try = Some(detail.at.after(Duration::from_secs(30)));
    };
    world.report_with("web", "line-1", State::Failed, failed).await;
    let told = async || codes(&world.fleet.why("line-1/web").await.unwrap()).join(" ");
    assert_eq!(told().await, "retrying pull-failed");
    world.pass(120);
    assert_eq!(told().await, "retrying behind-others pull-failed");

    let world = World::new().await;
    let mut line = world.machine("line-1", LINE).await;
    line.faults.hangs = true;
    world.put("web", greeting("hi")).await.unwrap();
    line.live(60).await;
    catalogue.device(&world, "an install that never ends", "line-1/web", Code::Installing).await;

    // A server that was restored from an older backup: the device holds a version above ours, and gets one above that.
    let world = World::new().await;
    world.device("line-1", LINE).await;
    world.put("web", greeting("hi")).await.unwrap();
    let ahead = |report: &mut Report| {
        report.adopted_version += 7;
        report.detail.as_mut().unwrap().document = Some(Digest::of(b"of a past that the server lost"));
    };
    world.report_with("web", "line-1", State::Installed, ahead).await;
    assert!(world.fleet.live.version(&client("line-1")) > 9);
    catalogue
        .device(
            &world,
            "the server was restored, the device is ahead",
            "line-1/web",
            Code::ManifestNotFetched,
        )
        .await;
}

async fn waiting(catalogue: &mut Catalogue) {
    let world = World::new().await;
    let mut line = world.runs_web().await;
    line.hold("mes", 3600);
    world.put("web", greeting("yo")).await.unwrap();
    line.live(120).await;
    let why = catalogue.device(&world, "held back by an application", "line-1/web", Code::Held).await;
    assert_eq!(codes(&why), ["waiting", "held"]);
    assert!(why.chain[1].text.contains("by mes until"), "{why:?}");
    catalogue.deployment(&world, "its only device is held back", "web", Code::Held).await;
    world.choose_for("device:line-1", json!({ "windows": ["sun 03:00-04:00"] })).await;
    line.live(4000).await;
    catalogue
        .device(&world, "the hold is over, the window is not open", "line-1/web", Code::WindowClosed)
        .await;
    world.fleet.remove_schedule(&ann(), "device:line-1").await.unwrap();
    line.live(600).await;
    assert!(world.fleet.why("line-1/web").await.unwrap().converged, "it begins by itself");

    let world = World::new().await;
    let mut line = world.runs_web().await;
    world.choose_for("fleet", json!({ "windows": ["sun 03:00-04:00"] })).await;
    line.live(60).await;
    world.put("web", greeting("yo")).await.unwrap();
    line.live(60).await;
    catalogue.device(&world, "outside the maintenance window", "line-1", Code::WindowClosed).await;
    let apart = operator::PutDeployment {
        windows: Some(vec!["sat 03:00-04:00".into(), "sun 04:00-05:00".into()]),
        ..greeting("hey")
    };
    world.put("web", apart).await.unwrap();
    line.live(60).await;
    for (state, subject) in
        [("its windows and the device's never meet", "line-1/web"), ("they never meet on this one", "line-1")]
    {
        let why = catalogue.device(&world, state, subject, Code::WindowsApart).await;
        assert_eq!(codes(&why), ["waiting", "window-closed", "windows-apart"]);
    }
    let why = catalogue.deployment(&world, "windows that never meet", "web", Code::WindowsApart).await;
    assert_eq!(why.groups[0].code, "windows-apart");
    assert!(
        why.chain.last().unwrap().text.contains("sat 03:00-04:00 UTC and sun 04:00-05:00 UTC"),
        "{why:?}"
    );
    world.fleet.remove_deployment(&ann(), &name("web"), None).await.unwrap();
    line.live(60).await;
    let why =
        catalogue.device(&world, "a removal waits for the window", "line-1/web", Code::WindowClosed).await;
    assert!(why.chain[0].text.contains("is to go"), "{why:?}");

    // Its clock is six hours ahead, so that its window is over when ours opens.
    let world = World::new().await;
    let mut line = world.machine_with("line-1", LINE, 6 * 3600).await;
    world.choose_for("fleet", json!({ "windows": ["daily 12:00-16:00"] })).await;
    line.live(60).await;
    world.put("web", greeting("hi")).await.unwrap();
    line.live(120).await;
    let why = catalogue.device(&world, "its clock is ahead", "line-1/web", Code::ClockWrong).await;
    assert_eq!(codes(&why), ["waiting", "window-closed", "clock-wrong"]);
    let world = World::new().await;
    let mut line = world.machine_with("line-1", LINE, -1_700_000_000).await;
    world.choose_for("fleet", json!({ "windows": ["daily 12:00-16:00"] })).await;
    line.live(60).await;
    world.put("web", greeting("hi")).await.unwrap();
    line.live(120).await;
    let why = catalogue.device(&world, "its clock was never set", "line-1/web", Code::ClockWrong).await;
    assert_eq!(codes(&why), ["waiting", "window-unknown", "clock-wrong"]);

    // What an agent says that knows of no window at all, and one that may not use the network.
    let world = World::new().await;
    world.device("line-1", LINE).await;
    world.put("web", greeting("hi")).await.unwrap();
    for (state, awaited, code) in [
        ("an agent that cannot tell its window", Some(Awaited::Clock), Code::WindowUnknown),
        ("everything but the network is ready", Some(Awaited::Network), Code::DownloadWaits),
        ("an older agent that only says it in words", None, Code::Waiting),
    ] {
        let said = |report: &mut Report| {
            let detail = report.detail.as_mut().unwrap();
            (detail.waiting, detail.awaited) = (Some("waits".into()), awaited);
        };
        world.report_with("web", "line-1", State::Pending, said).await;
        catalogue.device(&world, state, "line-1/web", code).await;
    }
}

/// Everything that an engine, a registry or a package can do to an install.
async fn failures(catalogue: &mut Catalogue) {
    let states = [
        ("the registry is down", FailureCode::PullFailed, "retrying"),
        ("the registry has no such image", FailureCode::PullNotFound, "retrying"),
        ("the registry refuses the device", FailureCode::PullDenied, "retrying"),
        ("an archive with another digest", FailureCode::ArchiveInvalid, "given-up"),
        ("the disk is full", FailureCode::DiskFull, "retrying"),
        ("the engine is down", FailureCode::RuntimeUnreachable, "retrying"),
        ("the engine was uninstalled", FailureCode::RuntimeMissing, "retrying"),
        ("the port is taken", FailureCode::CreateFailed, "retrying"),
        ("another architecture", FailureCode::NotEligible, "given-up"),
        ("a crash loop", FailureCode::StartFailed, "retrying"),
        ("it takes too long", FailureCode::Timeout, "retrying"),
    ];
    for (state, code, seen) in states {
        let world = World::new().await;
        let mut line = world.machine("line-1", LINE).await;
        if code.is_pull() || code == FailureCode::ArchiveInvalid {
            line.faults.prefetch = Some(code);
        } else {
            line.faults.apply = Some(code);
        }
        world.put("web", greeting("hi")).await.unwrap();
        line.live(300).await;
        let why = catalogue.device(&world, state, "line-1/web", Code::Failure(code)).await;
        assert_eq!(codes(&why), [seen, code.as_str()], "{state}");
        line.faults.prefetch = None;
        line.faults.apply = None;
        line.live(3600).await;
        let well = world.fleet.why("line-1/web").await.unwrap();
        assert_eq!(well.converged, seen == "retrying", "{state}: {well:?}");
    }
    let world = World::new().await;
    let mut line = world.runs_web().await;
    line.faults.sick = true;
    line.live(120).await;
    catalogue.device(&world, "its health check fails", "line-1", Code::Failure(FailureCode::Unhealthy)).await;
    catalogue
        .deployment(&world, "its only device is not well", "web", Code::Failure(FailureCode::Unhealthy))
        .await;

    let world = World::new().await;
    let mut line = world.machine("line-1", LINE).await;
    line.faults.puzzled = true;
    world.put("web", greeting("hi")).await.unwrap();
    line.live(120).await;
    let code = Code::Failure(FailureCode::DocumentInvalid);
    let why = catalogue.device(&world, "a document it does not understand", "line-1/web", code).await;
    assert_eq!(codes(&why)[0], "given-up");

    let world = World::new().await;
    world.device("other-maker", LINE).await;
    world.put("web", greeting("hi")).await.unwrap();
    let foreign = |report: &mut Report| {
        report.detail = None;
        report.fault.as_mut().unwrap().code = "E4711".into();
    };
    world.report_with("web", "other-maker", State::Failed, foreign).await;
    let why = catalogue.device(&world, "a code of another maker", "other-maker/web", Code::Failed).await;
    assert!(why.chain[1].text.contains("E4711"), "{why:?}");
}

/// The engine goes away for good, and what was installed stays so by all that the device can tell.
async fn blind(catalogue: &mut Catalogue) {
    let world = World::new().await;
    let mut line = world.runs_web().await;
    line.faults.engine_away = true;
    line.live(10).await;
    assert!(world.fleet.why("line-1/web").await.unwrap().converged, "an engine may be restarted");
    line.live(120).await;
    let why = catalogue.device(&world, "its engine is gone", "line-1/web", Code::CannotLook).await;
    assert!(!why.converged);
    let text = &why.chain[0].text;
    assert!(
        text.contains("line-1 cannot look at its containers since 20")
            && text.ends_with("it is runtime-unreachable")
    );
    let why = catalogue.device(&world, "a device whose engine is gone", "line-1", Code::CannotLook).await;
    assert!(!why.converged && codes(&why) == ["cannot-look"], "{why:#?}");
    let why = catalogue.deployment(&world, "on a device whose engine is gone", "web", Code::CannotLook).await;
    assert!(!why.converged && codes(&why) == ["devices-behind", "cannot-look"], "{why:#?}");
    assert_eq!((why.groups.len(), why.groups[0].count), (1, 1), "{why:#?}");
    let shown = world.fleet.device(&device("line-1")).await.unwrap();
    assert_eq!((shown.condition.as_str(), shown.assignments[0].state.as_str()), ("pending", "INSTALLED"));
    assert_eq!(shown.cannot_look.unwrap().message, "it is runtime-unreachable");
    assert!(shown.reason.unwrap().contains("cannot look"));
    let status = world.fleet.status().await.unwrap();
    assert_eq!((status.devices.pending, status.devices.converged), (1, 0));
    // What is new is not tried in vain only: the last cause is still the one to act on.
    world.put("web", greeting("yo")).await.unwrap();
    line.faults.prefetch = Some(FailureCode::RuntimeUnreachable);
    line.live(120).await;
    let why = world.fleet.why("line-1/web").await.unwrap();
    assert_eq!(codes(&why), ["retrying", "runtime-unreachable", "cannot-look"]);
    line.faults.cut_off = true;
    line.live(3600).await;
    let why = world.fleet.why("line-1").await.unwrap();
    assert_eq!(
        codes(&why).last(),
        Some(&"silent"),
        "nobody can start an engine on a device that is not there"
    );
    line.faults = Default::default();
    line.live(1200).await;
    for subject in ["line-1", "line-1/web"] {
        let why = world.fleet.why(subject).await.unwrap();
        assert!(why.converged, "{why:#?}");
    }
}

async fn going_back(catalogue: &mut Catalogue) {
    let world = World::new().await;
    let mut line = world.runs_web().await;
    line.live(120).await;
    let mut want = greeting("yo");
    want.rollback = Some(operator::Rollback {
        when: Some("on-failed-update".into()),
        attempts: Some(1),
        health_grace_seconds: None,
    });
    (line.faults.apply, line.faults.spares_old) = (Some(FailureCode::StartFailed), true);
    world.put("web", want.clone()).await.unwrap();
    line.live(120).await;
    let start = Code::Failure(FailureCode::StartFailed);
    let why = catalogue.device(&world, "went back to the last good version", "line-1/web", start).await;
    assert_eq!(codes(&why), ["rolled-back", "start-failed"]);
    // Something else comes to the device, and the engine is well again; what was bad stays so.
    line.faults.apply = None;
    world.put("other", greeting("hi")).await.unwrap();
    line.live(600).await;
    let why = catalogue.device(&world, "the bad version is remembered", "line-1/web", start).await;
    assert_eq!(codes(&why), ["rolled-back", "start-failed"]);

    want.parameters.insert("greeting".into(), json!("hola"));
    (line.faults.apply, line.faults.spares_old) = (Some(FailureCode::StartFailed), false);
    world.put("web", want).await.unwrap();
    line.live(1200).await;
    let code = Code::Failure(FailureCode::RollbackFailed);
    let why = catalogue.device(&world, "going back failed as well", "line-1/web", code).await;
    assert_eq!(codes(&why), ["given-up", "rollback-failed"]);

    let world = World::new().await;
    world.device("line-1", LINE).await;
    world.put("web", greeting("hi")).await.unwrap();
    world.report("web", "line-1", State::Installed).await;
    world.put("web", greeting("yo")).await.unwrap();
    world.report("web", "line-1", State::RollingBack).await;
    catalogue.device(&world, "on its way back", "line-1/web", Code::RollingBack).await;
}

async fn endings(catalogue: &mut Catalogue) {
    let world = World::new().await;
    let mut line = world.runs_web().await;
    line.faults.remove = Some(FailureCode::RemoveFailed);
    world.fleet.remove_deployment(&ann(), &name("web"), None).await.unwrap();
    line.live(300).await;
    let why = world.fleet.why("line-1/web").await.unwrap();
    assert!(why.chain.last().unwrap().text.contains("it is remove-failed"), "{why:?}");
    catalogue
        .device(&world, "volumes are in use", "line-1/web", Code::Failure(FailureCode::RemoveFailed))
        .await;
    let why = catalogue
        .deployment(&world, "a removal that fails", "web", Code::Failure(FailureCode::RemoveFailed))
        .await;
    assert_eq!(codes(&why)[0], "being-removed");

    let world = World::new().await;
    let mut line = world.runs_web().await;
    line.faults.hangs = true;
    world.fleet.remove_deployment(&ann(), &name("web"), None).await.unwrap();
    line.live(60).await;
    catalogue.device(&world, "a removal that never ends", "line-1/web", Code::Deleting).await;
}

async fn by_force(catalogue: &mut Catalogue) {
    let world = World::new().await;
    let hungry = description("2.0.0").replace("memory: 1Gi", "memory: 512Gi");
    world.push("2.0.0", &hungry).await;
    world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    let mut line = world.machine("line-1", LINE).await;
    let mut want = greeting("hi");
    want.version = Some("2.0.0".into());
    want.force = Some("it will do for a day, Ann".into());
    world.put("web", want).await.unwrap();
    line.faults.apply = Some(FailureCode::StartFailed);
    line.live(600).await;
    let state = "forced onto a device that does not fit";
    let why = catalogue.device(&world, state, "line-1/web", Code::ForcedMisfit).await;
    assert!(codes(&why).contains(&"start-failed"), "{why:#?}");
    let last = &why.chain.last().unwrap().text;
    assert!(last.contains("it will do for a day, Ann") && last.contains("512Gi"), "{last}");
    for (kind, subject) in [(WhyKind::Device, "line-1"), (WhyKind::Deployment, "web")] {
        let why = world.fleet.why_of(kind, subject).await.unwrap();
        assert_eq!(codes(&why).last(), Some(&"forced-misfit"), "{why:#?}");
    }
    // What fails for another reason is told so.
    line.faults.apply = None;
    line.faults.prefetch = Some(FailureCode::PullNotFound);
    let mut want = greeting("yo");
    want.version = Some("2.0.0".into());
    want.force = Some("it will do for a day, Ann".into());
    world.put("web", want).await.unwrap();
    line.live(600).await;
    let why = world.fleet.why("line-1/web").await.unwrap();
    assert_eq!(codes(&why).last(), Some(&"pull-not-found"), "{why:#?}");
}
