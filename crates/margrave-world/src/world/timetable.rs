//! When devices may talk and change: what operators choose for the fleet, a hall or a device.

use std::time::Duration;

use margrave_core::moment::Moment;
use margrave_core::schedule::Downtime;
use margrave_server::fleet::Error;
use margrave_wire::schedule::ScheduleBody;

use super::{Happening, World, broken};
use crate::check::Violation;
use crate::dice::Dice;
use crate::server::{HALLS, client, operator};

const DAY: u64 = 24 * 60;
const ZONES: [&str; 4] = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"];

impl World {
    /// An operator chooses other times, or none, if the server is there to be told.
    pub(super) async fn choose_times(&mut self) -> Result<(), Violation> {
        let Some(server) = &self.server else {
            self.after(Duration::from_secs(60), Happening::Timetable);
            return Ok(());
        };
        let fleet = server.fleet.clone();
        if self.dice.hit(0.4) {
            return self.ask_a_device(&fleet).await;
        }
        let chosen = fleet.schedules().await.map_err(broken)?;
        let (said, result) = if !chosen.is_empty() && self.dice.hit(0.3) {
            let reach = &chosen[self.dice.below(chosen.len())].reach;
            let said = format!("chooses nothing for {reach}");
            (said, fleet.remove_schedule(&operator(), reach).await)
        } else {
            let reach = match self.dice.below(4) {
                0 => "fleet".to_owned(),
                1 => format!("label:hall={}", self.dice.pick(&HALLS)),
                _ => format!("device:{}", client(self.dice.below(self.machines.len()))),
            };
            let want = timetable(&mut self.dice, self.now);
            let said = format!("chooses for {reach}: {}", want.words().join(", "));
            (said, fleet.put_schedule(&operator(), &reach, &want).await.map(drop))
        };
        self.story.tell(self.now, "operator", &said);
        match result {
            Ok(()) => {}
            // Times that leave none to talk.
            Err(error @ (Error::Invalid(_) | Error::NotFound { .. } | Error::Conflict { .. })) => {
                self.story.tell(self.now, "operator", format_args!("was refused: {error}"));
            }
            Err(error) => return Err(broken(format!("the operator {said}: {error}"))),
        }
        self.after_server().await
    }

    /// Whoever left drift wants it repaired in the end: everything has to run as wanted then.
    pub(super) async fn let_repair(&mut self) -> Result<(), Violation> {
        // Nobody chooses anything before it is decided what a restored server wants.
        if self.is_undecided().await? {
            self.resolve().await?;
        }
        let Some(server) = &self.server else { return Ok(()) };
        let fleet = server.fleet.clone();
        for chosen in fleet.schedules().await.map_err(broken)? {
            if chosen.schedule.drift.as_deref() == Some("report") {
                let want = ScheduleBody { drift: Some("repair".to_owned()), ..chosen.schedule };
                let said = match fleet.put_schedule(&operator(), &chosen.reach, &want).await {
                    Ok(_) => format!("wants {} repaired", chosen.reach),
                    // What was chosen elsewhere since leaves it no time to talk; so it follows none of it.
                    Err(Error::Invalid(_)) => {
                        fleet.remove_schedule(&operator(), &chosen.reach).await.map_err(broken)?;
                        format!("chooses nothing for {}, which is to be repaired", chosen.reach)
                    }
                    Err(error) => return Err(broken(error)),
                };
                self.story.tell(self.now, "operator", said);
            }
        }
        self.after_server().await
    }
}

/// Some choices. What recurs does so within hours, whatever a device's clock says: a world does not live for days.
fn timetable(dice: &mut Dice, now: Moment) -> ScheduleBody {
    let mut want = ScheduleBody::default();
    if dice.hit(0.5) {
        let every = dice.pick(&[60, 60, 120]);
        want.windows = Some(spans(dice, every, 2, 30));
    }
    if dice.hit(0.3) {
        let every = dice.pick(&[60, 120]);
        want.hours = Some(spans(dice, every, 10, 55));
    }
    if dice.hit(0.3) {
        let from = Moment(now.after(dice.seconds(0, 1200)).0 / 1000 * 1000);
        let once =
            Downtime::Once { from, to: from.after(Duration::from_secs(60 * (1 + dice.number() % 60))) };
        want.downtime = Some(match dice.hit(0.6) {
            true => vec![once.to_string()],
            false => spans(dice, 120, 5, 50),
        });
    }
    if dice.hit(0.25) {
        want.poll_every_seconds = Some(dice.pick(&[5, 30, 120, 600, 1800]));
        want.poll_wait = dice.hit(0.5).then_some(true);
    }
    if dice.hit(0.25) {
        want.data_saver = Some(dice.hit(0.8));
    }
    if dice.hit(0.3) {
        want.drift = Some(if dice.hit(0.8) { "report" } else { "repair" }.to_owned());
    }
    if dice.hit(0.4) {
        want.hold_max_seconds = Some(dice.pick(&[0, 60, 300, 1200, 3600]));
    }
    if want == ScheduleBody::default() {
        want.windows = Some(spans(dice, 60, 5, 20));
    }
    want
}

/// The same span every so many minutes, all day long.
fn spans(dice: &mut Dice, every: u64, shortest: u64, longest: u64) -> Vec<String> {
    let (phase, length) = (dice.number() % every, shortest + dice.number() % (longest - shortest + 1));
    let zone = dice.pick(&ZONES);
    let time = |minute: u64| format!("{:02}:{:02}", minute % DAY / 60, minute % 60);
    let starts = (0..DAY / every).map(|count| phase + count * every);
    starts.map(|start| format!("daily {}-{} {zone}", time(start), time(start + length))).collect()
}
