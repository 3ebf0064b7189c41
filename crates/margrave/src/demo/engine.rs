//! The container engine of this machine, as far as the demo needs it: is there one, can it fetch from our
//! registry, and in the end nothing of the demo may be left on it.
//!
//! Devices themselves use `margrave_agent`'s runtime, as on any other machine. That runtime never removes a
//! volume; here the demo made them, so here they go.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use margrave_agent::launch::RuntimeChoice;
use margrave_agent::runtime::Runtime;
use margrave_agent::runtime::components::Components;
use margrave_agent::runtime::compose::{ComposeRuntime, ComposeSettings};
use margrave_agent::runtime::engine::{Address, Engine, Login, Places};
use margrave_core::id::DeviceId;
use margrave_core::report::Failure;
use margrave_http::{Client, Limits, Origin, Request, StatusCode, Trust};
use margrave_oci::client::Hosts;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::exit::chain;

/// What the agent's runtime writes on everything it makes.
pub(crate) const LABEL_AGENT: &str = "io.margrave.agent";

/// Fetching our own image over loopback takes a second; a debug build has hundreds of megabytes.
const FETCH_TIME_MAX: Duration = Duration::from_secs(60);
/// A container that does not end by itself is killed after ten seconds; a device has a handful of them.
const CLEAR_TIME_MAX: Duration = Duration::from_secs(90);

/// What the devices will run things on.
pub(crate) enum Choice {
    Containers(Containers),
    /// With the reason.
    Simulated(String),
}

/// An engine and a Compose that both answered.
pub(crate) struct Containers {
    engine: Engine,
    pub(crate) description: String,
    image: OnceLock<String>,
    agents: std::sync::Mutex<Vec<String>>,
}

/// Looks for an engine and Compose.
pub(crate) async fn choose(data: &Path) -> Choice {
    match find(data).await {
        Ok(containers) => Choice::Containers(containers),
        Err(failure) => Choice::Simulated(failure.message),
    }
}

async fn find(data: &Path) -> Result<Containers, Failure> {
    let places = Places::from_environment();
    let engine = Engine::locate(&places).await?;
    let probe = data.join("probe");
    let settings = ComposeSettings {
        data: probe.clone(),
        agent: DeviceId::parse("probe").expect("a device id"),
        places,
        telemetry: None,
        registry: None,
    };
    let components = Components::new(margrave_oci::client::Client::new(Hosts::new()), &probe)?;
    let found = ComposeRuntime::new(settings, components)?.find().await;
    // It held nothing but what was needed to ask; a demo that is kept must not show it.
    let _gone = std::fs::remove_dir_all(&probe);
    let found = found?;
    Ok(Containers {
        engine,
        description: format!("{} with Compose {}", found.engine, found.compose),
        image: OnceLock::new(),
        agents: std::sync::Mutex::default(),
    })
}

impl Containers {
    /// Has the engine fetch the samples' image; an error says why it cannot.
    pub(crate) async fn fetch(&self, image: &str, token: &str) -> Result<(), String> {
        let login = Login { username: "margrave".to_owned(), password: token.to_owned() };
        match tokio::time::timeout(FETCH_TIME_MAX, self.engine.pull(image, None, Some(&login))).await {
            Ok(Ok(())) => {
                self.image.get_or_init(|| image.to_owned());
                Ok(())
            }
            Ok(Err(failure)) => Err(format!(
                "{} answers, but cannot fetch from the demo's registry on this machine. {}",
                self.engine.description(),
                failure.message
            )),
            Err(_) => Err(format!("{} took too long to fetch the samples' image", self.engine.description())),
        }
    }

    /// The runtime of one device. `label` tells its containers from those of other demos and agents.
    pub(crate) fn runtime(&self, label: DeviceId) -> RuntimeChoice {
        self.agents.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(label.to_string());
        // The very engine that was tried out, whatever the environment says by then.
        RuntimeChoice::Compose {
            engine: Some(self.engine.address().to_string()),
            label: Some(label),
            telemetry: None,
        }
    }

    /// Removes containers, networks and volumes of the demo's devices, and the samples' image. What could not
    /// be removed is returned, in words.
    pub(crate) async fn clear(&self, runtimes: &[Arc<dyn Runtime>]) -> Vec<String> {
        let mut left = Vec::new();
        let mut clearing = tokio::task::JoinSet::new();
        for runtime in runtimes {
            clearing.spawn(clear_device(Arc::clone(runtime)));
        }
        let cleared = async {
            let mut left = Vec::new();
            while let Some(ended) = clearing.join_next().await {
                left.extend(ended.unwrap_or_else(|error| vec![error.to_string()]));
            }
            left
        };
        match tokio::time::timeout(CLEAR_TIME_MAX, cleared).await {
            Ok(trouble) => left.extend(trouble),
            Err(_) => left
                .push(format!("the engine did not remove everything within {} s", CLEAR_TIME_MAX.as_secs())),
        }
        match self.leftovers() {
            Ok(leftovers) => left.extend(leftovers.clear(&self.agents(), self.image.get()).await),
            Err(why) => left.push(why),
        }
        left
    }

    fn agents(&self) -> Vec<String> {
        self.agents.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn leftovers(&self) -> Result<Leftovers, String> {
        let client = match self.engine.address() {
            Address::Unix(path) => Client::unix(path, Limits::default()),
            Address::Loopback(address) => {
                let origin =
                    Origin::parse(&format!("http://{address}")).map_err(|error| error.to_string())?;
                Client::new(Trust::PlainLoopback, origin, Limits::default())
                    .map_err(|error| error.to_string())?
            }
        };
        Ok(Leftovers { client })
    }
}

/// Takes away all that one device has running; twice, because the last of it may have been about to start.
async fn clear_device(runtime: Arc<dyn Runtime>) -> Vec<String> {
    let mut left = Vec::new();
    for _ in 0..2 {
        left.clear();
        let observed = match runtime.observe().await {
            Ok(observed) => observed,
            Err(failure) => return vec![failure.message],
        };
        // All at once: one component may hold on to the network of another, in whatever order they come.
        let mut removing = tokio::task::JoinSet::new();
        for seen in observed {
            let runtime = Arc::clone(&runtime);
            removing.spawn(async move { runtime.remove(seen.assignment, &seen.component).await });
        }
        if removing.is_empty() {
            break;
        }
        while let Some(removed) = removing.join_next().await {
            match removed {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => left.push(failure.message),
                Err(error) => left.push(error.to_string()),
            }
        }
    }
    left
}

/// What only the engine's own interface can remove.
struct Leftovers {
    client: Client,
}

/// How often, and how far apart, to look for what comes late.
const LATE_LOOKS_MAX: usize = 20;
const LATE_PAUSE: std::time::Duration = std::time::Duration::from_millis(300);

/// A container or a network.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Thing {
    id: String,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Volumes {
    volumes: Option<Vec<Volume>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Volume {
    name: String,
}

impl Leftovers {
    async fn clear(&self, agents: &[String], image: Option<&String>) -> Vec<String> {
        let mut left = self.clear_late(agents).await;
        for agent in agents {
            let volumes = match self.volumes(agent).await {
                Ok(volumes) => volumes,
                Err(why) => {
                    left.push(why);
                    continue;
                }
            };
            for volume in volumes {
                let path = format!("/volumes/{}", encoded(&volume));
                left.extend(self.remove(&path, &format!("the volume {volume}")).await.err());
            }
        }
        if let Some(image) = image {
            let path = format!("/images/{}", encoded(image));
            left.extend(self.remove(&path, &format!("the image {image}")).await.err());
        }
        left
    }

    /// Removes containers and networks that the engine was still making when Compose was stopped: it finishes
    /// what it began. Done once two looks in a row find nothing.
    async fn clear_late(&self, agents: &[String]) -> Vec<String> {
        let mut left = Vec::new();
        let mut clean = 0;
        for _ in 0..LATE_LOOKS_MAX {
            left.clear();
            let mut found = false;
            for agent in agents {
                for (list, kind) in [("/containers/json?all=true&", "containers"), ("/networks?", "networks")]
                {
                    match self.labelled::<Vec<Thing>>(list, kind, agent).await {
                        Ok(things) => {
                            for Thing { id } in things {
                                found = true;
                                let path = format!("/{kind}/{}?force=true", encoded(&id));
                                left.extend(
                                    self.remove(&path, &format!("one of the {kind} of {agent}")).await.err(),
                                );
                            }
                        }
                        Err(why) => left.push(why),
                    }
                }
            }
            clean = if found { 0 } else { clean + 1 };
            if clean == 2 {
                break;
            }
            tokio::time::sleep(LATE_PAUSE).await;
        }
        left
    }

    async fn volumes(&self, agent: &str) -> Result<Vec<String>, String> {
        let listed: Volumes = self.labelled("/volumes?", "volumes", agent).await?;
        Ok(listed.volumes.unwrap_or_default().into_iter().map(|volume| volume.name).collect())
    }

    /// What the engine lists with a device's label on it.
    async fn labelled<T: serde::de::DeserializeOwned>(
        &self,
        list: &str,
        kind: &str,
        agent: &str,
    ) -> Result<T, String> {
        let failed = |why: String| format!("the {kind} of {agent} could not be listed: {why}");
        let filters = serde_json::json!({ "label": [format!("{LABEL_AGENT}={agent}")] }).to_string();
        let response = self.client.send(Request::get(format!("{list}filters={}", encoded(&filters)))).await;
        let response = response.map_err(|error| failed(chain(error.to_string(), &error)))?;
        if !response.status.is_success() {
            return Err(failed(response.status.to_string()));
        }
        response.json().map_err(|error| failed(error.to_string()))
    }

    async fn remove(&self, path: &str, what: &str) -> Result<(), String> {
        match self.client.send(Request::delete(path)).await {
            Ok(response) if response.status.is_success() || response.status == StatusCode::NOT_FOUND => {
                Ok(())
            }
            Ok(response) => Err(format!("{what}: {}", String::from_utf8_lossy(&response.body).trim())),
            Err(error) => Err(format!("{what}: {}", chain(error.to_string(), &error))),
        }
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
