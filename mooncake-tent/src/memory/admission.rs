//! Admits a peer's requests one after the other, as they come in a row.

use std::ops::Range;

use super::{Access, BufferTable, LocalSlice, Refusal, buffer::SharedLease};
use crate::identity::{Generation, RegistrationId};

/// Requests in a row mostly want the same buffer. The second of them takes a lease that all further
/// ones share, until there are no more.
#[derive(Default)]
pub(crate) struct Admission {
    last: Option<(RegistrationId, Generation)>,
    shared: SharedLease,
}

impl Admission {
    /// As [`BufferTable::admit`], which answers unless we hold what is asked for.
    pub(crate) fn admit(
        &mut self,
        table: &BufferTable,
        id: RegistrationId,
        generation: Generation,
        range: Range<u64>,
        access: Access,
    ) -> Result<LocalSlice, Refusal> {
        let held = self.shared.buffer().is_some_and(|buffer| {
            let same = buffer.id() == id && buffer.is_open(generation);
            same && access.is_allowed(buffer.permission())
        });
        if !held {
            self.shared.rest();
            let lease = table.lease(id, generation, access)?;
            let again = self.last.replace((id, generation)) == Some((id, generation));
            if !again {
                return LocalSlice::new(lease, range).ok_or(Refusal::OutOfBounds);
            }
            self.shared.hold(lease);
        }
        let lease = self.shared.lend().expect("it was just held");
        LocalSlice::new(lease, range).ok_or(Refusal::OutOfBounds)
    }

    /// No request is here now: holds nothing beyond what those before are still served with.
    pub(crate) fn rest(&mut self) {
        self.last = None;
        self.shared.rest();
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use super::*;
    use crate::memory::{Memory, Permission};

    #[test]
    fn requests_in_a_row_share_a_lease_and_are_checked_each() {
        let table = BufferTable::new();
        let memory = Memory::from_vec(vec![0; 64]).unwrap();
        let buffer = table.prepare(memory, Permission::PeersRead, String::new());
        table.publish(&buffer);
        let (id, first) = (buffer.id(), buffer.generation());
        let mut admission = Admission::default();
        let mut admit = |range, access| admission.admit(&table, id, first, range, access);

        let slices: Vec<_> = (0..5)
            .map(|i| admit(i..i + 1, Access::Read).unwrap())
            .collect();
        assert_eq!(buffer.leases(), 2, "of the first, and of the others");
        assert_eq!(
            admit(60..65, Access::Read).unwrap_err(),
            Refusal::OutOfBounds
        );
        assert_eq!(admit(0..1, Access::Write).unwrap_err(), Refusal::Permission);
        assert!(admit(0..1, Access::Read).is_ok());

        // Whoever closes it finds no further request let in, and waits for those that were.
        buffer.close();
        assert_eq!(
            admit(0..1, Access::Read).unwrap_err(),
            Refusal::StaleGeneration
        );
        assert_eq!(buffer.leases(), 2);
        drop(slices);
        assert_eq!(buffer.leases(), 0);
        assert_eq!(buffer.reopen(), Generation(first.0 + 1));
        assert_eq!(
            admit(0..1, Access::Read).unwrap_err(),
            Refusal::StaleGeneration
        );
    }

    #[test]
    fn who_rests_holds_nothing() {
        let table = BufferTable::new();
        let memory = Memory::from_vec(vec![0; 64]).unwrap();
        let buffer = table.prepare(memory, Permission::PeersRead, String::new());
        table.publish(&buffer);
        let (id, generation) = (buffer.id(), buffer.generation());
        let mut admission = Admission::default();
        for _ in 0..3 {
            admission
                .admit(&table, id, generation, 0..1, Access::Read)
                .unwrap();
        }
        assert_eq!(buffer.leases(), 1);
        admission.rest();
        assert_eq!(buffer.leases(), 0);
    }
}
