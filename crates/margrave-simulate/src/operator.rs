//! What simulating needs from the operator interface: tokens to join with, and retiring what it made.

use std::collections::BTreeMap;
use std::sync::Arc;

use margrave_http::{Client, Limits, Origin, Request, StatusCode, Trust, header};
use margrave_wire::operator::{Context, CreateJoinToken, JoinToken, PREFIX, Problem};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

/// Everything but what RFC 3986 calls unreserved.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Requests under way at once. The server groups their commits, so a few dozen keep its disk busy.
pub(crate) const TOGETHER: usize = 32;
/// A list of thousands of assignments is a few megabytes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    #[error("the server's address is not usable: {0}")]
    Address(String),
    #[error("the server could not be asked")]
    Unreachable(#[source] margrave_http::Error),
    #[error("the server does not have it: {0}")]
    NotFound(String),
    #[error("the server refused: {0}")]
    Refused(String),
    #[error("the server's answer makes no sense")]
    Answer(#[source] serde_json::Error),
}

/// One operator's right on one server.
#[derive(Clone)]
pub struct Operator {
    http: Client,
    context: Arc<Context>,
}

impl Operator {
    /// `trust` says how the server at the context's address is recognised.
    pub fn new(context: Context, trust: Trust) -> Result<Operator, OperatorError> {
        let origin = Origin::parse(&context.url).map_err(|e| OperatorError::Address(e.to_string()))?;
        let limits = Limits { idle_connections: TOGETHER, body_max: ANSWER_BYTES_MAX, ..Limits::default() };
        let http = Client::new(trust, origin, limits).map_err(|e| OperatorError::Address(e.to_string()))?;
        Ok(Operator { http, context: Arc::new(context) })
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub async fn join_token(
        &self,
        device: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<JoinToken, OperatorError> {
        let want = CreateJoinToken {
            git: false,
            device: Some(device.to_owned()),
            labels: labels.clone(),
            // Used within the minute; what is left over from a run that broke off is soon worthless.
            valid_seconds: Some(3600),
        };
        self.ask(Request::post(format!("{PREFIX}/join-tokens")).json(&want)).await
    }

    /// Whether the server has a device of that name.
    pub async fn knows(&self, device: &str) -> Result<bool, OperatorError> {
        let device = utf8_percent_encode(device, SEGMENT);
        found(self.send(Request::get(format!("{PREFIX}/devices/{device}"))).await)
    }

    /// False where the server has no such device.
    pub async fn retire(&self, device: &str) -> Result<bool, OperatorError> {
        let device = utf8_percent_encode(device, SEGMENT);
        found(self.send(Request::post(format!("{PREFIX}/devices/{device}/retire"))).await)
    }

    /// Any other question, with this operator's right.
    pub async fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<T, OperatorError> {
        let response = self.send(request).await?;
        response.json().map_err(OperatorError::Answer)
    }

    pub async fn send(&self, request: Request) -> Result<margrave_http::Response, OperatorError> {
        let right = format!("Bearer {}", self.context.token);
        let request = request.secret_header(header::AUTHORIZATION, right);
        let response = self.http.send(request).await.map_err(OperatorError::Unreachable)?;
        if response.status.is_success() {
            return Ok(response);
        }
        let said = match response.json::<Problem>() {
            Ok(problem) => format!("{} ({})", problem.title, problem.detail),
            Err(_) => format!("HTTP {}", response.status),
        };
        Err(match response.status {
            StatusCode::NOT_FOUND => OperatorError::NotFound(said),
            _ => OperatorError::Refused(said),
        })
    }
}

fn found(answer: Result<margrave_http::Response, OperatorError>) -> Result<bool, OperatorError> {
    match answer {
        Ok(_) => Ok(true),
        Err(OperatorError::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}
