//! What a server can be told. Everything but the data directory has a default that works.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use margrave_core::id::{TrustDomain, WfmId};
use margrave_device_api::g2::WAIT_MAX;

use crate::drill::Drills;
use crate::fleet::{Accept, Follow};
use crate::http::PathPrefix;

/// A week: devices renew at half of it, and one that was switched off for longer renews with its old key.
/// Being put out is a matter of policy, asked on every request, and does not wait for any expiry.
pub const SVID_LIFETIME_DEFAULT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Who has a poll held says nothing for as long as that lasts; and some patience for those on a bad line.
pub const SILENT_AFTER_DEFAULT: Duration = WAIT_MAX.saturating_add(Duration::from_secs(120));

/// The specification's own example (MI-G1-065).
pub const SIGNED_WINDOW_DEFAULT: Duration = Duration::from_secs(5 * 60);

/// The older device interface: signed requests instead of mutual TLS (g1). Not part of Margo 1.0.0-rc.3.
#[derive(Debug, Clone)]
pub struct SignedConfig {
    pub listen: SocketAddr,
    /// The addresses that clients sign, `https://host[:port][/prefix]`; the server's names and this listener's port
    /// if nothing is said.
    pub urls: Vec<String>,
    /// Plain HTTP, because a proxy in front of the listener ends TLS.
    pub plain: bool,
    /// How old a signature may be.
    pub window: Duration,
    pub accept: Accept,
    /// PEM: who has a certificate of one of these is let in at once.
    pub trust: Option<PathBuf>,
    /// Old clients do not sign their very first request.
    pub unsigned_onboarding: bool,
}

impl SignedConfig {
    pub fn new(listen: SocketAddr) -> Self {
        SignedConfig {
            listen,
            urls: Vec::new(),
            plain: false,
            window: SIGNED_WINDOW_DEFAULT,
            accept: Accept::Ask,
            trust: None,
            unsigned_onboarding: false,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Config {
    /// Everything the server keeps lies here; nobody else may read it.
    pub data: PathBuf,
    /// HTTPS: page, operator REST, identity, registry.
    pub listen: SocketAddr,
    /// Mutual TLS: the device interface.
    pub device_listen: SocketAddr,
    /// A path below which the device interface answers as well, such as `/v1alpha2/margo` (ID-223).
    pub device_prefix: Option<PathPrefix>,
    /// The signed device interface; off when absent.
    pub signed: Option<SignedConfig>,
    /// Plain HTTP for this very machine: page, operator REST, and the registry for a local container engine.
    pub local_listen: Option<SocketAddr>,
    /// DNS names and addresses under which others reach this machine, the best one first; it stands in
    /// every address the server hands out.
    pub names: Vec<String>,
    /// Chosen at first start and kept; made up when nothing is said.
    pub trust_domain: Option<TrustDomain>,
    /// Likewise.
    pub wfm: Option<WfmId>,
    pub svid_lifetime: Duration,
    /// `host:port` under which devices reach this server's registry; this server's HTTPS address if nothing is said.
    pub registry_address: Option<String>,
    /// Ask no registry elsewhere what images mean, but those that an operator told of.
    pub air_gapped: bool,
    /// Without contact for longer than this, a device is called silent.
    pub silent_after: Duration,
    /// A remote that says what is wanted; then nothing else does.
    pub follow: Option<Follow>,
    /// Set by `margrave demo`: what is real and what is simulated, in a sentence.
    pub demo: Option<String>,
    /// Likewise: what people may break there.
    pub drills: Option<Drills>,
}

impl Config {
    pub fn new(data: impl Into<PathBuf>) -> Self {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Config {
            data: data.into(),
            listen: SocketAddr::new(any, 8443),
            device_listen: SocketAddr::new(any, 8444),
            device_prefix: None,
            signed: None,
            local_listen: None,
            names: names_default(),
            trust_domain: None,
            wfm: None,
            svid_lifetime: SVID_LIFETIME_DEFAULT,
            registry_address: None,
            air_gapped: false,
            silent_after: SILENT_AFTER_DEFAULT,
            follow: None,
            demo: None,
            drills: None,
        }
    }
}

/// The machine's name, then itself.
pub fn names_default() -> Vec<String> {
    // Linux only, like the container engines we run on; elsewhere there is just no name to add.
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let hostname = hostname.trim().to_ascii_lowercase();
    let usable = hostname.split('.').all(|label| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    });
    let mut names = Vec::new();
    if usable && hostname != "localhost" {
        names.push(hostname);
    }
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    names
}

/// `host:port`, with an IPv6 address in brackets.
pub(crate) fn authority(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_so_that_a_url_can_hold_them() {
        assert_eq!(authority("plant.example", 8443), "plant.example:8443");
        assert_eq!(authority("127.0.0.1", 1), "127.0.0.1:1");
        assert_eq!(authority("::1", 1), "[::1]:1");
    }

    #[test]
    fn the_machine_is_reachable_under_its_own_names() {
        let names = names_default();
        assert!(names.ends_with(&["localhost", "127.0.0.1", "::1"].map(str::to_owned)), "{names:?}");
    }
}
