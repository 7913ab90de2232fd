//! Prints what is in a trace: `cargo run --example trace_stats -- FILE`, or without FILE about a
//! trace that is made up on the spot.

use std::path::PathBuf;

use mooncake_cli::trace::{Ideal, TraceError, TraceReader};
use mooncake_cli::workload::{Shape, Workload};

fn main() -> Result<(), TraceError> {
    let mut ideal = Ideal::default();
    match std::env::args_os().nth(1).map(PathBuf::from) {
        Some(path) => {
            for request in TraceReader::open(&path)? {
                ideal.observe(&request?);
            }
        }
        None => {
            for request in Workload::new(Shape::default()) {
                ideal.observe(&request);
            }
        }
    }
    println!(
        "{} requests, {} blocks, {} distinct",
        ideal.requests, ideal.blocks_total, ideal.blocks_distinct
    );
    println!(
        "a cache that never forgets would hit {:.1} % of the blocks",
        ideal.ratio_blocks() * 100.0
    );
    Ok(())
}
