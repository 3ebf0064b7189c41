//! Repositories on disk, made by the real `git` and read by it.

use std::path::PathBuf;
use std::process::Command;

use super::*;
use crate::fleet::git::{Ask, FetchError, Pass, Protocol, Upload};

/// Whether the rest of a test can run here; said aloud if not.
pub(super) fn git_is_here() -> bool {
    let here = Command::new("git").arg("--version").output().is_ok_and(|output| output.status.success());
    if !here {
        assert_ne!(
            std::env::var("CI").as_deref(),
            Ok("true"),
            "in CI nothing may be missing: git is not installed"
        );
        #[allow(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: git is not installed");
        }
    }
    here
}

impl World {
    fn repository(&self, name: &str) -> PathBuf {
        self.data.path().join("git").join(format!("{name}.git"))
    }

    /// What `git` says of a repository.
    fn ask_git(&self, name: &str, arguments: &[&str]) -> Vec<u8> {
        let output = Command::new("git")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .arg("--git-dir")
            .arg(self.repository(name))
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn say_git(&self, name: &str, arguments: &[&str]) -> String {
        String::from_utf8(self.ask_git(name, arguments)).unwrap().trim_end().to_owned()
    }

    /// `manifest 7`, oldest first.
    fn subjects(&self, name: &str) -> Vec<String> {
        let said = self.say_git(name, &["log", "--reverse", "--format=%s", "main"]);
        said.lines().map(str::to_owned).collect()
    }

    fn commits(&self, name: &str) -> Vec<String> {
        let said = self.say_git(name, &["rev-list", "--reverse", "main"]);
        said.lines().map(str::to_owned).collect()
    }

    async fn git_on(&self, name: &str) -> operator::GitRepository {
        self.fleet.put_git(&ann(), &device(name), operator::PutGit::default()).await.unwrap()
    }

    async fn greet(&self, greeting: &str) {
        let mut want = on(&["line-1"]);
        want.parameters.insert("greeting".into(), json!(greeting));
        self.put("hello", want).await.unwrap();
    }

    async fn rebuilds(&self) -> Vec<String> {
        let events = self.fleet.device_events(&device("line-1"), 1000).await.unwrap();
        events
            .into_iter()
            .filter(|event| event.kind == "device.git-rebuilt")
            .map(|event| event.text)
            .collect()
    }

    async fn fetch(&self, pass: Pass, ask: Ask) -> Result<Upload, FetchError> {
        self.fleet.git_fetch(pass, Protocol::V2, ask).await
    }

    /// What was published is in the newest commit, byte for byte.
    async fn check_bytes(&self, name: &str) {
        let live = self.fleet.manifest(&client(name), Dialect::Miaf).unwrap();
        assert_eq!(self.ask_git(name, &["cat-file", "blob", "main:manifest.json"]), live.body);
        let listing = g2::manifest::read(&live.body).unwrap();
        let mut files = vec![".gitattributes".to_owned(), "manifest.json".to_owned()];
        for entry in listing.manifest.entries() {
            let file = format!("deployments/{}.yaml", entry.id);
            let bytes = self.ask_git(name, &["cat-file", "blob", &format!("main:{file}")]);
            assert_eq!(Digest::of(&bytes), entry.document.digest);
            files.push(file);
        }
        files.sort();
        let listed = self.say_git(name, &["ls-tree", "-r", "--name-only", "main"]);
        assert_eq!(listed.lines().collect::<Vec<_>>(), files);
    }
}

/// A world with one device that has a repository.
async fn world() -> Option<(World, String)> {
    if !git_is_here() {
        return None;
    }
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let token = world.git_on("line-1").await.token.unwrap();
    Some((world, token))
}

#[tokio::test]
async fn a_hundred_publications_are_a_hundred_commits_and_made_anew_they_have_the_same_hashes() {
    let Some((world, _)) = world().await else { return };
    assert_eq!(world.version("line-1"), 1);
    for number in 0..100 {
        world.pass(1);
        world.greet(&format!("hello {number}")).await;
        // Sometimes one at a time, sometimes many at once.
        if number < 60 || number % 7 == 0 {
            world.fleet.commit_manifests().await;
        }
    }
    world.fleet.commit_manifests().await;
    let wanted: Vec<String> = (1..=101).map(|version| format!("manifest {version}")).collect();
    assert_eq!(world.subjects("line-1"), wanted);
    world.check_bytes("line-1").await;
    world.ask_git("line-1", &["fsck", "--full", "--strict"]);
    // Small packs were rolled up on the way.
    let packs = std::fs::read_dir(world.repository("line-1").join("objects/pack")).unwrap();
    let packs =
        packs.filter(|pack| pack.as_ref().unwrap().path().extension() == Some("pack".as_ref())).count();
    assert!(packs <= 51, "{packs}");

    let commits = world.commits("line-1");
    std::fs::remove_dir_all(world.repository("line-1")).unwrap();
    world.fleet.commit_manifests().await;
    assert_eq!(world.commits("line-1"), commits);
    let rebuilds = world.rebuilds().await;
    assert_eq!(rebuilds.len(), 1);
    assert!(rebuilds[0].contains("not there any more"), "{rebuilds:?}");
}

#[tokio::test]
async fn a_restart_goes_on_where_it_was_and_history_begins_when_it_was_switched_on() {
    let Some((world, _)) = world().await else { return };
    world.device("line-2", &[]).await;
    world.greet("one").await;
    // Published, and the server ends before it was committed.
    let world = world.restarted().await;
    assert!(!world.repository("line-1").exists());
    world.fleet.commit_manifests().await;
    assert_eq!(world.subjects("line-1"), ["manifest 1", "manifest 2"]);
    world.greet("two").await;
    let world = world.restarted().await;
    world.fleet.commit_manifests().await;
    world.fleet.commit_manifests().await;
    assert_eq!(world.subjects("line-1"), ["manifest 1", "manifest 2", "manifest 3"]);
    world.check_bytes("line-1").await;
    assert_eq!(world.rebuilds().await, Vec::<String>::new());
    // Documents go when they are taken away.
    world.fleet.remove_deployment(&ann(), &name("hello"), None).await.unwrap();
    world.fleet.commit_manifests().await;
    world.check_bytes("line-1").await;
    let times = world.say_git("line-1", &["log", "--format=%at %ct %an <%ae>", "main"]);
    let at = START / 1000;
    assert!(times.lines().all(|line| line == format!("{at} {at} Margrave <margrave@localhost>")), "{times}");

    // Off and on: the new one begins with what is there, and nobody else has one.
    world.fleet.end_git(&ann(), &device("line-1")).await.unwrap();
    assert!(!world.repository("line-1").exists());
    world.greet("three").await;
    world.git_on("line-1").await;
    world.fleet.commit_manifests().await;
    assert_eq!(world.subjects("line-1"), ["manifest 5"]);
    assert!(!world.repository("line-2").exists());
}

#[tokio::test]
async fn what_was_damaged_is_made_anew_with_an_event() {
    let Some((world, token)) = world().await else { return };
    world.greet("one").await;
    world.fleet.commit_manifests().await;
    let commits = world.commits("line-1");
    // The branch was moved, emptied, or points to nothing.
    let branch = world.repository("line-1").join("refs/heads/main");
    for text in [format!("{}\n", commits[0]), String::new(), format!("{}\n", "ab".repeat(20))] {
        std::fs::write(&branch, text).unwrap();
        let pass = world.fleet.git_pass(&token).await.unwrap().unwrap();
        drop(world.fetch(pass, Ask::Advertisement).await.unwrap());
        assert_eq!(world.commits("line-1"), commits);
    }
    // Moved back is no damage: it only has to follow again.
    assert_eq!(world.rebuilds().await.len(), 2);
    // The next commit cannot be made, because what it builds on is gone.
    for pack in std::fs::read_dir(world.repository("line-1").join("objects/pack")).unwrap() {
        let path = pack.unwrap().path();
        let mut permissions = path.metadata().unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
        std::fs::set_permissions(&path, permissions).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        for byte in bytes.iter_mut().skip(12) {
            *byte ^= 0x55;
        }
        std::fs::write(&path, bytes).unwrap();
    }
    world.greet("two").await;
    world.fleet.commit_manifests().await;
    assert_eq!(world.subjects("line-1"), ["manifest 1", "manifest 2", "manifest 3"]);
    assert_eq!(world.rebuilds().await.len(), 3);
    assert_eq!(world.commits("line-1")[..2], commits);
}

#[tokio::test]
async fn a_repository_that_is_ahead_of_a_restored_store_is_about_another_past() {
    let Some((world, _)) = world().await else { return };
    world.greet("one").await;
    let world = world.restarted().await;
    let World { fleet, registry, clock, data } = world;
    drop(Arc::into_inner(fleet).unwrap());
    let kept = tempfile::tempdir().unwrap();
    std::fs::copy(data.path().join("margrave.db"), kept.path().join("margrave.db")).unwrap();
    copy(&data.path().join("intent.git"), &kept.path().join("intent.git"));
    let fleet = open(&data, &registry, &clock).await;
    let world = World { fleet, registry, clock, data };
    world.greet("lost").await;
    world.fleet.commit_manifests().await;
    let lost = world.commits("line-1");
    assert_eq!(lost.len(), 3);

    let World { fleet, registry, clock, data } = world;
    drop(Arc::into_inner(fleet).unwrap());
    std::fs::copy(kept.path().join("margrave.db"), data.path().join("margrave.db")).unwrap();
    std::fs::remove_dir_all(data.path().join("intent.git")).unwrap();
    copy(&kept.path().join("intent.git"), &data.path().join("intent.git"));
    let fleet = open(&data, &registry, &clock).await;
    let world = World { fleet, registry, clock, data };
    world.fleet.commit_manifests().await;
    assert_eq!(world.commits("line-1"), lost[..2]);
    world.greet("found").await;
    world.fleet.commit_manifests().await;
    assert_eq!(world.subjects("line-1"), ["manifest 1", "manifest 2", "manifest 3"]);
    assert_ne!(world.commits("line-1")[2], lost[2]);
    world.check_bytes("line-1").await;
}

#[tokio::test]
async fn what_a_killed_git_left_is_in_nobodys_way() {
    let Some((world, _)) = world().await else { return };
    world.fleet.commit_manifests().await;
    let world = world.restarted().await;
    let repository = world.repository("line-1");
    for left in ["refs/heads/main.lock", "objects/pack/tmp_pack_x", "fast_import_crash_7"] {
        let path = repository.join(left);
        let file = std::fs::File::create(&path).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }
    // What is of this moment may still be written to; it is left alone.
    std::fs::write(repository.join("objects/pack/tmp_pack_y"), "").unwrap();
    world.greet("one").await;
    world.fleet.commit_manifests().await;
    assert_eq!(world.subjects("line-1"), ["manifest 1", "manifest 2"]);
    assert!(!repository.join("objects/pack/tmp_pack_x").exists());
    assert!(repository.join("objects/pack/tmp_pack_y").exists());
    // And directories that belong to nobody go.
    std::fs::create_dir_all(world.data.path().join("git/line-9.git/objects")).unwrap();
    std::fs::create_dir_all(world.data.path().join("git/~line-9")).unwrap();
    world.fleet.sweep_git().await.unwrap();
    let left: Vec<_> =
        std::fs::read_dir(world.data.path().join("git")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["line-1.git"]);
}

/// A request for everything, in the newest protocol.
fn want(commit: &str) -> Ask {
    let line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    let text = [
        line("command=fetch\n"),
        "0001".into(),
        line(&format!("want {commit}\n")),
        line("done\n"),
        "0000".into(),
    ];
    Ask::Request(text.concat().into())
}

/// Everything that is still to come of an answer, and whether it came to its end.
async fn drain(mut upload: Upload) -> (usize, bool) {
    let mut bytes = 0;
    while let Some(piece) = upload.next().await {
        match piece {
            Ok(piece) => bytes += piece.len(),
            Err(_) => return (bytes, false),
        }
    }
    (bytes, true)
}

/// Text that no packing makes smaller.
fn noise(seed: u64, length: usize) -> String {
    let mut state = seed | 1;
    let letter = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        char::from(b"abcdefghijklmnopqrstuvwxyz012345"[(*state >> 20) as usize % 32])
    };
    (0..length).map(|_| letter(&mut state)).collect()
}

#[tokio::test]
async fn a_fetch_that_is_going_on_ends_with_the_right_to_it() {
    let Some((world, token)) = world().await else { return };
    // Far more than all buffers on the way hold.
    world.push_large().await;
    for seed in 1..=16 {
        let mut want = on(&["line-1"]);
        want.package = "large".into();
        want.parameters.insert("text".into(), json!(noise(seed, 90_000)));
        world.put(&format!("noise-{seed}"), want).await.unwrap();
    }
    world.fleet.commit_manifests().await;
    let head = world.commits("line-1").pop().unwrap();
    let pass = async |token: &str| world.fleet.git_pass(token).await.unwrap().unwrap();
    let (all, whole) = drain(world.fetch(pass(&token).await, want(&head)).await.unwrap()).await;
    assert!(whole && all > 600_000, "{all}");

    // Rotated with a grace period: the old one works on.
    let put = async |rotate, grace_seconds| {
        let want = operator::PutGit { rotate, grace_seconds };
        world.fleet.put_git(&ann(), &device("line-1"), want).await.unwrap().token.unwrap()
    };
    let upload = world.fetch(pass(&token).await, want(&head)).await.unwrap();
    let second = put(true, Some(60)).await;
    assert!(drain(upload).await.1);
    // Without one, at once.
    let upload = world.fetch(pass(&second).await, want(&head)).await.unwrap();
    let third = put(true, None).await;
    let (some, whole) = drain(upload).await;
    assert!(!whole && some < all, "{some} of {all}");
    assert!(world.fleet.git_pass(&token).await.unwrap().is_none());
    // A right that ended between two steps is noticed, too.
    let stale = pass(&third).await;
    let fourth = put(true, None).await;
    assert!(matches!(world.fetch(stale, want(&head)).await, Err(FetchError::Void)));
    // Retired.
    let upload = world.fetch(pass(&fourth).await, want(&head)).await.unwrap();
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    let (some, whole) = drain(upload).await;
    assert!(!whole && some < all, "{some} of {all}");
    assert!(matches!(world.fetch(pass(&fourth).await, want(&head)).await, Err(FetchError::Retired)));
    // Two are open and nobody reads them: the third waits, and is told to come back.
    world.fleet.accept(&ann(), &device("line-1")).await.unwrap();
    world.fleet.commit_manifests().await;
    let open = [
        world.fetch(pass(&fourth).await, want(&head)).await.unwrap(),
        world.fetch(pass(&fourth).await, want(&head)).await.unwrap(),
    ];
    assert!(matches!(world.fetch(pass(&fourth).await, want(&head)).await, Err(FetchError::Busy)));
    drop(open);
    // Nobody takes an answer: its places are free again when it is dropped.
    for _ in 0..40 {
        drop(world.fetch(pass(&fourth).await, want(&head)).await.unwrap());
    }
}

impl World {
    /// A package with one large answer.
    async fn push_large(&self) {
        let text = description("2.0.0")
            .replace("id: hello", "id: large")
            .replace("{ name: text, dataType: string, maxLength: 20 }", "{ name: text, dataType: string }")
            .replace("greeting", "text");
        self.push("2.0.0", &text).await;
        self.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    }
}

#[tokio::test]
async fn a_device_fetches_by_itself_only_where_an_operator_wants_it() {
    if !git_is_here() {
        return;
    }
    let world = World::new().await;
    let join = async |name: &str, git| {
        let want = operator::CreateJoinToken {
            device: Some(name.into()),
            labels: Default::default(),
            valid_seconds: None,
            git,
        };
        let token = world.fleet.create_join_token(&ann(), want).await.unwrap();
        world.fleet.redeem_join_token(&token.token).await.unwrap()
    };
    let plain = join("line-1", false).await;
    assert_eq!(world.fleet.git_token(&plain, None).await.unwrap(), None);
    let wanted = join("line-2", true).await;
    let token = world.fleet.git_token(&wanted, Some("10.0.0.5")).await.unwrap().unwrap();
    assert_eq!(token.url, "https://10.0.0.5:8443/git/devices/line-2.git");
    assert_eq!(world.fleet.git_pass(&token.token).await.unwrap().unwrap().client, wanted);
    // Not by a name that the certificate does not have.
    world.pass(10);
    let again = world.fleet.git_token(&wanted, Some("elsewhere.example")).await.unwrap().unwrap();
    assert_eq!(again.url, "https://server.example:8443/git/devices/line-2.git");
    // Both work, so that a lost answer does no harm; but not one a second.
    assert!(world.fleet.git_pass(&token.token).await.unwrap().is_some());
    world.pass(2);
    let soon = world.fleet.git_token(&wanted, None).await.unwrap_err();
    assert!(matches!(soon, Error::TooSoon { wait } if wait == Duration::from_secs(3)), "{soon:?}");
    // Where an operator set it to Git, it may as well; what the operator was shown goes on working.
    let shown = world.git_on("line-1").await.token.unwrap();
    world.pass(1);
    assert!(world.fleet.git_token(&plain, None).await.unwrap().is_some());
    assert!(world.fleet.git_pass(&shown).await.unwrap().is_some());
    let seen = world.fleet.git(&device("line-1")).await.unwrap();
    assert_eq!(
        seen.tokens.iter().map(|token| token.holder.as_str()).collect::<Vec<_>>(),
        ["operator", "device"]
    );
    // Its own ends by itself.
    world.pass(31 * 24 * 3600);
    assert!(world.fleet.git_pass(&again.token).await.unwrap().is_none());
    assert!(world.fleet.git_pass(&shown).await.unwrap().is_some());
    // Off is off.
    world.fleet.end_git(&ann(), &device("line-2")).await.unwrap();
    assert_eq!(world.fleet.git_token(&wanted, None).await.unwrap(), None);
    assert!(matches!(world.fleet.end_git(&ann(), &device("line-2")).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn what_cannot_be_set_to_git_says_why() {
    let Some((world, _)) = world().await else { return };
    let put = async |name: &str, rotate, grace_seconds| {
        world.fleet.put_git(&ann(), &device(name), operator::PutGit { rotate, grace_seconds }).await
    };
    assert!(matches!(put("nobody", false, None).await, Err(Error::NotFound { .. })));
    for (rotate, grace) in [(false, Some(60)), (true, Some(0)), (true, Some(31 * 24 * 3600))] {
        assert!(matches!(put("line-1", rotate, grace).await, Err(Error::Invalid(_))), "{grace:?}");
    }
    assert_eq!(put("line-1", false, None).await.unwrap().token, None);
    world.says("line-1", "4Gi", &["compose"]).await;
    let body = capabilities("line-1/arm", "1Gi", &["compose"]);
    let parsed = g2::capabilities::read(&body).unwrap();
    world.fleet.put_capabilities(&client("line-1"), parsed, body).await.unwrap();
    let child = put("line-1/arm", false, None).await.unwrap_err();
    assert!(child.to_string().contains("gateway"), "{child}");
    world.fleet.end_git(&ann(), &device("line-1")).await.unwrap();
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    let retired = put("line-1", false, None).await.unwrap_err();
    assert!(retired.to_string().contains("accept it first"), "{retired}");
}
