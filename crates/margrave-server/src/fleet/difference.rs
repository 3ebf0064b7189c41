//! What differs between two wishes for a deployment, setting by setting, in the words of the form that they were made with: the same
//! on the page, on the command line and over REST.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::id::{PackageId, PackageVersion};
use margrave_core::rollback::When;
use margrave_wire::operator;
use margrave_wire::rollout::StrategyBody;
use serde_json::Value;

use super::{Error, Fleet};

/// A setting that is another, before and after; `None` is not there at all.
pub(crate) struct Difference {
    pub(crate) what: String,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

impl Difference {
    /// In a line.
    pub(crate) fn words(&self) -> String {
        let side = |text: &Option<String>| match text.as_deref() {
            None => "nothing".to_owned(),
            Some("") => "empty".to_owned(),
            Some(text) => text.to_owned(),
        };
        format!("{}: {} → {}", self.what, side(&self.before), side(&self.after))
    }
}

/// The packages that wishes ask for, by id and version; one that has left the catalog is missing.
pub(crate) struct Packages(BTreeMap<(String, String), operator::Package>);

impl Packages {
    pub(crate) async fn of(fleet: &Fleet, wanted: BTreeSet<(&str, &str)>) -> Result<Self, Error> {
        let mut found = BTreeMap::new();
        for (id, version) in wanted {
            let (Ok(package), Ok(at)) = (PackageId::parse(id), PackageVersion::parse(version)) else {
                continue;
            };
            match fleet.package(&package, &at).await {
                Ok(package) => drop(found.insert((id.to_owned(), version.to_owned()), package)),
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Packages(found))
    }

    pub(crate) fn find(&self, id: &str, version: &str) -> Option<&operator::Package> {
        self.0.get(&(id.to_owned(), version.to_owned()))
    }
}

/// What a deployment is or was to be, or is wanted to become.
pub(crate) struct Wanted<'a> {
    package: &'a str,
    version: &'a str,
    profile: Option<&'a str>,
    parameters: &'a BTreeMap<String, Value>,
    targets: &'a operator::Targets,
    overrides: &'a [operator::Override],
    force: Option<&'a str>,
    rollback: &'a operator::Rollback,
    strategy: &'a StrategyBody,
    windows: &'a [String],
    /// What its package asks, where that is known.
    asked: Option<&'a operator::Package>,
}

impl<'a> Wanted<'a> {
    pub(crate) fn of(revision: &'a operator::Revision, packages: &'a Packages) -> Self {
        Wanted {
            package: &revision.package,
            version: &revision.version,
            profile: revision.profile.as_deref(),
            parameters: &revision.parameters,
            targets: &revision.targets,
            overrides: &revision.overrides,
            force: revision.force.as_deref(),
            rollback: &revision.rollback,
            strategy: &revision.strategy,
            windows: &revision.windows,
            asked: packages.find(&revision.package, &revision.version),
        }
    }

    pub(crate) fn now(deployment: &'a operator::Deployment, packages: &'a Packages) -> Self {
        Wanted {
            package: &deployment.package,
            version: &deployment.version,
            profile: deployment.profile.as_deref(),
            parameters: &deployment.parameters,
            targets: &deployment.targets,
            overrides: &deployment.overrides,
            force: deployment.force.as_deref(),
            rollback: &deployment.rollback,
            strategy: &deployment.strategy,
            windows: &deployment.windows,
            asked: packages.find(&deployment.package, &deployment.version),
        }
    }

    /// What it would become; what is not said stays.
    pub(crate) fn then(
        deployment: &'a operator::Deployment,
        want: &'a operator::PutDeployment,
        asked: &'a operator::Package,
    ) -> Self {
        Wanted {
            package: &want.package,
            version: want.version.as_deref().unwrap_or(&deployment.version),
            profile: want.profile.as_deref(),
            parameters: &want.parameters,
            targets: &want.targets,
            overrides: &want.overrides,
            force: want.force.as_deref(),
            rollback: want.rollback.as_ref().unwrap_or(&deployment.rollback),
            strategy: want.strategy.as_ref().unwrap_or(&deployment.strategy),
            windows: want.windows.as_ref().unwrap_or(&deployment.windows),
            asked: Some(asked),
        }
    }

    /// Whether the package answers the same where nobody says anything.
    fn answers(&self, part: &Place, said: &Part) -> bool {
        let (Place::Answer(parameter), Some(package)) = (part, self.asked) else { return false };
        let mut settings = settings(package);
        let setting =
            settings.find(|(_, setting)| setting.parameter == *parameter).map(|(_, setting)| setting);
        setting.is_some_and(|setting| setting.default.is_some() && setting.default == said.exact)
    }

    /// What stands for a part that nobody said anything about.
    fn unsaid(&self, part: &Place) -> Option<String> {
        match part {
            Place::Answer(parameter) => {
                let Some(package) = self.asked else { return Some("the package's default".to_owned()) };
                // Another version need not ask for it at all.
                let setting = settings(package).find(|(_, setting)| setting.parameter == *parameter)?.1;
                let default = setting.default.as_ref().map(shown).filter(|text| !text.is_empty());
                Some(
                    default.map_or_else(
                        || "no answer".to_owned(),
                        |text| format!("the package's default, {text}"),
                    ),
                )
            }
            Place::AnswerFor(..) => Some("as for all".to_owned()),
            Place::Profile => Some("the first that fits each device".to_owned()),
            Place::Windows => Some("at any time that its devices allow".to_owned()),
            Place::Rollback => Some(policy(&operator::Rollback::default())),
            Place::Package | Place::Version | Place::Targets | Place::Rollout | Place::Force => None,
        }
    }
}

/// The parts of a wish, in the order of the form.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
enum Place {
    Package,
    Version,
    Profile,
    /// By parameter.
    Answer(String),
    /// For whom, and by parameter.
    AnswerFor(String, String),
    Targets,
    Force,
    Rollout,
    Windows,
    Rollback,
}

/// A part of what is wanted, as it is shown, and as it is.
struct Part {
    what: String,
    text: String,
    exact: Option<Value>,
}

impl Part {
    fn new(what: &str, text: impl Into<String>) -> Part {
        Part { what: what.to_owned(), text: text.into(), exact: None }
    }
}

/// What differs, and what does not.
pub(crate) fn compare(
    before: Option<&Wanted<'_>>,
    after: &Wanted<'_>,
) -> (Vec<Difference>, Vec<(String, String)>) {
    let now = parts(after);
    let Some(before) = before else {
        return (Vec::new(), now.into_values().map(|part| (part.what, part.text)).collect());
    };
    let was = parts(before);
    let mut differences = Vec::new();
    let mut same = Vec::new();
    for place in was.keys().chain(now.keys()).collect::<BTreeSet<_>>() {
        let (old, new) = (was.get(place), now.get(place));
        let what = new.or(old).map(|part| part.what.clone()).unwrap_or_default();
        match (old, new) {
            (Some(old), Some(new)) if (&old.text, &old.exact) == (&new.text, &new.exact) => {
                same.push((what, new.text.clone()));
            }
            // Of many devices only the first are named: which came and went is told instead.
            (Some(old), Some(_)) if *place == Place::Targets && old.exact.is_some() => {
                differences.push(Difference {
                    what,
                    before: Some(old.text.clone()),
                    after: Some(moved(before.targets, after.targets)),
                });
            }
            // Another secret looks like the one before.
            (Some(old), Some(new)) if old.text == new.text => differences.push(Difference {
                what,
                before: Some(old.text.clone()),
                after: Some(format!("another: {}", new.text)),
            }),
            // Said or left to the package, it is the same answer.
            (Some(said), None) if after.answers(place, said) => same.push((what, said.text.clone())),
            (None, Some(said)) if before.answers(place, said) => same.push((what, said.text.clone())),
            (old, new) => differences.push(Difference {
                what,
                before: old.map(|part| part.text.clone()).or_else(|| before.unsaid(place)),
                after: new.map(|part| part.text.clone()).or_else(|| after.unsaid(place)),
            }),
        }
    }
    (differences, same)
}

fn whereto(targets: &operator::Targets) -> Part {
    let many = targets.devices.len() > NAMES_MAX;
    let exact = many.then(|| serde_json::to_value(targets).ok()).flatten();
    Part { exact, ..Part::new("Where", reach(targets)) }
}

/// What differs between who was meant and who is.
fn moved(before: &operator::Targets, after: &operator::Targets) -> String {
    let without = |these: &operator::Targets, those: &operator::Targets| -> Vec<String> {
        let those: BTreeSet<&String> = those.devices.iter().collect();
        some(&these.devices.iter().filter(|name| !those.contains(name)).cloned().collect::<Vec<_>>())
    };
    let (new, gone) = (without(after, before), without(before, after));
    let mut told = vec![reach(after)];
    if !new.is_empty() {
        told.push(format!("new: {}", new.join(", ")));
    }
    if !gone.is_empty() {
        told.push(format!("no longer: {}", gone.join(", ")));
    }
    told.join("; ")
}

/// What is wanted, part by part; what is as usual is left out.
fn parts(wanted: &Wanted<'_>) -> BTreeMap<Place, Part> {
    let mut parts: BTreeMap<Place, Part> = [
        (Place::Package, Part::new("Package", wanted.package)),
        (Place::Version, Part::new("Version", wanted.version)),
        (Place::Targets, whereto(wanted.targets)),
        (Place::Rollout, Part::new("How fast", wanted.strategy.words().join("; "))),
    ]
    .into();
    parts.extend(wanted.profile.map(|profile| (Place::Profile, Part::new("Profile", profile))));
    parts.extend(wanted.force.map(|reason| (Place::Force, Part::new("Forced", reason))));
    if !wanted.windows.is_empty() {
        parts.insert(Place::Windows, Part::new("Changes", wanted.windows.join(" and ")));
    }
    if *wanted.rollback != operator::Rollback::default() {
        parts.insert(Place::Rollback, Part::new("If it fails", policy(wanted.rollback)));
    }
    for (parameter, value) in wanted.parameters {
        let part =
            Part { what: called(wanted.asked, parameter), text: shown(value), exact: Some(value.clone()) };
        parts.insert(Place::Answer(parameter.clone()), part);
    }
    for held in wanted.overrides {
        let of = reach(&held.targets);
        // Two groups of many devices may look alike.
        let group = serde_json::to_string(&held.targets).unwrap_or_default();
        for (parameter, value) in &held.parameters {
            let what = format!("{}, for {of}", called(wanted.asked, parameter));
            let part = Part { what, text: shown(value), exact: Some(value.clone()) };
            parts.insert(Place::AnswerFor(group.clone(), parameter.clone()), part);
        }
    }
    parts
}

/// Who is meant, in a line.
pub(crate) fn reach(targets: &operator::Targets) -> String {
    let operator::Targets { devices, labels, select, sites } = targets;
    let labels = labels.iter().map(|(key, value)| format!("{key}={value}"));
    let sites = sites.iter().map(|site| format!("site {site}"));
    some(devices).into_iter().chain(labels).chain(sites).chain(select.clone()).collect::<Vec<_>>().join(", ")
}

/// So many devices are named where a page says which; of the others, how many there are.
pub(crate) const NAMES_MAX: usize = 50;

/// The first of these names, and how many more there are.
pub(super) fn some(names: &[String]) -> Vec<String> {
    let mut told: Vec<String> = names.iter().take(NAMES_MAX).cloned().collect();
    if names.len() > NAMES_MAX {
        told.push(format!("and {} more", names.len() - NAMES_MAX));
    }
    told
}

fn settings(
    package: &operator::Package,
) -> impl Iterator<Item = (&operator::PackageSection, &operator::PackageSetting)> {
    package.sections.iter().flat_map(|section| section.settings.iter().map(move |setting| (section, setting)))
}

/// What a parameter is called in the form; the parameter's own name where nobody knows.
pub(crate) fn called(package: Option<&operator::Package>, parameter: &str) -> String {
    let all = || package.into_iter().flat_map(settings);
    let Some((section, setting)) = all().find(|(_, setting)| setting.parameter == parameter) else {
        return parameter.to_owned();
    };
    let same = |(_, other): &(&operator::PackageSection, &operator::PackageSetting)| {
        other.name == setting.name && other.parameter != setting.parameter
    };
    match all().any(|other| same(&other)) {
        true => format!("{}, {}", section.name, setting.name),
        false => setting.name.clone(),
    }
}

/// What devices do about an update that fails, for people.
pub(crate) fn policy(rollback: &operator::Rollback) -> String {
    let operator::Rollback { when, attempts, health_grace_seconds } = rollback;
    let when = match when.as_deref() == Some(When::Never.as_str()) {
        true => "stay with it and try again",
        false => "back to the last healthy version",
    };
    let attempts = attempts.map(|attempts| match attempts {
        1 => "; give up after 1 attempt".to_owned(),
        attempts => format!("; give up after {attempts} attempts"),
    });
    let grace = health_grace_seconds.map(|grace| format!("; it may look unhealthy for {}", spoken(grace)));
    format!("{when}{}{}", attempts.unwrap_or_default(), grace.unwrap_or_default())
}

/// A value as a person would type it.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Null => String::new(),
        Value::Object(_) => match reference(value) {
            Some(text) if text.starts_with("sealed:") => "a secret, sealed".to_owned(),
            Some(text) => format!("a secret, from {text}"),
            None => value.to_string(),
        },
        other => other.to_string(),
    }
}

/// The same for who only reads it.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => plain(other),
    }
}

/// A secret as the command line names it: `env:NAME`.
pub(crate) fn reference(value: &Value) -> Option<String> {
    let (kind, text) = value.get("secret")?.as_object()?.iter().next()?;
    Some(format!("{kind}:{}", text.as_str()?))
}

/// The same, as a person would type it.
pub(crate) fn spoken(seconds: u64) -> String {
    for (unit, scale) in [("d", 86400), ("h", 3600), ("m", 60)] {
        if seconds > 0 && seconds.is_multiple_of(scale) {
            return format!("{}{unit}", seconds / scale);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn revision(parameters: Value) -> operator::Revision {
        serde_json::from_value(json!({
            "revision": 1, "changedAt": "", "changedBy": "", "changes": [], "current": false, "removed": false,
            "package": "gate", "version": "1.0.0", "parameters": parameters, "targets": { "devices": ["a"] },
        }))
        .unwrap()
    }

    fn packages() -> Packages {
        let setting = |parameter: &str, name: &str, default: Value| {
            json!({
                "parameter": parameter, "name": name, "dataType": "integer", "required": false, "immutable": false, "multiselect": false,
                "default": default,
            })
        };
        let package = json!({
            "id": "gate", "version": "1.0.0", "name": "Gate", "organization": "x", "reference": "x", "addedAt": "", "addedBy": "",
            "profiles": [], "deployments": [],
            "sections": [
                { "name": "Line", "settings": [
                    setting("rate", "Rate", json!(5)), setting("tags", "Tags", json!(null)), setting("key", "Key", json!(null))] },
                { "name": "Alarm", "settings": [setting("alarm.rate", "Rate", json!(1))] },
            ],
        });
        let package = serde_json::from_value(package).unwrap();
        Packages(BTreeMap::from([(("gate".to_owned(), "1.0.0".to_owned()), package)]))
    }

    fn check(before: &operator::Revision, after: &operator::Revision, told: &[&str]) {
        let packages = packages();
        let (differences, _) = compare(Some(&Wanted::of(before, &packages)), &Wanted::of(after, &packages));
        assert_eq!(differences.iter().map(Difference::words).collect::<Vec<_>>(), told);
    }

    #[test]
    fn an_answer_that_is_the_packages_own_is_no_difference_whoever_says_it() {
        let (unsaid, said) = (revision(json!({})), revision(json!({ "rate": 5, "alarm.rate": 3 })));
        check(&unsaid, &said, &["Alarm, Rate: the package's default, 1 → 3"]);
        check(&said, &unsaid, &["Alarm, Rate: 3 → the package's default, 1"]);
        // Nothing is not the same as an empty text.
        check(&unsaid, &revision(json!({ "key": "" })), &["Key: no answer → empty"]);
    }

    #[test]
    fn revisions_differ_setting_by_setting_in_the_words_of_the_form() {
        let before = revision(json!({ "rate": 2, "tags": ["a", "b"] }));
        let mut after = revision(json!({ "tags": ["a", "c d"], "alarm.rate": 3 }));
        check(
            &before,
            &after,
            &[
                "Alarm, Rate: the package's default, 1 → 3",
                "Line, Rate: 2 → the package's default, 5",
                "Tags: a, b → a, c d",
            ],
        );
        after = before.clone();
        after.strategy = serde_json::from_value(json!({ "canary": { "size": "1" } })).unwrap();
        after.windows = vec!["sun 02:00-05:00 UTC".to_owned()];
        after.overrides = serde_json::from_value(
            json!([{ "targets": { "sites": ["nord"] }, "parameters": { "tags": ["z"] } }]),
        )
        .unwrap();
        check(
            &before,
            &after,
            &[
                "Tags, for site nord: as for all → z",
                "How fast: all at once → first 1; halts when it fails",
                "Changes: at any time that its devices allow → sun 02:00-05:00 UTC",
            ],
        );
        check(&before, &before, &[]);
        check(&revision(json!({ "key": true })), &revision(json!({ "key": false })), &["Key: yes → no"]);
    }

    #[test]
    fn another_secret_is_told_to_be_another_and_neither_is_told() {
        let sealed = |text: &str| revision(json!({ "key": { "secret": { "sealed": text } } }));
        check(&sealed("mgs1.a"), &sealed("mgs1.b"), &["Key: a secret, sealed → another: a secret, sealed"]);
    }

    #[test]
    fn a_package_that_is_gone_leaves_the_parameters_own_names() {
        let none = Packages(BTreeMap::new());
        let (before, after) = (revision(json!({ "rate": 2 })), revision(json!({})));
        let (differences, same) = compare(Some(&Wanted::of(&before, &none)), &Wanted::of(&after, &none));
        assert_eq!(differences[0].words(), "rate: 2 → the package's default");
        assert_eq!(same.len(), 4);
        let (differences, all) = compare(None, &Wanted::of(&before, &none));
        assert!(differences.is_empty() && all.len() == 5);
    }
}
