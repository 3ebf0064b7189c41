//! Where a commit is wrong, of what is found out only once all of it was looked at: each refusal has its file and its line.

use margrave_wire::intent::Apply;

use super::super::desired::Fetching;
use super::warning::{elsewhere, lose};
use super::*;

/// Line 7 says the version, unless there is something above.
fn greeter(version: &str, above: &str) -> String {
    format!(
        "{above}apiVersion: margrave/v1\nkind: Deployment\nmetadata:\n  name: greeter\nspec:\n  package: hello\n  \
         version: {version}\n  targets:\n    devices: [line-1]\n"
    )
}

impl World {
    /// What a commit with this file is told, beside one that would be right.
    async fn told_of(&self, path: &str, text: &str) -> Vec<String> {
        let right =
            "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: line-1\nspec:\n  labels: {line: '1'}\n";
        let before = self.main().await;
        let commit = self.by_hand(&[("devices/line-1.yaml", Some(right)), (path, Some(text))]).await;
        let flaws = self.adopt(commit).await.unwrap_err();
        assert_eq!(self.main().await, before);
        assert!(
            self.fleet.device(&device("line-1")).await.unwrap().labels.is_empty(),
            "nothing of it is done"
        );
        flaws
    }
}

#[tokio::test]
async fn what_could_not_be_fetched_is_told_with_the_line_of_its_version() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let (registry, address, _folder) = elsewhere().await;
    let outside = description("2.0.0")
        .replace("oci://margrave/components/web", &format!("oci://{address}/components/web"));
    world.push("2.0.0", &outside).await;
    world.add("oci://margrave/packages/hello:2.0.0").await.unwrap();
    lose(&registry, "components/web").await;
    world.pass(7 * 3600);
    world.fleet.look_at_origins().await.unwrap();
    for (above, line) in [("", 7), ("# One.\n# Two.\n", 9)] {
        let flaws = world.told_of("deployments/greeter.yaml", &greeter("2.0.0", above)).await;
        let told = format!("deployments/greeter.yaml:{line}: the registry no longer has web of hello 2.0.0");
        assert!(flaws.len() == 1 && flaws[0].starts_with(&told), "{flaws:?}");
    }
}

#[tokio::test]
async fn what_could_not_be_pinned_is_told_with_the_line_of_its_version() {
    let world = World::empty().await;
    world.device("line-1", &[]).await;
    let away = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    world.add_services("1.0.0", &[&format!("image: '{away}/plant/web:1'")]).await;
    for (above, line) in [("", 7), ("# One.\n# Two.\n", 9)] {
        let flaws = world.told_of("deployments/greeter.yaml", &greeter("1.0.0", above)).await;
        let told =
            format!("deployments/greeter.yaml:{line}: what these images of hello 1.0.0 are is not known");
        assert!(flaws.len() == 1 && flaws[0].starts_with(&told), "{flaws:?}");
    }
}

#[tokio::test]
async fn what_is_there_already_with_other_content_is_told_with_its_file_and_line() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.push("other", &description("1.0.0").replace("Says hello.", "Says something else.")).await;
    let (repository, tag) = (RepositoryName::parse("packages/hello").unwrap(), Tag::parse("other").unwrap());
    let found = world.registry.manifest(&repository, &TagOrDigest::Tag(tag)).await.unwrap().unwrap();
    let digest = Digest::of(&found.bytes);
    let text = |above: &str| {
        format!(
            "{above}apiVersion: margrave/v1\nkind: Package\nmetadata:\n  id: hello\n  version: 1.0.0\nspec:\n  reference: \
             oci://margrave/packages/hello@{digest}\n"
        )
    };
    for (above, line) in [("", 6), ("# One.\n# Two.\n", 8)] {
        let flaws = world.told_of("packages/hello/1.0.0.yaml", &text(above)).await;
        let told = format!(
            "packages/hello/1.0.0.yaml:{line}: hello 1.0.0 is in the catalog already with other content"
        );
        assert!(flaws.len() == 1 && flaws[0].starts_with(&told), "{flaws:?}");
    }
}

const ID: &str = "0b2f6f0e-6f3a-4c1e-9a55-0d4f3f6a1c11";

/// Line 5 says the id.
fn with_id(name: &str, id: &str) -> String {
    greeter("1.0.0", "").replace("  name: greeter\n", &format!("  name: {name}\n  id: {id}\n"))
}

#[tokio::test]
async fn an_id_that_is_anothers_is_told_with_its_own_line() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let commit = world.by_hand(&[("deployments/one.yaml", Some(&with_id("one", ID)))]).await;
    world.adopt(commit).await.unwrap();
    let copied = world.told_of("deployments/two.yaml", &with_id("two", ID)).await;
    assert_eq!(copied, ["deployments/two.yaml:5: this id is that of one; leave it out (resource)"]);
    let other = ID.replace("0b2f", "0b3f");
    let changed = world.told_of("deployments/one.yaml", &with_id("one", &other)).await;
    let told = format!("deployments/one.yaml:5: one has the id {ID}; keep it, or leave it out (resource)");
    assert_eq!(changed, [told]);
}

#[tokio::test]
async fn of_two_new_deployments_with_one_id_the_second_is_told() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let (one, two) = (with_id("one", ID), with_id("two", ID));
    let before = world.main().await;
    let files = [("deployments/one.yaml", Some(one.as_str())), ("deployments/two.yaml", Some(two.as_str()))];
    let commit = world.by_hand(&files).await;
    let flaws = world.adopt(commit).await.unwrap_err();
    assert_eq!(flaws, ["deployments/two.yaml:5: this id is that of one; leave it out (resource)"]);
    assert_eq!((world.main().await, world.workloads("line-1").await.len()), (before, 0));
    // A plan says the same.
    let want = Apply { documents: vec![one, two], dry_run: true, ..Apply::default() };
    let refused = world.fleet.apply_files(&ann(), &want, Fetching::Allowed).await.unwrap_err();
    assert!(refused.to_string().contains("this id is that of one"), "{refused}");
}
