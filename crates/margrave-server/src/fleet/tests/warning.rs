//! What somebody is told of a deployment that is done all the same, and what is refused because nobody could fetch it.

use std::sync::atomic::AtomicBool;

use axum::middleware::Next;
use axum::response::IntoResponse as _;
use margrave_core::watch::Warning;
use margrave_registry::{Action, Decision, Registry};
use margrave_wire::intent::Apply;

use super::super::intent::Change;
use super::super::warning::bounded;
use super::*;

/// `kind: text` of each.
fn told(warnings: &[operator::Warning]) -> Vec<String> {
    warnings.iter().map(|warning| format!("{}: {}", warning.kind, warning.text)).collect()
}

#[test]
fn warnings_that_are_left_out_are_counted() {
    let warning = |number: usize| operator::Warning {
        deployment: format!("d{number}"),
        kind: "noDevice".into(),
        text: "so".into(),
    };
    let all = |count: usize| bounded((0..count).map(warning).collect());
    assert_eq!(all(50), (0..50).map(warning).collect::<Vec<_>>());
    let many = all(60);
    assert_eq!((many.len(), many[50].kind.as_str()), (51, "more"));
    assert_eq!(many[50].to_string(), "d50: and 10 more, from this deployment on; look at each by itself");
}

fn greeted(targets: operator::Targets) -> operator::Override {
    operator::Override { targets, parameters: [("greeting".to_owned(), json!("hi"))].into() }
}

fn named(devices: &[&str]) -> operator::Targets {
    on(devices).targets
}

#[tokio::test]
async fn an_override_that_speaks_of_nobody_is_told_and_taken() {
    let world = World::new().await;
    world.device("line-1", &[("site", "nord")]).await;
    world.device("line-2", &[("site", "sued")]).await;
    let mut want = on(&["line-1"]);
    want.overrides = vec![
        greeted(named(&["line-1", "line-2", "line-9"])),
        greeted(labelled("site", "west").targets),
        greeted(labelled("site", "nord").targets),
    ];
    let wanted = [
        "deviceUnknown: override 1 names line-9, which has not joined; check the name, or let it join",
        "noTarget: override 1 names line-2, which is no target of the deployment; add it to the targets, or leave it out",
        "noDevice: override 2 matches none of the deployment's devices; it counts once one does",
    ];
    let plan = world.fleet.rehearse_deployment(&ann(), &name("web"), want.clone()).await.unwrap();
    assert_eq!(told(&plan.warnings), wanted);
    let answer = world.put("web", want).await.unwrap();
    assert_eq!(told(&answer.warnings), wanted);
    assert_eq!(told(&world.fleet.deployment(&name("web")).await.unwrap().warnings), wanted);
    // Who only asks which revision there is looks at no devices.
    let counted = world.fleet.deployment_counted(&name("web")).await.unwrap();
    assert_eq!((counted.revision, counted.warnings), (1, vec![]));
    let commit = world.fleet.intent().await.unwrap().commit.unwrap();
    assert_eq!(told(&world.fleet.warnings_of_commit(&commit).await.unwrap()), wanted);

    // It counts once it is there, and nothing is to be told then.
    world.device("line-9", &[("site", "west")]).await;
    let mut want = on(&["line-1", "line-2", "line-9"]);
    want.overrides = vec![greeted(named(&["line-9"])), greeted(labelled("site", "west").targets)];
    let answer = world.put("web", want).await.unwrap();
    assert_eq!(told(&answer.warnings), Vec::<String>::new());
    // Another commit is not asked about this one.
    assert_eq!(told(&world.fleet.warnings_of_commit(&commit).await.unwrap()), Vec::<String>::new());
}

/// A registry that is not ours, with the component `web`.
pub(super) async fn elsewhere() -> (Registry, String, tempfile::TempDir) {
    let Elsewhere { registry, address, folder, .. } = Elsewhere::new().await;
    (registry, address, folder)
}

/// The same, and what becomes of questions there.
struct Elsewhere {
    registry: Registry,
    address: String,
    asked: Arc<AtomicU64>,
    is_away: Arc<AtomicBool>,
    folder: tempfile::TempDir,
}

impl Elsewhere {
    async fn new() -> Elsewhere {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path().join("registry")).unwrap();
        let open = |_: &http::request::Parts, _: Action, _: Option<&RepositoryName>| Decision::Allow;
        let (asked, is_away) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, away) = (asked.clone(), is_away.clone());
        let listening = axum::middleware::from_fn(move |request: axum::extract::Request, next: Next| {
            count.fetch_add(1, Ordering::Relaxed);
            let is_away = away.load(Ordering::Relaxed);
            async move {
                match is_away {
                    true => http::StatusCode::SERVICE_UNAVAILABLE.into_response(),
                    false => next.run(request).await,
                }
            }
        });
        let router = margrave_registry::router(registry.clone(), open).layer(listening);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        push_web(&registry).await;
        Elsewhere { registry, address, asked, is_away, folder }
    }

    /// How often it was asked since it was asked about that.
    fn asked(&self) -> u64 {
        self.asked.swap(0, Ordering::Relaxed)
    }
}

fn web() -> (RepositoryName, TagOrDigest) {
    (RepositoryName::parse("components/web").unwrap(), TagOrDigest::Tag(Tag::parse("1.0.0").unwrap()))
}

async fn push_web(registry: &Registry) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("compose.yaml"), "services: {}\n").unwrap();
    let archive = ComposeArchive::build(folder.path(), "web").unwrap();
    let layer = Descriptor::of(COMPOSE_LAYER_TYPE, archive.bytes());
    let manifest = ImageManifest::artifact(COMPOSE_TYPE, vec![layer]).to_bytes();
    let (repository, tag) = web();
    for blob in [archive.bytes(), EMPTY_CONFIG] {
        registry.put_blob(&repository, Bytes::copy_from_slice(blob)).await.unwrap();
    }
    registry.put_manifest(&repository, &tag, IMAGE_MANIFEST, manifest.into()).await.unwrap();
}

/// What is in a repository at 1.0.0 goes.
pub(super) async fn lose(registry: &Registry, repository: &str) {
    let repository = RepositoryName::parse(repository).unwrap();
    let tag = web().1;
    let pinned = registry.manifest(&repository, &tag).await.unwrap().unwrap().digest;
    for reference in [tag, TagOrDigest::Digest(pinned)] {
        registry.delete_manifest(&repository, &reference).await.unwrap();
    }
}

impl World {
    /// A package with this description, under whatever name.
    async fn described(&self, description: &str) -> operator::Package {
        self.push("described", description).await;
        let repository = RepositoryName::parse("packages/hello").unwrap();
        let tag = TagOrDigest::parse("described").unwrap();
        let digest = self.registry.manifest(&repository, &tag).await.unwrap().unwrap().digest;
        self.add(&format!("oci://margrave/packages/hello@{digest}")).await.unwrap()
    }
}

#[tokio::test]
async fn another_package_of_the_same_version_is_something_else_to_fetch() {
    let world = World::new().await;
    let (registry, address, _folder) = elsewhere().await;
    let other = description("1.0.0")
        .replace("id: hello", "id: other")
        .replace("oci://margrave/components/web", &format!("oci://{address}/components/web"));
    world.described(&other).await;
    world.device("line-1", &[]).await;
    world.put("web", on(&["line-1"])).await.unwrap();
    let want = operator::PutDeployment { package: "other".into(), ..on(&["line-1"]) };
    let plan = world.fleet.rehearse_deployment(&ann(), &name("web"), want.clone()).await.unwrap();
    assert_eq!(plan.fetches.len(), 1, "{plan:?}");
    // What it has is known from when it was pinned, and nobody is asked for it now.
    let (repository, tag) = web();
    let manifest = registry.manifest(&repository, &tag).await.unwrap().unwrap().bytes;
    let layers = ImageManifest::from_bytes(&manifest).unwrap().layers;
    let size = layers[0].size + (EMPTY_CONFIG.len() + manifest.len()) as u64;
    let fetch = &plan.fetches[0];
    assert_eq!((fetch.bytes, fetch.bound(), fetch.unknown.len()), (size, "at most", 0), "{fetch:?}");
    lose(&registry, "components/web").await;
    world.pass(7 * 3600);
    world.fleet.look_at_origins().await.unwrap();
    let refused = world.put("web", want).await.unwrap_err();
    assert!(refused.to_string().contains("no longer has web of other 1.0.0"), "{refused}");
}

#[tokio::test]
async fn what_is_gone_is_what_was_there_and_not_what_has_its_name() {
    let world = World::new().await;
    let (registry, address, _folder) = elsewhere().await;
    let chart = RepositoryName::parse("components/chart").unwrap();
    let layer = Descriptor::of("application/vnd.cncf.helm.chart.content.v1.tar+gzip", b"chart");
    let manifest =
        ImageManifest::artifact("application/vnd.cncf.helm.config.v1+json", vec![layer]).to_bytes();
    for blob in [b"chart", EMPTY_CONFIG] {
        registry.put_blob(&chart, Bytes::copy_from_slice(blob)).await.unwrap();
    }
    registry.put_manifest(&chart, &web().1, IMAGE_MANIFEST, manifest.into()).await.unwrap();
    // Both profiles have a component of that name, and the first has the same bytes under two.
    let same = description("2.0.0")
        .replace("oci://margrave/", &format!("oci://{address}/"))
        .replace("name: chart", "name: web")
        .replace("[\"chart\"]", "[\"web\"]");
    let component =
        same[same.find("      - name: web").unwrap()..same.find("    deviceConstraints").unwrap()].to_owned();
    let twice = format!("{component}{}", component.replace("name: web", "name: again"));
    world.described(&same.replacen(&component, &twice, 1)).await;
    world.device("line-1", &[]).await;
    world.device("line-2", &[]).await;
    let of = |device: &str| operator::PutDeployment { version: Some("2.0.0".into()), ..on(&[device]) };
    lose(&registry, "components/chart").await;
    world.pass(7 * 3600);
    world.fleet.look_at_origins().await.unwrap();
    // The other profile's is gone.
    let answer = world.put("one", of("line-1")).await.unwrap();
    assert_eq!(answer.warnings[0].kind, "componentGone", "{answer:?}");
    lose(&registry, "components/web").await;
    world.pass(7 * 3600);
    world.fleet.look_at_origins().await.unwrap();
    let refused = world.put("two", of("line-2")).await.unwrap_err();
    assert!(refused.to_string().contains("no longer has again, web of hello 2.0.0"), "{refused}");
}

#[tokio::test]
async fn what_devices_could_not_fetch_any_more_is_refused_until_it_is_there_again_or_forced() {
    let world = World::new().await;
    let (registry, address, _folder) = elsewhere().await;
    let outside = description("2.0.0")
        .replace("oci://margrave/components/web", &format!("oci://{address}/components/web"));
    world.push("2.0.0", &outside).await;
    world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    for device in ["line-1", "line-2"] {
        world.device(device, &[]).await;
    }
    let of = |version: &str, devices: &[&str]| operator::PutDeployment {
        version: Some(version.into()),
        ..on(devices)
    };
    world.put("has", of("2.0.0", &["line-1"])).await.unwrap();
    world.put("old", of("1.0.0", &["line-2"])).await.unwrap();

    // It goes, and the server hears of that.
    lose(&registry, "components/web").await;
    world.pass(7 * 3600);
    world.fleet.look_at_origins().await.unwrap();
    let shown = world.fleet.deployment(&name("has")).await.unwrap();
    assert!(
        told(&shown.warnings)[0]
            .starts_with("componentGone: hello 2.0.0: the registry no longer has the component web")
    );

    let before = world.fleet.intent().await.unwrap().commit;
    for (deployment, want) in [
        ("new", of("2.0.0", &["line-2"])),
        ("old", of("2.0.0", &["line-2"])),
        ("has", of("2.0.0", &["line-1", "line-2"])),
    ] {
        let refused = world.put(deployment, want.clone()).await.unwrap_err();
        let Error::Invalid(violations) = &refused else { panic!("{refused}") };
        let said = &violations[0].message;
        assert!(
            said.starts_with("the registry no longer has web of hello 2.0.0, and 1 device would have to fetch it there; push"),
            "{said}"
        );
        let rehearsed = world.fleet.rehearse_deployment(&ann(), &name(deployment), want).await.unwrap_err();
        assert_eq!(rehearsed.to_string(), refused.to_string(), "the same is said before");
    }
    assert_eq!(world.fleet.intent().await.unwrap().commit, before, "nothing was done");
    // Who has it goes on: other answers are nothing to fetch.
    let mut answered = of("2.0.0", &["line-1"]);
    answered.parameters.insert("greeting".into(), json!("yo"));
    assert!(!world.put("has", answered).await.unwrap().warnings.is_empty());
    // Who knows better says so.
    let forced =
        operator::PutDeployment { force: Some("they have it by hand".into()), ..of("2.0.0", &["line-2"]) };
    assert!(!world.put("old", forced).await.unwrap().warnings.is_empty());
    // It is asked for again when somebody wants it, not hours later.
    push_web(&registry).await;
    let answer = world.put("new", of("2.0.0", &["line-2"])).await.unwrap();
    assert_eq!(told(&answer.warnings), Vec::<String>::new());
}

/// The file of a deployment of hello 2.0.0.
fn file(deployment: &str, device: &str) -> String {
    format!(
        "apiVersion: margrave/v1\nkind: Deployment\nmetadata:\n  name: {deployment}\nspec:\n  package: hello\n  version: 2.0.0\n  \
         targets:\n    devices: [{device}]\n"
    )
}

#[tokio::test]
async fn a_rehearsal_writes_nothing_and_asks_nobody_for_who_may_only_look() {
    let world = World::new().await;
    let there = Elsewhere::new().await;
    let outside = description("2.0.0")
        .replace("oci://margrave/components/web", &format!("oci://{}/components/web", there.address));
    world.push("2.0.0", &outside).await;
    world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    world.device("line-1", &[]).await;
    lose(&there.registry, "components/web").await;
    world.pass(7 * 3600);
    world.fleet.look_at_origins().await.unwrap();
    push_web(&there.registry).await;
    there.asked();

    let known = world.fleet.store.origins().await.unwrap();
    let events = world.fleet.store.events_after(0, 1000).await.unwrap();
    let want = Apply { documents: vec![file("web", "line-1")], dry_run: true, ..Apply::default() };
    let looked = world.fleet.apply_files(&ann(), &want, Fetching::Refused).await.unwrap_err();
    assert!(looked.to_string().contains("no longer has web of hello 2.0.0"), "{looked}");
    assert_eq!(there.asked(), 0);
    // Who may change it is told what would come of that.
    let plan = world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await.unwrap().plan.unwrap();
    assert_eq!((plan.changes.len(), plan.warnings), (1, vec![]));
    assert!(there.asked() > 0);
    assert_eq!(world.fleet.store.origins().await.unwrap(), known);
    assert_eq!(world.fleet.store.events_after(0, 1000).await.unwrap(), events);
    // What is done is written down, and so is what was heard for it.
    let want = Apply { dry_run: false, ..want };
    world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await.unwrap();
    assert!(world.fleet.store.origins().await.unwrap().iter().all(|origin| origin.warnings.is_empty()));
}

#[tokio::test]
async fn registries_are_asked_once_for_a_package_and_not_again_while_they_are_away() {
    let world = World::new().await;
    let there = Elsewhere::new().await;
    for version in ["2.0.0", "3.0.0"] {
        let outside = description(version)
            .replace("oci://margrave/components/web", &format!("oci://{}/components/web", there.address));
        world.push(version, &outside).await;
        world.add(&format!("oci://margrave/packages/hello:{version}")).await.unwrap();
    }
    lose(&there.registry, "components/web").await;
    world.pass(7 * 3600);
    world.fleet.look_at_origins().await.unwrap();
    let rehearse = async |documents: Vec<String>| {
        there.asked();
        let want = Apply { documents, dry_run: true, ..Apply::default() };
        drop(world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await);
        there.asked()
    };
    let two = |deployment: &str| file(deployment, "line-1");
    let three = |deployment: &str| two(deployment).replace("2.0.0", "3.0.0");
    let one = rehearse(vec![two("a")]).await;
    assert!(one > 0);
    assert_eq!(rehearse(vec![two("a"), two("b"), two("c")]).await, one, "once for a package");
    assert_eq!(rehearse(vec![two("a"), three("b")]).await, one * 2);
    there.is_away.store(true, Ordering::Relaxed);
    let away = rehearse(vec![two("a")]).await;
    assert!(away > 0);
    assert_eq!(rehearse(vec![two("a"), three("b")]).await, away, "nobody is asked twice who is away");
}

#[tokio::test]
async fn what_settles_by_itself_afterwards_is_no_reason_to_refuse_a_change_or_its_rehearsal() {
    let world = World::new().await;
    let (registry, address, _folder) = elsewhere().await;
    let outside = description("2.0.0")
        .replace("oci://margrave/components/web", &format!("oci://{address}/components/web"))
        .replace("memory: 1Gi", "memory: 512Mi");
    let lean = "  - type: compose
    id: lean
    components:
      - name: web
        properties: { repository: oci://margrave/components/web, revision: 1.0.0 }
    deviceConstraints:
      capacityRequirements:
        memory: 256Mi
  - type: helm
    id: cluster
";
    let large = description("3.0.0").replace("memory: 1Gi", "memory: 2Gi");
    let large = large.replace("  - type: helm\n    id: cluster\n", lean);
    for (version, description) in [("2.0.0", outside), ("3.0.0", large)] {
        world.push(version, &description).await;
        world.add(&format!("oci://margrave/packages/hello:{version}")).await.unwrap();
    }
    for (device, plant) in [("line-1", "a"), ("line-2", "b")] {
        world.join(device, &[("plant", plant)]).await;
        world.says(device, "1Gi", &["compose"]).await;
    }
    let of = |version: &str, want| operator::PutDeployment { version: Some(version.into()), ..want };
    world.put("x", of("1.0.0", labelled("plant", "a"))).await.unwrap();
    world.put("y", of("2.0.0", labelled("plant", "b"))).await.unwrap();
    lose(&registry, "components/web").await;
    world.pass(7 * 3600);
    world.fleet.look_at_origins().await.unwrap();
    // x does not fit any more in the profile it has, and leaves room for y only when another one was chosen.
    let mut everywhere = of("2.0.0", on(&[]));
    everywhere.targets.select = Some("plant in (a, b)".into());
    let put = |deployment: &str, want| Change::PutDeployment { name: name(deployment), want, id: None };
    let changes = [put("y", everywhere), put("x", of("3.0.0", labelled("plant", "a")))];
    let Ok(plan) = world.fleet.rehearse(&ann(), &changes, Fetching::Allowed).await else {
        panic!("it would not be refused");
    };
    let foretold = |deployment: &str| {
        plan.changes.iter().any(|change| change.device == "line-1" && change.deployment == deployment)
    };
    assert!(foretold("x") && foretold("y"), "{plan:?}");
    world.fleet.change_all(&ann(), &changes).await.unwrap();
    assert_eq!(world.assignment("y", "line-1").await.version, "2.0.0");
}

#[tokio::test]
async fn a_package_that_is_gone_while_its_bytes_are_held_here_is_only_told() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let origin = margrave_store::OriginRecord {
        id: "hello".parse().unwrap(),
        version: "1.0.0".parse().unwrap(),
        looked_at: world.fleet.now(),
        warnings: vec![Warning::Gone],
    };
    world.fleet.store.note_origin(origin, vec![]).await.unwrap();
    let told =
        |warnings: Vec<operator::Warning>| warnings.into_iter().map(|one| one.kind).collect::<Vec<_>>();
    // Nobody can be asked again here, so what was said last counts.
    let origins = world.fleet.known_origins().await.unwrap();
    world.put("web", on(&["line-1"])).await.unwrap();
    let deployment = world.fleet.wanted_deployment(&name("web")).await.unwrap().unwrap().deployment;
    assert_eq!(told(world.fleet.warnings_among(&deployment, None, &[], &origins).await.unwrap()), ["gone"]);
}
