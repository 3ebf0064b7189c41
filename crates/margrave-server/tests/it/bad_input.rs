//! Bad input, pushed by the ordinary client: each is told with its place, and nothing of it is done.
//!
//! The whole list, with the test of each, is in `docs/testing.md`; here are those that a push can bring, and that the list is true.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::intent::{address, deployment, entries, main, objects, plant, refused, write};

#[tokio::test]
async fn bad_files_are_refused_with_their_place_and_nothing_of_a_push_is_done() {
    let Some((plant, device, client, url)) = plant().await else { return };
    let tree = client.clone(&url, "tree", &[]).await;
    write(&client, &tree, "deployments/gate.yaml", &deployment("ann")).await;
    client.git(&tree, &["push", "-q", "origin", "main"]).await;
    let good = main(&plant).await;
    let (objects_before, entries_before) = (objects(&plant), entries(&plant, &device).await);

    let targets = |targets: &str| deployment("bob").replace("devices: [press.42]", targets).into_bytes();
    let mut laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for n in 1..10 {
        laughs.push_str(&format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(", ")));
    }
    let gate = "deployments/gate.yaml";
    let cases: Vec<(&str, &str, Vec<u8>, &str)> = vec![
        ("conflicting targets", gate, targets("select: site=nord, site=sued"), "deployments/gate.yaml:12: "),
        ("a target that is not there", gate, targets("devices: [nobody]"), "there is no device nobody"),
        ("an empty selector", gate, targets("select: ''"), "name at least one device, or labels"),
        (
            "a selector that excludes itself",
            gate,
            targets("select: site, !site"),
            "deployments/gate.yaml:12: ",
        ),
        (
            "an unknown package",
            gate,
            deployment("bob").replace("package: gate", "package: door").into_bytes(),
            "door 1.0.0 is not in the catalog",
        ),
        ("a YAML bomb", gate, laughs.into_bytes(), "too much"),
        ("an alias to what does not exist", gate, b"a: *nobody\n".to_vec(), "deployments/gate.yaml:1: "),
        ("an alias to itself", gate, b"a: &a [*a]\n".to_vec(), "deployments/gate.yaml:1: "),
        ("bytes that are no UTF-8", gate, b"apiVersion: margrave/v1\nkind: \xff\xfe\n".to_vec(), "UTF-8"),
        ("a file that is nobody's", "deploy/gate.yaml", b"x: 1\n".to_vec(), "nobody looks here"),
    ];
    for (what, file, bytes, told) in cases {
        // Beside something good, which is not done either.
        std::fs::create_dir_all(tree.join(file).parent().unwrap()).unwrap();
        std::fs::write(tree.join(file), bytes).unwrap();
        let beside = "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: press.42\nspec:\n  labels: {line: '7'}\n";
        write(&client, &tree, "devices/press.42.yaml", beside).await;
        let said = refused(&client, &tree, &["main"]).await;
        assert!(said.contains(told), "{what}: {said}");
        assert!(said.contains("cannot be applied"), "{what}: {said}");
        assert_eq!(main(&plant).await, good, "{what}");
        assert_eq!(objects(&plant), objects_before, "{what}");
        assert_eq!(entries(&plant, &device).await, entries_before, "{what}");
        let shown = plant.server.fleet().device(&"press.42".parse().unwrap()).await.unwrap();
        assert!(shown.labels.is_empty(), "{what}: {:?}", shown.labels);
        client.git(&tree, &["reset", "-q", "--hard", &good]).await;
    }
    // A name that is no text.
    let name = OsStr::from_bytes(b"deployments/\xff\xfe.yaml");
    std::fs::write(tree.join(Path::new(name)), "x").unwrap();
    client.git(&tree, &["add", "-A"]).await;
    client.git(&tree, &["commit", "-q", "-m", "A name that is no text"]).await;
    let said = refused(&client, &tree, &["main"]).await;
    assert!(said.contains("a path is UTF-8; rename it"), "{said}");
    assert_eq!((main(&plant).await, objects(&plant)), (good, objects_before));
}

#[tokio::test]
async fn who_may_only_look_clones_and_does_not_push() {
    let Some((plant, _, client, _)) = plant().await else { return };
    let viewer = plant.operator_token("eve", "viewer").await;
    let tree = client.clone(&address(&plant, &viewer.secret), "tree", &[]).await;
    let before = main(&plant).await;
    write(&client, &tree, "deployments/gate.yaml", &deployment("eve")).await;
    let said = refused(&client, &tree, &["main"]).await;
    assert!(said.contains("403"), "{said}");
    assert_eq!(main(&plant).await, before);
}

/// The list in the docs names a test for each, and each is there.
#[test]
fn every_bad_input_of_the_list_has_its_test() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let page = std::fs::read_to_string(root.join("docs/testing.md")).unwrap();
    let (_, list) = page.split_once("## Bad input\n").expect("there is the list");
    let rows: Vec<&str> = list
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(rows.len(), 12, "one row for each");
    for row in rows {
        let tests: Vec<(&str, &str)> =
            row.split('`').skip(1).step_by(2).filter_map(|code| code.split_once("::")).collect();
        assert!(!tests.is_empty(), "{row}");
        for (file, test) in tests {
            let text = std::fs::read_to_string(root.join("crates").join(file))
                .unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(text.contains(&format!("fn {test}(")), "{test} is not in {file}");
        }
    }
}
