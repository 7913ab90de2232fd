//! The messages of a TCP lane that have a fixed length.

use mooncake_tent::tcp::fuzz::MESSAGES;

use crate::{Target, shape::shape};

pub(crate) const TARGET: Target = Target {
    name: "frames",
    run,
    words: &[
        b"MCTL\x03\0",
        b"\x01\0\0\0",
        b"\x02\0\0\0",
        b"\x03\0\0\0",
        b"\x04\0\0\0",
        &[0; 8],
        &[0; 20],
    ],
};

fn run(bytes: &[u8]) -> u64 {
    let decoded = MESSAGES.map(|message| {
        let bytes = bytes.get(..message.length)?;
        let again = (message.again)(bytes);
        if let Ok(encoded) = &again {
            // There is one encoding, so nothing in it was passed over.
            assert_eq!(encoded, bytes, "{} encodes differently", message.name);
        }
        Some(again.err())
    });
    shape(decoded)
}
