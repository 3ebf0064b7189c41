//! A small disk of its own for a device, to be filled.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::skip;

pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Large enough for what an agent keeps.
    pub(crate) fn mount(path: &Path) -> Option<SmallDisk> {
        SmallDisk::mount_of(path, 2)
    }

    pub(crate) fn mount_of(path: &Path, megabytes: u32) -> Option<SmallDisk> {
        std::fs::create_dir_all(path).expect("the stage's directory is writable");
        let size = format!("size={megabytes}m,mode=0700");
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path).output();
        let mount = mount.expect("mount is everywhere");
        if !mount.status.success() {
            let said = String::from_utf8_lossy(&mount.stderr);
            skip(&format!("a small disk cannot be mounted here: {}", said.trim()));
            return None;
        }
        Some(SmallDisk(path.to_owned()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Leaves no byte free.
    pub(crate) fn fill(&self) {
        let file = OpenOptions::new().create(true).append(true).open(self.0.join("filler"));
        let mut file = file.expect("there is a place for a name yet");
        for size in [1 << 16, 1] {
            let piece = vec![0; size];
            while file.write_all(&piece).is_ok() {}
        }
    }

    /// Removes a file of the device's.
    pub(crate) fn take(&self, name: &str) {
        std::fs::remove_file(self.0.join(name)).expect("the device has it");
    }

    pub(crate) fn free(&self) {
        self.take("filler");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}
