//! What a deployment was, on its page, and the way back.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use margrave_wire::operator;

use super::Web;
use super::deployment::{parse, who};
use super::error::PageError;
use super::link;
use super::session::Submitted;
use super::stamp::Stamp;

/// One line of the list.
pub(super) struct RevisionLine {
    pub(super) number: u64,
    pub(super) changed: Stamp,
    pub(super) by: String,
    pub(super) changes: String,
    pub(super) current: bool,
    /// There is something to go back to.
    pub(super) revertible: bool,
}

impl RevisionLine {
    pub(super) fn of(revision: &operator::Revision) -> Self {
        RevisionLine {
            number: revision.revision,
            changed: Stamp::ago(&revision.changed_at),
            by: who(&revision.changed_by),
            changes: revision.changes.join("; "),
            current: revision.current,
            revertible: !revision.current && !revision.removed,
        }
    }
}

pub(super) async fn revert(
    State(web): State<Web>,
    Path(name): Path<String>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let name = parse(&name)?;
    let Submitted { visitor, fields, .. } = submitted;
    let number = |field: &str| {
        let text = fields.one(field);
        text.parse::<u64>().map_err(|_| PageError::Malformed("A revision is a number.".to_owned()))
    };
    // The page says what it showed: who clicks on an old page must not undo what came after it.
    let deployment = web.fleet().revert(&visitor.actor, &name, number("to")?, Some(number("seen")?)).await?;
    Ok(Redirect::to(&link::deployment(&deployment.name)).into_response())
}
