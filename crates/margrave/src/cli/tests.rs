use super::device::{LabelChange, label_change};
use super::*;
use clap::CommandFactory;

fn leaves(path: &str, command: &clap::Command, found: &mut Vec<(String, clap::Command)>) {
    let path = format!("{path}{}", command.get_name());
    if command.has_subcommands() {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            leaves(&format!("{path} "), sub, found);
        }
    } else {
        found.push((path, command.clone()));
    }
}

fn all_leaves() -> Vec<(String, clap::Command)> {
    let mut root = Cli::command();
    root.build();
    let mut found = Vec::new();
    leaves("", &root, &mut found);
    found
}

#[test]
fn the_tree_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn the_commands_are_those_of_the_design() {
    let names: Vec<String> = all_leaves().into_iter().map(|(path, _)| path).collect();
    let wanted = "demo|serve|login|status|why|deploy|deployment list|deployment show|deployment update|\
        deployment revert|deployment remove|deployment history|rollout show|rollout pause|rollout resume|rollout abort|device list|device show|device token|device tokens|device untoken|device git|device accept|device reject|\
        device move|device retire|device label|device hold|device release|device look|schedule list|schedule show|schedule set|schedule remove|authority show|authority rotate|authority retire|token create|token list|token revoke|session end-all|secret seal|audit verify|package add|package list|package show|package check|package push|package watch|package watches|package look|package unwatch|package remove|\
        registry add|registry list|registry check|registry remove|intent show|intent log|intent resolve|get|apply|diff|plan|schema|events|backup|restore|completions|simulate";
    let wanted: Vec<String> = wanted.split('|').map(|name| format!("margrave {name}")).collect();
    assert_eq!(names, wanted);
}

#[test]
fn every_command_has_json_and_an_example_that_parses() {
    for (path, command) in all_leaves() {
        assert!(command.get_arguments().any(|arg| arg.get_id() == "json"), "{path} has no --json");
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let help = help.replace("\\\n", "");
        let examples: Vec<&str> = help
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .filter(|line| line.starts_with("margrave "))
            .collect();
        assert!(!examples.is_empty(), "{path} has no example");
        for example in examples {
            assert!(example.starts_with(&path), "{path}: the example {example:?} shows another command");
            let mut words = Vec::new();
            for (index, part) in example.split('"').enumerate() {
                // Odd parts are inside quotation marks and belong to the word before them.
                if index % 2 == 1 {
                    words.last_mut().map(|word: &mut String| word.push_str(part)).unwrap();
                } else {
                    words.extend(part.split_whitespace().map(str::to_owned));
                }
            }
            Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }
}

#[test]
fn every_command_that_talks_to_a_server_takes_a_context() {
    for (path, command) in all_leaves() {
        let has = command.get_arguments().any(|arg| arg.get_id() == "context");
        let alone = [
            "margrave demo",
            "margrave serve",
            "margrave package check",
            "margrave restore",
            "margrave completions",
            "margrave package push",
            "margrave schema",
        ];
        let alone = alone.contains(&path.as_str());
        assert_eq!(has, !alone, "{path}");
    }
}

#[test]
fn every_argument_says_what_it_is() {
    for (path, command) in all_leaves() {
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{path} {}", argument.get_id());
        }
    }
}

/// A command that is broken by the terminal cannot be copied. Whatever else is said breaks between words.
#[test]
fn help_fits_into_a_terminal_of_80_columns() {
    fn all(command: &clap::Command, found: &mut Vec<clap::Command>) {
        found.push(command.clone());
        command.get_subcommands().filter(|sub| !sub.is_hide_set()).for_each(|sub| all(sub, found));
    }
    let mut root = Cli::command().term_width(80);
    root.build();
    let mut commands = Vec::new();
    all(&root, &mut commands);
    let mut wide = Vec::new();
    for mut command in commands {
        let name = command.get_bin_name().unwrap_or_default().to_owned();
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = examples.lines().filter(|line| line.starts_with(' '));
        wide.extend(examples.filter(|line| line.chars().count() > 80).map(|line| format!("{name}: {line}")));
        let shown = command.render_long_help().to_string();
        wide.extend(
            shown.lines().filter(|line| line.chars().count() > 80).map(|line| format!("{name}: {line}")),
        );
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

#[test]
fn groups_show_examples_too() {
    let mut root = Cli::command();
    root.build();
    for group in root.get_subcommands().filter(|sub| sub.has_subcommands() && !sub.is_hide_set()) {
        let name = group.get_name();
        if name == "help" {
            continue;
        }
        let help = group.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains(&format!("  margrave {name} ")), "{name} has no example");
    }
}

#[test]
fn the_operators_token_is_not_taken_for_a_join_token() {
    let help = |words: &[&str]| Cli::try_parse_from(words).unwrap_err().to_string();
    let shown = help(&["margrave", "device", "token", "--help"]);
    assert!(shown.contains("--operator-token") && !shown.contains(" --token"), "{shown}");
    assert!(!help(&["margrave", "package", "check", "--help"]).contains("--context"));
    // What scripts of before say is still understood.
    for flag in ["--operator-token", "--token"] {
        let cli = Cli::try_parse_from(["margrave", "status", "--server", "https://x:1", flag, "t"]).unwrap();
        let Command::Status(status) = cli.command else { panic!() };
        assert_eq!(status.connection.token.as_deref(), Some("t"));
    }
}

#[test]
fn durations_need_units() {
    for (text, seconds) in [("90s", 90), ("5m", 300), ("24h", 86_400), ("7d", 604_800), ("1h30m", 5400)] {
        assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
    }
    for bad in ["", "5", "m", "5x", "-5m", "0s", "1.5h", "99999999999999999999s", "999999999d"] {
        assert!(duration(bad).is_err(), "{bad}");
    }
    for long in ["99999999d", "99999999999999999999999s"] {
        assert!(duration(long).unwrap_err().contains("longer than a century"), "{long}");
    }
    // Where there is a bound, it is told, however far beyond it somebody is.
    for long in ["31d", "99999999d", "99999999999999999999999s"] {
        assert!(join_validity(long).unwrap_err().ends_with("is too long; at most 30d"), "{long}");
    }
    assert!(token_validity("3651d").unwrap_err().ends_with("is too long; at most 3650d"));
    assert!(join_validity("30d").is_ok() && token_validity("3650d").is_ok());
    assert!(join_validity("5").unwrap_err().contains("units"));
}

#[test]
fn a_window_for_signatures_is_neither_useless_nor_too_narrow() {
    for (text, taken) in [("1s", false), ("9s", false), ("10s", true), ("24h", true), ("25h", false)] {
        assert_eq!(signed_window(text).is_ok(), taken, "{text}");
    }
}

#[test]
fn a_port_alone_listens_where_it_is_safe_to() {
    assert_eq!(listen_anywhere("8443"), Ok("0.0.0.0:8443".parse().unwrap()));
    assert_eq!(listen_loopback(":8480"), Ok("127.0.0.1:8480".parse().unwrap()));
    assert_eq!(listen_loopback("[::1]:0"), Ok("[::1]:0".parse().unwrap()));
    assert!(listen_anywhere("plant.example:8443").is_err());
}

#[test]
fn pairs_and_label_changes() {
    assert_eq!(pair("a=b=c"), Ok(Pair { key: "a".into(), value: "b=c".into() }));
    assert!(pair("a").is_err() && pair("=b").is_err());
    assert_eq!(label_change("a-"), Ok(LabelChange { key: "a".into(), value: None }));
    assert_eq!(label_change("a=b-"), Ok(LabelChange { key: "a".into(), value: Some("b-".into()) }));
    assert!(label_change("-").is_err() && label_change("a").is_err());
    assert!(unique(&[pair("a=1").unwrap(), pair("a=2").unwrap()]).is_err());
}

#[test]
fn packages_are_named_with_or_without_a_version() {
    assert_eq!(package_at("a-b"), Ok(PackageAt { id: "a-b".into(), version: None }));
    assert_eq!(package_at("a@1.0"), Ok(PackageAt { id: "a".into(), version: Some("1.0".into()) }));
    assert!(package_at("A").is_err() && package_at("a@").is_err() && package_at("a@v 1").is_err());
}

#[test]
fn whoever_ends_something_for_good_can_say_yes_beforehand() {
    for line in [
        "rollout abort web --yes",
        "package remove web@1.0.0 --yes",
        "deployment remove web --yes",
        "intent resolve --keep --yes",
        "intent resolve --take --yes",
    ] {
        let words = std::iter::once("margrave").chain(line.split(' '));
        assert!(Cli::try_parse_from(words).is_ok(), "{line}");
    }
}
