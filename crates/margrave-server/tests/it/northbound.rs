//! The sandbox's nouns, as one of its users would use them.

use margrave_wire::northbound::PREFIX;
use serde_json::{Value, json};

use crate::line::{Line, Reply};
use crate::plant::Plant;
use crate::stock;

async fn ask(line: &mut Line, plant: &Plant, method: &str, path: &str, body: Value) -> Reply {
    let bearer = format!("Bearer {}", plant.server.context().token);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    line.send(method, &format!("{PREFIX}{path}"), &headers, body).await.unwrap()
}

#[tokio::test]
async fn a_user_of_the_sandbox_finds_its_nouns() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    for name in ["press-1", "press-2", "press-3"] {
        stock::device(&plant, name, 4).await;
    }
    let mut line = plant.web().await;
    let none = Value::Null;

    let listed: Value = ask(&mut line, &plant, "GET", "/app-packages", none.clone()).await.is(200).json();
    let package = &listed["items"][0];
    assert_eq!((&package["id"], &package["status"]["state"]), (&json!("gate@1.0.0"), &json!("ONBOARDED")));
    assert_eq!(package["spec"]["sourceType"], "OCI_REPO");
    assert!(package["spec"]["source"]["digest"].as_str().unwrap().starts_with("sha256:"), "{package}");
    let one: Value = ask(&mut line, &plant, "GET", "/app-packages/gate", none.clone()).await.is(200).json();
    assert_eq!(&one, package);
    // The last item of the page before may be gone: it goes on with the next one.
    for (last, count) in [("another@1.0.0", 1), ("gate@1.0.0", 0), ("gone@1.0.0", 0)] {
        let path = format!("/app-packages?continue={last}");
        let page: Value = ask(&mut line, &plant, "GET", &path, none.clone()).await.is(200).json();
        assert_eq!(page["items"].as_array().unwrap().len(), count, "{last}");
    }
    let source = json!({"registryUrl": "oci://margrave", "repository": "packages/gate", "tag": "1.0.0"});
    let onboard = json!({"apiVersion": "non-margo.org", "metadata": {"name": "gate"},
        "spec": {"sourceType": "OCI_REPO", "source": source}});
    let again = ask(&mut line, &plant, "POST", "/app-packages", onboard.clone()).await;
    assert!(matches!(again.status.as_u16(), 202 | 409), "{}", again.status);
    let mut secret = onboard;
    secret["spec"]["source"]["authentication"] = json!({"type": "basic", "username": "a", "password": "b"});
    ask(&mut line, &plant, "POST", "/app-packages", secret).await.is_problem(422);

    let page: Value = ask(&mut line, &plant, "GET", "/devices?limit=2", none.clone()).await.is(200).json();
    assert_eq!(page["metadata"]["continue"], true);
    assert_eq!(
        (&page["items"][0]["id"], &page["items"][0]["eligible"]),
        (&json!("press-1"), &json!("unknown"))
    );
    assert_eq!(page["items"][0]["state"]["onboard"], "ONBOARDED");
    let rest = "/devices?limit=2&continue=press-2&appPackageId=gate";
    let rest: Value = ask(&mut line, &plant, "GET", rest, none.clone()).await.is(200).json();
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["metadata"]["continue"]), (1, &json!(false)));

    let want = json!({"metadata": {"name": "north"}, "spec": {
        "appPackageRef": {"id": "gate"}, "deviceRef": {"id": "press-1"},
        "deploymentProfile": {"type": "compose", "components": [
            {"name": "gate", "properties": {"repository": "oci://margrave/components/gate", "revision": "1.0.0"}}]},
        "parameters": {"owner": {"value": "me", "targets": [{"pointer": "OWNER", "components": ["gate"]}]}}}});
    let made: Value = ask(&mut line, &plant, "POST", "/app-deployments", want.clone()).await.is(202).json();
    assert_eq!(
        (&made["status"]["state"], &made["recentOperation"]["op"]),
        (&json!("PENDING"), &json!("DEPLOY"))
    );
    assert_eq!(made["spec"]["parameters"]["owner"]["value"], "me");
    ask(&mut line, &plant, "POST", "/app-deployments", want.clone()).await.is_problem(409);
    let mut helm = want;
    helm["metadata"]["name"] = json!("south");
    helm["spec"]["deploymentProfile"]["type"] = json!("helm");
    ask(&mut line, &plant, "POST", "/app-deployments", helm).await.is_problem(422);

    // It is the deployment that everybody else sees.
    let seen = plant.server.fleet().deployment(&"north".parse().unwrap()).await.unwrap();
    assert_eq!(made["id"], seen.id);
    let id = format!("/app-deployments/{}", seen.id);
    for path in [id.as_str(), "/app-deployments/north"] {
        let one: Value = ask(&mut line, &plant, "GET", path, none.clone()).await.is(200).json();
        assert_eq!(one["metadata"]["name"], "north");
    }
    let all: Value = ask(&mut line, &plant, "GET", "/app-deployments", none.clone()).await.is(200).json();
    assert_eq!(all["items"].as_array().unwrap().len(), 1);
    ask(&mut line, &plant, "DELETE", "/app-packages/gate", none.clone()).await.is_problem(409);
    let gone: Value = ask(&mut line, &plant, "DELETE", &id, none.clone()).await.is(202).json();
    assert_eq!(
        (&gone["status"]["state"], &gone["recentOperation"]["op"]),
        (&json!("REMOVING"), &json!("DELETE"))
    );

    for path in ["/app-packages/none", "/app-packages/gate@9.9.9", "/app-deployments/none"] {
        ask(&mut line, &plant, "GET", path, none.clone()).await.is_problem(404);
    }
    ask(&mut line, &plant, "PUT", "/devices", none.clone()).await.is_problem(405);
    line.get(&format!("{PREFIX}/devices")).await.unwrap().is_problem(401);
}
