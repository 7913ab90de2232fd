//! What bucket storages have on their disks.

use mooncake_bucket::fuzzing::{PARTS, read};

use crate::{
    Target,
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "buckets",
    run,
    words: &[
        b"MCBUCKET\x01",
        b"MCTOMBST\x01",
        b"MCCONTRL\x01\x01",
        b"MCCONTRL\x01\x02",
        b"MCCONTRL\x01\x03",
        b"MCGR\x01\0\0\0\x05\0\0\0\0\0\0\0",
        b"MCRC\x01\0\x10\0",
        b"MCRC\x01\x01\x10\0",
        b"MCTF\x01\0\0\0\x05\0\0\0\0\0\0\0",
        b"MCFT\x01\0\0\0\x05\0\0\0\0\0\0\0",
        b"\0\x10\0\0\0\0\0\0",
        b"\x07\0\0\0\0\0\0\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
};

/// The first byte says as what the others are read, and whether their checksums are made right before: no change would get
/// past them.
fn run(bytes: &[u8]) -> u64 {
    let Some((how, bytes)) = bytes.split_first() else {
        return 0;
    };
    let (part, mended) = (how % PARTS, how & 0x80 != 0);
    let found = read(part, mended, bytes);
    shape((
        part,
        found
            .map(|count| count.min(3))
            .map_err(|flaw| words(&flaw.to_string())),
    ))
}
