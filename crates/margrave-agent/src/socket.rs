//! Sockets in the data directory, and whether there is an agent behind them. What is said over them is of `hold.rs` and `status.rs`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixListener;

/// Between two tries to make a socket, such as on a disk that is full.
pub(crate) const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Whether an agent has this directory, or nobody can tell. Who was told that none does relies on it that nothing changes.
pub(crate) fn is_running(data: &Path) -> bool {
    match std::fs::File::open(data.join("lock")) {
        Ok(lock) => lock.try_lock_shared().is_err(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Makes the socket `path`, as soon as it can be made: the device itself needs none, but who wants to ask it does, and does not know that
/// the disk was full when it started.
pub(crate) async fn listen(
    path: &Path,
    mode: u32,
    directory_mode: Option<u32>,
    again_after: Duration,
) -> UnixListener {
    let bound = || {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
            if let Some(mode) = directory_mode {
                std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode))?;
            }
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        Ok(listener)
    };
    let mut is_told = false;
    loop {
        match bound() {
            Ok(listener) => return listener,
            Err(error) if !std::mem::replace(&mut is_told, true) => {
                tracing::warn!(path = %path.display(), %error, "nobody can be heard over this socket yet");
            }
            Err(_) => {}
        }
        tokio::time::sleep(again_after).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_made_as_soon_as_there_can_be_one() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("apps/hold.sock");
        // As long as it lies there, there is no place for the directory.
        std::fs::write(data.path().join("apps"), b"").unwrap();
        let listening = listen(&path, 0o666, Some(0o755), Duration::from_millis(10));
        let mended = async { std::fs::remove_file(data.path().join("apps")).unwrap() };
        let both = async { tokio::join!(listening, mended) };
        let (_listener, ()) = tokio::time::timeout(Duration::from_secs(5), both).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
    }
}
