//! `margrave session`: being signed in to the page.

use crate::cli::{self, Noun};
use crate::client::Client;
use crate::exit::{Answer, Result};
use crate::render::{Screen, count, printable};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Session>) -> Result {
    let client = Client::connect(&args.connection)?;
    match args.verb {
        cli::Session::EndAll => {
            let ended = client.end_all_sessions().await?;
            if screen.json {
                screen.object(&ended)?;
            } else {
                let (name, sessions) = (printable(&ended.name), count(ended.ended, "session"));
                screen.words(format_args!("{name} is signed out of the page everywhere: {sessions} ended."));
            }
            Ok(Answer::Done)
        }
    }
}
