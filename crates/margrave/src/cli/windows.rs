//! The argument that says when changes of a deployment may begin.

use clap::Args;

/// When changes of a deployment may begin on a device.
#[derive(Debug, Clone, Args)]
pub(crate) struct Windows {
    /// When its changes may begin, besides when the device may change at all, such as 'sun 02:00-05:00 Europe/Berlin'; repeat
    /// it for several, `any` is at any time again [usually: any]
    #[arg(long = "window", value_name = "TIMES")]
    windows: Vec<String>,
}

impl Windows {
    /// What was said about it, if anything was.
    pub(crate) fn wanted(&self) -> Option<Vec<String>> {
        match self.windows.as_slice() {
            [] => None,
            [any] if any == "any" => Some(Vec::new()),
            windows => Some(windows.to_vec()),
        }
    }
}
