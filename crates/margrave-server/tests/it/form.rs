//! Forms as a browser sends them: what stands in a page's fields, after what HTML does to it.

use margrave_wire::Dialect;
use serde_json::{Value, json};

use crate::browser::{Browser, deployed, gate, location, text};
use crate::operator::Program;
use crate::plant::{Plant, operator};
use crate::stock;

/// A certificate, as it stands in a file.
const PEM: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n  indented\n-----END CERTIFICATE-----\n";

/// The fields of the form whose tag begins so, as a browser would send them without a hand on them.
pub(crate) fn fields_of(page: &str, form: &str) -> Vec<(String, String)> {
    let (_, rest) = page.split_once(form).expect("the form is there");
    let mut rest = rest.split_once("</form>").unwrap().0;
    let mut fields = Vec::new();
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let (tag, after) = rest.split_once('>').unwrap_or((rest, ""));
        let is = |flag: &str| tag.split_ascii_whitespace().any(|word| word == flag);
        let value = attribute(tag, "value");
        match (tag.split_ascii_whitespace().next().unwrap_or_default(), attribute(tag, "name")) {
            ("input", Some(name)) => {
                let value = value.unwrap_or_else(|| "on".to_owned());
                match attribute(tag, "type").as_deref() {
                    Some("checkbox" | "radio") if !is("checked") => {}
                    Some("checkbox" | "radio" | "hidden") => fields.push((name, sent(&value))),
                    // A field of one line has no breaks.
                    _ => fields.push((name, value.replace(['\r', '\n'], ""))),
                }
            }
            ("textarea", Some(name)) => {
                let held = after.split_once("</textarea>").unwrap().0;
                fields.push((name, sent(&plain(held.strip_prefix('\n').unwrap_or(held)))));
            }
            ("select", Some(name)) => {
                let options: Vec<&str> =
                    after.split_once("</select>").unwrap().0.split("<option").skip(1).collect();
                let chosen =
                    options.iter().find(|option| option.split('>').next().unwrap().contains(" selected"));
                if let Some(option) = chosen.or(options.first()) {
                    let (tag, said) = option.split_once('>').unwrap();
                    let said = plain(said.split('<').next().unwrap());
                    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
                    fields.push((name, sent(&attribute(tag, "value").unwrap_or(words))));
                }
            }
            _ => {}
        }
        rest = after;
    }
    fields
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    Some(plain(rest.split_once('"')?.0))
}

/// What an escaped text says.
fn plain(text: &str) -> String {
    let mut said = text.replace("\r\n", "\n").replace('\r', "\n");
    for (code, character) in [("&#60;", "<"), ("&#62;", ">"), ("&#34;", "\""), ("&#39;", "'"), ("&#38;", "&")]
    {
        said = said.replace(code, character);
    }
    said
}

/// Breaks as every browser sends them.
fn sent(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}

impl Browser {
    /// Opens a page, types into its form, and sends it as it then is.
    pub(crate) async fn fill_in(&mut self, page: &str, typed: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut fields = fields_of(&self.page(page).await, "<form id=\"deploy\"");
        for (name, value) in typed {
            let field = fields.iter_mut().find(|(field, _)| field == name);
            field.unwrap_or_else(|| panic!("there is no {name} in the form")).1 = sent(value);
        }
        fields
    }

    pub(crate) async fn send(&mut self, path: &str, fields: &[(String, String)]) -> crate::line::Reply {
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        self.send_form(path, &fields, &[]).await
    }
}

/// The gate of this version also asks for a certificate, one that stays for ever, and a list.
async fn gate_with_texts(plant: &Plant) {
    stock::gate_asking(plant, "2.0.0", |description| {
        let parameters = "parameters:
  cert:
    targets: [{pointer: CERT, components: [\"gate\"]}]
  root:
    targets: [{pointer: ROOT, components: [\"gate\"]}]
  hosts:
    targets: [{pointer: HOSTS, components: [\"gate\"]}]
";
        let settings = "      settings:
        - {parameter: cert, name: Certificate, schema: text}
        - {parameter: root, name: Root, schema: text, immutable: true}
        - {parameter: hosts, name: Hosts, schema: texts}
";
        let schema = "  schema:
    - {name: text, dataType: string, allowEmpty: true}
    - {name: texts, dataType: \"array[string]\", allowEmpty: true}
";
        description
            .replace("parameters:\n", parameters)
            .replace("      settings:\n", settings)
            .replace("  schema:\n", schema)
    })
    .await;
}

#[tokio::test]
async fn a_text_of_several_lines_stays_what_it_is_while_something_else_is_changed() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    gate_with_texts(&plant).await;
    let fleet = plant.server.fleet();
    let south = "south".parse().unwrap();
    let mut want = gate(7);
    want.version = Some("2.0.0".to_owned());
    let hosts = json!(["one\ntwo\n", " three ", "four"]);
    // Somebody's file has the breaks of another world, and begins with an empty line.
    let root = format!("\n{}", PEM.replace('\n', "\r\n"));
    for (name, value) in [("cert", json!(PEM)), ("root", json!(root)), ("hosts", hosts.clone())] {
        want.parameters.insert(name.to_owned(), value);
    }
    fleet.put_deployment(&operator(), &south, want.clone()).await.unwrap();

    let mut browser = Browser::signed_in(&plant).await;
    let fields = browser.fill_in("/deployments/south/edit", &[("answer.rate", "9")]).await;
    let rehearsed = browser.send("/deployments/south/edit/rehearsal", &fields).await;
    let page = text(rehearsed.is(200));
    assert!(!page.contains("Certificate</dt>") && !page.contains("DM-059"), "{page}");
    // On to what the rehearsal carries, as its button sends it.
    let carried = fields_of(&page, "action=\"/deployments/south/edit\" class=\"form-end\"");
    let reply = browser.send("/deployments/south/edit", &carried).await;
    assert_eq!(location(reply.is(303)), "/deployments/south");
    let mut now = fleet.deployment(&south).await.unwrap();
    assert_eq!(now.parameters["rate"], json!(9));
    for name in ["cert", "root", "hosts"] {
        assert_eq!(now.parameters[name], want.parameters[name], "{name}");
    }

    // What is typed has the breaks of files; an Enter behind a single line is no second line.
    let typed = [("answer.cert", "a\nb\n"), ("answer.owner", "you\n"), ("answer.hosts", "one\ntwo\nfive")];
    let fields = browser.fill_in("/deployments/south/edit", &typed).await;
    browser.send("/deployments/south/edit", &fields).await.is(303);
    now = fleet.deployment(&south).await.unwrap();
    assert_eq!(now.parameters["cert"], json!("a\nb\n"));
    assert_eq!(now.parameters["owner"], json!("you"));
    assert_eq!(now.parameters["hosts"], json!(["one\ntwo\n", "five"]), "what belongs together stays so");
    assert_eq!(now.parameters["root"], json!(root), "what cannot be changed is not asked of the form");
    // A form that says otherwise changes nothing of it.
    let mut fields = browser.fill_in("/deployments/south/edit", &[]).await;
    fields.push(("answer.root".to_owned(), "other".to_owned()));
    browser.send("/deployments/south/edit", &fields).await.is(303);
    assert_eq!(fleet.deployment(&south).await.unwrap().parameters["root"], json!(root));
}

#[tokio::test]
async fn a_button_that_is_pressed_twice_does_what_it_says_once() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let fleet = plant.server.fleet();
    let south = "south".parse().unwrap();
    let mut browser = Browser::signed_in(&plant).await;
    let typed = [("name", "south"), ("answer.owner", "me")];
    let mut fields = browser.fill_in("/deploy?package=gate&version=1.0.0", &typed).await;
    fields.push(("device".to_owned(), "press-1".to_owned()));
    for _ in 0..2 {
        let reply = browser.send("/deploy", &fields).await;
        assert_eq!(location(reply.is(303)), "/deployments/south");
        assert_eq!(fleet.deployment(&south).await.unwrap().revision, 1);
    }
    let change = browser.fill_in("/deployments/south/edit", &[("answer.rate", "9")]).await;
    for _ in 0..2 {
        browser.send("/deployments/south/edit", &change).await.is(303);
        assert_eq!(fleet.deployment(&south).await.unwrap().revision, 2);
    }
    // Something else by the same name is not what was done; what is wrong with it is told once.
    let mut nowhere = fields.clone();
    nowhere.retain(|(name, _)| name != "device");
    let page = text(browser.send("/deploy", &nowhere).await.is(422));
    assert_eq!(page.matches("Tick at least one device").count(), 1, "{page}");
    browser.send("/deploy", &fields).await.is(422);
    let mut other = change.clone();
    other.iter_mut().find(|(name, _)| name == "answer.rate").unwrap().1 = "11".to_owned();
    browser.send("/deployments/south/edit", &other).await.is(422);
    // Nor is what somebody else did.
    let mut want = gate(7);
    want.revision = Some(2);
    fleet.put_deployment(&operator(), &south, want).await.unwrap();
    browser.send("/deployments/south/edit", &change).await.is(422);
    assert_eq!(fleet.deployment(&south).await.unwrap().revision, 3);
}

#[tokio::test]
async fn what_a_version_does_not_offer_any_more_is_not_replaced_unasked() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    stock::gate_asking(&plant, "3.0.0", |text| {
        text.replace("options: [early, late]", "options: [day, night]").replace("value: early", "value: day")
    })
    .await;
    let mut want = gate(7);
    want.version = Some("1.0.0".to_owned());
    want.parameters.insert("shift".to_owned(), json!("early"));
    plant.server.fleet().put_deployment(&operator(), &"north".parse().unwrap(), want).await.unwrap();
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/deployments/north/edit?version=3.0.0").await;
    assert!(page.contains("“early” is not offered any more"), "{page}");
    let fields = fields_of(&page, "<form id=\"deploy\"");
    let shift = fields.iter().find(|(name, _)| name == "answer.shift").unwrap();
    assert_eq!(shift.1, "", "nobody chose one of the others");
    let other = browser.page("/deployments/north/edit").await;
    assert!(!other.contains("is not offered any more"), "{other}");
}

#[tokio::test]
async fn what_was_typed_outlives_the_session_that_it_was_typed_in() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let ours = [("sec-fetch-site", "same-origin")];
    let mut browser = Browser::signed_in(&plant).await;
    let fields = browser.fill_in("/deployments/north/edit", &[("answer.rate", "9")]).await;
    let mut typed: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
    let owner = typed.iter_mut().find(|(name, _)| *name == "answer.owner").unwrap();
    owner.1 = stock::HOSTILE;
    typed.push(("secret.answer.site", "hunter2"));
    // Signed out while the form was open.
    let cookie = std::mem::take(&mut browser.cookie);
    let path = "/deployments/north/edit/rehearsal";
    let page = text(browser.send_form(path, &typed, &ours).await.is(401));
    assert!(page.contains("You were signed out") && page.contains("type it again"), "{page}");
    crate::browser::is_clean(&page);
    assert!(!page.contains("hunter2") && !page.contains("name=\"csrf\""), "{page}");
    let carried = fields_of(&page, &format!("action=\"{path}\""));
    let held = |name: &str| carried.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone());
    assert_eq!(held("answer.rate").as_deref(), Some("9"));
    assert_eq!(held("answer.owner").as_deref(), Some(stock::HOSTILE));
    // Signed in again as the same one in another tab, it is the same form; the page asks once more, as it carries no mark.
    let mut again = Browser::signed_in(&plant).await;
    assert_ne!(again.cookie, cookie);
    let carried: Vec<(&str, &str)> = carried.iter().map(|(name, value)| (&**name, &**value)).collect();
    let page = text(again.send_form(path, &carried, &ours).await.is(403));
    assert!(page.contains("You are signed in as admin now"), "{page}");
    let carried = fields_of(&page, &format!("action=\"{path}\""));
    let reply = again.send(path, &carried).await;
    assert!(text(reply.is(200)).contains("<ins>9</ins>"), "what is typed goes on");
    // A form that was left open needs nothing but to be sent: its mark is that of the token.
    again.send("/deployments/north/edit", &fields).await.is(303);
    let north = plant.server.fleet().deployment(&"north".parse().unwrap()).await.unwrap();
    assert_eq!((north.revision, north.parameters["rate"].clone()), (2, json!(9)));

    // Nothing is repeated of what another site sent, or of who knows where from; of too much; or of a secret that would be left out.
    let mut many = vec![("a", "x"); 2001];
    many.push(("do", "edit"));
    for (path, fields, headers, status) in [
        (path, &typed, &[("sec-fetch-site", "cross-site")][..], 303),
        (path, &typed, &[("origin", "https://evil.example")], 303),
        (path, &typed, &[], 303),
        (path, &many, &ours, 303),
        ("/deployments/north/edit", &typed, &ours, 303),
    ] {
        let reply = browser.send_form(path, fields, headers).await;
        assert_eq!((reply.status.as_u16(), reply.body.is_empty()), (status, true), "{path} {headers:?}");
    }
}

#[tokio::test]
async fn a_deployment_to_hundreds_of_named_devices_is_shown_changed_and_rehearsed() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let names: Vec<String> = (0..300).map(|number| format!("press-{number:04}")).collect();
    let fleet = plant.server.fleet();
    futures_util::future::join_all(names.iter().map(|name| stock::device(&plant, name, 4))).await;
    let north = "north".parse().unwrap();
    let mut want = gate(7);
    want.targets.devices = names.clone();
    fleet.put_deployment(&operator(), &north, want).await.unwrap();
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/deployments/north").await;
    assert!(page.len() < 150_000, "{}", page.len());
    assert!(page.contains("250 more</a>") && page.contains("margrave apply -f north.yaml"), "{page}");
    let mut fields = browser.fill_in("/deployments/north/edit", &[("answer.rate", "9")]).await;
    // With ten thousand it is larger than any other form.
    fields.push(("more".to_owned(), "x".repeat(300 * 1024)));
    // One of them less is told by name.
    let without: Vec<_> = fields.into_iter().filter(|(_, value)| *value != names[299]).collect();
    let page = text(browser.send("/deployments/north/edit/rehearsal", &without).await.is(200));
    assert!(page.contains(&format!("no longer: {}", names[299])), "what becomes other is told");
    browser.send("/deployments/north/edit", &without).await.is(303);
    assert_eq!(fleet.deployment_counted(&north).await.unwrap().targets.devices.len(), 299);
    // Other forms stay as small as they were.
    let large = "x".repeat(300 * 1024);
    browser.post("/packages", &[("reference", &large)]).await.is(413);
}

#[tokio::test]
async fn a_key_of_several_lines_is_sealed_with_all_of_them() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let typed = [("name", "south"), ("secret.answer.owner", PEM)];
    let mut fields = browser.fill_in("/deploy?package=gate&version=1.0.0", &typed).await;
    fields.push(("device".to_owned(), "press-1".to_owned()));
    browser.send("/deploy", &fields).await.is(303);
    let fleet = plant.server.fleet();
    let south = fleet.deployment(&"south".parse().unwrap()).await.unwrap();
    assert!(matches!(&south.parameters["owner"], Value::Object(_)), "{south:?}");
    // Only its document has the value.
    let client = fleet.device(&"press-1".parse().unwrap()).await.unwrap().client.parse().unwrap();
    let manifest = fleet.manifest(&client, Dialect::Miaf).unwrap();
    let listing = margrave_wire::g2::manifest::read(&manifest.body).unwrap();
    let mut values = Vec::new();
    for entry in listing.manifest.entries() {
        let bytes = fleet.document(&client, entry.id, entry.document.digest).await.unwrap().unwrap();
        values.push(format!("{:?}", String::from_utf8_lossy(&bytes)));
    }
    let sealed = "BEGIN CERTIFICATE-----\\\\nMIIB\\\\n  indented\\\\n-----END CERTIFICATE-----\\\\n";
    assert!(values.iter().any(|document| document.contains(sealed)), "{values:?}");
}

#[tokio::test]
async fn whoever_signs_out_after_the_session_ended_is_signed_out_and_asked_nothing() {
    let plant = Plant::new().await;
    let ours = [("sec-fetch-site", "same-origin")];
    for path in ["/sign-out", "/sign-out/everywhere"] {
        let mut browser = Browser::signed_in(&plant).await;
        let csrf = browser.csrf().await;
        Program::new(&plant).await.send("POST", "/sessions/end-all", &[], String::new()).await.is(200);
        let reply = browser.send_form(path, &[("csrf", &csrf)], &ours).await;
        assert_eq!(location(reply.is(303)), "/sign-in?next=%2F", "{path}: nothing to send again");
        browser.get("/sign-in").await.is(200);
        browser.get("/").await.is(303);
    }
}
