//! Removing objects.

use super::{Failure, Incarnation, Key, State, check_key, objects::Phase, tenants::TenantId};
use crate::Time;

impl State {
    pub(super) fn remove(
        &mut self,
        now: Time,
        tenant: Option<TenantId>,
        items: &[(Key, Option<Incarnation>)],
    ) -> Vec<Result<(), Failure>> {
        items
            .iter()
            .map(|(key, incarnation)| self.remove_one(now, tenant, key, *incarnation))
            .collect()
    }

    fn remove_one(
        &mut self,
        now: Time,
        tenant: Option<TenantId>,
        key: &Key,
        incarnation: Option<Incarnation>,
    ) -> Result<(), Failure> {
        let key = check_key(key)?;
        let slot = tenant
            .and_then(|tenant| self.objects.find(tenant, key))
            .ok_or(Failure::ObjectNotFound)?;
        let body = &self.objects.bodies[slot];
        if incarnation.is_some_and(|named| named != body.incarnation) {
            return Err(Failure::ObjectNotFound);
        }
        match body.phase {
            Phase::Writing { .. } => self.cancel(now, slot),
            Phase::Complete { .. } | Phase::Gone { .. } => self.retire(now, slot),
        }
        Ok(())
    }
}
