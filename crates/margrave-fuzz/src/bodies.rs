//! JSON bodies of the device protocol.

use margrave_core::manifest::{Blob, Entry, Manifest};
use margrave_core::violation::Violation;
use margrave_wire::problem::{Problem, ProblemType};
use margrave_wire::{BodyError, g2};

use crate::refusal_bytes_max;

/// Largest whole number that every JSON reader keeps; larger sizes are not written.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;
const URL_BYTES_MAX: usize = 2048;

pub(crate) fn manifest(bytes: &[u8]) {
    let listing = match g2::manifest::read(bytes) {
        Ok(listing) => listing,
        Err(error) => return refused(bytes, &error),
    };
    let manifest = &listing.manifest;
    assert!(manifest.version() >= 1, "the first version is 1");
    assert_eq!(manifest.entries().len(), listing.document_urls.len(), "one URL for each document");
    assert_eq!(manifest.bundle().is_some(), listing.bundle_url.is_some(), "one URL for the bundle");
    assert_eq!(manifest.bundle().is_none(), manifest.entries().is_empty(), "a bundle exactly when needed");
    assert!(manifest.entries().is_sorted_by(|a, b| a.id < b.id), "each id once, in order");
    for url in listing.document_urls.iter().chain(&listing.bundle_url) {
        let segments = url.strip_prefix('/').map(|path| path.split('/'));
        let inside = segments.is_some_and(|mut segments| segments.all(|s| !matches!(s, "" | "." | "..")));
        assert!(inside && url.len() <= URL_BYTES_MAX, "{url:?} may lead to another origin or place");
    }
    let written = g2::manifest::write(manifest);
    let again = g2::manifest::read(&written).expect("our own manifest can be read");
    assert_eq!(again.manifest, without_large_sizes(manifest), "a manifest survives the wire");
    assert_eq!(g2::manifest::write(&again.manifest), written, "the same manifest has the same bytes");
}

/// A size that not every reader keeps is left out, since it is only advice.
fn without_large_sizes(manifest: &Manifest) -> Manifest {
    let small = |blob: Blob| Blob { size: blob.size.filter(|size| *size <= SAFE_INTEGER_MAX), ..blob };
    let entry = |entry: &Entry| Entry { document: small(entry.document), ..*entry };
    let entries = manifest.entries().iter().map(entry).collect();
    Manifest::new(manifest.version(), manifest.bundle().map(small), entries).expect("only sizes changed")
}

pub(crate) fn capabilities(bytes: &[u8]) {
    let read = match g2::capabilities::read(bytes) {
        Ok(read) => read,
        Err(error) => return refused(bytes, &error),
    };
    let written = g2::capabilities::write(&read);
    let again = g2::capabilities::read(&written).expect("our own capabilities can be read");
    assert_eq!(again, read, "capabilities survive the wire");
    assert_eq!(g2::capabilities::write(&again), written, "the same capabilities have the same bytes");
}

pub(crate) fn status(bytes: &[u8]) {
    let read = match g2::status::read(bytes) {
        Ok(read) => read,
        Err(error) => return refused(bytes, &error),
    };
    assert!(read.adopted_version >= 1, "the first version is 1");
    let written = g2::status::write(&read);
    let again = g2::status::read(&written).expect("our own report can be read");
    assert_eq!(again, read, "a report survives the wire");
}

/// A problem as a device reads it from a server, ours or another's.
pub(crate) fn problem(bytes: &[u8]) {
    let Ok(read) = serde_json::from_slice::<Problem>(bytes) else { return };
    let again: Problem = serde_json::from_slice(&read.to_json()).expect("our own problem can be read");
    assert_eq!(again, read, "a problem survives the wire");
    if let Some(kind) = read.problem_type() {
        assert_eq!(ProblemType::of(&kind.uri()), Some(kind), "a registered type is known by its own name");
    }
    assert!(read.to_string().len() <= refusal_bytes_max(bytes), "a problem is told in few words");
}

/// A refusal says why, is one of the two kinds, and does not become longer than what it refuses.
pub(crate) fn refused(bytes: &[u8], error: &BodyError) {
    match error {
        BodyError::Malformed(reason) => {
            assert!(!reason.is_empty() && reason.len() <= 500, "{} bytes to say no", reason.len());
        }
        BodyError::Invalid(violations) => explained(bytes, violations),
    }
    let problem = Problem::from(error);
    assert!(matches!(problem.status, 400 | 422), "{problem}");
    assert!(problem.to_json().len() <= refusal_bytes_max(bytes), "a refusal is told in few words");
}

pub(crate) fn explained(bytes: &[u8], violations: &[Violation]) {
    assert!(!violations.is_empty(), "refused without a reason");
    assert!(violations.len() <= 200, "{} reasons are more than anybody reads", violations.len());
    let mut told = 0;
    for violation in violations {
        assert!(!violation.message.is_empty() && !violation.rule.is_empty(), "{violation:?}");
        assert!(violation.place.is_empty() || violation.place.starts_with('/'), "{violation:?}");
        told += violation.to_string().len();
    }
    assert!(told <= refusal_bytes_max(bytes), "{told} bytes to refuse {}", bytes.len());
}
