//! The command that does what a page shows, ready to paste.

use askama::Template;
use askama::filters::HtmlSafe;
use margrave_wire::operator;
use serde_json::Value;

#[derive(Template)]
#[template(path = "command.html")]
pub(super) struct Command {
    pub(super) text: String,
}

impl HtmlSafe for Command {}

impl Command {
    /// From words, each quoted for a shell where it needs to be.
    pub(super) fn new<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let quoted: Vec<String> = words.into_iter().map(quote).collect();
        Command { text: quoted.join(" ") }
    }

    /// Text that is a command line already.
    pub(super) fn ready(text: &str) -> Self {
        Command { text: text.to_owned() }
    }

    /// The command that makes this very deployment.
    pub(super) fn deploy(deployment: &operator::Deployment) -> Self {
        let package = format!("{}@{}", deployment.package, deployment.version);
        let mut text = Command::new(["margrave", "deploy", &package, "--name", &deployment.name]).text;
        // One option per line, as a shell continues them.
        let mut option =
            |flag: &str, value: String| text.push_str(&format!(" \\\n  {flag} {}", quote(&value)));
        for device in &deployment.targets.devices {
            option("--to", device.clone());
        }
        for (key, value) in &deployment.targets.labels {
            option("--label", format!("{key}={value}"));
        }
        if let Some(profile) = &deployment.profile {
            option("--profile", profile.clone());
        }
        for (name, value) in &deployment.parameters {
            match value {
                Value::Array(values) => {
                    values.iter().for_each(|value| option("--set", format!("{name}={}", plain(value))))
                }
                value => option("--set", format!("{name}={}", plain(value))),
            }
        }
        Command { text }
    }
}

/// A value as a person would type it.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn quote(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:@=,+%".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_survives_the_shell() {
        let command =
            Command::new(["margrave", "deploy", "x", "--set", "greeting=it's; rm -rf /", "--set", "empty="]);
        assert_eq!(command.text, r"margrave deploy x --set 'greeting=it'\''s; rm -rf /' --set empty=");
    }

    #[test]
    fn a_command_is_text_on_the_page() {
        let shown = Command::ready("echo <b>").to_string();
        assert!(shown.contains("echo &#60;b&#62;"), "{shown}");
    }
}
