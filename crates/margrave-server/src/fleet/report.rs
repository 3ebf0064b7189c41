//! What devices say about their assignments.

use margrave_core::id::ClientId;
use margrave_core::report::Report;
use margrave_store::{Put, ReportError};

use super::{Error, Fleet};

impl Fleet {
    /// Keeps a report; it is on disk when this answers.
    pub async fn report(&self, client: &ClientId, report: Report) -> Result<Put, Error> {
        let assignment = report.assignment;
        let recorded = self.store.record_report(client, report, self.now()).await;
        self.meters.report(recorded.is_ok());
        match recorded {
            Ok(recorded) => {
                if recorded.ahead.is_some() {
                    self.leap_or_log(client).await;
                }
                self.rollouts_may_move();
                Ok(recorded.put)
            }
            Err(ReportError::AssignmentUnknown { ahead }) => {
                if ahead.is_some() {
                    self.leap_or_log(client).await;
                }
                Err(Error::AssignmentUnknown(assignment))
            }
            Err(error @ ReportError::OtherDevice { ahead, .. }) => {
                if ahead.is_some() {
                    self.leap_or_log(client).await;
                }
                Err(Error::invalid("/deviceId", "AMB-38", error.to_string()))
            }
            Err(ReportError::ClientUnknown) => Err(Error::AssignmentUnknown(assignment)),
            Err(error @ ReportError::VersionUnknown { .. }) => {
                Err(Error::invalid("/adoptedManifestVersion", "MI-G2-104", error.to_string()))
            }
            Err(ReportError::Store(error @ margrave_store::Error::OutOfRange { .. })) => {
                Err(Error::invalid("", "MI-G2-101", error.to_string()))
            }
            Err(ReportError::Store(error)) => Err(error.into()),
        }
    }

    /// The device holds a manifest above ours. If the next one cannot be made now, the next report tries again.
    async fn leap_or_log(&self, client: &ClientId) {
        if let Err(error) = self.leap(client).await {
            tracing::warn!(%client, error = &error as &dyn std::error::Error, "could not publish above the version that a client holds; will try again");
        }
    }
}
