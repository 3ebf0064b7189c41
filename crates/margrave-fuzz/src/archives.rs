//! What comes compressed: bundles of documents, compose archives, and the manifests that list them.
//!
//! A checksum stops most damaged copies at the door. So the first byte of an input says whether the rest is the
//! archive as it is, or what is to be packed into a good one.

use std::fs;
use std::io::{Cursor, Read as _, Write as _};
use std::path::Path;

use flate2::Compression;
use margrave_core::digest::Digest;
use margrave_core::id::AssignmentId;
use margrave_core::manifest::{Blob, Entry};
use margrave_oci::archive::{self, CheckedArchive};
use margrave_oci::compose::layer_of;
use margrave_oci::manifest::ImageIndex;
use margrave_oci::package::PackageManifest;
use margrave_wire::bundle as wire;

use crate::refusal_bytes_max;

/// The archive that an input means.
fn packed(bytes: &[u8]) -> Option<Vec<u8>> {
    let (how, rest) = bytes.split_first()?;
    if *how == b'z' {
        return Some(rest.to_vec());
    }
    // Anything else is the tar, perhaps with its header checksums mended, for a good gzip around it.
    let mut tar = rest.to_vec();
    if *how == b't' {
        mend_checksums(&mut tar);
    }
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Compression::none());
    gzip.write_all(&tar).expect("memory takes every write");
    Some(gzip.finish().expect("memory takes every write"))
}

/// Makes every header's checksum right, as far as headers follow one another.
fn mend_checksums(tar: &mut [u8]) {
    let mut at = 0;
    while let Some(block) = tar.get_mut(at..at + 512) {
        if block.iter().all(|byte| *byte == 0) {
            return;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let digits = std::str::from_utf8(&block[124..136]).unwrap_or_default();
        let size = usize::from_str_radix(digits.trim_matches(['\0', ' ']), 8).unwrap_or(0);
        at = at.saturating_add(512).saturating_add(size.div_ceil(512).saturating_mul(512));
    }
}

pub(crate) fn bundle(bytes: &[u8]) {
    let Some(packed) = packed(bytes) else { return };
    let files = files_in(&packed);
    let entries: Vec<Entry> = files.iter().enumerate().map(|(at, content)| entry(at, content)).collect();
    match wire::read(&packed, &entries) {
        Ok(documents) => {
            assert_eq!(documents.len(), entries.len(), "as many documents as the manifest lists");
            for (document, entry) in documents.iter().zip(&entries) {
                assert_eq!(Digest::of(document.bytes()), entry.document.digest, "proven by its digest");
            }
            // One more or one less in the manifest, and the bundle is refused as a whole.
            let mut more = entries.clone();
            more.push(entry(entries.len(), b"never in any archive"));
            assert!(wire::read(&packed, &more).is_err(), "a document is missing");
            if let Some((_, fewer)) = entries.split_last() {
                assert!(wire::read(&packed, fewer).is_err(), "a document is not listed");
            }
        }
        Err(error) => assert!(error.to_string().len() <= 2000, "a refusal is told in few words"),
    }
    // What we write, we read.
    let own: Vec<(AssignmentId, &[u8])> =
        entries.iter().zip(&files).map(|(entry, content)| (entry.id, content.as_slice())).collect();
    let documents = wire::read(&wire::write(&own), &entries).expect("our own bundle can be read");
    assert!(documents.iter().zip(&files).all(|(document, content)| document.bytes() == content));
}

fn entry(at: usize, content: &[u8]) -> Entry {
    let id = AssignmentId::parse(&format!("00000000-0000-4000-8000-{at:012x}")).expect("a UUID");
    Entry { id, document: Blob { digest: Digest::of(content), size: Some(content.len() as u64) } }
}

/// The files of an archive as somebody else's reader finds them, a few at most.
fn files_in(packed: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let gzip = flate2::read::GzDecoder::new(packed).take(1 << 20);
    let mut archive = tar::Archive::new(gzip);
    let Ok(entries) = archive.entries() else { return found };
    for file in entries.take(64) {
        let Ok(mut file) = file else { break };
        let mut content = Vec::new();
        if file.read_to_end(&mut content).is_err() {
            break;
        }
        if file.header().entry_type().is_file() {
            found.push(content);
        }
    }
    found
}

/// Whatever an archive says, unpacking stays in its directory, and leaves nothing behind when it refuses.
pub(crate) fn compose(bytes: &[u8]) {
    let Some(packed) = packed(bytes) else { return };
    let digest = Digest::of(&packed);
    let outside = scratch();
    let destination = outside.path().join("unpacked");
    // Something that must survive: links and paths that lead out would reach it.
    fs::write(outside.path().join("secret"), b"secret").expect("the scratch directory is writable");
    let checked = archive::check(&mut Cursor::new(&packed), digest);
    let unpacked = archive::unpack(&mut Cursor::new(&packed), digest, &destination);
    match (checked, unpacked) {
        (Ok(checked), Ok(project)) => {
            assert_eq!(project, destination.join(&checked.top));
            assert!(
                fs::symlink_metadata(project.join(archive::COMPOSE_FILE)).is_ok_and(|meta| meta.is_file())
            );
            assert_inside(&checked, &destination);
        }
        (Err(_), Err(error)) => {
            assert!(error.to_string().len() <= 2000, "a refusal is told in few words");
            assert!(fs::symlink_metadata(&destination).is_err(), "refused, and yet something was unpacked");
        }
        (checked, unpacked) => panic!("checked {checked:?}, unpacked {unpacked:?}"),
    }
    let mut beside: Vec<_> = fs::read_dir(outside.path())
        .expect("the scratch directory is there")
        .map(|entry| entry.expect("the scratch directory is there").file_name())
        .filter(|name| name != "unpacked")
        .collect();
    beside.sort();
    assert_eq!(beside, ["secret"], "something was written beside the destination");
    assert_eq!(fs::read(outside.path().join("secret")).expect("it is there"), b"secret");
    // Under a false digest nothing happens at all.
    let other = Digest::of(b"something else");
    assert!(archive::unpack(&mut Cursor::new(&packed), other, &destination).is_err());
}

fn assert_inside(checked: &CheckedArchive, destination: &Path) {
    let root = fs::canonicalize(destination).expect("it was unpacked");
    let (mut entries, mut bytes) = (0, 0);
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("what was unpacked can be read") {
            let path = entry.expect("what was unpacked can be read").path();
            let meta = fs::symlink_metadata(&path).expect("what was unpacked can be read");
            entries += 1;
            if meta.is_dir() {
                folders.push(path);
            } else if meta.is_symlink() {
                // A link to nothing leads nowhere; any other stays inside.
                if let Ok(real) = fs::canonicalize(&path) {
                    assert!(real.starts_with(&root), "{} leads to {}", path.display(), real.display());
                }
            } else {
                assert!(meta.is_file(), "{} is neither file, directory nor link", path.display());
                bytes += meta.len();
            }
        }
    }
    assert!(entries <= archive::ENTRIES_MAX, "{entries} things from {} entries", checked.entries);
    assert!(bytes >= checked.bytes, "{bytes} bytes of {} were unpacked", checked.bytes);
}

/// A directory in memory where there is one; a million archives would wear out a disk.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary directory")
}

pub(crate) fn package_manifest(bytes: &[u8]) {
    if let Ok(index) = ImageIndex::from_bytes(bytes) {
        assert_eq!(ImageIndex::from_bytes(&index.to_bytes()).expect("our own index can be read"), index);
    }
    if let Err(error) = layer_of("x", bytes) {
        assert!(error.to_string().len() <= refusal_bytes_max(bytes));
    }
    match PackageManifest::read("x", bytes) {
        Ok(package) => {
            assert_eq!(package.digest, Digest::of(bytes), "known by its exact bytes");
            for resource in &package.resources {
                if let Some(title) = &resource.title {
                    let inside = title.split('/').all(|part| !matches!(part, "" | "." | ".."));
                    assert!(inside && title.len() <= 255, "{title:?} leads out of the package");
                }
            }
        }
        Err(error) => assert!(error.to_string().len() <= 2000, "a refusal is told in few words"),
    }
}
