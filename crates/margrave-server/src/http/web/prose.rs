//! A package's own texts as a page shows them: the few marks of Markdown that everybody uses, and the rest as it is written.
//!
//! Nothing of it becomes markup by itself: every piece is text that the template escapes, and links stay words.

use askama::Template;
use askama::filters::HtmlSafe;

#[derive(Template)]
#[template(path = "prose.html")]
pub(super) struct Prose {
    blocks: Vec<Block>,
}

impl HtmlSafe for Prose {}

#[derive(Debug, PartialEq, Eq)]
enum Block {
    /// The first is one below the heading of its card.
    Title(Vec<Piece>),
    Subtitle(Vec<Piece>),
    Paragraph(Vec<Piece>),
    List(Vec<Vec<Piece>>),
    Code(String),
}

#[derive(Debug, PartialEq, Eq)]
struct Piece {
    text: String,
    code: bool,
}

impl Prose {
    pub(super) fn of(text: &str) -> Self {
        let mut blocks = Vec::new();
        let mut paragraph = String::new();
        let mut code: Option<String> = None;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                end(&mut paragraph, &mut blocks);
                match code.take() {
                    Some(written) => blocks.push(Block::Code(written)),
                    None => code = Some(String::new()),
                }
                continue;
            }
            if let Some(code) = &mut code {
                code.push_str(line);
                code.push('\n');
                continue;
            }
            let line = line.trim();
            let level = line.bytes().take_while(|byte| *byte == b'#').count();
            let item = line.strip_prefix("- ").or_else(|| line.strip_prefix("* "));
            if line.is_empty() {
                end(&mut paragraph, &mut blocks);
            } else if level > 0 && line[level..].starts_with(' ') {
                end(&mut paragraph, &mut blocks);
                let title = pieces(line[level..].trim().trim_end_matches('#').trim_end());
                // No level is left out, whatever the text begins with.
                let titled = blocks.iter().any(|block| matches!(block, Block::Title(_)));
                blocks.push(if level > 1 && titled { Block::Subtitle(title) } else { Block::Title(title) });
            } else if let Some(item) = item {
                end(&mut paragraph, &mut blocks);
                match blocks.last_mut() {
                    Some(Block::List(items)) => items.push(pieces(item)),
                    _ => blocks.push(Block::List(vec![pieces(item)])),
                }
            } else {
                if !paragraph.is_empty() {
                    paragraph.push(' ');
                }
                paragraph.push_str(line);
            }
        }
        end(&mut paragraph, &mut blocks);
        // A fence that was never closed, where the text was cut.
        blocks.extend(code.map(Block::Code));
        Prose { blocks }
    }
}

fn end(paragraph: &mut String, blocks: &mut Vec<Block>) {
    if !paragraph.is_empty() {
        blocks.push(Block::Paragraph(pieces(&std::mem::take(paragraph))));
    }
}

/// What stands between backticks is code; a single one is a backtick.
fn pieces(text: &str) -> Vec<Piece> {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return vec![Piece { text: text.to_owned(), code: false }];
    }
    let piece = |(index, text): (usize, &&str)| Piece { text: (*text).to_owned(), code: index % 2 == 1 };
    parts.iter().enumerate().map(piece).filter(|piece| !piece.text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_marks_are_understood_and_the_rest_stays_text() {
        let text = "# Gate\n\nDecides, by `rules`,\nwhat passes.\n- one\n- two `b`\n\n## More\n```\nx <b>\n```\na ` b <script>";
        let shown = Prose::of(text).to_string();
        for part in [
            "<h3>Gate</h3>",
            "<p>Decides, by <code>rules</code>, what passes.</p>",
            "<li>one</li>",
            "<li>two <code>b</code></li>",
            "<h4>More</h4>",
            "x &#60;b&#62;",
            "<p>a ` b &#60;script&#62;</p>",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("<script>"), "{shown}");
    }

    #[test]
    fn every_text_is_shown() {
        for text in ["", "#", "#x", "``", "```\nnever closed", "- ", "\u{feff}# é", "*"] {
            Prose::of(text).to_string();
        }
        assert!(Prose::of("```\nnever closed").to_string().contains("never closed"));
    }
}
