//! An error and everything beneath it, told to people who see only one line.

use std::error::Error;

/// More causes than any error of ours has; one that names itself as its cause must not go on for ever.
const CAUSES_MAX: usize = 16;

/// The error with its causes, from the outside in.
pub fn sentence(error: &dyn Error) -> String {
    because(error.to_string(), error.source())
}

/// A message with what caused it. A cause whose words are there already is not said twice: libraries of others
/// put their causes into their own words.
pub fn because(message: impl Into<String>, cause: Option<&(dyn Error + 'static)>) -> String {
    let mut text = message.into();
    let mut next = cause;
    for _ in 0..CAUSES_MAX {
        let Some(cause) = next else { break };
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: String,
        #[source]
        cause: Option<Box<Layer>>,
    }

    fn layered<'a>(layers: impl DoubleEndedIterator<Item = &'a str>) -> Box<Layer> {
        let wrapped = |cause, text: &str| Some(Box::new(Layer { text: text.to_owned(), cause }));
        layers.rev().fold(None, wrapped).expect("at least one")
    }

    fn check(layers: &[&str], expected: &str) {
        assert_eq!(sentence(&layered(layers.iter().copied())), expected);
    }

    #[test]
    fn causes_follow_in_order_and_only_once() {
        check(&["it broke"], "it broke");
        check(&["no page", "no network", "no cable"], "no page: no network: no cable");
        check(&["no page: no network", "no network", "no cable"], "no page: no network: no cable");
        check(&["no page", ""], "no page");
        let told = because("sorry", Some(&*layered(["no page", "no cable"].into_iter())));
        assert_eq!(told, "sorry: no page: no cable");
    }

    #[test]
    fn a_chain_without_end_is_cut() {
        let names: Vec<String> = (100..200).map(|n| n.to_string()).collect();
        let whole = layered(names.iter().map(String::as_str));
        assert_eq!(sentence(&whole).split(": ").count(), 1 + CAUSES_MAX);
    }
}
