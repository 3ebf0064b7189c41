//! From what a person typed to a running device: runtime, capabilities, settings.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use margrave_core::device::Settings;
use margrave_core::id::{DeviceId, InvalidId};
use margrave_core::package::ProfileKind;
use margrave_core::report::Failure;
use margrave_http::{Client, Limits, Origin, Trust};
use margrave_identity::tls::device_client_config;
use margrave_oci::client::{Client as RegistryClient, Endpoint, Hosts, Tls};
use margrave_oci::reference::Host;

use crate::identity::{Identity, IdentityError};
use crate::machine::{Machine, Offer, Overrides, OverridesError};
use crate::registry_login::RegistryLogin;
use crate::run::AgentConfig;
use crate::runtime::Runtime;
use crate::runtime::components::Components;
use crate::runtime::compose::{ComposeRuntime, ComposeSettings, ImageRegistry};
use crate::runtime::engine::Places;
use crate::runtime::simulated::{SimulatedRuntime, Simulation};

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
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("the identity's name cannot be a device id")]
    Name(#[from] InvalidId),
    #[error("{0}")]
    Runtime(#[source] Failure),
    #[error("the simulated runtime's file could not be opened")]
    Simulation(#[source] std::io::Error),
    #[error(transparent)]
    Overrides(#[from] OverridesError),
    #[error("the server's address in the identity is not usable: {0}")]
    Address(String),
}

impl Launch {
    pub fn new(data: impl Into<PathBuf>, runtime: RuntimeChoice) -> Self {
        Launch { data: data.into(), runtime, capabilities: None, poll_every: None, poll_wait: None }
    }

    /// Everything [`crate::run`] needs. Nothing is started, and no engine has to answer yet: a device that
    /// boots faster than its engine finds it later.
    pub async fn prepare(self) -> Result<AgentConfig, LaunchError> {
        let Launch { data, runtime, capabilities, poll_every, poll_wait } = self;
        let identity = Identity::load(&data)?;
        let (svid, bundle) = identity.live()?;
        let device = DeviceId::parse(identity.client_id.as_str())?;
        let simulated = matches!(runtime, RuntimeChoice::Simulated(_));
        let runtime: Arc<dyn Runtime> = match runtime {
            RuntimeChoice::Simulated(simulation) => {
                let opened = SimulatedRuntime::open(simulation, data.join("simulated.json"));
                Arc::new(opened.map_err(LaunchError::Simulation)?)
            }
            RuntimeChoice::Compose { engine, label } => {
                // The server's registry is also behind the device interface, where this device's own identity
                // opens it: components need no password.
                let tls = device_client_config(svid.clone(), bundle.clone());
                let runtime = compose_runtime(&data, &device, &identity, tls, engine, label)?;
                match runtime.find().await {
                    Ok(found) => tracing::info!(engine = found.engine, compose = found.compose, "runtime"),
                    Err(failure) => tracing::warn!(
                        reason = failure.message,
                        "no runtime yet; looking again when it is needed"
                    ),
                }
                Arc::new(runtime)
            }
        };
        let overrides = match capabilities
            .or_else(|| Some(data.join("capabilities.json")).filter(|path| path.exists()))
        {
            Some(path) => Overrides::read(&path)?,
            None => Overrides::default(),
        };
        let offer = Offer {
            kinds: vec![ProfileKind::Compose],
            // The standard wants every hosting device to have a collector (DM-102); who has none says so in capabilities.json.
            otel_collector: true,
            simulated,
            agent_version: VERSION.to_owned(),
        };
        let machine = Machine::discover("/".as_ref(), &data);
        let capabilities = machine.capabilities(&device, &offer, &overrides)?;
        let mut settings = Settings::new(device);
        if let Some(poll_every) = poll_every {
            settings.poll_every = poll_every;
        }
        if let Some(poll_wait) = poll_wait {
            settings.poll_wait = poll_wait;
        }
        Ok(AgentConfig { data, identity, svid, bundle, runtime, capabilities, settings })
    }
}

fn compose_runtime(
    data: &std::path::Path,
    device: &DeviceId,
    identity: &Identity,
    tls: Arc<rustls::ClientConfig>,
    engine: Option<String>,
    label: Option<DeviceId>,
) -> Result<ComposeRuntime, LaunchError> {
    let address = |error: &dyn std::fmt::Display| LaunchError::Address(error.to_string());
    let origin = Origin::parse(&identity.device_url).map_err(|error| address(&error))?;
    let mut hosts = Hosts::new();
    let own = Endpoint::new(origin.clone(), Tls::Given(tls.clone()));
    for name in identity.registry.iter().map(String::as_str).chain(["margrave"]) {
        hosts = hosts.with(Host::parse(name).map_err(|error| address(&error))?, own.clone());
    }
    let client = Client::new(Trust::Tls(tls), origin, Limits::default()).map_err(|error| address(&error))?;
    let registry = identity
        .registry
        .clone()
        .map(|address| ImageRegistry { address, login: Some(Arc::new(RegistryLogin::new(client))) });
    let components = Components::new(RegistryClient::new(hosts), data).map_err(LaunchError::Runtime)?;
    let mut places = Places::from_environment();
    if engine.is_some() {
        places.named = engine;
    }
    let settings = ComposeSettings {
        data: data.to_owned(),
        agent: label.unwrap_or_else(|| device.clone()),
        places,
        telemetry: None,
        registry,
    };
    ComposeRuntime::new(settings, components).map_err(LaunchError::Runtime)
}
