//! Every example of the specification is sorted right (data-model.md, section 13).

use std::collections::BTreeSet;
use std::path::Path;

use margrave_core::violation::Violation;
use margrave_wire::problem::{Problem, ProblemType};
use margrave_wire::{BodyError, description, g2, yaml};

/// Every file that is not valid in the current shape, with a rule that it breaks: the one it was written
/// for where that still is a defect, else one that its older shape breaks.
const REFUSED: &[(&str, &str)] = &[
    // Valid once, in shapes that are gone.
    ("valid/src-pre-rc3/ApplicationDescription-001.yaml", "DM-001"),
    ("valid/src-pre-rc3/ApplicationDescription-002.yaml", "DM-001"),
    ("valid/src-pre-rc3/DesiredState-001.yaml", "DM-034"),
    ("valid/src-pre-rc3/DesiredState-002.yaml", "DM-030"),
    ("valid/data-model/ApplicationDeployment-001.yaml", "DM-073"),
    ("valid/data-model/ApplicationDeployment-compose.yaml", "DM-030"),
    ("valid/data-model/ApplicationDeployment-helm.yaml", "DM-073"),
    ("valid/data-model/ApplicationDescription-compose_only.yaml", "DM-030"),
    ("valid/data-model/ApplicationDescription-helm_and_compose.yaml", "DM-030"),
    ("valid/data-model/ApplicationDescription-helm_only.yaml", "DM-001"),
    ("valid/data-model/DesiredStateManifest-001.json", "AMB-25"),
    ("valid/data-model/DeviceCapabilitiesManifest-002.json", "DM-113"),
    ("valid/data-models/DeviceCapabilitiesManifest-001.json", "DM-113"),
    ("valid/model/ApplicationDescription-helm_only.yaml", "DM-001"),
    ("valid/model/DeploymentStatusManifest-001.json", "DM-092"),
    ("valid/model/DeviceCapabilitiesManifest-001.json", "DM-113"),
    ("valid/spec/ApplicationDeployment-001-compose.yaml", "DM-030"),
    ("valid/spec/ApplicationDescription-001-compose_only.yaml", "DM-030"),
    ("valid/spec/ApplicationDescription-002-helm_and_compose.yaml", "DM-001"),
    ("valid/spec/ApplicationDescription-003-helm_only.yaml", "DM-001"),
    ("valid/spec/DeviceCapabilitiesManifest-001-standalone_cluster.json", "DM-113"),
    // Invalid, by the table of section 13.2.
    ("invalid/rc3/ApplicationDescription-001.yaml", "DM-003"),
    ("invalid/rc3/DesiredState-004.yaml", "DM-070"),
    ("invalid/src-pre-rc3/ApplicationDescription-001.yaml", "DM-001"),
    ("invalid/src-pre-rc3/ApplicationDescription-002.yaml", "DM-003"),
    ("invalid/src-pre-rc3/DesiredState-001.yaml", "DM-073"),
    ("invalid/src-pre-rc3/DesiredState-002.yaml", "DM-071"),
    ("invalid/src-pre-rc3/DesiredState-003.yaml", "DM-071"),
    ("invalid/src-pre-rc3/DesiredState-004.yaml", "DM-070"),
    ("invalid/data-model/ApplicationDeployment-001.yaml", "DM-073"),
    ("invalid/data-model/ApplicationDeployment-002.yaml", "DM-071"),
    ("invalid/data-model/ApplicationDeployment-003.yaml", "DM-071"),
    ("invalid/data-model/ApplicationDeployment-004.yaml", "DM-070"),
    ("invalid/data-model/ApplicationDescription-001.yaml", "DM-001"),
    ("invalid/data-model/ApplicationDescription-002.yaml", "DM-003"),
    ("invalid/data-model/ApplicationDescription-003.yaml", "DM-020"),
    ("invalid/data-model/DeviceCapabilitiesManifest-002.json", "DM-113"),
    ("invalid/data-model/DeviceCapabilitiesManifest-004.json", "DM-113"),
    ("invalid/data-models/ApplicationDeployment-002.yaml", "DM-071"),
    ("invalid/data-models/DeviceCapabilitiesManifest-001.json", "DM-113"),
    ("invalid/data-models/DeviceCapabilitiesManifest-003.json", "MI-G2-128"),
    ("invalid/model/ApplicationDeployment-003.yaml", "DM-071"),
    ("invalid/model/ApplicationDescription-001.yaml", "DM-001"),
    ("invalid/model/DeploymentStatusManifest-001.json", "DM-092"),
    ("invalid/model/DeploymentStatusManifest-002.json", "DM-091"),
    ("invalid/model/DeploymentStatusManifest-003.json", "MI-G2-101"),
    ("invalid/model/DesiredStateManifest-001.json", "MI-G2-047"),
    ("invalid/model/DesiredStateManifest-002.json", "MI-G2-049"),
    ("invalid/model/DesiredStateManifest-003.json", "DM-081"),
    ("invalid/model/DesiredStateManifest-004.json", "DM-082"),
    ("invalid/model/DeviceCapabilitiesManifest-001.json", "DM-113"),
    ("invalid/model/DeviceCapabilitiesManifest-002.json", "MI-G2-125"),
    ("invalid/model/DeviceCapabilitiesManifest-003.json", "MI-G2-128"),
    ("invalid/model/ProblemDetail-001.yaml", "DM-210"),
    ("invalid/spec/ApplicationDeployment-003-invalid_appid2.yaml", "DM-071"),
    ("invalid/spec/ApplicationDescription-001.yaml", "DM-001"),
    ("invalid/spec/DesiredStateManifest-001-invalid_manifest_version.json", "MI-G2-047"),
    ("invalid/spec/DesiredStateManifest-002-invalid_media_type.json", "MI-G2-049"),
    ("invalid/spec/DesiredStateManifest-003-invalid_digest.json", "DM-081"),
    ("invalid/spec/DesiredStateManifest-004-missing_digest.json", "DM-082"),
    ("invalid/spec/DeviceCapabilitiesManifest-001.json", "DM-113"),
];

/// Reads a file as what its name says it is.
fn sort(path: &str, bytes: &[u8]) -> Result<(), Vec<Violation>> {
    let body = |error: BodyError| match error {
        BodyError::Malformed(reason) => vec![Violation::new("", "JSON", reason)],
        BodyError::Invalid(violations) => violations,
    };
    let name = Path::new(path).file_name().unwrap().to_str().unwrap();
    if name.starts_with("ApplicationDescription") {
        description::read(bytes).map(drop)
    } else if name.starts_with("DeviceCapabilities") {
        g2::capabilities::read(bytes).map(drop).map_err(body)
    } else if name.starts_with("DeploymentStatusManifest") {
        g2::status::read(bytes).map(drop).map_err(body)
    } else if name.starts_with("DesiredStateManifest") {
        g2::manifest::read(bytes).map(drop).map_err(body)
    } else if name.starts_with("ProblemDetail") {
        let value = yaml::read(bytes).unwrap().to_value();
        let problem = serde_json::from_value::<Problem>(value);
        problem.map(drop).map_err(|error| vec![Violation::new("", "DM-210", error.to_string())])
    } else {
        // ApplicationDeployment-*, DesiredState-*, gateway-*
        g2::document::read(bytes).map(drop)
    }
}

fn files(root: &Path, under: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(under).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(root, &path, found);
        } else {
            found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn dm_160_every_example_is_accepted_or_refused_for_the_right_rule() {
    let Some(spec) = crate::spec() else { return };
    let root = spec.join("examples");
    let mut found = Vec::new();
    files(&root, &root, &mut found);
    found.sort();
    let mut wrong = Vec::new();
    let mut unseen: BTreeSet<&str> = REFUSED.iter().map(|(path, _)| *path).collect();
    for path in &found {
        let bytes = std::fs::read(root.join(path)).unwrap();
        let refused = REFUSED.iter().find(|(refused, _)| refused == path);
        unseen.remove(path.as_str());
        match (sort(path, &bytes), refused) {
            (Ok(()), None) => {}
            (Err(broken), Some((_, rule))) if broken.iter().any(|violation| violation.rule == *rule) => {
                assert!(broken.iter().all(|violation| !violation.message.is_empty()));
            }
            (Err(broken), expected) => wrong.push(format!("{path}: wanted {expected:?}, got {broken:#?}")),
            (Ok(()), Some((_, rule))) => wrong.push(format!("{path}: accepted, but it breaks {rule}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(unseen.is_empty(), "no longer among the examples: {unseen:?}");
    let accepted = found.len() - REFUSED.len();
    assert_eq!(accepted, 13, "the current shape has twelve valid examples, and one problem");
}

/// The registry of problem types is a table of the identity digest; ours has the same rows.
#[test]
fn id_202_the_registered_problem_types_are_ours() {
    let Some(spec) = crate::spec() else { return };
    let text = std::fs::read_to_string(spec.join("identity.md")).unwrap();
    let table = text.split("**ID-202**").nth(1).unwrap().split("**ID-203**").next().unwrap();
    let mut rows = 0;
    for line in table.lines().filter(|line| line.starts_with("| `") && !line.starts_with("| `<")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (name, status, title) = (cells[1].trim_matches('`'), cells[2].parse::<u16>().unwrap(), cells[3]);
        let uri = format!("https://docs.margo.org/specification/problem-types#{name}");
        let kind = ProblemType::of(&uri).unwrap_or_else(|| panic!("{name} is not known"));
        assert_eq!((kind.uri(), kind.status(), kind.title()), (uri, status, title));
        rows += 1;
    }
    assert_eq!(rows, ProblemType::ALL.len());
}

#[test]
fn dm_001_an_older_shape_is_told_how_to_port() {
    let Some(bytes) = crate::example("valid/src-pre-rc3/ApplicationDescription-002.yaml") else { return };
    let broken = description::read(&bytes).unwrap_err();
    let message = &broken.iter().find(|violation| violation.place == "/apiVersion").unwrap().message;
    for word in ["older shape", "remove kind", "repository and revision"] {
        assert!(message.contains(word), "{message}");
    }
}
