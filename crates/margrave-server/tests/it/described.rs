//! The operator interface by its own document: every operation is asked, and every answer is one that the document
//! describes, in its status, media type and body.

use std::collections::{BTreeMap, BTreeSet};

use margrave_wire::operator::PREFIX;
use serde_json::{Value, json};

use crate::line::{Line, Reply};
use crate::plant::Plant;
use crate::stock;

/// Where a success takes a device that signs, or a repository that was rewritten; `signed.rs` and the fleet's own tests have them.
const ONLY_REFUSED_HERE: [&str; 3] =
    ["POST /devices/{device}/move", "POST /devices/{device}/reject", "POST /intent/resolve"];

struct Reader {
    line: Line,
    bearer: String,
    document: Value,
    /// The statuses that were seen, by operation.
    seen: BTreeMap<String, BTreeSet<u16>>,
}

impl Reader {
    async fn new(plant: &Plant) -> Reader {
        let mut line = plant.local().await;
        let document = line.get(&format!("{PREFIX}/openapi.json")).await.unwrap().is(200).json();
        let bearer = format!("Bearer {}", plant.server.context().token);
        Reader { line, bearer, document, seen: BTreeMap::new() }
    }

    /// The template that a path is an instance of.
    fn template(&self, path: &str) -> String {
        let asked: Vec<&str> = path.split('?').next().unwrap().split('/').collect();
        let fits = |template: &&String| {
            let parts: Vec<&str> = template.strip_prefix(PREFIX).unwrap().split('/').collect();
            parts.len() == asked.len()
                && parts.iter().zip(&asked).all(|(part, is)| part.starts_with('{') || part == is)
        };
        let paths = self.document["paths"].as_object().unwrap();
        let found = paths.keys().filter(fits).min_by_key(|template| template.matches('{').count());
        found.unwrap_or_else(|| panic!("{path} is not described")).clone()
    }

    async fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Value) -> Reply {
        let mut all = vec![("accept", "application/json")];
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            all.push(("authorization", &self.bearer));
        }
        let text = if body.is_null() { String::new() } else { body.to_string() };
        if !text.is_empty() {
            all.push(("content-type", "application/json"));
        }
        all.extend(headers);
        let reply = self.line.send(method, &format!("{PREFIX}{path}"), &all, text).await.unwrap();
        self.check(method, path, &reply);
        reply
    }

    fn check(&mut self, method: &str, path: &str, reply: &Reply) {
        let template = self.template(path);
        let status = reply.status.as_u16();
        let shown = String::from_utf8_lossy(&reply.body);
        let operation = &self.document["paths"][&template][method.to_lowercase()];
        let response = &operation["responses"][status.to_string()];
        assert!(response.is_object(), "{method} {path}: {status} is not described: {shown}");
        match response["content"].as_object() {
            None => assert!(reply.body.is_empty(), "{method} {path} {status} should have no body: {shown}"),
            Some(content) => {
                let kind = reply.header("content-type");
                let schema = content.get(kind).unwrap_or_else(|| panic!("{method} {path} {status}: {kind}"));
                if kind.ends_with("json") {
                    let fits = self.fits(&schema["schema"], &reply.json(), String::new());
                    fits.unwrap_or_else(|why| panic!("{method} {path} {status}: {why}: {shown}"));
                }
            }
        }
        if method == "GET" && matches!(status, 200 | 304) {
            assert!(reply.header("etag").starts_with('"'), "{path} has no tag");
        }
        let name = format!("{method} {}", template.strip_prefix(PREFIX).unwrap());
        self.seen.entry(name).or_default().insert(status);
    }

    /// Whether a value is what a schema says, and nothing that it does not say.
    fn fits(&self, schema: &Value, value: &Value, at: String) -> Result<(), String> {
        if let Some(reference) = schema["$ref"].as_str() {
            let target = self.document.pointer(reference.strip_prefix('#').unwrap()).unwrap();
            return self.fits(target, value, at);
        }
        for word in ["oneOf", "anyOf"] {
            if let Some(choices) = schema[word].as_array() {
                let tried: Vec<_> = choices.iter().map(|one| self.fits(one, value, at.clone())).collect();
                if tried.iter().all(Result::is_err) {
                    return Err(format!("{at}: none fits: {tried:?}"));
                }
                return Ok(());
            }
        }
        for one in schema["allOf"].as_array().into_iter().flatten() {
            self.fits(one, value, at.clone())?;
        }
        let is = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let allowed = |kind: &Value| kind == is || (kind == "number" && is == "integer");
        match &schema["type"] {
            Value::Null => {}
            Value::Array(kinds) if kinds.iter().any(allowed) => {}
            kind if allowed(kind) => {}
            kind => return Err(format!("{at}: is {is}, and should be {kind}")),
        }
        if let Some(values) = schema["enum"].as_array()
            && !values.contains(value)
        {
            return Err(format!("{at}: {value} is not one of {values:?}"));
        }
        for item in value.as_array().into_iter().flatten() {
            self.fits(&schema["items"], item, format!("{at}/*"))?;
        }
        let Some(members) = value.as_object() else { return Ok(()) };
        for name in schema["required"].as_array().into_iter().flatten() {
            if !members.contains_key(name.as_str().unwrap()) {
                return Err(format!("{at}: {name} is missing"));
            }
        }
        for (name, member) in members {
            let place = format!("{at}/{name}");
            match (schema["properties"].get(name), &schema["additionalProperties"]) {
                (Some(schema), _) => self.fits(schema, member, place)?,
                (None, schema @ Value::Object(_)) => self.fits(schema, member, place)?,
                (None, Value::Bool(false)) => return Err(format!("{place} is not described")),
                (None, _) if schema["properties"].is_object() => {
                    return Err(format!("{place} is not described"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn every_operation_answers_as_it_is_described() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    for name in ["press-1", "press-2", "press-3"] {
        stock::device(&plant, name, 4).await;
    }
    plant.join("press-9").await;
    let mut reader = Reader::new(&plant).await;
    let none = Value::Null;
    let want = json!({"package": "gate", "version": "1.0.0", "parameters": {"owner": "me"},
        "targets": {"devices": ["press-1"], "labels": {"line": "press"}}, "rollback": {"attempts": 3}});
    let mut stepwise = want.clone();
    stepwise["strategy"] = json!({"batches": ["1"]});
    let certificate = rcgen::generate_simple_self_signed(vec!["press-9".to_owned()]).unwrap().cert.pem();
    let week =
        json!({"windows": ["sun 02:00-05:00 Europe/Berlin"], "pollEverySeconds": 60, "pollWait": true});

    for (method, path, body) in [
        ("GET", "/status", none.clone()),
        ("POST", "/join-tokens", json!({"device": "press-4", "labels": {"line": "press"}})),
        ("POST", "/join-tokens", json!({"device": "press-1"})),
        ("POST", "/join-tokens", json!({"device": "press-5"})),
        ("GET", "/join-tokens", none.clone()),
        ("DELETE", "/join-tokens/press-5", none.clone()),
        ("DELETE", "/join-tokens/press-5", none.clone()),
        ("GET", "/devices", none.clone()),
        ("GET", "/devices?limit=1&condition=converged", none.clone()),
        ("GET", "/devices?condition=sunny", none.clone()),
        ("GET", "/devices?state=FAILED", none.clone()),
        ("GET", "/devices?state=sunny", none.clone()),
        ("GET", "/devices?colour=red", none.clone()),
        ("GET", "/devices/press-1", none.clone()),
        ("GET", "/devices/press-1/labels", none.clone()),
        ("GET", "/devices/nobody/labels", none.clone()),
        ("GET", "/devices/nobody", none.clone()),
        ("PATCH", "/devices/press-2/labels", json!({"labels": {"line": "press"}})),
        ("PATCH", "/devices/press-2/labels", json!({"labels": {"": "press"}})),
        ("PUT", "/deployments/north", want.clone()),
        ("PUT", "/deployments/north", json!({"package": "none", "targets": {"devices": ["press-1"]}})),
        ("PUT", "/deployments/north", json!({"package": 7})),
        ("POST", "/deployments/north/preview", want.clone()),
        ("POST", "/deployments/north/preview", json!({"package": "none", "targets": {"devices": []}})),
        ("GET", "/deployments", none.clone()),
        ("GET", "/deployments?state=PENDING&label=line=press&limit=1", none.clone()),
        ("GET", "/deployments?state=sunny", none.clone()),
        ("GET", "/deployments?limit=0", none.clone()),
        ("GET", "/deployments/north", none.clone()),
        ("GET", "/deployments/south", none.clone()),
        ("GET", "/deployments/north/assignments", none.clone()),
        ("GET", "/deployments/north/assignments?state=PENDING&limit=1", none.clone()),
        ("GET", "/deployments/north/assignments?state=sunny", none.clone()),
        ("GET", "/deployments/north/assignments?limit=0", none.clone()),
        ("GET", "/deployments/south/assignments", none.clone()),
        ("GET", "/deployments/north/devices/press-1/transitions", none.clone()),
        ("GET", "/deployments/north/devices/press-1/transitions?limit=0", none.clone()),
        ("GET", "/deployments/north/devices/nobody/transitions", none.clone()),
        ("GET", "/deployments/north/departed", none.clone()),
        ("GET", "/deployments/north/departed?limit=0", none.clone()),
        ("GET", "/deployments/gone/departed?limit=1", none.clone()),
        ("GET", "/deployments/north/revisions", none.clone()),
        ("GET", "/deployments/south/revisions", none.clone()),
        ("POST", "/deployments/north/revert", json!({"revision": 1})),
        ("POST", "/deployments/north/revert", json!({"revision": 99})),
        ("GET", "/why?subject=press-1", none.clone()),
        ("GET", "/why?subject=nobody", none.clone()),
        ("GET", "/why?kind=deployment&subject=north", none.clone()),
        ("GET", "/why?kind=rollout&subject=north", none.clone()),
        ("GET", "/why?kind=rollout&subject=south", none.clone()),
        ("GET", "/why?kind=colour&subject=north", none.clone()),
        ("GET", "/packages?search=GATE&limit=1", none.clone()),
        ("GET", "/packages?limit=0", none.clone()),
        ("GET", "/packages/gate/1.0.0", none.clone()),
        ("GET", "/packages/gate/2.0.0", none.clone()),
        ("POST", "/packages", json!({"reference": "oci://margrave/packages/gate:1.0.0"})),
        ("POST", "/packages", json!({"reference": "oci://margrave/packages/none:1.0.0"})),
        ("POST", "/packages", json!({"reference": "no reference"})),
        ("DELETE", "/packages/gate/1.0.0", none.clone()),
        ("PUT", "/schedules/fleet", week.clone()),
        ("PUT", "/schedules/fleet", json!({"windows": ["whenever"]})),
        ("GET", "/schedules", none.clone()),
        ("GET", "/schedules?limit=1", none.clone()),
        ("GET", "/schedules?limit=0", none.clone()),
        ("GET", "/schedules/fleet", none.clone()),
        ("GET", "/schedules/label:line=press", none.clone()),
        ("GET", "/schedules/nonsense", none.clone()),
        ("DELETE", "/schedules/fleet", none.clone()),
        ("DELETE", "/schedules/fleet", none.clone()),
        ("PUT", "/devices/press-1/git", json!({})),
        ("PUT", "/devices/nobody/git", json!({})),
        ("GET", "/devices/press-1/git", none.clone()),
        ("GET", "/devices/press-2/git", none.clone()),
        ("DELETE", "/devices/press-1/git", none.clone()),
        ("DELETE", "/devices/press-1/git", none.clone()),
        ("GET", "/signed-clients", none.clone()),
        ("GET", "/signed-clients?limit=1", none.clone()),
        ("GET", "/signed-clients?limit=0", none.clone()),
        ("GET", "/signed-clients?decision=sunny", none.clone()),
        ("POST", "/signed-clients", json!({"certificate": certificate})),
        ("POST", "/signed-clients", json!({"certificate": "none"})),
        ("POST", "/devices/nobody/reject", none.clone()),
        ("POST", "/devices/press-1/move", json!({"to": "press-2"})),
        ("POST", "/devices/press-9/hold", json!({"reason": "batch 17 runs", "seconds": 60})),
        ("POST", "/devices/press-9/hold", json!({"reason": "", "seconds": 60})),
        ("POST", "/devices/nobody/hold", json!({"reason": "batch 17 runs", "seconds": 60})),
        ("POST", "/devices/press-9/release", none.clone()),
        ("POST", "/devices/press-9/release", none.clone()),
        ("POST", "/devices/nobody/release", none.clone()),
        ("POST", "/devices/press-9/look", none.clone()),
        ("POST", "/devices/nobody/look", none.clone()),
        ("POST", "/devices/press-3/retire", none.clone()),
        ("POST", "/devices/nobody/retire", none.clone()),
        ("POST", "/devices/press-3/accept", none.clone()),
        ("POST", "/devices/nobody/accept", none.clone()),
        ("GET", "/events?last=5", none.clone()),
        ("GET", "/events?last=0", none.clone()),
        ("GET", "/authority", none.clone()),
        ("POST", "/authority/retire", json!({"force": false})),
        ("POST", "/authority/rotate", json!({"switchAfterSeconds": 0})),
        ("POST", "/authority/rotate", json!({"switchAfterSeconds": 0})),
        ("POST", "/authority/retire", json!({"force": true})),
        ("POST", "/backup", none.clone()),
        ("POST", "/secrets/seal", json!({"deployment": "north", "parameter": "owner", "value": "hunter2"})),
        ("POST", "/secrets/seal", json!({"deployment": "No", "parameter": "owner", "value": "hunter2"})),
        ("GET", "/audit?limit=5", none.clone()),
        ("GET", "/tokens", none.clone()),
        ("GET", "/tokens?limit=1", none.clone()),
        ("GET", "/tokens?limit=0", none.clone()),
        ("GET", "/tokens/mine", none.clone()),
        ("POST", "/sessions/end-all", none.clone()),
        ("POST", "/tokens", json!({"name": "", "role": "king"})),
        ("GET", "/packages/gate/1.0.0/texts", none.clone()),
        ("PUT", "/registries/127.0.0.1:9", json!({"plain": true})),
        ("PUT", "/registries/registry.example", json!({"plain": true})),
        ("GET", "/registries", none.clone()),
        ("GET", "/registries?limit=1", none.clone()),
        ("GET", "/registries?limit=0", none.clone()),
        ("GET", "/registries/127.0.0.1:9", none.clone()),
        ("GET", "/registries/127.0.0.1:99", none.clone()),
        ("POST", "/registries/127.0.0.1:9/check", none.clone()),
        ("PUT", "/watches/127.0.0.1:9%2Fapp", json!({"everySeconds": 900})),
        ("PUT", "/watches/127.0.0.1:9%2Fapp", json!({"everySeconds": 1})),
        ("GET", "/watches", none.clone()),
        ("GET", "/watches?limit=1", none.clone()),
        ("GET", "/watches?limit=0", none.clone()),
        ("GET", "/watches/127.0.0.1:9%2Fapp", none.clone()),
        ("POST", "/watches/127.0.0.1:9%2Fapp/look", none.clone()),
        ("DELETE", "/watches/127.0.0.1:9%2Fapp", none.clone()),
        ("DELETE", "/watches/127.0.0.1:9%2Fapp", none.clone()),
        ("DELETE", "/registries/127.0.0.1:9", none.clone()),
        ("DELETE", "/registries/127.0.0.1:9", none.clone()),
        ("PUT", "/deployments/steps", stepwise.clone()),
        ("GET", "/deployments/steps/rollout", none.clone()),
        ("GET", "/deployments/nothing/rollout", none.clone()),
        ("POST", "/deployments/steps/rollout/pause", none.clone()),
        ("POST", "/deployments/steps/rollout/resume", none.clone()),
        ("POST", "/deployments/steps/rollout/abort", none.clone()),
        ("POST", "/deployments/steps/rollout/resume", none.clone()),
        ("DELETE", "/deployments/steps", none.clone()),
        ("GET", "/intent", none.clone()),
        ("GET", "/intent/log?limit=2", none.clone()),
        ("GET", "/history?at=now", none.clone()),
        ("GET", "/history?at=2h%20ago", none.clone()),
        ("GET", "/history?at=monday", none.clone()),
        ("GET", "/history", none.clone()),
        ("GET", "/intent/diff?from=now", none.clone()),
        ("GET", "/intent/diff?from=2020-01-01", none.clone()),
        ("GET", "/intent/diff?from=now&to=2h%20ago", none.clone()),
        ("GET", &format!("/intent/commits/{}", "0".repeat(40)), none.clone()),
        ("GET", "/intent/files", none.clone()),
        ("GET", "/intent/files?limit=1", none.clone()),
        ("GET", "/intent/files?limit=0", none.clone()),
        ("GET", "/intent/files/deployments%2Fnorth.yaml", none.clone()),
        ("GET", "/intent/files/deployments%2Fsouth.yaml", none.clone()),
        ("GET", "/intent/files/deployments%2Fnorth.yaml?at=now", none.clone()),
        ("GET", "/intent/files/deployments%2Fnorth.yaml?at=2020-01-01", none.clone()),
        ("GET", "/intent/files/deployments%2Fnorth.yaml?at=monday", none.clone()),
        (
            "POST",
            "/intent/apply",
            json!({"documents": ["apiVersion: margrave/v1\nkind: Fleet\n"], "dryRun": true}),
        ),
        ("POST", "/intent/apply", json!({"documents": ["kind: Pod\n"]})),
        ("POST", "/intent/resolve", json!({"take": true})),
        ("GET", "/schemas/Deployment", none.clone()),
        ("GET", "/schemas/Pod", none.clone()),
        ("DELETE", "/deployments/north", none.clone()),
        ("DELETE", "/deployments/south", none.clone()),
        ("DELETE", "/packages/gate/1.0.0", none.clone()),
    ] {
        reader.ask(method, path, &[], body).await;
    }

    let made = reader.ask("POST", "/tokens", &[], json!({"name": "bob", "role": "viewer"})).await;
    let made: Value = made.is(201).json();
    let revoke = format!("/tokens/{}/revoke", made["token"]["id"].as_str().unwrap());
    reader.ask("POST", &revoke, &[], none.clone()).await.is(200);
    let commit = plant.server.fleet().intent().await.unwrap().commit.unwrap();
    reader.ask("GET", &format!("/intent/commits/{commit}"), &[], none.clone()).await.is(200);

    let document = reader.document.clone();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let path = path.strip_prefix(PREFIX).unwrap();
        for method in operations.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            let asked = path.replace("{reach}", "fleet").replace(['{', '}'], "");
            // Nothing that could be a token; wrong ones are answered slowly (access.rs).
            let wrong = [("authorization", "Nothing")];
            reader.ask(&method, &asked, &wrong, none.clone()).await.is_problem(401);
            let name = format!("{method} {path}");
            let seen = &reader.seen[&name];
            let done = seen.iter().any(|status| (200..300).contains(status));
            assert_eq!(done, !ONLY_REFUSED_HERE.contains(&name.as_str()), "{name} was answered {seen:?}");
        }
    }
}

#[tokio::test]
async fn who_has_it_is_not_sent_it_again_and_who_saw_another_does_not_overwrite() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    let mut reader = Reader::new(&plant).await;
    let none = Value::Null;
    let want = json!({"package": "gate", "version": "1.0.0", "parameters": {"owner": "me"},
        "targets": {"devices": ["press-1"]}});
    reader.ask("PUT", "/deployments/north", &[("if-none-match", "*")], want.clone()).await.is(201);
    reader
        .ask("PUT", "/schedules/fleet", &[("if-none-match", "*")], json!({"dataSaver": true}))
        .await
        .is(200);
    reader.ask("PUT", "/schedules/fleet", &[("if-none-match", "*")], json!({})).await.is_problem(412);
    reader.ask("PUT", "/devices/press-1/git", &[("if-match", "*")], json!({})).await.is_problem(412);
    reader.ask("PUT", "/devices/press-1/git", &[], json!({})).await.is(200);

    for path in [
        "/packages/gate/1.0.0",
        "/packages",
        "/deployments/north",
        "/deployments",
        "/schedules/fleet",
        "/devices/press-1/git",
        "/devices",
        "/authority",
        "/events?last=3",
    ] {
        let tag = reader.ask("GET", path, &[], none.clone()).await.header("etag").to_owned();
        for held in [tag.clone(), format!("W/{tag}"), format!("\"x\", {tag}"), "*".to_owned()] {
            let again = reader.ask("GET", path, &[("if-none-match", &held)], none.clone()).await;
            assert_eq!((again.status.as_u16(), again.header("etag")), (304, tag.as_str()), "{path} {held}");
        }
        reader.ask("GET", path, &[("if-none-match", "\"x\"")], none.clone()).await.is(200);
    }

    // A deployment's tag begins with its revision, and that is what a change is compared with.
    let tag = reader.ask("GET", "/deployments/north", &[], none.clone()).await.header("etag").to_owned();
    assert!(tag.starts_with("\"1."), "{tag}");
    reader.ask("PUT", "/deployments/north", &[("if-match", &tag)], want.clone()).await.is(200);

    let tag = reader.ask("GET", "/schedules/fleet", &[], none.clone()).await.header("etag").to_owned();
    reader.ask("PUT", "/schedules/fleet", &[("if-match", &tag)], json!({"dataSaver": false})).await.is(200);
    reader.ask("PUT", "/schedules/fleet", &[("if-match", &tag)], json!({})).await.is_problem(412);
    reader.ask("DELETE", "/schedules/fleet", &[("if-match", &tag)], none.clone()).await.is_problem(412);
    reader.ask("DELETE", "/schedules/fleet", &[("if-match", "loose")], none.clone()).await.is_problem(400);
    let tag = reader.ask("GET", "/schedules/fleet", &[], none.clone()).await.header("etag").to_owned();
    reader.ask("DELETE", "/schedules/fleet", &[("if-match", &tag)], none.clone()).await.is(204);
    for path in ["/devices/press-1/git", "/packages/gate/1.0.0"] {
        reader.ask("DELETE", path, &[("if-match", "\"x\"")], none.clone()).await.is_problem(412);
    }
    let tag = reader.ask("GET", "/devices/press-1/git", &[], none.clone()).await.header("etag").to_owned();
    reader.ask("DELETE", "/devices/press-1/git", &[("if-match", &tag)], none.clone()).await.is(204);

    // Labels by their own tag: what a device reports in between is no reason to refuse.
    let registry = "/registries/127.0.0.1:9";
    let watch = "/watches/127.0.0.1:9%2Fapp";
    reader.ask("PUT", registry, &[("if-none-match", "*")], json!({"plain": true})).await.is(200);
    reader.ask("PUT", watch, &[("if-none-match", "*")], json!({"everySeconds": 900})).await.is(200);
    let labels = "/devices/press-1/labels";
    for (method, path, body) in [
        ("PATCH", labels, json!({"labels": {"line": "7"}})),
        ("PUT", registry, json!({"plain": true, "user": "ann", "password": "x"})),
        ("PUT", watch, json!({"everySeconds": 1000})),
    ] {
        reader.ask(method, path, &[("if-match", "\"nonsense\"")], body.clone()).await.is_problem(412);
        let tag = reader.ask("GET", path, &[], none.clone()).await.is(200).header("etag").to_owned();
        reader.ask(method, path, &[("if-match", &tag)], body.clone()).await.is(200);
        reader.ask(method, path, &[("if-match", &tag)], body).await.is_problem(412);
    }
    for path in [registry, watch] {
        reader.ask("PUT", path, &[("if-none-match", "*")], json!({})).await.is_problem(412);
        reader.ask("DELETE", path, &[("if-match", "\"x\"")], none.clone()).await.is_problem(412);
    }
}

#[tokio::test]
async fn lists_are_paged_and_filtered() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    for name in ["press-1", "press-2"] {
        stock::device(&plant, name, 4).await;
    }
    let mut reader = Reader::new(&plant).await;
    let none = Value::Null;
    for (name, targets) in [
        ("a", json!({"devices": ["press-1"]})),
        ("b", json!({"labels": {"line": "4"}})),
        ("c", json!({"devices": ["press-1"], "labels": {"line": "5"}})),
        ("d", json!({"select": "site in (nord, sued), role!=spare"})),
        ("e", json!({"sites": ["nord"]})),
        ("f", json!({"select": "site!=west, cell=1"})),
    ] {
        let want = json!({"package": "gate", "parameters": {"owner": "me"}, "targets": targets});
        reader.ask("PUT", &format!("/deployments/{name}"), &[], want).await.is(201);
    }
    let mut names = async |query: &str| -> (Vec<String>, Option<String>) {
        let page: Value = reader.ask("GET", query, &[], none.clone()).await.is(200).json();
        let name = |item: &Value| item.get("name").or(item.get("id")).unwrap().as_str().unwrap().to_owned();
        let next = page["next"].as_str().map(str::to_owned);
        (page["items"].as_array().unwrap().iter().map(name).collect(), next)
    };
    let (first, next) = names("/deployments?limit=2").await;
    assert_eq!(first, ["a", "b"]);
    let next: String = next.unwrap().bytes().map(|byte| format!("%{byte:02X}")).collect();
    let rest = names(&format!("/deployments?limit=9&after={next}")).await;
    assert_eq!(rest, (["c", "d", "e", "f"].map(str::to_owned).to_vec(), None));
    assert_eq!(names("/deployments?label=line").await.0, ["b", "c"]);
    assert_eq!(names("/deployments?label=line=4").await.0, ["b"]);
    assert_eq!(names("/deployments?state=PENDING").await.0, ["a", "c"]);
    assert_eq!(names("/deployments?state=FAILED").await.0, [""; 0]);
    assert_eq!(names("/deployments?search=a&package=gate").await.0, ["a"]);
    assert_eq!(names("/deployments?label=site=nord").await.0, ["d", "e"], "by expression and by site");
    assert_eq!(names("/deployments?label=site").await.0, ["d", "e"]);
    assert_eq!(names("/deployments?label=site=west").await.0, [""; 0], "who must not have it");
    assert_eq!(names("/devices?state=PENDING").await.0, ["press-1"]);
    assert_eq!(names("/devices?state=INSTALLED").await.0, [""; 0]);
}

#[tokio::test]
async fn the_devices_of_a_deployment_come_page_by_page_and_by_state() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let all: Vec<String> = (0..105).map(|number| format!("press-{number:03}")).collect();
    for name in &all {
        stock::device(&plant, name, 4).await;
    }
    let mut reader = Reader::new(&plant).await;
    let want = json!({"package": "gate", "parameters": {"owner": "me"}, "targets": {"devices": all}});
    reader.ask("PUT", "/deployments/north", &[], want).await.is(201);
    let shown: Value = reader.ask("GET", "/deployments/north", &[], Value::Null).await.is(200).json();
    assert_eq!(
        (shown["assignments"].as_array().unwrap().len(), &shown["counts"]["total"]),
        (100, &json!(105))
    );
    assert_eq!(shown["next"], "press-099");
    let mut ask = async |query: &str| -> (Vec<String>, Option<String>) {
        let path = format!("/deployments/north/assignments{query}");
        let page: Value = reader.ask("GET", &path, &[], Value::Null).await.is(200).json();
        let device = |item: &Value| item["device"].as_str().unwrap().to_owned();
        let items = page["items"].as_array().unwrap().iter().map(device).collect();
        (items, page["next"].as_str().map(str::to_owned))
    };
    assert_eq!(ask("?after=press-099").await, (all[100..].to_vec(), None));
    assert_eq!(ask("?limit=2&state=PENDING").await, (all[..2].to_vec(), Some("press-001".to_owned())));
    assert_eq!(ask("?state=FAILED").await, (Vec::new(), None));
}
