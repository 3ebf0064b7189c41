//! Names of things in OCI registries: `oci://host[:port]/path[:tag|@digest]`.
//!
//! Every constructor checks, so a name that exists can be put into a URL or a path as it is: no dot
//! segments, no percent signs, bounded length. This module does not know where a host really is; the
//! host `margrave` in particular means "the registry of the server that manages this device", and the
//! caller maps it (see `client::Hosts`).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use margrave_core::digest::Digest;

/// Why a text does not name anything in a registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    #[error("{0:?} is not a registry host; write host or host:port, for example registry.example.com:5000")]
    Host(String),
    #[error(
        "{0:?} is not a repository name; use lower-case letters and digits, separated by single '.', '_' or '-' and \
         joined by '/', at most 255 characters"
    )]
    Name(String),
    #[error(
        "{0:?} is not a tag; use 1 to 128 letters, digits, '_', '.' or '-', not starting with '.' or '-' (PK-016)"
    )]
    Tag(String),
    #[error("{0:?} is not a digest we can check; write sha256: and 64 lower-case hex digits")]
    Digest(String),
    #[error("{0:?} has no repository; write host/repository")]
    NoRepository(String),
    #[error("{0:?} names no version; add :tag or @sha256:…")]
    NoVersion(String),
    #[error("{0:?} must not carry a tag or digest here; the version is given beside it (DM-030)")]
    UnwantedVersion(String),
    #[error("the scheme of {0:?} is not supported; use oci://host/repository")]
    Scheme(String),
}

/// An error message must not carry megabytes of someone else's input.
fn shown(text: &str) -> String {
    text.chars().take(120).collect()
}

/// A registry's `host` or `host:port`, lower-case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(String);

/// The host that stands for "the registry of the server that manages this device".
pub const OWN_REGISTRY: &str = "margrave";

impl Host {
    pub fn parse(text: &str) -> Result<Self, InvalidReference> {
        let invalid = || InvalidReference::Host(shown(text));
        if text.is_empty() || text.len() > 255 + 6 {
            return Err(invalid());
        }
        let (name, port) = split_port(text).ok_or_else(invalid)?;
        if let Some(port) = port {
            let decimal = port.bytes().all(|b| b.is_ascii_digit());
            if !decimal || !port.parse::<u16>().is_ok_and(|port| port > 0) {
                return Err(invalid());
            }
        }
        let valid = match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(v6) => v6.parse::<Ipv6Addr>().is_ok(),
            None => name.split('.').all(host_label),
        };
        if valid { Ok(Host(text.to_ascii_lowercase())) } else { Err(invalid()) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the placeholder for the registry of the managing server.
    pub fn is_own_registry(&self) -> bool {
        self.0 == OWN_REGISTRY
    }

    /// The name or address without the port.
    pub fn name(&self) -> &str {
        split_port(&self.0).map_or(&self.0, |(name, _)| name)
    }

    pub fn port(&self) -> Option<u16> {
        split_port(&self.0).and_then(|(_, port)| port)?.parse().ok()
    }

    /// Whether packets to this host never leave the machine; only there plain HTTP is allowed.
    pub fn is_loopback(&self) -> bool {
        let name = self.name();
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    let bracket = text.rfind(']').map_or(0, |at| at + 1);
    match text[bracket..].split_once(':') {
        None if bracket > 0 && bracket != text.len() => None,
        None => Some((text, None)),
        Some((before, port)) if bracket == 0 || before.is_empty() => {
            Some((&text[..text.len() - port.len() - 1], Some(port)))
        }
        Some(_) => None,
    }
}

fn host_label(label: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=63).contains(&label.len())
        && label.bytes().all(allowed)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// A repository's path inside its registry; safe as a path on disk and in a URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepositoryName(String);

impl RepositoryName {
    pub const LENGTH_MAX: usize = 255;

    pub fn parse(text: &str) -> Result<Self, InvalidReference> {
        if (1..=Self::LENGTH_MAX).contains(&text.len()) && text.split('/').all(name_component) {
            Ok(RepositoryName(text.to_owned()))
        } else {
            Err(InvalidReference::Name(shown(text)))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last component: what a person would call the thing.
    pub fn last(&self) -> &str {
        self.0.rsplit('/').next().expect("split yields at least one part")
    }
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*` of the distribution specification, without a regex engine.
fn name_component(component: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends_well = |b: Option<&u8>| b.is_some_and(|b| alphanumeric(*b));
    if !ends_well(bytes.first()) || !ends_well(bytes.last()) {
        return false;
    }
    // Between two alphanumeric runs there is exactly one separator: '.', '_', '__' or any number of '-'.
    bytes.split(|b| alphanumeric(*b)).all(|separator| {
        matches!(separator, b"" | b"." | b"_" | b"__") || separator.iter().all(|b| *b == b'-')
    })
}

/// A tag: a movable name of one manifest in a repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(String);

impl Tag {
    pub fn parse(text: &str) -> Result<Self, InvalidReference> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        if (1..=128).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with(['.', '-']) {
            Ok(Tag(text.to_owned()))
        } else {
            Err(InvalidReference::Tag(shown(text)))
        }
    }

    /// The tag that stores a component's revision: `+` cannot be in a tag and is written `_` (DM-031).
    pub fn of_revision(revision: &str) -> Result<Self, InvalidReference> {
        Self::parse(&revision.replace('+', "_"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which manifest of a repository: by its movable name, or by its content.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagOrDigest {
    Tag(Tag),
    Digest(Digest),
}

impl TagOrDigest {
    pub fn parse(text: &str) -> Result<Self, InvalidReference> {
        if text.contains(':') {
            parse_digest(text).map(Self::Digest)
        } else {
            Tag::parse(text).map(Self::Tag)
        }
    }
}

fn parse_digest(text: &str) -> Result<Digest, InvalidReference> {
    Digest::parse(text).map_err(|_| InvalidReference::Digest(shown(text)))
}

/// A repository in a certain registry, without a version: a component's `repository` (DM-030).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repository {
    pub host: Host,
    pub name: RepositoryName,
}

impl Repository {
    pub fn parse(text: &str) -> Result<Self, InvalidReference> {
        match split(text)? {
            (repository, None) => Ok(repository),
            (_, Some(_)) => Err(InvalidReference::UnwantedVersion(shown(text))),
        }
    }

    pub fn at(&self, version: TagOrDigest) -> Reference {
        Reference { repository: self.clone(), version }
    }

    /// The reference of a component's `revision` (DM-030, DM-031).
    pub fn at_revision(&self, revision: &str) -> Result<Reference, InvalidReference> {
        Ok(self.at(TagOrDigest::Tag(Tag::of_revision(revision)?)))
    }
}

/// One manifest in one repository of one registry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    pub repository: Repository,
    pub version: TagOrDigest,
}

impl Reference {
    /// Parses `oci://host/path:tag`, `oci://host/path@digest`, or either without the scheme.
    ///
    /// With both a tag and a digest the digest counts, as everywhere in the OCI world: the tag is then
    /// only a remark for people. There is no default tag (PK-015).
    pub fn parse(text: &str) -> Result<Self, InvalidReference> {
        match split(text)? {
            (repository, Some(version)) => Ok(Reference { repository, version }),
            (_, None) => Err(InvalidReference::NoVersion(shown(text))),
        }
    }

    /// The same repository, pinned to what a tag was resolved to (PK-042).
    pub fn pinned(&self, digest: Digest) -> Reference {
        self.repository.at(TagOrDigest::Digest(digest))
    }
}

fn split(text: &str) -> Result<(Repository, Option<TagOrDigest>), InvalidReference> {
    let rest = match text.split_once("://") {
        Some(("oci", rest)) => rest,
        Some(_) => return Err(InvalidReference::Scheme(shown(text))),
        None => text,
    };
    let (host, path) = rest.split_once('/').ok_or_else(|| InvalidReference::NoRepository(shown(text)))?;
    let host = Host::parse(host)?;
    let (path, digest) = match path.split_once('@') {
        Some((path, digest)) => (path, Some(parse_digest(digest)?)),
        None => (path, None),
    };
    let (path, tag) = match path.split_once(':') {
        Some((path, tag)) => (path, Some(Tag::parse(tag)?)),
        None => (path, None),
    };
    if path.is_empty() {
        return Err(InvalidReference::NoRepository(shown(text)));
    }
    let repository = Repository { host, name: RepositoryName::parse(path)? };
    Ok((repository, digest.map(TagOrDigest::Digest).or(tag.map(TagOrDigest::Tag))))
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RepositoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As in a manifest's URL: the tag or the digest, without a leading sign.
impl fmt::Display for TagOrDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TagOrDigest::Tag(tag) => tag.fmt(f),
            TagOrDigest::Digest(digest) => fmt::Display::fmt(digest, f),
        }
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "oci://{}/{}", self.host, self.name)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            TagOrDigest::Tag(tag) => write!(f, "{}:{tag}", self.repository),
            TagOrDigest::Digest(digest) => write!(f, "{}@{digest}", self.repository),
        }
    }
}

macro_rules! from_str {
    ($($name:ident),*) => {$(
        impl FromStr for $name {
            type Err = InvalidReference;
            fn from_str(text: &str) -> Result<Self, InvalidReference> {
                Self::parse(text)
            }
        }
    )*};
}

from_str!(Host, RepositoryName, Tag, TagOrDigest, Repository, Reference);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn references_are_read_and_written() {
        for (text, canonical) in [
            ("oci://registry.example.com/a/b:1.0", "oci://registry.example.com/a/b:1.0"),
            ("127.0.0.1:5000/x:1", "oci://127.0.0.1:5000/x:1"),
            ("oci://[::1]:5000/x:1", "oci://[::1]:5000/x:1"),
            ("oci://[::1]/x:1", "oci://[::1]/x:1"),
            ("oci://Margrave/x:1", "oci://margrave/x:1"),
            ("margrave/apps/press:2.0.0-rc.1", "oci://margrave/apps/press:2.0.0-rc.1"),
        ] {
            assert_eq!(Reference::parse(text).unwrap().to_string(), canonical);
        }
        let pinned = Reference::parse(&format!("oci://h/x:1@{EMPTY}")).unwrap();
        assert_eq!(pinned.version, TagOrDigest::Digest(Digest::of(b"")));
        assert_eq!(pinned.to_string(), format!("oci://h/x@{EMPTY}"));
        assert!(Reference::parse("margrave/x:1").unwrap().repository.host.is_own_registry());
        assert!(!Reference::parse("margrave:5000/x:1").unwrap().repository.host.is_own_registry());
    }

    #[test]
    fn what_names_nothing_is_refused_with_a_reason() {
        use InvalidReference as E;
        let check = |text: &str, wanted: fn(String) -> E| {
            let error = Reference::parse(text).unwrap_err();
            assert_eq!(
                std::mem::discriminant(&error),
                std::mem::discriminant(&wanted(String::new())),
                "{text}"
            );
        };
        check("x:1", E::NoRepository);
        check("oci://h", E::NoRepository);
        check("oci://h/", E::NoRepository);
        check("oci://h/:1", E::NoRepository);
        check("oci:///x:1", E::Host);
        check("https://h/x:1", E::Scheme);
        check("h/x", E::NoVersion);
        check("h/x:", E::Tag);
        check("h/x:-a", E::Tag);
        check("h/x:1+2", E::Tag);
        check("h/x:a:b", E::Tag);
        check("h/x@sha256:12", E::Digest);
        check("h/x@md5:d41d8cd98f00b204e9800998ecf8427e", E::Digest);
        for host in
            ["h:0", "h:70000", "h:", "h:+1", "-h", "h..x", "h:1:2", "[::1", "[zz]", "[::1]x", "u@h", "h h"]
        {
            check(&format!("oci://{host}/x:1"), E::Host);
        }
        for path in [
            "../x", "a/../b", "a//b", "/a", "a/", "A", "a___b", "a..b", "a._b", "-a", "a-", "%2e%2e", "é",
            "a b",
        ] {
            check(&format!("oci://h/{path}:1"), E::Name);
        }
        check(&format!("oci://h/{}:1", "a".repeat(256)), E::Name);
    }

    #[test]
    fn dm_030_a_component_repository_carries_no_tag() {
        let repository = Repository::parse("oci://margrave/components/press").unwrap();
        assert_eq!(
            repository.at_revision("1.2.3").unwrap().to_string(),
            "oci://margrave/components/press:1.2.3"
        );
        for bad in ["oci://h/x:1.0", &format!("oci://h/x@{EMPTY}")] {
            assert!(matches!(Repository::parse(bad), Err(InvalidReference::UnwantedVersion(_))));
        }
    }

    #[test]
    fn dm_031_build_metadata_is_stored_with_an_underscore() {
        assert_eq!(Tag::of_revision("1.2.3+build.7").unwrap().as_str(), "1.2.3_build.7");
    }

    #[test]
    fn names_follow_the_distribution_pattern() {
        for good in ["a", "0", "a/b/c", "a.b", "a_b", "a__b", "a-b", "a---b", "a.b_c-d/e"] {
            assert!(RepositoryName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "_a", "a_", "a___b", "a.-b", "a/_tags", "a\0b", "a\nb"] {
            assert!(RepositoryName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for yes in ["localhost", "localhost:5000", "127.0.0.1", "127.9.9.9:1", "[::1]:5000"] {
            assert!(Host::parse(yes).unwrap().is_loopback(), "{yes}");
        }
        for no in ["localhost.example.com", "127.0.0.1.example.com", "10.0.0.1", "[2001:db8::1]", "margrave"]
        {
            assert!(!Host::parse(no).unwrap().is_loopback(), "{no}");
        }
    }

    proptest! {
        #[test]
        fn a_parsed_reference_survives_its_own_text(text in "(oci://)?[a-z.:0-9\\[\\]]{1,12}/[a-z./_-]{1,12}[:@]?[a-zA-Z0-9.:]{0,9}") {
            if let Ok(reference) = Reference::parse(&text) {
                prop_assert_eq!(Reference::parse(&reference.to_string()), Ok(reference));
            }
        }

        #[test]
        fn no_accepted_name_can_leave_its_directory(name in "[a-z./_%-]{1,20}") {
            if let Ok(name) = RepositoryName::parse(&name) {
                let path = std::path::Path::new(name.as_str());
                prop_assert!(path.components().all(|c| matches!(c, std::path::Component::Normal(_))));
                prop_assert!(!name.as_str().contains('%') && !name.as_str().split('/').any(|c| c.starts_with('_')));
            }
        }
    }
}
