//! Images that the agent had pulled, and when they may go.
//!
//! Only what the agent itself had pulled is ever removed: an image that was there before was put there by somebody, for
//! a device that perhaps has no network. A name may be given to another image by anybody at any time, so it is noted which one was
//! pulled under it, and another one under the same name is nobody's to remove. What is needed is the runtime's to say; who else uses an image is asked of the
//! engine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::engine::{Engine, EngineError};
use super::written::Written;

/// How often to look for images that could not be removed before, because others used them.
pub(super) const SWEEP_EVERY: Duration = Duration::from_secs(10 * 60);

/// How far the sweep came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Swept {
    All,
    TooSlow,
}

/// By name, and which one the name got when it was pulled; none while it is not known: it is being pulled, or an older agent did.
type Pulled = BTreeMap<String, Option<String>>;

/// How the list is written; an older agent noted names alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Listed {
    Exactly(Pulled),
    Names(BTreeSet<String>),
}

/// The images that were pulled for components, on disk.
pub(super) struct Images {
    file: PathBuf,
    pulled: Mutex<Pulled>,
    written: Written,
}

impl Images {
    /// A list that cannot be read is an empty one: then images are kept.
    pub(super) fn open(projects: &Path, written: &Written) -> Images {
        let file = projects.join("images.json");
        let pulled = match std::fs::read(&file) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(Listed::Exactly(pulled)) => pulled,
                Ok(Listed::Names(names)) => names.into_iter().map(|name| (name, None)).collect(),
                Err(error) => {
                    tracing::warn!(%error, "the list of pulled images is damaged; they are kept");
                    Pulled::new()
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Pulled::new(),
            Err(error) => {
                tracing::warn!(%error, "the list of pulled images cannot be read; they are kept");
                Pulled::new()
            }
        };
        Images { file, pulled: Mutex::new(pulled), written: written.clone() }
    }

    fn pulled(&self) -> MutexGuard<'_, Pulled> {
        self.pulled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that an image is there because of us; to be called before it is.
    pub(super) fn note(&self, image: &str) -> io::Result<()> {
        let mut pulled = self.pulled();
        // Whatever was pulled under this name before is gone, or it would not be pulled now.
        self.change(&mut pulled, |pulled| pulled.insert(image.to_owned(), None))
    }

    /// Remembers which one a name got that was noted.
    pub(super) fn note_id(&self, image: &str, id: &str) -> io::Result<()> {
        let mut pulled = self.pulled();
        if !pulled.contains_key(image) {
            return Ok(());
        }
        self.change(&mut pulled, |pulled| pulled.insert(image.to_owned(), Some(id.to_owned())))
    }

    /// Whether it was pulled under this name, and nobody noted which one.
    pub(super) fn is_inexact(&self, image: &str) -> bool {
        self.pulled().get(image).is_some_and(Option::is_none)
    }

    pub(super) fn forget(&self, image: &str) -> io::Result<()> {
        let mut pulled = self.pulled();
        self.change(&mut pulled, |pulled| pulled.remove(image))
    }

    fn change<T>(&self, pulled: &mut Pulled, change: impl FnOnce(&mut Pulled) -> T) -> io::Result<()> {
        let mut changed = pulled.clone();
        change(&mut changed);
        if changed == *pulled {
            return Ok(());
        }
        // Until it is written nobody takes it for that.
        self.written.durably(&self.file, &serde_json::to_vec(&changed).map_err(io::Error::other)?)?;
        *pulled = changed;
        Ok(())
    }

    /// Removes what was pulled, is not needed, and no container is made of. What cannot be removed now is tried again
    /// the next time; an engine that is not waited for any more goes on.
    pub(super) async fn sweep(
        &self,
        engine: &Engine,
        needed: &BTreeSet<String>,
        patience: Option<Duration>,
    ) -> Result<Swept, EngineError> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let pulled = self.pulled().clone();
        let spare: Pulled = pulled.into_iter().filter(|(image, _)| !needed.contains(image)).collect();
        if spare.is_empty() {
            return Ok(Swept::All);
        }
        let in_use = engine.images_in_use().await?;
        for (image, pulled) in spare {
            match engine.image_id(&image).await? {
                Some(id) if pulled.is_some_and(|pulled| pulled != id) => {
                    tracing::info!(%image, "somebody gave this name to another image; it is kept");
                }
                Some(id) if in_use.contains(&id) => {
                    tracing::debug!(%image, "others use this image; it is kept");
                    continue;
                }
                Some(_) => {
                    let removing = engine.remove_image(&image);
                    let removed = match deadline {
                        None => removing.await,
                        Some(deadline) => match timeout_at(deadline, removing).await {
                            Ok(removed) => removed,
                            Err(_) => return Ok(Swept::TooSlow),
                        },
                    };
                    if let Err(error) = removed {
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
        Ok(Swept::All)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::pretended_engine::{Answer, PretendedEngine};

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
        assert_eq!(
            *Images::open(&projects, &Written::default()).pulled(),
            [("web:1".to_owned(), None)].into()
        );
    }

    #[test]
    fn what_was_pulled_is_known_after_a_restart_and_a_damaged_list_is_empty() {
        let temp = tempfile::tempdir().unwrap();
        let images = Images::open(temp.path(), &Written::default());
        images.note("web:1").unwrap();
        images.note("web:2").unwrap();
        images.forget("web:1").unwrap();
        images.note_id("web:2", "abcd").unwrap();
        images.note_id("web:3", "abcd").unwrap();
        let known = || Images::open(temp.path(), &Written::default()).pulled().clone();
        assert_eq!(known(), [("web:2".to_owned(), Some("abcd".to_owned()))].into());
        // As an agent wrote it that noted names alone.
        std::fs::write(temp.path().join("images.json"), b"[\"web:1\"]").unwrap();
        assert_eq!(known(), [("web:1".to_owned(), None)].into());
        std::fs::write(temp.path().join("images.json"), b"[").unwrap();
        assert!(Images::open(temp.path(), &Written::default()).pulled().is_empty());
    }

    #[tokio::test]
    async fn only_the_image_that_was_pulled_under_a_name_goes() {
        let pretended = PretendedEngine::start(|asked| match asked.strip_prefix("GET /images/") {
            Some("web%3A1/json") => Answer::Json(json!({"Id": "sha256:pulled"})),
            Some(_) => Answer::Json(json!({"Id": "sha256:loaded-by-hand"})),
            None => Answer::Json(json!([])),
        });
        let temp = tempfile::tempdir().unwrap();
        let images = Images::open(temp.path(), &Written::default());
        for image in ["web:1", "web:2"] {
            images.note(image).unwrap();
            images.note_id(image, "pulled").unwrap();
        }
        // Of an older agent, or the power went while it was pulled.
        images.note("web:3").unwrap();
        images.sweep(&pretended.engine().await, &BTreeSet::new(), None).await.unwrap();
        let asked = pretended.asked();
        let removed: Vec<&String> = asked.iter().filter(|asked| asked.starts_with("DELETE")).collect();
        assert_eq!(removed, ["DELETE /images/web%3A1", "DELETE /images/web%3A3"]);
        assert!(images.pulled().is_empty(), "what is not ours any more is not looked at again");
    }

    #[tokio::test]
    async fn an_engine_that_takes_its_time_is_not_waited_for_and_asked_again_later() {
        let pretended = PretendedEngine::start(|asked| match asked {
            asked if asked.starts_with("GET /images/") => Answer::Json(json!({"Id": "sha256:pulled"})),
            asked if asked.starts_with("DELETE") => Answer::Silence,
            _ => Answer::Json(json!([])),
        });
        let temp = tempfile::tempdir().unwrap();
        let images = Images::open(temp.path(), &Written::default());
        images.note("web:1").unwrap();
        let patience = Some(Duration::from_millis(20));
        let swept = images.sweep(&pretended.engine().await, &BTreeSet::new(), patience).await.unwrap();
        assert_eq!(swept, Swept::TooSlow);
        assert!(images.pulled().contains_key("web:1"));
    }
}
