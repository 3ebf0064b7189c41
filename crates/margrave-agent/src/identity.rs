//! Who this device is: joining a server once, and renewing for ever after.
//!
//! Everything that belongs together is in one file, replaced as a whole: a power cut leaves the old
//! identity or the new one, never a certificate without its key.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_http::{Client, Limits, Origin, Request, Response, Trust};
use margrave_identity::bundle::Bundle;
use margrave_identity::csr::Csr;
use margrave_identity::key::PrivateKey;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::pin::Pin;
use margrave_identity::proof::prove;
use margrave_identity::svid::{Svid, SvidError};
use margrave_identity::tls::pinned_client_config;
use margrave_wire::identity::{
    JOIN_PATH, JoinRequest, JoinResponse, JwkSet, RENEW_PATH, RenewRequest, RenewResponse,
};
use margrave_wire::problem::Problem;
use serde::{Deserialize, Serialize};

/// An identity file larger than this was not written by us.
const FILE_SIZE_MAX: u64 = 1 << 20;
/// The server signs one certificate; whoever takes longer is not there.
const TIME_MAX: Duration = Duration::from_secs(30);

/// The device's identity as it is on disk.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub client_id: ClientId,
    /// The server's page and identity service, authenticated by `pin`.
    pub url: String,
    pub pin: String,
    /// The device interface, authenticated by SVIDs.
    pub device_url: String,
    pub registry: Option<String>,
    certificates: Vec<String>,
    key: String,
    trust_bundle: JwkSet,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("client", &self.client_id)
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("this device has not joined a server yet: run `margrave-agent join URL --token T --pin P` first")]
    NotJoined,
    #[error(
        "{0} already belongs to device {1}; use another --data directory, or remove this one to begin anew"
    )]
    AlreadyJoined(PathBuf, ClientId),
    #[error("{path} could not be {what}")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{0} is damaged; restore it from a backup, or join anew with a fresh token")]
    Damaged(PathBuf, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{0}")]
    Address(String),
    #[error("the pin is not a pin: copy it as the server printed it")]
    Pin(#[source] margrave_identity::pin::InvalidPin),
    #[error("a key could not be made")]
    Key(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the server at {url} could not be reached")]
    Unreachable {
        url: String,
        #[source]
        source: margrave_http::Error,
    },
    #[error("the server refused: {0}")]
    Refused(String),
    #[error("the server's answer makes no sense")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the server issued a certificate that is not for one of its clients")]
    NotAClient,
}

impl IdentityError {
    fn file(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| IdentityError::File { what, path, source }
    }
}

fn answer(error: impl std::error::Error + Send + Sync + 'static) -> IdentityError {
    IdentityError::Answer(Box::new(error))
}

fn key_error(error: impl std::error::Error + Send + Sync + 'static) -> IdentityError {
    IdentityError::Key(Box::new(error))
}

/// Exchanges a one-time token for an identity and keeps it under `data`.
pub async fn join(data: &Path, url: &str, token: &str, pin: &str) -> Result<Identity, IdentityError> {
    let path = file_in(data);
    match Identity::load(data) {
        Err(IdentityError::NotJoined) => {}
        Ok(identity) => return Err(IdentityError::AlreadyJoined(path, identity.client_id)),
        Err(error) => return Err(error),
    }
    let client = web_client(url, pin)?;
    let key = join_key(data)?;
    let csr = Csr::make(&key).map_err(key_error)?;
    let request = JoinRequest { token: token.to_owned(), csr: csr.to_pem() };
    let joined: JoinResponse = exchange(&client, url, JOIN_PATH, &request).await?;
    let identity = Identity {
        client_id: joined.client_id,
        url: url.trim_end_matches('/').to_owned(),
        pin: pin.to_owned(),
        device_url: joined.device_url,
        registry: joined.registry,
        certificates: joined.certificates,
        key: key.to_pem(),
        trust_bundle: joined.trust_bundle,
    };
    // What cannot be used must not be kept.
    identity.live()?;
    identity.save(data)?;
    let spent = join_key_in(data);
    std::fs::remove_file(&spent).map_err(IdentityError::file("removed", &spent))?;
    if let Some(authority) = joined.web_authority {
        let path = registry_authority(data);
        std::fs::write(&path, authority).map_err(IdentityError::file("written", &path))?;
    }
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

/// Replaces a file as a whole, readable by its owner only.
fn write_secret(data: &Path, path: &Path, content: &[u8]) -> Result<(), IdentityError> {
    let temporary = path.with_extension("part");
    let write = || -> std::io::Result<()> {
        create_private(data)?;
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        File::open(data)?.sync_all()
    };
    write().map_err(IdentityError::file("written", path))
}

/// A data directory that only its owner can look into; one that somebody made beforehand stays as it is.
pub(crate) fn create_private(data: &Path) -> std::io::Result<()> {
    if data.is_dir() {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data)
}

impl Identity {
    pub fn load(data: &Path) -> Result<Self, IdentityError> {
        let path = file_in(data);
        let mut text = String::new();
        match File::open(&path) {
            Ok(file) => file
                .take(FILE_SIZE_MAX)
                .read_to_string(&mut text)
                .map_err(IdentityError::file("read", &path))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(IdentityError::NotJoined);
            }
            Err(error) => return Err(IdentityError::file("opened", &path)(error)),
        };
        serde_json::from_str(&text).map_err(|error| IdentityError::Damaged(path, Box::new(error)))
    }

    fn save(&self, data: &Path) -> Result<(), IdentityError> {
        let text = serde_json::to_vec_pretty(self).expect("an identity is plain data");
        write_secret(data, &file_in(data), &text)
    }

    /// What TLS needs, replaceable while connections are open.
    pub fn live(&self) -> Result<(Arc<LiveSvid>, Arc<LiveBundle>), IdentityError> {
        let svid = self.svid().map_err(answer)?;
        let Some(name) = svid.client_name() else { return Err(IdentityError::NotAClient) };
        let bundle =
            Bundle::from_wire(name.server.trust_domain.clone(), &self.trust_bundle).map_err(answer)?;
        Ok((LiveSvid::new(svid), LiveBundle::new(bundle)))
    }

    pub fn svid(&self) -> Result<Svid, SvidError> {
        Svid::from_pem(&self.certificates.concat(), &self.key)
    }

    /// Gets the next SVID for the same name, proving possession of the previous key; works after expiry
    /// too, because a device may have been away for long.
    pub async fn renew(
        &mut self,
        data: &Path,
        svid: &LiveSvid,
        bundle: &LiveBundle,
    ) -> Result<(), IdentityError> {
        let previous = svid.current();
        let key = PrivateKey::generate().map_err(key_error)?;
        let csr = Csr::make(&key).map_err(key_error)?;
        let proof = prove(previous.key(), &csr).map_err(key_error)?;
        let client = web_client(&self.url, &self.pin)?;
        let request = RenewRequest::new(csr.to_pem(), self.certificates.clone(), &proof);
        let renewed: RenewResponse = exchange(&client, &self.url, RENEW_PATH, &request).await?;
        let next = Identity {
            certificates: renewed.certificates,
            key: key.to_pem(),
            trust_bundle: renewed.trust_bundle,
            ..self.clone()
        };
        let next_svid = next.svid().map_err(answer)?;
        if next_svid.client_name() != previous.client_name() {
            return Err(IdentityError::NotAClient);
        }
        let trust_domain = next_svid.server_name().trust_domain.clone();
        let next_bundle = Bundle::from_wire(trust_domain, &next.trust_bundle).map_err(answer)?;
        // On disk before in use: a server may refuse the older one as soon as it has seen the newer.
        next.save(data)?;
        *self = next;
        svid.replace(next_svid).map_err(answer)?;
        bundle.replace(next_bundle).map_err(answer)?;
        Ok(())
    }

    /// Takes over a refreshed trust bundle; a worse one changes nothing (ID-143).
    pub fn refresh_bundle(
        &mut self,
        data: &Path,
        live: &LiveBundle,
        bytes: &[u8],
    ) -> Result<bool, IdentityError> {
        let set: JwkSet = serde_json::from_slice(bytes).map_err(answer)?;
        if set == self.trust_bundle {
            return Ok(false);
        }
        let current = live.current();
        let bundle = Bundle::from_wire(current.trust_domain().clone(), &set).map_err(answer)?;
        if bundle.is_older_than(&current) {
            tracing::warn!(
                "security: the server offers an older trust bundle; taken, because its transport is authenticated"
            );
        }
        let next = Identity { trust_bundle: set, ..self.clone() };
        next.save(data)?;
        *self = next;
        live.replace(bundle).map_err(answer)?;
        Ok(true)
    }
}

/// Where the authority of the server's registry is kept, for an engine on this device to trust.
pub fn registry_authority(data: &Path) -> PathBuf {
    data.join("registry-authority.pem")
}

fn file_in(data: &Path) -> PathBuf {
    data.join("identity.json")
}

/// A connection to the page's listener, which is authenticated by its pin and by nothing else.
pub fn web_client(url: &str, pin: &str) -> Result<Client, IdentityError> {
    let origin = Origin::parse(url).map_err(|error| IdentityError::Address(error.to_string()))?;
    let pin = Pin::parse(pin).map_err(IdentityError::Pin)?;
    let trust = Trust::Tls(pinned_client_config(vec![pin]));
    Client::new(trust, origin, Limits::default()).map_err(|error| IdentityError::Address(error.to_string()))
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
        return Err(IdentityError::Refused(refusal(&response)));
    }
    serde_json::from_slice(&response.body).map_err(answer)
}

/// What a problem body says, or at least the status.
pub fn refusal(response: &Response) -> String {
    match serde_json::from_slice::<Problem>(&response.body) {
        Ok(problem) => match problem.detail {
            Some(detail) => format!("{} ({detail})", problem.title),
            None => problem.title,
        },
        Err(_) => format!("HTTP {}", response.status),
    }
}

/// When to renew next, given dice in 0..1; at once when it is overdue.
pub fn renew_at(svid: &Svid, now: Moment, roll: f64) -> Moment {
    svid.renew_at(roll).max(now)
}
