//! Repositories whose tags are watched: what is new becomes a package of the catalog, what is broken is told.
//!
//! What to look at and when is decided in `margrave_core::watch`. A tag only finds a version: once its package is in
//! the catalog, its bytes are pinned, and `origin.rs` tells when the registry has others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use margrave_core::chain::sentence;
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_core::watch::{
    ADDS_MAX, EVERY_DEFAULT, EVERY_MAX, EVERY_MIN, KnownTag, TAGS_MAX, TagPattern, TagState, next_look,
    next_try, turn,
};
use margrave_oci::client::ClientError;
use margrave_oci::reference::{Reference, Repository, Tag, TagOrDigest};
use margrave_store::{NewEvent, TagRecord, WATCHES_MAX, WatchRecord, WatchTurn};
use margrave_wire::operator;
use tokio::sync::Notify;

use super::catalog::by_version;
use super::event::time;
use super::intent::Change;
use super::{Actor, Error, Fleet};
use crate::tasks::chance;

/// Watches that are looked after at the same time; more would only wait for the same network.
const SIDE_BY_SIDE: usize = 4;
/// A registry that answers ever so slowly must not keep the others waiting for ever.
const TURN_MAX: Duration = Duration::from_secs(10 * 60);
/// A reason is shown in a line or two.
const REASON_MAX: usize = 500;
const RULE: &str = "PK-011";

#[derive(Default)]
pub(super) struct Watching {
    /// Something changed that is worth a look before its time.
    pub(super) news: Notify,
    /// Repositories that somebody is looking at.
    busy: Mutex<BTreeSet<String>>,
    /// Somebody has finished looking.
    free: Notify,
}

/// That a repository is being looked at, by us and by nobody else.
struct Looking<'a>(&'a Watching, &'a str);

impl Watching {
    fn begin<'a>(&'a self, repository: &'a str) -> Option<Looking<'a>> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.insert(repository.to_owned()).then(|| Looking(self, repository))
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(self.1);
        self.0.free.notify_waiters();
    }
}

/// Why a turn ended before its end.
enum Cut {
    /// The registry did not answer as it should.
    Away(ClientError),
    /// Nothing can be added at the moment, whatever it is.
    Refused(Error),
    Failed(Error),
}

/// Why what a tag holds was not added.
enum Unadded {
    /// Nothing could be changed at that moment, which says nothing of the package.
    Refused(Error),
    Unfit(Error),
}

impl From<Error> for Cut {
    fn from(error: Error) -> Self {
        Cut::Failed(error)
    }
}

impl Fleet {
    pub async fn watches(&self) -> Result<Vec<operator::Watch>, Error> {
        let mut shown = Vec::new();
        for record in self.store.watches().await? {
            shown.push(self.shown_watch(record).await?);
        }
        Ok(shown)
    }

    pub async fn watch(&self, repository: &str) -> Result<operator::Watch, Error> {
        let record = self.watch_record(&read_repository(repository)?).await?;
        self.shown_watch(record).await
    }

    /// Watches a repository from now on, or changes how.
    pub async fn put_watch(
        &self,
        actor: &Actor,
        repository: &str,
        want: operator::PutWatch,
    ) -> Result<operator::Watch, Error> {
        let repository = read_repository(repository)?;
        let pattern = match want.pattern.as_deref() {
            Some(text) => {
                TagPattern::parse(text).map_err(|error| Error::invalid("/match", RULE, error.to_string()))?
            }
            None => TagPattern::any(),
        };
        let every = want.every_seconds.map_or(EVERY_DEFAULT, Duration::from_secs);
        if !(EVERY_MIN..=EVERY_MAX).contains(&every) {
            let message = "a repository is looked at every minute at most, and every week at least";
            return Err(Error::invalid("/everySeconds", RULE, message));
        }
        let name = repository.to_string();
        if self.store.put_watch(&name, pattern, every, self.now(), &actor.name).await?.is_none() {
            let message = format!("{WATCHES_MAX} repositories are watched already; end one of these");
            return Err(Error::conflict(message));
        }
        self.watching.news.notify_one();
        self.watch(&name).await
    }

    /// Watches a repository no more. Its packages stay in the catalog.
    pub async fn remove_watch(&self, actor: &Actor, repository: &str) -> Result<(), Error> {
        let repository = read_repository(repository)?.to_string();
        if self.store.remove_watch(&repository, self.now(), &actor.name).await? {
            return Ok(());
        }
        Err(Error::not_found(format!("watch of {repository}")))
    }

    /// Looks at a watched repository now, whenever its time is, and tells what is known of it then.
    pub async fn look_at_watch(&self, repository: &str) -> Result<operator::Watch, Error> {
        let record = self.watch_record(&read_repository(repository)?).await?;
        let _looking = loop {
            let freed = self.watching.free.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            match self.watching.begin(&record.repository) {
                Some(looking) => break looking,
                None => freed.await,
            }
        };
        self.take_turn(&record).await?;
        self.watch(&record.repository).await
    }

    /// Somebody watches something new, or a registry is known better.
    pub(crate) async fn watch_news(&self) {
        self.watching.news.notified().await;
    }

    /// Looks at every repository whose time has come.
    pub(crate) async fn look_at_watches(&self) -> Result<(), Error> {
        let now = self.now();
        let due = self.store.watches().await?.into_iter().filter(|watch| watch.next_at <= now);
        let turns = stream::iter(due).map(|watch| async move {
            let Some(_looking) = self.watching.begin(&watch.repository) else { return Ok(()) };
            self.take_turn(&watch).await
        });
        let ends: Vec<Result<(), Error>> = turns.buffer_unordered(SIDE_BY_SIDE).collect().await;
        ends.into_iter().collect()
    }

    async fn watch_record(&self, repository: &Repository) -> Result<WatchRecord, Error> {
        let name = repository.to_string();
        let found = self.store.watches().await?.into_iter().find(|watch| watch.repository == name);
        found.ok_or_else(|| Error::not_found(format!("watch of {name}")))
    }

    async fn take_turn(&self, watch: &WatchRecord) -> Result<(), Error> {
        let at = self.now();
        let mut brought = WatchTurn { at, ..WatchTurn::default() };
        // What cannot be added at the moment is not looked at: nothing would be known of it afterwards.
        let ended = match self.desired.may_change() {
            Ok(()) => tokio::time::timeout(TURN_MAX, self.look(watch, &mut brought)).await,
            Err(refused) => Ok(Err(Cut::Refused(refused))),
        };
        let (now, dice) = (self.now(), chance());
        let away = match ended {
            Ok(Ok(more)) => {
                brought.next_at = next_look(now, watch.every, more, dice);
                None
            }
            Ok(Err(Cut::Failed(error))) => return Err(error),
            Ok(Err(Cut::Away(error))) => Some((sentence(&error), error.retry_after())),
            Ok(Err(Cut::Refused(error))) => {
                Some((format!("what is new could not be added: {}", sentence(&error)), None))
            }
            Err(_) => Some((
                "the registry is too slow: it did not answer everything in ten minutes".to_owned(),
                None,
            )),
        };
        let name = &watch.repository;
        match away {
            Some((why, retry_after)) => {
                brought.failures = watch.failures.saturating_add(1);
                brought.next_at = next_try(now, watch.every, watch.failures, retry_after, dice);
                brought.trouble = Some(shortened(&why));
                if watch.failures == 0 {
                    let text = format!("{name} cannot be looked at: {}", shortened(&why));
                    brought.events.push(NewEvent::new(now, "watch.failed", "server", text));
                }
            }
            None if watch.failures > 0 => {
                let text = format!("{name} can be looked at again");
                brought.events.push(NewEvent::new(now, "watch.recovered", "server", text));
            }
            // Somebody waits to hear whether it works.
            None if watch.looked_at.is_none() && brought.events.is_empty() => {
                let text = format!("{name} was looked at, and has nothing new");
                brought.events.push(NewEvent::new(now, "watch.looked", "server", text));
            }
            None => {}
        }
        Ok(self.store.note_watch(name, brought).await?)
    }

    /// One turn; says whether more is left than it may do.
    async fn look(&self, watch: &WatchRecord, brought: &mut WatchTurn) -> Result<bool, Cut> {
        let repository = read_repository(&watch.repository)?;
        let client = self.upstream();
        let listed = match client.tags(&repository).await {
            Ok(listed) => Some(listed),
            Err(ClientError::NotFound(_)) => None,
            Err(error) => return Err(Cut::Away(error)),
        };
        let is_there = listed.is_some();
        let mut listed: Vec<String> =
            listed.unwrap_or_default().iter().map(|tag| tag.as_str().to_owned()).collect();
        listed.sort_by(|a, b| by_version(b, a));
        let records: BTreeMap<String, TagRecord> = self
            .store
            .watched_tags(&watch.repository)
            .await
            .map_err(Error::from)?
            .into_iter()
            .map(|record| (record.tag.clone(), record))
            .collect();
        let catalog = self.store.packages().await.map_err(Error::from)?;
        let kept: BTreeSet<String> =
            catalog.iter().map(|package| format!("{} {}", package.id, package.version)).collect();
        let known = records.iter().map(|(tag, record)| {
            let kept = record.package.as_ref().is_some_and(|package| kept.contains(package));
            let (digest, state, looked_at) = (record.digest, record.state, record.looked_at);
            (tag.clone(), KnownTag { digest, state, looked_at, kept })
        });
        let known: BTreeMap<String, KnownTag> = known.collect();
        let turn = turn(&listed, &watch.pattern, &known);
        if turn.too_many {
            let trouble = format!(
                "more than {TAGS_MAX} tags fit; the newest are followed. Choose fewer with a pattern"
            );
            brought.trouble = Some(trouble);
        }
        if is_there {
            brought.forgotten = turn.forget;
        } else {
            // It may come back, and what was seen of it counts then.
            brought.trouble = Some("the registry has no such repository, or nothing in it".to_owned());
        }
        let mut versions: BTreeMap<Digest, String> =
            records.values().filter_map(|record| Some((record.digest, record.package.clone()?))).collect();
        let mut fetched = 0;
        let mut more = turn.more;
        for tag in turn.look_at {
            let Ok(parsed) = Tag::parse(&tag) else { continue };
            let reference = repository.at(TagOrDigest::Tag(parsed));
            let digest = match client.digest(&reference).await {
                Ok(digest) => digest,
                // It went while we looked; the next turn does not list it.
                Err(ClientError::NotFound(_)) => continue,
                Err(error) => return Err(Cut::Away(error)),
            };
            let now = self.now();
            if let (Some(known), Some(record)) = (known.get(&tag), records.get(&tag))
                && !known.is_worth_fetching(digest)
            {
                brought.tags.push(TagRecord { looked_at: now, ..record.clone() });
                continue;
            }
            if fetched == ADDS_MAX {
                more = true;
                break;
            }
            fetched += 1;
            let mut record = TagRecord {
                tag: tag.clone(),
                digest,
                state: TagState::Added,
                package: None,
                reason: None,
                looked_at: now,
            };
            match self.add_watched(&reference).await {
                Ok(package) => {
                    versions.insert(digest, package.clone());
                    record.package = Some(package);
                }
                Err(Unadded::Refused(error)) => return Err(Cut::Refused(error)),
                Err(Unadded::Unfit(error @ (Error::Storage(_) | Error::Overloaded))) => {
                    return Err(error.into());
                }
                // A registry that another part of it needs is away; nothing is known yet.
                Err(Unadded::Unfit(error @ Error::Upstream { .. })) => {
                    brought.trouble = Some(shortened(&format!("{tag}: {}", sentence(&error))));
                    continue;
                }
                Err(Unadded::Unfit(error)) => {
                    record.state = unfit(&error, versions.contains_key(&digest));
                    record.reason = Some(match versions.get(&digest) {
                        Some(package) if record.state == TagState::Alias => {
                            format!("another name of {package}")
                        }
                        _ => shortened(&sentence(&error)),
                    });
                }
            }
            let news = records
                .get(&tag)
                .is_none_or(|before| (before.digest, before.state) != (digest, record.state));
            if let (true, Some(reason), TagState::Broken | TagState::Incomplete) =
                (news, &record.reason, record.state)
            {
                let text = format!("{reference} was not added: {reason}");
                brought.events.push(NewEvent::new(now, "watch.refused", "server", text));
            }
            brought.tags.push(record);
        }
        let of_this = catalog.into_iter().filter(|package| {
            Reference::parse(&package.reference).is_ok_and(|reference| reference.repository == repository)
        });
        for package in of_this {
            self.look_at_origin(package).await?.map_err(Cut::Away)?;
        }
        Ok(more)
    }

    /// Adds what a tag holds, and names it.
    async fn add_watched(&self, reference: &Reference) -> Result<String, Unadded> {
        let actor = Actor { name: "server".to_owned() };
        let pulled = self.pull(&actor, &reference.to_string()).await.map_err(Unadded::Unfit)?;
        let package = pulled.name();
        let stored = self.store.package(&pulled.record.id, &pulled.record.version).await;
        let stored = stored.map_err(|error| Unadded::Unfit(error.into()))?;
        let is_other = stored.is_some_and(|stored| stored.digest != pulled.record.digest);
        let added = self.change(&actor, Change::AddPackage(Box::new(pulled))).await;
        added.map_err(|error| match error {
            Error::Conflict { .. } if !is_other => Unadded::Refused(error),
            error => Unadded::Unfit(error),
        })?;
        Ok(package)
    }

    async fn shown_watch(&self, record: WatchRecord) -> Result<operator::Watch, Error> {
        let mut tags = self.store.watched_tags(&record.repository).await?;
        tags.sort_by(|a, b| by_version(&b.tag, &a.tag));
        let tags = tags.into_iter().map(|tag| operator::WatchedTag {
            tag: tag.tag,
            digest: tag.digest.to_string(),
            state: tag.state.as_str().to_owned(),
            package: tag.package,
            reason: tag.reason,
            looked_at: time(tag.looked_at),
        });
        Ok(operator::Watch {
            repository: record.repository,
            pattern: record.pattern.to_string(),
            every_seconds: record.every.as_secs(),
            added_at: time(record.added_at),
            added_by: record.added_by,
            looked_at: record.looked_at.map(time),
            next_at: time(record.next_at),
            trouble: record.trouble,
            tags: tags.collect(),
        })
    }

    /// When the next repository is due.
    pub(crate) async fn next_look(&self) -> Result<Option<Duration>, Error> {
        let now = self.now();
        let next = self.store.watches().await?.into_iter().map(|watch| watch.next_at).min();
        Ok(next.map(|Moment(at)| Duration::from_millis(at.saturating_sub(now.0))))
    }
}

/// What a package is that was not added. `is_named` says that its very bytes have a tag of their own.
fn unfit(error: &Error, is_named: bool) -> TagState {
    let Error::Invalid(violations) = error else { return TagState::Broken };
    let breaks = |rule: &str| violations.iter().any(|violation| violation.rule == rule);
    if breaks("PK-014") && is_named {
        TagState::Alias
    } else if breaks("PK-040") {
        TagState::Incomplete
    } else {
        TagState::Broken
    }
}

fn read_repository(text: &str) -> Result<Repository, Error> {
    let invalid = |message: String| Error::invalid("/repository", RULE, message);
    let repository = Repository::parse(text).map_err(|error| invalid(error.to_string()))?;
    if repository.host.is_own_registry() {
        let message = "this server's own registry needs no watching: what is pushed with `margrave package add` is in the catalog";
        return Err(invalid(message.to_owned()));
    }
    Ok(repository)
}

fn shortened(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(REASON_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pk_015_another_name_of_a_version_is_not_a_broken_package() {
        let error = |rule| Error::invalid("/reference", rule, "x");
        assert_eq!(unfit(&error("PK-014"), true), TagState::Alias);
        assert_eq!(unfit(&error("PK-014"), false), TagState::Broken);
        assert_eq!(unfit(&error("PK-040"), true), TagState::Incomplete);
        assert_eq!(unfit(&error("DM-001"), true), TagState::Broken);
        assert_eq!(unfit(&Error::conflict("taken"), false), TagState::Broken);
    }

    #[test]
    fn one_looks_at_a_time() {
        let watching = Watching::default();
        let first = watching.begin("a");
        assert!(first.is_some() && watching.begin("a").is_none() && watching.begin("b").is_some());
        drop(first);
        assert!(watching.begin("a").is_some());
    }
}
