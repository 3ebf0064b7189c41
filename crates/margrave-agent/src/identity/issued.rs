//! An identity that a server of ours issues: joining once against a token, and renewing for ever after.

use std::path::{Path, PathBuf};
use std::time::Duration;

use margrave_core::id::DeviceId;
use margrave_http::{Client, Limits, Origin, Request};
use margrave_identity::bundle::Bundle;
use margrave_identity::csr::Csr;
use margrave_identity::key::PrivateKey;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::pin::Pin;
use margrave_identity::proof::prove;
use margrave_wire::identity::{
    JOIN_PATH, JoinRequest, JoinResponse, RENEW_PATH, RenewRequest, RenewResponse,
};
use serde::Serialize;

use super::{
    Credential, GitSource, Identity, IdentityError, SvidCredential, SvidSource, WebTrust, answer, key_error,
    refusal, write_secret,
};

/// The server signs one certificate; whoever takes longer is not there.
const TIME_MAX: Duration = Duration::from_secs(30);

/// What a person typed to join a server of ours.
#[derive(Clone)]
pub struct Enrollment {
    pub url: String,
    pub token: String,
    pub pin: String,
    pub git: Option<GitSource>,
}

/// Exchanges a one-time token for an identity and keeps it under `data`.
pub async fn join(data: &Path, url: &str, token: &str, pin: &str) -> Result<Identity, IdentityError> {
    let enrollment =
        Enrollment { url: url.to_owned(), token: token.to_owned(), pin: pin.to_owned(), git: None };
    let place = super::Place::vacant(data)?;
    enroll(&place, enrollment).await
}

/// As [`join`], on a place that is known to be free or to be taken over.
pub async fn enroll(place: &super::Place, enrollment: Enrollment) -> Result<Identity, IdentityError> {
    let Enrollment { url, token, pin, git } = enrollment;
    let data = place.data();
    Pin::parse(&pin).map_err(IdentityError::Pin)?;
    let client = web_client(&url, &pin).await?;
    let key = join_key(data)?;
    let csr = Csr::make(&key).map_err(key_error)?;
    let request = JoinRequest { token, csr: csr.to_pem() };
    let joined: JoinResponse = exchange(&client, &url, JOIN_PATH, &request).await?;
    let identity = Identity {
        device_id: DeviceId::parse(joined.client_id.as_str()).map_err(answer)?,
        client_id: joined.client_id,
        url: url.trim_end_matches('/').to_owned(),
        device_url: joined.device_url,
        registry: joined.registry,
        registry_authority: joined.web_authority,
        credential: Credential::Svid(SvidCredential {
            certificates: joined.certificates,
            key: key.to_pem(),
            trust_bundle: joined.trust_bundle,
            bundle_tag: None,
            source: SvidSource::Issued { pin },
        }),
        git,
    };
    // What cannot be used must not be kept.
    identity.svid_credential().ok_or(IdentityError::NotAClient)?.live()?;
    place.settle(&identity)?;
    let spent = join_key_in(data);
    std::fs::remove_file(&spent).map_err(IdentityError::file("removed", &spent))?;
    Ok(identity)
}

/// The key to join with, on disk before it is shown to anybody: when the answer is lost, the server takes
/// the same token again from the same key, and from no other.
fn join_key(data: &Path) -> Result<PrivateKey, IdentityError> {
    let path = join_key_in(data);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            return PrivateKey::from_pem(&text)
                .map_err(|error| IdentityError::Damaged(path, Box::new(error)));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(IdentityError::file("read", &path)(error)),
    }
    let key = PrivateKey::generate().map_err(key_error)?;
    write_secret(data, &path, key.to_pem().as_bytes())?;
    Ok(key)
}

fn join_key_in(data: &Path) -> PathBuf {
    data.join("join-key.pem")
}

impl Identity {
    /// Gets the next SVID for the same name, proving possession of the previous key; works after expiry
    /// too, because a device may have been away for long.
    pub(crate) async fn renew(
        &mut self,
        data: &Path,
        pin: &str,
        svid: &LiveSvid,
        bundle: &LiveBundle,
    ) -> Result<(), IdentityError> {
        let credential = self.svid_credential().ok_or(IdentityError::NotAClient)?;
        let previous = svid.current();
        let key = PrivateKey::generate().map_err(key_error)?;
        let csr = Csr::make(&key).map_err(key_error)?;
        let proof = prove(previous.key(), &csr).map_err(key_error)?;
        let client = web_client(&self.url, pin).await?;
        let request = RenewRequest::new(csr.to_pem(), credential.certificates.clone(), &proof);
        let renewed: RenewResponse = exchange(&client, &self.url, RENEW_PATH, &request).await?;
        let next = SvidCredential {
            certificates: renewed.certificates,
            key: key.to_pem(),
            bundle_tag: credential
                .bundle_tag
                .clone()
                .filter(|_| renewed.trust_bundle == credential.trust_bundle),
            trust_bundle: renewed.trust_bundle,
            source: credential.source.clone(),
        };
        let next_svid = next.svid().map_err(answer)?;
        if next_svid.client_name() != previous.client_name() {
            return Err(IdentityError::NotAClient);
        }
        let trust_domain = next_svid.server_name().trust_domain.clone();
        let next_bundle = Bundle::from_wire(trust_domain, &next.trust_bundle).map_err(answer)?;
        // On disk before in use: a server may refuse the older one as soon as it has seen the newer.
        self.keep(data, next)?;
        svid.replace(next_svid).map_err(answer)?;
        bundle.replace(next_bundle).map_err(answer)?;
        Ok(())
    }
}

/// A connection to the page's listener, which is authenticated by its pin and by nothing else.
async fn web_client(url: &str, pin: &str) -> Result<Client, IdentityError> {
    let origin = Origin::parse(url).map_err(|error| IdentityError::Address(error.to_string()))?;
    WebTrust::Pins(vec![pin.to_owned()]).client(origin, Limits::default()).await
}

async fn exchange<Q: Serialize, A: serde::de::DeserializeOwned>(
    client: &Client,
    url: &str,
    path: &str,
    request: &Q,
) -> Result<A, IdentityError> {
    let sent = client.send(Request::post(path).json(request).timeout(TIME_MAX)).await;
    let response = sent.map_err(|source| IdentityError::Unreachable { url: url.to_owned(), source })?;
    if !response.status.is_success() {
        let words = refusal(&response);
        return Err(match response.retry_after() {
            Some(after) => IdentityError::Busy { words, after },
            None if response.status.is_server_error() => IdentityError::Failed(words),
            None => IdentityError::Refused(words),
        });
    }
    serde_json::from_slice(&response.body).map_err(answer)
}
