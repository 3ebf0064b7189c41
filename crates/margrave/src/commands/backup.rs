//! `margrave backup` and `margrave restore`.

use std::fs::{self, File, OpenOptions};
use std::io::BufReader;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use margrave_server::backup::{self, Made, RestoreError};
use margrave_server::fleet::Clock;
use serde_json::json;

use super::serve::quoted;
use crate::cli::{Backup, Restore};
use crate::client::Client;
use crate::exit::{Answer, Result, Trouble};
use crate::render::{self, Screen};

pub(crate) async fn run(screen: &Screen, args: Backup) -> Result {
    let Backup { to, data, connection } = args;
    if to.exists() {
        return Err(exists(&to));
    }
    let mut unfinished = Unfinished::create(&to)?;
    match data {
        Some(data) => {
            let file = &unfinished.file;
            backup::back_up_closed(&data, file, Clock::system().now())
                .map_err(|error| Trouble::because("there is no backup", &error))?;
        }
        None => Client::connect(&connection)?.backup(&mut unfinished.file).await?,
    }
    // What is on the disk is looked at once more, as a restore would: a backup that cannot be read is none.
    let made = check(&unfinished.path)?;
    unfinished.keep(&to)?;
    if screen.json {
        screen.object(&summary(&made, &to))?;
        return Ok(Answer::Done);
    }
    screen.words(format!(
        "Backed up {} to {} and read it once more: it is whole.\n\
         It holds every key of the server, and only you can read it. Keep it as you would keep the server itself.",
        amount(&made),
        to.display()
    ));
    Ok(Answer::Done)
}

pub(crate) fn restore(screen: &Screen, args: Restore) -> Result {
    let Restore { archive, data } = args;
    let unreadable = |error| Trouble::because(format!("{} cannot be read", archive.display()), &error);
    let file = File::open(&archive).map_err(unreadable)?;
    let made = backup::restore(BufReader::with_capacity(256 * 1024, file), &data, Clock::system().now())
        .map_err(|error| not_restored(&archive, &error))?;
    if screen.json {
        screen.object(&summary(&made, &data))?;
        return Ok(Answer::Done);
    }
    screen.words(format!(
        "Restored {} from {} to {} and checked all of it.\n\
         Start it with the options that the server had: margrave serve --data {}\n\
         What changed since is not in it. Devices keep what they run until you decide: push the commits that were made since, or\n\
         go on with what was wanted then: margrave intent resolve --keep",
        amount(&made),
        render::clock(&time(&made)),
        data.display(),
        quoted(&data.display().to_string())
    ));
    Ok(Answer::Done)
}

/// An archive that is not what it should be is an honest no; a disk that fails is not.
fn not_restored(archive: &Path, error: &RestoreError) -> Trouble {
    let message = format!("{} was not restored", archive.display());
    match error {
        RestoreError::Read(_) | RestoreError::Write { .. } => Trouble::because(message, error),
        error => Trouble::refused(crate::exit::chain(message, error)),
    }
}

fn check(path: &Path) -> Result<Made> {
    let broke = |error: &(dyn std::error::Error + 'static)| {
        Trouble::because("what was written is not a whole backup", error).hint("try again")
    };
    let file = File::open(path).map_err(|error| broke(&error))?;
    backup::check(BufReader::with_capacity(256 * 1024, file)).map_err(|error| broke(&error))
}

fn time(made: &Made) -> String {
    let millis = i64::try_from(made.made_at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX).to_string()
}

fn summary(made: &Made, place: &Path) -> serde_json::Value {
    json!({
        "path": place,
        "madeAt": time(made),
        "version": made.version,
        "schema": made.schema,
        "files": made.files,
        "bytes": made.bytes,
    })
}

fn amount(made: &Made) -> String {
    let megabytes = made.bytes.div_ceil(1_000_000);
    format!("{} files, {megabytes} MB,", made.files)
}

fn exists(path: &Path) -> Trouble {
    Trouble::refused(format!("{} is there already", path.display()))
        .hint("give another name, or take that one away")
}

/// A file under another name, until it is known to be whole; it goes if it never is.
struct Unfinished {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl Unfinished {
    fn create(to: &Path) -> Result<Unfinished> {
        let mut name = to.as_os_str().to_owned();
        name.push(".unfinished");
        let path = PathBuf::from(name);
        let failed = |error| Trouble::because(format!("{} cannot be written", path.display()), &error);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        Ok(Unfinished { path, file, kept: false })
    }

    fn keep(mut self, to: &Path) -> Result<()> {
        let failed = |error| Trouble::because(format!("{} cannot be written", to.display()), &error);
        self.file.sync_all().map_err(failed)?;
        // A link, and not a new name, because it never takes the place of what is there.
        fs::hard_link(&self.path, to).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => exists(to),
            _ => failed(error),
        })?;
        fs::remove_file(&self.path).map_err(failed)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.kept {
            // Whatever went wrong before is the thing to tell.
            let _left = fs::remove_file(&self.path);
        }
    }
}
