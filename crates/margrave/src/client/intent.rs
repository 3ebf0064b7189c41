//! What is wanted as files, over the operator interface.

use margrave_http::{Request, StatusCode};
use margrave_wire::history::{Difference, FleetThen};
use margrave_wire::intent::{Applied, Apply, Commit, File, Resolve};
use margrave_wire::operator::{Intent, Page};

use super::{ADD_TIME_MAX, Client, at, refusal, segment};
use crate::exit::Result;

impl Client {
    pub(crate) async fn intent(&self) -> Result<Intent> {
        self.get("/intent").await
    }

    pub(crate) async fn intent_log(&self, limit: u16) -> Result<Page<Commit>> {
        self.get(&format!("/intent/log?limit={limit}")).await
    }

    pub(crate) async fn resolve_intent(&self, take: bool) -> Result<Intent> {
        self.ask(Request::post(at("/intent/resolve")).json(&Resolve { take })).await
    }

    pub(crate) async fn intent_files(&self) -> Result<Vec<File>> {
        self.all("/intent/files?limit=1000").await
    }

    /// A file as it is stored, if it is there.
    pub(crate) async fn intent_file(&self, path: &str) -> Result<Option<String>> {
        let response = self.send(Request::get(at(&format!("/intent/files/{}", segment(path))))).await?;
        match response.status {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => Ok(Some(String::from_utf8_lossy(&response.body).into_owned())),
            _ => Err(refusal(&response)),
        }
    }

    /// The fleet as it was at a moment.
    pub(crate) async fn status_at(&self, at: &str) -> Result<FleetThen> {
        self.get(&format!("/history?at={}", segment(at))).await
    }

    /// What lies between two moments of what was wanted.
    pub(crate) async fn intent_between(&self, from: &str, to: Option<&str>) -> Result<Difference> {
        let to = to.map(|to| format!("&to={}", segment(to))).unwrap_or_default();
        self.get(&format!("/intent/diff?from={}{to}", segment(from))).await
    }

    /// Packages may have to be fetched first, so it may take its time.
    pub(crate) async fn apply(&self, want: &Apply) -> Result<Applied> {
        self.ask(Request::post(at("/intent/apply")).json(want).timeout(ADD_TIME_MAX)).await
    }
}
