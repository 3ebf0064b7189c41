//! How many files and sockets this process may have open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// All devices connected, as many strangers, both other listeners, the store and the registry.
const WANTED: u64 = 48 * 1024;

/// Takes as many as the system lets us, and says how many: shells start programs with a thousand, which is a small
/// fleet.
pub(crate) fn raise_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the limit of open files could not be raised"
        );
    }
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if now < WANTED {
        tracing::warn!(
            now,
            wanted = WANTED,
            "few open files are allowed; a large fleet needs more (LimitNOFILE= in a unit file, ulimit -Hn in a shell)"
        );
    }
    now
}
