//! Which server a command talks to, and with what right.
//!
//! Flags win over environment variables, those over the remembered file. A token is never sent in the
//! clear over a network: plain HTTP is for this machine only.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use margrave_wire::operator::Context;

use crate::cli::Connection;
use crate::exit::{Result, Trouble};

/// More than any context needs; whoever points us at a large file made a mistake.
const FILE_BYTES_MAX: u64 = 64 * 1024;

const BEGIN: &str = "try `margrave demo`, or connect with `margrave login URL --token T --pin P`; a server that was started \
                     here has written a context file, use it with --context FILE or MARGRAVE_CONTEXT";

/// Finds the server for a command.
pub(crate) fn find(connection: &Connection) -> Result<Context> {
    find_in(connection, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn find_in(connection: &Connection, environment: impl Fn(&str) -> Option<String>) -> Result<Context> {
    let Connection { context, server, token, pin } = connection.clone();
    // Flags and variables are two complete layers: a server from one never meets a file from the other.
    let (server, file) = match (server, context) {
        (None, None) => (environment("MARGRAVE_SERVER"), environment("MARGRAVE_CONTEXT").map(PathBuf::from)),
        given => given,
    };
    let token = token.or_else(|| environment("MARGRAVE_TOKEN"));
    let pin = pin.or_else(|| environment("MARGRAVE_PIN"));
    let context = match (server, file) {
        (Some(url), _) => Context {
            url,
            pin,
            token: token.ok_or_else(|| {
                Trouble::broke("a server is given, but no token")
                    .hint("add --operator-token TOKEN or set MARGRAVE_TOKEN")
            })?,
        },
        (None, Some(file)) => overlay(read(&file)?, token, pin),
        (None, None) => {
            let file = remembered(&environment)?;
            let known = file
                .try_exists()
                .map_err(|e| Trouble::because(format!("cannot look for {}", file.display()), &e))?;
            if !known {
                return Err(Trouble::broke("no server is known").hint(BEGIN));
            }
            overlay(read(&file)?, token, pin)
        }
    };
    checked(context)
}

fn overlay(context: Context, token: Option<String>, pin: Option<String>) -> Context {
    Context { url: context.url, pin: pin.or(context.pin), token: token.unwrap_or(context.token) }
}

/// A context whose address may be given the token.
pub(crate) fn checked(context: Context) -> Result<Context> {
    let url = context.url.trim_end_matches('/').to_owned();
    let wrong = |why: &str| Trouble::broke(format!("{url} is not an address of a server: {why}"));
    let uri: http::Uri =
        url.parse().map_err(|_| wrong("it cannot be read").hint("write it as https://host:8443"))?;
    if uri.host().is_none_or(str::is_empty) || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(wrong("it must be only scheme, host and port").hint("write it as https://host:8443"));
    }
    match uri.scheme_str() {
        Some("https") => {}
        Some("http") if is_loopback(&uri) => {}
        Some("http") => {
            return Err(
                wrong("plain http would show your token to the network").hint("use the https address")
            );
        }
        _ => return Err(wrong("the scheme must be https").hint("write it as https://host:8443")),
    }
    if context.token.is_empty() || !context.token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Trouble::broke("the token is not one: it is empty or has spaces in it"));
    }
    Ok(Context { url, ..context })
}

fn is_loopback(uri: &http::Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn read(file: &Path) -> Result<Context> {
    let shown = file.display();
    let failed = |error: std::io::Error| {
        Trouble::because(format!("the context file {shown} cannot be read"), &error).hint(BEGIN)
    };
    let length = fs::metadata(file).map_err(failed)?.len();
    if length > FILE_BYTES_MAX {
        return Err(Trouble::broke(format!("{shown} is too large to be a context file")));
    }
    let text = fs::read(file).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|error| {
        Trouble::because(format!("{shown} is not a context file"), &error)
            .hint("write it again with `margrave login`, or give the one in the server's data directory")
    })
}

/// Where `login` remembers, unless told otherwise.
pub(crate) fn remembered_file() -> Result<PathBuf> {
    remembered(&|name: &str| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn remembered(environment: &impl Fn(&str) -> Option<String>) -> Result<PathBuf> {
    let config = environment("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        // The convention says that a relative path there is to be ignored.
        .filter(|path| path.is_absolute())
        .or_else(|| environment("HOME").map(|home| Path::new(&home).join(".config")));
    match config {
        Some(config) => Ok(config.join("margrave").join("context.json")),
        None => Err(Trouble::broke("no server is known, and without HOME there is no place to remember one")
            .hint(BEGIN)),
    }
}

/// Writes a context so that only its owner can read it, and never half of it.
pub(crate) fn write(file: &Path, context: &Context) -> Result<()> {
    let failed = |error: std::io::Error| Trouble::because(format!("cannot write {}", file.display()), &error);
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(failed)?;
    let mut text = serde_json::to_vec_pretty(context).expect("a context is plain text");
    text.push(b'\n');
    let mut name = std::ffi::OsString::from(".");
    name.push(
        file.file_name().ok_or_else(|| Trouble::broke(format!("{} is not a file name", file.display())))?,
    );
    name.push(format!(".{}", uuid::Uuid::new_v4().simple()));
    let staged = dir.join(name);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&staged)
        .and_then(|mut out| out.write_all(&text).and_then(|()| out.sync_all()))
        .and_then(|()| fs::rename(&staged, file));
    if written.is_err() {
        // The first failure is the one to tell; a leftover of it holds nothing that is missing.
        let _leftover = fs::remove_file(&staged);
    }
    written.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn context(url: &str) -> Context {
        Context { url: url.to_owned(), pin: None, token: "t".to_owned() }
    }

    fn environment(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn plain_http_is_for_this_machine_only() {
        for good in [
            "https://plant.example:8443",
            "http://127.0.0.1:8480",
            "http://[::1]:8480/",
            "http://localhost:1",
        ] {
            checked(context(good)).unwrap_or_else(|e| panic!("{good}: {}", e.message()));
        }
        for bad in [
            "http://plant.example",
            "http://127.0.0.1.example.com",
            "ftp://x",
            "plant",
            "https://x/path",
            "https://",
            "",
        ] {
            assert!(checked(context(bad)).is_err(), "{bad}");
        }
        assert_eq!(checked(context("https://x:1/")).unwrap().url, "https://x:1");
    }

    #[test]
    fn a_flag_wins_over_a_variable_of_any_kind() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("context.json");
        write(&file, &context("https://from-file:1")).unwrap();
        let connection = Connection { context: Some(file), ..Connection::default() };
        let found = find_in(&connection, environment(&[("MARGRAVE_SERVER", "https://from-env:1")])).unwrap();
        assert_eq!(found.url, "https://from-file:1");

        let connection = Connection { server: Some("https://from-flag:1".into()), ..Connection::default() };
        let variables = environment(&[("MARGRAVE_CONTEXT", "/nowhere"), ("MARGRAVE_TOKEN", "secret")]);
        let found = find_in(&connection, variables).unwrap();
        assert_eq!((found.url.as_str(), found.token.as_str()), ("https://from-flag:1", "secret"));
    }

    #[test]
    fn without_any_server_the_way_to_one_is_told() {
        let trouble =
            find_in(&Connection::default(), environment(&[("HOME", "/nonexistent-home")])).unwrap_err();
        assert!(trouble.hinted().unwrap().contains("margrave demo"));
        let trouble =
            find_in(&Connection::default(), environment(&[("MARGRAVE_SERVER", "https://x:1")])).unwrap_err();
        assert!(trouble.hinted().unwrap().contains("MARGRAVE_TOKEN"));
    }

    #[test]
    fn what_is_remembered_is_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deep/context.json");
        write(&file, &context("https://a:1")).unwrap();
        write(&file, &context("https://b:1")).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&file).unwrap().url, "https://b:1");
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_or_foreign_file_is_refused_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.json");
        for bad in ["", "{", "{\"url\": 1}", "{\"url\": \"https://x\", \"token\": \"t\", \"more\": 1}"] {
            fs::write(&file, bad).unwrap();
            assert!(read(&file).unwrap_err().hinted().is_some(), "{bad}");
        }
        fs::write(&file, vec![b' '; 70_000]).unwrap();
        assert!(read(&file).unwrap_err().message().contains("too large"));
    }
}
