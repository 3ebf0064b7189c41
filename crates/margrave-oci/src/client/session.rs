//! Requests to one repository's registry: connection, credentials, tokens, redirects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use margrave_http::{
    Answer, Client as Http, Limits, Origin, Request, Response, Scheme, StatusCode, Trust, header,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::challenge::{self, Challenge};
use super::error::{ClientError, told};
use super::hosts::{Credentials, Endpoint, Hosts, Tls, system_roots, system_roots_and};
use crate::reference::{Host, RepositoryName};

/// A blob may be somewhere else, and that elsewhere again; not for ever.
const REDIRECTS_MAX: usize = 5;
/// Error bodies and token answers are small.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;
/// What the token specification says when a registry does not.
const TOKEN_LIFE: Duration = Duration::from_secs(60);
/// A token is not used in its last seconds: it would die on the way.
const TOKEN_MARGIN: Duration = Duration::from_secs(10);
/// So many repositories' tokens are remembered; the fleet of one server's catalog is far below.
const TOKENS_MAX: usize = 1000;

/// What a token must allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Intent {
    Pull,
    Push,
}

/// What all sessions share.
pub(crate) struct Shared {
    pub(crate) hosts: Hosts,
    limits: Limits,
    connections: Mutex<HashMap<Host, Http>>,
    authorizations: Mutex<HashMap<Purpose, Authorization>>,
}

/// What an authorization is for; without a repository, for the registry as such.
type Purpose = (Host, Option<RepositoryName>, Intent);

#[derive(Clone)]
struct Authorization {
    header: String,
    until: Option<Instant>,
}

impl Shared {
    pub(crate) fn new(hosts: Hosts, limits: Limits) -> Self {
        Shared { hosts, limits, connections: Mutex::default(), authorizations: Mutex::default() }
    }

    async fn connect(&self, endpoint: &Endpoint, what: &str) -> Result<Http, ClientError> {
        let trust = match &endpoint.tls {
            Tls::SystemRoots => Trust::Tls(system_roots().await?),
            Tls::SystemRootsAnd(pem) => Trust::Tls(system_roots_and(pem).await?),
            Tls::Given(config) => Trust::Tls(config.clone()),
            Tls::PlainLoopback => Trust::PlainLoopback,
        };
        Http::new(trust, endpoint.origin.clone(), self.limits.clone()).map_err(network(what))
    }

    async fn connection(&self, host: &Host, endpoint: &Endpoint, what: &str) -> Result<Http, ClientError> {
        if let Some(known) = self.connections.lock().unwrap_or_else(PoisonError::into_inner).get(host) {
            return Ok(known.clone());
        }
        let connection = self.connect(endpoint, what).await?;
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(connections.entry(host.clone()).or_insert(connection).clone())
    }
}

pub(crate) fn network(what: &str) -> impl FnOnce(margrave_http::Error) -> ClientError {
    let what = what.to_owned();
    move |source| match source {
        margrave_http::Error::TooLarge { limit } => ClientError::TooLarge { what, max: limit },
        source => ClientError::Network { what, source },
    }
}

/// One purpose in one repository, or at the registry as such.
pub(crate) struct Session {
    shared: Arc<Shared>,
    host: Host,
    name: Option<RepositoryName>,
    intent: Intent,
    endpoint: Endpoint,
    http: Http,
}

impl Session {
    pub(crate) async fn open(
        shared: &Arc<Shared>,
        host: &Host,
        name: Option<&RepositoryName>,
        intent: Intent,
    ) -> Result<Session, ClientError> {
        let endpoint = shared.hosts.endpoint(host)?;
        let http = shared.connection(host, &endpoint, &format!("the registry {host}")).await?;
        Ok(Session {
            shared: shared.clone(),
            host: host.clone(),
            name: name.cloned(),
            intent,
            endpoint,
            http,
        })
    }

    /// The path of something of this repository.
    pub(crate) fn path(&self, rest: &str) -> String {
        match &self.name {
            Some(name) => format!("/v2/{name}/{rest}"),
            None => format!("/v2/{rest}"),
        }
    }

    /// Sends a request that can be sent again, authenticating when asked to, and reads the answer whole.
    pub(crate) async fn send(
        &self,
        what: &str,
        request: impl Fn() -> Request,
    ) -> Result<Response, ClientError> {
        let answer = self.open_answer(what, request).await?;
        answer.whole().await.map_err(network(what))
    }

    /// As [`Session::send`], but the body is still coming.
    pub(crate) async fn open_answer(
        &self,
        what: &str,
        request: impl Fn() -> Request,
    ) -> Result<Answer, ClientError> {
        let held = self.authorization();
        let answer = self.http.open(authorized(request(), held.as_deref())).await.map_err(network(what))?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let values: Vec<String> = answer
            .headers
            .get_all(header::WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok().map(str::to_owned))
            .collect();
        // Reading the rest of the refusal keeps the connection usable; if that fails, the next request says so.
        drop(answer.whole().await);
        let offered = challenge::parse(values.iter().map(String::as_str));
        let Some(fresh) = self.authorize(what, &offered).await? else {
            return Err(ClientError::Unauthorized(what.to_owned()));
        };
        if held.as_deref() == Some(fresh.header.as_str()) {
            self.forget();
            return Err(ClientError::Unauthorized(what.to_owned()));
        }
        let answer =
            self.http.open(authorized(request(), Some(&fresh.header))).await.map_err(network(what))?;
        if answer.status == StatusCode::UNAUTHORIZED {
            return Err(ClientError::Unauthorized(what.to_owned()));
        }
        self.remember(fresh);
        Ok(answer)
    }

    /// Sends a request whose content can be read only once; an earlier request has found out how to authenticate.
    pub(crate) async fn send_once(&self, what: &str, request: Request) -> Result<Response, ClientError> {
        let held = self.authorization();
        let response = self.http.send(authorized(request, held.as_deref())).await.map_err(network(what))?;
        if response.status == StatusCode::UNAUTHORIZED {
            self.forget();
            return Err(ClientError::Unauthorized(what.to_owned()));
        }
        Ok(response)
    }

    /// Follows redirects to where the content is. Credentials stay with the registry.
    pub(crate) async fn follow(
        &self,
        what: &str,
        mut answer: Answer,
        request: impl Fn(&str) -> Request,
    ) -> Result<Answer, ClientError> {
        let mut origin = self.endpoint.origin.clone();
        for _ in 0..REDIRECTS_MAX {
            if !answer.status.is_redirection() || answer.status == StatusCode::NOT_MODIFIED {
                return Ok(answer);
            }
            let location = answer.header(header::LOCATION).map(str::to_owned);
            drop(answer.whole().await);
            let location = location.ok_or_else(|| protocol(what, "a redirect without a location"))?;
            let (target, path) = resolve(&origin, &location).map_err(|why| protocol(what, &why))?;
            answer = if target == self.endpoint.origin {
                self.open_answer(what, || request(&path)).await?
            } else {
                let endpoint = self.shared.hosts.elsewhere(&target, &self.endpoint);
                let http = self.shared.connect(&endpoint, what).await?;
                http.open(request(&path)).await.map_err(network(what))?
            };
            origin = target;
        }
        if answer.status.is_redirection() { Err(protocol(what, "too many redirects")) } else { Ok(answer) }
    }

    /// A location the registry gave for an upload, as a path at this registry.
    ///
    /// Registries behind a proxy often do not know that they are reached by HTTPS, so only the authority is
    /// compared. Content is never sent to another host.
    pub(crate) fn own_path(&self, what: &str, location: &str) -> Result<String, ClientError> {
        let own = &self.endpoint.origin;
        let path = if location.starts_with('/') && !location.starts_with("//") {
            location.to_owned()
        } else {
            let (origin, path) =
                Origin::split(location).map_err(|error| protocol(what, &error.to_string()))?;
            // The port may be the usual one of the wrong scheme; the host is what matters.
            if origin.host() != own.host() {
                return Err(protocol(what, "it wants the content sent to another host"));
            }
            path
        };
        let stripped = path.strip_prefix(own.prefix()).filter(|rest| rest.starts_with('/'));
        Ok(stripped.unwrap_or(&path).to_owned())
    }

    fn authorization(&self) -> Option<String> {
        let key = (self.host.clone(), self.name.clone(), self.intent);
        let held = self.shared.authorizations.lock().unwrap_or_else(PoisonError::into_inner);
        let held = held.get(&key)?;
        held.until.is_none_or(|until| Instant::now() < until).then(|| held.header.clone())
    }

    fn remember(&self, authorization: Authorization) {
        let mut held = self.shared.authorizations.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= TOKENS_MAX {
            held.clear();
        }
        held.insert((self.host.clone(), self.name.clone(), self.intent), authorization);
    }

    fn forget(&self) {
        let key = (self.host.clone(), self.name.clone(), self.intent);
        self.shared.authorizations.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    /// Answers the first challenge that we can.
    async fn authorize(
        &self,
        what: &str,
        offered: &[Challenge],
    ) -> Result<Option<Authorization>, ClientError> {
        for challenge in offered {
            match (challenge, &self.endpoint.credentials) {
                (Challenge::Basic, Credentials::Basic { user, password }) => {
                    return Ok(Some(Authorization { header: basic(user, password), until: None }));
                }
                (Challenge::Basic, Credentials::Anonymous | Credentials::Token(_)) => {}
                (Challenge::Bearer { .. }, Credentials::Token(token)) => {
                    return Ok(Some(Authorization { header: format!("Bearer {token}"), until: None }));
                }
                (Challenge::Bearer { realm, service }, credentials) => {
                    return self.token(what, realm, service.as_deref(), credentials).await.map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Fetches a token where the registry says (PK-050).
    async fn token(
        &self,
        what: &str,
        realm: &str,
        service: Option<&str>,
        credentials: &Credentials,
    ) -> Result<Authorization, ClientError> {
        let (origin, path) = Origin::split(realm).map_err(|error| protocol(what, &error.to_string()))?;
        if (self.endpoint.origin.scheme(), origin.scheme()) == (Scheme::Https, Scheme::Http) {
            return Err(protocol(
                what,
                "its token service is plain http, and credentials are not sent there",
            ));
        }
        // Who answers without TLS may be anybody, and must not choose who is told our password.
        if *credentials != Credentials::Anonymous
            && self.endpoint.origin.scheme() == Scheme::Http
            && !origin.is_loopback()
        {
            return Err(protocol(
                what,
                "it is not spoken to by TLS and wants credentials sent to another machine",
            ));
        }
        let actions = match self.intent {
            Intent::Pull => "pull",
            Intent::Push => "pull,push",
        };
        let mut query = Vec::new();
        if let Some(name) = &self.name {
            query.push(("scope", format!("repository:{name}:{actions}")));
        }
        query.extend(service.map(|service| ("service", service.to_owned())));
        let mut path = path;
        for (key, value) in query {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(&format!("{key}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)));
        }
        let http = if origin == self.endpoint.origin {
            self.http.clone()
        } else {
            self.shared.connect(&self.shared.hosts.elsewhere(&origin, &self.endpoint), what).await?
        };
        let mut request = Request::get(path).body_max(ANSWER_BYTES_MAX);
        if let Credentials::Basic { user, password } = credentials {
            request = request.secret_header(header::AUTHORIZATION, basic(user, password));
        }
        let asked = Instant::now();
        let response = http.send(request).await.map_err(network(what))?;
        match response.status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(ClientError::Unauthorized(what.to_owned()));
            }
            _ => return Err(refused(what, &response)),
        }
        #[derive(serde::Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
            expires_in: Option<u64>,
        }
        let token: Token =
            response.json().map_err(|_| protocol(what, "its token service did not answer with a token"))?;
        let life =
            token.expires_in.map_or(TOKEN_LIFE, Duration::from_secs).min(Duration::from_secs(24 * 60 * 60));
        let token = token
            .token
            .or(token.access_token)
            .filter(|token| !token.is_empty())
            .ok_or_else(|| protocol(what, "its token service did not answer with a token"))?;
        Ok(Authorization {
            header: format!("Bearer {token}"),
            until: Some(asked + life.saturating_sub(TOKEN_MARGIN)),
        })
    }
}

fn authorized(request: Request, header: Option<&str>) -> Request {
    match header {
        Some(value) => request.secret_header(header::AUTHORIZATION, value),
        None => request,
    }
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
}

pub(crate) fn protocol(what: &str, why: &str) -> ClientError {
    ClientError::Protocol { what: what.to_owned(), why: why.to_owned() }
}

/// The error that a status stands for.
pub(crate) fn refused(what: &str, response: &Response) -> ClientError {
    let (what, told) = (what.to_owned(), told(&response.body));
    match response.status {
        StatusCode::NOT_FOUND => ClientError::NotFound(what),
        StatusCode::UNAUTHORIZED => ClientError::Unauthorized(what),
        StatusCode::FORBIDDEN => ClientError::Denied { what, told },
        status if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
            ClientError::Unavailable { what, status, told, retry_after: response.retry_after() }
        }
        status => ClientError::Refused { what, status, told },
    }
}

/// Where a redirect leads: an absolute address, or a path at the same origin.
fn resolve(from: &Origin, location: &str) -> Result<(Origin, String), String> {
    // What is behind the number sign is for browsers.
    let location = location.split('#').next().unwrap_or(location);
    if location.starts_with('/') && !location.starts_with("//") {
        let bare = Origin::split(&from.to_string()).map_err(|error| error.to_string())?.0;
        // A redirect names the whole path, so a prefix of ours is already in it.
        return Ok(match location.strip_prefix(from.prefix()).filter(|rest| rest.starts_with('/')) {
            Some(rest) => (from.clone(), rest.to_owned()),
            None => (bare, location.to_owned()),
        });
    }
    let (origin, path) = Origin::split(location).map_err(|error| error.to_string())?;
    if origin.scheme() != from.scheme() && from.scheme() == Scheme::Https {
        return Err("it leads from https to plain http".to_owned());
    }
    Ok((origin, path))
}
