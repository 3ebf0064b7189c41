//! One page of a list that is at hand as a whole: so that no page grows with what there is.
//!
//! Devices are too many for that; their list is read page by page (`devices.rs`).

use askama::Template;
use askama::filters::HtmlSafe;

/// The way to the pages before and behind; nothing where there is only one.
#[derive(Template)]
#[template(
    ext = "html",
    source = r#"{% if pages > 1 %}<nav class="pages" aria-label="{{ what }}">{% if number > 1 %}<a class="button" href="{{ path }}{{ number - 1 }}{{ place }}">Previous page</a>{% endif %}{% if number < pages %}<a class="button" href="{{ path }}{{ number + 1 }}{{ place }}">Next page</a>{% endif %}<span class="muted small">Page {{ number }} of {{ pages }}</span></nav>{% endif %}"#
)]
pub(super) struct Pages {
    number: usize,
    pages: usize,
    /// What is listed, for who hears it.
    what: &'static str,
    /// Everything of the address before the number, and behind it.
    path: String,
    place: &'static str,
}

impl HtmlSafe for Pages {}

impl Pages {
    /// Leaves of a list what is on the page that was asked for, from 1. Who asks for one behind the last sees the last: what they
    /// looked at may have gone.
    pub(super) fn cut<T>(
        items: &mut Vec<T>,
        asked: Option<usize>,
        size: usize,
        what: &'static str,
        path: String,
    ) -> Self {
        let pages = items.len().div_ceil(size).max(1);
        let number = asked.unwrap_or(1).clamp(1, pages);
        items.truncate(number * size);
        items.drain(..(number - 1) * size);
        Pages { number, pages, what, path, place: "" }
    }

    /// The list stands further down on its page.
    pub(super) fn at(self, place: &'static str) -> Self {
        Pages { place, ..self }
    }

    pub(super) fn is_one(&self) -> bool {
        self.pages == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_cut_into_pages() {
        let cut = |length: usize, asked: Option<usize>| {
            let mut items: Vec<usize> = (0..length).collect();
            let pages = Pages::cut(&mut items, asked, 10, "Pages", "/x?page=".to_owned());
            (items.first().copied(), items.len(), pages.to_string().matches("href").count())
        };
        assert_eq!(cut(0, None), (None, 0, 0));
        assert_eq!(cut(10, Some(7)), (Some(0), 10, 0));
        assert_eq!(cut(11, None), (Some(0), 10, 1));
        assert_eq!(cut(25, Some(2)), (Some(10), 10, 2));
        assert_eq!(cut(25, Some(usize::MAX)), (Some(20), 5, 1));
        assert_eq!(cut(25, Some(0)), (Some(0), 10, 1));
    }
}
