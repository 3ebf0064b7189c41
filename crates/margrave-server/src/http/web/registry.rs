//! Registries that packages come from: how each is opened.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use margrave_wire::operator::PutRegistry;

use super::Web;
use super::error::PageError;
use super::session::{Administering, RETYPE, Submitted};
use super::settings;
use super::wrong::Wrong;
use crate::fleet::Error;

/// The fields that no page shows.
const SECRETS: [&str; 2] = ["password", "token"];

/// What stands in the form. Secrets that were typed are not shown again.
#[derive(Default)]
pub(super) struct RegistryDraft {
    pub(super) host: String,
    pub(super) user: String,
    pub(super) authority: String,
    pub(super) plain: bool,
    pub(super) wrong: Wrong,
}

impl RegistryDraft {
    pub(super) fn is_wrong(&self) -> bool {
        !self.wrong.is_empty()
    }

    /// Whether something is wrong with what is folded away.
    pub(super) fn is_wrong_within(&self) -> bool {
        ["token", "authority", "plain"].iter().any(|field| self.wrong.is_at(field))
    }
}

pub(super) async fn put(
    State(web): State<Web>,
    submitted: Submitted<Administering>,
) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let text = |name: &str| Some(fields.one(name).to_owned()).filter(|text| !text.is_empty());
    let mut draft = RegistryDraft {
        host: fields.one("host").to_owned(),
        user: fields.one("user").to_owned(),
        authority: fields.one("authority").to_owned(),
        plain: fields.raw("plain").is_some(),
        wrong: Wrong::default(),
    };
    visitor.note.subject(&draft.host);
    if let Some(field) = fields.all(RETYPE).find_map(|gone| SECRETS.into_iter().find(|field| *field == gone))
    {
        draft.wrong = Wrong::at(field, "it was not kept while you were signed out; type it again");
        return settings::show(&web, &visitor, draft, None).await;
    }
    let want = PutRegistry {
        plain: draft.plain,
        authority: text("authority"),
        user: text("user"),
        password: text("password"),
        token: text("token"),
    };
    match web.fleet().put_registry(&visitor.actor, &draft.host, want).await {
        Ok(_) => return Ok(Redirect::to("/settings#registries").into_response()),
        Err(error @ (Error::Invalid(_) | Error::Conflict { .. })) => {
            let fields =
                ["host", "user", "password", "token", "authority", "plain"].map(|field| (field, field));
            draft.wrong = Wrong::of(&error, &fields);
        }
        Err(error) => return Err(error.into()),
    }
    settings::show(&web, &visitor, draft, None).await
}

pub(super) async fn check(
    State(web): State<Web>,
    submitted: Submitted<Administering>,
) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    visitor.note.subject(fields.one("host"));
    let said = web.fleet().check_registry(fields.one("host")).await?;
    settings::show(&web, &visitor, RegistryDraft::default(), Some(said)).await
}

pub(super) async fn remove(
    State(web): State<Web>,
    submitted: Submitted<Administering>,
) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    visitor.note.subject(fields.one("host"));
    web.fleet().remove_registry(&visitor.actor, fields.one("host")).await?;
    Ok(Redirect::to("/settings#registries").into_response())
}
