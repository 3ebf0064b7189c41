//! Forms as a browser sends them: what stands in a page's fields, after what HTML does to it.

use margrave_wire::Dialect;
use margrave_wire::operator::{Override, Targets};
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
    // The form comes back, and says where the secret has to be typed again: without it, something else would be done.
    let page = text(again.send(path, &carried).await.is(200));
    assert!(page.contains("The secret that was typed here was not kept"), "{page}");
    let fields_again = fields_of(&page, "<form id=\"deploy\"");
    let reply = again.send(path, &fields_again).await;
    assert!(text(reply.is(200)).contains("<ins>9</ins>"), "what else was typed goes on");
    // A form that was left open needs nothing but to be sent: its mark is that of the token.
    again.send("/deployments/north/edit", &fields).await.is(303);
    let north = plant.server.fleet().deployment(&"north".parse().unwrap()).await.unwrap();
    assert_eq!((north.revision, north.parameters["rate"].clone()), (2, json!(9)));

    // Also where nothing would have been shown before it is done.
    let page = text(browser.send_form("/deployments/north/edit", &typed, &ours).await.is(401));
    assert!(page.contains(&format!("action=\"{path}\"")) && !page.contains("hunter2"), "{page}");

    // Nothing is repeated of what another site sent, or of who knows where from; or of too much. The door says that it is lost.
    let mut many = vec![("a", "x"); 2001];
    many.push(("do", "edit"));
    for (path, fields, headers, status) in [
        (path, &typed, &[("sec-fetch-site", "cross-site")][..], 303),
        (path, &typed, &[("origin", "https://evil.example")], 303),
        (path, &typed, &[], 303),
        (path, &many, &ours, 303),
    ] {
        let reply = browser.send_form(path, fields, headers).await;
        assert_eq!((reply.status.as_u16(), reply.body.is_empty()), (status, true), "{path} {headers:?}");
        assert_eq!(location(&reply), "/sign-in?next=%2Fdeployments%2Fnorth%2Fedit&undone=true");
    }
}

#[tokio::test]
async fn a_password_that_was_typed_while_signed_out_is_asked_for_again_with_the_rest_filled_in() {
    let plant = Plant::new().await;
    let fleet = plant.server.fleet();
    let mut browser = Browser::signed_in(&plant).await;
    let (path, ours) = ("/settings/registries", [("sec-fetch-site", "same-origin")]);
    let form = "action=\"/settings/registries\"";
    for secret in ["password", "token"] {
        let mut fields = fields_of(&browser.page("/settings").await, form);
        type_in(&mut fields, "host", "registry.example");
        type_in(&mut fields, "user", "plant");
        for other in ["password", "token"] {
            type_in(&mut fields, other, if other == secret { "hunter2" } else { "" });
        }
        let typed: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        let cookie = std::mem::take(&mut browser.cookie);
        let page = text(browser.send_form(path, &typed, &ours).await.is(401));
        assert!(page.contains("Nothing was changed") && !page.contains("hunter2"), "{page}");
        // Signed in again, it is sent as the page has it; twice, as the page without a mark is not trusted at once.
        browser.cookie = cookie;
        let carried = fields_of(&page, form);
        let carried: Vec<(&str, &str)> = carried.iter().map(|(name, value)| (&**name, &**value)).collect();
        let page = text(browser.send_form(path, &carried, &ours).await.is(403));
        assert!(page.contains("A secret that was typed is kept nowhere"), "{page}");
        let page = text(browser.send(path, &fields_of(&page, form)).await.is(422));
        assert!(
            page.contains(&format!("aria-describedby=\"{secret}-wrong\"")) && page.contains("type it again"),
            "{page}"
        );
        assert!(fleet.registries().await.unwrap().is_empty(), "nothing is done without it");
        let held = fields_of(&page, form);
        assert!(held.contains(&("host".to_owned(), "registry.example".to_owned())), "{held:?}");
        assert!(held.contains(&("user".to_owned(), "plant".to_owned())), "{held:?}");
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

/// Sends the form as it stands on a page, changed by hand, to where a button of it leads.
async fn go_on(
    browser: &mut Browser,
    page: &str,
    path: &str,
    change: impl FnOnce(&mut Vec<(String, String)>),
) -> String {
    let mut fields = fields_of(page, "<form id=\"deploy\"");
    change(&mut fields);
    text(browser.send(path, &fields).await.is(200))
}

fn type_in(fields: &mut Vec<(String, String)>, name: &str, value: &str) {
    match fields.iter_mut().find(|(field, _)| field == name) {
        Some(field) => field.1 = value.to_owned(),
        None => fields.push((name.to_owned(), value.to_owned())),
    }
}

fn untick(fields: &mut Vec<(String, String)>, device: &str) {
    let before = fields.len();
    fields.retain(|(name, value)| name != "device" || value != device);
    assert_eq!(fields.len(), before - 1, "{device} is ticked");
}

#[tokio::test]
async fn the_form_of_a_deployment_stays_small_however_many_devices_it_names() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let names: Vec<String> = (0..900).map(|number| format!("press-{number:04}")).collect();
    let fleet = plant.server.fleet();
    futures_util::future::join_all(names.iter().map(|name| stock::device(&plant, name, 4))).await;
    let north = "north".parse().unwrap();
    let mut want = gate(7);
    want.targets.devices = names[..300].to_vec();
    fleet.put_deployment(&operator(), &north, want.clone()).await.unwrap();
    let mut browser = Browser::signed_in(&plant).await;
    let (edit, rehearsal) = ("/deployments/north/edit", "/deployments/north/edit/rehearsal");
    let few = browser.page(edit).await.len();
    want.targets.devices = names[..890].to_vec();
    fleet.put_deployment(&operator(), &north, want).await.unwrap();
    let page = browser.page(edit).await;
    assert!(page.len() < few + 1000, "{few} bytes with 300 devices, {} with 890", page.len());
    assert!(page.contains("more that it names, kept as they are"), "{page}");

    // One is found and taken out, then another found and put in; what was done by hand stays done while others are looked for.
    let page = go_on(&mut browser, &page, rehearsal, |fields| {
        untick(fields, &names[3]);
        type_in(fields, "find-search", "press-0700");
        type_in(fields, "do", "find");
    })
    .await;
    let page = go_on(&mut browser, &page, rehearsal, |fields| {
        untick(fields, &names[700]);
        type_in(fields, "find-search", "press-0895");
        type_in(fields, "do", "find");
    })
    .await;
    let page = go_on(&mut browser, &page, rehearsal, |fields| {
        fields.push(("device".to_owned(), names[895].clone()));
        type_in(fields, "find-search", "press-0001");
        type_in(fields, "do", "find");
    })
    .await;
    let page = go_on(&mut browser, &page, rehearsal, |fields| type_in(fields, "answer.rate", "9")).await;
    assert!(
        page.contains(&format!("new: {}; no longer: {}, {}", names[895], names[3], names[700])),
        "{page}"
    );
    assert!(page.len() < few, "{}", page.len());
    let commit = fleet.deployment_counted(&north).await.unwrap().commit.unwrap();
    let told = browser.page(&format!("/commits/{commit}")).await;
    assert!(told.len() < 60_000 && told.contains("more lines."), "{}", told.len());
    // Meanwhile somebody else changes it: the form is about who was named when it was opened, also then.
    let carried = fields_of(&page, "action=\"/deployments/north/edit\" class=\"form-end\"");
    let mut other = gate(8);
    other.targets.devices = names[..500].to_vec();
    fleet.put_deployment(&operator(), &north, other).await.unwrap();
    let page = text(browser.send(edit, &carried).await.is(422));
    assert!(page.contains("while this form was open"), "{page}");
    let carried = fields_of(&page, "<form id=\"deploy\"");
    browser.send(edit, &carried).await.is(303);
    let mut named = names[..890].to_vec();
    named.retain(|name| *name != names[3] && *name != names[700]);
    named.push(names[895].clone());
    let held = fleet.deployment_counted(&north).await.unwrap();
    assert_eq!(held.targets.devices, named);
    // Twice is once.
    browser.send(edit, &carried).await.is(303);
    assert_eq!(fleet.deployment_counted(&north).await.unwrap().revision, held.revision);

    // All at once can be let go, too, and what was ticked beforehand stays.
    let page = browser.page(edit).await;
    let page = go_on(&mut browser, &page, rehearsal, |fields| {
        fields.retain(|(name, value)| name != "stay" && (name != "device" || *value == names[0]));
        type_in(fields, "find-search", "press-0800");
        type_in(fields, "do", "find");
    })
    .await;
    let mut carried = fields_of(&page, "<form id=\"deploy\"");
    assert!(carried.iter().all(|(name, _)| name != "stay"), "it stays unticked");
    carried.push(("device".to_owned(), names[800].clone()));
    browser.send(edit, &carried).await.is(303);
    let held = fleet.deployment_counted(&north).await.unwrap();
    assert_eq!(held.targets.devices, [names[0].clone(), names[800].clone()]);
    // A form that refers to what nobody knows changes nothing.
    type_in(&mut carried, "named-at", "77");
    browser.send(edit, &carried).await.is(400);
}

#[tokio::test]
async fn what_is_wrong_with_thousands_of_devices_is_told_of_some() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let names: Vec<String> = (0..150).map(|number| format!("tiny-{number:04}")).collect();
    futures_util::future::join_all(names.iter().map(|name| stock::device(&plant, name, 1))).await;
    let mut browser = Browser::signed_in(&plant).await;
    let typed = [("name", "south"), ("answer.owner", "me"), ("answer.site", "ABC")];
    let form = browser.fill_in("/deploy?package=gate&version=1.0.0", &typed).await;
    let form = |names: &[String]| {
        let ticked = names.iter().map(|name| ("device".to_owned(), name.clone()));
        form.iter().cloned().chain(ticked).collect::<Vec<_>>()
    };
    let page = text(browser.send("/deploy/rehearsal", &form(&names)).await.is(422));
    let (notice, _) = page.split_once("<form id=\"deploy\"").unwrap();
    assert_eq!(notice.matches(" does not fit: ").count(), 20, "{notice}");
    assert!(notice.contains("And 130 more do not fit."), "{notice}");
    // Names of nobody: what is ticked and not shown is carried along, those that are wrong are shown.
    let mut names: Vec<String> = (0..400).map(|number| format!("nobody-{number:04}")).collect();
    names.push("press-1".to_owned());
    let page = text(browser.send("/deploy/rehearsal", &form(&names)).await.is(422));
    assert_eq!(
        page.matches("there is no device nobody-").count()
            + page.matches("There is no device nobody-").count(),
        20
    );
    assert!(page.contains("The same of 380 more."), "{page}");
    let carried = fields_of(&page, "<form id=\"deploy\"");
    let page = text(browser.send("/deploy/rehearsal", &carried).await.is(422));
    assert!(page.contains("The same of 380 more."), "nobody is lost on the way");
}

#[tokio::test]
async fn groups_that_are_too_many_for_a_form_stay_as_they_are() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let fleet = plant.server.fleet();
    let north = "north".parse().unwrap();
    let mut browser = Browser::signed_in(&plant).await;
    for (number, named, rate) in [(60, 0, 9), (2, 600, 11)] {
        let mut want = gate(7);
        want.overrides = (0..number)
            .map(|group| Override {
                targets: Targets {
                    devices: (0..named).map(|_| "press-1".to_owned()).collect(),
                    labels: [("site".to_owned(), format!("s{group}"))].into(),
                    ..Default::default()
                },
                parameters: [("rate".to_owned(), json!(group + 1))].into(),
            })
            .collect();
        if named > 0 {
            let names: Vec<String> = (0..named).map(|number| format!("press-{number:04}")).collect();
            futures_util::future::join_all(names.iter().map(|name| stock::device(&plant, name, 4))).await;
            want.overrides.iter_mut().for_each(|held| held.targets.devices = names.clone());
        }
        fleet.put_deployment(&operator(), &north, want).await.unwrap();
        let before = fleet.deployment_counted(&north).await.unwrap().overrides;
        assert_eq!(before.len(), number);
        let page = browser.page("/deployments/north/edit").await;
        assert!(page.len() < 150_000, "{}", page.len());
        assert!(page.contains(&format!("{number} groups of devices")), "{page}");
        let mut fields = fields_of(&page, "<form id=\"deploy\"");
        type_in(&mut fields, "answer.rate", &format!("{rate}"));
        browser.send("/deployments/north/edit", &fields).await.is(303);
        let after = fleet.deployment_counted(&north).await.unwrap();
        assert_eq!((after.overrides, &after.parameters["rate"]), (before, &json!(rate)));
    }
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
