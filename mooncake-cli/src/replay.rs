//! Replays a trace against a store: reads the longest stored prefix of each request's blocks,
//! stores the rest, and checks every byte.

mod player;
mod run;
mod tally;
mod worker;

pub use player::{Player, Served};
pub use run::{Plan, Serve, replay, totals};
pub use tally::Tally;
pub use worker::serve_lines;
