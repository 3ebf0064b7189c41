//! Months without a server.

use margrave_world::ninety_days;

#[test]
fn ninety_days_offline_restart_nothing_and_end_with_one_poll() {
    let (outcome, lived) = ninety_days().unwrap();
    assert_eq!(outcome.violation, None, "{}", outcome.story.join("\n"));
    let lived = lived.expect("what broke no promise has figures");
    eprintln!("{lived:#?}");
    assert_eq!(lived.restarts_on_return, 0);
    assert_eq!(lived.polls_to_accept, [1, 1]);
    assert!(lived.converged_after <= lived.converged_within, "{lived:?}");
    assert!(lived.in_order && lived.reports_on_return > 0);
    // Somebody stopped one container on each device; the rest was never touched.
    assert_eq!(lived.repairs, 2);
    assert!(lived.reboots >= 20 && lived.agent_deaths >= 30 && lived.container_crashes >= 4);
}
