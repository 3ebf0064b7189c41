//! Keeps the identity fresh: renews the SVID long before it expires, and refreshes the trust bundle.
//!
//! Works beside the main loop and never touches what runs. When renewal fails for so long that the SVID
//! expires, it goes on trying: the server takes the previous key as proof, however old its certificate.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use margrave_core::moment::Moment;
use margrave_http::{Request, StatusCode, header};
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_wire::identity::BUNDLE_PATH;
use tokio::sync::Mutex;

use crate::clock;
use crate::identity::{Identity, IdentityError, web_client};
use crate::upstream::Upstream;

/// The first pause after a failed try; doubles, but an expired device tries at least every hour.
const RETRY_MIN: Duration = Duration::from_secs(15);
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// A publisher's refresh hint below this is a mistake (ID-146); above, a machine that sleeps notices late.
const REFRESH_MIN: Duration = Duration::from_secs(30);
const REFRESH_MAX: Duration = Duration::from_secs(24 * 3600);
/// Clocks jump and machines sleep, so no nap is longer.
const NAP_MAX: Duration = Duration::from_secs(60);
const BUNDLE_SIZE_MAX: u64 = 1 << 20;

pub(crate) async fn keep(
    data: PathBuf,
    identity: Arc<Mutex<Identity>>,
    svid: Arc<LiveSvid>,
    bundle: Arc<LiveBundle>,
    upstream: Arc<Upstream>,
) {
    let mut renew_at = svid.current().renew_at(clock::roll());
    let mut refresh_at = clock::now().after(refresh_pause(&bundle));
    let mut failures = 0u32;
    let mut bundle_tag: Option<String> = None;
    loop {
        let now = clock::now();
        if now >= renew_at {
            let mut identity = identity.lock().await;
            match identity.renew(&data, &svid, &bundle).await {
                Ok(()) => {
                    failures = 0;
                    renew_at = svid.current().renew_at(clock::roll());
                    // New connections present the new SVID (ID-106).
                    upstream.reconnect();
                    tracing::info!(until = svid.current().not_after().0, "identity renewed");
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let pause = RETRY_MIN.saturating_mul(1 << failures.min(8)).min(RETRY_MAX);
                    // Not beyond what is left of a short-lived SVID.
                    let left = svid.current().not_after().since(now) / 4;
                    let pause = pause.min(left.max(RETRY_MIN.min(Duration::from_secs(2))));
                    renew_at = now.after(pause.mul_f64(0.75 + clock::roll() / 2.0));
                    let lived = svid.current().elapsed(now);
                    let expires_in = svid.current().not_after().since(now).as_secs();
                    match lived {
                        // What runs keeps running; only the server no longer hears of it (ID-187).
                        1.0.. => {
                            tracing::error!(%error, "the certificate has expired and could not be renewed; trying again")
                        }
                        0.8.. => {
                            tracing::error!(%error, expires_in, "the certificate expires soon and could not be renewed; trying again")
                        }
                        _ => {
                            tracing::warn!(%error, expires_in, "the certificate could not be renewed yet; trying again")
                        }
                    }
                }
            }
        }
        if now >= refresh_at {
            let pause = match refresh(&data, &identity, &bundle, &mut bundle_tag).await {
                Ok(changed) => {
                    if changed {
                        tracing::info!("trust bundle replaced");
                        upstream.reconnect();
                    }
                    refresh_pause(&bundle)
                }
                Err(error) => {
                    // The current bundle stays in force (ID-143).
                    tracing::debug!(%error, "trust bundle could not be refreshed");
                    refresh_pause(&bundle).min(Duration::from_secs(300))
                }
            };
            refresh_at = clock::now().after(pause);
        }
        let now = clock::now();
        let nap = until(now, renew_at).min(until(now, refresh_at)).min(NAP_MAX);
        tokio::time::sleep(nap.max(Duration::from_millis(100))).await;
    }
}

fn until(now: Moment, then: Moment) -> Duration {
    then.since(now)
}

fn refresh_pause(bundle: &LiveBundle) -> Duration {
    bundle.current().refresh_after().clamp(REFRESH_MIN, REFRESH_MAX)
}

async fn refresh(
    data: &std::path::Path,
    identity: &Mutex<Identity>,
    bundle: &LiveBundle,
    tag: &mut Option<String>,
) -> Result<bool, IdentityError> {
    let mut identity = identity.lock().await;
    let client = web_client(&identity.url, &identity.pin)?;
    let mut request =
        Request::get(BUNDLE_PATH).header(header::ACCEPT, "application/json").body_max(BUNDLE_SIZE_MAX);
    if let Some(tag) = tag {
        request = request.header(header::IF_NONE_MATCH, tag);
    }
    let url = identity.url.clone();
    let response = client.send(request).await.map_err(|source| IdentityError::Unreachable { url, source })?;
    if response.status == StatusCode::NOT_MODIFIED {
        return Ok(false);
    }
    if !response.status.is_success() {
        return Err(IdentityError::Refused(crate::identity::refusal(&response)));
    }
    let changed = identity.refresh_bundle(data, bundle, &response.body)?;
    // A tag is kept only for what was accepted (ID-144).
    *tag = response.header(header::ETAG).map(str::to_owned);
    Ok(changed)
}
