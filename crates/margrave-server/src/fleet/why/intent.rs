//! What keeps the server from what its repository says.

use margrave_core::why::Code;

use super::Reason;
use crate::fleet::Fleet;
use crate::fleet::event::time;

impl Fleet {
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
                let text = format!("the newest commit of {url} cannot be applied: {first}{more}");
                reasons.push(Reason::new(Code::IntentFlawed, text));
            }
        }
        if let Some(conflict) = self.desired.conflict() {
            reasons.push(Reason::new(Code::IntentHeld, conflict.message));
        }
        reasons
    }
}
