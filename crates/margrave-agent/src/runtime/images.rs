//! Images that the agent had pulled, and when they may go.
//!
//! Only what the agent itself had pulled is ever removed: an image that was there before was put there by somebody, for
//! a device that perhaps has no network. What is needed is the runtime's to say; who else uses an image is asked of the
//! engine.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::engine::{Engine, EngineError};
use super::written::Written;

/// What becomes of images that no deployment needs any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImagePolicy {
    #[default]
    Keep,
    Remove,
}

/// How often to look for images that could not be removed before, because others used them.
pub(super) const SWEEP_EVERY: Duration = Duration::from_secs(10 * 60);

/// The names of images that were pulled for components, on disk.
pub(super) struct Images {
    file: PathBuf,
    pulled: Mutex<BTreeSet<String>>,
    written: Written,
}

impl Images {
    /// A list that cannot be read is an empty one: then images are kept.
    pub(super) fn open(projects: &Path, written: &Written) -> Images {
        let file = projects.join("images.json");
        let pulled = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, "the list of pulled images is damaged; they are kept");
                BTreeSet::new()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => {
                tracing::warn!(%error, "the list of pulled images cannot be read; they are kept");
                BTreeSet::new()
            }
        };
        Images { file, pulled: Mutex::new(pulled), written: written.clone() }
    }

    fn pulled(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.pulled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that an image is there because of us; to be called before it is.
    pub(super) fn note(&self, image: &str) -> io::Result<()> {
        let mut pulled = self.pulled();
        if pulled.insert(image.to_owned())
            && let Err(error) = self.write(&pulled)
        {
            // The next one who asks must not take it for written.
            pulled.remove(image);
            return Err(error);
        }
        Ok(())
    }

    pub(super) fn forget(&self, image: &str) -> io::Result<()> {
        let mut pulled = self.pulled();
        if pulled.remove(image) {
            self.write(&pulled)?;
        }
        Ok(())
    }

    fn write(&self, pulled: &BTreeSet<String>) -> io::Result<()> {
        self.written.durably(&self.file, &serde_json::to_vec(pulled).map_err(io::Error::other)?)
    }

    /// Removes what was pulled, is not needed, and no container is made of. What cannot be removed now is tried again
    /// the next time.
    pub(super) async fn sweep(&self, engine: &Engine, needed: &BTreeSet<String>) -> Result<(), EngineError> {
        let spare: Vec<String> = self.pulled().difference(needed).cloned().collect();
        if spare.is_empty() {
            return Ok(());
        }
        let in_use = engine.images_in_use().await?;
        for image in spare {
            match engine.image_id(&image).await? {
                Some(id) if in_use.contains(&id) => {
                    tracing::debug!(%image, "others use this image; it is kept");
                    continue;
                }
                Some(_) => {
                    if let Err(error) = engine.remove_image(&image).await {
                        tracing::warn!(%image, %error, "an image that is not needed could not be removed");
                        continue;
                    }
                    tracing::info!(%image, "removed an image that is not needed any more");
                }
                None => {}
            }
            if let Err(error) = self.forget(&image) {
                tracing::warn!(%image, %error, "that an image is gone could not be noted");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_noted_is_noted_the_next_time() {
        let temp = tempfile::tempdir().unwrap();
        let (projects, away) = (temp.path().join("projects"), temp.path().join("away"));
        std::fs::create_dir(&projects).unwrap();
        let images = Images::open(&projects, &Written::default());
        std::fs::rename(&projects, &away).unwrap();
        assert!(images.note("web:1").is_err());
        std::fs::rename(&away, &projects).unwrap();
        images.note("web:1").unwrap();
        assert_eq!(*Images::open(&projects, &Written::default()).pulled(), ["web:1".to_owned()].into());
    }

    #[test]
    fn what_was_pulled_is_known_after_a_restart_and_a_damaged_list_is_empty() {
        let temp = tempfile::tempdir().unwrap();
        let images = Images::open(temp.path(), &Written::default());
        images.note("web:1").unwrap();
        images.note("web:2").unwrap();
        images.forget("web:1").unwrap();
        assert_eq!(*Images::open(temp.path(), &Written::default()).pulled(), ["web:2".to_owned()].into());
        std::fs::write(temp.path().join("images.json"), b"[").unwrap();
        assert!(Images::open(temp.path(), &Written::default()).pulled().is_empty());
    }
}
