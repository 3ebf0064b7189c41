//! A server with one device on a real engine, and the image that its applications are made of.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::engine::Engine;
use crate::stage::{Running, Stage, wait_for};

const LABEL_PROJECT: &str = "com.docker.compose.project";
const LABEL_SERVICE: &str = "com.docker.compose.service";
pub(crate) const LABEL_AGENT: &str = "io.margrave.agent";

/// Where busybox is in the server's registry; compose files put the registry in front.
pub(crate) const BUSYBOX: &str = "e2e/busybox:1";

/// A web service that says its greeting, has a health check and keeps data in a volume.
pub(crate) const WEB: &str = r#"services:
  web:
    image: ${MARGRAVE_REGISTRY}/e2e/busybox:1
    command: ["sh", "-c", "mkdir -p /www; echo \"$$GREETING\" > /www/index.html; exec httpd -f -p 8080 -h /www"]
    environment:
      GREETING: ${GREETING}
    volumes: ["data:/data"]
    stop_signal: SIGKILL
    healthcheck:
      test: ["CMD", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8080/"]
      interval: 1s
      timeout: 10s
      retries: 30
volumes:
  data:
"#;

/// One that takes its time to become healthy, so that something can happen meanwhile.
pub(crate) const SLOW: &str = r#"services:
  main:
    image: ${MARGRAVE_REGISTRY}/e2e/busybox:1
    command: ["sh", "-c", "sleep 3; touch /ready; exec sleep 1000"]
    environment:
      GREETING: ${GREETING}
    stop_signal: SIGKILL
    healthcheck:
      test: ["CMD", "test", "-e", "/ready"]
      interval: 1s
      timeout: 10s
      retries: 30
"#;

/// Dropped last of all: declare it before the agents, or they repair what is being cleared away.
pub(crate) struct Plant {
    pub(crate) stage: Stage,
    pub(crate) engine: Engine,
    /// The device's name; engines are shared, so no other test has the same.
    pub(crate) device: String,
}

impl Deref for Plant {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Plant {
    /// A server whose registry has busybox, and a device that has joined and does not run yet. The engine does
    /// not have the image: the device has to pull it, as itself. `None` where there is no engine.
    pub(crate) fn start() -> Option<Plant> {
        let plant = Plant::start_with(&["--registry-address", "127.0.0.1:{local}"])?;
        plant.join(&plant.device);
        Some(plant)
    }

    /// The same with a server of these arguments, and a device that has not joined.
    pub(crate) fn start_with(arguments: &[&str]) -> Option<Plant> {
        Some(Plant::on(Engine::named()?, arguments))
    }

    /// The same on another engine.
    pub(crate) fn on(host: String, arguments: &[&str]) -> Plant {
        let stage = Stage::start_with(arguments);
        let engine = Engine::new(host, stage.path("docker"));
        let device = format!("line-{}-{}", std::process::id(), stage.local);
        let plant = Plant { stage, engine, device };
        plant.engine.login(&plant.registry(), "operator", &plant.token());
        plant.push(BUSYBOX);
        plant
    }

    /// The server's registry as the engine reaches it.
    pub(crate) fn registry(&self) -> String {
        format!("127.0.0.1:{}", self.stage.local)
    }

    /// The operator's token.
    pub(crate) fn token(&self) -> String {
        self.context("token")
    }

    /// Something that the command line knows about the server.
    pub(crate) fn context(&self, name: &str) -> String {
        let text = std::fs::read(self.path("server/context.json")).expect("the server wrote its context");
        let context: Value = serde_json::from_slice(&text).expect("the context is JSON");
        context[name].as_str().expect("a text").to_owned()
    }

    /// Pushes busybox under a name, as a vendor does, and leaves nothing of it in the engine.
    pub(crate) fn push(&self, image: &str) {
        self.push_with(image, |_| {});
    }

    /// The same with something else in it.
    pub(crate) fn push_with(&self, image: &str, change: impl FnOnce(&Path)) {
        let image = format!("{}/{image}", self.registry());
        self.engine.import_busybox(&self.scratch(&image), &image, change);
        self.push_away(&image);
    }

    /// The same for another kind of machine, as the image says of itself.
    pub(crate) fn push_for(&self, image: &str, architecture: &str, change: impl FnOnce(&Path)) {
        let image = format!("{}/{image}", self.registry());
        self.engine.load_busybox(&self.scratch(&image), &image, architecture, change);
        self.push_away(&image);
    }

    fn scratch(&self, image: &str) -> PathBuf {
        self.path(&format!("image-{}", image.replace(['/', ':'], "-")))
    }

    fn push_away(&self, image: &str) {
        self.engine.docker(&["push", image]);
        self.engine.docker(&["rmi", image]);
    }

    /// What the only image of a package is to every device: `repository@sha256:…`, without the registry.
    pub(crate) fn exact_image(&self, package: &str) -> String {
        let image = self.json(&["package", "show", package])["images"][0].clone();
        let text = |key: &str| image[key].as_str().unwrap_or_else(|| panic!("{key} of {image}")).to_owned();
        let name = text("name").replace("${MARGRAVE_REGISTRY}/", "");
        format!("{}@{}", name.split(':').next().unwrap_or_default(), text("digest"))
    }

    pub(crate) fn agent(&self) -> Running {
        self.run_agent(&self.device, &["--engine", &self.engine.host])
    }

    pub(crate) fn deploy(&self, package: &str) {
        self.json(&["deploy", package, "--to", &self.device]);
    }

    pub(crate) fn update(&self, deployment: &str, greeting: &str) {
        self.json(&["deployment", "update", deployment, "--set", &format!("greeting={greeting}")]);
    }

    pub(crate) fn wait(&self, deployment: &str, state: &str) -> Value {
        self.wait_state(&self.device, deployment, state)
    }

    pub(crate) fn steps(&self, deployment: &str) -> Vec<String> {
        self.history(&self.device, deployment)
    }

    /// The Compose project of a component, as the engine knows it. Nobody else can have the same.
    pub(crate) fn project(&self, deployment: &str, component: &str) -> String {
        let assignment = self.assignment(&self.device, deployment).expect("it is deployed");
        let id = assignment["id"].as_str().expect("an id").replace('-', "");
        format!("mg-{id}-{component}")
    }

    /// The one container of a service; there must be no second.
    pub(crate) fn container(&self, deployment: &str, component: &str, service: &str) -> String {
        let mut found = self.containers(&self.project(deployment, component), service);
        assert_eq!(found.len(), 1, "containers of {service} in {deployment}/{component}: {found:?}");
        found.remove(0)
    }

    pub(crate) fn containers(&self, project: &str, service: &str) -> Vec<String> {
        self.engine.containers(&[(LABEL_PROJECT, project), (LABEL_SERVICE, service)])
    }

    pub(crate) fn wait_container(&self, deployment: &str, component: &str, service: &str) -> String {
        let project = self.project(deployment, component);
        wait_for(&format!("a container of {service} is there"), || self.containers(&project, service).pop())
    }

    /// Which container runs, and since when: the same answer twice means that nobody touched it.
    pub(crate) fn run_of(&self, deployment: &str, component: &str, service: &str) -> String {
        let container = self.container(deployment, component, service);
        self.engine.inspect(&container, "{{.Id}} {{.State.StartedAt}} {{.State.Running}}")
    }

    /// Everything on the engine that is this device's.
    pub(crate) fn all_containers(&self) -> Vec<String> {
        self.engine.containers(&[(LABEL_AGENT, &self.device)])
    }

    /// Containers, networks and volumes of a project.
    pub(crate) fn left_of(&self, project: &str) -> [Vec<String>; 3] {
        let label = (LABEL_PROJECT, project);
        [self.engine.containers(&[label]), self.engine.networks(label), self.engine.volumes(label)]
    }
}

impl Drop for Plant {
    fn drop(&mut self) {
        self.engine.clear(&self.device, &self.registry());
    }
}
