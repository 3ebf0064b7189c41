//! Certificates that no honest authority issues, signed all the same with the server's own key.

use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use margrave_identity::key::PrivateKey;
use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut out = vec![tag];
    match content.len() {
        length @ 0..=127 => out.push(length as u8),
        length @ 128..=255 => out.extend([0x81, length as u8]),
        length => {
            let bytes = (length as u16).to_be_bytes();
            out.extend([0x82, bytes[0], bytes[1]]);
        }
    }
    out.extend(content);
    out
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tlv(0x30, parts)
}

fn extension(oid: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if critical { &[0x01, 0x01, 0xff] } else { &[] };
    sequence(&[&tlv(0x06, &[oid]), critical, &tlv(0x04, &[value])])
}

fn pem_body(pem: &str) -> Vec<u8> {
    let lines: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    STANDARD.decode(lines).unwrap()
}

/// A client certificate with these URI names, otherwise exactly as the profile wants it, made with the key of
/// the authority in `data`.
pub(crate) fn certificate(data: &Path, uris: &[&str], key: &PrivateKey) -> CertificateDer<'static> {
    let signer = std::fs::read_to_string(data.join("identity/authority.key")).unwrap();
    let signer = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &pem_body(&signer)).unwrap();
    let ecdsa_with_sha256 = sequence(&[&tlv(0x06, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]])]);
    let organization = sequence(&[&tlv(0x06, &[&[0x55, 0x04, 0x0a]]), &tlv(0x0c, &[b"plant.example"])]);
    let issuer = sequence(&[&tlv(0x31, &[&organization])]);
    let validity = sequence(&[&tlv(0x17, &[b"200101000000Z"]), &tlv(0x18, &[b"20500101000000Z"])]);
    let names: Vec<Vec<u8>> = uris.iter().map(|uri| tlv(0x86, &[uri.as_bytes()])).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let server_auth = tlv(0x06, &[&[0x2b, 6, 1, 5, 5, 7, 3, 1]]);
    let client_auth = tlv(0x06, &[&[0x2b, 6, 1, 5, 5, 7, 3, 2]]);
    let extensions = sequence(&[
        &extension(&[0x55, 0x1d, 0x13], true, &sequence(&[])),
        &extension(&[0x55, 0x1d, 0x0f], true, &[0x03, 0x02, 0x07, 0x80]),
        &extension(&[0x55, 0x1d, 0x25], false, &sequence(&[&server_auth, &client_auth])),
        &extension(&[0x55, 0x1d, 0x11], true, &sequence(&names)),
    ]);
    let body = sequence(&[
        &tlv(0xa0, &[&tlv(0x02, &[&[2]])]),
        &tlv(0x02, &[&[0x12, 0x34]]),
        &ecdsa_with_sha256,
        &issuer,
        &validity,
        &sequence(&[]),
        key.public().spki(),
        &tlv(0xa3, &[&extensions]),
    ]);
    let signature = signer.sign(&SystemRandom::new(), &body).unwrap();
    CertificateDer::from(sequence(&[&body, &ecdsa_with_sha256, &tlv(0x03, &[&[0], signature.as_ref()])]))
}

/// A client that presents whatever it likes and takes any server.
pub(crate) fn rogue(chain: Option<(Vec<CertificateDer<'static>>, &PrivateKey)>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TakesAny));
    Arc::new(match chain {
        Some((chain, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    })
}

/// A verifier for whom every server will do; it is the server that is tried.
#[derive(Debug)]
pub(crate) struct TakesAny;

impl ServerCertVerifier for TakesAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
