//! What happens to a device in its life, what must be true after each part of it, and one device that lives it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use margrave_core::device::{Device, Order};
use margrave_core::digest::Document;
use margrave_core::id::DeviceId;
use margrave_core::lifecycle::State;
use margrave_ledger::{Recovery, StateFile};
use serde_json::{Value, json};

use super::operator::Operator;
use crate::stage::{PATIENCE, Running, Stage, program};
use crate::trap::{About, Call, Fate, Point, Trap, points};

/// What an operator wants of a device, changed while the device is off.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    wishes: &'static [Wish],
    /// Everything that runs in the end.
    runs: &'static [Runs],
    /// The last update was given up, and what runs is what ran before.
    went_back: bool,
    /// Components that have to be started for this.
    starts: u64,
}

enum Wish {
    Deploy { deployment: &'static str, version: &'static str, greeting: &'static str },
    Remove { deployment: &'static str },
}

struct Runs {
    deployment: &'static str,
    version: &'static str,
    greeting: &'static str,
    components: &'static [&'static str],
}

/// The greeting with which a component never gets healthy.
const SICK: &str = "sick";

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "install",
        wishes: &[Wish::Deploy { deployment: "a", version: "1.0.0", greeting: "hello" }],
        runs: &[Runs { deployment: "a", version: "1.0.0", greeting: "hello", components: &["one", "two"] }],
        went_back: false,
        starts: 2,
    },
    Scenario {
        name: "rollback",
        wishes: &[Wish::Deploy { deployment: "a", version: "1.0.0", greeting: SICK }],
        runs: &[Runs { deployment: "a", version: "1.0.0", greeting: "hello", components: &["one", "two"] }],
        went_back: true,
        // The first component in its new version, and once more in its old one.
        starts: 2,
    },
    Scenario {
        name: "update",
        wishes: &[Wish::Deploy { deployment: "a", version: "1.0.0", greeting: "good morning" }],
        runs: &[Runs {
            deployment: "a",
            version: "1.0.0",
            greeting: "good morning",
            components: &["one", "two"],
        }],
        went_back: false,
        starts: 2,
    },
    Scenario {
        name: "update without a component",
        wishes: &[Wish::Deploy { deployment: "a", version: "2.0.0", greeting: "good morning" }],
        runs: &[Runs { deployment: "a", version: "2.0.0", greeting: "good morning", components: &["one"] }],
        went_back: false,
        starts: 1,
    },
    Scenario {
        name: "two deployments in one manifest",
        wishes: &[
            Wish::Deploy { deployment: "a", version: "2.0.0", greeting: "good evening" },
            Wish::Deploy { deployment: "b", version: "1.0.0", greeting: "hello" },
        ],
        runs: &[
            Runs { deployment: "a", version: "2.0.0", greeting: "good evening", components: &["one"] },
            Runs { deployment: "b", version: "1.0.0", greeting: "hello", components: &["one", "two"] },
        ],
        went_back: false,
        starts: 3,
    },
    Scenario {
        name: "removal",
        wishes: &[Wish::Remove { deployment: "a" }, Wish::Remove { deployment: "b" }],
        runs: &[],
        went_back: false,
        starts: 0,
    },
];

/// How a device got over its death.
pub(super) struct Recovered {
    pub(super) took: Duration,
    /// Components that had to be started once more, because their start was cut off.
    pub(super) restarts: u64,
}

/// One device, from joining to its last scenario.
pub(super) struct Line<'a> {
    stage: &'a Stage,
    operator: Operator,
    name: String,
    data: PathBuf,
    /// Containers started until the scenario began.
    starts_before: u64,
    /// Starts that may have to be repeated, because nobody wrote down how they went.
    starts_cut_off: u64,
    /// The newest manifest that this device ever wrote down.
    manifest: u64,
    /// By name, with what first used it.
    volumes: BTreeMap<String, String>,
}

/// What the simulated engine wrote about itself.
#[derive(Default)]
struct World {
    starts: u64,
    /// By assignment and component; without a fingerprint while it starts.
    running: BTreeMap<(String, String), (Option<String>, Option<String>)>,
    volumes: BTreeMap<String, String>,
}

impl<'a> Line<'a> {
    pub(super) fn join(stage: &'a Stage, name: &str) -> Line<'a> {
        let operator = Operator::of(stage);
        let token = operator.post("/join-tokens", &json!({ "device": name }));
        let text = |key: &str| token[key].as_str().expect("a text").to_owned();
        let data = stage.path(name);
        let mut join = Command::new(program("margrave-agent"));
        join.args(["join", &text("url"), "--token", &text("token"), "--pin", &text("pin"), "--data"])
            .arg(&data);
        let joined = join.output().expect("our own program starts");
        assert!(joined.status.success(), "join: {}", String::from_utf8_lossy(&joined.stderr));
        let simulation = json!({
            "pull": {}, "start": {}, "stop": {},
            "drills": [{ "pointer": "GREETING", "value": SICK, "effect": "never-healthy" }],
        });
        std::fs::write(stage.path(&format!("{name}.json")), simulation.to_string())
            .expect("a writable directory");
        Line {
            stage,
            operator,
            name: name.to_owned(),
            data,
            starts_before: 0,
            starts_cut_off: 0,
            manifest: 0,
            volumes: BTreeMap::new(),
        }
    }

    /// Has the operator want what the scenario is about; the device is off, and finds all of it at once.
    pub(super) fn wish(&mut self, scenario: &Scenario) {
        let world = self.world().unwrap_or_default();
        self.starts_before = world.starts;
        self.starts_cut_off = 0;
        self.volumes = world.volumes;
        for wish in scenario.wishes {
            match wish {
                Wish::Deploy { deployment, version, greeting } => {
                    let body = json!({
                        "package": "hello", "version": version, "parameters": { "greeting": greeting },
                        "targets": { "devices": [self.name] }, "rollback": { "attempts": 1 },
                    });
                    self.operator.put(&self.deployment(deployment), &body);
                }
                Wish::Remove { deployment } => self.operator.delete(&self.deployment(deployment)),
            }
        }
    }

    fn deployment(&self, short: &str) -> String {
        format!("/deployments/{short}-{}", self.name)
    }

    /// Goes through the scenario untouched, and returns where it could have died.
    pub(super) fn watch(&mut self, trap: &Trap, scenario: &Scenario) -> Result<Vec<Point>, String> {
        let trace = self.trace();
        let mut agent = self.start(trap.watched(&trace, &program("margrave-agent")));
        let result = self.until_done(scenario);
        agent.kill();
        result?;
        self.assert_kept(scenario)?;
        Ok(points(&trace, |call| self.about(call)))
    }

    /// Goes through the scenario until it dies at `point`.
    pub(super) fn die(&mut self, trap: &Trap, scenario: &Scenario, point: &Point) -> Result<Fate, String> {
        let trace = self.trace();
        // Without the dot that the device's own directory is called by.
        let path = |file: &String| self.data.join(file).components().collect::<PathBuf>();
        let file = point.about.file.as_ref().map(path);
        let armed = trap.armed(&trace, &program("margrave-agent"), point, file.as_deref());
        let agent = self.start(armed);
        let fate = Fate::of(agent, &trace, point, || self.done(scenario).is_ok())?;
        let (_, device, recovery) =
            StateFile::<Device>::open(&self.data.join("ledger")).map_err(|error| error.to_string())?;
        if recovery == Recovery::StartedOver {
            return Err("the device's memory is lost".into());
        }
        let manifest = device.and_then(|device| device.accepted().map(|accepted| accepted.version));
        if manifest.unwrap_or_default() < self.manifest {
            return Err(format!("the device forgot manifest {}: {manifest:?}", self.manifest));
        }
        let world = self.world().unwrap_or_default();
        let cut_off = |(fingerprint, trouble): &&(Option<String>, Option<String>)| {
            fingerprint.is_none() || trouble.is_some()
        };
        self.starts_cut_off = world.running.values().filter(cut_off).count() as u64;
        Ok(fate)
    }

    /// Started as after every reboot, it comes to the scenario's end by itself.
    pub(super) fn go_on(&mut self, scenario: &Scenario) -> Result<Recovered, String> {
        let begun = Instant::now();
        let mut agent = self.start(Command::new(program("margrave-agent")));
        let result = self.until_done(scenario);
        let took = begun.elapsed();
        agent.kill();
        result?;
        self.assert_kept(scenario)?;
        let world = self.world()?;
        let restarts = (world.starts - self.starts_before).saturating_sub(scenario.starts);
        Ok(Recovered { took, restarts })
    }

    fn start(&self, mut command: Command) -> Running {
        command.args(["run", "--runtime", "simulated", "--poll", "200ms", "--data"]).arg(&self.data);
        command.arg("--simulation").arg(self.stage.path(&format!("{}.json", self.name)));
        // What it says is written, too, and would be counted with what it does.
        command.env("MARGRAVE_LOG", "error");
        Running::start(&self.name, &self.stage.path(""), &mut command)
    }

    fn trace(&self) -> PathBuf {
        self.stage.path(&format!("{}.trace", self.name))
    }

    /// What a call is about, if it is one on something that lasts or a word to the server.
    pub(super) fn about(&self, call: &Call) -> Option<About> {
        if call.target == "server" {
            return Some(About { kind: "server".to_owned(), file: None });
        }
        let below = Path::new(&call.target).strip_prefix(&self.data).ok()?;
        let kind = match below.iter().next().and_then(|name| name.to_str()) {
            Some("ledger") => "ledger",
            Some("documents") => "documents",
            Some(name) if name.starts_with("simulated.json") => "runtime",
            _ => "directory",
        };
        // Documents are called by their digest, and that is another one on every device.
        let has_name = kind != "documents" || below.iter().count() == 1;
        let name = below.to_str().map(|name| if name.is_empty() { "." } else { name });
        let file = name.filter(|_| has_name).map(str::to_owned);
        Some(About { kind: kind.to_owned(), file })
    }

    fn until_done(&mut self, scenario: &Scenario) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.done(scenario) {
                Ok(()) => return Ok(()),
                Err(complaint) if Instant::now() > deadline => return Err(complaint),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Whether the server, the device's memory and its engine all say what they should in the end.
    fn done(&self, scenario: &Scenario) -> Result<(), String> {
        let shown = self.operator.get(&format!("/devices/{}", self.name));
        let at_server: BTreeSet<(String, String, bool, String)> = shown["assignments"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|a| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let current = a["current"] == true;
                (text(&a["deployment"]), text(&a["state"]), current, text(&a["error"]["code"]))
            })
            .collect();
        let code = if scenario.went_back { "unhealthy" } else { "" };
        let expected = scenario.runs.iter().map(|runs| {
            let deployment = format!("{}-{}", runs.deployment, self.name);
            (deployment, "INSTALLED".to_owned(), !scenario.went_back, code.to_owned())
        });
        equal("the server knows", &at_server, &expected.collect())?;

        let opened = StateFile::<Device>::open(&self.data.join("ledger"));
        let (_, device, _) = opened.map_err(|error| error.to_string())?;
        let device = device.ok_or("nothing in the ledger yet")?;
        equal("reports on their way", &device.outbox().len(), &0)?;
        let accepted = device.accepted().map(|accepted| accepted.version);
        equal("the manifest", &accepted, &shown["manifestVersion"].as_u64())?;
        let installed = device.assignments().values().filter(|a| a.state == State::Installed).count();
        equal("installed on the device", &installed, &scenario.runs.len())?;
        equal("known to the device", &device.assignments().len(), &scenario.runs.len())?;

        let mut meant = BTreeSet::new();
        let mut ordered = BTreeMap::new();
        for assignment in device.assignments().values() {
            let held = assignment.held.ok_or("it holds nothing")?;
            let bytes = std::fs::read(self.data.join("documents").join(held.hex()));
            let bytes = bytes.map_err(|error| format!("the document {held}: {error}"))?;
            let document = Document::verified(bytes, held).map_err(|error| error.to_string())?;
            let reader = DeviceId::parse(&self.name).expect("a name");
            let workload = margrave_wire::document::read_any(document.bytes(), &reader);
            for order in Order::of(&workload.map_err(|violations| format!("{violations:?}"))?) {
                let greeting = order.values.iter().map(|(_, value)| value.to_string()).collect::<String>();
                meant.insert((order.component.to_string(), order.revision.as_str().to_owned(), greeting));
                let place = (order.assignment.to_string(), order.component.to_string());
                ordered.insert(place, (Some(order.fingerprint().to_string()), None));
            }
        }
        let should = scenario.runs.iter().flat_map(|runs| {
            let one = |c: &&str| ((*c).to_owned(), runs.version.to_owned(), runs.greeting.to_owned());
            runs.components.iter().map(one).collect::<Vec<_>>()
        });
        equal("the documents say", &meant, &should.collect())?;
        equal("what runs", &self.world()?.running, &ordered)
    }

    /// What may not be lost or done on the way. Asked once everything is at its end, because it does not mend itself.
    pub(super) fn assert_kept(&mut self, scenario: &Scenario) -> Result<(), String> {
        let world = self.world()?;
        let starts = world.starts - self.starts_before;
        let enough = scenario.starts..=scenario.starts + self.starts_cut_off;
        if !enough.contains(&starts) {
            return Err(format!("{starts} containers were started, and {enough:?} were needed"));
        }
        for (name, made_by) in &self.volumes {
            equal(&format!("volume {name} is of"), &world.volumes.get(name), &Some(made_by))?;
        }
        let (_, device, _) =
            StateFile::<Device>::open(&self.data.join("ledger")).map_err(|error| error.to_string())?;
        self.manifest = device.and_then(|device| Some(device.accepted()?.version)).unwrap_or_default();
        for wish in scenario.wishes {
            let (Wish::Deploy { deployment, .. } | Wish::Remove { deployment }) = wish;
            let path =
                format!("{}/devices/{}/transitions?limit=1000", self.deployment(deployment), self.name);
            let steps = self.operator.get(&path);
            let steps: Vec<State> = steps["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|step| State::parse(step["state"].as_str()?))
                .collect();
            for pair in steps.windows(2).filter(|pair| pair[0] != pair[1]) {
                if !pair[0].may_become(pair[1]) {
                    return Err(format!("the server was told of {} after {}: {steps:?}", pair[1], pair[0]));
                }
            }
            let last = if scenario.runs.is_empty() { State::Deleted } else { State::Installed };
            equal("the server was told last", &steps.last(), &Some(&last))?;
            if scenario.went_back && !steps.contains(&State::RollingBack) {
                return Err(format!("the server was never told that it goes back: {steps:?}"));
            }
        }
        Ok(())
    }

    fn world(&self) -> Result<World, String> {
        let file = self.data.join("simulated.json");
        let bytes = match std::fs::read(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(World::default()),
            bytes => bytes.map_err(|error| error.to_string())?,
        };
        let world: Value = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let running = world["components"].as_array().into_iter().flatten().filter_map(|component| {
            let place = (text(&component["assignment"])?, text(&component["component"])?);
            Some((place, (text(&component["fingerprint"]), text(&component["trouble"]))))
        });
        let volumes = world["volumes"].as_object().into_iter().flatten();
        Ok(World {
            starts: world["starts"].as_u64().unwrap_or_default(),
            running: running.collect(),
            volumes: volumes
                .filter_map(|(name, volume)| Some((name.clone(), text(&volume["made_by"])?)))
                .collect(),
        })
    }

    /// All that there is to say about a failure.
    pub(super) fn story(&self, scenario: &Scenario) -> String {
        let mut story = String::new();
        for wish in scenario.wishes {
            let (Wish::Deploy { deployment, .. } | Wish::Remove { deployment }) = wish;
            let path = format!("{}/devices/{}/transitions", self.deployment(deployment), self.name);
            story.push_str(&format!("{deployment}, as the server heard: {}\n", self.operator.get(&path)));
        }
        for name in ["ledger/state.0", "ledger/state.1", "simulated.json"] {
            let content = std::fs::read(self.data.join(name)).unwrap_or_default();
            story.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(&content)));
        }
        let log = std::fs::read(self.stage.path(&format!("{}.log", self.name))).unwrap_or_default();
        story.push_str(&String::from_utf8_lossy(&log));
        story
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what} {found:?}, and should be {expected:?}")) }
}
