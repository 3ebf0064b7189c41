//! Sealing secrets, and noticing that one is another than before.

use margrave_core::deployment::Deployment;
use margrave_core::id::{DeploymentName, ParameterName};
use margrave_core::parameters::{Answer, Answers};
use margrave_core::secret::{Reference, Secrets, is_wanting};
use margrave_store::DeploymentRecord;
use margrave_wire::operator::{SealSecret, SealedSecret, SealedText};

use super::{Error, Fleet};
use crate::vault::VaultError;

impl Fleet {
    /// A value, so that only this server can open it, for this purpose.
    pub fn seal(&self, want: &SealSecret) -> Result<SealedSecret, Error> {
        let name = DeploymentName::parse(&want.deployment)
            .map_err(|error| Error::invalid("/deployment", "secret", error.to_string()))?;
        let parameter = ParameterName::parse(&want.parameter)
            .map_err(|error| Error::invalid("/parameter", "secret", error.to_string()))?;
        match self.options.vault.seal(&name, &parameter, &want.value) {
            Ok(Reference::Sealed(sealed)) => {
                let secret = SealedText { sealed: sealed.as_str().to_owned() };
                Ok(SealedSecret { secret, warnings: Vec::new() })
            }
            Ok(_) => unreachable!("sealing makes sealed values"),
            Err(error @ VaultError::Length) => Err(Error::invalid("/value", "secret", error.to_string())),
            Err(VaultError::NoRandomness) => Err(Error::NoRandomness),
            Err(error) => Err(Error::Keys(Box::new(error))),
        }
    }

    /// The same, with what there is to say about what it is for: what opens for one name only is lost on a wrong one. That is no reason
    /// to refuse it, because a file may say the secret together with what it is for.
    pub async fn seal_for(&self, want: &SealSecret) -> Result<SealedSecret, Error> {
        let sealed = self.seal(want)?;
        let SealSecret { deployment, parameter, .. } = want;
        let name = DeploymentName::parse(deployment)
            .map_err(|error| Error::invalid("/deployment", "secret", error.to_string()))?;
        let warning = match self.wanted_deployment(&name).await? {
            None => {
                Some(format!("there is no deployment {name} yet, and for another one this does not open"))
            }
            Some(held) => {
                let package = &held.deployment.package;
                let entries = self.entries().await?;
                let mut versions = entries.iter().filter(|entry| entry.record.id == *package);
                let has_it = versions.any(|entry| {
                    entry.package.parameters.keys().any(|known| known.as_str() == parameter.as_str())
                });
                (!has_it).then(|| {
                    format!(
                        "no version of {package} in the catalog, which {name} deploys, has a parameter {parameter}, and for another \
                         one this does not open"
                    )
                })
            }
        };
        Ok(SealedSecret { warnings: warning.into_iter().collect(), ..sealed })
    }

    /// Whether something that a deployment refers to is another than when it was last published, or not to be had any more:
    /// whoever wants it again hears of that.
    pub(super) fn has_other_secrets(&self, deployment: &Deployment) -> bool {
        let mut answers = answers_of(deployment).into_iter().flatten();
        if !answers.any(|(_, answer)| matches!(answer, Answer::Secret(_))) {
            return false;
        }
        let secrets: Secrets = self.options.vault.secrets(deployment);
        answers_of(deployment).into_iter().flatten().any(|(parameter, answer)| match answer {
            Answer::Secret(referred) => {
                let found = secrets.get(parameter, &referred.secret);
                found.map_or(true, |secret| referred.seen.as_ref() != Some(secret.fingerprint()))
            }
            Answer::Clear(_) => false,
        })
    }
}

impl Fleet {
    /// Whether devices were left out of a deployment for want of a secret, and none is wanting now.
    pub(super) fn has_secrets_again(&self, held: &DeploymentRecord) -> bool {
        let reasons = || held.misfits.iter().flat_map(|misfit| &misfit.reasons);
        if !reasons().any(|reason| is_wanting(reason)) {
            return false;
        }
        let secrets = self.options.vault.secrets(&held.deployment);
        answers_of(&held.deployment).into_iter().flatten().all(|(parameter, answer)| match answer {
            Answer::Secret(referred) => secrets.get(parameter, &referred.secret).is_ok(),
            Answer::Clear(_) => true,
        })
    }
}

fn answers_of(deployment: &Deployment) -> Vec<&Answers> {
    let overrides = deployment.overrides.iter().map(|other| &other.answers);
    [&deployment.answers].into_iter().chain(overrides).collect()
}

/// The same without what was seen behind its references.
pub(super) fn unseen(deployment: &Deployment) -> Deployment {
    let mut deployment = deployment.clone();
    let overrides = deployment.overrides.iter_mut().map(|other| &mut other.answers);
    for answer in [&mut deployment.answers].into_iter().chain(overrides).flat_map(Answers::values_mut) {
        if let Answer::Secret(referred) = answer {
            referred.seen = None;
        }
    }
    deployment
}
