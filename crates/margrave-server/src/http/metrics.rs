//! `/metrics`, in the text format of Prometheus; `docs/metrics.md` has the table.
//!
//! It asks for a token like everything else, also on the plain listener: every user and container of the machine can
//! reach that one, and how a plant does is nobody's business who was not let in. A scrape reads the database once, as
//! the status does; the rest is counted in memory.

use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use margrave_core::moment::Moment;
use margrave_store::Distribution;

use super::App;
use super::problem::Problem;
use crate::auth::Viewer;
use crate::fleet::Error;

const PATH: &str = "/metrics";
const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) fn router(app: App) -> Router {
    let began = Arc::new(Instant::now());
    let answer = move |_: Viewer, State(app): State<App>| {
        let began = Arc::clone(&began);
        async move {
            match scrape(&app, began.elapsed()).await {
                Ok(text) => ([(CONTENT_TYPE, MEDIA_TYPE), (CACHE_CONTROL, "no-store")], text).into_response(),
                Err(error) => Problem::from(error).at(PATH).into_response(),
            }
        }
    };
    Router::new().route(PATH, get(answer).fallback(no_such_method)).with_state(app)
}

async fn no_such_method() -> Response {
    Problem::no_such_method().at(PATH).into_response()
}

async fn scrape(app: &App, uptime: Duration) -> Result<String, Error> {
    let status = app.fleet.status().await?;
    let readings = app.fleet.readings();
    let identity = &app.rotation.identity;
    let mut page = Page::default();

    page.gauge("margrave_info", "The version of the server, as a label; always 1.")
        .sample(&[("version", &status.server_version)], 1);
    page.gauge("margrave_uptime_seconds", "How long the server has been running.")
        .sample(&[], uptime.as_secs_f64());

    let devices = &status.devices;
    let mut family = page.gauge("margrave_devices", "Devices by condition; retired ones are not counted.");
    for (condition, count) in [
        ("converged", devices.converged),
        ("pending", devices.pending),
        ("failed", devices.failed),
        ("silent", devices.silent),
    ] {
        family.sample(&[("condition", condition)], count);
    }
    let mut family = page.gauge("margrave_assignments", "Deployments on devices, by state.");
    for (state, count) in &status.assignments {
        family.sample(&[("state", state)], count);
    }
    page.gauge(
        "margrave_assignments_given_up",
        "Deployments on devices that failed and are not tried again by themselves.",
    )
    .sample(&[], status.given_up);
    let rollouts = app.fleet.rollouts_open().await?;
    let mut family = page.gauge("margrave_rollouts", "Rollouts that are not done, by state.");
    for (state, count) in &rollouts {
        family.sample(&[("state", state)], count);
    }
    let mut family = page.gauge(
        "margrave_intent_wrong",
        "Whether the repository of what is wanted is not followed, by what is wrong: 1 if so.",
    );
    for (what, is_wrong) in app.fleet.intent_wrong() {
        family.sample(&[("what", what)], u8::from(is_wrong));
    }
    page.gauge("margrave_packages", "Packages in the catalog, each version counted.")
        .sample(&[], status.packages);
    page.gauge("margrave_deployments", "Deployments that are wanted.").sample(&[], status.deployments);

    page.counter("margrave_polls_total", "Manifests that devices asked for, changed or not.")
        .sample(&[], readings.polls);
    page.gauge("margrave_polls_waiting", "Polls that are held until something changes.")
        .sample(&[], readings.waiting);
    page.counter("margrave_reports_total", "Reports of devices, by what became of them.")
        .sample(&[("result", "kept")], readings.reports_kept)
        .sample(&[("result", "refused")], readings.reports_refused);

    page.counter("margrave_manifests_total", "Manifests that were published.")
        .sample(&[], readings.manifests);
    page.histogram(
        "margrave_publish_seconds",
        "From a decision to manifests that are on disk and shown.",
        &readings.publications,
    );
    page.histogram(
        "margrave_rollout_look_seconds",
        "Looking at all devices of a rollout, to move or to show it.",
        &readings.rollout_looks,
    );
    page.histogram("margrave_store_commit_seconds", "Commits of the database.", &readings.store.commits);
    page.gauge("margrave_store_writes_waiting", "Writes that wait for the database.")
        .sample(&[], readings.store.waiting);

    let seconds = |at: Moment| at.0 as f64 / 1000.0;
    page.gauge(
        "margrave_certificate_expires_seconds",
        "When a certificate of the server expires, since 1970.",
    )
    .sample(&[("certificate", "authority")], seconds(identity.authorities.issuing().not_after()))
    .sample(&[("certificate", "device")], seconds(identity.svid.current().not_after()))
    .sample(&[("certificate", "web")], seconds(identity.web_leaf.current().not_after()));
    Ok(page.text)
}

/// What is being written.
#[derive(Default)]
struct Page {
    text: String,
}

/// One name and all that is said under it.
struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Page {
    fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }

    fn histogram(&mut self, name: &'static str, help: &str, seen: &Distribution) {
        let family = self.family(name, "histogram", help);
        for (bound, count) in &seen.within {
            line(family.text, name, "_bucket", &[("le", &bound.as_secs_f64().to_string())], count);
        }
        line(family.text, name, "_bucket", &[("le", "+Inf")], seen.count);
        line(family.text, name, "_sum", &[], seen.sum.as_secs_f64());
        line(family.text, name, "_count", &[], seen.count);
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n").expect("a string takes everything");
        Family { text: &mut self.text, name }
    }
}

impl Family<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        line(self.text, self.name, "", labels, value);
        self
    }
}

fn line(text: &mut String, name: &str, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
    let labels: Vec<String> =
        labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    writeln!(text, "{name}{suffix}{labels} {value}").expect("a string takes everything");
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_leave_its_quotes() {
        let mut page = Page::default();
        page.gauge("x", "one\ntwo \\").sample(&[("a", "\"} 1\n# \\"), ("b", "")], 2);
        assert_eq!(
            page.text,
            "# HELP x one\\ntwo \\\\\n# TYPE x gauge\nx{a=\"\\\"} 1\\n# \\\\\",b=\"\"} 2\n"
        );
    }
}
