//! What somebody in front of the page waits for: its first paint with ten thousand devices, and whether a storm of events leaves
//! it usable. Chromium looks at the release server, driven by the browser tests; what they see they print.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::table::Table;
use super::{Lab, target};

const FIRST_PAINT_MAX_MS: f64 = 1000.0;
const TOLD_PER_SECOND_MAX: f64 = 4.0;
/// Of the thousand a second that the devices try; fewer would be no storm.
const EVENTS_PER_SECOND_MIN: f64 = 900.0;

pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let target = target()?;
    let walked = Command::new(env!("CARGO"))
        .args(["test", "--locked", "--package", "margrave-e2e", "--test", "e2e", "--"])
        .args(["--nocapture", "--test-threads=1", "browser::crowd", "browser::storm"])
        .current_dir(&lab.root)
        .env("CARGO_TARGET_DIR", &target)
        .env("MARGRAVE_TEST_PROGRAMS", target.join("release"))
        .output()?;
    let (out, log) = (String::from_utf8_lossy(&walked.stdout), String::from_utf8_lossy(&walked.stderr));
    ensure!(walked.status.success(), "the browser tests failed: {out}\n{log}");
    let seen = |name: &str| -> Result<Vec<f64>> {
        let mut lines = out.lines().chain(log.lines());
        let words =
            lines.find_map(|line| line.split_once(&format!("figure {name}:")).map(|(_, words)| words));
        let words = words.context("there is no Chromium here; `scripts/rig install` installs it")?;
        words.split_whitespace().map(|word| Ok(word.parse()?)).collect()
    };
    let painted = *seen("first paint")?.first().context("a first paint")?;
    table.judged(
        "fleet page with 10,000 devices, first contentful paint in Chromium",
        format!("{painted:.0} ms"),
        "≤ 1 s",
        painted <= FIRST_PAINT_MAX_MS,
    );
    let [events, within, told, asked, seconds] = seen("storm")?[..] else {
        anyhow::bail!("the storm is told in five numbers")
    };
    table.judged(
        "storm of events while a page is open",
        format!("{:.0} events/s for {within:.1} s", events / within),
        "≥ 900/s",
        events / within >= EVENTS_PER_SECOND_MIN,
    );
    // The one that comes at once is not part of a rhythm.
    for (what, count) in [("is told", told), ("asks", asked)] {
        let rate = (count - 1.0).max(0.0) / seconds;
        table.judged(
            format!("how often the page {what} meanwhile"),
            format!("{rate:.1}/s"),
            "≤ 4/s",
            rate <= TOLD_PER_SECOND_MAX,
        );
    }
    Ok(())
}
