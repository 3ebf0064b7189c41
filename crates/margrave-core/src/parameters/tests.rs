use super::*;
use crate::package::{Catalog, Component, Extensions, ProfileKind, Revision};
use crate::secret::Reference;

use ParameterValue::{Boolean, Double, Integer, List, Text};

fn schema(data_type: &str) -> Schema {
    Schema {
        name: "s".into(),
        data_type: DataType::parse(data_type).unwrap(),
        allow_empty: false,
        length_min: None,
        length_max: None,
        regex: None,
        value_min: None,
        value_max: None,
        precision_min: None,
        precision_max: None,
        options: None,
        multiselect: false,
    }
}

fn text(value: &str) -> ParameterValue {
    Text(value.into())
}

#[test]
fn dm_051_a_value_has_the_type_of_its_schema() {
    let all = [text("a"), Integer(1), Double(1.5), Boolean(true)];
    for (data_type, fitting) in
        [("string", vec![0]), ("integer", vec![1]), ("double", vec![1, 2]), ("boolean", vec![3])]
    {
        let array = format!("array[{data_type}]");
        for (at, value) in all.iter().enumerate() {
            let fits = fitting.contains(&at);
            assert_eq!(schema(data_type).check(value).is_ok(), fits, "{data_type} {value:?}");
            assert_eq!(schema(&array).check(&List(vec![value.clone()])).is_ok(), fits, "{array} {value:?}");
            assert!(schema(&array).check(value).is_err());
            assert!(schema(data_type).check(&List(vec![value.clone()])).is_err());
        }
    }
    assert_eq!(DataType::parse("text"), None);
    for (name, data_type) in DataType::ALL {
        assert_eq!((DataType::parse(name), data_type.as_str()), (Some(data_type), name));
    }
    let hint = schema("integer").check(&text("120")).unwrap_err();
    assert!(hint.contains("without quotes"), "{hint}");
    let hint = schema("string").check(&Integer(120)).unwrap_err();
    assert!(hint.contains("in quotes"), "{hint}");
}

#[test]
fn dm_052_dm_053_an_empty_value_skips_the_rules_where_it_is_allowed() {
    let strict = Schema { length_min: Some(5), ..schema("string") };
    let optional = Schema { allow_empty: true, ..strict.clone() };
    assert!(strict.check(&text("")).is_err());
    assert!(optional.check(&text("")).is_ok());
    assert!(optional.check(&text("abcd")).is_err());
    assert!(optional.check(&text("abcde")).is_ok());
    let list = Schema { allow_empty: true, ..schema("array[integer]") };
    assert!(list.check(&List(vec![])).is_ok());
    assert!(schema("array[integer]").check(&List(vec![])).is_err());
}

#[test]
fn dm_058_bounds_are_inclusive_and_lengths_count_characters() {
    let lengths = Schema { length_min: Some(2), length_max: Some(3), ..schema("string") };
    for (value, fits) in [("é", false), ("éé", true), ("ééé", true), ("éééé", false)] {
        assert_eq!(lengths.check(&text(value)).is_ok(), fits, "{value}");
    }
    let range = Schema { value_min: Some(30.0), value_max: Some(360.0), ..schema("integer") };
    for (value, fits) in [(29, false), (30, true), (360, true), (361, false)] {
        assert_eq!(range.check(&Integer(value)).is_ok(), fits, "{value}");
    }
}

#[test]
fn dm_056_patterns_are_searched_for_and_cost_little() {
    let email = Schema { regex: Some(".*@[a-z0-9.-]*".into()), ..schema("string") };
    assert!(email.check(&text("someone@somewhere.com")).is_ok());
    assert!(email.check(&text("someone")).is_err());
    // The standard's own pattern for a URL.
    let pattern =
        r"^(http(s):\/\/.)[-a-zA-Z0-9@:%._\+~#=]{2,256}\.[a-z]{2,6}\b([-a-zA-Z0-9@:%_\+.~#?&//=]*)$";
    let url = Schema { regex: Some(pattern.into()), ..schema("string") };
    assert!(url.defects().is_empty());
    assert!(url.check(&text("https://123-abc.com")).is_ok());
    assert!(url.check(&text("ftp://123-abc.com")).is_err());
    // Takes for ever in a backtracking engine.
    let evil = Schema { regex: Some("^(a+)+$".into()), ..schema("string") };
    assert!(evil.check(&text(&format!("{}!", "a".repeat(50_000)))).is_err());
    for bad in ["(", "(?=x)", r"\1", &"a".repeat(2_000), "(a{1000}){1000}"] {
        let defects = Schema { regex: Some(bad.into()), ..schema("string") }.defects();
        assert_eq!(defects.iter().map(|(rule, _)| *rule).collect::<Vec<_>>(), ["DM-056"], "{bad}");
    }
}

#[test]
fn dm_057_precision_counts_decimal_places() {
    let cpu = Schema { value_min: Some(0.5), precision_max: Some(1), ..schema("double") };
    for (value, fits) in [(Double(0.5), true), (Double(1.25), false), (Integer(4), true), (Double(4.0), true)]
    {
        assert_eq!(cpu.check(&value).is_ok(), fits, "{value}");
    }
    let padded = Schema { precision_min: Some(2), ..schema("double") };
    assert!(padded.check(&Integer(3)).is_ok());
    assert_eq!(padded.padded(Integer(3)), text("3.00"));
    assert_eq!(padded.padded(Double(3.5)), text("3.50"));
    assert_eq!(padded.padded(Double(3.125)), Double(3.125));
}

#[test]
fn dm_055_a_choice_is_one_of_the_options() {
    let options = Some(vec!["1".to_owned(), "2".to_owned()]);
    let one = Schema { options: options.clone(), ..schema("integer") };
    assert!(one.check(&Integer(2)).is_ok());
    assert!(one.check(&Integer(3)).is_err());
    assert!(one.check(&text("2")).is_err());
    let many = Schema { multiselect: true, ..one };
    assert!(many.check(&List(vec![Integer(1), Integer(2)])).is_ok());
    assert!(many.check(&List(vec![Integer(1), Integer(3)])).is_err());
    assert!(many.check(&Integer(1)).is_err());
    let wrong = Schema { options, ..schema("boolean") };
    assert_eq!(wrong.defects().len(), 2);
    assert_eq!(Schema { options: Some(vec![]), ..schema("string") }.defects()[0].0, "DM-055");
}

#[test]
fn an_answer_typed_by_a_person_is_read_by_its_schema() {
    let read = |data_type: &str, given: &str| ParameterValue::from_text(&schema(data_type), given);
    assert_eq!(read("string", "120"), Ok(text("120")));
    assert_eq!(read("string", " a "), Ok(text(" a ")));
    assert_eq!(read("integer", " 120 "), Ok(Integer(120)));
    assert_eq!(read("double", "4"), Ok(Double(4.0)));
    assert_eq!(read("boolean", "true"), Ok(Boolean(true)));
    for (data_type, bad) in
        [("integer", "4.5"), ("integer", ""), ("double", "inf"), ("double", "NaN"), ("boolean", "yes")]
    {
        assert!(read(data_type, bad).is_err(), "{data_type} {bad}");
    }
    let list = Ok(List(vec![Integer(1), Integer(2)]));
    assert_eq!(read("array[integer]", "1, 2"), list);
    assert_eq!(read("array[integer]", "1\n2\n"), list);
    assert_eq!(read("array[integer]", "[1,2]"), list);
    assert_eq!(read("array[string]", "a"), Ok(List(vec![text("a")])));
    assert!(read("array[integer]", "[1,").is_err());
    let optional = Schema { allow_empty: true, ..schema("integer") };
    assert_eq!(ParameterValue::from_text(&optional, ""), Ok(text("")));
}

#[test]
fn dm_191_lists_become_json_text() {
    assert_eq!(List(vec![text("a"), Integer(1), Boolean(true)]).to_string(), r#"["a",1,true]"#);
    assert_eq!(Double(4.0).to_string(), "4");
    assert_eq!(Double(0.1).to_string(), "0.1");
    assert_eq!(Double(1e300).to_string(), "1e300");
    assert!(Integer(4).same_as(&Double(4.0)) && !Integer(4).same_as(&List(vec![Integer(4)])));
}

fn name(text: &str) -> ParameterName {
    ParameterName::parse(text).unwrap()
}

fn package() -> Package {
    let component = |name: &str| Component {
        name: name.parse().unwrap(),
        repository: "oci://r.example/a".into(),
        revision: Revision::parse("1.0.0").unwrap(),
        wait: None,
        timeout: None,
        extensions: Extensions::new(),
    };
    let profile = |id: &str, kind, components| Profile {
        id: id.parse().unwrap(),
        kind,
        description: None,
        components,
        constraints: None,
        extensions: Extensions::new(),
    };
    let target = |pointer: &str, components: &[&str]| Target {
        pointer: pointer.into(),
        components: components.iter().map(|c| c.parse().unwrap()).collect(),
    };
    let parameter = |default, targets| Parameter { default, targets };
    let setting = |parameter: &str, schema: &str, immutable| Setting {
        parameter: name(parameter),
        name: parameter.into(),
        description: None,
        immutable,
        schema: schema.into(),
    };
    let named = |name: &str, schema: Schema| (name.to_owned(), Schema { name: name.into(), ..schema });
    Package {
        id: "app".parse().unwrap(),
        version: "1.0".parse().unwrap(),
        name: "App".into(),
        description: None,
        catalog: Catalog::default(),
        profiles: vec![
            profile("c", ProfileKind::Compose, vec![component("web"), component("db")]),
            profile("h", ProfileKind::Helm, vec![component("chart")]),
        ],
        parameters: BTreeMap::from([
            (name("site"), parameter(None, vec![target("SITE", &["web", "db"]), target("site", &["chart"])])),
            (name("note"), parameter(None, vec![target("NOTE", &["web"])])),
            (name("poll"), parameter(Some(Integer(30)), vec![target("POLL", &["db", "chart"])])),
            (name("limit"), parameter(None, vec![target("limits.cpu", &["chart"])])),
            (name("fixed"), parameter(Some(text("x")), vec![target("FIXED", &["web"])])),
        ]),
        sections: vec![Section {
            name: "General".into(),
            settings: vec![
                setting("site", "required", true),
                setting("note", "optional", false),
                setting("poll", "number", true),
                setting("limit", "number", false),
            ],
        }],
        schemas: BTreeMap::from([
            named("required", schema("string")),
            named("optional", Schema { allow_empty: true, ..schema("string") }),
            named("number", Schema { value_min: Some(5.0), ..schema("integer") }),
        ]),
    }
}

fn answers(given: &[(&str, ParameterValue)]) -> Answers {
    given.iter().map(|(parameter, value)| (name(parameter), value.clone().into())).collect()
}

#[track_caller]
fn refused(given: &[(&str, ParameterValue)], previous: Option<&Answers>, wanted: &[(&str, &str)]) {
    let package = package();
    let broken = resolve(
        &package,
        &package.profiles[0],
        &answers(given),
        previous.map(held).as_ref(),
        &Secrets::default(),
    )
    .unwrap_err();
    let found: Vec<_> = broken.iter().map(|violation| (violation.place.as_str(), violation.rule)).collect();
    assert_eq!(found, wanted, "{broken:#?}");
}

#[test]
fn dm_162_165_mi_g2_181_answers_override_defaults_and_reach_only_this_profile() {
    let package = package();
    let given = answers(&[("site", text("S-1"))]);
    let resolved = resolve(&package, &package.profiles[0], &given, None, &Secrets::default()).unwrap();
    let shown: Vec<String> = resolved
        .iter()
        .map(|parameter| {
            let to = |target: &Target| format!("{}@{}", target.pointer, target.components.len());
            let targets: Vec<_> = parameter.targets.iter().map(to).collect();
            format!("{}={} {}", parameter.name, parameter.value, targets.join(" "))
        })
        .collect();
    // `note` is optional and left out (DM-164), `limit` does not concern this profile.
    assert_eq!(shown, ["fixed=x FIXED@1", "poll=30 POLL@1", "site=S-1 SITE@2"]);
    let asked: Vec<_> =
        questions(&package, &package.profiles[0]).iter().map(|q| q.setting.name.as_str()).collect();
    assert_eq!(asked, ["site", "note", "poll"]);
}

#[test]
fn dm_163_dm_164_everything_wrong_is_told_at_once() {
    refused(
        &[("poll", Integer(1)), ("colour", text("red")), ("fixed", text("y"))],
        None,
        &[
            ("/parameters/colour", "DM-162"),
            ("/parameters/fixed", "DM-061"),
            ("/parameters/poll", "DM-163"),
            ("/parameters/site", "DM-164"),
        ],
    );
    refused(&[("site", text(""))], None, &[("/parameters/site", "DM-163")]);
    refused(&[("site", text("a\0b"))], None, &[("/parameters/site", "DM-163")]);
    refused(&[("site", text(&"a".repeat(200_000)))], None, &[("/parameters/site", "DM-163")]);
    // Repeating the default of what cannot be changed changes nothing.
    let package = package();
    let same = answers(&[("site", text("S")), ("fixed", text("x"))]);
    assert!(resolve(&package, &package.profiles[0], &same, None, &Secrets::default()).is_ok());
}

#[test]
fn dm_059_an_immutable_value_stays_what_it_was() {
    let first = in_force(&package(), &answers(&[("site", text("S-1"))]));
    refused(&[("site", text("S-2"))], Some(&first), &[("/parameters/site", "DM-059")]);
    refused(&[], Some(&first), &[("/parameters/site", "DM-059")]);
    refused(&[("site", text("S-1")), ("poll", Integer(60))], Some(&first), &[("/parameters/poll", "DM-059")]);
    let package = package();
    let resolve = |given: &Answers, previous: &Answers| {
        resolve(&package, &package.profiles[0], given, Some(&held(previous)), &Secrets::default())
    };
    assert!(resolve(&first, &first).is_ok());
    // Said outright or by default, it is the same value.
    let outright = answers(&[("site", text("S-1")), ("poll", Integer(30))]);
    assert!(resolve(&outright, &first).is_ok() && resolve(&first, &outright).is_ok());
    // What was never set is set for the first time.
    assert!(resolve(&first, &Answers::new()).is_ok());
}

#[test]
fn dm_059_a_newer_default_does_not_change_what_an_installation_has() {
    let given = answers(&[("site", text("S-1"))]);
    let before = held(&in_force(&package(), &given));
    let mut newer = package();
    newer.parameters.get_mut(&name("poll")).unwrap().default = Some(Integer(60));
    let resolve =
        |given: &Answers| resolve(&newer, &newer.profiles[0], given, Some(&before), &Secrets::default());
    let broken = resolve(&given).unwrap_err();
    assert_eq!((broken[0].rule, broken[0].place.as_str()), ("DM-059", "/parameters/poll"));
    assert!(broken[0].message.contains("keep \"30\""), "{}", broken[0].message);
    assert!(resolve(&answers(&[("site", text("S-1")), ("poll", Integer(30))])).is_ok());
}

#[test]
fn dm_060_a_package_is_checked_between_its_parts() {
    assert_eq!(package().check(), []);
    let mut package = package();
    package.sections[0].settings[1].parameter = name("site");
    package.sections[0].settings[3].schema = "none".into();
    package.parameters.get_mut(&name("poll")).unwrap().default = Some(Integer(1));
    let found: Vec<_> = package.check().iter().map(|violation| violation.place.clone()).collect();
    assert_eq!(
        found,
        [
            "/configuration/sections/0/settings/1/parameter",
            "/parameters/poll/value",
            "/configuration/sections/0/settings/3/schema",
        ]
    );
}

/// A secret from the environment; it was seen with this fingerprint.
fn referred(seen: Option<&str>) -> Answer {
    let seen = seen.map(|text| Fingerprint(text.to_owned()));
    Answer::Secret(Referred { secret: reference(), seen })
}

fn reference() -> Reference {
    serde_json::from_str(r#"{"env":"MARGRAVE_SECRET_X"}"#).unwrap()
}

#[test]
fn an_answer_by_reference_is_typed_checked_and_never_repeated() {
    let package = package();
    let check = |parameter: &str, found: Result<&str, &str>| {
        let mut secrets = Secrets::default();
        let found = found.map(|text| Secret::new(text.into(), Fingerprint("f".into())));
        secrets.insert(name(parameter), reference(), found.map_err(str::to_owned));
        let mut given = answers(&[("site", text("S-1"))]);
        given.insert(name(parameter), referred(None));
        let resolved = resolve(&package, &package.profiles[0], &given, None, &secrets);
        let printed = format!("{resolved:?} {given:?}");
        assert!(!printed.contains("hunter2") && !printed.contains("4711"), "{printed}");
        resolved.map(|all| {
            let found = all.into_iter().find(|resolved| resolved.name == name(parameter)).unwrap();
            assert!(found.secret);
            found.value
        })
    };
    assert_eq!(check("site", Ok("hunter2")), Ok(text("hunter2")));
    assert_eq!(check("poll", Ok("4711")), Ok(Integer(4711)));
    for (parameter, found, rule) in [
        ("poll", Ok("hunter2"), "secret"),
        ("poll", Ok("1"), "DM-163"),
        ("fixed", Ok("x"), "DM-061"),
        ("site", Err("there is no such variable"), "secret"),
    ] {
        let broken = check(parameter, found).unwrap_err();
        assert_eq!((broken[0].rule, broken.len()), (rule, 1), "{broken:?}");
    }
    // What is allowed is told all the same.
    let broken = check("poll", Ok("1")).unwrap_err();
    assert!(broken[0].message.contains("which is a whole number, at least "), "{broken:?}");
    let asked = Schema { length_min: Some(8), regex: Some("[0-9]".into()), ..schema("string") };
    assert_eq!(asked.demands(), "text, at least 8 characters, matching the pattern [0-9]");
    let unlooked = Answers::from([(name("site"), referred(None))]);
    let broken = resolve(&package, &package.profiles[0], &unlooked, None, &Secrets::default()).unwrap_err();
    assert!(broken[0].message.contains("MARGRAVE_SECRET_X"), "{broken:?}");
}

#[test]
fn dm_059_an_immutable_secret_stays_what_it_was() {
    let package = package();
    let mut secrets = Secrets::default();
    secrets.insert(name("site"), reference(), Ok(Secret::new("hunter2".into(), Fingerprint("f".into()))));
    let check = |before: Answer, now: Answer| {
        let (before, now) = (Answers::from([(name("site"), before)]), Answers::from([(name("site"), now)]));
        let resolved = resolve(&package, &package.profiles[0], &now, Some(&held(&before)), &secrets);
        resolved.map(drop).map_err(|broken| (broken[0].rule, broken[0].message.clone()))
    };
    assert_eq!(check(referred(Some("f")), referred(Some("f"))), Ok(()));
    for (before, now) in [
        (referred(Some("e")), referred(Some("f"))),
        (referred(None), referred(None)),
        (referred(Some("f")), text("hunter2").into()),
        (text("hunter2").into(), referred(Some("f"))),
    ] {
        assert_eq!(check(before, now).unwrap_err().0, "DM-059");
    }
    let (_, message) = check(referred(Some("e")), referred(Some("f"))).unwrap_err();
    assert!(message.contains("keep the secret") && !message.contains("hunter2"), "{message}");
}

#[test]
fn dm_059_what_is_fixed_is_remembered_with_defaults_and_without_secrets() {
    let package = package();
    let mut secrets = Secrets::default();
    secrets.insert(name("site"), reference(), Ok(Secret::new("hunter2".into(), Fingerprint("now".into()))));
    // What the device is given is what is found, whatever was seen when it was asked for.
    let answers = Answers::from([(name("site"), referred(Some("then"))), (name("note"), text("x").into())]);
    let fixed = fixed(&package, &answers, &secrets);
    let stored = serde_json::to_string(&fixed).unwrap();
    assert_eq!(stored, r#"{"poll":30,"site":{"seen":"now"}}"#);
    assert_eq!(serde_json::from_str::<Held>(&stored).unwrap(), fixed);
}

#[test]
fn answers_are_stored_as_they_were_with_their_references() {
    let given = Answers::from([
        (name("site"), referred(Some("f"))),
        (name("note"), text("x").into()),
        (name("poll"), Answer::Clear(Integer(3))),
    ]);
    let written = serde_json::to_string(&given).unwrap();
    assert_eq!(written, r#"{"note":"x","poll":3,"site":{"secret":{"env":"MARGRAVE_SECRET_X"},"seen":"f"}}"#);
    assert_eq!(serde_json::from_str::<Answers>(&written).unwrap(), given);
}
