//! State manifests: [`Manifest`] ↔ JSON (data-model.md, section 4).

use margrave_core::asked::Asked;
use margrave_core::digest::Digest;
use margrave_core::id::AssignmentId;
use margrave_core::manifest::{Blob, ENTRY_COUNT_MAX, Entry, InvalidManifest, Manifest};
use serde_json::{Value, json};

use crate::body::{BodyError, read_body};
use crate::bundle;
use crate::g2::EXTENSION;
use crate::g2::capabilities::{read_hold, write_hold};
use crate::schedule::{self, ScheduleBody};
use crate::tree::{At, Content, Findings, Node};

/// The media type of a manifest (MI-G2-044).
pub const MEDIA_TYPE: &str = "application/vnd.margo.manifest.v1+json";

/// A list of [`ENTRY_COUNT_MAX`] entries takes less than half of this.
pub const SIZE_MAX: usize = 8 << 20;

/// Canonical JSON rounds numbers to doubles; an advisory size that would be rounded is left out instead.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// What our own addition to a manifest says.
const SCHEDULE: &str = "schedule";
const LEAVING: &str = "leaving";
const HOLD: &str = "hold";
const LOOK: &str = "look";

/// What every path of the generation starts with.
const ROOT: &str = "/api/v1";

/// Where a bundle is served (MI-G2-049).
pub fn bundle_path(digest: &Digest) -> String {
    bundle_under(ROOT, digest)
}

/// Where a document is served (MI-G2-050).
pub fn document_path(id: AssignmentId, digest: &Digest) -> String {
    document_under(ROOT, id, digest)
}

pub(crate) fn bundle_under(root: &str, digest: &Digest) -> String {
    format!("{root}/bundles/{digest}")
}

pub(crate) fn document_under(root: &str, id: AssignmentId, digest: &Digest) -> String {
    format!("{root}/deployments/{id}/{digest}")
}

/// The manifest's bytes: RFC 8785 (MI-G2-054), except that a version above 2^53 is written exactly, where
/// RFC 8785 would round it to a double and two manifests would share a number (DM-086).
pub fn write(manifest: &Manifest) -> Vec<u8> {
    write_under(ROOT, manifest)
}

/// As [`write`], for a generation whose paths start with something else.
pub(crate) fn write_under(root: &str, manifest: &Manifest) -> Vec<u8> {
    let bundle = manifest.bundle().map_or(Value::Null, |blob| {
        let url = bundle_under(root, &blob.digest);
        sized(json!({ "mediaType": bundle::MEDIA_TYPE, "digest": blob.digest, "url": url }), blob)
    });
    let entry = |entry: &Entry| {
        let url = document_under(root, entry.id, &entry.document.digest);
        let fields = json!({ "deploymentId": entry.id, "digest": entry.document.digest, "url": url });
        sized(fields, entry.document)
    };
    let deployments: Vec<Value> = manifest.entries().iter().map(entry).collect();
    // The keys in canonical order; only the values need the canonicalizer.
    let mut out = b"{\"bundle\":".to_vec();
    out.extend(canonical(&bundle));
    out.extend(b",\"deployments\":");
    out.extend(canonical(&Value::Array(deployments)));
    out.extend(format!(",\"manifestVersion\":{}", manifest.version()).bytes());
    // Only where there is something to say, so that manifests of before keep their bytes.
    let mut addition = serde_json::Map::new();
    if !manifest.schedule().is_usual() {
        addition.insert(SCHEDULE.to_owned(), json!(ScheduleBody::from(manifest.schedule())));
    }
    if !manifest.leaving().is_empty() {
        addition.insert(LEAVING.to_owned(), json!(manifest.leaving()));
    }
    let Asked { hold, look } = manifest.asked();
    if let Some(hold) = hold {
        addition.insert(HOLD.to_owned(), write_hold(hold));
    }
    if *look > 0 {
        addition.insert(LOOK.to_owned(), (*look).into());
    }
    if !addition.is_empty() {
        out.extend(format!(",\"{EXTENSION}\":").bytes());
        out.extend(canonical(&Value::Object(addition)));
    }
    out.push(b'}');
    out
}

fn canonical(value: &Value) -> Vec<u8> {
    serde_json_canonicalizer::to_vec(value).expect("a JSON value has a canonical form")
}

fn sized(mut fields: Value, blob: Blob) -> Value {
    if let Some(size) = blob.size.filter(|size| *size <= SAFE_INTEGER_MAX) {
        fields["sizeBytes"] = size.into();
    }
    fields
}

/// A manifest as it arrived, and where its parts are to be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub manifest: Manifest,
    /// Origin-relative, to be resolved against the server's base URL (AMB-25).
    pub bundle_url: Option<String>,
    /// One per entry, in the order of [`Manifest::entries`].
    pub document_urls: Vec<String>,
}

/// A manifest that a device may act on, once it has judged the version.
pub fn read(bytes: &[u8]) -> Result<Listing, BodyError> {
    read_under(ROOT, bytes)
}

pub(crate) fn read_under(paths: &str, bytes: &[u8]) -> Result<Listing, BodyError> {
    if bytes.len() > SIZE_MAX {
        return Err(BodyError::Malformed(format!("{} bytes are more than a manifest has", bytes.len())));
    }
    read_body(bytes, |root, findings| read_root(root, paths, findings))
}

fn read_root(root: &At<'_>, paths: &str, findings: &mut Findings) -> Option<Listing> {
    if !findings.is_map(root, "MI-G2-047") {
        return None;
    }
    let version = findings
        .required(root, "manifestVersion", "MI-G2-047")
        .and_then(|at| findings.unsigned(&at, "MI-G2-047"));
    if version == Some(0) {
        findings.add("/manifestVersion", "MI-G2-047", InvalidManifest::VersionZero.to_string());
    }
    if !root.has("bundle") {
        findings.add(
            "/bundle",
            "DM-082",
            "bundle is missing; it must be there, null when there are no deployments",
        );
    }
    let bundle = root.field("bundle").filter(|at| findings.is_map(at, "MI-G2-049")).map(|at| {
        let media_type = findings.required_text(&at, "mediaType", "MI-G2-049");
        if media_type.is_some_and(|media_type| media_type != bundle::MEDIA_TYPE) {
            let message = format!("must be {}", bundle::MEDIA_TYPE);
            findings.add(at.place_of("mediaType"), "MI-G2-049", message);
        }
        let blob = read_blob(&at, findings);
        let url = blob.and_then(|blob| read_url(&at, &bundle_under(paths, &blob.digest), findings));
        (blob, url)
    });
    let items = findings.required_items(root, "deployments", "MI-G2-050")?;
    if items.len() > ENTRY_COUNT_MAX {
        findings.add("/deployments", "MI-G2-050", InvalidManifest::TooManyEntries(items.len()).to_string());
        return None;
    }
    let mut listed: Vec<(Entry, String)> =
        items.iter().filter_map(|at| read_entry(at, paths, findings)).collect();
    if !findings.is_empty() {
        return None;
    }
    let (blob, bundle_url) = bundle.map_or((None, None), |(blob, url)| (blob, url));
    listed.sort_by_key(|(entry, _)| entry.id);
    let (entries, document_urls) = listed.into_iter().unzip();
    let said = root.field(EXTENSION).and_then(|at| at.field(SCHEDULE));
    let schedule = said.map(|at| schedule::read(&at)).unwrap_or_default();
    let leaving = root.field(EXTENSION).map(|at| read_leaving(&at)).unwrap_or_default();
    let asked = root.field(EXTENSION).map(|at| read_asked(&at)).unwrap_or_default();
    match Manifest::new(version?, blob, entries) {
        Ok(manifest) => {
            let manifest = manifest.with_schedule(schedule).with_leaving(leaving).with_asked(asked);
            Some(Listing { manifest, bundle_url, document_urls })
        }
        Err(error) => {
            let (place, rule) = match error {
                InvalidManifest::VersionZero => ("/manifestVersion", "MI-G2-047"),
                InvalidManifest::BundleMissing | InvalidManifest::BundleOfNothing => ("/bundle", "MI-G2-048"),
                InvalidManifest::DuplicateEntry(_) | InvalidManifest::TooManyEntries(_) => {
                    ("/deployments", "MI-G2-050")
                }
            };
            findings.add(place, rule, error.to_string());
            None
        }
    }
}

/// What is no id is left out: a wish of ours must not cost a device its manifest.
fn read_leaving(addition: &At<'_>) -> Vec<AssignmentId> {
    let Some(Content::List(items)) = addition.field(LEAVING).map(|at| &at.node.content) else {
        return vec![];
    };
    let id = |item: &Node| match &item.content {
        Content::Text(text) => AssignmentId::parse(text).ok(),
        _ => None,
    };
    items.iter().take(ENTRY_COUNT_MAX).filter_map(id).collect()
}

/// What makes no sense was not asked.
fn read_asked(addition: &At<'_>) -> Asked {
    Asked {
        hold: addition.field(HOLD).and_then(|at| read_hold(at.node)),
        look: addition.field(LOOK).and_then(|at| at.unsigned()).unwrap_or_default(),
    }
}

fn read_entry(at: &At<'_>, paths: &str, findings: &mut Findings) -> Option<(Entry, String)> {
    if !findings.is_map(at, "MI-G2-050") {
        return None;
    }
    let id = findings
        .required(at, "deploymentId", "MI-G2-050")
        .and_then(|at| findings.parsed(&at, "MI-G2-050", AssignmentId::parse));
    let document = read_blob(at, findings);
    let (id, document) = (id?, document?);
    let url = read_url(at, &document_under(paths, id, &document.digest), findings)?;
    Some((Entry { id, document }, url))
}

fn read_blob(at: &At<'_>, findings: &mut Findings) -> Option<Blob> {
    let digest = findings
        .required(at, "digest", "DM-081")
        .and_then(|at| findings.parsed(&at, "DM-081", Digest::parse));
    // Advisory only (MI-G2-052): a size that makes no sense is no reason to refuse what the digest proves.
    let size = match at.field("sizeBytes").map(|at| &at.node.content) {
        Some(Content::Number(number)) => number.as_u64(),
        _ => None,
    };
    digest.map(|digest| Blob { digest, size })
}

/// The URL must be a path that ends as the standard says, whatever prefix a server lives under; its digest
/// is then the entry's, and it cannot lead to another origin (AMB-25).
fn read_url(at: &At<'_>, expected: &str, findings: &mut Findings) -> Option<String> {
    let field = findings.required(at, "url", "AMB-25")?;
    let url = findings.text(&field, "AMB-25")?;
    // Some encode the colon of the digest (AMB-24).
    let plain = url.replace("%3A", ":").replace("%3a", ":");
    let prefix = plain.strip_suffix(expected).filter(|_| url.len() <= 2048);
    let segment = |s: &str| {
        !s.is_empty()
            && s != "."
            && s != ".."
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~'))
    };
    let fits = prefix.is_some_and(|prefix| match prefix.strip_prefix('/') {
        None => prefix.is_empty(),
        Some(rest) => rest.split('/').all(segment),
    });
    if !fits {
        let message = format!("must be a path on this server that ends in {expected}");
        findings.add(field.place, "AMB-25", message);
        return None;
    }
    Some(url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_core::device::Hold;
    use margrave_core::moment::Moment;

    fn version(text: &str) -> Option<u64> {
        let body = format!(r#"{{"bundle":null,"deployments":[],"manifestVersion":{text}}}"#);
        read(body.as_bytes()).ok().map(|listing| listing.manifest.version())
    }

    #[test]
    fn mi_g2_085_what_a_server_waits_to_hear_of_survives_and_nonsense_costs_no_manifest() {
        let id = AssignmentId::parse("00000000-0000-4000-8000-000000000009").unwrap();
        let asking = Manifest::new(7, None, vec![]).unwrap().with_leaving([id]);
        let bytes = write(&asking);
        assert_eq!(read(&bytes).unwrap().manifest, asking);
        let leaving = |text: &str| {
            let body = format!(
                r#"{{"bundle":null,"deployments":[],"manifestVersion":7,"x-margrave-extensions":{text}}}"#
            );
            read(body.as_bytes()).unwrap().manifest.leaving().to_vec()
        };
        assert_eq!(leaving(&format!(r#"{{"leaving":[7,"x","{id}",null]}}"#)), [id]);
        for nonsense in [r#"{"leaving":7}"#, r#"{"leaving":{}}"#, "[]", "null"] {
            assert!(leaving(nonsense).is_empty(), "{nonsense}");
        }
        let many = vec![format!("\"{id}\""); ENTRY_COUNT_MAX + 5].join(",");
        assert_eq!(leaving(&format!(r#"{{"leaving":[{many}]}}"#)).len(), ENTRY_COUNT_MAX);
    }

    #[test]
    fn mi_g2_085_what_is_asked_of_a_device_survives_and_nonsense_costs_no_manifest() {
        let hold = Hold::told("operator ann", "batch 17 runs", Moment(1_000), Moment(2_000)).unwrap();
        let asking = Asked { hold: Some(hold), look: 1_790_000_000_000 };
        let manifest = Manifest::new(7, None, vec![]).unwrap().with_asked(asking.clone());
        assert_eq!(read(&write(&manifest)).unwrap().manifest, manifest);
        let silent = Manifest::new(7, None, vec![]).unwrap().with_asked(Asked::default());
        assert!(!String::from_utf8(write(&silent)).unwrap().contains(EXTENSION));
        let asked = |text: &str| {
            let body = format!(
                r#"{{"bundle":null,"deployments":[],"manifestVersion":7,"x-margrave-extensions":{text}}}"#
            );
            read(body.as_bytes()).unwrap().manifest.asked().clone()
        };
        assert_eq!(asked(r#"{"hold":7,"look":9}"#), Asked { hold: None, look: 9 });
        for nonsense in [
            r#"{"look":-1}"#,
            r#"{"look":"soon"}"#,
            r#"{"hold":{"holder":"ann"}}"#,
            r#"{"hold":{"holder":"ann","reason":"","since":1,"until":2}}"#,
            r#"{"hold":{"holder":"ann","reason":"x","since":3,"until":2}}"#,
            "7",
        ] {
            assert!(asked(nonsense).is_nothing(), "{nonsense}");
        }
    }

    #[test]
    fn amb_17_a_version_of_a_program_that_has_only_doubles_is_taken_where_it_is_exact() {
        for (text, number) in [("7", 7), ("7.0", 7), ("7e0", 7), ("9007199254740991.0", (1 << 53) - 1)] {
            assert_eq!(version(text), Some(number), "{text}");
        }
        assert_eq!(version("18446744073709551615"), Some(u64::MAX));
        for text in ["7.5", "-7.0", "9007199254740993.0", "1e300", "18446744073709551616", "\"7\"", "null"] {
            assert_eq!(version(text), None, "{text}");
        }
    }
}
