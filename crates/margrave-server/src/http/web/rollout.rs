//! How far a revision came, on its deployment's page, and the buttons that stop it.

use askama::Template;
use askama::filters::HtmlSafe;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use margrave_wire::rollout::{Rollout, RolloutCounts};

use super::Web;
use super::address::Path;
use super::badge::Badge;
use super::command::Command;
use super::confirm::ConfirmPage;
use super::deployment::parse;
use super::error::PageError;
use super::frame::{Frame, Section, render};
use super::link;
use super::session::{Changer, Submitted};
use super::tally::Tally;
use super::tiers::counted;
use super::told::Told;
use crate::fleet::{RolloutGlimpse, RolloutVerb};

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
    aborted: bool,
    /// What those are called who were not given it.
    held_back: &'static str,
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
    /// It is asked back on a page of its own.
    asks: bool,
}

impl HtmlSafe for RolloutCard {}

impl RolloutCard {
    pub(super) fn of(rollout: &Rollout, path: &str, frame: &Frame) -> Self {
        RolloutCard::new(rollout, path, &frame.csrf, frame.may_change())
    }

    /// Who may not change anything is offered nothing.
    fn new(rollout: &Rollout, path: &str, csrf: &str, may_change: bool) -> Self {
        let aborted = rollout.state == "aborted";
        let going = !aborted && rollout.state != "done";
        let all = Row { name: "All".to_owned(), now: false, counts: rollout.counts };
        let rows = rollout.batches.iter().take(BATCHES_MAX).map(|batch| Row {
            name: batch.number.to_string(),
            now: going && batch.number == rollout.batch,
            counts: batch.counts,
        });
        let pause = Button { verb: "pause", label: "Pause", asks: false };
        let resume = Button { verb: "resume", label: "Resume", asks: false };
        let abort = Button { verb: "abort", label: "Abort", asks: true };
        let buttons = match rollout.state.as_str() {
            _ if !may_change => Vec::new(),
            "running" | "waiting" => vec![pause, abort],
            "paused" | "halted" => vec![resume, abort],
            "reverting" => vec![abort],
            _ => Vec::new(),
        };
        RolloutCard {
            path: path.to_owned(),
            csrf: csrf.to_owned(),
            revision: rollout.revision,
            badge: Badge::step(&rollout.state),
            tally: Tally::rollout(&rollout.counts, aborted),
            // Those that it does not fit, or that refuse it, are never among those that have it.
            words: format!(
                "{} of {} have it; batch {} of {}{}",
                rollout.counts.done,
                counted(u64::from(rollout.counts.total.saturating_sub(rollout.counts.never)), "device"),
                rollout.batch.min(rollout.batches_total),
                rollout.batches_total,
                match rollout.counts.never {
                    0 => String::new(),
                    1 => "; 1 device never gets it".to_owned(),
                    never => format!("; {never} devices never get it"),
                }
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
            aborted,
            held_back: if aborted { "Left" } else { "Waiting" },
        }
    }
}

/// `GET …/rollout/abort`: aborting cannot be taken back, so it is asked for.
pub(super) async fn ask(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Path((name, verb)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let name = parse(&name)?;
    let back = link::deployment(name.as_str());
    if verb != "abort" {
        return Err(PageError::FormOnly { page: back });
    }
    let revision = web.fleet().rollout(&name).await?.revision;
    let frame =
        Frame::new(&web, &visitor, Section::Deployments, format!("Abort the rollout of {name}")).await?;
    render(&ConfirmPage {
        frame,
        question: format!("Abort the rollout of {name}, revision {revision}?"),
        effects: vec![
            "Devices that have the new revision keep it; the others keep what they had.".to_owned(),
            "It cannot be resumed. A change, or going back to a revision, begins a new rollout.".to_owned(),
        ],
        verb: "Abort",
        harmless: false,
        action: format!("{back}/rollout/abort"),
        back,
        fields: vec![("seen".to_owned(), revision.to_string())],
        command: Command::new(["margrave", "rollout", "abort", name.as_str()]),
    })
}

/// A rollout as a line of the fleet's page.
pub(super) struct RolloutLine {
    pub(super) key: String,
    pub(super) badge: Badge,
    pub(super) name: String,
    pub(super) path: String,
    pub(super) tally: Tally,
    pub(super) words: String,
}

impl RolloutLine {
    pub(super) fn of(rollout: &RolloutGlimpse) -> Self {
        RolloutLine {
            key: format!("rollout-{}", rollout.name),
            badge: Badge::step(rollout.state.as_str()),
            name: format!("{}, revision {}", rollout.name, rollout.revision),
            path: format!("{}#rollout", link::deployment(rollout.name.as_str())),
            tally: Tally::of(&rollout.counts),
            words: progress(rollout),
        }
    }
}

/// How far it came, and why no further.
pub(super) fn progress(rollout: &RolloutGlimpse) -> String {
    let RolloutGlimpse { batch, batches_total, counts, stopped, .. } = rollout;
    let stopped = stopped.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
    format!(
        "{} of {} have it; batch {} of {batches_total}{stopped}",
        counts.converged,
        counted(counts.total, "device"),
        batch.min(batches_total),
    )
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
    let seen = match submitted.fields.one("seen") {
        "" => None,
        text => Some(text.parse().map_err(|_| {
            PageError::Malformed("The form does not say which revision was looked at.".to_owned())
        })?),
    };
    web.fleet().hold_rollout_seen(&submitted.visitor.actor, &name, verb, seen).await?;
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
        let shown = RolloutCard::new(&rollout, "/deployments/web", "secret", true).to_string();
        for part in [
            "1 device failed &#60;b&#62;",
            "/deployments/web/rollout/resume",
            ">Abort<",
            "And 10 more",
            "1 of 2 devices have it; batch 1 of 60; 1 device never gets it",
            "Never: does not fit, or refuses it.",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains(">Pause<"), "{shown}");
        let shown = RolloutCard::new(&rollout, "/deployments/web", "secret", false).to_string();
        assert!(!shown.contains("<form") && !shown.contains("margrave rollout"), "a viewer: {shown}");
        rollout.state = "done".into();
        let shown = RolloutCard::new(&rollout, "/deployments/web", "secret", true).to_string();
        assert!(!shown.contains("<form"), "{shown}");
    }
}
