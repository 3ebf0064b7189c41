//! Names of images as people write them in Compose files, and what they mean: `nginx` is `docker.io/library/nginx:latest`.

use crate::reference::{Host, InvalidReference, Reference, Repository, RepositoryName, Tag, TagOrDigest};

/// The registry that is meant where a name has no host.
pub const DOCKER_HUB: &str = "docker.io";

/// The manifest that an image's name means, by Docker's rules.
///
/// # Errors
/// When no registry can have something of that name.
pub fn parse(text: &str) -> Result<Reference, InvalidReference> {
    let (host, rest) = match text.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest),
        _ => (DOCKER_HUB, text),
    };
    parse_in(Host::parse(if host == "index.docker.io" { DOCKER_HUB } else { host })?, rest)
}

/// The same of a name in a certain registry.
pub fn parse_in(host: Host, rest: &str) -> Result<Reference, InvalidReference> {
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => match TagOrDigest::parse(digest)? {
            digest @ TagOrDigest::Digest(_) => (rest, Some(digest)),
            TagOrDigest::Tag(_) => return Err(InvalidReference::Digest(digest.chars().take(120).collect())),
        },
        None => (rest, None),
    };
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) => (path, tag),
        None => (rest, "latest"),
    };
    let tag = TagOrDigest::Tag(Tag::parse(tag)?);
    let official = host.as_str() == DOCKER_HUB && !path.contains('/');
    let name = if official {
        RepositoryName::parse(&format!("library/{path}"))?
    } else {
        RepositoryName::parse(path)?
    };
    Ok(Repository { host, name }.at(digest.unwrap_or(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_they_mean_to_docker() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (name, expected) in [
            ("nginx", "oci://docker.io/library/nginx:latest".to_owned()),
            ("nginx:1.27", "oci://docker.io/library/nginx:1.27".to_owned()),
            ("grafana/grafana", "oci://docker.io/grafana/grafana:latest".to_owned()),
            ("index.docker.io/library/nginx:1", "oci://docker.io/library/nginx:1".to_owned()),
            ("localhost/a:1", "oci://localhost/a:1".to_owned()),
            ("127.0.0.1:5000/a/b", "oci://127.0.0.1:5000/a/b:latest".to_owned()),
            ("[::1]:5000/a/b:2", "oci://[::1]:5000/a/b:2".to_owned()),
            ("registry.example/a", "oci://registry.example/a:latest".to_owned()),
            (&format!("h:1/a@{digest}"), format!("oci://h:1/a@{digest}")),
            (&format!("h:1/a:tag@{digest}"), format!("oci://h:1/a@{digest}")),
        ] {
            assert_eq!(parse(name).unwrap().to_string(), expected, "{name}");
        }
    }

    #[test]
    fn what_no_registry_has_is_refused() {
        let long = "a/".repeat(200);
        for name in [
            "",
            ":",
            "@",
            "/",
            "a:",
            "UPPER",
            "a b",
            "../etc/passwd",
            "h:1/../a",
            "h:1/a/%2e%2e",
            "a@tag",
            "a@sha256:0",
            "a@md5:0",
            "h:99999/a",
            "h:1//a",
            "http://h/a",
            "a:b:c",
            "ü",
            "a:-x",
            &long,
        ] {
            assert!(parse(name).is_err(), "{name:?}");
        }
    }
}
