//! `margrave deployment`: what is wanted, and where it stands.

use jiff::Timestamp;
use margrave_core::access::Role;
use margrave_wire::operator::{self, AssignmentCounts, Page, PutDeployment, Rollback, Targets};

use super::confirm::confirm;
use super::{answers, deploy, device, settle};
use crate::cli::{self, DeploymentUpdate, Noun};
use crate::client::{Client, Expected};
use crate::exit::{Answer, Result, Trouble};
use crate::render::{self, Column, Field, Screen, Table, count};

pub(crate) async fn run(screen: &Screen, args: Noun<cli::Deployment>) -> Result {
    let client = Client::connect(&args.connection)?;
    match args.verb {
        cli::Deployment::List => list(screen, &client.deployments().await?),
        cli::Deployment::Show { name } => show(screen, &client.deployment(&name).await?),
        cli::Deployment::Update(update) => self::update(screen, &client, *update).await,
        cli::Deployment::Revert { name, to, waiting } => revert(screen, &client, &name, to, &waiting).await,
        cli::Deployment::Remove { name, yes, wait, timeout } => {
            let deployment = match wait {
                true => client.deployment(&name).await?,
                false => client.deployment_begun(&name).await?,
            };
            let devices = count(deployment.counts.total, "device");
            if !confirm(&format!("Remove {name} from {devices}?"), yes)? {
                screen.words("Nothing was changed.");
                return Ok(Answer::No);
            }
            // What was asked about is what is removed, not what somebody made of it meanwhile.
            client.remove_deployment(&name, Expected::Revision(deployment.revision)).await?;
            if screen.json {
                screen.object(&serde_json::json!({ "removed": name }))?;
            } else {
                screen.words(format_args!("{name} is no longer wanted; {devices} will remove it."));
            }
            if wait {
                return settle::removed(screen, &client, &deployment, timeout).await;
            }
            Ok(Answer::Done)
        }
        cli::Deployment::History { name, device } => history(screen, &client, &name, device.as_deref()).await,
    }
}

fn list(screen: &Screen, deployments: &[operator::Deployment]) -> Result {
    if screen.json {
        screen.object(&deployments)?;
        return Ok(Answer::Done);
    }
    if deployments.is_empty() {
        screen.words("Nothing is deployed. `margrave package list` shows what could be.");
        return Ok(Answer::Done);
    }
    let mut table = Table::new(&[
        Column::fixed("DEPLOYMENT"),
        Column::fixed("PACKAGE"),
        Column::fixed("INSTALLED"),
        Column::fixed("REVISION").optional(),
        Column::fixed("CHANGED").optional(),
        Column::flexible("TARGETS"),
    ]);
    let now = Timestamp::now();
    for deployment in deployments {
        table.row([
            deployment.name.as_str().into(),
            format!("{}@{}", deployment.package, deployment.version).into(),
            installed(deployment).into(),
            deployment.revision.to_string().into(),
            render::ago(&deployment.changed_at, now).into(),
            targets(&deployment.targets).into(),
        ]);
    }
    screen.table(&table)?;
    Ok(Answer::Done)
}

/// How many have it; of one that is on its way out, on how many it still is.
fn installed(deployment: &operator::Deployment) -> String {
    let AssignmentCounts { converged, total, .. } = deployment.counts;
    match (deployment.removing, total.saturating_sub(converged)) {
        (false, _) => devices(&deployment.counts),
        (true, 1) => "being removed, still on 1 device".to_owned(),
        (true, left) => format!("being removed, still on {left} devices"),
    }
}

/// How many have it, and of the others who never will and who is not heard of.
fn devices(counts: &AssignmentCounts) -> String {
    let AssignmentCounts { converged, total, never, not_yet, .. } = counts;
    let apart = [(not_yet, "not yet"), (never, "never")].into_iter().filter(|(count, _)| **count > 0);
    let apart: String = apart.map(|(count, word)| format!(", {count} {word}")).collect();
    format!("{converged}/{total}{apart}")
}

fn targets(targets: &Targets) -> String {
    let labels = (!targets.labels.is_empty()).then(|| format!("[{}]", render::labels(&targets.labels)));
    let select = targets.select.as_ref().map(|select| format!("[{}]", render::printable(select)));
    let sites = targets.sites.iter().map(|site| format!("site:{}", render::printable(site)));
    targets.devices.iter().cloned().chain(labels).chain(select).chain(sites).collect::<Vec<_>>().join(" ")
}

fn show(screen: &Screen, deployment: &operator::Deployment) -> Result {
    if screen.json {
        screen.object(deployment)?;
        return Ok(Answer::Done);
    }
    let now = Timestamp::now();
    let mut facts = vec![
        ("Deployment", deployment.name.clone()),
        ("Package", format!("{}@{}", deployment.package, deployment.version)),
        ("Targets", targets(&deployment.targets)),
        (
            "Revision",
            format!(
                "{}, by {}, {}",
                deployment.revision,
                deployment.changed_by,
                render::ago(&deployment.changed_at, now)
            ),
        ),
    ];
    if let Some(profile) = &deployment.profile {
        facts.push(("Profile", profile.clone()));
    }
    if let Some(reason) = &deployment.force {
        facts.push(("Forced", render::printable(reason)));
    }
    facts.push(("Failed update", going_back(&deployment.rollback)));
    if !deployment.windows.is_empty() {
        facts.push(("Changes", deployment.windows.join(" and ")));
    }
    if deployment.strategy != Default::default() {
        facts.push(("Strategy", render::printable(&deployment.strategy.words().join("; "))));
    }
    if let Some(rollout) = &deployment.rollout {
        let reason = rollout.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        facts.push(("Rollout", render::printable(&format!("{}{reason}", rollout.state))));
    }
    screen.facts(&facts)?;
    if !deployment.parameters.is_empty() {
        screen.heading("Answers")?;
        let answers: Vec<(&str, String)> =
            deployment.parameters.iter().map(|(name, value)| (name.as_str(), render::value(value))).collect();
        screen.facts(&answers)?;
    }
    for one in &deployment.overrides {
        screen.heading(&format!("Other answers for {}", targets(&one.targets)))?;
        let answers: Vec<(&str, String)> =
            one.parameters.iter().map(|(name, value)| (name.as_str(), render::value(value))).collect();
        screen.facts(&answers)?;
    }
    screen.heading("Devices")?;
    screen.table(&device::assignments(&deployment.assignments, device::By::Device, now))?;
    for misfit in &deployment.misfits {
        screen.data(render::printable(&format!(
            "{} is left out: {}",
            misfit.device,
            misfit.reasons.join("; ")
        )))?;
    }
    Ok(Answer::Done)
}

fn going_back(rollback: &Rollback) -> String {
    let tries =
        |attempts: u32| if attempts == 1 { "one try".to_owned() } else { format!("{attempts} tries") };
    let mut words = match (rollback.when.as_deref(), rollback.attempts.map(tries)) {
        (Some("never"), None) => "stays; devices do not go back by themselves".to_owned(),
        (Some("never"), Some(tries)) => {
            format!("stays; devices do not go back by themselves, and give up after {tries}")
        }
        (_, None) => "devices go back to the last healthy version after 2 tries".to_owned(),
        (_, Some(tries)) => {
            format!(
                "devices go back to the last healthy version after {tries}, and give up where there is none"
            )
        }
    };
    if let Some(grace) = rollback.health_grace_seconds {
        words.push_str(&format!("; may look unhealthy for {grace} s"));
    }
    words
}

async fn update(screen: &Screen, client: &Client, update: DeploymentUpdate) -> Result {
    let DeploymentUpdate {
        name,
        set,
        secrets,
        unset,
        version,
        devices,
        labels,
        select,
        sites,
        force,
        no_force,
        failing,
        steps,
        windows,
        waiting,
    } = update;
    let now = client.deployment(&name).await?;
    let version = version.unwrap_or_else(|| now.version.clone());
    let package = client.package(&now.package, Some(&version)).await?;
    let parameters = match answers::changed(&package, &now.parameters, (&set, &secrets), &unset) {
        Ok(parameters) => parameters,
        // Nobody is asked for answers who may not change it.
        Err(trouble) => return Err(client.unless_not_allowed(Role::Operator, trouble).await),
    };
    let targets = if devices.is_empty() && labels.is_empty() && select.is_none() && sites.is_empty() {
        now.targets.clone()
    } else {
        let labels = cli::unique(&labels).map_err(Trouble::broke)?;
        Targets { devices, labels, select, sites }
    };
    let force = if no_force { None } else { force.or_else(|| now.force.clone()) };
    let rollback = failing.over(&now.rollback);
    let strategy = steps.over(&now.strategy)?;
    let windows = windows.wanted();
    let same = version == now.version && parameters == now.parameters && targets == now.targets;
    let same = same && force == now.force;
    // What is behind a reference may be another than before; the server knows.
    let refers = |answers: &std::collections::BTreeMap<String, serde_json::Value>| {
        answers.values().any(serde_json::Value::is_object)
    };
    let same =
        same && !refers(&now.parameters) && !now.overrides.iter().any(|other| refers(&other.parameters));
    let same = same && windows.as_ref().is_none_or(|windows| *windows == now.windows);
    let same = same && strategy.as_ref().is_none_or(|strategy| *strategy == now.strategy);
    if same && rollback.as_ref().is_none_or(|rollback| *rollback == now.rollback) {
        screen.words("That changes nothing; it is wanted like this already.");
        return deploy::finish(screen, client, &now, &waiting).await;
    }
    let want = PutDeployment {
        package: now.package,
        version: Some(version),
        profile: now.profile,
        parameters,
        targets,
        overrides: now.overrides,
        force,
        rollback,
        strategy,
        windows,
        revision: Some(now.revision),
    };
    let deployment = client.put_deployment(&name, &want, Expected::Revision(now.revision)).await?;
    deploy::finish(screen, client, &deployment, &waiting).await
}

async fn revert(
    screen: &Screen,
    client: &Client,
    name: &str,
    to: Option<u64>,
    waiting: &cli::Waiting,
) -> Result {
    let revisions = client.revisions(name).await?;
    let to = chosen(name, &revisions, to)?;
    let expected = match revisions.iter().find(|revision| revision.current) {
        Some(current) => Expected::Revision(current.revision),
        None => Expected::New,
    };
    let deployment = client.revert_deployment(name, to.revision, expected).await?;
    if expected == Expected::Revision(deployment.revision) {
        screen.words("That changes nothing; it is wanted like this already.");
    } else {
        let was = render::clock(&to.changed_at);
        screen.words(format_args!("{name} is again what it was at revision {} of {was}.", to.revision));
    }
    deploy::finish(screen, client, &deployment, waiting).await
}

/// The revision that was asked for, or the last before the one that is wanted now, or the last before it was removed. What
/// never came to its end is passed over, and what the server took back already is not brought again: whoever wants one of
/// those says which. What was removed and deployed anew has nothing before that to go back to without being told.
fn chosen<'a>(
    name: &str,
    revisions: &'a [operator::Revision],
    to: Option<u64>,
) -> Result<&'a operator::Revision> {
    let hint = format!("`margrave deployment history {name}` shows its revisions");
    let named = format!("{hint}; name one with --to");
    if let Some(number) = to {
        return revisions.iter().find(|revision| revision.revision == number).ok_or_else(|| {
            Trouble::refused(format!("{name} has no revision {number}, or it is not kept any more"))
                .hint(hint)
        });
    }
    let newest = revisions.first().filter(|newest| newest.current);
    let mut older = revisions.iter().filter(|revision| !revision.current && !revision.unfinished);
    let Some(newest) = newest else {
        return older.find(|revision| !revision.removed).ok_or_else(|| {
            Trouble::refused(format!("nothing is kept of {name} but that it was removed")).hint(hint)
        });
    };
    if let Some(back_to) = newest.back_to {
        return Err(Trouble::refused(format!(
            "the server went back by itself already, to what {name} was at revision {back_to}"
        ))
        .hint(named));
    }
    match older.next() {
        Some(before) if !before.removed => Ok(before),
        Some(_) => Err(Trouble::refused(format!(
            "{name} was removed and deployed anew, and was nothing else since then"
        ))
        .hint(named)),
        None if revisions.len() > 1 => {
            Err(Trouble::refused(format!("nothing that {name} was before came to its end")).hint(named))
        }
        None => Err(Trouble::refused(format!(
            "{name} was never anything else, so there is nothing to go back to"
        ))
        .hint(hint)),
    }
}

/// What a revision changed, and what became of it.
fn changes(revision: &operator::Revision) -> String {
    let mut words = revision.changes.clone();
    if let Some(back_to) = revision.back_to {
        words.push(format!("as it was at revision {back_to}: the server went back by itself"));
    }
    if revision.unfinished {
        let why = revision.ended.as_ref().map(|why| format!(": {}", render::printable(why)));
        words.push(format!("never came to its end{}", why.unwrap_or_default()));
    }
    words.join("; ")
}

/// The beginning of a commit's name, as long as people write it.
fn short(commit: &str) -> &str {
    commit.get(..10).unwrap_or(commit)
}

/// More devices than this are not told of unless one is named.
const HISTORIES_MAX: usize = 20;

#[derive(serde::Serialize)]
struct History {
    /// Newest first.
    revisions: Vec<operator::Revision>,
    /// None where they are too many.
    devices: Vec<DeviceHistory>,
    /// The first of those that had it and do not have it any more, unless one device was named.
    departed: Vec<operator::Departed>,
}

/// What one device went through.
#[derive(serde::Serialize)]
struct DeviceHistory {
    device: String,
    transitions: Vec<operator::Transition>,
}

async fn history(screen: &Screen, client: &Client, name: &str, device: Option<&str>) -> Result {
    let revisions = client.revisions(name).await?;
    let (devices, total) = match device {
        Some(device) => (vec![device.to_owned()], 1),
        None => match client.deployment_begun(name).await {
            Ok(deployment) => {
                let total = deployment.counts.total;
                let devices = deployment.assignments.into_iter().map(|assignment| assignment.device);
                (devices.take(HISTORIES_MAX).collect(), total)
            }
            // It was removed and has gone from its last device; what it was is still known.
            Err(trouble) if trouble.is_refusal() && revisions.iter().all(|r| !r.current) => (Vec::new(), 0),
            Err(trouble) => return Err(trouble),
        },
    };
    // Of many devices nobody reads everything, and each is a question of its own.
    let devices = if total > HISTORIES_MAX as u64 { Vec::new() } else { devices };
    let told_of_devices = !devices.is_empty();
    let mut histories = Vec::new();
    for device in devices {
        let transitions = client.transitions(name, &device).await?;
        histories.push(DeviceHistory { device, transitions });
    }
    let departed = match device {
        Some(_) => Page { items: Vec::new(), next: None },
        None => client.departed(name, HISTORIES_MAX).await?,
    };
    if screen.json {
        screen.object(&History { revisions, devices: histories, departed: departed.items })?;
        return Ok(Answer::Done);
    }
    let mut table = Table::new(&[
        Column::fixed("REVISION"),
        Column::fixed("TIME"),
        Column::fixed("BY").optional(),
        Column::fixed("PACKAGE").optional(),
        Column::fixed("COMMIT").optional(),
        Column::flexible("WHAT CHANGED"),
    ]);
    // Oldest first, as what the devices went through.
    for revision in revisions.iter().rev() {
        table.row([
            revision.revision.to_string().into(),
            render::clock(&revision.changed_at).into(),
            revision.changed_by.as_str().into(),
            format!("{}@{}", revision.package, revision.version).into(),
            revision.commit.as_deref().map(short).unwrap_or_default().into(),
            changes(revision).into(),
        ]);
    }
    screen.table(&table)?;
    if !told_of_devices && total > 0 {
        screen.words(format_args!(
            "It is on {}; what one of them went through: `margrave deployment history {name} --device DEVICE`.",
            count(total, "device")
        ));
    }
    if !departed.items.is_empty() {
        screen.data("")?;
        let mut table = Table::new(&[Column::fixed("DEVICE"), Column::fixed("ENDED")]);
        for gone in &departed.items {
            table.row([gone.device.as_str().into(), render::clock(&gone.ended_at).into()]);
        }
        screen.table(&table)?;
        let more = if departed.next.is_some() { ", and more" } else { "" };
        screen.words(format_args!(
            "They had it{more}; one that was retired meanwhile may still run it. What one of them went through: \
             `margrave deployment history {name} --device DEVICE`."
        ));
    }
    if histories.iter().all(|history| history.transitions.is_empty()) {
        return Ok(Answer::Done);
    }
    screen.data("")?;
    let mut table = Table::new(&[
        Column::fixed("TIME"),
        Column::fixed("DEVICE"),
        Column::fixed("STATE"),
        Column::fixed("MANIFEST").optional(),
        Column::flexible("REASON"),
    ]);
    let mut rows: Vec<(&str, &operator::Transition)> =
        histories.iter().flat_map(|h| h.transitions.iter().map(|t| (h.device.as_str(), t))).collect();
    // Stable, so that steps within one moment keep the order in which the server tells them.
    rows.sort_by_key(|(_, step)| step.at.parse::<Timestamp>().ok());
    for (device, step) in rows {
        let error = step.error.as_ref().map(|error| format!("{}: {}", error.code, error.message));
        let reason = step.reason.clone().or(error).unwrap_or_default();
        table.row([
            render::clock(&step.at).into(),
            device.into(),
            Field::state(&step.state),
            step.manifest_version.to_string().into(),
            reason.into(),
        ]);
    }
    screen.table(&table)?;
    Ok(Answer::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_deployment_is_for_is_told_however_it_was_said() {
        let all = Targets {
            devices: vec!["press-1".into()],
            labels: [("line".to_owned(), "4".to_owned())].into(),
            select: Some("cell in (1, 2), !spare".into()),
            sites: vec!["nord".into()],
        };
        assert_eq!(targets(&all), "press-1 [line=4] [cell in (1, 2), !spare] site:nord");
    }

    #[test]
    fn who_is_not_heard_of_and_who_refuses_is_told_beside_who_has_it() {
        let counts = AssignmentCounts { total: 5, converged: 2, not_yet: 2, never: 1, ..Default::default() };
        assert_eq!(devices(&counts), "2/5, 2 not yet, 1 never");
        assert_eq!(devices(&AssignmentCounts { total: 1, converged: 1, ..Default::default() }), "1/1");
    }

    #[test]
    fn what_is_on_its_way_out_is_told_as_such() {
        let shown = |removing: bool, total: u64| {
            let deployment = serde_json::json!({
                "id": "", "name": "web", "package": "app", "version": "1", "parameters": {}, "targets": {}, "revision": 2,
                "changedAt": "", "changedBy": "", "removing": removing, "assignments": [],
                "counts": { "total": total, "converged": 0, "pending": total, "failed": 0, "states": {} },
            });
            installed(&serde_json::from_value(deployment).expect("a deployment"))
        };
        assert_eq!(shown(false, 1), "0/1");
        assert_eq!(shown(true, 1), "being removed, still on 1 device");
        assert_eq!(shown(true, 3), "being removed, still on 3 devices");
    }

    fn revisions(words: &str) -> Vec<operator::Revision> {
        let words: Vec<&str> = words.split(' ').collect();
        let revision = |(age, word): (usize, &&str)| operator::Revision {
            revision: (words.len() - age) as u64,
            changed_at: String::new(),
            changed_by: String::new(),
            changes: Vec::new(),
            current: *word == "current",
            removed: *word == "removed",
            back_to: None,
            unfinished: *word == "unfinished",
            ended: None,
            package: "p".into(),
            version: "1".into(),
            profile: None,
            parameters: Default::default(),
            targets: Targets::default(),
            overrides: vec![],
            force: None,
            commit: None,
            rollback: Rollback::default(),
            strategy: Default::default(),
            windows: vec![],
        };
        words.iter().enumerate().map(revision).collect()
    }

    #[test]
    fn going_back_means_to_what_was_wanted_before() {
        for (newest_first, to, wanted) in [
            ("current old old", None, Some(2)),
            ("current old old", Some(1), Some(1)),
            ("current old old", Some(3), Some(3)),
            ("current old removed old", None, Some(3)),
            ("current removed old", None, None),
            ("current removed old", Some(1), Some(1)),
            // It was removed: then the last that was wanted comes back.
            ("removed old old", None, Some(2)),
            ("current", None, None),
            ("current old", Some(7), None),
            // What failed half-way is nothing to go back to, unless somebody says so.
            ("current unfinished old", None, Some(1)),
            ("current unfinished unfinished old old", None, Some(2)),
            ("current unfinished old", Some(2), Some(2)),
            ("current unfinished", None, None),
            ("current unfinished removed old", None, None),
            ("removed unfinished old", None, Some(1)),
        ] {
            let revisions = revisions(newest_first);
            let found = chosen("web", &revisions, to).map(|revision| revision.revision).ok();
            assert_eq!(found, wanted, "{newest_first} {to:?}");
        }
        let trouble = chosen("web", &revisions("current"), None).unwrap_err();
        assert!(trouble.hinted().unwrap().contains("deployment history web"));
    }

    #[test]
    fn what_the_server_went_back_from_does_not_come_again_without_being_named() {
        let mut revisions = revisions("current unfinished old old");
        revisions[0].back_to = Some(2);
        let trouble = chosen("web", &revisions, None).unwrap_err();
        assert!(trouble.message().contains("already, to what web was at revision 2"), "{trouble:?}");
        assert!(trouble.hinted().unwrap().contains("name one with --to"), "{trouble:?}");
        assert_eq!(chosen("web", &revisions, Some(3)).unwrap().revision, 3);
        assert_eq!(changes(&revisions[0]), "as it was at revision 2: the server went back by itself");
        assert_eq!(changes(&revisions[1]), "never came to its end");
    }
}
