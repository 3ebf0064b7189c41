//! Device capabilities: [`Capabilities`] ↔ JSON (data-model.md, section 6).

use std::collections::BTreeMap;

use margrave_core::capabilities::{Capabilities, Cpu, Hosting};
use margrave_core::constraints::Quantity;
use margrave_core::device::{Blind, HOLDS_MAX, Hold};
use margrave_core::id::DeviceId;
use margrave_core::moment::Moment;
use margrave_core::package::ProfileKind;
use serde_json::{Value, json};

use crate::body::{BodyError, read_body};
use crate::description::constraints::ARCHITECTURES;
use crate::g2::EXTENSION;
use crate::tree::{At, Content, Findings, Node, is_extension};

pub(crate) const PERIPHERALS: [&str; 5] = ["gpu", "display", "camera", "microphone", "speaker"];
pub(crate) const INTERFACES: [&str; 7] =
    ["ethernet", "wifi", "cellular", "bluetooth", "usb", "canbus", "rs232"];
/// What a device that hosts workloads reports, and one that does not leaves out (DM-102, DM-103).
const HOSTING: [&str; 8] = [
    "cpus",
    "memory",
    "storage",
    "peripherals",
    "interfaces",
    "otelCollector",
    "supportedRuntimes",
    "supportedDeploymentTypes",
];
/// Among our additions: who holds changes back on the device, which look that was asked for it has done, and that it cannot look.
const HOLDS: &str = "holds";
const LOOKED: &str = "looked";
const CANNOT_LOOK: &str = "cannotLook";
const AGENT_VERSION: &str = "agentVersion";
const SIMULATED: &str = "simulated";
pub(crate) const LIST_LENGTH_MAX: usize = 1_000;
pub(crate) const TEXT_LENGTH_MAX: usize = 4_000;

/// The body of a capabilities report: `properties` and `labels` as they are, and our own additions.
pub fn write(capabilities: &Capabilities) -> Vec<u8> {
    let mut body = json!({ "properties": capabilities.properties });
    if !capabilities.labels.is_empty() {
        body["labels"] = json!(capabilities.labels);
    }
    let extension = extension(capabilities);
    if !extension.is_empty() {
        body[EXTENSION] = Value::Object(extension);
    }
    body.to_string().into_bytes()
}

/// Our own additions, in both generations.
pub(crate) fn extension(capabilities: &Capabilities) -> serde_json::Map<String, Value> {
    let mut extension = serde_json::Map::new();
    if capabilities.simulated {
        extension.insert(SIMULATED.into(), true.into());
    }
    if let Some(version) = &capabilities.agent_version {
        extension.insert(AGENT_VERSION.into(), version.as_str().into());
    }
    if !capabilities.overrides.is_empty() {
        extension.insert("overrides".into(), capabilities.overrides.clone().into());
    }
    if !capabilities.holds.is_empty() {
        extension.insert(HOLDS.into(), capabilities.holds.iter().map(write_hold).collect());
    }
    if capabilities.looked > 0 {
        extension.insert(LOOKED.into(), capabilities.looked.into());
    }
    if let Some(Blind { since, message }) = &capabilities.blind {
        extension.insert(CANNOT_LOOK.into(), json!({ "since": since.0, "message": message }));
    }
    extension
}

/// Whether two bodies say the same, but for who holds changes back, when the device looked again and whether it can: nothing
/// else follows from that.
pub fn differ_in_passing_only(before: &[u8], after: &[u8]) -> bool {
    let without = |body: &[u8]| {
        let mut body: Value = serde_json::from_slice(body).ok()?;
        if let Some(extension) = body.get_mut(EXTENSION).and_then(Value::as_object_mut) {
            extension.remove(HOLDS);
            extension.remove(LOOKED);
            extension.remove(CANNOT_LOOK);
            if extension.is_empty() {
                body.as_object_mut()?.remove(EXTENSION);
            }
        }
        Some(body)
    };
    without(before).is_some_and(|before| without(after) == Some(before))
}

/// What our own agents add.
pub(crate) struct Additions {
    pub(crate) simulated: bool,
    pub(crate) agent_version: Option<String>,
    pub(crate) overrides: Vec<String>,
    pub(crate) holds: Vec<Hold>,
    pub(crate) looked: u64,
    pub(crate) blind: Option<Blind>,
}

/// Never a reason to refuse: what makes no sense there was not said.
pub(crate) fn read_extension(root: &At<'_>) -> Additions {
    let extension = root.field(EXTENSION);
    let field = |key: &str| extension.as_ref().and_then(|at| at.field(key)).map(|at| &at.node.content);
    let list = |key: &str| -> &[Node] {
        match field(key) {
            Some(Content::List(items)) => items,
            _ => &[],
        }
    };
    let version = match field(AGENT_VERSION) {
        Some(Content::Text(version)) => Some(version.chars().take(100).collect()),
        _ => None,
    };
    let words = list("overrides").iter().take(8).filter_map(|item| match &item.content {
        Content::Text(words) => Some(words.chars().take(100).collect()),
        _ => None,
    });
    Additions {
        simulated: matches!(field(SIMULATED), Some(Content::Boolean(true))),
        agent_version: version,
        overrides: words.collect(),
        holds: list(HOLDS).iter().take(HOLDS_MAX).filter_map(read_hold).collect(),
        looked: extension.as_ref().and_then(|at| at.field(LOOKED)?.unsigned()).unwrap_or_default(),
        blind: extension.as_ref().and_then(|at| at.field(CANNOT_LOOK)).and_then(|at| read_blind(&at)),
    }
}

/// Who holds changes back, in a body of either generation.
pub fn holds(body: &Value) -> Vec<Hold> {
    let list = body.get(EXTENSION).and_then(|extension| extension.get(HOLDS)?.as_array());
    let nodes = list.into_iter().flatten().take(HOLDS_MAX).map(Node::from);
    nodes.filter_map(|node| read_hold(&node)).collect()
}

/// That the device cannot look at its containers, in a body of either generation.
pub fn blind(body: &Value) -> Option<Blind> {
    let said = body.get(EXTENSION)?.get(CANNOT_LOOK)?;
    Blind::told(Moment(said.get("since")?.as_u64()?), said.get("message")?.as_str()?)
}

fn read_blind(at: &At<'_>) -> Option<Blind> {
    match &at.node.get("message")?.content {
        Content::Text(message) => Blind::told(Moment(at.field("since")?.unsigned()?), message),
        _ => None,
    }
}

/// Whether our own agent says this, in a body of either generation: others do not tell its version, nor that they are simulated.
pub fn is_own_agent(body: &Value) -> bool {
    let said = |key: &str| body.get(EXTENSION).and_then(|extension| extension.get(key));
    said(AGENT_VERSION).is_some_and(Value::is_string) || said(SIMULATED) == Some(&Value::Bool(true))
}

/// The last look that was asked for and done, in a body of either generation.
pub fn looked(body: &Value) -> u64 {
    body.get(EXTENSION).and_then(|extension| extension.get(LOOKED)?.as_u64()).unwrap_or_default()
}

pub(crate) fn write_hold(Hold { holder, reason, since, until }: &Hold) -> Value {
    json!({ "holder": holder, "reason": reason, "since": since.0, "until": until.0 })
}

pub(crate) fn read_hold(node: &Node) -> Option<Hold> {
    let at = At::root(node);
    let text = |key: &str| match &node.get(key)?.content {
        Content::Text(text) => Some(text.as_str()),
        _ => None,
    };
    let moment = |key: &str| at.field(key)?.unsigned().map(Moment);
    Hold::told(text("holder")?, text("reason")?, moment("since")?, moment("until")?)
}

/// What a device says it is and can do.
pub fn read(bytes: &[u8]) -> Result<Capabilities, BodyError> {
    read_body(bytes, read_root)
}

fn read_root(root: &At<'_>, findings: &mut Findings) -> Option<Capabilities> {
    if !findings.is_map(root, "MI-G2-124") {
        return None;
    }
    for (key, at) in root.entries() {
        match key {
            "properties" | "labels" => {}
            // The standard's own sample pages still show these two (AMB-34).
            "apiVersion" | "kind" => {}
            key if is_extension(key) => {
                if !matches!(at.node.content, Content::Map(_)) {
                    findings.add(at.place, "DM-200", format!("the value of {key} must be an object"));
                }
            }
            key => {
                let shown: String = key.chars().take(60).collect();
                let message = format!(
                    "{shown} is not known here; known are properties, labels, and extensions named x-…-extensions"
                );
                findings.add(at.place, "MI-G2-124", message);
            }
        }
    }
    let labels = read_labels(root, findings);
    let at = findings.required_map(root, "properties", "MI-G2-124")?;
    let maker = Maker::read(&at, "MI-G2-123", "MI-G2-125", findings);
    for gone in ["roles", "resources"].into_iter().filter(|key| at.has(key)) {
        let message = format!(
            "{gone} belongs to an older shape of capabilities; report cpus, memory, storage, peripherals, \
             interfaces, otelCollector, supportedRuntimes and supportedDeploymentTypes under properties"
        );
        findings.add(at.place_of(gone), "DM-113", message);
        check_older_architectures(&at, gone, findings);
    }
    let hosts = HOSTING.iter().any(|key| at.has(key));
    let hosting = if hosts { read_hosting(&at, labels.is_empty(), findings) } else { None };
    let Additions { simulated, agent_version, overrides, holds, looked, blind } = read_extension(root);
    let Maker { device, vendor, model_number, serial_number } = maker?;
    Some(Capabilities {
        device,
        vendor,
        model_number,
        serial_number,
        hosting,
        properties: at.node.to_object(),
        labels,
        simulated,
        agent_version,
        overrides,
        holds,
        looked,
        blind,
    })
}

/// Which device it is and who made it: the part that both generations have.
pub(crate) struct Maker {
    pub(crate) device: DeviceId,
    pub(crate) vendor: String,
    pub(crate) model_number: String,
    pub(crate) serial_number: String,
}

impl Maker {
    /// Every field that is missing is found, not only the first.
    pub(crate) fn read(
        at: &At<'_>,
        id_rule: &'static str,
        rule: &'static str,
        findings: &mut Findings,
    ) -> Option<Maker> {
        let device =
            findings.required(at, "id", rule).and_then(|at| findings.parsed(&at, id_rule, DeviceId::parse));
        let mut text = |key: &str| {
            let text = findings.required_text(at, key, rule)?;
            Some(text.chars().take(TEXT_LENGTH_MAX).collect::<String>())
        };
        let (vendor, model_number, serial_number) =
            (text("vendor"), text("modelNumber"), text("serialNumber"));
        Some(Maker {
            device: device?,
            vendor: vendor?,
            model_number: model_number?,
            serial_number: serial_number?,
        })
    }
}

fn read_hosting(at: &At<'_>, unlabelled: bool, findings: &mut Findings) -> Option<Hosting> {
    let mut cpus = Vec::new();
    for cpu in required_list(at, "cpus", "DM-102", findings) {
        if !findings.is_map(&cpu, "MI-G2-128") {
            continue;
        }
        let cores = findings.required(&cpu, "cores", "MI-G2-128");
        let cores = cores.and_then(|at| findings.number(&at, "MI-G2-128"));
        if cores.is_some_and(|cores| cores < 0.0) {
            findings.add(cpu.place_of("cores"), "MI-G2-128", "must not be negative");
        }
        let architecture = findings.optional_text(&cpu, "architecture", "MI-G2-128");
        if let Some(architecture) = architecture.as_deref() {
            check_architecture(architecture, cpu.place_of("architecture"), findings);
        }
        cpus.extend(cores.map(|cores| Cpu { cores, architecture }));
    }
    // An amount that cannot be read costs the device its eligibility, not its registration (DM-134).
    let mut amount = |key: &str| {
        let text = findings.required_text(at, key, "DM-102")?;
        Quantity::reported(text).map(|Quantity(bytes)| bytes)
    };
    let (memory_bytes, storage_bytes) = (amount("memory"), amount("storage"));
    check_types(at, "peripherals", "MI-G2-129", &PERIPHERALS, findings);
    check_types(at, "interfaces", "MI-G2-130", &INTERFACES, findings);
    let collector =
        findings.required(at, "otelCollector", "DM-102").and_then(|at| findings.boolean(&at, "DM-102"));
    if collector == Some(false) {
        findings.add(at.place_of("otelCollector"), "DM-102", "must be true on a device that hosts workloads");
    }
    let runtimes = read_texts(at, "supportedRuntimes", findings);
    let types = read_texts(at, "supportedDeploymentTypes", findings);
    if unlabelled && runtimes.iter().chain(&types).any(|text| *text == "custom") {
        let message = "a device that offers custom must also report labels that applications can select on";
        findings.add("/labels", "MI-G2-133", message);
    }
    // Unknown types count as custom instead of being refused (DM-106); the raw value stays in `properties`.
    let mut deployment_types: Vec<_> =
        types.iter().map(|text| ProfileKind::parse(text).unwrap_or(ProfileKind::Custom)).collect();
    deployment_types.sort();
    deployment_types.dedup();
    Some(Hosting { cpus, memory_bytes, storage_bytes, deployment_types })
}

pub(crate) fn required_list<'n>(
    at: &At<'n>,
    key: &str,
    rule: &'static str,
    findings: &mut Findings,
) -> Vec<At<'n>> {
    let items = findings.required_items(at, key, rule).unwrap_or_default();
    if items.len() > LIST_LENGTH_MAX {
        findings.add(at.place_of(key), rule, format!("has more than {LIST_LENGTH_MAX} elements"));
        return Vec::new();
    }
    items
}

fn read_texts<'n>(at: &At<'n>, key: &str, findings: &mut Findings) -> Vec<&'n str> {
    let items = required_list(at, key, "DM-102", findings);
    if at.has(key) && items.is_empty() {
        findings.add(at.place_of(key), "DM-102", "needs at least one element");
    }
    items.iter().filter_map(|item| findings.text(item, "DM-102")).collect()
}

fn check_types(at: &At<'_>, key: &str, rule: &'static str, known: &[&str], findings: &mut Findings) {
    for item in required_list(at, key, "DM-102", findings) {
        if !findings.is_map(&item, rule) {
            continue;
        }
        if let Some(text) = findings.required_text(&item, "type", rule)
            && !known.contains(&text)
        {
            findings.add(item.place_of("type"), rule, format!("must be one of {}", known.join(", ")));
        }
        for optional in ["manufacturer", "model"] {
            findings.optional_text(&item, optional, rule);
        }
    }
}

fn check_architecture(architecture: &str, place: String, findings: &mut Findings) {
    if !ARCHITECTURES.contains(&architecture) {
        let hint = if architecture == "x86_64" { "; report amd64" } else { "" };
        findings.add(place, "MI-G2-128", format!("must be one of amd64, arm64, arm{hint}"));
    }
}

/// An older document is refused anyway; a wrong architecture in it is worth saying too, because it stays
/// wrong after porting.
fn check_older_architectures(at: &At<'_>, gone: &str, findings: &mut Findings) {
    let Some(cpu) = at.field(gone).and_then(|at| at.field("cpu")) else { return };
    let mut found: Vec<At<'_>> = cpu.field("architecture").into_iter().collect();
    if let Some(list) = cpu.field("architectures") {
        found.extend(findings.items(&list, "MI-G2-128").unwrap_or_default());
    }
    for at in found {
        if let Some(text) = findings.text(&at, "MI-G2-128") {
            check_architecture(text, at.place.clone(), findings);
        }
    }
}

pub(crate) fn read_labels(root: &At<'_>, findings: &mut Findings) -> BTreeMap<String, Value> {
    let mut labels = BTreeMap::new();
    let Some(at) = root.field("labels").filter(|at| findings.is_map(at, "MI-G2-134")) else { return labels };
    if at.entries().count() > LIST_LENGTH_MAX {
        findings.add(at.place, "MI-G2-134", format!("has more than {LIST_LENGTH_MAX} labels"));
        return labels;
    }
    for (key, at) in at.entries() {
        let scalar = |content: &Content| matches!(content, Content::Text(_) | Content::Number(_));
        let fits = match &at.node.content {
            Content::Boolean(_) => true,
            Content::List(items) => {
                let all = |is: fn(&Content) -> bool| items.iter().all(|item| is(&item.content));
                items.len() <= LIST_LENGTH_MAX
                    && (all(|content| matches!(content, Content::Text(_)))
                        || all(|content| matches!(content, Content::Number(_))))
            }
            content => scalar(content),
        };
        if fits {
            labels.insert(key.to_owned(), at.node.to_value());
        } else {
            let message = "must be text, a number, a boolean, a list of texts, or a list of numbers";
            findings.add(at.place, "MI-G2-134", message);
        }
    }
    labels
}
