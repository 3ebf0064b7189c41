//! A program that dies at a chosen system call: just before it happens, or just after.
//!
//! The program is the one that people run, without a line in it for this. `strace` stands beside it and has the kernel
//! send it a signal at the n-th call of a kind. SIGKILL sent on entry takes effect before the call does anything. Any
//! other deadly signal is only delivered on the way back to the program, when the call is done; SIGVTALRM is one that
//! nobody handles and that leaves no core file.
//!
//! `strace` counts per thread, and a signal comes at whichever thread is the first to make its n-th call. The agent keeps
//! its ledger and its documents in one main thread and leaves archives to threads that come and go, so "the third
//! `fsync`" alone would nearly always be the main thread's. A point therefore names its file wherever that has a name
//! which is known before: then only calls on that file are counted (`-P`). What has none (a word to the server, a
//! document called by its digest) is counted as the network and the threads have it, and may be something else the next
//! time; so where a program really died is read off the trace and compared with what was meant.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::stage::{Running, installed, skip, wait_for};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Before,
    After,
}

/// Where to die.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Point {
    pub(crate) call: String,
    pub(crate) nth: u32,
    pub(crate) side: Side,
    pub(crate) about: About,
}

/// What a call is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct About {
    /// In a word.
    pub(crate) kind: String,
    /// The file, under a name by which it is found on every device; then only calls on it are counted.
    pub(crate) file: Option<String>,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {}", self.kind)?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, " at {file}"))
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.side == Side::Before { "before" } else { "after" };
        write!(f, "{side} {} {} {}", self.call, self.nth, self.about)
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no point such as \"after fsync 7 of ledger at ledger/state.0\"");
        let (side, call, nth, kind, file) = match text.split(' ').collect::<Vec<_>>()[..] {
            [side, call, nth, "of", kind] => (side, call, nth, kind, None),
            [side, call, nth, "of", kind, "at", file] => (side, call, nth, kind, Some(file.to_owned())),
            _ => return Err(wrong()),
        };
        let side = match side {
            "before" => Side::Before,
            "after" => Side::After,
            _ => return Err(wrong()),
        };
        let about = About { kind: kind.to_owned(), file };
        Ok(Point { call: call.to_owned(), nth: nth.parse().map_err(|_| wrong())?, side, about })
    }
}

/// One call that a program made, and on what: a file, the `server`, the `engine` with the word it is told, or a `program`
/// that is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    thread: String,
    name: String,
    pub(crate) target: String,
    done: bool,
}

impl Call {
    /// Starting a program is begun anew when a signal comes in between: there is no time right after it.
    fn sides(&self) -> &'static [Side] {
        if self.target == "program" { &[Side::Before] } else { &[Side::Before, Side::After] }
    }
}

/// What can be done to a program.
#[derive(Clone)]
pub(crate) struct Trap {
    strace: PathBuf,
}

/// Traces of older kernels and other processors have other calls for the same; those that are not there are left out.
const LASTING: &str = "?write,?writev,?pwrite64,?fsync,?fdatasync,?rename,?renameat,?renameat2,?unlink,?unlinkat,?rmdir,?mkdir,?mkdirat,?clone,?clone3,?vfork";

impl Trap {
    /// `None`, said aloud, where programs cannot be traced.
    pub(crate) fn set() -> Option<Trap> {
        let trap = Trap { strace: installed("strace")? };
        let tried = Command::new(&trap.strace).args(["-o", "/dev/null", "true"]).output();
        let tried = tried.expect("strace starts");
        if !tried.status.success() {
            let said = String::from_utf8_lossy(&tried.stderr).into_owned();
            skip(&format!("programs cannot be traced here: {}", said.trim()));
            return None;
        }
        Some(trap)
    }

    /// A program whose lasting calls are written to `trace`; the program is the process that is started, and `strace`
    /// hides behind it. Programs that it starts are let go.
    pub(crate) fn watched(&self, trace: &Path, program: &Path) -> Command {
        self.command(trace, program, LASTING, &[])
    }

    /// The same, for a program that is to die; `file` is where the point's file is.
    pub(crate) fn armed(&self, trace: &Path, program: &Path, point: &Point, file: Option<&Path>) -> Command {
        let signal = if point.side == Side::Before { "SIGKILL" } else { "SIGVTALRM" };
        let inject = format!("inject={}:signal={signal}:when={}", point.call, point.nth);
        let mut more: Vec<&OsStr> = vec!["-e".as_ref(), inject.as_ref()];
        more.extend(file.into_iter().flat_map(|file| ["-P".as_ref(), file.as_os_str()]));
        self.command(trace, program, &point.call, &more)
    }

    fn command(&self, trace: &Path, program: &Path, calls: &str, more: &[&OsStr]) -> Command {
        let mut command = Command::new(&self.strace);
        // What an earlier one left must not be taken for this one's.
        std::fs::write(trace, b"").expect("the stage's directory is writable");
        command.args(["-D", "-f", "-yy", "--detach-on=execve", "-o"]).arg(trace);
        command.arg("-e").arg(format!("trace={calls}")).args(more).arg(program);
        command
    }
}

/// Both sides of every call that is `about` something, in the order of calls. Equal ones of several threads are one.
pub(crate) fn points(trace: &Path, about: impl Fn(&Call) -> Option<About>) -> Vec<Point> {
    let (mut made, mut made_on_file) = (BTreeMap::new(), BTreeMap::new());
    let mut points: Vec<Point> = Vec::new();
    for call in calls(&read(trace)) {
        let by_thread = (call.thread.clone(), call.name.clone());
        let of_all = counted(&mut made, by_thread.clone());
        let of_file = counted(&mut made_on_file, (by_thread, call.target.clone()));
        let Some(about) = about(&call) else { continue };
        let nth = if about.file.is_some() { of_file } else { of_all };
        for side in call.sides() {
            let point = Point { call: call.name.clone(), nth, side: *side, about: about.clone() };
            if !points.contains(&point) {
                points.push(point);
            }
        }
    }
    points
}

fn counted<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) -> u32 {
    let count = counts.entry(key).or_default();
    *count += 1;
    *count
}

/// Where a program died that ended with `status`; an error when it was not where it should have.
pub(crate) fn died(trace: &Path, point: &Point, status: ExitStatus) -> Result<Call, String> {
    use std::os::unix::process::ExitStatusExt;
    let signals = if point.side == Side::Before { 9 } else { 26 };
    if status.signal() != Some(signals) {
        return Err(format!("it ended by itself, with {status}"));
    }
    let text =
        wait_for("the trace is written", || Some(read(trace)).filter(|text| text.contains("+++ killed by")));
    let mut made = BTreeMap::new();
    // Other threads may have begun something since.
    let at = calls(&text).into_iter().find(|call| counted(&mut made, call.thread.clone()) == point.nth);
    let at = at.ok_or_else(|| format!("it died before it came to {point}:\n{text}"))?;
    let as_meant = at.done == (point.side == Side::After);
    as_meant.then_some(at).ok_or_else(|| format!("it did not die {point}:\n{text}"))
}

/// What becomes of a program that was to die: its end, or that it never came to the point.
pub(crate) enum Fate {
    Died(Call),
    /// It did all there was to do, and was killed then.
    Survived,
}

/// What is done again and again, such as asking for news, is done within this time also by whoever has all it wanted.
const PATIENCE_AT_REST: Duration = Duration::from_secs(1);

impl Fate {
    /// Waits for the end of `program`, or until it has had nothing left to do for a second.
    pub(crate) fn of(
        mut program: Running,
        trace: &Path,
        point: &Point,
        mut finished: impl FnMut() -> bool,
    ) -> Result<Fate, String> {
        let what = format!("it dies {point}, or has nothing left to do");
        let mut at_rest: Option<Instant> = None;
        let ended = wait_for(&what, || match program.ended() {
            Some(status) => Some(Some(status)),
            None => {
                at_rest = at_rest.or_else(|| finished().then(Instant::now));
                at_rest.is_some_and(|since| since.elapsed() >= PATIENCE_AT_REST).then_some(None)
            }
        });
        match ended {
            Some(status) => Ok(Fate::Died(died(trace, point, status)?)),
            None => {
                program.kill();
                Ok(Fate::Survived)
            }
        }
    }
}

fn read(trace: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(trace).expect("strace was told to write it")).into_owned()
}

/// Lines such as `812 fsync(11</data/ledger/state.0>) = 0`, and `= ?` where it never came back.
fn calls(trace: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for line in trace.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let (thread, rest) = (thread.to_owned(), rest.trim_start());
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let name = resumed.split(' ').next().unwrap_or_default();
            let begun = calls.iter_mut().rfind(|call| call.thread == thread && call.name == name);
            if let Some(call) = begun {
                call.done = !rest.ends_with('?');
            }
            continue;
        }
        let Some((name, arguments)) = rest.split_once('(') else { continue };
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            continue;
        }
        let done = !arguments.ends_with("= ?") && !arguments.ends_with("<unfinished ...>");
        calls.push(Call { thread, name: name.to_owned(), target: target(arguments), done });
    }
    calls
}

/// What is behind the first argument: in angle brackets for a descriptor, in quotes for a path.
fn target(arguments: &str) -> String {
    let first = arguments.trim_start_matches(|c: char| c.is_ascii_digit());
    // Addresses have an arrow in them.
    let of_descriptor =
        first.strip_prefix('<').and_then(|rest| rest.split_once(">,").or(rest.split_once(">)")));
    let of_path = || arguments.split('"').nth(1);
    let target = of_descriptor.map(|(path, _)| path).or_else(of_path).unwrap_or_default();
    let is = |what: &str| target.starts_with(what);
    if is("TCP") || is("socket:") {
        "server".to_owned()
    } else if is("UNIX") {
        format!("engine {}", of_path().and_then(|said| said.split(' ').next()).unwrap_or_default())
    } else if arguments.contains("CLONE_VFORK") {
        "program".to_owned()
    } else {
        target.to_owned()
    }
}

#[test]
fn a_trace_is_read_as_strace_writes_it() {
    let trace = "\
812   fsync(11</d/ledger/state.0>) = 0
812   write(2</d.log>, \"a \\\"b\\\" (c\"..., 40 <unfinished ...>
813   fsync(7</d/x>)   = 0
812   <... write resumed>) = 40
812   writev(12<TCP:[127.0.0.1:38012->127.0.0.1:19444]>, [{iov_base=\"\\27\", iov_len=1}], 1) = 1
812   writev(9<UNIX-STREAM:[3->8]>, [{iov_base=\"GET /v1.41/_ping HTTP/1.1\\r\\nhost:\"..., iov_len=74}], 1) = 74
812   clone3({flags=CLONE_VM|CLONE_VFORK, exit_signal=SIGCHLD, stack=0x7f2e2fd2e000, stack_size=0x9000}, 88) = 1108
812   rename(\"/d/a.new\", \"/d/a\") = ?
812   --- SIGVTALRM {si_signo=SIGVTALRM, si_code=SI_KERNEL} ---
812   +++ killed by SIGKILL +++
";
    let found = calls(trace);
    let shown: Vec<(&str, &str, &str, bool)> =
        found.iter().map(|c| (c.thread.as_str(), c.name.as_str(), c.target.as_str(), c.done)).collect();
    assert_eq!(
        shown,
        [
            ("812", "fsync", "/d/ledger/state.0", true),
            ("812", "write", "/d.log", true),
            ("813", "fsync", "/d/x", true),
            ("812", "writev", "server", true),
            ("812", "writev", "engine GET", true),
            ("812", "clone3", "program", true),
            ("812", "rename", "/d/a.new", false),
        ]
    );
    for shown in ["after fsync 7 of ledger at ledger/state.0", "before writev 3 of server"] {
        assert_eq!(shown.parse::<Point>().expect("as it is shown").to_string(), shown);
    }
    assert!("after fsync 7".parse::<Point>().is_err());
}

#[test]
fn a_program_dies_before_and_after_what_it_was_to_do() {
    let Some(trap) = Trap::set() else { return };
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let (trace, file) = (scratch.path().join("trace"), scratch.path().join("file"));
    let script = format!("echo one > {0}; echo two >> {0}", file.display());
    let run = |mut command: Command| {
        if file.exists() {
            std::fs::remove_file(&file).expect("it was just written");
        }
        command.args(["-c", &script]).status().expect("a shell starts")
    };
    let sh = Path::new("/bin/sh");
    assert!(run(trap.watched(&trace, sh)).success());
    wait_for("the trace is written", || read(&trace).contains("+++ exited").then_some(()));
    let about = |call: &Call, named: bool| {
        let is_it = call.target == file.display().to_string();
        is_it.then(|| About { kind: "it".to_owned(), file: named.then(|| "file".to_owned()) })
    };
    for named in [false, true] {
        let found = points(&trace, |call| about(call, named));
        let shown: Vec<String> = found.iter().map(Point::to_string).collect();
        let which = if named { "of it at file" } else { "of it" };
        let expected = ["before write 1", "after write 1", "before write 2", "after write 2"];
        assert_eq!(shown, expected.map(|point| format!("{point} {which}")));
        for (point, left) in found.iter().zip(["", "one\n", "one\n", "one\ntwo\n"]) {
            let status = run(trap.armed(&trace, sh, point, named.then_some(&file)));
            let call = died(&trace, point, status).expect("it dies where it should");
            assert_eq!(call.target, file.display().to_string());
            assert_eq!(std::fs::read_to_string(&file).expect("it was opened"), left, "{point}");
        }
    }
}

#[test]
fn a_program_dies_at_a_file_whoever_of_it_writes_there() {
    let Some(trap) = Trap::set() else { return };
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let (trace, aimed) = (scratch.path().join("trace"), scratch.path().join("aimed"));
    // As many calls on something else come first, by who would be the first to make its second.
    let script = "echo 1 > other; echo 2 >> other; (echo 1 > aimed; echo 2 >> aimed; echo 3 >> aimed); true";
    let point: Point = "after write 2 of it at aimed".parse().expect("a point");
    let mut command = trap.armed(&trace, Path::new("/bin/sh"), &point, Some(&aimed));
    command.current_dir(scratch.path()).args(["-c", script]);
    let _ended = command.status().expect("a shell starts");
    wait_for("the trace is written", || read(&trace).contains("+++ killed by").then_some(()));
    assert_eq!(std::fs::read_to_string(&aimed).expect("it was opened"), "1\n2\n");
}
