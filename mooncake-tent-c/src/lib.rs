#![doc = include_str!("../README.md")]
//!
//! # Functions
//!
//! `include/tent.h` says what each of them does, and what it asks of its caller.
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]
#![expect(
    clippy::missing_safety_doc,
    missing_docs,
    reason = "the header has the documentation of the functions"
)]

mod batches;
mod buffers;
mod engine;
mod exports;
mod failure;
mod raw;
mod segments;
mod settings;
mod structures;

pub use engine::CEngine;
pub use exports::*;
pub use raw::{Array, Room, Text};
pub use structures::{
    BufferInfo, MemoryOptions, NotifiInfo, NotifiRecord, Request, SegmentInfo, Status, layout,
};
