//! Devices that cannot be reached, are not let in, or keep to their hours.

use margrave_core::report::FailureCode;
use margrave_identity::key::PrivateKey;
use margrave_identity::message::ClientCertificate;

use super::*;

pub(super) async fn provoke(catalogue: &mut Catalogue) {
    strangers(catalogue).await;
    silence(catalogue).await;
    schedules(catalogue).await;
    targets(catalogue).await;
    secrets(catalogue).await;
}

async fn token_for(world: &World, name: &str, valid_seconds: Option<u64>) -> String {
    let want = operator::CreateJoinToken {
        device: Some(name.into()),
        labels: Default::default(),
        valid_seconds,
        git: false,
    };
    world.fleet.create_join_token(&ann(), want).await.unwrap().token
}

async fn strangers(catalogue: &mut Catalogue) {
    let world = World::new().await;
    token_for(&world, "awaited", None).await;
    catalogue.device(&world, "a token nobody used", "awaited", Code::NeverJoined).await;
    token_for(&world, "late", Some(60)).await;
    world.pass(120);
    catalogue.device(&world, "a token that expired unused", "late", Code::TokenExpired).await;

    for (name, state, code) in [
        ("press", "a signed device that waits to be let in", Code::NotAccepted),
        ("saw", "a signed device that was turned away", Code::DeviceRejected),
    ] {
        let key = PrivateKey::generate().unwrap();
        let certificate = ClientCertificate::self_signed(&key, name, Moment(START)).unwrap();
        let fingerprint = certificate.fingerprint().hex();
        let asked = world.fleet.onboard(&SignedPolicy::default(), certificate, true, None).await.unwrap();
        assert_eq!(asked, Onboarding::Pending);
        let waiting = world.fleet.signed_clients(None).unwrap();
        let id = waiting.into_iter().find(|asks| asks.fingerprint == fingerprint).unwrap().client;
        if code == Code::DeviceRejected {
            world.fleet.reject(&ann(), &device(&id)).await.unwrap();
        }
        catalogue.device(&world, state, &id, code).await;
    }

    let token = token_for(&world, "dark", None).await;
    world.fleet.redeem_join_token(&token).await.unwrap();
    world.pass(300);
    catalogue.device(&world, "joined and never switched on", "dark", Code::NeverSeen).await;
    world.join("mum", &[]).await;
    catalogue.device(&world, "capabilities never reported", "mum", Code::CapabilitiesMissing).await;
}

async fn silence(catalogue: &mut Catalogue) {
    let world = World::new().await;
    let mut line = world.runs_web().await;
    line.faults.cut_off = true;
    line.live(600).await;
    catalogue.device(&world, "the cable is out", "line-1", Code::Silent).await;
    world.put("web", greeting("yo")).await.unwrap();
    let why = catalogue.deployment(&world, "the only device is away", "web", Code::Silent).await;
    assert_eq!(codes(&why), ["devices-behind", "silent"]);
    line.faults.cut_off = false;
    line.faults.prefetch = Some(FailureCode::PullFailed);
    line.live(600).await;
    line.faults.cut_off = true;
    line.live(600).await;
    let why = catalogue.device(&world, "failed, and away since", "line-1/web", Code::Silent).await;
    assert!(codes(&why).contains(&"pull-failed"), "{why:?}");
    let ended = Moment(world.clock.load(Ordering::Relaxed) - 60_000);
    world.fleet.record_svid(&client("line-1"), "01".into(), ended).await.unwrap();
    catalogue.device(&world, "its certificate expired meanwhile", "line-1", Code::IdentityExpired).await;
    line.faults.cut_off = false;
    line.live(60).await;
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    catalogue.device(&world, "a retired device", "line-1", Code::DeviceRetired).await;
    catalogue.device(&world, "a deployment on a retired device", "line-1/web", Code::DeviceRetired).await;

    // Removed while a device is away.
    let mut other = world.machine("line-2", LINE).await;
    other.live(120).await;
    other.faults.cut_off = true;
    other.live(600).await;
    world.fleet.remove_deployment(&ann(), &name("web"), None).await.unwrap();
    let why = catalogue.deployment(&world, "removed while its device is away", "web", Code::Silent).await;
    assert_eq!(codes(&why)[0], "being-removed");
}

async fn schedules(catalogue: &mut Catalogue) {
    let world = World::new().await;
    let mut line = world.runs_web().await;
    // It is a Monday, half past one in the afternoon.
    world.choose_for("device:line-1", json!({ "hours": ["sun 03:00-04:00"] })).await;
    line.live(120).await;
    world.put("web", greeting("yo")).await.unwrap();
    line.live(3600).await;
    catalogue.device(&world, "outside its hours", "line-1/web", Code::OutOfHours).await;
    let why = world.fleet.why("line-1").await.unwrap();
    assert_eq!(codes(&why), ["out-of-hours"], "quiet as it was told to be is not silent");

    let world = World::new().await;
    let mut line = world.runs_web().await;
    world.choose_for("device:line-1", json!({ "downtime": ["daily 00:00-23:59"] })).await;
    line.live(120).await;
    world.put("web", greeting("yo")).await.unwrap();
    line.live(3600).await;
    catalogue.device(&world, "in a known downtime", "line-1/web", Code::InDowntime).await;

    let world = World::new().await;
    let mut line = world.runs_web().await;
    world.choose_for("device:line-1", json!({ "pollEverySeconds": 36000 })).await;
    line.live(120).await;
    world.put("web", greeting("yo")).await.unwrap();
    line.live(600).await;
    catalogue.device(&world, "it asks every ten hours", "line-1/web", Code::PollsSeldom).await;

    let world = World::new().await;
    let _line = world.machine("line-1", LINE).await;
    world.choose_for("fleet", json!({ "hours": ["daily 08:00-10:00"] })).await;
    world.choose_for("label:line=1", json!({ "downtime": ["daily 07:00-11:00"] })).await;
    catalogue
        .device(&world, "hours and downtimes leave no time together", "line-1", Code::ScheduleConflict)
        .await;
}

async fn targets(catalogue: &mut Catalogue) {
    let world = World::new().await;
    world.device("line-1", LINE).await;
    world.put("web", labelled("line", "9")).await.unwrap();
    catalogue.deployment(&world, "no device matches", "web", Code::NoDevice).await;
    catalogue.device(&world, "not among the targets", "line-1/web", Code::NotTargeted).await;
    world.join("tiny", &[("line", "9")]).await;
    world.says("tiny", "128Mi", &["compose"]).await;
    catalogue.device(&world, "too little memory", "tiny/web", Code::Misfit).await;
    catalogue.deployment(&world, "the only target does not fit", "web", Code::Misfit).await;
    world.join("bare", &[("line", "9")]).await;
    let body =
        json!({ "properties": { "id": "bare", "vendor": "Acme", "modelNumber": "M", "serialNumber": "1" } });
    let body = Bytes::from(body.to_string());
    let parsed = g2::capabilities::read(&body).unwrap();
    world.fleet.put_capabilities(&client("bare"), parsed, body).await.unwrap();
    catalogue.device(&world, "no engine on the device", "bare/web", Code::RuntimeAbsent).await;
    world.join("mum", &[("line", "9")]).await;
    catalogue.device(&world, "a target that has said nothing", "mum/web", Code::CapabilitiesMissing).await;
}

async fn secrets(catalogue: &mut Catalogue) {
    let world = World::new().await;
    world.device("line-1", LINE).await;
    world.set("secrets/greeting", "hunter2");
    let mut want = labelled("line", "1");
    want.parameters.insert("greeting".into(), json!({ "secret": { "file": "greeting" } }));
    world.put("web", want.clone()).await.unwrap();
    std::fs::remove_file(world.data.path().join("secrets/greeting")).unwrap();
    world.device("line-2", LINE).await;
    let why = catalogue.device(&world, "a secret is missing", "line-2/web", Code::SecretMissing).await;
    assert!(why.chain[0].text.contains("there is no file secrets/greeting"), "{why:#?}");
    assert!(!why.chain[0].text.contains("hunter2"));
    let why = world.fleet.why("line-2").await.unwrap();
    assert_eq!(codes(&why).last(), Some(&"secret-missing"), "{why:#?}");
    let why = world.fleet.why_of(WhyKind::Deployment, "web").await.unwrap();
    assert!(why.groups.iter().any(|group| group.code == "secret-missing"), "{why:#?}");
    // Who has it keeps it, and the other gets it once it is there and the deployment is published again.
    assert_eq!(world.workloads("line-1").await.len(), 1);
    assert!(world.put("web", want.clone()).await.is_err(), "what refers to nothing is refused at once");
    world.set("secrets/greeting", "hunter2");
    let before = world.put("web", want.clone()).await.unwrap().revision;
    assert_eq!(world.workloads("line-2").await.len(), 1);
    assert_eq!(world.put("web", want).await.unwrap().revision, before, "once is enough");
}
