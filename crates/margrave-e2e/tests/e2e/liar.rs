//! A server that says what a test wants it to say: real TLS, a real identity, scripted answers.
//!
//! Speaks HTTP/1.1 byte by byte, because a decent server library refuses to misbehave. It is its own identity
//! authority, and has a page-like listener for joining, discovery and bundles.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, TrustDomain, WfmId};
use margrave_core::manifest::{Blob, Entry, Manifest};
use margrave_core::moment::Moment;
use margrave_identity::authority::Authority;
use margrave_identity::bundle::Bundle;
use margrave_identity::csr::Csr;
use margrave_identity::key::PrivateKey;
use margrave_identity::live::{LiveBundle, LiveSvid, LiveWebLeaf};
use margrave_identity::tls::{device_server_config, web_server_config};
use margrave_identity::web::WebAuthority;
use margrave_wire::identity::{JOIN_PATH, JoinRequest, JoinResponse};
use margrave_wire::{bundle, g2};
use rustls::ServerConfig;
use serde_json::Value;

use crate::stage::{Running, program};

pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);
pub(crate) const ONE: &str = "00000000-0000-4000-8000-000000000001";
pub(crate) const TWO: &str = "00000000-0000-4000-8000-000000000002";
pub(crate) const THREE: &str = "00000000-0000-4000-8000-000000000003";
pub(crate) const MANIFEST: &str = "/api/v1/deployments";
/// Short polls: nothing is held open, and the next one comes soon.
pub(crate) const EAGER: [&str; 4] = ["--poll", "200ms", "--wait", "0s"];

pub(crate) fn now() -> Moment {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    Moment(u64::try_from(since.as_millis()).expect("before the end of time"))
}

/// What came in.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) method: String,
    pub(crate) path: String,
    /// The whole head, as it came.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Which connection it came over, from 1.
    pub(crate) connection: usize,
    pub(crate) at: Instant,
}

impl Heard {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// How the body of an answer goes over the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    Whole,
    /// The length is announced, and the line is cut after so many bytes.
    CutAfter(usize),
    /// No length, and no end.
    Endless,
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) delivery: Delivery,
}

impl Reply {
    pub(crate) fn of(body: impl Into<Vec<u8>>) -> Self {
        Reply { status: 200, headers: vec![], body: body.into(), delivery: Delivery::Whole }
    }

    pub(crate) fn status(status: u16) -> Self {
        Reply { status, ..Reply::of(b"".to_vec()) }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn delivered(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }
}

type Twist = Box<dyn FnMut(&Heard, Option<Reply>) -> Option<Reply> + Send>;

/// What the server answers, by path; everything else is 404.
#[derive(Default)]
struct Script {
    answers: HashMap<String, Reply>,
    /// Has the last word about every answer.
    twist: Option<Twist>,
    heard: Vec<Heard>,
}

impl Script {
    fn answer(&mut self, heard: Heard) -> Reply {
        let mut reply = match heard.method.as_str() {
            "PUT" | "POST" => Some(Reply::status(201)),
            _ => self.answers.get(&heard.path).cloned(),
        };
        if let Some(twist) = &mut self.twist {
            reply = twist(&heard, reply);
        }
        self.heard.push(heard);
        reply.unwrap_or_else(|| Reply { status: 404, ..Reply::of("{}") })
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server, usually of trust domain `liar.example`, and one device of it.
pub(crate) struct Liar {
    devices: Arc<Mutex<Script>>,
    web: Arc<Mutex<Script>>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) svid: Arc<LiveSvid>,
    /// What the server itself verifies devices with.
    pub(crate) trust: Arc<LiveBundle>,
    pub(crate) wfm: WfmId,
    /// The device interface.
    pub(crate) url: String,
    /// The page: joining, discovery, bundle.
    pub(crate) web_url: String,
    pub(crate) pin: String,
    pub(crate) web_authority: String,
    directory: tempfile::TempDir,
}

impl Liar {
    pub(crate) fn start() -> Self {
        Self::start_in("liar.example")
    }

    /// One of another trust domain.
    pub(crate) fn start_in(domain: &str) -> Self {
        let domain: TrustDomain = domain.parse().expect("a domain");
        let wfm: WfmId = "scripted".parse().expect("an id");
        let authority = Arc::new(Authority::create(domain.clone(), now()).expect("an authority"));
        let trust = Bundle::of_anchor(domain, authority.anchor(), 1, LIFETIME);
        let svid = LiveSvid::new(authority.issue_server(&wfm, now(), LIFETIME).expect("an SVID"));
        let trust = LiveBundle::new(trust);
        let devices = Arc::new(Mutex::new(Script::default()));
        let device_port = listen(device_server_config(svid.clone(), trust.clone()), devices.clone());

        let page = WebAuthority::create(now()).expect("an authority");
        let leaf = page.issue(&["127.0.0.1".to_owned()], now(), LIFETIME).expect("a certificate");
        let web = Arc::new(Mutex::new(Script::default()));
        let web_port = listen(web_server_config(LiveWebLeaf::new(leaf)), web.clone());
        let liar = Liar {
            devices,
            web,
            authority,
            svid,
            trust,
            wfm,
            url: format!("https://127.0.0.1:{device_port}"),
            web_url: format!("https://127.0.0.1:{web_port}"),
            pin: page.pin().to_string(),
            web_authority: page.certificate_pem(),
            directory: tempfile::tempdir().expect("a temporary directory"),
        };
        liar.accept_joins();
        liar
    }

    /// Issues to whoever asks, as a server of ours would.
    fn accept_joins(&self) {
        let (authority, wfm, url) = (self.authority.clone(), self.wfm.clone(), self.url.clone());
        let trust = self.trust.current().to_wire();
        self.twist_web(move |heard, reply| {
            if heard.path != JOIN_PATH {
                return reply;
            }
            let request: JoinRequest = serde_json::from_slice(&heard.body).expect("an agent's request");
            let csr = Csr::from_pem(&request.csr).expect("an agent's key");
            let client: ClientId = "line-1".parse().expect("an id");
            let issued = authority.issue_client(&wfm, &client, &csr, now(), LIFETIME).expect("an SVID");
            let response = JoinResponse {
                client_id: client,
                certificates: issued.pem(),
                trust_bundle: trust.clone(),
                trust_bundle_uri: None,
                device_url: url.clone(),
                registry: None,
                web_authority: None,
            };
            Some(Reply::of(serde_json::to_vec(&response).expect("plain data")))
        });
    }

    /// Another listener with the same answers, by somebody else of the same authority.
    pub(crate) fn listener_of(&self, wfm: &str) -> String {
        let wfm: WfmId = wfm.parse().expect("an id");
        let svid = LiveSvid::new(self.authority.issue_server(&wfm, now(), LIFETIME).expect("an SVID"));
        let client = self.trust.clone();
        let port = listen(device_server_config(svid, client), self.devices.clone());
        format!("https://127.0.0.1:{port}")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("the test's directory is writable");
        path
    }

    /// Writes `svid.pem` and `key.pem` for device `line-1`, as an operator would install them.
    pub(crate) fn issue(&self, issued: Moment, lifetime: Duration) {
        let key = PrivateKey::generate().expect("a key");
        let csr = Csr::make(&key).expect("a request");
        let client: ClientId = "line-1".parse().expect("an id");
        let svid = self.authority.issue_client(&self.wfm, &client, &csr, issued, lifetime).expect("an SVID");
        self.replace("key.pem", key.to_pem());
        self.replace("svid.pem", svid.pem().concat());
    }

    /// As careful operators replace files.
    pub(crate) fn replace(&self, name: &str, content: impl AsRef<[u8]>) {
        let part = self.write(&format!("{name}.new"), content);
        std::fs::rename(part, self.path(name)).expect("the test's directory is writable");
    }

    pub(crate) fn bundle_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.trust.current().to_wire()).expect("plain data")
    }

    /// Joins with installed files, with these arguments besides.
    pub(crate) fn install_with(&self, url: &str, arguments: &[&str]) -> Output {
        Command::new(program("margrave-agent"))
            .args(["join", url, "--svid"])
            .arg(self.path("svid.pem"))
            .arg("--key")
            .arg(self.path("key.pem"))
            .args(arguments)
            .arg("--data")
            .arg(self.path("line-1"))
            .output()
            .expect("our own program starts")
    }

    /// Joins with files that are valid for an hour and a bundle that is a file too.
    pub(crate) fn install(&self) {
        self.issue(now(), LIFETIME);
        let bundle = self.write("bundle.json", self.bundle_json());
        let joined = self.install_with(&self.url, &["--bundle", text(&bundle)]);
        assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    }

    /// Joins with a token, as a device of ours.
    pub(crate) fn join(&self) {
        let joined = Command::new(program("margrave-agent"))
            .args(["join", &self.web_url, "--token", "any", "--pin", &self.pin, "--data"])
            .arg(self.path("line-1"))
            .output()
            .expect("our own program starts");
        assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    }

    /// A device that polls all the time, with a runtime that only pretends.
    pub(crate) fn run_agent(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(program("margrave-agent"));
        command.arg("run").args(EAGER).args(arguments).arg("--data").arg(self.path("line-1"));
        Running::start("line-1", self.directory.path(), &mut command)
    }

    pub(crate) fn status(&self) -> Value {
        let output = Command::new(program("margrave-agent"))
            .args(["status", "--json", "--data"])
            .arg(self.path("line-1"))
            .output()
            .expect("our own program starts");
        let mut status: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        // What the last look saw comes and goes with looks, whatever a server says.
        for deployment in status["deployments"].as_array_mut().into_iter().flatten() {
            deployment.as_object_mut().expect("an object").remove("seen");
        }
        status
    }

    /// The trouble that the agent speaks of, or nothing.
    pub(crate) fn trouble(&self) -> String {
        self.status()["trouble"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn is_installed(&self, version: u64) -> bool {
        let status = self.status();
        let deployments = status["deployments"].as_array().cloned().unwrap_or_default();
        status["manifestVersion"] == version
            && !deployments.is_empty()
            && deployments.iter().all(|one| one["state"] == "INSTALLED")
    }

    pub(crate) fn say(&self, story: &Story) {
        held(&self.devices).answers = story.answers.clone();
    }

    /// Lets `twist` change every answer of the device interface.
    pub(crate) fn twist(&self, twist: impl FnMut(&Heard, Option<Reply>) -> Option<Reply> + Send + 'static) {
        held(&self.devices).twist = Some(Box::new(twist));
    }

    pub(crate) fn straighten(&self) {
        held(&self.devices).twist = None;
    }

    pub(crate) fn twist_web(
        &self,
        twist: impl FnMut(&Heard, Option<Reply>) -> Option<Reply> + Send + 'static,
    ) {
        held(&self.web).twist = Some(Box::new(twist));
    }

    pub(crate) fn heard(&self) -> Vec<Heard> {
        held(&self.devices).heard.clone()
    }

    pub(crate) fn heard_web(&self) -> Vec<Heard> {
        held(&self.web).heard.clone()
    }

    /// Forgets what was heard so far, and says how much it was.
    pub(crate) fn forget(&self) -> usize {
        std::mem::take(&mut held(&self.devices).heard).len()
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Everything that a server says at one time.
#[derive(Clone, Default)]
pub(crate) struct Story {
    pub(crate) answers: HashMap<String, Reply>,
}

impl Story {
    /// An honest manifest of these documents.
    pub(crate) fn honest(version: u64, documents: &[(&str, &str)]) -> Self {
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

    pub(crate) fn put(&mut self, path: &str, body: Vec<u8>) {
        self.answers.insert(path.to_owned(), Reply::of(body));
    }

    pub(crate) fn manifest(&self) -> String {
        String::from_utf8(self.answers[MANIFEST].body.clone()).expect("a manifest is text")
    }

    /// With another manifest over the same documents.
    pub(crate) fn retold(mut self, change: impl FnOnce(String) -> String) -> Self {
        let manifest = change(self.manifest());
        self.put(MANIFEST, manifest.into_bytes());
        self
    }

    /// With other bytes behind every path of this kind.
    pub(crate) fn spoiled(mut self, kind: &str, bytes: &[u8]) -> Self {
        for (path, reply) in &mut self.answers {
            if path.contains(kind) {
                reply.body = bytes.to_vec();
            }
        }
        self
    }

    /// With every answer of this kind changed.
    pub(crate) fn changed(mut self, kind: &str, change: impl Fn(Reply) -> Reply) -> Self {
        for (path, reply) in &mut self.answers {
            if path.contains(kind) {
                *reply = change(reply.clone());
            }
        }
        self
    }

    /// Whose bundle, rightly named by its digest, holds these documents instead.
    pub(crate) fn bundled(self, documents: &[(&str, &str)]) -> Self {
        let content: Vec<(AssignmentId, &[u8])> = documents
            .iter()
            .map(|(id, text)| (AssignmentId::parse(id).expect("an id"), text.as_bytes()))
            .collect();
        self.archived(bundle::write(&content))
    }

    /// Whose bundle, rightly named by its digest, is this archive.
    pub(crate) fn archived(mut self, archive: Vec<u8>) -> Self {
        let old = self.answers.keys().find(|path| path.contains("/bundles/")).expect("a bundle").clone();
        let old_digest = old.rsplit('/').next().expect("a path").to_owned();
        let digest = Digest::of(&archive).to_string();
        self.answers.remove(&old);
        self.put(&old.replace(&old_digest, &digest), archive);
        self.retold(|manifest| manifest.replace(&old_digest, &digest))
    }

    /// The same, under a prefix.
    pub(crate) fn under(self, prefix: &str) -> Self {
        let answers =
            self.answers.into_iter().map(|(path, reply)| (format!("{prefix}{path}"), reply)).collect();
        Story { answers }
    }
}

/// A document that installs one component.
pub(crate) fn document(id: &str, name: &str, greeting: &str) -> String {
    format!(
        "id: {id}\nmetadata:\n  name: {name}\n  namespace: margrave\n  deviceId: line-1\nspec:\n  applicationId: hello\n  deploymentProfile:\n    type: compose\n    components:\n      - name: main\n        properties:\n          repository: oci://registry.invalid/hello/main\n          revision: 1.0.0\n  parameters:\n    greeting:\n      value: {greeting}\n      targets:\n        - pointer: GREETING\n          components: [main]\n"
    )
}

/// Serves HTTP/1.1 on threads that end with the test.
fn listen(tls: Arc<ServerConfig>, script: Arc<Mutex<Script>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let port = listener.local_addr().expect("a bound socket").port();
    let connections = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), tls, script) = (stream, tls.clone(), script.clone()) else { continue };
            let connections = connections.clone();
            // An agent that goes away in the middle is part of the play.
            std::thread::spawn(move || drop(serve(stream, tls, &script, &connections)));
        }
    });
    port
}

fn serve(
    stream: TcpStream,
    tls: Arc<ServerConfig>,
    script: &Mutex<Script>,
    connections: &AtomicUsize,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_nodelay(true)?;
    let connection = rustls::ServerConnection::new(tls).map_err(std::io::Error::other)?;
    let mut stream = rustls::StreamOwned::new(connection, stream);
    let mut bytes = Vec::new();
    let mut number = 0;
    while let Some((head, body)) = read_request(&mut stream, &mut bytes)? {
        if number == 0 {
            number = connections.fetch_add(1, Ordering::SeqCst) + 1;
        }
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let heard = Heard {
            method: method.to_owned(),
            path: path.to_owned(),
            body,
            connection: number,
            at: Instant::now(),
            head: head.clone(),
        };
        let reply = held(script).answer(heard);
        if !write_reply(&mut stream, &reply)? {
            break;
        }
    }
    stream.conn.send_close_notify();
    stream.flush()
}

fn read_request(stream: &mut impl Read, bytes: &mut Vec<u8>) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let mut buffer = [0; 16 * 1024];
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            count => bytes.extend(&buffer[..count]),
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let end = head + length.unwrap_or(0);
    while bytes.len() < end {
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            count => bytes.extend(&buffer[..count]),
        }
    }
    let body = bytes[head..end].to_vec();
    bytes.drain(..end);
    Ok(Some((text, body)))
}

/// Says whether the connection may be used for another request.
fn write_reply(stream: &mut impl Write, reply: &Reply) -> std::io::Result<bool> {
    let mut head = format!("HTTP/1.1 {} Scripted\r\n", reply.status);
    match reply.delivery {
        _ if reply.status == 304 => {}
        Delivery::Endless => head.push_str("Transfer-Encoding: chunked\r\n"),
        Delivery::Whole | Delivery::CutAfter(_) => {
            head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
        }
    }
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    match reply.delivery {
        Delivery::Whole => {
            stream.write_all(&reply.body)?;
            stream.flush()?;
            Ok(true)
        }
        Delivery::CutAfter(count) => {
            stream.write_all(&reply.body[..count.min(reply.body.len())])?;
            stream.flush()?;
            Ok(false)
        }
        Delivery::Endless => {
            let piece = vec![b' '; 64 << 10];
            // Ends when the agent has had enough and hangs up.
            loop {
                stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
                stream.write_all(&piece)?;
                stream.write_all(b"\r\n")?;
                stream.flush()?;
            }
        }
    }
}
