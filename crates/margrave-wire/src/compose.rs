//! What the containers of a Compose file take of the device they run on: its ports, and volumes that others may write to, too. And
//! which images they are made of.
//!
//! Owns only that. Whether a Compose file is right is the container engine's business, so whatever is not understood here claims
//! nothing. Nor does what depends on a variable: which port that is, is known on the device.

mod doubts;
mod mounts;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use margrave_core::constraints::{Claims, Port, Protocol};
use margrave_core::image::{Named, in_own_registry};
use serde_json::{Map, Value};

pub use self::doubts::{doubts, variables};
pub use self::mounts::{Writable, writable};
use crate::yaml::{self, YamlError};

/// More than any application publishes. What is beyond is not looked at.
const CLAIMS_MAX: usize = 2_000;
/// A host, a repository, a tag and a digest at their longest.
const IMAGE_LENGTH_MAX: usize = 1024;
/// Host directories that many containers have in common and that are no data of theirs: devices, sockets.
const SHARED: [&str; 5] = ["/dev", "/proc", "/sys", "/run", "/var/run"];

/// What the services that start by themselves claim.
///
/// # Errors
/// When it is no YAML that we read.
pub fn claims(bytes: &[u8]) -> Result<Claims, YamlError> {
    let file = yaml::read(bytes)?.to_value();
    let mut claims = Claims::default();
    let volumes = file.get("volumes");
    let services = file.get("services").and_then(Value::as_object);
    for service in services.into_iter().flat_map(Map::values).filter(|service| starts(service)) {
        for port in field(service, "ports").and_then(Value::as_array).into_iter().flatten() {
            add_ports(port, &mut claims.ports);
        }
        let mounts = field(service, "volumes").and_then(Value::as_array).into_iter().flatten();
        for mount in mounts.take(CLAIMS_MAX) {
            claims.volumes.extend(written(mount, volumes).filter(|_| claims.volumes.len() < CLAIMS_MAX));
        }
    }
    Ok(claims)
}

/// One with a profile starts only when somebody asks for it.
fn starts(service: &Value) -> bool {
    field(service, "profiles").and_then(Value::as_array).is_none_or(Vec::is_empty)
}

/// The images of the services that start by themselves, each once, and how they are named. What is longer than any name is left out,
/// and so is what lies in other files.
///
/// # Errors
/// When it is no YAML that we read.
pub fn images(bytes: &[u8]) -> Result<BTreeMap<String, Named>, YamlError> {
    let file = yaml::read(bytes)?.to_value();
    let mut images = BTreeMap::new();
    let services = file.get("services").and_then(Value::as_object);
    for service in services.into_iter().flat_map(Map::values).filter(|service| starts(service)) {
        let Some(Value::String(image)) = field(service, "image") else { continue };
        if image.is_empty() || image.len() > IMAGE_LENGTH_MAX || image.chars().any(char::is_control) {
            continue;
        }
        let named = if in_own_registry(image).unwrap_or(image).contains('$') {
            Named::ByVariable
        } else if plain(field(service, "pull_policy")).as_deref() == Some("never") {
            Named::OnDevice
        } else if image.contains('@') {
            Named::ByDigest
        } else {
            Named::ByTag
        };
        // Of several services with one image it is enough that one of them has it pulled.
        let known = images.entry(image.clone()).or_insert(named);
        *known = named.min(*known);
    }
    Ok(images)
}

/// Images that are named by a tag, or by nothing: what they are can change after a package was checked. Those that depend on a
/// variable are left out.
pub fn unpinned(bytes: &[u8]) -> Vec<String> {
    let Ok(file) = yaml::read(bytes) else { return Vec::new() };
    let file = file.to_value();
    let services = file.get("services").and_then(Value::as_object);
    let images =
        services.into_iter().flat_map(Map::values).filter_map(|service| plain(field(service, "image")));
    let images: BTreeSet<String> = images.filter(|image| !image.contains("@sha256:")).collect();
    images.into_iter().collect()
}

const TAGS: [&str; 2] = ["!reset", "!override"];

/// What is so wrong with a Compose file that no engine takes it (PK-083): one sentence each. What only an engine can judge is left
/// to it.
pub fn flaws(bytes: &[u8]) -> Vec<String> {
    let file = match yaml::read(bytes) {
        Ok(file) => file.to_value(),
        // Compose has tags of its own, which our reader does not take.
        Err(_) if TAGS.iter().any(|tag| bytes.windows(tag.len()).any(|part| part == tag.as_bytes())) => {
            return vec![];
        }
        Err(YamlError { line, message, .. }) => return vec![format!("line {line}: {message}")],
    };
    if !file.is_object() {
        return vec!["is empty; write what is to run under `services`".to_owned()];
    }
    let services = match file.get("services") {
        // What is included has services of its own.
        None if file.get("include").is_some() => return vec![],
        Some(Value::Object(services)) if !services.is_empty() => services,
        _ => return vec!["names no service; write what is to run under `services`".to_owned()],
    };
    let mut flaws = Vec::new();
    for (name, service) in services {
        let has = |key: &str| field(service, key).is_some();
        if !service.is_object() {
            flaws.push(format!("service {name} says nothing; give it an `image`"));
        } else if !["image", "build", "extends", "provider"].into_iter().any(has) {
            flaws.push(format!("service {name} has no `image`"));
        }
        for port in field(service, "ports").and_then(Value::as_array).into_iter().flatten() {
            let beyond =
                |number: &str| number.parse::<u64>().is_ok_and(|number| number > u64::from(u16::MAX));
            let text = match port {
                Value::Object(port) => plain(port.get("published")).or_else(|| plain(port.get("target"))),
                port => plain(Some(port)),
            };
            let text = text.unwrap_or_default();
            if text.split(['/', ':', '-']).any(beyond) {
                flaws.push(format!("service {name} asks for port {text}; ports go up to {}", u16::MAX));
            }
        }
    }
    flaws
}

/// A member of an object, or of what it takes over with `<<`.
fn field<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get(key).or_else(|| match object.get("<<")? {
        Value::Array(several) => several.iter().find_map(|one| one.get(key)),
        one => one.get(key),
    })
}

/// A scalar as text, unless it depends on a variable.
fn plain(value: Option<&Value>) -> Option<String> {
    let text = match value? {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    (!text.contains('$')).then_some(text)
}

fn add_ports(entry: &Value, ports: &mut BTreeSet<Port>) {
    let read = match entry {
        Value::Object(_) => {
            let protocol = plain(entry.get("protocol")).unwrap_or_default();
            let address = plain(entry.get("host_ip")).unwrap_or_default();
            let target = plain(entry.get("target")).unwrap_or_default();
            plain(entry.get("published"))
                .and_then(|published| published_ports(&address, &published, &target, &protocol))
        }
        entry => plain(Some(entry)).and_then(|text| {
            let (text, protocol) = text.rsplit_once('/').unwrap_or((&text, ""));
            // Without a host's part the engine takes any port that is free.
            let (host, target) = text.rsplit_once(':')?;
            let (address, published) = host.rsplit_once(':').unwrap_or(("", host));
            published_ports(address, published, target, protocol)
        }),
    };
    ports.extend(read.into_iter().flatten().take(CLAIMS_MAX.saturating_sub(ports.len())));
}

fn published_ports(
    address: &str,
    published: &str,
    target: &str,
    protocol: &str,
) -> Option<impl Iterator<Item = Port> + use<>> {
    let protocol = match protocol.to_ascii_lowercase().as_str() {
        "" | "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return None,
    };
    let address = match address.trim_start_matches('[').trim_end_matches(']') {
        "" => None,
        text => Some(text.parse::<IpAddr>().ok()?).filter(|address| !address.is_unspecified()),
    };
    let (first, last) = range(published)?;
    // Of several for one port inside, the engine takes one that is free.
    if first != last && range(target).is_none_or(|(from, to)| to - from != last - first) {
        return None;
    }
    Some((first..=last).map(move |number| Port { number, protocol, address }))
}

fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (0 < first && first <= last).then_some((first, last))
}

/// The volume or host path that a mount writes to, if others can see it, too.
fn written(mount: &Value, volumes: Option<&Value>) -> Option<String> {
    let source = match mount {
        Value::Object(_) => {
            if mount.get("read_only").and_then(Value::as_bool) == Some(true) {
                return None;
            }
            plain(mount.get("source"))?
        }
        mount => {
            let text = plain(Some(mount))?;
            let mut parts = text.split(':');
            // Without a source it is a volume of this container alone.
            let (source, _, mode) =
                (parts.next()?.to_owned(), parts.next()?, parts.next().unwrap_or_default());
            if mode.split(',').any(|option| option == "ro") {
                return None;
            }
            source
        }
    };
    if source.starts_with(['/', '~']) {
        return host_path(&source);
    }
    // A relative path is in the application's own directory.
    if source.is_empty() || source.starts_with('.') {
        return None;
    }
    named(&source, volumes?.get(&source)?)
}

/// The name under which everybody on the device knows a volume; one that belongs to the project has none.
fn named(key: &str, volume: &Value) -> Option<String> {
    let options = field(volume, "driver_opts");
    let device = options.and_then(|options| plain(options.get("device")));
    if let Some(path) = device.filter(|device| device.starts_with('/')) {
        return host_path(&path);
    }
    let name = match (field(volume, "external"), field(volume, "name")) {
        (_, Some(name)) => plain(Some(name))?,
        (Some(Value::Bool(true)), None) => key.to_owned(),
        (Some(external @ Value::Object(_)), None) => match external.get("name") {
            Some(name) => plain(Some(name))?,
            None => key.to_owned(),
        },
        _ => return None,
    };
    (!name.is_empty()).then_some(name)
}

fn host_path(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return None;
    }
    let path = match text.starts_with('/') {
        true => format!("/{}", parts.join("/")),
        false => parts.join("/"),
    };
    let shared = SHARED
        .iter()
        .any(|shared| path.strip_prefix(shared).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    (!shared).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_can_change_are_named() {
        let digest = "a".repeat(64);
        let text = format!(
            "services:\n  a: {{image: 'nginx:1.27'}}\n  b: {{image: nginx}}\n  c: {{image: 'nginx@sha256:{digest}'}}\n  \
             d: {{image: 'nginx:1@sha256:{digest}'}}\n  e: {{image: '${{IMAGE}}'}}\n  f: {{build: .}}\n"
        );
        assert_eq!(unpinned(text.as_bytes()), ["nginx", "nginx:1.27"]);
        assert!(unpinned(b"[").is_empty() && unpinned(b"services: 7").is_empty());
    }

    #[test]
    fn every_image_is_told_once_with_how_it_is_named() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let long = "x".repeat(IMAGE_LENGTH_MAX + 1);
        let text = format!(
            "x-all: &all {{image: 'shared:1'}}\nservices:\n  a: {{image: 'nginx:1.27'}}\n  b: {{image: nginx}}\n  \
             c: {{image: 'nginx@{digest}'}}\n  d: {{image: 'h:5000/a/b:${{TAG}}'}}\n  e: {{image: '${{MARGRAVE_REGISTRY}}/web:1'}}\n  \
             f: {{image: '$MARGRAVE_REGISTRY/web:1'}}\n  g: {{image: '${{MARGRAVE_REGISTRY}}/web:${{TAG:-1}}'}}\n  \
             h: {{image: 'nginx:1.27'}}\n  i: {{image: 'local:1', pull_policy: never}}\n  j: {{build: .}}\n  \
             k: {{image: 'tool:1', profiles: [debug]}}\n  l: {{<<: *all}}\n  m: {{image: 'h:5000/a/b'}}\n  \
             n: {{image: [x]}}\n  o: {{image: ''}}\n  p: {{image: '{long}'}}\n  q: {{image: \"a\\nb\"}}\n  r: {{image: 7}}\n  \
             s: {{image: 'nginx:1.27', pull_policy: never}}\n"
        );
        let told: Vec<(String, Named)> = images(text.as_bytes()).unwrap().into_iter().collect();
        let expected = [
            ("$MARGRAVE_REGISTRY/web:1", Named::ByTag),
            ("${MARGRAVE_REGISTRY}/web:${TAG:-1}", Named::ByVariable),
            ("${MARGRAVE_REGISTRY}/web:1", Named::ByTag),
            ("h:5000/a/b", Named::ByTag),
            ("h:5000/a/b:${TAG}", Named::ByVariable),
            ("local:1", Named::OnDevice),
            ("nginx", Named::ByTag),
            ("nginx:1.27", Named::ByTag),
            (&format!("nginx@{digest}"), Named::ByDigest),
            ("shared:1", Named::ByTag),
        ];
        assert_eq!(told, expected.map(|(name, how)| (name.to_owned(), how)));
        assert!(images(b"[").is_err() && images(b"services: 7").unwrap().is_empty());
    }

    #[test]
    fn pk_083_what_no_engine_takes_is_told() {
        let told = |text: &str| flaws(text.as_bytes()).join("; ");
        for (text, says) in [
            ("services: [", "line "),
            ("", "is empty"),
            ("services: {}", "names no service"),
            ("version: '3'", "names no service"),
            ("services: {web: {imagee: x}}", "service web has no `image`"),
            ("services: {web: }", "service web says nothing"),
            ("services: {web: {image: x, ports: ['99999999:80']}}", "asks for port 99999999:80"),
            ("services: {web: {image: x, ports: [{target: 70000}]}}", "asks for port 70000"),
        ] {
            assert!(told(text).contains(says), "{text}: {}", told(text));
        }
        for right in [
            "services: {web: {image: x, ports: ['127.0.0.1:80:80/udp', '${PORT}:1', 3000-3005, {target: 1}]}}",
            "services: {web: {build: .}, other: {extends: {service: web}}}",
            "include: [other.yaml]",
        ] {
            assert_eq!(told(right), "", "{right}");
        }
    }

    fn check(file: &str, expected: &str) {
        let claims = claims(file.as_bytes()).unwrap();
        let ports = claims.ports.iter().map(ToString::to_string);
        let told: Vec<String> = ports.chain(claims.volumes).collect();
        assert_eq!(told.join(", "), expected, "{file}");
    }

    fn check_port(port: &str, expected: &str) {
        check(&format!("services: {{a: {{ports: [{port}]}}}}"), expected);
    }

    #[test]
    fn ports_of_the_host_are_read_in_every_form_that_compose_has() {
        check_port("8080:80", "8080/tcp");
        check_port("\"22:22\"", "22/tcp");
        check_port("\"53:53/udp\"", "53/udp");
        check_port("\"127.0.0.1:8001:80/TCP\"", "8001/tcp of 127.0.0.1");
        check_port("\"0.0.0.0:8001:80\"", "8001/tcp");
        check_port("\"[::1]:8001:80\"", "8001/tcp of ::1");
        check_port("\"9090-9091:80-81\"", "9090/tcp, 9091/tcp");
        check_port("{target: 80, published: 8080}", "8080/tcp");
        check_port(
            "{target: 80, published: \"8080\", protocol: udp, host_ip: 10.0.0.1}",
            "8080/udp of 10.0.0.1",
        );
        check_port("{target: 80-81, published: 8080-8081}", "8080/tcp, 8081/tcp");
    }

    #[test]
    fn what_the_engine_chooses_or_a_variable_decides_claims_nothing() {
        for port in [
            "80",
            "\"80-82\"",
            "\"127.0.0.1::80\"",
            "\"8000-9000:80\"",
            "{target: 80}",
            "\"${PORT}:80\"",
            "\"${PORT:-8080}:80\"",
            "{target: 80, published: \"$P\"}",
            "\"0:80\"",
            "\"99999:80\"",
            "\"9-8:9-8\"",
            "\"x:80\"",
            "\"1.2.3:80:80\"",
            "\"80:80/x\"",
            "[]",
            "true",
            "null",
            "\":\"",
            "\"\"",
            "\"-:-\"",
        ] {
            check_port(port, "");
        }
    }

    #[test]
    fn volumes_that_others_can_see_count_where_they_are_written_to() {
        let top = "volumes:\n  own: {}\n  bare:\n  ext: {external: true}\n  old: {external: {name: plant}}\n  called: {name: shop}\n  \
                   no: {external: false}\n  var: {name: \"${V}\"}\n  disk: {driver_opts: {type: none, o: bind, device: /srv/disk/}}\n";
        let check_mount = |mount: &str, expected: &str| {
            check(&format!("{top}services:\n  a:\n    volumes:\n      - {mount}\n"), expected);
        };
        for (mount, expected) in [
            ("ext:/data", "ext"),
            ("old:/data", "plant"),
            ("called:/data:rw", "shop"),
            ("disk:/data", "/srv/disk"),
            ("{type: volume, source: ext, target: /x}", "ext"),
            ("/srv//data/:/x", "/srv/data"),
            ("~/data:/x", "~/data"),
            ("{type: bind, source: /srv/data, target: /x}", "/srv/data"),
            ("/running:/x", "/running"),
            // Of the project, of nobody, or only read.
            ("own:/data", ""),
            ("bare:/data", ""),
            ("no:/data", ""),
            ("var:/data", ""),
            ("unknown:/data", ""),
            ("/data", ""),
            ("./conf:/data", ""),
            ("../conf:/data", ""),
            ("/srv/../etc:/data", ""),
            ("ext:/data:ro", ""),
            ("/srv/data:/x:z,ro", ""),
            ("{type: bind, source: /srv/data, target: /x, read_only: true}", ""),
            ("{type: tmpfs, target: /x}", ""),
            ("\"${HOME}/x:/x\"", ""),
            ("/var/run/docker.sock:/var/run/docker.sock", ""),
            ("/dev:/dev", ""),
        ] {
            check_mount(mount, expected);
        }
    }

    #[test]
    fn what_is_merged_counts_and_what_does_not_start_by_itself_does_not() {
        check("x-a: &a\n  ports: [\"80:80\"]\nservices:\n  web:\n    <<: *a\n", "80/tcp");
        check(
            "services: {debug: {profiles: [debug], ports: [\"80:80\"]}, web: {ports: [\"81:80\"]}}",
            "81/tcp",
        );
        for nothing in
            ["", "services:", "services: []", "services: {a: }", "services: {a: {ports: 80, volumes: x}}"]
        {
            check(nothing, "");
        }
        assert!(claims(b"services: [").is_err());
        let many =
            format!("services: {{a: {{ports: [\"1-65535:1-65535\"], volumes: [{}]}}}}", "/a:/b,".repeat(10));
        assert_eq!(claims(many.as_bytes()).unwrap().ports.len(), CLAIMS_MAX);
    }
}
