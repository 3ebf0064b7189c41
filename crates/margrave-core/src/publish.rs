//! Package → profile for a device, and documents → manifest, with versions that only grow.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::asked::Asked;
use crate::capabilities::Capabilities;
use crate::constraints::{Need, Room, fits};
use crate::id::{AssignmentId, ProfileId};
use crate::manifest::{Blob, Entry, InvalidManifest, Manifest};
use crate::package::{Package, Profile};
use crate::schedule::Schedule;

/// A device, as far as it counts for choosing a profile.
pub struct Circumstances<'a> {
    pub capabilities: &'a Capabilities,
    /// What each profile takes.
    pub needs: &'a BTreeMap<ProfileId, Arc<Need>>,
    pub room: Room<'a>,
    /// Somebody decided that it goes there also where it does not fit.
    pub forced: bool,
}

/// The profile that a device takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen<'p, T> {
    pub profile: &'p Profile,
    /// What was made for it.
    pub prepared: T,
    /// Why it does not fit, where it was forced.
    pub despite: Vec<String>,
}

/// The profile that a device takes, and what `prepare` made for it: the named one, or the first that fits and can
/// be prepared. One that the device `held` before comes first, so that it does not move without need. Where none fits and it
/// is forced, the first that could run there at all.
///
/// # Errors
/// Every reason why no profile will do, each with its profile where there is a choice.
pub fn choose_profile<'p, T, R: ToString>(
    package: &'p Package,
    named: Option<&'p ProfileId>,
    held: Option<&ProfileId>,
    device: &Circumstances<'_>,
    prepare: impl Fn(&'p Profile) -> Result<T, Vec<R>>,
) -> Result<Chosen<'p, T>, Vec<String>> {
    let mut candidates: Vec<&Profile> = package.candidates(named).collect();
    // Stable: the others stay in the package's order.
    candidates.sort_by_key(|profile| Some(&profile.id) != held);
    let alone = candidates.len() == 1;
    let nothing = Need::default();
    let mut reasons = Vec::new();
    let mut forcible = Vec::new();
    for profile in candidates {
        let said = |reason: String| if alone { reason } else { format!("profile {}: {reason}", profile.id) };
        let need = device.needs.get(&profile.id).map_or(&nothing, |need| need);
        match fits(profile, need, device.capabilities, device.room) {
            Err(misfits) => {
                if device.forced && misfits.iter().all(|misfit| misfit.code.can_be_forced()) {
                    let despite: Vec<String> = misfits.iter().map(|misfit| misfit.message.clone()).collect();
                    forcible.push((profile, despite));
                }
                reasons.extend(misfits.into_iter().map(|misfit| said(misfit.message)));
            }
            Ok(()) => match prepare(profile) {
                Ok(prepared) => return Ok(Chosen { profile, prepared, despite: Vec::new() }),
                Err(broken) => reasons.extend(broken.iter().map(|reason| said(reason.to_string()))),
            },
        }
    }
    for (profile, despite) in forcible {
        match prepare(profile) {
            Ok(prepared) => return Ok(Chosen { profile, prepared, despite }),
            Err(broken) => reasons.extend(broken.iter().map(|reason| {
                if alone {
                    reason.to_string()
                } else {
                    format!("profile {}: {}", profile.id, reason.to_string())
                }
            })),
        }
    }
    if reasons.is_empty() {
        reasons.push(match named {
            Some(id) => format!("the package has no profile {id}"),
            None => "the package has no profile at all".to_owned(),
        });
    }
    Err(reasons)
}

/// The manifest that must follow `current` so that the client runs exactly `entries`, by `schedule`, and does what it is
/// `asked`; `None` when it says so already. `bundle` is asked for only when there is something to put into it.
pub fn next_manifest(
    current: Option<&Manifest>,
    mut entries: Vec<Entry>,
    schedule: &Schedule,
    asked: &Asked,
    bundle: impl FnOnce(&[Entry]) -> Blob,
) -> Result<Option<Manifest>, PublishError> {
    entries.sort_by_key(|entry| entry.id);
    if let Some(current) = current {
        let same = |a: &Entry, b: &Entry| a.id == b.id && a.document.digest == b.document.digest;
        let unchanged = current.schedule() == schedule
            && current.asked() == asked
            && current.entries().len() == entries.len()
            && current.entries().iter().zip(&entries).all(|(a, b)| same(a, b));
        if unchanged {
            return Ok(None);
        }
    }
    let held = current.map_or(0, Manifest::version);
    let version = held.checked_add(1).ok_or(PublishError::VersionsExhausted)?;
    let bundle = (!entries.is_empty()).then(|| bundle(&entries));
    // Asked for until it is heard of: a device may miss any one manifest.
    let is_back = |id: &AssignmentId| entries.binary_search_by_key(id, |entry| entry.id).is_ok();
    let leaving = current.map_or(&[][..], Manifest::leaving).iter().copied();
    let leaving: Vec<AssignmentId> = leaving.filter(|id| !is_back(id)).collect();
    let next = Manifest::new(version, bundle, entries)?;
    Ok(Some(next.with_schedule(schedule.clone()).with_leaving(leaving).with_asked(asked.clone())))
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
        let first = next_manifest(None, vec![], &Schedule::default(), Asked::NOTHING, |_| {
            panic!("nothing to bundle")
        })
        .unwrap()
        .unwrap();
        assert_eq!((first.version(), first.bundle()), (1, None));
    }

    #[test]
    fn the_last_version_is_an_error_and_not_a_wrap_around() {
        let last = Manifest::new(u64::MAX, None, vec![]).unwrap();
        assert_eq!(
            next_manifest(Some(&last), vec![entry(1, 1)], &Schedule::default(), Asked::NOTHING, bundle),
            Err(PublishError::VersionsExhausted)
        );
    }

    mod choosing {
        use super::*;
        use crate::capabilities::Hosting;
        use crate::constraints::{Capacity, Claims};
        use crate::package::{Catalog, Extensions, ProfileKind};

        fn compose_device() -> Capabilities {
            Capabilities {
                device: "edge-1".parse().unwrap(),
                vendor: "Acme".into(),
                model_number: "M".into(),
                serial_number: "4".into(),
                hosting: Some(Hosting {
                    cpus: vec![],
                    memory_bytes: None,
                    storage_bytes: None,
                    deployment_types: vec![ProfileKind::Compose],
                }),
                properties: Default::default(),
                labels: Default::default(),
                simulated: false,
                agent_version: None,
                overrides: vec![],
                holds: vec![],
                looked: 0,
                blind: None,
            }
        }

        fn circumstances<'a>(
            capabilities: &'a Capabilities,
            needs: &'a BTreeMap<ProfileId, Arc<Need>>,
            forced: bool,
        ) -> Circumstances<'a> {
            Circumstances { capabilities, needs, room: Room::default(), forced }
        }

        #[test]
        fn forced_it_goes_where_it_does_not_fit_and_says_in_spite_of_what() {
            let capacity = Capacity { memory_bytes: Some(1 << 30), ..Capacity::default() };
            let need = Arc::new(Need { capacity, claims: Claims::default() });
            let small: ProfileId = "small".parse().unwrap();
            let package = package(&[("helm", ProfileKind::Helm), ("small", ProfileKind::Compose)]);
            let (device, needs) = (compose_device(), BTreeMap::from([(small.clone(), need)]));
            let choose = |forced, broken: &[&str]| {
                let prepare = |_: &Profile| if broken.is_empty() { Ok(()) } else { Err(broken.to_vec()) };
                choose_profile(&package, None, None, &circumstances(&device, &needs, forced), prepare)
            };
            let refused = choose(false, &[]).unwrap_err();
            let message = "needs 1Gi of memory, and the device reports no amount that can be read";
            assert_eq!(refused[1], format!("profile small: {message}"));
            let chosen = choose(true, &[]).unwrap();
            assert_eq!((&chosen.profile.id, chosen.despite), (&small, vec![message.to_owned()]));
            let refused = choose(true, &["needs a value"]).unwrap_err();
            assert_eq!(refused[2], "profile small: needs a value", "answers cannot be forced");
        }

        fn package(profiles: &[(&str, ProfileKind)]) -> Package {
            let profile = |(id, kind): &(&str, ProfileKind)| Profile {
                id: id.parse().unwrap(),
                kind: *kind,
                description: None,
                components: vec![],
                constraints: None,
                extensions: Extensions::new(),
            };
            Package {
                id: "app".parse().unwrap(),
                version: "1.0".parse().unwrap(),
                name: "App".into(),
                description: None,
                catalog: Catalog::default(),
                profiles: profiles.iter().map(profile).collect(),
                parameters: Default::default(),
                sections: vec![],
                schemas: Default::default(),
            }
        }

        /// A device that runs Compose chooses; `unready` is a profile that cannot be prepared.
        fn check(named: Option<&str>, held: Option<&str>, unready: &str, expected: Result<&str, &[&str]>) {
            let package = package(&[
                ("helm", ProfileKind::Helm),
                ("small", ProfileKind::Compose),
                ("large", ProfileKind::Compose),
            ]);
            let id = |text: Option<&str>| text.map(|text| text.parse::<ProfileId>().unwrap());
            let (named, held) = (id(named), id(held));
            let prepare = |profile: &Profile| match profile.id.as_str() == unready {
                true => Err(vec!["needs a value"]),
                false => Ok(()),
            };
            let (device, needs) = (compose_device(), BTreeMap::new());
            let device = circumstances(&device, &needs, false);
            let chosen = choose_profile(&package, named.as_ref(), held.as_ref(), &device, prepare);
            match (chosen, expected) {
                (Ok(chosen), Ok(expected)) => assert_eq!(chosen.profile.id.as_str(), expected),
                (Err(reasons), Err(expected)) => {
                    for part in expected {
                        assert!(reasons.iter().any(|reason| reason.starts_with(part)), "{reasons:?}");
                    }
                }
                (chosen, expected) => panic!("{chosen:?} instead of {expected:?}"),
            }
        }

        #[test]
        fn dm_161_the_named_or_held_or_first_fitting_profile_is_taken() {
            check(None, None, "", Ok("small"));
            check(None, Some("large"), "", Ok("large"));
            check(None, Some("helm"), "", Ok("small"));
            check(None, Some("gone"), "", Ok("small"));
            check(Some("large"), Some("small"), "", Ok("large"));
            check(None, None, "small", Ok("large"));
        }

        #[test]
        fn every_reason_is_told_with_its_profile_where_there_is_a_choice() {
            check(Some("small"), None, "small", Err(&["needs a value"]));
            check(Some("none"), None, "", Err(&["the package has no profile none"]));
            check(Some("helm"), None, "", Err(&["needs a device that runs helm"]));
            let helm = package(&[("a", ProfileKind::Helm), ("b", ProfileKind::Helm)]);
            let (device, needs) = (compose_device(), BTreeMap::new());
            for forced in [false, true] {
                let device = circumstances(&device, &needs, forced);
                let refused = choose_profile(&helm, None, None, &device, |_| Ok::<_, Vec<String>>(()));
                assert_eq!(refused.unwrap_err().len(), 2, "what cannot run at all cannot be forced");
            }
            let device = circumstances(&device, &needs, false);
            let refused = choose_profile(&helm, None, None, &device, |_| Ok::<_, Vec<String>>(()));
            let reasons = refused.unwrap_err();
            assert!(
                reasons[0].starts_with("profile a: ") && reasons[1].starts_with("profile b: "),
                "{reasons:?}"
            );
        }
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
                match next_manifest(current.as_ref(), entries.clone(), &Schedule::default(), Asked::NOTHING, bundle).unwrap() {
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
