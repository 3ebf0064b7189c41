//! `margrave events`: what happened, and what happens.

use std::time::Duration;

use margrave_wire::operator::Event;

use crate::cli::Events;
use crate::client::Client;
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Screen, clock, printable};

/// How long to wait before asking again when the stream ended.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

pub(crate) async fn run(screen: &Screen, args: Events) -> Result {
    let client = Client::connect(&args.connection)?;
    let past = client.latest_events(args.last).await?;
    let mut seen = past.last().map(|event| event.sequence);
    for event in &past {
        show(screen, event)?;
    }
    if !args.follow {
        return Ok(Answer::Done);
    }
    let follow = async {
        loop {
            // A stream that ends, or a server that restarts, is followed again from the last event seen.
            match client.follow(seen).await {
                Ok(mut stream) => {
                    while let Some(event) = stream.next().await {
                        seen = Some(event.sequence);
                        show(screen, &event)?;
                    }
                }
                Err(trouble) if trouble.is_refusal() => return Err(trouble),
                Err(trouble) => screen.words(format_args!("{}; trying again", trouble.message())),
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    };
    tokio::select! {
        ended = follow => ended,
        stopped = tokio::signal::ctrl_c() => {
            stopped.map_err(|e| Trouble::because("cannot listen for Ctrl-C", &e))?;
            Ok(Answer::Done)
        }
    }
}

pub(crate) fn line(event: &Event) -> String {
    printable(&format!("{}  {}", clock(&event.at), event.text))
}

fn show(screen: &Screen, event: &Event) -> Result<()> {
    if screen.json { screen.object_line(event) } else { screen.data(line(event)) }
}
