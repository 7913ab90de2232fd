//! Segment descriptors.

use mooncake_proto::tent as wire;
use mooncake_tent::SegmentDescriptor;
use prost::Message;

use crate::{
    Target,
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "descriptors",
    run,
    words: &[
        b"\x08\x01",
        b"\x12\x03a:1",
        b"\x19\x09\0\0\0\0\0\0\0",
        b"\x32\x04\x20\x01\x28\x02",
        b"tcp",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xff\xff\xff\xff\x0f",
    ],
};

fn run(bytes: &[u8]) -> u64 {
    let Ok(message) = wire::SegmentDescriptor::decode(bytes) else {
        return 0;
    };
    let links = message.links.len();
    let offered = message.buffers.len();
    let segment = match SegmentDescriptor::from_wire(message) {
        Ok(segment) => segment,
        Err(what) => return shape(words(&what)),
    };
    assert_eq!(segment.buffer_count(), offered);
    check(&segment);
    let again = segment.to_wire().encode_to_vec();
    let again = wire::SegmentDescriptor::decode(&again[..]).expect("what we encode decodes");
    let again = SegmentDescriptor::from_wire(again).expect("what we say makes sense");
    assert_alike(&again, &segment);
    let permissions = segment.buffers().map(|buffer| buffer.permission);
    shape((permissions.take(3).collect::<Vec<_>>(), links.min(2)))
}

/// Holds for every descriptor.
pub(crate) fn check(segment: &SegmentDescriptor) {
    assert_eq!(segment.buffers().count(), segment.buffer_count());
    for buffer in segment.buffers() {
        assert!(buffer.length > 0 && buffer.address.checked_add(buffer.length).is_some());
        assert_eq!(segment.buffer(buffer.registration), Some(buffer));
    }
    let ordered = segment.buffers().is_sorted_by_key(|buffer| buffer.address);
    assert!(ordered, "buffers are looked up by address");
}

pub(crate) fn assert_alike(one: &SegmentDescriptor, other: &SegmentDescriptor) {
    let all = |segment: &SegmentDescriptor| {
        let buffers: Vec<_> = segment.buffers().cloned().collect();
        let (name, machine) = (segment.name().to_owned(), segment.machine().to_owned());
        (
            name,
            segment.version(),
            machine,
            segment.peer().clone(),
            buffers,
        )
    };
    assert_eq!(all(one), all(other));
}
