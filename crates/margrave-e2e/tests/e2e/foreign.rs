//! A real agent at servers that are not ours: what it takes, what it refuses, how patient it is, and what its
//! identity goes through.

mod identity;
mod patience;
mod refusals;
mod tolerance;
