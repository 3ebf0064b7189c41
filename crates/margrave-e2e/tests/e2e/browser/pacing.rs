//! A change in steps: chosen in the form, paused on its page, resumed from the fleet page, followed to its end.

use super::Demo;
use crate::chromium::Browser;

#[test]
fn a_rollout_is_paused_and_resumed_and_its_bar_tells_the_truth() {
    let Some(browser) = Browser::start() else { return };
    let demo = Demo::start();
    let board =
        ["deploy", "andon-board", "--name", "board", "--to", "press-1,press-2,paint-1,pack-1", "--wait"];
    demo.margrave(&board);
    browser.open(&demo.sign_in);

    browser.open(&format!("{}/deployments/board/edit", demo.page));
    browser.tick("In steps, each proven before the next");
    browser.fill("First on this many", "none");
    browser.press("See what will happen");
    // Told at the field, which is still there.
    browser.wait_text(".field[data-wrong]", "First on this many");
    browser.look("deploy-steps-wrong");
    browser.fill("First on this many", "1");
    browser.fill("Watch these for", "20s");
    browser.fill("Then in batches of", "2");
    browser.fill("Message", "Shift 2");
    browser.press("See what will happen");
    browser.wait_text("main", "first 1, watched for 20 s; batches of 2");
    browser.look("rehearsal-steps");
    browser.press("Change");
    browser.press("Pause");
    browser.wait_text("#rollout header", "paused");
    browser.wait_text("#rollout", "of 4 devices have it");
    // Those whose turn has not come say so, and what they keep; they are not among those that have it.
    browser.wait_text("#devices .rows, #devices", "keeps revision 1");
    let waiting =
        "return String(document.querySelectorAll('#devices tbody .badge[data-state=waiting]').length)";
    assert_eq!(browser.see("rows", waiting), "3");
    browser.look("rollout");
    let status = demo.margrave(&["status"]);
    assert_eq!(status["assignments"]["WAITING"], 3, "{status}");
    assert_eq!(demo.margrave(&["deployment", "show", "board"])["counts"]["total"], 4);

    browser.open(&format!("{}/deployments/board/rollout/abort", demo.page));
    browser.wait_text("h1", "Abort the rollout of board, revision ");
    browser.look("abort");
    browser.open(&format!("{}/deployments/board", demo.page));
    browser.wait_text("#rollout header", "paused");

    // Others do something about it: the buttons follow.
    browser.watch();
    demo.margrave(&["rollout", "resume", "board"]);
    browser.wait_text("#rollout .actions", "Pause");
    assert!(!browser.text("#rollout .actions").contains("Resume"), "{}", browser.text("#rollout .actions"));
    demo.margrave(&["rollout", "pause", "board"]);
    browser.wait_text("#rollout .actions", "Resume");
    assert!(!browser.text("#rollout .actions").contains("Pause"), "{}", browser.text("#rollout .actions"));
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");

    browser.follow("Deployments");
    browser.wait_text("#deployments", "waiting");
    browser.look("deployments-waiting");
    browser.open(&format!("{}/devices/press-2", demo.page));
    browser.wait_text("#runs", "keeps revision 1");
    browser.wait_text(".head", "waits for its turn in batch");
    browser.look("device-waiting");

    browser.follow("Fleet");
    browser.wait_text("#rollouts", "board, revision 2");
    browser.wait_text("#needs", "board, revision 2");
    browser.look("fleet-paused");
    browser.press_labelled("Resume board, revision 2");
    browser.wait_text("h1", "board");
    browser.watch();
    browser.wait_text("#rollout header", "done");
    browser.wait_text("#rollout", "4 of 4 devices have it");
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");
    let filled = browser.run("return document.querySelector('#rollout .bar rect').getAttribute('width')");
    assert_eq!(filled, "1000", "all of the bar is done");
    browser.assert_calm(&[("/deployments/board/edit/rehearsal", 422)]);
}
