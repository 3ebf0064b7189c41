//! Two ends of TLS, for tests, of which the server refuses the client only after the client is content.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use margrave_core::moment::Moment;
use margrave_identity::authority::Authority;
use margrave_identity::bundle::Bundle;
use margrave_identity::csr::Csr;
use margrave_identity::key::PrivateKey;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::svid::Svid;
use margrave_identity::tls::{device_client_config, device_server_config};

pub(crate) struct Refusal {
    pub(crate) client: Arc<rustls::ClientConfig>,
    pub(crate) server: Arc<rustls::ServerConfig>,
}

impl Refusal {
    pub(crate) fn new() -> Refusal {
        let hour = Duration::from_secs(3600);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = Moment(u64::try_from(now.as_millis()).unwrap());
        let authority = Authority::create("plant.example".parse().unwrap(), now).unwrap();
        let wfm = "line-7".parse().unwrap();
        let server = LiveSvid::new(authority.issue_server(&wfm, now, hour).unwrap());
        let anchor = authority.anchor();
        let bundle = LiveBundle::new(Bundle::of_anchor(authority.trust_domain().clone(), anchor, 1, hour));
        let key = PrivateKey::generate().unwrap();
        let csr = Csr::make(&key).unwrap();
        let long_ago = Moment(now.0 - 48 * 3_600_000);
        let expired = authority.issue_client(&wfm, &"press".parse().unwrap(), &csr, long_ago, hour).unwrap();
        let client = LiveSvid::new(Svid::new(expired.chain, key).unwrap());
        Refusal {
            client: device_client_config(client, bundle.clone()),
            server: device_server_config(server, bundle),
        }
    }
}
