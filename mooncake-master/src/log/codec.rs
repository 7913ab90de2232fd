//! Records as bytes. All numbers are little-endian.
//!
//! | Kind | Fields |
//! |---|---|
//! | 1 storage | id, adopting u8 |
//! | 2 held | storage, object, length u64 |
//! | 3 left | storage, object |
//! | 4 removed | object, tasks |
//! | 5 removed all | tenant, incarnation, tasks |
//! | 6 acknowledged | storage, count u32, numbers u64 |
//! | 7 forgotten | storage |
//! | 8 gone | object: up to this incarnation |
//! | 9 tasks | last u64 |
//!
//! A storage is 16 bytes; an object is tenant, key and incarnation; a tenant has its length as u8, a
//! key as u16; an incarnation is epoch and sequence, u64 each; tasks are a count u32 and as many
//! pairs of a storage and a number u64.

use crate::state::{Incarnation, Key, Record, StorageId};

/// Adds a record to `into`.
pub(super) fn encode(record: &Record, into: &mut Vec<u8>) {
    match record {
        Record::Storage { id, adopting } => {
            into.push(1);
            into.extend(id.0);
            into.push(u8::from(*adopting));
        }
        Record::Held {
            storage,
            tenant,
            key,
            incarnation,
            length,
        } => {
            into.push(2);
            into.extend(storage.0);
            object(into, tenant, key, *incarnation);
            into.extend(length.to_le_bytes());
        }
        Record::Left {
            storage,
            tenant,
            key,
            incarnation,
        } => {
            into.push(3);
            into.extend(storage.0);
            object(into, tenant, key, *incarnation);
        }
        Record::Removed {
            tenant,
            key,
            incarnation,
            tasks,
        } => {
            into.push(4);
            object(into, tenant, key, *incarnation);
            pairs(into, tasks);
        }
        Record::RemovedAll {
            tenant,
            last,
            tasks,
        } => {
            into.push(5);
            name(into, tenant);
            life(into, *last);
            pairs(into, tasks);
        }
        Record::Acknowledged { storage, tasks } => {
            into.push(6);
            into.extend(storage.0);
            count(into, tasks.len());
            for task in tasks {
                into.extend(task.to_le_bytes());
            }
        }
        Record::Forgotten { storage } => {
            into.push(7);
            into.extend(storage.0);
        }
        Record::Gone { tenant, key, last } => {
            into.push(8);
            object(into, tenant, key, *last);
        }
        Record::Tasks { last } => {
            into.push(9);
            into.extend(last.to_le_bytes());
        }
    }
}

fn object(into: &mut Vec<u8>, tenant: &str, key: &Key, incarnation: Incarnation) {
    name(into, tenant);
    let len = u16::try_from(key.0.len()).expect("a key has at most 4096 bytes");
    into.extend(len.to_le_bytes());
    into.extend(&key.0);
    life(into, incarnation);
}

fn name(into: &mut Vec<u8>, tenant: &str) {
    into.push(u8::try_from(tenant.len()).expect("a tenant's name has at most 128 bytes"));
    into.extend(tenant.as_bytes());
}

fn life(into: &mut Vec<u8>, incarnation: Incarnation) {
    into.extend(incarnation.epoch.to_le_bytes());
    into.extend(incarnation.sequence.to_le_bytes());
}

fn count(into: &mut Vec<u8>, count: usize) {
    let count = u32::try_from(count).expect("a step makes fewer than 2^32 tasks");
    into.extend(count.to_le_bytes());
}

fn pairs(into: &mut Vec<u8>, tasks: &[(StorageId, u64)]) {
    count(into, tasks.len());
    for (storage, task) in tasks {
        into.extend(storage.0);
        into.extend(task.to_le_bytes());
    }
}

/// Reads one record from the front of `bytes`; `None`: it is none.
pub(super) fn decode(bytes: &mut &[u8]) -> Option<Record> {
    let bytes = &mut Reader(bytes);
    Some(match bytes.u8()? {
        1 => Record::Storage {
            id: bytes.storage()?,
            adopting: match bytes.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            },
        },
        2 => {
            let storage = bytes.storage()?;
            let (tenant, key, incarnation) = bytes.object()?;
            Record::Held {
                storage,
                tenant,
                key,
                incarnation,
                length: bytes.u64()?,
            }
        }
        3 => {
            let storage = bytes.storage()?;
            let (tenant, key, incarnation) = bytes.object()?;
            Record::Left {
                storage,
                tenant,
                key,
                incarnation,
            }
        }
        4 => {
            let (tenant, key, incarnation) = bytes.object()?;
            Record::Removed {
                tenant,
                key,
                incarnation,
                tasks: bytes.pairs()?,
            }
        }
        5 => Record::RemovedAll {
            tenant: bytes.name()?,
            last: bytes.life()?,
            tasks: bytes.pairs()?,
        },
        6 => {
            let storage = bytes.storage()?;
            let count = bytes.u32()?;
            let tasks = (0..count).map(|_| bytes.u64());
            Record::Acknowledged {
                storage,
                tasks: tasks.collect::<Option<_>>()?,
            }
        }
        7 => Record::Forgotten {
            storage: bytes.storage()?,
        },
        8 => {
            let (tenant, key, last) = bytes.object()?;
            Record::Gone { tenant, key, last }
        }
        9 => Record::Tasks { last: bytes.u64()? },
        _ => return None,
    })
}

struct Reader<'a, 'b>(&'a mut &'b [u8]);

impl<'b> Reader<'_, 'b> {
    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        *self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn storage(&mut self) -> Option<StorageId> {
        self.array().map(StorageId)
    }

    fn name(&mut self) -> Option<String> {
        let len = self.u8()?;
        let name = self.take(len.into())?;
        String::from_utf8(name.to_vec()).ok()
    }

    fn life(&mut self) -> Option<Incarnation> {
        Some(Incarnation {
            epoch: self.u64()?,
            sequence: self.u64()?,
        })
    }

    fn object(&mut self) -> Option<(String, Key, Incarnation)> {
        let tenant = self.name()?;
        let len = self.u16()?;
        let key = Key::from(self.take(len.into())?.to_vec());
        Some((tenant, key, self.life()?))
    }

    fn pairs(&mut self) -> Option<Vec<(StorageId, u64)>> {
        let count = self.u32()?;
        let pairs = (0..count).map(|_| Some((self.storage()?, self.u64()?)));
        pairs.collect()
    }
}
