//! Errors as the distribution specification wants them told.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use ::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use margrave_oci::reference::InvalidReference;
use serde_json::json;

use crate::error::RegistryError;

/// An upload takes seconds, and those that nobody continues make room.
const BUSY_RETRY: Duration = Duration::from_secs(10);
/// A disk that fails seldom recovers within seconds; as for everything else that breaks in a server.
const BROKEN_RETRY: Duration = Duration::from_secs(30);

/// Whole seconds until it is worth another try, between half of `most` and all of it: each time others, so that those
/// who are sent away together do not come back together (MI-G2-190). Every hasher of the standard library has a key of
/// its own, which is chance enough.
fn later(most: Duration) -> u64 {
    let chance = RandomState::new().hash_one(()) >> 32;
    let half = most / 2;
    (half + half.mul_f64(chance as f64 / f64::from(u32::MAX))).as_millis().div_ceil(1000) as u64
}

/// An answer that is a no: status, code of the specification, and a sentence.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// Boxed, because answers that are a no travel through every handler.
    detail: Box<serde_json::Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Refusal { status, code, message: message.into(), detail: Box::default(), headers: Vec::new() }
    }

    pub(crate) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(crate) fn unauthorized() -> Self {
        Refusal::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "log in to use this registry")
            .with(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"margrave\""))
    }

    pub(crate) fn denied() -> Self {
        Refusal::new(StatusCode::FORBIDDEN, "DENIED", "you may not do this in this repository")
    }

    pub(crate) fn later() -> Self {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "UNKNOWN", "the server cannot do this now; try again")
            .with(header::RETRY_AFTER, later(BROKEN_RETRY).into())
    }

    pub(crate) fn full() -> Self {
        let message = "the server's disk is full; free space where its --data lies, then push again";
        Refusal::new(StatusCode::INSUFFICIENT_STORAGE, "DENIED", message)
    }

    pub(crate) fn unsupported(allow: &'static str) -> Self {
        Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", format!("only {allow} is supported here"))
            .with(header::ALLOW, HeaderValue::from_static(allow))
    }
}

impl From<RegistryError> for Refusal {
    fn from(error: RegistryError) -> Self {
        use RegistryError as E;
        let (status, code) = match &error {
            E::BlobUnknown(_) => (StatusCode::NOT_FOUND, "BLOB_UNKNOWN"),
            E::BlobInUse { .. } => (StatusCode::METHOD_NOT_ALLOWED, "DENIED"),
            E::ManifestUnknown => (StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN"),
            E::ManifestInvalid(_) => (StatusCode::BAD_REQUEST, "MANIFEST_INVALID"),
            E::ManifestBlobUnknown(_) => (StatusCode::NOT_FOUND, "MANIFEST_BLOB_UNKNOWN"),
            E::DigestInvalid { .. } => (StatusCode::BAD_REQUEST, "DIGEST_INVALID"),
            E::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "SIZE_INVALID"),
            E::UploadUnknown => (StatusCode::NOT_FOUND, "BLOB_UPLOAD_UNKNOWN"),
            E::UploadBusy => (StatusCode::CONFLICT, "BLOB_UPLOAD_INVALID"),
            E::TooManyUploads => (StatusCode::TOO_MANY_REQUESTS, "TOOMANYREQUESTS"),
            E::StorageFull(_) => (StatusCode::INSUFFICIENT_STORAGE, "DENIED"),
            E::Damaged(_) => (StatusCode::INTERNAL_SERVER_ERROR, "MANIFEST_INVALID"),
            E::Io { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN"),
        };
        if status.is_server_error() {
            // What the disk said is for the operator's log, not for the client.
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(%error, cause, "the registry failed a request");
        }
        let mut refusal = Refusal::new(status, code, error.to_string());
        match error {
            E::BlobUnknown(digest) | E::ManifestBlobUnknown(digest) => {
                *refusal.detail = json!({ "digest": digest })
            }
            E::BlobInUse { blob, manifest } => {
                *refusal.detail = json!({ "digest": blob, "manifest": manifest })
            }
            E::DigestInvalid { wanted, got } => *refusal.detail = json!({ "wanted": wanted, "got": got }),
            E::TooLarge { max } => *refusal.detail = json!({ "max": max }),
            _ => {}
        }
        match status {
            StatusCode::TOO_MANY_REQUESTS => refusal.with(header::RETRY_AFTER, later(BUSY_RETRY).into()),
            StatusCode::INTERNAL_SERVER_ERROR => {
                refusal.with(header::RETRY_AFTER, later(BROKEN_RETRY).into())
            }
            _ => refusal,
        }
    }
}

impl From<InvalidReference> for Refusal {
    fn from(error: InvalidReference) -> Self {
        let code = match &error {
            InvalidReference::Name(_) => "NAME_INVALID",
            InvalidReference::Digest(_) => "DIGEST_INVALID",
            InvalidReference::Tag(_) => "TAG_INVALID",
            _ => "UNSUPPORTED",
        };
        Refusal::bad(code, error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let error = json!({ "code": self.code, "message": self.message, "detail": self.detail });
        let body = axum::Json(json!({ "errors": [error] }));
        let mut response = (self.status, body).into_response();
        response.headers_mut().extend(self.headers);
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn mi_g2_190_those_who_are_sent_away_do_not_come_back_together() {
        let damaged = || RegistryError::Io { doing: "read a blob", source: std::io::Error::other("disk") };
        let errors: [(fn() -> RegistryError, _); 2] =
            [(|| RegistryError::TooManyUploads, 5..=10), (damaged, 15..=30)];
        for (error, range) in errors {
            let seconds = |_| -> u64 {
                let response = Refusal::from(error()).into_response();
                response.headers()[header::RETRY_AFTER].to_str().unwrap().parse().unwrap()
            };
            let times: BTreeSet<u64> = (0..200).map(seconds).collect();
            assert!(times.len() > 3 && times.iter().all(|time| range.contains(time)), "{times:?}");
        }
        let unknown = Refusal::from(RegistryError::ManifestUnknown).into_response();
        assert!(!unknown.headers().contains_key(header::RETRY_AFTER));
    }
}
