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
//! # What is judged
//!
//! - A read gives one version of its tenant's key, whole. Not one that was removed or replaced before
//!   the read was asked for, or of which its reader has heard that it is gone; and of those that go
//!   while it lasts, none longer than a lease.
//! - While a lease lasts, the memory that it covers stays what it is.
//! - What the master announces is whole on each node that lives, and no life that it removed before.
//! - A read fails only if no replica was left to try.
//! - Once the master has answered a barrier, nobody reads what it removed, not even under a lease; once
//!   it has removed all of a tenant, nobody reads what the tenant had.
//! - No object goes out of sight but by a remove, its successor, the loss of its nodes, or to make
//!   room; and not to make room while a promise of `exist` lasts.
//! - A removal of all counts what could be read.
//! - What a client puts in memory of its own is whole there when the master announces it; and at the
//!   end, what the master has set aside is what clients know of.
//! - After a quiet goodbye the master has no lease, put or quarantine of that client.
//! - Removing a key tells all who may be reading it.
//! - An operation that comes twice is answered alike, and each ends once, in time. An answer that is
//!   kept reaches a client that is back.
//! - At the end, memory is charged for what is there and for nothing else; all of it can be read; and
//!   once it is removed, nothing is charged.
//!
//! A [`Report`] counts what happened. Tests see that a thousand seeds leave none of it out, and that
//! each mistake of [`Plant`] is caught.
//!
//! # Another kind of operation
//!
//! It begins in `world/operations.rs`: how it is drawn, and what the core is asked. What its outcome
//! promises stands in `world/outcomes.rs`. If the master's answer to it announces, begins or removes
//! lives of keys, `world/judge.rs` says so; what the answer binds the master to, `master/watch.rs`.
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
mod plant;
mod readers;
mod report;
mod session;
mod shrink;
mod world;

pub use oracle::Violation;
pub use plan::Plan;
pub use plant::Plant;
pub use report::Report;
pub use shrink::shrink;
pub use world::run;

/// Microseconds of the one clock.
type Micros = u64;

/// Bytes of a cell, the smallest piece of memory that is written and read as a whole.
const CELL: u64 = 64;
