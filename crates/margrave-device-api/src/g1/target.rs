//! Which resource a path names. Pure, and the only place that knows the paths of this generation.

use http::Method;
use margrave_core::id::ClientId;
use margrave_wire::g1::{ONBOARDING_PATH, REGISTRY_TOKEN, ROOT_CERTIFICATE_PATH};

use crate::g2::target::{self, assignment, decoded};

/// A resource of the endpoint sheet, in any of the snapshots (1.15).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    RootCertificate,
    Onboarding,
    /// What belongs to a client. An id that cannot be one is `None`: there is no such client.
    OfClient(Option<ClientId>, Resource),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resource {
    Common(target::Target),
    /// Without a device id in the path, as the first snapshots had it: the body names the device.
    CapabilitiesOfBody,
    /// Beyond the standard: a login for our own registry.
    RegistryToken,
}

const CLIENTS: &str = "/api/v1/clients/";

impl Target {
    /// Reads the raw path of the request line. `None` is a path that we do not have.
    pub(super) fn of(path: &str) -> Option<Target> {
        match path {
            ONBOARDING_PATH => return Some(Target::Onboarding),
            ROOT_CERTIFICATE_PATH => return Some(Target::RootCertificate),
            _ => {}
        }
        let (client, rest) = path.strip_prefix(CLIENTS)?.split_once('/')?;
        let resource = match rest.split('/').collect::<Vec<_>>()[..] {
            ["capabilities"] => Resource::CapabilitiesOfBody,
            [REGISTRY_TOKEN] => Resource::RegistryToken,
            // The oldest snapshot has the singular.
            ["deployment", id, "status"] if !id.is_empty() => {
                Resource::Common(target::Target::Status(assignment(id)))
            }
            _ => Resource::Common(target::Target::within(rest)?),
        };
        let client = (!client.is_empty()).then_some(client)?;
        let client = decoded(client).and_then(|client| ClientId::parse(&client).ok());
        Some(Target::OfClient(client, resource))
    }

    /// What can be done with it, for `Allow`.
    pub(super) fn methods(&self) -> &'static str {
        match self {
            Target::RootCertificate => "GET, HEAD",
            Target::Onboarding | Target::OfClient(_, Resource::RegistryToken) => "POST",
            Target::OfClient(_, Resource::CapabilitiesOfBody) => "POST, PUT",
            Target::OfClient(_, Resource::Common(target::Target::Capabilities(_))) => "POST, PUT, DELETE",
            Target::OfClient(_, Resource::Common(common)) => common.methods(),
        }
    }

    pub(super) fn allows(&self, method: &Method) -> bool {
        self.methods().split(", ").any(|allowed| allowed == method.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_core::digest::Digest;

    const ID: &str = "0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11";

    #[test]
    fn every_snapshots_paths_are_known() {
        let check = |path: &str| match Target::of(path) {
            Some(Target::OfClient(client, resource)) => (client.map(|c| c.to_string()), Some(resource)),
            _ => (None, None),
        };
        let common = |target| Some(Resource::Common(target));
        let client = || Some("c-17".to_owned());
        let digest = Digest::of(b"x");
        let id = ID.parse().unwrap();
        for (path, wanted) in [
            ("deployments".to_owned(), common(target::Target::Manifest)),
            (format!("deployments/{ID}/{digest}"), common(target::Target::Document(Some((id, digest))))),
            (format!("bundles/{digest}"), common(target::Target::Bundle(Some(digest)))),
            (format!("deployments/{ID}/status"), common(target::Target::Status(Some(id)))),
            (format!("deployment/{ID}/status"), common(target::Target::Status(Some(id)))),
            ("capabilities/gw/a".to_owned(), common(target::Target::Capabilities("gw/a".parse().ok()))),
            ("capabilities".to_owned(), Some(Resource::CapabilitiesOfBody)),
            ("x-margrave-registry-token".to_owned(), Some(Resource::RegistryToken)),
        ] {
            assert_eq!(check(&format!("/api/v1/clients/c-17/{path}")), (client(), wanted.clone()), "{path}");
            assert_eq!(check(&format!("/api/v1/clients/c%2D17/{path}")), (client(), wanted), "{path}");
        }
        assert_eq!(check("/api/v1/clients/a:b/deployments").0, None);
        assert_eq!(Target::of("/api/v1/onboarding"), Some(Target::Onboarding));
        assert_eq!(Target::of("/api/v1/onboarding/certificate"), Some(Target::RootCertificate));
    }

    #[test]
    fn other_paths_are_not_ours() {
        for path in [
            "/",
            "/api/v1/deployments",
            "/api/v1/bundles/x",
            "/api/v1/capabilities/gw",
            "/api/v1/clients",
            "/api/v1/clients/",
            "/api/v1/clients/c-17",
            "/api/v1/clients/c-17/",
            "/api/v1/clients//deployments",
            "/api/v1/clients/c-17/deployment",
            "/api/v1/clients/c-17/capabilities/",
            "/api/v1/onboarding/",
            "/api/v1/onboarding/x",
        ] {
            assert_eq!(Target::of(path), None, "{path}");
        }
    }
}
