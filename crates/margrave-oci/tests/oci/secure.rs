//! TLS: a private authority, the system's, and nothing that leads out of it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use http::{StatusCode, header};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use margrave_http::Origin;
use margrave_oci::client::{Client, ClientError, Endpoint, Hosts, Tls};
use margrave_oci::manifest::Descriptor;
use margrave_oci::reference::Host;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use crate::rig::{PASSWORD, USER, reference, repository};

/// A registry behind TLS with a certificate that nobody but its owner knows.
async fn serve(answer: fn(Request) -> Response) -> (SocketAddr, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let router = Router::new().fallback(move |request: Request| std::future::ready(answer(request)));
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, router) = (acceptor.clone(), router.clone());
            tokio::spawn(async move {
                // A client that refuses us ends the handshake; that is what its test looks at.
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = TowerToHyperService::new(router);
                let http = hyper::server::conn::http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (address, certificate)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn client(address: SocketAddr, tls: Tls) -> Client {
    let origin = Origin::parse(&format!("https://localhost:{}", address.port())).unwrap();
    let endpoint = Endpoint::new(origin, tls).with_credentials(USER, PASSWORD);
    Client::new(Hosts::new().with(Host::parse("margrave").unwrap(), endpoint))
}

fn trusting(certificate: &CertificateDer<'static>) -> Tls {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Tls::Given(Arc::new(config))
}

fn beside_the_systems(certificate: &CertificateDer<'static>) -> Tls {
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    Tls::SystemRootsAnd(format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"))
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_was_given_and_only_there() {
    let (address, certificate) = serve(|_| "{}".into_response()).await;
    let what = reference("oci://margrave/a:1");
    for tls in [trusting(&certificate), beside_the_systems(&certificate)] {
        assert_eq!(client(address, tls).manifest(&what).await.unwrap().bytes, "{}");
    }
    let (_, other) = serve(|_| "{}".into_response()).await;
    for tls in [trusting(&other), beside_the_systems(&other), Tls::SystemRoots] {
        let error = client(address, tls).manifest(&what).await.unwrap_err();
        // A machine without any authorities says so instead.
        assert!(
            matches!(
                &error,
                ClientError::Network { source: margrave_http::Error::Tls { .. }, .. }
                    | ClientError::SystemRoots(_)
            ),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn neither_content_nor_credentials_leave_tls() {
    // To a place on this machine, where plain HTTP would otherwise be fine.
    let (address, certificate) = serve(|request| {
        let to = "http://127.0.0.1:9/x";
        match request.method() {
            &http::Method::HEAD => {
                let challenge = format!("Bearer realm=\"{to}\"");
                (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
            }
            _ => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response(),
        }
    })
    .await;
    let client = client(address, trusting(&certificate));
    let here = repository("oci://margrave/a");
    for error in [
        client.blob(&here, &Descriptor::of("x", b"x"), 10).await.unwrap_err(),
        client.push_blob(&here, "x".into()).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, ClientError::Protocol { why, .. } if why.contains("plain http")),
            "{error:?}"
        );
    }
}
