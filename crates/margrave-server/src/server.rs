//! The server as a whole: one data directory, up to four listeners, a few tasks.
//!
//! Puts the parts together in the order in which they depend on each other, and takes them apart in reverse.
//! It prints nothing; whoever starts it says what there is to say.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use margrave_core::access::Role;
use margrave_device_api::g1::Terms;
use margrave_identity::message::Roots;
use margrave_identity::tls::{device_server_config, web_server_config};
use margrave_oci::reference::Host;
use margrave_registry::Registry;
use margrave_store::Store;
use margrave_wire::backup::DATABASE;
use margrave_wire::operator::Context;
use margrave_wire::signature::{ExternalUrl, InvalidExternalUrl};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admission::Admission;
use crate::auth::SignInCodes;
use crate::backup::{self, Backups};
use crate::config::{Config, SignedConfig, authority};
use crate::files;
use crate::fleet::{self, Clock, Fleet, FleetOptions, Naming, SignedPolicy};
use crate::guessing::Guessing;
use crate::http::audit::Audit;
use crate::http::identity::{Guesses, Identity as IdentityPages, Joined};
use crate::http::registry::{Mount, RegistryTokens};
use crate::http::signed::Signed;
use crate::http::{self, App, Stopping};
use crate::identity::{Identity, IdentityError, Wanted};
use crate::listener::{self, Door, Limits};
use crate::rotation::Rotation;
use crate::tasks;
use crate::vault::Vault;

const ADMIN: &str = "admin";

/// Why a server did not start. Each says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the data directory {path} cannot be {doing}; check the path and that this user may write there")]
    Data { path: PathBuf, doing: &'static str, source: io::Error },
    #[error("a restore into {0} was not finished; empty the directory and restore the backup again")]
    Unrestored(PathBuf),
    #[error("another server runs on {0}; stop that one, or give this one another data directory")]
    InUse(PathBuf),
    #[error("the server has no usable identity")]
    Identity(#[from] IdentityError),
    #[error(
        "{address} is taken by another program; stop that one, or choose another address with {option} \
         (port 0 lets the system choose)"
    )]
    PortTaken { address: SocketAddr, option: &'static str },
    #[error("cannot listen on {address}; choose another address with {option}")]
    Listen { address: SocketAddr, option: &'static str, source: io::Error },
    #[error(
        "{0} is not a loopback address: the local listener speaks plain HTTP and must not leave this machine; \
         use 127.0.0.1 or [::1], or the HTTPS listener"
    )]
    NotLocal(SocketAddr),
    #[error("{path} holds no certificates to trust; give a file of certificates in PEM")]
    SignedTrust { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the address that clients of the signed interface sign cannot be used")]
    SignedUrl(#[source] InvalidExternalUrl),
    #[error(
        "{0} is not a loopback address: plain HTTP for signed requests must not leave this machine. Let the proxy \
         reach it at 127.0.0.1 or [::1], or say with --signed-url under which https:// address the proxy is reached"
    )]
    SignedPlain(SocketAddr),
    #[error("the server needs at least one name under which others reach it")]
    Nameless,
    #[error("the database cannot be opened")]
    Store(#[from] margrave_store::OpenError),
    #[error("the registry cannot be opened")]
    Registry(#[from] margrave_registry::OpenError),
    #[error("the remote to follow cannot be used: {0}")]
    Follow(String),
    #[error("the fleet cannot be loaded")]
    Fleet(#[from] fleet::Error),
}

/// Where a server listens, with the ports that the system chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    pub web: SocketAddr,
    pub device: SocketAddr,
    pub local: Option<SocketAddr>,
    /// Of the signed device interface, where that is switched on.
    pub signed: Option<SocketAddr>,
}

/// A running server. Dropped without [`Server::stop`], it ends abruptly, as if killed: nothing acknowledged is lost.
pub struct Server {
    addresses: Addresses,
    signed_urls: Vec<String>,
    url: String,
    pin: String,
    context: Context,
    fleet: Arc<Fleet>,
    registry: Arc<Registry>,
    sign_in: Arc<SignInCodes>,
    /// The id of the token in the context.
    own_token: String,
    stop: watch::Sender<bool>,
    listeners: JoinSet<()>,
    tasks: JoinSet<()>,
    // Last, so that the directory is free only when nothing writes there any more.
    _lock: File,
}

impl Server {
    pub async fn start(config: Config) -> Result<Server, StartError> {
        Server::start_at(config, Clock::system()).await
    }

    /// Like [`Server::start`], with a clock of the caller's. TLS asks the machine's clock all the same.
    pub async fn start_at(config: Config, clock: Clock) -> Result<Server, StartError> {
        let Config {
            data,
            listen,
            device_listen,
            device_prefix,
            signed,
            local_listen,
            names,
            trust_domain,
            wfm,
            svid_lifetime,
            registry_address,
            air_gapped,
            silent_after,
            follow,
            demo,
            drills,
        } = config;
        if let Some(follow) = &follow {
            follow.check().map_err(StartError::Follow)?;
        }
        let host = names.first().ok_or(StartError::Nameless)?.clone();
        if let Some(address) = local_listen
            && !address.ip().is_loopback()
        {
            return Err(StartError::NotLocal(address));
        }
        if let Some(signed) = &signed
            && signed.plain
            && signed.urls.is_empty()
            && !signed.listen.ip().is_loopback()
        {
            return Err(StartError::SignedPlain(signed.listen));
        }

        let files = files::raise_limit();
        // Where devices come by two doors, the older one has a quarter of the places.
        let signed_files = if signed.is_some() { files / 4 } else { 0 };
        let lock = take(&data)?;
        // Absolute, so that nothing moves when somebody changes the working directory.
        let data = data.canonicalize().map_err(data_error(&data, "found"))?;
        let store_directory = data.join("store");
        let wanted = Wanted {
            trust_domain: trust_domain.as_ref(),
            wfm: wfm.as_ref(),
            svid_lifetime,
            web_names: &names,
            fleet_exists: store_directory.exists(),
        };
        let identity = Arc::new(Identity::open(&data, clock.now(), wanted)?);

        let (web, web_address) = bind(listen, "--listen")?;
        let (device, device_address) = bind(device_listen, "--device-listen")?;
        let signed = match signed {
            Some(wanted) => {
                let (listener, address) = bind(wanted.listen, "--signed-listen")?;
                let policy = signed_policy(&wanted)?;
                let terms = signed_terms(&wanted, &names, address.port())?;
                Some((wanted, listener, address, policy, terms))
            }
            None => None,
        };
        let local = match local_listen {
            Some(address) => Some(bind(address, "--local-listen")?),
            None => None,
        };
        let local_address = local.as_ref().map(|(_, address)| *address);
        let url = format!("https://{}", authority(&host, web_address.port()));
        let pin = identity.web_authority.pin().to_string();
        let registry_address = registry_address.unwrap_or_else(|| match local_address {
            // In a demo every device is on this machine, where container engines take plain HTTP from loopback.
            Some(address) if demo.is_some() => address.to_string(),
            _ => authority(&host, web_address.port()),
        });

        make_directory(&store_directory)?;
        tighten(&store_directory)?;
        let store = Store::open(&store_directory)?;
        let registry_directory = data.join("registry");
        make_directory(&registry_directory)?;
        tighten(&registry_directory)?;
        let registry = Arc::new(Registry::open(registry_directory)?);
        let git_directory = data.join("git");
        make_directory(&git_directory)?;
        tighten(&git_directory)?;
        let options = FleetOptions {
            server_url: url.clone(),
            pin: pin.clone(),
            registry_address: registry_address.clone(),
            // A demo needs nothing from anywhere.
            air_gapped: air_gapped || demo.is_some(),
            silent_after,
            demo,
            git_directory,
            intent_directory: data.join("intent.git"),
            intent_durable: true,
            web_names: names.clone(),
            web_authority: identity.web_authority.certificate_pem(),
            naming: Naming::random(),
            vault: Vault::at(&data),
        };
        let fleet = Fleet::open(store, Arc::clone(&registry), clock.clone(), options).await?;
        let follow_every = follow.as_ref().map(|follow| follow.every);
        if let Some(follow) = follow {
            fleet.follow(follow).map_err(|error| StartError::Follow(error.to_string()))?;
        }
        let (context, own_token) = settle_context(&data, &fleet, loopback_url(web_address), &pin).await?;

        let (stop, stopping) = Stopping::new();
        let sign_in = Arc::new(SignInCodes::new(clock.clone()));
        let backups = Backups::new(&data, clock.clone()).map_err(data_error(&data, "tidied"))?;
        let backups = Arc::new(backups);
        let rotation =
            Rotation { identity: Arc::clone(&identity), fleet: Arc::clone(&fleet), clock: clock.clone() };
        let guessing = Arc::new(Guessing::default());
        let audit = Audit::new(Arc::clone(&fleet), clock.clone());
        let app = App {
            fleet: Arc::clone(&fleet),
            sign_in: Arc::clone(&sign_in),
            stopping: stopping.clone(),
            guessing: Arc::clone(&guessing),
            audit: audit.clone(),
            rotation,
            backups,
            changing: Arc::default(),
            drills,
        };
        let web_authority = identity.web_authority.certificate_pem();
        let registry_authority =
            (!is_plain(&registry_address, local_address)).then_some(web_authority.as_str());
        let registry_tokens =
            RegistryTokens::new(identity.registry_key.clone(), &registry_address, registry_authority);
        let mount = Mount {
            registry: Arc::clone(&registry),
            fleet: Arc::clone(&fleet),
            tokens: registry_tokens.clone(),
            clock: clock.clone(),
            guessing,
        };
        let identity_pages = IdentityPages {
            keys: Arc::clone(&identity),
            fleet: Arc::clone(&fleet),
            clock: clock.clone(),
            host,
            web_port: web_address.port(),
            device_port: device_address.port(),
            device_prefix: device_prefix.clone(),
            registry_address,
            guesses: Arc::new(Guesses::default()),
            joined: Arc::new(Joined::default()),
        };

        let mut listeners = JoinSet::new();
        let door = Door::Web(web_server_config(Arc::clone(&identity.web_leaf)));
        let router = http::web(&app, identity_pages, mount.clone());
        listeners.spawn(listener::serve(web, door, router, Limits::WEB.within(files), stopping.clone()));
        let tls = device_server_config(Arc::clone(&identity.svid), Arc::clone(&identity.bundle));
        let door = Door::Device { tls, identity: Arc::clone(&identity), clock: clock.clone() };
        // Of both device interfaces together: there is one memory and one disk.
        let admission = Admission::new();
        let inside = http::device::Interface::new(
            Arc::clone(&fleet),
            mount.clone(),
            Arc::clone(&admission),
            device_prefix,
        );
        listeners.spawn(listener::serve(
            device,
            door,
            inside,
            Limits::DEVICE.within(files - signed_files),
            stopping.clone(),
        ));
        if let Some((local, _)) = local {
            let router = http::local(&app, mount);
            listeners.spawn(listener::serve(
                local,
                Door::Local,
                router,
                Limits::LOCAL.within(files),
                stopping.clone(),
            ));
        }
        let mut signed_address = None;
        let mut signed_urls = Vec::new();
        if let Some((wanted, listener, address, policy, terms)) = signed {
            signed_address = Some(address);
            signed_urls = terms.external.iter().map(ToString::to_string).collect();
            tracing::warn!(
                %address,
                urls = ?signed_urls,
                plain = wanted.plain,
                accept = ?wanted.accept,
                "the signed device interface (g1) is on; it is not conformant with Margo 1.0.0-rc.3, only the \
                 interface by mutual TLS is"
            );
            let tls = (!wanted.plain).then(|| web_server_config(Arc::clone(&identity.web_leaf)));
            let inside = Signed {
                fleet: Arc::clone(&fleet),
                clock: clock.clone(),
                policy,
                terms,
                root_certificate: web_authority,
                tokens: registry_tokens,
                admission,
                kept: Mutex::new(fleet.used_signatures().await?),
            };
            let inside = http::signed::Interface::new(inside);
            let door = Door::Signed(tls);
            listeners.spawn(listener::serve(
                listener,
                door,
                inside,
                Limits::SIGNED.within(signed_files),
                stopping.clone(),
            ));
        }
        let mut tasks = tasks::start(&fleet, &registry, &identity, &clock, &stopping);
        tasks.spawn(audit.follow(stopping.clone()));
        if let Some(every) = follow_every {
            tasks::follow(&mut tasks, &fleet, every, &stopping);
        }
        let addresses = Addresses {
            web: web_address,
            device: device_address,
            local: local_address,
            signed: signed_address,
        };
        tracing::info!(server = %identity.name, ?addresses, "the server is listening");
        Ok(Server {
            addresses,
            signed_urls,
            url,
            pin,
            context,
            fleet,
            registry,
            sign_in,
            own_token,
            stop,
            listeners,
            tasks,
            _lock: lock,
        })
    }

    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The address to give to devices and people.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// The addresses that clients of the signed interface may sign, the best one first; empty when it is off.
    pub fn signed_urls(&self) -> &[String] {
        &self.signed_urls
    }

    /// What a device checks this server by on first contact.
    pub fn pin(&self) -> String {
        self.pin.clone()
    }

    /// How a command line on this machine reaches the server as its administrator; also in `DATA/context.json`.
    pub fn context(&self) -> Context {
        self.context.clone()
    }

    pub fn fleet(&self) -> Arc<Fleet> {
        Arc::clone(&self.fleet)
    }

    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry)
    }

    /// A link that signs its first visitor in to the page, for a quarter of an hour.
    pub fn sign_in_link(&self) -> String {
        let code = self.sign_in.issue(&self.own_token);
        match self.addresses.local {
            Some(local) => format!("http://{local}/welcome/{code}"),
            None => format!("{}/welcome/{code}", self.url),
        }
    }

    /// Lets requests finish, writes what is still in memory, and gives the data directory free.
    pub async fn stop(mut self) {
        // Nobody listening any more is as stopped as it gets.
        self.stop.send(true).unwrap_or_default();
        while let Some(ended) = self.listeners.join_next().await {
            log_panic(ended);
        }
        while let Some(ended) = self.tasks.join_next().await {
            log_panic(ended);
        }
        let written = async {
            self.fleet.flush_contacts().await?;
            self.fleet.is_alive().await
        };
        if let Err(error) = written.await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the last contacts could not be written"
            );
        }
    }

    /// Ends when the server cannot go on by itself: a listener or task broke. It should be stopped then.
    pub async fn stopped(&mut self) {
        let ended = tokio::select! {
            ended = self.listeners.join_next() => ended,
            ended = self.tasks.join_next() => ended,
        };
        if let Some(ended) = ended {
            log_panic(ended);
        }
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(error = &error as &dyn std::error::Error, "a part of the server broke");
    }
}

/// Who is let in to sign requests.
fn signed_policy(wanted: &SignedConfig) -> Result<SignedPolicy, StartError> {
    let roots = match &wanted.trust {
        None => None,
        Some(path) => {
            let text = fs::read_to_string(path).map_err(data_error(path, "read"))?;
            let failed = |source| StartError::SignedTrust { path: path.clone(), source: Box::new(source) };
            Some(Roots::from_pem(&text).map_err(failed)?)
        }
    };
    Ok(SignedPolicy { accept: wanted.accept, roots })
}

/// What signatures are judged by. Without an address of its own the listener is known by the server's names.
fn signed_terms(wanted: &SignedConfig, names: &[String], port: u16) -> Result<Terms, StartError> {
    let own = || names.iter().map(|name| format!("https://{}", authority(name, port))).collect();
    let urls = if wanted.urls.is_empty() { own() } else { wanted.urls.clone() };
    let external: Result<_, _> = urls.iter().map(|url| ExternalUrl::parse(url)).collect();
    Ok(Terms {
        external: external.map_err(StartError::SignedUrl)?,
        window: wanted.window,
        unsigned_onboarding: wanted.unsigned_onboarding,
        ..Terms::default()
    })
}

/// Makes the directory if need be and keeps other servers out of it.
fn take(data: &Path) -> Result<File, StartError> {
    make_directory(data)?;
    if backup::is_unfinished(data) {
        return Err(StartError::Unrestored(data.to_owned()));
    }
    let path = data.join("lock");
    // What was restored has a database, and had no server yet.
    if path.exists() || data.join(DATABASE).exists() || is_empty(data)? {
        tighten(data)?;
    } else {
        // Somebody's home, perhaps: what is theirs stays as they set it. What is secret has its own directories.
        tracing::warn!(path = %data.display(), "the data directory has files of others; its permissions are left as they are");
    }
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(data_error(&path, "opened"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StartError::InUse(data.to_owned())),
        Err(TryLockError::Error(source)) => Err(data_error(&path, "locked")(source)),
    }
}

fn make_directory(path: &Path) -> Result<(), StartError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(data_error(path, "made"))
}

fn is_empty(path: &Path) -> Result<bool, StartError> {
    Ok(fs::read_dir(path).map_err(data_error(path, "read"))?.next().is_none())
}

/// Closes a directory to everybody but us; one that was made by hand, or by an older umask, is often open.
fn tighten(path: &Path) -> Result<(), StartError> {
    let mode = fs::metadata(path).map_err(data_error(path, "read"))?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700))
            .map_err(data_error(path, "closed to others"))?;
    }
    Ok(())
}

fn data_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> StartError {
    let path = path.to_owned();
    move |source| StartError::Data { path, doing, source }
}

fn bind(address: SocketAddr, option: &'static str) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => StartError::PortTaken { address, option },
        _ => StartError::Listen { address, option, source },
    };
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(failed)?;
    // A restart must not wait for the connections of the process before.
    socket.set_reuseaddr(true).map_err(failed)?;
    socket.bind(address).map_err(failed)?;
    let listener = socket.listen(listener::BACKLOG).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// The address of a listener as this machine itself reaches it: names may not resolve here, loopback does.
fn loopback_url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("https://{}", SocketAddr::new(ip, address.port()))
}

/// Whether this address of the registry is the listener without TLS.
fn is_plain(registry_address: &str, local: Option<SocketAddr>) -> bool {
    let Ok(host) = Host::parse(registry_address) else { return false };
    host.is_loopback() && host.port().is_some() && host.port() == local.map(|local| local.port())
}

/// The administrator's context, and its token's id: the one in the data directory as long as its token works, else a
/// new one.
async fn settle_context(
    data: &Path,
    fleet: &Fleet,
    url: String,
    pin: &str,
) -> Result<(Context, String), StartError> {
    let path = data.join("context.json");
    let known: Option<Context> = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let admin = async |token: String| {
        let holder =
            fleet.operator_by_token(&token).await.ok().filter(|holder| holder.role == Role::Admin)?;
        Some((token, holder.token))
    };
    let kept = match known {
        Some(known) => admin(known.token).await,
        None => None,
    };
    let (token, id) = match kept {
        Some(kept) => kept,
        // Never there, lost, spoilt, expired or withdrawn: whoever can write here owns the server anyway. Whoever found
        // the lost one does not, so it is void from now on.
        None => {
            let token = fleet.replace_own_token(ADMIN).await?;
            admin(token).await.ok_or(fleet::Error::TokenUnknown)?
        }
    };
    let context = Context { url, pin: Some(pin.to_owned()), token };
    let bytes = serde_json::to_vec_pretty(&context).expect("three texts always serialise");
    replace_private(&path, &bytes).map_err(data_error(&path, "written"))?;
    Ok((context, id))
}

/// Replaces a file that only we may read, whole or not at all.
pub(crate) fn replace_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)
}
