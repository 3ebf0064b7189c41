//! Making an archive.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_wire::backup::{ArchivePath, DATABASE, FILES_MAX, FORMAT, HEAD, Head, LIST, List, Listed};

use super::Made;
use super::tree::{self, Found, Tree};
use crate::fleet::git::QUARANTINE;

/// Keys and names are a few kilobytes each.
const KEY_BYTES_MAX: u64 = 1024 * 1024;
/// Keys change when an authority is rotated, in one step.
const KEY_READINGS_MAX: usize = 10;

/// Why there is no archive.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{0} is not the data directory of a server: there is no database in it")]
    NoServer(PathBuf),
    #[error("a server runs on {0}; leave out --data to ask it for a backup, which needs no stop")]
    InUse(PathBuf),
    #[error("{path} cannot be read")]
    Read { path: PathBuf, source: io::Error },
    #[error("the archive cannot be written")]
    Write(#[source] io::Error),
    #[error("the database cannot be copied")]
    Database(#[from] margrave_store::CopyError),
    #[error(
        "{0} is neither a file nor a directory of the server's; take it away, a backup does not have such"
    )]
    Unexpected(PathBuf),
    #[error("{0} has more files than the {FILES_MAX} of one backup, or they lie too deep")]
    TooMuch(PathBuf),
    #[error("{0} changes faster than it can be read; try again when less is going on")]
    Restless(PathBuf),
}

/// Makes an archive of a data directory that no server runs on.
pub fn back_up_closed(data: &Path, to: impl Write, now: Moment) -> Result<Made, BackupError> {
    let read = |path: &Path| {
        let path = path.to_owned();
        move |source| BackupError::Read { path, source }
    };
    if !data.join(DATABASE).is_file() {
        return Err(BackupError::NoServer(data.to_owned()));
    }
    let lock = data.join("lock");
    let held =
        OpenOptions::new().create(true).truncate(false).write(true).open(&lock).map_err(read(&lock))?;
    match held.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(BackupError::InUse(data.to_owned())),
        Err(TryLockError::Error(source)) => return Err(read(&lock)(source)),
    }
    let copies = directory_for_copies(data).map_err(read(data))?;
    let database = copies.path().join("margrave.db");
    let schema = margrave_store::copy_closed(&data.join("store"), &database)?;
    write(data, &Copy { database, schema, made_at: now }, to)
}

/// Where the copy of the database lies until it is in the archive; only we can read it, and it goes when dropped.
pub(super) fn directory_for_copies(data: &Path) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("backup-").suffix(UNFINISHED).tempdir_in(data)
}

const UNFINISHED: &str = ".unfinished";

/// Takes away what backups left that were killed.
pub(super) fn forget_unfinished(data: &Path) -> io::Result<()> {
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        let name = entry.file_name();
        let ours =
            name.to_str().is_some_and(|name| name.starts_with("backup-") && name.ends_with(UNFINISHED));
        if ours && entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// The database as it was at one moment.
pub(super) struct Copy {
    pub(super) database: PathBuf,
    pub(super) schema: u32,
    pub(super) made_at: Moment,
}

/// Writes everything, the database first.
pub(super) fn write(data: &Path, copy: &Copy, to: impl Write) -> Result<Made, BackupError> {
    let head = Head {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        schema: copy.schema,
        made_at: copy.made_at,
    };
    let mut archive = Archive { tar: tar::Builder::new(to), files: Vec::new(), made_at: copy.made_at };
    let bytes = serde_json::to_vec_pretty(&head).expect("a head is text and numbers");
    archive.note(HEAD, &bytes)?;
    let open =
        |path: &Path| File::open(path).map_err(|source| BackupError::Read { path: path.to_owned(), source });
    archive.file(path(DATABASE), &mut open(&copy.database)?)?;
    let context = data.join("context.json");
    if context.is_file() {
        archive.file(path("context.json"), &mut open(&context)?)?;
    }
    let secrets_key = data.join("secrets.key");
    if secrets_key.is_file() {
        archive.file(path("secrets.key"), &mut open(&secrets_key)?)?;
    }
    for (name, bytes) in keys(&data.join("identity"))? {
        archive.bytes(path(&format!("identity/{name}")), &bytes)?;
    }
    for tree in [intent(data), registry(data), secrets(data)] {
        tree::each(&tree, |found| match found {
            Found::Directory(path) => archive.directory(&path),
            Found::File { path, mut file } => archive.file(path, &mut file),
        })?;
    }
    archive.finish(head)
}

fn path(text: &str) -> ArchivePath {
    ArchivePath::parse(text).expect("our own names are such as an archive has")
}

/// References before objects, and loose ones before packed ones: whatever a copied reference names was there before it,
/// and what Git packs meanwhile is in a pack before it goes elsewhere. What a push or a fetch brought is left out until it is
/// checked: it waits in a folder of its own beside the objects (`fleet/git/quarantine.rs`).
fn intent(data: &Path) -> Tree<'static> {
    Tree {
        on_disk: data.join("intent.git"),
        name: "intent.git",
        with_directories: true,
        skip_links: false,
        skip: |path| {
            let name = path.rsplit('/').next().unwrap_or_default();
            let unfinished = name.starts_with("tmp_") || name.starts_with("incoming-");
            name.ends_with(".lock")
                || name == "gc.pid"
                || (unfinished && path.starts_with("intent.git/objects/"))
                || path.strip_prefix("intent.git/").is_some_and(|rest| rest.starts_with(QUARANTINE))
        },
        rank: |path| match path.strip_prefix("intent.git/").unwrap_or_default() {
            "" => 0,
            rest if rest.starts_with("refs") => 1,
            "packed-refs" => 2,
            rest if rest.starts_with("objects/pack") || rest.starts_with("objects/info") => 5,
            rest if rest.starts_with("objects") => 4,
            _ => 3,
        },
    }
}

/// Tags before manifests before contents would be the order of dependence; but all contents were there before the
/// database was copied, and what was pushed since is nobody's loss.
fn registry(data: &Path) -> Tree<'static> {
    Tree {
        on_disk: data.join("registry"),
        name: "registry",
        with_directories: false,
        skip_links: false,
        skip: |path| matches!(path, "registry/lock" | "registry/incoming"),
        rank: |path| u8::from(path.starts_with("registry/blobs/")),
    }
}

/// Files with secrets, as operators put them there. Names that no reference can have are left out.
fn secrets(data: &Path) -> Tree<'static> {
    Tree {
        on_disk: data.join("secrets"),
        name: "secrets",
        with_directories: false,
        skip_links: true,
        skip: |path| path.rsplit('/').next().unwrap_or_default().starts_with('.'),
        rank: |_| 0,
    }
}

/// All keys as they were at one moment: read until nothing changed in between.
fn keys(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>, BackupError> {
    let mut before = read_all(directory)?;
    for _ in 0..KEY_READINGS_MAX {
        let again = read_all(directory)?;
        if again == before {
            return Ok(before);
        }
        before = again;
    }
    Err(BackupError::Restless(directory.to_owned()))
}

fn read_all(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>, BackupError> {
    let tree = Tree {
        on_disk: directory.to_owned(),
        name: "identity",
        with_directories: false,
        skip_links: false,
        skip: |path| path.ends_with(UNFINISHED),
        rank: |_| 0,
    };
    let mut all = BTreeMap::new();
    tree::each(&tree, |found| {
        let Found::File { path, file } = found else { return Ok(()) };
        let mut bytes = Vec::new();
        let failed = |source| BackupError::Read { path: directory.to_owned(), source };
        file.take(KEY_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > KEY_BYTES_MAX {
            return Err(BackupError::Unexpected(directory.join(path.as_str())));
        }
        let name = path.as_str().strip_prefix("identity/").unwrap_or_default().to_owned();
        all.insert(name, bytes);
        Ok(())
    })?;
    Ok(all)
}

struct Archive<W: Write> {
    tar: tar::Builder<W>,
    files: Vec<Listed>,
    made_at: Moment,
}

impl<W: Write> Archive<W> {
    fn header(&self, size: u64, mode: u32) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_size(size);
        header.set_mode(mode);
        header.set_mtime(self.made_at.0 / 1000);
        header
    }

    /// Something about the archive itself.
    fn note(&mut self, name: &str, bytes: &[u8]) -> Result<(), BackupError> {
        let mut header = self.header(bytes.len() as u64, 0o600);
        self.tar.append_data(&mut header, name, bytes).map_err(BackupError::Write)
    }

    fn directory(&mut self, path: &ArchivePath) -> Result<(), BackupError> {
        let mut header = self.header(0, 0o700);
        header.set_entry_type(tar::EntryType::Directory);
        self.tar.append_data(&mut header, path.as_str(), io::empty()).map_err(BackupError::Write)
    }

    fn bytes(&mut self, path: ArchivePath, bytes: &[u8]) -> Result<(), BackupError> {
        self.append(path, bytes.len() as u64, 0o600, bytes)
    }

    fn file(&mut self, path: ArchivePath, file: &mut File) -> Result<(), BackupError> {
        let failed = |source| BackupError::Read { path: PathBuf::from(path.as_str()), source };
        let about = file.metadata().map_err(failed)?;
        let mode = if about.permissions().mode() & 0o100 == 0 { 0o600 } else { 0o700 };
        self.append(path, about.len(), mode, file)
    }

    fn append(
        &mut self,
        path: ArchivePath,
        size: u64,
        mode: u32,
        from: impl Read,
    ) -> Result<(), BackupError> {
        if self.files.len() >= FILES_MAX {
            return Err(BackupError::TooMuch(PathBuf::from(path.as_str())));
        }
        let mut header = self.header(size, mode);
        let mut from = Hashing::new(from.take(size));
        self.tar.append_data(&mut header, path.as_str(), &mut from).map_err(BackupError::Write)?;
        let (read, digest) = from.finish();
        if read != size {
            let source = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(BackupError::Read { path: PathBuf::from(path.as_str()), source });
        }
        self.files.push(Listed { path, size, digest });
        Ok(())
    }

    fn finish(mut self, head: Head) -> Result<Made, BackupError> {
        let list = List { files: std::mem::take(&mut self.files) };
        let bytes = serde_json::to_vec(&list).expect("a list is text and numbers");
        self.note(LIST, &bytes)?;
        self.tar.into_inner().and_then(|mut to| to.flush()).map_err(BackupError::Write)?;
        Ok(Made {
            made_at: head.made_at,
            version: head.version,
            schema: head.schema,
            files: list.files.len(),
            bytes: list.files.iter().map(|file| file.size).sum(),
        })
    }
}

/// Counts and digests what is read through it.
pub(super) struct Hashing<R> {
    inner: R,
    context: digest::Context,
    read: u64,
}

impl<R: Read> Hashing<R> {
    pub(super) fn new(inner: R) -> Self {
        Hashing { inner, context: digest::Context::new(&digest::SHA256), read: 0 }
    }

    pub(super) fn finish(self) -> (u64, Digest) {
        let bytes = self.context.finish();
        let bytes = bytes.as_ref().try_into().expect("SHA-256 has 32 bytes");
        (self.read, Digest::from_bytes(bytes))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.context.update(&buffer[..read]);
        self.read += read as u64;
        Ok(read)
    }
}
