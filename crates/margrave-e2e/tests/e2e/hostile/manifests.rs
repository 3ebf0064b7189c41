//! What a server may tell a device: a real agent against a scripted server that holds a real identity.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, TrustDomain, WfmId};
use margrave_core::identity::ServerName;
use margrave_core::manifest::{Blob, Entry, Manifest};
use margrave_core::moment::Moment;
use margrave_identity::authority::Authority;
use margrave_identity::bundle::Bundle;
use margrave_identity::csr::Csr;
use margrave_identity::live::{LiveBundle, LiveSvid, LiveWebLeaf};
use margrave_identity::tls::{device_server_config, web_server_config};
use margrave_identity::web::WebAuthority;
use margrave_wire::identity::{JOIN_PATH, JoinRequest, JoinResponse};
use margrave_wire::{bundle, g2};
use rustls::ServerConfig;
use serde_json::Value;

use crate::local_registry::Registry;
use crate::stage::{Running, installed, program, skip, wait_for};
use crate::vendor::{COMPOSE, Item, Vendor, archive};

const LIFETIME: Duration = Duration::from_secs(3600);
const ONE: &str = "00000000-0000-4000-8000-000000000001";
const TWO: &str = "00000000-0000-4000-8000-000000000002";
const THREE: &str = "00000000-0000-4000-8000-000000000003";

fn now() -> Moment {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    Moment(u64::try_from(since.as_millis()).expect("before the end of time"))
}

/// What the server answers, by path; everything else is 404.
#[derive(Default)]
struct Script {
    answers: HashMap<String, Reply>,
    /// Reports and capabilities that came, as `METHOD path`.
    heard: Vec<String>,
}

#[derive(Clone)]
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Reply {
    fn of(body: Vec<u8>) -> Self {
        Reply { status: 200, headers: vec![], body }
    }
}

/// A server that says what the test wants it to say.
struct Liar {
    script: Arc<Mutex<Script>>,
    url: String,
    pin: String,
    directory: tempfile::TempDir,
}

impl Liar {
    fn start() -> Self {
        let script = Arc::new(Mutex::new(Script::default()));
        let domain: TrustDomain = "liar.example".parse().expect("a domain");
        let wfm: WfmId = "scripted".parse().expect("an id");
        let authority = Arc::new(Authority::create(domain.clone(), now()).expect("an authority"));
        let trust = Bundle::of_anchor(domain.clone(), authority.anchor(), 1, LIFETIME);
        let svid = authority.issue_server(&wfm, now(), LIFETIME).expect("an SVID");
        let devices = device_server_config(LiveSvid::new(svid), LiveBundle::new(trust.clone()));
        let answering = script.clone();
        let device_port = listen(devices, move |method, path, _| {
            let mut script = answering.lock().unwrap_or_else(PoisonError::into_inner);
            if method == "PUT" || method == "POST" {
                script.heard.push(format!("{method} {path}"));
                return Reply { status: 201, headers: vec![], body: vec![] };
            }
            let missing = Reply { status: 404, headers: vec![], body: b"{}".to_vec() };
            script.answers.get(path).cloned().unwrap_or(missing)
        });

        let web = WebAuthority::create(now()).expect("an authority");
        let leaf = web.issue(&["127.0.0.1".to_owned()], now(), LIFETIME).expect("a certificate");
        let server = ServerName { trust_domain: domain, wfm };
        let web_port = listen(web_server_config(LiveWebLeaf::new(leaf)), move |_, path, body| {
            assert_eq!(path, JOIN_PATH);
            let request: JoinRequest = serde_json::from_slice(body).expect("an agent's request");
            let csr = Csr::from_pem(&request.csr).expect("an agent's key");
            let client: margrave_core::id::ClientId = "line-1".parse().expect("an id");
            let name = server.client(client.clone());
            let issued = authority
                .issue_client(&name.server.wfm, &name.client, &csr, now(), LIFETIME)
                .expect("an SVID");
            let response = JoinResponse {
                client_id: client,
                certificates: issued.pem(),
                trust_bundle: trust.to_wire(),
                trust_bundle_uri: None,
                device_url: format!("https://127.0.0.1:{device_port}"),
                registry: None,
                web_authority: None,
            };
            Reply::of(serde_json::to_vec(&response).expect("plain data"))
        });
        Liar {
            script,
            url: format!("https://127.0.0.1:{web_port}"),
            pin: web.pin().to_string(),
            directory: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    fn join(&self) {
        let joined = Command::new(program("margrave-agent"))
            .args(["join", &self.url, "--token", "any", "--pin", &self.pin, "--data"])
            .arg(self.directory.path().join("line-1"))
            .output()
            .expect("our own program starts");
        assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    }

    fn run_agent(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(program("margrave-agent"));
        command.args(["run", "--poll", "200ms", "--wait", "0s", "--data"]);
        command.arg(self.directory.path().join("line-1")).args(arguments);
        Running::start("line-1", self.directory.path(), &mut command)
    }

    fn status(&self) -> Value {
        let output = Command::new(program("margrave-agent"))
            .args(["status", "--json", "--data"])
            .arg(self.directory.path().join("line-1"))
            .output()
            .expect("our own program starts");
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    fn say(&self, story: &Story) {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        script.answers = story.answers.clone();
    }

    fn heard(&self) -> Vec<String> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).heard.clone()
    }
}

/// Everything that a server says at one time.
#[derive(Clone, Default)]
struct Story {
    answers: HashMap<String, Reply>,
}

const MANIFEST: &str = "/api/v1/deployments";

impl Story {
    /// An honest manifest of these documents.
    fn honest(version: u64, documents: &[(&str, &str)]) -> Self {
        let mut story = Story::default();
        let mut entries = vec![];
        let mut content: Vec<(AssignmentId, &[u8])> = vec![];
        for (id, text) in documents {
            let id: AssignmentId = AssignmentId::parse(id).expect("an id");
            let digest = Digest::of(text.as_bytes());
            entries.push(Entry { id, document: Blob { digest, size: None } });
            content.push((id, text.as_bytes()));
            story.put(&g2::manifest::document_path(id, &digest), text.as_bytes().to_vec());
        }
        let archive = bundle::write(&content);
        let blob = Blob { digest: Digest::of(&archive), size: None };
        story.put(&g2::manifest::bundle_path(&blob.digest), archive);
        let blob = (!entries.is_empty()).then_some(blob);
        let manifest = Manifest::new(version, blob, entries).expect("an honest manifest");
        story.put(MANIFEST, g2::manifest::write(&manifest));
        story
    }

    fn put(&mut self, path: &str, body: Vec<u8>) {
        self.answers.insert(path.to_owned(), Reply::of(body));
    }

    fn manifest(&self) -> String {
        String::from_utf8(self.answers[MANIFEST].body.clone()).expect("a manifest is text")
    }

    /// With another manifest over the same documents.
    fn retold(mut self, change: impl FnOnce(String) -> String) -> Self {
        let manifest = change(self.manifest());
        self.put(MANIFEST, manifest.into_bytes());
        self
    }

    /// With other bytes behind every path of this kind.
    fn spoiled(mut self, kind: &str, bytes: &[u8]) -> Self {
        for (path, reply) in &mut self.answers {
            if path.contains(kind) {
                reply.body = bytes.to_vec();
            }
        }
        self
    }

    /// Whose bundle, rightly named by its digest, holds these documents instead.
    fn bundled(mut self, documents: &[(&str, &str)]) -> Self {
        let content: Vec<(AssignmentId, &[u8])> = documents
            .iter()
            .map(|(id, text)| (AssignmentId::parse(id).expect("an id"), text.as_bytes()))
            .collect();
        let archive = bundle::write(&content);
        let old = self.answers.keys().find(|path| path.contains("/bundles/")).expect("a bundle").clone();
        let old_digest = old.rsplit('/').next().expect("a path").to_owned();
        let digest = Digest::of(&archive).to_string();
        self.answers.remove(&old);
        self.put(&old.replace(&old_digest, &digest), archive);
        self.retold(|manifest| manifest.replace(&old_digest, &digest))
    }
}

/// A document that installs one component.
fn document(id: &str, name: &str, greeting: &str) -> String {
    format!(
        "id: {id}\nmetadata:\n  name: {name}\n  namespace: margrave\n  deviceId: line-1\nspec:\n  applicationId: hello\n  deploymentProfile:\n    type: compose\n    components:\n      - name: main\n        properties:\n          repository: oci://registry.invalid/hello/main\n          revision: 1.0.0\n  parameters:\n    greeting:\n      value: {greeting}\n      targets:\n        - pointer: GREETING\n          components: [main]\n"
    )
}

#[test]
fn mi_g2_080_a_device_keeps_what_it_has_whatever_a_server_says_and_says_why() {
    let liar = Liar::start();
    liar.join();
    let (one, two, three) =
        (document(ONE, "one", "hello"), document(TWO, "two", "hello"), document(THREE, "three", "hello"));
    let held = Story::honest(5, &[(ONE, &one)]);
    liar.say(&held);
    let agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("version 5 is installed", || {
        let status = liar.status();
        (status["manifestVersion"] == 5 && status["deployments"][0]["state"] == "INSTALLED").then_some(())
    });
    let before = liar.status()["deployments"].clone();
    let more = [(ONE, one.as_str()), (TWO, &two), (THREE, &three)];
    let next = Story::honest(6, &more);
    let digest_of_two = Digest::of(two.as_bytes()).to_string();
    let etag = |tag: String| {
        let mut story = next.clone();
        let reply = story.answers.get_mut(MANIFEST).expect("a manifest");
        reply.headers.push(("ETag", format!("\"{tag}\"")));
        story
    };
    let huge = next.clone().retold(|manifest| format!("{}{}", " ".repeat(9 << 20), manifest));
    let lies: Vec<(&str, Story, &str)> = vec![
        ("an older version", Story::honest(4, &[(ONE, &one)]), "older"),
        ("an older version without anything", Story::honest(4, &[]), "older"),
        (
            "the same version with other content",
            Story::honest(5, &[(ONE, &one), (TWO, &two)]),
            "other content",
        ),
        ("the same version without anything", Story::honest(5, &[]), "other content"),
        (
            "a document that is another",
            Story::honest(6, &[(ONE, &one), (TWO, &two)]).spoiled(&format!("{TWO}/"), three.as_bytes()),
            "digest",
        ),
        ("a bundle that is another", next.clone().spoiled("/bundles/", b"nonsense"), "digest"),
        (
            "a bundle with a document too many",
            next.clone().bundled(&[(ONE, &one), (TWO, &two), (THREE, &three), (TWO, "id: extra")]),
            "does not list",
        ),
        ("a bundle with a document too few", next.clone().bundled(&more[..2]), "lacks"),
        ("a bundle of other documents", next.clone().bundled(&[(ONE, "id: other")]), "does not list"),
        (
            "a digest nobody knows",
            next.clone()
                .retold(|manifest| manifest.replace(&digest_of_two, &format!("sha512:{}", "0".repeat(128)))),
            "digest",
        ),
        (
            "a version of zero",
            next.clone().retold(|manifest| manifest.replace(":6}", ":0}")),
            "manifestVersion",
        ),
        (
            "a version below zero",
            next.clone().retold(|manifest| manifest.replace(":6}", ":-6}")),
            "manifestVersion",
        ),
        (
            "a version with a fraction",
            next.clone().retold(|manifest| manifest.replace(":6}", ":6.5}")),
            "manifestVersion",
        ),
        ("a deployment twice", next.clone().retold(|manifest| manifest.replace(TWO, ONE)), "deployments"),
        (
            "an id that leads elsewhere",
            next.clone().retold(|manifest| manifest.replace(&format!("\"{TWO}\""), "\"../../etc\"")),
            "deploymentId",
        ),
        (
            "an address elsewhere",
            next.clone().retold(|manifest| manifest.replace("\"/api/v1/", "\"https://evil.example/api/v1/")),
            "url",
        ),
        (
            "half a manifest",
            next.clone().retold(|manifest| manifest[..manifest.len() / 2].to_owned()),
            "manifest",
        ),
        ("a manifest of brackets", next.clone().retold(|_| "[".repeat(200_000)), "manifest"),
        ("a manifest of megabytes", huge, "larger"),
        ("an ETag of something else", etag(Digest::of(b"something else").to_string()), "ETag"),
        ("nothing at all", Story::default(), "404"),
    ];
    for (what, lie, words) in &lies {
        liar.say(lie);
        wait_for(&format!("the device speaks of {words} after {what}"), || {
            let trouble = liar.status()["trouble"].as_str().unwrap_or_default().to_owned();
            trouble.contains(words).then_some(())
        });
        let status = liar.status();
        assert_eq!(status["manifestVersion"], 5, "after {what}");
        assert_eq!(status["deployments"], before, "after {what}");
        // The truth again, so that the next lie is judged for itself.
        liar.say(&held);
        wait_for(&format!("the device is calm again after {what}"), || {
            liar.status()["trouble"].is_null().then_some(())
        });
    }
    drop(agent);

    // A lie is not believed after a restart either, and what is honest still arrives.
    liar.say(&Story::honest(4, &[]));
    let agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("the device remembers after a restart", || {
        liar.status()["trouble"].as_str().is_some_and(|trouble| trouble.contains("older")).then_some(())
    });
    assert_eq!(liar.status()["deployments"], before);
    liar.say(&next);
    wait_for("version 6 is installed", || {
        let status = liar.status();
        let deployments = status["deployments"].as_array().cloned().unwrap_or_default();
        let all = deployments.len() == 3 && deployments.iter().all(|one| one["state"] == "INSTALLED");
        (all && status["manifestVersion"] == 6).then_some(())
    });
    assert!(liar.heard().iter().any(|heard| heard == &format!("POST {MANIFEST}/{ONE}/status")));
    drop(agent);
}

#[test]
fn a_document_that_makes_no_sense_fails_alone() {
    let liar = Liar::start();
    liar.join();
    let one = document(ONE, "one", "hello");
    let bomb = format!(
        "a: &a [x, x, x, x]\n{}",
        (0..30).fold(String::new(), |text, n| {
            let (from, to) = (if n == 0 { "a".to_owned() } else { format!("a{}", n - 1) }, format!("a{n}"));
            format!("{text}b{n}: &{to} [*{from}, *{from}, *{from}, *{from}, *{from}, *{from}]\n")
        })
    );
    liar.say(&Story::honest(1, &[(ONE, &one), (TWO, "id: [not, a, document"), (THREE, &bomb)]));
    let _agent = liar.run_agent(&["--runtime", "simulated"]);
    let status = wait_for("each document is judged for itself", || {
        let status = liar.status();
        let state = |id: &str| {
            let deployments = status["deployments"].as_array()?;
            deployments.iter().find(|one| one["id"] == id)?["state"].as_str().map(str::to_owned)
        };
        let judged = state(ONE)? == "INSTALLED" && state(TWO)? == "FAILED" && state(THREE)? == "FAILED";
        judged.then(|| status.clone())
    });
    let failed = status["deployments"].as_array().expect("deployments");
    for one in failed.iter().filter(|one| one["state"] == "FAILED") {
        assert!(one["code"].is_string() && one["reason"].is_string(), "{one}");
    }
}

#[test]
fn pk_095_a_device_that_is_given_a_bad_archive_says_so_and_starts_nothing() {
    let Some(engine) = std::env::var("MARGRAVE_TEST_DOCKER_HOST").ok().filter(|host| !host.is_empty()) else {
        return skip("MARGRAVE_TEST_DOCKER_HOST names no Docker engine");
    };
    let (Some(docker), Some(registry)) = (installed("docker"), Registry::start()) else { return };
    let vendor = Vendor::of_registry(registry.port);
    // No server of ours lets these through; another's might.
    let bad = [
        (ONE, "up", archive(&[COMPOSE, Item::File("main/../../../climbed", b"x")])),
        (TWO, "out", archive(&[COMPOSE, Item::Symlink("main/x", "/etc")])),
        (THREE, "pipe", archive(&[COMPOSE, Item::Fifo("main/x")])),
    ];
    let documents: Vec<(&str, String)> = bad
        .iter()
        .map(|(id, name, archive)| {
            vendor.push_component(name, "1.0.0", archive);
            let text = document(id, name, "hello");
            (*id, text.replace("oci://registry.invalid/hello/main", &vendor.repository(name)))
        })
        .collect();
    let documents: Vec<(&str, &str)> = documents.iter().map(|(id, text)| (*id, text.as_str())).collect();
    let liar = Liar::start();
    liar.join();
    liar.say(&Story::honest(1, &documents));
    let agent = liar.run_agent(&["--runtime", "compose", "--engine", &engine]);
    let status = wait_for("all three are refused", || {
        let status = liar.status();
        let deployments = status["deployments"].as_array()?;
        let refused =
            deployments.len() == 3 && deployments.iter().all(|one| one["code"] == "archive-invalid");
        refused.then(|| status.clone())
    });
    for (at, rule) in ["PK-093", "PK-090", "PK-097"].iter().enumerate() {
        let one = &status["deployments"][at];
        assert_eq!(one["state"], "FAILED", "{one}");
        assert!(one["reason"].as_str().is_some_and(|reason| reason.contains(rule)), "{one}");
    }
    for (id, ..) in &bad {
        let project = format!("name=mg-{}", id.replace('-', ""));
        let listed = Command::new(&docker)
            .args(["-H", &engine, "ps", "--all", "--quiet", "--filter", &project])
            .output()
            .expect("docker starts");
        assert!(listed.status.success() && listed.stdout.is_empty(), "{listed:?}");
    }
    drop(agent);
    let mut folders = vec![liar.directory.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a directory can be read").flatten() {
            assert_ne!(entry.file_name(), "climbed", "{}", entry.path().display());
            if entry.file_type().expect("a kind").is_dir() {
                folders.push(entry.path());
            }
        }
    }
}

/// Serves HTTP/1.1, one request per connection, on threads that end with the test.
fn listen(
    tls: Arc<ServerConfig>,
    answer: impl Fn(&str, &str, &[u8]) -> Reply + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let port = listener.local_addr().expect("a bound socket").port();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), tls, answer) = (stream, tls.clone(), answer.clone()) else { continue };
            // An agent that goes away in the middle is part of the play.
            std::thread::spawn(move || drop(serve(stream, tls, &*answer)));
        }
    });
    port
}

fn serve(
    stream: TcpStream,
    tls: Arc<ServerConfig>,
    answer: &dyn Fn(&str, &str, &[u8]) -> Reply,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let connection = rustls::ServerConnection::new(tls).map_err(std::io::Error::other)?;
    let mut stream = rustls::StreamOwned::new(connection, stream);
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => bytes.extend(&buffer[..count]),
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    while bytes.len() < head + length.unwrap_or(0) {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => bytes.extend(&buffer[..count]),
        }
    }
    let mut words = text.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let reply = answer(method, path, &bytes[head..]);
    let mut head = format!(
        "HTTP/1.1 {} Scripted\r\nConnection: close\r\nContent-Length: {}\r\n",
        reply.status,
        reply.body.len()
    );
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    stream.write_all(&reply.body)?;
    stream.conn.send_close_notify();
    stream.flush()
}
