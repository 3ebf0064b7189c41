//! The form for when devices talk and change.

use crate::browser::{Browser, text};
use crate::plant::Plant;

#[tokio::test]
async fn hours_are_set_for_whom_the_form_names_whoever_it_was_opened_for() {
    let plant = Plant::new().await;
    let fleet = plant.server.fleet();
    let mut browser = Browser::signed_in(&plant).await;
    browser.post("/settings/schedule", &[("reach", "fleet"), ("poll", "15m")]).await.is(303);
    let settings = browser.page("/settings").await;
    assert!(settings.contains("href=\"/settings/schedule\""), "{settings}");
    let form = browser.page("/settings/schedule").await;
    assert!(form.contains("name=\"reach\" value=\"\"") && !form.contains("value=\"15m\""), "{form}");
    let seen = |page: &str| {
        let (_, rest) = page.split_once("name=\"seen\" value=\"").unwrap();
        rest.split_once('"').unwrap().0.to_owned()
    };
    // As it comes from the form for all, and from that of the fleet.
    let fleets = browser.page("/settings/schedule?reach=fleet").await;
    for (opened, reach) in [(&form, "label:site=north"), (&fleets, "label:site=south")] {
        let fields = [("reach", reach), ("poll", "5m"), ("seen", &seen(opened))];
        browser.post("/settings/schedule", &fields).await.is(303);
        assert_eq!(fleet.schedule(reach).await.unwrap().schedule.poll_every_seconds, Some(300));
    }
    // Where something is, it is shown before it is replaced.
    let first = seen(&form);
    let mut fields = [("reach", "fleet"), ("poll", "20m"), ("seen", first.as_str())];
    let page = text(browser.post("/settings/schedule", &fields).await.is(422));
    assert!(page.contains("Something is set for fleet already: asks every 15m"), "{page}");
    assert_eq!(fleet.schedule("fleet").await.unwrap().schedule.poll_every_seconds, Some(900));
    let told = seen(&page);
    fields[2].1 = &told;
    browser.post("/settings/schedule", &fields).await.is(303);
    assert_eq!(fleet.schedule("fleet").await.unwrap().schedule.poll_every_seconds, Some(1200));
}

#[tokio::test]
async fn one_look_at_hours_tells_everything_that_is_wrong_with_them() {
    let plant = Plant::new().await;
    let mut browser = Browser::signed_in(&plant).await;
    let mut wrong =
        [("reach", "x"), ("poll", "often"), ("windows", "whenever"), ("hold", "90d"), ("wait", "true")];
    let marked = |page: &str| {
        let (_, rest) = page.split_once("<ul class=\"marked\">").unwrap();
        let list = rest.split_once("</ul>").unwrap().0;
        list.split("href=\"#").skip(1).map(|at| at.split('"').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let page = text(browser.post("/settings/schedule", &wrong).await.is(422));
    assert_eq!(marked(&page), ["reach", "poll", "windows", "hold"], "{page}");
    assert!(page.contains("31 days at most") && !page.contains("hoose something"), "{page}");
    // What can be read and is too much stands at its field as well.
    wrong[1].1 = "1s";
    wrong[2].1 = "";
    wrong[3].1 = "x";
    let page = text(browser.post("/settings/schedule", &wrong).await.is(422));
    assert_eq!(marked(&page), ["reach", "poll", "hold"], "{page}");
    assert!(plant.server.fleet().schedules().await.unwrap().is_empty());
}
