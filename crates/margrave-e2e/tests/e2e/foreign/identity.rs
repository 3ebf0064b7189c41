//! An identity that operators install, watch over and replace; and trust bundles that change.

use std::time::Duration;

use margrave_identity::authority::Authority;
use margrave_identity::bundle::Bundle;
use serde_json::{Value, json};

use crate::liar::{LIFETIME, Liar, MANIFEST, ONE, Reply, Story, document, now, text};
use crate::stage::wait_for;

const SIMULATED: [&str; 2] = ["--runtime", "simulated"];
const DISCOVERY: &str = "/.well-known/margo";
const BUNDLE: &str = "/.well-known/spiffe/bundle.json";

fn installed(liar: &Liar) {
    liar.say(&Story::honest(1, &[(ONE, &document(ONE, "one", "hello"))]));
}

/// Discovery document and bundle at the web listener, as `answer` gives them.
fn publish(liar: &Liar, discovery: Value, bundle: Vec<u8>) {
    liar.twist_web(move |heard, _| match heard.path.as_str() {
        DISCOVERY => Some(Reply::of(discovery.to_string())),
        BUNDLE => {
            let tag = format!("\"{}\"", margrave_core::digest::Digest::of(&bundle).hex());
            match heard.header("if-none-match") {
                Some(held) if held == tag => Some(Reply::status(304)),
                _ => Some(Reply::of(bundle.clone()).with("ETag", tag)),
            }
        }
        _ => None,
    });
}

/// A device with something to run that joined by way of the discovery document, which is returned: other bundles are
/// published beside it.
fn joined_with_discovery(liar: &Liar, bundle: Vec<u8>) -> Value {
    installed(liar);
    liar.issue(now(), LIFETIME);
    let discovery = json!({
        "trustDomain": liar.authority.trust_domain().as_str(),
        "trustBundleUri": format!("{}{BUNDLE}", liar.web_url),
        "crlUris": [],
    });
    publish(liar, discovery.clone(), bundle);
    let joined = liar.install_with(&liar.url, &["--identity-url", &liar.web_url, "--pin", &liar.pin]);
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    discovery
}

#[test]
fn id_180_id_187_an_expired_device_keeps_quiet_and_running_until_its_files_are_replaced() {
    let liar = Liar::start();
    installed(&liar);
    // Its life is nearly over: all three warnings are due at once, and the end is seconds away.
    let (age, left) = (Duration::from_secs(3600), Duration::from_secs(20));
    liar.issue(margrave_core::moment::Moment(now().0 - 3_600_000), age + left);
    let bundle = liar.write("bundle.json", liar.bundle_json());
    assert!(liar.install_with(&liar.url, &["--bundle", text(&bundle)]).status.success());
    let agent = liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));
    wait_for("a technician is told in time", || {
        let notice = liar.status()["identityNotice"].as_str().unwrap_or_default().to_owned();
        notice.contains("expires at").then_some(())
    });
    wait_for("the certificate has expired", || liar.trouble().contains("ID-187").then_some(()));
    liar.forget();
    let since = liar.status()["deployments"][0]["since"].clone();

    // Files that are of no use change nothing: half a pair, another name.
    liar.replace("svid.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    wait_for("bad files are noticed", || {
        agent.log().contains("is not used; the one in use stays").then_some(())
    });
    assert!(liar.heard().is_empty(), "nobody is called with an expired certificate");

    liar.issue(now(), LIFETIME);
    wait_for("the device is back without a restart", || {
        (!liar.heard().is_empty() && liar.trouble().is_empty()).then_some(())
    });
    let status = liar.status();
    assert_eq!((&status["deployments"][0]["since"], &status["identityNotice"]), (&since, &Value::Null));
}

#[test]
fn id_106_id_172_a_replaced_certificate_is_presented_on_a_new_connection_and_a_restart_finds_it() {
    let liar = Liar::start();
    installed(&liar);
    liar.install();
    let mut agent = liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));
    let (before, expires) = (liar.heard().len(), liar.status()["certificateExpires"].clone());
    let connection = liar.heard()[before - 1].connection;
    liar.issue(now(), 2 * LIFETIME);
    wait_for("the newer certificate is in use", || {
        let newest = liar.heard().last().map(|heard| heard.connection)?;
        (newest > connection && liar.status()["certificateExpires"] != expires).then_some(())
    });
    let expires = liar.status()["certificateExpires"].clone();
    // The files may go away: the device has its own copy, and works offline.
    agent.kill();
    std::fs::remove_file(liar.path("svid.pem")).expect("it is there");
    std::fs::remove_file(liar.path("bundle.json")).expect("it is there");
    liar.forget();
    let _agent = liar.run_agent(&SIMULATED);
    wait_for("it runs from its copy", || (!liar.heard().is_empty()).then_some(()));
    assert_eq!(liar.status()["certificateExpires"], expires);
}

#[test]
fn id_142_id_148_a_device_follows_its_trust_domain_to_a_new_authority() {
    let liar = Liar::start();
    let discovery = joined_with_discovery(&liar, liar.bundle_json());
    let domain = liar.authority.trust_domain().clone();
    let agent = liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));

    // The server moves to another authority; who is behind is refused, looks, and follows. Nothing is merged: the
    // new bundle does not even hold the anchor of the device's own certificate.
    let next = Authority::create(domain.clone(), now()).expect("an authority");
    let both =
        Bundle::of_anchor(domain.clone(), next.anchor(), 2, LIFETIME).with_anchor(liar.authority.anchor());
    liar.trust.replace(both).expect("the same trust domain");
    liar.svid
        .replace(next.issue_server(&liar.wfm, now(), LIFETIME).expect("an SVID"))
        .expect("the same name");
    let fresh = Bundle::of_anchor(domain.clone(), next.anchor(), 2, LIFETIME).to_wire();
    publish(&liar, discovery.clone(), serde_json::to_vec(&fresh).expect("plain data"));
    // Whatever connection is open: a restart dials anew.
    drop(agent);
    liar.forget();
    let agent = liar.run_agent(&SIMULATED);
    wait_for("the device followed", || {
        (agent.log().contains("trust bundle replaced")
            && liar.trouble().is_empty()
            && !liar.heard().is_empty())
        .then_some(())
    });

    // A bundle without any anchor is not taken (ID-135, ID-230), and neither is one that cannot be fetched; after
    // a restart the cached one still works (ID-144, ID-188).
    publish(&liar, discovery, br#"{"keys":[]}"#.to_vec());
    drop(agent);
    liar.forget();
    let _agent = liar.run_agent(&SIMULATED);
    wait_for("the device works on with what it has", || {
        liar.heard().iter().any(|heard| heard.path == MANIFEST).then_some(())
    });
    let asked = liar.heard_web();
    assert!(
        asked
            .iter()
            .filter(|heard| heard.path.starts_with("/.well-known"))
            .all(|heard| { heard.header("accept") == Some("application/json") })
    );
}

#[test]
fn id_145_an_older_trust_bundle_is_told_of_and_refused_where_that_is_wanted() {
    let liar = Liar::start();
    let domain = liar.authority.trust_domain().clone();
    let numbered = |number| {
        let bundle = Bundle::of_anchor(domain.clone(), liar.authority.anchor(), number, LIFETIME);
        serde_json::to_vec(&bundle.to_wire()).expect("plain data")
    };
    let discovery = joined_with_discovery(&liar, numbered(5));
    publish(&liar, discovery, numbered(4));
    for (arguments, words) in [
        (&[SIMULATED[0], SIMULATED[1], "--refuse-older-bundle"][..], "offered and refused (ID-145)"),
        (&SIMULATED, "trust bundle replaced"),
    ] {
        // Who comes back after an outage looks at once (ID-148).
        liar.twist(|_, _| Some(Reply::status(503).with("Retry-After", "1")));
        let agent = liar.run_agent(arguments);
        wait_for("the server is away", || liar.trouble().contains("503").then_some(()));
        liar.straighten();
        wait_for("the older bundle is told of", || {
            (agent.log().contains("security: an older trust bundle") && agent.log().contains(words))
                .then_some(())
        });
    }
}

#[test]
fn id_104_a_device_calls_only_servers_that_its_owner_lists() {
    let liar = Liar::start();
    installed(&liar);
    liar.install();
    let list = liar.path("line-1").join("authorized.json");
    std::fs::write(&list, "[]").expect("it is writable");
    let mut refused = liar.run_agent(&SIMULATED);
    wait_for("it does not start", || (!refused.is_running()).then_some(()));
    assert!(refused.log().contains("lists no server"), "{}", refused.log());
    std::fs::write(&list, r#"["spiffe://elsewhere.example/margo/wfm/line-7"]"#).expect("it is writable");
    liar.forget();
    let _agent = liar.run_agent(&SIMULATED);
    wait_for("it says why it calls nobody", || liar.trouble().contains("ID-104").then_some(()));
    assert!(liar.heard().is_empty(), "{:?}", liar.heard());
    let own = format!("spiffe://{}/margo/wfm/{}", liar.authority.trust_domain(), liar.wfm);
    std::fs::write(&list, format!("[\"{own}\"]")).expect("it is writable");
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));
}

#[test]
fn id_135_id_151_id_152_id_156_id_160_id_161_id_164_an_identity_service_that_cannot_be_trusted_gives_no_bundle()
 {
    let liar = Liar::start();
    liar.issue(now(), LIFETIME);
    let good = |uri: &str| json!({ "trustDomain": "liar.example", "trustBundleUri": uri });
    let own = format!("{}{BUNDLE}", liar.web_url);
    let try_with = |discovery: Value, bundle: &[u8], arguments: &[&str]| {
        publish(&liar, discovery, bundle.to_vec());
        let output = liar.install_with(&liar.url, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!liar.path("line-1/identity.json").exists() || output.status.success(), "{said}");
        (output.status.success(), said)
    };
    let service = ["--identity-url", liar.web_url.as_str(), "--pin", liar.pin.as_str()];
    let other_pin = "fu/kiX4txATRM0i+zQoBjoRWl19+qEyOVrB9l2muKUE=";
    let wrong_pin = ["--identity-url", liar.web_url.as_str(), "--pin", other_pin];
    // The web authority of another, and the trust bundle's own anchor: neither vouches for this page (ID-165).
    let stranger = liar.write("stranger.pem", Liar::start().web_authority);
    let anchor = liar.write("anchor.pem", liar.authority.certificate_pem());
    let bundle = liar.bundle_json();
    for (discovery, bundle, arguments, words) in [
        (good("http://127.0.0.1/bundle.json"), &bundle[..], &service[..], "ID-151"),
        (good("https://elsewhere.example/bundle.json"), &bundle, &service, "ID-156"),
        (json!({ "trustDomain": "other.example", "trustBundleUri": own }), &bundle, &service, "ID-152"),
        (json!({ "trustBundleUri": own }), &bundle, &service, "ID-151"),
        (good(&own), br#"{"keys":[]}"#, &service, "ID-135"),
        (good(&own), b"<html>", &service, "makes no sense"),
        (good(&own), &bundle, &wrong_pin, "ID-161"),
        (good(&own), &bundle, &["--identity-url", &liar.web_url, "--ca", text(&stranger)], "certificate"),
        (good(&own), &bundle, &["--identity-url", &liar.web_url, "--ca", text(&anchor)], "certificate"),
        (good(&own), &bundle, &["--identity-url", "http://127.0.0.1:1"], "https"),
        (good(&own), &bundle, &[], "--identity-url"),
        (good(&own), &bundle, &["--bundle", "no-such-file"], "no-such-file"),
    ] {
        let (joined, said) = try_with(discovery, bundle, arguments);
        assert!(!joined && said.contains(words), "{arguments:?}: {words:?} is not in {said}");
    }
    // By its authority instead of a pin, and by the bundle's own address where there is no discovery.
    let authority = liar.write("web.pem", &liar.web_authority);
    let direct = ["--bundle", own.as_str(), "--ca", text(&authority)];
    let (joined, said) = try_with(Value::Null, &bundle, &direct);
    assert!(joined, "{said}");
}

#[test]
fn what_is_no_identity_of_a_device_is_refused_at_the_door() {
    let liar = Liar::start();
    let bundle = liar.write("bundle.json", liar.bundle_json());
    let refused = |words: &str| {
        let output = liar.install_with(&liar.url, &["--bundle", text(&bundle)]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{words:?} is not in {said}");
    };
    // A server's own certificate.
    let server = liar.svid.current();
    liar.write("svid.pem", server.chain_pem());
    liar.write("key.pem", server.key_pem());
    refused("ID-011");
    // A certificate with somebody else's key.
    liar.issue(now(), LIFETIME);
    liar.write("key.pem", server.key_pem());
    refused("issued together");
    // One that has expired.
    liar.issue(margrave_core::moment::Moment(now().0 - 7_200_000), LIFETIME);
    refused("expired at");
    std::fs::remove_file(liar.path("key.pem")).expect("it is there");
    refused("key.pem");
}

#[test]
fn a_device_moves_to_another_server_and_its_memory_of_versions_stays_behind() {
    let (old, new) = (Liar::start(), Liar::start_in("other.example"));
    let one = document(ONE, "one", "hello");
    old.say(&Story::honest(57, &[(ONE, &one)]));
    old.install();
    let agent = old.run_agent(&SIMULATED);
    wait_for("version 57 is installed", || old.is_installed(57).then_some(()));
    let since = old.status()["deployments"][0]["since"].clone();

    // Somebody else's server, the same device, the same data directory.
    new.issue(now(), LIFETIME);
    let bundle = new.write("bundle.json", new.bundle_json());
    let join = |replace: &[&str]| {
        let mut command = std::process::Command::new(crate::stage::program("margrave-agent"));
        command
            .args(["join", &new.url, "--svid"])
            .arg(new.path("svid.pem"))
            .arg("--key")
            .arg(new.path("key.pem"));
        command.args(["--bundle", text(&bundle)]).args(replace).arg("--data").arg(old.path("line-1"));
        let output = command.output().expect("our own program starts");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (joined, said) = join(&[]);
    assert!(!joined && said.contains("--replace"), "{said}");
    let (joined, said) = join(&["--replace"]);
    assert!(!joined && said.contains("running"), "{said}");
    drop(agent);
    let (joined, said) = join(&["--replace"]);
    assert!(joined, "{said}");

    new.say(&Story::honest(1, &[(ONE, &one)]));
    let _agent = old.run_agent(&SIMULATED);
    wait_for("version 1 of the new server is in force", || old.is_installed(1).then_some(()));
    assert_eq!(old.status()["deployments"][0]["since"], since, "nothing was restarted");
    let told = wait_for("the new server hears where it stands", || {
        let heard = new.heard();
        let report = heard.iter().find(|heard| heard.method == "POST")?;
        serde_json::from_slice::<Value>(&report.body).ok()
    });
    assert_eq!((&told["adoptedManifestVersion"], &told["status"]["state"]), (&1.into(), &"installed".into()));
    assert_eq!(new.heard()[0].method, "PUT", "capabilities come first");
    // From here on, this server's versions count.
    new.say(&Story::honest(1, &[]));
    wait_for("a version that comes twice is refused", || {
        old.trouble().contains("other content").then_some(())
    });
}
