//! A moment as it stands on a page.

use askama::Template;
use askama::filters::HtmlSafe;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Written in UTC; the page's script rewrites it in the viewer's zone and keeps UTC on hover.
#[derive(Template)]
#[template(
    ext = "html",
    source = r#"<time datetime="{{ iso }}" title="{{ utc }}"{% if ago %} data-ago{% endif %}>{{ utc }}</time>"#
)]
pub(crate) struct Stamp {
    iso: String,
    utc: String,
    ago: bool,
}

impl HtmlSafe for Stamp {}

impl Stamp {
    /// A point in time, from RFC 3339. What cannot be read is shown as it came.
    pub(crate) fn at(rfc3339: &str) -> Self {
        Stamp::new(rfc3339, false)
    }

    /// The same, as a distance from now ("3 min. ago").
    pub(crate) fn ago(rfc3339: &str) -> Self {
        Stamp::new(rfc3339, true)
    }

    fn new(rfc3339: &str, ago: bool) -> Self {
        match rfc3339.parse::<Timestamp>() {
            Ok(at) => {
                let utc = at.to_zoned(TimeZone::UTC).strftime("%-d %b %Y, %H:%M:%S UTC").to_string();
                // As every browser reads it, however it was written.
                Stamp { iso: at.to_string(), utc, ago }
            }
            Err(_) => Stamp { iso: rfc3339.to_owned(), utc: rfc3339.to_owned(), ago },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_readable_without_the_script() {
        assert_eq!(
            Stamp::at("2026-11-15T21:04:05Z").to_string(),
            r#"<time datetime="2026-11-15T21:04:05Z" title="15 Nov 2026, 21:04:05 UTC">15 Nov 2026, 21:04:05 UTC</time>"#
        );
    }

    #[test]
    fn an_unreadable_moment_is_shown_as_text_and_not_as_markup() {
        let shown = Stamp::ago("<b>later</b>").to_string();
        assert!(!shown.contains("<b>") && shown.contains("later"), "{shown}");
    }
}
