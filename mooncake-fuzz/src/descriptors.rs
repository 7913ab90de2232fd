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
    let endpoints: Vec<_> = message
        .links
        .iter()
        .map(|endpoint| (endpoint.link.clone(), endpoint.address.clone()))
        .collect();
    let offered = message.buffers.len();
    let segment = match SegmentDescriptor::from_wire(message) {
        Ok(segment) => segment,
        Err(what) => return shape(words(&what)),
    };
    assert_eq!(segment.buffers().len(), offered);
    for buffer in segment.buffers() {
        assert!(buffer.length > 0 && buffer.address.checked_add(buffer.length).is_some());
        let found = segment.buffer(buffer.registration);
        assert!(found.is_some_and(|found| found.registration == buffer.registration));
    }
    let ordered = segment.buffers().is_sorted_by_key(|buffer| buffer.address);
    assert!(ordered, "buffers are looked up by address");

    let again = segment.to_wire(&endpoints).encode_to_vec();
    let again = wire::SegmentDescriptor::decode(&again[..]).expect("what we encode decodes");
    let again = SegmentDescriptor::from_wire(again).expect("what we say makes sense");
    let all = |segment: &SegmentDescriptor| {
        let name = segment.name().to_owned();
        let machine = segment.machine().to_owned();
        let peer = segment.peer().clone();
        (
            name,
            segment.version(),
            machine,
            peer,
            segment.buffers().to_vec(),
        )
    };
    assert_eq!(all(&again), all(&segment));
    let permissions = segment.buffers().iter().map(|buffer| buffer.permission);
    shape((
        permissions.take(3).collect::<Vec<_>>(),
        endpoints.len().min(2),
    ))
}
