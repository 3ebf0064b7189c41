//! Reading requests into domain types, with answers that name what is wrong.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use margrave_core::id::{DeploymentName, DeviceRef, InvalidId, PackageId, PackageVersion};
use serde::de::DeserializeOwned;

use crate::http::problem::Problem;
use crate::http::{BODY_TIME_MAX, is_declared_larger};

/// The largest request is a deployment with its answers and targets; this is hundreds of each.
pub(super) const BODY_MAX: usize = 256 * 1024;

/// Many files at once.
const LARGE_BODY_MAX: usize = 16 * 1024 * 1024;
/// The same over a line of 2 Mbit/s.
const LARGE_BODY_TIME_MAX: Duration = Duration::from_secs(70);

/// A JSON body. Unknown fields are refused by the types themselves, and serde names the field.
pub(in crate::http) struct Body<T>(pub(in crate::http) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        json(request, BODY_MAX, BODY_TIME_MAX).await.map(Body)
    }
}

/// A JSON body that may be large.
pub(super) struct LargeBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for LargeBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        json(request, LARGE_BODY_MAX, LARGE_BODY_TIME_MAX).await.map(LargeBody)
    }
}

async fn json<T: DeserializeOwned>(request: Request, max: usize, within: Duration) -> Result<T, Problem> {
    let path = request.uri().path().to_owned();
    if !is_json(&request) {
        return Err(Problem::not_json().at(&path));
    }
    let bytes = read(request, max, within).await.map_err(|problem| problem.at(&path))?;
    // serde takes a list for an object without names, and an empty one for nothing but defaults.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::malformed("the body does not fit: it must be an object, not a list").at(&path));
    }
    serde_json::from_slice(&bytes).map_err(|error| {
        let kind = if error.is_data() { "the body does not fit" } else { "the body is not well-formed JSON" };
        Problem::malformed(format!("{kind}: {error}")).at(&path)
    })
}

fn is_json(request: &Request) -> bool {
    let value = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = value.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

async fn read(request: Request, max: usize, within: Duration) -> Result<Bytes, Problem> {
    if is_declared_larger(request.body(), max) {
        return Err(Problem::too_large(max));
    }
    let reading = Limited::new(request.into_body(), max).collect();
    match tokio::time::timeout(within, reading).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::too_large(max)),
        Ok(Err(error)) => Err(Problem::malformed(format!("the body did not arrive whole: {error}"))),
        Err(_) => Err(Problem::too_slow()),
    }
}

/// Query parameters.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(params)) => Ok(Params(params)),
            Err(rejection) => {
                // The wrapper says only that it failed; what and why is beneath.
                let cause =
                    std::error::Error::source(&rejection).map_or(rejection.body_text(), ToString::to_string);
                Err(Problem::malformed(format!("the query does not fit: {cause}")).at(parts.uri.path()))
            }
        }
    }
}

/// The identifiers in a path, already percent-decoded.
pub(super) struct Ids {
    texts: HashMap<String, String>,
    path: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Ids {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = parts.uri.path().to_owned();
        match Path::<HashMap<String, String>>::from_request_parts(parts, state).await {
            Ok(Path(texts)) => Ok(Ids { texts, path }),
            Err(rejection) => Err(Problem::malformed(rejection.body_text()).at(&path)),
        }
    }
}

impl Ids {
    pub(super) fn device(&self) -> Result<DeviceRef, Problem> {
        self.parse("device")
    }

    pub(super) fn deployment(&self) -> Result<DeploymentName, Problem> {
        self.parse("deployment")
    }

    pub(super) fn package(&self) -> Result<(PackageId, PackageVersion), Problem> {
        Ok((self.parse("package")?, self.parse("version")?))
    }

    /// Which token; the fleet knows whether there is one.
    pub(super) fn token(&self) -> &str {
        self.texts.get("token").map(String::as_str).unwrap_or_default()
    }

    /// What is no identifier; the fleet reads it.
    pub(super) fn text(&self, field: &str) -> &str {
        self.texts.get(field).map(String::as_str).unwrap_or_default()
    }

    /// For whom a schedule is; the fleet reads it.
    pub(super) fn reach(&self) -> &str {
        self.texts.get("reach").map(String::as_str).unwrap_or_default()
    }

    fn parse<T: FromStr<Err = InvalidId>>(&self, field: &str) -> Result<T, Problem> {
        let text = self.texts.get(field).map(String::as_str).unwrap_or_default();
        text.parse().map_err(|error| Problem::bad_identifier(field, &error).at(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body as RequestBody;
    use http_body_util::Full;

    #[tokio::test]
    async fn a_body_that_is_declared_too_large_is_not_waited_for() {
        let length = http_body::SizeHint::with_exact(BODY_MAX as u64 + 1);
        let refused = read(Request::new(RequestBody::new(Declared(length))), BODY_MAX, BODY_TIME_MAX).await;
        assert_eq!(refused.unwrap_err().status(), http::StatusCode::PAYLOAD_TOO_LARGE);
    }

    /// A body that says how long it is, and never sends a byte.
    struct Declared(http_body::SizeHint);

    impl http_body::Body for Declared {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Pending
        }

        fn size_hint(&self) -> http_body::SizeHint {
            self.0
        }
    }

    #[tokio::test]
    async fn a_body_that_does_not_end_is_408() {
        let endless = Full::new(Bytes::from_static(b"{")).with_trailers(std::future::pending());
        let refused =
            read(Request::new(RequestBody::new(endless)), BODY_MAX, Duration::from_millis(20)).await;
        assert_eq!(refused.unwrap_err().status(), http::StatusCode::REQUEST_TIMEOUT);
    }
}
