//! What was wanted at an earlier moment, what devices had said by then, and what lies between two moments.

use std::collections::BTreeMap;

use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_wire::history::{CommitDetail, DeploymentThen, Difference, FileDifference, FleetThen, Wanted};
use margrave_wire::intent::Commit;
use margrave_wire::resource::{self, Resource};

use super::repository::Logged;
use super::{CommitId, FileChange, RepositoryError};
use crate::fleet::event::time;
use crate::fleet::{Error, Fleet};

/// Files of a difference that are told one by one; nobody reads more.
const FILES_SHOWN_MAX: usize = 1000;

impl Fleet {
    /// The fleet as it was wanted at a moment, and what devices had said by then, as far as that is kept.
    pub async fn status_at(&self, at: &str) -> Result<FleetThen, Error> {
        let at = self.moment("/at", at)?;
        let logged = self.wanted_at(at).await?;
        let mut deployments: BTreeMap<String, DeploymentThen> = BTreeMap::new();
        let named =
            |name: &str| DeploymentThen { name: name.to_owned(), wanted: None, reported: BTreeMap::new() };
        let mut packages = 0;
        for FileChange { path, bytes } in self.desired.repository().everything(logged.id).await? {
            let read = bytes.and_then(|bytes| resource::read(&path, &bytes).ok());
            match read.map(|read| read.resource) {
                Some(Resource::Package(_)) => packages += 1,
                Some(Resource::Deployment(file)) => {
                    let name = file.metadata.name;
                    let wanted = Wanted { package: file.spec.package, version: file.spec.version };
                    deployments.entry(name.clone()).or_insert_with(|| named(&name)).wanted = Some(wanted);
                }
                // What could not be read was not done either.
                Some(Resource::Fleet(_) | Resource::Device(_)) | None => {}
            }
        }
        for (name, state, count) in self.store.reported_at(at).await? {
            if state != State::Deleted {
                let then = deployments.entry(name.to_string()).or_insert_with(|| named(name.as_str()));
                then.reported.insert(state.to_string(), count);
            }
        }
        Ok(FleetThen {
            at: time(at),
            commit: self.shown_commit(logged).await?,
            packages,
            deployments: deployments.into_values().collect(),
            reports_since: self.store.reports_since().await?.map(time),
        })
    }

    /// What lies between what was wanted at two moments; until now where no end is given.
    pub async fn intent_between(&self, from: &str, to: Option<&str>) -> Result<Difference, Error> {
        let from = self.moment("/from", from)?;
        let to = match to {
            Some(to) => self.moment("/to", to)?,
            None => self.now(),
        };
        if to < from {
            let message = format!("{} is before {}; say the earlier one first", time(to), time(from));
            return Err(Error::invalid("/to", "query", message));
        }
        let (from, to) = (self.wanted_at(from).await?, self.wanted_at(to).await?);
        let (files, more) = self.files_between(Some(from.id), to.id).await?;
        let (from, to) = (self.shown_commit(from).await?, self.shown_commit(to).await?);
        Ok(Difference { from, to, files, more })
    }

    /// One commit of what is or was wanted, and what it changed.
    pub async fn intent_commit(&self, commit: &str) -> Result<CommitDetail, Error> {
        let unknown = || {
            let shown: String = commit.chars().take(60).collect();
            Error::not_found(format!("commit {shown} in what was applied"))
        };
        let repository = self.desired.repository();
        let id = CommitId::parse(commit).ok_or_else(unknown)?;
        let head = self.desired.head().ok_or_else(unknown)?;
        if !repository.has(head).await? || !repository.descends(head, id).await? {
            return Err(unknown());
        }
        let mut logged = repository.log(id, 2).await?.into_iter();
        let commit = logged.next().ok_or_else(unknown)?;
        let (files, more) = self.files_between(logged.next().map(|parent| parent.id), id).await?;
        Ok(CommitDetail { commit: self.shown_commit(commit).await?, files, more })
    }

    /// A moment as people write it, and not one that is still to come.
    pub(crate) fn moment(&self, place: &'static str, text: &str) -> Result<Moment, Error> {
        let now = self.now();
        let at =
            Moment::read(text, now).map_err(|wrong| Error::invalid(place, "query", wrong.to_string()))?;
        if at > now {
            let message = format!("{} lies ahead; here it is {}", time(at), time(now));
            return Err(Error::invalid(place, "query", message));
        }
        Ok(at)
    }

    /// The commit that was wanted at a moment.
    async fn wanted_at(&self, at: Moment) -> Result<Logged, Error> {
        let before = || {
            let what = format!("commit as old as {}; what this server wanted is known since later", time(at));
            Error::not_found(what)
        };
        let repository = self.desired.repository();
        let head = self.desired.head().ok_or_else(before)?;
        if !repository.has(head).await? {
            return Err(before());
        }
        let commit = self.commit_at(head, at).await?.ok_or_else(before)?;
        Ok(repository.logged(commit).await?)
    }

    /// The commit that counted here at a moment. When a commit was made is its author's word, and says nothing of that; it is
    /// only asked about the time before this server wrote down when commits began to count.
    pub(super) async fn commit_at(&self, head: CommitId, at: Moment) -> Result<Option<CommitId>, Error> {
        let repository = self.desired.repository();
        if let Some(applied) = self.store.applied_at(at).await? {
            let commit = CommitId::parse(&applied.commit);
            return match commit {
                Some(commit) if repository.has(commit).await? => Ok(Some(commit)),
                // The repository was lost since.
                _ => Ok(None),
            };
        }
        let first = self.store.applied_first().await?.and_then(|first| CommitId::parse(&first.commit));
        let before = match first {
            Some(first) if repository.has(first).await? => repository.log(first, 2).await?.into_iter().nth(1),
            Some(_) => None,
            None => return Ok(repository.at(head, at).await?),
        };
        match before {
            Some(before) => Ok(repository.at(before.id, at).await?),
            None => Ok(None),
        }
    }

    async fn shown_commit(&self, logged: Logged) -> Result<Commit, Error> {
        let at = time(logged.at);
        let shown = self.shown_commits(vec![logged.clone()]).await?.pop();
        Ok(shown.unwrap_or(Commit {
            commit: logged.id.to_string(),
            at,
            by: logged.by,
            applied_by: None,
            message: logged.message.trim_end().to_owned(),
        }))
    }

    /// Commits as people look back at them, newest first. One that came along with a newer one began to count with that.
    pub(in crate::fleet) async fn shown_commits(&self, logged: Vec<Logged>) -> Result<Vec<Commit>, Error> {
        let ids = logged.iter().map(|logged| logged.id.to_string()).collect();
        let applied = self.store.applied(ids).await?;
        let mut with = None;
        let shown = logged.into_iter().map(|logged| {
            let commit = logged.id.to_string();
            with = applied.get(&commit).or(with);
            let by = with.map(|with| with.by.clone()).filter(|by| *by != logged.by);
            Commit {
                commit,
                at: time(with.map_or(logged.at, |with| with.at)),
                by: logged.by,
                applied_by: by,
                message: logged.message.trim_end().to_owned(),
            }
        });
        Ok(shown.collect())
    }

    async fn files_between(
        &self,
        from: Option<CommitId>,
        to: CommitId,
    ) -> Result<(Vec<FileDifference>, u64), Error> {
        let repository = self.desired.repository();
        let changes = repository.changes(from, to).await.map_err(|error| match error {
            RepositoryError::TooManyFiles(_) | RepositoryError::TooLarge => {
                Error::conflict("more lies between the two than can be told; choose moments that are closer")
            }
            other => other.into(),
        })?;
        let more = changes.len().saturating_sub(FILES_SHOWN_MAX) as u64;
        let mut files = Vec::new();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        for FileChange { path, bytes } in changes.into_iter().take(FILES_SHOWN_MAX) {
            let before = match from {
                Some(from) => repository.file(from, &path).await?,
                None => None,
            };
            files.push(FileDifference { path, before: before.map(text), after: bytes.map(text) });
        }
        Ok((files, more))
    }
}
