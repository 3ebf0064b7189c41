//! `margrave package`: the catalog, and what a vendor needs to get into it.

use std::path::Path;

use jiff::Timestamp;
use margrave_core::digest::Digest;
use margrave_core::package;
use margrave_http::{Origin, Trust};
use margrave_oci::client::{self as oci, ClientError, Endpoint, Hosts, Tls};
use margrave_oci::manifest::ImageManifest;
use margrave_oci::package::PackageFiles;
use margrave_oci::reference::{Host, OWN_REGISTRY, Reference, Repository, Tag, TagOrDigest};
use margrave_wire::operator::{self, AddPackage, Context};

use super::confirm::confirm_at_terminal;
use super::{push, watch};
use crate::cli::{self, PackageAt};
use crate::client::{self, Client};
use crate::exit::{Answer, Result, Trouble, chain};
use crate::folder::{self, Bound, Component, Finding, Flaws, Folder};
use crate::remote;
use crate::render::{self, Column, Field, Screen, Table, count};
use crate::source::{self, Source};

/// The user name is not looked at; the token is the password.
const REGISTRY_USER: &str = "margrave";

pub(crate) async fn run(screen: &Screen, verb: cli::Package) -> Result {
    match verb {
        cli::Package::Add { source, connection } => {
            add(screen, &Client::connect(&connection)?, &source).await
        }
        cli::Package::List { connection } => list(screen, &Client::connect(&connection)?.packages().await?),
        cli::Package::Show { package: PackageAt { id, version }, full, connection } => {
            let client = Client::connect(&connection)?;
            let package = client.package(&id, version.as_deref()).await?;
            let texts = client.package_texts(&package.id, &package.version).await?;
            show(screen, &package, &texts, full)
        }
        cli::Package::Check(args) => check(screen, &args).await,
        cli::Package::Push(args) => push::run(screen, &args).await,
        cli::Package::Watch(args) => watch::put(screen, &args).await,
        cli::Package::Watches { connection } => {
            watch::list(screen, &Client::connect(&connection)?.watches().await?)
        }
        cli::Package::Look { repository, connection } => {
            watch::look(screen, &Client::connect(&connection)?, &repository).await
        }
        cli::Package::Unwatch { repository, connection } => {
            watch::remove(screen, &Client::connect(&connection)?, &repository).await
        }
        cli::Package::Remove { package: PackageAt { id, version }, yes, connection } => {
            let version = version.ok_or_else(|| {
                Trouble::broke("only a version can be removed, not all of them at once")
                    .hint(format!("write {id}@VERSION; `margrave package list` shows the versions"))
            })?;
            let client = Client::connect(&connection)?;
            if !confirm_at_terminal(&format!("Remove {id}@{version} from the catalog?"), yes)? {
                screen.words("Nothing was changed.");
                return Ok(Answer::No);
            }
            client.remove_package(&id, &version).await?;
            if screen.json {
                screen.object(&serde_json::json!({ "removed": format!("{id}@{version}") }))?;
            } else {
                screen.words(format_args!("{id}@{version} is no longer in the catalog."));
            }
            Ok(Answer::Done)
        }
    }
}

async fn add(screen: &Screen, client: &Client, source: &str) -> Result {
    let path = Path::new(source);
    let published = if is_reference(source) {
        let reference = Reference::parse(source).map_err(|error| Trouble::broke(error.to_string()))?;
        screen.words(format_args!("The server fetches {reference}…"));
        let added = client.add_package(&AddPackage { reference: reference.to_string() }).await?;
        Published::Added(Box::new(added))
    } else {
        publish(client, path, &mut |step| screen.words(format_args!("  {step}"))).await?
    };
    let package = match published {
        Published::Added(package) => package,
        Published::Pushed { reference, follows } => {
            if screen.json {
                screen.object(&serde_json::json!({ "pushed": reference, "follows": follows }))?;
            }
            screen.words(render::printable(&only_pushed(&reference, &follows)));
            return Ok(Answer::Done);
        }
    };
    if screen.json {
        screen.object(&package)?;
    } else {
        screen.words(format_args!("{}@{} is in the catalog.", package.id, package.version));
        tell_unpinned(screen, &package);
        screen.words(format_args!("Deploy it with `margrave deploy {} --to DEVICE`.", package.id));
        screen.words(format_args!(
            "What runs another version comes to it with `margrave deployment update NAME --version {}`.",
            package.version
        ));
    }
    Ok(Answer::Done)
}

/// What became of a package on disk.
pub(crate) enum Published {
    /// It is in the catalog.
    Added(Box<operator::Package>),
    /// It is in the server's registry. What is in the catalog is said by the remote that is followed.
    Pushed { reference: String, follows: String },
}

fn only_pushed(reference: &str, follows: &str) -> String {
    format!(
        "It is in this server's registry. What is wanted follows {follows}, so that the package comes into the catalog once a file there \
         names it, with `reference: {reference}`; if one does already, the server tries again by itself."
    )
}

/// Says which images every device takes as it finds them.
fn tell_unpinned(screen: &Screen, package: &operator::Package) {
    for image in &package.images {
        if let Some(why) = &image.unpinned {
            let line = format!(
                "The image {} is not pinned, so that each device runs what this name means there: {why}.",
                image.name
            );
            screen.words(render::printable(&line));
        }
    }
    if let Some(why) = &package.images_unknown {
        screen.words(render::printable(why));
    }
}

/// Whether this names something in a registry and not on disk.
fn is_reference(source: &str) -> bool {
    source.starts_with("oci://") || (!Path::new(source).exists() && Reference::parse(source).is_ok())
}

/// Packs what is in a folder, pushes it to the server's registry, and adds it to the catalog.
pub(crate) async fn publish(client: &Client, path: &Path, step: &mut dyn FnMut(String)) -> Result<Published> {
    let (_source, folder) = sound(path, Bound::Own)?;
    let Folder { package, files, components, warnings: _ } = folder;
    let files = whole(path, files)?;
    let (id, version) = (package.id.as_str(), package.version.as_str());
    let catalog = client.packages().await?;
    let manifest = digest(&files.manifest());
    let known = catalog.iter().find(|known| known.id == id && known.version == version);
    let moved =
        components.iter().find_map(|component| Some((component, other_content(&catalog, component)?)));
    match (known, moved) {
        (Some(known), None) if known.reference.ends_with(&manifest.to_string()) => {
            step(format!("{id}@{version} is there already, with the same content"));
            let are_pinned = known.images.iter().all(|image| image.unpinned.is_none());
            // What images mean may be found out now that was not then, where that can be written down here.
            let is_settled = are_pinned && known.images_unknown.is_none();
            if is_settled || client.intent().await?.follows.is_some() {
                return Ok(Published::Added(Box::new(known.clone())));
            }
            let again = client.add_package(&AddPackage { reference: known.reference.clone() }).await?;
            return Ok(Published::Added(Box::new(again)));
        }
        (Some(_), _) => {
            return Err(Trouble::refused(format!("{id}@{version} is in the catalog already, with other content")).hint(
                "give the changed package a new version (and changed components a new revision), or remove the old one first",
            ));
        }
        (None, Some((component, other))) => {
            return Err(Trouble::refused(format!(
                "{} is used by {}@{} in the catalog, with other content",
                component.reference, other.id, other.version
            ))
            .hint(format!("give the component {} a new revision", component.name)));
        }
        (None, None) => {}
    }

    let registry = registry(client.context())?;
    // The server would refuse the package; then nothing of it shall be left in its registry.
    let here = |component: &package::Component| components.iter().any(|one| one.name == component.name);
    let elsewhere = package.profiles.iter().flat_map(|profile| &profile.components);
    for component in elsewhere.filter(|component| !here(component)) {
        let reference = Repository::parse(&component.repository)
            .and_then(|repository| repository.at_revision(component.revision.as_str()));
        let Ok(reference) = reference else { continue };
        if !reference.repository.host.is_own_registry() {
            continue;
        }
        if let Err(ClientError::NotFound(_)) = registry.manifest(&reference).await {
            return Err(Trouble::refused(format!("{reference} is not in the server's registry")).hint(format!(
                "put the component into the folder components/{name} beside margo.yaml, or push it there first",
                name = component.name
            )));
        }
    }
    for component in &components {
        let pushed =
            registry.push_compose(&component.reference, component.name.as_str(), &component.archive).await;
        pushed.map_err(|error| not_pushed(&component.reference, &error))?;
        let size = render::size(component.archive.bytes().len() as u64);
        step(format!("component {} pushed, {size}", component.name));
    }
    let reference = Repository::parse(&format!("oci://{OWN_REGISTRY}/packages/{id}"))
        .and_then(|repository| Ok(repository.at(TagOrDigest::Tag(Tag::parse(version)?))))
        .map_err(|error| {
            Trouble::refused(error.to_string())
                .hint("a package id that begins or ends with '-' cannot be stored in a registry")
        })?;
    registry.push_package(&reference, &files).await.map_err(|error| not_pushed(&reference, &error))?;
    let bytes = files.description().len()
        + files.resources().iter().map(|resource| resource.bytes.len()).sum::<usize>();
    step(format!("package {id}@{version} pushed, {}", render::size(bytes as u64)));
    if let Some(follows) = client.intent().await?.follows {
        return Ok(Published::Pushed { reference: reference.pinned(manifest).to_string(), follows });
    }
    let added = client.add_package(&AddPackage { reference: reference.to_string() }).await?;
    Ok(Published::Added(Box::new(added)))
}

/// A package on disk that breaks no rule.
pub(super) fn sound(path: &Path, bound: Bound<'_>) -> Result<(Source, Folder)> {
    let read = match source::open(path)? {
        Ok(source) => {
            let read = folder::read(&source.path, bound)?;
            if let Err(Flaws { findings, .. }) = &read
                && folder::read(&source.path, Bound::Nowhere)?.is_ok()
            {
                return Err(misplaced(path, findings));
            }
            read.map(|folder| (source, folder)).map_err(|flaws| flaws.findings)
        }
        Err(findings) => Err(findings),
    };
    read.map_err(|findings| {
        let hint = format!("mend it, and see with `margrave package check {}`", path.display());
        broken(path, &findings).hint(hint)
    })
}

fn broken(path: &Path, findings: &[Finding]) -> Trouble {
    let lines: Vec<String> =
        findings.iter().map(|finding| format!("\n  {}", render::printable(&finding.line()))).collect();
    let rules = count(findings.len() as u64, "rule");
    Trouble::refused(format!("{} breaks {rules}:{}", path.display(), lines.concat()))
}

/// A package that is valid, and cannot go where it should: `check` would find nothing.
fn misplaced(path: &Path, findings: &[Finding]) -> Trouble {
    broken(path, findings).hint(
        "nothing else is wrong with the package: write the repositories in its margo.yaml as is said above, and try again",
    )
}

/// The files of a package; a description alone is none.
pub(super) fn whole(path: &Path, files: Option<PackageFiles>) -> Result<PackageFiles> {
    files.ok_or_else(|| {
        Trouble::broke(format!(
            "{} is a file; a package is a directory, or an archive of one",
            path.display()
        ))
        .hint("name the directory that margo.yaml is in")
    })
}

/// A package in the catalog that has something else behind the same repository and revision. A revision that
/// changes its content would change what other packages mean.
fn other_content<'a>(
    catalog: &'a [operator::Package],
    component: &Component,
) -> Option<&'a operator::Package> {
    let TagOrDigest::Tag(revision) = &component.reference.version else { return None };
    let repository = component.reference.repository.to_string();
    let ours = digest(&component.archive.manifest(component.name.as_str(), revision.as_str())).to_string();
    catalog.iter().find(|package| {
        let components = package.profiles.iter().flat_map(|profile| &profile.components);
        components
            .filter(|theirs| theirs.repository == repository && theirs.revision == revision.as_str())
            .any(|theirs| theirs.digest.as_ref().is_some_and(|digest| *digest != ours))
    })
}

pub(super) fn digest(manifest: &ImageManifest) -> Digest {
    Digest::of(&manifest.to_bytes())
}

/// A client of the server's own registry, with the operator's right.
fn registry(context: &Context) -> Result<oci::Client> {
    let origin = Origin::parse(&context.url).map_err(|error| Trouble::broke(error.to_string()))?;
    let tls = match client::trust(context)? {
        Trust::Tls(config) => Tls::Given(config),
        Trust::PlainLoopback | Trust::PlainAnywhere => Tls::PlainLoopback,
    };
    let endpoint = Endpoint::new(origin, tls).with_credentials(REGISTRY_USER, context.token.clone());
    let host = Host::parse(OWN_REGISTRY).expect("a host name");
    Ok(oci::Client::new(Hosts::new().with(host, endpoint)))
}

fn not_pushed(reference: &Reference, error: &ClientError) -> Trouble {
    let text = chain(format!("{reference} could not be pushed"), error);
    let hint = "pushing needs an operator's token; `margrave login` anew";
    match error {
        // The registry is the server's own, so that this is its no, as everywhere else.
        ClientError::Denied { .. } => Trouble::refused(text).hint(hint),
        ClientError::Unauthorized(_) => Trouble::broke(text).hint(hint),
        _ => Trouble::broke(text),
    }
}

async fn check(screen: &Screen, args: &cli::Check) -> Result {
    let path = Path::new(&args.source);
    let read = if is_reference(&args.source) {
        let reference = Reference::parse(&args.source).map_err(|error| Trouble::broke(error.to_string()))?;
        remote::read(screen, &reference, &args.opening).await?.map_err(Flaws::from)
    } else {
        match source::open(path)? {
            Ok(source) => folder::read(&source.path, Bound::Nowhere)?,
            Err(findings) => Err(findings.into()),
        }
    };
    let Flaws { findings, warnings } = match read {
        Ok(folder) => {
            if screen.json {
                screen.object(&Vec::<Finding>::new())?;
            } else {
                let Folder { package, components, warnings, .. } = folder;
                for warning in &warnings {
                    screen.words(format_args!("warning: {}", render::printable(&warning.line())));
                }
                screen.words(format_args!(
                    "{}@{} is valid: {}, {} packed from here, {}.",
                    package.id,
                    package.version,
                    count(package.profiles.len() as u64, "profile"),
                    count(components.len() as u64, "component"),
                    count(package.sections.iter().map(|s| s.settings.len() as u64).sum::<u64>(), "question"),
                ));
            }
            return Ok(Answer::Done);
        }
        Err(flaws) => flaws,
    };
    if screen.json {
        screen.object(&findings)?;
    } else {
        for warning in &warnings {
            screen.words(format_args!("warning: {}", render::printable(&warning.line())));
        }
        for finding in &findings {
            screen.data(render::printable(&finding.line()))?;
        }
        screen.words(format_args!("{} to mend.", count(findings.len() as u64, "thing")));
    }
    Ok(Answer::No)
}

fn list(screen: &Screen, packages: &[operator::Package]) -> Result {
    if screen.json {
        screen.object(&packages)?;
        return Ok(Answer::Done);
    }
    if packages.is_empty() {
        screen.words("The catalog is empty. Add a package with `margrave package add DIR`.");
        return Ok(Answer::Done);
    }
    let mut table = Table::new(&[
        Column::fixed("PACKAGE"),
        Column::fixed("VERSION"),
        Column::fixed("RUNS AS").optional(),
        Column::fixed("USED BY").optional(),
        Column::flexible("WHAT IT IS"),
    ]);
    for package in packages {
        let mut kinds: Vec<&str> = package.profiles.iter().map(|profile| profile.kind.as_str()).collect();
        kinds.dedup();
        table.row([
            package.id.as_str().into(),
            package.version.as_str().into(),
            kinds.join(" ").into(),
            count(package.deployments.len() as u64, "deployment").into(),
            package.tagline.clone().unwrap_or_else(|| package.name.clone()).into(),
        ]);
    }
    screen.table(&table)?;
    Ok(Answer::Done)
}

fn show(screen: &Screen, package: &operator::Package, texts: &operator::PackageTexts, full: bool) -> Result {
    if screen.json {
        #[derive(serde::Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            package: &'a operator::Package,
            texts: &'a operator::PackageTexts,
        }
        screen.object(&Whole { package, texts })?;
        return Ok(Answer::Done);
    }
    let mut facts = vec![
        ("Package", format!("{}@{}", package.id, package.version)),
        ("Name", package.name.clone()),
        ("From", package.organization.clone()),
    ];
    if let Some(tagline) = &package.tagline {
        facts.push(("Tagline", tagline.clone()));
    }
    if let Some(description) = &package.description {
        facts.push(("Description", description.clone()));
    }
    facts.push(("Reference", package.reference.clone()));
    facts.push((
        "Added",
        format!("{}, by {}", render::ago(&package.added_at, Timestamp::now()), package.added_by),
    ));
    if !package.deployments.is_empty() {
        facts.push(("Used by", package.deployments.join(", ")));
    }
    facts.extend(package.warnings.iter().map(|warning| ("Its registry", warning.text.clone())));
    screen.facts(&facts)?;
    let several = [
        ("Description", &texts.description, TEXT_LINES_MAX),
        ("Release notes", &texts.release_notes, TEXT_LINES_MAX),
        // Everybody knows how these go on.
        ("Licence", &texts.license, 5),
    ];
    for (title, text, lines_max) in several {
        if let Some(text) = text {
            show_text(screen, title, text, if full { usize::MAX } else { lines_max })?;
        }
    }
    screen.heading("Profiles and their components, in the order of installation")?;
    let mut table = Table::new(&[
        Column::fixed("PROFILE"),
        Column::fixed("RUNS AS"),
        Column::fixed("COMPONENT"),
        Column::fixed("REVISION"),
        Column::flexible("REPOSITORY").optional(),
    ]);
    for profile in &package.profiles {
        for component in &profile.components {
            table.row([
                profile.id.as_str().into(),
                profile.kind.as_str().into(),
                component.name.as_str().into(),
                component.revision.as_str().into(),
                component.repository.as_str().into(),
            ]);
        }
    }
    screen.table(&table)?;
    show_images(screen, package)?;
    for section in &package.sections {
        screen.heading(&render::printable(&format!("Questions: {}", section.name)))?;
        let mut table = Table::new(&[
            Column::fixed("PARAMETER"),
            Column::fixed("TYPE"),
            Column::fixed("DEFAULT"),
            Column::flexible("QUESTION"),
        ]);
        for setting in &section.settings {
            table.row([
                setting.parameter.as_str().into(),
                setting.data_type.as_str().into(),
                default(setting),
                question(setting).into(),
            ]);
        }
        screen.table(&table)?;
    }
    Ok(Answer::Done)
}

/// What the images of its components mean.
fn show_images(screen: &Screen, package: &operator::Package) -> Result<()> {
    if package.images.is_empty() && package.images_unknown.is_none() {
        return Ok(());
    }
    screen.heading("Images")?;
    if let Some(why) = &package.images_unknown {
        screen.data(render::printable(why))?;
    }
    if package.images.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::fixed("IMAGE"),
        Column::fixed("SIZE").optional(),
        Column::flexible("WHAT EVERY DEVICE RUNS"),
    ]);
    for image in &package.images {
        let sizes = image.bytes.iter().map(|(processor, bytes)| match processor.as_str() {
            "any" => render::size(*bytes),
            processor => format!("{} ({processor})", render::size(*bytes)),
        });
        let meaning = match (&image.digest, &image.unpinned) {
            (Some(digest), _) => digest.clone(),
            (None, Some(why)) => format!("not pinned: {why}"),
            (None, None) => "not pinned".to_owned(),
        };
        table.row([image.name.as_str().into(), sizes.collect::<Vec<_>>().join(", ").into(), meaning.into()]);
    }
    screen.table(&table)?;
    Ok(())
}

/// Lines of a text that are shown unless all are asked for.
const TEXT_LINES_MAX: usize = 30;

fn show_text(screen: &Screen, title: &str, text: &operator::PackageText, lines_max: usize) -> Result<()> {
    screen.heading(&render::printable(&format!("{title} ({})", text.path)))?;
    let lines: Vec<&str> = text.text.lines().collect();
    for line in lines.iter().take(lines_max) {
        screen.data(render::printable(line))?;
    }
    if lines.len() > lines_max {
        let left = count((lines.len() - lines_max) as u64, "more line");
        screen.words(format_args!("… {left}; --full shows them."));
    } else if text.truncated {
        screen.words(format_args!("… {} goes on in the package.", text.path));
    }
    Ok(())
}

fn default(setting: &operator::PackageSetting) -> Field {
    match &setting.default {
        Some(value) => Field::plain(render::value(value)),
        None if setting.required => Field::plain("must be given"),
        None => Field::plain(""),
    }
}

fn question(setting: &operator::PackageSetting) -> String {
    let mut text = setting.description.clone().unwrap_or_else(|| setting.name.clone());
    if !setting.options.is_empty() {
        let choose = if setting.multiselect { "some of" } else { "one of" };
        text.push_str(&format!(" [{choose}: {}]", setting.options.join(", ")));
    }
    if setting.immutable {
        text.push_str(" [cannot change later]");
    }
    text
}
