//! A command whose answer cannot be written says so; one whose reader had seen enough ends without a word.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Gives this answer to everybody who connects, as a running agent would.
fn answer(socket: &Path, answer: &'static str, reads: bool) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if reads {
                let mut asked = [0; 1024];
                assert!(stream.read(&mut asked).unwrap() > 0);
            }
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
}

const STATUS: &str = r#"{"device": "line-1", "server": "https://server", "form": "g2", "certificateExpires": "later",
    "running": true, "manifestVersion": 7, "reportsWaiting": 0, "deployments": []}"#;

const COMMANDS: [&[&str]; 6] = [
    &["status"],
    &["status", "--json"],
    &["hold", "--reason", "batch 17", "--for", "2h"],
    &["hold", "--reason", "batch 17", "--for", "2h", "--json"],
    &["release"],
    &["release", "--json"],
];

fn run(data: &Path, arguments: &[&str], stdout: Stdio) -> Output {
    Command::new(env!("CARGO_BIN_EXE_margrave-agent"))
        .args(arguments)
        .arg("--data")
        .arg(data)
        .stdout(stdout)
        .stderr(Stdio::piped())
        .output()
        .unwrap()
}

fn agent() -> tempfile::TempDir {
    let data = tempfile::tempdir().unwrap();
    answer(&data.path().join("agent.sock"), STATUS, false);
    let held = r#"{"until": "2026-11-18T18:00:00Z", "released": 1}"#;
    answer(&data.path().join("control.sock"), held, true);
    data
}

#[test]
fn an_answer_that_cannot_be_written_is_trouble_and_no_panic() {
    let data = agent();
    for arguments in COMMANDS {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = run(data.path(), arguments, full.into());
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {words}");
        assert!(
            words.starts_with("margrave-agent: the output cannot be written: No space left"),
            "{arguments:?}: {words}"
        );
    }
}

#[test]
fn a_reader_who_left_is_no_trouble() {
    let data = agent();
    for arguments in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = run(data.path(), arguments, writer.into());
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), words.as_ref()), (Some(0), ""), "{arguments:?}");
    }
}
