//! Segments as strings.

use mooncake_tent::{HandleError, SegmentHandle};

use crate::{
    Target,
    descriptors::{assert_alike, check},
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "handles",
    run,
    words: &[
        b"tent1.",
        b"\x0a\x03a:1",
        b"\x12\x0f\x08\x01",
        b"\x12\x03a:1",
        b"\x19\x09\0\0\0\0\0\0\0",
        b"\x32\x04\x20\x01\x28\x02",
        b"AAAA",
        b"-_",
        b"=",
    ],
};

/// The bytes are a handle, or else the message in one whose checksum is right.
fn run(bytes: &[u8]) -> u64 {
    let text = std::str::from_utf8(bytes).ok();
    let text = text.filter(|text| text.starts_with("tent"));
    let sealed = text.is_none();
    let text = text.map_or_else(|| SegmentHandle::seal(bytes), str::to_owned);
    let handle = match text.parse::<SegmentHandle>() {
        Ok(handle) => handle,
        Err(HandleError::Content(what)) => return shape((sealed, words(&what))),
        Err(error) => return shape((sealed, error.to_string())),
    };
    check(handle.descriptor());
    assert!(handle.control().contains(':'));
    assert_eq!(handle.name(), handle.descriptor().name());
    let again: SegmentHandle = handle
        .to_string()
        .parse()
        .expect("what we write is what we read");
    assert_eq!(again.control(), handle.control());
    assert_alike(again.descriptor(), handle.descriptor());
    shape((sealed, handle.descriptor().buffer_count().min(3)))
}
