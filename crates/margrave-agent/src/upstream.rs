//! The server, as this device sees it: performs what the core decided, and says how it went.
//!
//! Accepts what real servers do wrong but harmlessly (201 for 200, missing optional headers), and refuses
//! what is dangerous (bytes that are not what was promised).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use margrave_core::device::{FetchPlan, Polled, Trouble};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::manifest::Entry;
use margrave_core::report::Report;
use margrave_http::{Client, HeaderName, Request, Response, StatusCode, header};
use margrave_wire::problem::Problem;
use margrave_wire::{bundle, g2};

use crate::identity::refusal;

/// A document larger than this describes no application.
const DOCUMENT_SIZE_MAX: u64 = 1 << 20;
const BUNDLE_SIZE_MAX: u64 = 64 << 20;
/// How much longer than the wait it asked for a poll may take; a new connection alone may take half of that.
const POLL_SLACK: Duration = Duration::from_secs(60);

pub(crate) struct Upstream {
    client: Client,
    device: DeviceId,
    /// Where the newest manifest said its content is; servers may put it elsewhere than the standard does.
    urls: Mutex<BTreeMap<Digest, String>>,
}

impl Upstream {
    pub(crate) fn new(client: Client, device: DeviceId) -> Self {
        Upstream { client, device, urls: Mutex::new(BTreeMap::new()) }
    }

    /// Forgets open connections: the next request presents the newest SVID.
    pub(crate) fn reconnect(&self) {
        self.client.reset();
    }

    pub(crate) fn traffic(&self) -> margrave_http::Traffic {
        self.client.traffic()
    }

    pub(crate) async fn send_capabilities(&self, body: &[u8]) -> Result<Digest, Trouble> {
        let request =
            Request::put(g2::capabilities_path(&self.device)).bytes("application/json", body.to_vec());
        self.exchange(request).await?;
        Ok(Digest::of(body))
    }

    pub(crate) async fn send_report(&self, report: &Report) -> Result<(), Trouble> {
        let request = Request::post(g2::status_path(report.assignment))
            .bytes("application/json", g2::status::write(report));
        self.exchange(request).await.map(drop)
    }

    pub(crate) async fn poll(&self, held: Option<Digest>, wait: Duration) -> Result<Polled, Trouble> {
        let mut request = Request::get(g2::MANIFEST_PATH)
            .header(header::ACCEPT, g2::manifest::MEDIA_TYPE)
            .body_max(g2::manifest::SIZE_MAX as u64)
            .timeout(wait + POLL_SLACK);
        if let Some(held) = held {
            request = request.header(header::IF_NONE_MATCH, format!("\"{held}\""));
        }
        if !wait.is_zero() {
            request = request.header(HeaderName::from_static("prefer"), format!("wait={}", wait.as_secs()));
        }
        let response = self.client.send(request).await.map_err(unreachable)?;
        let held_open = response.header("preference-applied").is_some_and(|applied| applied.contains("wait"));
        if response.status == StatusCode::NOT_MODIFIED {
            return Ok(Polled::Unchanged { held_open });
        }
        let response = accepted(response)?;
        let body = Digest::of(&response.body);
        let promised =
            response.header(header::ETAG).map(|tag| tag.trim_start_matches("W/").trim_matches('"'));
        if let Some(promised) = promised.and_then(|tag| Digest::parse(tag).ok())
            && promised != body
        {
            return Err(Trouble::passing(format!(
                "the manifest's bytes have digest {body}, its ETag promised {promised} (MI-G2-072)"
            )));
        }
        let listing = g2::manifest::read(&response.body)
            .map_err(|error| Trouble::passing(format!("the server's manifest is not usable: {error}")))?;
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

    /// Everything the plan names, each verified against its digest.
    pub(crate) async fn fetch(&self, plan: &FetchPlan) -> Result<Vec<(AssignmentId, Document)>, Trouble> {
        match plan {
            FetchPlan::Bundle { bundle, entries } => {
                let url =
                    self.url(&bundle.digest).unwrap_or_else(|| g2::manifest::bundle_path(&bundle.digest));
                let bytes = self.download(&url, bundle::MEDIA_TYPE, BUNDLE_SIZE_MAX).await?;
                let archive = Document::verified(bytes, bundle.digest)
                    .map_err(|mismatch| Trouble::passing(format!("the bundle was refused: {mismatch}")))?;
                let documents = bundle::read(archive.bytes(), entries)
                    .map_err(|error| Trouble::passing(format!("the bundle was refused: {error}")))?;
                let by_digest: BTreeMap<Digest, Document> =
                    documents.into_iter().map(|document| (document.digest(), document)).collect();
                let found = |entry: &Entry| Some((entry.id, by_digest.get(&entry.document.digest)?.clone()));
                Ok(entries.iter().filter_map(found).collect())
            }
            FetchPlan::Documents(entries) => {
                let mut documents = vec![];
                for entry in entries {
                    let digest = entry.document.digest;
                    let url =
                        self.url(&digest).unwrap_or_else(|| g2::manifest::document_path(entry.id, &digest));
                    let bytes = self.download(&url, g2::document::MEDIA_TYPE, DOCUMENT_SIZE_MAX).await?;
                    let document = Document::verified(bytes, digest).map_err(|mismatch| {
                        Trouble::passing(format!("document {} was refused: {mismatch}", entry.id))
                    })?;
                    documents.push((entry.id, document));
                }
                Ok(documents)
            }
        }
    }

    fn url(&self, digest: &Digest) -> Option<String> {
        self.urls.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    async fn download(&self, path: &str, media_type: &str, size_max: u64) -> Result<Vec<u8>, Trouble> {
        let request = Request::get(path).header(header::ACCEPT, media_type).body_max(size_max);
        Ok(self.exchange(request).await?.body.to_vec())
    }

    async fn exchange(&self, request: Request) -> Result<Response, Trouble> {
        accepted(self.client.send(request).await.map_err(unreachable)?)
    }
}

fn unreachable(error: margrave_http::Error) -> Trouble {
    Trouble::passing(margrave_core::chain::sentence(&error))
}

/// Any success will do; everything else is trouble, and says whether asking again can help (MI-G2-193).
fn accepted(response: Response) -> Result<Response, Trouble> {
    let status = response.status;
    if status.is_success() {
        return Ok(response);
    }
    let said = serde_json::from_slice::<Problem>(&response.body).ok().and_then(|problem| problem.retryable);
    let curable = status.is_server_error()
        // A device that is refused today may be accepted tomorrow, and its news must not be lost by then.
        || matches!(status, StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
    Err(Trouble {
        message: format!("the server answered {}", refusal(&response)),
        retry_after: response.retry_after(),
        permanent: !(curable || said == Some(true)),
    })
}
