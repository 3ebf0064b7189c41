//! The Compose model of a component, as Compose itself resolved it, and what we lay over it.
//!
//! `compose config --format json` reads the file, interpolates, merges and applies profiles; we never
//! parse a compose file ourselves. From its answer come the services to expect, the images to pull, and
//! the override file that adds our labels and the collector's variables to every service (OB-093).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName};
use margrave_core::report::{Failure, FailureCode};
use margrave_oci::archive::Listing;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::perishable::Perishable;
use super::record::ImageNote;
use super::unnamed::Volumes;

pub(super) const LABEL_ASSIGNMENT: &str = "io.margrave.assignment";
pub(super) const LABEL_COMPONENT: &str = "io.margrave.component";
pub(super) const LABEL_AGENT: &str = "io.margrave.agent";
/// On services that read files of their archive: Compose does not see that such a file changed, but it
/// does see a changed label, and then recreates the container.
const LABEL_FILES: &str = "io.margrave.files";
/// The same on services that are given values as files, by configs and secrets that stand in the compose file itself.
const LABEL_VALUES: &str = "io.margrave.values";

/// More would be a mistake or an attack on a device's memory.
const SERVICES_MAX: usize = 256;
const REPLICAS_MAX: u32 = 256;

/// By name.
pub(super) type Services = BTreeMap<String, Service>;

/// What a component consists of.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Model {
    pub services: Services,
    /// Networks and volumes that the project makes itself; external ones belong to somebody else.
    networks: BTreeSet<String>,
    volumes: BTreeSet<String>,
    pub perishable: BTreeSet<Perishable>,
    /// Volumes without a name that services are given back.
    pub given_back: Volumes,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Service {
    pub image: String,
    /// What the server says that this name means, as the engine calls it: `repository@sha256:…`.
    pub exact: Option<String>,
    pub platform: Option<String>,
    pub pull: Pull,
    pub replicas: u32,
    /// Other services whose namespaces it has: of its network, for talk between processes, of processes.
    pub joins: BTreeSet<String>,
    /// Other services whose volumes it has.
    volumes_from: BTreeSet<String>,
    /// The id of the image that its name means, once that is known.
    pub image_id: Option<String>,
    /// What to run instead of what the name means now.
    pub pin: Option<String>,
    pub note: Option<ImageNote>,
    reads_archive: bool,
    /// Where it may write among files of the archive, as it sees them.
    written: Vec<String>,
    /// What its configs and secrets hold that are no files, as a digest: some of it is secret.
    pub values: Option<Digest>,
    /// Relative bind mounts without content in the archive (PK-086), moved to where an update keeps them.
    moved: Vec<MovedMount>,
}

/// When to fetch a service's image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pull {
    Missing,
    /// Look for a newer one; what is there will do when the registry cannot be reached.
    Always,
    Never,
}

#[derive(Debug, Clone, PartialEq)]
struct MovedMount {
    source: PathBuf,
    target: String,
    read_only: bool,
    /// How, where the compose file says more than that: labels of SELinux, propagation.
    bind: Map<String, Value>,
}

/// The collector that every container is told about (section 6 of the observability rules).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// URL for OTLP over HTTP with protobuf, as containers reach it.
    pub http_endpoint: String,
    pub grpc_endpoint: Option<String>,
    /// `grpc` or `http/protobuf`; absent means the latter.
    pub protocol: Option<String>,
}

/// Whose component it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ownership<'a> {
    pub agent: &'a str,
    pub assignment: AssignmentId,
    pub component: &'a ComponentName,
}

#[derive(Deserialize)]
struct RawModel {
    #[serde(default)]
    services: BTreeMap<String, RawService>,
    #[serde(default)]
    networks: BTreeMap<String, Option<RawShared>>,
    #[serde(default)]
    volumes: BTreeMap<String, Option<RawShared>>,
    #[serde(default)]
    configs: BTreeMap<String, RawFile>,
    #[serde(default)]
    secrets: BTreeMap<String, RawFile>,
}

#[derive(Deserialize)]
struct RawService {
    image: Option<String>,
    platform: Option<String>,
    pull_policy: Option<String>,
    scale: Option<u32>,
    deploy: Option<RawDeploy>,
    provider: Option<Value>,
    #[serde(default)]
    configs: Vec<RawUse>,
    #[serde(default)]
    secrets: Vec<RawUse>,
    #[serde(default)]
    volumes: Vec<RawMount>,
    network_mode: Option<String>,
    ipc: Option<String>,
    pid: Option<String>,
    volumes_from: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RawDeploy {
    replicas: Option<u32>,
}

#[derive(Deserialize)]
struct RawUse {
    source: String,
}

#[derive(Deserialize)]
struct RawMount {
    #[serde(rename = "type")]
    kind: String,
    source: Option<String>,
    #[serde(default)]
    target: String,
    #[serde(default)]
    read_only: bool,
    bind: Option<Map<String, Value>>,
}

#[derive(Deserialize, Default)]
struct RawShared {
    #[serde(default)]
    external: bool,
    driver_opts: Option<BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
struct RawFile {
    file: Option<PathBuf>,
    /// As it is, with all variables in it replaced.
    content: Option<String>,
    /// The name of a variable.
    environment: Option<String>,
}

impl RawFile {
    /// What a service that uses it is given, where that is no file.
    fn value<'a>(&'a self, given: &Given<'a>) -> Option<(&'a str, Cow<'a, str>)> {
        match (&self.content, &self.environment) {
            (Some(content), _) => Some(("content", content.into())),
            (None, Some(name)) => Some(match given.variables.get(OsStr::new(name)) {
                Some(value) => ("variable", value.to_string_lossy()),
                // Compose may find it in a file of the archive.
                None => ("archive", given.archive.to_string().into()),
            }),
            (None, None) => None,
        }
    }
}

/// Where the values come from that Compose does not show.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub variables: &'a BTreeMap<OsString, OsString>,
    pub archive: Digest,
    /// So that equal values do not look alike on two components.
    pub project: &'a str,
    /// The very same ran well here: nothing is held against it that an older agent let pass.
    pub was_healthy: bool,
}

impl Model {
    /// Reads Compose's answer for the archive unpacked at `archive`, which has what is listed; other relative mounts move to
    /// `mounts`.
    pub(super) fn read(
        answer: &[u8],
        archive: &Path,
        mounts: &Path,
        listing: &Listing,
        given: &Given<'_>,
    ) -> Result<Self, Failure> {
        let raw: RawModel = serde_json::from_slice(answer).map_err(|error| {
            Failure::new(
                FailureCode::ArchiveInvalid,
                format!("Compose's reading of compose.yaml is not usable: {error}."),
            )
        })?;
        if raw.services.is_empty() {
            return Err(invalid("compose.yaml has no services to run.".into()));
        }
        if raw.services.len() > SERVICES_MAX {
            return Err(invalid(format!("compose.yaml has more than {SERVICES_MAX} services.")));
        }
        for (name, config) in &raw.configs {
            if let Some(file) = &config.file
                && !file.starts_with(archive)
            {
                return Err(invalid(format!(
                    "The config {name} reads {}, which is outside of the component's archive (PK-084).",
                    file.display()
                )));
            }
        }
        let mut perishable = BTreeSet::new();
        for (name, volume) in &raw.volumes {
            let options = volume.as_ref().and_then(|volume| volume.driver_opts.as_ref());
            let device = options.and_then(|options| options.get("device")?.as_str());
            if !device.is_some_and(|device| Path::new(device).starts_with(archive)) {
                continue;
            }
            if !given.was_healthy {
                return Err(invalid(format!(
                    "The volume {name} has its device in the component's archive, which an update replaces with all that is in \
                     it. Leave out the device, or mount a relative path in the service instead."
                )));
            }
            tracing::warn!(project = given.project, volume = %name, "a volume has its device in the component's archive; what is in it is lost with the next update");
            perishable.insert(Perishable::Volume(name.clone()));
        }
        let mut services = BTreeMap::new();
        for (name, service) in raw.services.iter() {
            let mut read = Service::read(name, service, &raw, archive, mounts, listing)?;
            perishable.extend(
                read.written
                    .iter()
                    .map(|target| Perishable::Mount { service: name.clone(), target: target.clone() }),
            );
            read.values = values(service, &raw, given);
            services.insert(name.clone(), read);
        }
        let own = |shared: BTreeMap<String, Option<RawShared>>| {
            shared
                .into_iter()
                .filter(|(_, s)| !s.as_ref().is_some_and(|s| s.external))
                .map(|(name, _)| name)
                .collect()
        };
        Ok(Model {
            services,
            networks: own(raw.networks),
            volumes: own(raw.volumes),
            perishable,
            given_back: Volumes::new(),
        })
    }

    /// The override file. JSON is YAML, and needs no quoting rules of our own.
    pub(super) fn overlay(
        &self,
        owner: Ownership<'_>,
        archive: Digest,
        telemetry: Option<&Telemetry>,
    ) -> Vec<u8> {
        let labels = Map::from_iter([
            (LABEL_ASSIGNMENT.to_owned(), json!(owner.assignment.to_string())),
            (LABEL_COMPONENT.to_owned(), json!(owner.component.as_str())),
            (LABEL_AGENT.to_owned(), json!(literal(owner.agent))),
        ]);
        let environment = telemetry.map(|telemetry| Value::Object(variables(telemetry)));
        let services: Map<String, Value> = self
            .services
            .iter()
            .map(|(name, service)| {
                let mut labels = labels.clone();
                if service.reads_archive {
                    labels.insert(LABEL_FILES.to_owned(), json!(archive.to_string()));
                }
                if let Some(values) = service.values {
                    labels.insert(LABEL_VALUES.to_owned(), json!(values.to_string()));
                }
                // Images are pulled by us, before anything is touched; Compose must not do it once more.
                let mut overlay = json!({"labels": labels, "pull_policy": "missing"});
                if let Some(pin) = &service.pin {
                    overlay["image"] = json!(pin);
                }
                if let Some(environment) = &environment {
                    overlay["environment"] = environment.clone();
                }
                let given_back = self.given_back.get(name).into_iter().flatten();
                let given_back = given_back.map(|(target, volume)| {
                    json!({"type": "volume", "source": given_back_as(volume), "target": literal(target)})
                });
                let mounts: Vec<Value> =
                    service.moved.iter().map(MovedMount::overlay).chain(given_back).collect();
                if !mounts.is_empty() {
                    overlay["volumes"] = mounts.into();
                }
                (name.clone(), overlay)
            })
            .collect();
        // Only labels that never change: a network with other labels is made anew, a volume cannot be.
        let shared = |names: &BTreeSet<String>| -> Map<String, Value> {
            names.iter().map(|name| (name.clone(), json!({"labels": labels}))).collect()
        };
        let mut overlay = Map::from_iter([("services".to_owned(), Value::Object(services))]);
        for (key, names) in [("networks", &self.networks), ("volumes", &self.volumes)] {
            if !names.is_empty() {
                overlay.insert(key.to_owned(), Value::Object(shared(names)));
            }
        }
        let given_back = self.given_back.values().flat_map(BTreeMap::values);
        for volume in given_back {
            let volumes = overlay.entry("volumes").or_insert_with(|| json!({}));
            volumes[given_back_as(volume)] = json!({"external": true, "name": volume});
        }
        let mut bytes = serde_json::to_vec_pretty(&overlay).expect("a JSON value has string keys");
        bytes.push(b'\n');
        bytes
    }

    /// Whether any service has files of ours mounted, from the archive or beside it.
    pub(super) fn mounts_files(&self) -> bool {
        self.services.values().any(|service| service.reads_archive || !service.moved.is_empty())
    }

    /// Directories that must exist before the engine mounts them.
    pub(super) fn moved_mounts(&self) -> impl Iterator<Item = &Path> {
        self.services.values().flat_map(|service| service.moved.iter().map(|mount| mount.source.as_path()))
    }
}

/// What a service is given by configs and secrets that are no files. Compose compares which of them a service uses, and not what
/// they hold: without this a changed value would never reach its container.
fn values(service: &RawService, model: &RawModel, given: &Given<'_>) -> Option<Digest> {
    let of = |uses: &[RawUse], files: &BTreeMap<String, RawFile>| -> Vec<Value> {
        let found = uses.iter().filter_map(|u| Some((&u.source, files.get(&u.source)?.value(given)?)));
        found.map(|(name, (kind, value))| json!([name, kind, value])).collect()
    };
    let (configs, secrets) = (of(&service.configs, &model.configs), of(&service.secrets, &model.secrets));
    if configs.is_empty() && secrets.is_empty() {
        return None;
    }
    Some(Digest::of(json!([given.project, configs, secrets]).to_string().as_bytes()))
}

impl Service {
    /// What has to be on the device.
    pub(super) fn needed(&self) -> &str {
        self.exact.as_deref().unwrap_or(&self.image)
    }

    /// Other services that it has something of, by their containers.
    pub(super) fn shares(&self) -> impl Iterator<Item = &String> {
        self.joins.iter().chain(&self.volumes_from)
    }

    fn read(
        name: &str,
        raw: &RawService,
        model: &RawModel,
        archive: &Path,
        mounts: &Path,
        listing: &Listing,
    ) -> Result<Self, Failure> {
        if raw.provider.is_some() {
            return Err(invalid(format!(
                "Service {name} asks for a provider program; only containers can be run."
            )));
        }
        let Some(image) = raw.image.clone() else {
            return Err(invalid(format!(
                "Service {name} has no image. Devices do not build images; push one to a registry and name it."
            )));
        };
        let replicas = raw.scale.or(raw.deploy.as_ref().and_then(|deploy| deploy.replicas)).unwrap_or(1);
        if replicas > REPLICAS_MAX {
            return Err(invalid(format!(
                "Service {name} asks for {replicas} replicas; at most {REPLICAS_MAX} are run."
            )));
        }
        let from_archive = |uses: &[RawUse], files: &BTreeMap<String, RawFile>| {
            uses.iter().any(|u| {
                files.get(&u.source).and_then(|f| f.file.as_ref()).is_some_and(|f| f.starts_with(archive))
            })
        };
        let mut reads_archive =
            from_archive(&raw.configs, &model.configs) || from_archive(&raw.secrets, &model.secrets);
        let (mut moved, mut written) = (Vec::new(), Vec::new());
        for mount in raw.volumes.iter().filter(|mount| mount.kind == "bind") {
            let Some(source) = mount.source.as_deref().map(Path::new) else { continue };
            let Ok(inside) = source.strip_prefix(archive) else { continue };
            if !inside.components().all(|part| matches!(part, std::path::Component::Normal(_))) {
                return Err(invalid(format!(
                    "Service {name} mounts {}, which is not a plain path.",
                    source.display()
                )));
            }
            // What lies there now says less: an engine makes a directory for a mount inside of another one.
            if listing.has(inside).unwrap_or_else(|| source.exists()) {
                reads_archive = true;
                // A single file is what the package says; who writes much does so beside it.
                if !mount.read_only && source.is_dir() {
                    written.push(mount.target.clone());
                }
            } else {
                moved.push(MovedMount {
                    source: mounts.join(inside),
                    target: mount.target.clone(),
                    read_only: mount.read_only,
                    bind: mount.bind.clone().unwrap_or_default(),
                });
            }
        }
        let pull = match raw.pull_policy.as_deref() {
            Some("never") => Pull::Never,
            Some("always" | "daily" | "weekly") => Pull::Always,
            _ => Pull::Missing,
        };
        Ok(Service {
            image,
            exact: None,
            platform: raw.platform.clone(),
            pull,
            replicas,
            joins: raw.joins(),
            volumes_from: raw.volumes_from(),
            image_id: None,
            pin: None,
            note: None,
            values: None,
            reads_archive,
            written,
            moved,
        })
    }
}

impl RawService {
    fn joins(&self) -> BTreeSet<String> {
        let modes = [&self.network_mode, &self.ipc, &self.pid].into_iter().flatten();
        modes.filter_map(|mode| mode.strip_prefix("service:")).map(str::to_owned).collect()
    }

    fn volumes_from(&self) -> BTreeSet<String> {
        // `name`, `name:ro`, or `container:name` of somebody else's.
        let names = self.volumes_from.iter().flatten().filter_map(|from| from.split(':').next());
        names.filter(|name| *name != "container").map(str::to_owned).collect()
    }
}

impl MovedMount {
    fn overlay(&self) -> Value {
        let mut mount = json!({
            "type": "bind",
            "source": literal(&self.source.to_string_lossy()),
            "target": literal(&self.target),
            "read_only": self.read_only,
        });
        // Compose adds this one to every mount that is written short. Without it a container stays as an older agent made it,
        // and we make the directory.
        let bind = self.bind.iter().filter(|(name, _)| *name != "create_host_path");
        let bind: Map<String, Value> = bind
            .map(|(name, value)| {
                (name.clone(), value.as_str().map_or_else(|| value.clone(), |text| json!(literal(text))))
            })
            .collect();
        if !bind.is_empty() {
            mount["bind"] = Value::Object(bind);
        }
        mount
    }
}

fn variables(telemetry: &Telemetry) -> Map<String, Value> {
    let Telemetry { http_endpoint, grpc_endpoint, protocol } = telemetry;
    let mut variables = Map::new();
    let mut set = |name: &str, value: &str| variables.insert(name.to_owned(), json!(literal(value)));
    set("HTTP_OTEL_EXPORTER_OTLP_ENDPOINT", http_endpoint);
    if let Some(endpoint) = grpc_endpoint {
        set("GRPC_OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
    }
    if let Some(protocol) = protocol {
        set("OTEL_EXPORTER_OTLP_PROTOCOL", protocol);
    }
    variables
}

/// What a volume that has no name is called in our file; a component's own have no such names.
fn given_back_as(volume: &str) -> String {
    format!("margrave.given-back.{volume}")
}

/// Compose interpolates our file too; a dollar sign is written twice to mean itself.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn invalid(message: String) -> Failure {
    Failure::new(FailureCode::ArchiveInvalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: Value) -> Result<Model, Failure> {
        read_with(answer, &BTreeMap::new(), false)
    }

    fn read_with(
        answer: Value,
        variables: &BTreeMap<OsString, OsString>,
        was_healthy: bool,
    ) -> Result<Model, Failure> {
        Model::read(
            answer.to_string().as_bytes(),
            Path::new("/data/archive"),
            Path::new("/data/mounts"),
            &Listing::default(),
            &Given { variables, archive: Digest::of(b"a"), project: "mg-1", was_healthy },
        )
    }

    #[test]
    fn what_stands_in_configs_and_secrets_tells_a_service_apart_from_how_it_was() {
        let labels = |content: &str, password: &str| {
            let answer = json!({
                "services": {
                    "web": {"image": "h/web:1", "configs": [{"source": "site"}], "secrets": [{"source": "pw"}]},
                    "db": {"image": "h/db:1"},
                },
                "configs": {"site": {"content": content}},
                "secrets": {"pw": {"environment": "PW"}},
            });
            let variables = BTreeMap::from([("PW".into(), password.into())]);
            let overlay = overlay(&read_with(answer, &variables, false).unwrap(), None);
            assert_eq!(overlay["services"]["db"]["labels"].get(LABEL_VALUES), None, "it has none");
            let text = overlay.to_string();
            assert!(!text.contains("hunter2") && !text.contains("port=1"), "{text}");
            overlay["services"]["web"]["labels"][LABEL_VALUES].as_str().unwrap().to_owned()
        };
        let first = labels("port=1", "hunter2");
        assert_eq!(first, labels("port=1", "hunter2"));
        assert_ne!(first, labels("port=2", "hunter2"));
        assert_ne!(first, labels("port=1", "hunter3"));
    }

    fn overlay(model: &Model, telemetry: Option<&Telemetry>) -> Value {
        let component = ComponentName::parse("shop").unwrap();
        let owner = Ownership {
            agent: "line$1",
            assignment: AssignmentId::parse("0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11").unwrap(),
            component: &component,
        };
        serde_json::from_slice(&model.overlay(owner, Digest::of(b"a"), telemetry)).unwrap()
    }

    #[test]
    fn services_images_and_replicas_are_read_as_compose_resolved_them() {
        let model = read(json!({
            "services": {
                "web": {"image": "h/web:1", "platform": "linux/arm64", "deploy": {"replicas": 3}},
                "job": {"image": "h/job:1", "pull_policy": "always", "scale": 0},
                "old": {"image": "h/old:1", "pull_policy": "never", "build": {"context": "/data/archive"}},
            },
        }))
        .unwrap();
        let summary: Vec<_> = model.services.iter().map(|(n, s)| (n.as_str(), s.replicas, s.pull)).collect();
        assert_eq!(summary, [("job", 0, Pull::Always), ("old", 1, Pull::Never), ("web", 3, Pull::Missing)]);
        assert_eq!(model.services["web"].platform.as_deref(), Some("linux/arm64"));
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_service_named() {
        for (answer, word) in [
            (json!({"services": {}}), "no services"),
            (json!({"services": {"web": {"build": {"context": "."}}}}), "web has no image"),
            (
                json!({"services": {"web": {"image": "a", "provider": {"type": "x"}}}}),
                "web asks for a provider",
            ),
            (json!({"services": {"web": {"image": "a", "scale": 1000}}}), "web asks for 1000"),
            (json!({"services": []}), "not usable"),
        ] {
            let failure = read(answer).unwrap_err();
            assert_eq!(failure.code, FailureCode::ArchiveInvalid);
            assert!(failure.message.contains(word), "{failure}");
        }
    }

    #[test]
    fn pk_084_a_config_outside_of_the_archive_is_refused() {
        let with =
            |file: &str| read(json!({"services": {"a": {"image": "a"}}, "configs": {"c": {"file": file}}}));
        assert!(with("/data/archive/c.conf").is_ok());
        assert!(with("/etc/shadow").unwrap_err().message.contains("PK-084"));
        assert!(with("/data/archive-2/c.conf").is_err());
    }

    #[test]
    fn a_volume_that_an_update_would_lose_is_refused() {
        let with = |device: &str, was_healthy: bool| {
            let options = json!({"type": "none", "o": "bind", "device": device});
            let volumes = json!({"rows": {"driver_opts": options}, "b": null});
            let answer = json!({"services": {"a": {"image": "a"}}, "volumes": volumes});
            read_with(answer, &BTreeMap::new(), was_healthy)
        };
        assert!(with("/srv/rows", false).is_ok());
        let failure = with("/data/archive/rows", false).unwrap_err();
        assert!(
            failure.code == FailureCode::ArchiveInvalid && failure.message.contains("volume rows"),
            "{failure}"
        );
        // What ran well here is mended and gone back to, whatever is known today.
        let known = with("/data/archive/rows", true).unwrap();
        assert_eq!(known.perishable, [Perishable::Volume("rows".into())].into());
    }

    #[test]
    fn how_a_moved_mount_is_bound_goes_along_and_what_compose_adds_does_not() {
        let moved = |bind: Value| {
            let mount =
                json!({"type": "bind", "source": "/data/archive/rows", "target": "/rows", "bind": bind});
            let model = read(json!({"services": {"a": {"image": "a", "volumes": [mount]}}})).unwrap();
            overlay(&model, None)["services"]["a"]["volumes"][0].clone()
        };
        assert_eq!(moved(json!({"create_host_path": true})).get("bind"), None);
        assert_eq!(moved(json!({"create_host_path": true, "selinux": "Z"}))["bind"], json!({"selinux": "Z"}));
    }

    #[test]
    fn ob_093_every_service_gets_our_labels_and_the_collector() {
        let model = read(json!({
            "services": {"web": {"image": "a", "configs": [{"source": "c"}]}, "db": {"image": "b"}},
            "configs": {"c": {"file": "/data/archive/c.conf"}},
            "networks": {"default": {"ipam": {}}, "plant": {"external": true}, "none": null},
            "volumes": {"rows": {}, "shared": {"external": true}},
        }))
        .unwrap();
        let plain = overlay(&model, None);
        let labels = json!({
            "io.margrave.assignment": "0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11",
            "io.margrave.component": "shop",
            "io.margrave.agent": "line$$1",
        });
        assert_eq!(plain["services"]["db"], json!({"labels": labels, "pull_policy": "missing"}));
        assert_eq!(plain["services"]["web"]["labels"]["io.margrave.files"], Digest::of(b"a").to_string());
        assert_eq!(plain["networks"], json!({"default": {"labels": labels}, "none": {"labels": labels}}));
        assert_eq!(plain["volumes"], json!({"rows": {"labels": labels}}));

        let telemetry = Telemetry {
            http_endpoint: "http://c:4318/$x".into(),
            grpc_endpoint: None,
            protocol: Some("grpc".into()),
        };
        let told = overlay(&model, Some(&telemetry));
        for service in ["web", "db"] {
            assert_eq!(
                told["services"][service]["environment"],
                json!({"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/$$x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
            );
        }
    }

    #[test]
    fn pk_086_relative_mounts_without_content_live_where_an_update_keeps_them() {
        let temp = tempfile::tempdir().unwrap();
        let (archive, mounts) = (temp.path().join("archive"), temp.path().join("mounts"));
        // The engine made it, for a mount inside of another one.
        std::fs::create_dir_all(archive.join("data")).unwrap();
        let listing = [PathBuf::from("web.conf")].into_iter().collect();
        let mount = |source: &str, target: &str| json!({"type": "bind", "source": source, "target": target});
        let answer = json!({"services": {
            "db": {"image": "a", "volumes": [
                mount(archive.join("data").to_str().unwrap(), "/rows"),
                mount("/dev/ttyS0", "/tty"),
                {"type": "volume", "source": "v", "target": "/v"},
            ]},
            "web": {"image": "a", "volumes": [mount(archive.join("web.conf").to_str().unwrap(), "/conf")]},
            "top": {"image": "a", "volumes": [mount(archive.to_str().unwrap(), "/app")]},
        }});
        let given = Given {
            variables: &BTreeMap::new(),
            archive: Digest::of(b"a"),
            project: "mg-1",
            was_healthy: false,
        };
        let model = Model::read(answer.to_string().as_bytes(), &archive, &mounts, &listing, &given).unwrap();
        assert_eq!(model.moved_mounts().collect::<Vec<_>>(), [mounts.join("data")]);
        let whole = Perishable::Mount { service: "top".into(), target: "/app".into() };
        assert_eq!(model.perishable, [whole].into());
        let overlay = overlay(&model, None);
        let moved =
            json!([{"type": "bind", "source": mounts.join("data"), "target": "/rows", "read_only": false}]);
        assert_eq!(overlay["services"]["db"]["volumes"], moved);
        assert_eq!(overlay["services"]["db"]["labels"].get("io.margrave.files"), None);
        for service in ["web", "top"] {
            assert!(overlay["services"][service]["labels"].get("io.margrave.files").is_some());
        }
        assert_eq!(overlay["services"]["web"].get("volumes"), None);
    }
}
