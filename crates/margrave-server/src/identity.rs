//! The server's keys: made once, kept in `DATA/identity`, never replaced by themselves.
//!
//! On disk lie the two authorities (one for SVIDs, one for HTTPS, ID-165), the key behind the devices'
//! registry tokens, and the names they were made for. What expires — the server's own SVID and its web
//! certificate — is issued anew at every start and again while running, and exists only in memory: fewer
//! secrets on disk, and nothing there that can be out of date.
//!
//! The authority for SVIDs can be replaced by an operator; that is `authority.rs`.
//!
//! Losing an authority means visiting every device. So the directory appears whole or not at all, a damaged
//! file is an error that names it, and a fleet without its authorities does not start.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::{hmac, rand};
use margrave_core::id::{TrustDomain, WfmId};
use margrave_core::identity::{ClientName, ServerName};
use margrave_core::moment::Moment;
use margrave_identity::authority::{Authority, AuthorityError, IssueError};
use margrave_identity::live::{LiveBundle, LiveSvid, LiveWebLeaf};
use margrave_identity::verify::{Peer, Refusal};
use margrave_identity::web::WebAuthority;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use crate::authority::{
    Authorities, CERTIFICATE as AUTHORITY_CERTIFICATE, KEY as AUTHORITY_KEY, RotationError,
};

const DIRECTORY: &str = "identity";
const UNFINISHED: &str = "identity.unfinished";
const NAMES: &str = "names.json";
const WEB_CERTIFICATE: &str = "web-authority.crt";
const WEB_KEY: &str = "web-authority.key";
const REGISTRY_KEY: &str = "registry-tokens.key";
const REGISTRY_KEY_BYTES: usize = 32;

/// Browsers take up to 398 days; ninety are renewed by us long before anybody sees a warning.
const WEB_LIFETIME: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// Why the server has no identity to start with.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{path} cannot be {doing}; check that the data directory is writable by this user")]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
    #[error(
        "{path} is missing, although the other keys are there; restore the whole identity directory from a backup. \
         Without it devices will not recognise this server"
    )]
    Missing { path: PathBuf },
    #[error(
        "{data} holds a fleet but no identity directory; restore it from a backup. To give up the fleet and begin \
         anew, start with an empty data directory"
    )]
    Lost { data: PathBuf },
    #[error("{path} is damaged: {why}. Restore the whole identity directory from a backup")]
    Damaged { path: PathBuf, why: String },
    #[error("{path} cannot be used; restore the whole identity directory from a backup")]
    Authority { path: PathBuf, source: AuthorityError },
    #[error("no key could be made")]
    Create(#[source] AuthorityError),
    #[error(
        "this data directory belongs to {what} {kept}, but {given} was asked for; leave the option out, or use another \
         data directory. Devices know the server by that name, so it cannot change"
    )]
    OtherName { what: &'static str, kept: String, given: String },
    #[error("the server's own certificate could not be made")]
    Issue(#[source] IssueError),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Names {
    trust_domain: TrustDomain,
    wfm: WfmId,
}

/// What the server is to others, and what it issues.
pub(crate) struct Identity {
    pub(crate) name: ServerName,
    pub(crate) authorities: Authorities,
    /// The anchors in force, for verifying and for publishing.
    pub(crate) bundle: Arc<LiveBundle>,
    pub(crate) web_authority: WebAuthority,
    pub(crate) svid: Arc<LiveSvid>,
    pub(crate) web_leaf: Arc<LiveWebLeaf>,
    pub(crate) registry_key: hmac::Key,
    pub(crate) svid_lifetime: Duration,
    web_names: Vec<String>,
}

/// What was asked for in the configuration.
pub(crate) struct Wanted<'a> {
    pub(crate) trust_domain: Option<&'a TrustDomain>,
    pub(crate) wfm: Option<&'a WfmId>,
    pub(crate) svid_lifetime: Duration,
    pub(crate) web_names: &'a [String],
    /// Whether there are devices that know an earlier identity.
    pub(crate) fleet_exists: bool,
}

impl Identity {
    /// Loads the identity from the data directory; at the very first start, makes it.
    pub(crate) fn open(data: &Path, now: Moment, wanted: Wanted<'_>) -> Result<Identity, IdentityError> {
        let directory = data.join(DIRECTORY);
        if !directory.exists() {
            if wanted.fleet_exists {
                return Err(IdentityError::Lost { data: data.to_owned() });
            }
            create(data, &directory, now, &wanted)?;
        }
        Identity::load(&directory, now, wanted)
    }

    fn load(directory: &Path, now: Moment, wanted: Wanted<'_>) -> Result<Identity, IdentityError> {
        let at = |name: &str| directory.join(name);
        let names: Names = serde_json::from_str(&read_text(&at(NAMES))?)
            .map_err(|error| IdentityError::Damaged { path: at(NAMES), why: error.to_string() })?;
        agree("trust domain", &names.trust_domain, wanted.trust_domain)?;
        agree("server id", &names.wfm, wanted.wfm)?;

        let authorities = Authorities::load(directory, names.trust_domain.clone(), now)?;
        let (certificate, key) = (read_text(&at(WEB_CERTIFICATE))?, read_text(&at(WEB_KEY))?);
        let web_authority = WebAuthority::load(&certificate, &key)
            .map_err(|source| IdentityError::Authority { path: at(WEB_CERTIFICATE), source })?;
        let registry_key = read(&at(REGISTRY_KEY))?;
        if registry_key.len() != REGISTRY_KEY_BYTES {
            let why = format!("it has {} bytes instead of {REGISTRY_KEY_BYTES}", registry_key.len());
            return Err(IdentityError::Damaged { path: at(REGISTRY_KEY), why });
        }

        let svid = authorities
            .issuing()
            .issue_server(&names.wfm, now, wanted.svid_lifetime)
            .map_err(IdentityError::Issue)?;
        let web_leaf =
            web_authority.issue(wanted.web_names, now, WEB_LIFETIME).map_err(IdentityError::Issue)?;
        Ok(Identity {
            name: ServerName { trust_domain: names.trust_domain, wfm: names.wfm },
            svid: LiveSvid::new(svid),
            web_leaf: LiveWebLeaf::new(web_leaf),
            registry_key: hmac::Key::new(hmac::HMAC_SHA256, &registry_key),
            svid_lifetime: wanted.svid_lifetime,
            web_names: wanted.web_names.to_vec(),
            bundle: Arc::clone(authorities.bundle()),
            authorities,
            web_authority,
        })
    }

    /// Who presented `chain`, by the rules and the bundle in force now.
    pub(crate) fn recognise(
        &self,
        chain: &[CertificateDer<'_>],
        now: Moment,
    ) -> Result<Arc<Peer<ClientName>>, Refusal> {
        self.bundle.verify_client(chain, now, &self.name)
    }

    /// Makes the next authority known, and lets it issue at once where that was asked for.
    pub(crate) fn announce(&self, now: Moment, switch_at: Moment) -> Result<(), RotationError> {
        self.authorities.announce(now, switch_at)?;
        self.renew(now)
    }

    /// Lets the next authority issue when its time has come, and issues anew what is past half of its life or of
    /// another authority; new handshakes get it at once (ID-180).
    pub(crate) fn renew(&self, now: Moment) -> Result<(), RotationError> {
        let advanced = self.authorities.advance(now);
        if matches!(advanced, Ok(true)) {
            tracing::info!("another authority issues certificates from now on");
        }
        // Also where a step could not be written: a server without a valid SVID serves nobody.
        self.renew_own(now).map_err(|error| RotationError::Keys(IdentityError::Issue(error)))?;
        advanced.map(drop)
    }

    fn renew_own(&self, now: Moment) -> Result<(), IssueError> {
        let half_gone = |not_after: Moment, lifetime: Duration| not_after.since(now) < lifetime / 2;
        let (current, issuing) = (self.svid.current(), self.authorities.issuing());
        let is_of_issuing = current.serial().to_string().starts_with(&issuing.serial_prefix());
        if half_gone(current.not_after(), self.svid_lifetime) || !is_of_issuing {
            let svid = issuing.issue_server(&self.name.wfm, now, self.svid_lifetime)?;
            tracing::info!(serial = %svid.serial(), not_after = svid.not_after().0, "the server renewed its SVID");
            self.svid.replace(svid).map_err(|error| IssueError::Svid(Box::new(error)))?;
        }
        if half_gone(self.web_leaf.current().not_after(), WEB_LIFETIME) {
            let leaf = self.web_authority.issue(&self.web_names, now, WEB_LIFETIME)?;
            tracing::info!(not_after = leaf.not_after().0, "the server renewed its web certificate");
            self.web_leaf.replace(leaf);
        }
        Ok(())
    }
}

fn agree<T: PartialEq + ToString>(
    what: &'static str,
    kept: &T,
    given: Option<&T>,
) -> Result<(), IdentityError> {
    match given {
        Some(given) if given != kept => {
            Err(IdentityError::OtherName { what, kept: kept.to_string(), given: given.to_string() })
        }
        _ => Ok(()),
    }
}

/// Makes everything beside its final place and moves it there in one step, so that a crash leaves either
/// nothing or all of it.
fn create(data: &Path, directory: &Path, now: Moment, wanted: &Wanted<'_>) -> Result<(), IdentityError> {
    let unfinished = data.join(UNFINISHED);
    if unfinished.exists() {
        // Left by a start that was interrupted. Nobody ever saw what is in it.
        fs::remove_dir_all(&unfinished).map_err(io_error(&unfinished, "removed"))?;
    }
    let names = Names {
        trust_domain: wanted.trust_domain.cloned().unwrap_or_else(trust_domain_default),
        wfm: wanted.wfm.cloned().unwrap_or_else(|| WfmId::parse("margrave").expect("a valid segment")),
    };
    let authority = Authority::create(names.trust_domain.clone(), now).map_err(IdentityError::Create)?;
    let web_authority = WebAuthority::create(now).map_err(IdentityError::Create)?;
    let names = serde_json::to_vec_pretty(&names).expect("two names always serialise");
    DirBuilder::new().mode(0o700).create(&unfinished).map_err(io_error(&unfinished, "made"))?;
    for (name, content) in [
        (AUTHORITY_KEY, authority.key_pem().as_bytes()),
        (AUTHORITY_CERTIFICATE, authority.certificate_pem().as_bytes()),
        (WEB_KEY, web_authority.key_pem().as_bytes()),
        (WEB_CERTIFICATE, web_authority.certificate_pem().as_bytes()),
        (REGISTRY_KEY, &random::<REGISTRY_KEY_BYTES>()),
        (NAMES, &names),
    ] {
        write_private(&unfinished.join(name), content)?;
    }
    sync_directory(&unfinished)?;
    fs::rename(&unfinished, directory).map_err(io_error(directory, "moved into place"))?;
    sync_directory(data)
}

/// A name of its own per installation: an SVID that strays to another one is refused for what it is.
fn trust_domain_default() -> TrustDomain {
    let label: String = random::<4>().iter().map(|byte| format!("{byte:02x}")).collect();
    TrustDomain::parse(&format!("m{label}.margrave.internal")).expect("a valid trust domain")
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).expect("the system gives random bytes, or nothing we do is safe");
    bytes
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => IdentityError::Missing { path: path.to_owned() },
        _ => IdentityError::Io { path: path.to_owned(), doing: "read", source },
    })
}

pub(crate) fn read_text(path: &Path) -> Result<String, IdentityError> {
    String::from_utf8(read(path)?)
        .map_err(|_| IdentityError::Damaged { path: path.to_owned(), why: "it is not text".to_owned() })
}

/// Writes a file that only we may read, and waits until it is on disk.
fn write_private(path: &Path, content: &[u8]) -> Result<(), IdentityError> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(io_error(path, "written"))
}

pub(crate) fn sync_directory(path: &Path) -> Result<(), IdentityError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(io_error(path, "written"))
}

pub(crate) fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> IdentityError {
    let path = path.to_owned();
    move |source| IdentityError::Io { path, doing, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const NOW: Moment = Moment(1_800_000_000_000);
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn wanted() -> Wanted<'static> {
        static NAMES: std::sync::LazyLock<Vec<String>> =
            std::sync::LazyLock::new(|| vec!["localhost".to_owned()]);
        Wanted { trust_domain: None, wfm: None, svid_lifetime: DAY, web_names: &NAMES, fleet_exists: false }
    }

    fn open(data: &Path) -> Result<Identity, IdentityError> {
        Identity::open(data, NOW, wanted())
    }

    #[test]
    fn id_054_211_keys_are_made_once_and_for_nobody_elses_eyes() {
        let data = tempfile::tempdir().unwrap();
        let first = open(data.path()).unwrap();
        let again = Identity::open(data.path(), NOW, Wanted { fleet_exists: true, ..wanted() }).unwrap();
        assert_eq!(first.name, again.name);
        assert_eq!(first.web_authority.pin(), again.web_authority.pin());
        assert_eq!(first.authorities.picture(), again.authorities.picture());
        let directory = data.path().join(DIRECTORY);
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        }
    }

    #[test]
    fn id_020_a_made_up_trust_domain_looks_like_a_dns_name() {
        let made_up = trust_domain_default();
        let labels: Vec<&str> = made_up.as_str().split('.').collect();
        assert!(labels.len() >= 2 && labels.iter().all(|label| !label.is_empty()), "{made_up}");
        let last = labels[labels.len() - 1];
        assert!(last.len() >= 2 && last.bytes().all(|byte| byte.is_ascii_lowercase()), "{made_up}");
        assert_ne!(made_up, trust_domain_default(), "each installation has its own");
    }

    #[test]
    fn an_interrupted_first_start_leaves_nothing_behind() {
        let data = tempfile::tempdir().unwrap();
        let unfinished = data.path().join(UNFINISHED);
        fs::create_dir(&unfinished).unwrap();
        fs::write(unfinished.join(AUTHORITY_KEY), "half a k").unwrap();
        open(data.path()).unwrap();
        assert!(!unfinished.exists());
    }

    #[test]
    fn a_missing_or_damaged_file_is_named_and_never_replaced() {
        let data = tempfile::tempdir().unwrap();
        open(data.path()).unwrap();
        let files = [AUTHORITY_KEY, AUTHORITY_CERTIFICATE, WEB_KEY, WEB_CERTIFICATE, REGISTRY_KEY, NAMES];
        for name in files {
            let path = data.path().join(DIRECTORY).join(name);
            let content = fs::read(&path).unwrap();
            fs::remove_file(&path).unwrap();
            let error = open(data.path()).err().unwrap();
            assert!(error.to_string().contains(name), "{error}");
            fs::write(&path, b"damaged \xff").unwrap();
            let error = open(data.path()).err().unwrap();
            let stem = name.split('.').next().unwrap();
            assert!(error.to_string().contains(stem) && error.to_string().contains("backup"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), b"damaged \xff");
            fs::write(&path, content).unwrap();
        }
        open(data.path()).unwrap();
    }

    #[test]
    fn a_fleet_without_its_identity_does_not_get_another_one() {
        let data = tempfile::tempdir().unwrap();
        let refused = Identity::open(data.path(), NOW, Wanted { fleet_exists: true, ..wanted() });
        assert!(matches!(refused, Err(IdentityError::Lost { .. })));
        assert!(!data.path().join(DIRECTORY).exists());
    }

    #[test]
    fn id_017_a_name_is_never_silently_changed() {
        let data = tempfile::tempdir().unwrap();
        let (domain, wfm) = ("plant.example".parse().unwrap(), "line-7".parse().unwrap());
        let named = Wanted { trust_domain: Some(&domain), wfm: Some(&wfm), ..wanted() };
        let identity = Identity::open(data.path(), NOW, named).unwrap();
        assert_eq!(identity.name.to_string(), "spiffe://plant.example/margo/wfm/line-7");
        let other = "other.example".parse().unwrap();
        let refused = Identity::open(data.path(), NOW, Wanted { trust_domain: Some(&other), ..wanted() });
        assert!(matches!(refused, Err(IdentityError::OtherName { .. })));
        assert_eq!(open(data.path()).unwrap().name, identity.name);
    }

    #[test]
    fn id_178_the_servers_own_svid_is_the_first_of_the_next_authority() {
        let data = tempfile::tempdir().unwrap();
        let identity = open(data.path()).unwrap();
        let is_of = |identity: &Identity, prefix: &str| {
            identity.svid.current().serial().to_string().starts_with(prefix)
        };
        let old = identity.authorities.issuing().serial_prefix();
        identity.announce(NOW, NOW.after(DAY / 4)).unwrap();
        identity.renew(NOW.after(DAY / 8)).unwrap();
        assert!(is_of(&identity, &old));
        identity.renew(NOW.after(DAY / 4)).unwrap();
        let new = identity.authorities.issuing().serial_prefix();
        assert!(is_of(&identity, &new) && new != old);
        let again =
            Identity::open(data.path(), NOW.after(DAY), Wanted { fleet_exists: true, ..wanted() }).unwrap();
        assert!(is_of(&again, &new));
    }

    #[test]
    fn id_172_what_expires_is_renewed_at_half_of_its_life_under_the_same_name() {
        let data = tempfile::tempdir().unwrap();
        let identity = open(data.path()).unwrap();
        let first = identity.svid.current();
        identity.renew(NOW.after(DAY / 3)).unwrap();
        assert_eq!(identity.svid.current().serial(), first.serial());
        let later = NOW.after(DAY * 2 / 3);
        identity.renew(later).unwrap();
        assert_ne!(identity.svid.current().serial(), first.serial());
        assert_eq!(identity.svid.current().not_after(), later.after(DAY));
        let web = identity.web_leaf.current().not_after();
        identity.renew(NOW.after(DAY * 46)).unwrap();
        assert!(identity.web_leaf.current().not_after() > web);
    }
}
