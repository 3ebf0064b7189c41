//! `margrave status`: the fleet at a glance, once or live.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::time::Duration;

use jiff::Timestamp;
use margrave_wire::history::FleetThen;
use margrave_wire::operator::{Device, DeviceCounts, FleetStatus, Intent};
use tokio::time::Instant;

use super::{device, events};
use crate::cli::Status;
use crate::client::{Client, EventStream};
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Column, Field, Screen, Table, count, printable};

/// How many devices are listed; the rest is counted. A person reads no more than a screen.
const DEVICES_SHOWN_MAX: usize = 40;
/// How often to look while there is no stream, and at least while there is one: ages on the screen move.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Many events come at once when a deployment reaches a fleet; one look serves them all.
const GATHER: Duration = Duration::from_millis(150);
/// How long to leave a server alone that would not give a stream.
const STREAM_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What one look shows.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Look {
    #[serde(flatten)]
    status: FleetStatus,
    /// The worst first, as many as are shown.
    device_list: Vec<Device>,
    /// How the server stands to the repository that says what is wanted.
    intent: Intent,
}

impl Look {
    async fn take(client: &Client) -> Result<Look> {
        let (status, intent) = tokio::try_join!(client.status(), client.intent())?;
        let device_list = worst(client, &status.devices).await?;
        Ok(Look { status, device_list, intent })
    }

    /// What keeps the server from what its repository says, and whom it follows.
    fn intent_lines(&self) -> Vec<String> {
        let Intent { follows, away_since, conflict, flaws, commits_waiting, .. } = &self.intent;
        let mut lines = Vec::new();
        if let Some(url) = follows {
            let away = away_since.as_ref().map(|since| format!(", which does not answer since {since}"));
            lines.push(format!("what is wanted follows {url}{}", away.unwrap_or_default()));
        }
        if let Some(conflict) = conflict {
            lines.push(format!("a person has to decide: {conflict}"));
        }
        if let Some(flaw) = flaws.first() {
            let waiting = match commits_waiting {
                0 | 1 => String::new(),
                waiting => format!("; {} wait behind it", count(*waiting, "commit")),
            };
            lines.push(format!("a commit cannot be applied: {flaw}{waiting}; see `margrave intent show`"));
        }
        lines.iter().map(|line| printable(line)).collect()
    }

    /// What no time mends, after an outage that ended as well.
    fn given_up_line(&self) -> Option<String> {
        let (are, number) = match self.status.given_up {
            0 => return None,
            1 => ("is", "1".to_owned()),
            more => ("are", more.to_string()),
        };
        Some(format!(
            "{number} of those that FAILED {are} not tried again without a person: `margrave why DEVICE` says what to do"
        ))
    }

    fn lines(&self, screen: &Screen, now: Timestamp) -> Vec<String> {
        let counts = &self.status.devices;
        let mut lines = Vec::new();
        if let Some(demo) = &self.status.demo {
            lines.push(crate::render::printable(demo));
        }
        let words = [
            (counts.failed, "failed"),
            (counts.pending, "pending"),
            (counts.silent, "silent"),
            (counts.converged, "converged"),
        ];
        let words: Vec<String> = words
            .into_iter()
            .filter(|(number, word)| *number > 0 || *word == "converged")
            .map(|(number, word)| format!("{number} {}", screen.state(word)))
            .collect();
        lines.push(format!("{}: {}", screen.bold(&count(counts.total, "device")), words.join(", ")));
        let states: Vec<String> = [
            "FAILED",
            "ROLLINGBACK",
            "PENDING",
            "INSTALLING",
            "UPDATING",
            "DELETING",
            "WAITING",
            "NOTYET",
            "LEFT",
            "NEVER",
            "INSTALLED",
        ]
        .into_iter()
        .filter_map(|state| self.status.assignments.get(state).map(|number| (state, *number)))
        .filter(|(_, number)| *number > 0)
        .map(|(state, number)| format!("{number} {}", screen.state(state)))
        .collect();
        let states = if states.is_empty() { "nothing is deployed".to_owned() } else { states.join(", ") };
        lines.push(format!(
            "{}: {states}",
            screen.bold(&format!(
                "{} of {}",
                count(self.status.deployments, "deployment"),
                count(self.status.packages, "package")
            ))
        ));
        lines.extend(self.given_up_line());
        lines.extend(self.intent_lines());
        if !self.device_list.is_empty() {
            lines.push(String::new());
            lines.extend(screen.table_lines(&device::table(&self.device_list, now)));
            let more = counts.total.saturating_sub(self.device_list.len() as u64);
            if more > 0 {
                lines.push(format!("… and {more} more; see `margrave device list`"));
            }
        }
        lines
    }
}

/// The devices that need eyes first, by name within a condition. Whoever watches asks often, so only for what is shown.
async fn worst(client: &Client, counts: &DeviceCounts) -> Result<Vec<Device>> {
    let DeviceCounts { total: _, failed, pending, silent, converged } = *counts;
    let conditions = [("failed", failed), ("pending", pending), ("silent", silent), ("converged", converged)];
    let mut found: Vec<Device> = Vec::new();
    for (condition, count) in conditions {
        let room = DEVICES_SHOWN_MAX.saturating_sub(found.len());
        if room > 0 && count > 0 {
            found.extend(client.devices_first(condition, room).await?);
        }
    }
    // One that changed between two of these questions is shown as it was at the first.
    let mut seen = HashSet::new();
    found.retain(|device| seen.insert(device.id.clone()));
    Ok(found)
}

pub(crate) async fn run(screen: &Screen, args: Status) -> Result {
    let client = Client::connect(&args.connection)?;
    if let Some(at) = &args.at {
        let then = client.status_at(at).await?;
        match screen.json {
            true => screen.object(&then)?,
            false => show_then(screen, &then)?,
        }
        return Ok(Answer::Done);
    }
    if !args.watch {
        let look = Look::take(&client).await?;
        if screen.json {
            screen.object(&look)?;
        } else {
            for line in look.lines(screen, Timestamp::now()) {
                screen.data(line)?;
            }
        }
        return Ok(Answer::Done);
    }
    let stopped =
        async { tokio::signal::ctrl_c().await.map_err(|e| Trouble::because("cannot listen for Ctrl-C", &e)) };
    if screen.is_terminal() && !screen.json {
        let mut canvas = Canvas::open()?;
        let ended = tokio::select! {
            ended = redraw(screen, &client, &mut canvas) => ended,
            stopped = stopped => stopped.map(|()| Answer::Done),
        };
        // The last view stays on the normal screen, where it can be scrolled to and copied.
        let last = canvas.close();
        for line in last {
            screen.data(line)?;
        }
        return ended;
    }
    tokio::select! {
        ended = print(screen, &client) => ended,
        stopped = stopped => stopped.map(|()| Answer::Done),
    }
}

/// The fleet as it was wanted and reported at a moment.
fn show_then(screen: &Screen, then: &FleetThen) -> Result<()> {
    let FleetThen { at, commit, packages, deployments, reports_since } = then;
    let short: String = commit.commit.chars().take(10).collect();
    let subject = commit.message.lines().next().unwrap_or_default();
    screen.words(printable(&format!(
        "At {at}, by commit {short} of {} by {}: {subject}",
        commit.at, commit.by
    )));
    let wanted = deployments.iter().filter(|deployment| deployment.wanted.is_some()).count();
    let (wanted, packages) = (count(wanted, "deployment"), count(*packages, "package"));
    screen.data(format_args!("{} of {packages}", screen.bold(&wanted)))?;
    if !deployments.is_empty() {
        let mut table = Table::new(&[
            Column::fixed("DEPLOYMENT"),
            Column::fixed("WANTED"),
            Column::flexible("REPORTED BY THEN"),
        ]);
        for deployment in deployments {
            let wanted = deployment.wanted.as_ref();
            let wanted = wanted.map(|wanted| format!("{} {}", wanted.package, wanted.version));
            let reported: Vec<String> =
                deployment.reported.iter().map(|(state, number)| format!("{number} {state}")).collect();
            table.row([
                Field::plain(&deployment.name),
                Field::plain(wanted.unwrap_or_else(|| "no more".to_owned())),
                Field::plain(if reported.is_empty() { "nothing".to_owned() } else { reported.join(", ") }),
            ]);
        }
        screen.table(&table)?;
    }
    match reports_since {
        Some(since) => screen.words(format_args!("Reports are kept since {since}.")),
        None => screen.words("No reports are kept."),
    }
    Ok(())
}

/// Draws the fleet over itself until the command is ended.
async fn redraw(screen: &Screen, client: &Client, canvas: &mut Canvas) -> Result {
    let mut changes = Changes::new(client);
    loop {
        let foot = match Look::take(client).await {
            Ok(look) => {
                canvas.lines = look.lines(screen, Timestamp::now());
                String::new()
            }
            // A server that restarts must not end a wallboard; a token that is refused must.
            Err(trouble) if trouble.is_refusal() => return Err(trouble),
            Err(trouble) => format!("{}; trying again", trouble.message()),
        };
        canvas.draw(&foot)?;
        changes.wait().await;
    }
}

/// Prints what changes, a line each, for a pipe or a log.
async fn print(screen: &Screen, client: &Client) -> Result {
    let mut changes = Changes::new(client);
    let mut before: Option<FleetStatus> = None;
    let mut seen = client.latest_events(1).await?.last().map(|event| event.sequence);
    loop {
        match Look::take(client).await {
            Ok(look) if screen.json => {
                if before.as_ref() != Some(&look.status) {
                    screen.object_line(&look.status)?;
                }
                before = Some(look.status);
            }
            Ok(look) => {
                if before.is_none() {
                    for line in look.lines(screen, Timestamp::now()) {
                        screen.data(line)?;
                    }
                    screen.data("")?;
                }
                before = Some(look.status);
                for event in client.events_after(seen.unwrap_or(0)).await? {
                    seen = Some(event.sequence);
                    screen.data(events::line(&event))?;
                }
            }
            Err(trouble) if trouble.is_refusal() || before.is_none() => return Err(trouble),
            Err(trouble) => screen.words(format_args!("{}; trying again", trouble.message())),
        }
        changes.wait().await;
    }
}

/// Tells when it is time to look again: at once after an event, now and then without one.
struct Changes<'a> {
    client: &'a Client,
    stream: Option<EventStream>,
    stream_again: Instant,
}

impl<'a> Changes<'a> {
    fn new(client: &'a Client) -> Self {
        Changes { client, stream: None, stream_again: Instant::now() }
    }

    async fn wait(&mut self) {
        if self.stream.is_none() && Instant::now() >= self.stream_again {
            self.stream_again = Instant::now() + STREAM_AGAIN_AFTER;
            self.stream = self.client.follow(None).await.ok();
            if self.stream.is_some() {
                // Something may have happened before the stream was open.
                return;
            }
        }
        let Some(stream) = &mut self.stream else {
            tokio::time::sleep(LOOK_EVERY).await;
            return;
        };
        match tokio::time::timeout(LOOK_EVERY, stream.next()).await {
            Err(_) => {}
            Ok(None) => self.stream = None,
            Ok(Some(_)) => {
                let until = Instant::now() + GATHER;
                while let Ok(Some(_)) = tokio::time::timeout_at(until, stream.next()).await {}
            }
        }
    }
}

/// A second screen to draw on, which gives the first one back whatever happens.
struct Canvas {
    lines: Vec<String>,
    open: bool,
}

impl Canvas {
    fn open() -> Result<Canvas> {
        let mut out = io::stdout().lock();
        // The other screen, no cursor, no wrapping of lines that are one character too long.
        write!(out, "\x1b[?1049h\x1b[?25l\x1b[?7l").and_then(|()| out.flush())?;
        Ok(Canvas { lines: Vec::new(), open: true })
    }

    fn draw(&self, foot: &str) -> Result<()> {
        let mut text = String::new();
        let hint = if foot.is_empty() { "Ctrl-C ends" } else { foot };
        // Every line is put at its own place: what does not fit ends up on the last line instead of
        // scrolling the most important ones away.
        let lines = self.lines.iter().map(String::as_str).chain(["", hint]);
        for (number, line) in lines.enumerate() {
            text.push_str(&format!("\x1b[{};1H{line}\x1b[K", number + 1));
        }
        text.push_str("\x1b[J");
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
        Ok(())
    }

    fn close(mut self) -> Vec<String> {
        self.restore();
        std::mem::take(&mut self.lines)
    }

    fn restore(&mut self) {
        if std::mem::take(&mut self.open) {
            let mut out = io::stdout().lock();
            // If the terminal is gone there is nothing to give back.
            let _gone = write!(out, "\x1b[?7h\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
        }
    }
}

impl Drop for Canvas {
    fn drop(&mut self) {
        self.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_tried_again_is_told_at_a_glance() {
        let look = |given_up: u64| {
            Look {
            status: serde_json::from_value(serde_json::json!({
                "devices": { "total": 3, "converged": 0, "pending": 0, "failed": 3, "silent": 0 },
                "assignments": { "FAILED": 3 }, "givenUp": given_up, "packages": 1, "deployments": 1, "serverVersion": "0.1.0",
            }))
            .unwrap(),
            device_list: Vec::new(),
            intent: serde_json::from_value(serde_json::json!({})).unwrap(),
        }
        };
        let lines = |given_up| look(given_up).lines(&Screen::new(false), Timestamp::UNIX_EPOCH);
        assert_eq!(lines(0).len() + 1, lines(2).len());
        let told = "2 of those that FAILED are not tried again without a person";
        assert!(lines(2).iter().any(|line| line.starts_with(told)), "{:?}", lines(2));
    }

    #[test]
    fn a_remote_that_is_away_and_a_wrong_commit_are_told_at_a_glance() {
        let look: Look = Look {
            status: serde_json::from_value(serde_json::json!({
                "devices": { "total": 0, "converged": 0, "pending": 0, "failed": 0, "silent": 0 },
                "assignments": {}, "packages": 0, "deployments": 0, "serverVersion": "0.1.0",
            }))
            .unwrap(),
            device_list: Vec::new(),
            intent: serde_json::from_value(serde_json::json!({
                "follows": "https://git.example/fleet", "awaySince": "2026-11-17T01:00:00Z",
                "flaws": [{ "file": "fleet.yaml", "line": 3, "rule": "resource", "message": "is no list" }],
                "commitsWaiting": 3,
            }))
            .unwrap(),
        };
        let lines = look.lines(&Screen::new(false), Timestamp::UNIX_EPOCH);
        assert!(lines.iter().any(|line| line.contains("does not answer since 2026-11-17")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("fleet.yaml:3")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("; 3 commits wait behind it")), "{lines:?}");
    }
}
