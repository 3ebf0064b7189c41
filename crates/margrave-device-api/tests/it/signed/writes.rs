//! Capabilities and status of the signed generation.

use margrave_device_api::g2::{CAPABILITIES_BYTES_MAX, STATUS_BYTES_MAX};

use super::{Draft, World, path, status_body};
use crate::plant::ID;

const OTHER: &str = "99999999-6a0a-4f0e-9b57-2c1c8e0f4a11";

pub(super) fn capabilities(id: &str) -> String {
    format!(
        r#"{{"apiVersion":"device.margo.org/v1alpha1","kind":"DeviceCapabilitiesManifest","properties":{{
        "id":"{id}","vendor":"Acme","modelNumber":"C4","serialNumber":"0007","roles":["standalone device"],
        "resources":{{"cpu":{{"cores":4,"architectures":["x86_64"]}},"memory":"8 Gi","storage":"64Gi",
        "peripherals":[{{"type":"GPU"}}],"interfaces":[{{"type":"ethernet"}}]}}}},
        "x-acme-extensions":{{"anything":1}}}}"#
    )
}

#[tokio::test]
async fn mi_g1_182_189_213_capabilities_are_201_by_every_method_and_path_there_ever_was() {
    let world = World::new();
    let body = capabilities("line-1");
    for (method, resource) in [
        ("PUT", "capabilities/line-1"),
        ("POST", "capabilities/line-1"),
        ("PUT", "capabilities/line-1"),
        ("POST", "capabilities"),
        ("PUT", "capabilities"),
    ] {
        let reply = world.write(method, &path(resource), &body).await;
        assert_eq!(reply.is(201).header("cache-control"), "no-store");
    }
    assert_eq!(world.plant.bodies().len(), 5);
    assert_eq!(world.plant.bodies()[0], body, "kept as it came");
}

#[tokio::test]
async fn mi_g1_183_mi_g1_185_a_child_needs_its_gateway_and_a_device_its_report() {
    let world = World::new();
    let child = capabilities("gw/path1/dev~A");
    world.write("PUT", &path("capabilities/gw/path1/dev~A"), &child).await.is_problem(404, "about:blank");
    world.write("PUT", &path("capabilities/gw"), &capabilities("gw")).await.is(201);
    world.write("PUT", &path("capabilities/gw/path1/dev~A"), &child).await.is(201);
    world.write("PUT", &path("capabilities/gw%2Fpath1%2Fdev~A"), &child).await.is(201);
    let delete = async |device: &str| {
        let mut draft = Draft::get(&path(&format!("capabilities/{device}")));
        draft.method = "DELETE".to_owned();
        world.send(draft.signed(&world.signer)).await
    };
    assert_eq!(delete("gw/path1/dev~A").await.is(204).header("cache-control"), "no-store");
    delete("gw/path1/dev~A").await.is_problem(404, "about:blank");
    delete("gw/*").await.is_problem(404, "about:blank");
}

#[tokio::test]
async fn mi_g1_066_wrong_bodies_are_422_and_unreadable_ones_400() {
    let world = World::new();
    let resource = path("capabilities/line-1");
    world.write("PUT", &resource, "{").await.is_problem(400, "invalid-request");
    let other = world.write("PUT", &resource, &capabilities("line-2")).await;
    assert_eq!(other.is_problem(422, "semantic-error")["errors"][0]["field"], "properties.id");
    let problem = world
        .write("PUT", &resource, &capabilities("line-1").replace("x86_64", "z80"))
        .await
        .is_problem(422, "semantic-error");
    assert_eq!(problem["errors"][0]["field"], "properties.resources.cpu.architectures[0]");
    let text =
        Draft::with_body("PUT", &resource, &capabilities("line-1")).header("content-type", "text/plain");
    world.send(text.signed(&world.signer)).await.is_problem(400, "invalid-request");
    world
        .write("PUT", &resource, &" ".repeat(CAPABILITIES_BYTES_MAX + 1))
        .await
        .is_problem(413, "about:blank");
}

#[tokio::test]
async fn mi_g1_160_a_status_is_200_first_and_later_on_both_of_its_paths() {
    let world = World::new();
    for resource in [format!("deployments/{ID}/status"), format!("deployment/{ID}/status")] {
        let reply = world.write("POST", &path(&resource), &status_body()).await;
        assert_eq!(reply.is(200).header("cache-control"), "no-store");
    }
    let resource = path(&format!("deployments/{ID}/status"));
    world.write("POST", &resource, "{").await.is_problem(400, "invalid-request");
    let wrong = status_body().replace("installed", "exploded");
    world.write("POST", &resource, &wrong).await.is_problem(422, "semantic-error");
    for (in_path, in_body) in [(OTHER, OTHER), (ID, OTHER), (OTHER, ID), ("not-a-uuid", ID)] {
        let body = status_body().replace(ID, in_body);
        let reply = world.write("POST", &path(&format!("deployments/{in_path}/status")), &body).await;
        assert_eq!(reply.is_problem(422, "semantic-error")["errors"][0]["field"], "deploymentId");
    }
    world.write("POST", &resource, &" ".repeat(STATUS_BYTES_MAX + 1)).await.is_problem(413, "about:blank");
}

#[tokio::test]
async fn mi_g1_151_a_report_is_about_the_manifest_that_was_last_given() {
    let world = World::new();
    let resource = path(&format!("deployments/{ID}/status"));
    world.write("POST", &resource, &status_body()).await.is(200);
    world.plant.publish(7);
    world.get(&path("deployments"), &[]).await.is(200);
    world.write("POST", &resource, &status_body()).await.is(200);
    world.plant.publish(9);
    world.write("POST", &resource, &status_body()).await.is(200);
    let etag = world.plant.etag();
    world.get(&path("deployments"), &[("if-none-match", &etag)]).await.is(304);
    world.write("POST", &resource, &status_body()).await.is(200);
    let adopted: Vec<u64> = world.plant.reports().iter().map(|report| report.adopted_version).collect();
    assert_eq!(adopted, [1, 7, 7, 9]);
}

#[tokio::test]
async fn a_login_for_our_registry_is_given_to_who_signs_for_it() {
    let world = World::new();
    let mut draft = Draft::get(&path("x-margrave-registry-token"));
    draft.method = "POST".to_owned();
    let reply = world.send(draft.signed(&world.signer)).await;
    assert_eq!(reply.is(200).header("cache-control"), "no-store");
    let login: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((&login["username"], &login["password"]), (&"line-1".into(), &"secret".into()));
    world.send(draft.signed(&super::fresh().1)).await.is_problem(401, "signature-verification-failed");
    draft.method = "GET".to_owned();
    assert_eq!(world.send(draft.signed(&world.signer)).await.is(405).header("allow"), "POST");
}
