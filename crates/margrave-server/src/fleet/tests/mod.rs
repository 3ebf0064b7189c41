//! The fleet on a real store and a real registry, with a clock that tests turn.

mod access;
mod asking;
mod catalog;
mod defaults;
mod deploying;
mod desired;
mod fitting;
mod following;
mod git;
mod hearing;
mod identity;
mod image_questions;
mod images;
mod lines;
mod looking_back;
mod moving;
mod packing;
mod restoring;
mod reverting;
mod rollback;
mod rollout;
mod schedule;
mod secret;
mod seeing;
mod signed;
mod stuck;
mod waiting;
mod warning;
mod watching;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeploymentName, DeviceRef};
use margrave_core::lifecycle::{Reported, State};
use margrave_core::moment::Moment;
use margrave_core::report::{Detail, Fault, Report};
use margrave_core::workload::Workload;
use margrave_oci::compose::{COMPOSE_LAYER_TYPE, COMPOSE_TYPE, ComposeArchive};
use margrave_oci::manifest::{Descriptor, EMPTY_CONFIG, IMAGE_MANIFEST, ImageManifest};
use margrave_oci::package::PackageFiles;
use margrave_registry::{Registry, RepositoryName, Tag, TagOrDigest};
use margrave_store::Store;
use margrave_wire::{Dialect, g2, operator};
use serde_json::json;

use super::*;

const START: u64 = 1_790_000_000_000;

pub(super) fn ann() -> Actor {
    Actor { name: "operator ann".into() }
}

pub(super) fn client(name: &str) -> ClientId {
    ClientId::parse(name).unwrap()
}

pub(super) fn device(name: &str) -> DeviceRef {
    DeviceRef::parse(name).unwrap()
}

pub(super) fn name(name: &str) -> DeploymentName {
    DeploymentName::parse(name).unwrap()
}

/// A description with two profiles (compose, then helm) and questions of some kinds.
pub(super) fn description(version: &str) -> String {
    format!(
        r#"
apiVersion: v1
id: hello
metadata:
  name: Hello
  description: Says hello.
  version: "{version}"
  catalog:
    application:
      icon: ./resources/icon.svg
      tagline: It greets.
    organization:
      - name: Tests
deploymentProfiles:
  - type: compose
    id: small
    components:
      - name: web
        properties:
          repository: oci://margrave/components/web
          revision: 1.0.0
    deviceConstraints:
      capacityRequirements:
        memory: 1Gi
  - type: helm
    id: cluster
    components:
      - name: chart
        properties:
          repository: oci://margrave/components/chart
          revision: 1.0.0
parameters:
  greeting:
    value: hello
    targets:
      - pointer: GREETING
        components: ["web"]
      - pointer: greeting
        components: ["chart"]
  interval:
    value: 30
    targets:
      - pointer: INTERVAL
        components: ["web"]
  site:
    targets:
      - pointer: SITE
        components: ["web"]
configuration:
  sections:
    - name: General
      settings:
        - {{ parameter: greeting, name: Greeting, schema: text }}
        - {{ parameter: interval, name: Interval, schema: seconds }}
        - {{ parameter: site, name: Site, immutable: true, schema: optional }}
  schema:
    - {{ name: text, dataType: string, maxLength: 20 }}
    - {{ name: seconds, dataType: integer, minValue: 1, maxValue: 3600 }}
    - {{ name: optional, dataType: string, allowEmpty: true }}
"#
    )
}

/// What a device with this much memory says; it runs `types`.
pub(super) fn capabilities(device: &str, memory: &str, types: &[&str]) -> Bytes {
    let body = json!({
        "properties": {
            "id": device, "vendor": "Acme", "modelNumber": "M", "serialNumber": "1",
            "cpus": [{ "cores": 4, "architecture": "amd64" }], "memory": memory, "storage": "10Gi",
            "peripherals": [], "interfaces": [], "otelCollector": true,
            "supportedRuntimes": ["oci"], "supportedDeploymentTypes": types,
        },
        "x-margrave-extensions": { "simulated": true },
    });
    Bytes::from(body.to_string())
}

pub(super) struct World {
    pub(super) fleet: Arc<Fleet>,
    pub(super) registry: Arc<Registry>,
    clock: Arc<AtomicU64>,
    data: tempfile::TempDir,
}

impl World {
    /// An empty fleet.
    pub(super) async fn empty() -> Self {
        let data = tempfile::tempdir().unwrap();
        let registry = Arc::new(Registry::open(data.path().join("registry")).unwrap());
        let clock = Arc::new(AtomicU64::new(START));
        let fleet = open(&data, &registry, &clock).await;
        World { fleet, registry, clock, data }
    }

    /// With the package `hello 1.0.0` in the catalog.
    pub(super) async fn new() -> Self {
        let world = Self::empty().await;
        world.push_components().await;
        world.push("1.0.0", &description("1.0.0")).await;
        world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
        world
    }

    pub(super) async fn restarted(self) -> Self {
        let World { fleet, registry, clock, data } = self;
        drop(Arc::into_inner(fleet).expect("nobody else holds the fleet"));
        let fleet = open(&data, &registry, &clock).await;
        World { fleet, registry, clock, data }
    }

    pub(super) fn pass(&self, seconds: u64) {
        self.clock.fetch_add(seconds * 1000, Ordering::Relaxed);
    }

    pub(super) async fn push_manifest(
        &self,
        repository: &str,
        tag: &str,
        manifest: &ImageManifest,
        blobs: &[&[u8]],
    ) {
        let repository = RepositoryName::parse(repository).unwrap();
        for blob in blobs.iter().chain([&EMPTY_CONFIG]) {
            self.registry.put_blob(&repository, Bytes::copy_from_slice(blob)).await.unwrap();
        }
        let tag = TagOrDigest::Tag(Tag::parse(tag).unwrap());
        let bytes = manifest.to_bytes().into();
        self.registry.put_manifest(&repository, &tag, IMAGE_MANIFEST, bytes).await.unwrap();
    }

    pub(super) async fn push_components(&self) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("compose.yaml"), "services: {}\n").unwrap();
        let archive = ComposeArchive::build(folder.path(), "web").unwrap();
        self.push_web(archive.bytes()).await;
        let layer = Descriptor::of("application/vnd.cncf.helm.chart.content.v1.tar+gzip", b"chart");
        let chart = ImageManifest::artifact("application/vnd.cncf.helm.config.v1+json", vec![layer]);
        self.push_manifest("components/chart", "1.0.0", &chart, &[b"chart"]).await;
    }

    /// The component `web` with these bytes for its archive.
    pub(super) async fn push_web(&self, archive: &[u8]) {
        let layer = Descriptor::of(COMPOSE_LAYER_TYPE, archive);
        let web = ImageManifest::artifact(COMPOSE_TYPE, vec![layer]);
        self.push_manifest("components/web", "1.0.0", &web, &[archive]).await;
    }

    pub(super) async fn push(&self, tag: &str, description: &str) {
        let icon = margrave_oci::package::Resource {
            kind: Some(margrave_oci::package::ResourceKind::Icon),
            title: "resources/icon.svg".into(),
            media_type: "application/vnd.margo.app.icon.v1+svg".into(),
            bytes: Bytes::from_static(b"<svg/>"),
        };
        let files = PackageFiles::new(Bytes::from(description.to_owned()), vec![icon]).unwrap();
        let blobs = [description.as_bytes(), b"<svg/>"];
        self.push_manifest("packages/hello", tag, &files.manifest(), &blobs).await;
    }

    pub(super) async fn add(&self, reference: &str) -> Result<operator::Package, Error> {
        let want = operator::AddPackage { reference: reference.into() };
        self.fleet.add_package(&ann(), want, |_| ()).await
    }

    /// A device that has joined, is in contact and has said nothing else.
    pub(super) async fn join(&self, name: &str, labels: &[(&str, &str)]) {
        let want = operator::CreateJoinToken {
            device: Some(name.into()),
            labels: labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            valid_seconds: None,
            git: false,
        };
        let token = self.fleet.create_join_token(&ann(), want).await.unwrap();
        assert_eq!(self.fleet.redeem_join_token(&token.token).await.unwrap(), client(name));
        self.fleet.touched(&client(name));
    }

    /// A device that runs compose and has enough of everything.
    pub(super) async fn device(&self, name: &str, labels: &[(&str, &str)]) {
        self.join(name, labels).await;
        self.says(name, "64Gi", &["compose"]).await;
    }

    /// The same, and something really runs there.
    pub(super) async fn real_device(&self, name: &str) {
        self.join(name, &[]).await;
        let body = String::from_utf8(capabilities(name, "64Gi", &["compose"]).to_vec()).unwrap();
        let body = body.replace(r#""simulated":true"#, r#""simulated":false"#).into_bytes();
        let parsed = g2::capabilities::read(&body).unwrap();
        assert!(!parsed.simulated);
        self.fleet.put_capabilities(&client(name), parsed, body.into()).await.unwrap();
    }

    pub(super) async fn says(&self, name: &str, memory: &str, types: &[&str]) -> Put {
        let body = capabilities(name, memory, types);
        let parsed = g2::capabilities::read(&body).unwrap();
        self.fleet.put_capabilities(&client(name), parsed, body).await.unwrap()
    }

    pub(super) async fn put(
        &self,
        deployment: &str,
        want: operator::PutDeployment,
    ) -> Result<operator::Deployment, Error> {
        self.fleet.put_deployment(&ann(), &name(deployment), want).await
    }

    pub(super) fn version(&self, on: &str) -> u64 {
        self.fleet.manifest(&client(on), Dialect::Miaf).unwrap().version
    }

    /// What the client's manifest lists, fetched and read as a device would.
    pub(super) async fn workloads(&self, on: &str) -> Vec<Workload> {
        let client = client(on);
        let live = self.fleet.manifest(&client, Dialect::Miaf).unwrap();
        let listing = g2::manifest::read(&live.body).unwrap();
        let mut workloads = Vec::new();
        for entry in listing.manifest.entries() {
            let bytes = self.fleet.document(&client, entry.id, entry.document.digest).await.unwrap().unwrap();
            assert_eq!(Digest::of(&bytes), entry.document.digest);
            workloads.push(g2::document::read(&bytes).unwrap());
        }
        if let Some(bundle) = listing.manifest.bundle() {
            let bytes = self.fleet.bundle(&client, bundle.digest).await.unwrap().unwrap();
            assert_eq!(Digest::of(&bytes), bundle.digest);
        }
        workloads
    }

    pub(super) async fn assignment(&self, deployment: &str, on: &str) -> operator::Assignment {
        let device = self.fleet.device(&device(on)).await.unwrap();
        device.assignments.into_iter().find(|assignment| assignment.deployment == deployment).unwrap()
    }

    /// The device reports on its newest manifest.
    pub(super) async fn report(&self, deployment: &str, on: &str, state: State) {
        self.report_with(deployment, on, state, |_| {}).await;
    }

    pub(super) async fn report_with(
        &self,
        deployment: &str,
        on: &str,
        state: State,
        change: impl FnOnce(&mut Report),
    ) {
        let assignment = AssignmentId::parse(&self.assignment(deployment, on).await.id).unwrap();
        self.pass(1);
        let now = self.clock.load(Ordering::Relaxed);
        let mut report = Report {
            assignment,
            device: None,
            adopted_version: self.version(on),
            state: state.reported(),
            fault: None,
            components: vec![],
            detail: Some(Detail {
                state,
                sequence: now,
                at: Moment(now),
                document: None,
                attempt: 1,
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
        if state.reported() == Reported::Failed {
            report.fault = Some(Fault {
                code: "pull-failed".into(),
                source: "web".into(),
                message: "the registry does not answer".into(),
            });
        }
        change(&mut report);
        self.fleet.report(&client(on), report).await.unwrap();
        self.fleet.touched(&client(on));
    }
}

/// Variables are files beside the data, so that tests can change them.
fn vault(data: &tempfile::TempDir) -> Vault {
    let variables = data.path().join("environment");
    Vault::at(data.path()).with_environment(move |name| {
        let text = std::fs::read_to_string(variables.join(name)).ok()?;
        Some(text.into())
    })
}

async fn open(data: &tempfile::TempDir, registry: &Arc<Registry>, clock: &Arc<AtomicU64>) -> Arc<Fleet> {
    let store = Store::open(data.path()).unwrap();
    let clock = clock.clone();
    let options = FleetOptions {
        server_url: "https://server.example:8443".into(),
        pin: "sha256:pin".into(),
        registry_address: "server.example:8443".into(),
        air_gapped: true,
        silent_after: Duration::from_secs(120),
        demo: None,
        git_directory: data.path().join("git"),
        intent_directory: data.path().join("intent.git"),
        intent_durable: false,
        web_names: vec!["server.example".into(), "10.0.0.5".into()],
        web_authority: "authority".into(),
        naming: Naming::random(),
        vault: vault(data),
    };
    let clock = Clock::new(move || Moment(clock.load(Ordering::Relaxed)));
    Fleet::open(store, registry.clone(), clock, options).await.unwrap()
}

/// Hello on these devices.
pub(super) fn on(devices: &[&str]) -> operator::PutDeployment {
    operator::PutDeployment {
        package: "hello".into(),
        version: None,
        profile: None,
        parameters: Default::default(),
        targets: operator::Targets {
            devices: devices.iter().map(|device| device.to_string()).collect(),
            labels: Default::default(),
            ..Default::default()
        },
        rollback: None,
        strategy: None,
        revision: None,
        ..Default::default()
    }
}

/// Hello on all devices with this label.
pub(super) fn labelled(key: &str, value: &str) -> operator::PutDeployment {
    let mut want = on(&[]);
    want.targets.labels.insert(key.into(), value.into());
    want
}

/// A folder with all that is in it.
pub(super) fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
