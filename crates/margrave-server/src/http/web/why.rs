//! The chain of causes, on its own page and inside others.

use askama::Template;
use askama::filters::HtmlSafe;
use axum::extract::{Query, State};
use axum::response::Response;
use margrave_core::id::DeviceRef;
use margrave_wire::operator;

use super::Web;
use super::command::Command;
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::link;
use super::session::Visitor;

/// Causes in order; the last is the one to act on.
#[derive(Template)]
#[template(path = "chain.html")]
pub(super) struct Chain {
    steps: Vec<Step>,
}

struct Step {
    text: String,
    hint: Option<String>,
    code: String,
}

impl HtmlSafe for Chain {}

impl Chain {
    pub(super) fn of(why: &operator::Why) -> Self {
        let step = |cause: &operator::Cause| Step {
            text: cause.text.clone(),
            hint: cause.hint.as_deref().map(sentence),
            code: cause.code.clone(),
        };
        Chain { steps: why.chain.iter().map(step).collect() }
    }
}

#[derive(Template)]
#[template(path = "why.html")]
struct WhyPage {
    frame: Frame,
    subject: String,
    device: Option<String>,
    converged: bool,
    chain: Chain,
    command: Command,
}

#[derive(serde::Deserialize)]
pub(super) struct Subject {
    #[serde(default)]
    subject: String,
}

pub(super) async fn page(
    State(web): State<Web>,
    visitor: Visitor,
    Query(Subject { subject }): Query<Subject>,
) -> Result<Response, PageError> {
    let frame = Frame::new(&web, &visitor, Section::Devices, format!("Why {subject}")).await?;
    let why = web.fleet().why(&subject).await?;
    // A deployment's name has no slash, so what is before the last one is the device, unless the whole is.
    let mut device = None;
    for candidate in
        [Some(subject.as_str()), subject.rsplit_once('/').map(|(device, _)| device)].into_iter().flatten()
    {
        if let Ok(id) = DeviceRef::parse(candidate)
            && web.fleet().device(&id).await.is_ok()
        {
            device = Some(link::device(candidate));
            break;
        }
    }
    render(&WhyPage {
        frame,
        device,
        converged: why.converged,
        chain: Chain::of(&why),
        command: Command::new(["margrave", "why", &subject]),
        subject,
    })
}
