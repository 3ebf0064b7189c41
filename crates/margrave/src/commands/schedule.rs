//! `margrave schedule`: when devices talk to the server, and when they change what runs.

use margrave_wire::operator;
use margrave_wire::schedule::ScheduleBody;

use crate::cli::{self, Noun, Part, SetSchedule};
use crate::client::Client;
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Column, Field, Screen, Table};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Schedule>) -> Result {
    let client = Client::connect(&args.connection)?;
    match args.verb {
        cli::Schedule::List => list(screen, &client.schedules().await?),
        cli::Schedule::Show { reach } => {
            let (found, _) = client.schedule(&reach).await?.ok_or_else(|| {
                Trouble::refused(format!("nothing is set for {reach}")).hint(
                    "`margrave schedule list` shows what is; `margrave device show` what a device follows",
                )
            })?;
            show(screen, &found)
        }
        cli::Schedule::Set(set) => {
            let (before, seen) = client.schedule(&set.reach).await?.unzip();
            let before = before.map(|schedule| schedule.schedule).unwrap_or_default();
            let now = client.put_schedule(&set.reach, &over(&set, before), seen.as_deref()).await?;
            show(screen, &now)
        }
        cli::Schedule::Remove { reach } => {
            client.remove_schedule(&reach).await?;
            if screen.json {
                screen.object(&serde_json::json!({ "reach": reach, "removed": true }))?;
            } else {
                screen.words(format_args!("Nothing is set for {reach} any more."));
            }
            Ok(Answer::Done)
        }
    }
}

/// What was said, on top of what is so already.
fn over(set: &SetSchedule, before: ScheduleBody) -> ScheduleBody {
    let spans = |said: &[String], none: &str, before: Option<Vec<String>>| match said {
        [] => before,
        [word] if word == none => Some(vec![]),
        said => Some(said.to_vec()),
    };
    let mut now = before;
    if let Some(poll) = set.poll {
        now.poll_every_seconds = Some(poll.as_secs());
        now.poll_wait = set.hold_open.then_some(true);
    }
    now.hours = spans(&set.hours, "any", now.hours);
    now.downtime = spans(&set.downtime, "none", now.downtime);
    now.windows = spans(&set.window, "any", now.windows);
    now.data_saver = set.data_saver.as_ref().map(|said| said == "on").or(now.data_saver);
    now.drift = set.drift.clone().or(now.drift);
    now.images = set.images.clone().or(now.images);
    now.hold_max_seconds = set.hold_max.map(|max| max.as_secs()).or(now.hold_max_seconds);
    for part in &set.unset {
        match part {
            Part::Poll => (now.poll_every_seconds, now.poll_wait) = (None, None),
            Part::Hours => now.hours = None,
            Part::Downtime => now.downtime = None,
            Part::Window => now.windows = None,
            Part::DataSaver => now.data_saver = None,
            Part::Drift => now.drift = None,
            Part::Images => now.images = None,
            Part::HoldMax => now.hold_max_seconds = None,
        }
    }
    now
}

fn list(screen: &Screen, schedules: &[operator::Schedule]) -> Result {
    if screen.json {
        screen.object(&schedules)?;
        return Ok(Answer::Done);
    }
    if schedules.is_empty() {
        screen.words("Nothing is set: devices hear of news at once, and change what runs at any time.");
        return Ok(Answer::Done);
    }
    let mut table =
        Table::new(&[Column::fixed("FOR"), Column::flexible("WHEN"), Column::fixed("SET BY").optional()]);
    for schedule in schedules {
        table.row([
            Field::plain(&schedule.reach),
            Field::plain(schedule.schedule.words().join("; ")),
            Field::plain(&schedule.changed_by),
        ]);
    }
    screen.table(&table)?;
    Ok(Answer::Done)
}

fn show(screen: &Screen, schedule: &operator::Schedule) -> Result {
    if screen.json {
        screen.object(schedule)?;
        return Ok(Answer::Done);
    }
    let mut facts = vec![("For", schedule.reach.clone()), ("When", schedule.schedule.words().join("; "))];
    facts.push(("Set by", format!("{} at {}", schedule.changed_by, schedule.changed_at)));
    screen.facts(&facts)?;
    Ok(Answer::Done)
}
