//! `margrave serve`: the server, until it is told to stop.

use std::time::Duration;

use margrave_identity::svid::LIFETIME_MIN;
use margrave_server::fleet::Accept;
use margrave_server::{Config, Server, SignedConfig};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Follow, Serve, Signed};
use crate::exit::{Answer, Result, Trouble};
use crate::logging;
use crate::render::Screen;

/// Every connected device is an open file, and the usual soft limit of a thousand is for other programs.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, ?current, "the limit of open files could not be raised");
    }
}

/// Paths are made absolute: `git` runs elsewhere.
fn follow_config(follow: Follow) -> Result<Option<margrave_server::fleet::Follow>> {
    let Follow {
        follow: url,
        follow_branch: branch,
        follow_every: every,
        follow_token_file,
        follow_ca,
        follow_ssh_key,
        follow_known_hosts,
        follow_hook_token_file,
    } = follow;
    let Some(url) = url else { return Ok(None) };
    let absolute = |path: Option<std::path::PathBuf>| match path {
        None => Ok(None),
        Some(path) => path
            .canonicalize()
            .map(Some)
            .map_err(|error| Trouble::because(format!("{} cannot be found", path.display()), &error)),
    };
    Ok(Some(margrave_server::fleet::Follow {
        url,
        branch,
        every: every.max(std::time::Duration::from_secs(1)),
        token_file: absolute(follow_token_file)?,
        authority: absolute(follow_ca)?,
        ssh_key: absolute(follow_ssh_key)?,
        known_hosts: absolute(follow_known_hosts)?,
        hook_token_file: absolute(follow_hook_token_file)?,
        bytes_max: margrave_server::fleet::FETCH_BYTES_MAX,
    }))
}

pub(crate) async fn run(screen: &Screen, args: Serve) -> Result {
    logging::for_a_server()?;
    let Serve {
        data,
        listen,
        device_listen,
        device_prefix,
        local_listen,
        names,
        trust_domain,
        wfm_id,
        svid_lifetime,
        svid_lifetime_any,
        silent_after,
        registry_address,
        air_gapped,
        follow,
        signed,
    } = args;
    if !svid_lifetime_any {
        sensible(svid_lifetime)?;
    }
    raise_file_limit();
    let mut config = Config::new(&data);
    config.listen = listen;
    config.device_listen = device_listen;
    config.device_prefix = device_prefix;
    config.local_listen = local_listen;
    // What is given comes first, because the first name stands in every address that is handed out.
    config.names.splice(0..0, names);
    let mut seen = std::collections::HashSet::new();
    config.names.retain(|name| seen.insert(name.clone()));
    config.trust_domain = trust_domain;
    config.wfm = wfm_id;
    config.svid_lifetime = svid_lifetime;
    config.registry_address = registry_address;
    config.air_gapped = air_gapped;
    if let Some(silent_after) = silent_after {
        config.silent_after = silent_after;
    }
    config.follow = follow_config(follow)?;
    config.signed = signed_config(signed);

    // Before anything is started, so that no signal in between ends us abruptly.
    let mut stop = Stop::listen()?;
    let mut server =
        Server::start(config).await.map_err(|error| Trouble::because("the server did not start", &error))?;
    let context_file = data.join("context.json");
    let context_file = context_file.canonicalize().unwrap_or(context_file);
    greet(screen, &server, &context_file)?;

    let broke = tokio::select! {
        () = stop.wait() => false,
        () = server.stopped() => true,
    };
    screen.words("Stopping; a second Ctrl-C ends it at once.");
    tokio::select! {
        () = server.stop() => {}
        () = stop.wait() => return Err(Trouble::broke("ended before everything was stopped")),
    }
    match broke {
        false => Ok(Answer::Done),
        true => Err(Trouble::broke("a part of the server broke").hint("the log above says which")),
    }
}

/// Whether certificates that live so long are of any use.
fn sensible(lifetime: Duration) -> Result<()> {
    if lifetime >= LIFETIME_MIN {
        return Ok(());
    }
    let message = format!(
        "certificates of {} s would be renewed all the time: clocks differ by minutes, and devices renew at about half",
        lifetime.as_secs()
    );
    Err(Trouble::broke(message)
        .hint(format!("give --svid-lifetime {}m or longer; 7d is usual", LIFETIME_MIN.as_secs() / 60)))
}

fn signed_config(args: Signed) -> Option<SignedConfig> {
    let Signed {
        signed_listen,
        signed_urls,
        signed_plain,
        signed_window,
        signed_accept,
        signed_trust,
        signed_unsigned_onboarding,
    } = args;
    Some(SignedConfig {
        listen: signed_listen?,
        urls: signed_urls,
        plain: signed_plain,
        window: signed_window,
        accept: if signed_accept == "any" { Accept::Any } else { Accept::Ask },
        trust: signed_trust,
        unsigned_onboarding: signed_unsigned_onboarding,
    })
}

/// What is said about the signed interface where it is on.
pub(crate) fn signed_lines(server: &Server) -> Vec<String> {
    let Some(address) = server.addresses().signed else { return Vec::new() };
    let url = server.signed_urls().first().cloned().unwrap_or_default();
    vec![
        format!("  Signed    {url} ({address})"),
        "            (the older interface, g1; not conformant with Margo 1.0.0-rc.3)".to_owned(),
    ]
}

fn greet(screen: &Screen, server: &Server, context_file: &std::path::Path) -> Result<()> {
    let addresses = server.addresses();
    let link = server.sign_in_link();
    if screen.json {
        return screen.object_line(&json!({
            "url": server.url(),
            "pin": server.pin(),
            "web": addresses.web.to_string(),
            "device": addresses.device.to_string(),
            "local": addresses.local.map(|address| address.to_string()),
            "signed": addresses.signed.map(|address| address.to_string()),
            "signedUrls": server.signed_urls(),
            "context": context_file,
            "signIn": link,
        }));
    }
    let mut lines = vec![
        format!("Margrave {} is running.", env!("CARGO_PKG_VERSION")),
        String::new(),
        format!("  Page      {}", server.url()),
        format!("  Sign in   {link}"),
        "            (works once, for a quarter of an hour)".to_owned(),
        format!("  Devices   {}", addresses.device),
    ];
    if let Some(local) = addresses.local {
        lines.push(format!("  Local     http://{local}"));
    }
    lines.extend(signed_lines(server));
    lines.extend([
        format!("  Pin       {}", server.pin()),
        format!("  Context   {}", context_file.display()),
        String::new(),
        "Next, in another terminal:".to_owned(),
        String::new(),
        format!("  export MARGRAVE_CONTEXT={}", quoted(&context_file.display().to_string())),
        "  margrave device token --name line-1      # then run what it prints on the device".to_owned(),
        "  margrave package add DIR".to_owned(),
        "  margrave status --watch".to_owned(),
        String::new(),
        "Ctrl-C stops the server. What runs on devices keeps running.".to_owned(),
    ]);
    screen.words(lines.join("\n"));
    Ok(())
}

/// A word that a shell takes as one.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Ctrl-C and SIGTERM, which mean the same.
pub(crate) struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Stop {
    pub(crate) fn listen() -> Result<Stop> {
        let failed = |error: std::io::Error| Trouble::because("cannot listen for signals", &error);
        Ok(Stop {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    /// Ends with the next signal. Safe to cancel: a signal that nobody waited for is told to the next who does.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_lives_long_enough_to_be_used() {
        for (seconds, taken) in [(1, false), (599, false), (600, true), (7 * 86_400, true)] {
            assert_eq!(sensible(Duration::from_secs(seconds)).is_ok(), taken, "{seconds}");
        }
        let trouble = sensible(Duration::from_secs(1)).unwrap_err();
        assert!(trouble.message().starts_with("certificates of 1 s"), "{trouble:?}");
        assert!(trouble.hinted().unwrap().contains("--svid-lifetime 10m"), "{trouble:?}");
    }

    #[test]
    fn what_is_to_be_pasted_survives_the_shell() {
        assert_eq!(quoted("/var/lib/margrave/context.json"), "/var/lib/margrave/context.json");
        assert_eq!(quoted("/tmp/my data/it's"), r"'/tmp/my data/it'\''s'");
    }
}
