//! Registries of others: how each is reached, trusted and opened. What goes in here as a secret is sent to that registry
//! and shown to nobody.

use margrave_core::chain::sentence;
use margrave_oci::client::{Client, ClientError, Credentials, Endpoint, Hosts};
use margrave_oci::reference::Host;
use margrave_store::{REGISTRIES_MAX, RegistryCredentials, RegistryRecord};
use margrave_wire::operator;

use super::event::time;
use super::{Actor, Error, Fleet};

/// The longest tokens that registries hand out are some kilobytes.
const SECRET_BYTES_MAX: usize = 16 * 1024;
/// A bundle of a company's authorities.
const AUTHORITY_BYTES_MAX: usize = 128 * 1024;
/// The rule of all that is about reaching registries.
const RULE: &str = "PK-050";

/// A client of all registries that are known.
pub(super) fn client_of(records: &[RegistryRecord]) -> Client {
    let mut hosts = Hosts::new();
    for record in records {
        let endpoint = Host::parse(&record.host)
            .map_err(|error| error.to_string())
            .and_then(|host| Ok((host.clone(), endpoint(&host, record).map_err(|error| sentence(&error))?)));
        match endpoint {
            Ok((host, endpoint)) => hosts = hosts.with(host, endpoint),
            // It was usable when it was added; a stricter reader of a later version must not stop the server.
            Err(error) => tracing::error!(host = record.host, error, "a registry cannot be used any more"),
        }
    }
    Client::new(hosts)
}

fn endpoint(host: &Host, record: &RegistryRecord) -> Result<Endpoint, ClientError> {
    let mut endpoint = Endpoint::of(host, record.plain, record.authority.clone())?;
    endpoint.credentials = match &record.credentials {
        RegistryCredentials::Anonymous => Credentials::Anonymous,
        RegistryCredentials::Basic { user, password } => {
            Credentials::Basic { user: user.clone(), password: password.clone() }
        }
        RegistryCredentials::Token(token) => Credentials::Token(token.clone()),
    };
    Ok(endpoint)
}

impl Fleet {
    /// The client of other registries, as they are known at this moment.
    pub(super) fn upstream(&self) -> Client {
        Client::clone(&self.upstream.load())
    }

    pub async fn registries(&self) -> Result<Vec<operator::Registry>, Error> {
        Ok(self.store.registries().await?.into_iter().map(shown).collect())
    }

    pub async fn registry(&self, host: &str) -> Result<operator::Registry, Error> {
        let host = read_host(host)?;
        let found = self.registries().await?.into_iter().find(|registry| registry.host == host.to_string());
        found.ok_or_else(|| Error::not_found(format!("registry {host} among those that are known")))
    }

    /// Remembers how a registry is opened, in place of what was known.
    pub async fn put_registry(
        &self,
        actor: &Actor,
        host: &str,
        want: operator::PutRegistry,
    ) -> Result<operator::Registry, Error> {
        let host = read_host(host)?;
        let operator::PutRegistry { plain, authority, user, password, token } = want;
        let authority = authority.filter(|text| !text.trim().is_empty());
        if authority.as_ref().is_some_and(|pem| pem.len() > AUTHORITY_BYTES_MAX) {
            let message = format!("an authority has at most {AUTHORITY_BYTES_MAX} bytes");
            return Err(Error::invalid("/authority", RULE, message));
        }
        let record = RegistryRecord {
            host: host.to_string(),
            plain,
            authority,
            credentials: read_credentials(user, password, token)?,
            changed_at: self.now(),
            changed_by: actor.name.clone(),
        };
        endpoint(&host, &record).map_err(|error| {
            let place = if matches!(error, ClientError::PlainElsewhere(_)) { "/plain" } else { "/authority" };
            Error::invalid(place, RULE, sentence(&error))
        })?;
        if self.store.put_registry(record.clone()).await?.is_none() {
            return Err(Error::conflict(format!(
                "there are {REGISTRIES_MAX} registries already; remove one"
            )));
        }
        self.reload_registries().await?;
        Ok(shown(record))
    }

    /// Forgets a registry and what opened it. It is then reached as any other, anonymously.
    pub async fn remove_registry(&self, actor: &Actor, host: &str) -> Result<(), Error> {
        let host = read_host(host)?;
        if !self.store.remove_registry(host.as_str(), self.now(), &actor.name).await? {
            return Err(Error::not_found(format!("registry {host}")));
        }
        self.reload_registries().await
    }

    /// Asks a registry whether it is one and takes what it is told about us.
    pub async fn check_registry(&self, host: &str) -> Result<operator::RegistryCheck, Error> {
        let host = read_host(host)?;
        let (ok, message) = match self.upstream().greet(&host).await {
            Ok(()) => (true, format!("the registry {host} answers and takes us")),
            Err(error) => (false, sentence(&error)),
        };
        Ok(operator::RegistryCheck { host: host.to_string(), ok, message })
    }

    async fn reload_registries(&self) -> Result<(), Error> {
        let records = self.store.registries().await?;
        self.upstream.store(std::sync::Arc::new(client_of(&records)));
        self.watching.news.notify_one();
        Ok(())
    }
}

fn read_host(text: &str) -> Result<Host, Error> {
    let invalid = |message: String| Error::invalid("/host", RULE, message);
    let host = Host::parse(text).map_err(|error| invalid(error.to_string()))?;
    if host.is_own_registry() {
        return Err(invalid(
            "that is this server's own registry, which it needs no credentials for".to_owned(),
        ));
    }
    Ok(host)
}

fn read_credentials(
    user: Option<String>,
    password: Option<String>,
    token: Option<String>,
) -> Result<RegistryCredentials, Error> {
    let invalid = |place: &str, message: &str| Err(Error::invalid(place, RULE, message));
    let unfit = |text: &String| {
        text.is_empty() || text.len() > SECRET_BYTES_MAX || text.chars().any(char::is_control)
    };
    match (user, password, token) {
        (None, None, None) => Ok(RegistryCredentials::Anonymous),
        (None, None, Some(token)) => {
            if unfit(&token) || !token.is_ascii() || token.contains(' ') {
                return invalid("/token", "a token is one word of printable ASCII");
            }
            Ok(RegistryCredentials::Token(token))
        }
        (Some(user), Some(password), None) => {
            if unfit(&user) || user.contains(':') {
                return invalid("/user", "a user's name has no colon and no control characters");
            }
            if unfit(&password) {
                return invalid("/password", "a password is not empty and has no control characters");
            }
            Ok(RegistryCredentials::Basic { user, password })
        }
        (Some(_), None, None) => invalid("/password", "a user needs a password"),
        (None, Some(_), None) => invalid("/user", "a password needs a user"),
        (_, _, Some(_)) => invalid("/token", "give a user and a password, or a token, not both"),
    }
}

fn shown(record: RegistryRecord) -> operator::Registry {
    let RegistryRecord { host, plain, authority, credentials, changed_at, changed_by } = record;
    let (credentials, user) = match credentials {
        RegistryCredentials::Anonymous => ("anonymous", None),
        RegistryCredentials::Basic { user, .. } => ("password", Some(user)),
        RegistryCredentials::Token(_) => ("token", None),
    };
    operator::Registry {
        host,
        plain,
        private_authority: authority.is_some(),
        credentials: credentials.to_owned(),
        user,
        changed_at: time(changed_at),
        changed_by,
    }
}
