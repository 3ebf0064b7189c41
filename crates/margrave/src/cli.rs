//! The tree of commands, as clap reads it. Nothing here acts; `commands` does.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

mod access;
mod backup;
mod deployment;
mod device;
mod failing;
mod follow;
mod intent;
mod package;
mod registry;
mod rollout;
mod schedule;
mod secret;
mod signed;
mod simulate;
mod windows;

pub(crate) use access::{Audit, AuditVerb, Head, Session, Token};
pub(crate) use backup::{Backup, Completions, Restore, Shell};
pub(crate) use deployment::{Deployment, DeploymentUpdate};
pub(crate) use device::{Device, DeviceGit};
pub(crate) use failing::Failing;
pub(crate) use follow::Follow;
pub(crate) use intent::{Apply, Diff, Format, Get, Intent, Plan, ResourceKind, Schema};
pub(crate) use package::{Check, Push, WatchRepository};
pub(crate) use registry::{AddRegistry, Opening, Registry};
pub(crate) use rollout::{Rollout, Steps};
pub(crate) use schedule::{Part, Schedule, SetSchedule};
pub(crate) use secret::Secret;
pub(crate) use signed::Signed;
pub(crate) use simulate::Simulate;
pub(crate) use windows::Windows;

/// Runs workloads on fleets of industrial edge devices, by the Margo standard.
#[derive(Debug, Parser)]
#[command(name = "margrave", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "\
Begin with:
  margrave demo

Exit codes: 0 done, 1 the honest answer is no, 2 it broke.")]
pub(crate) struct Cli {
    /// Data for programs on standard output instead of tables for people
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, and it is made once")]
pub(crate) enum Command {
    /// Start everything on this machine: server, devices and sample packages
    Demo(Demo),
    /// Start the server
    Serve(Serve),
    /// Remember a server and a token, so that other commands need neither
    Login(Login),
    /// Show the fleet at a glance
    Status(Status),
    /// Tell the one true reason that something is not as wanted
    Why(Why),
    /// Deploy a package to devices
    Deploy(Box<Deploy>),
    /// Look at deployments and change them
    #[command(arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  margrave deployment list
  margrave deployment update andon-board --set message=\"Shift 2\" --wait
  margrave deployment revert andon-board --wait")]
    Deployment(Noun<Deployment>),
    /// See how far a new revision came, and stop it or let it go on
    #[command(arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  margrave rollout show andon-board
  margrave rollout pause andon-board")]
    Rollout(Noun<Rollout>),
    /// Look at the fleet's devices and change what is known about them
    #[command(arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  margrave device list --condition failed
  margrave device token --name press-3 --label site=nord")]
    Device(Noun<Device>),
    /// Set when devices talk to the server, and when they change what runs
    #[command(arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  margrave schedule list
  margrave schedule set fleet --window=\"sun 02:00-05:00 Europe/Berlin\"")]
    Schedule(Noun<Schedule>),
    /// Look at the authority behind the devices' certificates, and replace it
    #[command(arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  margrave authority show
  margrave authority rotate
  margrave authority retire")]
    Authority(Noun<Authority>),
    /// Make, list and revoke the tokens of people and programs
    #[command(arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  margrave token create ann --role operator --expires 90d
  margrave token list")]
    Token(Noun<Token>),
    /// End your sessions of the page
    #[command(arg_required_else_help = true)]
    #[command(after_help = "Example:\n  margrave session end-all")]
    Session(Noun<Session>),
    /// Seal secrets, so that they can stand in files
    #[command(arg_required_else_help = true)]
    #[command(after_help = "Example:\n  margrave secret seal andon-board password --file password.txt")]
    Secret(Noun<Secret>),
    /// Show who changed what and who was refused, newest first
    Audit(Audit),
    /// Look after the catalog of packages
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  margrave package check ./andon-board
  margrave package add ./andon-board")]
    Package(Package),
    /// Look after the registries that packages come from
    #[command(arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  margrave registry add registry.example --user plant --password-stdin
  margrave registry check registry.example")]
    Registry(Noun<Registry>),
    /// Look at the repository behind what is wanted, and decide conflicts
    #[command(arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  margrave intent show
  margrave intent log")]
    Intent(Noun<Intent>),
    /// Show what is wanted, as files
    Get(Get),
    /// Make files what is wanted, in one commit
    Apply(Apply),
    /// Show how files differ from what is wanted
    Diff(Diff),
    /// Show what files would do to the fleet, without doing it
    Plan(Plan),
    /// Print the JSON Schema of a kind of file, for editors
    Schema(Schema),
    /// Show what happened, oldest first
    Events(Events),
    /// Write everything that the server keeps into one file, while it runs
    Backup(Backup),
    /// Put a server back from a backup, into an empty directory
    Restore(Restore),
    /// Print what a shell needs to complete these commands
    Completions(Completions),
    /// Let many simulated devices talk to a server, to see what it can carry
    Simulate(Simulate),
    /// What the containers of the sample packages run
    #[command(hide = true)]
    Sample(Sample),
}

/// A noun with verbs; all of them talk to a server.
#[derive(Debug, Args)]
pub(crate) struct Noun<V: Subcommand> {
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) verb: V,
}

/// Which server to talk to. Environment variables are read by `context.rs`, because a flag of any kind
/// must win over a variable of any kind, which clap cannot express.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connection {
    /// File that says where the server is, as `serve`, `demo` and `login` write it [env: MARGRAVE_CONTEXT]
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "server")]
    pub(crate) context: Option<PathBuf>,
    /// Address of the server, such as https://plant.example:8443 [env: MARGRAVE_SERVER]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Operator's token [env: MARGRAVE_TOKEN]
    // Not `--token`, which on `device token` would look like the token that is being made.
    #[arg(long = "operator-token", alias = "token", global = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Pin of the server's own authority, as `serve` prints it [env: MARGRAVE_PIN]
    #[arg(long, global = true, value_name = "PIN")]
    pub(crate) pin: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave demo
  margrave demo --devices 12 --simulated
  margrave demo --data plant --listen 127.0.0.1:9443")]
pub(crate) struct Demo {
    /// Keep everything here instead of in a temporary directory that goes when the demo ends
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// How many devices to start
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) devices: u16,
    /// Do not start containers, even if a Docker engine answers
    #[arg(long)]
    pub(crate) simulated: bool,
    /// HTTPS address for devices' first contact and the registry; a free port if 8443 is taken
    #[arg(long, value_name = "ADDRESS", value_parser = listen_loopback)]
    pub(crate) listen: Option<SocketAddr>,
    /// Mutual TLS address for devices; a free port if 8444 is taken
    #[arg(long, value_name = "ADDRESS", value_parser = listen_loopback)]
    pub(crate) device_listen: Option<SocketAddr>,
    /// Plain HTTP address of the page, on this machine only; a free port if 8480 is taken
    #[arg(long, value_name = "ADDRESS", value_parser = listen_loopback)]
    pub(crate) local_listen: Option<SocketAddr>,
    /// Also the older device interface with signed requests (g1), at this address
    #[arg(long, value_name = "ADDRESS", value_parser = listen_loopback)]
    pub(crate) signed_listen: Option<SocketAddr>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave serve --data /var/lib/margrave
  margrave serve --data plant --name margrave.plant.example --name 10.0.0.5")]
pub(crate) struct Serve {
    /// Directory for everything the server keeps; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Address of the page, the operator interface, the identity service and the registry
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443", value_parser = listen_anywhere)]
    pub(crate) listen: SocketAddr,
    /// Address of the devices' interface (mutual TLS)
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8444", value_parser = listen_anywhere)]
    pub(crate) device_listen: SocketAddr,
    /// Path below which the devices' interface answers as well, such as /v1alpha2/margo
    #[arg(long, value_name = "PATH")]
    pub(crate) device_prefix: Option<margrave_server::http::PathPrefix>,
    /// Also plain HTTP at this loopback address, for a browser or engine on this very machine
    #[arg(long, value_name = "ADDRESS", value_parser = listen_loopback)]
    pub(crate) local_listen: Option<SocketAddr>,
    /// DNS name or IP address that others use for this server; repeat for several
    #[arg(long = "name", value_name = "HOST")]
    pub(crate) names: Vec<String>,
    /// Trust domain of the identities this server issues; cannot change later
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) trust_domain: Option<margrave_core::id::TrustDomain>,
    /// This server's own name within the trust domain; cannot change later
    #[arg(long, value_name = "ID")]
    pub(crate) wfm_id: Option<margrave_core::id::WfmId>,
    /// How long a device's certificate is valid, at least 10m; it is renewed long before
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = duration)]
    pub(crate) svid_lifetime: Duration,
    /// Take a lifetime that makes no sense, for tests that wait until certificates expire
    #[arg(long, hide = true)]
    pub(crate) svid_lifetime_any: bool,
    /// After how long a device is called silent, for tests that wait for it; devices whose polls are held are silent for long
    #[arg(long, hide = true, value_name = "DURATION", value_parser = duration)]
    pub(crate) silent_after: Option<Duration>,
    /// host:port at which devices reach the built-in registry, if not at the server's own address
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) registry_address: Option<String>,
    /// Ask no registry elsewhere which digests images have, but those added with `margrave registry add`
    #[arg(long)]
    pub(crate) air_gapped: bool,
    #[command(flatten)]
    pub(crate) follow: Follow,
    #[command(flatten)]
    pub(crate) signed: Signed,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave login https://margrave.plant.example:8443 --token TOKEN --pin PIN
  margrave login https://margrave.plant.example:8443 --token - --pin PIN")]
pub(crate) struct Login {
    /// Address of the server
    pub(crate) url: String,
    /// Operator's token; a dash reads it from standard input [env: MARGRAVE_TOKEN]
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// Pin of the server's own authority; without one, the certificate must be known to this machine
    #[arg(long)]
    pub(crate) pin: Option<String>,
    /// Where to remember it, instead of the usual place
    #[arg(long, value_name = "FILE")]
    pub(crate) context: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave status
  margrave status --watch
  margrave status --json
  margrave status --at=\"2h ago\"
  margrave status --at 2026-11-16T12:00:00Z")]
pub(crate) struct Status {
    /// Keep showing it as it changes, until Ctrl-C
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// As it was wanted and reported at this moment instead, such as 2026-11-16T12:00:00Z or `2h ago`
    #[arg(long, value_name = "TIME", conflicts_with = "watch")]
    pub(crate) at: Option<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave why press-1
  margrave why press-1/line-monitor
  margrave why deployment line-monitor
  margrave why rollout line-monitor

docs/why.md has every cause, and what to do about it.")]
pub(crate) struct Why {
    /// A device, one deployment on it, or what kind of thing is named next: device, deployment or rollout; `intent` is what is
    /// wanted as a whole, and has no name
    #[arg(value_name = "[KIND] DEVICE[/DEPLOYMENT]|DEPLOYMENT|intent")]
    pub(crate) subject: String,
    /// The name, where the kind comes first
    #[arg(hide = true)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
#[command(override_usage = "\
margrave deploy [OPTIONS] <PACKAGE[@VERSION]>
         <--to <DEVICE>...|--label <KEY=VALUE>|
          --select <EXPRESSION>|--site <SITE>...>")]
#[command(group = clap::ArgGroup::new("targets").args(["devices", "labels", "select", "sites"]).required(true).multiple(true))]
#[command(after_help = "\
Examples:
  margrave deploy andon-board --to press-1 --wait
  margrave deploy quality-gate@1.0.0 --label line=press --name gate \\
    --set siteCode=NORD-01
  margrave deploy andon-board --select=line=press,role!=spare --site nord
  margrave deploy andon-board --to press-1 --force=\"the next board goes tonight\"
  margrave deploy andon-board --label site=nord --canary 2 --batch 10% \\
    --soak 30m --on-failure revert")]
pub(crate) struct Deploy {
    /// The package; its newest version unless one is named
    #[arg(value_name = "PACKAGE[@VERSION]", value_parser = package_at)]
    pub(crate) package: PackageAt,
    /// A device to deploy to; repeat for several
    #[arg(long = "to", value_name = "DEVICE", num_args = 1.., value_delimiter = ',')]
    pub(crate) devices: Vec<String>,
    /// Deploy to the devices that have this label; with several, to those that have all
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) labels: Vec<Pair>,
    /// Deploy to the devices that an expression on labels selects, such as 'line in (1, 2), !spare'
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) select: Option<String>,
    /// Deploy to the devices of a site; repeat for several
    #[arg(long = "site", value_name = "SITE", num_args = 1.., value_delimiter = ',')]
    pub(crate) sites: Vec<String>,
    /// What to call the deployment; the package's name unless given
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Answer one of the package's questions; repeat it with the same name for a list
    #[arg(long = "set", value_name = "PARAMETER=VALUE", value_parser = pair)]
    pub(crate) set: Vec<Pair>,
    /// Answer a question with a secret: env:MARGRAVE_SECRET_NAME or file:NAME at the server, or sealed:TEXT
    #[arg(long = "secret", value_name = "PARAMETER=REFERENCE", value_parser = pair)]
    pub(crate) secrets: Vec<Pair>,
    /// The package's profile to use, instead of the first that fits each device
    #[arg(long)]
    pub(crate) profile: Option<String>,
    /// Deploy also to devices that it does not fit, and why; the reason is kept. What a device cannot run at all stays left out
    #[arg(long, value_name = "REASON")]
    pub(crate) force: Option<String>,
    #[command(flatten)]
    pub(crate) failing: Failing,
    #[command(flatten)]
    pub(crate) steps: Steps,
    #[command(flatten)]
    pub(crate) windows: Windows,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Waiting {
    /// Show progress until every device that it is wanted on is done; exit code 1 if one failed
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait at most
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Authority {
    /// Show which authority issues certificates, and how far a rotation is
    #[command(after_help = "Example:\n  margrave authority show")]
    Show,
    /// Replace the authority: devices are told of the next one now, and get certificates of it after a wait
    #[command(after_help = "\
Examples:
  margrave authority rotate
  margrave authority rotate --switch-after 7d
  margrave authority rotate --now

Both authorities are trusted until the old one is retired. Devices look for changes every hour, so the wait is \
for those that are switched off; --now is for an authority whose key was seen by others.")]
    Rotate {
        /// How long devices have to learn of the next authority before it issues
        #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = duration, conflicts_with = "now")]
        switch_after: Duration,
        /// Let the next authority issue at once
        #[arg(long)]
        now: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// End the trust in the former authority, once no device has a certificate of it any more
    #[command(after_help = "\
Examples:
  margrave authority retire
  margrave authority retire --force --yes")]
    Retire {
        /// Also if devices still have a certificate of it; they are out until they join again
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// Each verb has its own connection, because one of them has none.
#[derive(Debug, Subcommand)]
pub(crate) enum Package {
    /// Add a package from a directory or archive, or from a registry that the server can reach
    #[command(after_help = "\
Examples:
  margrave package add ./andon-board
  margrave package add andon-board.tgz
  margrave package add oci://registry.example/packages/andon-board:1.0.0

A directory holds margo.yaml and its resources. A folder components/NAME with a compose.yaml is packed and \
pushed to the server's own registry, if the component's repository there begins with oci://margrave/.")]
    Add {
        /// A package's directory, an archive of it (.tar, .tgz), or an OCI reference
        #[arg(value_name = "DIR|ARCHIVE|REFERENCE")]
        source: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// List the catalog
    #[command(after_help = "Example:\n  margrave package list")]
    List {
        #[command(flatten)]
        connection: Connection,
    },
    /// Show a package: its texts, profiles, components and questions
    #[command(after_help = "\
Examples:
  margrave package show andon-board
  margrave package show andon-board@1.0.0")]
    Show {
        /// The package; its newest version unless one is named
        #[arg(value_name = "ID[@VERSION]", value_parser = package_at)]
        package: PackageAt,
        /// Show description, release notes and licence to their end
        #[arg(long)]
        full: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// Tell what is wrong with a package, without a server
    Check(Check),
    /// Check a package and push it to a registry, without a server
    Push(Push),
    /// Add the new versions of a repository to the catalog by themselves
    Watch(WatchRepository),
    /// List the repositories that are watched, and what could not be added
    #[command(after_help = "Example:\n  margrave package watches")]
    Watches {
        #[command(flatten)]
        connection: Connection,
    },
    /// Look at a watched repository now, and wait for what comes of it; exit code 1 if it could not be read
    #[command(after_help = "Example:\n  margrave package look oci://registry.example/packages/andon-board")]
    Look {
        /// The repository
        #[arg(value_name = "oci://HOST/REPOSITORY")]
        repository: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Watch a repository no more; its packages stay in the catalog
    #[command(
        after_help = "Example:\n  margrave package unwatch oci://registry.example/packages/andon-board"
    )]
    Unwatch {
        /// The repository
        #[arg(value_name = "oci://HOST/REPOSITORY")]
        repository: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Remove a version from the catalog; refused while a deployment uses it
    #[command(after_help = "Example:\n  margrave package remove andon-board@1.0.0")]
    Remove {
        /// The version to remove
        #[arg(value_name = "ID@VERSION", value_parser = package_at)]
        package: PackageAt,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        connection: Connection,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave events
  margrave events --follow
  margrave events --follow --json")]
pub(crate) struct Events {
    /// Keep going, as it happens, until Ctrl-C
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// How many of the latest to begin with
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) last: u32,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct Sample {
    #[command(subcommand)]
    pub(crate) verb: SampleVerb,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum SampleVerb {
    /// Serve until told to stop
    Serve,
    /// Ask the service of this container how it is
    Check,
    /// Do something once and end
    Once,
}

/// `id` or `id@version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackageAt {
    pub(crate) id: String,
    pub(crate) version: Option<String>,
}

fn package_at(text: &str) -> Result<PackageAt, String> {
    use margrave_core::id::{PackageId, PackageVersion};
    let (id, version) = match text.split_once('@') {
        Some((id, version)) => {
            (id, Some(PackageVersion::parse(version).map_err(|e| e.to_string())?.to_string()))
        }
        None => (text, None),
    };
    let id = PackageId::parse(id).map_err(|e| e.to_string())?.to_string();
    Ok(PackageAt { id, version })
}

/// `key=value`; the value may contain `=` and may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) key: String,
    pub(crate) value: String,
}

fn pair(text: &str) -> Result<Pair, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Pair { key: key.to_owned(), value: value.to_owned() }),
        _ => Err("write it as name=value".to_owned()),
    }
}

/// Several `key=value` as a map; a key that is given twice with different values is a contradiction.
pub(crate) fn unique(pairs: &[Pair]) -> Result<BTreeMap<String, String>, String> {
    let mut map = BTreeMap::new();
    for Pair { key, value } in pairs {
        match map.insert(key.clone(), value.clone()) {
            Some(before) if before != *value => {
                return Err(format!("{key} is given twice, as {before:?} and as {value:?}"));
            }
            _ => {}
        }
    }
    Ok(map)
}

/// A century; nothing here waits or lasts so long, and arithmetic with more could overflow.
const LONGEST_SECONDS: u64 = 100 * 366 * 86_400;

/// A number with a unit, `90s`, `5m`, `24h` or `7d`, or several of them, `1h30m`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write it with units, such as 90s, 5m, 24h, 7d or 1h30m".to_owned();
    let too_long = || format!("{text} is longer than a century; write something shorter");
    let mut total = 0u64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|at| *at > 0).ok_or_else(wrong)?;
        // Digits that are no number are too many.
        let number: u64 = rest[..digits].parse().map_err(|_| too_long())?;
        let unit = match rest.as_bytes()[digits] {
            b's' => 1,
            b'm' => 60,
            b'h' => 3600,
            b'd' => 86_400,
            _ => return Err(wrong()),
        };
        let part = number.checked_mul(unit).and_then(|part| total.checked_add(part));
        total = part.filter(|total| *total <= LONGEST_SECONDS).ok_or_else(too_long)?;
        rest = &rest[digits + 1..];
    }
    if total == 0 {
        return Err(wrong());
    }
    Ok(Duration::from_secs(total))
}

/// As [`duration`], for what the server takes for so many days at most; whoever writes more is told so, whatever it is.
fn duration_up_to(text: &str, days: u64) -> Result<Duration, String> {
    let digits = text.chars().next().is_some_and(|first| first.is_ascii_digit());
    match duration(text) {
        Ok(length) if length <= Duration::from_secs(days * 86_400) => Ok(length),
        Err(wrong) if !digits || !wrong.contains("longer than") => Err(wrong),
        _ => Err(format!("{text} is too long; at most {days}d")),
    }
}

/// How long a join token may be valid.
fn join_validity(text: &str) -> Result<Duration, String> {
    duration_up_to(text, 30)
}

/// How long an operator's token may be valid.
fn token_validity(text: &str) -> Result<Duration, String> {
    duration_up_to(text, 3650)
}

/// Signatures older than a day protect from nothing. They say when they were made in whole seconds, by clocks that are some
/// seconds off where a time server is asked, too: with a window of less than this honest devices are refused.
fn signed_window(text: &str) -> Result<Duration, String> {
    let window = duration(text)?;
    if window < Duration::from_secs(10) {
        return Err("at least 10s; clocks differ, and with less honest devices are refused".to_owned());
    }
    if window > Duration::from_secs(24 * 3600) {
        return Err("at most 24h; a longer one protects from nothing".to_owned());
    }
    Ok(window)
}

fn listen(text: &str, default: IpAddr) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::new(default, port));
    }
    text.parse()
        .map_err(|_| "write it as a port, or as address:port such as 0.0.0.0:8443 or [::]:8443".to_owned())
}

/// A port alone means every interface.
fn listen_anywhere(text: &str) -> Result<SocketAddr, String> {
    listen(text, IpAddr::from([0, 0, 0, 0]))
}

/// A port alone means this machine.
fn listen_loopback(text: &str) -> Result<SocketAddr, String> {
    listen(text, IpAddr::from([127, 0, 0, 1]))
}

#[cfg(test)]
mod tests;
