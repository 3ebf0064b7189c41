//! `WWW-Authenticate`: what a registry wants to see before it answers.

use std::collections::BTreeMap;

/// One way to authenticate that the registry offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    /// Fetch a token at `realm`, naming `service`.
    Bearer {
        realm: String,
        service: Option<String>,
    },
}

/// The challenges of all header values that we understand, in their order.
pub(crate) fn parse<'a>(values: impl Iterator<Item = &'a str>) -> Vec<Challenge> {
    values.flat_map(parse_one).collect()
}

fn parse_one(value: &str) -> Vec<Challenge> {
    let mut found: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    for piece in split_commas(value) {
        let piece = piece.trim();
        // "Bearer realm=…" begins a challenge, "service=…" continues one, "Negotiate" is one.
        let (scheme, parameter) = match piece.split_once(char::is_whitespace) {
            Some((scheme, rest)) if !scheme.contains('=') => (Some(scheme), rest.trim()),
            None if !piece.contains('=') => (Some(piece), ""),
            _ => (None, piece),
        };
        if let Some(scheme) = scheme {
            found.push((scheme.to_ascii_lowercase(), BTreeMap::new()));
        }
        if let (Some((_, parameters)), Some((key, value))) = (found.last_mut(), parameter.split_once('=')) {
            parameters.insert(key.trim().to_ascii_lowercase(), unquoted(value.trim()));
        }
    }
    found
        .into_iter()
        .filter_map(|(scheme, mut parameters)| match scheme.as_str() {
            "basic" => Some(Challenge::Basic),
            "bearer" => Some(Challenge::Bearer {
                realm: parameters.remove("realm")?,
                service: parameters.remove("service"),
            }),
            _ => None,
        })
        .collect()
}

/// Splits at commas that are not in quotes: a scope has commas of its own.
fn split_commas(text: &str) -> Vec<&str> {
    let (mut pieces, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => {
                pieces.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&text[start..]);
    pieces
}

fn unquoted(text: &str) -> String {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        return text.to_owned();
    };
    let mut plain = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        plain.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn challenges_of_real_registries() {
        let bearer = |realm: &str, service: Option<&str>| Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
        };
        for (value, wanted) in [
            ("Basic realm=\"margrave\"", vec![Challenge::Basic]),
            ("basic", vec![Challenge::Basic]),
            (
                "Bearer realm=\"https://auth.example/token\",service=\"registry.example\",scope=\"repository:a/b:pull,push\"",
                vec![bearer("https://auth.example/token", Some("registry.example"))],
            ),
            (
                "Bearer realm=\"https://a.example/t?x=\\\"1\\\"\"",
                vec![bearer("https://a.example/t?x=\"1\"", None)],
            ),
            (
                "Negotiate, Basic realm=\"x\", Bearer realm=https://a.example/t",
                vec![Challenge::Basic, bearer("https://a.example/t", None)],
            ),
            ("Bearer service=\"no realm\"", vec![]),
            ("Digest realm=\"x\"", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(parse([value].into_iter()), wanted, "{value}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(value in "\\PC{0,60}|[a-zA-Z =\",\\\\]{0,60}") {
            let _ = parse([value.as_str()].into_iter());
        }
    }
}
