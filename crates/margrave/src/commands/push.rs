//! `margrave package push`: a vendor's package into a registry, checked first.

use margrave_core::digest::Digest;
use margrave_oci::client::{Client, ClientError};
use margrave_oci::reference::{InvalidReference, Reference, Repository, Tag, TagOrDigest};
use serde_json::json;

use super::package::{digest, sound, whole};
use crate::cli::Push;
use crate::exit::{Answer, Result, Trouble};
use crate::folder::{Bound, Folder};
use crate::render::{self, Screen};
use crate::{opening, remote};

pub(crate) async fn run(screen: &Screen, args: &Push) -> Result {
    let (repository, tag) = target(&args.target)?;
    let (_source, folder) = sound(&args.source, Bound::To(&repository.host))?;
    let Folder { package, files, components, warnings } = folder;
    for warning in &warnings {
        screen.words(format_args!("warning: {}", crate::render::printable(&warning.line())));
    }
    let files = whole(&args.source, files)?;
    let version = package.version.as_str();
    if let Some(tag) = &tag
        && tag.as_str() != version
    {
        return Err(Trouble::refused(format!(
            "the package is version {version}, and a tag is the version that it holds"
        ))
        .hint(format!("leave the tag out, or write :{version} (PK-014)")));
    }
    let tag = Tag::parse(version).map_err(|error| Trouble::refused(error.to_string()))?;
    let reference = repository.at(TagOrDigest::Tag(tag));
    let client = opening::client(&repository.host, &args.opening)?;

    // Everything is asked before anything is pushed, so that a refusal leaves nothing half-done.
    let manifest = digest(&files.manifest());
    let mut there = vec![held(&client, &reference, manifest, args.replace).await?];
    for component in &components {
        let revision = match &component.reference.version {
            TagOrDigest::Tag(tag) => tag.as_str().to_owned(),
            TagOrDigest::Digest(digest) => digest.to_string(),
        };
        let ours = digest(&component.archive.manifest(component.name.as_str(), &revision));
        there.push(held(&client, &component.reference, ours, args.replace).await?);
    }
    for component in &components {
        let pushed =
            client.push_compose(&component.reference, component.name.as_str(), &component.archive).await;
        pushed.map_err(|error| remote::unreached(&component.reference.to_string(), &error))?;
        let size = render::size(component.archive.bytes().len() as u64);
        screen.words(format_args!("  component {} pushed, {size}", component.name));
    }
    let pushed = client.push_package(&reference, &files).await;
    let pushed = pushed.map_err(|error| remote::unreached(&reference.to_string(), &error))?;
    if screen.json {
        screen.object(&json!({
            "id": package.id.to_string(),
            "version": version,
            "reference": reference.to_string(),
            "digest": pushed.to_string(),
            "changed": there.contains(&false),
        }))?;
    } else if there.contains(&false) {
        screen.words(format_args!("{}@{version} is at {reference}.", package.id));
        screen.words(format_args!("Add it with `margrave package add {}`.", reference.pinned(pushed)));
    } else {
        screen.words(format_args!("{reference} is there already, with the same content."));
    }
    Ok(Answer::Done)
}

/// Whether the registry has this very content already; other content is a refusal.
async fn held(client: &Client, reference: &Reference, ours: Digest, replace: bool) -> Result<bool> {
    match client.digest(reference).await {
        Ok(theirs) if theirs == ours => Ok(true),
        Ok(_) if replace => Ok(false),
        Ok(theirs) => Err(Trouble::refused(format!(
            "{reference} is there already, with other content ({})",
            theirs.short()
        ))
        .hint("give what changed a new version or revision; --replace moves the tag all the same")),
        Err(ClientError::NotFound(_)) => Ok(false),
        Err(error) => Err(remote::unreached(&reference.to_string(), &error)),
    }
}

fn target(text: &str) -> Result<(Repository, Option<Tag>)> {
    let broke = |error: InvalidReference| Trouble::broke(error.to_string());
    let (repository, tag) = match Repository::parse(text) {
        Ok(repository) => (repository, None),
        Err(InvalidReference::UnwantedVersion(_)) => match Reference::parse(text).map_err(broke)? {
            Reference { repository, version: TagOrDigest::Tag(tag) } => (repository, Some(tag)),
            Reference { .. } => return Err(Trouble::broke("a package is pushed to a tag, not to a digest")),
        },
        Err(error) => return Err(broke(error)),
    };
    if repository.host.is_own_registry() {
        return Err(Trouble::broke("the server's own registry is filled by adding packages")
            .hint("use `margrave package add` instead"));
    }
    Ok((repository, tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_pushed_to_a_repository_or_to_its_tag() {
        let (repository, tag) = target("oci://registry.example/a/b").unwrap();
        assert_eq!((repository.to_string().as_str(), tag), ("oci://registry.example/a/b", None));
        let (_, tag) = target("registry.example:5000/a/b:1.0.0").unwrap();
        assert_eq!(tag.unwrap().as_str(), "1.0.0");
        let digest = format!("registry.example/a@sha256:{}", "0".repeat(64));
        for bad in ["oci://margrave/a", "a", "https://registry.example/a", &digest] {
            assert!(target(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_package_that_belongs_elsewhere_is_not_sent_to_a_check_that_finds_nothing() {
        let sample = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/andon-board");
        let host = margrave_oci::reference::Host::parse("registry.example").unwrap();
        let trouble = sound(&sample, Bound::To(&host)).unwrap_err();
        assert!(trouble.message().contains("write the repository as oci://registry.example/"), "{trouble:?}");
        let hint = trouble.hinted().unwrap();
        assert!(hint.contains("nothing else is wrong") && !hint.contains("package check"), "{hint}");
    }
}
