//! The bare responder that the server is measured beside: hyper and rustls, the server's own TLS configuration,
//! and the same 304 for everybody. No routing, no policy, no limits, no state.

use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Empty;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use margrave_core::id::{TrustDomain, WfmId};
use margrave_core::moment::Moment;
use margrave_identity::authority::Authority;
use margrave_identity::bundle::Bundle;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::tls::device_server_config;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// As long as a real one.
const ETAG_VALUE: &str = "\"sha256:0000000000000000000000000000000000000000000000000000000000000000\"";

/// Serves on a port, as the server whose data directory is given: `respond DATA PORT`.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let data = arguments.next().context("the server's data directory")?;
    let port: u16 = arguments.next().context("a port")?.parse()?;
    margrave_simulate::resources::raise_open_files();
    let tls = TlsAcceptor::from(tls(Path::new(&data))?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            let tls = tls.clone();
            tokio::spawn(async move {
                let Ok(()) = stream.set_nodelay(true) else { return };
                let Ok(stream) = tls.accept(stream).await else { return };
                let answer = service_fn(|_| async {
                    let mut response = Response::new(Empty::<Bytes>::new());
                    *response.status_mut() = StatusCode::NOT_MODIFIED;
                    let headers = response.headers_mut();
                    headers.insert(ETAG, HeaderValue::from_static(ETAG_VALUE));
                    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private"));
                    Ok::<_, Infallible>(response)
                });
                // How a connection ends is its client's business.
                drop(http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await);
            });
        }
    })
}

/// The server's TLS, from its own authority.
fn tls(data: &Path) -> Result<std::sync::Arc<rustls::ServerConfig>> {
    let identity = data.join("identity");
    let read = |name: &str| std::fs::read_to_string(identity.join(name)).with_context(|| name.to_owned());
    let names: serde_json::Value = serde_json::from_str(&read("names.json")?)?;
    let name = |key: &str| names[key].as_str().map(str::to_owned).with_context(|| format!("no {key}"));
    let trust_domain = TrustDomain::parse(&name("trustDomain")?)?;
    let now = Moment(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?);
    let authority =
        Authority::load(trust_domain.clone(), &read("authority.crt")?, &read("authority.key")?, now)?;
    let svid = authority.issue_server(&WfmId::parse(&name("wfm")?)?, now, LIFETIME)?;
    let bundle = Bundle::of_anchor(trust_domain, authority.anchor(), 1, LIFETIME);
    let mut config = (*device_server_config(LiveSvid::new(svid), LiveBundle::new(bundle))).clone();
    // The server's tickets carry what the server checks; these only resume.
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
    Ok(std::sync::Arc::new(config))
}
