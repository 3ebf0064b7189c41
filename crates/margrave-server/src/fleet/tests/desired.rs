//! What is wanted is a commit; what is a commit is wanted.

use margrave_core::lifecycle::State;
use margrave_wire::intent::Apply;
use margrave_wire::resource::{self, Resource};

use super::super::desired::{CommitId, FileChange, Repository, Signed, Unadopted};
use super::*;

impl World {
    pub(super) fn intent_repository(&self) -> Repository {
        self.fleet.desired.repository().clone()
    }

    pub(super) async fn main(&self) -> CommitId {
        self.intent_repository().main().await.unwrap().expect("there is a first commit")
    }

    pub(super) async fn file(&self, path: &str) -> Option<String> {
        let bytes = self.intent_repository().file(self.main().await, path).await.unwrap();
        bytes.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    /// A commit on top of `main` by somebody's own hands; nobody has looked at it yet.
    pub(super) async fn by_hand(&self, files: &[(&str, Option<&str>)]) -> CommitId {
        let files = files.iter().map(|(path, text)| FileChange {
            path: path.to_string(),
            bytes: text.map(|text| text.as_bytes().to_vec()),
        });
        let at = Moment(self.clock.load(Ordering::Relaxed));
        let signed = Signed { by: "bob".into(), at, message: "By hand\n".into() };
        self.intent_repository().commit(Some(self.main().await), files.collect(), signed).await.unwrap()
    }

    pub(super) async fn adopt(&self, commit: CommitId) -> Result<(), Vec<String>> {
        match self.fleet.adopt(&Actor { name: "bob".into() }, commit).await {
            Ok(()) => Ok(()),
            Err(Unadopted::Flaws(flaws)) => Err(flaws.iter().map(ToString::to_string).collect()),
            Err(Unadopted::Failed(error)) => panic!("{error}"),
        }
    }
}

fn deployment(name: &str, targets: &str) -> String {
    format!(
        "# Kept by the line's crew.\napiVersion: margrave/v1\nkind: Deployment\nmetadata:\n  name: {name}\nspec:\n  \
         package: hello\n  version: 1.0.0\n  targets:\n    {targets}\n"
    )
}

fn device_file(id: &str, labels: &str) -> String {
    format!("apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: {id}\nspec:\n  labels: {labels}\n")
}

#[tokio::test]
async fn every_change_is_a_commit_by_whoever_made_it() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    assert!(world.file("README.md").await.is_some(), "the first commit says what this is");
    let package = world.file("packages/hello/1.0.0.yaml").await.unwrap();
    assert!(package.contains("oci://margrave/packages/hello@sha256:"), "{package}");
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let text = world.file("deployments/greeter.yaml").await.unwrap();
    let Resource::Deployment(file) = resource::read("x", text.as_bytes()).unwrap().resource else {
        panic!("{text}")
    };
    let shown = world.fleet.deployment(&name("greeter")).await.unwrap();
    assert_eq!(file.metadata.id.as_deref(), Some(shown.id.as_str()));
    assert_eq!(shown.commit.as_deref(), Some(world.main().await.to_string().as_str()));
    let labels = [("site".to_owned(), Some("nord".to_owned())), ("line".to_owned(), Some("1".to_owned()))];
    let want = operator::SetLabels { labels: labels.into() };
    world.fleet.label(&ann(), &device("line-1"), want).await.unwrap();
    let text = world.file("devices/line-1.yaml").await.unwrap();
    assert!(text.contains("site: nord") && text.contains("line: \"1\""), "{text}");
    let schedule = |body: serde_json::Value| serde_json::from_value(body).unwrap();
    let every = schedule(json!({"pollEverySeconds": 60}));
    for reach in ["fleet", "label:site=nord", "device:line-1"] {
        world.fleet.put_schedule(&ann(), reach, &every).await.unwrap();
    }
    let text = world.file("fleet.yaml").await.unwrap();
    assert!(text.contains("site=nord"), "{text}");
    assert!(world.file("devices/line-1.yaml").await.unwrap().contains("pollEverySeconds: 60"));
    world.fleet.remove_deployment(&ann(), &name("greeter"), None).await.unwrap();
    assert_eq!(world.file("deployments/greeter.yaml").await, None);
    let log = world.intent_repository().log(world.main().await, 20).await.unwrap();
    let subjects: Vec<&str> = log.iter().map(|entry| entry.message.lines().next().unwrap()).collect();
    assert_eq!(
        subjects,
        [
            "Remove greeter",
            "Set the schedule of device:line-1",
            "Set the schedule of label:site=nord",
            "Set the schedule of fleet",
            "Label line-1: line=1, site=nord",
            "Deploy greeter: hello 1.0.0",
            "Add package hello 1.0.0",
            "Begin with what is wanted now",
        ]
    );
    assert!(log[..7].iter().all(|entry| entry.by == "operator ann"), "{log:?}");
    let before = world.main().await;
    world.put("again", on(&["line-1"])).await.unwrap();
    world.put("again", on(&["line-1"])).await.unwrap();
    assert!(
        world.intent_repository().log(world.main().await, 2).await.unwrap()[1].id == before,
        "nothing new is no commit"
    );
}

#[tokio::test]
async fn a_commit_is_done_as_a_whole_and_moves_nothing_that_stays() {
    let world = World::new().await;
    world.device("line-1", &[("line", "1")]).await;
    world.put("greeter", labelled("line", "1")).await.unwrap();
    world.report("greeter", "line-1", State::Installed).await;
    let (held, version) = (world.assignment("greeter", "line-1").await, world.version("line-1"));
    let id = world.fleet.deployment(&name("greeter")).await.unwrap().id;
    // The label's value and who selects by it change together: one after the other would take the application away.
    let commit = world
        .by_hand(&[
            ("devices/line-1.yaml", Some(&device_file("line-1", "{line: A}"))),
            ("deployments/greeter.yaml", Some(&deployment("greeter", "labels: {line: A}"))),
            ("README.md", Some("not ours")),
        ])
        .await;
    world.adopt(commit).await.unwrap();
    assert_eq!(world.main().await, commit);
    assert_eq!(world.version("line-1"), version, "the device has nothing to do");
    assert_eq!(world.assignment("greeter", "line-1").await.id, held.id);
    let shown = world.fleet.deployment(&name("greeter")).await.unwrap();
    assert_eq!((shown.id, shown.revision, shown.changed_by.as_str()), (id, 2, "bob"));
    // The crew's comment outlives a change on the page.
    let mut want = labelled("line", "A");
    want.parameters.insert("interval".into(), json!(60));
    world.put("greeter", want).await.unwrap();
    let text = world.file("deployments/greeter.yaml").await.unwrap();
    assert!(text.starts_with("# Kept by the line's crew.\n") && text.contains("interval: 60"), "{text}");
}

#[tokio::test]
async fn a_commit_that_is_wrong_anywhere_is_not_done_anywhere_and_names_file_and_line() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let good = deployment("good", "devices: [line-1]");
    let check = async |file: &str, text: &str, part: &str| {
        let before = world.main().await;
        let commit = world.by_hand(&[("deployments/good.yaml", Some(&good)), (file, Some(text))]).await;
        let flaws = world.adopt(commit).await.unwrap_err();
        assert!(flaws.iter().any(|flaw| flaw.contains(part)), "{file}: {part} is not in {flaws:?}");
        assert_eq!(world.main().await, before);
        assert!(world.workloads("line-1").await.is_empty(), "nothing of it is done");
    };
    let bad = |from: &str, to: &str| good.replace("name: good", "name: bad").replace(from, to);
    let at = "deployments/bad.yaml";
    check(
        at,
        &bad("version: 1.0.0", "version: 9.9.9"),
        "deployments/bad.yaml:7: hello 9.9.9 is not in the catalog",
    )
    .await;
    check(at, &bad("[line-1]", "[line-1, nobody]"), "deployments/bad.yaml:10: there is no device nobody")
        .await;
    check(at, &bad("devices: [line-1]", "select: 'a=1, a=2'"), "deployments/bad.yaml:10:").await;
    check(at, &bad("devices: [line-1]", "{}"), "name at least one device").await;
    check(at, &bad("kind: Deployment", "kind: Deplyoment"), "deployments/bad.yaml:3:").await;
    check(
        at,
        &bad("  targets", "  parameters: {nosuch: 1}\n  targets"),
        "deployments/bad.yaml:9: the package has no such parameter",
    )
    .await;
    check(at, &bad("spec:", "spec: &a [*a]\nx:"), "deployments/bad.yaml:").await;
    check("deployment/typo.yaml", &good, "nobody looks here").await;
    check("devices/line-9.yaml", &device_file("line-8", "{}"), "belongs to devices/line-8.yaml").await;
    check("packages/hello/2.yaml", "apiVersion: margrave/v1\nkind: Package\nmetadata: {id: hello, version: '2'}\nspec:\n  reference: oci://margrave/packages/hello:2\n", "packages/hello/2.yaml:5:").await;
    let tagged = "apiVersion: margrave/v1\nkind: Package\nmetadata: {id: hello, version: 1.0.0}\nspec:\n  reference: oci://margrave/packages/hello:1.0.0\n";
    check(
        "packages/hello/1.0.0.yaml",
        tagged,
        "pin what it means now: oci://margrave/packages/hello@sha256:",
    )
    .await;
    let gone =
        world.by_hand(&[("packages/hello/1.0.0.yaml", None), ("deployments/good.yaml", Some(&good))]).await;
    assert!(world.adopt(gone).await.unwrap_err()[0].contains("removed by the same change"));
    let commit = world.by_hand(&[("deployments/good.yaml", Some(&good))]).await;
    world.adopt(commit).await.unwrap();
    assert_eq!(world.workloads("line-1").await.len(), 1);
    let gone = world.by_hand(&[("packages/hello/1.0.0.yaml", None)]).await;
    assert!(world.adopt(gone).await.unwrap_err()[0].contains("still used by good"));
}

#[tokio::test]
async fn a_device_that_is_about_to_join_can_be_spoken_of() {
    let world = World::new().await;
    let commit = world
        .by_hand(&[
            ("devices/line-1.yaml", Some(&device_file("line-1", "{line: '1'}"))),
            ("deployments/greeter.yaml", Some(&deployment("greeter", "select: line in (1, 2)"))),
            ("deployments/named.yaml", Some(&deployment("named", "devices: [line-1]"))),
        ])
        .await;
    world.adopt(commit).await.unwrap();
    world.device("line-1", &[("from", "token")]).await;
    assert_eq!(world.workloads("line-1").await.len(), 2);
    let shown = world.fleet.device(&device("line-1")).await.unwrap();
    assert_eq!(shown.labels, [("line".to_owned(), "1".to_owned())].into(), "what Git says counts");
}

#[tokio::test]
async fn a_crash_before_main_moved_is_finished_at_the_next_start() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let before = world.main().await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let head = world.main().await;
    world.intent_repository().advance(before).await.unwrap();
    let world = world.restarted().await;
    assert_eq!(world.main().await, head);
    assert!(world.fleet.intent().await.unwrap().conflict.is_none());
    // A commit that the database never took is nobody's, and does no harm.
    world.by_hand(&[("deployments/greeter.yaml", None)]).await;
    let world = world.restarted().await;
    assert_eq!(world.workloads("line-1").await.len(), 1);
}

#[tokio::test]
async fn what_was_committed_while_the_server_was_off_is_done_at_its_start_or_held() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let commit = world.by_hand(&[("deployments/a.yaml", Some(&deployment("a", "devices: [line-1]")))]).await;
    world.intent_repository().advance(commit).await.unwrap();
    let world = world.restarted().await;
    assert_eq!(world.workloads("line-1").await.len(), 1);
    let commit = world.by_hand(&[("deployments/a.yaml", Some("nonsense"))]).await;
    world.intent_repository().advance(commit).await.unwrap();
    let world = world.restarted().await;
    let intent = world.fleet.intent().await.unwrap();
    assert!(intent.conflict.unwrap().contains("cannot be applied"), "a bad commit is held");
    assert_eq!(intent.flaws[0].file, "deployments/a.yaml");
    assert_eq!(world.workloads("line-1").await.len(), 1, "what runs stays");
    let refused = world.put("b", on(&["line-1"])).await.unwrap_err();
    assert!(refused.to_string().contains("margrave intent resolve"), "{refused}");
    assert!(world.fleet.resolve(&ann(), true).await.is_err(), "it is still wrong");
    world.fleet.resolve(&ann(), false).await.unwrap();
    assert!(world.file("deployments/a.yaml").await.unwrap().contains("package: hello"));
    world.put("b", on(&["line-1"])).await.unwrap();
}

#[tokio::test]
async fn a_repository_from_an_old_backup_moves_no_device_back_until_a_person_says_so() {
    for take in [false, true] {
        let world = World::new().await;
        world.device("line-1", &[]).await;
        world.put("old", on(&["line-1"])).await.unwrap();
        let backup = tempfile::tempdir().unwrap();
        let from = world.intent_repository().path().to_owned();
        copy(&from, &backup.path().join("intent.git"));
        world.put("new", on(&["line-1"])).await.unwrap();
        world.put("newer", on(&["line-1"])).await.unwrap();
        let version = world.version("line-1");
        std::fs::remove_dir_all(&from).unwrap();
        copy(&backup.path().join("intent.git"), &from);
        let world = world.restarted().await;
        let held = world.fleet.intent().await.unwrap().conflict.unwrap();
        assert!(held.contains("restored from a backup"), "{held}");
        assert_eq!((world.workloads("line-1").await.len(), world.version("line-1")), (3, version));
        // What taking it would do is told before.
        let plan = world.fleet.rehearse_taking(&ann()).await.unwrap();
        let told = plan.changes.iter().map(|change| (change.device.as_str(), change.deployment.as_str()));
        assert_eq!(told.collect::<Vec<_>>(), [("line-1", "new"), ("line-1", "newer")]);
        assert!(plan.changes.iter().all(|change| change.to.is_none()), "{plan:?}");
        assert_eq!((world.workloads("line-1").await.len(), world.version("line-1")), (3, version));
        world.fleet.resolve(&ann(), take).await.unwrap();
        assert!(world.fleet.rehearse_taking(&ann()).await.is_err(), "it is decided");
        assert!(world.fleet.intent().await.unwrap().conflict.is_none());
        let left = if take { 1 } else { 3 };
        assert_eq!(world.workloads("line-1").await.len(), left);
        assert_eq!(world.file("deployments/newer.yaml").await.is_some(), !take);
        assert_eq!(world.version("line-1"), version + u64::from(take), "forward, never back");
        let world = world.restarted().await;
        assert!(world.fleet.intent().await.unwrap().conflict.is_none());
        world.put("after", on(&["line-1"])).await.unwrap();
    }
}

#[tokio::test]
async fn a_repository_that_is_lost_is_made_anew_from_what_is_wanted() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let version = world.version("line-1");
    std::fs::remove_dir_all(world.intent_repository().path()).unwrap();
    let world = world.restarted().await;
    assert_eq!(world.version("line-1"), version);
    assert!(world.file("deployments/greeter.yaml").await.unwrap().contains("package: hello"));
    world.put("other", on(&["line-1"])).await.unwrap();
}

#[tokio::test]
async fn a_removal_is_taken_back_by_applying_the_file_again() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let first = world.put("greeter", on(&["line-1"])).await.unwrap();
    world.report("greeter", "line-1", State::Installed).await;
    let file = world.file("deployments/greeter.yaml").await.unwrap();
    let remove = || async { world.fleet.remove_deployment(&ann(), &name("greeter"), None).await.unwrap() };
    let is_alone = || async {
        let all = world.fleet.deployments().await.unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(!all[0].removing && all[0].id == first.id, "{all:?}");
        assert_eq!(world.workloads("line-1").await.len(), 1);
    };
    for _ in 0..2 {
        remove().await;
        let documents = vec![file.clone()];
        world
            .fleet
            .apply_files(&ann(), &Apply { documents, ..Default::default() }, Fetching::Allowed)
            .await
            .unwrap();
        is_alone().await;
    }
    // Under another name it is another one.
    let renamed = file.replace("name: greeter", "name: other");
    let want = Apply { documents: vec![renamed], ..Default::default() };
    let refused = world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("is that of greeter; leave it out"), "{refused}");
}

#[tokio::test]
async fn of_two_people_who_edit_one_file_the_second_is_told() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let mut want = on(&["line-1"]);
    want.parameters.insert("interval".into(), json!(10));
    world.put("greeter", want).await.unwrap();
    let file = world.file("deployments/greeter.yaml").await.unwrap();
    let edited = async |interval: &str, seen: Option<String>| {
        let documents = vec![file.replace("interval: 10", &format!("interval: {interval}"))];
        let want = Apply { documents, seen: vec![seen], ..Default::default() };
        world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await
    };
    let seen = || Some(Digest::of(file.as_bytes()).to_string());
    edited("20", seen()).await.unwrap();
    let refused = edited("30", seen()).await.unwrap_err().to_string();
    assert!(refused.contains("deployments/greeter.yaml was changed since you got it"), "{refused}");
    assert!(world.file("deployments/greeter.yaml").await.unwrap().contains("interval: 20"));
    // Who wants the same has nothing to lose, and who says nothing of what was there means to replace it.
    edited("20", seen()).await.unwrap();
    edited("30", None).await.unwrap();
}

#[tokio::test]
async fn a_deployment_says_when_its_changes_may_begin() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let mut want = on(&["line-1"]);
    world.put("greeter", want.clone()).await.unwrap();
    let without = world.workloads("line-1").await;
    assert_eq!(without[0].hints.windows, None);
    want.windows = Some(vec!["sun 02:00-05:00 Europe/Berlin".into(), "late".into()]);
    let refused = world.put("greeter", want.clone()).await.unwrap_err().to_string();
    assert!(refused.contains("/windows/1"), "{refused}");
    want.windows = Some(vec!["sun 02:00-05:00 Europe/Berlin".into()]);
    world.put("greeter", want.clone()).await.unwrap();
    assert_eq!(world.workloads("line-1").await[0].hints.windows.as_ref().map(Vec::len), Some(1));
    assert!(world.file("deployments/greeter.yaml").await.unwrap().contains("sun 02:00-05:00 Europe/Berlin"));
    let history = world.fleet.revisions(&name("greeter")).await.unwrap();
    let told = format!("{history:?}");
    assert!(
        told.contains("Changes: at any time that its devices allow → sun 02:00-05:00 Europe/Berlin"),
        "{told}"
    );
    // Left out it stays; an empty list is at any time again, with the document of before.
    want.windows = None;
    want.parameters.insert("interval".into(), json!(7));
    let shown = world.put("greeter", want.clone()).await.unwrap();
    assert_eq!(shown.windows, ["sun 02:00-05:00 Europe/Berlin"]);
    want.windows = Some(vec![]);
    want.parameters.clear();
    world.put("greeter", want).await.unwrap();
    assert_eq!(world.workloads("line-1").await, without);
}

#[tokio::test]
async fn an_override_gives_some_devices_other_answers() {
    let world = World::new().await;
    world.device("line-1", &[("line", "1"), ("site", "nord")]).await;
    world.device("line-2", &[("line", "2"), ("site", "nord")]).await;
    let mut want = on(&[]);
    want.targets.sites = vec!["nord".into()];
    want.parameters.insert("interval".into(), json!(10));
    want.overrides = vec![operator::Override {
        targets: operator::Targets { select: Some("line=2".into()), ..Default::default() },
        parameters: [("interval".to_owned(), json!(20))].into(),
    }];
    world.put("greeter", want.clone()).await.unwrap();
    for (device, interval) in [("line-1", "10"), ("line-2", "20")] {
        let text = format!("{:?}", world.workloads(device).await[0]);
        assert!(text.contains(&format!("Text({interval:?})")), "{device}: {text}");
    }
    let version = world.version("line-1");
    want.overrides[0].parameters.insert("interval".into(), json!(30));
    world.put("greeter", want.clone()).await.unwrap();
    assert_eq!(world.version("line-1"), version, "only those that it is about hear of it");
    // Who gets another label gets what is answered for it, and only who does.
    let version = world.version("line-2");
    let foretold = async |labels: &str| {
        let file = format!(
            "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: line-1\nspec:\n  site: nord\n  labels: {labels}\n"
        );
        let want = Apply { documents: vec![file], dry_run: true, ..Apply::default() };
        let applied = world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await.unwrap();
        let changes = applied.plan.unwrap().changes;
        changes.into_iter().map(|change| change.device).collect::<Vec<_>>()
    };
    assert_eq!(foretold("{line: '2'}").await, ["line-1"]);
    assert!(foretold("{line: '1', crew: red}").await.is_empty());
    let labels = operator::SetLabels { labels: [("line".to_owned(), Some("2".to_owned()))].into() };
    world.fleet.label(&ann(), &device("line-1"), labels).await.unwrap();
    let text = format!("{:?}", world.workloads("line-1").await[0]);
    assert!(text.contains("Text(\"30\")"), "{text}");
    assert_eq!(world.version("line-2"), version);
    want.overrides[0].parameters.insert("interval".into(), json!("soon"));
    let refused = world.put("greeter", want).await.unwrap_err();
    assert!(refused.to_string().contains("/overrides/0/parameters/interval"), "{refused}");
}

#[tokio::test]
async fn labels_of_join_tokens_come_into_files_once_and_for_many_in_one_commit() {
    let world = World::new().await;
    world.put("web", labelled("line", "1")).await.unwrap();
    for number in 0..10 {
        world.device(&format!("d{number}"), &[("line", "1")]).await;
    }
    world.device("bare", &[]).await;
    let before = world.main().await;
    let versions: Vec<u64> = (0..10).map(|number| world.version(&format!("d{number}"))).collect();
    world.fleet.note_joins().await.unwrap();
    for (number, version) in versions.iter().enumerate() {
        let text = world.file(&format!("devices/d{number}.yaml")).await.expect("it stands in a file");
        assert!(text.contains("line: \"1\""), "{text}");
        assert_eq!(world.version(&format!("d{number}")), *version, "nothing is another for the device");
    }
    assert_eq!(world.file("devices/bare.yaml").await, None);
    let after = world.main().await;
    let repository = git2::Repository::open_bare(world.data.path().join("intent.git")).unwrap();
    let made = repository.find_commit(git2::Oid::from_str(&after.to_string()).unwrap()).unwrap();
    assert_eq!(made.parent_id(0).unwrap().to_string(), before.to_string(), "one commit");
    assert_eq!(world.intent_repository().logged(after).await.unwrap().by, ann().name);

    // Who removes the file means it: the labels stay, and nobody writes it again. Nor is what somebody said since said otherwise.
    let gone = world.by_hand(&[("devices/d0.yaml", None)]).await;
    world.adopt(gone).await.unwrap();
    world.join("late", &[("line", "1")]).await;
    let other = operator::SetLabels { labels: [("line".to_owned(), Some("2".to_owned()))].into() };
    world.fleet.label(&ann(), &device("late"), other).await.unwrap();
    let world = world.restarted().await;
    let main = world.main().await;
    world.fleet.note_joins().await.unwrap();
    assert_eq!((world.main().await, world.file("devices/d0.yaml").await), (main, None));
    assert_eq!(world.fleet.device(&device("d0")).await.unwrap().labels["line"], "1");

    // A join that broke off, and another with a token that says something else: what stands in the file counts.
    for site in ["nord", "sued"] {
        let want = operator::CreateJoinToken {
            device: Some("twice".to_owned()),
            labels: [("site".to_owned(), site.to_owned())].into(),
            valid_seconds: None,
            git: false,
        };
        let token = world.fleet.create_join_token(&ann(), want).await.unwrap();
        world.fleet.redeem_join_token(&token.token).await.unwrap();
        world.fleet.note_joins().await.unwrap();
        let text = world.file("devices/twice.yaml").await.unwrap();
        assert!(text.contains("site: nord"), "{text}");
        assert_eq!(world.fleet.device(&device("twice")).await.unwrap().labels["site"], "nord");
    }
    let main = world.main().await;

    // While a remote is followed, its files are not this server's to write.
    world.remote();
    world.join("later", &[("line", "1")]).await;
    world.fleet.note_joins().await.unwrap();
    assert_eq!(world.main().await, main);
}

#[tokio::test]
async fn labels_that_are_set_while_a_join_is_noted_are_neither_lost_nor_said_otherwise() {
    let world = World::new().await;
    world.device("line-1", &[("line", "1"), ("site", "nord")]).await;
    let other = operator::SetLabels {
        labels: [("line".to_owned(), Some("2".to_owned())), ("site".to_owned(), None)].into(),
    };
    let decides = world.fleet.deciding.read().await;
    let (actor, line) = (ann(), device("line-1"));
    let mut labelled = Box::pin(world.fleet.label(&actor, &line, other));
    // It waits for its turn to decide, so that whoever asks next comes after it.
    while world.fleet.deciding.try_read().is_ok() {
        let none = tokio::time::timeout(Duration::from_millis(1), &mut labelled).await;
        assert!(none.is_err(), "nobody changes anything while others decide");
    }
    let mut noted = Box::pin(world.fleet.note_joins());
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut noted).await.is_err());
    drop(decides);
    let (labelled, noted) = tokio::join!(labelled, noted);
    labelled.unwrap();
    noted.unwrap();
    let labels = world.fleet.device(&device("line-1")).await.unwrap().labels;
    assert_eq!(labels, [("line".to_owned(), "2".to_owned())].into());
    let text = world.file("devices/line-1.yaml").await.unwrap();
    assert!(text.contains("line: \"2\"") && !text.contains("nord"), "{text}");
}

#[tokio::test]
async fn what_is_found_out_in_the_light_of_everything_has_a_line_too() {
    let world = World::new().await;
    world.join("tiny", &[]).await;
    world.says("tiny", "64Mi", &["compose"]).await;
    let commit = world.by_hand(&[("deployments/a.yaml", Some(&deployment("a", "devices: [tiny]")))]).await;
    let flaws = world.adopt(commit).await.unwrap_err();
    assert!(flaws[0].starts_with("deployments/a.yaml:9: tiny does not fit"), "{flaws:?}");
}
