//! The command that does what a page shows, ready to paste.

use askama::Template;
use askama::filters::HtmlSafe;
use margrave_wire::operator;
use margrave_wire::rollout::StrategyBody;
use serde_json::Value;

use crate::fleet::difference::NAMES_MAX;
pub(super) use crate::fleet::difference::{plain, reference, shown};

#[derive(Template)]
#[template(path = "command.html")]
pub(super) struct Command {
    pub(super) text: String,
}

impl HtmlSafe for Command {}

/// The text of a command, with the words marked that a browser would break inside: `--to` must not become `--` and `to`. What
/// can be selected and copied stays the same.
#[derive(Template)]
#[template(
    ext = "html",
    source = r#"{% for (word, breaks) in self.pieces() %}{% if breaks %}<span class="word">{{ word }}</span>{% else %}{{ word }}{% endif %}{% endfor %}"#
)]
pub(super) struct Words<'a>(pub(super) &'a str);

impl HtmlSafe for Words<'_> {}

impl<'a> Words<'a> {
    /// Runs of blanks and of everything else, each with whether it has to be kept together.
    fn pieces(&self) -> Vec<(&'a str, bool)> {
        let Words(mut rest) = *self;
        let mut pieces = Vec::new();
        while let Some(first) = rest.chars().next() {
            let blank = first.is_whitespace();
            let end = rest.find(|c: char| c.is_whitespace() != blank).unwrap_or(rest.len());
            let (piece, after) = rest.split_at(end);
            let whole = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '\\');
            pieces.push((piece, !blank && !piece.chars().all(whole)));
            rest = after;
        }
        pieces
    }
}

impl Command {
    /// From words, each quoted for a shell where it needs to be.
    pub(super) fn new<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let quoted: Vec<String> = words.into_iter().map(quote).collect();
        Command { text: quoted.join(" ") }
    }

    /// Words, and options with their values. A value that begins with a dash is no option.
    pub(super) fn with_options<'a, V: AsRef<str>>(
        words: &[&str],
        options: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Self {
        let mut text = Command::new(words.iter().copied()).text;
        for (name, value) in options {
            text.push_str(&option(&format!("--{name}"), value.as_ref()));
        }
        Command { text }
    }

    /// Text that is a command line already.
    pub(super) fn ready(text: &str) -> Self {
        Command { text: text.to_owned() }
    }

    /// The command that makes this very deployment.
    pub(super) fn deploy(deployment: &operator::Deployment) -> Self {
        let want = operator::PutDeployment {
            package: deployment.package.clone(),
            version: Some(deployment.version.clone()),
            profile: deployment.profile.clone(),
            parameters: deployment.parameters.clone(),
            targets: deployment.targets.clone(),
            strategy: Some(deployment.strategy.clone()),
            force: deployment.force.clone(),
            overrides: deployment.overrides.clone(),
            rollback: Some(deployment.rollback.clone()),
            windows: Some(deployment.windows.clone()),
            revision: None,
        };
        match needs_file(&want) {
            true => Command::by_file(&deployment.name),
            false => Command::wanted(&deployment.name, &want),
        }
    }

    /// The commands that change a deployment by way of a file.
    pub(super) fn by_file(deployment: &str) -> Self {
        let name = quote(deployment);
        let text =
            format!("margrave get deployment {name} -o yaml > {name}.yaml\nmargrave apply -f {name}.yaml");
        Command { text }
    }

    /// The command that does what a form asks for.
    pub(super) fn wanted(name: &str, want: &operator::PutDeployment) -> Self {
        if needs_file(want) {
            return Command { text: format!("margrave apply -f {}.yaml", quote(name)) };
        }
        let operator::PutDeployment {
            package,
            version,
            profile,
            parameters,
            targets,
            strategy,
            force,
            rollback,
            windows,
            ..
        } = want;
        let strategy = strategy.clone().unwrap_or_default();
        let version = version.as_ref().map(|version| format!("@{version}")).unwrap_or_default();
        let mut text =
            Command::new(["margrave", "deploy", &format!("{package}{version}"), "--name", name]).text;
        // One option per line, as a shell continues them.
        let mut option =
            |flag: &str, value: String| text.push_str(&format!(" \\\n {}", option(flag, &value)));
        for device in &targets.devices {
            option("--to", device.clone());
        }
        for (key, value) in &targets.labels {
            option("--label", format!("{key}={value}"));
        }
        if let Some(profile) = profile {
            option("--profile", profile.clone());
        }
        if let Some(reason) = force {
            option("--force", reason.clone());
        }
        for (name, value) in parameters {
            match value {
                Value::Object(_) => {
                    option("--secret", format!("{name}={}", reference(value).unwrap_or_default()))
                }
                Value::Array(values) => {
                    values.iter().for_each(|value| option("--set", format!("{name}={}", plain(value))))
                }
                value => option("--set", format!("{name}={}", plain(value))),
            }
        }
        if let Some(operator::Rollback { when, attempts, health_grace_seconds: grace }) = rollback {
            when.iter().for_each(|when| option("--rollback", when.clone()));
            attempts.iter().for_each(|attempts| option("--attempts", attempts.to_string()));
            grace.iter().for_each(|seconds| option("--health-grace", format!("{seconds}s")));
        }
        steps(&strategy).into_iter().for_each(|(flag, value)| option(flag, value));
        windows.iter().flatten().for_each(|window| option("--window", window.clone()));
        Command { text }
    }
}

/// Whether it asks for what only a file can say.
fn needs_file(want: &operator::PutDeployment) -> bool {
    let operator::Targets { select, sites, .. } = &want.targets;
    let many = want.targets.devices.len() > NAMES_MAX;
    many || select.is_some() || !sites.is_empty() || !want.overrides.is_empty()
}

/// The options that say in which steps it goes.
fn steps(strategy: &StrategyBody) -> Vec<(&'static str, String)> {
    let StrategyBody {
        canary,
        batches,
        order,
        soak_seconds,
        max_unavailable_per_site,
        threshold,
        on_failure,
        failures,
    } = strategy;
    let seconds = |seconds: &u64| format!("{seconds}s");
    let mut options = Vec::new();
    if let Some(canary) = canary {
        options.push(("--canary", canary.size.clone()));
        let labels = canary.labels.iter().map(|(key, value)| ("--canary-label", format!("{key}={value}")));
        options.extend(labels);
        options.extend(canary.soak_seconds.as_ref().map(|soak| ("--canary-soak", seconds(soak))));
    }
    options.extend(batches.iter().map(|size| ("--batch", size.clone())));
    options.extend(order.iter().map(|label| ("--order", label.clone())));
    options.extend(soak_seconds.as_ref().map(|soak| ("--soak", seconds(soak))));
    let most = max_unavailable_per_site.as_ref();
    options.extend(most.map(|most| ("--max-unavailable-per-site", most.clone())));
    options.extend(threshold.as_ref().map(|part| ("--threshold", part.clone())));
    options.extend(on_failure.as_ref().map(|what| ("--on-failure", what.clone())));
    options.extend(failures.map(|count| ("--failures", count.to_string())));
    options
}

/// An option with its value, after a space.
fn option(flag: &str, value: &str) -> String {
    let between = if value.starts_with('-') { "=" } else { " " };
    format!(" {flag}{between}{}", quote(value))
}

pub(super) fn quote(word: &str) -> String {
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
    fn a_value_that_begins_with_a_dash_is_no_option() {
        let command =
            Command::with_options(&["margrave", "device", "list"], [("search", "-x y"), ("site", "a")]);
        assert_eq!(command.text, "margrave device list --search='-x y' --site a");
    }

    #[test]
    fn a_command_says_in_which_steps() {
        let strategy = serde_json::json!({
            "canary": { "size": "2", "labels": { "ring": "a b" }, "soakSeconds": 5 }, "batches": ["10%", "1"], "soakSeconds": 60,
            "onFailure": "revert",
        });
        let options = steps(&serde_json::from_value(strategy).unwrap());
        let words: Vec<String> = options.into_iter().map(|(flag, value)| format!("{flag} {value}")).collect();
        assert_eq!(
            words.join(" "),
            "--canary 2 --canary-label ring=a b --canary-soak 5s --batch 10% --batch 1 --soak 60s --on-failure revert"
        );
        assert!(steps(&StrategyBody::default()).is_empty());
    }

    #[test]
    fn what_options_cannot_say_is_said_by_a_file() {
        let mut want = operator::PutDeployment {
            package: "hello".into(),
            rollback: Some(operator::Rollback { attempts: Some(3), ..Default::default() }),
            ..Default::default()
        };
        want.targets.devices = vec!["line-1".into()];
        let text = Command::wanted("greeter", &want).text;
        assert!(text.ends_with("--to line-1 \\\n  --attempts 3"), "{text}");
        want.targets.sites = vec!["nord".into()];
        assert_eq!(Command::wanted("greeter", &want).text, "margrave apply -f greeter.yaml");
    }

    #[test]
    fn a_command_is_text_on_the_page() {
        let shown = Command::ready("echo <b>").to_string();
        assert!(shown.contains("echo <span class=\"word\">&#60;b&#62;</span>"), "{shown}");
    }

    #[test]
    fn words_that_a_browser_would_break_are_kept_together() {
        assert_eq!(
            Words("deploy hello \\\n  --to line-1").to_string(),
            "deploy hello \\\n  <span class=\"word\">--to</span> <span class=\"word\">line-1</span>"
        );
        assert_eq!(Words("").to_string(), "");
    }
}
