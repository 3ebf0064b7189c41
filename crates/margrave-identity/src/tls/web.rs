//! HTTPS of the web listener: the server is authenticated by a pin (ID-160), the caller by what it says
//! above TLS.

use std::sync::Arc;
use std::time::Duration;

use margrave_core::moment::Moment;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName as TlsName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};

use super::{HTTP_1_1, TLS_1_3, no_tls12, other, provider};
use crate::certificate::{CHAIN_LENGTH_MAX, Statements};
use crate::live::LiveWebLeaf;
use crate::pin::Pin;

/// The listener for page, operator REST and identity: nobody presents a certificate here but the server.
pub fn web_server_config(leaf: Arc<LiveWebLeaf>) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_1_3)
        .expect("the provider has TLS 1.3 cipher suites")
        .with_no_client_auth()
        .with_cert_resolver(leaf);
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    config.max_early_data_size = 0;
    Arc::new(config)
}

/// Connections to a server known by pins only; one of them has to match (ID-161). Without any pin nothing
/// is trusted (ID-164).
pub fn pinned_client_config(pins: Vec<Pin>) -> Arc<ClientConfig> {
    let verifier = PinnedVerifier { pins, algorithms: provider().signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_1_3)
        .expect("the provider has TLS 1.3 cipher suites")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Arc::new(config)
}

/// Why a server is not the pinned one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinRefusal {
    #[error(
        "no certificate of the server has the pinned key; either this is not the server, or its authority was \
         replaced and a new pin is needed (ID-161)"
    )]
    NoMatch,
    #[error("the server's certificate does not chain to the certificate with the pinned key (ID-161)")]
    Chain(#[source] webpki::Error),
    #[error("the server's certificates cannot be read")]
    Unreadable,
}

impl PinRefusal {
    pub fn code(&self) -> &'static str {
        match self {
            PinRefusal::NoMatch => "pin",
            PinRefusal::Chain(_) => "pin_chain",
            PinRefusal::Unreadable => "pin_unreadable",
        }
    }
}

/// Accepts a server by the key of its own certificate, or of an authority's that it presented (ID-162).
#[derive(Debug)]
struct PinnedVerifier {
    pins: Vec<Pin>,
    /// The profile of section 4 does not bind this listener (ID-055).
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedVerifier {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &TlsName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let refused = |refusal: PinRefusal| {
            tracing::warn!(reason = refusal.code(), server = ?name, "a server was refused");
            other(refusal)
        };
        let unreadable = |_| refused(PinRefusal::Unreadable);
        if intermediates.len() >= CHAIN_LENGTH_MAX {
            return Err(refused(PinRefusal::Unreadable));
        }
        let moment = Moment(now.as_secs().saturating_mul(1000));
        let is_pinned = |statements: &Statements| self.pins.contains(&Pin::of_spki(&statements.spki));

        let leaf = Statements::read(end_entity).map_err(unreadable)?;
        let certificate =
            webpki::EndEntityCert::try_from(end_entity).map_err(|error| refused(PinRefusal::Chain(error)))?;
        // A pin replaces the anchor, not the calendar.
        check_validity(&leaf, moment, now)?;
        if !is_pinned(&leaf) {
            let mut verdict = Err(PinRefusal::NoMatch);
            for issuer in intermediates {
                let statements = Statements::read(issuer).map_err(unreadable)?;
                if !is_pinned(&statements) {
                    continue;
                }
                check_validity(&statements, moment, now)?;
                if !statements.is_ca {
                    verdict = Err(PinRefusal::Chain(webpki::Error::EndEntityUsedAsCa));
                    continue;
                }
                let path = webpki::anchor_from_trusted_cert(issuer).and_then(|anchor| {
                    certificate
                        .verify_for_usage(
                            self.algorithms.all,
                            &[anchor],
                            intermediates,
                            now,
                            webpki::KeyUsage::server_auth(),
                            None,
                            None,
                        )
                        .map(|_| ())
                });
                match path {
                    Ok(()) => {
                        verdict = Ok(());
                        break;
                    }
                    Err(error) => verdict = Err(PinRefusal::Chain(error)),
                }
            }
            verdict.map_err(refused)?;
        }
        if matches!(name, TlsName::DnsName(_)) && certificate.verify_is_valid_for_subject_name(name).is_err()
        {
            tracing::warn!(reason = "name", server = ?name, "a server was refused");
            return Err(CertificateError::NotValidForName.into());
        }
        Ok(())
    }
}

fn check_validity(statements: &Statements, moment: Moment, now: UnixTime) -> Result<(), rustls::Error> {
    let time = |moment: Moment| UnixTime::since_unix_epoch(Duration::from_millis(moment.0));
    let error: rustls::Error = if statements.is_expired(moment) {
        CertificateError::ExpiredContext { time: now, not_after: time(statements.not_after) }.into()
    } else if statements.is_not_yet_valid(moment) {
        CertificateError::NotValidYetContext { time: now, not_before: time(statements.not_before) }.into()
    } else {
        return Ok(());
    };
    tracing::warn!(reason = %error, serial = %statements.serial, "a server was refused");
    Err(error)
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &TlsName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(end_entity, intermediates, name, now)?;
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
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
