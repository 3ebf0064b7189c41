//! How many files and sockets this process may have open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// All devices connected, as many strangers, both other listeners, the store and the registry.
const WANTED: u64 = 48 * 1024;
/// Thousands of devices. With less, somebody has to know.
const LITTLE: u64 = 8 * 1024;

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
    let words = "so many open files are allowed; a larger fleet needs more (LimitNOFILE= in a unit file, ulimit -Hn in a shell)";
    if now < LITTLE {
        tracing::warn!(now, wanted = WANTED, "only {words}");
    } else if now < WANTED {
        tracing::info!(now, wanted = WANTED, "{words}");
    }
    now
}
