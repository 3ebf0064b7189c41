//! The identity as it is on disk. Everything that belongs together is in one file, replaced as a whole: a power
//! cut leaves the old identity or the new one, never a certificate without its key.

use margrave_core::id::{ClientId, DeviceId};
use margrave_wire::identity::JwkSet;
use serde::{Deserialize, Serialize};

use super::installed::Installed;
use super::signed::SignedCredential;
use super::{Credential, Form, GitSource, Identity, SvidCredential, SvidSource, WebTrust};

/// Files of agents before the forms were told apart have no `form`: they are g2, issued by a server of ours.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IdentityFile {
    #[serde(default)]
    form: Form,
    client_id: ClientId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device_id: Option<DeviceId>,
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pin: Option<String>,
    device_url: String,
    registry: Option<String>,
    /// Agents before this had it only beside the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    registry_authority: Option<String>,
    certificates: Vec<String>,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trust_bundle: Option<JwkSet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bundle_tag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    installed: Option<Installed>,
    /// How a server of the signed generation is recognised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    web_trust: Option<WebTrust>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    git: Option<GitSource>,
}

/// The file was written by somebody else, or by a newer agent.
#[derive(Debug, thiserror::Error)]
#[error("it lacks {0}, which an identity of its form has")]
pub(super) struct Incomplete(&'static str);

impl From<&Identity> for IdentityFile {
    fn from(identity: &Identity) -> Self {
        let Identity { client_id, device_id, url, device_url, registry, registry_authority, credential, git } =
            identity.clone();
        let named = device_id.as_str() != client_id.as_str();
        let mut file = IdentityFile {
            form: identity.form(),
            device_id: named.then_some(device_id),
            client_id,
            url,
            pin: None,
            device_url,
            registry,
            registry_authority,
            certificates: vec![],
            key: String::new(),
            trust_bundle: None,
            bundle_tag: None,
            installed: None,
            web_trust: None,
            git,
        };
        match credential {
            Credential::Svid(SvidCredential { certificates, key, trust_bundle, bundle_tag, source }) => {
                (file.certificates, file.key) = (certificates, key);
                (file.trust_bundle, file.bundle_tag) = (Some(trust_bundle), bundle_tag);
                match source {
                    SvidSource::Issued { pin } => file.pin = Some(pin),
                    SvidSource::Installed(installed) => file.installed = Some(installed),
                }
            }
            Credential::Signed(SignedCredential { certificate, key, trust }) => {
                (file.certificates, file.key) = (vec![certificate], key);
                file.web_trust = Some(trust);
            }
        }
        file
    }
}

impl TryFrom<IdentityFile> for Identity {
    type Error = Incomplete;

    fn try_from(file: IdentityFile) -> Result<Self, Incomplete> {
        let credential = match file.form {
            Form::G2 | Form::Git => Credential::Svid(SvidCredential {
                certificates: file.certificates,
                key: file.key,
                trust_bundle: file.trust_bundle.ok_or(Incomplete("trustBundle"))?,
                bundle_tag: file.bundle_tag,
                source: match (file.installed, file.pin) {
                    (Some(installed), _) => SvidSource::Installed(installed),
                    (None, Some(pin)) => SvidSource::Issued { pin },
                    (None, None) => return Err(Incomplete("pin")),
                },
            }),
            Form::G1 => Credential::Signed(SignedCredential {
                certificate: file.certificates.concat(),
                key: file.key,
                trust: file.web_trust.ok_or(Incomplete("webTrust"))?,
            }),
        };
        if file.form == Form::Git && file.git.is_none() {
            return Err(Incomplete("git"));
        }
        let device_id = match file.device_id {
            Some(device_id) => device_id,
            None => DeviceId::parse(file.client_id.as_str()).map_err(|_| Incomplete("deviceId"))?,
        };
        Ok(Identity {
            client_id: file.client_id,
            device_id,
            url: file.url,
            device_url: file.device_url,
            registry: file.registry,
            registry_authority: file.registry_authority,
            credential,
            git: file.git.filter(|_| file.form == Form::Git),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &serde_json::Value) -> Result<Identity, Incomplete> {
        let file: IdentityFile = serde_json::from_value(value.clone()).unwrap();
        Identity::try_from(file)
    }

    fn old() -> serde_json::Value {
        json!({
            "clientId": "line-1", "url": "https://plant.example:8443", "pin": "p", "registry": null,
            "deviceUrl": "https://plant.example:8444", "certificates": ["c"], "key": "k",
            "trustBundle": { "keys": [] },
        })
    }

    #[test]
    fn a_file_of_an_older_agent_is_g2_and_issued() {
        let identity = read(&old()).unwrap();
        assert_eq!((identity.form(), identity.is_issued()), (Form::G2, true));
        assert_eq!(identity.device_id.as_str(), "line-1");
        // Written again, it says so.
        assert_eq!(serde_json::to_value(IdentityFile::from(&identity)).unwrap()["form"], "g2");
    }

    #[test]
    fn every_form_survives_its_own_file() {
        let with = |changes: serde_json::Value| {
            let mut file = old();
            for (key, value) in changes.as_object().unwrap() {
                file[key] = value.clone();
            }
            file
        };
        let installed =
            json!({ "svid": "/a", "key": "/b", "service": { "bundle": "https://m/b", "trust": "system" } });
        for (form, file) in [
            (Form::G2, with(json!({ "form": "g2", "deviceId": "press-4", "bundleTag": "\"7\"" }))),
            (Form::G2, with(json!({ "form": "g2", "pin": null, "installed": installed }))),
            (Form::Git, with(json!({ "form": "git", "git": "server" }))),
            (
                Form::Git,
                with(
                    json!({ "form": "git", "git": { "given": { "url": "https://g/x", "username": "u", "token": "t" } } }),
                ),
            ),
            (
                Form::G1,
                with(
                    json!({ "form": "g1", "pin": null, "trustBundle": null, "webTrust": { "pins": ["p"] } }),
                ),
            ),
        ] {
            let identity = read(&file).unwrap();
            assert_eq!(identity.form(), form, "{file}");
            let written = serde_json::to_value(IdentityFile::from(&identity)).unwrap();
            let again = serde_json::to_value(IdentityFile::from(&read(&written).unwrap())).unwrap();
            assert_eq!(written, again);
            assert_eq!(written["deviceId"], file["deviceId"]);
            assert_eq!(written["git"], file["git"]);
        }
    }

    #[test]
    fn the_authority_of_the_registry_is_part_of_the_identity_and_laid_beside_it_anew() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path();
        let beside = super::super::registry_authority_in(data);
        let mut file = old();
        // As an earlier agent left it: only beside.
        std::fs::write(&beside, "old").unwrap();
        let identity = read(&file).unwrap();
        identity.show_authority(data).unwrap();
        assert_eq!(identity.authority_of_registry(data).unwrap().as_deref(), Some("old"));
        // In the identity: what is beside follows, also when power failed before it was written.
        file["registryAuthority"] = "new".into();
        let identity = read(&file).unwrap();
        for _ in 0..2 {
            identity.show_authority(data).unwrap();
            assert_eq!(std::fs::read_to_string(&beside).unwrap(), "new");
            std::fs::remove_file(&beside).unwrap();
            assert_eq!(identity.authority_of_registry(data).unwrap().as_deref(), Some("new"));
        }
        assert_eq!(serde_json::to_value(IdentityFile::from(&identity)).unwrap()["registryAuthority"], "new");
    }

    #[test]
    fn a_file_that_lacks_what_its_form_needs_is_refused() {
        for (form, without) in [("g2", "trustBundle"), ("g2", "pin"), ("g1", "webTrust"), ("git", "git")] {
            let mut file = old();
            file["form"] = form.into();
            file.as_object_mut().unwrap().remove(without);
            assert!(read(&file).is_err(), "{form} without {without}");
        }
    }
}
