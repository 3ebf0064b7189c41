//! Real programs with real containers: a server, agents on a Docker engine, and the clients people use.
//!
//! `MARGRAVE_TEST_DOCKER_HOST` names the engine (see `CONTRIBUTING.md`). Without it these tests say that they
//! are skipped; with `CI=true` they fail instead. Start with `plant.rs`.

#[path = "../e2e/crash/aims.rs"]
mod aims;
#[path = "../e2e/chromium.rs"]
#[allow(dead_code, reason = "shared with the process tests, which use the rest")]
mod chromium;
mod crash;
mod debts;
mod demo;
mod engine;
mod failures;
mod hands;
mod interruptions;
mod lifecycle;
mod loops;
#[path = "../e2e/crash/operator.rs"]
#[allow(dead_code, reason = "shared with the process tests, which use the rest")]
mod operator;
mod outages;
mod packaged;
mod pins;
mod plant;
mod registry;
mod rollback;
mod rollout;
mod service;
mod signed;
#[path = "../e2e/small_disk.rs"]
mod small_disk;
#[path = "../e2e/stage.rs"]
#[allow(dead_code, reason = "shared with the process tests, which use the rest")]
mod stage;
#[path = "../e2e/trap.rs"]
mod trap;
mod trouble;
mod way;
