//! The wire formats against the specification's examples, our own vectors, and random values.

mod canonical;
mod examples;
mod older;
mod reproduction;
mod roundtrip;
mod vectors;

use std::path::PathBuf;

/// The specification's digests, which lie beside the repository and not in it. Missing locally, a test that
/// needs them says so and passes; in CI they must be there.
fn spec() -> Option<PathBuf> {
    let path = match std::env::var_os("MARGRAVE_SPEC") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/spec"),
    };
    if path.join("examples").is_dir() {
        return Some(path);
    }
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!ci, "the specification's examples are missing; set MARGRAVE_SPEC to their directory");
    #[expect(clippy::print_stderr, reason = "a skipped test says so aloud")]
    {
        eprintln!("skipped: the specification's examples are not at {}; set MARGRAVE_SPEC", path.display());
    }
    None
}

fn example(path: &str) -> Option<Vec<u8>> {
    let path = spec()?.join("examples").join(path);
    Some(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}
