//! A way between two programs on this machine that can be cut, as networks are.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::stage::wait_for;

/// A way that can be cut: after so many bytes of answers nothing comes through any more, or not for now.
pub(crate) struct Way {
    pub(crate) port: u16,
    pub(crate) cut: Arc<AtomicBool>,
    /// Then everything waits instead, until there is room again.
    pub(crate) patient: Arc<AtomicBool>,
    pub(crate) left: Arc<AtomicU64>,
}

impl Way {
    /// Where it leads to may not be known before somebody was told where it begins.
    pub(crate) fn reserve() -> (Way, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let port = listener.local_addr().expect("it listens").port();
        (
            Way {
                port,
                cut: Arc::default(),
                patient: Arc::default(),
                left: Arc::new(AtomicU64::new(u64::MAX)),
            },
            listener,
        )
    }

    pub(crate) fn lead(&self, listener: TcpListener, to: u16) {
        let (cut, patient, left) = (self.cut.clone(), self.patient.clone(), self.left.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { return };
                if cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let (cut, patient, left) = (cut.clone(), patient.clone(), left.clone());
                let (mut asks, mut asked) =
                    (near.try_clone().expect("a socket"), far.try_clone().expect("a socket"));
                std::thread::spawn(move || {
                    // Whichever side ends it, both ends are told.
                    let _ended = std::io::copy(&mut asks, &mut asked);
                    let _told = asked.shutdown(Shutdown::Write);
                });
                std::thread::spawn(move || carry(far, near, &cut, &patient, &left));
            }
        });
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool, patient: &AtomicBool, left: &AtomicU64) {
    let mut piece = [0; 16 * 1024];
    while let Ok(length) = from.read(&mut piece) {
        if patient.load(Ordering::SeqCst) {
            wait_for("there is room again", || (left.load(Ordering::SeqCst) >= length as u64).then_some(()));
        }
        let room = left.load(Ordering::SeqCst);
        if room < length as u64 {
            cut.store(true, Ordering::SeqCst);
        } else if room != u64::MAX {
            left.fetch_sub(length as u64, Ordering::SeqCst);
        }
        if length == 0 || cut.load(Ordering::SeqCst) || to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    for end in [&from, &to] {
        let _told = end.shutdown(Shutdown::Both);
    }
}
