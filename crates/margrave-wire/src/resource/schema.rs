//! JSON Schemas of the files, so that editors complete and check them.

use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::{API_VERSION, DeploymentFile, DeviceFile, FleetFile, Kind, PackageFile};

/// The schema of a kind's files.
pub fn schema(kind: Kind) -> Value {
    let mut schema = match kind {
        Kind::Fleet => of::<FleetFile>(),
        Kind::Package => of::<PackageFile>(),
        Kind::Deployment => of::<DeploymentFile>(),
        Kind::Device => of::<DeviceFile>(),
    };
    // Words that are one of a few are texts to the programs; an editor is to offer them.
    for (name, word) in [("apiVersion", API_VERSION), ("kind", kind.as_str())] {
        if let Some(Value::Object(field)) = schema.pointer_mut(&format!("/properties/{name}")) {
            field.remove("pattern");
            field.insert("const".to_owned(), json!(word));
        }
    }
    for (part, name, words) in WORDS {
        if let Some(Value::Object(field)) = schema.pointer_mut(&format!("/$defs/{part}/properties/{name}")) {
            // Said with nothing behind it, it is as if it were left out.
            let words = words.iter().map(|word| json!(word)).chain([Value::Null]);
            field.insert("enum".to_owned(), words.collect());
        }
    }
    schema
}

/// Fields of parts that take one of a few words.
const WORDS: [(&str, &str, &[&str]); 4] = [
    ("Strategy", "onFailure", &["halt", "revert"]),
    ("Rollback", "when", &["on-failed-update", "never"]),
    ("Schedule", "drift", &["repair", "report"]),
    ("Schedule", "images", &["keep", "remove"]),
];

fn of<T: ToSchema + PartialSchema>() -> Value {
    let mut parts: Vec<(String, RefOr<Schema>)> = Vec::new();
    T::schemas(&mut parts);
    let written = |schema: &RefOr<Schema>| {
        let value = serde_json::to_value(schema).expect("schemas have text keys");
        located(value)
    };
    let mut whole = written(&T::schema());
    let parts: serde_json::Map<String, Value> =
        parts.iter().map(|(name, schema)| (name.clone(), written(schema))).collect();
    if let Value::Object(whole) = &mut whole {
        whole.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
        whole.insert("$defs".to_owned(), Value::Object(parts));
    }
    whole
}

/// References point into an OpenAPI document; here they point into the schema itself.
fn located(value: Value) -> Value {
    match value {
        Value::String(text) => match text.strip_prefix("#/components/schemas/") {
            Some(name) => Value::String(format!("#/$defs/{name}")),
            None => Value::String(text),
        },
        Value::Array(items) => Value::Array(items.into_iter().map(located).collect()),
        Value::Object(members) => {
            Value::Object(members.into_iter().map(|(key, value)| (key, located(value))).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use margrave_core::rollback::When;

    use super::super::{Resource, read};
    use super::*;

    /// Whether a value is what a schema says, in the words that ours use; others are refused, so that none is overlooked.
    fn fits(root: &Value, schema: &Value, value: &Value) -> bool {
        let Value::Object(rules) = schema else { return schema != &Value::Bool(false) };
        rules.iter().all(|(rule, says)| match rule.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" | "format" | "propertyNames" => true,
            "$ref" => fits(root, root.pointer(&says.as_str().unwrap()[1..]).unwrap(), value),
            "oneOf" | "anyOf" => says.as_array().unwrap().iter().any(|one| fits(root, one, value)),
            "allOf" => says.as_array().unwrap().iter().all(|one| fits(root, one, value)),
            "const" => says == value,
            "enum" => says.as_array().unwrap().contains(value),
            "type" => match says {
                Value::Array(kinds) => kinds.iter().any(|kind| is(kind, value)),
                kind => is(kind, value),
            },
            "required" => {
                let has = |name: &Value| value.get(name.as_str().unwrap()).is_some();
                !value.is_object() || says.as_array().unwrap().iter().all(has)
            }
            "properties" => value.as_object().is_none_or(|members| {
                members.iter().all(|(name, member)| says.get(name).is_none_or(|one| fits(root, one, member)))
            }),
            "additionalProperties" => value.as_object().is_none_or(|members| {
                let known =
                    |name: &String| rules.get("properties").is_some_and(|known| known.get(name).is_some());
                members.iter().all(|(name, member)| known(name) || fits(root, says, member))
            }),
            "items" => value.as_array().is_none_or(|items| items.iter().all(|item| fits(root, says, item))),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= says.as_u64().unwrap()),
            "minimum" => value.as_f64().is_none_or(|number| number >= says.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= says.as_f64().unwrap()),
            other => panic!("{other} is not understood here"),
        })
    }

    fn is(kind: &Value, value: &Value) -> bool {
        match kind.as_str().unwrap() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "integer" => value.is_u64() || value.is_i64(),
            "number" => value.is_number(),
            other => panic!("{other} is not understood here"),
        }
    }

    /// Whether the server takes it, as far as the file alone can tell.
    fn takes(text: &str) -> bool {
        let Ok(read) = read("x.yaml", text.as_bytes()) else { return false };
        let (strategy, rollback, schedules) = match &read.resource {
            Resource::Fleet(file) => {
                let labels = file.spec.labels.iter().map(|label| &label.schedule);
                let schedules: Vec<_> = file.spec.schedule.iter().chain(labels).collect();
                (file.spec.strategy.clone(), file.spec.rollback.clone(), schedules)
            }
            Resource::Deployment(file) => (file.spec.strategy.clone(), file.spec.rollback.clone(), vec![]),
            Resource::Device(file) => (None, None, file.spec.schedule.iter().collect()),
            Resource::Package(_) => (None, None, vec![]),
        };
        let known =
            |text: &String| [When::Never, When::OnFailedUpdate].iter().any(|when| when.as_str() == text);
        strategy.is_none_or(|strategy| strategy.read().is_ok())
            && rollback.and_then(|rollback| rollback.when).is_none_or(|when| known(&when))
            && schedules.iter().all(|schedule| schedule.read().is_ok())
    }

    fn deployment(spec: &str) -> (Kind, String) {
        let head = "apiVersion: margrave/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n";
        let head = format!("{head}  package: app\n  version: 1.0.0\n  targets: {{devices: [a]}}\n");
        (Kind::Deployment, format!("{head}{spec}"))
    }

    fn fleet(spec: &str) -> (Kind, String) {
        (Kind::Fleet, format!("apiVersion: margrave/v1\nkind: Fleet\nspec:\n{spec}"))
    }

    #[test]
    fn an_editor_and_the_server_agree_on_what_a_file_may_be() {
        let device = |spec: &str| {
            let head = "apiVersion: margrave/v1\nkind: Device\nmetadata: {id: press-1}\n";
            (Kind::Device, format!("{head}{spec}"))
        };
        let package = |text: &str| (Kind::Package, text.to_owned());
        let pin = "apiVersion: margrave/v1\nkind: Package\nmetadata: {id: app, version: 1.0.0}\nspec: {reference: x}\n";
        for ((kind, text), good) in [
            (deployment(""), true),
            (deployment("  profile: auto\n  parameters: {a: 1, b: [x], c: {secret: {file: f}}}\n"), true),
            (deployment("  overrides: [{targets: {select: 'a=b'}, parameters: {a: 2}}]\n"), true),
            (deployment("  strategy: {batches: ['1', '10%'], onFailure: revert, soakSeconds: 60}\n"), true),
            (deployment("  strategy: {canary: {size: '1', labels: {a: b}}, onFailure: halt}\n"), true),
            (deployment("  rollback: {when: never, attempts: 3}\n"), true),
            (deployment("  rollback: {when: on-failed-update, healthGraceSeconds: 5}\n"), true),
            (deployment("  force: because\n"), true),
            (deployment("  strategy: {onFailure: shrug}\n"), false),
            (deployment("  strategy: {onFailure: [halt]}\n"), false),
            (deployment("  strategy: {batches: '1'}\n"), false),
            (deployment("  rollback: {when: sometimes}\n"), false),
            (deployment("  colour: red\n"), false),
            (deployment("  overrides: [{targets: {}}]\n"), false),
            (deployment("  parameters: 7\n"), false),
            (fleet("  schedule: {drift: repair, windows: ['sun 02:00-05:00 Europe/Berlin']}\n"), true),
            (fleet("  labels: [{label: a=b, schedule: {drift: report}}]\n  rollback: {attempts: 1}\n"), true),
            (fleet("  schedule: {drift: ignore}\n"), false),
            (fleet("  labels: [{label: a=b, schedule: {images: remove}}]\n"), true),
            (fleet("  schedule: {images: shrink}\n"), false),
            (fleet("  labels: [{label: a=b}]\n"), false),
            (device(""), true),
            (device("spec: {site: nord, labels: {a: b}, schedule: {pollEverySeconds: 60}}\n"), true),
            (device("spec: {labels: {a: 1}}\n"), false),
            (device("spec: {labels: [a]}\n"), false),
            (package(pin), true),
            (package(&pin.replace("reference: x", "reference: x, images: {'web:1': 'sha256:0'}")), true),
            (package(&pin.replace("reference: x", "reference: x, images: {'web:1': 7}")), false),
            (package(&pin.replace("reference: x", "reference: x, images: [a]")), false),
            (package(&pin.replace("reference", "refrence")), false),
            (package(&pin.replace("margrave/v1", "margrave/v2")), false),
            (package(&pin.replace("kind: Package", "kind: Pod")), false),
            (package(&pin.replace("metadata: {id: app, version: 1.0.0}\n", "")), false),
        ] {
            let schema = schema(kind);
            let value: Value = crate::located::read(&crate::yaml::read(text.as_bytes()).unwrap()).unwrap();
            assert_eq!((takes(&text), fits(&schema, &schema, &value)), (good, good), "{text}");
        }
    }

    /// Where editors find them. With `MARGRAVE_WRITE_SCHEMAS=1` they are written, otherwise held against what is said here.
    #[test]
    fn the_published_schemas_are_those_of_this_program() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas");
        for kind in Kind::ALL {
            let file = folder.join(format!("{}.schema.json", kind.as_str().to_lowercase()));
            let text = serde_json::to_string_pretty(&schema(kind)).unwrap() + "\n";
            if std::env::var_os("MARGRAVE_WRITE_SCHEMAS").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&file, &text).unwrap();
            }
            let held = std::fs::read_to_string(&file).unwrap_or_default();
            let how = "write it anew: MARGRAVE_WRITE_SCHEMAS=1 cargo test -p margrave-wire published_schemas";
            assert!(held == text, "{} is not true any more; {how}", file.display());
        }
    }
}
