//! What the machine lets one process have. Each simulated device needs a socket.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Beside the devices: standard streams, the runtime, connections for joining.
const FILES_BESIDE: u64 = 128;

/// Raises the number of open files to what the system allows at most, and returns that number.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let (Some(current), maximum) = (limit.current, limit.maximum) else { return u64::MAX };
    let raised = Rlimit { current: maximum, maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        // Where that is forbidden the old limit holds; whoever needs more is told so.
        Err(_) => current,
    }
}

/// How many devices fit into `files` open files. A device has a second connection while it reports.
pub fn devices_within(files: u64) -> u64 {
    files.saturating_sub(FILES_BESIDE)
}
