//! What breaks at a time, and how it is mended.

use margrave_core::device::Event;
use margrave_core::moment::Moment;

use super::waiting::CLOCK_SENSIBLE;
use super::{Happening, World, broken};
use crate::check::Violation;
use crate::engine::Hand;
use crate::fault::Fault;
use crate::plan::Incident;
use crate::sabotage::Sabotage;

/// How many seconds it takes at most until somebody decides what counts after a restore.
const DECIDED_WITHIN: u64 = 900;

impl World {
    pub(super) async fn incident(&mut self, at: usize, incident: Incident) -> Result<(), Violation> {
        self.tell(Some(at), format_args!("incident: {incident:?}"));
        let now = self.now;
        let machine = &mut self.machines[at];
        match incident {
            Incident::Outage(time) => {
                self.tally.note(Fault::Outage);
                machine.outage_until = now.after(time);
            }
            Incident::EngineAway(time) => {
                self.note(at, Fault::EngineAway);
                self.machines[at].engine.away_until = now.after(time);
            }
            Incident::DiskFull(time) => {
                self.note(at, Fault::DiskFull);
                let machine = &mut self.machines[at];
                machine.disk.full = true;
                self.after(time, Happening::SpaceFreed { device: at });
            }
            Incident::ClockJump(by) => {
                self.tally.note(Fault::ClockJumped);
                // Time has no beginning before 1970 to go back to.
                let offset = machine.offset.saturating_add(by).max(lost(now));
                machine.set_clock(now, offset);
            }
            Incident::ClockLost => {
                self.tally.note(Fault::ClockJumped);
                machine.set_clock(now, lost(now));
            }
            Incident::Expiry(time) => {
                self.tally.note(Fault::CertificateExpired);
                machine.expired = true;
                self.after(time, Happening::Renewed { device: at });
                if self.sabotage == Some(Sabotage::StopsOnExpiry) {
                    let touched = self.machines[at].engine.restart_all(now);
                    return self.check_touched(at, touched);
                }
            }
            Incident::Kill => {
                if machine.is_up() {
                    self.kill(at, "by somebody's hand");
                }
            }
            Incident::Replace => {
                if machine.own.is_dated {
                    machine.own.is_dated = false;
                    self.note(at, Fault::AgentReplaced);
                    if self.machines[at].is_up() {
                        self.kill(at, "to be replaced by a newer one");
                    }
                }
            }
            Incident::PowerCut(time) => {
                self.note(at, Fault::PowerCut);
                self.machines[at].memory.went_down(now);
                self.power_cut(at);
                self.after(time, Happening::Boot { device: at });
            }
            Incident::DamageDocument => {
                // Noticed when the agent starts again.
                if self.machines[at].disk.damage_document(&mut self.dice) {
                    self.note(at, Fault::DocumentDamaged);
                }
            }
            Incident::Hand(hand, which) => {
                if machine.engine.disturb(hand, which, now).is_some() {
                    self.note(
                        at,
                        match hand {
                            Hand::Kill => Fault::ContainerKilled,
                            Hand::Remove => Fault::ContainerRemoved,
                            Hand::Change => Fault::ContainerChanged,
                            Hand::Add => Fault::ContainerAdded,
                            Hand::MakeIll => Fault::ContainerIll,
                        },
                    );
                    self.stir(at);
                }
            }
            Incident::ServerRestart(time) => {
                if self.server.is_some() {
                    self.tally.note(Fault::ServerRestarted);
                    self.server_down();
                    self.after(time, Happening::ServerUp);
                }
            }
            Incident::Backup => {
                if self.server.is_some() {
                    self.server_down();
                    if let Some(down) = &self.down {
                        down.back_up(self.backups).map_err(broken)?;
                        self.backups += 1;
                    }
                    self.server_up().await?;
                }
            }
            Incident::Restore(time, knowingly) => {
                if self.server.is_some() && self.backups > 0 {
                    self.tally.note(Fault::ServerRestored);
                    self.server_down();
                    if let Some(down) = &self.down {
                        down.restore(self.backups - 1, self.now, knowingly).map_err(broken)?;
                    }
                    self.restore = true;
                    self.carefully.clear();
                    self.unknowing = !knowingly;
                    self.after(time, Happening::ServerUp);
                }
            }
        }
        Ok(())
    }

    /// The machine goes dark, with everything on it.
    pub(super) fn power_cut(&mut self, at: usize) {
        self.end_process(at);
        let warm_up = self.dice.millis(500, 8000);
        let now = self.now;
        let machine = &mut self.machines[at];
        machine.boots += 1;
        machine.engine.power_up(now, warm_up);
    }

    fn server_down(&mut self) {
        self.holds.clear();
        if let Some(server) = self.server.take() {
            self.down = Some(server.stop());
            self.story.tell(self.now, "server", "is down");
        }
    }

    pub(super) async fn server_up(&mut self) -> Result<(), Violation> {
        if let Some(down) = self.down.take() {
            self.server = Some(down.start(self.now).await.map_err(broken)?);
            let restored = std::mem::take(&mut self.restore);
            self.pasts += u64::from(restored);
            let what = if restored { "is up, as it was before" } else { "is up" };
            self.story.tell(self.now, "server", what);
            if self.is_undecided().await? {
                let thinking = self.dice.seconds(1, DECIDED_WITHIN);
                self.after(thinking, Happening::Resolve);
            }
            self.after_server().await?;
        }
        Ok(())
    }

    /// A deliberate bug: the server goes back to how it was, and nobody says so.
    pub(super) async fn forget(&mut self) -> Result<(), Violation> {
        if self.sabotage != Some(Sabotage::ServerForgets) {
            return Ok(());
        }
        self.server_down();
        if let Some(down) = &self.down {
            match self.backups {
                0 => down.back_up(0).map_err(broken)?,
                _ => down.restore(0, self.now, false).map_err(broken)?,
            }
            self.backups = 1 - self.backups.min(1);
        }
        self.server_up().await
    }

    /// The certificate is a new one.
    pub(super) fn renewed(&mut self, at: usize) -> Result<(), Violation> {
        let machine = &mut self.machines[at];
        machine.expired = false;
        if machine.is_up() {
            self.absorb(at, Event::WayRenewed)?;
            self.turn(at)?;
        }
        Ok(())
    }

    /// Where times were chosen, clocks without any find a time server: without one no window ever opens.
    pub(super) fn find_time(&mut self) {
        let now = self.now;
        for at in 0..self.machines.len() {
            let chosen = !self.plan.timetables.is_empty() || !self.plan.holders.is_empty();
            if chosen && self.machines[at].local(now) < CLOCK_SENSIBLE {
                self.tell(Some(at), "its clock is set");
                self.machines[at].set_clock(now, 0);
            }
        }
    }

    /// Everything around a device works again.
    pub(super) fn relieve(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        machine.outage_until = Moment(0);
        machine.engine.away_until = Moment(0);
        machine.disk.full = false;
        if machine.expired {
            self.after(std::time::Duration::from_millis(1), Happening::Renewed { device: at });
        }
    }
}

/// How far off a clock is that has just begun at its beginning.
fn lost(now: Moment) -> i64 {
    10_000 - i64::try_from(now.0).unwrap_or(i64::MAX)
}
