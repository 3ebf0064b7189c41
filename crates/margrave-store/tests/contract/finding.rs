//! Devices found by several things at once are those that each of them finds, whatever leads to them first.

use std::collections::BTreeSet;

use margrave_core::deployment::Targets;
use margrave_core::lifecycle::{Reported, State};
use margrave_store::*;
use serde_json::json;

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
        ("more of a name", DeviceFilter { search: Some("INE-0".into()), ..ask() }),
        ("label", DeviceFilter { label: Some(("line".into(), Some("a".into()))), ..ask() }),
        ("any label", DeviceFilter { label: Some(("site".into(), None)), ..ask() }),
        ("site", DeviceFilter { site: Some("nord".into()), ..ask() }),
        ("without a site", DeviceFilter { without_site: true, ..ask() }),
        ("capability", DeviceFilter { capability: Some("ARM".into()), ..ask() }),
        ("part of a capability", DeviceFilter { capability: Some("m6".into()), ..ask() }),
        ("an id", DeviceFilter { capability: Some("line-1".into()), ..ask() }),
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

/// What a device is called and told, as a program that knows nothing of indexes looks through it.
struct Told {
    client: &'static str,
    device: &'static str,
    serial: &'static str,
    cpu: &'static str,
}

impl Told {
    fn named(&self, text: &str) -> bool {
        let whole = format!("{}:{}", self.client, self.device);
        let texts = if text.contains(':') { vec![&whole[..]] } else { vec![self.client, self.device] };
        texts.iter().any(|own| own.to_ascii_lowercase().contains(&text.to_ascii_lowercase()))
    }

    fn capable(&self, text: &str) -> bool {
        let texts = [self.device, self.serial, self.cpu];
        texts.iter().any(|own| own.to_ascii_lowercase().contains(&text.to_lowercase()))
    }
}

/// Gateways before their children.
const TOLD: [Told; 7] = [
    Told { client: "Press_1", device: "Press_1", serial: "100%_\\\"q\"", cpu: "arm64" },
    Told { client: "press-1", device: "press-1", serial: "'; --", cpu: "arm64" },
    Told { client: "press-1", device: "press-1/left.Arm", serial: "", cpu: "\u{212a}elvin" },
    Told { client: "gate", device: "other", serial: "* OR NEAR(a b)", cpu: "x86_64" },
    Told { client: "a", device: "a", serial: "ab", cpu: "e\u{301}tude" },
    Told { client: "a.b", device: "a.b", serial: "日本語のデバイス", cpu: "étude 100%" },
    Told { client: "b", device: "b", serial: "Grün-ÄÖ", cpu: "" },
];

/// Every part of every text that devices have, in both cases, and what no text has or a search might take for something else.
fn parts() -> BTreeSet<String> {
    let mut parts: BTreeSet<String> = [
        "nothing",
        "%",
        "_",
        "%%%",
        "___",
        "r_ss",
        "p%s",
        "\"",
        "\"\"",
        "\"\"\"",
        "\\",
        "\\%",
        "'",
        "*",
        "pre*",
        "^pre",
        "-a",
        "a OR b",
        "text:press",
        "{text}",
        "NOT a",
        "press ",
        " press",
        "k",
        "\u{212a}",
        "kelvin",
        "ss",
        "ß",
        "ßßß",
        "é",
        "E\u{301}tu",
        "ﬁﬁﬁ",
        "İ",
        "gate:other",
        "GATE:OTHER",
        ":other",
        "e:o",
        "gate\nx",
        "a:a",
        ":",
        "::",
        ":::",
    ]
    .map(str::to_owned)
    .into();
    for told in &TOLD {
        for text in [told.client, told.device, told.serial, told.cpu] {
            let letters: Vec<char> = text.chars().collect();
            for from in 0..letters.len() {
                for to in from + 1..=letters.len().min(from + 6) {
                    let part: String = letters[from..to].iter().collect();
                    parts.extend([part.to_uppercase(), part.to_lowercase(), part]);
                }
            }
            parts.insert(format!("{text}{}", "x".repeat(100)));
        }
    }
    parts
}

#[tokio::test]
async fn a_text_finds_what_has_it_whatever_is_in_it() {
    let world = World::new();
    for told in &TOLD {
        let Told { client: name, device, serial, cpu } = told;
        if !device.contains('/') {
            world.join(name).await;
        }
        let json = json!({ "properties": { "id": device, "serialNumber": serial, "cpu": cpu } });
        let told = body(device, json.to_string().as_bytes());
        world.store.put_capabilities(&client(name), told, NOW).await.unwrap();
    }
    let find = async |filter: DeviceFilter| -> BTreeSet<String> {
        let found = world.store.devices(DeviceFilter { limit: 100, ..filter }).await.unwrap();
        found.iter().map(|record| record.device.to_string()).collect()
    };
    let meant = |matches: &dyn Fn(&Told) -> bool| -> BTreeSet<String> {
        let meant = TOLD.iter().filter(|told| matches(told));
        meant.map(|told| device(&format!("{}:{}", told.client, told.device)).to_string()).collect()
    };
    assert_eq!(find(DeviceFilter::default()).await, meant(&|_| true));
    let (mut by_name, mut by_capability) = (0, 0);
    for part in parts() {
        let found = find(DeviceFilter { search: Some(part.clone()), ..DeviceFilter::default() }).await;
        assert_eq!(found, meant(&|told| told.named(&part)), "name {part:?}");
        by_name += usize::from(!found.is_empty());
        let found = find(DeviceFilter { capability: Some(part.clone()), ..DeviceFilter::default() }).await;
        assert_eq!(found, meant(&|told| told.capable(&part)), "capability {part:?}");
        by_capability += usize::from(!found.is_empty());
    }
    assert!(by_name > 50 && by_capability > 100, "{by_name} are in names, {by_capability} in capabilities");
}

/// Where a text leads to many, they are found in another way.
#[tokio::test]
async fn a_text_that_very_many_devices_have_finds_them_in_their_order() {
    const MANY: usize = 1_200;
    let world = World::new();
    let mut database = rusqlite::Connection::open(world.directory.path().join("margrave.db")).unwrap();
    let work = database.transaction().unwrap();
    for number in 0..MANY {
        let name = format!("line-{number:04}");
        let cpu = if number < 1_100 { "arm64" } else { "amd64" };
        let told = json!({ "properties": { "id": name, "cpu": cpu } }).to_string();
        work.execute("INSERT INTO client (id, standing, joined_at) VALUES (?1, 'accepted', 1)", [&name])
            .unwrap();
        work.execute("INSERT INTO manifest (client, version, body) VALUES (?1, 1, x'00')", [&name]).unwrap();
        work.execute(
            "INSERT INTO device (client, device, created_at, capabilities, capabilities_at)
             VALUES (?1, ?1, 1, ?2, 1)",
            (&name, told.as_bytes()),
        )
        .unwrap();
    }
    work.commit().unwrap();
    let ask = |search: &str, capability: &str| {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        DeviceFilter { search: some(search), capability: some(capability), ..DeviceFilter::default() }
    };
    for (filter, count, first) in [
        (ask("LINE", ""), MANY, "line-0100"),
        (ask("ine-01", ""), 100, "line-0100"),
        (ask("ine-1", ""), 200, "line-1000"),
        (ask("", "LINE"), MANY, "line-0100"),
        (ask("", "arm64"), 1_100, "line-0100"),
        (ask("", "amd64"), 100, "line-1100"),
        (ask("ine-110", "amd64"), 10, "line-1100"),
        (ask("line", "amd64"), 100, "line-1100"),
    ] {
        let all = DeviceFilter { limit: 5_000, ..filter.clone() };
        let counted = world.store.devices_counted(all).await.unwrap();
        assert_eq!(counted, Counted::Exactly(count as u64), "{filter:?}");
        let after = Some(device("line-0099"));
        let page = world.store.devices(DeviceFilter { limit: 1, after, ..filter.clone() }).await.unwrap();
        assert_eq!(page[0].device, device(first), "{filter:?}");
    }
}

/// Who is meant in every way that there is.
fn means() -> Vec<Targets> {
    let by = |devices: &[&str], labels: &[(&str, &str)], select: &str, sites: &[&str]| Targets {
        devices: devices.iter().map(|name| device(name)).collect(),
        labels: crate::fixture::labels(labels),
        select: if select.is_empty() { Default::default() } else { select.parse().unwrap() },
        sites: sites.iter().map(|site| (*site).to_owned()).collect(),
    };
    vec![
        by(&["line-01", "line-08"], &[], "", &[]),
        by(&["line-11", "nobody"], &[], "", &[]),
        by(&[], &[("line", "a")], "", &[]),
        by(&[], &[("line", "b"), ("site", "sued")], "", &[]),
        by(&[], &[("line", "c")], "", &[]),
        by(&[], &[], "site in (nord, west)", &[]),
        by(&[], &[], "site, line!=a", &[]),
        by(&[], &[], "!site", &[]),
        by(&[], &[], "", &["sued"]),
        by(&["line-00"], &[("line", "b")], "site=nord", &["west"]),
        Targets::default(),
    ]
}

#[tokio::test]
async fn a_device_that_two_targets_mean_is_found_where_there_is_one() {
    let world = plant().await;
    let mut common = 0;
    for one in means() {
        let all = world.store.devices_targeted(&one).await.unwrap();
        for other in means() {
            let both: Vec<&Candidate> =
                all.iter().filter(|found| other.matches(&found.device, &found.labels)).collect();
            let found = world.store.device_in_both(&one, &other).await.unwrap();
            match found {
                Some(found) => assert!(both.contains(&&found), "{one:?} and {other:?}: {found:?}"),
                None => assert!(both.is_empty(), "{one:?} and {other:?}: {both:?}"),
            }
            common += usize::from(!both.is_empty());
        }
    }
    assert!((20..100).contains(&common), "{common} have somebody in common");
}

#[tokio::test]
async fn nobody_is_looked_at_behind_the_first_that_two_targets_mean() {
    let world = plant().await;
    // Nobody can read it any more.
    let database = rusqlite::Connection::open(world.directory.path().join("margrave.db")).unwrap();
    database.execute("UPDATE device SET origin = ' ' WHERE client = 'line-05'", []).unwrap();
    let of = |key: &str, value: &str| Targets { labels: labels(&[(key, value)]), ..Targets::default() };
    let (line, site) = (of("line", "a"), of("site", "nord"));
    assert!(world.store.devices_targeted(&line).await.is_err());
    let found = world.store.device_in_both(&line, &site).await.unwrap().unwrap();
    assert_eq!(found.device, device("line-01"));
}
