//! The question before something that hurts, or reaches far.

use askama::Template;

use super::command::Command;
use super::frame::{Frame, Section};
use super::told::Told;

#[derive(Template)]
#[template(path = "confirm.html")]
pub(super) struct ConfirmPage {
    pub(super) frame: Frame,
    pub(super) question: String,
    /// What will happen, a sentence each.
    pub(super) effects: Vec<String>,
    pub(super) verb: &'static str,
    /// It can be undone by the next one.
    pub(super) harmless: bool,
    pub(super) action: String,
    pub(super) back: String,
    /// What the form carries besides.
    pub(super) fields: Vec<(String, String)>,
    pub(super) command: Command,
}
