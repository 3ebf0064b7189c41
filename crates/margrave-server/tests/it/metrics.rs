//! `/metrics`: read as strictly as any reader does, and compared with what its page promises.

use std::collections::{BTreeMap, BTreeSet};

use margrave_wire::operator::{PutDeployment, Targets};
use serde_json::json;

use crate::plant::{Plant, operator};
use crate::stock;

/// A family of the text format: its kind, its help, and its samples by name and labels.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    samples: BTreeMap<(String, Vec<(String, String)>), f64>,
}

/// Reads the text format, and takes nothing that its description does not allow.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n') && !text.contains('\r'));
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(is_name(name) && !help.is_empty(), "{line}");
            let help = help.to_owned();
            let before = families.insert(name.to_owned(), Family { help, ..Family::default() });
            assert!(before.is_none(), "{name} comes twice");
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, current, "the type stands below the help");
            let family = families.get_mut(name).unwrap();
            assert!(family.kind.is_empty() && family.samples.is_empty());
            assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
            family.kind = kind.to_owned();
        } else {
            let (name, labels, value) = sample(line);
            let family = families.get_mut(&current).unwrap();
            let suffix = name.strip_prefix(&current).unwrap_or_else(|| panic!("{line} is not of {current}"));
            match family.kind.as_str() {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
                _ => assert_eq!(suffix, "", "{line}"),
            }
            assert!(family.samples.insert((name, labels), value).is_none(), "{line} comes twice");
        }
    }
    for (name, family) in &families {
        assert_eq!(family.kind == "counter", name.ends_with("_total"), "{name}");
        assert!(!family.samples.is_empty(), "{name} has no samples");
        if family.kind == "histogram" {
            check_histogram(name, family);
        }
    }
    families
}

fn check_histogram(name: &str, family: &Family) {
    let one = |suffix: &str| family.samples[&(format!("{name}{suffix}"), Vec::new())];
    let bound = |labels: &[(String, String)]| match labels {
        [(le, bound)] if le == "le" && bound == "+Inf" => f64::INFINITY,
        [(le, bound)] if le == "le" => bound.parse().unwrap(),
        other => panic!("{name}: {other:?}"),
    };
    let buckets = family.samples.iter().filter(|((own, _), _)| own.ends_with("_bucket"));
    let mut buckets: Vec<(f64, f64)> = buckets.map(|((_, labels), count)| (bound(labels), *count)).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{name}: {buckets:?}");
    assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, one("_count")), "{name}");
    assert!(one("_sum") >= 0.0);
}

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

/// `name{label="value",…} value`
fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap();
            assert!(is_name(label), "{line}");
            let mut value = String::new();
            let mut chars = after.char_indices();
            rest = loop {
                match chars.next().unwrap() {
                    (_, '\\') => value.push(match chars.next().unwrap().1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        c => panic!("{line}: \\{c}"),
                    }),
                    (at, '"') => break &after[at + 1..],
                    (_, c) => value.push(c),
                }
            };
            labels.push((label.to_owned(), value));
            match rest.split_at(1) {
                (",", more) => rest = more,
                ("}", more) => break rest = more,
                _ => panic!("{line}"),
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap();
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

async fn scrape(plant: &Plant) -> BTreeMap<String, Family> {
    let bearer = format!("Bearer {}", plant.server.context().token);
    let mut line = plant.web().await;
    let reply = line.send("GET", "/metrics", &[("authorization", &bearer)], "").await.unwrap();
    assert_eq!(reply.is(200).header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    parse(std::str::from_utf8(&reply.body).unwrap())
}

fn value(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let labels: Vec<_> =
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let family = families.values().find(|family| family.samples.keys().any(|(own, _)| own == name));
    family.unwrap().samples[&(name.to_owned(), labels)]
}

#[tokio::test]
async fn numbers_follow_what_happens() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let press = plant.join("press.42").await;
    let mut line = press.line(&plant).await;
    let json = ("content-type", "application/json");
    let capabilities = stock::capabilities_body("press.42", 4);
    line.send("PUT", "/api/v1/capabilities/press.42", &[json], capabilities).await.unwrap().is(201);
    let before = scrape(&plant).await;
    let want = PutDeployment {
        package: "gate".to_owned(),
        version: None,
        profile: None,
        parameters: [("owner".to_owned(), json!("Ann"))].into(),
        targets: Targets { devices: vec!["press.42".to_owned()], ..Default::default() },
        rollback: None,
        revision: None,
        ..Default::default()
    };
    plant.server.fleet().put_deployment(&operator(), &"north".parse().unwrap(), want).await.unwrap();
    line.get("/api/v1/deployments").await.unwrap().is(200);
    let nobody = "0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11";
    let report = json!({"deploymentId": nobody, "adoptedManifestVersion": 1, "status": {"state": "installed"},
        "components": [{"name": "gate", "state": "installed"}]});
    line.send("POST", &format!("/api/v1/deployments/{nobody}/status"), &[json], report.to_string())
        .await
        .unwrap();
    let after = scrape(&plant).await;

    let grown =
        |name: &str, labels: &[(&str, &str)]| value(&after, name, labels) - value(&before, name, labels);
    assert_eq!(grown("margrave_polls_total", &[]), 1.0);
    assert_eq!(grown("margrave_manifests_total", &[]), 1.0);
    assert_eq!(grown("margrave_publish_seconds_count", &[]), 1.0);
    assert_eq!(grown("margrave_reports_total", &[("result", "refused")]), 1.0);
    assert_eq!(grown("margrave_deployments", &[]), 1.0);
    assert_eq!(grown("margrave_assignments", &[("state", "PENDING")]), 1.0);
    assert_eq!(value(&after, "margrave_devices", &[("condition", "pending")]), 1.0);
    assert!(grown("margrave_store_commit_seconds_count", &[]) >= 1.0);
    assert!(grown("margrave_uptime_seconds", &[]) > 0.0);
    let now = crate::plant::now().0 as f64 / 1000.0;
    for certificate in ["authority", "device", "web"] {
        let expires = value(&after, "margrave_certificate_expires_seconds", &[("certificate", certificate)]);
        assert!(expires > now, "{certificate}");
    }
    assert_eq!(value(&after, "margrave_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
}

#[tokio::test]
async fn nobody_reads_them_without_a_token() {
    let plant = Plant::new().await;
    for mut line in [plant.web().await, plant.local().await] {
        line.get("/metrics").await.unwrap().is_problem(401);
        let wrong = [("authorization", "Bearer wrong")];
        line.send("GET", "/metrics", &wrong, "").await.unwrap().is_problem(401);
        line.send("POST", "/metrics", &[], "").await.unwrap().is_problem(405);
    }
}

/// `docs/metrics.md` is a promise to whoever writes an alert.
#[tokio::test]
async fn the_page_about_metrics_has_each_and_no_other() {
    let plant = Plant::new().await;
    let found = scrape(&plant).await;
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut promised = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `margrave_")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(|cell| cell.trim()).collect();
        let [name, kind, labels, help] = cells[..] else { panic!("{line}") };
        let labels: BTreeSet<String> = labels
            .split(',')
            .map(|label| label.trim().trim_matches('`').to_owned())
            .filter(|l| !l.is_empty())
            .collect();
        promised.insert(name.trim_matches('`').to_owned(), (kind.to_owned(), labels, help.to_owned()));
    }
    let shown = found.into_iter().map(|(name, family)| {
        let labels =
            family.samples.keys().flat_map(|(_, labels)| labels.iter().map(|(label, _)| label.clone()));
        let labels: BTreeSet<String> = labels.filter(|label| label != "le").collect();
        (name, (family.kind, labels, family.help))
    });
    assert_eq!(shown.collect::<BTreeMap<_, _>>(), promised);
}
