//! What every endpoint has in common when it says no.

use margrave_core::digest::Digest;
use margrave_device_api::{ApiError, Outside};

use crate::plant::{DOCUMENT, ID, Plant, client};

fn everything() -> Vec<(&'static str, String)> {
    vec![
        ("GET", "/api/v1/deployments".to_owned()),
        ("GET", format!("/api/v1/deployments/{ID}/{}", Digest::of(DOCUMENT))),
        ("GET", format!("/api/v1/bundles/{}", Digest::of(DOCUMENT))),
        ("POST", format!("/api/v1/deployments/{ID}/status")),
        ("PUT", "/api/v1/capabilities/line-1".to_owned()),
        ("DELETE", "/api/v1/capabilities/line-1".to_owned()),
        ("GET", "/no/such/path".to_owned()),
        ("BREW", "/api/v1/deployments".to_owned()),
    ]
}

#[tokio::test]
async fn amb_11_mi_g2_006_nothing_in_a_request_makes_up_for_a_missing_identity() {
    let plant = Plant::new();
    let headers = [("client-cert", ":MIIB:"), ("authorization", "Bearer x"), ("x-client-id", "line-1")];
    for (method, path) in everything() {
        let reply = plant.ask_as(None, method, &path, &headers, "{}".into()).await;
        reply.is_problem(401, "about:blank");
    }
}

#[tokio::test]
async fn mi_g2_011_067_policy_is_asked_on_every_request() {
    let plant = Plant::new();
    for caller in ["gone", "stranger"] {
        for (method, path) in everything() {
            let reply = plant.ask_as(Some(caller), method, &path, &[], "{}".into()).await;
            reply.is_problem(403, "not-authorized");
        }
    }
    plant.get("/api/v1/deployments", &[]).await.is(200);
    plant.set_standing(&client(), Err(Outside::Retired));
    plant.get("/api/v1/deployments", &[]).await.is_problem(403, "not-authorized");
    plant.set_standing(&client(), Ok(()));
    plant.get("/api/v1/deployments", &[]).await.is(200);
}

#[tokio::test]
async fn mi_g2_202_unknown_paths_and_wrong_methods_have_no_registered_type() {
    let plant = Plant::new();
    for path in ["/", "/api/v1/clients/7/deployments", "/api/v1/deployments/", "/api/v1/capabilities/"] {
        plant.get(path, &[]).await.is_problem(404, "about:blank");
    }
    for (method, path, allow) in [
        ("POST", "/api/v1/deployments".to_owned(), "GET, HEAD"),
        ("OPTIONS", "/api/v1/bundles/x".to_owned(), "GET, HEAD"),
        ("GET", format!("/api/v1/deployments/{ID}/status"), "POST"),
        ("POST", "/api/v1/capabilities/line-1".to_owned(), "PUT, DELETE"),
        ("GET", "/api/v1/capabilities/line-1".to_owned(), "PUT, DELETE"),
    ] {
        let reply = plant.ask(method, &path, &[], "").await;
        reply.is_problem(405, "about:blank");
        assert_eq!(reply.header("allow"), allow);
    }
}

#[tokio::test]
async fn mi_g2_191_our_own_failures_are_500_and_tell_nothing() {
    let plant = Plant::new();
    plant.fail_next(ApiError::Failed("the disk at /secret/path burns".into()));
    let reply = plant.get(&format!("/api/v1/deployments/{ID}/{}", Digest::of(DOCUMENT)), &[]).await;
    let problem = reply.is_problem(500, "about:blank");
    assert!(!problem.to_string().contains("secret"));
    let reply = plant.get(&format!("/api/v1/bundles/{}", Digest::of(b"panic")), &[]).await;
    reply.is_problem(500, "about:blank");
}
