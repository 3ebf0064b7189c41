//! `margrave rollout`: how far a revision came, and stopping it.

use margrave_wire::rollout::{Rollout, RolloutBatch, RolloutCounts};

use crate::cli::{self, Noun};
use crate::client::Client;
use crate::exit::{Answer, Result};
use crate::render::{self, Column, Field, Screen, Table};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Rollout>) -> Result {
    let client = Client::connect(&args.connection)?;
    let rollout = match &args.verb {
        cli::Rollout::Show { name } => client.rollout(name).await?,
        cli::Rollout::Pause { name } => client.hold_rollout(name, "pause").await?,
        cli::Rollout::Resume { name } => client.hold_rollout(name, "resume").await?,
        cli::Rollout::Abort { name } => client.hold_rollout(name, "abort").await?,
    };
    show(screen, &rollout)
}

fn show(screen: &Screen, rollout: &Rollout) -> Result {
    if screen.json {
        screen.object(rollout)?;
        return Ok(answer(rollout));
    }
    let mut facts = vec![
        ("Deployment", format!("{}, revision {}", rollout.deployment, rollout.revision)),
        ("Rollout", rollout.state.clone()),
    ];
    if let Some(reason) = &rollout.reason {
        facts.push(("Why", render::printable(reason)));
    }
    facts.push(("Strategy", render::printable(&rollout.strategy.words().join("; "))));
    if let Some(before) = rollout.before {
        facts.push(("Goes back to", format!("revision {before}")));
    }
    facts.push(("Begun", render::clock(&rollout.begun_at)));
    screen.facts(&facts)?;
    screen.heading("Batches")?;
    screen.table(&table(rollout))?;
    let hidden = rollout.batches_total as usize - rollout.batches.len().min(rollout.batches_total as usize);
    if hidden > 0 {
        screen.words(format_args!("And {hidden} more."));
    }
    Ok(answer(rollout))
}

/// What was halted or aborted is not on its way to where it was wanted.
fn answer(rollout: &Rollout) -> Answer {
    match rollout.state.as_str() {
        "halted" | "reverting" => Answer::No,
        _ => Answer::Done,
    }
}

fn table(rollout: &Rollout) -> Table {
    let mut table = Table::new(&[
        Column::fixed("BATCH"),
        Column::fixed("DEVICES"),
        Column::fixed("DONE"),
        Column::fixed("UNDER WAY"),
        Column::fixed("WAITING"),
        Column::fixed("NOT YET"),
        Column::fixed("NEVER"),
        Column::fixed("FAILED"),
    ]);
    for RolloutBatch { number, counts } in &rollout.batches {
        let here = if *number == rollout.batch && rollout.state != "done" { " *" } else { "" };
        row(&mut table, format!("{number}{here}"), counts);
    }
    row(&mut table, "all".to_owned(), &rollout.counts);
    table
}

fn row(table: &mut Table, name: String, counts: &RolloutCounts) {
    let RolloutCounts { total, done, under_way, waiting, not_yet, never, failed } = *counts;
    let number = |number: u32| Field::plain(number.to_string());
    table.row([
        Field::plain(name),
        number(total),
        number(done),
        number(under_way),
        number(waiting),
        number(not_yet),
        number(never),
        number(failed),
    ]);
}
