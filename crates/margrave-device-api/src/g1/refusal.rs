//! Why a request of this generation is not answered with what it asked for, and how that is said.

use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use margrave_identity::message::{CertificateFault, SignatureFault};
use margrave_wire::g1::problem::{SignedProblem, SignedProblemType};
use margrave_wire::problem::{MEDIA_TYPE, Problem};
use margrave_wire::signature::{BaseError, ContentDigestError, HeaderError};

use super::replay::Refused;
use super::signed::SignedStanding;
use crate::g2::Refusal;
use crate::g2::refusal::later;

const JSON: &str = "application/json";
const RETIRED: &str = "an operator retired this client, or it moved to the newer interface";

#[derive(Debug)]
pub(super) enum SignedRefusal {
    /// What both generations refuse alike.
    Common(Refusal),
    NoClient,
    NotAccepted(SignedStanding),
    /// 400: no signature that could be verified.
    Headers(HeaderError),
    Uncovered {
        component: &'static str,
    },
    Base(BaseError),
    Digest(ContentDigestError),
    DigestMismatch,
    NoHost,
    /// 401: a signature that does not count.
    NoCreated,
    TooOld {
        window_seconds: u64,
    },
    FromTheFuture,
    Expired,
    Signature(SignatureFault),
    Replay(Refused),
    /// 400 of the bundle endpoint (MI-G1-114).
    NoDigest,
    NotACertificate(String),
    Certificate(CertificateFault),
    Pending,
    Rejected,
    Retired,
}

impl From<Refusal> for SignedRefusal {
    fn from(refusal: Refusal) -> Self {
        SignedRefusal::Common(refusal)
    }
}

impl SignedRefusal {
    /// The answer to a request for `path`.
    pub(super) fn at(self, path: &str) -> Response {
        let allow = match &self {
            SignedRefusal::Common(refusal) => refusal.allow(),
            _ => None,
        };
        // Where the generation declares a body, it is plain JSON (1.13).
        let onboarding = matches!(
            self,
            Self::NotACertificate(_) | Self::Certificate(_) | Self::Pending | Self::Rejected | Self::Retired
        );
        let mut answer = self.problem();
        answer.problem = answer.problem.at(path);
        let problem = &answer.problem;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let unauthorized = status == StatusCode::UNAUTHORIZED;
        let media_type = if onboarding || unauthorized { JSON } else { MEDIA_TYPE };
        let mut response = (status, answer.to_json()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if unauthorized {
            // "End the session" (MI-G1-064).
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(allow) = allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(seconds) = problem.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    fn problem(self) -> SignedProblem {
        use SignedProblemType::*;
        let unverified = |detail: &str| SignedProblem::new(SignatureVerificationFailed, detail);
        match self {
            Self::Common(refusal) => refusal.problem().into(),
            Self::NoClient => {
                SignedProblem::new(InvalidClient, "there is no client with this id; onboard first")
            }
            Self::NotAccepted(standing) => SignedProblem::new(
                CertificateNotTrusted,
                match standing {
                    SignedStanding::Accepted => "this client is accepted",
                    SignedStanding::Pending => "no operator has accepted this client yet; try again later",
                    SignedStanding::Rejected => "an operator rejected this client's certificate",
                    SignedStanding::Retired => RETIRED,
                },
            ),
            Self::Headers(HeaderError::Missing) => unverified(&HeaderError::Missing.to_string()),
            Self::Headers(error) => SignedProblem::new(InvalidRequest, error.to_string()),
            Self::Uncovered { component } => SignedProblem::new(
                InvalidRequest,
                format!("no signature of the request covers {component}; sign it too"),
            ),
            Self::Base(error) => SignedProblem::new(InvalidRequest, error.to_string()),
            Self::Digest(error) => SignedProblem::new(InvalidDigestHeader, error.to_string()),
            Self::DigestMismatch => {
                SignedProblem::new(InvalidDigestHeader, "Content-Digest is not the SHA-256 of the body")
            }
            Self::NoHost => {
                SignedProblem::new(InvalidRequest, "the request has no Host that could be signed")
            }
            Self::NoCreated => unverified("the signature does not say when it was created; add created"),
            Self::TooOld { window_seconds } => unverified(&format!(
                "the signature is older than {window_seconds} seconds; sign anew, and check the clock"
            )),
            Self::FromTheFuture => unverified("the signature was created in the future; check the clock"),
            Self::Expired => unverified("the signature has expired; sign anew"),
            Self::Signature(fault) => unverified(&fault.to_string()),
            Self::Replay(Refused::Copied) => {
                unverified("this signature was used before; sign every request anew")
            }
            Self::Replay(Refused::ClientFull { retry_after }) => Problem::too_many_requests(
                retry_after.as_secs().max(1),
                "this client changed more within the signature window than it may",
            )
            .into(),
            Self::Replay(Refused::Full) => {
                Problem::unavailable(later(), "the server has more to do than it can; try again later").into()
            }
            Self::NoDigest => SignedProblem::new(
                InvalidRequest,
                "a bundle is named by sha256: and 64 lower-case hex digits",
            ),
            Self::NotACertificate(detail) => SignedProblem::new(InvalidCertificateFormat, detail),
            Self::Certificate(fault) => {
                let cause = std::error::Error::source(&fault).map(|cause| format!(": {cause}"));
                let detail = format!("the certificate cannot be used: {fault}{}", cause.unwrap_or_default());
                SignedProblem::new(InvalidCertificateFormat, detail)
            }
            Self::Pending => SignedProblem::new(
                CertificateNotTrusted,
                "an operator has to accept this certificate; ask again later",
            ),
            Self::Rejected => {
                SignedProblem::new(CertificateNotTrusted, "an operator rejected this certificate")
            }
            Self::Retired => SignedProblem::new(CertificateNotTrusted, RETIRED),
        }
    }
}
