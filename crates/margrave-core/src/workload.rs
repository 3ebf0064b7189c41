//! What one document says: one application, with its values, for one device.
//!
//! The server composes a [`Workload`], `margrave-wire` writes it as YAML once, and those bytes are the
//! document for ever. The device reads the bytes back into the same type.

use std::collections::BTreeMap;

use crate::constraints::Constraints;
use crate::digest::Digest;
use crate::id::{AssignmentId, ComponentName, DeploymentName, DeviceId, DeviceRef, PackageId};
use crate::package::{Component, Extensions, Package, Profile, ProfileKind};
use crate::parameters::{ParameterValue, ResolvedParameter};
use crate::rollback::Rollback;
use crate::schedule::Weekly;

#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    pub id: AssignmentId,
    /// Kubernetes object name where that matters; never shown to people.
    pub name: String,
    pub namespace: String,
    pub placement: Placement,
    pub application: PackageId,
    pub kind: ProfileKind,
    pub components: Vec<Component>,
    pub constraints: Option<Constraints>,
    pub parameters: Vec<ResolvedParameter>,
    pub extensions: Extensions,
    /// What our server adds for our agent, in `x-margrave-extensions`; a foreign device ignores it.
    pub hints: Hints,
}

/// Which device runs it (DM-072).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    Device(DeviceId),
    /// Any child of this gateway, the gateway chooses: written `gateway/*`.
    AnyChildOf(DeviceId),
}

/// Additions of ours to a document.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Hints {
    /// What an operator calls it.
    pub deployment: Option<DeploymentName>,
    pub package_version: Option<String>,
    /// The manifest digest that each component's tag had when the server published (PK-053).
    pub pins: BTreeMap<ComponentName, Digest>,
    /// What the names of each component's images meant when the package came into the catalog.
    pub images: BTreeMap<ComponentName, BTreeMap<String, Digest>>,
    /// What to do about an update that fails.
    pub rollback: Rollback,
    /// When the change to this document may begin, besides when the device may change at all. None that is understood is never.
    pub windows: Option<Vec<Weekly>>,
    /// Means nothing, and is in documents with a secret: without it their digests could be tried out.
    pub salt: Option<String>,
}

impl Workload {
    /// The workload that `deployment` asks for on `device`: profile copied, extensions propagated as
    /// DM-167…DM-171 demand, parameters already resolved for this profile.
    pub fn compose(
        deployment: &DeploymentName,
        id: AssignmentId,
        device: &DeviceRef,
        package: &Package,
        profile: &Profile,
        parameters: Vec<ResolvedParameter>,
        pins: BTreeMap<ComponentName, Digest>,
    ) -> Self {
        Workload {
            id,
            name: deployment.to_string(),
            namespace: namespace(deployment, id),
            placement: Placement::Device(device.device.clone()),
            application: package.id.clone(),
            kind: profile.kind,
            components: profile.components.clone(),
            constraints: profile.constraints.clone(),
            parameters,
            extensions: profile.extensions.clone(),
            hints: Hints {
                deployment: Some(deployment.clone()),
                package_version: Some(package.version.to_string()),
                pins,
                images: BTreeMap::new(),
                rollback: Rollback::default(),
                windows: None,
                salt: None,
            },
        }
    }

    /// The same with images that mean this, whatever their names mean elsewhere.
    pub fn with_images(mut self, images: BTreeMap<ComponentName, BTreeMap<String, Digest>>) -> Self {
        self.hints.images = images;
        self
    }

    /// The same with another policy about updates that fail.
    pub fn with_rollback(mut self, rollback: Rollback) -> Self {
        self.hints.rollback = rollback;
        self
    }

    /// The same, to be begun only then; without any, at any time.
    pub fn with_windows(mut self, windows: &[Weekly]) -> Self {
        self.hints.windows = (!windows.is_empty()).then(|| windows.to_vec());
        self
    }

    /// The values that go to one component, as (pointer, value), in the document's order (DM-184, DM-189).
    pub fn values_for<'a>(
        &'a self,
        component: &'a ComponentName,
    ) -> impl Iterator<Item = (&'a str, &'a ParameterValue)> + 'a {
        self.parameters.iter().flat_map(move |parameter| {
            parameter
                .targets
                .iter()
                .filter(move |target| target.components.contains(component))
                .map(move |target| (target.pointer.as_str(), &parameter.value))
        })
    }
}

/// A namespace that two deployments can never share and Kubernetes accepts (63 characters, DM-004).
fn namespace(deployment: &DeploymentName, id: AssignmentId) -> String {
    let head: String = deployment.as_str().chars().take(50).collect();
    let tail = &id.to_string()[..8];
    format!("{}-{tail}", head.trim_end_matches('-'))
}
