//! A package as its vendor keeps it on disk, and everything that is wrong with it.
//!
//! ```text
//! margo.yaml                        the description (PK-001)
//! resources/…                       icon, texts; whatever the description names (PK-002)
//! components/<component>/compose.yaml …   what becomes a Compose archive, if the vendor keeps it here
//! ```
//!
//! Reads, checks and packs; pushes nothing. All findings are collected, so that a vendor mends them in one go.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use margrave_core::id::ComponentName;
use margrave_core::package::{Package, ProfileKind, START_TIME_MAX};
use margrave_core::violation::{Violation, join};
use margrave_oci::compose::{BuildError, ComposeArchive};
use margrave_oci::in_binary;
use margrave_oci::package::{
    DESCRIPTION_BYTES_MAX, DESCRIPTION_FILE, PackageFiles, RESOURCE_BYTES_MAX, ResourceKind,
};
use margrave_oci::reference::{Host, OWN_REGISTRY, Reference, Repository};
use margrave_wire::compose::Writable;
use margrave_wire::description;
use serde::Serialize;

use crate::exit::{Result, Trouble, chain};

const COMPONENTS: &str = "components";

/// One thing that is wrong, where, and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Relative to the package.
    pub(crate) file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) column: Option<u32>,
    /// A JSON Pointer into the file; empty for all of it.
    pub(crate) place: String,
    pub(crate) rule: String,
    pub(crate) message: String,
}

impl Finding {
    pub(crate) fn in_file(file: impl Into<String>, rule: &str, message: impl Into<String>) -> Self {
        let (rule, message) = told_once(rule, message.into());
        Finding { file: file.into(), line: None, column: None, place: String::new(), rule, message }
    }

    pub(crate) fn in_description(bytes: &[u8], violation: Violation) -> Self {
        let at = description::locate(bytes, &violation).filter(|(line, _)| *line > 0);
        let (rule, message) = told_once(violation.rule, violation.message);
        Finding {
            file: DESCRIPTION_FILE.to_owned(),
            line: at.map(|(line, _)| line),
            column: at.map(|(_, column)| column),
            place: violation.place,
            rule,
            message,
        }
    }

    /// As compilers write it, so that editors find the place.
    pub(crate) fn line(&self) -> String {
        let mut text = self.file.clone();
        if let Some(line) = self.line {
            text.push_str(&format!(":{line}"));
            if let Some(column) = self.column {
                text.push_str(&format!(":{column}"));
            }
        }
        let place = if self.place.is_empty() { String::new() } else { format!("{}: ", self.place) };
        format!("{text}: {place}{} ({})", self.message, self.rule)
    }
}

/// The rule that is broken, and the words without it. Words that name one themselves know it better than whoever passes them on.
fn told_once(rule: &str, message: String) -> (String, String) {
    let is_rule = |text: &str| {
        let (letters, number) = text.split_once('-').unwrap_or_default();
        letters.len() == 2
            && letters.bytes().all(|b| b.is_ascii_uppercase())
            && number.len() == 3
            && number.bytes().all(|b| b.is_ascii_digit())
    };
    for (at, _) in message.match_indices(" (") {
        let Some((named, rest)) = message[at + 2..].split_once(')') else { break };
        if is_rule(named) {
            return (named.to_owned(), format!("{}{rest}", &message[..at]));
        }
    }
    (rule.to_owned(), message)
}

/// What is wrong with a package, never nothing, and what else is worth knowing.
#[derive(Debug)]
pub(crate) struct Flaws {
    pub(crate) findings: Vec<Finding>,
    pub(crate) warnings: Vec<Finding>,
}

impl From<Vec<Finding>> for Flaws {
    fn from(findings: Vec<Finding>) -> Self {
        Flaws { findings, warnings: Vec::new() }
    }
}

/// A package folder in which nothing is wrong, ready to be pushed.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) package: Package,
    /// Absent when only a description was read.
    pub(crate) files: Option<PackageFiles>,
    pub(crate) components: Vec<Component>,
    /// What is no error, and worth knowing.
    pub(crate) warnings: Vec<Finding>,
}

/// One Compose component that the vendor keeps in the folder.
#[derive(Debug, Clone)]
pub(crate) struct Component {
    pub(crate) name: ComponentName,
    pub(crate) archive: ComposeArchive,
    /// Where it belongs: in its repository, by the component's revision.
    pub(crate) reference: Reference,
}

/// Where the components of a folder are to go; what belongs elsewhere is a finding.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound<'a> {
    /// Nothing is pushed.
    Nowhere,
    /// To the server that the package is added to.
    Own,
    To(&'a Host),
}

impl Bound<'_> {
    /// Why a component's folder cannot go where its repository says.
    fn refuses(self, folder: &str, repository: &Repository) -> Option<String> {
        match self {
            Bound::Nowhere => None,
            Bound::Own if repository.host.is_own_registry() => None,
            Bound::Own => Some(format!(
                "the folder {folder} can only be pushed to the server's own registry; write the repository as \
                 oci://{OWN_REGISTRY}/…, or push the package to {} with `margrave package push` and add it from there",
                repository.host
            )),
            Bound::To(host) if repository.host == *host => None,
            Bound::To(host) if repository.host.is_own_registry() => Some(format!(
                "the folder {folder} belongs to the registry of whichever server the package is added to; for a package \
                 in {host} write the repository as oci://{host}/…"
            )),
            Bound::To(host) => Some(format!(
                "the folder {folder} belongs to {}, and this goes to {host}; push the component there yourself and remove \
                 the folder, or write the repository as oci://{host}/…",
                repository.host
            )),
        }
    }
}

/// Reads a package folder, or a description alone. The inner error is everything that is wrong with the package: what can be judged
/// without the rest is, whatever the rest is like.
pub(crate) fn read(path: &Path, bound: Bound<'_>) -> Result<std::result::Result<Folder, Flaws>> {
    let unreadable =
        |error: io::Error| Trouble::because(format!("{} cannot be read", path.display()), &error);
    let meta = fs::metadata(path).map_err(unreadable)?;
    let (root, file) =
        if meta.is_dir() { (Some(path), path.join(DESCRIPTION_FILE)) } else { (None, path.to_owned()) };
    let description = match bounded(&file, DESCRIPTION_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(Unread::Missing) => {
            let message =
                format!("is missing; a package has its description in {DESCRIPTION_FILE} at the top");
            return Ok(Err(vec![Finding::in_file(DESCRIPTION_FILE, "PK-001", message)].into()));
        }
        Err(Unread::Unfit(why)) => {
            return Ok(Err(vec![Finding::in_file(DESCRIPTION_FILE, "PK-001", why)].into()));
        }
        Err(Unread::Failed(error)) => return Err(unreadable(error)),
    };
    // A description that was named by itself may have any name.
    let name = file.file_name().map_or(DESCRIPTION_FILE.into(), |name| name.to_string_lossy());
    let named_so = |finding: Finding| Finding { file: name.clone().into_owned(), ..finding };
    let mut findings = Vec::new();
    let package = match description::read(&description) {
        Ok(package) => Some(package),
        Err(violations) => {
            let broken = violations.into_iter().map(|one| Finding::in_description(&description, one));
            findings.extend(broken.map(named_so));
            None
        }
    };
    let doubts = doubts(package.as_ref(), &description);
    let mut warnings: Vec<Finding> = doubts.into_iter().map(named_so).collect();
    let mut components = Vec::new();
    let mut files = None;
    if let Some(root) = root {
        let named =
            package.as_ref().map(|package| ResourceKind::named_in(&package.catalog)).unwrap_or_default();
        check_resources(root, &named, &description, &mut findings).map_err(unreadable)?;
        let read = read_components(root, bound, package.as_ref(), &description, &mut findings, &mut warnings);
        components = read.map_err(unreadable)?;
        if findings.is_empty() {
            match PackageFiles::read_dir(root, &named) {
                Ok(read) => files = Some(read),
                Err(error) => findings.push(Finding::in_file("resources", "PK-023", told(&error))),
            }
        }
    }
    Ok(match package {
        Some(package) if findings.is_empty() => Ok(Folder { package, files, components, warnings }),
        _ => Err(Flaws { findings, warnings }),
    })
}

/// What breaks no rule of a description, and is not what its writer meant.
pub(crate) fn doubts(package: Option<&Package>, description: &[u8]) -> Vec<Finding> {
    let unread = description::unread(description).into_iter();
    let unread = unread.map(|one| Finding::in_description(description, one));
    unread.chain(package.iter().flat_map(|package| long_timeouts(package, description))).collect()
}

/// Timeouts that devices do not wait for.
fn long_timeouts(package: &Package, description: &[u8]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, profile) in package.profiles.iter().enumerate() {
        for (at, component) in profile.components.iter().enumerate() {
            let Some(timeout) = component.timeout.filter(|timeout| timeout.duration() > START_TIME_MAX)
            else {
                continue;
            };
            let message = format!(
                "{timeout} is longer than a device waits for a component to come up; after {} min it counts as failed",
                START_TIME_MAX.as_secs() / 60
            );
            let place = format!("/deploymentProfiles/{number}/components/{at}/properties/timeout");
            found.push(Finding::in_description(description, Violation::new(place, "DM-033", message)));
        }
    }
    found
}

fn check_resources(
    root: &Path,
    named: &[(ResourceKind, &str)],
    description: &[u8],
    findings: &mut Vec<Finding>,
) -> io::Result<()> {
    for (kind, path) in named {
        let why = match bounded(&root.join(path), RESOURCE_BYTES_MAX) {
            Ok(_) => continue,
            Err(Unread::Missing) => {
                "does not exist in the package; add the file, or remove this line".to_owned()
            }
            Err(Unread::Unfit(why)) => why,
            Err(Unread::Failed(error)) => return Err(error),
        };
        let place = format!("/metadata/catalog/application/{}", kind.as_str());
        findings.push(Finding::in_description(
            description,
            Violation::new(place, "PK-002", format!("{path} {why}")),
        ));
    }
    Ok(())
}

/// Without a package, because its description could not be read, the folders are judged by what is in them.
fn read_components(
    root: &Path,
    bound: Bound<'_>,
    package: Option<&Package>,
    description: &[u8],
    findings: &mut Vec<Finding>,
    warnings: &mut Vec<Finding>,
) -> io::Result<Vec<Component>> {
    let folders = match fs::read_dir(root.join(COMPONENTS)) {
        Ok(entries) => {
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    // By name, with the place in the description; only Compose components have a folder.
    let mut known = BTreeMap::new();
    for (number, profile) in package.iter().flat_map(|package| package.profiles.iter().enumerate()) {
        for (at, component) in profile.components.iter().enumerate() {
            let place = format!("/deploymentProfiles/{number}/components/{at}/properties");
            known.entry(component.name.as_str().to_owned()).or_insert((profile.kind, component, place));
        }
    }
    let mut components = Vec::new();
    let mut folders: Vec<PathBuf> = folders.into_iter().filter(|path| !hidden(path)).collect();
    folders.sort();
    for (name, (_, component, place)) in &known {
        let own = component.repository.starts_with(&format!("oci://{OWN_REGISTRY}/"));
        if own && !root.join(COMPONENTS).join(name).exists() {
            let message = format!(
                "there is no folder {COMPONENTS}/{name}, so that the server's registry has to have {} in revision {} already",
                component.repository,
                component.revision.as_str()
            );
            let violation = Violation::new(join(place, "repository"), "PK-081", message);
            warnings.push(Finding::in_description(description, violation));
        }
    }
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shown = format!("{COMPONENTS}/{name}");
        if !folder.is_dir() {
            findings.push(Finding::in_file(
                shown,
                "PK-080",
                "is not a directory; a component is a directory with a compose.yaml",
            ));
            continue;
        }
        let of_package = known.get(&name);
        match of_package {
            Some((ProfileKind::Compose, ..)) => {}
            Some((kind, ..)) => {
                let kind = kind.as_str();
                let message =
                    format!("is a {kind} component; only compose components are packed from a folder");
                findings.push(Finding::in_file(shown, "PK-070", message));
                continue;
            }
            None if package.is_some() => {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                let message = format!("is no component of this package; those are {}", names.join(", "));
                findings.push(Finding::in_file(&shown, "PK-081", message));
            }
            None => {}
        }
        if !folder.join("compose.yaml").is_file() {
            let other = ["compose.yml", "docker-compose.yaml", "docker-compose.yml"]
                .into_iter()
                .find(|name| folder.join(name).is_file());
            let message = match other {
                Some(other) => format!("has {other}; rename it to compose.yaml, no other name is valid"),
                None => "has no compose.yaml; put one directly into this directory".to_owned(),
            };
            findings.push(Finding::in_file(shown, "PK-082", message));
            continue;
        }
        // One that cannot be read stops the packing below.
        if let Ok(compose) = fs::read(folder.join("compose.yaml")) {
            let flaws = margrave_wire::compose::flaws(&compose).into_iter();
            let of_file = |flaw| Finding::in_file(format!("{shown}/compose.yaml"), "PK-083", flaw);
            findings.extend(flaws.map(of_file));
            let images = margrave_wire::compose::unpinned(&compose).into_iter();
            warnings.extend(images.map(|image| {
                let message = format!(
                    "image {image} can change after the package was checked; write its digest, {image}@sha256:…"
                );
                Finding::in_file(format!("{shown}/compose.yaml"), "PK-053", message)
            }));
            let doubts = margrave_wire::compose::doubts(&compose).into_iter();
            warnings.extend(doubts.map(of_file));
            if let (Some(package), Some((_, component, _))) = (package, of_package) {
                warnings.extend(unused(package, &component.name, &compose, description));
            }
        }
        let archive = match ComposeArchive::build(&folder, &name) {
            Ok(archive) => {
                warnings.extend(perishing(&folder, &shown, &archive));
                Some(archive)
            }
            // Most messages name their own rule; this is the one about archives as such.
            Err(
                error @ (BuildError::Special(_)
                | BuildError::Path(_)
                | BuildError::TooLarge
                | BuildError::Invalid(_)),
            ) => {
                findings.push(Finding::in_file(&shown, "PK-080", told(&error)));
                None
            }
            Err(BuildError::Read { source, .. }) => return Err(source),
        };
        let Some((_, component, place)) = of_package else { continue };
        let reference = Repository::parse(&component.repository)
            .and_then(|repository| repository.at_revision(component.revision.as_str()));
        let reference = match reference {
            Ok(reference) => match bound.refuses(&shown, &reference.repository) {
                None => Ok(reference),
                Some(why) => Err(("PK-070", why)),
            },
            Err(error) => Err(("DM-030", error.to_string())),
        };
        match reference {
            Ok(reference) => components.extend(archive.map(|archive| Component {
                name: component.name.clone(),
                archive,
                reference,
            })),
            Err((rule, message)) => {
                let violation = Violation::new(join(place, "repository"), rule, message);
                findings.push(Finding::in_description(description, violation));
            }
        }
    }
    Ok(components)
}

/// Where services may write to what comes with the archive: another revision brings another one, and what was written goes with the
/// one before.
fn perishing(folder: &Path, shown: &str, archive: &ComposeArchive) -> Vec<Finding> {
    let file = format!("{shown}/compose.yaml");
    let compose = fs::read(folder.join("compose.yaml")).unwrap_or_default();
    let listing = archive.listing();
    let ships = |path: &str| listing.has(Path::new(path)).unwrap_or_else(|| folder.join(path).exists());
    let mounts = margrave_wire::compose::writable(&compose).into_iter().filter(|mount| ships(&mount.path));
    let tell = |Writable { service, source, target, .. }: Writable| {
        let message = format!(
            "service {service} may write to {source}, which comes with the package: what it writes there is lost once an update of \
             the component is healthy; give it a volume with a name, or mount it to be read only, {source}:{target}:ro"
        );
        Finding::in_file(&file, "PK-086", message)
    };
    mounts.map(tell).collect()
}

/// Parameters that a component is given and does nothing with: most often a name that was written in two ways.
fn unused(package: &Package, component: &ComponentName, compose: &[u8], description: &[u8]) -> Vec<Finding> {
    let Some(used) = margrave_wire::compose::variables(compose) else { return Vec::new() };
    let targets = || {
        package.parameters.iter().flat_map(move |(name, parameter)| {
            let targets = parameter.targets.iter().enumerate();
            let given = targets.filter(move |(_, target)| target.components.contains(component));
            given.map(move |(number, target)| (name, number, target.pointer.as_str()))
        })
    };
    let filled = |variable: &String| {
        variable.starts_with("MARGRAVE_") || targets().any(|(.., pointer)| pointer == variable.as_str())
    };
    let empty: Vec<&str> = used.iter().filter(|variable| !filled(variable)).map(String::as_str).collect();
    let uses = match empty.as_slice() {
        [] => String::new(),
        names => format!("; it uses {}, which no parameter fills", names.join(", ")),
    };
    let unused = targets().filter(|(.., pointer)| !used.contains(*pointer));
    let tell = |(name, number, pointer): (&margrave_core::id::ParameterName, usize, &str)| {
        let message = format!(
            "does nothing: {COMPONENTS}/{component}/compose.yaml uses no variable {pointer}{uses}; write ${{{pointer}}} there"
        );
        let place = format!("{}/targets/{number}/pointer", join("/parameters", name.as_str()));
        Finding::in_description(description, Violation::new(place, "DM-040", message))
    };
    unused.map(tell).collect()
}

fn told(error: &(dyn std::error::Error + 'static)) -> String {
    match error.source() {
        Some(cause) => chain(error.to_string(), cause),
        None => error.to_string(),
    }
}

/// Editors and operating systems leave such files everywhere.
fn hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

enum Unread {
    Missing,
    Unfit(String),
    Failed(io::Error),
}

/// A regular file, not followed through a link, and not larger than it may be.
fn bounded(path: &Path, bytes_max: u64) -> std::result::Result<Vec<u8>, Unread> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(Unread::Missing);
        }
        Err(error) => return Err(Unread::Failed(error)),
    };
    if !meta.is_file() {
        return Err(Unread::Unfit(
            "is not a regular file; links and directories cannot be pushed".to_owned(),
        ));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(Unread::Failed)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(Unread::Failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Unread::Unfit(format!("is larger than {}", in_binary(bytes_max))));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("samples").join(name)
    }

    /// A copy of a sample, to break.
    fn copy(name: &str) -> tempfile::TempDir {
        fn all(from: &Path, to: &Path) {
            fs::create_dir_all(to).unwrap();
            for entry in fs::read_dir(from).unwrap() {
                let path = entry.unwrap().path();
                let target = to.join(path.file_name().unwrap());
                if path.is_dir() { all(&path, &target) } else { fs::copy(&path, &target).map(drop).unwrap() }
            }
        }
        let dir = tempfile::tempdir().unwrap();
        all(&sample(name), dir.path());
        dir
    }

    fn edit(dir: &Path, from: &str, to: &str) {
        let file = dir.join(DESCRIPTION_FILE);
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from));
        fs::write(file, text.replacen(from, to, 1)).unwrap();
    }

    fn findings(dir: &Path) -> Vec<String> {
        read(dir, Bound::Own).unwrap().unwrap_err().findings.iter().map(Finding::line).collect()
    }

    #[test]
    fn a_good_folder_is_read_whole() {
        let folder = read(&sample("line-monitor"), Bound::Own).unwrap().unwrap();
        let names: Vec<&str> = folder.components.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["line-collector", "line-store"]);
        assert_eq!(
            folder.components[0].reference.to_string(),
            "oci://margrave/samples/components/line-collector:1.0.0"
        );
        assert_eq!(folder.files.unwrap().resources().len(), 4);
    }

    #[test]
    fn a_description_alone_can_be_checked() {
        let folder = read(&sample("line-monitor").join(DESCRIPTION_FILE), Bound::Own).unwrap().unwrap();
        assert!(folder.components.is_empty() && folder.files.is_none());
    }

    #[test]
    fn dm_033_a_timeout_that_no_device_waits_for_is_a_warning() {
        let dir = copy("andon-board");
        let warnings = || read(dir.path(), Bound::Own).unwrap().unwrap().warnings;
        let about = |warning: &Finding| warning.line().contains("properties/timeout");
        assert!(!warnings().iter().any(about));
        edit(dir.path(), "timeout: 2m0s", "timeout: 60m1s");
        let found = warnings();
        let found: Vec<&Finding> = found.iter().filter(|warning| about(warning)).collect();
        assert!(found[0].line().contains("60m1s is longer than a device waits"), "{found:?}");
        assert!(
            found[0].line().starts_with("margo.yaml:") && found[0].line().ends_with("(DM-033)"),
            "{found:?}"
        );
        // Also of a description alone.
        let alone = read(&dir.path().join(DESCRIPTION_FILE), Bound::Own).unwrap().unwrap();
        assert!(alone.warnings.iter().any(about));
    }

    #[test]
    fn every_broken_rule_is_told_with_file_and_line() {
        let dir = copy("andon-board");
        edit(dir.path(), "apiVersion: v1", "apiVersion: v9");
        edit(dir.path(), "revision: 1.0.0", "revision: v1.0");
        let found = findings(dir.path());
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(found[0].starts_with("margo.yaml:2:") && found[0].ends_with("(DM-001)"), "{}", found[0]);
        assert!(found[1].contains("/deploymentProfiles/0/components/0/properties/revision"), "{}", found[1]);
    }

    #[test]
    fn what_can_be_judged_by_itself_is_told_in_one_go() {
        let dir = copy("andon-board");
        let component = dir.path().join("components/andon-board");
        let write = |folder: &Path| {
            fs::create_dir_all(folder).unwrap();
            fs::write(
                folder.join("compose.yaml"),
                "services: {bad: {ports: [\"80:80\"]}, good: {image: a}}\n",
            )
            .unwrap();
            std::os::unix::fs::symlink("/etc/passwd", folder.join("users")).unwrap();
        };
        write(&component);
        write(&dir.path().join("components/stranger"));
        let told = |wanted: &[&str]| {
            let Flaws { findings, warnings } = read(dir.path(), Bound::Nowhere).unwrap().unwrap_err();
            let found: Vec<String> = findings.iter().map(Finding::line).collect();
            for wanted in wanted {
                assert_eq!(
                    found.iter().filter(|line| line.contains(wanted)).count(),
                    1,
                    "{wanted}: {found:#?}"
                );
            }
            assert_eq!(found.len(), wanted.len(), "{found:#?}");
            assert!(
                warnings.iter().any(|warning| warning.line().contains("image a can change")),
                "{warnings:#?}"
            );
        };
        let of_folders = [
            "components/andon-board/compose.yaml: service bad has no `image`",
            "components/andon-board: the directory does not make",
            "components/stranger/compose.yaml: service bad has no `image`",
            "components/stranger: the directory does not make",
        ];
        told(&[&of_folders[..], &["components/stranger: is no component"]].concat());
        // Nobody knows then what the components are called.
        edit(dir.path(), "apiVersion: v1", "apiVersion: v9");
        told(&[&of_folders[..], &["must be v1"]].concat());
    }

    #[test]
    fn a_rule_is_named_once() {
        let line = |rule, message: &str| Finding::in_file("f", rule, message).line();
        assert_eq!(line("PK-080", "is too large (PK-087)"), "f: is too large (PK-087)");
        assert_eq!(
            line("DM-003", "an id is short (DM-003), got \"X\""),
            "f: an id is short, got \"X\" (DM-003)"
        );
        assert_eq!(line("PK-080", "has a name (of a kind)"), "f: has a name (of a kind) (PK-080)");
        let dir = copy("andon-board");
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("components/andon-board/users")).unwrap();
        let found = findings(dir.path());
        assert!(found[0].ends_with("(PK-090)") && !found[0].contains("PK-080"), "{found:#?}");
    }

    #[test]
    fn what_does_nothing_or_stands_in_the_way_is_told_and_no_error() {
        let warnings = |dir: &Path| -> Vec<String> {
            let folder = read(dir, Bound::Own).unwrap().unwrap();
            folder.warnings.iter().map(Finding::line).collect()
        };
        for name in ["andon-board", "line-monitor", "quality-gate"] {
            assert_eq!(warnings(&sample(name)), Vec::<String>::new(), "{name}");
        }
        let dir = copy("andon-board");
        let compose = dir.path().join("components/andon-board/compose.yaml");
        let text = fs::read_to_string(&compose).unwrap();
        let text =
            text.replace("${BOARD_MESSAGE}", "${BOARD_MESAGE}").replace("127.0.0.1::8080", "8080:8080");
        fs::write(&compose, text).unwrap();
        edit(dir.path(), "parameters:", "foo: 1\nparameters:");
        let told = warnings(dir.path());
        for wanted in [
            ("margo.yaml:", "foo is not known here"),
            ("components/andon-board/compose.yaml: ", "takes port 8080 of the device"),
            ("margo.yaml:", "uses no variable BOARD_MESSAGE; it uses BOARD_MESAGE, which no parameter fills"),
        ] {
            assert!(
                told.iter().any(|line| line.starts_with(wanted.0) && line.contains(wanted.1)),
                "{told:#?}"
            );
        }
        assert_eq!(told.len(), 3, "{told:#?}");
        fs::remove_dir_all(dir.path().join("components")).unwrap();
        let told = warnings(dir.path());
        assert!(
            told.iter().any(|line| line.contains("there is no folder components/andon-board")),
            "{told:#?}"
        );
    }

    #[test]
    fn pk_001_a_folder_without_a_description_is_no_package() {
        let dir = tempfile::tempdir().unwrap();
        assert!(findings(dir.path())[0].contains("(PK-001)"));
    }

    #[test]
    fn pk_002_resources_that_are_named_must_be_there_and_be_files() {
        let dir = copy("andon-board");
        fs::remove_file(dir.path().join("resources/icon.svg")).unwrap();
        fs::remove_file(dir.path().join("resources/license.txt")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join("resources/license.txt")).unwrap();
        let found = findings(dir.path());
        assert!(
            found[0].contains("resources/icon.svg does not exist") && found[0].starts_with("margo.yaml:"),
            "{found:#?}"
        );
        assert!(found[1].contains("not a regular file"), "{found:#?}");
    }

    #[test]
    fn pk_082_the_compose_file_has_one_name() {
        let dir = copy("andon-board");
        let component = dir.path().join("components/andon-board");
        fs::rename(component.join("compose.yaml"), component.join("docker-compose.yml")).unwrap();
        assert!(findings(dir.path())[0].contains("rename it to compose.yaml"));
    }

    #[test]
    fn pk_086_writing_to_what_comes_with_the_package_is_told_and_no_error() {
        let dir = copy("andon-board");
        let component = dir.path().join("components/andon-board");
        fs::create_dir_all(component.join("state/rows")).unwrap();
        fs::write(component.join("state/rows/first.csv"), "1").unwrap();
        fs::write(component.join("board.conf"), "a=b").unwrap();
        std::os::unix::fs::symlink("state", component.join("link")).unwrap();
        let told = |mounts: &str| -> Vec<String> {
            let compose = format!(
                "services:\n  board:\n    image: a@sha256:{}\n    volumes:\n{mounts}    environment: [BOARD_MESSAGE]\n",
                "a".repeat(64)
            );
            fs::write(component.join("compose.yaml"), compose).unwrap();
            let warnings = read(dir.path(), Bound::Own).unwrap().unwrap().warnings;
            warnings.iter().map(Finding::line).filter(|line| line.ends_with("(PK-086)")).collect()
        };
        for source in ["./state", "./state/rows", "./board.conf", ".", "./link", "./link/rows"] {
            let short = told(&format!("      - {source}:/x\n"));
            let long = told(&format!("      - {{type: bind, source: {source}, target: /x}}\n"));
            assert_eq!(short.len(), 1, "{source}");
            assert_eq!(short, long);
            assert!(
                short[0].starts_with("components/andon-board/compose.yaml: service board may write to ")
                    && short[0].contains("a volume with a name")
                    && short[0].contains(&format!(" {source}:/x:ro")),
                "{short:?}"
            );
        }
        // What does not come with it is kept; what is only read is never lost.
        for mount in
            ["./data:/x", "./state/other:/x", "./link/other:/x", "./state:/x:ro", "state:/x", "/srv/state:/x"]
        {
            assert_eq!(told(&format!("      - {mount}\n")), [""; 0], "{mount}");
        }
        assert_eq!(told("      - {type: bind, source: ./state, target: /x, read_only: true}\n"), [""; 0]);
    }

    #[test]
    fn pk_090_links_that_lead_out_of_a_component_are_told() {
        let dir = copy("andon-board");
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("components/andon-board/users")).unwrap();
        let found = findings(dir.path());
        assert!(
            found[0].starts_with("components/andon-board: ") && found[0].contains("PK-090"),
            "{found:#?}"
        );
    }

    #[test]
    fn a_folder_that_belongs_to_no_component_is_told() {
        let dir = copy("andon-board");
        fs::rename(dir.path().join("components/andon-board"), dir.path().join("components/board")).unwrap();
        let found = findings(dir.path());
        assert!(
            found[0].contains("components/board: is no component") && found[0].contains("andon-board"),
            "{found:#?}"
        );
    }

    #[test]
    fn pk_070_a_folder_goes_where_its_repository_says_and_nowhere_else() {
        let dir = copy("andon-board");
        edit(
            dir.path(),
            "oci://margrave/samples/components/andon-board",
            "oci://registry.example/andon-board",
        );
        let found = findings(dir.path());
        assert!(
            found[0].contains("oci://margrave/") && found[0].contains("properties/repository"),
            "{found:#?}"
        );
        assert!(read(dir.path(), Bound::Nowhere).unwrap().is_ok());
        let (there, elsewhere) =
            (Host::parse("registry.example").unwrap(), Host::parse("other.example").unwrap());
        let folder = read(dir.path(), Bound::To(&there)).unwrap().unwrap();
        assert_eq!(folder.components[0].reference.to_string(), "oci://registry.example/andon-board:1.0.0");
        let found = read(dir.path(), Bound::To(&elsewhere)).unwrap().unwrap_err().findings;
        assert!(found[0].message.contains("oci://other.example/"), "{found:?}");
        // The server's own registry is another one for every server.
        let found = read(&sample("andon-board"), Bound::To(&there)).unwrap().unwrap_err().findings;
        assert!(found[0].message.contains("whichever server"), "{found:?}");
    }
}
