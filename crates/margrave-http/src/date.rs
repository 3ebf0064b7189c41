//! Dates as HTTP writes them: the one form that is sent, and the two that old servers still send (RFC 9110, 5.6.7).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The moment that a header's text names; `None` when it is no date. The day of the week is not looked at: it
/// says nothing that the date does not.
pub fn parse(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    if text.len() > 40 || !text.is_ascii() {
        return None;
    }
    match text.split_once(", ") {
        // Sun, 06 Nov 1994 08:49:37 GMT
        Some((_, rest)) if rest.contains(' ') && !rest.split(' ').next()?.contains('-') => {
            let mut words = rest.split(' ');
            let (day, month, year) = (words.next()?, words.next()?, words.next()?);
            moment(year.parse().ok()?, month, day, words.next()?, words.next() == Some("GMT"))
        }
        // Sunday, 06-Nov-94 08:49:37 GMT
        Some((_, rest)) => {
            let mut words = rest.split(' ');
            let mut date = words.next()?.split('-');
            let (day, month, year) = (date.next()?, date.next()?, date.next()?);
            let year: u64 = year.parse().ok().filter(|_| year.len() == 2)?;
            // Nobody sends dates of the last century any more.
            moment(2000 + year, month, day, words.next()?, words.next() == Some("GMT"))
        }
        // Sun Nov  6 08:49:37 1994
        None => {
            let mut words = text.split_ascii_whitespace().skip(1);
            let (month, day, time) = (words.next()?, words.next()?, words.next()?);
            moment(words.next()?.parse().ok()?, month, day, time, words.next().is_none())
        }
    }
}

fn moment(year: u64, month: &str, day: &str, time: &str, complete: bool) -> Option<SystemTime> {
    let number = |text: &str, max: u64| text.parse::<u64>().ok().filter(|n| *n <= max && text.len() <= 2);
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let day = number(day, 31).filter(|day| *day > 0)?;
    let mut parts = time.split(':');
    let hours = number(parts.next()?, 23)?;
    let minutes = number(parts.next()?, 59)?;
    // A leap second counts as the next.
    let seconds = number(parts.next()?, 60)?;
    if !complete || parts.next().is_some() || !(1970..=9999).contains(&year) {
        return None;
    }
    // Days since 1970 by the calendar of March-based years, in which a leap day is the last of its year.
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * shifted_year + shifted_year / 4 - shifted_year / 100
        + shifted_year / 400
        + (153 * shifted_month + 2) / 5
        + day
        - 1;
    let days = days.checked_sub(DAYS_BEFORE_1970)?;
    let since = Duration::from_secs(days * 86_400 + hours * 3600 + minutes * 60 + seconds);
    UNIX_EPOCH.checked_add(since)
}

/// From the first of March in year 0 to the first of January 1970.
const DAYS_BEFORE_1970: u64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        parse(text).map(|time| time.duration_since(UNIX_EPOCH).unwrap().as_secs())
    }

    #[test]
    fn all_three_forms_name_the_same_moment() {
        for text in [
            "Sun, 06 Nov 2094 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 2094",
            "  Sun, 06 Nov 2094 08:49:37 GMT ",
        ] {
            assert_eq!(seconds(text), Some(3_939_871_777), "{text}");
        }
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(seconds("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(seconds("Tue, 29 Feb 2028 23:59:60 GMT"), Some(1_835_481_600));
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "120",
            "tomorrow",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Now 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 06 Nov 99999 08:49:37 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
            "Sun Nov  6 08:49:37 2094 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT and a long text that goes on",
            "Sön, 06 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
