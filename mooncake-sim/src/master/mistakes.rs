//! What a master does that makes a mistake on purpose.

use mooncake_master::state::{
    Answer, Caller, ClientId, Command, Incarnation, Key, Operation, Remove, SegmentId,
};
use mooncake_proto::master::{
    answer::Answer as Reply, operation::Operation as Request, put_start_result,
};

use super::Master;
use crate::{Micros, Plant};

impl Master {
    /// Before an operation is performed.
    pub(super) fn mislead(&mut self, now: Micros, tenant: &str, operation: &mut Operation) {
        match (self.plant, &operation) {
            (Plant::NoQuarantine, Operation::Remove(_)) => self.free_leases(now),
            (Plant::WritersSpared, Operation::Remove(_)) => {
                self.spare_writers(now, tenant, operation);
            }
            (Plant::GrantsTaken, Operation::PutStart(_)) => self.take_grants(now),
            (Plant::BarrierAtOnce, Operation::Remove(_)) => {
                if let Operation::Remove(remove) = operation {
                    remove.barrier = false;
                }
            }
            (Plant::PutsForgotten, Operation::RemoveAll) => {
                let readable = self.ledger.readable.clone();
                let theirs = readable.into_iter().filter(|((of, _), _)| **of == *tenant);
                let item = |((_, key), incarnation)| (Key(key), Some(incarnation));
                *operation = Operation::Remove(Remove {
                    items: theirs.map(item).collect(),
                    barrier: true,
                });
            }
            _ => {}
        }
    }

    /// After one was answered.
    pub(super) fn mislead_after(
        &mut self,
        now: Micros,
        client: ClientId,
        tenant: &str,
        request: &Request,
        reply: &mut Reply,
    ) {
        match (self.plant, request, reply) {
            (Plant::ReservationIgnored, _, Reply::Exist(answer)) => {
                for result in answer.results.iter_mut().filter(|result| result.exists) {
                    result.held_ms = 500;
                }
            }
            (Plant::GrantsTaken, Request::Grant(asked), Reply::Grant(_)) => {
                let id = asked.segment.as_ref().try_into();
                let segment = SegmentId(id.expect("clients know their segments"));
                self.grants.push((client, segment, asked.grant));
            }
            (Plant::UpsertSwitchesEarly, Request::PutStart(asked), Reply::PutStart(answer))
                if asked.upsert =>
            {
                let both = asked.items.iter().zip(&answer.results);
                let granted = both.filter_map(|(item, result)| match &result.result {
                    Some(put_start_result::Result::Object(object)) => {
                        let wire = object.incarnation.unwrap_or_default();
                        let (epoch, sequence) = (wire.epoch, wire.sequence);
                        Some((Key(item.key.clone()), Incarnation { epoch, sequence }))
                    }
                    _ => None,
                });
                let operation = Operation::PutEnd(granted.collect());
                let tenant = tenant.to_owned();
                let caller = Caller::Unary { client, tenant };
                self.apply(now, &Command::Perform { caller, operation });
            }
            _ => {}
        }
    }

    fn spare_writers(&mut self, now: Micros, tenant: &str, operation: &mut Operation) {
        let Operation::Remove(remove) = operation else {
            return;
        };
        let caller = Caller::Unary {
            client: ClientId::NOBODY,
            tenant: tenant.to_owned(),
        };
        let keys = remove.items.iter().map(|(key, _)| key.clone()).collect();
        let command = Command::Perform {
            caller,
            operation: Operation::Describe(keys),
        };
        let Answer::Described(described) = self.apply(now, &command) else {
            unreachable!("keys can be described")
        };
        for ((_, incarnation), result) in remove.items.iter_mut().zip(described.results) {
            if result.is_ok_and(|description| description.writing) {
                *incarnation = Some(Incarnation::default());
            }
        }
    }

    fn take_grants(&mut self, now: Micros) {
        for (client, segment, number) in std::mem::take(&mut self.grants) {
            let numbers = vec![number];
            let tenant = String::new();
            let caller = Caller::Unary { client, tenant };
            let operation = Operation::ReturnGrants { segment, numbers };
            self.apply(now, &Command::Perform { caller, operation });
        }
    }

    fn free_leases(&mut self, now: Micros) {
        for (client, lease) in self.readers.take() {
            let command = Command::Perform {
                caller: Caller::Unary {
                    client,
                    tenant: String::new(),
                },
                operation: Operation::Release(vec![lease]),
            };
            self.apply(now, &command);
        }
    }
}
