//! `margrave why`: the one true reason that something is not as wanted.

use margrave_wire::operator::{self, WhyKind};

use crate::cli::Why;
use crate::client::Client;
use crate::exit::{Answer, Result, Trouble};
use crate::render::{Column, Field, Screen, Table, printable};

pub(crate) async fn run(screen: &Screen, args: Why) -> Result {
    let (kind, subject) = subject(args.subject, args.name)?;
    let client = Client::connect(&args.connection)?;
    let why = client.why(kind, &subject).await?;
    if screen.json {
        screen.object(&why)?;
    } else {
        show(screen, &why)?;
    }
    Ok(if why.converged { Answer::Done } else { Answer::No })
}

/// What is asked about, and what kind of thing that is: a device, unless it is said.
fn subject(first: String, second: Option<String>) -> Result<(WhyKind, String)> {
    let nameless = |kind: &str| {
        Trouble::broke(format!("which {kind} is meant is missing"))
            .hint(format!("write `margrave why {kind} NAME`"))
    };
    let Some(name) = second.filter(|name| !name.is_empty()) else {
        // A device can be called so; then it is named as one.
        match first.as_str() {
            "" => return Err(nameless("device")),
            "device" | "deployment" | "rollout" => return Err(nameless(&first)),
            _ => {}
        }
        let kind = if first == WhyKind::Intent.as_str() { WhyKind::Intent } else { WhyKind::Device };
        return Ok((kind, first));
    };
    let kinds = [WhyKind::Device, WhyKind::Deployment, WhyKind::Rollout];
    match kinds.into_iter().find(|kind| kind.as_str() == first) {
        Some(kind) => Ok((kind, name)),
        None => Err(Trouble::broke(format!("{} is no kind of thing to ask about", printable(&first)))
            .hint("Write `margrave why DEVICE`, or name the kind first: device, deployment or rollout; `margrave why intent` needs no name.")),
    }
}

fn show(screen: &Screen, why: &operator::Why) -> Result<()> {
    let verdict = if why.converged { screen.state("converged") } else { why.verdict().to_owned() };
    screen.data(format_args!("{} is {verdict}", printable(&why.subject)))?;
    for (depth, cause) in why.chain.iter().enumerate() {
        screen.data(format_args!("{}because {}", "  ".repeat(depth + 1), printable(&cause.text)))?;
    }
    // Nearest to the root first: that is the one to act on.
    if let Some(hint) = why.chain.iter().rev().find_map(|cause| cause.hint.as_deref()) {
        screen.words(format_args!(" hint: {}", printable(hint)));
    }
    if !why.groups.is_empty() {
        screen.heading("Devices by cause")?;
        let mut table = Table::new(&[
            Column::fixed("DEVICES"),
            Column::fixed("CAUSE"),
            Column::fixed("SUCH AS"),
            Column::flexible("THERE"),
        ]);
        for group in &why.groups {
            table.row([
                Field::plain(format!("{}{}", group.count, if group.at_least { "+" } else { "" })),
                Field::plain(&group.code),
                Field::plain(&group.example),
                Field::plain(&group.text),
            ]);
        }
        screen.table(&table)?;
        if let Some(looked_at) = why.looked_at {
            screen.words(format_args!(
                " note: {} looked at, some of each state; a + says that there may be more with that cause",
                if looked_at == 1 { "1 device was".to_owned() } else { format!("{looked_at} devices were") }
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_without_a_name_is_not_taken_for_a_device() {
        let asked = |first: &str, second: Option<&str>| {
            subject(first.to_owned(), second.map(str::to_owned)).map_err(|wrong| wrong.message().to_owned())
        };
        assert_eq!(asked("press-1", None), Ok((WhyKind::Device, "press-1".to_owned())));
        assert_eq!(asked("device", Some("rollout")), Ok((WhyKind::Device, "rollout".to_owned())));
        assert_eq!(asked("intent", None), Ok((WhyKind::Intent, "intent".to_owned())));
        for kind in ["device", "deployment", "rollout"] {
            assert_eq!(asked(kind, None), Err(format!("which {kind} is meant is missing")));
        }
        assert_eq!(asked("", None), Err("which device is meant is missing".to_owned()));
    }
}
