//! The numbered list of a client's documents, and when a newer one is acceptable.

use serde::{Deserialize, Serialize};

use crate::asked::Asked;
use crate::digest::Digest;
use crate::id::AssignmentId;
use crate::schedule::Schedule;

/// More documents than any one client can need; a longer list is refused before it costs memory.
pub const ENTRY_COUNT_MAX: usize = 10_000;

/// A manifest whose parts agree: versions from 1, ids unique, a bundle exactly when there are entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    version: u64,
    bundle: Option<Blob>,
    entries: Vec<Entry>,
    /// `None` says the usual, as nearly all do.
    schedule: Option<Box<Schedule>>,
    /// What the server still waits to hear is gone: it may never have been there, or the server may have forgotten that it was told.
    leaving: Vec<AssignmentId>,
    /// `None` asks nothing, as nearly all do.
    asked: Option<Box<Asked>>,
}

/// Content by digest, with the advisory size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    pub digest: Digest,
    pub size: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub id: AssignmentId,
    pub document: Blob,
}

/// Why a list of documents is no manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidManifest {
    #[error("manifestVersion is 0, the first version is 1 (MI-G2-047)")]
    VersionZero,
    #[error("bundle is null although there are deployments (MI-G2-048)")]
    BundleMissing,
    #[error("bundle is present although there are no deployments (MI-G2-048)")]
    BundleOfNothing,
    #[error("deployment {0} is listed twice")]
    DuplicateEntry(AssignmentId),
    #[error("{0} deployments are more than the {ENTRY_COUNT_MAX} that a client may have")]
    TooManyEntries(usize),
}

impl Manifest {
    pub fn new(version: u64, bundle: Option<Blob>, mut entries: Vec<Entry>) -> Result<Self, InvalidManifest> {
        if version == 0 {
            return Err(InvalidManifest::VersionZero);
        }
        if entries.len() > ENTRY_COUNT_MAX {
            return Err(InvalidManifest::TooManyEntries(entries.len()));
        }
        match (&bundle, entries.is_empty()) {
            (None, false) => return Err(InvalidManifest::BundleMissing),
            (Some(_), true) => return Err(InvalidManifest::BundleOfNothing),
            _ => {}
        }
        entries.sort_by_key(|entry| entry.id);
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(InvalidManifest::DuplicateEntry(pair[0].id));
        }
        Ok(Manifest { version, bundle, entries, schedule: None, leaving: vec![], asked: None })
    }

    /// The same, with when the client is to talk and to change.
    pub fn with_schedule(self, schedule: Schedule) -> Self {
        let schedule = (!schedule.is_usual()).then(|| Box::new(schedule));
        Manifest { schedule, ..self }
    }

    pub fn schedule(&self) -> &Schedule {
        self.schedule.as_deref().unwrap_or(Schedule::USUAL)
    }

    /// The same, asking what became of these; as many as a manifest may have.
    pub fn with_leaving(self, leaving: impl IntoIterator<Item = AssignmentId>) -> Self {
        Manifest { leaving: leaving.into_iter().take(ENTRY_COUNT_MAX).collect(), ..self }
    }

    /// What the server wants to hear of if it is not here. It is listed nowhere else.
    pub fn leaving(&self) -> &[AssignmentId] {
        &self.leaving
    }

    /// The same, with what operators ask of the device itself.
    pub fn with_asked(self, asked: Asked) -> Self {
        let asked = (!asked.is_nothing()).then(|| Box::new(asked));
        Manifest { asked, ..self }
    }

    pub fn asked(&self) -> &Asked {
        self.asked.as_deref().unwrap_or(Asked::NOTHING)
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn bundle(&self) -> Option<Blob> {
        self.bundle
    }

    /// Sorted by id, each id once.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// What a device remembers of the manifest it accepted last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    pub version: u64,
    /// Digest of the exact body, which is also its ETag.
    pub body: Digest,
    pub bundle: Option<Blob>,
    pub entries: Vec<Entry>,
    /// What the server waited to hear is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<AssignmentId>,
}

/// What to do with a manifest that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Strictly newer: fetch and verify its documents, then adopt.
    Newer,
    /// The very same manifest again (AMB-08): nothing to do.
    Unchanged,
    /// A security event (MI-G2-080): keep what is held.
    Refused(Regression),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Regression {
    #[error("manifest version {got} is older than {held}, which this device already accepted (MI-G2-080)")]
    Older { held: u64, got: u64 },
    #[error("manifest version {version} came a second time with other content (AMB-08)")]
    SameVersionOtherBody { version: u64 },
}

/// Judges a manifest by what the device holds; versions never go back.
pub fn judge(held: Option<&Accepted>, got: &Manifest, body: Digest) -> Verdict {
    let Some(held) = held else { return Verdict::Newer };
    match got.version().cmp(&held.version) {
        std::cmp::Ordering::Greater => Verdict::Newer,
        std::cmp::Ordering::Equal if held.body == body => Verdict::Unchanged,
        std::cmp::Ordering::Equal => {
            Verdict::Refused(Regression::SameVersionOtherBody { version: held.version })
        }
        std::cmp::Ordering::Less => {
            Verdict::Refused(Regression::Older { held: held.version, got: got.version() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(n: u8) -> AssignmentId {
        AssignmentId::parse(&format!("00000000-0000-4000-8000-0000000000{n:02x}")).unwrap()
    }

    fn entry(n: u8) -> Entry {
        Entry { id: id(n), document: Blob { digest: Digest::of(&[n]), size: None } }
    }

    fn bundle() -> Option<Blob> {
        Some(Blob { digest: Digest::of(b"bundle"), size: Some(6) })
    }

    fn accepted(version: u64, body: &[u8]) -> Accepted {
        Accepted { version, body: Digest::of(body), bundle: None, entries: vec![], leaving: vec![] }
    }

    #[test]
    fn mi_g2_047_mi_g2_048_a_manifest_is_consistent_or_refused() {
        assert_eq!(Manifest::new(0, None, vec![]), Err(InvalidManifest::VersionZero));
        assert_eq!(Manifest::new(1, None, vec![entry(1)]), Err(InvalidManifest::BundleMissing));
        assert_eq!(Manifest::new(1, bundle(), vec![]), Err(InvalidManifest::BundleOfNothing));
        let twice = Manifest::new(1, bundle(), vec![entry(1), entry(2), entry(1)]);
        assert_eq!(twice, Err(InvalidManifest::DuplicateEntry(id(1))));
        let sorted = Manifest::new(u64::MAX, bundle(), vec![entry(2), entry(1)]).unwrap();
        assert_eq!(sorted.entries(), [entry(1), entry(2)]);
        let many = vec![entry(1); ENTRY_COUNT_MAX + 1];
        assert_eq!(
            Manifest::new(1, bundle(), many),
            Err(InvalidManifest::TooManyEntries(ENTRY_COUNT_MAX + 1))
        );
    }

    #[test]
    fn amb_08_the_same_version_is_unchanged_only_with_the_same_body() {
        let got = Manifest::new(5, None, vec![]).unwrap();
        assert_eq!(judge(Some(&accepted(5, b"a")), &got, Digest::of(b"a")), Verdict::Unchanged);
        assert_eq!(
            judge(Some(&accepted(5, b"a")), &got, Digest::of(b"b")),
            Verdict::Refused(Regression::SameVersionOtherBody { version: 5 })
        );
        assert_eq!(judge(None, &got, Digest::of(b"b")), Verdict::Newer);
    }

    proptest! {
        /// Whatever arrives in whatever order, what is held never goes back.
        #[test]
        fn mi_g2_080_the_held_version_only_grows(versions in proptest::collection::vec(1u64..50, 0..60)) {
            let mut held: Option<Accepted> = None;
            for version in versions {
                let got = Manifest::new(version, None, vec![]).unwrap();
                let body = Digest::of(&version.to_le_bytes());
                let before = held.as_ref().map_or(0, |a| a.version);
                match judge(held.as_ref(), &got, body) {
                    Verdict::Newer => {
                        prop_assert!(version > before);
                        held = Some(Accepted { version, body, bundle: None, entries: vec![], leaving: vec![] });
                    }
                    Verdict::Unchanged => prop_assert_eq!(version, before),
                    Verdict::Refused(_) => prop_assert!(version < before),
                }
            }
        }
    }
}
