//! The server, as a simulated device sees it: performs what the core decided, checks every byte as a real
//! device does, and counts how it went.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use margrave_core::device::{FetchPlan, Polled, Trouble as Passing};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::manifest::Entry;
use margrave_core::report::Report;
use margrave_http::{Client, HeaderName, Request, Response, StatusCode, header};
use margrave_wire::{bundle, g2};

use crate::tally::{Question, Tally, Trouble};

const DOCUMENT_SIZE_MAX: u64 = 1 << 20;
/// Simulated devices share one machine's memory; a real device takes more.
const BUNDLE_SIZE_MAX: u64 = 4 << 20;
/// How much longer than the wait it asked for a poll may take; a new connection alone may take half of that.
const POLL_SLACK: Duration = Duration::from_secs(60);
/// All have heard when nobody was told for this long.
const NEWS_PAUSE: Duration = Duration::from_millis(200);
/// A server that always has news for somebody does not keep the others from acting on theirs.
const NEWS_TIME_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Upstream {
    pub(crate) client: Client,
    device: DeviceId,
    tally: Arc<Tally>,
    /// Where the newest manifest said its content is.
    urls: Mutex<BTreeMap<Digest, String>>,
}

impl Upstream {
    pub(crate) fn new(client: Client, device: DeviceId, tally: Arc<Tally>) -> Upstream {
        Upstream { client, device, tally, urls: Mutex::default() }
    }

    pub(crate) async fn send_capabilities(&self, body: Vec<u8>) -> Result<Digest, Passing> {
        let digest = Digest::of(&body);
        let request = Request::put(g2::capabilities_path(&self.device)).bytes("application/json", body);
        self.exchange(Question::Capabilities, request).await?;
        Ok(digest)
    }

    pub(crate) async fn send_report(&self, report: &Report) -> Result<(), Passing> {
        let request = Request::post(g2::status_path(report.assignment))
            .bytes("application/json", g2::status::write(report));
        self.exchange(Question::Report, request).await.map(drop)
    }

    pub(crate) async fn poll(&self, held: Option<Digest>, wait: Duration) -> Result<Polled, Passing> {
        let mut request = Request::get(g2::MANIFEST_PATH)
            .header(header::ACCEPT, g2::manifest::MEDIA_TYPE)
            .body_max(g2::manifest::SIZE_MAX as u64)
            .timeout(wait + POLL_SLACK);
        if let Some(held) = held {
            request = request.header(header::IF_NONE_MATCH, g2::validator::tag(&held));
        }
        let is_held = !wait.is_zero();
        let waiting = is_held.then(|| self.tally.hold());
        if is_held {
            request = request.header(HeaderName::from_static("prefer"), format!("wait={}", wait.as_secs()));
        }
        let question = if is_held { Question::HeldPoll } else { Question::Poll };
        let response = self.exchange(question, request).await?;
        drop(waiting);
        let held_open = response.header("preference-applied").is_some_and(|applied| applied.contains("wait"));
        if response.status == StatusCode::NOT_MODIFIED {
            self.tally.unchanged();
            return Ok(Polled::Unchanged { held_open });
        }
        self.tally.manifest();
        self.others_have_heard().await;
        let body = Digest::of(&response.body);
        let promised =
            response.header(header::ETAG).map(|tag| tag.trim_start_matches("W/").trim_matches('"'));
        if promised.and_then(|tag| Digest::parse(tag).ok()).is_some_and(|promised| promised != body) {
            return Err(self.refused("the manifest's bytes are not what its ETag promised"));
        }
        let listing = g2::manifest::read(&response.body)
            .map_err(|error| self.refused(format!("the server's manifest is not usable: {error}")))?;
        let mut urls = BTreeMap::new();
        for (entry, url) in listing.manifest.entries().iter().zip(listing.document_urls) {
            urls.insert(entry.document.digest, url);
        }
        if let (Some(bundle), Some(url)) = (listing.manifest.bundle(), listing.bundle_url) {
            urls.insert(bundle.digest, url);
        }
        *self.urls.lock().unwrap_or_else(PoisonError::into_inner) = urls;
        Ok(Polled::Manifest { manifest: listing.manifest, body, held_open })
    }

    /// A real device has a processor of its own. Thousands that share this one and are told at the same moment act on
    /// the news when all have heard: what one does with them must not keep the next from hearing of them.
    async fn others_have_heard(&self) {
        let heard = Instant::now();
        loop {
            let pause = NEWS_PAUSE.saturating_sub(self.tally.since_manifest());
            if pause.is_zero() || heard.elapsed() >= NEWS_TIME_MAX {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Everything the plan names, each verified against its digest.
    pub(crate) async fn fetch(&self, plan: &FetchPlan) -> Result<Vec<(AssignmentId, Document)>, Passing> {
        match plan {
            FetchPlan::Bundle { bundle, entries } => {
                let path =
                    self.url(&bundle.digest).unwrap_or_else(|| g2::manifest::bundle_path(&bundle.digest));
                let bytes = self.download(&path, bundle::MEDIA_TYPE, BUNDLE_SIZE_MAX).await?;
                let archive = Document::verified(bytes, bundle.digest)
                    .map_err(|mismatch| self.refused(format!("the bundle was refused: {mismatch}")))?;
                let documents = bundle::read(archive.bytes(), entries)
                    .map_err(|error| self.refused(format!("the bundle was refused: {error}")))?;
                Ok(entries.iter().map(|entry: &Entry| entry.id).zip(documents).collect())
            }
            FetchPlan::Documents(entries) => {
                let mut documents = Vec::with_capacity(entries.len());
                for entry in entries {
                    let digest = entry.document.digest;
                    let path =
                        self.url(&digest).unwrap_or_else(|| g2::manifest::document_path(entry.id, &digest));
                    let bytes = self.download(&path, g2::document::MEDIA_TYPE, DOCUMENT_SIZE_MAX).await?;
                    let document = Document::verified(bytes, digest)
                        .map_err(|mismatch| self.refused(format!("a document was refused: {mismatch}")))?;
                    documents.push((entry.id, document));
                }
                Ok(documents)
            }
        }
    }

    fn url(&self, digest: &Digest) -> Option<String> {
        self.urls.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    async fn download(&self, path: &str, media_type: &str, size_max: u64) -> Result<Vec<u8>, Passing> {
        let request = Request::get(path).header(header::ACCEPT, media_type).body_max(size_max);
        Ok(self.exchange(Question::Fetch, request).await?.body.to_vec())
    }

    /// One request and its answer; anything but success and 304 is trouble, and counted.
    async fn exchange(&self, question: Question, request: Request) -> Result<Response, Passing> {
        let begun = Instant::now();
        let response = match self.client.send(request).await {
            Ok(response) => response,
            Err(error) => {
                let said = margrave_core::chain::sentence(&error);
                self.tally.troubled(Trouble::of(&error), begun, &|| said.clone());
                return Err(Passing::passing(said));
            }
        };
        let (status, retry_after) = (response.status, response.retry_after());
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            self.tally.answered(question, begun.elapsed());
            return Ok(response);
        }
        let is_pacing = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
            && retry_after.is_some();
        let said = format!("the server answered {status}");
        if is_pacing {
            self.tally.paced();
        } else {
            let trouble = match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Trouble::NotAllowed,
                status if status.is_server_error() => Trouble::ServerError,
                _ => Trouble::ClientError,
            };
            let body = String::from_utf8_lossy(&response.body);
            self.tally.troubled(trouble, begun, &|| format!("{question:?}: {said}: {body}"));
        }
        let permanent = status.is_client_error()
            && !is_pacing
            && !matches!(
                status,
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::REQUEST_TIMEOUT
            );
        Err(Passing { retry_after, permanent, ..Passing::passing(said) })
    }

    fn refused(&self, message: impl Into<String>) -> Passing {
        let message = message.into();
        self.tally.troubled(Trouble::Content, Instant::now(), &|| message.clone());
        Passing::passing(message)
    }
}
