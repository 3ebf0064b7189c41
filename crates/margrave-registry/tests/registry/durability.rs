//! What was acknowledged is there after `kill -9`; what was not is never half there; a full disk is said.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use margrave_core::digest::Digest;
use margrave_oci::manifest::{IMAGE_MANIFEST, ImageManifest};
use margrave_registry::{OpenError, Registry, RegistryError};

use crate::rig::{artifact, name, present, reference};

const DIR: &str = "MARGRAVE_TEST_REGISTRY_DIR";

/// Runs one of the tests of this binary again, as a child process with a directory to work on.
fn again(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(DIR, dir);
    command
}

async fn push(registry: &Registry, tag: &str, layer: &[u8]) -> Result<Digest, RegistryError> {
    let here = name("a");
    registry.put_blob(&here, bytes::Bytes::from_static(b"{}")).await?;
    registry.put_blob(&here, layer.to_vec().into()).await?;
    registry.put_manifest(&here, &reference(tag), IMAGE_MANIFEST, artifact(layer).to_bytes().into()).await
}

/// Whatever can be seen is whole.
async fn check_whole(registry: &Registry) {
    let here = name("a");
    for tag in registry.tags(&here).await.unwrap().unwrap_or_default() {
        let stored = registry
            .manifest(&here, &reference(tag.as_str()))
            .await
            .unwrap()
            .expect("a tag has its manifest");
        for layer in ImageManifest::from_bytes(&stored.bytes).unwrap().layers {
            let blob = registry.blob(&here, &layer.digest).await.unwrap().expect("a manifest has its blobs");
            assert_eq!(Digest::of(&std::fs::read(blob.path).unwrap()), layer.digest);
        }
    }
}

#[tokio::test]
async fn killed_at_any_point_it_keeps_what_it_acknowledged() {
    if let Some(dir) = std::env::var_os(DIR) {
        // The child: pushes for ever, and says what was acknowledged.
        let registry = Registry::open(dir).unwrap();
        let mut out = std::io::stdout();
        for index in 0u64.. {
            let layer = index.to_be_bytes().repeat(20_000);
            let tag = format!("t{}", index % 7);
            push(&registry, &tag, &layer).await.unwrap();
            writeln!(out, "acknowledged {tag} {index}").unwrap();
            out.flush().unwrap();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    for lines in [1, 2, 3, 5, 8] {
        let mut child = again("durability::killed_at_any_point_it_keeps_what_it_acknowledged", dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let acknowledged: Vec<String> = out
            .lines()
            .map(Result::unwrap)
            .filter(|line| line.contains("acknowledged t"))
            .take(lines)
            .collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(acknowledged.len(), lines);

        let registry = Registry::open(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("incoming")).unwrap().count(), 0);
        check_whole(&registry).await;
        for line in acknowledged {
            // Where harness and child share a line, the words are at its end.
            let words = line[line.find("acknowledged").unwrap()..].split(' ').collect::<Vec<_>>();
            let layer = words[2].parse::<u64>().unwrap().to_be_bytes().repeat(20_000);
            let digest = Digest::of(&artifact(&layer).to_bytes());
            let digest = reference(&digest.to_string());
            assert!(registry.manifest(&name("a"), &digest).await.unwrap().is_some(), "{line}");
            assert!(registry.manifest(&name("a"), &reference(words[1])).await.unwrap().is_some(), "{line}");
        }
    }
}

#[tokio::test]
async fn a_full_disk_is_said_and_leaves_nothing_half_visible() {
    if let Some(dir) = std::env::var_os(DIR) {
        // The child, in a mount namespace of its own where the directory is a file system of two megabytes.
        let registry = Registry::open(&dir).unwrap();
        push(&registry, "before", b"small").await.unwrap();
        let large = vec![7u8; 4 * 1024 * 1024];
        let error = push(&registry, "large", &large).await.unwrap_err();
        assert!(matches!(error, RegistryError::StorageFull(_)), "{error:?}");
        assert!(registry.blob(&name("a"), &Digest::of(&large)).await.unwrap().is_none());
        // Fill what is left, to the last byte, and try everything that writes.
        let filler = Path::new(&dir).join("filler");
        let mut file = std::fs::File::create(&filler).unwrap();
        let mut piece = vec![0u8; 64 * 1024];
        while !piece.is_empty() {
            if file.write_all(&piece).is_err() {
                piece.truncate(piece.len() / 2);
            }
        }
        for error in [
            registry.put_blob(&name("b"), vec![1; 5000].into()).await.unwrap_err(),
            registry
                .put_manifest(
                    &name("a"),
                    &reference("other"),
                    IMAGE_MANIFEST,
                    artifact(b"small").to_bytes().into(),
                )
                .await
                .unwrap_err(),
        ] {
            assert!(matches!(error, RegistryError::StorageFull(_)), "{error:?}");
        }
        check_whole(&registry).await;
        assert!(registry.manifest(&name("a"), &reference("other")).await.unwrap().is_none());
        assert!(registry.manifest(&name("a"), &reference("before")).await.unwrap().is_some());
        // And with room again it goes on.
        drop(file);
        std::fs::remove_file(filler).unwrap();
        push(&registry, "after", b"small again").await.unwrap();
        check_whole(&registry).await;
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=2m tmpfs \"$0\" && exec \"$@\"";
    let unshare = |command: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "sh", "-c", mount]).arg(dir.path()).args(command);
        unshare
    };
    let can = unshare(&["true"]).output().is_ok_and(|output| output.status.success());
    if !present("a mount namespace (unshare)", can) {
        return;
    }
    let child = again("durability::a_full_disk_is_said_and_leaves_nothing_half_visible", dir.path());
    let mut words = vec![child.get_program().to_str().unwrap()];
    words.extend(child.get_args().map(|word| word.to_str().unwrap()));
    let output = unshare(&words).env(DIR, dir.path()).output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn two_processes_cannot_own_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = Registry::open(dir.path()).unwrap();
    assert!(matches!(Registry::open(dir.path()), Err(OpenError::InUse(_))));
    drop(first);
    Registry::open(dir.path()).unwrap();
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = Registry::open(file.join("below")).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }) && error.to_string().contains("writable"), "{error}");
}

#[tokio::test]
async fn a_restart_forgets_uploads_and_keeps_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let digest = {
        let registry = Registry::open(dir.path()).unwrap();
        push(&registry, "1", b"layer").await.unwrap()
    };
    std::fs::write(dir.path().join("incoming/left-over"), b"half").unwrap();
    let registry = Registry::open(dir.path()).unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join("incoming")).unwrap().count(), 0);
    let stored = registry.manifest(&name("a"), &reference("1")).await.unwrap().unwrap();
    assert_eq!(stored.digest, digest);
}
