//! Somebody who looks at pages and fills in forms, without a screen.

use http::header::{LOCATION, SET_COOKIE};
use margrave_wire::operator::{PutDeployment, SetLabels, Targets};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;

use crate::line::{Line, Reply};
use crate::plant::{Plant, operator};
use crate::stock::{self, HOSTILE};

/// A browser with one cookie.
pub(crate) struct Browser {
    pub(crate) line: Line,
    pub(crate) cookie: String,
}

impl Browser {
    /// Somebody who has not signed in.
    pub(crate) async fn stranger(plant: &Plant) -> Browser {
        Browser { line: plant.local().await, cookie: String::new() }
    }

    pub(crate) async fn signed_in(plant: &Plant) -> Browser {
        let mut browser = Browser::stranger(plant).await;
        let reply = browser.send_form("/sign-in", &[("token", &plant.server.context().token)], &[]).await;
        reply.is(303);
        browser.cookie = cookie(&reply);
        browser
    }

    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        let cookie = self.cookie.clone();
        self.line.send("GET", path, &[("cookie", &cookie)], "").await.unwrap()
    }

    /// A page that must be there, as text.
    pub(crate) async fn page(&mut self, path: &str) -> String {
        let reply = self.get(path).await;
        reply.is(200);
        text(&reply)
    }

    /// The mark that this session's forms carry.
    pub(crate) async fn csrf(&mut self) -> String {
        let page = self.page("/devices/new").await;
        let (_, rest) = page.split_once("name=\"csrf\" value=\"").unwrap();
        rest.split_once('"').unwrap().0.to_owned()
    }

    /// Fills in a form and sends it.
    pub(crate) async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Reply {
        let csrf = self.csrf().await;
        let mut all = vec![("csrf", csrf.as_str())];
        all.extend(fields);
        self.send_form(path, &all, &[]).await
    }

    pub(crate) async fn send_form(
        &mut self,
        path: &str,
        fields: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Reply {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let pairs = fields.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value)));
        let body = pairs.collect::<Vec<_>>().join("&");
        let cookie = self.cookie.clone();
        let mut all =
            vec![("cookie", cookie.as_str()), ("content-type", "application/x-www-form-urlencoded")];
        all.extend(headers);
        self.line.send("POST", path, &all, body).await.unwrap()
    }
}

/// What a page says. Marks that only say where a line may break are no part of it.
pub(crate) fn text(reply: &Reply) -> String {
    let page = String::from_utf8(reply.body.to_vec()).unwrap();
    let mut pieces = page.split("<span class=\"word\">");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |said, piece| said + &piece.replacen("</span>", "", 1))
}

pub(crate) fn cookie(reply: &Reply) -> String {
    reply.headers[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned()
}

pub(crate) fn location(reply: &Reply) -> &str {
    reply.headers[LOCATION].to_str().unwrap()
}

/// Nothing in the page may be markup that came from a name.
#[track_caller]
pub(crate) fn is_clean(page: &str) {
    for markup in ["<script>alert", "<img src=x", "<b>tag", "<i>Sons", "<u>code"] {
        assert!(!page.contains(markup), "{markup} in {page}");
    }
}

/// The package `gate` as `north` on `press-1`; `small-1` is too small for it.
pub(crate) async fn deployed(plant: &Plant) {
    stock::gate(plant).await;
    stock::device(plant, "press-1", 4).await;
    stock::device(plant, "small-1", 1).await;
    let fleet = plant.server.fleet();
    let labels = SetLabels { labels: [("note".to_owned(), Some(HOSTILE.to_owned()))].into() };
    fleet.label(&operator(), &"press-1".parse().unwrap(), labels).await.unwrap();
    fleet.put_deployment(&operator(), &"north".parse().unwrap(), gate(7)).await.unwrap();
}

/// The gate on one device, with this rate.
pub(crate) fn gate(rate: u64) -> PutDeployment {
    PutDeployment {
        package: "gate".to_owned(),
        parameters: [("owner".to_owned(), json!("me")), ("rate".to_owned(), json!(rate))].into(),
        targets: Targets { devices: vec!["press-1".to_owned()], ..Default::default() },
        ..Default::default()
    }
}
