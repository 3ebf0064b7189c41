//! A real engine, a registry in this process, and an agent's data directory for one test.
//!
//! The engine is the one named by the environment (see `CONTRIBUTING.md`): without it a test says that it
//! is skipped, and fails where `CI=true` promises that everything is there.

use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use margrave_agent::runtime::components::Components;
use margrave_agent::runtime::compose::{ComposeRuntime, ComposeSettings, ImageRegistry};
use margrave_agent::runtime::engine::Places;
use margrave_agent::runtime::{Runtime, Telemetry};
use margrave_core::device::{Health, Observation, Order};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName, DeviceId};
use margrave_core::package::{ProfileKind, Revision, Timeout};
use margrave_core::parameters::ParameterValue;
use margrave_http::{Client as Http, Limits, Request};
use margrave_oci::client::{Client, Hosts};
use margrave_oci::manifest::{Descriptor, IMAGE_MANIFEST, ImageManifest};
use margrave_registry::{Decision, Registry, RepositoryName, Tag, TagOrDigest};
use tokio::task::JoinHandle;

const LAYER_TYPE: &str = "application/vnd.org.margo.component.compose.tar+gzip";
const ARTIFACT_TYPE: &str = "application/vnd.org.margo.component.compose+json";

pub(crate) struct Rig {
    pub(crate) host: String,
    pub(crate) runtime: ComposeRuntime,
    pub(crate) data: PathBuf,
    pub(crate) registry: Registry,
    /// `host:port` of the registry, which compose files know as `${MARGRAVE_REGISTRY}`.
    pub(crate) address: String,
    pub(crate) assignment: AssignmentId,
    server: JoinHandle<()>,
    agent: DeviceId,
    _temp: tempfile::TempDir,
}

/// Runs a test on the engine that a variable names.
pub(crate) async fn on<F: Future<Output = ()>>(variable: &str, test: impl FnOnce(Rig) -> F) {
    let Some(host) = std::env::var(variable).ok().filter(|host| !host.is_empty()) else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{variable} must name an engine in CI");
        #[allow(clippy::print_stderr, reason = "a skipped test says so, aloud")]
        {
            eprintln!("SKIPPED: {variable} names no container engine");
        }
        return;
    };
    test(Rig::new(host).await).await;
}

impl Rig {
    async fn new(host: String) -> Rig {
        let temp = tempfile::tempdir().unwrap();
        let registry = Registry::open(temp.path().join("registry")).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let allow = |_: &axum::http::request::Parts, _, _: Option<&RepositoryName>| Decision::Allow;
        let router = margrave_registry::router(registry.clone(), allow);
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let data = temp.path().join("device");
        let agent = DeviceId::parse(&format!("device-{}", uuid::Uuid::new_v4().simple())).unwrap();
        let runtime = runtime(&host, &data, &agent, &address);
        let assignment = AssignmentId::from_uuid(uuid::Uuid::new_v4());
        let rig = Rig { host, runtime, data, registry, address, assignment, server, agent, _temp: temp };
        rig.import_busybox().await;
        rig
    }

    /// Another agent process on the same data.
    pub(crate) fn restarted(&self) -> ComposeRuntime {
        runtime(&self.host, &self.data, &self.agent, &self.address)
    }

    /// The agent after somebody configured a collector.
    pub(crate) fn with_collector(&self, http_endpoint: &str) -> ComposeRuntime {
        let telemetry =
            Telemetry { http_endpoint: http_endpoint.to_owned(), grpc_endpoint: None, protocol: None };
        runtime_with(&self.host, &self.data, &self.agent, &self.address, Some(telemetry))
    }

    /// The agent when it is told to remove images that are not needed.
    pub(crate) fn removing_images(&self) -> ComposeRuntime {
        let runtime = self.restarted();
        runtime.let_images_go(true);
        runtime
    }

    /// Another device on the same engine.
    pub(crate) fn other_device(&self) -> ComposeRuntime {
        let agent = DeviceId::parse(&format!("device-{}", uuid::Uuid::new_v4().simple())).unwrap();
        runtime(&self.host, &self.data.with_file_name("other"), &agent, &self.address)
    }

    /// The registry cannot be reached any more.
    pub(crate) async fn cut_off(&self) {
        self.server.abort();
        // The listener goes with the task.
        let address = self.address.clone();
        until("the registry is gone", async || tokio::net::TcpStream::connect(&address).await.is_err()).await;
    }

    pub(crate) fn image(&self) -> String {
        format!("{}/busybox:1", self.address)
    }

    /// An image without a download: one static busybox, under a name of the registry.
    async fn import_busybox(&self) {
        let socket = self.host.strip_prefix("unix://").expect("tests use a unix socket");
        let http = Http::unix(socket, Limits::default());
        let path = format!(
            "/v1.41/images/create?fromSrc=-&repo={}/busybox:1&changes=ENV%20PATH%3D/bin",
            self.address
        );
        let answer = http.send(Request::post(path).bytes("application/x-tar", busybox())).await.unwrap();
        assert!(answer.status.is_success(), "{answer:?}");
    }

    /// Packs files as a Compose component and pushes it; `{IMAGE}` stands for busybox.
    pub(crate) async fn push(&self, component: &str, revision: &str, files: &[(&str, &str)]) -> Digest {
        let name = RepositoryName::parse(&format!("components/{component}")).unwrap();
        let archive = archive(component, files);
        let layer = Descriptor::of(LAYER_TYPE, &archive);
        let manifest = ImageManifest::artifact(ARTIFACT_TYPE, vec![layer]).to_bytes();
        self.registry.put_blob(&name, archive.into()).await.unwrap();
        self.registry.put_blob(&name, b"{}".to_vec().into()).await.unwrap();
        let tag = TagOrDigest::Tag(Tag::parse(revision).unwrap());
        self.registry.put_manifest(&name, &tag, IMAGE_MANIFEST, manifest.into()).await.unwrap()
    }

    /// Pushes a component that is only a compose file, and orders it.
    pub(crate) async fn compose(&self, component: &str, compose: &str) -> Order {
        self.push(component, "1.0.0", &[("compose.yaml", compose)]).await;
        self.order(component, "1.0.0")
    }

    /// As [`Rig::compose`], and it runs.
    pub(crate) async fn applied(&self, component: &str, compose: &str) -> Order {
        let order = self.compose(component, compose).await;
        self.runtime.apply(&order).await.unwrap();
        order
    }

    pub(crate) fn order(&self, component: &str, revision: &str) -> Order {
        Order {
            assignment: self.assignment,
            component: ComponentName::parse(component).unwrap(),
            kind: ProfileKind::Compose,
            repository: format!("oci://{}/components/{component}", self.address),
            revision: Revision::parse(revision).unwrap(),
            pin: None,
            images: Default::default(),
            values: vec![],
            wait: true,
            timeout: Some(Timeout { minutes: 1, seconds: 0 }),
        }
    }

    /// The one component that the runtime sees.
    pub(crate) async fn seen(&self) -> Observation {
        let mut seen = self.runtime.observe().await.unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }

    /// What was ordered, and nothing else, runs well.
    pub(crate) async fn check_runs(&self, order: &Order) {
        let seen = self.seen().await;
        assert_eq!((seen.fingerprint, seen.health), (Some(order.fingerprint()), Health::Healthy));
    }

    pub(crate) async fn health(&self) -> Health {
        self.seen().await.health
    }

    /// The Docker client on the same engine, as a person would use it.
    pub(crate) fn docker(&self, arguments: &[&str]) -> String {
        let output = Command::new("docker").arg("-H").arg(&self.host).args(arguments).output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "docker {arguments:?}: {said}");
        said.trim().to_owned()
    }

    pub(crate) fn project(&self, component: &str) -> String {
        format!("mg-{}-{component}", self.assignment.uuid().simple())
    }

    /// The container of a service of a component.
    pub(crate) fn container(&self, component: &str, service: &str) -> String {
        let project = format!("label=com.docker.compose.project={}", self.project(component));
        let service = format!("label=com.docker.compose.service={service}");
        self.docker(&["ps", "-aq", "--no-trunc", "--filter", &project, "--filter", &service])
    }

    pub(crate) fn exec(&self, container: &str, command: &str) -> String {
        self.docker(&["exec", container, "sh", "-c", command])
    }

    pub(crate) fn started_at(&self, container: &str) -> String {
        self.docker(&["inspect", "--format", "{{.Id}} {{.State.StartedAt}}", container])
    }

    /// What the engine has of a component: containers, networks, volumes.
    pub(crate) fn left(&self, component: &str) -> [String; 3] {
        let label = format!("label=com.docker.compose.project={}", self.project(component));
        let list = |what: &[&str]| self.docker(&[what, &["--filter", &label]].concat());
        [list(&["ps", "-aq"]), list(&["network", "ls", "-q"]), list(&["volume", "ls", "-q"])]
    }

    /// Leaves nothing behind on the engine.
    pub(crate) async fn finish(self) {
        for seen in self.runtime.observe().await.unwrap() {
            self.runtime.remove(seen.assignment, &seen.component).await.unwrap();
            let [containers, networks, volumes] = self.left(seen.component.as_str());
            assert_eq!((containers.as_str(), networks.as_str()), ("", ""));
            for volume in volumes.lines() {
                self.docker(&["volume", "rm", volume]);
            }
        }
        // Podman's list of images fails while one is being removed, and other tests are looking at it.
        if !self.is_podman() {
            self.docker(&["rmi", "-f", &self.image()]);
        }
    }

    pub(crate) fn is_podman(&self) -> bool {
        self.docker(&["version", "--format", "{{json .Server}}"]).contains("Podman")
    }
}

fn runtime(host: &str, data: &Path, agent: &DeviceId, registry: &str) -> ComposeRuntime {
    runtime_with(host, data, agent, registry, None)
}

fn runtime_with(
    host: &str,
    data: &Path,
    agent: &DeviceId,
    registry: &str,
    telemetry: Option<Telemetry>,
) -> ComposeRuntime {
    let settings = ComposeSettings {
        data: data.to_owned(),
        agent: agent.clone(),
        places: Places { named: Some(host.to_owned()), sockets: vec![] },
        telemetry,
        registry: Some(ImageRegistry { address: registry.to_owned(), login: None }),
    };
    let components = Components::new(Client::new(Hosts::new()), data).unwrap();
    ComposeRuntime::new(settings, components).unwrap()
}

/// Waits for a condition, with a deadline.
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn text(value: &str) -> ParameterValue {
    ParameterValue::Text(value.to_owned())
}

/// A gzipped tar with one top-level directory.
pub(crate) fn archive(top: &str, files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for (path, content) in files {
        let content = content.replace("{IMAGE}", "${MARGRAVE_REGISTRY}/busybox:1");
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, format!("{top}/{path}"), content.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

/// A root file system with busybox and the names it goes by.
pub(crate) fn busybox() -> Vec<u8> {
    let path = std::env::var_os("PATH").unwrap();
    let program = std::env::split_paths(&path).map(|d| d.join("busybox")).find(|p| p.is_file());
    let bytes = std::fs::read(program.expect("install busybox-static")).unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o755);
    tar.append_data(&mut header, "bin/busybox", &bytes[..]).unwrap();
    for applet in ["sh", "cat", "echo", "env", "sleep", "ls", "touch", "rm", "test", "true", "false"] {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        tar.append_link(&mut header, format!("bin/{applet}"), "busybox").unwrap();
    }
    let mut bytes = tar.into_inner().unwrap();
    bytes.flush().unwrap();
    bytes
}

macro_rules! on_engine {
    ($module:ident, $variable:literal: $($name:ident),* $(,)?) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                crate::rig::on($variable, super::$name).await;
            })*
        }
    };
}

/// What both engines must do.
macro_rules! on_engines {
    ($($name:ident),* $(,)?) => {
        on_engine! { docker, "MARGRAVE_TEST_DOCKER_HOST": $($name),* }
        on_engine! { podman, "MARGRAVE_TEST_PODMAN_HOST": $($name),* }
    };
}

pub(crate) use {on_engine, on_engines};

/// One service that says a word and stays, with a volume.
pub(crate) const WEB: &str = r#"
services:
  web:
    image: {IMAGE}
    command: [sh, -c, "echo $$GREETING; sleep 1000"]
    environment: {GREETING: "${GREETING:-hello}"}
    stop_signal: SIGKILL
    volumes: ["data:/data"]
volumes: {data: {}}
"#;
