//! Faults that a demo's devices were given on purpose: told as what happens to the device, so that whoever looks at it sees it
//! break and heal.

use std::time::Duration;

use margrave_core::id::DeviceRef;
use margrave_store::{Event, NewEvent};

use super::event::time;
use super::{Error, Fleet};
use crate::drill::Fault;

const BACK: &str = "device.back";
/// Events of a device that are looked at for that.
const LOOKED_AT: usize = 100;
/// What was never said to be over was forgotten by a demo that ended meanwhile.
const BROKEN_MAX_MS: u64 = 11 * 60 * 1000;
/// How often to look whether a device is heard of again.
const LISTEN_EVERY: Duration = Duration::from_millis(100);

impl Fleet {
    pub(crate) async fn note_broken(&self, device: &DeviceRef, fault: Fault) -> Result<(), Error> {
        let at = self.now();
        let until = fault.lasts().map(|lasts| format!(" until {}", time(at.after(lasts))));
        let text = format!("{device} is broken on purpose: {}{}", done(fault), until.unwrap_or_default());
        let event = NewEvent::new(at, kind(fault), "demo", text);
        Ok(self.store.note(event.device(device)).await?)
    }

    /// A fault is over; `how` goes on from "it is back".
    pub async fn note_back(&self, device: &DeviceRef, how: &str) -> Result<(), Error> {
        let text = format!("{device} is back: {how}");
        Ok(self.store.note(NewEvent::new(self.now(), BACK, "demo", text).device(device)).await?)
    }

    /// Waits until a device is in contact that was not until now; gives up after `max`.
    pub async fn heard_again(&self, device: &DeviceRef, max: Duration) -> bool {
        let since = self.now();
        let heard = async {
            while self.live.contact(&device.client).is_none_or(|at| at <= since) {
                tokio::time::sleep(LISTEN_EVERY).await;
            }
        };
        tokio::time::timeout(max, heard).await.is_ok()
    }

    /// What is broken about a device on purpose, and until when, if that is certain.
    pub(crate) async fn broken(&self, device: &DeviceRef) -> Result<Option<(Fault, Option<String>)>, Error> {
        let events = self.store.events_of_device(device, LOOKED_AT).await?;
        let fault_of = |event: &Event| Fault::ALL.into_iter().find(|fault| kind(*fault) == event.kind);
        let last = events.iter().find(|event| event.kind == BACK || fault_of(event).is_some());
        let fault = last.and_then(|event| {
            let fault = fault_of(event)?;
            let lately = event.at.0.saturating_add(BROKEN_MAX_MS) > self.now().0;
            lately.then(|| (fault, fault.lasts().map(|lasts| time(event.at.after(lasts)))))
        });
        Ok(fault)
    }
}

fn kind(fault: Fault) -> &'static str {
    match fault {
        Fault::CutNetwork => "device.broken.network",
        Fault::KillDuringUpdate => "device.broken.power",
        Fault::CorruptDownload => "device.broken.download",
        Fault::SpoilDisk => "device.broken.disk",
        Fault::SkewClock => "device.broken.clock",
    }
}

fn done(fault: Fault) -> &'static str {
    match fault {
        Fault::CutNetwork => "its network is cut",
        Fault::KillDuringUpdate => "it is killed as soon as it changes something",
        Fault::CorruptDownload => "the next thing that it downloads arrives damaged",
        Fault::SpoilDisk => "what it keeps on its disk is overwritten",
        Fault::SkewClock => "its clock is two hours ahead",
    }
}
