//! Request traces.

use mooncake_cli::trace::{Ideal, Request, TraceReader, TraceWriter};

use crate::{
    Target,
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "trace",
    run,
    words: &[
        b"{\"timestamp\": 0, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [0, 1]}\n",
        b"{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}\n",
        b"\"timestamp\":",
        b"\"input_length\":",
        b"\"output_length\":",
        b"\"hash_ids\":",
        b"18446744073709551615",
        b"18446744073709551616",
        b"1e3",
        b"-0",
        b"null",
        b"[[[[",
        b"\\u0000",
        b"\r\n",
    ],
};

fn run(bytes: &[u8]) -> u64 {
    let mut requests = Vec::new();
    let mut complaint = None;
    for read in TraceReader::new(bytes, "t") {
        assert_eq!(complaint, None, "nothing follows an error");
        match read {
            Ok(request) => requests.push(request),
            Err(error) => {
                assert!((1..=lines(bytes) + 1).contains(&error.line), "{error}");
                complaint = Some(words(&error.to_string()));
            }
        }
    }
    assert!(requests.len() as u64 <= lines(bytes));
    let mut ideal = Ideal::default();
    let mut writer = TraceWriter::new(Vec::new());
    for request in &requests {
        let blocks = request.hash_ids.len() as u64;
        assert_eq!(blocks, Request::blocks_for(request.input_length));
        assert!(ideal.observe(request) <= blocks);
        writer.write(request).expect("memory takes all");
    }
    assert!((0.0..=1.0).contains(&ideal.ratio_blocks()));
    assert!((0.0..=1.0).contains(&ideal.ratio_tokens()));
    let text = writer.finish().expect("memory takes all");
    let again: Result<Vec<_>, _> = TraceReader::new(&text[..], "t").collect();
    assert_eq!(again.expect("what we write is read"), requests);
    shape((complaint, requests.len().min(3), ideal.blocks_hit.min(2)))
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.split(|byte| *byte == b'\n').count() as u64
}
