//! `margrave simulate`: many simulated devices against a real server, to see what it can carry.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use margrave_http::Traffic;
use margrave_simulate::fleet::{Behaviour, Fleet, Polling};
use margrave_simulate::operator::Operator;
use margrave_simulate::resources;
use margrave_simulate::roster::{LABEL, Roster, RosterError};
use margrave_simulate::tally::{Look, TimesLook, Trouble as Kind};
use serde::Serialize;

use crate::cli::{Simulate, unique};
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Column, Field, Screen, Table, count};
use crate::{client, context};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The heading of the live lines is said again after so many.
const LINES_PER_HEADING: u32 = 20;
const PROGRESS_EVERY: usize = 500;

pub(crate) async fn run(screen: &Screen, args: Simulate) -> Result {
    let context = context::find(&args.connection)?;
    let directory = match &args.data {
        Some(directory) => directory.clone(),
        None => usual_directory(&context.url)?,
    };
    let operator = Operator::new(context.clone(), client::trust(&context)?)
        .map_err(|error| Trouble::because("the server cannot be connected to", &error))?;
    let mut roster = Roster::open(&directory)
        .map_err(|error| Trouble::because("the simulated devices cannot be read", &error))?;
    if args.remove {
        return remove(screen, roster, &operator).await;
    }
    let devices = args.devices as usize;
    check_files(devices)?;
    roster.check(&operator).await.map_err(|error| {
        let trouble = Trouble::because("these simulated devices cannot be used here", &error);
        match error {
            RosterError::Unknown { .. } => trouble.hint(
                "forget them with `margrave simulate --remove` if their server is gone for good, or keep devices for this server elsewhere, with --data DIR",
            ),
            _ => trouble,
        }
    })?;
    let labels = unique(&args.labels).map_err(Trouble::broke)?;
    let joined = Instant::now();
    let before = roster.len();
    let progress = |present: usize| {
        if present.is_multiple_of(PROGRESS_EVERY) {
            screen.words(format_args!("{present} simulated devices have joined"));
        }
    };
    let filled = tokio::select! {
        filled = roster.fill(&operator, devices, &labels, progress) => filled,
        stopped = stopped() => return stopped.map(|()| Answer::Done),
    };
    filled.map_err(|error| Trouble::because("not all simulated devices joined", &error))?;
    if roster.len() > before {
        let seconds = joined.elapsed().as_secs_f64();
        let new = roster.len() - before;
        screen.words(format_args!("{new} simulated devices joined in {seconds:.1} s"));
    }
    screen.words(format_args!(
        "{} simulated devices, kept in {}. They carry the label {LABEL}={}; deploy to it to give them work.",
        devices,
        directory.display(),
        roster.tag()
    ));
    let fleet = Fleet::start(&roster, devices, behaviour(&args))
        .map_err(|error| Trouble::because("the simulated devices did not start", &error))?;
    let begun = Instant::now();
    let end = async {
        match args.lasting {
            Some(lasting) => tokio::time::sleep(lasting).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        broken = watch(screen, &fleet) => broken.map(|_: Answer| ()),
        () = end => Ok(()),
        stopped = stopped() => stopped,
    };
    let look = fleet.tally().look();
    let errors = look.errors();
    let summary = summary(screen, &fleet, &look, begun.elapsed());
    fleet.stop().await;
    ended.and(summary)?;
    Ok(if errors == 0 && look.reached > 0 { Answer::Done } else { Answer::No })
}

async fn remove(screen: &Screen, roster: Roster, operator: &Operator) -> Result {
    let all = roster.len();
    let progress = |done: usize| {
        if done > 0 && done.is_multiple_of(PROGRESS_EVERY) {
            screen.words(format_args!("{done} retired"));
        }
    };
    let removed = roster.remove(operator, progress).await;
    let removed =
        removed.map_err(|error| Trouble::because("not all simulated devices were retired", &error))?;
    if screen.json {
        screen.object(&serde_json::json!({ "retired": removed }))?;
    } else {
        screen.data(format_args!("{} retired and forgotten.", count(removed as u64, "simulated device")))?;
        if removed < all {
            let unknown = count((all - removed) as u64, "device");
            screen.data(format_args!("{unknown} more forgotten that this server does not have."))?;
        }
    }
    Ok(Answer::Done)
}

fn behaviour(args: &Simulate) -> Behaviour {
    Behaviour {
        polling: args.poll.map_or(Polling::Wait, Polling::Every),
        install_time: args.install_time,
        failure_rate: args.failures / 100.0,
        report_every: (args.report_rate > 0.0)
            .then(|| Duration::from_secs_f64(f64::from(args.devices) / args.report_rate)),
        ramp: args.ramp,
    }
}

/// Each device is at least one socket.
fn check_files(devices: usize) -> Result<()> {
    let files = resources::raise_open_files();
    let fits = resources::devices_within(files);
    if devices as u64 <= fits {
        return Ok(());
    }
    Err(Trouble::broke(format!("{devices} devices need as many open files, and {files} are allowed"))
        .hint(format!("raise the limit (ulimit -Hn, LimitNOFILE=), or simulate at most {fits}")))
}

/// Where the identities for one server are kept, unless told otherwise.
fn usual_directory(url: &str) -> Result<PathBuf> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| set("HOME").map(|home| home.join(".local/state")));
    let state = state.ok_or_else(|| {
        Trouble::broke("without HOME there is no usual place for the simulated devices")
            .hint("name one with --data DIR")
    })?;
    let server: String =
        url.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    Ok(state.join("margrave").join("simulate").join(server))
}

async fn stopped() -> Result<()> {
    tokio::signal::ctrl_c().await.map_err(|error| Trouble::because("cannot listen for Ctrl-C", &error))
}

/// Says once a second how it goes; ends only when the output is closed.
async fn watch(screen: &Screen, fleet: &Fleet) -> Result {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.tick().await;
    let mut before = fleet.tally().look();
    let mut lines = 0;
    loop {
        ticks.tick().await;
        let look = fleet.tally().look();
        let new = look.since(&before);
        let seconds = (look.at - before.at).as_secs_f64().max(0.001);
        if screen.json {
            screen.object_line(&Report::new(&new, seconds, None))?;
        } else {
            if lines % LINES_PER_HEADING == 0 {
                screen.data(screen.bold(&heading()))?;
            }
            screen.data(line(&new, seconds))?;
            lines += 1;
        }
        before = look;
    }
}

fn heading() -> String {
    format!(
        "{:>9} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>7} {:>7}",
        "connected", "waiting", "304/s", "200/s", "reports/s", "poll p99", "rep. p99", "paced", "errors"
    )
}

fn line(new: &Look, seconds: f64) -> String {
    let rate = |count: u64| format!("{:.0}", count as f64 / seconds);
    format!(
        "{:>9} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>7} {:>7}",
        new.reached,
        new.waiting,
        rate(new.unchanged),
        rate(new.manifests),
        rate(new.reports),
        quantile(&new.polls, 0.99),
        quantile(&new.report_times, 0.99),
        new.paced,
        new.errors()
    )
}

fn quantile(times: &TimesLook, part: f64) -> String {
    if times.count() == 0 {
        return "-".to_owned();
    }
    millis(times.quantile(part))
}

fn millis(duration: Duration) -> String {
    let millis = duration.as_secs_f64() * 1000.0;
    if millis < 10.0 { format!("{millis:.1} ms") } else { format!("{millis:.0} ms") }
}

/// What programs are told, each second and at the end.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// Nothing of this is a real device.
    simulated: bool,
    seconds: f64,
    connected: u64,
    waiting: u64,
    unchanged: u64,
    manifests: u64,
    fetched: u64,
    reports: u64,
    renewals: u64,
    /// Answers that asked to come back later.
    paced: u64,
    errors: BTreeMap<Kind, u64>,
    poll_millis: Option<Millis>,
    fetch_millis: Option<Millis>,
    report_millis: Option<Millis>,
    /// Only at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic: Option<Bytes>,
}

#[derive(Serialize)]
struct Millis {
    p50: f64,
    p99: f64,
    /// Since the beginning.
    max: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Bytes {
    sent: u64,
    received: u64,
    connections: u64,
}

impl Millis {
    fn of(times: &TimesLook) -> Option<Millis> {
        let millis = |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
        (times.count() > 0).then(|| Millis {
            p50: millis(times.quantile(0.5)),
            p99: millis(times.quantile(0.99)),
            max: millis(times.longest()),
        })
    }
}

impl Report {
    fn new(look: &Look, seconds: f64, traffic: Option<Traffic>) -> Report {
        Report {
            simulated: true,
            seconds,
            connected: look.reached,
            waiting: look.waiting,
            unchanged: look.unchanged,
            manifests: look.manifests,
            fetched: look.fetched,
            reports: look.reports,
            renewals: look.renewals,
            paced: look.paced,
            errors: look.troubles.iter().filter(|(_, n)| **n > 0).map(|(kind, n)| (*kind, *n)).collect(),
            poll_millis: Millis::of(&look.polls),
            fetch_millis: Millis::of(&look.fetches),
            report_millis: Millis::of(&look.report_times),
            traffic: traffic.map(|Traffic { sent, received, connections }| Bytes {
                sent,
                received,
                connections,
            }),
        }
    }
}

fn summary(screen: &Screen, fleet: &Fleet, look: &Look, lasted: Duration) -> Result<()> {
    let seconds = lasted.as_secs_f64();
    let traffic = fleet.traffic();
    if screen.json {
        return screen.object_line(&Report::new(look, seconds, Some(traffic)));
    }
    screen.heading(&format!("{seconds:.0} s of simulated devices"))?;
    let rate = |number: u64| format!("{number} ({:.1}/s)", number as f64 / seconds);
    screen.facts(&[
        ("Connected at the end", look.reached.to_string()),
        ("Waiting at the end", look.waiting.to_string()),
        ("Nothing new (304)", rate(look.unchanged)),
        ("New manifests (200)", rate(look.manifests)),
        ("Documents and bundles", rate(look.fetched)),
        ("Reports", rate(look.reports)),
        ("Certificates renewed", look.renewals.to_string()),
        ("Paced (429, 503)", look.paced.to_string()),
        ("Connections made", traffic.connections.to_string()),
        ("Bytes sent, received", format!("{}, {}", traffic.sent, traffic.received)),
    ])?;
    let mut times = Table::new(&[
        Column::fixed("ANSWERED AFTER"),
        Column::fixed("COUNT"),
        Column::fixed("P50"),
        Column::fixed("P99"),
        Column::fixed("MAX"),
    ]);
    for (name, look) in [
        ("poll, not held", &look.polls),
        ("document or bundle", &look.fetches),
        ("report", &look.report_times),
    ] {
        if look.count() > 0 {
            times.row([
                Field::plain(name),
                Field::plain(look.count().to_string()),
                Field::plain(quantile(look, 0.5)),
                Field::plain(quantile(look, 0.99)),
                Field::plain(millis(look.longest())),
            ]);
        }
    }
    screen.data("")?;
    screen.table(&times)?;
    if look.errors() == 0 && look.reached == 0 {
        return screen
            .data("\nNot one device reached the server in this time; let it run for longer (--for).");
    }
    if look.errors() == 0 {
        return screen.data("\nNo errors.");
    }
    let mut errors =
        Table::new(&[Column::fixed("ERROR"), Column::fixed("COUNT"), Column::flexible("FIRST OF THEM")]);
    for (kind, number) in look.troubles.iter().filter(|(_, number)| **number > 0) {
        let example = fleet.tally().example(*kind).unwrap_or_default();
        errors.row([Field::plain(kind.words()), Field::plain(number.to_string()), Field::plain(example)]);
    }
    screen.data("")?;
    screen.table(&errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_lines_stand_below_their_heading() {
        let look = margrave_simulate::tally::Tally::default().look();
        assert_eq!(heading().len(), line(&look, 1.0).len());
    }

    #[test]
    fn every_server_has_a_directory_of_its_own() {
        let of = |url: &str| usual_directory(url).map(|path| path.file_name().unwrap().to_owned());
        if let (Ok(one), Ok(other)) = (of("https://a.example:8443"), of("https://b.example:8443")) {
            assert_eq!(one, "https---a.example-8443");
            assert_ne!(one, other);
        }
    }
}
