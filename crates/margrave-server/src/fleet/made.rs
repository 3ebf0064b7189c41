//! Which commit a piece of work made, for whoever writes down what it did.
//!
//! Every way to a commit ends in one place (`intent.rs`), and every request that is written down is one task. So the commit is left
//! with the task, and no handler on the way can forget to hand it on.

use std::cell::Cell;

use super::desired::CommitId;

tokio::task_local! {
    static MADE: Cell<Option<CommitId>>;
}

/// Does the work, and tells which commit it made; the last, should there be several.
pub(crate) async fn noting<T>(work: impl Future<Output = T>) -> (T, Option<String>) {
    let noted = async {
        let done = work.await;
        (done, MADE.with(Cell::take).map(|commit| commit.to_string()))
    };
    MADE.scope(Cell::new(None), noted).await
}

/// Whether somebody asks about what is made here, who will write it down; what the server does by itself nobody asks about, and it
/// is the server that has to.
pub(super) fn is_asked_about() -> bool {
    MADE.try_with(|_| ()).is_ok()
}

/// A commit is applied.
pub(super) fn made(commit: CommitId) {
    // Where nobody asks, nobody has to know.
    MADE.try_with(|made| made.set(Some(commit))).ok();
}
