//! Repositories whose new tags become packages by themselves.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use margrave_wire::operator::PutWatch;

use super::Web;
use super::error::PageError;
use super::pace::seconds;
use super::package::{self, Typed};
use super::session::Submitted;
use super::wrong::Wrong;
use crate::fleet::Error;

pub(super) async fn put(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let text = |name: &str| Some(fields.one(name).to_owned()).filter(|text| !text.is_empty());
    let mut typed = Typed {
        repository: fields.one("repository").to_owned(),
        pattern: fields.one("match").to_owned(),
        every: fields.one("every").to_owned(),
        ..Typed::default()
    };
    visitor.note.subject(&typed.repository);
    let every = match text("every").map(|text| seconds(&text)).transpose() {
        Ok(every) => every,
        Err(wrong) => {
            typed.wrong_watch = Wrong::at("every", &wrong);
            return package::list_page(&web, &visitor, typed).await;
        }
    };
    let want = PutWatch { pattern: text("match"), every_seconds: every };
    match web.fleet().put_watch(&visitor.actor, &typed.repository, want).await {
        Ok(_) => Ok(Redirect::to("/packages#watches").into_response()),
        Err(error @ (Error::Invalid(_) | Error::Conflict { .. })) => {
            let fields = [("repository", "repository"), ("match", "match"), ("every", "everySeconds")];
            typed.wrong_watch = Wrong::of(&error, &fields);
            package::list_page(&web, &visitor, typed).await
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn remove(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    visitor.note.subject(fields.one("repository"));
    web.fleet().remove_watch(&visitor.actor, fields.one("repository")).await?;
    Ok(Redirect::to("/packages").into_response())
}

/// Looks now, whenever its time is.
pub(super) async fn look(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    visitor.note.subject(fields.one("repository"));
    web.fleet().look_at_watch(fields.one("repository")).await?;
    Ok(Redirect::to("/packages#watches").into_response())
}
