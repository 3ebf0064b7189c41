//! `margrave device git`: a device's read-only Git repository.

use margrave_wire::operator::{GitRepository, PutGit};

use crate::cli;
use crate::client::Client;
use crate::exit::{Answer, Result, Trouble};
use crate::render::{self, Screen};

pub(crate) async fn run(screen: &Screen, client: &Client, args: cli::DeviceGit) -> Result {
    let cli::DeviceGit { device, rotate, grace, off, show, authority } = args;
    if off {
        client.end_git(&device).await?;
        if screen.json {
            screen.object(&serde_json::json!({ "device": device, "git": false }))?;
        } else {
            screen
                .words(format_args!("The Git repository of {device} is closed; no token opens it any more."));
        }
        return Ok(Answer::Done);
    }
    let repository = if show {
        client.git(&device).await?
    } else {
        let want = PutGit { rotate, grace_seconds: grace.map(|grace| grace.as_secs()) };
        client.put_git(&device, &want).await?
    };
    if let Some(path) = &authority {
        std::fs::write(path, &repository.authority).map_err(|error| {
            Trouble::because(format!("the authority could not be written to {}", path.display()), &error)
        })?;
    }
    if screen.json {
        screen.object(&repository)?;
        return Ok(Answer::Done);
    }
    facts(screen, &repository)?;
    match &repository.token {
        Some(_) => screen.words(
            "\nThe token is shown this once. It is the password; any user name does. Trust the server's certificate \
             with http.sslCAInfo (--authority FILE writes it), then clone; docs/git.md shows how.",
        ),
        None if !show => screen.words(format_args!(
            "\nIt was there already. Its token was shown when it was made; `margrave device git {device} --rotate` \
             makes a new one."
        )),
        None => {}
    }
    Ok(Answer::Done)
}

fn facts(screen: &Screen, repository: &GitRepository) -> Result<()> {
    let mut facts = vec![
        ("Device", repository.device.clone()),
        ("Clone", repository.url.clone()),
        ("Branch", repository.branch.clone()),
        ("Version", format!("manifest {}", repository.version)),
    ];
    match &repository.token {
        Some(token) => facts.push(("Token", token.clone())),
        None => {
            for token in &repository.tokens {
                let until = match &token.expires {
                    Some(expires) => format!("until {}", render::clock(expires)),
                    None => "until it is replaced".to_owned(),
                };
                let made = render::clock(&token.created);
                facts.push(("Opened by", format!("a token of the {}, made {made}, {until}", token.holder)));
            }
        }
    }
    screen.facts(&facts)
}
