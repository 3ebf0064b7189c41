//! What is noted of a component on disk: what was started, what was healthy before it, what was fetched for it.
//!
//! Where it is noted is `project.rs`.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName};
use serde::{Deserialize, Serialize};

use super::adjustable::Adjustable;
use super::container::Container;
use super::perishable::Perishable;
use super::unnamed::Volumes;

/// What we remember about a project that we have begun to start.
///
/// The engine is asked what runs; the record says what that means. The order's fingerprint is kept here
/// and not as a label on containers, because Compose recreates a container whose labels change: a new
/// value for one service would then restart all of them, the data base too. Instead the record holds
/// Compose's own hash of every service as it was started, and the fingerprint counts only while the
/// containers still carry those hashes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub assignment: AssignmentId,
    pub component: ComponentName,
    pub fingerprint: Digest,
    /// The archive that the fingerprint was resolved to.
    pub archive: Digest,
    /// What was healthy before this, newest first; kept on disk so that going back needs no network.
    #[serde(default)]
    pub before: Vec<Fetched>,
    pub stage: Stage,
    /// The version of Compose that the hashes are of, or of those at least that were there before a repair by another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compose: Option<String>,
    pub services: BTreeMap<String, Service>,
    /// Volumes without a name that it was given back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: Volumes,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub perishable: BTreeSet<Perishable>,
    /// Containers that ended by themselves with code 0, and when: done, not down.
    pub completed: BTreeSet<Ending>,
    /// Services all of whose containers ended so. They stay done when somebody tidies up the containers.
    #[serde(default)]
    pub done: BTreeSet<String>,
    /// Containers that ended because somebody told them to, and when. Engines forget that soon.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub stopped: BTreeSet<Ending>,
    /// The containers that are not on trial until this is settled, by id (`trial.rs`). `None` where it is, or an older agent began
    /// with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven: Option<BTreeSet<String>>,
    /// How often something of it was made anew because it never was well.
    #[serde(default)]
    pub remade: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Stage {
    /// Compose was told to start it, and has not said that it did. Part of it may run.
    Begun,
    /// Compose created and started everything; whether it is healthy is the engine's to say.
    Started,
    /// It was healthy once, so the archive is good and is never asked for again.
    Settled,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Service {
    pub replicas: u32,
    /// Compose's hash of the service's definition, as its containers carry it.
    pub hash: Option<String>,
    /// As its containers were started; `None` is of an older agent, and not compared.
    #[serde(default)]
    pub adjustable: Option<Adjustable>,
    /// The image's name.
    #[serde(default)]
    pub image: Option<String>,
    /// The image itself; `None` is of an older agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_note: Option<ImageNote>,
    /// The label that tells what its configs and secrets hold; none is of an older agent, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Digest>,
    /// There is something to tell, and the label was left out: an older agent started it without.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlabelled: bool,
}

/// What became of the image that a service was first healthy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ImageNote {
    /// Its name was given to another one, and it is used by its id.
    Pinned,
    /// It was gone, and its name gave another one.
    Replaced,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Ending {
    pub container: String,
    pub finished_at: String,
}

/// The archive that an order was resolved to before anything was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fetched {
    pub fingerprint: Digest,
    pub archive: Digest,
    /// The images that it needs, by name.
    #[serde(default)]
    pub images: BTreeSet<String>,
    /// The images that it was healthy with, by service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub image_ids: BTreeMap<String, String>,
    /// The volumes without a name that its services had when they were taken away.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: Volumes,
}

impl Fetched {
    /// Of which nothing more is known yet.
    pub(super) fn new(fingerprint: Digest, archive: Digest) -> Fetched {
        let (images, image_ids, volumes) = Default::default();
        Fetched { fingerprint, archive, images, image_ids, volumes }
    }

    /// Notes volumes without a name of services of which none are noted.
    pub(super) fn add_volumes(&mut self, volumes: &Volumes) {
        for (service, of_service) in volumes {
            self.volumes.entry(service.clone()).or_insert_with(|| of_service.clone());
        }
    }
}

/// How many versions that were healthy are kept although nobody is known to want them: whoever is deployed again soon needs no
/// network then.
const BEFORE_MAX: usize = 3;
/// All of them together. What is wanted is what may be gone back to, and that is a few; before anybody said what is, all is.
const KEPT_MAX: usize = 8;

impl Record {
    /// What is known to have been healthy, this one included where it was; for whatever comes next, which may be one of
    /// them again. However many were healthy since, but not for long enough, what is wanted stays.
    pub(super) fn kept(self, is_wanted: impl Fn(&Fetched) -> bool) -> Vec<Fetched> {
        let was_well = self.stage == Stage::Settled;
        let this = was_well.then(|| Fetched {
            fingerprint: self.fingerprint,
            archive: self.archive,
            images: self.images(),
            image_ids: self.image_ids(),
            volumes: self.volumes.clone(),
        });
        let mut kept: Vec<Fetched> = Vec::new();
        for fetched in this.into_iter().chain(self.before) {
            if !kept.iter().any(|known| known.fingerprint == fetched.fingerprint) {
                kept.push(fetched);
            }
        }
        let mut newer = 0..;
        kept.retain(|fetched| newer.next().is_some_and(|newer| newer < BEFORE_MAX) || is_wanted(fetched));
        kept.truncate(KEPT_MAX);
        kept
    }

    /// The same, with the volumes without a name of services that go now. Updates handed them on, also those that were never
    /// healthy and are not kept: so they are of all that came before, where nothing else is noted for the service.
    pub(super) fn kept_with(
        mut self,
        left_behind: Volumes,
        is_wanted: impl Fn(&Fetched) -> bool,
    ) -> Vec<Fetched> {
        self.volumes.extend(left_behind.clone());
        let mut kept = self.kept(is_wanted);
        kept.iter_mut().for_each(|fetched| fetched.add_volumes(&left_behind));
        kept
    }

    /// It was healthy as a whole: nothing of it is on trial any more.
    pub(super) fn settle(&mut self) {
        self.stage = Stage::Settled;
        (self.proven, self.remade) = (None, 0);
    }

    /// The services that have to come up; those that are done may have no containers any more.
    pub(super) fn awaited(&self) -> BTreeMap<String, Service> {
        let services = self.services.iter().filter(|(name, _)| !self.done.contains(*name));
        services.map(|(name, service)| (name.clone(), service.clone())).collect()
    }

    /// The images that it was started with, by name.
    pub(super) fn images(&self) -> BTreeSet<String> {
        self.services.values().filter_map(|service| service.image.clone()).collect()
    }

    fn image_ids(&self) -> BTreeMap<String, String> {
        let known = |(name, service): (&String, &Service)| Some((name.clone(), service.image_id.clone()?));
        self.services.iter().filter_map(known).collect()
    }

    /// The archive of an order that was healthy here, now or before.
    pub(super) fn archive_of(&self, fingerprint: Digest) -> Option<Digest> {
        if self.is_settled_as(fingerprint) {
            return Some(self.archive);
        }
        self.before_as(fingerprint).map(|fetched| fetched.archive)
    }

    /// The images of an order that was healthy here, now or before, by service.
    pub(super) fn image_ids_of(&self, fingerprint: Digest) -> Option<BTreeMap<String, String>> {
        if self.is_settled_as(fingerprint) {
            return Some(self.image_ids());
        }
        self.before_as(fingerprint).map(|fetched| fetched.image_ids.clone())
    }

    /// Whether a service was started without the label of its values, and is not made anew for that alone when it is mended.
    pub(super) fn is_unlabelled(&self, service: &str) -> bool {
        // What was begun with was written down before Compose made anything of it.
        let unlabelled =
            |service: &Service| service.unlabelled || self.stage != Stage::Begun && service.values.is_none();
        self.services.get(service).is_some_and(unlabelled)
    }

    /// Whether this was started by another Compose than the one that is here now. It is not known of what an older agent started.
    pub(super) fn is_mended_by_another(&self, compose: &str) -> bool {
        self.compose.as_ref().is_some_and(|version| version != compose)
    }

    /// Notes of what definition containers are, as Compose reckoned it when it made them.
    pub(super) fn note_made(&mut self, containers: &[Container]) {
        for (name, service) in &mut self.services {
            let mut hashes = containers.iter().filter(|c| &c.service == name).map(|c| &c.config_hash);
            let Some(hash) = hashes.next() else { continue };
            // Two kinds of them are not as anything that could be noted.
            if hashes.all(|other| other == hash) {
                service.hash.clone_from(hash);
            }
        }
    }

    fn is_settled_as(&self, fingerprint: Digest) -> bool {
        self.fingerprint == fingerprint && self.stage == Stage::Settled
    }

    fn before_as(&self, fingerprint: Digest) -> Option<&Fetched> {
        self.before.iter().find(|fetched| fetched.fingerprint == fingerprint)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One of which nothing is known.
    pub(in crate::runtime) fn service() -> Service {
        Service {
            replicas: 1,
            hash: None,
            adjustable: None,
            image: None,
            image_id: None,
            image_note: None,
            values: None,
            unlabelled: false,
        }
    }

    pub(in crate::runtime) fn record() -> Record {
        Record {
            assignment: AssignmentId::from_uuid(uuid::Uuid::from_bytes([1; 16])),
            component: ComponentName::parse("web").unwrap(),
            fingerprint: Digest::of(b"order"),
            archive: Digest::of(b"archive"),
            before: Vec::new(),
            stage: Stage::Started,
            compose: None,
            services: BTreeMap::from([(
                "web".into(),
                Service {
                    hash: Some("abc".into()),
                    image: Some("web:1".into()),
                    image_id: Some("abcd".into()),
                    ..service()
                },
            )]),
            volumes: Volumes::new(),
            perishable: BTreeSet::new(),
            completed: BTreeSet::from([Ending { container: "c".into(), finished_at: "t".into() }]),
            done: BTreeSet::new(),
            stopped: BTreeSet::new(),
            proven: None,
            remade: 0,
        }
    }

    #[test]
    fn what_an_older_agent_started_without_a_label_stays_so_also_when_mending_it_is_cut_off() {
        let older = Record { stage: Stage::Settled, ..record() };
        assert!(older.is_unlabelled("web"));
        let with = |unlabelled| BTreeMap::from([("web".to_owned(), Service { unlabelled, ..service() })]);
        let mended = Record { services: with(true), ..older.clone() };
        for stage in [Stage::Begun, Stage::Started, Stage::Settled] {
            assert!(Record { stage, ..mended.clone() }.is_unlabelled("web"), "{stage:?}");
        }
        // What is begun with anew has nothing that could be left as it is.
        assert!(!Record { services: with(false), stage: Stage::Begun, ..older }.is_unlabelled("web"));
    }

    #[test]
    fn what_was_healthy_is_kept_and_what_was_not_is_not() {
        let of = |name: &str| Digest::of(name.as_bytes());
        let next = |before: Option<Record>, name: &str, stage| Record {
            before: before.map(|before| before.kept(|_| false)).unwrap_or_default(),
            fingerprint: of(name),
            archive: of(&format!("{name}.tgz")),
            stage,
            ..record()
        };
        let good = next(None, "good", Stage::Settled);
        let bad = next(Some(good), "bad", Stage::Started);
        assert_eq!((bad.archive_of(of("good")), bad.archive_of(of("bad"))), (Some(of("good.tgz")), None));
        // Tried once more, and then given up: the good one is all that there is.
        let bad = next(Some(bad), "bad", Stage::Begun);
        // Cut off on the way back, it is still known.
        let back = next(Some(bad), "good", Stage::Begun);
        assert_eq!(back.archive_of(of("good")), Some(of("good.tgz")));
        let back = next(Some(back), "good", Stage::Settled);
        assert_eq!((back.before.len(), back.archive_of(of("good"))), (1, Some(of("good.tgz"))));
        let mut last = back;
        for name in ["1", "2", "3", "4"] {
            last = next(Some(last), name, Stage::Settled);
        }
        assert_eq!(last.before.len(), BEFORE_MAX);
        assert!(last.archive_of(of("1")).is_some() && last.archive_of(of("good")).is_none());
        assert_eq!(last.archive_of(of("2")), Some(of("2.tgz")));
    }

    #[test]
    fn what_may_be_gone_back_to_is_kept_however_many_updates_follow_quickly() {
        let of = |name: String| Digest::of(name.as_bytes());
        let good = of("good".into());
        let mut last = Record { fingerprint: good, stage: Stage::Settled, ..record() };
        for number in 0..20 {
            let before = last.kept(|fetched| fetched.fingerprint == good);
            assert!(before.iter().any(|fetched| fetched.fingerprint == good), "{number}");
            assert!(before.len() <= BEFORE_MAX + 1);
            last = Record { fingerprint: of(number.to_string()), before, stage: Stage::Settled, ..record() };
        }
        // Nobody said yet what is wanted.
        for number in 20..40 {
            let before = last.kept(|_| true);
            last = Record { fingerprint: of(number.to_string()), before, stage: Stage::Settled, ..record() };
        }
        assert_eq!(last.before.len(), KEPT_MAX);
    }

    #[test]
    fn promise_7_volumes_without_a_name_are_noted_where_it_is_gone_back_to() {
        let of = |name: &str| {
            let named = |service: &str| (service.to_owned(), [("/rows".to_owned(), name.to_owned())].into());
            Volumes::from([named("db")])
        };
        let good = Record { stage: Stage::Settled, ..record() };
        let newer = |stage| Record {
            fingerprint: Digest::of(b"newer"),
            before: good.clone().kept(|_| false),
            stage,
            ..record()
        };
        let volumes =
            |kept: Vec<Fetched>| kept.into_iter().map(|fetched| fetched.volumes).collect::<Vec<_>>();
        // The one in between was never healthy, or not for long enough.
        assert_eq!(volumes(newer(Stage::Started).kept_with(of("a"), |_| false)), [of("a")]);
        assert_eq!(volumes(newer(Stage::Settled).kept_with(of("a"), |_| false)), [of("a"), of("a")]);
        // It is being mended.
        let mended = Record { before: good.clone().kept(|_| false), stage: Stage::Begun, ..record() };
        assert_eq!(volumes(mended.kept_with(of("a"), |_| false)), [of("a")]);
        // What is noted of an earlier one is its own; what runs has what its containers have.
        let other = Record { volumes: of("b"), ..good.clone() };
        let newer = Record { before: other.clone().kept(|_| false), ..newer(Stage::Started) };
        assert_eq!(volumes(newer.kept_with(of("a"), |_| false)), [of("b")]);
        assert_eq!(volumes(other.kept_with(of("a"), |_| false)), [of("a")]);
    }
}
