//! The wire behaviour of each generation, proven through its router. One binary, a module per subject.

mod capabilities;
mod desired_state;
mod openapi;
mod plant;
mod refusals;
mod signed;
mod status;
