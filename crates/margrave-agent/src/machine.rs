//! What this machine is, read from the machine: the device's capabilities (section 6 of the data model).
//!
//! Everything here is looked up, never guessed: what a machine does not say is "unknown" or left out, and
//! a file of the operator's, `capabilities.json`, overrules any of it. Amounts are those that stay the
//! same while applications come and go, because the document is sent again on every change (DM-101).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use margrave_core::capabilities::{Capabilities, Cpu, Hosting};
use margrave_core::constraints::Quantity;
use margrave_core::id::DeviceId;
use margrave_core::package::ProfileKind;
use serde_json::{Map, Value, json};

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub vendor: String,
    pub model_number: String,
    pub serial_number: String,
    pub cores: usize,
    /// `None` for an architecture that the standard has no word for (DM-112).
    pub architecture: Option<&'static str>,
    pub memory_bytes: Option<u64>,
    /// The size of the file system with the agent's data, and not what is free on it: a device must not
    /// become too small for an application by installing it.
    pub storage_bytes: Option<u64>,
    pub interfaces: Vec<&'static str>,
    pub peripherals: Vec<Peripheral>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peripheral {
    pub kind: &'static str,
    pub manufacturer: Option<String>,
    pub model: Option<String>,
}

/// What the device offers to applications, beside its hardware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Kinds of profiles that a runtime here can run; empty when there is no runtime, and then the device
    /// says that it hosts nothing (DM-103).
    pub kinds: Vec<ProfileKind>,
    /// Whether an OpenTelemetry collector takes what applications send. The standard wants `true` from every
    /// device that hosts (DM-102), and a strict server refuses anything else; `false` is for those who
    /// would rather be refused than say what is not so.
    pub otel_collector: bool,
    /// Set for the runtime that only pretends.
    pub simulated: bool,
    pub agent_version: String,
    /// What was set on the device itself and goes before what the server says, for people.
    pub overrides: Vec<String>,
}

const UNKNOWN: &str = "unknown";

/// What firmware says where nobody filled in the form.
const PLACEHOLDERS: [&str; 9] = [
    "to be filled by o.e.m.",
    "default string",
    "system serial number",
    "system product name",
    "system manufacturer",
    "not specified",
    "none",
    "0",
    "unknown",
];

/// Nothing in /sys and /proc that we read is longer; a device tree's strings are a line each.
const FILE_BYTES_MAX: usize = 64 * 1024;

impl Machine {
    /// Looks at the machine below `root` (`/` but for tests); storage is that of `data`.
    pub fn discover(root: &Path, data: &Path) -> Machine {
        let system = System { root: root.to_owned() };
        Machine {
            vendor: system.named(&["sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/board_vendor"]),
            model_number: system.named(&["sys/class/dmi/id/product_name", "proc/device-tree/model"]),
            serial_number: system
                .named(&["sys/class/dmi/id/product_serial", "proc/device-tree/serial-number"]),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            architecture: architecture(std::env::consts::ARCH),
            memory_bytes: system.text("proc/meminfo").as_deref().and_then(memory_total),
            storage_bytes: storage_of(data),
            interfaces: system.interfaces(),
            peripherals: system.peripherals(),
        }
    }

    /// The capabilities of `device`, with the operator's word over the machine's.
    pub fn capabilities(
        &self,
        device: &DeviceId,
        offer: &Offer,
        overrides: &Overrides,
    ) -> Result<Capabilities, OverridesError> {
        let mut properties = self.properties(device, offer);
        for (name, value) in &overrides.properties {
            match value {
                Value::Null => properties.remove(name),
                value => properties.insert(name.clone(), value.clone()),
            };
        }
        let text = |name: &str| match properties.get(name) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
            other => Err(OverridesError::field(name, "a text", other)),
        };
        if text("id")? != device.as_str() {
            return Err(OverridesError::OtherDevice { named: text("id")?, device: device.clone() });
        }
        Ok(Capabilities {
            device: device.clone(),
            vendor: text("vendor")?,
            model_number: text("modelNumber")?,
            serial_number: text("serialNumber")?,
            hosting: hosting(&properties)?,
            labels: overrides.labels.clone(),
            simulated: offer.simulated,
            agent_version: Some(offer.agent_version.clone()),
            overrides: offer.overrides.clone(),
            holds: vec![],
            looked: 0,
            blind: None,
            properties,
        })
    }

    fn properties(&self, device: &DeviceId, offer: &Offer) -> Map<String, Value> {
        let mut properties = Map::from_iter([
            ("id".to_owned(), json!(device.as_str())),
            ("vendor".to_owned(), json!(self.vendor)),
            ("modelNumber".to_owned(), json!(self.model_number)),
            ("serialNumber".to_owned(), json!(self.serial_number)),
        ]);
        if offer.kinds.is_empty() {
            return properties;
        }
        let mut cpu = json!({"cores": self.cores});
        if let Some(architecture) = self.architecture {
            cpu["architecture"] = json!(architecture);
        }
        let kinds: Vec<&str> = offer.kinds.iter().map(|kind| kind.as_str()).collect();
        let interfaces: Vec<Value> = self.interfaces.iter().map(|kind| json!({"type": kind})).collect();
        let peripherals: Vec<Value> = self.peripherals.iter().map(Peripheral::value).collect();
        properties.insert("cpus".to_owned(), json!([cpu]));
        properties.insert("memory".to_owned(), json!(mebibytes(self.memory_bytes)));
        properties.insert("storage".to_owned(), json!(mebibytes(self.storage_bytes)));
        properties.insert("peripherals".to_owned(), json!(peripherals));
        properties.insert("interfaces".to_owned(), json!(interfaces));
        properties.insert("otelCollector".to_owned(), json!(offer.otel_collector));
        properties.insert("supportedRuntimes".to_owned(), json!(["oci"]));
        properties.insert("supportedDeploymentTypes".to_owned(), json!(kinds));
        properties
    }
}

impl Peripheral {
    fn value(&self) -> Value {
        let mut value = json!({"type": self.kind});
        for (name, text) in [("manufacturer", &self.manufacturer), ("model", &self.model)] {
            if let Some(text) = text {
                value[name] = json!(text);
            }
        }
        value
    }
}

/// Without a blank (DM-110), in a unit that both memory and storage may have; an unknown amount is none.
fn mebibytes(bytes: Option<u64>) -> String {
    format!("{}Mi", bytes.unwrap_or(0) >> 20)
}

/// The checked reading of the hosting fields; absent together they mean that nothing is hosted (DM-103).
fn hosting(properties: &Map<String, Value>) -> Result<Option<Hosting>, OverridesError> {
    const FIELDS: [&str; 8] = [
        "cpus",
        "memory",
        "storage",
        "peripherals",
        "interfaces",
        "otelCollector",
        "supportedRuntimes",
        "supportedDeploymentTypes",
    ];
    let present = FIELDS.iter().filter(|name| properties.contains_key(**name)).count();
    if present == 0 {
        return Ok(None);
    }
    let field = |name: &'static str| properties.get(name).ok_or(OverridesError::Incomplete { missing: name });
    for name in FIELDS {
        field(name)?;
    }
    let list = |name: &'static str| {
        let value = field(name)?;
        value.as_array().ok_or_else(|| OverridesError::field(name, "a list", Some(value)))
    };
    for name in ["peripherals", "interfaces"] {
        if let Some(odd) = list(name)?.iter().find(|item| !item["type"].is_string()) {
            return Err(OverridesError::field(name, "a list of objects that have a type", Some(odd)));
        }
    }
    let cpu = |item: &Value| {
        let cores = item["cores"].as_f64().filter(|cores| *cores > 0.0 && cores.is_finite());
        let cores =
            cores.ok_or_else(|| OverridesError::field("cpus", "a list of objects with cores", Some(item)))?;
        Ok(Cpu { cores, architecture: item["architecture"].as_str().map(str::to_owned) })
    };
    let amount = |name: &'static str| {
        let value = field(name)?;
        let amount = value.as_str().and_then(Quantity::reported);
        let Quantity(bytes) =
            amount.ok_or_else(|| OverridesError::field(name, "an amount such as 512Mi", Some(value)))?;
        Ok::<_, OverridesError>(Some(bytes))
    };
    let words = |name: &'static str| {
        let words: Option<Vec<&str>> = list(name)?.iter().map(Value::as_str).collect();
        let words = words.filter(|words| !words.is_empty());
        words
            .ok_or_else(|| OverridesError::field(name, "a list with at least one word", properties.get(name)))
    };
    if !field("otelCollector")?.is_boolean() {
        return Err(OverridesError::field("otelCollector", "true or false", properties.get("otelCollector")));
    }
    words("supportedRuntimes")?;
    let kind = |word: &&str| ProfileKind::parse(word).unwrap_or(ProfileKind::Custom);
    Ok(Some(Hosting {
        cpus: list("cpus")?.iter().map(cpu).collect::<Result<_, _>>()?,
        memory_bytes: amount("memory")?,
        storage_bytes: amount("storage")?,
        deployment_types: words("supportedDeploymentTypes")?.iter().map(kind).collect(),
    }))
}

/// The operator's `capabilities.json`: of the same shape as what the device sends. A field given there
/// wins, `null` takes one away, and labels come only from there.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Overrides {
    properties: Map<String, Value>,
    labels: BTreeMap<String, Value>,
}

#[derive(Debug, thiserror::Error)]
pub enum OverridesError {
    #[error("{} cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not valid JSON", path.display())]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} has {found}; it may have an object \"properties\" and an object \"labels\", as the device sends them", path.display())]
    Shape { path: PathBuf, found: String },
    #[error(
        "the label {name:?} must be a text, a number, true or false, or a list of texts or of numbers (DM-107)"
    )]
    Label { name: String },
    #[error("the capability {name} must be {wanted}, got {got}")]
    Field { name: String, wanted: &'static str, got: String },
    #[error(
        "the capability {missing} was taken away; a device has all hosting capabilities or none (DM-102)"
    )]
    Incomplete { missing: &'static str },
    #[error("the capabilities are those of {named:?}, this device is {device}; leave out the id")]
    OtherDevice { named: String, device: DeviceId },
}

impl OverridesError {
    fn field(name: &str, wanted: &'static str, got: Option<&Value>) -> Self {
        let got = got.map_or("nothing".to_owned(), |value| value.to_string().chars().take(80).collect());
        OverridesError::Field { name: name.to_owned(), wanted, got }
    }
}

impl Overrides {
    /// Reads the file; a missing one overrides nothing.
    pub fn read(path: &Path) -> Result<Self, OverridesError> {
        let text = match fs::read(path) {
            Ok(text) if text.len() <= FILE_BYTES_MAX => text,
            Ok(_) => {
                let source = io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 64 KiB");
                return Err(OverridesError::Read { path: path.to_owned(), source });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Overrides::default()),
            Err(source) => return Err(OverridesError::Read { path: path.to_owned(), source }),
        };
        Overrides::parse(&text, path)
    }

    fn parse(text: &[u8], path: &Path) -> Result<Self, OverridesError> {
        let shape = |found: String| OverridesError::Shape { path: path.to_owned(), found };
        let value: Value = serde_json::from_slice(text)
            .map_err(|source| OverridesError::Json { path: path.to_owned(), source })?;
        let Value::Object(mut body) = value else { return Err(shape("no object".to_owned())) };
        let mut object = |name: &str| match body.remove(name) {
            None => Ok(Map::new()),
            Some(Value::Object(object)) => Ok(object),
            Some(_) => Err(shape(format!("{name:?} that is no object"))),
        };
        let (properties, labels) = (object("properties")?, object("labels")?);
        if let Some(other) = body.keys().next() {
            return Err(shape(format!("the field {other:?}")));
        }
        if let Some((name, _)) = labels.iter().find(|(_, value)| !is_label(value)) {
            return Err(OverridesError::Label { name: name.clone() });
        }
        Ok(Overrides { properties, labels: labels.into_iter().collect() })
    }
}

fn is_label(value: &Value) -> bool {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => true,
        Value::Array(items) => items.iter().all(Value::is_string) || items.iter().all(Value::is_number),
        Value::Null | Value::Object(_) => false,
    }
}

fn architecture(rust: &str) -> Option<&'static str> {
    match rust {
        "x86_64" => Some("amd64"),
        "aarch64" => Some("arm64"),
        "arm" => Some("arm"),
        _ => None,
    }
}

fn memory_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn storage_of(data: &Path) -> Option<u64> {
    // The directory may not exist yet; its file system does.
    let existing = data.ancestors().find(|path| path.exists())?;
    let figures = rustix::fs::statvfs(existing).ok()?;
    figures.f_blocks.checked_mul(figures.f_frsize)
}

/// The parts of /sys, /proc and /dev that we look at.
struct System {
    root: PathBuf,
}

impl System {
    fn text(&self, path: &str) -> Option<String> {
        use std::io::Read;
        let mut bytes = Vec::new();
        let file = fs::File::open(self.root.join(path)).ok()?;
        file.take(FILE_BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
        // Strings of a device tree end with a NUL.
        Some(String::from_utf8_lossy(&bytes).trim_matches(['\0', '\n', ' ']).to_owned())
    }

    /// The first of the files that says something.
    fn named(&self, paths: &[&str]) -> String {
        let says = |text: &String| !text.is_empty() && !PLACEHOLDERS.contains(&text.to_lowercase().as_str());
        let found = paths.iter().find_map(|path| self.text(path).filter(says));
        found.map_or(UNKNOWN.to_owned(), |text| text.chars().filter(|c| !c.is_control()).take(200).collect())
    }

    fn entries(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Kinds of interfaces, each once.
    fn interfaces(&self) -> Vec<&'static str> {
        let mut kinds = Vec::new();
        for name in self.entries("sys/class/net") {
            let base = format!("sys/class/net/{name}");
            // Bridges and virtual pairs have no device behind them; an application cannot plug into those.
            if !self.exists(&format!("{base}/device")) {
                continue;
            }
            let wireless =
                ["wireless", "phy80211"].iter().any(|entry| self.exists(&format!("{base}/{entry}")));
            match self.text(&format!("{base}/type")).as_deref() {
                _ if wireless => kinds.push("wifi"),
                _ if name.starts_with("wwan") => kinds.push("cellular"),
                Some("1") => kinds.push("ethernet"),
                Some("280") => kinds.push("canbus"),
                _ => {}
            }
        }
        if !self.entries("sys/class/bluetooth").is_empty() {
            kinds.push("bluetooth");
        }
        if !self.entries("sys/bus/usb/devices").is_empty() {
            kinds.push("usb");
        }
        // The kernel shows four ports on every PC; those of type 0 are not there.
        let serial = |name: &String| {
            name.starts_with("ttyS")
                && self.text(&format!("sys/class/tty/{name}/type")).is_some_and(|kind| kind != "0")
        };
        if self.entries("sys/class/tty").iter().any(serial) {
            kinds.push("rs232");
        }
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    fn peripherals(&self) -> Vec<Peripheral> {
        let plain = |kind| Peripheral { kind, manufacturer: None, model: None };
        let mut found = Vec::new();
        let drm = self.entries("sys/class/drm");
        for card in drm.iter().filter(|name| is_numbered(name, "card")) {
            let vendor = self.text(&format!("sys/class/drm/{card}/device/vendor"));
            let manufacturer = match vendor.as_deref() {
                Some("0x10de") => Some("NVIDIA"),
                Some("0x1002") => Some("AMD"),
                Some("0x8086") => Some("Intel"),
                // Emulated cards of virtual machines draw pictures and compute nothing.
                Some("0x1234" | "0x1af4" | "0x15ad" | "0x1013" | "0x1414") => continue,
                _ => None,
            };
            found.push(Peripheral { manufacturer: manufacturer.map(str::to_owned), ..plain("gpu") });
        }
        if found.is_empty() && self.entries("dev").iter().any(|name| is_numbered(name, "nvidia")) {
            found.push(Peripheral { manufacturer: Some("NVIDIA".to_owned()), ..plain("gpu") });
        }
        let connected = |name: &&String| {
            self.text(&format!("sys/class/drm/{name}/status")).as_deref() == Some("connected")
        };
        found.extend(drm.iter().filter(connected).map(|_| plain("display")));
        for camera in self.entries("sys/class/video4linux").iter().filter(|name| is_numbered(name, "video")) {
            // One camera has several nodes; only the first of each is the picture.
            let first =
                self.text(&format!("sys/class/video4linux/{camera}/index")).is_none_or(|index| index == "0");
            if first {
                found.push(Peripheral {
                    model: self.text(&format!("sys/class/video4linux/{camera}/name")),
                    ..plain("camera")
                });
            }
        }
        let sound = self.text("proc/asound/pcm").unwrap_or_default();
        for (word, kind) in [("capture", "microphone"), ("playback", "speaker")] {
            if sound.contains(word) {
                found.push(plain(kind));
            }
        }
        found.sort();
        found
    }
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine made of files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = temp.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        temp
    }

    fn device() -> DeviceId {
        DeviceId::parse("line-1").unwrap()
    }

    fn offer() -> Offer {
        Offer {
            kinds: vec![ProfileKind::Compose],
            otel_collector: true,
            simulated: false,
            agent_version: "0.1.0".to_owned(),
            overrides: vec![],
        }
    }

    fn gateway() -> Machine {
        let temp = root(&[
            ("sys/class/dmi/id/sys_vendor", "Northstar\n"),
            ("sys/class/dmi/id/product_name", "NX-200\n"),
            ("sys/class/dmi/id/product_serial", "To Be Filled By O.E.M.\n"),
            ("proc/meminfo", "MemTotal:        4039936 kB\nMemFree:  100 kB\n"),
            ("sys/class/net/lo/type", "772\n"),
            ("sys/class/net/docker0/type", "1\n"),
            ("sys/class/net/eth0/type", "1\n"),
            ("sys/class/net/eth0/device/x", ""),
            ("sys/class/net/eth1/type", "1\n"),
            ("sys/class/net/eth1/device/x", ""),
            ("sys/class/net/wlan0/type", "1\n"),
            ("sys/class/net/wlan0/device/x", ""),
            ("sys/class/net/wlan0/phy80211/x", ""),
            ("sys/class/net/can0/type", "280\n"),
            ("sys/class/net/can0/device/x", ""),
            ("sys/class/tty/ttyS0/type", "4\n"),
            ("sys/class/tty/ttyS1/type", "0\n"),
            ("sys/class/drm/card0/device/vendor", "0x10de\n"),
            ("sys/class/drm/card0-HDMI-A-1/status", "connected\n"),
            ("sys/class/drm/card0-DP-1/status", "disconnected\n"),
            ("sys/class/video4linux/video0/name", "Basler\n"),
            ("sys/class/video4linux/video0/index", "0\n"),
            ("sys/class/video4linux/video1/index", "1\n"),
            ("proc/asound/pcm", "00-00: ALC : ALC : playback 1\n"),
        ]);
        Machine {
            cores: 4,
            architecture: Some("arm64"),
            storage_bytes: Some(64 << 30),
            ..Machine::discover(temp.path(), temp.path())
        }
    }

    #[test]
    fn a_machine_is_what_its_files_say() {
        let machine = gateway();
        assert_eq!((machine.vendor.as_str(), machine.model_number.as_str()), ("Northstar", "NX-200"));
        assert_eq!(machine.serial_number, "unknown");
        assert_eq!(machine.memory_bytes, Some(4039936 * 1024));
        assert_eq!(machine.interfaces, ["canbus", "ethernet", "rs232", "wifi"]);
        let peripherals: Vec<Value> = machine.peripherals.iter().map(|p| p.value()).collect();
        assert_eq!(
            peripherals,
            [
                json!({"type": "camera", "model": "Basler"}),
                json!({"type": "display"}),
                json!({"type": "gpu", "manufacturer": "NVIDIA"}),
                json!({"type": "speaker"})
            ]
        );
    }

    #[test]
    fn a_board_with_a_device_tree_is_known_by_it() {
        let temp = root(&[
            ("proc/device-tree/model", "Raspberry Pi 4 Model B\0"),
            ("proc/device-tree/serial-number", "1000abc\0"),
        ]);
        let machine = Machine::discover(temp.path(), temp.path());
        assert_eq!(
            (machine.model_number.as_str(), machine.serial_number.as_str()),
            ("Raspberry Pi 4 Model B", "1000abc")
        );
        assert_eq!((machine.vendor.as_str(), machine.memory_bytes), ("unknown", None));
        assert!(machine.interfaces.is_empty() && machine.peripherals.is_empty());
    }

    #[test]
    fn this_machine_has_memory_and_storage() {
        let temp = tempfile::tempdir().unwrap();
        let machine = Machine::discover(Path::new("/"), &temp.path().join("not/yet/there"));
        assert!(machine.memory_bytes.unwrap() > 0 && machine.storage_bytes.unwrap() > 0 && machine.cores > 0);
    }

    #[test]
    fn dm_102_a_hosting_device_sends_every_hosting_field() {
        let capabilities = gateway().capabilities(&device(), &offer(), &Overrides::default()).unwrap();
        assert_eq!(
            Value::Object(capabilities.properties),
            json!({
                "id": "line-1", "vendor": "Northstar", "modelNumber": "NX-200", "serialNumber": "unknown",
                "cpus": [{"cores": 4, "architecture": "arm64"}], "memory": "3945Mi", "storage": "65536Mi",
                "peripherals": [{"type": "camera", "model": "Basler"}, {"type": "display"},
                                {"type": "gpu", "manufacturer": "NVIDIA"}, {"type": "speaker"}],
                "interfaces": [{"type": "canbus"}, {"type": "ethernet"}, {"type": "rs232"}, {"type": "wifi"}],
                "otelCollector": true, "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["compose"],
            })
        );
        let hosting = capabilities.hosting.unwrap();
        assert_eq!((hosting.memory_bytes, hosting.storage_bytes), (Some(3945 << 20), Some(64 << 30)));
        assert_eq!(hosting.deployment_types, [ProfileKind::Compose]);
    }

    #[test]
    fn dm_103_without_a_runtime_no_hosting_field_is_sent() {
        let nothing = Offer { kinds: vec![], ..offer() };
        let capabilities = gateway().capabilities(&device(), &nothing, &Overrides::default()).unwrap();
        assert_eq!(capabilities.hosting, None);
        assert_eq!(
            capabilities.properties.keys().collect::<Vec<_>>(),
            ["id", "vendor", "modelNumber", "serialNumber"]
        );
    }

    fn overridden(text: &str) -> Result<Capabilities, OverridesError> {
        let overrides = Overrides::parse(text.as_bytes(), Path::new("capabilities.json"))?;
        gateway().capabilities(&device(), &offer(), &overrides)
    }

    #[test]
    fn the_operators_file_wins() {
        let capabilities = overridden(
            r#"{"properties": {"serialNumber": "S-1", "memory": "1 Gi", "x": 1, "cpus": [{"cores": 0.5}]},
                "labels": {"plant": "north", "lines": [1, 2]}}"#,
        )
        .unwrap();
        assert_eq!(capabilities.serial_number, "S-1");
        assert_eq!(capabilities.properties["x"], 1);
        assert_eq!(capabilities.labels["lines"], json!([1, 2]));
        let hosting = capabilities.hosting.unwrap();
        assert_eq!(hosting.memory_bytes, Some(1 << 30));
        assert_eq!(hosting.cpus, [Cpu { cores: 0.5, architecture: None }]);
    }

    #[test]
    fn a_wrong_file_is_refused_with_the_field_named() {
        for (text, word) in [
            ("", "not valid JSON"),
            ("[]", "no object"),
            (r#"{"properties": 1}"#, "\"properties\" that is no object"),
            (r#"{"kind": "x"}"#, "the field \"kind\""),
            (r#"{"labels": {"a": {"b": 1}}}"#, "the label \"a\""),
            (r#"{"labels": {"a": [1, "b"]}}"#, "the label \"a\""),
            (r#"{"properties": {"memory": "lots"}}"#, "memory must be an amount"),
            (r#"{"properties": {"memory": null}}"#, "memory was taken away"),
            (r#"{"properties": {"vendor": 1}}"#, "vendor must be a text"),
            (r#"{"properties": {"cpus": [{}]}}"#, "cpus must be"),
            (r#"{"properties": {"interfaces": ["wifi"]}}"#, "interfaces must be"),
            (r#"{"properties": {"supportedDeploymentTypes": []}}"#, "supportedDeploymentTypes must be"),
            (r#"{"properties": {"otelCollector": "yes"}}"#, "otelCollector must be"),
            (r#"{"properties": {"id": "line-2"}}"#, "line-2"),
        ] {
            let error = overridden(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_missing_file_overrides_nothing_and_an_unreadable_one_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(Overrides::read(&temp.path().join("capabilities.json")).unwrap(), Overrides::default());
        assert!(matches!(Overrides::read(temp.path()), Err(OverridesError::Read { .. })));
    }

    #[test]
    fn architectures_have_the_standards_names() {
        assert_eq!(
            ["x86_64", "aarch64", "arm", "riscv64"].map(architecture),
            [Some("amd64"), Some("arm64"), Some("arm"), None]
        );
    }
}
