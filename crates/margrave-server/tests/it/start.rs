//! Starting, stopping, starting again; and everything that keeps a server from starting.

use std::net::TcpListener;

use margrave_server::{Config, Server, StartError};
use margrave_wire::operator::{Context, PREFIX};

use crate::plant::{Plant, config};

const MANIFEST: &str = "/api/v1/deployments";

#[tokio::test]
async fn a_restart_loses_nothing() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let unused = plant.token("press.43").await;
    let first = device.line(&plant).await.get(MANIFEST).await.unwrap();
    let (pin, token) = (plant.server.pin(), plant.server.context().token);
    let plant = plant.restart().await;
    assert_eq!(plant.server.pin(), pin);
    assert_eq!(plant.server.context().token, token);
    let again = device.line(&plant).await.get(MANIFEST).await.unwrap();
    assert_eq!(again.is(200).header("etag"), first.header("etag"));
    let key = margrave_identity::key::PrivateKey::generate().unwrap();
    plant.ask_to_join(&unused, &key).await.is(200);
    let plant = plant.restart().await;
    let other = margrave_identity::key::PrivateKey::generate().unwrap();
    plant.ask_to_join(&unused, &other).await.is_problem(403);
}

#[tokio::test]
async fn the_administrators_context_is_kept_private_and_mended() {
    use std::os::unix::fs::PermissionsExt as _;
    let plant = Plant::new().await;
    let path = plant.data.path().join("context.json");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let written: Context = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(written, plant.server.context());
    let status = format!("{PREFIX}/status");
    let bearer = format!("Bearer {}", written.token);
    for mut line in [plant.web().await, plant.local().await] {
        let reply = line.get(&status).await.unwrap();
        reply.is_problem(401);
        assert!(reply.header("www-authenticate").starts_with("Bearer"));
        line.send("GET", &status, &[("authorization", &bearer)], "").await.unwrap().is(200);
    }
    std::fs::write(&path, "spoilt").unwrap();
    let plant = plant.restart().await;
    assert_ne!(plant.server.context().token, written.token);
    // Whoever has the lost one has nothing any more.
    plant
        .local()
        .await
        .send("GET", &status, &[("authorization", &bearer)], "")
        .await
        .unwrap()
        .is_problem(401);
    let bearer = format!("Bearer {}", plant.server.context().token);
    plant.local().await.send("GET", &status, &[("authorization", &bearer)], "").await.unwrap().is(200);
}

#[tokio::test]
async fn the_servers_directories_are_closed_to_others_and_are_closed_again() {
    use std::os::unix::fs::PermissionsExt as _;
    let plant = Plant::new().await;
    let data = plant.data.path().to_owned();
    let directories = [data.clone(), data.join("store"), data.join("registry")];
    let mode = |path: &std::path::PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for directory in &directories {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let plant = plant.restart().await;
    for directory in &directories {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
    }
    drop(plant);
}

#[tokio::test]
async fn a_directory_that_others_use_is_left_as_it_is() {
    use std::os::unix::fs::PermissionsExt as _;
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("letter.txt"), "Dear").unwrap();
    std::fs::set_permissions(data.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::start(config(data.path())).await.unwrap();
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(data.path().to_owned()), 0o755);
    assert_eq!(mode(data.path().join("store")), 0o700);
    server.stop().await;
}

#[tokio::test]
async fn two_servers_do_not_share_a_directory() {
    let plant = Plant::new().await;
    let second = Server::start(config(plant.data.path())).await;
    let error = second.err().unwrap();
    assert!(matches!(error, StartError::InUse(_)), "{error}");
    let data = plant.data;
    plant.server.stop().await;
    Server::start(config(data.path())).await.unwrap().stop().await;
}

#[tokio::test]
async fn a_taken_port_is_named_with_its_option() {
    let data = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Server::start(Config { device_listen: address, ..config(data.path()) }).await.err().unwrap();
    let text = error.to_string();
    assert!(text.contains(&address.to_string()) && text.contains("--device-listen"), "{text}");
    // Nothing is left behind that would keep it from starting now.
    Server::start(config(data.path())).await.unwrap().stop().await;
}

#[tokio::test]
async fn plain_http_does_not_leave_the_machine() {
    let data = tempfile::tempdir().unwrap();
    let everywhere = Some("0.0.0.0:0".parse().unwrap());
    let error =
        Server::start(Config { local_listen: everywhere, ..config(data.path()) }).await.err().unwrap();
    assert!(matches!(error, StartError::NotLocal(_)), "{error}");
}

#[tokio::test]
async fn a_fleet_without_its_keys_does_not_start_and_says_what_is_missing() {
    let plant = Plant::new().await;
    let data = plant.data;
    plant.server.stop().await;
    let (kept, away) = (data.path().join("identity"), data.path().join("elsewhere"));
    std::fs::rename(&kept, &away).unwrap();
    let error = Server::start(config(data.path())).await.err().unwrap();
    assert!(matches!(error, StartError::Identity(_)), "{error}");
    assert!(!kept.exists(), "never a new authority for an old fleet");
    std::fs::rename(&away, &kept).unwrap();
    Server::start(config(data.path())).await.unwrap().stop().await;
}

#[tokio::test]
async fn a_sign_in_link_leads_to_the_page_once() {
    let plant = Plant::new().await;
    let link = plant.server.sign_in_link();
    let local = plant.server.addresses().local.unwrap();
    let path = link.strip_prefix(&format!("http://{local}")).unwrap().to_owned();
    let mut line = plant.local().await;
    let reply = line.get(&path).await.unwrap();
    assert!(reply.status.is_redirection() || reply.status.is_success(), "{}", reply.status);
    let cookie = reply.header("set-cookie").split(';').next().unwrap().to_owned();
    assert!(cookie.starts_with("margrave_session="), "{cookie}");
    line.send("GET", "/", &[("cookie", &cookie)], "").await.unwrap().is(200);
    assert_eq!(line.get(&path).await.unwrap().header("set-cookie"), "");
}
