//! Why a request is not answered with what it asked for, and the one match that turns this into a problem.

use std::error::Error;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use margrave_core::violation::Violation;
use margrave_wire::BodyError;
use margrave_wire::problem::{MEDIA_TYPE, Problem, ProblemType};

use crate::{ApiError, Outside};

/// When something broke on our side, it is rarely mended sooner than in half of this time.
const BROKEN_RETRY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub enum Refusal {
    /// The listener named no caller (AMB-11).
    NoCaller,
    /// Local policy says no (MI-G2-011).
    NotAccepted(Outside),
    NoSuchPath,
    /// No `Host`, or several (RFC 9112, 3.2).
    Misaddressed,
    /// What the resource takes instead, for `Allow`.
    Method(&'static str),
    NotAcceptable(&'static str),
    NoDocument,
    NoBundle,
    NoDevice,
    NotJson,
    Body(BodyError),
    Invalid(Vec<Violation>),
    TooLarge {
        max: usize,
    },
    TooSlow,
    /// The connection broke in the middle of the body.
    Cut,
    /// This client asks more often than one may.
    TooMany {
        retry_after: Duration,
    },
    Api(ApiError),
    /// An invariant of ours is broken; the log has it.
    Broken,
}

impl Refusal {
    /// The answer to a request for `path`.
    pub fn at(self, path: &str) -> Response {
        let allow = self.allow();
        let problem = self.problem().at(path);
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, problem.to_json()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(allow) = allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(seconds) = problem.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// For the header of that name.
    pub(crate) fn allow(&self) -> Option<&'static str> {
        match self {
            Refusal::Method(allow) => Some(*allow),
            _ => None,
        }
    }

    pub(crate) fn problem(self) -> Problem {
        use ProblemType::*;
        match self {
            Refusal::NoCaller => Problem::blank(401, "no client certificate came with this request"),
            Refusal::NotAccepted(Outside::Retired) => Problem::new(
                NotAuthorized,
                "an operator retired this client; it stays out until an operator accepts it again",
            ),
            Refusal::NotAccepted(Outside::Unknown) => Problem::new(
                NotAuthorized,
                "this client is not among the accepted ones; ask an operator to accept it",
            ),
            Refusal::NoSuchPath => Problem::blank(404, "there is nothing at this path"),
            Refusal::Misaddressed => Problem::new(
                InvalidRequest,
                "the request must say in one Host header, and only one, which host it is for",
            ),
            Refusal::Method(allow) => Problem::blank(405, format!("this resource takes only {allow}")),
            Refusal::NotAcceptable(offered) => Problem::new(
                ServerCannotGenerateResponse,
                format!("this resource is available as {offered} only"),
            ),
            Refusal::NoDocument => {
                Problem::new(DeploymentNotFound, "this client has no deployment with this id and digest")
            }
            Refusal::NoBundle => Problem::new(InvalidBundle, "this client has no bundle with this digest"),
            Refusal::NoDevice => Problem::new(DeviceNotFound, "this client never reported such a device"),
            Refusal::NotJson => Problem::new(
                InvalidRequest,
                "the body must be JSON; send it with Content-Type application/json",
            ),
            Refusal::Body(error) => Problem::from(&error),
            Refusal::Invalid(violations) => Problem::violations(&violations),
            Refusal::TooLarge { max } => {
                Problem::blank(413, format!("the body is larger than the {max} bytes taken here"))
            }
            Refusal::TooSlow => Problem::blank(
                408,
                "the body did not arrive in time, and would not at this pace; check the line",
            ),
            Refusal::Cut => Problem::new(InvalidRequest, "the body ended early; send all of it"),
            Refusal::TooMany { retry_after } => Problem::too_many_requests(
                seconds(retry_after),
                "this client asks more often than the server answers one; slow down",
            ),
            Refusal::Api(error) => problem_of(error),
            Refusal::Broken => Problem::internal(later()),
        }
    }
}

fn problem_of(error: ApiError) -> Problem {
    let detail = error.to_string();
    match error {
        ApiError::GatewayNotFound(_) => Problem::new(ProblemType::GatewayNotFound, detail),
        ApiError::DeviceNotFound(_) => Problem::new(ProblemType::DeviceNotFound, detail),
        // There is no 404 for a status, so it is a field that is wrong (AMB-13).
        ApiError::AssignmentUnknown(_) => {
            Problem::violations(&[Violation::new("/deploymentId", "AMB-13", detail)])
        }
        ApiError::Invalid(violations) => Problem::violations(&violations),
        ApiError::Busy { retry_after } => Problem::unavailable(
            seconds(retry_after),
            "the server has more to do than it can; try again later",
        ),
        ApiError::Failed(cause) => {
            tracing::error!(cause = cause.as_ref() as &(dyn Error + 'static), "a device's request failed");
            Problem::internal(later())
        }
    }
}

/// Seconds until it is worth another try: each time others, so that those who are sent away together do not come back
/// together (MI-G2-190). Every hasher of the standard library has a key of its own, which is chance enough.
pub(crate) fn later() -> u64 {
    let chance = RandomState::new().hash_one(()) >> 32;
    let half = BROKEN_RETRY / 2;
    seconds(half + half.mul_f64(chance as f64 / f64::from(u32::MAX)))
}

/// Whole seconds, rounded up: nobody may come back too early, and zero would mean at once.
fn seconds(duration: Duration) -> u64 {
    duration.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mi_g2_190_those_who_are_sent_away_together_do_not_come_back_together() {
        let times: std::collections::BTreeSet<u64> = (0..200).map(|_| later()).collect();
        assert!(times.len() > 8, "{times:?}");
        assert!(times.iter().all(|seconds| (15..=30).contains(seconds)), "{times:?}");
    }
}
