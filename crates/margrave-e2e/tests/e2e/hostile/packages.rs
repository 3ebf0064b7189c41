//! What may be in a package: descriptions that are bombs, archives that climb out of their directory.

use std::path::Path;
use std::process::Output;

use super::Plant;
use crate::stage::PRETENDED;
use crate::vendor::{COMPOSE, Item, Vendor, archive, description, gzip};

/// A command that says no, in words, and not by breaking.
fn refused(what: &str, output: &Output) -> String {
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        matches!(output.status.code(), Some(1 | 2)),
        "{what} ended with {:?}: {said}",
        output.status.code()
    );
    assert!(!said.contains("panicked"), "{what}: {said}");
    assert!((10..20_000).contains(&said.len()), "{what} was refused with {} bytes of words", said.len());
    said
}

#[test]
fn a_description_that_is_wrong_or_a_bomb_is_refused_before_anything_is_pushed() {
    let plant = Plant::start();
    let good = description("thing", "1.0.0", "oci://margrave/thing/main", "1.0.0");
    let laughs =
        (0..12).fold("x0: &x0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned(), |text, n| {
            let aliases = vec![format!("*x{n}"); 9].join(", ");
            format!("{text}x{}: &x{} [{aliases}]\n", n + 1, n + 1)
        });
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("an empty file", vec![], ""),
        ("no YAML", b"\t: : [".to_vec(), ""),
        ("a list", b"- 1\n- 2\n".to_vec(), ""),
        ("bytes that are no text", b"apiVersion: \xff\xfe\n".to_vec(), "UTF-8"),
        ("a billion laughs", format!("{laughs}{good}").into_bytes(), ""),
        ("brackets without end", b"[".repeat(500_000), ""),
        ("braces without end", b"{a: ".repeat(200_000), ""),
        ("deep indentation", (0..3_000).map(|n| format!("{}a:\n", " ".repeat(n))).collect::<String>().into_bytes(), ""),
        ("a key twice", good.replace("id: thing\n", "id: thing\nid: other\n").into_bytes(), "id"),
        ("two documents", format!("{good}---\n{good}").into_bytes(), ""),
        ("two megabytes", format!("{good}#{}\n", "x".repeat(2 << 20)).into_bytes(), ""),
        ("an unknown apiVersion", good.replace("apiVersion: v1", "apiVersion: v99").into_bytes(), "apiVersion"),
        ("an id that climbs", good.replace("id: thing\n", "id: ../../thing\n").into_bytes(), "id"),
        ("a version that is a list", good.replace("version: \"1.0.0\"", "version: [1]").into_bytes(), "version"),
        ("a version that is no tag", good.replace("version: \"1.0.0\"", "version: \"1 0/0\"").into_bytes(), "version"),
        ("an unknown profile", good.replace("type: compose", "type: teleport").into_bytes(), "teleport"),
        ("no components", good.split("    components:").next().unwrap_or_default().into(), "components"),
        ("a revision that climbs", good.replace("revision: 1.0.0", "revision: ../../x").into_bytes(), "revision"),
        ("a repository elsewhere", good.replace("oci://margrave/thing/main", "file:///etc").into_bytes(), "repository"),
        ("a duration of sideways", good.replace("timeout: 1m0s", "timeout: sideways").into_bytes(), "timeout"),
        (
            "a component twice",
            good.replace(
                "    components:\n",
                "    components:\n      - name: main\n        properties:\n          repository: oci://margrave/thing/main\n          revision: 1.0.0\n",
            )
            .into_bytes(),
            "main",
        ),
    ];
    for (number, (what, text, word)) in cases.iter().enumerate() {
        let root = plant.stage.path(&format!("bad-{number}"));
        folder(&root, text);
        let path = root.to_str().expect("a plain path");
        let said = refused(what, &plant.stage.margrave(&["package", "check", path]));
        assert!(said.contains(word), "{what}: {said}");
        refused(what, &plant.stage.margrave(&["package", "add", path]));
    }
    // The folder itself was good.
    let root = plant.stage.path("good");
    folder(&root, good.as_bytes());
    let output = plant.stage.margrave(&["package", "check", root.to_str().expect("a plain path")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    // Things beside the description that lead elsewhere.
    std::os::unix::fs::symlink("/etc/passwd", root.join("components/main/passwd")).expect("a link");
    let path = root.to_str().expect("a plain path");
    refused("a link out of the component", &plant.stage.margrave(&["package", "add", path]));
    std::fs::remove_file(root.join("components/main/passwd")).expect("the link goes");
    std::fs::rename(
        root.join("components/main/compose.yaml"),
        root.join("components/main/docker-compose.yml"),
    )
    .expect("the file moves");
    let said = refused("another name for the Compose file", &plant.stage.margrave(&["package", "add", path]));
    assert!(said.contains("compose.yaml"), "{said}");
    plant.assert_unharmed();
}

fn folder(root: &Path, description: &[u8]) {
    std::fs::create_dir_all(root.join("components/main")).expect("the stage's directory is writable");
    std::fs::write(root.join("components/main/compose.yaml"), PRETENDED).expect("the same");
    std::fs::write(root.join("margo.yaml"), description).expect("the same");
}

#[test]
fn pk_095_archives_that_no_device_may_unpack_are_refused_by_the_server_already() {
    let plant = Plant::start();
    let vendor = Vendor::of_server(plant.stage.local, &plant.token);
    let zeros = vec![0; 257 << 20];
    let bomb = archive(&[COMPOSE, Item::File("main/zeros", &zeros)]);
    drop(zeros);
    assert!(bomb.len() < 2 << 20, "the bomb is small while it is packed");
    let many: Vec<String> = (0..10_001).map(|n| format!("main/{n}")).collect();
    let mut many: Vec<Item<'_>> = many.iter().map(|path| Item::File(path, b"")).collect();
    many.push(COMPOSE);
    let good = archive(&[COMPOSE]);
    let mut trailing = good.clone();
    trailing.extend(b"more");
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("dots in a name", archive(&[COMPOSE, Item::File("main/../../../etc/cron.d/x", b"x")]), "PK-093"),
        ("an absolute name", archive(&[COMPOSE, Item::File("/etc/cron.d/x", b"x")]), "PK-092"),
        ("a link out", archive(&[COMPOSE, Item::Symlink("main/x", "../../etc/passwd")]), "PK-090"),
        ("an absolute link", archive(&[COMPOSE, Item::Symlink("main/x", "/etc/passwd")]), "PK-090"),
        ("a hard link out", archive(&[COMPOSE, Item::HardLink("main/x", "../../etc/passwd")]), "PK-091"),
        (
            "a file behind a link",
            archive(&[COMPOSE, Item::Symlink("main/x", "."), Item::File("main/x/y", b"y")]),
            "below",
        ),
        (
            "a link through a link",
            archive(&[COMPOSE, Item::Symlink("main/x", "."), Item::Symlink("main/y", "x/../../etc")]),
            "link",
        ),
        ("a pipe", archive(&[COMPOSE, Item::Fifo("main/x")]), "PK-097"),
        ("the same file twice", archive(&[COMPOSE, COMPOSE]), "twice"),
        ("two directories", archive(&[COMPOSE, Item::File("other/x", b"x")]), "PK-080"),
        ("no Compose file", archive(&[Item::File("main/compose.yml", b"services: {}")]), "PK-082"),
        ("nothing", archive(&[]), "PK-080"),
        ("no tar", gzip(b"this is no tar"), "PK-080"),
        ("no gzip", b"this is no gzip".to_vec(), "PK-080"),
        ("half of it", good[..good.len() / 2].to_vec(), "PK-080"),
        ("something behind the end", trailing, "PK-080"),
        ("a bomb", bomb, "more than"),
        ("too many files", archive(&many), "PK-087"),
    ];
    for (number, (what, archive, rule)) in cases.iter().enumerate() {
        let (id, component) = (format!("bad-{number}"), format!("bad-{number}/main"));
        vendor.push_component(&component, "1.0.0", archive);
        let text = description(&id, "1.0.0", &vendor.repository(&component), "1.0.0");
        vendor.push_package(&format!("packages/{id}"), "1.0.0", &text);
        let reference = format!("{}:1.0.0", vendor.repository(&format!("packages/{id}")));
        let said = refused(what, &plant.stage.margrave(&["package", "add", &reference]));
        assert!(said.contains(rule), "{what}: {said}");
        assert!(said.contains("component main"), "{what}: {said}");
    }
    plant.assert_unharmed();
}

#[test]
fn pk_053_a_tag_that_is_moved_after_the_package_was_added_changes_nothing() {
    let plant = Plant::start();
    let vendor = Vendor::of_server(plant.stage.local, &plant.token);
    let checked = vendor.push_component("moved/main", "1.0.0", &archive(&[COMPOSE]));
    let text = description("moved", "1.0.0", &vendor.repository("moved/main"), "1.0.0");
    vendor.push_package("packages/moved", "1.0.0", &text);
    let reference = format!("{}:1.0.0", vendor.repository("packages/moved"));
    plant.stage.json(&["package", "add", &reference]);
    let bad =
        vendor.push_component("moved/main", "1.0.0", &archive(&[COMPOSE, Item::Symlink("main/x", "/etc")]));
    assert_ne!(bad, checked);
    let shown = plant.stage.json(&["package", "show", "moved"]).to_string();
    assert!(shown.contains(&checked.to_string()) && !shown.contains(&bad.to_string()), "{shown}");
    // The same package again is the same package, or a refusal; never a quiet change of what it means.
    let again = plant.stage.margrave(&["package", "add", &reference]);
    refused("a package whose component was moved", &again);
    let shown = plant.stage.json(&["package", "show", "moved"]).to_string();
    assert!(shown.contains(&checked.to_string()) && !shown.contains(&bad.to_string()), "{shown}");
    plant.stage.json(&["package", "remove", "moved@1.0.0"]);
    plant.assert_unharmed();
}
