//! Pins that were found for packages whose files do not say them. A file that somebody wrote stays as it is; what could be added to
//! it is told.

use std::collections::BTreeMap;

use margrave_wire::intent::Pins;
use margrave_wire::resource::{self, Path, Place, Resource};

use super::super::{Error, Fleet};
use super::FileChange;

/// A person adds no more by hand in one go.
const TOLD_MAX: usize = 50;

impl Fleet {
    /// What the files of packages among these do not say.
    pub(in crate::fleet) async fn unwritten_pins(&self, files: &[FileChange]) -> Result<Pins, Error> {
        let mut pins = Pins::new();
        for FileChange { path, bytes } in files {
            let (Path::Resource(place @ Place::Package(..)), Some(bytes)) = (Path::read(path), bytes) else {
                continue;
            };
            let Ok(read) = resource::read_at(&place, bytes) else { continue };
            let (Place::Package(id, version), Resource::Package(file)) = (&place, &read.resource) else {
                continue;
            };
            let Some(entry) = self.entry(id, version).await? else { continue };
            let held = entry.record.images.all_pins().into_iter();
            let unwritten = held.filter(|(name, _)| !file.spec.images.contains_key(name));
            let unwritten: BTreeMap<String, String> =
                unwritten.map(|(name, digest)| (name, digest.to_string())).collect();
            if !unwritten.is_empty() {
                pins.insert(path.clone(), unwritten);
            }
            if pins.len() >= TOLD_MAX {
                break;
            }
        }
        Ok(pins)
    }
}
