//! The older generation's documents and manifests, byte for byte.

use margrave_core::digest::Digest;
use margrave_core::id::ClientId;
use margrave_core::manifest::{Blob, Entry, Manifest};
use margrave_core::package::ProfileKind;
use margrave_core::workload::{Placement, Workload};
use margrave_wire::g1::{document, manifest};

use crate::vectors::{id, workload};

/// As in `vectors.rs`: should these bytes ever change, every signed device updates for nothing.
#[test]
fn mi_g1_089_210_211_amb_07_a_document_is_written_exactly_so() {
    let text = String::from_utf8(document::write(&workload())).unwrap();
    expect_test::expect_file!["../../vectors/mi_g1_210_document.yaml"].assert_eq(&text);
    let theirs: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let id = id().to_string();
    assert_eq!(
        (&theirs["apiVersion"], &theirs["kind"]),
        (&"application.margo.org/v1alpha1".into(), &"ApplicationDeployment".into())
    );
    // Where each of the snapshots looks for it.
    assert_eq!(
        (&theirs["id"], &theirs["metadata"]["annotations"]["id"]),
        (&id.as_str().into(), &id.as_str().into())
    );
    let application = workload().application.to_string();
    assert_eq!(theirs["metadata"]["annotations"]["applicationId"], application);
    assert_eq!(theirs["spec"]["applicationId"], application);
}

#[test]
fn mi_g1_210_a_profile_has_the_older_names_and_a_compose_component_one_location() {
    let mut workload = workload();
    for (kind, name) in [(ProfileKind::Helm, "helm.v3"), (ProfileKind::Compose, "compose")] {
        workload.kind = kind;
        let text = String::from_utf8(document::write(&workload)).unwrap();
        let theirs: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let profile = &theirs["spec"]["deploymentProfile"];
        assert_eq!(profile["type"], name);
        let component = &workload.components[0];
        let properties = &profile["components"][0]["properties"];
        assert_eq!(properties["repository"], component.repository);
        let location = format!("{}:{}", component.repository, component.revision.as_str());
        let wanted = if kind == ProfileKind::Compose { location.into() } else { serde_json::Value::Null };
        assert_eq!(properties["packageLocation"], wanted, "{kind:?}");
        assert!(profile["deviceConstraints"].is_null(), "this shape has no words for them");
    }
}

#[test]
fn mi_g1_212_the_device_is_named_or_left_to_its_gateway() {
    let mut workload = workload();
    let device_of = |workload: &Workload| {
        let text = String::from_utf8(document::write(workload)).unwrap();
        let theirs: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        theirs["metadata"]["deviceId"].as_str().unwrap().to_owned()
    };
    assert_eq!(device_of(&workload), "press-gw/cell-4");
    workload.placement = Placement::AnyChildOf("press-gw".parse().unwrap());
    assert_eq!(device_of(&workload), "press-gw/*");
    let read = document::read(&document::write(&workload), &"press-gw".parse().unwrap()).unwrap();
    assert_eq!(read.placement, workload.placement);
}

#[test]
fn mi_g1_086_087_088_093_a_manifest_is_written_exactly_so() {
    let client = ClientId::parse("c-17").unwrap();
    let blob = |bytes: &[u8]| Blob { digest: Digest::of(bytes), size: Some(bytes.len() as u64) };
    let entries = vec![Entry { id: id(), document: blob(b"") }];
    let written = Manifest::new(u64::MAX, Some(blob(b"abc")), entries).unwrap();
    let bytes = manifest::write(&client, &written);
    let (bundle, document) = (Digest::of(b"abc"), Digest::of(b""));
    let expected = format!(
        r#"{{"bundle":{{"digest":"{bundle}","mediaType":"application/vnd.margo.bundle.v1+tar+gzip","sizeBytes":3,"url":"/api/v1/clients/c-17/bundles/{bundle}"}},"deployments":[{{"deploymentId":"{id}","digest":"{document}","sizeBytes":0,"url":"/api/v1/clients/c-17/deployments/{id}/{document}"}}],"manifestVersion":18446744073709551615}}"#,
        id = id()
    );
    assert_eq!(String::from_utf8(bytes.clone()).unwrap(), expected);
    assert_eq!(manifest::read(&client, &bytes).unwrap().manifest, written);
    let empty = Manifest::new(1, None, vec![]).unwrap();
    assert_eq!(manifest::write(&client, &empty), br#"{"bundle":null,"deployments":[],"manifestVersion":1}"#);
}
