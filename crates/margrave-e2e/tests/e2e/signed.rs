//! The signed device interface (g1), used by a client that shares no code with us (`signed_client.py`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::stage::{PRETENDED, Stage, free_port, installed, skip};

/// A foreign device with a key of some kind, in a directory of its own.
struct Foreign {
    python: PathBuf,
    directory: PathBuf,
    url: String,
}

impl Foreign {
    /// `None` after saying aloud what is missing here.
    fn make(stage: &Stage, name: &str, kind: &str, url: &str) -> Option<Foreign> {
        let python = installed("python3")?;
        let known = Command::new(&python)
            .args(["-c", "import cryptography, http_message_signatures"])
            .env("PYTHONPATH", packages())
            .output()
            .expect("python starts");
        if !known.status.success() {
            skip("Python's cryptography and http-message-signatures are missing; scripts/rig installs them");
            return None;
        }
        let foreign = Foreign { python, directory: stage.path(name), url: url.to_owned() };
        foreign.run("make", &[kind]);
        Some(foreign)
    }

    fn run(&self, verb: &str, arguments: &[&str]) -> Value {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/signed_client.py");
        let output = Command::new(&self.python)
            .arg(script)
            .arg(&self.directory)
            .arg(verb)
            .args(arguments)
            .env("PYTHONPATH", packages())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .expect("python starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{verb}: {said}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{verb}: {error}"))
    }

    fn ask(&self, verb: &str, arguments: &[&str]) -> Value {
        let url = self.url.clone();
        let arguments: Vec<&str> = std::iter::once(url.as_str()).chain(arguments.iter().copied()).collect();
        self.run(verb, &arguments)
    }

    fn certificate(&self) -> String {
        self.directory.join("certificate.pem").to_str().expect("a plain path").to_owned()
    }
}

/// Where `scripts/rig install` put Python packages for tests; without it, what Python finds by itself must do.
fn packages() -> OsString {
    std::env::var_os("MARGRAVE_TEST_PYTHON").unwrap_or_default()
}

fn serve(arguments: &[&str]) -> (Stage, String) {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let mut all = vec!["--signed-listen", listen.as_str()];
    all.extend(arguments);
    (Stage::start_with(&all), format!("https://{listen}"))
}

#[test]
fn a_foreign_device_onboards_runs_and_reports_by_signed_requests() {
    let (mut stage, url) = serve(&[]);
    let Some(foreign) = Foreign::make(&stage, "foreign", "p256", &url) else { return };
    foreign.ask("root", &[]);

    // It waits until somebody looked at the fingerprint (MI-G1-031, AMB-04).
    let asked = foreign.ask("onboard", &["base64-der"]);
    assert_eq!((asked["status"].as_u64(), asked["error"].as_str()), (Some(403), Some("Client rejected")));
    let waiting = stage.json(&["device", "list", "--waiting"]);
    let fingerprint = waiting[0]["fingerprint"].as_str().expect("somebody waits").to_owned();
    assert_eq!(fingerprint, foreign.run("fingerprint", &[])["fingerprint"]);
    assert_eq!(waiting[0]["subject"], "CN=foreign p256 device");
    stage.json(&["device", "accept", &fingerprint[..8]]);
    let accepted = foreign.ask("onboard", &["base64-pem"]);
    assert_eq!(accepted["status"], 201, "{accepted}");
    assert_eq!(accepted["client"], waiting[0]["client"]);

    // Its own name is what people type.
    assert_eq!(foreign.ask("capabilities", &["press-7"])["status"], 201);
    assert_eq!(stage.json(&["device", "show", "press-7"])["form"], "g1");
    stage.add_package("hello", "1.0.0", &[("web", PRETENDED)]);
    let deploy = stage.margrave(&["deploy", "hello", "--to", "press-7"]);
    assert!(deploy.status.success(), "{}", String::from_utf8_lossy(&deploy.stderr));

    let synced = foreign.ask("sync", &[]);
    assert_eq!(synced["status"], 200);
    let document = synced["documents"].as_object().expect("documents").values().next().expect("one");
    let document = document.as_str().expect("a text");
    assert!(document.contains("annotations:") && document.contains("applicationId"), "{document}");
    assert_eq!(foreign.ask("sync", &[])["status"], 304);

    // Killed between what it was given and what it says about it: its report still counts for that version.
    stage.server().kill();
    stage.start_server();
    assert_eq!(foreign.ask("report", &["installed"])["statuses"], serde_json::json!([200]));
    let state = stage.wait_state("press-7", "hello", "INSTALLED");
    assert_eq!(state["version"], "1.0.0");
    assert_eq!(foreign.ask("report", &["installed"])["statuses"], serde_json::json!([200]));

    // Out means out, with the next request.
    stage.json(&["device", "retire", "press-7", "--yes"]);
    assert_eq!(foreign.ask("onboard", &["pem"])["status"], 403);
}

#[test]
fn keys_of_every_kind_are_taken_and_a_certificate_can_be_brought_before() {
    let (stage, url) = serve(&[]);
    for (kind, encoding) in [("ed25519", "pem"), ("rsa", "base64-pem"), ("p256", "base64-der")] {
        let Some(foreign) = Foreign::make(&stage, kind, kind, &url) else { return };
        foreign.ask("root", &[]);
        let brought = stage.json(&["device", "accept", "--certificate", &foreign.certificate()]);
        assert_eq!(brought["decision"], "accepted");
        let onboarded = foreign.ask("onboard", &[encoding]);
        assert_eq!((&onboarded["status"], &onboarded["client"]), (&201.into(), &brought["client"]), "{kind}");
        assert_eq!(foreign.ask("capabilities", &[&format!("dev-{kind}")])["status"], 201, "{kind}");
        assert_eq!(foreign.ask("sync", &[])["version"], 1, "{kind}");
    }
    let names = stage.json(&["device", "list"]);
    let names: Vec<&str> =
        names.as_array().expect("a list").iter().filter_map(|d| d["id"].as_str()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("dev-")), "{names:?}");
}
