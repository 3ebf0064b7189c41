//! The directories of a component's relative bind mounts: how they are made, and which of them go with the component.
//!
//! From when they are made they are the application's. An empty directory may be part of what it keeps, and whom a directory
//! belongs to as well: so nothing is looked for in them, and only those go that the agent made and that are as it made them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use super::written::Written;

/// What the directory of a mount is called before everybody may look into it: under its own name it counts as made.
const UNFINISHED: &str = ".margrave-new";

/// Containers that are not root may look into it, whatever mask the service has.
const MODE: u32 = 0o755;

/// All of one component.
pub(super) struct Mounts<'a> {
    root: PathBuf,
    /// What the agent made below the root.
    noted: PathBuf,
    written: &'a Written,
}

impl<'a> Mounts<'a> {
    pub(super) const NAME: &'static str = "mounts";

    /// Those in the directory of a project.
    pub(super) fn of(project: &Path, written: &'a Written) -> Self {
        Mounts { root: project.join(Mounts::NAME), noted: project.join("mounts.json"), written }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Makes one that is not there. What a container closed to the agent is its own, and there.
    pub(super) fn make(&self, mount: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.root)?;
        let below = mount.strip_prefix(&self.root).map_err(io::Error::other)?;
        let mut at = self.root.clone();
        for part in below {
            at.push(part);
            match fs::symlink_metadata(&at) {
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
                Err(error) => return Err(error),
            }
            self.note(&at)?;
            let new = at.with_file_name(UNFINISHED);
            match fs::create_dir(&new) {
                Ok(()) => {}
                // The power went in the middle of it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
                Err(error) => return Err(error),
            }
            fs::set_permissions(&new, fs::Permissions::from_mode(MODE))?;
            fs::rename(&new, &at)?;
        }
        Ok(())
    }

    fn note(&self, made: &Path) -> io::Result<()> {
        let mut all = self.made();
        if !all.insert(made.strip_prefix(&self.root).map_err(io::Error::other)?.to_owned()) {
            return Ok(());
        }
        self.written.durably(&self.noted, &serde_json::to_vec(&all).map_err(io::Error::other)?)
    }

    /// None where that is not known, as of an older agent: then all of it stays.
    fn made(&self) -> BTreeSet<PathBuf> {
        fs::read(&self.noted).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Removes what is as the agent made it, and leaves the rest to whoever has a use for it. Returns whether there is any.
    pub(super) fn discard(&self) -> io::Result<bool> {
        // Whatever is inside of another comes after it in their order.
        for made in self.made().iter().rev().filter(|made| self.is_ours_to_reach(made)) {
            let path = self.root.join(made);
            remove_empty(&path.with_file_name(UNFINISHED))?;
            if self.is_as_made(&path) {
                remove_empty(&path)?;
            }
        }
        match fs::remove_file(&self.noted) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.is_left()
    }

    /// Removes what all mounts are in when there are none, and returns whether it is still there.
    pub(super) fn is_left(&self) -> io::Result<bool> {
        remove_empty(&self.root)?;
        Ok(fs::symlink_metadata(&self.root).is_ok())
    }

    /// Whether it is below the root also when an application put a symbolic link into the place of a directory.
    fn is_ours_to_reach(&self, made: &Path) -> bool {
        let is_plain = made.components().all(|part| matches!(part, Component::Normal(_)));
        let is_directory = |path: PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
        is_plain && made.ancestors().skip(1).all(|above| is_directory(self.root.join(above)))
    }

    /// Whether nobody gave it to another user or closed it: whoever did has a use for it.
    fn is_as_made(&self, path: &Path) -> bool {
        let (Ok(root), Ok(found)) = (fs::symlink_metadata(&self.root), fs::symlink_metadata(path)) else {
            return false;
        };
        let owners = |metadata: &fs::Metadata| (metadata.uid(), metadata.gid());
        found.is_dir() && owners(&found) == owners(&root) && found.mode() & 0o7777 == MODE
    }
}

/// Removes a directory that has nothing in it. What cannot be removed is not the agent's.
fn remove_empty(path: &Path) -> io::Result<()> {
    use io::ErrorKind::{DirectoryNotEmpty, NotADirectory, NotFound, PermissionDenied, ResourceBusy};
    match fs::remove_dir(path) {
        Err(error)
            if matches!(
                error.kind(),
                DirectoryNotEmpty | NotADirectory | NotFound | PermissionDenied | ResourceBusy
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_the_power_went_in_the_middle_of_is_no_mount_yet() {
        let (temp, written) = (tempfile::tempdir().unwrap(), Written::default());
        let mounts = Mounts::of(temp.path(), &written);
        // As the service's mask has it.
        let unfinished = mounts.root().join(UNFINISHED);
        fs::create_dir_all(&unfinished).unwrap();
        set_mode(&unfinished, 0o700);
        let mount = mounts.root().join("data");
        mounts.make(&mount).unwrap();
        assert_eq!(fs::metadata(&mount).unwrap().permissions().mode() & 0o777, 0o755);
        assert!(!unfinished.exists());
        fs::write(mount.join("rows"), b"1").unwrap();
        mounts.make(&mount).unwrap();
        assert_eq!(fs::read(mount.join("rows")).unwrap(), b"1");
    }

    #[test]
    fn what_the_agent_made_and_nobody_used_goes() {
        let (temp, written) = (tempfile::tempdir().unwrap(), Written::default());
        let mounts = Mounts::of(temp.path(), &written);
        for mount in ["data/rows", "data/log", "cache"] {
            mounts.make(&mounts.root().join(mount)).unwrap();
        }
        // The power went while another one was made.
        fs::create_dir(mounts.root().join(UNFINISHED)).unwrap();
        assert!(!mounts.discard().unwrap());
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn promise_7_empty_directories_of_an_application_stay() {
        let (temp, written) = (tempfile::tempdir().unwrap(), Written::default());
        let mounts = Mounts::of(temp.path(), &written);
        for mount in ["unused", "db/data", "closed", "linked/inside"] {
            mounts.make(&mounts.root().join(mount)).unwrap();
        }
        let at = |path: &str| mounts.root().join(path);
        fs::create_dir(at("db/data/pg_notify")).unwrap();
        set_mode(&at("closed"), 0o700);
        let elsewhere = temp.path().join("elsewhere");
        fs::rename(at("linked"), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, at("linked")).unwrap();
        fs::create_dir_all(at("by-hand/deeper")).unwrap();
        for _ in 0..2 {
            assert!(mounts.discard().unwrap());
            for stays in ["db/data/pg_notify", "closed", "linked/inside", "by-hand/deeper"] {
                assert!(at(stays).exists(), "{stays}");
            }
        }
        assert!(!at("unused").exists());
    }
}
