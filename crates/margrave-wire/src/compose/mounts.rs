//! Mounts by which a service writes among the files that its Compose file came with.

use std::collections::BTreeSet;

use serde_json::Value;

use super::field;
use crate::yaml;

/// A path beside the Compose file that a service is given to write to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writable {
    pub service: String,
    /// As it is written.
    pub source: String,
    /// The same below the Compose file's directory, in plain names; empty for all of it.
    pub path: String,
    /// Where the service sees it.
    pub target: String,
}

/// Those of all services, also of those that start only when somebody asks for them. What depends on a variable is left out, and so
/// is what leads out of the directory: none of it comes with the file.
pub fn writable(bytes: &[u8]) -> Vec<Writable> {
    let Ok(file) = yaml::read(bytes) else { return Vec::new() };
    let file = file.to_value();
    let mut found = BTreeSet::new();
    for (name, service) in file.get("services").and_then(Value::as_object).into_iter().flatten() {
        let mounts = field(service, "volumes").and_then(Value::as_array).into_iter().flatten();
        for (source, target) in mounts.filter_map(written) {
            if let Some(path) = below(&source) {
                found.insert(Writable { service: name.clone(), source, path, target });
            }
        }
    }
    found.into_iter().collect()
}

/// Source and target of a mount of a path, unless it is only read.
fn written(mount: &Value) -> Option<(String, String)> {
    if let Value::String(text) = mount {
        let mut parts = text.split(':');
        let (source, target) = (parts.next()?, parts.next()?);
        let is_read = parts.next_back().is_some_and(|mode| mode.split(',').any(|option| option == "ro"));
        // Without a dot or a slash in front it is the name of a volume.
        return (source.starts_with('.') && !is_read).then(|| (source.to_owned(), target.to_owned()));
    }
    let text = |key: &str| field(mount, key).and_then(Value::as_str);
    let is_read = field(mount, "read_only").and_then(Value::as_bool) == Some(true);
    (text("type") == Some("bind") && !is_read)
        .then(|| Some((text("source")?.to_owned(), text("target")?.to_owned())))?
}

/// A relative path in plain names, as Compose reads it: without looking at links.
fn below(source: &str) -> Option<String> {
    if source.is_empty() || source.starts_with(['/', '~']) || source.contains('$') {
        return None;
    }
    let mut names = Vec::new();
    for part in source.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                names.pop()?;
            }
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mount: &str, expected: &str) {
        let file = format!("services:\n  web:\n    image: a\n    volumes:\n      - {mount}\n");
        let told: Vec<String> = writable(file.as_bytes())
            .into_iter()
            .map(|one| format!("{} at {}", one.path, one.target))
            .collect();
        assert_eq!(told.join(", "), expected, "{mount}");
    }

    #[test]
    fn what_is_beside_the_file_and_written_to_is_found_in_both_forms() {
        for (mount, expected) in [
            ("./data:/rows", "data at /rows"),
            ("./data/:/rows:rw", "data at /rows"),
            (".//a/./b/../c:/rows:z", "a/c at /rows"),
            (".:/all", " at /all"),
            (".hidden:/rows", ".hidden at /rows"),
            ("./data:/rows/${NAME}", "data at /rows/${NAME}"),
            ("{type: bind, source: ./data, target: /rows}", "data at /rows"),
            ("{type: bind, source: data/rows, target: /rows, read_only: false}", "data/rows at /rows"),
            // Only read.
            ("./data:/rows:ro", ""),
            ("./data:/rows:z,ro", ""),
            ("./data:/rows/${NAME:-a}:ro", ""),
            ("{type: bind, source: ./data, target: /rows, read_only: true}", ""),
            // Of the device, of the engine, or not known here.
            ("/srv/data:/rows", ""),
            ("~/data:/rows", ""),
            ("../data:/rows", ""),
            ("./a/../../b:/rows", ""),
            ("data:/rows", ""),
            ("/rows", ""),
            ("./${NAME}:/rows", ""),
            ("{type: volume, source: data, target: /rows}", ""),
            ("{type: bind, source: /srv/data, target: /rows}", ""),
            ("{type: bind, target: /rows}", ""),
            ("{type: tmpfs, target: /rows}", ""),
            ("7", ""),
        ] {
            check(mount, expected);
        }
    }

    #[test]
    fn what_is_merged_counts_and_what_is_no_compose_file_mounts_nothing() {
        let told = writable(b"x-a: &a\n  volumes: [\"./a:/a\"]\nservices:\n  web:\n    <<: *a\n");
        assert_eq!(told.len(), 1);
        for nothing in ["", "[", "services: 7", "services: {a: }", "services: {a: {volumes: x}}"] {
            assert_eq!(writable(nothing.as_bytes()), [], "{nothing}");
        }
    }
}
