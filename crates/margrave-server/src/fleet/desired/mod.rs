//! Desired state lives in Git: the server's own repository, whose `main` is the truth about intent.
//!
//! The database holds what follows from a commit, and remembers which one: its head. A change is a commit first (objects on disk,
//! nobody sees them), then one transaction in the database that takes the commit and everything that follows from it, then
//! `main` moves. Whatever is cut off in between, the next start finds out ([`Fleet::agree`]) and finishes; devices are never moved
//! back by it. What cannot be finished without a person is held: devices keep what they have, and changes are refused until
//! somebody decides ([`Fleet::resolve`]).
//!
//! `repository.rs` is Git, `rendering.rs` writes resources as files, `adopting.rs` reads commits that others made.

mod adopting;
mod files;
mod litter;
mod locks;
mod looking_back;
mod pins;
pub(in crate::fleet) mod rendering;
mod repository;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use margrave_core::deployment::Defaults;
use margrave_core::moment::Moment;
use margrave_core::schedule::{Choice, Reach};
use margrave_store::{Head, NewEvent, Publication, Store};
use margrave_wire::intent::Plan;
use margrave_wire::operator;
use margrave_wire::resource::{self, Place};

pub use adopting::Fetching;
pub(in crate::fleet) use adopting::Unadopted;
pub(crate) use files::named;
pub(crate) use repository::{Clutter, CommitId, FileChange, Repository, RepositoryError, Signed};

use super::audit::Unasked;
use super::git::Following;
use super::made::{is_asked_about, made};
use super::publish::Unpublished;
use super::{Actor, Error, Fleet, event};

/// What the first commit of a new server says.
const BEGINNING: &str = "Begin with what is wanted now\n";
/// Under what it is remembered which commit of the remote somebody decided against: they are not asked again.
pub(super) const KEPT_FROM: &str = "intent.kept-from";
const README: &str = "\
# What this fleet should run

`main` is the truth: a commit here is a change of what runs where, whether it was made on the page, with a command, or by a push.

- `fleet.yaml`: when devices talk and change, for everybody or by label; in which steps changes go where a deployment does not say
- `packages/<id>/<version>.yaml`: where a package lies, by digest
- `deployments/<name>.yaml`: what runs where
- `devices/<id>.yaml`: labels, site and schedule of one device

A push is checked as a whole before it is taken. `margrave schema deployment` prints the JSON Schema of a file.
";

/// What keeps the server from following its repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// What happened, and what to do.
    pub(crate) message: String,
    /// What is wrong with the repository's state, where it was read.
    pub(crate) flaws: Vec<resource::Flaw>,
}

pub(super) struct Desired {
    repository: Repository,
    state: Mutex<State>,
    /// The remote that says what is wanted, if one does.
    following: OnceLock<Following>,
}

#[derive(Default)]
struct State {
    /// The commit that the database has.
    head: Option<CommitId>,
    conflict: Option<Conflict>,
    refused: Option<RefusedPush>,
    /// Where it was when somebody last asked whether it is quiet.
    quiet_at: Option<CommitId>,
    /// It came back from a backup, and nobody has decided yet whether what was wanted then is wanted now.
    returning: bool,
}

/// The last push that was refused, until something is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefusedPush {
    pub(super) by: String,
    pub(super) at: Moment,
    /// The first of what was wrong.
    pub(super) why: String,
}

impl Desired {
    pub(super) async fn open(directory: &Path, durable: bool, store: &Store) -> Result<Desired, Error> {
        let repository = Repository::open(directory, durable).map_err(Error::from)?;
        let desired = Desired { repository, state: Mutex::default(), following: OnceLock::new() };
        desired.look_again(store).await?;
        Ok(desired)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The commit whose intent is applied.
    pub(super) fn head(&self) -> Option<CommitId> {
        self.state().head
    }

    /// Whether nothing was changed since this was last asked.
    pub(super) fn is_quiet(&self) -> bool {
        let mut state = self.state();
        let head = state.head;
        std::mem::replace(&mut state.quiet_at, head) == head
    }

    pub(super) fn conflict(&self) -> Option<Conflict> {
        self.state().conflict.clone()
    }

    pub(super) fn refused_push(&self) -> Option<RefusedPush> {
        self.state().refused.clone()
    }

    pub(super) fn push_was_refused(&self, refused: RefusedPush) {
        self.state().refused = Some(refused);
    }

    /// Once for a run of the server.
    pub(super) fn follow(&self, following: Following) {
        self.following.get_or_init(|| following);
    }

    pub(super) fn following(&self) -> Option<&Following> {
        self.following.get()
    }

    pub(super) fn hold(&self, conflict: Conflict) {
        tracing::warn!(
            reason = conflict.message,
            flaws = conflict.flaws.len(),
            "the repository is held back"
        );
        self.state().conflict = Some(conflict);
    }

    /// There is nothing to decide any more. Said last: as long as something that follows may fail, it can be decided again.
    pub(super) fn settled(&self) {
        self.state().conflict = None;
    }

    /// Whether what is here may be older than what devices were given: then they are given nothing.
    pub(super) fn is_returning(&self) -> bool {
        self.state().returning
    }

    pub(super) fn set_returning(&self, returning: bool) {
        self.state().returning = returning;
    }

    /// Nobody changes anything while a person has to decide what counts.
    pub(super) fn may_change(&self) -> Result<(), Error> {
        if let Some(following) = self.following() {
            let url = &following.follow.url;
            return Err(Error::conflict(format!("what is wanted follows a remote; change it in {url}")));
        }
        match &self.state().conflict {
            Some(conflict) => Err(Error::conflict(format!("nothing can be changed: {}", conflict.message))),
            None => Ok(()),
        }
    }

    /// Believes the database: another server may have written there.
    pub(super) async fn look_again(&self, store: &Store) -> Result<(), Error> {
        let head = store.head().await?;
        self.state().head = head.as_deref().and_then(CommitId::parse);
        Ok(())
    }

    pub(super) async fn commit(
        &self,
        parent: Option<CommitId>,
        files: Vec<FileChange>,
        signed: Signed,
    ) -> Result<CommitId, RepositoryError> {
        self.repository.commit(parent, files, signed).await
    }

    /// The database has taken a commit. That `main` does not move is no reason to refuse what is done; the next start moves it.
    pub(super) async fn applied(&self, commit: CommitId) {
        {
            let mut state = self.state();
            state.head = Some(commit);
            state.refused = None;
        }
        if let Err(error) = self.repository.advance(commit).await {
            tracing::error!(%commit, error = &error as &dyn std::error::Error, "main could not be moved");
        }
    }

    /// A file as it is wanted now.
    pub(super) async fn file(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        match self.head() {
            // A repository that lost its commits is dealt with elsewhere; here it only has no comments to keep.
            Some(head) if self.repository.has(head).await.map_err(Error::from)? => {
                self.repository.file(head, path).await.map_err(Error::from)
            }
            _ => Ok(None),
        }
    }
}

impl Fleet {
    /// Brings repository and database together after a start.
    pub(super) async fn agree(&self) -> Result<(), Error> {
        self.agree_on_main().await?;
        self.write_moves_down("server").await
    }

    async fn agree_on_main(&self) -> Result<(), Error> {
        let repository = self.desired.repository().clone();
        let main = repository.main().await.map_err(Error::from)?;
        let head = self.desired.head();
        match (head, main) {
            (Some(head), Some(main)) if head == main => Ok(()),
            (None, None) => self.write_down("server", BEGINNING).await,
            // The database has it, `main` does not yet: the power went in between.
            (Some(head), Some(main))
                if repository.has(head).await.map_err(Error::from)?
                    && repository.is_parent(main, head).await.map_err(Error::from)? =>
            {
                repository.advance(head).await.map_err(Error::from)
            }
            (Some(head), None) if repository.has(head).await.map_err(Error::from)? => {
                repository.advance(head).await.map_err(Error::from)
            }
            // The repository is gone; what is wanted is not.
            (Some(_), None) => {
                self.forget_head().await?;
                self.write_down("server", "Begin again: the repository was lost\n").await
            }
            // Somebody committed while the server was off, or the database is older than the repository.
            (Some(head), Some(main)) if repository.descends(main, head).await.map_err(Error::from)? => {
                self.adopt_or_hold(main).await
            }
            (None, Some(main)) if self.wants_nothing().await? => self.adopt_or_hold(main).await,
            (_, Some(main)) => {
                self.desired.hold(Conflict {
                    message: format!(
                        "the repository is at {}, which does not follow what this server applied last; it was restored from \
                         a backup or rewritten. Devices keep what they have. `margrave intent resolve --keep` goes on \
                         with what the server has, `--take` applies the repository",
                        main.short()
                    ),
                    flaws: Vec::new(),
                });
                Ok(())
            }
        }
    }

    async fn adopt_or_hold(&self, main: CommitId) -> Result<(), Error> {
        let logged = self.desired.repository().logged(main).await.map_err(Error::from)?;
        let actor = Actor { name: logged.by };
        match self.adopt(&actor, main).await {
            Ok(()) => Ok(()),
            Err(Unadopted::Flaws(flaws)) => {
                let detail = format!("cannot be applied: {}", super::git::places(&flaws).join(", "));
                let refused = Unasked { outcome: "invalid", detail, ..Unasked::new("intent.adopt", "main") };
                self.record_unasked(Unasked { commit: Some(main), ..refused }).await;
                let first = flaws.first().map(ToString::to_string).unwrap_or_default();
                self.desired.hold(Conflict {
                    message: format!(
                        "the repository at {} cannot be applied ({first}). Devices keep what they have. Mend it with \
                         another commit, or go on with what the server has: `margrave intent resolve --keep`",
                        main.short()
                    ),
                    flaws,
                });
                Ok(())
            }
            Err(Unadopted::Failed(error)) => Err(error),
        }
    }

    /// What it would change if somebody decided that what the repository says counts.
    pub async fn rehearse_taking(&self, actor: &Actor) -> Result<Plan, Error> {
        self.check_undecided()?;
        let held = self.desired.following().and_then(Following::held);
        let commit = match held {
            Some(held) => held,
            None => self.desired.repository().main().await?.ok_or_else(nothing_to_take)?,
        };
        match self.desired.head() == Some(commit) {
            true => Ok(Plan::default()),
            false => Ok(self.rehearse_commit(actor, commit).await?),
        }
    }

    fn check_undecided(&self) -> Result<(), Error> {
        match self.desired.conflict().is_none() && !self.desired.is_returning() {
            true => Err(Error::conflict("there is nothing to decide: the server follows its repository")),
            false => Ok(()),
        }
    }

    /// Decides a conflict: the server's state becomes the next commit, or the repository's becomes the server's.
    pub async fn resolve(&self, actor: &Actor, take: bool) -> Result<(), Error> {
        self.check_undecided()?;
        let repository = self.desired.repository().clone();
        let main = repository.main().await.map_err(Error::from)?;
        if let Some(following) = self.desired.following()
            && let Some(held) = following.held()
        {
            match take {
                // Cut off below, it is asked for once more.
                true if self.desired.head() == Some(held) => {}
                true => self.adopt(actor, held).await.map_err(Error::from)?,
                false => self.store.remember(KEPT_FROM, held.to_string().into_bytes()).await?,
            }
            self.go_on().await?;
            following.decided(take);
            self.desired.settled();
            return Ok(());
        }
        match (take, main) {
            // A restored server and its repository are of one time.
            (true, main) if main.is_some() && main == self.desired.head() => {}
            (true, Some(main)) => self.adopt(actor, main).await.map_err(Error::from)?,
            (true, None) => return Err(nothing_to_take()),
            (false, main) => {
                let _deciding = self.deciding.write().await;
                let words = "Go on with what the server has\n";
                self.commit_everything(&actor.name, words, main).await?;
            }
        }
        self.go_on().await?;
        self.desired.settled();
        Ok(())
    }

    /// Makes a commit of everything that is wanted and is not in the repository, because it came about otherwise than by one.
    pub(super) async fn write_down(&self, by: &str, message: &str) -> Result<(), Error> {
        let _deciding = self.deciding.write().await;
        self.commit_everything(by, message, self.desired.head()).await
    }

    /// Only who decides may call this.
    async fn commit_everything(&self, by: &str, message: &str, on: Option<CommitId>) -> Result<(), Error> {
        let repository = self.desired.repository();
        let mut there: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        if let Some(on) = on {
            for FileChange { path, bytes } in repository.everything(on).await.map_err(Error::from)? {
                there.extend(bytes.map(|bytes| (path, bytes)));
            }
        }
        let mut files = Vec::new();
        if on.is_none() {
            files.push(FileChange { path: "README.md".to_owned(), bytes: Some(README.as_bytes().to_vec()) });
        }
        for (path, wanted) in self.everything().await? {
            let held = there.remove(&path);
            let same = held.as_deref().and_then(|held| resource::read(&path, held).ok());
            if same.is_none_or(|same| same.resource != wanted) {
                let bytes = rendering::under_comment(held.as_deref(), &wanted);
                files.push(FileChange { path, bytes: Some(bytes) });
            }
        }
        files.extend(there.into_keys().map(|path| FileChange { path, bytes: None }));
        let head = self.desired.head();
        if files.is_empty() && on == head {
            return Ok(());
        }
        let at = self.now();
        let signed = Signed { by: by.to_owned(), at, message: message.to_owned() };
        let next = self.desired.commit(on, files, signed).await.map_err(Error::from)?;
        let expected = head.map(|head| head.to_string());
        let publication = Publication {
            at,
            head: Some(Head { expected, next: next.to_string(), by: by.to_owned() }),
            ..Default::default()
        };
        let publishing = Box::pin(self.publish(publication, Vec::new()));
        // That an empty fleet begins is no change of it.
        let published = if is_asked_about() || head.is_none() {
            publishing.await
        } else {
            let detail = message.trim_end().to_owned();
            self.unasked(Unasked { detail, ..Unasked::new("intent.write", "main") }, publishing).await
        };
        published.map_err(|failed: Unpublished| Error::from(failed))?;
        made(next);
        self.desired.applied(next).await;
        Ok(())
    }

    /// Everything that is wanted, by file.
    async fn everything(&self) -> Result<BTreeMap<String, resource::Resource>, Error> {
        let mut files = BTreeMap::new();
        let defaults = self.store.defaults().await?;
        for record in self.store.packages().await? {
            let place = Place::Package(record.id.clone(), record.version.clone());
            files.insert(place.to_string(), rendering::package(&record));
        }
        for record in self.store.deployments().await?.into_iter().filter(|record| !record.removed) {
            let place = Place::Deployment(record.deployment.name.clone());
            files.insert(place.to_string(), rendering::deployment(&record.deployment, &defaults));
        }
        let schedules = self.store.schedules().await?;
        let choices: BTreeMap<Reach, Choice> =
            schedules.into_iter().map(|record| (record.reach, record.choice)).collect();
        files.insert(Place::Fleet.to_string(), rendering::fleet(&choices, &defaults));
        let mut labels: BTreeMap<_, _> = self.store.device_settings().await?.into_iter().collect();
        let mut devices: std::collections::BTreeSet<_> = labels.keys().cloned().collect();
        devices.extend(choices.keys().filter_map(|reach| match reach {
            Reach::Device(device) => Some(device.clone()),
            _ => None,
        }));
        for device in devices {
            let choice = choices.get(&Reach::Device(device.clone()));
            let file = rendering::device(&device, labels.remove(&device).as_ref(), choice);
            files.extend(file.map(|file| (Place::Device(device).to_string(), file)));
        }
        Ok(files)
    }

    /// Whether the database is a new one.
    pub(super) async fn wants_nothing(&self) -> Result<bool, Error> {
        Ok(self.store.packages().await?.is_empty()
            && self.store.deployments().await?.is_empty()
            && self.store.schedules().await?.is_empty()
            && self.store.device_settings().await?.is_empty()
            && self.store.defaults().await? == Defaults::default())
    }

    async fn forget_head(&self) -> Result<(), Error> {
        self.store.forget_head().await?;
        self.desired.look_again(&self.store).await?;
        let text = "the repository of what is wanted was lost and is made anew; its history is gone";
        Ok(self.store.note(NewEvent::new(self.now(), "intent.lost", "server", text)).await?)
    }

    /// The remote that says what is wanted, where that is not said here.
    pub fn follows(&self) -> Option<String> {
        self.desired.following().map(|following| following.follow.url.clone())
    }

    /// How the server stands to its repository.
    pub async fn intent(&self) -> Result<operator::Intent, Error> {
        let head = self.desired.head();
        let logged = match head {
            Some(head) if self.desired.repository().has(head).await.map_err(Error::from)? => {
                Some(self.desired.repository().logged(head).await.map_err(Error::from)?)
            }
            _ => None,
        };
        let changed = match logged {
            Some(logged) => self.shown_commits(vec![logged]).await?.pop(),
            None => None,
        };
        let gone_back =
            self.store.gone_back().await?.into_iter().map(|(name, gone)| margrave_wire::intent::GoneBack {
                deployment: name.to_string(),
                revision: gone.revision,
                failed: gone.failed,
                at: event::time(gone.at),
                why: gone.why,
            });
        let conflict = self.desired.conflict();
        let following = self.desired.following();
        let refused = following.map(|following| following.flaws()).unwrap_or_default();
        let away = following.and_then(|following| following.away());
        let waiting = following.map_or(0, |following| following.waiting());
        Ok(operator::Intent {
            commit: head.map(|head| head.to_string()),
            changed_at: changed.as_ref().map(|changed| changed.at.clone()),
            changed_by: changed.as_ref().map(|changed| changed.by.clone()),
            applied_by: changed.as_ref().and_then(|changed| changed.applied_by.clone()),
            message: changed.map(|changed| changed.message),
            follows: following.map(|following| following.follow.url.clone()),
            following: following.map(|following| following.shown()),
            away_since: away.as_ref().map(|(since, _)| event::time(*since)),
            away_because: away.map(|(_, why)| why),
            conflict: conflict.as_ref().map(|conflict| conflict.message.clone()),
            gone_back: gone_back.collect(),
            commits_waiting: waiting,
            // Of a commit that a restored server cannot apply both are told.
            flaws: conflict
                .map(|conflict| conflict.flaws)
                .filter(|flaws| !flaws.is_empty())
                .unwrap_or(refused),
        })
    }
}

fn nothing_to_take() -> Error {
    Error::conflict("the repository has no branch main that could be taken")
}
