//! A device: its page, labels, adding one and retiring one. The list is `devices.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use margrave_core::id::DeviceRef;
use margrave_core::observed::clock_words;
use margrave_wire::intent::Planned;
use margrave_wire::operator;
use serde_json::Value;

use super::Web;
use super::address::{Path, Query};
use super::asking::Asking;
use super::assignment::{AssignmentLine, is_held_back, settled};
use super::badge::Badge;
use super::certificate::expiry;
use super::command::{Command, plain};
use super::confirm::ConfirmPage;
use super::demo::BrokenNote;
use super::deployment;
use super::error::{PageError, sentence};
use super::fleet::Activity;
use super::frame::{Frame, Section, render};
use super::health::{Health, HealthLine};
use super::link;
use super::paging::Pages;
use super::session::{Changer, Fields, Submitted, Visitor};
use super::stamp::Stamp;
use super::tiers::counted;
use super::told::Told;
use super::week::{self, Week};
use super::why::Chain;
use super::wrong::Wrong;
use crate::fleet::{Error, Fleet};

/// Join tokens on a page.
const TOKENS_SIZE: usize = 100;
const TIMELINE_MAX: usize = 50;
/// Steps of an assignment that its device's page lists.
const STEPS_MAX: usize = 20;
/// A certificate that somebody has to replace on the device is told of so long before.
const SIGNED_SOON: Duration = Duration::from_secs(30 * 24 * 3600);
/// The form of devices that sign their requests.
pub(super) const SIGNED: &str = "g1";

#[derive(Template)]
#[template(path = "device.html")]
struct DevicePage {
    frame: Frame,
    device: operator::Device,
    path: String,
    /// What somebody broke about it, where this is a demo.
    broken: Option<BrokenNote>,
    badge: Badge,
    reason: Option<String>,
    contact: Option<Stamp>,
    certificate: Option<Stamp>,
    certificate_warning: Option<&'static str>,
    why: Option<Chain>,
    assignments: Vec<AssignmentCard>,
    health: Health,
    facts: Vec<Fact>,
    /// Who holds changes back, and when it talks and changes.
    times: Vec<Fact>,
    week: Option<Week>,
    schedule_path: String,
    asking: Asking,
    own_labels: Vec<String>,
    timeline: Vec<Activity>,
    command: Command,
    why_command: Command,
    label_commands: Vec<Command>,
    schedule_command: Command,
    /// Retires it, or lets it in again.
    standing_command: Command,
    retired: bool,
    signed: bool,
    /// It speaks through its gateway, and only that can be retired.
    child: bool,
}

/// One line of what a device is, in words.
struct Fact {
    name: &'static str,
    text: String,
    /// A moment that the text ends with.
    when: Option<Stamp>,
}

impl Fact {
    fn new(name: &'static str, text: String) -> Self {
        Fact { name, text, when: None }
    }
}

/// That it cannot look, who holds changes back, when it talks and changes, where that is not as usual, and what was set on the device itself.
fn schedule_facts(device: &operator::Device) -> Vec<Fact> {
    let held = device.holds.iter().map(|operator::Hold { holder, reason, until, .. }| Fact {
        name: "Held back",
        text: format!("by {holder}: {reason}, until "),
        when: Some(Stamp::at(until)),
    });
    let blind = device.cannot_look.iter().map(|operator::CannotLook { since, message }| Fact {
        name: "Cannot look",
        text: format!("at its containers ({message}), since "),
        when: Some(Stamp::at(since)),
    });
    let told = device.schedule.iter().flat_map(week::lines);
    let told = told.map(|(name, text)| Fact::new(name, text));
    let own = device
        .capabilities
        .iter()
        .filter_map(|body| body.pointer("/x-margrave-extensions/overrides")?.as_array());
    let own = own.flatten().filter_map(|words| words.as_str());
    let conflict = device.schedule_conflict.clone().map(|text| Fact::new("Conflict", text));
    let facts = blind.chain(held).chain(conflict);
    facts.chain(told).chain(own.map(|text| Fact::new("Set on it", text.to_owned()))).collect()
}

/// An assignment with its components, as it stands on a device's page.
struct AssignmentCard {
    line: AssignmentLine,
    deployment: String,
    path: String,
    package: String,
    package_path: String,
    why: Option<Chain>,
    /// What it went through, the newest first.
    steps: Vec<Step>,
}

/// One step in an assignment's life.
struct Step {
    badge: Badge,
    at: Stamp,
    words: Option<String>,
}

impl Step {
    fn of(transition: &operator::Transition) -> Self {
        // What runs again after an update failed carries that failure on; it was told where it happened.
        let error = transition.error.as_ref().filter(|_| transition.state != "INSTALLED");
        let error = error.map(|error| format!("{} ({})", error.message, error.code));
        Step {
            badge: Badge::state(&transition.state),
            at: Stamp::at(&transition.at),
            words: error.or_else(|| transition.reason.clone()),
        }
    }
}

pub(super) async fn show(
    State(web): State<Web>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    let id = parse(&id)?;
    let name = id.to_string();
    let frame = Frame::new(&web, &visitor, Section::Devices, name.clone()).await?.watching("device", &name);
    let frame = frame.leading_to("/devices".to_owned());
    let fleet = web.fleet();
    let device = match fleet.device(&id).await {
        // Somebody who waits has no page; the list says what there is to know.
        Err(Error::NotFound { .. }) if is_waiting(fleet, &name)? => {
            return Ok(Redirect::to("/devices").into_response());
        }
        device => device?,
    };
    let settled = matches!(device.condition.as_str(), "converged" | "retired");
    let why = if settled { None } else { Some(Chain::of(&fleet.why(&name).await?)) };
    let mut assignments = Vec::with_capacity(device.assignments.len());
    let mut health = Vec::with_capacity(device.assignments.len());
    for assignment in &device.assignments {
        let steps = steps(fleet, &id, assignment).await?;
        health.push(HealthLine::of(assignment, &steps));
        assignments.push(assignment_card(&web, assignment, &steps).await?);
    }
    let events = fleet.device_events(&id, TIMELINE_MAX).await?;
    render(&DevicePage {
        frame,
        path: link::device(&name),
        broken: BrokenNote::of(&web, &id).await?,
        badge: Badge::condition(&device.condition),
        reason: device.reason.clone(),
        contact: device.last_contact.as_deref().map(Stamp::ago),
        certificate: device.certificate_expires.as_deref().map(Stamp::at),
        certificate_warning: device.certificate_expires.as_deref().and_then(|expires| {
            // Only those that sign their requests have to be given another by somebody.
            let soon = if device.form == SIGNED { SIGNED_SOON } else { Duration::ZERO };
            expiry(fleet.now(), expires, soon)
        }),
        why,
        assignments,
        health: Health::of(&device, health),
        facts: device.capabilities.iter().flat_map(facts).chain(clock(&device)).collect(),
        times: schedule_facts(&device),
        week: device.schedule.as_ref().and_then(|schedule| Week::of(schedule, fleet.now())),
        schedule_path: link::schedule(&format!("device:{name}")),
        asking: Asking::of(&device, fleet.hold_max(&id)),
        own_labels: device.capabilities.as_ref().map(own_labels).unwrap_or_default(),
        timeline: events.iter().map(Activity::of).collect(),
        command: Command::new(["margrave", "device", "show", &name]),
        why_command: Command::new(["margrave", "why", &name]),
        label_commands: label_commands(&name, &device.labels),
        schedule_command: Command::new([
            "margrave",
            "schedule",
            "set",
            &format!("device:{name}"),
            "--window",
            "sun 02:00-05:00 Europe/Berlin",
        ]),
        standing_command: match device.standing.as_str() {
            "retired" => Command::new(["margrave", "device", "accept", &name]),
            _ => Command::new(["margrave", "device", "retire", &name]),
        },
        retired: device.standing == "retired",
        signed: device.form == SIGNED,
        child: id.device.is_child(),
        device,
    })
}

/// What an assignment went through, the oldest first.
async fn steps(
    fleet: &Fleet,
    device: &DeviceRef,
    assignment: &operator::Assignment,
) -> Result<Vec<operator::Transition>, PageError> {
    match fleet.transitions(&deployment::parse(&assignment.deployment)?, device).await {
        Ok(steps) => Ok(steps),
        Err(Error::NotFound { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

async fn assignment_card(
    web: &Web,
    assignment: &operator::Assignment,
    steps: &[operator::Transition],
) -> Result<AssignmentCard, PageError> {
    // What it waits for in a rollout its reason says, and the device's own chain to the end.
    let why = if settled(assignment) || is_held_back(assignment) {
        None
    } else {
        match web.fleet().why(&format!("{}/{}", assignment.device, assignment.deployment)).await {
            Ok(why) if !why.chain.is_empty() => Some(Chain::of(&why)),
            // It may have gone between two reads; the page then simply has no reason to show.
            Ok(_) | Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        }
    };
    Ok(AssignmentCard {
        line: AssignmentLine::of(assignment),
        deployment: assignment.deployment.clone(),
        path: link::deployment(&assignment.deployment),
        package: format!("{} {}", assignment.package, assignment.version),
        package_path: link::package(&assignment.package, &assignment.version),
        why,
        steps: steps.iter().rev().take(STEPS_MAX).map(Step::of).collect(),
    })
}

/// What sets a label, and what takes away each that there is.
fn label_commands(name: &str, labels: &BTreeMap<String, String>) -> Vec<Command> {
    let command = |label: &str| Command::new(["margrave", "device", "label", name, label]);
    let removing = labels.keys().map(|key| command(&format!("{key}-")));
    [command("site=north")].into_iter().chain(removing).collect()
}

/// That its clock is wrong, by what it last reported.
fn clock(device: &operator::Device) -> Option<Fact> {
    let words = clock_words(device.clock_ahead_seconds?);
    Some(Fact::new("Clock", format!("{words}, when it last reported")))
}

/// What the device reported, in words. Anything unexpected is left out rather than guessed at.
fn facts(capabilities: &Value) -> Vec<Fact> {
    let properties = capabilities.get("properties").unwrap_or(capabilities);
    // Older devices keep what they have in a place of its own, and call the list of processors otherwise.
    let resources = properties.get("resources").unwrap_or(properties);
    let within = |name: &str| properties.get(name).or_else(|| resources.get(name));
    // Agents write `unknown` where a required field has no value.
    let text = |name: &str| within(name).map(plain).filter(|text| !text.is_empty() && text != "unknown");
    let list = |name: &str, key: Option<&str>| {
        let items = within(name)?.as_array()?;
        let words: Vec<String> = items
            .iter()
            .filter_map(|item| match key {
                Some(key) => item.get(key),
                None => Some(item),
            })
            .map(plain)
            .collect();
        (!words.is_empty()).then(|| words.join(", "))
    };
    let cpus = within("cpus").or_else(|| within("cpu")).filter(|cpus| cpus.is_array() || cpus.is_object());
    let cpus = cpus.map(|cpus| {
        let cpus = cpus.as_array().map_or(std::slice::from_ref(cpus), Vec::as_slice);
        let words = cpus.iter().map(|cpu| {
            let cores = cpu.get("cores").map(plain).unwrap_or_default();
            let architecture = cpu.get("architecture").or_else(|| cpu.get("architectures"));
            let architecture = architecture.map(plain).unwrap_or_default();
            let unit = if cores == "1" { "core" } else { "cores" };
            format!("{cores} {unit} {architecture}").trim().to_owned()
        });
        words.collect::<Vec<_>>().join(", ")
    });
    let maker = [text("vendor"), text("modelNumber")].into_iter().flatten().collect::<Vec<_>>().join(" ");
    [
        ("Made by", Some(maker).filter(|maker| !maker.is_empty())),
        ("Serial number", text("serialNumber")),
        ("Processor", cpus.filter(|cpus| !cpus.is_empty())),
        ("Memory", text("memory").map(|text| size(&text))),
        ("Storage", text("storage").map(|text| size(&text))),
        ("Runs", list("supportedDeploymentTypes", None)),
        ("Roles", list("roles", None)),
        ("Interfaces", list("interfaces", Some("type"))),
        ("Peripherals", list("peripherals", Some("type"))),
    ]
    .into_iter()
    .filter_map(|(name, text)| text.map(|text| Fact::new(name, text)))
    .collect()
}

/// A quantity such as `24103Mi` as people say it, `23.5 GiB`; what cannot be read stays as it is.
fn size(quantity: &str) -> String {
    let end = quantity.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(quantity.len());
    let scale = match quantity[end..].trim() {
        "Ki" => 1,
        "Mi" => 2,
        "Gi" => 3,
        "Ti" => 4,
        _ => return quantity.to_owned(),
    };
    let Ok(mut number) = quantity[..end].parse::<f64>() else { return quantity.to_owned() };
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = scale - 1;
    while number >= 1024.0 && unit + 1 < units.len() {
        number /= 1024.0;
        unit += 1;
    }
    let number = format!("{number:.1}");
    format!("{} {}", number.strip_suffix(".0").unwrap_or(&number), units[unit])
}

/// Labels that the device gave itself; operators cannot change these.
fn own_labels(capabilities: &Value) -> Vec<String> {
    let labels = capabilities.get("properties").and_then(|properties| properties.get("labels"));
    let labels = labels.or_else(|| capabilities.get("labels")).and_then(Value::as_object);
    labels
        .map(|labels| labels.iter().map(|(key, value)| format!("{key}={}", plain(value))).collect())
        .unwrap_or_default()
}

/// The fields of the form of a new device, and what the fleet calls each.
const FIELDS: [(&str, &str); 2] = [("name", "device"), ("labels", "labels")];

#[derive(Template)]
#[template(path = "device-new.html")]
struct NewDevicePage {
    frame: Frame,
    name: String,
    labels: String,
    wrong: Wrong,
    token: Option<operator::JoinToken>,
    join: Option<Command>,
    expires: Option<Stamp>,
    open: Vec<OpenToken>,
    pages: Pages,
    tokens_command: Command,
    command: Command,
}

/// A token that nobody used yet.
struct OpenToken {
    device: String,
    revoke: String,
    labels: Vec<String>,
    expires: Stamp,
    by: String,
}

impl OpenToken {
    fn of(token: operator::OpenJoinToken) -> Self {
        OpenToken {
            revoke: format!("/devices/new/{}/revoke", link::encode(&token.device)),
            labels: token.labels.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            expires: Stamp::at(&token.expires),
            by: deployment::who(&token.created_by),
            device: token.device,
        }
    }
}

#[derive(serde::Deserialize)]
pub(super) struct Asked {
    page: Option<usize>,
}

pub(super) async fn new(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Query(Asked { page }): Query<Asked>,
) -> Result<Response, PageError> {
    new_page(&web, &visitor, String::new(), String::new(), Ok(None), page).await
}

async fn new_page(
    web: &Web,
    visitor: &Visitor,
    name: String,
    labels: String,
    outcome: Result<Option<operator::JoinToken>, Wrong>,
    page: Option<usize>,
) -> Result<Response, PageError> {
    let frame = Frame::new(web, visitor, Section::Devices, "Add a device").await?;
    let (token, wrong) = match outcome {
        Ok(token) => (token, Wrong::default()),
        Err(wrong) => (None, wrong),
    };
    let status = if wrong.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    let join = token.as_ref().map(|token| Command::ready(&token.command));
    let named = Some(["--name", name.as_str()]).filter(|_| !name.is_empty());
    let given = labels.split(',').map(str::trim).filter(|label| !label.is_empty());
    let told: Vec<[&str; 2]> = named.into_iter().chain(given.map(|label| ["--label", label])).collect();
    let mut open = web.fleet().join_tokens(u32::MAX).await?;
    let pages = Pages::cut(&mut open, page, TOKENS_SIZE, "Pages of tokens", "/devices/new?page=".to_owned())
        .at("#open");
    let page = NewDevicePage {
        tokens_command: Command::new(["margrave", "device", "tokens"]),
        open: open.into_iter().map(OpenToken::of).collect(),
        pages,
        frame,
        command: Command::new(
            ["margrave", "device", "token"].into_iter().chain(told.iter().flatten().copied()),
        ),
        name,
        labels,
        wrong,
        expires: token.as_ref().map(|token| Stamp::at(&token.expires)),
        token,
        join,
    };
    Ok((status, render(&page)?).into_response())
}

pub(super) async fn add(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let (name, labels) = (fields.one("name").to_owned(), fields.one("labels").to_owned());
    visitor.note.subject(&name);
    let outcome = match pairs(&labels) {
        Err(wrong) => Err(Wrong::at("labels", &wrong)),
        Ok(labels) => {
            let device = Some(name.clone()).filter(|name| !name.is_empty());
            let want = operator::CreateJoinToken { device, labels, valid_seconds: None, git: false };
            match web.fleet().create_join_token(&visitor.actor, want).await {
                Ok(token) => {
                    visitor.note.subject(&token.device);
                    Ok(Some(token))
                }
                Err(error @ Error::Invalid(_)) => Err(Wrong::of(&error, &FIELDS)),
                // Only a name can be taken already.
                Err(error @ Error::Conflict { .. }) => Err(Wrong::at("name", &error.to_string())),
                Err(error) => return Err(error.into()),
            }
        }
    };
    new_page(&web, &visitor, name, labels, outcome, None).await
}

pub(super) async fn revoke_ask(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Path(device): Path<String>,
) -> Result<Response, PageError> {
    let frame = Frame::new(&web, &visitor, Section::Devices, format!("Revoke the token of {device}")).await?;
    render(&ConfirmPage {
        frame,
        question: format!("Revoke the join token of {device}?"),
        effects: vec![
            "Nobody can join with it any more; another can be made.".to_owned(),
            "A device that has joined with it stays.".to_owned(),
        ],
        verb: "Revoke",
        harmless: false,
        action: format!("/devices/new/{}/revoke", link::encode(&device)),
        back: "/devices/new".to_owned(),
        fields: Vec::new(),
        command: Command::new(["margrave", "device", "untoken", &device]),
    })
}

pub(super) async fn revoke(
    State(web): State<Web>,
    Path(device): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    web.fleet().revoke_join_token(&submitted.visitor.actor, &device).await?;
    Ok(Redirect::to("/devices/new#open").into_response())
}

/// `key=value` pairs between commas or on lines of their own.
pub(super) fn pairs(text: &str) -> Result<BTreeMap<String, String>, String> {
    text.split([',', '\n'])
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok((key.trim().to_owned(), value.trim().to_owned()))
            }
            _ => Err(format!("“{pair}” is no label. Write key=value, several with commas between them.")),
        })
        .collect()
}

pub(super) async fn label(
    State(web): State<Web>,
    Path(id): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let id = parse(&id)?;
    let Submitted { visitor, fields, .. } = submitted;
    let change = match fields.one("remove") {
        "" => {
            let key = fields.one("key");
            if key.is_empty() {
                return Err(PageError::Malformed("A label needs a name.".to_owned()));
            }
            (key.to_owned(), Some(fields.one("value").to_owned()))
        }
        key => (key.to_owned(), None),
    };
    let want = operator::SetLabels { labels: [change].into() };
    if fields.one("sure").is_empty() {
        let devices = [id.clone()];
        let lost = web.fleet().lost_by_labels(&visitor.actor, &devices, &want).await?;
        if !lost.is_empty() {
            return label_ask(&web, &visitor, &id, &fields, &lost).await;
        }
    }
    web.fleet().label(&visitor.actor, &id, want).await?;
    Ok(Redirect::to(&link::device(&id.to_string())).into_response())
}

/// A label that deployments choose by takes applications away with it, so it is asked for.
async fn label_ask(
    web: &Web,
    visitor: &Visitor,
    id: &DeviceRef,
    fields: &Fields,
    lost: &[Planned],
) -> Result<Response, PageError> {
    let name = id.to_string();
    let path = link::device(&name);
    let (key, value) = (fields.one("key"), fields.one("value"));
    let (question, verb, label) = match fields.one("remove") {
        "" => (format!("Set {key}={value} on {name}?"), "Set the label", format!("{key}={value}")),
        removed => {
            (format!("Remove the label {removed} from {name}?"), "Remove the label", format!("{removed}-"))
        }
    };
    let frame = Frame::new(web, visitor, Section::Devices, question.trim_end_matches('?')).await?;
    let carried = ["remove", "key", "value"].into_iter().map(|field| (field, fields.one(field)));
    let carried = carried.filter(|(_, value)| !value.is_empty()).chain([("sure", "1")]);
    render(&ConfirmPage {
        frame,
        question,
        effects: vec![lost_words(lost)],
        verb,
        harmless: false,
        action: format!("{path}/labels"),
        back: path,
        fields: carried.map(|(field, value)| (field.to_owned(), value.to_owned())).collect(),
        command: Command::new(["margrave", "device", "label", &name, &label]),
    })
}

/// What goes, as the effect of something.
pub(super) fn lost_words(lost: &[Planned]) -> String {
    let names: BTreeSet<&str> = lost.iter().map(|planned| planned.deployment.as_str()).collect();
    let devices: BTreeSet<&str> = lost.iter().map(|planned| planned.device.as_str()).collect();
    let devices = match devices.len() {
        1 => devices.into_iter().collect(),
        more => counted(more as u64, "device"),
    };
    let names: Vec<&str> = names.into_iter().collect();
    format!(
        "This takes {} off {devices}: deployments that choose by label do not mean that any more.",
        names.join(", ")
    )
}

pub(super) async fn retire_ask(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    let id = parse(&id)?;
    let device = web.fleet().device(&id).await?;
    let frame = Frame::new(&web, &visitor, Section::Devices, format!("Retire {}", device.id)).await?;
    let back = link::device(&device.id);
    render(&ConfirmPage {
        frame,
        question: format!("Retire {}?", device.id),
        effects: vec![
            "It is shut out at once: this server answers none of its requests any more.".to_owned(),
            "What runs on it keeps running; this server just no longer hears of it.".to_owned(),
            "It can be accepted again later.".to_owned(),
        ],
        verb: "Retire",
        harmless: false,
        action: format!("{back}/retire"),
        back,
        fields: Vec::new(),
        command: Command::new(["margrave", "device", "retire", &device.id]),
    })
}

pub(super) async fn retire(
    State(web): State<Web>,
    Path(id): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let id = parse(&id)?;
    let device = web.fleet().retire(&submitted.visitor.actor, &id).await?;
    Ok(Redirect::to(&link::device(&device.id)).into_response())
}

pub(super) async fn accept(
    State(web): State<Web>,
    Path(id): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let id = parse(&id)?;
    let device = web.fleet().accept(&submitted.visitor.actor, &id).await?;
    Ok(Redirect::to(&link::device(&device.id)).into_response())
}

pub(super) async fn reject(
    State(web): State<Web>,
    Path(id): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    web.fleet().reject(&submitted.visitor.actor, &parse(&id)?).await?;
    Ok(Redirect::to("/devices").into_response())
}

fn is_waiting(fleet: &Fleet, id: &str) -> Result<bool, Error> {
    Ok(fleet.signed_clients(None)?.iter().any(|client| client.client == id && client.decision != "accepted"))
}

pub(super) fn parse(id: &str) -> Result<DeviceRef, PageError> {
    DeviceRef::parse(id).map_err(|error| PageError::Malformed(sentence(&error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn capabilities_are_told_in_words() {
        let shown = facts(&json!({"properties": {
            "vendor": "Northstar", "modelNumber": "N1", "cpus": [{"cores": 4, "architecture": "arm64"}],
            "memory": "8 Gi", "supportedDeploymentTypes": ["helm", "compose"],
            "interfaces": [{"type": "ethernet"}, {"type": "wifi"}], "peripherals": [],
        }}));
        let lines: Vec<String> = shown.iter().map(|fact| format!("{}: {}", fact.name, fact.text)).collect();
        assert_eq!(
            lines,
            [
                "Made by: Northstar N1",
                "Processor: 4 cores arm64",
                "Memory: 8 GiB",
                "Runs: helm, compose",
                "Interfaces: ethernet, wifi",
            ]
        );
        let older =
            facts(&json!({"properties": {"vendor": "Acme", "roles": ["Standalone Device"], "resources": {
                "cpu": {"cores": 2, "architectures": ["amd64"]}, "memory": "4Gi",
            }}}));
        let lines: Vec<String> = older.iter().map(|fact| format!("{}: {}", fact.name, fact.text)).collect();
        assert_eq!(
            lines,
            ["Made by: Acme", "Processor: 2 cores amd64", "Memory: 4 GiB", "Roles: Standalone Device"]
        );
        assert!(facts(&json!({"properties": {"cpus": "many", "interfaces": 7}})).is_empty());
        assert!(facts(&json!(null)).is_empty());
    }

    #[test]
    fn quantities_are_told_as_people_say_them() {
        for (quantity, said) in [
            ("24103Mi", "23.5 GiB"),
            ("59 Gi", "59 GiB"),
            ("512Ki", "512 KiB"),
            ("2048Gi", "2 TiB"),
            ("9999999Ti", "9765.6 PiB"),
            ("64G", "64G"),
            ("lots", "lots"),
            ("1.2.3Gi", "1.2.3Gi"),
            ("", ""),
        ] {
            assert_eq!(size(quantity), said);
        }
    }

    #[test]
    fn labels_are_pairs() {
        assert_eq!(
            pairs(" line = 4, site=north\n").unwrap(),
            [("line".into(), "4".into()), ("site".into(), "north".into())].into()
        );
        assert!(pairs("line").unwrap_err().contains("“line”"));
        assert!(pairs("=x").is_err());
    }
}
