//! `margrave login`: remember a server, once it has answered.

use std::io::{BufRead as _, Read as _};

use margrave_wire::operator::Context;

use crate::cli::Login;
use crate::client::Client;
use crate::context;
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Screen, count};

/// Longer than any token of ours.
const TOKEN_BYTES_MAX: u64 = 4096;

pub(crate) async fn run(screen: &Screen, args: Login) -> Result {
    let Login { url, token, pin, context: file } = args;
    let context = context::checked(Context { url, pin, token: secret(token)? })?;
    let file = match file {
        Some(file) => file,
        None => context::remembered_file()?,
    };
    // A wrong token or pin is told now, not by the first command that needs it.
    let status = Client::new(&context)?.status().await?;
    context::write(&file, &context)?;
    if screen.json {
        screen.object(&serde_json::json!({ "url": context.url, "context": file, "serverVersion": status.server_version }))?;
    } else {
        screen.words(format_args!(
            "Connected to {} (Margrave {}, {}). Remembered in {}.",
            context.url,
            status.server_version,
            count(status.devices.total, "device"),
            file.display()
        ));
    }
    Ok(Answer::Done)
}

/// The token as it was given. On a command line everybody on the machine can see it, hence the other two ways.
fn secret(token: Option<String>) -> Result<String> {
    match token.or_else(|| std::env::var("MARGRAVE_TOKEN").ok()) {
        Some(dash) if dash == "-" => {
            let mut line = String::new();
            let read = std::io::stdin().lock().take(TOKEN_BYTES_MAX).read_line(&mut line);
            read.map_err(|error| Trouble::because("the token cannot be read from standard input", &error))?;
            Ok(line.trim().to_owned())
        }
        Some(token) => Ok(token),
        None => Err(Trouble::broke("no token is given")
            .hint("add --token TOKEN, or --token - to read it from standard input, or set MARGRAVE_TOKEN")),
    }
}
