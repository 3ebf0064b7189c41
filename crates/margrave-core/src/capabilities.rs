//! What a device said it is and can do.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::device::{Blind, Hold};
use crate::id::DeviceId;
use crate::package::ProfileKind;

/// One device's capabilities. `properties` stays as reported, because selectors point into it (DM-142);
/// the fields beside it are the checked reading of what we use ourselves.
#[derive(Debug, Clone, PartialEq)]
pub struct Capabilities {
    pub device: DeviceId,
    pub vendor: String,
    pub model_number: String,
    pub serial_number: String,
    /// `None` for a see-thru gateway that hosts nothing (DM-103).
    pub hosting: Option<Hosting>,
    pub properties: Map<String, Value>,
    pub labels: BTreeMap<String, Value>,
    /// Our own agent's additions, from `x-margrave-extensions`.
    pub simulated: bool,
    pub agent_version: Option<String>,
    /// What was set on the device itself and goes before what the server says, for people.
    pub overrides: Vec<String>,
    /// Who holds changes back there, as the device said last; whether one still stands is for the reader's clock.
    pub holds: Vec<Hold>,
    /// The last look that operators asked for and that was done there; 0 where there was none.
    pub looked: u64,
    /// It cannot look at its containers, as it says itself; `None` also of those that say nothing of the kind.
    pub blind: Option<Blind>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Hosting {
    pub cpus: Vec<Cpu>,
    /// `None` when the quantity could not be read: the device is then not eligible by memory (DM-134).
    pub memory_bytes: Option<u64>,
    pub storage_bytes: Option<u64>,
    /// Unknown types are read as `custom` (DM-106).
    pub deployment_types: Vec<ProfileKind>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Cpu {
    pub cores: f64,
    pub architecture: Option<String>,
}
