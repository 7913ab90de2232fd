//! What must not come back with storages that are being adopted.
//!
//! Such a storage brings objects of which this master knows nothing before their page is told. What is
//! removed until then leaves a mark, as durable as the remove itself, so that no older life of the key
//! comes in behind it. Marks are bounded: when there are too many, removes are busy until the adoption
//! is through. What is evicted or given up by its disk leaves none: then an older life may come in.

use std::collections::BTreeMap;

use super::{Failure, Incarnation, Key, State, durable::Record, tenants::TenantId};

/// Keys that are gone up to these incarnations, while a storage is being adopted.
pub(crate) type Marks = BTreeMap<(TenantId, Key), Incarnation>;

impl State {
    pub(super) fn is_adopting(&self) -> bool {
        self.storages.adopting > 0
    }

    /// Notes whether a storage is yet to tell all that it holds, which is kept.
    pub(super) fn set_adopting(&mut self, slot: u32, adopting: bool) {
        let storage = &mut self.storages.all[slot as usize];
        if std::mem::replace(&mut storage.adopting, adopting) != adopting {
            match adopting {
                true => self.storages.adopting += 1,
                false => self.storages.adopting -= 1,
            }
        }
        if !self.is_adopting() {
            self.marks.clear();
        }
    }

    /// Whether so many further keys can be marked.
    pub(super) fn room_for_marks(&self, more: usize) -> Result<(), Failure> {
        self.check_log()?;
        if self.marks.len().saturating_add(more) > self.settings.remove_queue_limit {
            let held = self.marks.len() as u64;
            return Err(Failure::AdoptionUnderWay { held });
        }
        Ok(())
    }

    /// No life of the key up to this one comes in with a storage that is being adopted.
    pub(super) fn mark(&mut self, tenant: TenantId, key: Key, last: Incarnation) {
        let name = self.tenants.name(tenant).to_string();
        self.log(|| Record::Gone {
            tenant: name,
            key: key.clone(),
            last,
        });
        self.take_mark(tenant, key, last);
    }

    pub(super) fn take_mark(&mut self, tenant: TenantId, key: Key, last: Incarnation) {
        let known = self.marks.entry((tenant, key)).or_insert(last);
        *known = (*known).max(last);
    }

    pub(super) fn is_marked(&self, tenant: TenantId, key: &Key, incarnation: Incarnation) -> bool {
        let mark = self.marks.get(&(tenant, key.clone()));
        mark.is_some_and(|last| incarnation <= *last)
    }
}
