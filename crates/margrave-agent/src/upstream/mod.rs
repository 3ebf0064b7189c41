//! The server, as this device sees it: performs what the core decided, and says how it went.
//!
//! Accepts what real servers do wrong but harmlessly (201 for 200, missing optional headers, a coding that nobody
//! asked for), and refuses what is dangerous (bytes that are not what was promised, addresses elsewhere).
//! `link.rs` is one authenticated exchange, `download.rs` content over a bad line, `git.rs` desired state from a
//! repository instead.

mod download;
mod git;
mod link;
mod seal;
mod tongue;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use margrave_core::device::{Backoff, Event, FetchPlan, Polled, Trouble};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::manifest::Entry;
use margrave_core::report::Report;
use margrave_http::{HeaderName, Request, Response, StatusCode, header};
use margrave_wire::refusal::Refusal;
use margrave_wire::{bundle, g2};

use download::{Part, Wanted, decode, download};
pub(crate) use git::Git;
pub use git::{GitError, check_program};
use link::accepted;
pub(crate) use link::{Link, Proof};
pub(crate) use seal::Seal;
pub(crate) use tongue::Tongue;

/// A document larger than this describes no application.
const DOCUMENT_SIZE_MAX: u64 = 1 << 20;
const BUNDLE_SIZE_MAX: u64 = 64 << 20;
/// How much longer than the wait it asked for a poll may take; a new connection alone may take half of that.
const POLL_SLACK: Duration = Duration::from_secs(60);

pub(crate) struct Upstream {
    link: Link,
    tongue: Tongue,
    device: DeviceId,
    /// Every server answers with the manifest's only format when none is named (MI-G2-043), and ours knows its
    /// manifests by a part of their digest: both save a tenth of what a poll costs.
    terse: bool,
    /// Where desired state comes from, when not from the device interface.
    git: Option<Git>,
    known: Mutex<Known>,
    /// A download that was cut.
    part: tokio::sync::Mutex<Option<Part>>,
}

/// What the newest manifest's answer said beside the manifest.
#[derive(Default)]
struct Known {
    /// Where its content is; servers may put it elsewhere than the standard does.
    urls: BTreeMap<Digest, String>,
    /// A validator of another form than the standard's, and the manifest it stands for.
    tag: Option<(Digest, String)>,
}

/// Why something could not be told.
pub(crate) struct Untold {
    trouble: Trouble,
    /// It was refused for good, and nobody said why.
    unexplained: bool,
    /// The server knows no place for it.
    unknown: bool,
}

impl Untold {
    /// What that means for a report.
    pub(crate) fn of_report(self, sequence: u64) -> Event {
        let Untold { trouble, unexplained, .. } = self;
        match unexplained {
            true => {
                Event::Rebuffed { sequence, trouble: Trouble { backoff: Backoff::Exponential, ..trouble } }
            }
            false => Event::Sent { sequence, result: Err(trouble) },
        }
    }
}

impl From<Trouble> for Untold {
    fn from(trouble: Trouble) -> Untold {
        Untold { trouble, unexplained: false, unknown: false }
    }
}

impl Upstream {
    pub(crate) fn new(link: Link, tongue: Tongue, device: DeviceId, terse: bool, git: Option<Git>) -> Self {
        let part = tokio::sync::Mutex::new(None);
        Upstream { link, tongue, device, terse, git, known: Mutex::default(), part }
    }

    /// Forgets open connections: the next request presents the newest SVID.
    pub(crate) fn reconnect(&self) {
        self.link.reset();
    }

    pub(crate) fn traffic(&self) -> margrave_http::Traffic {
        self.link.traffic()
    }

    pub(crate) async fn send_capabilities(&self, body: &[u8]) -> Result<Digest, Trouble> {
        let paths = self.tongue.capabilities_paths(&self.device);
        let told = self.tell(paths, |path| Request::put(path).bytes("application/json", body.to_vec())).await;
        told.map_err(|Untold { trouble, unknown, .. }| Trouble {
            // A server that forgot this client may remember it again (MI-G1-066). One that does not like what it is told may have
            // something for it all the same.
            permanent: trouble.permanent && (self.tongue == Tongue::G2 || !unknown),
            ..trouble
        })?;
        Ok(Digest::of(body))
    }

    pub(crate) async fn send_report(&self, report: &Report) -> Result<(), Untold> {
        let body = self.tongue.status(report);
        let paths = self.tongue.status_paths(report.assignment);
        self.tell(paths, |path| Request::post(path).bytes("application/json", body.clone())).await
    }

    /// Sends to the first of the paths that the server knows.
    async fn tell(&self, paths: Vec<String>, request: impl Fn(String) -> Request) -> Result<(), Untold> {
        let mut first = None;
        for path in paths {
            let response = self.link.send(request(path)).await?;
            let unknown = matches!(response.status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED);
            let explained = Refusal::read(&response.body).words().is_some();
            // A server of this generation explains itself (MI-G2-200). What does not is something on the way there, and
            // no news is given up for that.
            let on_the_way = unknown && self.tongue == Tongue::G2 && !explained;
            match accepted(response) {
                Ok(_) => return Ok(()),
                Err(trouble) if on_the_way => {
                    return Err(Trouble { permanent: false, backoff: Backoff::Exponential, ..trouble }.into());
                }
                Err(trouble) => {
                    let unexplained = trouble.permanent && !explained;
                    let untold = Untold { trouble, unexplained, unknown };
                    if !unknown {
                        return Err(untold);
                    }
                    first = first.or(Some(untold));
                }
            }
        }
        Err(first.unwrap_or_else(|| Trouble::permanent("there is nowhere to send this to").into()))
    }

    pub(crate) async fn poll(&self, held: Option<Digest>, wait: Duration) -> Result<Polled, Trouble> {
        if let Some(git) = &self.git {
            return git.poll(&self.link, held).await;
        }
        let mut request = Request::get(self.tongue.manifest_path())
            .body_max(g2::manifest::SIZE_MAX as u64)
            .timeout(wait + POLL_SLACK)
            .terse();
        if !self.terse {
            request = request.header(header::ACCEPT, g2::manifest::MEDIA_TYPE);
        }
        if let Some(held) = held {
            let tag = self.known(|known| known.tag.clone()).filter(|(of, _)| *of == held);
            let own = if self.terse { g2::validator::short_tag } else { g2::validator::tag };
            request = request.header(header::IF_NONE_MATCH, tag.map_or_else(|| own(&held), |(_, tag)| tag));
        }
        if !wait.is_zero() {
            request = request.header(HeaderName::from_static("prefer"), format!("wait={}", wait.as_secs()));
        }
        let response = self.link.send(request).await?;
        let held_open = response.header("preference-applied").is_some_and(|applied| applied.contains("wait"));
        if response.status == StatusCode::NOT_MODIFIED {
            return match held {
                Some(_) => Ok(Polled::Unchanged { held_open }),
                None => Err(Trouble::passing(
                    "the server answered that nothing changed, although this device holds nothing yet",
                )),
            };
        }
        let response = accepted(response)?;
        let bytes = plain(&response, g2::manifest::SIZE_MAX as u64)?;
        let body = Digest::of(&bytes);
        let tag = response.header(header::ETAG).filter(|tag| tag.len() <= 200);
        let promised = tag.and_then(|tag| Digest::parse(tag.trim_start_matches("W/").trim_matches('"')).ok());
        if let Some(promised) = promised.filter(|promised| *promised != body) {
            return Err(Trouble::passing(format!(
                "the manifest's bytes have digest {body}, its ETag promised {promised} (MI-G2-072)"
            )));
        }
        let listing = self
            .tongue
            .manifest(&bytes)
            .map_err(|error| Trouble::passing(format!("the server's manifest is not usable: {error}")))?;
        let mut urls = BTreeMap::new();
        for (entry, url) in listing.manifest.entries().iter().zip(listing.document_urls) {
            urls.insert(entry.document.digest, url);
        }
        if let (Some(bundle), Some(url)) = (listing.manifest.bundle(), listing.bundle_url) {
            urls.insert(bundle.digest, url);
        }
        let tag = tag.filter(|_| promised.is_none()).map(|tag| (body, tag.to_owned()));
        self.known(|known| *known = Known { urls, tag });
        Ok(Polled::Manifest { manifest: listing.manifest, body, held_open })
    }

    /// Everything the plan names, each verified against its digest.
    pub(crate) async fn fetch(&self, plan: &FetchPlan) -> Result<Vec<(AssignmentId, Document)>, Trouble> {
        if let Some(git) = &self.git {
            let (FetchPlan::Bundle { entries, .. } | FetchPlan::Documents(entries)) = plan;
            return git.documents(entries).await;
        }
        match plan {
            FetchPlan::Bundle { bundle, entries } => {
                let url = self.url(&bundle.digest).unwrap_or_else(|| self.tongue.bundle_path(&bundle.digest));
                let archive = self
                    .download(&Wanted {
                        path: self.link.path(&url),
                        media_type: bundle::MEDIA_TYPE,
                        digest: bundle.digest,
                        size_max: BUNDLE_SIZE_MAX,
                        may_be_coded: false,
                    })
                    .await?;
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
                        self.url(&digest).unwrap_or_else(|| self.tongue.document_path(entry.id, &digest));
                    let wanted = Wanted {
                        path: self.link.path(&url),
                        media_type: g2::document::MEDIA_TYPE,
                        digest,
                        size_max: DOCUMENT_SIZE_MAX,
                        may_be_coded: true,
                    };
                    documents.push((entry.id, self.download(&wanted).await?));
                }
                Ok(documents)
            }
        }
    }

    async fn download(&self, wanted: &Wanted<'_>) -> Result<Document, Trouble> {
        download(&self.link, wanted, &mut *self.part.lock().await).await
    }

    fn url(&self, digest: &Digest) -> Option<String> {
        self.known(|known| known.urls.get(digest).cloned())
    }

    fn known<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
        look(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The body as it was meant, whatever coding it came in.
fn plain(response: &Response, size_max: u64) -> Result<Vec<u8>, Trouble> {
    match response.header(header::CONTENT_ENCODING) {
        Some(coding) if !coding.eq_ignore_ascii_case("identity") => decode(coding, &response.body, size_max)
            .map_err(|error| Trouble::passing(format!("the server's manifest is not usable: {error}"))),
        _ => Ok(response.body.to_vec()),
    }
}
