//! Who this device is, to which server, and by which of the three forms it speaks to it.
//!
//! `issued.rs` joins a server of ours and renews, `installed.rs` takes what an operator installed for any server,
//! `signed.rs` onboards at servers of the signed generation, `service.rs` fetches trust bundles, `file.rs` is how all of it lies on disk. Keeping it fresh is the keeper's task.

mod authorized;
mod file;
mod installed;
mod issued;
mod service;
mod signed;
mod trust;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use margrave_core::device::{Device, Event, Settings};
use margrave_core::id::{ClientId, DeviceId};
use margrave_core::moment::Moment;
use margrave_http::Response;
use margrave_identity::bundle::Bundle;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::svid::{Svid, SvidError};
use margrave_ledger::StateFile;
use margrave_wire::identity::JwkSet;
use margrave_wire::refusal::Refusal;
use serde::{Deserialize, Serialize};

pub(crate) use authorized::Authorized;
pub use authorized::AuthorizedError;
use file::IdentityFile;
pub use installed::{Installation, install};
pub(crate) use installed::{Reloaded, Watch};
pub use issued::{Enrollment, enroll, join};
pub(crate) use service::Found;
pub use service::{Service, ServiceError};
pub use signed::{Onboarding, SignedCredential, onboard};
pub use trust::WebTrust;

use crate::clock;
use crate::run::lock;
use crate::upstream::Tongue;

/// An identity file, a certificate or a bundle larger than this is not one.
const FILE_SIZE_MAX: u64 = 1 << 20;

/// Which of the three forms of the device interface is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Mutual TLS with SVIDs.
    #[default]
    G2,
    /// Signed requests.
    G1,
    /// Desired state from a Git repository; the rest as g2.
    Git,
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Form::G2 => "g2 (mutual TLS)",
            Form::G1 => "g1 (signed requests)",
            Form::Git => "git (desired state), g2 (reports)",
        })
    }
}

/// The device's identity.
#[derive(Clone)]
pub struct Identity {
    /// As the server knows the relationship with this device.
    pub client_id: ClientId,
    /// As the device calls itself in what it tells.
    pub device_id: DeviceId,
    /// The address that was joined.
    pub url: String,
    /// The device interface.
    pub device_url: String,
    pub registry: Option<String>,
    /// Whom the registry's certificate is from, as the server named it; `None` where it has no TLS.
    pub(crate) registry_authority: Option<String>,
    pub credential: Credential,
    /// Where desired state comes from when not from the device interface.
    pub git: Option<GitSource>,
}

/// How the device proves who it is.
#[derive(Clone)]
pub enum Credential {
    Svid(SvidCredential),
    Signed(SignedCredential),
}

/// An SVID with its key, and the bundle that the server's is verified against.
#[derive(Clone)]
pub struct SvidCredential {
    certificates: Vec<String>,
    key: String,
    trust_bundle: JwkSet,
    /// The validator of `trust_bundle` at the service it came from; never of a body that was refused (ID-144).
    bundle_tag: Option<String>,
    pub(crate) source: SvidSource,
}

/// Who replaces an SVID before it expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SvidSource {
    /// A server of ours, behind a page with this pin.
    Issued { pin: String },
    /// An operator, by replacing files.
    Installed(installed::Installed),
}

/// Which repository holds desired state.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GitSource {
    /// The one that the server names when it is asked.
    Server,
    /// One that an operator named.
    Given {
        url: String,
        username: String,
        token: String,
        /// The authority behind it, PEM, unless the system's will do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        authority: Option<String>,
    },
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("client", &self.client_id)
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for GitSource {
    /// A token in a log is a token lost.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GitSource::Server => f.write_str("Server"),
            GitSource::Given { url, .. } => write!(f, "Given({url})"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("this device has not joined a server yet: run `margrave-agent join URL --token T --pin P` first")]
    NotJoined,
    #[error(
        "{0} already belongs to device {1}; use another --data directory, or move this device to another identity with --replace"
    )]
    AlreadyJoined(PathBuf, ClientId),
    #[error("the agent is running on {0}; stop it before its identity is replaced")]
    Running(PathBuf),
    #[error("the device's memory cannot be opened")]
    Ledger(#[source] margrave_ledger::LedgerError),
    #[error("{path} could not be {what}")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{0} is larger than {FILE_SIZE_MAX} bytes; it is not what it should be")]
    TooLarge(PathBuf),
    #[error("{0} is damaged; restore it from a backup, or join anew")]
    Damaged(PathBuf, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{0} cannot be used")]
    Unusable(PathBuf, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{path} expired at {at}; install one that is valid, and check this machine's clock")]
    Expired { path: PathBuf, at: String },
    #[error(
        "the certificate is of {0}; a device needs one of spiffe://<trust-domain>/margo/wfm/<server>/client/<device> (ID-011)"
    )]
    ForeignName(String),
    #[error(
        "the certificate is of {new}, this device is {current}; a renewal keeps the name (ID-172), another one needs `margrave-agent join … --replace`"
    )]
    OtherName { current: String, new: String },
    #[error(
        "there is no trust bundle; give its file or address with --bundle, or the identity service with --identity-url"
    )]
    NoBundle,
    #[error("the trust bundle could not be fetched")]
    Service(#[from] ServiceError),
    #[error("the key does not belong to the certificate; give the pair that was issued together")]
    OtherKey,
    #[error(
        "no operator has accepted this device yet (its fingerprint is {fingerprint}); once one has, run the same command again, which asks with the same key"
    )]
    Undecided { fingerprint: String },
    #[error(
        "the server knows this certificate already and does not say under which id ({0}); give the id with --client-id"
    )]
    KnownAlready(String),
    #[error("{0}")]
    Address(String),
    #[error("the pin is not a pin: copy it as the server printed it")]
    Pin(#[source] margrave_identity::pin::InvalidPin),
    #[error("no authority to trust the server by")]
    Trust(#[source] Box<dyn std::error::Error + Send + Sync>),
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
    #[error("the server gave no answer that counts: {0}")]
    Failed(String),
    #[error("the server is busy and asks for {} s of patience: {words}", after.as_secs())]
    Busy { words: String, after: Duration },
    #[error("the server's answer makes no sense")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the offered trust bundle is older than the one in use, and this device refuses that (ID-145)")]
    OlderBundle,
    #[error("the server issued a certificate that is not for one of its clients")]
    NotAClient,
}

impl IdentityError {
    /// Whether this is an answer, and the answer is no: asked again as it is, it would be the same. Otherwise asking went wrong.
    pub fn is_no(&self) -> bool {
        matches!(
            self,
            IdentityError::Refused(_)
                | IdentityError::AlreadyJoined(..)
                | IdentityError::Running(_)
                | IdentityError::Undecided { .. }
                | IdentityError::KnownAlready(_)
                | IdentityError::Expired { .. }
                | IdentityError::ForeignName(_)
                | IdentityError::OtherName { .. }
                | IdentityError::OtherKey
        )
    }

    /// How long the other end asked to be left alone (ID-204).
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            IdentityError::Busy { after, .. }
            | IdentityError::Service(ServiceError::Refused { retry_after: Some(after), .. }) => Some(*after),
            _ => None,
        }
    }

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

/// A data directory that is ready to take an identity.
#[derive(Debug)]
pub struct Place {
    data: PathBuf,
    /// Held while the identity that is here is being replaced, so that no agent runs meanwhile.
    _lock: Option<File>,
}

impl Place {
    /// One that belongs to no device yet.
    pub fn vacant(data: &Path) -> Result<Place, IdentityError> {
        match Identity::load(data) {
            Err(IdentityError::NotJoined) => Ok(Place { data: data.to_owned(), _lock: None }),
            Ok(identity) => Err(IdentityError::AlreadyJoined(file_in(data), identity.client_id)),
            Err(error) => Err(error),
        }
    }

    /// One whose identity, if it has one, is replaced; what runs and what is desired stay.
    pub fn taken_over(data: &Path) -> Result<Place, IdentityError> {
        let identity = match Identity::load(data) {
            Err(IdentityError::NotJoined) => return Place::vacant(data),
            loaded => loaded,
        };
        let lock = lock(data).map_err(|_| IdentityError::Running(data.to_owned()))?;
        let identity = match identity {
            // Replacing it is what one does with a damaged identity; the ledger knows whose it is.
            Err(IdentityError::Damaged(..)) => {
                return Ok(Place { data: data.to_owned(), _lock: Some(lock) });
            }
            loaded => loaded?,
        };
        // What the ledger holds was accepted under the identity that goes; older agents did not write that down.
        let (mut ledger, device, _) =
            StateFile::<Device>::open(&data.join("ledger")).map_err(IdentityError::Ledger)?;
        if let Some(mut device) = device {
            let settings = Settings::new(identity.device_id.clone());
            device.absorb(&settings, clock::now(), clock::roll(), Event::IdentityIs(identity.principal()?));
            ledger.commit(&device).map_err(IdentityError::Ledger)?;
        }
        Ok(Place { data: data.to_owned(), _lock: Some(lock) })
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// From now on, this place is `identity`'s.
    fn settle(&self, identity: &Identity) -> Result<(), IdentityError> {
        identity.save(&self.data)?;
        // What an earlier server named is not this one's.
        let authority = registry_authority_in(&self.data);
        match std::fs::remove_file(&authority) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(IdentityError::file("removed", &authority)(error));
            }
            _ => {}
        }
        identity.show_authority(&self.data)
    }
}

impl Identity {
    pub fn load(data: &Path) -> Result<Self, IdentityError> {
        let path = file_in(data);
        if !path.exists() {
            return Err(IdentityError::NotJoined);
        }
        let text = read_bounded(&path)?;
        let damaged =
            |error: Box<dyn std::error::Error + Send + Sync>| IdentityError::Damaged(path.clone(), error);
        let file: IdentityFile = serde_json::from_str(&text).map_err(|error| damaged(Box::new(error)))?;
        Identity::try_from(file).map_err(|error| damaged(Box::new(error)))
    }

    fn save(&self, data: &Path) -> Result<(), IdentityError> {
        let text = serde_json::to_vec_pretty(&IdentityFile::from(self)).expect("an identity is plain data");
        write_secret(data, &file_in(data), &text)
    }

    pub fn form(&self) -> Form {
        match (&self.credential, &self.git) {
            (Credential::Svid(_), None) => Form::G2,
            (Credential::Svid(_), Some(_)) => Form::Git,
            (Credential::Signed(_), _) => Form::G1,
        }
    }

    /// Whom the server takes this device for: what its memory of manifest versions is keyed by.
    pub fn principal(&self) -> Result<String, IdentityError> {
        match &self.credential {
            Credential::Svid(credential) => Ok(credential.svid().map_err(answer)?.name().to_string()),
            // Another server may well give the same id.
            Credential::Signed(_) => Ok(format!("g1 {} {}", self.device_url, self.client_id)),
        }
    }

    /// When the certificate that this device proves itself with expires.
    pub fn expires(&self) -> Result<Moment, IdentityError> {
        match &self.credential {
            Credential::Svid(credential) => Ok(credential.svid().map_err(answer)?.not_after()),
            Credential::Signed(credential) => Ok(credential.certificate()?.not_after()),
        }
    }

    /// Which generation's paths and bodies the server understands.
    pub(crate) fn tongue(&self) -> Tongue {
        match &self.credential {
            Credential::Svid(_) => Tongue::G2,
            Credential::Signed(_) => Tongue::G1(self.client_id.clone()),
        }
    }

    pub(crate) fn svid_credential(&self) -> Option<&SvidCredential> {
        match &self.credential {
            Credential::Svid(credential) => Some(credential),
            Credential::Signed(_) => None,
        }
    }

    /// Lays the registry's authority beside the identity, for an engine on this device to trust. Done again at every
    /// start: power may fail between the one file and the other.
    pub(crate) fn show_authority(&self, data: &Path) -> Result<(), IdentityError> {
        let path = registry_authority_in(data);
        match &self.registry_authority {
            Some(authority) if std::fs::read(&path).is_ok_and(|held| held == authority.as_bytes()) => Ok(()),
            Some(authority) => write_secret(data, &path, authority.as_bytes()),
            None => Ok(()),
        }
    }

    /// [`Identity::registry_authority`], also where an earlier agent joined, who kept it beside the identity only.
    pub(crate) fn authority_of_registry(&self, data: &Path) -> Result<Option<String>, IdentityError> {
        if self.registry_authority.is_some() {
            return Ok(self.registry_authority.clone());
        }
        match read_bounded(&registry_authority_in(data)) {
            Ok(pem) => Ok(Some(pem)),
            Err(IdentityError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the server is one of ours, with all that only ours have.
    pub(crate) fn is_issued(&self) -> bool {
        let source = self.svid_credential().map(|credential| &credential.source);
        matches!(source, Some(SvidSource::Issued { .. }))
    }

    fn keep(&mut self, data: &Path, credential: SvidCredential) -> Result<(), IdentityError> {
        let next = Identity { credential: Credential::Svid(credential), ..self.clone() };
        next.save(data)?;
        *self = next;
        Ok(())
    }

    /// Takes over a refreshed trust bundle as a whole (ID-142); a worse one changes nothing (ID-143). Says whether
    /// anything changed.
    pub(crate) fn take_bundle(
        &mut self,
        data: &Path,
        live: &LiveBundle,
        set: JwkSet,
        tag: Option<String>,
        refuse_older: bool,
    ) -> Result<bool, IdentityError> {
        let held = self.svid_credential().ok_or(IdentityError::NotAClient)?;
        if set == held.trust_bundle {
            return Ok(false);
        }
        let current = live.current();
        let bundle = Bundle::from_wire(current.trust_domain().clone(), &set).map_err(answer)?;
        if bundle.is_older_than(&current) {
            if refuse_older {
                tracing::error!("security: an older trust bundle was offered and refused (ID-145)");
                return Err(IdentityError::OlderBundle);
            }
            tracing::warn!(
                "security: an older trust bundle is offered; taken, because its transport is authenticated (ID-145)"
            );
        }
        let next = SvidCredential { trust_bundle: set, bundle_tag: tag, ..held.clone() };
        self.keep(data, next)?;
        live.replace(bundle).map_err(answer)?;
        Ok(true)
    }
}

impl SvidCredential {
    pub(crate) fn svid(&self) -> Result<Svid, SvidError> {
        Svid::from_pem(&self.certificates.concat(), &self.key)
    }

    /// What TLS needs, replaceable while connections are open.
    pub(crate) fn live(&self) -> Result<(Arc<LiveSvid>, Arc<LiveBundle>), IdentityError> {
        let svid = self.svid().map_err(answer)?;
        let Some(name) = svid.client_name() else { return Err(IdentityError::NotAClient) };
        let bundle =
            Bundle::from_wire(name.server.trust_domain.clone(), &self.trust_bundle).map_err(answer)?;
        Ok((LiveSvid::new(svid), LiveBundle::new(bundle)))
    }

    /// Where the next trust bundle comes from, and the validator of the one that is held.
    pub(crate) fn service(&self, url: &str) -> Option<(Service, Option<String>)> {
        let service = match &self.source {
            SvidSource::Issued { pin } => Some(Service::of_server(url, pin)),
            SvidSource::Installed(installed) => installed.service.clone(),
        };
        service.map(|service| (service, self.bundle_tag.clone()))
    }
}

/// Where the authority of the server's registry is kept, for an engine on this device to trust.
pub fn registry_authority_in(data: &Path) -> PathBuf {
    data.join("registry-authority.pem")
}

fn file_in(data: &Path) -> PathBuf {
    data.join("identity.json")
}

/// A small text file.
fn read_bounded(path: &Path) -> Result<String, IdentityError> {
    let mut text = String::new();
    let file = File::open(path).map_err(IdentityError::file("opened", path))?;
    file.take(FILE_SIZE_MAX + 1).read_to_string(&mut text).map_err(IdentityError::file("read", path))?;
    if text.len() as u64 > FILE_SIZE_MAX {
        return Err(IdentityError::TooLarge(path.to_owned()));
    }
    Ok(text)
}

/// Replaces a file as a whole, readable by its owner only.
pub(crate) fn write_secret(data: &Path, path: &Path, content: &[u8]) -> Result<(), IdentityError> {
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

/// What an error answer says, or at least the status.
pub fn refusal(response: &Response) -> String {
    match Refusal::read(&response.body).words() {
        Some(words) => words,
        None if response.status.is_redirection() => {
            format!("HTTP {}; redirects are not followed, so give the address it leads to", response.status)
        }
        None => format!("HTTP {}", response.status),
    }
}
