//! Identifiers, references and digests: what is accepted is written as it was read.

use std::fmt::{Debug, Display};

use margrave_core::digest::Digest;
use margrave_core::id::{
    AssignmentId, ClientId, ComponentName, DeploymentName, DeviceId, DeviceRef, PackageId, PackageVersion,
    ParameterName, ProfileId, TrustDomain, WfmId,
};
use margrave_core::identity::{ClientName, ServerName};
use margrave_oci::reference::{Host, Reference, Repository, RepositoryName, Tag, TagOrDigest};

pub(crate) fn names(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let same = |read: &dyn Display| {
        assert_eq!(read.to_string(), text, "an identifier is written as it was read");
    };
    if let Some(id) = read(text, ClientId::parse) {
        same(&id);
    }
    if let Some(id) = read(text, WfmId::parse) {
        same(&id);
    }
    if let Some(id) = read(text, TrustDomain::parse) {
        same(&id);
    }
    if let Some(id) = read(text, DeviceId::parse) {
        same(&id);
        assert!(id.as_str().starts_with(id.gateway().as_str()));
        assert!(!id.as_str().split('/').any(|part| matches!(part, "" | "." | "..")), "{id} is no safe path");
    }
    if let Some(id) = read(text, PackageId::parse) {
        same(&id);
    }
    if let Some(id) = read(text, PackageVersion::parse) {
        same(&id);
        Tag::parse(text).expect("a package's version is a tag (PK-016)");
    }
    if let Some(id) = read(text, ProfileId::parse) {
        same(&id);
    }
    if let Some(id) = read(text, ComponentName::parse) {
        same(&id);
    }
    if let Some(id) = read(text, ParameterName::parse) {
        same(&id);
    }
    if let Some(id) = read(text, DeploymentName::parse) {
        same(&id);
    }
    if let Some(digest) = read(text, Digest::parse) {
        same(&digest);
    }
    read(text, AssignmentId::parse);
    read(text, DeviceRef::parse);
    read(text, Host::parse);
    read(text, RepositoryName::parse);
    read(text, Tag::parse);
    read(text, TagOrDigest::parse);
    read(text, Repository::parse);
    read(text, Reference::parse);
    if let Some(name) = read(text, ServerName::parse) {
        same(&name);
        assert!(ClientName::parse(text).is_err(), "a name is a server's or a client's");
    }
    if let Some(name) = read(text, ClientName::parse) {
        same(&name);
    }
}

/// Reads, writes, reads again; a refusal stays short.
fn read<T, E>(text: &str, parse: impl Fn(&str) -> Result<T, E>) -> Option<T>
where
    T: Display + Debug + PartialEq,
    E: Display,
{
    match parse(text) {
        Ok(name) => {
            let written = name.to_string();
            let again = parse(&written).unwrap_or_else(|error| panic!("{written:?} was {name:?}: {error}"));
            assert_eq!(again, name, "{written:?}");
            Some(name)
        }
        Err(error) => {
            let told = error.to_string();
            assert!(!told.is_empty() && told.len() <= 2000, "{} bytes to refuse a name", told.len());
            None
        }
    }
}
