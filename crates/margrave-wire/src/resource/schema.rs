//! JSON Schemas of the files, so that editors complete and check them.

use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::{DeploymentFile, DeviceFile, FleetFile, Kind, PackageFile};

/// The schema of a kind's files.
pub fn schema(kind: Kind) -> Value {
    match kind {
        Kind::Fleet => of::<FleetFile>(),
        Kind::Package => of::<PackageFile>(),
        Kind::Deployment => of::<DeploymentFile>(),
        Kind::Device => of::<DeviceFile>(),
    }
}

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
