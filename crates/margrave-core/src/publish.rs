//! Documents → manifest, with versions that only grow.

use crate::manifest::{Blob, Entry, InvalidManifest, Manifest};

/// The manifest that must follow `current` so that the client runs exactly `entries`; `None` when it
/// already does. `bundle` is asked for only when there is something to put into it.
pub fn next_manifest(
    current: Option<&Manifest>,
    mut entries: Vec<Entry>,
    bundle: impl FnOnce(&[Entry]) -> Blob,
) -> Result<Option<Manifest>, PublishError> {
    entries.sort_by_key(|entry| entry.id);
    if let Some(current) = current {
        let same = |a: &Entry, b: &Entry| a.id == b.id && a.document.digest == b.document.digest;
        let unchanged = current.entries().len() == entries.len()
            && current.entries().iter().zip(&entries).all(|(a, b)| same(a, b));
        if unchanged {
            return Ok(None);
        }
    }
    let held = current.map_or(0, Manifest::version);
    let version = held.checked_add(1).ok_or(PublishError::VersionsExhausted)?;
    let bundle = (!entries.is_empty()).then(|| bundle(&entries));
    Ok(Some(Manifest::new(version, bundle, entries)?))
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    #[error("the client has used up all manifest versions; give it a new identity")]
    VersionsExhausted,
    #[error("the documents do not make a manifest")]
    Invalid(#[from] InvalidManifest),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::id::AssignmentId;
    use proptest::prelude::*;

    fn entry(id: u8, content: u8) -> Entry {
        let id = AssignmentId::parse(&format!("00000000-0000-4000-8000-0000000000{id:02x}")).unwrap();
        Entry { id, document: Blob { digest: Digest::of(&[content]), size: Some(1) } }
    }

    fn bundle(_: &[Entry]) -> Blob {
        Blob { digest: Digest::of(b"bundle"), size: None }
    }

    #[test]
    fn mi_g2_047_the_first_manifest_of_a_client_is_version_1_and_empty_ones_have_no_bundle() {
        let first = next_manifest(None, vec![], |_| panic!("nothing to bundle")).unwrap().unwrap();
        assert_eq!((first.version(), first.bundle()), (1, None));
    }

    #[test]
    fn the_last_version_is_an_error_and_not_a_wrap_around() {
        let last = Manifest::new(u64::MAX, None, vec![]).unwrap();
        assert_eq!(
            next_manifest(Some(&last), vec![entry(1, 1)], bundle),
            Err(PublishError::VersionsExhausted)
        );
    }

    proptest! {
        /// Whatever is wanted next: a change raises the version by one, and no change publishes nothing.
        #[test]
        fn mi_g2_047_versions_grow_by_one_exactly_when_something_changes(
            steps in proptest::collection::vec(proptest::collection::btree_map(0u8..5, 0u8..3, 0..5), 1..20)
        ) {
            let mut current: Option<Manifest> = None;
            for wanted in steps {
                let entries: Vec<Entry> = wanted.iter().map(|(id, content)| entry(*id, *content)).collect();
                let before = current.clone();
                match next_manifest(current.as_ref(), entries.clone(), bundle).unwrap() {
                    Some(next) => {
                        prop_assert_eq!(next.version(), before.as_ref().map_or(0, |m| m.version()) + 1);
                        prop_assert_eq!(next.entries(), &entries[..]);
                        current = Some(next);
                    }
                    None => prop_assert!(before.is_some_and(|held| held.entries() == &entries[..])),
                }
            }
        }
    }
}
