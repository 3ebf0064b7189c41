//! What an open page is told: that something changed, only to who may look, and not more often than it helps.

use margrave_wire::operator::SetLabels;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::browser::Browser;
use crate::line::DEADLINE;
use crate::plant::{Plant, operator};
use crate::stock;

/// A stream as an open page has it.
struct Stream {
    socket: TcpStream,
    text: String,
}

impl Stream {
    async fn open(plant: &Plant, browser: &Browser, path: &str) -> Stream {
        let mut socket = TcpStream::connect(plant.server.addresses().local.unwrap()).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncookie: {}\r\n\r\n",
            browser.cookie
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut stream = Stream { socket, text: String::new() };
        stream.until(|text| text.contains("\r\n\r\n")).await;
        assert!(stream.text.starts_with("HTTP/1.1 200"), "{}", stream.text);
        stream
    }

    /// All that was told so far, once that is enough.
    async fn until(&mut self, enough: impl Fn(&str) -> bool) -> &str {
        let reading = async {
            while !enough(&self.text) {
                let mut bytes = [0; 4096];
                let count = self.socket.read(&mut bytes).await.unwrap();
                assert!(count > 0, "the stream ended: {}", self.text);
                self.text.push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        };
        timeout(DEADLINE, reading).await.expect("the page is told");
        &self.text
    }

    /// The ids that came, once this one is among them.
    async fn ids_until(&mut self, id: u64) -> Vec<u64> {
        let ids = |text: &str| -> Vec<u64> {
            text.lines().filter_map(|line| line.strip_prefix("id: ")?.trim().parse().ok()).collect()
        };
        ids(self.until(|text| ids(text).contains(&id)).await)
    }

    /// All that was told, by the time that the server ended it.
    async fn ended(mut self) -> String {
        let mut rest = Vec::new();
        timeout(DEADLINE, self.socket.read_to_end(&mut rest)).await.expect("the stream ends").unwrap();
        self.text + &String::from_utf8_lossy(&rest)
    }
}

/// How far the log is.
async fn newest_entry(plant: &Plant) -> u64 {
    plant.server.fleet().audit(Default::default()).await.unwrap().items[0].sequence
}

#[tokio::test]
async fn a_page_is_told_that_something_changed() {
    let plant = Plant::new().await;
    stock::device(&plant, "press-1", 4).await;
    let browser = Browser::signed_in(&plant).await;
    let newest = plant.server.fleet().recent_events(1).await.unwrap()[0].sequence;
    let mut stream = Stream::open(&plant, &browser, &format!("/events/stream?after={newest}")).await;
    // Something comes before anything happens: else a browser, or a proxy, need not call it open.
    stream.until(|text| text.contains("retry: 2000")).await;
    let labels = SetLabels { labels: [("a".to_owned(), Some("b".to_owned()))].into() };
    plant.server.fleet().label(&operator(), &"press-1".parse().unwrap(), labels).await.unwrap();
    let told = stream.until(|text| text.contains("\"device\":\"press-1\"")).await;
    assert!(told.contains(&format!("id: {}", newest + 1)), "{told}");
}

#[tokio::test]
async fn a_page_that_saw_more_than_a_restored_server_knows_follows_it_all_the_same() {
    let plant = Plant::new().await;
    stock::device(&plant, "press-1", 4).await;
    let browser = Browser::signed_in(&plant).await;
    let newest = plant.server.fleet().recent_events(1).await.unwrap()[0].sequence;
    let path = format!("/events/stream?after={}", newest + 1000);
    let mut stream = Stream::open(&plant, &browser, &path).await;
    // Everything may be other than it knows, once.
    let told = stream.until(|text| text.contains("data: []")).await;
    assert!(told.contains(&format!("id: {newest}")), "{told}");
    let labels = SetLabels { labels: [("a".to_owned(), Some("b".to_owned()))].into() };
    plant.server.fleet().label(&operator(), &"press-1".parse().unwrap(), labels).await.unwrap();
    let told = stream.until(|text| text.contains("\"device\":\"press-1\"")).await;
    assert!(told.contains(&format!("id: {}", newest + 1)), "{told}");
    assert_eq!(told.matches("data: []").count(), 1, "{told}");
}

#[tokio::test]
async fn the_page_of_the_audit_log_is_told_of_every_entry_that_is_kept() {
    let plant = Plant::new().await;
    stock::device(&plant, "press-1", 4).await;
    let token = plant.operator_token("vera", "viewer").await;
    let mut vera = Browser::stranger(&plant).await;
    let reply = vera.send_form("/sign-in", &[("token", &token.secret)], &[]).await;
    vera.cookie = crate::browser::cookie(reply.is(303));
    let mut admin = Browser::signed_in(&plant).await;

    // The page says where it stands, and what it follows.
    let page = vera.page("/audit").await;
    let newest = newest_entry(&plant).await;
    assert!(page.contains(&format!("data-stream=\"/audit/stream\" data-after=\"{newest}\"")), "{page}");
    assert!(page.contains("id=\"entries\" class=\"stack\" data-live"), "{page}");
    // Older entries stay what they are.
    assert!(!vera.page(&format!("/audit?after={newest}")).await.contains("data-live"));

    let mut stream = Stream::open(&plant, &vera, &format!("/audit/stream?after={newest}")).await;
    // A change, and a refusal of which nothing else is told.
    admin.post("/devices/press-1/labels", &[("key", "a"), ("value", "b")]).await.is(303);
    stream.ids_until(newest + 1).await;
    admin.post("/devices/nobody/retire", &[]).await.is(404);
    stream.ids_until(newest + 2).await;
    assert!(vera.page("/audit").await.contains("device.retire"));
    // Of what is in them nothing is told here.
    for line in stream.text.lines().filter(|line| line.starts_with("data:")) {
        assert_eq!(line.trim(), "data: []", "{}", stream.text);
    }

    // However many came meanwhile, who comes back is told once.
    let before = newest_entry(&plant).await;
    for _ in 0..5 {
        admin.post("/devices/nobody/retire", &[]).await.is(404);
    }
    let mut back = Stream::open(&plant, &vera, &format!("/audit/stream?after={before}")).await;
    assert_eq!(back.ids_until(before + 5).await, [before + 5]);

    // Who may not look any more hears no more, also not of what put an end to it.
    let told = back.text.len();
    plant.server.fleet().revoke_operator_token(&operator(), &token.token.id).await.unwrap();
    let all = back.ended().await;
    assert!(!all[told..].contains("id:"), "{all}");
    vera.get("/audit/stream").await.is(401);
}

#[tokio::test]
async fn who_is_signed_out_hears_no_more() {
    let plant = Plant::new().await;
    let (mut one, two) = (Browser::signed_in(&plant).await, Browser::signed_in(&plant).await);
    let streams = [
        Stream::open(&plant, &two, "/events/stream").await,
        Stream::open(&plant, &two, "/audit/stream").await,
    ];
    one.post("/sign-out/everywhere", &[]).await.is(303);
    for stream in streams {
        let all = stream.ended().await;
        assert!(!all.contains("id:"), "{all}");
    }
}
