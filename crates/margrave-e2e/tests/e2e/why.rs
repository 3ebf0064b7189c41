//! Why something is not as wanted: the same words on the command line, over REST and on the page, whatever is asked about and
//! whatever is wrong.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::stage::{PRETENDED, Stage, wait_for};

/// The page, as a browser is given it.
struct Page {
    address: String,
    cookie: String,
}

impl Page {
    fn of(stage: &Stage) -> Page {
        let address = stage.page().trim_start_matches("http://").to_owned();
        let form = format!("token={}", stage.token());
        let head = format!(
            "POST /sign-in HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n",
            form.len()
        );
        let answer = exchange(&address, &format!("{head}\r\n{form}"));
        let set =
            answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a session begins");
        let cookie = set.split(';').next().expect("a cookie has a value").to_owned();
        Page { address, cookie }
    }

    fn get(&self, path: &str) -> String {
        let Page { address, cookie } = self;
        exchange(address, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n"))
    }
}

fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.write_all(request.as_bytes()).expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers");
    answer
}

/// What is between two marks, each time.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.split(begin).skip(1).map(|rest| rest.split(end).next().unwrap_or_default()).collect()
}

/// As it was before it became markup: moments as they are written elsewhere, code between backticks, characters themselves.
fn unescaped(html: &str) -> String {
    let mut text = String::new();
    for (index, piece) in html.split("<time datetime=\"").enumerate() {
        match (index, piece.split_once("</time>")) {
            (0, _) | (_, None) => text.push_str(piece),
            (_, Some((moment, rest))) => {
                text.push_str(moment.split('"').next().unwrap_or_default());
                text.push_str(rest);
            }
        }
    }
    let text = text.replace("<code>", "`").replace("</code>", "`");
    // Only said of words that are not to be broken.
    let text = text.replace("<span class=\"word\">", "").replace("</span>", "");
    assert!(!text.contains('<'), "other markup in {text:?}");
    [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#x27;", "'"),
        ("&amp;", "&"),
        ("&#38;", "&"),
        ("&#60;", "<"),
        ("&#62;", ">"),
    ]
    .iter()
    .fold(text, |text, (escaped, plain)| text.replace(escaped, plain))
}

/// The causes on the page: text, hint, code.
fn on_the_page(page: &Page, kind: &str, subject: &str) -> Vec<(String, String, String)> {
    let subject = subject.replace('/', "%2F");
    let html = page.get(&format!("/why?kind={kind}&subject={subject}"));
    let chain = between(&html, "<ol class=\"chain\">", "</ol>");
    let steps =
        between(chain.first().unwrap_or_else(|| panic!("no chain in {html}")), "<li><div>", "</div></li>");
    let step = |step: &&str| {
        let (rest, code) = step.rsplit_once("<code class=\"muted small\">").expect("each has its code");
        let code = code.trim_end_matches("</code>").to_owned();
        let (text, hint) = match rest.split_once("<span class=\"next muted small\">") {
            Some((text, hint)) => (text, hint.trim().trim_end_matches("</span>")),
            None => (rest, ""),
        };
        (unescaped(text.trim()), unescaped(hint), code)
    };
    steps.iter().map(step).collect()
}

/// A hint as the page says it.
fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let first: String = characters.next().map(|first| first.to_uppercase().collect()).unwrap_or_default();
    let text = format!("{first}{}", characters.as_str());
    if text.is_empty() || text.ends_with(['.', '!', '?', ':']) { text } else { format!("{text}.") }
}

/// Asks in all three ways, until no moment passed in between; the codes.
fn same(stage: &Stage, page: &Page, kind: &str, subject: &str) -> Vec<String> {
    let chain = |why: &Value| why["chain"].as_array().expect("a chain").clone();
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
    wait_for(&format!("the same is said of {kind} {subject}"), || {
        let json = stage.margrave(&["why", kind, subject, "--json"]);
        let before: Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
        let words = stage.margrave(&["why", kind, subject]);
        let shown = on_the_page(page, kind, subject);
        let json = stage.margrave(&["why", kind, subject, "--json"]);
        if serde_json::from_slice::<Value>(&json.stdout).expect("it is JSON") != before {
            return None;
        }
        let causes = chain(&before);
        let told: Vec<String> = causes.iter().map(|cause| text(cause, "text")).collect();
        let lines = String::from_utf8(words.stdout).expect("it is text");
        let lines: Vec<&str> =
            lines.lines().filter_map(|line| line.trim_start().strip_prefix("because ")).collect();
        assert_eq!(lines, told, "the command line and REST, of {kind} {subject}");
        let wanted: Vec<(String, String, String)> = causes
            .iter()
            .map(|cause| (text(cause, "text"), sentence(&text(cause, "hint")), text(cause, "code")))
            .collect();
        assert_eq!(shown, wanted, "the page and REST, of {kind} {subject}");
        // The one to act on.
        let hint = causes.iter().rev().map(|cause| text(cause, "hint")).find(|hint| !hint.is_empty());
        if let Some(hint) = hint {
            let said = String::from_utf8(words.stderr).expect("it is text");
            assert!(said.contains(&format!("hint: {hint}")), "{said}");
        }
        assert_eq!(words.status.code(), Some(i32::from(before["converged"] != true)));
        Some(causes.iter().map(|cause| text(cause, "code")).collect())
    })
}

#[test]
fn the_command_line_rest_and_the_page_say_the_same() {
    let stage = Stage::start();
    let page = Page::of(&stage);
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    for device in ["line-1", "line-2", "line-3"] {
        stage.join(device);
    }
    // Joined, and never heard of since.
    assert!(!same(&stage, &page, "device", "line-3").is_empty());
    stage.json(&["device", "label", "line-3", "note=<b>&\"it's\"</b>"]);
    let mut running = stage.simulated("line-1", "10ms");
    let _other = stage.simulated("line-2", "10ms");
    stage.json(&["deploy", "hello", "--to", "line-1", "--to", "line-2", "--batch", "1"]);
    for device in ["line-1", "line-2"] {
        stage.wait_state(device, "hello", "INSTALLED");
    }
    wait_for("the rollout is over", || {
        (stage.json(&["rollout", "show", "hello"])["state"] == "done").then_some(())
    });
    for (kind, subject) in
        [("device", "line-1"), ("device", "line-1/hello"), ("deployment", "hello"), ("rollout", "hello")]
    {
        same(&stage, &page, kind, subject);
    }
    // Not meant for it; its labels are hostile.
    assert_eq!(same(&stage, &page, "device", "line-3/hello"), ["not-targeted"]);
    let said = String::from_utf8(stage.margrave(&["why", "line-3/hello"]).stdout).unwrap();
    assert!(said.starts_with("line-3/hello is no target\n"), "{said}");
    assert!(
        said.contains("its targets are the devices line-1, line-2, and line-3 has note=<b>&\"it's\"</b>"),
        "{said}"
    );

    // Held back on the device, until a moment that each says.
    stage.json(&["device", "hold", "line-1", "--for", "2h", "--reason", "batch <17> runs"]);
    wait_for("the device hears of it", || {
        (!stage.agent_status("line-1")["holds"].as_array()?.is_empty()).then_some(())
    });
    stage.json(&["deployment", "update", "hello", "--set", "greeting=later"]);
    wait_for("it waits", || {
        let why = stage.margrave(&["why", "line-1/hello", "--json"]);
        let why: Value = serde_json::from_slice(&why.stdout).ok()?;
        why["chain"][0]["code"].as_str().is_some_and(|code| code == "waiting").then_some(())
    });
    for (kind, subject) in [
        ("device", "line-1"),
        ("device", "line-1/hello"),
        ("deployment", "hello"),
        ("rollout", "hello"),
        ("device", "line-2/hello"),
    ] {
        assert_ne!(same(&stage, &page, kind, subject), ["converged"], "{kind} {subject}");
    }
    // Not heard of, and put out.
    running.kill();
    stage.json(&["rollout", "pause", "hello"]);
    same(&stage, &page, "rollout", "hello");
    stage.json(&["device", "retire", "line-2", "--yes"]);
    for (kind, subject) in
        [("device", "line-2"), ("device", "line-2/hello"), ("deployment", "hello"), ("rollout", "hello")]
    {
        same(&stage, &page, kind, subject);
    }
    assert!(!same(&stage, &page, "device", "line-1").is_empty());
}
