//! What registries keep under names.

use mooncake_tent::registry::Entry;

use crate::{
    Target,
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "entries",
    run,
    words: &[
        b"{\"schema\": 1, ",
        b"\"incarnation\": \"0000000000000009\"",
        b"\"control\": \"10.0.0.1:4000\"",
        b"[::1]:1",
        b":65536",
        b"\"later\": null",
        b"18446744073709551615",
        b", ",
        b"\\u0000",
    ],
};

fn run(bytes: &[u8]) -> u64 {
    let entry = match Entry::from_json(bytes) {
        Ok(entry) => entry,
        // What is quoted may have quotes itself, so only what comes before it tells kinds apart.
        Err(what) => return shape(what.split(['"', '`']).next().map(words)),
    };
    let (host, port) = entry.control.rsplit_once(':').expect("it is host:port");
    assert!(!host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
    assert!(entry.control.bytes().all(|byte| byte.is_ascii_graphic()));
    let again = Entry::from_json(entry.to_json().as_bytes());
    assert_eq!(again, Ok(entry.clone()), "what we write is what we read");
    shape((entry.control.starts_with('['), host.contains('.')))
}
