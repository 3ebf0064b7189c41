//! Who looks at the pages, how they got in, and that a form is theirs.
//!
//! The session cookie itself is `auth.rs`'s. Forms carry a mark of the token that was signed in with, which a foreign
//! site cannot read; together with the browser's own word about where a request comes from, and the cookie's
//! SameSite, that is three locks, each enough alone. The mark outlives a session, so that a form that was open when it ended can be
//! sent after signing in again.

use std::marker::PhantomData;
use std::time::Duration;

use askama::Template;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{Extension, FromRequest, FromRequestParts, Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::header::SET_COOKIE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use margrave_core::access::Role;

use super::address::{Path, Query};
use super::command::Command;
use super::confirm::ConfirmPage;
use super::error::{self, PageError};
use super::frame::{Bare, Frame, Section, render};
use super::link;
use super::question::SECRET;
use super::{DEPLOYMENT_FORM_MAX, FORM_MAX, Web};
use crate::auth::{self, Unidentified, is_cross_site, is_same_origin};
use crate::fleet::{Actor, Error, Fleet, Holder};
use crate::http::audit::Note;
use crate::http::problem::Problem;
use crate::http::{Arrival, BODY_TIME_MAX, is_declared_larger};

/// Fields of a form that a page carries on for who was signed out: more than any of ours has but for one with thousands of
/// devices, and few enough that nobody has us write much for little.
const AGAIN_MAX: usize = 2000;

/// Names a secret that was typed, and was not kept while its form waited for somebody to sign in.
pub(super) const RETYPE: &str = "type-again";

/// A signed-in operator, of whatever role: for pages that only show.
pub(super) struct Visitor {
    pub(super) actor: Actor,
    pub(super) role: Role,
    /// The id of the token that the session belongs to.
    pub(super) token: String,
    /// What the audit log is told of this request.
    pub(super) note: Note,
    session: String,
    /// The mark that forms carry.
    mark: String,
}

impl Visitor {
    /// The actor's name without the word before it.
    pub(super) fn name(&self) -> &str {
        self.actor.name.strip_prefix("operator ").unwrap_or(&self.actor.name)
    }

    pub(super) fn csrf(&self) -> String {
        self.mark.clone()
    }

    /// Ends when the visitor is signed out, or may not look any more.
    pub(super) async fn signed_out(&self, fleet: &Fleet) {
        fleet.session_ended(&self.session).await;
    }

    fn allowed(self, needed: Role) -> Result<Self, PageError> {
        match self.role.allows(needed) {
            true => Ok(self),
            false => Err(PageError::RoleNeeded { needed, has: self.role }),
        }
    }
}

impl FromRequestParts<Web> for Visitor {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, PageError> {
        let session = auth::session(&parts.headers, auth::arrival(&parts.extensions));
        let found = match session {
            Some(session) => web.fleet().session(&session).await.map(|holder| (holder, session)),
            None => None,
        };
        let marked = found.and_then(|(holder, session)| {
            let mark = web.fleet().form_mark(&holder.token)?;
            Some((holder, session, mark))
        });
        let Some((holder, session, mark)) = marked else {
            // A form cannot be sent again from the sign-in page, so only what was looked at is returned to, or where the form is.
            let undone = !parts.method.is_safe();
            let next = match parts.uri.path_and_query() {
                Some(looked_at) if !undone => looked_at.to_string(),
                _ => error::page_of_form(parts.uri.path()),
            };
            return Err(PageError::SignIn { next, undone });
        };
        let note = Note::of(&parts.extensions);
        note.by(&holder);
        let Holder { actor, role, token } = holder;
        Ok(Visitor { actor, role, token, note, session, mark })
    }
}

/// Somebody who may change things: for pages that ask what to change.
pub(super) struct Changer(pub(super) Visitor);

impl FromRequestParts<Web> for Changer {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, PageError> {
        Visitor::from_request_parts(parts, web).await?.allowed(Role::Operator).map(Changer)
    }
}

/// Somebody who looks after the server itself.
pub(super) struct Administrator(pub(super) Visitor);

impl FromRequestParts<Web> for Administrator {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, PageError> {
        Visitor::from_request_parts(parts, web).await?.allowed(Role::Admin).map(Administrator)
    }
}

/// The role that a form asks for.
pub(super) trait Needs {
    const ROLE: Role;
    /// So large it may be.
    const LARGEST: usize = FORM_MAX;
    /// Whether what was typed is offered once more to who was signed out meanwhile.
    const IS_KEPT: bool = true;
}

/// Forms about oneself.
pub(super) struct Anybody;
/// Forms that change what should run, or what is known of devices.
pub(super) struct Changing;
/// The form of a deployment, which may name many devices.
pub(super) struct Deploying;
/// Forms about tokens and the server itself.
pub(super) struct Administering;

impl Needs for Anybody {
    const ROLE: Role = Role::Viewer;
    // Who is signed out has nothing to send again.
    const IS_KEPT: bool = false;
}

impl Needs for Changing {
    const ROLE: Role = Role::Operator;
}

impl Needs for Deploying {
    const ROLE: Role = Role::Operator;
    const LARGEST: usize = DEPLOYMENT_FORM_MAX;
}

impl Needs for Administering {
    const ROLE: Role = Role::Admin;
}

/// A form that a signed-in operator sent from a page of ours, and may send.
pub(super) struct Submitted<N = Changing> {
    pub(super) visitor: Visitor,
    pub(super) fields: Fields,
    pub(super) needs: PhantomData<N>,
}

impl<N: Needs> FromRequest<Web> for Submitted<N> {
    type Rejection = PageError;

    async fn from_request(request: Request, web: &Web) -> Result<Self, PageError> {
        let (mut parts, body) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, web).await;
        let ours = is_same_origin(&parts.headers);
        let path = parts.uri.path().to_owned();
        let visitor = match visitor {
            // What was typed is not lost with the session, where the browser says that it was typed on a page of ours.
            Err(PageError::SignIn { .. }) if !N::IS_KEPT => {
                return Err(PageError::SignIn { next: "/".to_owned(), undone: false });
            }
            Err(PageError::SignIn { next, undone }) if ours => {
                let request = Request::from_parts(parts, body);
                let fields = Fields::read(request, BODY_TIME_MAX, FORM_MAX).await?;
                return Err(fields.again(path, None).unwrap_or(PageError::SignIn { next, undone }));
            }
            visitor => visitor?.allowed(N::ROLE)?,
        };
        let fields = Fields::read(Request::from_parts(parts, body), BODY_TIME_MAX, N::LARGEST).await?;
        let mark = visitor.csrf();
        if verify_slices_are_equal(fields.one("csrf").as_bytes(), mark.as_bytes()).is_err() {
            let again = ours.then(|| fields.again(path, Some(&visitor))).flatten();
            return Err(again.unwrap_or(PageError::Forged));
        }
        Ok(Submitted { visitor, fields, needs: PhantomData })
    }
}

/// What a form holds; a name may come several times.
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    async fn read(mut request: Request, within: Duration, largest: usize) -> Result<Self, PageError> {
        if is_cross_site(request.headers()) {
            return Err(PageError::Forged);
        }
        if is_declared_larger(request.body(), largest) {
            return Err(PageError::TooLarge);
        }
        // Also where it does not say how large it is, and its route would take more from who is signed in.
        request = request.map(|body| axum::body::Body::new(http_body_util::Limited::new(body, largest)));
        let reading = Form::<Vec<(String, String)>>::from_request(request, &());
        let read = tokio::time::timeout(within, reading).await.map_err(|_| PageError::TooSlow)?;
        match read {
            Ok(Form(pairs)) => Ok(Fields(pairs)),
            Err(FormRejection::BytesRejection(rejection))
                if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE =>
            {
                Err(PageError::TooLarge)
            }
            Err(_) => Err(PageError::Malformed("The form did not arrive as a form.".to_owned())),
        }
    }

    /// What was typed, to be sent once more to where it was going; nothing where that is more than a page carries. Secrets are not
    /// shown by any page, so they have to be typed again: then sending it does nothing but lead back to the form, with the rest of
    /// it filled in.
    fn again(self, path: String, visitor: Option<&Visitor>) -> Option<PageError> {
        if self.0.len() > AGAIN_MAX {
            return None;
        }
        let is_secret = |name: &str| name.starts_with(SECRET) || matches!(name, "password" | "token");
        let (secrets, mut fields): (Vec<_>, Vec<_>) =
            self.0.into_iter().partition(|(name, _)| is_secret(name));
        let gone: Vec<String> =
            secrets.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, _)| name).collect();
        let path = if gone.is_empty() { path } else { asks_again(path)? };
        fields.retain(|(name, _)| name != "csrf" && (gone.is_empty() || name != "do"));
        if !gone.is_empty() {
            fields.push(("do".to_owned(), "edit".to_owned()));
        }
        fields.extend(gone.into_iter().map(|name| (RETYPE.to_owned(), name)));
        let secret = fields.iter().any(|(name, _)| name == RETYPE);
        fields.extend(visitor.map(|visitor| ("csrf".to_owned(), visitor.csrf())));
        let who = visitor.map(|visitor| visitor.name().to_owned());
        Some(PageError::Again { action: link::local(Some(&path)), fields, who, secret })
    }

    /// The field's value without surrounding blanks; empty when it is not there.
    pub(super) fn one(&self, name: &str) -> &str {
        self.raw(name).unwrap_or_default().trim()
    }

    /// The value as it was typed.
    pub(super) fn raw(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Everything, in the order of the form.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

/// Where a form is shown once more with what was typed into it; nothing where no page does that.
fn asks_again(path: String) -> Option<String> {
    match path.as_str() {
        "/settings/registries" => Some(path),
        rehearsed if rehearsed.ends_with("/rehearsal") => Some(path),
        form if form == "/deploy" || form.ends_with("/edit") => Some(format!("{path}/rehearsal")),
        _ => None,
    }
}

#[derive(Template)]
#[template(path = "sign-in.html")]
struct SignInPage {
    bare: Bare,
    next: String,
    /// Something was sent by who was signed out, and is lost.
    undone: bool,
    wrong: Option<&'static str>,
}

#[derive(serde::Deserialize)]
pub(super) struct Next {
    next: Option<String>,
    #[serde(default)]
    undone: bool,
}

pub(super) async fn sign_in_page(Query(Next { next, undone }): Query<Next>) -> Result<Response, PageError> {
    render(&SignInPage { bare: Bare, next: link::local(next.as_deref()), undone, wrong: None })
}

/// There is no session yet that a mark could be bound to; the browser's word that the form is ours must do.
pub(super) async fn sign_in(
    State(web): State<Web>,
    Extension(arrival): Extension<Arrival>,
    note: Note,
    request: Request,
) -> Result<Response, PageError> {
    let extensions = request.extensions().clone();
    let fields = Fields::read(request, BODY_TIME_MAX, FORM_MAX).await?;
    let next = link::local(fields.raw("next"));
    let app = &web.app;
    let wrong = match auth::by_token(&app.fleet, &app.guessing, fields.one("token"), &extensions).await {
        Ok(holder) => {
            note.by(&holder);
            return begin(&web, &holder.token, arrival, &next).await;
        }
        Err(Unidentified::TooMany) => {
            return Err(PageError::Fleet(Problem::too_many_requests(
                Unidentified::TooMany.to_string(),
                Duration::ZERO,
            )));
        }
        Err(Unidentified::Expired) => "This token has expired. Ask an admin for a new one.",
        Err(Unidentified::Revoked) => "This token was revoked. Ask an admin for a new one.",
        Err(_) => "This token is not known. Check that all of it was copied, or ask for a new one.",
    };
    let page = render(&SignInPage { bare: Bare, next, undone: false, wrong: Some(wrong) })?;
    Ok((StatusCode::FORBIDDEN, page).into_response())
}

/// `GET /welcome/{code}`: the one-time link that `serve` and `demo` print.
pub(super) async fn welcome(
    State(web): State<Web>,
    Extension(arrival): Extension<Arrival>,
    note: Note,
    headers: HeaderMap,
    method: http::Method,
    Path(code): Path<String>,
) -> Result<Response, PageError> {
    // A browser that fetches ahead, or a chat that looks at links, must not spend the code.
    let ahead = ["sec-purpose", "purpose", "x-moz"].iter().any(|name| headers.contains_key(*name));
    if method != http::Method::GET || ahead {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    note.keep();
    let token = web.app.sign_in.redeem(&code).ok_or(PageError::LinkSpent)?;
    note.detail(format!("by a sign-in link for token {token}"));
    if let Some(holder) = web.fleet().holder_of(&token) {
        note.by(&holder);
    }
    begin(&web, &token, arrival, "/").await
}

async fn begin(web: &Web, token: &str, arrival: Arrival, next: &str) -> Result<Response, PageError> {
    let session = match web.fleet().create_session(token).await {
        // It was revoked since the link was made.
        Err(Error::TokenUnknown) => return Err(PageError::LinkSpent),
        session => session?,
    };
    Ok(([(SET_COOKIE, auth::session_cookie(&session, arrival))], Redirect::to(next)).into_response())
}

pub(super) async fn sign_out(
    State(web): State<Web>,
    Extension(arrival): Extension<Arrival>,
    submitted: Submitted<Anybody>,
) -> Result<Response, PageError> {
    web.fleet().end_session(&submitted.visitor.session).await?;
    Ok(signed_out(arrival))
}

/// Says what it ends before it does.
pub(super) async fn everywhere_ask(State(web): State<Web>, visitor: Visitor) -> Result<Response, PageError> {
    let name = visitor.name();
    let ends = match web.fleet().sessions_of(name).saturating_sub(1) {
        0 => format!("It ends this session; {name} is signed in to the page in no other browser."),
        1 => format!("It ends this session and that of {name} in one more browser."),
        others => format!("It ends this session and those of {name} in {others} more browsers."),
    };
    let stays =
        "Tokens stay as they are: whoever has one of them can sign in again, until an admin revokes it.";
    render(&ConfirmPage {
        frame: Frame::new(&web, &visitor, Section::Fleet, "Sign out everywhere").await?,
        question: format!("Sign {name} out everywhere?"),
        effects: vec![ends, stays.to_owned()],
        verb: "Sign out everywhere",
        harmless: false,
        action: "/sign-out/everywhere".to_owned(),
        back: "/".to_owned(),
        fields: Vec::new(),
        command: Command::new(["margrave", "session", "end-all"]),
    })
}

/// Also in every other browser that this operator signed in with.
pub(super) async fn sign_out_everywhere(
    State(web): State<Web>,
    Extension(arrival): Extension<Arrival>,
    submitted: Submitted<Anybody>,
) -> Result<Response, PageError> {
    let ended = web.fleet().end_sessions_of(&submitted.visitor.token).await?;
    submitted.visitor.note.sessions(&ended);
    Ok(signed_out(arrival))
}

fn signed_out(arrival: Arrival) -> Response {
    ([(SET_COOKIE, auth::session_cookie_end(arrival))], Redirect::to("/sign-in")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Full};

    #[tokio::test]
    async fn a_form_that_does_not_end_is_408() {
        let endless = Full::new(Bytes::from_static(b"token=")).with_trailers(std::future::pending());
        let mut request = Request::new(axum::body::Body::new(endless));
        *request.method_mut() = http::Method::POST;
        let form = http::HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(http::header::CONTENT_TYPE, form);
        let refused = Fields::read(request, Duration::from_millis(20), FORM_MAX).await;
        assert!(matches!(refused, Err(PageError::TooSlow)));
    }
}
