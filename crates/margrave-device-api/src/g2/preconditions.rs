//! What a request's headers ask for besides the resource: a media type, a newer version, patience.
//! Pure functions over headers; nobody here knows what is being served.

use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue};
use margrave_core::digest::Digest;
use margrave_wire::g2::validator::Validator;

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Whether the caller takes a representation of type `offered`, such as `application/json` (AMB-29).
///
/// The most specific range that matches decides, so `*/*, text/html;q=0` takes everything but HTML.
/// Parameters other than `q` are ignored: our types have none.
pub(crate) fn accepts(headers: &HeaderMap, offered: &str) -> bool {
    let mut lines = headers.get_all(ACCEPT).iter();
    // What nearly everybody sends.
    if let (Some(line), None) = (lines.next(), lines.next())
        && line.as_bytes() == offered.as_bytes()
    {
        return true;
    }
    let kind = offered.split('/').next().unwrap_or(offered);
    let mut asked = false;
    let mut best: Option<(u8, bool)> = None;
    for element in elements(headers, &ACCEPT) {
        asked = true;
        let mut parts = element.split(';').map(str::trim);
        let range = parts.next().unwrap_or_default();
        let specificity = if range.eq_ignore_ascii_case(offered) {
            3
        } else if range.strip_suffix("/*").is_some_and(|of| of.eq_ignore_ascii_case(kind)) {
            2
        } else if range == "*/*" {
            1
        } else {
            continue;
        };
        let wanted = parts.all(|parameter| match parameter.split_once('=') {
            Some((name, value)) if name.trim().eq_ignore_ascii_case("q") => {
                value.trim().parse::<f32>().is_ok_and(|quality| quality > 0.0)
            }
            _ => true,
        });
        if best.is_none_or(|(found, _)| specificity > found) {
            best = Some((specificity, wanted));
        }
    }
    !asked || best.is_some_and(|(_, wanted)| wanted)
}

/// Whether the caller names this very tag, and nothing else; a quick look before [`Tags`].
pub(crate) fn names(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let mut lines = headers.get_all(IF_NONE_MATCH).iter();
    lines.next() == Some(tag) && lines.next().is_none()
}

/// Whether the caller already holds the representation with this digest.
pub(crate) fn holds(headers: &HeaderMap, digest: &Digest) -> bool {
    Tags::of(headers).hold(digest)
}

/// What the caller already holds, as `If-None-Match` says (AMB-20): any member of the list counts, compared weakly
/// because a proxy may have added `W/`, and `*` stands for whatever there is. A tag that is none of ours is nothing
/// that we could have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tags {
    One(Validator),
    Some(Vec<Validator>),
    Any,
}

impl Tags {
    pub(crate) fn of(headers: &HeaderMap) -> Tags {
        let mut lines = headers.get_all(IF_NONE_MATCH).iter();
        if let (Some(line), None) = (lines.next(), lines.next())
            && let Some(held) = line.to_str().ok().and_then(Validator::parse)
        {
            return Tags::One(held);
        }
        let mut held = Vec::new();
        for element in elements(headers, &IF_NONE_MATCH) {
            if element == "*" {
                return Tags::Any;
            }
            held.extend(Validator::parse(element.strip_prefix("W/").unwrap_or(&element)));
        }
        Tags::Some(held)
    }

    pub(crate) fn hold(&self, digest: &Digest) -> bool {
        match self {
            Tags::One(held) => held.stands_for(digest),
            Tags::Some(held) => held.iter().any(|held| held.stands_for(digest)),
            Tags::Any => true,
        }
    }
}

/// How long the caller is willing to wait for a change, by RFC 7240's `wait`. The first one given counts;
/// a value that is no number of seconds is as if it were not there.
pub(crate) fn wait(headers: &HeaderMap) -> Option<Duration> {
    elements(headers, &PREFER).find_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        let seconds = value.trim().trim_matches('"');
        let digits = !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit());
        if !name.trim().eq_ignore_ascii_case("wait") || !digits {
            return None;
        }
        // More digits than a u64 holds still mean "long".
        Some(Duration::from_secs(seconds.parse().unwrap_or(u64::MAX)))
    })
}

/// Whether the body claims to be JSON. A body that claims nothing is given the benefit of the doubt.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else { return true };
    let media_type = value.to_str().ok().and_then(|text| text.split(';').next());
    media_type.is_some_and(|text| text.trim().eq_ignore_ascii_case("application/json"))
}

/// The members of a list header over all its lines, without looking for commas inside quotes.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = String> + 'a {
    headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok()).flat_map(|line| {
        let mut quoted = false;
        line.split(move |c: char| {
            quoted ^= c == '"';
            c == ',' && !quoted
        })
        .map(|element| element.trim().to_owned())
        .filter(|element| !element.is_empty())
        .collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: HeaderName, lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&name, HeaderValue::from_str(line).unwrap());
        }
        headers
    }

    const MANIFEST: &str = "application/vnd.margo.manifest.v1+json";

    #[test]
    fn amb_29_accept_is_negotiated() {
        let check = |lines: &[&str]| accepts(&with(ACCEPT, lines), MANIFEST);
        for good in [
            &[][..],
            &[""],
            &["*/*"],
            &["application/*"],
            &[MANIFEST],
            &["APPLICATION/vnd.margo.manifest.V1+json"],
            &["text/html, application/vnd.margo.manifest.v1+json;q=0.1"],
            &["text/html", "*/*;q=0.01"],
            &["application/json;q=0, */*"],
            &["application/vnd.margo.manifest.v1+json; charset=\"a,b\"; q=1"],
        ] {
            assert!(check(good), "{good:?}");
        }
        for bad in [
            &["application/json"][..],
            &["text/plain"],
            &["text/*"],
            &["*/*;q=0"],
            &["application/*;q=0.0, text/html"],
            &["*/*, application/vnd.margo.manifest.v1+json;q=0"],
            &["application/vnd.margo.manifest.v1+json;q=0, application/*;q=1"],
            &["*/*;q=yes"],
            &["nonsense"],
        ] {
            assert!(!check(bad), "{bad:?}");
        }
    }

    #[test]
    fn amb_20_if_none_match_knows_lists_weak_tags_and_the_star() {
        let digest = Digest::of(b"x");
        let check = |line: &str| holds(&with(IF_NONE_MATCH, &[line]), &digest);
        let tag = format!("\"{digest}\"");
        assert!(check(&tag));
        assert!(check(&format!("W/{tag}")));
        assert!(check(&format!("\"a,b\", W/\"c\" ,{tag}")));
        assert!(check("*"));
        assert!(holds(&with(IF_NONE_MATCH, &["\"other\"", &tag]), &digest));
        assert!(!check(&digest.to_string()));
        assert!(!check("\"other\""));
        assert!(!check(&format!("\"x, {digest}\"")));
        assert!(!holds(&HeaderMap::new(), &digest));
    }

    #[test]
    fn rfc_7240_wait_is_read_where_it_is_given() {
        let check = |lines: &[&str]| wait(&with(PREFER, lines)).map(|wait| wait.as_secs());
        assert_eq!(check(&["wait=10"]), Some(10));
        assert_eq!(check(&["respond-async, Wait = \"20\"; foo=1"]), Some(20));
        assert_eq!(check(&["return=minimal", "wait=0"]), Some(0));
        assert_eq!(check(&["wait=5, wait=9"]), Some(5));
        assert_eq!(check(&["wait=99999999999999999999999"]), Some(u64::MAX));
        for bad in ["wait", "wait=", "wait=-1", "wait=+1", "wait=1.5", "waiting=3", "wait=x"] {
            assert_eq!(check(&[bad]), None, "{bad}");
        }
    }

    #[test]
    fn amb_27_only_json_is_json() {
        assert!(is_json(&HeaderMap::new()));
        assert!(is_json(&with(CONTENT_TYPE, &["Application/JSON; charset=utf-8"])));
        for bad in ["text/plain", "application/json-patch+json", "application/jsonx", ""] {
            assert!(!is_json(&with(CONTENT_TYPE, &[bad])), "{bad}");
        }
    }
}
