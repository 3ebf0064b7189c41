use margrave_core::package::ProfileKind;
use margrave_core::parameters::ParameterValue;

use super::*;

const PACKAGE: &str = include_str!("../../vectors/dm_160_package.yaml");
const BROKEN: &str = include_str!("../../vectors/dm_160_broken.yaml");

fn broken_by(from: &str, to: &str) -> Vec<Violation> {
    assert!(PACKAGE.contains(from), "{from:?} is not in the vector");
    read(PACKAGE.replacen(from, to, 1).as_bytes()).expect_err("the change breaks a rule")
}

/// One change to the valid vector breaks exactly one rule at one place.
#[track_caller]
fn check(from: &str, to: &str, place: &str, rule: &str) {
    let broken = broken_by(from, to);
    let found: Vec<_> = broken.iter().map(|violation| (violation.place.as_str(), violation.rule)).collect();
    assert_eq!(found, [(place, rule)], "{broken:#?}");
}

#[test]
fn dm_160_a_whole_description_becomes_a_package() {
    let package = read(PACKAGE.as_bytes()).unwrap();
    assert_eq!(package.id.as_str(), "acme-line-monitor");
    assert_eq!(package.version.as_str(), "2.1");
    assert_eq!(package.catalog.icon.as_deref(), Some("resources/icon.png"));
    assert_eq!(package.catalog.tags, ["monitoring", "no"]);
    let [small, plc] = package.profiles.as_slice() else { panic!("two profiles") };
    assert_eq!((small.kind, plc.kind), (ProfileKind::Compose, ProfileKind::Custom));
    assert_eq!(small.components[0].revision.as_str(), "1.4.0-rc.1_build.7");
    assert_eq!(small.components[0].extensions["x-acme-extensions"]["slot"], "07");
    assert_eq!(small.extensions["x-acme-extensions"]["rack"]["height"], 2);
    assert_eq!((small.components[0].wait, small.components[1].wait), (None, Some(false)));
    // The merge key brought the revision, the written repository won.
    assert_eq!(plc.components[0].revision.as_str(), "1.0.9");
    assert!(plc.components[0].repository.ends_with("/logic"));
    let constraints = small.constraints.as_ref().unwrap();
    assert_eq!(constraints.capacity.as_ref().unwrap().storage_bytes, Some(1 << 40));
    assert_eq!(constraints.as_written["capacityRequirements"]["memory"], "256Mi");
    let fixed = &package.parameters[&"fixed".parse().unwrap()];
    assert_eq!(fixed.default, Some(ParameterValue::Text("010".into())));
    assert!(package.check().is_empty());
}

#[test]
fn dm_043_only_compose_pointers_lose_the_env_prefix() {
    let package = read(PACKAGE.replace("pointer: site.id", "pointer: ENV.site").as_bytes()).unwrap();
    let targets = &package.parameters[&"siteId".parse().unwrap()].targets;
    assert_eq!((targets[0].pointer.as_str(), targets[1].pointer.as_str()), ("SITE_ID", "ENV.site"));
}

#[test]
fn one_defect_gives_one_violation_at_its_place() {
    check("apiVersion: v1", "apiVersion: v2", "/apiVersion", "DM-001");
    check("id: acme-line-monitor", "id: Acme", "/id", "DM-003");
    check("id: acme-line-monitor\n", "", "/id", "DM-003");
    check("name: Line Monitor", "label: x", "/metadata/name", "DM-010");
    check("version: \"2.1\"", "version: 2.1", "/metadata/version", "PK-016");
    check("version: \"2.1\"", "version: 2.1+x", "/metadata/version", "PK-016");
    check("      - name: Acme", "      - site: x", "/metadata/catalog/organization/0/name", "DM-010");
    check("type: compose", "type: docker", "/deploymentProfiles/0/type", "DM-020");
    check("id: plc", "id: small", "/deploymentProfiles/1/id", "DM-020");
    let renamed = broken_by("name: screen", "name: collector");
    assert_eq!(
        (renamed[0].place.as_str(), renamed[0].rule),
        ("/deploymentProfiles/0/components/1/name", "DM-036")
    );
    let properties = "/deploymentProfiles/0/components/0/properties";
    check(
        "oci://registry.acme.example:5000/line/collector",
        "quay.io/x",
        &format!("{properties}/repository"),
        "DM-030",
    );
    check("/line/collector", "/Line/collector", &format!("{properties}/repository"), "DM-030");
    check("1.4.0-rc.1_build.7", "v1.4.0", &format!("{properties}/revision"), "DM-031");
    check("timeout: 5m0s", "timeout: 5m", &format!("{properties}/timeout"), "DM-033");
    check("timeout: 5m0s", "wait: \"true\"", &format!("{properties}/wait"), "DM-034");
    check("timeout: 5m0s", "timeOut: 5m0s", &format!("{properties}/timeOut"), "DM-074");
    check("slot: \"07\"", "slot: 07", "/deploymentProfiles/0/components/0/x-acme-extensions/slot", "DM-200");
    check("components: [logic]", "components: [plc]", "/parameters/siteId/targets/1/components/0", "DM-040");
    check("pointer: INTERVAL", "pointer: the.interval", "/parameters/interval/targets/0/pointer", "DM-043");
    check("value: \"010\"", "value: 010", "/parameters/fixed/value", "DM-042");
    check("schema: ratio }", "schema: none }", "/configuration/sections/1/settings/0/schema", "DM-060");
    check("parameter: ratio", "parameter: rate", "/configuration/sections/1/settings/0/parameter", "DM-060");
    check("value: 30", "value: 3", "/parameters/interval/value", "DM-060");
    check("value: 30", "value: \"30\"", "/parameters/interval/value", "DM-060");
    check("name: ratio, dataType", "name: seconds, dataType", "/configuration/schema/2/name", "DM-060");
    check("^[A-Z]+-[0-9]+$", "(?<=a)b", "/configuration/schema/0", "DM-056");
    check(
        "memory: 256Mi",
        "memory: 256 Mi",
        "/deploymentProfiles/0/deviceConstraints/capacityRequirements/memory",
        "DM-133",
    );
    let expressions =
        "/deploymentProfiles/0/deviceConstraints/eligibilityRules/0/propertySelector/matchExpressions";
    check("key: /vendor", "key: vendor", &format!("{expressions}/0/key"), "DM-142");
    check("operator: ContainsAny", "operator: ContainersAny", &format!("{expressions}/2/operator"), "DM-148");
    let label = "- { key: acme.example/plc, operator: Exists }";
    let empty = "/deploymentProfiles/1/deviceConstraints/eligibilityRules/0/labelSelector/matchExpressions";
    check(label, "[]", empty, "DM-141");
    check(
        "        - labelSelector:\n            matchExpressions:\n              - { key: acme.example/plc, operator: Exists }",
        "        []",
        "/deploymentProfiles/1/deviceConstraints",
        "DM-024",
    );
}

#[test]
fn a_vendor_hears_every_broken_rule_at_once() {
    let broken = read(BROKEN.as_bytes()).unwrap_err();
    let shown: Vec<_> =
        broken.iter().map(|violation| format!("{} {}", violation.rule, violation.place)).collect();
    expect_test::expect_file!["../../vectors/dm_160_broken.expected"].assert_eq(&(shown.join("\n") + "\n"));
}

#[test]
fn a_flaw_of_one_part_does_not_hide_what_is_wrong_between_the_others() {
    let target = ("components: [logic]", "components: [plc]");
    let places = |from: &str, to: &str| -> Vec<String> {
        let text = PACKAGE.replacen(target.0, target.1, 1);
        assert!(text.contains(from));
        let broken = read(text.replacen(from, to, 1).as_bytes()).unwrap_err();
        broken.into_iter().map(|violation| violation.place).collect()
    };
    let stranger = "/parameters/siteId/targets/1/components/0";
    assert_eq!(places("^[A-Z]+-[0-9]+$", "(?<=a)b"), ["/configuration/schema/0", stranger]);
    // Which components there are is not known then.
    assert_eq!(
        places("memory: 256Mi", "memory: 256 Mi"),
        ["/deploymentProfiles/0/deviceConstraints/capacityRequirements/memory"]
    );
}

#[test]
fn a_violation_can_be_found_in_the_file() {
    let broken = read(BROKEN.as_bytes()).unwrap_err();
    let wait = broken.iter().find(|violation| violation.rule == "DM-034").unwrap();
    let (line, column) = locate(BROKEN.as_bytes(), wait).unwrap();
    let text = BROKEN.lines().nth(line as usize - 1).unwrap();
    assert_eq!(&text[column as usize - 1..], "wait: \"true\"");
    // What is missing is shown where it should have been.
    let missing = broken.iter().find(|violation| violation.place == "/parameters/bare/targets").unwrap();
    let (line, _) = locate(BROKEN.as_bytes(), missing).unwrap();
    assert_eq!(BROKEN.lines().nth(line as usize - 1).unwrap(), "  bare: {}");
}

#[test]
fn what_is_no_yaml_is_told_with_line_and_column() {
    let broken = read(b"apiVersion: v1\nid: a\nid: b\n").unwrap_err();
    assert_eq!(broken.len(), 1);
    assert!(broken[0].message.starts_with("line 3, column 1:"), "{}", broken[0]);
    assert!(read(b"- a list").is_err());
    assert!(read(b"").is_err());
}

/// The valid vector with `requiredResources` in place of the constraints of its first profile.
fn older(block: &str) -> String {
    let (head, rest) =
        PACKAGE.split_once("    deviceConstraints: &needs\n").expect("the vector has them there");
    let deeper = rest.split_inclusive('\n').take_while(|line| line.starts_with("     "));
    let end: usize = deeper.map(str::len).sum();
    format!("{head}    requiredResources: {block}\n{}", &rest[end..])
}

#[test]
fn dm_131_what_earlier_drafts_required_is_read_as_constraints() {
    let text = older(
        "{cpu: {cores: 1.5, architectures: [amd64, x86_64]}, memory: 1024Mi, storage: 10Gi, \
         peripherals: [{type: gpu, manufacturer: NVIDIA}], interfaces: [{type: ethernet}]}",
    );
    let package = read(text.as_bytes()).unwrap();
    let constraints = package.profiles[0].constraints.as_ref().unwrap();
    let capacity = constraints.capacity.as_ref().unwrap();
    assert_eq!((capacity.cores, capacity.memory_bytes), (Some(1.5), Some(1 << 30)));
    assert_eq!(capacity.architectures, ["amd64"]);
    assert_eq!(constraints.rules.len(), 1);
    assert_eq!(constraints.rules[0].property.as_ref().unwrap().len(), 2);
    // What is sent to devices says the same in today's words.
    let node = crate::tree::Node::from(&constraints.as_written);
    let mut findings = crate::tree::Findings::default();
    let again = constraints::read(&crate::tree::At::root(&node), profile::Source::Description, &mut findings);
    let again = again.unwrap();
    assert_eq!((&again.capacity, &again.rules), (&constraints.capacity, &constraints.rules));

    for (wrong, place) in [
        ("{memory: 1 Gi}", "memory"),
        ("{cpu: {architectures: [amd64]}}", "cpu/cores"),
        ("{peripherals: [{manufacturer: NVIDIA}]}", "peripherals/0/type"),
        ("{interfaces: [{type: ethernet, speed: 1}]}", "interfaces/0/speed"),
        ("{gpu: 1}", "gpu"),
        ("[]", ""),
    ] {
        let broken = read(older(wrong).as_bytes()).expect_err(wrong);
        let place = format!("/deploymentProfiles/0/requiredResources/{place}");
        assert_eq!(broken[0].place, place.trim_end_matches('/'), "{wrong}: {broken:#?}");
    }
    let both =
        PACKAGE.replacen("    deviceConstraints:", "    requiredResources: {}\n    deviceConstraints:", 1);
    let broken = read(both.as_bytes()).expect_err("both");
    assert_eq!(broken[0].place, "/deploymentProfiles/0/requiredResources");
}

#[test]
fn dm_005_what_nobody_reads_at_the_top_is_told_and_no_error() {
    let odd = format!("{PACKAGE}\nparamters: {{}}\n");
    assert!(read(odd.as_bytes()).is_ok());
    let told = unread(odd.as_bytes());
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].place.as_str(), told[0].rule), ("/paramters", "DM-005"));
    assert!(told[0].message.contains("known are apiVersion"), "{told:?}");
}
