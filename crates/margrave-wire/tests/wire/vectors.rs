//! Our own vectors, byte for byte and both ways.

use std::collections::BTreeMap;

use margrave_core::device::{Blind, Hold};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeviceRef};
use margrave_core::lifecycle::{Reported, State};
use margrave_core::manifest::{Blob, Entry, Manifest};
use margrave_core::moment::Moment;
use margrave_core::package::ProfileKind;
use margrave_core::parameters::{ParameterValue, resolve};
use margrave_core::workload::Workload;
use margrave_wire::g2::{capabilities, document, manifest, status};
use margrave_wire::{BodyError, bundle, description};

const PACKAGE: &[u8] = include_bytes!("../../vectors/dm_160_package.yaml");
const MANIFEST: &str = include_str!("../../vectors/mi_g2_050_manifest.json");
const STATUS: &str = include_str!("../../vectors/mi_g2_101_status.json");
const CAPABILITIES: &str = include_str!("../../vectors/mi_g2_124_capabilities.json");

pub(crate) fn id() -> AssignmentId {
    AssignmentId::parse("0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11").unwrap()
}

pub(crate) fn workload() -> Workload {
    let package = description::read(PACKAGE).unwrap();
    let profile = &package.profiles[0];
    let colours = ["red", "blue"].map(|colour| ParameterValue::Text(colour.into()));
    let answers = BTreeMap::from([
        ("siteId".parse().unwrap(), ParameterValue::Text("NO-1".into()).into()),
        ("colours".parse().unwrap(), ParameterValue::List(colours.into()).into()),
    ]);
    let parameters = resolve(&package, profile, &answers, None, &Default::default()).unwrap();
    let device = DeviceRef::parse("press-gw/cell-4").unwrap();
    let pins = BTreeMap::from([(profile.components[0].name.clone(), Digest::of(b"abc"))]);
    Workload::compose(&"line-monitor".parse().unwrap(), id(), &device, &package, profile, parameters, pins)
}

/// The bytes are the contract: should they ever change, every device in every fleet updates for nothing.
#[test]
fn dm_172_mi_g2_170_173_181_a_document_is_written_exactly_so() {
    let bytes = document::write(&workload());
    let text = String::from_utf8(bytes.clone()).unwrap();
    expect_test::expect_file!["../../vectors/dm_172_document.yaml"].assert_eq(&text);
    // A second reader, which is not ours, agrees.
    let theirs: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(theirs, margrave_wire::yaml::read(&bytes).unwrap().to_value());
}

#[test]
fn pk_053_images_are_pinned_beside_the_standard_and_documents_without_are_as_before() {
    let plain = document::write(&workload());
    assert_eq!(document::write(&workload().with_images(BTreeMap::new())), plain);
    let component = workload().components[0].name.clone();
    let digest = Digest::of(b"image");
    let images =
        BTreeMap::from([("${MARGRAVE_REGISTRY}/web:1".to_owned(), digest), ("a: b".to_owned(), digest)]);
    let pinned = workload().with_images([(component.clone(), images.clone())].into());
    let bytes = document::write(&pinned);
    let read = document::read(&bytes).unwrap();
    assert_eq!(read.hints.images, BTreeMap::from([(component.clone(), images)]));
    // All of it is in our own object, which others pass over.
    let whole = margrave_wire::yaml::read(&bytes).unwrap().to_value();
    let ours = &whole["spec"]["x-margrave-extensions"]["images"][component.as_str()];
    assert_eq!(ours["${MARGRAVE_REGISTRY}/web:1"], digest.to_string());
    let mut without = read;
    without.hints.images.clear();
    assert_eq!(document::write(&without), plain);
    // A pin that cannot be read would mean running something else than was meant.
    let text = String::from_utf8(bytes).unwrap();
    for broken in [text.replace(&digest.to_string(), "latest"), text.replace(&digest.to_string(), "[]")] {
        let violations = document::read(broken.as_bytes()).unwrap_err();
        assert!(violations.iter().all(|broken| broken.rule == "PK-053"), "{violations:?}");
        assert!(violations[0].place.starts_with("/spec/x-margrave-extensions/images/"), "{violations:?}");
    }
}

#[test]
fn dm_074_the_profiles_id_and_description_stay_behind() {
    let text = String::from_utf8(document::write(&workload())).unwrap();
    assert!(!text.contains("small") && !text.contains("little memory"));
    assert!(!text.contains("shelf"), "the description's own extensions are not passed on (DM-169)");
    assert!(text.contains("slot") && text.contains("rack"), "the device's are (DM-201)");
}

#[test]
fn dm_122_mi_g2_175_constraints_are_passed_on_unmodified() {
    let written = document::read(&document::write(&workload())).unwrap();
    assert_eq!(written.constraints, workload().constraints);
}

#[test]
fn mi_g2_171_172_amb_15_a_custom_profile_goes_the_whole_way_and_the_package_is_named() {
    let package = description::read(PACKAGE).unwrap();
    let profile = package.profiles.iter().find(|profile| profile.kind == ProfileKind::Custom).unwrap();
    let device = DeviceRef::parse("press-gw/cell-4").unwrap();
    let name = "line-monitor".parse().unwrap();
    let workload = Workload::compose(&name, id(), &device, &package, profile, Vec::new(), BTreeMap::new());
    let bytes = document::write(&workload);
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.contains("type: custom"), "{text}");
    let read = document::read(&bytes).unwrap();
    assert_eq!((read.kind, read.application), (ProfileKind::Custom, package.id.clone()));
    assert_eq!(read.components.len(), profile.components.len());
}

#[test]
fn mi_g2_049_050_a_manifest_is_written_exactly_so() {
    let blob = |bytes: &[u8]| Blob { digest: Digest::of(bytes), size: Some(bytes.len() as u64) };
    let entries = vec![Entry { id: id(), document: blob(b"") }];
    let manifest = Manifest::new(u64::MAX, Some(blob(b"abc")), entries).unwrap();
    assert_eq!(String::from_utf8(manifest::write(&manifest)).unwrap(), MANIFEST);
    assert_eq!(manifest::read(MANIFEST.as_bytes()).unwrap().manifest, manifest);
    let empty = Manifest::new(1, None, vec![]).unwrap();
    assert_eq!(manifest::write(&empty), br#"{"bundle":null,"deployments":[],"manifestVersion":1}"#);
}

#[track_caller]
fn refused(from: &str, to: &str, rule: &str) {
    assert!(MANIFEST.contains(from), "{from:?} is not in the vector");
    let error = manifest::read(MANIFEST.replace(from, to).as_bytes()).unwrap_err();
    assert!(error.violations().iter().any(|violation| violation.rule == rule), "{error}");
}

#[test]
fn amb_25_a_url_stays_on_the_server_and_names_its_entry() {
    let digest = Digest::of(b"abc").to_string();
    let url = format!("/api/v1/bundles/{digest}");
    for bad in [
        format!("https://elsewhere.example{url}"),
        format!("//elsewhere.example{url}"),
        format!("/..{url}"),
        format!("/a/../b{url}"),
        format!("/a?x={url}"),
        format!("\\\\elsewhere{url}"),
        format!("api{url}"),
        format!("/api/v1/clients/1{}", url.strip_prefix("/api/v1").unwrap()),
        format!("/api/v1/bundles/{}", Digest::of(b"other")),
        String::new(),
    ] {
        refused(&format!("\"url\":\"{url}\""), &format!("\"url\":\"{bad}\""), "AMB-25");
    }
    for good in [format!("/margo/v1alpha2{url}"), url.replace("sha256:", "sha256%3A")] {
        let text = MANIFEST.replace(&format!("\"url\":\"{url}\""), &format!("\"url\":\"{good}\""));
        assert_eq!(manifest::read(text.as_bytes()).unwrap().bundle_url, Some(good));
    }
}

#[test]
fn mi_g2_047_048_052_a_manifest_is_consistent_or_refused() {
    refused("18446744073709551615", "0", "MI-G2-047");
    refused("18446744073709551615", "-1", "MI-G2-047");
    refused("18446744073709551615", "18446744073709551616", "MI-G2-047");
    refused("18446744073709551615", "1.5", "MI-G2-047");
    refused("\"manifestVersion\":18446744073709551615", "\"manifestVersion\":\"1\"", "MI-G2-047");
    refused("sha256:e3b0c44298", "sha512:e3b0c44298", "DM-081");
    refused("+tar+gzip", "+zip", "MI-G2-049");
    let without = br#"{"deployments":[],"manifestVersion":1}"#;
    assert_eq!(manifest::read(without).unwrap_err().violations()[0].rule, "DM-082");
    // An advisory size is no reason to refuse anything (MI-G2-052).
    let odd = MANIFEST.replace("\"sizeBytes\":3", "\"sizeBytes\":\"many\"");
    assert_eq!(manifest::read(odd.as_bytes()).unwrap().manifest.bundle().unwrap().size, None);
}

#[test]
fn mi_g2_101_a_report_is_written_exactly_so_and_read_back() {
    let report = status::read(STATUS.as_bytes()).unwrap();
    assert_eq!(report.state, Reported::Failed);
    assert_eq!(report.adopted_version, 12);
    assert_eq!(report.device.as_ref().unwrap().as_str(), "press-gw/cell-4");
    let detail = report.detail.as_ref().unwrap();
    assert_eq!((detail.state, detail.sequence, detail.attempt), (State::Failed, 41, 3));
    assert_eq!(detail.life, Some(7));
    assert_eq!(String::from_utf8(status::write(&report)).unwrap(), STATUS);
}

#[test]
fn how_often_components_were_brought_back_stands_in_our_addition_alone() {
    let mut report = status::read(STATUS.as_bytes()).unwrap();
    assert!(report.components.iter().all(|component| component.restarts == 0));
    report.components[0].restarts = 57;
    let written: serde_json::Value = serde_json::from_slice(&status::write(&report)).unwrap();
    let name = report.components[0].name.as_str();
    assert_eq!(written["x-margrave-extensions"]["restarts"], serde_json::json!({ name: 57 }));
    assert!(!written["components"].to_string().contains("57"), "others are not bothered: {written}");
    assert_eq!(status::read(written.to_string().as_bytes()).unwrap(), report);
    // What is not understood costs the count and nothing else.
    for (odd, counted) in [
        (serde_json::json!({ name: 5_000_000_000_u64, "nobody": 1 }), u32::MAX),
        (serde_json::json!({ name: "often" }), 0),
        (serde_json::json!({ name: -1 }), 0),
        (serde_json::json!([57]), 0),
    ] {
        let mut told = written.clone();
        told["x-margrave-extensions"]["restarts"] = odd;
        let read = status::read(told.to_string().as_bytes()).unwrap();
        assert_eq!((read.components[0].restarts, &read.detail), (counted, &report.detail), "{told}");
    }
}

#[test]
fn dm_097_a_foreign_report_is_read_without_our_additions() {
    let report = |extra: &str| {
        let text = format!(
            r#"{{"apiVersion":"v1","kind":"X","deploymentId":"{}","adoptedManifestVersion":1,
                "status":{{"state":"installed","error":{{"code":"","source":"","message":""}}}},"components":[]{extra}}}"#,
            id()
        );
        status::read(text.as_bytes())
    };
    let plain = report("").unwrap();
    assert_eq!((plain.fault, plain.detail, plain.device), (None, None, None));
    // A newer agent's addition costs its detail, not the report.
    let newer = report(r#","x-margrave-extensions":{"state":"HIBERNATING","sequence":1,"at":1}"#).unwrap();
    assert_eq!(newer.detail, None);
    for (extra, rule) in [(r#","deviceId":"gw/*""#, "MI-G2-102"), (r#","deviceId":5"#, "MI-G2-102")] {
        assert_eq!(report(extra).unwrap_err().violations()[0].rule, rule);
    }
}

#[test]
fn mi_g2_110_a_wrong_report_is_told_which_field() {
    for (from, to, rule) in [
        ("\"adoptedManifestVersion\":12", "\"x\":12", "DM-092"),
        ("\"adoptedManifestVersion\":12", "\"adoptedManifestVersion\":0", "DM-092"),
        ("\"adoptedManifestVersion\":12", "\"adoptedManifestVersion\":\"12\"", "DM-092"),
        ("\"hmi\",\"state\":\"failed\"", "\"hmi\",\"state\":\"Failed\"", "DM-091"),
        ("\"name\":\"hmi\",", "", "DM-090"),
        ("0d5f6c1e-6a0a", "0d5f6c1e6a0a", "MI-G2-101"),
        ("\"components\":[{", "\"parts\":[{", "DM-090"),
    ] {
        assert!(STATUS.contains(from), "{from}");
        let error = status::read(STATUS.replace(from, to).as_bytes()).unwrap_err();
        assert_eq!(error.violations().iter().map(|v| v.rule).collect::<Vec<_>>(), [rule], "{error}");
    }
    assert!(matches!(status::read(b"{"), Err(BodyError::Malformed(_))));
    assert!(matches!(status::read(b"[]"), Err(BodyError::Invalid(_))));
}

#[test]
fn mi_g2_124_capabilities_are_read_and_written_back_as_data() {
    let read = capabilities::read(CAPABILITIES.as_bytes()).unwrap();
    let hosting = read.hosting.as_ref().unwrap();
    // Unknown types count as custom (DM-106), the raw value stays for selectors.
    assert_eq!(hosting.deployment_types, [ProfileKind::Compose, ProfileKind::Custom]);
    assert_eq!(read.properties["supportedDeploymentTypes"][1], "wasm");
    assert_eq!(hosting.memory_bytes, Some(8 << 30));
    assert_eq!(hosting.storage_bytes, Some((64 << 30) + (1 << 29)));
    assert_eq!(hosting.cpus[1].cores, 0.5);
    assert_eq!((read.simulated, read.agent_version.as_deref()), (true, Some("0.1.0")));
    let written: serde_json::Value = serde_json::from_slice(&capabilities::write(&read)).unwrap();
    let wanted: serde_json::Value = serde_json::from_str(CAPABILITIES).unwrap();
    assert_eq!(written, wanted);
}

#[test]
fn what_a_device_says_in_passing_is_read_as_it_was_written() {
    let mut read = capabilities::read(CAPABILITIES.as_bytes()).unwrap();
    let before = capabilities::write(&read);
    let (since, until) = (Moment(1_800_000_000_000), Moment(1_800_000_060_000));
    read.holds = vec![Hold::told("ann", "batch 17 runs", since, until).unwrap()];
    let held = capabilities::write(&read);
    assert_eq!(capabilities::read(&held).unwrap().holds, read.holds);
    assert_eq!(capabilities::holds(&serde_json::from_slice(&held).unwrap()), read.holds);
    assert!(capabilities::differ_in_passing_only(&before, &held));
    read.blind = Blind::told(since, "the engine does not answer");
    let blind = capabilities::write(&read);
    assert_eq!(capabilities::read(&blind).unwrap().blind, read.blind);
    assert_eq!(capabilities::blind(&serde_json::from_slice(&blind).unwrap()), read.blind);
    assert!(
        capabilities::differ_in_passing_only(&before, &blind),
        "nothing follows from it for what is wanted"
    );
    read.serial_number.push('7');
    read.properties["serialNumber"] = "another".into();
    assert!(!capabilities::differ_in_passing_only(&before, &capabilities::write(&read)));
    assert!(!capabilities::differ_in_passing_only(b"", b""));
}

#[test]
fn dm_102_dm_103_a_device_hosts_completely_or_not_at_all() {
    for (from, to, rule) in [
        ("\"memory\":\"8Gi\",", "", "DM-102"),
        ("\"peripherals\":[{\"manufacturer\":\"NVIDIA\",\"type\":\"gpu\"}],", "", "DM-102"),
        ("\"otelCollector\":true", "\"otelCollector\":false", "DM-102"),
        ("[\"oci\",\"wasi\"]", "[]", "DM-102"),
        ("\"type\":\"gpu\"", "\"type\":\"GPU\"", "MI-G2-129"),
        ("\"type\":\"ethernet\"", "\"type\":\"ether\"", "MI-G2-130"),
        ("\"architecture\":\"arm64\"", "\"architecture\":\"x86_64\"", "MI-G2-128"),
        ("\"cores\":4", "\"cores\":\"4\"", "MI-G2-128"),
        ("\"acme.example/ready\":true", "\"acme.example/ready\":{}", "MI-G2-134"),
        ("\"acme.example/slots\":[1,2]", "\"acme.example/slots\":[1,\"2\"]", "MI-G2-134"),
        ("\"vendor\":\"Acme\"", "\"roles\":[],\"vendor\":\"Acme\"", "DM-113"),
        ("\"vendor\":\"Acme\"", "\"seller\":\"Acme\"", "MI-G2-125"),
        ("press-gw/cell-4", "press gw", "MI-G2-123"),
        ("{\"labels\"", "{\"spec\":{},\"labels\"", "MI-G2-124"),
        ("{\"labels\"", "{\"x-acme-extensions\":1,\"labels\"", "DM-200"),
        (
            "\"labels\":{\"acme.example/line\":\"B\",\"acme.example/slots\":[1,2],\"acme.example/ready\":true},",
            "",
            "",
        ),
    ] {
        assert!(CAPABILITIES.contains(from), "{from}");
        match capabilities::read(CAPABILITIES.replace(from, to).as_bytes()) {
            Ok(_) => assert_eq!(rule, "", "{to} was accepted"),
            Err(error) => {
                assert_eq!(error.violations().iter().map(|v| v.rule).collect::<Vec<_>>(), [rule], "{error}")
            }
        }
    }
    // Exactly these two leftovers are ignored (AMB-34).
    let older = CAPABILITIES.replacen('{', "{\"apiVersion\":\"v1\",\"kind\":\"X\",", 1);
    assert!(capabilities::read(older.as_bytes()).is_ok());
    // A device that says custom itself must be selectable (MI-G2-133).
    let custom = r#"{"properties":{"id":"a","vendor":"v","modelNumber":"m","serialNumber":"s","cpus":[],"memory":"?",
        "storage":"1Gi","peripherals":[],"interfaces":[],"otelCollector":true,"supportedRuntimes":["custom"],
        "supportedDeploymentTypes":["custom"]}}"#;
    let error = capabilities::read(custom.as_bytes()).unwrap_err();
    assert_eq!(error.violations()[0].rule, "MI-G2-133");
    let labelled = custom.replacen('{', r#"{"labels":{"a":1},"#, 1);
    let read = capabilities::read(labelled.as_bytes()).unwrap();
    assert_eq!(
        read.hosting.unwrap().memory_bytes,
        None,
        "an unreadable amount is no reason to refuse (DM-134)"
    );
}

/// The digest of a bundle is published; should this change, devices download everything again.
#[test]
fn amb_22_a_bundle_is_written_exactly_so() {
    let other = AssignmentId::parse("00000000-0000-4000-8000-000000000001").unwrap();
    let bytes = bundle::write(&[(id(), b"id: one\n"), (other, b"id: two\n")]);
    let swapped = bundle::write(&[(other, b"id: two\n"), (id(), b"id: one\n")]);
    assert_eq!(bytes, swapped);
    expect_test::expect_file!["../../vectors/amb_22_bundle.digest"]
        .assert_eq(&Digest::of(&bytes).to_string());
}
