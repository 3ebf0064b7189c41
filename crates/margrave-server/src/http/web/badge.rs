//! States as people see them: an icon, a word and a tone, never a colour alone.

use askama::Template;
use askama::filters::HtmlSafe;
use margrave_core::lifecycle::State;

/// How a state feels; each is a class of the style sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Ok,
    Busy,
    Warn,
    Bad,
    Off,
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Tone::Ok => "ok",
            Tone::Busy => "busy",
            Tone::Warn => "warn",
            Tone::Bad => "bad",
            Tone::Off => "off",
        }
    }
}

/// A symbol of the sprite that every page carries.
#[derive(Template, Clone, Copy)]
#[template(
    ext = "html",
    source = r##"<svg class="icon{% if turns %} turns{% endif %}" aria-hidden="true"><use href="#i-{{ name }}"/></svg>"##
)]
pub(crate) struct Icon {
    pub(crate) name: &'static str,
    turns: bool,
}

impl HtmlSafe for Icon {}

impl Icon {
    pub(crate) const fn new(name: &'static str) -> Self {
        Icon { name, turns: false }
    }
}

#[derive(Template, Clone)]
#[template(
    ext = "html",
    source = r#"<span class="badge {{ tone.class() }}{% if state %} state{% endif %}" data-state="{{ word }}">{{ icon }}{{ word }}</span>"#
)]
pub(crate) struct Badge {
    pub(crate) tone: Tone,
    pub(crate) icon: Icon,
    pub(crate) word: String,
    /// One of the eight, spelled as everywhere else.
    state: bool,
}

impl HtmlSafe for Badge {}

impl Badge {
    fn new(tone: Tone, icon: &'static str, word: &str) -> Self {
        Badge { tone, icon: Icon::new(icon), word: word.to_owned(), state: false }
    }

    /// Somebody who is not let in yet.
    pub(crate) fn waiting() -> Self {
        Badge::new(Tone::Busy, "wait", "waiting")
    }

    /// The state of an assignment.
    pub(crate) fn state(word: &str) -> Self {
        let (tone, icon) = match State::parse(word) {
            Some(State::Pending) => (Tone::Off, "wait"),
            Some(State::Installing | State::Updating) => (Tone::Busy, "busy"),
            Some(State::Installed) => (Tone::Ok, "ok"),
            Some(State::Failed) => (Tone::Bad, "failed"),
            Some(State::RollingBack) => (Tone::Warn, "back"),
            Some(State::Deleting) => (Tone::Warn, "bin"),
            Some(State::Deleted) | None => (Tone::Off, "gone"),
        };
        let mut badge = Badge::new(tone, icon, word);
        badge.state = true;
        badge.icon.turns = tone == Tone::Busy;
        badge
    }

    /// An update that failed, on a device that runs its last good version again.
    pub(crate) fn went_back() -> Self {
        Badge::new(Tone::Bad, "back", "went back")
    }

    /// A component of it, which failed in the update.
    pub(crate) fn failed_update() -> Self {
        Badge::new(Tone::Bad, "failed", "failed in the update")
    }

    /// What a rollout that was aborted did not come to.
    pub(crate) fn left_behind() -> Self {
        Badge::new(Tone::Warn, "pause", "left behind")
    }

    /// A certificate that ends soon, or has ended.
    pub(crate) fn certificate(word: &str) -> Self {
        let tone = if word == "expired" { Tone::Bad } else { Tone::Warn };
        Badge::new(tone, "key", word)
    }

    /// The state of a component, in the standard's six words.
    pub(crate) fn component(word: &str) -> Self {
        let (tone, icon) = match word {
            "installed" => (Tone::Ok, "ok"),
            "installing" => (Tone::Busy, "busy"),
            "failed" => (Tone::Bad, "failed"),
            "removing" => (Tone::Warn, "bin"),
            "pending" => (Tone::Off, "wait"),
            _ => (Tone::Off, "gone"),
        };
        let mut badge = Badge::new(tone, icon, word);
        badge.icon.turns = tone == Tone::Busy;
        badge
    }

    /// How healthy something is.
    pub(crate) fn health(word: &str) -> Self {
        let (tone, icon) = match word {
            "healthy" => (Tone::Ok, "ok"),
            "unhealthy" | "not running" => (Tone::Bad, "failed"),
            "starting" => (Tone::Busy, "busy"),
            "going" => (Tone::Warn, "bin"),
            _ => (Tone::Off, "wait"),
        };
        let mut badge = Badge::new(tone, icon, word);
        badge.icon.turns = tone == Tone::Busy;
        badge
    }

    /// The condition of a device.
    pub(crate) fn condition(word: &str) -> Self {
        let (tone, icon) = match word {
            "converged" => (Tone::Ok, "ok"),
            "pending" => (Tone::Busy, "wait"),
            "failed" => (Tone::Bad, "failed"),
            "silent" => (Tone::Warn, "silent"),
            _ => (Tone::Off, "retired"),
        };
        Badge::new(tone, icon, word)
    }

    /// How a device stands to a rollout, or a rollout to people.
    pub(crate) fn step(word: &str) -> Self {
        let (tone, icon) = match word {
            "done" => (Tone::Ok, "ok"),
            "under way" | "running" | "waiting" => (Tone::Busy, "wait"),
            "failed" | "halted" | "reverting" => (Tone::Bad, "failed"),
            "paused" | "aborted" => (Tone::Warn, "pause"),
            _ => (Tone::Off, "gone"),
        };
        let mut badge = Badge::new(tone, icon, word);
        // Whose turn has not come is not busy.
        if word == "waiting" {
            badge.tone = Tone::Off;
        }
        badge
    }

    pub(crate) fn fits() -> Self {
        Badge::new(Tone::Ok, "ok", "fits")
    }

    pub(crate) fn does_not_fit() -> Self {
        Badge::new(Tone::Off, "gone", "does not fit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_core::lifecycle::STATES;

    #[test]
    fn every_state_has_an_icon_of_the_sprite_and_its_own_word() {
        let sprite = include_str!("../../../assets/icons.svg");
        let states = STATES.iter().map(|state| Badge::state(state.as_str()));
        let components =
            ["pending", "installing", "installed", "failed", "removing", "removed"].map(Badge::component);
        let conditions = ["converged", "pending", "failed", "silent", "retired"].map(Badge::condition);
        let steps = ["done", "under way", "waiting", "failed", "paused", "never"].map(Badge::step);
        let healths =
            ["healthy", "unhealthy", "not running", "starting", "going", "not started"].map(Badge::health);
        let others = [Badge::went_back(), Badge::left_behind(), Badge::certificate("expired")];
        for badge in states.chain(components).chain(conditions).chain(steps).chain(healths).chain(others) {
            let shown = badge.to_string();
            assert!(sprite.contains(&format!("id=\"i-{}\"", badge.icon.name)), "{shown}");
            assert!(shown.ends_with(&format!("{}</span>", badge.word)), "{shown}");
        }
    }

    #[test]
    fn a_state_that_we_do_not_know_is_shown_as_text() {
        let shown = Badge::state("<script>").to_string();
        assert!(!shown.contains("<script>") && shown.contains("&#60;script&#62;"), "{shown}");
    }
}
