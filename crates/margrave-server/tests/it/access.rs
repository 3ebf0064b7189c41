//! Who may do what: every route and every page by role, tokens that end, and whoever tries wrong ones.

use http::header::SET_COOKIE;
use margrave_wire::operator::{self, CreateToken, CreatedToken};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::line::{DEADLINE, Line, Reply};
use crate::plant::{Plant, operator};

const PREFIX: &str = operator::PREFIX;
const ROLES: [&str; 3] = ["viewer", "operator", "admin"];
/// Routes that only an admin may use, whatever the method.
const ADMINS: [&str; 5] =
    ["/tokens", "/tokens/{token}/revoke", "/authority/rotate", "/authority/retire", "/backup"];

/// The least role that a route of the document asks for.
fn needed(method: &str, path: &str) -> usize {
    match method {
        _ if ADMINS.contains(&path) => 2,
        "GET" => 0,
        // A rehearsal is a look; what is more says its body, and audit.rs here that it is refused.
        "POST" if path == "/intent/apply" => 0,
        // About oneself.
        "POST" if path == "/sessions/end-all" => 0,
        _ if path.starts_with("/registries/") => 2,
        _ => 1,
    }
}

fn bearer(secret: &str) -> String {
    format!("Bearer {secret}")
}

/// Every route of the document, with names of things that are not there.
async fn routes(line: &mut Line) -> Vec<(String, String, String)> {
    let document: Value = line.get(&format!("{PREFIX}/openapi.json")).await.unwrap().is(200).json();
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let path = path.strip_prefix(PREFIX).unwrap();
            let address = path.replace("{reach}", "fleet").replace("{token}", "0123456789ab");
            let address = format!("{PREFIX}{}", address.replace(['{', '}'], ""));
            routes.push((method.to_uppercase(), path.to_owned(), address));
        }
    }
    assert!(routes.len() > 35, "{routes:?}");
    routes
}

async fn ask(line: &mut Line, method: &str, path: &str, secret: &str) -> Reply {
    let authorization = bearer(secret);
    let headers = [("authorization", authorization.as_str()), ("accept", "application/json")];
    line.send(method, path, &headers, "").await.unwrap()
}

#[tokio::test]
async fn every_route_asks_for_its_role_and_names_it() {
    let plant = Plant::new().await;
    let mut line = plant.local().await;
    for (has, role) in ROLES.iter().enumerate() {
        let token = plant.operator_token("ann", role).await;
        for (method, path, address) in routes(&mut line).await {
            let needed = needed(&method, &path);
            let reply = ask(&mut line, &method, &address, &token.secret).await;
            if has < needed {
                let detail = reply.is_problem(403);
                assert!(
                    detail.contains(&format!("the role {},", ROLES[needed])),
                    "{method} {path}: {detail}"
                );
                assert_eq!(reply.json::<Value>()["type"], "urn:margrave:problem:role-needed");
            } else {
                let status = reply.status.as_u16();
                assert!(status != 401 && status != 403, "{role} {method} {path}: {status}");
            }
        }
    }
}

#[tokio::test]
async fn a_token_that_ended_opens_no_route() {
    let plant = Plant::new().await;
    let mut line = plant.local().await;
    let revoked = plant.operator_token("ann", "admin").await;
    let want = CreateToken { name: "ann".to_owned(), role: "admin".to_owned(), valid_seconds: Some(60) };
    let expired = plant.server.fleet().create_operator_token(&operator(), want).await.unwrap();
    for token in [&revoked, &expired] {
        ask(&mut line, "GET", &format!("{PREFIX}/tokens"), &token.secret).await.is(200);
    }
    let admin = plant.server.context().token;
    let path = format!("{PREFIX}/tokens/{}/revoke", revoked.token.id);
    ask(&mut line, "POST", &path, &admin).await.is(200);
    plant.set_ahead(60);
    for (method, _, address) in routes(&mut line).await {
        let detail = ask(&mut line, &method, &address, &revoked.secret).await.is_problem(401);
        assert!(detail.contains("revoked"), "{detail}");
        let detail = ask(&mut line, &method, &address, &expired.secret).await.is_problem(401);
        assert!(detail.contains("expired"), "{detail}");
    }
}

/// A browser that is signed in with a token.
struct Browser {
    line: Line,
    cookie: String,
}

impl Browser {
    async fn signed_in(plant: &Plant, secret: &str) -> Browser {
        let mut line = plant.local().await;
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let reply = line.send("POST", "/sign-in", &form, format!("token={secret}")).await.unwrap();
        let cookie =
            reply.is(303).headers[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
        Browser { line, cookie }
    }

    async fn get(&mut self, path: &str) -> Reply {
        self.line.send("GET", path, &[("cookie", &self.cookie)], "").await.unwrap()
    }

    async fn page(&mut self, path: &str) -> String {
        crate::browser::text(self.get(path).await.is(200))
    }

    async fn post(&mut self, path: &str, fields: &str) -> Reply {
        let page = self.page("/").await;
        let (_, rest) = page.split_once("name=\"csrf\" value=\"").unwrap();
        let csrf = rest.split_once('"').unwrap().0;
        let headers =
            [("cookie", self.cookie.as_str()), ("content-type", "application/x-www-form-urlencoded")];
        self.line.send("POST", path, &headers, format!("csrf={csrf}&{fields}")).await.unwrap()
    }
}

/// Every page as its router names it: method, path, and the least role it asks for. New ones are found by themselves.
fn pages() -> Vec<(&'static str, &'static str, usize)> {
    const OPEN: [&str; 3] = ["/sign-in", "/welcome/{code}", "/assets/{digest}/{name}"];
    let asking = |path: &str| {
        let ends = [
            "/new",
            "/retire",
            "/remove",
            "/edit",
            "/revert",
            "/revoke",
            "/take",
            "/{verb}",
            "/settings/schedule",
        ];
        ends.iter().any(|end| path.ends_with(end)) || path == "/deploy"
    };
    let routes = include_str!("../../src/http/web/mod.rs").lines().filter_map(|line| {
        let (path, handlers) = line.trim().strip_prefix(".route(\"")?.split_once('"')?;
        Some((path, handlers))
    });
    let mut pages = Vec::new();
    for (path, handlers) in routes.filter(|(path, _)| !OPEN.contains(path)) {
        let administered = ["/access", "/settings/registries", "/settings/backup"];
        let admins = administered.iter().any(|start| path.starts_with(start));
        if handlers.contains("get(") {
            pages.push(("GET", path, if admins { 2 } else { usize::from(asking(path)) }));
        }
        if handlers.contains("post(") {
            let own = path.starts_with("/sign-out");
            pages.push(("POST", path, if admins { 2 } else { usize::from(!own) }));
        }
    }
    assert!(pages.len() > 25, "{pages:?}");
    pages
}

#[tokio::test]
async fn every_page_asks_for_its_role_and_names_it() {
    let plant = Plant::new().await;
    for (has, role) in ROLES.iter().enumerate() {
        let token = plant.operator_token("ann", role).await;
        let mut browser = Browser::signed_in(&plant, &token.secret).await;
        // Signing out is for everybody, and ends the walk.
        let (out, pages): (Vec<_>, Vec<_>) =
            pages().into_iter().partition(|(_, path, _)| path.starts_with("/sign-out"));
        assert_eq!(out.len(), 3);
        for (method, path, needed) in pages.into_iter().filter(|(_, path, _)| !path.ends_with("/stream")) {
            let address = path.replace(['{', '}'], "");
            let reply = match method {
                "GET" => browser.get(&address).await,
                _ => browser.post(&address, "").await,
            };
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            if has < needed {
                reply.is(403);
                assert!(
                    text.contains(&format!("needs the role {},", ROLES[needed])),
                    "{method} {path}: {text}"
                );
            } else {
                assert_ne!(reply.status.as_u16(), 403, "{role} {method} {path}: {text}");
                assert!(!reply.header("location").starts_with("/sign-in"), "{role} {method} {path}");
            }
        }
        for (method, path, _) in out {
            if method == "GET" {
                browser.page(path).await;
                continue;
            }
            browser.post(path, "").await.is(303);
            browser.get("/").await.is(303);
            browser = Browser::signed_in(&plant, &token.secret).await;
        }
    }
}

#[tokio::test]
async fn a_viewer_sees_no_button_that_is_not_for_viewers() {
    let plant = Plant::new().await;
    crate::stock::gate(&plant).await;
    crate::stock::device(&plant, "press-1", 4).await;
    let (viewer, changer) =
        (plant.operator_token("ann", "viewer").await, plant.operator_token("bob", "operator").await);
    let mut viewer = Browser::signed_in(&plant, &viewer.secret).await;
    let mut changer = Browser::signed_in(&plant, &changer.secret).await;
    for path in
        ["/", "/devices", "/devices/press-1", "/packages", "/packages/gate/1.0.0", "/deployments", "/audit"]
    {
        let page = viewer.page(path).await;
        // All that is left to send is signing out, and all that is left to follow is for looking.
        for form in page.split("<form method=\"post\" action=\"").skip(1) {
            assert!(form.starts_with("/sign-out"), "{path}: {}", &form[..80]);
        }
        for link in
            ["/devices/new", "/retire\"", "/remove\"", "/edit\"", "href=\"/deploy?", "href=\"/access\""]
        {
            assert!(!page.contains(link), "{path} leads to {link}");
        }
        assert!(page.contains("<span class=\"chip\">viewer</span>"), "{path} does not say the role");
        assert!(!changer.page(path).await.contains("href=\"/access\""), "{path}");
    }
    assert!(changer.page("/devices").await.contains("/devices/new"));
    assert!(changer.page("/devices/press-1").await.contains("/retire\""));
}

#[tokio::test]
async fn tokens_are_made_listed_and_revoked_over_rest_and_their_secret_is_shown_once() {
    let plant = Plant::new().await;
    let admin = plant.server.context().token;
    let mut line = plant.local().await;
    let authorization = bearer(&admin);
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    let path = format!("{PREFIX}/tokens");
    let want = json!({"name": "ci@nord", "role": "operator", "validSeconds": 3600}).to_string();
    let reply = line.send("POST", &path, &headers, want).await.unwrap();
    assert_eq!(reply.header("cache-control"), "no-store");
    let created: CreatedToken = reply.is(201).json();
    assert_eq!(
        (created.token.role.as_str(), created.token.created_by.as_str()),
        ("operator", "operator admin")
    );
    let listed = line.send("GET", &path, &headers, "").await.unwrap();
    let text = String::from_utf8(listed.is(200).body.to_vec()).unwrap();
    assert!(text.contains("ci@nord") && !text.contains(&created.secret) && !text.contains(&admin), "{text}");
    for (body, status, says) in [
        (json!({"name": "x", "role": "root"}), 422, "role"),
        (json!({"name": "\u{1b}[31m", "role": "viewer"}), 422, "name"),
        (json!({"name": "x", "role": "viewer", "validSeconds": 0}), 422, "valid"),
        (json!({"name": "x", "role": "viewer", "validSeconds": -5}), 400, "-5"),
        (json!({"name": "x", "role": ["viewer"]}), 400, "string"),
        (json!({"name": "x", "role": "viewer", "expires": "2001-01-01T00:00:00Z"}), 400, "expires"),
        (json!({"role": "viewer"}), 400, "name"),
    ] {
        let detail = line.send("POST", &path, &headers, body.to_string()).await.unwrap().is_problem(status);
        assert!(detail.contains(says), "{body}: {detail}");
    }
    for (id, status) in [("nonsense", 404), ("%00", 404), (&"f".repeat(2000), 404)] {
        let path = format!("{path}/{id}/revoke");
        line.send("POST", &path, &headers, "").await.unwrap().is_problem(status);
    }
    // The token of the data directory is the last one of an admin.
    let tokens: operator::Page<operator::Token> =
        line.send("GET", &path, &headers, "").await.unwrap().is(200).json();
    let own = tokens.items.iter().find(|token| token.role == "admin").unwrap();
    let revoke = format!("{path}/{}/revoke", own.id);
    let hint = line.send("POST", &revoke, &headers, "").await.unwrap().is_problem(409);
    assert!(hint.contains("make one for an admin first"), "{hint}");
    line.send("GET", &path, &headers, "").await.unwrap().is(200);
}

#[tokio::test]
async fn a_thousand_tokens_are_enough() {
    let plant = Plant::new().await;
    let mut making = tokio::task::JoinSet::new();
    for _ in 0..999 {
        let fleet = plant.server.fleet();
        let want = CreateToken { name: "bot".to_owned(), role: "viewer".to_owned(), valid_seconds: None };
        making.spawn(async move { fleet.create_operator_token(&operator(), want).await.unwrap().token.id });
    }
    let ids = making.join_all().await;
    let mut line = plant.local().await;
    let admin = plant.server.context().token;
    let authorization = bearer(&admin);
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    let (path, want) = (format!("{PREFIX}/tokens"), r#"{"name":"one more","role":"viewer"}"#);
    let hint = line.send("POST", &path, &headers, want).await.unwrap().is_problem(409);
    assert!(hint.contains("revoke some"), "{hint}");
    ask(&mut line, "POST", &format!("{path}/{}/revoke", ids[0]), &admin).await.is(200);
    line.send("POST", &path, &headers, want).await.unwrap().is(201);
}

#[tokio::test]
async fn the_page_makes_and_revokes_tokens_and_whoever_used_them_is_out() {
    let plant = Plant::new().await;
    let mut admin = Browser::signed_in(&plant, &plant.server.context().token).await;
    let reply = admin.post("/access", "name=ann&role=operator&days=90").await;
    let page = String::from_utf8(reply.is(200).body.to_vec()).unwrap();
    let at = page.find("mgo_").expect("the secret is shown");
    let secret: String =
        page[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')).collect();
    assert!(!admin.page("/access").await.contains("mgo_"));
    let mut ann = Browser::signed_in(&plant, &secret).await;
    ann.get("/devices/new").await.is(200);
    let holder = plant.server.fleet().operator_by_token(&secret).await.unwrap();
    assert!(admin.page(&format!("/access/{}/revoke", holder.token)).await.contains("Revoke the token"));
    admin.post(&format!("/access/{}/revoke", holder.token), "").await.is(303);
    assert_eq!(ann.get("/").await.is(303).header("location"), "/sign-in?next=%2F");
    assert!(admin.page("/access").await.contains("revoked"));
    for (fields, field, says) in [
        ("name=&role=viewer&days=1", "name", "name is 1 to 64"),
        ("name=x&role=root&days=1", "role", "viewer, operator or admin"),
        ("name=x&role=viewer&days=99999", "days", "ten years"),
    ] {
        let reply = admin.post("/access", fields).await;
        let text = String::from_utf8(reply.is(422).body.to_vec()).unwrap();
        let marked =
            format!("id=\"{field}\" name=\"{field}\" aria-invalid=\"true\" aria-describedby=\"{field}-wrong");
        let (_, told) = text.split_once(&marked).unwrap_or_else(|| panic!("{fields}: {text}"));
        let (_, told) = told.split_once(&format!("id=\"{field}-wrong\"")).unwrap();
        assert!(told.split("</div>").next().unwrap().contains(says), "{fields}: {text}");
        assert_eq!(text.matches("aria-invalid").count(), 1, "{fields}: {text}");
    }
    admin.post("/access", "name=x&role=viewer&days=many").await.is(400);
    admin.get("/access/nonsense/revoke").await.is(404);
}

#[tokio::test]
async fn signing_out_everywhere_ends_every_session_of_a_person_and_no_other() {
    let plant = Plant::new().await;
    let (ann, bob) =
        (plant.operator_token("ann", "viewer").await, plant.operator_token("bob", "viewer").await);
    let mut one = Browser::signed_in(&plant, &ann.secret).await;
    let mut two = Browser::signed_in(&plant, &ann.secret).await;
    let mut other = Browser::signed_in(&plant, &bob.secret).await;
    // Without the session's mark nothing happens.
    let headers = [("cookie", one.cookie.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    one.line.send("POST", "/sign-out/everywhere", &headers, "csrf=guess").await.unwrap().is(403);
    two.page("/").await;
    // The page asks first, and shows the command.
    let page = one.page("/sign-out/everywhere").await;
    assert!(page.contains("that of ann in one more browser"), "{page}");
    assert!(page.contains("margrave session end-all"), "{page}");
    two.page("/").await;
    one.post("/sign-out/everywhere", "").await.is(303);
    one.get("/").await.is(303);
    two.get("/").await.is(303);
    other.page("/").await;

    // Over REST it is the same: also what another token of hers began, and no token is void.
    let second = plant.operator_token("ann", "operator").await;
    let mut one = Browser::signed_in(&plant, &ann.secret).await;
    let mut two = Browser::signed_in(&plant, &second.secret).await;
    let mut line = plant.local().await;
    let path = format!("{PREFIX}/sessions/end-all");
    for number in [2, 0] {
        let ended: operator::EndedSessions =
            ask(&mut line, "POST", &path, &second.secret).await.is(200).json();
        assert_eq!((ended.name.as_str(), ended.ended), ("ann", number));
    }
    one.get("/").await.is(303);
    two.get("/").await.is(303);
    other.page("/").await;
    Browser::signed_in(&plant, &ann.secret).await.page("/").await;
    // Both ways have the same name in the log.
    let log = plant.server.fleet().audit(Default::default()).await.unwrap().items;
    let ended = log.iter().filter(|entry| entry.action == "session.end-all" && entry.outcome == "done");
    let told: Vec<_> = ended.map(|entry| (entry.way.as_str(), entry.detail.as_str())).collect();
    assert_eq!(
        told,
        [("rest", "0 sessions of ann"), ("rest", "2 sessions of ann"), ("page", "2 sessions of ann")]
    );
}

#[tokio::test]
async fn over_tls_the_cookie_is_one_that_nobody_else_can_put_there() {
    let plant = Plant::new().await;
    let token = plant.server.context().token;
    let mut line = plant.web().await;
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let reply = line.send("POST", "/sign-in", &form, format!("token={token}")).await.unwrap();
    let set = reply.is(303).header("set-cookie").to_owned();
    assert!(set.starts_with("__Host-margrave_session=") && set.contains("; Secure"), "{set}");
    assert!(
        set.contains("; HttpOnly") && set.contains("; SameSite=Lax") && set.contains("; Path=/;"),
        "{set}"
    );
    let cookie = set.split(';').next().unwrap();
    line.send("GET", "/", &[("cookie", cookie)], "").await.unwrap().is(200);
    let plain = cookie.strip_prefix("__Host-").unwrap();
    line.send("GET", "/", &[("cookie", plain)], "").await.unwrap().is(303);
}

#[tokio::test]
async fn a_flood_of_wrong_tokens_is_slowed_and_locks_nobody_out() {
    let plant = Plant::new().await;
    let mut wrong = tokio::task::JoinSet::new();
    for number in 0..30 {
        let mut line = plant.local().await;
        wrong.spawn(async move {
            let secret = format!("mgo_guess{number}");
            ask(&mut line, "GET", &format!("{PREFIX}/status"), &secret).await
        });
    }
    // From the very same address, while they come: the right one is let in every time, and so is signing in.
    let token = plant.server.context().token;
    let mut line = plant.local().await;
    for _ in 0..20 {
        ask(&mut line, "GET", &format!("{PREFIX}/status"), &token).await.is(200);
    }
    Browser::signed_in(&plant, &token).await.page("/").await;
    let replies = wrong.join_all().await;
    let turned_away: Vec<_> = replies.iter().filter(|reply| reply.status.as_u16() == 429).collect();
    assert!(!turned_away.is_empty() && turned_away.len() < replies.len());
    for reply in turned_away {
        assert!(reply.is_problem(429).contains("wrong tokens"));
        assert!(!reply.header("retry-after").is_empty());
    }
    assert!(replies.iter().all(|reply| matches!(reply.status.as_u16(), 401 | 429)));
}

#[tokio::test]
async fn a_stream_of_events_ends_with_its_token() {
    let plant = Plant::new().await;
    let token = plant.operator_token("ann", "viewer").await;
    let mut stream = TcpStream::connect(plant.server.addresses().local.unwrap()).await.unwrap();
    let request = format!(
        "GET {PREFIX}/events HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\n\r\n",
        token.secret
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut begun = [0u8; 1024];
    let read = timeout(DEADLINE, stream.read(&mut begun)).await.unwrap().unwrap();
    assert!(begun[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&begun[..read]));
    plant.server.fleet().revoke_operator_token(&operator(), &token.token.id).await.unwrap();
    let mut rest = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_context_whose_token_is_no_admins_any_more_is_replaced_at_the_next_start() {
    let plant = Plant::new().await;
    let old = plant.server.context().token;
    let other = plant.operator_token("eve", "admin").await;
    let id = plant.server.fleet().operator_by_token(&old).await.unwrap().token;
    plant.server.fleet().revoke_operator_token(&operator(), &id).await.unwrap();
    let plant = plant.restart().await;
    let new = plant.server.context().token;
    assert_ne!(old, new);
    let mut line = plant.local().await;
    ask(&mut line, "GET", &format!("{PREFIX}/tokens"), &new).await.is(200);
    ask(&mut line, "GET", &format!("{PREFIX}/tokens"), &other.secret).await.is(200);
    ask(&mut line, "GET", &format!("{PREFIX}/tokens"), &old).await.is_problem(401);
    // A link that was made before its token went does not let anybody in.
    let link = plant.server.sign_in_link();
    let path = format!("/welcome/{}", link.rsplit('/').next().unwrap());
    let id = plant.server.fleet().operator_by_token(&new).await.unwrap().token;
    plant.server.fleet().revoke_operator_token(&operator(), &id).await.unwrap();
    assert_eq!(line.get(&path).await.unwrap().is(403).header("set-cookie"), "");
}
