//! Damage to what arrives, done on purpose: a demo shows what comes of it. It can only ever make a download wrong, and what is wrong
//! is refused.

use std::cell::RefCell;

use tokio::sync::oneshot;

thread_local! {
    /// Who hears how the next download of this thread was refused.
    static NEXT: RefCell<Option<oneshot::Sender<String>>> = const { RefCell::new(None) };
}

/// Damages the next thing that this thread downloads, for a device that has the thread for itself. `heard` is told what the device
/// said to it; nothing is done any more when nobody is there to hear it.
pub fn next_download(heard: oneshot::Sender<String>) {
    NEXT.set(Some(heard));
}

/// Changes one byte in the middle, if that was asked for.
pub(crate) fn strike(bytes: &mut [u8]) -> Option<oneshot::Sender<String>> {
    let middle = bytes.len() / 2;
    let byte = bytes.get_mut(middle)?;
    let heard = NEXT.take().filter(|heard| !heard.is_closed())?;
    *byte = !*byte;
    Some(heard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_download_of_one_thread_is_damaged_while_somebody_listens() {
        let struck = || {
            let mut bytes = *b"as promised";
            (strike(&mut bytes).is_some(), bytes == *b"as promised")
        };
        assert_eq!(struck(), (false, true));
        let (heard, _refused) = oneshot::channel();
        next_download(heard);
        assert!(strike(&mut []).is_none(), "nothing has arrived yet");
        std::thread::spawn(move || assert_eq!(struck(), (false, true))).join().unwrap();
        assert_eq!(struck(), (true, false));
        assert_eq!(struck(), (false, true), "once");
        let (heard, refused) = oneshot::channel();
        next_download(heard);
        drop(refused);
        assert_eq!(struck(), (false, true), "nobody listens any more");
    }
}
