//! The metadata as a deterministic state machine.
//!
//! [`State::apply`] is the only way in. It reads no clock, does no I/O and draws no numbers: time
//! comes with each command, and so does what is random about it. The same commands at the same times
//! give the same answers, in a test, after a restart and on a standby.
//!
//! # What an object goes through
//!
//! *Writing* from PutStart on, *complete* after PutEnd, *gone* when it is removed, evicted, taken
//! over or revoked. A key stands for at most one body that is not gone. A gone body is found by
//! nobody, yet its memory is not given out again before nobody can read it (its last lease is
//! released or over) and nobody can write it (a writer that did not end its put has had its
//! deadline, and the longest budget of a write frame after it). Until then the memory is in
//! *quarantine*.

mod answer;
mod bodies;
mod clients;
mod closing;
mod command;
mod grants;
mod hash;
mod ids;
mod index;
mod keys;
mod leases;
mod listing;
mod membership;
mod memory;
mod objects;
mod promises;
mod put;
mod read;
mod recency;
mod remove;
mod reservations;
mod room;
mod segments;
mod settings;
mod tenants;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

pub use answer::{
    Answer, Description, Existence, Failure, ListedObject, Located, Object, RemoteReplica, Replica,
    Replicas, SegmentHandle, SegmentIdentity, SegmentUsage, StorageHandle, StorageIdentity,
};
pub use command::{
    Caller, Command, Grant, ListObjects, Operation, Placed, PutPlaced, PutStart, Remove,
};
pub use ids::{
    ClientId, DEFAULT_TENANT, Incarnation, Key, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_TENANT_BYTES,
    SegmentId, StorageId,
};
pub use listing::MAX_PAGE;
pub use settings::Settings;

pub(crate) use self::reservations::MAX_RESERVATION;
use self::{
    clients::Clients, closing::Closing, leases::Leases, listing::Listing, objects::Objects,
    promises::Promises, recency::Use, remove::Sweep, segments::Segments, tenants::TenantId,
    tenants::Tenants,
};
use crate::{Time, evict::Drain, slab::Ref};

/// What a command brought about.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// For the caller.
    pub answer: Answer,
    /// For others.
    pub effects: Vec<Effect>,
}

/// Something that others than the caller should hear of.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Effect {
    /// An object is gone that somebody may be reading.
    Invalidate {
        /// Whose object it was.
        tenant: Arc<str>,
        /// Its key.
        key: Key,
        /// This life of it and all before.
        incarnation: Incarnation,
    },
    /// Space is short: the client should return the grants that it does not use.
    Reclaim {
        /// Whose.
        client: ClientId,
    },
    /// The answer has come that was promised by [`Answer::Later`].
    Settled {
        /// As it was promised.
        ticket: u64,
        /// Who waits for it.
        caller: Caller,
        /// What it answers.
        operation: Operation,
        /// It.
        answer: Answer,
    },
}

/// How much there is of everything, now and ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Complete objects.
    pub objects: u64,
    /// Puts under way.
    pub puts_in_progress: u64,
    /// Allocated to objects and puts.
    pub used_bytes: u64,
    /// Allocated to what is gone, until leases or writers have ended.
    pub quarantined_bytes: u64,
    /// Set aside for puts to come.
    pub granted_bytes: u64,
    /// Of all segments.
    pub capacity_bytes: u64,
    /// Mounted.
    pub segments: u64,
    /// Granted and not over.
    pub leases: u64,
    /// Objects that `exist` promised to keep for a moment.
    pub reservations: u64,
    /// Of these.
    pub reserved_bytes: u64,
    /// Answers that were promised and have not come yet.
    pub promised_answers: u64,
    /// Alive.
    pub clients: u64,
    /// Of these, those that are silent or whose stream has ended.
    pub suspect_clients: u64,
    /// Evicted ever.
    pub evicted_objects: u64,
    /// Evicted ever.
    pub evicted_bytes: u64,
    /// Clients that died of silence.
    pub expired_clients: u64,
    /// Puts that another writer took over, or that nobody ended.
    pub abandoned_puts: u64,
}

/// Counts that only grow.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    evicted_objects: u64,
    evicted_bytes: u64,
    expired_clients: u64,
    abandoned_puts: u64,
}

/// No step goes beyond so many objects for long, so that none takes long: what is left is for the
/// next one.
const STEP: u32 = 1024;

/// See the [module](self).
#[derive(Debug)]
pub struct State {
    epoch: u64,
    sequence: u64,
    settings: Settings,
    tenants: Tenants,
    clients: Clients,
    segments: Segments,
    objects: Objects,
    leases: Leases,
    /// Gone bodies that an unfinished put may still write to, by the end of that.
    held: BTreeSet<(Time, Ref)>,
    /// The same by sequence, for the writer that says it is quiet.
    cancelled: FxHashMap<u64, Ref>,
    drain: Drain,
    /// So many bytes could not be made free, and until then that is not tried again.
    crowded: Option<(Time, u64)>,
    /// Space was short, and until then nothing is granted.
    short_until: Option<Time>,
    /// The latest place in the order of uses that was given out.
    last_use: Use,
    promises: Promises,
    sweeps: VecDeque<Sweep>,
    listings: VecDeque<Listing>,
    closing: VecDeque<Closing>,
    /// Objects that this step evicted, swept or looked at beside those that it was asked for.
    work: u32,
    totals: Totals,
    effects: Vec<Effect>,
}

impl State {
    /// An empty store in a new life of the master. `epoch` must be greater than in all its earlier
    /// lives.
    pub fn new(epoch: u64, settings: Settings) -> Self {
        Self {
            epoch,
            sequence: 0,
            objects: Objects::new(epoch, settings.hash_seed),
            settings,
            tenants: Tenants::default(),
            clients: Clients::default(),
            segments: Segments::default(),
            leases: Leases::new(epoch),
            held: BTreeSet::new(),
            cancelled: FxHashMap::default(),
            drain: Drain::default(),
            crowded: None,
            short_until: None,
            last_use: Use::default(),
            promises: Promises::default(),
            sweeps: VecDeque::new(),
            listings: VecDeque::new(),
            closing: VecDeque::new(),
            work: 0,
            totals: Totals::default(),
            effects: Vec::new(),
        }
    }

    /// Of this life of the master.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The numbers it goes by.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How much there is of everything.
    pub fn counters(&self) -> Counters {
        Counters {
            objects: self.objects.complete(),
            puts_in_progress: self.objects.in_progress,
            used_bytes: self.segments.live_bytes,
            quarantined_bytes: self.segments.quarantined_bytes,
            granted_bytes: self.segments.granted_bytes,
            capacity_bytes: self.segments.capacity,
            segments: self.segments.len() as u64,
            leases: self.leases.len() as u64,
            reservations: self.objects.reservations.count,
            reserved_bytes: self.objects.reservations.bytes,
            promised_answers: self.promises.len() as u64,
            clients: self.clients.all.len() as u64,
            suspect_clients: self
                .clients
                .all
                .values()
                .filter(|client| client.suspect)
                .count() as u64,
            evicted_objects: self.totals.evicted_objects,
            evicted_bytes: self.totals.evicted_bytes,
            expired_clients: self.totals.expired_clients,
            abandoned_puts: self.totals.abandoned_puts,
        }
    }

    /// Takes one step. `now` must not be smaller than in any step before.
    pub fn apply(&mut self, now: Time, command: &Command) -> Applied {
        self.work = 0;
        let answer = match command {
            Command::AcknowledgeBelow { client, number } => {
                if let Some(client) = self.clients.all.get_mut(client) {
                    client.acknowledge_below(*number);
                }
                Answer::Done
            }
            Command::Hello {
                client,
                tenant,
                name,
            } => answer_of(self.hello(now, *client, tenant, name)),
            Command::Lost { client } => {
                self.suspect(*client);
                Answer::Done
            }
            Command::Perform { caller, operation } => self.perform(now, caller, operation),
            Command::Tick => Answer::Ticked {
                more: self.tick(now),
            },
        };
        Applied {
            answer,
            effects: std::mem::take(&mut self.effects),
        }
    }

    fn perform(&mut self, now: Time, caller: &Caller, operation: &Operation) -> Answer {
        match caller {
            Caller::Session { client: id, number } => {
                if !self.seen(now, *id) {
                    return Answer::Refused(Failure::Fenced);
                }
                let client = self.clients.all.get_mut(id).expect("it was just seen");
                client.heard = true;
                let tenant = client.tenant;
                if tenant.is_none() {
                    return Answer::Refused(Failure::Fenced);
                }
                if !operation.mutates() {
                    return self.operate(now, caller, *id, tenant, operation);
                }
                if let Some(answer) = client.answers().recall(*number) {
                    return answer;
                }
                let answer = self.operate(now, caller, *id, tenant, operation);
                if let Some(client) = self.clients.all.get_mut(id) {
                    client.answers().keep(*number, answer.clone());
                }
                answer
            }
            Caller::Unary { client, tenant } => {
                let tenant = match operation {
                    Operation::Put(_) | Operation::PutStart(_) => {
                        self.tenants.intern(tenant).map(Some)
                    }
                    _ => self.tenants.find(tenant),
                };
                match tenant {
                    Ok(tenant) => self.operate(now, caller, *client, tenant, operation),
                    Err(failure) => Answer::Refused(failure),
                }
            }
        }
    }

    /// `tenant` is `None` when nothing was ever put under its name.
    fn operate(
        &mut self,
        now: Time,
        caller: &Caller,
        client: ClientId,
        tenant: Option<TenantId>,
        operation: &Operation,
    ) -> Answer {
        match operation {
            Operation::Describe(keys) => Answer::Described(self.describe(now, tenant, keys)),
            Operation::Exist(keys) => Answer::Exist(self.exist(now, tenant, keys)),
            Operation::Goodbye { quiet } => self.goodbye(now, caller, client, *quiet),
            Operation::Grant(Grant {
                segment,
                number,
                length,
            }) => answer_of(self.grant(now, client, (*segment, *number, *length))),
            Operation::ListObjects(page) => self.list_objects(caller, tenant, page),
            Operation::ListSegments => Answer::Segments {
                segments: self.list_segments(now),
                evicted_objects: self.totals.evicted_objects,
            },
            Operation::Lookup(keys) => self.lookup(now, caller, client, tenant, keys),
            Operation::Mount(segment) => answer_of(self.mount(now, caller, client, segment)),
            Operation::Ping => Answer::Pong {
                known: self.seen(now, client),
            },
            Operation::Put(put) => answer_of(self.put(now, client, tenant, put)),
            Operation::PutEnd(items) => Answer::Keys(self.put_end(now, client, tenant, items)),
            Operation::PutRevoke(items) => {
                Answer::Keys(self.put_revoke(now, client, tenant, items))
            }
            Operation::PutStart(put) => answer_of(self.put_start(now, client, tenant, put)),
            Operation::Release(leases) => {
                for &lease in leases {
                    if let Some(covered) = self.leases.release(client, lease) {
                        self.uncover(now, &covered);
                    }
                }
                Answer::Done
            }
            Operation::Remove(remove) => self.remove(now, caller, tenant, remove),
            Operation::RemoveAll => self.remove_all(now, caller, tenant),
            Operation::ReturnGrants { segment, numbers } => {
                answer_of(self.return_grants(client, *segment, numbers))
            }
            Operation::Unmount(id) => answer_of(self.unmount(now, caller, client, *id)),
        }
    }

    fn tick(&mut self, now: Time) -> bool {
        self.expire_clients(now);
        self.expire_memory(now);
        self.segments.forget_retired(now);
        let closing = self.close_segments(now);
        let evicting = self.evict_to_watermark(STEP);
        let sweeping = self.sweep(now);
        self.list() || sweeping || evicting || closing || !self.may_go_on()
    }

    /// The step has not taken long yet.
    fn may_go_on(&self) -> bool {
        self.work < STEP
    }

    /// A place in the order of uses, later than all before.
    fn next_use(&mut self, now: Time) -> Use {
        self.last_use = Use::after(self.last_use, now);
        self.last_use
    }
}

fn answer_of(result: Result<Answer, Failure>) -> Answer {
    result.unwrap_or_else(Answer::Refused)
}

fn check_key(key: &[u8]) -> Result<(), Failure> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        let length = key.len() as u64;
        return Err(Failure::InvalidKey { length });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
