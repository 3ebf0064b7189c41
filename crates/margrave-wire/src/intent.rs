//! Bodies of the operator interface about what is wanted as a whole: its files, its history, and what a change would do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::operator::Warning;
use crate::rollout::StrategyBody;

/// One commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Commit {
    pub commit: String,
    /// When it began to count here; where that is not known, when it was made.
    pub at: String,
    /// Its author.
    pub by: String,
    /// Who brought it here, where that is somebody else: who pushed it, or the server that follows a remote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_by: Option<String>,
    pub message: String,
}

/// A deployment that is not as the remote says, because that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoneBack {
    pub deployment: String,
    /// What it is since then.
    pub revision: u64,
    /// What failed.
    pub failed: u64,
    pub at: String,
    pub why: String,
}

/// Decides a conflict between the server and its repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resolve {
    /// Whether the repository's state is taken; otherwise the server's is kept.
    pub take: bool,
}

/// A file of what is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Such as `deployments/andon-board.yaml`.
    pub path: String,
    /// `Fleet`, `Package`, `Deployment` or `Device`.
    pub kind: String,
}

/// How a file that `margrave get` printed says which one it was: a comment with the digest of its bytes.
pub const SEEN: &str = "# margrave-seen: ";

/// Files that are to be wanted as they are given. Others stay.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Apply {
    /// YAML, one resource each; where it belongs follows from its kind and metadata.
    pub documents: Vec<String>,
    /// The commit that the writer saw; a change in between is then a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// For each document the digest of the file that the writer saw, or null where it saw none; a file that is another one by now
    /// is a conflict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 10000)]
    pub seen: Vec<Option<String>>,
    /// What the commit says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Only say what it would do; nothing is written.
    #[serde(default)]
    pub dry_run: bool,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// The commit that is applied now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Files that are, or would be, other than before, or whose secrets are.
    pub files: Vec<String>,
    /// For a dry run: what would follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// What somebody should know of the deployments that were changed; of a dry run it is in the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// What images of packages were pinned to, and their files do not say: by file and by the image's name. Files stay as they were
    /// written.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pins: BTreeMap<String, BTreeMap<String, String>>,
}

/// Digests by file and by the name of the image.
pub type Pins = BTreeMap<String, BTreeMap<String, String>>;

/// The lines by which files would say these pins, for people.
pub fn pin_words(pins: &Pins) -> Vec<String> {
    let mut words = Vec::new();
    for (file, images) in pins {
        words.push(format!(
            "{file}: images were pinned, and the file does not say so; to have it there, too, add under spec:"
        ));
        words.push("  images:".to_owned());
        words.extend(images.iter().map(|(name, digest)| format!("    {}: {digest}", key(name))));
    }
    words
}

/// A name as a key in YAML. What is not plainly the name of an image is written so that it means nothing else, nor to a terminal.
fn key(name: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "./:_-${}".contains(character);
    match name.chars().all(is_plain) && !name.starts_with([':', '-', '{', '}']) {
        true => name.to_owned(),
        false => serde_json::Value::from(name).to_string(),
    }
}

/// What a change would do to the fleet as it is at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub changes: Vec<Planned>,
    /// Who is meant and gets nothing.
    pub misfits: Vec<PlannedMisfit>,
    /// Who gets something that does not fit, because it is forced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<PlannedForce>,
    /// What devices would fetch, by site.
    pub fetches: Vec<Fetch>,
    /// In which order devices would change, for each deployment that goes in steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rollouts: Vec<PlannedRollout>,
    /// What somebody should know of the deployments that would change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

/// The steps in which a deployment would go to its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedRollout {
    pub deployment: String,
    pub devices: u32,
    pub batches_total: u32,
    /// The first 200, in their order.
    pub batches: Vec<PlannedBatch>,
    pub strategy: StrategyBody,
    /// Why nobody gets it for now, where the rollout was stopped and stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedBatch {
    /// From 1.
    pub number: u32,
    pub devices: u32,
    /// So many of them get it with the change itself.
    pub now: u32,
    /// So many of them are not heard of at the moment; each gets it when it is back and its turn has come.
    pub not_yet: u32,
    /// The first ten, in their order.
    pub first: Vec<String>,
    /// What has to have come about before it begins; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// One application on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    pub device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    pub deployment: String,
    /// The batch that it would get it in, from 1; absent where all get it at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// Absent when it would be new there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PlannedState>,
    /// Absent when it would go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<PlannedState>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedState {
    pub version: String,
    pub profile: String,
    /// Digest of the device's document.
    pub document: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedMisfit {
    pub deployment: String,
    pub device: String,
    pub reasons: Vec<String>,
    /// It has not said yet what it is, and comes in by itself if it fits.
    pub temporary: bool,
    /// It was named on purpose, so the change as a whole would be refused.
    pub refused: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedForce {
    pub deployment: String,
    pub device: String,
    /// Why it does not fit.
    pub despite: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fetch {
    /// Absent for devices without a site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    pub devices: u64,
    /// Of components and of images that are pinned, for all devices together. What a device runs now
    /// by the same deployment is not counted; what else lies there is not known here.
    pub bytes: u64,
    /// Components whose size is not known: they lie elsewhere, and were added before sizes were kept or do not tell one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// Images whose size is not known, and which are not counted; of a component whose images are not known, the component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_images: Vec<String>,
}

impl Fetch {
    /// What the bytes are: the most that is fetched, since devices may have some of it already; or the least, where not everything
    /// is counted.
    pub fn bound(&self) -> &'static str {
        if self.unknown.is_empty() && self.unknown_images.is_empty() { "at most" } else { "at least" }
    }

    /// What the bytes do not count, in words for people.
    pub fn uncounted(&self) -> Vec<String> {
        let names = self.unknown_images.join(", ");
        let components = match self.unknown.is_empty() {
            true => None,
            false => Some(format!("of unknown size: {}", self.unknown.join(", "))),
        };
        let images = match self.unknown_images.len() {
            0 => None,
            1 => Some(format!("the size of 1 image is not known: {names}")),
            count => Some(format!("the sizes of {count} images are not known: {names}")),
        };
        components.into_iter().chain(images).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_told_as_lines_of_a_file() {
        let digest = "sha256:1".to_owned();
        let names = ["${MARGRAVE_REGISTRY}/web:1", "h:1/x", "odd\u{1b}: name"];
        let images = names.map(|name| (name.to_owned(), digest.clone())).into();
        let words = pin_words(&[("packages/a/1.yaml".to_owned(), images)].into());
        assert!(words[0].starts_with("packages/a/1.yaml: "), "{words:?}");
        let expected = [
            "  images:",
            "    ${MARGRAVE_REGISTRY}/web:1: sha256:1",
            "    h:1/x: sha256:1",
            "    \"odd\\u001b: name\": sha256:1",
        ];
        assert_eq!(words[1..], expected);
    }
}
