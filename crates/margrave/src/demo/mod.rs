//! A whole plant on one machine: server, devices and sample packages, started and taken away together.
//!
//! Nothing here is a mock: the server is the server, devices join it with tokens and speak to it over mutual
//! TLS, packages are pushed and added as a vendor would. Only where no container engine answers, the devices'
//! runtime is the simulated one, and everything says so.
//!
//! `mod.rs` starts and ends it in order; `devices.rs` is the plant, `member.rs` one of its devices, `engine.rs` finds out what can run here
//! and leaves nothing of the demo behind there, `image.rs` makes the one image that all samples use.

mod devices;
mod elf;
mod engine;
pub(crate) mod image;
mod member;
mod samples;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use margrave_server::drill::Drills;
use margrave_server::{Config, Server, SignedConfig, StartError};

pub(crate) use self::devices::Plan;
use self::devices::Plant;
use self::engine::{Choice, Containers};
use crate::client::Client;
use crate::commands::package;
use crate::commands::serve::quoted;
use crate::exit::{Result, Trouble, chain};
use crate::render::{Screen, count};

/// What was asked for.
pub(crate) struct Wanted {
    /// Kept by the caller; `None` is a directory that goes with the demo.
    pub(crate) data: Option<PathBuf>,
    pub(crate) devices: u16,
    pub(crate) simulated: bool,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) device_listen: Option<SocketAddr>,
    pub(crate) local_listen: Option<SocketAddr>,
    pub(crate) signed_listen: Option<SocketAddr>,
}

/// A running demo.
pub(crate) struct Demo {
    pub(crate) server: Server,
    pub(crate) plan: Vec<Plan>,
    /// What is real and what is not, in a sentence.
    pub(crate) text: String,
    /// Why nothing is real, if so.
    pub(crate) simulated: Option<String>,
    pub(crate) context_file: PathBuf,
    pub(crate) samples: PathBuf,
    /// Ports that were taken, and what was used instead.
    pub(crate) moved: Vec<String>,
    pub(crate) took: Duration,
    plant: Plant,
    containers: Option<Containers>,
    data: Data,
}

impl Demo {
    pub(crate) async fn start(screen: &Screen, wanted: Wanted) -> Result<Demo> {
        let begun = Instant::now();
        let data = Data::make(wanted.data.as_deref())?;
        let choice = match wanted.simulated {
            true => Choice::Simulated("--simulated was given".to_owned()),
            false => engine::choose(data.path()).await,
        };
        // Devices that joined in an earlier run know the server by the addresses of that run.
        let before = Addresses::read(data.path())?;
        let ports = Ports {
            listen: Port::new(wanted.listen.or(before.map(|before| before.web)), 8443),
            device: Port::new(wanted.device_listen.or(before.map(|before| before.device)), 8444),
            local: Port::new(wanted.local_listen.or(before.map(|before| before.local)), 8480),
            signed: wanted.signed_listen,
        };
        let plan = devices::plan(wanted.devices);
        let started = Demo::start_with(&data, choice, ports, &plan).await;
        let Started { server, choice, moved, plant } = match started {
            Ok(started) => started,
            Err(trouble) => {
                data.remove(screen);
                return Err(trouble);
            }
        };
        let context_file = data.path().join("context.json");
        if let Err(trouble) = Addresses::of(&server).and_then(|addresses| addresses.write(data.path())) {
            screen.words(format_args!(
                "{}; the next run with this directory may need the same ports",
                trouble.message()
            ));
        }
        let (containers, simulated) = match choice {
            Choice::Containers(containers) => (Some(containers), None),
            Choice::Simulated(why) => (None, Some(why)),
        };
        Ok(Demo {
            text: text(plan.len(), containers.as_ref(), simulated.as_deref()),
            samples: data.path().join("samples"),
            server,
            plan,
            simulated,
            context_file,
            moved,
            took: begun.elapsed(),
            plant,
            containers,
            data,
        })
    }

    async fn start_with(data: &Data, mut choice: Choice, ports: Ports, plan: &[Plan]) -> Result<Started> {
        let (drills, asked) = Drills::new(plan.iter().map(|device| device.name.clone()).collect());
        let (mut server, mut moved) = open(data, &choice, ports, &drills, plan.len()).await?;
        data.mark()?;
        if let Choice::Containers(containers) = &choice {
            // What the engine cannot fetch from here it cannot run: then it is better to know now.
            let fetched = prepare_image(&server, containers).await;
            if let Err(why) = fetched {
                choice = Choice::Simulated(why);
                let addresses = server.addresses();
                server.stop().await;
                let again = |address: Option<SocketAddr>| Port {
                    address: address.expect("it listened there"),
                    fixed: true,
                };
                let ports = Ports {
                    listen: again(Some(addresses.web)),
                    device: again(Some(addresses.device)),
                    local: again(addresses.local),
                    signed: addresses.signed,
                };
                let (simulated, _) = open(data, &choice, ports, &drills, plan.len()).await?;
                server = simulated;
            }
        }
        moved.sort();
        let (plant, added) = tokio::join!(
            Plant::start(&server, data.path(), plan, &choice),
            add_samples(&server, data.path()),
        );
        let trouble = match (plant, added) {
            (Ok(mut plant), Ok(())) => {
                plant.take_drills(server.fleet(), asked);
                return Ok(Started { server, choice, moved, plant });
            }
            (Ok(plant), Err(trouble)) => {
                plant.stop().await;
                trouble
            }
            (Err(trouble), _) => trouble,
        };
        // Nothing was deployed yet, but the engine has fetched the image. The trouble at hand is the one to tell.
        if let Choice::Containers(containers) = &choice {
            let _left = containers.clear(&[]).await;
        }
        server.stop().await;
        Err(trouble)
    }

    /// Removes what the demo installed, stops devices and server, and removes its directory unless it is to be kept;
    /// says where that is.
    pub(crate) async fn end(self, screen: &Screen) -> Result<Option<PathBuf>> {
        let Demo { server, plant, containers, data, .. } = self;
        let kept = data.kept().map(Path::to_owned);
        let runtimes = plant.stop().await;
        let left = match &containers {
            Some(containers) => containers.clear(&runtimes).await,
            None => Vec::new(),
        };
        server.stop().await;
        data.remove(screen);
        if left.is_empty() {
            return Ok(kept);
        }
        Err(Trouble::broke(format!("not everything could be removed: {}", left.join("; ")))
            .hint(format!("`docker ps --all --filter label={}` shows what is left", engine::LABEL_AGENT)))
    }
}

struct Started {
    server: Server,
    choice: Choice,
    moved: Vec<String>,
    plant: Plant,
}

fn text(devices: usize, containers: Option<&Containers>, simulated: Option<&str>) -> String {
    let devices = count(devices as u64, "device");
    match (containers, simulated) {
        (Some(containers), _) => {
            format!("Demo: {devices} with real containers, on {}.", containers.description)
        }
        (None, why) => {
            let why = why.unwrap_or("no container engine was looked for");
            // The first sentence says why; the rest is for whoever wants to change it, and is on the terminal.
            let why = why.split(". ").next().unwrap_or(why).trim_end_matches('.');
            format!("Demo: {devices}, all simulated; nothing really runs ({why}).")
        }
    }
}

/// Where the server of an earlier run listened, for the next one with the same directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Addresses {
    web: SocketAddr,
    device: SocketAddr,
    local: SocketAddr,
}

impl Addresses {
    fn file(data: &Path) -> PathBuf {
        data.join("addresses.json")
    }

    fn of(server: &Server) -> Result<Addresses> {
        let margrave_server::Addresses { web, device, local, .. } = server.addresses();
        let local = local.ok_or_else(|| Trouble::broke("the demo's local listener is missing"))?;
        Ok(Addresses { web, device, local })
    }

    fn read(data: &Path) -> Result<Option<Addresses>> {
        let file = Addresses::file(data);
        let failed = |error: &(dyn std::error::Error + 'static)| {
            Trouble::because(format!("{} cannot be read", file.display()), error)
                .hint("remove it to begin with the usual ports, or give another --data directory")
        };
        match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(&error)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    fn write(&self, data: &Path) -> Result<()> {
        let file = Addresses::file(data);
        let text = serde_json::to_vec(self).expect("three addresses always serialise");
        std::fs::write(&file, text)
            .map_err(|error| Trouble::because(format!("{} cannot be written", file.display()), &error))
    }
}

/// A port to listen at, which may give way unless somebody asked for it.
#[derive(Debug, Clone, Copy)]
struct Port {
    address: SocketAddr,
    fixed: bool,
}

impl Port {
    fn new(wanted: Option<SocketAddr>, usual: u16) -> Port {
        match wanted {
            Some(address) => Port { address, fixed: true },
            None => Port { address: SocketAddr::from((Ipv4Addr::LOCALHOST, usual)), fixed: false },
        }
    }
}

struct Ports {
    listen: Port,
    device: Port,
    local: Port,
    /// Never moved: it is there only if somebody asked for it.
    signed: Option<SocketAddr>,
}

/// Starts the server; a usual port that is taken is replaced by a free one.
async fn open(
    data: &Data,
    choice: &Choice,
    mut ports: Ports,
    drills: &Drills,
    devices: usize,
) -> Result<(Server, Vec<String>)> {
    let mut moved = Vec::new();
    loop {
        let mut config = Config::new(data.path());
        config.listen = ports.listen.address;
        config.device_listen = ports.device.address;
        config.local_listen = Some(ports.local.address);
        config.signed = ports.signed.map(SignedConfig::new);
        // By address, because a name may lead elsewhere, and everything here is on this machine.
        config.names = ["127.0.0.1", "localhost", "::1"].map(str::to_owned).to_vec();
        config.demo = Some(match choice {
            Choice::Containers(containers) => text(devices, Some(containers), None),
            Choice::Simulated(why) => text(devices, None, Some(why)),
        });
        config.drills = Some(drills.clone());
        let error = match Server::start(config).await {
            Ok(server) => return Ok((server, moved)),
            Err(error) => error,
        };
        let port = match &error {
            StartError::PortTaken { option, .. } => match *option {
                "--listen" => &mut ports.listen,
                "--device-listen" => &mut ports.device,
                "--local-listen" => &mut ports.local,
                _ => return Err(Trouble::because("the demo's server did not start", &error)),
            },
            _ => return Err(Trouble::because("the demo's server did not start", &error)),
        };
        // A port that the system chose cannot be taken, so this comes to an end.
        if port.fixed || port.address.port() == 0 {
            return Err(Trouble::because("the demo's server did not start", &error));
        }
        moved.push(format!("port {} is taken, a free one is used instead", port.address.port()));
        port.address.set_port(0);
    }
}

/// Puts the samples' image into the registry and has the engine fetch it; an error says why it cannot be used.
async fn prepare_image(server: &Server, containers: &Containers) -> std::result::Result<(), String> {
    image::publish(&server.registry()).await.map_err(|error| {
        let cause = std::error::Error::source(&error);
        cause.map_or_else(|| error.to_string(), |cause| chain(error.to_string(), cause))
    })?;
    let local = server.addresses().local.ok_or("the demo's local listener is missing")?;
    containers.fetch(&format!("{local}/{}:{}", image::REPOSITORY, image::TAG), &server.context().token).await
}

/// Writes the samples where a person can look at them, and adds them as `margrave package add` does.
async fn add_samples(server: &Server, data: &Path) -> Result<()> {
    let client = Client::new(&server.context())?;
    let parent = data.join("samples");
    let known = client.packages().await?;
    for sample in &samples::SAMPLES {
        let folder = sample.write(&parent).map_err(|error| {
            Trouble::because(format!("the sample {} cannot be written", sample.id), &error)
        })?;
        // A demo that is continued has them already.
        if !known.iter().any(|package| package.id == sample.id) {
            package::publish(&client, &folder, &mut |_| {}).await?;
        }
    }
    Ok(())
}

/// Tells a demo's directory from a server's.
const MARK: &str = "demo";

/// The demo's directory.
struct Data {
    path: PathBuf,
    temporary: bool,
}

impl Data {
    fn make(wanted: Option<&Path>) -> Result<Data> {
        use std::os::unix::fs::DirBuilderExt as _;
        let (path, temporary) = match wanted {
            Some(path) => (path.to_owned(), false),
            None => {
                (std::env::temp_dir().join(format!("margrave-demo-{}", uuid::Uuid::new_v4().simple())), true)
            }
        };
        let made = std::fs::DirBuilder::new().recursive(!temporary).mode(0o700).create(&path);
        let failed = |error: std::io::Error| {
            Trouble::because(format!("the directory {} cannot be made", path.display()), &error)
        };
        made.map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        // Demos of before left only their addresses.
        let is_demo = path.join(MARK).exists() || Addresses::file(&path).exists();
        if path.join("identity").exists() && !is_demo {
            return Err(Trouble::broke(format!(
                "{} is the directory of a server, not of a demo",
                path.display()
            ))
            .hint(format!(
                "start that server with `margrave serve --data {}`, or give the demo another directory",
                quoted(&path.display().to_string())
            )));
        }
        Ok(Data { path, temporary })
    }

    /// Once a server is in it: an empty directory is taken by a server as its own, one with a mark is not.
    fn mark(&self) -> Result<()> {
        std::fs::write(self.path.join(MARK), "").map_err(|error| {
            Trouble::because(format!("{} cannot be written to", self.path.display()), &error)
        })
    }

    /// Where it is, unless it goes with the demo.
    fn kept(&self) -> Option<&Path> {
        (!self.temporary).then_some(&self.path)
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn remove(self, screen: &Screen) {
        if !self.temporary {
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            screen.words(format_args!("{} could not be removed: {error}", self.path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continued_demo_listens_where_its_devices_know_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Addresses::read(dir.path()).unwrap(), None);
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let addresses = Addresses { web: address(1), device: address(2), local: address(3) };
        addresses.write(dir.path()).unwrap();
        assert_eq!(Addresses::read(dir.path()).unwrap(), Some(addresses));
        std::fs::write(Addresses::file(dir.path()), "{").unwrap();
        assert!(Addresses::read(dir.path()).unwrap_err().hinted().is_some());
    }

    #[test]
    fn the_directory_of_a_server_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("identity")).unwrap();
        let trouble = Data::make(Some(dir.path())).map(drop).unwrap_err();
        assert!(trouble.message().contains("of a server"), "{}", trouble.message());
        assert!(!dir.path().join(MARK).exists());
    }

    #[test]
    fn only_the_usual_ports_give_way() {
        assert!(!Port::new(None, 8443).fixed);
        assert!(Port::new(Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9443))), 8443).fixed);
    }

    #[test]
    fn what_is_simulated_is_called_so_and_why() {
        let text = text(6, None, Some("no engine answers. Start one."));
        assert_eq!(text, "Demo: 6 devices, all simulated; nothing really runs (no engine answers).");
    }

    #[test]
    fn a_temporary_directory_goes_and_a_given_one_stays() {
        let screen = Screen::new(false);
        let data = Data::make(None).unwrap();
        let path = data.path().to_owned();
        assert!(path.is_dir());
        data.remove(&screen);
        assert!(!path.exists());

        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let data = Data::make(Some(dir.path())).unwrap();
            assert!(data.kept().is_some());
            std::fs::create_dir_all(dir.path().join("identity")).unwrap();
            data.mark().unwrap();
            data.remove(&screen);
        }
        assert!(dir.path().exists());
    }
}
