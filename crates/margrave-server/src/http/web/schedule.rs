//! When devices talk and change: the form for the fleet, a label or a device.

use askama::Template;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use margrave_wire::schedule::ScheduleBody;

use super::Web;
use super::command::Command;
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::pace::{seconds, spoken};
use super::session::{Changer, Fields, Submitted, Visitor};
use crate::fleet::Error;

#[derive(Template)]
#[template(path = "schedule.html")]
struct SchedulePage {
    frame: Frame,
    draft: Draft,
    /// Something is set there already.
    known: bool,
    command: Command,
}

/// What stands in the form. What is empty is not chosen here.
#[derive(Default)]
struct Draft {
    reach: String,
    poll: String,
    wait: bool,
    hours: String,
    downtime: String,
    windows: String,
    saver: String,
    drift: String,
    hold: String,
    wrong: Vec<String>,
}

/// Written where "at any time" is meant and not "as elsewhere".
const ANY: &str = "any";

impl Draft {
    fn of(reach: String, held: Option<&ScheduleBody>) -> Self {
        let Some(held) = held else { return Draft { reach, ..Draft::default() } };
        let times = |times: &Option<Vec<String>>| match times {
            None => String::new(),
            Some(times) if times.is_empty() => ANY.to_owned(),
            Some(times) => times.join("\n"),
        };
        Draft {
            reach,
            poll: held.poll_every_seconds.map(spoken).unwrap_or_default(),
            wait: held.poll_wait == Some(true),
            hours: times(&held.hours),
            downtime: times(&held.downtime),
            windows: times(&held.windows),
            saver: held.data_saver.map(|on| if on { "on" } else { "off" }.to_owned()).unwrap_or_default(),
            drift: held.drift.clone().unwrap_or_default(),
            hold: held.hold_max_seconds.map(spoken).unwrap_or_default(),
            wrong: Vec::new(),
        }
    }

    fn typed(fields: &Fields) -> Self {
        let text = |name: &str| fields.one(name).to_owned();
        Draft {
            reach: text("reach"),
            poll: text("poll"),
            wait: fields.raw("wait").is_some(),
            hours: text("hours"),
            downtime: text("downtime"),
            windows: text("windows"),
            saver: text("saver"),
            drift: text("drift"),
            hold: text("hold"),
            wrong: Vec::new(),
        }
    }

    fn want(&mut self) -> Option<ScheduleBody> {
        let times = |text: &str| match text.trim() {
            "" => None,
            ANY | "none" => Some(Vec::new()),
            text => {
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                Some(lines.map(ToOwned::to_owned).collect())
            }
        };
        let mut wrong = Vec::new();
        let mut time = |text: &str| {
            let read = Some(text).filter(|text| !text.is_empty()).map(seconds).transpose();
            read.unwrap_or_else(|message| {
                wrong.push(message);
                None
            })
        };
        let poll = time(&self.poll);
        let hold = time(&self.hold);
        let want = ScheduleBody {
            poll_every_seconds: poll,
            poll_wait: (poll.is_some() && self.wait).then_some(true),
            hours: times(&self.hours),
            downtime: times(&self.downtime),
            windows: times(&self.windows),
            data_saver: Some(self.saver.as_str()).filter(|text| !text.is_empty()).map(|text| text == "on"),
            drift: Some(self.drift.clone()).filter(|text| !text.is_empty()),
            hold_max_seconds: hold,
        };
        self.wrong = wrong;
        self.wrong.is_empty().then_some(want)
    }
}

#[derive(serde::Deserialize)]
pub(super) struct Which {
    #[serde(default)]
    reach: String,
}

pub(super) async fn form(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Query(Which { reach }): Query<Which>,
) -> Result<Response, PageError> {
    let reach = if reach.is_empty() { "fleet".to_owned() } else { reach };
    let held = match web.fleet().schedule(&reach).await {
        Ok(held) => Some(held.schedule),
        Err(Error::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    page(&web, &visitor, Draft::of(reach, held.as_ref()), held.is_some()).await
}

async fn page(web: &Web, visitor: &Visitor, draft: Draft, known: bool) -> Result<Response, PageError> {
    let frame = Frame::new(web, visitor, Section::Settings, "When devices talk and change").await?;
    let status = if draft.wrong.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    let command = Command::new([
        "margrave",
        "schedule",
        "set",
        &draft.reach,
        "--window",
        "sun 02:00-05:00 Europe/Berlin",
    ]);
    Ok((status, render(&SchedulePage { frame, command, draft, known })?).into_response())
}

pub(super) async fn put(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let mut draft = Draft::typed(&fields);
    visitor.note.subject(&draft.reach);
    if let Some(want) = draft.want() {
        match web.fleet().put_schedule(&visitor.actor, &draft.reach, &want).await {
            Ok(_) => return Ok(Redirect::to("/settings#schedules").into_response()),
            Err(Error::Invalid(violations)) => {
                let told = violations.iter().map(|violation| {
                    let place = violation.place.trim_matches('/').split('/').next().unwrap_or_default();
                    let message = sentence(&violation.message);
                    if place.is_empty() { message } else { format!("{place}: {message}") }
                });
                draft.wrong = told.collect();
            }
            Err(error @ (Error::Conflict { .. } | Error::NotFound { .. })) => {
                draft.wrong.push(sentence(&error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    page(&web, &visitor, draft, false).await
}

pub(super) async fn remove(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    visitor.note.subject(fields.one("reach"));
    web.fleet().remove_schedule(&visitor.actor, fields.one("reach")).await?;
    Ok(Redirect::to("/settings#schedules").into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_what_is_sent_again() {
        let held: ScheduleBody = serde_json::from_value(serde_json::json!({
            "pollEverySeconds": 900, "pollWait": true, "hours": [], "downtime": ["2026-12-24T12:00Z/2026-12-27T06:00Z"],
            "windows": ["sun 02:00-05:00 Europe/Berlin", "sat 02:00-05:00 Europe/Berlin"], "dataSaver": false,
            "drift": "report", "holdMaxSeconds": 7200,
        }))
        .unwrap();
        let mut draft = Draft::of("fleet".to_owned(), Some(&held));
        assert_eq!(draft.hours, "any");
        assert_eq!(draft.want(), Some(held));
        draft.poll = "often".to_owned();
        assert!(draft.want().is_none() && draft.wrong[0].contains("often"));
    }
}
