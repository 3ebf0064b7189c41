//! How far a revision came, on its deployment's page, and the buttons that stop it.

use askama::Template;
use askama::filters::HtmlSafe;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use margrave_wire::rollout::{Rollout, RolloutCounts};

use super::Web;
use super::badge::Badge;
use super::command::Command;
use super::deployment::parse;
use super::error::PageError;
use super::link;
use super::session::Submitted;
use super::tally::Tally;
use super::tiers::counted;
use crate::fleet::RolloutVerb;

/// Batches that a page lists; the command line lists more.
const BATCHES_MAX: usize = 50;

#[derive(Template)]
#[template(path = "rollout.html")]
pub(super) struct RolloutCard {
    path: String,
    csrf: String,
    revision: u64,
    badge: Badge,
    tally: Tally,
    /// "3 of 10 devices have it".
    words: String,
    commands: Vec<Command>,
    reason: Option<String>,
    strategy: String,
    rows: Vec<Row>,
    rows_more: usize,
    buttons: Vec<Button>,
}

struct Row {
    name: String,
    /// It is under way.
    now: bool,
    counts: RolloutCounts,
}

struct Button {
    verb: &'static str,
    label: &'static str,
}

impl HtmlSafe for RolloutCard {}

impl RolloutCard {
    pub(super) fn of(rollout: &Rollout, path: &str, csrf: &str) -> Self {
        let going = !matches!(rollout.state.as_str(), "done" | "aborted");
        let all = Row { name: "All".to_owned(), now: false, counts: rollout.counts };
        let rows = rollout.batches.iter().take(BATCHES_MAX).map(|batch| Row {
            name: batch.number.to_string(),
            now: going && batch.number == rollout.batch,
            counts: batch.counts,
        });
        let pause = Button { verb: "pause", label: "Pause" };
        let resume = Button { verb: "resume", label: "Resume" };
        let abort = Button { verb: "abort", label: "Abort" };
        let buttons = match rollout.state.as_str() {
            "running" | "waiting" => vec![pause, abort],
            "paused" | "halted" => vec![resume, abort],
            _ => Vec::new(),
        };
        RolloutCard {
            path: path.to_owned(),
            csrf: csrf.to_owned(),
            revision: rollout.revision,
            badge: Badge::step(&rollout.state),
            tally: Tally::rollout(&rollout.counts),
            words: format!(
                "{} of {} have it; batch {} of {}",
                rollout.counts.done,
                counted(u64::from(rollout.counts.total), "device"),
                rollout.batch.min(rollout.batches_total),
                rollout.batches_total
            ),
            commands: buttons
                .iter()
                .map(|button| Command::new(["margrave", "rollout", button.verb, &rollout.deployment]))
                .collect(),
            reason: rollout.reason.clone(),
            strategy: rollout.strategy.words().join("; "),
            rows: rows.chain([all]).collect(),
            rows_more: usize::try_from(rollout.batches_total)
                .unwrap_or(usize::MAX)
                .saturating_sub(BATCHES_MAX),
            buttons,
        }
    }
}

pub(super) async fn hold(
    State(web): State<Web>,
    Path((name, verb)): Path<(String, String)>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let name = parse(&name)?;
    let verb = match verb.as_str() {
        "pause" => RolloutVerb::Pause,
        "resume" => RolloutVerb::Resume,
        "abort" => RolloutVerb::Abort,
        _ => return Err(PageError::NotFound),
    };
    web.fleet().hold_rollout(&submitted.visitor.actor, &name, verb).await?;
    Ok(Redirect::to(&link::deployment(name.as_str())).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_wire::rollout::RolloutBatch;

    #[test]
    fn a_page_says_where_it_stands_and_offers_what_can_be_done() {
        let counts = RolloutCounts { total: 3, done: 1, not_yet: 1, never: 1, ..Default::default() };
        let mut rollout = Rollout {
            deployment: "web".into(),
            revision: 2,
            state: "halted".into(),
            reason: Some("1 device failed <b>".into()),
            until: None,
            batch: 1,
            batches_total: 60,
            counts,
            batches: vec![RolloutBatch { number: 1, counts }],
            strategy: Default::default(),
            before: Some(1),
            begun_at: String::new(),
            changed_at: String::new(),
            changed_by: String::new(),
        };
        let shown = RolloutCard::of(&rollout, "/deployments/web", "secret").to_string();
        for part in
            ["1 device failed &#60;b&#62;", "/deployments/web/rollout/resume", ">Abort<", "And 10 more"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains(">Pause<"), "{shown}");
        rollout.state = "done".into();
        let shown = RolloutCard::of(&rollout, "/deployments/web", "secret").to_string();
        assert!(!shown.contains("<form"), "{shown}");
    }
}
