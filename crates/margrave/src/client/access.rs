//! Operators' tokens, sealed secrets and the audit log, as commands ask for them.

use margrave_core::access::Role;
use margrave_http::Request;
use margrave_wire::operator::{
    AuditEntry, CreateToken, CreatedToken, EndedSessions, Page, SealSecret, SealedSecret, Token,
};

use super::{Client, at, segment};
use crate::exit::{Result, Trouble};

impl Client {
    pub(crate) async fn tokens(&self) -> Result<Vec<Token>> {
        self.all("/tokens?limit=1000").await
    }

    /// What a command is told that does not get so far as to ask for a change: first that the caller may not make it, if that is
    /// so. An older server does not say who asks; then it is as it was.
    pub(crate) async fn unless_not_allowed(&self, needed: Role, trouble: Trouble) -> Trouble {
        let own: Result<Token> = self.get("/tokens/mine").await;
        let has = own.ok().and_then(|own| Role::parse(&own.role));
        match has.filter(|has| !has.allows(needed)) {
            Some(has) => Trouble::refused(has.too_little(needed)),
            None => trouble,
        }
    }

    pub(crate) async fn create_token(&self, want: &CreateToken) -> Result<CreatedToken> {
        self.ask(Request::post(at("/tokens")).json(want)).await
    }

    pub(crate) async fn revoke_token(&self, id: &str) -> Result<Token> {
        self.ask(Request::post(at(&format!("/tokens/{}/revoke", segment(id))))).await
    }

    pub(crate) async fn end_all_sessions(&self) -> Result<EndedSessions> {
        self.ask(Request::post(at("/sessions/end-all"))).await
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
