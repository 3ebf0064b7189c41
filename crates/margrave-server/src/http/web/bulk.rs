//! The same for many devices: those that are ticked, or all that match what was searched for. Whoever did something is led back
//! to the list that they looked at, which says what came of it.
//!
//! What reaches beyond the page that somebody looks at is asked back with the number of devices, and done only if it is still
//! that many.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use margrave_core::id::DeviceRef;
use margrave_wire::operator;

use super::Web;
use super::command::{Command, quote};
use super::confirm::ConfirmPage;
use super::device;
use super::devices::{Filter, page};
use super::error::{PageError, told};
use super::frame::{Frame, Section, render};
use super::link;
use super::session::{Fields, Submitted, Visitor};
use super::tiers::{counted, grouped};
use crate::fleet::{Error, Standing};

/// Devices that are changed from one form; more than that is a program's business.
const MATCHING_MAX: usize = 10_000;
/// Names that a question lists.
const NAMES_MAX: usize = 50;

/// Devices that are asked something of from one form: each is told on its own.
const ASKED_MAX: usize = 1000;
/// For how long changes may be held back, in seconds.
pub(super) const LENGTHS: [(u64, &str); 4] =
    [(3600, "1 hour"), (4 * 3600, "4 hours"), (8 * 3600, "8 hours"), (24 * 3600, "24 hours")];
/// What the form does, as commands for one device.
pub(super) const COMMANDS: [&str; 6] = [
    "margrave device label \"$id\" line=4",
    "margrave device label \"$id\" line-",
    "margrave device retire \"$id\"",
    "margrave device hold \"$id\" --reason 'batch 17 runs' --for 1h",
    "margrave device release \"$id\"",
    "margrave device look \"$id\"",
];

/// What stood in the form when it was refused.
#[derive(Default)]
pub(super) struct Typed {
    pub(super) ticked: BTreeSet<String>,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) reason: String,
    pub(super) seconds: Option<u64>,
}

impl Typed {
    fn of(fields: &Fields) -> Self {
        Typed {
            ticked: fields.all("device").map(ToOwned::to_owned).collect(),
            key: fields.one("key").to_owned(),
            value: fields.one("value").to_owned(),
            reason: fields.one("reason").to_owned(),
            seconds: fields.one("seconds").parse().ok(),
        }
    }

    /// Those that are ticked, as a shell takes them; else a word that no device has.
    pub(super) fn names(&self) -> String {
        match self.ticked.is_empty() {
            true => "DEVICE…".to_owned(),
            false => self.ticked.iter().map(|name| quote(name)).collect::<Vec<_>>().join(" "),
        }
    }

    pub(super) fn is_for(&self, seconds: &u64) -> bool {
        self.seconds == Some(*seconds)
    }
}

/// What is to be done.
enum Verb {
    Label { key: String, value: Option<String> },
    Retire,
    Hold(operator::HoldDevice),
    Release,
    Look,
}

/// What was done, as the address of the list carries it.
#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct Done {
    done: Option<String>,
    #[serde(default)]
    number: u64,
    /// Devices that it could not be done with.
    #[serde(default)]
    left: u64,
    #[serde(default)]
    key: String,
}

impl Done {
    pub(super) fn words(&self) -> Option<String> {
        let Done { done, number, left, key } = self;
        let devices = counted(*number, "device");
        let (carry, were) = if *number == 1 { ("carries", "was") } else { ("carry", "were") };
        let words = match done.as_deref()? {
            "label" => format!("{devices} now {carry} the label {key}."),
            "unlabel" => format!("{devices} no longer {carry} the label {key}."),
            "retire" => format!("{devices} {were} retired."),
            "hold" => format!("{devices} {were} asked to hold changes back."),
            "release" => format!("{devices} {were} told to let changes go on."),
            "look" => format!("{devices} {were} asked for a fresh look."),
            _ => return None,
        };
        Some(match left {
            0 => words,
            1 => format!("{words} 1 device could not be: its page says why."),
            left => format!("{words} {} could not be: their pages say why.", counted(*left, "device")),
        })
    }

    /// The address of the list with it.
    fn path(&self, list: &str) -> String {
        let Done { done, number, left, key } = self;
        let mark = if list.contains('?') { '&' } else { '?' };
        let mut path = format!("{list}{mark}done={}&number={number}", done.as_deref().unwrap_or_default());
        if *left > 0 {
            path.push_str(&format!("&left={left}"));
        }
        if !key.is_empty() {
            path.push_str(&format!("&key={}", link::encode(key)));
        }
        path
    }
}

impl Verb {
    fn read(fields: &Fields) -> Result<Verb, Wrong> {
        let key = fields.one("key").to_owned();
        let verb = match fields.one("do") {
            // Enter presses the first button of a form, and who has typed a reason means another one.
            "label" if key.is_empty() && !fields.one("reason").is_empty() => "hold",
            verb => verb,
        };
        match verb {
            "label" | "unlabel" if key.is_empty() => {
                Err(Wrong::Said("A label needs a name; nothing was changed.".to_owned()))
            }
            verb @ ("label" | "unlabel") => {
                let value = (verb == "label").then(|| fields.one("value").to_owned());
                Ok(Verb::Label { key, value })
            }
            "retire" => Ok(Verb::Retire),
            "hold" => {
                let reason = fields.one("reason").to_owned();
                if reason.is_empty() {
                    return Err(Wrong::Said("Say why changes should wait; nothing was changed.".to_owned()));
                }
                let seconds = fields.one("seconds").parse().map_err(|_| {
                    Wrong::Page(PageError::Malformed("The form does not say for how long.".to_owned()))
                })?;
                Ok(Verb::Hold(operator::HoldDevice { reason, seconds }))
            }
            "release" => Ok(Verb::Release),
            "look" => Ok(Verb::Look),
            _ => Err(Wrong::Page(PageError::Malformed("The form does not say what to do.".to_owned()))),
        }
    }

    /// Each of those that are asked something is told on its own, so there is an end to how many.
    fn check_number(&self, devices: usize) -> Result<(), Wrong> {
        let asks = matches!(self, Verb::Hold(_) | Verb::Release | Verb::Look);
        if asks && devices > ASKED_MAX {
            let most = grouped(ASKED_MAX as u64);
            return Err(Wrong::Said(format!(
                "At most {most} devices are asked at once; narrow the search. Nothing was changed."
            )));
        }
        Ok(())
    }

    fn fields(&self) -> Vec<(String, String)> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        match self {
            Verb::Label { key, value: Some(value) } => {
                vec![pair("do", "label"), pair("key", key), pair("value", value)]
            }
            Verb::Label { key, value: None } => vec![pair("do", "unlabel"), pair("key", key)],
            Verb::Retire => vec![pair("do", "retire")],
            Verb::Hold(want) => vec![
                pair("do", "hold"),
                pair("reason", &want.reason),
                pair("seconds", &want.seconds.to_string()),
            ],
            Verb::Release => vec![pair("do", "release")],
            Verb::Look => vec![pair("do", "look")],
        }
    }

    fn question(&self, number: &str) -> String {
        match self {
            Verb::Label { key, value: Some(value) } => format!("Label {number} with {key}={value}?"),
            Verb::Label { key, value: None } => format!("Take the label {key} from {number}?"),
            Verb::Retire => format!("Retire {number}?"),
            Verb::Hold(_) => format!("Ask {number} to hold changes back?"),
            Verb::Release => format!("Let changes go on at {number}?"),
            Verb::Look => format!("Ask {number} for a fresh look?"),
        }
    }

    fn effects(&self) -> Vec<String> {
        let effects: &[&str] = match self {
            Verb::Label { .. } => &[
                "Deployments and schedules that choose by this label follow at once: what they do not mean any more is taken off.",
            ],
            Verb::Retire => &[
                "They are shut out at once: this server answers none of their requests any more.",
                "What runs on them keeps running, and they can be accepted again later.",
            ],
            Verb::Hold(_) => &["What runs on them keeps running; updates wait until it is over."],
            Verb::Release => &["Updates that waited go on."],
            Verb::Look => &["They look at what runs and say how everything stands."],
        };
        effects.iter().map(|effect| (*effect).to_owned()).collect()
    }

    fn word(&self) -> &'static str {
        match self {
            Verb::Label { value: Some(_), .. } => "Set the label",
            Verb::Label { value: None, .. } => "Remove the label",
            Verb::Retire => "Retire",
            Verb::Hold(_) => "Hold changes back",
            Verb::Release => "Let changes go on",
            Verb::Look => "Take a fresh look",
        }
    }

    fn done(&self, number: usize, left: usize) -> Done {
        let (done, key) = match self {
            Verb::Label { key, value: Some(_) } => ("label", key.clone()),
            Verb::Label { key, value: None } => ("unlabel", key.clone()),
            Verb::Retire => ("retire", String::new()),
            Verb::Hold(_) => ("hold", String::new()),
            Verb::Release => ("release", String::new()),
            Verb::Look => ("look", String::new()),
        };
        Done { done: Some(done.to_owned()), number: number as u64, left: left as u64, key }
    }

    /// The command for one device, without its name.
    fn command(&self) -> (&'static str, String) {
        match self {
            Verb::Label { key, value: Some(value) } => {
                ("margrave device label", quote(&format!("{key}={value}")))
            }
            Verb::Label { key, value: None } => ("margrave device label", quote(&format!("{key}-"))),
            Verb::Retire => ("margrave device retire", "--yes".to_owned()),
            Verb::Hold(want) => {
                let reason = quote(&want.reason);
                ("margrave device hold", format!("--reason {reason} --for {}s", want.seconds))
            }
            Verb::Release => ("margrave device release", String::new()),
            Verb::Look => ("margrave device look", String::new()),
        }
    }
}

/// Why nothing was done.
enum Wrong {
    /// For the page that the form stands on.
    Said(String),
    Page(PageError),
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Wrong {
        match error {
            error @ (Error::Invalid(_) | Error::Conflict { .. }) => Wrong::Said(told(&error)),
            error => Wrong::Page(error.into()),
        }
    }
}

impl From<PageError> for Wrong {
    fn from(error: PageError) -> Wrong {
        Wrong::Page(error)
    }
}

/// What came of a form.
enum Outcome {
    Done(Done),
    /// It is to be asked back.
    Asked(Box<Response>),
}

/// `POST /devices`: the same for every ticked device, or for all that match.
pub(super) async fn change(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let all = !fields.one("all").is_empty();
    let filter = Filter::of(&fields);
    let outcome = match all {
        true => change_matching(&web, &visitor, &fields, &filter).await,
        false => change_ticked(&web, &visitor, &fields, &filter).await,
    };
    match outcome {
        Ok(Outcome::Done(done)) => Ok(Redirect::to(&done.path(&filter.here())).into_response()),
        Ok(Outcome::Asked(response)) => Ok(*response),
        Err(Wrong::Said(words)) => page(&web, &visitor, filter, Typed::of(&fields), Err(words)).await,
        Err(Wrong::Page(error)) => Err(error),
    }
}

async fn change_ticked(
    web: &Web,
    visitor: &Visitor,
    fields: &Fields,
    filter: &Filter,
) -> Result<Outcome, Wrong> {
    let names: Vec<&str> = fields.all("device").collect();
    visitor.note.subject(names.join(" "));
    let devices: Result<Vec<DeviceRef>, _> = names.iter().map(|name| device::parse(name)).collect();
    let devices = devices?;
    if devices.is_empty() {
        return Err(Wrong::Said("Tick the devices first; nothing was changed.".to_owned()));
    }
    let verb = Verb::read(fields)?;
    // Labels come off as easily as they went on, unless applications go with them; retiring is asked back.
    let lost = match &verb {
        Verb::Label { key, value } if fields.one("sure").is_empty() => {
            let want = operator::SetLabels { labels: [(key.clone(), value.clone())].into() };
            web.fleet().lost_by_labels(&visitor.actor, &devices, &want).await?
        }
        _ => Vec::new(),
    };
    if (matches!(verb, Verb::Retire) || !lost.is_empty()) && fields.one("sure").is_empty() {
        let carried = names.iter().map(|name| ("device".to_owned(), (*name).to_owned()));
        let carried = carried.chain(filter.carried()).collect();
        let (command, rest) = verb.command();
        let quoted: Vec<String> = names.iter().map(|name| quote(name)).collect();
        let command = match quoted.as_slice() {
            [one] => Command::ready(&format!("{command} {one} {rest}")),
            several => {
                let names = several.join(" ");
                Command::ready(&format!("for id in {names}; do {command} \"$id\" {rest}; done"))
            }
        };
        let back = filter.here();
        let left_out = (!lost.is_empty()).then(|| device::lost_words(&lost));
        let question = Question { verb: &verb, devices: &devices, left_out, carried, back, command };
        return question.ask(web, visitor).await;
    }
    carry_out(web, visitor, &verb, &devices).await
}

async fn change_matching(
    web: &Web,
    visitor: &Visitor,
    fields: &Fields,
    filter: &Filter,
) -> Result<Outcome, Wrong> {
    visitor.note.subject(format!("every device that matches: {}", filter.words()));
    let verb = Verb::read(fields)?;
    let query = filter.query().map_err(Wrong::Said)?;
    let found = web.fleet().matching(query, MATCHING_MAX).await?;
    let all = found.len();
    let reached = found.into_iter().filter(|(device, standing)| match verb {
        Verb::Label { .. } => true,
        Verb::Hold(_) | Verb::Release | Verb::Look => {
            !device.device.is_child() && *standing != Standing::Retired
        }
        // A child goes with its gateway, and who is out stays out.
        Verb::Retire => !device.device.is_child() && *standing != Standing::Retired,
    });
    let devices: Vec<DeviceRef> = reached.map(|(device, _)| device).collect();
    if devices.is_empty() {
        return Err(Wrong::Said("No device matches any more; nothing was changed.".to_owned()));
    }
    verb.check_number(devices.len())?;
    // Sure of exactly so many; where others came or went meanwhile, it is asked once more.
    if fields.one("sure").parse() == Ok(devices.len()) {
        return carry_out(web, visitor, &verb, &devices).await;
    }
    let mut carried = filter.carried();
    carried.push(("all".to_owned(), "true".to_owned()));
    let left_out = (all > devices.len()).then(|| {
        let left = (all - devices.len()) as u64;
        let words = if left == 1 { "matches and stays as it is" } else { "match and stay as they are" };
        format!("{} {words}: retired already, or behind a gateway.", counted(left, "more device"))
    });
    let (command, rest) = verb.command();
    let list = filter.command().text;
    let command = Command::ready(&format!(
        "{list} --json | jq -r '.[].id' | while read -r id; do {command} \"$id\" {rest}; done"
    ));
    let back = filter.here();
    Question { verb: &verb, devices: &devices, left_out, carried, back, command }.ask(web, visitor).await
}

/// What is asked back.
struct Question<'a> {
    verb: &'a Verb,
    devices: &'a [DeviceRef],
    left_out: Option<String>,
    /// What the form carries, besides what is to be done.
    carried: Vec<(String, String)>,
    back: String,
    command: Command,
}

impl Question<'_> {
    async fn ask(self, web: &Web, visitor: &Visitor) -> Result<Outcome, Wrong> {
        let Question { verb, devices, left_out, carried, back, command } = self;
        let question = verb.question(&counted(devices.len() as u64, "device"));
        let frame = Frame::new(web, visitor, Section::Devices, question.trim_end_matches('?')).await?;
        let mut names: Vec<String> = devices.iter().take(NAMES_MAX).map(ToString::to_string).collect();
        if devices.len() > NAMES_MAX {
            names.push(format!("and {} more", grouped((devices.len() - NAMES_MAX) as u64)));
        }
        let effects = [format!("{}.", names.join(", "))].into_iter().chain(left_out).chain(verb.effects());
        let sure = ("sure".to_owned(), devices.len().to_string());
        let page = ConfirmPage {
            frame,
            question,
            effects: effects.collect(),
            verb: verb.word(),
            harmless: !matches!(verb, Verb::Retire | Verb::Label { .. }),
            action: "/devices".to_owned(),
            back,
            fields: carried.into_iter().chain(verb.fields()).chain([sure]).collect(),
            command,
        };
        Ok(Outcome::Asked(Box::new(render(&page)?)))
    }
}

async fn carry_out(
    web: &Web,
    visitor: &Visitor,
    verb: &Verb,
    devices: &[DeviceRef],
) -> Result<Outcome, Wrong> {
    let fleet = web.fleet();
    let mut left = 0;
    match verb {
        Verb::Label { key, value } => {
            let want = operator::SetLabels { labels: [(key.clone(), value.clone())].into() };
            fleet.label_all(&visitor.actor, devices, &want).await?;
        }
        Verb::Retire => fleet.retire_all(&visitor.actor, devices).await?,
        Verb::Hold(_) | Verb::Release | Verb::Look => {
            verb.check_number(devices.len())?;
            let mut first = None;
            for device in devices {
                let asked = match verb {
                    Verb::Hold(want) => fleet.hold_device(&visitor.actor, device, want).await,
                    Verb::Release => fleet.release_device(&visitor.actor, device).await,
                    _ => fleet.look_again(&visitor.actor, device).await,
                };
                match asked {
                    Ok(_) => {}
                    // One that cannot be asked, has nothing to let go of, or may not be held for so long does not keep the
                    // others from it.
                    Err(error @ (Error::Conflict { .. } | Error::NotFound { .. } | Error::Invalid(_))) => {
                        left += 1;
                        first.get_or_insert(error);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if let Some(error) = first.filter(|_| left == devices.len()) {
                return Err(error.into());
            }
        }
    }
    let number = devices.len() - left;
    visitor.note.detail(counted(number as u64, "device"));
    Ok(Outcome::Done(verb.done(number, left)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_told_in_words_and_in_the_address() {
        let verb = Verb::Label { key: "line <b>".to_owned(), value: Some(String::new()) };
        let done = verb.done(1, 0);
        assert_eq!(done.words().unwrap(), "1 device now carries the label line <b>.");
        assert_eq!(done.path("/devices?site=x"), "/devices?site=x&done=label&number=1&key=line%20%3Cb%3E");
        let done = Verb::Look.done(2, 1);
        assert_eq!(
            done.words().unwrap(),
            "2 devices were asked for a fresh look. 1 device could not be: its page says why."
        );
        assert_eq!(done.path("/devices"), "/devices?done=look&number=2&left=1");
        assert_eq!(Done { done: Some("anything".to_owned()), ..Done::default() }.words(), None);
    }
}
