//! The server's own certificates, and which of them a person has to see to.

use std::time::Duration;

use margrave_core::moment::Moment;

use super::Web;
use crate::authority::Picture;
use crate::fleet::time;

/// What renews itself is worth a word only when it did not; so is what is about to go anyway.
const RENEWING: Duration = Duration::ZERO;
/// Rotating the authority takes as long as the slowest device is away.
const AUTHORITY_SOON: Duration = Duration::from_secs(90 * 24 * 3600);

const NOT_RENEWED: &str = "It should have renewed itself; the server's log says why it did not.";
const ROTATE: &str =
    "Rotate it with `margrave authority rotate`, while there is time for devices to learn of it.";

pub(super) struct Certificate {
    /// Names its element.
    pub(super) key: &'static str,
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) expires: String,
    pub(super) warning: Option<&'static str>,
    /// What a person does about the warning, where that is left to do.
    pub(super) next: Option<&'static str>,
}

impl Certificate {
    /// All that the server has; told from memory.
    pub(super) fn all(web: &Web) -> Vec<Certificate> {
        let identity = &web.app.rotation.identity;
        let Picture { issuing, next, former, .. } = identity.authorities.picture();
        let now = web.fleet().now();
        let certificate = |key, name, about, expires: Moment, soon: Duration, next| {
            let expires = time(expires);
            Certificate { key, name, about, warning: expiry(now, &expires, soon), expires, next }
        };
        let page = identity.web_leaf.current().not_after();
        let server = identity.svid.current().not_after();
        // Once the next one is known, it takes over by itself.
        let rotate = next.is_none().then_some(ROTATE);
        let about = "Behind every device's certificate; rotated by command.";
        let mut all = vec![
            certificate(
                "page",
                "This page",
                "Renews itself; browsers see it.",
                page,
                RENEWING,
                Some(NOT_RENEWED),
            ),
            certificate(
                "server",
                "The server, to devices",
                "Renews itself.",
                server,
                RENEWING,
                Some(NOT_RENEWED),
            ),
            certificate("authority", "The authority", about, issuing.expires, AUTHORITY_SOON, rotate),
        ];
        all.extend(next.map(|(next, _)| {
            let name = "The next authority";
            certificate("authority-next", name, "Not in use yet.", next.expires, AUTHORITY_SOON, None)
        }));
        all.extend(former.map(|former| {
            let name = "The former authority";
            certificate("authority-former", name, "Still trusted.", former.expires, RENEWING, None)
        }));
        all
    }
}

/// A word about a certificate that ends soon, or has ended.
pub(super) fn expiry(now: Moment, expires: &str, soon: Duration) -> Option<&'static str> {
    let expires = Moment::from_rfc3339(expires)?;
    if expires <= now {
        Some("expired")
    } else if expires <= now.after(soon) {
        Some("ends soon")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_ends_soon_is_told() {
        let now = Moment::from_rfc3339("2026-11-17T09:00:00Z").unwrap();
        for (expires, soon, told) in [
            ("2026-11-17T08:00:00Z", RENEWING, Some("expired")),
            ("2026-11-17T10:00:00Z", RENEWING, None),
            ("2027-01-01T00:00:00Z", AUTHORITY_SOON, Some("ends soon")),
            ("2036-01-01T00:00:00Z", AUTHORITY_SOON, None),
            ("never", AUTHORITY_SOON, None),
        ] {
            assert_eq!(expiry(now, expires, soon), told, "{expires}");
        }
    }
}
