//! Rollouts: how far a revision came, and stopping it.

use axum::Json;
use axum::extract::State;
use http::HeaderMap;
use margrave_wire::operator;
use margrave_wire::rollout::Rollout;

use super::Api;
use super::deployment::Condition;
use super::read::Ids;
use crate::auth::{Operator, Viewer};
use crate::fleet::RolloutVerb;
use crate::http::problem::Problem;

/// How far the newest revision of a deployment came: by batch, and what it waits for.
#[utoipa::path(get, path = "/deployments/{deployment}/rollout", tag = "rollouts", operation_id = "showRollout",
    params(("deployment" = String, Path)),
    responses((status = 200, body = Rollout), (status = 404, body = operator::Problem)))]
pub(super) async fn show(_: Viewer, State(api): State<Api>, ids: Ids) -> Result<Json<Rollout>, Problem> {
    Ok(Json(api.fleet().rollout(&ids.deployment()?).await?))
}

/// Gives it to nobody further until it is resumed.
#[utoipa::path(post, path = "/deployments/{deployment}/rollout/pause", tag = "rollouts", operation_id = "pauseRollout",
    params(("deployment" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Rollout), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem), (status = 412, body = operator::Problem)))]
pub(super) async fn pause(
    operator: Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
) -> Result<Json<Rollout>, Problem> {
    hold(operator, &api, &ids, &headers, RolloutVerb::Pause).await
}

/// Lets it go on, also after it was halted: those that failed until now are not counted any more.
#[utoipa::path(post, path = "/deployments/{deployment}/rollout/resume", tag = "rollouts", operation_id = "resumeRollout",
    params(("deployment" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Rollout), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem), (status = 412, body = operator::Problem)))]
pub(super) async fn resume(
    operator: Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
) -> Result<Json<Rollout>, Problem> {
    hold(operator, &api, &ids, &headers, RolloutVerb::Resume).await
}

/// Ends it here: nobody further gets it, and who has it keeps it. `If-Match` with a revision ends the rollout of no other one.
#[utoipa::path(post, path = "/deployments/{deployment}/rollout/abort", tag = "rollouts", operation_id = "abortRollout",
    params(("deployment" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Rollout), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem), (status = 412, body = operator::Problem)))]
pub(super) async fn abort(
    operator: Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
) -> Result<Json<Rollout>, Problem> {
    hold(operator, &api, &ids, &headers, RolloutVerb::Abort).await
}

async fn hold(
    Operator(actor): Operator,
    api: &Api,
    ids: &Ids,
    headers: &HeaderMap,
    verb: RolloutVerb,
) -> Result<Json<Rollout>, Problem> {
    let name = ids.deployment()?;
    let condition = Condition::read(headers)?;
    if condition != Condition::None {
        condition.check(Some(api.fleet().rollout(&name).await?.revision))?;
    }
    // The fleet compares again, where nobody else decides; what was read above only makes the answer clear.
    Ok(Json(api.fleet().hold_rollout_seen(&actor, &name, verb, condition.revision()).await?))
}
