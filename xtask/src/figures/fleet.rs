//! A fleet beside one ten times as large: what a change costs, what looking costs, a start, and memory.
//!
//! The two servers take turns, round by round. What touches a hundred devices must not cost more because there are others,
//! and what is looked at must not cost ten times as much.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use margrave_http::{Client, Limits, Origin, Request, Trust, header};
use margrave_identity::pin::Pin;
use margrave_identity::tls::pinned_client_config;
use margrave_simulate::fleet::Fleet;
use margrave_simulate::operator::Operator;
use margrave_simulate::roster::Roster;
use margrave_wire::operator::{Deployment, FleetStatus, PREFIX, PutDeployment, Targets};
use margrave_wire::rollout::{CanaryBody, StrategyBody};
use rusqlite::Connection;
use tokio::runtime::Runtime;

use super::Lab;
use super::plant::{until, waiting};
use super::stage::{Process, Stage, pss};
use super::table::{Table, median, millis};

/// Every device has them all.
const DEPLOYMENTS: usize = 10;
/// Devices with one value of the label `group`.
const GROUP: usize = 100;
const PACKAGE: &str = "figures";
const VERSIONS: [&str; 2] = ["1.0.0", "1.1.0"];
const COMPOSE: &str = "services:\n  main:\n    image: example.invalid/nothing:1\n";
/// Devices count as heard of for so long after they were made: longer than all of this takes.
const HEARD_MS: i64 = 6 * 3600 * 1000;
const PATIENCE: Duration = Duration::from_secs(300);

/// What is asked, and what the table calls it.
const QUESTIONS: [(&str, &str); 5] = [
    ("list of devices, 100 of them", "/api/operator/v1/devices?limit=100"),
    ("list of devices by label", "/api/operator/v1/devices?limit=100&label=group%3D1"),
    ("list of devices by condition, none found", "/api/operator/v1/devices?limit=100&condition=failed"),
    ("list of deployments", "/api/operator/v1/deployments"),
    ("fleet in numbers", "/api/operator/v1/status"),
];

/// The same of the pages, and how long each may take at the server.
const PAGES: [(&str, &str, Duration); 15] = [
    ("fleet page", "/", Duration::from_secs(1)),
    ("page of devices", "/devices", FILTER_TIME_MAX),
    ("page of devices by condition", "/devices?condition=pending", FILTER_TIME_MAX),
    ("page of devices by label", "/devices?label=group%3D1", FILTER_TIME_MAX),
    ("page of devices by site", "/devices?site=site-1", FILTER_TIME_MAX),
    ("page of devices without a site, none found", "/devices?site=%3Anone", FILTER_TIME_MAX),
    ("page of devices by deployment", "/devices?deployment=app-0", FILTER_TIME_MAX),
    ("page of devices by state", "/devices?state=PENDING", FILTER_TIME_MAX),
    ("page of devices by state, none found", "/devices?state=FAILED", FILTER_TIME_MAX),
    ("page of devices by capability", "/devices?capability=ethernet", FILTER_TIME_MAX),
    ("page of devices by capability, none found", "/devices?capability=nothing", FILTER_TIME_MAX),
    ("page of devices by name", "/devices?search=v-001", FILTER_TIME_MAX),
    ("page of devices by name, none found", "/devices?search=nothing", FILTER_TIME_MAX),
    ("later page of devices", "/devices?after=dev-00150", FILTER_TIME_MAX),
    (
        "page of devices by site, state, capability and name",
        "/devices?site=site-1&state=PENDING&capability=ethernet&search=dev-0",
        FILTER_TIME_MAX,
    ),
];
const FILTER_TIME_MAX: Duration = Duration::from_millis(200);
/// What looking at ten times as many devices may cost, in times of what the fewer cost.
const LOOK_RATIO_MAX: f64 = 3.0;
/// The page of a deployment that goes in steps, with why it is where it is. All its devices are counted for that, and no more.
const STEPS_PAGE: &str = "/deployments/steps";
const STEPS_TIME_MAX: Duration = Duration::from_millis(500);
/// A rollout has to look at every one of its devices to say who is next; this is what each may cost.
const LOOK_TIME_MAX: Duration = Duration::from_micros(10);
/// The server looks at rollouts that often, whether something happened or not.
const LOOKS_WITHIN: Duration = Duration::from_secs(30);
/// Sites that the devices are spread over.
const SITES: usize = 40;

/// One server and its devices.
struct Side {
    devices: usize,
    stage: Stage,
    server: Process,
    operator: Operator,
    browser: Client,
    cookie: String,
}

pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let (small, large) = if lab.quick { (200, 2_000) } else { (1_000, 10_000) };
    let rounds = if lab.quick { 3 } else { 9 };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut sides = [
        Side::build(lab, &runtime, small).context("small")?,
        Side::build(lab, &runtime, large).context("large")?,
    ];

    let mut few: [Vec<f64>; 2] = Default::default();
    let mut all: [Vec<f64>; 2] = Default::default();
    // The first round pays for what is cached afterwards.
    for round in 0..=rounds {
        let version = VERSIONS[(round + 1) % 2];
        for (side, times) in sides.iter().zip(&mut few) {
            let took = runtime.block_on(side.put("few", ("group", "1"), version, GROUP))?;
            times.extend((round > 0).then_some(took.as_secs_f64()));
        }
        if round <= rounds / 2 {
            for (side, times) in sides.iter().zip(&mut all) {
                let took = runtime.block_on(side.put("app-0", ("fleet", "all"), version, side.devices))?;
                times.extend((round > 0).then_some(took.as_secs_f64()));
            }
        }
    }
    compared(table, &format!("publishing a change that touches {GROUP} devices"), [small, large], &few, 1.5)?;
    let rate = large as f64 / median(&all[1]).context("rounds")?;
    table.judged(
        format!("publishing a change that touches all {large} devices"),
        format!("{rate:.0} new manifests/s"),
        "≥ 5,000/s",
        rate >= 5_000.0,
    );

    let mut starts: [Vec<f64>; 2] = Default::default();
    for _ in 0..rounds.div_ceil(2) {
        let [left, right] = sides;
        let (left, left_took) = left.restart(&runtime)?;
        let (right, right_took) = right.restart(&runtime)?;
        starts[0].push(left_took.as_secs_f64());
        starts[1].push(right_took.as_secs_f64());
        sides = [left, right];
    }
    let [before, start] = medians(&starts)?;
    table.judged(
        format!("server start with {large} devices × {DEPLOYMENTS} deployments, until it answers"),
        format!("{} ({} with {small})", millis(start), millis(before)),
        "≤ 2 s",
        start <= Duration::from_secs(2),
    );

    for (what, path) in QUESTIONS {
        let times = looked(&runtime, &sides, what, path, 2 * rounds)?;
        compared(table, what, [small, large], &times, LOOK_RATIO_MAX)?;
    }
    for (what, path, goal) in PAGES {
        let times = looked(&runtime, &sides, what, path, rounds)?;
        compared(table, what, [small, large], &times, LOOK_RATIO_MAX)?;
        let [_, took] = medians(&times)?;
        let goal_words = format!("≤ {}", millis(goal));
        table.judged(format!("{what}, {large} devices"), millis(took), &goal_words, took <= goal);
    }

    for side in &sides {
        runtime.block_on(side.put_in_steps())?;
    }
    let times = looked(&runtime, &sides, "page of a deployment in steps", STEPS_PAGE, rounds)?;
    compared(table, "page of a deployment in steps", [small, large], &times, LOOK_RATIO_MAX)?;
    let [_, took] = medians(&times)?;
    let goal = format!("≤ {}", millis(STEPS_TIME_MAX));
    table.judged(
        format!("page of a deployment in steps, {large} devices"),
        millis(took),
        &goal,
        took <= STEPS_TIME_MAX,
    );
    let mut looks = [Duration::ZERO; 2];
    for (side, look) in sides.iter().zip(&mut looks) {
        *look = runtime.block_on(side.rollout_look())?;
    }
    let [before, look] = looks;
    let each = look / u32::try_from(large)?;
    table.judged(
        format!("one step of a rollout, which looks at all its {large} devices"),
        format!(
            "{:.1} µs per device ({}; {} with {small})",
            each.as_secs_f64() * 1e6,
            millis(look),
            millis(before)
        ),
        &format!("≤ {} µs per device", LOOK_TIME_MAX.as_micros()),
        each <= LOOK_TIME_MAX,
    );

    let weight = runtime.block_on(sides[1].weight())?;
    table.judged(
        "what the page loads beside its text, compressed",
        format!("{:.1} KB", weight as f64 / 1000.0),
        "≤ 150 KB",
        weight <= 150_000,
    );

    // After all of this, with what it keeps of it.
    let memory = pss(sides[1].server.id())?;
    let each = memory as f64 / large as f64 / 1000.0;
    table.judged(
        format!("server memory per device, all of it, {large} devices"),
        format!("{each:.1} KB"),
        "≤ 20 KB",
        each <= 20.0,
    );
    let [left, right] = sides;
    left.server.stop()?;
    right.server.stop()
}

impl Side {
    /// A server, one device that joined and told what it is, its likes, and everything that is deployed to them.
    fn build(lab: &Lab, runtime: &Runtime, devices: usize) -> Result<Side> {
        let stage = Stage::new(&lab.programs, &lab.scratch)?;
        let (server, _) = stage.serve(None)?;
        let mut roster = Roster::open(&stage.path("simulated"))?;
        let operator = stage.operator()?;
        let labels = [("fleet".to_owned(), "model".to_owned())].into();
        runtime.block_on(async {
            roster.fill(&operator, 1, &labels, |_| ()).await?;
            let one = Fleet::start(&roster, 1, waiting(Duration::ZERO))?;
            until(&one, "the device has told what it is", |look| look.waiting == 1).await?;
            one.stop().await;
            anyhow::Ok(())
        })?;
        let model = roster.members(1).first().context("a device has joined")?.client.to_string();
        for version in VERSIONS {
            stage.add_package_version(PACKAGE, version, COMPOSE)?;
        }
        server.stop()?;
        multiply(&stage, &model, devices)?;
        let (server, _) = stage.serve(None)?;
        let (browser, cookie) = runtime.block_on(sign_in(&stage))?;
        let side = Side { devices, operator: stage.operator()?, stage, server, browser, cookie };
        runtime.block_on(async {
            for number in 0..DEPLOYMENTS {
                side.put(&format!("app-{number}"), ("fleet", "all"), VERSIONS[0], devices).await?;
            }
            side.put("few", ("group", "1"), VERSIONS[0], GROUP).await
        })?;
        eprintln!("{devices} devices have {DEPLOYMENTS} deployments each …");
        Ok(side)
    }

    /// Puts a deployment, and makes sure that it came to so many devices.
    async fn put(
        &self,
        name: &str,
        (key, value): (&str, &str),
        version: &str,
        to: usize,
    ) -> Result<Duration> {
        let want = PutDeployment {
            package: PACKAGE.to_owned(),
            version: Some(version.to_owned()),
            targets: Targets { labels: [(key.to_owned(), value.to_owned())].into(), ..Default::default() },
            ..Default::default()
        };
        let request = Request::put(format!("{PREFIX}/deployments/{name}")).json(&want);
        let begun = Instant::now();
        let put: Deployment = self.operator.ask(request.timeout(PATIENCE)).await?;
        let took = begun.elapsed();
        let counts = &put.counts;
        ensure!(
            counts.total == to as u64 && put.version == version,
            "{name} came to {}, not to {to}",
            counts.total
        );
        Ok(took)
    }

    /// Puts a deployment that goes to ten devices and then to a hundred at a time, and waits for the first.
    async fn put_in_steps(&self) -> Result<()> {
        let canary = CanaryBody { size: "10".to_owned(), labels: Default::default(), soak_seconds: None };
        let want = PutDeployment {
            package: PACKAGE.to_owned(),
            version: Some(VERSIONS[0].to_owned()),
            targets: Targets {
                labels: [("fleet".to_owned(), "all".to_owned())].into(),
                ..Default::default()
            },
            strategy: Some(StrategyBody {
                canary: Some(canary),
                batches: vec!["100".to_owned()],
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = Request::put(format!("{PREFIX}/deployments/steps")).json(&want);
        let put: Deployment = self.operator.ask(request.timeout(PATIENCE)).await?;
        let counts = &put.counts;
        ensure!(
            (counts.total, counts.waiting) == (self.devices as u64, self.devices as u64 - 10),
            "of {} devices {} wait",
            counts.total,
            counts.waiting
        );
        Ok(())
    }

    /// How long the server took to look at a rollout that waits, on average of some looks that it made by itself.
    async fn rollout_look(&self) -> Result<Duration> {
        let (sum_before, count_before) = self.rollout_looks().await?;
        let begun = Instant::now();
        loop {
            let (sum, count) = self.rollout_looks().await?;
            if count - count_before >= 3.0 {
                return Ok(Duration::from_secs_f64((sum - sum_before) / (count - count_before)));
            }
            ensure!(begun.elapsed() < LOOKS_WITHIN, "the server did not look at its rollout");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The time that all looks took until now, in seconds, and how many there were.
    async fn rollout_looks(&self) -> Result<(f64, f64)> {
        let answer = self.operator.send(Request::get("/metrics")).await?;
        let text = String::from_utf8(answer.body.to_vec())?;
        let read = |name: &str| -> Result<f64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            Ok(line.with_context(|| format!("no {name} among the metrics"))?.parse()?)
        };
        Ok((read("margrave_rollout_look_seconds_sum")?, read("margrave_rollout_look_seconds_count")?))
    }

    async fn look(&self, path: &str) -> Result<Duration> {
        let begun = Instant::now();
        if path.starts_with(PREFIX) {
            self.operator.send(Request::get(path)).await?;
        } else {
            let request = Request::get(path).secret_header(header::COOKIE, &self.cookie);
            let answer = self.browser.send(request).await?;
            ensure!(answer.status.is_success(), "{path} was answered {}", answer.status);
        }
        Ok(begun.elapsed())
    }

    /// Bytes of everything that the fleet page names, as they travel.
    async fn weight(&self) -> Result<usize> {
        let get = |path: &str| Request::get(path).secret_header(header::COOKIE, &self.cookie);
        let page = self.browser.send(get("/")).await?;
        let page = String::from_utf8(page.body.to_vec())?;
        let named: BTreeSet<&str> = page.split('"').filter(|part| part.starts_with("/assets/")).collect();
        ensure!(!named.is_empty(), "the fleet page names nothing to load");
        let mut weight = 0;
        for path in named {
            let path = path.split('#').next().unwrap_or(path);
            let answer = self.browser.send(get(path).header(header::ACCEPT_ENCODING, "gzip")).await?;
            ensure!(answer.status.is_success(), "{path} was answered {}", answer.status);
            weight += answer.body.len();
        }
        Ok(weight)
    }

    /// Another process for the same data; says how long it took until it answered.
    fn restart(self, runtime: &Runtime) -> Result<(Side, Duration)> {
        self.server.stop()?;
        let begun = Instant::now();
        let (server, _) = self.stage.serve(None)?;
        // Its connections ended with the process before.
        let operator = self.stage.operator()?;
        let status: FleetStatus = runtime.block_on(operator.ask(Request::get(format!("{PREFIX}/status"))))?;
        let took = begun.elapsed();
        ensure!(
            status.devices.total > self.devices as u64,
            "only {} devices came back",
            status.devices.total
        );
        let (browser, cookie) = runtime.block_on(sign_in(&self.stage))?;
        Ok((Side { server, operator, browser, cookie, ..self }, took))
    }
}

/// A browser that has signed in, and its cookie.
async fn sign_in(stage: &Stage) -> Result<(Client, String)> {
    let context = stage.operator()?.context().clone();
    let pin = context.pin.as_deref().context("a pin")?;
    let trust = Trust::Tls(pinned_client_config(vec![Pin::parse(pin)?]));
    let browser = Client::new(trust, Origin::parse(&context.url)?, Limits::default())?;
    let form = format!("token={}", context.token);
    let answer =
        browser.send(Request::post("/sign-in").bytes("application/x-www-form-urlencoded", form)).await?;
    let cookie = answer.header(header::SET_COOKIE).and_then(|cookie| cookie.split(';').next());
    Ok((browser, cookie.context("the page lets nobody in")?.to_owned()))
}

/// Writes `count` devices beside the one that joined, each like it in everything but its name and labels. Joining them one
/// by one would measure the identity service, which has figures of its own.
fn multiply(stage: &Stage, model: &str, count: usize) -> Result<()> {
    let mut database = Connection::open(stage.data().join("store/margrave.db"))?;
    let work = database.transaction()?;
    for (table, key) in
        [("client", "id"), ("contact", "client"), ("manifest", "client"), ("device", "client")]
    {
        work.execute(
            &format!("CREATE TEMP TABLE new_{table} AS SELECT * FROM {table} WHERE {key} = ?1"),
            [model],
        )?;
    }
    work.execute("UPDATE new_contact SET at = at + ?1", [HEARD_MS])?;
    work.execute("UPDATE new_device SET unsettled = 0", [])?;
    let mut before = model.to_owned();
    for number in 0..count {
        let name = format!("dev-{number:05}");
        work.prepare_cached("UPDATE new_client SET id = ?1")?.execute([&name])?;
        work.prepare_cached("UPDATE new_contact SET client = ?1")?.execute([&name])?;
        work.prepare_cached("UPDATE new_manifest SET client = ?1")?.execute([&name])?;
        work.prepare_cached(
            "UPDATE new_device SET client = ?1, device = ?1,
             capabilities = CAST(replace(CAST(capabilities AS TEXT), ?2, ?1) AS BLOB)",
        )?
        .execute([&name, &before])?;
        for table in ["client", "contact", "manifest", "device"] {
            work.prepare_cached(&format!("INSERT INTO main.{table} SELECT * FROM new_{table}"))?
                .execute([])?;
        }
        let mut label =
            work.prepare_cached("INSERT INTO label (client, device, key, value) VALUES (?1, ?1, ?2, ?3)")?;
        label.execute([&name, "fleet", "all"])?;
        label.execute([&name, "site", &format!("site-{}", number % SITES)])?;
        label.execute([&name, "group", &(number % (count / GROUP)).to_string()])?;
        before = name;
    }
    for table in ["client", "contact", "manifest", "device"] {
        work.execute_batch(&format!("DROP TABLE new_{table}"))?;
    }
    Ok(work.commit()?)
}

/// How long both servers take for the same look, in turns.
fn looked(
    runtime: &Runtime,
    sides: &[Side; 2],
    what: &str,
    path: &str,
    rounds: usize,
) -> Result<[Vec<f64>; 2]> {
    let mut times: [Vec<f64>; 2] = Default::default();
    // The first round pays for what is cached afterwards.
    for round in 0..=rounds {
        for (side, times) in sides.iter().zip(&mut times) {
            let took = runtime.block_on(side.look(path)).with_context(|| what.to_owned())?;
            times.extend((round > 0).then_some(took.as_secs_f64()));
        }
    }
    Ok(times)
}

fn medians(times: &[Vec<f64>; 2]) -> Result<[Duration; 2]> {
    let [left, right] = times;
    let median = |times: &[f64]| median(times).map(Duration::from_secs_f64).context("rounds");
    Ok([median(left)?, median(right)?])
}

/// Round by round: what disturbs the machine for a while disturbs both.
fn compared(
    table: &mut Table,
    what: &str,
    [small, large]: [usize; 2],
    times: &[Vec<f64>; 2],
    goal: f64,
) -> Result<()> {
    let [left, right] = medians(times)?;
    let ratios: Vec<f64> = times[0].iter().zip(&times[1]).map(|(left, right)| right / left).collect();
    let ratio = median(&ratios).context("rounds")?;
    table.judged(
        format!("{what}, {large} devices over {small}"),
        format!("{ratio:.2} ({} over {})", millis(right), millis(left)),
        &format!("≤ {goal:.1} ×"),
        ratio <= goal,
    );
    Ok(())
}
