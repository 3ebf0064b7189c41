//! `margrave intent`: the repository behind what is wanted.

use margrave_wire::intent::GoneBack;
use margrave_wire::operator;

use super::confirm::confirm_at_terminal;
use crate::cli::{self, Noun};
use crate::client::Client;
use crate::exit::{Answer, Result};
use crate::render::{Column, Field, Screen, Table, count, printable};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Intent>) -> Result {
    let client = Client::connect(&args.connection)?;
    match args.verb {
        cli::Intent::Show => show(screen, &client.intent().await?),
        cli::Intent::Resolve { take, keep: _, yes } => {
            // Where nothing is to be decided, the server says so, and nobody is asked.
            if let Some(conflict) = client.intent().await?.conflict
                && !confirm_at_terminal(&question(take, &conflict), yes)?
            {
                screen.words("Nothing was decided.");
                return Ok(Answer::No);
            }
            let intent = client.resolve_intent(take).await?;
            screen.words(match take {
                true => "Decided: what the repository says is wanted from now on.",
                false => "Decided: the server goes on with what it has.",
            });
            show(screen, &intent)
        }
        cli::Intent::Log { limit } => {
            let page = client.intent_log(limit).await?;
            if screen.json {
                screen.object(&page.items)?;
                return Ok(Answer::Done);
            }
            let mut table = Table::new(&[
                Column::fixed("COMMIT"),
                Column::fixed("AT"),
                Column::fixed("BY").optional(),
                Column::flexible("MESSAGE"),
            ]);
            for entry in page.items {
                let subject = entry.message.lines().next().unwrap_or_default().to_owned();
                let by = match entry.applied_by {
                    Some(applied_by) => format!("{}, brought by {applied_by}", entry.by),
                    None => entry.by,
                };
                table.row([short(&entry.commit), entry.at.into(), by.into(), subject.into()]);
            }
            screen.table(&table)?;
            Ok(Answer::Done)
        }
    }
}

/// What is decided, and what comes of it.
fn question(take: bool, conflict: &str) -> String {
    let conflict = printable(conflict);
    match take {
        true => format!(
            "{conflict}\nApply what the repository says? Devices get whatever differs from what they have."
        ),
        false => format!(
            "{conflict}\nGo on with what the server has? Whatever differs from that, in the repository or on devices, gives way to it."
        ),
    }
}

fn short(commit: &str) -> Field {
    Field::plain(commit.chars().take(10).collect::<String>())
}

/// Exit code 1 while somebody has to do something.
fn show(screen: &Screen, intent: &operator::Intent) -> Result {
    let answer = if intent.conflict.is_some() || !intent.flaws.is_empty() || !intent.gone_back.is_empty() {
        Answer::No
    } else {
        Answer::Done
    };
    if screen.json {
        screen.object(intent)?;
        return Ok(answer);
    }
    let mut facts: Vec<(&str, String)> = Vec::new();
    let mut fact = |name, value: &Option<String>| {
        if let Some(value) = value {
            facts.push((name, value.clone()));
        }
    };
    fact("Commit", &intent.commit);
    fact("Changed", &intent.changed_at);
    fact("By", &intent.changed_by);
    fact("Brought by", &intent.applied_by);
    fact("Message", &intent.message);
    fact("Follows", &intent.follows);
    if let Some(operator::Following { branch, every_seconds, looked_at, hook }) = &intent.following {
        fact("Branch", &Some(branch.clone()));
        fact("Looks", &Some(format!("every {every_seconds} s")));
        fact("Last look", looked_at);
        fact("Hook", &Some(if *hook { "POST /hooks/intent" } else { "none" }.to_owned()));
    }
    fact("Remote away since", &intent.away_since);
    fact("Because", &intent.away_because);
    fact("Conflict", &intent.conflict);
    screen.facts(&facts)?;
    if !intent.gone_back.is_empty() {
        screen.heading("Taken back here, until a newer commit of the remote says something else about it")?;
        for gone in &intent.gone_back {
            let GoneBack { deployment, revision, failed, why, .. } = gone;
            let line = format!("{deployment}: revision {revision}, because revision {failed} failed: {why}");
            screen.data(crate::render::printable(&line))?;
        }
    }
    if !intent.flaws.is_empty() {
        screen.heading("What is wrong with a commit that is not applied")?;
        for flaw in &intent.flaws {
            screen.data(crate::render::printable(&flaw.to_string()))?;
        }
        if intent.commits_waiting > 1 {
            screen.words(format_args!("{} wait behind it.", count(intent.commits_waiting, "commit")));
        }
    }
    Ok(answer)
}
