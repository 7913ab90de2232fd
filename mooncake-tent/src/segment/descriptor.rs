//! What a process tells of its segment.

use std::sync::{Arc, OnceLock};

use mooncake_proto::tent as wire;

use super::{Chunks, Reach};
use crate::{
    identity::{Generation, Incarnation, RegistrationId},
    memory::Permission,
    transport::{Op, Peer},
};

/// The newest form of descriptors that we read, and the one that we write.
const SCHEMA_VERSION: u32 = 1;

/// A segment as its owner described it at one moment. A copy costs next to nothing.
#[derive(Clone, Debug)]
pub struct SegmentDescriptor {
    name: Arc<str>,
    version: u64,
    machine: Arc<str>,
    peer: Arc<Peer>,
    /// Buffers may overlap, and begin at the same address.
    by_address: Chunks<(u64, RegistrationId), Arc<Held>>,
    by_registration: Chunks<RegistrationId, Arc<Held>>,
}

/// A buffer, and what its readers have made out.
#[derive(Debug)]
struct Held {
    buffer: BufferDescriptor,
    /// A bit for the place of each of the reader's links that its owner names.
    links: OnceLock<u64>,
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
    pub location: Arc<str>,
    /// Names of the links that accepted it.
    pub links: Arc<[String]>,
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
        buffers: Vec<BufferDescriptor>,
    ) -> Self {
        let held: Vec<_> = buffers.into_iter().map(Held::new).collect();
        let by_address = held.iter().map(|held| (held.place(), Arc::clone(held)));
        let by_registration = held.iter().map(|held| (held.id(), Arc::clone(held)));
        Self {
            name: name.into(),
            version,
            machine: machine.into(),
            peer: Arc::new(Peer::new(incarnation, endpoints)),
            by_address: Chunks::new(by_address.collect()),
            by_registration: Chunks::new(by_registration.collect()),
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
    pub fn buffers(&self) -> impl Iterator<Item = &BufferDescriptor> {
        self.by_address.values().map(|held| &held.buffer)
    }

    /// How many buffers there are.
    pub fn buffer_count(&self) -> usize {
        self.by_registration.len()
    }

    /// The buffer of this registration.
    pub fn buffer(&self, id: RegistrationId) -> Option<&BufferDescriptor> {
        self.by_registration.get(id).map(|held| &held.buffer)
    }

    /// A bit for the place of each of our links, called `names`, that carries a buffer. All, if it is
    /// not known: then its owner knows better.
    pub(crate) fn links_of<'a, I: Iterator<Item = &'a str>>(
        &self,
        id: RegistrationId,
        names: impl Fn() -> I,
    ) -> u64 {
        let Some(held) = self.by_registration.get(id) else {
            return u64::MAX;
        };
        held.links(&names)
    }

    /// Where all of `address..address + length` lies. A request lies in one buffer: what two buffers
    /// hold only together is nowhere. Of several buffers that hold all of it, one with which peers may
    /// do `op` and that one of our links, called `names`, carries; and of those the one that begins
    /// last, or was registered last. If there is none, one that the owner will refuse, or no link carry,
    /// with that reason.
    pub(crate) fn find<'a, I: Iterator<Item = &'a str>>(
        &self,
        op: Op,
        address: u64,
        length: u64,
        names: impl Fn() -> I,
    ) -> Option<Span> {
        let end = address.checked_add(length)?;
        let last = (address, RegistrationId(u64::MAX));
        let fits = |held: &Held| held.allows(op) && held.links(&names) != 0;
        // Mostly there is one, and it is this one.
        let nearest = self.by_address.at_or_before(last)?.1;
        let found = match nearest.reach() >= end && fits(nearest) {
            true => nearest,
            false => {
                let mut holding = self.by_address.reaching(last, end).peekable();
                let first = *holding.peek()?;
                holding.find(|held| fits(held)).unwrap_or(first)
            }
        };
        let buffer = &found.buffer;
        Some(Span {
            registration: buffer.registration,
            generation: buffer.generation,
            offset: address - buffer.address,
        })
    }

    /// Adds a buffer, or puts it in place of what has its registration, as the next version.
    pub(crate) fn put(&mut self, buffer: BufferDescriptor) {
        self.version += 1;
        self.replace(buffer);
    }

    /// Takes a buffer out, as the next version; `false`: there is none, and it is the same version.
    pub(crate) fn take(&mut self, id: RegistrationId) -> bool {
        let taken = self.erase(id);
        self.version += u64::from(taken);
        taken
    }

    fn replace(&mut self, buffer: BufferDescriptor) {
        let held = Held::new(buffer);
        if let Some(before) = self.by_registration.insert(held.id(), Arc::clone(&held)) {
            self.by_address.remove(before.place());
        }
        self.by_address.insert(held.place(), held);
    }

    fn erase(&mut self, id: RegistrationId) -> bool {
        let erased = self.by_registration.remove(id);
        if let Some(held) = &erased {
            self.by_address.remove(held.place());
        }
        erased.is_some()
    }

    /// What makes the version `from` into this one, in which the buffers of `touched` are not what
    /// they were.
    pub(crate) fn delta(
        &self,
        from: u64,
        touched: impl Iterator<Item = RegistrationId>,
    ) -> wire::SegmentDelta {
        let mut delta = wire::SegmentDelta {
            schema_version: SCHEMA_VERSION,
            incarnation: self.incarnation().get(),
            from_version: from,
            version: self.version,
            changed: Vec::new(),
            removed: Vec::new(),
            buffers: self.buffer_count() as u64,
        };
        for id in touched {
            match self.buffer(id) {
                Some(buffer) => delta.changed.push(buffer.to_wire()),
                None => delta.removed.push(id.0),
            }
        }
        delta
    }

    /// This with what has changed since; the error says why that makes no sense.
    pub fn with_delta(&self, delta: wire::SegmentDelta) -> Result<Self, String> {
        check_schema(delta.schema_version)?;
        if delta.incarnation != self.incarnation().get() {
            return Err("its change is of another incarnation".to_owned());
        }
        // It says all that is not as it was in an older version, so it fits what is newer than that.
        if !(delta.from_version..delta.version).contains(&self.version) {
            return Err(format!(
                "its change is from version {} to {}, we have {}",
                delta.from_version, delta.version, self.version
            ));
        }
        let mut changed = self.clone();
        changed.version = delta.version;
        // Of one that came and went in between, we do not know.
        for id in delta.removed {
            changed.erase(RegistrationId(id));
        }
        let mut reader = Reader::default();
        for buffer in delta.changed {
            changed.replace(reader.read(buffer)?);
        }
        let count = changed.buffer_count() as u64;
        if count != delta.buffers {
            return Err(format!(
                "its change leaves {count} buffers of {}",
                delta.buffers
            ));
        }
        Ok(changed)
    }

    /// For the wire.
    pub fn to_wire(&self) -> wire::SegmentDescriptor {
        let endpoints = self.peer.endpoints();
        wire::SegmentDescriptor {
            schema_version: SCHEMA_VERSION,
            name: self.name.to_string(),
            incarnation: self.incarnation().get(),
            version: self.version,
            machine: self.machine.to_string(),
            buffers: self.buffers().map(BufferDescriptor::to_wire).collect(),
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
        check_schema(wire.schema_version)?;
        let incarnation = Incarnation::from_u64(wire.incarnation)
            .ok_or_else(|| "its descriptor names incarnation 0".to_owned())?;
        let endpoints = wire
            .links
            .into_iter()
            .map(|link| (link.link, link.address))
            .collect();
        let mut reader = Reader::default();
        let buffers = wire.buffers.into_iter().map(|buffer| reader.read(buffer));
        let buffers: Vec<_> = buffers.collect::<Result<_, _>>()?;
        let count = buffers.len();
        let described = Self::new(
            wire.name,
            incarnation,
            wire.version,
            wire.machine,
            endpoints,
            buffers,
        );
        if described.buffer_count() != count {
            return Err("its descriptor has a registration twice".to_owned());
        }
        Ok(described)
    }
}

impl Held {
    fn new(buffer: BufferDescriptor) -> Arc<Self> {
        Arc::new(Self {
            buffer,
            links: OnceLock::new(),
        })
    }

    fn id(&self) -> RegistrationId {
        self.buffer.registration
    }

    /// A bit for the place of each of our links, called `names`, that carries it.
    fn links<'a, I: Iterator<Item = &'a str>>(&self, names: &impl Fn() -> I) -> u64 {
        *self.links.get_or_init(|| {
            names().enumerate().fold(0, |links, (place, name)| {
                let named = self.buffer.links.iter().any(|link| link == name);
                links | u64::from(named) << place
            })
        })
    }

    /// Peers may do that with it.
    fn allows(&self, op: Op) -> bool {
        match (self.buffer.permission, op) {
            (Permission::PeersReadWrite, _) | (Permission::PeersRead, Op::Read) => true,
            (Permission::PeersRead, Op::Write) | (Permission::Local, _) => false,
        }
    }

    fn place(&self) -> (u64, RegistrationId) {
        (self.buffer.address, self.id())
    }
}

impl Reach for Arc<Held> {
    /// Where it ends.
    fn reach(&self) -> u64 {
        self.buffer.address.saturating_add(self.buffer.length)
    }
}

fn check_schema(schema: u32) -> Result<(), String> {
    match schema {
        SCHEMA_VERSION => Ok(()),
        other => Err(format!(
            "its descriptor has schema {other}, we read {SCHEMA_VERSION}"
        )),
    }
}

/// Reads buffers one after the other. Most are like the one before in location and links, which they
/// then share.
#[derive(Default)]
struct Reader {
    last: Option<(Arc<str>, Arc<[String]>)>,
}

impl Reader {
    fn read(&mut self, wire: wire::BufferDescriptor) -> Result<BufferDescriptor, String> {
        let (last, links) = match self.last.take() {
            Some((location, links)) => (Some(location), Some(links)),
            None => (None, None),
        };
        let location = last.filter(|last| **last == *wire.location);
        let links = links.filter(|links| **links == *wire.links);
        let mut buffer = BufferDescriptor::from_wire(wire)?;
        buffer.location = location.unwrap_or(buffer.location);
        buffer.links = links.unwrap_or(buffer.links);
        self.last = Some((Arc::clone(&buffer.location), Arc::clone(&buffer.links)));
        Ok(buffer)
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
            location: self.location.to_string(),
            links: self.links.to_vec(),
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
            location: wire.location.into(),
            links: wire.links.into(),
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
            location: "*".into(),
            links: ["tcp".to_owned()].into(),
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
            let span = segment.find(Op::Write, address, length, names)?;
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
        let wire = ours.to_wire();
        let back = SegmentDescriptor::from_wire(wire.clone()).unwrap();
        assert!(back.buffers().eq(ours.buffers()));
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
        assert!(broken(|wire| wire.buffers[1].registration = 1).contains("twice"));
    }

    #[test]
    fn a_change_makes_one_version_into_a_later_one_and_nonsense_leaves_it_alone() {
        let before = segment(vec![
            buffer(1, 100, 100),
            buffer(2, 300, 1),
            buffer(3, 300, 9),
        ]);
        let mut after = before.clone();
        after.put(buffer(2, 500, 5));
        after.put(buffer(4, 50, 1));
        assert!(after.take(RegistrationId(1)) && !after.take(RegistrationId(1)));
        assert_eq!(after.version(), before.version() + 3);

        let touched = [2, 4, 1, 77].map(RegistrationId);
        let delta = after.delta(before.version(), touched.into_iter());
        assert_eq!((delta.changed.len(), &delta.removed[..]), (2, &[1, 77][..]));
        let made = before.with_delta(delta.clone()).unwrap();
        assert!(made.buffers().eq(after.buffers()));
        assert_eq!(made.version(), after.version());
        assert_eq!(
            made.find(Op::Read, 300, 9, names)
                .map(|span| span.registration.0),
            Some(3)
        );
        assert_eq!(
            made.find(Op::Read, 500, 5, names)
                .map(|span| span.registration.0),
            Some(2)
        );

        let broken = |change: fn(&mut wire::SegmentDelta)| {
            let mut delta = delta.clone();
            change(&mut delta);
            before.with_delta(delta).unwrap_err()
        };
        assert!(broken(|delta| delta.schema_version = 2).contains("schema 2"));
        assert!(broken(|delta| delta.incarnation += 1).contains("incarnation"));
        assert!(broken(|delta| delta.from_version = 4).contains("version"));
        assert!(broken(|delta| delta.version = delta.from_version).contains("version"));
        assert!(broken(|delta| delta.buffers += 1).contains("buffers"));
        assert!(broken(|delta| delta.changed[0].length = 0).contains("no sensible range"));
        assert!(
            made.with_delta(delta).unwrap_err().contains("version"),
            "twice"
        );
    }

    fn names() -> impl Iterator<Item = &'static str> {
        ["shm", "tcp"].into_iter()
    }

    #[test]
    fn of_buffers_that_overlap_one_is_found_that_holds_all_and_serves() {
        let mut all = vec![
            buffer(1, 0, 1000),
            buffer(2, 100, 50),
            buffer(3, 100, 50),
            buffer(4, 400, 100),
            buffer(5, 450, 100),
            buffer(6, 600, 50),
            buffer(7, 2000, 100),
            buffer(8, 2050, 10),
        ];
        all[3].permission = Permission::PeersRead;
        // Of another kind than what we have.
        all[5].links = ["rdma".to_owned()].into();
        for place in [6, 7] {
            all[place].permission = Permission::PeersRead;
        }
        all[7].links = ["rdma".to_owned()].into();
        let segment = segment(all);
        let at = |op, address, length| {
            let span = segment.find(op, address, length, names)?;
            Some((span.registration.0, span.offset))
        };
        for op in [Op::Read, Op::Write] {
            assert_eq!(at(op, 120, 10), Some((3, 20)), "registered last");
            assert_eq!(at(op, 200, 10), Some((1, 200)), "behind a small one");
            assert_eq!(at(op, 140, 20), Some((1, 140)), "beyond its end");
            assert_eq!(at(op, 460, 20), Some((5, 10)), "begins last");
            assert_eq!(at(op, 610, 5), Some((1, 610)), "some link carries it");
            assert_eq!(at(op, 990, 11), None);
            assert_eq!(at(op, u64::MAX, 2), None);
        }
        assert_eq!(at(Op::Read, 410, 5), Some((4, 10)));
        assert_eq!(at(Op::Write, 410, 5), Some((1, 410)), "that may be written");
        // Whoever may not is told so by the owner, rather than that nothing is there.
        assert_eq!(at(Op::Read, 2055, 2), Some((7, 55)));
        assert_eq!(at(Op::Write, 2055, 2), Some((8, 5)));
        assert_eq!(at(Op::Write, 2010, 2), Some((7, 10)));
    }

    #[test]
    fn one_among_very_many_is_found_through_all_that_overlap_it() {
        let small = (0..10_000).map(|id| buffer(id + 2, 1000 + id * 10, 10));
        let mut segment = segment(small.chain([buffer(1, 0, 1 << 40)]).collect());
        let at = |segment: &SegmentDescriptor, address, length| {
            let found = segment.find(Op::Write, address, length, names);
            found.map(|span| span.registration.0)
        };
        assert_eq!(at(&segment, 1 << 39, 7), Some(1));
        assert_eq!(at(&segment, 1005, 6), Some(1), "across two small ones");
        assert_eq!(at(&segment, 1015, 5), Some(3));
        segment.take(RegistrationId(1));
        assert_eq!(at(&segment, 1 << 39, 7), None);
        assert_eq!(at(&segment, 1005, 6), None, "no request lies in two");
    }

    proptest! {
        #[test]
        fn what_some_buffer_holds_is_found_and_finding_never_leaves_a_buffer(
            spans in proptest::collection::vec((0..1000_u64, 1..200_u64, any::<bool>()), 0..8),
            address in 0..1300_u64,
            length in 1..300_u64,
        ) {
            let numbered = spans.iter().enumerate();
            let buffers: Vec<_> = numbered
                .map(|(i, (address, length, writable))| BufferDescriptor {
                    permission: match writable {
                        true => Permission::PeersReadWrite,
                        false => Permission::PeersRead,
                    },
                    ..buffer(i as u64, *address, *length)
                })
                .collect();
            let holds = |it: &&BufferDescriptor| {
                it.address <= address && address + length <= it.address + it.length
            };
            let holding: Vec<_> = buffers.iter().filter(holds).cloned().collect();
            let writable = |it: &BufferDescriptor| it.permission == Permission::PeersReadWrite;
            let segment = segment(buffers);
            let found = segment.find(Op::Write, address, length, names);
            prop_assert_eq!(found.is_some(), !holding.is_empty());
            if let Some(span) = found {
                let found = segment.buffer(span.registration).unwrap();
                prop_assert_eq!(found.address + span.offset, address);
                prop_assert!(span.offset + length <= found.length);
                prop_assert_eq!(writable(found), holding.iter().any(writable));
            }
        }
    }
}
