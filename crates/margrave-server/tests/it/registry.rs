//! Who may push to and pull from the built-in registry.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_oci::manifest::{Descriptor, ImageManifest};
use margrave_wire::identity::{REGISTRY_TOKEN_PATH, RegistryToken};

use crate::line::Line;
use crate::plant::{Device, Plant, operator};
use crate::stock;

const LAYER: &[u8] = b"layer";

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

async fn registry_token(plant: &Plant, device: &Device) -> RegistryToken {
    device.line(plant).await.send("POST", REGISTRY_TOKEN_PATH, &[], "").await.unwrap().is(200).json()
}

/// Pushes one blob and answers with the status of the first request.
async fn push(line: &mut Line, authorization: &[(&str, &str)]) -> u16 {
    let path = format!("/v2/team/app/blobs/uploads/?digest={}", Digest::of(LAYER));
    let reply = line.send("POST", &path, authorization, LAYER).await.unwrap();
    reply.status.as_u16()
}

#[tokio::test]
async fn operators_push_and_pull_with_their_token_and_strangers_are_challenged() {
    let plant = Plant::new().await;
    let token = plant.server.context().token;
    let (bearer, basic) = (format!("Bearer {token}"), basic("anybody", &token));
    let blob = format!("/v2/team/app/blobs/{}", Digest::of(LAYER));
    for mut line in [plant.web().await, plant.local().await] {
        let reply = line.get("/v2/").await.unwrap();
        assert!(reply.is(401).header("www-authenticate").starts_with("Basic"), "{:?}", reply.headers);
        assert_eq!(push(&mut line, &[]).await, 401);
        assert_eq!(push(&mut line, &[("authorization", "Bearer wrong")]).await, 401);
        for authorization in [&bearer, &basic] {
            assert_eq!(push(&mut line, &[("authorization", authorization)]).await, 201);
            let reply = line.send("GET", &blob, &[("authorization", authorization)], "").await.unwrap();
            assert_eq!(reply.is(200).body, LAYER);
        }
        // A page's cookie is not for here: these addresses write and any site could send it.
        let fleet = plant.server.fleet();
        let holder = fleet.operator_by_token(&token).await.unwrap();
        let session = fleet.create_session(&holder.token).await.unwrap();
        let cookie = format!("margrave_session={session}; __Host-margrave_session={session}");
        line.send("GET", &blob, &[("cookie", &cookie)], "").await.unwrap().is(401);
    }
}

#[tokio::test]
async fn a_viewer_pulls_and_only_operators_push() {
    let plant = Plant::new().await;
    let mut line = plant.local().await;
    let admin = format!("Bearer {}", plant.server.context().token);
    assert_eq!(push(&mut line, &[("authorization", &admin)]).await, 201);
    let blob = format!("/v2/team/app/blobs/{}", Digest::of(LAYER));
    for (role, pushes) in [("viewer", 403), ("operator", 201)] {
        let secret = format!("Bearer {}", plant.operator_token("ann", role).await.secret);
        line.send("GET", &blob, &[("authorization", &secret)], "").await.unwrap().is(200);
        assert_eq!(push(&mut line, &[("authorization", &secret)]).await, pushes, "{role}");
    }
}

#[tokio::test]
async fn what_a_package_of_the_catalog_goes_by_cannot_be_deleted() {
    let plant = Plant::new().await;
    let image = ImageManifest::artifact("application/vnd.test", vec![Descriptor::of("x", LAYER)]);
    stock::push(&plant, "plant/gate", "1", &image, vec![Bytes::from_static(LAYER)]).await;
    stock::gate(&plant).await;
    let (id, version) = ("gate".parse().unwrap(), "1.0.0".parse().unwrap());
    let package = plant.server.fleet().package(&id, &version).await.unwrap();
    let component = package.profiles[0].components[0].digest.clone().unwrap();
    let paths = [
        format!("/v2/packages/gate/manifests/{}", package.reference.split_once('@').unwrap().1),
        format!("/v2/components/gate/manifests/{component}"),
        format!("/v2/plant/gate/manifests/{}", Digest::of(&image.to_bytes())),
    ];
    let admin = format!("Bearer {}", plant.server.context().token);
    let headers = [("authorization", admin.as_str())];
    let mut line = plant.web().await;
    for path in &paths {
        let reply = line.send("DELETE", path, &headers, "").await.unwrap();
        let told = String::from_utf8_lossy(&reply.is(409).body).into_owned();
        assert!(told.contains("gate 1.0.0; remove them from the catalog first"), "{told}");
        line.send("GET", path, &headers, "").await.unwrap().is(200);
    }
    // A tag is only a name.
    line.send("DELETE", "/v2/plant/gate/manifests/1", &headers, "").await.unwrap().is(202);
    plant.server.fleet().remove_package(&operator(), &id, &version).await.unwrap();
    for path in &paths {
        line.send("DELETE", path, &headers, "").await.unwrap().is(202);
    }
}

#[tokio::test]
async fn devices_pull_by_token_or_certificate_and_push_nothing() {
    let plant = Plant::new().await;
    let admin = format!("Bearer {}", plant.server.context().token);
    assert_eq!(push(&mut plant.web().await, &[("authorization", &admin)]).await, 201);
    let blob = format!("/v2/team/app/blobs/{}", Digest::of(LAYER));

    let device = plant.join("press.42").await;
    let token = registry_token(&plant, &device).await;
    let authorization = basic(&token.username, &token.password);
    for mut line in [plant.web().await, plant.local().await] {
        let reply = line.send("GET", &blob, &[("authorization", &authorization)], "").await.unwrap();
        assert_eq!(reply.is(200).body, LAYER);
        assert_eq!(push(&mut line, &[("authorization", &authorization)]).await, 403);
        let mixed = basic("press.43", &token.password);
        line.send("GET", &blob, &[("authorization", &mixed)], "").await.unwrap().is(401);
    }
    // By certificate, on the device listener.
    let mut line = device.line(&plant).await;
    assert_eq!(line.get(&blob).await.unwrap().is(200).body, LAYER);
    assert_eq!(push(&mut line, &[]).await, 403);
    // Not even an operator's token makes a device an operator.
    assert_eq!(push(&mut line, &[("authorization", &admin)]).await, 403);

    plant.server.fleet().retire(&operator(), &"press.42".parse().unwrap()).await.unwrap();
    let mut web = plant.web().await;
    web.send("GET", &blob, &[("authorization", &authorization)], "").await.unwrap().is(403);
    line.get(&blob).await.unwrap().is(403);
}

#[tokio::test]
async fn a_registry_token_survives_a_restart_and_not_its_time() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let token = registry_token(&plant, &device).await;
    let authorization = basic(&token.username, &token.password);
    let plant = plant.restart().await;
    let headers = [("authorization", authorization.as_str())];
    plant.web().await.send("GET", "/v2/", &headers, "").await.unwrap().is(200);
    plant.set_ahead(12 * 60 * 60 + 1);
    plant.web().await.send("GET", "/v2/", &headers, "").await.unwrap().is(401);
}
