//! Parameters, and the questions about them: sections, settings, schemas.

use std::collections::BTreeMap;

use margrave_core::id::{ComponentName, ParameterName};
use margrave_core::package::{Profile, ProfileKind};
use margrave_core::parameters::{DataType, Parameter, Schema, Section, Setting, Target};

use crate::tree::{At, Content, Findings};

const PARAMETER_COUNT_MAX: usize = 2_000;

pub(super) fn read_parameters(
    root: &At<'_>,
    profiles: &[Profile],
    findings: &mut Findings,
) -> BTreeMap<ParameterName, Parameter> {
    let mut parameters = BTreeMap::new();
    let Some(at) = root.field("parameters").filter(|at| findings.is_map(at, "DM-040")) else {
        return parameters;
    };
    if at.entries().count() > PARAMETER_COUNT_MAX {
        findings.add(at.place, "DM-040", format!("has more than {PARAMETER_COUNT_MAX} parameters"));
        return parameters;
    }
    for (name, at) in at.entries() {
        if !findings.is_map(&at, "DM-040") {
            continue;
        }
        let name = match ParameterName::parse(name) {
            Ok(name) => name,
            Err(error) => {
                findings.add(at.place, "DM-040", error.to_string());
                continue;
            }
        };
        let default = at.field("value").and_then(|at| {
            findings.unambiguous(&at, "DM-042");
            findings.parameter_value(&at, "DM-042")
        });
        let mut targets = read_targets(&at, findings);
        for target in &mut targets {
            strip_prefix(target, profiles);
        }
        parameters.insert(name, Parameter { default, targets });
    }
    parameters
}

pub(crate) fn read_targets(at: &At<'_>, findings: &mut Findings) -> Vec<Target> {
    let mut targets = Vec::new();
    for target in findings.required_items(at, "targets", "DM-040").unwrap_or_default() {
        if !findings.is_map(&target, "DM-040") {
            continue;
        }
        let pointer = findings.required_text(&target, "pointer", "DM-040");
        if pointer.is_some_and(str::is_empty) {
            findings.add(target.place_of("pointer"), "DM-040", "must not be empty");
        }
        let items = findings.required_items(&target, "components", "DM-040").unwrap_or_default();
        let components =
            items.iter().filter_map(|at| findings.parsed(at, "DM-040", ComponentName::parse)).collect();
        targets.extend(pointer.map(|pointer| Target { pointer: pointer.to_owned(), components }));
    }
    targets
}

/// `ENV.NAME` is how older packages wrote a Compose variable (DM-043). A Helm path may really start so.
fn strip_prefix(target: &mut Target, profiles: &[Profile]) {
    let kinds: Vec<ProfileKind> = profiles
        .iter()
        .filter(|profile| {
            profile.components.iter().any(|component| target.components.contains(&component.name))
        })
        .map(|profile| profile.kind)
        .collect();
    let compose = !kinds.is_empty() && kinds.iter().all(|kind| *kind == ProfileKind::Compose);
    if compose {
        target.pointer = bare_variable(&target.pointer).to_owned();
    }
}

/// A Compose variable without the prefix of before, however often that was put in front: what is read, written and read
/// again must be the same.
pub(crate) fn bare_variable(pointer: &str) -> &str {
    let mut name = pointer;
    while let Some(rest) = name.strip_prefix("ENV.").filter(|rest| !rest.is_empty()) {
        name = rest;
    }
    name
}

pub(super) fn read_configuration(
    root: &At<'_>,
    findings: &mut Findings,
) -> (Vec<Section>, BTreeMap<String, Schema>) {
    let Some(at) = root.field("configuration").filter(|at| findings.is_map(at, "DM-060")) else {
        return Default::default();
    };
    let sections = findings.required_items(&at, "sections", "DM-060").unwrap_or_default();
    let sections = sections.iter().filter_map(|at| read_section(at, findings)).collect();
    let mut schemas = BTreeMap::new();
    for item in findings.required_items(&at, "schema", "DM-060").unwrap_or_default() {
        let Some(schema) = read_schema(&item, findings) else { continue };
        for (rule, message) in schema.defects() {
            findings.add(item.place.clone(), rule, message);
        }
        if let Some(schema) = schemas.insert(schema.name.clone(), schema) {
            let message = format!("another schema is already named {}; choose a different name", schema.name);
            findings.add(item.place_of("name"), "DM-060", message);
        }
    }
    (sections, schemas)
}

fn read_section(at: &At<'_>, findings: &mut Findings) -> Option<Section> {
    if !findings.is_map(at, "DM-060") {
        return None;
    }
    let name = findings.required_text(at, "name", "DM-060");
    let settings = findings.required_items(at, "settings", "DM-060").unwrap_or_default();
    let settings = settings.iter().filter_map(|at| read_setting(at, findings)).collect();
    Some(Section { name: name?.to_owned(), settings })
}

fn read_setting(at: &At<'_>, findings: &mut Findings) -> Option<Setting> {
    if !findings.is_map(at, "DM-060") {
        return None;
    }
    let parameter = findings
        .required(at, "parameter", "DM-060")
        .and_then(|at| findings.parsed(&at, "DM-060", ParameterName::parse));
    let name = findings.required_text(at, "name", "DM-060");
    let description = findings.optional_text(at, "description", "DM-060");
    let immutable = findings.optional_boolean(at, "immutable", "DM-059").unwrap_or(false);
    let schema = findings.required_text(at, "schema", "DM-060");
    Some(Setting {
        parameter: parameter?,
        name: name?.to_owned(),
        description,
        immutable,
        schema: schema?.to_owned(),
    })
}

fn read_schema(at: &At<'_>, findings: &mut Findings) -> Option<Schema> {
    if !findings.is_map(at, "DM-060") {
        return None;
    }
    let name = findings.required_text(at, "name", "DM-060");
    let data_type =
        findings.required(at, "dataType", "DM-051").and_then(|at| findings.parsed(&at, "DM-051", read_type));
    let allow_empty = findings.optional_boolean(at, "allowEmpty", "DM-052").unwrap_or(false);
    let length_min = findings.optional_unsigned(at, "minLength", "DM-058");
    let length_max = findings.optional_unsigned(at, "maxLength", "DM-058");
    let regex = findings.optional_text(at, "regexMatch", "DM-056");
    let value_min = findings.optional_number(at, "minValue", "DM-058");
    let value_max = findings.optional_number(at, "maxValue", "DM-058");
    let precision_min = findings.optional_unsigned(at, "minPrecision", "DM-057");
    let precision_max = findings.optional_unsigned(at, "maxPrecision", "DM-057");
    let multiselect = findings.optional_boolean(at, "multiselect", "DM-055").unwrap_or(false);
    let options = at.field("options").and_then(|at| findings.items(&at, "DM-055"));
    let options = options.map(|items| items.iter().filter_map(|at| read_option(at, findings)).collect());
    Some(Schema {
        name: name?.to_owned(),
        data_type: data_type?,
        allow_empty,
        length_min,
        length_max,
        regex,
        value_min,
        value_max,
        precision_min,
        precision_max,
        options,
        multiselect,
    })
}

fn read_type(text: &str) -> Result<DataType, String> {
    DataType::parse(text).ok_or_else(|| {
        let known: Vec<_> = DataType::ALL.iter().map(|(name, _)| *name).collect();
        format!("must be one of {}", known.join(", "))
    })
}

/// Options are declared as strings, yet people write numbers for a number (DM-055).
fn read_option(at: &At<'_>, findings: &mut Findings) -> Option<String> {
    match &at.node.content {
        Content::Number(number) => Some(number.to_string()),
        Content::Boolean(value) => Some(value.to_string()),
        _ => findings.text(at, "DM-055").map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::bare_variable;

    #[test]
    fn dm_043_a_variable_is_named_the_same_however_often_it_is_read() {
        for (written, name) in
            [("A", "A"), ("ENV.A", "A"), ("ENV.ENV.A", "A"), ("ENV.", "ENV."), ("ENV.ENV.", "ENV."), ("", "")]
        {
            assert_eq!(bare_variable(written), name, "{written}");
            assert_eq!(bare_variable(bare_variable(written)), name, "{written}");
        }
    }
}
