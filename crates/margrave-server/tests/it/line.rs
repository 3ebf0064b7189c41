//! One connection to a server, over which a test asks what it likes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// For anything that must happen; far more than it takes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct Line {
    sender: SendRequest<Body>,
    /// What the server presented, leaf first.
    pub(crate) peer: Vec<CertificateDer<'static>>,
    /// Whether a session went on that was begun earlier.
    pub(crate) resumed: bool,
}

/// The connection failed below HTTP: refused, broken or closed.
#[derive(Debug)]
pub(crate) struct Broken(#[expect(dead_code, reason = "shown by Debug when a test fails")] String);

impl Line {
    pub(crate) async fn open(address: SocketAddr, tls: Arc<ClientConfig>) -> Result<Line, Broken> {
        let broken = |error: std::io::Error| Broken(error.to_string());
        let stream = TcpStream::connect(address).await.map_err(broken)?;
        let name = ServerName::from(address.ip());
        let stream = timeout(DEADLINE, TlsConnector::from(tls).connect(name, stream))
            .await
            .unwrap()
            .map_err(broken)?;
        let peer = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let resumed = stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        Ok(Line { resumed, ..Line::over(stream, peer).await? })
    }

    pub(crate) async fn plain(address: SocketAddr) -> Line {
        Line::over(TcpStream::connect(address).await.unwrap(), Vec::new()).await.unwrap()
    }

    async fn over<S>(stream: S, peer: Vec<CertificateDer<'static>>) -> Result<Line, Broken>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| Broken(error.to_string()))?;
        // How it ends is seen by whoever sends.
        tokio::spawn(async move { connection.await.unwrap_or_default() });
        Ok(Line { sender, peer, resumed: false })
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Reply, Broken> {
        self.send("GET", path, &[], "").await
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Result<Reply, Broken> {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).unwrap();
        let broken = |error: hyper::Error| Broken(format!("{error:?}"));
        let exchange = async {
            self.sender.ready().await.map_err(broken)?;
            let response = self.sender.send_request(request).await.map_err(broken)?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(broken)?.to_bytes();
            Ok(Reply { status: parts.status, headers: parts.headers, body })
        };
        timeout(DEADLINE, exchange).await.expect("the server answers in time")
    }

    /// Ends when the server closed the connection.
    pub(crate) async fn closed(&mut self) {
        let closed = async {
            while !self.sender.is_closed() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(DEADLINE, closed).await.expect("the server closes in time");
    }
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    /// A problem of this status, and its detail.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16) -> String {
        self.is(status);
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem: serde_json::Value = self.json();
        assert_eq!(problem["status"], status);
        problem["detail"].as_str().unwrap().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[track_caller]
    pub(crate) fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap()
    }
}
