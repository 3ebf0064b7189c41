//! Whether a peer is who it has to be: the one decision both ends make on every connection.
//!
//! The order is that of section 6: name, trust domain, path, leaf constraints, algorithms, server. Nothing
//! is fetched (ID-041) and no DNS name is looked at (ID-071). The same function judges a new handshake
//! and, later, the stored chain of an open connection (ID-111). Whether a verified client is accepted is
//! asked per request, elsewhere (ID-082).

pub(crate) mod memory;

use margrave_core::id::{TrustDomain, WfmId};
use margrave_core::identity::{ClientName, InvalidName, ServerName};
use margrave_core::moment::Moment;
use rustls::SignatureScheme;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::aws_lc_rs as algorithm;

use crate::bundle::Bundle;
use crate::certificate::{CHAIN_LENGTH_MAX, Serial, Statements, Unreadable, shown};
use crate::key::{KeyFault, PublicKey};

/// The signatures of section 4, in certificates (`all`) and in the handshake (`mapping`). The bound of 3072
/// bits for RSA is not expressible here; [`verify_peer`] checks it for every key on the path.
pub(crate) static ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        algorithm::ECDSA_P256_SHA256,
        algorithm::ECDSA_P384_SHA384,
        algorithm::ED25519,
        algorithm::RSA_PKCS1_2048_8192_SHA256,
        algorithm::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
    ],
    mapping: &[
        (SignatureScheme::ECDSA_NISTP256_SHA256, &[algorithm::ECDSA_P256_SHA256]),
        (SignatureScheme::ECDSA_NISTP384_SHA384, &[algorithm::ECDSA_P384_SHA384]),
        (SignatureScheme::ED25519, &[algorithm::ED25519]),
        (SignatureScheme::RSA_PSS_SHA256, &[algorithm::RSA_PSS_2048_8192_SHA256_LEGACY_KEY]),
    ],
};

/// A peer whose SVID was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer<N> {
    pub name: N,
    /// When the first certificate on its path expires; its connection must not be used for long after (ID-110).
    pub not_after: Moment,
    pub serial: Serial,
}

/// Why a peer is refused. Closed, so that the log and the documentation can list all of it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    #[error("the certificate has {0} URI names, an SVID has exactly one (ID-030)")]
    SanCount(usize),
    #[error("the peer's name has not the wanted form")]
    IdForm(#[source] InvalidName),
    #[error("the peer is of trust domain {got}, ours is {own} (ID-003)")]
    TrustDomain { own: TrustDomain, got: TrustDomain },
    #[error("the certificate does not chain to an anchor of the trust bundle (ID-070)")]
    Chain(#[source] ChainFault),
    #[error("the certificate must not be used for this: {0}")]
    Leaf(&'static str),
    #[error("the certificates use an algorithm outside of the profile (ID-051)")]
    Algorithm(#[source] AlgorithmFault),
    #[error("the peer belongs to server {got}, ours is {own} (ID-080, ID-100)")]
    WfmId { own: WfmId, got: WfmId },
    #[error("a certificate of the peer expired at {} (ID-066); check both clocks, then renew it", shown(*not_after))]
    Expired { not_after: Moment },
    #[error("a certificate of the peer is valid from {} only (ID-066); check both clocks", shown(*not_before))]
    NotYetValid { not_before: Moment },
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum ChainFault {
    #[error("no certificate was presented")]
    Empty,
    #[error("more than {CHAIN_LENGTH_MAX} certificates were presented")]
    TooLong,
    #[error("a certificate cannot be read")]
    Unreadable(#[source] Unreadable),
    #[error("no anchor of the trust bundle is within its validity (ID-237)")]
    NoValidAnchor,
    #[error("the trust bundle in use is of trust domain {0}")]
    OtherBundle(TrustDomain),
    #[error("path validation failed")]
    Path(#[source] webpki::Error),
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum AlgorithmFault {
    #[error("a key on the path is not acceptable")]
    Key(#[source] KeyFault),
    #[error("a signature on the path is not acceptable")]
    Signature(#[source] webpki::Error),
}

impl Refusal {
    /// A stable word for logs, metrics and documentation.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::SanCount(_) => "san_count",
            Refusal::IdForm(_) => "id_form",
            Refusal::TrustDomain { .. } => "trust_domain",
            Refusal::Chain(_) => "chain",
            Refusal::Leaf(_) => "leaf",
            Refusal::Algorithm(_) => "algorithm",
            Refusal::WfmId { .. } => "wfm_id",
            Refusal::Expired { .. } => "expired",
            Refusal::NotYetValid { .. } => "not_yet_valid",
        }
    }
}

/// The two kinds of names a peer can have; which one is wanted says on which end we are.
///
/// A server verifies `ClientName`, a client verifies `ServerName`.
pub trait PeerName: sealed::Form + Sized {}
impl PeerName for ClientName {}
impl PeerName for ServerName {}

mod sealed {
    use super::{ClientName, InvalidName, ServerName};

    pub trait Form: Sized {
        fn read(text: &str) -> Result<Self, InvalidName>;
        fn server(&self) -> &ServerName;
        fn purpose() -> webpki::KeyUsage;
    }

    impl Form for ClientName {
        fn read(text: &str) -> Result<Self, InvalidName> {
            ClientName::parse(text)
        }

        fn server(&self) -> &ServerName {
            &self.server
        }

        fn purpose() -> webpki::KeyUsage {
            webpki::KeyUsage::client_auth()
        }
    }

    impl Form for ServerName {
        fn read(text: &str) -> Result<Self, InvalidName> {
            ServerName::parse(text)
        }

        fn server(&self) -> &ServerName {
            self
        }

        fn purpose() -> webpki::KeyUsage {
            webpki::KeyUsage::server_auth()
        }
    }
}

/// The peer behind `chain` (leaf first), or the first reason against it.
///
/// `own` is the server's name from one's own SVID (ID-072): for the server its own, for a client the one
/// it belongs to. `N` is the form the peer's name must have.
pub fn verify_peer<N: PeerName>(
    chain: &[CertificateDer<'_>],
    now: Moment,
    own: &ServerName,
    bundle: &Bundle,
) -> Result<Peer<N>, Refusal> {
    let (leaf, name) = identify::<N>(chain, own)?;
    verify_path::<N>(chain, leaf, name, now, now, own, bundle)
}

/// Like [`verify_peer`], but a leaf that has expired is still taken for who it was. Only renewal may ask this.
pub(crate) fn verify_former_peer<N: PeerName>(
    chain: &[CertificateDer<'_>],
    now: Moment,
    own: &ServerName,
    bundle: &Bundle,
) -> Result<Peer<N>, Refusal> {
    let (leaf, name) = identify::<N>(chain, own)?;
    let then = now.min(leaf.not_after);
    verify_path::<N>(chain, leaf, name, then, now, own, bundle)
}

fn identify<N: PeerName>(chain: &[CertificateDer<'_>], own: &ServerName) -> Result<(Statements, N), Refusal> {
    let leaf = chain.first().ok_or(Refusal::Chain(ChainFault::Empty))?;
    if chain.len() > CHAIN_LENGTH_MAX {
        return Err(Refusal::Chain(ChainFault::TooLong));
    }
    let statements = Statements::read(leaf).map_err(|error| Refusal::Chain(ChainFault::Unreadable(error)))?;
    let [uri] = statements.uris.as_slice() else { return Err(Refusal::SanCount(statements.uris.len())) };
    let name = N::read(uri).map_err(Refusal::IdForm)?;
    if name.server().trust_domain != own.trust_domain {
        return Err(Refusal::TrustDomain {
            own: own.trust_domain.clone(),
            got: name.server().trust_domain.clone(),
        });
    }
    Ok((statements, name))
}

/// `then` is the time the path is validated for, `now` the time the anchors must be valid at; they differ
/// only for a renewal.
fn verify_path<N: PeerName>(
    chain: &[CertificateDer<'_>],
    leaf: Statements,
    name: N,
    then: Moment,
    now: Moment,
    own: &ServerName,
    bundle: &Bundle,
) -> Result<Peer<N>, Refusal> {
    let chain_fault = |fault| Refusal::Chain(fault);
    if *bundle.trust_domain() != own.trust_domain {
        return Err(chain_fault(ChainFault::OtherBundle(bundle.trust_domain().clone())));
    }
    let valid = || bundle.anchors().iter().filter(|anchor| anchor.is_valid(now));
    let anchors: Vec<TrustAnchor<'_>> = valid().map(|anchor| anchor.trust().clone()).collect();
    if anchors.is_empty() {
        return Err(chain_fault(ChainFault::NoValidAnchor));
    }
    let end_entity =
        webpki::EndEntityCert::try_from(&chain[0]).map_err(|error| chain_fault(ChainFault::Path(error)))?;
    let path = end_entity
        .verify_for_usage(
            ALGORITHMS.all,
            &anchors,
            &chain[1..],
            UnixTime::since_unix_epoch(std::time::Duration::from_millis(then.0)),
            N::purpose(),
            None,
            None,
        )
        .map_err(|error| refusal_of(error, &leaf))?;

    check_leaf(&leaf)?;

    let mut not_after = leaf.not_after;
    let unacceptable = |fault: KeyFault| Refusal::Algorithm(AlgorithmFault::Key(fault));
    leaf.key.map_err(unacceptable)?;
    for issuer in path.intermediate_certificates() {
        let issuer =
            Statements::read(&issuer.der()).map_err(|error| chain_fault(ChainFault::Unreadable(error)))?;
        not_after = not_after.min(issuer.not_after);
        issuer.key.map_err(unacceptable)?;
    }
    // An anchor's key was checked when the bundle was read. Of equal anchors the longest-lived counts.
    let anchored = valid().filter(|anchor| {
        anchor.trust().subject == path.anchor().subject
            && anchor.trust().subject_public_key_info == path.anchor().subject_public_key_info
    });
    if let Some(anchor_end) = anchored.map(|anchor| anchor.not_after()).max() {
        not_after = not_after.min(anchor_end);
    }

    if name.server().wfm != own.wfm {
        return Err(Refusal::WfmId { own: own.wfm.clone(), got: name.server().wfm.clone() });
    }
    Ok(Peer { name, not_after, serial: leaf.serial })
}

/// ID-034, ID-035, ID-036, ID-073.
fn check_leaf(leaf: &Statements) -> Result<(), Refusal> {
    if leaf.is_ca {
        return Err(Refusal::Leaf("it is one of an authority (ID-034)"));
    }
    let Some(usage) = leaf.key_usage else { return Err(Refusal::Leaf("it has no keyUsage (ID-035)")) };
    if !usage.critical {
        return Err(Refusal::Leaf("its keyUsage is not critical (ID-035)"));
    }
    if !usage.digital_signature {
        return Err(Refusal::Leaf("its keyUsage lacks digitalSignature (ID-035)"));
    }
    if usage.key_cert_sign || usage.crl_sign {
        return Err(Refusal::Leaf("its keyUsage allows to sign certificates or revocation lists (ID-035)"));
    }
    if leaf.extended_key_usage.is_some_and(|usage| !usage.server_auth || !usage.client_auth) {
        return Err(Refusal::Leaf("its extendedKeyUsage lacks serverAuth or clientAuth (ID-036)"));
    }
    Ok(())
}

fn refusal_of(error: webpki::Error, leaf: &Statements) -> Refusal {
    let moment = |time: UnixTime| Moment(time.as_secs().saturating_mul(1000));
    match error {
        webpki::Error::CertExpired { not_after, .. } => Refusal::Expired { not_after: moment(not_after) },
        webpki::Error::CertNotValidYet { not_before, .. } => {
            Refusal::NotYetValid { not_before: moment(not_before) }
        }
        webpki::Error::CaUsedAsEndEntity => Refusal::Leaf("it is one of an authority (ID-034)"),
        webpki::Error::UnsupportedSignatureAlgorithmContext(_)
        | webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
            Refusal::Algorithm(AlgorithmFault::Signature(error))
        }
        // The purpose is asked of the whole path; only for the leaf we know what to say.
        webpki::Error::RequiredEkuNotFoundContext(_) => match check_leaf(leaf) {
            Err(refusal) => refusal,
            Ok(()) => Refusal::Chain(ChainFault::Path(error)),
        },
        other => Refusal::Chain(ChainFault::Path(other)),
    }
}

/// The key in a chain's leaf, for checking what its holder signed.
pub(crate) fn leaf_key(chain: &[CertificateDer<'_>]) -> Result<PublicKey, Refusal> {
    let leaf = chain.first().ok_or(Refusal::Chain(ChainFault::Empty))?;
    let statements = Statements::read(leaf).map_err(|error| Refusal::Chain(ChainFault::Unreadable(error)))?;
    statements.key.map_err(|fault| Refusal::Algorithm(AlgorithmFault::Key(fault)))
}

/// Writes a refusal to the log with all that helps to find its cause, and no key (ID-191).
pub(crate) fn log_refusal(chain: &[CertificateDer<'_>], refusal: &Refusal) {
    let statements = chain.first().and_then(|leaf| Statements::read(leaf).ok());
    let peer = statements.as_ref().and_then(|leaf| leaf.uris.first());
    // The text is a stranger's: bounded, and quoted by Debug.
    let peer: Option<String> = peer.map(|uri| uri.chars().take(200).collect());
    tracing::warn!(
        reason = refusal.code(),
        peer = ?peer,
        serial = ?statements.as_ref().map(|leaf| leaf.serial.to_string()),
        issuer = ?statements.as_ref().map(|leaf| &leaf.issuer),
        not_after = ?statements.as_ref().map(|leaf| shown(leaf.not_after)),
        refusal = refusal as &dyn std::error::Error,
        "a peer was refused"
    );
}

#[cfg(test)]
mod tests;
