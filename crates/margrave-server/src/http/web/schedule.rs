//! When devices talk and change: the form for the fleet, a label or a device.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use margrave_core::digest::Digest;
use margrave_core::violation::Violation;
use margrave_wire::operator;
use margrave_wire::schedule::ScheduleBody;

use super::Web;
use super::address::Query;
use super::command::Command;
use super::confirm::ConfirmPage;
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::pace::{seconds, spoken};
use super::session::{Changer, Fields, Submitted, Visitor};
use super::told::Told;
use super::week::Week;
use crate::fleet::{Error, Seen};

#[derive(Template)]
#[template(path = "schedule.html")]
struct SchedulePage {
    frame: Frame,
    draft: Draft,
    /// Something is set there already.
    known: bool,
    /// How it would be, where it can be read.
    week: Option<Week>,
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
    images: String,
    hold: String,
    /// What was set when the form was opened; see [`mark`].
    seen: String,
    /// About the whole.
    wrong: Vec<String>,
    /// By the field that it is about.
    wrong_at: BTreeMap<&'static str, Vec<String>>,
}

/// The fields that something can be wrong with, as the form calls them, in its order.
const FIELDS: [(&str, &str); 6] = [
    ("Reach", "reach"),
    ("Ask every", "poll"),
    ("Hours in which they may talk", "hours"),
    ("Known downtime", "downtime"),
    ("Windows in which they may change what runs", "windows"),
    ("The longest that somebody at the device may hold changes back", "hold"),
];

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
            images: held.images.clone().unwrap_or_default(),
            hold: held.hold_max_seconds.map(spoken).unwrap_or_default(),
            ..Draft::default()
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
            images: text("images"),
            hold: text("hold"),
            seen: text("seen"),
            ..Draft::default()
        }
    }

    /// The command that sets the same. What is not named stays as it is there, so what is empty here is named where there is
    /// something to stay.
    fn command(&self, known: bool) -> Command {
        let reach = Some(self.reach.as_str()).filter(|reach| !reach.is_empty()).unwrap_or("fleet");
        let mut words: Vec<String> = ["margrave", "schedule", "set", reach].map(str::to_owned).into();
        let mut chosen = false;
        let mut part = |flag: &str, value: &str, unset: &str| {
            let values: Vec<&str> = value.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            chosen |= !values.is_empty();
            match values.as_slice() {
                [] if known => words.push(format!("--unset={unset}")),
                values => words.extend(values.iter().map(|value| format!("{flag}={value}"))),
            }
        };
        part("--poll", &self.poll, "poll");
        part("--hours", &self.hours, "hours");
        part("--downtime", &self.downtime, "downtime");
        part("--window", &self.windows, "window");
        part("--data-saver", &self.saver, "data-saver");
        part("--drift", &self.drift, "drift");
        part("--images", &self.images, "images");
        part("--hold-max", if self.hold == "0s" { "none" } else { &self.hold }, "hold-max");
        if self.wait && !self.poll.is_empty() {
            words.push("--hold-open".to_owned());
        }
        if !chosen && !known {
            words.push("--window=sun 02:00-05:00 Europe/Berlin".to_owned());
        }
        Command::new(words.iter().map(String::as_str))
    }

    /// What to ask of the fleet, as far as it can be read; what cannot is noted at its field.
    fn want(&mut self) -> ScheduleBody {
        let times = |text: &str| match text.trim() {
            "" => None,
            ANY | "none" => Some(Vec::new()),
            text => {
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                Some(lines.map(ToOwned::to_owned).collect())
            }
        };
        let mut wrong: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        let mut time = |field: &'static str, text: &str| {
            let read = Some(text).filter(|text| !text.is_empty()).map(seconds).transpose();
            read.unwrap_or_else(|message| {
                wrong.entry(field).or_default().push(message);
                None
            })
        };
        let poll = time("poll", &self.poll);
        let hold = time("hold", &self.hold);
        let want = ScheduleBody {
            poll_every_seconds: poll,
            poll_wait: (poll.is_some() && self.wait).then_some(true),
            hours: times(&self.hours),
            downtime: times(&self.downtime),
            windows: times(&self.windows),
            data_saver: Some(self.saver.as_str()).filter(|text| !text.is_empty()).map(|text| text == "on"),
            drift: Some(self.drift.clone()).filter(|text| !text.is_empty()),
            images: Some(self.images.clone()).filter(|text| !text.is_empty()),
            hold_max_seconds: hold,
        };
        self.wrong_at = wrong;
        want
    }

    fn is_wrong(&self) -> bool {
        !self.wrong.is_empty() || !self.wrong_at.is_empty()
    }

    /// What is wrong with a field.
    fn wrong_with(&self, field: &str) -> &[String] {
        self.wrong_at.get(field).map(Vec::as_slice).unwrap_or_default()
    }

    /// Where something is wrong, for the top of the form to lead to: what it is called, and its place in the page.
    fn marked(&self) -> Vec<(&'static str, &'static str)> {
        let wrong = |(_, id): &(&str, &str)| !self.wrong_with(id).is_empty();
        FIELDS.into_iter().filter(wrong).collect()
    }

    /// Notes what the fleet said where it belongs.
    fn refused(&mut self, violation: &Violation) {
        let mut place = violation.place.trim_matches('/').split('/');
        let field = match place.next().unwrap_or_default() {
            "pollEverySeconds" | "pollWait" => "poll",
            "hours" => "hours",
            "downtime" => "downtime",
            "windows" => "windows",
            "holdMaxSeconds" => "hold",
            "reach" => "reach",
            _ => return self.wrong.push(sentence(&violation.message)),
        };
        // Which of several lines, as people count.
        let line = place.next().and_then(|index| index.parse::<usize>().ok()).map(|index| index + 1);
        let message = sentence(&violation.message);
        let message = match line {
            Some(line) if line > 1 => format!("Line {line}: {message}"),
            _ => message,
        };
        self.wrong_at.entry(field).or_default().push(message);
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
    if reach.is_empty() {
        // For somebody who says for whom in the form, so nothing of anybody's stands in it.
        let draft = Draft { seen: mark("", None), ..Draft::default() };
        return page(&web, &visitor, draft, false).await;
    }
    let held = match web.fleet().schedule(&reach).await {
        Ok(held) => Some(held),
        Err(Error::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let seen = mark(&reach, held.as_ref());
    let draft = Draft { seen, ..Draft::of(reach, held.as_ref().map(|held| &held.schedule)) };
    page(&web, &visitor, draft, held.is_some()).await
}

/// Of what is set there, so that a form can tell whether that is still what its reader saw.
fn mark(reach: &str, held: Option<&operator::Schedule>) -> String {
    let held = held.and_then(|held| serde_json::to_vec(held).ok());
    let digest = held.map_or_else(|| "nothing".to_owned(), |held| Digest::of(&held).hex());
    format!("{reach} {digest}")
}

/// What may be changed: what was seen, or whatever is there where the form does not say.
fn condition(
    seen: &str,
    reach: &str,
    held: Option<operator::Schedule>,
) -> Result<Seen<operator::Schedule>, Error> {
    match seen {
        "" => Ok(Seen::Any),
        seen if seen == mark(reach, held.as_ref()) => Ok(held.map_or(Seen::Nothing, Seen::This)),
        // The form was opened for somebody else: nothing is lost where nothing is.
        seen if !is_about(seen, reach) && held.is_none() => Ok(Seen::Nothing),
        _ => Err(Error::Changed),
    }
}

/// Whether the form was opened for this reach.
fn is_about(seen: &str, reach: &str) -> bool {
    seen.rsplit_once(' ').map_or("", |(about, _)| about) == reach
}

async fn page(web: &Web, visitor: &Visitor, mut draft: Draft, known: bool) -> Result<Response, PageError> {
    let frame = Frame::new(web, visitor, Section::Settings, "When devices talk and change").await?;
    let status = if draft.is_wrong() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let week = match draft.is_wrong() {
        true => None,
        false => Week::of(&draft.want(), web.fleet().now()),
    };
    let command = draft.command(known);
    Ok((status, render(&SchedulePage { frame, command, week, draft, known })?).into_response())
}

pub(super) async fn put(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let mut draft = Draft::typed(&fields);
    visitor.note.subject(&draft.reach);
    let want = draft.want();
    if draft.is_wrong() {
        // Everything else that is wrong with it is told at once. Where nothing could be read, nothing else was chosen.
        let rest = web.fleet().check_schedule(&draft.reach, &want);
        if let Err(Error::Invalid(violations)) = rest {
            let read = want != ScheduleBody::default();
            let told = violations.iter().filter(|violation| read || !violation.place.is_empty());
            told.for_each(|violation| draft.refused(violation));
        }
    } else {
        let held = web.fleet().schedule(&draft.reach).await.ok();
        let seen = condition(&draft.seen, &draft.reach, held.clone());
        let done = match seen {
            Ok(seen) => web.fleet().put_schedule_seen(&visitor.actor, &draft.reach, &want, seen).await,
            Err(changed) => Err(changed),
        };
        match done {
            Ok(_) => return Ok(Redirect::to("/settings#schedules").into_response()),
            Err(Error::Changed) => {
                let reach = &draft.reach;
                let held = held.as_ref();
                let told = match held.filter(|_| !is_about(&draft.seen, reach)) {
                    Some(held) => {
                        let words = held.schedule.words().join("; ");
                        format!(
                            "Something is set for {reach} already: {words}. Send this again to replace it."
                        )
                    }
                    None => format!(
                        "Somebody else changed what is set for {reach} since this page was opened. Send it again to put this in its place."
                    ),
                };
                // Who sends it once more has been told.
                draft.seen = mark(reach, held);
                draft.wrong.push(told);
            }
            Err(Error::Invalid(violations)) => {
                violations.iter().for_each(|violation| draft.refused(violation));
            }
            Err(error @ (Error::Conflict { .. } | Error::NotFound { .. })) => {
                draft.wrong.push(sentence(&error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let known = web.fleet().schedule(&draft.reach).await.is_ok();
    page(&web, &visitor, draft, known).await
}

/// `GET /settings/schedule/remove?reach=…`: devices follow at once, so it is asked for.
pub(super) async fn remove_ask(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Query(Which { reach }): Query<Which>,
) -> Result<Response, PageError> {
    let held = web.fleet().schedule(&reach).await?;
    let frame = Frame::new(&web, &visitor, Section::Settings, format!("Take back {reach}")).await?;
    let words = held.schedule.words().into_iter().map(|words| format!("No longer: {words}."));
    let (of, closest) = match reach.split_once(':') {
        Some(("device", name)) => {
            (name.to_owned(), "It follows what is set for its labels or for the fleet, or does as usual.")
        }
        Some((_, label)) => (
            format!("devices with {label}"),
            "They follow what is set for other labels or for the fleet, or do as usual.",
        ),
        None => (
            "the fleet".to_owned(),
            "Devices follow what is set for them or for their labels; all others do as usual.",
        ),
    };
    render(&ConfirmPage {
        frame,
        question: format!("Take back what is set for {of}?"),
        effects: words.chain([closest.to_owned()]).collect(),
        verb: "Take back",
        harmless: false,
        action: "/settings/schedule/remove".to_owned(),
        back: "/settings#schedules".to_owned(),
        command: Command::new(["margrave", "schedule", "remove", &reach]),
        fields: vec![("seen".to_owned(), mark(&reach, Some(&held))), ("reach".to_owned(), reach)],
    })
}

pub(super) async fn remove(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    visitor.note.subject(fields.one("reach"));
    let reach = fields.one("reach");
    let held = web.fleet().schedule(reach).await?;
    let seen = condition(fields.one("seen"), reach, Some(held))?;
    web.fleet().remove_schedule_seen(&visitor.actor, reach, seen).await?;
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
            "drift": "report", "images": "remove", "holdMaxSeconds": 7200,
        }))
        .unwrap();
        let mut draft = Draft::of("fleet".to_owned(), Some(&held));
        assert_eq!(draft.hours, "any");
        assert_eq!(draft.want(), held);
        assert_eq!(
            draft.command(true).text,
            "margrave schedule set fleet --poll=15m --hours=any --downtime=2026-12-24T12:00Z/2026-12-27T06:00Z \
             '--window=sun 02:00-05:00 Europe/Berlin' '--window=sat 02:00-05:00 Europe/Berlin' --data-saver=off --drift=report \
             --images=remove --hold-max=2h --hold-open"
        );
        let poll = Draft { reach: "label:line=7".to_owned(), poll: "5m".to_owned(), ..Draft::default() };
        assert_eq!(poll.command(false).text, "margrave schedule set label:line=7 --poll=5m");
        assert!(
            poll.command(true).text.ends_with(
                "--poll=5m --unset=hours --unset=downtime --unset=window \
            --unset=data-saver --unset=drift --unset=images --unset=hold-max"
            ),
            "{}",
            poll.command(true).text
        );
        draft.poll = "often".to_owned();
        assert_eq!(draft.want().poll_every_seconds, None);
        assert!(draft.is_wrong() && draft.wrong_with("poll")[0].contains("often"));
        draft.refused(&Violation::new("/windows/1", "rule", "no such day"));
        assert_eq!(draft.wrong_with("windows"), ["Line 2: No such day."]);
        let marked: Vec<&str> = draft.marked().into_iter().map(|(_, id)| id).collect();
        assert_eq!(marked, ["poll", "windows"], "the top of the form leads to each");
    }
}
