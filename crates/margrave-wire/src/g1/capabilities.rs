//! Device capabilities: [`Capabilities`] ↔ JSON in the two models of this generation.
//!
//! The roles model (S1-OAS) says what a device is and puts what it has under `resources`; the flat model (late
//! snapshots) lists runtimes and types like the newer generation. Either is read into the newer one's
//! `properties`, because those are what the selectors of applications point into. We write the roles model.

use margrave_core::capabilities::{Capabilities, Cpu, Hosting};
use margrave_core::constraints::Quantity;
use margrave_core::package::ProfileKind;
use serde_json::{Map, Value, json};

use crate::body::{BodyError, read_body};
use crate::description::constraints::ARCHITECTURES;
use crate::g1::check_kind;
use crate::g2::EXTENSION;
use crate::g2::capabilities::{
    Additions, INTERFACES, LIST_LENGTH_MAX, Maker, PERIPHERALS, TEXT_LENGTH_MAX, extension, read_extension,
    read_labels,
};
use crate::tree::{At, Content, Findings};

const API_VERSION: &str = "device.margo.org/v1alpha1";
const KIND: &str = "DeviceCapabilitiesManifest";

/// Where our agent puts labels, for which this generation has no place.
const LABELS: &str = "labels";

/// The roles of the roles model (MI-G1-176) and what they run.
const ROLES: [(&str, Option<ProfileKind>); 4] = [
    ("Standalone Cluster", Some(ProfileKind::Helm)),
    ("Cluster Leader", Some(ProfileKind::Helm)),
    ("Standalone Device", Some(ProfileKind::Compose)),
    ("Gateway", None),
];

/// Fields whose presence says that a device of the flat model hosts workloads (MI-G1-177). `cpu` is the name
/// that one snapshot has for `cpus`.
const HOSTING: [&str; 9] = [
    "cpus",
    "cpu",
    "memory",
    "storage",
    "peripherals",
    "interfaces",
    "otelCollector",
    "supportedRuntimes",
    "supportedDeploymentTypes",
];

/// The body of a capabilities report in the roles model (MI-G1-174 to MI-G1-176).
pub fn write(capabilities: &Capabilities) -> Vec<u8> {
    let mut properties = json!({
        "id": capabilities.device.as_str(),
        "vendor": capabilities.vendor,
        "modelNumber": capabilities.model_number,
        "serialNumber": capabilities.serial_number,
    });
    let mut roles: Vec<&str> = Vec::new();
    match &capabilities.hosting {
        // What hosts nothing and still has a client is a gateway.
        None => roles.push("Gateway"),
        Some(hosting) => {
            let runs = |kind| hosting.deployment_types.contains(&kind);
            if runs(ProfileKind::Helm) {
                roles.push("Standalone Cluster");
            }
            if runs(ProfileKind::Compose) || roles.is_empty() {
                roles.push("Standalone Device");
            }
            properties["resources"] = resources(capabilities, hosting);
        }
    }
    properties["roles"] = json!(roles);
    let mut body = json!({ "apiVersion": API_VERSION, "kind": KIND, "properties": properties });
    let mut extension = extension(capabilities);
    if !capabilities.labels.is_empty() {
        extension.insert(LABELS.to_owned(), json!(capabilities.labels));
    }
    if !extension.is_empty() {
        body[EXTENSION] = Value::Object(extension);
    }
    body.to_string().into_bytes()
}

/// One `cpu` object is all the model has; the largest entry is the one that most applications fit.
fn resources(capabilities: &Capabilities, hosting: &Hosting) -> Value {
    let mut resources = json!({});
    let largest = hosting.cpus.iter().max_by(|a, b| a.cores.total_cmp(&b.cores));
    if let Some(Cpu { cores, architecture }) = largest {
        resources["cpu"] = json!({ "cores": number(*cores) });
        if let Some(architecture) = architecture {
            resources["cpu"]["architectures"] = json!([architecture]);
        }
    }
    for (key, bytes) in [("memory", hosting.memory_bytes), ("storage", hosting.storage_bytes)] {
        if let Some(bytes) = bytes {
            resources[key] = Quantity(bytes).to_string().into();
        }
    }
    for key in ["peripherals", "interfaces"] {
        resources[key] = capabilities.properties.get(key).cloned().unwrap_or_else(|| json!([]));
    }
    resources
}

/// Whole numbers are written as such: several clients and servers read them into integers.
fn number(cores: f64) -> Value {
    if cores.fract() == 0.0 && (0.0..1e9).contains(&cores) { json!(cores as u64) } else { json!(cores) }
}

/// What a device says it is and can do, in either model. Unknown fields are ignored (MI-G1-189).
pub fn read(bytes: &[u8]) -> Result<Capabilities, BodyError> {
    read_body(bytes, read_root)
}

fn read_root(root: &At<'_>, findings: &mut Findings) -> Option<Capabilities> {
    if !findings.is_map(root, "MI-G1-174") {
        return None;
    }
    check_kind(root, KIND, "MI-G1-174", findings);
    let at = findings.required_map(root, "properties", "MI-G1-174")?;
    let maker = Maker::read(&at, "MI-G1-173", "MI-G1-175", findings);
    let mut reading = Reading { properties: at.node.to_object(), findings };
    let hosting = if at.has("roles") || at.has("resources") {
        reading.roles_model(&at)
    } else if HOSTING.iter().any(|key| at.field(key).is_some()) {
        reading.flat_model(&at)
    } else {
        None
    };
    let Reading { properties, findings } = reading;
    let mut labels = read_labels(root, findings);
    if let (true, Some(at)) = (labels.is_empty(), root.field(EXTENSION)) {
        labels = read_labels(&at, findings);
    }
    let Additions { simulated, agent_version, overrides, holds, looked, blind } = read_extension(root);
    let Maker { device, vendor, model_number, serial_number } = maker?;
    Some(Capabilities {
        device,
        vendor,
        model_number,
        serial_number,
        hosting,
        properties,
        labels,
        simulated,
        agent_version,
        overrides,
        holds,
        looked,
        blind,
    })
}

/// Reads one of the two models into [`Hosting`] and rewrites `properties` as the newer generation has them.
struct Reading<'f> {
    properties: Map<String, Value>,
    findings: &'f mut Findings,
}

impl Reading<'_> {
    fn roles_model(&mut self, at: &At<'_>) -> Option<Hosting> {
        let mut types = Vec::new();
        let mut hosts = false;
        for role in self.list(at, "roles", "MI-G1-176", true) {
            let Some(text) = self.findings.text(&role, "MI-G1-176") else { continue };
            // Samples ignore the case of the enumeration (AMB-32).
            match ROLES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
                Some((_, kind)) => {
                    hosts |= kind.is_some();
                    types.extend(*kind);
                }
                None => {
                    let known = ROLES.map(|(name, _)| name).join(", ");
                    self.findings.add(role.place, "MI-G1-176", format!("must be one of {known}"));
                }
            }
        }
        if !hosts && !at.has("resources") {
            return None;
        }
        // The prose demands resources of hosting roles, the schema none of their parts.
        let resources = match hosts {
            true => self.findings.required_map(at, "resources", "MI-G1-176")?,
            false => at.field("resources").filter(|at| self.findings.is_map(at, "MI-G1-176"))?,
        };
        self.properties.shift_remove("resources");
        let (cpus, memory_bytes, storage_bytes) = self.resources(&resources, false);
        if !hosts {
            return None;
        }
        types.sort();
        types.dedup();
        let names: Vec<&str> = types.iter().map(|kind| kind.as_str()).collect();
        self.properties.insert("supportedRuntimes".into(), json!(["oci"]));
        self.properties.insert("supportedDeploymentTypes".into(), json!(names));
        Some(Hosting { cpus, memory_bytes, storage_bytes, deployment_types: types })
    }

    fn flat_model(&mut self, at: &At<'_>) -> Option<Hosting> {
        let (cpus, memory_bytes, storage_bytes) = self.resources(at, true);
        self.properties.shift_remove("cpu");
        if let Some(collector) = at.field("otelCollector")
            && self.findings.boolean(&collector, "MI-G1-180") == Some(false)
        {
            let message = "must be true on a device that hosts workloads";
            self.findings.add(collector.place, "MI-G1-180", message);
        }
        self.texts(at, "supportedRuntimes");
        let names = self.texts(at, "supportedDeploymentTypes");
        let kind = |name: &String| match name.as_str() {
            "helm.v3" => ProfileKind::Helm,
            name => ProfileKind::parse(name).unwrap_or(ProfileKind::Custom),
        };
        let mut types: Vec<ProfileKind> = names.iter().map(kind).collect();
        types.sort();
        types.dedup();
        Some(Hosting { cpus, memory_bytes, storage_bytes, deployment_types: types })
    }

    /// At least one of a list of words, in lower case (MI-G1-180).
    fn texts(&mut self, at: &At<'_>, key: &str) -> Vec<String> {
        let items = self.list(at, key, "MI-G1-180", true);
        if at.has(key) && items.is_empty() {
            self.findings.add(at.place_of(key), "MI-G1-180", "needs at least one element");
        }
        let words: Vec<String> = items
            .iter()
            .filter_map(|item| self.findings.text(item, "MI-G1-180"))
            .map(|text| text.chars().take(TEXT_LENGTH_MAX).collect::<String>().to_ascii_lowercase())
            .collect();
        self.properties.insert(key.to_owned(), json!(words));
        words
    }

    /// What both models have, under `properties` or `properties.resources`; all of it is `required` in the flat
    /// model and none of it in the other (MI-G1-176, MI-G1-177).
    fn resources(&mut self, at: &At<'_>, required: bool) -> (Vec<Cpu>, Option<u64>, Option<u64>) {
        let cpus = self.cpus(at, required);
        let mut amount = |key: &str| {
            let field = match required {
                true => self.findings.required(at, key, "MI-G1-179"),
                false => at.field(key),
            }?;
            let text = self.findings.text(&field, "MI-G1-179")?;
            // What cannot be read costs the device its eligibility, not its registration (DM-134).
            let bytes = Quantity::reported(text).map(|Quantity(bytes)| bytes);
            let written = bytes.map_or_else(|| text.to_owned(), |bytes| Quantity(bytes).to_string());
            self.properties.insert(key.to_owned(), written.into());
            bytes
        };
        let (memory, storage) = (amount("memory"), amount("storage"));
        self.types(at, "peripherals", &PERIPHERALS);
        self.types(at, "interfaces", &INTERFACES);
        (cpus, memory, storage)
    }

    /// One object or a list, each with one `architecture` or a list of them (AMB-41).
    fn cpus(&mut self, at: &At<'_>, required: bool) -> Vec<Cpu> {
        let key = if at.field("cpus").is_some() || (required && at.field("cpu").is_none()) {
            "cpus"
        } else {
            "cpu"
        };
        let entries = match at.field(key) {
            Some(single) if matches!(single.node.content, Content::Map(_)) => vec![single],
            _ => self.list(at, key, "MI-G1-177", required),
        };
        let mut cpus = Vec::new();
        for entry in entries {
            if !self.findings.is_map(&entry, "MI-G1-177") {
                continue;
            }
            let Some(cores) = self.findings.required(&entry, "cores", "MI-G1-177") else { continue };
            let Some(cores) = self.findings.number(&cores, "MI-G1-177") else { continue };
            if cores < 0.0 {
                self.findings.add(entry.place_of("cores"), "MI-G1-177", "must not be negative");
            }
            let mut architectures: Vec<At<'_>> = entry.field("architecture").into_iter().collect();
            architectures.extend(self.list(&entry, "architectures", "MI-G1-178", false));
            let mut named = Vec::new();
            for at in &architectures {
                named.extend(self.architecture(at));
            }
            // A device whose one processor runs several kinds of programs offers all its cores to each.
            match named.is_empty() {
                true => cpus.push(Cpu { cores, architecture: None }),
                false => cpus.extend(named.into_iter().map(|name| Cpu { cores, architecture: Some(name) })),
            }
        }
        let written = |cpu: &Cpu| match &cpu.architecture {
            Some(architecture) => json!({ "cores": number(cpu.cores), "architecture": architecture }),
            None => json!({ "cores": number(cpu.cores) }),
        };
        self.properties.insert("cpus".into(), cpus.iter().map(written).collect());
        cpus
    }

    fn architecture(&mut self, at: &At<'_>) -> Option<String> {
        let text = self.findings.text(at, "MI-G1-178")?.to_ascii_lowercase();
        // What uname says (AMB-32).
        let name = match text.as_str() {
            "x86_64" | "x86-64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        if !ARCHITECTURES.contains(&name) {
            let message = format!("must be one of x86_64, {}", ARCHITECTURES.join(", "));
            self.findings.add(at.place.clone(), "MI-G1-178", message);
            return None;
        }
        Some(name.to_owned())
    }

    /// Peripherals and interfaces. `other` is allowed here and selects nothing, so that it stays as it is.
    fn types(&mut self, at: &At<'_>, key: &str, known: &[&str]) {
        let mut written = Vec::new();
        for item in self.list(at, key, "MI-G1-178", false) {
            if !self.findings.is_map(&item, "MI-G1-178") {
                continue;
            }
            let Some(text) = self.findings.required_text(&item, "type", "MI-G1-178") else { continue };
            let name = text.to_ascii_lowercase();
            if !known.contains(&name.as_str()) && name != "other" {
                let message = format!("must be one of {}, other", known.join(", "));
                self.findings.add(item.place_of("type"), "MI-G1-178", message);
            }
            let mut fields = item.node.to_object();
            fields.insert("type".into(), name.into());
            written.push(Value::Object(fields));
        }
        self.properties.insert(key.to_owned(), Value::Array(written));
    }

    fn list<'n>(&mut self, at: &At<'n>, key: &str, rule: &'static str, required: bool) -> Vec<At<'n>> {
        let items = match required {
            true => self.findings.required_items(at, key, rule).unwrap_or_default(),
            false => self.findings.optional_items(at, key, rule),
        };
        if items.len() > LIST_LENGTH_MAX {
            self.findings.add(at.place_of(key), rule, format!("has more than {LIST_LENGTH_MAX} elements"));
            return Vec::new();
        }
        items
    }
}
