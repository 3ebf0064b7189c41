//! The image of the sample services, made of this very program: no download, no build tool, no Internet.
//!
//! One uncompressed layer with our executable and, unless it is static, the loader and the libraries that
//! this process has loaded itself. Uncompressed, because it travels over loopback only, and because the
//! layer's digest then is what the configuration wants to know about it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;
use margrave_oci::manifest::{Annotations, Descriptor, IMAGE_MANIFEST, ImageManifest};
use margrave_oci::reference::{RepositoryName, Tag, TagOrDigest};
use margrave_registry::{Registry, RegistryError};
use serde_json::json;

use super::elf::Elf;

/// As the samples' compose files name it, behind `${MARGRAVE_REGISTRY}/`.
pub(crate) const REPOSITORY: &str = "samples/margrave";
pub(crate) const TAG: &str = "1.0.0";

const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

const PROGRAM: &str = "margrave";
/// A directory of our own, so that libraries are found whatever the loader's built-in paths are.
const LIBRARIES: &str = "usr/lib/margrave";
/// Nobody: the samples need no rights at all.
const USER: u64 = 65_534;

/// Why the image could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("this program cannot be read in order to put it into an image")]
    Read(#[source] io::Error),
    #[error("containers need Linux on amd64 or arm64, this is {0}")]
    Platform(&'static str),
    #[error("the image cannot be stored in the built-in registry")]
    Store(#[source] RegistryError),
}

/// Makes the image and puts it into the registry.
pub(crate) async fn publish(registry: &Registry) -> Result<(), ImageError> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => return Err(ImageError::Platform(other)),
    };
    let layer = Layer::of_this_program().map_err(ImageError::Read)?;
    let name = RepositoryName::parse(REPOSITORY).expect("a repository name");
    let size = layer.size();
    let digest = registry.put_blob_from(&name, layer.into_reader()).await.map_err(ImageError::Store)?;
    let config = config(architecture, &digest.to_string());
    registry.put_blob(&name, Bytes::from(config.clone())).await.map_err(ImageError::Store)?;
    let manifest = ImageManifest {
        schema_version: 2,
        media_type: Some(IMAGE_MANIFEST.to_owned()),
        artifact_type: None,
        config: Descriptor::of(CONFIG_TYPE, &config),
        layers: vec![Descriptor::new(LAYER_TYPE, digest, size)],
        subject: None,
        annotations: Annotations::new(),
    };
    let tag = TagOrDigest::Tag(Tag::parse(TAG).expect("a tag"));
    registry
        .put_manifest(&name, &tag, IMAGE_MANIFEST, Bytes::from(manifest.to_bytes()))
        .await
        .map_err(ImageError::Store)?;
    Ok(())
}

fn config(architecture: &str, layer: &str) -> Vec<u8> {
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": [format!("LD_LIBRARY_PATH=/{LIBRARIES}")],
            "Entrypoint": [format!("/{PROGRAM}"), "sample"],
            "Cmd": ["serve"],
            "ExposedPorts": { "8080/tcp": {} },
            "WorkingDir": "/",
        },
        "rootfs": { "type": "layers", "diff_ids": [layer] },
        "history": [{ "created_by": "margrave demo" }],
    });
    serde_json::to_vec(&config).expect("a JSON value has string keys")
}

/// One layer, as the files that go into it.
pub(crate) struct Layer {
    files: BTreeMap<String, File>,
    lengths: BTreeMap<String, u64>,
}

impl Layer {
    /// This program with everything it needs to start.
    pub(crate) fn of_this_program() -> io::Result<Layer> {
        // The link stays good even if the file was replaced by a newer build meanwhile.
        let program = File::open("/proc/self/exe")?;
        let interpreter = Elf::read(&program)?.interpreter;
        let mut layer = Layer { files: BTreeMap::new(), lengths: BTreeMap::new() };
        layer.add(PROGRAM, program)?;
        if let Some(interpreter) = interpreter {
            layer.add(interpreter.trim_start_matches('/'), File::open(&interpreter)?)?;
            for path in loaded_libraries(&fs::read_to_string("/proc/self/maps")?) {
                let file = File::open(&path)?;
                // Fonts, locales and databases are mapped too; they are no libraries and have no such name.
                let Some(name) = Elf::read(&file).ok().and_then(|elf| elf.soname) else { continue };
                let loader =
                    Path::new(&interpreter).file_name().is_some_and(|loader| loader == name.as_str());
                if !loader && !name.contains('/') {
                    layer.add(&format!("{LIBRARIES}/{name}"), file)?;
                }
            }
        }
        Ok(layer)
    }

    fn add(&mut self, path: &str, file: File) -> io::Result<()> {
        // Plain headers carry a hundred characters, and nothing of ours comes near that.
        if path.len() > 100 || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{path} is no usable path")));
        }
        self.lengths.insert(path.to_owned(), file.metadata()?.len());
        self.files.insert(path.to_owned(), file);
        Ok(())
    }

    /// All directories that the files need, and the one that a volume takes its owner from.
    fn directories(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::from(["data".to_owned()]);
        for path in self.files.keys() {
            for (at, _) in path.match_indices('/') {
                found.insert(path[..at].to_owned());
            }
        }
        found
    }

    /// Length of the tar, before it exists.
    pub(crate) fn size(&self) -> u64 {
        let headers = 512 * (self.files.len() + self.directories().len()) as u64;
        let contents: u64 = self.lengths.values().map(|length| length.next_multiple_of(512)).sum();
        headers + contents + END.len() as u64
    }

    /// The tar itself, read piece by piece: in a debug build the program alone has hundreds of megabytes.
    pub(crate) fn into_reader(self) -> impl Read + Send + 'static {
        let mut parts: VecDeque<Box<dyn Read + Send>> = VecDeque::new();
        for directory in self.directories() {
            let owner = if directory == "data" { USER } else { 0 };
            let header = header(&format!("{directory}/"), tar::EntryType::Directory, 0, owner);
            parts.push_back(Box::new(io::Cursor::new(header)));
        }
        for (path, file) in self.files {
            let length = self.lengths[&path];
            let padding = length.next_multiple_of(512) - length;
            parts.push_back(Box::new(io::Cursor::new(header(&path, tar::EntryType::Regular, length, 0))));
            parts.push_back(Box::new(Exactly { file, left: length }));
            parts.push_back(Box::new(io::repeat(0).take(padding)));
        }
        parts.push_back(Box::new(io::Cursor::new(END)));
        Parts(parts)
    }
}

/// Two empty records end a tar.
const END: [u8; 1024] = [0; 1024];

/// A record without any time or name of this machine in it, so that the same program gives the same image.
fn header(path: &str, kind: tar::EntryType, length: u64, owner: u64) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_path(path).expect("a short relative path");
    header.set_entry_type(kind);
    header.set_size(length);
    header.set_mode(0o755);
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_mtime(0);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// A file that must have as many bytes as were announced for it.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self.file.read(&mut buffer[..wanted])?;
        if got == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a file became shorter while it was read",
            ));
        }
        self.left -= got as u64;
        Ok(got)
    }
}

struct Parts(VecDeque<Box<dyn Read + Send>>);

impl Read for Parts {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(part) = self.0.front_mut() {
            match part.read(buffer)? {
                0 if !buffer.is_empty() => drop(self.0.pop_front()),
                length => return Ok(length),
            }
        }
        Ok(0)
    }
}

/// Files that are mapped into a process, as `/proc/self/maps` lists them, except the program itself.
fn loaded_libraries(maps: &str) -> BTreeSet<String> {
    maps.lines()
        // address permissions offset device inode path; a path may have spaces.
        .filter_map(|line| line.splitn(6, ' ').nth(5))
        .map(str::trim_start)
        .filter(|path| path.starts_with('/') && path.contains(".so") && !path.ends_with(" (deleted)"))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_libraries_are_found() {
        let maps = "\
5581a-5581b r--p 00000000 fe:01 1 /opt/margrave
7f1-7f2 r-xp 00028000 fe:01 2                          /usr/lib/x86_64-linux-gnu/libc.so.6
7f3-7f4 r--p 00000000 fe:01 2                          /usr/lib/x86_64-linux-gnu/libc.so.6
7f5-7f6 r--p 00000000 fe:01 3                          /opt/with space/libm.so.6
7f7-7f8 r--p 00000000 fe:01 4                          /tmp/old.so.1 (deleted)
7f9-7fa rw-p 00000000 00:00 0
7ffe-7fff r-xp 00000000 00:00 0                        [vdso]
";
        let wanted = ["/opt/with space/libm.so.6", "/usr/lib/x86_64-linux-gnu/libc.so.6"];
        assert_eq!(loaded_libraries(maps).into_iter().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn the_layer_is_a_tar_with_this_program_and_all_it_needs() {
        let layer = Layer::of_this_program().unwrap();
        let size = layer.size();
        let interpreter = Elf::read(&File::open("/proc/self/exe").unwrap()).unwrap().interpreter;
        let mut bytes = Vec::new();
        layer.into_reader().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, size);

        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut seen = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_str().unwrap().trim_end_matches('/').to_owned();
            assert_eq!(entry.header().mtime().unwrap(), 0);
            let owner = entry.header().uid().unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            // A file's directories come before the file.
            if let Some((directory, _)) = path.rsplit_once('/') {
                assert!(seen.contains_key(directory), "{path}");
            }
            seen.insert(path, (owner, content));
        }
        assert!(seen[PROGRAM].1 == fs::read("/proc/self/exe").unwrap(), "the program is not the program");
        assert_eq!(seen["data"].0, USER);
        if let Some(interpreter) = interpreter {
            assert!(seen[interpreter.trim_start_matches('/')].1.starts_with(b"\x7fELF"));
            assert!(
                seen.keys().any(|path| path.starts_with("usr/lib/margrave/libc.so")),
                "{:?}",
                seen.keys()
            );
        }
    }

    #[tokio::test]
    async fn the_registry_has_the_whole_image() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        publish(&registry).await.unwrap();
        let name = RepositoryName::parse(REPOSITORY).unwrap();
        let tag = TagOrDigest::Tag(Tag::parse(TAG).unwrap());
        let stored = registry.manifest(&name, &tag).await.unwrap().unwrap();
        let manifest = ImageManifest::from_bytes(&stored.bytes).unwrap();
        let config = registry.blob(&name, &manifest.config.digest).await.unwrap().unwrap();
        let config: serde_json::Value = serde_json::from_slice(&fs::read(config.path).unwrap()).unwrap();
        // An engine refuses an image whose unpacked layer is not what the configuration says.
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest.layers[0].digest.to_string());
        assert_eq!(config["config"]["Entrypoint"], json!(["/margrave", "sample"]));
        assert_eq!(
            registry.blob(&name, &manifest.layers[0].digest).await.unwrap().unwrap().size,
            manifest.layers[0].size
        );
    }
}
