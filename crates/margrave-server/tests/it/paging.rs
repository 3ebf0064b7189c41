//! Lists go by page, all of them in the same way.

use margrave_wire::operator::{Event, OpenJoinToken, Page, Revision};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::operator::{Program, to};
use crate::plant::Plant;
use crate::stock;

impl Program {
    /// All pages of a list, so many things each; what was there first is left at the front.
    async fn pages<T: DeserializeOwned>(&mut self, path: &str, limit: usize) -> Vec<Vec<T>> {
        let json = [("accept", "application/json")];
        let (mut pages, mut after) = (Vec::new(), String::new());
        loop {
            let asked = format!("{path}?limit={limit}{after}");
            let page: Page<T> = self.send("GET", &asked, &json, String::new()).await.is(200).json();
            pages.push(page.items);
            match page.next {
                Some(next) => after = format!("&after={}", next.replace(' ', "%20")),
                None => return pages,
            }
        }
    }

    async fn refuses(&mut self, path: &str, query: &str) {
        let json = [("accept", "application/json")];
        self.send("GET", &format!("{path}?{query}"), &json, String::new()).await.is_problem(400);
    }
}

#[tokio::test]
async fn revisions_events_and_join_tokens_go_by_page() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    let mut program = Program::new(&plant).await;
    let mut want = to(&["press-1"]);
    for rate in 1..=5 {
        want.parameters.insert("rate".to_owned(), json!(rate));
        assert!(program.put("/deployments/north", &[], &want).await.status.is_success());
    }
    let path = "/deployments/north/revisions";
    let numbers = |pages: Vec<Vec<Revision>>| -> Vec<Vec<u64>> {
        pages.into_iter().map(|page| page.iter().map(|one| one.revision).collect()).collect()
    };
    assert_eq!(numbers(program.pages(path, 2).await), [vec![5, 4], vec![3, 2], vec![1]]);
    assert_eq!(numbers(program.pages(path, 5).await), [[5, 4, 3, 2, 1]], "no page with nothing on it");
    // What comes in front meanwhile shows nothing twice, and each says what it changed wherever a page ends.
    let first: Page<Revision> = program.get(&format!("{path}?limit=2")).await.is(200).json();
    assert_eq!(first.items[1].changes, ["Rate: 3 → 4"]);
    want.parameters.insert("rate".to_owned(), json!(6));
    assert!(program.put("/deployments/north", &[], &want).await.status.is_success());
    let next = first.next.unwrap().replace(' ', "%20");
    let second: Page<Revision> = program.get(&format!("{path}?limit=2&after={next}")).await.is(200).json();
    assert_eq!(numbers(vec![second.items]), [[3, 2]]);

    let all: Vec<Event> = program.pages("/events", 1000).await.concat();
    assert!(all.len() > 7 && all.windows(2).all(|pair| pair[0].sequence < pair[1].sequence), "{all:?}");
    let pages: Vec<Vec<Event>> = program.pages("/events", 3).await;
    assert_eq!(pages.concat(), all);
    assert!(pages.iter().rev().skip(1).all(|page| page.len() == 3));
    assert_eq!(program.pages::<Event>("/events", all.len()).await.len(), 1, "no page with nothing on it");

    for device in ["a", "b", "c"] {
        plant.token(device).await;
    }
    let pages: Vec<Vec<OpenJoinToken>> = program.pages("/join-tokens", 2).await;
    let mut names: Vec<String> = pages.concat().into_iter().map(|token| token.device).collect();
    names.sort();
    assert_eq!((pages.len(), names), (2, ["a", "b", "c"].map(str::to_owned).to_vec()));

    for path in [path, "/events", "/join-tokens"] {
        for query in ["limit=0", "limit=1001", "limit=x", "after=nothing", "page=2"] {
            program.refuses(path, query).await;
        }
    }
}

/// Who knows one list knows all: nothing is answered as a plain array, which has no room for what comes behind it.
#[tokio::test]
async fn every_list_that_is_described_is_a_page() {
    let plant = Plant::new().await;
    let mut program = Program::new(&plant).await;
    let document: Value = program.get("/openapi.json").await.is(200).json();
    let mut lists = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let schema = &methods["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        assert_ne!(schema["type"], "array", "{path}");
        let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) else { continue };
        if document["components"]["schemas"][name]["properties"]["items"].is_null() {
            continue;
        }
        lists += 1;
        let parameters = methods["get"]["parameters"].as_array().unwrap();
        for wanted in ["after", "limit"] {
            assert!(parameters.iter().any(|parameter| parameter["name"] == wanted), "{path} {wanted}");
        }
    }
    assert!(lists >= 15, "{lists}");
}
