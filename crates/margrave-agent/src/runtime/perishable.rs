//! What containers write into the component's own archive: an update brings another archive, and that is lost.
//!
//! New packages are kept from it where they can be. What ran like this when nobody looked for it goes on, and a person is told.

use margrave_core::id::ComponentName;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Perishable {
    /// A named volume whose device lies there.
    Volume(String),
    /// A directory with files of the archive that a service may write to.
    Mount { service: String, target: String },
}

impl Perishable {
    /// What a person should know about it.
    pub(super) fn remark(&self, component: &ComponentName) -> String {
        match self {
            Perishable::Volume(name) => format!(
                "{component}: the volume {name} has its device in the component's archive; what is in it is lost with the next update"
            ),
            Perishable::Mount { service, target } => format!(
                "{component}: what {service} writes to {target} is lost with the next update, because the package has files of its own there"
            ),
        }
    }
}
