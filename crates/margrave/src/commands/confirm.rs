//! Asking before something that hurts.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use crate::exit::{Result, Trouble};

/// The same, for what programs have always done without being asked: where nobody is at a terminal, it is done.
pub(crate) fn confirm_at_terminal(question: &str, yes: bool) -> Result<bool> {
    confirm(question, yes || !io::stdin().is_terminal())
}

/// Whether the person at the terminal agrees. Without a terminal nobody can, and nothing is done.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<bool> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Trouble::broke(
            "this needs a confirmation, and there is nobody at a terminal to give it",
        )
        .hint("add --yes if you mean it"));
    }
    let mut err = io::stderr().lock();
    write!(err, "{question} [y/N] ").and_then(|()| err.flush())?;
    let mut answer = String::new();
    io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|e| Trouble::because("the answer cannot be read", &e))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
