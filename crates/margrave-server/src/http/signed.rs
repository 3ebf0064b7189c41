//! The signed listener's inside: the fleet as a [`SignedApi`]. What is answered to whom is `margrave-device-api`'s.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody as _;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_device_api::g1::{
    self, Applicant, Load, Onboarding, Sender, SignedApi, SignedClient, SignedStanding, Terms, UsedSignature,
};
use margrave_device_api::{Answer, ApiError};
use margrave_wire::Dialect;
use margrave_wire::identity::RegistryToken;

use super::device::{Devices, api_error};
use super::registry::RegistryTokens;
use super::share;
use crate::admission::{Admission, busy_retry};
use crate::fleet::{self, Clock, Fleet, SignedPolicy};
use crate::listener::{Calm, Guest, Inside, Reply};

/// What the listener was told.
pub(crate) struct Signed {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) clock: Clock,
    pub(crate) policy: SignedPolicy,
    pub(crate) terms: Terms,
    /// PEM.
    pub(crate) root_certificate: String,
    pub(crate) tokens: RegistryTokens,
    pub(crate) admission: Arc<Admission>,
    /// Signatures that were used before this start; taken once.
    pub(crate) kept: Mutex<Vec<fleet::UsedSignature>>,
}

/// What the listener of signed requests offers. How much of the server a request may have goes by identity, as on the
/// listener with mutual TLS; but who sends it is known only behind its signature, so the router asks for it there.
pub(crate) struct Interface {
    fleet: Arc<Fleet>,
    router: Router,
    admission: Arc<Admission>,
    terms: Terms,
}

impl Interface {
    pub(crate) fn new(signed: Signed) -> Interface {
        let devices = Devices::new(Arc::clone(&signed.fleet), Dialect::Signed);
        let (fleet, admission) = (Arc::clone(&signed.fleet), Arc::clone(&signed.admission));
        let terms = signed.terms.clone();
        Interface { fleet, router: g1::router(Arc::new(devices), Arc::new(signed)), admission, terms }
    }
}

impl Inside for Interface {
    fn answer(&self, guest: &Guest, request: Request<Incoming>) -> Reply {
        let load = Load::of(&self.terms, request.uri().path());
        // A poll that is held does no work meanwhile. One that brings a body is no poll.
        if load == Load::Poll && request.body().size_hint().exact() == Some(0) {
            return self.router.answer(guest, request);
        }
        share::answer(
            &self.admission,
            &self.router,
            guest,
            request,
            load == Load::Artifact,
            self.calm(),
            busy,
        )
    }

    fn turn_away(&self, request: &Request<Incoming>) -> Response {
        busy(request.uri().path())
    }

    fn calm(&self) -> Calm {
        let fleet = Arc::clone(&self.fleet);
        Box::pin(async move { fleet.everybody_told().await })
    }

    fn over(&self) {
        self.fleet.release_waiting(Dialect::Signed);
    }

    fn misaddressed(&self, request: &Request<Incoming>) -> Response {
        g1::misaddressed(request.uri().path())
    }
}

fn busy(path: &str) -> Response {
    g1::busy(busy_retry(), path)
}

impl SignedApi for Signed {
    fn client(&self, client: &ClientId) -> Option<SignedClient> {
        let fleet::SignedKey { standing, rejected, key } = self.fleet.signed_key(client)?;
        let standing = match standing {
            Some(fleet::Standing::Accepted) => SignedStanding::Accepted,
            Some(fleet::Standing::Retired) => SignedStanding::Retired,
            None if rejected => SignedStanding::Rejected,
            None => SignedStanding::Pending,
        };
        Some(SignedClient { standing, key })
    }

    fn onboard<'a>(&'a self, applicant: Applicant) -> Answer<'a, Result<Onboarding, ApiError>> {
        Box::pin(async move {
            let Applicant { certificate, proven, address } = applicant;
            let address = address.map(|address| address.ip().to_string());
            let outcome = self.fleet.onboard(&self.policy, certificate, proven, address).await;
            outcome.map_err(api_error).map(|outcome| match outcome {
                fleet::Onboarding::Accepted(client) => Onboarding::Accepted(client),
                fleet::Onboarding::Pending => Onboarding::Pending,
                fleet::Onboarding::Rejected => Onboarding::Rejected,
                fleet::Onboarding::Retired => Onboarding::Retired,
            })
        })
    }

    fn root_certificate(&self) -> String {
        self.root_certificate.clone()
    }

    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn manifest_given<'a>(&'a self, client: &'a ClientId, version: u64) -> Answer<'a, Result<(), ApiError>> {
        Box::pin(async move { self.fleet.manifest_given(client, version).await.map_err(api_error) })
    }

    fn manifest_last_given(&self, client: &ClientId) -> Option<u64> {
        self.fleet.manifest_last_given(client)
    }

    fn registry_token(&self, client: &ClientId) -> RegistryToken {
        self.tokens.login(client, self.clock.now())
    }

    fn charge(&self, sender: Sender<'_>) -> Result<(), Duration> {
        match sender {
            Sender::Stranger => self.admission.charge_stranger(),
            Sender::Claims(client) => self.admission.claimed(client),
            Sender::Proven(client) => {
                self.fleet.touched(client);
                self.admission.charge(&self.admission.account(client))
            }
        }
    }

    fn forged(&self, client: &ClientId) {
        self.admission.forged(client);
    }

    fn signatures_kept(&self) -> Vec<UsedSignature> {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let used = |fleet::UsedSignature { client, mark, until }| UsedSignature { client, mark, until };
        kept.into_iter().map(used).collect()
    }

    fn keep_signatures<'a>(&'a self, used: Vec<UsedSignature>) -> Answer<'a, Result<(), ApiError>> {
        let used = used
            .into_iter()
            .map(|UsedSignature { client, mark, until }| fleet::UsedSignature { client, mark, until })
            .collect();
        Box::pin(async move { self.fleet.keep_signatures(used).await.map_err(api_error) })
    }
}
