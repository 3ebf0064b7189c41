//! `margrave completions`: what a shell needs to complete our commands.

use clap::CommandFactory as _;
use clap_complete::{Shell as Kind, generate};

use crate::cli::{Cli, Completions, Shell};
use crate::exit::{Answer, Result};
use crate::render::Screen;

pub(crate) fn run(screen: &Screen, args: &Completions) -> Result {
    screen.data(script(args.shell).trim_end())?;
    Ok(Answer::Done)
}

fn script(shell: Shell) -> String {
    let kind = match shell {
        Shell::Bash => Kind::Bash,
        Shell::Zsh => Kind::Zsh,
        Shell::Fish => Kind::Fish,
    };
    let mut bytes = Vec::new();
    generate(kind, &mut Cli::command(), "margrave", &mut bytes);
    String::from_utf8(bytes).expect("our own help is text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    #[test]
    fn every_command_is_completed_in_every_shell() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(script.contains(command.get_name()), "{shell:?}: {}", command.get_name());
            }
        }
    }

    #[test]
    fn bash_completes_with_it() {
        let question = "\nCOMP_WORDS=(margrave device acc); COMP_CWORD=2; _margrave margrave acc device; echo \"${COMPREPLY[@]}\"\n";
        let mut bash = Command::new("bash")
            .arg("--norc")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash is on every machine that builds this");
        let mut stdin = bash.stdin.take().unwrap();
        stdin.write_all((script(Shell::Bash) + question).as_bytes()).unwrap();
        drop(stdin);
        let said = bash.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "accept");
    }
}
