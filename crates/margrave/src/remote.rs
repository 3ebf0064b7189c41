//! A package as it lies in a registry, and everything that is wrong with it.
//!
//! The same questions that a server asks when it adds the package; here all of them are asked, so that a vendor mends
//! everything in one go.

use std::collections::BTreeSet;

use margrave_core::chain::sentence;
use margrave_core::package::{Component, Package, ProfileKind};
use margrave_core::violation::Violation;
use margrave_oci::archive::{self, ArchiveError};
use margrave_oci::client::{Client, ClientError};
use margrave_oci::compose;
use margrave_oci::manifest::{Descriptor, ImageManifest};
use margrave_oci::package::{DESCRIPTION_FILE, PackageError, PackageManifest, ResourceKind};
use margrave_oci::reference::{Reference, Repository, TagOrDigest};
use margrave_wire::description;

use crate::cli::Opening;
use crate::exit::{Result, Trouble};
use crate::folder::{self, Finding, Folder};
use crate::opening;
use crate::render::Screen;

/// The inner error is what is wrong with the package, never empty.
pub(crate) async fn read(
    screen: &Screen,
    reference: &Reference,
    opening: &Opening,
) -> Result<std::result::Result<Folder, Vec<Finding>>> {
    if reference.repository.host.is_own_registry() {
        return Err(Trouble::broke("which server's registry is meant cannot be known here")
            .hint("write the server's own address in place of margrave, and give --user"));
    }
    let client = opening::client(&reference.repository.host, opening)?;
    let what = reference.to_string();
    let pulled = client.manifest(reference).await.map_err(|error| unreached(&what, &error))?;
    let manifest = match PackageManifest::read(&what, &pulled.bytes) {
        Ok(manifest) => manifest,
        Err(error) => return Ok(Err(vec![Finding::in_file(what, rule(&error), sentence(&error))])),
    };
    let mut findings = Vec::new();
    check_config(&what, &pulled.bytes, &mut findings);
    let description = match client.package_description(&reference.repository, &manifest).await {
        Ok(description) => description,
        Err(PackageError::Client(ClientError::NotFound(_))) => {
            findings.push(Finding::in_file(
                DESCRIPTION_FILE,
                "PK-040",
                "is not in the registry; push the package again",
            ));
            return Ok(Err(findings));
        }
        Err(error) => return Err(Trouble::because(format!("{what} could not be fetched"), &error)),
    };
    let package = match description::read(&description) {
        Ok(package) => package,
        Err(violations) => {
            let broken = violations.into_iter().map(|one| Finding::in_description(&description, one));
            findings.extend(broken);
            return Ok(Err(findings));
        }
    };
    if let TagOrDigest::Tag(tag) = &reference.version
        && tag.as_str() != package.version.as_str()
    {
        let message = format!(
            "the tag {tag} holds version {}; push it under the tag {}",
            package.version, package.version
        );
        findings.push(Finding::in_description(
            &description,
            Violation::new("/metadata/version", "PK-014", message),
        ));
    }
    check_resources(&manifest, &package, &description, &mut findings);
    check_components(screen, &client, reference, opening, &package, &description, &mut findings).await?;
    if !findings.is_empty() {
        return Ok(Err(findings));
    }
    let warnings = folder::doubts(Some(&package), &description);
    Ok(Ok(Folder { package, files: None, components: Vec::new(), warnings }))
}

fn check_config(what: &str, manifest: &[u8], findings: &mut Vec<Finding>) {
    let Ok(manifest) = ImageManifest::from_bytes(manifest) else { return };
    let wanted = Descriptor::empty_config();
    if (&manifest.config.media_type, manifest.config.digest) != (&wanted.media_type, wanted.digest) {
        let message = format!(
            "has a config of type {:?}; a package has the empty one, {} with digest {}",
            manifest.config.media_type, wanted.media_type, wanted.digest
        );
        findings.push(Finding::in_file(what, "PK-022", message));
    }
}

fn check_resources(
    manifest: &PackageManifest,
    package: &Package,
    description: &[u8],
    findings: &mut Vec<Finding>,
) {
    for (kind, path) in ResourceKind::named_in(&package.catalog) {
        let (rule, message) = match manifest.resource(kind, path) {
            None => ("PK-002", format!("{path} is not in the package; push it too, or remove this line")),
            Some(found) if found.kind != Some(kind) => {
                let wanted = format!("application/vnd.margo.app.{}.v1+FORMAT", kind.as_str());
                (
                    "PK-025",
                    format!("{path} has the media type {:?}; push it as {wanted}", found.layer.media_type),
                )
            }
            Some(_) => continue,
        };
        let place = format!("/metadata/catalog/application/{}", kind.as_str());
        findings.push(Finding::in_description(description, Violation::new(place, rule, message)));
    }
}

async fn check_components(
    screen: &Screen,
    client: &Client,
    package_at: &Reference,
    opening: &Opening,
    package: &Package,
    description: &[u8],
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let mut seen = BTreeSet::new();
    for (number, profile) in package.profiles.iter().enumerate() {
        for (at, component) in profile.components.iter().enumerate() {
            let place = format!("/deploymentProfiles/{number}/components/{at}/properties");
            let (reference, host) = match reference(component) {
                Ok(reference) => (reference.clone(), reference.repository.host),
                Err(message) => {
                    let place = format!("{place}/repository");
                    findings
                        .push(Finding::in_description(description, Violation::new(place, "DM-030", message)));
                    continue;
                }
            };
            if !seen.insert(reference.to_string()) {
                continue;
            }
            if host.is_own_registry() {
                screen.words(format_args!(
                    "{} is in the registry of whichever server the package is added to, and was not looked at.",
                    component.name
                ));
                continue;
            }
            // What was given is for the package's registry, and for no other.
            let broken = if host == package_at.repository.host {
                look(client, &reference, profile.kind).await?
            } else {
                look(
                    &opening::client(&host, &Opening { ca: opening.ca.clone(), ..Opening::default() })?,
                    &reference,
                    profile.kind,
                )
                .await?
            };
            if let Some((rule, message)) = broken {
                let place = format!("{place}/revision");
                findings.push(Finding::in_description(description, Violation::new(place, rule, message)));
            }
        }
    }
    Ok(())
}

fn reference(component: &Component) -> std::result::Result<Reference, String> {
    Repository::parse(&component.repository)
        .and_then(|repository| repository.at_revision(component.revision.as_str()))
        .map_err(|error| error.to_string())
}

/// What is wrong with one component, and the rule that it breaks.
async fn look(
    client: &Client,
    reference: &Reference,
    kind: ProfileKind,
) -> Result<Option<(&'static str, String)>> {
    let what = reference.to_string();
    let pulled = match client.manifest(reference).await {
        Ok(pulled) => pulled,
        Err(ClientError::NotFound(_)) => {
            return Ok(Some(("PK-040", format!("{what} is not in its registry; push the component first"))));
        }
        Err(error) => return Err(unreached(&what, &error)),
    };
    if kind != ProfileKind::Compose {
        return Ok(None);
    }
    let layer = match compose::layer_of(&what, &pulled.bytes) {
        Ok(layer) => layer,
        Err(error) => return Ok(Some(("PK-078", sentence(&error)))),
    };
    let scratch =
        tempfile::tempdir().map_err(|error| Trouble::because("there is no place for the archive", &error))?;
    let path = scratch.path().join("archive");
    client
        .blob_to_file(&reference.repository, &layer, &path)
        .await
        .map_err(|error| unreached(&what, &error))?;
    let mut file = std::fs::File::open(&path)
        .map_err(|error| Trouble::because(format!("the archive of {what} cannot be read"), &error))?;
    match archive::check(&mut file, layer.digest) {
        Ok(_) => Ok(None),
        Err(ArchiveError::Io { source, .. }) => {
            Err(Trouble::because(format!("the archive of {what} cannot be read"), &source))
        }
        Err(error) => Ok(Some(("PK-095", format!("{what}: {}", sentence(&error))))),
    }
}

/// The rule that each is about.
fn rule(error: &PackageError) -> &'static str {
    match error {
        PackageError::ArtifactType { .. } => "PK-021",
        PackageError::Descriptions { .. } => "PK-024",
        PackageError::Title(_) | PackageError::Duplicate(_) => "PK-026",
        PackageError::TooMany | PackageError::TooLarge { .. } => "PK-023",
        _ => "PK-020",
    }
}

pub(crate) fn unreached(what: &str, error: &ClientError) -> Trouble {
    let trouble = match error {
        ClientError::NotFound(_) | ClientError::Unauthorized(_) | ClientError::Denied { .. } => {
            Trouble::refused(sentence(error))
        }
        _ => Trouble::because(format!("{what} could not be fetched"), error),
    };
    match error {
        ClientError::Unauthorized(_) | ClientError::Denied { .. } => {
            trouble.hint("give --user, and the password by --password-stdin, or `docker login` there first")
        }
        ClientError::Network { source: margrave_http::Error::Tls { .. }, .. } => {
            trouble.hint("a registry with an authority of its own is trusted with --ca FILE")
        }
        _ => trouble,
    }
}
