//! Compose archives: checked as a whole, then unpacked (PK-080 to PK-097).
//!
//! Nothing is written before every entry of the archive was looked at, and nothing is seen at its place
//! before all of it is on disk. Server and device use the same check (PK-095).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use flate2::bufread::GzDecoder;
use margrave_core::digest::Digest;
use margrave_core::report::{FailureCode, Retry};

use crate::hashing::Hashing;
use crate::tarball::{Entry, InvalidTar, Kind, Tarball, from_io};

/// The one name of the one file that counts (PK-082).
pub const COMPOSE_FILE: &str = "compose.yaml";

/// Names that other tools take and the standard does not; worth a hint.
const COMPOSE_FILES_INVALID: [&str; 3] = ["compose.yml", "docker-compose.yaml", "docker-compose.yml"];

/// A compose project is some text files; these bounds are for attackers and accidents (PK-087).
pub const ENTRIES_MAX: usize = 10_000;
pub const EXPANDED_BYTES_MAX: u64 = 256 * 1024 * 1024;
const PATH_BYTES_MAX: usize = 1024;
const COMPONENT_BYTES_MAX: usize = 255;

/// Why an archive is not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("the archive has digest {got}, promised was {wanted}; fetch it again (PK-096)")]
    Digest { wanted: Digest, got: Digest },
    #[error("the archive is not gzip, or is damaged; make it anew (PK-080)")]
    Gzip(#[source] io::Error),
    #[error("there is something behind the end of the gzip data; make the archive anew (PK-080)")]
    Trailing,
    #[error("the archive is not a tar we accept (PK-080)")]
    Tar(#[source] InvalidTar),
    #[error("the archive makes more than {ENTRIES_MAX} files and directories (PK-087)")]
    TooManyEntries,
    #[error("the entry {entry:?} {rule}")]
    Entry { entry: String, rule: Rule },
    #[error("the archive has no {COMPOSE_FILE} directly in its top-level directory; {hint} (PK-082)")]
    NoComposeFile { hint: String },
    #[error("the archive is empty; put one directory with {COMPOSE_FILE} into it (PK-080)")]
    Empty,
    #[error("cannot {doing}")]
    Io { doing: &'static str, source: io::Error },
}

/// The rule that an entry breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    SymlinkOutside,
    HardLinkOutside,
    AbsolutePath,
    ParentDirectory,
    SpecialFile,
    SecondTopLevel,
    TopLevelFile,
    Duplicate,
    BelowNonDirectory,
    Name,
    TooLong,
    Data,
    ComposeFileKind,
    LinkThroughLink,
    HardLinkTarget,
    Link,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::SymlinkOutside => "is a symbolic link that leads out of the top-level directory (PK-090)",
            Rule::HardLinkOutside => {
                "is a hard link to something outside of the top-level directory (PK-091)"
            }
            Rule::AbsolutePath => "has an absolute path (PK-092)",
            Rule::ParentDirectory => "has \"..\" in its path (PK-093)",
            Rule::SpecialFile => "is not a file, directory or link (PK-097)",
            Rule::SecondTopLevel => "is a second top-level directory; there must be exactly one (PK-080)",
            Rule::TopLevelFile => {
                "is not in a directory; everything must be in one top-level directory (PK-080)"
            }
            Rule::Duplicate => "is in the archive twice",
            Rule::BelowNonDirectory => "lies below something that is not a directory",
            Rule::Name => "has a name that is empty, not UTF-8, or has control characters",
            Rule::TooLong => "has a path longer than 1024 bytes, or a part of it longer than 255",
            Rule::Data => "carries data although it is no file",
            Rule::ComposeFileKind => "must be a regular file (PK-082)",
            Rule::LinkThroughLink => "is a symbolic link whose target leads through another one",
            Rule::HardLinkTarget => "is a hard link to something that is no file earlier in the archive",
            Rule::Link => "is a link; a package's archive has files and directories only",
        })
    }
}

impl ArchiveError {
    /// What a device reports.
    pub fn failure(&self) -> FailureCode {
        match self {
            ArchiveError::Io { source, .. } if is_full(source) => FailureCode::DiskFull,
            // What was fetched went bad on our disk, or the disk itself did: fetching again may help.
            ArchiveError::Io { .. } | ArchiveError::Digest { .. } => FailureCode::PullFailed,
            _ => FailureCode::ArchiveInvalid,
        }
    }

    pub fn retry(&self) -> Retry {
        self.failure().retry()
    }

    fn io(doing: &'static str) -> impl FnOnce(io::Error) -> ArchiveError {
        move |source| ArchiveError::Io { doing, source }
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// An archive whose every entry was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedArchive {
    /// The name of the top-level directory; nothing may depend on it (PK-081).
    pub top: String,
    /// Directories, files and links.
    pub entries: usize,
    /// The bytes of all files.
    pub bytes: u64,
}

/// Checks an archive completely, without writing anything: its digest, then every entry.
pub fn check(archive: &mut (impl Read + Seek), wanted: Digest) -> Result<CheckedArchive, ArchiveError> {
    verify_digest(archive, wanted)?;
    let mut plan = Plan::default();
    read(archive, |entry, _| plan.add(&entry))?;
    plan.finish()
}

/// What an archive has below its top-level directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    paths: BTreeSet<PathBuf>,
    links: BTreeSet<PathBuf>,
}

impl Listing {
    /// Whether the archive has something at this path; `None` where the path leads through a symbolic link.
    pub fn has(&self, path: &Path) -> Option<bool> {
        if path.ancestors().any(|above| self.links.contains(above)) {
            return None;
        }
        Some(path.as_os_str().is_empty() || self.paths.contains(path))
    }
}

/// Of files and directories alone.
impl FromIterator<PathBuf> for Listing {
    fn from_iter<T: IntoIterator<Item = PathBuf>>(paths: T) -> Self {
        Listing { paths: paths.into_iter().collect(), links: BTreeSet::new() }
    }
}

/// Checks an archive like [`check`], and says what is in it: what was unpacked of it may have been changed since.
pub fn list(archive: &mut (impl Read + Seek), wanted: Digest) -> Result<Listing, ArchiveError> {
    verify_digest(archive, wanted)?;
    let mut plan = Plan::default();
    read(archive, |entry, _| plan.add(&entry))?;
    let mut listing = Listing::default();
    for (path, planned) in &plan.planned {
        let Some((_top, below)) = path.split_once('/') else { continue };
        match planned {
            Planned::File | Planned::Directory => listing.paths.insert(below.into()),
            Planned::Symlink(_) => listing.links.insert(below.into()),
        };
    }
    plan.finish()?;
    Ok(listing)
}

/// Checks an archive like [`check`], and reads its `compose.yaml`: as much of it as `max` allows.
pub fn check_reading(
    archive: &mut (impl Read + Seek),
    wanted: Digest,
    max: u64,
) -> Result<(CheckedArchive, Vec<u8>), ArchiveError> {
    verify_digest(archive, wanted)?;
    let mut plan = Plan::default();
    let mut compose = Vec::new();
    read(archive, |entry, data| {
        plan.add(&entry)?;
        let is_compose = |path: Vec<&str>| matches!(path.as_slice(), [_, COMPOSE_FILE]);
        if entry.kind == Kind::File && checked_path(&entry.path).is_ok_and(is_compose) {
            data.take(max).read_to_end(&mut compose).map_err(|error| sorted(from_io(error)))?;
        }
        Ok(())
    })?;
    Ok((plan.finish()?, compose))
}

/// Checks an archive and unpacks it, so that `destination` is then a directory that holds exactly it;
/// returns the directory with `compose.yaml`.
///
/// What was at `destination` is replaced, with one rename. Killed at any point, the destination is there
/// as a whole or not at all; calling again puts things right. It blocks, and two calls for one destination
/// must not run at once.
pub fn unpack(
    archive: &mut (impl Read + Seek),
    wanted: Digest,
    destination: &Path,
) -> Result<PathBuf, ArchiveError> {
    let checked = check(archive, wanted)?;
    let (Some(parent), Some(name)) = (destination.parent(), destination.file_name()) else {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it is the root of a file system");
        return Err(ArchiveError::Io { doing: "unpack into this destination", source });
    };
    let sibling = |suffix: &str| parent.join(format!(".{}.{suffix}", name.to_string_lossy()));
    let (staging, replaced) = (sibling("unpacking"), sibling("replaced"));
    for left_over in [&staging, &replaced] {
        remove_all(left_over).map_err(ArchiveError::io("clear what an earlier attempt left"))?;
    }
    let unpacked = extract(archive, wanted, &staging).and_then(|()| {
        if fs::symlink_metadata(destination).is_ok() {
            fs::rename(destination, &replaced).map_err(ArchiveError::io("replace the earlier directory"))?;
        }
        fs::rename(&staging, destination).map_err(ArchiveError::io("put the unpacked directory in place"))?;
        sync_dir(parent).map_err(ArchiveError::io("write the unpacked directory"))?;
        remove_all(&replaced).map_err(ArchiveError::io("remove the earlier directory"))
    });
    if let Err(error) = unpacked {
        // The first error is the one worth telling; what stays is cleared by the next attempt.
        if let Err(error) = remove_all(&staging) {
            tracing::warn!(path = %staging.display(), %error, "an unfinished directory could not be removed");
        }
        return Err(error);
    }
    Ok(destination.join(checked.top))
}

fn remove_all(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn verify_digest(archive: &mut (impl Read + Seek), wanted: Digest) -> Result<(), ArchiveError> {
    archive.seek(SeekFrom::Start(0)).map_err(ArchiveError::io("read the archive"))?;
    let mut hashing = Hashing::new(archive);
    io::copy(&mut hashing, &mut io::sink()).map_err(ArchiveError::io("read the archive"))?;
    match hashing.digest() {
        got if got == wanted => Ok(()),
        got => Err(ArchiveError::Digest { wanted, got }),
    }
}

fn sorted(error: InvalidTar) -> ArchiveError {
    match error {
        // The only reader below the tar is the gzip decoder. What the system says below that is about the disk.
        InvalidTar::Io(source) if source.raw_os_error().is_some() => {
            ArchiveError::Io { doing: "read the archive", source }
        }
        InvalidTar::Io(error) => ArchiveError::Gzip(error),
        other => ArchiveError::Tar(other),
    }
}

/// Shows every entry with its data to `visit`, to the very end; returns the digest of what was read.
fn read<A: Read + Seek>(
    archive: &mut A,
    mut visit: impl FnMut(Entry, &mut dyn Read) -> Result<(), ArchiveError>,
) -> Result<Digest, ArchiveError> {
    archive.seek(SeekFrom::Start(0)).map_err(ArchiveError::io("read the archive"))?;
    let mut gzip = GzDecoder::new(BufReader::new(Hashing::new(archive)));
    let mut tarball = Tarball::new(&mut gzip, EXPANDED_BYTES_MAX);
    let mut count = 0;
    while let Some(entry) = tarball.next_entry().map_err(sorted)? {
        count += 1;
        if count > ENTRIES_MAX {
            return Err(ArchiveError::TooManyEntries);
        }
        visit(entry, &mut tarball)?;
    }
    let mut rest = gzip.into_inner();
    if !rest.fill_buf().map_err(ArchiveError::io("read the archive"))?.is_empty() {
        return Err(ArchiveError::Trailing);
    }
    Ok(rest.into_inner().digest())
}

/// What the archive would make, entry by entry, without making it.
#[derive(Default)]
struct Plan {
    top: Option<String>,
    /// By path, `/` between the parts. A directory that is only implied by what is in it is in here too.
    planned: BTreeMap<String, Planned>,
    entries: usize,
    bytes: u64,
}

enum Planned {
    File,
    Directory,
    /// With its target as written.
    Symlink(String),
}

impl Plan {
    fn add(&mut self, entry: &Entry) -> Result<(), ArchiveError> {
        let shown = || String::from_utf8_lossy(&entry.path).chars().take(200).collect::<String>();
        self.try_add(entry).map_err(|rule| ArchiveError::Entry { entry: shown(), rule })?;
        // One entry can imply hundreds of directories, and each of them costs the disk as much as a file.
        if self.planned.len() > ENTRIES_MAX { Err(ArchiveError::TooManyEntries) } else { Ok(()) }
    }

    fn try_add(&mut self, entry: &Entry) -> Result<(), Rule> {
        let path = checked_path(&entry.path)?;
        let Some((top, below)) = path.split_first() else {
            // "./" for the directory that was packed.
            return if entry.kind == Kind::Directory { Ok(()) } else { Err(Rule::Name) };
        };
        if let Kind::Special(_) = entry.kind {
            return Err(Rule::SpecialFile);
        }
        if entry.kind != Kind::File && entry.size > 0 {
            return Err(Rule::Data);
        }
        if entry.kind == Kind::File && entry.path.ends_with(b"/") {
            return Err(Rule::Name);
        }
        if below.is_empty() && entry.kind != Kind::Directory {
            return Err(Rule::TopLevelFile);
        }
        match &self.top {
            Some(known) if known != top => return Err(Rule::SecondTopLevel),
            Some(_) => {}
            None => self.top = Some((*top).to_owned()),
        }
        for end in 1..path.len() {
            match self.planned.entry(path[..end].join("/")).or_insert(Planned::Directory) {
                Planned::Directory => {}
                Planned::File | Planned::Symlink(_) => return Err(Rule::BelowNonDirectory),
            }
        }
        let full = path.join("/");
        let planned = match entry.kind {
            Kind::Directory => match self.planned.get(&full) {
                None | Some(Planned::Directory) => Planned::Directory,
                Some(_) => return Err(Rule::Duplicate),
            },
            _ if self.planned.contains_key(&full) => return Err(Rule::Duplicate),
            Kind::File => Planned::File,
            Kind::Symlink => {
                let target = std::str::from_utf8(&entry.link).map_err(|_| Rule::Name)?;
                if target.is_empty() || target.len() > PATH_BYTES_MAX || target.chars().any(char::is_control)
                {
                    return Err(Rule::Name);
                }
                Planned::Symlink(target.to_owned())
            }
            Kind::HardLink => {
                // Its target is a path in the archive, not relative to the link.
                let target = checked_path(&entry.link).map_err(|_| Rule::HardLinkOutside)?;
                if target.first() != Some(top) {
                    return Err(Rule::HardLinkOutside);
                }
                match self.planned.get(&target.join("/")) {
                    Some(Planned::File) => Planned::File,
                    _ => return Err(Rule::HardLinkTarget),
                }
            }
            Kind::Special(_) => return Err(Rule::SpecialFile),
        };
        self.planned.insert(full, planned);
        self.entries += 1;
        // Only said so far, not seen; the reader stops where the data does, or at its own bound.
        self.bytes = self.bytes.saturating_add(entry.size);
        Ok(())
    }

    fn finish(self) -> Result<CheckedArchive, ArchiveError> {
        for (path, planned) in &self.planned {
            if let Planned::Symlink(target) = planned {
                self.check_symlink(path, target)
                    .map_err(|rule| ArchiveError::Entry { entry: path.clone(), rule })?;
            }
        }
        let top = self.top.ok_or(ArchiveError::Empty)?;
        let compose = format!("{top}/{COMPOSE_FILE}");
        match self.planned.get(&compose) {
            Some(Planned::File) => {}
            Some(_) => return Err(ArchiveError::Entry { entry: compose, rule: Rule::ComposeFileKind }),
            None => {
                let other = COMPOSE_FILES_INVALID
                    .iter()
                    .find(|name| self.planned.contains_key(&format!("{top}/{name}")));
                let hint = match other {
                    Some(other) => format!("rename {other} to {COMPOSE_FILE}"),
                    None => format!("add {COMPOSE_FILE} there"),
                };
                return Err(ArchiveError::NoComposeFile { hint });
            }
        }
        Ok(CheckedArchive { top, entries: self.entries, bytes: self.bytes })
    }

    /// That a link's target stays below the top-level directory, wherever other links lead.
    ///
    /// Each step is counted on paper, which is only right as long as no step goes through another link; so
    /// that is refused. The last step may be a link: that one is checked for itself.
    fn check_symlink(&self, path: &str, target: &str) -> Result<(), Rule> {
        if target.starts_with('/') {
            return Err(Rule::SymlinkOutside);
        }
        let mut at: Vec<&str> = path.split('/').collect();
        at.pop();
        let steps: Vec<&str> = target.split('/').filter(|step| !matches!(*step, "" | ".")).collect();
        for (index, step) in steps.iter().enumerate() {
            if *step != ".." {
                at.push(step);
                let last = index + 1 == steps.len() && !target.ends_with('/');
                if !last && matches!(self.planned.get(&at.join("/")), Some(Planned::Symlink(_))) {
                    return Err(Rule::LinkThroughLink);
                }
                continue;
            }
            at.pop();
            // Above the top-level directory there is nothing that is ours.
            if at.is_empty() {
                return Err(Rule::SymlinkOutside);
            }
        }
        Ok(())
    }
}

/// The parts of an entry's path, none of which can lead anywhere else.
pub(crate) fn checked_path(path: &[u8]) -> Result<Vec<&str>, Rule> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Rule::TooLong);
    }
    let path = std::str::from_utf8(path).map_err(|_| Rule::Name)?;
    if path.is_empty() || path.chars().any(char::is_control) {
        return Err(Rule::Name);
    }
    if path.starts_with('/') {
        return Err(Rule::AbsolutePath);
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return Err(Rule::ParentDirectory);
    }
    if parts.iter().any(|part| part.len() > COMPONENT_BYTES_MAX) {
        return Err(Rule::TooLong);
    }
    Ok(parts)
}

/// Writes a checked archive into a new directory and waits for the disk.
fn extract(archive: &mut (impl Read + Seek), wanted: Digest, staging: &Path) -> Result<(), ArchiveError> {
    let make_dir = |path: &Path| match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    };
    let mut dirs = vec![staging.to_owned()];
    make_dir(staging).map_err(ArchiveError::io("make the directory to unpack into"))?;
    let got = read(archive, |entry, data| {
        let broken =
            |rule| ArchiveError::Entry { entry: String::from_utf8_lossy(&entry.path).into_owned(), rule };
        let parts = checked_path(&entry.path).map_err(broken)?;
        let Some((name, above)) = parts.split_last() else { return Ok(()) };
        let mut dir = staging.to_owned();
        for part in above {
            dir.push(part);
            make_dir(&dir).map_err(ArchiveError::io("make a directory of the archive"))?;
            dirs.push(dir.clone());
        }
        let path = dir.join(name);
        match entry.kind {
            Kind::Directory => {
                make_dir(&path).map_err(ArchiveError::io("make a directory of the archive"))?;
                dirs.push(path);
                Ok(())
            }
            Kind::File => write_file(&path, entry.mode, entry.size, data),
            Kind::Symlink => {
                let target = std::str::from_utf8(&entry.link).map_err(|_| broken(Rule::Name))?;
                std::os::unix::fs::symlink(target, &path)
                    .map_err(ArchiveError::io("make a link of the archive"))
            }
            Kind::HardLink => {
                let target = checked_path(&entry.link).map_err(broken)?;
                let target = target.iter().fold(staging.to_owned(), |path, part| path.join(part));
                fs::hard_link(target, &path).map_err(ArchiveError::io("make a link of the archive"))
            }
            Kind::Special(_) => Err(broken(Rule::SpecialFile)),
        }
    })?;
    // What was unpacked is what was checked, even if somebody changed the file in between.
    if got != wanted {
        return Err(ArchiveError::Digest { wanted, got });
    }
    dirs.sort();
    dirs.dedup();
    for dir in dirs.iter().rev() {
        sync_dir(dir).map_err(ArchiveError::io("write the unpacked directory"))?;
    }
    Ok(())
}

/// Permissions are made anew (PK-094): all may read, and run what its owner could run.
pub(crate) fn write_file(path: &Path, mode: u32, size: u64, data: &mut dyn Read) -> Result<(), ArchiveError> {
    let mode = if mode & 0o100 != 0 { 0o755 } else { 0o644 };
    let failed = || ArchiveError::io("write a file of the archive");
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed())?;
    let mut left = size;
    let mut buffer = vec![0; 64 * 1024];
    while left > 0 {
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        // Reading and writing fail for different reasons, so they are not one copy.
        let read = data.read(&mut buffer[..length]).map_err(|error| match from_io(error) {
            InvalidTar::Io(error) => ArchiveError::Gzip(error),
            other => ArchiveError::Tar(other),
        })?;
        if read == 0 {
            return Err(ArchiveError::Tar(InvalidTar::CutOff));
        }
        io::Write::write_all(&mut file, &buffer[..read]).map_err(failed())?;
        left -= read as u64;
    }
    // Whatever the process's mask took away is given back.
    file.set_permissions(Permissions::from_mode(mode)).map_err(failed())?;
    file.sync_all().map_err(failed())
}
