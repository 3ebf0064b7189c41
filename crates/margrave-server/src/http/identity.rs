//! The server as an identity service: discovery, trust bundle, join, renew.
//!
//! Strangers come here, over HTTPS that they recognise by a pin (ID-160). The two documents are public; a
//! join costs a one-time token, a renewal the key of the previous SVID. Everything is checked before anything
//! is spent, so that a typing error never uses up a token. The certificates are made in `margrave-identity`,
//! the tokens live in the fleet.
//!
//! Nothing is counted by address: a whole plant may stand behind one. A right token or proof is always heard; only
//! the answer to a wrong token is slow.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HOST, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use margrave_core::chain::sentence;
use margrave_core::digest::Digest;
use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_identity::certificate::chain_from_pem;
use margrave_identity::csr::Csr;
use margrave_identity::proof::check_proof;
use margrave_wire::identity::{
    BUNDLE_PATH, DISCOVERY_PATH, Discovery, JOIN_PATH, JoinRequest, JoinResponse, RENEW_PATH, RenewRequest,
    RenewResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::audit::Note;
use super::problem::Problem;
use super::{BODY_TIME_MAX, PathPrefix, is_declared_larger};
use crate::config::authority;
use crate::fleet::{self, Clock, Fleet, Standing};
use crate::identity::Identity as Keys;

/// A token and a request of some hundred bytes, or a chain of a few certificates.
const BODY_BYTES_MAX: usize = 32 * 1024;

/// What the identity endpoints need.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) keys: Arc<Keys>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) clock: Clock,
    /// The host to name when a caller did not say by which one it came.
    pub(crate) host: String,
    pub(crate) web_port: u16,
    pub(crate) device_port: u16,
    pub(crate) device_prefix: Option<PathPrefix>,
    pub(crate) registry_address: String,
    pub(crate) guesses: Arc<Guesses>,
    pub(crate) joined: Arc<Joined>,
}

pub(crate) fn router(identity: Identity) -> Router {
    let no_such_method = || async { Problem::no_such_method() };
    Router::new()
        .route(DISCOVERY_PATH, get(discovery).fallback(no_such_method))
        .route(BUNDLE_PATH, get(bundle).fallback(no_such_method))
        .route(JOIN_PATH, post(join).fallback(no_such_method))
        .route(RENEW_PATH, post(renew).fallback(no_such_method))
        .with_state(identity)
}

/// ID-150, ID-151. The bundle is named on the very origin that was asked, which is all that a careful
/// client accepts (ID-156).
async fn discovery(State(identity): State<Identity>, headers: HeaderMap) -> Response {
    let document = Discovery {
        trust_domain: identity.keys.name.trust_domain.clone(),
        trust_bundle_uri: identity.bundle_uri(&headers),
    };
    public_json(&headers, &document)
}

/// ID-153, ID-154.
async fn bundle(State(identity): State<Identity>, headers: HeaderMap) -> Response {
    public_json(&headers, &identity.keys.bundle.current().to_wire())
}

/// A token and a CSR for an SVID and all that a device needs from now on.
async fn join(
    State(identity): State<Identity>,
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    note: Note,
    request: Request,
) -> Result<Response, Problem> {
    let headers = request.headers().clone();
    let JoinRequest { token, csr } = body(request).await?;
    let csr = read_csr(&csr)?;
    let client = match identity.joined.client_of(&token, &csr, identity.clock.now()) {
        Some(client) => client,
        None => {
            let client = match identity.fleet.redeem_join_token(&token).await {
                Ok(client) => client,
                Err(
                    error @ (fleet::Error::TokenUnknown
                    | fleet::Error::TokenUsed
                    | fleet::Error::TokenExpired),
                ) => {
                    identity.guesses.wrong().await?;
                    tracing::warn!(%address, %error, "a join was refused");
                    return Err(error.into());
                }
                Err(error) => return Err(error.into()),
            };
            identity.joined.remember(&token, &csr, client.clone(), identity.clock.now());
            client
        }
    };
    note.device(&client);
    // It may have been retired since it first asked with this token.
    identity.check_accepted(&client)?;
    let certificates = identity.issue(&client, &csr).await?;
    tracing::info!(%client, %address, "a device joined");
    Ok(secret_json(&JoinResponse {
        client_id: client,
        certificates,
        trust_bundle: identity.keys.bundle.current().to_wire(),
        trust_bundle_uri: Some(identity.bundle_uri(&headers)),
        device_url: identity.device_url(&headers),
        registry: Some(identity.registry_address.clone()),
        web_authority: Some(identity.keys.web_authority.certificate_pem()),
    }))
}

/// The next SVID for a client that still holds the key of its latest or previous one, expired or not.
async fn renew(
    State(identity): State<Identity>,
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    note: Note,
    request: Request,
) -> Result<Response, Problem> {
    let RenewRequest { csr, previous, proof } = body(request).await?;
    let csr = read_csr(&csr)?;
    let previous = chain_from_pem(&previous.concat()).map_err(|error| unprocessable("/previous", &error))?;
    let proof = STANDARD.decode(proof).map_err(|error| unprocessable("/proof", &error))?;
    let keys = &identity.keys;
    let checked =
        check_proof(&previous, &csr, &proof, identity.clock.now(), &keys.name, &keys.bundle.current());
    let peer = checked.map_err(|error| {
        tracing::warn!(%address, error = &error as &dyn std::error::Error, "a renewal was refused");
        Problem::not_allowed(format!("{error}; join again with a new token"))
    })?;
    let client = peer.name.client;
    note.device(&client);
    identity.check_accepted(&client)?;
    let serial = peer.serial.to_string();
    let known = identity.fleet.svid_serials(&client).await?;
    let lost = || identity.fleet.is_of_lost_time(&client, peer.not_after, keys.svid_lifetime);
    if !known.contains(&serial) && !lost().await? {
        tracing::warn!(%client, %address, %serial, "a renewal came with an SVID that was replaced before");
        return Err(Problem::not_allowed(format!(
            "this certificate of {client} was replaced by newer ones; renew with the latest, or join again with a new token"
        )));
    }
    if known.first() != Some(&serial) {
        // It never got our last answer, or it would use that certificate. The one it holds must stay the
        // previous one, or a second lost answer would leave it without any that counts.
        identity.fleet.record_svid(&client, serial, peer.not_after).await?;
    }
    let certificates = identity.issue(&client, &csr).await?;
    // Every device does so every few hours, and nothing is another by it.
    note.leave_out();
    tracing::info!(%client, %address, "an SVID was renewed");
    Ok(secret_json(&RenewResponse { certificates, trust_bundle: keys.bundle.current().to_wire() }))
}

impl Identity {
    fn check_accepted(&self, client: &ClientId) -> Result<(), Problem> {
        if self.fleet.standing(client) == Some(Standing::Accepted) {
            return Ok(());
        }
        Err(Problem::not_allowed(format!("client {client} is not accepted by this server any more")))
    }

    async fn issue(&self, client: &ClientId, csr: &Csr) -> Result<Vec<String>, Problem> {
        let keys = &self.keys;
        let issued = keys
            .authorities
            .issuing()
            .issue_client(&keys.name.wfm, client, csr, self.clock.now(), keys.svid_lifetime)
            .map_err(|error| {
                tracing::error!(%client, error = &error as &dyn std::error::Error, "no SVID could be issued");
                Problem::internal()
            })?;
        self.fleet.record_svid(client, issued.serial.to_string(), issued.not_after).await?;
        Ok(issued.pem())
    }

    /// The host by which the caller reached us. A name that works for it is better than the one we would
    /// suggest, and it goes back to nobody but the caller.
    fn host_of(&self, headers: &HeaderMap) -> String {
        let given = headers.get(HOST).and_then(|value| value.to_str().ok()).and_then(host_part);
        given.unwrap_or(&self.host).to_owned()
    }

    fn device_url(&self, headers: &HeaderMap) -> String {
        let prefix = self.device_prefix.as_ref().map(PathPrefix::to_string).unwrap_or_default();
        format!("https://{}{prefix}", authority(&self.host_of(headers), self.device_port))
    }

    fn bundle_uri(&self, headers: &HeaderMap) -> String {
        let given = headers.get(HOST).and_then(|value| value.to_str().ok());
        match given.filter(|given| host_part(given).is_some()) {
            Some(given) => format!("https://{given}{BUNDLE_PATH}"),
            None => format!("https://{}{BUNDLE_PATH}", authority(&self.host, self.web_port)),
        }
    }
}

/// The host in `host`, `host:port`, `[v6]` or `[v6]:port`; `None` for anything else.
pub(super) fn host_part(text: &str) -> Option<&str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let host_fits = !host.is_empty()
        && host.len() <= 253
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':'));
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok());
    (host_fits && port_fits).then_some(host)
}

fn read_csr(text: &str) -> Result<Csr, Problem> {
    Csr::from_pem(text).map_err(|error| unprocessable("/csr", &error))
}

fn unprocessable(place: &str, error: &dyn std::error::Error) -> Problem {
    Problem::from(fleet::Error::invalid(place, "ID-175", sentence(error)))
}

/// Reads a bounded body in bounded time.
async fn body<T: DeserializeOwned>(request: Request<Body>) -> Result<T, Problem> {
    if is_declared_larger(request.body(), BODY_BYTES_MAX) {
        return Err(Problem::too_large(BODY_BYTES_MAX));
    }
    let read = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let bytes = match tokio::time::timeout(BODY_TIME_MAX, read).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(Problem::too_large(BODY_BYTES_MAX)),
        Ok(Err(_)) => return Err(Problem::malformed("the body did not arrive whole; send all of it")),
        Err(_) => return Err(Problem::too_slow()),
    };
    serde_json::from_slice(&bytes)
        .map_err(|error| Problem::malformed(format!("the body is not as expected: {error}")))
}

/// JSON that everybody may have, with its digest as ETag (ID-154).
fn public_json(headers: &HeaderMap, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("documents of ours always serialise");
    let tag = format!("\"{}\"", Digest::of(&body));
    let held = headers.get_all(IF_NONE_MATCH).into_iter().filter_map(|line| line.to_str().ok()).any(|line| {
        line.split(',')
            .map(str::trim)
            .any(|held| held == "*" || held.strip_prefix("W/").unwrap_or(held) == tag)
    });
    let tag = HeaderValue::from_str(&tag).expect("a digest is plain text");
    // Looking again is the point of a trust bundle; a cache may save bytes, never the look (ID-141).
    let always = [(ETAG, tag), (CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    if held {
        (StatusCode::NOT_MODIFIED, always).into_response()
    } else {
        (always, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
    }
}

fn secret_json(value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("answers of ours always serialise");
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, body).into_response()
}

/// How long the answer to a wrong token takes.
const GUESS_TIME: Duration = Duration::from_secs(1);
/// Wrong tokens that wait for their answer together; more are turned away at once. So the whole world tries at
/// most this many a second, and a token has 256 random bits.
const GUESSES_MAX: usize = 32;

/// Slows down whoever tries tokens. They cannot be guessed anyway; this keeps the trying from costing us.
pub(crate) struct Guesses {
    turns: Semaphore,
    each: Duration,
}

impl Default for Guesses {
    fn default() -> Self {
        Guesses { turns: Semaphore::new(GUESSES_MAX), each: GUESS_TIME }
    }
}

impl Guesses {
    /// Returns when a wrong token may be told so.
    async fn wrong(&self) -> Result<(), Problem> {
        let Ok(_turn) = self.turns.try_acquire() else {
            let detail = "too many wrong tokens are being tried at this moment; wait and try again";
            return Err(Problem::too_many_requests(detail, GUESS_TIME));
        };
        tokio::time::sleep(self.each).await;
        Ok(())
    }
}

/// How long the answer to a join may be asked for again.
const JOINED_FOR: Duration = Duration::from_secs(15 * 60);
const JOINED_MAX: usize = 4_096;

/// Joins whose answer may have been lost on the way. The same token with the same key is the same device
/// asking again, and it would be stranded if its token counted as used; with any other key it is used.
#[derive(Default)]
pub(crate) struct Joined {
    /// By digest of token and key.
    recent: Mutex<HashMap<Digest, (ClientId, Moment)>>,
}

impl Joined {
    fn client_of(&self, token: &str, csr: &Csr, now: Moment) -> Option<ClientId> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let (client, until) = recent.get(&join_digest(token, csr))?;
        (now < *until).then(|| client.clone())
    }

    fn remember(&self, token: &str, csr: &Csr, client: ClientId, now: Moment) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|_, (_, until)| *until > now);
        if recent.len() < JOINED_MAX {
            recent.insert(join_digest(token, csr), (client, now.after(JOINED_FOR)));
        }
    }
}

fn join_digest(token: &str, csr: &Csr) -> Digest {
    let token = Digest::of(token.as_bytes());
    Digest::of(&[token.as_bytes().as_slice(), csr.key().spki()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wrong_tokens_are_answered_slowly_and_only_so_many_at_once() {
        let guesses = Arc::new(Guesses { each: Duration::from_secs(600), ..Guesses::default() });
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..GUESSES_MAX {
            let guesses = Arc::clone(&guesses);
            waiting.spawn(async move { guesses.wrong().await });
        }
        let all_wait = async {
            while guesses.turns.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all_wait).await.unwrap();
        let refused = guesses.wrong().await.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.headers().contains_key(http::header::RETRY_AFTER));
        // Whoever gives up makes room.
        waiting.shutdown().await;
        assert_eq!(guesses.turns.available_permits(), GUESSES_MAX);
        let quick = Guesses { each: Duration::from_millis(1), ..Guesses::default() };
        assert!(quick.wrong().await.is_ok());
    }

    #[test]
    fn only_a_host_is_taken_for_a_host() {
        for (text, host) in [
            ("plant.example", "plant.example"),
            ("plant.example:8443", "plant.example"),
            ("127.0.0.1:1", "127.0.0.1"),
            ("[::1]:8443", "::1"),
            ("[2001:db8::1]", "2001:db8::1"),
        ] {
            assert_eq!(host_part(text), Some(host));
        }
        for bad in
            ["", ":80", "a b", "a/b", "a@b", "a:b", "a:99999", "::1", "[::1", "[x]:1", "[::1]x", "a\"b"]
        {
            assert_eq!(host_part(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_lost_answer_can_be_asked_for_again_with_the_same_key_only() {
        use margrave_identity::key::PrivateKey;
        let csr = |key: &PrivateKey| Csr::make(key).unwrap();
        let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let joined = Joined::default();
        let client: ClientId = "line-1".parse().unwrap();
        let now = Moment(1_000_000);
        joined.remember("token", &csr(&key), client.clone(), now);
        assert_eq!(joined.client_of("token", &csr(&key), now), Some(client));
        assert_eq!(joined.client_of("token", &csr(&other), now), None);
        assert_eq!(joined.client_of("other", &csr(&key), now), None);
        assert_eq!(joined.client_of("token", &csr(&key), now.after(JOINED_FOR)), None);
    }
}
