//! Clients that sign their requests: who is let in, what they are called, and how they move on.

use margrave_identity::key::PrivateKey;
use margrave_identity::message::{ClientCertificate, Roots};

use super::*;

fn certificate(name: &str) -> ClientCertificate {
    ClientCertificate::self_signed(&PrivateKey::generate().unwrap(), name, Moment(START)).unwrap()
}

fn any() -> SignedPolicy {
    SignedPolicy { accept: Accept::Any, roots: None }
}

impl World {
    async fn onboard(&self, policy: &SignedPolicy, certificate: &ClientCertificate) -> Onboarding {
        let address = Some("10.0.0.7:4711".to_owned());
        self.fleet.onboard(policy, certificate.clone(), true, address).await.unwrap()
    }

    /// A signed client that was let in and whose device calls itself `name`.
    pub(super) async fn signed(&self, name: &str) -> ClientId {
        let Onboarding::Accepted(client) = self.onboard(&any(), &certificate(name)).await else {
            panic!("everybody is accepted")
        };
        self.signed_says(&client, name).await;
        client
    }

    pub(super) async fn signed_says(&self, client: &ClientId, name: &str) {
        let mut body: serde_json::Value =
            serde_json::from_slice(&capabilities(name, "4Gi", &["compose"])).unwrap();
        body["apiVersion"] = "device.margo.org/v1alpha1".into();
        body["kind"] = "DeviceCapabilitiesManifest".into();
        let body = Bytes::from(body.to_string());
        let parsed = Dialect::Signed.capabilities(&body).unwrap();
        self.fleet.put_capabilities(client, parsed, body).await.unwrap();
        self.fleet.touched(client);
    }

    async fn ids(&self) -> Vec<String> {
        let page = self.fleet.devices(DeviceQuery::default()).await.unwrap();
        page.items.into_iter().map(|device| device.id).collect()
    }

    async fn kinds(&self) -> Vec<String> {
        self.fleet.events(0, 1000).await.unwrap().into_iter().map(|event| event.kind).collect()
    }
}

#[tokio::test]
async fn mi_g1_031_who_asks_waits_until_an_operator_decides() {
    let world = World::empty().await;
    let ask = SignedPolicy::default();
    let press = certificate("press");
    assert_eq!(world.onboard(&ask, &press).await, Onboarding::Pending);
    let waiting = world.fleet.signed_clients(Some("pending")).unwrap();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].fingerprint, press.fingerprint().hex());
    assert_eq!((waiting[0].subject.as_str(), waiting[0].key.as_str()), ("CN=press", "ECDSA P-256"));
    assert_eq!(waiting[0].address.as_deref(), Some("10.0.0.7:4711"));
    let id = client(&waiting[0].client);
    assert!(world.fleet.standing(&id).is_none() && world.fleet.signed_key(&id).unwrap().standing.is_none());
    assert!(world.ids().await.is_empty(), "who waits is no device");

    // By the beginning of its fingerprint, as it stands in the list.
    let part = device(&waiting[0].fingerprint[..10]);
    let accepted = world.fleet.accept(&ann(), &part).await.unwrap();
    assert_eq!((accepted.id.as_str(), accepted.form.as_str()), (id.as_str(), "g1"));
    assert_eq!(world.onboard(&ask, &press).await, Onboarding::Accepted(id.clone()));
    assert!(world.fleet.accept(&ann(), &device("ffffff")).await.is_err());
    assert_eq!(world.kinds().await, ["device.asks", "device.accepted"]);

    let world = world.restarted().await;
    assert_eq!(world.onboard(&ask, &press).await, Onboarding::Accepted(id.clone()));
    assert_eq!(world.fleet.standing(&id), Some(Standing::Accepted));
    assert_eq!(world.fleet.dialect(&id), Some(Dialect::Signed));
    assert_eq!(world.fleet.manifest(&id, Dialect::Signed).unwrap().version, 1);
}

#[tokio::test]
async fn mi_g1_030_who_is_rejected_stays_so_until_an_operator_says_otherwise() {
    let world = World::empty().await;
    let press = certificate("press");
    world.onboard(&SignedPolicy::default(), &press).await;
    let id = device(&world.fleet.signed_clients(None).unwrap()[0].client);
    assert_eq!(world.fleet.reject(&ann(), &id).await.unwrap().decision, "rejected");
    assert_eq!(world.onboard(&any(), &press).await, Onboarding::Rejected);
    assert!(world.fleet.signed_key(&id.client).unwrap().rejected);
    world.fleet.accept(&ann(), &id).await.unwrap();
    assert_eq!(world.onboard(&any(), &press).await, Onboarding::Accepted(id.client.clone()));
    // Who is in is retired, not rejected.
    assert!(matches!(world.fleet.reject(&ann(), &id).await, Err(Error::Conflict { .. })));
    world.fleet.retire(&ann(), &id).await.unwrap();
    assert_eq!(world.onboard(&any(), &press).await, Onboarding::Retired, "out is out, also by asking");
    assert_eq!(world.fleet.signed_key(&id.client).unwrap().standing, Some(Standing::Retired));
}

#[tokio::test]
async fn mi_g1_011_a_trusted_issuer_or_an_operator_vouches_beforehand() {
    let world = World::empty().await;
    // A certificate that is its own root vouches for itself as long as it is a root; another one does not.
    let (maker, other) =
        (margrave_identity::web::WebAuthority::create(Moment(START)).unwrap(), certificate("x"));
    let roots = Roots::from_pem(&maker.certificate_pem()).unwrap();
    let policy = SignedPolicy { accept: Accept::Ask, roots: Some(roots) };
    let leaf = maker.issue(&["press.example".to_owned()], Moment(START), Duration::from_secs(3600)).unwrap();
    let made = ClientCertificate::read(vec![leaf.chain()[0].to_vec()]).unwrap();
    // Made for a server: its issuer is trusted, its purpose is not.
    assert_eq!(world.onboard(&policy, &made).await, Onboarding::Pending);
    assert_eq!(world.onboard(&policy, &other).await, Onboarding::Pending);

    let brought = operator::AcceptCertificate { certificate: other.pem() };
    let known = world.fleet.accept_certificate(&ann(), brought.clone()).await.unwrap();
    assert_eq!(known.decision, "accepted");
    assert_eq!(world.fleet.accept_certificate(&ann(), brought).await.unwrap(), known, "twice is once");
    assert_eq!(world.onboard(&policy, &other).await, Onboarding::Accepted(client(&known.client)));
    let bad = operator::AcceptCertificate { certificate: "-----BEGIN".into() };
    assert!(matches!(world.fleet.accept_certificate(&ann(), bad).await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn strangers_fill_the_log_only_so_fast_and_known_ones_are_not_kept_waiting() {
    let world = World::empty().await;
    let ask = SignedPolicy::default();
    let known = certificate("known");
    world.onboard(&ask, &known).await;
    let mut refused = 0;
    for number in 0..520 {
        let stranger = certificate(&format!("stranger {number}"));
        match world.fleet.onboard(&ask, stranger, true, None).await {
            Ok(outcome) => assert_eq!(outcome, Onboarding::Pending),
            Err(Error::Overloaded) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0);
    assert_eq!(world.fleet.signed_clients(Some("pending")).unwrap().len(), 500);
    assert_eq!(world.onboard(&ask, &known).await, Onboarding::Pending);
    world.pass(1);
    assert_eq!(world.onboard(&ask, &certificate("later")).await, Onboarding::Pending);
}

#[tokio::test]
async fn a_device_is_called_what_it_calls_itself_while_that_is_clear() {
    let world = World::new().await;
    let first = world.signed("press").await;
    assert_eq!(world.ids().await, ["press"]);
    let shown = world.fleet.device(&device("press")).await.unwrap();
    assert_eq!((shown.client.as_str(), shown.form.as_str()), (first.as_str(), "g1"));
    assert_eq!(world.fleet.device(&device(&format!("{first}:press"))).await.unwrap().id, "press");
    world.put("web", on(&["press"])).await.unwrap();
    assert_eq!(world.fleet.deployment(&name("web")).await.unwrap().targets.devices, ["press"]);
    assert_eq!(world.fleet.why("press/web").await.unwrap().subject, "press/web");
    let events = world.fleet.device_events(&device("press"), 10).await.unwrap();
    assert!(events.iter().all(|event| event.device.as_deref() == Some("press")), "{events:?}");
    assert!(events[0].text.starts_with("press ") && events[0].actor == "device press", "{events:?}");
    let label = operator::SetLabels { labels: [("site".to_owned(), Some("nord".to_owned()))].into() };
    world.fleet.label(&ann(), &device("press"), label).await.unwrap();

    // Another one of that name: from now on both need their whole names.
    let second = world.signed("press").await;
    let mut both = vec![format!("{first}:press"), format!("{second}:press")];
    both.sort();
    assert_eq!(world.ids().await, both);
    assert!(matches!(world.fleet.device(&device("press")).await, Err(Error::NotFound { .. })));
    assert!(matches!(world.put("more", on(&["press"])).await, Err(Error::Invalid(_))));
    // A retired one gives its name free, and whoever joins under it by mutual TLS takes it.
    world.fleet.retire(&ann(), &device(&format!("{second}:press"))).await.unwrap();
    assert_eq!(world.fleet.device(&device("press")).await.unwrap().client, first.as_str());
    world.join("press", &[]).await;
    assert_eq!(world.fleet.device(&device("press")).await.unwrap().client, "press");
    assert!(world.ids().await.contains(&format!("{first}:press")));
    let world = world.restarted().await;
    assert_eq!(world.fleet.device(&device("press")).await.unwrap().client, "press");
    assert_eq!(world.fleet.device(&device(&format!("{first}:press"))).await.unwrap().labels["site"], "nord");
}

#[tokio::test]
async fn a_signed_device_is_set_to_git_by_the_name_it_is_called() {
    if !git::git_is_here() {
        return;
    }
    let world = World::new().await;
    let press = world.signed("press").await;
    let none = world.fleet.git(&device("press")).await.unwrap_err();
    assert!(none.to_string().contains("`margrave device git press` makes one"), "{none}");
    let put = async |name: &str| {
        world.fleet.put_git(&ann(), &device(name), operator::PutGit::default()).await.unwrap()
    };
    let made = put("press").await;
    assert_eq!((made.device.as_str(), made.username.as_str()), ("press", press.as_str()));
    assert!(made.url.ends_with(&format!("/{press}.git")), "{}", made.url);
    // It is one repository, whichever of its names is said.
    for name in ["press", &format!("{press}:press"), press.as_str()] {
        assert_eq!(put(name).await.token, None, "{name}");
        assert_eq!(world.fleet.git(&device(name)).await.unwrap().username, press.as_str(), "{name}");
    }
    world.signed_says(&press, "press/robot").await;
    let child = world.fleet.git(&device("press/robot")).await.unwrap_err();
    assert!(child.to_string().ends_with("repository of press"), "{child}");
    for nobody in ["nobody", "press/nobody", &format!("{press}:nobody")] {
        assert!(matches!(world.fleet.git(&device(nobody)).await, Err(Error::NotFound { .. })), "{nobody}");
    }
    world.fleet.end_git(&ann(), &device("press")).await.unwrap();
    assert!(matches!(world.fleet.git(&device(press.as_str())).await, Err(Error::NotFound { .. })));
    world.fleet.retire(&ann(), &device("press")).await.unwrap();
    let retired = world.fleet.put_git(&ann(), &device("press"), operator::PutGit::default()).await;
    assert!(retired.unwrap_err().to_string().contains("`margrave device accept press`"));
    // People read of it under the name that they call it by, from the day it asked.
    let events = world.fleet.device_events(&device("press"), 100).await.unwrap();
    let told: Vec<(&str, &str)> =
        events.iter().rev().map(|event| (event.kind.as_str(), event.text.as_str())).collect();
    let of = |kind: &str| -> Vec<&str> {
        told.iter().filter(|(of, _)| *of == kind).map(|(_, text)| *text).collect()
    };
    assert!(of("device.accepted")[0].starts_with("press was accepted, with the key "), "{told:?}");
    assert_eq!(of("device.git")[0], "press has a Git repository of its own from now on");
    assert_eq!(of("device.git").last(), Some(&"the Git repository of press was closed"));
    assert_eq!(of("device.retired"), ["press was retired; the server refuses it from now on"]);
    assert!(events.iter().all(|event| event.device.as_deref() == Some("press")), "{events:?}");
    let newest = &world.fleet.recent_events(1).await.unwrap()[0];
    assert_eq!((newest.device.as_deref(), newest.text.as_str()), (Some("press"), of("device.retired")[0]));
    // A child's are its own.
    let child = world.fleet.device_events(&device("press/robot"), 100).await.unwrap();
    let kinds: Vec<&str> = child.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["device.capabilities"]);
}

#[tokio::test]
async fn a_device_without_a_name_of_its_own_is_chosen_by_label_only() {
    let world = World::new().await;
    let Onboarding::Accepted(id) = world.onboard(&any(), &certificate("x")).await else { panic!() };
    let refused = world.put("web", on(&[id.as_str()])).await.unwrap_err();
    assert!(refused.to_string().contains("select by label"), "{refused}");
    let label = operator::SetLabels { labels: [("site".to_owned(), Some("nord".to_owned()))].into() };
    world.fleet.label(&ann(), &device(id.as_str()), label).await.unwrap();
    world.put("web", labelled("site", "nord")).await.unwrap();
    world.signed_says(&id, "press").await;
    assert_eq!(world.fleet.device(&device("press")).await.unwrap().assignments.len(), 1);
}

#[tokio::test]
async fn documents_and_manifest_are_in_the_form_of_the_client_and_digests_are_of_what_is_served() {
    let world = World::new().await;
    let id = world.signed("press").await;
    world.device("line-1", &[]).await;
    world.put("web", on(&["press", "line-1"])).await.unwrap();
    let live = world.fleet.manifest(&id, Dialect::Signed).unwrap();
    let text = String::from_utf8(live.body.to_vec()).unwrap();
    assert!(text.contains(&format!("/api/v1/clients/{id}/deployments/")), "{text}");
    assert_eq!(Digest::of(&live.body), live.digest);
    let listed = margrave_wire::g1::manifest::read(&id, &live.body).unwrap().manifest;
    let entry = listed.entries()[0];
    let document = world.fleet.document(&id, entry.id, entry.document.digest).await.unwrap().unwrap();
    assert_eq!(Digest::of(&document), entry.document.digest);
    assert!(String::from_utf8_lossy(&document).contains("annotations:"));
    let bundle = listed.bundle().unwrap();
    assert_eq!(Digest::of(&world.fleet.bundle(&id, bundle.digest).await.unwrap().unwrap()), bundle.digest);
    // The same deployment for the other form, as that form writes it.
    let text =
        String::from_utf8(world.fleet.manifest(&client("line-1"), Dialect::Miaf).unwrap().body.to_vec())
            .unwrap();
    assert!(text.contains("\"/api/v1/deployments/") && !text.contains("clients"), "{text}");
    assert_eq!(world.workloads("line-1").await.len(), 1);
}

#[tokio::test]
async fn the_version_that_was_given_is_known_after_a_restart() {
    let world = World::new().await;
    let id = world.signed("press").await;
    assert_eq!(world.fleet.manifest_last_given(&id), None);
    world.put("web", on(&["press"])).await.unwrap();
    world.fleet.manifest_given(&id, 2).await.unwrap();
    world.fleet.manifest_given(&id, 1).await.unwrap();
    let world = world.restarted().await;
    assert_eq!(world.fleet.manifest_last_given(&id), Some(2));
    let assignment = world.assignment("web", "press").await;
    let report = Report {
        assignment: AssignmentId::parse(&assignment.id).unwrap(),
        device: None,
        adopted_version: world.fleet.manifest_last_given(&id).unwrap(),
        state: Reported::Installed,
        fault: None,
        components: vec![],
        detail: None,
        signed_at: None,
    };
    world.fleet.report(&id, report).await.unwrap();
    world.fleet.touched(&id);
    let shown = world.assignment("web", "press").await;
    assert_eq!((shown.state.as_str(), shown.current), ("INSTALLED", true));
}

#[tokio::test]
async fn moving_takes_labels_and_assignments_along_and_leaves_the_numbers() {
    let world = World::new().await;
    let old = world.signed("press").await;
    let label = operator::SetLabels { labels: [("site".to_owned(), Some("nord".to_owned()))].into() };
    world.fleet.label(&ann(), &device("press"), label).await.unwrap();
    world.put("named", on(&["press"])).await.unwrap();
    world.put("labelled", labelled("site", "nord")).await.unwrap();
    world.device("press-new", &[("line", "1")]).await;
    assert_eq!(world.version("press-new"), 1);
    let before =
        [world.assignment("labelled", "press").await.id, world.assignment("named", "press").await.id];
    let moved = world.fleet.move_device(&ann(), &device("press"), &device("press-new")).await.unwrap();
    assert_eq!(moved.id, "press-new");
    assert_eq!((moved.labels["site"].as_str(), moved.labels["line"].as_str()), ("nord", "1"));
    let mut runs: Vec<&str> = moved.assignments.iter().map(|one| one.deployment.as_str()).collect();
    runs.sort();
    assert_eq!(runs, ["labelled", "named"]);
    // The same ids, so that what runs on the device is updated and not installed anew; nothing said about them yet.
    for (name, id) in ["labelled", "named"].into_iter().zip(&before) {
        let after = world.assignment(name, "press-new").await;
        assert_eq!((&after.id, after.state.as_str()), (id, "PENDING"));
    }
    let listed: Vec<String> =
        world.workloads("press-new").await.iter().map(|workload| workload.id.to_string()).collect();
    assert!(before.iter().all(|id| listed.contains(id)), "{listed:?}");
    assert_eq!(world.fleet.deployment(&name("named")).await.unwrap().targets.devices, ["press-new"]);
    assert!(world.version("press-new") <= 3, "its numbers are its own");
    assert_eq!(world.fleet.standing(&old), Some(Standing::Retired));
    let gone = world.fleet.device(&device("press")).await.unwrap();
    assert!(gone.standing == "retired" && gone.assignments.is_empty());
    // Once is enough, twice is the same, and back is not possible.
    world.fleet.move_device(&ann(), &device("press"), &device("press-new")).await.unwrap();
    assert!(matches!(world.fleet.accept(&ann(), &device("press")).await, Err(Error::Conflict { .. })));
    world.device("press-other", &[]).await;
    let elsewhere = world.fleet.move_device(&ann(), &device("press"), &device("press-other")).await;
    assert!(matches!(elsewhere, Err(Error::Conflict { .. })));
}

#[tokio::test]
async fn a_move_that_cannot_be_whole_changes_nothing() {
    let world = World::new().await;
    let old = world.signed("press").await;
    world.put("named", on(&["press"])).await.unwrap();
    world.device("line-1", &[]).await;
    world.join("small", &[]).await;
    world.says("small", "1Mi", &["compose"]).await;
    let try_to =
        async |from: &str, to: &str| world.fleet.move_device(&ann(), &device(from), &device(to)).await;
    assert!(matches!(try_to("press", "small").await, Err(Error::Misfit(_))));
    assert!(matches!(try_to("line-1", "small").await, Err(Error::Conflict { .. })), "only signed ones move");
    assert!(matches!(try_to("press", "press").await, Err(Error::Conflict { .. })));
    assert!(matches!(try_to("press", "nobody").await, Err(Error::NotFound { .. })));
    assert!(matches!(try_to("nobody", "line-1").await, Err(Error::NotFound { .. })));
    // A child whose counterpart nobody has heard of.
    world.signed_says(&old, "press/robot").await;
    let refused = try_to("press", "line-1").await.unwrap_err();
    assert!(refused.to_string().contains("line-1/robot"), "{refused}");
    assert_eq!(world.fleet.standing(&old), Some(Standing::Accepted));
    assert_eq!(world.fleet.deployment(&name("named")).await.unwrap().targets.devices, ["press"]);
}

#[tokio::test]
async fn a_move_that_a_crash_cut_short_is_finished_at_the_next_start() {
    let world = World::new().await;
    let old = world.signed("press").await;
    world.put("named", on(&["press"])).await.unwrap();
    world.device("press-new", &[]).await;
    let from = DeviceRef::new(old.clone(), "press".parse().unwrap());
    let pairs = vec![(from, device("press-new"))];
    // Exactly what is durable before anything else is done.
    world
        .fleet
        .store
        .move_signed(&old, pairs, &device("press-new"), Moment(START), "operator ann")
        .await
        .unwrap();
    let world = world.restarted().await;
    assert_eq!(world.fleet.deployment(&name("named")).await.unwrap().targets.devices, ["press-new"]);
    assert_eq!(world.workloads("press-new").await.len(), 1);
    assert_eq!(world.fleet.standing(&old), Some(Standing::Retired));
}

#[tokio::test]
async fn only_who_holds_the_key_changes_the_certificate() {
    let world = World::empty().await;
    let key = PrivateKey::generate().unwrap();
    let first = ClientCertificate::self_signed(&key, "first", Moment(START)).unwrap();
    let second = ClientCertificate::self_signed(&key, "second", Moment(START)).unwrap();
    let Onboarding::Accepted(id) = world.onboard(&any(), &first).await else { panic!() };
    let subject = || world.fleet.signed_clients(None).unwrap()[0].subject.clone();
    let unproven = world.fleet.onboard(&any(), second.clone(), false, None).await.unwrap();
    assert_eq!((unproven, subject().as_str()), (Onboarding::Accepted(id.clone()), "CN=first"));
    assert_eq!(world.onboard(&any(), &second).await, Onboarding::Accepted(id));
    assert_eq!(subject(), "CN=second");
}
