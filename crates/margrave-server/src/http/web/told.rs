//! A sentence of the fleet as a page shows it: moments in the viewer's zone, and what stands between backticks as code.
//!
//! The fleet writes moments as RFC 3339 and in UTC, because logs, REST and the command line read the same sentences. Nothing of a
//! sentence becomes markup by itself: every piece is text that the template escapes.

use askama::Template;
use askama::filters::HtmlSafe;
use jiff::Timestamp;

use super::command::Words;
use super::stamp::Stamp;

#[derive(Template)]
#[template(
    ext = "html",
    source = "{% for piece in pieces %}{% match piece %}{% when Piece::Text(text) %}{{ text }}{% when Piece::Code(text) %}<code>{{ Words(text) }}</code>{% when Piece::At(at) %}{{ at }}{% endmatch %}{% endfor %}"
)]
pub(super) struct Told {
    pieces: Vec<Piece>,
}

impl HtmlSafe for Told {}

enum Piece {
    Text(String),
    Code(String),
    At(Stamp),
}

impl Told {
    pub(super) fn of(text: &str) -> Self {
        let parts: Vec<&str> = text.split('`').collect();
        // A single backtick is a backtick.
        let paired = !parts.len().is_multiple_of(2);
        let mut pieces = Vec::new();
        match paired {
            false => moments(text, &mut pieces),
            true => {
                for (index, part) in parts.into_iter().enumerate() {
                    match index % 2 {
                        0 => moments(part, &mut pieces),
                        _ => pieces.push(Piece::Code(part.to_owned())),
                    }
                }
            }
        }
        Told { pieces }
    }
}

/// Cuts a text at the moments in it.
fn moments(text: &str, pieces: &mut Vec<Piece>) {
    let mut rest = text;
    let mut from = 0;
    while let Some(found) = rest[from..].find(|c: char| c.is_ascii_digit()) {
        let begin = from + found;
        let Some(length) = moment(&rest[begin..]) else {
            // The next number may be one.
            let digits = rest[begin..].bytes().take_while(u8::is_ascii_digit).count();
            from = begin + digits;
            continue;
        };
        // From one moment to another is written with a slash.
        let between = match (pieces.last(), &rest[..begin]) {
            (Some(Piece::At(_)), "/") => " to ",
            (_, text) => text,
        };
        if !between.is_empty() {
            pieces.push(Piece::Text(between.to_owned()));
        }
        pieces.push(Piece::At(Stamp::at(&rest[begin..begin + length])));
        rest = &rest[begin + length..];
        from = 0;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
}

/// The length of the moment that a text begins with.
fn moment(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let shape = b"0000-00-00T00:00";
    let like = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        mark => byte == mark,
    };
    if bytes.len() <= shape.len() || !bytes.iter().zip(shape).all(like) {
        return None;
    }
    let written = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b':' | b'.');
    let mut end = shape.len() + bytes[shape.len()..].iter().take_while(|byte| written(byte)).count();
    end += match bytes.get(end)? {
        b'Z' => 1,
        b'+' | b'-' => 1 + bytes[end + 1..].iter().take_while(|byte| written(byte)).take(5).count(),
        _ => return None,
    };
    text[..end].parse::<Timestamp>().is_ok().then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, shown: &str) {
        // The element itself is the stamp's to prove.
        let told = Told::of(text).to_string();
        let told = told.replace("<time datetime=", "[").replace("</time>", "]");
        let mut plain = String::new();
        for part in told.split_inclusive('[') {
            plain.push_str(
                part.split_once('>').filter(|_| plain.ends_with('[')).map_or(part, |(_, rest)| rest),
            );
        }
        assert_eq!(plain, shown, "{text}");
    }

    #[test]
    fn moments_in_a_sentence_are_moments_and_backticks_are_code() {
        check(
            "held back until 2026-11-17T09:48:35Z, see `margrave why <x>`",
            "held back until [17 Nov 2026, 09:48:35 UTC], see <code>margrave why <span class=\"word\">&#60;x&#62;</span></code>",
        );
        check("at 2026-11-17T09:48:35.123+01:00.", "at [17 Nov 2026, 08:48:35 UTC].");
        check(
            "unreachable 2026-12-24T12:00Z/2026-12-27T06:00Z",
            "unreachable [24 Dec 2026, 12:00:00 UTC] to [27 Dec 2026, 06:00:00 UTC]",
        );
    }

    #[test]
    fn everything_else_stays_text() {
        for (text, shown) in [
            ("", ""),
            ("12", "12"),
            ("version 2026-11-17", "version 2026-11-17"),
            ("2026-99-17T09:48:35Z", "2026-99-17T09:48:35Z"),
            ("2026-11-17T09:48", "2026-11-17T09:48"),
            ("2026-11-17T09:48:35é", "2026-11-17T09:48:35é"),
            ("a ` b <b>", "a ` b &#60;b&#62;"),
            ("`2026-11-17T09:48:35Z`", "<code><span class=\"word\">2026-11-17T09:48:35Z</span></code>"),
        ] {
            check(text, shown);
        }
    }
}
