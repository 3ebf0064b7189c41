//! Taking a component away: politely, then by the engine, until nothing of it is left. Volumes stay (promise 7).

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use margrave_core::id::{AssignmentId, ComponentName};
use margrave_core::report::{Failure, FailureCode};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::compose::{ComposeRuntime, disk, run_failure};
use super::container::LABEL_PROJECT;
use super::engine::Engine;
use super::explain::last_words;
use super::prepared::LOOK_FIRST;
use super::program::{OUTPUT_BYTES_MAX, Run};
use super::project::{ProjectDirectory, ProjectLock, ProjectName};
use super::removal::podman_grace;
use super::unnamed::unnamed;

/// Beside the longest grace period of a container; after this the engine is told itself, and is firm in the end (`removal.rs`).
const DOWN_TIME_MAX: Duration = Duration::from_secs(180);
/// For what goes on after the engine said yes; what it refuses is refused the next time as well, and told meanwhile.
const GONE_TIME_MAX: Duration = Duration::from_secs(20);

impl ComposeRuntime {
    pub(super) async fn take_away(
        &self,
        assignment: AssignmentId,
        component: &ComponentName,
        aside: bool,
    ) -> Result<(), Failure> {
        let removed = self.remove_component(assignment, component, aside).await;
        self.forget_if_unreachable(removed).await.map_err(|failure| failure.of(component))
    }

    async fn remove_component(
        &self,
        assignment: AssignmentId,
        component: &ComponentName,
        aside: bool,
    ) -> Result<(), Failure> {
        let engine = self.engine().await?;
        let project = ProjectName::of(assignment, component);
        let directory = ProjectDirectory::new(&self.projects(), &project, &self.written);
        let lock = self.lock(&directory).await?;
        let labels = [(LABEL_PROJECT, project.as_str())];
        if !engine.container_ids(&labels).await?.is_empty()
            || !engine.networks(project.as_str()).await?.is_empty()
        {
            if aside {
                let volumes = unnamed(&engine.containers(&labels).await?);
                let noted = directory.note_aside(volumes, |fetched| self.is_wanted(fetched));
                noted.map_err(|error| disk("What the component had could not be noted", error))?;
            }
            self.down(&engine, &project, &lock).await;
            clear(&engine, &project).await?;
        }
        let volumes = engine.volumes(project.as_str()).await?;
        let volumes: Vec<String> = volumes.into_iter().map(|volume| volume.name).collect();
        if !volumes.is_empty() {
            tracing::info!(%project, ?volumes, "volumes are kept; remove them by hand if their content is not needed");
        }
        let _nobody_reads = self.reading.of(project.as_str()).lock_owned().await;
        let discard = || match aside {
            // What is newer may have it, and is being fetched.
            true => directory.set_aside(|fetched| self.is_wanted(fetched)),
            false => directory.discard(),
        };
        let mut discarded = discard();
        if discarded.is_ok() && directory.has_gone().is_ok_and(|any| any) {
            let cleared = directory.clear(vec![]).await;
            discarded = cleared.and_then(|_| discard());
        }
        match discarded {
            Ok(None) => {}
            Ok(Some(files)) => {
                tracing::info!(%project, files = %files.display(), "files of the component are kept; remove them by hand if they are not needed");
            }
            Err(error) => return Err(disk("The component's directory could not be removed", error)),
        }
        if !aside && let Err(error) = self.forget_last_output(assignment) {
            tracing::warn!(%project, %error, "what a container last said could not be removed");
        }
        self.sweep(None).await;
        Ok(())
    }

    /// The polite way down, in the order of dependencies. It needs no files: Compose reads it off the labels.
    async fn down(&self, engine: &Engine, project: &ProjectName, lock: &ProjectLock) {
        let down = async {
            let compose = self.compose(engine).await?;
            let variables = self.surroundings(engine)?.variables();
            let longest = engine.longest_grace(project.as_str()).await?;
            let grace = podman_grace(engine, project).await?;
            let grace: Vec<&str> = grace.iter().map(String::as_str).collect();
            let down = ["--project-name", project.as_str(), "down", "--remove-orphans"];
            let arguments = [&down, grace.as_slice()].concat();
            let input = lock.as_input().map_err(|error| disk("The lock could not be shared", error))?;
            let run = Run {
                arguments: arguments.iter().map(OsString::from).collect(),
                variables: &variables,
                // Compose looks for a file in this directory and all above it, and must find none.
                directory: Path::new("/"),
                input,
                time_max: DOWN_TIME_MAX + longest,
                output_max: OUTPUT_BYTES_MAX,
            };
            let finished = compose.run(run).await.map_err(|error| run_failure(&error))?;
            let words = || Failure::new(FailureCode::RemoveFailed, last_words(&finished.errors));
            if finished.success { Ok(()) } else { Err(words()) }
        };
        if let Err(failure) = down.await {
            tracing::info!(%project, %failure, "Compose could not take it down; the engine is told to remove it");
        }
    }
}

/// Removes what is left of a project, and looks until it is gone.
async fn clear(engine: &Engine, project: &ProjectName) -> Result<(), Failure> {
    let mut deadline = None;
    let mut trouble = None;
    loop {
        let containers = engine.container_ids(&[(LABEL_PROJECT, project.as_str())]).await?;
        // All at once: each may take its whole grace period.
        let remove = |id: String| {
            let engine = engine.clone();
            async move { engine.remove_container(&id).await }
        };
        let mut removing: JoinSet<_> = containers.iter().cloned().map(remove).collect();
        while let Some(removed) = removing.join_next().await {
            // One that panicked is still there at the next look.
            trouble = removed.ok().and_then(Result::err).or(trouble);
        }
        let networks = engine.networks(project.as_str()).await?;
        if containers.is_empty() {
            for id in networks.keys() {
                trouble = engine.remove_network(id).await.err().or(trouble);
            }
        }
        if containers.is_empty() && networks.is_empty() {
            return Ok(());
        }
        // From here on: stopping took as long as it took.
        if Instant::now() >= *deadline.get_or_insert_with(|| Instant::now() + GONE_TIME_MAX) {
            let mut left: Vec<String> =
                containers.iter().map(|id| format!("container {}", &id[..id.len().min(12)])).collect();
            left.extend(networks.into_values().map(|name| format!("network {name}")));
            let why =
                trouble.map_or_else(|| "the engine did not say why".to_owned(), |error| error.to_string());
            let message = format!("Could not remove {}: {why}.", left.join(", "));
            return Err(Failure::new(FailureCode::RemoveFailed, message));
        }
        if !containers.is_empty() || trouble.is_some() {
            tokio::time::sleep(LOOK_FIRST).await;
        }
    }
}
