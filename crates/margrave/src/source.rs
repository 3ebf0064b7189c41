//! Where a vendor's package is: a directory, an archive of one, or a description alone.

use std::path::{Path, PathBuf};

use margrave_oci::archive::ArchiveError;
use margrave_oci::package_archive;
use tempfile::TempDir;

use crate::exit::{Result, Trouble, chain};
use crate::folder::Finding;

/// A package that can be read from disk; an archive is unpacked for as long as this lives.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    _scratch: Option<TempDir>,
}

/// Whether a name is that of an archive.
pub(crate) fn is_archive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    [".tar", ".tgz", ".tar.gz"].iter().any(|end| name.ends_with(end)) && path.is_file()
}

/// The inner error is what is wrong with an archive.
pub(crate) fn open(path: &Path) -> Result<std::result::Result<Source, Vec<Finding>>> {
    if !is_archive(path) {
        return Ok(Ok(Source { path: path.to_owned(), _scratch: None }));
    }
    let scratch = tempfile::tempdir()
        .map_err(|error| Trouble::because("there is no place to unpack the archive to", &error))?;
    match package_archive::unpack(path, scratch.path()) {
        Ok(root) => Ok(Ok(Source { path: root, _scratch: Some(scratch) })),
        Err(ArchiveError::Io { doing, source }) => {
            Err(Trouble::because(format!("cannot {doing} {}", path.display()), &source))
        }
        Err(error) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let message = match std::error::Error::source(&error) {
                Some(cause) => chain(error.to_string(), cause),
                None => error.to_string(),
            };
            Ok(Err(vec![Finding::in_file(name, "PK-003", message)]))
        }
    }
}
