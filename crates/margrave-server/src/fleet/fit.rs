//! Which devices a package could go to, before anybody has answered its questions.

use margrave_core::deployment::Targets;
use margrave_core::id::{DeploymentName, DeviceRef, PackageId, PackageVersion, ProfileId};
use margrave_core::package::Profile;
use margrave_core::publish::{Circumstances, choose_profile};
use margrave_store::Candidate;
use margrave_wire::operator;

use super::catalog::Entry;
use super::publish::Stand;
use super::{Error, Fleet, Preview, PreviewFit};

impl Fleet {
    /// For each device whether one of the package's profiles (or the named one) fits it beside what others were promised there.
    /// `of` is the deployment that asks, if it is there already. Devices that are unknown or retired are left out. Unlike
    /// [`Fleet::preview`] it needs no answers.
    pub async fn fits(
        &self,
        id: &PackageId,
        version: &PackageVersion,
        profile: Option<&ProfileId>,
        of: Option<&DeploymentName>,
        devices: impl IntoIterator<Item = DeviceRef>,
    ) -> Result<Preview, Error> {
        let entry = self.entry(id, version).await?;
        let entry = entry.ok_or_else(|| Error::not_found(format!("package {id} {version}")))?;
        let devices = devices.into_iter().map(|device| self.live.addressed(&device)).collect();
        let targets = Targets { devices, ..Targets::default() };
        let mut preview = Preview { fits: Vec::new(), misfits: Vec::new() };
        if targets.devices.is_empty() {
            return Ok(preview);
        }
        let (pictures, promises) = self.promised(&targets.devices, [&entry]).await?;
        for record in self.store.devices_targeted(&targets).await? {
            let device = self.live.spoken(&record.device);
            let stand = promises.look(&pictures, &record.device, of);
            match fitting(&entry, profile, &record, &stand) {
                Ok(profile) => {
                    let profile = profile.id.to_string();
                    preview.fits.push(PreviewFit { device, profile, despite: Vec::new() });
                }
                Err(reasons) => {
                    let temporary = record.capabilities.is_none();
                    preview.misfits.push(operator::Misfit { device, reasons, temporary });
                }
            }
        }
        Ok(preview)
    }
}

/// The profile that fits, or every reason why none does.
fn fitting<'a>(
    entry: &'a Entry,
    wanted: Option<&'a ProfileId>,
    record: &Candidate,
    stand: &Stand,
) -> Result<&'a Profile, Vec<String>> {
    let Some(body) = &record.capabilities else {
        return Err(vec!["has not reported its capabilities yet".to_owned()]);
    };
    let capabilities = record
        .dialect
        .capabilities(body)
        .map_err(|error| vec![format!("its capabilities cannot be read: {error}")])?;
    let (needs, room) = (&entry.needs, stand.room());
    let device = Circumstances { capabilities: &capabilities, needs, room, forced: false };
    // Nobody has answered anything yet, so nothing about answers can be wrong.
    let unanswered = |_: &Profile| Ok::<(), Vec<String>>(());
    choose_profile(&entry.package, wanted, stand.held.as_ref(), &device, unanswered)
        .map(|chosen| chosen.profile)
}
