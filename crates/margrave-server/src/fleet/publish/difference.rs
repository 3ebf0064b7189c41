//! What a decision changes, device by device: what a rehearsal tells.

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeploymentName, DeviceRef, PackageId, PackageVersion, ProfileId};
use margrave_store::{HeldAssignment, WantedAssignment};

use super::Touched;

type State = (PackageVersion, ProfileId, Digest);

/// What would change on one device.
#[derive(Clone)]
pub(in crate::fleet) struct Difference {
    pub(in crate::fleet) device: DeviceRef,
    pub(in crate::fleet) name: DeploymentName,
    pub(in crate::fleet) from: Option<(PackageId, State)>,
    pub(in crate::fleet) to: Option<(PackageId, State)>,
}

impl Difference {
    pub(in crate::fleet) fn new(held: Option<&HeldAssignment>, wanted: &WantedAssignment) -> Difference {
        let WantedAssignment { device, name, package, version, profile, document, .. } = wanted.clone();
        let from = held
            .map(|held| (held.package.clone(), (held.version.clone(), held.profile.clone(), held.document)));
        Difference { device, name, from, to: Some((package, (version, profile, document))) }
    }

    /// What changes if another one follows.
    pub(in crate::fleet) fn then(self, next: Difference) -> Difference {
        Difference { from: self.from, ..next }
    }

    pub(in crate::fleet) fn is_nothing(&self) -> bool {
        self.from == self.to
    }

    /// Whether the device gets something that it has to fetch: another package, another version of it, or another profile. One that
    /// only gets other answers has everything already.
    pub(in crate::fleet) fn is_fetched(&self) -> bool {
        let what = |side: &Option<(PackageId, State)>| {
            let (package, (version, profile, _)) = side.clone()?;
            Some((package, version, profile))
        };
        self.to.is_some() && what(&self.from) != what(&self.to)
    }

    pub(in crate::fleet) fn gone(held: &HeldAssignment) -> Difference {
        let HeldAssignment { device, name, package, version, profile, document, .. } = held.clone();
        Difference { device, name, from: Some((package, (version, profile, document))), to: None }
    }
}

impl Touched {
    pub(in crate::fleet) fn differences(&self) -> Vec<Difference> {
        let held =
            |id: AssignmentId| self.picture.assignments.iter().find(|held| held.wanted && held.id == id);
        let wanted = self.changes.wanted.iter().map(|placed| &placed.wanted);
        let wanted = wanted.map(|wanted| Difference::new(held(wanted.id), wanted));
        let gone = self.changes.dropped.iter().filter_map(|id| held(*id)).map(Difference::gone);
        wanted.chain(gone).collect()
    }
}
