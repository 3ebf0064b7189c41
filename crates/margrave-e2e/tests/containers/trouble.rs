//! What a trouble led to, in numbers: part of a test's result, and shown also when that is good (`.config/nextest.toml`).

use jiff::Timestamp;

use crate::stage::{Stage, tell};

pub(crate) struct Trouble {
    what: String,
    begun: Timestamp,
    cured: Option<Timestamp>,
}

impl Trouble {
    /// From now on something is wrong.
    pub(crate) fn begins(what: &str) -> Trouble {
        Trouble { what: what.to_owned(), begun: Timestamp::now(), cured: None }
    }

    /// From now on nothing keeps the device from being as wanted.
    pub(crate) fn is_cured(&mut self) {
        self.cured = Some(Timestamp::now());
    }

    /// Tells when the device came to which state since then, by its own clock, how long that took after the cure, and how
    /// often it reported and tried.
    pub(crate) fn tell(&self, stage: &Stage, device: &str, deployment: &str) {
        let reports: Vec<(String, Timestamp)> = stage
            .reports(device, deployment)
            .iter()
            .filter_map(|report| {
                Some((report["state"].as_str()?.to_owned(), report["at"].as_str()?.parse().ok()?))
            })
            .filter(|(_, at)| *at >= self.begun)
            .collect();
        assert!(!reports.is_empty(), "{}: the server heard nothing of {deployment}", self.what);
        let mut steps = reports.clone();
        steps.dedup_by(|(next, _), (last, _)| next == last);
        let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64();
        let after =
            |(state, at): &(String, Timestamp)| format!("{state} after {:.1} s", seconds(self.begun, *at));
        let course: Vec<String> = steps.iter().map(after).collect();
        let cure = match (self.cured, steps.last()) {
            (Some(cured), Some((state, at))) => {
                format!("; {state} {:.1} s after the cure", seconds(cured, *at))
            }
            _ => String::new(),
        };
        let tries =
            steps.iter().filter(|(state, _)| ["INSTALLING", "UPDATING"].contains(&state.as_str())).count();
        let (what, count) = (&self.what, reports.len());
        tell(&format!("{what}: {}{cure}; {count} reports told, {tries} tries", course.join(", ")));
    }
}

/// The list in the docs names a test for each trouble, and each is there.
#[test]
fn every_trouble_of_the_list_has_its_test() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &std::path::Path| {
        std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    };
    let page = read(&root.join("../../docs/testing.md"));
    let list = page.split("## ").find(|part| part.starts_with("Troubles on real containers\n"));
    let rows = list.expect("there is the list").lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut tests = 0;
    for row in rows {
        let named: Vec<_> =
            row.split('`').skip(1).step_by(2).filter_map(|code| code.split_once("::")).collect();
        assert!(!named.is_empty(), "{row}");
        for (file, test) in named {
            tests += 1;
            let text = read(&root.join("tests/containers").join(file));
            assert!(text.contains(&format!("fn {test}(")), "{test} is not in {file}");
            assert!(text.contains("tell("), "{file} prints no numbers");
        }
    }
    assert!(tests >= 9, "only {tests} tests");
}
