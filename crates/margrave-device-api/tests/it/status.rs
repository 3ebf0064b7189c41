//! Status reports.

use margrave_device_api::g2::STATUS_BYTES_MAX;

use crate::plant::{ID, Plant};

const JSON: (&str, &str) = ("content-type", "application/json");
const OTHER: &str = "99999999-6a0a-4f0e-9b57-2c1c8e0f4a11";

fn path(id: &str) -> String {
    format!("/api/v1/deployments/{id}/status")
}

fn body(id: &str) -> String {
    format!(
        r#"{{"deploymentId":"{id}","adoptedManifestVersion":12,"status":{{"state":"installed"}},
        "components":[{{"name":"hmi","state":"installed"}}]}}"#
    )
}

#[tokio::test]
async fn mi_g2_110_the_first_status_creates_and_later_ones_update() {
    let plant = Plant::new();
    for code in [201, 200, 200] {
        let reply = plant.ask("POST", &path(ID), &[JSON], &body(ID)).await;
        assert_eq!(reply.is(code).header("cache-control"), "no-store");
    }
}

#[tokio::test]
async fn mi_g2_110_malformed_is_400_and_wrong_is_422() {
    let plant = Plant::new();
    plant.ask("POST", &path(ID), &[JSON], "{").await.is_problem(400, "invalid-request");
    plant
        .ask("POST", &path(ID), &[("content-type", "text/plain")], &body(ID))
        .await
        .is_problem(400, "invalid-request");
    let without = body(ID).replace("\"adoptedManifestVersion\":12,", "");
    let problem = plant.ask("POST", &path(ID), &[JSON], &without).await.is_problem(422, "semantic-error");
    assert_eq!(problem["errors"][0]["field"], "adoptedManifestVersion");
    let unknown = body(ID).replace("installed", "exploded");
    plant.ask("POST", &path(ID), &[JSON], &unknown).await.is_problem(422, "semantic-error");
    plant
        .ask("POST", &path(ID), &[JSON], &" ".repeat(STATUS_BYTES_MAX + 1))
        .await
        .is_problem(413, "about:blank");
}

#[tokio::test]
async fn amb_13_an_unknown_or_differing_deployment_is_a_field_that_is_wrong() {
    let plant = Plant::new();
    for (in_path, in_body) in [(OTHER, OTHER), (ID, OTHER), (OTHER, ID), ("not-a-uuid", ID)] {
        let reply = plant.ask("POST", &path(in_path), &[JSON], &body(in_body)).await;
        let problem = reply.is_problem(422, "semantic-error");
        assert_eq!(problem["errors"][0]["field"], "deploymentId", "{in_path} {in_body}");
    }
}
