//! Reads the master's answers, which are checked and never trusted.

use std::{sync::Arc, time::Duration};

use mooncake_proto::{
    Fault, Retry,
    master::{self, replica},
    status::{ErrorCode, ErrorDetail},
};

use super::{
    Description, Incarnation, Location, Replica, SegmentId, SegmentInfo, StorageId, StorageInfo,
};

/// What an object's answer says, checked.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) incarnation: Incarnation,
    pub(crate) length: u64,
    pub(crate) replicas: Vec<Replica>,
}

impl Found {
    /// The replicas in memory, in the order of the answer.
    pub(crate) fn in_memory(&self) -> impl Iterator<Item = &Location> {
        self.replicas.iter().filter_map(|replica| match replica {
            Replica::Memory(location) => Some(location),
            _ => None,
        })
    }
}

/// The segments and storages of one answer; an entry that makes no sense is refused where it is used.
pub(crate) struct Places {
    segments: Vec<Option<Arc<SegmentInfo>>>,
    storages: Vec<Option<Arc<StorageInfo>>>,
}

impl Places {
    pub(crate) fn new(segments: Vec<master::Segment>, storages: Vec<master::Storage>) -> Self {
        let segment = |wire: master::Segment| {
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
        let storage = |wire: master::Storage| {
            let id = <[u8; 16]>::try_from(wire.id.as_ref()).ok()?;
            Some(Arc::new(StorageInfo {
                id: StorageId(id),
                holder_incarnation: wire.holder_incarnation,
                endpoint: wire.endpoint,
                segment_name: wire.segment_name,
            }))
        };
        Self {
            segments: segments.into_iter().map(segment).collect(),
            storages: storages.into_iter().map(storage).collect(),
        }
    }

    /// Reads an object whose replicas refer to these places.
    pub(crate) fn object(&self, wire: master::Object) -> Result<Found, Fault> {
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
                let Some(segment) = entry(&self.segments, memory.segment) else {
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
            Some(replica::Replica::LocalDisk(disk)) => {
                let Some(storage) = entry(&self.storages, disk.storage) else {
                    return Err(malformed(
                        "a replica in a storage that it does not describe",
                    ));
                };
                (Replica::LocalDisk(storage), disk.length)
            }
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

fn entry<T>(table: &[Option<Arc<T>>], index: u32) -> Option<Arc<T>> {
    table.get(usize::try_from(index).ok()?)?.clone()
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
