//! Where requests go: scheme, host, port, and a path prefix that all of them share.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use rustls::pki_types::ServerName;

/// Longer addresses are not typed by people.
const ORIGIN_LENGTH_MAX: usize = 2048;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// A server's address, such as `https://plant.example:8444/v1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    scheme: Scheme,
    /// A DNS name in lower case, or an IP address without brackets.
    host: String,
    port: u16,
    /// Empty, or a path that begins with a slash and does not end with one.
    prefix: String,
}

/// Why a text is not the address of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{got:?} is not the address of a server: {why}; write it like https://plant.example:8443")]
pub struct InvalidOrigin {
    pub got: String,
    pub why: &'static str,
}

impl Origin {
    pub fn parse(text: &str) -> Result<Origin, InvalidOrigin> {
        let (mut origin, path) = Origin::split(text)?;
        let invalid = |why| InvalidOrigin { got: shown(text), why };
        if path.contains('?') {
            return Err(invalid("it must not have a query"));
        }
        origin.prefix = path.trim_end_matches('/').to_owned();
        Ok(origin)
    }

    /// The origin of a full URL (without prefix), and its path with query: for links in answers.
    pub fn split(text: &str) -> Result<(Origin, String), InvalidOrigin> {
        let invalid = |why| InvalidOrigin { got: shown(text), why };
        if text.len() > ORIGIN_LENGTH_MAX {
            return Err(invalid("it is too long"));
        }
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Scheme::Https, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Scheme::Http, rest),
            _ => return Err(invalid("it must begin with https:// or http://")),
        };
        if rest.contains('#') {
            return Err(invalid("it must not have a fragment"));
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(invalid("it must not contain a user name or password"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) =
                    rest.split_once(']').ok_or_else(|| invalid("a bracket is not closed"))?;
                let address: Ipv6Addr =
                    address.parse().map_err(|_| invalid("brackets are for IPv6 addresses only"))?;
                let port = match rest.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if rest.is_empty() => None,
                    None => return Err(invalid("after the bracket comes a colon and the port")),
                };
                (address.to_string(), port)
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host.to_ascii_lowercase(), Some(port)),
                None => (authority.to_ascii_lowercase(), None),
            },
        };
        if host.is_empty() {
            return Err(invalid("it names no host"));
        }
        ServerName::try_from(host.as_str())
            .map_err(|_| invalid("its host is neither a DNS name nor an IP address"))?;
        let port = match port {
            None => scheme.port(),
            Some(port) => match port.parse::<u16>() {
                Ok(port) if port != 0 => port,
                _ => return Err(invalid("its port is not a number from 1 to 65535")),
            },
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        // Whatever cannot stand in a request line is refused here, where a person can still correct it.
        http::uri::PathAndQuery::try_from(path.as_str())
            .map_err(|_| invalid("its path has characters that must be percent-encoded"))?;
        Ok((Origin { scheme, host, port, prefix: String::new() }, path))
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Whether the host is this machine by its very name.
    pub fn is_loopback(&self) -> bool {
        self.address().map_or(self.host == "localhost", |address| address.is_loopback())
    }

    /// What stands in the `Host` header: the port is left out where it is the usual one.
    pub fn authority(&self) -> String {
        let host = match self.address() {
            Some(IpAddr::V6(address)) => format!("[{address}]"),
            _ => self.host.clone(),
        };
        if self.port == self.scheme.port() { host } else { format!("{host}:{}", self.port) }
    }

    pub(crate) fn server_name(&self) -> ServerName<'static> {
        ServerName::try_from(self.host.clone()).expect("checked when the origin was parsed")
    }
}

fn shown(text: &str) -> String {
    // A password in a URL must not reach a log, and neither must megabytes.
    let text: String = text.chars().take(200).collect();
    match text.split_once("://") {
        Some((scheme, rest)) => match rest.split_once('@') {
            Some((_, rest)) => format!("{scheme}://…@{rest}"),
            None => text,
        },
        None => text,
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme.as_str(), self.authority(), self.prefix)
    }
}

impl FromStr for Origin {
    type Err = InvalidOrigin;
    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        Origin::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_survives_its_own_text() {
        for text in [
            "https://plant.example",
            "https://plant.example:8443/v1alpha2/margo",
            "http://127.0.0.1:5000",
            "https://[::1]:8443",
            "https://[fd00::7]",
        ] {
            assert_eq!(Origin::parse(text).unwrap().to_string(), text);
        }
        let spelled = Origin::parse("HTTPS://Plant.Example:443/a/").unwrap();
        assert_eq!(spelled.to_string(), "https://plant.example/a");
        assert_eq!((spelled.host(), spelled.port(), spelled.prefix()), ("plant.example", 443, "/a"));
    }

    #[test]
    fn what_is_no_origin_says_why() {
        for (text, why) in [
            ("plant.example", "begin with"),
            ("ftp://plant.example", "begin with"),
            ("https://", "no host"),
            ("https://:8443", "no host"),
            ("https://a:0", "port"),
            ("https://a:99999", "port"),
            ("https://a:b", "port"),
            ("https://a:", "port"),
            ("https://a b", "neither"),
            ("https://a_b..c", "neither"),
            ("https://[::1", "bracket"),
            ("https://[plant]", "IPv6"),
            ("https://[::1]8443", "colon"),
            ("https://a/?x=1", "query"),
            ("https://a/#x", "fragment"),
            ("https://a/b c", "percent"),
            ("https://user:secret@a", "password"),
        ] {
            let error = Origin::parse(text).unwrap_err();
            assert!(error.to_string().contains(why), "{text}: {error}");
            assert!(!error.to_string().contains("secret"));
        }
    }

    #[test]
    fn a_link_is_split_into_origin_and_path() {
        let (origin, path) = Origin::split("https://registry.example:5000/v2/a/blobs?digest=x%3Ay").unwrap();
        assert_eq!(origin.to_string(), "https://registry.example:5000");
        assert_eq!(path, "/v2/a/blobs?digest=x%3Ay");
        assert_eq!(Origin::split("https://a?x=1").unwrap().1, "/?x=1");
    }

    #[test]
    fn loopback_is_known_by_name() {
        for (text, expected) in [
            ("http://localhost:1", true),
            ("http://127.8.8.8", true),
            ("http://[::1]", true),
            ("http://10.0.0.1", false),
            ("http://localhost.example", false),
        ] {
            assert_eq!(Origin::parse(text).unwrap().is_loopback(), expected, "{text}");
        }
    }
}
