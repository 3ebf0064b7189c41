//! An identity at a server of the signed generation: a key and a certificate that the server was shown, and the id
//! that it gave for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use margrave_core::id::{ClientId, DeviceId};
use margrave_core::moment::Moment;
use margrave_http::{Limits, Origin, Request, Response, Scheme, StatusCode};
use margrave_identity::key::PrivateKey;
use margrave_identity::message::{ClientCertificate, Signer};
use margrave_identity::tls::authority_client_config;
use margrave_oci::reference::Host;
use margrave_wire::g1::{ONBOARDING_PATH, onboarding, registry_token_path};
use margrave_wire::identity::RegistryToken;

use super::{
    Credential, Identity, IdentityError, Place, WebTrust, answer, key_error, read_bounded, refusal,
    write_secret,
};
use crate::clock;
use crate::upstream::{Link, Proof, Seal};
use crate::way::Way;

/// Between two questions whether an operator has decided by now.
const ASK_EVERY: Duration = Duration::from_secs(10);
const ASK_TIME_MAX: Duration = Duration::from_secs(30);
/// How often a server that is busy is asked about its registry before a person is told.
const REGISTRY_TRIES_MAX: usize = 4;
const REGISTRY_PAUSE: Duration = Duration::from_secs(2);

/// What signs requests, and what the server's web certificate is judged by.
#[derive(Clone)]
pub struct SignedCredential {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) trust: WebTrust,
}

/// What a person typed to join a server of the signed generation.
#[derive(Debug, Clone)]
pub struct Onboarding {
    pub url: String,
    pub trust: WebTrust,
    /// Certificate and key that the server's operator knows already; made here when left out.
    pub given: Option<(PathBuf, PathBuf)>,
    /// The client id, where the server knows the certificate and does not say it again.
    pub client: Option<ClientId>,
    pub device: Option<DeviceId>,
    /// How long an operator may take to decide.
    pub patience: Duration,
}

impl SignedCredential {
    pub(crate) fn certificate(&self) -> Result<ClientCertificate, IdentityError> {
        ClientCertificate::from_pem(&self.certificate).map_err(answer)
    }

    /// The link to the server, on which every request is signed.
    pub(crate) async fn link(
        &self,
        origin: Origin,
        limits: Limits,
        way: Arc<Way>,
    ) -> Result<Link, IdentityError> {
        let signer = Signer::from_pem(&self.key).map_err(key_error)?;
        let client = self.trust.client(origin.clone(), limits).await?;
        Ok(Link::new(client, Proof::Signature(Seal::new(signer, origin)), way))
    }
}

/// Shows the server this device's certificate, waits for its operator, and keeps the id it is known by.
pub async fn onboard(place: &Place, onboarding: Onboarding) -> Result<Identity, IdentityError> {
    let Onboarding { url, trust, given, client, device, patience } = onboarding;
    let origin = Origin::parse(&url).map_err(|error| IdentityError::Address(error.to_string()))?;
    if origin.scheme() != Scheme::Https {
        return Err(IdentityError::Address(format!("{url} must be https (MI-G1-003)")));
    }
    let device = match device {
        Some(device) => Some(device),
        None => host_name(),
    };
    let data = place.data();
    let (certificate, key) = match &given {
        Some((certificate, key)) => (read_bounded(certificate)?, read_bounded(key)?),
        None => made(data, device.as_ref())?,
    };
    let credential = SignedCredential { certificate, key, trust };
    let shown = credential.certificate()?;
    let signer = Signer::from_pem(&credential.key).map_err(key_error)?;
    if shown.key().keyid() != signer.keyid() {
        return Err(IdentityError::OtherKey);
    }
    let link = credential.link(origin.clone(), Limits::default(), Arc::new(Way::default())).await?;
    let client = match client {
        Some(client) => client,
        None => ask(&link, &shown, patience).await?,
    };
    let registry = registry_of(&link, &client).await?;
    let (registry, registry_authority) = registry.map_or((None, None), |of| (Some(of.address), of.authority));
    let identity = Identity {
        device_id: match device {
            Some(device) => device,
            None => DeviceId::parse(client.as_str()).map_err(answer)?,
        },
        client_id: client,
        url: origin.to_string(),
        device_url: origin.to_string(),
        registry,
        registry_authority,
        credential: Credential::Signed(credential),
        git: None,
    };
    place.settle(&identity)?;
    for spent in [key_in(data), certificate_in(data)] {
        match std::fs::remove_file(&spent) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(IdentityError::file("removed", &spent)(error));
            }
            _ => {}
        }
    }
    Ok(identity)
}

/// Asks until the server gives an id. The protocol has no word for "not yet": undecided and rejected look the same
/// (AMB-04), so the waiting is bounded by patience alone.
async fn ask(
    link: &Link,
    certificate: &ClientCertificate,
    patience: Duration,
) -> Result<ClientId, IdentityError> {
    let started = tokio::time::Instant::now();
    let mut told = false;
    let mut body = onboarding::write_request(certificate.der());
    let mut older = Some(onboarding::write_oldest_request(certificate.der()));
    loop {
        let request =
            Request::post(ONBOARDING_PATH).bytes("application/json", body.clone()).timeout(ASK_TIME_MAX);
        let sent = link.send(request).await;
        let pause = match sent {
            Ok(response) if response.status.is_success() => match onboarding::read_answer(&response.body) {
                // Taken, and not decided yet.
                Err(_) if response.status == StatusCode::ACCEPTED => undecided(&response)?,
                read => return read.map_err(answer),
            },
            Ok(response) if not_understood(response.status) && older.is_some() => {
                body = older.take().expect("just looked");
                continue;
            }
            // Known already: some servers say so, some of those with the id (AMB-04).
            Ok(response) if response.status == StatusCode::CONFLICT => {
                let known = onboarding::read_answer(&response.body);
                return known.map_err(|_| IdentityError::KnownAlready(refusal(&response)));
            }
            Ok(response) => undecided(&response)?,
            // Somebody who waits already need not notice that the server restarts.
            Err(trouble) if told => trouble.retry_after.unwrap_or(ASK_EVERY),
            Err(trouble) => return Err(IdentityError::Failed(trouble.message)),
        };
        if started.elapsed() + pause > patience {
            return Err(IdentityError::Undecided { fingerprint: certificate.fingerprint().hex() });
        }
        if !std::mem::replace(&mut told, true) {
            tracing::info!(
                fingerprint = certificate.fingerprint().hex(),
                "the server has not accepted this device yet; waiting for its operator, who should see this fingerprint"
            );
        }
        tokio::time::sleep(pause.mul_f64(0.9 + clock::roll() / 5.0)).await;
    }
}

/// The registry that a server of ours has beside its device interface.
struct OwnRegistry {
    address: String,
    authority: Option<String>,
}

/// Servers of others have none, and say so in whatever way they speak of paths that they do not know. Where one is only
/// busy nothing is concluded: nothing is settled yet, and whoever asks again shows the same certificate. One that does
/// not answer at all may well be somebody else's, so a device joins without.
async fn registry_of(link: &Link, client: &ClientId) -> Result<Option<OwnRegistry>, IdentityError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let request = Request::post(registry_token_path(client)).timeout(ASK_TIME_MAX);
        let (pause, given_up) = match link.send(request).await {
            Ok(response) if response.status.is_success() => return Ok(registry_in(&response)),
            Ok(response) => match response.retry_after().filter(|_| is_busy(response.status)) {
                Some(after) => (after, Err(IdentityError::Busy { words: refusal(&response), after })),
                None => return Ok(None),
            },
            Err(trouble) => {
                tracing::warn!(trouble = trouble.message, "the server says nothing of a registry of its own");
                (trouble.retry_after.unwrap_or(REGISTRY_PAUSE), Ok(None))
            }
        };
        if tries == REGISTRY_TRIES_MAX {
            return given_up;
        }
        tokio::time::sleep(pause.min(ASK_EVERY)).await;
    }
}

fn is_busy(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::INSUFFICIENT_STORAGE
    )
}

/// What cannot be used must not be kept.
fn registry_in(response: &Response) -> Option<OwnRegistry> {
    let token: RegistryToken = response.json().ok()?;
    let address = token.registry.filter(|address| Host::parse(address).is_ok())?;
    let authority = token.web_authority;
    let usable = authority.as_deref().is_none_or(|pem| authority_client_config(pem).is_ok());
    usable.then_some(OwnRegistry { address, authority })
}

/// Whether a server may know the request by the names of before only.
fn not_understood(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)
}

/// How long to wait before the next question, or why there is none.
fn undecided(response: &Response) -> Result<Duration, IdentityError> {
    match response.status {
        StatusCode::FORBIDDEN
        | StatusCode::ACCEPTED
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE => {
            Ok(response.retry_after().unwrap_or(ASK_EVERY).max(Duration::from_secs(1)))
        }
        status if status.is_server_error() => Err(IdentityError::Failed(refusal(response))),
        _ => Err(IdentityError::Refused(refusal(response))),
    }
}

/// Key and certificate of our own making, on disk before they are shown to anybody: asked again, the server gives
/// the same certificate the same id.
fn made(data: &Path, device: Option<&DeviceId>) -> Result<(String, String), IdentityError> {
    let (key_path, certificate_path) = (key_in(data), certificate_in(data));
    if key_path.exists() && certificate_path.exists() {
        return Ok((read_bounded(&certificate_path)?, read_bounded(&key_path)?));
    }
    let key = PrivateKey::generate().map_err(key_error)?;
    let name = device.map_or("margrave-agent", DeviceId::as_str);
    let now: Moment = clock::now();
    let certificate = ClientCertificate::self_signed(&key, name, now).map_err(key_error)?;
    let (certificate, key) = (certificate.pem(), key.to_pem());
    write_secret(data, &key_path, key.as_bytes())?;
    write_secret(data, &certificate_path, certificate.as_bytes())?;
    Ok((certificate, key))
}

fn key_in(data: &Path) -> PathBuf {
    data.join("onboarding-key.pem")
}

fn certificate_in(data: &Path) -> PathBuf {
    data.join("onboarding-certificate.pem")
}

/// What this machine is called, if that can be a device's name.
fn host_name() -> Option<DeviceId> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    DeviceId::parse(name.trim().split('.').next().unwrap_or_default()).ok().filter(|id| !id.is_child())
}
