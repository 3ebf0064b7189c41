//! `margrave registry`: where packages come from, and what opens it.

use jiff::Timestamp;
use margrave_oci::client::Credentials;
use margrave_wire::operator::{self, PutRegistry};

use crate::cli::{self, AddRegistry, Noun};
use crate::client::Client;
use crate::exit::{Answer, Result, Trouble};
use crate::opening;
use crate::render::{self, Column, Screen, Table};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Registry>) -> Result {
    let client = Client::connect(&args.connection)?;
    match args.verb {
        cli::Registry::Add(want) => add(screen, &client, &want).await,
        cli::Registry::List => list(screen, &client.registries().await?),
        cli::Registry::Check { host } => check(screen, &client.check_registry(&bare(&host)?).await?),
        cli::Registry::Remove { host } => {
            client.remove_registry(&bare(&host)?).await?;
            if screen.json {
                screen.object(&serde_json::json!({ "host": host, "removed": true }))?;
            } else {
                screen.words(format_args!("The server has forgotten {host} and what opened it."));
            }
            Ok(Answer::Done)
        }
    }
}

async fn add(screen: &Screen, client: &Client, want: &AddRegistry) -> Result {
    let host = bare(&want.host)?;
    let (user, password, token) = match opening::credentials(&want.opening)? {
        None | Some(Credentials::Anonymous) => (None, None, None),
        Some(Credentials::Basic { user, password }) => (Some(user), Some(password), None),
        Some(Credentials::Token(token)) => (None, None, Some(token)),
    };
    let body = PutRegistry {
        plain: want.opening.plain_http,
        authority: opening::authority(&want.opening)?,
        user,
        password,
        token,
    };
    let registry = client.put_registry(&host, &body).await?;
    let checked = client.check_registry(&host).await?;
    if screen.json {
        screen.object(&registry)?;
    } else {
        screen.words(format_args!("The server knows {host} now, {}.", words(&registry)));
        if !checked.ok {
            screen.words(format_args!("But when it asked: {}", render::printable(&checked.message)));
        }
    }
    Ok(if checked.ok { Answer::Done } else { Answer::No })
}

/// People copy addresses with their scheme.
fn bare(host: &str) -> Result<String> {
    if host.starts_with("http://") {
        return Err(Trouble::broke("plain HTTP is for registries on the server's own machine only").hint(
            "write host:port without a scheme, and --plain-http if it is on the server's own machine",
        ));
    }
    let host = host.strip_prefix("https://").or_else(|| host.strip_prefix("oci://")).unwrap_or(host);
    Ok(host.trim_end_matches('/').to_owned())
}

fn words(registry: &operator::Registry) -> String {
    let opened = match (&registry.user, registry.credentials.as_str()) {
        (Some(user), _) => format!("as {user}"),
        (None, "token") => "by a token".to_owned(),
        (None, _) => "anonymously".to_owned(),
    };
    let trusted = match (registry.plain, registry.private_authority) {
        (true, _) => ", without TLS",
        (false, true) => ", with its own authority",
        (false, false) => "",
    };
    format!("{opened}{trusted}")
}

fn list(screen: &Screen, registries: &[operator::Registry]) -> Result {
    if screen.json {
        screen.object(&registries)?;
        return Ok(Answer::Done);
    }
    if registries.is_empty() {
        screen.words("The server knows no registry in particular; it asks each one anonymously, by HTTPS.");
        return Ok(Answer::Done);
    }
    let mut table =
        Table::new(&[Column::fixed("REGISTRY"), Column::flexible("OPENED"), Column::fixed("SET").optional()]);
    for registry in registries {
        let set =
            format!("{}, by {}", render::ago(&registry.changed_at, Timestamp::now()), registry.changed_by);
        table.row([registry.host.as_str().into(), words(registry).into(), set.into()]);
    }
    screen.table(&table)?;
    Ok(Answer::Done)
}

fn check(screen: &Screen, checked: &operator::RegistryCheck) -> Result {
    if screen.json {
        screen.object(checked)?;
    } else {
        screen.words(render::printable(&checked.message));
    }
    Ok(if checked.ok { Answer::Done } else { Answer::No })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_for_its_host() {
        for text in ["r.example:5000", "https://r.example:5000/", "oci://r.example:5000"] {
            assert_eq!(bare(text).unwrap(), "r.example:5000");
        }
        assert!(bare("http://r.example").is_err());
    }
}
