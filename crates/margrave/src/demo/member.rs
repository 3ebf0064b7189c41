//! One device of the demo: an agent on a thread of its own, behind a line of its own, so that either can be broken without the
//! others noticing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use margrave_agent::clock;
use margrave_agent::damage;
use margrave_agent::launch::{Launch, LaunchError, RuntimeChoice};
use margrave_agent::run;
use margrave_agent::runtime::Runtime;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};

use crate::exit::chain;

/// What a device is told by whoever runs the demo.
#[derive(Debug)]
pub(super) enum Order {
    /// As when the power goes, and comes back after a while.
    Kill { back_after: Duration, spoil: bool },
    /// The next thing that it downloads is not what was sent; tells what it said to that.
    Damage(oneshot::Sender<String>),
    /// Its clock is wrong by this, in milliseconds.
    Skew(i64),
    /// Its line works again: it need not find out by itself, some time.
    Ask,
    /// As when somebody stops the service.
    Stop,
}

pub(super) struct Member {
    pub(super) name: String,
    pub(super) line: Arc<watch::Sender<bool>>,
    pub(super) orders: mpsc::UnboundedSender<Order>,
    thread: std::thread::JoinHandle<()>,
    launch: Launch,
}

impl Member {
    /// Starts it, and waits until it stands.
    pub(super) async fn start(
        name: String,
        place: PathBuf,
        runtime: RuntimeChoice,
        server: std::net::SocketAddr,
    ) -> Result<Member, Fall> {
        let (line, cut) = watch::channel(false);
        let address = relay(server, cut).await.map_err(Fall::Line)?;
        let launch = Launch::new(place, runtime);
        let (orders, given) = mpsc::unbounded_channel();
        let (stands, standing) = oneshot::channel();
        let thread = {
            let (launch, name) = (launch.clone(), name.clone());
            let live = move || live(&name, &launch, address, given, stands);
            std::thread::Builder::new().name("device".to_owned()).spawn(live).map_err(Fall::Line)?
        };
        standing.await.map_err(|_| Fall::Gone)?.map_err(Fall::Launch)?;
        Ok(Member { name, line: Arc::new(line), orders, thread, launch })
    }

    /// Ends once its thread has; what ran there runs on.
    pub(super) async fn end(self) -> Launch {
        // One that has ended by itself hears nothing.
        self.orders.send(Order::Stop).unwrap_or_default();
        let thread = self.thread;
        let ended = tokio::task::spawn_blocking(move || thread.join());
        if !matches!(ended.await, Ok(Ok(()))) {
            tracing::error!(device = self.name, "a device of the demo did not end well");
        }
        self.launch
    }
}

/// What a device's runtime is, for whoever clears up behind it.
pub(super) async fn runtime_of(launch: Launch) -> Result<Arc<dyn Runtime>, LaunchError> {
    Ok(launch.prepare().await?.runtime)
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Fall {
    #[error("it has no line to the server")]
    Line(#[source] std::io::Error),
    #[error(transparent)]
    Launch(LaunchError),
    #[error("it ended at once")]
    Gone,
}

/// How one life of the device ended.
enum End {
    Stopped,
    Killed { back_after: Duration, spoil: bool },
}

/// The device's thread: one life after the other.
fn live(
    name: &str,
    launch: &Launch,
    server: std::net::SocketAddr,
    mut orders: mpsc::UnboundedReceiver<Order>,
    stands: oneshot::Sender<Result<(), LaunchError>>,
) {
    let mut stands = Some(stands);
    // All devices of the demo log in one place; each has this thread to itself.
    let _said_by = tracing::info_span!("device", name).entered();
    loop {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(device = name, %error, "a device of the demo has no thread to live on");
                return;
            }
        };
        let end = runtime.block_on(one_life(name, launch, server, &mut orders, &mut stands));
        // Whatever it was doing ends where it is.
        runtime.shutdown_background();
        match end {
            End::Stopped => return,
            End::Killed { back_after, spoil } => {
                if spoil {
                    overwrite(&launch.data.join("documents"));
                }
                std::thread::sleep(back_after);
            }
        }
    }
}

async fn one_life(
    name: &str,
    launch: &Launch,
    server: std::net::SocketAddr,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    stands: &mut Option<oneshot::Sender<Result<(), LaunchError>>>,
) -> End {
    let mut config = match launch.clone().prepare().await {
        Ok(config) => config,
        Err(error) => {
            match stands.take() {
                // Whoever waits for it tells why. Nobody waiting is no error.
                Some(stands) => drop(stands.send(Err(error))),
                None => tracing::error!(
                    device = name,
                    error = chain(error.to_string(), &error),
                    "a device of the demo did not come back"
                ),
            }
            return End::Stopped;
        }
    };
    config.identity.device_url = through(&config.identity.device_url, server);
    if let Some(stands) = stands.take() {
        drop(stands.send(Ok(())));
    }
    let way_open = Arc::clone(&config.way_open);
    let (stop, stopping) = watch::channel(false);
    let mut running = std::pin::pin!(run(config, stopping));
    loop {
        tokio::select! {
            ended = &mut running => {
                if let Err(error) = ended {
                    tracing::error!(device = name, error = chain(error.to_string(), &error), "a device of the demo ended");
                }
                return End::Stopped;
            }
            order = orders.recv() => match order {
                Some(Order::Kill { back_after, spoil }) => return End::Killed { back_after, spoil },
                Some(Order::Damage(heard)) => damage::next_download(heard),
                Some(Order::Skew(ahead)) => clock::skew(ahead),
                Some(Order::Ask) => way_open.notify_one(),
                // Nobody left to give orders is the end of the demo.
                Some(Order::Stop) | None => {
                    stop.send(true).unwrap_or_default();
                    orders.close();
                    return match running.await {
                        Ok(()) => End::Stopped,
                        Err(error) => {
                            tracing::error!(device = name, error = chain(error.to_string(), &error), "a device of the demo ended");
                            End::Stopped
                        }
                    };
                }
            },
        }
    }
}

/// The same address with another host and port.
fn through(url: &str, address: std::net::SocketAddr) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let path = rest.find('/').map_or("", |at| &rest[at..]);
    format!("{scheme}://{address}{path}")
}

/// Overwrites whatever lies there, as a bad disk would.
fn overwrite(documents: &Path) {
    let Ok(files) = std::fs::read_dir(documents) else { return };
    for file in files.flatten() {
        if let Err(error) = std::fs::write(file.path(), b"not what was downloaded") {
            tracing::warn!(%error, "a document could not be spoiled");
        }
    }
}

/// A line to the server that can be cut: listens on this machine and carries bytes until `cut` says otherwise.
async fn relay(
    server: std::net::SocketAddr,
    cut: watch::Receiver<bool>,
) -> std::io::Result<std::net::SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        loop {
            let taken = tokio::select! {
                taken = listener.accept() => taken,
                // The device has gone, and nobody needs its line.
                () = ended(cut.clone()) => return,
            };
            let Ok((device, _)) = taken else { continue };
            if !*cut.borrow() {
                tokio::spawn(carry(device, server, cut.clone()));
            }
        }
    });
    Ok(address)
}

async fn ended(mut cut: watch::Receiver<bool>) {
    while cut.changed().await.is_ok() {}
}

async fn carry(mut device: TcpStream, server: std::net::SocketAddr, mut cut: watch::Receiver<bool>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    tokio::select! {
        // Either side may end it, and both see that it has.
        _ = tokio::io::copy_bidirectional(&mut device, &mut server) => {}
        // Cut, or the demo ends.
        _ = cut.wait_for(|cut| *cut) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn a_line_of_its_own_keeps_the_path() {
        let address = "127.0.0.1:9".parse().unwrap();
        assert_eq!(through("https://localhost:8444/a/b", address), "https://127.0.0.1:9/a/b");
        assert_eq!(through("https://localhost:8444", address), "https://127.0.0.1:9");
    }

    #[tokio::test]
    async fn a_cut_line_carries_nothing_until_it_is_mended() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (line, cut) = watch::channel(false);
        let address = relay(server.local_addr().unwrap(), cut).await.unwrap();
        let mut device = TcpStream::connect(address).await.unwrap();
        let (mut heard, _) = server.accept().await.unwrap();
        device.write_all(b"hello").await.unwrap();
        let mut said = [0; 5];
        heard.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");
        line.send(true).unwrap();
        assert_eq!(device.read(&mut said).await.unwrap_or(0), 0, "the line is dead");
        let mut again = TcpStream::connect(address).await.unwrap();
        assert_eq!(again.read(&mut said).await.unwrap_or(0), 0, "and stays so");
        line.send(false).unwrap();
        let mut mended = TcpStream::connect(address).await.unwrap();
        mended.write_all(b"again").await.unwrap();
        let (mut heard, _) = server.accept().await.unwrap();
        heard.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"again");
    }
}
