//! A server on ports of its own, which it keeps when it is restarted, and a package to deploy.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use margrave_http::{Request, Trust};
use margrave_identity::pin::Pin;
use margrave_identity::tls::pinned_client_config;
use margrave_oci::compose::ComposeArchive;
use margrave_oci::manifest::{EMPTY_CONFIG, IMAGE_MANIFEST, ImageManifest};
use margrave_oci::package::PackageFiles;
use margrave_oci::reference::{RepositoryName, Tag, TagOrDigest};
use margrave_server::{Config, Server};
use margrave_simulate::fleet::Fleet;
use margrave_simulate::operator::Operator;
use margrave_simulate::tally::Look;
use margrave_wire::operator::{AddPackage, Deployment, PREFIX, PutDeployment, Targets};
use tempfile::TempDir;

/// For anything that must happen; far more than it takes.
const DEADLINE: Duration = Duration::from_secs(60);

const DESCRIPTION: &str = "
apiVersion: v1
id: probe
metadata:
  name: Probe
  version: 1.0.0
  catalog:
    organization:
      - name: Margrave tests
deploymentProfiles:
  - type: compose
    id: probe-compose
    components:
      - name: main
        properties:
          repository: oci://margrave/components/probe
          revision: 1.0.0
parameters:
  greeting:
    value: hello
    targets: [{pointer: GREETING, components: [main]}]
configuration:
  sections:
    - name: General
      settings:
        - {parameter: greeting, name: Greeting, schema: text}
  schema:
    - {name: text, dataType: string}
";

pub(crate) struct Plant {
    pub(crate) data: TempDir,
    config: Config,
    server: Option<Server>,
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Plant {
    pub(crate) async fn new() -> Plant {
        Plant::with_lifetime(Duration::from_secs(3600)).await
    }

    pub(crate) async fn with_lifetime(svid_lifetime: Duration) -> Plant {
        let data = tempfile::tempdir().unwrap();
        let config = Config {
            listen: free_address(),
            device_listen: free_address(),
            names: vec!["127.0.0.1".to_owned()],
            svid_lifetime,
            air_gapped: true,
            ..Config::new(data.path().join("server"))
        };
        let mut plant = Plant { data, config, server: None };
        plant.start().await;
        plant
    }

    pub(crate) async fn start(&mut self) {
        self.server = Some(Server::start(self.config.clone()).await.unwrap());
    }

    pub(crate) async fn stop(&mut self) {
        self.server.take().unwrap().stop().await;
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    pub(crate) fn device_address(&self) -> SocketAddr {
        self.server().addresses().device
    }

    pub(crate) fn operator(&self) -> Operator {
        let trust = Trust::Tls(pinned_client_config(vec![Pin::parse(&self.server().pin()).unwrap()]));
        Operator::new(self.server().context(), trust).unwrap()
    }

    /// The package `probe` at 1.0.0, in the catalog.
    pub(crate) async fn add_package(&self) {
        let component = tempfile::tempdir().unwrap();
        fs::write(component.path().join("compose.yaml"), "services:\n  main:\n    image: probe:1\n").unwrap();
        let archive = ComposeArchive::build(component.path(), "probe").unwrap();
        let manifest = archive.manifest("probe", "1.0.0");
        self.push("components/probe", &manifest, vec![archive.bytes().clone()]).await;
        let files = PackageFiles::new(Bytes::from_static(DESCRIPTION.as_bytes()), vec![]).unwrap();
        self.push("packages/probe", &files.manifest(), vec![files.description().clone()]).await;
        let want = AddPackage { reference: "oci://margrave/packages/probe:1.0.0".to_owned() };
        let request = Request::post(format!("{PREFIX}/packages")).json(&want);
        self.operator().send(request).await.unwrap();
    }

    async fn push(&self, name: &str, manifest: &ImageManifest, blobs: Vec<Bytes>) {
        let name = RepositoryName::parse(name).unwrap();
        let registry = self.server().registry();
        for blob in blobs.into_iter().chain([Bytes::from_static(EMPTY_CONFIG)]) {
            registry.put_blob(&name, blob).await.unwrap();
        }
        let tag = TagOrDigest::Tag(Tag::parse("1.0.0").unwrap());
        registry.put_manifest(&name, &tag, IMAGE_MANIFEST, manifest.to_bytes().into()).await.unwrap();
    }

    pub(crate) async fn deploy(&self, greeting: &str, label: (&str, &str)) -> Deployment {
        let want = PutDeployment {
            package: "probe".to_owned(),
            version: None,
            profile: None,
            parameters: [("greeting".to_owned(), greeting.into())].into(),
            targets: Targets {
                devices: vec![],
                labels: [(label.0.to_owned(), label.1.to_owned())].into(),
                ..Default::default()
            },
            rollback: None,
            strategy: None,
            revision: None,
            ..Default::default()
        };
        let request = Request::put(format!("{PREFIX}/deployments/probe")).json(&want);
        self.operator().ask(request).await.unwrap()
    }

    /// Waits until so many assignments are as wanted, and nothing else is left.
    pub(crate) async fn converges(&self, count: u64) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let path = format!("{PREFIX}/deployments/probe");
            let seen: Deployment = self.operator().ask(Request::get(path)).await.unwrap();
            if seen.counts.converged == count && seen.counts.total == count {
                return;
            }
            assert!(Instant::now() < deadline, "{:?}", seen.counts);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Waits until the fleet's tally says so.
pub(crate) async fn until(fleet: &Fleet, what: &str, so: impl Fn(&Look) -> bool) -> Look {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let look = fleet.tally().look();
        if so(&look) {
            return look;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}: {look:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
