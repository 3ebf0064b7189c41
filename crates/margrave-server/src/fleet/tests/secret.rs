//! Answers that are secrets: they reach the device, and nobody else.

use margrave_core::parameters::ParameterValue;
use margrave_wire::intent::Apply;
use margrave_wire::operator::SealSecret;

use super::*;

const VALUE: &str = "hunter2";

impl World {
    pub(super) fn set(&self, path: &str, text: &str) {
        let path = self.data.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// What the device is told for this parameter.
    pub(super) async fn answer_on(&self, on: &str, parameter: &str) -> ParameterValue {
        let workloads = self.workloads(on).await;
        let parameters = &workloads[0].parameters;
        parameters.iter().find(|found| found.name.as_str() == parameter).unwrap().value.clone()
    }

    /// Everything that people and programs can be shown, and everything that Git has.
    async fn shown(&self) -> String {
        let fleet = &self.fleet;
        let mut all = String::new();
        for deployment in fleet.deployments().await.unwrap() {
            let name = name(&deployment.name);
            let details = fleet.deployment(&name).await.unwrap();
            all += &serde_json::to_string(&(deployment, details)).unwrap();
            all += &serde_json::to_string(&fleet.revisions(&name).await.unwrap()).unwrap();
        }
        all += &serde_json::to_string(&fleet.why("line-1").await.unwrap()).unwrap();
        all += &serde_json::to_string(&fleet.device(&device("line-1")).await.unwrap()).unwrap();
        for event in fleet.events(0, 500).await.unwrap() {
            all += &serde_json::to_string(&event).unwrap();
        }
        for commit in fleet.intent_log(None, 100).await.unwrap().items {
            all += &serde_json::to_string(&commit).unwrap();
        }
        for file in fleet.intent_files().await.unwrap() {
            all += &String::from_utf8(fleet.intent_file(&file.path, None).await.unwrap()).unwrap();
        }
        let records = self.fleet.store.deployments().await.unwrap();
        let wishes = self.fleet.wishes().await.unwrap();
        let secrets: Vec<_> = wishes.iter().map(|wish| wish.secrets.clone()).collect();
        all + &format!("{records:?} {secrets:?} {:?}", self.fleet.options.vault)
    }

    async fn apply_text(&self, text: &str, dry_run: bool) -> margrave_wire::intent::Applied {
        let want = Apply { documents: vec![text.to_owned()], dry_run, ..Apply::default() };
        self.fleet.apply_files(&ann(), &want, Fetching::Allowed).await.unwrap()
    }
}

fn secret(kind: &str, text: &str) -> serde_json::Value {
    json!({ "secret": { kind: text } })
}

fn greeting(answer: serde_json::Value) -> operator::PutDeployment {
    operator::PutDeployment { parameters: [("greeting".to_owned(), answer)].into(), ..on(&["line-1"]) }
}

#[tokio::test]
async fn a_secret_that_is_sealed_for_nothing_is_told_of() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let sealed = async |deployment: &str, parameter: &str| {
        let want =
            SealSecret { deployment: deployment.into(), parameter: parameter.into(), value: VALUE.into() };
        world.fleet.seal_for(&want).await.unwrap().warnings.join("; ")
    };
    assert_eq!(sealed("greeter", "greeting").await, "");
    let told = sealed("greeter", "greting").await;
    assert!(told.contains("which greeter deploys, has a parameter greting"), "{told}");
    let told = sealed("greter", "greeting").await;
    assert!(told.starts_with("there is no deployment greter yet"), "{told}");
}

#[tokio::test]
async fn a_secret_reaches_the_device_and_is_seen_nowhere_else() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.set("environment/MARGRAVE_SECRET_HELLO", VALUE);
    world.set("secrets/hello/greeting", &format!("{VALUE}\n"));
    let want = SealSecret { deployment: "greeter".into(), parameter: "greeting".into(), value: VALUE.into() };
    let sealed = world.fleet.seal(&want).unwrap().secret.sealed;
    for reference in
        [secret("env", "MARGRAVE_SECRET_HELLO"), secret("file", "hello/greeting"), secret("sealed", &sealed)]
    {
        let plan = world
            .fleet
            .rehearse(
                &ann(),
                &[super::super::intent::Change::PutDeployment {
                    name: name("greeter"),
                    want: greeting(reference.clone()),
                    id: None,
                }],
                Fetching::Allowed,
            )
            .await
            .unwrap();
        assert!(!format!("{plan:?}").contains(VALUE));
        let shown = world.put("greeter", greeting(reference.clone())).await.unwrap();
        assert_eq!(shown.parameters["greeting"], reference, "what is shown is where it is");
        assert_eq!(world.answer_on("line-1", "greeting").await, ParameterValue::Text(VALUE.into()));
        let shown = world.shown().await;
        assert!(!shown.contains(VALUE), "{shown}");
    }
    // The same value from elsewhere is nothing new for the device: documents are salted by deployment only.
    assert_eq!(world.version("line-1"), 2);
    let file = world.file("deployments/greeter.yaml").await.unwrap();
    assert!(file.contains(&sealed) && !file.contains("seen"), "{file}");
    // Written back as it was read, it is still the same.
    let applied = world.apply_text(&file, false).await;
    assert!(applied.files.is_empty(), "{applied:?}");
    let world = world.restarted().await;
    assert_eq!(world.answer_on("line-1", "greeting").await, ParameterValue::Text(VALUE.into()));
    // By override, for one device.
    let mut want = on(&["line-1"]);
    want.overrides.push(operator::Override {
        targets: operator::Targets { devices: vec!["line-1".into()], ..Default::default() },
        parameters: [("greeting".to_owned(), secret("file", "hello/greeting"))].into(),
    });
    world.put("greeter", want).await.unwrap();
    assert_eq!(world.answer_on("line-1", "greeting").await, ParameterValue::Text(VALUE.into()));
    assert!(!world.shown().await.contains(VALUE));
}

#[tokio::test]
async fn a_changed_secret_is_an_update_with_the_next_publication() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.set("secrets/greeting", "one");
    let want = || greeting(secret("file", "greeting"));
    let first = world.put("greeter", want()).await.unwrap();
    let again = world.put("greeter", want()).await.unwrap();
    assert_eq!((again.revision, world.version("line-1")), (first.revision, 2), "nothing changed");
    world.set("secrets/greeting", "two");
    let second = world.put("greeter", want()).await.unwrap();
    assert_eq!((second.revision, world.version("line-1")), (first.revision + 1, 3));
    assert_eq!(world.answer_on("line-1", "greeting").await, ParameterValue::Text("two".into()));
    // The same with a file that says nothing new.
    world.set("secrets/greeting", "three");
    let file = world.file("deployments/greeter.yaml").await.unwrap();
    let planned = world.apply_text(&file, true).await;
    assert_eq!(planned.files, ["deployments/greeter.yaml"]);
    let plan = planned.plan.unwrap();
    assert_eq!(plan.changes.len(), 1, "{plan:?}");
    assert_eq!(world.version("line-1"), 3, "a plan writes nothing");
    world.apply_text(&file, false).await;
    assert_eq!(world.answer_on("line-1", "greeting").await, ParameterValue::Text("three".into()));
    let commit = world.intent_repository().logged(world.main().await).await.unwrap();
    assert!(commit.message.contains("changed secrets of greeter"), "{}", commit.message);
    let before = world.main().await;
    world.apply_text(&file, false).await;
    assert_eq!(world.main().await, before, "the same again is nothing");
    // A secret that went away costs no device anything.
    std::fs::remove_file(world.data.path().join("secrets/greeting")).unwrap();
    world.says("line-1", "32Gi", &["compose"]).await;
    assert_eq!(world.answer_on("line-1", "greeting").await, ParameterValue::Text("three".into()));
    for dry_run in [true, false] {
        let want = Apply { documents: vec![file.clone()], dry_run, ..Apply::default() };
        let refused =
            world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await.unwrap_err().to_string();
        assert!(refused.contains("greeting"), "{refused}");
    }
}

#[tokio::test]
async fn files_and_the_secrets_behind_others_are_applied_together_or_not_at_all() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.set("secrets/greeting", "one");
    world.put("a", greeting(json!("hi"))).await.unwrap();
    world.put("b", greeting(secret("file", "greeting"))).await.unwrap();
    let a = world.file("deployments/a.yaml").await.unwrap().replace("hi", "yo");
    let b = world.file("deployments/b.yaml").await.unwrap();
    let (line, _) = (1u32..).zip(b.lines()).find(|(_, line)| line.contains("greeting:")).unwrap();
    let (before, version) = (world.main().await, world.version("line-1"));
    let apply = async |dry_run| {
        let want = Apply { documents: vec![a.clone(), b.clone()], dry_run, ..Apply::default() };
        world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await
    };
    std::fs::remove_file(world.data.path().join("secrets/greeting")).unwrap();
    for dry_run in [true, false] {
        let Error::Flawed(flaws) = apply(dry_run).await.unwrap_err() else { panic!() };
        assert_eq!((flaws.len(), flaws[0].file.as_str()), (1, "deployments/b.yaml"), "{flaws:?}");
        assert!(flaws[0].line == line && flaws[0].message.contains("greeting"), "{line} {flaws:?}");
    }
    assert_eq!((world.main().await, world.version("line-1")), (before, version), "nothing is done");

    world.set("secrets/greeting", "two");
    let applied = apply(false).await.unwrap();
    assert_eq!(applied.files, ["deployments/a.yaml", "deployments/b.yaml"]);
    let main = world.main().await;
    assert_eq!(applied.commit, Some(main.to_string()));
    let log = world.fleet.intent_log(None, 2).await.unwrap().items;
    assert_eq!(log[1].commit, before.to_string(), "it is one commit");
    let workloads = world.workloads("line-1").await;
    let greetings: Vec<_> = workloads.iter().map(|workload| format!("{:?}", workload.parameters)).collect();
    assert!(greetings.iter().any(|found| found.contains("yo")), "{greetings:?}");
    let revisions = async |of: &str| world.fleet.deployment(&name(of)).await.unwrap().revision;
    assert_eq!((revisions("a").await, revisions("b").await), (2, 2));
    // The same, when what is usual changes along with it: it is said once.
    world.set("secrets/greeting", "three");
    let fleet = "apiVersion: margrave/v1\nkind: Fleet\nspec:\n  rollback: {attempts: 5}\n";
    let want = Apply { documents: vec![fleet.to_owned(), b.clone()], ..Apply::default() };
    world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await.unwrap();
    assert_eq!(revisions("b").await, 3);
}

#[tokio::test]
async fn wrong_references_are_refused_with_parameter_and_place_and_without_their_text() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.set("outside", VALUE);
    world.set("secrets/huge", &VALUE.repeat(20_000));
    world.set("secrets/number", "nine");
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Vault::at(elsewhere.path());
    let foreign = other.seal(&name("greeter"), &"greeting".parse().unwrap(), VALUE).unwrap();
    let foreign = serde_json::to_value(foreign).unwrap()["sealed"].as_str().unwrap().to_owned();
    let want = SealSecret { deployment: "another".into(), parameter: "greeting".into(), value: VALUE.into() };
    let moved = world.fleet.seal(&want).unwrap().secret.sealed;
    let cases = [
        (secret("env", "MARGRAVE_SECRET_NONE"), "there is no variable MARGRAVE_SECRET_NONE"),
        (secret("env", "PATH"), "MARGRAVE_SECRET_"),
        (secret("file", "none"), "there is no file secrets/none"),
        (secret("file", "../outside"), "below the server's directory"),
        (secret("file", "/etc/hostname"), "below the server's directory"),
        (secret("file", "huge"), "more than the 65536 bytes"),
        (secret("sealed", &foreign), "by another server"),
        (secret("sealed", &moved), "for another deployment"),
        (secret("sealed", &moved[..moved.len() - 3]), "is damaged"),
        (secret("sealed", VALUE), "margrave secret seal"),
        (secret("vault", VALUE), "must be a value, or a secret"),
        (json!({ "secret": VALUE }), "must be a value, or a secret"),
        (json!({ "secret": { "env": "MARGRAVE_SECRET_A", "file": "a" } }), "must be a value, or a secret"),
        (json!({ "secret": { "file": "number" }, "seen": "x" }), "must be a value, or a secret"),
        (json!({ "value": VALUE }), "must be a value, or a secret"),
    ];
    for (answer, told) in cases {
        let refused = world.put("greeter", greeting(answer.clone())).await.unwrap_err();
        let Error::Invalid(broken) = refused else { panic!("{refused}") };
        assert_eq!(
            (broken[0].place.as_str(), broken[0].rule),
            ("/parameters/greeting", "secret"),
            "{broken:?}"
        );
        assert!(
            broken[0].message.contains(told) && !broken[0].message.contains(VALUE),
            "{answer}: {broken:?}"
        );
    }
    // What is not of the right kind is refused without being repeated.
    let mut want = on(&["line-1"]);
    want.parameters.insert("interval".into(), secret("file", "number"));
    let Error::Invalid(broken) = world.put("greeter", want).await.unwrap_err() else { panic!() };
    assert!(broken[0].message.contains("is no integer") && !broken[0].message.contains("nine"), "{broken:?}");
    for (deployment, parameter, value) in [("No", "x", "y"), ("web", "", "y"), ("web", "x", "")] {
        let want =
            SealSecret { deployment: deployment.into(), parameter: parameter.into(), value: value.into() };
        assert!(matches!(world.fleet.seal(&want), Err(Error::Invalid(_))));
    }
    assert!(world.fleet.deployments().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_secret_that_lies_in_a_devices_git_repository_is_warned_of() {
    if !super::git::git_is_here() {
        return;
    }
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.device("line-2", &[]).await;
    world.set("secrets/hello/greeting", VALUE);
    let want = || operator::PutDeployment {
        parameters: [("greeting".to_owned(), secret("file", "hello/greeting"))].into(),
        ..on(&["line-1", "line-2"])
    };
    let told = |shown: operator::Deployment| -> Vec<String> {
        let warnings = shown.warnings.into_iter().filter(|warning| warning.kind == "secretInGit");
        warnings.map(|warning| warning.text).collect()
    };
    assert_eq!(told(world.put("greeter", want()).await.unwrap()), [""; 0]);
    world.fleet.put_git(&ann(), &device("line-2"), operator::PutGit::default()).await.unwrap();
    for shown in
        [world.put("greeter", want()).await.unwrap(), world.fleet.deployment(&name("greeter")).await.unwrap()]
    {
        let told = told(shown);
        assert!(told.len() == 1 && told[0].contains("line-2") && !told[0].contains("line-1"), "{told:?}");
    }
    let clear = greeting(json!("in the clear"));
    assert_eq!(told(world.put("greeter", clear).await.unwrap()), [""; 0], "there is none any more");
}

#[tokio::test]
async fn a_changed_secret_reaches_nobody_by_itself() {
    let world = World::new().await;
    world.device("line-1", &[("plant", "a")]).await;
    world.set("secrets/greeting", "one");
    let mut want = greeting(secret("file", "greeting"));
    let seconds = json!([{ "targets": { "labels": { "plant": "b" } }, "parameters": { "interval": 60 } }]);
    want.overrides = serde_json::from_value(seconds).unwrap();
    world.put("greeter", want).await.unwrap();
    let version = world.version("line-1");
    world.set("secrets/greeting", "two");
    world.says("line-1", "32Gi", &["compose"]).await;
    let label = async |key: &str, value: &str| {
        let labels = operator::SetLabels { labels: [(key.to_owned(), Some(value.to_owned()))].into() };
        world.fleet.label(&ann(), &device("line-1"), labels).await.unwrap();
    };
    label("line", "1").await;
    assert_eq!(world.version("line-1"), version, "nothing is answered otherwise");
    assert_eq!(world.answer_on("line-1", "greeting").await, ParameterValue::Text("one".into()));
    // Labels that mean other answers are a change, and a document is made with what is there then.
    label("plant", "b").await;
    assert_eq!(world.answer_on("line-1", "interval").await, ParameterValue::Text("60".into()));
    assert_eq!(world.version("line-1"), version + 1);
}

#[tokio::test]
async fn other_labels_whose_answers_cannot_be_had_are_told_and_followed_once_they_can() {
    let world = World::new().await;
    world.device("line-1", &[("plant", "a")]).await;
    world.set("secrets/greeting", "one");
    let mut want = greeting(json!("hi"));
    let other = json!([{ "targets": { "labels": { "plant": "b" } }, "parameters": { "greeting": secret("file", "greeting") } }]);
    want.overrides = serde_json::from_value(other).unwrap();
    world.put("greeter", want).await.unwrap();
    world.report("greeter", "line-1", State::Installed).await;
    let file = world.file("deployments/greeter.yaml").await.unwrap();
    std::fs::remove_file(world.data.path().join("secrets/greeting")).unwrap();
    let labels = operator::SetLabels { labels: [("plant".to_owned(), Some("b".to_owned()))].into() };
    world.fleet.label(&ann(), &device("line-1"), labels).await.unwrap();
    assert_eq!(
        world.answer_on("line-1", "greeting").await,
        ParameterValue::Text("hi".into()),
        "it keeps that"
    );
    let why = world.fleet.why("line-1/greeter").await.unwrap();
    assert!(!why.converged && why.chain[0].text.contains("there is no file secrets/greeting"), "{why:?}");
    world.set("secrets/greeting", "one");
    world.apply_text(&file, false).await;
    assert_eq!(world.answer_on("line-1", "greeting").await, ParameterValue::Text("one".into()));
    assert!(world.fleet.deployment(&name("greeter")).await.unwrap().misfits.is_empty());
}
