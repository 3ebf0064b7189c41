//! Every deliberate bug is caught, by the check that is there for it.

use margrave_world::{CHECKS, SABOTAGES, Sabotage, live, run};

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
            for sabotage in SABOTAGES {
                assert!(tested.contains(sabotage), "{sabotage:?} has no test");
            }
        }
    };
}

#[test]
fn every_check_has_its_bug() {
    for check in CHECKS {
        let bites = SABOTAGES.iter().any(|sabotage| sabotage.caught_by() == *check);
        assert!(bites, "nothing shows that {} is watched", check.name());
    }
}

/// What is said again every day would hide in most worlds that it was lost once.
#[test]
fn a_report_that_is_lost_once_is_missed_in_most_worlds() {
    const SEEDS: u64 = 24;
    let summary = run(0..SEEDS, Some(Sabotage::LosesGoodNews), 2, None, usize::MAX, &|_, _| ()).unwrap();
    let violations = summary.failed.iter().filter_map(|outcome| outcome.violation.as_ref());
    let missed =
        violations.filter(|violation| violation.check == Sabotage::LosesGoodNews.caught_by()).count();
    assert!(missed as u64 * 2 > SEEDS, "{missed} of {SEEDS}");
}

caught! {
    acting_before_writing_is_caught ActsBeforeWriting,
    running_what_is_unverified_is_caught RunsUnverified,
    an_update_that_deletes_volumes_is_caught UpdateDeletesVolumes,
    restarting_on_reconnect_is_caught RestartsOnReconnect,
    starting_beside_the_old_one_is_caught StartsBesideOld,
    relabelling_the_old_one_is_caught RelabelsOld,
    claiming_that_it_is_installed_is_caught ClaimsInstalled,
    a_ledger_that_forgets_is_caught LedgerForgets,
    a_replay_under_a_new_number_is_caught ReplayRenumbered,
    dropping_reports_is_caught DropsReports,
    losing_good_news_once_is_caught LosesGoodNews,
    a_late_report_under_a_new_number_is_caught LateReportRenumbered,
    a_state_that_skips_is_caught StateSkips,
    hiding_what_was_to_be_removed_is_caught HidesRemoved,
    a_refusal_that_deletes_is_caught RefusalDeletes,
    stopping_on_expiry_is_caught StopsOnExpiry,
    losing_what_became_of_something_is_caught LosesOutcomes,
    a_server_that_forgets_is_caught ServerForgets,
    dropping_the_last_report_of_something_is_caught DropsDeaths,
    never_going_back_is_caught NeverGoesBack,
    a_server_that_fails_is_caught ServerFails,
    changing_outside_the_window_is_caught ChangesAnyway,
    forgetting_who_holds_is_caught HoldsForgotten,
    forgetting_what_was_given_up_is_caught GivenUpForgotten,
    talking_when_nobody_may_is_caught TalksAnyway,
    holding_for_ever_is_caught HoldsForEver,
    repairing_what_is_to_be_left_is_caught RepairsAnyway,
    losing_that_a_first_install_failed_is_caught LosesFailures,
    imagining_that_something_recovered_is_caught ImaginesRecovery,
    imagining_that_something_runs_is_caught ImaginesRunning,
    resuming_what_was_stopped_is_caught ResumesAnyway,
    rollouts_that_stand_still_are_caught RolloutsStandStill,
    a_newer_agent_that_reads_like_the_older_one_is_caught ReplacedUnderstandsNoMore,
    blaming_an_update_for_an_engine_that_is_away_is_caught BlamesTheUpdate,
    reporting_installed_without_a_document_is_caught KeepsTheDocumentBack,
}
