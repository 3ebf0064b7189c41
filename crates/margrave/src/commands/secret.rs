//! `margrave secret`: values that only the server can open.

use std::fs::File;
use std::io::{IsTerminal as _, Read};

use margrave_core::secret::SECRET_BYTES_MAX;
use margrave_wire::operator::SealSecret;

use crate::cli::{self, Noun};
use crate::client::Client;
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Screen, printable};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Secret>) -> Result {
    let client = Client::connect(&args.connection)?;
    let cli::Secret::Seal { deployment, parameter, file } = args.verb;
    let value = match file {
        Some(path) => {
            let file = File::open(&path)
                .map_err(|error| Trouble::because(format!("{} cannot be read", path.display()), &error))?;
            read(file)?
        }
        None => {
            if std::io::stdin().is_terminal() {
                screen.words("Type the secret, and end it with Ctrl-D on a line of its own.");
            }
            read(std::io::stdin())?
        }
    };
    let mut sealed = client.seal(&SealSecret { deployment, parameter, value }).await?;
    // Beside what is printed, which goes into a file as it is.
    for warning in std::mem::take(&mut sealed.warnings) {
        screen.words(printable(&format!("warning: {warning}")));
    }
    if screen.json {
        screen.object(&sealed)?;
    } else {
        screen.data(format!("secret:\n  sealed: {}", printable(&sealed.secret.sealed)))?;
    }
    Ok(Answer::Done)
}

/// A secret, without the line break that editors and `echo` put behind it.
fn read(from: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(SECRET_BYTES_MAX).unwrap_or(u64::MAX) + 3;
    from.take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Trouble::because("the secret cannot be read", &error))?;
    let text = String::from_utf8(bytes).map_err(|_| Trouble::refused("the secret is not text (UTF-8)"))?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
    let wrong = match text.len() {
        0 => "this one is empty",
        1..=SECRET_BYTES_MAX => return Ok(text.to_owned()),
        _ => "this one has more",
    };
    Err(Trouble::refused(format!("a secret has 1 to {SECRET_BYTES_MAX} bytes, and {wrong}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_break_is_nobodys_password() {
        let secret = |text: &str| read(text.as_bytes()).ok();
        assert_eq!(secret("hunter2\n").as_deref(), Some("hunter2"));
        assert_eq!(secret("hunter2\r\n").as_deref(), Some("hunter2"));
        assert_eq!(secret("two\nlines\n\n").as_deref(), Some("two\nlines\n"));
        assert_eq!((secret(""), secret("\n")), (None, None));
        assert!(read([].as_slice()).unwrap_err().message().ends_with("this one is empty"));
        assert!(read([0xff_u8].as_slice()).is_err());
        assert!(secret(&"x".repeat(SECRET_BYTES_MAX)).is_some());
        assert!(secret(&"x".repeat(SECRET_BYTES_MAX + 1)).is_none());
    }
}
