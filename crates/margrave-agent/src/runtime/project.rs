//! A component's Compose project: its name, its directory, and what we remember about it there.
//!
//! One component is one Compose project (DM-192). The name is derived from the assignment and the
//! component alone, so that it is found again after any crash and shared with nobody. The directory holds
//! the unpacked archive, the override file, and the [`Record`] (`record.rs`). Nothing here talks to an engine.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::mounts::Mounts;
use super::record::{Fetched, Record};
use super::unnamed::Volumes;
use super::written::Written;

/// Component names up to this length stay readable in the project's name. Compose makes container and
/// network names from it, and a person has to tell them apart on a terminal.
const COMPONENT_SHOWN_MAX: usize = 40;

/// A Compose project name that no other component of any assignment has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ProjectName(String);

impl ProjectName {
    /// What all of them begin with.
    pub(super) const PREFIX: &str = "mg-";

    pub(super) fn of(assignment: AssignmentId, component: &ComponentName) -> Self {
        let (prefix, assignment) = (Self::PREFIX, assignment.uuid().simple());
        let name = component.as_str();
        if name.len() <= COMPONENT_SHOWN_MAX {
            return ProjectName(format!("{prefix}{assignment}-{name}"));
        }
        // Component names have no underscore, so a shortened name is never another component's full one.
        let hash = &Digest::of(name.as_bytes()).hex()[..16];
        ProjectName(format!("{prefix}{assignment}-{}_{hash}", &name[..COMPONENT_SHOWN_MAX - 17]))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How `fetched.json` is written; an older agent knew one at a time.
#[derive(Deserialize)]
#[serde(untagged)]
enum Claims {
    Several(Vec<Fetched>),
    One(Fetched),
}

const FETCHED: &str = "fetched.json";
/// What is newest, what it overtook, and what runs: more nobody goes on with.
const FETCHED_MAX: usize = 4;

/// What a component that was set aside leaves.
const ASIDE: &str = "aside.json";

/// What an archive is called once nobody needs it: it may take long to remove, or be impossible.
const GONE: &str = "gone-";

/// A file of ours is small; a larger one is damage.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The directory of one project.
#[derive(Debug, Clone)]
pub(super) struct ProjectDirectory {
    path: PathBuf,
    written: Written,
}

impl ProjectDirectory {
    pub(super) fn new(projects: &Path, name: &ProjectName, written: &Written) -> Self {
        ProjectDirectory { path: projects.join(name.as_str()), written: written.clone() }
    }

    /// All projects that have a directory, in the order of their names.
    pub(super) fn all(projects: &Path, written: &Written) -> io::Result<Vec<ProjectDirectory>> {
        let mut found = Vec::new();
        let entries = match fs::read_dir(projects) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(ProjectName::PREFIX)) {
                found.push(ProjectDirectory { path: entry.path(), written: written.clone() });
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    pub(super) fn create(&self) -> io::Result<()> {
        // Values may be secrets, and they end up in the override file and in unpacked archives.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path)
    }

    /// Where an archive is unpacked. A name of its own per content, so that a half-unpacked one is never
    /// mistaken for another, and Compose sees the same paths as long as the archive is the same.
    pub(super) fn unpacked(&self, archive: Digest) -> PathBuf {
        self.path.join(format!("archive-{}", archive.short()))
    }

    pub(super) fn override_file(&self) -> PathBuf {
        self.path.join("margrave.override.yaml")
    }

    /// Where relative bind mounts live: outside of any archive, so that an update keeps what is in them.
    pub(super) fn mounts(&self) -> PathBuf {
        self.path.join(Mounts::NAME)
    }

    /// Makes the directory of a relative bind mount.
    pub(super) fn make_mount(&self, mount: &Path) -> io::Result<()> {
        Mounts::of(&self.path, &self.written).make(mount)
    }

    /// `None` also when the file cannot be understood: what runs is then started again from the order,
    /// which changes nothing that is as ordered.
    pub(super) fn record(&self) -> Option<Record> {
        self.read("project.json")
    }

    /// Whether something was begun with here; also where what was noted is damaged.
    pub(super) fn has_record(&self) -> bool {
        self.path.join("project.json").exists()
    }

    /// What was fetched and may not have begun yet; an update is fetched while what it replaces is mended.
    pub(super) fn fetched(&self) -> Vec<Fetched> {
        match self.read(FETCHED) {
            Some(Claims::Several(fetched)) => fetched,
            Some(Claims::One(fetched)) => vec![fetched],
            None => vec![],
        }
    }

    pub(super) fn fetched_as(&self, fingerprint: Digest) -> Option<Fetched> {
        self.fetched().into_iter().find(|fetched| fetched.fingerprint == fingerprint)
    }

    /// What was healthy here before the component was set aside.
    pub(super) fn aside(&self) -> Vec<Fetched> {
        self.read(ASIDE).unwrap_or_default()
    }

    /// The archive of an order that was healthy here, now, before, or before the component was set aside.
    pub(super) fn archive_of(&self, fingerprint: Digest) -> Option<Digest> {
        let aside = || self.aside().into_iter().find(|fetched| fetched.fingerprint == fingerprint);
        match self.record() {
            Some(record) => record.archive_of(fingerprint),
            None => aside().map(|fetched| fetched.archive),
        }
    }

    /// The volumes without a name that an order had when it was healthy here and was taken away, in part or as a whole.
    pub(super) fn volumes_of(&self, fingerprint: Digest) -> Volumes {
        let of = |all: Vec<Fetched>| all.into_iter().find(|fetched| fetched.fingerprint == fingerprint);
        match self.record() {
            Some(record) if record.fingerprint == fingerprint => Some(record.volumes),
            Some(record) => of(record.before).map(|fetched| fetched.volumes),
            None => of(self.aside()).map(|fetched| fetched.volumes),
        }
        .unwrap_or_default()
    }

    pub(super) fn is_aside(&self) -> bool {
        self.path.join(ASIDE).exists()
    }

    /// Whether it was set aside and nothing was begun with since. What was leaves an override file, also where its record is lost.
    pub(super) fn is_only_aside(&self) -> bool {
        self.is_aside() && !self.has_record() && !self.override_file().exists()
    }

    pub(super) fn write_record(&self, record: &Record) -> io::Result<()> {
        self.write("project.json", record)
    }

    /// Notes what was fetched for an order, in the place of what was noted of it before.
    pub(super) fn note_fetched(&self, fetched: Fetched) -> io::Result<()> {
        let others = self.fetched().into_iter().filter(|other| other.fingerprint != fetched.fingerprint);
        let mut all: Vec<Fetched> = std::iter::once(fetched.clone()).chain(others).collect();
        all.truncate(FETCHED_MAX);
        self.write(FETCHED, &all)
    }

    fn read<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Option<T> {
        let path = self.path.join(name);
        let readable = match fs::metadata(&path) {
            Ok(metadata) => metadata.len() <= FILE_BYTES_MAX,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a project's record cannot be read");
                return None;
            }
        };
        let parsed =
            readable.then(|| fs::read(&path).ok()).flatten().and_then(|b| serde_json::from_slice(&b).ok());
        if parsed.is_none() {
            tracing::warn!(path = %path.display(), "a project's record is damaged and is not used");
        }
        parsed
    }

    fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        self.written.durably(&self.path.join(name), &serde_json::to_vec(value).map_err(io::Error::other)?)
    }

    fn archives(&self) -> io::Result<Vec<PathBuf>> {
        self.entries("archive-")
    }

    fn entries(&self, prefix: &str) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    /// What was left where unpacking was cut off, with the place that it was meant for: `archive.rs` of `margrave-oci` calls it so.
    pub(super) fn half_unpacked(&self) -> io::Result<Vec<(PathBuf, PathBuf)>> {
        let place = |left: PathBuf| {
            let name = left.file_name()?.to_str()?.strip_prefix('.')?;
            let name = name.strip_suffix(".unpacking").or_else(|| name.strip_suffix(".replaced"))?;
            Some((self.path.join(name), left))
        };
        Ok(self.entries(".archive-")?.into_iter().filter_map(place).collect())
    }

    pub(super) fn has_archives(&self) -> io::Result<bool> {
        Ok(!self.archives()?.is_empty())
    }

    /// Unpacked archives that are none of these.
    pub(super) fn archives_but(&self, kept: &BTreeSet<Digest>) -> io::Result<Vec<PathBuf>> {
        let kept: BTreeSet<PathBuf> = kept.iter().map(|archive| self.unpacked(*archive)).collect();
        Ok(self.archives()?.into_iter().filter(|archive| !kept.contains(archive)).collect())
    }

    /// Gives up unpacked archives except these, and those that were fetched and may have to be read.
    pub(super) fn discard_archives(&self, kept: &BTreeSet<Digest>) -> io::Result<Vec<PathBuf>> {
        let fetched = self.fetched().into_iter().map(|fetched| fetched.archive);
        self.give_up(self.archives_but(&fetched.chain(kept.iter().copied()).collect())?)
    }

    /// They are no archives any more; what is left is to remove what this returns, which may take minutes.
    pub(super) fn give_up(&self, archives: Vec<PathBuf>) -> io::Result<Vec<PathBuf>> {
        let mut gone = Vec::new();
        for archive in archives {
            // Under its own name it would count as whole while part of it is removed.
            let free = (0_u32..).map(|number| self.path.join(format!("{GONE}{number}")));
            let place = free.into_iter().find(|place| fs::symlink_metadata(place).is_err());
            let place = place.ok_or_else(|| io::Error::other("too much that cannot be removed"))?;
            fs::rename(archive, &place)?;
            gone.push(place);
        }
        if !gone.is_empty() {
            fs::File::open(&self.path)?.sync_all()?;
        }
        Ok(gone)
    }

    pub(super) fn has_gone(&self) -> io::Result<bool> {
        Ok(self.path.exists() && !self.entries(GONE)?.is_empty())
    }

    /// Removes what was given up, beside whatever else there is to do: an application may have written a great many files there.
    pub(super) async fn clear(&self, news: Vec<PathBuf>) -> io::Result<bool> {
        let directory = self.clone();
        tokio::task::spawn_blocking(move || directory.remove_gone(&news)).await.map_err(io::Error::other)?
    }

    /// Returns whether any of it is left. A container may have closed what it had mounted to an agent without privileges:
    /// that is told once, and nothing fails for it.
    pub(super) fn remove_gone(&self, news: &[PathBuf]) -> io::Result<bool> {
        let mut left = false;
        for place in self.entries(GONE)? {
            let Err(error) = fs::remove_dir_all(&place) else { continue };
            if error.kind() == io::ErrorKind::NotFound {
                continue;
            }
            left = true;
            if news.contains(&place) {
                tracing::warn!(path = %place.display(), %error, "files of an earlier version could not be removed; it is tried again, and they can be removed by hand");
            } else {
                tracing::debug!(path = %place.display(), %error, "files of an earlier version are still not removed");
            }
        }
        Ok(left)
    }

    /// Forgets what was fetched, but for these. What was unpacked of it stays until archives are discarded.
    pub(super) fn forget_fetched(&self, is_kept: impl Fn(&Fetched) -> bool) -> io::Result<()> {
        let kept: Vec<Fetched> = self.fetched().into_iter().filter(is_kept).collect();
        if kept.is_empty() {
            match fs::remove_file(self.path.join(FETCHED)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            return Ok(());
        }
        self.write(FETCHED, &kept)
    }

    /// Forgets the project but for what was healthy, what was fetched or unpacked for these, and its relative bind mounts: the
    /// component may come back to them. Returns what is left to remove.
    pub(super) fn set_aside(&self, is_kept: impl Fn(&Fetched) -> bool) -> io::Result<Option<PathBuf>> {
        self.note_aside(Volumes::new(), &is_kept)?;
        // Containers may have written among the files, too.
        let archives = self.aside().iter().filter(|fetched| is_kept(fetched)).map(|f| f.archive).collect();
        self.forget(is_kept, &archives)?;
        self.remove_if_forgotten()
    }

    /// Notes what was healthy for when the component comes back, and which volumes without a name it had. That is known only while
    /// there are containers.
    pub(super) fn note_aside(
        &self,
        volumes: Volumes,
        is_wanted: impl Fn(&Fetched) -> bool,
    ) -> io::Result<()> {
        let Some(mut record) = self.record() else { return Ok(()) };
        let earlier = self.aside();
        let noted_of =
            |fingerprint: Digest| earlier.iter().find(|fetched| fetched.fingerprint == fingerprint);
        record.volumes.extend(noted_of(record.fingerprint).map(|f| f.volumes.clone()).unwrap_or_default());
        let mut noted = record.kept_with(volumes, is_wanted);
        // Of what is tried again the containers may be gone.
        for fetched in &mut noted {
            if let Some(earlier) = noted_of(fetched.fingerprint) {
                fetched.add_volumes(&earlier.volumes);
            }
        }
        self.write(ASIDE, &noted)
    }

    /// Forgets the project. What an application wrote into its relative bind mounts stays (promise 7), and
    /// is returned when there is any.
    pub(super) fn discard(&self) -> io::Result<Option<PathBuf>> {
        match fs::remove_file(self.path.join(ASIDE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.forget(|_| false, &BTreeSet::new())?;
        let mounts = Mounts::of(&self.path, &self.written);
        if mounts.discard()? {
            return Ok(Some(mounts.root().to_owned()));
        }
        self.remove_if_forgotten()
    }

    fn forget(&self, is_kept: impl Fn(&Fetched) -> bool, archives: &BTreeSet<Digest>) -> io::Result<()> {
        if !self.path.exists() {
            return Ok(());
        }
        // The record goes last: until then a crash leaves a project that is seen and removed again.
        self.forget_fetched(is_kept)?;
        self.discard_archives(archives)?;
        for name in ["margrave.override.yaml", "lock", "project.json"] {
            match fs::remove_file(self.path.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the directory when nothing in it may be needed, and returns what is left to remove.
    fn remove_if_forgotten(&self) -> io::Result<Option<PathBuf>> {
        if !self.path.exists() {
            return Ok(None);
        }
        if self.has_gone()? {
            return Ok(Some(self.path.clone()));
        }
        let is_needed = [ASIDE, FETCHED, Mounts::NAME].iter().any(|name| self.path.join(name).exists());
        if !is_needed {
            fs::remove_dir_all(&self.path)?;
        }
        Ok(None)
    }

    /// Whether there is nothing but what an application keeps, or closed: at that only a person can do something. Mounts that
    /// somebody emptied are removed.
    pub(super) fn is_left_to_others(&self) -> io::Result<bool> {
        let mut any = false;
        for entry in fs::read_dir(&self.path)? {
            any = true;
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            if name != Mounts::NAME && !name.starts_with(GONE) {
                return Ok(false);
            }
        }
        Ok(any && (Mounts::of(&self.path, &self.written).is_left()? || self.has_gone()?))
    }

    /// Waits until nobody else works on this project.
    ///
    /// The lock belongs to the open file, and every Compose process we start inherits it as its standard
    /// input. So when this agent is killed while Compose goes on, the next agent waits for that process
    /// instead of working against it.
    pub(super) async fn lock(&self, patience: Duration) -> io::Result<Option<ProjectLock>> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path.join("lock"))?;
        let deadline = Instant::now() + patience;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(ProjectLock { file, _turn: None })),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Proof that nobody else works on the project; held by our process and by the Compose processes it starts.
#[derive(Debug)]
pub(super) struct ProjectLock {
    file: fs::File,
    /// Given up after the file: whoever is next finds it free.
    _turn: Option<OwnedMutexGuard<()>>,
}

impl ProjectLock {
    /// The same, with the turn that this process had to wait for.
    pub(super) fn in_turn(self, turn: OwnedMutexGuard<()>) -> ProjectLock {
        ProjectLock { _turn: Some(turn), ..self }
    }

    /// A standard input that is empty for whoever reads it, and keeps the lock for as long as they live.
    pub(super) fn as_input(&self) -> io::Result<std::process::Stdio> {
        Ok(self.file.try_clone()?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::record::Stage;
    use crate::runtime::record::tests::record;

    fn assignment(n: u8) -> AssignmentId {
        AssignmentId::from_uuid(uuid::Uuid::from_bytes([n; 16]))
    }

    fn name(assignment_number: u8, component: &str) -> String {
        ProjectName::of(assignment(assignment_number), &ComponentName::parse(component).unwrap()).to_string()
    }

    #[test]
    fn dm_192_every_component_of_every_assignment_has_a_project_of_its_own() {
        let long = "a".repeat(200);
        let longer_by_other_end = format!("{}b", &long[..199]);
        let shortened = name(1, &long);
        let names = [
            name(1, "web"),
            name(2, "web"),
            name(1, "db"),
            name(1, "web-db"),
            shortened.clone(),
            name(1, &longer_by_other_end),
            name(1, &"a".repeat(40)),
            name(1, &"a".repeat(41)),
            // The closest a component can come to another's shortened name.
            name(1, &shortened[36..].replace('_', "-")),
        ];
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:#?}");
        for name in &names {
            let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
            assert!(name.len() <= 76 && name.bytes().all(allowed), "{name}");
        }
        assert_eq!(names[0], "mg-01010101010101010101010101010101-web");
    }

    fn directory() -> (tempfile::TempDir, ProjectDirectory) {
        let temp = tempfile::tempdir().unwrap();
        let web = ComponentName::parse("web").unwrap();
        let directory =
            ProjectDirectory::new(temp.path(), &ProjectName::of(assignment(1), &web), &Written::default());
        directory.create().unwrap();
        (temp, directory)
    }

    /// What `discard` leaves once what was given up is removed, too.
    fn cleared(
        directory: &ProjectDirectory,
        discard: impl Fn() -> io::Result<Option<PathBuf>>,
    ) -> Option<PathBuf> {
        discard().unwrap();
        directory.remove_gone(&[]).unwrap();
        discard().unwrap()
    }

    #[test]
    fn a_record_is_read_back_and_a_damaged_one_is_none() {
        let (temp, directory) = directory();
        assert_eq!(directory.record(), None);
        directory.write_record(&record()).unwrap();
        assert_eq!(directory.record(), Some(record()));
        assert_eq!(
            ProjectDirectory::all(temp.path(), &Written::default()).unwrap()[0].name(),
            directory.name()
        );
        fs::write(directory.path.join("project.json"), b"{\"assign").unwrap();
        assert_eq!(directory.record(), None);
    }

    #[test]
    fn forgetting_a_project_keeps_what_the_application_wrote() {
        let (_temp, directory) = directory();
        directory.write_record(&record()).unwrap();
        fs::create_dir_all(directory.unpacked(record().archive)).unwrap();
        for mount in ["unused/deeper", "data"] {
            directory.make_mount(&directory.mounts().join(mount)).unwrap();
        }
        fs::create_dir_all(directory.mounts().join("data/pg_notify")).unwrap();
        fs::write(directory.mounts().join("data/rows"), b"1").unwrap();
        assert_eq!(cleared(&directory, || directory.discard()), Some(directory.mounts()));
        assert_eq!(fs::read(directory.mounts().join("data/rows")).unwrap(), b"1");
        assert!(directory.mounts().join("data/pg_notify").exists());
        assert!(!directory.mounts().join("unused").exists() && directory.record().is_none());
        assert!(directory.is_left_to_others().unwrap());

        // By hand.
        fs::remove_dir_all(directory.mounts().join("data")).unwrap();
        assert!(!directory.is_left_to_others().unwrap());
        assert_eq!(directory.discard().unwrap(), None);
        assert!(!directory.path.exists());
        assert_eq!(directory.discard().unwrap(), None);
    }

    #[test]
    fn promise_7_what_is_set_aside_keeps_its_mounts_as_they_are() {
        let (_temp, directory) = directory();
        let data = directory.mounts().join("data");
        for is_recorded in [true, false] {
            directory.make_mount(&data).unwrap();
            set_mode(&data, 0o700);
            fs::create_dir_all(data.join("pg_notify")).unwrap();
            directory.make_mount(&directory.mounts().join("unused")).unwrap();
            if is_recorded {
                directory.write_record(&Record { stage: Stage::Settled, ..record() }).unwrap();
            }
            assert_eq!(directory.set_aside(|_| true).unwrap(), None);
            assert!(data.join("pg_notify").exists() && directory.mounts().join("unused").exists());
            directory.discard().unwrap();
            assert!(data.join("pg_notify").exists() && !directory.mounts().join("unused").exists());
        }
    }

    /// As the service runs: root, and without any privilege of root.
    fn without_privileges(test: impl FnOnce() + Send) {
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set_capabilities(None, none).unwrap();
                test();
            });
        });
    }

    fn set_mode(path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_a_container_closed_is_in_nobodys_way() {
        let (_temp, directory) = directory();
        directory.write_record(&record()).unwrap();
        let inside = directory.unpacked(Digest::of(b"old")).join("web/data");
        fs::create_dir_all(&inside).unwrap();
        fs::write(inside.join("rows"), b"1").unwrap();
        fs::create_dir_all(directory.unpacked(record().archive)).unwrap();
        set_mode(&inside, 0o500);
        let gone = directory.path.join("gone-0");
        without_privileges(|| {
            // An update, and what is told of it later.
            let news = directory.discard_archives(&[record().archive].into()).unwrap();
            assert_eq!(directory.archives().unwrap(), [directory.unpacked(record().archive)]);
            assert!(directory.remove_gone(&news).unwrap(), "it is closed");
            assert!(gone.join("web/data/rows").exists());
            // A removal, and as at every sweep.
            for _ in 0..2 {
                assert_eq!(directory.discard().unwrap(), Some(directory.path.clone()));
                assert!(!directory.has_record() && !directory.has_archives().unwrap());
                assert!(directory.remove_gone(&[]).unwrap());
            }
            set_mode(&gone.join("web/data"), 0o700);
            assert!(!directory.remove_gone(&[]).unwrap());
            assert_eq!(directory.discard().unwrap(), None);
        });
        assert!(!directory.path.exists());
    }

    #[test]
    fn a_mount_is_open_to_all_and_one_that_a_container_closed_is_left_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let (_temp, directory) = directory();
        let mount = directory.mounts().join("data/rows");
        directory.make_mount(&mount).unwrap();
        assert_eq!(fs::metadata(&mount).unwrap().permissions().mode() & 0o777, 0o755);
        set_mode(&directory.mounts().join("data"), 0o500);
        without_privileges(|| {
            directory.make_mount(&mount).unwrap();
            directory.make_mount(&directory.mounts().join("data/more")).unwrap();
        });
        set_mode(&directory.mounts().join("data"), 0o755);
    }

    #[test]
    fn what_is_set_aside_is_known_until_it_is_removed_for_good() {
        let (_temp, directory) = directory();
        directory.set_aside(|_| false).unwrap();
        assert!(directory.aside().is_empty(), "what was never started leaves nothing");
        directory.create().unwrap();
        directory.write_record(&Record { stage: Stage::Settled, ..record() }).unwrap();
        fs::create_dir_all(directory.unpacked(record().archive)).unwrap();
        for _ in 0..2 {
            assert_eq!(cleared(&directory, || directory.set_aside(|_| false)), None);
            assert_eq!((directory.record(), directory.aside()), (None, vec![fetched()]));
            assert!(!directory.unpacked(record().archive).exists());
        }
        assert_eq!(directory.discard().unwrap(), None);
        assert!(!directory.path.exists());
    }

    #[test]
    fn promise_7_volumes_without_a_name_are_noted_also_when_what_is_set_aside_was_not_healthy() {
        let (_temp, directory) = directory();
        let good = Record { stage: Stage::Settled, ..record() };
        // An update of it, or it is being mended.
        for fingerprint in [Digest::of(b"newer"), good.fingerprint] {
            directory.create().unwrap();
            let now = Record { fingerprint, before: good.clone().kept(|_| false), ..record() };
            directory.write_record(&now).unwrap();
            let rows = std::collections::BTreeMap::from([("/rows".to_owned(), "a".to_owned())]);
            let volumes = Volumes::from([("db".to_owned(), rows)]);
            directory.note_aside(volumes.clone(), |_| false).unwrap();
            directory.set_aside(|_| false).unwrap();
            assert_eq!(directory.volumes_of(good.fingerprint), volumes);
            directory.discard().unwrap();
        }
    }

    #[test]
    fn what_is_fetched_for_one_order_takes_no_place_of_another() {
        let (_temp, directory) = directory();
        let of = |name: &str| Fetched { fingerprint: Digest::of(name.as_bytes()), ..fetched() };
        // As an agent wrote it that knew one at a time.
        directory.write(FETCHED, &of("old")).unwrap();
        assert_eq!(directory.fetched(), [of("old")]);
        directory.note_fetched(of("new")).unwrap();
        let again = Fetched { images: BTreeSet::new(), ..of("old") };
        directory.note_fetched(again.clone()).unwrap();
        assert_eq!(directory.fetched(), [again, of("new")]);
        assert_eq!(directory.fetched_as(of("new").fingerprint), Some(of("new")));
        for number in 0..10 {
            directory.note_fetched(of(&number.to_string())).unwrap();
        }
        assert_eq!(directory.fetched().len(), FETCHED_MAX);

        // Set aside while what is newer is fetched: that is not forgotten, and the directory stays for it.
        let is_kept = |fetched: &Fetched| *fetched == of("9");
        assert_eq!(directory.set_aside(is_kept).unwrap(), None);
        assert_eq!(directory.fetched(), [of("9")]);
        directory.forget_fetched(|_| false).unwrap();
        assert_eq!(directory.fetched(), []);
        assert_eq!(directory.discard().unwrap(), None);
        assert!(!directory.path.exists());
    }

    fn fetched() -> Fetched {
        Fetched {
            fingerprint: record().fingerprint,
            archive: record().archive,
            images: ["web:1".to_owned()].into(),
            image_ids: std::collections::BTreeMap::from([("web".into(), "abcd".into())]),
            volumes: Default::default(),
        }
    }

    #[tokio::test]
    async fn a_program_left_behind_by_a_killed_agent_still_holds_the_project() {
        let (_temp, directory) = directory();
        let lock = directory.lock(Duration::ZERO).await.unwrap().unwrap();
        let mut left_behind =
            std::process::Command::new("sleep").arg("600").stdin(lock.as_input().unwrap()).spawn().unwrap();
        drop(lock);
        assert!(directory.lock(Duration::from_millis(1)).await.unwrap().is_none());
        left_behind.kill().unwrap();
        left_behind.wait().unwrap();
        assert!(directory.lock(Duration::ZERO).await.unwrap().is_some());
    }
}
