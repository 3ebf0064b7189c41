//! The same seed lives the same life.

use margrave_world::live;

#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in [1, 2, 5, 31] {
        let (once, twice) = (live(seed, None, false).unwrap(), live(seed, None, false).unwrap());
        assert!(once.steps > 20, "seed {seed} does nothing");
        assert_eq!((once.digest, once.steps), (twice.digest, twice.steps), "seed {seed} tells another story");
    }
}

#[test]
fn other_seeds_tell_other_stories() {
    let told: std::collections::BTreeSet<u64> =
        (0..4).map(|seed| live(seed, None, false).unwrap().digest).collect();
    assert_eq!(told.len(), 4);
}
