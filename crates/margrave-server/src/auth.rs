//! Which operator is asking, and in which role: bearer token, Basic password, or the page's session cookie.
//!
//! Owns how credentials are read from a request, what a handler asks of its caller ([`Viewer`], [`Operator`],
//! [`Admin`]), the session cookie, and the single-use sign-in codes.
//! It does not own tokens and sessions themselves; the fleet keeps those, hashed. Devices never come
//! this way, they are known by their certificate.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand;
use axum::extract::{ConnectInfo, FromRef, FromRequestParts};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderValue};
use margrave_core::access::Role;
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_registry::Credentials;

use crate::fleet::{self, Actor, Clock, Fleet, Holder, Refused};
use crate::guessing::{Guessing, Source, TooMany};
use crate::http::audit::Note;
use crate::http::problem::Problem;
use crate::http::{App, Arrival};

/// The page's session cookie where it travels by TLS. By its name browsers take it only over TLS, for this very host and
/// all paths of it, so that nobody else on the network or in the domain can put one there.
const COOKIE_SECURE: &str = "__Host-margrave_session";
/// The same where the request does not leave this machine, in plain HTTP, for which there are no such names. Cookies are
/// shared between the ports of a host, so the name is ours.
const COOKIE_LOCAL: &str = "margrave_session";

/// Longer than any token of ours; nothing longer is hashed and looked up.
const TOKEN_LENGTH_MAX: usize = 512;

/// Somebody who may look at everything but secrets. Like the other two, as an extractor it answers 401 with a challenge
/// when nobody is signed in, and 403 when the role does not suffice or another site made the browser send its cookie.
#[derive(Debug, Clone)]
pub struct Viewer(pub Actor);

/// Somebody who may change what should run and what is known of devices.
#[derive(Debug, Clone)]
pub struct Operator(pub Actor);

/// Somebody who may also look after tokens, the authority, registries, settings and backups.
#[derive(Debug, Clone)]
pub struct Admin(pub Actor);

/// What a handler asks for is what its caller must be: there is no way to an actor but through one of these.
macro_rules! admits {
    ($extractor:ident, $role:expr) => {
        impl<S> FromRequestParts<S> for $extractor
        where
            App: FromRef<S>,
            S: Send + Sync,
        {
            type Rejection = Response;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
                let app = App::from_ref(state);
                match admit(&app, parts, $role).await {
                    Ok(holder) => Ok($extractor(holder.actor)),
                    Err(unidentified) => Err(unidentified.respond(parts)),
                }
            }
        }
    };
}

admits!(Viewer, Role::Viewer);
admits!(Operator, Role::Operator);
admits!(Admin, Role::Admin);

/// For what its holder follows: ends when the token does.
#[derive(Debug, Clone)]
pub(crate) struct Following(pub(crate) Holder);

impl<S> FromRequestParts<S> for Following
where
    App: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let admitted = admit(&App::from_ref(state), parts, Role::Viewer).await;
        admitted.map(Following).map_err(|unidentified| unidentified.respond(parts))
    }
}

async fn admit(app: &App, parts: &Parts, needed: Role) -> Result<Holder, Unidentified> {
    let holder = identify(app, parts).await?;
    Note::of(&parts.extensions).by(&holder);
    if !holder.role.allows(needed) {
        return Err(Unidentified::RoleNeeded { needed, has: holder.role });
    }
    Ok(holder)
}

/// Why no operator could be made out, or not one who may.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unidentified {
    #[error("no token was given; send it as \"Authorization: Bearer TOKEN\", or sign in to the page")]
    Missing,
    #[error("the token or session is not known; sign in again, or ask for a new token")]
    Unknown,
    #[error("this token has expired; ask an admin for a new one")]
    Expired,
    #[error("this token was revoked; ask an admin for a new one")]
    Revoked,
    #[error("too many wrong tokens are being tried at this moment; wait and try again")]
    TooMany,
    #[error("the browser sent this request for another site; open the page itself and try there")]
    OtherSite,
    #[error("{}", role_needed(*.needed, *.has))]
    RoleNeeded { needed: Role, has: Role },
}

/// What somebody is told whose role does not suffice.
pub(crate) fn role_needed(needed: Role, has: Role) -> String {
    has.too_little(needed)
}

impl From<Refused> for Unidentified {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Unknown => Unidentified::Unknown,
            Refused::Expired => Unidentified::Expired,
            Refused::Revoked => Unidentified::Revoked,
        }
    }
}

impl Unidentified {
    fn respond(self, request: &Parts) -> Response {
        let (path, detail) = (request.uri.path(), self.to_string());
        let problem = match self {
            Unidentified::OtherSite => Problem::not_allowed(detail),
            Unidentified::RoleNeeded { .. } => Problem::role_needed(detail),
            Unidentified::TooMany => Problem::too_many_requests(detail, Duration::ZERO),
            Unidentified::Missing | Unidentified::Unknown | Unidentified::Expired | Unidentified::Revoked => {
                let mut response = Problem::unauthorized(detail).at(path).into_response();
                let challenge = HeaderValue::from_static("Bearer realm=\"margrave\"");
                response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
                return response;
            }
        };
        problem.at(path).into_response()
    }
}

/// Who is asking. An `Authorization` header counts before a cookie, and a wrong one is never papered over
/// by a good cookie.
async fn identify(app: &App, request: &Parts) -> Result<Holder, Unidentified> {
    if let Some(token) = token(&request.headers) {
        return match token {
            Some(token) => by_token(&app.fleet, &app.guessing, &token, &request.extensions).await,
            None => Err(Unidentified::Unknown),
        };
    }
    let session = session(&request.headers, arrival(&request.extensions)).ok_or(Unidentified::Missing)?;
    if !request.method.is_safe() && is_cross_site(&request.headers) {
        return Err(Unidentified::OtherSite);
    }
    app.fleet.session(&session).await.ok_or(Unidentified::Unknown)
}

/// Whose token it is. The answer to one that was never ours takes its time; nobody waits for a right one, or for one
/// that was right once.
pub(crate) async fn by_token(
    fleet: &Fleet,
    guessing: &Guessing,
    token: &str,
    extensions: &Extensions,
) -> Result<Holder, Unidentified> {
    match fleet.operator_by_token(token).await {
        Ok(holder) => Ok(holder),
        Err(Refused::Unknown) => {
            guessing.wrong(source(extensions)).await.map_err(|TooMany| Unidentified::TooMany)?;
            Err(Unidentified::Unknown)
        }
        Err(refused) => Err(refused.into()),
    }
}

/// On whose account a wrong token goes.
pub(crate) fn source(extensions: &Extensions) -> Source {
    let address = extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip());
    address.map_or(Source::Others, Source::of)
}

/// How the request reached us; where nobody says so, the stricter rules hold.
pub(crate) fn arrival(extensions: &Extensions) -> Arrival {
    extensions.get::<Arrival>().copied().unwrap_or(Arrival::Web)
}

/// The token of an `Authorization` header: `Bearer TOKEN`, or `Basic` with the token as password, which is
/// all that container tools can send. The outer `None` is no header, the inner one is an unusable header.
pub(crate) fn token(headers: &HeaderMap) -> Option<Option<String>> {
    let value = headers.get(AUTHORIZATION)?;
    let read = || {
        let (scheme, credentials) = value.to_str().ok()?.split_once(' ')?;
        let credentials = credentials.trim();
        let token = if scheme.eq_ignore_ascii_case("bearer") {
            credentials.to_owned()
        } else if scheme.eq_ignore_ascii_case("basic") {
            Credentials::of(headers)?.password
        } else {
            return None;
        };
        (!token.is_empty() && token.len() <= TOKEN_LENGTH_MAX).then_some(token)
    };
    Some(read())
}

/// The user name of a `Basic` header.
pub(crate) fn basic_user(headers: &HeaderMap) -> Option<String> {
    Credentials::of(headers).map(|credentials| credentials.user)
}

/// The session id in the request's cookies.
pub(crate) fn session(headers: &HeaderMap, arrival: Arrival) -> Option<String> {
    let cookies = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    cookies.flat_map(|line| line.split(';')).find_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        let usable = !value.is_empty() && value.len() <= TOKEN_LENGTH_MAX;
        (name == cookie_name(arrival) && usable).then(|| value.to_owned())
    })
}

/// The `Set-Cookie` value that begins a session. Scripts cannot read it, other sites cannot make a browser
/// send it with a form, and over HTTPS it never travels in the clear.
pub(crate) fn session_cookie(session: &str, arrival: Arrival) -> HeaderValue {
    cookie(session, fleet::SESSION_LIFETIME, arrival)
}

/// The `Set-Cookie` value that ends a session in the browser.
pub(crate) fn session_cookie_end(arrival: Arrival) -> HeaderValue {
    cookie("", Duration::ZERO, arrival)
}

fn cookie_name(arrival: Arrival) -> &'static str {
    if arrival == Arrival::Local { COOKIE_LOCAL } else { COOKIE_SECURE }
}

fn cookie(value: &str, age: Duration, arrival: Arrival) -> HeaderValue {
    // Not every browser sends a Secure cookie to http://127.0.0.1, and that listener never leaves the machine.
    let secure = if arrival == Arrival::Local { "" } else { "; Secure" };
    let text = format!(
        "{}={value}; Path=/; Max-Age={}; HttpOnly; SameSite=Lax{secure}",
        cookie_name(arrival),
        age.as_secs()
    );
    HeaderValue::from_str(&text).expect("a session id consists of letters and digits")
}

/// Whether a browser says that this request was made by another site. A client that says nothing is not a
/// browser of this decade, and the cookie's SameSite keeps older ones out.
pub(crate) fn is_cross_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = text("sec-fetch-site") {
        return !matches!(site, "same-origin" | "none");
    }
    match headers.get(ORIGIN) {
        None => false,
        Some(origin) => {
            let origin =
                origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
            origin.is_none() || origin != text(HOST.as_str())
        }
    }
}

/// Whether a browser says that this request was made by a page of ours; one that says nothing has not.
pub(crate) fn is_same_origin(headers: &HeaderMap) -> bool {
    let said = headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin");
    (said || headers.contains_key(ORIGIN)) && !is_cross_site(headers)
}

/// How long a sign-in link may be used: long enough to be copied from a terminal.
const CODE_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// More links than one person opens; the oldest gives way.
const CODE_COUNT_MAX: usize = 64;

/// Single-use codes that turn into a page session: `server.sign_in_link()` makes one, the page's
/// `/welcome/{code}` spends it. In memory only: after a restart a new link is asked for.
pub struct SignInCodes {
    clock: Clock,
    /// By the code's digest, so that neither a dump nor the time a look-up takes tells a code.
    codes: Mutex<HashMap<Digest, (String, Moment)>>,
}

impl SignInCodes {
    pub fn new(clock: Clock) -> Self {
        SignInCodes { clock, codes: Mutex::default() }
    }

    /// A code for the holder of the token with this id.
    pub fn issue(&self, token: &str) -> String {
        let code = secret();
        let now = self.clock.now();
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|_, (_, expires)| *expires > now);
        if codes.len() >= CODE_COUNT_MAX {
            let oldest = codes.iter().min_by_key(|(_, (_, expires))| *expires).map(|(digest, _)| *digest);
            oldest.map(|digest| codes.remove(&digest));
        }
        codes.insert(Digest::of(code.as_bytes()), (token.to_owned(), now.after(CODE_LIFETIME)));
        code
    }

    /// The id of the token that the code was made for, once.
    pub fn redeem(&self, code: &str) -> Option<String> {
        let now = self.clock.now();
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, expires) = codes.remove(&Digest::of(code.as_bytes()))?;
        (now < expires).then_some(token)
    }
}

/// 256 random bits as text that can stand in a URL.
pub(crate) fn secret() -> String {
    let mut bytes = [0u8; 32];
    rand::fill(&mut bytes).expect("the system gives random bytes, or nothing we do is safe");
    URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_token_is_read_from_bearer_and_basic() {
        let check = |value: &str| token(&headers(&[("authorization", value)]));
        assert_eq!(check("Bearer abc"), Some(Some("abc".to_owned())));
        assert_eq!(check("bearer   abc "), Some(Some("abc".to_owned())));
        // "user:a:b"
        assert_eq!(check("Basic dXNlcjphOmI="), Some(Some("a:b".to_owned())));
        assert_eq!(basic_user(&headers(&[("authorization", "Basic dXNlcjphOmI=")])).as_deref(), Some("user"));
        for unusable in ["Bearer", "Bearer ", "Basic !!", "Basic dXNlcg==", "Digest abc", "abc"] {
            assert_eq!(check(unusable), Some(None), "{unusable}");
        }
        assert_eq!(check(&format!("Bearer {}", "x".repeat(TOKEN_LENGTH_MAX + 1))), Some(None));
        assert_eq!(token(&HeaderMap::new()), None);
    }

    #[test]
    fn the_session_is_found_among_other_cookies() {
        let check = |lines: &[(&str, &str)]| session(&headers(lines), Arrival::Local);
        let found = Some("s3".to_owned());
        assert_eq!(check(&[("cookie", "a=1; margrave_session=s3; b=2")]), found);
        assert_eq!(check(&[("cookie", "a=1"), ("cookie", "margrave_session=s3")]), found);
        assert_eq!(check(&[("cookie", "xmargrave_session=s3; margrave_session=")]), None);
        assert_eq!(check(&[]), None);
        // A cookie without the name that browsers guard does not count where it comes over the network.
        let over_tls = |line: &str| session(&headers(&[("cookie", line)]), Arrival::Web);
        assert_eq!(over_tls("margrave_session=s3"), None);
        assert_eq!(over_tls("margrave_session=s4; __Host-margrave_session=s3"), found);
        assert_eq!(check(&[("cookie", "__Host-margrave_session=s3")]), None);
    }

    #[test]
    fn another_site_cannot_use_the_browsers_cookie() {
        let check = |lines: &[(&str, &str)]| is_cross_site(&headers(lines));
        assert!(!check(&[("host", "server:8443")]));
        assert!(!check(&[("host", "server:8443"), ("origin", "https://server:8443")]));
        assert!(!check(&[("sec-fetch-site", "same-origin"), ("origin", "https://elsewhere")]));
        assert!(check(&[("host", "server:8443"), ("origin", "https://server:9999")]));
        assert!(check(&[("host", "server:8443"), ("origin", "null")]));
        assert!(check(&[("host", "server:8443"), ("sec-fetch-site", "cross-site")]));
        assert!(check(&[("host", "server:8443"), ("sec-fetch-site", "same-site")]));
    }

    #[test]
    fn the_cookie_is_secure_wherever_it_leaves_the_machine() {
        let web = session_cookie("abc", Arrival::Web);
        let web = web.to_str().unwrap();
        // What browsers ask of a cookie of this name: Secure, the whole host, and no other one.
        assert!(web.starts_with("__Host-margrave_session=abc; Path=/;") && !web.contains("Domain"), "{web}");
        assert!(
            web.contains("HttpOnly") && web.contains("SameSite=Lax") && web.contains("; Secure"),
            "{web}"
        );
        assert!(!session_cookie("abc", Arrival::Local).to_str().unwrap().contains("Secure"));
        assert!(session_cookie_end(Arrival::Web).to_str().unwrap().contains("Max-Age=0"));
    }

    #[test]
    fn a_sign_in_code_works_once_and_not_for_long() {
        let time = Arc::new(AtomicU64::new(1_000_000));
        let clock = Arc::clone(&time);
        let codes = SignInCodes::new(Clock::new(move || Moment(clock.load(Ordering::Relaxed))));
        let token = "0123456789ab";
        let code = codes.issue(token);
        assert_eq!(codes.redeem("guess"), None);
        assert_eq!(codes.redeem(&code).as_deref(), Some(token));
        assert_eq!(codes.redeem(&code), None);
        let late = codes.issue(token);
        time.fetch_add(CODE_LIFETIME.as_millis() as u64, Ordering::Relaxed);
        assert_eq!(codes.redeem(&late), None);
        let first = codes.issue(token);
        for _ in 0..CODE_COUNT_MAX {
            time.fetch_add(1, Ordering::Relaxed);
            codes.issue(token);
        }
        assert_eq!(codes.redeem(&first), None);
        assert_eq!(codes.codes.lock().unwrap().len(), CODE_COUNT_MAX);
    }
}
