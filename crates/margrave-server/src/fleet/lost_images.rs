//! Whether registries still have the images that packages were pinned with. They are asked by digest and with the package
//! (`origin.rs`), for each image seldom, whoever names it. What nobody answers stays as it was last known.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use margrave_core::moment::Moment;
use margrave_core::watch::Warning;
use margrave_oci::reference::{Host, Reference};
use tokio::time::Instant;

use super::catalog::Entry;
use super::images::ANSWER_TIME_MAX;
use super::origin::{LOOK_EVERY, there};
use super::{Error, Fleet};

/// With one package; the others have their turn with the next looks at it.
const ASKED_MAX: usize = 50;
/// With one package, however many registries drag.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Names come from packages; more than that are asked for again with every look.
const REMEMBERED_MAX: usize = 10_000;

/// What registries said of images, by where those were pinned, and when. Watches look at their packages by the minute, and a
/// registry's patience is not theirs.
#[derive(Default)]
pub(super) struct ImageLooks {
    heard: Mutex<HashMap<String, (Moment, bool)>>,
}

impl ImageLooks {
    pub(super) fn heard(&self, at: &str, now: Moment) -> Option<bool> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(at).filter(|(when, _)| is_fresh(*when, now)).map(|(_, there)| *there)
    }

    pub(super) fn note(&self, at: &str, now: Moment, there: bool) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.retain(|_, (when, _)| is_fresh(*when, now));
        if heard.len() < REMEMBERED_MAX {
            heard.insert(at.to_owned(), (now, there));
        }
    }
}

/// A clock that was put back makes nobody wait for longer.
fn is_fresh(when: Moment, now: Moment) -> bool {
    when <= now && now < when.after(LOOK_EVERY)
}

/// Which of so many images is asked for first: with every look that is due another one, so that each has its turn, also where the
/// server is started anew between two looks.
fn first_in_turn(count: usize, now: Moment) -> usize {
    let round = u128::from(now.0) / LOOK_EVERY.as_millis();
    match count > ASKED_MAX {
        true => (round * ASKED_MAX as u128 % count as u128) as usize,
        false => 0,
    }
}

impl Fleet {
    /// The pinned images of a package that their registries do not have, as far as they answer. `before` is what was known of it;
    /// what was gone is asked for `anew` where somebody wants it now.
    pub(super) async fn images_gone(
        &self,
        entry: &Entry,
        before: &[Warning],
        anew: bool,
    ) -> Result<Vec<Warning>, Error> {
        // The same bytes are asked for once, whatever they are called.
        let mut meant: BTreeMap<String, (Reference, &String)> = BTreeMap::new();
        for (name, image) in &entry.record.images.known {
            if let (Some(digest), Ok(reference)) = (image.digest, self.image_reference(name))
                && !reference.repository.host.is_own_registry()
            {
                let pinned = reference.pinned(digest);
                meant.entry(pinned.to_string()).or_insert((pinned, name));
            }
        }
        let open = self.open_registries().await?;
        let until = Instant::now() + TIME_MAX;
        let mut asked = 0;
        let mut gone = BTreeMap::new();
        let first = first_in_turn(meant.len(), self.now());
        let mut meant: Vec<(String, (Reference, &String))> = meant.into_iter().collect();
        meant.rotate_left(first);
        for (at, (pinned, name)) in meant {
            let host = &pinned.repository.host;
            let heard = self.image_looks.heard(&at, self.now()).filter(|there| *there || !anew);
            let is_there = match heard {
                Some(there) => Some(there),
                None if asked < ASKED_MAX
                    && self.may_ask(host, &open)
                    && !self.silent.has(host, Instant::now()) =>
                {
                    asked += 1;
                    self.ask_for_image(&at, &pinned, until).await
                }
                None => None,
            };
            let was_gone = || {
                before.iter().any(|known| matches!(known, Warning::ImageGone { at: was, .. } if *was == at))
            };
            if !is_there.unwrap_or_else(|| !was_gone()) {
                gone.insert(at.clone(), Warning::ImageGone { image: name.clone(), at });
            }
        }
        Ok(gone.into_values().collect())
    }

    /// Whether it is there; `None` where that could not be found out in time.
    async fn ask_for_image(&self, at: &str, pinned: &Reference, until: Instant) -> Option<bool> {
        let (host, now) = (&pinned.repository.host, Instant::now());
        if until <= now {
            return None;
        }
        let client = self.upstream();
        let answer_by = now + ANSWER_TIME_MAX;
        let answer = tokio::time::timeout_at(until.min(answer_by), there(&client, pinned)).await;
        match answer {
            Ok(Ok(found)) => {
                self.image_looks.note(at, self.now(), found.is_some());
                return Some(found.is_some());
            }
            Ok(Err(error)) => {
                tracing::debug!(%host, error = &error as &dyn std::error::Error, "an image could not be asked for");
                // One that refuses answers, and others may be told of other images.
                if error.is_passing() {
                    self.silent.note(host, Instant::now());
                }
            }
            // One that had less than its time may only be slow.
            Err(_) if answer_by <= until => self.silent.note(host, Instant::now()),
            Err(_) => {}
        }
        None
    }

    /// The registries elsewhere that a server may ask which asks no others.
    pub(super) async fn open_registries(&self) -> Result<BTreeSet<String>, Error> {
        Ok(match self.options.air_gapped {
            true => self.store.registries().await?.into_iter().map(|registry| registry.host).collect(),
            false => BTreeSet::new(),
        })
    }

    pub(super) fn may_ask(&self, host: &Host, open: &BTreeSet<String>) -> bool {
        !self.options.air_gapped || host.is_loopback() || open.contains(host.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_images_each_has_its_turn() {
        for count in [1, ASKED_MAX, ASKED_MAX + 1, 2 * ASKED_MAX, 173] {
            let looks = count.div_ceil(ASKED_MAX) as u64;
            let mut asked = BTreeSet::new();
            for look in 0..looks {
                let first = first_in_turn(count, Moment(look * LOOK_EVERY.as_millis() as u64 + 5));
                asked.extend((first..first + ASKED_MAX).map(|at| at % count));
            }
            assert_eq!(asked.len(), count);
        }
    }

    #[test]
    fn what_was_heard_counts_for_a_while_and_not_without_end() {
        let (looks, now) = (ImageLooks::default(), Moment(1_000_000_000));
        looks.note("a", now, false);
        assert_eq!((looks.heard("a", now), looks.heard("b", now)), (Some(false), None));
        assert_eq!(looks.heard("a", now.after(LOOK_EVERY)), None);
        assert_eq!(looks.heard("a", Moment(now.0 - 1)), None, "the clock was put back");
        (0..2 * REMEMBERED_MAX).for_each(|number| looks.note(&number.to_string(), now, true));
        assert_eq!(looks.heard.lock().unwrap().len(), REMEMBERED_MAX);
        looks.note("c", now.after(LOOK_EVERY), true);
        assert_eq!(looks.heard.lock().unwrap().len(), 1, "what is old makes room");
    }
}
