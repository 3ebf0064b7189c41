//! Operators' tokens, sealed secrets and the audit log, as commands ask for them.

use margrave_http::Request;
use margrave_wire::operator::{AuditEntry, CreateToken, CreatedToken, Page, SealSecret, SealedSecret, Token};

use super::{Client, at, segment};
use crate::exit::Result;

impl Client {
    pub(crate) async fn tokens(&self) -> Result<Vec<Token>> {
        self.all("/tokens?limit=1000").await
    }

    pub(crate) async fn create_token(&self, want: &CreateToken) -> Result<CreatedToken> {
        self.ask(Request::post(at("/tokens")).json(want)).await
    }

    pub(crate) async fn revoke_token(&self, id: &str) -> Result<Token> {
        self.ask(Request::post(at(&format!("/tokens/{}/revoke", segment(id))))).await
    }

    pub(crate) async fn seal(&self, want: &SealSecret) -> Result<SealedSecret> {
        self.ask(Request::post(at("/secrets/seal")).json(want)).await
    }

    /// One page of the log, newest first; `after` is the `next` of the page before.
    pub(crate) async fn audit(
        &self,
        filter: &[(&str, Option<&str>)],
        limit: usize,
        after: Option<&str>,
    ) -> Result<Page<AuditEntry>> {
        let mut query = format!("/audit?limit={limit}");
        for (name, value) in filter.iter().copied().chain([("after", after)]) {
            if let Some(value) = value {
                query.push_str(&format!("&{name}={}", segment(value)));
            }
        }
        self.get(&query).await
    }
}
