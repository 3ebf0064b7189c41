//! Every change and every refusal goes into the audit log, around all handlers, so that none can forget it.
//!
//! An entry is written when the answer is known and before it is given. Until then every transaction that changes something keeps
//! what is known of the request, so that a crash in between loses nothing (`begun.rs` of the store). A handler that knows more than
//! its path says (the name in a body, the Git commit) puts that into the request's [`Note`]. A request that changes something runs
//! to its end even if whoever sent it goes away: what was done is in the log.

mod action;
mod refusals;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, FromRequestParts, MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::header::{AUTHORIZATION, COOKIE, USER_AGENT};
use http::request::Parts;
use http::{Extensions, StatusCode};
use margrave_core::access::OperatorName;
use margrave_core::audit::Entry;
use margrave_core::id::ClientId;
use margrave_store::Begun;
use margrave_wire::operator;

use self::refusals::{LeftOut, Refusals};
use super::{Stopping, git, intent};
use crate::fleet::{Clock, DONE, Fleet, Holder, blank, line, noting};
use crate::guessing::Source;

/// How often it is looked whether refusals were left out.
const LEFT_OUT_EVERY: Duration = Duration::from_secs(60);
/// Problems whose words are ours alone. Others may repeat what was sent, which may be a secret.
const SPOKEN: [&str; 11] = [
    "role-needed",
    "forbidden",
    "unauthorized",
    "too-many-requests",
    "conflict",
    "in-use",
    "not-found",
    "changed",
    "token-unknown",
    "token-used",
    "token-expired",
];

/// Writes the log; one for all listeners.
#[derive(Clone)]
pub(crate) struct Audit {
    fleet: Arc<Fleet>,
    clock: Clock,
    refusals: Arc<Refusals>,
}

/// Which of our interfaces a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Rest,
    Page,
    Registry,
    /// The repository of what is wanted, to fetch from and to push to.
    Git,
    /// Devices' own repositories, to fetch from.
    DeviceGit,
    /// Devices that join, before they are anybody.
    Identity,
}

/// What is known of a request beside its address; everybody who handles it can add to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Note(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    by: Option<Holder>,
    /// Who asks, where that is no operator.
    device: Option<String>,
    action: Option<&'static str>,
    subject: Option<String>,
    detail: Option<String>,
    commit: Option<String>,
    kept: bool,
    left_out: bool,
}

impl Note {
    /// The note of this request; one that goes nowhere outside of the log.
    pub(crate) fn of(extensions: &Extensions) -> Note {
        extensions.get::<Note>().cloned().unwrap_or_default()
    }

    fn noted<T>(&self, work: impl FnOnce(&mut Noted) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Who asks.
    pub(crate) fn by(&self, holder: &Holder) {
        self.noted(|noted| noted.by = Some(holder.clone()));
    }

    /// A device asks, and proved which one it is.
    pub(crate) fn device(&self, client: &ClientId) {
        self.noted(|noted| {
            noted.device = Some(format!("device {client}"));
            noted.subject = Some(client.to_string());
        });
    }

    /// What it is called, where the path does not say it all.
    pub(crate) fn action(&self, action: &'static str) {
        self.noted(|noted| noted.action = Some(action));
    }

    /// What it is about, where the path does not say so.
    pub(crate) fn subject(&self, subject: impl Into<String>) {
        self.noted(|noted| noted.subject = Some(subject.into()));
    }

    /// A few words more; never a secret.
    pub(crate) fn detail(&self, detail: impl Into<String>) {
        self.noted(|noted| noted.detail = Some(detail.into()));
    }

    /// A token that is to be made, so that also who is cut off has left whose; it has an id once it is made.
    pub(crate) fn new_token(&self, want: &operator::CreateToken) {
        // What is no name may be anything, also a secret.
        if OperatorName::parse(&want.name).is_ok() {
            self.subject(&want.name);
        }
    }

    /// A token that was made or revoked.
    pub(crate) fn token(&self, token: &operator::Token) {
        self.subject(&token.id);
        let until = token.expires.as_ref().map_or(String::new(), |end| format!(", until {end}"));
        self.detail(format!("{} of {}{until}", token.role, token.name));
    }

    /// Sessions that were ended together.
    pub(crate) fn sessions(&self, ended: &operator::EndedSessions) {
        let operator::EndedSessions { name, ended } = ended;
        let sessions = if *ended == 1 { "session" } else { "sessions" };
        self.detail(format!("{ended} {sessions} of {name}"));
    }

    /// The Git commit that holds the change.
    pub(crate) fn commit(&self, commit: impl Into<String>) {
        self.noted(|noted| noted.commit = Some(commit.into()));
    }

    /// Stays out of the log, whatever comes of it: nothing was to be changed.
    pub(crate) fn leave_out(&self) {
        self.noted(|noted| noted.left_out = true);
    }

    /// Goes into the log although its method promises to change nothing.
    pub(crate) fn keep(&self) {
        self.noted(|noted| noted.kept = true);
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Note {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Note::of(&parts.extensions))
    }
}

/// Left in an answer that says no: what the problem is called, and its words.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    /// Also `done`, where nothing was left.
    pub(crate) name: String,
    pub(crate) detail: String,
}

impl Audit {
    pub(crate) fn new(fleet: Arc<Fleet>, clock: Clock) -> Self {
        Audit { fleet, clock, refusals: Arc::default() }
    }

    /// Puts the log around everything that this router answers.
    pub(crate) fn around(&self, router: Router, door: Door) -> Router {
        router.layer(from_fn_with_state((self.clone(), door), pass))
    }

    /// Tells of refusals that were only counted, until the server stops and then for the last time.
    pub(crate) async fn follow(self, stopping: Stopping) {
        loop {
            let stopped = tokio::select! {
                () = tokio::time::sleep(LEFT_OUT_EVERY) => false,
                () = stopping.wait() => true,
            };
            let now = self.clock.now();
            self.write_left_out(self.refusals.due(now, stopped)).await;
            if stopped {
                return;
            }
        }
    }

    async fn write_left_out(&self, left_out: Vec<LeftOut>) {
        for LeftOut { source, number } in left_out {
            let source = match source {
                Source::Of(address) => address.to_string(),
                Source::Others => "others".to_owned(),
            };
            let entry = Entry {
                actor: "server".to_owned(),
                way: "server".to_owned(),
                source,
                action: "refusal.counted".to_owned(),
                outcome: DONE.to_owned(),
                detail: format!("{number} more refusals were not written down one by one"),
                ..blank()
            };
            self.fleet.record_or_log(entry).await;
        }
    }

    /// What a request changes is kept with the change, until [`Audit::conclude`] has written its entry.
    fn begun(&self, asked: &Arc<Asked>, note: &Note) -> Begun {
        let (clock, asked, note) = (self.clock.clone(), Arc::clone(asked), note.clone());
        Begun::new(move || Entry { at: clock.now(), ..note.noted(|noted| asked.entry(noted)) })
    }

    async fn conclude(&self, asked: &Asked, begun: &Begun, note: &Note, answer: Refusal) {
        let entry = match begun.is_concluded() && answer.name == DONE {
            // What had to be in the log before it was done; that it failed then would be another entry.
            true => None,
            false => self.entry(asked, begun, note, answer).await,
        };
        self.fleet.conclude_or_log(begun, entry).await;
    }

    /// What goes into the log, if anything does.
    async fn entry(&self, asked: &Asked, begun: &Begun, note: &Note, answer: Refusal) -> Option<Entry> {
        let Refusal { name: outcome, detail: words } = answer;
        let refused = outcome != DONE;
        let wanted = note.noted(|noted| (noted.kept || asked.kept) && !noted.left_out);
        // Of a push to the registry only what can be seen afterwards is a change, but every refusal is one.
        if !(wanted || (refused && asked.door == Door::Registry)) {
            return None;
        }
        // Something may be done although the answer is no, or could not be given; that is never only counted.
        if refused && !begun.is_kept() {
            let source = asked.address.map_or(Source::Others, |address| Source::of(address.ip()));
            let (taken, left_out) = self.refusals.take(source, self.clock.now());
            self.write_left_out(left_out).await;
            if !taken {
                return None;
            }
        }
        let entry = note.noted(|noted| asked.entry(noted));
        let spoken = Some(line(&words)).filter(|_| SPOKEN.contains(&outcome.as_str()));
        let detail = if entry.detail.is_empty() { spoken.unwrap_or_default() } else { entry.detail };
        Some(Entry { outcome, detail, ..entry })
    }
}

/// What a request asks, read before it is handled.
struct Asked {
    door: Door,
    action: String,
    subject: String,
    address: Option<SocketAddr>,
    way: &'static str,
    /// Whether it goes into the log whatever comes of it.
    kept: bool,
}

impl Asked {
    fn of(request: &Request, door: Door) -> Asked {
        let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
        let (method, path) = (request.method(), request.uri().path());
        let unsafe_method = !method.is_safe();
        let (action, subject, kept) = match door {
            Door::Registry => match action::registry(method, path) {
                Some((action, subject)) => (action.to_owned(), subject, true),
                None => ("registry.push".to_owned(), String::new(), false),
            },
            Door::Git => {
                let action = if intent::is_push(request.uri()) { "intent.push" } else { "intent.fetch" };
                (action.to_owned(), "main".to_owned(), !is_look(request, door))
            }
            Door::DeviceGit => ("device.fetch".to_owned(), git::subject(path), false),
            Door::Identity => (action::identity(path).to_owned(), String::new(), unsafe_method),
            Door::Rest | Door::Page => {
                (action::action(method, route), action::subject(route, path), unsafe_method)
            }
        };
        let agent =
            request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let way = match door {
            Door::Page => "page",
            Door::Registry => "registry",
            Door::Git | Door::DeviceGit => "git",
            Door::Identity => "device",
            Door::Rest if agent.starts_with("margrave/") => "cli",
            Door::Rest => "rest",
        };
        let address =
            request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| *address);
        Asked { door, action, subject, address, way, kept }
    }

    /// As much as is known of it.
    fn entry(&self, noted: &Noted) -> Entry {
        let by = noted.by.as_ref();
        let actor = by.map(|holder| holder.actor.name.clone()).or_else(|| noted.device.clone());
        Entry {
            actor: actor.unwrap_or_else(unknown),
            role: by.map(|holder| holder.role.to_string()),
            token: by.map(|holder| holder.token.clone()),
            source: self.address.map_or(String::new(), |address| address.ip().to_canonical().to_string()),
            way: self.way.to_owned(),
            action: noted.action.map_or_else(|| self.action.clone(), str::to_owned),
            subject: line(noted.subject.as_deref().unwrap_or(&self.subject)),
            detail: line(noted.detail.as_deref().unwrap_or_default()),
            commit: noted.commit.clone(),
            ..blank()
        }
    }
}

/// Whether a request asks for no change. A fetch of Git's does not, although it is a POST, and of a device's repository there is nothing
/// else.
fn is_look(request: &Request, door: Door) -> bool {
    match door {
        Door::Git => request.method().is_safe() || !intent::is_push(request.uri()),
        Door::DeviceGit => true,
        Door::Rest | Door::Page | Door::Registry | Door::Identity => request.method().is_safe(),
    }
}

/// Of looks only refusals are of interest, and not those of the registry, whose clients ask first and prove then.
fn is_told_of_when_refused(door: Door) -> bool {
    match door {
        Door::Page | Door::Rest | Door::Git | Door::DeviceGit => true,
        Door::Registry | Door::Identity => false,
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

async fn pass(State((audit, door)): State<(Audit, Door)>, mut request: Request, next: Next) -> Response {
    let note = Note::default();
    request.extensions_mut().insert(note.clone());
    let is_look = is_look(&request, door);
    if is_look && !is_told_of_when_refused(door) {
        return next.run(request).await;
    }
    let asked = Arc::new(Asked::of(&request, door));
    let begun = audit.begun(&asked, &note);
    if is_look {
        // Without either nobody tried anything: that is how programs learn that they need one.
        let shows = request.headers().contains_key(AUTHORIZATION) || request.headers().contains_key(COOKIE);
        let response = begun.during(next.run(request)).await;
        match response.status() {
            StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => note.keep(),
            StatusCode::UNAUTHORIZED if shows => note.keep(),
            _ => {}
        }
        // Following a sign-in link is the one thing that a look does.
        audit.conclude(&asked, &begun, &note, answer(&response)).await;
        return response;
    }
    let handling = tokio::spawn(async move {
        let handled = noting(next.run(request));
        // Of what is never written down nothing has to be kept either.
        let is_kept = asked.kept || door != Door::Registry;
        let (response, commit) = if is_kept { begun.during(handled).await } else { handled.await };
        if let Some(commit) = commit {
            note.commit(commit);
        }
        let answer = answer(&response);
        audit.conclude(&asked, &begun, &note, answer).await;
        response
    });
    match handling.await {
        Ok(response) => response,
        Err(error) => {
            tracing::error!(%error, "a request could not be handled to its end");
            axum::response::IntoResponse::into_response(super::problem::Problem::internal())
        }
    }
}

/// What came of it, as the answer says, or its status.
fn answer(response: &Response) -> Refusal {
    let named = response.extensions().get::<Refusal>().cloned();
    named.unwrap_or_else(|| Refusal { name: outcome(response.status()).to_owned(), detail: String::new() })
}

/// What came of it, where the answer does not say so itself.
fn outcome(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "unauthorized",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::NOT_FOUND => "not-found",
        StatusCode::METHOD_NOT_ALLOWED => "no-such-method",
        StatusCode::CONFLICT => "conflict",
        StatusCode::UNPROCESSABLE_ENTITY => "invalid",
        StatusCode::TOO_MANY_REQUESTS => "too-many-requests",
        status if status.is_client_error() => "malformed",
        status if status.is_server_error() => "internal",
        _ => DONE,
    }
}
