//! Whether a request was signed by the client it speaks of (MI-G1-060 to MI-G1-069).
//!
//! Owns what a signature must cover and when it counts; how it is written is `margrave-wire`'s, how it is
//! verified `margrave-identity`'s. Nothing of a request is believed before this.

use http::header::HOST;
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_identity::message::{SignatureFault, VerificationKey, Verified};
use margrave_wire::signature::{
    CONTENT_DIGEST, Expires, ExternalUrl, Message, SIGNATURE, SIGNATURE_INPUT, Signature, read,
    read_content_digest,
};

use super::refusal::SignedRefusal;
use super::signed::Terms;

const METHOD: &str = "@method";
const TARGET_URI: &str = "@target-uri";

/// A request that its client signed.
pub(super) struct Signed {
    pub(super) verified: Verified,
    pub(super) nonce: Option<String>,
    pub(super) created: Moment,
}

/// Whether the request carries anything of a signature.
pub(super) fn is_attempted(headers: &HeaderMap) -> bool {
    headers.contains_key(SIGNATURE) || headers.contains_key(SIGNATURE_INPUT)
}

/// Checks everything in the order of MI-G1-067, from where the client's key is known: what is covered and the
/// digest (400), then time and the signature itself (401).
pub(super) fn authenticate(
    terms: &Terms,
    now: Moment,
    key: &VerificationKey,
    request: &Parts,
    body: &[u8],
) -> Result<Signed, SignedRefusal> {
    let headers = &request.headers;
    let signatures =
        read(lines(headers, SIGNATURE_INPUT), lines(headers, SIGNATURE)).map_err(SignedRefusal::Headers)?;
    let signature = choose(&signatures, !body.is_empty())?;
    check_digest(headers, signature, body)?;
    let created = check_time(terms, now, signature)?;
    let external = external(terms, headers).ok_or(SignedRefusal::NoHost)?;
    let verified = verify(&external, key, request, signature)?;
    Ok(Signed { verified, nonce: signature.nonce.clone(), created })
}

fn lines<'h>(headers: &'h HeaderMap, name: &'static str) -> impl Iterator<Item = &'h [u8]> {
    headers.get_all(name).into_iter().map(|line| line.as_bytes())
}

/// The one signature that is verified: the first that covers what it must, with whatever label (MI-G1-068).
/// Only one, or a request could make us verify many.
fn choose(signatures: &[Signature], with_body: bool) -> Result<&Signature, SignedRefusal> {
    let required = [METHOD, TARGET_URI, CONTENT_DIGEST];
    let required = if with_body { &required[..] } else { &required[..2] };
    let lacks = |signature: &Signature| required.iter().copied().find(|name| !signature.covers(name));
    match signatures.iter().find(|signature| lacks(signature).is_none()) {
        Some(signature) => Ok(signature),
        None => {
            let component = signatures.first().and_then(lacks).unwrap_or(METHOD);
            Err(SignedRefusal::Uncovered { component })
        }
    }
}

/// Required where there is a body, compared wherever there is one (MI-G1-062, MI-G1-066, AMB-28).
fn check_digest(headers: &HeaderMap, signature: &Signature, body: &[u8]) -> Result<(), SignedRefusal> {
    if body.is_empty() && !signature.covers(CONTENT_DIGEST) {
        return Ok(());
    }
    let stated = read_content_digest(lines(headers, CONTENT_DIGEST)).map_err(SignedRefusal::Digest)?;
    if stated == Digest::of(body) { Ok(()) } else { Err(SignedRefusal::DigestMismatch) }
}

/// When it was created, which must lie within the window, with `expires` ahead (MI-G1-065).
fn check_time(terms: &Terms, now: Moment, signature: &Signature) -> Result<Moment, SignedRefusal> {
    let created = signature.created.and_then(|created| u64::try_from(created).ok());
    let created = Moment(created.ok_or(SignedRefusal::NoCreated)?.saturating_mul(1000));
    if created > now.after(terms.skew) {
        return Err(SignedRefusal::FromTheFuture);
    }
    // Whole seconds are signed: the last one of the window has begun, and counts.
    if now.since(created) >= terms.window + std::time::Duration::from_secs(1) {
        return Err(SignedRefusal::TooOld { window_seconds: terms.window.as_secs() });
    }
    match signature.expires {
        None => Ok(created),
        Some(Expires::At(at)) if i64::try_from(now.0 / 1000).is_ok_and(|now| now <= at) => Ok(created),
        Some(_) => Err(SignedRefusal::Expired),
    }
}

/// Under which address the client asked (MI-G1-069).
fn external(terms: &Terms, headers: &HeaderMap) -> Option<ExternalUrl> {
    let host = host(headers);
    let named = terms.external.iter().find(|external| host.is_some_and(|host| external.is_at(host)));
    named.or(terms.external.first()).cloned().or_else(|| host.and_then(ExternalUrl::of_host))
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST).and_then(|host| host.to_str().ok())
}

fn verify(
    external: &ExternalUrl,
    key: &VerificationKey,
    request: &Parts,
    signature: &Signature,
) -> Result<Verified, SignedRefusal> {
    // The client's own spelling of our name, where it is our name: `@target-uri` is signed as it was written.
    let authority =
        host(&request.headers).filter(|host| external.is_at(host)).unwrap_or(external.authority());
    let (received, query) = (request.uri.path(), request.uri.query());
    // A proxy may have taken the prefix away, or not.
    let prefix = external.prefix();
    let prefix = if within(received, prefix) { "" } else { prefix };
    let path = format!("{prefix}{received}");
    let target_uri = match query {
        Some(query) => format!("{}://{authority}{path}?{query}", external.scheme()),
        None => format!("{}://{authority}{path}", external.scheme()),
    };
    let field = |name: &str| field(&request.headers, name);
    let message = Message {
        method: request.method.as_str(),
        scheme: external.scheme(),
        authority: external.authority(),
        target_uri: &target_uri,
        path: &path,
        query,
        field: &field,
    };
    let (strict, spelled) = signature.bases(&message).map_err(SignedRefusal::Base)?;
    let alg = signature.alg.as_deref();
    let check = |base: &[u8]| key.verify(alg, base, &signature.bytes).map_err(SignedRefusal::Signature);
    match (check(&strict), spelled) {
        (Err(SignedRefusal::Signature(SignatureFault::Mismatch)), Some(spelled)) => check(&spelled),
        (verified, _) => verified,
    }
}

/// Whether a path lies under a prefix such as `/v1alpha2/margo`.
pub(super) fn within(path: &str, prefix: &str) -> bool {
    !prefix.is_empty() && path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
}

/// A field's value as RFC 9421 combines it (2.1): each line trimmed, joined by a comma and a blank.
fn field(headers: &HeaderMap, name: &str) -> Option<String> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let mut value: Option<String> = None;
    for line in headers.get_all(name) {
        let line = line.to_str().ok()?.trim_matches([' ', '\t']);
        match &mut value {
            None => value = Some(line.to_owned()),
            Some(value) => {
                value.push_str(", ");
                value.push_str(line);
            }
        }
    }
    value
}
