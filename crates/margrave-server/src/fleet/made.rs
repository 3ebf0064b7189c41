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

/// A commit is applied. Says whether somebody asks about it, who will write it down; what the server does by itself nobody asks
/// about, and it is the server that has to.
#[must_use]
pub(super) fn made(commit: CommitId) -> bool {
    MADE.try_with(|made| made.set(Some(commit))).is_ok()
}
