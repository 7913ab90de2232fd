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

mod adoption;
mod answer;
mod bodies;
mod clients;
mod closing;
mod command;
mod disks;
mod durable;
mod grants;
mod hash;
mod holder;
mod ids;
mod index;
mod keys;
mod leases;
mod listing;
mod membership;
mod memory;
mod objects;
mod offload;
mod promises;
mod put;
mod read;
mod recency;
mod removals;
mod remove;
mod reservations;
mod room;
mod segments;
mod settings;
mod storages;
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
pub use durable::{Record, Survey};
pub use holder::{
    Dropped, Held, Measured, ObjectName, OffloadResult, Offloaded, Removal, StorageAnswer,
    StorageCall, StorageUsage,
};
pub use ids::{
    ClientId, DEFAULT_TENANT, Incarnation, Key, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_TENANT_BYTES,
    SegmentId, StorageId,
};
pub use listing::MAX_PAGE;
pub use offload::Offload;
pub use settings::Settings;
pub use storages::RECONCILE_PAGE;

pub(crate) use self::reservations::MAX_RESERVATION;
use self::{
    clients::Clients, closing::Closing, disks::Disks, leases::Leases, listing::Listing,
    objects::Objects, promises::Promises, recency::Use, remove::Sweep, segments::Segments,
    storages::Storages, tenants::TenantId, tenants::Tenants,
};
use crate::{Time, evict::Drain, slab::Ref};

/// What a command brought about.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// For the caller.
    pub answer: Answer,
    /// For others.
    pub effects: Vec<Effect>,
    /// It was answered before: what the answer tells may still be on its way to the log.
    pub again: bool,
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
    /// Something must outlive the master: no answer of the step may be given before it is durable.
    Log(Record),
    /// Work waits for the client, which should fetch it.
    Nudge {
        /// Who holds the storage that it is for.
        client: ClientId,
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
    /// Storages that have a holder.
    pub storages: u64,
    /// Replicas on disks, on their way there, or waiting for it.
    pub disk_replicas: u64,
    /// Objects that wait to be copied to disks.
    pub queued_offloads: u64,
    /// Objects that disks have yet to remove.
    pub remove_tasks: u64,
    /// In memory until they are on a disk.
    pub saving_bytes: u64,
    /// Copied to disks ever.
    pub offloaded_objects: u64,
    /// Copies to disks that failed for good.
    pub failed_offloads: u64,
    /// Copies to disks that were not begun: no disk could take them, or the memory went before.
    pub missed_offloads: u64,
    /// Replicas that storages gave up to make room.
    pub dropped_replicas: u64,
    /// Replicas that storages found lost or damaged, or did not tell of.
    pub lost_replicas: u64,
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
    offloaded_objects: u64,
    failed_offloads: u64,
    missed_offloads: u64,
    dropped_replicas: u64,
    lost_replicas: u64,
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
    storages: Storages,
    objects: Objects,
    disks: Disks,
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
    /// Entries whose holders died before they were on the disk.
    orphans: VecDeque<Ref>,
    /// Reconciled storages, from which what they did not tell of is yet to go.
    missing: VecDeque<u32>,
    /// Up to where tenants have removed all that they had.
    watermarks: FxHashMap<TenantId, Incarnation>,
    /// What was removed while storages are being adopted.
    marks: adoption::Marks,
    last_task: u64,
    /// The log says that numbers up to this one may have been given out.
    noted_task: u64,
    /// Of objects that shall be evicted once they are on a disk.
    saving_bytes: u64,
    /// Nothing can be logged any more.
    forgetful: bool,
    /// The step's command was answered before.
    again: bool,
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
            storages: Storages::default(),
            disks: Disks::new(),
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
            orphans: VecDeque::new(),
            missing: VecDeque::new(),
            watermarks: FxHashMap::default(),
            marks: adoption::Marks::new(),
            // Beyond those of earlier lives that had no log; of others the log tells.
            last_task: epoch << 12,
            noted_task: 0,
            saving_bytes: 0,
            forgetful: false,
            again: false,
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
            storages: self.storages.mounted.len() as u64,
            disk_replicas: self.disks.len() as u64,
            queued_offloads: self.storages.all.iter().map(|s| s.queued).sum(),
            remove_tasks: {
                let tasks = self.storages.all.iter().map(|s| s.removes.len() as u64);
                tasks.sum()
            },
            saving_bytes: self.saving_bytes,
            offloaded_objects: self.totals.offloaded_objects,
            failed_offloads: self.totals.failed_offloads,
            missed_offloads: self.totals.missed_offloads,
            dropped_replicas: self.totals.dropped_replicas,
            lost_replicas: self.totals.lost_replicas,
            evicted_objects: self.totals.evicted_objects,
            evicted_bytes: self.totals.evicted_bytes,
            expired_clients: self.totals.expired_clients,
            abandoned_puts: self.totals.abandoned_puts,
        }
    }

    /// Takes one step. `now` must not be smaller than in any step before.
    pub fn apply(&mut self, now: Time, command: &Command) -> Applied {
        self.work = 0;
        self.again = false;
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
            Command::LogFailed => {
                self.forgetful = true;
                Answer::Done
            }
            Command::Perform { caller, operation } => self.perform(now, caller, operation),
            Command::Replay(records) => self.replay(now, records),
            Command::Replayed => self.replayed_all(now),
            Command::Storage { client, call } => self.storage_call(now, *client, call),
            Command::Tick => Answer::Ticked {
                more: self.tick(now),
            },
        };
        Applied {
            answer,
            effects: std::mem::take(&mut self.effects),
            again: self.again,
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
                    self.again = true;
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
                    // Storages that are away, or are adopted one day, may have something of it.
                    Operation::RemoveAll => self.tenants.intern(tenant).map(Some),
                    Operation::Remove(_) if self.is_adopting() => {
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
        let requeuing = self.requeue(now);
        let missing = self.drop_missing(now);
        let evicting = self.evict_to_watermark(STEP);
        let sweeping = self.sweep(now);
        self.list() || sweeping || evicting || closing || requeuing || missing || !self.may_go_on()
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
