//! Which operator is asking: bearer token, Basic password, or the page's session cookie.
//!
//! Owns how credentials are read from a request, the session cookie, and the single-use sign-in codes.
//! It does not own tokens and sessions themselves; the fleet keeps those, hashed. Devices never come
//! this way, they are known by their certificate.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand;
use axum::extract::{FromRef, FromRequestParts};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_registry::Credentials;

use crate::fleet::{self, Actor, Clock, Fleet};
use crate::http::{App, Arrival};

/// The page's session cookie. Cookies are shared between the ports of a host, so the name is ours.
pub const SESSION_COOKIE: &str = "margrave_session";

/// Longer than any token of ours; nothing longer is hashed and looked up.
const TOKEN_LENGTH_MAX: usize = 512;

/// The operator behind a request. As an extractor it answers 401 with a challenge when there is none, and
/// 403 when another site made the browser send its cookie.
#[derive(Debug, Clone)]
pub struct Operator(pub Actor);

impl<S> FromRequestParts<S> for Operator
where
    App: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let app = App::from_ref(state);
        match identify(&app.fleet, parts).await {
            Ok(actor) => Ok(Operator(actor)),
            Err(unidentified) => Err(unidentified.respond(parts)),
        }
    }
}

/// Why no operator could be made out.
#[derive(Debug, thiserror::Error)]
pub enum Unidentified {
    #[error("no token was given; send it as \"Authorization: Bearer TOKEN\", or sign in to the page")]
    Missing,
    #[error("the token or session is not valid any more; sign in again, or ask for a new token")]
    Unknown,
    #[error("the browser sent this request for another site; open the page itself and try there")]
    OtherSite,
    #[error("the credentials could not be checked")]
    Fleet(#[source] fleet::Error),
}

impl Unidentified {
    fn respond(self, request: &Parts) -> Response {
        let mut response = match self {
            Unidentified::Fleet(error) => return crate::http::problem::respond(error, request.uri.path()),
            Unidentified::OtherSite => {
                return crate::http::problem::forbidden(&self.to_string(), request.uri.path());
            }
            Unidentified::Missing | Unidentified::Unknown => {
                crate::http::problem::unauthorized(&self.to_string(), request.uri.path())
            }
        };
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"margrave\""));
        response.into_response()
    }
}

/// Who is asking. An `Authorization` header counts before a cookie, and a wrong one is never papered over
/// by a good cookie.
pub async fn identify(fleet: &Fleet, request: &Parts) -> Result<Actor, Unidentified> {
    if let Some(token) = token(&request.headers) {
        let token = token.ok_or(Unidentified::Unknown)?;
        return fleet
            .operator_by_token(&token)
            .await
            .map_err(Unidentified::Fleet)?
            .ok_or(Unidentified::Unknown);
    }
    let session = session(&request.headers).ok_or(Unidentified::Missing)?;
    if !request.method.is_safe() && is_cross_site(&request.headers) {
        return Err(Unidentified::OtherSite);
    }
    fleet.session(&session).await.map_err(Unidentified::Fleet)?.ok_or(Unidentified::Unknown)
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
pub fn session(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    cookies.flat_map(|line| line.split(';')).find_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        let usable = !value.is_empty() && value.len() <= TOKEN_LENGTH_MAX;
        (name == SESSION_COOKIE && usable).then(|| value.to_owned())
    })
}

/// The `Set-Cookie` value that begins a session. Scripts cannot read it, other sites cannot make a browser
/// send it with a form, and over HTTPS it never travels in the clear.
pub fn session_cookie(session: &str, arrival: Arrival) -> HeaderValue {
    cookie(session, fleet::SESSION_LIFETIME, arrival)
}

/// The `Set-Cookie` value that ends a session in the browser.
pub fn session_cookie_end(arrival: Arrival) -> HeaderValue {
    cookie("", Duration::ZERO, arrival)
}

fn cookie(value: &str, age: Duration, arrival: Arrival) -> HeaderValue {
    // Not every browser sends a Secure cookie to http://127.0.0.1, and that listener never leaves the machine.
    let secure = if arrival == Arrival::Local { "" } else { "; Secure" };
    let text = format!(
        "{SESSION_COOKIE}={value}; Path=/; Max-Age={}; HttpOnly; SameSite=Lax{secure}",
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

/// How long a sign-in link may be used: long enough to be copied from a terminal.
const CODE_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// More links than one person opens; the oldest gives way.
const CODE_COUNT_MAX: usize = 64;

/// Single-use codes that turn into a page session: `server.sign_in_link()` makes one, the page's
/// `/welcome/{code}` spends it. In memory only: after a restart a new link is asked for.
pub struct SignInCodes {
    clock: Clock,
    /// By the code's digest, so that neither a dump nor the time a look-up takes tells a code.
    codes: Mutex<HashMap<Digest, (Actor, Moment)>>,
}

impl SignInCodes {
    pub fn new(clock: Clock) -> Self {
        SignInCodes { clock, codes: Mutex::default() }
    }

    pub fn issue(&self, actor: Actor) -> String {
        let code = secret();
        let now = self.clock.now();
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|_, (_, expires)| *expires > now);
        if codes.len() >= CODE_COUNT_MAX {
            let oldest = codes.iter().min_by_key(|(_, (_, expires))| *expires).map(|(digest, _)| *digest);
            oldest.map(|digest| codes.remove(&digest));
        }
        codes.insert(Digest::of(code.as_bytes()), (actor, now.after(CODE_LIFETIME)));
        code
    }

    /// Who the code was made for, once.
    pub fn redeem(&self, code: &str) -> Option<Actor> {
        let now = self.clock.now();
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let (actor, expires) = codes.remove(&Digest::of(code.as_bytes()))?;
        (now < expires).then_some(actor)
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
        let check = |lines: &[(&str, &str)]| session(&headers(lines));
        let found = Some("s3".to_owned());
        assert_eq!(check(&[("cookie", "a=1; margrave_session=s3; b=2")]), found);
        assert_eq!(check(&[("cookie", "a=1"), ("cookie", "margrave_session=s3")]), found);
        assert_eq!(check(&[("cookie", "xmargrave_session=s3; margrave_session=")]), None);
        assert_eq!(check(&[]), None);
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
        assert!(web.contains("HttpOnly") && web.contains("SameSite=Lax") && web.contains("Secure"), "{web}");
        assert!(!session_cookie("abc", Arrival::Local).to_str().unwrap().contains("Secure"));
        assert!(session_cookie_end(Arrival::Web).to_str().unwrap().contains("Max-Age=0"));
    }

    #[test]
    fn a_sign_in_code_works_once_and_not_for_long() {
        let time = Arc::new(AtomicU64::new(1_000_000));
        let clock = Arc::clone(&time);
        let codes = SignInCodes::new(Clock::new(move || Moment(clock.load(Ordering::Relaxed))));
        let actor = Actor { name: "operator admin".to_owned() };
        let code = codes.issue(actor.clone());
        assert_eq!(codes.redeem("guess"), None);
        assert_eq!(codes.redeem(&code), Some(actor.clone()));
        assert_eq!(codes.redeem(&code), None);
        let late = codes.issue(actor.clone());
        time.fetch_add(CODE_LIFETIME.as_millis() as u64, Ordering::Relaxed);
        assert_eq!(codes.redeem(&late), None);
        let first = codes.issue(actor.clone());
        for _ in 0..CODE_COUNT_MAX {
            time.fetch_add(1, Ordering::Relaxed);
            codes.issue(actor.clone());
        }
        assert_eq!(codes.redeem(&first), None);
        assert_eq!(codes.codes.lock().unwrap().len(), CODE_COUNT_MAX);
    }
}
