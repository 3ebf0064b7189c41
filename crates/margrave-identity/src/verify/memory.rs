//! Chains that were verified, so that a device that comes again is not verified again.
//!
//! The verdict about a chain depends on its bytes, the bundle, the server's name and the time, and on nothing else.
//! The same bytes against the same bundle are therefore as good as they were, for as long as nothing on their path
//! expires. Only acceptance is remembered. What is not remembered any more is verified as if it were new.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest::{Context, SHA256};
use margrave_core::digest::Digest;
use margrave_core::identity::{ClientName, ServerName};
use margrave_core::moment::Moment;
use rustls::pki_types::CertificateDer;

use super::Peer;

/// Of each half; a third of a kilobyte each.
const CHAINS_MAX: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<Halves>);

/// When one half is full the other is forgotten: whoever was seen since then is in the newer one.
#[derive(Debug, Default)]
struct Halves {
    newer: HashMap<Digest, Remembered>,
    older: HashMap<Digest, Remembered>,
}

#[derive(Debug, Clone)]
struct Remembered {
    /// Of the bundle.
    generation: u64,
    /// A clock that goes back makes another question of it.
    since: Moment,
    peer: Arc<Peer<ClientName>>,
}

impl Remembered {
    fn holds(&self, generation: u64, own: &ServerName, now: Moment) -> bool {
        self.generation == generation
            // A client is only ever verified for the server that its name says.
            && self.peer.name.server == *own
            && self.since <= now
            && !crate::certificate::is_expired(self.peer.not_after, now)
    }
}

impl Memory {
    /// What a chain is remembered by: all of its bytes, and where one certificate ends and the next begins.
    pub(crate) fn key(chain: &[CertificateDer<'_>]) -> Digest {
        let mut hash = Context::new(&SHA256);
        for certificate in chain {
            hash.update(&u64::try_from(certificate.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(certificate);
        }
        Digest::from_bytes(hash.finish().as_ref().try_into().expect("SHA-256 gives 32 bytes"))
    }

    pub(crate) fn recall(
        &self,
        key: &Digest,
        generation: u64,
        own: &ServerName,
        now: Moment,
    ) -> Option<Arc<Peer<ClientName>>> {
        let mut halves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let halves = &mut *halves;
        if let Some(remembered) = halves.newer.get(key) {
            return remembered.holds(generation, own, now).then(|| Arc::clone(&remembered.peer));
        }
        let remembered = halves.older.remove(key)?;
        let peer = remembered.holds(generation, own, now).then(|| Arc::clone(&remembered.peer))?;
        halves.keep(*key, remembered);
        Some(peer)
    }

    pub(crate) fn remember(&self, key: Digest, generation: u64, now: Moment, peer: &Arc<Peer<ClientName>>) {
        let remembered = Remembered { generation, since: now, peer: Arc::clone(peer) };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keep(key, remembered);
    }
}

impl Halves {
    fn keep(&mut self, key: Digest, remembered: Remembered) {
        if self.newer.len() >= CHAINS_MAX {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, remembered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forge::{Forge, NOW, SERVER};
    use crate::verify::verify_peer;

    #[test]
    fn where_certificates_end_is_part_of_the_key() {
        let key = |chain: &[&[u8]]| {
            let chain: Vec<_> = chain.iter().map(|der| CertificateDer::from(*der)).collect();
            Memory::key(&chain)
        };
        let keys = [key(&[b"ab", b"c"]), key(&[b"a", b"bc"]), key(&[b"abc"]), key(&[b"abc", b""])];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys.iter().skip(at + 1).all(|other| other != one));
        }
    }

    #[test]
    fn memory_is_bounded_and_who_comes_often_stays() {
        let (memory, forge, own) = (Memory::default(), Forge::new(), ServerName::parse(SERVER).unwrap());
        let peer = Arc::new(verify_peer(&forge.chain().0, NOW, &own, &forge.bundle()).unwrap());
        let key = |number: usize| Digest::of(&number.to_be_bytes());
        memory.remember(key(0), 1, NOW, &peer);
        for number in 1..=3 * CHAINS_MAX {
            memory.remember(key(number), 1, NOW, &peer);
            if number % 1000 == 0 {
                assert!(memory.recall(&key(0), 1, &own, NOW).is_some(), "{number}");
            }
        }
        assert!(memory.recall(&key(1), 1, &own, NOW).is_none());
        let halves = memory.0.lock().unwrap();
        assert!(halves.newer.len() <= CHAINS_MAX && halves.older.len() <= CHAINS_MAX);
    }
}
