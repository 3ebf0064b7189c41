//! The style sheet, the script and the mark, compiled into the program.
//!
//! Their addresses carry a digest of their bytes, so that a browser may keep them for ever and still never
//! shows an old one after an update.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use margrave_core::digest::Digest;

use super::error::PageError;

pub(crate) struct Asset {
    name: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
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
        Asset { name, media_type, bytes, path: format!("/assets/{short}/{name}") }
    }
}

/// `GET /assets/{digest}/{name}`. Another digest is another version's asset and is not here.
pub(crate) async fn asset(Path((digest, name)): Path<(String, String)>) -> Result<Response, PageError> {
    let asset = [&*STYLE, &*SCRIPT, &*MARK]
        .into_iter()
        .find(|asset| asset.name == name && asset.path == format!("/assets/{digest}/{name}"))
        .ok_or(PageError::NotFound)?;
    let headers = [(CONTENT_TYPE, asset.media_type), (CACHE_CONTROL, "public, max-age=31536000, immutable")];
    Ok((headers, asset.bytes).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_stays_small() {
        assert!(SCRIPT.bytes.len() <= 6 * 1024, "{} bytes", SCRIPT.bytes.len());
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
