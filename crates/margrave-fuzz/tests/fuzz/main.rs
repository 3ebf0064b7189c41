//! Every target over its seeds and over damaged copies of them: what `scripts/fuzz` does for hours, for a second
//! each. A finding of a fuzzer becomes a test in the crate that was wrong, not here.

use margrave_fuzz::{TARGETS, seeds};

/// Damaged copies per seed. Enough that every parser is left at many points, few enough for every test run.
const COPIES: u64 = 50;

/// The same numbers on every machine; a test must fail again when it is run again.
struct Dice(u64);

impl Dice {
    /// SplitMix64.
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound.max(1) as u64) as usize
    }
}

fn damaged(seed: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut copy = seed.to_vec();
    for _ in 0..=dice.below(3) {
        if copy.is_empty() {
            break;
        }
        let (at, length) = (dice.below(copy.len()), 1 + dice.below(8));
        let end = (at + length).min(copy.len());
        match dice.below(5) {
            0 => copy[at] = dice.roll() as u8,
            1 => copy.truncate(at),
            2 => drop(copy.drain(at..end)),
            3 => {
                let piece = copy[at..end].to_vec();
                let to = dice.below(copy.len());
                copy.splice(to..to, piece);
            }
            _ => copy[at] ^= 1 << dice.below(8),
        }
    }
    copy
}

fn check(name: &str) {
    let target = margrave_fuzz::target(name).expect("a target of this name");
    let seeds = seeds::all(target).expect("seeds can be read");
    assert!(!seeds.is_empty(), "{name} starts from nothing");
    let mut dice = Dice(7);
    for seed in &seeds {
        (target.run)(seed);
        for _ in 0..COPIES {
            let copy = damaged(seed, &mut dice);
            let shown = || copy.escape_ascii().to_string();
            let failed = std::panic::catch_unwind(|| (target.run)(&copy)).is_err();
            assert!(!failed, "{name} fails for this input (escaped): {}", shown());
        }
    }
    (target.run)(b"");
}

macro_rules! targets {
    ($($test:ident $name:literal)*) => {
        $(#[test] fn $test() { check($name); })*

        #[test]
        fn no_target_is_left_out() {
            let tested = [$($name),*];
            let all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(tested.as_slice(), all, "the tests and TARGETS name the same, in the same order");
        }
    };
}

targets! {
    bundle "bundle"
    capabilities "capabilities"
    certificate "certificate"
    compose_archive "compose-archive"
    compose_file "compose-file"
    csr "csr"
    description "description"
    document "document"
    manifest "manifest"
    names "names"
    package_manifest "package-manifest"
    problem "problem"
    ranges "ranges"
    requests "requests"
    signature "signature"
    signed_capabilities "signed-capabilities"
    signed_document "signed-document"
    signed_manifest "signed-manifest"
    signed_onboarding "signed-onboarding"
    signed_requests "signed-requests"
    signed_status "signed-status"
    status "status"
    trust_bundle "trust-bundle"
    yaml "yaml"
}
