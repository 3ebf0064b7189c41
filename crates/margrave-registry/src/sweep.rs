//! Removing what nobody refers to any more.
//!
//! First everything is looked at without stopping anybody, then each candidate is looked at again while
//! nobody can add. The second look needs only the file's age: whoever relies on a blob (a push, a mount, a
//! question, a manifest) renews it first, under the same gate.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_oci::reference::RepositoryName;

use crate::contents::Contents;
use crate::disk::{digests, found, names};
use crate::error::RegistryError;
use crate::manifest;

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Blobs that left a repository; another one may still have them.
    pub unlinked: usize,
    /// Contents that were removed from the disk.
    pub removed: usize,
    pub bytes: u64,
    /// Uploads that nobody continued.
    pub uploads: usize,
    /// Repositories that were left alone because one of their manifests cannot be read.
    pub skipped: Vec<RepositoryName>,
}

impl Contents {
    pub(crate) fn sweep(&self, grace: Duration) -> Result<Swept, RegistryError> {
        let mut swept = Swept::default();
        for name in self.repositories()? {
            match self.used_blobs(&name) {
                Ok(used) => self.sweep_repository(&name, &used, grace, &mut swept)?,
                Err(error) => {
                    // What a damaged manifest needs is not known; so everything in its repository stays.
                    tracing::warn!(repository = %name, %error, "a repository was not swept");
                    swept.skipped.push(name);
                }
            }
        }
        self.sweep_contents(grace, &mut swept)?;
        Ok(swept)
    }

    fn used_blobs(&self, name: &RepositoryName) -> Result<HashSet<Digest>, RegistryError> {
        let mut used = HashSet::new();
        for digest in self.manifests(name)? {
            // Deleted since we listed it, or its content is missing: the second is damage.
            let Some(stored) = self.stored_manifest(name, &digest)? else {
                let link = self.disk.manifest_link(name, &digest);
                if link.try_exists().map_err(RegistryError::io("read the manifest"))? {
                    return Err(RegistryError::Damaged(digest));
                }
                continue;
            };
            let relations = manifest::read(&stored.media_type, &stored.bytes)?;
            used.extend(relations.blobs.iter().map(|blob| blob.digest));
        }
        Ok(used)
    }

    fn sweep_repository(
        &self,
        name: &RepositoryName,
        used: &HashSet<Digest>,
        grace: Duration,
        swept: &mut Swept,
    ) -> Result<(), RegistryError> {
        let failed = || RegistryError::io("sweep a repository");
        for digest in digests(&self.disk.blob_links(name)).map_err(failed())? {
            let link = self.disk.blob_link(name, &digest);
            if used.contains(&digest) || !old(&link, grace).map_err(failed())? {
                continue;
            }
            let _removing = self.removing();
            if old(&link, grace).map_err(failed())? && self.disk.remove(&link).map_err(failed())? {
                swept.unlinked += 1;
            }
        }
        self.remove_empty_dirs(name).map_err(failed())
    }

    /// So that a repository of which nothing is left is not listed for ever.
    fn remove_empty_dirs(&self, name: &RepositoryName) -> io::Result<()> {
        let _removing = self.removing();
        let dir = self.disk.repository(name);
        for subject in names(&dir.join("_referrers"))? {
            self.disk.remove_dir_if_empty(&dir.join("_referrers").join(subject))?;
        }
        for part in ["_referrers", "_tags", "_manifests", "_blobs"] {
            self.disk.remove_dir_if_empty(&dir.join(part))?;
        }
        let top = self.disk.repositories();
        for dir in dir.ancestors().take_while(|dir| *dir != top) {
            if !self.disk.remove_dir_if_empty(dir)? {
                break;
            }
        }
        Ok(())
    }

    fn sweep_contents(&self, grace: Duration, swept: &mut Swept) -> Result<(), RegistryError> {
        let failed = || RegistryError::io("sweep the blobs");
        let mut linked = HashSet::new();
        for name in self.repositories()? {
            linked.extend(digests(&self.disk.blob_links(&name)).map_err(failed())?);
            linked.extend(self.manifests(&name)?);
        }
        for shard in names(&self.disk.blobs()).map_err(failed())? {
            for digest in digests(&self.disk.blobs().join(shard)).map_err(failed())? {
                let path = self.disk.blob(&digest);
                if linked.contains(&digest) || !old(&path, grace).map_err(failed())? {
                    continue;
                }
                let _removing = self.removing();
                let Some(meta) = found(fs::metadata(&path)).map_err(failed())? else { continue };
                if old(&path, grace).map_err(failed())? && self.disk.remove(&path).map_err(failed())? {
                    swept.removed += 1;
                    swept.bytes += meta.len();
                }
            }
        }
        Ok(())
    }
}

/// Whether a file is there and was not renewed within the grace. A file of the future is not old.
fn old(path: &Path, grace: Duration) -> io::Result<bool> {
    let Some(meta) = found(fs::metadata(path))? else { return Ok(false) };
    Ok(meta.modified()?.elapsed().is_ok_and(|age| age >= grace))
}
