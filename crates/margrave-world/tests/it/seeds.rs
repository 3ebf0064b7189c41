//! A bounded number of seeds, on every run.

use margrave_world::run;

/// As many as take some seconds without the compiler's help; `.ci/run` lives through more of them.
const SEEDS: u64 = 40;

#[test]
fn every_promise_holds_in_some_worlds() {
    let summary = run(0..SEEDS, None, 2, None, 3, &|_, _| ()).unwrap();
    let told: Vec<String> = summary
        .failed
        .iter()
        .map(|outcome| {
            let tail: Vec<&str> = outcome.story.iter().rev().take(60).rev().map(String::as_str).collect();
            format!(
                "seed {}: replay with `cargo run --release -p margrave-world -- --seed {} --story`\n{}",
                outcome.seed,
                outcome.seed,
                tail.join("\n")
            )
        })
        .collect();
    eprintln!(
        "seeds {}, device-hours {:.0}, faults {}, violations {}",
        summary.seeds,
        summary.device_hours(),
        summary.faults.total(),
        summary.failed.len()
    );
    assert!(told.is_empty(), "{}", told.join("\n\n"));
    assert_eq!(summary.seeds, SEEDS);
    let kinds = summary.faults.iter().count();
    assert!(kinds >= 25, "only {kinds} kinds of faults happened");
}
