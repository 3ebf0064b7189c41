//! The real server without its sockets: fleet, SQLite and the device interface, on the world's clock.
//!
//! What is expensive and the same for every seed (packages, joined devices) is made once and copied.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_device_api::{Caller, LiveManifest, g2};
use margrave_oci::compose::{COMPOSE_TYPE, ComposeArchive};
use margrave_oci::manifest::{EMPTY_CONFIG, IMAGE_MANIFEST, ImageManifest};
use margrave_oci::package::PackageFiles;
use margrave_registry::{Registry, RepositoryName, Tag, TagOrDigest};
use margrave_server::Vault;
use margrave_server::fleet::{Actor, Clock, Fleet, FleetOptions, Naming};
use margrave_store::{AssignmentRecord, Options, Restored, Scope, Store, mark_restored};
use margrave_wire::{Dialect, operator};
use tempfile::TempDir;
use tower::ServiceExt as _;

use crate::upstream::{Ask, Reply};

/// When every world begins.
pub(crate) const BEGINNING: Moment = Moment(1_800_000_000_000);
/// As many devices as a world may have.
pub(crate) const DEVICES_MAX: usize = 3;
/// Where Linux keeps files in memory: what is simulated need not survive.
const MEMORY: &str = "/dev/shm";
const DATABASE: &str = "margrave.db";
const INTENT: &str = "intent.git";
/// A world lives on one thread.
const STORE: Options = Options { queue_length: 1, page_count_max: None, in_place: true };
/// Where devices stand, by their label.
pub(crate) const HALLS: [&str; 2] = ["north", "south"];

/// A directory in memory where there is such, or any.
pub(crate) fn scratch() -> std::io::Result<TempDir> {
    let builder = tempfile::Builder::new().prefix("margrave-world-").to_owned();
    match Path::new(MEMORY).is_dir() {
        true => builder.tempdir_in(MEMORY),
        false => builder.tempdir(),
    }
}

/// A folder with all that is in it.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => drop(std::fs::copy(entry.path(), target)?),
        }
    }
    Ok(())
}

pub(crate) fn client(at: usize) -> ClientId {
    ClientId::parse(&format!("line-{}", at + 1)).expect("a plain word is a client's name")
}

pub(crate) fn operator() -> Actor {
    Actor { name: "operator ann".to_owned() }
}

/// What a server needs to be started.
#[derive(Clone)]
struct Ground {
    registry: Arc<Registry>,
    clock: Arc<AtomicU64>,
    names: Arc<AtomicU64>,
    seed: u64,
}

/// A server that runs.
pub(crate) struct Server {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) store: Store,
    router: Router,
    directory: PathBuf,
    ground: Ground,
}

/// A server that does not.
pub(crate) struct Down {
    directory: PathBuf,
    ground: Ground,
}

/// An answer that the server holds back until there is news.
pub(crate) type Held = Pin<Box<dyn Future<Output = Response>>>;

impl Down {
    /// A copy of the template in `directory`.
    pub(crate) fn fresh(directory: &Path, seed: u64) -> anyhow::Result<Down> {
        let template = template();
        let directory = directory.join("server");
        std::fs::create_dir_all(&directory)?;
        std::fs::copy(template.directory.path().join(DATABASE), directory.join(DATABASE))?;
        let ground = Ground {
            registry: Arc::clone(&template.registry),
            clock: Arc::new(AtomicU64::new(BEGINNING.0)),
            names: Arc::new(AtomicU64::new(0)),
            seed,
        };
        Ok(Down { directory, ground })
    }

    pub(crate) async fn start(self, now: Moment) -> anyhow::Result<Server> {
        let Down { directory, ground } = self;
        ground.clock.store(now.0, Ordering::Relaxed);
        let store = Store::open_with(&directory, STORE)?;
        let fleet = open(store.clone(), &directory, &ground).await?;
        let router = g2::router(margrave_server::http::device::api(Arc::clone(&fleet)));
        Ok(Server { fleet, store, router, directory, ground })
    }

    /// Keeps the database and the repository of what is wanted as they are now.
    pub(crate) fn back_up(&self, number: usize) -> anyhow::Result<()> {
        let to = self.directory.join(format!("backup.{number}"));
        std::fs::create_dir(&to)?;
        std::fs::copy(self.directory.join(DATABASE), to.join(DATABASE))?;
        copy(&self.directory.join(INTENT), &to.join(INTENT))?;
        Ok(())
    }

    /// Puts an earlier one into the place of this one. It knows that, unless a machine was set back with all that is on it.
    pub(crate) fn restore(&self, number: usize, now: Moment, knowingly: bool) -> anyhow::Result<()> {
        for log in ["-wal", "-shm"] {
            let path = self.directory.join(format!("{DATABASE}{log}"));
            if path.exists() {
                std::fs::remove_file(path)?;
            }
        }
        let database = self.directory.join(DATABASE);
        let from = self.directory.join(format!("backup.{number}"));
        std::fs::copy(from.join(DATABASE), &database)?;
        std::fs::remove_dir_all(self.directory.join(INTENT))?;
        copy(&from.join(INTENT), &self.directory.join(INTENT))?;
        if knowingly {
            mark_restored(&database, Restored { made_at: now, restored_at: now })?;
        }
        Ok(())
    }
}

async fn open(store: Store, directory: &Path, ground: &Ground) -> anyhow::Result<Arc<Fleet>> {
    let (clock, names, seed) = (Arc::clone(&ground.clock), Arc::clone(&ground.names), ground.seed);
    let options = FleetOptions {
        server_url: "https://server.example:8443".to_owned(),
        pin: "sha256:pin".to_owned(),
        registry_address: "server.example:8443".to_owned(),
        air_gapped: true,
        silent_after: Duration::from_secs(420),
        demo: None,
        git_directory: directory.join("git"),
        intent_directory: directory.join(INTENT),
        intent_durable: false,
        web_names: vec!["server.example".to_owned()],
        web_authority: "authority".to_owned(),
        vault: Vault::at(directory),
        naming: Naming::new(move || {
            let number = names.fetch_add(1, Ordering::Relaxed);
            uuid::Uuid::from_u64_pair(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number, number)
        }),
    };
    let clock = Clock::new(move || Moment(clock.load(Ordering::Relaxed)));
    Ok(Fleet::open(store, Arc::clone(&ground.registry), clock, options).await?)
}

impl Server {
    /// Everything that was answered is on disk when this returns.
    pub(crate) fn stop(self) -> Down {
        let Server { fleet, store, router, directory, ground } = self;
        drop((router, fleet, store));
        Down { directory, ground }
    }

    pub(crate) fn set_clock(&self, now: Moment) {
        self.ground.clock.store(now.0, Ordering::Relaxed);
    }

    /// The answer to a request, or what will become it.
    pub(crate) async fn ask(&self, who: &ClientId, ask: &Ask) -> Result<Reply, Held> {
        self.fleet.touched(who);
        let mut request = http::Request::builder().method(ask.method.clone()).uri(&ask.path);
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        let mut request =
            request.body(Body::from(ask.body.clone())).expect("a request of ours is well-formed");
        request.extensions_mut().insert(Caller(who.clone()));
        let answer = self.router.clone().oneshot(request);
        let answer = async move { answer.await.unwrap_or_else(|never| match never {}) };
        if ask.wait.is_zero() {
            return Ok(read(answer.await).await);
        }
        // Asked once by us and not by a scheduler, so that it is known when it is ready. A budget of cooperation would
        // make that depend on what was done before.
        let mut held: Held = Box::pin(tokio::task::unconstrained(answer));
        match look(&mut held) {
            Some(response) => Ok(read(response).await),
            None => Err(held),
        }
    }

    pub(crate) fn manifest(&self, who: &ClientId) -> Option<Arc<LiveManifest>> {
        self.fleet.manifest(who, Dialect::Miaf).ok()
    }

    /// What the server takes for wanted and observed on a device.
    pub(crate) async fn picture(&self, who: &ClientId) -> anyhow::Result<Vec<AssignmentRecord>> {
        let device = DeviceRef::parse(who.as_str())?;
        Ok(self.store.assignments(Scope::Devices(vec![device])).await?)
    }
}

/// The answer that was held back, if it is ready.
pub(crate) fn look(held: &mut Held) -> Option<Response> {
    match held.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(response) => Some(response),
        Poll::Pending => None,
    }
}

pub(crate) async fn read(response: Response) -> Reply {
    use http_body_util::BodyExt as _;
    let (parts, body) = response.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => Bytes::from(error.to_string()),
    };
    Reply { status: parts.status, headers: parts.headers, body }
}

/// The package of this world: two versions, whose components differ.
fn description(version: &str, components: [&str; 2]) -> String {
    let [first, second] = components;
    format!(
        r#"
apiVersion: v1
id: app
metadata:
  name: App
  description: Behaves as it is told.
  version: "{version}"
  catalog:
    application:
      tagline: It behaves as it is told.
    organization:
      - name: World
deploymentProfiles:
  - type: compose
    id: only
    components:
      - name: {first}
        properties:
          repository: oci://margrave/components/{first}
          revision: 1.0.0
      - name: {second}
        properties:
          repository: oci://margrave/components/{second}
          revision: 1.0.0
parameters:
  first:
    value: good
    targets:
      - pointer: MODE
        components: ["{first}"]
  second:
    value: good
    targets:
      - pointer: MODE
        components: ["{second}"]
configuration:
  sections:
    - name: General
      settings:
        - {{ parameter: first, name: First, schema: text }}
        - {{ parameter: second, name: Second, schema: text }}
  schema:
    - {{ name: text, dataType: string, maxLength: 40 }}
"#
    )
}

/// The versions of the package, and their components in order.
pub(crate) const VERSIONS: [(&str, [&str; 2]); 2] = [("1.0.0", ["db", "web"]), ("2.0.0", ["web", "cache"])];

struct Template {
    directory: TempDir,
    registry: Arc<Registry>,
}

/// A server with the packages in its catalog and all devices joined; none has said anything yet.
fn template() -> &'static Template {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        // On a thread of its own: whoever asks first may be inside a runtime already.
        let made = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
            runtime.block_on(make_template())
        });
        made.join().expect("making the template does not panic").expect("a template can be made in memory")
    })
}

async fn make_template() -> anyhow::Result<Template> {
    let directory = scratch()?;
    let registry = Arc::new(Registry::open(directory.path().join("registry"))?);
    let clock = Arc::new(AtomicU64::new(BEGINNING.0));
    let ground =
        Ground { registry: Arc::clone(&registry), clock, names: Arc::new(AtomicU64::new(0)), seed: 0 };
    let store = Store::open_with(directory.path(), STORE)?;
    let fleet = open(store, directory.path(), &ground).await?;
    let files = scratch()?;
    std::fs::write(files.path().join("compose.yaml"), "services: {}\n")?;
    for component in ["db", "web", "cache"] {
        let archive = ComposeArchive::build(files.path(), component)?;
        let manifest = archive.manifest(component, "1.0.0");
        debug_assert_eq!(manifest.artifact_type.as_deref(), Some(COMPOSE_TYPE));
        push(&registry, &format!("components/{component}"), "1.0.0", &manifest, &[archive.bytes()]).await?;
    }
    for (version, components) in VERSIONS {
        let text = description(version, components);
        let files = PackageFiles::new(Bytes::from(text.clone()), vec![])?;
        push(&registry, "packages/app", version, &files.manifest(), &[text.as_bytes()]).await?;
        let reference = format!("oci://margrave/packages/app:{version}");
        fleet.add_package(&operator(), operator::AddPackage { reference }, |_| {}).await?;
    }
    for at in 0..DEVICES_MAX {
        let want = operator::CreateJoinToken {
            device: Some(client(at).to_string()),
            labels: [("hall".to_owned(), HALLS[at % HALLS.len()].to_owned())].into(),
            valid_seconds: None,
            git: false,
        };
        let token = fleet.create_join_token(&operator(), want).await?;
        fleet.redeem_join_token(&token.token).await?;
    }
    drop(fleet);
    Ok(Template { directory, registry })
}

async fn push(
    registry: &Registry,
    repository: &str,
    tag: &str,
    manifest: &ImageManifest,
    blobs: &[&[u8]],
) -> anyhow::Result<()> {
    let repository = RepositoryName::parse(repository)?;
    for blob in blobs.iter().chain([&EMPTY_CONFIG]) {
        registry.put_blob(&repository, Bytes::copy_from_slice(blob)).await?;
    }
    let tag = TagOrDigest::Tag(Tag::parse(tag)?);
    registry.put_manifest(&repository, &tag, IMAGE_MANIFEST, manifest.to_bytes().into()).await?;
    Ok(())
}
