//! Which thing a path under `/v2/` names.
//!
//! Repository names contain slashes, so the paths are read from their end.

use margrave_core::digest::Digest;
use margrave_oci::reference::{InvalidReference, RepositoryName, TagOrDigest};
use percent_encoding::percent_decode_str;
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    Base,
    Tags(RepositoryName),
    Manifest(RepositoryName, Result<TagOrDigest, InvalidReference>),
    Blob(RepositoryName, Digest),
    Uploads(RepositoryName),
    /// `None` if the id cannot be one of ours.
    Upload(RepositoryName, Option<Uuid>),
    Referrers(RepositoryName, Digest),
    /// Nothing that this registry has.
    Unknown,
}

impl Route {
    /// Reads the raw path, as it was sent.
    pub(crate) fn parse(path: &str) -> Result<Route, InvalidReference> {
        let Some(rest) = path.strip_prefix("/v2") else { return Ok(Route::Unknown) };
        if rest.is_empty() || rest == "/" {
            return Ok(Route::Base);
        }
        let Some(rest) = rest.strip_prefix('/') else { return Ok(Route::Unknown) };
        // Each segment is decoded for itself: an encoded slash then is a wrong character in a name and
        // never a separator.
        let mut segments = Vec::new();
        for segment in rest.split('/') {
            match percent_decode_str(segment).decode_utf8() {
                Ok(segment) => segments.push(segment.into_owned()),
                Err(_) => return Err(InvalidReference::Name(segment.chars().take(120).collect())),
            }
        }
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        Ok(match &segments[..] {
            [name @ .., "tags", "list"] => Route::Tags(repository(name)?),
            [name @ .., "blobs", "uploads"] | [name @ .., "blobs", "uploads", ""] => {
                Route::Uploads(repository(name)?)
            }
            [name @ .., "blobs", "uploads", id] => Route::Upload(repository(name)?, Uuid::try_parse(id).ok()),
            [name @ .., "manifests", reference] => {
                Route::Manifest(repository(name)?, TagOrDigest::parse(reference))
            }
            [name @ .., "blobs", digest] => Route::Blob(repository(name)?, parse_digest(digest)?),
            [name @ .., "referrers", digest] => Route::Referrers(repository(name)?, parse_digest(digest)?),
            _ => Route::Unknown,
        })
    }
}

fn repository(segments: &[&str]) -> Result<RepositoryName, InvalidReference> {
    // Joined, an encoded slash would look like a separator after all.
    match segments.iter().find(|segment| segment.contains('/')) {
        Some(segment) => Err(InvalidReference::Name(segment.chars().take(120).collect())),
        None => RepositoryName::parse(&segments.join("/")),
    }
}

fn parse_digest(text: &str) -> Result<Digest, InvalidReference> {
    Digest::parse(text).map_err(|_| InvalidReference::Digest(text.chars().take(120).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> RepositoryName {
        RepositoryName::parse(text).unwrap()
    }

    #[test]
    fn paths_are_read_from_their_end() {
        let digest = Digest::of(b"");
        let id = Uuid::from_u128(7);
        let tag = |text: &str| Ok(TagOrDigest::parse(text).unwrap());
        for (path, wanted) in [
            ("/v2".to_owned(), Route::Base),
            ("/v2/".to_owned(), Route::Base),
            ("/v2/a/b/tags/list".to_owned(), Route::Tags(name("a/b"))),
            ("/v2/tags/list/tags/list".to_owned(), Route::Tags(name("tags/list"))),
            ("/v2/a/manifests/1.0".to_owned(), Route::Manifest(name("a"), tag("1.0"))),
            ("/v2/a/manifests/manifests/x".to_owned(), Route::Manifest(name("a/manifests"), tag("x"))),
            (
                format!("/v2/a/manifests/{digest}"),
                Route::Manifest(name("a"), Ok(TagOrDigest::Digest(digest))),
            ),
            (format!("/v2/a/blobs/{digest}"), Route::Blob(name("a"), digest)),
            (format!("/v2/a/blobs/sha256%3A{}", digest.hex()), Route::Blob(name("a"), digest)),
            ("/v2/a/blobs/uploads".to_owned(), Route::Uploads(name("a"))),
            ("/v2/a/blobs/uploads/".to_owned(), Route::Uploads(name("a"))),
            (format!("/v2/a/blobs/uploads/{id}"), Route::Upload(name("a"), Some(id))),
            ("/v2/a/blobs/uploads/..".to_owned(), Route::Upload(name("a"), None)),
            (format!("/v2/a/referrers/{digest}"), Route::Referrers(name("a"), digest)),
            ("/v2/_catalog".to_owned(), Route::Unknown),
            ("/v2x/a/tags/list".to_owned(), Route::Unknown),
        ] {
            assert_eq!(Route::parse(&path), Ok(wanted), "{path}");
        }
    }

    #[test]
    fn a_path_cannot_leave_its_repository() {
        let digest = Digest::of(b"");
        for bad in [
            "..",
            "../..",
            "%2e%2e",
            "a/../b",
            "a/%2e%2e/b",
            "a%2fb",
            "a%2F..",
            "/etc",
            "",
            "a//b",
            "%ff",
            "a%00",
            "_tags",
        ] {
            for rest in ["tags/list", "manifests/x", &format!("blobs/{digest}"), "blobs/uploads/"] {
                let path = format!("/v2/{bad}/{rest}");
                assert!(matches!(Route::parse(&path), Err(InvalidReference::Name(_))), "{path}");
            }
        }
        for bad in ["..", "%2e%2e", "sha256:..", "a%2fb", "", ".x"] {
            let route = Route::parse(&format!("/v2/a/manifests/{bad}")).unwrap();
            assert!(matches!(route, Route::Manifest(_, Err(_))), "{bad}");
            assert!(Route::parse(&format!("/v2/a/blobs/{bad}")).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_path_panics_or_escapes(path in "/v2(/[a-z.%/_:-]{0,12}){0,3}(/blobs|/manifests|/tags)?/[a-z.%/:]{0,12}") {
            let Ok(Route::Tags(name) | Route::Manifest(name, _) | Route::Blob(name, _) | Route::Uploads(name)
                | Route::Upload(name, _) | Route::Referrers(name, _)) = Route::parse(&path) else { return Ok(()) };
            prop_assert!(!name.as_str().contains("..") && !name.as_str().starts_with('/'));
        }
    }
}
