//! A remote repository that says what is wanted, in place of pages, commands and pushes.
//!
//! It is asked now and then where its branch is. A new commit is fetched and done as a push would be. One that is wrong is not
//! done; the last good one stays, and what is wrong can be seen until the next comes. It is tried again now and then: what it
//! was refused for may have been a registry that was away, or a device that had not joined. Where it stays wrong, what came before
//! it is done, as far as it leads there (`way.rs`). One that does not follow what is applied waits for a person. A remote that is away
//! changes nothing.
//!
//! What is fetched waits outside of the repository until it is whole, and is bounded in bytes and in time: whatever a remote sends,
//! the repository and what is applied stay as they are.
//!
//! Credentials are in files that only `git` opens: they are in no argument, no variable and no log.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use margrave_core::chain::sentence;
use margrave_core::moment::Moment;
use margrave_wire::operator;
use margrave_wire::resource::Flaw;
use tokio::process::Command;
use tokio::sync::Notify;

use super::intent::places;
use super::program::{NoGit, RunError, run};
use super::quarantine::{Quarantine, QuarantineError};
use crate::fleet::audit::Unasked;
use crate::fleet::desired::{CommitId, Conflict, KEPT_FROM, Unadopted};
use crate::fleet::{Actor, Error, Fleet, time};

const LOOK_TIME_MAX: Duration = Duration::from_secs(60);
const FETCH_TIME_MAX: Duration = Duration::from_secs(10 * 60);
/// What one fetch may bring, the first with its whole history: many years of a large fleet. Files that are no use here do not
/// belong beside it.
pub const FETCH_BYTES_MAX: u64 = 256 * 1024 * 1024;
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Until a commit that was refused is tried again; twice as long after each time.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(15 * 60);
/// Where a fetched commit is kept from being lost; nobody who fetches sees it.
const KEPT: &str = "refs/followed/head";
/// Answers for `git`, which asks for a user name and then for a password.
const ASKPASS: &str =
    "#!/bin/sh\ncase \"$1\" in\nUsername*) echo margrave ;;\n*) cat \"$MARGRAVE_TOKEN_FILE\" ;;\nesac\n";
/// Everything that carries a repository; in particular not `ext`, which runs programs.
const PROTOCOLS: [&str; 5] = ["https", "http", "ssh", "git", "file"];

/// Which remote, and how it is reached.
#[derive(Debug, Clone)]
pub struct Follow {
    pub url: String,
    pub branch: String,
    /// About how often it is asked.
    pub every: Duration,
    /// Holds the password for HTTPS.
    pub token_file: Option<PathBuf>,
    /// Who vouches for an HTTPS remote, in PEM; without it, those whom the server's machine believes.
    pub authority: Option<PathBuf>,
    pub ssh_key: Option<PathBuf>,
    /// Hosts that SSH may believe; without it, those of the server's machine.
    pub known_hosts: Option<PathBuf>,
    /// Holds what a caller of `/hooks/intent` must know; nobody may call without.
    pub hook_token_file: Option<PathBuf>,
    /// What one fetch may bring; [`FETCH_BYTES_MAX`] as a rule.
    pub bytes_max: u64,
}

impl Follow {
    /// Why this remote cannot be followed, if it cannot.
    pub fn check(&self) -> Result<(), String> {
        let Follow { url, branch, token_file, .. } = self;
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        if url.starts_with('-') || url.contains("::") || url.chars().any(char::is_control) {
            return Err("this is no address of a repository".to_owned());
        }
        if !scheme.is_empty() && !PROTOCOLS.contains(&scheme) {
            return Err(format!("{scheme}:// is not followed; use https:// or ssh://"));
        }
        let user = rest.split('/').next().and_then(|host| host.split_once('@')).map(|(user, _)| user);
        if !scheme.is_empty() && user.is_some_and(|user| scheme != "ssh" || user.contains(':')) {
            return Err(
                "an address with a password in it ends up in logs; use --follow-token-file".to_owned()
            );
        }
        if scheme == "http" && token_file.is_some() {
            return Err("a token is not sent in the clear; use https://".to_owned());
        }
        let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
        if branch.is_empty()
            || branch.starts_with(['-', '/', '.'])
            || branch.contains("..")
            || !branch.chars().all(sound)
        {
            return Err(format!("{branch:?} is no name of a branch"));
        }
        Ok(())
    }
}

pub(in crate::fleet) struct Following {
    pub(in crate::fleet) follow: Follow,
    askpass: Option<tempfile::TempPath>,
    nudge: Notify,
    /// When it was last asked, in milliseconds; 0 when never.
    looked: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// Since when there is no answer, and why not.
    away: Option<(Moment, String)>,
    flaws: Vec<Flaw>,
    /// Since when the newest commit, whichever it was, could not be applied.
    flawed_since: Option<Moment>,
    /// How many commits are not applied because of that; 0 where they cannot be counted.
    pub(super) waiting: u64,
    refused: Option<Refused>,
    /// The commit about which somebody has to decide.
    held: Option<CommitId>,
}

/// A commit that was looked at and is not done.
#[derive(Clone, Copy)]
struct Refused {
    commit: CommitId,
    again: Again,
}

/// Whether a commit that is not done is looked at once more.
#[derive(Clone, Copy)]
enum Again {
    /// It brings too much, or somebody decided against it: only another commit helps.
    Never,
    /// It cannot be applied as things are, which may pass without another commit.
    After { at: Moment, tries: u32 },
}

impl Refused {
    fn for_good(commit: CommitId) -> Refused {
        Refused { commit, again: Again::Never }
    }

    /// Whether there is no reason yet to look at it once more. A clock that jumped back is one.
    fn rests(&self, now: Moment) -> bool {
        match self.again {
            Again::Never => true,
            Again::After { at, tries } => at <= now && now < at.after(pause(tries)),
        }
    }
}

fn pause(tries: u32) -> Duration {
    match tries.checked_sub(1) {
        None => Duration::ZERO,
        Some(more) => REFUSED_PAUSE.saturating_mul(2u32.saturating_pow(more)).min(REFUSED_PAUSE_MAX),
    }
}

impl State {
    /// Whether what is wrong did not pass in the time in which most of what passes does.
    pub(super) fn lasts(&self, now: Moment) -> bool {
        self.flawed_since.is_some_and(|since| since.after(REFUSED_PAUSE) <= now)
    }

    /// What it is once a commit was found not to be applicable, and whether that is news.
    fn flawed(&self, commit: CommitId, flaws: Vec<Flaw>, at: Moment) -> (State, bool) {
        let before = self.refused.filter(|refused| refused.commit == commit);
        let tries = match before {
            Some(Refused { again: Again::After { tries, .. }, .. }) => tries.saturating_add(1),
            _ => 1,
        };
        let is_news = before.is_none() || self.flaws != flaws;
        let refused = Some(Refused { commit, again: Again::After { at, tries } });
        let flawed_since = Some(self.flawed_since.map_or(at, |since| since.min(at)));
        (State { flaws, flawed_since, waiting: self.waiting, refused, ..State::default() }, is_news)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    #[error("{0}")]
    NoGit(#[from] NoGit),
    #[error("the remote gave no answer")]
    Away(#[source] RunError),
    #[error("what the remote sent could not be taken in")]
    Unkept(#[from] QuarantineError),
    #[error("the remote has no branch {0}")]
    NoBranch(String),
    #[error("what is wanted could not be changed")]
    Failed(#[source] Error),
}

impl Following {
    pub(in crate::fleet) fn new(follow: Follow) -> io::Result<Following> {
        let askpass = match &follow.token_file {
            None => None,
            Some(_) => {
                use std::os::unix::fs::PermissionsExt as _;
                let mut file = tempfile::Builder::new().prefix("margrave-askpass-").tempfile()?;
                io::Write::write_all(&mut file, ASKPASS.as_bytes())?;
                file.as_file().set_permissions(std::fs::Permissions::from_mode(0o700))?;
                // Closed, or it could not be run.
                Some(file.into_temp_path())
            }
        };
        Ok(Following {
            follow,
            askpass,
            nudge: Notify::new(),
            looked: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is followed, for operators.
    pub(in crate::fleet) fn shown(&self) -> operator::Following {
        let looked = self.looked.load(Ordering::Relaxed);
        operator::Following {
            branch: self.follow.branch.clone(),
            every_seconds: self.follow.every.as_secs(),
            looked_at: (looked > 0).then(|| time(Moment(looked))),
            hook: self.follow.hook_token_file.is_some(),
        }
    }

    /// Since when the remote gives no answer, and why not as far as that is known.
    pub(in crate::fleet) fn away(&self) -> Option<(Moment, String)> {
        self.state().away.clone()
    }

    pub(in crate::fleet) fn flaws(&self) -> Vec<Flaw> {
        self.state().flaws.clone()
    }

    /// How many commits of the remote are not applied because the newest cannot be.
    pub(in crate::fleet) fn waiting(&self) -> u64 {
        self.state().waiting
    }

    pub(in crate::fleet) fn held(&self) -> Option<CommitId> {
        self.state().held
    }

    /// Somebody decided about the commit that was held.
    pub(in crate::fleet) fn decided(&self, take: bool) {
        let mut state = self.state();
        let held = state.held.take();
        state.refused = held.filter(|_| !take).map(Refused::for_good);
        state.flaws.clear();
    }

    /// Somebody says that it is worth a look: also at a commit that was refused.
    fn look_anew(&self) {
        if let Some(Refused { again: Again::After { tries, .. }, .. }) = &mut self.state().refused {
            *tries = 0;
        }
    }

    /// What is written down of a commit of the remote.
    pub(in crate::fleet) fn unasked(&self) -> Unasked {
        Unasked { way: "follow", ..Unasked::new("intent.follow", &self.follow.branch) }
    }

    fn is_away(&self, now: Moment, why: String) {
        let mut state = self.state();
        let since = state.away.as_ref().map_or(now, |(since, _)| *since);
        state.away = Some((since, why));
    }

    fn dress(&self, command: &mut Command) {
        command.args(["-c", "protocol.allow=never", "-c", "http.followRedirects=false"]);
        command.args(["-c", "credential.helper=", "-c", "fetch.fsckObjects=true", "-c", "gc.auto=0"]);
        for protocol in PROTOCOLS {
            command.arg("-c").arg(format!("protocol.{protocol}.allow=always"));
        }
        if let Some(authority) = &self.follow.authority {
            command.env("GIT_SSL_CAINFO", authority);
        }
        if let (Some(askpass), Some(token)) = (&self.askpass, &self.follow.token_file) {
            command.env("GIT_ASKPASS", askpass).env("MARGRAVE_TOKEN_FILE", token);
        }
        let mut ssh =
            "ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=20".to_owned();
        if let Some(key) = &self.follow.ssh_key {
            ssh.push_str(&format!(" -o IdentitiesOnly=yes -i {}", quoted(key)));
        }
        if let Some(hosts) = &self.follow.known_hosts {
            // And nobody else, whomever the machine believes.
            let hosts = format!("UserKnownHostsFile=\"{}\"", hosts.display());
            ssh.push_str(&format!(" -o GlobalKnownHostsFile=/dev/null -o {}", quoted(hosts.as_ref())));
        }
        command.env("GIT_SSH_COMMAND", ssh);
    }
}

/// Why a remote gave no answer, as somebody who can mend it would say it; with what was said, for everything else.
fn reason(error: &RunError) -> String {
    let said = match error {
        RunError::Failed { errors, .. } => errors.clone(),
        other => return other.to_string(),
    };
    let known = [
        ("IDENTIFICATION HAS CHANGED", HOST_CHANGED),
        ("Host key verification failed", HOST_UNKNOWN),
        ("Permission denied (publickey", KEY_REFUSED),
        ("bad permissions", KEY_OPEN),
        ("Authentication failed", TOKEN_REFUSED),
        ("could not read Username", TOKEN_REFUSED),
        ("certificate", CERTIFICATE_REFUSED),
        ("Connection refused", NOBODY_THERE),
        ("Could not resolve", NOBODY_THERE),
        ("timed out", NOBODY_THERE),
        ("does not appear to be a git repository", NO_REPOSITORY),
        ("not found", NO_REPOSITORY),
    ];
    let meaning = known.iter().find(|(part, _)| said.contains(part));
    // Not the frame around a warning, nor the advice for whoever sits before a terminal.
    let told = said.split("; ").filter(|line| {
        !line.starts_with('@')
            && !line.starts_with("Please make sure")
            && *line != "and the repository exists."
    });
    let said: String = told.collect::<Vec<_>>().join("; ");
    let said: String = said.chars().filter(|c| !c.is_control()).take(SAID_MAX).collect();
    match meaning {
        Some((_, meaning)) => format!("{meaning} ({said})"),
        None if said.is_empty() => error.to_string(),
        None => said,
    }
}

/// Of what `git` and `ssh` said, in characters.
const SAID_MAX: usize = 300;
const HOST_CHANGED: &str = "the host has another key than --follow-known-hosts says: somebody may be in between, or it was set \
                            up anew; compare its fingerprint, then write its key there";
const HOST_UNKNOWN: &str = "the host's key is not in --follow-known-hosts, so it is not believed; compare its fingerprint, then \
                            write its key there";
const KEY_REFUSED: &str =
    "the remote does not let the key of --follow-ssh-key in; give its public half the right to read";
const KEY_OPEN: &str =
    "the key of --follow-ssh-key can be read by others, so ssh does not use it; set its mode to 600";
const TOKEN_REFUSED: &str = "the remote does not accept the token of --follow-token-file";
const CERTIFICATE_REFUSED: &str = "the remote's certificate is not vouched for; --follow-ca names who does";
const NOBODY_THERE: &str = "nobody answers there";
const NO_REPOSITORY: &str = "there is no repository at this address, or it is not for this key or token";

/// As one word of a shell.
fn quoted(path: &std::path::Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

impl Fleet {
    /// From now on what is wanted comes from a remote, and from nowhere else.
    pub(crate) fn follow(&self, follow: Follow) -> io::Result<()> {
        tracing::info!(url = follow.url, branch = follow.branch, "what is wanted is followed from a remote");
        self.desired.follow(Following::new(follow)?);
        Ok(())
    }

    /// The remote may have something new.
    pub(crate) fn nudge_follow(&self) {
        if let Some(following) = self.desired.following() {
            following.look_anew();
            following.nudge.notify_one();
        }
    }

    pub(crate) async fn follow_nudged(&self) {
        match self.desired.following() {
            Some(following) => following.nudge.notified().await,
            None => std::future::pending().await,
        }
    }

    /// What a caller of the hook must know, as it is in its file at this moment.
    pub(crate) async fn hook_token(&self) -> Option<String> {
        let path = self.desired.following()?.follow.hook_token_file.clone()?;
        let text = tokio::fs::read_to_string(&path).await;
        let text = text.map_err(|error| tracing::warn!(%error, "the token of the hook cannot be read"));
        text.ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Looks at the remote once, and does what is new there.
    pub(crate) async fn follow_once(&self) -> Result<(), FollowError> {
        let Some(following) = self.desired.following() else { return Ok(()) };
        following.looked.store(self.now().0, Ordering::Relaxed);
        let looked = self.follow_look(following).await;
        match &looked {
            Err(FollowError::Away(error)) => following.is_away(self.now(), reason(error)),
            Err(error @ FollowError::NoBranch(_)) => following.is_away(self.now(), error.to_string()),
            Err(error @ FollowError::NoGit(_)) => following.is_away(self.now(), error.to_string()),
            Err(FollowError::Unkept(_) | FollowError::Failed(_)) => {}
            Ok(()) => following.state().away = None,
        }
        looked
    }

    async fn follow_look(&self, following: &Following) -> Result<(), FollowError> {
        let Follow { url, branch, .. } = &following.follow;
        let repository = self.desired.repository();
        let name = format!("refs/heads/{branch}");
        let mut command = self.git.program.on(repository.path()).await?;
        following.dress(&mut command);
        command.args(["ls-remote", "--", url, &name]);
        let said = run(command, "ls-remote", b"", OUTPUT_BYTES_MAX, LOOK_TIME_MAX).await;
        let said = said.map_err(FollowError::Away)?;
        let said = String::from_utf8_lossy(&said).into_owned();
        let found = said.lines().filter_map(|line| line.split_once('\t')).find(|(_, found)| *found == name);
        let commit = found.and_then(|(commit, _)| CommitId::parse(commit));
        let commit = commit.ok_or_else(|| FollowError::NoBranch(branch.clone()))?;
        let head = self.desired.head();
        if Some(commit) == head {
            self.go_on().await.map_err(FollowError::Failed)?;
            *following.state() = State::default();
            self.desired.settled();
            return Ok(());
        }
        let now = self.now();
        let rests = |refused: Refused| refused.commit == commit && refused.rests(now);
        let known = |state: &State| state.refused.is_some_and(rests) || state.held == Some(commit);
        if known(&following.state()) {
            return Ok(());
        }
        let failed = |error: Error| FollowError::Failed(error);
        let kept = self.store.recall(KEPT_FROM).await.map_err(|error| failed(error.into()))?;
        if kept.as_deref() == Some(commit.to_string().as_bytes()) {
            following.state().refused = Some(Refused::for_good(commit));
            return Ok(());
        }
        if !repository.has(commit).await.map_err(|error| failed(error.into()))? {
            let Some(quarantine) = self.follow_fetch(following, &name, commit).await? else { return Ok(()) };
            // The branch may have moved on since it was asked for; the next look finds that.
            if !quarantine.view().has(commit).await.map_err(|error| failed(error.into()))? {
                return Ok(());
            }
            quarantine.admit().await.map_err(QuarantineError::Disk)?;
        }
        repository.keep(KEPT, commit).await.map_err(|error| failed(error.into()))?;
        let follows = match head {
            Some(head) => repository.descends(commit, head).await.map_err(|error| failed(error.into()))?,
            None => true,
        };
        if !follows && !self.wants_nothing().await.map_err(failed)? {
            self.desired.hold(Conflict {
                message: format!(
                    "{url} is at {}, which does not follow what this server applied last: its history was rewritten, or it \
                     is another one. Devices keep what they have. `margrave intent resolve --take` applies it, `--keep` \
                     stays with what the server has",
                    commit.short()
                ),
                flaws: Vec::new(),
            });
            *following.state() = State { held: Some(commit), ..State::default() };
            let detail = "it does not follow what is applied; a person has to decide".to_owned();
            let held = Unasked { outcome: "held", detail, commit: Some(commit), ..following.unasked() };
            self.record_unasked(held).await;
            return Ok(());
        }
        self.follow_take(following, commit).await
    }

    /// Fetches into a place of its own; nothing if it is more than may be, which is then told.
    async fn follow_fetch(
        &self,
        following: &Following,
        name: &str,
        commit: CommitId,
    ) -> Result<Option<Quarantine>, FollowError> {
        let Follow { url, bytes_max, .. } = &following.follow;
        let quarantine = Quarantine::new(self.desired.repository()).await?;
        let mut command = quarantine.command(&self.git.program).await?;
        following.dress(&mut command);
        // Also a little comes as a pack, and a file of any size piece by piece.
        command.args(["-c", "fetch.unpackLimit=1", "-c", "core.bigFileThreshold=1m", "-c", "pack.threads=1"]);
        command.args(["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--", url, name]);
        let fetch = run(command, "fetch", b"", OUTPUT_BYTES_MAX, FETCH_TIME_MAX);
        // Dropped, the fetch is killed, and what it left goes with its place.
        let whole = tokio::select! {
            fetched = fetch => {
                fetched.map_err(FollowError::Away)?;
                quarantine.size().await.map_err(QuarantineError::Disk)? <= *bytes_max
            }
            outgrown = quarantine.outgrows(*bytes_max) => {
                outgrown.map_err(QuarantineError::Disk)?;
                false
            }
        };
        if whole {
            return Ok(Some(quarantine));
        }
        // Before anybody hears of it: nothing of it stays.
        drop(quarantine);
        let message = format!(
            "commit {} brings more than {} MiB, which is too much for what is wanted; take large files out of the \
             branch and its history",
            commit.short(),
            bytes_max.div_ceil(1 << 20)
        );
        tracing::warn!(%commit, bytes_max, "a fetch from the remote was cut off because it brings too much");
        let flaw = Flaw { file: String::new(), line: 0, rule: "limit".to_owned(), message };
        let refused = Some(Refused::for_good(commit));
        *following.state() = State { flaws: vec![flaw], refused, ..State::default() };
        let detail = format!("it brings more than {} MiB", bytes_max.div_ceil(1 << 20));
        let refused = Unasked { outcome: "too-large", detail, commit: Some(commit), ..following.unasked() };
        self.record_unasked(refused).await;
        Ok(None)
    }

    async fn follow_take(&self, following: &Following, commit: CommitId) -> Result<(), FollowError> {
        let logged = self.desired.repository().logged(commit).await;
        let logged = logged.map_err(|error| FollowError::Failed(error.into()))?;
        match self.adopt(&Actor { name: logged.by }, commit).await {
            Ok(()) => {
                tracing::info!(%commit, "a commit of the remote was applied");
                self.go_on().await.map_err(FollowError::Failed)?;
                *following.state() = State::default();
                self.desired.settled();
                Ok(())
            }
            Err(Unadopted::Flaws(flaws)) => {
                let first = flaws.first().map(ToString::to_string).unwrap_or_default();
                let (count, places) = (flaws.len(), places(&flaws).join(", "));
                let is_news = {
                    let mut state = following.state();
                    let (next, is_news) = state.flawed(commit, flaws, self.now());
                    *state = next;
                    is_news
                };
                // Nothing of the remote's has to be decided any more. Whether a restored server goes on with what it has does.
                self.desired.settled();
                self.hold_what_was_restored().await.map_err(FollowError::Failed)?;
                if is_news {
                    tracing::warn!(%commit, first, flaws = count, "a commit of the remote cannot be applied");
                    let detail = format!("cannot be applied: {places}");
                    let commit = Some(commit);
                    let refused = Unasked { outcome: "invalid", detail, commit, ..following.unasked() };
                    self.record_unasked(refused).await;
                }
                self.follow_way(following, commit).await
            }
            Err(Unadopted::Failed(error)) => {
                tracing::warn!(%commit, error = sentence(&error), "a commit of the remote could not be applied now");
                Err(FollowError::Failed(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(url: &str, branch: &str) -> Follow {
        Follow {
            url: url.to_owned(),
            branch: branch.to_owned(),
            every: Duration::from_secs(60),
            authority: None,
            token_file: None,
            ssh_key: None,
            known_hosts: None,
            hook_token_file: None,
            bytes_max: FETCH_BYTES_MAX,
        }
    }

    #[test]
    fn only_addresses_that_carry_repositories_and_no_secrets_are_followed() {
        for good in [
            "https://git.example/fleet.git",
            "ssh://git@git.example/fleet",
            "git@git.example:fleet",
            "/srv/fleet.git",
        ] {
            assert_eq!(follow(good, "main").check(), Ok(()), "{good}");
        }
        for bad in [
            "ext::sh -c evil",
            "--upload-pack=evil",
            "ftp://git.example/fleet",
            "https://ann:secret@git.example/fleet",
            "https://token@git.example/fleet",
            "ssh://git:secret@git.example/fleet",
            "https://git.example/\nfleet",
        ] {
            assert!(follow(bad, "main").check().is_err(), "{bad}");
        }
        for bad in ["", "-x", "a b", "a..b", "/a", "a:b", ".a"] {
            assert!(follow("/srv/fleet.git", bad).check().is_err(), "{bad}");
        }
        let token = Follow { token_file: Some("t".into()), ..follow("http://git.example/fleet", "main") };
        assert!(token.check().is_err());
    }

    #[test]
    fn what_a_remote_said_becomes_what_to_do() {
        use std::os::unix::process::ExitStatusExt as _;
        let failed = |errors: &str| RunError::Failed {
            act: "ls-remote",
            status: std::process::ExitStatus::from_raw(128 << 8),
            errors: errors.to_owned(),
        };
        for (said, told) in [
            ("Host key verification failed.; fatal: Could not read from remote repository.", HOST_UNKNOWN),
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @; Host key verification failed.",
                HOST_CHANGED,
            ),
            ("ann.example: Permission denied (publickey).", KEY_REFUSED),
            ("ssh: connect to host x port 22: Connection refused", NOBODY_THERE),
            ("fatal: Authentication failed for 'https://git.example/'", TOKEN_REFUSED),
        ] {
            let reason = reason(&failed(said));
            assert!(
                reason.starts_with(told) && reason.len() > told.len() && !reason.contains('@'),
                "{reason}"
            );
        }
        assert_eq!(reason(&failed("something else")), "something else");
        assert!(reason(&failed("")).contains("ls-remote"));
        let long = reason(&failed(&"x".repeat(5000)));
        assert_eq!(long.len(), SAID_MAX);
    }

    #[test]
    fn a_commit_that_was_refused_is_tried_again_less_and_less_often() {
        let commit = CommitId::parse(&"a".repeat(40)).unwrap();
        let flaw = |message: &str| Flaw {
            file: "packages/hello/1.0.0.yaml".to_owned(),
            line: 4,
            rule: "PK-040".to_owned(),
            message: message.to_owned(),
        };
        let mut state = State::default();
        let mut now = Moment(1_000_000);
        for (minutes, news) in [(1, true), (2, false), (4, false), (8, false), (15, false), (15, false)] {
            let (next, is_news) = state.flawed(commit, vec![flaw("away")], now);
            assert_eq!(is_news, news);
            state = next;
            let refused = state.refused.unwrap();
            let pause = Duration::from_secs(minutes * 60);
            assert!(refused.rests(now) && refused.rests(Moment(now.after(pause).0 - 1)), "{minutes}");
            assert!(!refused.rests(Moment(now.0 - 1)), "the clock jumped back");
            now = now.after(pause);
            assert!(!refused.rests(now), "{minutes}");
        }
        assert!(state.flawed(commit, vec![flaw("not there")], now).1, "other flaws are news");
        let other = CommitId::parse(&"b".repeat(40)).unwrap();
        let (state, is_news) = state.flawed(other, vec![flaw("away")], now);
        assert!(is_news && !state.refused.unwrap().rests(now.after(REFUSED_PAUSE)), "begins anew");
        assert!(Refused::for_good(commit).rests(Moment(u64::MAX)));
    }

    #[test]
    fn a_path_is_one_word_of_a_shell_whatever_is_in_it() {
        assert_eq!(quoted(std::path::Path::new("/a b/c'd")), "'/a b/c'\\''d'");
    }
}
