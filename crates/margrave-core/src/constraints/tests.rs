use std::sync::Arc;

use super::*;
use crate::capabilities::{Cpu, Hosting};
use crate::package::{Extensions, ProfileKind};
use serde_json::json;

#[test]
fn dm_133_mi_g2_176_required_amounts_are_read_strictly() {
    let memory = |text| Quantity::required(text, MEMORY_UNITS).map(|q| q.0);
    assert_eq!(memory("1024Mi"), Some(1 << 30));
    assert_eq!(memory("1Ki"), Some(1024));
    for bad in ["", "Gi", "1 Gi", "1.5Gi", "1Ti", "1G", "1gi", "-1Gi", "1Gi ", "١Gi"] {
        assert_eq!(memory(bad), None, "{bad}");
    }
    let storage = |text| Quantity::required(text, STORAGE_UNITS).map(|q| q.0);
    assert_eq!(storage("1Ei"), Some(1 << 60));
    assert_eq!(storage("99999999999999999999999Ei"), Some(u64::MAX));
}

#[test]
fn amb_10_reported_amounts_may_have_blanks_and_decimals() {
    let reported = |text| Quantity::reported(text).map(|q| q.0);
    assert_eq!(reported("59 Gi"), Some(59 << 30));
    assert_eq!(reported(" 1.5Gi "), Some(3 << 29));
    assert_eq!(reported("1862  Gi"), Some(1862 << 30));
    for bad in ["", "Gi", "many Gi", "1..5Gi", "1.Gi", ".5Gi", "1e3Gi", "5 GB", "-1Gi"] {
        assert_eq!(reported(bad), None, "{bad}");
    }
    assert_eq!(Quantity(3 << 29).to_string(), "1536Mi");
    assert_eq!(Quantity(59 << 30).to_string(), "59Gi");
    assert_eq!(Quantity(1500).to_string(), "1Ki");
}

fn device() -> Capabilities {
    let properties = json!({
        "id": "edge-1", "vendor": "Acme", "serialNumber": "4", "weight": 4, "hot": false, "nothing": null,
        "cpus": [{"cores": 2, "architecture": "arm64"}, {"cores": 8}],
        "peripherals": [{"type": "gpu", "manufacturer": "NVIDIA"}, {"type": "display"}],
        "supportedRuntimes": ["oci"], "sizes": [1, 2.5], "flags": [true], "mixed": [1, "a"], "empty": [],
        "a/b": {"c~d": 7},
    });
    let labels = json!({ "acme.example/line": "B", "slots": [1, 2], "ready": true });
    let Value::Object(properties) = properties else { unreachable!() };
    let Value::Object(labels) = labels else { unreachable!() };
    Capabilities {
        device: "edge-1".parse().unwrap(),
        vendor: "Acme".into(),
        model_number: "M".into(),
        serial_number: "4".into(),
        hosting: Some(Hosting {
            cpus: vec![
                Cpu { cores: 2.0, architecture: Some("arm64".into()) },
                Cpu { cores: 8.0, architecture: None },
            ],
            memory_bytes: Some(2 << 30),
            storage_bytes: None,
            deployment_types: vec![ProfileKind::Compose],
        }),
        properties,
        labels: labels.into_iter().collect(),
        simulated: false,
        agent_version: None,
        overrides: vec![],
        holds: vec![],
        looked: 0,
        blind: None,
    }
}

fn expression(key: &str, operator: Operator) -> Expression {
    Expression { key: key.into(), operator }
}

fn holds(key: &str, operator: Operator) -> bool {
    let rule = Rule { property: Some(vec![expression(key, operator)]), label: None };
    let constraints = Constraints { capacity: None, rules: vec![rule], as_written: Value::Null };
    eligible(&constraints, &device().properties, &device().labels).is_ok()
}

fn values(value: Value) -> Vec<Value> {
    value.as_array().unwrap().clone()
}

#[test]
fn dm_144_mi_g2_178_179_in_and_not_in_compare_exactly_and_never_coerce() {
    use Operator::{In, NotIn};
    for (key, list, is_in, is_not_in) in [
        ("/vendor", json!(["Other", "Acme"]), true, false),
        ("/vendor", json!(["acme"]), false, true),
        ("/serialNumber", json!([4]), false, true),
        ("/weight", json!(["4"]), false, true),
        ("/weight", json!([4.0]), true, false),
        ("/hot", json!([false]), true, false),
        ("/hot", json!(["false"]), false, true),
        ("/supportedRuntimes", json!(["oci", "custom"]), true, false),
        ("/supportedRuntimes", json!(["custom"]), false, true),
        ("/sizes", json!([2.5]), true, false),
        ("/empty", json!(["x"]), false, true),
        // Absent, or of a type that no comparison takes: both are false (DM-143, DM-146).
        ("/absent", json!(["x"]), false, false),
        ("/cpus", json!(["x"]), false, false),
        ("/nothing", json!(["x"]), false, false),
        ("/flags", json!([true]), false, false),
        ("/mixed", json!(["a"]), false, false),
    ] {
        assert_eq!(holds(key, In(values(list.clone()))), is_in, "{key} In {list}");
        assert_eq!(holds(key, NotIn(values(list.clone()))), is_not_in, "{key} NotIn {list}");
    }
}

#[test]
fn dm_143_mi_g2_178_179_presence_and_order() {
    use Operator::*;
    for (key, exists) in [("/vendor", true), ("/cpus", true), ("/nothing", true), ("/a~1b/c~0d", true)] {
        assert_eq!((holds(key, Exists), holds(key, DoesNotExist)), (exists, !exists), "{key}");
    }
    for key in ["/absent", "/vendor/x", "/cpus/9", "/cpus/-", "/cpus/01", "vendor", ""] {
        assert_eq!((holds(key, Exists), holds(key, DoesNotExist)), (false, true), "{key}");
    }
    assert!(holds("/cpus/0/cores", Gt(1.5)) && !holds("/cpus/0/cores", Gt(2.0)));
    assert!(holds("/cpus/0/cores", Lt(2.5)) && !holds("/cpus/0/cores", Lt(2.0)));
    // Text is no number, whatever it looks like (DM-147).
    assert!(!holds("/serialNumber", Gt(1.0)) && !holds("/absent", Lt(1.0)) && !holds("/sizes", Gt(0.0)));
}

#[test]
fn dm_145_149_mi_g2_179_item_selectors_look_at_one_element_at_a_time() {
    use Operator::*;
    let is = |key: &str, value: &str| expression(key, In(vec![json!(value)]));
    let nvidia = vec![is("/type", "gpu"), is("/manufacturer", "NVIDIA")];
    assert!(holds("/peripherals", ContainsAll(nvidia)));
    let split = vec![is("/type", "display"), is("/manufacturer", "NVIDIA")];
    assert!(!holds("/peripherals", ContainsAll(split.clone())));
    assert!(holds("/peripherals", ContainsAny(split)));
    assert!(!holds("/peripherals", ContainsAny(vec![is("/type", "camera")])));
    assert!(!holds("/vendor", ContainsAll(vec![expression("/x", DoesNotExist)])));
    assert!(!holds("/empty", ContainsAll(vec![expression("/x", DoesNotExist)])));
}

#[test]
fn dm_140_mi_g2_177_rules_are_alternatives_and_selectors_are_not() {
    let device = device();
    let yes = || Some(vec![expression("/vendor", Operator::Exists)]);
    let no = || Some(vec![expression("/absent", Operator::Exists)]);
    let line = || Some(vec![expression("acme.example/line", Operator::In(vec![json!("B")]))]);
    let other = || Some(vec![expression("/acme.example/line", Operator::Exists)]);
    let rule = |property, label| Rule { property, label };
    for (rules, wanted) in [
        (vec![], true),
        (vec![rule(None, None)], true),
        (vec![rule(no(), None), rule(yes(), line())], true),
        (vec![rule(yes(), other())], false),
        (vec![rule(no(), line())], false),
        (vec![rule(no(), None), rule(None, other())], false),
    ] {
        let constraints = Constraints { capacity: None, rules, as_written: Value::Null };
        let verdict = eligible(&constraints, &device.properties, &device.labels);
        assert_eq!(verdict.is_ok(), wanted, "{constraints:?}");
    }
}

/// On a device where nothing else is.
fn alone(profile: &Profile, device: &Capabilities) -> Result<(), Vec<Misfit>> {
    fits(profile, &Need::of(profile, Claims::default()), device, Room::default())
}

fn profile(kind: ProfileKind, capacity: Capacity, rules: Vec<Rule>) -> Profile {
    Profile {
        id: "p".parse().unwrap(),
        kind,
        description: None,
        components: vec![],
        constraints: Some(Constraints { capacity: Some(capacity), rules, as_written: Value::Null }),
        extensions: Extensions::new(),
    }
}

#[test]
fn dm_125_131_mi_g2_180_every_reason_is_told_in_order() {
    let capacity = Capacity {
        cores: Some(4.0),
        architectures: vec!["amd64".into()],
        memory_bytes: Some(4 << 30),
        storage_bytes: Some(10 << 30),
    };
    let rule =
        Rule { property: Some(vec![expression("/vendor", Operator::In(vec![json!("Other")]))]), label: None };
    let misfits = alone(&profile(ProfileKind::Helm, capacity, vec![rule]), &device()).unwrap_err();
    let told: Vec<_> = misfits.iter().map(|m| format!("{}: {m}", m.code.as_str())).collect();
    expect_test::expect![[r#"
        deployment-type: needs a device that runs helm, runs compose
        cpu: needs 4 cores on amd64, has 2 on arm64 and 8
        memory: needs 4Gi of memory, has 2Gi
        storage: needs 10Gi of storage, and the device reports no amount that can be read
        rules: needs a device where /vendor is "Other", but it is "Acme""#]]
    .assert_eq(&told.join("\n"));
}

#[test]
fn dm_131_132_mi_g2_136_one_cpu_entry_has_to_do_alone() {
    let check = |cores: f64, architectures: &[&str]| {
        let architectures = architectures.iter().map(|a| (*a).to_owned()).collect();
        let capacity = Capacity { cores: Some(cores), architectures, ..Capacity::default() };
        alone(&profile(ProfileKind::Compose, capacity, vec![]), &device()).is_ok()
    };
    assert!(check(8.0, &[]) && !check(8.5, &[]), "10 cores in two entries are not 10 cores");
    assert!(check(2.0, &["amd64", "arm64"]) && !check(3.0, &["arm64"]));
    let mut gateway = device();
    gateway.hosting = None;
    let misfits = alone(&profile(ProfileKind::Compose, Capacity::default(), vec![]), &gateway).unwrap_err();
    assert_eq!(misfits[0].code, MisfitCode::NotHosting);
}

#[test]
fn dm_142_pointers_are_told_from_other_texts() {
    for good in ["/vendor", "/a~1b/~0", "/"] {
        assert!(is_pointer(good), "{good}");
    }
    for bad in ["", "vendor", "/a~", "/a~2"] {
        assert!(!is_pointer(bad), "{bad}");
    }
}

/// "2 cores, 1Gi, 4Gi": what a deployment takes of processors, memory and storage; "-" for nothing.
fn need(cores: &str, memory: &str, storage: &str) -> Need {
    let amount = |text: &str| Quantity::required(text, STORAGE_UNITS).map(|quantity| quantity.0);
    let (number, architectures) = cores.split_once('@').unwrap_or((cores, ""));
    let capacity = Capacity {
        cores: number.parse().ok(),
        architectures: architectures.split('|').filter(|text| !text.is_empty()).map(str::to_owned).collect(),
        memory_bytes: amount(memory),
        storage_bytes: amount(storage),
    };
    Need { capacity, claims: Claims::default() }
}

/// Whether `wanted` fits beside `others` on a machine of 4 cores, 4Gi and 10Gi; `own` is what it has there.
fn check_room(wanted: Need, own: Option<Need>, others: &[(&str, Need)], expected: expect_test::Expect) {
    let mut device = device();
    device.hosting = Some(Hosting {
        cpus: vec![Cpu { cores: 4.0, architecture: Some("amd64".into()) }],
        memory_bytes: Some(4 << 30),
        storage_bytes: Some(10 << 30),
        deployment_types: vec![ProfileKind::Compose],
    });
    let promise =
        |(to, need): &(&str, Need)| Promise { to: to.parse().unwrap(), need: Arc::new(need.clone()) };
    let promised: Vec<Promise> = others.iter().map(promise).collect();
    let room = Room { promised: &promised, own: own.as_ref() };
    let profile = profile(ProfileKind::Compose, wanted.capacity.clone(), vec![]);
    let told = match fits(&profile, &wanted, &device, room) {
        Ok(()) => "fits".to_owned(),
        Err(misfits) => misfits
            .iter()
            .map(|misfit| format!("{}: {misfit}", misfit.code.as_str()))
            .collect::<Vec<_>>()
            .join("\n"),
    };
    expected.assert_eq(&told);
}

#[test]
fn dm_135_what_is_promised_to_others_is_not_there_for_a_third() {
    let others = [("a", need("1", "2Gi", "-")), ("b", need("2.5", "1Gi", "9Gi"))];
    check_room(need("0.5", "1Gi", "1Gi"), None, &others, expect_test::expect!["fits"]);
    check_room(need("-", "-", "-"), None, &others, expect_test::expect!["fits"]);
    check_room(
        need("1", "1536Mi", "2Gi"),
        None,
        &others,
        expect_test::expect![[r#"
            cpu: needs 1 core, has 4 on amd64, of which 3.5 is promised to a (1) and b (2.5)
            memory: needs 1536Mi of memory, has 4Gi, of which 3Gi is promised to a (2Gi) and b (1Gi)
            storage: needs 2Gi of storage, has 10Gi, of which 9Gi is promised to b (9Gi)"#]],
    );
    // What it lacks even alone is told without the others.
    check_room(
        need("-", "5Gi", "-"),
        None,
        &others,
        expect_test::expect!["memory: needs 5Gi of memory, has 4Gi"],
    );
    let many: Vec<(String, Need)> = (0..7).map(|n| (format!("d{n}"), need("-", "1Gi", "-"))).collect();
    let many: Vec<(&str, Need)> = many.iter().map(|(name, need)| (name.as_str(), need.clone())).collect();
    check_room(
        need("-", "1Ki", "-"),
        None,
        &many,
        expect_test::expect![
            "memory: needs 1Ki of memory, has 4Gi, of which 7Gi is promised to d0 (1Gi), d1 (1Gi), d2 (1Gi), d3 (1Gi), d4 (1Gi) and 2 more"
        ],
    );
}

#[test]
fn dm_135_a_deployment_keeps_what_it_has_and_gets_no_more_than_is_left() {
    // Somebody forced b upon a device that had no room for it.
    let others = [("b", need("4", "4Gi", "10Gi"))];
    let own = || Some(need("2", "2Gi", "2Gi"));
    check_room(need("2", "2Gi", "1Gi"), own(), &others, expect_test::expect!["fits"]);
    check_room(
        need("3", "3Gi", "1Gi"),
        own(),
        &others,
        expect_test::expect![[r#"
            cpu: needs 3 cores, has 4 on amd64, of which 4 is promised to b (4)
            memory: needs 3Gi of memory, has 4Gi, of which 4Gi is promised to b (4Gi)"#]],
    );
}

#[test]
fn dm_131_132_135_each_promise_is_kept_by_one_processor_alone() {
    let cpus = || {
        let cpu = |cores, architecture: &str| Cpu { cores, architecture: Some(architecture.into()) };
        vec![cpu(8.0, "amd64"), cpu(2.0, "arm64")]
    };
    let check = |wanted: &str, others: &[&str]| {
        let mut device = device();
        device.hosting.as_mut().unwrap().cpus = cpus();
        let promised: Vec<Promise> = others
            .iter()
            .map(|cores| Promise { to: "other".parse().unwrap(), need: Arc::new(need(cores, "-", "-")) })
            .collect();
        let wanted = need(wanted, "-", "-");
        let profile = profile(ProfileKind::Compose, wanted.capacity.clone(), vec![]);
        fits(&profile, &wanted, &device, Room { promised: &promised, own: None }).is_ok()
    };
    assert!(check("8", &["2"]), "two cores of any kind go to the small one");
    assert!(check("2@arm64", &["2"]), "unless somebody needs just that one");
    assert!(!check("2@arm64", &["1@arm64"]));
    assert!(!check("7", &["2@amd64"]) && check("6", &["2@amd64"]));
    assert!(!check("4", &["5", "1"]), "3 and 1 left are not 4");
    assert!(check("0.1", &["0.1", "7.7", "0.1", "2"]), "decimals add up");
    assert!(!check("0.1", &["8", "2"]) && check("0", &["8", "2"]));
    assert!(check("1", &["100"]), "what found no place takes none");
}

#[test]
fn two_deployments_cannot_have_one_port_or_write_to_one_volume() {
    let claims = |ports: &[&str], volumes: &[&str]| {
        let port = |text: &&str| {
            let (number, rest) = text.split_once('/').unwrap();
            let (protocol, address) = rest.split_once('@').unwrap_or((rest, ""));
            let protocol = if protocol == "udp" { Protocol::Udp } else { Protocol::Tcp };
            Port { number: number.parse().unwrap(), protocol, address: address.parse().ok() }
        };
        let volumes = volumes.iter().map(|volume| (*volume).to_owned()).collect();
        let claims = Claims { ports: ports.iter().map(port).collect(), volumes };
        Need { capacity: Capacity::default(), claims }
    };
    let others = [("a", claims(&["80/tcp", "53/udp@10.0.0.1", "443/tcp@0.0.0.0"], &["shared", "/srv/data"]))];
    let free = claims(&["80/udp", "53/tcp", "53/udp@10.0.0.2", "8080/tcp"], &["/srv/other"]);
    check_room(free, None, &others, expect_test::expect!["fits"]);
    let taken = claims(&["80/tcp", "53/udp", "443/tcp@127.0.0.1"], &["shared", "/srv/data"]);
    check_room(
        taken.clone(),
        None,
        &others,
        expect_test::expect![[r#"
            port: wants port 53/udp, and a has 53/udp of 10.0.0.1 there
            port: wants port 80/tcp, which a has there
            port: wants port 443/tcp of 127.0.0.1, and a has 443/tcp of 0.0.0.0 there
            volume: wants to write to the volume /srv/data, to which a writes there
            volume: wants to write to the volume shared, to which a writes there"#]],
    );
    check_room(taken.clone(), Some(taken), &others, expect_test::expect!["fits"]);
}

#[test]
fn what_is_taken_before_and_after_a_change_is_the_lesser_of_both_and_meanwhile_the_greater() {
    let before = need("2", "2Gi", "-");
    let after = need("1@amd64", "3Gi", "1Gi");
    assert_eq!(before.least(&after), need("1@amd64", "2Gi", "-"));
    assert_eq!(before.most(&after), need("2@amd64", "3Gi", "1Gi"));
    assert_eq!(after.most(&need("-", "-", "-")).capacity.cores, Some(1.0));
    assert!(before.exceeds(&after) && after.exceeds(&before) && !before.exceeds(&before));
    assert!(need("-", "-", "-").is_nothing() && !before.is_nothing());
}
