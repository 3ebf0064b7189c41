//! Reporting and unregistering devices.

use margrave_device_api::ApiError;
use margrave_device_api::g2::CAPABILITIES_BYTES_MAX;

use crate::plant::Plant;

fn body(id: &str) -> String {
    format!(
        r#"{{"properties":{{"id":"{id}","vendor":"Acme","modelNumber":"C4","serialNumber":"0007",
        "cpus":[{{"cores":4,"architecture":"arm64"}}],"memory":"8Gi","storage":"64Gi","peripherals":[],
        "interfaces":[{{"type":"ethernet"}}],"otelCollector":true,"supportedRuntimes":["oci"],
        "supportedDeploymentTypes":["compose"]}},"labels":{{"acme.example/line":"B"}}}}"#
    )
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn mi_g2_121_id_241_the_first_report_creates_and_later_ones_update() {
    let plant = Plant::new();
    let reply = plant.ask("PUT", "/api/v1/capabilities/line-1", &[JSON], &body("line-1")).await;
    assert_eq!(reply.is(201).header("cache-control"), "no-store");
    let reply = plant.ask("PUT", "/api/v1/capabilities/line-1", &[JSON], &body("line-1")).await;
    assert_eq!(reply.is(200).header("cache-control"), "no-store");
    assert_eq!(plant.bodies()[0], body("line-1"), "kept as it came");
    // Two clients may use the same name for two devices (MI-G2-008).
    let other = body("line-1").into();
    plant.ask_as(Some("line-2"), "PUT", "/api/v1/capabilities/line-1", &[JSON], other).await.is(201);
}

#[tokio::test]
async fn amb_23_mi_g2_151_children_have_slashes_and_need_their_gateway() {
    let plant = Plant::new();
    let child = body("gw/path1/dev~A");
    let early = plant.ask("PUT", "/api/v1/capabilities/gw/path1/dev~A", &[JSON], &child).await;
    early.is_problem(404, "gateway-not-found");
    plant.ask("PUT", "/api/v1/capabilities/gw", &[JSON], &body("gw")).await.is(201);
    plant.ask("PUT", "/api/v1/capabilities/gw/path1/dev~A", &[JSON], &child).await.is(201);
    plant.ask("PUT", "/api/v1/capabilities/gw%2Fpath1%2fdev~A", &[JSON], &child).await.is(200);
    plant.ask("DELETE", "/api/v1/capabilities/gw%2Fpath1/dev~A", &[], "").await.is(204);
}

#[tokio::test]
async fn amb_23_the_body_is_about_the_device_of_the_path() {
    let plant = Plant::new();
    for path in ["other", "line-1%252F", "line-1/", "line%201"] {
        let path = format!("/api/v1/capabilities/{path}");
        let problem =
            plant.ask("PUT", &path, &[JSON], &body("line-1")).await.is_problem(422, "semantic-error");
        assert_eq!(problem["errors"][0]["field"], "properties.id", "{problem}");
    }
    assert!(plant.bodies().is_empty());
}

#[tokio::test]
async fn amb_27_what_cannot_be_parsed_is_400_and_what_breaks_rules_is_422() {
    let plant = Plant::new();
    let path = "/api/v1/capabilities/line-1";
    for malformed in ["", "{", "{\"properties\":}", "\u{1}"] {
        plant.ask("PUT", path, &[JSON], malformed).await.is_problem(400, "invalid-request");
    }
    for kind in ["text/plain", "application/yaml", "application/x-www-form-urlencoded"] {
        let reply = plant.ask("PUT", path, &[("content-type", kind)], &body("line-1")).await;
        reply.is_problem(400, "invalid-request");
    }
    for invalid in [
        "{}",
        "[]",
        "7",
        r#"{"properties":{"id":"line-1"}}"#,
        &body("a b"),
        &body("line-1").replace("true", "1"),
    ] {
        plant.ask("PUT", path, &[JSON], invalid).await.is_problem(422, "semantic-error");
    }
    plant
        .ask("PUT", path, &[("content-type", "application/json; charset=utf-8")], &body("line-1"))
        .await
        .is(201);
}

#[tokio::test]
async fn a_body_without_measure_is_413_and_kept_out_of_memory() {
    let plant = Plant::new();
    let path = "/api/v1/capabilities/line-1";
    let large = " ".repeat(CAPABILITIES_BYTES_MAX + 1);
    plant.ask("PUT", path, &[JSON], &large).await.is_problem(413, "about:blank");
    let fits = format!("{}{}", body("line-1"), " ".repeat(CAPABILITIES_BYTES_MAX - body("line-1").len()));
    plant.ask("PUT", path, &[JSON], &fits).await.is(201);
}

#[tokio::test]
async fn mi_g2_122_a_device_is_unregistered_once() {
    let plant = Plant::new();
    plant.ask("PUT", "/api/v1/capabilities/line-1", &[JSON], &body("line-1")).await.is(201);
    let others = plant.ask_as(Some("line-2"), "DELETE", "/api/v1/capabilities/line-1", &[], "".into()).await;
    others.is_problem(404, "device-not-found");
    let reply = plant.ask("DELETE", "/api/v1/capabilities/line-1", &[], "").await;
    assert!(reply.is(204).body.is_empty());
    assert_eq!(reply.header("cache-control"), "no-store");
    for path in ["line-1", "a%20b", "gw/*", "gw/"] {
        let reply = plant.ask("DELETE", &format!("/api/v1/capabilities/{path}"), &[], "").await;
        reply.is_problem(404, "device-not-found");
    }
}

#[tokio::test]
async fn mi_g2_190_a_busy_server_says_when_to_come_back() {
    let plant = Plant::new();
    plant.fail_next(ApiError::Busy { retry_after: std::time::Duration::from_millis(4200) });
    let reply = plant.ask("PUT", "/api/v1/capabilities/line-1", &[JSON], &body("line-1")).await;
    let problem = reply.is_problem(503, "about:blank");
    assert_eq!(reply.header("retry-after"), "5");
    assert_eq!(problem["retryAfterSeconds"], 5);
}
