//! Deployments: what operators want.

use axum::Json;
use axum::extract::State as Shared;
use axum::response::{IntoResponse, Response};
use http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use margrave_core::deployment::SITE;
use margrave_core::id::DeploymentName;
use margrave_core::lifecycle::{STATES, State};
use margrave_core::selector::{Part, Selector};
use margrave_wire::operator;

use super::Api;
use super::list;
use super::read::{Body, Ids, Params};
use crate::auth::{Operator, Viewer};
use crate::fleet::Error;
use crate::http::audit::Note;
use crate::http::problem::Problem;

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Part of the name.
    search: Option<String>,
    /// Only those that are meant for devices with this label: `key=value`, or `key` alone for any value.
    label: Option<String>,
    /// Only those that are in this state on some device, such as `FAILED`.
    state: Option<String>,
    /// Only those of this package.
    package: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    /// 1 to 1000; 100 when left out.
    limit: Option<usize>,
}

impl ListParams {
    fn lets(&self, deployment: &operator::Deployment) -> bool {
        let labelled = |label: &str| match label.split_once('=') {
            Some((key, value)) => is_for(&deployment.targets, key, Some(value)),
            None => is_for(&deployment.targets, label, None),
        };
        self.search.as_deref().is_none_or(|part| deployment.name.contains(part))
            && self.label.as_deref().is_none_or(labelled)
            && self.state.as_deref().is_none_or(|state| is_in(&deployment.counts, state))
            && self.package.as_deref().is_none_or(|package| deployment.package == package)
    }
}

/// Whether some device has it in this state, or in what is counted apart from it.
fn is_in(counts: &operator::AssignmentCounts, state: &str) -> bool {
    counts.states.contains_key(state)
        || (state == "FAILED" && counts.never > 0)
        || (state == "PENDING" && counts.not_yet > 0)
}

/// Whether these targets ask for a label, by pairs, by sites or in their expression; with this value, if one is given.
fn is_for(targets: &operator::Targets, key: &str, value: Option<&str>) -> bool {
    let by_pair = targets.labels.get(key).is_some_and(|is| value.is_none_or(|value| is == value));
    let by_site = key == SITE && targets.sites.iter().any(|site| value.is_none_or(|value| site == value));
    let asks = |part: &Part| match part {
        Part::In(_, values) => value.is_none_or(|value| values.contains(value)),
        Part::Present(_) => true,
        // Who must not have it is not meant by it.
        Part::NotIn(..) | Part::Absent(_) => false,
    };
    let select = targets.select.as_deref().and_then(|text| text.parse::<Selector>().ok());
    let by_expression = select.iter().flat_map(Selector::parts).any(|part| part.key() == key && asks(part));
    by_pair || by_site || by_expression
}

/// Deployments by name, a page at a time, with their devices counted; ask for one to see each.
#[utoipa::path(get, path = "/deployments", tag = "deployments", params(ListParams), operation_id = "listDeployments",
    responses((status = 200, body = operator::Page<operator::Deployment>), (status = 422, body = operator::Problem)))]
pub(super) async fn list(
    _: Viewer,
    Shared(api): Shared<Api>,
    Params(params): Params<ListParams>,
) -> Result<Json<operator::Page<operator::Deployment>>, Problem> {
    if let Some(state) = &params.state {
        known_count(state)?;
    }
    let mut all = api.fleet().deployments().await?;
    all.retain(|deployment| params.lets(deployment));
    let key = |deployment: &operator::Deployment| format!("{} {}", deployment.name, deployment.id);
    let page = list::page(all, key, params.after.as_deref(), params.limit)?;
    Ok(Json(page))
}

/// A state, or what is counted apart from them.
fn known_count(text: &str) -> Result<(), Error> {
    if ["WAITING", "LEFT", "NEVER", "NOTYET"].contains(&text) {
        return Ok(());
    }
    known_state(text).map(drop)
}

/// One of the eight states.
pub(super) fn known_state(text: &str) -> Result<State, Error> {
    State::parse(text).ok_or_else(|| {
        let known: Vec<&str> = STATES.iter().map(|state| state.as_str()).collect();
        Error::invalid("/state", "query", format!("a state is one of {}", known.join(", ")))
    })
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AssignmentParams {
    /// Only those in this state, such as `FAILED`.
    state: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    /// 1 to 1000; 100 when left out.
    limit: Option<usize>,
}

/// The devices that a deployment is on, by name, a page at a time.
#[utoipa::path(get, path = "/deployments/{deployment}/assignments", tag = "deployments",
    operation_id = "listAssignments", params(("deployment" = String, Path), AssignmentParams),
    responses((status = 200, body = operator::Page<operator::Assignment>), (status = 404, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn assignments(
    _: Viewer,
    Shared(api): Shared<Api>,
    ids: Ids,
    Params(params): Params<AssignmentParams>,
) -> Result<Json<operator::Page<operator::Assignment>>, Problem> {
    let state = params.state.as_deref().map(known_state).transpose()?;
    let name = ids.deployment()?;
    Ok(Json(api.fleet().assignments_of(&name, state, params.after.as_deref(), params.limit).await?))
}

/// One deployment and the first of its assignments. Its `ETag` begins with its revision.
#[utoipa::path(get, path = "/deployments/{deployment}", tag = "deployments", operation_id = "showDeployment",
    params(("deployment" = String, Path)),
    responses((status = 200, body = operator::Deployment), (status = 404, body = operator::Problem)))]
pub(super) async fn show(_: Viewer, Shared(api): Shared<Api>, ids: Ids) -> Result<Response, Problem> {
    Ok(tagged(StatusCode::OK, api.fleet().deployment_begun(&ids.deployment()?).await?))
}

/// Creates or changes a deployment. The answer counts its devices; ask for the deployment to see each. `If-Match` with a revision, or `revision` in the body, refuses to overwrite
/// somebody else's change; `If-None-Match: *` only creates.
#[utoipa::path(put, path = "/deployments/{deployment}", tag = "deployments", operation_id = "putDeployment",
    params(("deployment" = String, Path), ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)),
    request_body = operator::PutDeployment,
    responses((status = 200, body = operator::Deployment), (status = 201, body = operator::Deployment),
        (status = 409, body = operator::Problem), (status = 412, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn put(
    Operator(actor): Operator,
    Shared(api): Shared<Api>,
    ids: Ids,
    headers: HeaderMap,
    note: Note,
    Body(mut want): Body<operator::PutDeployment>,
) -> Result<Response, Problem> {
    let name = ids.deployment()?;
    let before = standing(&api, &name).await?;
    let condition = Condition::read(&headers)?;
    condition.check(before)?;
    // The fleet compares again, inside its transaction; what was read above only makes the answer clear.
    want.revision = condition.revision().or(want.revision);
    if let Some(reason) = &want.force {
        note.detail(format!("forced: {reason}"));
    }
    let deployment = match api.fleet().put_deployment(&actor, &name, want).await {
        Err(Error::Conflict { message }) if condition.revision().is_some() => {
            return Err(overtaken(&api, &name, condition, message).await);
        }
        answer => answer?,
    };
    let status = if before.is_none() { StatusCode::CREATED } else { StatusCode::OK };
    Ok(tagged(status, deployment))
}

/// Removes a deployment from every device.
#[utoipa::path(delete, path = "/deployments/{deployment}", tag = "deployments", operation_id = "removeDeployment",
    params(("deployment" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204), (status = 404, body = operator::Problem), (status = 412, body = operator::Problem)))]
pub(super) async fn remove(
    Operator(actor): Operator,
    Shared(api): Shared<Api>,
    ids: Ids,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let name = ids.deployment()?;
    let condition = Condition::read(&headers)?;
    if condition != Condition::None {
        condition.check(Some(api.fleet().deployment_counted(&name).await?.revision))?;
    }
    // The fleet compares again, inside its transaction; what was read above only makes the answer clear.
    match api.fleet().remove_deployment(&actor, &name, condition.revision()).await {
        Err(Error::Conflict { message }) if condition.revision().is_some() => {
            Err(overtaken(&api, &name, condition, message).await)
        }
        answer => Ok(answer.map(|()| StatusCode::NO_CONTENT)?),
    }
}

/// What a deployment was, newest first, also after it has gone, a page at a time. The newest hundred revisions are kept.
#[utoipa::path(get, path = "/deployments/{deployment}/revisions", tag = "deployments", operation_id = "listRevisions",
    params(("deployment" = String, Path), list::PageParams),
    responses((status = 200, body = operator::Page<operator::Revision>), (status = 400, body = operator::Problem),
        (status = 404, body = operator::Problem)))]
pub(super) async fn revisions(
    _: Viewer,
    Shared(api): Shared<Api>,
    ids: Ids,
    Params(params): Params<list::PageParams>,
) -> Result<Json<operator::Page<operator::Revision>>, Problem> {
    let all = api.fleet().revisions(&ids.deployment()?).await?;
    let number = |one: &operator::Revision| one.revision.to_string();
    Ok(Json(list::in_order(all, number, params.after.as_deref(), params.limit)?))
}

/// Goes back to an earlier revision, which becomes a new one; also brings back what was removed. The answer counts the
/// devices; ask for the deployment to see each. `If-Match` with a revision refuses to overwrite somebody else's change.
#[utoipa::path(post, path = "/deployments/{deployment}/revert", tag = "deployments", operation_id = "revertDeployment",
    params(("deployment" = String, Path), ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)),
    request_body = operator::RevertDeployment,
    responses((status = 200, body = operator::Deployment), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem), (status = 412, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn revert(
    Operator(actor): Operator,
    Shared(api): Shared<Api>,
    ids: Ids,
    headers: HeaderMap,
    Body(want): Body<operator::RevertDeployment>,
) -> Result<Response, Problem> {
    let name = ids.deployment()?;
    let condition = Condition::read(&headers)?;
    condition.check(standing(&api, &name).await?)?;
    match api.fleet().revert(&actor, &name, want.revision, condition.revision()).await {
        Err(Error::Conflict { message }) if condition.revision().is_some() => {
            Err(overtaken(&api, &name, condition, message).await)
        }
        answer => Ok(tagged(StatusCode::OK, answer?)),
    }
}

/// Which devices a deployment would reach, without writing anything.
#[utoipa::path(post, path = "/deployments/{deployment}/preview", tag = "deployments", operation_id = "previewDeployment",
    params(("deployment" = String, Path)), request_body = operator::PutDeployment,
    responses((status = 200, body = operator::Preview), (status = 409, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn preview(
    _: Operator,
    Shared(api): Shared<Api>,
    ids: Ids,
    Body(want): Body<operator::PutDeployment>,
) -> Result<Json<operator::Preview>, Problem> {
    let preview = api.fleet().preview(&ids.deployment()?, want).await?;
    let fits = preview
        .fits
        .into_iter()
        .map(|fit| operator::PreviewFit { device: fit.device, profile: fit.profile, despite: fit.despite })
        .collect();
    Ok(Json(operator::Preview { fits, misfits: preview.misfits }))
}

/// The steps in one assignment's life, oldest first, a page at a time.
#[utoipa::path(get, path = "/deployments/{deployment}/devices/{device}/transitions", tag = "deployments",
    operation_id = "listTransitions",
    params(("deployment" = String, Path), ("device" = String, Path, description = "The device, with '/' written %2F"),
        list::PageParams),
    responses((status = 200, body = operator::Page<operator::Transition>), (status = 400, body = operator::Problem), (status = 404, body = operator::Problem)))]
pub(super) async fn transitions(
    _: Viewer,
    Shared(api): Shared<Api>,
    ids: Ids,
    Params(params): Params<list::PageParams>,
) -> Result<Json<operator::Page<operator::Transition>>, Problem> {
    let all = api.fleet().transitions(&ids.deployment()?, &ids.device()?).await?;
    // Two may be the same in every word; only their places tell them apart, and what was said is not taken back.
    let placed = all.into_iter().enumerate().collect();
    let key = |(place, _): &(usize, operator::Transition)| place.to_string();
    let operator::Page { items, next } = list::in_order(placed, key, params.after.as_deref(), params.limit)?;
    Ok(Json(operator::Page { items: items.into_iter().map(|(_, step)| step).collect(), next }))
}

/// The devices that had a deployment of this name and do not have it any more, by name, a page at a time. Ask for their
/// transitions to see what it went through there.
#[utoipa::path(get, path = "/deployments/{deployment}/departed", tag = "deployments", operation_id = "listDeparted",
    params(("deployment" = String, Path), list::PageParams),
    responses((status = 200, body = operator::Page<operator::Departed>), (status = 422, body = operator::Problem)))]
pub(super) async fn departed(
    _: Viewer,
    Shared(api): Shared<Api>,
    ids: Ids,
    Params(params): Params<list::PageParams>,
) -> Result<Json<operator::Page<operator::Departed>>, Problem> {
    let name = ids.deployment()?;
    Ok(Json(api.fleet().departed(&name, params.after.as_deref(), params.limit).await?))
}

/// What became of a write with a condition: it does not hold any more, or something else is in the way.
async fn overtaken(api: &Api, name: &DeploymentName, condition: Condition, message: String) -> Problem {
    match standing(api, name).await.and_then(|found| condition.check(found)) {
        Err(problem) => problem,
        Ok(()) => Problem::from(Error::Conflict { message }),
    }
}

/// The revision that is wanted, if any.
async fn standing(api: &Api, name: &DeploymentName) -> Result<Option<u64>, Problem> {
    match api.fleet().deployment_counted(name).await {
        // One that is on its way out can be wanted anew.
        Ok(deployment) => Ok(Some(deployment.revision).filter(|_| !deployment.removing)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn tagged(status: StatusCode, deployment: operator::Deployment) -> Response {
    let tag = HeaderValue::from_str(&format!("\"{}\"", deployment.revision))
        .expect("a number in quotes is a legal header value");
    (status, [(ETAG, tag)], Json(deployment)).into_response()
}

/// What the writer expects to find (RFC 9110, section 13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    None,
    Revision(u64),
    Exists,
    Absent,
}

impl Condition {
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, Problem> {
        let text =
            |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default().trim());
        match (text(IF_MATCH), text(IF_NONE_MATCH)) {
            (None, None) => Ok(Condition::None),
            (Some("*"), None) => Ok(Condition::Exists),
            (None, Some("*")) => Ok(Condition::Absent),
            (Some(tag), None) => tag
                .strip_prefix('"')
                .and_then(|tag| tag.strip_suffix('"'))
                // What stands behind a dot says how its devices do.
                .and_then(|tag| tag.split('.').next()?.parse().ok())
                .map(Condition::Revision)
                .ok_or_else(|| Problem::malformed("If-Match: is a revision in quotes, such as \"7\", or *")),
            _ => Err(Problem::malformed("send either If-Match, or If-None-Match: *")),
        }
    }

    /// As the fleet writes it; nothing there is revision 0.
    pub(super) fn revision(self) -> Option<u64> {
        match self {
            Condition::Revision(revision) => Some(revision),
            Condition::Absent => Some(0),
            Condition::None | Condition::Exists => None,
        }
    }

    pub(super) fn check(self, found: Option<u64>) -> Result<(), Problem> {
        match (self, found) {
            (Condition::None, _) | (Condition::Exists, Some(_)) | (Condition::Absent, None) => Ok(()),
            (Condition::Revision(wanted), Some(found)) if wanted == found => Ok(()),
            (Condition::Revision(wanted), Some(found)) => Err(Problem::precondition(format!(
                "the deployment is at revision {found}, not {wanted}; read it again and repeat your change"
            ))),
            (Condition::Revision(_) | Condition::Exists, None) => {
                Err(Problem::precondition("there is no such deployment; leave out If-Match to create it"))
            }
            (Condition::Absent, Some(_)) => {
                Err(Problem::precondition("a deployment of this name exists; choose another name"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_strictly() {
        let check = |pairs: &[(http::HeaderName, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(name, HeaderValue::from_str(value).unwrap());
            }
            Condition::read(&headers).ok()
        };
        assert_eq!(check(&[]), Some(Condition::None));
        assert_eq!(check(&[(IF_MATCH, "\"7\"")]), Some(Condition::Revision(7)));
        assert_eq!(check(&[(IF_MATCH, "\"7.0a1b\"")]), Some(Condition::Revision(7)));
        assert_eq!(check(&[(IF_MATCH, "*")]), Some(Condition::Exists));
        assert_eq!(check(&[(IF_NONE_MATCH, "*")]), Some(Condition::Absent));
        for bad in ["7", "\"x\"", "W/\"7\"", "\"1\", \"2\"", ""] {
            assert_eq!(check(&[(IF_MATCH, bad)]), None, "{bad}");
        }
        assert_eq!(check(&[(IF_MATCH, "*"), (IF_NONE_MATCH, "*")]), None);
    }

    #[test]
    fn a_condition_that_does_not_hold_is_412() {
        for (condition, found, holds) in [
            (Condition::Revision(3), Some(3), true),
            (Condition::Revision(3), Some(4), false),
            (Condition::Revision(3), None, false),
            (Condition::Exists, None, false),
            (Condition::Absent, Some(1), false),
            (Condition::Absent, None, true),
            (Condition::None, None, true),
        ] {
            let answer = condition.check(found);
            assert_eq!(answer.is_ok(), holds, "{condition:?} {found:?}");
            if let Err(problem) = answer {
                assert_eq!(problem.status(), StatusCode::PRECONDITION_FAILED);
            }
        }
    }
}
