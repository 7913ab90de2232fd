//! Durations and sizes as people write them.

use mooncake_cli::config::{duration_text, parse_duration, parse_size, size_text};

use crate::{
    Target,
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "units",
    run,
    words: &[
        b"us",
        b"ms",
        b"s",
        b"m",
        b"h",
        b"B",
        b"KiB",
        b"gib",
        b"TB",
        b" ",
        b"00",
        b"18446744073709551615",
        b"5124095576",
        b"16777216",
        b"-",
        b".5",
        b"\xc2\xa0",
        b"\xd9\xa1",
    ],
};

fn run(bytes: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return 0;
    };
    let duration = parse_duration(text).map(|duration| {
        let again = duration_text(duration);
        assert_eq!(parse_duration(&again), Ok(duration), "{again}");
        duration.is_zero()
    });
    let size = parse_size(text).map(|size| {
        let again = size_text(size);
        assert_eq!(parse_size(&again), Ok(size), "{again}");
        size == 0
    });
    shape((
        duration.map_err(|what| words(&what)),
        size.map_err(|what| words(&what)),
    ))
}
