//! Answers that are not said but referred to, and what is behind such a reference.
//!
//! A [`Reference`] may stand in Git, in answers and on pages. A [`Secret`] is what it refers to; nothing prints it, and it goes
//! nowhere but into the document of a device. Who looks it up, and the key behind [`Fingerprint`], are the server's.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::ParameterName;
use crate::parameters::{ParameterValue, Schema};

/// Only variables that begin like this are looked at: whoever may deploy must not read the rest of the server's environment.
pub const ENVIRONMENT_PREFIX: &str = "MARGRAVE_SECRET_";
/// What a sealed value begins with.
pub const SEALED_PREFIX: &str = "mgs1.";
/// Of a secret, in bytes: a chain of certificates with its key, several times.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;
/// Base64 of the largest secret, with what sealing adds.
const SEALED_LENGTH_MAX: usize = SECRET_BYTES_MAX / 3 * 4 + 100;
const NAME_LENGTH_MAX: usize = 200;
const DEPTH_MAX: usize = 8;

/// The rule that a deployment breaks when a secret is not to be had.
pub const RULE: &str = "secret";

/// Whether it is for want of a secret that a device was left out.
pub fn is_wanting(reason: &str) -> bool {
    reason
        .strip_suffix(')')
        .and_then(|reason| reason.strip_suffix(RULE))
        .is_some_and(|rest| rest.ends_with('('))
}

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reference {
    /// A variable of the server's environment.
    Env(Variable),
    /// A file in the server's directory of secrets.
    File(FilePath),
    /// The value itself, which only the server can open.
    Sealed(Sealed),
}

macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidReference;
            fn try_from(text: String) -> Result<Self, InvalidReference> {
                let check: fn(&str) -> bool = $check;
                if check(&text) { Ok($name(text)) } else { Err(InvalidReference($rule)) }
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> String {
                text.0
            }
        }
    };
}

/// Why a text refers to no secret. It does not repeat the text, which may be the secret itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidReference(&'static str);

checked_text!(
    /// The name of an environment variable.
    Variable,
    "`env` names a variable: MARGRAVE_SECRET_ and then capital letters, digits and underscores",
    |text| {
        let rest = text.strip_prefix(ENVIRONMENT_PREFIX).unwrap_or_default();
        let fine = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        !rest.is_empty() && text.len() <= NAME_LENGTH_MAX && rest.bytes().all(fine)
    }
);

checked_text!(
    /// A path below the directory of secrets.
    FilePath,
    "`file` names a file below the server's directory `secrets`: names of letters, digits, `.`, `_` and `-` that do not begin \
     with a dot, with `/` between them",
    |text| {
        let fine = |part: &str| {
            let letters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
            !part.is_empty() && !part.starts_with('.') && part.bytes().all(letters)
        };
        text.len() <= NAME_LENGTH_MAX && text.split('/').count() <= DEPTH_MAX && text.split('/').all(fine)
    }
);

checked_text!(
    /// What `margrave secret seal` printed.
    Sealed,
    "`sealed` is what `margrave secret seal` printed, as it was printed",
    |text| {
        let rest = text.strip_prefix(SEALED_PREFIX).unwrap_or_default();
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !rest.is_empty() && text.len() <= SEALED_LENGTH_MAX && rest.bytes().all(fine)
    }
);

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reference::Env(variable) => write!(f, "the variable {}", variable.as_str()),
            Reference::File(path) => write!(f, "the file {}", path.as_str()),
            Reference::Sealed(_) => f.write_str("a sealed value"),
        }
    }
}

/// An answer by reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Referred {
    pub secret: Reference,
    /// What was behind it when it was last looked at: another one is another answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Fingerprint>,
}

/// Tells two secrets apart and nothing else: it is made with a key that only the server has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint(pub String);

/// What a reference refers to.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    fingerprint: Fingerprint,
}

impl Secret {
    pub fn new(text: String, fingerprint: Fingerprint) -> Secret {
        Secret { text, fingerprint }
    }

    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// Everything that the answers of one deployment refer to, looked up.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Secrets {
    found: BTreeMap<(ParameterName, Reference), Result<Secret, String>>,
    /// Goes into documents with a secret, so that their digests, which others see, tell nothing of it.
    pub salt: Option<String>,
}

impl Secrets {
    /// What was found, or why nothing was.
    pub fn insert(&mut self, parameter: ParameterName, reference: Reference, found: Result<Secret, String>) {
        self.found.insert((parameter, reference), found);
    }

    /// # Errors
    /// Where it was looked for, and what is wrong there.
    pub fn get(&self, parameter: &ParameterName, reference: &Reference) -> Result<&Secret, String> {
        match self.found.get(&(parameter.clone(), reference.clone())) {
            Some(Ok(secret)) => Ok(secret),
            Some(Err(why)) => Err(why.clone()),
            None => Err(format!("{reference} was not looked up")),
        }
    }

    /// The value for a parameter, typed as its schema wants it.
    pub(crate) fn reveal(
        &self,
        parameter: &ParameterName,
        reference: &Reference,
        schema: Option<&Schema>,
    ) -> Result<ParameterValue, String> {
        let secret = self.get(parameter, reference)?;
        let Some(schema) = schema else { return Ok(ParameterValue::Text(secret.text.clone())) };
        // The reason would repeat the value.
        ParameterValue::from_text(schema, &secret.text)
            .map_err(|_| format!("what is in {reference} is no {}", schema.data_type.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_checked_and_stay_where_secrets_are() {
        let read = |json: &str| serde_json::from_str::<Reference>(json);
        for good in [
            r#"{"env":"MARGRAVE_SECRET_DB_2"}"#,
            r#"{"file":"db/password.txt"}"#,
            r#"{"file":"a"}"#,
            r#"{"sealed":"mgs1.AAAA-_9"}"#,
        ] {
            let reference = read(good).unwrap();
            assert_eq!(serde_json::to_string(&reference).unwrap(), good);
        }
        let long = format!(r#"{{"file":"{}"}}"#, "a".repeat(201));
        let deep = format!(r#"{{"file":"{}a"}}"#, "a/".repeat(8));
        let huge = format!(r#"{{"sealed":"mgs1.{}"}}"#, "A".repeat(SEALED_LENGTH_MAX));
        for bad in [
            r#"{"env":"PATH"}"#,
            r#"{"env":"MARGRAVE_SECRET_"}"#,
            r#"{"env":"MARGRAVE_SECRET_a"}"#,
            r#"{"env":"MARGRAVE_SECRET_A=B"}"#,
            r#"{"env":""}"#,
            r#"{"file":"../secrets.key"}"#,
            r#"{"file":"a/../../b"}"#,
            r#"{"file":"/etc/passwd"}"#,
            r#"{"file":"a//b"}"#,
            r#"{"file":".hidden"}"#,
            r#"{"file":"a/"}"#,
            r#"{"file":"a\u0000b"}"#,
            r#"{"file":""}"#,
            &long,
            &deep,
            r#"{"sealed":"plain"}"#,
            r#"{"sealed":"mgs1."}"#,
            r#"{"sealed":"mgs1.a b"}"#,
            &huge,
            r#"{"vault":"x"}"#,
            r#"{"env":"MARGRAVE_SECRET_A","file":"a"}"#,
            r#""text""#,
            "{}",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let name: ParameterName = "password".parse().unwrap();
        let reference = Reference::Env(Variable::try_from("MARGRAVE_SECRET_A".to_owned()).unwrap());
        let secret = Secret::new("hunter2".into(), Fingerprint("f".into()));
        let mut secrets = Secrets::default();
        secrets.insert(name.clone(), reference.clone(), Ok(secret));
        let printed = format!("{secrets:?} {:#?}", secrets.get(&name, &reference));
        assert!(!printed.contains("hunter2"), "{printed}");
        let value = secrets.reveal(&name, &reference, None).unwrap();
        assert_eq!(value, ParameterValue::Text("hunter2".into()));
    }
}
