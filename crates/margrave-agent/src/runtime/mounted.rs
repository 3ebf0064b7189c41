//! What containers of a project have of the machine's files: these are not removed under them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::Deserialize;

use super::container::LABEL_PROJECT;
use super::engine::{Engine, EngineError, Volume, understood};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    mounts: Option<Vec<Mount>>,
    #[serde(default)]
    host_config: HostConfig,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct HostConfig {
    binds: Option<Vec<String>>,
    mounts: Option<Vec<Mount>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Mount {
    #[serde(default)]
    source: PathBuf,
}

impl Engine {
    /// Where the files are that containers of a project have mounted, or will have when they are started again; also those made
    /// by hand with `compose run`, and where its volumes have their devices.
    pub(super) async fn mounted(&self, project: &str) -> Result<BTreeSet<PathBuf>, EngineError> {
        let mut places = BTreeSet::new();
        for id in self.container_ids(&[(LABEL_PROJECT, project)]).await? {
            // Removed between the two questions.
            let Some(answer) = self.inspected(&id).await? else { continue };
            places.extend(sources(understood(&answer)?));
        }
        // A container says of a volume only where the engine shows it.
        let device = |volume: Volume| volume.options?.remove("device").map(PathBuf::from);
        places.extend(self.volumes(project).await?.into_iter().filter_map(device));
        Ok(places)
    }
}

/// As they are mounted, and as they were asked for: engines may tell the one by another path, and what was never started by none.
fn sources(inspected: Inspected) -> BTreeSet<PathBuf> {
    let HostConfig { binds, mounts } = inspected.host_config;
    let binds = binds.unwrap_or_default();
    let bound = binds.iter().filter_map(|bind| bind.split(':').next()).map(PathBuf::from);
    let mounts = inspected.mounts.into_iter().chain(mounts).flatten();
    mounts.map(|mount| mount.source).chain(bound).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::pretended_engine::{Answer, PretendedEngine};

    #[tokio::test]
    async fn files_are_known_however_a_container_came_by_them() {
        let pretended = PretendedEngine::start(|asked| {
            Answer::Json(match asked {
                "GET /containers/1/json" => json!({
                    "Mounts": [{"Type": "bind", "Source": "/a", "Destination": "/x"}],
                    "HostConfig": {"Binds": ["/b:/y:ro"], "Mounts": null},
                }),
                // As `compose run` makes them.
                "GET /containers/2/json" => json!({
                    "Mounts": null, "Config": {"Labels": {"com.docker.compose.oneoff": "True"}},
                    "HostConfig": {"Binds": null, "Mounts": [{"Type": "tmpfs"}, {"Type": "bind", "Source": "/c"}]},
                }),
                asked if asked.starts_with("GET /containers/json") => json!([{"Id": "1"}, {"Id": "2"}]),
                _ => json!({"Volumes": [
                    {"Name": "p_named", "Options": null},
                    {"Name": "p_device", "Options": {"type": "none", "o": "bind", "device": "/d"}},
                ]}),
            })
        });
        let mounted = pretended.engine().await.mounted("p").await.unwrap();
        let expected = ["", "/a", "/b", "/c", "/d"].map(PathBuf::from);
        assert_eq!(mounted, expected.into());
    }
}
