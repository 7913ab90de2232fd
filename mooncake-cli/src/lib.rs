//! What the `mooncake` binary is made of: its commands, its settings, and the tools to measure a store.
//!
//! The parts that are useful without the binary are request traces ([`trace`]), made-up ones
//! ([`workload`]), block content that tells where it belongs ([`pattern`]) and the numbers of a run
//! ([`report`]).
//!
//! ```
//! use mooncake_cli::trace::{Ideal, TraceReader};
//! let text = r#"{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}"#;
//! let mut ideal = Ideal::default();
//! for request in TraceReader::new(text.as_bytes(), "a trace") {
//!     ideal.observe(&request?);
//! }
//! assert_eq!(ideal.blocks_total, 2);
//! # Ok::<_, mooncake_cli::trace::TraceError>(())
//! ```
#![deny(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod latency;
pub mod output;
pub mod pattern;
pub mod replay;
pub mod report;
pub mod trace;
pub mod workload;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
