//! What the service manager hears of the agent: that it runs, how it does, that it is alive, that it stops.
//!
//! Systemd starts an agent anew that was killed, and with a watchdog also one that hangs. Only the main loop says that
//! it is alive, because it is what must not hang; work that takes long is done beside it.

use std::time::Duration;

use margrave_core::device::Device;
use margrave_core::lifecycle::State;
use sd_notify::NotifyState;

/// Where there is no service manager, nobody is told anything.
#[derive(Debug, Default)]
pub struct Supervisor {
    listens: bool,
    /// How soon it takes silence for death.
    patience: Option<Duration>,
    ready: bool,
    said: String,
}

impl Supervisor {
    /// The one that started this process, if one did.
    pub fn of_environment() -> Supervisor {
        let listens = std::env::var_os("NOTIFY_SOCKET").is_some();
        Supervisor { listens, patience: sd_notify::watchdog_enabled(), ..Supervisor::default() }
    }

    /// How often it has to hear that the agent is alive.
    pub(crate) fn alive_every(&self) -> Option<Duration> {
        self.patience.map(|patience| (patience / 3).max(Duration::from_millis(10)))
    }

    /// One more round of the main loop.
    pub(crate) fn beat(&mut self, device: &Device) {
        if !self.listens {
            return;
        }
        let words = words(device);
        let mut told = Vec::new();
        if !std::mem::replace(&mut self.ready, true) {
            told.push(NotifyState::Ready);
        }
        if self.patience.is_some() {
            told.push(NotifyState::Watchdog);
        }
        if self.said != words {
            told.push(NotifyState::Status(&words));
        }
        tell(&told);
        self.said = words;
    }

    pub(crate) fn stopping(&self) {
        if self.listens {
            tell(&[NotifyState::Stopping]);
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if !states.is_empty()
        && let Err(error) = sd_notify::notify(states)
    {
        tracing::debug!(%error, "the service manager could not be told");
    }
}

/// One line for `systemctl status`.
fn words(device: &Device) -> String {
    let all = device.assignments();
    let installed = all.values().filter(|a| a.state == State::Installed && a.wanted == a.held).count();
    let failed = all.values().filter(|a| a.state == State::Failed || a.gave_up().is_some()).count();
    let contact = match device.contact().1 {
        Some(trouble) => format!("the server cannot be used: {}", trouble.lines().next().unwrap_or_default()),
        None => "in contact".to_owned(),
    };
    format!("{installed} of {} deployments as wanted, {failed} failed; {contact}", all.len())
}
