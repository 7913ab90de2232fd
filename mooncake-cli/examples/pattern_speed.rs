//! How fast block content is written and checked on this machine: run it with `--release`.

use std::hint::black_box;
use std::time::Instant;

use mooncake_cli::pattern::{fill, verify};

fn main() {
    const BLOCK: usize = 1 << 20;
    const ROUNDS: u64 = 256;
    let mut block = vec![0; BLOCK];
    let rate =
        |started: Instant| (ROUNDS * BLOCK as u64) as f64 / started.elapsed().as_secs_f64() / 1e9;

    let started = Instant::now();
    (0..ROUNDS).for_each(|_| fill(7, black_box(&mut block)));
    println!("fill    {:.1} GB/s", rate(started));

    let started = Instant::now();
    let right = (0..ROUNDS).all(|_| verify(7, black_box(&block)).is_ok());
    println!("verify  {:.1} GB/s", rate(started));
    assert!(right, "what was filled verifies");
}
