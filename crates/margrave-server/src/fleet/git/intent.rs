//! The repository of what is wanted, for those who work with `git`: `/git/intent.git`.
//!
//! A fetch is answered by `git upload-pack`. A push waits in a folder of its own until everything about it was checked as any
//! change is; then it is done as a whole, or nothing of it stays.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use margrave_core::chain::sentence;
use margrave_wire::intent::pin_words;
use margrave_wire::resource::Flaw;
use tokio::sync::mpsc;

use super::program::Running;
use super::push::{Push, advertisement};
use super::quarantine::{Quarantine, QuarantineError};
use super::upload::{Cut, PIECES_AHEAD, TIME_MAX, relay};
use super::{Ask, FetchError, Protocol, WAIT_MAX};
use crate::fleet::desired::{RefusedPush, Unadopted};
use crate::fleet::{Actor, Fleet};

/// Why a push is refused: in a few words for the branch, and at length for the person.
struct Refused {
    unpacked: bool,
    short: &'static str,
    words: Vec<String>,
    /// Where it is wrong; for the log, which does not repeat what was sent.
    places: Vec<String>,
}

/// What became of a push. Git is answered in the same way whether it was taken or not.
pub(crate) struct Pushed {
    pub(crate) answer: Bytes,
    /// Why it was refused, without anything of what was sent but the names of files.
    pub(crate) refused: Option<String>,
}

/// Places that the log names; the person who pushed was told all of them.
const PLACES_MAX: usize = 3;

impl Refused {
    fn new(short: &'static str, words: impl Into<String>) -> Refused {
        Refused { unpacked: true, short, words: vec![words.into()], places: Vec::new() }
    }

    fn broken(error: &dyn std::error::Error) -> Refused {
        tracing::error!(error = sentence(error), "a push could not be looked at");
        Refused::new(
            "the server failed",
            "the server could not do this; its log says why. Nothing was changed",
        )
    }
}

impl From<QuarantineError> for Refused {
    fn from(error: QuarantineError) -> Refused {
        match &error {
            QuarantineError::Unsound(cause) | QuarantineError::Incomplete(cause) => {
                tracing::info!(error = sentence(cause), "what was pushed is not sound");
                let unpacked = matches!(error, QuarantineError::Incomplete(_));
                Refused { unpacked, ..Refused::new("not sound", sentence(&error)) }
            }
            QuarantineError::NoGit(missing) => Refused::new("no git", missing.to_string()),
            QuarantineError::Disk(_) | QuarantineError::Repository(_) => Refused::broken(&error),
        }
    }
}

impl Fleet {
    /// Answers a fetch of what is wanted.
    pub(crate) async fn intent_fetch(
        &self,
        protocol: Protocol,
        ask: Ask,
    ) -> Result<mpsc::Receiver<Result<Bytes, Cut>>, FetchError> {
        let _waiting = self.git.waiting.try_acquire().map_err(|_| FetchError::Busy)?;
        let place = tokio::time::timeout(WAIT_MAX, Arc::clone(&self.git.places).acquire_owned()).await;
        let place = place.map_err(|_| FetchError::Busy)?;
        let path = self.desired.repository().path();
        let mut command = self.git.program.on(path).await.map_err(FetchError::NoGit)?;
        command.args(["upload-pack", "--strict", "--stateless-rpc", "--timeout=60"]);
        let request = match ask {
            Ask::Advertisement => {
                command.arg("--advertise-refs");
                Bytes::new()
            }
            Ask::Request(body) => body,
        };
        command.arg(path);
        if let Some(version) = protocol.named() {
            command.env("GIT_PROTOCOL", version);
        }
        let started = Running::start(command, "upload-pack");
        let (running, pipes) = started.map_err(|error| FetchError::Behind(error.into()))?;
        let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
        tokio::spawn(async move {
            let _place = place;
            let ended = tokio::select! {
                ended = relay(running, pipes, request, &sender) => ended,
                () = sender.closed() => return,
                () = tokio::time::sleep(TIME_MAX) => Err(Cut::TooLong),
            };
            if let Err(cut) = ended {
                tracing::info!(reason = sentence(&cut), "a fetch of what is wanted was cut off");
                // Nobody there any more needs no reason.
                drop(sender.send(Err(cut)).await);
            }
        });
        Ok(pieces)
    }

    /// What one who is about to push is told.
    pub(crate) async fn intent_advertisement(&self) -> Result<Bytes, FetchError> {
        self.git.program.locate().await.map_err(FetchError::NoGit)?;
        let main = self.desired.repository().main().await;
        Ok(advertisement(main.map_err(|error| FetchError::Storage(error.into()))?))
    }

    /// Does what was pushed, or says why not. `actor` is who pushed, whoever wrote the commits.
    pub(crate) async fn intent_push(&self, actor: &Actor, push: &Push) -> Result<Pushed, FetchError> {
        if push.commands.is_empty() {
            return Ok(Pushed { answer: push.answer(Ok(()), None, &[]), refused: None });
        }
        let place = Arc::clone(&self.git.pushes).acquire_owned();
        let Ok(Ok(_place)) = tokio::time::timeout(WAIT_MAX, place).await else {
            return Err(FetchError::Busy);
        };
        match self.take_push(actor, push).await {
            Ok(words) => Ok(Pushed { answer: push.answer(Ok(()), None, &words), refused: None }),
            Err(Refused { unpacked, short, words, places }) => {
                tracing::info!(actor = actor.name, reason = short, "a push was refused");
                let why = words.first().cloned().unwrap_or_else(|| short.to_owned());
                // Another branch would have changed nothing.
                if push.commands.iter().any(|command| command.is_for_main()) {
                    let refused = RefusedPush { by: actor.name.clone(), at: self.now(), why };
                    self.desired.push_was_refused(refused);
                }
                let unpacked = if unpacked { Ok(()) } else { Err(short) };
                let answer = push.answer(unpacked, Some(short), &words);
                let refused = match places.is_empty() {
                    true => short.to_owned(),
                    false => format!("cannot be applied: {}", places.join(", ")),
                };
                Ok(Pushed { answer, refused: Some(refused) })
            }
        }
    }

    /// What is told of a push that was taken.
    async fn take_push(&self, actor: &Actor, push: &Push) -> Result<Vec<String>, Refused> {
        let [command] = &push.commands[..] else {
            return Err(Refused::new(
                "alone, please",
                "push main, and nothing else with it; nothing was taken",
            ));
        };
        let (None, Some(commit)) = (command.refusal(), command.new) else {
            let words = "only main is kept here: every commit on it is a change of the fleet. `git push ORIGIN \
                         HEAD:main` makes the change";
            return Err(Refused::new("only main is taken here", words));
        };
        let repository = self.desired.repository();
        // Before anything is looked at: whatever is applied from now on makes this push one that came too late.
        let on = self.desired.head();
        let main = repository.main().await.map_err(|error| Refused::broken(&error))?;
        let stale = || {
            let words = "somebody changed something in between. `git pull --rebase`, then push again";
            Refused::new("fetch first", words)
        };
        if command.old != main {
            return Err(stale());
        }
        self.may_push().await?;
        let quarantine = Quarantine::receive(&self.git.program, repository, &push.pack).await?;
        quarantine.check_whole(&self.git.program, commit, main).await?;
        let view = quarantine.view();
        if let Some(main) = main
            && !view.descends(commit, main).await.map_err(|error| Refused::broken(&error))?
        {
            let words = "history is not rewritten here: what was wanted stays to be seen. `git pull --rebase`, then push \
                         again; `git revert` takes something back";
            return Err(Refused::new("non-fast-forward", words));
        }
        match self.adopt_pushed(actor, commit, on, &quarantine).await {
            Ok(()) => {
                self.go_on().await.map_err(|error| Refused::broken(&error))?;
                self.desired.settled();
                tracing::info!(actor = actor.name, %commit, "a push was taken");
                let mut words = vec![format!("applied as {}", commit.short())];
                // It is done; what there is to know of it is no part of that.
                let warnings = self.warnings_of_commit(&commit.to_string()).await.unwrap_or_default();
                words.extend(warnings.iter().map(|warning| format!("warning: {warning}")));
                let files = repository.changes(main, commit).await.unwrap_or_default();
                words.extend(pin_words(&self.unwritten_pins(&files).await.unwrap_or_default()));
                Ok(words)
            }
            Err(unadopted) => {
                let now = repository.main().await.map_err(|error| Refused::broken(&error))?;
                if now != main {
                    return Err(stale());
                }
                match unadopted {
                    Unadopted::Flaws(flaws) => {
                        let mut words: Vec<String> = flaws.iter().map(ToString::to_string).collect();
                        words.push("nothing was changed; mend this, commit, and push again".to_owned());
                        let places = places(&flaws);
                        Err(Refused { unpacked: true, short: "cannot be applied; see above", words, places })
                    }
                    Unadopted::Failed(error) => Err(Refused::broken(&error)),
                }
            }
        }
    }

    /// While a person has to decide what counts, only a commit that mends what is there may come.
    async fn may_push(&self) -> Result<(), Refused> {
        let Err(why) = self.desired.may_change() else { return Ok(()) };
        if self.desired.following().is_some() {
            return Err(Refused::new("it follows a remote", why.to_string()));
        }
        // Whoever pushes to a server that was restored brings what was wanted since.
        if self.desired.is_returning() {
            return Ok(());
        }
        let held = || Refused::new("held back", why.to_string());
        let repository = self.desired.repository();
        let main = repository.main().await.map_err(|error| Refused::broken(&error))?;
        let (Some(main), Some(head)) = (main, self.desired.head()) else { return Err(held()) };
        match repository.descends(main, head).await {
            Ok(true) if main != head => Ok(()),
            Ok(_) => Err(held()),
            Err(error) => Err(Refused::broken(&error)),
        }
    }
}

/// Where something is wrong, without the words, which may repeat what was written.
pub(crate) fn places(flaws: &[Flaw]) -> Vec<String> {
    let place = |flaw: &Flaw| format!("{}:{} ({})", flaw.file, flaw.line, flaw.rule);
    flaws.iter().take(PLACES_MAX).map(place).collect()
}

/// Pushes that are looked at side by side; each has its pack in memory.
pub(super) const PUSHES_MAX: usize = 2;
/// For a pack of the largest size over a line of 2 Mbit/s.
pub(crate) const PUSH_TIME_MAX: Duration = Duration::from_secs(5 * 60);
