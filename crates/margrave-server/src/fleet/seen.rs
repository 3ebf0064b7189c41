//! What somebody saw before they asked for a change, and whether it still is so when it is their turn.

use super::Error;

/// What a change is made on condition of. It is compared while nobody else decides: what another one wrote after it was looked at,
/// by whatever way, is not lost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Seen<T> {
    /// Whatever is there.
    #[default]
    Any,
    Nothing,
    This(T),
}

impl<T> Seen<T> {
    /// The part of it that the change is about.
    pub(crate) fn map<U>(self, part: impl FnOnce(T) -> U) -> Seen<U> {
        match self {
            Seen::Any => Seen::Any,
            Seen::Nothing => Seen::Nothing,
            Seen::This(seen) => Seen::This(part(seen)),
        }
    }
}

impl<T: PartialEq> Seen<T> {
    pub(super) fn check(&self, is: Option<&T>) -> Result<(), Error> {
        let same = match self {
            Seen::Any => true,
            Seen::Nothing => is.is_none(),
            Seen::This(seen) => is == Some(seen),
        };
        if same { Ok(()) } else { Err(Error::Changed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_made_of_what_was_seen_and_of_nothing_else() {
        let holds = |seen: Seen<u8>, is: Option<u8>| seen.check(is.as_ref()).is_ok();
        assert!(holds(Seen::Any, None) && holds(Seen::Any, Some(1)));
        assert!(holds(Seen::Nothing, None) && !holds(Seen::Nothing, Some(1)));
        assert!(
            holds(Seen::This(1), Some(1)) && !holds(Seen::This(1), Some(2)) && !holds(Seen::This(1), None)
        );
    }
}
