//! Canonical JSON (RFC 8785), on which manifests and their ETags rest.

use margrave_core::digest::Digest;
use margrave_core::id::AssignmentId;
use margrave_core::manifest::{Blob, Entry, Manifest};
use margrave_wire::g2::manifest;
use proptest::prelude::*;
use serde_json::{Value, json};

fn canonical(value: &Value) -> String {
    String::from_utf8(serde_json_canonicalizer::to_vec(value).unwrap()).unwrap()
}

#[test]
fn mi_g2_054_numbers_are_written_as_ecmascript_does() {
    let cases = [
        ("0", "0"),
        ("-0.0", "0"),
        ("1.0", "1"),
        ("4.50", "4.5"),
        ("1e21", "1e+21"),
        ("123456789012345680000", "123456789012345680000"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
        ("9007199254740991", "9007199254740991"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
    ];
    for (written, wanted) in cases {
        let value: Value = serde_json::from_str(written).unwrap();
        assert_eq!(canonical(&value), wanted, "{written}");
    }
}

#[test]
fn mi_g2_054_keys_are_sorted_by_utf_16_units() {
    // U+10437 is a surrogate pair, so it comes before U+FB33 although its code point is greater.
    let value = json!({ "\u{fb33}": 1, "\u{10437}": 2, "b": 3, "a": 4, "": 5, "1": 6, "\r": 7 });
    assert_eq!(
        canonical(&value),
        "{\"\":5,\"\\r\":7,\"1\":6,\"a\":4,\"b\":3,\"\u{10437}\":2,\"\u{fb33}\":1}"
    );
}

#[test]
fn mi_g2_054_only_what_must_be_escaped_is_escaped() {
    let value = json!("\u{0}\u{8}\t\n\u{c}\r\u{1f}\"\\/\u{7f}é\u{2028}😀");
    let wanted = "\"\\u0000\\b\\t\\n\\f\\r\\u001f\\\"\\\\/\u{7f}é\u{2028}😀\"";
    assert_eq!(canonical(&value), wanted);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-(1i64 << 53)..(1i64 << 53)).prop_map(Value::from),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::from),
        ".{0,8}".prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            proptest::collection::btree_map(".{0,4}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn manifests() -> impl Strategy<Value = Manifest> {
    let entry = (any::<u128>(), any::<[u8; 32]>(), proptest::option::of(0u64..1 << 53)).prop_map(
        |(id, digest, size)| {
            let id = AssignmentId::parse(&format!(
                "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
                id as u32,
                (id >> 32) as u16,
                (id >> 48) as u16 & 0xfff,
                (id >> 60) as u16 & 0xfff,
                (id >> 72) as u64 & 0xffff_ffff_ffff
            ));
            Entry { id: id.unwrap(), document: Blob { digest: Digest::from_bytes(digest), size } }
        },
    );
    let entries = proptest::collection::btree_map(any::<u32>(), entry, 0..8);
    (1u64..=u64::MAX, entries, any::<[u8; 32]>()).prop_filter_map(
        "ids are unique",
        |(version, entries, digest)| {
            let entries: Vec<Entry> = entries.into_values().collect();
            let blob = Blob { digest: Digest::from_bytes(digest), size: None };
            let bundle = (!entries.is_empty()).then_some(blob);
            Manifest::new(version, bundle, entries).ok()
        },
    )
}

proptest! {
    /// What is canonical stays as it is, and still says the same.
    #[test]
    fn mi_g2_054_canonical_form_is_stable_and_loses_nothing(value in value()) {
        let once = canonical(&value);
        let again: Value = serde_json::from_str(&once).unwrap();
        prop_assert_eq!(&canonical(&again), &once);
        prop_assert_eq!(numbers_as_doubles(&again), numbers_as_doubles(&value));
    }

    #[test]
    fn dm_086_a_manifest_survives_the_wire(manifest in manifests()) {
        let bytes = manifest::write(&manifest);
        prop_assert_eq!(&bytes, &manifest::write(&manifest));
        let listing = manifest::read(&bytes).unwrap();
        prop_assert_eq!(listing.document_urls.len(), manifest.entries().len());
        prop_assert_eq!(&listing.manifest, &manifest);
        // Where doubles are exact, the whole body is canonical JSON.
        if manifest.version() < 1 << 53 {
            let value: Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!(canonical(&value).into_bytes(), bytes);
        }
    }
}

/// 4 and 4.0 are one number in JSON.
fn numbers_as_doubles(value: &Value) -> Value {
    match value {
        Value::Number(number) => {
            json!(number.as_f64().map(|number| if number == 0.0 { 0.0 } else { number }))
        }
        Value::Array(items) => items.iter().map(numbers_as_doubles).collect(),
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.clone(), numbers_as_doubles(value))).collect()
        }
        other => other.clone(),
    }
}
