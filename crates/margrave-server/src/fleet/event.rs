//! What happened, as operators read it.

use std::sync::Arc;

use margrave_core::id::DeviceRef;
use margrave_core::moment::Moment;
use margrave_store::Event;
use margrave_wire::operator;
use tokio::sync::broadcast;

use super::client::Clients;
use super::{Error, Fleet};

/// RFC 3339 in UTC; a time beyond what can be written is the last that can.
pub(crate) fn time(at: Moment) -> String {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// An event in the words of people: written down is a device's whole name, said is what it is called today.
pub(super) fn shown(names: &Clients, event: &Event) -> operator::Event {
    let mut shown = plain(event);
    if let Some(device) = &event.device {
        let (whole, spoken) = (device.to_string(), names.spoken(device));
        if whole != spoken {
            shown.text = shown.text.replace(&whole, &spoken);
            shown.actor = shown.actor.replace(&whole, &spoken);
            if shown.actor == format!("device {}", device.client) {
                shown.actor = format!("device {spoken}");
            }
            shown.device = Some(spoken);
        }
    }
    shown
}

/// What was written down before a signed device had said its name, as if it had.
fn named(mut event: Event, device: &DeviceRef) -> Event {
    if let Some(nameless) = event.device.replace(device.clone())
        && nameless != *device
        && let Some(rest) = event.text.strip_prefix(&nameless.to_string())
    {
        event.text = format!("{device}{rest}");
    }
    event
}

fn plain(event: &Event) -> operator::Event {
    operator::Event {
        sequence: event.sequence,
        at: time(event.at),
        kind: event.kind.clone(),
        actor: event.actor.clone(),
        device: event.device.as_ref().map(DeviceRef::to_string),
        deployment: event.deployment.as_ref().map(|name| name.to_string()),
        package: event.package.clone(),
        text: event.text.clone(),
    }
}

impl Fleet {
    /// What happened after `after`, oldest first.
    pub async fn events(&self, after: u64, limit: usize) -> Result<Vec<operator::Event>, Error> {
        Ok(self
            .store
            .events_after(after, limit)
            .await?
            .iter()
            .map(|event| shown(&self.live, event))
            .collect())
    }

    /// What happened last, newest first.
    pub async fn recent_events(&self, limit: usize) -> Result<Vec<operator::Event>, Error> {
        Ok(self.store.events_newest(limit).await?.iter().map(|event| shown(&self.live, event)).collect())
    }

    /// What happened last to one device, newest first.
    pub async fn device_events(
        &self,
        device: &DeviceRef,
        limit: usize,
    ) -> Result<Vec<operator::Event>, Error> {
        let device = self.live.addressed(device);
        let events = self.store.events_of_device(&device, limit).await?.into_iter();
        Ok(events.map(|event| shown(&self.live, &named(event, &device))).collect())
    }

    /// Everything that happens from now on, in order. Whoever falls behind reads [`Fleet::events`] instead.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<operator::Event>> {
        self.events.subscribe()
    }
}
