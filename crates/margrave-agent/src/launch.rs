//! From what a person typed to a running device: runtime, capabilities, settings.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use margrave_core::device::{Device, Settings};
use margrave_core::id::DeviceId;
use margrave_core::package::ProfileKind;
use margrave_core::report::Failure;
use margrave_http::Origin;
use margrave_identity::tls::device_client_config;
use margrave_ledger::{LedgerError, StateFile};
use margrave_oci::client::{Client as RegistryClient, Endpoint, Hosts, Tls};
use margrave_oci::reference::{Host, OWN_REGISTRY};

use crate::identity::{Identity, IdentityError};
use crate::machine::{Machine, Offer, Overrides, OverridesError};
use crate::registry_login::RegistryLogin;
use crate::run::{Access, AgentConfig, RunError};
use crate::runtime::components::Components;
use crate::runtime::compose::{ComposeRuntime, ComposeSettings, ImageRegistry};
use crate::runtime::engine::Places;
use crate::runtime::own_registry::OwnRegistry;
use crate::runtime::simulated::{SimulatedRuntime, Simulation};
use crate::runtime::{Runtime, Telemetry, is_there};
use crate::supervisor::Supervisor;

/// The version that a device reports and `--version` prints.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What carries out orders. Nothing chooses the simulation by itself.
#[derive(Debug, Clone)]
pub enum RuntimeChoice {
    Compose {
        /// Where to look for the engine; `None` looks at `DOCKER_HOST` and the usual places.
        engine: Option<String>,
        /// Written on every container, so that agents sharing an engine keep apart; the device's name when left out.
        label: Option<DeviceId>,
        /// The collector that applications are told of, if the device has one.
        telemetry: Option<Telemetry>,
    },
    Simulated(Simulation),
}

#[derive(Debug, Clone)]
pub struct Launch {
    pub data: PathBuf,
    pub runtime: RuntimeChoice,
    /// A file whose fields go over what the machine says of itself.
    pub capabilities: Option<PathBuf>,
    pub poll_every: Option<Duration>,
    /// How long a server may hold a poll open; zero turns waiting off.
    pub poll_wait: Option<Duration>,
    /// Talk and change at any time, whatever schedule the server set.
    pub any_time: bool,
    /// Whether bytes are dear; `None` leaves it to the server.
    pub saves_data: Option<bool>,
    /// Whether images go that no deployment needs any more; `None` leaves it to the server.
    pub removes_images: Option<bool>,
    /// Refuse a trust bundle with a lower number than the one in use (ID-145).
    pub refuse_older_bundle: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("{0}")]
    Runtime(#[source] Failure),
    #[error("the way to the server's registry cannot be opened")]
    Registry(#[source] RunError),
    #[error("the device's memory cannot be opened")]
    Ledger(#[from] LedgerError),
    #[error("the simulated runtime's file could not be opened")]
    Simulation(#[source] std::io::Error),
    #[error(transparent)]
    Overrides(#[from] OverridesError),
    #[error("the server's address in the identity is not usable: {0}")]
    Address(String),
}

impl Launch {
    pub fn new(data: impl Into<PathBuf>, runtime: RuntimeChoice) -> Self {
        Launch {
            data: data.into(),
            runtime,
            capabilities: None,
            poll_every: None,
            poll_wait: None,
            any_time: false,
            saves_data: None,
            removes_images: None,
            refuse_older_bundle: false,
        }
    }

    /// Everything [`crate::run`] needs. Nothing is started, and no engine has to answer yet: a device that
    /// boots faster than its engine finds it later.
    pub async fn prepare(self) -> Result<AgentConfig, LaunchError> {
        let Launch {
            data,
            runtime,
            capabilities,
            poll_every,
            poll_wait,
            any_time,
            saves_data,
            removes_images,
            refuse_older_bundle,
        } = self;
        let identity = Identity::load(&data)?;
        identity.show_authority(&data)?;
        let access = Access::open(&identity)?;
        let device = identity.device_id.clone();
        let simulated = matches!(runtime, RuntimeChoice::Simulated(_));
        let runtime: Arc<dyn Runtime> = match runtime {
            RuntimeChoice::Simulated(simulation) => {
                let opened = SimulatedRuntime::open(simulation, data.join("simulated.json"));
                Arc::new(opened.map_err(LaunchError::Simulation)?)
            }
            RuntimeChoice::Compose { engine, label, telemetry } => {
                let places = Places {
                    named: engine.or(Places::from_environment().named),
                    ..Places::from_environment()
                };
                let mut settings = ComposeSettings {
                    data: data.clone(),
                    agent: label.unwrap_or_else(|| device.clone()),
                    places,
                    telemetry,
                    registry: None,
                };
                Arc::new(compose_runtime(&mut settings, &identity, &access).await?)
            }
        };
        let trouble = runtime.reached().await.err();
        if let Some(failure) = &trouble {
            tracing::warn!(%failure, "nothing can be started or mended here yet; what runs goes on running");
        }
        // A device that boots faster than its engine must not say that it hosts nothing when it always did.
        let hosts = trouble.is_none_or(|failure| is_there(&failure)) || has_history(&data)?;
        let overrides = match capabilities
            .or_else(|| Some(data.join("capabilities.json")).filter(|path| path.exists()))
        {
            Some(path) => Overrides::read(&path)?,
            None => Overrides::default(),
        };
        let machine = Machine::discover("/".as_ref(), &data);
        let offer = |kinds| Offer {
            kinds,
            // The standard wants a collector on every device that hosts, and no other answer (DM-102).
            otel_collector: true,
            simulated,
            agent_version: VERSION.to_owned(),
            overrides: own_words(poll_every, poll_wait, any_time, saves_data, removes_images),
        };
        let able = machine.capabilities(&device, &offer(vec![ProfileKind::Compose]), &overrides)?;
        let (capabilities, capabilities_later) = if hosts {
            (able, None)
        } else {
            tracing::warn!(
                "no container engine with Compose v2 answers; this device hosts nothing until one does"
            );
            (machine.capabilities(&device, &offer(vec![]), &overrides)?, Some(able))
        };
        let mut settings = Settings::new(device);
        settings.poll_every = poll_every.unwrap_or(settings.poll_every);
        settings.poll_wait = poll_wait.unwrap_or(settings.poll_wait);
        settings.overrides = margrave_core::device::Overrides {
            poll: poll_every.is_some(),
            wait: poll_wait.is_some(),
            schedule: any_time,
            saver: saves_data,
            removes_images,
        };
        Ok(AgentConfig {
            data,
            identity,
            access,
            runtime,
            capabilities,
            capabilities_later,
            settings,
            refuse_older_bundle,
            supervisor: Supervisor::default(),
            way_open: Arc::default(),
        })
    }
}

/// What was set on the device itself, for people.
fn own_words(
    poll_every: Option<Duration>,
    poll_wait: Option<Duration>,
    any_time: bool,
    saves_data: Option<bool>,
    removes_images: Option<bool>,
) -> Vec<String> {
    let mut words = vec![];
    words.extend(poll_every.map(|every| format!("polls every {}s", every.as_secs_f64())));
    words.extend(poll_wait.map(|wait| match wait.is_zero() {
        true => "polls are not held open".to_owned(),
        false => format!("polls are held open for {}s", wait.as_secs_f64()),
    }));
    words.extend(any_time.then(|| "talks and changes at any time".to_owned()));
    words.extend(saves_data.map(|saves| if saves { "saves data" } else { "does not save data" }.to_owned()));
    words.extend(removes_images.map(|removes| match removes {
        true => "removes images that no deployment needs any more".to_owned(),
        false => "keeps images".to_owned(),
    }));
    words
}

/// Whether this device ever had something to run.
fn has_history(data: &std::path::Path) -> Result<bool, LaunchError> {
    let (_, device, _) = StateFile::<Device>::open(&data.join("ledger"))?;
    Ok(device.is_some_and(|device| !device.assignments().is_empty()))
}

async fn compose_runtime(
    settings: &mut ComposeSettings,
    identity: &Identity,
    access: &Access,
) -> Result<ComposeRuntime, LaunchError> {
    let address = |error: &dyn std::fmt::Display| LaunchError::Address(error.to_string());
    let mut hosts = Hosts::new();
    // A server of ours has its registry behind the device interface too, where this device's own identity opens
    // it: components need no password. Registries of others are asked as anybody would.
    if let (true, Access::Svid { svid, bundle }) = (identity.is_issued(), access) {
        let tls = device_client_config(svid.clone(), bundle.clone());
        let origin = Origin::parse(&identity.device_url).map_err(|error| address(&error))?;
        let own = Endpoint::new(origin, Tls::Given(tls));
        for name in identity.registry.iter().map(String::as_str).chain([OWN_REGISTRY]) {
            hosts = hosts.with(Host::parse(name).map_err(|error| address(&error))?, own.clone());
        }
    }
    let mut components =
        Components::new(RegistryClient::new(hosts), &settings.data).map_err(LaunchError::Runtime)?;
    // Only servers of ours name a registry.
    if let Some(registry) = &identity.registry {
        let link = access.link(&settings.data, identity, &Arc::default()).await;
        let link = link.map_err(LaunchError::Registry)?;
        let login = Arc::new(RegistryLogin::new(link, identity.tongue().registry_token_path()));
        // Signatures open the device interface and nothing else.
        if let Access::Signed(_) = access {
            let host = Host::parse(registry).map_err(|error| address(&error))?;
            let own = OwnRegistry::new(host, identity.authority_of_registry(&settings.data)?, login.clone());
            components = components.with_own(own.map_err(|error| address(&error))?);
        }
        settings.registry = Some(ImageRegistry { address: registry.clone(), login: Some(login) });
    }
    ComposeRuntime::new(settings.clone(), components).map_err(LaunchError::Runtime)
}
