//! `margrave demo`: start everything, say what to do, and leave nothing behind.

use std::path::Path;

use serde_json::json;

use super::serve::{Stop, quoted, signed_lines};
use crate::cli;
use crate::demo::{Demo, Wanted};
use crate::exit::{Answer, Result, Trouble};
use crate::logging;
use crate::render::{Screen, count};

pub(crate) async fn run(screen: &Screen, args: cli::Demo) -> Result {
    logging::for_a_demo()?;
    let cli::Demo { data, devices, simulated, listen, device_listen, local_listen, signed_listen } = args;
    let wanted = Wanted { data, devices, simulated, listen, device_listen, local_listen, signed_listen };
    let mut stop = Stop::listen()?;
    screen.words("Starting a server, devices and sample packages…");
    // A signal while it starts waits until there is something to take away in order; a second one does not.
    let mut early = false;
    let mut demo = {
        let mut starting = std::pin::pin!(Demo::start(screen, wanted));
        loop {
            tokio::select! {
                started = &mut starting => break started?,
                () = stop.wait() => {
                    if std::mem::replace(&mut early, true) {
                        return Err(aborted());
                    }
                }
            }
        }
    };
    let mut broke = false;
    if !early {
        greet(screen, &demo)?;
        tokio::select! {
            () = stop.wait() => {}
            () = demo.server.stopped() => broke = true,
        }
    }
    screen.words("\nTaking away what the devices run; a second Ctrl-C leaves at once.");
    let kept = tokio::select! {
        ended = demo.end(screen) => ended?,
        () = stop.wait() => return Err(aborted()),
    };
    if broke {
        return Err(
            Trouble::broke("a part of the server broke").hint("MARGRAVE_LOG=info shows more next time")
        );
    }
    match kept {
        Some(data) => screen.words(format_args!(
            "The demo has ended. Its data is kept in {}; the same command goes on with it.",
            data.display()
        )),
        None => screen.words("Nothing of the demo is left."),
    }
    Ok(Answer::Done)
}

fn aborted() -> Trouble {
    Trouble::broke("left at once; something of the demo may still be there")
        .hint("`docker ps --filter label=io.margrave.agent` shows its containers")
}

fn greet(screen: &Screen, demo: &Demo) -> Result<()> {
    let server = &demo.server;
    let link = server.sign_in_link();
    let context = server.context();
    if screen.json {
        return screen.object_line(&json!({
            "page": link.rsplit_once("/welcome/").map_or(link.as_str(), |(page, _)| page),
            "signIn": link,
            "url": server.url(),
            "pin": server.pin(),
            "signedUrls": server.signed_urls(),
            "token": context.token,
            "context": demo.context_file,
            "devices": demo.plan.iter().map(|device| &device.name).collect::<Vec<_>>(),
            "simulated": demo.simulated.is_some(),
            "text": demo.text,
        }));
    }
    let program = program();
    let mut lines = vec![String::new()];
    lines.extend(demo.moved.iter().map(|moved| format!("Note: {moved}.")));
    if let Some(why) = &demo.simulated {
        lines.push(format!("Note: the devices are SIMULATED, no containers are started: {}", why.trim()));
    }
    let what = match demo.simulated {
        Some(_) => format!("Demo: {}.", count(demo.plan.len() as u64, "simulated device")),
        None => demo.text.clone(),
    };
    lines.extend([
        format!("{what} Ready after {:.1} s.", demo.took.as_secs_f32()),
        String::new(),
        format!("  Open      {link}"),
        "            (signs you in, once; later use the token)".to_owned(),
        format!("  Token     {}", context.token),
        format!("  Devices   {}", names(demo)),
        format!("  Samples   {}", demo.samples.display()),
    ]);
    lines.extend(signed_lines(server));
    lines.extend([
        String::new(),
        "On the page: choose a package, press Deploy, pick some devices. Or in another terminal:".to_owned(),
        String::new(),
        format!("  export MARGRAVE_CONTEXT={}", quoted(&demo.context_file.display().to_string())),
        format!("  {program} deploy andon-board --to {} --wait", demo.plan[0].name),
        format!("  {program} deployment update andon-board --set message=\"Shift 2\" --wait"),
        format!("  {program} status --watch"),
        String::new(),
        "Ctrl-C ends the demo and takes away what its devices run.".to_owned(),
    ]);
    screen.words(lines.join("\n"));
    Ok(())
}

fn names(demo: &Demo) -> String {
    let shown: Vec<&str> = demo.plan.iter().take(8).map(|device| device.name.as_str()).collect();
    match demo.plan.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {}", shown.join(", "), count(more as u64, "other")),
    }
}

/// How to call this very program: by its name where the shell finds it so, else by its path.
fn program() -> String {
    let Ok(own) = std::env::current_exe() else { return "margrave".to_owned() };
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|path| path.join("margrave")).find(|file| file.is_file());
    if found.and_then(|file| file.canonicalize().ok()) == own.canonicalize().ok() {
        return "margrave".to_owned();
    }
    // From where the person stands, which is where they will type it.
    let here = std::env::current_dir()
        .ok()
        .and_then(|here| own.strip_prefix(here).ok().map(|inside| Path::new(".").join(inside)));
    quoted(&here.unwrap_or(own).display().to_string())
}
