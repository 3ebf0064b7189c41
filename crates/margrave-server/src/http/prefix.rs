//! A path below which the device interface answers as well.
//!
//! The standard's conformance suites, and devices that were made for one product, ask for
//! `/v1alpha2/margo/api/v1/…` (ID-223). The prefix is taken off before anything looks at the path, so nobody
//! behind this knows of it; only problems name the path as the caller wrote it.

use std::fmt;
use std::str::FromStr;

use axum::extract::OriginalUri;
use http::Uri;
use http::uri::PathAndQuery;

/// Longer ones are a mistake, and every request carries it.
const LENGTH_MAX: usize = 200;

/// One or more segments, such as `/v1alpha2/margo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPrefix(String);

/// A text is not a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a path prefix; write it like /v1alpha2/margo: a slash before each segment, none at the end, and \
     segments of letters, digits, '-', '.', '_' and '~'"
)]
pub struct InvalidPrefix(String);

impl FromStr for PathPrefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let fits = |segment: &str| {
            !matches!(segment, "" | "." | "..")
                && segment
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~'))
        };
        match text.strip_prefix('/') {
            Some(rest) if text.len() <= LENGTH_MAX && rest.split('/').all(fits) => {
                Ok(PathPrefix(text.to_owned()))
            }
            _ => Err(InvalidPrefix(text.chars().take(LENGTH_MAX).collect())),
        }
    }
}

impl fmt::Display for PathPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PathPrefix {
    /// Takes the prefix off a request, which remembers the path as it came (`OriginalUri`).
    pub(crate) fn take_off<B>(&self, request: &mut http::Request<B>) {
        if let Some(stripped) = self.strip(request.uri()) {
            let original = std::mem::replace(request.uri_mut(), stripped);
            request.extensions_mut().insert(OriginalUri(original));
        }
    }

    /// A path without the prefix, if it has it.
    pub(crate) fn below<'a>(&self, path: &'a str) -> &'a str {
        path.strip_prefix(&self.0).filter(|below| below.starts_with('/')).unwrap_or(path)
    }

    /// The same URI without the prefix; `None` where it has none.
    fn strip(&self, uri: &Uri) -> Option<Uri> {
        let below = uri.path_and_query()?.as_str().strip_prefix(&self.0)?;
        if !below.starts_with('/') {
            return None;
        }
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(below).ok()?);
        Uri::from_parts(parts).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_path_is_a_prefix() {
        for good in ["/margo", "/v1alpha2/margo", "/a.b/~c/d_e-f"] {
            assert_eq!(good.parse::<PathPrefix>().unwrap().to_string(), good);
        }
        let long = format!("/{}", "x".repeat(LENGTH_MAX));
        for bad in ["", "/", "margo", "/margo/", "//margo", "/a/../b", "/a b", "/a?b", "/a%2Fb", "/ä", &long]
        {
            assert!(bad.parse::<PathPrefix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_prefix_is_taken_off_once_and_only_where_it_is_whole() {
        let prefix: PathPrefix = "/v1alpha2/margo".parse().unwrap();
        let check = |uri: &str| prefix.strip(&uri.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(
            check("/v1alpha2/margo/api/v1/deployments?x=1").as_deref(),
            Some("/api/v1/deployments?x=1")
        );
        assert_eq!(check("/v1alpha2/margo/v1alpha2/margo/x").as_deref(), Some("/v1alpha2/margo/x"));
        assert_eq!(check("https://h:1/v1alpha2/margo/x%2Fy").as_deref(), Some("https://h:1/x%2Fy"));
        for other in
            ["/api/v1/deployments", "/v1alpha2/margo", "/v1alpha2/margox/api", "/x/v1alpha2/margo/y", "/"]
        {
            assert_eq!(check(other), None, "{other}");
        }
    }
}
