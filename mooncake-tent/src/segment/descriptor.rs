//! What a process tells of its segment.

use std::sync::Arc;

use mooncake_proto::tent as wire;
use rustc_hash::FxHashMap;

use crate::{
    identity::{Generation, Incarnation, RegistrationId},
    memory::Permission,
    transport::Peer,
};

/// The newest form of descriptors that we read, and the one that we write.
const SCHEMA_VERSION: u32 = 1;

/// A segment as its owner described it at one moment.
#[derive(Clone, Debug)]
pub struct SegmentDescriptor {
    name: String,
    version: u64,
    machine: String,
    peer: Arc<Peer>,
    /// Sorted by address.
    buffers: Vec<BufferDescriptor>,
    by_registration: FxHashMap<RegistrationId, usize>,
}

/// A buffer that a segment's owner offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferDescriptor {
    /// Its name within the owner.
    pub registration: RegistrationId,
    /// Which life of the registration.
    pub generation: Generation,
    /// Its address in the owner's memory.
    pub address: u64,
    /// In bytes.
    pub length: u64,
    /// What peers may do with it.
    pub permission: Permission,
    /// Where the memory is.
    pub location: String,
    /// Names of the links that accepted it.
    pub links: Vec<String>,
}

/// A resolved place in a remote buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) registration: RegistrationId,
    pub(crate) generation: Generation,
    pub(crate) offset: u64,
}

impl SegmentDescriptor {
    /// Describes a segment; `endpoints` are pairs of a link's name and address.
    pub fn new(
        name: String,
        incarnation: Incarnation,
        version: u64,
        machine: String,
        endpoints: Vec<(String, String)>,
        mut buffers: Vec<BufferDescriptor>,
    ) -> Self {
        buffers.sort_by_key(|buffer| buffer.address);
        let by_registration = buffers
            .iter()
            .enumerate()
            .map(|(index, buffer)| (buffer.registration, index))
            .collect();
        Self {
            name,
            version,
            machine,
            peer: Arc::new(Peer::new(incarnation, endpoints)),
            buffers,
            by_registration,
        }
    }

    /// The segment's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Grows with each change within one incarnation of the owner.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Tells processes of one machine; empty when unknown.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// The owning process.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Which life of the owner.
    pub fn incarnation(&self) -> Incarnation {
        self.peer.id()
    }

    /// All buffers, by address.
    pub fn buffers(&self) -> &[BufferDescriptor] {
        &self.buffers
    }

    /// The buffer of this registration.
    pub fn buffer(&self, id: RegistrationId) -> Option<&BufferDescriptor> {
        self.place_of(id).map(|place| &self.buffers[place])
    }

    /// Where in [`buffers`](Self::buffers) the buffer of this registration is.
    pub(crate) fn place_of(&self, id: RegistrationId) -> Option<usize> {
        self.by_registration.get(&id).copied()
    }

    /// The buffer that holds all of `address..address + length`.
    pub(crate) fn find(&self, address: u64, length: u64) -> Option<Span> {
        let after = self
            .buffers
            .partition_point(|buffer| buffer.address <= address);
        let buffer = &self.buffers[after.checked_sub(1)?];
        let offset = address - buffer.address;
        let fits = offset.checked_add(length)? <= buffer.length;
        fits.then_some(Span {
            registration: buffer.registration,
            generation: buffer.generation,
            offset,
        })
    }

    /// For the wire.
    pub fn to_wire(&self, endpoints: &[(String, String)]) -> wire::SegmentDescriptor {
        wire::SegmentDescriptor {
            schema_version: SCHEMA_VERSION,
            name: self.name.clone(),
            incarnation: self.incarnation().get(),
            version: self.version,
            machine: self.machine.clone(),
            buffers: self.buffers.iter().map(BufferDescriptor::to_wire).collect(),
            links: endpoints
                .iter()
                .map(|(link, address)| wire::LinkEndpoint {
                    link: link.clone(),
                    address: address.clone(),
                })
                .collect(),
        }
    }

    /// From the wire; the error says what does not make sense.
    pub fn from_wire(wire: wire::SegmentDescriptor) -> Result<Self, String> {
        if wire.schema_version != SCHEMA_VERSION {
            return Err(format!(
                "its descriptor has schema {}, we read {SCHEMA_VERSION}",
                wire.schema_version
            ));
        }
        let incarnation = Incarnation::from_u64(wire.incarnation)
            .ok_or_else(|| "its descriptor names incarnation 0".to_owned())?;
        let endpoints = wire
            .links
            .into_iter()
            .map(|link| (link.link, link.address))
            .collect();
        let buffers = wire
            .buffers
            .into_iter()
            .map(BufferDescriptor::from_wire)
            .collect::<Result<_, _>>()?;
        Ok(Self::new(
            wire.name,
            incarnation,
            wire.version,
            wire.machine,
            endpoints,
            buffers,
        ))
    }
}

impl BufferDescriptor {
    fn to_wire(&self) -> wire::BufferDescriptor {
        let permission = match self.permission {
            Permission::Local => wire::Permission::Local,
            Permission::PeersRead => wire::Permission::Read,
            Permission::PeersReadWrite => wire::Permission::ReadWrite,
        };
        wire::BufferDescriptor {
            registration: self.registration.0,
            generation: self.generation.0,
            address: self.address,
            length: self.length,
            permission: permission.into(),
            location: self.location.clone(),
            links: self.links.clone(),
        }
    }

    fn from_wire(wire: wire::BufferDescriptor) -> Result<Self, String> {
        let permission = match wire.permission() {
            // What we do not know permits nothing.
            wire::Permission::Unspecified | wire::Permission::Local => Permission::Local,
            wire::Permission::Read => Permission::PeersRead,
            wire::Permission::ReadWrite => Permission::PeersReadWrite,
        };
        if wire.length == 0 || wire.address.checked_add(wire.length).is_none() {
            return Err(format!(
                "its buffer {:x} has no sensible range",
                wire.registration
            ));
        }
        Ok(Self {
            registration: RegistrationId(wire.registration),
            generation: Generation(wire.generation),
            address: wire.address,
            length: wire.length,
            permission,
            location: wire.location,
            links: wire.links,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn buffer(registration: u64, address: u64, length: u64) -> BufferDescriptor {
        BufferDescriptor {
            registration: RegistrationId(registration),
            generation: Generation(1),
            address,
            length,
            permission: Permission::PeersReadWrite,
            location: "*".to_owned(),
            links: vec!["tcp".to_owned()],
        }
    }

    fn segment(buffers: Vec<BufferDescriptor>) -> SegmentDescriptor {
        let endpoints = vec![("tcp".to_owned(), "127.0.0.1:1".to_owned())];
        SegmentDescriptor::new(
            "a:1".to_owned(),
            Incarnation::from_u64(9).unwrap(),
            3,
            "m".to_owned(),
            endpoints,
            buffers,
        )
    }

    #[test]
    fn an_address_is_found_in_the_buffer_that_holds_all_of_the_range() {
        let segment = segment(vec![buffer(2, 200, 50), buffer(1, 100, 100)]);
        let at = |address, length| {
            let span = segment.find(address, length)?;
            Some((span.registration.0, span.offset))
        };
        assert_eq!(at(100, 100), Some((1, 0)));
        assert_eq!(at(199, 1), Some((1, 99)));
        assert_eq!(at(200, 50), Some((2, 0)));
        assert_eq!(at(199, 2), None, "it would cross into the next buffer");
        assert_eq!(at(99, 1), None);
        assert_eq!(at(249, 2), None);
        assert_eq!(at(240, u64::MAX), None);
    }

    #[test]
    fn a_descriptor_survives_the_wire_and_nonsense_does_not() {
        let ours = segment(vec![buffer(1, 100, 100), buffer(2, 300, 1)]);
        let endpoints = [("tcp".to_owned(), "127.0.0.1:1".to_owned())];
        let wire = ours.to_wire(&endpoints);
        let back = SegmentDescriptor::from_wire(wire.clone()).unwrap();
        assert_eq!(back.buffers(), ours.buffers());
        assert_eq!(back.peer(), ours.peer());
        assert_eq!(
            (back.name(), back.version(), back.machine()),
            ("a:1", 3, "m")
        );

        let broken = |change: fn(&mut wire::SegmentDescriptor)| {
            let mut wire = wire.clone();
            change(&mut wire);
            SegmentDescriptor::from_wire(wire).unwrap_err()
        };
        assert!(broken(|wire| wire.schema_version = 2).contains("schema 2"));
        assert!(broken(|wire| wire.incarnation = 0).contains("incarnation 0"));
        assert!(broken(|wire| wire.buffers[0].length = 0).contains("no sensible range"));
        assert!(broken(|wire| wire.buffers[0].address = u64::MAX).contains("no sensible range"));
    }

    proptest! {
        #[test]
        fn finding_never_leaves_a_buffer(
            spans in proptest::collection::vec((0..1000_u64, 1..200_u64), 0..8),
            address in 0..1300_u64,
            length in 1..300_u64,
        ) {
            let buffers: Vec<_> = spans
                .iter()
                .enumerate()
                .map(|(i, (address, length))| buffer(i as u64, *address, *length))
                .collect();
            let segment = segment(buffers);
            if let Some(span) = segment.find(address, length) {
                let found = segment.buffer(span.registration).unwrap();
                prop_assert_eq!(found.address + span.offset, address);
                prop_assert!(span.offset + length <= found.length);
            }
        }
    }
}
