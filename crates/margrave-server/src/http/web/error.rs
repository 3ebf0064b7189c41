//! Pages for when something is not possible. Each says what to do next.

use askama::Template;
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::{Method, StatusCode, Uri};
use margrave_core::access::Role;

use super::frame::Bare;
use super::link;
use crate::auth::role_needed;
use crate::fleet;
use crate::http::audit::Refusal;
use crate::http::problem::Problem;

#[derive(Debug)]
pub(super) enum PageError {
    /// No such page.
    NotFound,
    /// Nobody is signed in; `next` is where they wanted to go. What they sent there is lost, if it was something: `undone`.
    SignIn {
        next: String,
        undone: bool,
    },
    /// The role of whoever is signed in does not suffice.
    RoleNeeded {
        needed: Role,
        has: Role,
    },
    /// The form does not carry this session's mark, or another site sent it.
    Forged,
    /// A form of ours that was opened under another sign-in than there is now, if there is any: `who`. It can be sent once more.
    Again {
        action: String,
        fields: Vec<(String, String)>,
        who: Option<String>,
        /// A secret was typed, which is not carried on.
        secret: bool,
    },
    /// A one-time link that was used, or never existed.
    LinkSpent,
    /// A form that cannot be read.
    Malformed(String),
    /// An address that cannot be read.
    Address(String),
    /// The address takes a form and shows nothing; `page` has that form.
    FormOnly {
        page: String,
    },
    TooLarge,
    /// The form did not arrive in time.
    TooSlow,
    /// The fleet said no.
    Fleet(Problem),
    /// A template could not be rendered.
    Render(askama::Error),
}

impl From<fleet::Error> for PageError {
    fn from(error: fleet::Error) -> Self {
        PageError::Fleet(error.into())
    }
}

impl From<askama::Error> for PageError {
    fn from(error: askama::Error) -> Self {
        PageError::Render(error)
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage {
    bare: Bare,
    status: u16,
    title: &'static str,
    text: String,
    /// What to do next.
    next: &'static str,
    sign_in: bool,
    /// The page to go on from.
    back: Option<String>,
}

#[derive(Template)]
#[template(path = "again.html")]
struct AgainPage {
    bare: Bare,
    status: u16,
    action: String,
    fields: Vec<(String, String)>,
    who: Option<String>,
    secret: bool,
}

impl PageError {
    /// What the audit log calls it.
    fn refusal(&self) -> Refusal {
        let (name, detail) = match self {
            PageError::NotFound => ("no-such-path", String::new()),
            PageError::SignIn { .. } => ("unauthorized", "nobody is signed in".to_owned()),
            PageError::RoleNeeded { needed, has } => ("role-needed", role_needed(*needed, *has)),
            PageError::Forged => ("forbidden", "the form does not carry the mark of the session".to_owned()),
            PageError::Again { who: None, .. } => ("unauthorized", "nobody is signed in".to_owned()),
            PageError::Again { .. } => {
                ("forbidden", "the form carries the mark of another sign-in".to_owned())
            }
            PageError::LinkSpent => ("unauthorized", "the sign-in link cannot be used any more".to_owned()),
            PageError::Malformed(_) | PageError::Address(_) => ("malformed", String::new()),
            PageError::FormOnly { .. } => ("no-such-method", String::new()),
            PageError::TooLarge => ("too-large", String::new()),
            PageError::TooSlow => ("too-slow", String::new()),
            PageError::Fleet(problem) => return problem.refusal(),
            PageError::Render(_) => ("internal", String::new()),
        };
        Refusal { name: name.to_owned(), detail }
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let refusal = self.refusal();
        let mut response = self.page();
        response.extensions_mut().insert(refusal);
        response
    }
}

impl PageError {
    fn page(self) -> Response {
        let mut sign_in = false;
        let mut back = None;
        let (status, title, text, next) = match self {
            PageError::SignIn { next, undone } => {
                let undone = if undone { "&undone=true" } else { "" };
                let door = format!("/sign-in?next={}{undone}", link::encode(&next));
                return Redirect::to(&door).into_response();
            }
            PageError::Again { action, fields, who, secret } => {
                let status = if who.is_some() { StatusCode::FORBIDDEN } else { StatusCode::UNAUTHORIZED };
                let page = AgainPage { bare: Bare, status: status.as_u16(), action, fields, who, secret };
                return match page.render() {
                    Ok(html) => (status, Html(html)).into_response(),
                    Err(error) => PageError::Render(error).page(),
                };
            }
            PageError::NotFound => (
                StatusCode::NOT_FOUND,
                "There is no such page",
                "Nothing of this server answers at this address.".to_owned(),
                "Check the address, or start from the fleet page.",
            ),
            PageError::RoleNeeded { needed, has } => (
                StatusCode::FORBIDDEN,
                "Your role does not allow this",
                sentence(&role_needed(needed, has)),
                "Go back, or sign out and sign in with another token.",
            ),
            PageError::Forged => (
                StatusCode::FORBIDDEN,
                "This form was not accepted",
                "It does not carry the mark of your session: you may have signed in again since it was opened, or \
                 another site sent it. Nothing was changed."
                    .to_owned(),
                "Go back, reload the page and send the form again.",
            ),
            PageError::LinkSpent => {
                sign_in = true;
                (
                    StatusCode::FORBIDDEN,
                    "This link cannot be used any more",
                    "A sign-in link works once and for a quarter of an hour.".to_owned(),
                    "Sign in with a token instead: the first one is in context.json of the server's data directory.",
                )
            }
            PageError::Malformed(text) => (
                StatusCode::BAD_REQUEST,
                "That could not be read",
                text,
                "Go back, correct it and send it again.",
            ),
            PageError::Address(text) => (
                StatusCode::BAD_REQUEST,
                "This address cannot be read",
                text,
                "Correct the address, or start from the fleet page.",
            ),
            PageError::FormOnly { page } => {
                back = Some(page);
                (
                    StatusCode::METHOD_NOT_ALLOWED,
                    "There is nothing to see here",
                    "This address takes a form that another page has; nothing was changed.".to_owned(),
                    "Open that page and send the form from there.",
                )
            }
            PageError::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "That was too much at once",
                format!(
                    "A form may have {} KiB, and that of a deployment {} KiB. Nothing was changed.",
                    super::FORM_MAX / 1024,
                    super::DEPLOYMENT_FORM_MAX / 1024
                ),
                "Go back and choose devices by label instead of one by one.",
            ),
            PageError::TooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "That did not arrive",
                "The form was not here in time; nothing was changed.".to_owned(),
                "Go back and send it again, over a better line.",
            ),
            PageError::Fleet(problem) => {
                let status = problem.status();
                let violations = &problem.body().violations;
                let text = match violations.is_empty() {
                    true => sentence(&problem.body().detail),
                    false => {
                        let told = violations.iter().map(|violation| sentence(&violation.message));
                        told.collect::<Vec<_>>().join(" ")
                    }
                };
                let (title, next) = match status {
                    StatusCode::NOT_FOUND => {
                        ("There is no such thing here", "It may have been removed. Start from the fleet page.")
                    }
                    StatusCode::INTERNAL_SERVER_ERROR => {
                        ("Something broke on the server", "Try again. If it stays, the server's log has the cause.")
                    }
                    StatusCode::INSUFFICIENT_STORAGE => {
                        ("The server's disk is full", "Free some space there, then try again.")
                    }
                    StatusCode::TOO_MANY_REQUESTS => ("Not now", "Wait a few seconds, then try again."),
                    StatusCode::SERVICE_UNAVAILABLE => ("The server is busy", "Try again in a few seconds."),
                    StatusCode::BAD_GATEWAY => {
                        ("A registry did not help", "Check the reference and that the server can reach the registry.")
                    }
                    _ => ("That was not possible", "Go back, correct it and try again."),
                };
                (status, title, text, next)
            }
            PageError::Render(error) => {
                tracing::error!(%error, "a page could not be rendered");
                (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "Something broke on the server",
                    "The page could not be made; nothing was changed.".to_owned(),
                    "Try again. If it stays, the server's log has the cause.",
                )
            }
        };
        let page = ErrorPage { bare: Bare, status: status.as_u16(), title, text, next, sign_in, back };
        match page.render() {
            Ok(html) => (status, Html(html)).into_response(),
            // Without its own template the page can still be said in words.
            Err(_) => (status, title).into_response(),
        }
    }
}

/// Somebody looks at an address that only takes forms: from the history of a browser, or after signing in again.
pub(super) async fn form_only(method: Method, uri: Uri) -> Result<Redirect, PageError> {
    let path = uri.path();
    // The form that was to be rehearsed; what was typed is gone with its page.
    if method == Method::GET
        && let Some(form) = path.strip_suffix("/rehearsal")
    {
        return Ok(Redirect::to(&link::local(Some(form))));
    }
    Err(PageError::FormOnly { page: page_of_form(path) })
}

/// The page that has the form that is sent to an address.
pub(super) fn page_of_form(path: &str) -> String {
    let form = path.strip_suffix("/rehearsal").unwrap_or(path);
    let page = match form.trim_start_matches('/').split('/').collect::<Vec<_>>().as_slice() {
        ["watches", ..] => "/packages#watches".to_owned(),
        ["devices"] | ["devices", "new"] | ["deployments", _, "edit"] | ["settings", "schedule"] => {
            form.to_owned()
        }
        [section @ ("devices" | "deployments"), name, _, ..] => format!("/{section}/{name}"),
        [section @ ("settings" | "packages" | "access"), ..] => format!("/{section}"),
        ["deploy"] => "/packages".to_owned(),
        _ => "/".to_owned(),
    };
    link::local(Some(&page))
}

/// What the fleet says is wrong, in sentences and without the places and rules that programs read.
pub(super) fn told(error: &fleet::Error) -> String {
    match error {
        fleet::Error::Invalid(violations) => {
            let messages: Vec<String> =
                violations.iter().map(|violation| sentence(&violation.message)).collect();
            messages.join(" ")
        }
        error => sentence(&error.to_string()),
    }
}

/// The fleet's messages begin in lower case and end without a stop; on a page they stand alone.
pub(super) fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let mut sentence: String =
        characters.next().map(|first| first.to_uppercase().collect()).unwrap_or_default();
    sentence.push_str(characters.as_str());
    if !sentence.ends_with(['.', '!', '?', ':']) {
        sentence.push('.');
    }
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stand_alone() {
        assert_eq!(sentence("there is no device x"), "There is no device x.");
        assert_eq!(sentence("Done."), "Done.");
    }
}
