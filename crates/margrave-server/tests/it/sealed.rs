//! A secret that is typed on the page: sealed before anything else is done with it.

use serde_json::{Value, json};

use crate::browser::{Browser, deployed, location, text};
use crate::plant::Plant;

const SECRET: &str = "hunter2-and-more";

/// What a hidden field holds.
fn hidden(page: &str, name: &str) -> String {
    let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).expect(name);
    rest.split_once('"').unwrap().0.to_owned()
}

#[tokio::test]
async fn a_secret_that_is_typed_is_sealed_before_anything_tells_it() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/deploy?package=gate").await;
    assert!(
        page.contains("class=\"line unseen\" id=\"question-0-secret\" name=\"secret.answer.owner\""),
        "{page}"
    );
    let form = vec![
        ("package", "gate"),
        ("version", "1.0.0"),
        ("name", "south"),
        ("answer.owner", ""),
        ("answer.site", "NORD"),
        ("answer.rate", "9"),
        ("answer.shift", "late"),
        ("device", "press-1"),
        ("labels", ""),
        ("sites", ""),
        ("select", ""),
        ("groups", "1"),
        ("group.0.labels", "line=4"),
        ("group.0.answer.owner", ""),
    ];
    let mut typed = form.clone();
    typed.extend([("secret.answer.owner", SECRET), ("secret.group.0.answer.owner", "of-a-group")]);
    // Without a deployment to seal it for, it has to be typed again, and is not shown.
    let mut nameless = typed.clone();
    nameless[2].1 = "No Name";
    let page = text(browser.post("/deploy/rehearsal", &nameless).await.is(422));
    assert!(page.contains("type it again") && !page.contains(SECRET), "{page}");

    let rehearsed = text(browser.post("/deploy/rehearsal", &typed).await.is(200));
    assert!(!rehearsed.contains(SECRET) && !rehearsed.contains("of-a-group"), "{rehearsed}");
    let sealed = hidden(&rehearsed, "reference.answer.owner");
    let of_group = hidden(&rehearsed, "reference.group.0.answer.owner");
    assert!(sealed.starts_with("sealed:mgs1.") && of_group.starts_with("sealed:mgs1."), "{rehearsed}");
    assert!(!rehearsed.contains("name=\"answer.owner\""), "{rehearsed}");
    // Back in the form it is known, and can be replaced; from there it goes on as it is.
    let mut kept = form.clone();
    kept.extend([("reference.answer.owner", sealed.as_str()), ("reference.group.0.answer.owner", &of_group)]);
    let mut back = kept.clone();
    back.push(("do", "edit"));
    let page = text(browser.post("/deploy/rehearsal", &back).await.is(200));
    assert!(page.contains("a secret, sealed") && page.contains("Replace<"), "{page}");
    assert_eq!(hidden(&page, "reference.group.0.answer.owner"), of_group);
    assert_eq!(location(browser.post("/deploy", &kept).await.is(303)), "/deployments/south");
    let fleet = plant.server.fleet();
    let south = "south".parse().unwrap();
    let made = fleet.deployment(&south).await.unwrap();
    let text_of = |value: &Value| value["secret"]["sealed"].as_str().map(|text| format!("sealed:{text}"));
    assert_eq!(text_of(&made.parameters["owner"]), Some(sealed.clone()));
    assert_eq!(text_of(&made.overrides[0].parameters["owner"]), Some(of_group));

    // Changed: what is not typed stays, what is typed is sealed, and a mistake can be taken back.
    let page = browser.page("/deployments/south/edit").await;
    assert_eq!(hidden(&page, "reference.answer.owner"), sealed);
    let mut revision = made.revision.to_string();
    let change = [("version", "1.0.0"), ("answer.site", "NORD"), ("answer.rate", "9"), ("device", "press-1")];
    for (field, value, sealed_anew) in [
        ("answer.owner", "", None),
        ("secret.answer.owner", "another", Some(true)),
        ("answer.owner", "clear", Some(false)),
    ] {
        let mut fields = change.to_vec();
        fields.extend([("answer.shift", "late"), ("revision", &revision), (field, value)]);
        if sealed_anew.is_some() {
            fields.push(("reference.answer.owner", &sealed));
        }
        browser.post("/deployments/south/edit", &fields).await.is(303);
        let now = fleet.deployment(&south).await.unwrap();
        let owner = &now.parameters["owner"];
        match sealed_anew {
            None => assert_eq!(text_of(owner), Some(sealed.clone())),
            Some(true) => assert!(text_of(owner).is_some_and(|text| text != sealed), "{owner}"),
            Some(false) => assert_eq!(*owner, json!("clear")),
        }
        revision = now.revision.to_string();
    }
}
