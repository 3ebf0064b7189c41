//! `margrave authority`: who signs the devices' certificates, and how another takes its place.

use margrave_wire::operator::{AuthorityStatus, RetireAuthority, RotateAuthority};

use super::confirm::confirm;
use crate::cli::{self, Noun};
use crate::client::Client;
use crate::exit::{Answer, Result};
use crate::render::{self, Screen};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Authority>) -> Result {
    let client = Client::connect(&args.connection)?;
    match args.verb {
        cli::Authority::Show => show(screen, &client.authority().await?),
        cli::Authority::Rotate { switch_after, now, yes } => {
            let question = if now {
                "Replace the authority at once? Devices that have not looked for changes refuse the server until they do."
            } else {
                "Replace the authority? Devices are told of the next one now."
            };
            if !confirm(question, yes)? {
                screen.words("Nothing was changed.");
                return Ok(Answer::No);
            }
            let seconds = if now { 0 } else { switch_after.as_secs() };
            let want = RotateAuthority { switch_after_seconds: Some(seconds) };
            show(screen, &client.rotate_authority(&want).await?)
        }
        cli::Authority::Retire { force, yes } => {
            let left = client.authority().await?.devices_left;
            let question = match left {
                0 => "Retire the former authority? No device depends on it.".to_owned(),
                _ => format!(
                    "Retire the former authority? {} a certificate of it and must join again.",
                    if left == 1 {
                        "1 device still has".to_owned()
                    } else {
                        format!("{left} devices still have")
                    }
                ),
            };
            // Without --force the server says no by itself, and says why.
            if (left == 0 || force) && !confirm(&question, yes)? {
                screen.words("Nothing was changed.");
                return Ok(Answer::No);
            }
            show(screen, &client.retire_authority(&RetireAuthority { force }).await?)
        }
    }
}

fn show(screen: &Screen, status: &AuthorityStatus) -> Result {
    if screen.json {
        screen.object(status)?;
        return Ok(Answer::Done);
    }
    let one = |certificate: &margrave_wire::operator::AuthorityCertificate| {
        format!("{} until {}", certificate.fingerprint, render::clock(&certificate.expires))
    };
    let mut facts = vec![
        ("Trust domain", status.trust_domain.clone()),
        ("Bundle", format!("number {}", status.sequence)),
        ("Issues", one(&status.issuing)),
    ];
    if let Some(next) = &status.next {
        facts.push(("Next", one(next)));
    }
    if let Some(at) = &status.switch_at {
        facts.push(("Issues from", render::clock(at)));
    }
    if let Some(former) = &status.former {
        facts.push(("Former", one(former)));
        facts.push(("Depend on it", render::count(status.devices_left, "device")));
    }
    screen.facts(&facts)?;
    match status.phase.as_str() {
        "announced" => screen.words("\nDevices are being told of the next authority; both are trusted."),
        "switched" if status.devices_left == 0 => {
            screen.words(
                "\nNo device has a certificate of the former authority: `margrave authority retire` ends it.",
            );
        }
        "switched" => screen.words(
            "\nDevices get certificates of the new authority as they renew, at half of a certificate's life.",
        ),
        _ => {}
    }
    Ok(Answer::Done)
}
