//! An identity that an operator installs: certificate, key and trust bundle as files (ID-250, "installed").
//!
//! Works with any server of the standard. The files stay the operator's: they are copied once, and read again
//! whenever they change, without a restart (ID-180).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use margrave_core::id::DeviceId;
use margrave_core::identity::ClientName;
use margrave_core::moment::Moment;
use margrave_http::{Origin, Scheme};
use margrave_identity::bundle::Bundle;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::svid::Svid;
use margrave_identity::verify::verify_peer;
use margrave_wire::identity::JwkSet;
use serde::{Deserialize, Serialize};

use super::service::{Found, Service};
use super::{
    Credential, GitSource, Identity, IdentityError, Place, SvidCredential, SvidSource, WebTrust, answer,
    read_bounded,
};
use crate::status::timestamp;

/// Where an installed identity came from, and comes from again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Installed {
    pub(crate) svid: PathBuf,
    pub(crate) key: PathBuf,
    /// The bundle's file; without one, it comes from the service alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bundle: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<Service>,
}

/// What a person typed to join with installed files.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The device interface, with whatever prefix it lives under (AMB-25, ID-223).
    pub url: String,
    pub svid: PathBuf,
    pub key: PathBuf,
    /// A file, or an `https` address.
    pub bundle: Option<String>,
    pub identity_url: Option<String>,
    pub trust: WebTrust,
    /// What the device calls itself; its client id when left out.
    pub device: Option<DeviceId>,
    pub git: Option<GitSource>,
}

/// Takes over installed files as this device's identity. The server is not asked: it may be away, and its
/// operator decides on his own when this device is accepted.
pub async fn install(
    place: &Place,
    installation: Installation,
    now: Moment,
) -> Result<Identity, IdentityError> {
    let Installation { url, svid, key, bundle, identity_url, trust, device, git } = installation;
    let origin = Origin::parse(&url).map_err(|error| IdentityError::Address(error.to_string()))?;
    if origin.scheme() != Scheme::Https {
        return Err(IdentityError::Address(format!("{url} must be https")));
    }
    let (bundle_file, bundle_url) = match bundle {
        Some(text) if text.contains("://") => (None, Some(text)),
        Some(path) => (Some(absolute(path.as_ref())?), None),
        None => (None, None),
    };
    let service = Service::new(identity_url.as_deref(), bundle_url.as_deref(), trust)?;
    let installed = Installed { svid: absolute(&svid)?, key: absolute(&key)?, bundle: bundle_file, service };
    let (own, certificates, key) = installed.read_svid()?;
    let name = own.client_name().ok_or_else(|| IdentityError::ForeignName(own.name().to_string()))?.clone();
    if own.is_expired(now) {
        return Err(IdentityError::Expired { path: installed.svid, at: timestamp(own.not_after()) });
    }
    let domain = &name.server.trust_domain;
    let (trust_bundle, bundle_tag) = match (&installed.bundle, &installed.service) {
        (Some(path), _) => (installed.read_bundle(path)?, None),
        (None, Some(service)) => match service.fetch(domain, None).await? {
            Found::Bundle { body, tag } => (serde_json::from_slice(&body).map_err(answer)?, tag),
            Found::Unchanged => return Err(IdentityError::NoBundle),
        },
        (None, None) => return Err(IdentityError::NoBundle),
    };
    let checked = Bundle::from_wire(domain.clone(), &trust_bundle).map_err(answer)?;
    if let Err(refusal) = verify_peer::<ClientName>(own.chain(), now, &name.server, &checked) {
        // The server decides; but a technician wants to know while he is still standing there.
        tracing::warn!(%refusal, "by this trust bundle, a server would refuse this device's certificate");
    }
    let identity = Identity {
        device_id: match device {
            Some(device) => device,
            None => DeviceId::parse(name.client.as_str()).map_err(answer)?,
        },
        client_id: name.client,
        url: origin.to_string(),
        device_url: origin.to_string(),
        registry: None,
        registry_authority: None,
        credential: Credential::Svid(SvidCredential {
            certificates,
            key,
            trust_bundle,
            bundle_tag,
            source: SvidSource::Installed(installed),
        }),
        git,
    };
    place.settle(&identity)?;
    Ok(identity)
}

fn absolute(path: &Path) -> Result<PathBuf, IdentityError> {
    std::path::absolute(path).map_err(IdentityError::file("found", path))
}

impl Installed {
    fn read_svid(&self) -> Result<(Svid, Vec<String>, String), IdentityError> {
        let (chain, key) = (read_bounded(&self.svid)?, read_bounded(&self.key)?);
        let unusable = |error| IdentityError::Unusable(self.svid.clone(), Box::new(error));
        let svid = Svid::from_pem(&chain, &key).map_err(unusable)?;
        let certificates = svid.certificates();
        Ok((svid, certificates, key))
    }

    fn read_bundle(&self, path: &Path) -> Result<JwkSet, IdentityError> {
        let text = read_bounded(path)?;
        serde_json::from_str(&text).map_err(|error| IdentityError::Unusable(path.to_owned(), Box::new(error)))
    }
}

/// How a file looked when it was last read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    modified: (i64, i64),
    size: u64,
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        // What is gone is not new; what is held stays in use.
        let metadata = std::fs::metadata(path).ok()?;
        Some(Stamp {
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            size: metadata.size(),
            inode: metadata.ino(),
        })
    }
}

/// Looks after the files of an installed identity.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    svid: Option<(Option<Stamp>, Option<Stamp>)>,
    bundle: Option<Option<Stamp>>,
}

/// What changed on disk and is in use now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reloaded {
    pub(crate) svid: bool,
    pub(crate) bundle: bool,
}

impl Watch {
    /// Takes over what was replaced since the last look. A pair that does not fit together (yet), or is worse than
    /// what is held, changes nothing and is told once.
    pub(crate) fn look(
        &mut self,
        identity: &mut Identity,
        data: &Path,
        svid: &LiveSvid,
        bundle: &LiveBundle,
        now: Moment,
    ) -> Reloaded {
        let mut reloaded = Reloaded::default();
        let Some(SvidCredential { source: SvidSource::Installed(installed), .. }) =
            identity.svid_credential()
        else {
            return reloaded;
        };
        let installed = installed.clone();
        let seen = (Stamp::of(&installed.svid), Stamp::of(&installed.key));
        let there = seen.0.is_some() && seen.1.is_some();
        if there && self.svid.as_ref() != Some(&seen) {
            self.svid = Some(seen);
            match reload_svid(identity, data, &installed, svid, now) {
                Ok(changed) => reloaded.svid = changed,
                Err(error) => {
                    let error = margrave_core::chain::sentence(&error);
                    tracing::warn!(error, "the replaced certificate is not used; the one in use stays");
                }
            }
        }
        if let Some(path) = &installed.bundle {
            let seen = Stamp::of(path);
            if seen.is_some() && self.bundle.as_ref() != Some(&seen) {
                self.bundle = Some(seen);
                let taken = installed
                    .read_bundle(path)
                    .and_then(|set| identity.take_bundle(data, bundle, set, None, false));
                match taken {
                    Ok(changed) => reloaded.bundle = changed,
                    Err(error) => {
                        let error = margrave_core::chain::sentence(&error);
                        tracing::warn!(
                            error,
                            "the replaced trust bundle is not used; the one in use stays (ID-189)"
                        );
                    }
                }
            }
        }
        reloaded
    }
}

fn reload_svid(
    identity: &mut Identity,
    data: &Path,
    installed: &Installed,
    live: &LiveSvid,
    now: Moment,
) -> Result<bool, IdentityError> {
    let (next, certificates, key) = installed.read_svid()?;
    let held = identity.svid_credential().ok_or(IdentityError::NotAClient)?;
    if held.certificates == certificates && held.key == key {
        return Ok(false);
    }
    let current = live.current();
    if next.name() != current.name() {
        return Err(IdentityError::OtherName {
            current: current.name().to_string(),
            new: next.name().to_string(),
        });
    }
    if next.is_expired(now) {
        return Err(IdentityError::Expired { path: installed.svid.clone(), at: timestamp(next.not_after()) });
    }
    let credential = SvidCredential { certificates, key, ..held.clone() };
    // On disk before in use: a power cut must not bring the older one back.
    identity.keep(data, credential)?;
    live.replace(next).map_err(answer)?;
    Ok(true)
}
