//! What holds on every page: what can be done has its command beside it, a moment has its exact UTC, what is to be typed
//! elsewhere can be copied, and where there is nothing yet it says what to do first.

use crate::browser::{Browser, deployed};
use crate::plant::Plant;
use crate::stock;

/// Every form that a page may have, by the end of its action, and how the command begins that does the same. A new form
/// finds its place here.
const COMMANDS: [(&str, &str); 24] = [
    ("/devices/press-1/labels", "margrave device label press-1 "),
    ("/devices/press-9/labels", "margrave device label press-9 "),
    ("/devices/press-9/hold", "margrave device hold press-9 "),
    ("/devices/press-9/release", "margrave device release press-9"),
    ("/devices/press-9/look", "margrave device look press-9"),
    ("/devices/small-1/labels", "margrave device label small-1 "),
    ("/devices/small-1/accept", "margrave device accept small-1"),
    ("/devices/press-1/retire", "margrave device retire press-1"),
    ("/devices/new", "margrave device token"),
    ("/devices", "margrave device label "),
    ("/packages", "margrave package add "),
    ("/packages/gate/1.0.0/remove", "margrave package remove gate@1.0.0"),
    ("/watches", "margrave package watch "),
    ("/watches/look", "margrave package look "),
    ("/watches/remove", "margrave package unwatch "),
    ("/deployments/north/remove?seen=1", "margrave deployment remove north"),
    ("/access", "margrave token create "),
    ("/settings/schedule", "margrave schedule set "),
    ("/settings/schedule/remove", "margrave schedule remove "),
    ("/settings/registries", "margrave registry add "),
    ("/settings/registries/check", "margrave registry check "),
    ("/settings/registries/remove", "margrave registry remove "),
    ("/settings/backup", "margrave backup "),
    ("/sign-out/everywhere", "margrave session end-all"),
];

const PAGES: [&str; 23] = [
    "/",
    "/devices",
    "/devices/new",
    "/devices/press-1",
    "/devices/press-9",
    "/devices/small-1",
    "/devices/press-1/retire",
    "/packages",
    "/packages/gate/1.0.0",
    "/packages/gate/1.0.0/remove",
    "/deployments",
    "/deployments/north",
    "/deployments/north/remove",
    "/deployments/north/revisions/1",
    "/deploy?package=gate",
    "/why?subject=press-1",
    "/audit",
    "/audit?actor=nobody",
    "/access",
    "/settings",
    "/settings/schedule?reach=device:press-1",
    "/settings/schedule/remove?reach=device:press-1",
    "/sign-out/everywhere",
];

/// A plant on whose pages everything stands that can.
async fn busy() -> (Plant, Browser) {
    let plant = Plant::new().await;
    deployed(&plant).await;
    plant.join("press-9").await;
    let mut browser = Browser::signed_in(&plant).await;
    let window = [("reach", "device:press-1"), ("windows", "sun 02:00-05:00 Europe/Berlin"), ("poll", "15m")];
    browser.post("/settings/schedule", &window).await.is(303);
    let registry = [("host", "registry.example"), ("user", "plant"), ("password", "secret")];
    browser.post("/settings/registries", &registry).await.is(303);
    let watch = [("repository", "oci://127.0.0.1:9/packages/gate"), ("match", "1.*"), ("every", "1h")];
    browser.post("/watches", &watch).await.is(303);
    browser.post("/devices/press-9/hold", &[("reason", "a batch runs"), ("seconds", "3600")]).await.is(303);
    browser.post("/devices/small-1/retire", &[]).await.is(303);
    (plant, browser)
}

#[tokio::test]
async fn every_form_has_its_command_on_the_same_page() {
    let (_plant, mut browser) = busy().await;
    let mut met = std::collections::BTreeSet::new();
    for path in PAGES {
        let page = browser.page(path).await;
        for form in page.split("<form").skip(1).filter_map(|form| form.split_once('>')) {
            let (attributes, _) = form;
            let Some((_, action)) = attributes.split_once("action=\"") else { continue };
            let action = action.split('"').next().unwrap();
            // Signing out of one browser is that browser's alone; what a deployment is asked leads to what would happen, which
            // has the command.
            if !attributes.contains("method=\"post\"") || ["/sign-out", "/deploy/rehearsal"].contains(&action)
            {
                continue;
            }
            let command = COMMANDS.iter().find(|(form, _)| *form == action);
            let (_, command) = command.unwrap_or_else(|| panic!("{path}: no command is known for {action}"));
            let shown = page.split("<pre><code>").skip(1).filter_map(|block| block.split("</code>").next());
            assert!(
                shown.into_iter().any(|block| block.contains(command)),
                "{path}: {action} without {command:?}"
            );
            met.insert(action.to_owned());
        }
    }
    let unmet: Vec<_> = COMMANDS.iter().filter(|(form, _)| !met.contains(*form)).collect();
    assert_eq!(unmet, [&("", ""); 0], "{met:?}");
}

#[tokio::test]
async fn every_moment_has_its_exact_utc() {
    let (_plant, mut browser) = busy().await;
    let is_moment = |text: &str| {
        let digits = |range: std::ops::Range<usize>| text.as_bytes()[range].iter().all(u8::is_ascii_digit);
        text.len() >= 16
            && text.is_char_boundary(16)
            && digits(0..4)
            && digits(5..7)
            && digits(11..13)
            && &text[4..5] == "-"
            && &text[10..11] == "T"
            && &text[13..14] == ":"
    };
    let mut moments = 0;
    for path in PAGES {
        let page = browser.page(path).await;
        for time in page.split("<time ").skip(1) {
            let tag = time.split_once('>').unwrap().0;
            assert!(tag.contains("datetime=\"") && tag.contains(" UTC\""), "{path}: {tag}");
            moments += 1;
        }
        // Nor does one stand there as a machine writes it, but for what is to be typed or copied.
        let main = page.split_once("<main").unwrap().1;
        let shown = main.split("<pre").map(|part| part.split_once("</pre>").map_or(part, |(_, rest)| rest));
        for text in shown.flat_map(|part| part.split('>')).filter_map(|piece| piece.split('<').next()) {
            let bare = text.char_indices().find(|(at, _)| is_moment(&text[*at..]));
            assert!(bare.is_none(), "{path}: {text}");
        }
    }
    assert!(moments > 20, "{moments}");
}

#[tokio::test]
async fn what_is_typed_elsewhere_can_be_copied() {
    let (_plant, mut browser) = busy().await;
    for (path, text) in [
        ("/devices/press-1", ">press-1</code>"),
        ("/packages/gate/1.0.0", ">gate</code>"),
        ("/packages/gate/1.0.0", ":1.0.0</code>"),
        ("/settings", "Trust domain <span class=\"hash\"><code>"),
        ("/access", "token-"),
    ] {
        let page = browser.page(path).await;
        let (_, rest) = page.split_once(text).unwrap_or_else(|| panic!("{path}: {text}: {page}"));
        let near = rest.split_once("data-copy").unwrap_or_else(|| panic!("{path}: {text}")).0;
        assert!(near.len() < 300, "{path}: no button is beside {text}: {near}");
    }
    for path in PAGES {
        let page = browser.page(path).await;
        for command in page.split("class=\"command\"").skip(1) {
            assert!(command.starts_with("><button type=\"button\" data-copy hidden>"), "{path}");
        }
    }
}

#[tokio::test]
async fn where_there_is_nothing_yet_it_says_what_to_do_first() {
    let plant = Plant::new().await;
    let mut browser = Browser::signed_in(&plant).await;
    for (path, says) in [
        ("/", "Begin here"),
        ("/devices", "Make a token</a>, then paste the command"),
        ("/packages", "Add an application from a directory"),
        ("/deployments", "Choose a <a href=\"/packages\">package</a>"),
        ("/audit?actor=nobody", "<a href=\"/audit\">Show all</a>"),
        ("/audit?after=1", "There is nothing older"),
        ("/settings", "Set polling, hours, windows or downtime"),
    ] {
        let page = browser.page(path).await;
        assert!(page.contains(says), "{path}: {page}");
    }
    stock::device(&plant, "press-1", 4).await;
    let page = browser.page("/devices/press-1").await;
    assert!(
        page.contains("Choose a <a href=\"/packages\">package</a> and deploy it to this device"),
        "{page}"
    );
}
