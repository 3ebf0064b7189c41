//! Whether what did not start is made for another kind of machine: engines start such images, and all that is seen then is
//! a program that ends at once.
//!
//! Nothing is refused because of it. Some machines run programs of others, and they are not asked here whether they do.

use margrave_core::report::Failure;
use serde::Deserialize;

use super::container::LABEL_PROJECT;
use super::engine::{Engine, EngineError};
use super::project::ProjectName;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    /// The id of the image that it was made from.
    image: String,
    config: Configured,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Configured {
    /// The image as the compose file names it.
    image: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Machine {
    #[serde(alias = "Arch", default)]
    architecture: String,
}

/// Says so too, when something of a project that could not start is not for this machine.
pub(super) async fn explained(engine: &Engine, project: &ProjectName, failure: Failure) -> Failure {
    match found(engine, project).await {
        Ok(Some(words)) => Failure { message: format!("{} {words}", failure.message), ..failure },
        Ok(None) => failure,
        Err(error) => {
            tracing::debug!(%error, "it could not be told for which machine the images are");
            failure
        }
    }
}

async fn found(engine: &Engine, project: &ProjectName) -> Result<Option<String>, EngineError> {
    let own: Machine = engine.read("/version").await?;
    for id in engine.container_ids(&[(LABEL_PROJECT, project.as_str())]).await? {
        let container: Inspected = engine.read(&format!("/containers/{id}/json")).await?;
        let image: Machine = engine.read(&format!("/images/{}/json", container.image)).await?;
        if let Some(words) = mismatch(&container.config.image, &image.architecture, &own.architecture) {
            return Ok(Some(words));
        }
    }
    Ok(None)
}

fn mismatch(image: &str, made_for: &str, own: &str) -> Option<String> {
    // The older half of a family runs on the newer one.
    let runs = made_for == own || matches!((made_for, own), ("386", "amd64") | ("arm", "arm64"));
    let known = !made_for.is_empty() && !own.is_empty();
    (known && !runs).then(|| format!("The image {image} is made for {made_for}, and this device is {own}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_run_here_is_called_foreign() {
        let check = |made_for: &str, own: &str| mismatch("r/web:1", made_for, own);
        for (made_for, own) in [("amd64", "amd64"), ("386", "amd64"), ("arm", "arm64"), ("", "amd64")] {
            assert_eq!(check(made_for, own), None, "{made_for} on {own}");
        }
        let words = "The image r/web:1 is made for arm64, and this device is amd64.";
        assert_eq!(check("arm64", "amd64").as_deref(), Some(words));
        assert!(check("amd64", "386").is_some() && check("arm64", "arm").is_some());
    }

    #[test]
    fn engines_say_it_under_two_names() {
        let read = |text: &str| serde_json::from_str::<Machine>(text).unwrap().architecture;
        assert_eq!(read(r#"{"Version": "20.10.24", "Arch": "amd64"}"#), "amd64");
        assert_eq!(read(r#"{"Id": "sha256:1", "Architecture": "s390x"}"#), "s390x");
        assert_eq!(read("{}"), "");
    }
}
