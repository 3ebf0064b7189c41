//! Who may do what: a question this crate asks and never answers itself.

use ::http::request::Parts;
use ::http::{HeaderMap, header};
use base64::Engine as _;
use margrave_core::digest::Digest;
use margrave_oci::reference::RepositoryName;

/// What a request wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `GET /v2/`, by which clients find out whether and how to authenticate.
    ///
    /// Docker and skopeo look for a challenge here and nowhere else (tried: Docker 20.10, skopeo 1.9). Let
    /// strangers connect, and no client will ever send its credentials; ask them to authenticate, and Docker
    /// does nothing without credentials, not even pull what strangers may. So with Basic, decide for all
    /// actions alike: strangers may do what they like, or nothing.
    Connect,
    Pull,
    Push,
    Delete,
}

/// The answer to one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allow,
    /// We know who it is, and no. Answered 403.
    Deny,
    /// We do not know who it is; credentials may help. Answered 401 with a challenge.
    Authenticate,
    /// It may, but nobody could write down now that it did. Answered 503.
    Later,
    /// The same, because the disk is full: that ends only when somebody frees some space. Answered 507.
    Full,
}

/// Decides on every request before anything is looked up.
///
/// The whole head of the request is given: headers, and the extensions where an accept loop may have put
/// the peer's identity. Do not accept browser cookies here: these URLs write, and have no defence against
/// requests forged by other pages.
pub trait Access: Send + Sync + 'static {
    /// `repository` is absent only for [`Action::Connect`].
    fn decide(
        &self,
        request: &Parts,
        action: Action,
        repository: Option<&RepositoryName>,
    ) -> impl Future<Output = Decision> + Send;

    /// Why a manifest must stay, whoever wants it deleted: what goes by it, and what to do first. Answered 409.
    fn keeps(
        &self,
        _repository: &RepositoryName,
        _manifest: &Digest,
    ) -> impl Future<Output = Option<String>> + Send {
        std::future::ready(None)
    }
}

impl<F> Access for F
where
    F: Fn(&Parts, Action, Option<&RepositoryName>) -> Decision + Send + Sync + 'static,
{
    async fn decide(&self, request: &Parts, action: Action, repository: Option<&RepositoryName>) -> Decision {
        self(request, action, repository)
    }
}

/// A user name and a password, as a client sent them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl Credentials {
    /// The `Authorization: Basic` of a request; `None` for a stranger.
    ///
    /// Empty credentials are a stranger's too: skopeo and podman answer our challenge with them when they
    /// have none, and must still be able to pull what is public.
    pub fn of(headers: &HeaderMap) -> Option<Credentials> {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, encoded) = value.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok()?;
        let text = String::from_utf8(decoded).ok()?;
        let (user, password) = text.split_once(':')?;
        if user.is_empty() && password.is_empty() {
            return None;
        }
        Some(Credentials { user: user.to_owned(), password: password.to_owned() })
    }
}

/// A password never reaches a log.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_credentials_are_read_and_empty_ones_are_nobodys() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            Credentials::of(&headers).map(|found| (found.user, found.password))
        };
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        assert_eq!(of(&format!("Basic {}", encode("a:b:c"))), Some(("a".into(), "b:c".into())));
        assert_eq!(of(&format!("basic {}", encode("a:"))), Some(("a".into(), String::new())));
        for nobody in ["Basic Og==", "Bearer x", "Basic", "Basic !", &format!("Basic {}", encode("no colon"))]
        {
            assert_eq!(of(nobody), None, "{nobody}");
        }
        assert_eq!(Credentials::of(&HeaderMap::new()), None);
    }
}
