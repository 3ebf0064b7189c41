//! The same for many devices: those that are ticked, or all that match what was searched for.
//!
//! What reaches beyond the page that somebody looks at is asked back with the number of devices, and done only if it is still
//! that many.

use axum::extract::State;
use axum::response::Response;
use margrave_core::id::DeviceRef;
use margrave_wire::operator;

use super::Web;
use super::command::{Command, quote};
use super::confirm::ConfirmPage;
use super::device;
use super::devices::{Filter, page};
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::session::{Fields, Submitted, Visitor};
use super::tiers::counted;
use crate::fleet::{Error, Standing};

/// Devices that are changed from one form; more than that is a program's business.
const MATCHING_MAX: usize = 10_000;
/// Names that a question lists.
const NAMES_MAX: usize = 50;

/// What is to be done.
enum Verb {
    Label { key: String, value: Option<String> },
    Retire,
}

impl Verb {
    fn read(fields: &Fields) -> Result<Verb, Wrong> {
        let key = fields.one("key").to_owned();
        match fields.one("do") {
            "label" | "unlabel" if key.is_empty() => {
                Err(Wrong::Said("A label needs a name; nothing was changed.".to_owned()))
            }
            verb @ ("label" | "unlabel") => {
                let value = (verb == "label").then(|| fields.one("value").to_owned());
                Ok(Verb::Label { key, value })
            }
            "retire" => Ok(Verb::Retire),
            _ => Err(Wrong::Page(PageError::Malformed("The form does not say what to do.".to_owned()))),
        }
    }

    fn fields(&self) -> Vec<(String, String)> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        match self {
            Verb::Label { key, value: Some(value) } => {
                vec![pair("do", "label"), pair("key", key), pair("value", value)]
            }
            Verb::Label { key, value: None } => vec![pair("do", "unlabel"), pair("key", key)],
            Verb::Retire => vec![pair("do", "retire")],
        }
    }

    fn question(&self, number: &str) -> String {
        match self {
            Verb::Label { key, value: Some(value) } => format!("Label {number} with {key}={value}?"),
            Verb::Label { key, value: None } => format!("Take the label {key} from {number}?"),
            Verb::Retire => format!("Retire {number}?"),
        }
    }

    fn effects(&self) -> Vec<String> {
        let effects: &[&str] = match self {
            Verb::Label { .. } => &["Deployments and schedules that choose by this label follow at once."],
            Verb::Retire => &[
                "They are shut out at once: this server answers none of their requests any more.",
                "What runs on them keeps running, and they can be accepted again later.",
            ],
        };
        effects.iter().map(|effect| (*effect).to_owned()).collect()
    }

    fn word(&self) -> &'static str {
        match self {
            Verb::Label { value: Some(_), .. } => "Set the label",
            Verb::Label { value: None, .. } => "Remove the label",
            Verb::Retire => "Retire",
        }
    }

    fn done(&self, number: &str) -> String {
        match self {
            Verb::Label { key, value: Some(_) } => format!("{number} now carry the label {key}."),
            Verb::Label { key, value: None } => format!("{number} no longer carry the label {key}."),
            Verb::Retire => format!("{number} were retired."),
        }
    }

    /// The command for one device, without its name.
    fn command(&self) -> (&'static str, String) {
        match self {
            Verb::Label { key, value: Some(value) } => {
                ("margrave device label", quote(&format!("{key}={value}")))
            }
            Verb::Label { key, value: None } => ("margrave device label", quote(&format!("{key}-"))),
            Verb::Retire => ("margrave device retire", "--yes".to_owned()),
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
            error @ (Error::Invalid(_) | Error::Conflict { .. }) => Wrong::Said(sentence(&error.to_string())),
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
    Done(String),
    /// It is to be asked back.
    Asked(Box<Response>),
}

/// `POST /devices`: the same for every ticked device, or for all that match.
pub(super) async fn change(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let all = !fields.one("all").is_empty();
    let filter = if all { Filter::of(&fields) } else { Filter::default() };
    let outcome = match all {
        true => change_matching(&web, &visitor, &fields, &filter).await,
        false => change_ticked(&web, &visitor, &fields).await,
    };
    match outcome {
        Ok(Outcome::Done(words)) => page(&web, &visitor, filter, Ok(Some(words))).await,
        Ok(Outcome::Asked(response)) => Ok(*response),
        Err(Wrong::Said(words)) => page(&web, &visitor, filter, Err(words)).await,
        Err(Wrong::Page(error)) => Err(error),
    }
}

async fn change_ticked(web: &Web, visitor: &Visitor, fields: &Fields) -> Result<Outcome, Wrong> {
    let names: Vec<&str> = fields.all("device").collect();
    visitor.note.subject(names.join(" "));
    let devices: Result<Vec<DeviceRef>, _> = names.iter().map(|name| device::parse(name)).collect();
    let devices = devices?;
    if devices.is_empty() {
        return Err(Wrong::Said("Tick the devices first; nothing was changed.".to_owned()));
    }
    let verb = Verb::read(fields)?;
    // Labels come off as easily as they went on; retiring is asked back.
    if matches!(verb, Verb::Retire) && fields.one("sure").is_empty() {
        let carried = names.iter().map(|name| ("device".to_owned(), (*name).to_owned())).collect();
        let (command, rest) = verb.command();
        let first = names.first().map(|name| quote(name)).unwrap_or_default();
        let command = Command::ready(&format!("{command} {first} {rest}"));
        let back = "/devices".to_owned();
        let question = Question { verb: &verb, devices: &devices, left_out: None, carried, back, command };
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
        // A child goes with its gateway, and who is out stays out.
        Verb::Retire => !device.device.is_child() && *standing != Standing::Retired,
    });
    let devices: Vec<DeviceRef> = reached.map(|(device, _)| device).collect();
    if devices.is_empty() {
        return Err(Wrong::Said("No device matches any more; nothing was changed.".to_owned()));
    }
    // Sure of exactly so many; where others came or went meanwhile, it is asked once more.
    if fields.one("sure").parse() == Ok(devices.len()) {
        return carry_out(web, visitor, &verb, &devices).await;
    }
    let mut carried = filter.carried();
    carried.push(("all".to_owned(), "true".to_owned()));
    let left_out = (all > devices.len()).then(|| {
        let number = counted((all - devices.len()) as u64, "device");
        format!("{number} more match and stay as they are: retired already, or behind a gateway.")
    });
    let (command, rest) = verb.command();
    let list = filter.command().text;
    let command = Command::ready(&format!(
        "{list} --json | jq -r '.[].id' | while read -r id; do {command} \"$id\" {rest}; done"
    ));
    let back = filter.path(None);
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
            names.push(format!("and {} more", devices.len() - NAMES_MAX));
        }
        let effects = [format!("{}.", names.join(", "))].into_iter().chain(left_out).chain(verb.effects());
        let sure = ("sure".to_owned(), devices.len().to_string());
        let page = ConfirmPage {
            frame,
            question,
            effects: effects.collect(),
            verb: verb.word(),
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
    match verb {
        Verb::Label { key, value } => {
            let want = operator::SetLabels { labels: [(key.clone(), value.clone())].into() };
            fleet.label_all(&visitor.actor, devices, &want).await?;
        }
        Verb::Retire => fleet.retire_all(&visitor.actor, devices).await?,
    }
    visitor.note.detail(counted(devices.len() as u64, "device"));
    Ok(Outcome::Done(verb.done(&counted(devices.len() as u64, "device"))))
}
