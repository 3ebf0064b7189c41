//! Where a registry host really is, how it is trusted, and what it is told about us.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use margrave_http::Origin;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::error::ClientError;
use crate::image_name::DOCKER_HUB;
use crate::reference::Host;

/// The one registry that is elsewhere than its name says.
const DOCKER_HUB_REGISTRY: &str = "registry-1.docker.io";

/// What makes a connection to a registry trustworthy.
#[derive(Clone)]
pub enum Tls {
    /// The authorities that this machine trusts, loaded when first needed.
    SystemRoots,
    /// These too, PEM: for a registry whose owner told us his authority, and who may have put a proxy in front.
    SystemRootsAnd(String),
    /// A private authority, a pin, or our own identity.
    Given(Arc<ClientConfig>),
    /// No TLS: only on this machine.
    PlainLoopback,
}

/// What a registry is told about who we are.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Credentials {
    #[default]
    Anonymous,
    Basic {
        user: String,
        password: String,
    },
    /// A token that the registry itself takes, without a token service in between.
    Token(String),
}

/// A secret never reaches a log.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Credentials::Anonymous => f.write_str("Anonymous"),
            Credentials::Basic { user, .. } => write!(f, "Basic({user})"),
            Credentials::Token(_) => f.write_str("Token"),
        }
    }
}

/// A registry as it can be reached.
#[derive(Clone)]
pub struct Endpoint {
    pub origin: Origin,
    pub tls: Tls,
    pub credentials: Credentials,
}

impl Endpoint {
    pub fn new(origin: Origin, tls: Tls) -> Self {
        Endpoint { origin, tls, credentials: Credentials::Anonymous }
    }

    pub fn with_credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Credentials::Basic { user: user.into(), password: password.into() };
        self
    }

    /// A registry as somebody tells us to reach it: by HTTPS, also with an authority of its own (PEM), or without
    /// TLS, which is for this machine only.
    pub fn of(host: &Host, plain: bool, authority: Option<String>) -> Result<Self, ClientError> {
        if plain && !host.is_loopback() {
            return Err(ClientError::PlainElsewhere(host.to_string()));
        }
        let (scheme, tls) = match authority {
            Some(pem) => {
                authorities(&pem)?;
                ("https", Tls::SystemRootsAnd(pem))
            }
            None if host.is_loopback() => ("http", Tls::PlainLoopback),
            None => ("https", Tls::SystemRoots),
        };
        let place = if host.as_str() == DOCKER_HUB { DOCKER_HUB_REGISTRY } else { host.as_str() };
        let origin = Origin::parse(&format!("{scheme}://{place}"))
            .map_err(|error| ClientError::Protocol { what: host.to_string(), why: error.to_string() })?;
        Ok(Endpoint::new(origin, tls))
    }
}

/// The registries we were told about, and the rule for all others.
///
/// Others are reached by HTTPS, trusted by the system's authorities, anonymously; on this machine by plain
/// HTTP. The host `margrave` must be told: it means the registry of the server that manages this device.
#[derive(Clone, Default)]
pub struct Hosts {
    known: BTreeMap<Host, Endpoint>,
}

impl Hosts {
    pub fn new() -> Self {
        Hosts::default()
    }

    pub fn with(mut self, host: Host, endpoint: Endpoint) -> Self {
        self.known.insert(host, endpoint);
        self
    }

    pub fn endpoint(&self, host: &Host) -> Result<Endpoint, ClientError> {
        if let Some(endpoint) = self.known.get(host) {
            return Ok(endpoint.clone());
        }
        if host.is_own_registry() {
            return Err(ClientError::UnknownHost(host.to_string()));
        }
        Endpoint::of(host, false, None)
    }

    /// How an address that a registry sent us to is trusted. It gets no credentials: they are not meant for it.
    pub(crate) fn elsewhere(&self, origin: &Origin, sender: &Endpoint) -> Endpoint {
        let known = self.known.values().find(|endpoint| endpoint.origin == *origin);
        if let Some(endpoint) = known {
            return Endpoint::new(origin.clone(), endpoint.tls.clone());
        }
        let tls = match (origin.scheme(), &sender.tls) {
            // Who has an authority of his own has it for his token service and his storage, too.
            (margrave_http::Scheme::Https, Tls::SystemRootsAnd(pem)) => Tls::SystemRootsAnd(pem.clone()),
            (margrave_http::Scheme::Https, _) => Tls::SystemRoots,
            // A client for another machine than this one is refused when it is made.
            (margrave_http::Scheme::Http, _) => Tls::PlainLoopback,
        };
        Endpoint::new(origin.clone(), tls)
    }
}

/// The system's authorities as a configuration, made once for the whole process.
pub async fn system_roots() -> Result<Arc<ClientConfig>, ClientError> {
    static LOADED: Mutex<Option<Arc<ClientConfig>>> = Mutex::new(None);
    if let Some(config) = &*LOADED.lock().unwrap_or_else(PoisonError::into_inner) {
        return Ok(config.clone());
    }
    let loaded = loaded(RootCertStore::empty()).await?;
    // A failure is not kept: an operator may install the missing certificates meanwhile.
    *LOADED.lock().unwrap_or_else(PoisonError::into_inner) = Some(loaded.clone());
    Ok(loaded)
}

/// The system's authorities, if it has any, and those in `pem`.
pub(crate) async fn system_roots_and(pem: &str) -> Result<Arc<ClientConfig>, ClientError> {
    loaded(authorities(pem)?).await
}

/// The certificates of authorities in a text, at least one.
fn authorities(pem: &str) -> Result<RootCertStore, ClientError> {
    let mut given = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| ClientError::Authority(error.to_string()))?;
        given.add(certificate).map_err(|error| ClientError::Authority(error.to_string()))?;
    }
    if given.is_empty() {
        return Err(ClientError::Authority("it holds no certificate".to_owned()));
    }
    Ok(given)
}

async fn loaded(given: RootCertStore) -> Result<Arc<ClientConfig>, ClientError> {
    tokio::task::spawn_blocking(|| load(given))
        .await
        .map_err(|error| ClientError::SystemRoots(error.to_string()))?
}

fn load(mut roots: RootCertStore) -> Result<Arc<ClientConfig>, ClientError> {
    let found = rustls_native_certs::load_native_certs();
    let (added, ignored) = roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let cause = found.errors.first().map_or_else(String::new, |error| format!(" ({error})"));
        return Err(ClientError::SystemRoots(format!("none was found{cause}; install ca-certificates")));
    }
    tracing::debug!(added, ignored, "loaded the system's trusted authorities");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientError::SystemRoots(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_nobody_told_us_about_follow_the_rule() {
        let hosts = Hosts::new();
        let endpoint = |text: &str| hosts.endpoint(&Host::parse(text).unwrap());
        let near = endpoint("127.0.0.1:5000").unwrap();
        assert_eq!(near.origin.to_string(), "http://127.0.0.1:5000");
        assert!(matches!(near.tls, Tls::PlainLoopback));
        let hub = endpoint("docker.io").unwrap();
        assert_eq!(hub.origin.to_string(), "https://registry-1.docker.io");
        let far = endpoint("registry.example:5000").unwrap();
        assert_eq!(far.origin.to_string(), "https://registry.example:5000");
        assert!(matches!(far.tls, Tls::SystemRoots));
        assert_eq!(far.credentials, Credentials::Anonymous);
        assert!(matches!(endpoint("margrave"), Err(ClientError::UnknownHost(_))));
    }

    #[test]
    fn a_known_host_is_where_we_were_told_and_secrets_stay_with_it() {
        let origin = Origin::parse("https://server.example:8443").unwrap();
        let told = Endpoint::new(origin.clone(), Tls::SystemRoots).with_credentials("device", "secret");
        let hosts = Hosts::new().with(Host::parse("margrave").unwrap(), told);
        let endpoint = hosts.endpoint(&Host::parse("margrave").unwrap()).unwrap();
        assert_eq!(endpoint.origin, origin);
        assert_eq!(format!("{:?}", endpoint.credentials), "Basic(device)");
        assert_eq!(hosts.elsewhere(&origin, &endpoint).credentials, Credentials::Anonymous);
    }

    #[test]
    fn plain_http_is_for_this_machine_only() {
        for host in ["localhost:5000", "127.0.0.1:5000", "[::1]:5000"] {
            let endpoint = Endpoint::of(&Host::parse(host).unwrap(), true, None).unwrap();
            assert!(matches!(endpoint.tls, Tls::PlainLoopback), "{host}");
        }
        for host in ["registry.example", "10.0.0.1:5000", "localhost.example"] {
            let refused = Endpoint::of(&Host::parse(host).unwrap(), true, None).err().unwrap();
            assert!(matches!(&refused, ClientError::PlainElsewhere(name) if name == host), "{refused:?}");
        }
    }

    #[test]
    fn an_authority_that_is_none_is_refused_when_it_is_given() {
        let host = Host::parse("registry.example").unwrap();
        for bad in ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let refused = Endpoint::of(&host, false, Some(bad.to_owned())).err().unwrap();
            assert!(matches!(refused, ClientError::Authority(_)), "{bad:?}: {refused:?}");
        }
    }

    #[test]
    fn secrets_are_not_written() {
        for credentials in [
            Credentials::Token("opensesame".to_owned()),
            Credentials::Basic { user: "me".to_owned(), password: "opensesame".to_owned() },
        ] {
            assert!(!format!("{credentials:?}").contains("opensesame"));
        }
    }
}
