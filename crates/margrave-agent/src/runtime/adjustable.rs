//! What hands can change of a container without making it anew: its restart policy, its limits, its networks and its names there.
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
    /// By which other names it is found on each of them; not known of what an older agent noted, either.
    #[serde(default)]
    aliases: Option<BTreeMap<String, BTreeSet<String>>>,
}

/// What engines call a container anyway, and write among its other names or leave out, as their version has it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Called<'a> {
    pub id: &'a str,
    pub name: &'a str,
}

impl Called<'_> {
    /// Whether a name tells no more than these; replicas of a service differ in nothing else.
    fn is(&self, name: &str) -> bool {
        name == self.name || self.id.starts_with(name)
    }
}

impl Adjustable {
    /// From an engine's description of a container.
    pub(super) fn read(
        host_config: &Value,
        networks: &Value,
        running: bool,
        called: Called<'_>,
    ) -> Adjustable {
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
            aliases: running.then(|| aliases(networks, called)),
        }
    }

    /// Whether nothing that is known of both differs; `other` is what is seen now.
    pub(super) fn is_like(&self, other: &Adjustable) -> bool {
        let networks = match (&self.networks, &other.networks) {
            (Some(these), Some(those)) => these == those,
            _ => true,
        };
        let found_as_ever = match (&self.aliases, &other.aliases) {
            // Names that came in addition take nothing away.
            (Some(these), Some(those)) => these
                .iter()
                .all(|(network, aliases)| those.get(network).is_none_or(|seen| aliases.is_subset(seen))),
            _ => true,
        };
        networks && found_as_ever && self.restart == other.restart && self.limits == other.limits
    }
}

fn aliases(networks: &Value, called: Called<'_>) -> BTreeMap<String, BTreeSet<String>> {
    let of = |network: &Value| {
        let listed = network["Aliases"].as_array().into_iter().flatten().filter_map(Value::as_str);
        listed.filter(|alias| !called.is(alias)).map(str::to_owned).collect()
    };
    let networks = networks.as_object().into_iter().flatten();
    networks.map(|(name, network)| (name.clone(), of(network))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(host_config: Value, networks: &[&str], running: bool) -> Adjustable {
        let networks: Value = networks.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
        Adjustable::read(&host_config, &networks, running, Called::default())
    }

    fn on_network(aliases: Value, called: Called<'_>) -> Adjustable {
        Adjustable::read(&json!({}), &json!({"p_default": {"Aliases": aliases}}), true, called)
    }

    const FIRST: Called<'_> = Called { id: "0123456789abcdef", name: "p-web-1" };

    #[test]
    fn a_network_that_was_joined_again_without_the_names_is_seen() {
        let started = on_network(json!(["p-web-1", "web", "shop", "0123456789ab"]), FIRST);
        for joined in [json!(null), json!([]), json!(["0123456789ab"]), json!(["p-web-1", "web"])] {
            assert!(!started.is_like(&on_network(joined.clone(), FIRST)), "{joined}");
        }
        assert!(started.is_like(&on_network(json!(["shop", "web", "more"]), FIRST)), "found as ever");
    }

    #[test]
    fn names_that_engines_add_or_leave_out_and_replicas_differ_in_are_no_change() {
        let second = Called { id: "fedcba9876543210", name: "p-web-2" };
        let older = on_network(json!(["p-web-1", "web", "0123456789ab"]), FIRST);
        let newer = on_network(json!(["web"]), FIRST);
        let other = on_network(json!(["p-web-2", "web", "fedcba987654"]), second);
        for (these, those) in [(&older, &newer), (&newer, &older), (&older, &other), (&other, &older)] {
            assert!(these.is_like(those), "{these:?} {those:?}");
        }
        // What an older agent noted says nothing of them, nor does one that has ended.
        let mut noted = serde_json::to_value(&older).unwrap();
        noted.as_object_mut().unwrap().remove("aliases");
        let noted: Adjustable = serde_json::from_value(noted).unwrap();
        assert!(noted.is_like(&on_network(json!([]), FIRST)));
        let ended = Adjustable::read(&json!({}), &json!({"p_default": {"Aliases": null}}), false, FIRST);
        assert!(older.is_like(&ended));
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
