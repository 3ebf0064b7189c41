//! A remote that is followed, and what the server does by itself meanwhile.

use std::path::{Path, PathBuf};

use margrave_wire::intent::Apply;

use super::git::git_is_here;
use super::*;

fn greeting(text: &str, strategy: Option<serde_json::Value>) -> operator::PutDeployment {
    let mut want = labelled("plant", "a");
    want.parameters.insert("greeting".into(), json!(text));
    want.strategy = strategy.map(|strategy| serde_json::from_value(strategy).unwrap());
    want
}

/// Commits a file to `main` of a bare repository, on its newest commit or instead of it.
pub(super) fn commit(remote: &Path, path: &str, text: &str, instead: bool) {
    let repository = git2::Repository::open_bare(remote).unwrap();
    let head = repository.find_reference("refs/heads/main").unwrap().peel_to_commit().unwrap();
    let blob = repository.blob(text.as_bytes()).unwrap();
    let mut update = git2::build::TreeUpdateBuilder::new();
    update.upsert(path, blob, git2::FileMode::Blob);
    let tree = update.create_updated(&repository, &head.tree().unwrap()).unwrap();
    let tree = repository.find_tree(tree).unwrap();
    let by = git2::Signature::now("Bob", "bob@plant.example").unwrap();
    let parents: Vec<git2::Commit<'_>> = if instead { head.parents().collect() } else { vec![head] };
    let parents: Vec<&git2::Commit<'_>> = parents.iter().collect();
    let id = repository.commit(None, &by, &by, "Say something", &tree, &parents).unwrap();
    repository.reference("refs/heads/main", id, true, "moved").unwrap();
}

pub(super) fn file(remote: &Path, path: &str) -> String {
    let repository = git2::Repository::open_bare(remote).unwrap();
    let head = repository.find_reference("refs/heads/main").unwrap().peel_to_commit().unwrap();
    let entry = head.tree().unwrap().get_path(Path::new(path)).unwrap();
    String::from_utf8(repository.find_blob(entry.id()).unwrap().content().to_vec()).unwrap()
}

impl World {
    /// From now on a copy of what is wanted says what is wanted.
    pub(super) fn remote(&self) -> PathBuf {
        let remote = self.data.path().join("remote.git");
        copy(&self.data.path().join("intent.git"), &remote);
        self.follows(&remote);
        remote
    }

    pub(super) fn follows(&self, remote: &Path) {
        let follow = Follow {
            url: remote.display().to_string(),
            branch: "main".into(),
            every: Duration::from_secs(60),
            token_file: None,
            ssh_key: None,
            authority: None,
            known_hosts: None,
            hook_token_file: None,
            bytes_max: FETCH_BYTES_MAX,
        };
        self.fleet.follow(follow).unwrap();
    }

    async fn web(&self) -> (u64, String) {
        let shown = self.fleet.deployment(&name("web")).await.unwrap();
        (shown.revision, shown.parameters["greeting"].as_str().unwrap().to_owned())
    }
}

#[tokio::test]
async fn a_failed_rollout_goes_back_here_until_the_remote_says_something_else() {
    if !git_is_here() {
        return;
    }
    let world = World::new().await;
    for device in ["d0", "d1"] {
        world.device(device, &[("plant", "a")]).await;
    }
    world.put("web", greeting("hi", None)).await.unwrap();
    for device in ["d0", "d1"] {
        world.report("web", device, State::Installed).await;
    }
    let strategy = json!({ "batches": ["1"], "onFailure": "revert" });
    world.put("web", greeting("yo", Some(strategy))).await.unwrap();
    let remote = world.remote();
    let head = world.fleet.intent().await.unwrap().commit;
    world.report("web", "d0", State::Failed).await;
    world.fleet.advance_rollouts().await.unwrap();
    assert_eq!(world.web().await, (3, "hi".to_owned()));
    let intent = world.fleet.intent().await.unwrap();
    assert_eq!(intent.commit, head, "nothing is committed where a remote says what is wanted");
    let gone = &intent.gone_back[0];
    assert_eq!((gone.deployment.as_str(), gone.revision, gone.failed), ("web", 3, 2));
    assert!(gone.why.contains("failed"), "{gone:?}");
    for device in ["d0", "d1"] {
        world.report("web", device, State::Installed).await;
    }
    let why = world.fleet.why_of(operator::WhyKind::Deployment, "web").await.unwrap();
    assert_eq!(why.chain.last().unwrap().code, "reverted-here", "{why:?}");
    let entry = world.fleet.audit(AuditQuery::default()).await.unwrap().items.remove(0);
    assert_eq!((entry.actor.as_str(), entry.action.as_str()), ("server", "deployment.revert"));
    assert_eq!((entry.subject.as_str(), entry.outcome.as_str(), entry.commit), ("web", "done", None));

    // The same commit once more, one about something else, other defaults, and a restart: it stays.
    world.fleet.follow_once().await.unwrap();
    let text = "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: d7\nspec:\n  labels: {line: '1'}\n";
    commit(&remote, "devices/d7.yaml", text, false);
    world.fleet.follow_once().await.unwrap();
    let fleet = "apiVersion: margrave/v1\nkind: Fleet\nspec:\n  rollback: {attempts: 5}\n";
    commit(&remote, "fleet.yaml", fleet, false);
    world.fleet.follow_once().await.unwrap();
    assert_ne!(world.fleet.intent().await.unwrap().commit, head);
    assert_eq!(world.web().await, (3, "hi".to_owned()));
    let world = world.restarted().await;
    world.follows(&remote);
    world.fleet.follow_once().await.unwrap();
    assert_eq!(world.web().await, (3, "hi".to_owned()));
    assert_eq!(world.fleet.intent().await.unwrap().gone_back.len(), 1);

    // What it says about this deployment counts.
    let said = file(&remote, "deployments/web.yaml").replace("yo", "hej");
    commit(&remote, "deployments/web.yaml", &said, false);
    world.fleet.follow_once().await.unwrap();
    assert_eq!(world.web().await, (4, "hej".to_owned()));
    assert_eq!(world.fleet.intent().await.unwrap().gone_back, []);
}

#[tokio::test]
async fn what_is_to_be_said_in_the_remote_can_be_rehearsed_here() {
    if !git_is_here() {
        return;
    }
    let world = World::new().await;
    for device in ["d0", "d1"] {
        world.device(device, &[("plant", "a")]).await;
    }
    world.put("web", greeting("hi", None)).await.unwrap();
    let remote = world.remote();
    let text = file(&remote, "deployments/web.yaml").replace("hi", "hello");
    let apply = async |dry_run| {
        let want = Apply { documents: vec![text.clone()], dry_run, ..Apply::default() };
        world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await
    };
    let plan = apply(true).await.unwrap().plan.unwrap();
    assert_eq!(plan.changes.len(), 2, "{plan:?}");
    let refused = apply(false).await.unwrap_err();
    assert!(refused.to_string().contains("follows a remote"), "{refused}");
    assert_eq!(world.web().await, (1, "hi".to_owned()));
}

#[tokio::test]
async fn what_somebody_decided_to_keep_is_kept_over_a_restart() {
    if !git_is_here() {
        return;
    }
    let world = World::new().await;
    world.device("d0", &[("plant", "a")]).await;
    world.put("web", greeting("hi", None)).await.unwrap();
    let remote = world.remote();
    let said = file(&remote, "deployments/web.yaml").replace("hi", "other");
    commit(&remote, "deployments/web.yaml", &said, true);
    world.fleet.follow_once().await.unwrap();
    assert!(world.fleet.intent().await.unwrap().conflict.is_some());
    world.fleet.resolve(&ann(), false).await.unwrap();
    let world = world.restarted().await;
    world.follows(&remote);
    world.fleet.follow_once().await.unwrap();
    assert_eq!(world.fleet.intent().await.unwrap().conflict, None);
    assert_eq!(world.web().await, (1, "hi".to_owned()));
    // Another one is another decision.
    let said = said.replace("other", "else");
    commit(&remote, "deployments/web.yaml", &said, true);
    world.fleet.follow_once().await.unwrap();
    assert!(world.fleet.intent().await.unwrap().conflict.is_some());
}

#[tokio::test]
async fn a_commit_that_was_refused_for_what_passes_is_applied_once_it_passed() {
    if !git_is_here() {
        return;
    }
    let world = World::new().await;
    let remote = world.remote();
    let late = |name: &str, device: &str| {
        format!(
            "apiVersion: margrave/v1\nkind: Deployment\nmetadata:\n  name: {name}\nspec:\n  package: hello\n  version: \
             1.0.0\n  targets: {{devices: [{device}]}}\n"
        )
    };
    let refusals = async || {
        let entries = world.fleet.audit(AuditQuery::default()).await.unwrap().items;
        entries.iter().filter(|entry| entry.outcome == "invalid").count()
    };
    let head = async || world.fleet.intent().await.unwrap().commit;
    let before = head().await;
    commit(&remote, "deployments/late.yaml", &late("late", "d8"), false);
    // Tried now and then, and told once.
    for passes in [0, 60, 120] {
        world.pass(passes);
        world.fleet.follow_once().await.unwrap();
        let intent = world.fleet.intent().await.unwrap();
        assert!(intent.flaws[0].message.contains("d8"), "{intent:?}");
        assert_eq!((intent.commit, intent.conflict, refusals().await), (before.clone(), None, 1));
    }
    world.device("d8", &[]).await;
    world.pass(239);
    world.fleet.follow_once().await.unwrap();
    assert_eq!(head().await, before, "not with every look");
    world.pass(1);
    world.fleet.follow_once().await.unwrap();
    assert_eq!(world.workloads("d8").await.len(), 1);
    assert_eq!(world.fleet.intent().await.unwrap().flaws, []);

    // Who calls does not have to wait.
    commit(&remote, "deployments/later.yaml", &late("later", "d9"), false);
    world.fleet.follow_once().await.unwrap();
    assert_eq!(refusals().await, 2);
    world.device("d9", &[]).await;
    world.fleet.nudge_follow();
    world.fleet.follow_once().await.unwrap();
    assert_eq!(world.workloads("d9").await.len(), 1);
}

const GOOD: &str = "apiVersion: margrave/v1\nkind: Deployment\nmetadata:\n  name: NAME\nspec:\n  package: hello\n  version: 1.0.0\n  \
                    targets: {devices: [d0]}\n";

/// A world whose remote is at good deployments `a` and `b`, and then at one that will never be good.
async fn with_a_bad_end(good: &[&str]) -> (World, PathBuf) {
    let world = World::new().await;
    world.device("d0", &[]).await;
    let remote = world.remote();
    for name in good {
        commit(&remote, &format!("deployments/{name}.yaml"), &GOOD.replace("NAME", name), false);
    }
    commit(&remote, "deployments/bad.yaml", "kind: Nothing\n", false);
    (world, remote)
}

impl World {
    async fn looks_after(&self, seconds: u64) -> operator::Intent {
        self.pass(seconds);
        self.fleet.follow_once().await.unwrap();
        self.fleet.intent().await.unwrap()
    }
}

#[tokio::test]
async fn what_leads_to_a_lasting_bad_commit_is_applied_and_the_rest_is_counted() {
    if !git_is_here() {
        return;
    }
    let (world, remote) = with_a_bad_end(&["a", "b"]).await;
    let before = world.fleet.intent().await.unwrap().commit;
    let intent = world.looks_after(0).await;
    assert_eq!((intent.commit, intent.commits_waiting), (before, 3), "it may pass");
    let intent = world.looks_after(60).await;
    assert_eq!((world.workloads("d0").await.len(), intent.commits_waiting), (2, 1));
    assert!(intent.flaws[0].file == "deployments/bad.yaml" && intent.conflict.is_none(), "{intent:?}");

    // What comes upon it waits with it, and what is wrong is told by file and line, with how much waits.
    commit(&remote, "deployments/c.yaml", &GOOD.replace("NAME", "c"), false);
    let intent = world.looks_after(1).await;
    assert_eq!((world.workloads("d0").await.len(), intent.commits_waiting), (2, 2));
    let told = world.fleet.why_of(operator::WhyKind::Deployment, "a").await.unwrap();
    let told = told.chain.iter().find(|cause| cause.code == "intent-flawed").unwrap();
    assert!(
        told.text.contains("deployments/bad.yaml") && told.text.ends_with("; 2 commits wait behind it"),
        "{told:?}"
    );

    commit(&remote, "deployments/bad.yaml", &GOOD.replace("NAME", "bad"), false);
    let intent = world.looks_after(1).await;
    assert_eq!((world.workloads("d0").await.len(), intent.commits_waiting, intent.flaws), (4, 0, vec![]));
}

#[tokio::test]
async fn of_what_was_taken_back_before_it_went_wrong_nothing_is_done() {
    if !git_is_here() {
        return;
    }
    let (world, remote) = with_a_bad_end(&["a"]).await;
    // Somebody corrected `a` together with what is wrong: what it was before nobody wants any more.
    commit(&remote, "deployments/a.yaml", &GOOD.replace("NAME", "a").replace("1.0.0", "1.0.0 # now"), false);
    world.looks_after(0).await;
    let intent = world.looks_after(60).await;
    assert_eq!((world.workloads("d0").await.len(), intent.commits_waiting), (0, 3));
}

#[tokio::test]
async fn nobody_is_led_back_by_a_part_of_the_way() {
    if !git_is_here() {
        return;
    }
    // After a restored backup devices may be further than what is applied.
    let (world, _) = with_a_bad_end(&["a"]).await;
    world.fleet.desired.set_returning(true);
    world.looks_after(0).await;
    let intent = world.looks_after(60).await;
    assert_eq!((world.workloads("d0").await.len(), intent.commits_waiting), (0, 2));

    // A history that was rewritten is for a person to decide, however good its commits are.
    let (world, remote) = with_a_bad_end(&["a"]).await;
    world.looks_after(0).await;
    world.looks_after(60).await;
    assert_eq!(world.workloads("d0").await.len(), 1);
    let repository = git2::Repository::open_bare(&remote).unwrap();
    let head = repository.find_reference("refs/heads/main").unwrap().peel_to_commit().unwrap();
    let begun = head.parent(0).unwrap().parent(0).unwrap();
    repository.reference("refs/heads/main", begun.id(), true, "rewritten").unwrap();
    commit(&remote, "deployments/b.yaml", &GOOD.replace("NAME", "b"), false);
    commit(&remote, "deployments/bad.yaml", "kind: Nothing\n", false);
    for _ in 0..3 {
        let intent = world.looks_after(60).await;
        assert!(intent.conflict.is_some(), "{intent:?}");
        assert_eq!(world.workloads("d0").await.len(), 1);
    }
}

#[tokio::test]
async fn a_remote_that_stays_away_is_told_of_and_so_is_that_it_is_back() {
    if !git_is_here() {
        return;
    }
    let world = World::new().await;
    world.put("web", greeting("hi", None)).await.unwrap();
    let remote = world.remote();
    let told = async || -> Vec<String> {
        world.fleet.listen().await.unwrap();
        let events = world.fleet.events(0, 1000).await.unwrap().into_iter();
        events.filter(|event| event.kind.starts_with("intent.")).map(|event| event.kind).collect()
    };
    world.fleet.follow_once().await.unwrap();
    let shown = world.fleet.intent().await.unwrap().following.unwrap();
    assert_eq!((shown.branch.as_str(), shown.every_seconds, shown.hook), ("main", 60, false));
    assert_eq!(shown.looked_at.as_deref(), Some("2026-09-21T14:13:20Z"));
    assert!(world.fleet.why_of(operator::WhyKind::Intent, "").await.unwrap().converged);

    let elsewhere = remote.with_extension("away");
    std::fs::rename(&remote, &elsewhere).unwrap();
    world.fleet.follow_once().await.unwrap_err();
    assert_eq!(told().await, [""; 0], "a hiccup is nobody's business");
    assert_eq!(world.fleet.intent_wrong()[0], ("away", false));
    world.pass(301);
    world.fleet.follow_once().await.unwrap_err();
    assert_eq!(told().await, ["intent.away"]);
    assert_eq!(told().await, ["intent.away"], "told once");
    assert_eq!(world.fleet.intent_wrong()[0], ("away", true));
    let why = world.fleet.why_of(operator::WhyKind::Intent, "").await.unwrap();
    assert_eq!((why.converged, why.chain.last().unwrap().code.as_str()), (false, "intent-away"));

    std::fs::rename(&elsewhere, &remote).unwrap();
    world.fleet.follow_once().await.unwrap();
    assert_eq!(told().await, ["intent.away", "intent.back"]);
    assert_eq!(world.fleet.intent_wrong()[0], ("away", false));
}
