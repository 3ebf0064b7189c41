//! Promise 8 on a real engine: an agent killed around everything it does to Compose and the engine, and a hundred times
//! at any moment, continues correctly and without help.
//!
//! `e2e/crash.rs` has the whole enumeration, with an engine that only pretends. Here it is about what a real one adds:
//! Compose processes that live on when the agent does not, half-made containers, archives half unpacked. Next to what is
//! killed runs something that nobody wants changed; it must never notice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use margrave_core::device::Device;
use margrave_core::lifecycle::State;
use margrave_core::report::Report;
use margrave_ledger::{Recovery, StateFile};
use serde_json::{Value, json};

use crate::aims::{Aims, ROUNDS_MAX};
use crate::debts::{Debts, Settled};
use crate::operator::Operator;
use crate::plant::{LABEL_AGENT, Plant};
use crate::stage::{PATIENCE, Running, installed, program, tell};
use crate::trap::{About, Call, Fate, Point, Trap, points};
use crate::way::Way;

/// Says its greeting and keeps data; with one greeting it ends at once.
const WORK: &str = r#"services:
  work:
    image: ${MARGRAVE_REGISTRY}/e2e/busybox:1
    command: ["sh", "-c", "test \"$$GREETING\" != sick && exec sleep 1000"]
    environment:
      GREETING: ${GREETING}
    volumes: ["data:/data"]
    stop_signal: SIGKILL
volumes:
  data:
"#;
const SICK: &str = "sick";

/// What nobody wants changed. Its package is another one, so that the subject's archives come and go with the subject.
const BYSTANDER: &str = "bystander";
const SUBJECT: &str = "subject";

struct Scenario {
    name: &'static str,
    /// What is wanted; `None` takes it away. Every version is another archive.
    greeting: Option<&'static str>,
    version: &'static str,
    /// What runs in the end.
    runs: Option<&'static str>,
    starts: usize,
}

const SCENARIOS: [Scenario; 4] = [
    Scenario { name: "install", greeting: Some("hello"), version: "1.0.0", runs: Some("hello"), starts: 1 },
    Scenario { name: "rollback", greeting: Some(SICK), version: "2.0.0", runs: Some("hello"), starts: 2 },
    Scenario {
        name: "update",
        greeting: Some("good evening"),
        version: "3.0.0",
        runs: Some("good evening"),
        starts: 1,
    },
    Scenario { name: "removal", greeting: None, version: "", runs: None, starts: 0 },
];

/// Of each scenario, evenly from all there are, besides everything that is done to the engine: few enough for every change
/// to be tried.
const LOOKS_EACH: usize = 4;
const ARCHIVES_EACH: usize = 6;
const PROJECTS_EACH: usize = 6;
const POINTS_MIN: usize = 40;
/// They wait for the engine more than they work.
const AT_ONCE: usize = 5;
const COMPOSE: &str = "Compose";
const ENGINE: &str = "engine";
const LOOKS: &str = "looks";
const ARCHIVES: &str = "archives";
const PROJECTS: &str = "projects";
/// Without a kill at each of these, nothing is shown. Changes by the engine's socket are none as long as Compose can do all.
const KINDS: [&str; 4] = [COMPOSE, LOOKS, ARCHIVES, PROJECTS];
/// Half of these points have no file: threads that are started count with programs, and how often an agent looks is for the
/// engine to say. Of eighty points these were none and two.
const NEVER_PERCENT_MAX: usize = 5;
/// Names one point, such as `update: before clone3 2 of Compose`, to try only that one.
const ONLY: &str = "MARGRAVE_CRASH";

/// One device with its containers.
struct Line<'a> {
    plant: &'a Plant,
    operator: Operator,
    name: String,
    data: PathBuf,
    /// The containers that existed before, and since when they run.
    bystander: String,
    since: SystemTime,
    /// Deployments, each with what its assignment is called in names of files.
    assignments: BTreeMap<&'static str, String>,
}

impl<'a> Line<'a> {
    /// Joins, and has the bystander running.
    fn join(plant: &'a Plant, which: &str) -> Line<'a> {
        let name = format!("{}-{which}", plant.device);
        let data = plant.join(&name);
        let operator = Operator::of(plant);
        let mut line = Line {
            plant,
            operator,
            name,
            data,
            bystander: String::new(),
            since: SystemTime::now(),
            assignments: BTreeMap::new(),
        };
        line.want(BYSTANDER, "1.0.0", "quiet");
        let mut agent = line.start(Command::new(program("margrave-agent")), &line.name);
        let begun = line.until(&|| {
            let found = line.containers();
            equal("containers", &found.len(), &1)?;
            line.at_server(&[(BYSTANDER, true, "")])?;
            Ok(found[0].run.clone())
        });
        line.bystander = begun.unwrap_or_else(|complaint| panic!("{}: {complaint}", line.name));
        agent.kill();
        line
    }

    fn deployment(&self, short: &str) -> String {
        format!("{short}-{}", self.name)
    }

    fn want(&mut self, short: &'static str, version: &str, greeting: &str) {
        let body = json!({
            "package": short, "version": version, "parameters": { "greeting": greeting },
            "targets": { "devices": [self.name] }, "rollback": { "attempts": 1 },
        });
        self.operator.put(&format!("/deployments/{}", self.deployment(short)), &body);
        // Of a device that never spoke yet nothing is assigned.
        let shown = self.operator.get(&format!("/devices/{}", self.name));
        for assignment in shown["assignments"].as_array().into_iter().flatten() {
            let is_of = |short: &&str| assignment["deployment"] == *self.deployment(short);
            let id = assignment["id"].as_str().map(|id| id.replace('-', ""));
            if let Some((short, id)) = [BYSTANDER, SUBJECT].into_iter().find(is_of).zip(id) {
                self.assignments.insert(short, id);
            }
        }
    }

    fn wish(&mut self, scenario: &Scenario) {
        self.since = SystemTime::now();
        match scenario.greeting {
            Some(greeting) => self.want(SUBJECT, scenario.version, greeting),
            None => self.operator.delete(&format!("/deployments/{}", self.deployment(SUBJECT))),
        }
    }

    fn start(&self, mut command: Command, name: &str) -> Running {
        command
            .args(["run", "--poll", "200ms", "--engine", &self.plant.engine.host, "--data"])
            .arg(&self.data);
        command.env("MARGRAVE_LOG", "error");
        Running::start(name, &self.plant.path(""), &mut command)
    }

    /// From its next start on it reaches the server this way.
    fn go_by(&self, way: &Way) {
        let file = self.data.join("identity.json");
        let identity = std::fs::read_to_string(&file).expect("it has joined");
        let mut identity: Value = serde_json::from_str(&identity).expect("it is JSON");
        identity["deviceUrl"] = json!(format!("https://127.0.0.1:{}", way.port));
        std::fs::write(&file, identity.to_string()).expect("the device's directory is writable");
    }

    fn trace(&self) -> PathBuf {
        self.plant.path(&format!("{}.trace", self.name))
    }

    fn about(&self, call: &Call) -> Option<About> {
        let word = match call.target.as_str() {
            "program" => Some(COMPOSE),
            "engine POST" | "engine DELETE" => Some(ENGINE),
            "engine GET" => Some(LOOKS),
            "server" => Some("server"),
            _ => None,
        };
        if let Some(kind) = word {
            return Some(About { kind: kind.to_owned(), file: None });
        }
        let below = Path::new(&call.target).strip_prefix(&self.data).ok()?;
        let kind = match below.iter().next().and_then(|name| name.to_str()) {
            Some("compose") => PROJECTS,
            Some("artifacts") => ARCHIVES,
            _ => "ledger",
        };
        let named = |file: String, (short, id): (&&str, &String)| file.replace(id, &format!("{{{short}}}"));
        let file = self.assignments.iter().fold(below.to_str()?.to_owned(), named);
        Some(About { kind: kind.to_owned(), file: Some(file) })
    }

    /// Where a point's file is on this device.
    fn file(&self, point: &Point) -> Option<PathBuf> {
        let named = |file: String, (short, id): (&&str, &String)| file.replace(&format!("{{{short}}}"), id);
        Some(self.data.join(self.assignments.iter().fold(point.about.file.clone()?, named)))
    }

    fn watch(&mut self, trap: &Trap, scenario: &Scenario) -> Result<Vec<Point>, String> {
        let trace = self.trace();
        let mut agent = self.start(trap.watched(&trace, &program("margrave-agent")), &self.name);
        let result = self.until(&|| self.done(scenario));
        agent.kill();
        result?;
        self.assert_kept(scenario)?;
        // The ledger, documents and words to the server have their turn where the engine only pretends.
        let of = |kinds: &[&str]| {
            let about = |call: &Call| self.about(call).filter(|about| kinds.contains(&about.kind.as_str()));
            points(&trace, about)
        };
        let chosen = [
            of(&[COMPOSE, ENGINE]),
            // A look is all that an agent does while Compose works and while a container comes up.
            spread(of(&[LOOKS]), LOOKS_EACH),
            spread(of(&[ARCHIVES]), ARCHIVES_EACH),
            spread(of(&[PROJECTS]), PROJECTS_EACH),
        ];
        Ok(chosen.concat())
    }

    fn die(&mut self, trap: &Trap, scenario: &Scenario, point: &Point) -> Result<Fate, String> {
        let trace = self.trace();
        let armed = trap.armed(&trace, &program("margrave-agent"), point, self.file(point).as_deref());
        let agent = self.start(armed, &self.name);
        let fate = Fate::of(agent, &trace, point, || self.done(scenario).is_ok())?;
        self.assert_remembers()?;
        Ok(fate)
    }

    fn go_on(&mut self, scenario: &Scenario) -> Result<Duration, String> {
        let begun = Instant::now();
        let mut agent = self.start(Command::new(program("margrave-agent")), &self.name);
        let result = self.until(&|| self.done(scenario));
        let took = begun.elapsed();
        agent.kill();
        result?;
        self.assert_kept(scenario)?;
        Ok(took)
    }

    fn until<T>(&self, look: &dyn Fn() -> Result<T, String>) -> Result<T, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match look() {
                Ok(found) => return Ok(found),
                Err(complaint) if Instant::now() > deadline => return Err(complaint),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn at_server(&self, expected: &[(&str, bool, &str)]) -> Result<u64, String> {
        let shown = self.operator.get(&format!("/devices/{}", self.name));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let found: BTreeSet<(String, String, bool, String)> = shown["assignments"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|a| {
                (text(&a["deployment"]), text(&a["state"]), a["current"] == true, text(&a["error"]["code"]))
            })
            .collect();
        let expected = expected.iter().map(|(short, current, code)| {
            (self.deployment(short), "INSTALLED".to_owned(), *current, (*code).to_owned())
        });
        equal("the server knows", &found, &expected.collect())?;
        Ok(shown["manifestVersion"].as_u64().unwrap_or_default())
    }

    /// Whether the server, the device's memory and its engine all say what they should in the end.
    fn done(&self, scenario: &Scenario) -> Result<(), String> {
        let went_back = scenario.greeting != scenario.runs;
        let code = if went_back { "start-failed" } else { "" };
        let subject = scenario.runs.map(|_| (SUBJECT, !went_back, code));
        let all: Vec<_> = subject.into_iter().chain([(BYSTANDER, true, "")]).collect();
        let manifest = self.at_server(&all)?;
        self.settled(manifest, all.len())?;
        self.runs(scenario.runs)
    }

    fn settled(&self, manifest: u64, assignments: usize) -> Result<(), String> {
        let opened = StateFile::<Device>::open(&self.data.join("ledger"));
        let (_, device, _) = opened.map_err(|error| error.to_string())?;
        let device = device.ok_or("nothing in the ledger yet")?;
        equal("reports on their way", &device.outbox().len(), &0)?;
        equal("the manifest", &device.accepted().map(|accepted| accepted.version), &Some(manifest))?;
        let installed = device.assignments().values().filter(|a| a.state == State::Installed).count();
        equal(
            "installed on the device",
            &(installed, device.assignments().len()),
            &(assignments, assignments),
        )
    }

    /// Exactly the bystander as it was, and one container of the subject with its greeting.
    fn runs(&self, greeting: Option<&str>) -> Result<(), String> {
        let (bystanders, subjects): (Vec<_>, Vec<_>) =
            self.containers().into_iter().partition(|container| container.greeting == "quiet");
        let runs: Vec<&str> = bystanders.iter().map(|container| container.run.as_str()).collect();
        equal("the bystander", &runs, &vec![self.bystander.as_str()])?;
        let found: Vec<(&str, bool)> =
            subjects.iter().map(|container| (container.greeting.as_str(), container.running)).collect();
        equal("what runs", &found, &greeting.map(|greeting| (greeting, true)).into_iter().collect())
    }

    fn containers(&self) -> Vec<Container> {
        let ids = self.plant.engine.containers(&[(LABEL_AGENT, &self.name)]);
        let inspect = |id: &String| {
            let format = "{{.State.Running}}|{{.Id}} {{.State.StartedAt}}|{{json .Config.Env}}";
            let output = self.plant.engine.command(&["inspect", "--format", format, id]).output();
            let output = output.expect("docker starts");
            // Gone since it was listed.
            let text =
                output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())?;
            let mut parts = text.trim().splitn(3, '|');
            let (running, run, variables) = (parts.next()?, parts.next()?, parts.next()?);
            let variables: Vec<String> = serde_json::from_str(variables).ok()?;
            let greeting =
                variables.iter().find_map(|variable| variable.strip_prefix("GREETING="))?.to_owned();
            Some(Container { id: id.clone(), running: running == "true", run: run.to_owned(), greeting })
        };
        ids.iter().filter_map(inspect).collect()
    }

    /// What a killed device has on its disk is still a memory.
    fn assert_remembers(&self) -> Result<(), String> {
        let opened = StateFile::<Device>::open(&self.data.join("ledger"));
        let (_, _, recovery) = opened.map_err(|error| error.to_string())?;
        if recovery == Recovery::StartedOver { Err("the device's memory is lost".into()) } else { Ok(()) }
    }

    /// Notes which reports of the subject a device has on its disk; how many there are.
    fn owes(&self, debts: &mut Debts) -> Result<usize, String> {
        self.assert_remembers()?;
        let opened = StateFile::<Device>::open(&self.data.join("ledger"));
        let (_, device, _) = opened.map_err(|error| error.to_string())?;
        let device = device.ok_or("nothing in the ledger")?;
        let subject = self.assignments.get(SUBJECT).ok_or("nothing was wanted of it")?;
        let waiting: BTreeMap<u64, Report> = device
            .outbox()
            .waiting()
            .filter(|report| report.assignment.to_string().replace('-', "") == *subject)
            .filter_map(|report| Some((report.detail.as_ref()?.sequence, report.clone())))
            .collect();
        let count = waiting.len();
        debts.look(waiting, device.outbox().next_sequence());
        Ok(count)
    }

    /// What the server keeps of what it was told of the subject, by number: the interface leaves out what looks the same.
    fn kept(&self, python: &Path) -> Result<BTreeMap<u64, Report>, String> {
        let subject = self.assignments.get(SUBJECT).ok_or("nothing was wanted of it")?;
        let database = self.plant.path("server/store/margrave.db");
        let read = Command::new(python).args(["-c", READ]).arg(database).arg(subject).output();
        let read = read.expect("python starts");
        if !read.status.success() {
            return Err(String::from_utf8_lossy(&read.stderr).into_owned());
        }
        let reports: Vec<Report> = serde_json::from_slice(&read.stdout).map_err(|error| error.to_string())?;
        Ok(reports
            .into_iter()
            .filter_map(|report| Some((report.detail.as_ref()?.sequence, report)))
            .collect())
    }

    /// What may not be lost or done on the way.
    fn assert_kept(&self, scenario: &Scenario) -> Result<(), String> {
        let starts = self.starts();
        // One that was cut off may have to be repeated.
        if !(scenario.starts..=scenario.starts + 1).contains(&starts) {
            return Err(format!("{starts} containers were started, and {} were needed", scenario.starts));
        }
        self.assert_lawful()?;
        let subject = self.containers().into_iter().find(|container| container.greeting != "quiet");
        match (scenario.name, subject) {
            ("install", Some(container)) => {
                self.plant.engine.exec(&container.id, "echo kept > /data/file");
                Ok(())
            }
            (_, Some(container)) => {
                let kept = self.plant.engine.exec(&container.id, "cat /data/file");
                equal("in the volume", &kept.as_str(), &"kept")
            }
            (_, None) => {
                equal("volumes left", &self.plant.engine.volumes((LABEL_AGENT, &self.name)).len(), &2)
            }
        }
    }

    /// Containers that were started since the scenario began.
    fn starts(&self) -> usize {
        let time = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
            format!("{}.{:09}", since.as_secs(), since.subsec_nanos())
        };
        let (since, until) = (time(self.since), time(SystemTime::now()));
        let label = format!("label={LABEL_AGENT}={}", self.name);
        let events = ["events", "--since", &since, "--until", &until, "--filter", &label];
        let starts = ["--filter", "type=container", "--filter", "event=start", "--format", "{{.ID}}"];
        self.plant.engine.docker(&[&events[..], &starts[..]].concat()).lines().count()
    }

    /// Every step that the server heard of is one of the table.
    fn assert_lawful(&self) -> Result<(), String> {
        let steps = self.steps();
        for pair in steps.windows(2).filter(|pair| pair[0] != pair[1]) {
            if !pair[0].may_become(pair[1]) {
                return Err(format!("the server was told of {} after {}: {steps:?}", pair[1], pair[0]));
            }
        }
        Ok(())
    }

    fn transitions(&self) -> Vec<Value> {
        let path =
            format!("/deployments/{}/devices/{}/transitions?limit=1000", self.deployment(SUBJECT), self.name);
        self.operator.get(&path)["items"].as_array().cloned().unwrap_or_default()
    }

    fn steps(&self) -> Vec<State> {
        self.transitions().iter().filter_map(|step| State::parse(step["state"].as_str()?)).collect()
    }

    fn story(&self) -> String {
        let containers: Vec<String> = self.containers().iter().map(|c| format!("{c:?}")).collect();
        let shown = self.operator.get(&format!("/devices/{}", self.name));
        let log = std::fs::read(self.plant.path(&format!("{}.log", self.name))).unwrap_or_default();
        let words = String::from_utf8_lossy(&log).into_owned();
        format!("{}\n{:?}\n{containers:#?}\n{words}", shown["assignments"], self.steps())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.plant.engine.clear_agent(&self.name);
    }
}

#[derive(Debug)]
struct Container {
    id: String,
    running: bool,
    /// Which one, and since when: the same twice means that nobody touched it.
    run: String,
    greeting: String,
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what} {found:?}, and should be {expected:?}")) }
}

/// A server whose registry has what is needed, and nobody on the engine yet.
fn plant() -> Option<Plant> {
    let plant = Plant::start_with(&["--registry-address", "127.0.0.1:{local}"])?;
    plant.add_package(BYSTANDER, "1.0.0", &[("main", WORK)]);
    for version in ["1.0.0", "2.0.0", "3.0.0"] {
        plant.add_package(SUBJECT, version, &[("main", &format!("{WORK}# {version}\n"))]);
    }
    Some(plant)
}

struct Tally {
    aims: Aims,
    recoveries: Vec<Duration>,
    failures: Vec<String>,
}

#[test]
fn promise_8_an_agent_killed_around_everything_it_does_to_the_engine_continues_correctly() {
    let Some(trap) = Trap::set() else { return };
    let Some(plant) = plant() else { return };
    let begun = Instant::now();
    let aims = Aims::at(aimed(&plant, &trap));
    let tally = Mutex::new(Tally { aims, recoveries: Vec::new(), failures: Vec::new() });
    for round in 0..ROUNDS_MAX {
        let lives = tally.lock().expect("nobody panics with it").aims.lives(SCENARIOS.len());
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(points) = lives.get(number) else { return };
                        live(&plant, &trap, &format!("{round}-{number}"), points, &tally);
                    }
                });
            }
        });
    }
    let tally = tally.into_inner().expect("nobody panicked with it");
    let Tally { aims, recoveries, failures } = &tally;
    tell(&format!("real engine, in {} s: {}", begun.elapsed().as_secs(), aims.sum()));
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        let count = aims.hit().filter(|(of, _)| *of == number).count();
        tell(&format!("{}: killed at {count} points, and recovered", scenario.name));
    }
    for (number, point, why) in aims.never() {
        tell(&format!("never hit: {}: {point}: {why}", SCENARIOS[number].name));
    }
    tell(&format!("recovery: longest {:?}", recoveries.iter().max()));
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert_eq!(aims.complaint(&[ARCHIVES, PROJECTS], NEVER_PERCENT_MAX), None);
    if std::env::var_os(ONLY).is_none() {
        let (points, kinds) = (aims.hit().count(), aims.by_kind());
        assert!(points >= POINTS_MIN, "only {points} points");
        assert!(KINDS.iter().all(|kind| kinds.contains_key(kind)), "not all kinds were hit: {kinds:?}");
    }
}

/// Where agents are to die, for each scenario.
fn aimed(plant: &Plant, trap: &Trap) -> Vec<Vec<Point>> {
    if let Some((name, point)) = std::env::var(ONLY).ok().as_deref().and_then(|only| only.split_once(": ")) {
        let point: Point = point.parse().expect("a point");
        return SCENARIOS.iter().map(|s| Vec::from_iter((s.name == name).then(|| point.clone()))).collect();
    }
    let mut line = Line::join(plant, "untouched");
    SCENARIOS
        .iter()
        .map(|scenario| {
            line.wish(scenario);
            let points = line.watch(trap, scenario);
            points.unwrap_or_else(|c| panic!("{} without a crash: {c}\n{}", scenario.name, line.story()))
        })
        .collect()
}

/// At most so many, evenly from all, and by turns before and after a call.
fn spread(points: Vec<Point>, count_max: usize) -> Vec<Point> {
    let count = points.len().min(count_max);
    let at = |number: usize| {
        let at = number * points.len() / count;
        (at + usize::from(at % 2 != number % 2)).min(points.len() - 1)
    };
    (0..count).map(|number| points[at(number)].clone()).collect()
}

fn live(plant: &Plant, trap: &Trap, which: &str, points: &[Option<Point>], tally: &Mutex<Tally>) {
    let mut line = Line::join(plant, which);
    let last = points.iter().rposition(Option::is_some).unwrap_or_default();
    for (number, (scenario, point)) in SCENARIOS.iter().zip(points).enumerate().take(last + 1) {
        line.wish(scenario);
        let outcome = match point {
            None => line.go_on(scenario).map(|_| None),
            Some(point) => line.die(trap, scenario, point).and_then(|fate| match fate {
                Fate::Survived => line.assert_kept(scenario).map(|()| None),
                Fate::Died(at) => line.go_on(scenario).map(|recovery| Some((at, recovery))),
            }),
        };
        let mut tally = tally.lock().expect("nobody panics with it");
        match (outcome, point) {
            (Ok(Some((at, recovery))), Some(point)) => {
                tally.aims.died(number, point, line.about(&at).as_ref());
                tally.recoveries.push(recovery);
            }
            (Ok(_), Some(point)) => tally.aims.survived(number, point),
            (Ok(_), None) => {}
            (Err(complaint), point) => {
                let point = point.as_ref().map_or("no point".to_owned(), Point::to_string);
                let name = scenario.name;
                tally.failures.push(format!(
                    "{name}: {point}: {complaint}\n{}\nagain: {ONLY}='{name}: {point}' cargo nextest run -p margrave-e2e -E 'test(promise_8_an_agent_killed_around)'",
                    line.story()
                ));
                return;
            }
        }
    }
}

/// Numbers that look like chance and are the same for the same seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

const KILLS: usize = 100;
const KILLED_AT_ONCE: usize = 4;
/// From a start to having updated takes about this long, so every part of it has its turn.
const KILL_AFTER_MAX: u64 = 2500;
/// So many updates in a row are cut off before one may finish.
const KILLS_IN_A_ROW: usize = 5;
const SEED: &str = "MARGRAVE_SEED";

/// Reads every report about an assignment as the server keeps it, where the server may go on writing.
const READ: &str = r#"
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=30)
reports = database.execute("SELECT report FROM transition WHERE assignment = ?", (bytes.fromhex(sys.argv[2]),))
print("[" + ",".join(report for report, in reports) + "]")
"#;

#[test]
fn promise_9_a_hundred_kills_at_any_moment_of_updates_lose_no_report_and_end_right() {
    let Some(python) = installed("python3") else { return };
    let Some(plant) = plant() else { return };
    let begun = Instant::now();
    let chosen = std::env::var(SEED).ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let clock = || {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
    };
    let seed = chosen.unwrap_or_else(clock);
    tell(&format!("seed {seed}; the same again: {SEED}={seed}"));
    let outcomes: Vec<Result<Survivor, String>> = std::thread::scope(|scope| {
        let lines: Vec<_> = (0..KILLED_AT_ONCE)
            .map(|number| {
                scope.spawn({
                    let (plant, python) = (&plant, &python);
                    move || kill_again_and_again(plant, python, number, seed)
                })
            })
            .collect();
        lines.into_iter().map(|line| line.join().expect("it tells what is wrong")).collect()
    });
    let mut sum = Survivor::default();
    for outcome in outcomes {
        let Survivor { kills, updates, sick, waited, told, debts, longest } =
            outcome.unwrap_or_else(|complaint| panic!("seed {seed}: {complaint}"));
        sum.debts = sum.debts + debts;
        (sum.kills, sum.updates, sum.sick) = (sum.kills + kills, sum.updates + updates, sum.sick + sick);
        (sum.waited, sum.told) = (sum.waited + waited, sum.told + told);
        sum.longest = sum.longest.max(longest);
    }
    let Survivor { kills, updates, sick, waited, told, debts, longest } = &sum;
    let took = begun.elapsed().as_secs();
    tell(&format!(
        "{kills} kills in {took} s during {updates} good updates and {sick} bad ones; longest recovery {longest:?}"
    ));
    let Settled { heard, nothing_new, forgotten } = debts;
    tell(&format!(
        "{told} reports told; {waited} times one was on the disk of a device that was killed: {heard} heard by the server in the end, {nothing_new} said nothing new, {forgotten} forgotten for eight newer ones, 0 lost"
    ));
    assert_eq!(*kills, KILLS);
    assert!(*heard > 0, "no kill came before a report: that none was lost shows nothing");
    assert!(heard > forgotten, "most of what waited was forgotten: that none was lost shows little");
}

#[derive(Default)]
struct Survivor {
    kills: usize,
    updates: usize,
    sick: usize,
    /// Reports that were written down and not sent when a kill came.
    waited: usize,
    told: usize,
    debts: Settled,
    longest: Duration,
}

fn kill_again_and_again(plant: &Plant, python: &Path, number: usize, seed: u64) -> Result<Survivor, String> {
    let mut dice = Dice(seed.wrapping_add(number as u64));
    let mut line = Line::join(plant, &number.to_string());
    let mut survivor = Survivor::default();
    let [install, ..] = &SCENARIOS;
    line.wish(install);
    line.go_on(install)?;
    let (way, listener) = Way::reserve();
    way.lead(listener, plant.stage.device);
    line.go_by(&way);
    let told = |line: &Line, complaint: String| format!("{}: {complaint}\n{}", line.name, line.story());
    let mut debts = Debts::default();
    while survivor.kills < KILLS / KILLED_AT_ONCE {
        for _ in 0..KILLS_IN_A_ROW {
            // Often something new, now and then something bad, and now and then only the next kill.
            match dice.roll(8) {
                0 => {}
                1 => {
                    survivor.sick += 1;
                    line.want(SUBJECT, install.version, SICK);
                }
                _ => {
                    survivor.updates += 1;
                    line.want(SUBJECT, install.version, &format!("update {}", survivor.updates));
                }
            }
            let mut agent = line.start(Command::new(program("margrave-agent")), &line.name);
            let (killed, cut) = (dice.roll(KILL_AFTER_MAX), dice.roll(KILL_AFTER_MAX));
            // Often the server is out of reach by then, and what there was to tell is on the device's disk.
            std::thread::sleep(Duration::from_millis(killed.min(cut)));
            way.cut.store(cut < killed, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(killed.saturating_sub(cut)));
            if agent.ended().is_some() {
                return Err(told(&line, "it ended by itself".into()));
            }
            agent.kill();
            way.cut.store(false, Ordering::SeqCst);
            survivor.kills += 1;
            let waiting = line.owes(&mut debts).map_err(|complaint| told(&line, complaint))?;
            survivor.waited += waiting;
        }
        let greeting = format!("settled {}", survivor.kills);
        line.want(SUBJECT, install.version, &greeting);
        let begun = Instant::now();
        let mut agent = line.start(Command::new(program("margrave-agent")), &line.name);
        let ended = line.until(&|| {
            let manifest = line.at_server(&[(SUBJECT, true, ""), (BYSTANDER, true, "")])?;
            line.settled(manifest, 2)?;
            line.runs(Some(&greeting))
        });
        survivor.longest = survivor.longest.max(begun.elapsed());
        agent.kill();
        let mut kept = || {
            let subject =
                line.containers().into_iter().find(|c| c.greeting == greeting).ok_or("it is gone")?;
            let kept = line.plant.engine.exec(&subject.id, "cat /data/file");
            equal("in the volume", &kept.as_str(), &"kept")?;
            line.assert_lawful()?;
            line.owes(&mut debts)?;
            survivor.debts = debts.settled(&line.kept(python)?)?;
            equal("the server was told last", &line.steps().last(), &Some(&State::Installed))
        };
        ended.and_then(|()| kept()).map_err(|complaint| told(&line, complaint))?;
    }
    survivor.told = line.transitions().len();
    Ok(survivor)
}
