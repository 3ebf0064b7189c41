//! A device of the signed interface (g1) with a real engine.

use std::process::Command;

use crate::engine::run;
use crate::plant::{Plant, WEB};
use crate::stage::{free_port, program};

/// Our agent joins by the signed interface; then the server's registry has to open for both its component and its
/// image, and to nobody without a login.
fn check_registry(arguments: &[&str], registry: impl FnOnce(&Plant) -> String) {
    let listen = format!("127.0.0.1:{}", free_port());
    let signed = ["--signed-listen", &listen, "--signed-accept", "any"];
    let Some(plant) = Plant::start_with(&[&signed, arguments].concat()) else { return };
    let registry = registry(&plant);
    run(Command::new(program("margrave-agent"))
        .args(["join", &format!("https://{listen}"), "--signed", "--pin", &plant.context("pin")])
        .args(["--device", &plant.device, "--data"])
        .arg(plant.path(&plant.device)));
    let _agent = plant.agent();
    assert_eq!(plant.json(&["device", "show", &plant.device])["form"], "g1");

    plant.add_package("hello", "1.0.0", &[("front", WEB)]);
    plant.deploy("hello");
    plant.wait("hello", "INSTALLED");
    assert_eq!(plant.steps("hello"), ["PENDING", "INSTALLING", "INSTALLED"], "without a second try");
    let container = plant.container("hello", "front", "web");
    let image = format!("{registry}/{}", plant.exact_image("hello"));
    assert_eq!(plant.engine.inspect(&container, "{{.Config.Image}}"), image);
    assert_eq!(plant.engine.exec(&container, "wget -q -O - http://127.0.0.1:8080/"), "hello");
    plant.engine.clear(&plant.device, &registry);
}

#[test]
fn a_signed_device_runs_a_package_from_the_servers_registry_over_tls() {
    // The server's own address, whose authority the device hears of when it joins.
    check_registry(&[], |plant| format!("127.0.0.1:{}", plant.stage.web));
}

#[test]
fn a_signed_device_runs_a_package_from_the_servers_registry_on_its_own_machine() {
    check_registry(&["--registry-address", "127.0.0.1:{local}"], Plant::registry);
}
