//! Whatever can be said can be written and read back.

use std::collections::BTreeMap;
use std::io::Write as _;

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName, DeviceId, ParameterName};
use margrave_core::manifest::{Blob, Entry};
use margrave_core::package::{Component, Extensions, ProfileKind, Revision, Timeout};
use margrave_core::parameters::{ParameterValue, ResolvedParameter, Target};
use margrave_core::rollback::{Rollback, When};
use margrave_core::workload::{Hints, Placement, Workload};
use margrave_wire::bundle::{self, BundleError};
use margrave_wire::g2::document;
use margrave_wire::yaml::{self, Content, Node};
use proptest::prelude::*;

fn id(n: u32) -> AssignmentId {
    AssignmentId::parse(&format!("00000000-0000-4000-8000-{n:012x}")).unwrap()
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => ".{0,12}",
        2 => "[a-zA-Z0-9 :#\\-_.,\\[\\]{}&*!|>'\"%@`~]{0,12}",
        1 => proptest::sample::select(vec![
            "no", "y", "Yes", "NULL", "~", "true", "010", "1_000", "0x1f", "1e3", ".inf", "2024-01-01", "12:30:45",
            "=", "<<", "- a", "a: b", "a #b", " a", "a ", "", "\n", "a\nb", "\t", "\u{feff}", "\u{85}", "\u{2028}",
            "...", "---", "?", "!x", "%a", "'", "\"", "\\", "1.0.9", "+1", "-0",
        ]).prop_map(str::to_owned),
        1 => proptest::collection::vec(any::<char>(), 0..6).prop_map(|chars| chars.into_iter().collect()),
    ]
}

fn tree() -> impl Strategy<Value = Node> {
    let leaf = prop_oneof![
        Just(Content::Null),
        any::<bool>().prop_map(Content::Boolean),
        any::<i64>().prop_map(|n| Content::Number(n.into())),
        any::<u64>().prop_map(|n| Content::Number(n.into())),
        any::<f64>().prop_filter_map("finite", |n| serde_json::Number::from_f64(n).map(Content::Number)),
        text().prop_map(Content::Text),
    ];
    leaf.prop_map(Node::new).prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Node::list),
            proptest::collection::btree_map(prop_oneof![9 => text(), 1 => "[a-z]{130,200}"], inner, 0..6)
                .prop_map(Node::map),
        ]
    })
}

fn value() -> impl Strategy<Value = ParameterValue> {
    let scalar = prop_oneof![
        any::<bool>().prop_map(ParameterValue::Boolean),
        any::<i64>().prop_map(ParameterValue::Integer),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(ParameterValue::Double),
        text().prop_map(ParameterValue::Text),
    ];
    prop_oneof![scalar.clone(), proptest::collection::vec(scalar, 0..4).prop_map(ParameterValue::List),]
}

fn names() -> impl Strategy<Value = Vec<ComponentName>> {
    proptest::collection::btree_set("[a-z0-9-]{1,12}", 1..4)
        .prop_map(|names| names.into_iter().map(|name| ComponentName::parse(&name).unwrap()).collect())
}

fn extensions() -> impl Strategy<Value = Extensions> {
    let content =
        proptest::collection::btree_map(text(), tree(), 0..3).prop_map(|map| Node::map(map).to_value());
    proptest::collection::btree_map("x-[a-z][a-z0-9-]{0,6}-extensions", content, 0..2)
        .prop_map(|map| map.into_iter().collect())
}

prop_compose! {
    fn workload()(
        n in any::<u32>(), names in names(), profile in extensions(), component in extensions(),
        wait in proptest::option::of(any::<bool>()), timeout in proptest::option::of((0u32..1000, 0u32..1000)),
        kind in proptest::sample::select(vec![ProfileKind::Helm, ProfileKind::Compose, ProfileKind::Custom]),
        values in proptest::collection::btree_map("[^\\p{Cc}]{1,12}", (value(), text()), 0..5),
        any_child in any::<bool>(), label in "[a-z0-9]{1,10}", pinned in any::<bool>(),
    ) -> Workload {
        let gateway = DeviceId::parse(&format!("gw.{label}")).unwrap();
        let parameters = values.into_iter().map(|(name, (value, pointer))| ResolvedParameter {
            name: ParameterName::parse(&name).unwrap(),
            value,
            targets: vec![Target { pointer: format!("P{pointer}"), components: names.clone() }],
            secret: false,
        });
        Workload {
            id: id(n),
            name: label.clone(),
            namespace: label.clone(),
            placement: if any_child { Placement::AnyChildOf(gateway) } else { Placement::Device(gateway) },
            application: label.parse().unwrap(),
            kind,
            parameters: parameters.collect(),
            constraints: None,
            extensions: profile,
            hints: Hints {
                deployment: Some(label.parse().unwrap()),
                package_version: Some(label.clone()),
                pins: names.iter().filter(|_| pinned).map(|name| (name.clone(), Digest::of(label.as_bytes()))).collect::<BTreeMap<_, _>>(),
                images: names.iter().filter(|_| pinned).map(|name| {
                    let images = ["a:1".to_owned(), format!("${{MARGRAVE_REGISTRY}}/{label}:{n}")];
                    (name.clone(), images.map(|image| (image, Digest::of(label.as_bytes()))).into())
                }).collect(),
                rollback: Rollback {
                    when: if any_child { When::Never } else { When::OnFailedUpdate },
                    attempts: timeout.map_or(2, |(minutes, _)| minutes.clamp(1, 100)),
                    binding: pinned,
                    health_grace: timeout.map(|(_, seconds)| std::time::Duration::from_secs(seconds.into())),
                },
                windows: any_child.then(|| vec!["mon-fri 22:00-04:00 Europe/Berlin".parse().unwrap()]),
                salt: pinned.then(|| label.clone()),
            },
            components: names.into_iter().map(|name| Component {
                repository: format!("oci://registry.example:5000/{label}"),
                revision: Revision::parse("1.0.0-a.1_b.2").unwrap(),
                name, wait, extensions: component.clone(),
                timeout: timeout.map(|(minutes, seconds)| Timeout { minutes, seconds }),
            }).collect(),
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_as_yaml_is_read_back(node in tree()) {
        let text = yaml::write(&node);
        let back = yaml::read(text.as_bytes()).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(back.to_value(), node.to_value(), "{}", text);
    }

    /// A reader that is not ours sees the same texts, so that nobody takes `no` for false.
    #[test]
    fn another_reader_agrees(texts in proptest::collection::vec(text(), 1..6)) {
        let written = yaml::write(&Node::list(texts.iter().map(Node::text)));
        let theirs: Vec<String> = serde_saphyr::from_str(&written)
            .map_err(|error| TestCaseError::fail(format!("{error}\n{written}")))?;
        prop_assert_eq!(theirs, texts);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in text()) {
        let _ = yaml::read(&bytes);
        let _ = yaml::read(text.as_bytes());
        let _ = document::read(&bytes);
        let _ = margrave_wire::description::read(text.as_bytes());
        let _ = bundle::read(&bytes, &[]);
    }

    #[test]
    fn dm_077_a_document_survives_the_wire_with_its_scalars_as_text(workload in workload()) {
        let bytes = document::write(&workload);
        let mut wanted = workload.clone();
        for parameter in &mut wanted.parameters {
            if !matches!(parameter.value, ParameterValue::List(_)) {
                parameter.value = ParameterValue::Text(parameter.value.to_string());
            }
        }
        wanted.parameters.sort_by(|a, b| a.name.cmp(&b.name));
        let read = document::read(&bytes)
            .map_err(|broken| TestCaseError::fail(format!("{broken:#?}\n{}", String::from_utf8_lossy(&bytes))))?;
        prop_assert_eq!(&read, &wanted);
        // Writing what was read changes nothing, so that a site can pass it on.
        prop_assert_eq!(document::write(&read), bytes);
    }

    #[test]
    fn amb_22_a_bundle_survives_the_wire(contents in proptest::collection::btree_map(any::<u32>(), proptest::collection::vec(any::<u8>(), 0..2000), 0..12)) {
        let documents: Vec<(AssignmentId, &[u8])> = contents.iter().map(|(n, bytes)| (id(*n), bytes.as_slice())).collect();
        let entries: Vec<Entry> = documents.iter().map(|(id, bytes)| entry(*id, bytes)).collect();
        let bytes = bundle::write(&documents);
        let read = bundle::read(&bytes, &entries).unwrap();
        let read: Vec<&[u8]> = read.iter().map(|document| document.bytes()).collect();
        prop_assert_eq!(read, documents.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>());
    }
}

fn entry(id: AssignmentId, bytes: &[u8]) -> Entry {
    Entry { id, document: Blob { digest: Digest::of(bytes), size: None } }
}

#[test]
fn mi_g2_066_a_bundle_holds_exactly_what_the_manifest_lists() {
    let bytes = bundle::write(&[(id(1), b"one"), (id(2), b"two")]);
    let missing = bundle::read(&bytes, &[entry(id(1), b"one"), entry(id(2), b"two"), entry(id(3), b"three")]);
    assert!(matches!(missing, Err(BundleError::Missing(missing)) if missing == id(3)));
    let extra = bundle::read(&bytes, &[entry(id(1), b"one")]);
    assert!(matches!(extra, Err(BundleError::Extra(_, digest)) if digest == Digest::of(b"two")));
    // The same file cannot serve two entries, nor two files one entry.
    let twice = bundle::write(&[(id(1), b"one"), (id(2), b"one")]);
    assert!(matches!(bundle::read(&twice, &[entry(id(1), b"one")]), Err(BundleError::Extra(..))));
    let once = bundle::write(&[(id(1), b"one")]);
    let both = [entry(id(1), b"one"), entry(id(2), b"one")];
    assert!(matches!(bundle::read(&once, &both), Err(BundleError::Missing(_))));
    assert!(matches!(bundle::read(b"no gzip", &[]), Err(BundleError::Unreadable(_))));
    assert!(matches!(
        bundle::read(&once[..once.len() / 2], &[entry(id(1), b"one")]),
        Err(BundleError::Unreadable(_))
    ));
}

fn archive(write: impl FnOnce(&mut tar::Builder<flate2::write::GzEncoder<Vec<u8>>>)) -> Vec<u8> {
    let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut builder = tar::Builder::new(gzip);
    write(&mut builder);
    builder.into_inner().unwrap().finish().unwrap()
}

fn header(name: &str, kind: tar::EntryType, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    // Straight into the bytes: the library itself refuses the names that an attacker would use.
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_cksum();
    header
}

#[test]
fn amb_22_nested_linked_and_absolute_entries_are_refused() {
    use tar::EntryType::*;
    let wanted = [entry(id(1), b"x")];
    for (name, kind) in [
        ("deep/x.yaml", Regular),
        ("/x.yaml", Regular),
        ("../x.yaml", Regular),
        ("./a/x.yaml", Regular),
        ("x.yaml", Symlink),
        ("x.yaml", Link),
        ("x.yaml", Fifo),
        ("x.yaml", Block),
        ("dir", Directory),
    ] {
        let size = if kind == Regular { 1 } else { 0 };
        let bytes = archive(|tar| tar.append(&header(name, kind, size), &b"x"[..size as usize]).unwrap());
        let refused = bundle::read(&bytes, &wanted);
        assert!(matches!(refused, Err(BundleError::NotAtRoot(_))), "{name} {kind:?}: {refused:?}");
    }
    // Names mean nothing, and `./` is the root.
    for name in ["anything", "./x.yml"] {
        let bytes = archive(|tar| tar.append(&header(name, Regular, 1), &b"x"[..]).unwrap());
        assert_eq!(bundle::read(&bytes, &wanted).unwrap().len(), 1, "{name}");
    }
}

#[test]
fn a_bundle_cannot_inflate_without_end() {
    let large = vec![0u8; yaml::SIZE_MAX + 1];
    let bytes = archive(|tar| {
        tar.append(&header("x", tar::EntryType::Regular, large.len() as u64), &large[..]).unwrap()
    });
    assert!(matches!(bundle::read(&bytes, &[entry(id(1), &large)]), Err(BundleError::DocumentTooLarge(_))));

    // Many documents that are each allowed: the sum is what stops it.
    let one = vec![b'a'; yaml::SIZE_MAX];
    let count = bundle::INFLATED_SIZE_MAX as usize / one.len() + 1;
    let bytes = archive(|tar| {
        for _ in 0..count {
            tar.append(&header("x", tar::EntryType::Regular, one.len() as u64), &one[..]).unwrap();
        }
    });
    let wanted: Vec<Entry> = (0..count as u32).map(|n| entry(id(n), &one)).collect();
    assert!(matches!(bundle::read(&bytes, &wanted), Err(BundleError::TooLarge)));

    // A name of a gigabyte, as GNU tar writes long names, is stopped by the same bound.
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(header("././@LongLink", tar::EntryType::GNULongName, 1 << 30).as_bytes()).unwrap();
    let zeros = vec![0u8; 1 << 20];
    for _ in 0..80 {
        gzip.write_all(&zeros).unwrap();
    }
    assert!(bundle::read(&gzip.finish().unwrap(), &[]).is_err());
}
