//! Renewal without a session: the device signs its new request with its previous key.
//!
//! An SVID that expired while a device was switched off cannot open a connection any more (ID-185), and no
//! technician is near. So renewal goes over the pinned web listener, and this signature takes the place of
//! the client certificate. It proves that whoever asks still holds the key that *we* certified under that
//! name; whether that name is still welcome is the accepted-client policy's to say, and must be asked: a
//! retired client keeps its key.

use margrave_core::identity::{ClientName, ServerName};
use margrave_core::moment::Moment;
use rcgen::SigningKey as _;
use rustls::pki_types::CertificateDer;

use crate::bundle::Bundle;
use crate::csr::Csr;
use crate::key::{PrivateKey, SignatureFault};
use crate::verify::{Peer, Refusal, leaf_key, log_refusal, verify_former_peer};

/// Keeps the signature from meaning anything in another protocol: TLS signs after 64 spaces, a
/// certificate request begins with a DER sequence.
const CONTEXT: &[u8] = b"margrave SVID renewal, version 1\0";

/// The previous key could not sign.
#[derive(Debug, thiserror::Error)]
#[error("the renewal could not be signed with the previous key")]
pub struct ProofNotMade(#[source] rcgen::Error);

/// Why a renewal is refused.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    #[error("the previous certificate is not one that this server issued")]
    Previous(#[source] Refusal),
    #[error("the renewal is not signed with the previous key")]
    Signature(#[source] SignatureFault),
}

fn message(csr_der: &[u8]) -> Vec<u8> {
    [CONTEXT, csr_der].concat()
}

/// The signature of `previous` over the new request.
pub fn prove(previous: &PrivateKey, csr: &Csr) -> Result<Vec<u8>, ProofNotMade> {
    previous.sign(&message(csr.der())).map_err(ProofNotMade)
}

/// Who asks to be renewed: the holder of the key in `previous`, which we issued and which may have expired.
/// The answer's `not_after` says when, for a caller that wants a limit.
pub fn check_proof(
    previous: &[CertificateDer<'_>],
    csr: &Csr,
    signature: &[u8],
    now: Moment,
    own: &ServerName,
    bundle: &Bundle,
) -> Result<Peer<ClientName>, ProofError> {
    let refused = |refusal: Refusal| {
        log_refusal(previous, &refusal);
        ProofError::Previous(refusal)
    };
    let peer = verify_former_peer::<ClientName>(previous, now, own, bundle).map_err(refused)?;
    let key = leaf_key(previous).map_err(refused)?;
    key.check_own(&message(csr.der()), signature).map_err(ProofError::Signature)?;
    Ok(peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forge::{CLIENT, Forge, NOW, SERVER};
    use rcgen::KeyPair;

    fn csr() -> Csr {
        Csr::make(&PrivateKey::generate().unwrap()).unwrap()
    }

    fn check(forge: &Forge, bundle: &Bundle) -> Result<Peer<ClientName>, ProofError> {
        let (chain, key) = forge.leaf();
        let csr = csr();
        let signature = prove(&key, &csr).unwrap();
        check_proof(&chain, &csr, &signature, NOW, &ServerName::parse(SERVER).unwrap(), bundle)
    }

    #[test]
    fn an_expired_svid_can_still_be_renewed() {
        let mut forge = Forge::new();
        assert_eq!(check(&forge, &forge.bundle()).unwrap().name.to_string(), CLIENT);
        forge.valid(NOW, -7200, -3600);
        let peer = check(&forge, &forge.bundle()).unwrap();
        assert!(peer.not_after < NOW);
    }

    #[test]
    fn every_kind_of_key_can_prove() {
        for key in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
            let mut forge = Forge::new();
            forge.key = key;
            check(&forge, &forge.bundle()).unwrap();
        }
        let mut forge = Forge::new();
        forge.leaf_key(KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_3072).unwrap());
        check(&forge, &forge.bundle()).unwrap();
    }

    #[test]
    fn an_svid_of_the_future_of_another_authority_or_of_a_server_renews_nothing() {
        let code = |forge: &Forge, bundle: &Bundle| match check(forge, bundle) {
            Err(ProofError::Previous(refusal)) => refusal.code(),
            other => panic!("{other:?}"),
        };
        let mut forge = Forge::new();
        forge.valid(NOW, 60, 3600);
        assert_eq!(code(&forge, &forge.bundle()), "not_yet_valid");
        let forge = Forge::new();
        assert_eq!(code(&forge, &Forge::new().bundle()), "chain");
        let mut forge = Forge::new();
        forge.names(&[SERVER]);
        assert_eq!(code(&forge, &forge.bundle()), "id_form");
        let mut forge = Forge::new();
        forge.names(&["spiffe://plant.example/margo/wfm/line-8/client/press.42"]);
        assert_eq!(code(&forge, &forge.bundle()), "wfm_id");
        // A retired anchor revokes what it issued, also for renewal (ID-178).
        let mut forge = Forge::new();
        forge.root_valid(NOW, -7200, -60);
        assert_eq!(code(&forge, &forge.bundle()), "chain");
    }

    #[test]
    fn a_signature_of_another_key_or_over_another_request_proves_nothing() {
        let forge = Forge::new();
        let (chain, key) = forge.leaf();
        let own = ServerName::parse(SERVER).unwrap();
        let (wanted, other) = (csr(), csr());
        let check = |signature: &[u8]| check_proof(&chain, &wanted, signature, NOW, &own, &forge.bundle());
        assert!(check(&prove(&key, &wanted).unwrap()).is_ok());
        for signature in [
            prove(&PrivateKey::generate().unwrap(), &wanted).unwrap(),
            prove(&key, &other).unwrap(),
            key.sign(wanted.der()).unwrap(),
            Vec::new(),
        ] {
            assert!(matches!(check(&signature), Err(ProofError::Signature(SignatureFault::Mismatch))));
        }
    }
}
