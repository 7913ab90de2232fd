//! What an operator does with a store of real processes.
#![expect(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod bucket;
mod lifecycle;
mod metadata;
#[path = "../page/mod.rs"]
mod page;
mod pauses;
mod processes;
mod refusals;
mod replicas;
mod stops;
mod streams;
mod values;
mod writers;
