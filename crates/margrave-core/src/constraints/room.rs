//! What a deployment takes of a device, and what others were promised there already.
//!
//! The standard leaves open what other deployments use up (DM-135). Here a requirement is a promise: what one deployment was
//! promised on a device is not promised to another. What a deployment has it keeps: a change that asks for no more than it has
//! is not refused because of what came after it.

use core::net::IpAddr;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Capacity, Misfit, MisfitCode, Quantity, on};
use crate::capabilities::{Cpu, Hosting};
use crate::id::DeploymentName;
use crate::package::Profile;

/// Deployments that a reason lists; the rest is counted.
const LISTED_MAX: usize = 5;
/// Cores are decimals; a difference of this size comes from adding them.
const CORES_SLACK: f64 = 1e-9;

/// What one profile takes of a device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Need {
    pub capacity: Capacity,
    pub claims: Claims,
}

/// What only one deployment on a device can have.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Claims {
    pub ports: BTreeSet<Port>,
    /// Volumes by name and host paths, as far as they are written to.
    pub volumes: BTreeSet<String>,
}

/// A port of the device itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Port {
    pub number: u16,
    pub protocol: Protocol,
    /// `None` is every address of the device.
    pub address: Option<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Port {
    fn meets(&self, other: &Port) -> bool {
        let everywhere = |port: &Port| port.address.is_none_or(|address| address.is_unspecified());
        let same_address = everywhere(self) || everywhere(other) || self.address == other.address;
        self.number == other.number && self.protocol == other.protocol && same_address
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
        match self.address {
            None => write!(f, "{}/{protocol}", self.number),
            Some(address) => write!(f, "{}/{protocol} of {address}", self.number),
        }
    }
}

impl Need {
    pub fn of(profile: &Profile, claims: Claims) -> Need {
        let capacity = profile.constraints.as_ref().and_then(|constraints| constraints.capacity.clone());
        Need { capacity: capacity.unwrap_or_default(), claims }
    }

    pub fn is_nothing(&self) -> bool {
        let Capacity { cores, architectures: _, memory_bytes, storage_bytes } = &self.capacity;
        let Claims { ports, volumes } = &self.claims;
        (cores, memory_bytes, storage_bytes) == (&None, &None, &None)
            && ports.is_empty()
            && volumes.is_empty()
    }

    /// What is taken both before and after one need follows another.
    pub fn least(&self, other: &Need) -> Need {
        let (a, b) = (&self.capacity, &other.capacity);
        let capacity = Capacity {
            cores: a.cores.zip(b.cores).map(|(a, b)| a.min(b)),
            architectures: b.architectures.clone(),
            memory_bytes: a.memory_bytes.zip(b.memory_bytes).map(|(a, b)| a.min(b)),
            storage_bytes: a.storage_bytes.zip(b.storage_bytes).map(|(a, b)| a.min(b)),
        };
        let claims = Claims {
            ports: self.claims.ports.intersection(&other.claims.ports).cloned().collect(),
            volumes: self.claims.volumes.intersection(&other.claims.volumes).cloned().collect(),
        };
        Need { capacity, claims }
    }

    /// What is taken before or after one need follows another, as long as nobody knows which of the two counts.
    pub fn most(&self, other: &Need) -> Need {
        let (a, b) = (&self.capacity, &other.capacity);
        let cores = |capacity: &Capacity| capacity.cores.unwrap_or(0.0);
        let capacity = Capacity {
            cores: a.cores.or(b.cores).map(|_| cores(a).max(cores(b))),
            architectures: b.architectures.clone(),
            memory_bytes: a.memory_bytes.max(b.memory_bytes),
            storage_bytes: a.storage_bytes.max(b.storage_bytes),
        };
        let claims = Claims {
            ports: self.claims.ports.union(&other.claims.ports).cloned().collect(),
            volumes: self.claims.volumes.union(&other.claims.volumes).cloned().collect(),
        };
        Need { capacity, claims }
    }

    /// Whether `self` takes something that `other` does not.
    pub fn exceeds(&self, other: &Need) -> bool {
        let (a, b) = (&self.capacity, &other.capacity);
        a.cores.unwrap_or(0.0) > b.cores.unwrap_or(0.0)
            || a.memory_bytes > b.memory_bytes
            || a.storage_bytes > b.storage_bytes
            || !self.claims.ports.is_subset(&other.claims.ports)
            || !self.claims.volumes.is_subset(&other.claims.volumes)
    }
}

/// What one deployment was promised on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Promise {
    pub to: DeploymentName,
    pub need: Arc<Need>,
}

/// What is promised on a device, from where one deployment looks at it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Room<'a> {
    /// To other deployments.
    pub promised: &'a [Promise],
    /// What the deployment has there now.
    pub own: Option<&'a Need>,
}

impl Room<'_> {
    /// What is too little once all promises are kept.
    pub(super) fn capacity_misfits(&self, capacity: &Capacity, hosting: &Hosting, misfits: &mut Vec<Misfit>) {
        self.cpu_misfit(capacity, &hosting.cpus, misfits);
        type Amount = fn(&Capacity) -> Option<u64>;
        let amounts: [(MisfitCode, Amount, Option<u64>); 2] = [
            (MisfitCode::Memory, |capacity| capacity.memory_bytes, hosting.memory_bytes),
            (MisfitCode::Storage, |capacity| capacity.storage_bytes, hosting.storage_bytes),
        ];
        for (code, amount, has) in amounts {
            let Some(needed) = amount(capacity) else { continue };
            let noun = code.as_str();
            let needs = format!("needs {} of {noun}", Quantity(needed));
            let Some(has) = has else {
                let message = format!("{needs}, and the device reports no amount that can be read");
                misfits.push(Misfit::new(code, message));
                continue;
            };
            if needed > has {
                misfits.push(Misfit::new(code, format!("{needs}, has {}", Quantity(has))));
                continue;
            }
            let promises = self.promised.iter().filter_map(|promise| {
                let amount = amount(&promise.need.capacity).filter(|amount| *amount > 0)?;
                Some((&promise.to, amount))
            });
            let promises: Vec<(&DeploymentName, u64)> = promises.collect();
            let promised = promises.iter().fold(0u64, |sum, (_, amount)| sum.saturating_add(*amount));
            let own = self.own.and_then(|own| amount(&own.capacity)).unwrap_or(0);
            if needed > has.saturating_sub(promised).max(own) {
                let to = promises.iter().map(|(to, amount)| format!("{to} ({})", Quantity(*amount)));
                let (has, sum, to) = (Quantity(has), Quantity(promised), listed(to.collect()));
                misfits.push(Misfit::new(
                    code,
                    format!("{needs}, has {has}, of which {sum} is promised to {to}"),
                ));
            }
        }
    }

    fn cpu_misfit(&self, capacity: &Capacity, cpus: &[Cpu], misfits: &mut Vec<Misfit>) {
        let Some(cores) = capacity.cores else { return };
        let cpu = |cpu: &Cpu| format!("{}{}", cpu.cores, on(cpu.architecture.as_deref().unwrap_or("")));
        let has: Vec<String> = cpus.iter().map(cpu).collect();
        let has = if has.is_empty() { "none".to_owned() } else { has.join(" and ") };
        let noun = if cores == 1.0 { "core" } else { "cores" };
        let needs = format!("needs {cores} {noun}{}", on(&capacity.architectures.join(" or ")));
        // One single entry has to do; cores of several are never added (DM-131).
        if !cpus.iter().any(|cpu| runs_on(capacity, cpu) && cpu.cores >= cores) {
            misfits.push(Misfit::new(MisfitCode::Cpu, format!("{needs}, has {has}")));
            return;
        }
        let own = self.own.and_then(|own| own.capacity.cores).unwrap_or(0.0);
        if cores <= own {
            return;
        }
        let others: Vec<&Capacity> = self.promised.iter().map(|promise| &promise.need.capacity).collect();
        let together = others.iter().copied().chain([capacity]).collect();
        if homeless(cpus, together) > homeless(cpus, others) + CORES_SLACK {
            let to = self.promised.iter().filter_map(|promise| {
                let cores = promise.need.capacity.cores.filter(|cores| *cores > 0.0)?;
                Some(format!("{} ({cores})", promise.to))
            });
            let sum: f64 = self.promised.iter().filter_map(|promise| promise.need.capacity.cores).sum();
            let sum = (sum * 1000.0).round() / 1000.0;
            let to = listed(to.collect());
            let message = format!("{needs}, has {has}, of which {sum} is promised to {to}");
            misfits.push(Misfit::new(MisfitCode::Cpu, message));
        }
    }

    /// What another deployment has already.
    pub(super) fn claim_misfits(&self, claims: &Claims, misfits: &mut Vec<Misfit>) {
        let none = Claims::default();
        let own = self.own.map_or(&none, |own| &own.claims);
        for Promise { to, need } in self.promised {
            for port in claims.ports.difference(&own.ports) {
                if let Some(theirs) = need.claims.ports.iter().find(|theirs| theirs.meets(port)) {
                    let message = match theirs == port {
                        true => format!("wants port {port}, which {to} has there"),
                        false => format!("wants port {port}, and {to} has {theirs} there"),
                    };
                    misfits.push(Misfit::new(MisfitCode::Port, message));
                }
            }
            for volume in claims.volumes.difference(&own.volumes) {
                if need.claims.volumes.contains(volume) {
                    let message =
                        format!("wants to write to the volume {volume}, to which {to} writes there");
                    misfits.push(Misfit::new(MisfitCode::Volume, message));
                }
            }
        }
    }
}

/// Whether a processor is of a kind that will do (DM-132).
fn runs_on(capacity: &Capacity, cpu: &Cpu) -> bool {
    capacity.architectures.is_empty()
        || cpu.architecture.as_ref().is_some_and(|have| capacity.architectures.contains(have))
}

/// The cores for which there is no place when each need has to be met by one entry. Those who may go to few entries choose
/// first, then the larger ones, each where it leaves the least.
fn homeless(cpus: &[Cpu], mut needs: Vec<&Capacity>) -> f64 {
    let cores = |need: &Capacity| need.cores.unwrap_or(0.0);
    needs.sort_by(|a, b| {
        let free = |need: &Capacity| need.architectures.is_empty();
        free(a).cmp(&free(b)).then(cores(b).total_cmp(&cores(a)))
    });
    let mut left: Vec<f64> = cpus.iter().map(|cpu| cpu.cores).collect();
    let mut without = 0.0;
    for need in needs {
        let wanted = cores(need);
        let fitting = left
            .iter_mut()
            .zip(cpus)
            .filter(|(left, cpu)| runs_on(need, cpu) && **left + CORES_SLACK >= wanted);
        match fitting.map(|(left, _)| left).min_by(|a, b| a.total_cmp(b)) {
            Some(left) => *left -= wanted,
            None => without += wanted,
        }
    }
    without
}

fn listed(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(LISTED_MAX);
    names.truncate(LISTED_MAX);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}
