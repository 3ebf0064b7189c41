//! Errors of the generation: one JSON object that answers to both of the shapes it had (1.13).
//!
//! The preview declared `{"error": …, "message": …}`; a later proposal gave it problem details with types of
//! its own. Both sets of members are always there.

use serde::Serialize;

use crate::problem::{ABOUT_BLANK, Problem, ProblemType};

const NAMESPACE: &str = "https://docs.margo.org/specification/problems/";

/// The problem types of this generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignedProblemType {
    InvalidCertificateFormat,
    InvalidDigestHeader,
    InvalidRequest,
    SignatureVerificationFailed,
    CertificateNotTrusted,
    InvalidClient,
    InvalidBundle,
    DeploymentNotFound,
    ServerCannotGenerateResponse,
    SemanticError,
}

use SignedProblemType::*;

impl SignedProblemType {
    pub const ALL: [SignedProblemType; 10] = [
        InvalidCertificateFormat,
        InvalidDigestHeader,
        InvalidRequest,
        SignatureVerificationFailed,
        CertificateNotTrusted,
        InvalidClient,
        InvalidBundle,
        DeploymentNotFound,
        ServerCannotGenerateResponse,
        SemanticError,
    ];

    /// Name within the namespace, HTTP status, and the word for `error`; the first three are the standard's.
    fn registered(self) -> (&'static str, u16, &'static str) {
        match self {
            InvalidCertificateFormat => ("invalid-certificate-format", 400, "Invalid certificate"),
            CertificateNotTrusted => ("certificate-not-trusted", 403, "Client rejected"),
            SignatureVerificationFailed => ("signature-verification-failed", 401, "Invalid signature"),
            InvalidDigestHeader => ("invalid-digest-header", 400, "Invalid content digest"),
            InvalidRequest => ("invalid-request", 400, "Invalid request"),
            InvalidClient => ("invalid-client", 404, "Unknown client"),
            InvalidBundle => ("invalid-bundle", 404, "Unknown bundle"),
            DeploymentNotFound => ("deployment-not-found", 404, "Unknown deployment"),
            ServerCannotGenerateResponse => {
                ("server-cannot-generate-response", 406, "Cannot generate response")
            }
            SemanticError => ("semantic-error", 422, "Semantic error"),
        }
    }

    pub fn uri(self) -> String {
        format!("{NAMESPACE}{}", self.registered().0)
    }

    pub fn status(self) -> u16 {
        self.registered().1
    }

    /// The type for a condition that the newer generation has too.
    fn of(newer: ProblemType) -> Option<Self> {
        match newer {
            ProblemType::InvalidRequest => Some(InvalidRequest),
            ProblemType::SemanticError => Some(SemanticError),
            ProblemType::NotAuthorized => Some(CertificateNotTrusted),
            ProblemType::InvalidBundle => Some(InvalidBundle),
            ProblemType::DeploymentNotFound => Some(DeploymentNotFound),
            ProblemType::ServerCannotGenerateResponse => Some(ServerCannotGenerateResponse),
            ProblemType::GatewayNotFound
            | ProblemType::DeviceNotFound
            | ProblemType::DiscoveryDocumentNotFound
            | ProblemType::SpiffeBundleNotFound => None,
        }
    }
}

/// A problem in this generation's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SignedProblem {
    #[serde(flatten)]
    pub problem: Problem,
    pub error: String,
    pub message: String,
}

impl SignedProblem {
    pub fn new(kind: SignedProblemType, detail: impl Into<String>) -> Self {
        let (_, status, error) = kind.registered();
        let mut problem = Problem::blank(status, detail);
        problem.kind = kind.uri();
        problem.title = error.to_owned();
        Self::from(problem)
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain fields are JSON")
    }
}

/// A problem of the newer generation, with the type that the condition has here, if any.
impl From<Problem> for SignedProblem {
    fn from(mut problem: Problem) -> Self {
        if !problem.kind.starts_with(NAMESPACE) {
            let kind = problem.problem_type().and_then(SignedProblemType::of);
            problem.kind = kind.map_or_else(|| ABOUT_BLANK.to_owned(), SignedProblemType::uri);
        }
        let message = problem.detail.clone().unwrap_or_else(|| problem.title.clone());
        SignedProblem { error: problem.title.clone(), message, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn mi_g1_064_an_error_answers_to_both_of_its_shapes() {
        let problem = SignedProblem::new(SignatureVerificationFailed, "sign it again");
        let wanted = json!({
            "type": "https://docs.margo.org/specification/problems/signature-verification-failed",
            "title": "Invalid signature", "status": 401, "detail": "sign it again", "retryable": false,
            "backoffStrategy": "none", "error": "Invalid signature", "message": "sign it again",
        });
        assert_eq!(serde_json::from_slice::<Value>(&problem.to_json()).unwrap(), wanted);
    }

    #[test]
    fn every_type_is_named_and_numbered_as_the_catalogue_has_it() {
        let numbered = SignedProblemType::ALL.map(|kind| (kind.uri(), kind.status()));
        assert!(numbered.iter().all(|(uri, _)| uri.starts_with(NAMESPACE)));
        assert_eq!(
            SignedProblemType::ALL.map(SignedProblemType::status),
            [400, 400, 400, 401, 403, 404, 404, 404, 406, 422]
        );
        for kind in ProblemType::ALL {
            let translated = SignedProblem::from(Problem::new(kind, "x")).problem;
            let expected = SignedProblemType::of(kind).map_or(ABOUT_BLANK.to_owned(), SignedProblemType::uri);
            assert_eq!((translated.kind, translated.status), (expected, kind.status()));
        }
    }

    #[test]
    fn amb_12_our_own_types_are_known_to_whoever_reads_problems() {
        let problem = SignedProblem::new(DeploymentNotFound, "x").problem;
        assert_eq!(problem.problem_type(), Some(ProblemType::DeploymentNotFound));
    }
}
