//! `--set name=value` → typed answers, by the package's own questions.

use std::collections::BTreeMap;

use margrave_core::parameters::{DataType, ParameterValue, Schema};
use margrave_wire::operator::{Package, PackageSetting};
use serde_json::Value;

use crate::cli::Pair;
use crate::exit::{Result, Trouble};

/// Types the given texts. A name that is given several times makes a list.
pub(crate) fn typed(package: &Package, pairs: &[Pair]) -> Result<BTreeMap<String, Value>> {
    let mut texts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Pair { key, value } in pairs {
        texts.entry(key).or_default().push(value);
    }
    let mut answers = BTreeMap::new();
    for (name, texts) in texts {
        let setting = setting(package, name).ok_or_else(|| unknown(package, name))?;
        let wrong = |why: String| {
            let question = setting.description.as_deref().unwrap_or(&setting.name);
            Trouble::refused(format!("{name} {why}")).hint(format!("{name} asks: {question}"))
        };
        let schema = schema(setting);
        let value = match texts.as_slice() {
            [text] => ParameterValue::from_text(&schema, text),
            several if schema.wants_list() => ParameterValue::from_texts(&schema, several.iter().copied()),
            _ => Err("takes one value, and is given more than once".to_owned()),
        };
        let value = value.map_err(wrong)?;
        answers.insert(
            name.to_owned(),
            serde_json::to_value(value).expect("scalars and lists of them are JSON"),
        );
    }
    Ok(answers)
}

/// `PARAMETER=env:NAME` and the like as the answers that the server takes.
pub(crate) fn secrets(package: &Package, pairs: &[Pair]) -> Result<BTreeMap<String, Value>> {
    let mut answers = BTreeMap::new();
    for Pair { key, value } in pairs {
        setting(package, key).ok_or_else(|| unknown(package, key))?;
        let known = ["env", "file", "sealed"];
        let reference = value.split_once(':').filter(|(kind, _)| known.contains(kind));
        // The text is not repeated: it may be the secret itself.
        let (kind, text) = reference.ok_or_else(|| {
            Trouble::broke(format!("--secret {key} names no place of a secret"))
                .hint("write env:MARGRAVE_SECRET_NAME, file:NAME, or sealed:TEXT as `margrave secret seal` printed it")
        })?;
        let answer = serde_json::json!({ "secret": { kind: text } });
        if answers.insert(key.clone(), answer).is_some() {
            return Err(Trouble::broke(format!("--secret {key} is given more than once")));
        }
    }
    Ok(answers)
}

/// Answers in clear and by reference; none is both.
pub(crate) fn both(package: &Package, set: &[Pair], secret: &[Pair]) -> Result<BTreeMap<String, Value>> {
    let mut answers = typed(package, set)?;
    for (name, answer) in secrets(package, secret)? {
        if answers.insert(name.clone(), answer).is_some() {
            return Err(Trouble::broke(format!("{name} is given with --set and with --secret")));
        }
    }
    Ok(answers)
}

/// What is answered after a change of some answers, in clear and by reference; `unset` go back to their defaults.
pub(crate) fn changed(
    package: &Package,
    held: &BTreeMap<String, Value>,
    (set, secret): (&[Pair], &[Pair]),
    unset: &[String],
) -> Result<BTreeMap<String, Value>> {
    let changed = both(package, set, secret)?;
    let mut answers = held.clone();
    for parameter in unset {
        if setting(package, parameter).is_none() && !answers.contains_key(parameter) {
            return Err(unknown(package, parameter));
        }
        if changed.contains_key(parameter) {
            return Err(Trouble::broke(format!("{parameter} is both set and unset")));
        }
        answers.remove(parameter);
    }
    answers.extend(changed);
    complete(package, &answers)?;
    Ok(answers)
}

/// Refuses to go on while a question without an answer is open; better now than after the server was asked.
pub(crate) fn complete(package: &Package, answers: &BTreeMap<String, Value>) -> Result<()> {
    let open: Vec<&PackageSetting> = package
        .sections
        .iter()
        .flat_map(|section| &section.settings)
        .filter(|setting| {
            setting.required && setting.default.is_none() && !answers.contains_key(&setting.parameter)
        })
        .collect();
    let Some(first) = open.first() else { return Ok(()) };
    let names: Vec<&str> = open.iter().map(|setting| setting.parameter.as_str()).collect();
    let question = first.description.as_deref().unwrap_or(&first.name);
    Err(Trouble::refused(format!("{} wants to be told: {}", package.id, names.join(", ")))
        .hint(format!("add --set {}=VALUE ({question})", first.parameter)))
}

pub(crate) fn setting<'a>(package: &'a Package, parameter: &str) -> Option<&'a PackageSetting> {
    package
        .sections
        .iter()
        .flat_map(|section| &section.settings)
        .find(|setting| setting.parameter == parameter)
}

pub(crate) fn unknown(package: &Package, name: &str) -> Trouble {
    let known: Vec<&str> = package
        .sections
        .iter()
        .flat_map(|section| &section.settings)
        .map(|setting| setting.parameter.as_str())
        .collect();
    let trouble =
        Trouble::refused(format!("{}@{} has no question called {name}", package.id, package.version));
    if known.is_empty() {
        trouble.hint("this package asks nothing")
    } else {
        trouble.hint(format!("it asks for {}", known.join(", ")))
    }
}

/// As much of the schema as the typing of a text needs; the server checks the rest of the rules.
fn schema(setting: &PackageSetting) -> Schema {
    // A type that a newer server knows and we do not is passed on as text, for the server to judge.
    let text = DataType::parse("string").expect("a data type of the standard");
    Schema {
        name: setting.parameter.clone(),
        data_type: DataType::parse(&setting.data_type).unwrap_or(text),
        allow_empty: !setting.required,
        length_min: None,
        length_max: None,
        regex: None,
        value_min: None,
        value_max: None,
        precision_min: None,
        precision_max: None,
        options: (!setting.options.is_empty()).then(|| setting.options.clone()),
        multiselect: setting.multiselect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package() -> Package {
        let setting = |parameter: &str, data_type: &str, required: bool, default: Value| {
            let mut setting = json!({
                "parameter": parameter, "name": parameter, "dataType": data_type, "required": required,
                "immutable": false, "multiselect": false,
            });
            if !default.is_null() {
                setting["default"] = default;
            }
            setting
        };
        let mut shifts = setting("shifts", "string", true, json!(["early"]));
        shifts["options"] = json!(["early", "late"]);
        shifts["multiselect"] = json!(true);
        let settings = [
            setting("site", "string", true, Value::Null),
            setting("count", "integer", true, json!(1)),
            setting("share", "double", false, Value::Null),
            setting("on", "boolean", true, json!(false)),
            setting("lanes", "array[integer]", true, json!([1])),
            shifts,
        ];
        serde_json::from_value(json!({
            "id": "gate", "version": "1.0", "name": "Gate", "organization": "Us", "reference": "", "addedAt": "",
            "addedBy": "", "profiles": [], "sections": [{"name": "All", "settings": settings}], "deployments": [],
        }))
        .unwrap()
    }

    fn set(texts: &[&str]) -> Result<BTreeMap<String, Value>> {
        let pairs: Vec<Pair> = texts
            .iter()
            .map(|text| text.split_once('=').unwrap())
            .map(|(key, value)| Pair { key: key.into(), value: value.into() })
            .collect();
        typed(&package(), &pairs)
    }

    #[test]
    fn dm_051_texts_become_what_the_question_asks_for() {
        let answers =
            set(&["site=7", "count=4", "share=0.5", "on=true", "lanes=1, 2", "shifts=early", "shifts=late"])
                .unwrap();
        let wanted = json!({"site": "7", "count": 4, "share": 0.5, "on": true, "lanes": [1, 2], "shifts": ["early", "late"]});
        assert_eq!(serde_json::to_value(answers).unwrap(), wanted);
    }

    #[test]
    fn what_does_not_answer_the_question_is_refused_in_its_words() {
        for bad in [&["count=many"][..], &["on=perhaps"], &["site=a", "site=b"], &["lanes=a,b"]] {
            assert!(set(bad).unwrap_err().is_refusal(), "{bad:?}");
        }
        let trouble = set(&["colour=red"]).unwrap_err();
        assert!(trouble.hinted().unwrap().contains("site, count, share, on, lanes, shifts"));
    }

    #[test]
    fn open_questions_are_named_before_the_server_is_asked() {
        let trouble = complete(&package(), &BTreeMap::new()).unwrap_err();
        assert!(trouble.message().ends_with("wants to be told: site"), "{}", trouble.message());
        complete(&package(), &BTreeMap::from([("site".into(), json!("x"))])).unwrap();
    }
}
