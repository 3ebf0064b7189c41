//! The arguments of `margrave serve` about the older device interface.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{listen_anywhere, signed_window};

/// The older device interface. Everything but the address only says how, and needs it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Signed requests (g1), for devices older than Margo 1.0.0-rc.3")]
pub(crate) struct Signed {
    /// Address of the signed device interface; off unless given, and not conformant with 1.0.0-rc.3
    #[arg(long, value_name = "ADDRESS", value_parser = listen_anywhere)]
    pub(crate) signed_listen: Option<SocketAddr>,
    /// Address that devices use and sign, if not https://NAME:PORT; repeat for several
    #[arg(long = "signed-url", value_name = "URL", requires = "signed_listen")]
    pub(crate) signed_urls: Vec<String>,
    /// Plain HTTP, for a proxy that ends TLS; on loopback only, unless --signed-url is given
    #[arg(long, requires = "signed_listen")]
    pub(crate) signed_plain: bool,
    /// How old a signature may be
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = signed_window)]
    pub(crate) signed_window: Duration,
    /// Who is let in: `ask` waits for `margrave device accept`, `any` takes everybody
    #[arg(long, value_name = "WHO", default_value = "ask", value_parser = ["ask", "any"])]
    pub(crate) signed_accept: String,
    /// Let in at once who has a certificate of an authority in this file (PEM)
    #[arg(long, value_name = "FILE", requires = "signed_listen")]
    pub(crate) signed_trust: Option<PathBuf>,
    /// Take the first request of old devices that do not sign it
    #[arg(long, requires = "signed_listen")]
    pub(crate) signed_unsigned_onboarding: bool,
}
