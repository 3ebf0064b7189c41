//! Something to look at: a package with questions, devices of different sizes.

use std::fs;

use bytes::Bytes;
use margrave_core::id::{AssignmentId, ClientId};
use margrave_core::lifecycle::Reported;
use margrave_core::report::Report;
use margrave_oci::compose::ComposeArchive;
use margrave_oci::manifest::{EMPTY_CONFIG, IMAGE_MANIFEST, ImageManifest};
use margrave_oci::package::{PackageFiles, Resource, ResourceKind};
use margrave_oci::reference::{RepositoryName, Tag, TagOrDigest};
use margrave_wire::g2;
use margrave_wire::operator::AddPackage;

use crate::plant::{Plant, operator};

/// What a hostile vendor or operator might call things.
pub(crate) const HOSTILE: &str = "<script>alert('x')</script>\"&";

/// An image of the package; nobody has pushed it.
pub(crate) const OWN_IMAGE: &str = "${MARGRAVE_REGISTRY}/plant/gate:1";

/// Asks one question of every kind; its catalog texts carry markup.
const DESCRIPTION: &str = r#"
apiVersion: v1
id: gate
metadata:
  name: "Gate <script>alert('x')</script>"
  description: "<img src=x onerror=alert(1)> counts"
  version: "1.0.0"
  catalog:
    application:
      icon: ./resources/icon.svg
      tagline: "</main><b>tag</b>"
    organization:
      - name: "Vendor & <i>Sons</i>"
deploymentProfiles:
  - type: compose
    id: gate-compose
    components:
      - name: gate
        properties:
          repository: oci://margrave/components/gate
          revision: 1.0.0
    deviceConstraints:
      capacityRequirements:
        cpu:
          cores: 2
          architectures: ["amd64"]
        memory: 1Gi
parameters:
  owner:
    targets: [{pointer: OWNER, components: ["gate"]}]
  site:
    value: NORD
    targets: [{pointer: SITE, components: ["gate"]}]
  rate:
    value: 5
    targets: [{pointer: RATE, components: ["gate"]}]
  shift:
    value: early
    targets: [{pointer: SHIFT, components: ["gate"]}]
  alarm:
    value: true
    targets: [{pointer: ALARM, components: ["gate"]}]
configuration:
  sections:
    - name: Everything
      settings:
        - {parameter: owner, name: Owner, description: No value of its own, schema: owner}
        - {parameter: site, name: "Site <u>code</u>", description: "Capitals", schema: site}
        - {parameter: rate, name: Rate, schema: rate}
        - {parameter: shift, name: Shift, schema: shift}
        - {parameter: alarm, name: Alarm, schema: flag}
  schema:
    - {name: owner, dataType: string, allowEmpty: false}
    - {name: site, dataType: string, minLength: 2, maxLength: 8, regexMatch: "^[A-Z]+$", allowEmpty: false}
    - {name: rate, dataType: integer, minValue: 1, maxValue: 60}
    - {name: shift, dataType: string, multiselect: false, options: [early, late]}
    - {name: flag, dataType: boolean}
"#;

const ICON: &[u8] =
    b"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1 1\"><script>alert(1)</script></svg>";

/// The package `gate` at 1.0.0, in the catalog.
pub(crate) async fn gate(plant: &Plant) {
    let component = tempfile::tempdir().unwrap();
    let hostile = HOSTILE.replace('\'', "''");
    let services = format!(
        "  gate: {{image: 'gate:1'}}\n  bad: {{image: '{hostile}'}}\n  own: {{image: '{OWN_IMAGE}'}}\n"
    );
    fs::write(component.path().join("compose.yaml"), format!("services:\n{services}")).unwrap();
    let archive = ComposeArchive::build(component.path(), "gate").unwrap();
    let manifest = archive.manifest("gate", "1.0.0");
    push(plant, "components/gate", "1.0.0", &manifest, vec![archive.bytes().clone()]).await;
    gate_at(plant, "1.0.0").await;
}

/// Another version of it, with the same component.
pub(crate) async fn gate_at(plant: &Plant, version: &str) {
    gate_asking(plant, version, |description| description).await;
}

/// One that asks something else.
pub(crate) async fn gate_asking(plant: &Plant, version: &str, change: impl FnOnce(String) -> String) {
    let icon = Resource {
        kind: Some(ResourceKind::Icon),
        title: "resources/icon.svg".to_owned(),
        media_type: "image/svg+xml".to_owned(),
        bytes: Bytes::from_static(ICON),
    };
    let description = DESCRIPTION.replace("version: \"1.0.0\"", &format!("version: \"{version}\""));
    let files = PackageFiles::new(Bytes::from(change(description)), vec![icon]).unwrap();
    let blobs = vec![files.description().clone(), Bytes::from_static(ICON)];
    push(plant, "packages/gate", version, &files.manifest(), blobs).await;
    let want = AddPackage { reference: format!("oci://margrave/packages/gate:{version}") };
    plant.server.fleet().add_package(&operator(), want, |_| ()).await.unwrap();
}

pub(crate) async fn push(plant: &Plant, name: &str, tag: &str, manifest: &ImageManifest, blobs: Vec<Bytes>) {
    let name = RepositoryName::parse(name).unwrap();
    let registry = plant.server.registry();
    for blob in blobs.into_iter().chain([Bytes::from_static(EMPTY_CONFIG)]) {
        registry.put_blob(&name, blob).await.unwrap();
    }
    let tag = TagOrDigest::Tag(Tag::parse(tag).unwrap());
    registry.put_manifest(&name, &tag, IMAGE_MANIFEST, manifest.to_bytes().into()).await.unwrap();
}

/// A device that joined and told what it is.
pub(crate) async fn device(plant: &Plant, name: &str, cores: u32) {
    let token = plant.token(name).await;
    let fleet = plant.server.fleet();
    let client = fleet.redeem_join_token(&token).await.unwrap();
    capabilities(plant, &client, name, cores).await;
}

pub(crate) async fn capabilities(plant: &Plant, client: &ClientId, device: &str, cores: u32) {
    let body = Bytes::from(capabilities_body(device, cores));
    let parsed = g2::capabilities::read(&body).unwrap();
    plant.server.fleet().put_capabilities(client, parsed, body).await.unwrap();
}

/// What a device of this name says that it is.
pub(crate) fn capabilities_body(device: &str, cores: u32) -> String {
    let body = serde_json::json!({"properties": {
        "id": device, "vendor": format!("Maker {HOSTILE}"), "modelNumber": "M1", "serialNumber": "S1",
        "cpus": [{"cores": cores, "architecture": "amd64"}], "memory": "8 Gi", "storage": "60 Gi",
        "peripherals": [], "interfaces": [{"type": "ethernet"}], "otelCollector": true,
        "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["compose"],
    }});
    body.to_string()
}

/// A device says that it has installed what it is to run, or something else where `change` makes it.
pub(crate) async fn report(plant: &Plant, device: &str, change: impl FnOnce(&mut Report)) {
    let fleet = plant.server.fleet();
    let device = fleet.device(&device.parse().unwrap()).await.unwrap();
    let mut report = Report {
        assignment: AssignmentId::parse(&device.assignments[0].id).unwrap(),
        device: None,
        adopted_version: device.manifest_version,
        state: Reported::Installed,
        fault: None,
        components: vec![],
        detail: None,
        signed_at: None,
    };
    change(&mut report);
    fleet.report(&device.client.parse().unwrap(), report).await.unwrap();
}
