//! Devices found by several things at once are those that each of them finds, whatever leads to them first.

use std::collections::BTreeSet;

use margrave_core::lifecycle::{Reported, State};
use margrave_store::*;

use crate::body;
use crate::fixture::*;

/// Twelve devices, so different that every question divides them otherwise.
async fn plant() -> World {
    let world = World::new();
    for number in 0..12 {
        let name = format!("line-{number:02}");
        world.join(&name).await;
        let architecture = if number % 2 == 0 { "arm64" } else { "amd64" };
        let told = format!(r#"{{"properties": {{"id": "{name}", "cpu": "{architecture}"}}}}"#);
        if number != 7 {
            world.store.put_capabilities(&client(&name), body(&name, told.as_bytes()), NOW).await.unwrap();
        }
        let heard = if number % 5 == 0 { NOW } else { later(100) };
        world.store.touch_contacts(vec![(client(&name), heard)]).await.unwrap();
        let mut labels = vec![("line", if number < 6 { "a" } else { "b" })];
        labels.extend((number % 3 != 0).then_some(("site", if number % 3 == 1 { "nord" } else { "sued" })));
        world.label(&device(&name), &labels).await;
        if number % 4 != 3 {
            let id = world.deploy("hello", &name, name.as_bytes()).await;
            let state = if number % 4 == 0 { Reported::Failed } else { Reported::Installed };
            world.store.record_report(&client(&name), report(id, 2, state), NOW).await.unwrap();
        }
    }
    world.store.retire_clients(vec![client("line-11")], NOW, "operator ann").await.unwrap();
    world
}

/// One question each.
fn questions() -> Vec<(&'static str, DeviceFilter)> {
    let ask = DeviceFilter::default;
    let mut questions = vec![
        ("name", DeviceFilter { search: Some("-0".into()), ..ask() }),
        ("label", DeviceFilter { label: Some(("line".into(), Some("a".into()))), ..ask() }),
        ("any label", DeviceFilter { label: Some(("site".into(), None)), ..ask() }),
        ("site", DeviceFilter { site: Some("nord".into()), ..ask() }),
        ("without a site", DeviceFilter { without_site: true, ..ask() }),
        ("capability", DeviceFilter { capability: Some("ARM".into()), ..ask() }),
        ("deployment", DeviceFilter { deployment: Some("hello".parse().unwrap()), ..ask() }),
        ("state", DeviceFilter { state: Some(State::Failed), ..ask() }),
    ];
    questions.extend(Condition::ALL.map(|condition| {
        (condition.as_str(), DeviceFilter { condition: Some(condition), ..DeviceFilter::default() })
    }));
    questions
}

/// Both at once; `None` where they are the same kind of question.
fn both(one: &DeviceFilter, other: &DeviceFilter) -> Option<DeviceFilter> {
    fn either<T: Clone>(one: &Option<T>, other: &Option<T>) -> Option<Option<T>> {
        match (one, other) {
            (Some(_), Some(_)) => None,
            _ => Some(one.clone().or(other.clone())),
        }
    }
    Some(DeviceFilter {
        search: either(&one.search, &other.search)?,
        label: either(&one.label, &other.label)?,
        condition: either(&one.condition, &other.condition)?,
        state: either(&one.state, &other.state)?,
        site: either(&one.site, &other.site)?,
        without_site: one.without_site || other.without_site,
        deployment: either(&one.deployment, &other.deployment)?,
        capability: either(&one.capability, &other.capability)?,
        ..DeviceFilter::default()
    })
}

#[tokio::test]
async fn what_several_questions_find_is_what_each_of_them_finds() {
    let world = plant().await;
    let silence = Silence { before: later(50), heard: vec![client("line-10")] };
    let find = async |filter: &DeviceFilter| {
        let filter = DeviceFilter { silence: silence.clone(), limit: 100, ..filter.clone() };
        let found: Vec<String> = world
            .store
            .devices(filter.clone())
            .await
            .unwrap()
            .iter()
            .map(|record| record.device.to_string())
            .collect();
        let counted = world.store.devices_counted(filter.clone()).await.unwrap();
        assert_eq!(counted, Counted::Exactly(found.len() as u64), "{filter:?}");
        // In small pages it is the same, and the page before one is found from where it ends.
        let mut paged = Vec::new();
        let mut after = None;
        loop {
            let page = DeviceFilter { limit: 2, after: after.clone(), ..filter.clone() };
            let records = world.store.devices(page).await.unwrap();
            let Some(last) = records.last() else { break };
            if records.len() == 2 {
                let back = DeviceFilter { limit: 2, after: Some(last.device.clone()), ..filter.clone() };
                assert_eq!(world.store.page_before(back).await.unwrap(), after, "{filter:?}");
            }
            after = Some(last.device.clone());
            paged.extend(records.iter().map(|record| record.device.to_string()));
        }
        assert_eq!(paged, found, "{filter:?}");
        assert!(found.is_sorted(), "{filter:?}");
        found.into_iter().collect::<BTreeSet<String>>()
    };
    let questions = questions();
    let mut divided = 0;
    for (word, one) in &questions {
        let alone = find(one).await;
        assert!((1..12).contains(&alone.len()), "{word} divides them: {alone:?}");
        for (other_word, other) in &questions {
            let Some(asked) = both(one, other) else { continue };
            let meant: BTreeSet<String> = &alone & &find(other).await;
            assert_eq!(find(&asked).await, meant, "{word} and {other_word}");
            divided += usize::from(!meant.is_empty());
        }
    }
    assert!(divided > 40, "only {divided} of them find somebody");
}
