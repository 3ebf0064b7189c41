//! An agent that is itself a container: where the engine finds what it writes.
//!
//! Files of a component are mounted by the engine, by their path on the machine. An agent in a container writes them
//! to paths of its own, and where the two differ the engine mounts an empty directory, or somebody else's. So the data
//! directory has to have the same path on both sides; this says whether it has. It owns no decision about what then
//! cannot be run.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::engine::{Engine, EngineError};

/// Where the kernel tells what is mounted for this process.
const MOUNTS: &str = "/proc/self/mountinfo";
/// Engines put this file into every container, from a directory that is named after it.
const HOSTNAME: &str = "/etc/hostname";

/// How the engine sees the agent's data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sight {
    /// By the same path, as always when the agent is not in a container of this engine.
    Same,
    /// By another path.
    Elsewhere(PathBuf),
    /// It is inside of the agent's container, and goes with it.
    Inside,
}

impl Sight {
    /// Asks the kernel who we are, and the engine what it gave us.
    pub(super) async fn of(data: &Path, engine: &Engine) -> Result<Sight, EngineError> {
        let Some(id) = id() else { return Ok(Sight::Same) };
        // An engine that does not know us is not the one that we are a container of; it may share files or not, and
        // nobody can tell.
        let Some(answer) = engine.inspected(&id).await? else { return Ok(Sight::Same) };
        let own: Own =
            serde_json::from_slice(&answer).map_err(|error| EngineError::NotUnderstood(error.to_string()))?;
        Ok(sight(data, &own.mounts))
    }
}

/// What is wrong, for a person at the device; only of use where something is.
impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sight::Same => f.write_str("the container engine sees the agent's data directory by the same path"),
            Sight::Elsewhere(path) => write!(
                f,
                "the agent runs in a container, and its data directory is {} to the container engine",
                path.display()
            ),
            Sight::Inside => f.write_str(
                "the agent runs in a container without a mount for its data directory, so it is lost with the container",
            ),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Own {
    #[serde(default)]
    mounts: Vec<Mount>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Mount {
    #[serde(default)]
    source: PathBuf,
    destination: PathBuf,
}

/// The id of the container that this process is in, if it is in one.
pub(crate) fn id() -> Option<String> {
    std::fs::read_to_string(MOUNTS).ok().as_deref().and_then(own_id)
}

fn own_id(mounts: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        let is_id = |part: &&str| part.len() == 64 && part.bytes().all(|b| b.is_ascii_hexdigit());
        (place == HOSTNAME).then(|| root.split('/').find(is_id).map(str::to_owned)).flatten()
    })
}

fn sight(data: &Path, mounts: &[Mount]) -> Sight {
    let innermost = mounts
        .iter()
        .filter(|mount| data.starts_with(&mount.destination))
        .max_by_key(|mount| mount.destination.components().count());
    let Some(mount) = innermost else { return Sight::Inside };
    let rest = data.strip_prefix(&mount.destination).expect("it is below the mount");
    let outside = mount.source.join(rest);
    if outside == data { Sight::Same } else { Sight::Elsewhere(outside) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_own_files_tell_which_container_this_is() {
        let id = "6e852d915dc2973531045bbff2a68f9e1e2c63c6305b0add20baa464eac7e8a6";
        let docker = format!(
            "99 82 254:0 /data /data ro,relatime - ext4 /dev/vda rw\n\
             121 82 254:0 /var/lib/docker/containers/{id}/hostname /etc/hostname rw,relatime - ext4 /dev/vda rw\n"
        );
        let podman = format!(
            "12 3 0:25 /containers/storage/overlay-containers/{id}/userdata/hostname /etc/hostname rw - tmpfs tmpfs rw\n"
        );
        for mounts in [docker, podman] {
            assert_eq!(own_id(&mounts).as_deref(), Some(id));
        }
        for machine in ["", "x", "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"] {
            assert_eq!(own_id(machine), None);
        }
    }

    fn check(mounts: &[(&str, &str)], want: Sight) {
        let mounts: Vec<Mount> = mounts
            .iter()
            .map(|(source, destination)| Mount { source: source.into(), destination: destination.into() })
            .collect();
        assert_eq!(sight(Path::new("/var/lib/margrave-agent"), &mounts), want);
    }

    #[test]
    fn only_the_same_path_on_both_sides_is_the_same() {
        check(&[("/var/lib/margrave-agent", "/var/lib/margrave-agent")], Sight::Same);
        check(&[("/var/lib", "/var/lib"), ("/run/docker.sock", "/var/run/docker.sock")], Sight::Same);
        let volume = "/var/lib/docker/volumes/m/_data";
        check(&[(volume, "/var/lib/margrave-agent")], Sight::Elsewhere(volume.into()));
        check(&[("/srv", "/var/lib")], Sight::Elsewhere("/srv/margrave-agent".into()));
        // The inner mount is what counts.
        check(
            &[("/var/lib", "/var/lib"), ("/srv/x", "/var/lib/margrave-agent")],
            Sight::Elsewhere("/srv/x".into()),
        );
        check(&[("/run/docker.sock", "/var/run/docker.sock")], Sight::Inside);
        check(&[], Sight::Inside);
    }
}
