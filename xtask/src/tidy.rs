//! Rules about the repository itself, as ordinary tests.

use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_owned()
}

/// Every file of ours with one of these endings.
pub(crate) fn files(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = vec![];
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the workspace can be listed") {
            let path = entry.expect("the workspace can be listed").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() {
                if name != "target" && name != ".git" {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let text = std::fs::read_to_string(&path).expect("our own files are text");
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 10, "the workspace was not found");
    found
}

#[test]
fn the_core_reads_no_clock_file_socket_or_dice() {
    let forbidden =
        ["std::fs", "std::net", "SystemTime", "Instant::now", "std::env", "std::process", "rand::", "tokio"];
    for (path, text) in files(&[".rs"]) {
        if !path.starts_with(root().join("crates/margrave-core/src")) {
            continue;
        }
        for word in forbidden {
            assert!(!text.contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn the_agent_never_depends_on_the_servers_crates() {
    let text = std::fs::read_to_string(root().join("crates/margrave-agent/Cargo.toml"))
        .expect("the agent's manifest");
    let (dependencies, _) = text.split_once("[dev-dependencies]").unwrap_or((&text, ""));
    for name in ["margrave-server", "margrave-store", "margrave-registry", "margrave-device-api"] {
        assert!(!dependencies.contains(name), "the agent depends on {name}");
    }
}

#[test]
fn no_file_has_grown_a_second_noun() {
    for (path, text) in files(&[".rs"]) {
        let lines = text.lines().count();
        assert!(lines <= 900, "{} has {lines} lines: what is its second noun?", path.display());
    }
}

#[test]
fn nothing_is_left_undone_or_skipped_in_silence() {
    // Written in two halves, so that this file does not find itself.
    let forbidden = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[ig", "nore"),
        concat!("FIX", "ME"),
    ];
    for (path, text) in files(&[".rs"]) {
        for word in forbidden {
            assert!(!text.contains(word), "{} contains {word}", path.display());
        }
    }
}

#[test]
fn every_failure_code_has_a_section_that_says_what_to_do() {
    let text = std::fs::read_to_string(root().join("docs/failures.md")).expect("docs/failures.md");
    for code in margrave_core::report::FAILURE_CODES {
        let section = text.split("\n## ").find(|section| section.starts_with(&format!("{code}\n")));
        let section = section.unwrap_or_else(|| panic!("docs/failures.md has no section {code}"));
        assert!(
            section.contains("**Do:**") && section.contains("**Tried again:**"),
            "{code} does not say what to do"
        );
    }
}

#[test]
fn every_cause_is_documented_with_what_to_do() {
    let text = std::fs::read_to_string(root().join("docs/why.md")).expect("docs/why.md");
    let mut rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    for code in margrave_core::why::Code::all() {
        let (needs, meaning, next) = (code.needs().as_str(), code.meaning(), code.next());
        let row = format!("| `{code}` | {needs} | {meaning} | {next} |");
        let at = rows.iter().position(|line| *line == row);
        rows.swap_remove(at.unwrap_or_else(|| panic!("docs/why.md has no row {row}")));
    }
    assert!(rows.is_empty(), "docs/why.md has codes that nobody tells: {rows:?}");
}

#[test]
fn every_file_that_the_architecture_names_exists() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let crates = root().join("crates");
    let paths: Vec<PathBuf> = files(&[".rs", ".toml", ".md"]).into_iter().map(|(path, _)| path).collect();
    // Every odd piece between backticks is code; those that end like files must be the end of one.
    let named = text.split('`').skip(1).step_by(2).filter(|piece| !piece.contains(['\n', ' ']));
    for name in
        named.filter(|piece| piece.ends_with(".rs") || piece.ends_with(".toml") || piece.ends_with(".md"))
    {
        assert!(
            paths.iter().any(|path| path.ends_with(name)),
            "ARCHITECTURE.md names {name}, which is nowhere"
        );
    }
    let listed = std::fs::read_dir(&crates).expect("the crates can be listed");
    for entry in listed {
        let name = entry.expect("the crates can be listed").file_name();
        let name = name.to_str().expect("plain names");
        assert!(text.contains(&format!("`{name}`")), "ARCHITECTURE.md does not mention {name}");
    }
}
