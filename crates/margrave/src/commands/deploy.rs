//! `margrave deploy`: a package, onto devices.

use jiff::Timestamp;
use margrave_core::access::Role;
use margrave_core::id::DeploymentName;
use margrave_wire::operator::{Deployment, PutDeployment, Rollback, Targets, Warning};
use margrave_wire::rollout::StrategyBody;

use super::{answers, device, settle};
use crate::cli::{self, Deploy};
use crate::client::{Client, Expected};
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Screen, count, printable};

pub(crate) async fn run(screen: &Screen, args: Deploy) -> Result {
    let client = Client::connect(&args.connection)?;
    let package = client.package(&args.package.id, args.package.version.as_deref()).await?;
    let name = name(args.name.as_deref(), &package.id)?;
    let parameters = answers::both(&package, &args.set, &args.secrets)
        .and_then(|answers| answers::complete(&package, &answers).map(|()| answers));
    let parameters = match parameters {
        Ok(parameters) => parameters,
        // Nobody is asked for answers who may not deploy.
        Err(trouble) => return Err(client.unless_not_allowed(Role::Operator, trouble).await),
    };
    let want = PutDeployment {
        package: package.id,
        version: Some(package.version),
        profile: args.profile,
        parameters,
        targets: Targets {
            devices: args.devices,
            labels: cli::unique(&args.labels).map_err(Trouble::broke)?,
            select: args.select,
            sites: args.sites,
        },
        force: args.force,
        rollback: args.failing.over(&Rollback::default()),
        strategy: args.steps.over(&StrategyBody::default())?,
        windows: args.windows.wanted(),
        revision: None,
        ..Default::default()
    };
    let deployment = client.put_deployment(name.as_str(), &want, Expected::New).await?;
    finish(screen, &client, &deployment, &args.waiting).await
}

/// What a deployment is called unless it is named: as its package, as far as that is a name.
fn name(given: Option<&str>, package: &str) -> Result<DeploymentName> {
    let text = given.unwrap_or_else(|| {
        let end = package.len().min(63);
        package[..end].trim_matches('-')
    });
    DeploymentName::parse(text)
        .map_err(|error| Trouble::refused(error.to_string()).hint("give the deployment a name with --name"))
}

/// Devices that are listed after a change; of more, only the number is of use.
const LISTED_MAX: u64 = 100;

/// Shows a deployment that was just written, and waits for it if asked to.
pub(crate) async fn finish(
    screen: &Screen,
    client: &Client,
    deployment: &Deployment,
    waiting: &cli::Waiting,
) -> Result {
    for misfit in &deployment.misfits {
        let out = if misfit.temporary { "waits" } else { "is left out" };
        let reasons = printable(&misfit.reasons.join("; "));
        screen.words(format_args!("{} {out}: {reasons}", misfit.device));
    }
    warn(screen, &deployment.warnings);
    if waiting.wait {
        return settle::installed(screen, client, deployment, waiting.timeout).await;
    }
    let total = deployment.counts.total;
    // Wanted by somebody, and not to be had anywhere: that is a no.
    let in_steps = deployment.strategy != StrategyBody::default();
    let nowhere = total == 0 && !in_steps && !deployment.misfits.iter().any(|misfit| misfit.temporary);
    if screen.json {
        // The answer to a change only counts; programs are told of each device.
        screen.object(&client.deployment(&deployment.name).await?)?;
    } else if nowhere {
        screen.words(settle::nowhere(deployment));
    } else {
        screen.words(format_args!(
            "{} (revision {}) is wanted on {}.",
            deployment.name,
            deployment.revision,
            count(total, "device")
        ));
        if total <= LISTED_MAX {
            let shown = client.deployment(&deployment.name).await?;
            let now = Timestamp::now();
            screen.table(&device::assignments(&shown.assignments, device::By::Device, now))?;
        }
        if deployment.strategy == StrategyBody::default() {
            screen.words("Watch it with `margrave status --watch`.");
        } else {
            screen.words(format_args!(
                "It goes to its devices in steps; see them with `margrave rollout show {}`.",
                deployment.name
            ));
        }
    }
    Ok(if nowhere { Answer::No } else { Answer::Done })
}

/// What somebody should know, and that is no reason to refuse anything.
pub(crate) fn warn(screen: &Screen, warnings: &[Warning]) {
    for warning in warnings {
        screen.words(printable(&format!("warning: {warning}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_is_called_like_its_package_unless_told_otherwise() {
        assert_eq!(name(None, "andon-board").unwrap().as_str(), "andon-board");
        assert_eq!(name(None, &format!("{}-x", "a".repeat(62))).unwrap().as_str(), "a".repeat(62));
        assert_eq!(name(Some("other"), "andon-board").unwrap().as_str(), "other");
        assert!(name(Some("No"), "andon-board").unwrap_err().hinted().unwrap().contains("--name"));
        assert!(name(None, "---").is_err());
    }
}
