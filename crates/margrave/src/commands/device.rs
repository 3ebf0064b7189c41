//! `margrave device`: the fleet's devices.

use std::collections::BTreeMap;

use jiff::Timestamp;
use margrave_core::report::restarted;
use margrave_wire::intent::Apply;
use margrave_wire::operator::{self, AcceptCertificate, CreateJoinToken, HoldDevice, MoveDevice, SetLabels};
use margrave_wire::resource::{DeviceFile, DeviceSpec};

use super::confirm::{confirm, confirm_at_terminal};
use crate::cli::{self, Noun};
use crate::client::Client;
use crate::exit::{Answer, Result, Trouble};
use crate::render::{self, Column, Field, Screen, Table, printable};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Device>) -> Result {
    let client = Client::connect(&args.connection)?;
    match args.verb {
        cli::Device::List { waiting: true, .. } => list_waiting(screen, &client.waiting().await?),
        cli::Device::List {
            search,
            label,
            condition,
            state,
            site,
            deployment,
            capability,
            waiting: false,
        } => {
            let label = label.map(|label| if label.contains('=') { label } else { format!("{label}=") });
            let state = state.map(|state| state.to_uppercase());
            let filters = [
                ("search", search),
                ("label", label),
                ("condition", condition),
                ("state", state),
                ("site", site),
                ("deployment", deployment),
                ("capability", capability),
            ];
            let devices = client.devices(&filters).await?;
            list(screen, &devices, filters.iter().any(|(_, asked)| asked.is_some()))?;
            if !screen.json {
                remind(screen, client.waiting().await?.len());
            }
            Ok(Answer::Done)
        }
        cli::Device::Show { device } => show(screen, &client.device(&device).await?),
        cli::Device::Tokens => tokens(screen, &client.join_tokens().await?),
        cli::Device::Untoken { device } => {
            client.revoke_join_token(&device).await?;
            if screen.json {
                screen.object(&serde_json::json!({ "device": device, "revoked": true }))?;
            } else {
                screen
                    .words(format_args!("Nobody can join as {device} with the token that was made for it."));
            }
            Ok(Answer::Done)
        }
        cli::Device::Git(args) => super::git::run(screen, &client, args).await,
        cli::Device::Token { name, labels, valid, git } => {
            let labels = cli::unique(&labels).map_err(Trouble::broke)?;
            let want = CreateJoinToken { device: name, labels, valid_seconds: Some(valid.as_secs()), git };
            token(screen, &client.create_join_token(&want).await?)
        }
        cli::Device::Accept { certificate: Some(file), .. } => {
            let certificate = std::fs::read_to_string(&file)
                .map_err(|error| Trouble::because(format!("{} cannot be read", file.display()), &error))?;
            let accepted = client.accept_certificate(&AcceptCertificate { certificate }).await?;
            decided(screen, &accepted)
        }
        cli::Device::Accept { device, certificate: None } => {
            let device = device.unwrap_or_default();
            changed(screen, &client.accept(&device).await?, "accepted")
        }
        cli::Device::Reject { device } => decided(screen, &client.reject(&device).await?),
        cli::Device::Move { device, to, yes } => {
            let (old, new) = (client.device(&device).await?, client.device(&to).await?);
            let question = format!(
                "Move {} to {}? What it was labelled and given goes there, and {} is refused from then on.",
                old.id, new.id, old.id
            );
            if !confirm(&question, yes)? {
                screen.words("Nothing was changed.");
                return Ok(Answer::No);
            }
            let moved = client.move_device(&old.id, &MoveDevice { to: new.id }).await?;
            if screen.json {
                screen.object(&moved)?;
            } else {
                screen.words(format_args!("{} took the place of {}.", moved.id, old.id));
            }
            Ok(Answer::Done)
        }
        cli::Device::Retire { device, yes } => {
            let known = client.device(&device).await?;
            let question = match known.assignments.len() {
                0 => format!("Retire {}? It is out at once.", known.id),
                number => format!(
                    "Retire {}? It is out at once, and {} on it no longer managed.",
                    known.id,
                    if number == 1 {
                        "1 deployment is".to_owned()
                    } else {
                        format!("{number} deployments are")
                    }
                ),
            };
            if !confirm(&question, yes)? {
                screen.words("Nothing was changed.");
                return Ok(Answer::No);
            }
            changed(screen, &client.retire(&known.id).await?, "retired")
        }
        cli::Device::Hold { device, reason, length } => {
            let want = HoldDevice { reason, seconds: length.as_secs() };
            let device = client.hold(&device, &want).await?;
            let until = device.asked_hold.as_ref().map(|hold| render::clock(&hold.until)).unwrap_or_default();
            asked(screen, &device, &format!("is asked to hold changes back until {until}"))
        }
        cli::Device::Release { device } => {
            asked(screen, &client.release(&device).await?, "is asked to let changes go on")
        }
        cli::Device::Look { device } => asked(screen, &client.look(&device).await?, "is asked to look again"),
        cli::Device::Label { device, changes, yes } => {
            let labels = changes.into_iter().map(|change| (change.key, change.value)).collect();
            let lost = lost_by_labels(&client, &device, &labels).await?;
            if !lost.is_empty() {
                let lost = format!("This takes {} off {}.", lost.join(", "), printable(&device));
                screen.words(&lost);
                if !confirm_at_terminal("Go on?", yes)? {
                    screen.words("Nothing was changed.");
                    return Ok(Answer::No);
                }
            }
            let device = client.label(&device, &SetLabels { labels }).await?;
            if screen.json {
                screen.object(&device)?;
            } else {
                screen.data(format_args!("{}  {}", device.id, render::labels(&device.labels)))?;
            }
            Ok(Answer::Done)
        }
    }
}

/// The deployments that choose the device by what it would not be labelled with any more. Where that cannot be said, what is asked
/// for next says why.
async fn lost_by_labels(
    client: &Client,
    device: &str,
    changes: &BTreeMap<String, Option<String>>,
) -> Result<Vec<String>> {
    let mut labels = client.device(device).await?.labels;
    for (key, value) in changes {
        match value {
            Some(value) => drop(labels.insert(key.clone(), value.clone())),
            None => drop(labels.remove(key)),
        }
    }
    let spec = DeviceSpec { labels: Some(labels), ..DeviceSpec::default() };
    let file = serde_json::to_string(&DeviceFile::new(device.to_owned(), spec));
    let file = file.map_err(|error| Trouble::because("the labels cannot be written", &error))?;
    let want = Apply { documents: vec![file], dry_run: true, ..Apply::default() };
    let Ok(applied) = client.apply(&want).await else { return Ok(Vec::new()) };
    let changes = applied.plan.unwrap_or_default().changes.into_iter();
    Ok(changes
        .filter(|change| change.to.is_none())
        .map(|change| printable(&change.deployment).to_string())
        .collect())
}

/// That somebody waits is worth a line wherever devices are looked at.
fn remind(screen: &Screen, waiting: usize) {
    let words = match waiting {
        0 => return,
        1 => "\n1 device waits to be accepted: margrave device list --waiting".to_owned(),
        more => format!("\n{more} devices wait to be accepted: margrave device list --waiting"),
    };
    screen.words(words);
}

fn list_waiting(screen: &Screen, waiting: &[operator::SignedClient]) -> Result {
    if screen.json {
        screen.object(&waiting)?;
        return Ok(Answer::Done);
    }
    if waiting.is_empty() {
        screen.words("No device waits to be accepted.");
        return Ok(Answer::Done);
    }
    let now = Timestamp::now();
    let mut table = Table::new(&[
        Column::fixed("ID"),
        Column::fixed("FINGERPRINT"),
        Column::fixed("ASKED").optional(),
        Column::fixed("FROM").optional(),
        Column::flexible("SAYS IT IS"),
    ]);
    for client in waiting {
        table.row([
            client.client.as_str().into(),
            client.fingerprint.as_str().into(),
            render::ago(&client.last_seen, now).into(),
            client.address.clone().unwrap_or_default().into(),
            client.subject.as_str().into(),
        ]);
    }
    screen.table(&table)?;
    screen.words("\nCompare the fingerprint with what the device shows, then: margrave device accept ID");
    Ok(Answer::Done)
}

fn decided(screen: &Screen, client: &operator::SignedClient) -> Result {
    if screen.json {
        screen.object(client)?;
    } else {
        screen.words(format_args!("{} is {}.", client.client, client.decision));
    }
    Ok(Answer::Done)
}

fn list(screen: &Screen, devices: &[operator::Device], filtered: bool) -> Result {
    if screen.json {
        screen.object(&devices)?;
        return Ok(Answer::Done);
    }
    if devices.is_empty() {
        screen.words(nobody(filtered));
        return Ok(Answer::Done);
    }
    screen.table(&table(devices, Timestamp::now()))?;
    Ok(Answer::Done)
}

/// What is said of an empty list.
fn nobody(filtered: bool) -> &'static str {
    match filtered {
        true => "No device matches.",
        false => "No device is there. Make a token for one with `margrave device token --name NAME`.",
    }
}

/// Devices as `device list` and `status` show them.
pub(crate) fn table(devices: &[operator::Device], now: Timestamp) -> Table {
    let mut table = Table::new(&[
        Column::fixed("DEVICE"),
        Column::fixed("CONDITION"),
        Column::fixed("RUNS"),
        Column::fixed("CONTACT").optional(),
        Column::fixed("LABELS").optional(),
        Column::flexible("REASON"),
    ]);
    for device in devices {
        let name = if device.simulated { format!("{} (simulated)", device.id) } else { device.id.clone() };
        // What waits for its turn in a rollout runs as it was before.
        let keeps = |a: &operator::Assignment| a.waiting.as_ref().is_some_and(|w| w.keeps.is_some());
        let runs = |a: &&operator::Assignment| a.state == "INSTALLED" && (a.current || keeps(a));
        let installed = device.assignments.iter().filter(runs).count();
        table.row([
            name.into(),
            Field::state(&device.condition),
            format!("{installed}/{}", device.assignments.len()).into(),
            device.last_contact.as_deref().map_or("never".to_owned(), |at| render::ago(at, now)).into(),
            render::labels(&device.labels).into(),
            device.reason.clone().unwrap_or_default().into(),
        ]);
    }
    table
}

fn show(screen: &Screen, device: &operator::Device) -> Result {
    if screen.json {
        screen.object(device)?;
        return Ok(Answer::Done);
    }
    let now = Timestamp::now();
    let mut facts = vec![
        ("Device", device.id.clone()),
        ("Condition", device.condition.clone()),
        ("Standing", device.standing.clone()),
    ];
    if device.form == "g1" {
        facts.push(("Interface", format!("g1 (signed requests), as {}", device.client)));
    }
    if let Some(reason) = &device.reason {
        facts.push(("Reason", reason.clone()));
    }
    if device.simulated {
        facts.push(("Simulated", "yes, nothing really runs there".to_owned()));
    }
    facts.push(("Labels", render::labels(&device.labels)));
    facts.push((
        "Contact",
        device.last_contact.as_deref().map_or("never".to_owned(), |at| render::ago(at, now)),
    ));
    facts.push(("Manifest", format!("version {}", device.manifest_version)));
    if let Some(expires) = &device.certificate_expires {
        facts.push(("Certificate", format!("until {}", render::clock(expires))));
    }
    if let Some(operator::CannotLook { since, message }) = &device.cannot_look {
        facts.push(("Cannot look", format!("at its containers since {}: {message}", render::clock(since))));
    }
    facts.extend(restarts(device).map(|words| ("Restarts", words)));
    for operator::Hold { holder, reason, until, .. } in &device.holds {
        facts.push(("Held back", format!("by {holder} until {}: {reason}", render::clock(until))));
    }
    if let Some(operator::Hold { holder, reason, until, .. }) = &device.asked_hold {
        facts.push(("Asked to wait", format!("by {holder} until {}: {reason}", render::clock(until))));
    }
    if let Some(operator::Look { at, by, done }) = &device.asked_look {
        let answer = if *done { "done" } else { "not answered yet" };
        facts.push(("Asked to look", format!("by {by} {}, {answer}", render::ago(at, now))));
    }
    if let Some(conflict) = &device.schedule_conflict {
        facts.push(("Schedule", conflict.clone()));
    }
    if let Some(schedule) = &device.schedule {
        facts.push(("Schedule", schedule.words().join("; ")));
    }
    let own = device.capabilities.as_ref().and_then(|body| body.pointer("/x-margrave-extensions/overrides"));
    if let Some(words) = own.map(render::value).filter(|words| !words.is_empty()) {
        facts.push(("Set on it", words));
    }
    if let Some(capabilities) = &device.capabilities {
        let property =
            |pointer: &str| capabilities.pointer(pointer).map(render::value).filter(|text| !text.is_empty());
        let model = [property("/properties/vendor"), property("/properties/modelNumber")];
        let model: Vec<String> = model.into_iter().flatten().filter(|text| text != "unknown").collect();
        if !model.is_empty() {
            facts.push(("Model", model.join(" ")));
        }
        if let Some(runtimes) = property("/properties/supportedDeploymentTypes") {
            facts.push(("Can run", runtimes));
        }
    }
    screen.facts(&facts)?;
    if device.assignments.is_empty() {
        return Ok(Answer::Done);
    }
    screen.heading("Deployments")?;
    screen.table(&assignments(&device.assignments, By::Deployment, now))?;
    if device.condition != "converged" {
        screen.words(format_args!("\nMore: margrave why {}", device.id));
    }
    Ok(Answer::Done)
}

/// What was brought back on the device since it was started, a line for each deployment.
fn restarts(device: &operator::Device) -> impl Iterator<Item = String> {
    device.assignments.iter().filter_map(|assignment| {
        let again = assignment.components.iter().filter_map(|of| Some((&of.name, of.restarts?)));
        let words: Vec<String> = again.map(|(name, times)| format!("{name} {}", restarted(times))).collect();
        (!words.is_empty()).then(|| format!("{}: {}", assignment.deployment, words.join(", ")))
    })
}

/// What the first column of a list of assignments is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Deployment,
    Device,
}

pub(crate) fn assignments(assignments: &[operator::Assignment], by: By, now: Timestamp) -> Table {
    let first = match by {
        By::Deployment => "DEPLOYMENT",
        By::Device => "DEVICE",
    };
    let mut table = Table::new(&[
        Column::fixed(first),
        Column::fixed("STATE"),
        Column::fixed("PACKAGE"),
        Column::fixed("SINCE").optional(),
        Column::flexible("REASON"),
    ]);
    for assignment in assignments {
        let name = match by {
            By::Deployment => &assignment.deployment,
            By::Device => &assignment.device,
        };
        table.row([
            name.as_str().into(),
            Field::state(word(assignment)),
            package(assignment).into(),
            assignment.changed_at.as_deref().map_or(String::new(), |at| render::ago(at, now)).into(),
            reason(assignment).into(),
        ]);
    }
    table
}

/// What runs; beside it what is wanted, where that is another version.
fn package(assignment: &operator::Assignment) -> String {
    let operator::Assignment { package, version, runs, .. } = assignment;
    match runs {
        Some(runs) => format!("{package}@{runs}, wanted {version}"),
        None => format!("{package}@{version}"),
    }
}

/// Its state, or that a rollout holds it back where nothing worse is to be told.
fn word(assignment: &operator::Assignment) -> &str {
    match (&assignment.waiting, assignment.state.as_str()) {
        (Some(waiting), "INSTALLED" | "PENDING") if waiting.word == "left-behind" => "LEFT",
        (Some(_), "INSTALLED" | "PENDING") => "WAITING",
        (_, state) => state,
    }
}

/// What there is to say about an assignment beside its state.
pub(crate) fn reason(assignment: &operator::Assignment) -> String {
    let mut parts = Vec::new();
    if let Some(reason) = &assignment.reason {
        parts.push(reason.clone());
    }
    if let Some(error) = &assignment.error
        && !parts.iter().any(|part| part.contains(&error.message))
    {
        parts.push(format!("{}: {}", error.code, error.message));
    }
    if parts.is_empty() && !assignment.current {
        parts.push("of an older revision; the device has not taken up the newest".to_owned());
    }
    parts.join("; ")
}

fn token(screen: &Screen, token: &operator::JoinToken) -> Result {
    if screen.json {
        screen.object(token)?;
        return Ok(Answer::Done);
    }
    screen.words(format_args!(
        "{} may join once, until {}. On the device:\n",
        token.device,
        render::clock(&token.expires)
    ));
    screen.data(&token.command)?;
    Ok(Answer::Done)
}

fn tokens(screen: &Screen, tokens: &[operator::OpenJoinToken]) -> Result {
    if screen.json {
        screen.object(&tokens)?;
        return Ok(Answer::Done);
    }
    if tokens.is_empty() {
        screen.words("No join token is open. Make one with `margrave device token`.");
        return Ok(Answer::Done);
    }
    let mut table = Table::new(&[
        Column::fixed("DEVICE"),
        Column::fixed("UNTIL"),
        Column::fixed("MADE BY"),
        Column::flexible("LABELS"),
    ]);
    for token in tokens {
        let labels: Vec<String> = token.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        table.row([
            token.device.as_str().into(),
            render::clock(&token.expires).into(),
            token.created_by.as_str().into(),
            labels.join(" ").into(),
        ]);
    }
    screen.table(&table)?;
    Ok(Answer::Done)
}

/// The device does it when it hears of it, which is not now where it is away.
fn asked(screen: &Screen, device: &operator::Device, words: &str) -> Result {
    if screen.json {
        screen.object(device)?;
    } else {
        screen.words(format_args!("{} {words}.", device.id));
        if device.condition == "silent" {
            screen.words("It is silent at the moment, and hears of it when it is back.");
        }
    }
    Ok(Answer::Done)
}

fn changed(screen: &Screen, device: &operator::Device, word: &str) -> Result {
    if screen.json {
        screen.object(device)?;
    } else {
        screen.words(format_args!("{} is {word}.", device.id));
    }
    Ok(Answer::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_finds_nobody_does_not_say_that_the_fleet_is_empty() {
        assert_eq!(nobody(true), "No device matches.");
        assert!(nobody(false).contains("margrave device token"));
    }
}
