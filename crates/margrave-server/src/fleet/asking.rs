//! What operators ask of a device itself: to hold changes back for a while, and to look again.
//!
//! Neither is desired state, so neither is in Git. Both stand in the manifest, where our own agent reads them
//! (`core::device::asked`); devices of others do not know of them, and are not asked in vain.

use std::time::Duration;

use margrave_core::device::{HOLD_MAX_USUAL, HOLDER_LENGTH_MAX, Hold, HoldRefused};
use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_store::{AskedRecord, DeviceRecord, Standing};
use margrave_wire::{g2, operator};
use serde_json::Value;

use super::device::speaks_for_itself;
use super::event::time;
use super::{Actor, Error, Fleet};

impl Fleet {
    /// Has changes wait on a device, as if somebody there held them back.
    pub async fn hold_device(
        &self,
        actor: &Actor,
        device: &DeviceRef,
        want: &operator::HoldDevice,
    ) -> Result<operator::Device, Error> {
        let device = &self.asked_of(device, "hold", "held back").await?;
        let holder: String = actor.name.chars().take(HOLDER_LENGTH_MAX).collect();
        let length = Duration::from_secs(want.seconds);
        let hold = Hold::beginning(&holder, &want.reason, length, self.hold_max(device), self.now());
        let hold = hold.map_err(refused)?;
        self.store.ask_hold(device, Some(hold), self.now(), &actor.name).await?;
        self.settle_or_log().await;
        self.device(device).await
    }

    /// Lets changes go on that an operator holds back. What is held at the device itself is let go there.
    pub async fn release_device(&self, actor: &Actor, device: &DeviceRef) -> Result<operator::Device, Error> {
        let device = &self.asked_of(device, "release", "released").await?;
        if self.asked_now(&device.client).await?.asked.hold.is_none() {
            return Err(Error::conflict(format!(
                "no operator holds changes back on {device}; who holds at the device itself lets go there, with \
                 `margrave-agent release`"
            )));
        }
        self.store.ask_hold(device, None, self.now(), &actor.name).await?;
        self.settle_or_log().await;
        self.device(device).await
    }

    /// Has a device look at what runs there at once, and say again how everything stands.
    pub async fn look_again(&self, actor: &Actor, device: &DeviceRef) -> Result<operator::Device, Error> {
        let device = &self.asked_of(device, "ask", "asked").await?;
        self.store.ask_look(device, self.now(), &actor.name).await?;
        self.settle_or_log().await;
        self.device(device).await
    }

    /// The longest that changes may be held back on a device.
    pub fn hold_max(&self, device: &DeviceRef) -> Duration {
        let client = self.live.addressed(device).client;
        self.live.told.of(&client).and_then(|told| told.hold_max).unwrap_or(HOLD_MAX_USUAL)
    }

    async fn asked_now(&self, client: &ClientId) -> Result<AskedRecord, Error> {
        let found = self.store.asked(vec![client.clone()]).await?.remove(client).unwrap_or_default();
        Ok(AskedRecord { asked: found.asked.at(self.now()), ..found })
    }

    /// The device that is meant, if it can be asked anything.
    async fn asked_of(&self, device: &DeviceRef, verb: &str, done: &str) -> Result<DeviceRef, Error> {
        let device = self.live.addressed(device);
        let Some(record) = self.store.device(&device).await? else {
            return Err(Error::not_found(format!("device {device}")));
        };
        speaks_for_itself(&device, verb, done)?;
        if record.standing == Standing::Retired {
            return Err(Error::conflict(format!("{device} is retired and hears nothing; accept it first")));
        }
        let capabilities = record.capabilities.as_deref().and_then(|body| serde_json::from_slice(body).ok());
        if capabilities.is_some_and(|body: Value| !g2::capabilities::is_own_agent(&body)) {
            return Err(Error::conflict(format!(
                "{device} does not run our agent, and the standard has no words for this: it would not understand"
            )));
        }
        Ok(device)
    }
}

/// What was asked of a device, as operators see it.
pub(super) struct Shown {
    pub(super) hold: Option<operator::Hold>,
    pub(super) look: Option<operator::Look>,
    pub(super) own_agent: Option<bool>,
}

pub(super) fn shown(
    device: &DeviceRecord,
    capabilities: Option<&Value>,
    asked: Option<&AskedRecord>,
    now: Moment,
) -> Shown {
    // A child speaks through its gateway, which is asked.
    let asked = asked.filter(|_| !device.device.device.is_child());
    let hold = asked.and_then(|record| record.asked.at(now).hold);
    let look = asked.filter(|record| record.asked.look > 0);
    Shown {
        hold: hold.map(shown_hold),
        look: look.map(|record| operator::Look {
            at: time(Moment(record.asked.look)),
            by: record.look_by.clone().unwrap_or_default(),
            done: capabilities.is_some_and(|body| g2::capabilities::looked(body) == record.asked.look),
        }),
        own_agent: capabilities.map(g2::capabilities::is_own_agent),
    }
}

pub(super) fn shown_hold(Hold { holder, reason, since, until }: Hold) -> operator::Hold {
    operator::Hold { holder, reason, since: time(since), until: time(until) }
}

fn refused(refused: HoldRefused) -> Error {
    let place = match refused {
        HoldRefused::Reason => "/reason",
        HoldRefused::NoTime | HoldRefused::TooLong(_) => "/seconds",
        _ => return Error::conflict(refused.to_string()),
    };
    Error::invalid(place, "MI-G2-210", refused.to_string())
}
