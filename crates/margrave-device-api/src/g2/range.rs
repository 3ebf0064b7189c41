//! Which part of an artifact is wanted, by somebody whose download was cut. Pure.

use std::ops::Range;

use http::HeaderMap;
use http::header::{IF_RANGE, RANGE};
use margrave_core::digest::Digest;

/// The one part that is wanted of `size` bytes. `None` means the whole, as HTTP allows for everything else: several
/// parts at once, what cannot be read, what lies outside, and another tag than ours (RFC 9110, 13.1.5 and 14.2).
pub(super) fn wanted(headers: &HeaderMap, digest: &Digest, size: usize) -> Option<Range<usize>> {
    let text = headers.get(RANGE)?.to_str().ok()?;
    if let Some(held) = headers.get(IF_RANGE)
        && held.as_bytes() != format!("\"{digest}\"").as_bytes()
    {
        return None;
    }
    let (first, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // More than fits is more than there is.
        digits.then(|| text.parse::<usize>().unwrap_or(usize::MAX))
    };
    let part = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Some(first), None) if last.is_empty() => first..size,
        (None, Some(count)) if first.is_empty() => size.saturating_sub(count)..size,
        _ => return None,
    };
    (part.start < part.end).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_is_given_and_everything_else_is_the_whole() {
        let digest = Digest::of(b"x");
        let check = |range: &str, tag: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, range.parse().unwrap());
            if let Some(tag) = tag {
                headers.insert(IF_RANGE, tag.parse().unwrap());
            }
            wanted(&headers, &digest, 100)
        };
        for (range, part) in [
            ("bytes=0-0", 0..1),
            ("bytes=10-", 10..100),
            ("bytes=10-19", 10..20),
            ("bytes=99-99", 99..100),
            ("bytes=90-1000", 90..100),
            ("bytes=0-99999999999999999999999", 0..100),
            ("bytes=-10", 90..100),
            ("bytes=-1000", 0..100),
            (" bytes=1-2 ", 1..3),
        ] {
            assert_eq!(check(range, None), Some(part.clone()), "{range}");
            assert_eq!(check(range, Some(&format!("\"{digest}\""))), Some(part), "{range}");
            // A weak tag says nothing about bytes, and a date is no tag.
            for tag in [format!("W/\"{digest}\""), "\"other\"".into(), "Mon, 16 Nov 2026 04:00:00 GMT".into()]
            {
                assert_eq!(check(range, Some(&tag)), None, "{range} {tag}");
            }
        }
        for range in [
            "bytes=100-",
            "bytes=-0",
            "bytes=-",
            "bytes=5-4",
            "bytes=0-1,3-4",
            "bytes=a-b",
            "bytes=+1-2",
            "lines=0-1",
            "bytes",
            "",
        ] {
            assert_eq!(check(range, None), None, "{range}");
        }
        assert_eq!(wanted(&HeaderMap::new(), &digest, 100), None);
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, "bytes=0-".parse().unwrap());
        assert_eq!(wanted(&headers, &digest, 0), None, "nothing has no part");
    }
}
