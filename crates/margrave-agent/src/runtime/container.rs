//! A container as an engine describes it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::adjustable::{Adjustable, Called};
use super::model::{LABEL_ASSIGNMENT, LABEL_COMPONENT};

pub(super) const LABEL_PROJECT: &str = "com.docker.compose.project";
const LABEL_SERVICE: &str = "com.docker.compose.service";
const LABEL_ONE_OFF: &str = "com.docker.compose.oneoff";
const LABEL_CONFIG_HASH: &str = "com.docker.compose.config-hash";

/// A container of ours and how it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    pub project: String,
    pub service: String,
    /// From our labels, as text: anybody can put labels on containers.
    pub assignment: Option<String>,
    pub component: Option<String>,
    pub config_hash: Option<String>,
    pub status: Status,
    pub exit_code: i64,
    /// Why the engine could not start it; empty when it could.
    pub error: String,
    pub out_of_memory: bool,
    pub started_at: String,
    pub finished_at: String,
    pub health: Option<HealthState>,
    pub restart_count: u64,
    pub restart_policy: RestartPolicy,
    /// What it is told to end by, where that is not the usual.
    pub stop_signal: Option<String>,
    pub adjustable: Adjustable,
    /// Names, by the path that it sees them at.
    pub volumes: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Created,
    Running,
    Paused,
    Restarting,
    Exited,
    Dead,
    Removing,
    /// What a future engine may call a state we do not know.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    No,
    OnFailure { tries_max: Option<u64> },
    Always,
}

/// Why a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    Itself,
    /// It was told to.
    Somebody,
    /// The engine has forgotten: it was restarted since, or much has happened.
    Unknown,
}

/// What the engine's health check of a container says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthState {
    pub status: String,
    pub last_output: Option<String>,
}

impl HealthState {
    pub(super) fn unhealthy(&self) -> bool {
        self.status == "unhealthy"
    }

    pub(super) fn starting(&self) -> bool {
        self.status == "starting"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    restart_count: u64,
    state: InspectedState,
    host_config: Value,
    config: InspectedConfig,
    #[serde(default)]
    network_settings: InspectedNetworks,
    mounts: Option<Vec<InspectedMount>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedMount {
    #[serde(rename = "Type", default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    destination: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct InspectedNetworks {
    #[serde(default)]
    networks: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedState {
    status: String,
    #[serde(default)]
    exit_code: i64,
    #[serde(default)]
    error: String,
    #[serde(default, rename = "OOMKilled")]
    oom_killed: bool,
    #[serde(default)]
    started_at: String,
    #[serde(default)]
    finished_at: String,
    health: Option<InspectedHealth>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedHealth {
    #[serde(default)]
    status: String,
    log: Option<Vec<InspectedProbe>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedProbe {
    #[serde(default)]
    output: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedHostConfig {
    restart_policy: Option<InspectedRestartPolicy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedRestartPolicy {
    #[serde(default)]
    name: String,
    #[serde(default)]
    maximum_retry_count: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedConfig {
    labels: Option<BTreeMap<String, String>>,
    /// Podman up to 4 has a number here.
    #[serde(default)]
    stop_signal: Value,
}

impl Container {
    /// `None` for what is not a service's container.
    pub(super) fn read(answer: &[u8]) -> Result<Option<Container>, serde_json::Error> {
        let Inspected { id, name, restart_count, state, host_config, config, network_settings, mounts } =
            serde_json::from_slice(answer)?;
        let mut labels = config.labels.unwrap_or_default();
        let one_off = labels.get(LABEL_ONE_OFF).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let (Some(project), Some(service), false) =
            (labels.remove(LABEL_PROJECT), labels.remove(LABEL_SERVICE), one_off)
        else {
            return Ok(None);
        };
        let status = match state.status.as_str() {
            "created" | "configured" | "initialized" => Status::Created,
            "running" => Status::Running,
            "paused" => Status::Paused,
            "restarting" => Status::Restarting,
            "exited" | "stopped" => Status::Exited,
            "dead" => Status::Dead,
            "removing" => Status::Removing,
            _ => Status::Other,
        };
        let called = Called { id: &id, name: name.trim_start_matches('/') };
        let running = status == Status::Running;
        let adjustable = Adjustable::read(&host_config, &network_settings.networks, running, called);
        let host_config: InspectedHostConfig = serde_json::from_value(host_config)?;
        let restart_policy = match host_config.restart_policy {
            Some(policy) if policy.name == "on-failure" => RestartPolicy::OnFailure {
                tries_max: (policy.maximum_retry_count > 0).then_some(policy.maximum_retry_count),
            },
            Some(policy) if matches!(policy.name.as_str(), "always" | "unless-stopped") => {
                RestartPolicy::Always
            }
            _ => RestartPolicy::No,
        };
        let stop_signal = match config.stop_signal {
            Value::String(name) if !name.is_empty() => Some(name),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let volumes = mounts.unwrap_or_default().into_iter().filter(|mount| mount.kind == "volume");
        let health =
            state.health.filter(|health| !matches!(health.status.as_str(), "" | "none")).map(|health| {
                HealthState {
                    last_output: health.log.unwrap_or_default().pop().map(|probe| probe.output),
                    status: health.status,
                }
            });
        Ok(Some(Container {
            id,
            project,
            service,
            assignment: labels.remove(LABEL_ASSIGNMENT),
            component: labels.remove(LABEL_COMPONENT),
            config_hash: labels.remove(LABEL_CONFIG_HASH),
            status,
            exit_code: state.exit_code,
            error: state.error,
            out_of_memory: state.oom_killed,
            started_at: state.started_at,
            finished_at: state.finished_at,
            health,
            restart_count,
            restart_policy,
            stop_signal,
            adjustable,
            volumes: volumes.map(|mount| (mount.destination, mount.name)).collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn inspected(change: impl FnOnce(&mut serde_json::Value)) -> Option<Container> {
        let mut answer = json!({
            "Id": "4fa6", "RestartCount": 2,
            "State": {"Status": "running", "ExitCode": 0, "Error": "", "OOMKilled": false,
                      "StartedAt": "2026-11-15T21:39:44.776266041Z", "FinishedAt": "0001-01-01T00:00:00Z"},
            "HostConfig": {"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}},
            "Config": {"Labels": {"com.docker.compose.project": "mg-1-web", "com.docker.compose.service": "web",
                "com.docker.compose.oneoff": "False", "com.docker.compose.config-hash": "abc",
                "io.margrave.assignment": "a", "io.margrave.component": "c"}, "StopSignal": "SIGKILL"},
        });
        change(&mut answer);
        Container::read(answer.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_container_is_read_from_what_engines_really_say() {
        let container = inspected(|_| {}).unwrap();
        assert_eq!((container.project.as_str(), container.service.as_str()), ("mg-1-web", "web"));
        assert_eq!((container.status, container.restart_count), (Status::Running, 2));
        assert_eq!(container.restart_policy, RestartPolicy::OnFailure { tries_max: Some(3) });
        assert_eq!(container.stop_signal.as_deref(), Some("SIGKILL"));
        let number = inspected(|answer| answer["Config"]["StopSignal"] = json!(15)).unwrap();
        assert_eq!(number.stop_signal.as_deref(), Some("15"));
        assert_eq!((container.health, container.config_hash.as_deref()), (None, Some("abc")));

        let unhealthy = inspected(|answer| {
            answer["State"]["Health"] = json!({"Status": "unhealthy", "FailingStreak": 2,
                "Log": [{"ExitCode": 1, "Output": "first\n"}, {"ExitCode": 1, "Output": "last\n"}]});
        });
        let health = unhealthy.unwrap().health.unwrap();
        assert!(health.unhealthy() && health.last_output.as_deref() == Some("last\n"));
        for none in
            [json!(null), json!({"Status": "", "FailingStreak": 0, "Log": null}), json!({"Status": "none"})]
        {
            assert_eq!(inspected(|answer| answer["State"]["Health"] = none).unwrap().health, None);
        }
    }

    #[test]
    fn containers_that_are_no_service_are_left_out() {
        assert!(
            inspected(|answer| answer["Config"]["Labels"]["com.docker.compose.oneoff"] = json!("True"))
                .is_none()
        );
        assert!(inspected(|answer| answer["Config"]["Labels"] = json!(null)).is_none());
    }
}
