//! `margrave`: server, command line and demo in one program. This file only starts things.

mod cli;
mod client;
mod commands;
mod context;
mod demo;
mod exit;
mod folder;
mod logging;
mod opening;
mod remote;
mod render;
mod sample;
mod source;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};
use crate::exit::{Result, Trouble};
use crate::render::Screen;

fn main() -> ExitCode {
    let Cli { json, command } = Cli::parse();
    let screen = Screen::new(json);
    let end = start(command, &screen);
    if let Err(trouble) = &end
        && let Some(text) = trouble.says()
    {
        screen.words(text);
    }
    exit::code(&end)
}

fn start(command: Command, screen: &Screen) -> Result {
    match command {
        // Before anything else is set up: this runs in many small containers.
        Command::Sample(sample) => sample::run(sample.verb, screen),
        Command::Serve(args) => threads()?.block_on(commands::serve::run(screen, args)),
        Command::Demo(args) => threads()?.block_on(commands::demo::run(screen, args)),
        Command::Restore(args) => commands::backup::restore(screen, args),
        Command::Completions(args) => commands::completions::run(screen, &args),
        Command::Simulate(args) => {
            logging::for_a_command();
            threads()?.block_on(commands::simulate::run(screen, args))
        }
        command => one_thread()?.block_on(run(command, screen)),
    }
}

async fn run(command: Command, screen: &Screen) -> Result {
    logging::for_a_command();
    match command {
        Command::Login(args) => commands::login::run(screen, args).await,
        Command::Status(args) => commands::status::run(screen, args).await,
        Command::Why(args) => commands::why::run(screen, args).await,
        Command::Deploy(args) => commands::deploy::run(screen, *args).await,
        Command::Deployment(args) => commands::deployment::run(screen, args).await,
        Command::Device(args) => commands::device::run(screen, args).await,
        Command::Rollout(args) => commands::rollout::run(screen, args).await,
        Command::Schedule(args) => commands::schedule::run(screen, args).await,
        Command::Authority(args) => commands::authority::run(screen, args).await,
        Command::Token(args) => commands::token::run(screen, args).await,
        Command::Session(args) => commands::session::run(screen, args).await,
        Command::Secret(args) => commands::secret::run(screen, args).await,
        Command::Audit(args) => commands::audit::run(screen, args).await,
        Command::Package(args) => commands::package::run(screen, args).await,
        Command::Registry(args) => commands::registry::run(screen, args).await,
        Command::Backup(args) => commands::backup::run(screen, args).await,
        Command::Intent(args) => commands::intent::run(screen, args).await,
        Command::Get(args) => commands::files::get(screen, args).await,
        Command::Apply(args) => commands::files::apply(screen, args).await,
        Command::Diff(args) => commands::files::diff(screen, args).await,
        Command::Plan(args) => commands::files::plan(screen, args).await,
        Command::Schema(args) => commands::files::schema(screen, &args),
        Command::Events(args) => commands::events::run(screen, args).await,
        Command::Serve(_)
        | Command::Demo(_)
        | Command::Simulate(_)
        | Command::Sample(_)
        | Command::Restore(_)
        | Command::Completions(_) => {
            unreachable!("started with a runtime of their own, or with none")
        }
    }
}

fn threads() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(no_runtime)
}

/// A command waits for one answer at a time.
fn one_thread() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_runtime)
}

fn no_runtime(error: std::io::Error) -> Trouble {
    Trouble::because("the program cannot start", &error)
}
