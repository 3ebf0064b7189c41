//! When a device asks again, and what asking costs.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::liar::{Heard, Liar, MANIFEST, ONE, Reply, Story, document};
use crate::stage::wait_for;

/// Lets polls be answered as `answer` says, and returns the first `count` that came after that.
fn polls(liar: &Liar, count: usize, answer: impl Fn() -> Reply + Send + 'static) -> Vec<Heard> {
    liar.twist(move |heard, reply| if heard.path == MANIFEST { Some(answer()) } else { reply });
    liar.forget();
    let polls = wait_for("enough polls came", || {
        let heard = liar.heard();
        let polls: Vec<Heard> = heard.into_iter().filter(|heard| heard.path == MANIFEST).collect();
        (polls.len() >= count).then_some(polls)
    });
    liar.straighten();
    polls
}

fn pauses(polls: &[Heard]) -> Vec<Duration> {
    polls.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

#[test]
fn mi_g2_193_retry_after_is_kept_to_in_both_forms_and_over_a_restart() {
    let liar = Liar::start();
    liar.install();
    liar.say(&Story::honest(1, &[(ONE, &document(ONE, "one", "hello"))]));
    let mut agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));
    let wait = Duration::from_secs(2);
    let busy = || Reply::status(503).with("Retry-After", "2");
    for pause in pauses(&polls(&liar, 3, busy)) {
        assert!(pause >= wait, "{pause:?}");
    }
    let date = || {
        Reply::status(429)
            .with("Date", "Sun, 06 Nov 1994 08:49:37 GMT")
            .with("Retry-After", "Sun, 06 Nov 1994 08:49:39 GMT")
    };
    for pause in pauses(&polls(&liar, 3, date)) {
        assert!(pause >= wait, "{pause:?}");
    }

    // An hour of quiet is not over because somebody restarted the agent.
    polls(&liar, 1, || Reply::status(503).with("Retry-After", "3600"));
    wait_for("the device has understood", || liar.trouble().contains("503").then_some(()));
    agent.kill();
    liar.forget();
    let _agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("the device runs again", || (liar.status()["running"] == true).then_some(()));
    // Its runtime is looked at meanwhile; the server is not.
    let looked = liar.status();
    assert_eq!(looked["deployments"][0]["state"], "INSTALLED");
    assert!(liar.heard().is_empty(), "{:?}", liar.heard());
}

#[test]
fn mi_g2_200_news_is_not_given_up_because_something_on_the_way_knows_no_such_path() {
    let liar = Liar::start();
    liar.install();
    liar.say(&Story::honest(1, &[(ONE, &document(ONE, "one", "hello"))]));
    let mut refused = 0;
    liar.twist(move |heard, reply| {
        if heard.method != "POST" || refused >= 3 {
            return reply;
        }
        refused += 1;
        Some(Reply { status: 404, ..Reply::of("<html>no such site</html>") })
    });
    let _agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("version 1 is installed and told", || {
        let told = |heard: &crate::liar::Heard| {
            heard.method == "POST" && String::from_utf8_lossy(&heard.body).contains(r#""state":"installed""#)
        };
        let all_told = liar.status()["reportsWaiting"] == 0 && liar.is_installed(1);
        (all_told && liar.heard().iter().filter(|heard| told(heard)).count() >= 1).then_some(())
    });
    let posts = liar.heard().into_iter().filter(|heard| heard.method == "POST").count();
    assert!(posts >= 4, "three were refused and said again: {posts}");

    // A server that says it knows no such deployment means it; then the next report is the news.
    liar.say(&Story::honest(2, &[(ONE, &document(ONE, "one", "again"))]));
    liar.twist(|heard, reply| {
        let unknown = r#"{"type":"urn:x","title":"Deployment Not Found","status":404,"retryable":false}"#;
        if heard.method == "POST" { Some(Reply { status: 404, ..Reply::of(unknown) }) } else { reply }
    });
    wait_for("version 2 is installed and nothing waits", || {
        (liar.is_installed(2) && liar.status()["reportsWaiting"] == 0).then_some(())
    });
}

#[test]
fn promise_9_news_is_not_given_up_because_something_on_the_way_refuses_everything_in_no_words() {
    let liar = Liar::start();
    liar.install();
    liar.say(&Story::honest(1, &[(ONE, &document(ONE, "one", "hello"))]));
    let _agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("version 1 is installed and told", || {
        (liar.is_installed(1) && liar.status()["reportsWaiting"] == 0).then_some(())
    });
    liar.say(&Story::honest(2, &[(ONE, &document(ONE, "one", "again"))]));
    // From the first report of the update on.
    let mut stands = false;
    liar.twist(move |heard, reply| {
        stands |= heard.method == "POST";
        if stands { Some(Reply { status: 400, ..Reply::of("<html>bad request</html>") }) } else { reply }
    });
    liar.forget();
    wait_for("version 2 is installed, and telling it was tried again and again", || {
        let posts = liar.heard().into_iter().filter(|heard| heard.method == "POST").count();
        (liar.is_installed(2) && posts >= 3).then_some(())
    });
    assert_ne!(liar.status()["reportsWaiting"], 0);
    liar.straighten();
    liar.forget();
    wait_for("everything is told", || (liar.status()["reportsWaiting"] == 0).then_some(()));
    let told = |heard: &Heard| {
        heard.method == "POST" && String::from_utf8_lossy(&heard.body).contains(r#""state":"installed""#)
    };
    assert!(liar.heard().iter().any(told), "where it stands is told in the end");
}

#[test]
fn mi_g2_192_a_refusal_that_is_final_is_asked_about_in_the_regular_rhythm_only() {
    let liar = Liar::start();
    liar.install();
    liar.say(&Story::honest(1, &[(ONE, &document(ONE, "one", "hello"))]));
    let _agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));
    let retired = || {
        let body = r#"{"type":"https://margo.org/docs/errors/wfm-client-relationship-retired","title":"Client Relationship Retired","status":403,"retryable":false,"backoffStrategy":"none"}"#;
        Reply { status: 403, ..Reply::of(body) }
    };
    polls(&liar, 4, retired);
    wait_for("it works again as soon as it is accepted again", || liar.trouble().is_empty().then_some(()));
    assert_eq!(liar.status()["deployments"][0]["state"], "INSTALLED");
}

/// Every file under `folder`, and how it looks from outside.
pub(crate) fn picture(folder: &Path) -> BTreeMap<String, (i64, i64, i64, u64, u64)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a directory can be read").flatten() {
            let metadata = entry.metadata().expect("it is there");
            let looks = (
                metadata.mtime(),
                metadata.mtime_nsec(),
                metadata.ctime_nsec(),
                metadata.size(),
                metadata.ino(),
            );
            found.insert(entry.path().display().to_string(), looks);
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn an_idle_device_sends_one_small_request_on_one_connection_and_writes_nothing() {
    let liar = Liar::start();
    liar.install();
    let story = Story::honest(1, &[(ONE, &document(ONE, "one", "hello"))]);
    let tag = format!("\"{}\"", margrave_core::digest::Digest::of(story.manifest().as_bytes()));
    liar.say(&story);
    let expected = tag.clone();
    liar.twist(move |heard, reply| match (heard.path.as_str(), heard.header("if-none-match")) {
        (MANIFEST, Some(held)) if held == expected => Some(Reply::status(304).with("ETag", held)),
        _ => reply,
    });
    let _agent = liar.run_agent(&["--runtime", "simulated"]);
    wait_for("version 1 is installed and told", || {
        (liar.is_installed(1) && liar.status()["reportsWaiting"] == 0).then_some(())
    });
    let (before, written) = (picture(&liar.path("line-1")), liar.status()["bytesWritten"].clone());
    liar.forget();
    let heard = wait_for("many polls came", || Some(liar.heard()).filter(|heard| heard.len() >= 60));
    assert_eq!(picture(&liar.path("line-1")), before, "something was written");
    assert_eq!(liar.status()["bytesWritten"], written);
    let host = liar.url.trim_start_matches("https://");
    for poll in &heard {
        assert_eq!((poll.path.as_str(), poll.connection), (MANIFEST, heard[0].connection));
        let head = format!(
            "GET {MANIFEST} HTTP/1.1\r\naccept: application/vnd.margo.manifest.v1+json\r\nif-none-match: {tag}\r\nhost: {host}\r\n\r\n"
        );
        assert_eq!(poll.head, head);
    }
}
