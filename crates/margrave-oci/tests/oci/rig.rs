//! What the tests share: a registry of ours on a socket, Debian's, and a server that does what a test says.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use margrave_http::Origin;
use margrave_oci::client::{Client, Endpoint, Hosts, Tls};
use margrave_oci::reference::{Host, Reference, Repository};
use margrave_registry::{Access, Credentials, Decision, Registry, router};
use tempfile::TempDir;

pub(crate) const USER: &str = "operator";
pub(crate) const PASSWORD: &str = "opensesame";
/// The password above, as `htpasswd -B` would write it.
const HTPASSWD: &str = "operator:$2b$05$HZ0Tdm.Krnz8bSlF6JLMWeqczzBhhBCczw9PUpoE0LWJadP8EvGey\n";

/// A registry, and how to reach it under the name `margrave`.
pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    process: Option<Child>,
    _dir: TempDir,
}

impl Rig {
    pub(crate) async fn ours() -> Rig {
        Rig::ours_with(|_: &http::request::Parts, _, _: Option<&_>| Decision::Allow).await
    }

    pub(crate) async fn ours_with_password() -> Rig {
        Rig::ours_with(|request: &http::request::Parts, _, _: Option<&_>| {
            match Credentials::of(&request.headers) {
                Some(Credentials { user, password }) if user == USER && password == PASSWORD => {
                    Decision::Allow
                }
                _ => Decision::Authenticate,
            }
        })
        .await
    }

    async fn ours_with(access: impl Access) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let address = serve(router(registry, access)).await;
        Rig { address, process: None, _dir: dir }
    }

    /// Debian's `docker-registry`, if it is here.
    pub(crate) async fn debian(password: bool) -> Option<Rig> {
        Rig::debian_with(|directory| {
            if !password {
                return String::new();
            }
            std::fs::write(directory.join("htpasswd"), HTPASSWD).unwrap();
            format!("auth:\n  htpasswd:\n    realm: test\n    path: {}/htpasswd\n", directory.display())
        })
        .await
    }

    /// The same, with more in its configuration; what belongs under `http:` comes first, indented.
    pub(crate) async fn debian_with(more: impl Fn(&Path) -> String) -> Option<Rig> {
        let program = Path::new("/usr/bin/docker-registry");
        if !present("docker-registry", program.is_file()) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        // It cannot tell which port it took, so one is looked for; whoever takes it meanwhile makes the next try.
        for _ in 0..10 {
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let root = dir.path().display();
            let mut config = format!(
                "version: 0.1\nlog:\n  level: error\nstorage:\n  delete:\n    enabled: true\n  filesystem:\n    rootdirectory: {root}/data\nhttp:\n  addr: 127.0.0.1:{port}\n"
            );
            config.push_str(&more(dir.path()));
            std::fs::write(dir.path().join("config.yaml"), config).unwrap();
            let mut process = Command::new(program)
                .arg("serve")
                .arg(dir.path().join("config.yaml"))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let deadline = Instant::now() + Duration::from_secs(20);
            loop {
                if process.try_wait().unwrap().is_some() {
                    break;
                }
                if tokio::net::TcpStream::connect(address).await.is_ok() {
                    return Some(Rig { address, process: Some(process), _dir: dir });
                }
                assert!(Instant::now() < deadline, "docker-registry does not answer");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        panic!("docker-registry does not start");
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(hosts(self.address, None))
    }

    pub(crate) fn client_as(&self, user: &str, password: &str) -> Client {
        Client::new(hosts(self.address, Some((user, password))))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill().expect("the registry can be stopped");
            process.wait().expect("the registry has stopped");
        }
    }
}

pub(crate) fn hosts(address: SocketAddr, credentials: Option<(&str, &str)>) -> Hosts {
    let origin = Origin::parse(&format!("http://{address}")).unwrap();
    let mut endpoint = Endpoint::new(origin, Tls::PlainLoopback);
    if let Some((user, password)) = credentials {
        endpoint = endpoint.with_credentials(user, password);
    }
    Hosts::new().with(Host::parse("margrave").unwrap(), endpoint)
}

pub(crate) async fn serve(router: axum::Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, router).into_future());
    address
}

pub(crate) fn reference(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

pub(crate) fn repository(text: &str) -> Repository {
    Repository::parse(text).unwrap()
}

/// Whether a real part is here. Missing: said aloud, and red where everything must be there.
pub(crate) fn present(part: &str, found: bool) -> bool {
    #[allow(clippy::print_stderr)]
    if !found {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{part} is missing, and CI must have it");
        eprintln!("SKIPPED: {part} is not installed here");
    }
    found
}
