//! The signed device interface of Margo's preview (RFC 9421) as a router for its own listener.

mod signed;

pub use signed::{Applicant, Onboarding, SignedApi, SignedClient, SignedStanding, Terms};
