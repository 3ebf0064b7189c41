//! What this device and its container engine show the server's registry: a token that it gets with its identity.

use std::time::Duration;

use margrave_core::moment::Moment;
use margrave_core::report::{Failure, FailureCode};
use margrave_http::Request;
use margrave_wire::identity::RegistryToken;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::clock;
use crate::identity::refusal;
use crate::runtime::engine::Login;
use crate::upstream::Link;

/// A token with less than this left is not given to a download that may take long.
const LEFT_MIN: Duration = Duration::from_secs(30 * 60);

/// What the server gives. Counted from when a token came, by a clock that nobody sets: one that was wrong then, or is set since,
/// does not make a token last.
const LIFETIME_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Asks for a token when one is needed and keeps it, in memory only, while it is good.
pub struct RegistryLogin {
    link: Link,
    path: String,
    /// With its end.
    held: Mutex<Option<(Login, Instant)>>,
}

impl std::fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegistryLogin({})", self.path)
    }
}

impl RegistryLogin {
    /// With a link of its own, which is used twice a day.
    pub(crate) fn new(link: Link, path: String) -> Self {
        RegistryLogin { link, path, held: Mutex::new(None) }
    }

    pub async fn login(&self) -> Result<Login, Failure> {
        let mut held = self.held.lock().await;
        if let Some((login, end)) = &*held
            && end.saturating_duration_since(Instant::now()) > LEFT_MIN
        {
            return Ok(login.clone());
        }
        let failed = |message: String| Failure::new(FailureCode::PullFailed, message);
        let sent = self.link.send(Request::post(self.path.clone())).await;
        // Nothing is asked again for hours, and a renewed identity is presented only on a new connection.
        self.link.reset();
        let response = sent.map_err(|trouble| {
            failed(format!("The server gave no token for its registry: {}.", trouble.message))
        })?;
        if !response.status.is_success() {
            let message = format!("The server gave no token for its registry: {}.", refusal(&response));
            return Err(Failure::new(FailureCode::PullDenied, message));
        }
        let token: RegistryToken = response
            .json()
            .map_err(|error| failed(format!("The server's registry token is not usable: {error}.")))?;
        let expires = token.expires.parse::<jiff::Timestamp>();
        let expires = expires
            .map_err(|error| failed(format!("The server's registry token is not usable: {error}.")))?;
        let expires = Moment(u64::try_from(expires.as_millisecond()).unwrap_or(0));
        let login = Login { username: token.username, password: token.password };
        *held = Some((login.clone(), Instant::now() + lifetime(expires, clock::now())));
        Ok(login)
    }

    /// Forgets a login that the registry did not take, so that the next one is another.
    pub async fn refused(&self, login: &Login) {
        let mut held = self.held.lock().await;
        if held.as_ref().is_some_and(|(known, _)| known == login) {
            *held = None;
        }
    }
}

fn lifetime(expires: Moment, now: Moment) -> Duration {
    expires.since(now).min(LIFETIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_behind_does_not_make_a_token_last() {
        let hour = Duration::from_secs(3600);
        let expires = Moment(0).after(1000 * hour);
        assert_eq!(lifetime(expires, Moment(0)), LIFETIME_MAX);
        assert_eq!(lifetime(expires, Moment(0).after(999 * hour)), hour);
        assert_eq!(lifetime(expires, Moment(0).after(1001 * hour)), Duration::ZERO);
    }
}
