//! The operator interface as commands use it: `/api/operator/v1` over HTTP.
//!
//! Answers that say no become [`Trouble`] with the server's own words, and with what to type next where we
//! know it. Nothing here decides; nothing is cached.

mod access;
mod backup;
mod catalog;
mod intent;

use std::sync::Arc;
use std::time::Duration;

use margrave_http::{Events, Limits, Origin, Request, Response, StatusCode, Trust, header};
use margrave_identity::pin::Pin;
use margrave_identity::tls::pinned_client_config;
use margrave_wire::operator::{
    AcceptCertificate, AddPackage, Assignment, AuthorityStatus, Context, CreateJoinToken, Departed,
    Deployment, Device, Event, FleetStatus, GitRepository, HoldDevice, JoinToken, MoveDevice, OpenJoinToken,
    PREFIX, Package, Page, Problem, PutDeployment, PutGit, RetireAuthority, RevertDeployment, Revision,
    RotateAuthority, Schedule, SetLabels, SignedClient, Transition, Why, WhyKind,
};
use margrave_wire::rollout::Rollout;
use margrave_wire::schedule::ScheduleBody;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use serde::de::DeserializeOwned;

use crate::cli::Connection;
use crate::context;
use crate::exit::{Result, Trouble, chain};
use crate::render::printable;

/// Everything but what RFC 3986 calls unreserved; a `/` inside an identifier must not become a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The server sends a sign of life every 15 seconds; four missed ones are the end.
const STREAM_SILENCE_MAX: Duration = Duration::from_secs(60);
/// Adding a package makes the server fetch it from a registry that may be far away.
const ADD_TIME_MAX: Duration = Duration::from_secs(300);
/// Of a list, per request while all are read.
const PAGE: usize = 500;
/// All lists together must stay below what a terminal program should hold.
const PAGES_MAX: usize = 1000;
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A connection to one server, with one operator's right.
#[derive(Clone)]
pub(crate) struct Client {
    http: margrave_http::Client,
    token: String,
    context: Context,
}

/// What a writer expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    New,
    Revision(u64),
}

impl Expected {
    fn on(self, request: Request) -> Request {
        match self {
            Expected::New => request.header(header::IF_NONE_MATCH, "*"),
            Expected::Revision(revision) => request.header(header::IF_MATCH, format!("\"{revision}\"")),
        }
    }
}

fn lost(name: &str) -> Trouble {
    Trouble::refused(format!("somebody else changed {name} at the same moment, so nothing was written"))
        .hint(format!("look at it with `margrave deployment show {name}`, then repeat your change"))
}

impl Client {
    /// The server that flags, environment or the remembered context name.
    pub(crate) fn connect(connection: &Connection) -> Result<Client> {
        Client::new(&context::find(connection)?)
    }

    pub(crate) fn new(context: &Context) -> Result<Client> {
        let origin = Origin::parse(&context.url).map_err(|error| Trouble::broke(error.to_string()))?;
        let limits = Limits { body_max: ANSWER_BYTES_MAX, ..Limits::default() };
        let http = margrave_http::Client::new(trust(context)?, origin, limits)
            .map_err(|error| Trouble::because("the server cannot be connected to", &error))?;
        Ok(Client { http, token: context.token.clone(), context: context.clone() })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) async fn status(&self) -> Result<FleetStatus> {
        self.get("/status").await
    }

    pub(crate) async fn why(&self, kind: WhyKind, subject: &str) -> Result<Why> {
        self.get(&format!("/why?kind={}&subject={}", kind.as_str(), segment(subject))).await
    }

    /// All devices that match, however many pages they are.
    pub(crate) async fn devices(&self, filters: &[(&str, Option<String>)]) -> Result<Vec<Device>> {
        let mut query = format!("/devices?limit={PAGE}");
        for (name, value) in filters {
            if let Some(value) = value {
                query.push_str(&format!("&{name}={}", segment(value)));
            }
        }
        self.all(&query).await
    }

    /// The first devices in a condition, by name.
    pub(crate) async fn devices_first(&self, condition: &str, limit: usize) -> Result<Vec<Device>> {
        let page: Page<Device> = self.get(&format!("/devices?limit={limit}&condition={condition}")).await?;
        Ok(page.items)
    }

    /// Everything of a list, however many pages it has.
    async fn all<T: DeserializeOwned>(&self, query: &str) -> Result<Vec<T>> {
        self.all_after(query, None).await
    }

    /// The same from a place in it on.
    async fn all_after<T: DeserializeOwned>(&self, query: &str, after: Option<String>) -> Result<Vec<T>> {
        let mut all = Vec::new();
        let mut after = after;
        for _ in 0..PAGES_MAX {
            let behind = after.map(|after| format!("&after={}", segment(&after))).unwrap_or_default();
            let request = Request::get(at(&format!("{query}{behind}")));
            // What there is as a stream, too, is one unless a list is asked for.
            let page: Page<T> = self.ask(request.header(header::ACCEPT, "application/json")).await?;
            all.extend(page.items);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
        Err(Trouble::broke("there is more than can be listed").hint("narrow it with --search or --label"))
    }

    pub(crate) async fn device(&self, device: &str) -> Result<Device> {
        self.get(&format!("/devices/{}", segment(device))).await
    }

    pub(crate) async fn create_join_token(&self, want: &CreateJoinToken) -> Result<JoinToken> {
        self.ask(Request::post(at("/join-tokens")).json(want)).await
    }

    pub(crate) async fn join_tokens(&self) -> Result<Vec<OpenJoinToken>> {
        self.all(&format!("/join-tokens?limit={PAGE}")).await
    }

    pub(crate) async fn revoke_join_token(&self, device: &str) -> Result<()> {
        self.done(Request::delete(at(&format!("/join-tokens/{}", segment(device))))).await
    }

    pub(crate) async fn accept(&self, device: &str) -> Result<Device> {
        self.ask(Request::post(at(&format!("/devices/{}/accept", segment(device))))).await
    }

    pub(crate) async fn accept_certificate(&self, want: &AcceptCertificate) -> Result<SignedClient> {
        self.ask(Request::post(at("/signed-clients")).json(want)).await
    }

    pub(crate) async fn reject(&self, device: &str) -> Result<SignedClient> {
        self.ask(Request::post(at(&format!("/devices/{}/reject", segment(device))))).await
    }

    pub(crate) async fn move_device(&self, device: &str, want: &MoveDevice) -> Result<Device> {
        self.ask(Request::post(at(&format!("/devices/{}/move", segment(device)))).json(want)).await
    }

    /// Those who wait to be let in to sign their requests.
    pub(crate) async fn waiting(&self) -> Result<Vec<SignedClient>> {
        self.all(&format!("/signed-clients?decision=pending&limit={PAGE}")).await
    }

    pub(crate) async fn retire(&self, device: &str) -> Result<Device> {
        self.ask(Request::post(at(&format!("/devices/{}/retire", segment(device))))).await
    }

    pub(crate) async fn hold(&self, device: &str, want: &HoldDevice) -> Result<Device> {
        self.ask(Request::post(at(&format!("/devices/{}/hold", segment(device)))).json(want)).await
    }

    pub(crate) async fn release(&self, device: &str) -> Result<Device> {
        self.ask(Request::post(at(&format!("/devices/{}/release", segment(device))))).await
    }

    pub(crate) async fn look(&self, device: &str) -> Result<Device> {
        self.ask(Request::post(at(&format!("/devices/{}/look", segment(device))))).await
    }

    pub(crate) async fn label(&self, device: &str, want: &SetLabels) -> Result<Device> {
        self.ask(Request::patch(at(&format!("/devices/{}/labels", segment(device)))).json(want)).await
    }

    pub(crate) async fn authority(&self) -> Result<AuthorityStatus> {
        self.get("/authority").await
    }

    pub(crate) async fn rotate_authority(&self, want: &RotateAuthority) -> Result<AuthorityStatus> {
        self.ask(Request::post(at("/authority/rotate")).json(want)).await
    }

    pub(crate) async fn retire_authority(&self, want: &RetireAuthority) -> Result<AuthorityStatus> {
        self.ask(Request::post(at("/authority/retire")).json(want)).await
    }

    pub(crate) async fn git(&self, device: &str) -> Result<GitRepository> {
        self.get(&format!("/devices/{}/git", segment(device))).await
    }

    pub(crate) async fn put_git(&self, device: &str, want: &PutGit) -> Result<GitRepository> {
        self.ask(Request::put(at(&format!("/devices/{}/git", segment(device)))).json(want)).await
    }

    pub(crate) async fn end_git(&self, device: &str) -> Result<()> {
        self.done(Request::delete(at(&format!("/devices/{}/git", segment(device))))).await
    }

    pub(crate) async fn schedules(&self) -> Result<Vec<Schedule>> {
        self.all(&format!("/schedules?limit={PAGE}")).await
    }

    /// What is set for one of them, if anything is, with the tag of what was seen.
    pub(crate) async fn schedule(&self, reach: &str) -> Result<Option<(Schedule, String)>> {
        let response = self.send(Request::get(at(&format!("/schedules/{}", segment(reach))))).await?;
        if response.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let tag = response.header(header::ETAG).unwrap_or_default().to_owned();
        Ok(Some((self.read(response)?, tag)))
    }

    /// Only in the place of what was seen.
    pub(crate) async fn put_schedule(
        &self,
        reach: &str,
        want: &ScheduleBody,
        seen: Option<&str>,
    ) -> Result<Schedule> {
        let request = Request::put(at(&format!("/schedules/{}", segment(reach)))).json(want);
        let request = match seen {
            Some(tag) => request.header(header::IF_MATCH, tag),
            None => request.header(header::IF_NONE_MATCH, "*"),
        };
        let response = self.send(request).await?;
        if response.status == StatusCode::PRECONDITION_FAILED {
            let words = format!(
                "somebody else changed what is set for {reach} at the same moment, so nothing was written"
            );
            return Err(Trouble::refused(words)
                .hint(format!("look at it with `margrave schedule show {reach}`, then repeat your change")));
        }
        self.read(response)
    }

    pub(crate) async fn remove_schedule(&self, reach: &str) -> Result<()> {
        self.done(Request::delete(at(&format!("/schedules/{}", segment(reach))))).await
    }

    pub(crate) async fn packages(&self) -> Result<Vec<Package>> {
        self.all(&format!("/packages?limit={PAGE}")).await
    }

    /// A package at one version, or at its newest.
    pub(crate) async fn package(&self, id: &str, version: Option<&str>) -> Result<Package> {
        if let Some(version) = version {
            return self.get(&format!("/packages/{}/{}", segment(id), segment(version))).await;
        }
        let packages = self.packages().await?;
        newest(packages.into_iter().filter(|package| package.id == id)).ok_or_else(|| {
            Trouble::refused(format!("there is no package {id} in the catalog"))
                .hint("`margrave package list` shows what is there, `margrave package add` adds one")
        })
    }

    pub(crate) async fn add_package(&self, want: &AddPackage) -> Result<Package> {
        self.ask(Request::post(at("/packages")).json(want).timeout(ADD_TIME_MAX)).await
    }

    pub(crate) async fn remove_package(&self, id: &str, version: &str) -> Result<()> {
        self.done(Request::delete(at(&format!("/packages/{}/{}", segment(id), segment(version))))).await
    }

    pub(crate) async fn deployments(&self) -> Result<Vec<Deployment>> {
        self.all(&format!("/deployments?limit={PAGE}")).await
    }

    /// A deployment with every device that it is on.
    pub(crate) async fn deployment(&self, name: &str) -> Result<Deployment> {
        let mut deployment = self.deployment_begun(name).await?;
        if deployment.next.take().is_some() {
            deployment.assignments = self.assignments(name, None).await?;
        }
        Ok(deployment)
    }

    /// A deployment with the first of its devices, and all of them counted.
    pub(crate) async fn deployment_begun(&self, name: &str) -> Result<Deployment> {
        self.get(&format!("/deployments/{}", segment(name))).await
    }

    /// The devices that a deployment is on; in one state, if one is named.
    pub(crate) async fn assignments(&self, name: &str, state: Option<&str>) -> Result<Vec<Assignment>> {
        let state = state.map(|state| format!("&state={state}")).unwrap_or_default();
        self.all(&format!("/deployments/{}/assignments?limit={PAGE}{state}", segment(name))).await
    }

    pub(crate) async fn put_deployment(
        &self,
        name: &str,
        want: &PutDeployment,
        expected: Expected,
    ) -> Result<Deployment> {
        let request = Request::put(at(&format!("/deployments/{}", segment(name)))).json(want);
        let response = self.send(expected.on(request)).await?;
        // A conflict of another kind, as with a server that waits for a decision, has words of its own.
        let lost = response.status == StatusCode::PRECONDITION_FAILED;
        match expected {
            Expected::New if lost => {
                Err(Trouble::refused(format!("a deployment called {name} exists already")).hint(format!(
                    "change it with `margrave deployment update {name}`, or give this one another --name"
                )))
            }
            Expected::Revision(_) if lost => Err(self::lost(name)),
            _ => self.read(response),
        }
    }

    /// Removes a deployment, unless somebody changed it meanwhile.
    pub(crate) async fn remove_deployment(&self, name: &str, expected: Expected) -> Result<()> {
        let request = Request::delete(at(&format!("/deployments/{}", segment(name))));
        let response = self.send(expected.on(request)).await?;
        if response.status == StatusCode::PRECONDITION_FAILED {
            return Err(lost(name));
        }
        if response.status.is_success() { Ok(()) } else { Err(refusal(&response)) }
    }

    /// What a deployment was, newest first; also of one that is gone.
    pub(crate) async fn revisions(&self, name: &str) -> Result<Vec<Revision>> {
        self.all(&format!("/deployments/{}/revisions?limit={PAGE}", segment(name))).await
    }

    /// Goes back to an earlier revision, unless somebody changed the deployment meanwhile.
    pub(crate) async fn revert_deployment(
        &self,
        name: &str,
        to: u64,
        expected: Expected,
    ) -> Result<Deployment> {
        let path = at(&format!("/deployments/{}/revert", segment(name)));
        let request = Request::post(path).json(&RevertDeployment { revision: to });
        let response = self.send(expected.on(request)).await?;
        if response.status == StatusCode::PRECONDITION_FAILED {
            return Err(lost(name));
        }
        self.read(response)
    }

    pub(crate) async fn rollout(&self, name: &str) -> Result<Rollout> {
        self.get(&format!("/deployments/{}/rollout", segment(name))).await
    }

    /// Pauses, resumes or aborts; `seen` is the revision whose rollout is meant, where that was shown.
    pub(crate) async fn hold_rollout(&self, name: &str, verb: &str, seen: Option<u64>) -> Result<Rollout> {
        let mut request = Request::post(at(&format!("/deployments/{}/rollout/{verb}", segment(name))));
        if let Some(seen) = seen {
            request = request.header(header::IF_MATCH, format!("\"{seen}\""));
        }
        self.ask(request).await
    }

    pub(crate) async fn transitions(&self, deployment: &str, device: &str) -> Result<Vec<Transition>> {
        let (deployment, device) = (segment(deployment), segment(device));
        self.all(&format!("/deployments/{deployment}/devices/{device}/transitions?limit={PAGE}")).await
    }

    /// The first of the devices that had a deployment and do not have it any more.
    pub(crate) async fn departed(&self, deployment: &str, number: usize) -> Result<Page<Departed>> {
        self.get(&format!("/deployments/{}/departed?limit={number}", segment(deployment))).await
    }

    /// What happened after an event, oldest first.
    pub(crate) async fn events_after(&self, after: u64) -> Result<Vec<Event>> {
        self.all_after(&format!("/events?limit={PAGE}"), Some(after.to_string())).await
    }

    /// The newest events, oldest first.
    pub(crate) async fn latest_events(&self, number: u32) -> Result<Vec<Event>> {
        match number {
            0 => Ok(Vec::new()),
            number => self.all(&format!("/events?last={}", number.min(1000))).await,
        }
    }

    /// Events as they happen: after the given one, or from now on.
    pub(crate) async fn follow(&self, after: Option<u64>) -> Result<EventStream> {
        let path = match after {
            Some(after) => at(&format!("/events?after={after}")),
            None => at("/events"),
        };
        let request = self.authorized(Request::get(path)).body_idle(STREAM_SILENCE_MAX);
        match self.http.events(request).await.map_err(|error| self.unreachable(&error))? {
            Ok(events) => Ok(EventStream { events }),
            Err(response) => Err(refusal(&response)),
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.ask(Request::get(at(path))).await
    }

    async fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<T> {
        let response = self.send(request).await?;
        self.read(response)
    }

    async fn done(&self, request: Request) -> Result<()> {
        let response = self.send(request).await?;
        if response.status.is_success() { Ok(()) } else { Err(refusal(&response)) }
    }

    async fn send(&self, request: Request) -> Result<Response> {
        self.http.send(self.authorized(request)).await.map_err(|error| self.unreachable(&error))
    }

    fn authorized(&self, request: Request) -> Request {
        request.secret_header(header::AUTHORIZATION, format!("Bearer {}", self.token))
    }

    fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T> {
        if !response.status.is_success() {
            return Err(refusal(&response));
        }
        response.json().map_err(|error| {
            Trouble::because(format!("the answer of {} is not understood", self.context.url), &error)
                .hint("is it a Margrave server, of about the same version as this program?")
        })
    }

    fn unreachable(&self, error: &margrave_http::Error) -> Trouble {
        let text = chain(format!("the server at {} did not answer", self.context.url), error);
        let trouble = Trouble::broke(text).passing();
        match error {
            margrave_http::Error::Connect { .. } | margrave_http::Error::Resolve { .. } => trouble.hint(
                "is it running, and is the address right? `margrave serve` and `margrave demo` print theirs",
            ),
            margrave_http::Error::Tls { .. } if self.context.pin.is_none() => trouble
                .hint("a server with a certificate of its own is known by its pin: give it with --pin PIN"),
            margrave_http::Error::Tls { .. } => {
                trouble.hint("the pin must be the one that this very server prints when it starts")
            }
            _ => trouble,
        }
    }
}

/// How the other end is recognised.
pub(crate) fn trust(context: &Context) -> Result<Trust> {
    if context.url.starts_with("http://") {
        return Ok(Trust::PlainLoopback);
    }
    let Some(pin) = &context.pin else { return Ok(Trust::Tls(system_trust()?)) };
    let pin = Pin::parse(pin).map_err(|error| Trouble::broke(error.to_string()))?;
    Ok(Trust::Tls(pinned_client_config(vec![pin])))
}

/// The authorities that this machine trusts anyway, for a server with a public certificate or behind a proxy.
fn system_trust() -> Result<Arc<ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    // Some machines have single certificates that cannot be read; the others are still good.
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(Trouble::broke(
            "this machine has no trusted authorities to check the server's certificate with",
        )
        .hint("give the server's pin with --pin PIN; `margrave serve` prints it"));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Trouble::because("TLS cannot be set up", &error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A stream of events; it ends when either side closes it.
pub(crate) struct EventStream {
    events: Events,
}

impl EventStream {
    /// The next event; `None` when the stream is over, for whatever reason. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            let event = self.events.next().await.ok().flatten()?;
            // A kind of message that we do not know is not an event of the fleet.
            if let Ok(event) = serde_json::from_str(&event.data) {
                return Some(event);
            }
        }
    }
}

fn at(path: &str) -> String {
    format!("{PREFIX}{path}")
}

fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// The newest version by SemVer where versions are that, by text where not; any SemVer before any other.
pub(crate) fn newest(packages: impl IntoIterator<Item = Package>) -> Option<Package> {
    packages.into_iter().max_by(|a, b| {
        let key =
            |package: &Package| (semver::Version::parse(&package.version).ok(), package.version.clone());
        key(a).cmp(&key(b))
    })
}

/// What came of an answer that is no success. Here, and nowhere else, it is decided whether the server said no to what was
/// asked (exit code 1), or whether asking went wrong (2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is not there, not valid, in conflict, does not fit, or is not allowed to whoever asks.
    No,
    /// Who asks is not known, or the other end is not what this program talks to.
    Broke,
    /// The same, and it may pass: too much at once, or something is wrong with the server.
    Passing,
}

fn outcome(status: StatusCode, kind: &str) -> Outcome {
    match status.as_u16() {
        // A server of another version, which has nothing there that could be asked.
        404 if kind.ends_with(":no-such-path") => Outcome::Broke,
        400 | 403 | 404 | 409 | 410 | 412 | 413 | 422 | 428 => Outcome::No,
        // A full disk does not pass by itself.
        507 => Outcome::Broke,
        408 | 429 | 500..=599 => Outcome::Passing,
        _ => Outcome::Broke,
    }
}

/// What an answer that is no success says, and what to do about it.
fn refusal(response: &Response) -> Trouble {
    let status = response.status;
    let Ok(problem) = response.json::<Problem>() else {
        let text = format!("the server answered {status}, without saying why");
        let trouble = Trouble::broke(text).hint("is this the address of a Margrave server?");
        return if status.is_server_error() { trouble.passing() } else { trouble };
    };
    let mut text = sentence(&problem);
    for violation in &problem.violations {
        let place = if violation.place.is_empty() { "/" } else { &violation.place };
        text.push_str(&format!(
            "\n  {}: {} ({})",
            printable(place),
            printable(&violation.message),
            printable(&violation.rule)
        ));
    }
    for misfit in &problem.misfits {
        text.push_str(&format!(
            "\n  {}: {}",
            printable(&misfit.device),
            printable(&misfit.reasons.join("; "))
        ));
    }
    let hint = hint(response, &problem, &text);
    let trouble = match outcome(status, &problem.kind) {
        Outcome::No => Trouble::refused(text),
        Outcome::Broke => Trouble::broke(text),
        Outcome::Passing => Trouble::broke(text).passing(),
    };
    match hint {
        Some(hint) => trouble.hint(hint),
        None => trouble,
    }
}

/// What to type next, where we know it.
fn hint(response: &Response, problem: &Problem, text: &str) -> Option<String> {
    match response.status {
        StatusCode::UNAUTHORIZED => {
            Some("give a valid token with --operator-token, or `margrave login` anew".to_owned())
        }
        // Who is told what to type already needs no list to look through.
        StatusCode::NOT_FOUND if text.contains("`margrave ") => None,
        StatusCode::NOT_FOUND => {
            let mut nouns = ["device", "deployment", "package"].into_iter();
            let noun = nouns.find(|noun| text.starts_with(&format!("there is no {noun} ")))?;
            Some(format!("`margrave {noun} list` shows what there is"))
        }
        StatusCode::UNPROCESSABLE_ENTITY if !problem.misfits.is_empty() => Some(
            "leave these devices out, or say with --force why they are to have it all the same".to_owned(),
        ),
        _ => response.retry_after().map(|wait| format!("try again in {} s", wait.as_secs().max(1))),
    }
}

fn sentence(problem: &Problem) -> String {
    let detail = printable(problem.detail.trim());
    // Each violation and misfit is listed below; the detail of those problems repeats them all in one line.
    if detail.is_empty() || !problem.violations.is_empty() || !problem.misfits.is_empty() {
        return printable(&problem.title);
    }
    detail
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_wire::operator::{Misfit, Violation};

    fn answer(status: u16, problem: Option<&Problem>) -> Trouble {
        refusal(&Response {
            status: StatusCode::from_u16(status).unwrap(),
            headers: Default::default(),
            body: problem.map(|p| serde_json::to_vec(p).unwrap()).unwrap_or_default().into(),
        })
    }

    fn problem(status: u16) -> Problem {
        Problem {
            kind: "urn:margrave:problem:x".into(),
            title: "Title".into(),
            status,
            detail: "the detail says what to do".into(),
            instance: None,
            retryable: false,
            retry_after_seconds: None,
            backoff_strategy: None,
            violations: Vec::new(),
            misfits: Vec::new(),
        }
    }

    #[test]
    fn who_names_what_is_not_there_is_told_where_to_look() {
        let unknown = Problem { detail: "there is no device line-9".into(), ..problem(404) };
        assert!(answer(404, Some(&unknown)).hinted().unwrap().contains("margrave device list"));
        assert!(answer(404, Some(&problem(404))).hinted().is_none());
        let other =
            "there is no device web; a deployment has that name: `margrave why deployment web`".to_owned();
        let other = answer(404, Some(&Problem { detail: other, ..problem(404) }));
        assert!(other.hinted().is_none() && other.message().ends_with("`margrave why deployment web`"));
    }

    #[test]
    fn a_no_of_the_server_is_told_from_a_server_that_is_broken() {
        for (status, kind, code, passing) in [
            (400, "bad-identifier", 1, false),
            // The server does not know who asks, so it said nothing about what was asked.
            (401, "unauthorized", 2, false),
            (403, "role-needed", 1, false),
            (404, "not-found", 1, false),
            (404, "no-such-path", 2, false),
            (405, "no-such-method", 2, false),
            (408, "too-slow", 2, true),
            (409, "conflict", 1, false),
            (412, "changed", 1, false),
            (413, "too-large", 1, false),
            (415, "not-json", 2, false),
            (422, "misfit", 1, false),
            (429, "too-many-requests", 2, true),
            (500, "internal", 2, true),
            (502, "upstream", 2, true),
            (503, "overloaded", 2, true),
        ] {
            let kind = format!("urn:margrave:problem:{kind}");
            let trouble = answer(status, Some(&Problem { kind: kind.clone(), ..problem(status) }));
            assert_eq!(trouble.message(), "the detail says what to do");
            assert_eq!(trouble.is_passing(), passing, "{status} {kind}");
            assert_eq!(
                crate::exit::code(&Err(trouble)),
                std::process::ExitCode::from(code),
                "{status} {kind}"
            );
        }
        let foreign = answer(404, None);
        assert!(
            !foreign.is_refusal() && !foreign.is_passing(),
            "a page without a problem body is no no of ours"
        );
        assert!(answer(502, None).is_passing(), "a proxy whose server is away");
    }

    #[test]
    fn every_broken_rule_and_every_misfit_is_shown() {
        let mut problem = problem(422);
        problem.violations = vec![Violation {
            place: "/parameters/x".into(),
            rule: "DM-051".into(),
            message: "must be\x1b[2J one".into(),
        }];
        problem.misfits = vec![Misfit {
            device: "press-1".into(),
            reasons: vec!["no helm".into(), "too small".into()],
            temporary: false,
        }];
        let text = answer(422, Some(&problem)).message().to_owned();
        assert!(
            text.contains("/parameters/x: must be [2J one (DM-051)")
                && text.contains("press-1: no helm; too small"),
            "{text}"
        );
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn identifiers_stay_one_segment() {
        assert_eq!(segment("gw/child:a~b?x#y z"), "gw%2Fchild%3Aa~b%3Fx%23y%20z");
    }

    #[test]
    fn the_newest_version_is_the_highest_not_the_longest() {
        let package = |version: &str| -> Package {
            serde_json::from_value(serde_json::json!({
                "id": "a", "version": version, "name": "A", "organization": "Us", "reference": "", "addedAt": "",
                "addedBy": "", "profiles": [], "sections": [], "deployments": [],
            }))
            .unwrap()
        };
        for (versions, wanted) in [
            (&["1.9.0", "1.10.0", "1.2.0"][..], "1.10.0"),
            (&["2.0.0-rc.1", "1.0.0"], "2.0.0-rc.1"),
            (&["nightly", "0.1.0"], "0.1.0"),
            (&["b", "a"], "b"),
        ] {
            assert_eq!(newest(versions.iter().map(|v| package(v))).unwrap().version, wanted);
        }
    }
}
