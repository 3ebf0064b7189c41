//! `margrave why`: the one true reason that something is not as wanted.

use margrave_wire::operator;

use crate::cli::Why;
use crate::client::Client;
use crate::exit::{Answer, Result};
use crate::render::{Screen, printable};

pub(crate) async fn run(screen: &Screen, args: Why) -> Result {
    let client = Client::connect(&args.connection)?;
    let why = client.why(&args.subject).await?;
    if screen.json {
        screen.object(&why)?;
    } else {
        show(screen, &why)?;
    }
    Ok(if why.converged { Answer::Done } else { Answer::No })
}

fn show(screen: &Screen, why: &operator::Why) -> Result<()> {
    let verdict = if why.converged { screen.state("converged") } else { "not as wanted".to_owned() };
    screen.data(format_args!("{} is {verdict}", printable(&why.subject)))?;
    for (depth, cause) in why.chain.iter().enumerate() {
        screen.data(format_args!("{}because {}", "  ".repeat(depth + 1), printable(&cause.text)))?;
    }
    // Nearest to the root first: that is the one to act on.
    if let Some(hint) = why.chain.iter().rev().find_map(|cause| cause.hint.as_deref()) {
        screen.words(format_args!(" hint: {}", printable(hint)));
    }
    Ok(())
}
