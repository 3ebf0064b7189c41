//! In which of the device interface's wire forms a client is spoken to.

use margrave_core::capabilities::Capabilities;
use margrave_core::id::ClientId;
use margrave_core::manifest::Manifest;
use margrave_core::workload::Workload;

use crate::{BodyError, g1, g2};

/// The form of a client's documents, manifest and reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// g2: mutual TLS, Margo 1.0.0-rc.3.
    Miaf,
    /// g1: signed requests.
    Signed,
}

impl Dialect {
    pub const ALL: [Dialect; 2] = [Dialect::Miaf, Dialect::Signed];

    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Dialect::Miaf => "g2",
            Dialect::Signed => "g1",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.as_str() == text)
    }

    /// The document's bytes in this form.
    pub fn document(self, workload: &Workload) -> Vec<u8> {
        match self {
            Dialect::Miaf => g2::document::write(workload),
            Dialect::Signed => g1::document::write(workload),
        }
    }

    /// The manifest's bytes in this form, for this client.
    pub fn manifest(self, client: &ClientId, manifest: &Manifest) -> Vec<u8> {
        match self {
            Dialect::Miaf => g2::manifest::write(manifest),
            Dialect::Signed => g1::manifest::write(client, manifest),
        }
    }

    /// Capabilities as a client of this form reports them.
    pub fn capabilities(self, body: &[u8]) -> Result<Capabilities, BodyError> {
        match self {
            Dialect::Miaf => g2::capabilities::read(body),
            Dialect::Signed => g1::capabilities::read(body),
        }
    }
}
