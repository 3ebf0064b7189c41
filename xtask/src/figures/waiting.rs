//! Thousands of clients that wait: what each costs, how fast news reaches the last, and a restart of the server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use margrave_http::Request;
use margrave_simulate::fleet::Fleet;
use margrave_simulate::roster::LABEL;
use margrave_simulate::tally::Look;
use margrave_wire::operator::{Deployment, PREFIX, PutDeployment, Targets};

use super::Lab;
use super::plant::{Plant, until, waiting};
use super::stage::{Process, pss, wait_for};
use super::table::{Table, millis};

/// Memory is read when everybody has been waiting for this long: what a device told on connecting went over a second
/// connection, which it ends after ten seconds.
const SETTLED: Duration = Duration::from_secs(20);

pub(super) fn measure(lab: &Lab, plant: &mut Plant, table: &mut Table) -> Result<()> {
    // A fresh process: what earlier figures left in its heap would flatter this one.
    let (mut server, _) = plant.stage.serve(None)?;
    let package = plant.package()?;
    let clients = lab.clients();
    let all = clients as u64;
    std::thread::sleep(Duration::from_secs(2));
    let server_before = pss(server.id())?;
    let fleet = {
        let _inside = plant.runtime.enter();
        Fleet::start(&plant.roster, clients, waiting(Duration::from_secs(5)))?
    };
    let connected = plant.runtime.block_on(until(&fleet, "all clients wait", |look| look.waiting == all))?;
    table.row(
        format!("{clients} clients connect, spread over 5 s, until the last waits"),
        seconds(connected),
        "",
    );
    std::thread::sleep(SETTLED);
    let per_client = (pss(server.id())?.saturating_sub(server_before)) as f64 / clients as f64 / 1000.0;
    table.judged(
        format!("server memory per connected, waiting client ({clients} of them)"),
        format!("{per_client:.1} KB"),
        "≤ 40 KB",
        per_client <= 40.0,
    );
    let per_device = pss(std::process::id())? as f64 / clients as f64 / 1000.0;
    table.row(
        "generator memory per simulated device, TLS and all else included",
        format!("{per_device:.1} KB"),
        "",
    );
    report_troubles(table, "errors while connecting", &fleet, &fleet.tally().look(), false);

    publish(plant, &fleet, package, ("waiting", "one publish to all"), all, table)?;

    // Everybody loses their connection at once.
    for end in [End::Asked, End::Killed] {
        server = storm(plant, &fleet, server, end, all, table)?;
    }
    // Who is told of a change was there to be told.
    publish(plant, &fleet, package, ("again", "after both, one more publish to all"), all, table)?;
    plant.runtime.block_on(fleet.stop());
    server.stop()
}

/// How a server comes to its end.
#[derive(Clone, Copy)]
enum End {
    Asked,
    Killed,
}

impl End {
    fn words(self) -> &'static str {
        match self {
            End::Asked => "restart",
            End::Killed => "kill -9 and start",
        }
    }
}

/// The server goes and comes back, and with it all of its clients.
fn storm(
    plant: &Plant,
    fleet: &Fleet,
    server: Process,
    end: End,
    all: u64,
    table: &mut Table,
) -> Result<Process> {
    let before = fleet.tally().look();
    let begun = Instant::now();
    match end {
        End::Asked => server.stop()?,
        End::Killed => drop(server),
    }
    let stopped = begun.elapsed();
    let connections = fleet.connections();
    let (server, _) = plant.stage.serve(None)?;
    let listening = Instant::now();
    fleet.tally().forgive_absence();
    let down = begun.elapsed() - stopped;
    let at_listening = fleet.tally().look();
    // A poll counts as waiting while it is still dialling, so that each has a new connection is asked besides.
    wait_for("all clients are connected again", || {
        let look = fleet.tally().look();
        let each = fleet.connections().iter().zip(&connections).all(|(now, before)| now > before);
        Ok((each && look.waiting == all && look.reached == all).then_some(()))
    })?;
    let took = listening.elapsed();
    let look = fleet.tally().look();
    let end = end.words();
    table.row(
        format!("{end} of the server with {all} clients: stopping, not there"),
        format!("{}, {}", seconds(stopped), seconds(down)),
        "",
    );
    table.row(
        format!("{end}, reconnect storm: from listening until the last is served and waits"),
        seconds(took),
        "",
    );
    let paced = look.paced - before.paced;
    table.row(format!("{end}, reconnect storm: paced answers (Retry-After)"), paced.to_string(), "");
    report_troubles(
        table,
        &format!("{end}, reconnect storm: other errors once it listens"),
        fleet,
        &look.since(&at_listening),
        true,
    );
    Ok(server)
}

/// One more deployment for everybody, under the first of the names; the second is what the table calls it.
fn publish(
    plant: &Plant,
    fleet: &Fleet,
    package: &str,
    (name, what): (&str, &str),
    all: u64,
    table: &mut Table,
) -> Result<()> {
    let operator = plant.stage.operator()?;
    let want = PutDeployment {
        package: package.to_owned(),
        version: None,
        profile: None,
        parameters: Default::default(),
        targets: Targets {
            devices: vec![],
            labels: [(LABEL.to_owned(), plant.roster.tag().to_owned())].into(),
        },
        rollback: None,
        strategy: None,
        revision: None,
    };
    let before = fleet.tally().look();
    fleet.tally().watch_manifests();
    let begun = Instant::now();
    // PENDING, INSTALLING and INSTALLED of each, all durable.
    let reports = 3 * all;
    let (answered, last, first, done) = plant.runtime.block_on(async {
        let call = async {
            let request = Request::put(format!("{PREFIX}/deployments/{name}")).json(&want);
            let _: Deployment = operator.ask(request.timeout(Duration::from_secs(120))).await?;
            anyhow::Ok(begun.elapsed())
        };
        let told = async {
            until(fleet, "everybody has the new manifest", |look| look.manifests - before.manifests >= all)
                .await?;
            fleet.tally().look().manifest_times.context("manifests were seen")
        };
        let installed =
            until(fleet, "everybody has reported INSTALLED", |look| look.reports - before.reports >= reports);
        let (answered, (first, last), done) = tokio::try_join!(call, told, installed)?;
        anyhow::Ok((answered, last - begun, first - begun, done))
    })?;
    table.row(format!("{what}: the operator's call is answered after"), seconds(answered), "");
    table.judged(
        format!("{what}: from the operator's call until the last client is answered (they act on it when all have heard)"),
        format!("{} (the first after {})", seconds(last), seconds(first)),
        "≤ 2 s",
        last <= Duration::from_secs(2),
    );
    table.row(
        format!("{what}: until the last INSTALLED is durable (installing takes 0.5 to 1.5 s)"),
        seconds(done),
        "",
    );
    let look = fleet.tally().look().since(&before);
    table.row(
        format!("{what}: reports, p50 and p99"),
        format!("{}, {}", millis(look.report_times.quantile(0.5)), millis(look.report_times.quantile(0.99))),
        "",
    );
    report_troubles(table, &format!("{what}: errors"), fleet, &look, true);
    Ok(())
}

/// How many errors there were, and one of each kind in words.
fn report_troubles(table: &mut Table, what: &str, fleet: &Fleet, look: &Look, judged: bool) {
    let mut said = look.errors().to_string();
    for (trouble, count) in look.troubles.iter().filter(|(_, count)| **count > 0) {
        let example = fleet.tally().example(*trouble).unwrap_or_default();
        said.push_str(&format!("; {count} × {} ({example})", trouble.words()));
    }
    if judged {
        table.judged(what, said, "none", look.errors() == 0);
    } else {
        table.row(what, said, "");
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.2} s", duration.as_secs_f64())
}
