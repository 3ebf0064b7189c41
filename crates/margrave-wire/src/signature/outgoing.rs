//! What a client adds to a request that it signs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::base::{BaseError, Message};

/// How a client signs. Both are accepted everywhere; some servers know only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// The standard's text: label `sig1`, `@method`, `@target-uri` and, with a body, `content-digest`
    /// (MI-G1-042, MI-G1-044).
    #[default]
    Standard,
    /// The public reference client: label `sig`, and `@authority` besides.
    Reference,
}

impl Style {
    fn label(self) -> &'static str {
        match self {
            Style::Standard => "sig1",
            Style::Reference => "sig",
        }
    }
}

/// A request that only lacks the signature itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsigned {
    style: Style,
    parameters: String,
    base: Vec<u8>,
}

impl Unsigned {
    /// `created` is in seconds since 1970; `keyid` is printable text without quotes.
    ///
    /// # Errors
    /// When `with_body` and the message has no `content-digest` to cover.
    pub fn new(
        style: Style,
        message: &Message<'_>,
        with_body: bool,
        created: u64,
        keyid: &str,
    ) -> Result<Unsigned, BaseError> {
        let mut components = vec!["@method".to_owned(), "@target-uri".to_owned()];
        if style == Style::Reference {
            components.push("@authority".to_owned());
        }
        if with_body {
            components.push(super::CONTENT_DIGEST.to_owned());
        }
        let keyid: String =
            keyid.chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\')).collect();
        let parameters = format!("(\"{}\");created={created};keyid=\"{keyid}\"", components.join("\" \""));
        let base = message.base(&components, &parameters, str::to_owned)?;
        Ok(Unsigned { style, parameters, base })
    }

    /// What is to be signed.
    pub fn base(&self) -> &[u8] {
        &self.base
    }

    /// The values of `Signature-Input` and `Signature`.
    pub fn sealed(&self, signature: &[u8]) -> (String, String) {
        let label = self.style.label();
        (format!("{label}={}", self.parameters), format!("{label}=:{}:", STANDARD.encode(signature)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::read;

    fn unsigned(style: Style, digest: Option<&str>) -> Unsigned {
        let field = |name: &str| digest.filter(|_| name == "content-digest").map(str::to_owned);
        let message = Message {
            method: "POST",
            scheme: "https",
            authority: "wfm.example.com",
            target_uri: "https://wfm.example.com/api/v1/x",
            path: "/api/v1/x",
            query: None,
            field: &field,
        };
        Unsigned::new(style, &message, digest.is_some(), 1_766_000_000, "abc").unwrap()
    }

    #[test]
    fn mi_g1_044_mi_g1_045_mi_g1_049_the_headers_are_those_of_the_standard() {
        let (input, signature) = unsigned(Style::Standard, Some("sha-256=:x:")).sealed(&[1, 2, 3]);
        assert_eq!(
            input,
            r#"sig1=("@method" "@target-uri" "content-digest");created=1766000000;keyid="abc""#
        );
        assert_eq!(signature, "sig1=:AQID:");
        let (input, _) = unsigned(Style::Standard, None).sealed(&[]);
        assert_eq!(input, r#"sig1=("@method" "@target-uri");created=1766000000;keyid="abc""#);
        let (input, signature) = unsigned(Style::Reference, None).sealed(&[1]);
        assert_eq!(input, r#"sig=("@method" "@target-uri" "@authority");created=1766000000;keyid="abc""#);
        assert_eq!(signature, "sig=:AQ==:");
    }

    #[test]
    fn what_a_client_signs_is_what_a_server_rebuilds() {
        for style in [Style::Standard, Style::Reference] {
            for digest in [None, Some("sha-256=:x:")] {
                let unsigned = unsigned(style, digest);
                let (input, signature) = unsigned.sealed(&[9]);
                let found = read([input.as_bytes()].into_iter(), [signature.as_bytes()].into_iter()).unwrap();
                let field = |_: &str| digest.map(str::to_owned);
                let message = Message {
                    method: "POST",
                    scheme: "https",
                    authority: "wfm.example.com",
                    target_uri: "https://wfm.example.com/api/v1/x",
                    path: "/api/v1/x",
                    query: None,
                    field: &field,
                };
                assert_eq!(found[0].bases(&message).unwrap(), (unsigned.base().to_vec(), None));
            }
        }
    }
}
