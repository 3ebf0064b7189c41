//! The server itself: its repository, calendars, registries, certificates and backup.

use std::collections::BTreeSet;

use askama::Template;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use margrave_wire::operator;

use super::Web;
use super::address::Query;
use super::certificate::Certificate;
use super::command::Command;
use super::commit::CommitMark;
use super::confirm::ConfirmPage;
use super::deployment::who;
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::link;
use super::pace::spoken;
use super::paging::Pages;
use super::registry::RegistryDraft;
use super::session::{Administering, Changer, Submitted, Visitor};
use super::stamp::Stamp;
use super::tiers::counted;
use super::told::Told;
use super::week::{self, Week};
use crate::fleet::Error;

/// Calendars on a page: each is drawn as a week.
const SCHEDULES_SIZE: usize = 25;
/// Commits that the page lists.
const COMMITS_MAX: usize = 10;

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    frame: Frame,
    repository: RepositoryCard,
    schedules: Vec<ScheduleRow>,
    schedule_pages: Pages,
    schedule_new: &'static str,
    registries: Vec<RegistryRow>,
    registry: RegistryDraft,
    /// What a registry said when it was asked.
    check: Option<operator::RegistryCheck>,
    certificates: Vec<Certificate>,
    trust_domain: String,
    phase: String,
    commands: Commands,
}

struct Commands {
    schedule: Command,
    registry: Command,
    authority: Command,
    backup: Command,
    intent: Command,
    keep: Command,
    take: Command,
    follow: Command,
}

/// How the server stands to the repository that says what is wanted.
struct RepositoryCard {
    clone: Command,
    intent: operator::Intent,
    commit: Option<CommitMark>,
    changed: Option<Stamp>,
    by: Option<String>,
    away: Option<Stamp>,
    /// How often a remote is asked, in words, and when it last was.
    every: String,
    looked: Option<Stamp>,
    flaws: Vec<String>,
    commits: Vec<CommitRow>,
}

struct CommitRow {
    commit: CommitMark,
    at: Stamp,
    by: String,
    message: String,
}

struct ScheduleRow {
    remove: Command,
    reach: String,
    lines: Vec<(&'static str, String)>,
    week: Option<Week>,
    changed: Stamp,
    by: String,
    edit: String,
    /// Where taking it back is asked for.
    ask: String,
}

struct RegistryRow {
    commands: [Command; 2],
    registry: operator::Registry,
    changed: Stamp,
    by: String,
}

#[derive(serde::Deserialize)]
pub(super) struct Asked {
    schedules: Option<usize>,
}

pub(super) async fn page(
    State(web): State<Web>,
    visitor: Visitor,
    Query(Asked { schedules }): Query<Asked>,
) -> Result<Response, PageError> {
    part(&web, &visitor, RegistryDraft::default(), None, schedules).await
}

/// With what was typed about a registry, right or wrong, or what one said.
pub(super) async fn show(
    web: &Web,
    visitor: &Visitor,
    registry: RegistryDraft,
    check: Option<operator::RegistryCheck>,
) -> Result<Response, PageError> {
    part(web, visitor, registry, check, None).await
}

async fn part(
    web: &Web,
    visitor: &Visitor,
    registry: RegistryDraft,
    check: Option<operator::RegistryCheck>,
    asked: Option<usize>,
) -> Result<Response, PageError> {
    let path = "/settings?schedules=";
    let frame = Frame::new(web, visitor, Section::Settings, "Settings").await?;
    let frame = frame.at(asked.map_or("/settings".to_owned(), |asked| format!("{path}{asked}")));
    let fleet = web.fleet();
    let authority = web.app.rotation.status().await?;
    let status = if registry.is_wrong() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let mut schedules = fleet.schedules().await?;
    let schedule_pages =
        Pages::cut(&mut schedules, asked, SCHEDULES_SIZE, "Pages of calendars", path.to_owned())
            .at("#schedules");
    let schedules = schedules.into_iter().map(|schedule| ScheduleRow {
        lines: week::lines(&schedule.schedule),
        week: Week::of(&schedule.schedule, fleet.now()),
        changed: Stamp::ago(&schedule.changed_at),
        by: who(&schedule.changed_by),
        edit: link::schedule(&schedule.reach),
        ask: format!("/settings/schedule/remove?reach={}", link::encode(&schedule.reach)),
        remove: Command::new(["margrave", "schedule", "remove", &schedule.reach]),
        reach: schedule.reach,
    });
    let registries = fleet.registries().await?.into_iter().map(|registry| RegistryRow {
        changed: Stamp::ago(&registry.changed_at),
        by: who(&registry.changed_by),
        commands: ["check", "remove"]
            .map(|verb| Command::new(["margrave", "registry", verb, &registry.host])),
        registry,
    });
    let page = SettingsPage {
        repository: repository(web).await?,
        schedules: schedules.collect(),
        schedule_pages,
        schedule_new: "/settings/schedule",
        registries: registries.collect(),
        registry,
        check: check.map(|said| operator::RegistryCheck { message: sentence(&said.message), ..said }),
        certificates: Certificate::all(web),
        trust_domain: authority.trust_domain,
        phase: authority.phase,
        commands: Commands {
            schedule: Command::new([
                "margrave",
                "schedule",
                "set",
                "fleet",
                "--window",
                "sun 02:00-05:00 Europe/Berlin",
            ]),
            registry: Command::new([
                "margrave",
                "registry",
                "add",
                "registry.example",
                "--user",
                "plant",
                "--password-stdin",
            ]),
            authority: Command::new(["margrave", "authority", "rotate"]),
            backup: Command::new(["margrave", "backup", "--to", "margrave-backup.tar"]),
            intent: Command::new(["margrave", "intent", "log"]),
            keep: Command::new(["margrave", "intent", "resolve", "--keep"]),
            take: Command::new(["margrave", "intent", "resolve", "--take"]),
            follow: Command::new([
                "margrave",
                "serve",
                "--data",
                "DIR",
                "--follow",
                "https://git.example/plant/fleet.git",
                "--follow-token-file",
                "token.txt",
            ]),
        },
        frame,
    };
    Ok((status, render(&page)?).into_response())
}

async fn repository(web: &Web) -> Result<RepositoryCard, PageError> {
    let fleet = web.fleet();
    let mut intent = fleet.intent().await?;
    intent.conflict = intent.conflict.map(|conflict| sentence(&conflict));
    let log = match fleet.intent_log(None, COMMITS_MAX).await {
        Ok(log) => log.items,
        // A repository that cannot be read is told of above its commits.
        Err(Error::NotFound { .. }) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let commit = |logged: margrave_wire::intent::Commit| CommitRow {
        commit: CommitMark::of(&logged.commit),
        at: Stamp::ago(&logged.at),
        by: who(&logged.by),
        message: logged.message.lines().next().unwrap_or_default().to_owned(),
    };
    let following = intent.following.as_ref();
    Ok(RepositoryCard {
        clone: Command::new([
            "git",
            "clone",
            &format!("{}/git/intent.git", fleet.url().replacen("://", "://x:TOKEN@", 1)),
        ]),
        commit: intent.commit.as_deref().map(CommitMark::of),
        changed: intent.changed_at.as_deref().map(Stamp::ago),
        by: intent.changed_by.as_deref().map(who),
        away: intent.away_since.as_deref().map(Stamp::ago),
        every: following.map(|following| spoken(following.every_seconds)).unwrap_or_default(),
        looked: following.and_then(|following| following.looked_at.as_deref()).map(Stamp::ago),
        flaws: intent.flaws.iter().map(|flaw| sentence(&flaw.to_string())).collect(),
        commits: log.into_iter().map(commit).collect(),
        intent,
    })
}

/// `GET /settings/repository/take`: what would change by it, before somebody takes what the repository says.
pub(super) async fn take_ask(
    State(web): State<Web>,
    Changer(visitor): Changer,
) -> Result<Response, PageError> {
    let frame = Frame::new(&web, &visitor, Section::Settings, "Take what the repository says").await?;
    let plan = web.fleet().rehearse_taking(&visitor.actor).await?;
    let deployments: BTreeSet<&str> = plan.changes.iter().map(|change| change.deployment.as_str()).collect();
    let devices: BTreeSet<&str> = plan.changes.iter().map(|change| change.device.as_str()).collect();
    let gone = plan.changes.iter().filter(|change| change.to.is_none()).count();
    let mut effects = vec![match devices.len() {
        0 => "No device changes what it runs.".to_owned(),
        number => format!(
            "This changes {}, by {}.",
            counted(number as u64, "device"),
            counted(deployments.len() as u64, "deployment")
        ),
    }];
    effects.push("What was changed here and is not in the repository is not wanted any more.".to_owned());
    if gone > 0 {
        effects.push(format!("It takes {} away from them.", counted(gone as u64, "application")));
    }
    render(&ConfirmPage {
        frame,
        question: "Take what the repository says?".to_owned(),
        effects,
        verb: "Take it",
        harmless: false,
        action: "/settings/repository".to_owned(),
        back: "/settings#git".to_owned(),
        fields: vec![("do".to_owned(), "take".to_owned())],
        command: Command::new(["margrave", "intent", "resolve", "--take"]),
    })
}

/// `POST /settings/repository`: decides a conflict.
pub(super) async fn resolve(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let take = match submitted.fields.one("do") {
        "take" => true,
        "keep" => false,
        _ => return Err(PageError::Malformed("The form does not say which of the two to take.".to_owned())),
    };
    web.fleet().resolve(&submitted.visitor.actor, take).await?;
    Ok(Redirect::to("/settings#git").into_response())
}

/// `POST /settings/backup`: everything that the server keeps, as a download.
pub(super) async fn backup(
    State(web): State<Web>,
    submitted: Submitted<Administering>,
) -> Result<Response, PageError> {
    let pieces = web.app.backups.begin(web.fleet(), &submitted.visitor.actor).await?;
    let headers = [
        (CONTENT_TYPE, "application/x-tar"),
        (CONTENT_DISPOSITION, "attachment; filename=\"margrave-backup.tar\""),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}
