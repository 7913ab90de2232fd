//! The store on one virtual clock: the real state machine of the master, the real client cores and
//! their tables of calls, nodes made of marked cells, and a network that does what networks do.
//!
//! A [`Plan`] is drawn from a seed: operations, faults, and the numbers that everybody goes by. A
//! [`run`] of it is the same each time. An oracle knows each version that was put and each remove
//! that was acknowledged, and ends the run at the first broken promise.
//!
//! ```
//! use mooncake_sim::{Plan, Plant, run};
//!
//! let report = run(&Plan::draw(7, Plant::Nothing)).expect("all promises are kept");
//! assert!(report.finished > 0);
//! ```
//!
//! A broken promise is a [`Violation`]; [`shrink`] looks for a small part of its plan that still
//! breaks it, and [`Plan::command`] is the line that repeats it.
#![forbid(unsafe_code)]

mod client;
mod master;
mod name;
mod node;
mod oracle;
mod plan;
mod readers;
mod report;
mod session;
mod shrink;
mod world;

pub use oracle::Violation;
pub use plan::{Plan, Plant};
pub use report::Report;
pub use shrink::shrink;
pub use world::run;

/// Microseconds of the one clock.
type Micros = u64;

/// Bytes of a cell, the smallest piece of memory that is written and read as a whole.
const CELL: u64 = 64;
