//! Packages that lie in somebody else's registry: Debian's, plain HTTP on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{Running, Stage, free_port, installed, wait_for};
use crate::vendor::{COMPOSE, Item, Vendor, archive, description};

/// Debian's registry on a port of its own.
pub(crate) struct Registry {
    pub(crate) port: u16,
    program: PathBuf,
    process: Running,
    directory: tempfile::TempDir,
}

impl Registry {
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(|_| String::new())
    }

    /// With more in its configuration; what belongs under `http:` comes first, indented.
    pub(crate) fn start_with(more: impl FnOnce(&Path) -> String) -> Option<Self> {
        let program = installed("docker-registry")?;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let port = free_port();
        let configuration = directory.path().join("registry.yaml");
        let storage = directory.path().join("storage");
        let text = format!(
            "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n{}",
            storage.display(),
            more(directory.path())
        );
        std::fs::write(&configuration, text).expect("the directory is writable");
        let process = Self::run(&program, directory.path(), port);
        Some(Registry { port, program, process, directory })
    }

    fn run(program: &Path, directory: &Path, port: u16) -> Running {
        let mut command = Command::new(program);
        command.arg("serve").arg(directory.join("registry.yaml"));
        let process = Running::start("registry", directory, &mut command);
        wait_for("the registry listens", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        process
    }

    pub(crate) fn stop(&mut self) {
        self.process.kill();
    }

    pub(crate) fn start_again(&mut self) {
        self.process = Self::run(&self.program, self.directory.path(), self.port);
    }

    /// Takes a version out, as the registry's own garbage collection would.
    pub(crate) fn lose(&self, repository: &str, tag: &str, digest: &str) {
        let manifests = self
            .directory
            .path()
            .join("storage/docker/registry/v2/repositories")
            .join(repository)
            .join("_manifests");
        let revision = manifests.join("revisions").join(digest.replace(':', "/"));
        for path in [manifests.join("tags").join(tag), revision] {
            std::fs::remove_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

#[test]
fn a_package_of_another_registry_is_pulled_checked_pinned_and_deployed() {
    let Some(mut registry) = Registry::start() else { return };
    let vendor = Vendor::of_registry(registry.port);
    let stage = Stage::start();
    stage.join("line-1");
    let _agent = stage.simulated("line-1", "10ms");

    let component = vendor.push_component("plant/hello/main", "1.0.0", &archive(&[COMPOSE]));
    let text = description("hello", "1.0.0", &vendor.repository("plant/hello/main"), "1.0.0");
    let package = vendor.push_package("plant/hello", "1.0.0", &text);
    let reference = format!("{}:1.0.0", vendor.repository("plant/hello"));
    stage.json(&["package", "add", &reference]);
    let shown = stage.json(&["package", "show", "hello"]).to_string();
    assert!(shown.contains(&format!("{}@{package}", vendor.repository("plant/hello"))), "{shown}");
    assert!(shown.contains(&component.to_string()), "{shown}");

    // Whoever moves a tag afterwards changes nothing here (PK-053).
    let moved = vendor.push_component(
        "plant/hello/main",
        "1.0.0",
        &archive(&[COMPOSE, Item::Directory("main/more")]),
    );
    assert_ne!(moved, component);
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
    let documents =
        std::fs::read_dir(stage.path("line-1/documents")).expect("the device keeps its documents");
    let pinned = documents.flatten().any(|file| {
        let text = read_tree(&file.path());
        text.contains(&component.to_string()) && !text.contains(&moved.to_string())
    });
    assert!(pinned, "the device's document does not name the digest that was checked");

    // A tag that is not the version it holds.
    vendor.push_package("plant/hello", "2.0.0", &text);
    let refused = |reference: &str| {
        let output = stage.margrave(&["package", "add", reference]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{reference} was added: {said}");
        said
    };
    let said = refused(&format!("{}:2.0.0", vendor.repository("plant/hello")));
    assert!(said.contains("the tag 2.0.0 holds version 1.0.0"), "{said}");
    // The same by its digest is the same package.
    stage.json(&["package", "add", &format!("{}@{package}", vendor.repository("plant/hello"))]);

    let said = refused(&format!("{}:9.9.9", vendor.repository("plant/hello")));
    assert!(said.contains("is not in the registry"), "{said}");
    let text = description("lonely", "1.0.0", &vendor.repository("plant/nowhere"), "1.0.0");
    vendor.push_package("plant/lonely", "1.0.0", &text);
    let said = refused(&format!("{}:1.0.0", vendor.repository("plant/lonely")));
    assert!(said.contains("component main of profile lonely-compose"), "{said}");
    vendor.push_component("plant/bad/main", "1.0.0", &archive(&[COMPOSE, Item::File("main/../../x", b"x")]));
    let text = description("bad", "1.0.0", &vendor.repository("plant/bad/main"), "1.0.0");
    vendor.push_package("plant/bad", "1.0.0", &text);
    let said = refused(&format!("{}:1.0.0", vendor.repository("plant/bad")));
    assert!(said.contains("PK-093"), "{said}");

    registry.stop();
    let said = refused(&reference.replace("1.0.0", "3.0.0"));
    assert!(said.contains(&format!("127.0.0.1:{}", registry.port)) && said.contains("reached"), "{said}");
    assert!(!said.contains("internal"), "{said}");
    // What was added does not need its registry any more to be shown and deployed.
    stage.json(&["deployment", "update", "hello"]);
    assert_eq!(stage.json(&["package", "list"]).as_array().map(Vec::len), Some(1));
    stage.wait_state("line-1", "hello", "INSTALLED");
}

/// The text of a file, or of all files below a directory.
fn read_tree(path: &std::path::Path) -> String {
    if path.is_dir() {
        let files = std::fs::read_dir(path).expect("a directory can be read").flatten();
        return files.map(|file| read_tree(&file.path())).collect();
    }
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
