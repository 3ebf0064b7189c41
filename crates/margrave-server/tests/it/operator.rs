//! The operator interface: what it refuses and how, conditions on writes, events from where one left off.

use std::time::Duration;

use margrave_wire::operator::{self, PutDeployment, Targets};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::line::{DEADLINE, Line, Reply};
use crate::plant::Plant;
use crate::stock;

const PREFIX: &str = operator::PREFIX;

/// An operator's program: a connection and a token.
pub(crate) struct Program {
    line: Line,
    bearer: String,
}

impl Program {
    pub(crate) async fn new(plant: &Plant) -> Program {
        Program { line: plant.local().await, bearer: format!("Bearer {}", plant.server.context().token) }
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Reply {
        let mut all = vec![("authorization", self.bearer.as_str()), ("content-type", "application/json")];
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| other == name));
        all.extend(headers);
        self.line.send(method, &format!("{PREFIX}{path}"), &all, body).await.unwrap()
    }

    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, &[], String::new()).await
    }

    pub(crate) async fn put(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: &impl serde::Serialize,
    ) -> Reply {
        self.send("PUT", path, headers, serde_json::to_string(body).unwrap()).await
    }
}

pub(crate) fn to(devices: &[&str]) -> PutDeployment {
    PutDeployment {
        package: "gate".to_owned(),
        version: Some("1.0.0".to_owned()),
        profile: None,
        parameters: [("owner".to_owned(), json!("me"))].into(),
        targets: Targets {
            devices: devices.iter().map(ToString::to_string).collect(),
            labels: Default::default(),
            ..Default::default()
        },
        rollback: None,
        strategy: None,
        revision: None,
        ..Default::default()
    }
}

#[tokio::test]
async fn the_document_lists_every_route_and_none_answers_without_a_token() {
    let plant = Plant::new().await;
    let mut line = plant.local().await;
    let document: Value = line.get(&format!("{PREFIX}/openapi.json")).await.unwrap().is(200).json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let mut listed = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            listed.push(format!("{} {}", method.to_uppercase(), path.strip_prefix(PREFIX).unwrap()));
        }
    }
    listed.sort();
    assert_eq!(
        listed,
        [
            "DELETE /deployments/{deployment}",
            "DELETE /devices/{device}/git",
            "DELETE /join-tokens/{device}",
            "DELETE /packages/{package}/{version}",
            "DELETE /registries/{host}",
            "DELETE /schedules/{reach}",
            "DELETE /watches/{repository}",
            "GET /audit",
            "GET /authority",
            "GET /deployments",
            "GET /deployments/{deployment}",
            "GET /deployments/{deployment}/assignments",
            "GET /deployments/{deployment}/departed",
            "GET /deployments/{deployment}/devices/{device}/transitions",
            "GET /deployments/{deployment}/revisions",
            "GET /deployments/{deployment}/rollout",
            "GET /devices",
            "GET /devices/{device}",
            "GET /devices/{device}/git",
            "GET /devices/{device}/labels",
            "GET /events",
            "GET /history",
            "GET /intent",
            "GET /intent/commits/{commit}",
            "GET /intent/diff",
            "GET /intent/files",
            "GET /intent/files/{path}",
            "GET /intent/log",
            "GET /join-tokens",
            "GET /packages",
            "GET /packages/{package}/{version}",
            "GET /packages/{package}/{version}/texts",
            "GET /registries",
            "GET /registries/{host}",
            "GET /schedules",
            "GET /schedules/{reach}",
            "GET /schemas/{kind}",
            "GET /signed-clients",
            "GET /status",
            "GET /tokens",
            "GET /tokens/mine",
            "GET /watches",
            "GET /watches/{repository}",
            "GET /why",
            "PATCH /devices/{device}/labels",
            "POST /authority/retire",
            "POST /authority/rotate",
            "POST /backup",
            "POST /deployments/{deployment}/preview",
            "POST /deployments/{deployment}/revert",
            "POST /deployments/{deployment}/rollout/abort",
            "POST /deployments/{deployment}/rollout/pause",
            "POST /deployments/{deployment}/rollout/resume",
            "POST /devices/{device}/accept",
            "POST /devices/{device}/hold",
            "POST /devices/{device}/look",
            "POST /devices/{device}/move",
            "POST /devices/{device}/reject",
            "POST /devices/{device}/release",
            "POST /devices/{device}/retire",
            "POST /intent/apply",
            "POST /intent/resolve",
            "POST /join-tokens",
            "POST /packages",
            "POST /registries/{host}/check",
            "POST /secrets/seal",
            "POST /sessions/end-all",
            "POST /signed-clients",
            "POST /tokens",
            "POST /tokens/{token}/revoke",
            "POST /watches/{repository}/look",
            "PUT /deployments/{deployment}",
            "PUT /devices/{device}/git",
            "PUT /registries/{host}",
            "PUT /schedules/{reach}",
            "PUT /watches/{repository}",
        ]
    );
    for route in listed {
        let (method, path) = route.split_once(' ').unwrap();
        let path = path.replace(['{', '}'], "");
        let reply = line.send(method, &format!("{PREFIX}{path}"), &[], "").await.unwrap();
        reply.is_problem(401);
        assert!(reply.header("www-authenticate").starts_with("Bearer"), "{route}");
    }
    // Wrong ones are answered slowly (access.rs), so not at every route.
    let wrong = [("authorization", "Bearer wrong")];
    line.send("GET", &format!("{PREFIX}/status"), &wrong, "").await.unwrap().is_problem(401);
    // Every schema that the document refers to is in it.
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_too() {
    let plant = Plant::new().await;
    let mut program = Program::new(&plant).await;
    let reply = program.get("/nonsense").await;
    assert!(reply.is_problem(404).contains("openapi.json"));
    let body: Value = reply.json();
    assert_eq!(body["type"], "urn:margrave:problem:no-such-path");
    assert_eq!(body["instance"], format!("{PREFIX}/nonsense"));
    program.send("POST", "/status", &[], String::new()).await.is_problem(405);
    for (path, what) in [
        ("/devices/nobody", "device nobody"),
        ("/deployments/nothing", "nothing"),
        ("/packages/nothing/1.0.0", "nothing"),
        ("/why?subject=nobody", "nobody"),
        ("/why?kind=deployment&subject=nothing", "deployment nothing"),
        ("/why?kind=rollout&subject=no%20name", "rollout no name"),
    ] {
        let detail = program.get(path).await.is_problem(404);
        assert!(detail.contains(what), "{path}: {detail}");
    }
}

#[tokio::test]
async fn a_bad_identifier_is_named() {
    let plant = Plant::new().await;
    let mut program = Program::new(&plant).await;
    for (method, path, field) in [
        ("GET", "/devices/a%20b", "device"),
        ("GET", "/devices/%2F", "device"),
        ("GET", "/devices/..", "device"),
        ("POST", "/devices/a%00b/retire", "device"),
        ("GET", "/deployments/UPPER", "deployment"),
        ("DELETE", "/deployments/-x-", "deployment"),
        ("GET", "/deployments/ok/devices/no%20no/transitions", "device"),
        ("GET", "/packages/Caps/1", "package"),
        ("GET", "/packages/ok/%2E%2E", "version"),
    ] {
        let reply = program.send(method, path, &[], String::new()).await;
        let detail = reply.is_problem(400);
        assert!(detail.starts_with(&format!("{field}: ")), "{path}: {detail}");
    }
    program.get("/devices/%FF").await.is_problem(400);
}

#[tokio::test]
async fn a_bad_body_or_query_is_refused_with_the_field() {
    let plant = Plant::new().await;
    let mut program = Program::new(&plant).await;
    for (method, path, body, says) in [
        ("POST", "/join-tokens", "{", "not well-formed"),
        ("POST", "/join-tokens", "", "not well-formed"),
        ("POST", "/join-tokens", r#"{"devise":"x"}"#, "devise"),
        ("POST", "/join-tokens", r#"{"device":7}"#, "string"),
        ("POST", "/packages", r#"{"reference":"x","pin":"y"}"#, "pin"),
        ("PATCH", "/devices/x/labels", r#"{"labels":{"a":1}}"#, "string"),
        ("PUT", "/deployments/x", r#"{"package":"gate","targets":{"device":["a"]}}"#, "device"),
        ("PUT", "/deployments/x", r#"{"targets":{}}"#, "package"),
        ("PUT", "/deployments/x", r#"{"package":"gate","targets":{},"revision":-1}"#, "-1"),
    ] {
        let detail = program.send(method, path, &[], body.to_owned()).await.is_problem(400);
        assert!(detail.contains(says), "{path} {body}: {detail}");
    }
    let deep = format!("{{\"labels\":{}1", "[".repeat(100_000));
    program.send("PATCH", "/devices/x/labels", &[], deep).await.is_problem(400);
    let large = format!(r#"{{"reference":"{}"}}"#, "x".repeat(300 * 1024));
    assert!(program.send("POST", "/packages", &[], large).await.is_problem(413).contains("bytes"));
    let mut program = Program::new(&plant).await;
    let form = [("content-type", "application/x-www-form-urlencoded")];
    program.send("POST", "/packages", &form, "reference=x".to_owned()).await.is_problem(415);
    for (path, says) in [
        ("/devices?colour=red", "colour"),
        ("/devices?limit=many", "limit"),
        ("/why", "subject"),
        ("/why?subject=a&kind=colour", "colour"),
        ("/events?after=-1", "after"),
    ] {
        let detail = program.get(path).await.is_problem(400);
        assert!(detail.contains(says) || detail.contains("invalid digit"), "{path}: {detail}");
    }
    assert!(program.get("/devices?condition=sunny").await.is_problem(422).contains("condition"));
}

#[tokio::test]
async fn answers_are_as_the_document_says() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    let mut program = Program::new(&plant).await;

    let status: Value = program.get("/status").await.is(200).json();
    assert_eq!(status["devices"]["total"], 1);
    assert_eq!(status["packages"], 1);
    let states = status["assignments"].as_object().unwrap();
    assert_eq!(states.len(), 12, "{states:?}");

    let package: operator::Package = program.get("/packages/gate/1.0.0").await.is(200).json();
    assert!(package.reference.contains("@sha256:"), "{}", package.reference);
    assert_eq!(package.icon.as_deref(), Some("resources/icon.svg"));
    let kinds: Vec<&str> =
        package.sections[0].settings.iter().map(|setting| setting.data_type.as_str()).collect();
    assert_eq!(kinds, ["string", "string", "integer", "string", "boolean"]);
    let component = &package.profiles[0].components[0];
    assert!(component.digest.as_deref().unwrap().starts_with("sha256:"), "{component:?}");

    let page: operator::Page<operator::Device> = program.get("/devices?search=PRESS").await.is(200).json();
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].capabilities.as_ref().unwrap()["properties"]["id"], "press-1");
    let none: operator::Page<operator::Device> = program.get("/devices?label=site=x").await.is(200).json();
    assert!(none.items.is_empty());

    let reply = program.get("/devices/press-1").await;
    assert_eq!(reply.header("cache-control"), "no-store");
    let device: operator::Device = reply.is(200).json();
    assert_eq!(device.standing, "accepted");
}

#[tokio::test]
async fn a_device_below_a_gateway_is_one_path_segment() {
    let plant = Plant::new().await;
    stock::device(&plant, "gw", 4).await;
    stock::capabilities(&plant, &"gw".parse().unwrap(), "gw/arm", 2).await;
    let mut program = Program::new(&plant).await;
    let device: operator::Device = program.get("/devices/gw%2Farm").await.is(200).json();
    assert_eq!(device.id, "gw/arm");
    let labels = json!({"labels": {"line": "4", "gone": null}}).to_string();
    let device: operator::Device =
        program.send("PATCH", "/devices/gw%2Farm/labels", &[], labels).await.is(200).json();
    assert_eq!(device.labels.get("line").map(String::as_str), Some("4"));
    let retired: operator::Device =
        program.send("POST", "/devices/gw/retire", &[], String::new()).await.is(200).json();
    assert_eq!((retired.standing.as_str(), retired.condition.as_str()), ("retired", "retired"));
    let back: operator::Device =
        program.send("POST", "/devices/gw/accept", &[], String::new()).await.is(200).json();
    assert_eq!(back.standing, "accepted");
}

#[tokio::test]
async fn a_writer_who_saw_an_older_revision_is_refused() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    let mut program = Program::new(&plant).await;
    let path = "/deployments/gate-north";

    program.put(path, &[("if-match", "*")], &to(&["press-1"])).await.is_problem(412);
    let made = program.put(path, &[("if-none-match", "*")], &to(&["press-1"])).await;
    let deployment: operator::Deployment = made.is(201).json();
    assert_eq!(made.header("etag"), format!("\"{}\"", deployment.revision));
    // The answer to a change is as short for nine thousand devices as for one.
    assert!(deployment.assignments.is_empty());
    assert_eq!((deployment.counts.total, deployment.counts.states["PENDING"]), (1, 1));
    let shown: operator::Deployment = program.get(path).await.is(200).json();
    assert_eq!(shown.assignments[0].state, "PENDING");
    program.put(path, &[("if-none-match", "*")], &to(&["press-1"])).await.is_problem(412);

    let mut change = to(&["press-1"]);
    change.parameters.insert("rate".to_owned(), json!(7));
    let tag = made.header("etag").to_owned();
    let changed = program.put(path, &[("if-match", &tag)], &change).await;
    let revision = changed.is(200).json::<operator::Deployment>().revision;
    assert!(revision > deployment.revision);
    change.parameters.insert("rate".to_owned(), json!(8));
    let detail = program.put(path, &[("if-match", &tag)], &change).await.is_problem(412);
    assert!(detail.contains("read it again"), "{detail}");
    change.revision = Some(deployment.revision);
    program.put(path, &[], &change).await.is_problem(409);
    program.put(path, &[("if-match", "7")], &change).await.is_problem(400);

    program.send("DELETE", path, &[("if-match", &tag)], String::new()).await.is_problem(412);
    program.send("DELETE", "/packages/gate/1.0.0", &[], String::new()).await.is_problem(409);
    program.send("DELETE", path, &[], String::new()).await.is(204);
}

#[tokio::test]
async fn an_earlier_revision_is_seen_and_wanted_again() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    let mut program = Program::new(&plant).await;
    let path = "/deployments/gate-north";
    program.get(&format!("{path}/revisions")).await.is_problem(404);
    let mut want = to(&["press-1"]);
    for rate in [7, 8] {
        want.parameters.insert("rate".to_owned(), json!(rate));
        assert!(program.put(path, &[], &want).await.status.is_success());
    }
    let revisions: operator::Page<operator::Revision> =
        program.get(&format!("{path}/revisions")).await.is(200).json();
    let revisions = revisions.items;
    let [second, first] = &revisions[..] else { panic!("{revisions:?}") };
    assert_eq!((second.revision, second.current, first.current), (2, true, false));
    assert_eq!(second.changes, ["Rate: 7 → 8"]);
    assert_eq!((first.parameters["rate"].clone(), first.changed_by.as_str()), (json!(7), "operator admin"));

    let revert = format!("{path}/revert");
    let to_first = json!({ "revision": 1 }).to_string();
    let detail =
        program.send("POST", &revert, &[("if-match", "\"1\"")], to_first.clone()).await.is_problem(412);
    assert!(detail.contains("revision 2"), "{detail}");
    let reply = program.send("POST", &revert, &[("if-match", "\"2\"")], to_first.clone()).await;
    assert_eq!(reply.is(200).header("etag"), "\"3\"");
    assert_eq!(reply.json::<operator::Deployment>().parameters["rate"], json!(7));
    for (body, status) in [("{\"revision\": 9}", 404), ("{}", 400), ("{\"revision\": 1, \"more\": 1}", 400)] {
        program.send("POST", &revert, &[], body.to_owned()).await.is_problem(status);
    }

    program.send("DELETE", path, &[], String::new()).await.is(204);
    program.send("POST", &revert, &[("if-match", "*")], to_first.clone()).await.is_problem(412);
    let back = program.send("POST", &revert, &[("if-none-match", "*")], to_first).await;
    assert_eq!(back.is(200).json::<operator::Deployment>().revision, 5);
}

#[tokio::test]
async fn broken_rules_and_misfits_are_listed() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    stock::device(&plant, "small-1", 1).await;
    let mut program = Program::new(&plant).await;

    let mut wrong = to(&["press-1"]);
    wrong.parameters.insert("rate".to_owned(), json!(900));
    wrong.parameters.insert("site".to_owned(), json!("lower"));
    let reply = program.put("/deployments/x", &[], &wrong).await;
    reply.is_problem(422);
    let problem: operator::Problem = reply.json();
    let places: Vec<&str> = problem.violations.iter().map(|violation| violation.place.as_str()).collect();
    assert!(places.contains(&"/parameters/rate") && places.contains(&"/parameters/site"), "{problem:?}");
    program.get("/deployments/x").await.is_problem(404);

    let body = serde_json::to_string(&to(&["press-1", "small-1"])).unwrap();
    let preview: operator::Preview =
        program.send("POST", "/deployments/x/preview", &[], body).await.is(200).json();
    assert_eq!(preview.fits.len(), 1);
    assert_eq!(preview.fits[0].device, "press-1");
    assert_eq!(preview.misfits[0].device, "small-1");
    assert!(!preview.misfits[0].reasons.is_empty());
    program.get("/deployments/x").await.is_problem(404);
}

#[tokio::test]
async fn events_go_on_where_the_reader_left_off() {
    let plant = Plant::new().await;
    stock::device(&plant, "press-1", 4).await;
    let mut program = Program::new(&plant).await;
    let json = [("accept", "application/json")];
    let page: operator::Page<operator::Event> =
        program.send("GET", "/events?limit=1000", &json, String::new()).await.is(200).json();
    let list = page.items;
    assert!(list.len() >= 2 && page.next.is_none(), "{list:?}");
    assert!(list.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    let last: operator::Page<operator::Event> =
        program.send("GET", "/events?last=1", &json, String::new()).await.is(200).json();
    assert_eq!((&last.items[..], last.next), (&list[list.len() - 1..], None));
    program.send("GET", "/events?limit=0", &json, String::new()).await.is_problem(400);
    program.send("GET", "/events?last=1&after=1", &json, String::new()).await.is_problem(400);
    program.send("GET", "/events", &[("last-event-id", "x")], String::new()).await.is_problem(400);

    let (first, newest) = (list[0].sequence, list[list.len() - 1].sequence);
    // From the store: everything after the first, in order.
    let mut stream = Stream::open(&plant, &format!("/events?after={first}"), "").await;
    let seen = stream.until(newest).await;
    assert_eq!(seen, list[1..].iter().map(|event| event.sequence).collect::<Vec<_>>());
    // Then live.
    plant.token("press-2").await;
    let live = stream.until(newest + 1).await;
    assert_eq!(live[0], newest + 1);
    drop(stream);
    // What the reader saw last counts more than the address it came with.
    let resume = format!("last-event-id: {newest}\r\n");
    let mut stream = Stream::open(&plant, "/events?after=0", &resume).await;
    assert_eq!(stream.until(newest + 1).await[0], newest + 1);
    // Without either, it begins now.
    let mut stream = Stream::open(&plant, "/events", "").await;
    plant.token("press-3").await;
    assert!(stream.until(newest + 2).await[0] > newest + 1);
}

#[tokio::test]
async fn a_stopping_server_does_not_wait_for_its_streams() {
    let plant = Plant::new().await;
    let stream = Stream::open(&plant, "/events", "").await;
    timeout(DEADLINE, plant.restart()).await.expect("streams end when the server stops");
    drop(stream);
}

/// A stream of events, read as bytes; chunk lengths between them do not matter.
struct Stream {
    socket: TcpStream,
    text: String,
}

impl Stream {
    async fn open(plant: &Plant, path: &str, headers: &str) -> Stream {
        let mut socket = TcpStream::connect(plant.server.addresses().local.unwrap()).await.unwrap();
        let token = plant.server.context().token;
        let request = format!(
            "GET {PREFIX}{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{headers}\r\n"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut stream = Stream { socket, text: String::new() };
        timeout(DEADLINE, async {
            while !stream.text.contains("\r\n\r\n") {
                stream.read().await;
            }
        })
        .await
        .expect("the stream begins");
        assert!(stream.text.starts_with("HTTP/1.1 200"), "{}", stream.text);
        assert!(stream.text.contains("text/event-stream"), "{}", stream.text);
        stream
    }

    async fn read(&mut self) {
        let mut bytes = [0; 4096];
        let count = self.socket.read(&mut bytes).await.unwrap();
        assert!(count > 0, "the stream ended: {}", self.text);
        self.text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }

    /// The ids that came, once this one is among them.
    async fn until(&mut self, id: u64) -> Vec<u64> {
        let reading = async {
            loop {
                let ids: Vec<u64> = self
                    .text
                    .lines()
                    .filter_map(|line| line.strip_prefix("id: ").and_then(|id| id.trim().parse().ok()))
                    .collect();
                if ids.contains(&id) {
                    self.text.clear();
                    return ids;
                }
                self.read().await;
            }
        };
        timeout(DEADLINE.max(Duration::from_secs(1)), reading).await.expect("the event arrives")
    }
}
