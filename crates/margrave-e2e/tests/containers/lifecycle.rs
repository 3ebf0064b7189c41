//! Installed, updated, removed: what people do every day, seen from the engine.

use crate::plant::{Plant, WEB};
use crate::stage::wait_for;

#[test]
fn promise_7_a_service_is_installed_updated_and_removed_and_its_volume_stays() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    plant.add_package("hello", "1.0.0", &[("front", WEB)]);
    plant.deploy("hello");
    plant.wait("hello", "INSTALLED");
    assert_eq!(plant.steps("hello"), ["PENDING", "INSTALLING", "INSTALLED"]);

    let page = |container: &str| plant.engine.exec(container, "wget -q -O - http://127.0.0.1:8080/");
    let first = plant.container("hello", "front", "web");
    assert_eq!(page(&first), "hello");
    assert_eq!(plant.engine.inspect(&first, "{{.State.Health.Status}}"), "healthy");
    plant.engine.exec(&first, "echo kept > /data/file");

    // A dollar sign, quotes and spaces arrive as they were typed.
    let greeting = r#"good "evening" $HOME 'x'"#;
    plant.update("hello", greeting);
    wait_for("the update is done", || (plant.steps("hello").len() == 5).then_some(()));
    plant.wait("hello", "INSTALLED");
    assert_eq!(plant.steps("hello")[3..], ["UPDATING", "INSTALLED"]);
    let second = plant.container("hello", "front", "web");
    assert_ne!(first, second, "another value is another container");
    assert_eq!(page(&second), greeting);
    assert_eq!(plant.engine.exec(&second, "cat /data/file"), "kept", "volumes survive an update");

    let project = plant.project("hello", "front");
    plant.json(&["deployment", "remove", "hello", "--yes"]);
    wait_for("it is gone at the server", || plant.assignment(&plant.device, "hello").is_none().then_some(()));
    let [containers, networks, volumes] = plant.left_of(&project);
    assert_eq!((containers, networks), (vec![], vec![]), "gone means gone");
    assert_eq!(volumes.len(), 1, "only an explicit policy removes data");
    wait_for("the device has forgotten it", || {
        (plant.agent_status(&plant.device)["deployments"] == serde_json::json!([])).then_some(())
    });
}

#[test]
fn components_start_in_order_and_two_deployments_of_a_package_do_not_collide() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    // The first component says by its health check that it is ready; the second looks when it starts.
    let shared = plant.path("shared");
    let shared = shared.display();
    let first = format!(
        r#"services:
  main:
    image: ${{MARGRAVE_REGISTRY}}/e2e/busybox:1
    command: ["sh", "-c", "sleep 2; touch /ready; exec sleep 1000"]
    environment: {{GREETING: "${{GREETING}}"}}
    volumes: ["{shared}:/shared"]
    stop_signal: SIGKILL
    healthcheck:
      test: ["CMD-SHELL", "test -e /ready && touch /shared/healthy-$$GREETING"]
      interval: 1s
      timeout: 10s
      retries: 30
"#
    );
    let second = format!(
        r#"services:
  main:
    image: ${{MARGRAVE_REGISTRY}}/e2e/busybox:1
    command: ["sh", "-c", "if test -e /shared/healthy-$$GREETING; then touch /shared/in-order-$$GREETING; fi; exec sleep 1000"]
    environment: {{GREETING: "${{GREETING}}"}}
    volumes: ["{shared}:/shared"]
    stop_signal: SIGKILL
"#
    );
    plant.add_package("pair", "1.0.0", &[("store", &first), ("collector", &second)]);
    // Both write to one folder, which nobody does by mistake.
    for (name, greeting, why) in
        [("pair-one", "one", &[][..]), ("pair-two", "two", &["--force", "shared on purpose"])]
    {
        let set = format!("greeting={greeting}");
        let deploy = ["deploy", "pair", "--name", name, "--to", &plant.device, "--set", &set];
        plant.json(&[&deploy[..], why].concat());
    }
    for (name, greeting) in [("pair-one", "one"), ("pair-two", "two")] {
        let installed = plant.wait(name, "INSTALLED");
        let components: Vec<(&str, &str)> = installed["components"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|c| (c["name"].as_str().expect("a name"), c["state"].as_str().expect("a state")))
            .collect();
        assert_eq!(components, [("store", "installed"), ("collector", "installed")]);
        assert!(
            plant.path(&format!("shared/in-order-{greeting}")).exists(),
            "the second waits for the first"
        );
        for component in ["store", "collector"] {
            let container = plant.container(name, component, "main");
            assert_eq!(plant.engine.exec(&container, "echo $GREETING"), greeting);
        }
    }
    assert_eq!(plant.all_containers().len(), 4);

    let untouched = || ["store", "collector"].map(|component| plant.run_of("pair-two", component, "main"));
    let before = untouched();
    plant.update("pair-one", "one-more");
    wait_for("the update is done", || (plant.steps("pair-one").len() == 5).then_some(()));
    assert_eq!(untouched(), before, "what happens to one is nothing to the other");
    let projects = ["store", "collector"].map(|component| plant.project("pair-one", component));
    plant.json(&["deployment", "remove", "pair-one", "--yes"]);
    wait_for("it is gone", || plant.assignment(&plant.device, "pair-one").is_none().then_some(()));
    for project in projects {
        assert_eq!(plant.left_of(&project), [vec![], vec![], vec![]] as [Vec<String>; 3]);
    }
    assert_eq!(untouched(), before);
}
