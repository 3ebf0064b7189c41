//! The distribution API: translates requests into verbs of [`Registry`] and back.
//!
//! Every answer that is a no goes through [`Refusal`]; every request is asked about at [`Access`] before
//! anything is looked up. Bodies are streamed both ways, never held.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use ::http::request::Parts;
use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt as _;
use margrave_core::digest::Digest;
use margrave_oci::manifest::{IMAGE_INDEX, ImageIndex};
use margrave_oci::reference::{RepositoryName, TagOrDigest};
use serde::Deserialize;
use uuid::Uuid;

use crate::access::{Access, Action, Decision};
use crate::contents::{Blob, StoredManifest};
use crate::error::RegistryError;
use crate::refusal::Refusal;
use crate::registry::Registry;
use crate::route::Route;
use crate::upload::Writing;

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");
const UPLOAD_UUID: HeaderName = HeaderName::from_static("docker-upload-uuid");
const OCI_SUBJECT: HeaderName = HeaderName::from_static("oci-subject");
const OCI_FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");

/// Pieces of a body are gathered to this size before they go to disk in one step off the async threads.
const WRITE_BYTES: usize = 1024 * 1024;
const READ_BYTES: usize = 256 * 1024;
/// As many tags as one answer has at most; the rest is behind a link.
const TAGS_PAGE: usize = 10_000;
/// Each costs reading one manifest.
const REFERRERS_PAGE: usize = 500;
/// How much of an unwanted body is read so that the client hears the answer and not a broken connection.
const DRAIN_BYTES: u64 = 8 * 1024 * 1024;

/// The routes `/v2`, `/v2/` and everything below; merge them into a router at the root.
pub fn router<A: Access>(registry: Registry, access: A) -> axum::Router {
    let state = Arc::new(Api { registry, access });
    axum::Router::new()
        .route("/v2", axum::routing::any(answer::<A>))
        .route("/v2/", axum::routing::any(answer::<A>))
        .route("/v2/{*path}", axum::routing::any(answer::<A>))
        .with_state(state)
}

struct Api<A> {
    registry: Registry,
    access: A,
}

async fn answer<A: Access>(State(api): State<Arc<Api<A>>>, request: Request<Body>) -> Response {
    let (parts, mut body) = request.into_parts();
    let mut response = match api.dispatch(&parts, &mut body).await {
        Ok(response) => response,
        Err(refusal) => {
            drain(body, api.registry.limits().body_stall_max).await;
            refusal.into_response()
        }
    };
    let headers = response.headers_mut();
    headers.insert(API_VERSION, HeaderValue::from_static("registry/2.0"));
    // Anybody's bytes are served here from the origin of the operators' page: no browser may run them.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; sandbox; frame-ancestors 'none'"),
    );
    response
}

/// What may stand behind the question mark.
#[derive(Deserialize)]
struct Params {
    digest: Option<String>,
    mount: Option<String>,
    from: Option<String>,
    n: Option<String>,
    last: Option<String>,
    #[serde(rename = "artifactType")]
    artifact_type: Option<String>,
}

impl<A: Access> Api<A> {
    async fn dispatch(&self, request: &Parts, body: &mut Body) -> Result<Response, Refusal> {
        let route = Route::parse(request.uri.path())?;
        let Query(params) = Query::<Params>::try_from_uri(&request.uri)
            .map_err(|_| Refusal::bad("UNSUPPORTED", "the query cannot be read"))?;
        let method = &request.method;
        let reads = method == Method::GET || method == Method::HEAD;
        match &route {
            Route::Base => {
                self.ask(request, Action::Connect, None).await?;
                if reads {
                    Ok(axum::Json(serde_json::json!({})).into_response())
                } else {
                    Err(Refusal::unsupported("GET, HEAD"))
                }
            }
            Route::Tags(name) => {
                self.ask(request, Action::Pull, Some(name)).await?;
                if !reads {
                    return Err(Refusal::unsupported("GET, HEAD"));
                }
                self.tags(name, &params).await
            }
            Route::Referrers(name, subject) => {
                self.ask(request, Action::Pull, Some(name)).await?;
                if !reads {
                    return Err(Refusal::unsupported("GET, HEAD"));
                }
                self.referrers(name, subject, &params).await
            }
            Route::Manifest(name, reference) => {
                let allowed = "GET, HEAD, PUT, DELETE";
                self.ask(request, action_of(method, allowed)?, Some(name)).await?;
                let reference = match reference {
                    Ok(reference) => reference,
                    // Under an impossible name there is nothing, which is all a reader wants to know.
                    Err(_) if reads => return Err(RegistryError::ManifestUnknown.into()),
                    Err(error) => return Err(error.clone().into()),
                };
                match *method {
                    Method::GET | Method::HEAD => self.manifest(name, reference, request).await,
                    Method::PUT => self.put_manifest(name, reference, request, body).await,
                    Method::DELETE => {
                        if let TagOrDigest::Digest(digest) = reference
                            && let Some(why) = self.access.keeps(name, digest).await
                        {
                            return Err(Refusal::new(StatusCode::CONFLICT, "DENIED", why));
                        }
                        self.registry.delete_manifest(name, reference).await?;
                        Ok(StatusCode::ACCEPTED.into_response())
                    }
                    _ => Err(Refusal::unsupported(allowed)),
                }
            }
            Route::Blob(name, digest) => {
                let allowed = "GET, HEAD, DELETE";
                self.ask(request, action_of(method, allowed)?, Some(name)).await?;
                match *method {
                    Method::GET | Method::HEAD => self.blob(name, digest, request).await,
                    Method::DELETE => {
                        self.registry.delete_blob(name, digest).await?;
                        Ok((StatusCode::ACCEPTED, [(CONTENT_DIGEST, digest_value(digest))]).into_response())
                    }
                    _ => Err(Refusal::unsupported(allowed)),
                }
            }
            Route::Uploads(name) => {
                self.ask(request, Action::Push, Some(name)).await?;
                if method != Method::POST {
                    return Err(Refusal::unsupported("POST"));
                }
                self.start_upload(name, &params, request, body).await
            }
            Route::Upload(name, id) => {
                self.ask(request, Action::Push, Some(name)).await?;
                let id = id.ok_or(RegistryError::UploadUnknown)?;
                match *method {
                    Method::GET | Method::HEAD => {
                        let writing = self.registry.writing(name, id).await?;
                        Ok(progress(StatusCode::NO_CONTENT, name, id, &writing))
                    }
                    Method::PATCH => self.continue_upload(name, id, request, body).await,
                    Method::PUT => self.finish_upload(name, id, &params, request, body).await,
                    Method::DELETE => {
                        drop(self.registry.writing(name, id).await?);
                        self.registry.inner.uploads.forget(id);
                        Ok(StatusCode::NO_CONTENT.into_response())
                    }
                    _ => Err(Refusal::unsupported("GET, HEAD, PATCH, PUT, DELETE")),
                }
            }
            Route::Unknown => {
                self.ask(request, Action::Connect, None).await?;
                Err(Refusal::new(
                    StatusCode::NOT_FOUND,
                    "UNSUPPORTED",
                    "this registry has nothing at this path",
                ))
            }
        }
    }

    async fn ask(
        &self,
        request: &Parts,
        action: Action,
        name: Option<&RepositoryName>,
    ) -> Result<(), Refusal> {
        match self.access.decide(request, action, name).await {
            Decision::Allow => Ok(()),
            Decision::Deny => Err(Refusal::denied()),
            Decision::Authenticate => Err(Refusal::unauthorized()),
            Decision::Later => Err(Refusal::later()),
            Decision::Full => Err(Refusal::full()),
        }
    }

    async fn tags(&self, name: &RepositoryName, params: &Params) -> Result<Response, Refusal> {
        let count = match &params.n {
            None => TAGS_PAGE,
            Some(text) => text
                .parse::<usize>()
                .map_err(|_| {
                    Refusal::bad("PAGINATION_NUMBER_INVALID", "n must be a number of tags, 0 or more")
                })?
                .min(TAGS_PAGE),
        };
        let tags = self.registry.tags(name).await?.ok_or_else(|| {
            Refusal::new(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "there is no such repository")
        })?;
        let last = params.last.as_deref().unwrap_or_default();
        let mut after = tags.iter().map(|tag| tag.as_str()).filter(|tag| *tag > last);
        let page: Vec<&str> = after.by_ref().take(count).collect();
        let body = serde_json::json!({ "name": name.as_str(), "tags": page });
        let mut response = axum::Json(body).into_response();
        if let (Some(last), Some(_)) = (page.last(), after.next()) {
            // A tag needs no escaping in a URL.
            let next = format!("</v2/{name}/tags/list?n={count}&last={last}>; rel=\"next\"");
            response.headers_mut().insert(header::LINK, text_value(next));
        }
        Ok(response)
    }

    async fn referrers(
        &self,
        name: &RepositoryName,
        subject: &Digest,
        params: &Params,
    ) -> Result<Response, Refusal> {
        let last = match &params.last {
            Some(text) => {
                Some(Digest::parse(text).map_err(|error| Refusal::bad("DIGEST_INVALID", error.to_string()))?)
            }
            None => None,
        };
        // A plus sign that was not escaped arrives as a space, and media types have no spaces.
        let wanted = params.artifact_type.as_ref().map(|text| text.replace(' ', "+"));
        let (mut descriptors, more) = self.registry.referrers(name, subject, last, REFERRERS_PAGE).await?;
        let last = descriptors.last().map(|descriptor| descriptor.digest);
        if let Some(wanted) = &wanted {
            descriptors.retain(|descriptor| descriptor.artifact_type.as_deref() == Some(wanted));
        }
        let index = ImageIndex::of(descriptors).to_bytes();
        let mut response = ([(header::CONTENT_TYPE, IMAGE_INDEX)], index).into_response();
        if wanted.is_some() {
            response.headers_mut().insert(OCI_FILTERS_APPLIED, HeaderValue::from_static("artifactType"));
        }
        if let (true, Some(last)) = (more, last) {
            let filter = wanted.map_or_else(String::new, |wanted| {
                let escaped =
                    percent_encoding::utf8_percent_encode(&wanted, percent_encoding::NON_ALPHANUMERIC);
                format!("&artifactType={escaped}")
            });
            let next = format!("</v2/{name}/referrers/{subject}?last={last}{filter}>; rel=\"next\"");
            response.headers_mut().insert(header::LINK, text_value(next));
        }
        Ok(response)
    }

    async fn manifest(
        &self,
        name: &RepositoryName,
        reference: &TagOrDigest,
        request: &Parts,
    ) -> Result<Response, Refusal> {
        let stored = self.registry.manifest(name, reference).await?.ok_or(RegistryError::ManifestUnknown)?;
        let StoredManifest { digest, media_type, bytes } = stored;
        let mut headers = content_headers(&digest, &media_type);
        if matches_etag(&request.headers, header::IF_NONE_MATCH, &digest) {
            return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
        }
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        let body = if request.method == Method::HEAD { Body::empty() } else { Body::from(bytes) };
        Ok((headers, body).into_response())
    }

    async fn put_manifest(
        &self,
        name: &RepositoryName,
        reference: &TagOrDigest,
        request: &Parts,
        body: &mut Body,
    ) -> Result<Response, Refusal> {
        let media_type = request
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            // Parameters such as a character set do not change what a manifest is.
            .map(|value| value.split(';').next().unwrap_or(value).trim().to_owned())
            .ok_or_else(|| Refusal::bad("MANIFEST_INVALID", "a manifest needs a Content-Type"))?;
        let max = self.registry.limits().manifest_bytes_max;
        if content_length(&request.headers).is_some_and(|length| length > max) {
            return Err(RegistryError::TooLarge { max }.into());
        }
        let mut bytes = Vec::new();
        while let Some(piece) = self.next_piece(body).await? {
            if (bytes.len() + piece.len()) as u64 > max {
                return Err(RegistryError::TooLarge { max }.into());
            }
            bytes.extend_from_slice(&piece);
        }
        let put = self.registry.put(name, reference, &media_type, Bytes::from(bytes)).await?;
        let headers = [
            (header::LOCATION, text_value(format!("/v2/{name}/manifests/{}", put.digest))),
            (CONTENT_DIGEST, digest_value(&put.digest)),
        ];
        let mut response = (StatusCode::CREATED, headers).into_response();
        if let Some(subject) = put.subject {
            response.headers_mut().insert(OCI_SUBJECT, digest_value(&subject));
        }
        Ok(response)
    }

    async fn blob(
        &self,
        name: &RepositoryName,
        digest: &Digest,
        request: &Parts,
    ) -> Result<Response, Refusal> {
        // HEAD is how pushers ask whether they may leave the blob out, so it is a promise.
        let found = if request.method == Method::HEAD {
            self.registry.promise_blob(name, digest).await?
        } else {
            self.registry.blob(name, digest).await?
        };
        let blob = found.ok_or(RegistryError::BlobUnknown(*digest))?;
        let mut headers = content_headers(digest, "application/octet-stream");
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if matches_etag(&request.headers, header::IF_NONE_MATCH, digest) {
            return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
        }
        if request.method == Method::HEAD {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(blob.size));
            return Ok((headers, Body::empty()).into_response());
        }
        let (status, start, length) = match byte_range(&request.headers, digest, blob.size) {
            Ranged::Whole => (StatusCode::OK, 0, blob.size),
            Ranged::Part { start, length } => {
                let range = format!("bytes {start}-{}/{}", start + length - 1, blob.size);
                headers.insert(header::CONTENT_RANGE, text_value(range));
                (StatusCode::PARTIAL_CONTENT, start, length)
            }
            Ranged::Outside => {
                let range = format!("bytes */{}", blob.size);
                return Err(Refusal::new(
                    StatusCode::RANGE_NOT_SATISFIABLE,
                    "SIZE_INVALID",
                    "the range is outside of the blob",
                )
                .with(header::CONTENT_RANGE, text_value(range)));
            }
        };
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        let body = file_body(blob, start, length).await?;
        Ok((status, headers, body).into_response())
    }

    /// `POST …/blobs/uploads/`: mounts, takes a whole blob, or opens an upload.
    async fn start_upload(
        &self,
        name: &RepositoryName,
        params: &Params,
        request: &Parts,
        body: &mut Body,
    ) -> Result<Response, Refusal> {
        if let (Some(mount), Some(from)) = (&params.mount, &params.from) {
            let digest = parse_digest(mount)?;
            let from = RepositoryName::parse(from)?;
            // Without the right to read there, or if it is not there, the client pushes the bytes instead.
            let may_read = self.ask(request, Action::Pull, Some(&from)).await.is_ok();
            if may_read && self.registry.mount_blob(&from, name, &digest).await? {
                return Ok(blob_created(name, &digest));
            }
        }
        let announced = params.digest.as_deref().map(parse_digest).transpose()?;
        let id = self.registry.start_upload(name).await?;
        let writing = self.registry.writing(name, id).await?;
        let Some(digest) = announced else {
            return Ok(progress(StatusCode::ACCEPTED, name, id, &writing));
        };
        let finished = async {
            let writing = self.receive(id, writing, request, body).await?;
            self.registry.finish_upload(name, id, writing, digest).await?;
            Ok(blob_created(name, &digest))
        };
        let result = finished.await;
        // The client does not know the upload's id and cannot continue it.
        self.registry.inner.uploads.forget(id);
        result
    }

    async fn continue_upload(
        &self,
        name: &RepositoryName,
        id: Uuid,
        request: &Parts,
        body: &mut Body,
    ) -> Result<Response, Refusal> {
        let writing = self.registry.writing(name, id).await?;
        check_chunk(&request.headers, name, id, &writing)?;
        let writing = self.receive(id, writing, request, body).await?;
        Ok(progress(StatusCode::ACCEPTED, name, id, &writing))
    }

    async fn finish_upload(
        &self,
        name: &RepositoryName,
        id: Uuid,
        params: &Params,
        request: &Parts,
        body: &mut Body,
    ) -> Result<Response, Refusal> {
        let writing = self.registry.writing(name, id).await?;
        let announced = params.digest.as_deref().ok_or_else(|| {
            Refusal::bad("DIGEST_INVALID", "finish an upload with ?digest=, so that it can be checked")
        })?;
        let digest = parse_digest(announced)?;
        check_chunk(&request.headers, name, id, &writing)?;
        let writing = self.receive(id, writing, request, body).await?;
        self.registry.finish_upload(name, id, writing, digest).await?;
        Ok(blob_created(name, &digest))
    }

    /// Streams a body into an upload. When the body breaks off, what came until then is kept.
    async fn receive(
        &self,
        id: Uuid,
        mut writing: Writing,
        request: &Parts,
        body: &mut Body,
    ) -> Result<Writing, Refusal> {
        let before = received(&writing);
        if let (Some(incoming), Some(length)) = (writing.as_ref(), content_length(&request.headers)) {
            incoming.check_room(length)?;
        }
        let (mut pieces, mut gathered) = (Vec::new(), 0);
        let broken = loop {
            match self.next_piece(body).await {
                Ok(Some(piece)) => {
                    gathered += piece.len();
                    pieces.push(piece);
                    if gathered >= WRITE_BYTES {
                        writing = self.registry.append(id, writing, std::mem::take(&mut pieces)).await?;
                        gathered = 0;
                    }
                }
                Ok(None) => break None,
                Err(refusal) => break Some(refusal),
            }
        };
        let writing = self.registry.append(id, writing, pieces).await?;
        if let Some(refusal) = broken {
            return Err(refusal);
        }
        if let Some(range) = chunk_range(&request.headers)?
            && received(&writing) - before != range.1 - range.0 + 1
        {
            return Err(Refusal::bad("SIZE_INVALID", "the chunk is not as long as its Content-Range says"));
        }
        Ok(writing)
    }

    /// The next piece of a body, within the time allowed.
    async fn next_piece(&self, body: &mut Body) -> Result<Option<Bytes>, Refusal> {
        loop {
            let frame = tokio::time::timeout(self.registry.limits().body_stall_max, body.frame()).await;
            match frame {
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    // Trailers mean nothing here.
                    Err(_) => {}
                },
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "a request body broke off");
                    return Err(Refusal::bad(
                        "BLOB_UPLOAD_INVALID",
                        "the body broke off; continue the upload",
                    ));
                }
                Err(_) => {
                    return Err(Refusal::new(
                        StatusCode::REQUEST_TIMEOUT,
                        "BLOB_UPLOAD_INVALID",
                        "the body stopped coming; continue the upload",
                    ));
                }
            }
        }
    }
}

fn action_of(method: &Method, allowed: &'static str) -> Result<Action, Refusal> {
    match *method {
        Method::GET | Method::HEAD => Ok(Action::Pull),
        Method::PUT => Ok(Action::Push),
        Method::DELETE => Ok(Action::Delete),
        _ => Err(Refusal::unsupported(allowed)),
    }
}

fn parse_digest(text: &str) -> Result<Digest, Refusal> {
    Digest::parse(text).map_err(|error| Refusal::bad("DIGEST_INVALID", error.to_string()))
}

fn received(writing: &Writing) -> u64 {
    writing.as_ref().map_or(0, |incoming| incoming.received())
}

/// Where an upload stands, in the headers of the specification.
fn progress(status: StatusCode, name: &RepositoryName, id: Uuid, writing: &Writing) -> Response {
    (status, progress_headers(name, id, received(writing))).into_response()
}

fn progress_headers(name: &RepositoryName, id: Uuid, received: u64) -> [(HeaderName, HeaderValue); 3] {
    [
        (header::LOCATION, text_value(format!("/v2/{name}/blobs/uploads/{id}"))),
        // Nothing received is written like one byte received; the specification has no other form.
        (header::RANGE, text_value(format!("0-{}", received.saturating_sub(1)))),
        (UPLOAD_UUID, text_value(id.to_string())),
    ]
}

fn blob_created(name: &RepositoryName, digest: &Digest) -> Response {
    let headers = [
        (header::LOCATION, text_value(format!("/v2/{name}/blobs/{digest}"))),
        (CONTENT_DIGEST, digest_value(digest)),
    ];
    (StatusCode::CREATED, headers).into_response()
}

/// That a chunk continues where the upload stands; a chunk without a range simply continues.
fn check_chunk(
    headers: &HeaderMap,
    name: &RepositoryName,
    id: Uuid,
    writing: &Writing,
) -> Result<(), Refusal> {
    let Some((start, end)) = chunk_range(headers)? else { return Ok(()) };
    if content_length(headers).is_some_and(|length| length != end - start + 1) {
        return Err(Refusal::bad("SIZE_INVALID", "Content-Range and Content-Length do not agree"));
    }
    let received = received(writing);
    if start == received {
        return Ok(());
    }
    let mut refusal = Refusal::new(
        StatusCode::RANGE_NOT_SATISFIABLE,
        "BLOB_UPLOAD_INVALID",
        format!("chunks come in order: {received} bytes are here, this one starts at {start}"),
    );
    for (name, value) in progress_headers(name, id, received) {
        refusal = refusal.with(name, value);
    }
    Err(refusal)
}

/// `Content-Range: 0-99`, without the unit that HTTP would have; some clients write it nevertheless.
fn chunk_range(headers: &HeaderMap) -> Result<Option<(u64, u64)>, Refusal> {
    let Some(value) = headers.get(header::CONTENT_RANGE) else { return Ok(None) };
    let parse = || {
        let text = value.to_str().ok()?.trim();
        let text = text.strip_prefix("bytes").map_or(text, str::trim_start);
        let (range, _) = text.split_once('/').unwrap_or((text, ""));
        let (start, end) = range.split_once('-')?;
        let (start, end) = (start.trim().parse::<u64>().ok()?, end.trim().parse::<u64>().ok()?);
        (start <= end && end < u64::MAX).then_some((start, end))
    };
    match parse() {
        Some(range) => Ok(Some(range)),
        None => Err(Refusal::bad("BLOB_UPLOAD_INVALID", "write Content-Range as first-last")),
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn content_headers(digest: &Digest, media_type: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, text_value(media_type.to_owned()));
    headers.insert(header::ETAG, text_value(format!("\"{digest}\"")));
    headers.insert(CONTENT_DIGEST, digest_value(digest));
    headers
}

fn digest_value(digest: &Digest) -> HeaderValue {
    text_value(digest.to_string())
}

fn text_value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("names, digests and media types that were checked are visible ASCII")
}

fn matches_etag(headers: &HeaderMap, name: HeaderName, digest: &Digest) -> bool {
    let etag = format!("\"{digest}\"");
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        value.split(',').map(|one| one.trim().trim_start_matches("W/")).any(|one| one == etag || one == "*")
    })
}

enum Ranged {
    Whole,
    Part { start: u64, length: u64 },
    Outside,
}

/// The one range that is wanted. Several at once, or what cannot be read, means the whole, as HTTP allows.
fn byte_range(headers: &HeaderMap, digest: &Digest, size: u64) -> Ranged {
    let Some(text) = headers.get(header::RANGE).and_then(|value| value.to_str().ok()) else {
        return Ranged::Whole;
    };
    if headers.contains_key(header::IF_RANGE) && !matches_etag(headers, header::IF_RANGE, digest) {
        return Ranged::Whole;
    }
    let Some((first, last)) = text.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-'))
    else {
        return Ranged::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let bounds = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => Some((first, last)),
        (Ok(first), Err(_)) if last.is_empty() => Some((first, u64::MAX)),
        (Err(_), Ok(0)) if first.is_empty() => return Ranged::Outside,
        (Err(_), Ok(count)) if first.is_empty() => Some((size.saturating_sub(count), u64::MAX)),
        _ => None,
    };
    match bounds {
        None => Ranged::Whole,
        Some((first, _)) if first >= size => Ranged::Outside,
        Some((first, last)) => Ranged::Part { start: first, length: last.min(size - 1) - first + 1 },
    }
}

/// A part of a file as a body, read piece by piece off the async threads.
async fn file_body(blob: Blob, start: u64, length: u64) -> Result<Body, RegistryError> {
    let digest = blob.digest;
    let opened = tokio::task::spawn_blocking(move || File::open(&blob.path)).await;
    let file =
        opened.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| match error.kind() {
            // Swept since we looked.
            io::ErrorKind::NotFound => RegistryError::BlobUnknown(digest),
            _ => RegistryError::io("open the blob")(error),
        })?;
    let pieces = stream::try_unfold((file, start, length), |(file, offset, left)| async move {
        if left == 0 {
            return Ok::<_, io::Error>(None);
        }
        let want = left.min(READ_BYTES as u64);
        let (file, piece) = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; want as usize];
            // A file that is too short ends the connection early, and the client sees that.
            file.read_exact_at(&mut piece, offset).map(|()| (file, piece))
        })
        .await
        .map_err(io::Error::other)??;
        Ok(Some((Bytes::from(piece), (file, offset + want, left - want))))
    });
    Ok(Body::from_stream(pieces))
}

/// Reads on a little after a refusal: closing on a client that still writes would lose it the answer.
async fn drain(mut body: Body, stall: std::time::Duration) {
    let mut left = DRAIN_BYTES;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // Running out of time is as good an end as any: the answer goes out either way.
    let _ = tokio::time::timeout(stall.min(std::time::Duration::from_secs(5)), reading).await;
}
