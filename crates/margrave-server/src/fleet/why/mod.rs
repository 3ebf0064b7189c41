//! Why something is not as wanted: the one true reason, and what to do about it.
//!
//! A chain goes from what was asked about to what is to be done; its last line is the one to act on. Codes, and what to do
//! about each, are `margrave_core::why`; here is which of them is true, from what is in the store and in memory.

mod assignment;
mod deployment;
mod device;
mod intent;

use std::fmt::Write as _;

use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_core::why::Code;
use margrave_store::Scope;
use margrave_wire::operator::{self, Cause, WhyKind};

use super::{Error, Fleet};
pub use device::FailedFor;
pub(in crate::fleet) use device::shown_blind;

/// One link of a chain, before it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::fleet) struct Reason {
    pub(in crate::fleet) code: Code,
    pub(in crate::fleet) text: String,
    device: Option<String>,
    deployment: Option<String>,
    is_spent: bool,
}

/// What there is to do besides about what was tried as often as it may be.
const SPENT: &str = " It is not tried again by itself: when that is mended, say `margrave device look DEVICE`, or change the deployment.";

impl Reason {
    pub(in crate::fleet) fn new(code: Code, text: impl Into<String>) -> Reason {
        Reason { code, text: text.into(), device: None, deployment: None, is_spent: false }
    }

    /// It was tried as often as the deployment says, and is not tried again when its cause is mended.
    fn spent(mut self) -> Reason {
        self.is_spent = true;
        self
    }

    /// The device that what to do is about.
    pub(in crate::fleet) fn on(mut self, device: impl Into<String>) -> Reason {
        self.device = Some(device.into());
        self
    }

    /// The deployment that what to do is about.
    pub(in crate::fleet) fn of(mut self, deployment: &DeploymentName) -> Reason {
        self.deployment = Some(deployment.to_string());
        self
    }

    fn hint(&self) -> String {
        let mut hint = self.code.next_about(&self.text).to_owned();
        if self.is_spent {
            hint.push_str(SPENT);
        }
        // The longer word has none of the shorter one in it.
        for (word, name) in [("DEPLOYMENT", &self.deployment), ("DEVICE", &self.device)] {
            if let Some(name) = name {
                hint = hint.replace(word, name);
            }
        }
        hint
    }

    fn shown(&self) -> Cause {
        let hint = (self.code != Code::Converged).then(|| self.hint());
        Cause { code: self.code.as_str().to_owned(), text: self.text.clone(), hint }
    }
}

/// A chain in one line.
pub(in crate::fleet) fn sentence(chain: &[Reason]) -> String {
    let mut line = String::new();
    for (index, reason) in chain.iter().enumerate() {
        let between = if index > 0 { ": " } else { "" };
        // A string takes whatever is written.
        let _whole = write!(line, "{between}{}", reason.text);
    }
    line
}

fn told(subject: &str, converged: bool, chain: &[Reason]) -> operator::Why {
    operator::Why {
        subject: subject.to_owned(),
        converged,
        chain: chain.iter().map(Reason::shown).collect(),
        groups: Vec::new(),
        looked_at: None,
    }
}

/// Puts `more` behind a chain that does not end with it already.
fn extend(chain: &mut Vec<Reason>, more: Vec<Reason>) {
    let known = more.first().is_some_and(|first| chain.iter().any(|reason| reason.code == first.code));
    if !known {
        chain.extend(more);
    }
}

impl Fleet {
    /// Why something of this kind is not as wanted.
    pub async fn why_of(&self, kind: WhyKind, subject: &str) -> Result<operator::Why, Error> {
        let unknown = || {
            let shown: String = subject.chars().take(200).collect();
            Error::not_found(format!("{} {shown}", kind.as_str()))
        };
        match kind {
            WhyKind::Device => self.why(subject).await,
            WhyKind::Deployment | WhyKind::Rollout => {
                let name = DeploymentName::parse(subject).map_err(|_| unknown())?;
                let told = match kind {
                    WhyKind::Rollout => self.why_rollout(&name).await,
                    _ => self.why_deployment(&name).await,
                };
                match told {
                    Err(Error::NotFound { what }) if self.is_device(subject).await? => Err(Error::not_found(
                        format!("{what}; a device has that name: `margrave why device {subject}`"),
                    )),
                    told => told,
                }
            }
            WhyKind::Intent => Ok(self.why_intent()),
        }
    }

    async fn is_device(&self, subject: &str) -> Result<bool, Error> {
        let Ok(device) = DeviceRef::parse(subject) else { return Ok(false) };
        Ok(self.store.device(&self.live.addressed(&device)).await?.is_some())
    }

    /// That there is no such device, and what else has that name.
    async fn no_device(&self, subject: &str) -> Error {
        let what = format!("device {}", subject.chars().take(200).collect::<String>());
        let found = match DeploymentName::parse(subject) {
            Ok(name) => self.store.deployment(&name).await,
            Err(_) => Ok(None),
        };
        match found {
            Ok(Some(_)) => {
                let also = format!("a deployment has that name: `margrave why deployment {subject}`");
                Error::not_found(format!("{what}; {also}"))
            }
            Ok(None) => Error::not_found(what),
            Err(error) => error.into(),
        }
    }

    /// Why a device, or one deployment on it (`DEVICE/DEPLOYMENT`), is not as wanted.
    pub async fn why(&self, subject: &str) -> Result<operator::Why, Error> {
        // Device names have slashes, too: the whole is tried first.
        let found = |text: &str| DeviceRef::parse(text).map(|device| self.live.addressed(&device));
        if let Ok(device) = found(subject) {
            if let Some(record) = self.store.device(&device).await? {
                return self.why_device(subject, self.fresh(record)).await;
            }
            if let Some(reason) = self.outside(&device.client).await? {
                return Ok(told(subject, false, &[reason]));
            }
        }
        let parts = subject.rsplit_once('/').and_then(|(device, deployment)| {
            Some((found(device).ok()?, DeploymentName::parse(deployment).ok()?))
        });
        let Some((device, deployment)) = parts else { return Err(self.no_device(subject).await) };
        let Some(record) = self.store.device(&device).await? else {
            return Err(match subject.rsplit_once('/') {
                Some((named, _)) => self.no_device(named).await,
                None => self.no_device(subject).await,
            });
        };
        let record = self.fresh(record);
        let assignments = self.store.assignments(Scope::Devices(vec![device.clone()])).await?;
        let waiting = self.rollout_reasons(&device, &deployment).await?;
        let own = assignments.iter().find(|assignment| assignment.name == deployment);
        if own.is_none() && waiting.is_empty() {
            return self.not_assigned(subject, &record, &deployment).await;
        }
        let mut chain = match own {
            Some(own) => self.assignment_reasons(&record, own, &assignments),
            None => Vec::new(),
        };
        if waiting.is_empty() {
            chain.extend(self.cannot_look(&record));
        }
        if chain.is_empty() && waiting.is_empty() {
            chain.extend(self.left_behind(&record, &deployment).await?);
        }
        let converged = chain.is_empty() && waiting.is_empty();
        if converged {
            let id = self.live.spoken(&device);
            chain.push(Reason::new(Code::Converged, format!("{deployment} on {id} is as wanted")));
        }
        extend(&mut chain, waiting);
        extend(&mut chain, self.unreachable(&record));
        if let Some(own) = own {
            self.look_behind(&mut chain, (&own.package, &own.version)).await?;
            self.look_behind_force(&mut chain, &record, &own.name).await?;
            self.look_behind_window(&mut chain, &record, &own.name).await?;
        }
        let converged = !self.look_behind_restore(&mut chain) && converged;
        Ok(told(subject, converged, &chain))
    }
}
