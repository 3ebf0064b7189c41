//! Errors as operators' programs read them: `application/problem+json`, RFC 9457.
//!
//! The one match from [`fleet::Error`] to an HTTP answer is here. What the caller sees and what the log keeps
//! are separate: the caller gets what to do next, the log the whole chain of causes. Problem types are ours,
//! `urn:margrave:problem:…`; the standard's own types belong to the device interface.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use margrave_core::chain::sentence;
use margrave_core::violation::Violation;
use margrave_wire::operator;
use margrave_wire::problem::Backoff;
use margrave_wire::resource::Flaw;

use crate::admission::{busy_retry, rate_retry};
use crate::fleet::Error;
use crate::http::audit::Refusal;

pub use margrave_wire::problem::MEDIA_TYPE;

/// An answer that says no, and why.
#[derive(Debug, Clone)]
pub struct Problem {
    body: Box<operator::Problem>,
}

impl Problem {
    /// Devices read these as well, so whether and when to come back is said as in their own interface (MI-G2-190 to 192).
    fn new(status: StatusCode, name: &str, title: &str, detail: impl Into<String>) -> Self {
        let retry_after = match status {
            StatusCode::INTERNAL_SERVER_ERROR | StatusCode::SERVICE_UNAVAILABLE => Some(busy_retry()),
            StatusCode::TOO_MANY_REQUESTS => Some(rate_retry(Duration::ZERO)),
            _ => None,
        };
        let body = operator::Problem {
            kind: format!("urn:margrave:problem:{name}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            instance: None,
            retryable: retry_after.is_some(),
            retry_after_seconds: retry_after.map(seconds),
            backoff_strategy: Some(if retry_after.is_some() { Backoff::Exponential } else { Backoff::None }),
            violations: Vec::new(),
            misfits: Vec::new(),
        };
        Problem { body: Box::new(body) }
    }

    /// The request could not be read at all.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, "malformed", "The request could not be read", detail)
    }

    /// No `Host`, or several.
    pub fn misaddressed() -> Self {
        Problem::malformed("the request must say in one Host header, and only one, which host it is for")
    }

    /// A field or path segment holds something that is no identifier.
    pub fn bad_identifier(field: &str, error: &margrave_core::id::InvalidId) -> Self {
        let detail = format!("{field}: {error}");
        Problem::new(StatusCode::BAD_REQUEST, "bad-identifier", "An identifier is not well-formed", detail)
    }

    pub fn too_large(limit: usize) -> Self {
        let detail = format!("the body is larger than {limit} bytes; send less");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large", detail)
    }

    /// The body did not arrive in time.
    pub fn too_slow() -> Self {
        let detail = "the body did not arrive in time, and would not at this pace; check the line";
        Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", "The body did not arrive", detail)
    }

    pub fn not_json() -> Self {
        let detail = "the body must be JSON; send it with \"Content-Type: application/json\"";
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", "The body is not JSON", detail)
    }

    pub fn no_such_path() -> Self {
        let detail = "nothing answers at this address; see /api/operator/v1/openapi.json for what there is";
        Problem::new(StatusCode::NOT_FOUND, "no-such-path", "No such address", detail)
    }

    pub fn no_such_method() -> Self {
        let detail = "this address does not take this method; see /api/operator/v1/openapi.json";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no-such-method", "Method not allowed", detail)
    }

    /// What is asked for is not allowed to be so, with each place.
    fn broken_rules(detail: impl Into<String>, violations: Vec<operator::Violation>) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let mut problem = Problem::new(status, "invalid", "The request breaks a rule", detail);
        problem.body.violations = violations;
        problem
    }

    /// `If-Match` or `If-None-Match` did not hold.
    pub fn precondition(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::PRECONDITION_FAILED, "changed", "It is not as the request expects", detail)
    }

    pub fn too_many_streams() -> Self {
        let detail = "as many streams are open as this server allows; close one, or try again in a while";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-streams", "Too many streams", detail)
    }

    pub fn too_many_connections() -> Self {
        let detail = "as many connections are open as this server allows; try again in a while";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-connections", "Too many connections", detail)
    }

    /// We know who it is, and no.
    pub fn not_allowed(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail)
    }

    /// We know who it is, and the role does not suffice; `detail` names the one that does.
    pub fn role_needed(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::FORBIDDEN, "role-needed", "Another role is needed", detail)
    }

    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "Not signed in", detail)
    }

    /// It would be answered after `wait` at the earliest.
    pub fn too_many_requests(detail: impl Into<String>, wait: Duration) -> Self {
        let mut problem =
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", "Too many requests", detail);
        problem.body.retry_after_seconds = Some(seconds(rate_retry(wait)));
        problem
    }

    /// Our fault; the log says more.
    pub fn internal() -> Self {
        let detail = "something went wrong inside the server; its log says what";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal server error", detail)
    }

    /// Nobody but who frees some space can do anything about it, so nobody is asked to come back.
    pub fn disk_full() -> Self {
        let detail = "the server's disk is full, and nothing was changed; free space where its --data lies";
        Problem::new(StatusCode::INSUFFICIENT_STORAGE, "disk-full", "The server's disk is full", detail)
    }

    pub fn at(mut self, path: &str) -> Self {
        self.body.instance = Some(path.to_owned());
        self
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.body.status).expect("every problem is made from a status code")
    }

    /// What the audit log calls it.
    pub(crate) fn refusal(&self) -> Refusal {
        let name = self.body.kind.rsplit(':').next().unwrap_or_default().to_owned();
        Refusal { name, detail: self.body.detail.clone() }
    }

    pub fn body(&self) -> &operator::Problem {
        &self.body
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let detail = error.to_string();
        match error {
            Error::NotFound { .. } => Problem::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail),
            Error::DeviceNotFound(_) => {
                Problem::new(StatusCode::NOT_FOUND, "device-not-found", "Device not found", detail)
            }
            Error::AssignmentUnknown(_) => {
                Problem::new(StatusCode::NOT_FOUND, "assignment-unknown", "Assignment not found", detail)
            }
            Error::GatewayNotFound(_) => {
                Problem::new(StatusCode::CONFLICT, "gateway-not-found", "Gateway not found", detail)
            }
            Error::Conflict { .. } => Problem::new(StatusCode::CONFLICT, "conflict", "Conflict", detail),
            Error::Changed => Problem::precondition(detail),
            Error::InUse { .. } => Problem::new(StatusCode::CONFLICT, "in-use", "Still in use", detail),
            Error::Invalid(violations) => {
                let told = |v: Violation| operator::Violation {
                    place: v.place,
                    rule: v.rule.to_owned(),
                    message: v.message,
                };
                Problem::broken_rules(detail, violations.into_iter().map(told).collect())
            }
            Error::Flawed(flaws) => {
                let told = |flaw: Flaw| operator::Violation {
                    place: match flaw.line {
                        0 => flaw.file,
                        line => format!("{}:{line}", flaw.file),
                    },
                    rule: flaw.rule,
                    message: flaw.message,
                };
                Problem::broken_rules(detail, flaws.into_iter().map(told).collect())
            }
            Error::Misfit(misfits) => {
                let mut problem =
                    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "misfit", "A device does not fit", detail);
                problem.body.misfits = misfits;
                problem
            }
            Error::TokenUnknown => {
                Problem::new(StatusCode::FORBIDDEN, "token-unknown", "Token refused", detail)
            }
            Error::TokenUsed => Problem::new(StatusCode::FORBIDDEN, "token-used", "Token refused", detail),
            Error::TokenExpired => {
                Problem::new(StatusCode::FORBIDDEN, "token-expired", "Token refused", detail)
            }
            Error::Upstream { ref source, .. } => {
                let cause = source.as_ref().map(|source| sentence(source.as_ref()));
                tracing::warn!(%detail, cause, "a registry did not give what was needed");
                let detail = match cause {
                    Some(cause) => format!("{detail}: {cause}"),
                    None => detail,
                };
                Problem::new(StatusCode::BAD_GATEWAY, "upstream", "A registry did not help", detail)
            }
            Error::Storage(ref source) | Error::Keys(ref source) if error.is_disk_full() => {
                tracing::error!(cause = sentence(source.as_ref()), "the disk is full");
                Problem::disk_full()
            }
            Error::Storage(ref source) => {
                tracing::error!(cause = sentence(source.as_ref()), "{detail}");
                let hint = "the server could not use its database; its log says why, and nothing was changed";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "storage", "The database failed", hint)
            }
            Error::Keys(ref source) => {
                tracing::error!(cause = sentence(source.as_ref()), "{detail}");
                let hint = "the server could not write its keys; its log says why, and nothing was changed";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "keys", "The keys could not be written", hint)
            }
            Error::NoRandomness => {
                tracing::error!("{detail}");
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "no-randomness", "No random numbers", detail)
            }
            Error::TooSoon { wait } => Problem::too_many_requests(detail, wait),
            Error::Overloaded => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Busy", detail),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let bytes =
            serde_json::to_vec(&*self.body).expect("a problem is text and numbers, which always serialise");
        let mut response = (self.status(), bytes).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.body.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self.refusal());
        response
    }
}

/// Whole seconds, rounded up: nobody may come back too early, and zero would mean at once.
fn seconds(duration: Duration) -> u64 {
    duration.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_core::violation::Violation;
    use std::io;

    #[test]
    fn mi_g2_203_types_and_members_of_ours_are_told_from_the_standards() {
        let margo = margrave_wire::problem::ProblemType::of;
        let of_fleet = [Error::TokenUsed, Error::not_found("x"), Error::conflict("x"), Error::Overloaded];
        let ours = [
            Problem::malformed("x"),
            Problem::no_such_path(),
            Problem::not_allowed("x"),
            Problem::internal(),
        ];
        for problem in of_fleet.into_iter().map(Problem::from).chain(ours) {
            let kind = &problem.body().kind;
            assert!(kind.starts_with("urn:margrave:problem:") && margo(kind).is_none(), "{kind}");
            let value = serde_json::to_value(problem.body()).unwrap();
            for member in value.as_object().unwrap().keys() {
                let plain = member.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                assert!(member.len() >= 3 && plain, "{member}");
            }
        }
    }

    #[test]
    fn every_broken_rule_is_named() {
        let problem = Problem::from(Error::Invalid(vec![
            Violation::new("/parameters/rate", "DM-060", "must be a number"),
            Violation::new("/targets", "", "names no device"),
        ]));
        assert_eq!(problem.status(), StatusCode::UNPROCESSABLE_ENTITY);
        let json = serde_json::to_value(problem.body()).unwrap();
        assert_eq!(json["type"], "urn:margrave:problem:invalid");
        assert_eq!(json["violations"][0]["place"], "/parameters/rate");
        assert_eq!(json["violations"][1]["message"], "names no device");
    }

    #[test]
    fn what_broke_inside_is_logged_and_not_told() {
        let inner = std::io::Error::other("/var/lib/secret/path is on fire");
        let problem = Problem::from(Error::Storage(Box::new(inner)));
        assert_eq!(problem.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!problem.body().detail.contains("secret"), "{:?}", problem.body());
    }

    #[test]
    fn a_full_disk_is_told_and_nobody_is_asked_to_wait() {
        let of_file = || io::Error::from(io::ErrorKind::StorageFull);
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        let of_store = margrave_store::Error::from(rusqlite::Error::SqliteFailure(code, None));
        for error in
            [Error::from(of_store), Error::Storage(Box::new(of_file())), Error::Keys(Box::new(of_file()))]
        {
            let problem = Problem::from(error);
            assert_eq!(problem.status(), StatusCode::INSUFFICIENT_STORAGE);
            assert!(problem.body().detail.contains("free space where its --data lies"));
            assert!(!problem.body().retryable && problem.body().retry_after_seconds.is_none());
            assert!(!problem.into_response().headers().contains_key(RETRY_AFTER));
        }
    }

    #[test]
    fn mi_g2_190_191_amb_30_who_may_come_back_is_told_when_and_each_another_time() {
        let pause = || Problem::from(Error::TooSoon { wait: Duration::from_secs(4) });
        for (make, status, least) in [
            ((|| Problem::from(Error::Overloaded)) as fn() -> Problem, 503, 3),
            (Problem::too_many_streams, 503, 3),
            (Problem::too_many_connections, 503, 3),
            (Problem::internal, 500, 3),
            (|| Problem::from(Error::NoRandomness), 500, 3),
            (pause, 429, 4),
        ] {
            let mut times = std::collections::BTreeSet::new();
            for _ in 0..100 {
                let problem = make();
                let body = serde_json::to_value(problem.body()).unwrap();
                let response = problem.into_response();
                assert_eq!(response.status().as_u16(), status);
                assert_eq!(response.headers()[CONTENT_TYPE], MEDIA_TYPE);
                assert_eq!(
                    (&body["retryable"], &body["backoffStrategy"]),
                    (&true.into(), &"exponential".into())
                );
                let seconds: u64 = response.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
                assert_eq!(body["retryAfterSeconds"], seconds);
                assert!((least..=30).contains(&seconds), "{seconds}");
                times.insert(seconds);
            }
            assert!(times.len() > 2, "{status}: {times:?}");
        }
    }

    #[test]
    fn mi_g2_192_amb_30_who_need_not_come_back_is_told_so() {
        let refused = [Problem::not_allowed("x"), Problem::too_slow(), Problem::from(Error::conflict("x"))];
        for problem in refused {
            let body = serde_json::to_value(problem.body()).unwrap();
            assert_eq!((&body["retryable"], &body["backoffStrategy"]), (&false.into(), &"none".into()));
            assert!(body.get("retryAfterSeconds").is_none());
            let detail = body["detail"].as_str().unwrap();
            assert!(!detail.contains("again"), "{detail}");
            assert!(!problem.into_response().headers().contains_key(RETRY_AFTER));
        }
    }
}
