//! The address under which clients know a server, which is what they sign (MI-G1-069).

use std::fmt;
use std::str::FromStr;

/// `https://host[:port][/prefix]`: the part of every `@target-uri` that our listener may never see, because
/// a proxy in front of it ends TLS, has another name and port, or strips a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalUrl {
    scheme: &'static str,
    /// Lower-case, without the scheme's own port (RFC 9421, 2.2.3).
    authority: String,
    /// Empty, or starting and not ending with a slash.
    prefix: String,
}

/// Why a text is not such an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "an external URL is https:// (or http://), a host, perhaps a port and a path, and nothing else; got {0:?}"
)]
pub struct InvalidExternalUrl(String);

impl ExternalUrl {
    pub fn parse(text: &str) -> Result<ExternalUrl, InvalidExternalUrl> {
        let invalid = || InvalidExternalUrl(text.chars().take(200).collect());
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => ("https", rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => ("http", rest),
            _ => return Err(invalid()),
        };
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let path = path.trim_end_matches('/');
        let segment = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b))
        };
        let clean = path.is_empty() || path[1..].split('/').all(segment);
        let authority =
            normal(scheme, authority).filter(|_| clean && text.len() <= 1000).ok_or_else(invalid)?;
        Ok(ExternalUrl { scheme, authority, prefix: path.to_owned() })
    }

    /// What a client says that asks `host` over TLS, when nobody told us how we are called.
    pub fn of_host(host: &str) -> Option<ExternalUrl> {
        Some(ExternalUrl { scheme: "https", authority: normal("https", host)?, prefix: String::new() })
    }

    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    pub fn authority(&self) -> &str {
        &self.authority
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether a `Host` header names this address.
    pub fn is_at(&self, host: &str) -> bool {
        normal(self.scheme, host).is_some_and(|host| host == self.authority)
    }
}

/// A host with an optional port, as `@authority` writes it.
fn normal(scheme: &str, authority: &str) -> Option<String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            let literal =
                !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b":.".contains(&b));
            if !literal || !(rest.is_empty() || rest.starts_with(':')) {
                return None;
            }
            (&authority[..address.len() + 2], rest.strip_prefix(':'))
        }
        None => {
            let (host, port) = authority.split_once(':').map_or((authority, None), |(h, p)| (h, Some(p)));
            let name =
                !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
            if !name {
                return None;
            }
            (host, port)
        }
    };
    let host = host.to_ascii_lowercase();
    let port = match port {
        None | Some("") => None,
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => {
            Some(port.parse::<u16>().ok().filter(|p| *p > 0)?)
        }
        Some(_) => return None,
    };
    match (scheme, port) {
        (_, None) | ("https", Some(443)) | ("http", Some(80)) => Some(host),
        (_, Some(port)) => Some(format!("{host}:{port}")),
    }
}

impl fmt::Display for ExternalUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
    }
}

impl FromStr for ExternalUrl {
    type Err = InvalidExternalUrl;
    fn from_str(text: &str) -> Result<Self, InvalidExternalUrl> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_normal_however_it_is_written() {
        let check = |text: &str| ExternalUrl::parse(text).map(|url| url.to_string());
        for (text, wanted) in [
            ("https://WFM.example.com", "https://wfm.example.com"),
            ("https://wfm.example.com:443/", "https://wfm.example.com"),
            ("HTTPS://10.0.0.7:8445", "https://10.0.0.7:8445"),
            ("http://proxy:80/v1alpha2/margo/", "http://proxy/v1alpha2/margo"),
            ("http://proxy:443", "http://proxy:443"),
            ("https://[FE80::1]:8445/x", "https://[fe80::1]:8445/x"),
            ("https://[::1]", "https://[::1]"),
        ] {
            assert_eq!(check(text).as_deref(), Ok(wanted));
        }
        for bad in [
            "",
            "wfm.example.com",
            "ftp://x",
            "https://",
            "https:///x",
            "https://u@h",
            "https://h:0",
            "https://h:x",
            "https://h:99999",
            "https://h/a?b",
            "https://h/a#b",
            "https://h/a//b",
            "https://h/%41",
            "https://[::1",
            "https://[::1]x",
            "https://h h",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_header_names_the_address_or_another_one() {
        let url = ExternalUrl::parse("https://wfm.example.com").unwrap();
        for host in ["wfm.example.com", "WFM.example.com:443", "wfm.example.com:"] {
            assert!(url.is_at(host), "{host}");
        }
        for host in ["wfm.example.com:80", "other", "", "a, b"] {
            assert!(!url.is_at(host), "{host}");
        }
    }
}
