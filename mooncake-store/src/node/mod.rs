//! A node: a process that lends memory to the store.

mod running;

pub use running::{Node, NodeOptions};
