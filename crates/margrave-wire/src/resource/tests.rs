use margrave_core::id::DeviceRef;
use serde_json::json;

use super::place::Path;
use super::*;

const DEPLOYMENT: &str = r#"apiVersion: margrave/v1
kind: Deployment
metadata:
  name: andon-board
spec:
  package: com-example-andon
  version: 1.2.0
  parameters:
    message: Shift 1
  overrides:
    - targets:
        select: line in (2, 3)
      parameters:
        message: Shift 2
  targets:
    select: site=nord, role!=spare
"#;

#[test]
fn a_resource_is_written_as_it_was_read() {
    let read = read("deployments/andon-board.yaml", DEPLOYMENT.as_bytes()).unwrap();
    let again = super::read("x", &read.resource.write()).unwrap();
    assert_eq!(again.resource, read.resource);
    assert_eq!(read.resource.place().unwrap().to_string(), "deployments/andon-board.yaml");
    let Resource::Deployment(file) = read.resource else { panic!("it is a deployment") };
    assert_eq!(file.spec.targets.select.as_deref(), Some("site=nord, role!=spare"));
    assert_eq!(file.spec.overrides[0].parameters["message"], json!("Shift 2"));
}

#[test]
fn a_broken_file_names_its_line() {
    let check = |text: &str, line: u32, part: &str| {
        let flaws = read_at(&Place::deployment("andon-board").unwrap(), text.as_bytes()).unwrap_err();
        assert_eq!(flaws[0].line, line, "{flaws:?}");
        assert!(flaws[0].to_string().contains(part), "{flaws:?}");
        assert_eq!(flaws[0].file, "deployments/andon-board.yaml");
    };
    check(&DEPLOYMENT.replace("version: 1.2.0", "vresion: 1.2.0"), 7, "vresion");
    check(&DEPLOYMENT.replace("version: 1.2.0", "version: 1.2"), 7, "quotes");
    check(&DEPLOYMENT.replace("name: andon-board", "name: other"), 3, "deployments/other.yaml");
    check(&DEPLOYMENT.replace("kind: Deployment", "kind: Pod"), 2, "Pod");
    check(&DEPLOYMENT.replace("margrave/v1", "v1"), 1, "margrave/v1");
    check("kind: Deployment\n", 1, "apiVersion");
    check("a: [", 1, "");
    check("a: &a [x]\nb: *c\n", 2, "");
}

#[test]
fn paths_and_places_are_one_to_one() {
    for (path, kind) in [
        ("fleet.yaml", Kind::Fleet),
        ("packages/com-example-andon/1.2.0.yaml", Kind::Package),
        ("packages/com-example-andon/1.2.0-rc.1.yaml", Kind::Package),
        ("deployments/andon.yaml", Kind::Deployment),
        ("devices/line-1.yaml", Kind::Device),
        ("devices/gw/child.yaml", Kind::Device),
    ] {
        let Path::Resource(place) = Path::read(path) else { panic!("{path}: {:?}", Path::read(path)) };
        assert_eq!(place.kind(), kind);
        assert_eq!(place.to_string(), path);
    }
    for path in ["README.md", ".gitignore", ".gitlab-ci.yaml", "docs/a.txt", "deployments/notes.md"] {
        assert_eq!(Path::read(path), Path::Other, "{path}");
    }
    for path in [
        "deployment/a.yaml",
        "x.yaml",
        "deployments/a.yml",
        "packages/a.yaml",
        "deployments/%61.yaml",
        "deployments/.yaml",
        "devices/a b.yaml",
        "deployments/a/b.yaml",
    ] {
        assert!(matches!(Path::read(path), Path::Astray(_)), "{path}: {:?}", Path::read(path));
    }
    for odd in ["client:other", ".git", "gw/.git"] {
        let odd = Place::Device(DeviceRef::parse(odd).unwrap());
        assert_eq!(Path::read(&odd.to_string()), Path::Resource(odd.clone()), "{odd}");
        assert!(!odd.to_string().contains("/."), "{odd}");
    }
}

#[test]
fn every_kind_has_a_schema_that_stands_alone() {
    fn references(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(members) => {
                for (key, value) in members {
                    match value {
                        serde_json::Value::String(text) if key == "$ref" => found.push(text.clone()),
                        value => references(value, found),
                    }
                }
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    for kind in Kind::ALL {
        let schema = schema(kind);
        let mut found = Vec::new();
        references(&schema, &mut found);
        for reference in &found {
            let name = reference.strip_prefix("#/$defs/").expect("a reference stays inside");
            assert!(schema["$defs"].get(name).is_some(), "{kind}: {name} is missing");
        }
        assert_eq!(schema["properties"]["kind"]["const"], json!(kind.as_str()));
        assert_eq!(schema["properties"]["apiVersion"]["const"], json!(API_VERSION));
    }
}
