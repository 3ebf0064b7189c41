//! A list of servers that this device may call, kept by whoever owns the device (ID-104).
//!
//! It only narrows: the server must be the one that this device's own SVID names in any case (ID-100). The file is
//! read again before every call, so that a change counts at once; one that cannot be used changes nothing.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use margrave_core::identity::{InvalidName, ServerName};

const FILE: &str = "authorized.json";
/// Some thousands of servers.
const SIZE_MAX: u64 = 256 << 10;

#[derive(Debug)]
pub(crate) struct Authorized {
    path: PathBuf,
    /// The newest list that could be used; none while there is no file.
    list: Mutex<Option<Vec<ServerName>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorizedError {
    #[error("{0} cannot be read")]
    Read(PathBuf, #[source] io::Error),
    #[error("{0} is not a JSON array of strings")]
    Malformed(PathBuf, #[source] serde_json::Error),
    #[error("{path} lists {name:?}, which is no server's name")]
    Name {
        path: PathBuf,
        name: String,
        #[source]
        source: InvalidName,
    },
    #[error("{0} lists no server, so none may be called; name one, or remove the file (ID-104)")]
    Empty(PathBuf),
}

impl Authorized {
    /// A device that could never call anybody does not start (ID-103).
    pub(crate) fn open(data: &Path) -> Result<Authorized, AuthorizedError> {
        let path = data.join(FILE);
        let list = read(&path)?;
        if list.as_ref().is_some_and(Vec::is_empty) {
            return Err(AuthorizedError::Empty(path));
        }
        Ok(Authorized { path, list: Mutex::new(list) })
    }

    pub(crate) fn permits(&self, server: &ServerName) -> bool {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        match read(&self.path) {
            Ok(new) => *list = new,
            Err(error) => {
                let error = margrave_core::chain::sentence(&error);
                tracing::warn!(error, "the list of servers cannot be used; the one before stays");
            }
        }
        list.as_ref().is_none_or(|list| list.contains(server))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn read(path: &Path) -> Result<Option<Vec<ServerName>>, AuthorizedError> {
    let failed = |error| AuthorizedError::Read(path.to_owned(), error);
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(SIZE_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > SIZE_MAX {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 256 kB")));
    }
    let names: Vec<String> =
        serde_json::from_str(&text).map_err(|error| AuthorizedError::Malformed(path.to_owned(), error))?;
    let parse = |name: String| {
        ServerName::parse(&name).map_err(|source| AuthorizedError::Name {
            path: path.to_owned(),
            name: name.chars().take(200).collect(),
            source,
        })
    };
    names.into_iter().map(parse).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "spiffe://plant.example/margo/wfm/line-7";
    const OTHER: &str = "spiffe://plant.example/margo/wfm/line-8";

    #[test]
    fn id_104_the_list_narrows_is_watched_and_a_bad_one_changes_nothing() {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join(FILE);
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        let (own, other) = (ServerName::parse(OWN).unwrap(), ServerName::parse(OTHER).unwrap());
        let authorized = Authorized::open(data.path()).unwrap();
        assert!(authorized.permits(&own) && authorized.permits(&other), "absent, it is not used");
        write(&format!(r#"["{OTHER}"]"#));
        assert!(!authorized.permits(&own) && authorized.permits(&other));
        write(&format!(r#"["{OTHER}", "{OWN}"]"#));
        assert!(authorized.permits(&own));
        // One invalid entry, no array, cut off: all of it is as if it had not been written.
        for bad in [&format!(r#"["{OTHER}", "https://x"]"#), r#"{}"#, r#"["#, "", "[1]"] {
            write(bad);
            assert!(authorized.permits(&own), "{bad}");
        }
        write("[]");
        assert!(!authorized.permits(&own) && !authorized.permits(&other), "an empty list denies all");
        std::fs::remove_file(&file).unwrap();
        assert!(authorized.permits(&own));
    }

    #[test]
    fn id_103_a_device_that_may_call_nobody_says_so_at_once() {
        let data = tempfile::tempdir().unwrap();
        for bad in ["[]", "nonsense", r#"["spiffe://plant.example/other"]"#] {
            std::fs::write(data.path().join(FILE), bad).unwrap();
            let error = margrave_core::chain::sentence(&Authorized::open(data.path()).unwrap_err());
            assert!(error.contains(FILE), "{error}");
        }
    }
}
