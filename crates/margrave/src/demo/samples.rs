//! The sample packages, carried inside the program so that the demo needs nothing beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use margrave_agent::runtime::simulated::{Drill, Effect};
use margrave_core::report::FailureCode;

/// One package: its id, and its files relative to its folder.
pub(crate) struct Sample {
    pub(crate) id: &'static str,
    files: &'static [(&'static str, &'static [u8])],
}

macro_rules! sample {
    ($id:literal: $($path:literal),* $(,)?) => {
        Sample {
            id: $id,
            files: &[$(($path, include_bytes!(concat!("../../samples/", $id, "/", $path)))),*],
        }
    };
}

/// In the order in which a person should try them.
pub(crate) const SAMPLES: [Sample; 3] = [
    sample!("andon-board":
        "margo.yaml",
        "resources/icon.svg",
        "resources/description.md",
        "resources/release-notes.md",
        "resources/license.txt",
        "components/andon-board/compose.yaml",
    ),
    sample!("line-monitor":
        "margo.yaml",
        "resources/icon.svg",
        "resources/description.md",
        "resources/release-notes.md",
        "resources/license.txt",
        "components/line-store/compose.yaml",
        "components/line-collector/compose.yaml",
    ),
    sample!("quality-gate":
        "margo.yaml",
        "resources/icon.svg",
        "resources/description.md",
        "resources/release-notes.md",
        "resources/license.txt",
        "components/quality-gate/compose.yaml",
    ),
];

/// What the quality gate's drill does where it only seems to run; in a container it is `SAMPLE_FAIL`.
pub(crate) fn drills() -> Vec<Drill> {
    let drill =
        |value: &str, effect| Drill { pointer: "GATE_DRILL".to_owned(), value: value.to_owned(), effect };
    vec![drill("start", Effect::Fail(FailureCode::StartFailed)), drill("health", Effect::NeverHealthy)]
}

impl Sample {
    /// Writes the package as a folder below `parent`, where a person can look at it, change it and add it again.
    pub(crate) fn write(&self, parent: &Path) -> io::Result<PathBuf> {
        let folder = parent.join(self.id);
        for (path, bytes) in self.files {
            let file = folder.join(path);
            if let Some(directory) = file.parent() {
                fs::create_dir_all(directory)?;
            }
            fs::write(file, bytes)?;
        }
        Ok(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::image;
    use crate::folder::{self, Bound};
    use margrave_core::parameters::ScalarType;
    use std::collections::BTreeSet;

    fn written() -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        let folders = SAMPLES.iter().map(|sample| sample.write(dir.path()).unwrap()).collect();
        (dir, folders)
    }

    fn files(root: &Path, below: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(root, &path, found);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn every_file_of_the_samples_is_carried() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
        let mut on_disk = BTreeSet::new();
        files(&source, &source, &mut on_disk);
        let carried: BTreeSet<String> =
            SAMPLES.iter().flat_map(|s| s.files.iter().map(|(path, _)| format!("{}/{path}", s.id))).collect();
        assert_eq!(carried, on_disk);
    }

    #[test]
    fn every_sample_passes_our_own_check() {
        let (_dir, folders) = written();
        for (sample, path) in SAMPLES.iter().zip(folders) {
            let folder =
                folder::read(&path, Bound::Own).unwrap().unwrap_or_else(|findings| panic!("{findings:#?}"));
            assert_eq!(folder.package.id.as_str(), sample.id);
            assert_eq!(
                folder.files.unwrap().resources().len(),
                4,
                "icon, description, licence, release notes"
            );
            // Every compose component of the package has its folder: nothing is fetched from elsewhere.
            let components: usize =
                folder.package.profiles.iter().map(|profile| profile.components.len()).sum();
            assert_eq!(folder.components.len(), components);
        }
    }

    #[test]
    fn the_samples_differ_in_character() {
        let (_dir, folders) = written();
        let packages: Vec<_> =
            folders.iter().map(|path| folder::read(path, Bound::Own).unwrap().unwrap().package).collect();
        assert_eq!(packages[0].profiles[0].components.len(), 1);
        let order: Vec<&str> = packages[1].profiles[0].components.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(order, ["line-store", "line-collector"]);

        let questions = &packages[2];
        let schemas = questions.schemas.values();
        for scalar in [ScalarType::Text, ScalarType::Integer, ScalarType::Double, ScalarType::Boolean] {
            assert!(
                schemas.clone().any(|s| s.data_type.scalar == scalar && !s.data_type.array),
                "{scalar:?}"
            );
        }
        assert!(schemas.clone().any(|s| s.data_type.array && s.options.is_none()));
        assert!(schemas.clone().any(|s| s.options.is_some() && !s.multiselect));
        assert!(schemas.clone().any(|s| s.options.is_some() && s.multiselect));
        assert!(schemas.clone().any(|s| s.regex.is_some()) && schemas.clone().any(|s| s.allow_empty));
        assert!(questions.sections.iter().flat_map(|s| &s.settings).any(|setting| setting.immutable));
        assert!(questions.parameters.values().any(|parameter| parameter.default.is_none()));
    }

    #[test]
    fn the_drills_are_those_that_the_gate_asks_for() {
        let (_dir, folders) = written();
        let package = folder::read(&folders[2], Bound::Own).unwrap().unwrap().package;
        let pointers = package.parameters.values().flat_map(|parameter| &parameter.targets);
        let pointers: BTreeSet<&str> = pointers.map(|target| target.pointer.as_str()).collect();
        let schema = package.schemas.values().find(|schema| {
            let options = schema.options.as_deref().unwrap_or_default();
            options.iter().any(|option| option == "health")
        });
        let mut options = schema.unwrap().options.clone().unwrap();
        options.retain(|option| option != "none");
        let drills = drills();
        assert!(drills.iter().all(|drill| pointers.contains(drill.pointer.as_str())), "{pointers:?}");
        assert_eq!(drills.iter().map(|drill| drill.value.clone()).collect::<Vec<_>>(), options);
    }

    #[test]
    fn the_compose_files_use_the_image_that_the_demo_makes_and_no_fixed_port() {
        let image = format!("${{MARGRAVE_REGISTRY}}/{}:{}", image::REPOSITORY, image::TAG);
        for (path, bytes) in SAMPLES.iter().flat_map(|sample| sample.files) {
            if !path.ends_with("compose.yaml") {
                continue;
            }
            let text = std::str::from_utf8(bytes).unwrap();
            for line in text.lines().map(str::trim) {
                if let Some(used) = line.strip_prefix("image: ") {
                    assert_eq!(used, image, "{path}");
                }
                if line.starts_with("- \"127.0.0.1:") {
                    assert_eq!(line, "- \"127.0.0.1::8080\"", "{path}: the host's port must be left open");
                }
            }
            assert!(text.contains("healthcheck:") && text.contains("restart: unless-stopped"), "{path}");
        }
    }
}
