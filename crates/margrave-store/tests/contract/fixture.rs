//! A store in a directory of its own, and short words for what tests do with it.

use std::collections::BTreeMap;
use std::time::Duration;

use margrave_core::asked::Asked;
use margrave_core::constraints::{Claims, Port, Protocol};
use margrave_core::deployment::{Deployment, Override, Targets};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::*;
use margrave_core::image::{Image, Images, Part, Unpinned};
use margrave_core::lifecycle::{Reported, State};
use margrave_core::manifest::{Blob, Entry, Manifest};
use margrave_core::moment::Moment;
use margrave_core::parameters::ParameterValue;
use margrave_core::publish::next_manifest;
use margrave_core::report::{Detail, Report};
use margrave_core::rollback::{Rollback, When};
use margrave_core::rollout::Strategy;
use margrave_core::schedule::Schedule;
use margrave_store::*;

pub(crate) const NOW: Moment = Moment(1_790_000_000_000);

pub(crate) fn later(seconds: u64) -> Moment {
    NOW.after(Duration::from_secs(seconds))
}

pub(crate) fn client(name: &str) -> ClientId {
    ClientId::parse(name).unwrap()
}

pub(crate) fn device(name: &str) -> DeviceRef {
    DeviceRef::parse(name).unwrap()
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// A port and a volume.
fn claims() -> Claims {
    let port = Port { number: 8080, protocol: Protocol::Udp, address: "10.0.0.1".parse().ok() };
    Claims { ports: [port].into(), volumes: ["/srv/data".to_owned()].into() }
}

/// One image of one component; pinned, or not.
pub(crate) fn images(component: &str, name: &str, digest: Option<&str>) -> Images {
    let part = Part { digest: Digest::of(b"layer"), size: 7 };
    let image = match digest {
        Some(digest) => Image {
            digest: Some(Digest::of(digest.as_bytes())),
            parts: [("amd64".to_owned(), vec![part])].into(),
            ..Image::default()
        },
        None => Image { unpinned: Some(Unpinned::NotFound("away".into())), ..Image::default() },
    };
    Images {
        named: [(component.to_owned(), [name.to_owned()].into())].into(),
        known: [(name.to_owned(), image)].into(),
    }
}

pub(crate) fn package(id: &str, version: &str) -> PackageRecord {
    PackageRecord {
        id: PackageId::parse(id).unwrap(),
        version: PackageVersion::parse(version).unwrap(),
        reference: format!("oci://margrave/{id}@sha256:0"),
        digest: Digest::of(id.as_bytes()),
        description: b"description: exact".to_vec(),
        claims: [("oci://margrave/components/web:1.0.0".to_owned(), claims())].into(),
        images: images("oci://margrave/components/web:1.0.0", "web:1", Some("image")),
        pins: BTreeMap::from([("oci://margrave/web:1.0.0".to_owned(), Digest::of(b"pin"))]),
        sizes: BTreeMap::from([("oci://margrave/web:1.0.0".to_owned(), 12_345)]),
        added_at: NOW,
        added_by: "operator ann".into(),
    }
}

/// Always the same id for the same name.
pub(crate) fn deployment_id(name: &str) -> DeploymentId {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Digest::of(name.as_bytes()).as_bytes()[..16]);
    DeploymentId::from_uuid(uuid::Uuid::from_bytes(bytes))
}

pub(crate) fn deployment(name: &str, revision: u64) -> Deployment {
    Deployment {
        id: deployment_id(name),
        name: DeploymentName::parse(name).unwrap(),
        package: PackageId::parse("app").unwrap(),
        version: PackageVersion::parse("1.0.0").unwrap(),
        profile: None,
        answers: BTreeMap::new(),
        overrides: vec![Override {
            of: Targets { select: "line in (1, 2), !spare".parse().unwrap(), ..Default::default() },
            answers: BTreeMap::from([(
                ParameterName::parse("greeting").unwrap(),
                ParameterValue::Integer(2).into(),
            )]),
        }],
        forced: Some("it is only a trial".to_owned()),
        targets: Targets {
            devices: [device("line-1")].into(),
            labels: labels(&[("site", "nord")]),
            ..Default::default()
        },
        rollback: Rollback::new(Some(When::Never), Some(7), Some(Duration::from_secs(45))).unwrap(),
        strategy: Strategy { batches: vec!["25%".parse().unwrap()], ..Default::default() },
        windows: vec!["sun 02:00-05:00 Europe/Berlin".parse().unwrap()],
        revision,
    }
}

pub(crate) fn wanted(name: &str, on: &str, document: &[u8]) -> WantedAssignment {
    WantedAssignment {
        id: AssignmentId::derive(deployment_id(name), &device(on)),
        device: device(on),
        deployment: deployment_id(name),
        name: DeploymentName::parse(name).unwrap(),
        package: PackageId::parse("app").unwrap(),
        version: PackageVersion::parse("1.0.0").unwrap(),
        profile: ProfileId::parse("compose").unwrap(),
        document: Digest::of(document),
        basis: Some(Basis { revision: 1, answers: Digest::of(b"answers"), fixed: Default::default() }),
    }
}

pub(crate) fn report(assignment: AssignmentId, adopted_version: u64, state: Reported) -> Report {
    Report {
        assignment,
        device: None,
        adopted_version,
        state,
        fault: None,
        components: vec![],
        detail: None,
        signed_at: None,
    }
}

/// As our own agent makes it: numbered, with the finer state.
pub(crate) fn numbered(
    assignment: AssignmentId,
    adopted_version: u64,
    state: State,
    sequence: u64,
) -> Report {
    let detail = Detail {
        state,
        sequence,
        at: later(sequence),
        document: None,
        attempt: 1,
        next_try: None,
        reason: None,
        waiting: None,
        awaited: None,
        life: None,
        holds: None,
        memory: None,
    };
    Report { detail: Some(detail), ..report(assignment, adopted_version, state.reported()) }
}

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) directory: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        World { store: Store::open_with(directory.path(), options).unwrap(), directory }
    }

    /// Closes the store and opens it again.
    pub(crate) fn reopened(self) -> Self {
        let World { store, directory } = self;
        drop(store);
        World { store: Store::open(directory.path()).unwrap(), directory }
    }

    pub(crate) async fn join(&self, name: &str) {
        let token = NewJoinToken {
            hash: Digest::of(name.as_bytes()),
            client: client(name),
            labels: BTreeMap::new(),
            created_at: NOW,
            created_by: "operator ann".into(),
            expires_at: later(60),
        };
        self.store.create_join_token(token).await.unwrap();
        self.store.redeem_join_token(Digest::of(name.as_bytes()), NOW, b"empty".to_vec()).await.unwrap();
    }

    pub(crate) async fn settle(&self, name: &str) {
        let seen = self.store.device(&device(name)).await.unwrap().unwrap().unsettled;
        let settled = Publication { settled: vec![(device(name), seen)], ..Default::default() };
        self.store.publish(settled).await.unwrap();
    }

    pub(crate) async fn picture(&self, name: &str) -> ClientPicture {
        self.store.pictures(vec![client(name)]).await.unwrap().remove(0)
    }

    /// What publishing these documents (and no others) to a client would be.
    pub(crate) async fn publication(&self, on: &str, documents: &[(&str, &[u8])]) -> ClientPublication {
        let picture = self.picture(on).await;
        let wanted: Vec<_> = documents.iter().map(|(name, bytes)| wanted(name, on, bytes)).collect();
        let entries = documents.iter().zip(&wanted).map(|((_, bytes), wanted)| Entry {
            id: wanted.id,
            document: Blob { digest: wanted.document, size: Some(bytes.len() as u64) },
        });
        let bundle: Vec<u8> = documents.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        let blob = Blob { digest: Digest::of(&bundle), size: Some(bundle.len() as u64) };
        let floor = Manifest::new(
            picture.version_floor,
            picture.manifest.bundle(),
            picture.manifest.entries().to_vec(),
        );
        let manifest = next_manifest(
            Some(&floor.unwrap()),
            entries.collect(),
            &Schedule::default(),
            &Asked::default(),
            |_| blob,
        )
        .unwrap();
        let mut assignments: Vec<AssignmentChange> = wanted.into_iter().map(AssignmentChange::Want).collect();
        for held in &picture.assignments {
            if !documents.iter().any(|(name, _)| held.name.as_str() == *name) {
                assignments.push(AssignmentChange::Drop(held.id));
            }
        }
        ClientPublication {
            client: client(on),
            expected: picture.manifest.version(),
            manifest: manifest.map(|manifest| NewManifest {
                replaces: picture.manifest.entries().to_vec(),
                body: format!("manifest {}", manifest.version()).into_bytes(),
                bundle: manifest.bundle().map(|_| bundle),
                documents: documents.iter().map(|(_, bytes)| Document::of(*bytes)).collect(),
                manifest,
            }),
            assignments,
        }
    }

    /// The client runs exactly these documents from now on.
    pub(crate) async fn run(&self, on: &str, documents: &[(&str, &[u8])]) {
        let publication = self.publication(on, documents).await;
        let publication = Publication { at: NOW, clients: vec![publication], ..Default::default() };
        self.store.publish(publication).await.unwrap();
    }

    /// A deployment of that name (made when there is none) with one document on one device.
    pub(crate) async fn deploy(&self, name: &str, on: &str, document: &[u8]) -> AssignmentId {
        let found = self.store.deployment(&DeploymentName::parse(name).unwrap()).await.unwrap();
        let seen = found.map(|found| found.deployment.revision);
        if seen.is_none() {
            self.add_package(package("app", "1.0.0"), vec![]).await.unwrap();
        }
        let put = Intent::Put {
            deployment: Box::new(deployment(name, seen.unwrap_or(0) + 1)),
            seen,
            by: "operator ann".into(),
        };
        let client = self.publication(on, &[(name, document)]).await;
        let publication =
            Publication { at: NOW, intents: vec![put], clients: vec![client], ..Default::default() };
        self.store.publish(publication).await.unwrap();
        AssignmentId::derive(deployment_id(name), &device(on))
    }

    pub(crate) async fn remove(&self, name: &str) {
        let found = self.store.deployment(&DeploymentName::parse(name).unwrap()).await.unwrap().unwrap();
        let intent = Intent::Remove {
            id: found.deployment.id,
            seen: found.deployment.revision,
            by: "operator ann".into(),
        };
        let publication = Publication { at: NOW, intents: vec![intent], ..Default::default() };
        self.store.publish(publication).await.unwrap();
    }

    pub(crate) async fn want(&self, intent: Intent) -> Result<(), PublishError> {
        self.store.publish(Publication { at: NOW, intents: vec![intent], ..Default::default() }).await
    }

    pub(crate) async fn add_package(
        &self,
        package: PackageRecord,
        resources: Vec<ResourceRecord>,
    ) -> Result<(), PublishError> {
        self.want(Intent::AddPackage { package: Box::new(package), resources }).await
    }

    pub(crate) async fn remove_package(&self, package: &PackageRecord) -> Result<(), PublishError> {
        let (id, version) = (package.id.clone(), package.version.clone());
        self.want(Intent::RemovePackage { id, version, by: "operator ann".into() }).await
    }

    /// All labels that a device is to have.
    pub(crate) async fn label(&self, on: &DeviceRef, pairs: &[(&str, &str)]) {
        let labels = Some(labels(pairs));
        self.want(Intent::Label { device: on.clone(), labels, by: "operator ann".into() }).await.unwrap();
    }

    pub(crate) async fn publish_assignments(&self, on: &str, assignments: Vec<AssignmentChange>) {
        let expected = self.picture(on).await.manifest.version();
        let client = ClientPublication { client: client(on), expected, manifest: None, assignments };
        let publication = Publication { at: NOW, clients: vec![client], ..Default::default() };
        self.store.publish(publication).await.unwrap();
    }

    pub(crate) async fn assignments(&self, on: &str) -> Vec<AssignmentRecord> {
        self.store.assignments(Scope::Devices(vec![device(on)])).await.unwrap()
    }

    pub(crate) async fn assignment(&self, id: AssignmentId) -> AssignmentRecord {
        let all = self.store.assignments(Scope::All).await.unwrap();
        all.into_iter().find(|record| record.id == id).unwrap()
    }
}
