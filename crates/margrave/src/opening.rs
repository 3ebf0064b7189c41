//! What opens a registry: from flags and the environment, or from what `docker login` left.
//!
//! Secrets come by standard input or environment and never by a flag, because every user of a machine can read the
//! flags of a program.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use margrave_oci::client::{Client, Credentials, Endpoint, Hosts};
use margrave_oci::reference::Host;

use crate::cli::Opening;
use crate::exit::{Result, Trouble};

const PASSWORD: &str = "MARGRAVE_REGISTRY_PASSWORD";
const TOKEN: &str = "MARGRAVE_REGISTRY_TOKEN";
const SECRET_BYTES_MAX: u64 = 16 * 1024;
const AUTHORITY_BYTES_MAX: u64 = 128 * 1024;
const DOCKER_BYTES_MAX: u64 = 1024 * 1024;

/// The credentials that were given; `None` when nothing was said.
pub(crate) fn credentials(opening: &Opening) -> Result<Option<Credentials>> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if opening.token_stdin {
        return Ok(Some(Credentials::Token(secret("token")?)));
    }
    let Some(user) = &opening.user else { return Ok(variable(TOKEN).map(Credentials::Token)) };
    let password = if opening.password_stdin { Some(secret("password")?) } else { variable(PASSWORD) };
    let password = password.ok_or_else(|| {
        Trouble::broke(format!("the password of {user} is not given"))
            .hint(format!("pipe it in with --password-stdin, or set {PASSWORD}"))
    })?;
    Ok(Some(Credentials::Basic { user: user.clone(), password }))
}

/// The authority that was given, PEM.
pub(crate) fn authority(opening: &Opening) -> Result<Option<String>> {
    let Some(path) = &opening.ca else { return Ok(None) };
    let unreadable =
        |error: &io::Error| Trouble::because(format!("{} cannot be read", path.display()), error);
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| unreadable(&error))?;
    file.take(AUTHORITY_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| unreadable(&error))?;
    if text.len() as u64 > AUTHORITY_BYTES_MAX {
        return Err(Trouble::broke(format!("{} is larger than any authority", path.display())));
    }
    Ok(Some(text))
}

/// A client for one registry, with what was given or what Docker knows.
pub(crate) fn client(host: &Host, opening: &Opening) -> Result<Client> {
    let mut endpoint = Endpoint::of(host, opening.plain_http, authority(opening)?)
        .map_err(|error| Trouble::refused(margrave_core::chain::sentence(&error)))?;
    endpoint.credentials = match credentials(opening)? {
        Some(given) => given,
        None => match docker_config() {
            Some(path) => docker_login(&path, host)?,
            None => Credentials::Anonymous,
        },
    };
    Ok(Client::new(Hosts::new().with(host.clone(), endpoint)))
}

fn secret(what: &str) -> Result<String> {
    let mut text = String::new();
    io::stdin().take(SECRET_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| {
        Trouble::because(format!("the {what} cannot be read from standard input"), &error)
    })?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() || text.len() as u64 > SECRET_BYTES_MAX {
        return Err(Trouble::broke(format!("standard input holds no {what}")));
    }
    Ok(text.to_owned())
}

fn docker_config() -> Option<PathBuf> {
    let directory = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let directory = directory.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker")));
    Some(directory?.join("config.json"))
}

/// What `docker login` left for a registry, and for no other.
fn docker_login(path: &Path, host: &Host) -> Result<Credentials> {
    #[derive(serde::Deserialize)]
    struct Config {
        #[serde(default)]
        auths: BTreeMap<String, Login>,
        #[serde(default, rename = "credsStore")]
        store: Option<String>,
        #[serde(default, rename = "credHelpers")]
        helpers: BTreeMap<String, String>,
    }
    #[derive(Default, serde::Deserialize)]
    struct Login {
        #[serde(default)]
        auth: String,
        #[serde(default)]
        username: String,
        #[serde(default)]
        password: String,
        #[serde(default)]
        registrytoken: String,
    }
    let bytes = match fs::File::open(path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            let read = file.take(DOCKER_BYTES_MAX).read_to_end(&mut bytes);
            read.map_err(|error| Trouble::because(format!("{} cannot be read", path.display()), &error))?;
            bytes
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Credentials::Anonymous),
        Err(error) => return Err(Trouble::because(format!("{} cannot be read", path.display()), &error)),
    };
    let misread = || {
        Trouble::broke(format!("{} is not as Docker writes it", path.display()))
            .hint("give --user, and the password by --password-stdin")
    };
    let Config { mut auths, store, helpers } = serde_json::from_slice(&bytes).map_err(|_| misread())?;
    let names = ["", "https://", "http://"].map(|scheme| format!("{scheme}{host}"));
    let key = auths.keys().find(|key| names.iter().any(|name| key.trim_end_matches('/') == name)).cloned();
    let login = key.and_then(|key| auths.remove(&key));
    let helper = helpers.get(host.as_str()).or(store.as_ref().filter(|_| login.is_some()));
    let Some(login) = login.or_else(|| helper.map(|_| Login::default())) else {
        return Ok(Credentials::Anonymous);
    };
    if !login.registrytoken.is_empty() {
        return Ok(Credentials::Token(login.registrytoken));
    }
    let (mut user, mut password) = (login.username, login.password);
    if !login.auth.is_empty() {
        let text = STANDARD.decode(&login.auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let text = text.ok_or_else(misread)?;
        let (name, secret) = text.split_once(':').ok_or_else(misread)?;
        (user, password) = (name.to_owned(), secret.trim_end_matches('\0').to_owned());
    }
    if user.is_empty() || password.is_empty() {
        let kept = helper.map_or("elsewhere".to_owned(), |helper| format!("in its helper {helper}"));
        return Err(Trouble::broke(format!(
            "Docker keeps the credentials for {host} {kept}, not in its config.json"
        ))
        .hint("give --user, and the password by --password-stdin"));
    }
    Ok(Credentials::Basic { user, password })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(config: &str, host: &str) -> Result<Credentials> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        fs::write(&path, config).unwrap();
        docker_login(&path, &Host::parse(host).unwrap())
    }

    #[test]
    fn docker_logins_are_found_for_their_registry_and_no_other() {
        let auth = STANDARD.encode("me:open:sesame");
        let config = format!(
            r#"{{"auths":{{"registry.example:5000":{{"auth":"{auth}"}},"https://other.example/":{{"username":"you","password":"x"}}}}}}"#
        );
        let basic =
            |user: &str, password: &str| Credentials::Basic { user: user.into(), password: password.into() };
        assert_eq!(login(&config, "registry.example:5000").unwrap(), basic("me", "open:sesame"));
        assert_eq!(login(&config, "other.example").unwrap(), basic("you", "x"));
        for stranger in ["registry.example", "registry.example:5001", "evil.registry.example:5000"] {
            assert_eq!(login(&config, stranger).unwrap(), Credentials::Anonymous, "{stranger}");
        }
        let token = r#"{"auths":{"r.example":{"registrytoken":"abc"}}}"#;
        assert_eq!(login(token, "r.example").unwrap(), Credentials::Token("abc".into()));
        assert_eq!(login("{}", "r.example").unwrap(), Credentials::Anonymous);
    }

    #[test]
    fn what_docker_keeps_elsewhere_is_said() {
        for config in [
            r#"{"auths":{"r.example":{}},"credsStore":"desktop"}"#,
            r#"{"credHelpers":{"r.example":"ecr-login"}}"#,
        ] {
            let trouble = login(config, "r.example").unwrap_err();
            assert!(
                trouble.message().contains("helper") && trouble.hinted().is_some(),
                "{}",
                trouble.message()
            );
        }
        assert!(login("[1]", "r.example").is_err());
        assert!(login(r#"{"auths":{"r.example":{"auth":"!"}}}"#, "r.example").is_err());
    }
}
