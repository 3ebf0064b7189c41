//! The signature base: the bytes of a request that a signature is made over (RFC 9421, 2.5).

use super::received::Signature;

/// A request as the client that signed it sees it.
pub struct Message<'m> {
    pub method: &'m str,
    pub scheme: &'m str,
    /// Lower-case, without the scheme's own port.
    pub authority: &'m str,
    /// The absolute URI exactly as the client wrote it.
    pub target_uri: &'m str,
    /// The path exactly as the client wrote it, without the query.
    pub path: &'m str,
    /// Without the question mark.
    pub query: Option<&'m str>,
    /// The value of a field by its lower-case name: lines trimmed and joined by a comma and a blank.
    pub field: &'m dyn Fn(&str) -> Option<String>,
}

/// Why the bytes that were signed cannot be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaseError {
    #[error("the signature covers {0:?}, which this server cannot rebuild; leave it out")]
    Unknown(String),
    #[error("the signature covers the header {0:?}, but the request has none of this name")]
    Absent(String),
}

impl Message<'_> {
    fn component(&self, name: &str) -> Result<String, BaseError> {
        let shown = || name.chars().take(60).collect::<String>();
        let derived = match name {
            "@method" => self.method.to_owned(),
            "@target-uri" => self.target_uri.to_owned(),
            "@authority" => self.authority.to_owned(),
            "@scheme" => self.scheme.to_owned(),
            "@path" if self.path.is_empty() => "/".to_owned(),
            "@path" => self.path.to_owned(),
            "@query" => format!("?{}", self.query.unwrap_or_default()),
            "@request-target" => match self.query {
                Some(query) => format!("{}?{query}", self.path),
                None => self.path.to_owned(),
            },
            name if name.starts_with('@') || !name.bytes().all(is_token) => {
                return Err(BaseError::Unknown(shown()));
            }
            name => (self.field)(name).ok_or_else(|| BaseError::Absent(shown()))?,
        };
        // A line break would let one component speak for another.
        if derived.contains(['\n', '\r']) {
            return Err(BaseError::Unknown(shown()));
        }
        Ok(derived)
    }

    /// The bytes for the components, each spelled by `spell`.
    pub(super) fn base(
        &self,
        components: &[String],
        parameters: &str,
        spell: impl Fn(&str) -> String,
    ) -> Result<Vec<u8>, BaseError> {
        let mut base = String::with_capacity(512);
        for name in components {
            let value = self.component(&name.to_ascii_lowercase())?;
            base.push('"');
            base.push_str(&spell(name));
            base.push_str("\": ");
            base.push_str(&value);
            base.push('\n');
        }
        base.push_str("\"@signature-params\": ");
        base.push_str(parameters);
        Ok(base.into_bytes())
    }
}

fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

impl Signature {
    /// The bytes that were signed. There are two candidates when a field is named with capitals: RFC 9421
    /// wants it in lower case, Margo's own sample spells it as it stands there (AMB-06).
    pub fn bases(&self, message: &Message<'_>) -> Result<(Vec<u8>, Option<Vec<u8>>), BaseError> {
        let strict = message.base(&self.components, &self.parameters, str::to_ascii_lowercase)?;
        let capitals = self.components.iter().any(|name| name.bytes().any(|b| b.is_ascii_uppercase()));
        let spelled = match capitals {
            true => Some(message.base(&self.components, &self.parameters, str::to_owned)?),
            false => None,
        };
        Ok((strict, spelled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::read;

    fn signature(input: &str) -> Signature {
        read([format!("a={input}").as_bytes()].into_iter(), [&b"a=:AA==:"[..]].into_iter()).unwrap().remove(0)
    }

    fn check(input: &str) -> Result<String, BaseError> {
        let field = |name: &str| match name {
            "content-digest" => Some("sha-256=:nNJq5zW0+putPWB2BahIzotx94+BNBwrEcq9xthT1u0=:".to_owned()),
            "x-two" => Some("a, b".to_owned()),
            "x-evil" => Some("a\n\"@method\": GET".to_owned()),
            _ => None,
        };
        let message = Message {
            method: "POST",
            scheme: "https",
            authority: "wfm.example.com",
            target_uri: "https://wfm.example.com/api/v1/clients/c-17/x?q=%41",
            path: "/api/v1/clients/c-17/x",
            query: Some("q=%41"),
            field: &field,
        };
        let (strict, spelled) = signature(input).bases(&message)?;
        assert_eq!(spelled.is_some(), input.contains("Content"), "{input}");
        Ok(String::from_utf8(spelled.unwrap_or(strict)).unwrap())
    }

    #[test]
    fn mi_g1_042_mi_g1_062_the_base_is_that_of_rfc_9421() {
        let input = r#"("@method" "@target-uri" "content-digest");created=1766000000;keyid="k""#;
        let wanted = format!(
            "\"@method\": POST\n\"@target-uri\": https://wfm.example.com/api/v1/clients/c-17/x?q=%41\n\
             \"content-digest\": sha-256=:nNJq5zW0+putPWB2BahIzotx94+BNBwrEcq9xthT1u0=:\n\"@signature-params\": {input}"
        );
        assert_eq!(check(input).unwrap(), wanted);
        assert_eq!(check("()").unwrap(), "\"@signature-params\": ()");
        let all = r#"("@scheme" "@authority" "@path" "@query" "@request-target" "x-two")"#;
        let wanted = format!(
            "\"@scheme\": https\n\"@authority\": wfm.example.com\n\"@path\": /api/v1/clients/c-17/x\n\"@query\": ?q=%41\n\
             \"@request-target\": /api/v1/clients/c-17/x?q=%41\n\"x-two\": a, b\n\"@signature-params\": {all}"
        );
        assert_eq!(check(all).unwrap(), wanted);
    }

    #[test]
    fn amb_06_a_capital_field_name_has_two_readings() {
        let base = check(r#"("Content-Digest");created=1"#).unwrap();
        assert!(base.starts_with("\"Content-Digest\": sha-256="), "{base}");
        assert!(base.ends_with("\"@signature-params\": (\"Content-Digest\");created=1"), "{base}");
    }

    #[test]
    fn what_cannot_be_rebuilt_is_refused_by_name() {
        for unknown in [
            r#"("@status")"#,
            r#"("@query-param";name="a")"#,
            r#"("x-two";sf)"#,
            r#"("a b")"#,
            r#"("x-evil")"#,
        ] {
            assert!(matches!(check(unknown), Err(BaseError::Unknown(_))), "{unknown}");
        }
        assert_eq!(check(r#"("x-none")"#), Err(BaseError::Absent("x-none".into())));
    }
}
