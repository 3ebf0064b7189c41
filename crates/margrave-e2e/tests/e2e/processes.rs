//! The whole path with real processes: install, update, remove, and what survives `kill -9`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::stage::{PRETENDED, Running, Stage, program, wait_for};

#[test]
fn a_deployment_is_installed_updated_and_removed_and_every_step_is_seen() {
    let stage = Stage::start();
    stage.join("line-1");
    let _agent = stage.simulated("line-1", "300ms");
    stage.add_package("hello", "1.0.0", &[("db", PRETENDED), ("web", PRETENDED)]);

    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
    assert_eq!(stage.history("line-1", "hello"), ["PENDING", "INSTALLING", "INSTALLED"]);

    stage.json(&["deployment", "update", "hello", "--set", "greeting=good evening"]);
    wait_for("the update is seen", || {
        stage.history("line-1", "hello").contains(&"UPDATING".to_owned()).then_some(())
    });
    stage.wait_state("line-1", "hello", "INSTALLED");
    assert_eq!(
        stage.history("line-1", "hello"),
        ["PENDING", "INSTALLING", "INSTALLED", "UPDATING", "INSTALLED"]
    );

    stage.json(&["deployment", "remove", "hello", "--yes"]);
    wait_for("it is gone", || stage.assignment("line-1", "hello").is_none().then_some(()));
    wait_for("the device has forgotten it", || {
        (stage.agent_status("line-1")["deployments"] == serde_json::json!([])).then_some(())
    });
    // Whoever asks for it later is told where it was, and what it went through there.
    let told = stage.margrave(&["deployment", "history", "hello"]);
    let (table, words) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success() && table.contains("line-1"), "{table}{words}");
    assert!(words.contains("margrave deployment history hello --device DEVICE"), "{words}");
    assert_eq!(stage.json(&["deployment", "history", "hello"])["departed"][0]["device"], "line-1");
    assert_eq!(stage.history("line-1", "hello").last().map(String::as_str), Some("DELETED"));
}

#[test]
fn an_agent_killed_in_the_middle_of_an_install_and_of_an_update_converges() {
    let stage = Stage::start();
    stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("one", PRETENDED), ("two", PRETENDED)]);
    let mut agent = stage.simulated("line-1", "1s");
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLING");
    agent.kill();
    let mut agent = stage.simulated("line-1", "1s");
    stage.wait_state("line-1", "hello", "INSTALLED");

    stage.json(&["deployment", "update", "hello", "--set", "greeting=changed"]);
    stage.wait_state("line-1", "hello", "UPDATING");
    agent.kill();
    let _agent = stage.simulated("line-1", "1s");
    stage.wait_state("line-1", "hello", "INSTALLED");
}

#[test]
fn a_server_killed_in_the_middle_of_an_install_and_of_an_update_loses_nothing() {
    let mut stage = Stage::start();
    stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let _agent = stage.simulated("line-1", "2s");
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLING");
    stage.server().kill();
    // The device finishes on its own, and tells when it can.
    wait_for("the device installs without a server", || {
        (stage.agent_status("line-1")["deployments"][0]["state"] == "INSTALLED").then_some(())
    });
    stage.start_server();
    stage.wait_state("line-1", "hello", "INSTALLED");

    stage.json(&["deployment", "update", "hello", "--set", "greeting=changed"]);
    stage.server().kill();
    stage.start_server();
    wait_for("the update arrives after the restart", || {
        stage.history("line-1", "hello").contains(&"UPDATING".to_owned()).then_some(())
    });
    stage.wait_state("line-1", "hello", "INSTALLED");
}

#[test]
fn a_restart_of_both_ends_restarts_nothing_that_is_as_desired() {
    let mut stage = Stage::start();
    stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let mut agent = stage.simulated("line-1", "10ms");
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
    let before = stage.history("line-1", "hello");
    assert!(agent.terminate().success());
    assert!(stage.server().terminate().success());
    stage.start_server();
    let _agent = stage.simulated("line-1", "10ms");
    wait_for("the device is back", || stage.agent_status("line-1")["lastContact"].is_string().then_some(()));
    assert_eq!(stage.history("line-1", "hello"), before);
}

/// What a file system puts beside our files, and sectors that went bad: a directory in a file's place fails to be read alike.
#[test]
fn one_bad_entry_on_disk_stops_nothing_else() {
    let stage = Stage::start();
    stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    stage.add_package("other", "1.0.0", &[("main", PRETENDED)]);
    let mut agent = stage.simulated("line-1", "10ms");
    for name in ["hello", "other"] {
        stage.json(&["deploy", name, "--to", "line-1"]);
        stage.wait_state("line-1", name, "INSTALLED");
    }
    assert!(agent.terminate().success());
    let at = |path: &str| stage.path("line-1").join(path);
    let spoil = |path: &std::path::Path| {
        std::fs::remove_file(path).expect("it was a file");
        std::fs::create_dir(path).expect("the device's directory is writable");
    };
    std::fs::create_dir(at("documents/lost+found")).expect("the device's directory is writable");
    let documents = std::fs::read_dir(at("documents")).expect("there are documents");
    let mut documents =
        documents.map(|entry| entry.expect("it can be listed").path()).filter(|path| path.is_file());
    spoil(&documents.next().expect("two were kept"));
    // The older one: what it says last is whole.
    let written =
        |slot: &str| at(slot).metadata().and_then(|file| file.modified()).expect("there are two slots");
    let older = ["ledger/state.0", "ledger/state.1"].into_iter().min_by_key(|slot| written(slot));
    spoil(&at(older.expect("there are two")));

    let shown = stage.agent_status("line-1");
    assert_eq!(shown["deployments"].as_array().map(Vec::len), Some(2), "{shown}");
    let mut agent = stage.simulated("line-1", "10ms");
    for greeting in ["one", "two"] {
        for name in ["hello", "other"] {
            stage.json(&["deployment", "update", name, "--set", &format!("greeting={greeting}")]);
            stage.wait_state("line-1", name, "INSTALLED");
        }
    }
    assert!(agent.is_running());
    let log = agent.log();
    let said = |line: &&str| line.contains("cannot be swept") && line.contains("lost+found");
    assert_eq!(log.lines().filter(said).count(), 1, "said once, and not at every commit: {log}");
    assert!(at("documents/lost+found").is_dir());
    assert!(agent.terminate().success());
}

#[test]
fn a_retired_device_is_out_at_once_and_keeps_running_what_it_runs() {
    let stage = Stage::start();
    stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let _agent = stage.simulated("line-1", "10ms");
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
    stage.json(&["device", "retire", "line-1", "--yes"]);
    let trouble = wait_for("the device notices", || {
        stage.agent_status("line-1")["trouble"].as_str().map(str::to_owned)
    });
    assert!(trouble.contains("Not Authorized"), "{trouble}");
    assert_eq!(stage.agent_status("line-1")["deployments"][0]["state"], "INSTALLED");
}

#[test]
fn a_device_without_a_network_tells_a_technician_what_it_knows() {
    let mut stage = Stage::start();
    stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    // Times are told to the second: what is wanted comes to be known well before it is installed.
    let mut agent = stage.simulated("line-1", "2s");
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
    wait_for("it knows that the server knows", || {
        (stage.agent_status("line-1")["reportsWaiting"] == 0).then_some(())
    });
    agent.kill();
    stage.lose_server();
    let output = Command::new(program("margrave-agent"))
        .args(["status", "--data"])
        .arg(stage.path("line-1"))
        .output()
        .expect("our own program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("INSTALLED") && said.contains("hello") && said.contains("not running"), "{said}");
    let text = |status: &Value, key: &str| status[key].as_str().expect(key).to_owned();
    let status = stage.agent_status("line-1");
    let contact = text(&status, "lastContact");
    assert!(contact >= text(&status["deployments"][0], "since"), "it told of it: {status}");
    assert!(said.contains(&format!("last contact  {contact}")), "{said}");

    // Started again without a network it has nothing newer to tell, and nothing older.
    let mut agent = stage.simulated("line-1", "2s");
    let status = wait_for("it asks in vain", || {
        Some(stage.agent_status("line-1")).filter(|status| status["trouble"].is_string())
    });
    assert_eq!(text(&status, "lastContact"), contact);
    assert!(agent.terminate().success());
    assert_eq!(text(&stage.agent_status("line-1"), "lastContact"), contact);

    // It only asks, and is stopped in good order.
    stage.start_server();
    let engine = stage.path("line-1.simulation.json");
    let engine = ["--runtime", "simulated", "--simulation", engine.to_str().expect("a plain path")];
    let mut agent = stage.run_agent("line-1", &[&engine[..], &["--poll", "1s", "--wait", "0s"]].concat());
    let heard = wait_for("the server is heard", || {
        Some(text(&stage.agent_status("line-1"), "lastContact")).filter(|heard| *heard > contact)
    });
    assert!(agent.terminate().success());
    assert!(text(&stage.agent_status("line-1"), "lastContact") >= heard);
}

#[test]
fn who_asks_a_stopped_device_whose_memory_is_damaged_is_not_told_that_nothing_should_run() {
    let stage = Stage::start();
    let data = stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let mut agent = stage.simulated("line-1", "10ms");
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
    assert!(agent.terminate().success());
    for slot in ["state.0", "state.1"] {
        std::fs::write(data.join("ledger").join(slot), "damaged").unwrap();
    }
    let mut command = Command::new(program("margrave-agent"));
    let output = command.args(["status", "--data"]).arg(&data).output().expect("our own program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("memory is damaged") && said.contains("margrave-agent run"), "{said}");

    // It asks the server, and is as before.
    let _agent = stage.simulated("line-1", "10ms");
    wait_for("it knows again", || {
        let mut command = Command::new(program("margrave-agent"));
        let output = command.args(["status", "--data"]).arg(&data).output().expect("our own program starts");
        String::from_utf8_lossy(&output.stdout).contains("INSTALLED").then_some(())
    });
    stage.wait_state("line-1", "hello", "INSTALLED");
}

#[test]
fn an_agent_that_runs_and_cannot_be_asked_is_not_called_stopped() {
    let stage = Stage::start();
    let data = stage.join("line-1");
    let mut agent = stage.simulated("line-1", "10ms");
    let socket = data.join("agent.sock");
    wait_for("it can be asked", || socket.exists().then_some(()));
    std::fs::remove_file(&socket).unwrap();
    let status = stage.agent_status("line-1");
    assert_eq!((&status["running"], &status["unheard"]), (&true.into(), &true.into()), "{status}");
    assert!(agent.terminate().success());
    let status = stage.agent_status("line-1");
    assert_eq!(status["running"], false, "{status}");
    assert!(status["unheard"].is_null(), "{status}");
}

/// As `packaging/systemd/margrave-agent.service` has it started.
#[test]
fn the_service_manager_hears_that_an_agent_is_ready_alive_and_stopping() {
    let stage = Stage::start();
    let data = stage.join("line-1");
    let socket = stage.path("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&socket).expect("the stage's directory is writable");
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("a time that is not zero");
    let hear = || {
        let mut buffer = [0; 4096];
        let length = manager.recv(&mut buffer).expect("the agent says something in time");
        String::from_utf8(buffer[..length].to_vec()).expect("lines of text")
    };
    let mut command = Command::new(program("margrave-agent"));
    command
        .args(["run", "--runtime", "simulated", "--data"])
        .arg(&data)
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "900000");
    let mut agent = Running::start("line-1", &stage.path(""), &mut command);
    let first = hear();
    assert!(first.contains("READY=1\n") && first.contains("WATCHDOG=1\n"), "{first}");
    assert!(first.contains("STATUS=0 of 0 deployments as wanted"), "{first}");
    // It has nothing to do, and says that it is alive all the same.
    for _ in 0..5 {
        let more = hear();
        assert!(more.contains("WATCHDOG=1\n") && !more.contains("READY"), "{more}");
    }
    assert!(agent.terminate().success(), "{}", agent.log());
    let last = wait_for("it says that it stops", || Some(hear()).filter(|said| said.contains("STOPPING=1")));
    assert!(!last.contains("WATCHDOG"), "{last}");
}

#[test]
fn the_service_starts_the_agent_with_arguments_that_it_has() {
    let unit = include_str!("../../../../packaging/systemd/margrave-agent.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
    let arguments: Vec<&str> = start.split_whitespace().skip(1).collect();
    let [.., data, "$MARGRAVE_AGENT_OPTIONS"] = arguments[..] else { panic!("{start}") };
    assert!(unit.contains(&format!("StateDirectory={}", data.trim_start_matches("/var/lib/"))));
    // As the documentation writes them.
    let documentation = include_str!("../../../../docs/devices.md");
    let given = documentation.lines().find_map(|line| line.strip_prefix("MARGRAVE_AGENT_OPTIONS="));
    let given = given.expect("it shows how to give options").trim_matches('"');
    assert!(unit.lines().any(|line| line == "EnvironmentFile=-/etc/default/margrave-agent"), "{unit}");
    for options in ["", given] {
        let words = arguments.iter().flat_map(|word| match *word {
            "$MARGRAVE_AGENT_OPTIONS" => options.split_whitespace().collect(),
            word => vec![word],
        });
        let output = Command::new(program("margrave-agent")).args(words).arg("--help").output();
        let output = output.expect("our own program starts");
        assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_token_works_once_and_a_wrong_pin_never() {
    let stage = Stage::start();
    let token = stage.json(&["device", "token", "--name", "line-1"]);
    let text = |key: &str| token[key].as_str().expect("a text").to_owned();
    let join = |data: &str, token: &str, pin: &str| {
        let mut command = Command::new(program("margrave-agent"));
        command.args(["join", &text("url"), "--token", token, "--pin", pin, "--data"]).arg(stage.path(data));
        command.output().expect("our own program starts")
    };
    let wrong_pin = join("a", &text("token"), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    assert_eq!(wrong_pin.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong_pin.stderr).contains("pin"), "{wrong_pin:?}");
    assert!(join("a", &text("token"), &text("pin")).status.success());
    // That somebody asked and the answer is no is something else than that asking went wrong.
    let again = join("b", &text("token"), &text("pin"));
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert_eq!(join("c", "mgj_unknown", &text("pin")).status.code(), Some(1));
    assert!(!stage.path("b").join("identity.json").exists());
    let same_place = join("a", &text("token"), &text("pin"));
    assert!(String::from_utf8_lossy(&same_place.stderr).contains("already"), "{same_place:?}");
    assert_eq!(same_place.status.code(), Some(1));
}

#[test]
fn a_server_killed_while_it_publishes_has_told_all_devices_or_none_and_finishes_by_itself() {
    let mut stage = Stage::start();
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let devices = ["line-1", "line-2", "line-3"];
    let _agents = devices.map(|device| {
        stage.join(device);
        stage.simulated(device, "10ms")
    });
    // Before, during and after the change, as it falls.
    for millis in [0, 15, 30, 45, 60, 90, 200] {
        let name = format!("hello-{millis}");
        let mut deploying = stage
            .command()
            .args([
                "deploy", "hello", "--name", &name, "--to", devices[0], "--to", devices[1], "--to",
                devices[2],
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("our own program starts");
        std::thread::sleep(Duration::from_millis(millis));
        stage.server().kill();
        deploying.wait().expect("our own child can be waited for");
        stage.start_server();
        let known = stage.margrave(&["deployment", "show", &name]).status.success();
        for device in devices {
            if known {
                stage.wait_state(device, &name, "INSTALLED");
            } else {
                assert!(stage.assignment(device, &name).is_none(), "{name} on {device}");
            }
        }
        // Whoever asked for it is in the log with the commit, whenever the power went.
        let log = stage.json(&["audit", "--subject", &name]);
        let done = log.as_array().into_iter().flatten().filter(|entry| entry["outcome"] == "done");
        let done: Vec<_> = done.filter(|entry| entry["commit"].is_string()).collect();
        assert_eq!(done.len(), usize::from(known), "{log}");
    }
}

#[test]
fn who_waits_for_a_deployment_waits_on_while_the_server_is_away() {
    let mut stage = Stage::start();
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    stage.join("line-1");
    let mut waiting = stage
        .command()
        .args(["deploy", "hello", "--to", "line-1", "--wait", "--timeout", "4m"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("our own program starts");
    wait_for("it is wanted", || {
        stage.margrave(&["deployment", "show", "hello"]).status.success().then_some(())
    });
    stage.server().kill();
    // It ends by itself when its time is up, and with it its words.
    let mut words = BufReader::new(waiting.stderr.take().expect("it is piped")).lines();
    let told = words.by_ref().map_while(Result::ok).any(|line| line.contains("still waiting"));
    assert!(told && waiting.try_wait().expect("our own child can be asked").is_none());
    stage.start_server();
    let _agent = stage.simulated("line-1", "10ms");
    assert!(waiting.wait().expect("our own child can be waited for").success());
    drop(words);
}

#[test]
fn two_agents_or_servers_on_one_directory_are_refused_with_a_reason() {
    let stage = Stage::start();
    stage.join("line-1");
    let _agent = stage.simulated("line-1", "10ms");
    wait_for("the agent runs", || (stage.agent_status("line-1")["running"] == true).then_some(()));
    let second = Command::new(program("margrave-agent"))
        .args(["run", "--runtime", "simulated", "--data"])
        .arg(stage.path("line-1"))
        .output()
        .expect("our own program starts");
    assert_eq!(second.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another agent"), "{second:?}");
    let second = Command::new(program("margrave"))
        .args(["serve", "--listen", "127.0.0.1:0", "--device-listen", "127.0.0.1:0", "--data"])
        .arg(stage.path("server"))
        .output()
        .expect("our own program starts");
    assert_eq!(second.status.code(), Some(2));
}

#[test]
fn certificates_are_renewed_while_everything_runs_and_after_they_expired() {
    let stage = Stage::start_with(&["--svid-lifetime", "6s", "--svid-lifetime-any"]);
    stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let mut agent = stage.simulated("line-1", "10ms");
    let expires =
        || stage.agent_status("line-1")["certificateExpires"].as_str().map(str::to_owned).expect("a time");
    let first = expires();
    wait_for("the certificate is renewed", || (expires() != first).then_some(()));
    agent.kill();
    let last = expires();
    let now = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        since.as_secs()
    };
    // Well beyond its end: the device was away for too long.
    let until = now() + 8;
    wait_for("the certificate has expired", || (now() > until).then_some(()));
    let _agent = stage.simulated("line-1", "10ms");
    wait_for("the certificate is renewed after its end", || (expires() != last).then_some(()));
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
}
