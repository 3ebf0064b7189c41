//! The registry of the server that manages this device, where only a login opens it.
//!
//! Knows how to reach it and when the login is another one. What is fetched there is `components.rs`'s.

use std::sync::{Arc, Mutex, PoisonError};

use margrave_core::report::Failure;
use margrave_http::{InvalidOrigin, Origin};
use margrave_oci::client::{Client, Endpoint, Hosts, Tls};
use margrave_oci::reference::{Host, OWN_REGISTRY};

use super::engine::Login;
use crate::registry_login::RegistryLogin;

pub struct OwnRegistry {
    host: Host,
    /// By TLS, trusted by the authority that the server named; `None` goes by the rule for everybody's.
    secure: Option<Endpoint>,
    login: Arc<RegistryLogin>,
    held: Mutex<Option<(Login, Client)>>,
}

impl OwnRegistry {
    pub fn new(
        host: Host,
        authority: Option<String>,
        login: Arc<RegistryLogin>,
    ) -> Result<Self, InvalidOrigin> {
        let secure = match authority {
            Some(authority) => {
                let origin = Origin::parse(&format!("https://{host}"))?;
                Some(Endpoint::new(origin, Tls::SystemRootsAnd(authority)))
            }
            None => None,
        };
        Ok(OwnRegistry { host, secure, login, held: Mutex::default() })
    }

    pub(super) fn is(&self, host: &Host) -> bool {
        *host == self.host || host.is_own_registry()
    }

    /// The login of the last client was not taken: the next one has another.
    pub(super) async fn refused(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((login, _)) = held {
            self.login.refused(&login).await;
        }
    }

    /// A client with a login that will do for a while. Connections last as long as the login.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        let login = self.login.login().await?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, client)) = &*held
            && *known == login
        {
            return Ok(client.clone());
        }
        let endpoint = match &self.secure {
            Some(endpoint) => endpoint.clone(),
            None => {
                Hosts::new().endpoint(&self.host).map_err(|error| super::components::pull_failure(&error))?
            }
        };
        let endpoint = endpoint.with_credentials(&login.username, &login.password);
        let own = Host::parse(OWN_REGISTRY).expect("a host like any other");
        let client = Client::new(Hosts::new().with(own, endpoint.clone()).with(self.host.clone(), endpoint));
        *held = Some((login, client.clone()));
        Ok(client)
    }
}
