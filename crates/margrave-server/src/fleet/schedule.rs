//! When devices talk and change: what operators choose for the fleet, for labels and for devices.

use std::collections::{BTreeMap, HashMap};
use std::iter;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_core::schedule::{Choice, Reach, Schedule, conflict};
use margrave_core::violation::Violation;
use margrave_store::{DeviceRecord, ScheduleRecord};
use margrave_wire::operator;
use margrave_wire::schedule::ScheduleBody;

use super::event::time;
use super::intent::Change;
use super::{Actor, Error, Fleet, Seen};

/// Each of the choices can be followed alone.
const CONFLICT: &str = "the hours and downtimes chosen for the device, its labels and the fleet together leave it no time to talk in any week";

impl Fleet {
    /// Every choice that was made.
    pub async fn schedules(&self) -> Result<Vec<operator::Schedule>, Error> {
        Ok(self.store.schedules().await?.into_iter().map(|record| self.shown_schedule(record)).collect())
    }

    pub async fn schedule(&self, reach: &str) -> Result<operator::Schedule, Error> {
        let reach = self.reach(reach)?;
        let found = self.store.schedules().await?.into_iter().find(|record| record.reach == reach);
        found.map(|record| self.shown_schedule(record)).ok_or_else(|| no_schedule(&reach))
    }

    /// Chooses for everybody within reach; what was chosen there before is forgotten.
    pub async fn put_schedule(
        &self,
        actor: &Actor,
        reach: &str,
        want: &ScheduleBody,
    ) -> Result<operator::Schedule, Error> {
        self.put_schedule_seen(actor, reach, want, Seen::Any).await
    }

    /// The same if what is chosen there is still what was seen.
    pub async fn put_schedule_seen(
        &self,
        actor: &Actor,
        reach: &str,
        want: &ScheduleBody,
        seen: Seen<operator::Schedule>,
    ) -> Result<operator::Schedule, Error> {
        let (target, choice) = self.read_schedule(reach, want)?;
        self.change(actor, Change::Schedule { reach: target, choice: Some(choice), seen }).await?;
        self.schedule(reach).await
    }

    /// What is asked for, with everything that is wrong with it told at once.
    fn read_schedule(&self, reach: &str, want: &ScheduleBody) -> Result<(Reach, Choice), Error> {
        let choice = want.read().and_then(|choice| match choice.is_empty() {
            true => Err(vec![Violation::new("", "MI-G2-210", "choose something, or remove the schedule")]),
            false => Ok(choice),
        });
        match (self.reach(reach), choice) {
            (Ok(reach), Ok(choice)) => Ok((reach, choice)),
            (Ok(_), Err(broken)) => Err(Error::Invalid(broken)),
            (Err(Error::Invalid(mut wrong)), Err(broken)) => {
                wrong.extend(broken);
                Err(Error::Invalid(wrong))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// The same for a form that is wrong already: whatever else is wrong with it. Nothing is changed.
    pub fn check_schedule(&self, reach: &str, want: &ScheduleBody) -> Result<(), Error> {
        self.read_schedule(reach, want).map(drop)
    }

    pub async fn remove_schedule(&self, actor: &Actor, reach: &str) -> Result<(), Error> {
        self.remove_schedule_seen(actor, reach, Seen::Any).await
    }

    /// The same if what is chosen there is still what was seen.
    pub async fn remove_schedule_seen(
        &self,
        actor: &Actor,
        reach: &str,
        seen: Seen<operator::Schedule>,
    ) -> Result<(), Error> {
        let reach = self.reach(reach)?;
        self.change(actor, Change::Schedule { reach, choice: None, seen }).await
    }

    fn reach(&self, text: &str) -> Result<Reach, Error> {
        let reach =
            text.parse().map_err(|invalid| Error::invalid("/reach", "MI-G2-210", format!("{invalid}")))?;
        Ok(match reach {
            Reach::Device(device) => Reach::Device(self.live.addressed(&device)),
            other => other,
        })
    }

    /// Refuses a change of what is not what its writer saw any more.
    pub(super) async fn check_schedule_seen(
        &self,
        reach: &Reach,
        seen: &Seen<operator::Schedule>,
    ) -> Result<(), Error> {
        if *seen == Seen::Any {
            return Ok(());
        }
        let held = self.store.schedules().await?.into_iter().find(|record| record.reach == *reach);
        seen.check(held.map(|record| self.shown_schedule(record)).as_ref())
    }

    fn shown_schedule(&self, record: ScheduleRecord) -> operator::Schedule {
        let ScheduleRecord { reach, choice, changed_at, changed_by } = record;
        let reach = match &reach {
            Reach::Device(device) => format!("device:{}", self.live.spoken(device)),
            other => other.to_string(),
        };
        operator::Schedule {
            reach,
            schedule: ScheduleBody::from(&choice),
            changed_at: time(changed_at),
            changed_by,
        }
    }

    pub(super) async fn choices(&self) -> Result<Vec<(Reach, Choice)>, Error> {
        Ok(self.store.schedules().await?.into_iter().map(|record| (record.reach, record.choice)).collect())
    }

    /// Says so when what was chosen for a device in several places cannot be followed together.
    pub(super) async fn schedule_conflict(&self, device: &DeviceRecord) -> Result<Option<String>, Error> {
        // A child speaks through its gateway, whose schedule counts.
        if device.device.device.is_child() {
            return Ok(None);
        }
        let conflict = conflict(&self.choices().await?, &device.device, &device.labels);
        Ok(conflict.map(|_| format!("{CONFLICT}; so it follows none of them")))
    }

    /// A choice for one device that leaves it no time, together with what is chosen elsewhere, is a mistake. Of all that is
    /// chosen only what reaches the device is looked up: many may be checked against many.
    pub(super) fn check_choice(
        device: &DeviceRef,
        labels: &BTreeMap<String, String>,
        all: &BTreeMap<Reach, Choice>,
        choice: &Choice,
    ) -> Result<(), Error> {
        let labelled = labels.iter().map(|(key, value)| Reach::Label(key.clone(), value.clone()));
        let reaches = iter::once(Reach::Fleet).chain(labelled).chain([Reach::Device(device.clone())]);
        let all: Vec<(Reach, Choice)> =
            reaches.filter_map(|reach| all.get(&reach).cloned().map(|choice| (reach, choice))).collect();
        let is_about = choice.hours.is_some() || choice.downtime.is_some();
        if is_about && conflict(&all, device, labels).is_some() {
            let message = format!("{CONFLICT}; `margrave schedule list` shows what is chosen elsewhere");
            return Err(Error::invalid("", "MI-G2-210", message));
        }
        Ok(())
    }
}

pub(super) fn no_schedule(reach: &Reach) -> Error {
    Error::not_found(format!("schedule of {reach}"))
}

/// What clients were told, where it is not the usual: it says when silence is nothing to worry about.
#[derive(Default)]
pub(super) struct Told(RwLock<HashMap<ClientId, Arc<Schedule>>>);

impl Told {
    pub(super) fn set(&self, client: &ClientId, schedule: &Schedule) {
        let mut told = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if schedule.is_usual() {
            told.remove(client);
        } else if told.get(client).is_none_or(|known| **known != *schedule) {
            told.insert(client.clone(), Arc::new(schedule.clone()));
        }
    }

    pub(super) fn of(&self, client: &ClientId) -> Option<Arc<Schedule>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(client).cloned()
    }

    /// Those of whom something is true. There may be as many as there are clients, so that only these are copied.
    pub(super) fn those(&self, is_meant: impl Fn(&ClientId, &Schedule) -> bool) -> Vec<ClientId> {
        let told = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let meant = told.iter().filter(|(client, schedule)| is_meant(client, schedule));
        meant.map(|(client, _)| client.clone()).collect()
    }
}

/// So late a device may begin where many are allowed to.
const SPREAD: Duration = Duration::from_secs(30);

/// Whether a device that was last heard at `contact` is quiet as it was told to be, where others count as silent after
/// `silent_after`.
pub(super) fn is_excused(schedule: &Schedule, contact: Moment, now: Moment, silent_after: Duration) -> bool {
    // A quarter is what a device adds by itself, so that not all ask at once. One whose polls are held open is heard whenever one of
    // them ends, and comes back from trouble as soon as any other: within five minutes, by what our agent does.
    let every =
        schedule.poll.filter(|poll| !poll.wait).map_or(Duration::ZERO, |poll| poll.every + poll.every / 4);
    // The first moment at which it should have talked since.
    let due = contact.after(every);
    let grace = silent_after + SPREAD;
    let by = schedule.opening(due).unwrap_or(due).after(grace);
    // Its time ended before anybody could have missed it.
    let by = match schedule.opening(by) {
        Some(opens) if opens > by => opens.after(grace),
        _ => by,
    };
    now <= by
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_core::schedule::Poll;

    #[test]
    fn a_device_that_may_not_talk_or_seldom_asks_is_not_silent() {
        let minutes = |count: u64| Duration::from_secs(count * 60);
        let now = Moment(1_794_821_400_000); // Monday, 09:30.
        let excused = |schedule: &Schedule, ago: Duration| {
            let contact = Moment(now.0 - u64::try_from(ago.as_millis()).unwrap());
            is_excused(schedule, contact, now, minutes(5))
        };
        assert!(!excused(&Schedule::default(), minutes(6)) && excused(&Schedule::default(), minutes(5)));
        let hours = |text: &str| Schedule { hours: vec![text.parse().unwrap()], ..Schedule::default() };
        assert!(excused(&hours("daily 10:00-11:00"), minutes(22 * 60 + 31)), "since yesterday, and not yet");
        assert!(!excused(&hours("daily 10:00-11:00"), minutes(23 * 60)), "it fell silent in its hour");
        assert!(!excused(&hours("daily 10:00-11:00"), minutes(25 * 60)), "it missed its hour");
        assert!(excused(&hours("daily 09:28-11:00"), minutes(1000)), "just now");
        assert!(!excused(&hours("daily 09:20-11:00"), minutes(1000)), "long since");
        let seldom = Schedule { poll: Some(Poll { every: minutes(60), wait: false }), ..Schedule::default() };
        assert!(excused(&seldom, minutes(80)) && !excused(&seldom, minutes(81)));
    }
}
