//! What a server may tell a device: a real agent against a scripted server that holds a real identity.

use std::process::Command;

use margrave_core::digest::Digest;

use crate::liar::{Liar, MANIFEST, ONE, Story, THREE, TWO, document};
use crate::local_registry::Registry;
use crate::stage::{installed, skip, wait_for};
use crate::vendor::{COMPOSE, Item, Vendor, archive};

#[test]
fn mi_g2_080_a_device_keeps_what_it_has_whatever_a_server_says_and_says_why() {
    let liar = Liar::start();
    liar.join();
    let (one, two, three) =
        (document(ONE, "one", "hello"), document(TWO, "two", "hello"), document(THREE, "three", "hello"));
    let held = Story::honest(5, &[(ONE, &one)]);
    liar.say(&held);
    let agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("version 5 is installed", || {
        let status = liar.status();
        (status["manifestVersion"] == 5 && status["deployments"][0]["state"] == "INSTALLED").then_some(())
    });
    let before = liar.status()["deployments"].clone();
    let more = [(ONE, one.as_str()), (TWO, &two), (THREE, &three)];
    let next = Story::honest(6, &more);
    let digest_of_two = Digest::of(two.as_bytes()).to_string();
    let etag = |tag: String| {
        let mut story = next.clone();
        let reply = story.answers.get_mut(MANIFEST).expect("a manifest");
        reply.headers.push(("ETag", format!("\"{tag}\"")));
        story
    };
    let huge = next.clone().retold(|manifest| format!("{}{}", " ".repeat(9 << 20), manifest));
    let lies: Vec<(&str, Story, &str)> = vec![
        ("an older version", Story::honest(4, &[(ONE, &one)]), "older"),
        ("an older version without anything", Story::honest(4, &[]), "older"),
        (
            "the same version with other content",
            Story::honest(5, &[(ONE, &one), (TWO, &two)]),
            "other content",
        ),
        ("the same version without anything", Story::honest(5, &[]), "other content"),
        (
            "a document that is another",
            Story::honest(6, &[(ONE, &one), (TWO, &two)]).spoiled(&format!("{TWO}/"), three.as_bytes()),
            "digest",
        ),
        ("a bundle that is another", next.clone().spoiled("/bundles/", b"nonsense"), "digest"),
        (
            "a bundle with a document too many",
            next.clone().bundled(&[(ONE, &one), (TWO, &two), (THREE, &three), (TWO, "id: extra")]),
            "does not list",
        ),
        ("a bundle with a document too few", next.clone().bundled(&more[..2]), "lacks"),
        ("a bundle of other documents", next.clone().bundled(&[(ONE, "id: other")]), "does not list"),
        (
            "a digest nobody knows",
            next.clone()
                .retold(|manifest| manifest.replace(&digest_of_two, &format!("sha512:{}", "0".repeat(128)))),
            "digest",
        ),
        (
            "a version of zero",
            next.clone().retold(|manifest| manifest.replace(":6}", ":0}")),
            "manifestVersion",
        ),
        (
            "a version below zero",
            next.clone().retold(|manifest| manifest.replace(":6}", ":-6}")),
            "manifestVersion",
        ),
        (
            "a version with a fraction",
            next.clone().retold(|manifest| manifest.replace(":6}", ":6.5}")),
            "manifestVersion",
        ),
        ("a deployment twice", next.clone().retold(|manifest| manifest.replace(TWO, ONE)), "deployments"),
        (
            "an id that leads elsewhere",
            next.clone().retold(|manifest| manifest.replace(&format!("\"{TWO}\""), "\"../../etc\"")),
            "deploymentId",
        ),
        (
            "an address elsewhere",
            next.clone().retold(|manifest| manifest.replace("\"/api/v1/", "\"https://evil.example/api/v1/")),
            "url",
        ),
        (
            "half a manifest",
            next.clone().retold(|manifest| manifest[..manifest.len() / 2].to_owned()),
            "manifest",
        ),
        ("a manifest of brackets", next.clone().retold(|_| "[".repeat(200_000)), "manifest"),
        ("a manifest of megabytes", huge, "larger"),
        ("an ETag of something else", etag(Digest::of(b"something else").to_string()), "ETag"),
        ("nothing at all", Story::default(), "404"),
    ];
    for (what, lie, words) in &lies {
        liar.say(lie);
        wait_for(&format!("the device speaks of {words} after {what}"), || {
            let trouble = liar.status()["trouble"].as_str().unwrap_or_default().to_owned();
            trouble.contains(words).then_some(())
        });
        let status = liar.status();
        assert_eq!(status["manifestVersion"], 5, "after {what}");
        assert_eq!(status["deployments"], before, "after {what}");
        // The truth again, so that the next lie is judged for itself.
        liar.say(&held);
        wait_for(&format!("the device is calm again after {what}"), || {
            liar.status()["trouble"].is_null().then_some(())
        });
    }
    drop(agent);

    // A lie is not believed after a restart either, and what is honest still arrives.
    liar.say(&Story::honest(4, &[]));
    let agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("the device remembers after a restart", || {
        liar.status()["trouble"].as_str().is_some_and(|trouble| trouble.contains("older")).then_some(())
    });
    assert_eq!(liar.status()["deployments"], before);
    liar.say(&next);
    wait_for("version 6 is installed", || {
        let status = liar.status();
        let deployments = status["deployments"].as_array().cloned().unwrap_or_default();
        let all = deployments.len() == 3 && deployments.iter().all(|one| one["state"] == "INSTALLED");
        (all && status["manifestVersion"] == 6).then_some(())
    });
    let told = format!("{MANIFEST}/{ONE}/status");
    assert!(liar.heard().iter().any(|heard| heard.method == "POST" && heard.path == told));
    drop(agent);
}

#[test]
fn a_document_that_makes_no_sense_fails_alone() {
    let liar = Liar::start();
    liar.join();
    let one = document(ONE, "one", "hello");
    let bomb = format!(
        "a: &a [x, x, x, x]\n{}",
        (0..30).fold(String::new(), |text, n| {
            let (from, to) = (if n == 0 { "a".to_owned() } else { format!("a{}", n - 1) }, format!("a{n}"));
            format!("{text}b{n}: &{to} [*{from}, *{from}, *{from}, *{from}, *{from}, *{from}]\n")
        })
    );
    liar.say(&Story::honest(1, &[(ONE, &one), (TWO, "id: [not, a, document"), (THREE, &bomb)]));
    let _agent = liar.run_agent(&["--runtime", "simulated"]);
    let status = wait_for("each document is judged for itself", || {
        let status = liar.status();
        let state = |id: &str| {
            let deployments = status["deployments"].as_array()?;
            deployments.iter().find(|one| one["id"] == id)?["state"].as_str().map(str::to_owned)
        };
        let judged = state(ONE)? == "INSTALLED" && state(TWO)? == "FAILED" && state(THREE)? == "FAILED";
        judged.then(|| status.clone())
    });
    let failed = status["deployments"].as_array().expect("deployments");
    for one in failed.iter().filter(|one| one["state"] == "FAILED") {
        assert!(one["code"].is_string() && one["reason"].is_string(), "{one}");
    }
}

#[test]
fn pk_095_a_device_that_is_given_a_bad_archive_says_so_and_starts_nothing() {
    let Some(engine) = std::env::var("MARGRAVE_TEST_DOCKER_HOST").ok().filter(|host| !host.is_empty()) else {
        return skip("MARGRAVE_TEST_DOCKER_HOST names no Docker engine");
    };
    let (Some(docker), Some(registry)) = (installed("docker"), Registry::start()) else { return };
    let vendor = Vendor::of_registry(registry.port);
    // No server of ours lets these through; another's might.
    let bad = [
        (ONE, "up", archive(&[COMPOSE, Item::File("main/../../../climbed", b"x")])),
        (TWO, "out", archive(&[COMPOSE, Item::Symlink("main/x", "/etc")])),
        (THREE, "pipe", archive(&[COMPOSE, Item::Fifo("main/x")])),
    ];
    let documents: Vec<(&str, String)> = bad
        .iter()
        .map(|(id, name, archive)| {
            vendor.push_component(name, "1.0.0", archive);
            let text = document(id, name, "hello");
            (*id, text.replace("oci://registry.invalid/hello/main", &vendor.repository(name)))
        })
        .collect();
    let documents: Vec<(&str, &str)> = documents.iter().map(|(id, text)| (*id, text.as_str())).collect();
    let liar = Liar::start();
    liar.join();
    liar.say(&Story::honest(1, &documents));
    let agent = liar.run_agent(&["--runtime", "compose", "--engine", &engine]);
    let status = wait_for("all three are refused", || {
        let status = liar.status();
        let deployments = status["deployments"].as_array()?;
        let refused =
            deployments.len() == 3 && deployments.iter().all(|one| one["code"] == "archive-invalid");
        refused.then(|| status.clone())
    });
    for (at, rule) in ["PK-093", "PK-090", "PK-097"].iter().enumerate() {
        let one = &status["deployments"][at];
        assert_eq!(one["state"], "FAILED", "{one}");
        assert!(one["reason"].as_str().is_some_and(|reason| reason.contains(rule)), "{one}");
    }
    for (id, ..) in &bad {
        let project = format!("name=mg-{}", id.replace('-', ""));
        let listed = Command::new(&docker)
            .args(["-H", &engine, "ps", "--all", "--quiet", "--filter", &project])
            .output()
            .expect("docker starts");
        assert!(listed.status.success() && listed.stdout.is_empty(), "{listed:?}");
    }
    drop(agent);
    let mut folders = vec![liar.path("")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a directory can be read").flatten() {
            assert_ne!(entry.file_name(), "climbed", "{}", entry.path().display());
            if entry.file_type().expect("a kind").is_dir() {
                folders.push(entry.path());
            }
        }
    }
}
