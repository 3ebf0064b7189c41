//! Reading an archive, and putting a server back into an empty directory.
//!
//! Nothing of an archive is believed: every size is bounded, every path stays inside, every file is compared with the
//! list at the end, and the database and the keys are opened before anybody is told that it is done. A directory that
//! was not finished has a mark, and no server starts on it.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_oci::tarball::{InvalidTar, Kind, Tarball};
use margrave_store::{CopyError, Restored};
use margrave_wire::backup::{
    ArchivePath, DATABASE, FILES_MAX, HEAD, HEAD_BYTES_MAX, Head, InvalidHead, LIST, LIST_BYTES_MAX, List,
    ROOTS,
};

use super::Made;
use super::write::Hashing;
use crate::config::SVID_LIFETIME_DEFAULT;
use crate::identity::{Identity, IdentityError, Wanted};

/// While it is there, a restore is not finished.
const MARK: &str = "restore.unfinished";
/// More than the largest disks hold: what grows beyond is no archive of ours.
const BYTES_MAX: u64 = 64 << 40;

/// Why an archive was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("this is not a backup of Margrave")]
    Foreign,
    #[error("this backup has format {0}, which a newer Margrave wrote; restore it with that one")]
    NewerFormat(u32),
    #[error(
        "this backup's database has schema {found}, this program knows up to {known}; restore it with the newer Margrave that wrote it"
    )]
    NewerSchema { found: u32, known: u32 },
    #[error("this backup is cut off: its end is missing; take another one")]
    CutOff,
    #[error("this backup is damaged: {0}; take another one")]
    Damaged(String),
    #[error("the backup cannot be read")]
    Read(#[source] io::Error),
    #[error("{0} is not empty; a backup is restored into a new or empty directory only")]
    NotEmpty(PathBuf),
    #[error("{path} cannot be written")]
    Write { path: PathBuf, source: io::Error },
    #[error("the restored database is not usable")]
    Database(#[source] CopyError),
    #[error("the restored keys are not usable")]
    Keys(#[source] IdentityError),
}

impl From<InvalidTar> for RestoreError {
    fn from(error: InvalidTar) -> Self {
        match error {
            InvalidTar::CutOff | InvalidTar::NoEnd => RestoreError::CutOff,
            InvalidTar::Io(source) => RestoreError::Read(source),
            other => RestoreError::Damaged(other.to_string()),
        }
    }
}

/// Reads a whole archive and compares everything with its list; writes nothing.
pub fn check(archive: impl Read) -> Result<Made, RestoreError> {
    read(archive, |piece| match piece {
        Piece::Directory(_) => Ok(()),
        Piece::File { content, .. } => {
            io::copy(content, &mut io::sink()).map(drop).map_err(RestoreError::Read)
        }
    })
}

/// Puts everything into a new or empty directory. When this answers, it is whole and on disk.
pub fn restore(archive: impl Read, data: &Path, now: Moment) -> Result<Made, RestoreError> {
    let existed = match fs::read_dir(data).map(|mut entries| entries.next().is_some()) {
        Ok(true) => return Err(RestoreError::NotEmpty(data.to_owned())),
        Ok(false) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(source) => return Err(RestoreError::Write { path: data.to_owned(), source }),
    };
    let restored = unpack(archive, data, now);
    if restored.is_err() {
        // The first failure is the one to tell. What is left has the mark, so that no server starts on it.
        let _left = clear(data, existed);
    }
    restored
}

/// Whether a restore into this directory was never finished.
pub(crate) fn is_unfinished(data: &Path) -> bool {
    data.join(MARK).exists()
}

fn clear(data: &Path, existed: bool) -> io::Result<()> {
    for root in ROOTS {
        let path = data.join(root);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path)?,
            Ok(_) => fs::remove_file(path)?,
            Err(_) => {}
        }
    }
    fs::remove_file(data.join(MARK))?;
    if existed { Ok(()) } else { fs::remove_dir(data) }
}

fn unpack(archive: impl Read, data: &Path, now: Moment) -> Result<Made, RestoreError> {
    make_directory(data)?;
    let mark = data.join(MARK);
    create(&mark, 0o600).and_then(|file| file.sync_all()).map_err(failed(&mark))?;
    let made = read(archive, |piece| match piece {
        Piece::Directory(path) => make_directory(&data.join(path.as_str())),
        Piece::File { path, executable, content } => {
            let path = data.join(path.as_str());
            make_directory(path.parent().unwrap_or(data))?;
            let mode = if executable { 0o700 } else { 0o600 };
            let mut file = create(&path, mode).map_err(failed(&path))?;
            copy(content, &mut file, &path)
        }
    })?;
    examine(data, &made, now)?;
    let database = data.join(DATABASE);
    let restored = Restored { made_at: made.made_at, restored_at: now };
    margrave_store::mark_restored(&database, restored).map_err(RestoreError::Database)?;
    // Everything below is on disk before the mark goes, and that it went is on disk too.
    let directory = File::open(data).map_err(failed(data))?;
    let sync = || rustix::fs::syncfs(&directory).map_err(|error| failed(data)(error.into()));
    sync()?;
    fs::remove_file(&mark).map_err(failed(&mark))?;
    sync()?;
    Ok(made)
}

/// Opens what was restored as a server would, as far as that changes nothing.
fn examine(data: &Path, made: &Made, now: Moment) -> Result<(), RestoreError> {
    let schema = margrave_store::check_copy(&data.join(DATABASE)).map_err(|error| match error {
        CopyError::Newer { found, known } => RestoreError::NewerSchema { found, known },
        error => RestoreError::Database(error),
    })?;
    if schema != made.schema {
        return Err(RestoreError::Damaged(format!(
            "its database has schema {schema}, and it says {}",
            made.schema
        )));
    }
    let wanted = Wanted {
        trust_domain: None,
        wfm: None,
        svid_lifetime: SVID_LIFETIME_DEFAULT,
        web_names: &["localhost".to_owned()],
        fleet_exists: true,
    };
    Identity::open(data, now, wanted).map(drop).map_err(RestoreError::Keys)
}

/// Writes what is read; which of the two failed is told apart.
fn copy(content: &mut dyn Read, file: &mut File, path: &Path) -> Result<(), RestoreError> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match content.read(&mut buffer).map_err(RestoreError::Read)? {
            0 => return Ok(()),
            read => file.write_all(&buffer[..read]).map_err(failed(path))?,
        }
    }
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

fn make_directory(path: &Path) -> Result<(), RestoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> RestoreError {
    let path = path.to_owned();
    move |source| RestoreError::Write { path, source }
}

/// One thing in an archive.
enum Piece<'a> {
    Directory(&'a ArchivePath),
    File { path: &'a ArchivePath, executable: bool, content: &'a mut dyn Read },
}

/// Gives every entry to `take`, and then compares all of them with the list.
fn read(
    archive: impl Read,
    mut take: impl FnMut(Piece<'_>) -> Result<(), RestoreError>,
) -> Result<Made, RestoreError> {
    let mut tarball = Tarball::new(archive, BYTES_MAX);
    let head = head(&mut tarball)?;
    let mut found: HashMap<ArchivePath, (u64, Digest)> = HashMap::new();
    let mut entries = 0;
    loop {
        let Some(entry) = tarball.next_entry()? else { return Err(RestoreError::CutOff) };
        if entry.kind == Kind::File && entry.path == LIST.as_bytes() {
            let list = whole(&mut tarball, entry.size, LIST_BYTES_MAX)?;
            let list: List = serde_json::from_slice(&list)
                .map_err(|error| RestoreError::Damaged(format!("its list cannot be read: {error}")))?;
            if tarball.next_entry()?.is_some() {
                return Err(RestoreError::Damaged("there is more behind its list".to_owned()));
            }
            return compare(head, list, found);
        }
        entries += 1;
        if entries > 2 * FILES_MAX {
            return Err(RestoreError::Damaged(format!("it has more than {FILES_MAX} files")));
        }
        let text = String::from_utf8_lossy(&entry.path);
        let text = if entry.kind == Kind::Directory { text.trim_end_matches('/') } else { &text };
        let path = ArchivePath::parse(text).map_err(|error| RestoreError::Damaged(error.to_string()))?;
        match entry.kind {
            Kind::Directory => take(Piece::Directory(&path))?,
            Kind::File => {
                let mut content = Hashing::new(&mut tarball);
                let executable = entry.mode & 0o100 != 0;
                if found.contains_key(&path) {
                    return Err(RestoreError::Damaged(format!("{path} is in it twice")));
                }
                take(Piece::File { path: &path, executable, content: &mut content })?;
                let (read, digest) = content.finish();
                if read != entry.size {
                    return Err(RestoreError::CutOff);
                }
                found.insert(path, (read, digest));
            }
            _ => return Err(RestoreError::Damaged(format!("{path} is neither a file nor a directory"))),
        }
    }
}

fn head<R: Read>(tarball: &mut Tarball<R>) -> Result<Head, RestoreError> {
    let entry = match tarball.next_entry() {
        Ok(Some(entry)) if entry.kind == Kind::File && entry.path == HEAD.as_bytes() => entry,
        Err(InvalidTar::Io(source)) => return Err(RestoreError::Read(source)),
        _ => return Err(RestoreError::Foreign),
    };
    let bytes = whole(tarball, entry.size, HEAD_BYTES_MAX)?;
    Head::read(&bytes).map_err(|error| match error {
        InvalidHead::Foreign => RestoreError::Foreign,
        InvalidHead::Newer(format) => RestoreError::NewerFormat(format),
    })
}

fn whole<R: Read>(tarball: &mut Tarball<R>, size: u64, max: u64) -> Result<Vec<u8>, RestoreError> {
    if size > max {
        return Err(RestoreError::Damaged(format!("what should be a list has {size} bytes")));
    }
    let mut bytes = Vec::new();
    tarball.read_to_end(&mut bytes).map_err(RestoreError::Read)?;
    if bytes.len() as u64 == size { Ok(bytes) } else { Err(RestoreError::CutOff) }
}

fn compare(
    head: Head,
    list: List,
    mut found: HashMap<ArchivePath, (u64, Digest)>,
) -> Result<Made, RestoreError> {
    let (files, mut bytes) = (list.files.len(), 0u64);
    for listed in list.files {
        match found.remove(&listed.path) {
            None => return Err(RestoreError::Damaged(format!("{} is missing", listed.path))),
            Some(is) if is != (listed.size, listed.digest) => {
                return Err(RestoreError::Damaged(format!("{} is not what it was", listed.path)));
            }
            Some(_) => bytes = bytes.saturating_add(listed.size),
        }
    }
    if let Some(path) = found.keys().next() {
        return Err(RestoreError::Damaged(format!("{path} is not in its list")));
    }
    Ok(Made { made_at: head.made_at, version: head.version, schema: head.schema, files, bytes })
}
