//! What no rule forbids in a Compose file and a vendor should know all the same: what does nothing on a device, or stands in the way
//! of others there.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{claims, field};
use crate::yaml;

/// One sentence each.
pub fn doubts(bytes: &[u8]) -> Vec<String> {
    let Ok(file) = yaml::read(bytes) else { return Vec::new() };
    let file = file.to_value();
    let mut doubts = Vec::new();
    for (name, service) in file.get("services").and_then(Value::as_object).into_iter().flatten() {
        if field(service, "build").is_some() {
            doubts.push(format!(
                "service {name} has `build`: each device would make an image of its own, from what is in this directory; push \
                 an image, and name it with `image`"
            ));
        }
        if let Some(Value::String(fixed)) = field(service, "container_name") {
            doubts.push(format!(
                "service {name} has the `container_name` {fixed}, so that a device can have it only once; leave it out"
            ));
        }
    }
    let ports = claims(bytes).map(|claims| claims.ports).unwrap_or_default();
    let ports: BTreeSet<u16> = ports.into_iter().map(|port| port.number).collect();
    let ports: Vec<String> = ports.iter().take(TOLD_MAX).map(u16::to_string).collect();
    if !ports.is_empty() {
        doubts.push(format!(
            "takes port {} of the device, where no other deployment can have it then; without a port of the host \
             (`ports: [\"8080\"]`) the engine chooses one that is free",
            ports.join(", ")
        ));
    }
    doubts
}

/// Ports that are named; a range has many.
const TOLD_MAX: usize = 5;

/// The variables that a Compose file is filled with from outside; `None` where other files have a part in that.
pub fn variables(bytes: &[u8]) -> Option<BTreeSet<String>> {
    let file = yaml::read(bytes).ok()?.to_value();
    if file.get("include").is_some() {
        return None;
    }
    let mut variables = BTreeSet::new();
    mentioned(&file, &mut variables);
    let services = file.get("services").and_then(Value::as_object);
    for service in services.into_iter().flat_map(Map::values) {
        if ["extends", "env_file"].into_iter().any(|key| field(service, key).is_some()) {
            return None;
        }
        // A name without a value is handed through.
        match field(service, "environment") {
            Some(Value::Array(entries)) => {
                let names = entries.iter().filter_map(Value::as_str).filter(|entry| !entry.contains('='));
                variables.extend(names.map(str::to_owned));
            }
            Some(Value::Object(entries)) => {
                let empty = entries.iter().filter(|(_, value)| value.is_null());
                variables.extend(empty.map(|(name, _)| name.clone()));
            }
            _ => {}
        }
    }
    Some(variables)
}

/// The names after `$` in all texts, also in defaults of others; `$$` is a dollar sign.
fn mentioned(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            let mut rest = text.as_str();
            while let Some((_, after)) = rest.split_once('$') {
                rest = after;
                if let Some(after) = rest.strip_prefix('$') {
                    rest = after;
                    continue;
                }
                let name = rest.strip_prefix('{').unwrap_or(rest);
                let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
                if end > 0 {
                    names.insert(name[..end].to_owned());
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| mentioned(item, names)),
        Value::Object(entries) => entries.values().for_each(|entry| mentioned(entry, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_way_of_others_or_is_made_on_each_device_is_told() {
        for (service, told) in [
            ("{ image: a }", None),
            ("{ image: a, ports: [\"127.0.0.1::8080\", \"80\", \"${PORT}:80\"] }", None),
            ("{ build: . }", Some("has `build`")),
            ("{ image: a, ports: [\"8080:80\"] }", Some("port 8080 of the device")),
            ("{ image: a, ports: [{ target: 80, published: 81 }] }", Some("port 81 of the device")),
            ("{ image: a, container_name: web }", Some("`container_name` web")),
        ] {
            let doubts = doubts(format!("services:\n  web: {service}\n").as_bytes());
            assert_eq!(doubts.len(), usize::from(told.is_some()), "{service} {doubts:?}");
            assert!(told.is_none_or(|told| doubts[0].contains(told)), "{service} {doubts:?}");
        }
    }

    #[test]
    fn a_file_is_filled_with_the_variables_that_it_names() {
        for (service, wanted) in [
            ("{ image: \"a:${TAG}\" }", Some(vec!["TAG"])),
            (
                "{ image: \"a:${TAG:-${OTHER}}\", command: \"$$NOT $YES $$$$ $\" }",
                Some(vec!["OTHER", "TAG", "YES"]),
            ),
            ("{ image: a, environment: { KEY: 1, THROUGH: null } }", Some(vec!["THROUGH"])),
            ("{ image: a, environment: [KEY=1, THROUGH] }", Some(vec!["THROUGH"])),
            ("{ image: a, env_file: more.env }", None),
        ] {
            let found = variables(format!("services:\n  web: {service}\n").as_bytes());
            let wanted = wanted.map(|names: Vec<&str>| names.into_iter().map(str::to_owned).collect());
            assert_eq!(found, wanted, "{service}");
        }
    }
}
