//! A container engine: Docker's, or Podman's answer to the same interface.
//!
//! Only facts and small acts: which containers of ours there are and how they are, is an image here, pull
//! it, remove what carries our label. What the facts mean is decided in `health.rs`; creating and changing
//! containers is Compose's work.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use bytes::{Bytes, BytesMut};
use margrave_core::chain::sentence as chain;
use margrave_core::complaint;
use margrave_core::report::{Failure, FailureCode};
use margrave_http::{Body, Client, HeaderName, Limits, Origin, Request, StatusCode, Trust};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::json;

pub use super::address::{Address, InvalidAddress};
use super::container::{Container, LABEL_PROJECT};

/// The oldest interface we use: Docker 20.10 (2020) and Podman 3. Everything older is out of support.
const API_OLDEST: ApiVersion = ApiVersion { major: 1, minor: 41 };
/// The newest that was looked at. A newer engine is spoken to in this version while it accepts it.
const API_NEWEST: ApiVersion = ApiVersion { major: 1, minor: 51 };

/// An engine that has no answer to a small question for so long is not usable. Slow flash under load can
/// take seconds.
pub(super) const ANSWER_QUIET_MAX: Duration = Duration::from_secs(30);
/// Removing takes a while on slow flash; past this the engine hangs.
const REMOVE_QUIET_MAX: Duration = Duration::from_secs(90);
/// A pull that makes no progress for so long has lost its registry. Unpacking a large layer to slow flash
/// says something every second.
const PULL_QUIET_MAX: Duration = Duration::from_secs(180);
/// The list of some hundred containers is below a megabyte.
const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;
const LINE_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ApiVersion {
    major: u32,
    minor: u32,
}

impl ApiVersion {
    fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(ApiVersion { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl std::fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("no container engine is installed or running: none of {} exists", list(.looked))]
    Missing { looked: Vec<PathBuf> },
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    #[error("the container engine at {address} does not answer")]
    Unreachable {
        address: Address,
        #[source]
        source: margrave_http::Error,
    },
    #[error("components run on the engine at {address}, which does not answer")]
    Away {
        address: Address,
        #[source]
        source: Option<Box<EngineError>>,
    },
    #[error("the container engine at {address} speaks interface {spoken}, at least {API_OLDEST} is needed")]
    TooOld { address: Address, spoken: String },
    #[error("the container engine refused: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("the container engine's answer is not understood: {0}")]
    NotUnderstood(String),
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        let code = match &error {
            EngineError::Missing { .. } | EngineError::Address(_) | EngineError::TooOld { .. } => {
                FailureCode::RuntimeMissing
            }
            EngineError::Refused { message, .. } if disk_full(message) => FailureCode::DiskFull,
            EngineError::Unreachable { .. }
            | EngineError::Away { .. }
            | EngineError::Refused { .. }
            | EngineError::NotUnderstood(_) => FailureCode::RuntimeUnreachable,
        };
        let hint = match &error {
            EngineError::Missing { .. } => " Install Docker or Podman if there is none, and start it.",
            EngineError::TooOld { .. } => " Install Docker 20.10 or newer.",
            EngineError::Unreachable { .. } => " Is it running, and may the agent use its socket?",
            EngineError::Away { .. } => " Start it; where they shall move, name the other one with --engine.",
            _ => "",
        };
        Failure::new(code, format!("{}.{hint}", sentence(&chain(&error))))
    }
}

/// With a capital letter and without the full stop.
pub(super) fn sentence(text: &str) -> String {
    let text = text.trim().trim_end_matches('.');
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// Engines, Compose and the kernel all word it this way.
pub(super) fn disk_full(text: &str) -> bool {
    text.contains("no space left on device") || text.contains("disk quota exceeded")
}

/// Compose could not reach the engine at all: its client's words, of before and since version 29, and those for a socket that it may
/// not open.
pub(super) fn engine_away(text: &str) -> bool {
    let said = [
        "Cannot connect to the Docker daemon",
        "failed to connect to the docker API",
        "error during connect:",
    ];
    said.iter().any(|words| text.contains(words))
        || text.contains("permission denied while trying to connect to the Docker daemon socket")
        || text.contains("permission denied while trying to connect to the docker API")
}

/// A volume with a name.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Volume {
    pub name: String,
    pub options: Option<BTreeMap<String, String>>,
}

/// An engine that answered.
#[derive(Clone)]
pub struct Engine {
    client: Client,
    address: Address,
    api: ApiVersion,
    version: String,
    podman: bool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({} at {})", self.description(), self.address)
    }
}

/// Where to look for an engine.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// From the configuration or `DOCKER_HOST`: then nothing else is looked at.
    pub named: Option<String>,
    /// Where engines listen by custom, in this order.
    pub sockets: Vec<PathBuf>,
}

impl Places {
    /// As the agent's own environment says.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Places {
            named: variable("DOCKER_HOST"),
            // Where engines without root have their sockets.
            sockets: sockets(
                variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()),
            ),
        }
    }
}

/// Sockets by custom: Docker before Podman, the machine's before the user's.
fn sockets(user_directory: Option<PathBuf>) -> Vec<PathBuf> {
    let mut sockets = vec![PathBuf::from("/var/run/docker.sock"), PathBuf::from("/run/podman/podman.sock")];
    if let Some(user) = user_directory {
        sockets.extend([user.join("docker.sock"), user.join("podman/podman.sock")]);
    }
    sockets
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct VersionAnswer {
    version: String,
    api_version: String,
    #[serde(rename = "MinAPIVersion")]
    api_version_min: Option<String>,
    #[serde(default)]
    components: Vec<ComponentVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ComponentVersion {
    name: String,
}

impl Engine {
    /// The first engine that answers. When none does, the error is of the first that is installed.
    pub async fn locate(places: &Places) -> Result<Engine, EngineError> {
        if let Some(named) = &places.named {
            return Engine::connect(Address::parse(named)?).await;
        }
        let mut trouble = None;
        for socket in places.sockets.iter().filter(|socket| socket.exists()) {
            match Engine::connect(Address::Unix(socket.clone())).await {
                Ok(engine) => return Ok(engine),
                Err(error) => {
                    trouble.get_or_insert(error);
                }
            }
        }
        Err(trouble.unwrap_or(EngineError::Missing { looked: places.sockets.clone() }))
    }

    /// Speaks to the engine at an address and agrees on an interface version.
    pub async fn connect(address: Address) -> Result<Engine, EngineError> {
        if let Address::Unix(path) = &address
            && !path.exists()
        {
            return Err(EngineError::Missing { looked: vec![path.clone()] });
        }
        let client = client(&address)
            .map_err(|source| EngineError::Unreachable { address: address.clone(), source })?;
        let answer = checked(&client, &address, Request::get("/version")).await?;
        let said: VersionAnswer = understood(&whole(answer, &address).await?)?;
        let too_old = || EngineError::TooOld { address: address.clone(), spoken: said.api_version.clone() };
        let newest = ApiVersion::parse(&said.api_version).ok_or_else(too_old)?;
        let oldest = said.api_version_min.as_deref().and_then(ApiVersion::parse).unwrap_or(API_OLDEST);
        if newest < API_OLDEST {
            return Err(too_old());
        }
        let api = newest.min(API_NEWEST.max(oldest));
        let podman = said.components.iter().any(|component| component.name.starts_with("Podman"));
        Ok(Engine { client, address, api, version: said.version, podman })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What to call it in a log: its name and version.
    pub fn description(&self) -> String {
        format!("{} {}", if self.podman { "Podman" } else { "Docker" }, self.version)
    }

    pub fn is_podman(&self) -> bool {
        self.podman
    }

    /// Whether it still answers.
    pub async fn ping(&self) -> Result<(), EngineError> {
        self.get("/_ping").await.map(drop)
    }

    /// All containers that carry every one of the labels, stopped ones too, each with its full state.
    pub async fn containers(&self, labels: &[(&str, &str)]) -> Result<Vec<Container>, EngineError> {
        let ids = self.container_ids(labels).await?;
        self.described(ids).await
    }

    /// The same of all that carry the label, or belong to one of the Compose projects: hands that add a container do not
    /// label it.
    pub(super) async fn containers_among(
        &self,
        label: (&str, &str),
        projects: &BTreeSet<String>,
    ) -> Result<Vec<Container>, EngineError> {
        let ours = |listed: &Listed| {
            let value = |name: &str| listed.labels.as_ref().and_then(|labels| labels.get(name));
            value(label.0).is_some_and(|value| value == label.1)
                || value(LABEL_PROJECT).is_some_and(|project| projects.contains(project))
        };
        let filter = encoded(&json!({"label": [LABEL_PROJECT]}).to_string());
        let listed = self.listed(&filter).await?;
        self.described(listed.into_iter().filter(ours).map(|listed| listed.id).collect()).await
    }

    async fn described(&self, ids: Vec<String>) -> Result<Vec<Container>, EngineError> {
        let mut containers = Vec::with_capacity(ids.len());
        for id in ids {
            // Removed between the two questions.
            let Some(answer) = self.inspected(&id).await? else { continue };
            // `compose run` by hand makes containers that are nobody's desired state.
            containers.extend(Container::read(&answer).map_err(not_understood)?);
        }
        Ok(containers)
    }

    /// What the engine says of one container; `None` when it has none of that id.
    pub(super) async fn inspected(&self, id: &str) -> Result<Option<Bytes>, EngineError> {
        match self.get(&format!("/containers/{}/json", encoded(id))).await {
            Ok(answer) => Ok(Some(answer)),
            Err(EngineError::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a container said last, with the engine's frames around it.
    pub(super) async fn last_lines(&self, id: &str, lines: usize) -> Result<Bytes, EngineError> {
        self.get(&format!("/containers/{}/logs?stdout=true&stderr=true&tail={lines}", encoded(id))).await
    }

    /// The ids of all containers that carry every one of the labels.
    pub async fn container_ids(&self, labels: &[(&str, &str)]) -> Result<Vec<String>, EngineError> {
        Ok(self.listed(&filters(labels)).await?.into_iter().map(|container| container.id).collect())
    }

    async fn listed(&self, filters: &str) -> Result<Vec<Listed>, EngineError> {
        understood(&self.get(&format!("/containers/json?all=1&filters={filters}")).await?)
    }

    /// Which images containers are made of, anybody's, by the images' ids.
    pub(super) async fn images_in_use(&self) -> Result<BTreeSet<String>, EngineError> {
        let listed = self.listed(&encoded("{}")).await?;
        Ok(listed.into_iter().map(|container| bare(&container.image_id).to_owned()).collect())
    }

    /// Lets a container that somebody paused go on.
    pub(super) async fn unpause(&self, id: &str) -> Result<(), EngineError> {
        let path = self.path(&format!("/containers/{}/unpause", encoded(id)));
        match self.act(Request::post(path)).await {
            // Somebody else was faster.
            Err(EngineError::Refused {
                status: StatusCode::CONFLICT | StatusCode::INTERNAL_SERVER_ERROR,
                message,
            }) if message.contains("not paused") => Ok(()),
            result => done_or_gone(result),
        }
    }

    /// What happens to containers and networks from now on, a line each; [`concerns`] says to whose.
    pub(super) async fn events(&self) -> Result<Lines, EngineError> {
        // Podman has words of its own for what Docker calls `die` and `destroy`.
        let happened = [
            "create",
            "start",
            "die",
            "died",
            "destroy",
            "remove",
            "pause",
            "unpause",
            "update",
            "health_status",
            "oom",
            "connect",
            "disconnect",
        ];
        let filters = json!({ "type": ["container", "network"], "event": happened });
        let path = format!("/events?filters={}", encoded(&filters.to_string()));
        // A quiet day is not an error; whoever waits has a deadline of their own.
        let day = Duration::from_secs(24 * 60 * 60);
        self.lines(Request::get(self.path(&path)), day).await
    }

    pub async fn has_image(&self, image: &str) -> Result<bool, EngineError> {
        Ok(self.image_id(image).await?.is_some())
    }

    /// The id behind an image's name.
    pub(super) async fn image_id(&self, image: &str) -> Result<Option<String>, EngineError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Inspected {
            id: String,
        }
        match self.get(&format!("/images/{}/json", encoded(image))).await {
            Ok(answer) => Ok(Some(bare(&understood::<Inspected>(&answer)?.id).to_owned())),
            Err(EngineError::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes an image's name away, and the image with it when that was its last name and no container is made of it.
    pub(super) async fn remove_image(&self, image: &str) -> Result<(), EngineError> {
        let path = self.path(&format!("/images/{}", encoded(image)));
        done_or_gone(self.act(Request::delete(path)).await)
    }

    /// Has the engine fetch an image.
    pub async fn pull(
        &self,
        image: &str,
        platform: Option<&str>,
        login: Option<&Login>,
    ) -> Result<(), Failure> {
        let (name, version) = split_image(image);
        let mut path = format!("/images/create?fromImage={}&tag={}", encoded(name), encoded(version));
        if let Some(platform) = platform {
            path = format!("{path}&platform={}", encoded(platform));
        }
        let mut request = Request::post(self.path(&path));
        if let Some(login) = login {
            request = request.secret_header(HeaderName::from_static("x-registry-auth"), login.header());
        }
        let failed = |text: &str, status: Option<StatusCode>| pull_failed(image, text, status);
        let mut lines = match self.lines(request, PULL_QUIET_MAX).await {
            Ok(lines) => lines,
            Err(EngineError::Refused { status, message }) => return Err(failed(&message, Some(status))),
            Err(error) => return Err(error.into()),
        };
        loop {
            match lines.next().await {
                Ok(None) => return Ok(()),
                Ok(Some(line)) => {
                    let said: PullLine = understood(&line)?;
                    if let Some(error) = said.error {
                        return Err(failed(&error, None));
                    }
                }
                Err(EngineError::Unreachable {
                    source: margrave_http::Error::Timeout { after, .. }, ..
                }) => {
                    return Err(failed(&format!("no progress for {} s", after.as_secs()), None));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ids and names of the networks of a project.
    pub async fn networks(&self, project: &str) -> Result<BTreeMap<String, String>, EngineError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Listed {
            id: String,
            name: String,
        }
        let listed: Vec<Listed> = understood(
            &self.get(&format!("/networks?filters={}", filters(&[(LABEL_PROJECT, project)]))).await?,
        )?;
        Ok(listed.into_iter().map(|network| (network.id, network.name)).collect())
    }

    pub async fn remove_network(&self, id: &str) -> Result<(), EngineError> {
        let path = self.path(&format!("/networks/{}", encoded(id)));
        done_or_gone(self.act(Request::delete(path)).await)
    }

    /// The volumes of a project.
    pub(super) async fn volumes(&self, project: &str) -> Result<Vec<Volume>, EngineError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Listed {
            volumes: Option<Vec<Volume>>,
        }
        let path = format!("/volumes?filters={}", filters(&[(LABEL_PROJECT, project)]));
        Ok(self.read::<Listed>(&path).await?.volumes.unwrap_or_default())
    }

    /// What the engine answers, read as far as anybody wants to know.
    pub(super) async fn read<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        understood(&self.get(path).await?)
    }

    async fn get(&self, path: &str) -> Result<Bytes, EngineError> {
        let answer = checked(&self.client, &self.address, Request::get(self.path(path))).await?;
        whole(answer, &self.address).await
    }

    pub(super) async fn act(&self, request: Request) -> Result<(), EngineError> {
        self.act_within(request, REMOVE_QUIET_MAX).await
    }

    pub(super) async fn act_within(&self, request: Request, quiet_max: Duration) -> Result<(), EngineError> {
        let request = request.timeout(quiet_max);
        whole(checked(&self.client, &self.address, request).await?, &self.address).await.map(drop)
    }

    /// An answer that is a stream of lines, with at most `quiet_max` between two of them.
    pub(super) async fn lines(&self, request: Request, quiet_max: Duration) -> Result<Lines, EngineError> {
        let request = request.timeout(quiet_max).body_idle(quiet_max).body_max(u64::MAX);
        let body = checked(&self.client, &self.address, request).await?;
        Ok(Lines { body, unread: BytesMut::new(), address: self.address.clone() })
    }

    pub(super) fn path(&self, path: &str) -> String {
        format!("/v{}{path}", self.api)
    }
}

/// A container in a list.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(default, rename = "ImageID")]
    image_id: String,
    labels: Option<BTreeMap<String, String>>,
}

/// An id without its algorithm, which some engines leave out.
fn bare(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

/// Whether an event is about a container with this label, or about a project or a network whose name begins so: what somebody
/// adds by hand has no label of ours. One that is not understood may be.
pub(super) fn concerns(event: &[u8], label: (&str, &str), prefix: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Event {
        actor: Actor,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Actor {
        #[serde(default)]
        attributes: BTreeMap<String, String>,
    }
    let Ok(Event { actor: Actor { attributes } }) = serde_json::from_slice(event) else { return true };
    match attributes.get(label.0) {
        Some(value) => value == label.1,
        None => {
            let names = [LABEL_PROJECT, "name"].into_iter().filter_map(|key| attributes.get(key));
            names.into_iter().any(|name| name.starts_with(prefix))
        }
    }
}

pub(super) struct Lines {
    body: Body,
    unread: BytesMut,
    address: Address,
}

impl Lines {
    /// The next line that is not blank; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, EngineError> {
        let broken = |source| EngineError::Unreachable { address: self.address.clone(), source };
        loop {
            if let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                let line = self.unread.split_to(end + 1);
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line.freeze()));
            }
            if self.unread.len() > LINE_BYTES_MAX {
                return Err(EngineError::NotUnderstood(format!(
                    "a line of more than {LINE_BYTES_MAX} bytes"
                )));
            }
            match self.body.chunk().await.map_err(broken)? {
                Some(piece) => self.unread.extend_from_slice(&piece),
                None if self.unread.iter().all(u8::is_ascii_whitespace) => return Ok(None),
                None => return Ok(Some(std::mem::take(&mut self.unread).freeze())),
            }
        }
    }
}

fn client(address: &Address) -> Result<Client, margrave_http::Error> {
    let limits = Limits { request: ANSWER_QUIET_MAX, body_max: ANSWER_BYTES_MAX, ..Limits::default() };
    match address {
        Address::Unix(path) => Ok(Client::unix(path, limits)),
        Address::Loopback(address) => {
            let origin =
                Origin::parse(&format!("http://{address}")).expect("a socket address makes a valid URL");
            Client::new(Trust::PlainLoopback, origin, limits)
        }
    }
}

/// Sends; an answer that is not a success is an error, with the engine's own words.
async fn checked(client: &Client, address: &Address, request: Request) -> Result<Body, EngineError> {
    let unreachable = |source| EngineError::Unreachable { address: address.clone(), source };
    let answer = client.open(request).await.map_err(unreachable)?;
    let status = answer.status;
    // 304 is the answer to stopping what is stopped.
    if status.is_success() || status == StatusCode::NOT_MODIFIED {
        return Ok(answer.body);
    }
    #[derive(Deserialize)]
    struct Refusal {
        message: String,
    }
    let bytes = whole(answer.body, address).await?;
    let message = match serde_json::from_slice(&bytes) {
        Ok(Refusal { message }) => message,
        Err(_) => format!("{status} {}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)])),
    };
    Err(EngineError::Refused { status, message })
}

async fn whole(body: Body, address: &Address) -> Result<Bytes, EngineError> {
    body.whole().await.map_err(|source| EngineError::Unreachable { address: address.clone(), source })
}

pub(super) fn understood<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, EngineError> {
    serde_json::from_slice(bytes).map_err(not_understood)
}

fn not_understood(error: serde_json::Error) -> EngineError {
    EngineError::NotUnderstood(error.to_string())
}

pub(super) fn done_or_gone(result: Result<(), EngineError>) -> Result<(), EngineError> {
    match result {
        Err(EngineError::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(()),
        // Somebody else is removing it already; whoever asked looks again until it is gone.
        Err(EngineError::Refused { status: StatusCode::CONFLICT, message })
            if message.contains("in progress") =>
        {
            Ok(())
        }
        other => other,
    }
}

pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn filters(labels: &[(&str, &str)]) -> String {
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    encoded(&json!({"label": labels}).to_string())
}

#[derive(Deserialize)]
struct PullLine {
    error: Option<String>,
}

/// Name and password for a registry, as the engine presents them.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub username: String,
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Login({}, …)", self.username)
    }
}

impl Login {
    fn header(&self) -> String {
        URL_SAFE.encode(json!({"username": self.username, "password": self.password}).to_string())
    }
}

/// `host/name:tag` → name and tag; a digest counts as tag, and none means `latest`, as everywhere in Docker.
pub(super) fn split_image(image: &str) -> (&str, &str) {
    if let Some((name, digest)) = image.split_once('@') {
        // With a tag and a digest the digest decides; the name must not carry the tag.
        return (split_image(name).0, digest);
    }
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    }
}

/// The registry's `host[:port]` of an image, by Docker's rule of what is a host.
pub fn registry_of(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => "docker.io",
    }
}

fn pull_failed(image: &str, text: &str, status: Option<StatusCode>) -> Failure {
    let words = text.trim().trim_end_matches('.');
    let code = classify_pull(text, status);
    let why = match code == FailureCode::PullFailed && complaint::distrusts(words) {
        true => "the engine does not trust the registry's certificate: ",
        false => "",
    };
    Failure::new(code, format!("The image {image} could not be pulled: {why}{words}."))
}

/// The engine passes on what the registry said, in words; these words are the distribution
/// specification's error codes as Docker and Podman print them.
fn classify_pull(text: &str, status: Option<StatusCode>) -> FailureCode {
    let text = text.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if disk_full(&text) {
        FailureCode::DiskFull
    } else if says(&["denied", "unauthorized", "authentication required", "forbidden"]) {
        FailureCode::PullDenied
    } else if status == Some(StatusCode::NOT_FOUND)
        || says(&["manifest unknown", "name unknown", "not found", "no such image"])
    {
        FailureCode::PullNotFound
    } else {
        FailureCode::PullFailed
    }
}

#[cfg(test)]
mod tests {
    use margrave_core::why::Code;

    use super::*;
    use crate::runtime::pretended_engine::{Answer, PretendedEngine};

    #[test]
    fn what_happens_to_others_is_no_reason_to_look() {
        let check = |attributes: &str, want: bool| {
            let event = format!(
                r#"{{"Type":"container","Action":"die","Actor":{{"ID":"1","Attributes":{attributes}}}}}"#
            );
            assert_eq!(concerns(event.as_bytes(), ("io.margrave.agent", "line-1"), "mg-"), want, "{event}");
        };
        check(r#"{"io.margrave.agent":"line-1","name":"mg-1-web-1"}"#, true);
        check(r#"{"io.margrave.agent":"line-2","com.docker.compose.project":"mg-2-web"}"#, false);
        // Added by hand, and taken off its network.
        check(r#"{"com.docker.compose.project":"mg-1-web","image":"busybox","name":"x1"}"#, true);
        check(r#"{"container":"9104","name":"mg-1-web_default","type":"bridge"}"#, true);
        check(r#"{"com.docker.compose.project":"shop","name":"shop-web-1"}"#, false);
        assert!(concerns(b"?", ("io.margrave.agent", "line-1"), "mg-"));
    }

    #[tokio::test]
    async fn a_container_that_somebody_makes_and_does_not_start_is_told_of() {
        let pretended = PretendedEngine::start(|_| Answer::Lines(vec![]));
        pretended.engine().await.events().await.unwrap();
        let asked = pretended.asked();
        assert!(
            asked[0].starts_with("GET /events") && asked[0].contains(&encoded("\"create\"")),
            "{asked:?}"
        );
    }

    #[test]
    fn images_are_split_as_docker_does() {
        for (image, name, version) in [
            ("busybox", "busybox", "latest"),
            ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b", "latest"),
            ("127.0.0.1:5000/a/b:1.2", "127.0.0.1:5000/a/b", "1.2"),
            ("h/a@sha256:00", "h/a", "sha256:00"),
            ("h:1/a:tag@sha256:00", "h:1/a", "sha256:00"),
        ] {
            assert_eq!(split_image(image), (name, version));
        }
        assert_eq!(registry_of("127.0.0.1:5000/a/b:1"), "127.0.0.1:5000");
        assert_eq!(registry_of("library/busybox"), "docker.io");
        assert_eq!(registry_of("busybox:1"), "docker.io");
    }

    #[test]
    fn pull_errors_of_docker_and_podman_are_told_apart() {
        use FailureCode::*;
        let not_found = Some(StatusCode::NOT_FOUND);
        for (text, status, code) in [
            (
                "manifest for 127.0.0.1:1/a:1 not found: manifest unknown: manifest unknown",
                not_found,
                PullNotFound,
            ),
            (
                "pull access denied for a, repository does not exist or may require 'docker login'",
                not_found,
                PullDenied,
            ),
            ("unauthorized: authentication required", Some(StatusCode::INTERNAL_SERVER_ERROR), PullDenied),
            (
                "Get \"http://127.0.0.1:1/v2/\": dial tcp 127.0.0.1:1: connect: connection refused",
                None,
                PullFailed,
            ),
            ("write /var/lib/x: no space left on device", None, DiskFull),
            ("reading manifest 1 in 127.0.0.1:1/a: manifest unknown", None, PullNotFound),
            ("no progress for 180 s", None, PullFailed),
        ] {
            assert_eq!(classify_pull(text, status), code, "{text}");
        }
    }

    #[test]
    fn a_registry_that_is_reached_and_not_trusted_is_told_from_one_that_is_away() {
        let said = "Get \"https://plant:8443/v2/\": tls: failed to verify certificate: x509: certificate signed by unknown authority";
        let failure = pull_failed("plant:8443/web:1", said, None);
        assert_eq!(failure.code, FailureCode::PullFailed);
        assert_eq!(
            failure.message,
            format!(
                "The image plant:8443/web:1 could not be pulled: the engine does not trust the registry's certificate: {said}."
            )
        );
        assert!(Code::Failure(failure.code).next_about(&failure.message).contains("registry-authority.pem"));
        let away =
            pull_failed("plant:8443/web:1", "dial tcp 10.0.0.1:8443: connect: connection refused", None);
        assert!(!away.message.contains("trust"), "{away}");
        assert!(Code::Failure(away.code).next_about(&away.message).contains("reaches the registry"));
    }

    #[test]
    fn the_users_own_sockets_come_after_the_machines() {
        let sockets = sockets(Some("/run/user/1".into()));
        let sockets: Vec<String> = sockets.iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            sockets,
            [
                "/var/run/docker.sock",
                "/run/podman/podman.sock",
                "/run/user/1/docker.sock",
                "/run/user/1/podman/podman.sock"
            ]
        );
    }

    #[tokio::test]
    async fn a_missing_engine_and_a_silent_one_are_different_failures() {
        let at = |named: String| Places { named: Some(named), sockets: vec![] };
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("engine.sock");
        let named = format!("unix://{}", socket.display());
        let missing = Failure::from(Engine::locate(&at(named.clone())).await.unwrap_err());
        assert_eq!(missing.code, FailureCode::RuntimeMissing);
        assert!(missing.message.contains("Install Docker or Podman"), "{missing}");

        // A socket file that an engine left behind when it ended.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let silent = Failure::from(Engine::locate(&at(named)).await.unwrap_err());
        assert_eq!(silent.code, FailureCode::RuntimeUnreachable);
        assert!(silent.message.contains("does not answer: no connection"), "{silent}");

        let far = Failure::from(Engine::locate(&at("tcp://10.0.0.1:2375".into())).await.unwrap_err());
        assert_eq!(far.code, FailureCode::RuntimeMissing);
        assert!(far.message.contains("not on this machine"), "{far}");
    }

    #[test]
    fn a_login_does_not_show_its_password() {
        let login = Login { username: "device".into(), password: "secret".into() };
        assert!(!format!("{login:?}").contains("secret"));
        assert_eq!(URL_SAFE.decode(login.header()).unwrap(), br#"{"username":"device","password":"secret"}"#);
    }
}
