//! Adding packages: pulled from the real registry, checked, pinned.

use margrave_core::id::{PackageId, PackageVersion};

use super::*;

fn hello() -> (PackageId, PackageVersion) {
    (PackageId::parse("hello").unwrap(), PackageVersion::parse("1.0.0").unwrap())
}

#[tokio::test]
async fn a_package_is_added_with_everything_that_it_says_and_its_pins() {
    let world = World::new().await;
    let (id, version) = hello();
    let package = world.fleet.package(&id, &version).await.unwrap();
    assert_eq!((package.name.as_str(), package.organization.as_str()), ("Hello", "Tests"));
    assert_eq!(package.icon.as_deref(), Some("resources/icon.svg"));
    assert!(package.reference.starts_with("oci://margrave/packages/hello@sha256:"), "{}", package.reference);
    assert_eq!((package.added_by.as_str(), package.deployments.len()), ("operator ann", 0));
    let web = &package.profiles[0].components[0];
    let stored = world
        .registry
        .manifest(&RepositoryName::parse("components/web").unwrap(), &TagOrDigest::parse("1.0.0").unwrap())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(web.digest, Some(stored.digest.to_string()), "PK-053");
    let settings = &package.sections[0].settings;
    assert_eq!((settings[0].required, settings[2].required, settings[2].immutable), (true, false, true));
    assert_eq!(settings[1].default, Some(json!(30)));
    let icon = world.fleet.package_resource(&id, &version, "./resources/icon.svg").await.unwrap();
    assert_eq!(&icon.bytes[..], b"<svg/>");
    let none = world.fleet.package_resource(&id, &version, "../margrave.db").await.unwrap_err();
    assert!(matches!(none, Error::NotFound { .. }), "{none}");
    assert_eq!(world.fleet.packages().await.unwrap(), [package]);
}

#[tokio::test]
async fn the_same_package_again_is_no_error_and_other_content_under_its_version_is() {
    let world = World::new().await;
    world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
    world.push("1.0.0", &description("1.0.0").replace("Says hello", "Says hullo")).await;
    let error = world.add("oci://margrave/packages/hello:1.0.0").await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert!(error.to_string().contains("new version"), "{error}");
}

#[tokio::test]
async fn pk_014_the_tag_must_be_the_version_unless_it_is_named_by_digest() {
    let world = World::new().await;
    world.push("latest", &description("2.0.0")).await;
    let error = world.add("oci://margrave/packages/hello:latest").await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(broken) if broken[0].rule == "PK-014"), "{error}");
    let repository = RepositoryName::parse("packages/hello").unwrap();
    let stored =
        world.registry.manifest(&repository, &TagOrDigest::parse("latest").unwrap()).await.unwrap().unwrap();
    let added = world.add(&format!("oci://margrave/packages/hello@{}", stored.digest)).await.unwrap();
    assert_eq!(added.version, "2.0.0");
}

#[tokio::test]
async fn every_broken_rule_of_a_description_is_told() {
    let world = World::new().await;
    let broken = description("2.0.0").replace("id: hello", "id: Hello").replace("type: helm", "type: docker");
    world.push("2.0.0", &broken).await;
    let error = world.add("oci://margrave/packages/hello:2.0.0").await.unwrap_err();
    let Error::Invalid(violations) = error else { panic!("{error}") };
    let rules: Vec<_> = violations.iter().map(|violation| violation.rule).collect();
    assert!(rules.contains(&"DM-003") && rules.contains(&"DM-020"), "{violations:?}");
}

#[tokio::test]
async fn what_is_no_package_is_refused() {
    let world = World::new().await;
    for (reference, expected) in [
        ("oci://margrave/components/web:1.0.0", "PK-021"),
        ("oci://margrave/packages/hello", "names no version"),
        ("https://margrave/packages/hello:1.0.0", "scheme"),
        ("", "repository"),
    ] {
        let error = world.add(reference).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{reference}: {error}");
        assert!(error.to_string().contains(expected), "{reference}: {error}");
    }
    let missing = world.add("oci://margrave/packages/none:1.0.0").await.unwrap_err();
    assert!(matches!(missing, Error::Invalid(_)), "{missing}");
    assert!(missing.to_string().contains("push it first"), "{missing}");
}

#[tokio::test]
async fn pk_078_a_component_that_is_missing_or_no_compose_archive_is_named() {
    let world = World::empty().await;
    world.push("1.0.0", &description("1.0.0")).await;
    let missing = world.add("oci://margrave/packages/hello:1.0.0").await.unwrap_err();
    assert!(matches!(missing, Error::Invalid(_)), "{missing}");
    assert!(missing.to_string().contains("component web of profile small"), "{missing}");
    world.push_components().await;
    let wrong = ImageManifest::artifact("application/vnd.docker.compose.project", vec![]);
    world.push_manifest("components/web", "1.0.0", &wrong, &[]).await;
    let error = world.add("oci://margrave/packages/hello:1.0.0").await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(broken) if broken[0].rule == "PK-078"), "{error}");
    assert!(error.to_string().contains("component web"), "{error}");
    assert!(world.fleet.packages().await.unwrap().is_empty());
}

#[tokio::test]
async fn pk_095_an_archive_that_no_device_may_unpack_is_refused_when_it_is_added() {
    let world = World::empty().await;
    world.push_components().await;
    world.push_web(b"this is no gzip").await;
    world.push("1.0.0", &description("1.0.0")).await;
    let error = world.add("oci://margrave/packages/hello:1.0.0").await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(broken) if broken[0].rule == "PK-095"), "{error}");
    let told = error.to_string();
    assert!(told.contains("component web of profile small") && told.contains("gzip"), "{told}");
    assert!(world.fleet.packages().await.unwrap().is_empty());
    world.push_components().await;
    world.add("oci://margrave/packages/hello:1.0.0").await.unwrap();
}

#[tokio::test]
async fn a_registry_that_is_not_there_is_told_as_such() {
    let world = World::empty().await;
    // Nobody listens on this port of this machine.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = world.add(&format!("oci://{address}/packages/hello:1.0.0")).await.unwrap_err();
    assert!(matches!(error, Error::Upstream { source: Some(_), .. }), "{error}");
}

#[tokio::test]
async fn a_package_in_use_stays_and_an_unused_one_goes() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let (id, version) = hello();
    let error = world.fleet.remove_package(&ann(), &id, &version).await.unwrap_err();
    assert!(matches!(&error, Error::InUse { by, .. } if by == &["greeter"]), "{error}");
    assert_eq!(world.fleet.package(&id, &version).await.unwrap().deployments, ["greeter"]);
    world.fleet.remove_deployment(&ann(), &name("greeter"), None).await.unwrap();
    world.fleet.remove_package(&ann(), &id, &version).await.unwrap();
    assert!(world.fleet.packages().await.unwrap().is_empty());
    let gone = world.put("greeter", on(&["line-1"])).await.unwrap_err();
    assert!(matches!(gone, Error::Invalid(_)), "{gone}");
}
