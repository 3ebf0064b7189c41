//! What a client says it holds, in `If-None-Match`.

use margrave_core::digest::Digest;

/// The entity tag of what has this digest (MI-G2-045).
pub fn tag(digest: &Digest) -> String {
    ["\"sha256:", &digest.hex(), "\""].concat()
}

/// The tag with the first digits of the digest only, which our server takes for the whole one: the other 40 are a
/// ninth of what an unchanged poll costs on a metered line. 96 bits are enough to tell one's own manifests apart;
/// what arrives is verified with all 256.
pub fn short_tag(digest: &Digest) -> String {
    ["\"sha256:", &digest.hex()[..SHORT_DIGITS], "\""].concat()
}

const SHORT_DIGITS: usize = 24;
const SHORT_BYTES: usize = SHORT_DIGITS / 2;

/// Something that a client holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validator {
    Whole(Digest),
    Short([u8; SHORT_BYTES]),
}

impl Validator {
    /// From a tag with its quotes. A tag that is none of ours stands for nothing that we could have.
    pub fn parse(tag: &str) -> Option<Validator> {
        let text = tag.strip_prefix('"')?.strip_suffix('"')?;
        if text.len() != "sha256:".len() + SHORT_DIGITS {
            return Digest::parse(text).ok().map(Validator::Whole);
        }
        let padded = Digest::parse(&format!("{text:0<71}")).ok()?;
        padded.as_bytes().first_chunk().copied().map(Validator::Short)
    }

    pub fn stands_for(&self, digest: &Digest) -> bool {
        match self {
            Validator::Whole(held) => held == digest,
            Validator::Short(held) => digest.as_bytes().starts_with(held),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mi_g2_045_both_tags_stand_for_their_digest_and_for_no_other() {
        let (digest, other) = (Digest::of(b"x"), Digest::of(b"y"));
        for tag in [tag(&digest), short_tag(&digest)] {
            let read = Validator::parse(&tag).unwrap();
            assert!(read.stands_for(&digest) && !read.stands_for(&other), "{tag}");
        }
        assert_eq!(short_tag(&digest).len(), tag(&digest).len() - 40);
    }

    #[test]
    fn what_is_neither_stands_for_nothing() {
        let hex = Digest::of(b"x").hex();
        for text in [
            String::new(),
            "\"".into(),
            "\"\"".into(),
            format!("sha256:{hex}"),
            format!("\"{hex}\""),
            format!("\"sha256:{}\"", &hex[..23]),
            format!("\"sha256:{}\"", &hex[..25]),
            format!("\"sha256:{}\"", &hex[..63]),
            format!("\"sha512:{}\"", &hex[..24]),
            format!("\"sha256:{}\"", hex[..24].to_uppercase()),
            format!("\"sha256:{}\u{e9}\"", &hex[..22]),
        ] {
            assert_eq!(Validator::parse(&text), None, "{text}");
        }
    }
}
