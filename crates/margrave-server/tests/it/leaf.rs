//! A client certificate under construction, signed with the server's own key: right, until a test spoils it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, SignatureAlgorithm,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::forge::TakesAny;
use crate::line::DEADLINE;
use crate::plant::now;

/// The name of the client that every test here joins first.
pub(crate) const PRESS: &str = "spiffe://plant.example/margo/wfm/line-7/client/press.42";

pub(crate) struct Leaf {
    pub(crate) params: CertificateParams,
    pub(crate) key: KeyPair,
}

impl Leaf {
    /// As the profile wants it, with these URI names and a P-256 key, valid for an hour.
    pub(crate) fn of(uris: &[&str]) -> Leaf {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
        let mut leaf = Leaf { params, key: KeyPair::generate().unwrap() };
        leaf.valid(-3600, 3600);
        leaf
    }

    pub(crate) fn press() -> Leaf {
        Leaf::of(&[PRESS])
    }

    pub(crate) fn with(mut self, spoil: impl FnOnce(&mut Leaf)) -> Leaf {
        spoil(&mut self);
        self
    }

    pub(crate) fn key_of(mut self, algorithm: &'static SignatureAlgorithm) -> Leaf {
        self.key = KeyPair::generate_for(algorithm).unwrap();
        self
    }

    /// In seconds from now.
    pub(crate) fn valid(&mut self, from: i64, until: i64) {
        let at = |offset: i64| {
            let seconds = i64::try_from(now().0 / 1000).unwrap() + offset;
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(seconds).unwrap())
        };
        (self.params.not_before, self.params.not_after) = (at(from), at(until));
    }

    /// Signed with the key of the authority in `data`.
    pub(crate) fn signed(&self, data: &Path) -> CertificateDer<'static> {
        let (certificate, key) = authority(data);
        self.signed_by(&Issuer::from_ca_cert_pem(&certificate, key).unwrap())
    }

    pub(crate) fn signed_by(&self, issuer: &Issuer<'_, KeyPair>) -> CertificateDer<'static> {
        self.params.signed_by(&self.key, issuer).unwrap().der().clone()
    }

    pub(crate) fn tls(&self, data: &Path) -> Arc<ClientConfig> {
        Arc::new(presenting(vec![self.signed(data)], &self.key))
    }
}

/// Certificate and key of the authority in `data`.
pub(crate) fn authority(data: &Path) -> (String, KeyPair) {
    let read = |name: &str| std::fs::read_to_string(data.join("identity").join(name)).unwrap();
    (read("authority.crt"), KeyPair::from_pem(&read("authority.key")).unwrap())
}

/// A client that presents this chain and takes any server.
pub(crate) fn presenting(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> ClientConfig {
    presenting_with(chain, key, default_provider(), &[&rustls::version::TLS13])
}

pub(crate) fn presenting_with(
    chain: Vec<CertificateDer<'static>>,
    key: &KeyPair,
    provider: CryptoProvider,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TakesAny))
        .with_client_auth_cert(chain, key)
        .unwrap()
}

/// What came of asking.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Knocked {
    /// The server ended the handshake with this alert; not a byte of HTTP came back.
    Alert(AlertDescription),
    /// The connection ended without HTTP and without an alert that got through.
    Broken(String),
    /// The first line of the answer.
    Answered(String),
}

impl Knocked {
    #[track_caller]
    pub(crate) fn is_answered(&self, status: &str) {
        assert_eq!(*self, Knocked::Answered(format!("HTTP/1.1 {status}")));
    }

    #[track_caller]
    pub(crate) fn is_alert(&self, what: &str, alert: AlertDescription) {
        assert_eq!(*self, Knocked::Alert(alert), "{what}");
    }
}

/// Asks for `path` once, over a connection of its own.
pub(crate) async fn knock(address: SocketAddr, tls: Arc<ClientConfig>, method: &str, path: &str) -> Knocked {
    let asking = async {
        let stream = TcpStream::connect(address).await?;
        let mut stream = TlsConnector::from(tls).connect(ServerName::from(address.ip()), stream).await?;
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        // A server that has refused us may have closed already; what it said is still to be read.
        stream.write_all(request.as_bytes()).await.unwrap_or_default();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer).await;
        if answer.is_empty() { read.map(|_| answer) } else { Ok(answer) }
    };
    match timeout(DEADLINE, asking).await.expect("the server answers or refuses in time") {
        Ok(answer) => {
            let text = String::from_utf8_lossy(&answer).into_owned();
            Knocked::Answered(text.lines().next().unwrap_or_default().to_owned())
        }
        Err(error) => match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::AlertReceived(alert)) => Knocked::Alert(*alert),
            _ => Knocked::Broken(error.to_string()),
        },
    }
}
