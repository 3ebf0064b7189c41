//! Pictures of every page, made by the browser tests on their way.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Where `scripts/rig install` puts the accessibility audit.
const AXE: &str = "/usr/local/lib/margrave-rig/axe/node_modules/axe-core/axe.min.js";

/// Builds the program, walks through all pages with it and keeps the pictures; false when a page does not pass.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<bool> {
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        bail!("screenshots wants one folder to write to");
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("{folder} cannot be made"))?;
    let folder =
        PathBuf::from(&folder).canonicalize().with_context(|| format!("{folder} cannot be found"))?;
    let cargo = || Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let built = cargo()
        .args(["build", "--quiet", "--package", "margrave", "--package", "margrave-agent"])
        .status()?;
    if !built.success() {
        bail!("the programs cannot be built");
    }
    let mut walk = cargo();
    walk.args(["test", "--package", "margrave-e2e", "--test", "e2e", "browser::"]);
    walk.env("MARGRAVE_SCREENSHOTS", &folder);
    if std::env::var_os("MARGRAVE_TEST_AXE").is_none() && std::path::Path::new(AXE).exists() {
        walk.env("MARGRAVE_TEST_AXE", AXE);
    }
    let walked = walk.status()?.success();
    let pictures = std::fs::read_dir(&folder)?.count();
    println!("{pictures} files are in {}", folder.display());
    Ok(walked)
}
