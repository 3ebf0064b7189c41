//! The operators' pages: made on the server, complete without JavaScript, live with it.
//!
//! A page is one struct and one compiled template; handlers gather what the struct holds from the fleet and
//! never call our own REST. Templates escape everything, so a name with markup in it stays a name. A form
//! reaches a handler only through [`session::Submitted`], which checks who sent it and from where.
//!
//! Start with `fleet.rs`; `frame.rs` is what all pages share, `session.rs` who may see them.

mod access;
mod address;
mod asking;
mod assets;
mod assignment;
mod audit;
mod badge;
mod bulk;
mod care;
mod certificate;
mod command;
mod commit;
mod confirm;
mod demo;
mod deploy;
mod deployment;
mod device;
mod devices;
mod draft;
mod error;
mod fleet;
mod frame;
mod group;
mod health;
mod icon;
mod link;
mod live;
mod need;
mod pace;
mod package;
mod paging;
mod prose;
mod question;
mod registry;
mod rehearsal;
mod revision;
mod rollout;
mod schedule;
mod session;
mod settings;
mod stamp;
mod tally;
mod tiers;
mod told;
mod watch;
mod week;
mod why;
mod wrong;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef};
use axum::response::Response;
use axum::routing::{get, post};
use http::HeaderValue;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use tokio::sync::OnceCell;

use self::error::PageError;
use super::App;
use super::feed::Feed;
use crate::fleet::{Error, Fleet, difference};

/// Far more than anybody types into a form.
const FORM_MAX: usize = 256 * 1024;
/// A deployment with its answers and as many devices as it may name.
const DEPLOYMENT_FORM_MAX: usize = 4 * 1024 * 1024;

/// Everything comes from this server, and nothing runs that is not a file of ours.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// What handlers share.
#[derive(Clone)]
struct Web {
    app: App,
    feed: Feed,
    demo: Arc<OnceCell<Option<String>>>,
}

impl Web {
    fn fleet(&self) -> &Fleet {
        &self.app.fleet
    }

    /// What the demo says about itself; it does not change while the server runs.
    async fn demo(&self) -> Result<Option<String>, Error> {
        let demo = self.demo.get_or_try_init(|| async { Ok(self.fleet().status().await?.demo) });
        demo.await.cloned()
    }
}

impl FromRef<Web> for App {
    fn from_ref(web: &Web) -> App {
        web.app.clone()
    }
}

/// Every page, and what they load.
pub fn router(app: App) -> Router {
    let feed = Feed::new(Arc::clone(&app.fleet), app.stopping.clone());
    let web = Web { app, feed, demo: Arc::default() };
    let large = || DefaultBodyLimit::max(DEPLOYMENT_FORM_MAX);
    Router::new()
        .route("/", get(fleet::page))
        .route("/devices", get(devices::list).post(bulk::change))
        .route("/devices/new", get(device::new).post(device::add))
        .route("/devices/new/{device}/revoke", get(device::revoke_ask).post(device::revoke))
        .route("/devices/{device}", get(device::show))
        .route("/devices/{device}/labels", post(device::label))
        .route("/devices/{device}/retire", get(device::retire_ask).post(device::retire))
        .route("/devices/{device}/accept", post(device::accept))
        .route("/devices/{device}/reject", post(device::reject))
        .route("/devices/{device}/hold", post(asking::hold))
        .route("/devices/{device}/release", post(asking::release))
        .route("/devices/{device}/look", post(asking::look))
        .route("/packages", get(package::list).post(package::add))
        .route("/packages/{package}/{version}", get(package::show))
        .route("/packages/{package}/{version}/icon", get(package::icon))
        .route("/packages/{package}/{version}/remove", get(package::remove_ask).post(package::remove))
        .route("/deploy", get(deploy::new).post(deploy::create).layer(large()))
        .route("/deploy/rehearsal", post(deploy::create_rehearsed).layer(large()))
        .route("/deployments", get(deployment::list))
        .route("/deployments/{deployment}", get(deployment::show))
        .route("/deployments/{deployment}/edit", get(deploy::edit).post(deploy::change).layer(large()))
        .route("/deployments/{deployment}/edit/rehearsal", post(deploy::change_rehearsed).layer(large()))
        .route("/deployments/{deployment}/remove", get(deployment::remove_ask).post(deployment::remove))
        .route("/deployments/{deployment}/revisions/{revision}", get(revision::show))
        .route("/deployments/{deployment}/revert", get(revision::revert_ask).post(revision::revert))
        .route("/deployments/{deployment}/rollout/{verb}", get(rollout::ask).post(rollout::hold))
        .route("/why", get(why::page))
        .route("/demo", post(demo::strike))
        .route("/audit", get(audit::page))
        .route("/audit/stream", get(live::follow_audit))
        .route("/commits/{commit}", get(commit::page))
        .route("/access", get(access::page).post(access::create))
        .route("/access/{token}/revoke", get(access::revoke_ask).post(access::revoke))
        .route("/settings", get(settings::page))
        .route("/settings/repository", post(settings::resolve))
        .route("/settings/repository/take", get(settings::take_ask))
        .route("/settings/backup", post(settings::backup))
        .route("/settings/schedule", get(schedule::form).post(schedule::put))
        .route("/settings/schedule/remove", get(schedule::remove_ask).post(schedule::remove))
        .route("/settings/registries", post(registry::put))
        .route("/settings/registries/check", post(registry::check))
        .route("/settings/registries/remove", post(registry::remove))
        .route("/watches", post(watch::put))
        .route("/watches/look", post(watch::look))
        .route("/watches/remove", post(watch::remove))
        .route("/events/stream", get(live::follow))
        .route("/sign-in", get(session::sign_in_page).post(session::sign_in))
        .route("/sign-out", post(session::sign_out))
        .route("/sign-out/everywhere", get(session::everywhere_ask).post(session::sign_out_everywhere))
        .route("/welcome/{code}", get(session::welcome))
        .route("/assets/{digest}/{name}", get(assets::asset))
        .fallback(async || PageError::NotFound)
        .method_not_allowed_fallback(error::form_only)
        .layer(DefaultBodyLimit::max(FORM_MAX))
        .layer(axum::middleware::map_response(guard))
        .with_state(web)
}

/// Headers that every answer carries. A handler may have set a stricter one for itself.
async fn guard(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "same-origin"),
        (X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
