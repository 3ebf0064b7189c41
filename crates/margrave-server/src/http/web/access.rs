//! Who may do what: the tokens, making one, revoking one.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use margrave_wire::operator;

use super::Web;
use super::address::{Path, Query};
use super::command::Command;
use super::confirm::ConfirmPage;
use super::error::PageError;
use super::frame::{Frame, Section, render};
use super::paging::Pages;
use super::session::{Administering, Administrator, Submitted, Visitor};
use super::stamp::Stamp;
use super::wrong::Wrong;
use crate::fleet::Error;

/// Tokens on a page.
const PAGE_SIZE: usize = 100;
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Roles to choose from, and what each may.
const ROLES: [(&str, &str); 3] = [
    ("viewer", "looks at everything but secrets"),
    ("operator", "also changes deployments and devices"),
    ("admin", "also looks after tokens, the authority, registries and settings"),
];
/// For how many days a token can be used.
const LENGTHS: [(&str, &str); 5] = [
    ("1", "for a day"),
    ("30", "for 30 days"),
    ("90", "for 90 days"),
    ("365", "for a year"),
    ("", "until it is revoked"),
];

/// The fields of the form, and what the fleet calls each.
const FIELDS: [(&str, &str); 3] = [("name", "name"), ("role", "role"), ("days", "validSeconds")];

#[derive(Template)]
#[template(path = "access.html")]
struct AccessPage {
    frame: Frame,
    rows: Vec<Row>,
    pages: Pages,
    created: Option<operator::CreatedToken>,
    secret: Option<Command>,
    typed: Typed,
    roles: &'static [(&'static str, &'static str)],
    lengths: &'static [(&'static str, &'static str)],
    wrong: Wrong,
    command: Command,
}

struct Row {
    created: Stamp,
    by: String,
    used: Option<Stamp>,
    expires: Option<Stamp>,
    revoked: Option<Stamp>,
    usable: bool,
    /// The one that the visitor signed in with.
    own: bool,
    token: operator::Token,
}

impl Row {
    fn of(token: operator::Token, own: &str) -> Self {
        Row {
            created: Stamp::at(&token.created),
            by: token.created_by.strip_prefix("operator ").unwrap_or(&token.created_by).to_owned(),
            used: token.last_used.as_deref().map(Stamp::ago),
            expires: token.expires.as_deref().map(Stamp::at),
            revoked: token.revoked.as_deref().map(Stamp::at),
            usable: token.state == "usable",
            own: token.id == own,
            token,
        }
    }
}

/// What stands in the form of a new token.
struct Typed {
    name: String,
    role: String,
    days: String,
}

impl Default for Typed {
    fn default() -> Self {
        Typed { name: String::new(), role: "viewer".to_owned(), days: "90".to_owned() }
    }
}

pub(super) async fn page(
    State(web): State<Web>,
    Administrator(visitor): Administrator,
    Query(Asked { page }): Query<Asked>,
) -> Result<Response, PageError> {
    show(&web, &visitor, Typed::default(), Ok(None), page).await
}

#[derive(serde::Deserialize)]
pub(super) struct Asked {
    page: Option<usize>,
}

async fn show(
    web: &Web,
    visitor: &Visitor,
    typed: Typed,
    outcome: Result<Option<operator::CreatedToken>, Wrong>,
    page: Option<usize>,
) -> Result<Response, PageError> {
    let frame = Frame::new(web, visitor, Section::Access, "Access").await?;
    let (created, wrong) = match outcome {
        Ok(created) => (created, Wrong::default()),
        Err(wrong) => (None, wrong),
    };
    let mut tokens = web.fleet().operator_tokens().await?;
    // Those that can be used first: the others stay for ever.
    tokens.sort_by_key(|token| token.state != "usable");
    let pages = Pages::cut(&mut tokens, page, PAGE_SIZE, "Pages of tokens", "/access?page=".to_owned());
    let status = if wrong.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    let page = AccessPage {
        frame,
        rows: tokens.into_iter().map(|token| Row::of(token, &visitor.token)).collect(),
        pages,
        secret: created.as_ref().map(|created| Command::ready(&created.secret)),
        created,
        typed,
        roles: &ROLES,
        lengths: &LENGTHS,
        wrong,
        command: Command::new(["margrave", "token", "create", "ann", "--role", "viewer", "--expires", "90d"]),
    };
    Ok((status, render(&page)?).into_response())
}

pub(super) async fn create(
    State(web): State<Web>,
    submitted: Submitted<Administering>,
) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let days = match fields.one("days") {
        "" => None,
        days => Some(days.parse::<u64>().map_err(|_| PageError::Malformed("Days are a number.".to_owned()))?),
    };
    let typed = Typed {
        name: fields.one("name").to_owned(),
        role: fields.one("role").to_owned(),
        days: fields.one("days").to_owned(),
    };
    let want = operator::CreateToken {
        name: typed.name.clone(),
        role: fields.one("role").to_owned(),
        valid_seconds: days.map(|days| days.saturating_mul(DAY.as_secs())),
    };
    visitor.note.new_token(&want);
    match web.fleet().create_operator_token(&visitor.actor, want).await {
        Ok(created) => {
            visitor.note.token(&created.token);
            show(&web, &visitor, Typed::default(), Ok(Some(created)), None).await
        }
        Err(error @ (Error::Invalid(_) | Error::Conflict { .. })) => {
            show(&web, &visitor, typed, Err(Wrong::of(&error, &FIELDS)), None).await
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn revoke_ask(
    State(web): State<Web>,
    Administrator(visitor): Administrator,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    let tokens = web.fleet().operator_tokens().await?;
    let token = tokens.into_iter().find(|token| token.id == id).ok_or(PageError::NotFound)?;
    let frame = Frame::new(&web, &visitor, Section::Access, format!("Revoke {id}")).await?;
    let mut effects = vec![
        "Whoever uses it is out at once, and so is every page that was signed in to with it.".to_owned(),
        "It cannot be made valid again; a new one can be made.".to_owned(),
    ];
    if token.id == visitor.token {
        effects.insert(0, "You are signed in with this very token.".to_owned());
    }
    render(&ConfirmPage {
        frame,
        question: format!("Revoke the token {id} of {}?", token.name),
        effects,
        verb: "Revoke",
        harmless: false,
        action: format!("/access/{id}/revoke"),
        back: "/access".to_owned(),
        fields: Vec::new(),
        command: Command::new(["margrave", "token", "revoke", &id]),
    })
}

pub(super) async fn revoke(
    State(web): State<Web>,
    Path(id): Path<String>,
    submitted: Submitted<Administering>,
) -> Result<Response, PageError> {
    let revoked = web.fleet().revoke_operator_token(&submitted.visitor.actor, &id).await?;
    submitted.visitor.note.token(&revoked);
    Ok(Redirect::to("/access").into_response())
}
