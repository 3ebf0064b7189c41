//! The catalog: what can be deployed.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use margrave_core::id::{PackageId, PackageVersion};
use margrave_wire::operator;

use super::Web;
use super::address::{Path, Query};
use super::command::{Command, shown};
use super::confirm::ConfirmPage;
use super::deployment::who;
use super::error::{PageError, sentence, told};
use super::frame::{Frame, Section, render};
use super::icon::{self, Logo};
use super::link;
use super::paging::Pages;
use super::prose::Prose;
use super::rehearsal::shown_size;
use super::session::{Changer, Submitted, Visitor};
use super::stamp::Stamp;
use super::tally::Tally;
use super::wrong::Wrong;
use crate::fleet::Error;

/// Applications on a page of the catalog.
const PAGE_SIZE: usize = 60;
/// Versions that a card or a page names beside its own; the others are counted, and listed by the catalog.
const VERSIONS_MAX: usize = 12;
/// Deployments that the page of a package lists; the rest is counted.
const DEPLOYMENTS_MAX: usize = 50;

#[derive(Template)]
#[template(path = "packages.html")]
struct PackagesPage {
    frame: Frame,
    cards: Vec<Card>,
    pages: Pages,
    /// The application that only the versions of are listed.
    only: Option<String>,
    watches: Vec<WatchCard>,
    typed: Typed,
    command: Command,
    add_command: Command,
    watch_command: Command,
}

/// What was typed into the page's forms, and what is wrong with it.
#[derive(Default)]
pub(super) struct Typed {
    pub(super) reference: String,
    pub(super) wrong: Option<String>,
    pub(super) repository: String,
    pub(super) pattern: String,
    pub(super) every: String,
    pub(super) wrong_watch: Wrong,
}

impl Typed {
    /// What was typed, or an example of it.
    fn reference(&self) -> &str {
        match self.reference.as_str() {
            "" => "oci://registry.example/packages/andon-board:1.0.0",
            typed => typed,
        }
    }

    fn watch_command(&self) -> Command {
        let repository = match self.repository.as_str() {
            "" => "oci://registry.example/packages/andon-board",
            typed => typed,
        };
        let options = [("--match", &self.pattern), ("--every", &self.every)];
        let options = options.iter().filter(|(_, value)| !value.is_empty());
        let options = options.flat_map(|(flag, value)| [*flag, value.as_str()]);
        Command::new(["margrave", "package", "watch", repository].into_iter().chain(options))
    }
}

struct Card {
    key: String,
    package: operator::Package,
    path: String,
    deploy: String,
    logo: Logo,
    kinds: Vec<String>,
    /// What its first profile needs of a device.
    needs: Vec<String>,
    questions: usize,
    /// Versions before this one, newest first, and where they are.
    older: Vec<(String, String)>,
    older_more: usize,
    /// The list of all of them.
    all: String,
}

/// Which part of the catalog is shown.
#[derive(Default, serde::Deserialize)]
pub(super) struct Part {
    page: Option<usize>,
    /// The application that all versions of are shown, each for itself.
    only: Option<String>,
}

/// Every version of an application in the catalog.
fn versions_path(id: &str) -> String {
    format!("/packages?only={}", link::encode(id))
}

/// A watched repository: when it was looked at, and what could not be added from it.
struct WatchCard {
    key: String,
    commands: [Command; 2],
    watch: operator::Watch,
    added: usize,
    looked: Option<Stamp>,
    refused: Vec<operator::WatchedTag>,
}

/// Broken tags that the page lists; the command line lists all.
const REFUSED_MAX: usize = 20;

impl WatchCard {
    fn of(mut watch: operator::Watch) -> Self {
        watch.trouble = watch.trouble.map(|trouble| sentence(&trouble));
        let of_state = |state: &'static str| watch.tags.iter().filter(move |tag| tag.state == state);
        let repository = format!("oci://{}", watch.repository.trim_start_matches("oci://"));
        WatchCard {
            key: format!("watch-{}", watch.repository),
            commands: ["look", "unwatch"]
                .map(|verb| Command::new(["margrave", "package", verb, &repository])),
            added: of_state("added").count(),
            looked: watch.looked_at.as_deref().map(Stamp::ago),
            refused: of_state("broken").chain(of_state("incomplete")).take(REFUSED_MAX).cloned().collect(),
            watch,
        }
    }
}

impl Card {
    /// One for each application, with its newest version in front.
    fn all(mut packages: Vec<operator::Package>) -> Vec<Self> {
        packages.sort_by(|a, b| (&a.id, &b.added_at).cmp(&(&b.id, &a.added_at)));
        let mut cards: Vec<Card> = Vec::new();
        for package in packages {
            match cards.last_mut().filter(|card| card.package.id == package.id) {
                Some(card) if card.older.len() == VERSIONS_MAX => {
                    card.older_more += 1;
                    card.package.deployments.extend(package.deployments);
                }
                Some(card) => {
                    card.older.push((link::package(&package.id, &package.version), package.version.clone()));
                    card.package.deployments.extend(package.deployments);
                }
                None => cards.push(Card::of(package)),
            }
        }
        cards
    }

    fn of(package: operator::Package) -> Self {
        Card {
            key: format!("package-{}-{}", package.id, package.version),
            path: link::package(&package.id, &package.version),
            deploy: link::deploy(&package.id, &package.version),
            logo: Logo::of(&package),
            kinds: kinds(&package),
            needs: package.profiles.first().map(|profile| profile.needs.clone()).unwrap_or_default(),
            questions: package.sections.iter().map(|section| section.settings.len()).sum(),
            older: Vec::new(),
            older_more: 0,
            all: versions_path(&package.id),
            package,
        }
    }
}

fn kinds(package: &operator::Package) -> Vec<String> {
    let mut kinds: Vec<String> = package.profiles.iter().map(|profile| profile.kind.clone()).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

pub(super) async fn list(
    State(web): State<Web>,
    visitor: Visitor,
    Query(part): Query<Part>,
) -> Result<Response, PageError> {
    part_page(&web, &visitor, Typed::default(), part).await
}

pub(super) async fn list_page(web: &Web, visitor: &Visitor, typed: Typed) -> Result<Response, PageError> {
    part_page(web, visitor, typed, Part::default()).await
}

async fn part_page(
    web: &Web,
    visitor: &Visitor,
    typed: Typed,
    Part { page, only }: Part,
) -> Result<Response, PageError> {
    let frame = Frame::new(web, visitor, Section::Packages, "Packages").await?;
    let packages = web.fleet().packages().await?;
    let (mut cards, path) = match &only {
        Some(only) => {
            let mut versions: Vec<_> = packages.into_iter().filter(|package| package.id == *only).collect();
            versions.sort_by(|a, b| b.added_at.cmp(&a.added_at));
            (versions.into_iter().map(Card::of).collect(), format!("{}&page=", versions_path(only)))
        }
        None => (Card::all(packages), "/packages?page=".to_owned()),
    };
    let frame = frame.at(match (page, &only) {
        (None, None) => "/packages".to_owned(),
        _ => format!("{path}{}", page.unwrap_or(1)),
    });
    let pages = Pages::cut(&mut cards, page, PAGE_SIZE, "Pages", path);
    let wrong = typed.wrong.is_some() || !typed.wrong_watch.is_empty();
    let status = if wrong { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let page = PackagesPage {
        frame,
        add_command: Command::new(["margrave", "package", "add", typed.reference()]),
        cards,
        pages,
        only,
        watches: web.fleet().watches().await?.into_iter().map(WatchCard::of).collect(),
        watch_command: typed.watch_command(),
        typed,
        command: Command::new(["margrave", "package", "add", "./my-application"]),
    };
    Ok((status, render(&page)?).into_response())
}

pub(super) async fn add(State(web): State<Web>, submitted: Submitted) -> Result<Response, PageError> {
    let Submitted { visitor, fields, .. } = submitted;
    let reference = fields.one("reference").to_owned();
    let want = operator::AddPackage { reference: reference.clone() };
    match web.fleet().add_package(&visitor.actor, want, |name| visitor.note.subject(name)).await {
        Ok(package) => Ok(Redirect::to(&link::package(&package.id, &package.version)).into_response()),
        Err(error @ (Error::Storage(_) | Error::Overloaded)) => Err(error.into()),
        Err(error) => {
            // In sentences: the places that violations name are not the form's.
            let wrong = Some(match &error {
                Error::Invalid(_) => told(&error),
                _ => sentence(&crate::http::problem::Problem::from(error).body().detail),
            });
            list_page(&web, &visitor, Typed { reference, wrong, ..Typed::default() }).await
        }
    }
}

#[derive(Template)]
#[template(path = "package.html")]
struct PackagePage {
    frame: Frame,
    package: operator::Package,
    texts: operator::PackageTexts,
    path: String,
    deploy: String,
    logo: Logo,
    added: Stamp,
    added_by: String,
    images: Vec<ImageLine>,
    questions: Vec<QuestionLine>,
    deployments: Vec<DeploymentLine>,
    deployments_more: usize,
    /// The list of all of them.
    deployments_path: String,
    versions: Vec<(String, String)>,
    versions_more: usize,
    versions_path: String,
    command: Command,
}

struct ImageLine {
    name: String,
    digest: Option<String>,
    unpinned: Option<String>,
    sizes: String,
}

impl ImageLine {
    fn of(image: &operator::PackageImage) -> Self {
        let size = |(processor, bytes): (&String, &u64)| match processor.as_str() {
            "any" => shown_size(*bytes),
            processor => format!("{} for {processor}", shown_size(*bytes)),
        };
        ImageLine {
            name: image.name.clone(),
            digest: image.digest.clone(),
            unpinned: image.unpinned.clone(),
            sizes: image.bytes.iter().map(size).collect::<Vec<_>>().join(", "),
        }
    }
}

struct QuestionLine {
    section: String,
    name: String,
    description: Option<String>,
    kind: String,
    default: Option<String>,
    required: bool,
}

struct DeploymentLine {
    name: String,
    path: String,
    /// The one that it has; it need not be the page's.
    version: String,
    tally: Tally,
}

pub(super) async fn show(
    State(web): State<Web>,
    visitor: Visitor,
    Path((id, version)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let (id, version) = parse(&id, &version)?;
    let fleet = web.fleet();
    let package = fleet.package(&id, &version).await?;
    let texts = fleet.package_texts(&id, &version).await?;
    let frame = Frame::new(&web, &visitor, Section::Packages, package.name.clone()).await?;
    let frame = frame.leading_to("/packages".to_owned());
    let mut others = fleet.packages().await?;
    others.retain(|other| other.id == package.id && other.version != package.version);
    others.sort_by(|a, b| b.added_at.cmp(&a.added_at));
    let versions_more = others.len().saturating_sub(VERSIONS_MAX);
    let others = others.into_iter().take(VERSIONS_MAX);
    let versions = others.map(|other| (link::package(&other.id, &other.version), other.version)).collect();
    let mut deployments = fleet.deployments().await?;
    deployments.retain(|held| held.package == package.id);
    let deployments_more = deployments.len().saturating_sub(DEPLOYMENTS_MAX);
    let questions = package.sections.iter().flat_map(|section| {
        section.settings.iter().map(|setting| QuestionLine {
            section: section.name.clone(),
            name: setting.name.clone(),
            description: setting.description.clone(),
            kind: kind(setting),
            default: setting.default.as_ref().map(shown).filter(|text| !text.is_empty()),
            required: setting.required,
        })
    });
    let line = |held: operator::Deployment| DeploymentLine {
        path: link::deployment(&held.name),
        tally: Tally::of(&held.counts),
        version: held.version,
        name: held.name,
    };
    render(&PackagePage {
        frame,
        texts,
        path: link::package(&package.id, &package.version),
        deploy: link::deploy(&package.id, &package.version),
        logo: Logo::of(&package),
        added: Stamp::at(&package.added_at),
        added_by: who(&package.added_by),
        images: package.images.iter().map(ImageLine::of).collect(),
        questions: questions.collect(),
        deployments: deployments.into_iter().take(DEPLOYMENTS_MAX).map(line).collect(),
        deployments_more,
        deployments_path: format!("/deployments?package={}", link::encode(&package.id)),
        versions,
        versions_more,
        versions_path: versions_path(&package.id),
        command: Command::new([
            "margrave",
            "deploy",
            &format!("{}@{}", package.id, package.version),
            "--to",
            "line-1",
            "--wait",
        ]),
        package,
    })
}

fn kind(setting: &operator::PackageSetting) -> String {
    if setting.options.is_empty() {
        let words = match setting.data_type.as_str() {
            "string" => "text",
            "integer" => "whole number",
            "double" => "number",
            "boolean" => "yes or no",
            "array[string]" => "list of texts",
            "array[integer]" => "list of whole numbers",
            "array[double]" => "list of numbers",
            other => other,
        };
        return words.to_owned();
    }
    let word = if setting.multiselect { "any of" } else { "one of" };
    format!("{word} {}", setting.options.join(", "))
}

/// The package's own icon. It is somebody else's file: whatever it contains, it stays a picture.
pub(super) async fn icon(
    State(web): State<Web>,
    _: Visitor,
    Path((id, version)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let (id, version) = parse(&id, &version)?;
    let package = web.fleet().package(&id, &version).await?;
    let path = package.icon.ok_or(PageError::NotFound)?;
    let resource = web.fleet().package_resource(&id, &version, &path).await?;
    let media_type = icon::media_type(&resource.bytes).ok_or(PageError::NotFound)?;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (
            CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; sandbox"),
        ),
        (CACHE_CONTROL, HeaderValue::from_static("private, max-age=3600")),
    ];
    Ok((headers, resource.bytes).into_response())
}

pub(super) async fn remove_ask(
    State(web): State<Web>,
    Changer(visitor): Changer,
    Path((id, version)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let (id, version) = parse(&id, &version)?;
    let package = web.fleet().package(&id, &version).await?;
    let frame = Frame::new(&web, &visitor, Section::Packages, format!("Remove {}", package.name)).await?;
    let back = link::package(&package.id, &package.version);
    render(&ConfirmPage {
        frame,
        question: format!("Remove {} {} from the catalog?", package.name, package.version),
        effects: vec![
            "It can then no longer be deployed. It is refused while a deployment uses it.".to_owned(),
            "The package stays in its registry and can be added again.".to_owned(),
        ],
        verb: "Remove",
        harmless: false,
        action: format!("{back}/remove"),
        back,
        fields: Vec::new(),
        command: Command::new(["margrave", "package", "remove", &format!("{id}@{version}")]),
    })
}

pub(super) async fn remove(
    State(web): State<Web>,
    Path((id, version)): Path<(String, String)>,
    submitted: Submitted,
) -> Result<Response, PageError> {
    let (id, version) = parse(&id, &version)?;
    web.fleet().remove_package(&submitted.visitor.actor, &id, &version).await?;
    Ok(Redirect::to("/packages").into_response())
}

pub(super) fn parse(id: &str, version: &str) -> Result<(PackageId, PackageVersion), PageError> {
    let wrong = |error: margrave_core::id::InvalidId| PageError::Malformed(sentence(&error.to_string()));
    Ok((PackageId::parse(id).map_err(wrong)?, PackageVersion::parse(version).map_err(wrong)?))
}
