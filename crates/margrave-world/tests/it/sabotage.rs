//! Every deliberate bug is caught, by the check that is there for it.

use margrave_world::{Sabotage, live};

/// Each bug needs something to happen that shows it; most do within a few seeds.
const SEEDS_MAX: u64 = 150;

fn caught(sabotage: Sabotage) {
    let mut others = vec![];
    for seed in 0..SEEDS_MAX {
        match live(seed, Some(sabotage), false).unwrap().violation {
            Some(violation) if violation.check == sabotage.caught_by() => return,
            Some(violation) => others.push(format!("seed {seed}: {violation}")),
            None => {}
        }
    }
    panic!("{sabotage:?} was not caught by {}; {others:#?}", sabotage.caught_by().name());
}

macro_rules! caught {
    ($($name:ident $sabotage:ident),* $(,)?) => {
        $(#[test] fn $name() { caught(Sabotage::$sabotage); })*

        #[test]
        fn every_bug_has_its_test() {
            let tested = [$(Sabotage::$sabotage),*];
            for sabotage in margrave_world::SABOTAGES {
                assert!(tested.contains(sabotage), "{sabotage:?} has no test");
            }
            assert!(tested.len() >= 10);
        }
    };
}

caught! {
    acting_before_writing_is_caught ActsBeforeWriting,
    running_what_is_unverified_is_caught RunsUnverified,
    an_update_that_deletes_volumes_is_caught UpdateDeletesVolumes,
    restarting_on_reconnect_is_caught RestartsOnReconnect,
    starting_beside_the_old_one_is_caught StartsBesideOld,
    claiming_that_it_is_installed_is_caught ClaimsInstalled,
    a_ledger_that_forgets_is_caught LedgerForgets,
    a_replay_under_a_new_number_is_caught ReplayRenumbered,
    dropping_reports_is_caught DropsReports,
    a_late_report_under_a_new_number_is_caught LateReportRenumbered,
    a_state_that_skips_is_caught StateSkips,
    hiding_what_was_to_be_removed_is_caught HidesRemoved,
    a_refusal_that_deletes_is_caught RefusalDeletes,
    stopping_on_expiry_is_caught StopsOnExpiry,
    losing_the_outcome_of_a_failure_is_caught LosesOutcomes,
}
