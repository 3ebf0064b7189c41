//! The chain of causes, on its own page and inside others.

use askama::Template;
use askama::filters::HtmlSafe;
use axum::extract::State;
use axum::response::Response;
use margrave_core::id::DeviceRef;
use margrave_wire::operator::{self, WhyKind};

use super::Web;
use super::address::Query;
use super::command::Command;
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::link;
use super::session::Visitor;
use super::tiers::{counted, grouped};
use super::told::Told;

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

/// Devices by cause, those that a person has to see to first.
#[derive(Template)]
#[template(path = "groups.html")]
pub(super) struct Groups {
    groups: Vec<Group>,
    /// Of so many, where others were not looked at.
    looked_at: Option<String>,
}

struct Group {
    count: String,
    text: String,
    hint: String,
    code: String,
    example: String,
    path: String,
    /// By name and page.
    others: Vec<(String, String)>,
}

impl HtmlSafe for Chain {}
impl HtmlSafe for Groups {}

impl Groups {
    pub(super) fn of(why: &operator::Why) -> Option<Self> {
        let group = |group: &operator::CauseGroup| Group {
            count: format!("{}{}", if group.at_least { "at least " } else { "" }, grouped(group.count)),
            others: group.others.iter().map(|name| (name.clone(), link::device(name))).collect(),
            text: sentence(&group.text),
            hint: sentence(&group.hint),
            code: group.code.clone(),
            example: group.example.clone(),
            path: link::device(&group.example),
        };
        (!why.groups.is_empty()).then(|| Groups {
            groups: why.groups.iter().map(group).collect(),
            looked_at: why.looked_at.map(|count| counted(count, "device")),
        })
    }
}

impl Chain {
    pub(super) fn of(why: &operator::Why) -> Self {
        let step = |cause: &operator::Cause| Step {
            text: cause.text.clone(),
            hint: cause.hint.as_deref().map(sentence),
            code: cause.code.clone(),
        };
        Chain { steps: why.chain.iter().map(step).collect() }
    }

    /// What is seen, without what causes it.
    pub(super) fn seen(&self) -> Option<&str> {
        self.steps.first().map(|step| step.text.as_str())
    }

    /// What to do about the last cause.
    pub(super) fn next(&self) -> Option<&str> {
        self.steps.last().and_then(|step| step.hint.as_deref())
    }
}

#[derive(Template)]
#[template(path = "why.html")]
struct WhyPage {
    frame: Frame,
    subject: String,
    back: Option<Back>,
    converged: bool,
    verdict: &'static str,
    chain: Chain,
    groups: Option<Groups>,
    command: Command,
}

/// The page of what was asked about.
struct Back {
    path: String,
    noun: &'static str,
}

#[derive(serde::Deserialize)]
pub(super) struct Subject {
    #[serde(default)]
    subject: String,
    #[serde(default)]
    kind: WhyKind,
}

pub(super) async fn page(
    State(web): State<Web>,
    visitor: Visitor,
    Query(Subject { subject, kind }): Query<Subject>,
) -> Result<Response, PageError> {
    let (section, subject) = match kind {
        WhyKind::Device => (Section::Devices, subject),
        WhyKind::Deployment | WhyKind::Rollout => (Section::Deployments, subject),
        // There is one, whatever it is called.
        WhyKind::Intent => (Section::Settings, kind.as_str().to_owned()),
    };
    let frame = Frame::new(&web, &visitor, section, format!("Why {subject}")).await?;
    let why = web.fleet().why_of(kind, &subject).await?;
    let back = match kind {
        WhyKind::Device => device_of(&web, &subject).await,
        WhyKind::Deployment | WhyKind::Rollout => {
            Some(Back { path: link::deployment(&subject), noun: "deployment" })
        }
        WhyKind::Intent => Some(Back { path: "/settings#git".to_owned(), noun: "repository" }),
    };
    let command = match kind {
        WhyKind::Device | WhyKind::Intent => Command::new(["margrave", "why", &subject]),
        WhyKind::Deployment | WhyKind::Rollout => Command::new(["margrave", "why", kind.as_str(), &subject]),
    };
    render(&WhyPage {
        frame,
        back,
        converged: why.converged,
        verdict: why.verdict(),
        chain: Chain::of(&why),
        groups: Groups::of(&why),
        command,
        subject,
    })
}

/// A deployment's name has no slash, so what is before the last one is the device, unless the whole is.
async fn device_of(web: &Web, subject: &str) -> Option<Back> {
    for candidate in [Some(subject), subject.rsplit_once('/').map(|(device, _)| device)].into_iter().flatten()
    {
        if let Ok(id) = DeviceRef::parse(candidate)
            && web.fleet().device(&id).await.is_ok()
        {
            return Some(Back { path: link::device(candidate), noun: "device" });
        }
    }
    None
}
