//! The program inside the sample containers: a small HTTP service that shows what it was told.
//!
//! It is this very executable, so that the demo needs no image from anywhere. It must start within
//! milliseconds and stay small, many of them run at once: one thread, no server, no configuration file.
//! Everything comes from the environment, as it does for any Compose application:
//!
//! | variable | meaning |
//! |---|---|
//! | `SAMPLE_TITLE` | heading of what `GET /` answers |
//! | `SAMPLE_SHOW` | names of further variables to show there, separated by spaces |
//! | `SAMPLE_LISTEN` | address and port to listen at; `0.0.0.0:8080` unless given |
//! | `SAMPLE_NEEDS` | `host:port` of a service that must answer before this one calls itself healthy |
//! | `SAMPLE_EVERY` | seconds between two `POST /count` to that service |
//! | `SAMPLE_COUNTER` | file that holds a number; `POST /count` adds one to it, for others to see a volume survive |
//! | `SAMPLE_FAIL` | `start` ends at once with exit code 3, `health` never becomes healthy |

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::SampleVerb;
use crate::exit::{Answer, Result, Trouble};
use crate::render::Screen;

const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080);

/// A request's first line and headers; more than a health check or a browser sends is refused.
const REQUEST_BYTES_MAX: usize = 8 * 1024;

/// How long one exchange may take, so that a caller that says nothing cannot hold on for ever.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(3);

/// What the environment asks for.
#[derive(Debug, Clone)]
struct Wanted {
    title: String,
    shown: Vec<(String, String)>,
    listen: SocketAddr,
    needs: Option<String>,
    every: Option<Duration>,
    counter: Option<PathBuf>,
    fail: Option<Fail>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fail {
    Start,
    Health,
}

impl Wanted {
    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let shown = given("SAMPLE_SHOW").unwrap_or_default();
        Ok(Wanted {
            title: given("SAMPLE_TITLE").unwrap_or_else(|| "Margrave sample".to_owned()),
            shown: shown
                .split_whitespace()
                .map(|name| (name.to_owned(), variable(name).unwrap_or_default()))
                .collect(),
            listen: match given("SAMPLE_LISTEN") {
                None => LISTEN_DEFAULT,
                Some(text) => text
                    .parse()
                    .map_err(|_| Trouble::broke(format!("SAMPLE_LISTEN is not address:port: {text}")))?,
            },
            needs: given("SAMPLE_NEEDS"),
            every: match given("SAMPLE_EVERY") {
                None => None,
                Some(text) => match text.parse() {
                    Ok(seconds @ 1..=86_400) => Some(Duration::from_secs(seconds)),
                    _ => {
                        return Err(Trouble::broke(format!(
                            "SAMPLE_EVERY is 1 to 86400 seconds, not {text}"
                        )));
                    }
                },
            },
            counter: given("SAMPLE_COUNTER").map(PathBuf::from),
            fail: match given("SAMPLE_FAIL").as_deref() {
                None | Some("no" | "false" | "none") => None,
                Some("start") => Some(Fail::Start),
                Some("health") => Some(Fail::Health),
                Some(other) => {
                    return Err(Trouble::broke(format!("SAMPLE_FAIL is start, health or none, not {other}")));
                }
            },
        })
    }
}

pub(crate) fn run(verb: SampleVerb, screen: &Screen) -> Result {
    let wanted = Wanted::read(|name| std::env::var(name).ok())?;
    if wanted.fail == Some(Fail::Start) && !matches!(verb, SampleVerb::Check) {
        // Not one of our exit codes, so that it is recognised in a report.
        screen.words("this sample was told to fail at start (SAMPLE_FAIL=start)");
        std::process::exit(3);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Trouble::because("the sample cannot start", &error))?;
    runtime.block_on(async {
        match verb {
            SampleVerb::Serve => serve(wanted, screen).await,
            SampleVerb::Check => check(wanted.listen).await,
            SampleVerb::Once => {
                screen.data(body(&wanted).trim_end())?;
                Ok(Answer::Done)
            }
        }
    })
}

async fn serve(wanted: Wanted, screen: &Screen) -> Result {
    // As the first process of a container nothing ends us but a handler of our own.
    let mut stop =
        signal(SignalKind::terminate()).map_err(|e| Trouble::because("cannot listen for signals", &e))?;
    let listener = TcpListener::bind(wanted.listen)
        .await
        .map_err(|error| Trouble::because(format!("cannot listen at {}", wanted.listen), &error))?;
    screen.words(format_args!("{} serves at {}", wanted.title, wanted.listen));
    if let (Some(needs), Some(every)) = (wanted.needs.clone(), wanted.every) {
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                // Health says whether the other one answers; a count that was missed is made up by the next.
                let _counted = tokio::time::timeout(EXCHANGE_TIME_MAX, ask(&needs, "POST /count")).await;
            }
        });
    }
    loop {
        tokio::select! {
            _ = stop.recv() => return Ok(Answer::Done),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let wanted = wanted.clone();
                    tokio::spawn(async move {
                        // A caller that went away in the middle is the caller's own business.
                        let _ended = tokio::time::timeout(EXCHANGE_TIME_MAX, exchange(stream, &wanted)).await;
                    });
                }
                // Out of file descriptors, most likely: let the open exchanges end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
        }
    }
}

async fn exchange(mut stream: TcpStream, wanted: &Wanted) -> io::Result<()> {
    let Some(request) = request_line(&mut stream).await? else {
        return answer(&mut stream, "400 Bad Request", "this is not a request\n").await;
    };
    match request.as_str() {
        "GET /" => answer(&mut stream, "200 OK", &body(wanted)).await,
        "GET /healthz" => match healthy(wanted).await {
            Ok(()) => answer(&mut stream, "200 OK", "healthy\n").await,
            Err(why) => answer(&mut stream, "503 Service Unavailable", &format!("{why}\n")).await,
        },
        "POST /count" => match &wanted.counter {
            None => answer(&mut stream, "404 Not Found", "this sample does not count\n").await,
            Some(file) => match count(file) {
                Ok(number) => answer(&mut stream, "200 OK", &format!("{number}\n")).await,
                Err(error) => answer(&mut stream, "500 Internal Server Error", &format!("{error}\n")).await,
            },
        },
        _ => answer(&mut stream, "404 Not Found", "there is /, /healthz and POST /count\n").await,
    }
}

/// Method and path of a request, once all its headers have come.
async fn request_line(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let length = stream.read(&mut part).await?;
        request.extend_from_slice(&part[..length]);
        if length == 0 || request.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
    }
    let text = String::from_utf8_lossy(&request);
    let mut words = text.lines().next().unwrap_or_default().split(' ');
    Ok(match (words.next(), words.next(), words.next()) {
        (Some(method), Some(path), Some(version)) if version.starts_with("HTTP/1.") => {
            Some(format!("{method} {path}"))
        }
        _ => None,
    })
}

async fn answer(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn body(wanted: &Wanted) -> String {
    let mut text = format!("{}\n", wanted.title);
    for (name, value) in &wanted.shown {
        text.push_str(&format!("{name} = {value}\n"));
    }
    text
}

async fn healthy(wanted: &Wanted) -> std::result::Result<(), String> {
    if wanted.fail == Some(Fail::Health) {
        return Err("this sample was told to be unhealthy (SAMPLE_FAIL=health)".to_owned());
    }
    let Some(needs) = &wanted.needs else { return Ok(()) };
    let asked = tokio::time::timeout(Duration::from_secs(2), ask(needs, "GET /healthz")).await;
    match asked {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(format!("{needs} is not healthy")),
        Ok(Err(error)) => Err(format!("{needs} does not answer: {error}")),
        Err(_) => Err(format!("{needs} does not answer in time")),
    }
}

/// Whether a service answers a request with 200.
async fn ask(address: &str, request: &str) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    Ok(&status == b"HTTP/1.1 200")
}

async fn check(listen: SocketAddr) -> Result {
    let host = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
    };
    let address = SocketAddr::new(host, listen.port()).to_string();
    match tokio::time::timeout(EXCHANGE_TIME_MAX, ask(&address, "GET /healthz")).await {
        Ok(Ok(true)) => Ok(Answer::Done),
        Ok(Ok(false)) => Ok(Answer::No),
        Ok(Err(error)) => Err(Trouble::refused(format!("{address} does not answer: {error}"))),
        Err(_) => Err(Trouble::refused(format!("{address} does not answer in time"))),
    }
}

/// Adds one to the number in the file. Only one thread ever does.
fn count(file: &Path) -> io::Result<u64> {
    let number: u64 = match std::fs::read_to_string(file) {
        Ok(text) => text.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let next = number.saturating_add(1);
    std::fs::write(file, next.to_string())?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(pairs: &[(&str, &str)]) -> Result<Wanted> {
        let find =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Wanted::read(find)
    }

    /// Serves on a free port and returns its address.
    async fn start(pairs: &[(&str, &str)]) -> String {
        let wanted = wanted(pairs).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                exchange(stream, &wanted).await.ok();
            }
        });
        address
    }

    async fn fetch(address: &str, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn it_shows_what_it_was_told() {
        let address =
            start(&[("SAMPLE_TITLE", "Board"), ("SAMPLE_SHOW", "MESSAGE OTHER"), ("MESSAGE", "Hi")]).await;
        let text = fetch(&address, b"GET / HTTP/1.1\r\n\r\n").await;
        assert!(
            text.starts_with("HTTP/1.1 200") && text.ends_with("Board\nMESSAGE = Hi\nOTHER = \n"),
            "{text}"
        );
        assert!(fetch(&address, b"GET /other HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
        assert!(fetch(&address, b"nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400"));
        assert!(ask(&address, "GET /healthz").await.unwrap());
    }

    #[tokio::test]
    async fn it_is_healthy_only_with_what_it_needs() {
        let sick = start(&[("SAMPLE_FAIL", "health")]).await;
        assert!(!ask(&sick, "GET /healthz").await.unwrap());
        let well = start(&[]).await;
        assert!(ask(&start(&[("SAMPLE_NEEDS", &well)]).await, "GET /healthz").await.unwrap());
        assert!(!ask(&start(&[("SAMPLE_NEEDS", &sick)]).await, "GET /healthz").await.unwrap());
        assert!(!ask(&start(&[("SAMPLE_NEEDS", "127.0.0.1:1")]).await, "GET /healthz").await.unwrap());
    }

    #[tokio::test]
    async fn it_counts_on_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("count");
        let counter = file.to_str().unwrap();
        for expected in ["1\n", "2\n"] {
            let address = start(&[("SAMPLE_COUNTER", counter)]).await;
            assert!(fetch(&address, b"POST /count HTTP/1.1\r\n\r\n").await.ends_with(expected));
        }
        std::fs::write(&file, "many").unwrap();
        let address = start(&[("SAMPLE_COUNTER", counter)]).await;
        assert!(fetch(&address, b"POST /count HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 500"));
    }

    #[test]
    fn what_it_does_not_understand_it_says() {
        assert!(wanted(&[("SAMPLE_FAIL", "sometimes")]).is_err());
        assert!(wanted(&[("SAMPLE_LISTEN", "here")]).is_err());
        assert!(wanted(&[("SAMPLE_EVERY", "0")]).is_err());
        assert_eq!(wanted(&[("SAMPLE_FAIL", "")]).unwrap().fail, None);
    }
}
