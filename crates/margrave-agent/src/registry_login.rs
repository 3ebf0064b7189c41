//! What the container engine shows the server's registry: a token that this device gets with its identity.

use std::time::Duration;

use margrave_core::moment::Moment;
use margrave_core::report::{Failure, FailureCode};
use margrave_http::{Client, Request};
use margrave_wire::identity::{REGISTRY_TOKEN_PATH, RegistryToken};
use tokio::sync::Mutex;

use crate::clock;
use crate::identity::refusal;
use crate::runtime::engine::Login;

/// A token with less than this left is not given to a download that may take long.
const LEFT_MIN: Duration = Duration::from_secs(30 * 60);

/// Asks for a token when one is needed and keeps it, in memory only, while it is good.
pub struct RegistryLogin {
    client: Client,
    held: Mutex<Option<(Login, Moment)>>,
}

impl std::fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegistryLogin({})", self.client.peer())
    }
}

impl RegistryLogin {
    pub fn new(client: Client) -> Self {
        RegistryLogin { client, held: Mutex::new(None) }
    }

    pub async fn login(&self) -> Result<Login, Failure> {
        let mut held = self.held.lock().await;
        if let Some((login, expires)) = &*held
            && expires.since(clock::now()) > LEFT_MIN
        {
            return Ok(login.clone());
        }
        // A renewed identity is presented only on a new connection.
        self.client.reset();
        let failed = |message: String| Failure::new(FailureCode::PullFailed, message);
        let response = self
            .client
            .send(Request::post(REGISTRY_TOKEN_PATH))
            .await
            .map_err(|error| failed(format!("The server gave no token for its registry: {error}.")))?;
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
