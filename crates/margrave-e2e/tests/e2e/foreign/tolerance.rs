//! Wrong but harmless: real servers do it, and a device works all the same.

use std::io::Write;

use margrave_core::digest::Digest;

use crate::liar::{Delivery, Liar, MANIFEST, ONE, Reply, Story, THREE, TWO, document};
use crate::stage::wait_for;

const SIMULATED: [&str; 2] = ["--runtime", "simulated"];

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
    out.write_all(bytes).expect("memory takes every write");
    out.finish().expect("memory takes every write")
}

#[test]
fn amb_25_id_223_a_server_under_a_prefix_works_whichever_way_its_manifest_writes_its_addresses() {
    let liar = Liar::start();
    liar.install();
    let prefix = "/v1alpha2/margo";
    let joined = liar.install_with(
        &format!("{}{prefix}/", liar.url),
        &["--bundle", crate::liar::text(&liar.path("bundle.json")), "--replace", "--json"],
    );
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    let one = document(ONE, "one", "hello");
    liar.say(&Story::honest(1, &[(ONE, &one)]).under(prefix));
    let _agent = liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));

    let two = document(TWO, "two", "hello");
    let with_prefix = Story::honest(2, &[(ONE, &one), (TWO, &two)])
        .retold(|manifest| manifest.replace("\"/api/v1/", &format!("\"{prefix}/api/v1/")));
    liar.say(&with_prefix.under(prefix));
    wait_for("version 2 is installed", || liar.is_installed(2).then_some(()));
    let heard = liar.heard();
    assert!(heard.iter().all(|heard| heard.path.starts_with(&format!("{prefix}/api/v1/"))), "{heard:?}");
    assert!(heard.iter().any(|heard| heard.method == "PUT"));
}

#[test]
fn what_servers_do_wrong_without_harm_is_taken() {
    let liar = Liar::start();
    liar.install();
    let one = document(ONE, "one", "hello");
    let text = |version: u64| document(TWO, "two", &format!("number {version}"));
    let bundled = |version: u64| {
        let (two, three) = (text(version), document(THREE, "three", &format!("number {version}")));
        Story::honest(version, &[(ONE, &one), (TWO, &two), (THREE, &three)])
    };
    let single = |version: u64| Story::honest(version, &[(ONE, &one), (TWO, &text(version))]);
    let stories: Vec<(&str, Story)> = vec![
        ("no optional header anywhere", single(1)),
        ("201 for 200", single(2).changed("/api/v1/", |reply| Reply { status: 201, ..reply })),
        (
            "a size that is wrong",
            single(3)
                .retold(|manifest| manifest.replace("\"deploymentId\"", "\"sizeBytes\":1,\"deploymentId\"")),
        ),
        (
            "a size that makes no sense",
            single(4).retold(|manifest| {
                manifest.replace("\"deploymentId\"", "\"sizeBytes\":\"big\",\"deploymentId\"")
            }),
        ),
        (
            "members that nobody knows",
            single(5)
                .retold(|manifest| manifest.replacen('{', "{\"_client_cert\":{\"spiffe_id\":\"x\"},", 1)),
        ),
        (
            "compressed although nobody asked",
            single(6).changed("/api/v1/", |reply| {
                Reply { body: gzip(&reply.body), ..reply }.with("Content-Encoding", "gzip")
            }),
        ),
        (
            "said to be compressed, and not",
            single(7).changed("/deployments/", |reply| reply.with("Content-Encoding", "gzip")),
        ),
        (
            "a bundle that is called compressed, which it is by itself",
            bundled(8).changed("/bundles/", |reply| reply.with("Content-Encoding", "gzip")),
        ),
        (
            "content types of a file server",
            bundled(9).changed("/api/v1/", |reply| reply.with("Content-Type", "application/octet-stream")),
        ),
        (
            "caching that forbids nothing",
            bundled(10).changed("/api/v1/", |reply| reply.with("Cache-Control", "public")),
        ),
    ];
    let _agent = liar.run_agent(&SIMULATED);
    for (at, (what, story)) in stories.iter().enumerate() {
        liar.say(story);
        wait_for(&format!("a device works with: {what}"), || liar.is_installed(at as u64 + 1).then_some(()));
    }
}

#[test]
fn a_validator_of_another_form_is_used_as_the_server_gave_it() {
    let liar = Liar::start();
    liar.install();
    let one = document(ONE, "one", "hello");
    liar.say(&Story::honest(1, &[(ONE, &one)]));
    liar.twist(|heard, reply| {
        if heard.path != MANIFEST {
            return reply;
        }
        match heard.header("if-none-match") {
            Some("\"v1-of-another-server\"") => Some(Reply::status(304)),
            _ => reply.map(|reply| reply.with("ETag", "\"v1-of-another-server\"")),
        }
    });
    let _agent = liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));
    liar.forget();
    wait_for("the next polls are answered 304", || {
        let heard = liar.heard();
        let polls = heard.iter().filter(|heard| heard.path == MANIFEST);
        (polls.filter(|heard| heard.header("if-none-match") == Some("\"v1-of-another-server\"")).count() > 2)
            .then_some(())
    });
}

#[test]
fn a_download_that_is_cut_goes_on_where_it_was_or_starts_over_cleanly() {
    let liar = Liar::start();
    liar.install();
    let big = |n: u64| document(ONE, "one", &"long ".repeat(2000 + n as usize));
    let _agent = liar.run_agent(&SIMULATED);

    // A server with ranges: the second request asks for the rest of the very same thing.
    let text = big(1);
    let etag = format!("\"{}\"", Digest::of(text.as_bytes()));
    liar.say(&Story::honest(1, &[(ONE, &text)]));
    let tag = etag.clone();
    let mut busy = true;
    liar.twist(move |heard, reply| {
        if !heard.path.starts_with(&format!("{MANIFEST}/")) || heard.method != "GET" {
            return reply;
        }
        let reply = reply?.with("ETag", tag.clone());
        match heard.header("range") {
            None => Some(reply.delivered(Delivery::CutAfter(3000))),
            Some(range) => {
                assert_eq!((range, heard.header("if-range")), ("bytes=3000-", Some(tag.as_str())));
                // What came is kept while the server has no time for the rest.
                if std::mem::take(&mut busy) {
                    return Some(Reply { status: 503, ..Reply::of(vec![]) }.with("Retry-After", "1"));
                }
                let whole = reply.body.len();
                let rest = Reply { status: 206, body: reply.body[3000..].to_vec(), ..reply };
                Some(rest.with("Content-Range", format!("bytes 3000-{}/{whole}", whole - 1)))
            }
        }
    });
    wait_for("a document in two pieces is installed", || liar.is_installed(1).then_some(()));

    // A server without: the whole again.
    let text = big(2);
    liar.say(&Story::honest(2, &[(ONE, &text)]));
    let mut cuts = 2;
    liar.twist(move |heard, reply| {
        let fetch = heard.method == "GET" && heard.path.starts_with(&format!("{MANIFEST}/"));
        if fetch && cuts > 0 {
            cuts -= 1;
            return Some(reply?.delivered(Delivery::CutAfter(5000)));
        }
        reply
    });
    wait_for("a document that was cut twice is installed", || liar.is_installed(2).then_some(()));

    // A server whose ranges are of something else: the digest notices, and the whole is asked for.
    let text = big(3);
    liar.say(&Story::honest(3, &[(ONE, &text)]));
    let mut first = true;
    liar.twist(move |heard, reply| {
        if heard.method != "GET" || !heard.path.starts_with(&format!("{MANIFEST}/")) {
            return reply;
        }
        let reply = reply?.with("Accept-Ranges", "bytes");
        match heard.header("range") {
            None if std::mem::take(&mut first) => Some(reply.delivered(Delivery::CutAfter(1000))),
            None => Some(reply),
            Some(_) => {
                let rest = Reply { status: 206, body: vec![b'x'; reply.body.len() - 1000], ..reply };
                Some(rest.with("Content-Range", "bytes 1000-9999/10000"))
            }
        }
    });
    wait_for("two halves of different things are not put together", || liar.is_installed(3).then_some(()));
    liar.straighten();
}

#[test]
fn a_bundle_that_is_cut_goes_on_where_it_was_after_the_server_was_away() {
    let liar = Liar::start();
    liar.install();
    let (one, two) = (document(ONE, "one", "hello"), document(TWO, "two", "hello"));
    liar.say(&Story::honest(1, &[(ONE, &one), (TWO, &two)]));
    let pieces = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = pieces.clone();
    liar.twist(move |heard, reply| {
        if heard.method != "GET" || !heard.path.contains("/bundles/") {
            return reply;
        }
        let reply = reply?.with("ETag", "\"the-bundle\"");
        let mut told = told.lock().expect("nobody panics");
        told.push(heard.header("range").unwrap_or("all").to_owned());
        match (heard.header("range"), told.len()) {
            (None, _) => Some(reply.delivered(Delivery::CutAfter(100))),
            (Some(_), 2 | 3) => Some(Reply::status(503).with("Retry-After", "1")),
            (Some(_), _) => {
                let whole = reply.body.len();
                let rest = Reply { status: 206, body: reply.body[100..].to_vec(), ..reply };
                Some(rest.with("Content-Range", format!("bytes 100-{}/{whole}", whole - 1)))
            }
        }
    });
    let _agent = liar.run_agent(&SIMULATED);
    wait_for("both are installed", || liar.is_installed(1).then_some(()));
    assert_eq!(*pieces.lock().expect("nobody panics"), ["all", "bytes=100-", "bytes=100-", "bytes=100-"]);
}
