//! `margrave token`: who may look, change and administer.

use margrave_wire::operator::{CreateToken, Token};

use super::confirm::confirm;
use crate::cli::{self, Noun};
use crate::client::Client;
use crate::exit::{Answer, Result};
use crate::render::{Column, Field, Screen, Table, clock, printable};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Token>) -> Result {
    let client = Client::connect(&args.connection)?;
    match args.verb {
        cli::Token::Create { name, role, expires } => {
            let valid_seconds = expires.map(|expires| expires.as_secs());
            let created = client.create_token(&CreateToken { name, role, valid_seconds }).await?;
            if screen.json {
                screen.object(&created)?;
                return Ok(Answer::Done);
            }
            let token = &created.token;
            let until = token.expires.as_deref().map_or("it is revoked".to_owned(), clock);
            screen.words(format_args!(
                "Token {} for {}, as {}, until {until}. It is shown this once:",
                printable(&token.id),
                printable(&token.name),
                printable(&token.role)
            ));
            screen.data(printable(&created.secret))?;
            Ok(Answer::Done)
        }
        cli::Token::List => list(screen, &client.tokens().await?),
        cli::Token::Revoke { id, yes } => {
            let question = format!(
                "Revoke the token {id}? Whoever uses it is out at once, and it cannot be made valid again."
            );
            if !confirm(&question, yes)? {
                screen.words("Nothing was changed.");
                return Ok(Answer::No);
            }
            let revoked = client.revoke_token(&id).await?;
            if screen.json {
                screen.object(&revoked)?;
            } else {
                let (id, name) = (printable(&revoked.id), printable(&revoked.name));
                screen.words(format_args!("The token {id} of {name} is revoked."));
            }
            Ok(Answer::Done)
        }
    }
}

fn list(screen: &Screen, tokens: &[Token]) -> Result {
    if screen.json {
        screen.object(&tokens)?;
        return Ok(Answer::Done);
    }
    let mut table = Table::new(&[
        Column::fixed("ID"),
        Column::fixed("NAME"),
        Column::fixed("ROLE"),
        Column::fixed("STATE"),
        Column::fixed("UNTIL"),
        Column::fixed("LAST USED").optional(),
        Column::fixed("MADE").optional(),
        Column::flexible("BY").optional(),
    ]);
    for token in tokens {
        let until = token.revoked.as_deref().or(token.expires.as_deref());
        table.row([
            Field::plain(&token.id),
            Field::plain(&token.name),
            Field::plain(&token.role),
            Field::plain(&token.state),
            until.map_or("-".to_owned(), clock).into(),
            token.last_used.as_deref().map_or("never".to_owned(), clock).into(),
            clock(&token.created).into(),
            Field::plain(&token.created_by),
        ]);
    }
    screen.table(&table)?;
    Ok(Answer::Done)
}
