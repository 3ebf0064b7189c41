//! The operator interface, `/api/operator/v1`: what the command line and other people's programs use.
//!
//! Handlers parse, call the fleet and answer; they decide nothing. Bodies are `margrave_wire::operator`.
//! Identifiers stand in one path segment, percent-encoded: a device `gw/child` is `/devices/gw%2Fchild`.
//! The OpenAPI document is made from the same attributes that make the routes, so neither can lack the other.

mod access;
mod audit;
mod authority;
mod backup;
mod condition;
mod deployment;
mod device;
mod document;
mod event;
mod git;
mod history;
mod intent;
mod list;
mod package;
mod read;
mod registry;
mod rollout;
mod schedule;
mod secret;
mod signed;

use std::sync::Arc;

use axum::extract::{OriginalUri, Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use bytes::Bytes;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use margrave_wire::operator;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) use self::read::Body;
use self::read::Params;
use super::feed::Feed;
use super::problem::Problem;
use super::{App, Stopping};
use crate::auth::Viewer;
use crate::fleet::Fleet;

/// What handlers share.
#[derive(Clone)]
struct Api {
    app: App,
    feed: Feed,
}

impl Api {
    fn fleet(&self) -> &Fleet {
        &self.app.fleet
    }
}

impl axum::extract::FromRef<Api> for App {
    fn from_ref(api: &Api) -> App {
        api.app.clone()
    }
}

/// Everything below [`operator::PREFIX`].
pub fn router(app: App) -> Router {
    let feed = Feed::new(Arc::clone(&app.fleet), Stopping::clone(&app.stopping));
    let (routes, document) = routes().split_for_parts();
    let document = Bytes::from(document::complete(&document).to_string());
    let described = move || {
        let document = document.clone();
        async move { ([(CONTENT_TYPE, "application/json")], document) }
    };
    routes
        .route(&format!("{}/openapi.json", operator::PREFIX), axum::routing::get(described))
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::middleware::map_response(no_store))
        .with_state(Api { app, feed })
}

fn routes() -> OpenApiRouter<Api> {
    let api = OpenApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(why))
        .routes(routes!(device::list))
        .routes(routes!(device::show))
        .routes(routes!(device::labels, device::label))
        .routes(routes!(device::accept))
        .routes(routes!(device::retire))
        .routes(routes!(device::hold))
        .routes(routes!(device::release))
        .routes(routes!(device::look))
        .routes(routes!(signed::reject))
        .routes(routes!(signed::relocate))
        .routes(routes!(signed::list, signed::bring))
        .routes(routes!(device::token, device::tokens))
        .routes(routes!(device::revoke_token))
        .routes(routes!(git::show, git::put, git::remove))
        .routes(routes!(package::list, package::add))
        .routes(routes!(package::show, package::remove))
        .routes(routes!(registry::texts))
        .routes(routes!(registry::list))
        .routes(routes!(registry::show, registry::put, registry::remove))
        .routes(routes!(registry::check))
        .routes(routes!(registry::watches))
        .routes(routes!(registry::watch, registry::put_watch, registry::remove_watch))
        .routes(routes!(registry::look))
        .routes(routes!(deployment::list))
        .routes(routes!(deployment::show, deployment::put, deployment::remove))
        .routes(routes!(deployment::assignments))
        .routes(routes!(deployment::preview))
        .routes(routes!(deployment::revisions))
        .routes(routes!(deployment::revert))
        .routes(routes!(deployment::transitions))
        .routes(routes!(deployment::departed))
        .routes(routes!(rollout::show))
        .routes(routes!(rollout::pause))
        .routes(routes!(rollout::resume))
        .routes(routes!(rollout::abort))
        .routes(routes!(schedule::list))
        .routes(routes!(schedule::show, schedule::put, schedule::remove))
        .routes(routes!(event::events))
        .routes(routes!(intent::show))
        .routes(routes!(intent::log))
        .routes(routes!(history::then))
        .routes(routes!(history::diff))
        .routes(routes!(history::commit))
        .routes(routes!(intent::resolve))
        .routes(routes!(intent::files))
        .routes(routes!(intent::file))
        .routes(routes!(intent::apply))
        .routes(routes!(intent::schema))
        .routes(routes!(authority::show))
        .routes(routes!(authority::rotate))
        .routes(routes!(authority::retire))
        .routes(routes!(access::list, access::create))
        .routes(routes!(access::mine))
        .routes(routes!(access::revoke))
        .routes(routes!(access::end_all_sessions))
        .routes(routes!(secret::seal))
        .routes(routes!(audit::list))
        .routes(routes!(backup::make))
        .fallback(no_such_path)
        .layer(axum::middleware::from_fn(condition::tag))
        .layer(axum::middleware::map_request(whole_address));
    OpenApiRouter::with_openapi(base()).nest(operator::PREFIX, api)
}

/// The interface as its document describes it.
#[cfg(test)]
pub(super) fn describe() -> OpenApi {
    routes().split_for_parts().1
}

/// What the document says apart from the routes.
fn base() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Margrave operator interface")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Devices, packages and deployments of one server. Errors are application/problem+json with types \
             under urn:margrave:problem. Identifiers in paths are one segment each, with '/' written %2F. \
             Lists that can grow are paged: pass `next` as `after`.",
        ))
        .build();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    OpenApiBuilder::new()
        .info(info)
        .components(Some(ComponentsBuilder::new().security_scheme("token", bearer).build()))
        .security(Some([SecurityRequirement::new("token", Vec::<String>::new())]))
        .build()
}

/// The fleet at a glance.
#[utoipa::path(get, path = "/status", tag = "fleet",
    responses((status = 200, body = operator::FleetStatus), (status = 401, body = operator::Problem)))]
async fn status(_: Viewer, State(api): State<Api>) -> Result<Json<operator::FleetStatus>, Problem> {
    Ok(Json(api.fleet().status().await?))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WhyParams {
    /// What: a device, a device and a deployment on it (`line-1`, `line-1/web`), or a deployment's name. What is wanted as a
    /// whole (`intent`) has none.
    subject: Option<String>,
    /// What kind of thing that is; a device when left out.
    #[serde(default)]
    #[param(inline)]
    kind: operator::WhyKind,
}

/// Why something is not as wanted; the last cause is the one to act on.
#[utoipa::path(get, path = "/why", tag = "fleet", params(WhyParams),
    responses((status = 200, body = operator::Why), (status = 404, body = operator::Problem)))]
async fn why(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<WhyParams>,
) -> Result<Json<operator::Why>, Problem> {
    let subject = match (params.kind, params.subject) {
        (operator::WhyKind::Intent, subject) => subject.unwrap_or_default(),
        (_, Some(subject)) => subject,
        (_, None) => return Err(Problem::malformed("subject: names what is asked about, and is missing")),
    };
    Ok(Json(api.fleet().why_of(params.kind, &subject).await?))
}

async fn no_such_path(OriginalUri(uri): OriginalUri) -> Response {
    Problem::no_such_path().at(uri.path()).into_response()
}

async fn no_such_method(OriginalUri(uri): OriginalUri) -> Response {
    Problem::no_such_method().at(uri.path()).into_response()
}

/// Handlers and their problems speak of the address that was asked, not of what is left below the prefix.
async fn whole_address(OriginalUri(uri): OriginalUri, mut request: Request) -> Request {
    *request.uri_mut() = uri;
    request
}

/// Answers speak of this moment and of this operator; no cache on the way may keep them.
async fn no_store(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
