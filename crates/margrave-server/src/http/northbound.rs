//! The nouns of the sandbox's northbound interface, for people who come from there: `app-packages`, `app-deployments`
//! and `devices`, at the paths that the sandbox has them. A thin translation; the fleet decides as ever, and errors are the
//! problems of the operator interface.

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use margrave_core::id::{DeploymentName, PackageId, PackageVersion};
use margrave_wire::northbound::{
    AppDeployment, AppDeploymentRequest, AppDeploymentSpec, AppPackage, AppPackageRequest, Component,
    ContextualInfo, Device, DeviceRef, DeviceSpec, DeviceState, List, Metadata, Operation, PREFIX,
    PackageRef, Parameter, Profile, Properties, Status,
};
use margrave_wire::operator;
use serde::Deserialize;

use super::App;
use super::audit::Note;
use super::operator::Body;
use super::problem::Problem;
use crate::auth::{Operator, Viewer};
use crate::fleet::{Actor, DeviceQuery, Error, Fleet};

const LIMIT_MAX: usize = 1000;
/// The sandbox's own.
const LIMIT_DEFAULT: usize = 20;

pub(crate) fn router(app: App) -> Router {
    let at = |path: &str| format!("{PREFIX}{path}");
    Router::new()
        .route(&at("/app-packages"), get(packages).post(add_package).fallback(no_such_method))
        .route(&at("/app-packages/{id}"), get(package).delete(remove_package).fallback(no_such_method))
        .route(&at("/app-deployments"), get(deployments).post(deploy).fallback(no_such_method))
        .route(
            &at("/app-deployments/{id}"),
            get(deployment).delete(remove_deployment).fallback(no_such_method),
        )
        .route(&at("/devices"), get(devices).fallback(no_such_method))
        .with_state(app)
}

async fn no_such_method() -> Response {
    Problem::no_such_method().into_response()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    limit: Option<usize>,
    /// The id of the last item of the page before.
    r#continue: Option<String>,
    app_package_id: Option<String>,
}

impl Asked {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(LIMIT_DEFAULT).clamp(1, LIMIT_MAX)
    }

    /// A page of what was listed whole, by id. That the last item of the page before is gone is no reason to end.
    fn cut<T, U>(&self, mut all: Vec<T>, id: impl Fn(&T) -> String, shown: impl Fn(T) -> U) -> List<U> {
        all.sort_by_cached_key(&id);
        let begin = match self.r#continue.as_deref().filter(|after| !after.is_empty()) {
            None => 0,
            Some(after) => all.partition_point(|one| id(one).as_str() <= after),
        };
        let left = all.len() - begin;
        let items: Vec<U> = all.into_iter().skip(begin).take(self.limit()).map(shown).collect();
        let remaining = left - items.len();
        List::new(items, remaining > 0, Some(remaining))
    }
}

type Answer<T> = Result<Json<T>, Problem>;
/// The sandbox says 202 to whatever it will do; here it is done when it is answered.
type Taken<T> = Result<(StatusCode, Json<T>), Problem>;

fn taken<T>(body: T) -> (StatusCode, Json<T>) {
    (StatusCode::ACCEPTED, Json(body))
}

fn package_id(package: &operator::Package) -> String {
    format!("{}@{}", package.id, package.version)
}

fn shown_package(package: operator::Package) -> AppPackage {
    AppPackage::new(package_id(&package), package.name, &package.reference, &package.added_at)
}

async fn packages(_: Viewer, State(app): State<App>, Query(asked): Query<Asked>) -> Answer<List<AppPackage>> {
    Ok(Json(asked.cut(app.fleet.packages().await?, package_id, shown_package)))
}

async fn add_package(
    Operator(actor): Operator,
    State(app): State<App>,
    note: Note,
    Body(want): Body<AppPackageRequest>,
) -> Taken<AppPackage> {
    let source = &want.spec.source;
    if want.spec.source_type != "OCI_REPO" {
        return Err(Error::invalid("/spec/sourceType", "northbound", "must be OCI_REPO").into());
    }
    if source.authentication.as_ref().is_some_and(|authentication| authentication.kind != "none") {
        let words = "credentials are not taken with a package; let the server know the registry's beforehand";
        return Err(Error::invalid("/spec/source/authentication", "northbound", words).into());
    }
    let want = operator::AddPackage { reference: source.reference() };
    let added = app.fleet.add_package(&actor, want, |name| note.subject(name)).await?;
    Ok(taken(shown_package(added)))
}

/// By `id@version`, or by the id alone where it has one version.
async fn found_package(fleet: &Fleet, id: &str) -> Result<operator::Package, Problem> {
    let unknown = || Error::not_found(format!("package {id}"));
    if let Some((id, version)) = id.split_once('@') {
        let field = |error| Problem::bad_identifier("id", &error);
        let (id, version) =
            (PackageId::parse(id).map_err(field)?, PackageVersion::parse(version).map_err(field)?);
        return Ok(fleet.package(&id, &version).await?);
    }
    let mut all = fleet.packages().await?;
    all.retain(|package| package.id == id);
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(_), false) => {
            Err(Error::conflict(format!("package {id} has several versions; write {id}@VERSION")).into())
        }
        (None, _) => Err(unknown().into()),
    }
}

async fn package(_: Viewer, State(app): State<App>, Path(id): Path<String>) -> Answer<AppPackage> {
    Ok(Json(shown_package(found_package(&app.fleet, &id).await?)))
}

async fn remove_package(
    Operator(actor): Operator,
    State(app): State<App>,
    note: Note,
    Path(id): Path<String>,
) -> Taken<AppPackage> {
    let package = found_package(&app.fleet, &id).await?;
    let field = |error| Problem::bad_identifier("id", &error);
    let (id, version) = (
        PackageId::parse(&package.id).map_err(field)?,
        PackageVersion::parse(&package.version).map_err(field)?,
    );
    note.subject(format!("{id} {version}"));
    app.fleet.remove_package(&actor, &id, &version).await?;
    let mut shown = shown_package(package);
    shown.status.state = "DEBOARDED";
    shown.recent_operation = Operation { op: "DEBOARD", status: "COMPLETED" };
    Ok(taken(shown))
}

async fn deploy(
    Operator(actor): Operator,
    State(app): State<App>,
    note: Note,
    Body(want): Body<AppDeploymentRequest>,
) -> Taken<AppDeployment> {
    let AppDeploymentRequest { metadata, spec } = want;
    let name = parsed_name(&metadata.name)?;
    note.subject(name.as_str());
    let package = found_package(&app.fleet, &spec.app_package_ref.id).await?;
    let profile = spec.deployment_profile.as_ref().map(|wanted| chosen(&package, wanted)).transpose()?;
    let DeviceRef { id, labels } = spec.device_ref;
    let want = operator::PutDeployment {
        package: package.id,
        version: Some(package.version),
        profile,
        parameters: spec.parameters.into_iter().map(|(name, parameter)| (name, parameter.value)).collect(),
        targets: operator::Targets { devices: id.into_iter().collect(), labels, ..Default::default() },
        // It creates, and never changes what is there.
        revision: Some(0),
        ..Default::default()
    };
    let made = app.fleet.put_deployment(&actor, &name, want).await?;
    Ok(taken(shown_deployment(&app.fleet, made).await?))
}

fn parsed_name(text: &str) -> Result<DeploymentName, Problem> {
    DeploymentName::parse(text).map_err(|error| Problem::bad_identifier("name", &error))
}

/// The package's profile that is meant: the only one of that kind, or the one with these components.
fn chosen(package: &operator::Package, wanted: &Profile) -> Result<String, Error> {
    let names: Vec<&str> = wanted.components.iter().map(|component| component.name.as_str()).collect();
    let of_kind: Vec<_> = package.profiles.iter().filter(|profile| profile.kind == wanted.kind).collect();
    let same = |profile: &&&operator::PackageProfile| {
        profile.components.iter().map(|component| component.name.as_str()).eq(names.iter().copied())
    };
    let found = match of_kind[..] {
        [only] => Some(only),
        _ => of_kind.iter().find(same).copied(),
    };
    let words = || format!("the package has no such profile of type {}", wanted.kind);
    found
        .map(|profile| profile.id.clone())
        .ok_or_else(|| Error::invalid("/spec/deploymentProfile", "northbound", words()))
}

async fn deployments(
    _: Viewer,
    State(app): State<App>,
    Query(asked): Query<Asked>,
) -> Answer<List<AppDeployment>> {
    let List { metadata, items, .. } =
        asked.cut(app.fleet.deployments().await?, |one| one.id.clone(), |one| one);
    let mut shown = Vec::with_capacity(items.len());
    for one in items {
        shown.push(shown_deployment(&app.fleet, one).await?);
    }
    Ok(Json(List::new(shown, metadata.more, metadata.remaining_item_count)))
}

/// By id, or by name.
async fn found_deployment(fleet: &Fleet, id: &str) -> Result<operator::Deployment, Error> {
    let all = fleet.deployments().await?;
    let found = all.into_iter().find(|deployment| deployment.id == id || deployment.name == id);
    found.ok_or_else(|| Error::not_found(format!("deployment {id}")))
}

async fn deployment(_: Viewer, State(app): State<App>, Path(id): Path<String>) -> Answer<AppDeployment> {
    let found = found_deployment(&app.fleet, &id).await?;
    Ok(Json(shown_deployment(&app.fleet, found).await?))
}

async fn remove_deployment(
    Operator(actor): Operator,
    State(app): State<App>,
    note: Note,
    Path(id): Path<String>,
) -> Taken<AppDeployment> {
    let mut found = found_deployment(&app.fleet, &id).await?;
    note.subject(&found.name);
    remove(&app.fleet, &actor, &found).await?;
    found.removing = true;
    Ok(taken(shown_deployment(&app.fleet, found).await?))
}

async fn remove(fleet: &Fleet, actor: &Actor, found: &operator::Deployment) -> Result<(), Problem> {
    let name = parsed_name(&found.name)?;
    Ok(fleet.remove_deployment(actor, &name, Some(found.revision)).await?)
}

async fn shown_deployment(fleet: &Fleet, from: operator::Deployment) -> Result<AppDeployment, Problem> {
    let package = found_package(fleet, &format!("{}@{}", from.package, from.version)).await.ok();
    let profiles = package.map(|package| package.profiles).unwrap_or_default();
    let profile =
        profiles.into_iter().find(|profile| from.profile.as_ref().is_none_or(|id| *id == profile.id));
    let (state, status) = state(&from);
    let operation = match (from.removing, from.revision) {
        (true, _) => "DELETE",
        (false, 1) => "DEPLOY",
        (false, _) => "UPDATE",
    };
    let message = format!("{} of {} devices are as wanted", from.counts.converged, from.counts.total);
    Ok(AppDeployment {
        id: from.id,
        metadata: Metadata { name: from.name, ..Metadata::default() },
        spec: AppDeploymentSpec {
            app_package_ref: PackageRef { id: format!("{}@{}", from.package, from.version) },
            device_ref: DeviceRef {
                id: from.targets.devices.into_iter().next(),
                labels: from.targets.labels,
            },
            deployment_profile: profile.map(shown_profile),
            parameters: from
                .parameters
                .into_iter()
                .map(|(name, value)| (name, Parameter { value }))
                .collect(),
        },
        status: Status {
            state,
            contextual_info: Some(ContextualInfo { message }),
            last_update_time: from.changed_at,
        },
        recent_operation: Operation { op: operation, status },
    })
}

fn shown_profile(profile: operator::PackageProfile) -> Profile {
    let components = profile.components.into_iter().map(|component| Component {
        name: component.name,
        properties: Some(Properties { repository: component.repository, revision: component.revision }),
    });
    Profile { kind: profile.kind, components: components.collect() }
}

/// One word for all devices, the worst first; and how far that is.
fn state(deployment: &operator::Deployment) -> (&'static str, &'static str) {
    let counts = &deployment.counts;
    let any = |state: &str| counts.states.contains_key(state);
    match () {
        () if deployment.removing => ("REMOVING", "PROCESSING"),
        () if counts.failed > 0 => ("FAILED", "FAILED"),
        () if any("UPDATING") || any("ROLLINGBACK") => ("UPDATING", "PROCESSING"),
        () if any("INSTALLING") => ("INSTALLING", "PROCESSING"),
        () if counts.total > 0 && counts.converged == counts.total => ("INSTALLED", "COMPLETED"),
        () => ("PENDING", "PENDING"),
    }
}

async fn devices(_: Viewer, State(app): State<App>, Query(asked): Query<Asked>) -> Answer<List<Device>> {
    let query =
        DeviceQuery { after: asked.r#continue.clone(), limit: Some(asked.limit()), ..DeviceQuery::default() };
    let page = app.fleet.devices(query).await?;
    let eligible = match &asked.app_package_id {
        None => None,
        Some(id) => Some(fitting(&app.fleet, &found_package(&app.fleet, id).await?, &page.items).await),
    };
    let shown = page.items.into_iter().map(|device| Device {
        eligible: match &eligible {
            Some(Some(fits)) if fits.contains(&device.id) => "true",
            Some(Some(_)) => "false",
            // Nobody asked, or nobody can tell before the package's questions are answered.
            Some(None) | None => "unknown",
        },
        metadata: Metadata { name: device.id.clone(), labels: device.labels, ..Metadata::default() },
        spec: DeviceSpec {
            signature: device.client,
            capabilities: device.capabilities.clone().unwrap_or_else(|| serde_json::json!({})),
        },
        state: DeviceState {
            onboard: match (device.standing.as_str(), &device.capabilities) {
                ("retired", _) => "FAILED",
                (_, None) => "IN-PROGRESS",
                _ => "ONBOARDED",
            },
        },
        id: device.id,
    });
    Ok(Json(List::new(shown.collect(), page.next.is_some(), None)))
}

/// Which of these devices the package fits, if that can be told.
async fn fitting(
    fleet: &Fleet,
    package: &operator::Package,
    devices: &[operator::Device],
) -> Option<Vec<String>> {
    let want = operator::PutDeployment {
        package: package.id.clone(),
        version: Some(package.version.clone()),
        targets: operator::Targets {
            devices: devices.iter().map(|device| device.id.clone()).collect(),
            ..Default::default()
        },
        ..Default::default()
    };
    let preview = fleet.preview(&DeploymentName::parse("preview").ok()?, want).await.ok()?;
    Some(preview.fits.into_iter().map(|fit| fit.device).collect())
}
