//! The texts that a package brings for people: what it is, what is new, and under which licence.

use margrave_core::id::{PackageId, PackageVersion};
use margrave_wire::operator;

use super::{Error, Fleet};

/// More than anybody reads on a page; the whole file is in the package.
const TEXT_BYTES_MAX: usize = 64 * 1024;

impl Fleet {
    /// A file that is missing, or no text, is left out: it does not stop an application from running.
    pub async fn package_texts(
        &self,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<operator::PackageTexts, Error> {
        let entry = self.entry(id, version).await?;
        let entry = entry.ok_or_else(|| Error::not_found(format!("package {id} {version}")))?;
        let catalog = &entry.package.catalog;
        let text = async |path: &Option<String>| {
            let Some(path) = path else { return Ok(None) };
            let found = self.store.package_resource(id, version, path).await?;
            Ok::<_, Error>(found.and_then(|resource| text_of(path, &resource.bytes)))
        };
        Ok(operator::PackageTexts {
            description: text(&catalog.description_file).await?,
            release_notes: text(&catalog.release_notes).await?,
            license: text(&catalog.license_file).await?,
        })
    }
}

/// The beginning of a file, if it is text.
fn text_of(path: &str, bytes: &[u8]) -> Option<operator::PackageText> {
    let truncated = bytes.len() > TEXT_BYTES_MAX;
    let head = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // Cut in the middle of a character by us, not by the vendor.
        Err(error) if truncated && error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if text.contains('\0') {
        return None;
    }
    let text = text.trim_start_matches('\u{feff}').chars();
    let text: String = text.filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    let text = text.trim_end().to_owned();
    (!text.is_empty()).then(|| operator::PackageText { path: path.to_owned(), text, truncated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_is_shown_and_only_so_much() {
        let shown = |bytes: &[u8]| text_of("x", bytes).map(|text| (text.text, text.truncated));
        assert_eq!(shown(b"# Hello\r\nworld\n\n"), Some(("# Hello\nworld".to_owned(), false)));
        assert_eq!(shown(b"\x1b[31mred"), Some(("[31mred".to_owned(), false)));
        assert_eq!(shown(b"\x89PNG\r\n"), None);
        assert_eq!(shown(b"a\0b"), None);
        assert_eq!(shown(b"  \n"), None);
        let long = "ä".repeat(TEXT_BYTES_MAX);
        let (text, truncated) = shown(format!("x{long}").as_bytes()).unwrap();
        assert!(truncated && text.len() <= TEXT_BYTES_MAX && text.ends_with('ä'));
    }
}
