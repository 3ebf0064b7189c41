//! What operators ask of a device itself, beside what it should run: to hold changes back for a while, and to look again.

use serde::{Deserialize, Serialize};

use crate::device::Hold;
use crate::moment::Moment;

/// It stands in the manifest for as long as it is asked, so nothing is lost with a message. What was answered already is
/// known by being the same as before.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Asked {
    /// In the server's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Another number than before asks for a fresh look; 0 where nobody ever did.
    #[serde(default)]
    pub look: u64,
}

impl Asked {
    pub(crate) const NOTHING: &'static Asked = &Asked { hold: None, look: 0 };

    pub fn is_nothing(&self) -> bool {
        self == Asked::NOTHING
    }

    /// What is left of it at a time: a hold that is over is asked no more.
    pub fn at(&self, now: Moment) -> Asked {
        Asked { hold: self.hold.clone().filter(|hold| now < hold.until), look: self.look }
    }

    /// The number of a look that is asked for now: another one than any before, also after the server was set back.
    pub fn next_look(&self, now: Moment) -> u64 {
        now.0.max(self.look.saturating_add(1))
    }
}
