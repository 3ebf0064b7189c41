//! A real agent at servers of the signed generation, each with its own ideas.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId};
use margrave_core::manifest::{Blob, Entry, Manifest};
use margrave_identity::key::PrivateKey;
use margrave_identity::message::ClientCertificate;
use margrave_wire::g1::{self, onboarding};
use margrave_wire::signature::{self, ExternalUrl, Message};
use serde_json::{Value, json};

use crate::liar::{Heard, Liar, ONE, Reply, TWO, now, text};
use crate::stage::{program, wait_for};

const CLIENT: &str = "6f0c1a52-7d0f-4f5e-9a41-4a8f6f0a1c17";
const SIMULATED: [&str; 2] = ["--runtime", "simulated"];

/// A document in the shape of that time.
fn older(id: &str, name: &str) -> String {
    format!(
        "apiVersion: application.margo.org/v1alpha1\nkind: ApplicationDeployment\nmetadata:\n  annotations:\n    applicationId: hello\n    id: {id}\n  name: {name}\n  namespace: margrave\nspec:\n  deploymentProfile:\n    type: compose\n    components:\n      - name: main\n        properties:\n          packageLocation: oci://registry.invalid/hello/main:1.0.0\n  parameters:\n    greeting:\n      value: hello\n      targets:\n        - pointer: ENV.GREETING\n          components: [main]\n"
    )
}

/// What one server insists on.
#[derive(Clone, Default)]
struct Ways {
    /// How far its clock is from everybody else's, in seconds.
    clock: i64,
    /// Requests must cover the authority too.
    authority: bool,
    /// It knows the paths and the onboarding request of the oldest snapshot only.
    oldest: bool,
    /// So many onboarding requests are answered "rejected" and then "accepted, later" before an operator decides.
    undecided: usize,
    /// What it answers a certificate that it knows.
    known: Option<(u16, Value)>,
    /// It takes nobody's capabilities.
    choosy: bool,
}

/// A server of the signed generation on the web listener of a [`Liar`].
struct SignedServer {
    liar: Liar,
    /// What went wrong with requests, in words; empty when all were right.
    wrong: Arc<Mutex<Vec<String>>>,
    labels: Arc<Mutex<BTreeSet<String>>>,
}

impl SignedServer {
    fn start(ways: Ways, version: u64, documents: &[(&str, String)]) -> Self {
        let liar = Liar::start();
        let (wrong, labels) = (Arc::new(Mutex::new(vec![])), Arc::new(Mutex::new(BTreeSet::new())));
        let url = ExternalUrl::parse(&liar.web_url).expect("an address");
        let mut answers = Answers::new(version, documents);
        let (complaints, seen) = (wrong.clone(), labels.clone());
        let mut certificate: Option<ClientCertificate> = None;
        let mut asked = 0;
        liar.twist_web(move |heard, _| {
            let at = i64::try_from(now().0 / 1000).expect("before the end of time") + ways.clock;
            let date = http_date(at);
            let reply = |status: u16, body: Vec<u8>| {
                Some(Reply { status, ..Reply::of(body) }.with("Date", date.clone()))
            };
            if heard.path == g1::ONBOARDING_PATH {
                let request: Value = serde_json::from_slice(&heard.body).expect("an agent's request");
                if ways.oldest && request.get("public_certificate").is_none() {
                    return reply(400, br#"{"error":"public_certificate is missing"}"#.to_vec());
                }
                let shown = onboarding::read_request(&heard.body).expect("an agent's request");
                let chain = onboarding::read_certificates(&shown).expect("an agent's certificate");
                certificate = Some(ClientCertificate::read(chain).expect("an agent's certificate"));
            }
            let Some(known) = &certificate else { return reply(404, vec![]) };
            match verify(&url, heard, known, at, &ways) {
                Ok(label) => drop(seen.lock().expect("nobody panics").insert(label)),
                Err(why) => {
                    complaints
                        .lock()
                        .expect("nobody panics")
                        .push(format!("{} {}: {why}", heard.method, heard.path));
                    return reply(401, br#"{"error":"Invalid signature"}"#.to_vec());
                }
            }
            if heard.path == g1::ONBOARDING_PATH {
                asked += 1;
                return match &ways.known {
                    _ if asked > 1 && asked <= ways.undecided => {
                        let body = br#"{"status":"pending"}"#.to_vec();
                        reply(202, body).map(|reply| reply.with("Retry-After", "1"))
                    }
                    _ if asked <= ways.undecided => {
                        let body = br#"{"error":"Client rejected"}"#.to_vec();
                        reply(403, body).map(|reply| reply.with("Retry-After", "1"))
                    }
                    Some((status, body)) => reply(*status, body.to_string().into_bytes()),
                    None => reply(201, json!({ "clientId": CLIENT }).to_string().into_bytes()),
                };
            }
            if ways.choosy && heard.path.contains("/capabilities") {
                return reply(422, br#"{"error":"Unprocessable","message":"no such vendor"}"#.to_vec());
            }
            let (status, body) = answers.answer(heard, ways.oldest);
            reply(status, body)
        });
        SignedServer { liar, wrong, labels }
    }

    fn join(&self, arguments: &[&str]) -> Output {
        Command::new(program("margrave-agent"))
            .args(["join", &self.liar.web_url, "--signed", "--device", "line-1", "--data"])
            .arg(self.liar.path("line-1"))
            .args(arguments)
            .output()
            .expect("our own program starts")
    }

    fn joined(&self) {
        let output = self.join(&["--pin", &self.liar.pin]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn wrong(&self) -> Vec<String> {
        self.wrong.lock().expect("nobody panics").clone()
    }

    fn labels(&self) -> Vec<String> {
        self.labels.lock().expect("nobody panics").iter().cloned().collect()
    }

    fn heard(&self, method: &str) -> Vec<Heard> {
        self.liar.heard_web().into_iter().filter(|heard| heard.method == method).collect()
    }
}

/// What the server has for its one client.
struct Answers {
    client: ClientId,
    content: Vec<(String, Vec<u8>)>,
    manifest: Vec<u8>,
}

impl Answers {
    fn new(version: u64, documents: &[(&str, String)]) -> Self {
        let client: ClientId = CLIENT.parse().expect("an id");
        let mut content = vec![];
        let mut entries = vec![];
        let mut archive: Vec<(AssignmentId, &[u8])> = vec![];
        for (id, text) in documents {
            let id = AssignmentId::parse(id).expect("an id");
            let digest = Digest::of(text.as_bytes());
            entries.push(Entry { id, document: Blob { digest, size: None } });
            content.push((g1::document_path(&client, id, &digest), text.clone().into_bytes()));
            archive.push((id, text.as_bytes()));
        }
        let archive = margrave_wire::bundle::write(&archive);
        let bundle = Blob { digest: Digest::of(&archive), size: None };
        content.push((g1::bundle_path(&client, &bundle.digest), archive));
        let manifest = Manifest::new(version, Some(bundle), entries).expect("an honest manifest");
        let manifest = g1::manifest::write(&client, &manifest);
        Answers { client, content, manifest }
    }

    fn answer(&mut self, heard: &Heard, oldest: bool) -> (u16, Vec<u8>) {
        let root = format!("/api/v1/clients/{CLIENT}");
        let path = heard.path.strip_prefix(&root).unwrap_or("?");
        match (heard.method.as_str(), oldest) {
            ("PUT", false) if path == "/capabilities/line-1" => (201, vec![]),
            ("PUT", true) if path == "/capabilities" => (201, vec![]),
            ("POST", false) if path.starts_with("/deployments/") && path.ends_with("/status") => {
                (200, vec![])
            }
            ("POST", true) if path.starts_with("/deployment/") && path.ends_with("/status") => (200, vec![]),
            ("GET", _) if heard.path == g1::manifest_path(&self.client) => {
                let tag = format!("\"{}\"", Digest::of(&self.manifest));
                match heard.header("if-none-match") {
                    Some(held) if held == tag => (304, vec![]),
                    _ => (200, self.manifest.clone()),
                }
            }
            ("GET", _) => match self.content.iter().find(|(path, _)| *path == heard.path) {
                Some((_, bytes)) => (200, bytes.clone()),
                None => (404, vec![]),
            },
            _ => (404, vec![]),
        }
    }
}

fn http_date(seconds: i64) -> String {
    let days = seconds.div_euclid(86_400);
    let time = seconds.rem_euclid(86_400);
    // Civil date of a day count, by the calendar of March-based years.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let name = names[usize::try_from(month - 1).expect("a month")];
    format!("Mon, {day:02} {name} {year} {:02}:{:02}:{:02} GMT", time / 3600, time / 60 % 60, time % 60)
}

/// As a server of that generation should: digest, components, window, key. Says with which label it was signed.
fn verify(
    url: &ExternalUrl,
    heard: &Heard,
    certificate: &ClientCertificate,
    now: i64,
    ways: &Ways,
) -> Result<String, String> {
    let line = |name: &str| heard.header(name).map(str::as_bytes).into_iter();
    let found =
        signature::read(line("signature-input"), line("signature")).map_err(|error| error.to_string())?;
    let [signature] = &found[..] else { return Err("more than one signature".into()) };
    let digest = heard.header("content-digest").map(str::to_owned);
    if !heard.body.is_empty() && digest.as_deref() != Some(&signature::content_digest(&heard.body)) {
        return Err("the digest is not of the body".into());
    }
    let mut needed = vec!["@method", "@target-uri"];
    needed.extend((!heard.body.is_empty()).then_some("content-digest"));
    needed.extend(ways.authority.then_some("@authority"));
    if let Some(missing) = needed.into_iter().find(|component| !signature.covers(component)) {
        return Err(format!("{missing} is not covered"));
    }
    let created = signature.created.ok_or("no created")?;
    if (created - now).abs() > 60 {
        return Err(format!("created is {} s off", created - now));
    }
    if signature.keyid.as_deref() != Some(&certificate.key().keyid()) {
        return Err("another keyid".into());
    }
    let field = |name: &str| digest.clone().filter(|_| name == "content-digest");
    let target_uri = format!("{url}{}", heard.path);
    let message = Message {
        method: &heard.method,
        scheme: "https",
        authority: url.authority(),
        target_uri: &target_uri,
        path: &heard.path,
        query: None,
        field: &field,
    };
    let (base, _) = signature.bases(&message).map_err(|error| error.to_string())?;
    certificate
        .key()
        .verify(signature.alg.as_deref(), &base, &signature.bytes)
        .map_err(|error| error.to_string())?;
    Ok(signature.label.clone())
}

#[test]
fn mi_g1_020_mi_g1_044_a_device_onboards_waits_for_its_operator_and_signs_everything() {
    let one = older(ONE, "one");
    let two = older(TWO, "two");
    let server = SignedServer::start(Ways { undecided: 2, ..Ways::default() }, 3, &[(ONE, one), (TWO, two)]);
    // Somebody with little patience: the key stays, and the server sees the same certificate again.
    let output = server.join(&["--pin", &server.liar.pin, "--patience", "0s"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("fingerprint"), "{said}");
    server.joined();
    let asked = server.heard("POST").into_iter().filter(|heard| heard.path == g1::ONBOARDING_PATH);
    let shown: BTreeSet<Vec<u8>> = asked.map(|heard| heard.body).collect();
    assert_eq!(shown.len(), 1, "asked three times with one certificate");

    let mut agent = server.liar.run_agent(&SIMULATED);
    wait_for("version 3 is installed", || server.liar.is_installed(3).then_some(()));
    wait_for("all reports are sent", || (server.liar.status()["reportsWaiting"] == 0).then_some(()));
    assert_eq!((server.wrong(), server.labels()), (vec![], vec!["sig1".to_owned()]));
    let capabilities: Value = serde_json::from_slice(&server.heard("PUT")[0].body).expect("JSON");
    assert_eq!(capabilities["kind"], "DeviceCapabilitiesManifest");
    assert_eq!(capabilities["properties"]["id"], "line-1");
    let report = server.heard("POST").pop().expect("a report");
    let report: Value = serde_json::from_slice(&report.body).expect("JSON");
    assert_eq!(
        (&report["kind"], &report["status"]["state"]),
        (&"DeploymentStatusManifest".into(), &"installed".into())
    );
    let status = server.liar.status();
    assert_eq!((&status["form"], &status["device"]), (&"g1".into(), &CLIENT.into()));

    // Killed and started again, it goes on under the same id.
    agent.kill();
    let before = server.heard("GET").len();
    let _agent = server.liar.run_agent(&SIMULATED);
    wait_for("it polls again", || (server.heard("GET").len() > before).then_some(()));
    assert_eq!(server.wrong(), Vec::<String>::new());
}

#[test]
fn mi_g1_065_a_device_whose_clock_is_wrong_signs_by_the_servers_and_says_so() {
    let server = SignedServer::start(Ways { clock: 7200, ..Ways::default() }, 1, &[(ONE, older(ONE, "one"))]);
    server.joined();
    let _agent = server.liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed", || server.liar.is_installed(1).then_some(()));
    let notice = server.liar.status()["identityNotice"].as_str().unwrap_or_default().to_owned();
    assert!(notice.contains("behind the server's"), "{notice}");
    // Once for joining and once for running; then it knows.
    assert_eq!(server.wrong().len(), 2, "{:?}", server.wrong());
}

#[test]
fn servers_that_want_more_covered_or_know_only_the_oldest_paths_are_served_too() {
    let ways = Ways { authority: true, oldest: true, ..Ways::default() };
    let server = SignedServer::start(ways, 1, &[(ONE, older(ONE, "one"))]);
    server.joined();
    let _agent = server.liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed and told", || {
        (server.liar.is_installed(1) && server.liar.status()["reportsWaiting"] == 0).then_some(())
    });
    assert_eq!(server.labels(), ["sig"]);
    assert!(server.heard("POST").iter().any(|heard| heard.path.contains("/deployment/")));
}

#[test]
fn mi_g1_066_a_server_that_takes_no_capabilities_is_asked_for_work_all_the_same() {
    let server =
        SignedServer::start(Ways { choosy: true, ..Ways::default() }, 1, &[(ONE, older(ONE, "one"))]);
    server.joined();
    let _agent = server.liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed and told", || {
        (server.liar.is_installed(1) && server.liar.status()["reportsWaiting"] == 0).then_some(())
    });
    assert_eq!(server.heard("PUT").len(), 1, "and not told again and again");
}

#[test]
fn amb_04_a_server_that_says_409_is_survived() {
    let known = Ways { known: Some((409, json!({ "client_id": CLIENT }))), ..Ways::default() };
    let server = SignedServer::start(known, 1, &[(ONE, older(ONE, "one"))]);
    server.joined();
    assert_eq!(server.liar.status()["device"], CLIENT);

    let silent = Ways { known: Some((409, json!({ "error": "exists" }))), ..Ways::default() };
    let server = SignedServer::start(silent, 1, &[(ONE, older(ONE, "one"))]);
    let output = server.join(&["--pin", &server.liar.pin]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--client-id"), "{said}");
    let output = server.join(&["--pin", &server.liar.pin, "--client-id", CLIENT]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let _agent = server.liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed", || server.liar.is_installed(1).then_some(()));
}

#[test]
fn mi_g1_006_mi_g1_008_the_server_is_trusted_by_what_was_given_and_a_pair_must_fit() {
    let server = SignedServer::start(Ways::default(), 1, &[(ONE, older(ONE, "one"))]);
    let stranger = server.liar.write("stranger.pem", Liar::start().web_authority);
    let output = server.join(&["--ca", text(&stranger)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("certificate"), "{said}");
    assert!(server.liar.heard_web().is_empty(), "nothing was sent to a server that is not trusted");

    let (mine, other) = (PrivateKey::generate().expect("a key"), PrivateKey::generate().expect("a key"));
    let certificate = ClientCertificate::self_signed(&mine, "press", now()).expect("a certificate");
    let certificate = server.liar.write("device.pem", certificate.pem());
    let (mine, other) =
        (server.liar.write("key.pem", mine.to_pem()), server.liar.write("other.pem", other.to_pem()));
    let authority = server.liar.write("web.pem", &server.liar.web_authority);
    let with = |key| ["--ca", text(&authority), "--certificate", text(&certificate), "--key", key];
    let output = server.join(&with(text(&other)));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("does not belong"), "{said}");
    let output = server.join(&with(text(&mine)));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let _agent = server.liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed", || server.liar.is_installed(1).then_some(()));
}
