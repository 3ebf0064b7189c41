//! Watching a repository's tags: which of them are worth a look, when to look again, and what it means that a registry
//! no longer has what was pinned.
//!
//! A tag is only a way to find a version. What was found is pinned by its digest, and nothing that a registry does
//! afterwards changes what runs; it is only told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::moment::Moment;

/// Vendors publish by the day, not by the second.
pub const EVERY_MIN: Duration = Duration::from_secs(60);
pub const EVERY_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
pub const EVERY_DEFAULT: Duration = Duration::from_secs(15 * 60);

/// Tags of one repository that are followed; a vendor with more has a pattern for those that matter.
pub const TAGS_MAX: usize = 1000;
/// Questions to a registry in one turn; what is left comes with the next.
pub const LOOKS_MAX: usize = 200;
/// Packages that are fetched in one turn: each may bring archives.
pub const ADDS_MAX: usize = 20;
/// When more is left than one turn may do, the next comes soon.
const MORE_AFTER: Duration = Duration::from_secs(60);
/// A registry that is away is asked again after this, then twice as long, up to the watch's own pace.
const AWAY_FIRST: Duration = Duration::from_secs(30);

/// Which tags a watch follows: `*` stands for any characters, `?` for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagPattern(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a pattern for tags; write letters, digits, '.', '_' and '-' as they are, * for any of them and ? for one, at most 128 in all"
)]
pub struct InvalidPattern(String);

impl TagPattern {
    pub fn parse(text: &str) -> Result<Self, InvalidPattern> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'*' | b'?');
        if (1..=128).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(TagPattern(text.to_owned()))
        } else {
            Err(InvalidPattern(text.chars().take(150).collect()))
        }
    }

    pub fn any() -> Self {
        TagPattern("*".to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Both are short, so going back to the last star is fast enough for any of them.
    pub fn matches(&self, tag: &str) -> bool {
        let (pattern, tag) = (self.0.as_bytes(), tag.as_bytes());
        let (mut at, mut in_tag) = (0, 0);
        let mut star = None;
        while in_tag < tag.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at, in_tag));
                    at += 1;
                }
                Some(b'?') => (at, in_tag) = (at + 1, in_tag + 1),
                Some(byte) if *byte == tag[in_tag] => (at, in_tag) = (at + 1, in_tag + 1),
                _ => match star {
                    Some((star_at, taken)) => {
                        star = Some((star_at, taken + 1));
                        (at, in_tag) = (star_at + 1, taken + 1);
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|byte| *byte == b'*')
    }
}

impl FromStr for TagPattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        Self::parse(text)
    }
}

impl fmt::Display for TagPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What became of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagState {
    /// Its package is, or was, in the catalog.
    Added,
    /// It holds no package that can be added; not tried again until it holds something else.
    Broken,
    /// Something that it needs is not in its registry yet; tried with every turn.
    Incomplete,
    /// Another name of a version that has a tag of its own, such as `latest` (PK-015).
    Alias,
}

impl TagState {
    pub fn as_str(self) -> &'static str {
        match self {
            TagState::Added => "added",
            TagState::Broken => "broken",
            TagState::Incomplete => "incomplete",
            TagState::Alias => "alias",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a state of a tag")]
pub struct InvalidTagState(String);

impl FromStr for TagState {
    type Err = InvalidTagState;

    fn from_str(text: &str) -> Result<Self, InvalidTagState> {
        [TagState::Added, TagState::Broken, TagState::Incomplete, TagState::Alias]
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| InvalidTagState(text.to_owned()))
    }
}

/// A tag that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownTag {
    pub digest: Digest,
    pub state: TagState,
    pub looked_at: Moment,
    /// Its package is in the catalog now; then the package itself is watched, and not its tag.
    pub kept: bool,
}

impl KnownTag {
    /// Whether what the tag holds now is worth fetching.
    pub fn is_worth_fetching(&self, found: Digest) -> bool {
        self.digest != found || self.state == TagState::Incomplete
    }
}

/// What one turn does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    pub look_at: Vec<String>,
    /// Tags that are no longer there, or no longer meant, and need not be remembered.
    pub forget: Vec<String>,
    /// More than [`LOOKS_MAX`] were worth a look.
    pub more: bool,
    /// More than [`TAGS_MAX`] fit the pattern; those at the end of the list are not followed.
    pub too_many: bool,
}

/// Chooses what to ask a registry for: what is new in the order listed, then what was looked at longest ago.
pub fn turn(listed: &[String], pattern: &TagPattern, known: &BTreeMap<String, KnownTag>) -> Turn {
    let mut meant: Vec<&String> = listed.iter().filter(|tag| pattern.matches(tag)).collect();
    let too_many = meant.len() > TAGS_MAX;
    meant.truncate(TAGS_MAX);
    let mut look_at: Vec<&String> = meant.iter().copied().filter(|tag| !known.contains_key(*tag)).collect();
    let mut again: Vec<(Moment, &String)> = meant
        .iter()
        .filter_map(|tag| known.get(*tag).filter(|known| !known.kept).map(|known| (known.looked_at, *tag)))
        .collect();
    again.sort();
    look_at.extend(again.into_iter().map(|(_, tag)| tag));
    let more = look_at.len() > LOOKS_MAX;
    look_at.truncate(LOOKS_MAX);
    let meant: BTreeSet<&String> = meant.into_iter().collect();
    let forget = known.keys().filter(|tag| !meant.contains(tag)).cloned().collect();
    Turn { look_at: look_at.into_iter().cloned().collect(), forget, more, too_many }
}

/// When to look again after a turn that worked. `dice` from 0 to 1 keeps watches from moving in step.
pub fn next_look(now: Moment, every: Duration, more: bool, dice: f64) -> Moment {
    let pause = if more { MORE_AFTER.min(every) } else { every };
    now.after(spread(pause, dice))
}

/// When to look again after so many turns in a row that did not work.
pub fn next_try(
    now: Moment,
    every: Duration,
    failures: u32,
    asked_for: Option<Duration>,
    dice: f64,
) -> Moment {
    let doubled = AWAY_FIRST.saturating_mul(1u32.checked_shl(failures.min(20)).unwrap_or(u32::MAX));
    let pause = doubled.min(every).max(asked_for.unwrap_or_default()).min(EVERY_MAX);
    now.after(spread(pause, dice))
}

fn spread(pause: Duration, dice: f64) -> Duration {
    pause.mul_f64(0.9 + 0.2 * dice.clamp(0.0, 1.0))
}

/// What a registry has of a package that was pinned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// What is behind the version's tag; `None` where there is no such tag.
    pub tag: Option<Digest>,
    /// The pinned bytes themselves.
    pub pinned: bool,
    /// Components whose pinned bytes are not there.
    pub components_missing: Vec<Missing>,
}

/// Bytes of components that are not where they were pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Where they were, by digest.
    pub at: String,
    /// The components that are made of them, by name.
    pub components: Vec<String>,
}

/// Something that operators should know about where a package came from. Nothing that runs is touched by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Warning {
    /// The version's tag leads to other bytes than those that were pinned.
    Moved { to: Digest },
    /// The registry no longer has the package.
    Gone,
    /// The registry no longer has what a device would fetch.
    ComponentGone {
        /// Several, where they are the same bytes.
        component: String,
        /// Where it was, by digest: profiles may have other components of the same name. Earlier versions did not write it down.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    /// The registry no longer has an image that was pinned.
    ImageGone {
        /// As a Compose file names it.
        image: String,
        /// Where it was, by digest.
        at: String,
    },
}

impl Warning {
    pub fn kind(&self) -> &'static str {
        match self {
            Warning::Moved { .. } => "moved",
            Warning::Gone => "gone",
            Warning::ComponentGone { .. } => "componentGone",
            Warning::ImageGone { .. } => "imageGone",
        }
    }

    /// Whether devices cannot fetch a component any more that is pinned there.
    pub fn is_of(&self, component: &str, pinned_at: &str) -> bool {
        match self {
            Warning::ComponentGone { at: Some(at), .. } => at == pinned_at,
            Warning::ComponentGone { component: gone, at: None } => gone == component,
            // An engine may have an image from elsewhere.
            Warning::Moved { .. } | Warning::Gone | Warning::ImageGone { .. } => false,
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Moved { to } => write!(
                f,
                "the registry's tag leads to other bytes now ({}); what was pinned stays, and the other bytes need a version of their own",
                to.short()
            ),
            Warning::Gone => f.write_str(
                "the registry no longer has this version; what was pinned stays here, and devices keep what they run",
            ),
            Warning::ComponentGone { component, .. } => write!(
                f,
                "the registry no longer has the component {component}; devices that have not fetched it cannot, those that run it go on"
            ),
            Warning::ImageGone { image, at } => {
                let digest = at.split_once('@').map_or("", |(_, digest)| digest);
                write!(
                    f,
                    "the registry no longer has the image {image} as it was pinned ({}); devices that do not have it cannot pull it, \
                     those that run it go on",
                    Digest::parse(digest).map_or_else(|_| at.clone(), |digest| digest.short())
                )
            }
        }
    }
}

/// What there is to tell.
pub fn warnings(pinned: Digest, found: &Found) -> Vec<Warning> {
    let moved = found.tag.filter(|tag| *tag != pinned).map(|to| Warning::Moved { to });
    let gone = (!found.pinned).then_some(Warning::Gone);
    let component = |missing: &Missing| Warning::ComponentGone {
        component: missing.components.join(", "),
        at: Some(missing.at.clone()),
    };
    let components = found.components_missing.iter().map(component);
    moved.into_iter().chain(gone).chain(components).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_choose_tags() {
        for (pattern, tag, wanted) in [
            ("*", "1.0.0", true),
            ("*", "", true),
            ("1.*", "1.0.0", true),
            ("1.*", "2.1.0", false),
            ("1.?", "1.0", true),
            ("1.?", "1.", false),
            ("*-rc*", "1.0.0-rc.1", true),
            ("*.0", "1.0.1", false),
            ("1.0", "1.0.0", false),
            ("a*b*c", "aXbYbZc", true),
        ] {
            assert_eq!(TagPattern::parse(pattern).unwrap().matches(tag), wanted, "{pattern} {tag}");
        }
        for bad in ["", "1 *", "a/b", "é", "[0-9]", &"a".repeat(129)] {
            assert!(TagPattern::parse(bad).is_err(), "{bad:?}");
        }
    }

    fn known(entries: &[(&str, u64, bool)]) -> BTreeMap<String, KnownTag> {
        let entry = |(tag, at, kept): &(&str, u64, bool)| {
            let known = KnownTag {
                digest: Digest::of(tag.as_bytes()),
                state: TagState::Broken,
                looked_at: Moment(*at),
                kept: *kept,
            };
            ((*tag).to_owned(), known)
        };
        entries.iter().map(entry).collect()
    }

    fn tags(tags: &[&str]) -> Vec<String> {
        tags.iter().map(|tag| (*tag).to_owned()).collect()
    }

    #[test]
    fn the_new_is_looked_at_first_then_what_waited_longest_and_what_is_kept_never() {
        let known = known(&[("2", 20, false), ("1", 10, false), ("3", 5, true), ("gone", 1, false)]);
        let turn = turn(&tags(&["5", "4", "3", "2", "1"]), &TagPattern::any(), &known);
        assert_eq!(turn.look_at, ["5", "4", "1", "2"]);
        assert_eq!(turn.forget, ["gone"]);
        assert!(!turn.more && !turn.too_many);
    }

    #[test]
    fn a_turn_is_bounded() {
        let many: Vec<String> = (0..2 * TAGS_MAX).map(|n| n.to_string()).collect();
        let turn = turn(&many, &TagPattern::any(), &BTreeMap::new());
        assert_eq!(turn.look_at.len(), LOOKS_MAX);
        assert!(turn.more && turn.too_many);
    }

    #[test]
    fn a_registry_that_is_away_is_asked_less_and_less_often_and_as_it_wishes() {
        let minute = Duration::from_secs(60);
        let pause = |failures, asked| next_try(Moment(0), 15 * minute, failures, asked, 0.5).0 / 1000;
        assert_eq!([0, 1, 2, 5, 40].map(|failures| pause(failures, None)), [30, 60, 120, 900, 900]);
        assert_eq!(pause(0, Some(60 * minute)), 3600);
        assert_eq!(pause(0, Some(Duration::MAX)), EVERY_MAX.as_secs());
        assert_eq!(next_look(Moment(0), 15 * minute, true, 0.5).0 / 1000, 60);
    }

    #[test]
    fn what_moved_and_what_is_gone_is_told() {
        let pin = Digest::of(b"pin");
        let there = Found { tag: Some(pin), pinned: true, components_missing: vec![] };
        assert_eq!(warnings(pin, &there), []);
        // Whoever never had a tag has lost none.
        assert_eq!(warnings(pin, &Found { tag: None, ..there.clone() }), []);
        let other = Digest::of(b"other");
        assert_eq!(warnings(pin, &Found { tag: Some(other), ..there }), [Warning::Moved { to: other }]);
        let missing = Missing { at: "there@sha256:1".to_owned(), components: tags(&["web", "db"]) };
        let gone = Found { components_missing: vec![missing], ..Found::default() };
        let component = "web, db".to_owned();
        let component = Warning::ComponentGone { component, at: Some("there@sha256:1".to_owned()) };
        assert_eq!(warnings(pin, &gone), [Warning::Gone, component]);
    }

    #[test]
    fn what_is_gone_is_known_by_where_it_was_and_by_its_name_where_only_that_was_written_down() {
        let read = |text: &str| serde_json::from_str::<Warning>(text).unwrap();
        let now = read(r#"{"kind":"componentGone","component":"web","at":"there@sha256:1"}"#);
        assert!(now.is_of("web", "there@sha256:1") && now.is_of("db", "there@sha256:1"));
        assert!(!now.is_of("web", "elsewhere@sha256:1"));
        let before = read(r#"{"kind":"componentGone","component":"web"}"#);
        assert!(before.is_of("web", "anywhere") && !before.is_of("db", "anywhere"));
        assert!(!Warning::Gone.is_of("web", "there@sha256:1"));
    }

    proptest! {
        #[test]
        fn a_tag_matches_itself_and_every_star(tag in "[a-z0-9._-]{1,20}", cut in 0usize..20) {
            let cut = cut.min(tag.len());
            prop_assert!(TagPattern::parse(&tag).unwrap().matches(&tag));
            let pattern = format!("{}*", &tag[..cut]);
            prop_assert!(TagPattern::parse(&pattern).unwrap().matches(&tag));
            let pattern = format!("*{}", &tag[cut..]);
            prop_assert!(TagPattern::parse(&pattern).unwrap().matches(&tag));
        }
    }
}
