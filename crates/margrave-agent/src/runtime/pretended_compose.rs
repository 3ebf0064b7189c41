//! A Compose that does what a test says, on an engine whose containers are files: what no real one does when it is asked to, and what
//! real ones are told.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use margrave_core::device::{Health, Order};
use margrave_core::digest::Digest;
use margrave_core::id::DeviceId;
use margrave_core::report::Failure;
use margrave_http::StatusCode;
use margrave_oci::client::{Client, Hosts};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::components::Components;
use super::compose::{ComposeRuntime, ComposeSettings};
use super::engine::Places;
use super::pretended_engine::{Answer, PretendedEngine};
use super::program::Compose;
use super::project::{ProjectDirectory, ProjectName};
use super::record::{Fetched, Record};
use super::tests::order;

/// Reads `model.json`; where it brings something up it notes how it was told to, and does as `up.sh` says.
const PROGRAM: &str = r#"#!/bin/sh
cd "${0%/*}" || exit 1
all="$*"
case "$all" in
*" config "*) cat model.json ;;
*) echo "${all#*--no-build }" >> up.log && . ./up.sh ;;
esac
"#;

/// A device with one component, whose archive is here.
pub(super) struct PretendedDevice {
    state: tempfile::TempDir,
    pub(super) engine: PretendedEngine,
    runtime: ComposeRuntime,
    order: Order,
}

impl PretendedDevice {
    /// With these services, as Compose resolves them.
    pub(super) async fn with(services: Value) -> Self {
        let state = tempfile::tempdir().unwrap();
        let at = |name: &str| state.path().join(name);
        for directory in ["containers", "next"] {
            fs::create_dir(at(directory)).unwrap();
        }
        fs::write(at("model.json"), json!({ "services": services }).to_string()).unwrap();
        fs::write(at("docker-compose"), PROGRAM).unwrap();
        fs::set_permissions(at("docker-compose"), fs::Permissions::from_mode(0o755)).unwrap();
        let containers = at("containers");
        let engine = PretendedEngine::start(move |asked| answer(&containers, asked));
        let data = at("data");
        fs::create_dir(&data).unwrap();
        let settings = ComposeSettings {
            data: data.clone(),
            agent: DeviceId::parse("line-1").unwrap(),
            places: Places { named: Some(engine.address()), sockets: vec![] },
            telemetry: None,
            registry: None,
        };
        let components = Components::new(Client::new(Hosts::new()), &data).unwrap();
        let runtime = ComposeRuntime::new(settings, components).unwrap();
        let archive = archive();
        let digest = Digest::of(&archive);
        fs::write(data.join("artifacts").join(digest.hex()), archive).unwrap();
        let order = Order { pin: Some(Digest::of(b"manifest")), ..order("web") };
        let device = PretendedDevice { state, engine, runtime, order };
        device.has_compose("2.40.3").await;
        let directory = device.directory();
        directory.create().unwrap();
        directory.note_fetched(Fetched::new(device.order.fingerprint(), digest)).unwrap();
        device
    }

    /// From here on another version.
    pub(super) async fn has_compose(&self, version: &str) {
        let program = self.state.path().join("docker-compose");
        *self.runtime.compose.lock().await = Some(Compose::at(program, version));
    }

    fn directory(&self) -> ProjectDirectory {
        let project = ProjectName::of(self.order.assignment, &self.order.component);
        ProjectDirectory::new(&self.runtime.projects(), &project, &self.runtime.written)
    }

    pub(super) fn record(&self) -> Record {
        self.directory().record().unwrap()
    }

    fn path(&self, directory: &str, id: &str) -> PathBuf {
        self.state.path().join(directory).join(id)
    }

    /// What bringing up does from here on: a shell script, in a directory with `containers`, which has a file for each by its id, and
    /// `next`. What it was told is in `$all`.
    pub(super) fn brings_up(&self, script: &str) {
        fs::write(self.state.path().join("up.sh"), script).unwrap();
    }

    /// A container that is there. Ids are letters and digits, as engines make them.
    pub(super) fn put(&self, id: &str, service: &str, state: &Value) {
        self.write("containers", id, service, state);
    }

    /// One that the script may put there.
    pub(super) fn put_next(&self, id: &str, service: &str, state: &Value) {
        self.write("next", id, service, state);
    }

    fn write(&self, directory: &str, id: &str, service: &str, state: &Value) {
        let project = ProjectName::of(self.order.assignment, &self.order.component);
        let container = json!({
            "Id": id, "State": state, "HostConfig": {},
            "Config": {"Labels": {"com.docker.compose.project": project.as_str(),
                "com.docker.compose.service": service, "com.docker.compose.config-hash": "hash"}},
        });
        fs::write(self.path(directory, id), container.to_string()).unwrap();
    }

    /// Comes back when a container was looked at so many times since Compose was told something. From then on the script finds `go`.
    pub(super) async fn looked_at(&self, id: &str, times: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let question = format!("GET /containers/{id}/json");
        let asked = || self.engine.asked().iter().filter(|asked| **asked == question).count();
        let up = self.state.path().join("up.log");
        let mut before = None;
        loop {
            if fs::metadata(&up).is_ok_and(|up| up.len() > 0)
                && asked() >= *before.get_or_insert_with(asked) + times
            {
                break;
            }
            assert!(Instant::now() < deadline, "nobody looked");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        fs::write(self.state.path().join("go"), "").unwrap();
    }

    pub(super) fn take_away(&self, id: &str) {
        fs::remove_file(self.path("containers", id)).unwrap();
    }

    /// Looks how it is.
    pub(super) async fn look(&self) -> Health {
        let mut seen = self.runtime.look().await.unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0).health
    }

    /// Applies the order; also how Compose was told to bring it up meanwhile, each time.
    pub(super) async fn apply(&self) -> (Result<(), Failure>, Vec<String>) {
        let log = self.state.path().join("up.log");
        fs::write(&log, "").unwrap();
        let applied = self.runtime.apply_order(&self.order).await;
        (applied, fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect())
    }
}

/// One that runs, with a health check that says so.
pub(super) fn running(health: &str) -> Value {
    json!({"Status": "running", "StartedAt": "2026-11-16T12:00:00Z", "Health": {"Status": health, "Log": null}})
}

/// One that ended, and what the engine says of that.
pub(super) fn exited(code: i64, error: &str) -> Value {
    json!({"Status": "exited", "ExitCode": code, "Error": error, "StartedAt": "2026-11-16T12:00:00Z",
        "FinishedAt": "2026-11-16T12:00:01Z"})
}

fn answer(containers: &Path, asked: &str) -> Answer {
    let gone = || Answer::Refused(StatusCode::NOT_FOUND, "no such container");
    match asked.strip_prefix("GET ").unwrap_or_default() {
        "/_ping" => Answer::Json(json!("OK")),
        asked if asked.starts_with("/containers/json") => {
            let files = fs::read_dir(containers).unwrap().map(|entry| entry.unwrap().path());
            let here = files.map(|file| serde_json::from_slice::<Value>(&fs::read(file).unwrap()).unwrap());
            let listed = here.map(|c| json!({"Id": c["Id"], "Labels": c["Config"]["Labels"]}));
            Answer::Json(listed.collect())
        }
        asked if asked.starts_with("/images/") => Answer::Json(json!({"Id": "sha256:abc"})),
        asked => {
            let id = asked.strip_prefix("/containers/").and_then(|rest| rest.strip_suffix("/json"));
            match id.and_then(|id| fs::read(containers.join(id)).ok()) {
                Some(container) => Answer::Bytes(container),
                None => gone(),
            }
        }
    }
}

fn archive() -> Vec<u8> {
    let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(gzip);
    let mut header = tar::Header::new_ustar();
    header.set_size(0);
    header.set_mode(0o644);
    tar.append_data(&mut header, "web/compose.yaml", &b""[..]).unwrap();
    tar.into_inner().unwrap().finish().unwrap()
}
