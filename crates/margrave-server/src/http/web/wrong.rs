//! What the fleet says is wrong with a form, told at the field that it is about.

use askama::Template;
use askama::filters::HtmlSafe;

use super::error::sentence;
use crate::fleet::Error;

/// Sentences, each with the name of its field; what is about none of them stands above the form.
#[derive(Default)]
pub(super) struct Wrong(Vec<(&'static str, String)>);

impl Wrong {
    /// With one field.
    pub(super) fn at(field: &'static str, text: &str) -> Self {
        Wrong(vec![(field, sentence(text))])
    }

    /// `fields` are the form's, each with what the fleet calls it.
    pub(super) fn of(error: &Error, fields: &[(&'static str, &str)]) -> Self {
        let Error::Invalid(violations) = error else { return Wrong::at("", &error.to_string()) };
        let told = violations.iter().map(|violation| {
            let place = violation.place.trim_start_matches('/').split('/').next().unwrap_or_default();
            let field = fields.iter().find(|(_, called)| *called == place).map_or("", |(field, _)| field);
            (field, sentence(&violation.message))
        });
        Wrong(told.collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_at(&self, field: &str) -> bool {
        self.0.iter().any(|(at, _)| *at == field)
    }

    /// What stands beneath a field; the field is described by it, `name-wrong`.
    pub(super) fn with<'a>(&'a self, field: &'a str) -> Beneath<'a> {
        Beneath { field, sentences: self.sentences(field) }
    }

    /// What stands above the form.
    pub(super) fn elsewhere(&self) -> Vec<&str> {
        self.sentences("")
    }

    fn sentences(&self, field: &str) -> Vec<&str> {
        self.0.iter().filter(|(at, _)| *at == field).map(|(_, text)| text.as_str()).collect()
    }
}

#[derive(Template)]
#[template(
    ext = "html",
    source = r##"{% if !sentences.is_empty() %}<div id="{{ field }}-wrong">{% for text in sentences %}<p class="wrong" role="alert"><svg class="icon" aria-hidden="true"><use href="#i-failed"/></svg>{{ text }}</p>{% endfor %}</div>{% endif %}"##
)]
pub(super) struct Beneath<'a> {
    field: &'a str,
    sentences: Vec<&'a str>,
}

impl HtmlSafe for Beneath<'_> {}

#[cfg(test)]
mod tests {
    use margrave_core::violation::Violation;

    use super::*;

    #[test]
    fn each_sentence_stands_at_its_field_and_the_rest_above() {
        let error = Error::Invalid(vec![
            Violation::new("/device", "x", "is <no> name"),
            Violation::new("/labels/site", "x", "is too long"),
            Violation::new("/validSeconds", "x", "is too much"),
        ]);
        let wrong = Wrong::of(&error, &[("name", "device"), ("labels", "labels")]);
        assert!(wrong.is_at("name") && wrong.is_at("labels") && !wrong.is_at("device"));
        let beneath = wrong.with("name").to_string();
        assert!(beneath.starts_with(r#"<div id="name-wrong"><p class="wrong" role="alert">"#), "{beneath}");
        assert!(beneath.contains("Is &#60;no&#62; name."), "{beneath}");
        assert_eq!(wrong.elsewhere(), ["Is too much."]);
        assert_eq!(wrong.with("user").to_string(), "");
        assert!(Wrong::default().is_empty() && !wrong.is_empty());
    }
}
