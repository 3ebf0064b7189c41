//! Deployment status: [`Report`] ↔ JSON. The generation has no `adoptedManifestVersion`; our own agent says
//! it in the extension, for the others the caller knows what they were last given.

use margrave_core::id::DeviceId;
use margrave_core::report::Report;
use serde_json::json;

use crate::body::{BodyError, read_json};
use crate::g1::check_kind;
use crate::g2::{EXTENSION, status};
use crate::tree::{At, Findings};

const API_VERSION: &str = "deployment.margo.org/v1alpha1";
const KIND: &str = "DeploymentStatusManifest";
const ADOPTED: &str = "adoptedManifestVersion";

/// The body of a status report (MI-G1-151).
pub fn write(report: &Report) -> Vec<u8> {
    let id = report.assignment.to_string();
    let mut body =
        status::common(report, json!({ "apiVersion": API_VERSION, "kind": KIND, "deploymentId": id }));
    if !body[EXTENSION].is_object() {
        body[EXTENSION] = json!({});
    }
    body[EXTENSION][ADOPTED] = report.adopted_version.into();
    body.to_string().into_bytes()
}

/// What a device reports. `last_given` is the manifest version it is taken to speak of.
pub fn read(bytes: &[u8], last_given: u64) -> Result<Report, BodyError> {
    let node = read_json(bytes)?;
    let root = At::root(&node);
    let mut findings = Findings::default();
    check_kind(&root, KIND, "MI-G1-151", &mut findings);
    // Before a gateway has chosen, some send the wildcard back (AMB-38).
    let device = root.field("deviceId").and_then(|at| {
        findings.parsed(&at, "MI-G1-152", |text| DeviceId::parse(text.strip_suffix("/*").unwrap_or(text)))
    });
    // An extension is never a reason to refuse: what makes no sense there was not said.
    let said = root.field(EXTENSION).and_then(|at| at.field(ADOPTED)?.unsigned()).filter(|said| *said > 0);
    let report = status::read_common(&root, device, Some(said.unwrap_or(last_given.max(1))), &mut findings);
    match report {
        Some(report) if findings.is_empty() => Ok(report),
        _ => Err(BodyError::Invalid(findings.into_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amb_17_a_version_means_the_same_in_both_generations() {
        let id = "0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11";
        let rest = format!(r#""deploymentId":"{id}","status":{{"state":"installed"}},"components":[]"#);
        for text in ["7", "7.0", "7e0", "18446744073709551615", "7.5", "-7.0", "1e300", "0", "\"7\"", "null"]
        {
            let older = format!(r#"{{"{EXTENSION}":{{"{ADOPTED}":{text}}},{rest}}}"#);
            let newer = format!(r#"{{"{ADOPTED}":{text},{rest}}}"#);
            let older = read(older.as_bytes(), 3).unwrap().adopted_version;
            // What the newer one refuses, the older one takes for not said.
            let newer = status::read(newer.as_bytes()).map_or(3, |report| report.adopted_version);
            assert_eq!(older, newer, "{text}");
        }
    }
}
