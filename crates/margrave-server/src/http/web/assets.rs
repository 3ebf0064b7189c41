//! The style sheet, the script and the mark, compiled into the program.
//!
//! Their addresses carry a digest of their bytes, so that a browser may keep them for ever and still never
//! shows an old one after an update.

use std::io::Write as _;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use margrave_core::digest::Digest;

use super::error::PageError;

pub(crate) struct Asset {
    name: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
    /// The same, smaller; nothing of it is a secret, so that compressing it tells nobody anything. Pages are not compressed:
    /// they hold the session's mark beside what others typed.
    compressed: Bytes,
    /// Where pages find it.
    pub(crate) path: String,
}

/// Put into every page, so that icons need no request of their own.
pub(crate) const SPRITE: &str = include_str!("../../../assets/icons.svg");

pub(crate) static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("margrave.css", "text/css; charset=utf-8", include_bytes!("../../../assets/margrave.css"))
});
pub(crate) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("margrave.js", "text/javascript; charset=utf-8", include_bytes!("../../../assets/margrave.js"))
});
pub(crate) static MARK: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("mark.svg", "image/svg+xml", include_bytes!("../../../assets/mark.svg")));

impl Asset {
    fn new(name: &'static str, media_type: &'static str, bytes: &'static [u8]) -> Self {
        let digest = Digest::of(bytes).to_string();
        let short: String = digest.trim_start_matches("sha256:").chars().take(16).collect();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let compressed = encoder.write_all(bytes).and_then(|()| encoder.finish());
        let compressed = compressed.expect("memory can be written to").into();
        Asset { name, media_type, bytes, compressed, path: format!("/assets/{short}/{name}") }
    }
}

/// `GET /assets/{digest}/{name}`. Another digest is another version's asset and is not here.
pub(crate) async fn asset(
    Path((digest, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let asset = [&*STYLE, &*SCRIPT, &*MARK]
        .into_iter()
        .find(|asset| asset.name == name && asset.path == format!("/assets/{digest}/{name}"))
        .ok_or(PageError::NotFound)?;
    let kept = [
        (CONTENT_TYPE, asset.media_type),
        (CACHE_CONTROL, "public, max-age=31536000, immutable"),
        (VARY, "accept-encoding"),
    ];
    Ok(match takes_gzip(&headers) {
        true => (kept, [(CONTENT_ENCODING, "gzip")], asset.compressed.clone()).into_response(),
        false => (kept, asset.bytes).into_response(),
    })
}

/// Whether gzip is among what is accepted, and not with a weight of nothing (RFC 9110, 12.5.3).
fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight.unwrap_or(1.0) > 0.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_only_for_who_asks() {
        let takes = |value: &'static str| {
            let headers = [(ACCEPT_ENCODING, http::HeaderValue::from_static(value))];
            takes_gzip(&headers.into_iter().collect())
        };
        assert!(takes("gzip, deflate, br") && takes("br;q=1.0, GZIP;q=0.5"));
        assert!(!takes("br") && !takes("gzip;q=0") && !takes("") && !takes_gzip(&HeaderMap::new()));
    }

    /// What every page loads, as it goes over the line, with the icons that stand in it.
    #[test]
    fn what_a_page_loads_is_light() {
        let weight: usize = [&*STYLE, &*SCRIPT, &*MARK].iter().map(|asset| asset.compressed.len()).sum();
        assert!(weight + SPRITE.len() < 24 * 1024, "{weight} and {} bytes", SPRITE.len());
    }

    #[test]
    fn the_script_stays_small() {
        assert!(SCRIPT.bytes.len() <= 10 * 1024, "{} bytes", SCRIPT.bytes.len());
    }

    #[test]
    fn nothing_is_fetched_from_elsewhere() {
        for asset in [&*STYLE, &*SCRIPT, &*MARK] {
            let text = std::str::from_utf8(asset.bytes).unwrap().replace("http://www.w3.org/2000/svg", "");
            assert!(
                !text.contains("http:") && !text.contains("https:") && !text.contains("@import"),
                "{}",
                asset.name
            );
        }
    }
}
