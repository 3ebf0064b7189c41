//! The OpenAPI document: what the routes say of themselves, and what is true of all of them.
//!
//! A handler describes its own answers. Those that any request can get (it is not signed in, its body is too
//! large, the server is busy) are added here, once; so is the media type of problems, which every one of them has.

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use crate::http::problem::MEDIA_TYPE;

/// The document as it is served.
pub(super) fn complete(document: &OpenApi) -> Value {
    let mut document =
        serde_json::to_value(document).expect("the document is plain data, which always serialises");
    let paths = document["paths"].as_object_mut().expect("a document has paths");
    for (path, operations) in paths {
        for (method, operation) in operations.as_object_mut().expect("a path has operations") {
            name_identifiers(operation);
            if method == "get" {
                tagged(operation);
            }
            let common = common(path, operation);
            let responses = operation["responses"].as_object_mut().expect("an operation has answers");
            for (status, description) in common {
                responses.entry(status.to_owned()).or_insert_with(|| problem(description));
            }
            for (status, response) in responses {
                describe(status, response);
            }
        }
    }
    widen_integers(&mut document);
    document
}

/// How identifiers in paths look, as `margrave_core::id` reads them: a program can then tell a bad one by itself.
const IDENTIFIERS: [(&str, &str); 11] = [
    ("commit", "^[0-9a-f]{40}$"),
    ("deployment", "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"),
    ("device", "^([A-Za-z0-9._-]{1,200}:)?[A-Za-z0-9._~-]{1,200}(/[A-Za-z0-9._~-]{1,200})*$"),
    ("host", "^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$"),
    ("kind", "^(Fleet|Package|Deployment|Device)$"),
    ("package", "^[a-z0-9-]{1,200}$"),
    ("path", "^[A-Za-z0-9._~:%/-]{1,1024}$"),
    (
        "reach",
        "^(fleet|label:[A-Za-z0-9._/-]{1,100}=[ -~]{0,200}|device:([A-Za-z0-9._-]{1,200}:)?[A-Za-z0-9._~-]{1,200}(/[A-Za-z0-9._~-]{1,200})*)$",
    ),
    ("repository", "^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?(/[a-z0-9._-]{1,200})+$"),
    ("token", "^[0-9a-f]{12}$"),
    ("version", "^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"),
];

fn name_identifiers(operation: &mut Value) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten().filter(|parameter| parameter["in"] == "path") {
        if let Some((_, pattern)) = IDENTIFIERS.iter().find(|(name, _)| parameter["name"] == *name) {
            parameter["schema"]["pattern"] = (*pattern).into();
        }
    }
}

/// Everything that is read has a tag, and is not sent to who has it.
fn tagged(operation: &mut Value) {
    let tag = json!({ "description": "A tag of exactly this answer", "schema": { "type": "string" } });
    let known =
        json!({ "description": "It is as the tag in `If-None-Match` says", "headers": { "ETag": tag } });
    operation["responses"]["200"]["headers"]["ETag"] = tag;
    operation["responses"]["304"] = known;
    let parameter =
        json!({ "name": "If-None-Match", "in": "header", "required": false, "schema": { "type": "string" } });
    match operation.get_mut("parameters").and_then(Value::as_array_mut) {
        Some(parameters) => parameters.push(parameter),
        None => operation["parameters"] = json!([parameter]),
    }
}

/// Whole numbers that are never negative have all 64 bits here; the generator knows only the signed format.
fn widen_integers(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("format").is_some_and(|format| format == "int64") && fields.contains_key("minimum")
            {
                fields.insert("format".to_owned(), "uint64".into());
            }
            fields.values_mut().for_each(widen_integers);
        }
        Value::Array(items) => items.iter_mut().for_each(widen_integers),
        _ => {}
    }
}

/// What every operation of this kind can answer, whatever its handler does.
fn common(path: &str, operation: &Value) -> Vec<(&'static str, &'static str)> {
    let takes_body = operation.get("requestBody").is_some();
    let parameters = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
    let takes_input = takes_body || parameters.into_iter().any(|parameter| parameter["in"] != "header");
    let mut common = vec![
        ("401", "No token, or one that is not valid"),
        ("403", "The token is valid, and does not allow this"),
        ("429", "Too many requests; come back after `Retry-After`"),
        ("431", "The request line and headers are too large"),
        ("500", "Something broke inside the server; its log says what"),
        ("503", "The server is busy or stopping; come back after `Retry-After`"),
        ("507", "The server's disk is full; waiting alone does not help"),
    ];
    if takes_input {
        common.push(("400", "The request could not be read; `detail` says where"));
    }
    if path.contains('{') {
        common.push(("404", "There is nothing of this name"));
        common.push(("414", "The address is too long"));
    }
    if takes_body {
        common.push(("408", "The body did not arrive in time"));
        common.push(("413", "The body is too large"));
        common.push(("415", "The body is not JSON, or does not say so"));
        common.push(("422", "Understood, and against a rule; `violations` names each"));
    }
    common
}

fn problem(description: &str) -> Value {
    json!({
        "description": description,
        "content": { MEDIA_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" } } },
    })
}

/// Says what a program has to know of one answer beside its body.
fn describe(status: &str, response: &mut Value) {
    let is_problem = status.starts_with(['4', '5']);
    let content = response.get_mut("content").and_then(Value::as_object_mut);
    if let (true, Some(content)) = (is_problem, content)
        && let Some(schema) = content.remove("application/json")
    {
        content.insert(MEDIA_TYPE.to_owned(), schema);
    }
    if matches!(status, "429" | "503") {
        let seconds =
            json!({ "description": "Seconds to wait", "schema": { "type": "integer", "minimum": 1 } });
        let headers = response
            .as_object_mut()
            .expect("an answer is an object")
            .entry("headers")
            .or_insert_with(|| Value::Object(Map::new()));
        headers["Retry-After"] = seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Value {
        let (_, document) = crate::http::operator::routes().split_for_parts();
        complete(&document)
    }

    #[test]
    fn every_refusal_is_described_as_a_problem() {
        let document = document();
        let mut seen = 0;
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                for (status, response) in operation["responses"].as_object().unwrap() {
                    if status.starts_with(['4', '5']) {
                        let content = response["content"].as_object().unwrap();
                        let types: Vec<_> = content.keys().collect();
                        assert_eq!(types, [MEDIA_TYPE], "{method} {path} {status}");
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 100, "{seen}");
    }

    #[test]
    fn every_identifier_in_a_path_says_how_it_looks() {
        let document = document();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for operation in operations.as_object().unwrap().values() {
                let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
                for parameter in parameters.iter().filter(|parameter| parameter["in"] == "path") {
                    assert!(parameter["schema"]["pattern"].is_string(), "{path}: {parameter}");
                }
            }
        }
        assert!(!document.to_string().contains("\"minimum\":0,\"format\":\"int64\""));
    }

    #[test]
    fn what_any_request_can_get_is_described_for_each() {
        let document = document();
        let answers = |path: &str, method: &str| {
            let operation = &document["paths"][format!("/api/operator/v1{path}")][method];
            let mut answers: Vec<_> = operation["responses"].as_object().unwrap().keys().cloned().collect();
            answers.sort();
            answers.join(" ")
        };
        assert_eq!(answers("/status", "get"), "200 304 401 403 429 431 500 503 507");
        let put = answers("/deployments/{deployment}", "put");
        for status in ["200", "201", "400", "404", "408", "409", "412", "413", "414", "415", "422"] {
            assert!(put.contains(status), "{status} is not in {put}");
        }
        let busy = &document["paths"]["/api/operator/v1/status"]["get"]["responses"]["503"];
        assert!(busy["headers"]["Retry-After"].is_object(), "{busy}");
    }
}
