//! What a package looks like: its own icon, or its first letter.

use askama::Template;
use askama::filters::HtmlSafe;
use margrave_wire::operator;

use super::link;

#[derive(Template)]
#[template(
    ext = "html",
    source = r#"{% if let Some(path) = path %}<img class="logo" src="{{ path }}" alt="" width="48" height="48" loading="lazy">{% else %}<svg class="initial" viewBox="0 0 48 48" aria-hidden="true"><rect width="48" height="48"/><text x="24" y="25">{{ letter }}</text></svg>{% endif %}"#
)]
pub(super) struct Logo {
    path: Option<String>,
    letter: String,
}

impl HtmlSafe for Logo {}

impl Logo {
    pub(super) fn of(package: &operator::Package) -> Self {
        let path =
            package.icon.as_ref().map(|_| format!("{}/icon", link::package(&package.id, &package.version)));
        let letter =
            package.name.chars().find(|c| c.is_alphanumeric()).unwrap_or('?').to_uppercase().collect();
        Logo { path, letter }
    }
}

/// The media type to serve an icon as, or `None` for what is no picture. Names are not trusted: a browser is
/// told what the bytes are, and never to guess.
pub(super) fn media_type(bytes: &[u8]) -> Option<&'static str> {
    let head = &bytes[..bytes.len().min(1024)];
    match head {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => {
            let text = String::from_utf8_lossy(head);
            text.trim_start_matches('\u{feff}').trim_start().starts_with('<').then_some(())?;
            text.contains("<svg").then_some("image/svg+xml")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pictures_are_served_as_icons() {
        assert_eq!(media_type(b"\x89PNG\r\n\x1a\n"), Some("image/png"));
        assert_eq!(media_type(b"<?xml version='1.0'?><svg xmlns='x'/>"), Some("image/svg+xml"));
        assert_eq!(media_type(b"<html><script>alert(1)</script>"), None);
        assert_eq!(media_type(b""), None);
    }
}
