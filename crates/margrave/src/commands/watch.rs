//! `margrave package watch`: repositories whose new versions come into the catalog by themselves.

use jiff::Timestamp;
use margrave_wire::operator::{PutWatch, Watch};

use crate::cli::WatchRepository;
use crate::client::Client;
use crate::exit::{Answer, Result};
use crate::render::{self, Column, Screen, Table, count};

/// Watches, and looks at once: whoever asks wants to know whether it works.
pub(super) async fn put(screen: &Screen, args: &WatchRepository) -> Result {
    let client = Client::connect(&args.connection)?;
    let want =
        PutWatch { pattern: args.pattern.clone(), every_seconds: args.every.map(|every| every.as_secs()) };
    client.put_watch(&args.repository, &want).await?;
    let watch = client.look_at_watch(&args.repository).await?;
    if !screen.json {
        screen.words(format_args!("{} is watched from now on.", watch.repository));
    }
    seen(screen, &watch)
}

/// Looks now, whenever its time is, and leaves alone how it is watched.
pub(super) async fn look(screen: &Screen, client: &Client, repository: &str) -> Result {
    seen(screen, &client.look_at_watch(repository).await?)
}

fn seen(screen: &Screen, watch: &Watch) -> Result {
    match screen.json {
        true => screen.object(watch)?,
        false => show(screen, watch)?,
    }
    Ok(if watch.trouble.is_none() { Answer::Done } else { Answer::No })
}

pub(super) fn list(screen: &Screen, watches: &[Watch]) -> Result {
    if screen.json {
        screen.object(&watches)?;
        return Ok(Answer::Done);
    }
    if watches.is_empty() {
        screen.words("No repository is watched. Begin with `margrave package watch oci://HOST/REPOSITORY`.");
    }
    for watch in watches {
        screen.heading(&render::printable(&watch.repository))?;
        show(screen, watch)?;
    }
    Ok(Answer::Done)
}

pub(super) async fn remove(screen: &Screen, client: &Client, repository: &str) -> Result {
    client.remove_watch(repository).await?;
    if screen.json {
        screen.object(&serde_json::json!({ "repository": repository, "watched": false }))?;
    } else {
        screen.words(format_args!("{repository} is no longer watched; its packages stay."));
    }
    Ok(Answer::Done)
}

fn show(screen: &Screen, watch: &Watch) -> Result<()> {
    let now = Timestamp::now();
    let looked = watch.looked_at.as_ref().map_or("not yet".to_owned(), |at| render::ago(at, now));
    let mut facts = vec![
        ("Tags", watch.pattern.clone()),
        ("Looked at", format!("{looked}; every {}", pause(watch.every_seconds))),
    ];
    if let Some(trouble) = &watch.trouble {
        facts.push(("Trouble", trouble.clone()));
    }
    screen.facts(&facts)?;
    if watch.tags.is_empty() {
        return Ok(());
    }
    let mut table =
        Table::new(&[Column::fixed("TAG"), Column::fixed("STATE"), Column::flexible("PACKAGE, OR WHY NOT")]);
    for tag in &watch.tags {
        let what = tag.reason.clone().or_else(|| tag.package.clone()).unwrap_or_default();
        table.row([tag.tag.as_str().into(), tag.state.as_str().into(), what.into()]);
    }
    screen.table(&table)?;
    Ok(())
}

fn pause(seconds: u64) -> String {
    match seconds {
        day if day % 86_400 == 0 => count(day / 86_400, "day"),
        hour if hour % 3600 == 0 => count(hour / 3600, "hour"),
        minute if minute % 60 == 0 => count(minute / 60, "minute"),
        second => count(second, "second"),
    }
}
