//! Who may use the built-in registry, and the tokens with which devices' container engines pull from it.
//!
//! Operators push and pull with their token, devices pull: by their certificate on the device listener, by a
//! token elsewhere, because container engines know nothing better than Basic. The registry itself is
//! `margrave-registry`; only its question "who may do what" is answered here.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::Router;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::request::Parts;
use margrave_core::access::Role;
use margrave_core::digest::Digest;
use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_device_api::Caller;
use margrave_registry::{Access, Action, Decision, Registry, RepositoryName};
use margrave_wire::identity::RegistryToken;

use crate::auth;
use crate::fleet::{Clock, Fleet, Standing};
use crate::guessing::Guessing;
use crate::http::audit::Note;

/// Half a day: an engine that pulls through the night needs no new one, and a stolen one is worth little.
/// The client's standing is asked at every use, so it never outlives the client itself.
const TOKEN_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// Tells our tokens from operators' without asking the store.
const TOKEN_PREFIX: &str = "mrt1.";
/// Keeps these signatures from meaning anything elsewhere.
const TOKEN_CONTEXT: &[u8] = b"margrave registry token, version 1\0";

/// Makes and checks devices' registry tokens. They are signed, not stored: there may be as many as there are
/// devices, and every server with the same identity understands them.
#[derive(Clone)]
pub struct RegistryTokens {
    key: hmac::Key,
    /// `host:port`, as devices reach the registry.
    address: Arc<str>,
    /// PEM, where it is reached by TLS.
    authority: Option<Arc<str>>,
}

/// A token and when it ends.
pub struct Issued {
    pub token: String,
    pub expires: Moment,
}

impl RegistryTokens {
    pub fn new(key: hmac::Key, address: &str, authority: Option<&str>) -> Self {
        RegistryTokens { key, address: address.into(), authority: authority.map(Arc::from) }
    }

    pub fn issue(&self, client: &ClientId, now: Moment) -> Issued {
        let expires = now.after(TOKEN_LIFETIME);
        let claim = format!("{}/{client}", expires.0);
        let tag = hmac::sign(&self.key, &message(&claim));
        let token =
            format!("{TOKEN_PREFIX}{}.{}", URL_SAFE_NO_PAD.encode(&claim), URL_SAFE_NO_PAD.encode(tag));
        Issued { token, expires }
    }

    /// As [`RegistryTokens::issue`], in the words of the wire.
    pub fn login(&self, client: &ClientId, now: Moment) -> RegistryToken {
        let Issued { token, expires } = self.issue(client, now);
        let expires = jiff::Timestamp::from_millisecond(i64::try_from(expires.0).unwrap_or(i64::MAX))
            .map_or_else(|_| jiff::Timestamp::MAX.to_string(), |expires| expires.to_string());
        RegistryToken {
            username: client.to_string(),
            password: token,
            expires,
            registry: Some(self.address.to_string()),
            web_authority: self.authority.as_deref().map(str::to_owned),
        }
    }

    /// Whose token it is, if we made it and it is still good.
    pub fn check(&self, token: &str, now: Moment) -> Option<ClientId> {
        let (claim, tag) = token.strip_prefix(TOKEN_PREFIX)?.split_once('.')?;
        let claim = String::from_utf8(URL_SAFE_NO_PAD.decode(claim).ok()?).ok()?;
        hmac::verify(&self.key, &message(&claim), &URL_SAFE_NO_PAD.decode(tag).ok()?).ok()?;
        let (expires, client) = claim.split_once('/')?;
        let expires = Moment(expires.parse().ok()?);
        (now < expires).then(|| ClientId::parse(client).ok()).flatten()
    }
}

fn message(claim: &str) -> Vec<u8> {
    [TOKEN_CONTEXT, claim.as_bytes()].concat()
}

/// The registry, ready to be put behind a listener.
#[derive(Clone)]
pub struct Mount {
    pub registry: Arc<Registry>,
    pub fleet: Arc<Fleet>,
    pub tokens: RegistryTokens,
    pub clock: Clock,
    pub(crate) guessing: Arc<Guessing>,
}

impl Mount {
    pub fn router(self) -> Router {
        margrave_registry::router(Registry::clone(&self.registry), self)
    }

    /// Whose credentials these are; an operator's may do more.
    async fn visitor(&self, request: &Parts) -> Option<Visitor> {
        if let Some(Caller(client)) = request.extensions.get::<Caller>() {
            return Some(Visitor::Device(client.clone()));
        }
        let token = auth::token(&request.headers)??;
        if token.starts_with(TOKEN_PREFIX) {
            let client = self.tokens.check(&token, self.clock.now())?;
            // A token with somebody else's name on it is at best a mix-up.
            let named = auth::basic_user(&request.headers).is_none_or(|user| user == client.as_str());
            return named.then_some(Visitor::Device(client));
        }
        let holder = auth::by_token(&self.fleet, &self.guessing, &token, &request.extensions).await.ok()?;
        Note::of(&request.extensions).by(&holder);
        Some(Visitor::Operator(holder.role))
    }
}

enum Visitor {
    Operator(Role),
    Device(ClientId),
}

impl Access for Mount {
    async fn decide(&self, request: &Parts, action: Action, _: Option<&RepositoryName>) -> Decision {
        let reads = matches!(action, Action::Connect | Action::Pull);
        let allowed = match self.visitor(request).await {
            None => return Decision::Authenticate,
            Some(Visitor::Operator(role)) => role.allows(if reads { Role::Viewer } else { Role::Operator }),
            Some(Visitor::Device(client)) => {
                reads && self.fleet.standing(&client) == Some(Standing::Accepted)
            }
        };
        // What is pushed lies in files, not in the store.
        if allowed
            && !reads
            && let Err(error) = self.fleet.begin().await
        {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "what is pushed could not be written down before it is"
            );
            return if error.is_disk_full() { Decision::Full } else { Decision::Later };
        }
        if allowed { Decision::Allow } else { Decision::Deny }
    }

    async fn keeps(&self, repository: &RepositoryName, manifest: &Digest) -> Option<String> {
        match self.fleet.kept_for(repository, manifest).await {
            Ok(packages) if packages.is_empty() => None,
            Ok(packages) => Some(format!(
                "packages of the catalog go by it: {}; remove them from the catalog first",
                packages.join(", ")
            )),
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "who goes by a manifest is not known"
                );
                Some("whether packages go by it cannot be told now; try again".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(1_800_000_000_000);

    fn tokens(secret: u8) -> RegistryTokens {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[secret; 32]);
        RegistryTokens::new(key, "server.example:8443", None)
    }

    #[test]
    fn a_registry_token_names_its_client_until_it_expires() {
        let tokens = tokens(1);
        let client: ClientId = "line.7-press_42".parse().unwrap();
        let Issued { token, expires } = tokens.issue(&client, NOW);
        assert_eq!(tokens.check(&token, NOW), Some(client.clone()));
        assert_eq!(tokens.check(&token, Moment(expires.0 - 1)), Some(client));
        assert_eq!(tokens.check(&token, expires), None);
    }

    #[test]
    fn a_registry_token_cannot_be_made_up() {
        let client: ClientId = "line-1".parse().unwrap();
        let token = tokens(1).issue(&client, NOW).token;
        assert_eq!(tokens(2).check(&token, NOW), None);
        for at in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(bytes).unwrap();
            let claimed = tokens(1).check(&other, NOW);
            // The last base64 digit carries spare bits; a strict decoder refuses those as well.
            assert_eq!(claimed, None, "{other}");
        }
        for bad in ["", "mrt1.", "mrt1..", "mrt1.a.b", &token[..token.len() - 1]] {
            assert_eq!(tokens(1).check(bad, NOW), None, "{bad}");
        }
    }
}
