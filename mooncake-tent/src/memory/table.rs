//! All buffers of this process, as requests of peers find them.

use std::{
    ops::Range,
    sync::{Arc, Weak},
};

#[cfg(feature = "host")]
use std::{io, sync::OnceLock};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{BufferLease, LocalBuffer, LocalSlice, Memory, Permission};
#[cfg(feature = "host")]
use super::{MarkPage, MarkRef};
use crate::{
    error::Reason,
    identity::{Generation, RegistrationId},
};

/// What a peer wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Access {
    pub(super) fn is_allowed(self, permission: Permission) -> bool {
        match (permission, self) {
            (Permission::Local, _) | (Permission::PeersRead, Self::Write) => false,
            (Permission::PeersRead, Self::Read) | (Permission::PeersReadWrite, _) => true,
        }
    }
}

/// Why a peer's request is refused. Nothing was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OutOfBounds,
    Permission,
    StaleGeneration,
    UnknownRegistration,
}

impl From<Refusal> for Reason {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OutOfBounds => Self::OutOfBounds,
            Refusal::Permission => Self::Permission,
            Refusal::StaleGeneration => Self::StaleGeneration,
            Refusal::UnknownRegistration => Self::UnknownRegistration,
        }
    }
}

/// What buffers add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferSums {
    pub(crate) registrations: u64,
    pub(crate) leases: u64,
    /// Of those that were removed and are still leased.
    pub(crate) withdrawn_bytes: u64,
}

type Shard = ArcSwap<FxHashMap<RegistrationId, Arc<LocalBuffer>>>;

/// A power of two. Ids follow each other, so that all shards have their share.
const SHARDS: usize = 256;

/// Registered buffers by id: read on every request, written at registration.
#[derive(Debug)]
pub(crate) struct BufferTable {
    /// Many maps, so that one more buffer does not copy all of the others.
    shards: Box<[Shard]>,
    next: Mutex<u64>,
    /// Set once a link asks for it, before any buffer is prepared.
    #[cfg(feature = "host")]
    marks: OnceLock<Arc<MarkPage>>,
    /// Buffers that were removed while leases held them.
    withdrawn: Mutex<Vec<Weak<LocalBuffer>>>,
}

impl BufferTable {
    pub(crate) fn new() -> Self {
        // Ids of different lives of a process do not repeat, so that an old one finds nothing.
        let first = rand::random::<u64>() & !0xffff_ffff;
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            next: Mutex::new(first | 1),
            #[cfg(feature = "host")]
            marks: OnceLock::new(),
            withdrawn: Mutex::default(),
        }
    }

    /// A buffer that nobody finds before it is [published](Self::publish).
    pub(crate) fn prepare(
        &self,
        memory: Memory,
        permission: Permission,
        location: String,
    ) -> Arc<LocalBuffer> {
        let mut next = self.next.lock();
        let id = RegistrationId(*next);
        *next += 1;
        let buffer = LocalBuffer::new(id, memory, permission, location);
        #[cfg(feature = "host")]
        let buffer = buffer.with_mark(self.marks.get().and_then(MarkPage::take));
        Arc::new(buffer)
    }

    /// The page on which buffers that are prepared from now on are marked.
    #[cfg(feature = "host")]
    pub(crate) fn marks(&self) -> io::Result<Arc<MarkPage>> {
        if let Some(marks) = self.marks.get() {
            return Ok(Arc::clone(marks));
        }
        let made = Arc::new(MarkPage::new()?);
        Ok(Arc::clone(self.marks.get_or_init(|| made)))
    }

    /// What a peer of this host needs to read a buffer by itself. The lease keeps the memory until
    /// that is told; what it reads later is only worth something while the mark is open.
    #[cfg(feature = "host")]
    pub(crate) fn lend(
        &self,
        id: RegistrationId,
        generation: Generation,
    ) -> Result<(MarkRef, BufferLease), Refusal> {
        let lease = self.lease(id, generation, Access::Read)?;
        let mark = lease.buffer().mark(generation);
        Ok((mark.ok_or(Refusal::StaleGeneration)?, lease))
    }

    /// It is registered still.
    pub(crate) fn contains(&self, id: RegistrationId) -> bool {
        self.shard(id).load().contains_key(&id)
    }

    fn shard(&self, id: RegistrationId) -> &Shard {
        &self.shards[id.0 as usize & (SHARDS - 1)]
    }

    pub(crate) fn publish(&self, buffer: &Arc<LocalBuffer>) {
        // The lock of `next` also orders writers of the maps.
        let _writer = self.next.lock();
        let shard = self.shard(buffer.id());
        let mut buffers = FxHashMap::clone(&shard.load());
        buffers.insert(buffer.id(), Arc::clone(buffer));
        shard.store(Arc::new(buffers));
    }

    /// All that are registered at this moment. Whoever registers one afterwards sees what happened
    /// before.
    pub(crate) fn all(&self) -> Vec<Arc<LocalBuffer>> {
        let _writer = self.next.lock();
        let shards = self.shards.iter();
        let buffers = shards.map(|shard| shard.load_full());
        buffers
            .flat_map(|buffers| buffers.values().cloned().collect::<Vec<_>>())
            .collect()
    }

    pub(crate) fn remove(&self, id: RegistrationId) {
        let _writer = self.next.lock();
        let shard = self.shard(id);
        let mut buffers = FxHashMap::clone(&shard.load());
        if let Some(buffer) = buffers.remove(&id) {
            shard.store(Arc::new(buffers));
            let mut withdrawn = self.withdrawn.lock();
            withdrawn.retain(|buffer| held(buffer).is_some());
            withdrawn.push(Arc::downgrade(&buffer));
        }
    }

    pub(crate) fn sums(&self) -> BufferSums {
        let mut sums = BufferSums::default();
        for shard in &self.shards {
            let buffers = shard.load();
            sums.registrations += buffers.len() as u64;
            sums.leases += buffers.values().map(|buffer| buffer.leases()).sum::<u64>();
        }
        let mut withdrawn = self.withdrawn.lock();
        withdrawn.retain(|buffer| {
            let Some(buffer) = held(buffer) else {
                return false;
            };
            sums.leases += buffer.leases();
            sums.withdrawn_bytes += buffer.memory().len() as u64;
            true
        });
        sums
    }

    /// Checks a peer's request against what is registered and holds the range for it (law 4).
    pub(crate) fn admit(
        &self,
        id: RegistrationId,
        generation: Generation,
        range: Range<u64>,
        access: Access,
    ) -> Result<LocalSlice, Refusal> {
        let lease = self.lease(id, generation, access)?;
        LocalSlice::new(lease, range).ok_or(Refusal::OutOfBounds)
    }

    /// As [`admit`](Self::admit), for whoever does not reach the memory by plain copies alone.
    pub(crate) fn admit_of_any_kind(
        &self,
        id: RegistrationId,
        generation: Generation,
        range: Range<u64>,
        access: Access,
    ) -> Result<LocalSlice, Refusal> {
        let lease = self.lease_if(id, generation, access, |_| true)?;
        LocalSlice::new(lease, range).ok_or(Refusal::OutOfBounds)
    }

    /// Holds a buffer for requests of this kind, which are served by plain copies.
    pub(super) fn lease(
        &self,
        id: RegistrationId,
        generation: Generation,
        access: Access,
    ) -> Result<BufferLease, Refusal> {
        self.lease_if(id, generation, access, LocalBuffer::is_plain)
    }

    fn lease_if(
        &self,
        id: RegistrationId,
        generation: Generation,
        access: Access,
        reaches: impl Fn(&LocalBuffer) -> bool,
    ) -> Result<BufferLease, Refusal> {
        let buffers = self.shard(id).load();
        let buffer = buffers.get(&id).ok_or(Refusal::UnknownRegistration)?;
        if !access.is_allowed(buffer.permission()) {
            return Err(Refusal::Permission);
        }
        if !reaches(buffer) {
            // Fresh knowledge of it leads to a link that does.
            return Err(Refusal::UnknownRegistration);
        }
        let lease = buffer.lease(Some(generation));
        lease.map_err(|_| Refusal::StaleGeneration)
    }
}

/// A removed buffer that leases keep. It is closed, so one without leases never has any again.
fn held(buffer: &Weak<LocalBuffer>) -> Option<Arc<LocalBuffer>> {
    buffer.upgrade().filter(|buffer| buffer.leases() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn law_04_every_field_of_a_request_is_checked_before_memory_is_touched() {
        let table = BufferTable::new();
        let add = |permission| {
            let memory = Memory::from_vec(vec![0; 64]).unwrap();
            let buffer = table.prepare(memory, permission, String::new());
            table.publish(&buffer);
            buffer
        };
        let local = add(Permission::Local);
        let readable = add(Permission::PeersRead);
        let writable = add(Permission::PeersReadWrite);
        let admit = |buffer: &LocalBuffer, range, access| {
            table
                .admit(buffer.id(), buffer.generation(), range, access)
                .map(|slice| slice.len())
        };

        assert_eq!(admit(&local, 0..1, Access::Read), Err(Refusal::Permission));
        assert_eq!(admit(&readable, 0..64, Access::Read), Ok(64));
        assert_eq!(
            admit(&readable, 0..1, Access::Write),
            Err(Refusal::Permission)
        );
        assert_eq!(admit(&writable, 63..64, Access::Write), Ok(1));
        for range in [
            64..65,
            0..65,
            0..0,
            u64::MAX - 1..u64::MAX,
            Range { start: 9, end: 8 },
        ] {
            assert_eq!(
                admit(&writable, range, Access::Write),
                Err(Refusal::OutOfBounds)
            );
        }
        let stale = Generation(writable.generation().0 + 1);
        let asked = table.admit(writable.id(), stale, 0..1, Access::Write);
        assert_eq!(asked.unwrap_err(), Refusal::StaleGeneration);
        table.remove(writable.id());
        assert_eq!(
            admit(&writable, 0..1, Access::Write),
            Err(Refusal::UnknownRegistration)
        );
        assert_eq!(local.leases() + readable.leases() + writable.leases(), 0);
    }

    #[test]
    fn law_04_memory_of_a_device_is_not_touched_by_plain_copies() {
        let table = BufferTable::new();
        let memory = Memory::from_vec(vec![0; 64]).unwrap();
        let location = "cuda:0".to_owned();
        let buffer = table.prepare(memory, Permission::PeersReadWrite, location);
        table.publish(&buffer);
        let (id, generation) = (buffer.id(), buffer.generation());
        for access in [Access::Read, Access::Write] {
            let plain = table.admit(id, generation, 0..1, access);
            assert_eq!(plain.unwrap_err(), Refusal::UnknownRegistration);
            assert!(
                table
                    .admit_of_any_kind(id, generation, 0..1, access)
                    .is_ok()
            );
        }
        let stale = Generation(generation.0 + 1);
        let asked = table.admit_of_any_kind(id, stale, 0..1, Access::Read);
        assert_eq!(asked.unwrap_err(), Refusal::StaleGeneration);
    }
}
