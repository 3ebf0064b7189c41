//! What a device does about something that fails: a deployment's policy.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whether, and how soon, a device goes back to the last document that was healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    pub when: When,
    /// How often an update is tried before it is given up.
    pub attempts: u32,
    /// Somebody asked for this number, so that it also binds where there is no way back: nothing more is tried then. Without it
    /// such a device goes on trying for as long as it takes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub binding: bool,
    /// How long something may look unhealthy before it counts as failed; the device's own time when not given.
    pub health_grace: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    Never,
    #[default]
    OnFailedUpdate,
}

/// Once may be an accident.
const ATTEMPTS: u32 = 2;
pub const ATTEMPTS_MAX: u32 = 100;
pub const HEALTH_GRACE_MAX: Duration = Duration::from_secs(24 * 3600);

impl Default for Rollback {
    fn default() -> Self {
        Rollback { when: When::default(), attempts: ATTEMPTS, binding: false, health_grace: None }
    }
}

/// A policy that would never let anything be tried, or wait for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRollback {
    #[error("an update is tried at least once and at most {ATTEMPTS_MAX} times")]
    Attempts,
    #[error("something may look unhealthy for a day at most, and the time is in whole seconds")]
    HealthGrace,
}

impl Rollback {
    /// A policy of its parts; what is not given is as usual.
    pub fn new(
        when: Option<When>,
        attempts: Option<u32>,
        health_grace: Option<Duration>,
    ) -> Result<Rollback, InvalidRollback> {
        let usual = Rollback::default();
        let binding = attempts.is_some();
        let attempts = attempts.unwrap_or(usual.attempts);
        if !(1..=ATTEMPTS_MAX).contains(&attempts) {
            return Err(InvalidRollback::Attempts);
        }
        if health_grace.is_some_and(|grace| grace > HEALTH_GRACE_MAX || grace.subsec_nanos() != 0) {
            return Err(InvalidRollback::HealthGrace);
        }
        Ok(Rollback { when: when.unwrap_or(usual.when), attempts, binding, health_grace })
    }

    /// The number of tries as somebody may have asked for it; the usual one nobody has to say.
    pub fn attempts_said(&self) -> Option<u32> {
        (self.binding || self.attempts != ATTEMPTS).then_some(self.attempts)
    }
}

impl When {
    pub fn as_str(self) -> &'static str {
        match self {
            When::Never => "never",
            When::OnFailedUpdate => "on-failed-update",
        }
    }

    pub fn parse(text: &str) -> Option<When> {
        [When::Never, When::OnFailedUpdate].into_iter().find(|when| when.as_str() == text)
    }
}

/// Not one of the words for [`When`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a device goes back `never` or `on-failed-update`")]
pub struct InvalidWhen;

impl std::str::FromStr for When {
    type Err = InvalidWhen;

    fn from_str(text: &str) -> Result<When, InvalidWhen> {
        When::parse(text).ok_or(InvalidWhen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_bounded_and_what_is_not_said_is_as_usual() {
        assert_eq!(Rollback::new(None, None, None), Ok(Rollback::default()));
        let asked = Rollback::new(None, Some(2), None).unwrap();
        assert!(asked.binding && asked != Rollback::default() && asked.attempts_said() == Some(2));
        assert_eq!(Rollback::default().attempts_said(), None);
        let seconds = Duration::from_secs;
        for (attempts, grace, expected) in [
            (1, seconds(0), true),
            (ATTEMPTS_MAX, HEALTH_GRACE_MAX, true),
            (0, seconds(1), false),
            (ATTEMPTS_MAX + 1, seconds(1), false),
            (1, HEALTH_GRACE_MAX + seconds(1), false),
            (1, Duration::from_millis(1500), false),
        ] {
            let made = Rollback::new(Some(When::Never), Some(attempts), Some(grace));
            assert_eq!(made.is_ok(), expected, "{attempts} {grace:?}");
        }
        for when in [When::Never, When::OnFailedUpdate] {
            assert_eq!(When::parse(when.as_str()), Some(when));
        }
    }
}
