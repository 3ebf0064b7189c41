//! Desired state from a Git repository: one commit per manifest version on `main`, with `manifest.json` and
//! `deployments/<id>.yaml` byte for byte as the device interface serves them.
//!
//! The ordinary `git` program fetches into a bare repository of our own and reads out of it; what it brings is
//! judged like everything else, by digest and by version. A repository that is damaged, or has grown beyond its
//! bound, is deleted and fetched anew: everything in it can be had again. Tokens stay in memory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use margrave_core::device::{Polled, Trouble};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::AssignmentId;
use margrave_core::manifest::Entry;
use margrave_core::moment::Moment;
use margrave_http::{Origin, Request, Scheme};
use margrave_wire::g2;
use margrave_wire::identity::{GIT_TOKEN_PATH, GitToken};
use tokio::sync::Mutex;

use super::link::{Link, trouble_of};
use super::{BUNDLE_SIZE_MAX, DOCUMENT_SIZE_MAX};
use crate::clock;
use crate::identity::{GitSource, create_private, write_secret};
use crate::process::{self, Finished, Run};

/// Asking for one reference.
const LOOK_TIME_MAX: Duration = Duration::from_secs(60);
/// The largest repository over the slowest line that is waited for.
const FETCH_TIME_MAX: Duration = Duration::from_secs(15 * 60);
/// Reading from the disk.
const READ_TIME_MAX: Duration = Duration::from_secs(120);
/// No file that git writes may be larger, in the shell's blocks of 512 or 1024 bytes: a server could send for ever.
const FILE_BLOCKS_MAX: u32 = 128 * 1024;
/// Every fetch leaves a pack; with so many, all are dropped and the newest commit is fetched anew.
const PACKS_MAX: usize = 64;
/// A token with less than this left is replaced before it is shown.
const TOKEN_LEFT_MIN: Duration = Duration::from_secs(5 * 60);
/// How long a server that is busy is left alone.
const BUSY_PAUSE: Duration = Duration::from_secs(60);
const BRANCH: &str = "refs/heads/main";
const MANIFEST: &str = "manifest.json";

/// The repository that this device's desired state comes from.
pub(crate) struct Git {
    source: GitSource,
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    access: Option<Access>,
    /// The commit that was polled last, and the digest of the manifest in it.
    seen: Option<(String, Digest)>,
}

/// What opens the repository.
#[derive(Clone)]
struct Access {
    url: String,
    /// `user:token`, as Basic wants it.
    secret: String,
    /// When to ask for another one; never, for one that an operator gave.
    until: Option<Moment>,
    authority: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error(
        "the program git is not installed on this device; install it (2.31 or newer), or join without --git"
    )]
    Missing,
    #[error("git {0} is too old; version 2.31 or newer is needed")]
    TooOld(String),
    #[error("git could not be run")]
    Run(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("git says: {0}")]
    Failed(String),
    #[error("git says of what lies on this device: {0}")]
    Damaged(String),
    #[error("the repository's server is busy: {0}")]
    Busy(String),
    #[error("the repository refuses this device's token")]
    Refused,
    #[error("the repository has no branch main")]
    NoBranch,
    #[error("the repository's address {0:?} is not an https URL")]
    Address(String),
    #[error("{0}, which is in the manifest, is not in the repository")]
    Absent(String),
    #[error("{0} in the repository is no file, or is larger than it may be")]
    NotAFile(String),
    #[error("git's folder could not be prepared")]
    Folder(#[source] std::io::Error),
    #[error("git printed what it never prints")]
    Nonsense,
}

/// Whether an ordinary git is here and new enough to be told its configuration in the environment.
pub async fn check_program() -> Result<(), GitError> {
    let variables = BTreeMap::from([("PATH".into(), std::env::var_os("PATH").unwrap_or_default())]);
    let finished =
        run(&["--version".into()], &variables, Path::new("/"), Stdio::null(), LOOK_TIME_MAX, 1 << 16).await?;
    let said = String::from_utf8_lossy(&finished.output).trim().to_owned();
    let mut numbers = said.trim_start_matches("git version ").split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) >= (2, 31) => Ok(()),
        _ => Err(GitError::TooOld(said.chars().take(60).collect())),
    }
}

impl Git {
    pub(crate) fn new(source: GitSource, data: &Path) -> Git {
        Git { source, folder: data.join("git"), state: Mutex::default() }
    }

    fn repository(&self) -> PathBuf {
        self.folder.join("desired.git")
    }

    /// Whether the newest commit has another manifest than the one that is held.
    pub(crate) async fn poll(&self, link: &Link, held: Option<Digest>) -> Result<Polled, Trouble> {
        let mut state = self.state.lock().await;
        let commit = self.newest(link, &mut state).await?;
        if let Some((seen, body)) = &state.seen
            && *seen == commit
            && held == Some(*body)
        {
            return Ok(Polled::Unchanged { held_open: false });
        }
        let bytes = match self.manifest(link, &mut state, &commit).await? {
            Ok(bytes) => bytes,
            // Whatever is wrong with what lies here: all of it can be had again.
            Err(first) => {
                let trouble = margrave_core::chain::sentence(&first);
                tracing::warn!(trouble, "the Git repository is fetched anew");
                self.forget().map_err(|error| troubled(&error))?;
                self.manifest(link, &mut state, &commit).await?.map_err(|error| troubled(&error))?
            }
        };
        let body = Digest::of(&bytes);
        state.seen = Some((commit, body));
        if held == Some(body) {
            return Ok(Polled::Unchanged { held_open: false });
        }
        let listing = g2::manifest::read(&bytes)
            .map_err(|error| Trouble::passing(format!("the repository's manifest is not usable: {error}")))?;
        Ok(Polled::Manifest { manifest: listing.manifest, body, held_open: false })
    }

    /// These documents, as the commit that was polled has them, each verified.
    pub(crate) async fn documents(
        &self,
        entries: &[Entry],
    ) -> Result<Vec<(AssignmentId, Document)>, Trouble> {
        let mut state = self.state.lock().await;
        let Some((commit, _)) = state.seen.clone() else {
            return Err(Trouble::passing("the repository has to be looked at first"));
        };
        let names: Vec<String> =
            entries.iter().map(|entry| format!("deployments/{}.yaml", entry.id)).collect();
        let read = self.read(&commit, &names, DOCUMENT_SIZE_MAX).await;
        let verified = read.map_err(|error| troubled(&error)).and_then(|contents| {
            let one = |(entry, bytes): (&Entry, Vec<u8>)| {
                let document = Document::verified(bytes, entry.document.digest);
                let refused =
                    |mismatch| Trouble::passing(format!("document {} was refused: {mismatch}", entry.id));
                document.map(|document| (entry.id, document)).map_err(refused)
            };
            entries.iter().zip(contents).map(one).collect()
        });
        if verified.is_err() {
            // The next poll starts from an empty folder, in case it is the disk that lies.
            state.seen = None;
            self.forget().map_err(|error| troubled(&error))?;
        }
        verified
    }

    /// The commit at the tip of the branch, by one small question that writes nothing.
    async fn newest(&self, link: &Link, state: &mut State) -> Result<String, Trouble> {
        let mut access = self.access(link, state).await?;
        let mut asked_again = false;
        loop {
            match self.tip(&access).await {
                Ok(commit) => return Ok(commit),
                // A token may have been rotated; ours can be had anew.
                Err(GitError::Refused) if !asked_again && access.until.is_some() => {
                    asked_again = true;
                    state.access = None;
                    access = self.access(link, state).await?;
                }
                Err(error) => return Err(troubled(&error)),
            }
        }
    }

    async fn tip(&self, access: &Access) -> Result<String, GitError> {
        self.prepare()?;
        let arguments = ["ls-remote".into(), "--".into(), access.url.clone().into(), BRANCH.into()];
        let finished =
            self.git(&arguments, Some(access), &self.folder, Stdio::null(), LOOK_TIME_MAX, 1 << 20).await?;
        let output = String::from_utf8_lossy(&finished.output).into_owned();
        let line =
            output.lines().find(|line| line.ends_with(&format!("\t{BRANCH}"))).ok_or(GitError::NoBranch)?;
        let commit = line.split('\t').next().unwrap_or_default();
        let is_hash = matches!(commit.len(), 40 | 64) && commit.bytes().all(|b| b.is_ascii_hexdigit());
        if is_hash { Ok(commit.to_owned()) } else { Err(GitError::Nonsense) }
    }

    /// The manifest's bytes in `commit`, which is fetched unless it is here; or what is wrong with what lies here. That
    /// the other end cannot be fetched from says nothing about that.
    async fn manifest(
        &self,
        link: &Link,
        state: &mut State,
        commit: &str,
    ) -> Result<Result<Vec<u8>, GitError>, Trouble> {
        let access = self.access(link, state).await?;
        match self.fetch(&access, commit).await {
            Ok(()) => {}
            Err(GitError::Failed(said)) if !is_of_remote(&said) => return Ok(Err(GitError::Damaged(said))),
            Err(error) => return Err(troubled(&error)),
        }
        let size_max = g2::manifest::SIZE_MAX as u64;
        let read = self.read(commit, &[MANIFEST.to_owned()], size_max).await;
        Ok(read.and_then(|mut files| files.pop().ok_or(GitError::Nonsense)))
    }

    async fn fetch(&self, access: &Access, commit: &str) -> Result<(), GitError> {
        let repository = self.repository();
        if packs(&repository) >= PACKS_MAX {
            self.forget()?;
        }
        if !repository.join("HEAD").exists() {
            self.prepare()?;
            let arguments = ["init".into(), "--quiet".into(), "--bare".into(), repository.clone().into()];
            self.git(&arguments, None, &self.folder, Stdio::null(), READ_TIME_MAX, 1 << 16).await?;
        }
        let here = ["cat-file".into(), "-e".into(), format!("{commit}^{{commit}}").into()];
        if self.git(&here, None, &repository, Stdio::null(), READ_TIME_MAX, 1 << 16).await.is_ok() {
            return Ok(());
        }
        forget_cut(&repository);
        // Only the newest commit: history is the server's affair.
        let arguments: Vec<OsString> = [
            "fetch",
            "--quiet",
            "--no-tags",
            "--depth=1",
            "--force",
            "--",
            &access.url,
            &format!("{BRANCH}:{BRANCH}"),
        ]
        .map(OsString::from)
        .into();
        self.git(&arguments, Some(access), &repository, Stdio::null(), FETCH_TIME_MAX, 1 << 20)
            .await
            .map(drop)
    }

    /// The content of files in a commit, in the order of their names.
    async fn read(&self, commit: &str, names: &[String], size_max: u64) -> Result<Vec<Vec<u8>>, GitError> {
        let (input, mut asking) = std::io::pipe().map_err(GitError::Folder)?;
        let lines: String = names.iter().map(|name| format!("{commit}:{name}\n")).collect();
        // A long list does not fit into a pipe that nobody reads yet.
        let asked = tokio::task::spawn_blocking(move || asking.write_all(lines.as_bytes()));
        let arguments = ["cat-file".into(), "--batch".into()];
        let output_max = usize::try_from(BUNDLE_SIZE_MAX).unwrap_or(usize::MAX);
        let finished = self
            .git(&arguments, None, &self.repository(), Stdio::from(input), READ_TIME_MAX, output_max)
            .await?;
        match asked.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(GitError::Folder(error)),
            Err(_) => return Err(GitError::Nonsense),
        }
        parse_batch(&finished.output, names, size_max)
    }

    async fn access(&self, link: &Link, state: &mut State) -> Result<Access, Trouble> {
        if let Some(access) = &state.access
            && access.until.is_none_or(|until| until.since(clock::now()) > TOKEN_LEFT_MIN)
        {
            return Ok(access.clone());
        }
        let access = match &self.source {
            GitSource::Given { url, username, token, authority } => Access {
                url: url.clone(),
                secret: format!("{username}:{token}"),
                until: None,
                authority: self.keep_authority(authority.as_deref())?,
            },
            GitSource::Server => {
                let response = link.send(Request::post(GIT_TOKEN_PATH)).await?;
                if !response.status.is_success() {
                    let refused = trouble_of(&response);
                    let message = format!(
                        "the server gives this device no Git repository: {}; an operator switches it on with `margrave device git`",
                        refused.message
                    );
                    return Err(Trouble { message, ..refused });
                }
                let unusable = |error: &dyn std::fmt::Display| {
                    Trouble::passing(format!("the server's Git token is not usable: {error}"))
                };
                let token: GitToken = response.json().map_err(|error| unusable(&error))?;
                let expires: jiff::Timestamp = token.expires.parse().map_err(|error| unusable(&error))?;
                Access {
                    authority: self.keep_authority(Some(&token.authority))?,
                    secret: format!("{}:{}", token.username, token.token),
                    until: Some(Moment(u64::try_from(expires.as_millisecond()).unwrap_or(0))),
                    url: token.url,
                }
            }
        };
        // Nothing else may stand where git expects an address: it knows schemes that run programs.
        let https = Origin::split(&access.url).is_ok_and(|(origin, _)| origin.scheme() == Scheme::Https);
        if !https {
            return Err(troubled(&GitError::Address(access.url.chars().take(200).collect())));
        }
        state.access = Some(access.clone());
        Ok(access)
    }

    /// Where git finds the authority that it trusts; written only when it changed.
    fn keep_authority(&self, pem: Option<&str>) -> Result<Option<PathBuf>, Trouble> {
        let Some(pem) = pem else { return Ok(None) };
        self.prepare().map_err(|error| troubled(&error))?;
        let path = self.folder.join("authority.pem");
        let same = std::fs::read(&path).is_ok_and(|held| held == pem.as_bytes());
        if !same {
            write_secret(&self.folder, &path, pem.as_bytes())
                .map_err(|error| Trouble::passing(margrave_core::chain::sentence(&error)))?;
        }
        Ok(Some(path))
    }

    fn prepare(&self) -> Result<(), GitError> {
        create_private(&self.folder).map_err(GitError::Folder)
    }

    /// Drops the repository; everything in it can be had again.
    fn forget(&self) -> Result<(), GitError> {
        match std::fs::remove_dir_all(self.repository()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(GitError::Folder(error)),
            _ => Ok(()),
        }
    }

    async fn git(
        &self,
        arguments: &[OsString],
        access: Option<&Access>,
        directory: &Path,
        input: Stdio,
        time_max: Duration,
        output_max: usize,
    ) -> Result<Finished, GitError> {
        let variables = variables(&self.folder, access);
        let finished = run(arguments, &variables, directory, input, time_max, output_max).await?;
        if finished.success {
            return Ok(finished);
        }
        let said = finished.errors.to_ascii_lowercase();
        let refused = ["error: 401", "error: 403", "authentication failed", "could not read username"];
        if access.is_some() && refused.iter().any(|words| said.contains(words)) {
            return Err(GitError::Refused);
        }
        let last: Vec<&str> = finished.errors.lines().rev().take(3).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        let last: String = last.join("; ").chars().filter(|c| !c.is_control()).take(500).collect();
        let is_busy = ["error: 429", "error: 503"].iter().any(|words| said.contains(words));
        Err(if access.is_some() && is_busy { GitError::Busy(last) } else { GitError::Failed(last) })
    }
}

/// Whether git complains about the other end or the way there, and not about what lies here.
fn is_of_remote(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    let words = [
        "unable to access",
        "rpc failed",
        "requested url returned error",
        "early eof",
        "hung up",
        "remote error",
        "expected flush",
        "could not resolve",
        "timed out",
    ];
    words.iter().any(|words| said.contains(words))
}

/// Everything that git is told comes from here: no file of this machine, no prompt, no helper has a say. The token
/// is in the environment, which only this user can see, and not among the arguments, which everybody can.
fn variables(folder: &Path, access: Option<&Access>) -> BTreeMap<OsString, OsString> {
    let mut settings: Vec<(String, OsString)> = [
        ("protocol.allow", "never"),
        ("protocol.https.allow", "always"),
        ("http.followRedirects", "false"),
        ("http.lowSpeedLimit", "100"),
        ("http.lowSpeedTime", "30"),
        ("credential.helper", ""),
        ("core.hooksPath", "/dev/null"),
        ("core.fsyncMethod", "batch"),
        ("fetch.fsckObjects", "true"),
        ("fetch.unpackLimit", "1"),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        ("init.defaultBranch", "main"),
        ("advice.defaultBranchName", "false"),
        ("safe.directory", "*"),
    ]
    .map(|(key, value)| (key.to_owned(), value.into()))
    .into();
    if let Some(access) = access {
        let basic = base64::engine::general_purpose::STANDARD.encode(&access.secret);
        settings.push(("http.extraHeader".to_owned(), format!("Authorization: Basic {basic}").into()));
        if let Some(authority) = &access.authority {
            settings.push(("http.sslCAInfo".to_owned(), authority.clone().into()));
        }
    }
    let mut variables: BTreeMap<OsString, OsString> = BTreeMap::from([
        ("PATH".into(), std::env::var_os("PATH").unwrap_or_default()),
        ("HOME".into(), folder.into()),
        ("LC_ALL".into(), "C".into()),
        ("GIT_CONFIG_NOSYSTEM".into(), "1".into()),
        ("GIT_CONFIG_GLOBAL".into(), "/dev/null".into()),
        ("GIT_TERMINAL_PROMPT".into(), "0".into()),
        ("GIT_CEILING_DIRECTORIES".into(), folder.into()),
        ("GIT_CONFIG_COUNT".into(), settings.len().to_string().into()),
    ]);
    for (at, (key, value)) in settings.into_iter().enumerate() {
        variables.insert(format!("GIT_CONFIG_KEY_{at}").into(), key.into());
        variables.insert(format!("GIT_CONFIG_VALUE_{at}").into(), value);
    }
    variables
}

/// The shell only sets the bound on what may be written, and then becomes git.
async fn run(
    arguments: &[OsString],
    variables: &BTreeMap<OsString, OsString>,
    directory: &Path,
    input: Stdio,
    time_max: Duration,
    output_max: usize,
) -> Result<Finished, GitError> {
    let script = format!("ulimit -f {FILE_BLOCKS_MAX}; exec git \"$@\"");
    let mut all: Vec<OsString> = vec!["-c".into(), script.into(), "git".into()];
    all.extend_from_slice(arguments);
    let run = Run { arguments: all, variables, directory, input, time_max, output_max };
    let finished =
        process::run(Path::new("/bin/sh"), run).await.map_err(|error| GitError::Run(Box::new(error)))?;
    if finished.code == Some(127) { Err(GitError::Missing) } else { Ok(finished) }
}

fn troubled(error: &GitError) -> Trouble {
    let trouble = Trouble::passing(margrave_core::chain::sentence(error));
    match error {
        // How long it asked for git does not tell.
        GitError::Busy(_) => Trouble { retry_after: Some(BUSY_PAUSE), ..trouble },
        _ => trouble,
    }
}

fn packs(repository: &Path) -> usize {
    // A repository that is not there has none.
    std::fs::read_dir(repository.join("objects/pack")).map_or(0, |entries| {
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().ends_with(".pack")).count()
    })
}

/// Takes away what fetches left that were cut off. Nobody else does, because git tidies up nothing here.
fn forget_cut(repository: &Path) {
    // A repository that is not there has none.
    let Ok(entries) = std::fs::read_dir(repository.join("objects/pack")) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("tmp_")) {
        let path = entry.path();
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "a piece of a fetch that was cut off stays");
        }
    }
}

/// What `cat-file --batch` prints for each name: a line with its kind and size, the bytes, and a line break.
fn parse_batch(output: &[u8], names: &[String], size_max: u64) -> Result<Vec<Vec<u8>>, GitError> {
    let mut rest = output;
    let mut contents = vec![];
    for name in names {
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or(GitError::Nonsense)?;
        let head = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest = &rest[end + 1..];
        let words: Vec<&str> = head.split(' ').collect();
        if words.last() == Some(&"missing") {
            return Err(GitError::Absent(name.clone()));
        }
        let [_, kind, size] = words[..] else { return Err(GitError::Nonsense) };
        let size: usize = size.parse().map_err(|_| GitError::Nonsense)?;
        if kind != "blob" || size as u64 > size_max {
            return Err(GitError::NotAFile(name.clone()));
        }
        if rest.len() <= size {
            return Err(GitError::Nonsense);
        }
        contents.push(rest[..size].to_vec());
        rest = &rest[size + 1..];
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_prints_is_read_byte_by_byte_or_refused() {
        let names = ["a".to_owned(), "b".to_owned()];
        let read = |output: &[u8]| parse_batch(output, &names, 10);
        assert_eq!(read(b"0f blob 3\nx\ny\n0e blob 0\n\n").unwrap(), [b"x\ny".to_vec(), vec![]]);
        assert!(
            matches!(read(b"0f blob 1\nx\nc0ffee:b missing\n"), Err(GitError::Absent(name)) if name == "b")
        );
        assert!(matches!(read(b"0f tree 3\nabc\n"), Err(GitError::NotAFile(_))));
        assert!(matches!(read(b"0f blob 11\n01234567890\n"), Err(GitError::NotAFile(_))));
        for cut in [&b""[..], b"0f blob", b"0f blob 3\nx", b"0f blob 3\nxyz", b"0f blob -1\n", b"0f blob x\n"]
        {
            assert!(matches!(read(cut), Err(GitError::Nonsense)), "{cut:?}");
        }
    }

    #[test]
    fn no_secret_is_among_the_arguments_and_no_scheme_but_https_is_spoken() {
        let access = Access {
            url: "https://h/x.git".into(),
            secret: "u:token".into(),
            until: None,
            authority: Some("/d/a.pem".into()),
        };
        let variables = variables(Path::new("/d"), Some(&access));
        let value = |key: &str| {
            let at = variables.iter().find(|(_, value)| value.to_str() == Some(key)).unwrap().0;
            let at = at.to_str().unwrap().replace("KEY", "VALUE");
            variables[&OsString::from(at)].to_str().unwrap().to_owned()
        };
        assert_eq!(value("http.extraHeader"), "Authorization: Basic dTp0b2tlbg==");
        assert_eq!((value("protocol.allow"), value("http.sslCAInfo")), ("never".into(), "/d/a.pem".into()));
    }

    #[tokio::test]
    async fn what_a_fetch_left_that_was_cut_off_is_gone_before_the_next_one() {
        let data = tempfile::tempdir().unwrap();
        let access = Access {
            // Nobody listens there.
            url: "https://127.0.0.1:1/x.git".into(),
            secret: "u:token".into(),
            until: None,
            authority: None,
        };
        let git = Git::new(GitSource::Server, data.path());
        let fetch = async || git.fetch(&access, &"0".repeat(40)).await.unwrap_err();
        let first = fetch().await;
        assert!(matches!(first, GitError::Failed(_)), "{first:?}");
        let packs = git.repository().join("objects/pack");
        for name in ["tmp_pack_Xa1b2c", "tmp_idx_Xa1b2c", "pack-1.pack", "pack-1.keep"] {
            std::fs::write(packs.join(name), b"").unwrap();
        }
        fetch().await;
        let left = std::fs::read_dir(&packs).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["pack-1.keep", "pack-1.pack"]);
    }
}
