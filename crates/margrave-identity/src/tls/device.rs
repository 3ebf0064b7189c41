//! Mutual TLS of the device interface: both ends present an SVID and verify the other's.

use std::sync::Arc;
use std::time::Duration;

use margrave_core::identity::ServerName;
use margrave_core::moment::Moment;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::pki_types::{CertificateDer, ServerName as TlsName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
};

use super::sessions::Sessions;
use super::tickets::Tickets;
use super::{HTTP_1_1, TLS_1_3, no_tls12, other, provider};
use crate::live::{LiveBundle, LiveSvid};
use crate::verify::{ALGORITHMS, Refusal, log_refusal, verify_peer};

/// The device listener: a client SVID is required, and refused in the handshake if it is not one of ours
/// (ID-064, ID-190).
///
/// Sessions are resumed by ticket, within the bounds of `tickets.rs`, and only where the listener calls
/// [`begin_session`](super::begin_session); rustls verifies no certificate on a resumed one, so the listener has
/// to (ID-067). There is no early data (ID-065).
pub fn device_server_config(svid: Arc<LiveSvid>, bundle: Arc<LiveBundle>) -> Arc<ServerConfig> {
    let verifier = Arc::new(Verifier { svid: svid.clone(), bundle: bundle.clone() });
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_1_3)
        .expect("the provider has TLS 1.3 cipher suites")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(svid);
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    match Tickets::new(bundle) {
        Ok(tickets) => {
            config.ticketer = Arc::new(tickets);
            // One: a device has one connection, and every connection gets a new one.
            config.send_tls13_tickets = 1;
        }
        Err(error) => {
            tracing::warn!(%error, "no key for session tickets; every connection is a full handshake");
            config.send_tls13_tickets = 0;
        }
    }
    config.max_early_data_size = 0;
    Arc::new(config)
}

/// The agent's connection to its server: whatever the URL says, the peer must be the server that our own
/// SVID names (ID-100, ID-101).
pub fn device_client_config(svid: Arc<LiveSvid>, bundle: Arc<LiveBundle>) -> Arc<ClientConfig> {
    let verifier = Arc::new(Verifier { svid: svid.clone(), bundle: bundle.clone() });
    let sessions = Sessions::new(svid.clone(), bundle);
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_1_3)
        .expect("the provider has TLS 1.3 cipher suites")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(svid);
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    config.resumption = Resumption::store(Arc::new(sessions)).tls12_resumption(Tls12Resumption::Disabled);
    config.enable_early_data = false;
    Arc::new(config)
}

/// Verifies the other end against what is in use at this moment.
#[derive(Debug)]
struct Verifier {
    svid: Arc<LiveSvid>,
    bundle: Arc<LiveBundle>,
}

impl Verifier {
    /// Asks `judge` about what was presented, with the name of our own server.
    fn verify<P>(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        judge: impl FnOnce(&[CertificateDer<'_>], Moment, &ServerName) -> Result<P, Refusal>,
    ) -> Result<(), rustls::Error> {
        let chain: Vec<CertificateDer<'_>> = std::iter::once(end_entity)
            .chain(intermediates)
            .map(|der| CertificateDer::from(der.as_ref()))
            .collect();
        let moment = Moment(now.as_secs().saturating_mul(1000));
        match judge(&chain, moment, self.svid.current().server_name()) {
            Ok(_) => Ok(()),
            Err(refusal) => {
                log_refusal(&chain, &refusal);
                Err(alert_of(refusal, now))
            }
        }
    }
}

/// The TLS error that says most to the peer. Our own words stay in the error on this end.
fn alert_of(refusal: Refusal, now: UnixTime) -> rustls::Error {
    let time = |moment: Moment| UnixTime::since_unix_epoch(Duration::from_millis(moment.0));
    match refusal {
        Refusal::Expired { not_after } => {
            CertificateError::ExpiredContext { time: now, not_after: time(not_after) }.into()
        }
        Refusal::NotYetValid { not_before } => {
            CertificateError::NotValidYetContext { time: now, not_before: time(not_before) }.into()
        }
        refusal => other(refusal),
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A client has one SVID and needs no hint which to choose.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verify(
            end_entity,
            intermediates,
            now,
            |chain: &[CertificateDer<'_>], now, own: &ServerName| self.bundle.verify_client(chain, now, own),
        )?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        // The URL is routing only; no DNS name proves or disproves who the peer is (ID-071, ID-101).
        _: &TlsName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(
            end_entity,
            intermediates,
            now,
            |chain: &[CertificateDer<'_>], now, own: &ServerName| {
                verify_peer::<ServerName>(chain, now, own, &self.bundle.current())
            },
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}
