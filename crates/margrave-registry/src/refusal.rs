//! Errors as the distribution specification wants them told.

use ::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use margrave_oci::reference::InvalidReference;
use serde_json::json;

use crate::error::RegistryError;

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
            E::TooManyUploads => {
                refusal.headers.push((header::RETRY_AFTER, HeaderValue::from_static("5")));
            }
            _ => {}
        }
        refusal
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
