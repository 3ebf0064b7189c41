//! A remote repository that says what is wanted: new commits, wrong ones, rewritten history, and one that is away.

use std::path::{Path, PathBuf};
use std::time::Duration;

use margrave_server::Config;
use margrave_server::fleet::{AuditQuery, FETCH_BYTES_MAX, Follow};
use margrave_wire::operator::{Intent, SetLabels};
use tempfile::TempDir;

use crate::browser::Browser;
use crate::git::{Client, put_git};
use crate::line::DEADLINE;
use crate::plant::{Plant, operator};

/// Two people: a bare repository, and the tree of who writes to it.
pub(crate) struct Remote {
    pub(crate) folder: TempDir,
    client: Client,
}

impl Remote {
    pub(crate) async fn new() -> Option<Remote> {
        let client = Client::new("")?;
        let folder = tempfile::tempdir().unwrap();
        let remote = Remote { folder, client };
        for (key, value) in [("user.name", "Ann"), ("user.email", "ann@plant.example")] {
            remote.git(remote.folder.path(), &["config", "--global", key, value]).await;
        }
        remote.git(remote.folder.path(), &["init", "-q", "--bare", "-b", "fleet", "remote.git"]).await;
        remote.git(remote.folder.path(), &["clone", "-q", "remote.git", "tree"]).await;
        Some(remote)
    }

    pub(crate) async fn git(&self, folder: &Path, arguments: &[&str]) -> String {
        self.client.git(folder, arguments).await
    }

    pub(crate) fn bare(&self) -> PathBuf {
        self.folder.path().join("remote.git")
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    /// Commits a device's file and pushes it; the commit.
    pub(crate) async fn say(&self, labels: &str, force: bool) -> String {
        let text = format!(
            "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: press.42\nspec:\n  labels: {labels}\n"
        );
        std::fs::create_dir_all(self.tree().join("devices")).unwrap();
        std::fs::write(self.tree().join("devices/press.42.yaml"), text).unwrap();
        self.git(&self.tree(), &["add", "-A"]).await;
        self.git(&self.tree(), &["commit", "-q", "-m", "Say something"]).await;
        let branch = if force { "+HEAD:fleet" } else { "HEAD:fleet" };
        self.git(&self.tree(), &["push", "-q", "origin", branch]).await;
        self.git(&self.tree(), &["rev-parse", "HEAD"]).await
    }

    /// The same by somebody whose clock is elsewhere.
    async fn say_at(&self, labels: &str, when: &str) -> String {
        let text = format!(
            "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: press.42\nspec:\n  labels: {labels}\n"
        );
        std::fs::write(self.tree().join("devices/press.42.yaml"), text).unwrap();
        self.git(&self.tree(), &["add", "-A"]).await;
        let (author, committer) = (format!("--date={when}"), "alias.early=!GIT_COMMITTER_DATE=");
        let alias = format!("{committer}{when} git commit -q -m 'Say something'");
        self.git(&self.tree(), &["-c", &alias, "early", &author]).await;
        self.git(&self.tree(), &["push", "-q", "origin", "HEAD:fleet"]).await;
        self.git(&self.tree(), &["rev-parse", "HEAD"]).await
    }

    async fn plant(&self) -> Plant {
        self.plant_taking(FETCH_BYTES_MAX).await
    }

    /// One that looks once an hour, and when it is told to.
    async fn plant_told(&self) -> Plant {
        let hour = Duration::from_secs(3600);
        let follow = Follow { every: hour, ..self.follow(FETCH_BYTES_MAX) };
        Plant::of(|config| Config { follow: Some(follow), ..config }).await
    }

    /// One that takes at most so much in at a time.
    async fn plant_taking(&self, bytes_max: u64) -> Plant {
        let follow = self.follow(bytes_max);
        Plant::of(|config| Config { follow: Some(follow), ..config }).await
    }

    fn follow(&self, bytes_max: u64) -> Follow {
        let hook_token_file = self.folder.path().join("hook");
        std::fs::write(&hook_token_file, "knock knock\n").unwrap();
        Follow {
            url: self.bare().display().to_string(),
            branch: "fleet".to_owned(),
            every: Duration::from_millis(100),
            token_file: None,
            authority: None,
            ssh_key: None,
            known_hosts: None,
            hook_token_file: Some(hook_token_file),
            bytes_max,
        }
    }
}

pub(crate) async fn until(plant: &Plant, what: &str, is: impl Fn(&Intent) -> bool) -> Intent {
    let look = async {
        loop {
            let intent = plant.server.fleet().intent().await.unwrap();
            if is(&intent) {
                return intent;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(DEADLINE, look).await {
        Ok(intent) => intent,
        Err(_) => panic!("{what}: {:?}", plant.server.fleet().intent().await),
    }
}

pub(crate) fn at(commit: &str) -> impl Fn(&Intent) -> bool + '_ {
    move |intent| intent.commit.as_deref() == Some(commit) && intent.conflict.is_none()
}

pub(crate) async fn labels(plant: &Plant) -> String {
    let shown = plant.server.fleet().device(&"press.42".parse().unwrap()).await.unwrap();
    format!("{:?}", shown.labels)
}

#[tokio::test]
async fn what_the_remote_says_is_done_and_nobody_else_says_anything() {
    let Some(remote) = Remote::new().await else { return };
    let first = remote.say("{line: '1'}", false).await;
    let plant = remote.plant().await;
    until(&plant, "the first commit", at(&first)).await;
    plant.join("press.42").await;
    assert_eq!(labels(&plant).await, r#"{"line": "1"}"#);
    let second = remote.say("{line: '2'}", false).await;
    until(&plant, "the second commit", at(&second)).await;
    assert_eq!(labels(&plant).await, r#"{"line": "2"}"#);

    let want = SetLabels { labels: [("line".to_owned(), Some("3".to_owned()))].into() };
    let refused = plant.server.fleet().label(&operator(), &"press.42".parse().unwrap(), want).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("change it in") && refused.contains("remote.git"), "{refused}");

    // A wrong commit is seen and not done; the next good one is.
    let wrong = remote.say("[wrong]", false).await;
    let intent = until(&plant, "the flaw", |intent| !intent.flaws.is_empty()).await;
    assert_eq!((intent.commit.as_deref(), intent.conflict), (Some(second.as_str()), None));
    assert_eq!(intent.flaws[0].file, "devices/press.42.yaml");
    let mended = remote.say("{line: '4'}", false).await;
    // It is applied a moment before the flaws of the one before are forgotten.
    until(&plant, "the mended commit", |intent| at(&mended)(intent) && intent.flaws.is_empty()).await;
    assert_eq!(labels(&plant).await, r#"{"line": "4"}"#);

    // All of it is in the audit log; whom a commit names as its author nobody vouched for.
    let fleet = plant.server.fleet();
    let entries = fleet.audit(AuditQuery::default()).await.unwrap().items;
    let followed = entries.iter().rev().filter(|entry| entry.way == "follow");
    let followed: Vec<_> = followed
        .map(|entry| {
            (entry.actor.as_str(), entry.action.as_str(), entry.outcome.as_str(), entry.commit.clone())
        })
        .collect();
    let of = |outcome, commit: &String| ("server", "intent.follow", outcome, Some(commit.clone()));
    let expected = [of("done", &first), of("done", &second), of("invalid", &wrong), of("done", &mended)];
    assert_eq!(followed, expected);
    let refused = entries.iter().find(|entry| entry.outcome == "invalid").unwrap();
    assert!(refused.detail.contains("devices/press.42.yaml:"), "{refused:?}");
}

#[tokio::test]
async fn a_moment_leads_to_what_counted_then_whatever_clock_the_author_had() {
    let Some(remote) = Remote::new().await else { return };
    let first = remote.say("{line: '1'}", false).await;
    let plant = remote.plant().await;
    until(&plant, "the first commit", at(&first)).await;
    plant.set_ahead(60);
    // Written long ago, or so its author's clock says, and taken only now.
    let second = remote.say_at("{line: '2'}", "2001-01-01T00:00:00Z").await;
    until(&plant, "the second commit", at(&second)).await;
    plant.set_ahead(120);
    let fleet = plant.server.fleet();
    let then = fleet.status_at("90s ago").await.unwrap();
    assert_eq!(then.commit.commit, first, "what was pushed later did not count yet");
    assert_eq!(fleet.status_at("30s ago").await.unwrap().commit.commit, second);
    assert_eq!(fleet.intent_between("90s ago", None).await.unwrap().files.len(), 1);
    let log = fleet.intent_log(None, 10).await.unwrap().items;
    assert_eq!((log[0].by.as_str(), log[0].applied_by.as_deref()), ("Ann", Some("server")));
    assert!(!log[0].at.starts_with("2001"), "{log:?}");
}

#[tokio::test]
async fn a_fleet_with_more_files_than_a_push_may_have_is_followed_from_the_first_look_on() {
    let Some(remote) = Remote::new().await else { return };
    let folder = remote.tree().join("devices");
    std::fs::create_dir_all(&folder).unwrap();
    for number in 0..10_100 {
        let text = format!(
            "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: d{number}\nspec:\n  labels: {{line: '1'}}\n"
        );
        std::fs::write(folder.join(format!("d{number}.yaml")), text).unwrap();
    }
    let commit = remote.say("{line: '1'}", false).await;
    let plant = remote.plant().await;
    until(&plant, "all of it", at(&commit)).await;
    plant.join("d10099").await;
    let shown = plant.server.fleet().device(&"d10099".parse().unwrap()).await.unwrap();
    assert_eq!(shown.labels["line"], "1");
}

#[tokio::test]
async fn a_remote_over_https_is_believed_by_its_authority_and_let_in_by_a_token() {
    let Some(client) = Client::new("") else { return };
    let above = Plant::new().await;
    above.join("press.42").await;
    let authority = client.path("above.pem");
    std::fs::write(&authority, put_git(&above, "press.42", false, None).await.authority).unwrap();
    let token_file = client.path("token");
    std::fs::write(&token_file, format!("{}\n", above.server.context().token)).unwrap();
    let wrong = client.path("wrong");
    std::fs::write(&wrong, "not-a-token\n").unwrap();
    let want = SetLabels { labels: [("line".to_owned(), Some("7".to_owned()))].into() };
    above.server.fleet().label(&operator(), &"press.42".parse().unwrap(), want).await.unwrap();
    let commit = above.server.fleet().intent().await.unwrap().commit.unwrap();

    let follow = |token: &Path, authority: Option<&Path>| Follow {
        url: format!("https://{}/git/intent.git", above.server.addresses().web),
        branch: "main".to_owned(),
        every: Duration::from_millis(100),
        token_file: Some(token.to_owned()),
        authority: authority.map(Path::to_owned),
        ssh_key: None,
        known_hosts: None,
        hook_token_file: None,
        bytes_max: FETCH_BYTES_MAX,
    };
    for (token, authority) in [(&token_file, None), (&wrong, Some(authority.as_path()))] {
        let follow = follow(token, authority);
        let below = Plant::of(|config| Config { follow: Some(follow), ..config }).await;
        let intent = until(&below, "it is away", |intent| intent.away_since.is_some()).await;
        assert_ne!(intent.commit.as_ref(), Some(&commit), "nothing is taken from whom nobody vouches for");
    }
    let follow = follow(&token_file, Some(&authority));
    let below = Plant::of(|config| Config { follow: Some(follow), ..config }).await;
    until(&below, "the commit of the other", at(&commit)).await;
    below.join("press.42").await;
    assert_eq!(labels(&below).await, r#"{"line": "7"}"#);
}

#[tokio::test]
async fn rewritten_history_waits_for_a_person() {
    let Some(remote) = Remote::new().await else { return };
    remote.say("{line: '1'}", false).await;
    let second = remote.say("{line: '2'}", false).await;
    let plant = remote.plant().await;
    until(&plant, "the first commits", at(&second)).await;
    plant.join("press.42").await;
    for take in [false, true] {
        remote.git(&remote.tree(), &["reset", "-q", "--hard", "HEAD~1"]).await;
        let other = remote.say(&format!("{{line: 'other {take}'}}"), true).await;
        let intent = until(&plant, "the conflict", |intent| intent.conflict.is_some()).await;
        assert!(intent.conflict.unwrap().contains("intent resolve"));
        assert_eq!(labels(&plant).await, r#"{"line": "2"}"#);
        plant.server.fleet().resolve(&operator(), take).await.unwrap();
        let intent = plant.server.fleet().intent().await.unwrap();
        assert_eq!((intent.conflict, intent.commit.as_deref() == Some(&other)), (None, take));
    }
    assert_eq!(labels(&plant).await, r#"{"line": "other true"}"#);
    // It goes on from there.
    let next = remote.say("{line: '5'}", false).await;
    until(&plant, "what came after", at(&next)).await;
}

#[tokio::test]
async fn a_remote_that_is_away_changes_nothing() {
    let Some(remote) = Remote::new().await else { return };
    let first = remote.say("{line: '1'}", false).await;
    let plant = remote.plant().await;
    until(&plant, "the first commit", at(&first)).await;
    let away = remote.folder.path().join("away.git");
    std::fs::rename(remote.bare(), &away).unwrap();
    let intent = until(&plant, "that it is away", |intent| intent.away_since.is_some()).await;
    assert_eq!((intent.commit, intent.conflict), (Some(first), None));
    let mut browser = Browser::signed_in(&plant).await;
    assert!(!browser.page("/").await.contains("does not answer since"), "a hiccup is nobody's business");
    plant.set_ahead(400);
    let page = browser.page("/").await;
    assert!(page.contains("does not answer since") && page.contains("/why?kind=intent"), "{page}");
    assert!(browser.page("/why?kind=intent").await.contains("intent-away"));
    std::fs::rename(&away, remote.bare()).unwrap();
    let second = remote.say("{line: '2'}", false).await;
    let back = |intent: &Intent| at(&second)(intent) && intent.away_since.is_none();
    until(&plant, "the second commit, and that it is back", back).await;
}

#[tokio::test]
async fn a_server_that_follows_a_remote_has_no_button_that_it_would_refuse() {
    let Some(remote) = Remote::new().await else { return };
    let first = remote.say("{line: '1'}", false).await;
    let plant = remote.plant().await;
    until(&plant, "the first commit", at(&first)).await;
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/").await;
    assert!(page.contains("come with commits to <code>"), "{page}");
    assert!(!page.contains(">Deploy</a>") && !page.contains("margrave package add"), "{page}");
    crate::stock::device(&plant, "press-1", 4).await;
    let page = browser.page("/devices").await;
    assert!(page.contains("value=\"retire\"") && page.contains("value=\"hold\""), "{page}");
    assert!(!page.contains("Set the label") && !page.contains("id=\"key\""), "{page}");
    let told = crate::browser::text(browser.get("/deploy?package=gate").await.is(409));
    assert!(told.contains("change it there"), "{told}");
}

#[tokio::test]
async fn a_call_that_proves_to_know_the_token_brings_the_next_look() {
    let Some(remote) = Remote::new().await else { return };
    let first = remote.say("{line: '1'}", false).await;
    let plant = remote.plant_told().await;
    until(&plant, "the look at the start", at(&first)).await;
    let page = Browser::signed_in(&plant).await.page("/settings").await;
    for part in ["<code>fleet</code>", "every 1h; last ", "POST /hooks/intent"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let mut line = plant.web().await;
    let body = r#"{"ref": "refs/heads/fleet"}"#;
    let sign = |key: &str, body: &str| {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, key.as_bytes());
        let tag = aws_lc_rs::hmac::sign(&key, body.as_bytes());
        format!("sha256={}", tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    let (other, elsewhere) = (sign("knock", body), sign("knock knock", "{}"));
    for (name, wrong) in [
        ("authorization", "Bearer knock"),
        ("x-gitlab-token", "knock"),
        ("x-hub-signature-256", "sha256="),
        ("x-hub-signature-256", other.as_str()),
        ("x-hub-signature-256", elsewhere.as_str()),
    ] {
        line.send("POST", "/hooks/intent", &[(name, wrong)], body).await.unwrap().is(401);
    }
    let signed = sign("knock knock", body);
    let rights = [
        ("authorization", "Bearer knock knock"),
        ("x-gitlab-token", "knock knock"),
        ("x-hub-signature-256", signed.as_str()),
    ];
    for right in rights {
        let said = remote.say(&format!("{{line: '{}'}}", right.0), false).await;
        line.send("POST", "/hooks/intent", &[right], body).await.unwrap().is(202);
        until(&plant, right.0, at(&said)).await;
    }
}

#[tokio::test]
async fn who_follows_nobody_has_no_hook() {
    let plant = Plant::new().await;
    let mut line = plant.web().await;
    let right = [("authorization", "Bearer x")];
    line.send("POST", "/hooks/intent", &right, "").await.unwrap().is(404);
}

#[tokio::test]
async fn a_remote_that_brings_too_much_is_cut_off_and_the_last_good_state_stays() {
    let Some(remote) = Remote::new().await else { return };
    let first = remote.say("{line: '1'}", false).await;
    let plant = remote.plant_taking(2 << 20).await;
    until(&plant, "the first commit", at(&first)).await;
    // What cannot be made smaller by packing it.
    let mut noise = Vec::with_capacity(6 << 20);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    while noise.len() < 6 << 20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    std::fs::write(remote.tree().join("recording.bin"), &noise).unwrap();
    let large = remote.say("{line: '2'}", false).await;
    let intent = until(&plant, "the flaw", |intent| !intent.flaws.is_empty()).await;
    assert_eq!(
        (intent.commit.as_deref(), intent.conflict, intent.away_since),
        (Some(first.as_str()), None, None)
    );
    let told = intent.flaws[0].to_string();
    assert!(told.contains("brings more than 2 MiB") && told.contains(&large[..10]), "{told}");
    // Nothing of it stays.
    let repository = plant.data.path().join("intent.git");
    let left: Vec<_> =
        std::fs::read_dir(&repository).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("incoming-")), "{left:?}");
    let known = remote.client.git(&repository, &["-c", "safe.directory=*", "count-objects", "-v"]).await;
    let size = known.lines().find_map(|line| line.strip_prefix("size-pack: ")).unwrap();
    assert!(size.parse::<u64>().unwrap() < 1024, "{known}");

    // Without it, it goes on.
    std::fs::remove_file(remote.tree().join("recording.bin")).unwrap();
    remote.git(&remote.tree(), &["reset", "-q", "--soft", &first]).await;
    let mended = remote.say("{line: '3'}", true).await;
    until(&plant, "the mended commit", |intent| at(&mended)(intent) && intent.flaws.is_empty()).await;
}
