//! `deviceConstraints`: what an application needs of a device (data-model.md, section 7).

use margrave_core::constraints::{
    Capacity, Constraints, Expression, MEMORY_UNITS, Operator, Quantity, Rule, STORAGE_UNITS, is_pointer,
};
use serde_json::{Value, json};

use super::profile::Source;
use crate::tree::{At, Content, Findings};

/// What an application may ask for; a device reports the first three (AMB-33).
pub(crate) const ARCHITECTURES: [&str; 5] = ["amd64", "arm64", "arm", "riscv64", "other"];
/// Rules, expressions and values are somebody else's input, and a server evaluates them for every device.
const LIST_LENGTH_MAX: usize = 200;

const OPERATORS: [&str; 8] =
    ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "ContainsAll", "ContainsAny"];

/// The constraints, parsed and as written; `None` when something in them is wrong.
pub(crate) fn read(at: &At<'_>, source: Source, findings: &mut Findings) -> Option<Constraints> {
    if !findings.is_map(at, "DM-140") {
        return None;
    }
    let before = findings.len();
    if source == Source::Description {
        findings.unambiguous(at, "DM-122");
    }
    only(at, &["capacityRequirements", "eligibilityRules"], findings);
    let capacity = at.field("capacityRequirements").and_then(|at| read_capacity(&at, findings));
    let rules = match at.field("eligibilityRules").and_then(|at| bounded_items(&at, "DM-140", findings)) {
        Some(items) => items.iter().filter_map(|at| read_rule(at, findings)).collect(),
        None => Vec::new(),
    };
    (findings.len() == before).then(|| Constraints { capacity, rules, as_written: at.node.to_value() })
}

/// `requiredResources`, as earlier drafts called it, read as the constraints that it stands for (data-model.md, section 8): amounts
/// are amounts, and everything that has to be plugged in is an element that the device must have.
pub(crate) fn read_older(at: &At<'_>, findings: &mut Findings) -> Option<Constraints> {
    if !findings.is_map(at, "DM-130") {
        return None;
    }
    let before = findings.len();
    findings.unambiguous(at, "DM-122");
    only(at, &["cpu", "memory", "storage", "peripherals", "interfaces"], findings);
    let capacity = amounts(at, older_architecture, findings);
    let mut expressions = Vec::new();
    for (list, fields) in [("peripherals", &["type", "manufacturer", "model"][..]), ("interfaces", &["type"])]
    {
        let items = at.field(list).and_then(|at| bounded_items(&at, "DM-140", findings)).unwrap_or_default();
        for item in items.iter().filter(|item| findings.is_map(item, "DM-140")).collect::<Vec<_>>() {
            only(item, fields, findings);
            findings.required_text(item, "type", "DM-140");
            let known = |key: &&str| {
                let text = findings.optional_text(item, key, "DM-140")?;
                Some(Expression { key: format!("/{key}"), operator: Operator::In(vec![Value::String(text)]) })
            };
            let inner = fields.iter().filter_map(known).collect();
            expressions.push(Expression { key: format!("/{list}"), operator: Operator::ContainsAll(inner) });
        }
    }
    if findings.len() > before {
        return None;
    }
    let as_written = current(at, &capacity, &expressions);
    let property = (!expressions.is_empty()).then_some(expressions);
    let rules = property.map(|property| Rule { property: Some(property), label: None }).into_iter().collect();
    Some(Constraints { capacity: Some(capacity), rules, as_written })
}

/// The names of two kernels stand for what everybody else calls otherwise.
fn older_architecture(text: &str) -> &str {
    match text {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        text => text,
    }
}

/// What a device is told of it, in the words of today.
fn current(at: &At<'_>, capacity: &Capacity, expressions: &[Expression]) -> Value {
    let mut amounts = serde_json::Map::new();
    if let Some(cores) = at.field("cpu").and_then(|cpu| cpu.field("cores")) {
        let mut cpu = json!({ "cores": cores.node.to_value() });
        if !capacity.architectures.is_empty() {
            cpu["architectures"] = json!(capacity.architectures);
        }
        amounts.insert("cpu".to_owned(), cpu);
    }
    for key in ["memory", "storage"] {
        amounts.extend(at.field(key).map(|amount| (key.to_owned(), amount.node.to_value())));
    }
    let mut written = json!({ "capacityRequirements": amounts });
    if !expressions.is_empty() {
        let list: Vec<Value> = expressions.iter().map(spelled).collect();
        written["eligibilityRules"] = json!([{ "propertySelector": { "matchExpressions": list } }]);
    }
    written
}

fn spelled(expression: &Expression) -> Value {
    match &expression.operator {
        Operator::In(values) => json!({ "key": expression.key, "operator": "In", "values": values }),
        Operator::ContainsAll(inner) => {
            let inner: Vec<Value> = inner.iter().map(spelled).collect();
            let inner = json!({ "matchExpressions": inner });
            json!({ "key": expression.key, "operator": "ContainsAll", "itemSelector": inner })
        }
        _ => unreachable!("nothing else stands for what earlier drafts could say"),
    }
}

/// A field that is silently ignored here would place a workload where it must not run.
fn only(at: &At<'_>, known: &[&str], findings: &mut Findings) {
    for (key, entry) in at.entries().filter(|(key, _)| !known.contains(key)) {
        let hint = match key {
            "value" => "; the field is called values".to_owned(),
            "matchExpression" => "; the field is called matchExpressions".to_owned(),
            _ => format!("; known are {}", known.join(", ")),
        };
        let shown: String = key.chars().take(60).collect();
        findings.add(entry.place, "DM-150", format!("{shown} is no field of device constraints{hint}"));
    }
}

fn bounded_items<'n>(at: &At<'n>, rule: &'static str, findings: &mut Findings) -> Option<Vec<At<'n>>> {
    let items = findings.items(at, rule)?;
    if items.len() > LIST_LENGTH_MAX {
        let message = format!("has {} elements, at most {LIST_LENGTH_MAX} are accepted", items.len());
        findings.add(at.place.clone(), rule, message);
        return None;
    }
    Some(items)
}

fn read_capacity(at: &At<'_>, findings: &mut Findings) -> Option<Capacity> {
    if !findings.is_map(at, "DM-130") {
        return None;
    }
    only(at, &["cpu", "memory", "storage"], findings);
    Some(amounts(at, |text| text, findings))
}

fn amounts(at: &At<'_>, named: fn(&str) -> &str, findings: &mut Findings) -> Capacity {
    let mut capacity = Capacity::default();
    if let Some(cpu) = at.field("cpu").filter(|at| findings.is_map(at, "DM-131")) {
        only(&cpu, &["cores", "architectures"], findings);
        if let Some(cores) = findings.required(&cpu, "cores", "DM-131") {
            capacity.cores = findings.number(&cores, "DM-131");
            if capacity.cores.is_some_and(|cores| cores < 0.0) {
                findings.add(cores.place, "DM-131", "must not be negative");
            }
        }
        for item in findings.optional_items(&cpu, "architectures", "DM-131") {
            let Some(text) = findings.text(&item, "DM-131").map(named) else { continue };
            if ARCHITECTURES.contains(&text) {
                let known = capacity.architectures.iter().any(|known| known == text);
                capacity.architectures.extend((!known).then(|| text.to_owned()));
            } else {
                let hint = if text == "x86_64" { "; write amd64" } else { "" };
                let message = format!("must be one of {}{hint}", ARCHITECTURES.join(", "));
                findings.add(item.place, "DM-112", message);
            }
        }
    }
    let mut amount = |key: &str, units: &'static [&'static str]| {
        let read = |text: &str| {
            let shape =
                || format!("must be digits and one of {}, without a blank, such as 512Mi", units.join(", "));
            Quantity::required(text, units).ok_or_else(shape)
        };
        at.field(key).and_then(|at| findings.parsed(&at, "DM-133", read)).map(|Quantity(bytes)| bytes)
    };
    capacity.memory_bytes = amount("memory", MEMORY_UNITS);
    capacity.storage_bytes = amount("storage", STORAGE_UNITS);
    capacity
}

fn read_rule(at: &At<'_>, findings: &mut Findings) -> Option<Rule> {
    if !findings.is_map(at, "DM-140") {
        return None;
    }
    only(at, &["propertySelector", "labelSelector"], findings);
    let property = at.field("propertySelector").map(|at| read_selector(&at, Keys::Pointers, findings));
    let label = at.field("labelSelector").map(|at| read_selector(&at, Keys::Labels, findings));
    Some(Rule { property, label })
}

#[derive(Clone, Copy, PartialEq)]
enum Keys {
    Pointers,
    Labels,
}

fn read_selector(at: &At<'_>, keys: Keys, findings: &mut Findings) -> Vec<Expression> {
    if !findings.is_map(at, "DM-140") {
        return Vec::new();
    }
    only(at, &["matchExpressions"], findings);
    let list = findings.required(at, "matchExpressions", "DM-141");
    let items = list.and_then(|at| bounded_items(&at, "DM-141", findings));
    if items.as_ref().is_some_and(Vec::is_empty) {
        let message = "needs at least one expression; leave the selector out if there is nothing to select";
        findings.add(at.place_of("matchExpressions"), "DM-141", message);
    }
    items.unwrap_or_default().iter().filter_map(|at| read_expression(at, keys, findings)).collect()
}

fn read_expression(at: &At<'_>, keys: Keys, findings: &mut Findings) -> Option<Expression> {
    if !findings.is_map(at, "DM-140") {
        return None;
    }
    only(at, &["key", "operator", "values", "itemSelector"], findings);
    let key = findings.required_text(at, "key", "DM-142");
    if let (Some(key), Keys::Pointers) = (key, keys)
        && !is_pointer(key)
    {
        let message = "must be a JSON Pointer such as /vendor or /cpus/0/cores, starting with a slash";
        findings.add(at.place_of("key"), "DM-142", message);
    }
    let operator =
        findings.required_text(at, "operator", "DM-140").and_then(|name| read_operator(at, name, findings));
    Some(Expression { key: key?.to_owned(), operator: operator? })
}

fn read_operator(at: &At<'_>, name: &str, findings: &mut Findings) -> Option<Operator> {
    let contains = matches!(name, "ContainsAll" | "ContainsAny");
    let valued = matches!(name, "In" | "NotIn" | "Gt" | "Lt");
    if OPERATORS.contains(&name) {
        let unwanted = [("values", valued), ("itemSelector", contains)];
        for (key, _) in unwanted.into_iter().filter(|(key, wanted)| !wanted && at.has(key)) {
            findings.add(at.place_of(key), "DM-140", format!("{name} takes no {key}; remove it"));
        }
    }
    match name {
        "In" => read_values(at, findings).map(Operator::In),
        "NotIn" => read_values(at, findings).map(Operator::NotIn),
        "Gt" => read_bound(at, findings).map(Operator::Gt),
        "Lt" => read_bound(at, findings).map(Operator::Lt),
        "Exists" => Some(Operator::Exists),
        "DoesNotExist" => Some(Operator::DoesNotExist),
        "ContainsAll" | "ContainsAny" => {
            let inner = findings.required(at, "itemSelector", "DM-145")?;
            let inner = read_selector(&inner, Keys::Pointers, findings);
            Some(if name == "ContainsAll" {
                Operator::ContainsAll(inner)
            } else {
                Operator::ContainsAny(inner)
            })
        }
        _ => {
            let hint = if name == "ContainersAny" { "; write ContainsAny" } else { "" };
            let message = format!("must be one of {}{hint}", OPERATORS.join(", "));
            findings.add(at.place_of("operator"), "DM-148", message);
            None
        }
    }
}

/// Strings, numbers, or exactly one boolean; one type only.
fn read_values(at: &At<'_>, findings: &mut Findings) -> Option<Vec<Value>> {
    let list = findings.required(at, "values", "DM-140")?;
    let items = bounded_items(&list, "DM-140", findings)?;
    let all = |is: fn(&Content) -> bool| items.iter().all(|item| is(&item.node.content));
    let uniform = all(|content| matches!(content, Content::Text(_)))
        || all(|content| matches!(content, Content::Number(_)))
        || (items.len() == 1 && all(|content| matches!(content, Content::Boolean(_))));
    if items.is_empty() || !uniform {
        let message =
            "must be one or more texts, one or more numbers, or exactly one boolean, and of one type only";
        findings.add(list.place, "DM-140", message);
        return None;
    }
    Some(items.iter().map(|item| item.node.to_value()).collect())
}

fn read_bound(at: &At<'_>, findings: &mut Findings) -> Option<f64> {
    let list = findings.required(at, "values", "DM-140")?;
    let items = findings.items(&list, "DM-140")?;
    let number = match items.as_slice() {
        [only] => match &only.node.content {
            Content::Number(number) => number.as_f64(),
            Content::Text(text) => text.parse::<f64>().ok().filter(|number| number.is_finite()),
            _ => None,
        },
        _ => None,
    };
    if number.is_none() {
        findings.add(list.place, "DM-140", "must be exactly one number");
    }
    number
}
