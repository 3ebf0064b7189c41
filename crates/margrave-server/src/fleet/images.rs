//! What the images of a package mean: asked of their registries once, when the package comes into the catalog.
//!
//! Nothing here stops a package from being added. An image whose registry cannot be asked stays what its name means on each device,
//! and that is told; what was found out is kept with the version for good (`margrave_core::image`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use margrave_core::chain::sentence;
use margrave_core::digest::Digest;
use margrave_core::id::ComponentName;
use margrave_core::image::{ANY_PROCESSOR, Image, Images, Named, Part, Unpinned, in_own_registry};
use margrave_core::violation::Violation;
use margrave_oci::client::ClientError;
use margrave_oci::image_name;
use margrave_oci::manifest::{Descriptor, ImageIndex, ImageManifest};
use margrave_oci::reference::{Host, InvalidReference, OWN_REGISTRY, Reference, TagOrDigest};
use margrave_wire::operator;
use tokio::time::Instant;

use super::catalog::Entry;
use super::{Error, Fleet};

/// More images than any application has; each costs a question or a few.
const IMAGES_MAX: usize = 200;
/// Images that are asked about at the same time; more would only wait for the same network.
const SIDE_BY_SIDE: usize = 4;
/// For one image. Somebody waits for it, and a package without the answer is still a package.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(8);
/// For all of a package, however many registries hang.
const ALL_TIME_MAX: Duration = Duration::from_secs(20);
/// For all packages of one commit together, so that a push of hundreds ends where registries hang.
const COMMIT_TIME_MAX: Duration = Duration::from_secs(60);
/// What a package's images may take without being counted: registries that answer are asked about every package of a commit.
const QUICK: Duration = Duration::from_secs(1);
/// For how long a registry that gave no answer is not asked again. Short, because somebody may have mended the network.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// Names come from packages; more are not remembered than any network has registries.
const SILENT_MAX: usize = 1000;
/// The processors that devices report (MI-G2-128), as images name them too.
const PROCESSORS: [&str; 3] = ["amd64", "arm64", "arm"];
/// Engines take 127 layers; what has more is not counted.
const LAYERS_MAX: usize = 500;
/// A reason is shown in a line or two.
const REASON_MAX: usize = 300;

/// The images in components' Compose files, under the components' references.
pub(super) type Uses = BTreeMap<String, BTreeMap<String, Named>>;
pub(super) type Parts = BTreeMap<String, Vec<Part>>;
/// The digest behind an image's name and what there is to fetch of it, or why that is not known.
type Answer = Result<(Digest, Parts), Unpinned>;

/// The time that is left to ask what images mean, for everything that comes in together.
struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Patience(COMMIT_TIME_MAX)
    }
}

impl Patience {
    /// Until when to ask for one package; `None` where nobody waits any longer.
    fn until(&self, now: Instant) -> Option<Instant> {
        (!self.0.is_zero()).then(|| now + ALL_TIME_MAX.min(self.0 + QUICK))
    }

    fn waited(&mut self, time: Duration) {
        self.0 = self.0.saturating_sub(time.saturating_sub(QUICK));
    }
}

/// What packages of the catalog know of images elsewhere.
#[derive(Default)]
struct Held {
    /// What their names mean may have changed.
    names: BTreeSet<Reference>,
    /// What is fetched for them never does.
    parts: HashMap<Digest, Parts>,
}

/// Asking what images mean, for everything that comes in together: each is asked about once.
#[derive(Default)]
pub(super) struct Asking {
    patience: Patience,
    /// From the catalog, once it was needed.
    held: Option<Held>,
    answers: Mutex<HashMap<Reference, Answer>>,
}

impl Asking {
    /// What is known without asking.
    fn answer(&self, reference: &Reference) -> Option<Answer> {
        let held = match &reference.version {
            TagOrDigest::Digest(digest) => {
                let parts = self.held.as_ref().and_then(|held| held.parts.get(digest));
                parts.map(|parts| Ok((*digest, parts.clone())))
            }
            TagOrDigest::Tag(_) => None,
        };
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        held.or_else(|| answers.get(reference).cloned())
    }

    fn answered(&self, reference: &Reference, answer: &Answer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.insert(reference.clone(), answer.clone());
    }

    #[cfg(test)]
    pub(super) fn spent() -> Self {
        Asking { patience: Patience(Duration::ZERO), ..Asking::default() }
    }
}

/// Registries that gave no answer a moment ago.
#[derive(Default)]
pub(super) struct Silent {
    hosts: Mutex<HashMap<String, Instant>>,
}

impl Silent {
    pub(super) fn note(&self, host: &Host, now: Instant) {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|_, since| now.duration_since(*since) < SILENT_FOR);
        if hosts.len() < SILENT_MAX {
            hosts.insert(host.as_str().to_owned(), now);
        }
    }

    pub(super) fn has(&self, host: &Host, now: Instant) -> bool {
        let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.get(host.as_str()).is_some_and(|since| now.duration_since(*since) < SILENT_FOR)
    }
}

impl Fleet {
    /// What all these images mean now; where `given` says what one means, that.
    pub(super) async fn find_images(
        &self,
        uses: &Uses,
        given: &BTreeMap<String, Digest>,
        asking: &mut Asking,
    ) -> Result<Images, Error> {
        let mut how: BTreeMap<&String, Named> = BTreeMap::new();
        for (name, named) in uses.values().flatten() {
            let known = how.entry(name).or_insert(*named);
            *known = (*known).min(*named);
        }
        let mut known: BTreeMap<String, Image> = BTreeMap::new();
        // Names that lead to the same place are one question.
        let mut questions: BTreeMap<Reference, Vec<String>> = BTreeMap::new();
        for (name, named) in how {
            match self.question(name, named, given.get(name).copied()) {
                Ok(reference) => questions.entry(reference).or_default().push(name.clone()),
                Err(image) => drop(known.insert(name.clone(), image)),
            }
        }
        if asking.held.is_none() && !questions.is_empty() {
            asking.held = Some(self.held_images().await?);
        }
        let open = self.open_registries().await?;
        let began = Instant::now();
        let until = asking.patience.until(began);
        let mut asked: Vec<BoxFuture<'_, (Vec<String>, Image)>> = Vec::new();
        for (index, (reference, names)) in questions.into_iter().enumerate() {
            let (open, asking) = (&open, &*asking);
            asked.push(Box::pin(async move {
                let found = match index < IMAGES_MAX {
                    true => self.ask_about(&reference, open, until, asking).await,
                    false => {
                        Err(Unpinned::NotFound(format!("of a package, {IMAGES_MAX} images are asked about")))
                    }
                };
                let image = match (found, &reference.version) {
                    (Ok((digest, parts)), _) => Image { digest: Some(digest), unpinned: None, parts },
                    // What it is says its name; only its size is not known.
                    (Err(why), TagOrDigest::Digest(digest)) => unknown(Some(*digest), why),
                    (Err(why), TagOrDigest::Tag(_)) => unknown(None, why),
                };
                (names, image)
            }));
        }
        let answers: Vec<(Vec<String>, Image)> =
            stream::iter(asked).buffer_unordered(SIDE_BY_SIDE).collect().await;
        for (names, image) in answers {
            known.extend(names.into_iter().map(|name| (name, image.clone())));
        }
        asking.patience.waited(began.elapsed());
        let named =
            uses.iter().map(|(component, images)| (component.clone(), images.keys().cloned().collect()));
        Ok(Images { named: named.collect(), known })
    }

    /// Where to ask what an image is; or what there is to say of it without asking anybody.
    fn question(&self, name: &str, named: Named, given: Option<Digest>) -> Result<Reference, Image> {
        let unpinned = |reason| Err(Image { unpinned: Some(reason), ..Image::default() });
        match named {
            Named::ByVariable => unpinned(Unpinned::Variable),
            Named::OnDevice => unpinned(Unpinned::OnDevice),
            Named::ByTag | Named::ByDigest => match self.image_reference(name) {
                Ok(reference) => Ok(given.map_or(reference.clone(), |digest| reference.pinned(digest))),
                Err(error) => Err(unknown(given, Unpinned::NotFound(error.to_string()))),
            },
        }
    }

    /// What packages of the catalog know of images elsewhere.
    async fn held_images(&self) -> Result<Held, Error> {
        let mut held = Held::default();
        for entry in self.entries().await? {
            for (name, image) in &entry.record.images.known {
                if let (Some(digest), false, Ok(reference)) =
                    (image.digest, image.parts.is_empty(), self.image_reference(name))
                {
                    held.names.insert(reference);
                    held.parts.entry(digest).or_insert_with(|| image.parts.clone());
                }
            }
        }
        Ok(held)
    }

    /// Where an image of this name lies; our own registry has several names.
    pub(super) fn image_reference(&self, name: &str) -> Result<Reference, InvalidReference> {
        let own = || Host::parse(OWN_REGISTRY).expect("a host like any other");
        if let Some(rest) = in_own_registry(name) {
            return image_name::parse_in(own(), rest);
        }
        let mut reference = image_name::parse(name)?;
        if reference.repository.host.as_str() == self.options.registry_address {
            reference.repository.host = own();
        }
        Ok(reference)
    }

    /// The digest behind an image's name, and what there is to fetch of it; or why that is not known.
    async fn ask_about(
        &self,
        reference: &Reference,
        open: &BTreeSet<String>,
        until: Option<Instant>,
        asking: &Asking,
    ) -> Answer {
        let host = &reference.repository.host;
        if host.is_own_registry() {
            return self.look_at_image(reference).await;
        }
        if let Some(answer) = asking.answer(reference) {
            return answer;
        }
        if !self.may_ask(host, open) {
            let why = "this server asks no registries elsewhere but those it was told of";
            return Err(Unpinned::NotFound(format!("{why}, and {host} is none")));
        }
        let now = Instant::now();
        if self.silent.has(host, now) {
            let why = format!("the registry {host} did not answer a moment ago, and was not asked again");
            return Err(Unpinned::Unanswered(why));
        }
        let Some(until) = until.filter(|until| now < *until) else {
            return Err(Unpinned::Unanswered(format!(
                "the registry {host} was not asked, because other images took all the time that there is for them"
            )));
        };
        let answer_by = now + ANSWER_TIME_MAX;
        let looking = self.look_elsewhere(reference, asking);
        match tokio::time::timeout_at(until.min(answer_by), looking).await {
            Ok(looked) => {
                asking.answered(reference, &looked);
                looked
            }
            Err(_) => {
                // One that had less than its time may only be slow.
                if answer_by <= until {
                    self.silent.note(host, Instant::now());
                }
                Err(Unpinned::Unanswered(format!("the registry {host} did not answer in time")))
            }
        }
    }

    /// What was met before under its name is probably the same still. Whether it is can be asked without fetching anything, which no
    /// registry counts; fetching is what public ones allow only so often.
    async fn look_elsewhere(&self, reference: &Reference, asking: &Asking) -> Answer {
        let Some(held) = asking.held.as_ref().filter(|held| held.names.contains(reference)) else {
            return self.look_at_image(reference).await;
        };
        let digest = self.upstream().digest(reference).await.map_err(|error| unpinned(&error))?;
        match held.parts.get(&digest) {
            Some(parts) => Ok((digest, parts.clone())),
            None => self.look_at_image(&reference.pinned(digest)).await,
        }
    }

    pub(super) async fn look_at_image(&self, reference: &Reference) -> Answer {
        let (digest, bytes) = self.image_manifest(reference).await?;
        if let Ok(manifest) = ImageManifest::from_bytes(&bytes) {
            let parts = parts_of(&manifest);
            return Ok((digest, parts.map(|parts| (ANY_PROCESSOR.to_owned(), parts)).into_iter().collect()));
        }
        let index = ImageIndex::from_bytes(&bytes).ok().filter(|index| !index.manifests.is_empty());
        let index =
            index.ok_or_else(|| Unpinned::NotFound(format!("what lies at {reference} is no image")))?;
        let mut parts = Parts::new();
        for processor in PROCESSORS {
            let Some(made) = made_for(&index, processor) else { continue };
            // It is pinned by the whole; with a part that cannot be read now, only the sizes are not known.
            let Ok((_, bytes)) = self.image_manifest(&reference.pinned(made.digest)).await else {
                return Ok((digest, Parts::new()));
            };
            match ImageManifest::from_bytes(&bytes).ok().as_ref().and_then(parts_of) {
                Some(found) => drop(parts.insert(processor.to_owned(), found)),
                None => return Ok((digest, Parts::new())),
            }
        }
        Ok((digest, parts))
    }

    pub(super) async fn image_manifest(&self, reference: &Reference) -> Result<(Digest, Bytes), Unpinned> {
        if !reference.repository.host.is_own_registry() {
            let found = self.upstream().manifest(reference).await.map_err(|error| unpinned(&error))?;
            return Ok((found.digest, found.bytes));
        }
        match self.registry.manifest(&reference.repository.name, &reference.version).await {
            Ok(Some(found)) => Ok((found.digest, found.bytes)),
            Ok(None) | Err(_) => Err(Unpinned::NotFound(format!("{NOT_IN_REGISTRY}; push it there first"))),
        }
    }
}

/// An image whose registry did not say what it is.
fn unknown(digest: Option<Digest>, why: Unpinned) -> Image {
    let plain = |why: String| why.chars().filter(|it| !it.is_control()).take(REASON_MAX).collect();
    let why = match why {
        Unpinned::NotFound(why) => Unpinned::NotFound(plain(why)),
        Unpinned::Unanswered(why) => Unpinned::Unanswered(plain(why)),
        other => other,
    };
    Image { digest, unpinned: digest.is_none().then_some(why), parts: Parts::new() }
}

/// A registry that refuses, or has no such thing, was heard.
fn unpinned(error: &ClientError) -> Unpinned {
    match error.is_passing() {
        true => Unpinned::Unanswered(sentence(error)),
        false => Unpinned::NotFound(sentence(error)),
    }
}

/// Which image of several a device with such a processor takes.
fn made_for<'a>(index: &'a ImageIndex, processor: &str) -> Option<&'a Descriptor> {
    let fits = |found: &&Descriptor| {
        found
            .platform
            .as_ref()
            .is_some_and(|platform| platform.os == "linux" && platform.architecture == processor)
    };
    let variant = |found: &Descriptor| found.platform.as_ref().and_then(|platform| platform.variant.clone());
    let newest = index.manifests.iter().filter(fits).find(|found| variant(found).as_deref() == Some("v7"));
    newest.or_else(|| index.manifests.iter().find(fits))
}

/// Everything that an engine fetches of an image.
fn parts_of(manifest: &ImageManifest) -> Option<Vec<Part>> {
    let part = |found: &Descriptor| Part { digest: found.digest, size: found.size };
    let few = manifest.layers.len() <= LAYERS_MAX;
    few.then(|| manifest.layers.iter().chain([&manifest.config]).map(part).collect())
}

/// What is said of an image that our own registry had not when its package came in, or has not still.
const NOT_IN_REGISTRY: &str = "it is not in this server's registry";

/// What can be done about an image that is not pinned and could be.
fn remedy(is_used: bool) -> &'static str {
    match is_used {
        false => "add the package again to have it pinned",
        true => "deployments use this version as it is, so that only a new version can be pinned",
    }
}

/// Why an image is not pinned that our own registry had not, and what can be done.
fn told_missing(is_there: bool, is_used: bool) -> String {
    let remedy = remedy(is_used);
    match (is_there, is_used) {
        (true, _) => format!(
            "it was not in this server's registry when the package was added, and is there now; {remedy}"
        ),
        (false, false) => format!("{NOT_IN_REGISTRY}; push it there first; {remedy}"),
        (false, true) => format!("{NOT_IN_REGISTRY}; push it there, or no device can fetch it; {remedy}"),
    }
}

impl Fleet {
    /// Why images are not pinned, by their names, as far as that is otherwise than when their package came in: our own registry may have
    /// them by now.
    pub(super) async fn why_unpinned(&self, images: &Images, is_used: bool) -> BTreeMap<String, String> {
        let mut told = BTreeMap::new();
        for (name, why) in images.unpinned() {
            let Unpinned::NotFound(_) = why else { continue };
            let Ok(reference) = self.image_reference(name) else { continue };
            if reference.repository.host.is_own_registry() {
                let found = self.registry.manifest(&reference.repository.name, &reference.version).await;
                told.insert(name.to_owned(), told_missing(matches!(found, Ok(Some(_))), is_used));
            }
        }
        told
    }
}

/// Why there may be more images than are shown; `None` where all are known.
pub(super) fn shown_unread(entry: &Entry, deployments: &[String]) -> Option<String> {
    let unread: Vec<&str> = entry.unread().into_iter().map(ComponentName::as_str).collect();
    let (components, they) = match unread.len() {
        0 => return None,
        1 => ("component", "its Compose file was"),
        _ => ("components", "their Compose files were"),
    };
    Some(format!(
        "The images of {components} {} are not known and not pinned, because {they} not read for them when this version came in; {}.",
        unread.join(", "),
        remedy(!deployments.is_empty())
    ))
}

/// Images as operators see them, with what there is to say of some that are not pinned.
pub(super) fn shown_images(
    images: &Images,
    why: &BTreeMap<String, String>,
    deployments: &[String],
) -> Vec<operator::PackageImage> {
    let told = |name: &str, unpinned: &Unpinned| match (why.get(name), unpinned.is_passing()) {
        (Some(why), _) => why.clone(),
        (None, false) => unpinned.to_string(),
        (None, true) => format!("{unpinned}; {}", remedy(!deployments.is_empty())),
    };
    let sum = |parts: &Vec<Part>| parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.size));
    let shown = |(name, image): (&String, &Image)| operator::PackageImage {
        name: name.clone(),
        digest: image.digest.map(|digest| digest.to_string()),
        unpinned: image.unpinned.as_ref().map(|unpinned| told(name, unpinned)),
        bytes: image.parts.iter().map(|(processor, parts)| (processor.clone(), sum(parts))).collect(),
    };
    images.known.iter().map(shown).collect()
}

/// Pins as a file says them, each checked.
///
/// # Errors
/// What is wrong with them, each at its place.
pub(super) fn read_pins(
    images: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Digest>, Vec<Violation>> {
    let mut pins = BTreeMap::new();
    let mut broken = Vec::new();
    if images.len() > IMAGES_MAX {
        broken.push(Violation::new(
            "/images",
            RULE,
            format!("of a package, {IMAGES_MAX} images are pinned at most"),
        ));
    }
    for (name, digest) in images {
        match Digest::parse(digest) {
            Ok(digest) => drop(pins.insert(name.clone(), digest)),
            Err(error) => broken.push(Violation::new(pin_place(name), RULE, error.to_string())),
        }
    }
    if broken.is_empty() { Ok(pins) } else { Err(broken) }
}

/// The rule of everything that is pinned.
pub(super) const RULE: &str = "PK-053";

/// Where a file says what an image is.
pub(super) fn pin_place(name: &str) -> String {
    format!("/images/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// Pins of a file that the package has no image for, or that cannot be.
pub(super) fn misplaced(images: &Images, given: &BTreeMap<String, Digest>) -> Vec<Violation> {
    let mut broken = Vec::new();
    for (name, digest) in given {
        let message = match images.known.get(name) {
            None => {
                "no Compose file of this package names this image; leave it out, or mend its name".to_owned()
            }
            Some(Image { unpinned: Some(Unpinned::Variable | Unpinned::OnDevice), .. }) => {
                "this image cannot be pinned: a parameter or the device says what it is; leave it out"
                    .to_owned()
            }
            Some(Image { digest: Some(held), .. }) if held != digest => {
                format!(
                    "this image is pinned to {held}, and a pin stays; give the package a new version for another one"
                )
            }
            Some(_) => continue,
        };
        broken.push(Violation::new(pin_place(name), RULE, message));
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_oci::manifest::Platform;

    #[test]
    fn time_is_spent_by_what_drags_and_not_by_what_answers() {
        let now = Instant::now();
        let mut patience = Patience::default();
        (0..1000).for_each(|_| patience.waited(QUICK));
        assert_eq!(patience.until(now), Some(now + ALL_TIME_MAX));
        patience.waited(COMMIT_TIME_MAX - Duration::from_secs(4));
        assert_eq!(
            patience.until(now),
            Some(now + Duration::from_secs(6)),
            "what is left, and what is not counted"
        );
        patience.waited(Duration::from_secs(6));
        assert_eq!(patience.until(now), None);
    }

    #[test]
    fn a_silent_registry_is_asked_again_after_a_while() {
        let (silent, now) = (Silent::default(), Instant::now());
        let host = |name: &str| Host::parse(name).unwrap();
        silent.note(&host("a.example"), now);
        assert!(silent.has(&host("a.example"), now) && !silent.has(&host("b.example"), now));
        assert!(!silent.has(&host("a.example"), now + SILENT_FOR));
        (0..2 * SILENT_MAX).for_each(|at| silent.note(&host(&format!("h{at}.example")), now));
        assert_eq!(silent.hosts.lock().unwrap().len(), SILENT_MAX);
    }

    #[test]
    fn of_several_images_the_one_for_the_processor_is_taken() {
        let one = |name: &str, os: &str, architecture: &str, variant: Option<&str>| Descriptor {
            platform: Some(Platform {
                os: os.into(),
                architecture: architecture.into(),
                variant: variant.map(str::to_owned),
            }),
            ..Descriptor::of("x", name.as_bytes())
        };
        let index = ImageIndex::of(vec![
            Descriptor::of("x", b"nothing"),
            one("attestation", "unknown", "unknown", None),
            one("windows", "windows", "amd64", None),
            one("amd64", "linux", "amd64", None),
            one("arm6", "linux", "arm", Some("v6")),
            one("arm7", "linux", "arm", Some("v7")),
        ]);
        let taken = |processor| made_for(&index, processor).map(|found| found.digest);
        assert_eq!(taken("amd64"), Some(Digest::of(b"amd64")));
        assert_eq!(taken("arm"), Some(Digest::of(b"arm7")));
        assert_eq!(taken("arm64"), None);
    }

    #[test]
    fn pk_053_pins_of_a_file_are_checked_each_at_its_place() {
        let digest = Digest::of(b"x").to_string();
        let file = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, digest)| ((*name).to_owned(), (*digest).to_owned()));
            read_pins(&pairs.collect())
        };
        assert_eq!(file(&[("h:1/a:1", &digest)]).unwrap().len(), 1);
        let broken = file(&[("h:1/a~b:1", "latest"), ("c", &digest)]).unwrap_err();
        assert_eq!((broken.len(), broken[0].place.as_str()), (1, "/images/h:1~1a~0b:1"));
        let image = |unpinned| Image { unpinned, ..Image::default() };
        let known = [
            ("a".to_owned(), image(Some(Unpinned::Variable))),
            ("b".to_owned(), Image { digest: Some(Digest::of(b"b")), ..Image::default() }),
            ("c".to_owned(), image(Some(Unpinned::NotFound("away".into())))),
        ];
        let images = Images { named: BTreeMap::new(), known: known.into() };
        let given = ["a", "b", "c", "d"].map(|name| (name.to_owned(), Digest::of(b"x")));
        let places: Vec<String> = misplaced(&images, &given.into()).into_iter().map(|v| v.place).collect();
        assert_eq!(places, ["/images/a", "/images/b", "/images/d"]);
    }
}
