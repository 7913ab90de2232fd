//! Reads the master's answers, which are checked and never trusted.

use std::{sync::Arc, time::Duration};

use mooncake_proto::{
    Fault, Retry,
    master::{self, replica},
    status::{ErrorCode, ErrorDetail},
};

use super::{Description, Incarnation, Location, Replica, SegmentId, SegmentInfo};

/// What an object's answer says, checked.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) incarnation: Incarnation,
    pub(super) length: u64,
    pub(super) replicas: Vec<Replica>,
}

impl Found {
    /// The replicas in memory, in the order of the answer.
    pub(super) fn in_memory(&self) -> impl Iterator<Item = &Location> {
        self.replicas.iter().filter_map(|replica| match replica {
            Replica::Memory(location) => Some(location),
            _ => None,
        })
    }
}

/// The segments of one answer; an entry that makes no sense is refused where it is used.
pub(super) struct SegmentTable(Vec<Option<Arc<SegmentInfo>>>);

impl SegmentTable {
    pub(super) fn new(segments: Vec<master::Segment>) -> Self {
        let read = |wire: master::Segment| {
            let id = <[u8; 16]>::try_from(wire.id.as_ref()).ok()?;
            Some(Arc::new(SegmentInfo {
                id: SegmentId(id),
                name: wire.name,
                owner_incarnation: wire.owner_incarnation,
                registration: wire.registration,
                generation: wire.generation,
                length: wire.length,
            }))
        };
        Self(segments.into_iter().map(read).collect())
    }

    /// Reads an object whose replicas refer to these segments.
    pub(super) fn object(&self, wire: master::Object) -> Result<Found, Fault> {
        let Some(incarnation) = wire.incarnation else {
            return Err(malformed("an object without an incarnation"));
        };
        if wire.length == 0 {
            return Err(malformed("an object without bytes"));
        }
        let replicas = wire.replicas.into_iter();
        Ok(Found {
            incarnation: incarnation.into(),
            length: wire.length,
            replicas: replicas
                .filter_map(|replica| self.replica(replica, wire.length).transpose())
                .collect::<Result<_, _>>()?,
        })
    }

    /// Reads what an object's description says.
    pub(super) fn description(
        &self,
        wire: master::ObjectDescription,
    ) -> Result<Description, Fault> {
        let Some(object) = wire.object else {
            return Err(malformed("a description without an object"));
        };
        let found = self.object(object)?;
        Ok(Description {
            incarnation: found.incarnation,
            length: found.length,
            writing: wire.writing,
            leases: wire.leases,
            idle: Duration::from_micros(wire.idle_us),
            replicas: found.replicas,
        })
    }

    /// `None`: of a kind that a newer master knows and we do not.
    fn replica(&self, wire: master::Replica, length: u64) -> Result<Option<Replica>, Fault> {
        let (replica, its_length) = match wire.replica {
            Some(replica::Replica::Memory(memory)) => {
                let of_table = usize::try_from(memory.segment).ok();
                let segment = of_table.and_then(|index| self.0.get(index)?.clone());
                let Some(segment) = segment else {
                    return Err(malformed(
                        "a replica in a segment that it does not describe",
                    ));
                };
                if memory.offset.checked_add(memory.length).is_none() {
                    return Err(malformed("a replica that ends beyond all addresses"));
                }
                let location = Location {
                    segment,
                    offset: memory.offset,
                    length: memory.length,
                };
                (Replica::Memory(location), memory.length)
            }
            Some(replica::Replica::LocalDisk(disk)) => (
                Replica::LocalDisk {
                    holder: disk.holder_incarnation,
                    storage: disk.storage,
                },
                disk.length,
            ),
            Some(replica::Replica::Remote(remote)) => (
                Replica::Remote {
                    store: remote.store,
                    path: remote.path,
                },
                remote.length,
            ),
            None => return Ok(None),
        };
        if its_length != length {
            return Err(malformed("a replica whose length is not its object's"));
        }
        Ok(Some(replica))
    }
}

/// The result that the master gave for a key without a value of its own.
pub(super) fn key_result(error: Option<Box<ErrorDetail>>) -> Result<(), Fault> {
    error.map_or(Ok(()), |detail| Err(detail.into()))
}

/// The master answered with `what`, which makes no sense.
pub(super) fn malformed(what: &str) -> Fault {
    let message = format!("the master answered with {what}");
    Fault::new(ErrorCode::Internal, Retry::Never, message)
}
