//! Where the trust bundle comes from, again and again: an identity service, known by its discovery document or
//! by the bundle's own address (sections 11 to 14 of the identity digest).
//!
//! Owns fetching and the rules about origins. Whether a bundle is usable is decided in `margrave-identity`, when
//! to fetch again by the keeper.

use std::time::Duration;

use margrave_core::id::TrustDomain;
use margrave_http::{Client, Limits, Origin, Request, Response, StatusCode, header};
use margrave_wire::identity::{BUNDLE_PATH, DISCOVERY_PATH, Discovery, InvalidDiscovery};
use margrave_wire::problem::ProblemType;
use margrave_wire::refusal::Refusal;
use serde::{Deserialize, Serialize};

use super::{IdentityError, WebTrust, refusal};

/// A bundle with the 64 keys that are looked at is a tenth of this.
const BUNDLE_SIZE_MAX: u64 = 1 << 20;
const DISCOVERY_SIZE_MAX: u64 = 64 << 10;
/// The sandbox's service wants exactly this and nothing else (ID-157).
const JSON: &str = "application/json";

/// An identity service and how its HTTPS is authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// The address of the discovery document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    discovery: Option<String>,
    /// The address of the bundle: where discovery does not answer, or may lead to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bundle: Option<String>,
    trust: WebTrust,
}

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error(transparent)]
    Identity(#[from] Box<IdentityError>),
    #[error("{url} could not be reached")]
    Unreachable {
        url: String,
        #[source]
        source: margrave_http::Error,
    },
    #[error("{url} answered {words}")]
    Refused { url: String, words: String, retry_after: Option<Duration> },
    #[error(
        "the identity service at {url} has no discovery document; give the bundle's own address with --bundle (ID-150)"
    )]
    NoDiscovery { url: String },
    #[error("the discovery document at {url} is not used")]
    Discovery {
        url: String,
        #[source]
        source: InvalidDiscovery,
    },
    #[error(
        "the discovery document at {discovery} leads to {bundle}, which is another origin; if that is right, name it with --bundle (ID-156)"
    )]
    OtherOrigin { discovery: String, bundle: String },
}

/// What a look at the identity service brought.
#[derive(Debug)]
pub(crate) enum Found {
    Unchanged,
    /// The body as it came, and its validator.
    Bundle {
        body: Vec<u8>,
        tag: Option<String>,
    },
}

impl Service {
    /// The service of a server of ours.
    pub(crate) fn of_server(url: &str, pin: &str) -> Service {
        Service {
            discovery: None,
            bundle: Some(format!("{}{BUNDLE_PATH}", url.trim_end_matches('/'))),
            trust: WebTrust::Pins(vec![pin.to_owned()]),
        }
    }

    /// From what a person typed; `None` when neither address is given.
    pub fn new(
        discovery: Option<&str>,
        bundle: Option<&str>,
        trust: WebTrust,
    ) -> Result<Option<Service>, IdentityError> {
        let https = |url: &str| {
            let (origin, path) =
                Origin::split(url).map_err(|error| IdentityError::Address(error.to_string()))?;
            match origin.scheme() {
                margrave_http::Scheme::Https => Ok((origin, path)),
                margrave_http::Scheme::Http => {
                    Err(IdentityError::Address(format!("{url} must be https (ID-062)")))
                }
            }
        };
        let discovery = match discovery {
            // A bare origin has its document at the well-known place; several trust domains have others (ID-150).
            Some(url) => match https(url)? {
                (origin, path) if path.is_empty() || path == "/" => Some(format!("{origin}{DISCOVERY_PATH}")),
                _ => Some(url.to_owned()),
            },
            None => None,
        };
        let bundle = match bundle {
            Some(url) => https(url).map(|_| Some(url.to_owned()))?,
            None => None,
        };
        Ok((discovery.is_some() || bundle.is_some()).then_some(Service { discovery, bundle, trust }))
    }

    /// The bundle of `own`, unless it is still the one with `tag`.
    pub(crate) async fn fetch(&self, own: &TrustDomain, tag: Option<&str>) -> Result<Found, ServiceError> {
        let url = match &self.discovery {
            None => self.bundle.clone().expect("a service has an address"),
            Some(discovery) => match (self.discover(discovery, own).await, &self.bundle) {
                (Ok(url), _) => url,
                // What is there but wrong is a matter for the operator; what is away has a stand-in.
                (
                    Err(
                        ServiceError::Unreachable { .. }
                        | ServiceError::Refused { .. }
                        | ServiceError::NoDiscovery { .. },
                    ),
                    Some(url),
                ) => url.clone(),
                (Err(error), _) => return Err(error),
            },
        };
        let response = self.get(&url, BUNDLE_SIZE_MAX, tag).await?;
        match response.status {
            StatusCode::NOT_MODIFIED if tag.is_some() => Ok(Found::Unchanged),
            status if status.is_success() => Ok(Found::Bundle {
                tag: response.header(header::ETAG).filter(|tag| tag.len() <= 200).map(str::to_owned),
                body: response.body.to_vec(),
            }),
            _ => Err(refused(&url, &response)),
        }
    }

    /// Where the discovery document says that the bundle is.
    async fn discover(&self, url: &str, own: &TrustDomain) -> Result<String, ServiceError> {
        let response = self.get(url, DISCOVERY_SIZE_MAX, None).await?;
        if response.status == StatusCode::NOT_FOUND {
            let said = Refusal::read(&response.body).kind;
            if said.is_none_or(|kind| kind == ProblemType::DiscoveryDocumentNotFound) {
                return Err(ServiceError::NoDiscovery { url: url.to_owned() });
            }
        }
        if !response.status.is_success() {
            return Err(refused(url, &response));
        }
        let wrong = |source| ServiceError::Discovery { url: url.to_owned(), source };
        let found = Discovery::parse(&response.body).map_err(wrong)?.matching(own).map_err(wrong)?;
        let origin = |url: &str| Origin::split(url).ok().map(|(origin, _)| origin);
        let to = origin(&found.trust_bundle_uri);
        let listed = [Some(url), self.bundle.as_deref()].into_iter().flatten().any(|url| origin(url) == to);
        if to.is_none() || !listed {
            let bundle = found.trust_bundle_uri.chars().take(200).collect();
            return Err(ServiceError::OtherOrigin { discovery: url.to_owned(), bundle });
        }
        Ok(found.trust_bundle_uri)
    }

    async fn get(&self, url: &str, size_max: u64, tag: Option<&str>) -> Result<Response, ServiceError> {
        let (origin, path) = Origin::split(url)
            .map_err(|error| ServiceError::Identity(Box::new(IdentityError::Address(error.to_string()))))?;
        let client: Client = self
            .trust
            .client(origin, Limits::default())
            .await
            .map_err(|error| ServiceError::Identity(Box::new(error)))?;
        let path = if path.is_empty() { "/".to_owned() } else { path };
        let mut request = Request::get(path).header(header::ACCEPT, JSON).body_max(size_max);
        if let Some(tag) = tag {
            request = request.header(header::IF_NONE_MATCH, tag);
        }
        client.send(request).await.map_err(|source| ServiceError::Unreachable { url: url.to_owned(), source })
    }
}

fn refused(url: &str, response: &Response) -> ServiceError {
    let (words, retry_after) = (refusal(response), response.retry_after());
    ServiceError::Refused { url: url.to_owned(), words, retry_after }
}
