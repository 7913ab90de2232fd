//! What a master does that makes a mistake on purpose.

use mooncake_master::state::{Answer, Caller, ClientId, Command, Incarnation, Operation};

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
