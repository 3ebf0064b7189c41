//! The container images that a package's components name: what each name meant when the package came into the catalog.
//!
//! A name is a tag, and anybody can give it to another image later. What it meant once is pinned for that version of the package
//! for good: every device runs the same bytes, and nothing that moves in a registry changes what a document says.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// What stands before the name of an image in the server's own registry: devices know where that is.
pub const OWN_REGISTRY_VARIABLES: [&str; 2] = ["${MARGRAVE_REGISTRY}/", "$MARGRAVE_REGISTRY/"];

/// What an image of the server's own registry is called there; `None` for those of others.
pub fn in_own_registry(name: &str) -> Option<&str> {
    OWN_REGISTRY_VARIABLES.iter().find_map(|variable| name.strip_prefix(variable))
}

/// How a Compose file names an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// By a tag, or by nothing, which is the tag `latest`.
    ByTag,
    /// By what it is.
    ByDigest,
    /// With a variable in it that only a deployment's parameters fill.
    ByVariable,
    /// To be taken from the device, and from nowhere else.
    OnDevice,
}

/// The images of one version of a package.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Images {
    /// The names in each component's Compose file, under the component's reference. A component that is not here was not looked at.
    pub named: BTreeMap<String, BTreeSet<String>>,
    pub known: BTreeMap<String, Image>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Image {
    /// What the name means, for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Why that is not known; in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpinned: Option<Unpinned>,
    /// What an engine fetches for it, by the processor it is made for; under [`ANY_PROCESSOR`] where that is not told.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, Vec<Part>>,
}

/// An image that is one and not several says nowhere what it is made for, short of fetching it.
pub const ANY_PROCESSOR: &str = "any";

/// One thing to fetch: a layer, or an image's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    pub digest: Digest,
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unpinned {
    /// A parameter fills in what it is.
    Variable,
    /// It is only ever on devices.
    OnDevice,
    /// The answer was none, or nobody may be asked; in words.
    NotFound(String),
    /// Whoever was asked gave no answer, or not in time; in words.
    Unanswered(String),
}

impl Unpinned {
    /// Whether asking again may end better.
    pub fn is_passing(&self) -> bool {
        matches!(self, Unpinned::NotFound(_) | Unpinned::Unanswered(_))
    }
}

impl std::fmt::Display for Unpinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unpinned::Variable => f.write_str("its name has a variable that parameters fill"),
            Unpinned::OnDevice => f.write_str("it is never pulled, only taken from the device"),
            Unpinned::NotFound(why) | Unpinned::Unanswered(why) => f.write_str(why),
        }
    }
}

/// Why an image's size is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsized {
    Unknown,
    /// It is not made for that processor.
    Unfit,
}

impl Image {
    /// What an engine on such a processor fetches for it.
    pub fn parts_for(&self, processor: Option<&str>) -> Result<&[Part], Unsized> {
        if let Some(parts) = self.parts.get(ANY_PROCESSOR) {
            return Ok(parts);
        }
        let processor = processor.filter(|_| !self.parts.is_empty()).ok_or(Unsized::Unknown)?;
        self.parts.get(processor).map(Vec::as_slice).ok_or(Unsized::Unfit)
    }
}

/// Whether a name says itself what it is: then nothing has to be said besides.
fn is_exact(name: &str) -> bool {
    name.contains('@')
}

impl Images {
    /// The pins of a component's images, by their names.
    pub fn pins(&self, component: &str) -> BTreeMap<String, Digest> {
        let pin = |name: &String| Some((name.clone(), self.known.get(name)?.digest?));
        let named = self.named.get(component).into_iter().flatten();
        named.filter(|name| !is_exact(name)).filter_map(pin).collect()
    }

    /// All pins, by the images' names.
    pub fn all_pins(&self) -> BTreeMap<String, Digest> {
        let pinned = self.known.iter().filter(|(name, _)| !is_exact(name));
        pinned.filter_map(|(name, image)| Some((name.clone(), image.digest?))).collect()
    }

    /// Images that mean whatever their names mean on a device, and why.
    pub fn unpinned(&self) -> impl Iterator<Item = (&str, &Unpinned)> {
        self.known.iter().filter_map(|(name, image)| Some((name.as_str(), image.unpinned.as_ref()?)))
    }

    /// These, with what was found out later. A pin stays what it is, whatever its name means by then.
    pub fn with_later(mut self, later: &Images) -> Images {
        for (component, names) in &later.named {
            self.named.entry(component.clone()).or_insert_with(|| names.clone());
        }
        for (name, found) in &later.known {
            match self.known.get_mut(name) {
                None => drop(self.known.insert(name.clone(), found.clone())),
                Some(held) if held.digest.is_none() => *held = found.clone(),
                Some(held) if held.digest == found.digest && held.parts.is_empty() => {
                    held.parts.clone_from(&found.parts);
                }
                Some(_) => {}
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    fn pinned(text: &str) -> Image {
        Image { digest: Some(digest(text)), ..Image::default() }
    }

    fn away() -> Image {
        Image { unpinned: Some(Unpinned::NotFound("away".into())), ..Image::default() }
    }

    fn images(known: &[(&str, Image)]) -> Images {
        let known: BTreeMap<String, Image> =
            known.iter().map(|(name, image)| ((*name).to_owned(), image.clone())).collect();
        Images { named: [("web".to_owned(), known.keys().cloned().collect())].into(), known }
    }

    #[test]
    fn a_pin_once_made_stays_and_what_was_missing_is_added() {
        let first = images(&[("a:1", pinned("one")), ("b:1", away())]);
        let exact = format!("c@{}", digest("c"));
        let later = images(&[("a:1", pinned("two")), ("b:1", pinned("b")), (&exact, pinned("c"))]);
        let both = first.clone().with_later(&later);
        let pins: BTreeMap<String, Digest> =
            [("a:1".to_owned(), digest("one")), ("b:1".to_owned(), digest("b"))].into();
        assert_eq!(both.all_pins(), pins, "one that is named by digest needs no pin");
        assert_eq!((both.pins("web"), both.pins("other").len()), (pins, 0));
        assert_eq!((first.unpinned().count(), both.unpinned().count()), (1, 0));
        let worse = images(&[("a:1", away())]);
        assert_eq!(both.clone().with_later(&worse), both, "a registry that is away takes nothing back");
    }

    #[test]
    fn what_is_fetched_depends_on_the_processor() {
        let part = |text: &str| Part { digest: digest(text), size: 7 };
        let several = Image { parts: [("amd64".to_owned(), vec![part("x")])].into(), ..pinned("a") };
        assert_eq!(several.parts_for(Some("amd64")), Ok(&[part("x")][..]));
        assert_eq!(several.parts_for(Some("arm64")), Err(Unsized::Unfit));
        assert_eq!(several.parts_for(None), Err(Unsized::Unknown));
        let one = Image { parts: [(ANY_PROCESSOR.to_owned(), vec![part("x")])].into(), ..pinned("a") };
        assert_eq!(one.parts_for(None), Ok(&[part("x")][..]));
        assert_eq!(pinned("a").parts_for(Some("amd64")), Err(Unsized::Unknown));
    }
}
