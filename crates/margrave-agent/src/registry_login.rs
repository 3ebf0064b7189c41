//! What this device and its container engine show the server's registry: a token that it gets with its identity.

use std::time::Duration;

use margrave_core::moment::Moment;
use margrave_core::report::{Failure, FailureCode};
use margrave_http::Request;
use margrave_wire::identity::RegistryToken;
use tokio::sync::Mutex;

use crate::clock;
use crate::identity::refusal;
use crate::runtime::engine::Login;
use crate::upstream::Link;

/// A token with less than this left is not given to a download that may take long.
const LEFT_MIN: Duration = Duration::from_secs(30 * 60);

/// Asks for a token when one is needed and keeps it, in memory only, while it is good.
pub struct RegistryLogin {
    link: Link,
    path: String,
    held: Mutex<Option<(Login, Moment)>>,
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
        if let Some((login, expires)) = &*held
            && expires.since(clock::now()) > LEFT_MIN
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
        *held = Some((login.clone(), expires));
        Ok(login)
    }
}
