//! `margrave rollout`: how far a revision came, and stopping it.

use margrave_wire::rollout::{Rollout, RolloutBatch, RolloutCounts};

use super::confirm::confirm_at_terminal;
use crate::cli::{self, Noun};
use crate::client::Client;
use crate::exit::{Answer, Result};
use crate::render::{self, Column, Field, Screen, Table};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Rollout>) -> Result {
    let client = Client::connect(&args.connection)?;
    let rollout = match &args.verb {
        cli::Rollout::Show { name } => client.rollout(name).await?,
        cli::Rollout::Pause { name } => client.hold_rollout(name, "pause", None).await?,
        cli::Rollout::Resume { name } => client.hold_rollout(name, "resume", None).await?,
        cli::Rollout::Abort { name, yes } => {
            // Another one may begin while this is being answered, and is not meant.
            let seen = client.rollout(name).await?.revision;
            let question = format!(
                "End the rollout of {name}, revision {seen}, for good? Nobody further gets this revision."
            );
            if !confirm_at_terminal(&question, *yes)? {
                screen.words("Nothing was changed.");
                return Ok(Answer::No);
            }
            client.hold_rollout(name, "abort", Some(seen)).await?
        }
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
    facts.extend(way_back(rollout));
    facts.push(("Begun", render::clock(&rollout.begun_at)));
    screen.facts(&facts)?;
    if rollout.counts.total == 0 && rollout.batches.is_empty() {
        screen.words("No device is part of it any more.");
        return Ok(answer(rollout));
    }
    screen.heading("Batches")?;
    screen.table(&table(rollout))?;
    let hidden = hidden(rollout);
    if hidden > 0 {
        screen.words(format_args!("And {hidden} more."));
    }
    Ok(answer(rollout))
}

/// Batches beyond those that are told of; of one whose devices are all gone nothing is.
fn hidden(rollout: &Rollout) -> u32 {
    let last = rollout.batches.last().map_or(rollout.batches_total, |last| last.number);
    rollout.batches_total.saturating_sub(last)
}

/// Where it goes back to, and when. What ended goes nowhere by itself any more.
fn way_back(rollout: &Rollout) -> Option<(&'static str, String)> {
    let before = rollout.before?;
    let by_itself = rollout.strategy.on_failure.as_deref() == Some("revert");
    match rollout.state.as_str() {
        "done" | "aborted" => None,
        "reverting" => Some(("Goes back to", format!("revision {before}"))),
        "halted" => Some((
            "Before it",
            format!("revision {before}; `margrave deployment revert {}`", rollout.deployment),
        )),
        _ if by_itself => Some(("If it fails", format!("goes back to revision {before}"))),
        _ => Some(("Before it", format!("revision {before}"))),
    }
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
        Column::fixed(if rollout.state == "aborted" { "LEFT" } else { "WAITING" }),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(state: &str, on_failure: &str) -> Rollout {
        let counts = serde_json::json!({
            "total": 1, "done": 0, "underWay": 1, "waiting": 0, "notYet": 0, "never": 0, "failed": 0,
        });
        serde_json::from_value(serde_json::json!({
            "deployment": "web", "revision": 3, "state": state, "batch": 1, "batchesTotal": 1, "counts": counts,
            "batches": [], "strategy": { "onFailure": on_failure }, "before": 2, "begunAt": "", "changedAt": "",
            "changedBy": "",
        }))
        .expect("a rollout")
    }

    #[test]
    fn of_batches_that_are_empty_it_is_not_said_that_there_are_more() {
        let mut shown = rollout("running", "halt");
        assert_eq!(hidden(&shown), 0, "nobody is left");
        shown.batches_total = 3;
        shown.batches.push(RolloutBatch { number: 2, counts: shown.counts });
        assert_eq!(hidden(&shown), 1);
        shown.batches.push(RolloutBatch { number: 3, counts: shown.counts });
        assert_eq!(hidden(&shown), 0, "only the first is empty");
    }

    #[test]
    fn only_a_rollout_that_goes_back_or_would_says_so() {
        for (state, on_failure, wanted) in [
            ("running", "revert", Some("If it fails: goes back to revision 2")),
            ("paused", "revert", Some("If it fails: goes back to revision 2")),
            ("running", "halt", Some("Before it: revision 2")),
            ("halted", "revert", Some("Before it: revision 2; `margrave deployment revert web`")),
            ("reverting", "revert", Some("Goes back to: revision 2")),
            ("aborted", "revert", None),
            ("done", "revert", None),
        ] {
            let told = way_back(&rollout(state, on_failure)).map(|(name, text)| format!("{name}: {text}"));
            assert_eq!(told.as_deref(), wanted, "{state} {on_failure}");
        }
        let first = Rollout { before: None, ..rollout("running", "revert") };
        assert_eq!(way_back(&first), None);
    }
}
