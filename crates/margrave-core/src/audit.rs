//! The log of what operators did and were refused, as a chain: each entry's hash covers the one before, so that an
//! entry that is changed, taken out or put in between is seen.
//!
//! What cannot be seen from the log alone is that its end was cut off, or that all of it was written anew. For that
//! the hash of the newest entry has to be kept somewhere else, and asked about again ([`Check::expect`]).

use crate::digest::Digest;
use crate::moment::Moment;

/// Keeps these hashes from meaning anything elsewhere, and lets the fields change one day.
const FORMAT: &[u8] = b"margrave audit entry, version 1";

/// What is before the first entry.
pub const BEGINNING: Digest = Digest::from_bytes([0; 32]);

/// What came of it, where all that was asked is done.
pub const DONE: &str = "done";
/// What came of it, where nobody saw the end.
pub const INTERRUPTED: &str = "interrupted";

/// Something that an operator did, or was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// 1 for the first, without gaps.
    pub sequence: u64,
    pub at: Moment,
    /// `operator ann`, or `unknown` for whoever showed no token that counts.
    pub actor: String,
    pub role: Option<String>,
    /// The id of the token that was used.
    pub token: Option<String>,
    /// The address that the request came from.
    pub source: String,
    /// `page`, `rest`, `cli`, `registry` or `server`.
    pub way: String,
    /// Stable, for programs: `deployment.put`.
    pub action: String,
    /// What it was done to; empty where that is the server itself, or was not understood.
    pub subject: String,
    /// `done`, or the name of the problem: `forbidden`.
    pub outcome: String,
    /// A sentence, never a secret; may be empty.
    pub detail: String,
    /// The Git commit that holds the change.
    pub commit: Option<String>,
}

impl Entry {
    /// What is known of something that was begun when the server ended. What is a commit is done as a whole once the commit is
    /// taken up; of anything else only the beginning is known.
    pub fn cut_off(self) -> Entry {
        let (outcome, words) = match self.commit {
            Some(_) => (DONE, "the server ended before it could say so"),
            None => (INTERRUPTED, "the server ended before it was answered; look whether it is done"),
        };
        let detail = match self.detail.as_str() {
            "" => words.to_owned(),
            said => format!("{said}; {words}"),
        };
        Entry { outcome: outcome.to_owned(), detail, ..self }
    }

    /// The hash of this entry after the one with the hash `previous`. Every field goes in with its length, so that no
    /// two entries are the same bytes.
    pub fn hash(&self, previous: &Digest) -> Digest {
        // Taken apart, so that a new field cannot be left out.
        let Entry { sequence, at, actor, role, token, source, way, action, subject, outcome, detail, commit } =
            self;
        let mut bytes = Vec::with_capacity(512);
        let mut field = |value: Option<&[u8]>| match value {
            None => bytes.push(0),
            Some(value) => {
                bytes.push(1);
                bytes.extend_from_slice(&(value.len() as u64).to_be_bytes());
                bytes.extend_from_slice(value);
            }
        };
        field(Some(FORMAT));
        field(Some(previous.as_bytes()));
        field(Some(&sequence.to_be_bytes()));
        field(Some(&at.0.to_be_bytes()));
        field(Some(actor.as_bytes()));
        field(role.as_deref().map(str::as_bytes));
        field(token.as_deref().map(str::as_bytes));
        for text in [source, way, action, subject, outcome, detail] {
            field(Some(text.as_bytes()));
        }
        field(commit.as_deref().map(str::as_bytes));
        Digest::of(&bytes)
    }
}

/// Goes through a log from its newest entry to its oldest.
#[derive(Debug, Default)]
pub struct Check {
    /// The entry that still waits for the one before it, with the hash that it claims.
    younger: Option<(Entry, Digest)>,
    expected: Option<(u64, Digest)>,
    met: bool,
}

/// Where a log is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("entry {0} does not have the hash of what it says; it, or the one before it, was changed")]
    Changed(u64),
    #[error("entry {after} is followed by {found}; entries in between were taken out or put in")]
    Gap { after: u64, found: u64 },
    #[error("the log begins with entry {0}; what was before it was taken out")]
    Beginning(u64),
    #[error("entry {0} has another hash than the one that was noted; the log was written anew since")]
    Rewritten(u64),
    #[error("entry {0}, whose hash was noted, is not there; the end of the log was cut off")]
    CutOff(u64),
}

impl Check {
    /// Also asks that the entry of this number has this hash, as somebody noted it earlier.
    pub fn expect(sequence: u64, hash: Digest) -> Self {
        Check { expected: Some((sequence, hash)), ..Check::default() }
    }

    /// Takes the next older entry, with the hash that it claims.
    pub fn older(&mut self, entry: Entry, hash: Digest) -> Result<(), Broken> {
        if let Some((sequence, noted)) = self.expected
            && entry.sequence == sequence
        {
            self.met = true;
            if noted != hash {
                return Err(Broken::Rewritten(sequence));
            }
        }
        let sequence = entry.sequence;
        if let Some((younger, claimed)) = self.younger.replace((entry, hash)) {
            if Some(younger.sequence) != sequence.checked_add(1) {
                return Err(Broken::Gap { after: sequence, found: younger.sequence });
            }
            if younger.hash(&hash) != claimed {
                return Err(Broken::Changed(younger.sequence));
            }
        }
        Ok(())
    }

    /// There are no older entries.
    pub fn end(self) -> Result<(), Broken> {
        if let Some((entry, claimed)) = self.younger {
            if entry.sequence != 1 {
                return Err(Broken::Beginning(entry.sequence));
            }
            if entry.hash(&BEGINNING) != claimed {
                return Err(Broken::Changed(1));
            }
        }
        match self.expected {
            Some((sequence, _)) if !self.met => Err(Broken::CutOff(sequence)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sequence: u64) -> Entry {
        Entry {
            sequence,
            at: Moment(1_000 + sequence),
            actor: "operator ann".to_owned(),
            role: Some("admin".to_owned()),
            token: Some("0123456789ab".to_owned()),
            source: "10.0.0.7".to_owned(),
            way: "cli".to_owned(),
            action: "deployment.put".to_owned(),
            subject: "web".to_owned(),
            outcome: "done".to_owned(),
            detail: String::new(),
            commit: None,
        }
    }

    fn log(length: u64) -> Vec<(Entry, Digest)> {
        let mut previous = BEGINNING;
        let entries = (1..=length).map(entry).map(|entry| {
            previous = entry.hash(&previous);
            (entry, previous)
        });
        entries.collect()
    }

    fn verify(mut check: Check, log: &[(Entry, Digest)]) -> Result<(), Broken> {
        for (entry, hash) in log.iter().rev() {
            check.older(entry.clone(), *hash)?;
        }
        check.end()
    }

    #[test]
    fn an_untouched_log_is_whole() {
        for length in [0, 1, 2, 50] {
            assert_eq!(verify(Check::default(), &log(length)), Ok(()));
        }
        let log = log(50);
        assert_eq!(verify(Check::expect(20, log[19].1), &log), Ok(()));
    }

    #[test]
    fn of_what_was_cut_off_only_a_commit_is_known_to_be_done() {
        let begun = Entry { outcome: String::new(), ..entry(1) };
        let commit = Entry { commit: Some("abc".to_owned()), ..begun.clone() }.cut_off();
        assert_eq!((commit.outcome.as_str(), commit.commit.as_deref()), (DONE, Some("abc")));
        let other = Entry { detail: "press-1".to_owned(), ..begun }.cut_off();
        assert_eq!(other.outcome, INTERRUPTED);
        assert!(other.detail.starts_with("press-1; the server ended"), "{}", other.detail);
    }

    #[test]
    fn whatever_is_done_to_an_entry_is_seen() {
        type Tamper = fn(&mut Entry);
        let changes: [Tamper; 12] = [
            |entry| entry.at = Moment(0),
            |entry| entry.actor = "operator bob".to_owned(),
            |entry| entry.role = None,
            |entry| entry.role = Some("viewer".to_owned()),
            |entry| entry.token = None,
            |entry| entry.source.push('7'),
            |entry| entry.way = "page".to_owned(),
            |entry| entry.action = "deployment.remove".to_owned(),
            |entry| entry.subject = String::new(),
            |entry| entry.outcome = "forbidden".to_owned(),
            |entry| entry.detail = "x".to_owned(),
            |entry| entry.commit = Some(String::new()),
        ];
        for (at, change) in (0..5).flat_map(|at| changes.iter().map(move |change| (at, change))) {
            let mut log = log(5);
            change(&mut log[at].0);
            assert_eq!(verify(Check::default(), &log), Err(Broken::Changed(at as u64 + 1)));
        }
        // Text that moves from one field to the next is another entry.
        let mut moved = entry(1);
        (moved.way, moved.action) = ("clid".to_owned(), "eployment.put".to_owned());
        assert_ne!(moved.hash(&BEGINNING), entry(1).hash(&BEGINNING));
    }

    #[test]
    fn entries_that_are_missing_or_moved_are_seen() {
        let mut without = log(5);
        without.remove(2);
        assert_eq!(verify(Check::default(), &without), Err(Broken::Gap { after: 2, found: 4 }));
        assert_eq!(verify(Check::default(), &log(5)[1..]), Err(Broken::Beginning(2)));
        let mut swapped = log(5);
        swapped.swap(1, 2);
        assert!(verify(Check::default(), &swapped).is_err());
        // Hashes made anew up to the end pass by themselves, but not beside what was noted before.
        let noted = log(5)[4].1;
        let mut previous = BEGINNING;
        let forged: Vec<_> = (1..=5)
            .map(|sequence| {
                let forged = Entry { actor: "operator bob".to_owned(), ..entry(sequence) };
                previous = forged.hash(&previous);
                (forged, previous)
            })
            .collect();
        assert_eq!(verify(Check::default(), &forged), Ok(()));
        assert_eq!(verify(Check::expect(5, noted), &forged), Err(Broken::Rewritten(5)));
        assert_eq!(verify(Check::expect(5, noted), &log(5)[..4]), Err(Broken::CutOff(5)));
    }
}
