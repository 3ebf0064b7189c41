//! When devices talk and change, as people read it: a line for each part, and a picture of the seven days from today.
//!
//! The picture shows what the lines say and is hidden from those who listen to the page.

use askama::Template;
use askama::filters::HtmlSafe;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use margrave_core::moment::Moment;
use margrave_core::schedule::{Choice, Gate, Schedule};
use margrave_wire::schedule::ScheduleBody;

use super::pace::spoken;

const DAYS: i64 = 7;
const MINUTE: u64 = 60 * 1000;
/// Spans that a row shows; a week of a sane schedule has far fewer.
const SPANS_MAX: usize = 400;

/// What is set, a name and a text for each part.
pub(super) fn lines(body: &ScheduleBody) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(seconds) = body.poll_every_seconds {
        let open = if body.poll_wait == Some(true) { ", held open" } else { "" };
        lines.push(("Polls", format!("every {}{open}", spoken(seconds))));
    }
    let times = |times: &Option<Vec<String>>, none: &str| {
        times.as_ref().map(|times| match times.is_empty() {
            true => none.to_owned(),
            false => times.join("; "),
        })
    };
    lines.extend(times(&body.hours, "at any time").map(|text| ("Talks", text)));
    lines.extend(times(&body.downtime, "none is known").map(|text| ("Downtime", text)));
    lines.extend(times(&body.windows, "at any time").map(|text| ("Changes", text)));
    let saver = body.data_saver.map(|on| if on { "saved: reports and downloads wait" } else { "not saved" });
    lines.extend(saver.map(|text| ("Data", text.to_owned())));
    let drift = body.drift.as_deref().map(|drift| match drift {
        "report" => "is told, and left as it is",
        _ => "is repaired",
    });
    lines.extend(drift.map(|text| ("Drift", text.to_owned())));
    let images = body.images.as_deref().map(|images| match images {
        "remove" => "are removed once no deployment needs them",
        _ => "are kept",
    });
    lines.extend(images.map(|text| ("Images", text.to_owned())));
    lines.extend(body.hold_max_seconds.map(|seconds| match seconds {
        0 => ("Holding back", "is not allowed".to_owned()),
        seconds => ("Holding back", format!("for {} at most", spoken(seconds))),
    }));
    lines
}

/// The seven days from today, as a picture.
#[derive(Template)]
#[template(path = "week.html")]
pub(super) struct Week {
    zone: String,
    /// `Tue` and `17`.
    days: Vec<(String, String)>,
    rows: Vec<Row>,
    /// Minutes since the first day began.
    now: u64,
    minutes: u64,
}

impl HtmlSafe for Week {}

struct Row {
    name: &'static str,
    tone: &'static str,
    /// From where, and how long, in minutes.
    spans: Vec<(u64, u64)>,
}

impl Week {
    /// Nothing where no time is chosen, or what is chosen cannot be read.
    pub(super) fn of(body: &ScheduleBody, now: Moment) -> Option<Self> {
        let choice = body.read().ok()?;
        let zone = zone_of(body);
        let at = Timestamp::from_millisecond(i64::try_from(now.0).ok()?).ok()?;
        let today = at.to_zoned(zone.clone()).start_of_day().ok()?;
        let day = |offset: i64| today.checked_add(Span::new().days(offset)).ok();
        let named = |offset: i64| {
            let day = day(offset)?;
            Some((day.strftime("%a").to_string(), day.strftime("%-d").to_string()))
        };
        let days = (0..DAYS).map(named).collect::<Option<_>>()?;
        let moment =
            |offset: i64| Some(Moment(u64::try_from(day(offset)?.timestamp().as_millisecond()).ok()?));
        let (from, to) = (moment(0)?, moment(DAYS)?);
        let rows = rows(&choice, from, to);
        (!rows.is_empty()).then(|| Week {
            zone: zone.iana_name().unwrap_or("UTC").to_owned(),
            days,
            rows,
            now: now.0.saturating_sub(from.0) / MINUTE,
            minutes: (to.0 - from.0) / MINUTE,
        })
    }
}

/// The zone of the first time that names one: most fleets keep to one.
fn zone_of(body: &ScheduleBody) -> TimeZone {
    let texts = [&body.hours, &body.windows, &body.downtime].into_iter().flatten().flatten();
    let named = texts.filter_map(|text| text.split_whitespace().nth(2));
    named.filter_map(|name| TimeZone::get(name).ok()).next().unwrap_or(TimeZone::UTC)
}

fn rows(choice: &Choice, from: Moment, to: Moment) -> Vec<Row> {
    let mut rows = Vec::new();
    let row = |name, tone, spans: Vec<(Moment, Moment)>| {
        let minutes = |moment: Moment| (moment.0 - from.0) / MINUTE;
        let spans = spans.into_iter().map(|(begin, end)| (minutes(begin), (end.0 - begin.0) / MINUTE));
        Row { name, tone, spans: spans.collect() }
    };
    if let Some(hours) = choice.hours.clone() {
        let talks = Schedule { hours, ..Schedule::default() };
        rows.push(row("Talks", "busy", open(|at| talks.contact(at), from, to)));
    }
    if let Some(windows) = choice.windows.clone() {
        // None at all is at any time.
        let windows = Some(windows).filter(|windows| !windows.is_empty());
        let changes = Schedule { windows, ..Schedule::default() };
        rows.push(row("Changes", "ok", open(|at| changes.change(at), from, to)));
    }
    if let Some(downtime) = choice.downtime.clone() {
        let down = Schedule { downtime, ..Schedule::default() };
        let reached = open(|at| down.contact(at), from, to);
        rows.push(row("Downtime", "off", between(&reached, from, to)));
    }
    rows
}

/// The spans in which something may be done.
fn open(gate: impl Fn(Moment) -> Gate, from: Moment, to: Moment) -> Vec<(Moment, Moment)> {
    let mut spans: Vec<(Moment, Moment)> = Vec::new();
    let mut at = from;
    for _ in 0..SPANS_MAX {
        let (is_open, until) = match gate(at) {
            Gate::Open(until) => (true, until),
            Gate::Closed(until) => (false, until),
        };
        let end = until.filter(|until| *until > at).map_or(to, |until| until.min(to));
        match spans.last_mut() {
            // One that follows at once is the same span.
            Some((_, before)) if is_open && *before == at => *before = end,
            _ if is_open => spans.push((at, end)),
            _ => {}
        }
        if end >= to {
            break;
        }
        at = end;
    }
    spans
}

/// What is left between spans.
fn between(spans: &[(Moment, Moment)], from: Moment, to: Moment) -> Vec<(Moment, Moment)> {
    let begins = [from].into_iter().chain(spans.iter().map(|(_, end)| *end));
    let ends = spans.iter().map(|(begin, _)| *begin).chain([to]);
    begins.zip(ends).filter(|(begin, end)| begin < end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(body: serde_json::Value, now: &str, shown: &str) {
        let body: ScheduleBody = serde_json::from_value(body).unwrap();
        let week = Week::of(&body, Moment::from_rfc3339(now).unwrap());
        let told = week.map_or("nothing".to_owned(), |week| {
            let rows = week.rows.iter().map(|row| {
                let spans: Vec<String> = row
                    .spans
                    .iter()
                    .map(|(from, length)| {
                        format!("{}+{:02}:{:02} for {}", from / 1440, from / 60 % 24, from % 60, length)
                    })
                    .collect();
                format!("{}: {}", row.name, spans.join(", "))
            });
            let (name, number) = &week.days[0];
            format!("{name} {number} {} | {}", week.zone, rows.collect::<Vec<_>>().join(" | "))
        });
        assert_eq!(told, shown);
    }

    #[test]
    fn a_week_shows_when_there_is_time() {
        // Tuesday, the 17th.
        let now = "2026-11-17T09:00:00Z";
        check(
            json!({ "windows": ["sun 02:00-05:00 Europe/Berlin", "sun 05:00-05:30 Europe/Berlin"] }),
            now,
            "Tue 17 Europe/Berlin | Changes: 5+02:00 for 210",
        );
        check(
            json!({ "hours": ["mon-fri 06:00-22:00"], "downtime": ["2026-11-18T20:00Z/2026-11-19T04:00Z"] }),
            now,
            "Tue 17 UTC | Talks: 0+06:00 for 960, 1+06:00 for 960, 2+06:00 for 960, 3+06:00 for 960, 6+06:00 for 960 \
             | Downtime: 1+20:00 for 480",
        );
        check(json!({ "windows": [] }), now, "Tue 17 UTC | Changes: 0+00:00 for 10080");
        check(json!({ "downtime": [] }), now, "Tue 17 UTC | Downtime: ");
        check(json!({ "pollEverySeconds": 60 }), now, "nothing");
        check(json!({ "windows": ["never"] }), now, "nothing");
    }

    #[test]
    fn each_part_has_its_name() {
        let body = serde_json::from_value(json!({
            "pollEverySeconds": 900, "pollWait": true, "hours": [], "windows": ["sun 02:00-05:00"], "images": "remove",
            "holdMaxSeconds": 0,
        }));
        let told: Vec<String> =
            lines(&body.unwrap()).into_iter().map(|(name, text)| format!("{name} {text}")).collect();
        assert_eq!(
            told,
            [
                "Polls every 15m, held open",
                "Talks at any time",
                "Changes sun 02:00-05:00",
                "Images are removed once no deployment needs them",
                "Holding back is not allowed"
            ]
        );
    }
}
