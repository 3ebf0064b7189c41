//! SPIFFE names of the WFM identity profile: parse and compare, nothing cryptographic.

use std::fmt;

use crate::id::{ClientId, TrustDomain, WfmId};

/// The server's name, `spiffe://<trust-domain>/margo/wfm/<wfm-id>` (ID-010).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerName {
    pub trust_domain: TrustDomain,
    pub wfm: WfmId,
}

/// A client's name, `spiffe://<trust-domain>/margo/wfm/<wfm-id>/client/<wfm-client-id>` (ID-011).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientName {
    pub server: ServerName,
    pub client: ClientId,
}

/// Why a SPIFFE ID is not the name that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{got:?} is not of the form {wanted} (ID-014)")]
pub struct InvalidName {
    pub wanted: &'static str,
    pub got: String,
}

const SERVER_FORM: &str = "spiffe://<trust-domain>/margo/wfm/<wfm-id>";
const CLIENT_FORM: &str = "spiffe://<trust-domain>/margo/wfm/<wfm-id>/client/<wfm-client-id>";
/// The longest SPIFFE ID that has to be supported (ID-013).
const NAME_LENGTH_MAX: usize = 2048;

impl ServerName {
    /// Reads the raw text of the URI SAN; it is never re-serialised first (ID-014).
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName { wanted: SERVER_FORM, got: text.chars().take(200).collect() };
        if text.len() > NAME_LENGTH_MAX {
            return Err(invalid());
        }
        let rest = text.strip_prefix("spiffe://").ok_or_else(invalid)?;
        let (trust_domain, wfm) = rest.split_once("/margo/wfm/").ok_or_else(invalid)?;
        Ok(ServerName {
            trust_domain: TrustDomain::parse(trust_domain).map_err(|_| invalid())?,
            wfm: WfmId::parse(wfm).map_err(|_| invalid())?,
        })
    }

    pub fn client(&self, client: ClientId) -> ClientName {
        ClientName { server: self.clone(), client }
    }
}

impl ClientName {
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName { wanted: CLIENT_FORM, got: text.chars().take(200).collect() };
        let (server, client) = text.split_once("/client/").ok_or_else(invalid)?;
        Ok(ClientName {
            server: ServerName::parse(server).map_err(|_| invalid())?,
            client: ClientId::parse(client).map_err(|_| invalid())?,
        })
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/margo/wfm/{}", self.trust_domain, self.wfm)
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/client/{}", self.server, self.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_010_id_011_names_survive_their_own_text() {
        let server = "spiffe://plant-nine.example/margo/wfm/line-7";
        let client = "spiffe://plant-nine.example/margo/wfm/line-7/client/press.42";
        assert_eq!(ServerName::parse(server).unwrap().to_string(), server);
        assert_eq!(ClientName::parse(client).unwrap().to_string(), client);
        assert_eq!(ClientName::parse(client).unwrap().server, ServerName::parse(server).unwrap());
    }

    #[test]
    fn id_013_id_015_anything_else_is_refused() {
        for bad in [
            "",
            "spiffe://plant/margo/wfm/",
            "spiffe://plant/margo/wfm/..",
            "spiffe://Plant/margo/wfm/a",
            "SPIFFE://plant/margo/wfm/a",
            "spiffe://plant:8443/margo/wfm/a",
            "spiffe://plant/margo/wfm/a/",
            "spiffe://plant/margo/wfm/a?x=1",
            "spiffe://plant/margo/wfm/a%2e",
            "spiffe://plant/other/wfm/a",
            "https://plant/margo/wfm/a",
        ] {
            assert!(ServerName::parse(bad).is_err(), "{bad}");
            assert!(ClientName::parse(bad).is_err(), "{bad}");
        }
        let server = "spiffe://plant/margo/wfm/a";
        assert!(ClientName::parse(server).is_err());
        assert!(ServerName::parse(&format!("{server}/client/c")).is_err());
        assert!(ClientName::parse(&format!("{server}/client/c/client/d")).is_err());
        assert!(ClientName::parse(&format!("{server}/client/c~")).is_err());
        assert!(ServerName::parse(&format!("{server}{}", "b".repeat(2048))).is_err());
    }
}
