//! Registries that cut off, redirect, change bytes, want tokens, or never end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use margrave_core::digest::Digest;
use margrave_oci::client::{Client, ClientError};
use margrave_oci::manifest::Descriptor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::rig::{PASSWORD, USER, hosts, reference, repository, serve};

/// A registry that answers as the test says.
async fn client_of(answer: impl Fn(Request) -> Response + Clone + Send + Sync + 'static) -> Client {
    Client::new(hosts(server(answer).await, None))
}

async fn server(
    answer: impl Fn(Request) -> Response + Clone + Send + Sync + 'static,
) -> std::net::SocketAddr {
    serve(Router::new().fallback(move |request: Request| std::future::ready(answer(request)))).await
}

/// A registry that sends exactly these bytes for each connection, in turn, and closes; it notes the requests.
async fn raw(answers: Vec<Vec<u8>>) -> (Client, Arc<std::sync::Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = seen.clone();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            noted.lock().unwrap().push(String::from_utf8(request).unwrap());
            stream.write_all(&answer).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    (Client::new(hosts(address, None)), seen)
}

fn content() -> Vec<u8> {
    (0..1_000_000u32).map(|n| (n >> 7) as u8).collect()
}

fn ok(announced: usize, bytes: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\ncontent-length: {announced}\r\n\r\n").as_bytes(), bytes].concat()
}

fn part(from: usize, announced: usize, total: usize, bytes: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {announced}\r\ncontent-range: bytes {from}-{}/{total}\r\n\r\n",
        from + announced - 1
    );
    [head.as_bytes(), bytes].concat()
}

fn ranges(seen: &std::sync::Mutex<Vec<String>>) -> Vec<Option<String>> {
    let range =
        |request: &String| request.lines().find_map(|line| line.strip_prefix("range: ").map(str::to_owned));
    seen.lock().unwrap().iter().map(range).collect()
}

#[tokio::test]
async fn a_cut_download_is_continued() {
    let bytes = content();
    let n = bytes.len();
    let (client, seen) = raw(vec![
        ok(n, &bytes[..400_000]),
        part(400_000, n - 400_000, n, &bytes[400_000..700_000]),
        part(700_000, n - 700_000, n, &bytes[700_000..]),
    ])
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blob");
    client.blob_to_file(&repository("margrave/a"), &Descriptor::of("x", &bytes), &path).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let wanted = [None, Some("bytes=400000-".to_owned()), Some("bytes=700000-".to_owned())];
    assert_eq!(ranges(&seen), wanted);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_download_that_failed_is_continued_by_the_next_call() {
    let bytes = content();
    let n = bytes.len();
    let unavailable = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_vec();
    let (client, seen) = raw(vec![
        ok(n, &bytes[..400_000]),
        unavailable.clone(),
        unavailable.clone(),
        unavailable,
        part(400_000, n - 400_000, n, &bytes[400_000..]),
    ])
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blob");
    let (here, blob) = (repository("margrave/a"), Descriptor::of("x", &bytes));
    let error = client.blob_to_file(&here, &blob, &path).await.unwrap_err();
    assert!(matches!(error, ClientError::Unavailable { .. }), "{error:?}");
    assert!(!path.exists());
    client.blob_to_file(&here, &blob, &path).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(ranges(&seen)[4], Some("bytes=400000-".to_owned()));
}

#[tokio::test]
async fn a_registry_that_cannot_continue_is_asked_from_the_beginning() {
    let bytes = content();
    let n = bytes.len();
    let refused = b"HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 0\r\n\r\n".to_vec();
    let elsewhere = part(0, 1000, n, &bytes[..1000]);
    for second in [vec![ok(n, &bytes)], vec![refused, ok(n, &bytes)], vec![elsewhere, ok(n, &bytes)]] {
        let (client, _) = raw([vec![ok(n, &bytes[..400_000])], second].concat()).await;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blob");
        client.blob_to_file(&repository("margrave/a"), &Descriptor::of("x", &bytes), &path).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

#[tokio::test]
async fn what_an_earlier_attempt_left_is_not_trusted() {
    let bytes = content();
    let n = bytes.len();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blob");
    let partial = dir.path().join(format!(".{}.partial", Digest::of(&bytes).hex()));
    // Wrong bytes of the right length so far: only the whole shows it, then it begins again, once.
    std::fs::write(&partial, vec![0xff; 300_000]).unwrap();
    let (client, seen) = raw(vec![part(300_000, n - 300_000, n, &bytes[300_000..]), ok(n, &bytes)]).await;
    client.blob_to_file(&repository("margrave/a"), &Descriptor::of("x", &bytes), &path).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(ranges(&seen), [Some("bytes=300000-".to_owned()), None]);
    // Longer than the whole: thrown away at once.
    std::fs::write(&partial, vec![0xff; n + 1]).unwrap();
    let (client, seen) = raw(vec![ok(n, &bytes)]).await;
    client.blob_to_file(&repository("margrave/a"), &Descriptor::of("x", &bytes), &path).await.unwrap();
    assert_eq!(ranges(&seen), [None]);
}

#[tokio::test]
async fn pk_041_changed_bytes_never_become_visible() {
    let bytes = content();
    let mut changed = bytes.clone();
    changed[500_000] ^= 1;
    let longer = [&bytes[..], b"x"].concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blob");
    let (here, blob) = (repository("margrave/a"), Descriptor::of("x", &bytes));
    for sent in [changed, longer, bytes[..1000].to_vec()] {
        let sent = Bytes::from(sent);
        let client = client_of(move |_| Body::from(sent.clone()).into_response()).await;
        for error in [
            client.blob_to_file(&here, &blob, &path).await.unwrap_err(),
            client.blob(&here, &blob, u64::MAX).await.unwrap_err(),
        ] {
            assert!(
                matches!(error, ClientError::DigestMismatch { .. } | ClientError::SizeMismatch { .. }),
                "{error:?}"
            );
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn a_manifest_is_what_its_digest_says() {
    let client = client_of(|_| "{}".into_response()).await;
    let here = repository("margrave/a");
    let digest = |bytes: &[u8]| margrave_oci::reference::TagOrDigest::Digest(Digest::of(bytes));
    assert_eq!(client.manifest(&here.at(digest(b"{}"))).await.unwrap().bytes, "{}");
    let error = client.manifest(&here.at(digest(b"other"))).await.unwrap_err();
    assert!(matches!(error, ClientError::DigestMismatch { .. }), "{error:?}");
    // The registry's own word counts only against it.
    let client =
        client_of(|_| ([("docker-content-digest", Digest::of(b"other").to_string())], "{}").into_response())
            .await;
    let error = client.manifest(&reference("margrave/a:1")).await.unwrap_err();
    assert!(matches!(error, ClientError::DigestMismatch { .. }), "{error:?}");
    let error = client.manifest(&here.at(digest(b"other"))).await.unwrap_err();
    assert!(matches!(error, ClientError::DigestMismatch { .. }), "{error:?}");
    let client = client_of(|_| vec![b' '; 4 * 1024 * 1024 + 1].into_response()).await;
    let error = client.manifest(&reference("margrave/a:1")).await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { .. }), "{error:?}");
}

fn redirect(to: &str) -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to.to_owned())]).into_response()
}

fn wants_password(headers: &HeaderMap) -> Option<Response> {
    if headers.contains_key(header::AUTHORIZATION) {
        return None;
    }
    Some((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic realm=\"x\"")]).into_response())
}

#[tokio::test]
async fn a_redirect_elsewhere_is_followed_without_credentials() {
    let told = Arc::new(AtomicUsize::new(0));
    let counted = told.clone();
    let store = server(move |request: Request| {
        if request.headers().contains_key(header::AUTHORIZATION) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        assert_eq!(request.uri().query(), Some("signature=x%2By"));
        "content".into_response()
    })
    .await;
    let target = format!("http://{store}/bucket/key?signature=x%2By");
    let registry = server(move |request: Request| {
        wants_password(request.headers()).unwrap_or_else(|| match request.uri().path() {
            "/v2/a/next" => redirect(&target),
            _ => redirect("/v2/a/next"),
        })
    })
    .await;
    let client = Client::new(hosts(registry, Some((USER, PASSWORD))));
    let blob = Descriptor::of("x", b"content");
    assert_eq!(client.blob(&repository("margrave/a"), &blob, 100).await.unwrap(), "content");
    let dir = tempfile::tempdir().unwrap();
    client.blob_to_file(&repository("margrave/a"), &blob, &dir.path().join("x")).await.unwrap();
    assert_eq!(told.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn redirects_end() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let client =
        client_of(move |_| redirect(&format!("/v2/a/{}", counted.fetch_add(1, Ordering::SeqCst)))).await;
    let error = client.blob(&repository("margrave/a"), &Descriptor::of("x", b"x"), 100).await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
    assert_eq!(count.load(Ordering::SeqCst), 6);
    for bad in ["", "ftp://x/y", "//x", "http://10.255.255.1/x"] {
        let client = client_of(move |_| redirect(bad)).await;
        let error =
            client.blob(&repository("margrave/a"), &Descriptor::of("x", b"x"), 100).await.unwrap_err();
        assert!(
            matches!(error, ClientError::Protocol { .. } | ClientError::Network { .. }),
            "{bad}: {error:?}"
        );
    }
}

#[tokio::test]
async fn pk_050_a_token_is_fetched_where_the_registry_says_and_used_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let tokens = server(move |request: Request| {
        counted.fetch_add(1, Ordering::SeqCst);
        // operator:opensesame
        let password = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes().to_vec());
        if password.as_deref() != Some(b"Basic b3BlcmF0b3I6b3BlbnNlc2FtZQ==") {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        let query = request.uri().query().unwrap().to_owned();
        assert!(query.starts_with("x=1&scope=repository%3Aa%2Fb%3Apull"), "{query}");
        assert!(query.ends_with("&service=the%20registry"), "{query}");
        let push = query.contains("%2Cpush");
        axum::Json(
            serde_json::json!({ "access_token": if push { "push" } else { "pull" }, "expires_in": 300 }),
        )
        .into_response()
    })
    .await;
    let challenge = format!(
        "Bearer realm=\"http://{tokens}/token?x=1\",service=\"the registry\",scope=\"repository:a/b:pull\""
    );
    let registry = server(move |request: Request| {
        let token = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let reads = request.method() == http::Method::GET;
        match token {
            Some("Bearer push") if request.method() == http::Method::HEAD => StatusCode::OK.into_response(),
            Some("Bearer pull" | "Bearer push") if reads => "{}".into_response(),
            _ => (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge.clone())]).into_response(),
        }
    })
    .await;
    let client = Client::new(hosts(registry, Some((USER, PASSWORD))));
    for _ in 0..3 {
        client.manifest(&reference("margrave/a/b:1")).await.unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    client.push_blob(&repository("margrave/a/b"), "there already".into()).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    for wrong in [None, Some((USER, "wrong"))] {
        let client = Client::new(hosts(registry, wrong));
        let error = client.manifest(&reference("margrave/a/b:1")).await.unwrap_err();
        assert!(matches!(error, ClientError::Unauthorized(_)), "{error:?}");
    }
}

#[tokio::test]
async fn token_services_that_make_no_sense() {
    for (realm, answer) in [
        ("nonsense", "{}"),
        ("SELF/token", "{}"),
        ("SELF/token", "not json"),
        ("SELF/token", "{\"token\":\"\"}"),
    ] {
        let client = client_of(move |request: Request| {
            if request.uri().path() == "/token" {
                return answer.into_response();
            }
            let host = request.headers()[header::HOST].to_str().unwrap();
            let realm = realm.replace("SELF", &format!("http://{host}"));
            (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, format!("Bearer realm=\"{realm}\""))])
                .into_response()
        })
        .await;
        let error = client.manifest(&reference("margrave/a:1")).await.unwrap_err();
        assert!(matches!(error, ClientError::Protocol { .. }), "{realm} {answer}: {error:?}");
    }
}

#[tokio::test]
async fn content_is_never_sent_to_another_host() {
    let client = client_of(|request: Request| match *request.method() {
        http::Method::HEAD => StatusCode::NOT_FOUND.into_response(),
        http::Method::POST => {
            (StatusCode::ACCEPTED, [(header::LOCATION, "https://elsewhere.example/upload")]).into_response()
        }
        _ => StatusCode::CREATED.into_response(),
    })
    .await;
    let error = client.push_blob(&repository("margrave/a"), "secret".into()).await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn statuses_are_told_apart_and_quoted() {
    let body = "{\"errors\":[{\"code\":\"DENIED\",\"message\":\"not yours\"}]}";
    for (status, wanted) in [
        (403, "Denied"),
        (429, "Unavailable"),
        (500, "Unavailable"),
        (502, "Unavailable"),
        (400, "Refused"),
        (418, "Refused"),
    ] {
        let client = client_of(move |_| {
            (StatusCode::from_u16(status).unwrap(), [(header::RETRY_AFTER, "7")], body).into_response()
        })
        .await;
        let error = client.manifest(&reference("margrave/a:1")).await.unwrap_err();
        assert!(format!("{error:?}").starts_with(wanted), "{status}: {error:?}");
        assert!(error.to_string().contains("DENIED: not yours"), "{error}");
        let wait = (wanted == "Unavailable").then_some(std::time::Duration::from_secs(7));
        assert_eq!(error.retry_after(), wait);
    }
}

#[tokio::test]
async fn tags_of_many_pages_in_any_order() {
    let client = client_of(|request: Request| {
        let host = request.headers()[header::HOST].to_str().unwrap();
        let (page, next) = match request.uri().query() {
            Some("n=1000") => ("[\"2.0\",\"1.0\"]", Some("/v2/a/tags/list?last=2".to_owned())),
            Some("last=2") => ("[\"1.0\",\"0.9\"]", Some(format!("http://{host}/v2/a/tags/list?last=3"))),
            _ => ("[\"3.0\"]", None),
        };
        let mut response = format!("{{\"name\":\"a\",\"tags\":{page}}}").into_response();
        if let Some(next) = next {
            response.headers_mut().insert(header::LINK, format!("<{next}>; rel=\"next\"").parse().unwrap());
        }
        response
    })
    .await;
    let tags = client.tags(&repository("margrave/a")).await.unwrap();
    assert_eq!(tags.iter().map(|tag| tag.as_str()).collect::<Vec<_>>(), ["0.9", "1.0", "2.0", "3.0"]);
}

#[tokio::test]
async fn tags_that_never_end() {
    let page = |request: Request| {
        let n = request.uri().query().unwrap_or_default().len();
        let link = format!("</v2/a/tags/list?{}>; rel=\"next\"", "x".repeat(n % 50 + 1));
        ([(header::LINK, link)], "{\"name\":\"a\",\"tags\":[\"ok\",\"not a tag\"]}").into_response()
    };
    let client = client_of(page).await;
    let error = client.tags(&repository("margrave/a")).await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
    let client = client_of(|_| "{\"name\":\"a\",\"tags\":null}".into_response()).await;
    assert!(client.tags(&repository("margrave/a")).await.unwrap().is_empty());
    let client = client_of(|_| "<html>".into_response()).await;
    assert!(matches!(client.tags(&repository("margrave/a")).await, Err(ClientError::Protocol { .. })));
}
