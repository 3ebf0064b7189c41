//! `margrave audit`: what operators did and were refused, and whether the log still says so.

use margrave_core::audit::Check;
use margrave_wire::operator::AuditEntry;

use crate::cli::{Audit, AuditVerb, Head};
use crate::client::Client;
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Column, Field, Screen, Table, clock};

/// Entries per request.
const PAGE: usize = 1000;

pub(crate) async fn run(screen: &Screen, args: Audit) -> Result {
    let Audit { verb, actor, subject, since, limit, connection } = args;
    let client = Client::connect(&connection)?;
    match verb {
        Some(AuditVerb::Verify { head }) => verify(screen, &client, head).await,
        None => {
            let filter =
                [("actor", actor.as_deref()), ("subject", subject.as_deref()), ("since", since.as_deref())];
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let mut entries: Vec<AuditEntry> = Vec::new();
            let mut after = None;
            while entries.len() < limit {
                let wanted = PAGE.min(limit - entries.len());
                let page = client.audit(&filter, wanted, after.as_deref()).await?;
                entries.extend(page.items);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            list(screen, &entries)
        }
    }
}

fn list(screen: &Screen, entries: &[AuditEntry]) -> Result {
    if screen.json {
        screen.object(&entries)?;
        return Ok(Answer::Done);
    }
    let mut table = Table::new(&[
        Column::fixed("WHEN"),
        Column::fixed("WHO"),
        Column::fixed("DID"),
        Column::fixed("WHAT"),
        Column::fixed("OUTCOME"),
        Column::fixed("FROM").optional(),
        Column::flexible("DETAIL").optional(),
    ]);
    for entry in entries {
        let detail = match &entry.commit {
            Some(commit) if entry.detail.is_empty() => format!("commit {commit}"),
            Some(commit) => format!("{}; commit {commit}", entry.detail),
            None => entry.detail.clone(),
        };
        table.row([
            clock(&entry.at).into(),
            Field::plain(entry.actor.strip_prefix("operator ").unwrap_or(&entry.actor)),
            Field::plain(&entry.action),
            Field::plain(&entry.subject),
            Field::plain(&entry.outcome),
            Field::plain(format!("{} {}", entry.way, entry.source)),
            Field::plain(detail),
        ]);
    }
    screen.table(&table)?;
    Ok(Answer::Done)
}

/// Reads everything and computes every hash here, so that the server's word is not needed.
async fn verify(screen: &Screen, client: &Client, head: Option<Head>) -> Result {
    let mut check = match head {
        Some(Head { sequence, hash }) => Check::expect(sequence, hash),
        None => Check::default(),
    };
    let mut newest = None;
    let mut number = 0u64;
    let mut after = None;
    let found = loop {
        let page = client.audit(&[], PAGE, after.as_deref()).await?;
        let mut broken = None;
        for entry in page.items {
            number += 1;
            let (entry, hash) =
                entry.parse().map_err(|error| Trouble::because("the log cannot be understood", &error))?;
            newest.get_or_insert_with(|| format!("{}:{hash}", entry.sequence));
            if let Err(error) = check.older(entry, hash) {
                broken = Some(error);
                break;
            }
        }
        if let Some(broken) = broken {
            break Err(broken);
        }
        after = page.next;
        if after.is_none() {
            break check.end();
        }
    };
    let (whole, problem) = match &found {
        Ok(()) => (true, None),
        Err(broken) => (false, Some(broken.to_string())),
    };
    if screen.json {
        let told =
            serde_json::json!({ "whole": whole, "entries": number, "head": newest, "problem": problem });
        screen.object(&told)?;
    } else if let Some(problem) = &problem {
        screen.words(format_args!("The log is not what was written: {problem}."));
    } else {
        let entries = if number == 1 { "entry" } else { "entries" };
        screen.words(format_args!("The log is whole: {number} {entries}. Its newest:"));
        screen.data(newest.as_deref().unwrap_or("-"))?;
    }
    Ok(if whole { Answer::Done } else { Answer::No })
}
