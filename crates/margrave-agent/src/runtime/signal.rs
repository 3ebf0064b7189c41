//! Signals as people and engines write them, and which of them end a container.

use super::container::Container;

/// As Linux numbers them on all but a few processors; the names that two have are both here.
const NUMBERS: [(&str, u8); 33] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
];
const REALTIME: std::ops::RangeInclusive<u8> = 34..=64;
/// Whoever sends one of these wants an end: interrupt, quit, kill, terminate.
const ENDING: [u8; 4] = [2, 3, 9, 15];
/// What the code of whoever was ended by a signal begins with.
const ENDED_BY: i64 = 128;

/// Whether whoever sent a signal to a container wanted to end it, or did. One that nobody here knows may be anything.
pub(super) fn ends(signal: &str, container: &Container) -> bool {
    let Some(number) = number(signal) else { return true };
    let stops = || container.stop_signal.as_deref().and_then(self::number) == Some(number);
    ENDING.contains(&number) || container.exit_code == ENDED_BY + i64::from(number) || stops()
}

/// Of `15`, `TERM`, `SIGTERM`, `sigterm`, `RTMIN+3`.
fn number(signal: &str) -> Option<u8> {
    let signal = signal.trim().to_ascii_uppercase();
    if let Ok(number) = signal.parse() {
        return (1..=*REALTIME.end()).contains(&number).then_some(number);
    }
    let name = signal.strip_prefix("SIG").unwrap_or(&signal);
    if let Some((_, number)) = NUMBERS.iter().find(|(known, _)| *known == name) {
        return Some(*number);
    }
    let (min, max) = REALTIME.into_inner();
    let realtime = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(""), _) => min,
        (_, Some("")) => max,
        (Some(above), _) => min.checked_add(above.strip_prefix('+')?.parse().ok()?)?,
        (_, Some(below)) => max.checked_sub(below.strip_prefix('-')?.parse().ok()?)?,
        (None, None) => return None,
    };
    REALTIME.contains(&realtime).then_some(realtime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::container::Status;
    use crate::runtime::health::tests::container;

    #[test]
    fn a_signal_is_known_by_its_number_and_by_all_its_names() {
        for (text, want) in [
            ("15", Some(15)),
            ("TERM", Some(15)),
            ("sigterm", Some(15)),
            ("SIGPOLL", Some(29)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMIN", Some(34)),
            ("RTMAX-1", Some(63)),
        ] {
            assert_eq!(number(text), want, "{text}");
        }
        for unknown in ["", "0", "65", "999", "-1", "SIG", "TERMINATE", "RTMIN+31", "RTMIN-1", "RTMAX-99"] {
            assert_eq!(number(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn what_a_container_is_stopped_by_and_what_it_ended_of_ends_it() {
        let of = |stop_signal: &str, exit_code| Container {
            stop_signal: Some(stop_signal.into()),
            exit_code,
            ..container("web", Status::Exited)
        };
        // As systemd and nginx want it.
        assert!(ends("37", &of("SIGRTMIN+3", 0)) && ends("28", &of("WINCH", 0)));
        assert!(!ends("28", &of("SIGTERM", 1)) && ends("15", &of("WINCH", 0)));
        // It knew no better than to end.
        assert!(ends("1", &of("SIGTERM", 129)) && !ends("1", &of("SIGTERM", 139)));
    }
}
