//! What hands can change of a container without making it anew: its restart policy, its limits, its networks.
//!
//! Compose does not see such a change, because the hash that it wrote on the container stays the same. So it is noted
//! when a component is started, and compared at every look. Only what an engine can change in place is read here: what
//! an engine merely words differently after its own update must not look like a change, or a fleet would restart.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Fields of a container's host configuration that `docker update` sets.
const LIMITS: [&str; 11] = [
    "BlkioWeight",
    "CpuPeriod",
    "CpuQuota",
    "CpuShares",
    "CpusetCpus",
    "CpusetMems",
    "Memory",
    "MemoryReservation",
    "MemorySwap",
    "NanoCpus",
    "PidsLimit",
];

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjustable {
    /// Such as `no` or `on-failure:3`.
    restart: String,
    /// Those that are set, as the engine writes them.
    limits: BTreeMap<String, String>,
    /// Names; known of running containers only, because engines differ in what they say of others.
    networks: Option<BTreeSet<String>>,
}

impl Adjustable {
    /// From an engine's description of a container.
    pub(super) fn read(host_config: &Value, networks: &Value, running: bool) -> Adjustable {
        let policy = &host_config["RestartPolicy"];
        let restart = match (policy["Name"].as_str().unwrap_or_default(), &policy["MaximumRetryCount"]) {
            ("" | "no", _) => "no".to_owned(),
            ("on-failure", tries) => format!("on-failure:{}", tries.as_u64().unwrap_or_default()),
            (name, _) => name.to_owned(),
        };
        let limit = |name: &&str| {
            let text = match &host_config[*name] {
                // Engines write no limit in any of these ways.
                Value::Number(number) if number.as_i64().is_none_or(|n| n > 0) => number.to_string(),
                Value::String(text) if !text.is_empty() => text.clone(),
                _ => return None,
            };
            Some(((*name).to_owned(), text))
        };
        let names = || networks.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default();
        Adjustable {
            restart,
            limits: LIMITS.iter().filter_map(limit).collect(),
            networks: running.then(names),
        }
    }

    /// Whether nothing that is known of both differs.
    pub(super) fn is_like(&self, other: &Adjustable) -> bool {
        let networks = match (&self.networks, &other.networks) {
            (Some(these), Some(those)) => these == those,
            _ => true,
        };
        networks && self.restart == other.restart && self.limits == other.limits
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(host_config: Value, networks: &[&str], running: bool) -> Adjustable {
        let networks: Value = networks.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
        Adjustable::read(&host_config, &networks, running)
    }

    #[test]
    fn what_docker_update_changes_is_seen() {
        let started =
            read(json!({"RestartPolicy": {"Name": "always"}, "Memory": 1024}), &["p_default"], true);
        for changed in [
            read(json!({"RestartPolicy": {"Name": "no"}, "Memory": 1024}), &["p_default"], true),
            read(json!({"RestartPolicy": {"Name": "always"}, "Memory": 2048}), &["p_default"], true),
            read(json!({"RestartPolicy": {"Name": "always"}}), &["p_default"], true),
            read(json!({"RestartPolicy": {"Name": "always"}, "Memory": 1024}), &[], true),
            read(json!({"RestartPolicy": {"Name": "always"}, "Memory": 1024}), &["p_default", "x"], true),
        ] {
            assert!(!started.is_like(&changed), "{changed:?}");
        }
        assert!(
            !read(json!({"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}}), &[], true)
                .is_like(&read(json!({"RestartPolicy": {"Name": "on-failure"}}), &[], true))
        );
    }

    #[test]
    fn other_words_for_the_same_are_no_change() {
        let older = read(
            json!({"RestartPolicy": {"Name": "", "MaximumRetryCount": 0}, "PidsLimit": null}),
            &[],
            true,
        );
        let newer = read(
            json!({"RestartPolicy": {"Name": "no"}, "PidsLimit": -1, "Memory": 0, "CpusetCpus": "", "Annotations": {}}),
            &[],
            true,
        );
        assert!(older.is_like(&newer));
        // One that has ended is not asked for its networks.
        assert!(read(json!({}), &["p_default"], true).is_like(&read(json!({}), &[], false)));
    }
}
