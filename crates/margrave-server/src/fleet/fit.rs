//! Which devices a package could go to, before anybody has answered its questions.

use margrave_core::deployment::Targets;
use margrave_core::id::{DeviceRef, PackageId, PackageVersion, ProfileId};
use margrave_core::package::Profile;
use margrave_core::publish::choose_profile;
use margrave_store::Candidate;
use margrave_wire::operator;

use super::catalog::Entry;
use super::{Error, Fleet, Preview, PreviewFit};

impl Fleet {
    /// For each device whether one of the package's profiles (or the named one) fits it. Devices that are
    /// unknown or retired are left out. Unlike [`Fleet::preview`] it needs no answers.
    pub async fn fits(
        &self,
        id: &PackageId,
        version: &PackageVersion,
        profile: Option<&ProfileId>,
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
        for record in self.store.devices_targeted(&targets).await? {
            let device = self.live.spoken(&record.device);
            match fitting(&entry, profile, &record) {
                Ok(profile) => preview.fits.push(PreviewFit { device, profile: profile.id.to_string() }),
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
) -> Result<&'a Profile, Vec<String>> {
    let Some(body) = &record.capabilities else {
        return Err(vec!["has not reported its capabilities yet".to_owned()]);
    };
    let capabilities = record
        .dialect
        .capabilities(body)
        .map_err(|error| vec![format!("its capabilities cannot be read: {error}")])?;
    // Nobody has answered anything yet, so nothing about answers can be wrong.
    let unanswered = |_: &Profile| Ok::<(), Vec<String>>(());
    choose_profile(&entry.package, wanted, None, &capabilities, unanswered).map(|(profile, ())| profile)
}
