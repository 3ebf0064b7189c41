//! Deployment status: [`Report`] ↔ JSON (data-model.md, section 5).

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::lifecycle::{Reported, State};
use margrave_core::moment::Moment;
use margrave_core::report::{Awaited, ComponentReport, Detail, Fault, Holding, Report};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::body::{BodyError, read_body};
use crate::g2::EXTENSION;
use crate::tree::{At, Findings};

/// More components than a document may have.
const COMPONENT_COUNT_MAX: usize = 1_000;
/// Our own server takes a little more than this.
const BODY_BYTES_MAX: usize = 60_000;
/// What is left of a component's message, one after the other, until a report is not too long any more.
const MESSAGE_LENGTHS: [usize; 3] = [300, 60, 0];
/// A message of a foreign device is kept and shown; one of megabytes is neither.
const TEXT_LENGTH_MAX: usize = 4_000;

/// [`Detail`] on the wire. Times are milliseconds since 1970 by the device's clock.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DetailBody {
    state: State,
    sequence: u64,
    at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    document: Option<Digest>,
    #[serde(default)]
    attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_try: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiting: Option<String>,
    /// A word, so that one of a newer agent is no reason to lose the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    awaited: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    life: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holds: Option<Holding>,
    /// Component to number, where there is one. Whatever a newer agent may make of it is no reason to lose the rest.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    restarts: Value,
}

/// The body of a status report.
pub fn write(report: &Report) -> Vec<u8> {
    let body = json!({
        "deploymentId": report.assignment.to_string(),
        "adoptedManifestVersion": report.adopted_version,
    });
    common(report, body).to_string().into_bytes()
}

/// Adds to a body what both generations write alike. A report that nobody takes because of its length would say nothing at all:
/// where many components say much, each is cut short.
pub(crate) fn common(report: &Report, body: Value) -> Value {
    let mut told = whole(report, body.clone());
    let mut shorter = report.clone();
    for length_max in MESSAGE_LENGTHS {
        if told.to_string().len() <= BODY_BYTES_MAX {
            break;
        }
        let components = shorter.components.iter_mut();
        for fault in components.filter_map(|component| component.fault.as_mut()) {
            cut(&mut fault.message, length_max);
        }
        told = whole(&shorter, body.clone());
    }
    told
}

fn cut(message: &mut String, length_max: usize) {
    if message.len() > length_max {
        message.truncate(message.floor_char_boundary(length_max));
        message.push('…');
    }
}

fn whole(report: &Report, mut body: Value) -> Value {
    let component = |component: &ComponentReport| {
        let mut fields = json!({ "name": component.name, "state": component.state.as_str() });
        insert_fault(&mut fields, component.fault.as_ref());
        fields
    };
    let mut status = json!({ "state": report.state.as_str() });
    insert_fault(&mut status, report.fault.as_ref());
    body["status"] = status;
    body["components"] = report.components.iter().map(component).collect();
    if let Some(device) = &report.device {
        body["deviceId"] = device.as_str().into();
    }
    if let Some(detail) = &report.detail {
        let detail = DetailBody {
            state: detail.state,
            sequence: detail.sequence,
            at: detail.at.0,
            document: detail.document,
            attempt: detail.attempt,
            next_try: detail.next_try.map(|moment| moment.0),
            reason: detail.reason.clone(),
            waiting: detail.waiting.clone(),
            awaited: detail.awaited.map(|awaited| awaited.as_str().to_owned()),
            life: detail.life,
            memory: detail.memory,
            holds: detail.holds,
            restarts: restarts(&report.components),
        };
        body[EXTENSION] = serde_json::to_value(detail).expect("plain fields are JSON");
    }
    body
}

/// How often components were brought back; nothing where none was.
fn restarts(components: &[ComponentReport]) -> Value {
    let restarted = components.iter().filter(|component| component.restarts > 0);
    let numbers: Map<String, Value> =
        restarted.map(|component| (component.name.clone(), component.restarts.into())).collect();
    if numbers.is_empty() { Value::Null } else { Value::Object(numbers) }
}

/// Takes into the components what the extension says of those that are in the report; of others it says nothing to anybody.
fn read_restarts(restarts: &Value, components: &mut [ComponentReport]) {
    for component in components {
        let number = restarts.get(&component.name).and_then(Value::as_u64).unwrap_or(0);
        component.restarts = u32::try_from(number).unwrap_or(u32::MAX);
    }
}

fn insert_fault(fields: &mut Value, fault: Option<&Fault>) {
    if let Some(fault) = fault {
        fields["error"] = json!({ "code": fault.code, "source": fault.source, "message": fault.message });
    }
}

/// What a device reports, ours or another's. Fields that we do not know are ignored (DM-097).
pub fn read(bytes: &[u8]) -> Result<Report, BodyError> {
    read_body(bytes, |root, findings| {
        let adopted = read_adopted(root, findings);
        let device = root.field("deviceId").and_then(|at| findings.parsed(&at, "MI-G2-102", DeviceId::parse));
        read_common(root, device, adopted, findings)
    })
}

fn read_adopted(root: &At<'_>, findings: &mut Findings) -> Option<u64> {
    let at = findings.required(root, "adoptedManifestVersion", "DM-092")?;
    let version = findings.unsigned(&at, "DM-092")?;
    if version == 0 {
        findings.add(at.place, "DM-092", "must be the version of an adopted manifest; the first one is 1");
    }
    Some(version)
}

/// What both generations read alike.
pub(crate) fn read_common(
    root: &At<'_>,
    device: Option<DeviceId>,
    adopted_version: Option<u64>,
    findings: &mut Findings,
) -> Option<Report> {
    if !findings.is_map(root, "MI-G2-101") {
        return None;
    }
    let assignment = findings
        .required(root, "deploymentId", "MI-G2-101")
        .and_then(|at| findings.parsed(&at, "MI-G2-101", AssignmentId::parse));
    let status = findings.required_map(root, "status", "MI-G2-101");
    let (state, fault) = match &status {
        Some(at) => (read_state(at, findings), read_fault(at, findings)),
        None => (None, None),
    };
    let items = findings.required_items(root, "components", "DM-090")?;
    if items.len() > COMPONENT_COUNT_MAX {
        let message = format!("has {} components, at most {COMPONENT_COUNT_MAX} are accepted", items.len());
        findings.add("/components", "DM-090", message);
        return None;
    }
    let mut components: Vec<ComponentReport> =
        items.iter().filter_map(|at| read_component(at, findings)).collect();
    let detail = read_detail(root, &mut components);
    Some(Report {
        assignment: assignment?,
        device,
        adopted_version: adopted_version?,
        state: state?,
        fault,
        components,
        detail,
        signed_at: None,
    })
}

fn read_component(at: &At<'_>, findings: &mut Findings) -> Option<ComponentReport> {
    if !findings.is_map(at, "DM-090") {
        return None;
    }
    let name = findings.required_text(at, "name", "DM-090").map(|name| bounded(name, 200));
    let state = read_state(at, findings);
    let fault = read_fault(at, findings);
    Some(ComponentReport { name: name?, state: state?, fault, restarts: 0 })
}

fn read_state(at: &At<'_>, findings: &mut Findings) -> Option<Reported> {
    let text = findings.required_text(at, "state", "DM-091")?;
    let state = Reported::parse(text);
    if state.is_none() {
        let shown = bounded(text, 60);
        let message =
            format!("must be pending, installing, installed, failed, removing or removed, got {shown:?}");
        findings.add(at.place_of("state"), "DM-091", message);
    }
    state
}

/// An error object whose texts are all empty says that there is none (DM-096).
fn read_fault(at: &At<'_>, findings: &mut Findings) -> Option<Fault> {
    let error = at.field("error").filter(|at| findings.is_map(at, "DM-093"))?;
    let mut text = |key: &str| {
        let text = findings.optional_text(&error, key, "DM-093").unwrap_or_default();
        bounded(&text, TEXT_LENGTH_MAX)
    };
    let fault = Fault { code: text("code"), source: text("source"), message: text("message") };
    let empty = fault.code.is_empty() && fault.source.is_empty() && fault.message.is_empty();
    (!empty).then_some(fault)
}

fn bounded(text: &str, length_max: usize) -> String {
    text.chars().take(length_max).collect()
}

/// Our agent's addition. One that this server cannot read comes from a newer agent; the report itself is
/// still true, and refusing it would block that agent's queue for ever.
fn read_detail(root: &At<'_>, components: &mut [ComponentReport]) -> Option<Detail> {
    let fields: Map<String, Value> = root.field(EXTENSION)?.node.to_object();
    let detail: DetailBody = serde_json::from_value(Value::Object(fields)).ok()?;
    read_restarts(&detail.restarts, components);
    Some(Detail {
        state: detail.state,
        sequence: detail.sequence,
        at: Moment(detail.at),
        document: detail.document,
        attempt: detail.attempt,
        next_try: detail.next_try.map(Moment),
        reason: detail.reason.map(|reason| bounded(&reason, TEXT_LENGTH_MAX)),
        waiting: detail.waiting.map(|waiting| bounded(&waiting, TEXT_LENGTH_MAX)),
        awaited: detail.awaited.as_deref().and_then(Awaited::parse),
        life: detail.life,
        memory: detail.memory,
        holds: detail.holds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(components: usize, message: &str) -> Report {
        let fault = |source: &str| Fault {
            code: "remove-failed".into(),
            source: source.into(),
            message: message.to_owned(),
        };
        let component = |number: usize| ComponentReport {
            name: format!("component-{number}"),
            state: Reported::Removing,
            fault: Some(fault(&format!("component-{number}"))),
            restarts: 3,
        };
        Report {
            assignment: AssignmentId::parse("00000000-0000-4000-8000-000000000001").unwrap(),
            device: None,
            adopted_version: 7,
            state: Reported::Removing,
            fault: Some(fault("app")),
            components: (0..components).map(component).collect(),
            detail: None,
            signed_at: None,
        }
    }

    #[test]
    fn a_report_of_many_components_that_say_much_is_cut_until_a_server_takes_it() {
        let some = report(20, &"x".repeat(1000));
        assert_eq!(
            read(&write(&some)).unwrap().components[19].fault,
            some.components[19].fault,
            "there is room"
        );
        // As many as a package may have, and with what costs six bytes each.
        for message in ["é".repeat(500), "\u{1b}".repeat(1000)] {
            let many = report(200, &message);
            let written = write(&many);
            assert!(written.len() <= 64 * 1024, "{}", written.len());
            let told = read(&written).unwrap();
            assert_eq!((told.state, told.components.len()), (many.state, 200));
            assert_eq!(told.fault.map(|fault| fault.source), Some("app".to_owned()));
            assert!(told.components.iter().all(|component| component.fault.is_some()));
        }
    }
}
