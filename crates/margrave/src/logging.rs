//! What is written to standard error while things run: by default little, by `MARGRAVE_LOG` more.
//!
//! `MARGRAVE_LOG` is a list of `target=level`, such as `info` or `margrave_server=debug,margrave=info`.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::exit::{Result, Trouble};

/// A server says what it does; what it stands on speaks only when something is wrong.
const SERVER: &str = "warn,margrave=info";
/// A demo's terminal is for the person in front of it.
const DEMO: &str = "error,margrave=warn";

pub(crate) fn for_a_server() -> Result<()> {
    start(wanted()?.as_deref().unwrap_or(SERVER))
}

pub(crate) fn for_a_demo() -> Result<()> {
    start(wanted()?.as_deref().unwrap_or(DEMO))
}

/// Commands answer in words; they log only when asked to. A filter that cannot be read is no reason not to answer.
pub(crate) fn for_a_command() {
    if let Ok(Some(filter)) = wanted() {
        start(&filter).unwrap_or_default();
    }
}

fn wanted() -> Result<Option<String>> {
    let Some(filter) = std::env::var("MARGRAVE_LOG").ok().filter(|filter| !filter.is_empty()) else {
        return Ok(None);
    };
    match filter.parse::<Targets>() {
        Ok(_) => Ok(Some(filter)),
        Err(error) => Err(Trouble::because(format!("MARGRAVE_LOG={filter} cannot be read"), &error).hint(
            "write levels such as info, or target=level pairs such as margrave_server=debug,margrave=info",
        )),
    }
}

fn start(filter: &str) -> Result<()> {
    let filter: Targets =
        filter.parse().map_err(|e| Trouble::because("the log filter cannot be read", &e))?;
    let colour =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(colour);
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .try_init()
        .map_err(|error| Trouble::because("the log cannot be started", &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::filter::LevelFilter;

    #[test]
    fn a_server_speaks_and_its_libraries_keep_quiet() {
        let filter: Targets = SERVER.parse().unwrap();
        assert!(filter.would_enable("margrave_server::listener", &tracing::Level::INFO));
        assert!(!filter.would_enable("hyper::proto", &tracing::Level::INFO));
        assert!(filter.would_enable("hyper::proto", &tracing::Level::WARN));
        assert_eq!(DEMO.parse::<Targets>().unwrap().default_level(), Some(LevelFilter::ERROR));
    }
}
