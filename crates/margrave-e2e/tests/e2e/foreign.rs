//! A real agent at servers that are not ours: what it takes, what it refuses, how patient it is, and what its
//! identity goes through.

mod git;
mod identity;
pub(crate) mod patience;
mod refusals;
mod signed;
mod tolerance;
