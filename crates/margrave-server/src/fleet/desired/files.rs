//! What is wanted as files: read one by one, looked back at, and changed several at once.

use std::collections::HashSet;

use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_core::violation::Violation;
use margrave_wire::intent::{Applied, Apply, Commit, File, Pins, SEEN};
use margrave_wire::operator::Page;
use margrave_wire::resource::{self, Flaw, Path, Place};

use super::super::intent::Change;
use super::super::{Actor, Error, Fleet};
use super::adopting::{Fetching, Renewed, Unadopted};
use super::repository::FILES_MAX;
use super::{CommitId, FileChange, Signed};

const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Losing so often against other writers means that something else is wrong.
const ATTEMPTS_MAX: u32 = 5;
const LOG_MAX: usize = 1000;
/// Files that an entry of the audit log names; it is one line.
const NAMED_MAX: usize = 20;

impl Fleet {
    /// The commits that are applied, newest first; `after` is the last that was seen.
    pub async fn intent_log(&self, after: Option<&str>, limit: usize) -> Result<Page<Commit>, Error> {
        let limit = limit.clamp(1, LOG_MAX);
        let none = Page { items: Vec::new(), next: None };
        let Some(head) = self.desired.head() else { return Ok(none) };
        let repository = self.desired.repository();
        let unknown =
            || Error::not_found(format!("commit {} in what was applied", after.unwrap_or_default()));
        let from = match after {
            None => head,
            Some(after) => CommitId::parse(after).ok_or_else(unknown)?,
        };
        if !repository.has(head).await? {
            return Ok(none);
        }
        if !repository.descends(head, from).await? {
            return Err(unknown());
        }
        let skip = usize::from(after.is_some());
        let mut found = repository.log(from, limit + skip + 1).await?.split_off(skip);
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|last| last.id.to_string());
        Ok(Page { items: self.shown_commits(found).await?, next })
    }

    /// All files that say what is wanted.
    pub async fn intent_files(&self) -> Result<Vec<File>, Error> {
        let files = self.everything().await?.into_keys();
        let shown = files.filter_map(|path| match Path::read(&path) {
            Path::Resource(place) => Some(File { kind: place.kind().to_string(), path }),
            Path::Other | Path::Astray(_) => None,
        });
        Ok(shown.collect())
    }

    /// One file as it is wanted, or was wanted at a moment.
    pub async fn intent_file(&self, path: &str, at: Option<Moment>) -> Result<Vec<u8>, Error> {
        let shown: String = path.chars().take(200).collect();
        let missing = || Error::not_found(format!("file {shown} in what is wanted"));
        if !matches!(Path::read(path), Path::Resource(_)) {
            return Err(missing());
        }
        let repository = self.desired.repository();
        match (at, self.desired.head()) {
            (Some(at), Some(head)) if repository.has(head).await? => {
                let then = self.commit_at(head, at).await?.ok_or_else(missing)?;
                repository.file(then, path).await?.ok_or_else(missing)
            }
            _ => self.desired.file(path).await?.ok_or_else(missing),
        }
    }

    /// Makes these documents what is wanted, as one commit, or says what that would do. Who may only have it said is refused
    /// what would have to be fetched.
    pub async fn apply_files(
        &self,
        actor: &Actor,
        want: &Apply,
        fetching: Fetching,
    ) -> Result<Applied, Error> {
        let given = read(&want.documents)?;
        let message = message(want.message.as_deref(), &given)?;
        for attempt in 1.. {
            // What would come of it can be asked at any time, also of what is to be said in a remote.
            if !want.dry_run {
                self.desired.may_change()?;
            }
            let head = self.desired.head();
            self.check_seen(&given, &want.seen).await?;
            if let Some(base) = &want.base
                && head.map(|head| head.to_string()).as_ref() != Some(base)
            {
                return Err(Error::conflict(
                    "something was changed since; look again, then repeat your change",
                ));
            }
            let mut files = Vec::new();
            for file in &given {
                if self.desired.file(&file.path).await? != file.bytes {
                    files.push(file.clone());
                }
            }
            let renewed = self.renewed(&given, &files).await?;
            let others = renewed.iter().map(|renewed| renewed.path.clone());
            let mut applied = Applied {
                commit: head.map(|head| head.to_string()),
                files: files.iter().map(|file| file.path.clone()).chain(others).collect(),
                plan: None,
                warnings: Vec::new(),
                pins: Pins::default(),
            };
            if want.dry_run {
                applied.plan = Some(self.rehearse_files(actor, files, renewed, fetching).await?);
                return Ok(applied);
            }
            let packages = files.iter().filter(|file| file.path.starts_with("packages/"));
            let packages: Vec<FileChange> = packages.cloned().collect();
            let done = match files.is_empty() {
                true => self.adopt_renewed(actor, renewed).await,
                false => {
                    let signed = Signed { by: actor.name.clone(), at: self.now(), message: message.clone() };
                    let commit = self.desired.commit(head, files, signed).await?;
                    self.adopt_made(actor, commit, head, renewed).await
                }
            };
            match done {
                Ok(()) => {
                    applied.commit = self.desired.head().map(|head| head.to_string());
                    if let Some(commit) = &applied.commit
                        && !applied.files.is_empty()
                    {
                        // It is done; what there is to know of it is no part of that.
                        let untold = |error: Error| {
                            let error = &error as &dyn std::error::Error;
                            tracing::warn!(
                                error,
                                commit,
                                "what there is to know of a commit could not be told"
                            );
                        };
                        let warnings = self.warnings_of_commit(commit).await;
                        applied.warnings = warnings.map_err(untold).unwrap_or_default();
                        let pins = self.unwritten_pins(&packages).await;
                        applied.pins = pins.map_err(untold).unwrap_or_default();
                    }
                    return Ok(applied);
                }
                Err(_) if self.desired.head() != head && attempt < ATTEMPTS_MAX => {}
                Err(unadopted) => return Err(unadopted.into()),
            }
        }
        Err(Error::conflict("others change the same things at this moment; try again"))
    }

    /// Refuses a file that was changed since its writer saw it: what the other one wrote would be lost without a word.
    async fn check_seen(&self, given: &[FileChange], seen: &[Option<String>]) -> Result<(), Error> {
        for (file, seen) in given.iter().zip(seen) {
            let Some(seen) = seen else { continue };
            let held = self.desired.file(&file.path).await?;
            let same = held.as_deref().is_some_and(|held| Digest::of(held).to_string() == *seen);
            if !same && held != file.bytes {
                return Err(Error::conflict(format!(
                    "{} was changed since you got it; get it again (`margrave get … -o yaml`), or look with `margrave diff -f` \
                     and leave out its line `{}…` to put yours in its place",
                    file.path,
                    SEEN.trim_end()
                )));
            }
        }
        Ok(())
    }

    /// Files of deployments that say nothing new while a secret that they refer to did change: they are wanted again.
    async fn renewed(&self, given: &[FileChange], changed: &[FileChange]) -> Result<Vec<Renewed>, Error> {
        let mut renewed = Vec::new();
        for file in given.iter().filter(|file| !changed.iter().any(|changed| changed.path == file.path)) {
            let Path::Resource(place) = Path::read(&file.path) else { continue };
            let Place::Deployment(name) = &place else { continue };
            let name = name.clone();
            let Some(held) = self.wanted_deployment(&name).await? else { continue };
            if self.has_other_secrets(&held.deployment) || self.has_secrets_again(&held) {
                let (to, seen) = (held.deployment.revision, Some(held.deployment.revision));
                let change = Change::RevertDeployment { name, to, seen, reason: None };
                let read = file.bytes.as_deref().and_then(|bytes| resource::read_at(&place, bytes).ok());
                renewed.push(Renewed { path: file.path.clone(), read, change });
            }
        }
        Ok(renewed)
    }

    pub(super) async fn rehearse_files(
        &self,
        actor: &Actor,
        files: Vec<FileChange>,
        renewed: Vec<Renewed>,
        fetching: Fetching,
    ) -> Result<margrave_wire::intent::Plan, Unadopted> {
        let (changes, sources) = self.read_changes(actor, files, renewed, fetching).await?;
        match self.rehearse(actor, &changes, fetching).await {
            Ok(plan) => Ok(plan),
            Err(refusals) => Err(Unadopted::Flaws(super::adopting::located(refusals, &sources)?)),
        }
    }
}

/// Each document with the place where it belongs.
fn read(documents: &[String]) -> Result<Vec<FileChange>, Error> {
    if documents.is_empty() || documents.len() > FILES_MAX {
        let message = format!("give 1 to {FILES_MAX} documents");
        return Err(Error::invalid("/documents", "resource", message));
    }
    let mut flaws = Vec::new();
    let mut files: Vec<FileChange> = Vec::new();
    let mut said = HashSet::new();
    for (index, text) in documents.iter().enumerate() {
        let file = format!("/documents/{index}");
        let place = resource::read(&file, text.as_bytes()).and_then(|read| placed(&file, &read));
        match place.map(|place| place.to_string()) {
            Err(wrong) => flaws.extend(wrong),
            Ok(path) if !said.insert(path.clone()) => {
                let message = format!("{path} is said twice; say it once");
                flaws.push(Flaw { file, line: 0, rule: "resource".to_owned(), message });
            }
            Ok(path) => {
                let mut bytes = text.clone().into_bytes();
                if bytes.last() != Some(&b'\n') {
                    bytes.push(b'\n');
                }
                files.push(FileChange { path, bytes: Some(bytes) });
            }
        }
    }
    if flaws.is_empty() { Ok(files) } else { Err(Unadopted::Flaws(flaws).into()) }
}

/// The files that documents are, as far as that can be read.
pub(crate) fn named(documents: &[String]) -> Vec<String> {
    let place = |text: &String| {
        let read = resource::read("", text.as_bytes()).ok()?;
        read.resource.place().ok().map(|place| place.to_string())
    };
    documents.iter().take(NAMED_MAX).filter_map(place).collect()
}

fn placed(file: &str, read: &resource::Read) -> Result<Place, Vec<Flaw>> {
    read.resource.place().map_err(|violation: Violation| {
        let (line, _) = read.node.locate(&violation.place);
        let rule = violation.rule.to_owned();
        vec![Flaw { file: file.to_owned(), line, rule, message: violation.message }]
    })
}

fn message(given: Option<&str>, files: &[FileChange]) -> Result<String, Error> {
    match given.map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) if text.len() > MESSAGE_BYTES_MAX => {
            let message = format!("a message has at most {MESSAGE_BYTES_MAX} bytes");
            Err(Error::invalid("/message", "resource", message))
        }
        Some(text) => Ok(format!("{text}\n")),
        None => Ok(match files {
            [one] => format!("Apply {}\n", one.path),
            several => format!("Apply {} files\n", several.len()),
        }),
    }
}
