//! A type per kind of identifier, so that two of them cannot be swapped by accident.
//!
//! Every constructor checks; a value that exists is valid. Comparison is exact and case-sensitive
//! everywhere (MI-G2-022). Whoever needs one for itself shares the text: an id goes through many hands.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use uuid::Uuid;

use crate::digest::Digest;

/// Why a text is not an identifier of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {rule}, got {got:?}")]
pub struct InvalidId {
    pub kind: &'static str,
    pub rule: &'static str,
    pub got: String,
}

impl InvalidId {
    fn new(kind: &'static str, rule: &'static str, got: &str) -> Self {
        // An error message must not carry megabytes of someone else's input.
        let got = got.chars().take(80).collect();
        InvalidId { kind, rule, got }
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok($name(text.into())) } else { Err(InvalidId::new($kind, $rule, text)) }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.as_str().to_owned()
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    };
}

fn all(text: &str, max: usize, allowed: fn(u8) -> bool) -> bool {
    !text.is_empty() && text.len() <= max && text.bytes().all(allowed)
}

fn spiffe_segment(text: &str) -> bool {
    all(text, 200, |b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        && text != "."
        && text != ".."
}

fn device_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'~' | b'-')
}

/// Dot segments pass the standard's pattern, but every URL library on the way would rewrite them.
fn device_path(text: &str) -> bool {
    text.len() <= 512 && text.split('/').all(|s| all(s, 200, device_byte) && s != "." && s != "..")
}

text_id! {
    /// The last segment of a client's SPIFFE ID: the name of a device's (or site's) relationship with its server.
    ClientId, "a client id", "is 1 to 200 letters, digits, '.', '-' or '_', and not '.' or '..'", spiffe_segment
}
text_id! {
    /// The server's own segment in SPIFFE IDs.
    WfmId, "a server id", "is 1 to 200 letters, digits, '.', '-' or '_', and not '.' or '..'", spiffe_segment
}
text_id! {
    TrustDomain, "a trust domain", "is 1 to 255 lower-case letters, digits, '.', '-' or '_'",
    |t| all(t, 255, |b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_'))
}
text_id! {
    /// A device as its client names it; children of a gateway have the gateway's id as first segment.
    DeviceId, "a device id", "is segments of letters, digits, '.', '_', '~' or '-', joined by '/'", device_path
}
text_id! {
    PackageId, "a package id", "is 1 to 200 lower-case letters, digits or '-' (DM-003)",
    |t| all(t, 200, |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}
text_id! {
    /// A package's version: free text by the standard, but it must be a legal OCI tag (PK-016).
    PackageVersion, "a package version", "is a legal OCI tag: 1 to 128 letters, digits, '.', '_' or '-', not starting with '.' or '-' (PK-016)",
    |t| all(t, 128, |b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) && !t.starts_with(['.', '-'])
}
text_id! {
    ProfileId, "a profile id", "is 1 to 200 characters without control characters",
    |t| !t.is_empty() && t.len() <= 200 && !t.chars().any(char::is_control)
}
text_id! {
    ComponentName, "a component name", "is 1 to 200 lower-case letters, digits or '-' (section 2.4)",
    |t| all(t, 200, |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}
text_id! {
    ParameterName, "a parameter name", "is 1 to 200 characters without control characters",
    |t| !t.is_empty() && t.len() <= 200 && !t.chars().any(char::is_control)
}
text_id! {
    /// What an operator calls a deployment; also a valid Kubernetes name.
    DeploymentName, "a deployment name", "is 1 to 63 lower-case letters, digits or '-', starting and ending with a letter or digit",
    |t| all(t, 63, |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !t.starts_with('-') && !t.ends_with('-')
}

impl DeviceId {
    /// The first segment: the gateway, or the device itself when it is nobody's child.
    pub fn gateway(&self) -> DeviceId {
        DeviceId(self.0.split('/').next().expect("split yields at least one part").into())
    }

    pub fn is_child(&self) -> bool {
        self.0.contains('/')
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            pub fn from_uuid(uuid: Uuid) -> Self {
                $name(uuid)
            }

            /// Accepts only the hyphenated form (DM-070); other spellings of a UUID are refused.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                let hyphenated = text.len() == 36;
                match Uuid::try_parse(text) {
                    Ok(uuid) if hyphenated => Ok($name(uuid)),
                    _ => Err(InvalidId::new($kind, "is a UUID such as 0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11 (DM-070)", text)),
                }
            }

            pub fn uuid(&self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0.hyphenated())
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }
    };
}

uuid_id! {
    /// An operator's deployment, on however many devices.
    DeploymentId, "a deployment id"
}
uuid_id! {
    /// One deployment on one device; the wire's `deploymentId`.
    AssignmentId, "an assignment id"
}

impl AssignmentId {
    /// The id of `deployment` on `device`: always the same, so that a change keeps it (MI-G2-051), and
    /// different on every device, so that two children of one gateway can run the same deployment.
    pub fn derive(deployment: DeploymentId, device: &DeviceRef) -> Self {
        let mut name = deployment.uuid().as_bytes().to_vec();
        name.extend_from_slice(device.to_string().as_bytes());
        let mut head = [0u8; 16];
        head.copy_from_slice(&Digest::of(&name).as_bytes()[..16]);
        AssignmentId(uuid::Builder::from_custom_bytes(head).into_uuid())
    }
}

/// A device as operators address it: the client that speaks for it, and the client's name for it.
///
/// Device ids are local to their client (MI-G2-008). The usual device is named after its client, and its
/// children start with that name; those are written as the device id alone. Anything else is written
/// `client:device`, which no id can contain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceRef {
    pub client: ClientId,
    pub device: DeviceId,
}

impl DeviceRef {
    pub fn new(client: ClientId, device: DeviceId) -> Self {
        DeviceRef { client, device }
    }

    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let (client, device) = match text.split_once(':') {
            Some(parts) => parts,
            None => (text.split('/').next().unwrap_or(text), text),
        };
        Ok(DeviceRef { client: ClientId::parse(client)?, device: DeviceId::parse(device)? })
    }
}

impl fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.device.gateway().as_str() == self.client.as_str() {
            write!(f, "{}", self.device)
        } else {
            write!(f, "{}:{}", self.client, self.device)
        }
    }
}

impl FromStr for DeviceRef {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Self::parse(text)
    }
}

impl TryFrom<String> for DeviceRef {
    type Error = InvalidId;
    fn try_from(text: String) -> Result<Self, InvalidId> {
        Self::parse(&text)
    }
}

impl From<DeviceRef> for String {
    fn from(device: DeviceRef) -> String {
        device.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_012_234_mi_g2_022_segments_take_no_tilde_and_no_dots_alone() {
        for good in ["press.42", "A-b_c", "x"] {
            assert!(ClientId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a~b", "a/b", "a b", "é"] {
            assert!(ClientId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mi_g2_123_device_ids_have_slashes_between_segments_only() {
        for good in ["gw", "gw/a", "gw/path1/device~A"] {
            assert!(DeviceId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "/", "gw/", "/gw", "gw//a", "gw/*", "gw/..", "a b"] {
            assert!(DeviceId::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(DeviceId::parse("gw/path1/a").unwrap().gateway().as_str(), "gw");
    }

    #[test]
    fn mi_g2_171_an_application_is_named_in_lower_case_letters_digits_and_dashes() {
        for good in ["a", "0-9", "-", "com-northstarida-digitron-orchestrator", &"x".repeat(200)] {
            assert!(PackageId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "a_b", "a.b", "a b", "ä", &"x".repeat(201)] {
            assert!(PackageId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn dm_070_assignment_ids_are_hyphenated_uuids() {
        assert!(AssignmentId::parse("0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11").is_ok());
        assert!(AssignmentId::parse("0d5f6c1e6a0a4f0e9b572c1c8e0f4a11").is_err());
        assert!(AssignmentId::parse("{0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11}").is_err());
        assert!(AssignmentId::parse("ad9b614e-8912-45f4-a523-372358765def-").is_err());
    }

    #[test]
    fn an_assignment_keeps_its_id_and_shares_it_with_nobody() {
        let deployment = DeploymentId::parse("0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11").unwrap();
        let of = |text: &str| AssignmentId::derive(deployment, &text.parse().unwrap());
        assert_eq!(of("gw/a"), of("gw/a"));
        assert_ne!(of("gw/a"), of("gw/b"));
        assert_ne!(of("gw"), of("other:gw"));
    }

    #[test]
    fn a_device_is_addressed_briefly_where_that_is_unambiguous() {
        for text in ["line-1", "gw/child", "client:device", "client:gw/child"] {
            assert_eq!(DeviceRef::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(DeviceRef::parse("a:a").unwrap().to_string(), "a");
    }

    #[test]
    fn an_error_names_the_rule_and_not_the_whole_input() {
        let error = PackageId::parse(&"X".repeat(5000)).unwrap_err().to_string();
        assert!(error.contains("DM-003") && error.len() < 200, "{error}");
    }
}
