//! Dangerous: refused with words, and nothing that runs is touched. What manifests may say is in
//! `hostile/manifests.rs`; this is about archives, bodies, addresses and who answers.

use std::io::Write;

use crate::liar::{Delivery, Liar, MANIFEST, ONE, Reply, Story, THREE, TWO, document};
use crate::stage::wait_for;

/// A bundle made by hand: names and kinds of entries as a test wants them.
fn archive(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
    let mut archive = tar::Builder::new(gzip);
    for (name, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        // By hand, because the library refuses names that lead elsewhere.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(if kind.is_file() { content.len() as u64 } else { 0 });
        if !kind.is_file() {
            header.set_link_name("/etc/passwd").expect("a short name");
        }
        header.set_mode(0o644);
        header.set_cksum();
        archive
            .append(&header, if kind.is_file() { *content } else { &[] })
            .expect("memory takes every write");
    }
    archive.into_inner().and_then(|gzip| gzip.finish()).expect("memory takes every write")
}

#[test]
fn a_device_refuses_what_is_dangerous_says_why_and_keeps_what_it_has() {
    let liar = Liar::start();
    liar.install();
    let (one, two, three) =
        (document(ONE, "one", "hello"), document(TWO, "two", "hello"), document(THREE, "three", "hello"));
    let held = Story::honest(5, &[(ONE, &one)]);
    liar.say(&held);
    let _agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("version 5 is installed", || liar.is_installed(5).then_some(()));
    let before = liar.status()["deployments"].clone();
    let next = Story::honest(6, &[(ONE, &one), (TWO, &two), (THREE, &three)]);
    let file = tar::EntryType::Regular;
    let all: Vec<(&str, tar::EntryType, &[u8])> = vec![
        ("1.yaml", file, one.as_bytes()),
        ("2.yaml", file, two.as_bytes()),
        ("3.yaml", file, three.as_bytes()),
    ];
    let with = |name: &'static str, kind: tar::EntryType| {
        let mut entries = all.clone();
        entries[2] = (name, kind, three.as_bytes());
        next.clone().archived(archive(&entries))
    };
    let mut many = all.clone();
    many.extend((0..500).map(|_| ("x.yaml", file, one.as_bytes())));
    // 90 MB of zeros in 90 KB.
    let mut bomb = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
    for _ in 0..90 {
        bomb.write_all(&vec![0; 1 << 20]).expect("memory takes every write");
    }
    let bomb = bomb.finish().expect("memory takes every write");
    let single = Story::honest(6, &[(ONE, &one), (TWO, &two)]);
    let document_of_two = format!("{TWO}/");
    let lies: Vec<(&str, Story, &str)> = vec![
        ("a bundle with a symbolic link", with("3.yaml", tar::EntryType::Symlink), "no file at its root"),
        ("a bundle with a hard link", with("3.yaml", tar::EntryType::Link), "no file at its root"),
        ("a bundle with a device node", with("3.yaml", tar::EntryType::Char), "no file at its root"),
        ("a bundle with a directory", with("3", tar::EntryType::Directory), "no file at its root"),
        ("a bundle with an absolute name", with("/tmp/3.yaml", file), "no file at its root"),
        ("a bundle with a climbing name", with("../3.yaml", file), "no file at its root"),
        ("a bundle with a nested file", with("a/3.yaml", file), "no file at its root"),
        ("a bundle with far too many entries", next.clone().archived(archive(&many)), "does not list"),
        ("a bundle that inflates for ever", next.clone().archived(bomb), "the bundle"),
        ("a bundle that is no archive", next.clone().archived(b"hello".to_vec()), "the bundle"),
        (
            "a document without end",
            single.clone().changed(&document_of_two, |reply| reply.delivered(Delivery::Endless)),
            "was refused: the answer is larger",
        ),
        (
            "a document of megabytes",
            single.clone().changed(&document_of_two, |_| Reply::of(vec![b'x'; 2 << 20])),
            "larger",
        ),
        (
            "a document that inflates for ever",
            single.clone().changed(&document_of_two, |_| {
                let mut out = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
                out.write_all(&vec![b'x'; 8 << 20]).expect("memory takes every write");
                Reply::of(out.finish().expect("memory takes every write")).with("Content-Encoding", "gzip")
            }),
            "inflates to more",
        ),
        (
            "a document in a coding that nobody asked for",
            single.clone().changed(&document_of_two, |reply| {
                Reply { body: b"?".to_vec(), ..reply }.with("Content-Encoding", "br")
            }),
            "coding",
        ),
        (
            "a manifest without end",
            next.clone().changed(MANIFEST, |reply| reply.delivered(Delivery::Endless)),
            "larger",
        ),
        (
            "a document elsewhere",
            single.clone().changed(&document_of_two, |_| {
                Reply::status(307).with("Location", "https://evil.example/api/v1/deployments")
            }),
            "redirects are not followed",
        ),
        (
            "a manifest elsewhere",
            next.clone().changed(MANIFEST, |_| Reply::status(302).with("Location", "/login")),
            "redirects are not followed",
        ),
        (
            "addresses of the same server in full",
            next.clone().retold(|manifest| manifest.replace("\"/api/v1/", "\"https://127.0.0.1/api/v1/")),
            "url",
        ),
        (
            "a page to log in at",
            next.clone().changed(MANIFEST, |_| Reply::of("<html>Log in</html>")),
            "manifest",
        ),
        ("a server that has nothing for it any more", Story::default(), "404"),
    ];
    for (what, lie, words) in &lies {
        liar.say(lie);
        wait_for(
            &format!("the device speaks of {words:?} after {what}, not of {:?}", liar.trouble()),
            || liar.trouble().contains(words).then_some(()),
        );
        let status = liar.status();
        assert_eq!(
            (&status["manifestVersion"], &status["deployments"]),
            (&5.into(), &before),
            "after {what}"
        );
        liar.say(&held);
        wait_for(&format!("the device is calm again after {what}"), || {
            liar.trouble().is_empty().then_some(())
        });
    }
    // The truth, after all of that.
    liar.say(&next);
    wait_for("version 6 is installed", || liar.is_installed(6).then_some(()));
}

#[test]
fn a_device_that_holds_nothing_does_not_believe_that_nothing_changed() {
    let liar = Liar::start();
    liar.install();
    let honest = Story::honest(1, &[(ONE, &document(ONE, "one", "hello"))]);
    liar.say(&honest.clone().changed(MANIFEST, |_| Reply::status(304)));
    let _agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("the device wonders", || liar.trouble().contains("holds nothing yet").then_some(()));
    assert_eq!(liar.status()["manifestVersion"], 0);
    liar.say(&honest);
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));
}

#[test]
fn a_document_that_is_another_deployments_is_not_applied() {
    let liar = Liar::start();
    liar.install();
    // Rightly named by its digest, wrongly by its id.
    let stranger = document(THREE, "three", "hello");
    liar.say(&Story::honest(1, &[(ONE, &stranger)]));
    let _agent = liar.run_agent(&["--runtime", "simulated"]);
    let one = wait_for("the deployment fails", || {
        let one = liar.status()["deployments"][0].clone();
        (one["state"] == "FAILED").then_some(one)
    });
    assert_eq!((&one["id"], &one["code"]), (&ONE.into(), &"document-invalid".into()));
    assert!(one["reason"].as_str().is_some_and(|reason| reason.contains("calls itself")), "{one}");
}

#[test]
fn id_100_a_server_with_another_name_or_another_authority_hears_nothing() {
    let liar = Liar::start();
    liar.install();
    liar.say(&Story::honest(1, &[(ONE, &document(ONE, "one", "hello"))]));
    let stranger = Liar::start();
    let bundle = liar.path("bundle.json");
    for (url, words) in [(liar.listener_of("another"), "another"), (stranger.url.clone(), "certificate")] {
        let arguments = ["--bundle", crate::liar::text(&bundle), "--replace"];
        assert!(liar.install_with(&url, &arguments).status.success());
        let agent = liar.run_agent(&["--runtime", "simulated"]);
        wait_for("the device refuses the server", || {
            let trouble = liar.trouble();
            (trouble.contains("certificate was refused") && trouble.contains(words)).then_some(())
        });
        drop(agent);
    }
    assert!(liar.heard().is_empty() && stranger.heard().is_empty(), "no request was sent");
    assert_eq!(liar.status()["manifestVersion"], 0);
}
