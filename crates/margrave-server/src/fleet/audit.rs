//! The log of what operators did and were refused, as it is written and read.

use margrave_core::audit::Entry;
use margrave_core::moment::Moment;
use margrave_store::{AuditFilter, Begun};
use margrave_wire::operator::{AuditEntry, Page};
use tokio::sync::watch;

use super::desired::CommitId;
use super::{Error, Fleet};

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1000;
/// Longer than anything that is in the log.
const FILTER_LENGTH_MAX: usize = 1000;

/// Longer texts from outside are cut: an entry is a line.
const TEXT_LENGTH_MAX: usize = 300;
pub(crate) use margrave_core::audit::DONE;

/// Something that happened without a request of an operator.
pub(super) struct Unasked {
    pub(super) actor: String,
    /// `server`, `follow` or `device`.
    pub(super) way: &'static str,
    pub(super) source: String,
    pub(super) action: &'static str,
    pub(super) subject: String,
    pub(super) outcome: &'static str,
    pub(super) detail: String,
    pub(super) commit: Option<CommitId>,
}

impl Unasked {
    /// Of the server itself, and done.
    pub(super) fn new(action: &'static str, subject: impl Into<String>) -> Unasked {
        Unasked {
            actor: "server".to_owned(),
            way: "server",
            source: String::new(),
            action,
            subject: subject.into(),
            outcome: DONE,
            detail: String::new(),
            commit: None,
        }
    }

    pub(super) fn entry(self, at: Moment) -> Entry {
        let Unasked { actor, way, source, action, subject, outcome, detail, commit } = self;
        Entry {
            at,
            actor: line(&actor),
            way: way.to_owned(),
            source,
            action: action.to_owned(),
            subject: line(&subject),
            outcome: outcome.to_owned(),
            detail: line(&detail),
            commit: commit.map(|commit| commit.to_string()),
            ..blank()
        }
    }
}

/// Nothing yet.
pub(crate) fn blank() -> Entry {
    Entry {
        sequence: 0,
        at: Moment(0),
        actor: String::new(),
        role: None,
        token: None,
        source: String::new(),
        way: String::new(),
        action: String::new(),
        subject: String::new(),
        outcome: String::new(),
        detail: String::new(),
        commit: None,
    }
}

/// On one line, and not longer than one.
pub(crate) fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_LENGTH_MAX).collect()
}

/// Which entries to show; all that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// With or without the word `operator` before the name.
    pub actor: Option<String>,
    pub subject: Option<String>,
    /// RFC 3339.
    pub since: Option<String>,
    /// The `next` of the page before.
    pub after: Option<String>,
    /// 1 to 1000; 100 when left out.
    pub limit: Option<usize>,
}

/// What is not in the audit log is at least in the other one.
fn log_unwritten(error: &(dyn std::error::Error + 'static), entry: Option<&Entry>) {
    tracing::error!(
        error,
        actor = entry.map(|entry| &*entry.actor),
        source = entry.map(|entry| &*entry.source),
        way = entry.map(|entry| &*entry.way),
        action = entry.map(|entry| &*entry.action),
        subject = entry.map(|entry| &*entry.subject),
        outcome = entry.map(|entry| &*entry.outcome),
        detail = entry.map(|entry| &*entry.detail),
        commit = entry.and_then(|entry| entry.commit.as_deref()),
        "an audit entry could not be written"
    );
}

impl Fleet {
    /// Writes an entry at the end of the log; its number and time are given here.
    pub(crate) async fn record(&self, entry: Entry) -> Result<(), Error> {
        self.store.audit(Entry { at: self.now(), ..entry }).await?;
        self.tell_audited();
        Ok(())
    }

    /// Wakes whoever looks at the log: it has an entry more.
    pub(super) fn tell_audited(&self) {
        self.audited.send_replace(());
    }

    /// Changes whenever the log has grown. What there is, is read from the log itself.
    pub(crate) fn audit_grown(&self) -> watch::Receiver<()> {
        self.audited.subscribe()
    }

    /// The newest entry's number; 0 where there is none.
    pub(crate) async fn newest_audit(&self) -> Result<u64, Error> {
        let newest = self.store.audit_entries(AuditFilter::default(), 1).await?;
        Ok(newest.first().map_or(0, |record| record.entry.sequence))
    }

    /// Writes down what no request asked for, because nobody else does.
    pub(super) async fn record_unasked(&self, unasked: Unasked) {
        self.record_or_log(unasked.entry(self.now())).await;
    }

    /// Changes something that no request asked for, and writes down that it did; what is refused is told elsewhere. Also a crash
    /// right after the change does not lose it.
    pub(super) async fn unasked<T, E>(
        &self,
        unasked: Unasked,
        change: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begun = self.begun(unasked);
        let changed = begun.during(change).await;
        self.conclude_or_log(&begun, changed.is_ok().then(|| begun.entry())).await;
        changed
    }

    /// What no request asked for, before it is done.
    pub(super) fn begun(&self, unasked: Unasked) -> Begun {
        let entry = unasked.entry(self.now());
        Begun::new(move || entry.clone())
    }

    /// Keeps what is asked here before it is done, where that is not done in the store.
    pub(crate) async fn begin(&self) -> Result<(), Error> {
        if let Some(begun) = Begun::present() {
            self.store.begin(&begun).await?;
        }
        Ok(())
    }

    /// Writes the entry of something that was begun, or nothing. If it cannot be written, the next start does, from what was
    /// kept with the change.
    pub(crate) async fn conclude_or_log(&self, begun: &Begun, entry: Option<Entry>) {
        let entry = entry.map(|entry| Entry { at: self.now(), ..entry });
        match self.store.conclude(begun, entry.clone()).await {
            Ok(()) if entry.is_some() => self.tell_audited(),
            Ok(()) => {}
            Err(error) => log_unwritten(&error, entry.as_ref()),
        }
    }

    /// Writes down what was begun when the server ended.
    pub(super) async fn conclude_cut_off(&self) -> Result<(), Error> {
        for entry in self.store.conclude_cut_off().await? {
            tracing::warn!(
                actor = entry.actor,
                action = entry.action,
                subject = entry.subject,
                outcome = entry.outcome,
                "the server had ended before this was answered; it is in the audit log now"
            );
        }
        Ok(())
    }

    /// Writes an entry. What was done cannot be undone here: if it cannot be written, the server's own log has it.
    pub(crate) async fn record_or_log(&self, entry: Entry) {
        if let Err(error) = self.record(entry.clone()).await {
            log_unwritten(&error, Some(&entry));
        }
    }

    /// Entries that match, newest first.
    pub async fn audit(&self, query: AuditQuery) -> Result<Page<AuditEntry>, Error> {
        let AuditQuery { actor, subject, since, after, limit } = query;
        for (place, text) in [("/actor", &actor), ("/subject", &subject)] {
            if text.as_ref().is_some_and(|text| text.len() > FILTER_LENGTH_MAX) {
                return Err(Error::invalid(place, "audit", "nothing in the log is so long"));
            }
        }
        let since = match since.as_deref().map(|text| Moment::from_rfc3339(text).ok_or(text)) {
            Some(Err(text)) => {
                let message = format!("a time is written like 2027-01-31T06:00:00Z, not {text:?}");
                return Err(Error::invalid("/since", "audit", message));
            }
            Some(Ok(since)) => Some(since),
            None => None,
        };
        let before = match after.as_deref().map(str::parse) {
            Some(Err(_)) => {
                return Err(Error::invalid("/after", "audit", "is the `next` of the page before"));
            }
            Some(Ok(before)) => Some(before),
            None => None,
        };
        let limit = limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            let message = format!("a page has 1 to {LIMIT_MAX} entries");
            return Err(Error::invalid("/limit", "audit", message));
        }
        let actor = actor.map(|name| match name.as_str() {
            "unknown" | "server" => name,
            _ if name.starts_with("operator ") || name.starts_with("device ") => name,
            _ => format!("operator {name}"),
        });
        let filter = AuditFilter { actor, subject, since, before };
        let found = self.store.audit_entries(filter, limit).await?;
        let next = (found.len() == limit).then(|| found.last().map(|last| last.entry.sequence.to_string()));
        let items = found.into_iter().map(|record| AuditEntry::new(record.entry, record.hash)).collect();
        Ok(Page { items, next: next.flatten() })
    }
}
