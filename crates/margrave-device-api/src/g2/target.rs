//! Which resource a path names. Pure, and the only place that knows the paths of this generation.

use http::Method;
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeviceId};
use percent_encoding::percent_decode_str;

/// A resource of the endpoint sheet. A part that cannot be an identifier is `None`: the resource exists as
/// a kind, this one of it cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Manifest,
    Document(Option<(AssignmentId, Digest)>),
    Bundle(Option<Digest>),
    Status(Option<AssignmentId>),
    /// Ids with slashes, raw or as `%2F`; decoded once (AMB-23).
    Capabilities(Option<DeviceId>),
}

impl Target {
    /// Reads the raw path of the request line. `None` is a path we do not have.
    pub(crate) fn of(path: &str) -> Option<Target> {
        Target::within(path.strip_prefix("/api/v1/")?)
    }

    /// Reads what follows the part of a path that all resources of a client have in common.
    pub(crate) fn within(rest: &str) -> Option<Target> {
        if let Some(device) = rest.strip_prefix("capabilities/").filter(|device| !device.is_empty()) {
            return Some(Target::Capabilities(
                decoded(device).and_then(|device| DeviceId::parse(&device).ok()),
            ));
        }
        let segments: Vec<&str> = rest.split('/').collect();
        match segments[..] {
            ["deployments"] => Some(Target::Manifest),
            // `status` can never be a digest, so the two do not clash (AMB-24).
            ["deployments", id, "status"] if !id.is_empty() => Some(Target::Status(assignment(id))),
            ["deployments", id, digest] if !id.is_empty() && !digest.is_empty() => {
                Some(Target::Document(assignment(id).zip(digest_of(digest))))
            }
            ["bundles", digest] if !digest.is_empty() => Some(Target::Bundle(digest_of(digest))),
            _ => None,
        }
    }

    /// What can be done with it, for `Allow`.
    pub(crate) fn methods(&self) -> &'static str {
        match self {
            Target::Manifest | Target::Document(_) | Target::Bundle(_) => "GET, HEAD",
            Target::Status(_) => "POST",
            Target::Capabilities(_) => "PUT, DELETE",
        }
    }

    pub(crate) fn allows(&self, method: &Method) -> bool {
        self.methods().split(", ").any(|allowed| allowed == method.as_str())
    }
}

pub(crate) fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned())
}

pub(crate) fn assignment(text: &str) -> Option<AssignmentId> {
    decoded(text).and_then(|text| AssignmentId::parse(&text).ok())
}

fn digest_of(text: &str) -> Option<Digest> {
    decoded(text).and_then(|text| Digest::parse(&text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11";

    #[test]
    fn amb_23_device_ids_come_with_raw_or_encoded_slashes_and_are_decoded_once() {
        let check = |path: &str| match Target::of(path) {
            Some(Target::Capabilities(device)) => device.map(|device| device.to_string()),
            other => panic!("{other:?}"),
        };
        assert_eq!(check("/api/v1/capabilities/gw").as_deref(), Some("gw"));
        for path in ["gw/path1/dev~A", "gw%2Fpath1%2fdev~A", "gw/path1%2Fdev%7EA"] {
            let got = check(&format!("/api/v1/capabilities/{path}"));
            assert_eq!(got.as_deref(), Some("gw/path1/dev~A"), "{path}");
        }
        for path in ["gw%252Fa", "gw/", "gw//a", "gw/*", "gw/..", "gw/%2e%2e", "%FF", "gw%00", "/gw"] {
            assert_eq!(check(&format!("/api/v1/capabilities/{path}")), None, "{path}");
        }
    }

    #[test]
    fn amb_24_digests_come_with_a_raw_or_encoded_colon() {
        let digest = Digest::of(b"x");
        let encoded = digest.to_string().replace(':', "%3A");
        let wanted = Target::Bundle(Some(digest));
        assert_eq!(Target::of(&format!("/api/v1/bundles/{digest}")), Some(wanted.clone()));
        assert_eq!(Target::of(&format!("/api/v1/bundles/{encoded}")), Some(wanted));
        let id = AssignmentId::parse(ID).unwrap();
        let document = Some(Target::Document(Some((id, digest))));
        assert_eq!(Target::of(&format!("/api/v1/deployments/{ID}/{encoded}")), document);
        assert_eq!(Target::of(&format!("/api/v1/deployments/{ID}/status")), Some(Target::Status(Some(id))));
        assert_eq!(Target::of(&format!("/api/v1/deployments/{ID}/sha256:00")), Some(Target::Document(None)));
        assert_eq!(Target::of(&format!("/api/v1/deployments/x/{digest}")), Some(Target::Document(None)));
        assert_eq!(Target::of("/api/v1/bundles/md5:00"), Some(Target::Bundle(None)));
    }

    #[test]
    fn other_paths_are_not_ours() {
        for path in [
            "/",
            "/api/v1",
            "/api/v1/",
            "/api/v1/deployments/",
            "/api/v1/deployments/x",
            "/api/v1/deployments//status",
            "/api/v1/deployments/a/b/c",
            "/api/v1/bundles",
            "/api/v1/bundles/",
            "/api/v1/capabilities",
            "/api/v1/capabilities/",
            "/API/v1/deployments",
            "/api/v1/clients/7/deployments",
            "/api/v2/deployments",
        ] {
            assert_eq!(Target::of(path), None, "{path}");
        }
    }
}
