//! The signed interface (g1) asked for anything: signed well, not at all, or changed after it was signed.
//!
//! An input is a request as in `requests.rs`, after one byte that says what is done with it: `s` signs it, `t` signs
//! it and then changes it in the way that the next byte says, anything else leaves it as it is.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::BodyExt as _;
use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_device_api::g1::{
    Applicant, Onboarding, Sender, SignedApi, SignedClient, SignedStanding, Terms, UsedSignature, router,
};
use margrave_device_api::{Answer, ApiError, DeviceApi};
use margrave_identity::message::{Signer, VerificationKey};
use margrave_wire::g1::{ONBOARDING_PATH, ROOT_CERTIFICATE_PATH};
use margrave_wire::identity::RegistryToken;
use margrave_wire::signature::{
    CONTENT_DIGEST, Message, SIGNATURE, SIGNATURE_INPUT, Style, Unsigned, content_digest,
};
use tower::ServiceExt as _;

use crate::requests::{Fleet, now, request, runtime};

pub(crate) const CLIENT: &str = "c-17";
const HOST_NAME: &str = "wfm.example";
const NOW: Moment = Moment(1_800_000_000_000);

/// The only client there is.
struct Member {
    signer: Signer,
    key: Arc<VerificationKey>,
}

fn member() -> &'static Member {
    static MEMBER: OnceLock<Member> = OnceLock::new();
    MEMBER.get_or_init(|| {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("keys can be made");
        let signer = Signer::from_pem(&pair.serialize_pem()).expect("a key that signs");
        let key = VerificationKey::from_spki(&rcgen::PublicKeyData::subject_public_key_info(&pair));
        Member { signer, key: Arc::new(key.expect("a key that verifies")) }
    })
}

#[derive(Default)]
struct Members {
    terms: Terms,
}

impl SignedApi for Members {
    fn client(&self, client: &ClientId) -> Option<SignedClient> {
        let known = SignedClient { standing: SignedStanding::Accepted, key: Arc::clone(&member().key) };
        (client.as_str() == CLIENT).then_some(known)
    }

    fn onboard<'a>(&'a self, applicant: Applicant) -> Answer<'a, Result<Onboarding, ApiError>> {
        assert!(applicant.proven, "nobody is taken in who did not prove to hold the key");
        now(Ok(Onboarding::Pending))
    }

    fn root_certificate(&self) -> String {
        "a root certificate".to_owned()
    }

    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn now(&self) -> Moment {
        NOW
    }

    fn manifest_given<'a>(&'a self, _: &'a ClientId, _: u64) -> Answer<'a, Result<(), ApiError>> {
        now(Ok(()))
    }

    fn manifest_last_given(&self, _: &ClientId) -> Option<u64> {
        None
    }

    fn registry_token(&self, client: &ClientId) -> RegistryToken {
        RegistryToken {
            username: client.to_string(),
            password: "secret".to_owned(),
            expires: "later".to_owned(),
            registry: None,
            web_authority: None,
        }
    }

    fn charge(&self, _: Sender<'_>) -> Result<(), Duration> {
        Ok(())
    }

    fn forged(&self, client: &ClientId) {
        assert_eq!(client.as_str(), CLIENT, "only who exists can be claimed to be");
    }

    fn signatures_kept(&self) -> Vec<UsedSignature> {
        Vec::new()
    }

    fn keep_signatures<'a>(&'a self, _: Vec<UsedSignature>) -> Answer<'a, Result<(), ApiError>> {
        now(Ok(()))
    }
}

/// Adds what the client adds, in place of whatever the input said about it.
fn sign(request: &mut Request<Bytes>) -> Option<()> {
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static(HOST_NAME));
    let body = request.body().clone();
    let digest = (!body.is_empty()).then(|| content_digest(&body));
    let uri = request.uri().clone();
    let target = match uri.query() {
        Some(query) => format!("https://{HOST_NAME}{}?{query}", uri.path()),
        None => format!("https://{HOST_NAME}{}", uri.path()),
    };
    let method = request.method().clone();
    let field = |name: &str| digest.clone().filter(|_| name == CONTENT_DIGEST);
    let message = Message {
        method: method.as_str(),
        scheme: "https",
        authority: HOST_NAME,
        target_uri: &target,
        path: uri.path(),
        query: uri.query(),
        field: &field,
    };
    let signer = &member().signer;
    let unsigned =
        Unsigned::new(Style::Standard, &message, digest.is_some(), NOW.0 / 1000, signer.keyid()).ok()?;
    let (input, signature) = unsigned.sealed(&signer.sign(unsigned.base()).expect("a key that signs"));
    let headers = request.headers_mut();
    headers.remove(CONTENT_DIGEST);
    if let Some(digest) = digest {
        headers.insert(CONTENT_DIGEST, HeaderValue::try_from(digest).ok()?);
    }
    headers.insert(SIGNATURE_INPUT, HeaderValue::try_from(input).ok()?);
    headers.insert(SIGNATURE, HeaderValue::try_from(signature).ok()?);
    Some(())
}

/// Changes something that the signature speaks for; `None` where there is nothing of the kind.
fn tamper(request: &mut Request<Bytes>, how: u8) -> Option<()> {
    match how % 4 {
        0 => {
            let (before, after) =
                (request.method().clone(), if how & 4 == 0 { Method::PUT } else { Method::GET });
            *request.method_mut() = after;
            (*request.method() != before).then_some(())
        }
        1 => {
            let query = request.uri().query().map(|query| format!("{query}&")).unwrap_or_default();
            *request.uri_mut() = format!("{}?{query}x", request.uri().path()).parse::<Uri>().ok()?;
            Some(())
        }
        2 => {
            let mut body = request.body().to_vec();
            *body.last_mut()? ^= 1;
            *request.body_mut() = body.into();
            Some(())
        }
        _ => {
            let body = [request.body().as_ref(), b" "].concat();
            request.headers_mut().insert(CONTENT_DIGEST, HeaderValue::try_from(content_digest(&body)).ok()?);
            *request.body_mut() = body.into();
            Some(())
        }
    }
}

pub(crate) fn requests(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else { return };
    let (change, rest) = match (how, rest.split_first()) {
        (b't', Some((change, rest))) => (Some(*change), rest),
        _ => (None, rest),
    };
    let Some(mut asked) = request(rest) else { return };
    let signed = matches!(how, b's' | b't');
    // The absolute form names a host of its own; a client signs the target that it asks for, not another one.
    if signed && (asked.uri().scheme().is_some() || sign(&mut asked).is_none()) {
        return;
    }
    if let Some(change) = change
        && tamper(&mut asked, change).is_none()
    {
        return;
    }
    let fleet: Arc<dyn DeviceApi> = Arc::new(Fleet::default());
    let router = router(fleet, Arc::new(Members::default()));
    let (head, content) = asked.into_parts();
    let send = |router: axum::Router| {
        let request = Request::from_parts(head.clone(), Body::from(content.clone()));
        runtime().block_on(async {
            let response = router.oneshot(request).await.expect("a router always answers");
            let (parts, body) = response.into_parts();
            (parts, body.collect().await.expect("an answer in memory").to_bytes())
        })
    };
    let (answer, body) = send(router.clone());
    let status = answer.status;
    assert!(!status.is_server_error(), "{status}: {}", String::from_utf8_lossy(&body));
    assert!(answer.headers.contains_key(CACHE_CONTROL), "every answer says how long it is good for");
    let path = head.uri.path();
    let public = path == ROOT_CERTIFICATE_PATH && matches!(head.method, Method::GET | Method::HEAD);
    if change.is_some() && !public {
        assert!(status.is_client_error(), "{status} for {} {path}, changed after it was signed", head.method);
    }
    if !signed && !public {
        assert!(status.is_client_error(), "{status} for {} {path}, which nobody signed", head.method);
    }
    if status.is_client_error() && head.method != Method::HEAD {
        let problem: serde_json::Value = serde_json::from_slice(&body).expect("a refusal is JSON");
        assert_eq!(problem["status"], status.as_u16());
        assert!(problem["error"].is_string() && problem["message"].is_string(), "{problem}");
        assert!(answer.headers.contains_key(CONTENT_TYPE));
    }
    // The same once more: nothing that changes anything is taken twice without the client's knowledge, and what was
    // refused stays refused.
    let (again, _) = send(router);
    if status.is_client_error() {
        assert!(again.status.is_client_error(), "{status} at first, then {}", again.status);
    }
    assert!(!again.status.is_server_error());
    if path == ONBOARDING_PATH {
        assert_ne!(status, StatusCode::CREATED, "an operator decides");
    }
}
