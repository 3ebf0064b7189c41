//! The authority behind the fleet's SVIDs, and how another takes its place (ID-178).
//!
//! Three steps, each written down before it counts, each with a higher number in the trust bundle:
//!
//! 1. *announced*: devices are told to trust the next authority as well; everything is still issued by the old one;
//! 2. *switched*: the next one issues, the old one is trusted for what it issued before;
//! 3. *settled*: the old one is retired, and what it issued opens no connection any more.
//!
//! Devices of both are served in the meantime. A first start makes two files, a certificate and a key. A rotation
//! writes one file with all of it, whole or not at all, which counts from then on. When devices were told for long
//! enough is decided by whoever rotates; when nothing is left of the old authority is asked of the fleet.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use margrave_core::digest::Digest;
use margrave_core::id::TrustDomain;
use margrave_core::moment::Moment;
use margrave_identity::authority::Authority;
use margrave_identity::bundle::{Anchor, Bundle};
use margrave_identity::certificate::{chain_from_pem, pem_of};
use margrave_identity::live::LiveBundle;
use serde::{Deserialize, Serialize};

use crate::identity::{IdentityError, io_error, read_text, sync_directory};
use crate::server::replace_private;

pub(crate) const CERTIFICATE: &str = "authority.crt";
pub(crate) const KEY: &str = "authority.key";
const ROTATED: &str = "authorities.json";

/// How often devices look for a changed trust bundle. Nothing changes it but an operator who plans ahead.
pub(crate) const BUNDLE_REFRESH: Duration = Duration::from_secs(4 * 60 * 60);

/// Everything that a rotation leaves behind, in one file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kept {
    sequence: u64,
    issuing: Pair,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Next>,
    /// Only the certificate: nobody can issue with it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    former: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    certificate: String,
    key: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Next {
    certificate: String,
    key: String,
    switch_at: u64,
}

/// How far a rotation is.
enum Phase {
    Settled,
    Announced { next: Arc<Authority>, switch_at: Moment },
    Switched { former: Anchor },
}

struct State {
    sequence: u64,
    phase: Phase,
}

/// The authority that issues, and the one before or after it.
pub(crate) struct Authorities {
    trust_domain: TrustDomain,
    directory: PathBuf,
    issuing: ArcSwap<Authority>,
    state: Mutex<State>,
    bundle: Arc<LiveBundle>,
}

/// How far a rotation is, to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
    pub(crate) sequence: u64,
    pub(crate) issuing: Shown,
    pub(crate) next: Option<(Shown, Moment)>,
    pub(crate) former: Option<Shown>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) fingerprint: Digest,
    pub(crate) expires: Moment,
}

/// Why a step of a rotation was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RotationError {
    #[error("a rotation is under way; `margrave authority show` says how far it is")]
    UnderWay,
    #[error(
        "issuing was not switched to the next authority yet; wait for that, or rotate with --now next time"
    )]
    NotSwitched,
    #[error("there is no former authority to retire")]
    NothingToRetire,
    #[error("the server's keys could not be written")]
    Keys(#[source] IdentityError),
}

impl Authorities {
    pub(crate) fn load(
        directory: &Path,
        trust_domain: TrustDomain,
        now: Moment,
    ) -> Result<Authorities, IdentityError> {
        let path = directory.join(ROTATED);
        let (issuing, state) = if path.exists() {
            load_rotated(&path, &trust_domain, now)?
        } else {
            let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
            let pair = Pair { certificate: read_text(&certificate)?, key: read_text(&key)? };
            let issuing = load_pair(&certificate, &trust_domain, &pair.certificate, &pair.key, now)?;
            (issuing, State { sequence: 1, phase: Phase::Settled })
        };
        let bundle = bundle_of(&trust_domain, &issuing, &state);
        Ok(Authorities {
            trust_domain,
            directory: directory.to_owned(),
            issuing: ArcSwap::from_pointee(issuing),
            state: Mutex::new(state),
            bundle: LiveBundle::new(bundle),
        })
    }

    /// The one that issues at this moment.
    pub(crate) fn issuing(&self) -> Arc<Authority> {
        self.issuing.load_full()
    }

    /// What peers are verified against, and what the server publishes: never one without the other (ID-147).
    pub(crate) fn bundle(&self) -> &Arc<LiveBundle> {
        &self.bundle
    }

    pub(crate) fn picture(&self) -> Picture {
        let state = self.lock();
        let mut picture = Picture {
            sequence: state.sequence,
            issuing: shown(&self.issuing().anchor()),
            next: None,
            former: None,
        };
        match &state.phase {
            Phase::Settled => {}
            Phase::Announced { next, switch_at } => picture.next = Some((shown(&next.anchor()), *switch_at)),
            Phase::Switched { former } => picture.former = Some(shown(former)),
        }
        picture
    }

    /// Makes the next authority and tells everybody to trust it; it issues from `switch_at` on.
    pub(crate) fn announce(&self, now: Moment, switch_at: Moment) -> Result<(), RotationError> {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Settled) {
            return Err(RotationError::UnderWay);
        }
        let next = Authority::create(self.trust_domain.clone(), now)
            .map_err(|source| RotationError::Keys(IdentityError::Create(source)))?;
        let phase = Phase::Announced { next: Arc::new(next), switch_at };
        self.step(&mut state, self.issuing(), phase)
    }

    /// Lets the next authority issue once its time has come; says whether it did.
    pub(crate) fn advance(&self, now: Moment) -> Result<bool, RotationError> {
        let mut state = self.lock();
        let Phase::Announced { next, switch_at } = &state.phase else { return Ok(false) };
        if now < *switch_at {
            return Ok(false);
        }
        let next = Arc::clone(next);
        let phase = Phase::Switched { former: self.issuing().anchor() };
        self.step(&mut state, next, phase)?;
        Ok(true)
    }

    /// Ends the trust in the former authority.
    pub(crate) fn retire(&self) -> Result<(), RotationError> {
        let mut state = self.lock();
        match state.phase {
            Phase::Switched { .. } => self.step(&mut state, self.issuing(), Phase::Settled),
            Phase::Announced { .. } => Err(RotationError::NotSwitched),
            Phase::Settled => Err(RotationError::NothingToRetire),
        }
    }

    /// First on disk, then in force: what devices were told once is never taken back by a crash.
    fn step(
        &self,
        state: &mut MutexGuard<'_, State>,
        issuing: Arc<Authority>,
        phase: Phase,
    ) -> Result<(), RotationError> {
        let after = State { sequence: state.sequence + 1, phase };
        self.write(&issuing, &after).map_err(RotationError::Keys)?;
        let bundle = bundle_of(&self.trust_domain, &issuing, &after);
        **state = after;
        self.issuing.store(issuing);
        self.bundle.replace(bundle).expect("every bundle here is of our own trust domain");
        Ok(())
    }

    fn write(&self, issuing: &Authority, state: &State) -> Result<(), IdentityError> {
        let pair = |authority: &Authority| Pair {
            certificate: authority.certificate_pem(),
            key: authority.key_pem(),
        };
        let (next, former) = match &state.phase {
            Phase::Settled => (None, None),
            Phase::Announced { next, switch_at } => {
                let Pair { certificate, key } = pair(next);
                (Some(Next { certificate, key, switch_at: switch_at.0 }), None)
            }
            Phase::Switched { former } => (None, Some(pem_of(former.certificate()))),
        };
        let kept = Kept { sequence: state.sequence, issuing: pair(issuing), next, former };
        let bytes = serde_json::to_vec_pretty(&kept).expect("texts and numbers always serialise");
        let path = self.directory.join(ROTATED);
        replace_private(&path, &bytes).map_err(io_error(&path, "written"))?;
        sync_directory(&self.directory)?;
        // From now on these two would only mislead whoever looks for the key that issues. Nothing reads them.
        for path in [CERTIFICATE, KEY].map(|name| self.directory.join(name)) {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(path = %path.display(), error, "an outdated key could not be removed; remove it by hand");
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn load_rotated(
    path: &Path,
    trust_domain: &TrustDomain,
    now: Moment,
) -> Result<(Authority, State), IdentityError> {
    let damaged = |why: String| IdentityError::Damaged { path: path.to_owned(), why };
    let Kept { sequence, issuing, next, former } =
        serde_json::from_str(&read_text(path)?).map_err(|error| damaged(error.to_string()))?;
    let issuing = load_pair(path, trust_domain, &issuing.certificate, &issuing.key, now)?;
    let phase = match (next, former) {
        (None, None) => Phase::Settled,
        (Some(Next { certificate, key, switch_at }), None) => {
            let next = load_pair(path, trust_domain, &certificate, &key, now)?;
            Phase::Announced { next: Arc::new(next), switch_at: Moment(switch_at) }
        }
        (None, Some(former)) => {
            let certificate =
                chain_from_pem(&former).map_err(|error| damaged(error.to_string()))?.swap_remove(0);
            Phase::Switched { former: Anchor::new(certificate).map_err(|error| damaged(error.to_string()))? }
        }
        (Some(_), Some(_)) => return Err(damaged("it has an authority before and one after".to_owned())),
    };
    Ok((issuing, State { sequence, phase }))
}

fn load_pair(
    path: &Path,
    trust_domain: &TrustDomain,
    certificate: &str,
    key: &str,
    now: Moment,
) -> Result<Authority, IdentityError> {
    Authority::load(trust_domain.clone(), certificate, key, now)
        .map_err(|source| IdentityError::Authority { path: path.to_owned(), source })
}

fn bundle_of(trust_domain: &TrustDomain, issuing: &Authority, state: &State) -> Bundle {
    let bundle = Bundle::of_anchor(trust_domain.clone(), issuing.anchor(), state.sequence, BUNDLE_REFRESH);
    match &state.phase {
        Phase::Settled => bundle,
        Phase::Announced { next, .. } => bundle.with_anchor(next.anchor()),
        Phase::Switched { former } => bundle.with_anchor(former.clone()),
    }
}

fn shown(anchor: &Anchor) -> Shown {
    Shown { fingerprint: Digest::of(anchor.certificate()), expires: anchor.not_after() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(1_800_000_000_000);
    const HOUR: Duration = Duration::from_secs(60 * 60);

    fn domain() -> TrustDomain {
        "plant.example".parse().unwrap()
    }

    fn begun() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(domain(), NOW).unwrap();
        fs::write(directory.path().join(CERTIFICATE), authority.certificate_pem()).unwrap();
        fs::write(directory.path().join(KEY), authority.key_pem()).unwrap();
        directory
    }

    fn load(directory: &tempfile::TempDir) -> Authorities {
        Authorities::load(directory.path(), domain(), NOW).unwrap()
    }

    fn anchors(authorities: &Authorities) -> Vec<Digest> {
        authorities.bundle().current().anchors().iter().map(|anchor| shown(anchor).fingerprint).collect()
    }

    #[test]
    fn id_145_178_each_step_is_kept_numbered_and_survives_a_restart() {
        let directory = begun();
        let check = |authorities: Authorities, sequence: u64| {
            // What is in force now is what is in force after the next start.
            let again = load(&directory);
            assert_eq!(again.picture(), authorities.picture());
            assert_eq!(anchors(&again), anchors(&authorities));
            assert_eq!(again.bundle().current().sequence(), Some(sequence));
            assert_eq!(again.issuing().certificate_pem(), authorities.issuing().certificate_pem());
            again
        };
        let authorities = load(&directory);
        let old = authorities.picture().issuing;
        let authorities = check(authorities, 1);

        authorities.announce(NOW, NOW.after(HOUR)).unwrap();
        assert!(matches!(authorities.announce(NOW, NOW), Err(RotationError::UnderWay)));
        assert!(matches!(authorities.retire(), Err(RotationError::NotSwitched)));
        let (new, at) = authorities.picture().next.unwrap();
        assert_eq!((authorities.picture().issuing, at), (old.clone(), NOW.after(HOUR)));
        assert_eq!(anchors(&authorities), [old.fingerprint, new.fingerprint]);
        let authorities = check(authorities, 2);

        assert!(!authorities.advance(NOW.after(HOUR / 2)).unwrap());
        assert!(authorities.advance(NOW.after(HOUR)).unwrap());
        assert!(!authorities.advance(NOW.after(HOUR * 2)).unwrap());
        let picture = authorities.picture();
        assert_eq!((picture.issuing, picture.former), (new.clone(), Some(old.clone())));
        assert_eq!(anchors(&authorities), [new.fingerprint, old.fingerprint]);
        let authorities = check(authorities, 3);

        authorities.retire().unwrap();
        assert!(matches!(authorities.retire(), Err(RotationError::NothingToRetire)));
        assert_eq!(anchors(&authorities), [new.fingerprint]);
        let authorities = check(authorities, 4);
        authorities.announce(NOW, NOW).unwrap();
        check(authorities, 5);
    }

    #[test]
    fn id_211_the_keys_of_a_rotation_are_for_nobody_elses_eyes_and_the_old_ones_go() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = begun();
        let authorities = load(&directory);
        let old_key = authorities.issuing().key_pem();
        authorities.announce(NOW, NOW).unwrap();
        let path = directory.path().join(ROTATED);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!directory.path().join(KEY).exists() && !directory.path().join(CERTIFICATE).exists());
        authorities.advance(NOW).unwrap();
        let line = old_key.lines().nth(1).unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains(line), "a key that issues no more is not kept");
    }

    #[test]
    fn a_damaged_file_is_named_and_the_step_that_cannot_be_written_is_not_made() {
        let directory = begun();
        let authorities = load(&directory);
        authorities.announce(NOW, NOW).unwrap();
        let path = directory.path().join(ROTATED);
        let good = fs::read_to_string(&path).unwrap();
        for bad in ["", "{}", &good.replace("BEGIN CERTIFICATE", "BEGIN NONSENSE"), &good[..good.len() / 2]] {
            fs::write(&path, bad).unwrap();
            let error = Authorities::load(directory.path(), domain(), NOW).err().unwrap();
            assert!(error.to_string().contains(ROTATED) && error.to_string().contains("backup"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("in the way"), "").unwrap();
        let before = authorities.picture();
        assert!(matches!(authorities.advance(NOW), Err(RotationError::Keys(_))));
        assert_eq!(authorities.picture(), before);
    }
}
