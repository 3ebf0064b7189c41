//! What the signed generation needs of a server beyond [`crate::DeviceApi`]: who its clients are.
//!
//! Memory of used signatures is the router's own (`replay.rs`); the server only keeps it over a restart.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_identity::message::{ClientCertificate, VerificationKey};
use margrave_wire::identity::RegistryToken;
use margrave_wire::signature::ExternalUrl;

use crate::{Answer, ApiError};

/// Clients, their certificates and their standing, as the signed generation knows them.
pub trait SignedApi: Send + Sync + 'static {
    /// The client that the path of a request names; `None` when there never was one (404). Asked for every
    /// request and again after a long wait, so it is answered from memory, with the key already parsed.
    fn client(&self, client: &ClientId) -> Option<SignedClient>;

    /// Decides about a client that hands in its certificate; durable before it answers. A certificate whose
    /// key was decided about before is answered as then, with the same client id (AMB-04).
    fn onboard<'a>(&'a self, applicant: Applicant) -> Answer<'a, Result<Onboarding, ApiError>>;

    /// The root certificate of the listener's own certificate, in PEM.
    fn root_certificate(&self) -> String;

    fn terms(&self) -> &Terms;

    fn now(&self) -> Moment;

    /// Called before each answer that gives `client` the manifest `version` or says that it still holds it
    /// (200 and 304). Costs nothing when it is the version of last time; a new one is durable before it
    /// answers.
    fn manifest_given<'a>(&'a self, client: &'a ClientId, version: u64) -> Answer<'a, Result<(), ApiError>>;

    /// The version last given, from memory: what a report of this generation, which names none, is about.
    fn manifest_last_given(&self, client: &ClientId) -> Option<u64>;

    /// What lets the client's container engine pull from our own registry.
    fn registry_token(&self, client: &ClientId) -> RegistryToken;

    /// Takes a request from what its sender may ask; otherwise says for how long to stay away (429). Answered from
    /// memory.
    fn charge(&self, sender: Sender<'_>) -> Result<(), Duration>;

    /// A request that claimed to be this client's was not: its signature did not count.
    fn forged(&self, client: &ClientId);

    /// The signatures that were kept and could still be repeated. Asked once, before the first request.
    fn signatures_kept(&self) -> Vec<UsedSignature>;

    /// Keeps signatures over a restart. Durable before it answers.
    fn keep_signatures<'a>(&'a self, used: Vec<UsedSignature>) -> Answer<'a, Result<(), ApiError>>;
}

/// On whose account a request goes. Whoever has proven nothing is a stranger: what a stranger does must neither take
/// the server's time without bound nor use up what a device may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender<'a> {
    /// Names a client that does not exist or is not let in, or wants to become one.
    Stranger,
    /// Names this client; its signature is about to be checked.
    Claims(&'a ClientId),
    /// Is this client.
    Proven(&'a ClientId),
}

/// A signature that a client has used up, as far as it must be remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedSignature {
    pub client: ClientId,
    /// Half of a SHA-256: nobody finds a second signature with the same one.
    pub mark: [u8; 16],
    /// From then on it is too old to count.
    pub until: Moment,
}

/// A client that was onboarded once.
#[derive(Debug, Clone)]
pub struct SignedClient {
    pub standing: SignedStanding,
    pub key: Arc<VerificationKey>,
}

/// What local policy says about a client of this generation. Everything but `Accepted` is 403.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignedStanding {
    Accepted,
    /// Nobody decided yet.
    Pending,
    /// An operator said no.
    Rejected,
    /// Was accepted once; an operator ended the relationship, or the device moved to the newer generation.
    Retired,
}

/// Someone who wants to become a client.
#[derive(Debug)]
pub struct Applicant {
    pub certificate: ClientCertificate,
    /// Whether the request was signed with the certificate's key. Always so, unless [`Terms`] allow
    /// onboarding without it.
    pub proven: bool,
    /// Where the request came from (`ConnectInfo` of the listener), so that an operator sees who waits.
    pub address: Option<SocketAddr>,
}

/// What became of an [`Applicant`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Onboarding {
    Accepted(ClientId),
    /// An operator has to decide; the client asks again later. The generation has no word for it, so it
    /// hears what a rejected one hears (AMB-04).
    Pending,
    Rejected,
    /// Was a client; see [`SignedStanding::Retired`].
    Retired,
}

/// What an operator configured about signed requests.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The addresses under which clients reach us, which they sign. A request counts for the one that its
    /// `Host` names, else for the first; with none at all, `https` and the `Host` are taken as they come.
    pub external: Vec<ExternalUrl>,
    /// How old a signature may be (MI-G1-065).
    pub window: Duration,
    /// How far ahead of ours a client's clock may be.
    pub skew: Duration,
    /// Whether clients from before the signature was demanded may onboard without one (AMB-03).
    pub unsigned_onboarding: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            external: Vec::new(),
            // The specification's own example.
            window: Duration::from_secs(5 * 60),
            skew: Duration::from_secs(60),
            unsigned_onboarding: false,
        }
    }
}
