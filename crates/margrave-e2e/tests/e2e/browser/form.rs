//! The form that a package's own rules make: every kind of question, every rule, told at the field.

use std::collections::BTreeMap;

use margrave_wire::g2;
use serde_json::{Value, json};

use super::signed_in;
use crate::chromium::Browser;
use crate::stage::{PRETENDED, Stage};

/// Fields that are marked as wrong, with what is told there.
const MARKED: &str = "return Object.fromEntries([...document.querySelectorAll('.field[data-wrong]')].map(field =>
    [field.querySelector(':scope > label, :scope > .label').firstChild.textContent.trim(), field.querySelector('.wrong').textContent]))";
/// A package with every data type and every rule of the configuration schema.
const QUESTIONS: &str = include_str!("questions.yaml");
const SECRET: &str = "correct horse 7";

#[test]
fn every_kind_of_question_is_asked_and_every_rule_is_told_at_its_field() {
    let Some((browser, demo)) = signed_in() else { return };
    browser.open(&format!("{}/deploy?package=quality-gate", demo.page));
    browser.fill("Name", "gate");
    browser.choose_device("press-1");
    browser.fill("Site code", "NORD-01");
    // Each alone, so that each message is the field's own.
    for (label, wrong, right, told) in [
        ("Site code", "", "NORD-01", "needs a value"),
        ("Site code", "NO-1", "NORD-01", "at least 6"),
        ("Site code", "NORDNORD-01", "NORD-01", "at most 9"),
        ("Site code", "nord-01", "NORD-01", "match"),
        ("Contact", "nobody", "a@b", "match"),
        ("Cameras", "two", "2", "no whole number"),
        ("Cameras", "0", "2", "at least 1"),
        ("Cameras", "9", "2", "at most 8"),
        ("Threshold", "much", "0.9", "no number"),
        ("Threshold", "1.5", "0.9", "at most 1"),
        ("Threshold", "0.123", "0.9", "2"),
        ("Lanes", "1\nx", "1\n2", "no whole number"),
        ("Lanes", "17", "1\n2", "at most 16"),
        ("Recipes", "", "standard\nfine", "at least one"),
    ] {
        browser.fill(label, wrong);
        browser.press("See what will happen");
        browser.wait_text(".notice.bad", "Nothing was changed");
        let marked = browser.run(
            "return [...document.querySelectorAll('.field[data-wrong]')].map(field => [field.querySelector('label').firstChild.textContent.trim(), field.querySelector('.wrong').textContent])",
        );
        assert_eq!(marked[0][0], label, "{wrong:?}: {marked}");
        assert!(marked[1].is_null(), "{wrong:?} is wrong at one field: {marked}");
        assert!(
            marked[0][1].as_str().is_some_and(|message| message.contains(told)),
            "{wrong:?} is told {told:?}: {marked}"
        );
        assert_eq!(browser.value(label), wrong, "what was typed stays");
        browser.fill(label, right);
    }
    // One of several, any of several, yes or no; and a group with answers of its own.
    browser.choose("Mode", "enforce");
    browser.tick("Reject bad parts");
    browser.tick("night");
    browser.press("Add a group");
    browser.fill("Devices with these labels", "site=nord");
    browser.fill_by_id("group-0-question-2", "5");
    browser.look("deploy-group");
    browser.press("See what will happen");
    browser.wait_text("h1", "What will happen");
    browser.press("Deploy");
    browser.wait_text("h1", "gate");
    let made = demo.margrave(&["deployment", "show", "gate"]);
    assert_eq!(
        made["parameters"],
        json!({
            "siteCode": "NORD-01", "contact": "a@b", "cameras": 2, "threshold": 0.9, "lanes": [1, 2],
            "recipes": ["standard", "fine"], "mode": "enforce", "reject": true,
            "shifts": ["early", "late", "night"], "drill": "none",
        })
    );
    assert_eq!(made["overrides"][0]["parameters"], json!({ "cameras": 5 }));
    // What may not change any more is not asked again.
    browser.open(&format!("{}/deployments/gate/edit", demo.page));
    assert_eq!(browser.run("return document.getElementById('question-0')"), json!(null));
    assert_eq!(browser.value("Cameras"), "2");
    browser.assert_calm(&[("/deploy/rehearsal", 422)]);
}

/// A field, what is typed into it, and what is told of it.
type Wrong = (&'static str, &'static str, &'static str);
/// What breaks its rule at the field, then what breaks it at the server; each field once in a round.
const ROUNDS: [&[Wrong]; 6] = [
    &[
        ("Word", "", "needs a value"),
        ("Count", "two", "no whole number"),
        ("Share", "much", "no number"),
        ("Words", "", "at least one"),
        ("Counts", "1\nx", "no whole number"),
        ("Shares", "0.5\nx", "no number"),
        ("Flags", "true\nmaybe", "neither true nor false"),
    ],
    &[
        ("Count", "2.5", "no whole number"),
        ("Share", "", "needs a value"),
        ("Counts", "", "at least one"),
        ("Shares", "NaN", "no number"),
        ("Flags", "", "at least one"),
    ],
    &[
        ("Word", "ab", "at least 3 characters"),
        ("Note", "elevenchars", "at most 10 characters"),
        ("Count", "1", "at least 2"),
        ("Share", "0.4", "at least 0.5"),
        ("Words", "abc\na", "at least 2 characters"),
        ("Counts", "0", "at least 1"),
        ("Shares", "-1", "at least 0"),
    ],
    &[
        ("Word", "abcdefg", "at most 6 characters"),
        ("Count", "6", "at most 5"),
        ("Share", "3", "at most 2.5"),
        ("Words", "abcde", "at most 4 characters"),
        ("Counts", "10", "at most 9"),
        ("Shares", "2", "at most 1"),
    ],
    &[
        ("Word", "ABC", "match the pattern ^[a-z]+$"),
        ("Share", "1.2345", "at most 3 decimal places"),
        ("Words", "AB", "match the pattern ^[a-z]+$"),
        ("Shares", "0.55", "at most 1 decimal places"),
    ],
    // Only a list that somebody meddled with offers these.
    &[
        ("Colour", "blue", "one of red, green"),
        ("Size", "9", "one of 1, 2"),
        ("Rate", "9.5", "one of 0.5, 1.5"),
    ],
];
const RIGHT: [(&str, &str); 8] = [
    ("Word", "abc"),
    ("Note", ""),
    ("Count", "4"),
    ("Share", "1.5"),
    ("Words", "ab\ncd"),
    ("Counts", "1\n9"),
    ("Shares", "0.5\n1"),
    ("Flags", "true\nfalse"),
];

#[test]
fn every_data_type_and_rule_is_typed_and_arrives_at_the_device() {
    let Some(browser) = Browser::start() else { return };
    let stage = Stage::start();
    let place = stage.path("package-questions");
    let component = place.join("components/main");
    std::fs::create_dir_all(&component).expect("the stage's directory is writable");
    std::fs::write(component.join("compose.yaml"), PRETENDED).expect("writable");
    std::fs::write(place.join("margo.yaml"), QUESTIONS).expect("writable");
    let added = stage.margrave(&["package", "add", place.to_str().expect("a plain path")]);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    stage.join("line-1");
    let _agent = stage.simulated("line-1", "100ms");
    browser.sign_in(&stage.page(), &stage.token());
    browser.open(&format!("{}/deploy?package=questions", stage.page()));
    browser.fill("Name", "asked");
    browser.choose_device("line-1");

    // Nothing chosen where something must be, and a secret that the package does not allow: told without repeating it.
    let type_secret = |text: &str| {
        browser.run("for (const folded of document.querySelectorAll('details.secret')) folded.open = true");
        browser.fill_by_id("question-2-secret", text);
    };
    for (label, right) in RIGHT {
        browser.fill(label, right);
    }
    browser.press("See what will happen");
    assert_eq!(marked(&browser), ["Colour", "Password", "Shifts"]);
    // What is marked is listed above, and each leads there.
    browser.run("document.querySelector('.notice.bad .marked a[href$=\"-field\"]').click()");
    assert_eq!(
        browser.run(
            "return document.querySelector(':target .label, :target label').firstChild.textContent.trim()"
        ),
        "Password"
    );
    browser.choose("Colour", "green");
    browser.tick("late");
    type_secret("nodigits");
    browser.press("See what will happen");
    assert_eq!(marked(&browser), ["Password"]);
    browser.wait_text(".field[data-wrong] .wrong", "text, at least 8 characters, matching the pattern [0-9]");
    browser.look("deploy-secret-wrong");
    assert_hidden(&browser, "nodigits");
    type_secret(SECRET);
    let masked = "return getComputedStyle(document.getElementById('question-2-secret')).webkitTextSecurity";
    assert_eq!(browser.run(masked), "disc");

    for round in ROUNDS {
        for (label, wrong, _) in round {
            meddle(&browser, label, wrong);
        }
        browser.press("See what will happen");
        browser.wait_text(".notice.bad", "Nothing was changed");
        let told: BTreeMap<String, String> =
            serde_json::from_value(browser.run(MARKED)).expect("labels and messages");
        let labels: Vec<&str> = told.keys().map(String::as_str).collect();
        let mut expected: Vec<&str> = round.iter().map(|(label, ..)| *label).collect();
        expected.sort_unstable();
        assert_eq!(labels, expected, "{told:?}");
        for (label, wrong, words) in round {
            assert!(told[*label].contains(words), "{label} with {wrong:?} is told {words:?}: {told:?}");
            // A list offers nothing that it does not have.
            if RIGHT.iter().any(|(right, _)| right == label) {
                assert_eq!(browser.value(label), *wrong, "what was typed stays");
            }
        }
        assert_hidden(&browser, SECRET);
        for (label, right) in RIGHT {
            browser.fill(label, right);
        }
        browser.choose("Colour", "green");
        browser.choose("Size", "2");
        browser.choose("Rate", "1.5");
    }
    browser.look("deploy-questions");
    browser.tick("Switch");
    browser.fill("Extras", "");
    browser.press("See what will happen");
    browser.wait_text("h1", "What will happen");
    assert_hidden(&browser, SECRET);
    browser.press("Deploy");
    browser.wait_text("h1", "asked");
    browser.wait_text("#devices", "INSTALLED");
    assert_hidden(&browser, SECRET);
    browser.wait_text("#wanted", "Password");

    let made = stage.json(&["deployment", "show", "asked"]);
    let mut parameters = made["parameters"].clone();
    assert!(parameters["password"]["secret"]["sealed"].is_string(), "{made}");
    parameters.as_object_mut().expect("an object").remove("password");
    let expected = json!({
        "word": "abc", "note": "", "fixed": "first", "count": 4, "share": 1.5, "switch": true, "words": ["ab", "cd"],
        "counts": [1, 9], "shares": [0.5, 1.0], "flags": [true, false], "extras": [], "colour": "green", "size": 2,
        "rate": 1.5, "shifts": ["late"], "lanes": [1],
    });
    assert_eq!(parameters, expected);
    // All of it is in the document that the device holds, the secret as well: single values as text, with as many decimal places
    // as are demanded.
    let documents = std::fs::read_dir(stage.path("line-1/documents")).expect("the device keeps documents");
    let mut documents = documents.flatten().map(|file| std::fs::read(file.path()).expect("a document"));
    let document = g2::document::read(&documents.next().expect("one")).expect("a document can be read");
    let arrived: BTreeMap<String, Value> = document
        .parameters
        .iter()
        .map(|parameter| (parameter.targets[0].pointer.to_lowercase(), json!(parameter.value)))
        .collect();
    let mut expected = expected;
    expected["password"] = json!(SECRET);
    for (name, text) in
        [("share", "1.50"), ("count", "4"), ("size", "2"), ("rate", "1.5"), ("switch", "true")]
    {
        expected[name] = json!(text);
    }
    assert_eq!(json!(arrived), expected);
    // It is shown nowhere, on no page that tells of the deployment.
    let commit = made["commit"].as_str().expect("every change is a commit").to_owned();
    for path in
        ["/deployments/asked", "/deployments/asked/edit", "/deployments/asked/revisions/1", "/devices/line-1"]
    {
        browser.open(&format!("{}{path}", stage.page()));
        assert_hidden(&browser, SECRET);
    }
    browser.open(&format!("{}/commits/{commit}", stage.page()));
    assert_hidden(&browser, SECRET);
    browser.assert_calm(&[("/deploy/rehearsal", 422)]);
}

/// Types it, or makes a list offer it.
fn meddle(browser: &Browser, label: &str, text: &str) {
    if RIGHT.iter().any(|(right, _)| *right == label) {
        return browser.fill(label, text);
    }
    let script = "const label = [...document.querySelectorAll('label')].find(label => label.firstChild.textContent.trim() === arguments[0]);
        const option = new Option(arguments[1], arguments[1]);
        document.getElementById(label.htmlFor).append(option);
        option.selected = true";
    browser.run_with(script, vec![json!(label), json!(text)]);
}

/// The labels of fields that are marked as wrong.
fn marked(browser: &Browser) -> Vec<String> {
    browser.wait_text(".notice.bad", "Nothing was changed");
    let told = browser.run(MARKED);
    let mut labels: Vec<String> = told.as_object().expect("an object").keys().cloned().collect();
    labels.sort_unstable();
    labels
}

/// Nothing of the page has it: neither its source, nor a field, nor its address.
fn assert_hidden(browser: &Browser, secret: &str) {
    let found = browser.run_with(
        "const fields = [...document.querySelectorAll('input, textarea, select')].map(field => field.value).join('\\n');
         return [document.documentElement.outerHTML, fields, location.href].map(text => text.includes(arguments[0]))",
        vec![json!(secret)],
    );
    assert_eq!(found, Value::from(vec![false; 3]), "{secret} is told");
}
