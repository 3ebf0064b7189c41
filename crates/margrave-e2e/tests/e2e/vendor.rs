//! Puts packages and components into any registry, as their vendor would: well made, or not at all.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use margrave_core::digest::Digest;
use margrave_http::Origin;
use margrave_oci::client::{Client, Endpoint, Hosts, Tls};
use margrave_oci::compose::{COMPOSE_LAYER_TYPE, COMPOSE_TYPE};
use margrave_oci::manifest::{Descriptor, EMPTY_CONFIG, IMAGE_MANIFEST, ImageManifest};
use margrave_oci::package::PackageFiles;
use margrave_oci::reference::{Host, Reference, Repository};

/// Somebody who may push to one registry.
pub(crate) struct Vendor {
    host: String,
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Vendor {
    /// To the registry of a server of ours.
    pub(crate) fn of_server(port: u16, token: &str) -> Self {
        let origin = Origin::parse(&format!("http://127.0.0.1:{port}")).expect("an address");
        let endpoint = Endpoint::new(origin, Tls::PlainLoopback).with_credentials("operator", token);
        Self::new("margrave", Hosts::new().with(Host::parse("margrave").expect("a host"), endpoint))
    }

    /// To any registry of this machine.
    pub(crate) fn of_registry(port: u16) -> Self {
        Self::new(&format!("127.0.0.1:{port}"), Hosts::new())
    }

    /// To a registry that is opened as `hosts` say.
    pub(crate) fn new(host: &str, hosts: Hosts) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Vendor { host: host.to_owned(), client: Client::new(hosts), runtime }
    }

    /// The repository as packages and commands name it.
    pub(crate) fn repository(&self, name: &str) -> String {
        format!("oci://{}/{name}", self.host)
    }

    pub(crate) fn push_component(&self, name: &str, tag: &str, archive: &[u8]) -> Digest {
        let layer = Descriptor::of(COMPOSE_LAYER_TYPE, archive);
        self.push(name, tag, &ImageManifest::artifact(COMPOSE_TYPE, vec![layer]), archive)
    }

    pub(crate) fn push_package(&self, name: &str, tag: &str, description: &str) -> Digest {
        let files = PackageFiles::new(Bytes::from(description.to_owned()), vec![]).expect("a package");
        self.push(name, tag, &files.manifest(), description.as_bytes())
    }

    fn push(&self, name: &str, tag: &str, manifest: &ImageManifest, layer: &[u8]) -> Digest {
        let repository = Repository::parse(&self.repository(name)).expect("a repository");
        let reference = Reference::parse(&format!("{}:{tag}", self.repository(name))).expect("a reference");
        let push = async {
            self.client.push_blob(&repository, Bytes::copy_from_slice(layer)).await?;
            self.client.push_blob(&repository, Bytes::from_static(EMPTY_CONFIG)).await?;
            self.client.push_manifest(&reference, IMAGE_MANIFEST, manifest.to_bytes().into()).await
        };
        self.runtime.block_on(push).expect("the registry takes it")
    }
}

/// A description of one component.
pub(crate) fn description(id: &str, version: &str, repository: &str, revision: &str) -> String {
    format!(
        "apiVersion: v1\nid: {id}\nmetadata:\n  name: {id}\n  version: \"{version}\"\n  catalog:\n    organization:\n      - name: Margrave tests\ndeploymentProfiles:\n  - type: compose\n    id: {id}-compose\n    components:\n      - name: main\n        properties:\n          repository: {repository}\n          revision: {revision}\n          timeout: 1m0s\n"
    )
}

/// One thing in an archive.
pub(crate) enum Item<'a> {
    Directory(&'a str),
    File(&'a str, &'a [u8]),
    Symlink(&'a str, &'a str),
    HardLink(&'a str, &'a str),
    Fifo(&'a str),
}

pub(crate) const COMPOSE: Item<'static> =
    Item::File("main/compose.yaml", b"services:\n  main:\n    image: none\n");

/// A Compose archive with exactly these things in it, whatever they are.
pub(crate) fn archive(items: &[Item<'_>]) -> Vec<u8> {
    let mut tar = Vec::new();
    for item in items {
        let (path, kind, content, link): (_, _, &[u8], _) = match item {
            Item::Directory(path) => (path, tar::EntryType::Directory, &[], ""),
            Item::File(path, content) => (path, tar::EntryType::Regular, content, ""),
            Item::Symlink(path, link) => (path, tar::EntryType::Symlink, &[], *link),
            Item::HardLink(path, link) => (path, tar::EntryType::Link, &[], *link),
            Item::Fifo(path) => (path, tar::EntryType::Fifo, &[], ""),
        };
        let mut header = tar::Header::new_old();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        // Written by hand, because the library refuses such names.
        let old = header.as_old_mut();
        old.name[..path.len()].copy_from_slice(path.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        tar.extend(header.as_bytes());
        tar.extend(content);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.extend([0; 1024]);
    gzip(&tar)
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).and_then(|()| gzip.finish()).expect("memory takes every write")
}
