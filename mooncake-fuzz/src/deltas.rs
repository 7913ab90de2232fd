//! Changes of segment descriptors.

use mooncake_proto::tent as wire;
use mooncake_tent::{RegistrationId, SegmentDescriptor};
use prost::Message;

use crate::{
    Target,
    descriptors::{assert_alike, check},
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "deltas",
    run,
    words: &[
        b"\x08\x01",
        b"\x10\x09",
        b"\x18\x05\x20\x06",
        b"\x18\x02\x20\x06",
        b"\x2a\x08\x08\x07\x18\x80\x40\x20\x10\x28\x02",
        b"\x2a\x08\x08\x01\x18\x80\x40\x20\x10\x28\x02",
        b"\x32\x02\x01\x02",
        b"\x38\x04",
        b"\x38\x05",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    ],
};

/// What all changes are made to: version 5 of incarnation 9, with four buffers.
fn begun() -> SegmentDescriptor {
    let buffer = |registration: u64| wire::BufferDescriptor {
        registration,
        generation: 1,
        address: registration * 4096,
        length: 8192,
        permission: wire::Permission::Read.into(),
        location: "*".to_owned(),
        links: vec!["tcp".to_owned()],
    };
    let begun = wire::SegmentDescriptor {
        schema_version: 1,
        name: "a:1".to_owned(),
        incarnation: 9,
        version: 5,
        machine: String::new(),
        buffers: (1..=4).map(buffer).collect(),
        links: Vec::new(),
    };
    SegmentDescriptor::from_wire(begun).expect("it makes sense")
}

fn run(bytes: &[u8]) -> u64 {
    let Ok(delta) = wire::SegmentDelta::decode(bytes) else {
        return 0;
    };
    let before = begun();
    let made = match before.with_delta(delta.clone()) {
        Ok(made) => made,
        Err(what) => return shape(words(&what)),
    };
    assert_alike(&before, &begun());
    check(&made);
    assert_eq!(made.version(), delta.version);
    assert!(made.version() > before.version());
    assert_eq!(made.buffer_count() as u64, delta.buffers);
    // Of several about one buffer, the last word counts.
    for (at, buffer) in delta.changed.iter().enumerate() {
        let later = &delta.changed[at + 1..];
        let last = later
            .iter()
            .all(|it| it.registration != buffer.registration);
        let found = made.buffer(RegistrationId(buffer.registration));
        let found = found.expect("it was put there");
        let said = (buffer.address, buffer.length, buffer.generation);
        assert!(!last || said == (found.address, found.length, found.generation.0));
    }
    for id in &delta.removed {
        let changed = delta.changed.iter().any(|it| it.registration == *id);
        assert_eq!(made.buffer(RegistrationId(*id)).is_some(), changed);
    }
    for buffer in before.buffers() {
        let id = buffer.registration;
        let touched =
            delta.removed.contains(&id.0) || delta.changed.iter().any(|it| it.registration == id.0);
        assert!(
            touched || made.buffer(id) == Some(buffer),
            "it was left alone"
        );
    }
    assert!(made.with_delta(delta.clone()).is_err(), "once is enough");
    shape((
        delta.changed.len().min(2),
        delta.removed.len().min(2),
        made.buffer_count().min(6),
    ))
}
