//! Every rule of the standard that binds a server is proven by a test that bears its number.
//!
//! The rules are read where they lie, in the specification's digests beside the repository: of
//! `management-interface.md` the rules MI-G1 and MI-G2 whose side is the WFM's or both, of `identity.md` every rule, because
//! our server is verifier, principal and identity service at once. A test proves what it is named after:
//! `mi_g2_044_053_id_123_a_manifest_…` proves three rules. Ranges prove nothing, because nobody can see what is
//! meant to be in them.
//!
//! What is not named is in one of two tables here, or this fails: [`OF_CLIENTS`], rules of `identity.md` that bind
//! only the other end (tests of the agent may name them), and [`UNTESTED`], each with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::tidy::{files, root};

/// Rules that bind a client or a device supplier and not the server, with what they are about.
const OF_CLIENTS: &[(&str, &str)] = &[
    ("ID-101", "the URL that a client was given is routing only"),
    ("ID-102", "a client needs no list of servers"),
    ("ID-103", "a list of servers that the sandbox's client has"),
    ("ID-104", "a list of servers as an additional narrowing at the client"),
    ("ID-105", "how the sandbox's client uses connections"),
    ("ID-143", "a failed retrieval of the bundle; our server publishes its own and retrieves none"),
    ("ID-144", "the cache of a retrieved bundle"),
    ("ID-148", "when to retrieve the bundle after an outage"),
    ("ID-163", "a bundle that reaches a client out of band"),
    ("ID-167", "the order in which the sandbox's client looks for a bundle"),
    ("ID-187", "a client whose own SVID expired; the server renews its own at half of its life (ID-172)"),
    ("ID-188", "a bundle endpoint that does not answer"),
    ("ID-189", "a retrieved bundle that is rejected"),
    ("ID-201", "how a client reads the type of a problem"),
    ("ID-212", "authentication of every retrieval of the bundle"),
    ("ID-213", "a client whose retrievals are blocked"),
    ("ID-221", "what the device suite's mock server does"),
    ("ID-231", "a client whose bundle endpoint says 404"),
    ("ID-236", "a client's choice between its own SVID and a list of servers"),
    ("ID-240", "whether a client retries a 404"),
];

/// Rules that no test can prove, and why.
const UNTESTED: &[(&str, &str)] = &[
    ("MI-G1-001", "It says who implements which half; all the others say what that is."),
    (
        "MI-G1-005",
        "The port is the operator's choice by --signed-listen, as the other listeners' are; 443 needs privileges and may \
         be taken.",
    ),
    ("MI-G2-001", "It says who implements which half; all the others say what that is."),
    (
        "MI-G2-003",
        "The port is the operator's choice by --device-listen; the design fixes 8444 as the default because 443 needs \
         privileges and may be taken by a web server.",
    ),
    ("MI-G2-009", "It is optional; we only bound how many devices one client may report."),
    ("ID-001", "It defines words."),
    ("ID-004", "It says what the standard leaves open: issuance and renewal are ours to design."),
    ("ID-006", "It says how versions of the standard are numbered."),
    ("ID-042", "It describes what the sandbox issues; ours is proven under ID-030 to ID-036."),
    ("ID-055", "It says what the profile does not bind."),
    ("ID-122", "It is a duty of whoever operates proxies."),
    (
        "ID-177",
        "It describes a policy for whole namespaces, which we do not have: every client is accepted by itself.",
    ),
    ("ID-179", "It sets expectations of operators; what we promise is proven under ID-086 and ID-113."),
    ("ID-210", "It gives the reason for short lifetimes (ID-215) and for policy by client (ID-083)."),
    ("ID-217", "It is a duty of whoever sets the machine's clock; policy does not depend on it (ID-086)."),
    ("ID-218", "It lists findings that are rules of their own: ID-065, ID-144, ID-145 and ID-156."),
    ("ID-250", "It describes a proposal that is not adopted."),
];

/// A kind of rules, as its tests and as the digests spell it.
const KINDS: [(&str, &str); 6] =
    [("mi_g1", "MI-G1"), ("mi_g2", "MI-G2"), ("id", "ID"), ("amb", "AMB"), ("dm", "DM"), ("pk", "PK")];

/// The rules at the beginning of a test's name: kinds, each followed by numbers.
fn named(test: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut kind, mut rest) = (None, test);
    loop {
        if let Some((spelt, after)) = KINDS.iter().find_map(|(name, spelt)| {
            let after = rest.strip_prefix(name)?.strip_prefix('_')?;
            number(after).map(|_| (*spelt, after))
        }) {
            (kind, rest) = (Some(spelt), after);
        } else if let (Some(kind), Some((digits, after))) = (kind, number(rest)) {
            found.push(format!("{kind}-{digits}"));
            rest = after;
        } else {
            return found;
        }
    }
}

/// The number at the beginning of a text, as digests write it: two or three digits.
fn number(text: &str) -> Option<(&str, &str)> {
    let (digits, after) = text.split_once('_').unwrap_or((text, ""));
    let fits = matches!(digits.len(), 2 | 3) && digits.bytes().all(|byte| byte.is_ascii_digit());
    fits.then_some((digits, after))
}

/// Names of functions under `#[test]` or `#[tokio::test]`.
fn tests_of(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line != "#[test]" && !line.starts_with("#[tokio::test") {
            continue;
        }
        // Other attributes and comments may stand between.
        let signature = lines.by_ref().find_map(|line| {
            line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?.split(['(', '<']).next()
        });
        found.extend(signature);
    }
    found
}

/// The digests, which lie beside the repository and not in it. Missing locally, a test that needs them says so
/// and passes; in CI they must be there.
fn digest(name: &str) -> Option<String> {
    let folder =
        std::env::var_os("MARGRAVE_SPEC").map_or_else(|| root().join("../shared/spec"), PathBuf::from);
    let path = folder.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) => {
            let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!ci, "{} is missing ({error}); set MARGRAVE_SPEC to its directory", path.display());
            eprintln!("skipped: {} is not there; set MARGRAVE_SPEC to its directory", path.display());
            None
        }
    }
}

/// The rules that bind a server, with their text.
fn binding() -> Option<BTreeMap<String, String>> {
    let mut rules = BTreeMap::new();
    for line in digest("management-interface.md")?.lines().filter(|line| line.starts_with("| MI-G")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if matches!(cells[2], "W" | "B") {
            rules.insert(cells[1].to_owned(), line.to_owned());
        }
    }
    for line in digest("identity.md")?.lines() {
        let id = line.strip_prefix("- **").or_else(|| line.strip_prefix("| "));
        if let Some(id) = id.filter(|id| id.starts_with("ID-")) {
            let id: String = id.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            rules.insert(id, line.to_owned());
        }
    }
    // Fewer would mean that the digests are written otherwise than this reads them.
    assert!(rules.len() > 200, "only {} rules were found", rules.len());
    Some(rules)
}

#[test]
fn every_rule_that_binds_a_server_has_a_test_named_after_it() {
    let mut proven = BTreeSet::new();
    for (_, text) in files(&[".rs"]) {
        proven.extend(tests_of(&text).into_iter().flat_map(named));
    }
    let Some(rules) = binding() else { return };
    let excused: BTreeMap<&str, &str> = UNTESTED.iter().copied().collect();
    let of_clients: BTreeMap<&str, &str> = OF_CLIENTS.iter().copied().collect();
    assert_eq!(excused.len() + of_clients.len(), UNTESTED.len() + OF_CLIENTS.len(), "a rule is listed twice");

    let missing: Vec<&str> = rules
        .iter()
        .filter(|(rule, _)| {
            !proven.contains(*rule)
                && !excused.contains_key(rule.as_str())
                && !of_clients.contains_key(rule.as_str())
        })
        .map(|(_, text)| text.as_str())
        .collect();
    assert!(missing.is_empty(), "no test is named after:\n{}", missing.join("\n"));
    for rule in excused.keys().chain(of_clients.keys()) {
        assert!(rules.contains_key(*rule), "{rule} is listed here, but is no rule that binds a server");
    }
    let needless: Vec<_> = excused.keys().filter(|rule| proven.contains(**rule)).collect();
    assert!(needless.is_empty(), "a test is named after {needless:?}, so they need no excuse");
    for (rule, reason) in UNTESTED {
        assert!(
            reason.ends_with('.') && !of_clients.contains_key(rule),
            "{rule} needs one reason, in a sentence"
        );
    }
}

#[test]
fn no_test_is_named_after_a_range_of_rules() {
    for (path, text) in files(&[".rs"]) {
        for test in tests_of(&text).into_iter().filter(|test| !named(test).is_empty()) {
            let range = ["mi_g1", "mi_g2", "id"].iter().any(|kind| {
                test.split(&format!("_to_{kind}_")).nth(1).is_some_and(|after| number(after).is_some())
            });
            assert!(!range, "{}: {test} does not say which rules it proves", path.display());
        }
    }
}

#[test]
fn names_are_read_as_they_are_meant() {
    assert_eq!(named("mi_g2_044_053_id_123_a_manifest_of_404"), ["MI-G2-044", "MI-G2-053", "ID-123"]);
    assert_eq!(named("amb_13_mi_g1_064_x"), ["AMB-13", "MI-G1-064"]);
    assert_eq!(named("id_010_id_011_names_survive"), ["ID-010", "ID-011"]);
    for none in ["id_names", "a_id_010", "rfc_7240_a_poll", "an_404", "mi_g2_1_x", "id_0100"] {
        assert!(named(none).is_empty(), "{none}");
    }
    let text =
        "#[test]\n#[expect(x)]\nfn one() {}\n fn two() {}\n#[tokio::test(start_paused)]\nasync fn three(\n";
    assert_eq!(tests_of(text), ["one", "three"]);
}
