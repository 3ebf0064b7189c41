//! What keeps the server from what its repository says.

use margrave_core::id::DeploymentName;
use margrave_core::why::Code;
use margrave_store::GoneBack;
use margrave_wire::operator::{self, WhyKind};

use super::{Reason, told};
use crate::fleet::event::time;
use crate::fleet::{Error, Fleet};

impl Fleet {
    /// That a deployment went back by itself and is not as the remote says, if so.
    pub(super) async fn reverted_here(&self, name: &DeploymentName) -> Result<Option<Reason>, Error> {
        let gone = self.store.gone_back().await?.into_iter().find(|(gone, _)| gone == name);
        Ok(gone.map(|(_, GoneBack { revision, failed, why, .. })| {
            let text = format!(
                "{name} was taken back here with revision {revision}, because revision {failed} failed: {why}. It stays so until a newer \
                 commit of the remote says something else about it"
            );
            Reason::new(Code::RevertedHere, text).of(name)
        }))
    }

    /// Ends a chain with that nothing is given to anybody until a person decides, if so: whatever a restored server knows of
    /// its devices may be long past. Says whether that is so.
    pub(super) fn look_behind_restore(&self, chain: &mut Vec<Reason>) -> bool {
        let Some(conflict) = self.desired.conflict().filter(|_| self.desired.is_returning()) else {
            return false;
        };
        chain.retain(|reason| reason.code != Code::Converged);
        chain.push(Reason::new(Code::IntentHeld, conflict.message));
        true
    }

    /// Why the server does not do what its repository says.
    pub(super) fn why_intent(&self) -> operator::Why {
        let mut chain = self.intent_reasons();
        let converged = chain.is_empty();
        if converged {
            chain.push(Reason::new(Code::Converged, "what is wanted is what the repository says"));
        }
        told(WhyKind::Intent.as_str(), converged, &chain)
    }

    /// Why what is wanted is not what was last committed or pushed; nothing if it is.
    pub(super) fn intent_reasons(&self) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if let Some(refused) = self.desired.refused_push() {
            let text =
                format!("a push by {} at {} was refused: {}", refused.by, time(refused.at), refused.why);
            reasons.push(Reason::new(Code::PushRefused, text));
        }
        if let Some(following) = self.desired.following() {
            let url = &following.follow.url;
            if let Some((since, why)) = following.away() {
                let text = format!("{url} does not answer since {}: {why}", time(since));
                reasons.push(Reason::new(Code::IntentAway, text));
            }
            let flaws = following.flaws();
            if let Some(first) = flaws.first() {
                let more = match flaws.len() - 1 {
                    0 => String::new(),
                    more => format!(", and {more} more"),
                };
                let waiting = match following.waiting() {
                    0 | 1 => String::new(),
                    waiting => format!("; {waiting} commits wait behind it"),
                };
                let text = format!("the newest commit of {url} cannot be applied: {first}{more}{waiting}");
                reasons.push(Reason::new(Code::IntentFlawed, text));
            }
        }
        if let Some(conflict) = self.desired.conflict() {
            reasons.push(Reason::new(Code::IntentHeld, conflict.message));
        }
        reasons
    }
}
