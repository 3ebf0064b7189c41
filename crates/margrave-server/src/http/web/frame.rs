//! What all pages share: head, navigation, who is signed in, and where the live stream begins.

use askama::Template;
use axum::response::{Html, IntoResponse, Response};
use margrave_core::access::Role;

use super::Web;
use super::assets::{Asset, MARK, SCRIPT, SPRITE, STYLE};
use super::demo::Breaking;
use super::error::PageError;
use super::session::Visitor;

/// A part of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Fleet,
    Devices,
    Packages,
    Deployments,
    Audit,
    Access,
    Settings,
}

pub(super) struct Frame {
    pub(super) title: String,
    pub(super) section: Section,
    pub(super) actor: String,
    pub(super) role: Role,
    pub(super) csrf: String,
    pub(super) demo: Option<String>,
    /// What a demo lets people break.
    pub(super) breaking: Option<Breaking>,
    /// The stream that the page follows.
    pub(super) stream: &'static str,
    /// What was newest there when this page was made: the stream goes on from there.
    pub(super) after: u64,
    /// What the page is about, `device:line-1`; changes elsewhere do not refresh it.
    pub(super) watch: Option<String>,
    /// Where to go when the thing that the page is about has gone.
    pub(super) gone: Option<String>,
    /// The page's own address, where a form that was refused is answered at another one.
    pub(super) here: Option<String>,
    /// The remote that says what is wanted: it is not changed here then.
    pub(super) follows: Option<String>,
    pub(super) bare: Bare,
}

impl Frame {
    /// Made before the page's own data is read, so that a change in between is seen by the stream.
    pub(super) async fn new(
        web: &Web,
        visitor: &Visitor,
        section: Section,
        title: impl Into<String>,
    ) -> Result<Self, PageError> {
        let newest = web.fleet().recent_events(1).await?;
        Ok(Frame {
            title: title.into(),
            section,
            actor: visitor.name().to_owned(),
            role: visitor.role,
            csrf: visitor.csrf(),
            demo: web.demo().await?.map(|text| text.strip_prefix("Demo: ").unwrap_or(&text).to_owned()),
            breaking: Breaking::of(web).filter(|_| visitor.role.allows(Role::Operator)),
            stream: "/events/stream",
            after: newest.first().map_or(0, |event| event.sequence),
            watch: None,
            gone: None,
            here: None,
            follows: web.fleet().follows(),
            bare: Bare,
        })
    }

    /// A page that follows the audit log instead of the fleet. As with [`Frame::new`], what it shows is read afterwards.
    pub(super) async fn of_the_log(mut self, web: &Web) -> Result<Self, PageError> {
        (self.stream, self.after) = ("/audit/stream", web.fleet().newest_audit().await?);
        Ok(self)
    }

    pub(super) fn watching(mut self, kind: &str, name: &str) -> Self {
        self.watch = Some(format!("{kind}:{name}"));
        self
    }

    pub(super) fn leading_to(mut self, path: String) -> Self {
        self.gone = Some(path);
        self
    }

    pub(super) fn at(mut self, path: String) -> Self {
        self.here = Some(path);
        self
    }

    /// Whether the visitor may use the buttons that change something.
    pub(super) fn may_change(&self) -> bool {
        self.role.allows(Role::Operator)
    }

    /// Whether the visitor may use those that change what is wanted, which is not for a server that follows a remote.
    pub(super) fn may_want(&self) -> bool {
        self.may_change() && self.follows.is_none()
    }

    /// Whether the visitor may look after tokens.
    pub(super) fn may_administer(&self) -> bool {
        self.role.allows(Role::Admin)
    }

    pub(super) fn current(&self, section: Section) -> bool {
        self.section == section
    }
}

/// What even a page for strangers has.
pub(super) struct Bare;

impl Bare {
    pub(super) fn style(&self) -> &'static str {
        path(&STYLE)
    }

    pub(super) fn script(&self) -> &'static str {
        path(&SCRIPT)
    }

    pub(super) fn mark(&self) -> &'static str {
        path(&MARK)
    }

    pub(super) fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    pub(super) fn sprite(&self) -> &'static str {
        SPRITE
    }
}

fn path(asset: &'static Asset) -> &'static str {
    &asset.path
}

/// A template as an answer.
pub(super) fn render(page: &impl Template) -> Result<Response, PageError> {
    Ok(Html(page.render()?).into_response())
}
