//! Every figure that the project promises, measured here and now.
//!
//! Machines are noisy: what can be compared with a baseline is, in the same run, the two taking turns, and the
//! median of the rounds' ratios is what counts. What is measured must not be what measures: where there are two cores,
//! the server has one and the generator the other, and the server's own processor time is read beside the clock.

mod agent;
mod answers;
mod asker;
mod fleet;
mod gap;
mod page;
mod plant;
mod programs;
mod reports;
mod scales;
mod simulation;
mod stage;
mod table;
mod waiting;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use self::plant::Plant;
use self::stage::{Cores, Programs};
use self::table::Table;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Programs,
    Deploy,
    Answers,
    Connections,
    Reports,
    Waiting,
    Fleet,
    Agent,
    Gap,
    Page,
    Simulation,
}

impl Name {
    const ALL: [(&'static str, Name); 11] = [
        ("programs", Name::Programs),
        ("agent", Name::Agent),
        ("304", Name::Answers),
        ("connections", Name::Connections),
        ("reports", Name::Reports),
        ("waiting", Name::Waiting),
        ("fleet", Name::Fleet),
        ("deploy", Name::Deploy),
        ("gap", Name::Gap),
        ("page", Name::Page),
        ("simulation", Name::Simulation),
    ];
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    names: Vec<Name>,
    quick: bool,
    out: Option<PathBuf>,
    /// As they were given, to be passed on.
    words: Vec<String>,
}

impl Wanted {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Wanted> {
        let words: Vec<String> = arguments.collect();
        let mut wanted = Wanted { names: vec![], quick: false, out: None, words: words.clone() };
        let mut rest = words.into_iter();
        while let Some(word) = rest.next() {
            match word.as_str() {
                "--quick" => wanted.quick = true,
                "--out" => wanted.out = Some(rest.next().context("--out needs a file")?.into()),
                word => match Name::ALL.iter().find(|(name, _)| *name == word) {
                    Some((_, name)) => wanted.names.push(*name),
                    None => bail!("there is no figure {word}; without arguments `cargo xtask` lists them"),
                },
            }
        }
        if wanted.names.is_empty() {
            wanted.names = Name::ALL.iter().map(|(_, name)| *name).collect();
        }
        Ok(wanted)
    }
}

/// What all figures share.
struct Lab {
    root: PathBuf,
    programs: Programs,
    /// A directory on a real disk.
    scratch: PathBuf,
    cores: Option<Cores>,
    quick: bool,
}

impl Lab {
    /// How many clients there are to be, and how many rounds of how many seconds.
    fn clients(&self) -> usize {
        if self.quick { 600 } else { 9_000 }
    }

    /// Many short ones: neighbours on the machine come and go within seconds, and what is compared has to lie close
    /// together.
    fn rounds(&self) -> usize {
        if self.quick { 2 } else { 19 }
    }

    fn lasting(&self) -> std::time::Duration {
        std::time::Duration::from_secs(1)
    }
}

fn root() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?.to_owned())
}

/// Where this very program was built: two directories up from itself.
fn target() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.parent().and_then(Path::parent).context("this program lies in target/<profile>")?.to_owned())
}

/// Builds the release programs, this one among them, and lets that one measure: a generator without
/// optimisation would measure itself.
pub(crate) fn run(wanted: &Wanted) -> Result<bool> {
    eprintln!("building the release programs …");
    let mut release = vec!["--release", "-p", "margrave", "-p", "xtask"];
    if wanted.names.contains(&Name::Simulation) {
        release.extend(["-p", "margrave-world"]);
    }
    for packages in [&release[..], &["--profile", "device", "-p", "margrave-agent"]] {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked"])
            .args(packages)
            .current_dir(root()?)
            .env("CARGO_TARGET_DIR", target()?)
            .status()?;
        ensure!(built.success(), "the release build failed");
    }
    let measured =
        Command::new(target()?.join("release/xtask")).arg("measure").args(&wanted.words).status()?;
    match measured.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => bail!("measuring broke off"),
    }
}

pub(crate) fn measure(wanted: &Wanted) -> Result<bool> {
    let begun = Instant::now();
    let target = target()?;
    let lab = Lab {
        root: root()?,
        programs: Programs::beside(&target),
        scratch: target,
        cores: Cores::find(),
        quick: wanted.quick,
    };
    margrave_simulate::resources::raise_open_files();
    let mut table = Table::default();
    // One server with many clients serves four figures; joining is the long part.
    let mut plant: Option<Plant> = None;
    for name in &wanted.names {
        if let Err(error) = one(&lab, *name, &mut plant, &mut table) {
            table.judged(format!("{name:?}"), format!("broke: {error:#}"), "to be measured", false);
        }
    }
    let heading = heading(&lab, begun);
    println!("\n{heading}\n\n{}", table.text());
    if let Some(out) = &wanted.out {
        table.write(out, &heading)?;
    }
    Ok(table.all_met())
}

fn one(lab: &Lab, name: Name, plant: &mut Option<Plant>, table: &mut Table) -> Result<()> {
    let figure: fn(&Lab, &mut Plant, &mut Table) -> Result<()> = match name {
        Name::Programs => return programs::idle(lab, table),
        Name::Deploy => return programs::deploy(lab, table),
        Name::Agent => return agent::measure(lab, table),
        Name::Gap => return gap::measure(lab, table),
        Name::Page => return page::measure(lab, table),
        Name::Fleet => return fleet::measure(lab, table),
        Name::Simulation => return simulation::measure(lab, table),
        Name::Answers => answers::polls,
        Name::Connections => answers::connections,
        Name::Reports => reports::measure,
        Name::Waiting => waiting::measure,
    };
    let plant = match plant {
        Some(plant) => plant,
        None => plant.insert(Plant::build(lab, table)?),
    };
    figure(lab, plant, table)
}

/// When, where and how long; figures without these are hearsay.
fn heading(lab: &Lab, begun: Instant) -> String {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(&lab.root).output().ok()?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    let commit = said("git", &["describe", "--always", "--dirty"]).unwrap_or_default();
    let when = said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("?").to_owned();
    let pinned = if lab.cores.is_some() { "server and generator on a core each" } else { "not pinned" };
    let quick = if lab.quick { ", --quick: too short to judge by" } else { "" };
    format!(
        "Figures of commit {commit}, {when}, {cores} cores ({pinned}), load {load} at the end, \
         measured in {} s{quick}",
        begun.elapsed().as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Wanted> {
        Wanted::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn nothing_named_is_everything_and_names_are_a_choice() {
        assert_eq!(parse(&[]).unwrap().names.len(), Name::ALL.len());
        let wanted = parse(&["304", "reports", "--quick", "--out", "x"]).unwrap();
        assert_eq!(wanted.names, [Name::Answers, Name::Reports]);
        assert!(wanted.quick && wanted.out == Some("x".into()));
        assert!(parse(&["305"]).is_err() && parse(&["--out"]).is_err());
    }

    #[test]
    fn the_usage_names_every_figure() {
        for (name, _) in Name::ALL {
            assert!(crate::USAGE.contains(&format!("\n             {name} ")), "{name}");
        }
    }
}
