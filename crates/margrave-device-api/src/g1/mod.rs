//! The signed device interface of Margo's preview (RFC 9421) as a router for its own listener.
//!
//! Owns codes, headers and limits of every endpoint of that generation, in all the snapshots that clients of
//! the field were built to (management-interface.md, 1.15). What the answers are is the [`DeviceApi`]'s, who
//! the clients are the [`SignedApi`]'s. Serving manifests and artifacts is shared with [`crate::g2`].
//!
//! Success is said as S1-OAS says it, in the one code that the clients of every snapshot take: 201 for
//! capabilities and 200 for a status, new or not.
//!
//! Start with `answer`.

mod authentication;
mod refusal;
mod replay;
mod signed;
mod target;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use margrave_core::id::{AssignmentId, ClientId, DeviceId};
use margrave_core::moment::Moment;
use margrave_core::violation::Violation;
use margrave_identity::message::ClientCertificate;
use margrave_wire::g1::{capabilities, document, onboarding, status};
use margrave_wire::{BodyError, bundle};
use tracing::Instrument as _;

use crate::g2::poll::Asked;
use crate::g2::target::Target as Common;
use crate::g2::{
    CACHE_NEVER, CAPABILITIES_BYTES_MAX, Pace, Refusal, STATUS_BYTES_MAX, artifact, caught, collected,
    headless, poll, preconditions,
};
use crate::{ApiError, DeviceApi};
use authentication::{authenticate, is_attempted, within};
use refusal::SignedRefusal;
use replay::Replay;
pub use signed::{
    Applicant, Onboarding, Sender, SignedApi, SignedClient, SignedStanding, Terms, UsedSignature,
};
use target::{Resource, Target};

/// A body where none belongs is read to be compared with its digest, but not for long.
const STRAY_BYTES_MAX: usize = 4 * 1024;

/// The whole interface, as a router's fallback: merge further routes beside it, but no second fallback.
///
/// The router remembers used signatures for as long as it lives, so a listener makes one and keeps it.
pub fn router(api: Arc<dyn DeviceApi>, signed: Arc<dyn SignedApi>) -> Router {
    let replay = Replay::remembering(signed.signatures_kept());
    let house = Arc::new(House { api, signed, replay });
    Router::new().fallback(move |request: Request| {
        let house = Arc::clone(&house);
        async move { house.respond(request).await }
    })
}

/// What a request asks for, as far as it decides what the request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// A manifest: answered from memory, perhaps after a long wait.
    Poll,
    /// A document or bundle: as large as what operators deploy.
    Artifact,
    Other,
}

impl Load {
    /// Of a request for this path, whatever prefix of ours it has.
    pub fn of(terms: &Terms, path: &str) -> Load {
        match Target::of(local_path(terms, path)) {
            Some(Target::OfClient(_, Resource::Common(Common::Manifest))) => Load::Poll,
            Some(Target::OfClient(_, Resource::Common(Common::Document(_) | Common::Bundle(_)))) => {
                Load::Artifact
            }
            _ => Load::Other,
        }
    }
}

/// The answer of a server that has more to do than it can, in this generation's shape.
pub fn busy(retry_after: Duration, path: &str) -> Response {
    SignedRefusal::from(Refusal::Api(ApiError::Busy { retry_after })).at(path)
}

/// The answer to a request that does not say which host it is for, in this generation's shape.
pub fn misaddressed(path: &str) -> Response {
    SignedRefusal::from(Refusal::Misaddressed).at(path)
}

/// The path without the prefix of our external address, whether a proxy took it away or not.
fn local_path<'p>(terms: &Terms, path: &'p str) -> &'p str {
    let mut prefixes = terms.external.iter().map(|external| external.prefix());
    match prefixes.find(|prefix| within(path, prefix)) {
        Some(prefix) => &path[prefix.len()..],
        None => path,
    }
}

struct House {
    api: Arc<dyn DeviceApi>,
    signed: Arc<dyn SignedApi>,
    replay: Arc<Replay>,
}

impl House {
    async fn respond(&self, request: Request) -> Response {
        let path = request.uri().path().to_owned();
        let is_head = request.method() == Method::HEAD;
        let span = tracing::info_span!("signed device", method = %request.method(), path);
        let answer = caught(self.answer(request)).instrument(span.clone()).await.unwrap_or_else(|()| {
            span.in_scope(|| tracing::error!("answering a device's request panicked"));
            Err(Refusal::Broken.into())
        });
        let response = answer.unwrap_or_else(|refusal| {
            span.in_scope(|| tracing::debug!(?refusal, "refused"));
            refusal.at(&path)
        });
        span.in_scope(|| tracing::debug!(status = response.status().as_u16(), "answered"));
        if is_head { headless(response) } else { response }
    }

    async fn answer(&self, request: Request) -> Result<Response, SignedRefusal> {
        let (parts, body) = request.into_parts();
        let target =
            Target::of(local_path(self.signed.terms(), parts.uri.path())).ok_or(Refusal::NoSuchPath)?;
        if !target.allows(&parts.method) {
            return Err(Refusal::Method(target.methods()).into());
        }
        match target {
            Target::RootCertificate => {
                Ok(json_answer(StatusCode::OK, onboarding::write_root(&self.signed.root_certificate())))
            }
            Target::Onboarding => self.onboard(&parts, body).await,
            Target::OfClient(client, resource) => {
                let Some(client) = client else { return Err(self.unwanted(SignedRefusal::NoClient)) };
                self.of_client(&client, resource, &parts, body).await
            }
        }
    }

    /// What somebody hears who is no client: why, or that strangers ask too much.
    fn unwanted(&self, why: SignedRefusal) -> SignedRefusal {
        self.charge(Sender::Stranger).err().unwrap_or(why)
    }

    /// Takes a request from what its sender may ask.
    fn charge(&self, sender: Sender<'_>) -> Result<(), SignedRefusal> {
        self.signed.charge(sender).map_err(|retry_after| {
            tracing::debug!(?sender, "asks too often");
            Refusal::TooMany { retry_after }.into()
        })
    }

    /// Whether policy wants this client, and the key to verify it by (MI-G1-060).
    fn admitted(&self, client: &ClientId) -> Result<SignedClient, SignedRefusal> {
        let known = self.signed.client(client).ok_or(SignedRefusal::NoClient)?;
        match known.standing {
            SignedStanding::Accepted => Ok(known),
            standing => Err(SignedRefusal::NotAccepted(standing)),
        }
    }

    async fn of_client(
        &self,
        client: &ClientId,
        resource: Resource,
        request: &Parts,
        body: Body,
    ) -> Result<Response, SignedRefusal> {
        let known = self.admitted(client).map_err(|refusal| self.unwanted(refusal))?;
        // Before more is read of it, so that nobody in a client's name keeps us busy with what does not count.
        self.charge(Sender::Claims(client))?;
        let bytes_max = match (&resource, &request.method) {
            (Resource::Common(Common::Status(_)), _) => STATUS_BYTES_MAX,
            (_, &Method::PUT | &Method::POST) => CAPABILITIES_BYTES_MAX,
            _ => STRAY_BYTES_MAX,
        };
        let body = collected(body, bytes_max, Pace::DEVICE).await?;
        let terms = self.signed.terms();
        let now = self.signed.now();
        let proof = authenticate(terms, now, &known.key, request, &body).inspect_err(|refusal| {
            tracing::info!(%client, ?refusal, "a request's signature does not count");
            self.signed.forged(client);
        })?;
        self.charge(Sender::Proven(client))?;
        if matches!(request.method, Method::GET | Method::HEAD) {
            return self.read(client, resource, request).await;
        }
        let ticket = self
            .replay
            .admit(client, &proof.verified, proof.nonce.as_deref(), now, terms.window + terms.skew)
            .map_err(|refused| {
                tracing::warn!(%client, ?refused, "a signed request was refused as a repetition");
                SignedRefusal::Replay(refused)
            })?;
        // Kept while the change is made, so that both are one commit as a rule. Who is answered is remembered.
        let kept = async { self.signed.keep_signatures(ticket.used()).await.map_err(Refusal::Api) };
        let (changed, kept) = tokio::join!(self.change(client, resource, request, body, proof.created), kept);
        let response = changed?;
        ticket.spent();
        kept?;
        Ok(response)
    }

    async fn read(
        &self,
        client: &ClientId,
        resource: Resource,
        request: &Parts,
    ) -> Result<Response, SignedRefusal> {
        let api = self.api.as_ref();
        match resource {
            Resource::Common(Common::Manifest) => {
                let live = poll::asked_for(api, client, &request.headers)?;
                let (response, version) = match poll::ask(&live, &request.method, &request.headers) {
                    Asked::Now(response, version) => (response, version),
                    Asked::Wait(waiting) => {
                        let answered = poll::wait(api, client, waiting).await;
                        // In the words of this interface.
                        self.admitted(client)?;
                        answered?
                    }
                };
                self.signed.manifest_given(client, version).await.map_err(Refusal::Api)?;
                Ok(response)
            }
            Resource::Common(Common::Document(named)) => {
                let (assignment, digest) = named.ok_or(Refusal::NoDocument)?;
                let content = api.document(client, assignment, digest).await.map_err(Refusal::Api)?;
                let content = content.ok_or(Refusal::NoDocument)?;
                Ok(artifact(request, document::MEDIA_TYPE, digest, content))
            }
            Resource::Common(Common::Bundle(digest)) => {
                let digest = digest.ok_or(SignedRefusal::NoDigest)?;
                let content = api.bundle(client, digest).await.map_err(Refusal::Api)?;
                Ok(artifact(request, bundle::MEDIA_TYPE, digest, content.ok_or(Refusal::NoBundle)?))
            }
            Resource::Common(Common::Status(_) | Common::Capabilities(_))
            | Resource::CapabilitiesOfBody
            | Resource::RegistryToken => Err(Refusal::NoSuchPath.into()),
        }
    }

    async fn change(
        &self,
        client: &ClientId,
        resource: Resource,
        request: &Parts,
        body: Bytes,
        signed_at: Moment,
    ) -> Result<Response, SignedRefusal> {
        match resource {
            Resource::Common(Common::Status(assignment)) => {
                self.report(client, assignment, request, &body, signed_at).await
            }
            Resource::Common(Common::Capabilities(device)) if request.method == Method::DELETE => {
                let device = device.ok_or(Refusal::NoDevice)?;
                self.api.delete_capabilities(client, &device).await.map_err(Refusal::Api)?;
                Ok((StatusCode::NO_CONTENT, [(CACHE_CONTROL, CACHE_NEVER)]).into_response())
            }
            Resource::Common(Common::Capabilities(device)) => {
                self.put_capabilities(client, Named::ByPath(device), request, body).await
            }
            Resource::CapabilitiesOfBody => self.put_capabilities(client, Named::ByBody, request, body).await,
            Resource::RegistryToken => {
                let token = serde_json::to_vec(&self.signed.registry_token(client));
                Ok(json_answer(StatusCode::OK, token.expect("texts always serialise")))
            }
            Resource::Common(Common::Manifest | Common::Document(_) | Common::Bundle(_)) => {
                Err(Refusal::NoSuchPath.into())
            }
        }
    }

    async fn put_capabilities(
        &self,
        client: &ClientId,
        device: Named,
        request: &Parts,
        body: Bytes,
    ) -> Result<Response, SignedRefusal> {
        check_json(request)?;
        let reported = capabilities::read(&body).map_err(Refusal::Body)?;
        // A path that is no device id differs from every id there is (AMB-23).
        if let Named::ByPath(device) = device
            && device.as_ref() != Some(&reported.device)
        {
            let message = format!("must be the device id of the path; the body names {}", reported.device);
            return Err(Refusal::Invalid(vec![Violation::new("/properties/id", "AMB-23", message)]).into());
        }
        self.api.put_capabilities(client, reported, body).await.map_err(Refusal::Api)?;
        Ok((StatusCode::CREATED, [(CACHE_CONTROL, CACHE_NEVER)]).into_response())
    }

    async fn report(
        &self,
        client: &ClientId,
        assignment: Option<AssignmentId>,
        request: &Parts,
        body: &[u8],
        signed_at: Moment,
    ) -> Result<Response, SignedRefusal> {
        check_json(request)?;
        // A client that was never given a manifest can only speak of the first one.
        let last_given = self.signed.manifest_last_given(client).unwrap_or(1);
        let mut report = status::read(body, last_given).map_err(Refusal::Body)?;
        report.signed_at = Some(signed_at);
        if assignment != Some(report.assignment) {
            let message =
                format!("must be the deployment id of the path; the body names {}", report.assignment);
            return Err(Refusal::Invalid(vec![Violation::new("/deploymentId", "AMB-13", message)]).into());
        }
        self.api.report(client, report).await.map_err(Refusal::Api)?;
        Ok((StatusCode::OK, [(CACHE_CONTROL, CACHE_NEVER)]).into_response())
    }

    /// The one request whose body is looked at before its signature: the key is in it (AMB-03).
    async fn onboard(&self, request: &Parts, body: Body) -> Result<Response, SignedRefusal> {
        self.charge(Sender::Stranger)?;
        let body = collected(body, onboarding::REQUEST_BYTES_MAX, Pace::DEVICE).await?;
        check_json(request)?;
        let text = onboarding::read_request(&body).map_err(|error| match error {
            BodyError::Malformed(_) => Refusal::Body(error).into(),
            BodyError::Invalid(_) => SignedRefusal::NotACertificate(error.to_string()),
        })?;
        let chain = onboarding::read_certificates(&text).map_err(|error| {
            SignedRefusal::NotACertificate(format!("the certificate cannot be used: {error}"))
        })?;
        let certificate = ClientCertificate::read(chain).map_err(SignedRefusal::Certificate)?;
        let terms = self.signed.terms();
        let proven = is_attempted(&request.headers) || !terms.unsigned_onboarding;
        if proven {
            authenticate(terms, self.signed.now(), certificate.key(), request, &body)?;
        }
        let address = request.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(at)| *at);
        let applicant = Applicant { certificate, proven, address };
        match self.signed.onboard(applicant).await.map_err(Refusal::Api)? {
            Onboarding::Accepted(client) => {
                Ok(json_answer(StatusCode::CREATED, onboarding::write_answer(&client)))
            }
            Onboarding::Pending => Err(SignedRefusal::Pending),
            Onboarding::Rejected => Err(SignedRefusal::Rejected),
            Onboarding::Retired => Err(SignedRefusal::Retired),
        }
    }
}

/// How a capabilities report says which device it is about.
enum Named {
    ByPath(Option<DeviceId>),
    ByBody,
}

fn check_json(request: &Parts) -> Result<(), SignedRefusal> {
    if preconditions::is_json(&request.headers) { Ok(()) } else { Err(Refusal::NotJson.into()) }
}

fn json_answer(status: StatusCode, body: Vec<u8>) -> Response {
    let json = HeaderValue::from_static("application/json");
    (status, [(CONTENT_TYPE, json), (CACHE_CONTROL, CACHE_NEVER)], body).into_response()
}
