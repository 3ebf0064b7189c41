//! `margrave-agent`: a device's life on the command line.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use margrave_agent::hold::{self, HoldError, Wish};
use margrave_agent::identity::{
    Enrollment, GitSource, Identity, IdentityError, Installation, Onboarding, Place, WebTrust,
};
use margrave_agent::launch::{Launch, RuntimeChoice, VERSION};
use margrave_agent::runtime::Telemetry;
use margrave_agent::runtime::engine;
use margrave_agent::runtime::simulated::Simulation;
use margrave_agent::supervisor::Supervisor;
use margrave_agent::{clock, identity, status};
use margrave_core::id::{ClientId, DeviceId};
use tokio::sync::watch;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Where an agent keeps everything, as a rule.
const DATA: &str = "/var/lib/margrave-agent";

/// The device of a Margrave fleet: pulls what it should run, checks every byte, runs it, and says what happened.
#[derive(Parser)]
#[command(name = "margrave-agent", version = VERSION, max_term_width = 100)]
#[command(after_help = "\
Example, on a device that shall join:
  margrave-agent join https://plant.example:8443 --token mgj_… --pin fu/kiX4t…=
  margrave-agent run

`margrave device token` prints the first line with everything filled in.")]
struct Cli {
    /// Where the device keeps its identity, its memory and what it fetched.
    #[arg(
        long,
        global = true,
        env = "MARGRAVE_AGENT_DATA",
        default_value = DATA,
        value_name = "DIR"
    )]
    data: PathBuf,
    /// Print JSON instead of text; for `run`, a JSON object per line of its log.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make this device a member of a server's fleet, once.
    #[command(after_help = "\
Example:
  margrave-agent join https://plant.example:8443 --token mgj_… --pin fu/kiX4t…=

`margrave device token` prints this command with everything filled in. Any other Margo server, with files
that its operator issued:
  margrave-agent join https://wfm.example --svid svid.pem --key key.pem --bundle bundle.json

A server of the older generation, which takes signed requests:
  margrave-agent join https://wfm.example --signed --ca root.pem

Exit code: 0 when it joined, 1 when the answer is no (the token is unknown, used or expired, an operator has
not accepted it, this directory belongs to a device already), 2 when asking went wrong.")]
    Join(Box<Join>),
    /// Run the device until stopped. What it started keeps running.
    #[command(
        after_help = "Example:\n  margrave-agent run --data /var/lib/margrave-agent\n\nLog: MARGRAVE_LOG=debug shows more, MARGRAVE_LOG=warn less."
    )]
    Run(Run),
    /// What should run here, what does, and why not; works without a network and without a running agent.
    #[command(
        after_help = "Example:\n  margrave-agent status --json\n\nExit code: 0 when everything wanted is installed, 1 when not, 2 when it cannot be told."
    )]
    Status,
    /// Hold changes back for a while; what runs keeps running, and what is broken is still mended.
    #[command(
        after_help = "Example:\n  margrave-agent hold --reason \"batch 17 runs\" --for 2h\n\nThe server shows who holds, why and until when. Of two holds by the same holder the one that ends later stays; to shorten one, release it first. Applications hold over DIR/apps/hold.sock (docs/devices.md).\n\nExit code: 0 when they are held back, 1 when that is refused, 2 when no agent answers."
    )]
    Hold(HoldBack),
    /// Let changes go on that were held back.
    #[command(
        after_help = "Example:\n  margrave-agent release\n\nExit code: 0 when something was released, 1 when nothing was held back, 2 when no agent answers."
    )]
    Release {
        /// Only what this one holds; everybody's when left out.
        #[arg(long, value_name = "NAME")]
        holder: Option<String>,
    },
}

#[derive(Args)]
struct HoldBack {
    /// Why, in a sentence; the server shows it.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// For how long, such as 30m or 2h; asking again prolongs it, up to what the server allows, and never shortens it.
    #[arg(long = "for", value_name = "TIME")]
    length: Seconds,
    /// Who holds; the person who is logged in when left out.
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
}

#[derive(Args)]
struct Join {
    /// The server's address, such as https://plant.example:8443; with --svid or --signed, that of its device interface.
    url: String,
    /// The one-time token from `margrave device token`.
    #[arg(long, env = "MARGRAVE_JOIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The server's pin, which makes the first contact safe; with --svid, that of the identity service. May be repeated.
    #[arg(long, conflicts_with = "ca")]
    pin: Vec<String>,
    /// Authorities to trust the server's web certificate by, PEM, instead of a pin; the system's when neither is given.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate that an operator issued to this device (an X.509-SVID with its chain, PEM), for any Margo server.
    #[arg(long, value_name = "FILE", requires = "key")]
    svid: Option<PathBuf>,
    /// The key of --svid or --certificate, PKCS#8 in PEM.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The trust bundle of --svid: a JSON file, or the https address where it is published.
    #[arg(long, value_name = "FILE|URL", requires = "svid")]
    bundle: Option<String>,
    /// The identity service of --svid, whose discovery document tells where the trust bundle is.
    #[arg(long, value_name = "URL", requires = "svid")]
    identity_url: Option<String>,
    /// For a server of the older, signed generation: show it a certificate, and wait for its operator to accept this device.
    #[arg(long, conflicts_with_all = ["svid", "git", "git_url"])]
    signed: bool,
    /// The certificate to show, PEM, when the server's operator knows one already; made by itself when left out.
    #[arg(long, value_name = "FILE", requires_all = ["signed", "key"])]
    certificate: Option<PathBuf>,
    /// The id that a server of the signed generation gave this device's certificate earlier and does not tell again.
    #[arg(long, value_name = "ID", requires = "signed")]
    client_id: Option<ClientId>,
    /// How long to wait for an operator to accept this device, such as 10m; 0s asks once.
    #[arg(long, value_name = "TIME", requires = "signed", default_value = "1h")]
    patience: Seconds,
    /// Take desired state from this device's Git repository at the server, which an operator allows with `margrave device git`.
    #[arg(long, conflicts_with = "git_url")]
    git: bool,
    /// Take desired state from this Git repository instead, of the form that a Margrave server has (docs/devices.md).
    #[arg(long, value_name = "URL", requires = "git_token")]
    git_url: Option<String>,
    /// The token that opens --git-url.
    #[arg(long, env = "MARGRAVE_GIT_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    git_token: Option<String>,
    /// The user that --git-token is of; most servers do not mind.
    #[arg(long, value_name = "NAME", default_value = "margrave")]
    git_user: String,
    /// The authority that --git-url's certificate chains to, PEM; the system's when left out.
    #[arg(long, value_name = "FILE", requires = "git_url")]
    git_ca: Option<PathBuf>,
    /// What the device calls itself in what it reports; the client's name (with --signed, the machine's) when left out.
    #[arg(long, value_name = "ID")]
    device: Option<DeviceId>,
    /// Replace the identity that is here, and keep what runs; see docs/devices.md before moving a device.
    #[arg(long)]
    replace: bool,
}

impl Join {
    async fn perform(self, data: &Path) -> anyhow::Result<Identity> {
        let git = self.git_source().await?;
        let place = if self.replace { Place::taken_over(data)? } else { Place::vacant(data)? };
        let Join {
            url, token, pin, ca, svid, key, bundle, identity_url, device, signed, certificate, ..
        } = self;
        if signed {
            let onboarding = Onboarding {
                url,
                trust: WebTrust::of(pin, ca.as_deref())?,
                given: certificate.zip(key),
                client: self.client_id,
                device,
                patience: self.patience.0,
            };
            return Ok(identity::onboard(&place, onboarding).await?);
        }
        if let (Some(svid), Some(key)) = (svid, key) {
            let trust = WebTrust::of(pin, ca.as_deref())?;
            let installation = Installation { url, svid, key, bundle, identity_url, trust, device, git };
            return Ok(identity::install(&place, installation, clock::now()).await?);
        }
        let token = token.context(
            "give the --token that `margrave device token` printed, or --svid and --key, or --signed",
        )?;
        let [pin] = <[String; 1]>::try_from(pin)
            .ok()
            .context("give the --pin that `margrave device token` printed, once")?;
        anyhow::ensure!(device.is_none(), "with --token the server names this device; leave --device out");
        Ok(identity::enroll(&place, Enrollment { url, token, pin, git }).await?)
    }

    async fn git_source(&self) -> anyhow::Result<Option<GitSource>> {
        let source = match (&self.git_url, &self.git_token) {
            (Some(url), Some(token)) => {
                let authority = match &self.git_ca {
                    Some(path) => Some(
                        std::fs::read_to_string(path)
                            .with_context(|| format!("{} cannot be read", path.display()))?,
                    ),
                    None => None,
                };
                GitSource::Given {
                    url: url.clone(),
                    username: self.git_user.clone(),
                    token: token.clone(),
                    authority,
                }
            }
            _ if self.git => GitSource::Server,
            _ => return Ok(None),
        };
        margrave_agent::check_git().await?;
        Ok(Some(source))
    }
}

#[derive(Args)]
struct Run {
    /// What carries out orders; `simulated` runs nothing and says so to the server.
    #[arg(long, value_enum, default_value = "compose")]
    runtime: RuntimeName,
    /// The container engine's socket; found by itself when left out (DOCKER_HOST, Docker's, Podman's).
    #[arg(long, value_name = "unix://SOCKET")]
    engine: Option<String>,
    /// A JSON file whose fields go over what the machine says of itself; DIR/capabilities.json when it is there.
    #[arg(long, value_name = "FILE")]
    capabilities: Option<PathBuf>,
    /// Time between two polls, for servers that do not hold them open, such as 30s.
    #[arg(long, value_name = "TIME")]
    poll: Option<Seconds>,
    /// How long a server may hold a poll open, such as 5m; it may answer earlier; 0s turns that off.
    #[arg(long, value_name = "TIME")]
    wait: Option<Seconds>,
    /// Talk to the server and change what runs at any time, whatever schedule the server set.
    #[arg(long)]
    any_time: bool,
    /// Whether reports wait for the next poll and downloads for the window, whatever schedule the server set.
    #[arg(long, value_enum, value_name = "ON|OFF")]
    data_saver: Option<Switch>,
    /// Refuse a trust bundle whose number is lower than that of the one in use; otherwise that is only logged.
    #[arg(long)]
    refuse_older_bundle: bool,
    /// OTLP over HTTP address of the device's OpenTelemetry collector, as containers reach it; told to every container.
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// What becomes of images that this agent pulled and no deployment needs any more, whatever schedule the server set; others'
    /// images are never touched.
    #[arg(long, value_enum, value_name = "POLICY")]
    images: Option<Images>,
    /// For `--runtime simulated`: a JSON file with latencies and failures (docs/devices.md).
    #[arg(long, value_name = "FILE")]
    simulation: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, ValueEnum)]
enum Images {
    Keep,
    Remove,
}

#[derive(Clone, Copy, ValueEnum)]
enum RuntimeName {
    Compose,
    Simulated,
}

/// A duration in seconds, minutes or hours: `30s`, `5m`, `2h`, or a bare number of seconds; `500ms` for tests.
#[derive(Clone, Copy)]
struct Seconds(Duration);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let number: u64 = number.parse().map_err(|_| "write a time like 30s, 5m or 2h".to_owned())?;
        let millis = match unit {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err("write a time like 30s, 5m or 2h".to_owned()),
        };
        number
            .checked_mul(millis)
            .map(|ms| Seconds(Duration::from_millis(ms)))
            .ok_or("that is too long".to_owned())
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    log(cli.json);
    // One thread is enough for one device, and keeps it small.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(execute(cli));
            // What is being removed or unpacked goes on with the next start; nobody who stops the service waits for it.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(anyhow::Error::new(error).context("the program could not start")),
    };
    match outcome {
        Ok(code) => code,
        // Whoever read our output had seen enough, as `head` does; that is no error.
        Err(error) if error.downcast_ref().is_some_and(Unsaid::reader_left) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("margrave-agent: {error:#}"));
            failed(&error)
        }
    }
}

/// 1 when the honest answer is no, 2 when asking went wrong.
fn failed(error: &anyhow::Error) -> ExitCode {
    let identity = error.downcast_ref().is_some_and(IdentityError::is_no);
    let hold = error.downcast_ref().is_some_and(HoldError::is_no);
    ExitCode::from(if identity || hold { 1 } else { 2 })
}

async fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    let Cli { data, json, command } = cli;
    // Programs that are started in other directories are told of files below it.
    let data = std::path::absolute(&data).with_context(|| format!("{} is no directory", data.display()))?;
    match command {
        Command::Join(join) => {
            let identity = join.perform(&data).await?;
            if json {
                let joined = serde_json::json!({
                    "device": identity.client_id,
                    "server": identity.url,
                    "form": identity.form(),
                });
                say(&joined.to_string())?;
            } else {
                let shown = data.display();
                say(&format!(
                    "This device is now {}. Start it:\n  margrave-agent run --data {shown}",
                    identity.client_id
                ))?;
                let engine = engine::Engine::locate(&engine::Places::from_environment()).await.ok();
                let is_podman = engine.map(|engine| engine.is_podman());
                let authority = identity::registry_authority_in(&data);
                if let Some(words) = trust_words(&identity, &authority, is_podman) {
                    say(&words)?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(run) => {
            let mut config = run.launch(data)?.prepare().await?;
            config.supervisor = Supervisor::of_environment();
            let (stop, stopping) = watch::channel(false);
            tokio::spawn(async move {
                stop_requested().await;
                // The receiver lives as long as the run; nobody listening means that it has ended.
                stop.send(true).unwrap_or_default();
            });
            margrave_agent::run(config, stopping).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Hold(HoldBack { reason, length, holder }) => {
            let holder = holder.unwrap_or_else(who);
            let wish =
                Wish::Hold { holder: holder.clone(), reason: reason.clone(), seconds: length.0.as_secs() };
            let held = hold::ask(&data, &wish).await?;
            let until = held.until.unwrap_or_default();
            let why = held.reason.unwrap_or_else(|| reason.clone());
            if json {
                let held = serde_json::json!({ "holder": holder, "until": until, "reason": why });
                say(&held.to_string())?;
            } else {
                let place = match data.as_path() == Path::new(DATA) {
                    true => String::new(),
                    false => format!(" --data {}", data.display()),
                };
                let earlier = match why == reason.trim() {
                    true => String::new(),
                    false => format!("What {holder} held before ends later, and stays.\n"),
                };
                say(&format!(
                    "Changes are held back until {until}: {why}\n{earlier}To let them go on:\n  margrave-agent release{place}"
                ))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Release { holder } => {
            let released = hold::ask(&data, &Wish::Release { holder }).await?.released.unwrap_or_default();
            if json {
                say(&serde_json::json!({ "released": released }).to_string())?;
            } else if released == 0 {
                say("Nothing was held back.")?;
            } else {
                say("Changes go on.")?;
            }
            Ok(if released == 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
        }
        Command::Status => {
            let status = status::status(&data).await?;
            if json {
                say(&serde_json::to_string(&status)?)?;
            } else {
                say(status.to_string().trim_end())?;
            }
            Ok(if status.converged() { ExitCode::SUCCESS } else { ExitCode::from(1) })
        }
    }
}

/// The person at the keyboard, as far as that is known.
fn who() -> String {
    let named = |name: &str| std::env::var(name).ok().filter(|name| !name.is_empty());
    named("SUDO_USER").or_else(|| named("USER")).unwrap_or_else(|| "technician".to_owned())
}

/// How to let the engine trust the server's registry; both ways where nobody knows which engine that will be. Docker trusts whatever
/// is on its own machine, and nothing else without being told; Podman trusts nothing.
fn trust_words(identity: &Identity, authority: &Path, is_podman: Option<bool>) -> Option<String> {
    let registry = identity.registry.as_deref()?;
    let origin = |text: &str| margrave_http::Origin::parse(text).ok();
    let place = origin(&format!("https://{registry}"))?;
    if place.is_loopback() {
        // It may be plain HTTP, which no certificate helps with.
        let command = format!(
            r#"printf '[[registry]]\nlocation = "{registry}"\ninsecure = true\n' > /etc/containers/registries.conf.d/margrave.conf"#
        );
        let whose =
            "For images from the server's own registry on this very machine, let Podman use it unchecked";
        return (is_podman == Some(true)).then(|| format!("{whose}:\n  {command}"));
    }
    if !authority.exists() {
        return None;
    }
    let (docker, podman) = (is_podman != Some(true), is_podman != Some(false));
    let mut commands = String::new();
    for (engine, directory) in [(docker, "docker"), (podman, "containers")] {
        if engine {
            let to = format!("/etc/{directory}/certs.d/{registry}/ca.crt");
            commands.push_str(&format!("\n  install -D -m 644 {} {to}", authority.display()));
        }
    }
    let engine = match (docker, podman) {
        (true, true) => "Docker (the first line) or Podman (the second)",
        (true, false) => "Docker",
        _ => "Podman",
    };
    // A server that names somebody else's registry would have this device trust it in that one's place.
    let joined = origin(&identity.url).is_some_and(|joined| joined.host() == place.host());
    Some(match joined {
        true => format!("For images from the server's own registry, let {engine} trust it:{commands}"),
        false => format!(
            "The server says that its registry is {registry}, which is not the host that was joined. If you know that it is \
             the server's, let {engine} trust it:{commands}"
        ),
    })
}

impl Run {
    fn launch(self, data: PathBuf) -> anyhow::Result<Launch> {
        let Run {
            runtime,
            engine,
            capabilities,
            poll,
            wait,
            any_time,
            data_saver,
            refuse_older_bundle,
            otlp,
            images,
            simulation,
        } = self;
        let runtime = match runtime {
            RuntimeName::Compose => {
                let telemetry = otlp.map(|http_endpoint| Telemetry {
                    http_endpoint,
                    grpc_endpoint: None,
                    protocol: None,
                });
                RuntimeChoice::Compose { engine, label: None, telemetry }
            }
            RuntimeName::Simulated => RuntimeChoice::Simulated(match simulation {
                Some(path) => {
                    let text =
                        std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
                    serde_json::from_slice(&text)
                        .with_context(|| format!("{} is not a simulation", path.display()))?
                }
                None => Simulation::default(),
            }),
        };
        Ok(Launch {
            data,
            runtime,
            capabilities,
            poll_every: poll.map(|p| p.0),
            poll_wait: wait.map(|w| w.0),
            any_time,
            saves_data: data_saver.map(|saver| matches!(saver, Switch::On)),
            removes_images: images.map(|images| matches!(images, Images::Remove)),
            refuse_older_bundle,
        })
    }
}

async fn stop_requested() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = signal(SignalKind::terminate());
    let interrupt = signal(SignalKind::interrupt());
    match (terminate, interrupt) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        // Without handlers the signals end the process by themselves, which is safe at any moment.
        _ => std::future::pending().await,
    }
}

fn log(json: bool) {
    let wanted = std::env::var("MARGRAVE_LOG").unwrap_or_else(|_| "info".to_owned());
    let targets =
        Targets::from_str(&wanted).unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let layer =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(colours);
    let subscriber = tracing_subscriber::registry().with(targets);
    if json { subscriber.with(layer.json()).init() } else { subscriber.with(layer).init() }
}

/// The command's answer could not be given.
#[derive(Debug, thiserror::Error)]
#[error("the output cannot be written")]
struct Unsaid(#[source] io::Error);

impl Unsaid {
    fn reader_left(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// The command's answer.
fn say(text: &str) -> Result<(), Unsaid> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Unsaid)
}

/// Words for a person. Where nobody can read them, the exit code says it all.
fn tell(text: &str) {
    writeln!(io::stderr(), "{text}").unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_engine_is_to_trust_the_registry_of_the_host_that_was_joined_and_no_other_unasked() {
        let directory = tempfile::tempdir().unwrap();
        let authority = directory.path().join("registry-authority.pem");
        let words_for = |registry: &str, is_podman: Option<bool>| {
            let file = serde_json::json!({
                "clientId": "line-1", "url": "https://plant.example:8443", "pin": "p", "registry": registry,
                "deviceUrl": "https://plant.example:8444", "certificates": ["c"], "key": "k",
                "trustBundle": { "keys": [] },
            });
            std::fs::write(directory.path().join("identity.json"), file.to_string()).unwrap();
            trust_words(&Identity::load(directory.path()).unwrap(), &authority, is_podman)
        };
        let words = |registry: &str| words_for(registry, Some(false));
        assert_eq!(words("plant.example:8443"), None);
        std::fs::write(&authority, "pem").unwrap();
        assert_eq!(words("127.0.0.1:5000"), None);
        let own = words("plant.example:8443").unwrap();
        assert!(
            own.contains("/etc/docker/certs.d/plant.example:8443/ca.crt") && !own.contains("If you know")
        );
        assert!(words("images.example").unwrap().contains("not the host that was joined. If you know"));
        assert!(!own.contains("Podman"), "{own}");
        let podman = words_for("plant.example:8443", Some(true)).unwrap();
        assert!(podman.contains("/etc/containers/certs.d/plant.example:8443/ca.crt"), "{podman}");
        assert!(!podman.contains("ocker"), "{podman}");
        let either = words_for("plant.example:8443", None).unwrap();
        assert!(either.contains("/etc/docker/certs.d/") && either.contains("/etc/containers/certs.d/"));
        // Podman trusts nothing on its own machine, either.
        let near = words_for("127.0.0.1:5000", Some(true)).unwrap();
        assert!(
            near.contains(r#"location = "127.0.0.1:5000""#) && near.contains("registries.conf.d"),
            "{near}"
        );
    }

    #[test]
    fn every_command_shows_an_example() {
        let cli = Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands() {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Example:"), "{}", command.get_name());
        }
    }

    #[test]
    fn times_are_written_as_people_write_them() {
        let of = |text: &str| text.parse::<Seconds>().map(|seconds| seconds.0.as_millis());
        assert_eq!(of("30s"), Ok(30_000));
        assert_eq!(of("5m"), Ok(300_000));
        assert_eq!(of("7"), Ok(7_000));
        assert_eq!(of("500ms"), Ok(500));
        for bad in ["", "s", "-1s", "5 minutes", "99999999999999999999s"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
