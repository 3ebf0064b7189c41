//! What is done to devices, by themselves and by operators.

use bytes::Bytes;
use margrave_core::capabilities::Capabilities;
use margrave_core::id::{ClientId, DeviceId, DeviceRef};
use margrave_store::{CapabilitiesError, NewCapabilities, Put, Standing};
use margrave_wire::{Dialect, operator};

use super::intent::Change;
use super::{Actor, Error, Fleet};

impl Fleet {
    /// Keeps what a device says it is, then gives it what that makes it fit for.
    pub async fn put_capabilities(
        &self,
        client: &ClientId,
        capabilities: Capabilities,
        body: Bytes,
    ) -> Result<Put, Error> {
        let Capabilities { device, simulated, holds, looked, .. } = capabilities;
        let reported = DeviceRef::new(client.clone(), device.clone());
        let new = NewCapabilities { device, body: body.to_vec(), simulated, holds, looked };
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
        let device = &self.live.addressed(device);
        self.known(device).await?;
        speaks_for_itself(device, "retire", "retired")?;
        let before = self.standing(&device.client);
        // Out first, written down second: between the two it is refused already.
        self.live.set_standing(&device.client, Standing::Retired);
        self.git.revoked();
        let retired = self.store.retire_client(&device.client, self.now(), &actor.name).await;
        if let (Err(_), Some(before)) = (&retired, before) {
            self.live.set_standing(&device.client, before);
        }
        if !retired? {
            return Err(Error::not_found(format!("device {device}")));
        }
        self.device(device).await
    }

    /// Gives and takes labels; deployments that select by label follow.
    pub async fn label(
        &self,
        actor: &Actor,
        device: &DeviceRef,
        want: operator::SetLabels,
    ) -> Result<operator::Device, Error> {
        self.change(actor, Change::Label { device: device.clone(), labels: want.labels }).await?;
        self.device(device).await
    }

    /// The same for several devices, in one change: all of them, or none.
    pub async fn label_all(
        &self,
        actor: &Actor,
        devices: &[DeviceRef],
        want: &operator::SetLabels,
    ) -> Result<(), Error> {
        let label =
            |device: &DeviceRef| Change::Label { device: device.clone(), labels: want.labels.clone() };
        let changes: Vec<Change> = devices.iter().map(label).collect();
        self.change_all(actor, &changes).await
    }

    /// Puts several clients out. One that cannot be stops it there, and is named; doing it again goes on.
    pub async fn retire_all(&self, actor: &Actor, devices: &[DeviceRef]) -> Result<(), Error> {
        for device in devices {
            self.retire(actor, device).await?;
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
