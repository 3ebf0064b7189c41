//! The agent's runtimes, from outside: the simulated one, and the real one on real engines.

mod compose;
mod drift;
mod mending;
mod output;
mod pinned;
mod rig;
mod simulated;
