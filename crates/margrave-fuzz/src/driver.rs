//! Runs one target under libFuzzer, which decides by coverage what to try next.
//!
//!   margrave-fuzz --list                              the names of all targets, and their longest inputs
//!   margrave-fuzz --seeds=NAME DIRECTORY              writes what to start from
//!   margrave-fuzz --target=NAME CORPUS -libfuzzer…    tries until told to stop; see scripts/fuzz
//!
//! libFuzzer brings the main function and reads the command line; it leaves alone what begins with two dashes.

#![no_main]
#![allow(unsafe_code, reason = "libFuzzer calls two functions by their C names")]

use std::path::Path;
use std::process::exit;
use std::sync::OnceLock;

use margrave_fuzz::{TARGETS, Target, seeds, target};

static CHOSEN: OnceLock<&Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(init: choose(), |bytes: &[u8]| {
    let target = CHOSEN.get().expect("chosen before the first input");
    (target.run)(bytes);
});

#[allow(clippy::print_stdout, clippy::print_stderr, reason = "a program speaks to whoever started it")]
fn choose() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let known = |name: &str| {
        target(name).unwrap_or_else(|| {
            eprintln!("there is no target {name:?}; --list names them");
            exit(2)
        })
    };
    match arguments.iter().find_map(|argument| argument.strip_prefix("--target=")) {
        Some(name) => {
            CHOSEN.get_or_init(|| known(name));
        }
        None => match arguments.first().map(|first| first.split_once('=').unwrap_or((first, ""))) {
            Some(("--list", _)) => {
                for target in TARGETS {
                    println!("{} {}", target.name, target.input_bytes_max);
                }
                exit(0)
            }
            Some(("--seeds", name)) if arguments.len() == 2 => {
                match seeds::write(known(name), Path::new(&arguments[1])) {
                    Ok(count) => println!("{count}"),
                    Err(error) => {
                        eprintln!("the seeds cannot be written: {error}");
                        exit(1)
                    }
                }
                exit(0)
            }
            _ => {
                eprintln!("say what to try: --target=NAME; --list names the targets");
                exit(2)
            }
        },
    }
}
