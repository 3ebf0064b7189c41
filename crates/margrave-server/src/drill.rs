//! Faults that a demo lets people cause on purpose, so that they see devices heal. A server for real use has none of it.

use std::time::Duration;

use tokio::sync::mpsc;

/// What can be done to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    CutNetwork,
    KillDuringUpdate,
    CorruptDownload,
    SpoilDisk,
    SkewClock,
}

impl Fault {
    pub const ALL: [Fault; 5] = [
        Fault::CutNetwork,
        Fault::KillDuringUpdate,
        Fault::CorruptDownload,
        Fault::SpoilDisk,
        Fault::SkewClock,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Fault::CutNetwork => "cut-network",
            Fault::KillDuringUpdate => "kill",
            Fault::CorruptDownload => "corrupt",
            Fault::SpoilDisk => "spoil-disk",
            Fault::SkewClock => "skew-clock",
        }
    }

    /// For how long it is done; what is done at once, or has to wait for something, has no end of its own.
    pub fn lasts(self) -> Option<Duration> {
        match self {
            Fault::CutNetwork | Fault::SkewClock => Some(Duration::from_secs(60)),
            Fault::KillDuringUpdate | Fault::CorruptDownload | Fault::SpoilDisk => None,
        }
    }

    pub fn parse(text: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| fault.as_str() == text)
    }
}

/// Somebody asked for a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drill {
    pub device: String,
    pub fault: Fault,
}

/// Asks the demo around the server; made together with what hears it.
#[derive(Debug, Clone)]
pub struct Drills {
    /// The devices that take part.
    pub(crate) devices: Vec<String>,
    asked: mpsc::Sender<Drill>,
}

/// More than one waits for another only when somebody presses faster than a device can fall.
const ASKED_MAX: usize = 16;

impl Drills {
    pub fn new(devices: Vec<String>) -> (Drills, mpsc::Receiver<Drill>) {
        let (asked, hears) = mpsc::channel(ASKED_MAX);
        (Drills { devices, asked }, hears)
    }

    /// Whether it will be done; not for a device that takes no part, and not while too many wait.
    pub(crate) fn ask(&self, device: &str, fault: Fault) -> bool {
        let drill = Drill { device: device.to_owned(), fault };
        self.devices.iter().any(|known| known == device) && self.asked.try_send(drill).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_of_the_demo_take_part_and_not_endlessly() {
        let (drills, mut hears) = Drills::new(vec!["press-1".to_owned()]);
        assert!(!drills.ask("line-1", Fault::CutNetwork));
        for _ in 0..ASKED_MAX {
            assert!(drills.ask("press-1", Fault::SkewClock));
        }
        assert!(!drills.ask("press-1", Fault::SkewClock));
        assert_eq!(
            hears.try_recv().unwrap(),
            Drill { device: "press-1".to_owned(), fault: Fault::SkewClock }
        );
        for fault in Fault::ALL {
            assert_eq!(Fault::parse(fault.as_str()), Some(fault));
        }
    }
}
