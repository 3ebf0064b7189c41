//! A certificate authority: one self-signed certificate and its key. What it signs, and what for, is
//! decided by its two owners, `authority` and `web`.

use std::time::Duration;

use margrave_core::moment::Moment;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyUsagePurpose, PublicKeyData,
    SerialNumber,
};
use rustls::pki_types::CertificateDer;

use crate::certificate::{Statements, Unreadable, chain_from_pem, pem_of};
use crate::key::{KeyFault, PrivateKey, PrivateKeyError};

/// Renewing an authority means touching every device that pinned it, so it outlives the hardware.
const CA_LIFETIME: Duration = Duration::from_secs(20 * 365 * 24 * 60 * 60);
/// A device whose clock is a little behind must be able to use its certificate at once (ID-066).
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);
/// The first moment after the year 9000: dates beyond the year 9999 cannot be written in a certificate.
const MOMENT_MAX: Moment = Moment(221_845_392_000_000);

/// Why an authority cannot be made or taken into use.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("the private key of the authority cannot be used")]
    Key(#[source] PrivateKeyError),
    #[error("the authority's certificate cannot be read; the file begins with one PEM certificate")]
    Certificate(#[source] crate::certificate::ChainError),
    #[error("the authority's certificate cannot be read")]
    Unreadable(#[source] Unreadable),
    #[error(
        "the key file does not belong to the authority's certificate; give the pair that was made together"
    )]
    OtherKey,
    #[error("the certificate is not one of an authority: it needs cA=true and keyUsage keyCertSign (ID-039)")]
    NotAnAuthority,
    #[error("the authority's key is not acceptable")]
    KeyKind(#[source] KeyFault),
    #[error("the certificate is of trust domain {0:?}, not of the configured one")]
    TrustDomain(String),
    #[error("this authority's certificate cannot be used to issue, its certificates would not verify")]
    Unusable(#[source] Box<crate::verify::Refusal>),
    #[error("a certificate could not be made")]
    Issue(#[source] IssueError),
}

/// Why a certificate could not be issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("the certificate could not be signed")]
    Sign(#[source] rcgen::Error),
    #[error("the system gave no random number")]
    Random,
    #[error("the name {0:?} cannot stand in a certificate")]
    Name(String),
    #[error(
        "the authority's own certificate expired or expires before the new one would begin; rotate the authority"
    )]
    AuthorityExpired,
    #[error("a key could not be made")]
    Key(#[source] PrivateKeyError),
    #[error("the issued certificate cannot be read back")]
    Unreadable(#[source] Unreadable),
    #[error("the issued certificate is not usable")]
    Svid(#[source] Box<crate::svid::SvidError>),
    #[error("the issued certificate is not usable")]
    Web(#[source] Box<crate::web::WebLeafError>),
    #[error("the issued certificate is not usable")]
    Client(#[source] crate::message::CertificateFault),
}

pub(crate) struct Ca {
    certificate: CertificateDer<'static>,
    statements: Statements,
    key: PrivateKey,
    issuer: Issuer<'static, PrivateKey>,
}

impl Ca {
    pub(crate) fn create(
        subject: DistinguishedName,
        names: Vec<rcgen::SanType>,
        now: Moment,
    ) -> Result<Ca, AuthorityError> {
        let key = PrivateKey::generate().map_err(AuthorityError::Key)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject;
        params.subject_alt_names = names;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(serial().map_err(AuthorityError::Issue)?);
        set_validity(&mut params, now, CA_LIFETIME, MOMENT_MAX);
        let certificate =
            params.self_signed(&key).map_err(|error| AuthorityError::Issue(IssueError::Sign(error)))?;
        Ca::of(certificate.into(), key)
    }

    pub(crate) fn load(certificate_pem: &str, key_pem: &str) -> Result<Ca, AuthorityError> {
        let key = PrivateKey::from_pem(key_pem).map_err(AuthorityError::Key)?;
        let certificate =
            chain_from_pem(certificate_pem).map_err(AuthorityError::Certificate)?.swap_remove(0);
        Ca::of(certificate, key)
    }

    fn of(certificate: CertificateDer<'static>, key: PrivateKey) -> Result<Ca, AuthorityError> {
        let statements = Statements::read(&certificate).map_err(AuthorityError::Unreadable)?;
        let public = statements.key.as_ref().map_err(|fault| AuthorityError::KeyKind(fault.clone()))?;
        if public != key.public() {
            return Err(AuthorityError::OtherKey);
        }
        if !statements.is_ca || !statements.key_usage.is_some_and(|usage| usage.key_cert_sign) {
            return Err(AuthorityError::NotAnAuthority);
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key.clone())
            .map_err(|error| AuthorityError::Issue(IssueError::Sign(error)))?;
        Ok(Ca { certificate, statements, key, issuer })
    }

    /// Signs what `params` says, valid from a little before `now` and never longer than the authority.
    pub(crate) fn sign(
        &self,
        mut params: CertificateParams,
        subject: &impl PublicKeyData,
        now: Moment,
        lifetime: Duration,
    ) -> Result<CertificateDer<'static>, IssueError> {
        if self.statements.is_expired(now) {
            return Err(IssueError::AuthorityExpired);
        }
        params.serial_number = Some(serial()?);
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, now, lifetime, self.statements.not_after);
        params.signed_by(subject, &self.issuer).map(Into::into).map_err(IssueError::Sign)
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.statements
    }

    pub(crate) fn certificate_pem(&self) -> String {
        pem_of(&self.certificate)
    }

    pub(crate) fn key_pem(&self) -> String {
        self.key.to_pem()
    }
}

/// A certificate that its own key vouches for and that vouches for nobody else.
pub(crate) fn self_signed(
    mut params: CertificateParams,
    key: &PrivateKey,
    now: Moment,
    lifetime: Duration,
) -> Result<CertificateDer<'static>, IssueError> {
    params.serial_number = Some(serial()?);
    set_validity(&mut params, now, lifetime, MOMENT_MAX);
    params.self_signed(key).map(Into::into).map_err(IssueError::Sign)
}

fn set_validity(params: &mut CertificateParams, now: Moment, lifetime: Duration, end: Moment) {
    let time = |moment: Moment| {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(moment.min(MOMENT_MAX).0 / 1000)
    };
    let skew = u64::try_from(CLOCK_SKEW.as_millis()).expect("five minutes fit");
    params.not_before = time(Moment(now.0.saturating_sub(skew)));
    params.not_after = time(now.after(lifetime).min(end));
}

/// 128 bits, of which the first two are fixed so that the number is positive and always as long.
fn serial() -> Result<SerialNumber, IssueError> {
    let mut bytes = [0u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| IssueError::Random)?;
    bytes[0] = bytes[0] & 0x3f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}
