//! One at a time for each of many: whoever comes second waits until the first is done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Those that somebody has, or waits for.
pub(super) struct Turns<K>(Mutex<BTreeMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Turns(Mutex::default())
    }
}

impl<K: Ord> Turns<K> {
    pub(super) fn of(&self, key: impl Into<K>) -> Arc<tokio::sync::Mutex<()>> {
        let key = key.into();
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_is_had_by_one_and_forgotten_by_all() {
        let turns = Turns::<String>::default();
        let first = turns.of("web").lock_owned().await;
        assert!(turns.of("web").try_lock_owned().is_err());
        assert!(turns.of("db").try_lock_owned().is_ok());
        drop(first);
        assert!(turns.of("web").try_lock_owned().is_ok());
        turns.of("db");
        assert_eq!(turns.0.lock().unwrap().len(), 1, "nothing is kept of those that nobody has");
    }
}
