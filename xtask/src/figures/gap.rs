//! What a change costs: those who use the application, the operator who waits for it, and the device.
//!
//! A client asks the container's port all the time while versions are switched, by us and, taking turns on the same
//! engine, by plain `docker compose up -d` of the same files. All images are present. Memory and writes are weighed
//! afterwards, in changes of their own, because weighing takes time from what is weighed.

use std::cell::Cell;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use margrave_http::Request;
use margrave_simulate::operator::Operator;
use margrave_wire::operator::{Assignment, Deployment, Device, PREFIX, PutDeployment, Rollback, Targets};

use super::Lab;
use super::asker::{Asker, Outage};
use super::programs::{Engine, engine};
use super::scales::{Peak, Scales};
use super::stage::{Stage, bytes_written, free_port, wait_for};
use super::table::{Table, median, mib, millis};

const DEVICE: &str = "switched";
const PATIENCE: Duration = Duration::from_secs(120);
/// Of plain Compose's figures, beside ours.
const BY_HAND: &str = "plain docker compose up -d by hand";

/// The versions of the application.
const FIRST: &str = "1.0.0";
const SECOND: &str = "1.1.0";
/// Answers, and its health check fails all the same.
const SICK: &str = "2.0.0";
/// Does not answer at all.
const DEAD: &str = "3.0.0";
/// Good, and its archive is large.
const LARGE: &str = "4.0.0";
/// Of files in that archive, such as a model or a web application.
const LARGE_BYTES: u64 = 16 << 20;
/// Fetched and unpacked, it is written twice; the rest is what any update writes.
const LARGE_WRITTEN_MAX: f64 = 2.1;
const VERSIONS: [&str; 4] = [FIRST, SECOND, SICK, DEAD];

/// How a client reaches the container.
#[derive(Clone, Copy)]
enum Door {
    /// Through the engine's bridge, as most are. Once a question found nobody there, the kernel looks for the container
    /// every second only, so such a gap is seldom shorter than that, whoever switches.
    Published,
    /// On the machine's own network: nothing but stopping the one and starting the other.
    Direct,
}

/// One service that ends at once when it is told to: its own good-bye would be most of every gap.
fn compose_file(version: &str, door: Door, outside: u16) -> String {
    let (address, port, network) = match door {
        Door::Published => ("0.0.0.0", 8080, format!("ports: [\"127.0.0.1:{outside}:8080\"]")),
        Door::Direct => ("127.0.0.1", outside, "network_mode: host".to_owned()),
    };
    let serve = format!("echo up > /index.html; exec httpd -f -p {address}:{port} -h /");
    let command = if version == DEAD { "exec sleep 100000" } else { &serve };
    let page = if version == SICK { "nowhere" } else { "index.html" };
    let check = match version {
        SICK | DEAD => "interval: 500ms\n      retries: 2",
        _ => "interval: 1s\n      retries: 10",
    };
    format!(
        "services:
  web:
    image: ${{MARGRAVE_REGISTRY}}/figures/busybox:1
    command: [\"sh\", \"-c\", \"{command}\"]
    stop_signal: SIGKILL
    environment:
      VERSION: \"{version}\"
    {network}
    healthcheck:
      test: [\"CMD\", \"wget\", \"-q\", \"-O\", \"/dev/null\", \"http://127.0.0.1:{port}/{page}\"]
      {check}
"
    )
}

pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let Some(engine) = engine(&lab.root)? else {
        table.row("service gap of an update and of a rollback", "no Docker engine here", "");
        return Ok(());
    };
    let stage = Stage::new(&lab.programs, &lab.scratch)?;
    let (_server, _) = stage.serve(None)?;
    let registry = format!("127.0.0.1:{}", stage.local);
    engine.push_busybox(&registry, &stage.context_file())?;
    let data = stage.add_device(DEVICE)?;
    let (agent, _) = stage.start_agent(&data, &["--engine", &engine.host])?;

    let pace = Rc::new(Pace { begun: Instant::now(), used: Cell::default() });
    let direct = Both::new(&stage, &engine, &pace, ("direct", Door::Direct))?;
    let published = Both::new(&stage, &engine, &pace, ("published", Door::Published))?;
    let measured = direct
        .switch_only(lab, table)
        .and_then(|()| direct.clear())
        .and_then(|()| published.switch(lab, table))
        .and_then(|()| weigh(&stage, &published.ours, &data, agent.id(), table));
    // A private engine ends with the figures; a given one is left as it was.
    let cleared = direct.clear().and(published.clear());
    measured.and(cleared)
}

/// A device follows a few changes one upon the other, and in the long run one every ten seconds (docs/devices.md); what is
/// timed here is not that.
struct Pace {
    begun: Instant,
    /// Up to when the changes so far have used up their time.
    used: Cell<Duration>,
}

impl Pace {
    const EVERY: Duration = Duration::from_secs(10);
    /// Fewer than a device takes together, so that none is held up.
    const TOGETHER: u32 = 6;

    /// Before each change.
    fn keep(&self) {
        std::thread::sleep(self.pause(self.begun.elapsed()));
    }

    /// Time that went by without a change is saved for a few of them, and not for any number.
    fn pause(&self, now: Duration) -> Duration {
        let used = self.used.get().max(now) + Pace::EVERY;
        self.used.set(used);
        used.saturating_sub(now + Pace::EVERY * Pace::TOGETHER)
    }
}

/// The application on a device of ours.
struct Ours {
    pace: Rc<Pace>,
    operator: Operator,
    runtime: tokio::runtime::Runtime,
    /// The package's and the deployment's.
    name: &'static str,
    port: u16,
}

impl Ours {
    /// From the operator's call until the assignment is as asked for at the server.
    fn change(&self, version: &str, is_so: impl Fn(&Assignment) -> bool) -> Result<Duration> {
        let want = PutDeployment {
            package: self.name.to_owned(),
            version: Some(version.to_owned()),
            targets: Targets { devices: vec![DEVICE.to_owned()], ..Default::default() },
            rollback: Some(Rollback { attempts: Some(1), ..Rollback::default() }),
            ..Default::default()
        };
        self.pace.keep();
        self.runtime.block_on(async {
            let begun = Instant::now();
            let _: Deployment = self.operator.ask(Request::put(self.path()).json(&want)).await?;
            loop {
                let shown: Deployment = self.operator.ask(Request::get(self.path())).await?;
                if shown.assignments.iter().any(&is_so) {
                    return Ok(begun.elapsed());
                }
                ensure!(begun.elapsed() < PATIENCE, "{version} has come to nothing: {:?}", shown.assignments);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    }

    fn path(&self) -> String {
        format!("{PREFIX}/deployments/{}", self.name)
    }

    fn install(&self, version: &str) -> Result<Duration> {
        self.change(version, |shown| shown.state == "INSTALLED" && shown.current && shown.version == version)
    }

    /// An update that is gone back from.
    fn fail(&self, version: &str) -> Result<Duration> {
        self.change(version, |shown| shown.state == "INSTALLED" && !shown.current && shown.error.is_some())
    }

    fn is_there(&self) -> Result<bool> {
        let device = Request::get(format!("{PREFIX}/devices/{DEVICE}"));
        let shown: Device = self.runtime.block_on(self.operator.ask(device))?;
        Ok(shown.assignments.iter().any(|assignment| assignment.deployment == self.name))
    }

    /// Until it is gone; nothing when it is not there.
    fn remove(&self) -> Result<()> {
        if !self.is_there()? {
            return Ok(());
        }
        self.pace.keep();
        self.runtime.block_on(self.operator.send(Request::delete(self.path())))?;
        wait_for("the deployment goes away", || Ok((!self.is_there()?).then_some(())))
    }
}

/// The same application by hand.
struct Plain<'a> {
    engine: &'a Engine,
    directory: PathBuf,
    registry: String,
    port: u16,
}

impl Plain<'_> {
    fn up(&self, version: &str, wait: &[&str]) -> Result<Duration> {
        let begun = Instant::now();
        let file = format!("{version}.yaml");
        let arguments = [&["-f", &file, "up", "-d"], wait].concat();
        self.engine.compose(&self.directory, &self.registry, &arguments)?;
        Ok(begun.elapsed())
    }

    fn down(&self) -> Result<()> {
        self.engine.compose(&self.directory, &self.registry, &["-f", &format!("{FIRST}.yaml"), "down"])
    }
}

/// One application, twice on one engine.
struct Both<'a> {
    ours: Ours,
    plain: Plain<'a>,
}

impl<'a> Both<'a> {
    fn new(
        stage: &Stage,
        engine: &'a Engine,
        pace: &Rc<Pace>,
        (name, door): (&'static str, Door),
    ) -> Result<Both<'a>> {
        let (port, bare) = (free_port()?, free_port()?);
        let directory = stage.path(&format!("bare-{name}"));
        std::fs::create_dir_all(&directory)?;
        for version in VERSIONS {
            stage.add_package_version(name, version, &compose_file(version, door, port))?;
            std::fs::write(directory.join(format!("{version}.yaml")), compose_file(version, door, bare))?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let registry = format!("127.0.0.1:{}", stage.local);
        Ok(Both {
            ours: Ours { pace: pace.clone(), operator: stage.operator()?, runtime, name, port },
            plain: Plain { engine, directory, registry, port: bare },
        })
    }

    fn clear(&self) -> Result<()> {
        self.ours.remove().and(self.plain.down())
    }

    /// An update by us and the same by hand: how long each took, and what a client saw of it.
    fn update(&self, to: &str) -> Result<[(Duration, Outage); 2]> {
        let asker = Asker::start(self.ours.port)?;
        let took = self.ours.install(to)?;
        let gap = longest(&asker.stop()?);
        let asker = Asker::start(self.plain.port)?;
        let alone = self.plain.up(to, &[])?;
        Ok([(took, gap), (alone, longest(&asker.stop()?))])
    }

    /// Updates, and nothing else.
    fn switch_only(&self, lab: &Lab, table: &mut Table) -> Result<()> {
        self.ours.install(FIRST)?;
        self.plain.up(FIRST, &["--wait"])?;
        let mut gaps = Gaps::default();
        for round in 0..rounds(lab) {
            let [(_, ours), (_, plain)] = self.update(if round % 2 == 0 { SECOND } else { FIRST })?;
            gaps.add(ours, plain);
        }
        gaps.rows(table, "service gap of an update, container on the machine's own network, image present")
    }

    /// Versions come and go, good ones and bad ones.
    fn switch(&self, lab: &Lab, table: &mut Table) -> Result<()> {
        let Both { ours, plain } = self;
        ours.install(FIRST)?;
        plain.up(FIRST, &["--wait"])?;
        let (mut update, mut back) = (Gaps::default(), Gaps::default());
        let (mut installed, mut healthy) = (Times::default(), Times::default());
        let mut dead = vec![];
        for round in 0..rounds(lab) {
            let (to, from) = if round % 2 == 0 { (SECOND, FIRST) } else { (FIRST, SECOND) };
            let [(took, gap), (alone, bare)] = self.update(to)?;
            update.add(gap, bare);
            installed.add(took, alone);
            // Once more by hand, beside what waits for the health check as we do.
            plain.up(from, &["--wait"])?;
            healthy.add(took, plain.up(to, &["--wait"])?);

            let asker = Asker::start(ours.port)?;
            ours.fail(SICK)?;
            let gap = way_back(&asker.stop()?);
            plain.up(SICK, &[])?;
            let asker = Asker::start(plain.port)?;
            plain.up(to, &[])?;
            back.add(gap, longest(&asker.stop()?));
            // It may have gone back to an older version; the next round starts from this one.
            ours.install(to)?;

            let asker = Asker::start(ours.port)?;
            ours.fail(DEAD)?;
            dead.push(longest(&asker.stop()?).lasting);
            ours.install(to)?;
        }
        update.rows(table, "service gap of an update, published port, image present")?;
        back.rows(table, "service gap of going back from a version that answers but is not healthy")?;
        table.row(
            "service gap of a version that does not answer, until the device has gone back (one try; check 2 × 0.5 s)",
            spread(&dead)?,
            "",
        );
        let what = "change → INSTALLED (healthy) with Prefer: wait, from the operator's PUT, an update, image present";
        installed.rows(table, what, BY_HAND)?;
        healthy.rows(table, "the same", "docker compose up -d --wait by hand")
    }
}

fn rounds(lab: &Lab) -> usize {
    if lab.quick { 2 } else { 5 }
}

/// What the switch did. A busy machine may keep an answer waiting at other times, but not for as long.
fn longest(outages: &[Outage]) -> Outage {
    outages.iter().copied().max_by_key(|outage| outage.lasting).unwrap_or_default()
}

/// The way there and the way back are an outage each; this is the way back.
fn way_back(outages: &[Outage]) -> Outage {
    let mut by_length: Vec<usize> = (0..outages.len()).collect();
    by_length.sort_by_key(|at| std::cmp::Reverse(outages[*at].lasting));
    by_length.iter().take(2).max().map(|at| outages[*at]).unwrap_or_default()
}

/// How long one thing took in each round, beside its baseline.
#[derive(Default)]
struct Times {
    ours: Vec<Duration>,
    plain: Vec<Duration>,
}

impl Times {
    fn add(&mut self, ours: Duration, plain: Duration) {
        self.ours.push(ours);
        self.plain.push(plain);
    }

    fn ratio(&self) -> Result<f64> {
        let pairs = self.ours.iter().zip(&self.plain);
        let ratios: Vec<f64> = pairs.map(|(ours, plain)| ours.as_secs_f64() / plain.as_secs_f64()).collect();
        median(&ratios).context("there were rounds")
    }

    fn rows(&self, table: &mut Table, what: &str, baseline: &str) -> Result<()> {
        table.row(what, spread(&self.ours)?, "");
        table.row(format!("{what}: {baseline}"), spread(&self.plain)?, "baseline");
        table.row(format!("{what}: ratio"), format!("{:.2}", self.ratio()?), "");
        Ok(())
    }
}

/// What clients saw of one kind of switch, in each round.
#[derive(Default)]
struct Gaps {
    lasting: Times,
    failed: [Vec<usize>; 2],
}

impl Gaps {
    fn add(&mut self, ours: Outage, plain: Outage) {
        self.lasting.add(ours.lasting, plain.lasting);
        self.failed[0].push(ours.failed);
        self.failed[1].push(plain.failed);
    }

    fn rows(&self, table: &mut Table, what: &str) -> Result<()> {
        let said = |times: &[Duration], failed: &[usize]| {
            let failed = median(failed).context("there were rounds")?;
            anyhow::Ok(format!("{}, {failed} requests failed", spread(times)?))
        };
        table.row(what, said(&self.lasting.ours, &self.failed[0])?, "");
        table.row(format!("{what}: {BY_HAND}"), said(&self.lasting.plain, &self.failed[1])?, "baseline");
        let ratio = self.lasting.ratio()?;
        table.judged(format!("{what}: ratio"), format!("{ratio:.2}"), "≤ 1.5", ratio <= 1.5);
        Ok(())
    }
}

/// The median, and between what it lies.
fn spread(times: &[Duration]) -> Result<String> {
    let middle = median(times).context("there were rounds")?;
    let least = times.iter().min().copied().unwrap_or_default();
    let most = times.iter().max().copied().unwrap_or_default();
    Ok(format!("{} ({} to {})", millis(middle), millis(least), millis(most)))
}

/// Memory and writes of the agent through one application's life.
fn weigh(stage: &Stage, ours: &Ours, data: &Path, agent: u32, table: &mut Table) -> Result<()> {
    ours.remove()?;
    let mut peak = Peak::default();
    let mut step = |what: &str, act: &dyn Fn() -> Result<()>| -> Result<u64> {
        let (counted, before) = (stage.agent_bytes_written(data)?, bytes_written(agent)?);
        let scales = Scales::start(agent);
        act()?;
        peak = peak.max(scales.stop()?);
        let written = bytes_written(agent)? - before;
        let counted = stage.agent_bytes_written(data)? - counted;
        let kilobytes = |bytes: u64| format!("{:.1} KB", bytes as f64 / 1e3);
        let value = format!("{} (its own count: {})", kilobytes(written), kilobytes(counted));
        table.row(format!("agent, bytes written by {what}"), value, "");
        Ok(written)
    };
    step("an installation", &|| ours.install(FIRST).map(drop))?;
    step("an update", &|| ours.install(SECOND).map(drop))?;
    step("an update that fails and is gone back from", &|| ours.fail(SICK).map(drop))?;
    // What cannot be compressed.
    let mut file = vec![0; usize::try_from(LARGE_BYTES)?];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut file)?;
    let compose = compose_file(LARGE, Door::Published, ours.port);
    stage.add_package_with(ours.name, LARGE, &compose, &file)?;
    let what = format!("an update with {} MB of files", LARGE_BYTES / 1_000_000);
    let written = step(&what, &|| ours.install(LARGE).map(drop))?;
    step("a removal", &|| ours.remove())?;
    let ratio = written as f64 / LARGE_BYTES as f64;
    let goal = format!("≤ {LARGE_WRITTEN_MAX} ×");
    let value = format!("{ratio:.2} ×");
    table.judged(format!("{what}: bytes written, of its files"), value, &goal, ratio <= LARGE_WRITTEN_MAX);
    table.row("agent, PSS at its peak while applying", mib(peak.own), "");
    table.row("agent with the Compose it starts, PSS at the peak", mib(peak.with_children), "");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_never_come_faster_than_a_device_takes_them() {
        let seconds = Duration::from_secs;
        let pace = Pace { begun: Instant::now(), used: Cell::default() };
        let burst = |now: u64| (0..8).map(|_| pace.pause(seconds(now)).as_secs()).collect::<Vec<_>>();
        assert_eq!(burst(0), [0, 0, 0, 0, 0, 0, 10, 20]);
        // However slow the beginning was.
        assert_eq!(burst(1000), [0, 0, 0, 0, 0, 0, 10, 20]);
    }

    #[test]
    fn a_slow_answer_is_not_taken_for_the_switch() {
        let outages =
            [100, 1300, 110, 1200, 105].map(|ms| Outage { lasting: Duration::from_millis(ms), failed: 1 });
        assert_eq!(longest(&outages).lasting, Duration::from_millis(1300));
        assert_eq!(way_back(&outages).lasting, Duration::from_millis(1200));
        assert_eq!((longest(&[]).failed, way_back(&[]).failed), (0, 0));
        assert_eq!(way_back(&outages[..1]).lasting, Duration::from_millis(100));
    }
}
