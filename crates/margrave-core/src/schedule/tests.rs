use super::*;

fn at(text: &str) -> Moment {
    Moment(u64::try_from(text.parse::<Timestamp>().unwrap().as_millisecond()).unwrap())
}

fn weekly(text: &str) -> Weekly {
    text.parse().unwrap()
}

fn hours(texts: &[&str]) -> Schedule {
    Schedule { hours: texts.iter().map(|text| weekly(text)).collect(), ..Schedule::default() }
}

fn windows(texts: &[&str]) -> Schedule {
    Schedule { windows: Some(texts.iter().map(|text| weekly(text)).collect()), ..Schedule::default() }
}

#[test]
fn a_time_of_the_week_is_read_as_people_write_it_and_written_in_one_way() {
    for (text, written) in [
        ("mon-fri 06:00-22:00 Europe/Berlin", "mon-fri 06:00-22:00 Europe/Berlin"),
        ("Sat,SUN 00:00-24:00", "sat,sun 00:00-24:00 UTC"),
        ("daily 22:00-06:00", "daily 22:00-06:00 UTC"),
        ("mon-sun 22:00-06:00 UTC", "daily 22:00-06:00 UTC"),
        ("fri-mon 01:00-02:00 America/New_York", "mon,fri-sun 01:00-02:00 America/New_York"),
        ("  mon,wed,fri   10:00-11:00 ", "mon,wed,fri 10:00-11:00 UTC"),
    ] {
        assert_eq!(weekly(text).to_string(), written, "{text}");
        assert_eq!(weekly(written), weekly(text), "{text}");
        let kept = serde_json::to_string(&weekly(text)).unwrap();
        assert_eq!(serde_json::from_str::<Weekly>(&kept).unwrap(), weekly(text));
    }
    for bad in [
        "",
        "mon",
        "mon 06:00",
        "mon 6:00-7:00",
        "mon 06:00-25:00",
        "mon 24:00-06:00",
        "mon 06:00-24:01",
        "mon 06:60-07:00",
        "moon 06:00-07:00",
        "mon- 06:00-07:00",
        ", 06:00-07:00",
        "mon 06:00-07:00 Mars/Base",
        "mon 06:00-07:00 UTC x",
        "mon +6:00-07:00",
        "mon 06:00--7:00",
        "mon 06:00-07:00 ../../etc/passwd",
    ] {
        assert!(bad.parse::<Weekly>().is_err(), "{bad}");
    }
    let once = "2026-12-24T12:00Z/2026-12-27T06:00Z".parse::<Downtime>().unwrap();
    assert_eq!(once.to_string(), "2026-12-24T12:00:00Z/2026-12-27T06:00:00Z");
    for bad in [
        "2026-12-24T12:00Z",
        "2026-12-24T12:00Z/",
        "2026-12-27T12:00Z/2026-12-24T12:00Z",
        "2026-12-24T12:00Z/2030-12-24T12:00Z",
        "2026-12-24T12:00:00.100Z/2026-12-24T12:00:00.900Z",
        "1960-01-01T00:00Z/1960-01-02T00:00Z",
    ] {
        assert_eq!(bad.parse::<Downtime>(), Err(InvalidSpan::Interval), "{bad}");
    }
    // A wrong text is not said back at length.
    let long = format!("mon 06:00-07:00 {}", "x".repeat(10_000));
    assert!(long.parse::<Weekly>().unwrap_err().to_string().len() < 200);
}

#[test]
fn hours_open_and_close_also_over_midnight() {
    let day = hours(&["mon-fri 06:00-22:00 UTC"]);
    let (opens, closes) = (Some(at("2026-11-16T06:00Z")), Some(at("2026-11-16T22:00Z")));
    assert_eq!(day.contact(at("2026-11-16T05:59:59Z")), Gate::Closed(opens));
    assert_eq!(day.contact(at("2026-11-16T06:00Z")), Gate::Open(closes));
    assert_eq!(day.contact(at("2026-11-16T22:00Z")), Gate::Closed(Some(at("2026-11-17T06:00Z"))));
    assert_eq!(day.contact(at("2026-11-21T12:00Z")), Gate::Closed(Some(at("2026-11-23T06:00Z"))), "Saturday");
    let night = windows(&["sun 22:00-04:00 UTC"]);
    assert_eq!(night.change(at("2026-11-16T03:00Z")), Gate::Open(Some(at("2026-11-16T04:00Z"))), "of Sunday");
    assert_eq!(night.change(at("2026-11-17T03:00Z")), Gate::Closed(Some(at("2026-11-22T22:00Z"))));
    // Two that touch are one.
    let both = hours(&["mon 06:00-12:00", "mon 10:00-14:00"]);
    assert_eq!(both.contact(at("2026-11-16T11:00Z")), Gate::Open(Some(at("2026-11-16T14:00Z"))));
    assert_eq!(Schedule::default().contact(at("2026-11-16T11:00Z")), Gate::Open(None));
    assert_eq!(Schedule::default().change(at("2026-11-16T11:00Z")), Gate::Open(None));
}

#[test]
fn hours_stay_where_people_live_when_daylight_saving_changes() {
    // Berlin: +1 until 29 March 2026 02:00, then +2; back on 25 October 03:00.
    let morning = hours(&["daily 06:00-07:00 Europe/Berlin"]);
    assert_eq!(morning.contact(at("2026-03-28T05:30Z")), Gate::Open(Some(at("2026-03-28T06:00Z"))));
    assert_eq!(morning.contact(at("2026-03-29T04:30Z")), Gate::Open(Some(at("2026-03-29T05:00Z"))));
    assert_eq!(morning.contact(at("2026-10-25T05:30Z")), Gate::Open(Some(at("2026-10-25T06:00Z"))));
    // In the hour that is left out: it is the one after it.
    let gap = windows(&["daily 02:10-02:50 Europe/Berlin"]);
    assert_eq!(gap.change(at("2026-03-29T00:00Z")), Gate::Closed(Some(at("2026-03-29T01:10Z"))));
    assert!(gap.change(at("2026-03-29T01:30Z")).is_open());
    // Only its beginning is left out: it is there all the same.
    let half = windows(&["daily 02:30-03:30 Europe/Berlin"]);
    assert_eq!(half.change(at("2026-03-29T01:15Z")), Gate::Open(Some(at("2026-03-29T01:30Z"))));
    // In the hour that comes twice: once.
    assert_eq!(gap.change(at("2026-10-25T00:10Z")), Gate::Open(Some(at("2026-10-25T00:50Z"))));
    assert!(!gap.change(at("2026-10-25T01:30Z")).is_open());
    // The night that is an hour longer is one window all the same.
    let night = windows(&["daily 22:00-05:00 Europe/Berlin"]);
    assert_eq!(night.change(at("2026-10-24T21:00Z")), Gate::Open(Some(at("2026-10-25T04:00Z"))));
}

#[test]
fn two_lists_of_windows_meet_or_never_do() {
    let now = at("2026-11-17T12:00Z");
    let check = |one: &[&str], other: &[&str], expected: bool| {
        let read = |texts: &[&str]| texts.iter().map(|text| weekly(text)).collect::<Vec<_>>();
        let (one, other) = (read(one), read(other));
        assert_eq!(meet(&one, &other, now), expected);
        assert_eq!(meet(&other, &one, now), expected);
        assert_eq!(meet(&one, &other, Moment(0)), expected, "by a clock that was never set");
    };
    check(&["sun 03:00-04:00"], &["sun 03:59-05:00"], true);
    check(&["sun 03:00-04:00"], &["sun 04:00-05:00"], false);
    check(&["sun 22:00-04:00"], &["mon 03:00-05:00"], true);
    check(&["sat 03:00-04:00", "daily 10:00-11:00"], &["sun 03:00-04:00", "tue 10:30-10:31"], true);
    check(&["sat 03:00-04:00"], &["sun 03:00-04:00"], false);
    check(&["sat 03:00-04:00"], &[], false);
    // Only while it is summer in Berlin.
    check(&["sun 03:00-04:00 Europe/Berlin"], &["sun 01:00-02:00 UTC"], true);
}

#[test]
fn nobody_is_tried_in_a_known_downtime() {
    let schedule = Schedule {
        downtime: vec![
            "2026-12-24T12:00Z/2026-12-27T06:00Z".parse().unwrap(),
            "sat 20:00-22:00".parse().unwrap(),
        ],
        ..hours(&["mon-sat 06:00-22:00"])
    };
    assert_eq!(schedule.contact(at("2026-12-24T10:00Z")), Gate::Open(Some(at("2026-12-24T12:00Z"))));
    // It ends on a Sunday, when the hours are closed as well.
    assert_eq!(schedule.contact(at("2026-12-25T10:00Z")), Gate::Closed(Some(at("2026-12-28T06:00Z"))));
    assert_eq!(schedule.down_until(at("2026-12-25T10:00Z")), Some(at("2026-12-27T06:00Z")));
    assert_eq!(schedule.contact(at("2026-12-19T20:30Z")), Gate::Closed(Some(at("2026-12-21T06:00Z"))));
    assert_eq!(schedule.down_until(at("2026-12-23T10:00Z")), None);
}

#[test]
fn without_a_clock_a_device_may_talk_and_changes_nothing() {
    let schedule =
        Schedule { windows: Some(vec![weekly("daily 00:00-24:00")]), ..hours(&["mon 06:00-07:00"]) };
    let awake = Moment(60_000);
    assert_eq!(schedule.contact(awake), Gate::Open(None));
    assert_eq!(schedule.change(awake), Gate::Closed(None));
    assert_eq!(Schedule::default().change(awake), Gate::Open(None));
    assert!(schedule.contact(Moment(u64::MAX)).is_open(), "no date at all");
    assert_eq!(windows(&[]).change(at("2026-12-19T20:30Z")), Gate::Closed(None), "none that is understood");
}

#[test]
fn a_schedule_that_silences_a_device_for_ever_is_refused_and_not_followed() {
    let silent = Schedule { downtime: vec!["daily 00:00-24:00".parse().unwrap()], ..Schedule::default() };
    assert_eq!(silent.clone().checked(), Err(InvalidSchedule::Silent));
    assert!(silent.contact(at("2026-12-19T20:30Z")).is_open());
    let opposed =
        Schedule { downtime: vec!["mon 06:00-08:00".parse().unwrap()], ..hours(&["mon 06:30-07:00"]) };
    assert_eq!(opposed.checked(), Err(InvalidSchedule::Silent));
    let narrow =
        Schedule { downtime: vec!["mon 06:00-08:00".parse().unwrap()], ..hours(&["mon 06:30-08:10"]) };
    assert!(narrow.checked().is_ok());
    let seconds = Duration::from_secs;
    let every = |every: Duration| Schedule { poll: Some(Poll { every, wait: false }), ..Schedule::default() };
    for (poll, fine) in [(4, false), (5, true), (12 * 3600, true), (12 * 3600 + 1, false)] {
        assert_eq!(every(seconds(poll)).checked().is_ok(), fine, "{poll}");
    }
    assert_eq!(every(Duration::from_millis(5500)).checked(), Err(InvalidSchedule::Poll));
    assert_eq!(hours(&["mon 06:00-07:00"; 33]).checked(), Err(InvalidSchedule::TooMany));
    let hold = |hold_max| Schedule { hold_max: Some(hold_max), ..Schedule::default() };
    assert!(hold(seconds(0)).checked().is_ok() && hold(HOLD_MAX_MAX + seconds(1)).checked().is_err());
}

mod at_any_time {
    use super::*;
    use proptest::prelude::*;

    fn span() -> impl Strategy<Value = String> {
        let zone =
            prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]);
        (1u8..128, 0u16..1440, 0u16..=1440, zone).prop_map(|(days, from, to, zone)| {
            Weekly { days, from: Minute(from), to: Minute(to), zone: TimeZone::get(zone).unwrap() }
                .to_string()
        })
    }

    proptest! {
        #[test]
        fn a_gate_keeps_what_it_says(texts in prop::collection::vec(span(), 1..4), second in 1_577_836_800u64..2_000_000_000) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let now = Moment(second * 1000);
            let schedule = hours(&texts);
            match schedule.contact(now) {
                Gate::Closed(Some(opens)) => {
                    prop_assert!(opens > now && opens.since(now) <= Duration::from_secs(9 * 24 * 3600));
                    prop_assert!(schedule.contact(opens).is_open());
                    prop_assert!(!schedule.contact(Moment(opens.0 - 1)).is_open());
                }
                Gate::Open(Some(closes)) => {
                    prop_assert!(closes > now);
                    prop_assert!(schedule.contact(Moment(closes.0 - 1)).is_open());
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
