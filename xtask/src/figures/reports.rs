//! How many reports a second become durable, beside a bare loop that commits the same rows.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::report::{ComponentReport, Detail, Report};
use margrave_http::Request;
use margrave_simulate::barrage::Lines;
use margrave_wire::operator::{Deployment, PREFIX, PutDeployment, Targets};
use rusqlite::Connection;

use super::Lab;
use super::plant::Plant;
use super::stage::cpu_time;
use super::table::{Table, median, millis};

/// Devices that report, and reports in flight: what a server commits together at most.
const REPORTERS: usize = 2_000;
const TOGETHER: usize = 512;
/// What the server keeps of events; whoever writes one more takes the oldest away.
const EVENTS_KEPT: i64 = 100_000;

pub(super) fn measure(lab: &Lab, plant: &mut Plant, table: &mut Table) -> Result<()> {
    let (server, _) = plant.stage.serve(None)?;
    let package = plant.package()?;
    let reporters = REPORTERS.min(lab.clients());
    let devices: Vec<String> =
        plant.roster.members(reporters).iter().map(|member| member.client.to_string()).collect();
    let operator = plant.stage.operator()?;
    let mut rows = Rows::create(&plant.stage.path("bare-rows"), &lab.root, reporters)?;
    let callers = plant.callers(reporters, false)?;
    let (mut ours, mut bare, mut p99) = (vec![], vec![], vec![]);
    // Microseconds of processor time that a report costs.
    let (mut our_cost, mut bare_cost) = (vec![], vec![]);
    let cost = |used: Duration, reports: f64| used.as_secs_f64() * 1e6 / reports.max(1.0);
    plant.runtime.block_on(async {
        let want = PutDeployment {
            package: package.to_owned(),
            targets: Targets { devices, ..Default::default() },
            ..Default::default()
        };
        let request = Request::put(format!("{PREFIX}/deployments/reports")).json(&want);
        let _: Deployment = operator.ask(request.timeout(Duration::from_secs(60))).await?;
        let mut lines = Lines::open(plant.stage.device_address(), &callers).await?;
        ensure!(lines.subjects() == reporters, "{} of {reporters} can report", lines.subjects());
        for round in 0..=lab.rounds() {
            let before = cpu_time(std::process::id())?;
            let alone = rows.commit_for(lab.lasting())?;
            let alone_cost =
                cost(cpu_time(std::process::id())? - before, alone * lab.lasting().as_secs_f64());
            let before = cpu_time(server.id())?;
            let outcome = lines.report(lab.lasting(), TOGETHER, None).await;
            let used = cpu_time(server.id())? - before;
            let failure = outcome.failure.as_deref().unwrap_or("?");
            ensure!(outcome.failed == 0, "{} failed, such as: {failure}", outcome.failed);
            ensure!(outcome.paced == 0, "{} answers were paced, so this measures a limit", outcome.paced);
            if round > 0 {
                bare.push(alone);
                bare_cost.push(alone_cost);
                ours.push(outcome.per_second());
                our_cost.push(cost(used, outcome.answers as f64));
            }
        }
        let half = median(&ours).context("rounds")? / 2.0;
        for _ in 0..3 {
            let outcome = lines.report(lab.lasting(), TOGETHER, Some(half)).await;
            let failure = outcome.failure.as_deref().unwrap_or("?");
            ensure!(outcome.failed == 0 && outcome.paced == 0, "{} paced; {failure}", outcome.paced);
            p99.push((outcome.times.quantile(0.99), outcome.times.quantile(0.5), outcome.per_second()));
        }
        anyhow::Ok(())
    })?;
    let (ours, bare) = (median(&ours).context("rounds")?, median(&bare).context("rounds")?);
    let (our_cost, bare_cost) = (median(&our_cost).context("rounds")?, median(&bare_cost).context("rounds")?);
    table.row(
        format!("reports, bare loop of SQLite commits of the same rows, {TOGETHER} a commit"),
        format!("{bare:.0}/s; {bare_cost:.0} µs of CPU each"),
        "baseline",
    );
    table.row(
        "reports over mutual TLS, answered when durable: our server",
        format!("{ours:.0}/s; {our_cost:.0} µs of CPU each"),
        "",
    );
    table.judged("reports, ratio", format!("{:.2}", ours / bare), "≥ 0.5", ours / bare >= 0.5);
    let (p99, p50, rate) = median(&p99).context("rounds")?;
    table.judged(
        format!("reports at half load ({rate:.0}/s), p99"),
        format!("{} (p50 {})", millis(p99), millis(p50)),
        "< 50 ms",
        p99 < Duration::from_millis(50),
    );
    Ok(())
}

/// The rows that a report leaves behind: its assignment changed, one more transition, one more event.
struct Rows {
    connection: Connection,
    assignments: Vec<AssignmentId>,
    next: usize,
    sequence: u64,
}

impl Rows {
    /// A database with the server's own schema, settings and indexes, and the rows that a report refers to.
    fn create(directory: &Path, root: &Path, assignments: usize) -> Result<Rows> {
        std::fs::create_dir_all(directory)?;
        let connection = Connection::open(directory.join("rows.db"))?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")?;
        let folder = root.join("crates/margrave-store/src/migrations");
        let mut migrations: Vec<_> =
            std::fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        migrations.sort();
        ensure!(!migrations.is_empty(), "there is no schema in {}", folder.display());
        for migration in migrations {
            connection.execute_batch(&std::fs::read_to_string(migration)?)?;
        }
        let mut rows = Rows { connection, assignments: Vec::new(), next: 0, sequence: 0 };
        let transaction = rows.connection.unchecked_transaction()?;
        for number in 0..assignments {
            let client = device(number);
            transaction.execute(
                "INSERT INTO client (id, standing, joined_at) VALUES (?1, 'accepted', 0)",
                [&client],
            )?;
            rows.assignments.push(AssignmentId::from_uuid(uuid::Uuid::new_v4()));
        }
        transaction.commit()?;
        for number in 0..assignments {
            rows.write(number)?;
        }
        Ok(rows)
    }

    /// Commits of [`TOGETHER`] reports each, for a while; how many reports a second.
    fn commit_for(&mut self, lasting: Duration) -> Result<f64> {
        let begun = Instant::now();
        let mut count = 0u32;
        while begun.elapsed() < lasting {
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
            for _ in 0..TOGETHER {
                self.write(self.next)?;
                self.next = (self.next + 1) % self.assignments.len();
                count += 1;
            }
            self.connection
                .prepare_cached("DELETE FROM event WHERE sequence <= (SELECT max(sequence) FROM event) - ?1")?
                .execute([EVENTS_KEPT])?;
            self.connection.execute_batch("COMMIT")?;
        }
        Ok(f64::from(count) / begun.elapsed().as_secs_f64())
    }

    fn write(&mut self, number: usize) -> Result<()> {
        self.sequence += 1;
        let (id, device) = (self.assignments[number], device(number));
        let state = if self.sequence.is_multiple_of(2) { State::Installed } else { State::Updating };
        let now = 1_800_000_000_000 + self.sequence;
        let report = serde_json::to_string(&report(id, &device, state, self.sequence, now)?)?;
        let now = i64::try_from(now)?;
        let uuid = id.uuid();
        self.connection
            .prepare_cached(
                "INSERT INTO assignment (id, client, device, deployment, deployment_name, package, version,
                     profile, wanted, archived, document, wanted_since, changed_version, changed_at, observed,
                     adopted, report, received_at, observed_at, was_installed, state, verdict)
                 VALUES (?1, ?2, ?2, ?3, 'reports', 'figures', '1.0.0', 'compose', 1, 0, ?4, 2, 2, 0, ?5, 2, ?6,
                     ?7, ?7, 1, ?5, ?8)
                 ON CONFLICT (id) DO UPDATE SET observed = ?5, adopted = 2, report = ?6, received_at = ?7,
                     observed_at = ?7, was_installed = 1, state = ?5, verdict = ?8",
            )?
            .execute((
                uuid.as_bytes(),
                &device,
                [7u8; 16],
                [7u8; 32],
                state.as_str(),
                &report,
                now,
                i32::from(state != State::Installed),
            ))?;
        self.connection
            .prepare_cached(
                "INSERT INTO transition (assignment, adopted, sequence, state, at, received_at, late, report)
                 VALUES (?1, 2, ?2, ?3, ?4, ?4, 0, ?5)",
            )?
            .execute((uuid.as_bytes(), i64::try_from(self.sequence)?, state.as_str(), now, &report))?;
        self.connection
            .prepare_cached(
                "INSERT INTO event (at, kind, actor, client, device, deployment, package, text)
                 VALUES (?1, 'assignment.state', ?2, ?3, ?3, 'reports', NULL, ?4)",
            )?
            .execute((now, format!("device {device}"), &device, format!("reports on {device} is {state}")))?;
        Ok(())
    }
}

/// As long as the names of simulated devices.
fn device(number: usize) -> String {
    format!("sim-abcde-{number:05}")
}

/// What the barrage reports, as the store keeps it.
fn report(id: AssignmentId, device: &str, state: State, sequence: u64, now: u64) -> Result<Report> {
    Ok(Report {
        assignment: id,
        device: Some(DeviceId::parse(device)?),
        adopted_version: 2,
        state: state.reported(),
        fault: None,
        components: vec![ComponentReport {
            name: "main".to_owned(),
            state: state.reported(),
            fault: None,
            restarts: 0,
        }],
        detail: Some(Detail {
            state,
            sequence,
            at: Moment(now),
            document: Some(Digest::from_bytes([7; 32])),
            attempt: 1,
            next_try: None,
            reason: None,
            waiting: None,
            awaited: None,
            life: None,
            memory: None,
            holds: None,
        }),
        signed_at: None,
    })
}
