//! What makes HTTPS trustworthy where no SVID is presented: an identity service, a page, the signed interface.

use std::path::Path;

use margrave_http::{Client, Limits, Origin, Trust};
use margrave_identity::pin::Pin;
use margrave_identity::tls::{authority_client_config, pinned_client_config};
use serde::{Deserialize, Serialize};

use super::{IdentityError, read_bounded};

/// How a server's web certificate is judged (ID-160). Never how an SVID is (ID-165).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WebTrust {
    /// The key of the server or of an authority above it (ID-161); one of several is enough.
    Pins(Vec<String>),
    /// Certificates of authorities, PEM; the server's DNS name is checked too.
    Authority(String),
    /// The authorities that this machine trusts.
    System,
}

impl WebTrust {
    /// From what a person typed: pins, a file with authorities, or neither.
    pub fn of(pins: Vec<String>, authority: Option<&Path>) -> Result<WebTrust, IdentityError> {
        if !pins.is_empty() {
            for pin in &pins {
                Pin::parse(pin).map_err(IdentityError::Pin)?;
            }
            return Ok(WebTrust::Pins(pins));
        }
        let Some(path) = authority else { return Ok(WebTrust::System) };
        let pem = read_bounded(path)?;
        authority_client_config(&pem)
            .map_err(|error| IdentityError::Unusable(path.to_owned(), Box::new(error)))?;
        Ok(WebTrust::Authority(pem))
    }

    /// A client of the server at `origin`. Nothing is dialled yet.
    pub(crate) async fn client(&self, origin: Origin, limits: Limits) -> Result<Client, IdentityError> {
        let config = match self {
            WebTrust::Pins(pins) => {
                let pins: Result<Vec<Pin>, _> = pins.iter().map(|pin| Pin::parse(pin)).collect();
                pinned_client_config(pins.map_err(IdentityError::Pin)?)
            }
            WebTrust::Authority(pem) => {
                authority_client_config(pem).map_err(|error| IdentityError::Trust(Box::new(error)))?
            }
            WebTrust::System => margrave_oci::client::system_roots()
                .await
                .map_err(|error| IdentityError::Trust(Box::new(error)))?,
        };
        Client::new(Trust::Tls(config), origin, limits)
            .map_err(|error| IdentityError::Address(error.to_string()))
    }
}
