//! Problem details (RFC 9457): how every error crosses HTTP.
//!
//! Owns the registered types with their titles and codes, and the retry fields that go with each status
//! (MI-G2-190…MI-G2-192). Which error is which problem is decided where the error is known.

use margrave_core::violation::Violation;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::body::BodyError;

/// The media type of every error (MI-G2-200).
pub const MEDIA_TYPE: &str = "application/problem+json";

const NAMESPACE: &str = "https://docs.margo.org/specification/problem-types#";
/// The type of everything that is not registered (MI-G2-202).
pub const ABOUT_BLANK: &str = "about:blank";

/// One problem. Read by `type`; the rest is for people (MI-G2-204).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// What went wrong, as a URI that is compared and never fetched.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    /// The HTTP status, again.
    pub status: u16,
    /// What went wrong this time, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The request path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Whether the same request may succeed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// Advisory; the `Retry-After` header wins (MI-G2-193).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_strategy: Option<Backoff>,
    /// Which fields are wrong; present with 422.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Backoff {
    None,
    Fixed,
    Exponential,
}

/// One field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// Where, such as `properties.cpus[0].cores`; `body` for the whole.
    #[serde(default)]
    pub field: String,
    #[serde(default)]
    pub message: String,
}

/// The problem types that the standard registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemType {
    InvalidRequest,
    SemanticError,
    NotAuthorized,
    GatewayNotFound,
    DeviceNotFound,
    InvalidBundle,
    DeploymentNotFound,
    ServerCannotGenerateResponse,
    DiscoveryDocumentNotFound,
    SpiffeBundleNotFound,
}

use ProblemType::*;

impl ProblemType {
    pub const ALL: [ProblemType; 10] = [
        InvalidRequest,
        SemanticError,
        NotAuthorized,
        GatewayNotFound,
        DeviceNotFound,
        InvalidBundle,
        DeploymentNotFound,
        ServerCannotGenerateResponse,
        DiscoveryDocumentNotFound,
        SpiffeBundleNotFound,
    ];

    /// Name within the namespace, registered title, HTTP status.
    fn registered(self) -> (&'static str, &'static str, u16) {
        match self {
            InvalidRequest => ("invalid-request", "Invalid Request", 400),
            SemanticError => ("semantic-error", "Semantic Error", 422),
            NotAuthorized => ("not-authorized", "Not Authorized", 403),
            GatewayNotFound => ("gateway-not-found", "Gateway not found", 404),
            DeviceNotFound => ("device-not-found", "Device Not Found", 404),
            InvalidBundle => ("invalid-bundle", "Invalid Bundle", 404),
            DeploymentNotFound => ("deployment-not-found", "Deployment Not Found", 404),
            ServerCannotGenerateResponse => {
                ("server-cannot-generate-response", "Server Cannot Generate Response", 406)
            }
            DiscoveryDocumentNotFound => {
                ("discovery-document-not-found", "Discovery Document Not Found", 404)
            }
            SpiffeBundleNotFound => ("spiffe-bundle-not-found", "Bundle Not Found", 404),
        }
    }

    pub fn uri(self) -> String {
        format!("{NAMESPACE}{}", self.registered().0)
    }

    pub fn title(self) -> &'static str {
        self.registered().1
    }

    pub fn status(self) -> u16 {
        self.registered().2
    }

    /// The registered type behind a URI, in any of the spellings of the namespace that exist (AMB-12, ID-205).
    pub fn of(uri: &str) -> Option<Self> {
        let rest = uri
            .strip_prefix("https://docs.margo.org/specification/")
            .or_else(|| uri.strip_prefix("https://margo.org/docs/errors/"))?;
        let name = rest.rsplit(['#', '/']).next()?;
        if name == "wfm-client-relationship-retired" {
            return Some(NotAuthorized);
        }
        Self::ALL.into_iter().find(|kind| kind.registered().0 == name)
    }
}

impl Problem {
    /// A problem of a registered type; none of those is worth a retry (MI-G2-192).
    pub fn new(kind: ProblemType, detail: impl Into<String>) -> Self {
        Self::build(kind.uri(), kind.title(), kind.status(), detail)
    }

    /// A problem that no registered type describes. Only 429, 500 and 503 say that a retry may help.
    pub fn blank(status: u16, detail: impl Into<String>) -> Self {
        Self::build(ABOUT_BLANK.to_owned(), phrase(status), status, detail)
    }

    /// 429 with the `Retry-After` that the header must carry too (MI-G2-190).
    pub fn too_many_requests(retry_after_seconds: u64, detail: impl Into<String>) -> Self {
        Self::blank(429, detail).after(retry_after_seconds)
    }

    /// 503 with the `Retry-After` that the header must carry too (MI-G2-190).
    pub fn unavailable(retry_after_seconds: u64, detail: impl Into<String>) -> Self {
        Self::blank(503, detail).after(retry_after_seconds)
    }

    /// 500. The detail is for the caller; what really happened belongs into the log (MI-G2-191).
    pub fn internal(retry_after_seconds: u64) -> Self {
        Self::blank(500, "something failed on the server; try again later").after(retry_after_seconds)
    }

    /// 422 with each broken rule (MI-G2-205).
    pub fn violations(violations: &[Violation]) -> Self {
        let detail = match violations {
            [only] => only.message.clone(),
            several => format!("{} rules are broken; errors names each", several.len()),
        };
        let mut problem = Self::new(SemanticError, detail);
        problem.errors = violations.iter().map(FieldError::from).collect();
        problem
    }

    fn build(kind: String, title: &str, status: u16, detail: impl Into<String>) -> Self {
        let retryable = matches!(status, 429 | 500 | 503);
        Problem {
            kind,
            title: title.to_owned(),
            status,
            detail: Some(detail.into()),
            instance: None,
            retryable: Some(retryable),
            retry_after_seconds: None,
            backoff_strategy: Some(if retryable { Backoff::Exponential } else { Backoff::None }),
            errors: Vec::new(),
        }
    }

    fn after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// With the request path that it happened on.
    pub fn at(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// The registered type, if it is one.
    pub fn problem_type(&self) -> Option<ProblemType> {
        ProblemType::of(&self.kind)
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain fields are JSON")
    }
}

/// As it is shown to whoever made the request.
impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{}: {detail}", self.title)?,
            None => write!(f, "{} ({})", self.title, self.status)?,
        }
        self.errors.iter().try_for_each(|error| write!(f, "; {}: {}", error.field, error.message))
    }
}

impl From<&BodyError> for Problem {
    fn from(error: &BodyError) -> Self {
        match error {
            BodyError::Malformed(_) => Problem::new(InvalidRequest, error.to_string()),
            BodyError::Invalid(violations) => Problem::violations(violations),
        }
    }
}

impl From<&Violation> for FieldError {
    fn from(violation: &Violation) -> Self {
        let mut field = String::new();
        for token in violation.place.split('/').skip(1) {
            let token = token.replace("~1", "/").replace("~0", "~");
            let index = !field.is_empty() && token.bytes().all(|b| b.is_ascii_digit());
            match (index, field.is_empty()) {
                (true, _) => field.push_str(&format!("[{token}]")),
                (false, true) => field.push_str(&token),
                (false, false) => field.push_str(&format!(".{token}")),
            }
        }
        if field.is_empty() {
            field.push_str("body");
        }
        FieldError { field, message: format!("{} ({})", violation.message, violation.rule) }
    }
}

/// The reason phrase of a status, as the title of a problem without a type.
fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        507 => "Insufficient Storage",
        _ if status < 500 => "Client Error",
        _ => "Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn amb_30_id_200_a_problem_says_everything_a_client_branches_on() {
        let problem = Problem::new(GatewayNotFound, "press-gw has not reported its capabilities")
            .at("/api/v1/capabilities/press-gw/cell-4");
        let wanted = json!({
            "type": "https://docs.margo.org/specification/problem-types#gateway-not-found",
            "title": "Gateway not found", "status": 404, "detail": "press-gw has not reported its capabilities",
            "instance": "/api/v1/capabilities/press-gw/cell-4", "retryable": false, "backoffStrategy": "none",
        });
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&problem.to_json()).unwrap(), wanted);
    }

    #[test]
    fn mi_g2_190_191_192_id_204_only_429_500_and_503_ask_for_a_retry() {
        for problem in
            [Problem::too_many_requests(7, "x"), Problem::unavailable(7, "x"), Problem::internal(7)]
        {
            assert_eq!(
                (problem.retryable, problem.backoff_strategy),
                (Some(true), Some(Backoff::Exponential))
            );
            assert_eq!((problem.retry_after_seconds, problem.kind.as_str()), (Some(7), ABOUT_BLANK));
        }
        let registered = ProblemType::ALL.map(|kind| Problem::new(kind, "x"));
        let blank = [401, 404, 409, 413, 501, 502, 504].map(|status| Problem::blank(status, "x"));
        for problem in registered.iter().chain(&blank) {
            assert_eq!((problem.retryable, problem.backoff_strategy), (Some(false), Some(Backoff::None)));
            assert_eq!(problem.retry_after_seconds, None);
            assert!(!problem.title.is_empty());
        }
    }

    #[test]
    fn mi_g2_205_each_broken_rule_names_its_field() {
        let violations = [
            Violation::new("/properties/cpus/0/cores", "MI-G2-128", "must be a number"),
            Violation::new("", "MI-G2-124", "must be an object"),
            Violation::new("/labels/acme.example~1line", "MI-G2-134", "must be text"),
        ];
        let problem = Problem::from(&BodyError::Invalid(violations.to_vec()));
        assert_eq!((problem.status, problem.problem_type()), (422, Some(SemanticError)));
        let fields: Vec<_> = problem.errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["properties.cpus[0].cores", "body", "labels.acme.example/line"]);
        assert_eq!(problem.errors[0].message, "must be a number (MI-G2-128)");
        assert_eq!(Problem::from(&BodyError::Malformed("x".into())).status, 400);
    }

    #[test]
    fn amb_12_id_205_206_a_type_is_known_in_every_spelling_of_the_namespace() {
        for uri in [
            "https://docs.margo.org/specification/problem-types#not-authorized",
            "https://docs.margo.org/specification/problem-types/not-authorized",
            "https://docs.margo.org/specification/margo-management-interface/problem-types#not-authorized",
            "https://docs.margo.org/specification/problem-types#wfm-client-relationship-retired",
            "https://margo.org/docs/errors/wfm-client-relationship-retired",
        ] {
            assert_eq!(ProblemType::of(uri), Some(NotAuthorized), "{uri}");
        }
        for uri in [ABOUT_BLANK, "https://evil.example/problem-types#not-authorized", "", "not-authorized"] {
            assert_eq!(ProblemType::of(uri), None, "{uri}");
        }
        for kind in ProblemType::ALL {
            assert_eq!(ProblemType::of(&kind.uri()), Some(kind));
        }
    }

    #[test]
    fn mi_g2_201_a_foreign_problem_needs_only_three_fields() {
        let text = r#"{"type":"about:blank","title":"Teapot","status":418,"vendor_code":"X","errors":[{"field":"a"}]}"#;
        let problem: Problem = serde_json::from_str(text).unwrap();
        assert_eq!((problem.status, problem.retryable, problem.errors.len()), (418, None, 1));
        assert!(serde_json::from_str::<Problem>(r#"{"type":"about:blank","title":"x"}"#).is_err());
    }
}
