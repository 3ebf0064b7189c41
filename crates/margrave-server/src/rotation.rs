//! What operators do with the authority: look at it, rotate it, retire the old one.
//!
//! The steps themselves are in `authority.rs`; here they meet the fleet, which knows who still depends on what, and
//! the log of what people did.

use std::sync::Arc;
use std::time::Duration;

use margrave_wire::operator::{AuthorityCertificate, AuthorityStatus, RetireAuthority, RotateAuthority};

use crate::authority::{Picture, RotationError, Shown};
use crate::fleet::{self, Actor, Clock, Fleet};
use crate::identity::Identity;

/// How long devices have to learn of the next authority when nobody says otherwise. They look every four hours; a day is
/// for those that were switched off over night.
const SWITCH_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Longer waits are a mistake in the unit.
const SWITCH_AFTER_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The identity service as operators see it.
#[derive(Clone)]
pub(crate) struct Rotation {
    pub(crate) identity: Arc<Identity>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) clock: Clock,
}

impl Rotation {
    pub(crate) async fn status(&self) -> Result<AuthorityStatus, fleet::Error> {
        let authorities = &self.identity.authorities;
        let Picture { sequence, issuing, next, former } = authorities.picture();
        let devices_left = match &former {
            Some(_) => self.fleet.certificates_besides(&authorities.issuing().serial_prefix()).await?,
            None => 0,
        };
        let (next, switch_at) = next.unzip();
        let phase = match (&next, &former) {
            (Some(_), _) => "announced",
            (None, Some(_)) => "switched",
            (None, None) => "settled",
        };
        Ok(AuthorityStatus {
            trust_domain: self.identity.name.trust_domain.to_string(),
            sequence,
            phase: phase.to_owned(),
            issuing: certificate(&issuing),
            next: next.as_ref().map(certificate),
            switch_at: switch_at.map(fleet::time),
            former: former.as_ref().map(certificate),
            devices_left,
        })
    }

    /// Makes the next authority known; it issues after the wait.
    pub(crate) async fn rotate(
        &self,
        actor: &Actor,
        want: RotateAuthority,
    ) -> Result<AuthorityStatus, fleet::Error> {
        let wait = want.switch_after_seconds.map_or(SWITCH_AFTER, Duration::from_secs);
        if wait > SWITCH_AFTER_MAX {
            let message = format!("is at most {} seconds, a year", SWITCH_AFTER_MAX.as_secs());
            return Err(fleet::Error::invalid("/switchAfterSeconds", "ID-178", message));
        }
        let now = self.clock.now();
        let switch_at = now.after(wait);
        self.step(move |identity| identity.announce(now, switch_at)).await?;
        let text = format!("the next authority was announced; it issues from {} on", fleet::time(switch_at));
        self.fleet.note_authority(actor, "authority.announced", text).await?;
        self.status().await
    }

    /// Ends the trust in the former authority; without `force`, only once nobody depends on it.
    pub(crate) async fn retire(
        &self,
        actor: &Actor,
        want: RetireAuthority,
    ) -> Result<AuthorityStatus, fleet::Error> {
        let left = self.status().await?.devices_left;
        if left > 0 && !want.force {
            return Err(fleet::Error::conflict(format!(
                "{left} {} a certificate of the former authority and would be out until they join again; wait until \
                 they have renewed (at half of a certificate's life), or force it",
                if left == 1 { "device still has" } else { "devices still have" }
            )));
        }
        self.step(|identity| identity.authorities.retire()).await?;
        let text = match left {
            0 => "the former authority was retired; nobody depended on it".to_owned(),
            1 => "the former authority was retired; 1 device that still had a certificate of it is out"
                .to_owned(),
            left => format!(
                "the former authority was retired; {left} devices that still had a certificate of it are out"
            ),
        };
        self.fleet.note_authority(actor, "authority.retired", text).await?;
        self.status().await
    }

    /// Keys are written to disk, which no other request should wait for. Who asked for it is kept before.
    async fn step(
        &self,
        step: impl FnOnce(&Identity) -> Result<(), RotationError> + Send + 'static,
    ) -> Result<(), fleet::Error> {
        self.fleet.begin().await?;
        let identity = Arc::clone(&self.identity);
        let done = tokio::task::spawn_blocking(move || step(&identity)).await;
        match done {
            Ok(Ok(())) => Ok(()),
            Ok(Err(RotationError::Keys(error))) => Err(fleet::Error::Keys(Box::new(error))),
            Ok(Err(refused)) => Err(fleet::Error::conflict(refused.to_string())),
            Err(broken) => Err(fleet::Error::Keys(Box::new(broken))),
        }
    }
}

fn certificate(shown: &Shown) -> AuthorityCertificate {
    AuthorityCertificate { fingerprint: shown.fingerprint.to_string(), expires: fleet::time(shown.expires) }
}
