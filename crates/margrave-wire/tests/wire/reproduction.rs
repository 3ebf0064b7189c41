//! The steps of data-model.md section 8 make the standard's own deployments from its own description.

use std::collections::BTreeMap;

use margrave_core::id::{AssignmentId, DeviceId, ParameterName};
use margrave_core::package::{Package, Profile};
use margrave_core::parameters::{Answers, ParameterValue, questions, resolve};
use margrave_core::workload::{Hints, Placement, Workload};
use margrave_wire::g2::document;
use margrave_wire::{description, yaml};

/// The answers of the examples, typed by a person into a form.
const ANSWERS: &[(&str, &str)] = &[
    ("adminName", "Some One"),
    ("adminPrincipalName", "someone@somewhere.com"),
    ("cpuLimit", "4"),
    ("idpClientId", "123-ABC"),
    ("idpName", "Azure AD"),
    ("idpProvider", "aad"),
    ("idpUrl", "https://123-abc.com"),
    ("pollFrequency", "120"),
    ("siteId", "SID-123-ABC"),
];

fn answers(package: &Package, profile: &Profile) -> Answers {
    let questions = questions(package, profile);
    let mut answers = BTreeMap::new();
    for (name, text) in ANSWERS {
        let Some(question) = questions.iter().find(|question| question.setting.parameter.as_str() == *name)
        else {
            continue;
        };
        let value = ParameterValue::from_text(question.schema, text).unwrap();
        answers.insert(ParameterName::parse(name).unwrap(), value.into());
    }
    answers
}

fn check(profile: usize, id: &str, placement: Placement, expected: &str) {
    let Some(bytes) = crate::example("valid/rc3/ApplicationDescription-002.yaml") else { return };
    let package = description::read(&bytes).unwrap();
    let profile = &package.profiles[profile];
    let answers = answers(&package, profile);
    let workload = Workload {
        id: AssignmentId::parse(id).unwrap(),
        name: "com-northstartida-digitron-orchestrator-deployment".into(),
        namespace: "margo-poc".into(),
        placement,
        application: package.id.clone(),
        kind: profile.kind,
        components: profile.components.clone(),
        constraints: profile.constraints.clone(),
        parameters: resolve(&package, profile, &answers, None, &Default::default()).unwrap(),
        extensions: profile.extensions.clone(),
        hints: Hints::default(),
    };
    let written = yaml::read(&document::write(&workload)).unwrap().to_value();
    let wanted = yaml::read(&crate::example(expected).unwrap()).unwrap().to_value();
    assert_eq!(written, wanted);
}

fn device(id: &str) -> DeviceId {
    DeviceId::parse(id).unwrap()
}

#[test]
fn dm_160_dm_172_the_helm_example_is_reproduced() {
    let id = "a3e2f5dc-912e-494f-8395-52cf3769bc06";
    check(0, id, Placement::Device(device("edge-01")), "valid/rc3/DesiredState-001.yaml");
}

#[test]
fn dm_160_dm_172_the_compose_examples_for_a_gateway_are_reproduced() {
    let id = "ad9b614e-8912-45f4-a523-372358765def";
    check(1, id, Placement::Device(device("gateway-01/edge-01")), "valid/rc3/gateway-directed.yaml");
    check(1, id, Placement::AnyChildOf(device("gateway-01")), "valid/rc3/gateway-autonomous.yaml");
}
