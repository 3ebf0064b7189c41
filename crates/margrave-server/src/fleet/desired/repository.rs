//! The repository that holds what is wanted: `main` is the truth.
//!
//! Commits are made in memory and written as objects before anybody counts on them; moving `main` is a step of its own, done once
//! the database has taken the commit. No work tree is ever checked out, and nothing here goes over a network.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use git2::build::TreeUpdateBuilder;
use git2::{Delta, DiffOptions, ErrorCode, FileMode, ObjectType, Oid, Signature, Time};
use margrave_core::moment::Moment;
use margrave_wire::resource::Path as Layout;

use super::super::Error;
use super::super::git::Quarantine;
use super::{litter, locks};

const FSYNC: &str = "core.fsyncObjectFiles";
/// Settings in the repository that only this program reads.
const OWN_CONFIG: &str = "margrave.config";
/// The branch that counts.
pub(super) const MAIN: &str = "refs/heads/main";
/// Files that one push may change; a person made them.
pub(super) const FILES_MAX: usize = 10_000;
/// Files that may differ from what is applied in a commit that is followed or found: a whole fleet with a file for each device may
/// come at once, made in as many commits as its people liked.
const FILES_FOUND_MAX: usize = 200_000;
/// All of them together.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// How far back a moment is looked for.
const COMMITS_LOOKED_AT_MAX: usize = 100_000;

/// A commit's hash: 40 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CommitId(Oid);

impl CommitId {
    pub(crate) fn parse(text: &str) -> Option<CommitId> {
        (text.len() == 40).then(|| Oid::from_str(text).ok()).flatten().map(CommitId)
    }

    /// As people write it.
    pub(crate) fn short(&self) -> String {
        self.to_string().chars().take(10).collect()
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// One file of a commit: its new bytes, or `None` when it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileChange {
    pub(crate) path: String,
    pub(crate) bytes: Option<Vec<u8>>,
}

/// How much may lie between two commits.
#[derive(Clone, Copy)]
struct Bounds {
    files: usize,
    bytes: usize,
}

/// What a new commit says about itself.
pub(crate) struct Signed {
    pub(crate) by: String,
    pub(crate) at: Moment,
    pub(crate) message: String,
}

/// A commit as people look back at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) id: CommitId,
    pub(crate) by: String,
    pub(crate) at: Moment,
    pub(crate) message: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RepositoryError {
    #[error("the repository of what is wanted cannot be used: {0}")]
    Git(#[from] git2::Error),
    #[error("{path}: {why}")]
    Unreadable { path: String, why: &'static str },
    #[error("a commit changes at most {0} files; make several of it")]
    TooManyFiles(usize),
    #[error("the files of one commit have at most {} MiB together; make several of it", BYTES_MAX >> 20)]
    TooLarge,
    #[error("the work on the repository was cut off")]
    CutOff,
}

impl From<RepositoryError> for Error {
    fn from(error: RepositoryError) -> Error {
        match error {
            RepositoryError::Git(_) | RepositoryError::CutOff => Error::Storage(Box::new(error)),
            other => Error::conflict(other.to_string()),
        }
    }
}

/// Cheap to clone; one at a time works on it, off the async threads.
#[derive(Clone)]
pub(crate) struct Repository {
    inner: Arc<Mutex<git2::Repository>>,
    path: Arc<PathBuf>,
    /// Held by whoever needs the files to lie where they are.
    still: Arc<tokio::sync::Mutex<()>>,
}

/// What lies about in a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clutter {
    pub(crate) loose: usize,
    pub(crate) packs: usize,
}

impl Repository {
    /// Opens the repository, or makes an empty one.
    pub(super) fn open(path: &Path, durable: bool) -> Result<Repository, RepositoryError> {
        locks::break_left(path)
            .map_err(|error| git2::Error::from_str(&format!("a lock of a killed server stays: {error}")))?;
        let inner = match git2::Repository::open_bare(path) {
            Ok(found) => found,
            Err(error) if error.code() == ErrorCode::NotFound => {
                let mut options = git2::RepositoryInitOptions::new();
                options.bare(true).external_template(false).initial_head("main");
                git2::Repository::init_opts(path, &options)?
            }
            Err(error) => return Err(error.into()),
        };
        let mut config = inner.config()?;
        // A push is looked at before it counts; objects that are no objects do not get so far.
        config.set_bool("receive.fsckObjects", true)?;
        config.set_bool("receive.denyDeletes", true)?;
        config.set_bool("gc.auto", false)?;
        // What was fetched from a remote and may never count.
        config.set_str("uploadpack.hideRefs", "refs/followed")?;
        // What a database relies on must outlive a loss of power. This is for the library alone: `git` itself calls it deprecated
        // wherever it finds it, at every clone and push.
        match config.remove(FSYNC) {
            Err(error) if error.code() != ErrorCode::NotFound => return Err(error.into()),
            _ => {}
        }
        let own = path.join(OWN_CONFIG);
        std::fs::write(&own, format!("[core]\n\tfsyncObjectFiles = {durable}\n"))
            .map_err(|error| git2::Error::from_str(&format!("{OWN_CONFIG} cannot be written: {error}")))?;
        config.add_file(&own, git2::ConfigLevel::App, true)?;
        Quarantine::sweep(path).map_err(|error| {
            git2::Error::from_str(&format!("what is left of earlier pushes stays: {error}"))
        })?;
        litter::sweep(path)
            .map_err(|error| git2::Error::from_str(&format!("what is left of packing stays: {error}")))?;
        let still = Arc::default();
        Ok(Repository { inner: Arc::new(Mutex::new(inner)), path: Arc::new(path.to_owned()), still })
    }

    /// Who locks this finds every file where it is for as long: nothing is packed meanwhile.
    pub(crate) fn still(&self) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.still)
    }

    /// How many objects lie by themselves, and in how many packs the others are.
    pub(crate) async fn clutter(&self) -> Result<Clutter, RepositoryError> {
        let path = Arc::clone(&self.path);
        let counted = tokio::task::spawn_blocking(move || litter::count(&path)).await;
        let counted = counted.map_err(|_| RepositoryError::CutOff)?;
        counted
            .map_err(|error| git2::Error::from_str(&format!("its objects cannot be counted: {error}")).into())
    }

    /// The same repository with objects that lie elsewhere and that nobody else sees.
    pub(crate) async fn with(&self, objects: PathBuf) -> Result<Repository, RepositoryError> {
        let path = Arc::clone(&self.path);
        self.on(move |_| {
            let inner = git2::Repository::open_bare(&*path)?;
            let objects = objects
                .to_str()
                .ok_or_else(|| git2::Error::from_str("the data directory's path is not UTF-8"))?;
            inner.odb()?.add_disk_alternate(objects)?;
            Ok(Repository { inner: Arc::new(Mutex::new(inner)), path, still: Arc::default() })
        })
        .await
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    async fn on<T: Send + 'static>(
        &self,
        work: impl FnOnce(&git2::Repository) -> Result<T, RepositoryError> + Send + 'static,
    ) -> Result<T, RepositoryError> {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || {
            let repository = inner.lock().unwrap_or_else(PoisonError::into_inner);
            work(&repository)
        });
        done.await.map_err(|_| RepositoryError::CutOff)?
    }

    /// Where `main` is.
    pub(crate) async fn main(&self) -> Result<Option<CommitId>, RepositoryError> {
        self.on(|repository| match repository.refname_to_id(MAIN) {
            Ok(id) => Ok(Some(CommitId(id))),
            Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        })
        .await
    }

    pub(crate) async fn has(&self, commit: CommitId) -> Result<bool, RepositoryError> {
        self.on(move |repository| Ok(repository.find_commit(commit.0).is_ok())).await
    }

    /// Moves `main`.
    pub(crate) async fn advance(&self, to: CommitId) -> Result<(), RepositoryError> {
        self.on(move |repository| {
            repository.reference(MAIN, to.0, true, "applied")?;
            Ok(())
        })
        .await
    }

    /// Keeps a commit under a name of its own.
    pub(crate) async fn keep(&self, name: &'static str, commit: CommitId) -> Result<(), RepositoryError> {
        self.on(move |repository| {
            repository.reference(name, commit.0, true, "kept")?;
            Ok(())
        })
        .await
    }

    /// Writes a commit on top of `parent`; nobody sees it until `main` moves there.
    pub(crate) async fn commit(
        &self,
        parent: Option<CommitId>,
        files: Vec<FileChange>,
        signed: Signed,
    ) -> Result<CommitId, RepositoryError> {
        self.on(move |repository| {
            let parent = parent.map(|parent| repository.find_commit(parent.0)).transpose()?;
            let base = match &parent {
                Some(parent) => parent.tree()?,
                None => repository.find_tree(repository.treebuilder(None)?.write()?)?,
            };
            let mut update = TreeUpdateBuilder::new();
            for FileChange { path, bytes } in files {
                match bytes {
                    Some(bytes) => {
                        let blob = repository.blob(&bytes)?;
                        update.upsert(path, blob, FileMode::Blob);
                    }
                    None if base.get_path(Path::new(&path)).is_ok() => {
                        update.remove(path);
                    }
                    None => {}
                }
            }
            let tree = repository.find_tree(update.create_updated(repository, &base)?)?;
            let Signed { by, at, message } = signed;
            let at = Time::new(i64::try_from(at.0 / 1000).unwrap_or(i64::MAX), 0);
            let author = Signature::new(&name_of(&by), &address_of(&by), &at)?;
            let committer = Signature::new("Margrave", "margrave@localhost", &at)?;
            let parents: Vec<&git2::Commit<'_>> = parent.iter().collect();
            let id = repository.commit(None, &author, &committer, &message, &tree, &parents)?;
            Ok(CommitId(id))
        })
        .await
    }

    /// All files of ours that a commit has.
    pub(super) async fn everything(&self, of: CommitId) -> Result<Vec<FileChange>, RepositoryError> {
        self.between(None, of, Bounds { files: usize::MAX, bytes: usize::MAX }).await
    }

    /// What lies between two commits, file by file; from nothing when `from` is `None`. Files that are none of ours are left out.
    pub(crate) async fn changes(
        &self,
        from: Option<CommitId>,
        to: CommitId,
    ) -> Result<Vec<FileChange>, RepositoryError> {
        self.between(from, to, Bounds { files: FILES_MAX, bytes: BYTES_MAX }).await
    }

    /// The same for a commit that nobody waits for: it may differ in as many files as a fleet has.
    pub(super) async fn changes_found(
        &self,
        from: Option<CommitId>,
        to: CommitId,
    ) -> Result<Vec<FileChange>, RepositoryError> {
        self.between(from, to, Bounds { files: FILES_FOUND_MAX, bytes: BYTES_MAX }).await
    }

    async fn between(
        &self,
        from: Option<CommitId>,
        to: CommitId,
        bounds: Bounds,
    ) -> Result<Vec<FileChange>, RepositoryError> {
        self.on(move |repository| {
            let tree = |commit: CommitId| repository.find_commit(commit.0)?.tree();
            let from = from.map(tree).transpose()?;
            let to = tree(to)?;
            let mut options = DiffOptions::new();
            options.include_typechange(true).context_lines(0);
            let diff = repository.diff_tree_to_tree(from.as_ref(), Some(&to), Some(&mut options))?;
            if diff.deltas().len() > bounds.files {
                return Err(RepositoryError::TooManyFiles(bounds.files));
            }
            let mut changes = Vec::new();
            let mut left = bounds.bytes;
            for delta in diff.deltas() {
                let gone = delta.status() == Delta::Deleted;
                let file = if gone { delta.old_file() } else { delta.new_file() };
                let bytes = file.path_bytes().unwrap_or_default();
                let Ok(path) = std::str::from_utf8(bytes) else {
                    let path = String::from_utf8_lossy(bytes).into_owned();
                    return Err(RepositoryError::Unreadable { path, why: "a path is UTF-8; rename it" });
                };
                if Layout::read(path) == Layout::Other {
                    continue;
                }
                let unreadable = |why| RepositoryError::Unreadable { path: path.to_owned(), why };
                if gone {
                    changes.push(FileChange { path: path.to_owned(), bytes: None });
                    continue;
                }
                if !matches!(
                    file.mode(),
                    FileMode::Blob | FileMode::BlobExecutable | FileMode::BlobGroupWritable
                ) {
                    return Err(unreadable(
                        "only plain files are read; a link or a submodule cannot be a resource",
                    ));
                }
                // Before it is in memory.
                let (size, _) = repository.odb()?.read_header(file.id())?;
                left = left.checked_sub(size).ok_or(RepositoryError::TooLarge)?;
                let blob = repository.find_blob(file.id())?;
                changes.push(FileChange { path: path.to_owned(), bytes: Some(blob.content().to_vec()) });
            }
            Ok(changes)
        })
        .await
    }

    /// A file as a commit has it.
    pub(crate) async fn file(
        &self,
        commit: CommitId,
        path: &str,
    ) -> Result<Option<Vec<u8>>, RepositoryError> {
        let path = path.to_owned();
        self.on(move |repository| {
            let tree = repository.find_commit(commit.0)?.tree()?;
            let entry = match tree.get_path(Path::new(&path)) {
                Ok(entry) => entry,
                Err(error) if error.code() == ErrorCode::NotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            match entry.kind() {
                Some(ObjectType::Blob) => Ok(Some(repository.find_blob(entry.id())?.content().to_vec())),
                _ => Ok(None),
            }
        })
        .await
    }

    /// Whether `later` has `earlier` in its history.
    pub(crate) async fn descends(&self, later: CommitId, earlier: CommitId) -> Result<bool, RepositoryError> {
        self.on(move |repository| {
            if later == earlier {
                return Ok(true);
            }
            // One that is not there is in nobody's history.
            if repository.find_commit(earlier.0).is_err() {
                return Ok(false);
            }
            Ok(repository.graph_descendant_of(later.0, earlier.0)?)
        })
        .await
    }

    /// Whether `earlier` is what `later` was made on.
    pub(super) async fn is_parent(
        &self,
        earlier: CommitId,
        later: CommitId,
    ) -> Result<bool, RepositoryError> {
        self.on(move |repository| {
            let later = repository.find_commit(later.0)?;
            Ok(later.parent_ids().any(|parent| parent == earlier.0))
        })
        .await
    }

    /// What a commit says about itself.
    pub(crate) async fn logged(&self, commit: CommitId) -> Result<Logged, RepositoryError> {
        self.on(move |repository| Ok(logged(&repository.find_commit(commit.0)?))).await
    }

    /// The commits up to `from`, newest first.
    pub(crate) async fn log(&self, from: CommitId, limit: usize) -> Result<Vec<Logged>, RepositoryError> {
        self.on(move |repository| {
            let mut walk = repository.revwalk()?;
            walk.simplify_first_parent()?;
            walk.push(from.0)?;
            let mut found = Vec::new();
            for id in walk.take(limit) {
                found.push(logged(&repository.find_commit(id?)?));
            }
            Ok(found)
        })
        .await
    }

    /// The commits that came upon `earlier` one after the other, newest first and up to `later`; nothing where `earlier` is not
    /// on the way of first parents, or is further away than `limit`.
    pub(crate) async fn way(
        &self,
        earlier: CommitId,
        later: CommitId,
        limit: usize,
    ) -> Result<Option<Vec<CommitId>>, RepositoryError> {
        self.on(move |repository| {
            let mut way = Vec::new();
            let mut at = Some(later.0);
            while let Some(id) = at.filter(|_| way.len() <= limit) {
                if id == earlier.0 {
                    return Ok(Some(way));
                }
                way.push(CommitId(id));
                at = repository.find_commit(id)?.parent_ids().next();
            }
            Ok(None)
        })
        .await
    }

    /// The newest commit in the history of `from` that was made by `at`.
    pub(crate) async fn at(&self, from: CommitId, at: Moment) -> Result<Option<CommitId>, RepositoryError> {
        let seconds = i64::try_from(at.0 / 1000).unwrap_or(i64::MAX);
        self.on(move |repository| {
            let mut walk = repository.revwalk()?;
            walk.simplify_first_parent()?;
            walk.push(from.0)?;
            for id in walk.take(COMMITS_LOOKED_AT_MAX) {
                let id = id?;
                if repository.find_commit(id)?.time().seconds() <= seconds {
                    return Ok(Some(CommitId(id)));
                }
            }
            Ok(None)
        })
        .await
    }
}

fn logged(commit: &git2::Commit<'_>) -> Logged {
    let author = commit.author();
    let seconds = u64::try_from(commit.time().seconds()).unwrap_or_default();
    Logged {
        id: CommitId(commit.id()),
        by: String::from_utf8_lossy(author.name_bytes()).into_owned(),
        at: Moment(seconds.saturating_mul(1000)),
        message: String::from_utf8_lossy(commit.message_bytes()).into_owned(),
    }
}

/// A name that Git takes.
fn name_of(by: &str) -> String {
    let name: String = by.chars().filter(|c| !c.is_control() && !matches!(c, '<' | '>')).collect();
    if name.trim().is_empty() { "unknown".to_owned() } else { name.trim().to_owned() }
}

fn address_of(by: &str) -> String {
    let last = by.rsplit(' ').next().unwrap_or_default();
    let plain: String =
        last.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')).collect();
    format!("{}@localhost", if plain.is_empty() { "unknown" } else { &plain })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, text: Option<&str>) -> FileChange {
        FileChange { path: path.to_owned(), bytes: text.map(|text| text.as_bytes().to_vec()) }
    }

    fn signed(at: u64, message: &str) -> Signed {
        Signed { by: "operator ann".to_owned(), at: Moment(at * 1000), message: message.to_owned() }
    }

    #[tokio::test]
    async fn a_commit_counts_only_once_main_moves_there() {
        let folder = tempfile::tempdir().unwrap();
        let repository = Repository::open(&folder.path().join("intent.git"), false).unwrap();
        assert_eq!(repository.main().await.unwrap(), None);
        let files = vec![change("deployments/a.yaml", Some("a")), change("devices/gw/c.yaml", Some("c"))];
        let first = repository.commit(None, files, signed(1, "First")).await.unwrap();
        assert_eq!(repository.main().await.unwrap(), None);
        repository.advance(first).await.unwrap();
        let files = vec![
            change("deployments/a.yaml", None),
            change("deployments/b.yaml", Some("b")),
            change("deployments/never.yaml", None),
            change("README.md", Some("not ours")),
        ];
        let second = repository.commit(Some(first), files.clone(), signed(2, "Second")).await.unwrap();
        let changes = repository.changes(Some(first), second).await.unwrap();
        assert_eq!(changes, files[..2], "what is not ours is left out");
        assert_eq!(repository.changes(None, second).await.unwrap().len(), 2);
        assert!(
            repository.descends(second, first).await.unwrap()
                && !repository.descends(first, second).await.unwrap()
        );
        assert!(repository.is_parent(first, second).await.unwrap());
        assert_eq!(repository.file(second, "deployments/b.yaml").await.unwrap().as_deref(), Some(&b"b"[..]));
        assert_eq!(repository.file(second, "deployments/a.yaml").await.unwrap(), None);
        drop(repository);
        let repository = Repository::open(&folder.path().join("intent.git"), false).unwrap();
        assert_eq!(repository.main().await.unwrap(), Some(first), "moving is a step of its own");
        repository.advance(second).await.unwrap();
        assert_eq!(repository.at(second, Moment(1500)).await.unwrap(), Some(first));
        assert_eq!(repository.at(second, Moment(500)).await.unwrap(), None);
        let log = repository.log(second, 10).await.unwrap();
        assert_eq!(log.iter().map(|entry| entry.message.as_str()).collect::<Vec<_>>(), ["Second", "First"]);
        assert_eq!(log[0].by, "operator ann");
    }

    #[test]
    fn objects_are_durable_without_a_setting_that_git_warns_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("intent.git");
        drop(Repository::open(&path, true).unwrap());
        // As earlier versions left it.
        let text = std::fs::read_to_string(path.join("config")).unwrap();
        std::fs::write(path.join("config"), text.replace("[core]", "[core]\n\tfsyncObjectFiles = true"))
            .unwrap();
        for durable in [true, false] {
            let repository = Repository::open(&path, durable).unwrap();
            let config = repository.inner.lock().unwrap().config().unwrap();
            assert_eq!(config.get_bool(FSYNC).unwrap(), durable);
            let text = std::fs::read_to_string(path.join("config")).unwrap().to_lowercase();
            assert!(!text.contains("fsync") && text.contains("fsckobjects"), "{text}");
        }
    }

    #[tokio::test]
    async fn locks_of_a_server_that_was_killed_hold_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("intent.git");
        // Killed while it made the repository,
        std::fs::create_dir(&path).unwrap();
        let lock = |name: &str| std::fs::write(path.join(name), "").unwrap();
        lock("HEAD.lock");
        lock("config.lock");
        let repository = Repository::open(&path, false).unwrap();
        let files = vec![change("fleet.yaml", Some("f"))];
        let first = repository.commit(None, files, signed(1, "First")).await.unwrap();
        repository.advance(first).await.unwrap();
        drop(repository);
        // while it started, and while it moved `main`.
        for name in ["config.lock", "packed-refs.lock", "refs/heads/main.lock"] {
            lock(name);
        }
        let repository = Repository::open(&path, false).unwrap();
        let files = vec![change("fleet.yaml", Some("g"))];
        let second = repository.commit(Some(first), files, signed(2, "Second")).await.unwrap();
        repository.advance(second).await.unwrap();
        assert_eq!(repository.main().await.unwrap(), Some(second));
    }

    #[tokio::test]
    async fn taking_the_last_file_of_a_folder_away_leaves_no_empty_folder() {
        let folder = tempfile::tempdir().unwrap();
        let repository = Repository::open(&folder.path().join("intent.git"), false).unwrap();
        let files = vec![change("packages/a/1.yaml", Some("a")), change("fleet.yaml", Some("f"))];
        let first = repository.commit(None, files, signed(1, "First")).await.unwrap();
        let second =
            repository.commit(Some(first), vec![change("packages/a/1.yaml", None)], signed(2, "Second"));
        let second = second.await.unwrap();
        let inner = repository.inner.lock().unwrap();
        let tree = inner.find_commit(second.0).unwrap().tree().unwrap();
        let names: Vec<_> = tree.iter().map(|entry| entry.name().unwrap().to_owned()).collect();
        assert_eq!(names, ["fleet.yaml"]);
    }
}
