//! What each command does, a file per noun.
//!
//! A command reads its arguments, asks the server, and shows the answer. It decides nothing that the
//! server should decide: whatever is possible here is possible over REST.

pub(crate) mod answers;
pub(crate) mod audit;
pub(crate) mod authority;
pub(crate) mod backup;
pub(crate) mod completions;
pub(crate) mod confirm;
pub(crate) mod demo;
pub(crate) mod deploy;
pub(crate) mod deployment;
pub(crate) mod device;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod git;
pub(crate) mod intent;
pub(crate) mod login;
pub(crate) mod package;
pub(crate) mod push;
pub(crate) mod registry;
pub(crate) mod rollout;
pub(crate) mod schedule;
pub(crate) mod secret;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod settle;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod watch;
pub(crate) mod why;
