//! The real runtime: components as Compose projects on a container engine of this machine.
//!
//! Compose creates and changes containers; the engine is asked what became of them. Compose's own
//! waiting is not used, because it counts a one-shot container that ended well as a failure in some versions
//! and cannot say which service failed and why. Nothing that runs is touched before everything the order
//! needs is on the device.
//!
//! Start with [`ComposeRuntime::apply`] (`starting.rs`). Volumes are never removed here (promise 7).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use margrave_core::device::{Observation, Order};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName, DeviceId};
use margrave_core::package::ProfileKind;
use margrave_core::report::{Failure, FailureCode};
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;

use super::components::Components;
use super::engine::{Engine, Lines, Login, Places, concerns, registry_of};
use super::environment::{self, Surroundings};
use super::explain::{self, last_words};
use super::foreign;
use super::images::Images;
use super::last_output;
use super::model::{Given, LABEL_AGENT, Model, Pull, Telemetry};
use super::own_container::Sight;
use super::pins::{Remembered, note_exact};
use super::prepared::Prepared;
use super::program::{Compose, Finished, OUTPUT_BYTES_MAX, Run, RunError, plugin_directories};
use super::project::{ProjectDirectory, ProjectLock, ProjectName};
use super::record::Fetched;
use super::restarts::{Lately, Restarts};
use super::turns::Turns;
use super::written::Written;
use super::{Pending, Runtime};
use crate::registry_login::RegistryLogin;

/// Reading a compose file asks nobody; a minute is for a device that is swapping.
const CONFIG_TIME_MAX: Duration = Duration::from_secs(60);
/// What to do about an agent in a container that the engine does not share files with.
const SAME_PATH: &str = "mount it from the same path of the machine (docs/devices.md)";
/// How long to wait for a Compose process that an earlier agent left behind.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// What the runtime is told about its device.
#[derive(Debug, Clone)]
pub struct ComposeSettings {
    /// The agent's data directory; ours are `compose/` and `artifacts/` in it.
    pub data: PathBuf,
    /// Written on every container: several agents may share an engine, each sees its own.
    pub agent: DeviceId,
    pub places: Places,
    pub telemetry: Option<Telemetry>,
    pub registry: Option<ImageRegistry>,
}

/// The server's registry as the engine reaches it, for images.
#[derive(Debug, Clone)]
pub struct ImageRegistry {
    /// `host:port`; compose files name it as `${MARGRAVE_REGISTRY}`.
    pub address: String,
    /// How this device logs in there; `None` goes without.
    pub login: Option<Arc<RegistryLogin>>,
}

/// What answers on this device, for its capabilities and its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub engine: String,
    pub compose: String,
}

/// Runs Compose components. An engine or Compose that is missing now may be installed later: each is
/// looked for whenever it is needed and not known.
pub struct ComposeRuntime {
    pub(super) settings: ComposeSettings,
    pub(super) components: Components,
    engine: Mutex<Option<(Engine, Sight)>>,
    pub(super) compose: Mutex<Option<Compose>>,
    pub(super) images: Images,
    /// Whether those go that nothing needs any more.
    pub(super) images_go: AtomicBool,
    pub(super) written: Written,
    /// When images were last looked through.
    pub(super) images_swept: Mutex<Option<Instant>>,
    /// What a person should know about what was seen last.
    pub(super) remarks: std::sync::Mutex<Vec<String>>,
    /// Projects of which could not be noted what was seen, and it was said so.
    pub(super) unnoted: std::sync::Mutex<BTreeSet<String>>,
    /// Held by whoever has an archive that no project claims yet, so that it is not swept away.
    pub(super) fetching: RwLock<()>,
    /// Whose turn it is to work on a project.
    turns: Turns<String>,
    /// Whose turn it is to lay out or read its files.
    pub(super) reading: Turns<String>,
    restarts: std::sync::Mutex<Restarts>,
    /// What the engine tells of containers of ours, for as long as it does: what happens while nobody asks is not missed.
    events: Mutex<Option<Lines>>,
    /// The orders that may still be carried out, by fingerprint; `None` before anybody said so.
    wanted: std::sync::Mutex<Option<BTreeSet<Digest>>>,
    /// Something that was wanted is not any more, or could not be swept away yet.
    pub(super) sweep_due: Arc<AtomicBool>,
    /// The last time it could not, and it was said so.
    pub(super) unswept: AtomicBool,
    /// Who sweeps after a removal waits for whoever does already: removed means that nothing is left.
    pub(super) sweeping: Mutex<()>,
    /// Files that were given up are removed by one at a time, beside everything else.
    pub(super) clearing: Arc<Mutex<()>>,
}

impl ComposeRuntime {
    /// Nothing is looked for yet, and nothing is started.
    pub fn new(mut settings: ComposeSettings, components: Components) -> Result<Self, Failure> {
        let making = |error: io::Error| disk("The directory for components could not be made", error);
        std::fs::create_dir_all(settings.data.join("compose")).map_err(making)?;
        // Compose and the engine are given absolute paths, and must see the same ones after a restart.
        settings.data = settings.data.canonicalize().map_err(making)?;
        Ok(ComposeRuntime {
            images: Images::open(&settings.data.join("compose"), components.written()),
            written: components.written().clone(),
            images_go: AtomicBool::default(),
            images_swept: Mutex::default(),
            settings,
            components,
            engine: Mutex::default(),
            compose: Mutex::default(),
            remarks: Default::default(),
            unnoted: Default::default(),
            fetching: RwLock::default(),
            turns: Turns::default(),
            reading: Turns::default(),
            restarts: Default::default(),
            events: Mutex::default(),
            wanted: Default::default(),
            sweep_due: Arc::default(),
            clearing: Arc::default(),
            unswept: AtomicBool::default(),
            sweeping: Mutex::default(),
        })
    }

    /// Looks for an engine and Compose, and says what answered.
    pub async fn find(&self) -> Result<Found, Failure> {
        let engine = self.engine().await?;
        engine.ping().await?;
        let compose = self.compose(&engine).await?;
        Ok(Found { engine: engine.description(), compose: compose.version().to_owned() })
    }

    /// Waits until something happens to a container of ours, or to the engine. Whoever looks at once after this sees a stopped
    /// container within milliseconds instead of at the next regular look.
    pub async fn changed(&self) -> Result<(), Failure> {
        let mut events = self.events.lock().await;
        let Some(told) = events.as_mut() else {
            let engine = self.engine().await?;
            let opened = engine.events().await;
            *events = Some(self.forget_if_unreachable(opened.map_err(Failure::from)).await?);
            // Nobody heard what was before, such as while the engine was away.
            return Ok(());
        };
        let ours = (LABEL_AGENT, self.settings.agent.as_str());
        let mut last = told.next().await;
        while let Ok(Some(event)) = &last
            && !concerns(event, ours, ProjectName::PREFIX)
        {
            last = told.next().await;
        }
        // They come in crowds, and one look sees all of them.
        while matches!(last, Ok(Some(_)))
            && let Ok(next) = tokio::time::timeout(Duration::ZERO, told.next()).await
        {
            last = next;
        }
        if !matches!(last, Ok(Some(_))) {
            // The engine goes away: that is news as well.
            *events = None;
        }
        Ok(())
    }

    pub(super) async fn engine(&self) -> Result<Engine, Failure> {
        Ok(self.engine_and_sight().await?.0)
    }

    async fn engine_and_sight(&self) -> Result<(Engine, Sight), Failure> {
        let mut known = self.engine.lock().await;
        if let Some(known) = &*known {
            return Ok(known.clone());
        }
        let engine = self.locate_engine().await?;
        tracing::info!(engine = %engine.description(), address = %engine.address(), "found a container engine");
        let sight = Sight::of(&self.settings.data, &engine).await?;
        if sight != Sight::Same {
            tracing::warn!(data = %self.settings.data.display(), "{sight}; {SAME_PATH}");
        }
        Ok(known.insert((engine, sight)).clone())
    }

    pub(super) async fn compose(&self, engine: &Engine) -> Result<Compose, Failure> {
        let mut known = self.compose.lock().await;
        if let Some(compose) = &*known {
            return Ok(compose.clone());
        }
        let variables = self.surroundings(engine)?.variables();
        let compose = Compose::locate(&variables, Path::new("/")).await?;
        tracing::info!(version = compose.version(), "found Compose");
        Ok(known.insert(compose).clone())
    }

    /// An engine that does not answer may have moved: next time it is looked for again.
    pub(super) async fn forget_if_unreachable<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(Failure { code: FailureCode::RuntimeUnreachable | FailureCode::RuntimeMissing, .. }) =
            &result
        {
            *self.engine.lock().await = None;
            *self.compose.lock().await = None;
        }
        result
    }

    pub(super) fn surroundings(&self, engine: &Engine) -> Result<Surroundings, Failure> {
        let docker_config = self.projects().join("docker");
        let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
        // Without logins: images are pulled by us, and so no password needs to be on disk.
        let config = serde_json::json!({"cliPluginsExtraDirs": plugin_directories(Some(&home))});
        let file = docker_config.join("config.json");
        let wanted = config.to_string();
        let write = || {
            std::fs::create_dir_all(&docker_config)?;
            if std::fs::read(&file).is_ok_and(|have| have == wanted.as_bytes()) {
                return Ok(());
            }
            self.written.durably(&file, wanted.as_bytes())
        };
        write().map_err(|error| disk("The configuration for Compose could not be written", error))?;
        Ok(Surroundings {
            path: std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
            home,
            docker_host: engine.address().to_string(),
            docker_config,
            registry: self.settings.registry.as_ref().map(|registry| registry.address.clone()),
        })
    }

    pub(super) fn restarts(&self) -> MutexGuard<'_, Restarts> {
        self.restarts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what was fetched for an order may still be needed.
    pub(super) fn is_wanted(&self, fetched: &Fetched) -> bool {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.as_ref().is_none_or(|orders| orders.contains(&fetched.fingerprint))
    }

    pub(super) fn lately(&self) -> Lately {
        self.restarts().lately(Instant::now())
    }

    pub(super) fn projects(&self) -> PathBuf {
        self.settings.data.join("compose")
    }

    /// Takes no lock of the component: what runs is mended meanwhile, and what is newer is fetched while that hangs.
    async fn prefetch_order(&self, order: &Order) -> Result<(), Failure> {
        let Prepared { directory, engine, mut model, .. } = self.lay_out(order, None).await?;
        let remembered = Remembered::of(&directory, order.fingerprint());
        self.provide_images(&engine, &mut model, &remembered).await
    }

    /// Fetches and checks everything; changes nothing that runs.
    pub(super) async fn prepare(&self, order: &Order) -> Result<Prepared, Failure> {
        let project = ProjectName::of(order.assignment, &order.component);
        let lock = self.lock(&ProjectDirectory::new(&self.projects(), &project, &self.written)).await?;
        let mut prepared = self.lay_out(order, Some(lock)).await?;
        let remembered = Remembered::of(&prepared.directory, order.fingerprint());
        self.provide_images(&prepared.engine, &mut prepared.model, &remembered).await?;
        Ok(prepared)
    }

    async fn provide_images(
        &self,
        engine: &Engine,
        model: &mut Model,
        remembered: &Remembered,
    ) -> Result<(), Failure> {
        for (name, service) in &mut model.services {
            self.provide_image(engine, name, service, remembered).await?;
        }
        Ok(())
    }

    /// Everything but the images. From here on the project claims what the order needs, so that nobody who sweeps has to wait
    /// for a pull, which may take hours.
    async fn lay_out(&self, order: &Order, lock: Option<ProjectLock>) -> Result<Prepared, Failure> {
        if order.kind != ProfileKind::Compose {
            let message = format!(
                "This device runs compose components, and {} is of kind {}.",
                order.component,
                order.kind.as_str()
            );
            return Err(Failure::new(FailureCode::RuntimeMissing, message));
        }
        let values = environment::values(order)?;
        let _fetching = self.fetching.read().await;
        let (engine, sight) = self.engine_and_sight().await?;
        let compose = self.compose(&engine).await?;
        let project = ProjectName::of(order.assignment, &order.component);
        let directory = ProjectDirectory::new(&self.projects(), &project, &self.written);
        let (archive, is_new) = self.archive(order, &directory).await?;
        // Two orders may be of one archive, and be laid out in one place.
        let _alone = self.reading.of(project.as_str()).lock_owned().await;
        directory.create().map_err(|error| disk("The component's directory could not be made", error))?;
        if is_new {
            let fetched = Fetched::new(order.fingerprint(), archive);
            let written = directory.note_fetched(fetched);
            written.map_err(|error| disk("What was fetched could not be noted", error))?;
        }
        let files = self.components.unpack(archive, directory.unpacked(archive)).await?;
        let mut variables = values;
        variables.extend(self.surroundings(&engine)?.variables());
        let assignment = order.assignment.uuid().simple().to_string();
        variables.insert(environment::ASSIGNMENT_VARIABLE.into(), assignment.into());
        let mut prepared = Prepared {
            project,
            lock,
            archive,
            files,
            variables,
            compose,
            engine,
            model: Model::default(),
            directory,
        };
        prepared.model = self.read_model(&prepared, order.fingerprint()).await?;
        let registry = self.settings.registry.as_ref().map(|registry| registry.address.as_str());
        note_exact(&mut prepared.model, &order.images, registry);
        if sight != Sight::Same && prepared.model.mounts_files() {
            // Better not at all than with empty directories in the place of its files.
            let message = format!(
                "{} mounts files that the agent keeps, and {sight}. For the data directory, {SAME_PATH}.",
                order.component
            );
            return Err(Failure::new(FailureCode::CreateFailed, message));
        }
        self.claim(order, &prepared)?;
        Ok(prepared)
    }

    /// Waits for as long as it takes while this process works on the component itself: what it does comes to its end.
    pub(super) async fn lock(&self, directory: &ProjectDirectory) -> Result<ProjectLock, Failure> {
        let turn = self.turns.of(directory.name()).lock_owned().await;
        directory.create().map_err(|error| disk("The component's directory could not be made", error))?;
        let lock = directory.lock(LOCK_PATIENCE).await;
        let lock = lock.map_err(|error| disk("The component's lock could not be taken", error))?;
        let lock = lock.map(|lock| lock.in_turn(turn));
        lock.ok_or_else(|| {
            let message = "A Compose process of an earlier try is still at work on this component; it is left to finish.";
            // No fault of what is ordered now.
            Failure::new(FailureCode::RuntimeUnreachable, message)
        })
    }

    /// The archive that the order means, on disk, and whether it was asked for. A component that was up once is never looked up
    /// again: a repair needs no network, and a tag that moved changes nothing until the document does.
    async fn archive(&self, order: &Order, directory: &ProjectDirectory) -> Result<(Digest, bool), Failure> {
        let fingerprint = order.fingerprint();
        if let Some(archive) = directory.archive_of(fingerprint)
            && self.components.has(archive).await?
        {
            return Ok((archive, false));
        }
        // What is named by its digest is the same for ever: nobody has to be asked again, at whatever hour.
        if order.pin.is_some()
            && let Some(fetched) = directory.fetched_as(fingerprint)
            && self.components.has(fetched.archive).await?
        {
            return Ok((fetched.archive, false));
        }
        match self.components.fetch(order).await {
            Ok(archive) => Ok((archive, true)),
            Err(failure) if failure.code == FailureCode::PullFailed => {
                match directory.fetched_as(fingerprint) {
                    Some(fetched) if self.components.has(fetched.archive).await? => {
                        tracing::info!(component = %order.component, %failure, "the registry cannot be reached; using what was fetched");
                        Ok((fetched.archive, false))
                    }
                    _ => Err(failure),
                }
            }
            Err(failure) => Err(failure),
        }
    }

    /// Notes what the order needs, so that nothing of it is swept away before it runs.
    fn claim(&self, order: &Order, prepared: &Prepared) -> Result<(), Failure> {
        let images = prepared.model.services.values().map(|service| service.needed().to_owned()).collect();
        let needed = Fetched { images, ..Fetched::new(order.fingerprint(), prepared.archive) };
        let runs = prepared.directory.record().is_some_and(|record| record.fingerprint == needed.fingerprint);
        if runs || prepared.directory.fetched_as(needed.fingerprint).as_ref() == Some(&needed) {
            return Ok(());
        }
        let written = prepared.directory.note_fetched(needed);
        written.map_err(|error| disk("What is needed could not be noted", error))
    }

    async fn read_model(&self, prepared: &Prepared, fingerprint: Digest) -> Result<Model, Failure> {
        let finished = self.run(prepared, &["config", "--format", "json"], false, CONFIG_TIME_MAX).await;
        let finished = finished.map_err(|error| run_failure(&error))?;
        if !finished.success {
            return Err(explain::config(finished.code, &finished.errors, prepared.directory.path()));
        }
        // Unset variables are told as warnings; they explain much when something does not work later.
        if !finished.errors.trim().is_empty() {
            tracing::warn!(project = %prepared.project, said = %last_words(&finished.errors), "Compose has a remark");
        }
        let listing = self.components.list(prepared.archive).await?;
        let given = Given {
            variables: &prepared.variables,
            archive: prepared.archive,
            project: prepared.project.as_str(),
            was_healthy: prepared.directory.archive_of(fingerprint).is_some(),
        };
        Model::read(&finished.output, &prepared.files, &prepared.directory.mounts(), &listing, &given)
    }

    pub(super) async fn fetch_image(
        &self,
        engine: &Engine,
        service: &super::model::Service,
    ) -> Result<(), Failure> {
        let image = service.needed();
        let found = engine.image_id(image).await?;
        let here = found.is_some();
        if let Some(id) = &found
            && self.images.is_inexact(image)
        {
            self.note_pulled(image, id);
        }
        match service.pull {
            // There is no newer one of these.
            Pull::Always if here && service.exact.is_some() => return Ok(()),
            Pull::Missing | Pull::Never if here => return Ok(()),
            Pull::Never => {
                let message = format!(
                    "The image {image} is not on the device, and the component says never to pull it."
                );
                return Err(Failure::new(FailureCode::PullNotFound, message));
            }
            Pull::Missing | Pull::Always => {}
        }
        let registry =
            self.settings.registry.as_ref().filter(|registry| registry.address == registry_of(image));
        let logins = registry.and_then(|registry| registry.login.as_ref());
        let login = login_for_images(logins).await;
        if !here {
            let noted = self.images.note(image);
            noted.map_err(|error| disk("That an image is pulled could not be noted", error))?;
        }
        let platform = service.platform.as_deref();
        let mut pulled = engine.pull(image, platform, login.as_ref()).await;
        if let (Err(failure), Some(logins), Some(login)) = (&pulled, logins, &login)
            && failure.code == FailureCode::PullDenied
        {
            logins.refused(login).await;
            pulled = engine.pull(image, platform, login_for_images(Some(logins)).await.as_ref()).await;
        }
        if pulled.is_err() && !here && matches!(engine.has_image(image).await, Ok(false)) {
            // Whoever puts it there by hand now has one that is not ours to remove.
            if let Err(error) = self.images.forget(image) {
                tracing::warn!(%image, %error, "that an image was not pulled could not be noted");
            }
        }
        // Where there is no newer one, it may be somebody else's.
        if pulled.is_ok()
            && let Some(id) = engine.image_id(image).await?
            && found.as_ref() != Some(&id)
        {
            self.note_pulled(image, &id);
        }
        match pulled {
            Err(failure) if here => {
                tracing::info!(%image, %failure, "no newer image; the one on the device is used");
                Ok(())
            }
            result => result,
        }
    }

    /// Without it the image is removed by its name alone, as long as nobody notes it later.
    fn note_pulled(&self, image: &str, id: &str) {
        if let Err(error) = self.images.note_id(image, id) {
            tracing::warn!(%image, %error, "which image was pulled could not be noted");
        }
    }

    pub(super) async fn run(
        &self,
        prepared: &Prepared,
        arguments: &[&str],
        with_override: bool,
        time_max: Duration,
    ) -> Result<Finished, RunError> {
        let mut all: Vec<OsString> = vec!["--project-name".into(), prepared.project.as_str().into()];
        all.extend(["--file".into(), prepared.files.join("compose.yaml").into()]);
        if with_override {
            all.extend(["--file".into(), prepared.directory.override_file().into()]);
        }
        all.extend(arguments.iter().map(OsString::from));
        let input = prepared.lock.as_ref().map_or_else(|| Ok(Stdio::null()), ProjectLock::as_input);
        let input = input.map_err(|source| RunError::Start { program: "Compose".into(), source })?;
        let run = Run {
            arguments: all,
            variables: &prepared.variables,
            directory: &prepared.files,
            input,
            time_max,
            output_max: OUTPUT_BYTES_MAX,
        };
        prepared.compose.run(run).await
    }
}

/// Without one the engine may still have the image, or the registry be open to all.
async fn login_for_images(logins: Option<&Arc<RegistryLogin>>) -> Option<Login> {
    let login = logins?.login().await;
    login.map_err(|failure| tracing::warn!(%failure, "no login for images")).ok()
}

pub(super) fn run_failure(error: &RunError) -> Failure {
    let code = match error {
        RunError::Start { .. } => FailureCode::RuntimeMissing,
        // Whoever only reads asks nobody: it is the device that is slow, and not what is ordered.
        RunError::TooLong { limit, .. } => return explain::too_busy(*limit),
        RunError::TooMuch { .. } => FailureCode::ArchiveInvalid,
        RunError::Read { .. } => FailureCode::RuntimeUnreachable,
    };
    Failure::new(code, explain::sentence_of(error))
}

pub(super) fn disk(what: &str, error: io::Error) -> Failure {
    use rustix::io::Errno;
    let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    if full {
        return Failure::new(
            FailureCode::DiskFull,
            format!("{what}: the disk is full. Free some space on the device."),
        );
    }
    let code = match Errno::from_io_error(&error) {
        // It breaks, or the system closed it because of that.
        Some(Errno::IO | Errno::ROFS) => FailureCode::DiskFull,
        Some(Errno::NOMEM | Errno::MFILE | Errno::NFILE) => FailureCode::RuntimeUnreachable,
        // Such as a name that cannot be one.
        _ => FailureCode::CreateFailed,
    };
    Failure::new(code, format!("{what}: {error}."))
}

impl Runtime for ComposeRuntime {
    fn prefetch<'a>(&'a self, order: &'a Order) -> Pending<'a, Result<(), Failure>> {
        Box::pin(async move {
            let result = self.forget_if_unreachable(self.prefetch_order(order).await).await;
            result.map_err(|failure| failure.of(&order.component))
        })
    }

    fn apply<'a>(&'a self, order: &'a Order) -> Pending<'a, Result<(), Failure>> {
        Box::pin(async move {
            let result = self.forget_if_unreachable(self.apply_order(order).await).await;
            let Err(mut failure) = result else { return Ok(()) };
            if last_output::tells_of(failure.code)
                && let Ok(engine) = self.engine().await
            {
                let project = ProjectName::of(order.assignment, &order.component);
                self.keep_last_output(&engine, order.assignment, &project, false).await;
                if failure.code == FailureCode::StartFailed {
                    failure = foreign::explained(&engine, &project, failure).await;
                }
            }
            Err(failure.of(&order.component))
        })
    }

    fn remove<'a>(
        &'a self,
        assignment: AssignmentId,
        component: &'a ComponentName,
    ) -> Pending<'a, Result<(), Failure>> {
        Box::pin(self.take_away(assignment, component, false))
    }

    fn set_aside<'a>(
        &'a self,
        assignment: AssignmentId,
        component: &'a ComponentName,
    ) -> Pending<'a, Result<(), Failure>> {
        Box::pin(self.take_away(assignment, component, true))
    }

    fn keep(&self, orders: BTreeSet<Digest>) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = Some(orders);
        self.sweep_due.store(true, Ordering::Relaxed);
    }

    fn let_images_go(&self, go: bool) {
        let before = self.images_go.swap(go, Ordering::Relaxed);
        if go && !before {
            self.sweep_due.store(true, Ordering::Relaxed);
        }
    }

    fn observe(&self) -> Pending<'_, Result<Vec<Observation>, Failure>> {
        Box::pin(async move { self.forget_if_unreachable(self.look().await).await })
    }

    fn changed(&self) -> Pending<'_, Result<(), Failure>> {
        Box::pin(ComposeRuntime::changed(self))
    }

    fn reached(&self) -> Pending<'_, Result<(), Failure>> {
        Box::pin(async { self.find().await.map(drop) })
    }

    fn bytes_written(&self) -> u64 {
        self.written.bytes()
    }

    fn remarks(&self) -> Vec<String> {
        self.remarks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_device_that_is_too_busy_to_read_is_not_the_updates_fault() {
        let failure = run_failure(&RunError::TooLong { program: "compose".into(), limit: CONFIG_TIME_MAX });
        assert!(!failure.code.blames_the_update(), "{failure}");
        assert!(failure.message.contains("within 60 s") && failure.message.contains("too busy"), "{failure}");
    }

    #[test]
    fn a_device_that_breaks_is_not_the_updates_fault() {
        for (errno, blames) in [
            (Errno::NOSPC, false),
            (Errno::DQUOT, false),
            (Errno::IO, false),
            (Errno::ROFS, false),
            (Errno::NOMEM, false),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NAMETOOLONG, true),
            (Errno::NOTDIR, true),
        ] {
            let failure = disk("It could not be noted", errno.into());
            assert_eq!(failure.code.blames_the_update(), blames, "{failure}");
        }
    }
}
