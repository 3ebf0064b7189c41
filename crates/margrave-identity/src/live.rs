//! What may be replaced while connections are open: our own SVID, the web certificate, the trust bundle.
//!
//! The TLS configurations hold these and look at them on every handshake, so a renewal needs no restart
//! (ID-180). Open connections keep what they shook hands with; ending those is their owner's task (ID-106,
//! ID-113), who can ask to be told. Each replacement has a number, so that what was made under an earlier one
//! (session tickets) is recognised and dropped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use margrave_core::id::TrustDomain;
use margrave_core::identity::{ClientName, ServerName};
use margrave_core::moment::Moment;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::bundle::Bundle;
use crate::svid::{Svid, SvidError};
use crate::verify::memory::Memory;
use crate::verify::{Peer, Refusal, verify_peer};
use crate::web::WebLeaf;

/// The SVID that we present, whichever it is at the moment.
#[derive(Debug)]
pub struct LiveSvid {
    svid: ArcSwap<Svid>,
    replaced: AtomicU64,
}

impl LiveSvid {
    pub fn new(svid: Svid) -> Arc<LiveSvid> {
        Arc::new(LiveSvid { svid: ArcSwap::from_pointee(svid), replaced: AtomicU64::new(0) })
    }

    pub fn current(&self) -> Arc<Svid> {
        self.svid.load_full()
    }

    /// How often it was replaced.
    pub(crate) fn generation(&self) -> u64 {
        self.replaced.load(Ordering::Acquire)
    }

    /// Presents `svid` from now on. It must bear the same name (ID-172).
    pub fn replace(&self, svid: Svid) -> Result<(), SvidError> {
        let current = self.current();
        if current.name() != svid.name() {
            return Err(SvidError::OtherName {
                current: Box::new(current.name().clone()),
                new: Box::new(svid.name().clone()),
            });
        }
        self.svid.store(Arc::new(svid));
        self.replaced.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl ResolvesServerCert for LiveSvid {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.svid.load().certified())
    }
}

impl ResolvesClientCert for LiveSvid {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.svid.load().certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The trust bundle that peers are verified against, whichever it is at the moment.
pub struct LiveBundle {
    bundle: ArcSwap<Bundle>,
    replaced: AtomicU64,
    told: Mutex<Vec<Box<dyn Fn() + Send>>>,
    verified: Memory,
}

impl std::fmt::Debug for LiveBundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LiveBundle").field(&self.bundle).finish()
    }
}

/// A bundle of another trust domain was offered as a replacement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the new trust bundle is of trust domain {new}, the one in use is of {current} (ID-003)")]
pub struct OtherTrustDomain {
    pub current: TrustDomain,
    pub new: TrustDomain,
}

impl LiveBundle {
    pub fn new(bundle: Bundle) -> Arc<LiveBundle> {
        Arc::new(LiveBundle {
            bundle: ArcSwap::from_pointee(bundle),
            replaced: AtomicU64::new(0),
            told: Mutex::default(),
            verified: Memory::default(),
        })
    }

    pub fn current(&self) -> Arc<Bundle> {
        self.bundle.load_full()
    }

    /// How often it was replaced.
    pub fn generation(&self) -> u64 {
        self.replaced.load(Ordering::Acquire)
    }

    /// The client behind `chain` by [`verify_peer`] with the bundle of this moment, from memory where the same
    /// question was answered before.
    pub fn verify_client(
        &self,
        chain: &[CertificateDer<'_>],
        now: Moment,
        own: &ServerName,
    ) -> Result<Arc<Peer<ClientName>>, Refusal> {
        let key = Memory::key(chain);
        // The number before the bundle: should it be replaced in between, what follows is remembered under a number
        // that nobody asks for.
        let generation = self.generation();
        if let Some(peer) = self.verified.recall(&key, generation, own, now) {
            return Ok(peer);
        }
        let peer = Arc::new(verify_peer(chain, now, own, &self.current())?);
        self.verified.remember(key, generation, now, &peer);
        Ok(peer)
    }

    /// Calls `told` after every replacement, on whichever thread replaces: be brief.
    pub fn on_replace(&self, told: impl Fn() + Send + 'static) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(told));
    }

    /// Replaces all anchors; nothing is merged (ID-142). Open connections are to be verified again (ID-113).
    pub fn replace(&self, bundle: Bundle) -> Result<(), OtherTrustDomain> {
        let current = self.current();
        if current.trust_domain() != bundle.trust_domain() {
            return Err(OtherTrustDomain {
                current: current.trust_domain().clone(),
                new: bundle.trust_domain().clone(),
            });
        }
        self.bundle.store(Arc::new(bundle));
        self.replaced.fetch_add(1, Ordering::Release);
        self.told.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|told| told());
        Ok(())
    }
}

/// The certificate of the web listener, whichever it is at the moment.
#[derive(Debug)]
pub struct LiveWebLeaf(ArcSwap<WebLeaf>);

impl LiveWebLeaf {
    pub fn new(leaf: WebLeaf) -> Arc<LiveWebLeaf> {
        Arc::new(LiveWebLeaf(ArcSwap::from_pointee(leaf)))
    }

    pub fn current(&self) -> Arc<WebLeaf> {
        self.0.load_full()
    }

    pub fn replace(&self, leaf: WebLeaf) {
        self.0.store(Arc::new(leaf));
    }
}

impl ResolvesServerCert for LiveWebLeaf {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load().certified())
    }
}
