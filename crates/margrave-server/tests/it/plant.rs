//! A server on a directory of its own, and devices that join it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use margrave_core::id::{ClientId, TrustDomain};
use margrave_core::identity::ServerName;
use margrave_core::moment::Moment;
use margrave_identity::bundle::Bundle;
use margrave_identity::csr::Csr;
use margrave_identity::key::PrivateKey;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::pin::Pin;
use margrave_identity::proof::prove;
use margrave_identity::svid::Svid;
use margrave_identity::tls::{device_client_config, pinned_client_config};
use margrave_server::fleet::{Actor, Clock};
use margrave_server::{Config, Server, SignedConfig, StartError};
use margrave_wire::identity::{
    JOIN_PATH, JoinRequest, JoinResponse, RENEW_PATH, RenewRequest, RenewResponse,
};
use margrave_wire::operator::{CreateJoinToken, CreateToken, CreatedToken};
use rustls::ClientConfig;
use tempfile::TempDir;

use crate::line::{Broken, Line, Reply};

pub(crate) struct Plant {
    pub(crate) data: TempDir,
    pub(crate) server: Server,
    clock: Arc<AtomicI64>,
    config: Config,
}

pub(crate) fn config(data: &Path) -> Config {
    let any = "127.0.0.1:0".parse().unwrap();
    Config {
        listen: any,
        device_listen: any,
        local_listen: Some(any),
        names: vec!["127.0.0.1".to_owned(), "localhost".to_owned()],
        trust_domain: Some("plant.example".parse().unwrap()),
        wfm: Some("line-7".parse().unwrap()),
        // No test waits for somebody on the other side of the world.
        air_gapped: true,
        ..Config::new(data)
    }
}

pub(crate) fn operator() -> Actor {
    Actor { name: "operator test".to_owned() }
}

pub(crate) fn now() -> Moment {
    Moment(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap())
}

impl Plant {
    pub(crate) async fn new() -> Plant {
        Plant::with(Duration::from_secs(3600), 0).await
    }

    /// A server whose clock is `ahead` seconds ahead of the machine's.
    pub(crate) async fn with(svid_lifetime: Duration, ahead: i64) -> Plant {
        Plant::at(ahead, |config| Config { svid_lifetime, ..config }).await
    }

    /// With the signed device interface, as `change` leaves its configuration.
    pub(crate) async fn signed(change: impl FnOnce(&mut SignedConfig)) -> Plant {
        let mut signed = SignedConfig::new("127.0.0.1:0".parse().unwrap());
        change(&mut signed);
        Plant::of(|config| Config { signed: Some(signed), ..config }).await
    }

    /// A server with another configuration than usual.
    pub(crate) async fn of(change: impl FnOnce(Config) -> Config) -> Plant {
        Plant::at(0, |config| change(Config { svid_lifetime: Duration::from_secs(3600), ..config })).await
    }

    async fn at(ahead: i64, change: impl FnOnce(Config) -> Config) -> Plant {
        let data = tempfile::tempdir().unwrap();
        let clock = Arc::new(AtomicI64::new(ahead));
        let config = change(config(data.path()));
        let server = start(config.clone(), &clock).await.unwrap();
        Plant { data, server, clock, config }
    }

    pub(crate) fn set_ahead(&self, seconds: i64) {
        self.clock.store(seconds, Ordering::Relaxed);
    }

    /// Stops the server and starts another one on the same directory.
    pub(crate) async fn restart(self) -> Plant {
        let Plant { data, server, clock, config } = self;
        server.stop().await;
        let server = start(config.clone(), &clock).await.unwrap();
        Plant { data, server, clock, config }
    }

    /// Stops the server for good and starts another one from a backup, in a directory of its own.
    pub(crate) async fn restored(self, archive: &[u8]) -> Plant {
        let Plant { server, clock, config, .. } = self;
        server.stop().await;
        let data = tempfile::tempdir().unwrap();
        let at = Moment(now().0.checked_add_signed(clock.load(Ordering::Relaxed) * 1000).unwrap());
        margrave_server::backup::restore(archive, data.path(), at).unwrap();
        let config = Config { data: data.path().to_owned(), ..config };
        let server = start(config.clone(), &clock).await.unwrap();
        Plant { data, server, clock, config }
    }

    pub(crate) fn pinned(&self) -> Arc<ClientConfig> {
        pinned_client_config(vec![Pin::parse(&self.server.pin()).unwrap()])
    }

    pub(crate) async fn web(&self) -> Line {
        Line::open(self.server.addresses().web, self.pinned()).await.unwrap()
    }

    pub(crate) async fn local(&self) -> Line {
        Line::plain(self.server.addresses().local.unwrap()).await
    }

    pub(crate) async fn device_line(&self, tls: Arc<ClientConfig>) -> Result<Line, Broken> {
        Line::open(self.server.addresses().device, tls).await
    }

    pub(crate) async fn token(&self, device: &str) -> String {
        let want = CreateJoinToken {
            device: Some(device.to_owned()),
            labels: Default::default(),
            valid_seconds: Some(600),
            git: false,
        };
        self.server.fleet().create_join_token(&operator(), want).await.unwrap().token
    }

    /// A token of an operator with this role.
    pub(crate) async fn operator_token(&self, name: &str, role: &str) -> CreatedToken {
        let want = CreateToken { name: name.to_owned(), role: role.to_owned(), valid_seconds: None };
        self.server.fleet().create_operator_token(&operator(), want).await.unwrap()
    }

    pub(crate) async fn ask_to_join(&self, token: &str, key: &PrivateKey) -> Reply {
        let csr = Csr::make(key).unwrap().to_pem();
        let body = serde_json::to_vec(&JoinRequest { token: token.to_owned(), csr }).unwrap();
        self.web().await.send("POST", JOIN_PATH, &[], body).await.unwrap()
    }

    pub(crate) async fn join(&self, device: &str) -> Device {
        let token = self.token(device).await;
        let key = PrivateKey::generate().unwrap();
        let reply = self.ask_to_join(&token, &key).await;
        let answer: JoinResponse = reply.is(200).json();
        Device::new(&answer, key)
    }

    pub(crate) async fn ask_to_renew(&self, previous: &Svid, key: &PrivateKey) -> Reply {
        let csr = Csr::make(key).unwrap();
        let proof = STANDARD.encode(prove(previous.key(), &csr).unwrap());
        let request = RenewRequest { csr: csr.to_pem(), previous: vec![previous.chain_pem()], proof };
        let body = serde_json::to_vec(&request).unwrap();
        self.web().await.send("POST", RENEW_PATH, &[], body).await.unwrap()
    }
}

async fn start(config: Config, clock: &Arc<AtomicI64>) -> Result<Server, StartError> {
    let clock = Arc::clone(clock);
    let ahead = move || Moment(now().0.checked_add_signed(clock.load(Ordering::Relaxed) * 1000).unwrap());
    Server::start_at(config, Clock::new(ahead)).await
}

/// A device after joining.
pub(crate) struct Device {
    pub(crate) client: ClientId,
    pub(crate) svid: Arc<LiveSvid>,
    pub(crate) bundle: Arc<LiveBundle>,
}

impl Device {
    pub(crate) fn new(answer: &JoinResponse, key: PrivateKey) -> Device {
        let svid = Svid::adopt(&answer.certificates, key).unwrap();
        let bundle = Bundle::from_wire(trust_domain(), &answer.trust_bundle).unwrap();
        Device {
            client: answer.client_id.clone(),
            svid: LiveSvid::new(svid),
            bundle: LiveBundle::new(bundle),
        }
    }

    pub(crate) fn tls(&self) -> Arc<ClientConfig> {
        device_client_config(Arc::clone(&self.svid), Arc::clone(&self.bundle))
    }

    pub(crate) async fn line(&self, plant: &Plant) -> Line {
        plant.device_line(self.tls()).await.unwrap()
    }

    pub(crate) async fn renew(&self, plant: &Plant) -> Reply {
        let key = PrivateKey::generate().unwrap();
        let reply = plant.ask_to_renew(&self.svid.current(), &key).await;
        if reply.status.is_success() {
            let answer: RenewResponse = reply.json();
            self.svid.replace(Svid::adopt(&answer.certificates, key).unwrap()).unwrap();
        }
        reply
    }
}

pub(crate) fn trust_domain() -> TrustDomain {
    "plant.example".parse().unwrap()
}

pub(crate) fn server_name() -> ServerName {
    ServerName { trust_domain: trust_domain(), wfm: "line-7".parse().unwrap() }
}
