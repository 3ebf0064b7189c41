//! Which engine the components of this device live on.
//!
//! Machines have more than one: Docker, and Podman beside it. What was started on one has its containers and its volumes there,
//! so while that one is away no other takes its place: everything would be started anew with nothing in it. Which one it is
//! stands on disk before anything is started. It counts while something is noted as started; after that any engine will do.

use std::fs;
use std::io;
use std::path::PathBuf;

use margrave_core::report::Failure;
use serde::{Deserialize, Serialize};

use super::compose::{ComposeRuntime, disk};
use super::engine::{Address, Engine, EngineError};
use super::model::LABEL_AGENT;
use super::project::ProjectDirectory;

/// As written on disk. There is no identity of the engine: one whose data was wiped has another, and is all that there is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Home {
    /// As it was found.
    address: String,
    /// Without symbolic links: `podman-docker` has Docker's socket lead to Podman's.
    resolved: String,
}

impl Home {
    fn of(address: &Address) -> Home {
        let resolved = match address {
            Address::Unix(path) => Address::Unix(fs::canonicalize(path).unwrap_or_else(|_| path.clone())),
            Address::Loopback(_) => address.clone(),
        };
        Home { address: address.to_string(), resolved: resolved.to_string() }
    }

    /// The engine there, and no other.
    async fn connect(&self) -> Result<Engine, EngineError> {
        let found = Address::parse(&self.address)?;
        let mut addresses = vec![Address::parse(&self.resolved)?, found.clone()];
        addresses.dedup();
        // What leads to another one now is that other one, and has nothing of ours.
        addresses.retain(|address| Home::of(address).resolved == self.resolved);
        let mut trouble = None;
        for address in addresses {
            match Engine::connect(address).await {
                Ok(engine) => return Ok(engine),
                Err(error @ (EngineError::Missing { .. } | EngineError::Unreachable { .. })) => {
                    trouble = trouble.or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(away(found, trouble))
    }
}

fn away(address: Address, source: Option<EngineError>) -> EngineError {
    EngineError::Away { address, source: source.map(Box::new) }
}

impl ComposeRuntime {
    /// The engine that was named, or that components live on; where there is neither, the first that answers.
    pub(super) async fn locate_engine(&self) -> Result<Engine, Failure> {
        let places = &self.settings.places;
        if places.named.is_some() || !self.is_inhabited()? {
            return Ok(Engine::locate(places).await?);
        }
        if let Some(home) = self.home() {
            return Ok(home.connect().await?);
        }
        let engine = self.engine_with_ours().await?;
        self.note_home(engine.address())?;
        Ok(engine)
    }

    /// Puts on disk that what is about to be started lives on this engine.
    pub(super) fn settle_on(&self, engine: &Engine) -> Result<(), Failure> {
        if self.settings.places.named.is_none()
            && self.is_inhabited()?
            && let Some(home) = self.home()
            && home.resolved != Home::of(engine.address()).resolved
        {
            // It was looked for before something else began elsewhere.
            return Err(away(Address::parse(&home.address).map_err(EngineError::from)?, None).into());
        }
        self.note_home(engine.address())
    }

    /// For what an agent started that did not note where: the engine that has containers of ours. Where none has, all that
    /// there are must have said so.
    async fn engine_with_ours(&self) -> Result<Engine, EngineError> {
        let (mut first, mut silent) = (None, None);
        for socket in self.settings.places.sockets.iter().filter(|socket| socket.exists()) {
            let asked = async {
                let engine = Engine::connect(Address::Unix(socket.clone())).await?;
                let ours = engine.container_ids(&[(LABEL_AGENT, self.settings.agent.as_str())]).await?;
                Ok::<_, EngineError>((engine, !ours.is_empty()))
            };
            match asked.await {
                Ok((engine, true)) => return Ok(engine),
                Ok((engine, false)) => first = first.or(Some(engine)),
                Err(error) => silent = silent.or(Some(error)),
            }
        }
        match (silent, first) {
            (Some(error), _) => Err(error),
            (None, Some(engine)) => Ok(engine),
            (None, None) => Err(EngineError::Missing { looked: self.settings.places.sockets.clone() }),
        }
    }

    /// Whether something is noted as started, or as set aside with its volumes.
    fn is_inhabited(&self) -> Result<bool, Failure> {
        let all = ProjectDirectory::all(&self.projects(), &self.written);
        let all = all.map_err(|error| disk("The components' directories could not be read", error))?;
        Ok(all.iter().any(|directory| directory.has_record() || directory.is_aside()))
    }

    fn home_file(&self) -> PathBuf {
        self.projects().join("engine.json")
    }

    /// A note that cannot be read is none: then the engine that has our containers is looked for.
    fn home(&self) -> Option<Home> {
        let home = match fs::read(self.home_file()) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error),
        };
        home.map_err(|error| tracing::warn!(%error, "which engine components live on cannot be read")).ok()
    }

    fn note_home(&self, address: &Address) -> Result<(), Failure> {
        let home = Home::of(address);
        if self.home().is_some_and(|known| known.resolved == home.resolved) {
            return Ok(());
        }
        let write = || {
            let bytes = serde_json::to_vec(&home).map_err(io::Error::other)?;
            self.written.durably(&self.home_file(), &bytes)
        };
        write().map_err(|error| disk("Which engine components live on could not be noted", error))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use margrave_core::id::DeviceId;
    use margrave_core::report::FailureCode;
    use margrave_oci::client::{Client, Hosts};
    use serde_json::json;

    use super::*;
    use crate::runtime::components::Components;
    use crate::runtime::compose::ComposeSettings;
    use crate::runtime::engine::Places;
    use crate::runtime::pretended_engine::{Answer, PretendedEngine};
    use crate::runtime::project::ProjectName;
    use crate::runtime::tests::order;
    use crate::runtime::written::Written;

    /// With so many containers of ours.
    fn engine(containers: usize) -> PretendedEngine {
        PretendedEngine::start(move |asked| match asked {
            asked if asked.starts_with("GET /containers/json") => {
                Answer::Json((0..containers).map(|number| json!({"Id": number.to_string()})).collect())
            }
            _ => Answer::Refused(margrave_http::StatusCode::NOT_FOUND, "no such container"),
        })
    }

    fn agent(data: &Path, sockets: &[&PretendedEngine], named: Option<&PretendedEngine>) -> ComposeRuntime {
        let settings = ComposeSettings {
            data: data.to_owned(),
            agent: DeviceId::parse("line-1").unwrap(),
            places: Places {
                named: named.map(PretendedEngine::address),
                sockets: sockets.iter().map(|engine| engine.socket()).collect(),
            },
            telemetry: None,
            registry: None,
        };
        ComposeRuntime::new(settings, Components::new(Client::new(Hosts::new()), data).unwrap()).unwrap()
    }

    fn begin(data: &Path) {
        let order = order("web");
        let project = ProjectName::of(order.assignment, &order.component);
        let directory = ProjectDirectory::new(&data.join("compose"), &project, &Written::default());
        directory.create().unwrap();
        fs::write(data.join("compose").join(project.as_str()).join("project.json"), b"{}").unwrap();
    }

    async fn found(runtime: &ComposeRuntime) -> Result<String, FailureCode> {
        runtime.engine().await.map(|engine| engine.address().to_string()).map_err(|failure| failure.code)
    }

    #[tokio::test]
    async fn components_never_move_to_another_engine_by_themselves() {
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path();
        let (docker, podman) = (engine(0), engine(0));
        let both = agent(data, &[&docker, &podman], None);
        both.settle_on(&both.engine().await.unwrap()).unwrap();
        begin(data);

        docker.stop().await;
        let restarted = agent(data, &[&docker, &podman], None);
        let failure = restarted.engine().await.unwrap_err();
        assert_eq!(failure.code, FailureCode::RuntimeUnreachable);
        let told = format!("Components run on the engine at {}, which does not answer", docker.address());
        assert!(failure.message.contains(&told), "{failure}");
        // Known before something began elsewhere.
        let other = podman.engine().await;
        assert_eq!(restarted.settle_on(&other).unwrap_err().code, FailureCode::RuntimeUnreachable);

        // Whoever says so moves, and stays there.
        let named = agent(data, &[&docker, &podman], Some(&podman));
        assert_eq!(found(&named).await, Ok(podman.address()));
        named.settle_on(&other).unwrap();
        assert_eq!(found(&agent(data, &[&docker, &podman], None)).await, Ok(podman.address()));
    }

    fn agent_at(data: &Path, socket: &Path) -> ComposeRuntime {
        let mut runtime = agent(data, &[], None);
        runtime.settings.places.sockets = vec![socket.to_owned()];
        runtime
    }

    fn lead(link: &Path, engine: &PretendedEngine) {
        let new = link.with_extension("new");
        std::os::unix::fs::symlink(engine.socket(), &new).unwrap();
        fs::rename(new, link).unwrap();
    }

    /// As a package that gives Docker's socket to Podman does it.
    #[tokio::test]
    async fn a_socket_that_leads_elsewhere_now_is_not_the_engine_that_components_live_on() {
        for is_link in [true, false] {
            let temp = tempfile::tempdir().unwrap();
            let (docker, podman) = (engine(0), engine(0));
            let socket = if is_link { temp.path().join("docker.sock") } else { docker.socket() };
            if is_link {
                lead(&socket, &docker);
            }
            let data = temp.path().join("device");
            let runtime = agent_at(&data, &socket);
            runtime.settle_on(&runtime.engine().await.unwrap()).unwrap();
            begin(&data);

            docker.stop().await;
            lead(&socket, &podman);
            let restarted = agent_at(&data, &socket);
            assert_eq!(found(&restarted).await, Err(FailureCode::RuntimeUnreachable), "{is_link}");
            let order = order("web");
            let removed = restarted.take_away(order.assignment, &order.component, false).await;
            assert_eq!(removed.unwrap_err().code, FailureCode::RuntimeUnreachable, "{is_link}");
            assert!(podman.asked().is_empty(), "{:?}", podman.asked());
        }
    }

    #[tokio::test]
    async fn where_nothing_was_started_any_engine_will_do() {
        let temp = tempfile::tempdir().unwrap();
        let (docker, podman) = (engine(0), engine(0));
        let runtime = agent(temp.path(), &[&docker, &podman], None);
        runtime.settle_on(&runtime.engine().await.unwrap()).unwrap();
        docker.stop().await;
        assert_eq!(found(&agent(temp.path(), &[&docker, &podman], None)).await, Ok(podman.address()));
    }

    #[tokio::test]
    async fn what_an_older_agent_started_is_found_where_it_is() {
        let temp = tempfile::tempdir().unwrap();
        let (docker, podman) = (engine(0), engine(2));
        begin(temp.path());
        assert_eq!(found(&agent(temp.path(), &[&docker, &podman], None)).await, Ok(podman.address()));
        podman.stop().await;
        let away = found(&agent(temp.path(), &[&docker, &podman], None)).await;
        assert_eq!(away, Err(FailureCode::RuntimeUnreachable), "it was written down");
    }

    #[tokio::test]
    async fn an_engine_that_has_nothing_of_ours_is_not_taken_while_another_is_silent() {
        let temp = tempfile::tempdir().unwrap();
        let (docker, podman) = (engine(1), engine(0));
        begin(temp.path());
        docker.stop().await;
        let runtime = agent(temp.path(), &[&docker, &podman], None);
        assert_eq!(found(&runtime).await, Err(FailureCode::RuntimeUnreachable));
        assert_eq!(runtime.home(), None);
        // Somebody took everything away.
        let cleared = agent(temp.path(), &[&podman], None);
        assert_eq!(found(&cleared).await, Ok(podman.address()));
    }
}
