//! Bundles: all documents of a manifest in one tar.gz.
//!
//! The same documents give the same bytes for ever, because the digest is published: one compressor at one
//! level, no times, no owners. Reading trusts nothing but digests; names inside mean nothing (AMB-22).

use std::cell::RefCell;
use std::io::{self, Read};

use flate2::read::GzDecoder;
use flate2::{Compress, Compression, FlushCompress, Status};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::AssignmentId;
use margrave_core::manifest::Entry;

use crate::yaml;

/// The media type of a bundle (MI-G2-049).
pub const MEDIA_TYPE: &str = "application/vnd.margo.bundle.v1+tar+gzip";

/// What a bundle may inflate to. Documents have a few kilobytes each; a device has little memory.
pub const INFLATED_SIZE_MAX: u64 = 64 << 20;

/// The bundle of these documents, whatever order they come in.
pub fn write(documents: &[(AssignmentId, &[u8])]) -> Vec<u8> {
    let mut sorted: Vec<_> = documents.iter().map(|(id, bytes)| (format!("{id}.yaml"), *bytes)).collect();
    sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
    // Each with a header, in blocks of 512 bytes, and two empty ones behind the last.
    let size = sorted.iter().map(|(_, bytes)| 512 + bytes.len().next_multiple_of(512)).sum::<usize>() + 1024;
    let mut archive = tar::Builder::new(Vec::with_capacity(size));
    for (name, bytes) in sorted {
        let mut header = tar::Header::new_ustar();
        header.set_path(&name).expect("a UUID is a short path");
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        archive.append(&header, bytes).expect("memory takes every write");
    }
    gzip(&archive.into_inner().expect("memory takes every write"))
}

thread_local! {
    /// Making one takes longer than it takes to compress a bundle, and one publication makes thousands of those. For
    /// the same reason it is the fastest level: half the time, for a tenth more bytes.
    static COMPRESS: RefCell<Compress> = RefCell::new(Compress::new(Compression::fast(), false));
}

/// Time 0 and "unknown" system: a bundle must not tell when or where it was made. The 4 is for the fastest level.
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(content.len() / 2 + 64);
    packed.extend_from_slice(&GZIP_HEAD);
    COMPRESS.with_borrow_mut(|compress| {
        compress.reset();
        loop {
            packed.reserve(content.len() / 2 + 64);
            let read = usize::try_from(compress.total_in()).expect("it was in memory");
            let status = compress.compress_vec(&content[read..], &mut packed, FlushCompress::Finish);
            if status.expect("memory takes every write") == Status::StreamEnd {
                break;
            }
        }
    });
    packed.extend_from_slice(&crc32fast::hash(content).to_le_bytes());
    // Modulo 2^32, as the format has it.
    packed.extend_from_slice(&(content.len() as u32).to_le_bytes());
    packed
}

/// Why a bundle is not the one that its manifest promised.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("the bundle is no readable tar.gz")]
    Unreadable(#[source] io::Error),
    #[error("the bundle inflates to more than {INFLATED_SIZE_MAX} bytes")]
    TooLarge,
    #[error("{0:?} in the bundle is no file at its root")]
    NotAtRoot(String),
    #[error("{0:?} in the bundle is longer than a document may be")]
    DocumentTooLarge(String),
    #[error("{0:?} in the bundle has digest {1}, which the manifest does not list (MI-G2-066)")]
    Extra(String, Digest),
    #[error("the bundle lacks the document of deployment {0} (MI-G2-066)")]
    Missing(AssignmentId),
}

impl From<io::Error> for BundleError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::FileTooLarge => BundleError::TooLarge,
            _ => BundleError::Unreadable(error),
        }
    }
}

/// The documents of a manifest's `entries`, in their order, each proven by its digest; a bundle with one
/// file more or less is refused as a whole.
pub fn read(bytes: &[u8], entries: &[Entry]) -> Result<Vec<Document>, BundleError> {
    let mut found: Vec<Option<Document>> = vec![None; entries.len()];
    let mut archive = tar::Archive::new(Bounded { inner: GzDecoder::new(bytes), left: INFLATED_SIZE_MAX });
    for file in archive.entries()? {
        let mut file = file?;
        let name = String::from_utf8_lossy(&file.path_bytes()).chars().take(200).collect::<String>();
        let inside = name.strip_prefix("./").unwrap_or(&name);
        if !file.header().entry_type().is_file() || inside.is_empty() || inside.contains(['/', '\\']) {
            return Err(BundleError::NotAtRoot(name));
        }
        if file.size() > yaml::SIZE_MAX as u64 {
            return Err(BundleError::DocumentTooLarge(name));
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        let document = Document::of(content);
        let wanted = |(at, entry): (usize, &Entry)| {
            (entry.document.digest == document.digest() && found[at].is_none()).then_some(at)
        };
        match entries.iter().enumerate().find_map(wanted) {
            Some(at) => found[at] = Some(document),
            None => return Err(BundleError::Extra(name, document.digest())),
        }
    }
    let complete = entries.iter().zip(found);
    complete.map(|(entry, document)| document.ok_or(BundleError::Missing(entry.id))).collect()
}

/// Counts while inflating, so that a small archive cannot become a large one.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn compressing_with_what_is_there_already_gives_the_bytes_of_a_new_compressor() {
        let text = |length: usize| -> Vec<u8> {
            (0..length).map(|at| b"apiVersion: v1\nkind: x\n"[at * at % 23]).collect()
        };
        let noise = |length: u64| -> Vec<u8> {
            (0..length).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
        };
        for content in
            [vec![], vec![0; 1024], text(1500), noise(100), noise(70_000), text(300_000), vec![0; 1 << 20]]
        {
            let gzip = flate2::GzBuilder::new().mtime(0).operating_system(255);
            let mut anew = gzip.write(Vec::new(), Compression::fast());
            // In pieces, as an archive is written.
            content.chunks(512).for_each(|piece| anew.write_all(piece).unwrap());
            assert_eq!(super::gzip(&content), anew.finish().unwrap(), "{} bytes", content.len());
        }
    }
}
