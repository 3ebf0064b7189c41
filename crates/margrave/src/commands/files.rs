//! `margrave get`, `apply`, `diff`, `plan` and `schema`: what is wanted, as files.

use std::io::Read;
use std::path::{Path, PathBuf};

use margrave_core::difference::unified;
use margrave_core::digest::Digest;
use margrave_wire::intent::{
    Applied, Apply, Fetch, Plan, PlannedBatch, PlannedRollout, PlannedState, SEEN, pin_words,
};
use margrave_wire::resource::{self, Kind, Resource};

use super::deploy::warn;
use crate::cli::{self, Format, ResourceKind};
use crate::client::Client;
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Column, Field, Screen, Table, printable};

/// Of one file; far more than a person writes.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
const FILES_MAX: usize = 10_000;

/// One resource as somebody wrote it.
struct Document {
    /// Where it was found, for people.
    from: String,
    text: String,
    /// The lines of its file that its own lines are.
    lines: Vec<usize>,
    /// The digest of the file that it was made from, if it came from `margrave get`.
    seen: Option<String>,
}

pub(crate) async fn apply(screen: &Screen, args: cli::Apply) -> Result {
    let documents = read(&args.sources.files)?;
    let client = Client::connect(&args.sources.connection)?;
    let seen = seen(&documents);
    let want = Apply { documents: texts(&documents), message: args.message, seen, ..Apply::default() };
    let applied = client.apply(&want).await.map_err(|trouble| located(trouble, &documents))?;
    warn(screen, &applied.warnings);
    if screen.json {
        screen.object(&applied)?;
        return Ok(Answer::Done);
    }
    let Applied { commit, files, pins, .. } = applied;
    if files.is_empty() {
        screen.words("Everything is wanted so already.");
        return Ok(Answer::Done);
    }
    for file in files {
        screen.data(printable(&file))?;
    }
    if let Some(commit) = commit {
        screen.words(format_args!("Applied: {}", printable(&commit)));
    }
    for line in pin_words(&pins) {
        screen.words(printable(&line));
    }
    Ok(Answer::Done)
}

pub(crate) async fn plan(screen: &Screen, args: cli::Plan) -> Result {
    let documents = read(&args.sources.files)?;
    let client = Client::connect(&args.sources.connection)?;
    let want =
        Apply { documents: texts(&documents), dry_run: true, seen: seen(&documents), ..Apply::default() };
    let applied = client.apply(&want).await.map_err(|trouble| located(trouble, &documents))?;
    let plan = applied.plan.clone().unwrap_or_default();
    let refused = plan.misfits.iter().any(|misfit| misfit.refused);
    warn(screen, &plan.warnings);
    if screen.json {
        screen.object(&applied)?;
    } else {
        show_plan(screen, &applied.files, &plan)?;
    }
    Ok(if refused { Answer::No } else { Answer::Done })
}

fn show_plan(screen: &Screen, files: &[String], plan: &Plan) -> Result<()> {
    if files.is_empty() {
        screen.words("Everything is wanted so already; nothing would change.");
        return Ok(());
    }
    screen.words(format_args!(
        "{} would change: {}",
        counted(files.len(), "file"),
        printable(&files.join(", "))
    ));
    if plan.changes.is_empty() {
        screen.words("No device would change what it runs.");
    } else {
        let mut table = Table::new(&[
            Column::fixed("DEVICE"),
            Column::fixed("SITE").optional(),
            Column::fixed("DEPLOYMENT"),
            Column::fixed("BATCH").optional(),
            Column::fixed("FROM"),
            Column::fixed("TO"),
        ]);
        for change in &plan.changes {
            let (from, to) = states(change.from.as_ref(), change.to.as_ref());
            table.row([
                Field::plain(&change.device),
                Field::plain(change.site.clone().unwrap_or_default()),
                Field::plain(&change.deployment),
                Field::plain(change.batch.map(|batch| batch.to_string()).unwrap_or_default()),
                Field::plain(from),
                Field::plain(to),
            ]);
        }
        screen.table(&table)?;
    }
    for rollout in &plan.rollouts {
        let how = if rollout.stopped.is_some() { "stays stopped" } else { "goes in steps" };
        screen.heading(&printable(&format!("{} {how}", rollout.deployment)))?;
        for line in steps(rollout) {
            screen.data(printable(&line))?;
        }
    }
    if !plan.misfits.is_empty() {
        screen.heading("Does not fit")?;
        for misfit in &plan.misfits {
            let what = match (misfit.refused, misfit.temporary) {
                (true, _) => "; it is named, so all of it would be refused",
                (false, true) => "",
                (false, false) => "; it is left out",
            };
            let why = misfit.reasons.join("; ");
            let line = format!("{} on {}: {why}{what}", misfit.deployment, misfit.device);
            screen.data(printable(&line))?;
        }
    }
    if !plan.forced.is_empty() {
        screen.heading("Forced, although it does not fit")?;
        for forced in &plan.forced {
            let why = forced.despite.join("; ");
            screen.data(printable(&format!("{} on {}: {why}", forced.deployment, forced.device)))?;
        }
    }
    if !plan.fetches.is_empty() {
        screen.heading("To fetch")?;
        for fetch in &plan.fetches {
            screen.data(printable(&to_fetch(fetch)))?;
        }
    }
    Ok(())
}

/// What the devices of one site fetch.
fn to_fetch(fetch: &Fetch) -> String {
    let site = fetch.site.as_deref().unwrap_or("(no site)");
    let devices = counted(fetch.devices as usize, "device");
    let line = format!("{site}: {} {} bytes for {devices}", fetch.bound(), fetch.bytes);
    [line].into_iter().chain(fetch.uncounted()).collect::<Vec<_>>().join("; ")
}

/// The batches of a rollout, a line each, in their order.
fn steps(rollout: &PlannedRollout) -> Vec<String> {
    let total = rollout.batches_total;
    let line = |batch: &PlannedBatch| {
        let PlannedBatch { number, devices, now, not_yet, first, after } = batch;
        let mut names = first.join(", ");
        if first.len() < *devices as usize {
            names.push_str(", …");
        }
        let mut line =
            format!("batch {number} of {total}: {} ({names})", counted(*devices as usize, "device"));
        match after {
            None if rollout.stopped.is_some() => line.push_str(", once it is resumed"),
            None => line.push_str(", at once"),
            Some(after) => line.push_str(&format!(", once {after}")),
        }
        if *not_yet > 0 {
            line.push_str(&format!("; {not_yet} not in contact, each gets it when it is back"));
        }
        // Their sites have no room for more of them at a time.
        if after.is_none() && rollout.stopped.is_none() && now + not_yet < *devices {
            line.push_str(&format!("; {now} of them first, the others as their sites allow"));
        }
        line
    };
    let mut lines: Vec<String> = rollout.stopped.iter().cloned().collect();
    lines.extend(rollout.batches.iter().map(line));
    if rollout.batches.len() < total as usize {
        lines.push(format!("and {} more batches", total as usize - rollout.batches.len()));
    }
    lines.push(rollout.strategy.words().join("; "));
    lines
}

/// In words; where the version stays, it is the document that is another.
fn states(from: Option<&PlannedState>, to: Option<&PlannedState>) -> (String, String) {
    let word = |state: Option<&PlannedState>, detailed: bool| match state {
        None => "nothing".to_owned(),
        Some(state) if detailed => {
            let digest = state.document.rsplit(':').next().unwrap_or_default();
            format!("{} ({})", state.version, digest.chars().take(8).collect::<String>())
        }
        Some(state) => state.version.clone(),
    };
    let same = from.map(|from| &from.version) == to.map(|to| &to.version);
    (word(from, same), word(to, same))
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

pub(crate) async fn diff(screen: &Screen, args: cli::Diff) -> Result {
    if let Some(from) = &args.from {
        return between(screen, &Client::connect(&args.connection)?, from, args.to.as_deref()).await;
    }
    let documents = read(&args.files)?;
    let client = Client::connect(&args.connection)?;
    let mut differing = Vec::new();
    let mut others = Vec::new();
    for document in &documents {
        let path = place(document)?;
        let held = client.intent_file(&path).await?;
        let mut text = document.text.clone();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        if held.as_ref() == Some(&text) {
            continue;
        }
        if !screen.json {
            for line in unified(&path, held.as_deref(), Some(&text)) {
                screen.data(printable(&line))?;
            }
        }
        differing.push(path);
        others.push(document.text.clone());
    }
    // What there is to know of it is known to the server; whether it would be taken is `plan`'s business.
    if !others.is_empty()
        && let Ok(applied) =
            client.apply(&Apply { documents: others, dry_run: true, ..Apply::default() }).await
    {
        warn(screen, &applied.plan.unwrap_or_default().warnings);
    }
    if screen.json {
        screen.object(&serde_json::json!({ "differing": differing }))?;
    }
    Ok(if differing.is_empty() { Answer::Done } else { Answer::No })
}

/// What lies between two moments of what was wanted.
async fn between(screen: &Screen, client: &Client, from: &str, to: Option<&str>) -> Result {
    let found = client.intent_between(from, to).await?;
    let answer = if found.files.is_empty() { Answer::Done } else { Answer::No };
    if screen.json {
        screen.object(&found)?;
        return Ok(answer);
    }
    for (word, commit) in [("from", &found.from), ("to", &found.to)] {
        let short: String = commit.commit.chars().take(10).collect();
        let subject = commit.message.lines().next().unwrap_or_default();
        screen.words(printable(&format!("{word} {short}, {} by {}: {subject}", commit.at, commit.by)));
    }
    for file in &found.files {
        for line in unified(&file.path, file.before.as_deref(), file.after.as_deref()) {
            screen.data(printable(&line))?;
        }
    }
    if found.more > 0 {
        screen.words(format_args!("{} more files differ; choose moments that are closer.", found.more));
    }
    Ok(answer)
}

pub(crate) async fn get(screen: &Screen, args: cli::Get) -> Result {
    let client = Client::connect(&args.connection)?;
    let kind = kind(args.kind);
    let format = if screen.json { Some(Format::Json) } else { args.output };
    let path = match (kind, &args.name) {
        (Kind::Fleet, None) => Some("fleet.yaml".to_owned()),
        (_, None) => None,
        (kind, Some(name)) => Some(named(kind, name)?),
    };
    let Some(path) = path else {
        let paths = client.intent_files().await?.into_iter().filter(|file| file.kind == kind.as_str());
        let paths: Vec<String> = paths.map(|file| file.path).collect();
        return all(screen, &client, &paths, format.unwrap_or(Format::Table)).await;
    };
    let format = format.unwrap_or(Format::Yaml);
    if client.intent_file(&path).await?.is_none() {
        return Err(Trouble::refused(format!("nothing is said in {path}"))
            .hint(format!("`margrave get {}` shows what there is", kind.as_str().to_lowercase())));
    }
    all(screen, &client, &[path], format).await
}

async fn all(screen: &Screen, client: &Client, paths: &[String], format: Format) -> Result {
    if format == Format::Table {
        let mut table = Table::new(&[Column::fixed("FILE")]);
        for path in paths {
            table.row([Field::plain(path)]);
        }
        screen.table(&table)?;
        return Ok(Answer::Done);
    }
    let mut values = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        // It may have gone since it was listed.
        let Some(text) = client.intent_file(path).await? else { continue };
        if format == Format::Json {
            values.push(value(path, &text)?);
            continue;
        }
        if index > 0 {
            screen.data("---")?;
        }
        for line in text.lines() {
            screen.data(printable(line))?;
        }
        // At the end, so that lines keep their numbers when `apply` takes it out again.
        screen.data(format!("{SEEN}{}", Digest::of(text.as_bytes())))?;
    }
    match (format, &values[..], paths) {
        (Format::Json, [one], [_]) => screen.object(one)?,
        (Format::Json, several, _) => screen.object(&several)?,
        _ => {}
    }
    Ok(Answer::Done)
}

pub(crate) fn schema(screen: &Screen, args: &cli::Schema) -> Result {
    screen.object(&resource::schema(kind(args.kind)))?;
    Ok(Answer::Done)
}

fn kind(kind: ResourceKind) -> Kind {
    match kind {
        ResourceKind::Deployment => Kind::Deployment,
        ResourceKind::Device => Kind::Device,
        ResourceKind::Package => Kind::Package,
        ResourceKind::Fleet => Kind::Fleet,
    }
}

/// The file of a name.
fn named(kind: Kind, name: &str) -> Result<String> {
    let place = match kind {
        Kind::Fleet => {
            return Err(Trouble::broke(format!("there is one fleet, and no {}", printable(name)))
                .hint("write `margrave get fleet`"));
        }
        Kind::Deployment => resource::Place::deployment(name),
        Kind::Device => resource::Place::device(name),
        Kind::Package => match name.split_once(['/', '@']) {
            Some((id, version)) => resource::Place::package(id, version),
            None => {
                return Err(Trouble::broke(format!("{name} names no version"))
                    .hint(format!("write it as {name}/VERSION; `margrave get package` shows them")));
            }
        },
    };
    place.map(|place| place.to_string()).map_err(|violation| Trouble::broke(violation.message))
}

fn value(path: &str, text: &str) -> Result<serde_json::Value> {
    let read = resource::read(path, text.as_bytes()).map_err(|flaws| broken(&flaws))?;
    let value = match &read.resource {
        Resource::Fleet(file) => serde_json::to_value(file),
        Resource::Package(file) => serde_json::to_value(file),
        Resource::Deployment(file) => serde_json::to_value(file),
        Resource::Device(file) => serde_json::to_value(file),
    };
    value.map_err(|error| Trouble::because(format!("{path} cannot be written as JSON"), &error))
}

fn broken(flaws: &[resource::Flaw]) -> Trouble {
    let lines: Vec<String> = flaws.iter().map(|flaw| printable(&flaw.to_string())).collect();
    Trouble::refused(lines.join("\n  "))
}

/// Where a document belongs.
fn place(document: &Document) -> Result<String> {
    let read = resource::read(&document.from, document.text.as_bytes()).map_err(|flaws| broken(&flaws))?;
    let place = read.resource.place();
    let wrong = |violation: margrave_core::violation::Violation| {
        Trouble::refused(format!("{}: {}", document.from, violation.message))
    };
    place.map(|place| place.to_string()).map_err(wrong)
}

fn texts(documents: &[Document]) -> Vec<String> {
    documents.iter().map(|document| document.text.clone()).collect()
}

/// The server counts documents, or names the file that each is there; people have files of their own.
fn located(trouble: Trouble, documents: &[Document]) -> Trouble {
    let mut message = trouble.message().to_owned();
    // From the last, so that 1 is not found in 10.
    for (index, document) in documents.iter().enumerate().rev() {
        message = renamed(&message, &format!("/documents/{index}"), document);
        if let Ok(there) = place(document) {
            message = renamed(&message, &there, document);
        }
    }
    trouble.reworded(message)
}

/// A message in which a document is called as its file is, with the line there, wherever it was called by this mark.
fn renamed(message: &str, mark: &str, document: &Document) -> String {
    let mut told = String::new();
    let mut rest = message;
    while let Some((before, after)) = rest.split_once(mark) {
        told.push_str(before);
        // The end of a longer name is another one; and of what is not told where, nothing is wrong with it.
        let is_whole = !told.ends_with(|last: char| last.is_alphanumeric() || "/.-_".contains(last));
        let is_meant = mark.starts_with('/') || (is_whole && after.starts_with(':'));
        if !is_meant {
            told.push_str(mark);
            rest = after;
            continue;
        }
        told.push_str(&document.from);
        rest = after;
        let digits: String =
            after.strip_prefix(':').unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
        if let Ok(line) = digits.parse::<usize>() {
            // Counted in its file, which may hold others before it.
            let line = line.checked_sub(1).and_then(|at| document.lines.get(at)).copied().unwrap_or(line);
            told.push_str(&format!(":{line}"));
            rest = &after[1 + digits.len()..];
        }
    }
    told.push_str(rest);
    told
}

/// What each was made from; nothing where none says so.
fn seen(documents: &[Document]) -> Vec<Option<String>> {
    let seen: Vec<Option<String>> = documents.iter().map(|document| document.seen.clone()).collect();
    if seen.iter().any(Option::is_some) { seen } else { Vec::new() }
}

fn read(sources: &[PathBuf]) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    for source in sources {
        if source == Path::new("-") {
            let text = text_of("standard input", std::io::stdin().lock())?;
            split("standard input", &text, &mut documents);
        } else {
            read_path(source, &mut documents)?;
        }
    }
    match documents.len() {
        0 => Err(nothing_in(sources)),
        1..=FILES_MAX => Ok(documents),
        _ => Err(Trouble::refused(format!("at most {FILES_MAX} resources at once"))),
    }
}

fn nothing_in(sources: &[PathBuf]) -> Trouble {
    let named = |source: &PathBuf| match source == Path::new("-") {
        true => "standard input".to_owned(),
        false => source.display().to_string(),
    };
    let names: Vec<String> = sources.iter().map(named).collect();
    Trouble::refused(format!("there is no resource in {}", names.join(", "))).hint(
        match sources.iter().any(|source| source.is_dir()) {
            true => "of a directory the files are read whose names end in .yaml",
            false => "a resource begins with `apiVersion: margrave/v1` and its `kind`; `margrave get` shows those that are there",
        },
    )
}

/// All of something that is text and not too large, however large it says it is.
fn text_of(from: &str, input: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    let read = input.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Trouble::because(format!("{from} cannot be read"), &error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Trouble::refused(format!("{from} is larger than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        Trouble::refused(format!("{from}:{line}: this is not text in UTF-8"))
    })
}

fn read_path(path: &Path, documents: &mut Vec<Document>) -> Result<()> {
    let unreadable =
        |error: &std::io::Error| Trouble::because(format!("{} cannot be read", path.display()), error);
    let found = std::fs::metadata(path).map_err(|error| unreadable(&error))?;
    if !found.is_dir() {
        let file = std::fs::File::open(path).map_err(|error| unreadable(&error))?;
        let from = path.display().to_string();
        split(&from, &text_of(&from, file)?, documents);
        return Ok(());
    }
    let mut entries: Vec<PathBuf> = std::fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|error| unreadable(&error))?;
    entries.sort();
    for entry in entries {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let wanted = !name.starts_with('.') && (name.ends_with(".yaml") || entry.is_dir());
        // A link could lead back to where we came from.
        if wanted && !entry.is_symlink() {
            read_path(&entry, documents)?;
        }
        if documents.len() > FILES_MAX {
            break;
        }
    }
    Ok(())
}

/// The documents of a file, which `---` separates.
fn split(from: &str, text: &str, documents: &mut Vec<Document>) {
    let blank = || Document { from: from.to_owned(), text: String::new(), lines: Vec::new(), seen: None };
    let mut current = blank();
    let mut add = |current: &mut Document| {
        let document = std::mem::replace(current, blank());
        let says = |line: &str| !line.trim().is_empty() && !line.starts_with('#');
        if document.text.lines().any(says) {
            documents.push(document);
        }
    };
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        if line.trim_end() == "---" {
            add(&mut current);
        } else if let Some(digest) = line.strip_prefix(SEEN) {
            current.seen = Some(digest.trim().to_owned());
        } else {
            current.text.push_str(line);
            current.lines.push(number);
        }
    }
    add(&mut current);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_has_no_end_or_says_nothing_is_told_as_such() {
        let wrong = |bytes: &[u8]| text_of("x.yaml", bytes).unwrap_err();
        assert_eq!(wrong(b"a: 1\nb: \xff\n").message(), "x.yaml:2: this is not text in UTF-8");
        let endless = text_of("standard input", std::io::repeat(b'a')).unwrap_err();
        assert_eq!(endless.message(), format!("standard input is larger than {FILE_BYTES_MAX} bytes"));
        let folder = tempfile::tempdir().unwrap();
        let (words, empty) = (folder.path().join("words.yaml"), folder.path().join("empty"));
        std::fs::write(&words, "# only words\n").unwrap();
        std::fs::create_dir(&empty).unwrap();
        for source in [words, empty] {
            let nothing = read(std::slice::from_ref(&source)).err().unwrap();
            assert_eq!(nothing.message(), format!("there is no resource in {}", source.display()));
        }
    }

    #[test]
    fn a_file_may_hold_several_documents() {
        let mut documents = Vec::new();
        split("x.yaml", "# only words\n---\nkind: A\n---\n\n---\nkind: B\ntext: '--- no'\n", &mut documents);
        let texts: Vec<&str> = documents.iter().map(|document| document.text.as_str()).collect();
        assert_eq!(texts, ["kind: A\n", "kind: B\ntext: '--- no'\n"]);
    }

    #[test]
    fn what_was_seen_is_told_apart_from_what_is_wanted() {
        let mut documents = Vec::new();
        let text =
            format!("kind: A\n{SEEN}sha256:aa\n---\nkind: B\n---\n# Ours.\nkind: C\n{SEEN}sha256:cc\n");
        split("x.yaml", &text, &mut documents);
        let found: Vec<_> =
            documents.iter().map(|found| (found.text.as_str(), found.seen.as_deref())).collect();
        let a = ("kind: A\n", Some("sha256:aa"));
        assert_eq!(found, [a, ("kind: B\n", None), ("# Ours.\nkind: C\n", Some("sha256:cc"))]);
    }

    #[test]
    fn what_is_fetched_is_bounded_only_where_all_of_it_is_known() {
        let fetch = |images: &[&str]| Fetch {
            site: Some("nord".into()),
            devices: 2,
            bytes: 2048,
            unknown: vec![],
            unknown_images: images.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert_eq!(to_fetch(&fetch(&[])), "nord: at most 2048 bytes for 2 devices");
        let told = "nord: at least 2048 bytes for 2 devices; the size of 1 image is not known: a:1";
        assert_eq!(to_fetch(&fetch(&["a:1"])), told);
    }

    #[test]
    fn the_steps_of_a_rollout_are_told_in_order_with_what_each_waits_for() {
        let batch = |number: u32, devices, now, not_yet, first: &[&str], after: Option<&str>| PlannedBatch {
            number,
            devices,
            now,
            not_yet,
            first: first.iter().map(|name| (*name).to_owned()).collect(),
            after: after.map(ToOwned::to_owned),
        };
        let rollout = PlannedRollout {
            deployment: "web".into(),
            devices: 14,
            batches_total: 4,
            batches: vec![
                batch(1, 3, 1, 1, &["a", "b", "c"], None),
                batch(2, 10, 0, 0, &["d", "e"], Some("all of batch 1 have it installed")),
            ],
            strategy: serde_json::from_str(r#"{ "batches": ["3"] }"#).unwrap(),
            stopped: None,
        };
        let paused = "the rollout was paused by ann; its devices wait until it is resumed".to_owned();
        let stopped = steps(&PlannedRollout { stopped: Some(paused.clone()), ..rollout.clone() });
        assert_eq!(stopped[0], paused);
        assert!(
            stopped[1]
                .ends_with("(a, b, c), once it is resumed; 1 not in contact, each gets it when it is back")
        );
        assert_eq!(
            steps(&rollout),
            [
                "batch 1 of 4: 3 devices (a, b, c), at once; 1 not in contact, each gets it when it is back; 1 of them \
                 first, the others as their sites allow",
                "batch 2 of 4: 10 devices (d, e, …), once all of batch 1 have it installed",
                "and 2 more batches",
                "batches of 3; halts when it fails",
            ]
        );
    }

    #[test]
    fn a_folder_is_read_with_its_folders_in_order() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        for (name, text) in
            [("b/one.yaml", "kind: B"), ("a.yaml", "kind: A"), ("README.md", "no"), (".ci.yaml", "no")]
        {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let texts = texts(&read(&[folder.path().to_owned()]).unwrap());
        assert_eq!(texts, ["kind: A", "kind: B"]);
        assert!(read(&[folder.path().join("nobody.yaml")]).is_err());
    }

    #[test]
    fn a_package_is_named_with_its_version() {
        assert_eq!(named(Kind::Package, "board/1.0.0").unwrap(), "packages/board/1.0.0.yaml");
        assert_eq!(named(Kind::Package, "board@1.0.0").unwrap(), "packages/board/1.0.0.yaml");
        assert!(named(Kind::Package, "board").is_err());
        assert!(named(Kind::Fleet, "nord").unwrap_err().message().contains("there is one fleet"));
    }

    #[test]
    fn a_refusal_speaks_of_the_files_that_were_given() {
        let documents: Vec<Document> = (0..11)
            .map(|n| Document {
                from: format!("f{n}.yaml"),
                text: String::new(),
                lines: vec![5, 6, 9],
                seen: None,
            })
            .collect();
        let said = located(
            Trouble::refused("/documents/10:3: wrong, /documents/1: wrong, /documents/2:7: wrong"),
            &documents,
        );
        assert_eq!(said.message(), "f10.yaml:9: wrong, f1.yaml: wrong, f2.yaml:7: wrong");
    }

    #[test]
    fn a_refusal_that_names_a_file_of_the_server_speaks_of_the_one_that_was_given() {
        let deployment = |name: &str| {
            format!(
                "apiVersion: margrave/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  package: app\n  version: 1.0.0\n  \
                 targets: {{devices: [line-1]}}\n"
            )
        };
        let mut documents = Vec::new();
        let text = format!("{}---\n{}", deployment("good"), deployment("bad"));
        split("two.yaml", &text, &mut documents);
        let there = place(&documents[1]).map_err(|trouble| trouble.message().to_owned());
        assert_eq!(there.as_deref(), Ok("deployments/bad.yaml"));
        let said = "The request breaks a rule\n  deployments/bad.yaml:4: no such package\n  deployments/other.yaml:1: wrong";
        assert_eq!(
            located(Trouble::refused(said), &documents).message(),
            "The request breaks a rule\n  two.yaml:12: no such package\n  deployments/other.yaml:1: wrong"
        );
    }
}
