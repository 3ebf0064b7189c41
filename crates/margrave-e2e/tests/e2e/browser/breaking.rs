//! A demo's devices are broken on purpose, from the page, and heal by themselves.

use std::path::PathBuf;

use serde_json::json;

use super::signed_in;
use crate::stage::wait_for;

#[test]
fn what_is_broken_from_the_banner_heals_in_sight() {
    let Some((browser, demo)) = signed_in() else { return };
    demo.margrave(&["deploy", "andon-board", "--name", "board", "--to", "press-2,paint-1", "--wait"]);
    demo.margrave(&["deploy", "andon-board", "--name", "second", "--to", "press-1", "--wait"]);

    // A cut line and a wrong clock: told on the page for as long as it lasts, whoever looks and from wherever.
    browser.break_device("paint-1", "Cut its network");
    browser.wait_text(".notice", "network is cut");
    browser.wait_text("#timeline", "broken on purpose: its network is cut until");
    browser.break_device("press-2", "Skew its clock");
    browser.wait_text(".notice", "two hours ahead");
    browser.wait_text("#facts", "2 h ahead of the server's");
    browser.look("device-skewed");
    browser.open(&format!("{}/devices/paint-1", demo.page));
    browser.wait_text(".notice", "network is cut");
    // It hears nothing of this until it is back.
    demo.margrave(&["deploy", "line-monitor", "--name", "monitor", "--to", "paint-1"]);

    // Killed in the middle of an update, and there in the end.
    browser.break_device("press-1", "Kill it during an update");
    browser.wait_text(".notice", "killed as soon as it changes something");
    browser.look("device-broken");
    browser.watch();
    demo.margrave(&["deployment", "update", "second", "--set", "message=Killed"]);
    let order = |before: &str, after: &str| {
        // The newest stands first.
        let script =
            "const [before, after] = arguments, told = document.querySelector('#timeline').textContent;
            return told.includes(after) && told.indexOf(after) < told.indexOf(before) ? 'yes' : null";
        wait_for(&format!("{before}, and then {after}"), || {
            (browser.run_with(script, vec![json!(before), json!(after)]) == "yes").then_some(())
        });
    };
    order("second on press-1 is UPDATING", "is back: it was killed in the middle of a change");
    browser.wait_text("#runs", "INSTALLED");
    browser.wait_text(".head", "converged");
    assert_eq!(demo.margrave(&["device", "show", "press-1"])["assignments"][0]["current"], true);
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");

    // What it downloads arrives damaged: refused, asked for again, and applied when it is what was promised.
    browser.break_device("press-1", "Corrupt a download");
    browser.wait_text(".notice", "The next thing that it downloads arrives damaged");
    browser.watch();
    demo.margrave(&["deployment", "update", "second", "--set", "message=Damaged"]);
    order("the next thing that it downloads arrives damaged", "is back: a download arrived damaged");
    browser.wait_text(".head", "converged");
    let told = browser.text("#timeline");
    assert!(told.contains("was refused: ") && told.contains("sha256:"), "{told}");
    let shown = demo.margrave(&["device", "show", "press-1"]);
    assert_eq!(
        (&shown["assignments"][0]["state"], &shown["assignments"][0]["current"]),
        (&json!("INSTALLED"), &json!(true))
    );
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");

    // What it keeps is spoiled; it fetches it again, because no digest fits.
    let documents = || -> Vec<PathBuf> {
        let demos = std::fs::read_dir(demo.directory.path()).expect("a directory").flatten();
        let places = demos.map(|entry| entry.path().join("devices/press-1/documents"));
        let files = places.filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten();
        files.map(|entry| entry.path()).collect()
    };
    let modified = |file: &PathBuf| std::fs::metadata(file).and_then(|it| it.modified()).ok();
    let (file, bytes) = wait_for("it has a document", || {
        let mut read =
            documents().into_iter().filter_map(|file| Some((std::fs::read_to_string(&file).ok()?, file)));
        read.find(|(text, _)| text.contains("Damaged")).map(|(text, file)| (file, text.into_bytes()))
    });
    let written = modified(&file);
    browser.break_device("press-1", "Spoil its disk");
    browser.wait_text("#timeline", "what it keeps on its disk is overwritten");
    wait_for("the document was spoiled, and is whole again", || {
        (modified(&file) != written && std::fs::read(&file).ok()? == bytes).then_some(())
    });
    browser.wait_text("#runs", "INSTALLED");

    browser.wait_text("#timeline", "is back: it was started anew");

    // Both heal by themselves, in sight of whoever stayed.
    browser.open(&format!("{}/devices/paint-1", demo.page));
    browser.watch();
    browser.wait_text("#timeline", "is back: its network works again");
    browser.see("nothing is broken", "return document.querySelector('.notice') ? null : 'yes'");
    browser.wait_text("#runs", "monitor");
    browser.wait_text(".head", "converged");
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");
    browser.look("device-healed");
    browser.open(&format!("{}/devices/press-2", demo.page));
    browser.wait_text("#timeline", "is back: its clock is right again");
    browser.see(
        "its clock is right",
        "return document.querySelector('#facts').textContent.includes('ahead') ? null : 'yes'",
    );
    browser.assert_calm(&[]);
}
