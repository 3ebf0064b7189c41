//! Addresses of our own pages, and which addresses may be redirected to.
//!
//! Every identifier goes into one path segment with everything but letters, digits and `-._~:` encoded: a
//! device `gw/child` is `/devices/gw%2Fchild`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

pub(crate) fn device(id: &str) -> String {
    // `/devices/new` is the page that adds one; a device of that name is addressed in its long form.
    if id == "new" { "/devices/new:new".to_owned() } else { format!("/devices/{}", encode(id)) }
}

pub(crate) fn deployment(name: &str) -> String {
    format!("/deployments/{}", encode(name))
}

/// A commit, by its whole name.
pub(crate) fn commit(commit: &str) -> String {
    format!("/commits/{}", encode(commit))
}

pub(crate) fn package(id: &str, version: &str) -> String {
    format!("/packages/{}/{}", encode(id), encode(version))
}

pub(crate) fn deploy(package: &str, version: &str) -> String {
    format!("/deploy?package={}&version={}", encode(package), encode(version))
}

pub(crate) fn why(subject: &str) -> String {
    format!("/why?subject={}", encode(subject))
}

pub(crate) fn why_deployment(name: &str) -> String {
    format!("/why?kind=deployment&subject={}", encode(name))
}

pub(crate) fn why_rollout(name: &str) -> String {
    format!("/why?kind=rollout&subject={}", encode(name))
}

pub(crate) fn why_intent() -> String {
    "/why?kind=intent".to_owned()
}

/// The form for when devices within reach talk and change.
pub(crate) fn schedule(reach: &str) -> String {
    format!("/settings/schedule?reach={}", encode(reach))
}

/// `next` if it leads to a page of ours, else the front page: a sign-in link must not be able to send
/// people to another site. Browsers read `//host` and `/\host` as other hosts and drop tabs and newlines.
pub(crate) fn local(next: Option<&str>) -> String {
    match next {
        Some(path)
            if path.starts_with('/')
                && !path[1..].starts_with(['/', '\\'])
                && path.len() <= 2000
                && path.bytes().all(|b| b.is_ascii_graphic() && b != b'\\') =>
        {
            path.to_owned()
        }
        _ => "/".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_with_slashes_colons_and_markup_stay_in_one_segment() {
        assert_eq!(device("gw/child"), "/devices/gw%2Fchild");
        assert_eq!(device("client:gw/child"), "/devices/client:gw%2Fchild");
        assert_eq!(device("new"), "/devices/new:new");
        assert_eq!(package("a", "<b>?"), "/packages/a/%3Cb%3E%3F");
    }

    #[test]
    fn redirects_stay_here() {
        for good in ["/", "/devices", "/devices/gw%2Fchild?x=1#y", "/why?subject=a"] {
            assert_eq!(local(Some(good)), good);
        }
        for bad in [
            "",
            "https://evil.example",
            "//evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "/\t/evil.example",
            "/\n/evil.example",
            "javascript:alert(1)",
            " /x",
            "/x\r\nset-cookie: a=b",
            "/é",
        ] {
            assert_eq!(local(Some(bad)), "/", "{bad:?}");
        }
        assert_eq!(local(None), "/");
    }
}
