//! Where a container engine listens.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// An engine's address. Only this machine: an engine reached over the network without a login would be
/// root for everybody there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Loopback(SocketAddr),
}

/// Why a text is not the address of an engine that we would use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    #[error("{0:?} is not an engine address; write unix:///path/to/socket")]
    Malformed(String),
    #[error(
        "the engine address {0:?} is not on this machine; use unix:///path/to/socket, or tcp:// with 127.0.0.1 or [::1]"
    )]
    NotLocal(String),
}

impl Address {
    /// Reads an address as `DOCKER_HOST` has it.
    pub fn parse(text: &str) -> Result<Self, InvalidAddress> {
        let shown = || text.chars().take(120).collect::<String>();
        if let Some(path) = text.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Address::Unix(path))
            } else {
                Err(InvalidAddress::Malformed(shown()))
            };
        }
        let Some(host) = text.strip_prefix("tcp://") else {
            return Err(match text.split_once("://") {
                Some(_) => InvalidAddress::NotLocal(shown()),
                None => InvalidAddress::Malformed(shown()),
            });
        };
        let host = host.trim_end_matches('/');
        let host = host
            .strip_prefix("localhost:")
            .map_or_else(|| host.to_owned(), |port| format!("127.0.0.1:{port}"));
        match host.parse::<SocketAddr>() {
            Ok(address) if loopback(address.ip()) => Ok(Address::Loopback(address)),
            // A name could point anywhere, also tomorrow.
            _ => Err(InvalidAddress::NotLocal(shown())),
        }
    }
}

fn loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// As `DOCKER_HOST` has it.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
            Address::Loopback(address) => write!(f, "tcp://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_engines_on_this_machine_are_spoken_to() {
        for (text, shown) in [
            ("unix:///var/run/docker.sock", "unix:///var/run/docker.sock"),
            ("tcp://127.0.0.1:2375", "tcp://127.0.0.1:2375"),
            ("tcp://localhost:2375/", "tcp://127.0.0.1:2375"),
            ("tcp://[::1]:2375", "tcp://[::1]:2375"),
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), shown);
        }
        for text in [
            "tcp://10.0.0.1:2375",
            "tcp://engine.example:2375",
            "ssh://host",
            "tcp://0.0.0.0:1",
            "npipe:////./x",
        ] {
            let error = Address::parse(text).unwrap_err();
            assert!(matches!(&error, InvalidAddress::NotLocal(_)), "{text}");
            assert!(error.to_string().contains("unix:///"), "{error}");
        }
        for text in ["", "unix://relative", "/var/run/docker.sock"] {
            assert!(matches!(Address::parse(text), Err(InvalidAddress::Malformed(_))), "{text}");
        }
    }
}
