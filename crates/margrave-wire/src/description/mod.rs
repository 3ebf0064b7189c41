//! Application descriptions (`margo.yaml`) → [`Package`].
//!
//! Collects every broken rule of the checklist (data-model.md, section 12), so that a vendor mends a package
//! in one go. Tolerates what costs nobody anything: a leftover `kind` (DM-005) and the `ENV.` prefix of
//! Compose pointers (DM-043). Older shapes are refused, with words on how to port them.

pub(crate) mod configuration;
pub(crate) mod constraints;
pub(crate) mod profile;

use margrave_core::id::{PackageId, PackageVersion};
use margrave_core::package::{
    Author, Catalog, Organization, Package, check_profiles, check_settings, check_targets,
};
use margrave_core::violation::Violation;

use crate::tree::{At, Content, Findings};
use crate::yaml;

/// The only version of the description that exists (DM-001).
const API_VERSION: &str = "v1";

/// The package that a description describes.
///
/// # Errors
/// Every broken rule; never empty.
pub fn read(bytes: &[u8]) -> Result<Package, Vec<Violation>> {
    let node = yaml::read(bytes).map_err(|error| vec![Violation::new("", "YAML", error.to_string())])?;
    let root = At::root(&node);
    let mut findings = Findings::default();
    if !findings.is_map(&root, "DM-001") {
        return Err(findings.into_vec());
    }
    read_version(&root, &mut findings);
    let id = findings
        .required(&root, "id", "DM-003")
        .and_then(|at| findings.parsed(&at, "DM-003", PackageId::parse));
    for (key, at) in root.entries().filter(|(key, _)| crate::tree::is_extension(key)) {
        if !matches!(at.node.content, Content::Map(_)) {
            findings.add(at.place, "DM-200", format!("the value of {key} must be an object"));
        }
    }
    let metadata =
        findings.required_map(&root, "metadata", "DM-010").map(|at| read_metadata(&at, &mut findings));

    let mut told = findings.len();
    let mut is_whole = |findings: &Findings| std::mem::replace(&mut told, findings.len()) == findings.len();
    let profiles = profile::read_all(&root, &mut findings);
    let has_profiles = is_whole(&findings);
    let parameters = configuration::read_parameters(&root, &profiles, &mut findings);
    let has_parameters = is_whole(&findings);
    let (sections, schemas) = configuration::read_configuration(&root, &mut findings);
    let has_configuration = is_whole(&findings);
    // Half-read parts would only produce complaints about what the other complaints already explain.
    let mut broken = Vec::new();
    if has_profiles {
        check_profiles(&profiles, &mut broken);
    }
    if has_profiles && has_parameters {
        check_targets(&profiles, &parameters, &mut broken);
    }
    if has_parameters && has_configuration {
        check_settings(&parameters, &sections, &schemas, &mut broken);
    }
    for violation in broken {
        findings.push(violation);
    }

    match (id, metadata) {
        (Some(id), Some(Metadata { name: Some(name), version: Some(version), description, catalog }))
            if findings.is_empty() =>
        {
            Ok(Package { id, version, name, description, catalog, profiles, parameters, sections, schemas })
        }
        _ => Err(findings.into_vec()),
    }
}

/// What a description has at the top.
const MEMBERS: [&str; 7] =
    ["apiVersion", "kind", "id", "metadata", "deploymentProfiles", "parameters", "configuration"];

/// What stands at the top of a description and nobody reads. The standard does not forbid it (DM-005); more often than not it is
/// a slip of the pen, and what was meant is lost.
pub fn unread(bytes: &[u8]) -> Vec<Violation> {
    let Ok(node) = yaml::read(bytes) else { return Vec::new() };
    let root = At::root(&node);
    let unread = root.entries().filter(|(key, _)| !MEMBERS.contains(key) && !crate::tree::is_extension(key));
    unread.map(|(key, at)| Violation::new(at.place, "DM-005", profile::unknown(key, &MEMBERS))).collect()
}

/// Line and column, from 1, of what a violation speaks of; `None` when the bytes are no YAML (the message
/// then says where).
pub fn locate(bytes: &[u8], violation: &Violation) -> Option<(u32, u32)> {
    yaml::read(bytes).ok().map(|node| node.locate(&violation.place))
}

fn read_version(root: &At<'_>, findings: &mut Findings) {
    let Some(version) = findings.required_text(root, "apiVersion", "DM-001") else { return };
    if version == API_VERSION {
        return;
    }
    let shown: String = version.chars().take(60).collect();
    let message = if version.starts_with("margo.org/") || root.has("kind") {
        format!(
            "{shown:?} is an older shape of the description; to port it, set apiVersion to v1, remove kind, move \
             metadata.id to the top level, write profile types as helm or compose, and replace \
             packageLocation and keyLocation by repository and revision"
        )
    } else {
        format!("must be v1, the only version of the description, got {shown:?}")
    };
    findings.add("/apiVersion", "DM-001", message);
}

struct Metadata {
    name: Option<String>,
    version: Option<PackageVersion>,
    description: Option<String>,
    catalog: Catalog,
}

fn read_metadata(at: &At<'_>, findings: &mut Findings) -> Metadata {
    let name = findings.required_text(at, "name", "DM-010").map(str::to_owned);
    let version = findings
        .required(at, "version", "DM-010")
        .and_then(|at| findings.parsed(&at, "PK-016", PackageVersion::parse));
    if at.has("id") {
        findings.add(at.place_of("id"), "DM-003", "the id moved out of metadata; write it at the top level");
    }
    let description = findings.optional_text(at, "description", "DM-010");
    let catalog = findings
        .required_map(at, "catalog", "DM-010")
        .map(|at| read_catalog(&at, findings))
        .unwrap_or_default();
    Metadata { name, version, description, catalog }
}

fn read_catalog(at: &At<'_>, findings: &mut Findings) -> Catalog {
    let mut catalog = Catalog::default();
    if let Some(application) = at.field("application").filter(|at| findings.is_map(at, "DM-010")) {
        catalog.tagline = findings.optional_text(&application, "tagline", "DM-010");
        catalog.site = findings.optional_text(&application, "site", "DM-010");
        catalog.icon = read_file(&application, "icon", findings);
        catalog.description_file = read_file(&application, "descriptionFile", findings);
        catalog.license_file = read_file(&application, "licenseFile", findings);
        catalog.release_notes = read_file(&application, "releaseNotes", findings);
        let tags = findings.optional_items(&application, "tags", "DM-010");
        catalog.tags =
            tags.iter().filter_map(|tag| findings.text(tag, "DM-010").map(str::to_owned)).collect();
    }
    for author in findings.optional_items(at, "author", "DM-010") {
        if findings.is_map(&author, "DM-010") {
            let name = findings.optional_text(&author, "name", "DM-010");
            let email = findings.optional_text(&author, "email", "DM-010");
            if email.as_ref().is_some_and(|email| !email.contains('@')) {
                findings.add(author.place_of("email"), "DM-010", "an e-mail address contains an @");
            }
            catalog.authors.push(Author { name, email });
        }
    }
    let organizations = findings.required_items(at, "organization", "DM-010");
    if organizations.as_ref().is_some_and(Vec::is_empty) {
        findings.add(at.place_of("organization"), "DM-010", "needs at least one organization with a name");
    }
    for organization in organizations.unwrap_or_default() {
        if findings.is_map(&organization, "DM-010") {
            let site = findings.optional_text(&organization, "site", "DM-010");
            if let Some(name) = findings.required_text(&organization, "name", "DM-010") {
                catalog.organizations.push(Organization { name: name.to_owned(), site });
            }
        }
    }
    catalog
}

/// A path inside the package, `./` removed (DM-012).
fn read_file(at: &At<'_>, key: &str, findings: &mut Findings) -> Option<String> {
    let path = findings.optional_text(at, key, "DM-012")?;
    let inside = path.strip_prefix("./").unwrap_or(&path);
    let outside = inside.is_empty() || inside.starts_with('/') || inside.split('/').any(|part| part == "..");
    if outside {
        let message = "must be a path inside the package, such as ./resources/icon.png";
        findings.add(at.place_of(key), "DM-012", message);
        return None;
    }
    Some(inside.to_owned())
}

#[cfg(test)]
mod tests;
