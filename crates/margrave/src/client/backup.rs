//! A backup as it comes from the server.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use margrave_http::Request;

use super::{Client, at, refusal};
use crate::exit::{Result, Trouble};

/// The server copies its database before it says anything; that of a large fleet takes minutes on a slow disk.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(30 * 60);
/// What comes between two pieces is one file at most.
const PIECE_TIME_MAX: Duration = Duration::from_secs(120);

impl Client {
    /// Writes everything that the server keeps to `to`.
    pub(crate) async fn backup(&self, to: &mut File) -> Result<()> {
        let request =
            Request::post(at("/backup")).timeout(BEGIN_TIME_MAX).body_idle(PIECE_TIME_MAX).body_max(u64::MAX);
        let unreachable = |error| self.unreachable(&error);
        let mut answer = self.http.open(self.authorized(request)).await.map_err(unreachable)?;
        if !answer.status.is_success() {
            return Err(refusal(&answer.whole().await.map_err(unreachable)?));
        }
        let cut = |error| {
            Trouble::because("the backup broke off", &error).hint("the server's log says why; try again")
        };
        while let Some(piece) = answer.body.chunk().await.map_err(cut)? {
            to.write_all(&piece).map_err(|error| Trouble::because("the backup cannot be written", &error))?;
        }
        Ok(())
    }
}
