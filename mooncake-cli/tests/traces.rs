//! What the statistics say about traces whose numbers are known.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::io::Write;
use std::path::{Path, PathBuf};

use mooncake_cli::trace::{Ideal, TraceReader};

fn ideal_of(path: &Path) -> Ideal {
    let mut ideal = Ideal::default();
    for request in TraceReader::open(path).unwrap() {
        ideal.observe(&request.unwrap());
    }
    ideal
}

/// A trace of the fixture folder, or a word about why the test is skipped.
fn published(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("MOONCAKE_FIXTURES") else {
        skip(&format!("{name}: MOONCAKE_FIXTURES is not set"));
        return None;
    };
    let path = Path::new(&folder).join("traces").join(name);
    if !path.exists() {
        skip(&format!("{name}: {} does not exist", path.display()));
        return None;
    }
    Some(path)
}

/// Says that a test could not run: `./test` counts the lines of the file that MOONCAKE_SKIP_LOG names.
fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
    if let Some(log) = std::env::var_os("MOONCAKE_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .unwrap();
        writeln!(log, "skipped: {reason}").unwrap();
    }
}

#[test]
fn a_small_trace_is_counted_right() {
    let ideal = ideal_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/small.jsonl"));
    assert_eq!((ideal.requests, ideal.duration_ms), (5, 5_000));
    assert_eq!(
        (ideal.blocks_total, ideal.blocks_distinct, ideal.blocks_hit),
        (14, 7, 7)
    );
    assert_eq!((ideal.tokens_input, ideal.tokens_output), (6_012, 280));
    // Two blocks each for the second and third, all of the fourth: its last block is partial.
    assert_eq!(ideal.tokens_hit, 1_024 + 1_024 + 1_300);
}

#[test]
fn the_published_conversations_are_counted_as_published() {
    let Some(path) = published("conversation.jsonl") else {
        return;
    };
    let ideal = ideal_of(&path);
    assert_eq!(ideal.requests, 12_031);
    assert_eq!(
        (ideal.blocks_total, ideal.blocks_distinct, ideal.blocks_hit),
        (288_500, 182_790, 105_710)
    );
    assert_eq!(format!("{:.4}", ideal.ratio_tokens()), "0.3736");
}

#[test]
fn the_published_synthetic_trace_is_counted_as_published() {
    let Some(path) = published("synthetic.jsonl") else {
        return;
    };
    let ideal = ideal_of(&path);
    assert_eq!(
        (ideal.requests, ideal.blocks_total, ideal.blocks_distinct),
        (3_993, 121_877, 43_924)
    );
    assert_eq!(format!("{:.4}", ideal.ratio_blocks()), "0.6396");
    assert_eq!(format!("{:.4}", ideal.ratio_tokens()), "0.6512");
}
