//! What is done to devices, by themselves and by operators.

use std::collections::BTreeMap;

use bytes::Bytes;
use margrave_core::capabilities::Capabilities;
use margrave_core::id::{ClientId, DeviceId, DeviceRef};
use margrave_store::{CapabilitiesError, NewCapabilities, Put, Standing};
use margrave_wire::intent::Planned;
use margrave_wire::{Dialect, operator};

use super::desired::Fetching;
use super::intent::{Change, first};
use super::{Actor, Error, Fleet, Seen};

/// Devices that are changed in one go: one commit, or one transaction, during which others wait.
const CHANGED_TOGETHER_MAX: usize = 500;

impl Fleet {
    /// Keeps what a device says it is, then gives it what that makes it fit for.
    pub async fn put_capabilities(
        &self,
        client: &ClientId,
        capabilities: Capabilities,
        body: Bytes,
    ) -> Result<Put, Error> {
        let Capabilities { device, simulated, holds, looked, blind, .. } = capabilities;
        let reported = DeviceRef::new(client.clone(), device.clone());
        let new = NewCapabilities { device, body: body.to_vec(), simulated, holds, looked, blind };
        let put = self.store.put_capabilities(client, new, self.now()).await.map_err(capabilities_error)?;
        if self.dialect(client) == Some(Dialect::Signed) {
            self.live.learn(&reported);
        }
        self.settle_or_log().await;
        Ok(put)
    }

    /// Forgets a device and its children; what they should run is taken out of the manifest (open point 6).
    pub async fn delete_capabilities(&self, client: &ClientId, device: &DeviceId) -> Result<(), Error> {
        self.store.delete_capabilities(client, device, self.now()).await.map_err(capabilities_error)?;
        self.settle_or_log().await;
        Ok(())
    }

    /// Lets in who waits to become a client, or a retired client again, and gives it what it should run.
    pub async fn accept(&self, actor: &Actor, device: &DeviceRef) -> Result<operator::Device, Error> {
        let asked = device.to_string();
        let device = &self.live.addressed(device);
        if self.store.device(device).await?.is_none()
            && let Some(accepted) = self.accept_waiting(actor, &asked).await?
        {
            return Ok(accepted);
        }
        self.known(device).await?;
        speaks_for_itself(device, "accept", "accepted")?;
        if let Some(to) = self.signed.moved_to(&device.client) {
            return Err(Error::conflict(format!(
                "{asked} was moved to {to}, and one device is not managed in two ways; retire {to} and let the \
                 device ask anew with another key"
            )));
        }
        if !self.store.accept_client(&device.client, self.now(), &actor.name).await? {
            return Err(Error::not_found(format!("device {device}")));
        }
        // Before it may speak again: its old manifest lists what may be meant for nobody any more. Where this
        // fails, the client stays out for now, and accepting it once more goes on from here.
        self.settle().await?;
        self.live.set_standing(&device.client, Standing::Accepted);
        self.device(device).await
    }

    /// Puts a client out at once: when this answers, its next request is refused.
    pub async fn retire(&self, actor: &Actor, device: &DeviceRef) -> Result<operator::Device, Error> {
        self.put_out(actor, std::slice::from_ref(device)).await?;
        self.device(device).await
    }

    /// Puts clients out, all of them or none.
    async fn put_out(&self, actor: &Actor, devices: &[DeviceRef]) -> Result<(), Error> {
        let mut clients = Vec::with_capacity(devices.len());
        for device in devices {
            let device = self.live.addressed(device);
            self.known(&device).await?;
            speaks_for_itself(&device, "retire", "retired")?;
            clients.push(device.client);
        }
        let before: Vec<(ClientId, Option<Standing>)> =
            clients.iter().map(|client| (client.clone(), self.standing(client))).collect();
        // Out first, written down second: between the two they are refused already.
        for client in &clients {
            self.live.set_standing(client, Standing::Retired);
        }
        self.git.revoked();
        let retired = self.store.retire_clients(clients, self.now(), &actor.name).await;
        if retired.is_err() {
            for (client, before) in before {
                if let Some(before) = before {
                    self.live.set_standing(&client, before);
                }
            }
        }
        Ok(retired?)
    }

    /// Gives and takes labels; deployments that select by label follow.
    pub async fn label(
        &self,
        actor: &Actor,
        device: &DeviceRef,
        want: operator::SetLabels,
    ) -> Result<operator::Device, Error> {
        self.label_seen(actor, device, want, Seen::Any).await
    }

    /// The same if the labels are still those that were seen.
    pub async fn label_seen(
        &self,
        actor: &Actor,
        device: &DeviceRef,
        want: operator::SetLabels,
        seen: Seen<BTreeMap<String, String>>,
    ) -> Result<operator::Device, Error> {
        self.change(actor, Change::Label { device: device.clone(), labels: want.labels, seen }).await?;
        self.device(device).await
    }

    /// What other labels would take off these devices, nothing being changed: who moves a device elsewhere may not have thought of it.
    pub async fn lost_by_labels(
        &self,
        actor: &Actor,
        devices: &[DeviceRef],
        want: &operator::SetLabels,
    ) -> Result<Vec<Planned>, Error> {
        let change = |device: &DeviceRef| Change::Label {
            device: device.clone(),
            labels: want.labels.clone(),
            seen: Seen::Any,
        };
        let changes: Vec<Change> = devices.iter().map(change).collect();
        let plan = self.rehearse(actor, &changes, Fetching::Refused).await.map_err(first)?;
        Ok(plan.changes.into_iter().filter(|planned| planned.to.is_none()).collect())
    }

    /// The same for several devices, so many of them in one change: all of those, or none. What was done before something was
    /// refused stays, and is counted.
    pub async fn label_all(
        &self,
        actor: &Actor,
        devices: &[DeviceRef],
        want: &operator::SetLabels,
    ) -> Result<(), Error> {
        let label = |device: &DeviceRef| Change::Label {
            device: device.clone(),
            labels: want.labels.clone(),
            seen: Seen::Any,
        };
        let mut done = 0;
        for together in devices.chunks(CHANGED_TOGETHER_MAX) {
            let changes: Vec<Change> = together.iter().map(label).collect();
            self.change_all(actor, &changes).await.map_err(|error| after(done, error))?;
            done += together.len();
        }
        Ok(())
    }

    /// Puts several clients out, so many of them together. Doing it again goes on where something was refused.
    pub async fn retire_all(&self, actor: &Actor, devices: &[DeviceRef]) -> Result<(), Error> {
        let mut done = 0;
        for together in devices.chunks(CHANGED_TOGETHER_MAX) {
            self.put_out(actor, together).await.map_err(|error| after(done, error))?;
            done += together.len();
        }
        Ok(())
    }

    /// A command for a device that does not exist says so before it does anything.
    async fn known(&self, device: &DeviceRef) -> Result<(), Error> {
        match self.store.device(device).await? {
            Some(_) => Ok(()),
            None => Err(Error::not_found(format!("device {device}"))),
        }
    }
}

/// Says how far it came, where that is anywhere.
fn after(done: usize, error: Error) -> Error {
    match (done, error) {
        (1.., Error::Conflict { message }) => {
            Error::conflict(format!("{done} devices were changed, then one was refused: {message}"))
        }
        (_, error) => error,
    }
}

/// Standing belongs to clients. A child has none of its own, and nobody means a whole gateway by its name.
pub(super) fn speaks_for_itself(device: &DeviceRef, verb: &str, done: &str) -> Result<(), Error> {
    if !device.device.is_child() {
        return Ok(());
    }
    let gateway = DeviceRef::new(device.client.clone(), device.device.gateway());
    Err(Error::conflict(format!(
        "{device} speaks through its gateway and cannot be {done} alone; {verb} the gateway {gateway}, with all \
         its children"
    )))
}

fn capabilities_error(error: CapabilitiesError) -> Error {
    match error {
        CapabilitiesError::GatewayUnknown(gateway) => Error::GatewayNotFound(gateway),
        CapabilitiesError::DeviceUnknown(device) => Error::DeviceNotFound(device),
        CapabilitiesError::ClientUnknown => Error::not_found("client of that name"),
        CapabilitiesError::TooMany => Error::invalid("", "MI-G2-009", error.to_string()),
        CapabilitiesError::Store(error) => error.into(),
    }
}
