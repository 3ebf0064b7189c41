//! Keeps the identity fresh: renews the SVID or watches the files it is installed from, and refreshes the trust
//! bundle.
//!
//! Works beside the main loop and never touches what runs. When nobody renews for so long that the SVID expires,
//! the server is not called any more (`upstream/`), what runs keeps running, and this goes on trying or watching.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use margrave_core::moment::Moment;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::svid::Svid;

use crate::clock;
use crate::identity::{Found, Identity, IdentityError, Reloaded, SvidSource, Watch};
use crate::status::timestamp;
use crate::upstream::Upstream;
use crate::way::Way;

/// The first pause after a failed try; doubles, but an expired device tries at least every hour.
const RETRY_MIN: Duration = Duration::from_secs(15);
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// A publisher's refresh hint below this is a mistake (ID-146); above, a machine that sleeps notices late.
const REFRESH_MIN: Duration = Duration::from_secs(30);
const REFRESH_MAX: Duration = Duration::from_secs(24 * 3600);
/// A service may ask for patience, but not for longer than this.
const QUIET_MAX: Duration = Duration::from_secs(24 * 3600);
/// Clocks jump and machines sleep, so no nap is longer.
const NAP_MAX: Duration = Duration::from_secs(60);
/// How often to look at installed files: soon enough for a technician who replaced one and waits.
const WATCH_EVERY: Duration = Duration::from_secs(5);
/// After which part of its life a certificate that nobody renewed is worth a word (ID-187).
const WARNINGS: [f64; 4] = [0.5, 0.8, 0.95, 1.0];

pub(crate) struct Keeper {
    pub(crate) data: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) svid: Arc<LiveSvid>,
    pub(crate) bundle: Arc<LiveBundle>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) way: Arc<Way>,
    /// The validator of the newest body that was looked at and found good, also when nothing had to be written.
    pub(crate) tag: Option<String>,
    /// Whether a bundle with a lower number than the one in use is refused (ID-145).
    pub(crate) refuse_older_bundle: bool,
}

impl Keeper {
    pub(crate) async fn keep(mut self) {
        let Some(source) = self.identity.svid_credential().map(|credential| credential.source.clone()) else {
            return;
        };
        let start = clock::now();
        let mut renewal = match source {
            SvidSource::Issued { pin } => {
                let date = Date { at: self.svid.current().renew_at(clock::roll()), chosen: start };
                Renewal::Ask { pin, date, failures: 0 }
            }
            SvidSource::Installed(_) => Renewal::Watch { files: Watch::default(), warned: 0 },
        };
        let mut refresh = Date::after(start, self.refresh_pause());
        let mut refreshed_at = Moment::default();
        loop {
            let now = clock::now();
            self.mind_the_clock(&mut renewal, now);
            refresh = refresh.by_the_clock(now);
            refreshed_at = refreshed_at.min(now);
            let silent = self.way.is_silent(now);
            // Files are looked at at any time; others are asked when this device may talk.
            if !silent || matches!(renewal, Renewal::Watch { .. }) {
                self.renew(&mut renewal, now).await;
            }
            if now >= refresh.at && !silent {
                refresh = Date::after(now, self.refresh().await);
                refreshed_at = now;
            }
            let now = clock::now();
            let next = match &renewal {
                Renewal::Ask { date, .. } => date.at.since(now).min(NAP_MAX),
                Renewal::Watch { .. } => WATCH_EVERY,
            };
            let nap = next.min(refresh.at.since(now)).max(Duration::from_millis(100));
            // The loop notices within a minute that it may talk again.
            let nap = if silent { NAP_MAX.min(WATCH_EVERY) } else { nap };
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                () = self.way.doubtful.notified() => {
                    // Not more often than a hint may ask for, whatever the network does.
                    refresh.at = refresh.at.min(refreshed_at.after(REFRESH_MIN)).max(clock::now());
                }
            }
        }
    }

    /// Chooses anew when to renew, where the clock was set back.
    fn mind_the_clock(&self, renewal: &mut Renewal, now: Moment) {
        if let Renewal::Ask { date, failures, .. } = renewal {
            *date = match failures {
                0 => date.or_if_set_back(self.svid.current().renew_at(clock::roll()), now),
                _ => date.by_the_clock(now),
            };
        }
    }

    async fn renew(&mut self, renewal: &mut Renewal, now: Moment) {
        match renewal {
            Renewal::Ask { pin, date, failures } if now >= date.at => {
                match self.identity.renew(&self.data, pin, &self.svid, &self.bundle).await {
                    Ok(()) => {
                        *failures = 0;
                        let svid = self.svid.current();
                        let lifetime = svid.not_after().since(svid.not_before());
                        *date = after_renewal(svid.renew_at(clock::roll()), lifetime, now);
                        tracing::info!(
                            until = timestamp(self.svid.current().not_after()),
                            "identity renewed"
                        );
                        self.way.note(None);
                        self.reconnect();
                    }
                    Err(error) => {
                        *failures = failures.saturating_add(1);
                        let svid = self.svid.current();
                        let asked = error.retry_after().unwrap_or_default().min(QUIET_MAX);
                        *date = Date::after(now, retry_pause(&svid, now, *failures).max(asked));
                        self.complain(&svid, now, &error);
                    }
                }
            }
            Renewal::Ask { .. } => {}
            Renewal::Watch { files, warned } => {
                let Reloaded { svid, bundle } =
                    files.look(&mut self.identity, &self.data, &self.svid, &self.bundle, now);
                if svid {
                    *warned = 0;
                    tracing::info!(
                        until = timestamp(self.svid.current().not_after()),
                        "the replaced certificate is in use"
                    );
                }
                if bundle {
                    self.tag = None;
                    tracing::info!("the replaced trust bundle is in use");
                }
                if svid || bundle {
                    self.way.note(None);
                    self.reconnect();
                }
                self.warn(warned, now);
            }
        }
    }

    /// An installed certificate is renewed by people, who have to be told in time.
    fn warn(&self, warned: &mut usize, now: Moment) {
        let svid = self.svid.current();
        let over = WARNINGS.iter().filter(|part| svid.elapsed(now) >= **part).count();
        if over <= *warned {
            return;
        }
        *warned = over;
        let until = timestamp(svid.not_after());
        let notice = match over {
            4.. => format!(
                "the certificate expired at {until}; the server is not called any more, what runs keeps running; install a new one"
            ),
            _ => format!("the certificate expires at {until}; install a new one before"),
        };
        match over {
            1 | 2 => tracing::warn!(until, "{notice}"),
            _ => tracing::error!(until, "{notice}"),
        }
        self.way.note(Some(notice));
    }

    fn complain(&self, svid: &Svid, now: Moment, error: &IdentityError) {
        let error = margrave_core::chain::sentence(error);
        let expires_in = svid.not_after().since(now).as_secs();
        match svid.elapsed(now) {
            // What runs keeps running; only the server no longer hears of it (ID-187).
            1.0.. => {
                tracing::error!(error, "the certificate has expired and could not be renewed; trying again")
            }
            0.8.. => {
                tracing::error!(
                    error,
                    expires_in,
                    "the certificate expires soon and could not be renewed; trying again"
                )
            }
            _ => tracing::warn!(error, expires_in, "the certificate could not be renewed yet; trying again"),
        }
        self.way.note(Some(format!("the certificate could not be renewed: {error}")));
    }

    /// New connections present the new SVID and trust the new bundle (ID-106, ID-113).
    fn reconnect(&self) {
        self.upstream.reconnect();
        self.way.renewed.notify_one();
    }

    /// Looks for another trust bundle, and says when to look again.
    async fn refresh(&mut self) -> Duration {
        match self.look_for_bundle().await {
            Ok(changed) => {
                if changed {
                    tracing::info!("trust bundle replaced");
                    self.reconnect();
                }
                self.refresh_pause()
            }
            Err(error) => {
                let asked = error.retry_after().unwrap_or_default().min(QUIET_MAX);
                // The current bundle stays in force, however old (ID-143).
                let error = margrave_core::chain::sentence(&error);
                tracing::warn!(error, "the trust bundle could not be refreshed; the one in use stays");
                self.refresh_pause().min(Duration::from_secs(300)).max(asked)
            }
        }
    }

    async fn look_for_bundle(&mut self) -> Result<bool, IdentityError> {
        let credential = self.identity.svid_credential().ok_or(IdentityError::NotAClient)?;
        // A bundle that only lies in a file is looked after with the other files.
        let Some((service, kept)) = credential.service(&self.identity.url) else { return Ok(false) };
        let tag = self.tag.clone().or(kept);
        let domain = self.bundle.current().trust_domain().clone();
        match service.fetch(&domain, tag.as_deref()).await? {
            Found::Unchanged => Ok(false),
            Found::Bundle { body, tag } => {
                let set =
                    serde_json::from_slice(&body).map_err(|error| IdentityError::Answer(Box::new(error)))?;
                let changed = self.identity.take_bundle(
                    &self.data,
                    &self.bundle,
                    set,
                    tag.clone(),
                    self.refuse_older_bundle,
                )?;
                self.tag = tag;
                Ok(changed)
            }
        }
    }

    fn refresh_pause(&self) -> Duration {
        self.bundle.current().refresh_after().clamp(REFRESH_MIN, REFRESH_MAX)
    }
}

/// How an SVID is replaced before it expires.
enum Renewal {
    Ask { pin: String, date: Date, failures: u32 },
    Watch { files: Watch, warned: usize },
}

fn retry_pause(svid: &Svid, now: Moment, failures: u32) -> Duration {
    let mut pause = RETRY_MIN.saturating_mul(1 << failures.min(8)).min(RETRY_MAX);
    if !svid.is_expired(now) {
        // Not beyond what is left of a short-lived SVID.
        pause = pause.min((svid.not_after().since(now) / 4).max(Duration::from_secs(2)));
    }
    pause.mul_f64(0.75 + clock::roll() / 2.0)
}

/// When to do something, and when that was chosen: by a clock that was set back since, it may be years away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Date {
    at: Moment,
    chosen: Moment,
}

impl Date {
    fn after(now: Moment, pause: Duration) -> Date {
        Date { at: now.after(pause), chosen: now }
    }

    fn is_lost(self, now: Moment) -> bool {
        now < self.chosen
    }

    /// The same pause again, where the clock was set back.
    fn by_the_clock(self, now: Moment) -> Date {
        if self.is_lost(now) { Date::after(now, self.at.since(self.chosen)) } else { self }
    }

    /// This moment instead, where the clock was set back.
    fn or_if_set_back(self, at: Moment, now: Moment) -> Date {
        if self.is_lost(now) { Date { at, chosen: now } } else { self }
    }
}

/// When to renew what was just renewed. By a clock that is ahead that is over already: then not again at once, because every
/// SVID costs the server a signature and this device a write.
fn after_renewal(renew_at: Moment, lifetime: Duration, now: Moment) -> Date {
    let soonest = now.after((lifetime / 10).min(RETRY_MAX));
    Date { at: renew_at.max(soonest), chosen: now }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    const NOW: Moment = Moment(1_794_821_400_000);

    #[test]
    fn a_clock_that_was_set_back_does_not_put_anything_off_for_years() {
        let ahead = NOW.after(12 * YEAR);
        // A renewal failed by the wrong clock, and the clock is set right.
        let retry = Date::after(ahead, RETRY_MIN);
        assert_eq!(retry.by_the_clock(ahead.after(RETRY_MIN)), retry);
        assert_eq!(retry.by_the_clock(NOW), Date::after(NOW, RETRY_MIN));
        // It succeeded there, and the next one is due by what the SVID says.
        let renew_at = NOW.after(RETRY_MAX);
        let renewed = after_renewal(renew_at, 2 * RETRY_MAX, ahead);
        assert_eq!(renewed.or_if_set_back(renew_at, ahead), renewed);
        assert_eq!(renewed.or_if_set_back(renew_at, NOW), Date { at: renew_at, chosen: NOW });
        // Set forward, a date is what it was.
        let date = Date { at: renew_at, chosen: Moment(0) };
        assert_eq!(date.by_the_clock(NOW), date);
    }

    #[test]
    fn a_clock_that_is_ahead_does_not_renew_all_the_time() {
        let day = Duration::from_secs(24 * 3600);
        let at = |renew_at: Moment, lifetime: Duration| after_renewal(renew_at, lifetime, NOW).at;
        assert_eq!(at(NOW.after(day / 2), day), NOW.after(day / 2), "in its time");
        assert_eq!(at(Moment(NOW.0 - 1), day), NOW.after(RETRY_MAX));
        assert_eq!(at(Moment(0), Duration::from_secs(300)), NOW.after(Duration::from_secs(30)));
    }
}
