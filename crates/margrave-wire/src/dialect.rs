//! In which of the device interface's wire forms a client is spoken to.

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
}
