//! A package's directory in one file, as vendors hand it around while they develop: `.tar`, `.tar.gz` or `.tgz`.
//!
//! The standard knows no such form (PK-003); what is inside is the directory that [`crate::package`] reads. Unlike
//! the archives that devices unpack, it may lie in a directory of its own or not, and holds no links.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::archive::{ArchiveError, ENTRIES_MAX, EXPANDED_BYTES_MAX, Rule, checked_path, write_file};
use crate::package::DESCRIPTION_FILE;
use crate::tarball::{InvalidTar, Kind, Tarball};

/// Unpacks into an empty directory and returns where the description should be: there, or in the one directory that
/// everything lies in. Blocks.
pub fn unpack(archive: &Path, into: &Path) -> Result<PathBuf, ArchiveError> {
    let io = |doing| move |source| ArchiveError::Io { doing, source };
    let file = fs::File::open(archive).map_err(io("open the archive"))?;
    let mut reader = BufReader::new(file);
    let is_gzip = reader.fill_buf().map_err(io("read the archive"))?.starts_with(&[0x1f, 0x8b]);
    if is_gzip {
        extract(MultiGzDecoder::new(reader), into)?
    } else {
        extract(reader, into)?
    }
    if into.join(DESCRIPTION_FILE).is_file() {
        return Ok(into.to_owned());
    }
    let entries = fs::read_dir(into).map_err(io("read the unpacked directory"))?;
    let entries = entries.collect::<io::Result<Vec<_>>>().map_err(io("read the unpacked directory"))?;
    match entries.as_slice() {
        [one] if one.path().is_dir() => Ok(one.path()),
        _ => Ok(into.to_owned()),
    }
}

fn extract(reader: impl Read, into: &Path) -> Result<(), ArchiveError> {
    let damaged = |error| match error {
        InvalidTar::Io(error) => ArchiveError::Gzip(error),
        other => ArchiveError::Tar(other),
    };
    let mut tarball = Tarball::new(reader, EXPANDED_BYTES_MAX);
    let mut files = BTreeSet::new();
    let mut count = 0;
    while let Some(entry) = tarball.next_entry().map_err(damaged)? {
        let shown = || String::from_utf8_lossy(&entry.path).chars().take(200).collect::<String>();
        let broken = |rule| ArchiveError::Entry { entry: shown(), rule };
        let parts = checked_path(&entry.path).map_err(broken)?;
        count += parts.len().max(1);
        if count > ENTRIES_MAX {
            return Err(ArchiveError::TooManyEntries);
        }
        let path = parts.iter().fold(into.to_owned(), |path, part| path.join(part));
        match entry.kind {
            Kind::Directory if files.contains(&path) => return Err(broken(Rule::Duplicate)),
            Kind::Directory => make_directory(&path, &broken)?,
            Kind::File if parts.is_empty() || entry.path.ends_with(b"/") => return Err(broken(Rule::Name)),
            Kind::File => {
                if path.exists() {
                    return Err(broken(Rule::Duplicate));
                }
                make_directory(path.parent().unwrap_or(into), &broken)?;
                write_file(&path, entry.mode, entry.size, &mut tarball)?;
                files.insert(path);
            }
            Kind::Symlink | Kind::HardLink => return Err(broken(Rule::Link)),
            Kind::Special(_) => return Err(broken(Rule::SpecialFile)),
        }
    }
    if files.is_empty() { Err(ArchiveError::Empty) } else { Ok(()) }
}

fn make_directory(path: &Path, broken: &impl Fn(Rule) -> ArchiveError) -> Result<(), ArchiveError> {
    fs::create_dir_all(path).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => broken(Rule::BelowNonDirectory),
        _ => ArchiveError::Io { doing: "make a directory of the archive", source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            // Written as it is: the writer's own checks must not stand in for ours.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            if *kind == tar::EntryType::Regular {
                header.set_size(content.len() as u64);
            } else {
                header.set_size(0);
                header.set_link_name_literal(content).unwrap();
            }
            header.set_cksum();
            let data = if *kind == tar::EntryType::Regular { content.as_bytes() } else { b"" };
            builder.append(&header, data).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(bytes: &[u8]) -> Result<(tempfile::TempDir, PathBuf), ArchiveError> {
        let dir = tempfile::tempdir().unwrap();
        let (archive, into) = (dir.path().join("a"), dir.path().join("into"));
        fs::write(&archive, bytes).unwrap();
        fs::create_dir(&into).unwrap();
        let root = unpack(&archive, &into)?;
        let root = root.strip_prefix(&into).unwrap().to_owned();
        Ok((dir, root))
    }

    const FILE: tar::EntryType = tar::EntryType::Regular;

    #[test]
    fn a_package_lies_in_its_archive_with_or_without_a_directory() {
        for (path, root) in
            [("margo.yaml", ""), ("./margo.yaml", ""), ("my-app-1.0/margo.yaml", "my-app-1.0")]
        {
            let (dir, found) = unpacked(&packed(&[(path, FILE, "apiVersion: v1")])).unwrap();
            assert_eq!(found, Path::new(root), "{path}");
            let file = dir.path().join("into").join(root).join("margo.yaml");
            assert_eq!(fs::read_to_string(file).unwrap(), "apiVersion: v1");
        }
    }

    #[test]
    fn compressed_or_not() {
        let plain = packed(&[("margo.yaml", FILE, "x")]);
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        io::Write::write_all(&mut encoder, &plain).unwrap();
        for bytes in [plain, encoder.finish().unwrap()] {
            unpacked(&bytes).unwrap();
        }
    }

    #[test]
    fn nothing_leaves_the_directory_and_nothing_is_there_twice() {
        use tar::EntryType as T;
        for (entries, rule) in [
            (vec![("../margo.yaml", FILE, "x")], Rule::ParentDirectory),
            (vec![("/margo.yaml", FILE, "x")], Rule::AbsolutePath),
            (vec![("margo.yaml", T::Symlink, "/etc/passwd")], Rule::Link),
            (vec![("a", FILE, "x"), ("b", T::Link, "a")], Rule::Link),
            (vec![("a", T::Fifo, "")], Rule::SpecialFile),
            (vec![("a", FILE, "x"), ("a", FILE, "y")], Rule::Duplicate),
            (vec![("a", FILE, "x"), ("a", T::Directory, "")], Rule::Duplicate),
            (vec![("a", FILE, "x"), ("a/b", FILE, "y")], Rule::BelowNonDirectory),
        ] {
            match unpacked(&packed(&entries)) {
                Err(ArchiveError::Entry { rule: got, .. }) => assert_eq!(got, rule, "{entries:?}"),
                other => panic!("{entries:?}: {:?}", other.map(drop)),
            }
        }
    }

    #[test]
    fn what_is_no_archive_says_so() {
        assert!(matches!(unpacked(b"apiVersion: v1"), Err(ArchiveError::Tar(_))));
        assert!(matches!(unpacked(&[0x1f, 0x8b, 1, 2, 3]), Err(ArchiveError::Gzip(_))));
        assert!(matches!(unpacked(&packed(&[])), Err(ArchiveError::Empty)));
    }
}
