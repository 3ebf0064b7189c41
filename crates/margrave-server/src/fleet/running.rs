//! Which version runs where that is not what is wanted: after going back, or until something newer may begin.

use margrave_core::lifecycle::State;
use margrave_store::AssignmentRecord;
use margrave_wire::g2;
use margrave_wire::operator;

use super::{Error, Fleet};

impl Fleet {
    /// Says it of those of which it is known: their document is kept as long as a manifest lists it, and the next one after it.
    pub(super) async fn tell_what_runs(
        &self,
        records: &[AssignmentRecord],
        shown: &mut [operator::Assignment],
    ) -> Result<(), Error> {
        for record in records {
            let outlook = record.outlook();
            let detail = record.observed.as_ref().and_then(|observed| observed.report.detail.as_ref());
            let other = detail.and_then(|detail| detail.document).filter(|runs| *runs != record.document);
            let (State::Installed, false, Some(document)) = (outlook.state, outlook.current, other) else {
                continue;
            };
            let kept = self.store.document(&record.device.client, record.id, document).await?;
            // Those of the signed interface have another shape, and say it nowhere.
            let version = kept
                .and_then(|bytes| g2::document::read(&bytes).ok())
                .and_then(|workload| workload.hints.package_version);
            let id = record.id.to_string();
            if let Some(assignment) = shown.iter_mut().find(|assignment| assignment.id == id) {
                assignment.runs = version.filter(|version| *version != assignment.version);
            }
        }
        Ok(())
    }
}
