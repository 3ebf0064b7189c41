//! The signatures of a request, as its headers state them.

use sfv::{BareItem, Dictionary, FieldType as _, InnerList, ListEntry, Parser};

use super::HEADER_BYTES_MAX;

/// A client makes one signature; proxies on the way may add theirs.
const SIGNATURE_COUNT_MAX: usize = 8;
/// All derived components and a dozen fields.
const COMPONENT_COUNT_MAX: usize = 20;
/// What the largest RSA key that we take makes.
const SIGNATURE_BYTES_MAX: usize = 1024;

/// One signature, not yet verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    pub label: String,
    /// The covered components by name, spelled as received.
    pub(super) components: Vec<String>,
    /// The covered components and all parameters, in the order received and with those we do not know: the
    /// value of `@signature-params`.
    pub(super) parameters: String,
    /// Seconds since 1970; `None` when absent or no whole number.
    pub created: Option<i64>,
    pub expires: Option<Expires>,
    pub keyid: Option<String>,
    pub alg: Option<String>,
    pub nonce: Option<String>,
    pub bytes: Vec<u8>,
}

/// When a signature stops to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expires {
    At(i64),
    /// Stated, but not as a time: nobody can tell that it still counts.
    Unreadable,
}

/// Why the headers hold no signature that could be verified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("the request is not signed; it needs the headers Signature-Input and Signature")]
    Missing,
    #[error("the header {0} has more than {HEADER_BYTES_MAX} bytes")]
    TooLong(&'static str),
    #[error("the header {0} is not a dictionary of structured fields (RFC 8941)")]
    Malformed(&'static str),
    #[error("the request has more than {SIGNATURE_COUNT_MAX} signatures")]
    TooMany,
    #[error("no label stands both in Signature-Input, with a list, and in Signature, with bytes")]
    Unpaired,
    #[error(
        "signature {0:?} covers more than {COMPONENT_COUNT_MAX} components, one twice, or one that has no name"
    )]
    Components(String),
}

/// The complete signatures of a request: those of the standard's own labels first, then in their order.
///
/// Both arguments are the header's lines, of which there may be several (RFC 9110, 5.3).
pub fn read<'h>(
    inputs: impl Iterator<Item = &'h [u8]>,
    signatures: impl Iterator<Item = &'h [u8]>,
) -> Result<Vec<Signature>, HeaderError> {
    let inputs = dictionary("Signature-Input", inputs)?;
    let signatures = dictionary("Signature", signatures)?;
    let (Some(inputs), Some(mut signatures)) = (inputs, signatures) else { return Err(HeaderError::Missing) };
    if inputs.len().max(signatures.len()) > SIGNATURE_COUNT_MAX {
        return Err(HeaderError::TooMany);
    }
    let mut complete = Vec::new();
    for (label, input) in inputs {
        let Some(ListEntry::Item(item)) = signatures.swap_remove(&label) else { continue };
        let (ListEntry::InnerList(input), BareItem::ByteSequence(bytes)) = (input, item.bare_item) else {
            continue;
        };
        if bytes.len() <= SIGNATURE_BYTES_MAX {
            complete.push(one(label.as_str().to_owned(), input, bytes)?);
        }
    }
    if complete.is_empty() {
        return Err(HeaderError::Unpaired);
    }
    // `sig1` is the standard's, `sig` the public reference client's; a proxy chooses another one.
    complete.sort_by_key(|signature| match signature.label.as_str() {
        "sig1" => 0,
        "sig" => 1,
        _ => 2,
    });
    Ok(complete)
}

/// All lines of a header as one dictionary; `None` when there is no line.
pub(super) fn dictionary<'h>(
    name: &'static str,
    lines: impl Iterator<Item = &'h [u8]>,
) -> Result<Option<Dictionary>, HeaderError> {
    let mut joined: Option<String> = None;
    for line in lines {
        let line = std::str::from_utf8(line).map_err(|_| HeaderError::Malformed(name))?;
        let length = joined.as_ref().map_or(0, String::len) + line.len();
        if length > HEADER_BYTES_MAX {
            return Err(HeaderError::TooLong(name));
        }
        match &mut joined {
            None => joined = Some(line.to_owned()),
            Some(joined) => {
                joined.push_str(", ");
                joined.push_str(line);
            }
        }
    }
    let Some(joined) = joined else { return Ok(None) };
    Parser::new(&joined).parse().map(Some).map_err(|_| HeaderError::Malformed(name))
}

fn one(label: String, input: InnerList, bytes: Vec<u8>) -> Result<Signature, HeaderError> {
    let mut components: Vec<String> = Vec::with_capacity(input.items.len());
    let wrong = |label: &str| HeaderError::Components(label.to_owned());
    if input.items.len() > COMPONENT_COUNT_MAX {
        return Err(wrong(&label));
    }
    for item in &input.items {
        let Some(name) = item.bare_item.as_string() else { return Err(wrong(&label)) };
        // Parameters of a component (`;sf`, `;key`, `;bs`, `;req`) belong to its name; we know none of them,
        // and a name with one is then a component that we do not know.
        let mut name = name.as_str().to_owned();
        for (key, _) in &item.params {
            name.push(';');
            name.push_str(key.as_str());
        }
        if name.is_empty() || components.iter().any(|other| other.eq_ignore_ascii_case(&name)) {
            return Err(wrong(&label));
        }
        components.push(name);
    }
    let text =
        |key: &str| input.params.get(key).and_then(|item| item.as_string()).map(|s| s.as_str().to_owned());
    let whole = |key: &str| input.params.get(key).and_then(|item| item.as_integer()).map(i64::from);
    let expires =
        input.params.get("expires").map(|_| whole("expires").map_or(Expires::Unreadable, Expires::At));
    let (created, keyid, alg, nonce) = (whole("created"), text("keyid"), text("alg"), text("nonce"));
    let parameters =
        vec![ListEntry::InnerList(input)].serialize().expect("a list with one member is not empty");
    Ok(Signature { label, components, parameters, created, expires, keyid, alg, nonce, bytes })
}

impl Signature {
    /// Whether it covers a component; fields in whatever spelling (AMB-06).
    pub fn covers(&self, component: &str) -> bool {
        self.components.iter().any(|covered| covered.eq_ignore_ascii_case(component))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(inputs: &[&str], signatures: &[&str]) -> Result<Vec<Signature>, HeaderError> {
        read(inputs.iter().map(|line| line.as_bytes()), signatures.iter().map(|line| line.as_bytes()))
    }

    #[test]
    fn mi_g1_061_both_headers_are_read_over_all_their_lines() {
        let input =
            r#"sig1=("@method" "@target-uri" "Content-Digest");created=1766000000;keyid="k";alg="ed25519""#;
        let found = check(&[r#"proxy=("@path");created=1"#, input], &["proxy=:AA==:, sig1=:AQID:"]).unwrap();
        assert_eq!(found.iter().map(|s| s.label.as_str()).collect::<Vec<_>>(), ["sig1", "proxy"]);
        let ours = &found[0];
        assert_eq!((ours.created, ours.bytes.as_slice()), (Some(1_766_000_000), &[1, 2, 3][..]));
        assert_eq!(
            (ours.keyid.as_deref(), ours.alg.as_deref(), ours.nonce.as_deref()),
            (Some("k"), Some("ed25519"), None)
        );
        assert!(ours.covers("@method") && ours.covers("content-digest") && !ours.covers("@path"));
    }

    #[test]
    fn parameters_stay_as_they_were_received() {
        let params = r#"("@method");created=5;x-ext=?0;keyid="k";nonce="n";tag=t;expires=9"#;
        let found = check(&[&format!("a={params}")], &["a=:AA==:"]).unwrap();
        assert_eq!(found[0].parameters, params);
        assert_eq!(found[0].expires, Some(Expires::At(9)));
    }

    #[test]
    fn mi_g1_068_any_label_counts_and_the_known_ones_first() {
        let labels = |inputs: &str, signatures: &str| {
            check(&[inputs], &[signatures])
                .map(|found| found.into_iter().map(|s| s.label).collect::<Vec<_>>())
        };
        assert_eq!(labels("my-own=()", "my-own=:AA==:").unwrap(), ["my-own"]);
        assert_eq!(
            labels("a=(), sig=(), sig1=()", "sig1=:AA==:, a=:AA==:, sig=:AA==:").unwrap(),
            ["sig1", "sig", "a"]
        );
        // One without its other half is as if it were not there.
        assert_eq!(labels("a=(), b=()", "b=:AA==:, c=:AA==:").unwrap(), ["b"]);
    }

    #[test]
    fn what_is_no_signature_says_so() {
        assert_eq!(check(&[], &["a=:AA==:"]), Err(HeaderError::Missing));
        assert_eq!(check(&["a=()"], &[]), Err(HeaderError::Missing));
        for (inputs, signatures) in
            [("a=()", "b=:AA==:"), ("a=1", "a=:AA==:"), ("a=()", "a=1"), ("", ""), ("a=()", "a")]
        {
            assert_eq!(check(&[inputs], &[signatures]), Err(HeaderError::Unpaired), "{inputs} {signatures}");
        }
        for bad in ["a=(", "A=()", "a=(\"x\"", "a=();created=", "a=() b=()", "é=()"] {
            assert_eq!(check(&[bad], &["a=:AA==:"]), Err(HeaderError::Malformed("Signature-Input")), "{bad}");
        }
        assert_eq!(check(&["a=()"], &["a=:A:"]), Err(HeaderError::Malformed("Signature")));
        for bad in ["a=(1)", r#"a=("x" "x")"#, r#"a=("x" "X")"#, r#"a=("")"#] {
            assert_eq!(check(&[bad], &["a=:AA==:"]), Err(HeaderError::Components("a".into())), "{bad}");
        }
        let many: Vec<String> = (0..30).map(|n| format!("\"x{n}\"")).collect();
        let many = format!("a=({})", many.join(" "));
        assert_eq!(check(&[&many], &["a=:AA==:"]), Err(HeaderError::Components("a".into())));
    }

    #[test]
    fn headers_are_bounded() {
        let long = format!("a=();x=\"{}\"", "y".repeat(HEADER_BYTES_MAX));
        assert_eq!(check(&[&long], &["a=:AA==:"]), Err(HeaderError::TooLong("Signature-Input")));
        let half = format!("a=();x=\"{}\"", "y".repeat(HEADER_BYTES_MAX / 2));
        assert_eq!(check(&[&half, &half], &["a=:AA==:"]), Err(HeaderError::TooLong("Signature-Input")));
        let many: Vec<String> = (0..=SIGNATURE_COUNT_MAX).map(|n| format!("a{n}=()")).collect();
        assert_eq!(check(&[&many.join(",")], &["a1=:AA==:"]), Err(HeaderError::TooMany));
        let large = format!("a=:{}:", "AAAA".repeat(SIGNATURE_BYTES_MAX / 3 + 1));
        assert_eq!(check(&["a=()"], &[&large]), Err(HeaderError::Unpaired));
    }

    #[test]
    fn times_are_whole_numbers_or_not_there() {
        let one = |params: &str| check(&[&format!("a=(){params}")], &["a=:AA==:"]).unwrap().remove(0);
        assert_eq!(one(";created=1.5").created, None);
        assert_eq!(one(";created=\"5\"").created, None);
        assert_eq!(one("").expires, None);
        assert_eq!(one(";expires=tomorrow").expires, Some(Expires::Unreadable));
        assert_eq!(one(";created=-5").created, Some(-5));
    }
}
