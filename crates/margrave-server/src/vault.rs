//! Where secrets are looked up, and the key that seals values and tells them apart.
//!
//! Owns `secrets.key` and the directory `secrets` below `--data`, and which variables of the environment may be asked for. What
//! is found here goes into devices' documents and nowhere else; the core's types see to that (`secret.rs`).

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use margrave_core::deployment::Deployment;
use margrave_core::id::{DeploymentId, DeploymentName, ParameterName};
use margrave_core::parameters::{Answer, Answers};
use margrave_core::secret::{
    Fingerprint, Reference, SEALED_PREFIX, SECRET_BYTES_MAX, Sealed, Secret, Secrets,
};

use crate::server::replace_private;

const KEY_FILE: &str = "secrets.key";
const DIRECTORY: &str = "secrets";
const KEY_BYTES: usize = 32;

type Environment = Arc<dyn Fn(&str) -> Option<OsString> + Send + Sync>;

/// Looks secrets up.
#[derive(Clone)]
pub struct Vault {
    key_file: PathBuf,
    directory: PathBuf,
    environment: Environment,
    /// Read or made when it is first needed.
    keys: Arc<Mutex<Option<Arc<Keys>>>>,
}

/// What one key is used for is of no use for another.
struct Keys {
    sealing: LessSafeKey,
    telling_apart: hmac::Key,
    salting: hmac::Key,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").field("directory", &self.directory).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    #[error("{path} cannot be {doing}")]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
    #[error("{0} is not a key of this server; put the right one back from a backup")]
    Damaged(PathBuf),
    #[error("the system gives no random numbers, without which no secret is safe")]
    NoRandomness,
    #[error("a secret has 1 to {SECRET_BYTES_MAX} bytes")]
    Length,
}

impl Vault {
    /// The vault of a server with this data directory.
    pub fn at(data: &Path) -> Vault {
        Vault {
            key_file: data.join(KEY_FILE),
            directory: data.join(DIRECTORY),
            environment: Arc::new(|name| std::env::var_os(name)),
            keys: Arc::default(),
        }
    }

    /// Asks `environment` instead of the process's own.
    pub fn with_environment(
        self,
        environment: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static,
    ) -> Vault {
        Vault { environment: Arc::new(environment), ..self }
    }

    fn keys(&self) -> Result<Arc<Keys>, VaultError> {
        let mut held = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = &*held {
            return Ok(Arc::clone(keys));
        }
        let keys = Arc::new(Keys::derive(&self.key()?));
        Ok(Arc::clone(held.insert(keys)))
    }

    /// The key on disk; made where there is none.
    fn key(&self) -> Result<[u8; KEY_BYTES], VaultError> {
        let path = &self.key_file;
        let failed = |doing| move |source| VaultError::Io { path: path.clone(), doing, source };
        match fs::read(path) {
            Ok(bytes) => {
                let private = fs::Permissions::from_mode(0o600);
                fs::set_permissions(path, private).map_err(failed("made private"))?;
                bytes.try_into().map_err(|_| VaultError::Damaged(path.clone()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut key = [0; KEY_BYTES];
                rand::fill(&mut key).map_err(|_| VaultError::NoRandomness)?;
                replace_private(path, &key).map_err(failed("written"))?;
                let directory = path.parent().unwrap_or(Path::new("."));
                File::open(directory).and_then(|file| file.sync_all()).map_err(failed("written"))?;
                Ok(key)
            }
            Err(error) => Err(failed("read")(error)),
        }
    }

    /// Seals a value for one parameter of one deployment: elsewhere it does not open, so that nobody can move it to where it
    /// can be read.
    pub fn seal(
        &self,
        deployment: &DeploymentName,
        parameter: &ParameterName,
        value: &str,
    ) -> Result<Reference, VaultError> {
        if value.is_empty() || value.len() > SECRET_BYTES_MAX {
            return Err(VaultError::Length);
        }
        let keys = self.keys()?;
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(|_| VaultError::NoRandomness)?;
        let mut sealed = value.as_bytes().to_vec();
        keys.sealing
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(purpose(deployment, parameter)),
                &mut sealed,
            )
            .map_err(|_| VaultError::Length)?;
        let mut bytes = nonce.to_vec();
        bytes.extend(sealed);
        let text = format!("{SEALED_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        Ok(Reference::Sealed(Sealed::try_from(text).expect("what is sealed here has the form of it")))
    }

    /// Everything that the answers of a deployment refer to.
    pub(crate) fn secrets(&self, deployment: &Deployment) -> Secrets {
        let overrides = deployment.overrides.iter().map(|other| &other.answers);
        let all = [&deployment.answers].into_iter().chain(overrides);
        self.behind(&deployment.name, deployment.id, all)
    }

    pub(crate) fn behind<'a>(
        &self,
        name: &DeploymentName,
        id: DeploymentId,
        answers: impl IntoIterator<Item = &'a Answers>,
    ) -> Secrets {
        let mut secrets = Secrets::default();
        for (parameter, answer) in answers.into_iter().flatten() {
            let Answer::Secret(referred) = answer else { continue };
            let found = self.look_up(name, parameter, &referred.secret);
            secrets.insert(parameter.clone(), referred.secret.clone(), found);
            if secrets.salt.is_none()
                && let Ok(keys) = self.keys()
            {
                let tag = hmac::sign(&keys.salting, id.uuid().as_bytes());
                secrets.salt = Some(URL_SAFE_NO_PAD.encode(&tag.as_ref()[..16]));
            }
        }
        secrets
    }

    fn look_up(
        &self,
        deployment: &DeploymentName,
        parameter: &ParameterName,
        reference: &Reference,
    ) -> Result<Secret, String> {
        let keys = self.keys().map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "the key of secrets cannot be used");
            format!("the server's key of secrets cannot be used: {error}")
        })?;
        let bytes = match reference {
            Reference::Env(variable) => self.variable(variable.as_str()),
            Reference::File(path) => self.file(path.as_str()),
            Reference::Sealed(sealed) => keys.open(deployment, parameter, sealed),
        }?;
        let wrong = |what: &str| Err(format!("{reference} {what}"));
        if bytes.len() > SECRET_BYTES_MAX {
            return wrong(&format!("has more than the {SECRET_BYTES_MAX} bytes of a secret"));
        }
        let Ok(mut text) = String::from_utf8(bytes) else { return wrong("is not text (UTF-8)") };
        // Editors end a file with a line break, which is nobody's password.
        if matches!(reference, Reference::File(_)) && text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        if text.is_empty() {
            return wrong("is empty");
        }
        let tag = hmac::sign(&keys.telling_apart, text.as_bytes());
        let fingerprint = Fingerprint(URL_SAFE_NO_PAD.encode(tag.as_ref()));
        Ok(Secret::new(text, fingerprint))
    }

    fn variable(&self, name: &str) -> Result<Vec<u8>, String> {
        let found = (self.environment)(name).map(OsString::into_encoded_bytes);
        found.ok_or_else(|| {
            format!(
                "there is no variable {name} in the server's environment; set it where the server is started"
            )
        })
    }

    fn file(&self, name: &str) -> Result<Vec<u8>, String> {
        let path = self.directory.join(name);
        let shown = format!("{DIRECTORY}/{name}");
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!("there is no file {shown} in the server's data directory; put it there")
            }
            _ => format!("the file {shown} in the server's data directory cannot be read: {error}"),
        };
        // Links are followed, as mounted secrets have them, but not out of the directory.
        let real = fs::canonicalize(&path).map_err(failed)?;
        let within = fs::canonicalize(&self.directory).map_err(failed)?;
        if !real.starts_with(&within) {
            return Err(format!("the file {shown} leads out of the server's directory of secrets"));
        }
        if !fs::metadata(&real).map_err(failed)?.is_file() {
            return Err(format!("{shown} in the server's data directory is no file"));
        }
        let mut bytes = Vec::new();
        let limit = u64::try_from(SECRET_BYTES_MAX).unwrap_or(u64::MAX) + 3;
        File::open(&real).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(failed)?;
        Ok(bytes)
    }
}

impl Keys {
    fn derive(key: &[u8; KEY_BYTES]) -> Keys {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        let derived = |purpose: &str| hmac::sign(&key, format!("margrave secrets 1: {purpose}").as_bytes());
        let hashing = |purpose: &str| hmac::Key::new(hmac::HMAC_SHA256, derived(purpose).as_ref());
        let sealing = UnboundKey::new(&AES_256_GCM, derived("seal").as_ref());
        Keys {
            sealing: LessSafeKey::new(sealing.expect("a SHA-256 has the length of an AES-256 key")),
            telling_apart: hashing("tell apart"),
            salting: hashing("salt"),
        }
    }

    fn open(
        &self,
        deployment: &DeploymentName,
        parameter: &ParameterName,
        sealed: &Sealed,
    ) -> Result<Vec<u8>, String> {
        let wrong = || {
            format!(
                "the sealed value does not open: it was sealed for another deployment or parameter than {deployment} and \
                 {parameter}, by another server, or is damaged; seal it anew with `margrave secret seal`"
            )
        };
        let text = sealed.as_str().strip_prefix(SEALED_PREFIX).ok_or_else(wrong)?;
        let mut bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
        if bytes.len() < NONCE_LEN {
            return Err(wrong());
        }
        let rest = bytes.split_off(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(&bytes).map_err(|_| wrong())?;
        let mut opened = rest;
        let length = self
            .sealing
            .open_in_place(nonce, Aad::from(purpose(deployment, parameter)), &mut opened)
            .map_err(|_| wrong())?
            .len();
        opened.truncate(length);
        Ok(opened)
    }
}

/// What a sealed value is for. Names have no NUL, so two purposes never read alike.
fn purpose(deployment: &DeploymentName, parameter: &ParameterName) -> Vec<u8> {
    format!("margrave sealed 1\0{deployment}\0{parameter}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(kind: &str, text: &str) -> Reference {
        serde_json::from_value(serde_json::json!({ kind: text })).unwrap()
    }

    fn ids() -> (DeploymentName, ParameterName) {
        ("web".parse().unwrap(), "password".parse().unwrap())
    }

    fn look(vault: &Vault, reference: &Reference) -> Result<String, String> {
        let (deployment, parameter) = ids();
        let found = vault.look_up(&deployment, &parameter, reference)?;
        let mut secrets = Secrets::default();
        secrets.insert(parameter.clone(), reference.clone(), Ok(found.clone()));
        assert!(!format!("{found:?} {secrets:?} {vault:?}").contains("hunter2"));
        Ok(found.fingerprint().0.clone())
    }

    #[test]
    fn what_is_sealed_opens_here_for_its_purpose_and_nowhere_else() {
        let data = tempfile::tempdir().unwrap();
        let vault = Vault::at(data.path());
        let (deployment, parameter) = ids();
        let sealed = vault.seal(&deployment, &parameter, "hunter2").unwrap();
        let again = vault.seal(&deployment, &parameter, "hunter2").unwrap();
        assert_ne!(sealed, again, "the same value is not seen to be the same");
        assert_eq!(look(&vault, &sealed), look(&vault, &again), "and is told to be by who has the key");
        let mode = fs::metadata(data.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A restart has the same key.
        assert_eq!(look(&Vault::at(data.path()), &sealed), look(&vault, &sealed));
        let other: DeploymentName = "other".parse().unwrap();
        assert!(vault.look_up(&other, &parameter, &sealed).unwrap_err().contains("seal it anew"));
        let elsewhere = tempfile::tempdir().unwrap();
        assert!(look(&Vault::at(elsewhere.path()), &sealed).unwrap_err().contains("another server"));
        let Reference::Sealed(text) = &sealed else { panic!() };
        let text = text.as_str();
        let mut flipped = text.to_owned().into_bytes();
        let at = flipped.len() - 8;
        flipped[at] = if flipped[at] == b'A' { b'B' } else { b'A' };
        for damaged in [&text[..text.len() - 4], "mgs1.AAAA", "mgs1.A", &String::from_utf8(flipped).unwrap()]
        {
            let refused = look(&vault, &reference("sealed", damaged)).unwrap_err();
            assert!(refused.contains("does not open") && !refused.contains("hunter2"), "{refused}");
        }
        assert!(vault.seal(&deployment, &parameter, "").is_err());
        assert!(vault.seal(&deployment, &parameter, &"x".repeat(SECRET_BYTES_MAX + 1)).is_err());
        vault.seal(&deployment, &parameter, &"x".repeat(SECRET_BYTES_MAX)).unwrap();
    }

    #[test]
    fn files_are_read_within_their_directory_and_within_bounds() {
        let data = tempfile::tempdir().unwrap();
        let vault = Vault::at(data.path());
        let missing = look(&vault, &reference("file", "db/password")).unwrap_err();
        assert!(missing.contains("there is no file secrets/db/password"), "{missing}");
        let folder = data.path().join(DIRECTORY);
        fs::create_dir_all(folder.join("db")).unwrap();
        fs::write(folder.join("db/password"), "hunter2\n").unwrap();
        fs::write(folder.join("plain"), "hunter2").unwrap();
        std::os::unix::fs::symlink("db/password", folder.join("link")).unwrap();
        let found = look(&vault, &reference("file", "db/password")).unwrap();
        for same in ["plain", "link"] {
            assert_eq!(look(&vault, &reference("file", same)).unwrap(), found, "{same}");
        }
        fs::write(folder.join("plain"), "other").unwrap();
        assert_ne!(look(&vault, &reference("file", "plain")).unwrap(), found);

        fs::write(data.path().join("outside"), "hunter2").unwrap();
        std::os::unix::fs::symlink("../outside", folder.join("out")).unwrap();
        fs::write(folder.join("huge"), "x".repeat(SECRET_BYTES_MAX + 10)).unwrap();
        fs::write(folder.join("empty"), "\n").unwrap();
        fs::write(folder.join("binary"), [0xff, 0xfe]).unwrap();
        for (name, told) in [
            ("out", "leads out"),
            ("huge", "has more than"),
            ("empty", "is empty"),
            ("binary", "is not text"),
            ("db", "is no file"),
        ] {
            let refused = look(&vault, &reference("file", name)).unwrap_err();
            assert!(refused.contains(told) && !refused.contains("hunter2"), "{name}: {refused}");
        }
    }

    #[test]
    fn only_variables_of_their_own_kind_are_asked_for() {
        let data = tempfile::tempdir().unwrap();
        let environment = |name: &str| (name == "MARGRAVE_SECRET_DB").then(|| "hunter2".into());
        let vault = Vault::at(data.path()).with_environment(environment);
        look(&vault, &reference("env", "MARGRAVE_SECRET_DB")).unwrap();
        let refused = look(&vault, &reference("env", "MARGRAVE_SECRET_NONE")).unwrap_err();
        assert!(refused.contains("there is no variable MARGRAVE_SECRET_NONE"), "{refused}");
    }

    #[test]
    fn a_key_that_is_none_is_told_and_not_replaced() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join(KEY_FILE), "short").unwrap();
        let vault = Vault::at(data.path());
        let (deployment, parameter) = ids();
        assert!(matches!(vault.seal(&deployment, &parameter, "x"), Err(VaultError::Damaged(_))));
        assert_eq!(fs::read(data.path().join(KEY_FILE)).unwrap(), b"short");
    }
}
