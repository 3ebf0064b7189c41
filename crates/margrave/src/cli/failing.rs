//! The arguments that say what devices do about an update that fails.

use std::time::Duration;

use clap::Args;
use margrave_core::rollback::ATTEMPTS_MAX;
use margrave_wire::operator::Rollback;

use super::duration;

/// What devices do about an update that fails.
#[derive(Debug, Clone, Args)]
pub(crate) struct Failing {
    /// Whether devices go back to the last healthy version when an update fails [usually: on-failed-update]
    #[arg(long, value_name = "WHEN", value_parser = ["never", "on-failed-update"])]
    pub(crate) rollback: Option<String>,
    /// How often devices try before they go back to the last healthy version or, where there is none (a first install, or
    /// `--rollback never`), give up until the deployment changes or `margrave device look`; 1 to 100, or `usual` again [usually: 2
    /// before going back, and for as long as it takes where there is no way back]
    #[arg(long, value_name = "N", value_parser = tries)]
    pub(crate) attempts: Option<Tries>,
    /// How long the application may look unhealthy before that counts as failed, such as 30s; `usual` is each device's own
    /// again [usually: 10s]
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    pub(crate) health_grace: Option<Grace>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tries {
    Usual,
    Times(u32),
}

fn tries(text: &str) -> Result<Tries, String> {
    let number = text.parse().ok().filter(|number| (1..=ATTEMPTS_MAX).contains(number));
    match (text, number) {
        ("usual", _) => Ok(Tries::Usual),
        (_, Some(number)) => Ok(Tries::Times(number)),
        (_, None) => Err(format!("write a number from 1 to {ATTEMPTS_MAX}, or `usual`")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grace {
    Usual,
    For(Duration),
}

fn grace(text: &str) -> Result<Grace, String> {
    match text {
        "usual" => Ok(Grace::Usual),
        text => duration(text).map(Grace::For).map_err(|wrong| format!("{wrong}, or `usual`")),
    }
}

impl Failing {
    /// What was said about it, on top of what is so already.
    pub(crate) fn over(&self, now: &Rollback) -> Option<Rollback> {
        let Failing { rollback, attempts, health_grace } = self;
        let said = rollback.is_some() || attempts.is_some() || health_grace.is_some();
        said.then(|| Rollback {
            when: rollback.clone().or_else(|| now.when.clone()),
            attempts: match attempts {
                None => now.attempts,
                Some(Tries::Usual) => None,
                Some(Tries::Times(number)) => Some(*number),
            },
            health_grace_seconds: match health_grace {
                None => now.health_grace_seconds,
                Some(Grace::Usual) => None,
                Some(Grace::For(grace)) => Some(grace.as_secs()),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_health_grace_is_kept_changed_or_the_usual_again() {
        let now = Rollback { health_grace_seconds: Some(60), ..Rollback::default() };
        let said = |attempts, health_grace: Option<&str>| {
            let health_grace = health_grace.map(|text| grace(text).unwrap());
            Failing { rollback: None, attempts, health_grace }
                .over(&now)
                .map(|said| said.health_grace_seconds)
        };
        assert_eq!(said(None, None), None, "nothing was said");
        assert_eq!(said(Some(Tries::Times(3)), None), Some(Some(60)));
        assert_eq!(said(None, Some("30s")), Some(Some(30)));
        assert_eq!(said(None, Some("usual")), Some(None));
        assert!(grace("never").unwrap_err().contains("usual"));
    }

    #[test]
    fn a_number_of_tries_is_kept_changed_or_the_usual_again() {
        let now = Rollback { attempts: Some(7), ..Rollback::default() };
        let said = |text: Option<&str>| {
            let attempts = text.map(|text| tries(text).unwrap());
            let failing = Failing { rollback: Some("never".into()), attempts, health_grace: None };
            failing.over(&now).unwrap().attempts
        };
        assert_eq!((said(None), said(Some("100")), said(Some("usual"))), (Some(7), Some(100), None));
        for wrong in ["0", "101", "-1", "many", ""] {
            assert!(tries(wrong).unwrap_err().contains("1 to 100"), "{wrong}");
        }
    }
}
